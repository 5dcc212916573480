/* kernels/unpack.h - weightlets: weights of 1..8 bits per output channel, unpacked straight into the device's
 * tiles (EdgeFlow 4.2).
 *
 * Code u of B bits stands for the weight 2u - (2^B - 1) when B < 8 (odd numbers: all 2^B codes are used, one
 * bit is a sign), and for the int8 itself when B = 8. A code is cut into weightlets of 4, 2 and 1 bits from
 * its low end (7 = 4 + 2 + 1; 5 = 4 + 1). A channel's k run in groups of 128 (the last one filled up with
 * zero codes), the bits of one NEON or SSE register; in a group
 *   the 4-bit weightlets take 64 bytes: byte j = weight j | weight 64+j << 4
 *   the 2-bit weightlets take 32 bytes: byte j = weight j | weight 32+j << 2 | weight 64+j << 4 | weight 96+j
 *   << 6 the 1-bit weightlets take 16 bytes: byte j = bits of the weights j, 16+j, 32+j ... 112+j, from bit 0
 *   up 8-bit weights take 128 bytes, in order
 * so that one rotate, mask and OR serve a register of weights whatever its width. A tile of 16 channels is
 * one sequential stream: group by group, in each the channels in order, in each of those the weightlets 4, 2,
 * 1. Missing channels of an incomplete last tile take no bytes.
 * Channel widths are a packed INT3 array: width - 1 of channel n in bits 3n..3n+2, least significant first.
 * */
#ifndef TN_KERNELS_UNPACK_H
#define TN_KERNELS_UNPACK_H

#include "kernels/gemm_s8.h"

enum { TN_WEIGHTLET_GROUP = 128 };

/* One tile: n_cols <= 16 channels of the given widths. Writes ceil(k/4)*64 bytes at tile (64-byte aligned),
 * zero for missing k and channels; reads exactly the tile's bytes at src (any alignment) and returns how many
 * those are. */
typedef size_t (*tn_unpack_tile_fn)(const uint8_t *src, const uint8_t *bits, size_t n_cols, size_t k,
                                    int8_t *tile);
size_t tn_unpack_tile_ref(const uint8_t *src, const uint8_t *bits, size_t n_cols, size_t k, int8_t *tile);

size_t tn_channel_bits_bytes(size_t n);
void tn_channel_bits_put(uint8_t *packed, size_t n, unsigned bits); /* packed starts cleared */
unsigned tn_channel_bits_get(const uint8_t *packed, size_t n);      /* 1..8 */

/* Most bytes that an [n][k] matrix takes, in the widest channels. */
static inline size_t tn_weightlets_most(size_t n, size_t k) {
    return n * ((k + TN_WEIGHTLET_GROUP - 1) / TN_WEIGHTLET_GROUP * TN_WEIGHTLET_GROUP);
}
/* Bytes the channels n0..n1-1 take: the offset of a part within the whole, and its length. */
size_t tn_weightlets_bytes(const uint8_t *packed_bits, size_t n0, size_t n1, size_t k);
/* Pack channels n0..n1-1 (n0 % 16 == 0) of W: row-major w [n1-n0][k], each value one its channel's width can
 * express. */
void tn_weightlets_pack(uint8_t *dst, const uint8_t *packed_bits, const int8_t *w, size_t n0, size_t n1,
                        size_t k);
/* The group of 128 of a channel: codes [128] to its weightlets, and back. An int8 counts as w + 128. */
void tn_weightlets_group_pack(uint8_t *dst, const uint8_t *code, unsigned bits);
void tn_weightlets_group_codes(const uint8_t *src, unsigned bits, uint8_t *code);
/* Channel n of n_all alone, out [k]; tile: the beginning of its tile of 16 channels. */
void tn_weightlets_row(const uint8_t *tile, const uint8_t *packed_bits, size_t n, size_t n_all, size_t k,
                       int8_t *out);
/* A loader's call: channels n0..n1-1 (n0 % 16 == 0, n1 % 16 == 0 or the last) into the tiles of the whole
 * matrix. src is where channel n0 begins. Column sums are stored beside the weights, not made here. */
void tn_weightlets_unpack(tn_unpack_tile_fn fn, const uint8_t *src, const uint8_t *packed_bits, size_t n0,
                          size_t n1, size_t k, int8_t *tiles);

size_t tn_unpack_tile_avx2(const uint8_t *src, const uint8_t *bits, size_t n_cols, size_t k, int8_t *tile);
size_t tn_unpack_tile_neon(const uint8_t *src, const uint8_t *bits, size_t n_cols, size_t k, int8_t *tile);
size_t tn_unpack_tile_avx512(const uint8_t *src, const uint8_t *bits, size_t n_cols, size_t k, int8_t *tile);

#endif
