/* formats/packed.h - weights of Hugging Face folders that were quantised by GPTQ or AWQ, or for MLX: a matrix [rows][cols]
 * is several tensors, whole numbers of 2 to 6 or 8 bits in words of 32 and what they mean:
 *   GPTQ  w[n][k] = scales[g][n] * (q[k][n] - zero[g][n]), g = g_idx[k], or k / group without that tensor. qweight and
 *         qzeros are streams of bits, lowest first: of a column of words down k, and of a row of words along n. In format v1
 *         zeros are stored less one (modulo 2^bits), in v2 as they are.
 *   AWQ   the same with g = k / group and words of eight values of a row along n, in the order 0 2 4 6 1 3 5 7.
 *   MLX   w[n][k] = scales[n][k / group] * q[n][k] + biases[n][k / group], a row's q one stream of bits.
 * Products of scales in 16 bits are exact in float32, and the sum of MLX is rounded once. */
#ifndef TN_FORMATS_PACKED_H
#define TN_FORMATS_PACKED_H

#include "formats/tensor.h"

typedef enum tn_packing { TN_PACKING_NONE, TN_PACKING_GPTQ, TN_PACKING_AWQ, TN_PACKING_MLX } tn_packing;

typedef struct tn_packed {
    tn_packing kind;
    int32_t bits;
    uint64_t group; /* input channels; > 0 */
    uint64_t rows, cols, n_groups;
    uint32_t zero_plus; /* 1: of GPTQ's v1 */
    tn_dtype blocks; /* what tn_packed_blocks makes of it at best: TN_Q4_1, TN_Q8_0; TN_N_DTYPES: nothing */
    uint64_t
        n_experts; /* MLX: their matrices lie one after another, and rows are of all; 0: it is one matrix */
    tn_tensor q, zeros, scales, indices; /* zeros: MLX's biases. indices.data NULL: there are none */
} tn_packed;

const char *tn_packing_name(tn_packing kind);
/* Sets rows, cols, n_groups and blocks from the tensors; or an error that names the tensor whose type, shape or values do not fit. */
tern_status tn_packed_check(tn_packed *p, tern_error *err);
/* Row r to out [cols]. */
void tn_packed_row(const tn_packed *p, uint64_t r, float *out);
/* Rows r .. r + n - 1 as GGUF's blocks of 32, of p->blocks or of TN_Q8_0, to out [n][tn_dtype_row_bytes]. Weights of at most
 * 4 bits keep their codes (Q4_1): scales and offsets are rounded to 16 bits, which those of F16 scales and zeros of a power
 * of two are. Others, and those whose 32 neighbours are of several groups, are rounded to 8 bits (Q8_0); values: room for a
 * row of floats. Rows next to each other are read together, because GPTQ and AWQ store columns. A number that is none
 * becomes a scale that is none. */
void tn_packed_blocks(const tn_packed *p, uint64_t r, uint64_t n, tn_dtype type, float *values, uint8_t *out);

#endif
