/* When decoding, every row of a forward (a token, a draft, a row of a draft tree) makes its own selection,
 * shared by its query heads of a KV head.
 *
 * A row's selection must not depend on the forward that evaluates it, or drafts would change the text. So
 * it is a function of the row's text alone. Positions from its `border` on, the last 32 to 63, are always
 * attended, and only whole panels before it are estimated. The border lies at or before the first row of
 * any forward that the row can be in, because forwards have at most TN_ATTN_ROWS rows. So the selection is
 * made from committed text, and the row's own path, in whatever slots, is always kept. The scale of the
 * keys is that of the panels before the border. In one forward borders differ by at most a panel. Then
 * there are two rounds, and the keys of the second may have another scale. */
#include "attention/sparse_impl.h"

#include "base/status.h"

#include <assert.h>
#include <math.h>
#include <string.h>

_Static_assert((int)TN_ATTN_ROWS == (int)TN_KV_PANEL,
               "a border is a panel's begin, at least a forward's rows before the row");

/* Returns the first position that the row at `pos` attends to in any case. */
static int32_t border_of(int32_t pos) {
    return pos + 1 < TN_ATTN_ROWS ? 0 : (pos + 1 - TN_ATTN_ROWS) / TN_KV_PANEL * TN_KV_PANEL;
}

/* Tells whether a row attends sparsely in this layer, unless its heads' share is all. */
static bool is_long(const tn_sparse_attn *s, int layer, int32_t pos) {
    int32_t first = tn_rows_first_pos(s->h, layer, pos);
    return s->o.decode && tn_layer_may_be_sparse(s->h, layer) && s->o.decode_ratio < 1 &&
           pos + 1 - first >= s->decode_from && border_of(pos) > first;
}

int32_t tn_sparse_decode_rounds(const tn_sparse_attn *s, const tn_rows *r, int layer) {
    int32_t last = r->pos[0];
    bool any = false;
    for (int32_t i = 0; i < r->n_rows; i++) {
        any = any || is_long(s, layer, r->pos[i]);
        last = r->pos[i] > last ? r->pos[i] : last;
    }
    return !any ? 0 : border_of(last) > border_of(r->pos[0]) ? 2 : 1;
}

void tn_sparse_decode_plan(tn_sparse_attn *s, const tn_rows *r, int layer, int32_t kv_head, int32_t round) {
    key_cache *k = tn_sparse_keys(s, layer, kv_head);
    int32_t border = border_of(r->pos[0]) + round * TN_KV_PANEL;
    bool any = false;
    for (int32_t i = 0; i < r->n_rows; i++)
        any = any || (border_of(r->pos[i]) == border && is_long(s, layer, r->pos[i]));
    if (!any) return;
    tn_sparse_copy_rows(s, layer, kv_head, k, r->slot[r->n_rows - 1] + 1);
    k->n_rows = r->slot[0] + 1; /* what is kept of the others may move */
    tn_sparse_plan_keys(s, layer, kv_head, border);
}

typedef struct choice {
    size_t first, border; /* positions to select from */
    size_t n_tail, k;     /* those kept in any case, after the border; to select before it */
} choice;

/* Returns false when all is kept. */
static bool choose(const tn_sparse_attn *s, int layer, int32_t kv_head, int32_t pos, choice *c) {
    if (!is_long(s, layer, pos)) return false;
    *c = (choice){.first = (size_t)tn_rows_first_pos(s->h, layer, pos), .border = (size_t)border_of(pos)};
    size_t n = (size_t)pos + 1 - c->first;
    c->n_tail = (size_t)pos + 1 - c->border;
    size_t k =
        (size_t)ceilf(s->decode_ratio[(size_t)layer * (size_t)s->h->n_kv_heads + (size_t)kv_head] * (float)n);
    if (k < TN_ATTN_DECODE_LEAST) k = TN_ATTN_DECODE_LEAST;
    if (k > s->room) k = s->room;
    c->k = k - c->n_tail;
    return k < n;
}

/* The scores of the KV head's query heads, as rows of w->scores for positions from `base` on, and which
 * heads they are. */
typedef struct scored {
    const int32_t *row[TN_ATTN_ROWS];
    int32_t first[TN_ATTN_ROWS], end[TN_ATTN_ROWS], top[TN_ATTN_ROWS];
    int32_t n;
    size_t base;
} scored;

/* If more heads share a KV head than a launch has rows, they are estimated in pools. */
static int32_t pool_heads(const tn_sparse_attn *s) { return (s->n_group + TN_ATTN_ROWS - 1) / TN_ATTN_ROWS; }

static const float *query_of(const block *b, int32_t i, float *to) {
    const tn_sparse_attn *s = b->s;
    size_t d = (size_t)s->h->d_head;
    int32_t pool = pool_heads(s), g = i * pool, n = s->n_group - g < pool ? s->n_group - g : pool;
    return tn_sparse_add_queries(
        b->q + ((size_t)b->row0 * (size_t)s->h->n_heads + (size_t)(b->kv_head * s->n_group + g)) * d, n, d,
        to);
}

/* Estimates with one scale for all heads, the row's own, so that their scores compare. */
static tern_status estimate(const block *b, const choice *c, const scored *e, tern_error *err) {
    tn_sparse_attn *s = b->s;
    worker_space *w = b->w;
    const key_cache *k = tn_sparse_keys(s, b->layer, b->kv_head);
    const tn_npu_layout *layout = &tn_npu_device_caps(s->m->dev)->layout;
    size_t d = (size_t)s->h->d_head;
    float max = 0, pooled[512];
    for (int32_t i = 0; i < e->n; i++) max = tn_sparse_magnitude(query_of(b, i, pooled), d, max);
    int32_t bucket = tn_sparse_bucket(s, s->scale_q, b->layer, max / 127);
    float inv = 1 / tn_sparse_scale(s, s->scale_q, b->layer, bucket);
    for (int32_t i = 0; i < e->n; i++)
        s->kern->quantise_s8(query_of(b, i, pooled), inv, w->q8 + (size_t)i * s->q8_stride, d);
    tn_npu_job job = {.graph = tn_sparse_graph(s, s->graphs, b->layer, bucket, k->bucket),
                      .n_rows = e->n,
                      .in = {w->q8},
                      .out = {w->scores}};
    job.k[0].tiles = k->tiles + tn_npu_tiles_bytes(layout, (int64_t)e->base, (int64_t)d);
    job.k[0].col_sum = k->sum + e->base;
    job.k[0].n_pos = (int32_t)(c->border - e->base);
    atomic_fetch_add_explicit(&s->n_launches, 1, memory_order_relaxed);
    return tn_sparse_launch(s, &job, b->layer, err);
}

/* Selects the positions before the border that matter to any of the heads, ascending. Scores are relative
 * to the row's largest among the last NEAR and first FAR. */
static void select_merged(const block *b, const choice *c, scored *e, uint32_t *idx) {
    const tn_sparse_attn *s = b->s;
    size_t near = c->border - c->first > NEAR ? c->border - NEAR : c->first;
    size_t far = near - c->first > FAR ? c->first + FAR : near;
    for (int32_t r = 0; r < e->n; r++) {
        const int32_t *x = e->row[r];
        e->top[r] = tn_sparse_largest_score(
            x + (c->first - e->base), far - c->first,
            tn_sparse_largest_score(x + (near - e->base), c->border - near, INT32_MIN));
    }
    int32_t bound = s->kern->topk_merge(&(tn_topk_merge_args){.row = e->row,
                                                              .base = e->base,
                                                              .n_rows = (size_t)e->n,
                                                              .first = e->first,
                                                              .end = e->end,
                                                              .top = e->top,
                                                              .p0 = c->first,
                                                              .p1 = c->border,
                                                              .out = b->w->merged});
    s->kern->topk(&(tn_topk_args){.scores = b->w->merged + c->first,
                                  .n = c->border - c->first,
                                  .k = c->k,
                                  .bound = bound,
                                  .idx = idx,
                                  .scratch = b->w->topk});
    for (size_t i = 0; c->first && i < c->k; i++) idx[i] += (uint32_t)c->first;
}

/* Lists the slots of the row's text from the border on. */
static size_t put_tail(const tn_rows *r, int32_t row, size_t border, uint32_t *idx) {
    size_t n = 0, end = r->tree_mask ? (size_t)r->tree_base : (size_t)r->pos[row] + 1;
    for (size_t p = border; p < end; p++) idx[n++] = (uint32_t)p;
    for (int32_t j = 0; r->tree_mask && j <= row; j++) {
        if (r->tree_mask[(size_t)row * r->n_tree_words] >> j & 1) idx[n++] = (uint32_t)(r->tree_base + j);
    }
    return n;
}

/* With the option check: finds what exact scores would have selected by the same rule, and how much of each
 * head's softmax lies at the list. */
static void check(const block *b, const choice *c, scored *e, const uint32_t *idx) {
    tn_sparse_attn *s = b->s;
    worker_space *w = b->w;
    size_t d = (size_t)s->h->d_head;
    int32_t end = b->r->slot[b->r->n_rows - 1] + 1;
    float max = 0;
    for (int32_t i = 0; i < e->n; i++) {
        float *to = w->q_rows + (size_t)i * d;
        const float *x = query_of(b, i, to);
        if (x != to) memcpy(to, x, d * sizeof *to);
    }
    tn_sparse_float_scores(b, w->q_rows, e->n, end);
    for (int32_t i = 0; i < e->n; i++)
        max = tn_sparse_largest(w->float_scores + (size_t)i * s->ld, c->border, max);
    for (int32_t i = 0; i < e->n; i++)
        tn_sparse_integers(w->float_scores + (size_t)i * s->ld + e->base, max, w->scores + (size_t)i * s->ld,
                           c->border - e->base);
    select_merged(b, c, e, w->exact);
    atomic_fetch_add_explicit(&s->n_true, c->k, memory_order_relaxed);
    atomic_fetch_add_explicit(&s->n_found, tn_sparse_n_common(idx, w->exact, c->k), memory_order_relaxed);
    /* in positions of the row's text, not slots */
    memcpy(w->exact, idx, c->k * sizeof *idx);
    for (size_t i = 0; i < c->n_tail; i++) w->exact[c->k + i] = (uint32_t)(c->border + i);
    for (int32_t g = 0; g < s->n_group; g++) {
        const float *q =
            b->q + ((size_t)b->row0 * (size_t)s->h->n_heads + (size_t)(b->kv_head * s->n_group + g)) * d;
        tn_sparse_float_scores(b, q, 1, end);
        for (size_t i = 0; i < c->n_tail; i++)
            w->float_scores[c->border + i] = w->float_scores[idx[c->k + i]];
        tn_sparse_add_mass(b, w->float_scores, c->first, c->border + c->n_tail, w->exact, c->k + c->n_tail);
    }
}

tern_status tn_sparse_decode_row(tn_sparse_attn *s, const tn_rows *r, int layer, int32_t kv_head, int32_t row,
                                 int32_t round, const float *q, float *out, float *scratch, int32_t i_worker,
                                 tern_error *err) {
    block b = {.s = s,
               .r = r,
               .w = &s->space[i_worker],
               .layer = layer,
               .kv_head = kv_head,
               .row0 = row,
               .n_rows = 1,
               .q = q};
    if ((border_of(r->pos[row]) - border_of(r->pos[0])) / TN_KV_PANEL != round) return TERN_OK;
    choice c;
    if (!choose(s, layer, kv_head, r->pos[row], &c)) {
        tn_rows_attention_group(r, layer, NULL, kv_head, q, out, row, row + 1, scratch);
        return TERN_OK;
    }
    assert(c.border <= (size_t)r->slot[0]);
    size_t d = (size_t)s->h->d_head,
           at = ((size_t)row * (size_t)s->h->n_heads + (size_t)(kv_head * s->n_group)) * d;
    uint32_t *idx = b.w->idx;
    scored e = {.n = (s->n_group + pool_heads(s) - 1) / pool_heads(s), .base = c.first / PART * PART};
    for (int32_t i = 0; i < e.n; i++) {
        e.row[i] = b.w->scores + (size_t)i * s->ld;
        e.first[i] = (int32_t)c.first;
        e.end[i] = (int32_t)c.border;
    }
    TN_TRY(estimate(&b, &c, &e, err));
    select_merged(&b, &c, &e, idx);
    size_t n_idx = c.k + put_tail(r, row, c.border, idx + c.k);
    int32_t *first = b.w->seen, *end = first + s->n_group;
    for (int32_t g = 0; g < s->n_group; g++) {
        first[g] = 0;
        end[g] = (int32_t)n_idx;
    }
    const float *query = q + at;
    if (s->kv->rotated) {
        query = memcpy(b.w->tile_q, query, (size_t)s->n_group * d * sizeof *q);
        tn_kv_query(s->kv, s->kern, d, b.w->tile_q, s->n_group);
    }
    tn_attn_tile tile = {.q = query,
                         .out = out + at,
                         .n_rows = (size_t)s->n_group,
                         .idx = idx,
                         .n_idx = n_idx,
                         .first = first,
                         .end = end};
    tn_sparse_run_tiles(&b, &tile, 1);
    tn_sparse_count(&b, (uint64_t)s->n_group, (uint64_t)s->n_group * ((uint64_t)r->pos[row] + 1 - c.first),
                    (uint64_t)s->n_group * n_idx);
    if (s->o.check) check(&b, &c, &e, idx);
    return TERN_OK;
}
