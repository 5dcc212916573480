/* npu/hexagon/dsp/ops.h - whole products and unpackings, staged through VTCM piece by piece. Their arguments
 * have been checked. */
#ifndef TN_HEXAGON_OPS_H
#define TN_HEXAGON_OPS_H

#include "dma.h"
#include "kernels.h"

typedef struct tn_hex_scratch {
    uint8_t *vtcm;    /* aligned to 128 */
    uint32_t n_bytes; /* at least TN_HEX_VTCM_LEAST */
    tn_hex_dma *dma;
    const tn_hex_spreads *spreads;
} tn_hex_scratch;

typedef struct tn_hex_op {
    uint32_t m, n, k, out_form, in_stride, out_stride; /* n: columns to compute; k of the rows */
    const uint8_t *in, *tiles;
    const float *scale, *bias; /* rounded up to 16; bias may be NULL */
    uint8_t *out;
} tn_hex_op;

/* A row of scores, |score| <= bound <= 2^30, and where the positions of its k largest go, 1 <= k <= n. */
typedef struct tn_hex_top {
    const int32_t *scores;
    uint32_t n, k;
    int32_t bound;
    uint32_t *idx;
} tn_hex_top;

void tn_hex_topk(const tn_hex_scratch *s, const tn_hex_top *t);

void tn_hex_linear(const tn_hex_scratch *s, const tn_hex_op *op);
/* Unpacks channels of these widths; src holds all their bytes. */
void tn_hex_unpack_tiles(const tn_hex_scratch *s, const uint8_t *src, const uint8_t *widths,
                         uint32_t n_channels, uint32_t k, uint8_t *tiles);

#endif
