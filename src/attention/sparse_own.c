/* Rows and heads that select for themselves (attention-share -1), as in the paper. A minimal build has
 * no_baselines.c instead. */
#include "attention/sparse_impl.h"

#include <string.h>

/* The number of positions that a row keeps out of n. */
static size_t n_kept(const tn_sparse_attn *s, int layer, int32_t head, size_t n) {
    const float ratio = s->ratio[(size_t)layer * (size_t)s->h->n_heads + (size_t)head];
    return tn_sparse_kept(s, ratio, n, MIN_SELECTED);
}

/* The k best of positions first..end-1 of a row of scores (|score| <= bound), in idx, with their cuts. Scores
 * before `first` in its block are overwritten. */
static void select_row(const tn_sparse_attn *s, worker_space *w, int32_t *scores, size_t first, size_t end,
                       size_t k, int32_t bound, uint32_t *idx, uint32_t *cuts) {
    size_t base = first / TN_SPARSE_BLOCK * TN_SPARSE_BLOCK, b0 = base / TN_SPARSE_BLOCK;
    for (size_t p = base; p < first; p++)
        scores[p] = -bound - 1; /* never among the best: the window has at least k */
    memset(cuts, 0, b0 * sizeof *cuts);
    s->kern->topk(&(tn_topk_args){.scores = scores + base,
                                  .n = end - base,
                                  .k = k,
                                  .bound = bound + 1,
                                  .idx = idx,
                                  .cuts = cuts + b0,
                                  .scratch = w->topk});
    for (size_t i = 0; base && i < k; i++) idx[i] += (uint32_t)base;
    for (size_t c = b0 + tn_sparse_blocks(end - base) + 1; c <= s->n_blocks; c++) cuts[c] = (uint32_t)k;
}

void tn_sparse_head_select(const block *b, int32_t head, bool floats, int32_t *head_scores,
                           uint32_t *head_idx, uint32_t *head_cuts) {
    tn_sparse_attn *s = b->s;
    worker_space *w = b->w;
    uint64_t n_seen = 0, n_selected = 0, n_found = 0;
    for (int32_t i = 0; i < b->n_rows; i++) {
        size_t end = (size_t)b->r->pos[b->row0 + i] + 1,
               first = (size_t)tn_rows_first_pos(s->h, b->layer, b->r->pos[b->row0 + i]);
        size_t k = n_kept(s, b->layer, head, end - first);
        int32_t *scores = head_scores + (size_t)i * s->ld, bound = 127 * 127 * s->h->d_head;
        uint32_t *idx = head_idx + (size_t)i * s->idx_stride,
                 *cuts = head_cuts + (size_t)i * (s->n_blocks + 1);
        if (floats) {
            float *f = w->float_scores + (size_t)i * s->ld;
            tn_sparse_integers(f, tn_sparse_largest(f, end, 0), scores, end);
            bound = FLOAT_BOUND;
        }
        select_row(s, w, scores, first, end, k, bound, idx, cuts);
        n_seen += end - first;
        n_selected += k;
        if (s->o.check) {
            float *f = w->float_scores + (size_t)i * s->ld;
            tn_sparse_integers(f, tn_sparse_largest(f, end, 0), scores, end);
            select_row(s, w, scores, first, end, k, FLOAT_BOUND, w->exact, w->exact_cuts);
            n_found += tn_sparse_n_common(idx, w->exact, k);
            tn_sparse_add_mass(b, f, first, end, idx, k);
        }
    }
    tn_sparse_count(b, (uint64_t)b->n_rows, n_seen, n_selected);
    if (s->o.check) {
        atomic_fetch_add_explicit(&s->n_true, n_selected, memory_order_relaxed);
        atomic_fetch_add_explicit(&s->n_found, n_found, memory_order_relaxed);
    }
}

void tn_sparse_heads_attend(const block *b, int32_t head, int32_t n_heads, const uint32_t *idx,
                            const uint32_t *cuts, float *out) {
    const tn_sparse_attn *s = b->s;
    size_t d = (size_t)s->h->d_head, row = (size_t)s->h->n_heads * d,
           off = (size_t)b->row0 * row + (size_t)head * d;
    size_t n_blocks = tn_sparse_blocks((size_t)b->r->pos[b->row0 + b->n_rows - 1] + 1);
    s->kern->attn_sparse(&(tn_attn_sparse_args){.q = b->q + off,
                                                .q_stride = row,
                                                .out = out + off,
                                                .out_stride = row,
                                                .n_rows = (size_t)b->n_rows,
                                                .n_group = (size_t)n_heads,
                                                .d_head = d,
                                                .k_panels = tn_kv_k(s->kv, b->layer, b->kv_head),
                                                .v = tn_kv_v(s->kv, b->layer, b->kv_head),
                                                .idx = idx,
                                                .idx_stride = s->idx_stride,
                                                .cuts = cuts,
                                                .cut_stride = s->n_blocks + 1,
                                                .n_blocks = n_blocks,
                                                .n_pos = (size_t)b->r->pos[b->row0 + b->n_rows - 1] + 1,
                                                .scale = s->h->attn_scale,
                                                .soft_cap = s->h->attn_soft_cap,
                                                .scratch = b->w->scratch});
}
