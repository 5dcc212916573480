#include "quant/block_form.h"

#include "base/half.h"

#include <assert.h>
#include <math.h>
#include <string.h>

/* ggml's kvalues_iq4nl */
static const float nonlinear[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};

const tn_block_form *tn_block_form_of(tn_dtype d) {
    static const tn_block_form all[] = {{TN_Q4_0, 32, 32, 18, -8, 7, false, NULL},
                                        {TN_Q5_0, 32, 32, 22, -16, 15, false, NULL},
                                        {TN_Q4_K, 256, 32, 144, 0, 15, true, NULL},
                                        {TN_Q5_K, 256, 32, 176, 0, 31, true, NULL},
                                        {TN_Q6_K, 256, 16, 210, -32, 31, false, NULL},
                                        {TN_IQ4_NL, 32, 32, 18, -127, 113, false, nonlinear},
                                        {TN_IQ4_XS, 256, 32, 136, -127, 113, false, nonlinear}};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (all[i].dtype == d) return &all[i];
    return NULL;
}

static float as_half(float x) { return tn_f16_f32(tn_f32_f16(x)); }

static void put_half(uint8_t *to, float x) {
    const uint16_t half = tn_f32_f16(x);
    memcpy(to, &half, sizeof half);
}

/* ---- scales alone ------------------------------------------------------------------------------------ */

/* The weighted error of a group at a scale, and the best scale for its codes. */
static float scale_error(const tn_block_form *f, const float *w, const float *weight, float scale,
                         float *fitted) {
    const float inv = 1 / scale;
    float error = 0, wq = 0, qq = 0;
    for (int i = 0; i < f->n_group; i++) {
        float q = tn_block_code(f, w[i], inv), d = w[i] - q * scale;
        error += weight[i] * d * d;
        wq += weight[i] * w[i] * q;
        qq += weight[i] * q * q;
    }
    *fitted = qq > 0 ? wq / qq : scale;
    return error;
}

/* The scale of a group; codes reach one further down than up, so either end may represent the largest weight. */
static float best_scale(const tn_block_form *f, const float *w, const float *weight, bool half) {
    enum { STEPS = 16 };
    const float step = (f->high - f->low + 1) / 80;
    float far = 0, best = 0, least = INFINITY;
    for (int i = 0; i < f->n_group; i++) far = fabsf(w[i]) > fabsf(far) ? w[i] : far;
    if (!(fabsf(far) > 0)) return 0;
    for (int i = 0; i < 2 * STEPS; i++) {
        float code =
                  i < STEPS ? f->low * 1.1f + step * (float)i : f->low * -0.95f - step * (float)(i - STEPS),
              fitted;
        float scale = half ? as_half(far / code) : far / code;
        for (int again = 0; again < 2 && scale != 0; again++) {
            float error = scale_error(f, w, weight, scale, &fitted);
            if (error < least) least = error, best = scale;
            scale = half ? as_half(fitted) : fitted;
        }
    }
    return best;
}

/* IQ4_XS: six bits a group, the lower four apart from the upper two. */
static void put_six(const int32_t *scale, uint8_t *out) {
    uint32_t upper = 0;
    for (int g = 0; g < 8; g++) {
        const uint32_t s = (uint32_t)(scale[g] + 32);
        upper |= s >> 4 << 2 * g;
        if (g % 2) out[4 + g / 2] = (uint8_t)(out[4 + g / 2] | (s & 15) << 4);
        else out[4 + g / 2] = (uint8_t)(s & 15);
    }
    out[2] = (uint8_t)upper, out[3] = (uint8_t)(upper >> 8);
}

/* Q6_K: a signed byte a group, and a half that they share; IQ4_XS: six bits, and a half. */
static void share_scale(const tn_block_form *f, const float *w, const float *weight, tn_block_group *groups,
                        uint8_t *out) {
    const bool bytes = f->dtype == TN_Q6_K;
    const int32_t n_groups = f->n / f->n_group, end = bytes ? 128 : 32;
    int32_t scales[TN_BLOCK_VALUES_MAX / TN_BLOCK_GROUP_MIN];
    float most = 0;
    for (int32_t g = 0; g < n_groups; g++) most = fmaxf(most, fabsf(groups[g].scale));
    const float d = as_half(most / (float)(end - 1));
    put_half(out + (bytes ? 208 : 0), d);
    for (int32_t g = 0; g < n_groups; g++) {
        const int32_t near = d > 0 ? (int32_t)lrintf(groups[g].scale / d) : 0;
        float least = INFINITY, fitted;
        scales[g] = 0;
        for (int32_t s = near - 1; s <= near + 1; s++) {
            if (s < -end || s >= end || s == 0 || d == 0) continue;
            const float error =
                scale_error(f, w + g * f->n_group, weight + g * f->n_group, d * (float)s, &fitted);
            if (error < least) least = error, scales[g] = s;
        }
        groups[g].scale = d * (float)scales[g];
        if (bytes) out[192 + g] = (uint8_t)(int8_t)scales[g];
    }
    if (!bytes) put_six(scales, out);
}

/* ---- scales and offsets ------------------------------------------------------------------------------ */

static float group_error(const tn_block_form *f, const float *w, const float *weight, tn_block_group g) {
    const float inv = g.scale > 0 ? 1 / g.scale : 0;
    float error = 0;
    for (int i = 0; i < f->n_group; i++) {
        const float d = w[i] - (g.scale * tn_block_code(f, w[i] - g.offset, inv) + g.offset);
        error += weight[i] * d * d;
    }
    return error;
}

/* The best scale and offset for the codes that these give. */
static tn_block_group fit(const tn_block_form *f, const float *w, const float *weight, tn_block_group g) {
    const float inv = 1 / g.scale;
    float n = 0, q1 = 0, q2 = 0, x1 = 0, xq = 0;
    for (int i = 0; i < f->n_group; i++) {
        const float q = tn_block_code(f, w[i] - g.offset, inv), c = weight[i];
        n += c, q1 += c * q, q2 += c * q * q, x1 += c * w[i], xq += c * w[i] * q;
    }
    const float det = n * q2 - q1 * q1;
    if (!(det > 0)) return g;
    tn_block_group to = {(n * xq - q1 * x1) / det, (q2 * x1 - q1 * xq) / det};
    if (to.offset > 0) to = (tn_block_group){xq / q2, 0};
    return to.scale > 0 ? to : g;
}

static tn_block_group best_group(const tn_block_form *f, const float *w, const float *weight) {
    enum { STEPS = 16, FITS = 2 };
    float low = 0, high = 0, least;
    for (int i = 0; i < f->n_group; i++) low = fminf(low, w[i]), high = fmaxf(high, w[i]);
    if (!(high > low)) return (tn_block_group){0, 0};
    tn_block_group best = {(high - low) / f->high, low};
    least = group_error(f, w, weight, best);
    for (int i = 0; i < STEPS; i++) {
        tn_block_group g = {(high - low) / (f->high - 0.8f + 0.15f * (float)i), low};
        for (int k = 0; k < FITS; k++) {
            g = fit(f, w, weight, g);
            const float error = group_error(f, w, weight, g);
            if (error < least) least = error, best = g;
        }
    }
    return best;
}

/* Six bits a group for its scale and six for its offset, as ggml packs them. */
static void put_sixes(const int32_t *scale, const int32_t *offset, uint8_t *out) {
    for (int g = 0; g < 4; g++) {
        out[g] = (uint8_t)(scale[g] | scale[g + 4] >> 4 << 6);
        out[g + 4] = (uint8_t)(offset[g] | offset[g + 4] >> 4 << 6);
        out[g + 8] = (uint8_t)((scale[g + 4] & 15) | (offset[g + 4] & 15) << 4);
    }
}

/* Q4_K, Q5_K: a half that scales share, and another for offsets. */
static void share_both(const tn_block_form *f, const float *w, const float *weight, tn_block_group *groups,
                       uint8_t *out) {
    enum { N_GROUPS = 8 };
    float scale = 0, offset = 0;
    for (int g = 0; g < N_GROUPS; g++)
        scale = fmaxf(scale, groups[g].scale), offset = fmaxf(offset, -groups[g].offset);
    const float d = as_half(scale / 63), down = as_half(offset / 63);
    int32_t scales[N_GROUPS], offsets[N_GROUPS];
    for (int g = 0; g < N_GROUPS; g++) {
        const int32_t s0 = d > 0 ? (int32_t)lrintf(groups[g].scale / d) : 0,
                      o0 = down > 0 ? (int32_t)lrintf(-groups[g].offset / down) : 0;
        float least = INFINITY;
        tn_block_group best = {0, 0};
        scales[g] = offsets[g] = 0;
        for (int i = 0; i < 9; i++) {
            const int32_t s = s0 + i / 3 - 1, o = o0 + i % 3 - 1;
            if (s < 0 || s > 63 || o < 0 || o > 63) continue;
            const tn_block_group to = {d * (float)s, 0 - down * (float)o};
            const float error = group_error(f, w + g * f->n_group, weight + g * f->n_group, to);
            if (error < least) least = error, best = to, scales[g] = s, offsets[g] = o;
        }
        groups[g] = best;
    }
    put_half(out, d);
    put_half(out + 2, down);
    put_sixes(scales, offsets, out + 4);
}

void tn_block_scales(const tn_block_form *f, const float *w, const float *weight, tn_block_group *groups,
                     uint8_t *out) {
    const bool alone = f->n == f->n_group; /* the scale is a half of its own */
    for (int32_t g = 0; g < f->n / f->n_group; g++) {
        const int32_t at = g * f->n_group;
        if (f->offsets) groups[g] = best_group(f, w + at, weight + at);
        else groups[g] = (tn_block_group){best_scale(f, w + at, weight + at, alone), 0};
    }
    if (alone) put_half(out, groups[0].scale);
    else if (f->offsets) share_both(f, w, weight, groups, out);
    else share_scale(f, w, weight, groups, out);
}

/* ---- codes ------------------------------------------------------------------------------------------- */

/* Q4_0, Q5_0: value i and value i + 16 in a byte; fifth bits apart. */
static void put_halves(const tn_block_form *f, const uint8_t *q, uint8_t *out) {
    const bool five = f->dtype == TN_Q5_0;
    uint32_t fifth = 0;
    uint8_t *low = out + (five ? 6 : 2);
    for (int i = 0; i < 16; i++) {
        low[i] = (uint8_t)((q[i] & 15) | (q[i + 16] & 15) << 4);
        fifth |= (uint32_t)(q[i] >> 4) << i | (uint32_t)(q[i + 16] >> 4) << (i + 16);
    }
    for (int i = 0; five && i < 4; i++) out[2 + i] = (uint8_t)(fifth >> 8 * i);
}

/* Q4_K, Q5_K: of every 64 values the first 32 in lower halves of bytes, the others in upper ones; fifth bits apart. */
static void put_pairs(const tn_block_form *f, const uint8_t *q, uint8_t *out) {
    const bool five = f->dtype == TN_Q5_K;
    uint8_t *fifth = out + 16, *low = out + (five ? 48 : 16);
    if (five) memset(fifth, 0, 32);
    for (int i = 0; i < 4; i++) {
        for (int k = 0; k < 32; k++) {
            const uint8_t a = q[64 * i + k], b = q[64 * i + 32 + k];
            low[32 * i + k] = (uint8_t)((a & 15) | (b & 15) << 4);
            if (five) fifth[k] = (uint8_t)(fifth[k] | a >> 4 << 2 * i | b >> 4 << (2 * i + 1));
        }
    }
}

/* Q6_K: of every 128 values four rows of 32; the lower four bits of two in a byte, the upper two of all four in one. */
static void put_sixths(const uint8_t *q, uint8_t *out) {
    for (int i = 0; i < 2; i++) {
        const uint8_t *v = q + 128 * i;
        for (int k = 0; k < 32; k++) {
            out[64 * i + k] = (uint8_t)((v[k] & 15) | (v[k + 64] & 15) << 4);
            out[64 * i + 32 + k] = (uint8_t)((v[k + 32] & 15) | (v[k + 96] & 15) << 4);
            out[128 + 32 * i + k] =
                (uint8_t)(v[k] >> 4 | v[k + 32] >> 4 << 2 | v[k + 64] >> 4 << 4 | v[k + 96] >> 4 << 6);
        }
    }
}

/* IQ4_NL, IQ4_XS: of every 32 values the first 16 in lower halves of bytes. */
static void put_listed(const tn_block_form *f, const uint8_t *q, uint8_t *out) {
    uint8_t *to = out + (f->dtype == TN_IQ4_XS ? 8 : 2);
    for (int32_t i = 0; i < f->n; i += 32)
        for (int k = 0; k < 16; k++) to[i / 2 + k] = (uint8_t)(q[i + k] | q[i + 16 + k] << 4);
}

/* The place of a code among all. */
static uint8_t place_of(const tn_block_form *f, float code) {
    if (!f->list) return (uint8_t)(code - f->low);
    uint8_t i = 0;
    while (i < 15 && f->list[i] < code) i++;
    return i;
}

void tn_block_codes(const tn_block_form *f, const float *codes, uint8_t *out) {
    uint8_t q[TN_BLOCK_VALUES_MAX];
    assert(f->n <= TN_BLOCK_VALUES_MAX);
    for (int32_t i = 0; i < f->n; i++) q[i] = place_of(f, codes[i]);
    if (f->list) put_listed(f, q, out);
    else if (f->dtype == TN_Q6_K) put_sixths(q, out);
    else if (f->offsets) put_pairs(f, q, out);
    else put_halves(f, q, out);
}
