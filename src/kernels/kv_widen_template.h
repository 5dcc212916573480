/* kernels/kv_widen_template.h - the part of f32_template.h that makes floats of the cells of kv_cells.h.
 *
 * Where many rows meet a span of the cache it becomes floats first, in the first cache, and then all is as
 * it is with a cache of floats. Few rows would not earn that back: their products take the cells as they
 * are loaded. Bits are the same, for a cell stands for a float. */
#include "base/half.h"

enum { KV_AHEAD = 4096 }; /* bytes: what is read is asked for so far ahead, about a span */

/* ahead: the bytes that follow in memory are read next, so they are prefetched. Not so for positions of a list. */
INLINE void widen_halves(const uint16_t *h, size_t n, float *out, bool ahead) {
    size_t i = 0;
    for (; i + W <= n; i += W) {
        if (ahead) __builtin_prefetch((const char *)(h + i) + KV_AHEAD);
        f_store(out + i, f_load_f16(h + i));
    }
    for (; i < n; i++) out[i] = tn_f16_f32(h[i]);
}

/* Codes of neighbours e .. e + W - 1 of a group along which codes lie. */
INLINE vf load_codes(tn_kv_type type, const uint8_t *codes, size_t e) {
    if (type == TN_KV_INT8) return f_load_s8(codes + e);
    return e < 16 ? f_load_low4(codes + e) : f_load_high4(codes + e - 16);
}

/* Codes of neighbour i of a group of keys at positions `at` .. at + W - 1 of the panel. */
INLINE vf load_key_codes(tn_kv_type type, const uint8_t *codes, size_t i, size_t at) {
    if (type == TN_KV_INT8) return f_load_s8(codes + i * TN_KV_PANEL + at);
    return i < 16 ? f_load_low4(codes + i * TN_KV_PANEL + at)
                  : f_load_high4(codes + (i - 16) * TN_KV_PANEL + at);
}

/* Neighbours i0..i1-1 of a group of a panel of keys. */
INLINE void widen_key_group(tn_kv_type type, const uint8_t *group, size_t i0, size_t i1, float *out) {
    const uint8_t *codes = group + TN_KV_PANEL * sizeof(uint16_t);
    vf scale[PER_PANEL];
    UNROLL for (int j = 0; j < PER_PANEL; j++) scale[j] = f_load_f16((const uint16_t *)group + j * W);
    for (size_t i = i0; i < i1; i++) {
        __builtin_prefetch(codes + i * TN_KV_PANEL + KV_AHEAD);
        UNROLL for (int j = 0; j < PER_PANEL; j++) f_store(
            out + i * TN_KV_PANEL + j * W, f_mul(load_key_codes(type, codes, i, (size_t)j * W), scale[j]));
    }
}

/* out: n_panels panels of floats, [d_head][32] each. */
static void widen_keys(tn_kv_type type, size_t d_head, const uint8_t *panel, size_t n_panels, float *out) {
    size_t bytes = tn_kv_panel_bytes(type, d_head), group = bytes / tn_kv_groups(d_head);
    if (type == TN_KV_F16) {
        widen_halves((const uint16_t *)panel, n_panels * TN_KV_PANEL * d_head, out, true);
        return;
    }
    for (size_t p = 0; p < n_panels; p++, panel += bytes) {
        for (size_t g = 0; g < tn_kv_groups(d_head); g++) {
            size_t d = g * TN_KV_GROUP, n = d_head - d < TN_KV_GROUP ? d_head - d : TN_KV_GROUP,
                   half = n < 16 ? n : 16;
            float *to = out + (p * d_head + d) * TN_KV_PANEL;
#ifdef TERN_MINIMAL /* one loop for all */
            widen_key_group(type, panel + g * group, 0, n, to);
            (void)half;
#else
            if (type == TN_KV_INT8) {
                widen_key_group(TN_KV_INT8, panel + g * group, 0, n, to);
            } else {
                widen_key_group(TN_KV_INT4, panel + g * group, 0, half, to);
                widen_key_group(TN_KV_INT4, panel + g * group, half, n, to);
            }
#endif
        }
    }
}

/* A panel's values: their scales as floats, and where their codes begin. */
enum { MOST_SCALES = TN_KV_PANEL * TN_MAX_HEAD / TN_KV_GROUP };

/* Scales of n positions of a panel of values, from position `in` of it on. scales has room for W more. */
INLINE void widen_scales(const uint8_t *panel, size_t groups, size_t in, size_t n, float *scales) {
    const uint16_t *halves = (const uint16_t *)panel + in * groups;
    for (size_t i = 0; i < n * groups; i += W) /* after the last scale there are codes */
        f_store(scales + i, f_load_f16(halves + i));
}

INLINE void widen_codes(tn_kv_type type, size_t d_head, const float *scales, const uint8_t *codes,
                        float *out) {
    for (size_t d = 0; d < d_head; d += TN_KV_GROUP, scales++) {
        float x[TN_KV_GROUP];
        bool whole = d + TN_KV_GROUP <= d_head;
        vf scale = f_set1(*scales);
        UNROLL for (int j = 0; j < PER_PANEL; j++)
            f_store((whole ? out + d : x) + j * W, f_mul(load_codes(type, codes, (size_t)j * W), scale));
        if (!whole) memcpy(out + d, x, (d_head - d) * sizeof *x);
        codes += type == TN_KV_INT8 ? TN_KV_GROUP : TN_KV_GROUP / 2;
    }
}

/* Values of n positions of one panel, from position `in` of it on. */
static void widen_coded(tn_kv_type type, size_t d_head, const uint8_t *panel, size_t in, size_t n, float *out,
                        bool ahead) {
    size_t groups = tn_kv_groups(d_head), row = groups * TN_KV_GROUP / (type == TN_KV_INT8 ? 1 : 2);
    const uint8_t *codes = panel + TN_KV_PANEL * groups * sizeof(uint16_t) + in * row;
    float scales[MOST_SCALES + W];
    widen_scales(panel, groups, in, n, scales);
    for (size_t i = 0; i < n; i++, codes += row, out += d_head) {
        if (ahead) __builtin_prefetch(codes + KV_AHEAD);
#ifdef TERN_MINIMAL
        widen_codes(type, d_head, scales + i * groups, codes, out);
#else
        if (type == TN_KV_INT8) widen_codes(TN_KV_INT8, d_head, scales + i * groups, codes, out);
        else widen_codes(TN_KV_INT4, d_head, scales + i * groups, codes, out);
#endif
    }
}

INLINE void widen_rows(tn_kv_type type, size_t d_head, const void *panels, size_t pos, size_t n, float *out,
                       bool ahead) {
    if (type == TN_KV_F32) {
        memcpy(out, (const float *)panels + pos * d_head, n * d_head * sizeof *out);
    } else if (type == TN_KV_F16) {
        widen_halves((const uint16_t *)panels + pos * d_head, n * d_head, out, ahead);
    } else {
        for (size_t in, k; n; pos += k, n -= k, out += k * d_head) {
            in = pos % TN_KV_PANEL;
            k = n < TN_KV_PANEL - in ? n : TN_KV_PANEL - in;
            widen_coded(type, d_head,
                        (const uint8_t *)panels + pos / TN_KV_PANEL * tn_kv_panel_bytes(type, d_head), in, k,
                        out, ahead);
        }
    }
}

static void NAME(tn_kv_rows)(tn_kv_type type, size_t d_head, const void *panels, size_t pos, size_t n,
                             float *out) {
    widen_rows(type, d_head, panels, pos, n, out, true);
}

#ifndef TERN_MINIMAL
/* ---- products with codes as they are loaded, for up to TALL rows ------------------------------------ */

/* Neighbours i0..i1-1 of a group times their part of the rows, for a narrow block of positions. */
INLINE void few_codes(tn_kv_type type, int rows, const float *q, size_t ldq, const uint8_t *codes, size_t at,
                      size_t i0, size_t i1, const vf *scale, vf (*acc)[NARROW]) {
    for (size_t i = i0; i < i1; i++) {
        vf x[NARROW];
        __builtin_prefetch(codes + i * TN_KV_PANEL + KV_AHEAD);
        UNROLL for (int j = 0; j < NARROW; j++) x[j] =
            f_mul(load_key_codes(type, codes, i, at + (size_t)j * W), scale[j]);
        UNROLL for (int r = 0; r < rows; r++) {
            vf y = f_set1(q[(size_t)r * ldq + i]);
            UNROLL for (int j = 0; j < NARROW; j++) acc[r][j] = f_fma(y, x[j], acc[r][j]);
        }
    }
}

INLINE void few_scores_of(tn_kv_type type, int rows, const float *q, size_t ldq, size_t d_head,
                          const uint8_t *panel, float *s, size_t ld) {
    size_t bytes = (type == TN_KV_INT8 ? TN_KV_GROUP : TN_KV_GROUP / 2) * TN_KV_PANEL;
    for (size_t at = 0; at < TN_KV_PANEL; at += NARROW * W) {
        vf acc[TALL][NARROW];
        const uint8_t *group = panel;
        UNROLL for (int r = 0; r < rows; r++) {
            UNROLL for (int j = 0; j < NARROW; j++) acc[r][j] = f_set1(0.0f);
        }
        for (size_t d = 0; d < d_head; d += TN_KV_GROUP) {
            vf scale[NARROW];
            UNROLL for (int j = 0; j < NARROW; j++) scale[j] =
                f_load_f16((const uint16_t *)group + at + (size_t)j * W);
            group += TN_KV_PANEL * sizeof(uint16_t);
            few_codes(type, rows, q + d, ldq, group, at, 0, 16, scale, acc);
            few_codes(type, rows, q + d, ldq, group, at, 16, 32, scale, acc);
            group += bytes;
        }
        UNROLL for (int r = 0; r < rows; r++) {
            UNROLL for (int j = 0; j < NARROW; j++)
                f_store(s + (size_t)r * ld + at + (size_t)j * W, acc[r][j]);
        }
    }
}

/* One group of the values of n positions of a panel. */
INLINE void few_values_of(tn_kv_type type, int rows, const float *w, size_t ld, const float *scales,
                          size_t groups, const uint8_t *codes, size_t n, float *out, size_t ldo) {
    size_t row = groups * (type == TN_KV_INT8 ? TN_KV_GROUP : TN_KV_GROUP / 2);
    UNROLL for (int e = 0; e < TN_KV_GROUP; e += NARROW * W) {
        vf acc[TALL][NARROW];
        UNROLL for (int r = 0; r < rows; r++) {
            UNROLL for (int j = 0; j < NARROW; j++) acc[r][j] = f_load(out + (size_t)r * ldo + e + j * W);
        }
        for (size_t p = 0; p < n; p++) {
            vf x[NARROW], scale = f_set1(scales[p * groups]);
            __builtin_prefetch(codes + p * row + KV_AHEAD);
            UNROLL for (int j = 0; j < NARROW; j++) x[j] =
                f_mul(load_codes(type, codes + p * row, (size_t)(e + j * W)), scale);
            UNROLL for (int r = 0; r < rows; r++) {
                vf y = f_set1(w[(size_t)r * ld + p]);
                UNROLL for (int j = 0; j < NARROW; j++) acc[r][j] = f_fma(y, x[j], acc[r][j]);
            }
        }
        UNROLL for (int r = 0; r < rows; r++) {
            UNROLL for (int j = 0; j < NARROW; j++) f_store(out + (size_t)r * ldo + e + j * W, acc[r][j]);
        }
    }
}

#define BY_ROWS(rows, call)                                                                                  \
    switch (rows) {                                                                                          \
    case 1: call(1); break;                                                                                  \
    case 2: call(2); break;                                                                                  \
    case 3: call(3); break;                                                                                  \
    case 4: call(4); break;                                                                                  \
    case 5: call(5); break;                                                                                  \
    case 6: call(6); break;                                                                                  \
    case 7: call(TALL > 6 ? 7 : 6); break;                                                                   \
    default: call(TALL > 6 ? 8 : 6); break;                                                                  \
    }

static void coded_scores(tn_kv_type type, int rows, const float *q, size_t ldq, size_t d_head,
                         const uint8_t *panel, float *s, size_t ld) {
#define INT8_SCORES(n) few_scores_of(TN_KV_INT8, n, q, ldq, d_head, panel, s, ld)
#define INT4_SCORES(n) few_scores_of(TN_KV_INT4, n, q, ldq, d_head, panel, s, ld)
    if (type == TN_KV_INT8) {
        BY_ROWS(rows, INT8_SCORES)
    } else {
        BY_ROWS(rows, INT4_SCORES)
    }
}

/* Values of positions pos .. pos + n - 1, weights w[r][0..n). */
static void coded_values(tn_kv_type type, int rows, const float *w, size_t ld, size_t d_head,
                         const uint8_t *panels, size_t pos, size_t n, float *out, size_t ldo) {
    size_t groups = tn_kv_groups(d_head), bytes = tn_kv_panel_bytes(type, d_head),
           code = type == TN_KV_INT8 ? TN_KV_GROUP : TN_KV_GROUP / 2;
    float scales[MOST_SCALES + W];
    for (size_t in, k; n; pos += k, n -= k, w += k) {
        const uint8_t *panel = panels + pos / TN_KV_PANEL * bytes,
                      *codes = panel + TN_KV_PANEL * groups * sizeof(uint16_t);
        in = pos % TN_KV_PANEL;
        k = n < TN_KV_PANEL - in ? n : TN_KV_PANEL - in;
        widen_scales(panel, groups, in, k, scales);
        for (size_t g = 0; g < groups; g++) {
            const uint8_t *at = codes + (in * groups + g) * code;
            float *o = out + g * TN_KV_GROUP;
#define INT8_VALUES(n) few_values_of(TN_KV_INT8, n, w, ld, scales + g, groups, at, k, o, ldo)
#define INT4_VALUES(n) few_values_of(TN_KV_INT4, n, w, ld, scales + g, groups, at, k, o, ldo)
            if (type == TN_KV_INT8) {
                BY_ROWS(rows, INT8_VALUES)
            } else {
                BY_ROWS(rows, INT4_VALUES)
            }
        }
    }
}
#endif
