/* formats/ik_types.h - the block types that ik_llama.cpp adds to GGUF, 256 values a block. IQ2_K to IQ6_K have a scale for
 * every 16 values; rows of the others (KS, KSS, KL and the trellises KT) begin with a number of their own, the head, and
 * their scales are for 32. Whatever the file's form, a block is 256 numbers of values in the type's table, a whole scale
 * for every 16 of them, and a bit for every 16 that moves the table's values up by the type's step:
 *   value i = (d * scale[i / 16]) * (table[code[i]] + step * (second >> i / 16 & 1)), d the block's f16 or the row's head.
 * The inner product is exact where d is f16 and else rounded to float32; so is the outer one. A trellis' code is the value
 * itself plus 128. Nothing in a block can be out of range: every field is used under a mask, and every table is full. */
#ifndef TN_FORMATS_IK_TYPES_H
#define TN_FORMATS_IK_TYPES_H

#include "formats/tensor.h"

#include <stdbool.h>

enum { TN_IK_BLOCK = 256, TN_IK_GROUP = 16, TN_IK_GROUPS = TN_IK_BLOCK / TN_IK_GROUP };

typedef struct tn_ik_block {
    uint8_t code[TN_IK_BLOCK];
    int8_t scale[TN_IK_GROUPS];
    uint16_t second; /* bit g: of group g */
} tn_ik_block;

/* Q6_0, which has blocks of 32: a block's values less their scale, the f16 that it begins with. */
void tn_q6_0_values(const uint8_t *block, int8_t out[32]);

/* The types with blocks of 256. */
bool tn_ik_type(tn_dtype d);
void tn_ik_read(tn_dtype d, const uint8_t *block, tn_ik_block *out);
/* The d of a row's head, or of a block where rows have none. */
float tn_ik_d(tn_dtype d, const uint8_t *at);
/* Sets it; where it is f16, to the nearest half. */
void tn_ik_set_d(tn_dtype d, uint8_t *at, float v);
/* Whether the values of a row of n_bytes are finite. */
bool tn_ik_finite(tn_dtype d, const uint8_t *row, size_t n_bytes);
/* A row, or the beginning of one, to its n values. */
void tn_ik_widen(tn_dtype d, const uint8_t *row, float *out, uint64_t n);

#endif
