/* formats/tensor.h - a stored tensor of any file format, and its storage types. */
#ifndef TN_FORMATS_TENSOR_H
#define TN_FORMATS_TENSOR_H

#include "base/status.h"

#include <stdint.h>

/* Storage types. Block formats are as ggml defines them, from Q6_0 on as ik_llama.cpp does. */
typedef enum tn_dtype {
    TN_F32,
    TN_F16,
    TN_BF16,
    TN_Q8_0,
    TN_Q4_0,
    TN_Q4_1,
    TN_Q5_0,
    TN_Q5_1,
    TN_Q2_K,
    TN_Q3_K,
    TN_Q4_K,
    TN_Q5_K,
    TN_Q6_K,
    TN_IQ4_NL,
    TN_IQ4_XS,
    TN_MXFP4,
    TN_IQ1_S,
    TN_IQ1_M,
    TN_IQ2_XXS,
    TN_IQ2_XS,
    TN_IQ2_S,
    TN_IQ3_XXS,
    TN_IQ3_S,
    TN_TQ1_0,
    TN_TQ2_0,
    TN_Q1_0,
    TN_Q2_0,
    TN_NVFP4,
    TN_Q8_K,
    TN_Q6_0,
    TN_IQ2_K,
    TN_IQ3_K,
    TN_IQ4_K,
    TN_IQ5_K,
    TN_IQ6_K,
    TN_IQ4_KS,
    TN_IQ4_KSS,
    TN_IQ5_KS,
    TN_IQ2_KS,
    TN_IQ3_KS,
    TN_IQ2_KL,
    TN_IQ1_KT,
    TN_IQ2_KT,
    TN_IQ3_KT,
    TN_IQ4_KT,
    TN_N_DTYPES
} tn_dtype;

const char *tn_dtype_name(tn_dtype d);
int32_t tn_dtype_block(tn_dtype d);                  /* values per block */
int32_t tn_dtype_block_bytes(tn_dtype d);            /* bytes per block */
int32_t tn_dtype_head_bytes(tn_dtype d);             /* bytes of a row before its blocks; 0 for most types */
uint64_t tn_dtype_row_bytes(tn_dtype d, uint64_t n); /* a row of n values, a multiple of the block */

typedef struct tn_tensor {
    const char *name;
    const char *file; /* file it lies in, for messages */
    tn_dtype dtype;
    int32_t n_dims;
    uint64_t
        dims[4]; /* outermost first (row-major), unused ones are 1; of 5 the last is the product of two */
    uint64_t off_bytes;  /* in the file */
    uint64_t size_bytes; /* checked: data[0..size_bytes) lies in the mapping */
    const uint8_t *data;
    const struct tn_packed
        *packed; /* F32 whose values are made of other tensors (packed.h), and data is theirs; else NULL */
} tn_tensor;

uint64_t tn_tensor_values(const tn_tensor *t);

/* Compares names of tensors, for qsort and bsearch. */
int tn_tensor_by_name(const void *a, const void *b);

/* Widens n values (a multiple of the block) from src, exactly as ggml's reference does. Of a type whose rows have a head
 * src is where a row begins, and n is at most its length. */
void tn_dequantise(tn_dtype d, const uint8_t *src, float *dst, uint64_t n);

#endif
