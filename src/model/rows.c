#include "model/rows.h"

#include <assert.h>
#include <math.h>
#include <string.h>

static void angles(float *cs, const float *inv_freq, int32_t n_rot, int32_t pos, float mscale) {
    for (int32_t j = 0; j < n_rot / 2; j++) {
        double angle = (double)pos * (double)inv_freq[j];
        cs[2 * j] = (float)cos(angle) * mscale;
        cs[2 * j + 1] = (float)sin(angle) * mscale;
    }
}

int32_t tn_rows_before(const tn_rows *r, int32_t i, int32_t back, bool *in_frame) {
    int32_t base = r->tree_mask ? r->tree_base : r->pos[0];
    *in_frame = true;
    if (!back) return i;
    if (!r->tree_mask) {
        if (back <= i) return i - back;
        *in_frame = false;
        return base + i - back;
    }
    uint64_t mask = r->tree_mask[(size_t)i * r->n_tree_words];
    for (int32_t j = i; j >= 0; j--) {
        if (!(mask >> j & 1)) continue;
        if (!back) return j;
        back--;
    }
    *in_frame = false;
    return base - 1 - back;
}

/* The same of a row that stands at several positions, pair by pair. */
static void angles_by_axis(const tn_hparams *h, float *cs, const float *inv_freq, const tn_row_axes *x) {
    for (int32_t j = 0; j < h->n_rot / 2; j++) {
        double angle = (double)x->at[tn_rope_axis(h, j)] * (double)inv_freq[j];
        cs[2 * j] = (float)cos(angle) * h->rope_mscale;
        cs[2 * j + 1] = (float)sin(angle) * h->rope_mscale;
    }
}

void tn_rows_rope_table(const tn_rows *r, bool use_long) {
    const tn_hparams *h = r->h;
    const float *inv_freq = use_long ? h->inv_freq_long : h->inv_freq;
    for (int32_t i = 0; i < r->n_rows; i++) {
        float *cs = tn_rows_rope(r, i, 0);
        if (r->axes) angles_by_axis(h, cs, inv_freq, &r->axes[i]);
        else angles(cs, inv_freq, h->n_rot, r->pos[i], h->rope_mscale);
        if (h->local_rope) angles(tn_rows_rope(r, i, 1), h->inv_freq_local, tn_local_rot(h), r->pos[i], 1);
    }
}

void tn_rows_norm(const tn_rows *r, const float *w, const float *b, const float *x, float *out, int32_t row0,
                  int32_t row1) {
    size_t n = (size_t)r->h->n_embd;
    for (int32_t i = row0; i < row1; i++) {
        const float *in = x + (size_t)i * n;
        float *o = out + (size_t)i * n;
        if (r->h->norm == TN_NORM_RMS) r->kern->rmsnorm_f32(in, w, r->h->norm_eps, o, n);
        else r->kern->layernorm_f32(in, w, b, r->h->norm_eps, o, n);
    }
}

int32_t tn_rows_first_pos(const tn_hparams *h, int layer, int32_t pos) {
    int32_t window = tn_layer_window(h, layer);
    if (window && h->window_chunks) return pos / window * window;
    return window && pos >= window ? pos - window + 1 : 0;
}

bool tn_rows_pictures(const tn_extra_rows *e, const int32_t *ids, int32_t n, int32_t pos0,
                      tn_row_picture *out) {
    bool any = false;
    for (int32_t i = 0; e && i < n; i++) {
        const tn_extra_span *s = ids[i] >= e->first ? tn_extra_span_of(e, ids[i]) : NULL;
        const int32_t first = s ? pos0 + i - (ids[i] - s->first) : 0;
        out[i] = (tn_row_picture){0, 0, false};
        if (!s || !s->whole || first < 0 || first + s->n > pos0 + n) continue;
        out[i] = (tn_row_picture){first, first + s->n, s->in_windows};
        any = true;
    }
    return any;
}

void tn_rows_seen(const tn_rows *r, int layer, int32_t i, int32_t *first, int32_t *end) {
    int32_t pos = r->pos[i], n = r->pos[r->n_rows - 1] + 1, side = tn_layer_window(r->h, layer) / 2;
    if (!r->h->bidirectional) {
        *first = tn_rows_first_pos(r->h, layer, pos);
        *end = r->tree_mask ? r->tree_base : pos + 1;
        if (!r->picture || !r->picture[i].end) return;
        assert(r->picture[i].end <= n);
        if (r->picture[i].in_windows) {
            if (tn_layer_window(r->h, layer)) *end = r->picture[i].end;
            return;
        }
        if (r->picture[i].first < *first) *first = r->picture[i].first;
        *end = r->picture[i].end;
        return;
    }
    assert(!r->tree_mask && r->pos[0] == 0);
    *first = side && pos > side ? pos - side : 0;
    *end = side && side < n - pos ? pos + side + 1 : n;
}

/* What a head's scores fall by for every position of distance: powers of a number that follows from the number of
 * heads, or, for heads beyond a power of two, every other one of those of twice as many (ALiBi). */
static float slope_of(const tn_hparams *h, int32_t head) {
    int32_t whole = 1;
    while (2 * whole <= h->n_heads) whole *= 2;
    const double most = (double)h->alibi;
    return head < whole ? (float)exp2(-most / whole * (head + 1))
                        : (float)exp2(-most / (2 * whole) * (2 * (head - whole) + 1));
}

enum { ATTN_ROWS = 64 };  /* rows per kernel call */
enum { GROUP_ROWS = 24 }; /* (row, head) pairs per kernel call, what the kernel takes as one block */

void tn_rows_attention(const tn_rows *r, int layer, const float *sinks, int head, const float *q, float *out,
                       int32_t row0, int32_t row1, float *scratch) {
    const tn_hparams *h = r->h;
    size_t d = (size_t)tn_layer_d_head(h, layer), stride = (size_t)h->n_heads * d;
    int kv_head = head / (h->n_heads / tn_layer_kv_heads(h, layer));
    int32_t first[ATTN_ROWS], end[ATTN_ROWS];
    float sink[ATTN_ROWS], slopes[ATTN_ROWS], *turned = scratch;
    int32_t most = r->kv->rotated ? 2 * GROUP_ROWS : ATTN_ROWS;
    for (int32_t i = 0; sinks && i < ATTN_ROWS; i++) sink[i] = sinks[head];
    for (int32_t i = 0; h->alibi > 0 && i < ATTN_ROWS; i++) slopes[i] = slope_of(h, head);
    for (int32_t b = row0; b < row1; b += most) {
        int32_t n = row1 - b < most ? row1 - b : most;
        for (int32_t i = 0; i < n; i++) tn_rows_seen(r, layer, b + i, &first[i], &end[i]);
        size_t off = (size_t)b * stride + (size_t)head * d;
        for (int32_t i = 0; r->kv->rotated && i < n; i++)
            memcpy(turned + (size_t)i * d, q + off + (size_t)i * stride, d * sizeof *q);
        if (r->kv->rotated) tn_kv_query(r->kv, r->kern, d, turned, n);
        tn_attn_f32_args a = {
            .q = r->kv->rotated ? turned : q + off,
            .q_stride = r->kv->rotated ? d : stride,
            .out = out + off,
            .out_stride = stride,
            .k_panels = tn_kv_k(r->kv, layer, kv_head),
            .v = tn_kv_v(r->kv, layer, kv_head),
            .kv = r->kv->type,
            .n_rows = (size_t)n,
            .d_head = d,
            .scale = h->attn_scale,
            .soft_cap = h->attn_soft_cap,
            .sinks = sinks ? sink : NULL,
            .slopes = h->alibi > 0 ? slopes : NULL,
            .own_pos = r->pos + b,
            .first_pos = first,
            .end_pos = end,
            .tree_mask = r->tree_mask ? r->tree_mask + (size_t)b * r->n_tree_words : NULL,
            .tree_base = r->tree_mask ? (size_t)r->tree_base : 0,
            .n_tree_words = r->n_tree_words,
            .scratch = turned + 2 * GROUP_ROWS * d,
        };
        r->kern->attn_f32(&a);
    }
}

enum { LATENT_HEADS = 8 }; /* of a group */

int32_t tn_rows_groups(const tn_hparams *h, int layer) {
    return tn_latent(h) ? (h->n_heads + LATENT_HEADS - 1) / LATENT_HEADS : tn_layer_kv_heads(h, layer);
}

void tn_rows_attention_group(const tn_rows *r, int layer, const float *sinks, int group, const float *q,
                             float *out, int32_t row0, int32_t row1, float *scratch) {
    const tn_hparams *h = r->h;
    size_t d = (size_t)tn_layer_d_head(h, layer), stride = (size_t)h->n_heads * d;
    const int32_t n_groups = tn_rows_groups(h, layer), head0 = group * h->n_heads / n_groups;
    const int32_t n_group = (group + 1) * h->n_heads / n_groups - head0;
    const int kv_head = tn_latent(h) ? 0 : group;
    if (n_group == 1 || n_group > GROUP_ROWS || r->n_tree_words > 1) {
        for (int32_t g = 0; g < n_group; g++)
            tn_rows_attention(r, layer, sinks, head0 + g, q, out, row0, row1, scratch);
        return;
    }
    float *gathered = scratch, *result = gathered + GROUP_ROWS * d;
    int32_t first[GROUP_ROWS], end[GROUP_ROWS], n;
    uint64_t mask[GROUP_ROWS];
    float sink[GROUP_ROWS];
    for (int32_t i = 0; sinks && i < GROUP_ROWS; i++) sink[i] = sinks[head0 + i % n_group];
    for (int32_t b = row0; b < row1; b += n) {
        n = GROUP_ROWS / n_group < row1 - b ? GROUP_ROWS / n_group : row1 - b;
        for (int32_t i = 0; i < n; i++) {
            for (int32_t g = 0; g < n_group; g++) {
                int32_t k = i * n_group + g;
                tn_rows_seen(r, layer, b + i, &first[k], &end[k]);
                mask[k] = r->tree_mask ? r->tree_mask[b + i] : 0;
            }
            memcpy(gathered + (size_t)(i * n_group) * d, q + (size_t)(b + i) * stride + (size_t)head0 * d,
                   (size_t)n_group * d * sizeof *q);
        }
        tn_kv_query(r->kv, r->kern, d, gathered, n * n_group);
        tn_attn_f32_args a = {
            .q = gathered,
            .q_stride = d,
            .out = result,
            .out_stride = d,
            .k_panels = tn_kv_k(r->kv, layer, kv_head),
            .v = tn_kv_v(r->kv, layer, kv_head),
            .kv = r->kv->type,
            .n_rows = (size_t)(n * n_group),
            .d_head = d,
            .scale = h->attn_scale,
            .soft_cap = h->attn_soft_cap,
            .sinks = sinks ? sink : NULL,
            .first_pos = first,
            .end_pos = end,
            .tree_mask = r->tree_mask ? mask : NULL,
            .tree_base = r->tree_mask ? (size_t)r->tree_base : 0,
            .n_tree_words = r->n_tree_words,
            .scratch = result + GROUP_ROWS * d,
        };
        r->kern->attn_f32(&a);
        for (int32_t i = 0; i < n; i++) {
            memcpy(out + (size_t)(b + i) * stride + (size_t)head0 * d, result + (size_t)(i * n_group) * d,
                   (size_t)n_group * d * sizeof *out);
        }
    }
}

size_t tn_rows_scratch(const tn_hparams *h, int32_t cap_tok) {
    size_t d = (size_t)tn_widest_head(h);
    return tn_attn_f32_scratch(d, (size_t)cap_tok) + 2 * GROUP_ROWS * d;
}
