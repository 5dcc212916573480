/* kernels/attn_tiles.h - exact float attention of tiles: rows that share a list of positions, any number of
 * tiles over one KV head's cache (shadowAttn 3.2). Keys are rows here, not panels: a key that is picked alone
 * should be contiguous. */
#ifndef TN_KERNELS_ATTN_TILES_H
#define TN_KERNELS_ATTN_TILES_H

#include "kernels/attn_f32.h"

typedef struct tn_attn_tile {
    const float *q;      /* [n_rows][d_head] */
    float *out;          /* [n_rows][d_head] */
    size_t n_rows;       /* 1..TN_ATTN_TILE_ROWS */
    const uint32_t *idx; /* [n_idx] positions, ascending */
    size_t n_idx;
    const int32_t *first,
        *end; /* row r sees entries first[r] <= i < end[r] <= n_idx of the list, at least one */
} tn_attn_tile;

enum {
    TN_ATTN_TILE_ROWS = 128,
    TN_ATTN_TILES_TOGETHER =
        192 * 1024 /* floats of the tiles that go through the list together: they fit L2 */,
    TN_ATTN_TILE_PAD = 16,
    TN_ATTN_TILE_STEP = 64 /* listed positions converted at a time, if the cache does not hold floats */
};

typedef struct tn_attn_tiles_args {
    const tn_attn_tile *tiles;
    size_t n_tiles;
    const void *k,
        *v; /* both in the layout of values (kv_cells.h), of form kv; only listed positions are read */
    tn_kv_type kv;
    size_t d_head;         /* multiple of 4, <= 512 */
    float scale, soft_cap; /* as in attn_f32.h */
    float *scratch;        /* tn_attn_tiles_scratch() floats, 64-byte aligned, one per thread */
} tn_attn_tiles_args;

/* For a kernel whose lanes are rows. */
static inline size_t tn_attn_tile_lanes(size_t n_rows) { return (n_rows + 15) / 16 * 16; }
static inline size_t tn_attn_tile_floats(size_t n_rows, size_t n_idx, size_t d_head) {
    return tn_attn_tile_lanes(n_rows) * (n_idx + d_head + 2 + TN_ATTN_TILE_PAD);
}
/* For the reference, which copies the listed positions into a small cache. */
static inline size_t tn_attn_tile_copy(size_t n_idx) {
    return (n_idx + TN_KV_PANEL - 1) / TN_KV_PANEL * TN_KV_PANEL;
}
/* n_rows: of the largest tile; n_idx: of the longest list. */
static inline size_t tn_attn_tiles_scratch(size_t n_rows, size_t n_idx, size_t d_head) {
    size_t lanes = tn_attn_tile_floats(n_rows, n_idx, d_head),
           copy = 2 * tn_attn_tile_copy(n_idx) * d_head + tn_attn_f32_scratch(d_head, n_idx);
    if (lanes < TN_ATTN_TILES_TOGETHER) lanes = TN_ATTN_TILES_TOGETHER;
    lanes += TN_ATTN_TILE_STEP * d_head;
    return lanes > copy ? lanes : copy;
}

/* Every row as in attn_f32.h over a cache that holds just the listed positions in order, bit for bit. So a
 * list of all positions gives the bits of full attention. */
typedef void (*tn_attn_tiles_fn)(const tn_attn_tiles_args *a);
void tn_attn_tiles_ref(const tn_attn_tiles_args *a);

#endif
