/* model/baseline.h - the arithmetic of two published INT8 schemes no static graph can hold, for comparisons
 * of accuracy. They run on the float path with values rounded as the scheme rounds them: exact in what they
 * lose, not timed.
 *   llm-int8    LLM.int8(): weights one scale per output channel; activations one scale per token, found at
 *               run time, of the values up to 6; what is larger is multiplied in float with the unrounded
 *               weights.
 *   group-w8a8  K-Quant style: weights and activations in groups of 32 along K, a scale each, found at run
 *               time.
 * Embedding and output head stay as they are. */
#ifndef TN_MODEL_BASELINE_H
#define TN_MODEL_BASELINE_H

#include <stdbool.h>
#include <stddef.h>

typedef enum tn_float_scheme {
    TN_FLOAT,
    TN_FLOAT_LLM_INT8,
    TN_FLOAT_GROUP_W8A8,
    TN_FLOAT_BLOCKS, /* no baseline: the file's blocks as they are, kernels/blocks_s8.h */
    TN_N_FLOAT_SCHEMES
} tn_float_scheme;

const char *tn_float_scheme_name(tn_float_scheme s); /* "float", "llm-int8", "group-w8a8", "blocks" */
bool tn_float_scheme_parse(const char *name, tn_float_scheme *out);

#define TN_LLM_INT8_THRESHOLD 6.0f
enum { TN_BASELINE_GROUP = 32 };

/* w [n][k], rounded in place as the scheme stores weights. */
void tn_baseline_weights(tn_float_scheme s, float *w, size_t n, size_t k);
/* One row of activations, rounded in place. llm-int8: what exceeds the threshold moves to outliers [k] (else
 * zero); returns whether there is any. outliers may be NULL for the other schemes. */
bool tn_baseline_row(tn_float_scheme s, float *x, float *outliers, size_t k);

#endif
