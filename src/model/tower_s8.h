/* model/tower_s8.h - a tower whose layers run in INT8: weights of 8 bits with a scale for each output, rows of 8 bits
 * with a scale of their own, products in the tiles of the host's device (kernels/gemm_s8.h).
 *
 * The inputs of every product, and queries and keys, are rotated in blocks of 64 before they are quantised
 * (kernels/hadamard.h), so that channels that stand out share their size with 63 others; weights are rotated alike
 * when the file is opened. A row has its own scale because a few patches of such towers are a hundred times larger
 * than the rest. Attention is INT8 products too: a scale for each head's queries, one for each key and one for each
 * channel of values; a share has 254 steps below the row's largest, and the steps of a row are summed as they are.
 * Softmax, norms, the patches' own linear and the projector stay in floats. */
#ifndef TN_MODEL_TOWER_S8_H
#define TN_MODEL_TOWER_S8_H

#include "model/model.h"

#include <stdint.h>

/* y = W x + bias of one or more linears that read the same rows: their outputs side by side. */
typedef struct tn_tower_s8 {
    int8_t *tiles;
    int32_t *col_sum; /* [n rounded up to 16] */
    float *scale;     /* [n] */
    float *bias;      /* [n] */
    int32_t n, k;
    int32_t padded; /* k rounded up to 64: inputs beyond k are zeros, which the rotation fills */
} tn_tower_s8;

enum { TN_TOWER_S8_PARTS = 3 };

/* Makes codes of n_parts linears of equal k, of outputs times gain [n] (NULL: 1), whose panels and biases are freed on success: the codes have their own.
 * *bytes grows by what they take. On failure tn_tower_s8_free frees what is there. */
tern_status tn_tower_s8_make(tn_ctx *ctx, const tn_kernels *kern, tn_pool *pool, tn_linear *const *parts,
                             int n_parts, const float *gain, tn_tower_s8 *out, uint64_t *bytes,
                             tern_error *err);
void tn_tower_s8_free(tn_ctx *ctx, tn_tower_s8 *s);

/* What rows of a tower are while they are inputs of products. */
typedef struct tn_tower_codes {
    uint8_t *codes; /* [n][ld]: value + 128 */
    float *scale;   /* [n] */
    size_t ld;
} tn_tower_codes;

/* What becomes of a product's outputs y, element by element. */
typedef enum tn_tower_then {
    TN_TOWER_SET,       /* out = y */
    TN_TOWER_GELU_TANH, /* out = gelu(y) */
    TN_TOWER_GELU_ERF,
    TN_TOWER_ADD, /* out += y */
} tn_tower_then;

/* Row of n values (n <= padded) as codes: rotated in scratch [padded]. Returns its scale. */
float tn_tower_s8_row(const tn_kernels *kern, const float *x, size_t n, size_t padded, float *scratch,
                      uint8_t *codes);

enum { TN_TOWER_S8_ROWS = 256, TN_TOWER_S8_COLS = 256 }; /* of a part of a product: it stays in cache */
/* Parts that a product of n_rows rows has: each computes rows and columns of its own. */
int tn_tower_s8_parts(const tn_tower_s8 *s, size_t n_rows);
/* Part i_part of out [n_rows][ldo] from in. y: floats of TN_TOWER_S8_ROWS * TN_TOWER_S8_COLS. */
void tn_tower_s8_part(const tn_tower_s8 *s, const tn_kernels *kern, const tn_tower_codes *in, size_t n_rows,
                      int i_part, tn_tower_then then, float *y, float *out, size_t ldo);

#endif
