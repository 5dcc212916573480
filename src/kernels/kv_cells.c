/* Stores values in the cells of kv_cells.h, and is the scalar reference for reading them. */
#include "kernels/kv_cells.h"

#include "base/half.h"

#include <math.h>
#include <string.h>

static const char *const names[TN_N_KV_TYPES] = {"f32", "f16", "int8", "int4"};

tn_kv_type tn_kv_type_parse(const char *name) {
    int t = 0;
    while (t < TN_N_KV_TYPES && strcmp(name, names[t])) t++;
    return (tn_kv_type)t;
}

const char *tn_kv_type_name(tn_kv_type type) { return names[type]; }

/* Rounds to the nearest even, as tn_f32_f16 does, without branches, so that loops of it are vectors. */
static inline uint16_t half_of(float x) {
    float clamped = x > 65504 ? 65504 : x < -65504 ? -65504 : x;
    x = fabsf(x) <= 3.4028235e38f ? clamped : x;
    uint32_t u = tn_f32_bits(x), a = u & 0x7fffffffu,
             normal = (a + 0xfffu + ((a >> 13) & 1u) - 0x38000000u) >> 13,
             small = tn_f32_bits(tn_bits_f32(a) + 0.5f) - 0x3f000000u,
             wild = a > 0x7f800000u ? 0x7e00u : 0x7c00u, h = a < 0x38800000u ? small : normal;
    return (uint16_t)((a >= 0x7f800000u ? wild : h) | ((u >> 16) & 0x8000u));
}

/* The nearest whole number, of |x| < 2^22. */
static inline float nearest(float x) { return (x + 12582912.0f) - 12582912.0f; }

/* Codes of a group of n values, the rest zeros; returns their scale. The largest magnitude is 127 in int8.
 * In int4, whose codes go down to -8 and up to 7, it is -8, whichever sign it has: half a step less error
 * than 7 would leave. */
static uint16_t codes_of(tn_kv_type type, const float *x, size_t n, int8_t code[TN_KV_GROUP]) {
    float at[TN_KV_GROUP] = {0}, max = 0, largest = 0;
    memcpy(at, x, n * sizeof *x);
    for (size_t i = 0; i < TN_KV_GROUP; i++) {
        if (isnan(max) || fabsf(at[i]) <= max) continue; /* NaN counts as the largest */
        max = fabsf(at[i]);
        largest = at[i];
    }
    uint16_t scale = half_of(type == TN_KV_INT8 ? max / 127 : largest / -8);
    float s = tn_f16_f32(scale), inv = s != 0 && fabsf(s) <= 65504 ? 1 / s : 0,
          least = type == TN_KV_INT8 ? -127 : -8, most = type == TN_KV_INT8 ? 127 : 7;
    for (size_t i = 0; i < TN_KV_GROUP; i++) {
        float y = at[i] * inv;
        y = y > least ? y : least; /* NaN: the least code, times a scale that is NaN too */
        code[i] = (int8_t)nearest(y < most ? y : most);
    }
    return scale;
}

/* Bytes of a group's codes at one position. */
static size_t code_bytes(tn_kv_type type) { return type == TN_KV_INT8 ? TN_KV_GROUP : TN_KV_GROUP / 2; }

static void pack(tn_kv_type type, const int8_t *code, uint8_t *out) {
    if (type == TN_KV_INT8) {
        memcpy(out, code, TN_KV_GROUP);
        return;
    }
    const size_t half = TN_KV_GROUP / 2;
    for (size_t i = 0; i < half; i++) out[i] = (uint8_t)((code[i] + 8) | (code[i + half] + 8) << 4);
}

static int8_t unpacked(tn_kv_type type, const uint8_t *bytes, size_t stride, size_t i) {
    if (type == TN_KV_INT8) return (int8_t)bytes[i * stride];
    return (int8_t)((i < 16 ? bytes[i * stride] & 15 : bytes[(i - 16) * stride] >> 4) - 8);
}

/* Where the elements of a position lie, or the codes of a group and their scale, and how far apart. */
typedef struct cells {
    uint8_t *at, *scale;
    size_t stride;
} cells;

static cells key_cells(tn_kv_type type, size_t d_head, const void *panels, size_t pos, size_t g) {
    size_t bytes = tn_kv_panel_bytes(type, d_head), in = pos % TN_KV_PANEL;
    uint8_t *panel = (uint8_t *)panels + pos / TN_KV_PANEL * bytes;
    if (type <= TN_KV_F16)
        return (cells){.at = panel + in * bytes / d_head / TN_KV_PANEL, .stride = TN_KV_PANEL};
    panel += g * (bytes / tn_kv_groups(d_head));
    return (cells){.at = panel + TN_KV_PANEL * sizeof(uint16_t) + in,
                   .scale = panel + in * sizeof(uint16_t),
                   .stride = TN_KV_PANEL};
}

static cells value_cells(tn_kv_type type, size_t d_head, const void *panels, size_t pos, size_t g) {
    size_t bytes = tn_kv_panel_bytes(type, d_head), in = pos % TN_KV_PANEL, n = tn_kv_groups(d_head);
    uint8_t *panel = (uint8_t *)panels + pos / TN_KV_PANEL * bytes;
    if (type <= TN_KV_F16) return (cells){.at = panel + in * (bytes / TN_KV_PANEL), .stride = 1};
    return (cells){.at = panel + TN_KV_PANEL * n * sizeof(uint16_t) + (in * n + g) * code_bytes(type),
                   .scale = panel + (in * n + g) * sizeof(uint16_t),
                   .stride = 1};
}

static size_t parts_of(tn_kv_type type, size_t d_head) {
    return type <= TN_KV_F16 ? 1 : tn_kv_groups(d_head);
}

/* Stores x, or its group g if there are groups. */
static void put(tn_kv_type type, size_t d_head, cells c, const float *x, size_t g) {
    if (type == TN_KV_F32) {
        for (size_t i = 0; i < d_head; i++) ((float *)c.at)[i * c.stride] = x[i];
    } else if (type == TN_KV_F16) {
        for (size_t i = 0; i < d_head; i++) ((uint16_t *)c.at)[i * c.stride] = half_of(x[i]);
    } else {
        int8_t code[TN_KV_GROUP];
        uint8_t bytes[TN_KV_GROUP];
        size_t left = d_head - g * TN_KV_GROUP;
        uint16_t scale = codes_of(type, x + g * TN_KV_GROUP, left < TN_KV_GROUP ? left : TN_KV_GROUP, code);
        memcpy(c.scale, &scale, sizeof scale);
        pack(type, code, bytes);
        for (size_t i = 0; i < code_bytes(type); i++) c.at[i * c.stride] = bytes[i];
    }
}

/* Copies cells unchanged. */
static void copy(tn_kv_type type, size_t d_head, cells from, cells to) {
    if (type == TN_KV_F32) {
        for (size_t i = 0; i < d_head; i++)
            ((float *)to.at)[i * to.stride] = ((float *)from.at)[i * from.stride];
    } else if (type == TN_KV_F16) {
        for (size_t i = 0; i < d_head; i++)
            ((uint16_t *)to.at)[i * to.stride] = ((uint16_t *)from.at)[i * from.stride];
    } else {
        memcpy(to.scale, from.scale, sizeof(uint16_t));
        for (size_t i = 0; i < code_bytes(type); i++) to.at[i * to.stride] = from.at[i * from.stride];
    }
}

static float get(tn_kv_type type, cells c, size_t i) {
    if (type == TN_KV_F32) return ((const float *)c.at)[i * c.stride];
    if (type == TN_KV_F16) return tn_f16_f32(((const uint16_t *)c.at)[i * c.stride]);
    uint16_t scale;
    memcpy(&scale, c.scale, sizeof scale);
    return (float)unpacked(type, c.at, c.stride, i % TN_KV_GROUP) * tn_f16_f32(scale);
}

void tn_kv_put_key(tn_kv_type type, size_t d_head, void *panels, size_t pos, const float *x) {
    for (size_t g = 0; g < parts_of(type, d_head); g++)
        put(type, d_head, key_cells(type, d_head, panels, pos, g), x, g);
}

void tn_kv_put_value(tn_kv_type type, size_t d_head, void *panels, size_t pos, const float *x) {
    for (size_t g = 0; g < parts_of(type, d_head); g++)
        put(type, d_head, value_cells(type, d_head, panels, pos, g), x, g);
}

float tn_kv_key(tn_kv_type type, size_t d_head, const void *panels, size_t pos, size_t i) {
    return get(type, key_cells(type, d_head, panels, pos, i / TN_KV_GROUP), i);
}

float tn_kv_value(tn_kv_type type, size_t d_head, const void *panels, size_t pos, size_t i) {
    return get(type, value_cells(type, d_head, panels, pos, i / TN_KV_GROUP), i);
}

void tn_kv_copy_key(tn_kv_type type, size_t d_head, void *panels, size_t from, size_t to) {
    for (size_t g = 0; g < parts_of(type, d_head); g++)
        copy(type, d_head, key_cells(type, d_head, panels, from, g), key_cells(type, d_head, panels, to, g));
}

void tn_kv_copy_value(tn_kv_type type, size_t d_head, void *panels, size_t from, size_t to) {
    for (size_t g = 0; g < parts_of(type, d_head); g++)
        copy(type, d_head, value_cells(type, d_head, panels, from, g),
             value_cells(type, d_head, panels, to, g));
}

void tn_kv_key_as_value(tn_kv_type type, size_t d_head, const void *keys, size_t pos, void *values) {
    for (size_t g = 0; g < parts_of(type, d_head); g++)
        copy(type, d_head, key_cells(type, d_head, keys, pos, g), value_cells(type, d_head, values, pos, g));
}

void tn_kv_rows_ref(tn_kv_type type, size_t d_head, const void *panels, size_t pos, size_t n, float *out) {
    for (size_t p = pos; p < pos + n; p++) {
        for (size_t i = 0; i < d_head; i++) *out++ = tn_kv_value(type, d_head, panels, p, i);
    }
}
