/* kernels/gemm_packed.h - gemm_s8 over weights that stay packed: weightlets (unpack.h) instead of tiles, the
 * same bits.
 *
 * With few rows a product is limited by the bytes it reads, and 5 bits are fewer than 8. Such kernels run
 * along k: a channel's weightlets become registers of codes, which are multiplied with copies of the rows.
 * Where that does not pay for more than TN_PACKED_FEW rows, blocks of TN_PACKED_BLOCK columns are unpacked to
 * tiles in a scratch buffer that stays in cache. */
#ifndef TN_KERNELS_GEMM_PACKED_H
#define TN_KERNELS_GEMM_PACKED_H

#include "kernels/unpack.h"

#include <stdbool.h>

enum {
    TN_PACKED_FEW = 16,
    TN_PACKED_BLOCK = 64,
    TN_PACKED_ROOM = 1536,
    TN_PACKED_MOST = 32,             /* rows of one pass of the Arm forms */
    TN_PACKED_ROWS = 8,              /* of one pass of the AVX2 form */
    TN_PACKED_MANY_BYTES = 600 << 10 /* scratch that it needs for more rows */
};

struct tn_kernels;

/* As tn_gemm_s8_fn for m <= kernels.packed_rows; g->tiles is not used. packed: where channel g->n0 begins;
 * bits: widths of the whole matrix; scratch as below. */
typedef void (*tn_gemm_packed_fn)(const tn_gemm_s8_args *g, const uint8_t *packed, const uint8_t *bits,
                                  uint8_t *scratch);
void tn_gemm_packed_avx2(const tn_gemm_s8_args *g, const uint8_t *packed, const uint8_t *bits,
                         uint8_t *scratch);
void tn_gemm_packed_avx512vnni(const tn_gemm_s8_args *g, const uint8_t *packed, const uint8_t *bits,
                               uint8_t *scratch);
void tn_gemm_packed_dotprod(const tn_gemm_s8_args *g, const uint8_t *packed, const uint8_t *bits,
                            uint8_t *scratch);
void tn_gemm_packed_i8mm(const tn_gemm_s8_args *g, const uint8_t *packed, const uint8_t *bits,
                         uint8_t *scratch);

/* Forms of a product that fetch one row's weights in different ways. All give the same bits; which is fastest
 * depends on the machine (measured by measure/tune.h). Lists end with a name of NULL; the first form is the
 * one of tn_kernels_init. */
typedef struct tn_packed_form {
    const char *name;
    tn_gemm_packed_fn fn;
} tn_packed_form;

enum { TN_PACKED_FORMS_MOST = 8 };

extern const tn_packed_form tn_packed_forms_avx512vnni[];

/* Returns the forms for TN_CPU_* flags, or NULL if there is only one. */
const tn_packed_form *tn_packed_forms(uint32_t cpu);
/* Makes kern use the form of that name. Returns false and changes nothing if its processor has no such form.
 */
bool tn_packed_form_use(struct tn_kernels *kern, const char *name);

/* Bytes of scratch for a matrix of k inputs: a block's tiles, or copies of rows in whole groups, of
 * TN_PACKED_MOST or of TN_PACKED_FEW with TN_PACKED_ROOM bytes more each. */
size_t tn_gemm_packed_scratch_bytes(size_t k);
/* As tn_gemm_s8_fn for any m, rows_per_run rows at a time (> 0). scratch: 64-byte aligned. */
void tn_gemm_packed(const struct tn_kernels *kern, const tn_gemm_s8_args *g, size_t rows_per_run,
                    const uint8_t *packed, const uint8_t *bits, int8_t *scratch);

#endif
