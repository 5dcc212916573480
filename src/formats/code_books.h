/* formats/code_books.h - ggml's block types of 256 values whose values come from small sets: IQ1 to IQ3,
 * which store eight or four values by their number in a list, and TQ, which stores digits. Whatever the
 * file's form, a block is 256 numbers of values in the type's table, a multiplier for every 16 of them and
 * one f16:
 *   value i = f16 * unit * multiplier[i / 16] * table[code[i]], each product exact in float32.
 * Nothing in a block can be out of range: every field is used under a mask, and every list is full. */
#ifndef TN_FORMATS_CODE_BOOKS_H
#define TN_FORMATS_CODE_BOOKS_H

#include "formats/tensor.h"

#include <stdbool.h>

enum { TN_CODE_BLOCK = 256, TN_CODE_GROUP = 16, TN_CODE_GROUPS = TN_CODE_BLOCK / TN_CODE_GROUP };

typedef struct tn_code_block {
    uint8_t code[TN_CODE_BLOCK];
    uint8_t scale[TN_CODE_GROUPS]; /* 0..15, for the multipliers 1, 3, .. 31; TQ: 0 */
    uint16_t d;                    /* f16 */
} tn_code_block;

bool tn_code_type(tn_dtype d);
void tn_code_read(tn_dtype d, const uint8_t *block, tn_code_block *out);
void tn_code_set_d(tn_dtype d, uint8_t *block, uint16_t half);
/* Whether the f16 values of all blocks in n_bytes are finite. */
bool tn_code_finite(tn_dtype d, const uint8_t *src, size_t n_bytes);
/* One block to its 256 values. */
void tn_code_widen(tn_dtype d, const uint8_t *block, float *out);

#endif
