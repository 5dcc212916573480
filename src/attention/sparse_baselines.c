/* attention/sparse_baselines.c - the baselines: blocks of keys chosen by their means, and both products in
 * INT8. */
#include "attention/sparse_impl.h"

#include "base/status.h"

#include <math.h>
#include <string.h>

tern_status tn_sparse_baseline_open(tn_sparse_attn *s, key_cache *k, tern_error *err) {
    size_t cap = (size_t)s->kv->cap_tok, d = (size_t)s->h->d_head, d16 = (d + 15) / 16 * 16;
    if (s->o.mode == TN_ATTN_BLOCK_SPARSE) {
        k->means = tn_alloc(s->ctx, TN_MEM_KV, (cap / BLOCK + 1) * d, sizeof(float));
        TN_FAIL_IF(!k->means, err, TERN_E_MEMORY, "no memory for mean keys");
    }
    if (s->o.mode != TN_ATTN_NPU_FULL) return TERN_OK;
    TN_FAIL_IF(cap > TN_S8_MAX_K, err, TERN_E_LIMIT,
               "--attention npu-full can see %d positions at most, the context has %zu", TN_S8_MAX_K, cap);
    k->v_tiles = tn_calloc(s->ctx, TN_MEM_KV, cap * d16, 1);
    k->v_sum = tn_alloc(s->ctx, TN_MEM_KV, cap / TN_KV_PANEL * d16, sizeof *k->v_sum);
    k->v_panel_max = tn_alloc(s->ctx, TN_MEM_KV, cap / TN_KV_PANEL, sizeof *k->v_panel_max);
    TN_FAIL_IF(!k->v_tiles || !k->v_sum || !k->v_panel_max, err, TERN_E_MEMORY, "no memory for INT8 values");
    s->fixed.bytes += cap * d16 + cap / TN_KV_PANEL * (d16 + 1) * 4;
    return TERN_OK;
}

/* Computes the means of the blocks that are whole up to `end`. */
static void plan_means(const tn_sparse_attn *s, key_cache *k, int32_t end) {
    size_t d = (size_t)s->h->d_head;
    for (; k->n_means < end / BLOCK; k->n_means++) {
        float *mean = k->means + (size_t)k->n_means * d;
        memset(mean, 0, d * sizeof *mean);
        for (size_t p = (size_t)k->n_means * BLOCK, p1 = p + BLOCK; p < p1; p++) {
            for (size_t j = 0; j < d; j++) mean[j] += ((const float *)k->rows)[p * d + j] / BLOCK;
        }
    }
}

/* Quantises the values up to `end` to INT8, all with one scale: that of the largest of them. */
static void plan_values(const tn_sparse_attn *s, key_cache *k, const float *v, int32_t end) {
    size_t d = (size_t)s->h->d_head, d16 = (d + 15) / 16 * 16, cap = (size_t)s->kv->cap_tok;
    float max = 0;
    for (int32_t p = 0; p < end; p += TN_KV_PANEL) {
        size_t n = end - p < TN_KV_PANEL ? (size_t)(end - p) : TN_KV_PANEL;
        float *panel_max = &k->v_panel_max[p / TN_KV_PANEL];
        if (p + TN_KV_PANEL > k->n_values) *panel_max = tn_sparse_magnitude(v + (size_t)p * d, n * d, 0);
        max = *panel_max > max ? *panel_max : max;
    }
    int32_t from = max == k->v_max ? k->n_values : 0;
    float inv = max > 0 ? 127 / max : 0;
    uint8_t q8[512];
    for (size_t p = (size_t)from; p < (size_t)end; p++) {
        s->kern->quantise_s8(v + p * d, inv, q8, d);
        for (size_t j = 0; j < d; j++)
            k->v_tiles[j / 16 * cap * 16 + p / 4 * 64 + j % 16 * 4 + p % 4] = (int8_t)(q8[j] - 128);
    }
    for (size_t panel = (size_t)from / TN_KV_PANEL; panel * TN_KV_PANEL < (size_t)end; panel++) {
        int32_t *sum = k->v_sum + panel * d16;
        if (panel) memcpy(sum, sum - d16, d16 * sizeof *sum);
        else memset(sum, 0, d16 * sizeof *sum);
        for (size_t j = 0; j < d16; j++) {
            const int8_t *at = k->v_tiles + j / 16 * cap * 16 + panel * TN_KV_PANEL * 16 + j % 16 * 4;
            for (size_t p = 0; p < TN_KV_PANEL; p++) sum[j] += at[p / 4 * 64 + p % 4];
        }
    }
    k->v_max = max;
    k->n_values = end;
}

void tn_sparse_baseline_plan(const tn_sparse_attn *s, int layer, int32_t kv_head, int32_t end) {
    if (s->o.mode == TN_ATTN_BLOCK_SPARSE) plan_means(s, tn_sparse_keys(s, layer, kv_head), end);
    if (s->o.mode == TN_ATTN_NPU_FULL)
        plan_values(s, tn_sparse_keys(s, layer, kv_head), tn_kv_v(s->kv, layer, kv_head), end);
}

/* ---- blocks -------------------------------------------------------------------------------------------- */

/* Counts how many listed positions are below p, when the list is that of kept blocks. */
static int32_t n_below(const bool *kept, size_t p) {
    size_t n = 0;
    for (size_t c = 0; c < p / BLOCK; c++) n += kept[c] ? BLOCK : 0;
    return (int32_t)(n + (kept[p / BLOCK] ? p % BLOCK : 0));
}

/* Makes one tile of a head's rows of the block. It attends to those blocks of 64 keys whose mean has the
 * largest product with the mean query, and always to those that the rows themselves lie in. */
static tn_attn_tile block_tile(const block *b, int32_t g) {
    tn_sparse_attn *s = b->s;
    worker_space *w = b->w;
    const key_cache *k = tn_sparse_keys(s, b->layer, b->kv_head);
    const int32_t *pos = b->r->pos + b->row0;
    int32_t head = b->kv_head * s->n_group + g, *first = w->seen + g * TN_ATTN_ROWS,
            *end = first + s->n_group * TN_ATTN_ROWS;
    size_t d = (size_t)s->h->d_head, row = (size_t)s->h->n_heads * d, own = (size_t)pos[0] / BLOCK,
           last = (size_t)pos[b->n_rows - 1], n_blocks = last / BLOCK + 1, n = 0;
    float q[512] = {0}, *rows = w->tile_q + (size_t)(g * TN_ATTN_ROWS) * d;
    for (int32_t i = 0; i < b->n_rows; i++) {
        const float *x = b->q + (size_t)(b->row0 + i) * row + (size_t)head * d;
        memcpy(rows + (size_t)i * d, x, d * sizeof *x);
        for (size_t j = 0; j < d; j++) q[j] += x[j];
    }
    bool *kept = (bool *)w->topk; /* [n_blocks + 1]: far more room than that */
    for (size_t c = 0; c <= n_blocks; c++) kept[c] = c >= own && c < n_blocks;
    for (size_t c = 0; c < own; c++) {
        float dot = 0;
        for (size_t j = 0; j < d; j++) dot += q[j] * k->means[c * d + j];
        w->float_scores[c] = dot;
    }
    size_t keep =
        (size_t)ceilf(s->ratio[(size_t)b->layer * (size_t)s->h->n_heads + (size_t)head] * (float)n_blocks);
    for (size_t c = n_blocks - own; c < keep && c < n_blocks; c++) {
        size_t best = SIZE_MAX;
        for (size_t i = 0; i < own; i++) {
            if (!kept[i] && (best == SIZE_MAX || w->float_scores[i] > w->float_scores[best])) best = i;
        }
        kept[best] = true;
    }
    uint32_t *idx = w->idx + (size_t)g * s->idx_stride;
    for (size_t c = 0; c < n_blocks; c++) {
        for (size_t p = c * BLOCK; kept[c] && p < (c + 1) * BLOCK && p <= last; p++) idx[n++] = (uint32_t)p;
    }
    uint64_t n_seen = 0, n_selected = 0;
    for (int32_t i = 0; i < b->n_rows; i++) {
        int32_t from = tn_rows_first_pos(s->h, b->layer, pos[i]);
        first[i] = n_below(kept, (size_t)from);
        end[i] = n_below(kept, (size_t)pos[i]) + 1;
        n_seen += (uint64_t)(pos[i] + 1 - from);
        n_selected += (uint64_t)(end[i] - first[i]);
    }
    tn_sparse_count(b, (uint64_t)b->n_rows, n_seen, n_selected);
    return (tn_attn_tile){.q = rows,
                          .out = w->tile_out + (size_t)(g * TN_ATTN_ROWS) * d,
                          .n_rows = (size_t)b->n_rows,
                          .idx = idx,
                          .n_idx = n,
                          .first = first,
                          .end = end};
}

void tn_sparse_attend_blocks(const block *b, float *out) {
    const tn_sparse_attn *s = b->s;
    size_t d = (size_t)s->h->d_head, row = (size_t)s->h->n_heads * d;
    for (int32_t g = 0; g < s->n_group; g++) {
        tn_attn_tile t = block_tile(b, g);
        tn_sparse_run_tiles(b, &t, 1);
        float *o = out + (size_t)b->row0 * row + (size_t)(b->kv_head * s->n_group + g) * d;
        for (int32_t i = 0; i < b->n_rows; i++)
            memcpy(o + (size_t)i * row, t.out + (size_t)i * d, d * sizeof *o);
    }
}

/* ---- both products in INT8 --------------------------------------------------------------------------- */

/* Attends in INT8. Softmax is float; its weights have a step of 1 / 127, as a frozen output scale would give.
 * The values have one scale a KV head, that of the largest so far (a device's would be frozen too). The
 * product of the two runs here, on the kernel that the host device runs. */
void tn_sparse_attend_int8(const block *b, int32_t head, float *out) {
    const tn_sparse_attn *s = b->s;
    const chunk_plan *p = &s->plans[b->i_chunk];
    const key_cache *k = tn_sparse_keys(s, b->layer, b->kv_head);
    size_t d = (size_t)s->h->d_head, d16 = (d + 15) / 16 * 16, row = (size_t)s->h->n_heads * d,
           cap = (size_t)s->kv->cap_tok;
    size_t n_all = ((size_t)b->r->pos[b->row0 + b->n_rows - 1] + TN_KV_PANEL) / TN_KV_PANEL * TN_KV_PANEL;
    float scale = tn_sparse_scale(s, s->scale_q, b->layer, p->q_bucket[head]) *
                  tn_sparse_scale(s, s->scale_k, b->layer, p->k_bucket[b->kv_head]) * s->h->attn_scale;
    float soft_cap = s->h->attn_soft_cap, out_scale[16], *x = b->w->float_scores;
    uint64_t n_seen = 0;
    for (int32_t i = 0; i < b->n_rows; i++) {
        size_t end = (size_t)b->r->pos[b->row0 + i] + 1,
               first = (size_t)tn_rows_first_pos(s->h, b->layer, b->r->pos[b->row0 + i]), n = end - first;
        const int32_t *acc = b->w->scores + (size_t)i * s->ld + first;
        uint8_t *weights = b->w->weights + (size_t)i * s->ld;
        n_seen += n;
        for (size_t j = 0; j < n; j++) x[j] = (float)acc[j] * scale;
        for (size_t j = 0; j < n && soft_cap > 0; j++) x[j] = soft_cap * tanhf(x[j] / soft_cap);
        float sum = s->kern->softmax_f32(x, n);
        memset(weights, 128, first);
        s->kern->quantise_s8(x, 127 / sum, weights + first, n);
        memset(weights + end, 128, n_all - end);
    }
    for (size_t j = 0; j < 16; j++) out_scale[j] = k->v_max / (127.0f * 127.0f);
    for (size_t c = 0; c < d; c += 16) {
        size_t n = d - c < 16 ? d - c : 16;
        s->kern->gemm_s8(&(tn_gemm_s8_args){.a = b->w->weights,
                                            .lda = s->ld,
                                            .tiles = k->v_tiles + c * cap,
                                            .col_sum = k->v_sum + (n_all / TN_KV_PANEL - 1) * d16 + c,
                                            .m = (size_t)b->n_rows,
                                            .n = n,
                                            .k = n_all,
                                            .n1 = n,
                                            .out_f32 = out + (size_t)b->row0 * row + (size_t)head * d + c,
                                            .ldo = row,
                                            .scale = out_scale});
    }
    tn_sparse_count(b, (uint64_t)b->n_rows, n_seen, n_seen);
}
