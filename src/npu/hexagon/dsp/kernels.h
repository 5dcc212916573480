/* npu/hexagon/dsp/kernels.h - the HVX kernels: v67, vectors of 128 bytes, integers only, because vector
 * floats came later and differ between versions. Weights, activations and factors lie in VTCM. */
#ifndef TN_HEXAGON_KERNELS_H
#define TN_HEXAGON_KERNELS_H

#include <hexagon_types.h>
#include <stdint.h>

enum { TN_HEX_ROWS = 8, TN_HEX_COLS = 32, TN_HEX_UNIT = 8 /* inputs of one step */ };

/* Rows are handled in groups of 8, 4, 2 and 1. Returns the size of the next group if this many rows are
 * left. */
static inline uint32_t tn_hex_group(uint32_t left) {
    return left >= 8 ? 8 : left >= 4 ? 4 : left >= 2 ? 2 : 1;
}

/* Packs a group's activations, u8 = s8 + 128, to its panel: [units][rows][8] s8, zero beyond n_bytes (a
 * multiple of 4). sums[row] = 128 * sum of the row's s8. in and stride are multiples of 8. */
void tn_hex_pack_rows(uint32_t n_rows, const uint8_t *in, uint32_t stride, uint32_t n_bytes, uint64_t *panel,
                      int32_t *sums);

/* Computes acc[row] (first: 0) += panel . weights over so many units. w: [units][2][32 columns][4] s8. A
 * vrmpy takes the vector's bytes as unsigned, so weights enter as w + 128, and 128 times the sum of the
 * activations is subtracted. */
void tn_hex_product(uint32_t n_rows, const uint64_t *panel, const HVX_Vector *w, uint32_t n_units,
                    const int32_t *sums, int first, HVX_Vector *acc);

/* Writes the sums of n_rows rows of n_cols <= 32 columns to out, rows `stride` bytes apart, in the given
 * form (npu.h). scale and bias (or NULL) are aligned to 8. */
void tn_hex_finish(uint32_t out_form, const HVX_Vector *acc, uint32_t n_rows, uint32_t n_cols,
                   const float *scale, const float *bias, uint8_t *out, uint32_t stride);

/* How weightlets of `width` bits are spread over a vector (kernels.c). Made once for all widths. */
typedef struct tn_hex_spread {
    HVX_Vector route, shift, mask;
} tn_hex_spread;

typedef struct tn_hex_spreads {
    tn_hex_spread of[8][3]; /* [bits][weightlets of 4, 2, 1 bits] */
} tn_hex_spreads;

void tn_hex_spreads_init(tn_hex_spreads *s);

/* Unpacks one channel's weightlets, groups `stride` bytes apart, to one vector of s8 per group, 16 vectors
 * apart. It reads 128 bytes a group. */
void tn_hex_unpack_channel(const tn_hex_spreads *s, uint32_t bits, const uint8_t *src, uint32_t stride,
                           uint32_t n_groups, HVX_Vector *out);
/* Turns 16 channels of 128 inputs each, [16] vectors, to n_lines <= 32 lines of a 16x4 tile. The last input's
 * line is masked. */
void tn_hex_transpose(const HVX_Vector *channels, uint8_t *tile, uint32_t n_lines, uint32_t last_mask);

#endif
