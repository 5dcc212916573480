/* kernels/x86/packed_tile.h - where the channels of a tile of weightlets lie, for the kernels that read them.
 */
#ifndef TN_KERNELS_X86_PACKED_TILE_H
#define TN_KERNELS_X86_PACKED_TILE_H

#include "kernels/unpack.h"

#include <string.h>

/* Up to 16 channels. */
typedef struct tile {
    size_t n_cols, step;   /* step: bytes of a group of all of them */
    size_t off[TN_TILE_N]; /* of each in a group */
    unsigned width[TN_TILE_N];
    unsigned one_width; /* the width of all 16; 0: several widths, or fewer channels */
    uint64_t widths;    /* as they are kept */
} tile;

/* The tile from column n on; t holds the previous one, which mostly has the same widths. */
static inline void next_tile(const tn_gemm_s8_args *g, const uint8_t *bits, size_t n, tile *t) {
    const size_t group_bytes = TN_WEIGHTLET_GROUP / 8, n_cols = g->n1 - n < TN_TILE_N ? g->n1 - n : TN_TILE_N;
    const uint8_t *kept = bits + n * 3 / 8; /* 3 bits each, from a whole byte on */
    uint64_t widths = 0;
    if (n_cols == TN_TILE_N) { /* from its parts: bytes just stored are not read back as one word */
        uint32_t first;
        uint16_t rest;
        memcpy(&first, kept, sizeof first);
        memcpy(&rest, kept + sizeof first, sizeof rest);
        widths = first | (uint64_t)rest << 32;
    } else {
        memcpy(&widths, kept, tn_channel_bits_bytes(n_cols));
    }
    if (n_cols == t->n_cols && widths == t->widths) return;
    *t = (tile){
        .n_cols = n_cols, .widths = widths, .one_width = n_cols < TN_TILE_N ? 0 : (unsigned)(widths & 7) + 1};
    for (size_t c = 0; c < n_cols; c++, widths >>= 3) {
        t->width[c] = (unsigned)(widths & 7) + 1;
        t->off[c] = t->step;
        t->step += group_bytes * t->width[c];
        if (t->width[c] != t->one_width) t->one_width = 0;
    }
}

#endif
