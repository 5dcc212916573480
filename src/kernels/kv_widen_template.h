/* kernels/kv_widen_template.h - the part of f32_template.h that makes floats of the cells of kv_cells.h, a span at a time:
 * the products behind it find them in the first cache, and read memory that has been read in as many bytes as the cells
 * have. */
#include "base/half.h"

INLINE void widen_halves(const uint16_t *h, size_t n, float *out) {
    size_t i = 0;
    for (; i + W <= n; i += W) f_store(out + i, f_load_f16(h + i));
    for (; i < n; i++) out[i] = tn_f16_f32(h[i]);
}

/* 32 codes as floats, not yet scaled. */
INLINE void codes_to_floats(tn_kv_type type, const uint8_t *codes, float *out) {
    if (type == TN_KV_INT8) {
        for (int i = 0; i < TN_KV_GROUP; i++) out[i] = (float)(int8_t)codes[i];
    } else {
        for (int i = 0; i < 16; i++) out[i] = (float)((int)(codes[i] & 15) - 8);
        for (int i = 0; i < 16; i++) out[16 + i] = (float)((int)(codes[i] >> 4) - 8);
    }
}

/* A group of a panel of keys, the first n of its 32 dimensions. */
INLINE void widen_key_group(tn_kv_type type, const uint8_t *group, size_t n, float *out) {
    enum { P = TN_KV_PANEL };
    float scale[P];
    const uint8_t *codes = group + P * sizeof(uint16_t);
    widen_halves((const uint16_t *)group, P, scale);
    if (type == TN_KV_INT8) {
        for (size_t d = 0; d < n; d++) {
            for (size_t i = 0; i < P; i++) out[d * P + i] = (float)(int8_t)codes[d * P + i] * scale[i];
        }
        return;
    }
    for (size_t d = 0; d < 16 && d < n; d++) {
        for (size_t i = 0; i < P; i++) out[d * P + i] = (float)((codes[d * P + i] & 15) - 8) * scale[i];
    }
    for (size_t d = 16; d < n; d++) {
        for (size_t i = 0; i < P; i++)
            out[d * P + i] = (float)((codes[(d - 16) * P + i] >> 4) - 8) * scale[i];
    }
}

/* out: n_panels panels of floats, [d_head][32] each. */
static void widen_keys(tn_kv_type type, size_t d_head, const uint8_t *panel, size_t n_panels, float *out) {
    size_t bytes = tn_kv_panel_bytes(type, d_head), group = bytes / tn_kv_groups(d_head);
    if (type == TN_KV_F16) {
        widen_halves((const uint16_t *)panel, n_panels * TN_KV_PANEL * d_head, out);
        return;
    }
    for (size_t p = 0; p < n_panels; p++, panel += bytes) {
        for (size_t g = 0; g < tn_kv_groups(d_head); g++) {
            size_t d = g * TN_KV_GROUP, n = d_head - d < TN_KV_GROUP ? d_head - d : TN_KV_GROUP;
            float *to = out + (p * d_head + d) * TN_KV_PANEL;
            if (type == TN_KV_INT8) widen_key_group(TN_KV_INT8, panel + g * group, n, to);
            else widen_key_group(TN_KV_INT4, panel + g * group, n, to);
        }
    }
}

/* scales: of the position's groups, as floats. */
INLINE void widen_codes(tn_kv_type type, size_t d_head, const float *scales, const uint8_t *codes,
                        float *out) {
    for (size_t d = 0; d < d_head; d += TN_KV_GROUP, scales++) {
        float x[TN_KV_GROUP];
        codes_to_floats(type, codes, x);
        codes += type == TN_KV_INT8 ? TN_KV_GROUP : TN_KV_GROUP / 2;
        if (d + TN_KV_GROUP <= d_head) {
            for (int i = 0; i < TN_KV_GROUP; i++) out[d + (size_t)i] = x[i] * *scales;
        } else {
            for (size_t i = 0; d + i < d_head; i++) out[d + i] = x[i] * *scales;
        }
    }
}

/* Values of n positions of one panel, from position `in` of it on. */
static void widen_coded(tn_kv_type type, size_t d_head, const uint8_t *panel, size_t in, size_t n,
                        float *out) {
    enum { MOST = TN_KV_PANEL * 512 / TN_KV_GROUP };
    size_t groups = tn_kv_groups(d_head), row = groups * TN_KV_GROUP / (type == TN_KV_INT8 ? 1 : 2);
    const uint8_t *codes = panel + TN_KV_PANEL * groups * sizeof(uint16_t) + in * row;
    const uint16_t *halves = (const uint16_t *)panel + in * groups;
    float scales[MOST + W];
    for (size_t i = 0; i < n * groups; i += W) /* behind the last scale there are codes */
        f_store(scales + i, f_load_f16(halves + i));
    for (size_t i = 0; i < n; i++, codes += row, out += d_head) {
        if (type == TN_KV_INT8) widen_codes(TN_KV_INT8, d_head, scales + i * groups, codes, out);
        else widen_codes(TN_KV_INT4, d_head, scales + i * groups, codes, out);
    }
}

static void NAME(tn_kv_rows)(tn_kv_type type, size_t d_head, const void *panels, size_t pos, size_t n,
                             float *out) {
    if (type == TN_KV_F32) {
        memcpy(out, (const float *)panels + pos * d_head, n * d_head * sizeof *out);
    } else if (type == TN_KV_F16) {
        widen_halves((const uint16_t *)panels + pos * d_head, n * d_head, out);
    } else {
        for (size_t in, k; n; pos += k, n -= k, out += k * d_head) {
            in = pos % TN_KV_PANEL;
            k = n < TN_KV_PANEL - in ? n : TN_KV_PANEL - in;
            widen_coded(type, d_head,
                        (const uint8_t *)panels + pos / TN_KV_PANEL * tn_kv_panel_bytes(type, d_head), in, k,
                        out);
        }
    }
}
