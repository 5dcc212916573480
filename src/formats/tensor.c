/* The storage types of tensors: names and block sizes. */
#include "formats/tensor.h"

#include <string.h>

static const struct {
    const char *name;
    int32_t block, bytes, head;
} types[TN_N_DTYPES] = {
    [TN_F32] = {"F32", 1, 4},
    [TN_F16] = {"F16", 1, 2},
    [TN_BF16] = {"BF16", 1, 2},
    [TN_Q8_0] = {"Q8_0", 32, 34},
    [TN_Q4_0] = {"Q4_0", 32, 18},
    [TN_Q4_1] = {"Q4_1", 32, 20},
    [TN_Q5_0] = {"Q5_0", 32, 22},
    [TN_Q5_1] = {"Q5_1", 32, 24},
    [TN_Q2_K] = {"Q2_K", 256, 84},
    [TN_Q3_K] = {"Q3_K", 256, 110},
    [TN_Q4_K] = {"Q4_K", 256, 144},
    [TN_Q5_K] = {"Q5_K", 256, 176},
    [TN_Q6_K] = {"Q6_K", 256, 210},
    [TN_IQ4_NL] = {"IQ4_NL", 32, 18},
    [TN_IQ4_XS] = {"IQ4_XS", 256, 136},
    [TN_MXFP4] = {"MXFP4", 32, 17},
    [TN_IQ1_S] = {"IQ1_S", 256, 50},
    [TN_IQ1_M] = {"IQ1_M", 256, 56},
    [TN_IQ2_XXS] = {"IQ2_XXS", 256, 66},
    [TN_IQ2_XS] = {"IQ2_XS", 256, 74},
    [TN_IQ2_S] = {"IQ2_S", 256, 82},
    [TN_IQ3_XXS] = {"IQ3_XXS", 256, 98},
    [TN_IQ3_S] = {"IQ3_S", 256, 110},
    [TN_TQ1_0] = {"TQ1_0", 256, 54},
    [TN_TQ2_0] = {"TQ2_0", 256, 66},
    [TN_Q1_0] = {"Q1_0", 128, 18},
    [TN_Q2_0] = {"Q2_0", 64, 18},
    [TN_NVFP4] = {"NVFP4", 64, 36},
    [TN_Q8_K] = {"Q8_K", 256, 292},
    [TN_Q6_0] = {"Q6_0", 32, 26},
    [TN_IQ2_K] = {"IQ2_K", 256, 76},
    [TN_IQ3_K] = {"IQ3_K", 256, 110},
    [TN_IQ4_K] = {"IQ4_K", 256, 144},
    [TN_IQ5_K] = {"IQ5_K", 256, 176},
    [TN_IQ6_K] = {"IQ6_K", 256, 212},
    [TN_IQ4_KS] = {"IQ4_KS", 256, 136, 4},
    [TN_IQ4_KSS] = {"IQ4_KSS", 256, 128, 4},
    [TN_IQ5_KS] = {"IQ5_KS", 256, 168, 4},
    [TN_IQ2_KS] = {"IQ2_KS", 256, 70, 2},
    [TN_IQ3_KS] = {"IQ3_KS", 256, 102, 2},
    [TN_IQ2_KL] = {"IQ2_KL", 256, 86, 2},
    [TN_IQ1_KT] = {"IQ1_KT", 256, 56, 4},
    [TN_IQ2_KT] = {"IQ2_KT", 256, 68, 4},
    [TN_IQ3_KT] = {"IQ3_KT", 256, 100, 4},
    [TN_IQ4_KT] = {"IQ4_KT", 256, 128, 4},
};

const char *tn_dtype_name(tn_dtype d) { return d < TN_N_DTYPES ? types[d].name : "unknown"; }
int32_t tn_dtype_block(tn_dtype d) { return types[d].block; }
int32_t tn_dtype_block_bytes(tn_dtype d) { return types[d].bytes; }
int32_t tn_dtype_head_bytes(tn_dtype d) { return types[d].head; }

uint64_t tn_dtype_row_bytes(tn_dtype d, uint64_t n) {
    return (uint64_t)types[d].head + n / (uint64_t)types[d].block * (uint64_t)types[d].bytes;
}

uint64_t tn_tensor_values(const tn_tensor *t) { return t->dims[0] * t->dims[1] * t->dims[2] * t->dims[3]; }

int tn_tensor_by_name(const void *a, const void *b) {
    return strcmp(((const tn_tensor *)a)->name, ((const tn_tensor *)b)->name);
}
