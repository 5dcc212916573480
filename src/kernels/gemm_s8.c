/* kernels/gemm_s8.c - the specification: scalar int8 product, quantisation and the tile layout. */
#include "kernels/gemm_s8.h"

#include <assert.h>
#include <math.h>
#include <string.h>

static size_t div_up(size_t a, size_t b) { return a / b + (a % b != 0); }

/* 128 + clip(round_half_even(v), -127, 127); clipping first gives the same, the limits being integers. */
static uint8_t to_u8(float v) {
    if (!(v == v)) return 128;
    v = v > 127.0f ? 127.0f : v < -127.0f ? -127.0f : v;
    return (uint8_t)(128 + lrintf(v));
}

void tn_gemm_s8_ref(const tn_gemm_s8_args *g) {
    assert(g->n0 % TN_TILE_N == 0 && g->n1 <= g->n && (g->n1 % TN_TILE_N == 0 || g->n1 == g->n));
    assert(g->k <= TN_S8_MAX_K && g->lda >= div_up(g->k, TN_TILE_K) * TN_TILE_K);
    assert((g->out_s32 != NULL) + (g->out_f32 != NULL) + (g->out_u8 != NULL) == 1);
    size_t k4 = div_up(g->k, TN_TILE_K);
    for (size_t m = 0; m < g->m; m++) {
        const uint8_t *a = g->a + m * g->lda;
        for (size_t n = g->n0; n < g->n1; n++) {
            const int8_t *w = g->tiles + (n / TN_TILE_N) * k4 * 64 + (n % TN_TILE_N) * TN_TILE_K;
            int32_t acc = 0;
            for (size_t k = 0; k < g->k; k++) acc += (a[k] - 128) * w[(k / TN_TILE_K) * 64 + k % TN_TILE_K];
            size_t at = m * g->ldo + n;
            if (g->out_s32) {
                g->out_s32[at] = acc;
                continue;
            }
            float y = g->bias ? fmaf((float)acc, g->scale[n], g->bias[n]) : (float)acc * g->scale[n];
            if (g->out_f32) g->out_f32[at] = y;
            else g->out_u8[at] = to_u8(y);
        }
    }
}

size_t tn_quantise_s8_ref(const float *x, float inv_scale, uint8_t *out, size_t n) {
    size_t n_clipped = 0;
    for (size_t i = 0; i < n; i++) {
        float v = x[i] * inv_scale;
        out[i] = to_u8(v);
        n_clipped += fabsf(v) > 127.0f;
    }
    return n_clipped;
}

size_t tn_quantise_outliers_ref(const float *x, float inv_scale, float scale, uint8_t *out, size_t n,
                                uint32_t i0, uint32_t *idx, float *resid, size_t cap) {
    size_t n_clipped = 0;
    for (size_t i = 0; i < n; i++) {
        float v = x[i] * inv_scale;
        out[i] = to_u8(v);
        if (!(fabsf(v) > 127.0f)) continue;
        if (n_clipped < cap) {
            idx[n_clipped] = i0 + (uint32_t)i;
            resid[n_clipped] = fmaf(-scale, v > 0 ? 127.0f : -127.0f, x[i]);
        }
        n_clipped++;
    }
    return n_clipped;
}

size_t tn_tiles_s8_bytes(size_t n, size_t k) { return div_up(n, TN_TILE_N) * div_up(k, TN_TILE_K) * 64; }

void tn_tiles_s8_pack(int8_t *tiles, int32_t *col_sum, const int8_t *w, size_t n0, size_t n1, size_t k) {
    assert(n0 % TN_TILE_N == 0 && n0 <= n1 && k <= TN_S8_MAX_K);
    size_t k4 = div_up(k, TN_TILE_K);
    for (size_t n = n0; n < n1; n += TN_TILE_N) {
        int8_t *tile = tiles + (n / TN_TILE_N) * k4 * 64;
        memset(tile, 0, k4 * 64);
        memset(col_sum + n, 0, TN_TILE_N * sizeof *col_sum);
        size_t n_cols = n1 - n < TN_TILE_N ? n1 - n : TN_TILE_N;
        for (size_t c = 0; c < n_cols; c++) {
            const int8_t *row = w + (n - n0 + c) * k;
            int32_t sum = 0;
            for (size_t i = 0; i < k; i++) {
                assert(row[i] != -128);
                tile[(i / TN_TILE_K) * 64 + c * TN_TILE_K + i % TN_TILE_K] = row[i];
                sum += row[i];
            }
            col_sum[n + c] = sum;
        }
    }
}
