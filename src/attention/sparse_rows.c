/* Estimates and counts for all of sparse attention, and the steps of a block of rows. */
#include "attention/sparse_impl.h"

#include "base/status.h"

#include <math.h>
#include <string.h>

tern_status tn_sparse_launch(const tn_sparse_attn *s, tn_npu_job *job, int layer, tern_error *err) {
    if (tn_npu_device_caps(s->m->dev)->has_parts) return tn_npu_run_part(job, 0, 1, err);
    TN_TRY(tn_npu_submit(job, err));
    tern_status st = tn_npu_wait(job);
    TN_FAIL_IF(st != TERN_OK, err, st, "the device failed in estimating attention of layer %d", layer);
    return TERN_OK;
}

tern_status tn_sparse_estimate(const block *b, int32_t pool0, int32_t pool1, int32_t i0, int32_t n,
                               int32_t p0, int32_t p1, int32_t *out, size_t ld, tern_error *err) {
    tn_sparse_attn *s = b->s;
    const chunk_plan *p = &s->plans[b->i_chunk];
    const key_cache *k = tn_sparse_keys(s, b->layer, b->kv_head);
    size_t d = (size_t)s->h->d_head, row = (size_t)s->h->n_heads * d;
    int32_t qb = p->q_bucket[b->kv_head * s->n_units_kv + (s->o.share_rows ? 0 : pool0)],
            kb = p->k_bucket[b->kv_head];
    float inv = 1 / tn_sparse_scale(s, s->scale_q, b->layer, qb), pooled[512];
    size_t at = ld ? (size_t)(pool0 * n) : 0;
    uint8_t *q8 = b->w->q8 + at * s->q8_stride;
    for (int32_t i = 0; i < (pool1 - pool0) * n && p0 == 0; i++) { /* positions from 0 on come first */
        const float *x = tn_sparse_pooled_query(s, b->q + (size_t)(b->row0 + i0 + i % n) * row, b->kv_head,
                                                pool0 + i / n, pooled);
        s->kern->quantise_s8(x, inv, q8 + (size_t)i * s->q8_stride, d);
    }
    tn_npu_job job = {.graph =
                          tn_sparse_graph(s, ld == PART_LD ? s->part_graphs : s->graphs, b->layer, qb, kb),
                      .n_rows = (pool1 - pool0) * n,
                      .in = {q8},
                      .out = {out + at * ld}};
    const tn_npu_layout *layout = &tn_npu_device_caps(s->m->dev)->layout;
    job.k[0].tiles = k->tiles + tn_npu_tiles_bytes(layout, p0, s->h->d_head);
    job.k[0].col_sum = k->sum + p0;
    job.k[0].n_pos = p1 - p0;
    if (p0 == 0) atomic_fetch_add_explicit(&s->n_launches, 1, memory_order_relaxed);
    return tn_sparse_launch(s, &job, b->layer, err);
}

void tn_sparse_float_scores(const block *b, const float *q, int32_t n, int32_t n_pos) {
    const tn_sparse_attn *s = b->s;
    size_t d = (size_t)s->h->d_head, n_pad = (size_t)(n_pos + TN_KV_PANEL - 1) / TN_KV_PANEL * TN_KV_PANEL;
    s->kern->gemm_f32[TN_PANEL_F32](q, d, tn_kv_k(s->kv, b->layer, b->kv_head), NULL, b->w->float_scores,
                                    s->ld, (size_t)n, 0, n_pad, d);
}

void tn_sparse_head_float_scores(const block *b, int32_t head, int32_t n_pos) {
    const tn_sparse_attn *s = b->s;
    size_t d = (size_t)s->h->d_head, row = (size_t)s->h->n_heads * d;
    for (int32_t i = 0; i < b->n_rows; i++)
        memcpy(b->w->q_rows + (size_t)i * d, b->q + (size_t)(b->row0 + i) * row + (size_t)head * d,
               d * sizeof(float));
    tn_sparse_float_scores(b, b->w->q_rows, b->n_rows, n_pos);
}

float tn_sparse_largest(const float *f, size_t n, float max) {
    for (size_t i = n / 4 * 4; i < n; i++) max = fabsf(f[i]) > max && isfinite(f[i]) ? fabsf(f[i]) : max;
    return tn_sparse_magnitude(f, n / 4 * 4, max);
}

void tn_sparse_integers(const float *f, float max, int32_t *out, size_t n) {
    float k = max > 0 ? (float)FLOAT_BOUND / max : 0;
    for (size_t i = 0; i < n; i++) {
        float x = f[i] * k;
        out[i] = x >= (float)FLOAT_BOUND   ? FLOAT_BOUND
                 : x > -(float)FLOAT_BOUND ? (int32_t)x
                                           : -FLOAT_BOUND; /* a NaN is the least */
    }
}

typedef int32_t int4 __attribute__((vector_size(16)));

static inline int4 larger(int4 a, const int32_t *x) {
    int4 b, m;
    memcpy(&b, x, sizeof b);
    m = a > b;
    return (a & m) | (b & ~m);
}

int32_t tn_sparse_largest_score(const int32_t *x, size_t n, int32_t max) {
    int4 a = {max, max, max, max}, b = a, c = a,
         d = a; /* not an array, which the compiler would keep in memory */
    int32_t lane[16];
    size_t i = 0;
    for (; i + 16 <= n; i += 16) {
        a = larger(a, x + i);
        b = larger(b, x + i + 4);
        c = larger(c, x + i + 8);
        d = larger(d, x + i + 12);
    }
    memcpy(lane, &a, sizeof a);
    memcpy(lane + 4, &b, sizeof b);
    memcpy(lane + 8, &c, sizeof c);
    memcpy(lane + 12, &d, sizeof d);
    for (int j = 0; j < 16; j++) max = lane[j] > max ? lane[j] : max;
    for (; i < n; i++) max = x[i] > max ? x[i] : max;
    return max;
}

size_t tn_sparse_n_common(const uint32_t *a, const uint32_t *b, size_t n) {
    size_t i = 0, j = 0, c = 0;
    while (i < n && j < n) {
        c += a[i] == b[j];
        uint32_t x = a[i], y = b[j];
        i += x <= y;
        j += y <= x;
    }
    return c;
}

/* The softmax's input for a product q.k. */
static double capped(const tn_hparams *h, float score) {
    double x = (double)score * (double)h->attn_scale, cap = (double)h->attn_soft_cap;
    return cap > 0 ? cap * tanh(x / cap) : x;
}

void tn_sparse_add_mass(const block *b, const float *f, size_t first, size_t end, const uint32_t *idx,
                        size_t n) {
    float max = -INFINITY;
    double all = 0, mine = 0, top;
    for (size_t p = first; p < end; p++) max = f[p] > max ? f[p] : max;
    top = capped(b->s->h, max);
    for (size_t p = first; p < end; p++) all += exp(capped(b->s->h, f[p]) - top);
    for (size_t i = 0; i < n; i++) mine += exp(capped(b->s->h, f[idx[i]]) - top);
    if (all > 0)
        atomic_fetch_add_explicit(&b->s->mass_ppm, (uint64_t)(mine / all * 1e6), memory_order_relaxed);
}

void tn_sparse_count(const block *b, uint64_t n_rows, uint64_t n_seen, uint64_t n_selected) {
    atomic_fetch_add_explicit(&b->s->n_rows, n_rows, memory_order_relaxed);
    atomic_fetch_add_explicit(&b->s->n_seen, n_seen, memory_order_relaxed);
    atomic_fetch_add_explicit(&b->s->n_selected, n_selected, memory_order_relaxed);
}

tern_status tn_sparse_attn_rows(tn_sparse_attn *s, const tn_rows *r, int32_t i_chunk, int layer,
                                const float *q, float *out, int32_t row0, int32_t row1, int32_t i_worker,
                                tern_error *err) {
    block b = {.s = s,
               .r = r,
               .w = &s->space[i_worker],
               .i_chunk = i_chunk,
               .layer = layer,
               .row0 = row0,
               .n_rows = row1 - row0,
               .q = q};
    int32_t n_pos = r->pos[row1 - 1] + 1;
    for (b.kv_head = 0; b.kv_head < s->h->n_kv_heads; b.kv_head++) {
        if (s->o.share_rows) {
            TN_TRY(tn_sparse_attend_tiles(&b, out, err));
            continue;
        }
        if (s->o.mode == TN_ATTN_BLOCK_SPARSE) {
            tn_sparse_attend_blocks(&b, out);
            continue;
        }
        for (int32_t g = 0; g < s->n_group; g++) {
            int32_t head = b.kv_head * s->n_group + g;
            if (s->o.mode != TN_ATTN_FLOAT_SPARSE)
                TN_TRY(tn_sparse_estimate(&b, g, g + 1, 0, b.n_rows, 0, n_pos, b.w->scores, 0, err));
            if (s->o.mode == TN_ATTN_NPU_FULL) {
                tn_sparse_attend_int8(&b, head, out);
                continue;
            }
            if (s->o.mode == TN_ATTN_FLOAT_SPARSE || s->o.check) tn_sparse_head_float_scores(&b, head, n_pos);
            size_t list = (size_t)(g * b.n_rows);
            tn_sparse_head_select(&b, head, s->o.mode == TN_ATTN_FLOAT_SPARSE, b.w->scores,
                                  b.w->idx + list * s->idx_stride, b.w->cuts + list * (s->n_blocks + 1));
        }
        if (s->o.mode != TN_ATTN_NPU_FULL)
            tn_sparse_heads_attend(&b, b.kv_head * s->n_group, s->n_group, b.w->idx, b.w->cuts, out);
    }
    return TERN_OK;
}
