#include "model/baseline.h"

#include <math.h>
#include <string.h>

static const char *const names[TN_N_FLOAT_SCHEMES] = {"float", "llm-int8", "group-w8a8", "blocks"};

const char *tn_float_scheme_name(tn_float_scheme s) { return names[s]; }

bool tn_float_scheme_parse(const char *name, tn_float_scheme *out) {
    for (int i = 0; i < TN_N_FLOAT_SCHEMES; i++) {
        if (strcmp(name, names[i])) continue;
        *out = (tn_float_scheme)i;
        return true;
    }
    return false;
}

/* Symmetric 8-bit rounding with one scale for x[0..n). */
static void round_s8(float *x, size_t n) {
    float max = 0;
    for (size_t i = 0; i < n; i++) max = fabsf(x[i]) > max ? fabsf(x[i]) : max;
    if (!(max > 0)) return;
    float scale = max / 127;
    for (size_t i = 0; i < n; i++) x[i] = nearbyintf(x[i] / scale) * scale;
}

static void round_groups(float *x, size_t n) {
    for (size_t i = 0; i < n; i += TN_BASELINE_GROUP)
        round_s8(x + i, n - i < TN_BASELINE_GROUP ? n - i : TN_BASELINE_GROUP);
}

void tn_baseline_weights(tn_float_scheme s, float *w, size_t n, size_t k) {
    for (size_t i = 0; i < n; i++) {
        if (s == TN_FLOAT_LLM_INT8) round_s8(w + i * k, k);
        if (s == TN_FLOAT_GROUP_W8A8) round_groups(w + i * k, k);
    }
}

bool tn_baseline_row(tn_float_scheme s, float *x, float *outliers, size_t k) {
    bool any = false;
    if (s == TN_FLOAT_GROUP_W8A8) round_groups(x, k);
    if (s != TN_FLOAT_LLM_INT8) return false;
    for (size_t i = 0; i < k; i++) {
        bool out = fabsf(x[i]) > TN_LLM_INT8_THRESHOLD;
        outliers[i] = out ? x[i] : 0;
        if (out) x[i] = 0;
        any |= out;
    }
    round_s8(x, k);
    return any;
}
