/* quant/block_form.h - blocks of GGUF files that are written: how scales are chosen, and where bits lie. A weight is
 * scale * code + offset, with a scale and an offset for each group of a block. */
#ifndef TN_QUANT_BLOCK_FORM_H
#define TN_QUANT_BLOCK_FORM_H

#include "formats/tensor.h"

enum { TN_BLOCK_VALUES_MAX = 256, TN_BLOCK_GROUP_MIN = 16 };

typedef struct tn_block_form {
    tn_dtype dtype;
    int32_t n, n_group, n_bytes; /* values of a block and of a group, bytes of a block */
    float low, high;             /* the codes */
    bool offsets;                /* groups have offsets, which are 0 or less */
    const float *list;           /* the 16 codes, ascending; NULL: all whole numbers from low to high */
} tn_block_form;

/* What the block holds of a group, as floats. */
typedef struct tn_block_group {
    float scale, offset;
} tn_block_group;

/* NULL: blocks of this type are not written so. */
const tn_block_form *tn_block_form_of(tn_dtype d);

/* To the nearest code at a scale whose inverse is known. */
static inline float tn_block_code(const tn_block_form *f, float x, float inv) {
    if (f->list) {
        const float at = x * inv;
        float code = f->list[0];
        for (int i = 0; i < 15; i++) code = at > 0.5f * (f->list[i] + f->list[i + 1]) ? f->list[i + 1] : code;
        return code;
    }
    float u = (x * inv + 12582912.0f) - 12582912.0f; /* nearest, for |x * inv| < 2^22 */
    return u < f->low ? f->low : u > f->high ? f->high : u;
}

/* Chooses the groups of a block w [f->n] by the errors that weights are left with, each weighted by the cost of its
 * channel, and writes their part of the block. */
void tn_block_scales(const tn_block_form *f, const float *w, const float *weight, tn_block_group *groups,
                     uint8_t *out);

/* Writes the codes' part of the block. */
void tn_block_codes(const tn_block_form *f, const float *codes, uint8_t *out);

#endif
