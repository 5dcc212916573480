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

/* Cody-Waite reduction to |r| <= ln2/2, then a degree-6 polynomial (fits by tools/fit_f32.py); 2^n is applied
 * in two factors, so that 2^128 never appears by itself. */
float tn_expf(float x) {
    if (x != x) return x;
    if (x > 88.72283f) return INFINITY;
    if (x < -87.33654f) return 0;
    float n = nearbyintf(x * 1.44269504f);
    float r = fmaf(n, -0.693359375f, x);
    r = fmaf(n, 2.12194440e-4f, r);
    float p = 1.381454106e-3f;
    p = fmaf(p, r, 8.368745105e-3f);
    p = fmaf(p, r, 4.166839077e-2f);
    p = fmaf(p, r, 1.66665204e-1f);
    p = fmaf(p, r, 4.999999343e-1f);
    p = fmaf(p, r * r, r) + 1.0f;
    int32_t half = (int32_t)n / 2;
    return p * tn_bits_f32((uint32_t)(half + 127) << 23) *
           tn_bits_f32((uint32_t)((int32_t)n - half + 127) << 23);
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

/* erf(|x|) = 1 - t exp(p(t) - x^2) with t = 1 / (1 + |x| / 2): p is smooth on the whole axis (fits by
 * tools/fit_f32.py). The absolute error is a rounding of 1; gelu needs 1 + erf. */
static float erf_poly(float x) {
    float a = fabsf(x), t = 1.0f / fmaf(0.5f, a, 1.0f), p = 0.1643301458f;
    p = fmaf(p, t, -0.9939615559f);
    p = fmaf(p, t, 2.435405262f);
    p = fmaf(p, t, -2.953343631f);
    p = fmaf(p, t, 1.722207766f);
    p = fmaf(p, t, -0.6380636178f);
    p = fmaf(p, t, 0.5520386498f);
    p = fmaf(p, t, 0.9754171334f);
    p = fmaf(p, t, -1.264030158f);
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
    case TN_ACT_SIGMOID: return 1.0f / (1.0f + tn_expf(-x));
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

float tn_softmax_f32_ref(float *x, size_t n) {
    float max = -INFINITY, lane[LANES] = {0};
    for (size_t i = 0; i < n; i++) max = x[i] > max ? x[i] : max;
    for (size_t i = 0; i < n; i++) lane[i % LANES] += x[i] = tn_expf(x[i] - max);
    return fold(lane);
}

void tn_shares_u8_ref(const float *x, uint8_t *codes, size_t n) {
    float max = -INFINITY;
    for (size_t i = 0; i < n; i++) max = x[i] > max ? x[i] : max;
    for (size_t i = 0; i < n; i++) {
        const float share = TN_SHARES * tn_expf(x[i] - max);
        codes[i] = (uint8_t)(1 + (int)rintf(share > 0 ? share : 0));
    }
}

float tn_absmax_f32_ref(const float *x, size_t n) {
    float most = 0;
    for (size_t i = 0; i < n; i++) most = fabsf(x[i]) > most ? fabsf(x[i]) : most;
    return most;
}
