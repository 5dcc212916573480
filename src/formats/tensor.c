/* The storage types of tensors: names and block sizes. */
#include "formats/tensor.h"

#include <string.h>

static const struct {
    const char *name;
    int32_t block, bytes;
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
};

const char *tn_dtype_name(tn_dtype d) { return d < TN_N_DTYPES ? types[d].name : "unknown"; }
int32_t tn_dtype_block(tn_dtype d) { return types[d].block; }
int32_t tn_dtype_block_bytes(tn_dtype d) { return types[d].bytes; }

int tn_tensor_by_name(const void *a, const void *b) {
    return strcmp(((const tn_tensor *)a)->name, ((const tn_tensor *)b)->name);
}
