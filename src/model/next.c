#include "model/next.h"

#include "base/status.h"
#include "model/blocks.h"

#include <assert.h>
#include <string.h>

/* What the one layer's model is like: the model's, without what belongs to other layers. */
static tn_hparams hparams_of(const tn_hparams *h) {
    tn_hparams one = *h;
    one.n_layers = 1;
    one.n_next = 0;
    one.n_dense = 0;
    one.layer_kind[0] = TN_LAYER_ATTENDS;
    return one;
}

tern_status tn_next_make(tn_model *m, tern_error *err) {
    tn_model *next = m->next = tn_calloc(m->ctx, TN_MEM_OTHER, 1, sizeof *next);
    TN_FAIL_IF(!next, err, TERN_E_MEMORY, "no memory for a layer that guesses further");
    next->ctx = m->ctx;
    next->scheme = m->scheme;
    next->h = hparams_of(&m->h);
    next->layers = tn_calloc(m->ctx, TN_MEM_OTHER, 1, sizeof *next->layers);
    TN_FAIL_IF(!next->layers, err, TERN_E_MEMORY, "no memory for a layer that guesses further");
    return tn_program_make(m->ctx, &next->h, &next->program, err);
}

/* What its projection reads. */
static size_t pair_of(const tn_hparams *h) {
    return tn_is_head(h) ? (size_t)h->head.n_from * (size_t)h->head.n_target : 2 * (size_t)h->n_embd;
}

uint64_t tn_next_bytes_of(const tn_hparams *h, int32_t n_ctx) {
    const tn_hparams one = hparams_of(h);
    return tn_state_bytes_of(&one, n_ctx, TN_KV_F32);
}

uint64_t tn_next_work_bytes(const tn_hparams *h, int32_t n_ctx, int n_threads) {
    const size_t e = (size_t)h->n_embd, gate = h->attn_gate ? (size_t)(h->n_heads * h->d_head) : 0;
    return tn_blocks_acts(pair_of(h), TN_TREE_MAX) * sizeof(tn_blocks_act) +
           (TN_TREE_MAX * (2 * pair_of(h) + (tn_is_head(h) ? 6 * e : 0) + gate) +
            (size_t)n_threads * tn_rows_scratch(h, n_ctx)) *
               sizeof(float);
}

tern_status tn_next_open(tn_ctx *ctx, const tn_model *next, const tn_kernels *kern, tn_pool *pool,
                         int32_t n_ctx, bool rope_long, tn_next_text *out, tern_error *err) {
    *out = (tn_next_text){.ctx = ctx, .m = next, .kern = kern, .pool = pool, .rope_long = rope_long};
    TN_TRY(tn_state_open(ctx, &next->program, &next->h, n_ctx, TN_KV_F32, &out->state, err));
    TN_TRY(tn_acts_open(ctx, next, TN_TREE_MAX, out->state.kv.cap_tok, tn_pool_size(pool), &out->acts, err));
    const size_t pair = pair_of(&next->h);
    out->pairs = tn_alloc(ctx, TN_MEM_ACTIVATIONS, TN_TREE_MAX * pair, sizeof *out->pairs);
    out->blocks = tn_alloc(ctx, TN_MEM_ACTIVATIONS, tn_blocks_acts(pair, TN_TREE_MAX), sizeof *out->blocks);
    TN_FAIL_IF(!out->pairs || !out->blocks, err, TERN_E_MEMORY, "no memory to guess further");
    return TERN_OK;
}

void tn_next_close(tn_next_text *t) {
    if (!t->ctx) return;
    tn_state_close(&t->state);
    if (t->acts.ctx) tn_acts_close(&t->acts);
    tn_free(t->ctx, t->pairs);
    tn_free(t->ctx, t->blocks);
    *t = (tn_next_text){0};
}

void tn_next_join(tn_next_text *t, const float *taps, int32_t n, float *states) {
    const tn_hparams *h = &t->m->h;
    const tn_layer *layer = &t->m->layers[0];
    const float *norm = layer->vectors[TN_W_HEAD_IN_NORM];
    const size_t wide = pair_of(h), e = (size_t)h->n_embd;
    assert(n > 0 && n <= TN_TREE_MAX);
    for (size_t i = 0; norm && i < (size_t)n; i++)
        t->kern->rmsnorm_f32(taps + i * wide, norm, h->norm_eps, t->pairs + i * wide, wide);
    tn_linear_run(&layer->linears[TN_W_NEXT_PROJ], t->kern, t->pool, norm ? t->pairs : taps, wide, states, e,
                  (size_t)n, t->blocks);
}

void tn_next_logits(tn_next_text *t, const float *state, float *logits) {
    const tn_rows r = {.h = &t->m->h, .kern = t->kern, .n_rows = 1, .tree_base = -1};
    memcpy(t->acts.buf[TN_BUF_X], state, (size_t)t->m->h.n_embd * sizeof *state);
    tn_forward_logits(t->m, t->pool, &r, &t->acts, 0, 1, logits);
}

/* Row i of each has the same place among the buffers. */
static void head_rows(tn_next_text *t, tn_rows *r, const float *embeddings, const float *states, float *out) {
    const size_t e = (size_t)t->m->h.n_embd, n = (size_t)r->n_rows;
    float *x = t->acts.buf[TN_BUF_X];
    memcpy(t->acts.buf[TN_BUF_EMB], embeddings, n * e * sizeof *x);
    memcpy(x, states, n * e * sizeof *x);
    tn_forward_begin(r, &t->acts, t->rope_long);
    if (!out) {
        tn_forward_stores(t->m, t->pool, r, &t->acts, 0);
        return;
    }
    tn_forward_layer(t->m, t->pool, r, &t->acts, 0, NULL);
    memcpy(out, x + (n - 1) * e, e * sizeof *x);
}

void tn_next_rows(tn_next_text *t, int32_t row0, int32_t n, const float *embeddings, const float *states,
                  float *out) {
    const tn_layer *layer = &t->m->layers[0];
    const size_t e = (size_t)t->m->h.n_embd;
    assert(n > 0 && n <= TN_TREE_MAX && row0 + n <= t->state.kv.cap_tok);
    for (int32_t i = 0; i < n; i++) t->pos[i] = t->slot[i] = row0 + i;
    tn_rows r = {.h = &t->m->h,
                 .kern = t->kern,
                 .kv = &t->state.kv,
                 .n_rows = n,
                 .pos = t->pos,
                 .slot = t->slot,
                 .tree_base = -1};
    if (tn_is_head(&t->m->h)) {
        head_rows(t, &r, embeddings, states, out);
        return;
    }
    for (int32_t i = 0; i < n; i++) {
        const tn_rows one = {.h = &t->m->h, .kern = t->kern, .n_rows = 1, .tree_base = -1};
        float *pair = t->pairs + (size_t)i * 2 * e;
        tn_rows_norm(&one, layer->vectors[TN_W_NEXT_E_NORM], NULL, embeddings + (size_t)i * e, pair, 0, 1);
        tn_rows_norm(&one, layer->vectors[TN_W_NEXT_H_NORM], NULL, states + (size_t)i * e, pair + e, 0, 1);
    }
    float *x = t->acts.buf[TN_BUF_X];
    tn_forward_begin(&r, &t->acts, t->rope_long);
    tn_linear_run(&layer->linears[TN_W_NEXT_PROJ], t->kern, t->pool, t->pairs, 2 * e, x, e, (size_t)n,
                  t->blocks);
    if (!out) {
        tn_forward_stores(t->m, t->pool, &r, &t->acts, 0);
        return;
    }
    tn_forward_layer(t->m, t->pool, &r, &t->acts, 0, NULL);
    const tn_rows last = {.h = &t->m->h, .kern = t->kern, .n_rows = 1, .tree_base = -1};
    tn_rows_norm(&last, layer->vectors[TN_W_NEXT_OUT_NORM], NULL, x + (size_t)(n - 1) * e, out, 0, 1);
}
