/* Scalar reference of attn_f32.h. */
#include "kernels/attn_f32.h"

#include "kernels/elem_f32.h"

#include <math.h>

size_t tn_attn_f32_scratch(size_t d_head, size_t n_pos) {
    /* scores of a block of rows (f32_template.h), rounded out to whole panels; a span of the cache as floats
     */
    return 24 * (n_pos + 2 * TN_KV_PANEL + 16) + tn_kv_span_floats(d_head);
}

/* Value d of the key in a slot. */
static float key_of(const tn_attn_f32_args *a, size_t slot, size_t d) {
    return a->k_panels ? tn_kv_key(a->kv, a->d_head, a->k_panels, slot, d)
                       : tn_kv_value(a->kv, a->d_head, a->v, slot, d);
}

/* Cache slot of a row's position p; -1: the row does not see it. */
static int64_t slot_of(const tn_attn_f32_args *a, size_t row, size_t p) {
    if ((int64_t)p < a->first_pos[row]) return -1;
    if ((int64_t)p < a->end_pos[row]) return (int64_t)p;
    if (!a->tree_mask || p < a->tree_base) return -1;
    size_t rank = p - a->tree_base;
    for (size_t j = 0; j < a->n_tree_words * 64; j++) {
        if (a->tree_mask[row * a->n_tree_words + j / 64] >> (j % 64) & 1 && !rank--)
            return (int64_t)(a->tree_base + j);
    }
    return -1;
}

void tn_attn_f32_ref(const tn_attn_f32_args *a) {
    for (size_t row = 0; row < a->n_rows; row++) {
        const float *q = a->q + row * a->q_stride;
        float *out = a->out + row * a->out_stride, *s = a->scratch, max = -INFINITY, lane[16] = {0};
        size_t end = (size_t)a->end_pos[row], first = (size_t)a->first_pos[row];
        if (a->tree_mask && end < first) end = first;
        while (a->tree_mask && slot_of(a, row, end) >= 0) end++;
        for (size_t p = 0; p < end; p++) {
            int64_t slot = slot_of(a, row, p);
            s[p] = -INFINITY;
            if (slot < 0) continue;
            float acc = 0;
            for (size_t d = 0; d < a->d_head; d++) acc = fmaf(q[d], key_of(a, (size_t)slot, d), acc);
            acc *= a->scale;
            if (a->soft_cap > 0) acc = a->soft_cap * tn_tanhf(acc / a->soft_cap);
            if (a->slopes) acc = fmaf(-a->slopes[row], fabsf((float)p - (float)a->own_pos[row]), acc);
            s[p] = acc;
            if (acc > max) max = acc;
        }
        for (size_t p = 0; p < end; p++) {
            s[p] = slot_of(a, row, p) >= 0 ? tn_expf(s[p] - max) : 0;
            lane[p % 16] += s[p];
        }
        for (int w = 8; w; w /= 2) {
            for (int i = 0; i < w; i++) lane[i] += lane[i + w];
        }
        if (a->sinks) lane[0] += tn_expf(fminf(a->sinks[row] - max, 80));
        for (size_t d = 0; d < a->d_head; d++) {
            float acc = 0;
            for (size_t p = 0; p < end; p++) {
                int64_t slot = slot_of(a, row, p);
                if (slot >= 0) acc = fmaf(s[p], tn_kv_value(a->kv, a->d_head, a->v, (size_t)slot, d), acc);
            }
            out[d] = acc / lane[0];
        }
    }
}
