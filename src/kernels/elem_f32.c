/* Scalar reference of elem_f32.h: the definition of every bit. */
#include "kernels/elem_f32.h"

#include "base/half.h"

#include <math.h>

enum { LANES = 16 };

/* Lanes added pairwise at stride 8, 4, 2, 1. */
static float fold(float lane[LANES]) {
    for (int s = LANES / 2; s; s /= 2) {
        for (int i = 0; i < s; i++) lane[i] += lane[i + s];
    }
    return lane[0];
}

/* Cody-Waite reduction to |r| <= ln2/2, then a degree-6 polynomial; 2^n is applied in two factors so that subnormal
 * results round once. */
float tn_expf(float x) {
    if (x != x) return x;
    if (x > 88.72283f) return INFINITY;
    if (x < -87.33654f) return 0;
    float n = nearbyintf(x * 1.44269504f);
    float r = fmaf(n, -0.693359375f, x);
    r = fmaf(n, 2.12194440e-4f, r);
    float p = 1.9875691500e-4f;
    p = fmaf(p, r, 1.3981999507e-3f);
    p = fmaf(p, r, 8.3334519073e-3f);
    p = fmaf(p, r, 4.1665795894e-2f);
    p = fmaf(p, r, 1.6666665459e-1f);
    p = fmaf(p, r, 5.0000001201e-1f);
    p = fmaf(p, r * r, r) + 1.0f;
    int32_t half = (int32_t)n / 2;
    return p * tn_bits_f32((uint32_t)(half + 127) << 23) * tn_bits_f32((uint32_t)((int32_t)n - half + 127) << 23);
}

float tn_tanhf(float x) {
    float a = fabsf(x);
    if (a != a) return x;
    if (a > 9.1f) return copysignf(1, x);
    if (a < 0.125f) { /* exp would cancel: the odd series is exact to rounding here */
        float s = x * x, p = fmaf(s, -17.0f / 315, 2.0f / 15);
        p = fmaf(s, p, -1.0f / 3);
        return fmaf(x * s, p, x);
    }
    float e = tn_expf(-2 * a);
    return copysignf((1 - e) / (1 + e), x);
}

void tn_rmsnorm_f32_ref(const float *x, const float *w, float eps, float *out, size_t n) {
    float lane[LANES] = {0};
    for (size_t i = 0; i < n; i++) lane[i % LANES] = fmaf(x[i], x[i], lane[i % LANES]);
    float r = 1.0f / sqrtf(fold(lane) / (float)n + eps);
    for (size_t i = 0; i < n; i++) out[i] = w ? x[i] * r * w[i] : x[i] * r;
}

void tn_layernorm_f32_ref(const float *x, const float *w, const float *b, float eps, float *out, size_t n) {
    float lane[LANES] = {0};
    for (size_t i = 0; i < n; i++) lane[i % LANES] += x[i];
    float mean = fold(lane) / (float)n, var[LANES] = {0};
    for (size_t i = 0; i < n; i++) {
        float d = x[i] - mean;
        var[i % LANES] = fmaf(d, d, var[i % LANES]);
    }
    float r = 1.0f / sqrtf(fold(var) / (float)n + eps);
    for (size_t i = 0; i < n; i++) {
        float v = (x[i] - mean) * r;
        out[i] = b ? fmaf(v, w[i], b[i]) : v * w[i];
    }
}

void tn_rope_f32_ref(float *x, const float *cs, size_t n_rot) {
    size_t half = n_rot / 2;
    for (size_t i = 0; i < half; i++) {
        float a = x[i], b = x[i + half], c = cs[2 * i], s = cs[2 * i + 1];
        x[i] = fmaf(a, c, -(b * s));
        x[i + half] = fmaf(a, s, b * c);
    }
}

/* Abramowitz and Stegun 7.1.26 is too coarse; this is erf by its complementary form with exp, error below 2e-7. */
static float erf_poly(float x) {
    float a = fabsf(x), t = 1.0f / fmaf(0.5f, a, 1.0f), p = 0.17087277f;
    p = fmaf(p, t, -0.82215223f);
    p = fmaf(p, t, 1.48851587f);
    p = fmaf(p, t, -1.13520398f);
    p = fmaf(p, t, 0.27886807f);
    p = fmaf(p, t, -0.18628806f);
    p = fmaf(p, t, 0.09678418f);
    p = fmaf(p, t, 0.37409196f);
    p = fmaf(p, t, 1.00002368f);
    p = fmaf(p, t, -1.26551223f);
    float e = 1.0f - t * tn_expf(fmaf(-a, a, p));
    return copysignf(e, x);
}

static float act_of(tn_act act, float x) {
    switch (act) {
    case TN_ACT_SILU: return x / (1.0f + tn_expf(-x));
    case TN_ACT_GELU_TANH: return 0.5f * x * (1.0f + tn_tanhf(0.7978845608f * fmaf(0.044715f * x * x, x, x)));
    case TN_ACT_GELU_ERF: return 0.5f * x * (1.0f + erf_poly(x * 0.7071067812f));
    case TN_ACT_RELU: return x > 0 ? x : 0;
    case TN_ACT_RELU2: return x > 0 ? x * x : 0;
    }
    return x;
}

void tn_glu_f32_ref(tn_act act, const float *gate, const float *up, float *out, size_t n) {
    for (size_t i = 0; i < n; i++) out[i] = act_of(act, gate[i]) * up[i];
}

void tn_act_f32_ref(tn_act act, float *x, size_t n) {
    for (size_t i = 0; i < n; i++) x[i] = act_of(act, x[i]);
}

void tn_add_f32_ref(float *x, const float *y, float scale, size_t n) {
    for (size_t i = 0; i < n; i++) x[i] = fmaf(scale, y[i], x[i]);
}
