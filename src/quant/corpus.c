#include "quant/corpus.h"

#include "base/status.h"

#include <string.h>

typedef struct embedding {
    const tn_corpus *c;
    tern_status status[64]; /* per thread */
    tern_error error[64];
} embedding;

static void embed_token(void *arg, int i_item, int i_thread) {
    embedding *e = arg;
    const tn_hparams *h = &e->c->m->h;
    tern_status *st = &e->status[i_thread % 64];
    float *x = e->c->x + (size_t)i_item * (size_t)h->n_embd;
    int32_t id = e->c->ids[i_item];
    if (*st == TERN_OK)
        *st = tn_source_read(e->c->src, -1, TN_W_EMBD, id, id + 1, x, &e->error[i_thread % 64]);
    for (int32_t j = 0; j < h->n_embd && h->embd_scale != 1.0f; j++) x[j] *= h->embd_scale;
}

tern_status tn_corpus_open(tn_corpus *c, tern_error *err) {
    tn_ctx *ctx = c->m->ctx;
    c->pos = tn_alloc(ctx, TN_MEM_OTHER, (size_t)c->window, sizeof *c->pos);
    c->x = tn_alloc(ctx, TN_MEM_OTHER, c->n_tok * (size_t)c->m->h.n_embd, sizeof *c->x);
    embedding *e = tn_calloc(ctx, TN_MEM_OTHER, 1, sizeof *e);
    tern_status st =
        c->pos && c->x && e ? TERN_OK : tn_fail(err, TERN_E_MEMORY, "no memory for the calibration corpus");
    if (st == TERN_OK)
        st = tn_state_open(ctx, &c->m->program, &c->m->h, c->window, TN_KV_F32, &c->state, err);
    if (st == TERN_OK)
        st = tn_acts_open(ctx, c->m, c->window, c->state.kv.cap_tok, tn_pool_size(c->pool), &c->acts, err);
    if (st == TERN_OK) {
        for (int32_t i = 0; i < c->window; i++) c->pos[i] = i;
        e->c = c;
        tn_pool_for(c->pool, (int)c->n_tok, embed_token, e);
        for (int i = 0; i < 64 && st == TERN_OK; i++) {
            st = e->status[i];
            if (st != TERN_OK && err) *err = e->error[i];
        }
        tn_source_release(c->src, -1);
    }
    tn_free(ctx, e);
    if (st != TERN_OK) tn_corpus_close(c);
    return st;
}

void tn_corpus_close(tn_corpus *c) {
    if (!c->m) return;
    tn_state_close(&c->state);
    if (c->acts.ctx) tn_acts_close(&c->acts);
    tn_free(c->m->ctx, c->pos);
    tn_free(c->m->ctx, c->x);
    *c = (tn_corpus){0};
}

tern_status tn_corpus_begin_layer(tn_corpus *c, int layer, tern_error *err) {
    return tn_model_load_layer(c->m, c->pool, c->src, layer, err);
}

void tn_corpus_pass(tn_corpus *c, int layer, const tn_forward_hooks *hooks, bool keep) {
    size_t e = (size_t)c->m->h.n_embd;
    for (size_t at = 0; at < c->n_tok; at += (size_t)c->window) {
        int32_t n = c->n_tok - at < (size_t)c->window ? (int32_t)(c->n_tok - at) : c->window;
        tn_rows r = {.h = &c->m->h,
                     .kern = c->kern,
                     .kv = &c->state.kv,
                     .conv = tn_state_conv(&c->state),
                     .delta = tn_state_delta(&c->state),
                     .n_rows = n,
                     .pos = c->pos,
                     .slot = c->pos,
                     .tree_base = -1};
        tn_forward_begin(&r, &c->acts, false);
        memcpy(c->acts.buf[TN_BUF_X], c->x + at * e, (size_t)n * e * sizeof *c->x);
        tn_forward_layer(c->m, c->pool, &r, &c->acts, layer, hooks);
        if (keep) memcpy(c->x + at * e, c->acts.buf[TN_BUF_X], (size_t)n * e * sizeof *c->x);
    }
}

void tn_corpus_end_layer(tn_corpus *c, int layer) {
    tn_model_drop_layer(c->m, layer);
    tn_source_release(c->src, layer);
}
