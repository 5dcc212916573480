/* Scalar reference of gemm_f32.h, and packing. */
#include "kernels/gemm_f32.h"

#include "base/half.h"

#include <math.h>

size_t tn_panels_bytes(tn_panel_dtype dtype, size_t n, size_t k) {
    return (n + TN_PANEL_N - 1) / TN_PANEL_N * TN_PANEL_N * k * (dtype == TN_PANEL_F32 ? 4 : 2);
}

static float value(tn_panel_dtype dtype, const void *panels, size_t i) {
    switch (dtype) {
    case TN_PANEL_F16: return tn_f16_f32(((const uint16_t *)panels)[i]);
    case TN_PANEL_BF16: return tn_bf16_f32(((const uint16_t *)panels)[i]);
    default: return ((const float *)panels)[i];
    }
}

/* A panel with all its rows, from elements of the panel's type. */
static void turn_f32(float *panel, const float *w, size_t k) {
    for (size_t i = 0; i < k; i++, panel += TN_PANEL_N)
        for (size_t j = 0; j < TN_PANEL_N; j++) panel[j] = w[j * k + i];
}

static void turn_u16(uint16_t *panel, const uint16_t *w, size_t k) {
    for (size_t i = 0; i < k; i++, panel += TN_PANEL_N)
        for (size_t j = 0; j < TN_PANEL_N; j++) panel[j] = w[j * k + i];
}

void tn_panels_pack_halves(uint16_t *panels, const uint16_t *w, size_t n0, size_t n1, size_t k) {
    for (size_t n = n0; n < n1; n += TN_PANEL_N, w += TN_PANEL_N * k) {
        uint16_t *panel = panels + n * k;
        if (n1 - n >= TN_PANEL_N) {
            turn_u16(panel, w, k);
            continue;
        }
        for (size_t i = 0; i < k; i++)
            for (size_t j = 0; j < TN_PANEL_N; j++) panel[i * TN_PANEL_N + j] = j < n1 - n ? w[j * k + i] : 0;
    }
}

void tn_panels_pack(tn_panel_dtype dtype, void *panels, const float *w, size_t n0, size_t n1, size_t k) {
    for (size_t p = n0 / TN_PANEL_N; p * TN_PANEL_N < n1; p++) {
        if (dtype == TN_PANEL_F32 && n1 - p * TN_PANEL_N >= TN_PANEL_N) {
            turn_f32((float *)panels + p * TN_PANEL_N * k, w + (p * TN_PANEL_N - n0) * k, k);
            continue;
        }
        for (size_t i = 0; i < k; i++) {
            for (size_t j = 0; j < TN_PANEL_N; j++) {
                size_t n = p * TN_PANEL_N + j, at = (p * k + i) * TN_PANEL_N + j;
                float v = n < n1 ? w[(n - n0) * k + i] : 0.0f;
                if (dtype == TN_PANEL_F16) ((uint16_t *)panels)[at] = tn_f32_f16(v);
                else if (dtype == TN_PANEL_BF16) ((uint16_t *)panels)[at] = tn_f32_bf16(v);
                else ((float *)panels)[at] = v;
            }
        }
    }
}

void tn_panels_row(tn_panel_dtype dtype, const void *panels, size_t n, size_t k, float *out) {
    size_t base = n / TN_PANEL_N * k * TN_PANEL_N + n % TN_PANEL_N;
    for (size_t i = 0; i < k; i++) out[i] = value(dtype, panels, base + i * TN_PANEL_N);
}

static void gemm(tn_panel_dtype dtype, const float *a, size_t lda, const void *panels, const float *bias,
                 float *out, size_t ldo, size_t m, size_t n0, size_t n1, size_t k) {
    for (size_t i = 0; i < m; i++) {
        for (size_t n = n0; n < n1; n++) {
            size_t base = n / TN_PANEL_N * k * TN_PANEL_N + n % TN_PANEL_N;
            float acc = 0;
            for (size_t c = 0; c < k; c++)
                acc = fmaf(a[i * lda + c], value(dtype, panels, base + c * TN_PANEL_N), acc);
            out[i * ldo + n] = bias ? acc + bias[n] : acc;
        }
    }
}

void tn_gemm_f32_ref(const float *a, size_t lda, const void *panels, const float *bias, float *out,
                     size_t ldo, size_t m, size_t n0, size_t n1, size_t k) {
    gemm(TN_PANEL_F32, a, lda, panels, bias, out, ldo, m, n0, n1, k);
}

void tn_gemm_f16_ref(const float *a, size_t lda, const void *panels, const float *bias, float *out,
                     size_t ldo, size_t m, size_t n0, size_t n1, size_t k) {
    gemm(TN_PANEL_F16, a, lda, panels, bias, out, ldo, m, n0, n1, k);
}

void tn_gemm_bf16_ref(const float *a, size_t lda, const void *panels, const float *bias, float *out,
                      size_t ldo, size_t m, size_t n0, size_t n1, size_t k) {
    gemm(TN_PANEL_BF16, a, lda, panels, bias, out, ldo, m, n0, n1, k);
}
