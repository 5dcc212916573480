/* kernels/attn_tiles.h - exact float attention of tiles: rows that share a list of positions, any number of tiles over one KV head's cache
 * (shadowAttn 3.2). The cache is that of attn_f32.h: no second copy of the keys. */
#ifndef TN_KERNELS_ATTN_TILES_H
#define TN_KERNELS_ATTN_TILES_H

#include "kernels/attn_f32.h"

typedef struct tn_attn_tile {
    const float *q; /* [n_rows][d_head] */
    float *out;     /* [n_rows][d_head] */
    size_t n_rows;  /* 1..TN_ATTN_TILE_ROWS */
    const uint32_t *idx; /* [n_idx] positions, ascending */
    size_t n_idx;
    const int32_t *first, *end; /* row r sees entries first[r] <= i < end[r] <= n_idx of the list, at least one */
} tn_attn_tile;

enum { TN_ATTN_TILE_ROWS = 128, TN_ATTN_TILE_STEP = 64 /* entries of a list that are copied and worked on at a time */ };

typedef struct tn_attn_tiles_args {
    const tn_attn_tile *tiles;
    size_t n_tiles;
    const float *k_panels, *v; /* whole panels are read of those that hold a listed position */
    size_t d_head;             /* multiple of 4, <= 512 */
    float scale, soft_cap;     /* as in attn_f32.h */
    float *scratch;            /* tn_attn_tiles_scratch() floats, 64-byte aligned, one per thread */
} tn_attn_tiles_args;

/* n_rows: of all tiles together; n_idx: of the longest list. */
static inline size_t tn_attn_tiles_ld(size_t n_idx) { return (n_idx + TN_KV_PANEL - 1) / TN_KV_PANEL * TN_KV_PANEL + TN_ATTN_TILE_STEP + 16; }
static inline size_t tn_attn_tiles_scratch(size_t n_rows, size_t n_idx, size_t d_head) {
    return n_rows * tn_attn_tiles_ld(n_idx) + 2 * tn_attn_tiles_ld(n_idx) * d_head; /* the copies: of a step; the reference takes a whole list */
}

/* Every row as by attn_f32.h over a cache that holds the listed positions one behind the other, bit for bit; so a list of all positions gives
 * the bits of full attention. */
typedef void (*tn_attn_tiles_fn)(const tn_attn_tiles_args *a);
void tn_attn_tiles_ref(const tn_attn_tiles_args *a);

#endif
