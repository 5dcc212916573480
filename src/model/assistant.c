#include "model/assistant.h"

#include "base/status.h"
#include "model/blocks.h"

#include <assert.h>
#include <string.h>

/* The model's layer whose keys and values the assistant's reads; -1: there is none of its kind. */
static int32_t layer_of(const tn_hparams *assistant, int32_t layer, const tn_hparams *model) {
    const bool windowed = tn_layer_window(assistant, layer) > 0;
    for (int32_t i = model->n_layers - 1; i >= 0; i--)
        if (tn_layer_attends(model, i) && (tn_layer_window(model, i) > 0) == windowed) return i;
    return -1;
}

const char *tn_assistant_differs(const tn_hparams *assistant, const tn_hparams *model) {
    if (strncmp(model->arch, "gemma4", 6)) return "architecture";
    if (assistant->head.n_target != model->n_embd) return "width";
    if (assistant->n_vocab != model->n_vocab) return "vocabulary";
    for (int32_t i = 0; i < assistant->n_layers; i++) {
        const int32_t from = layer_of(assistant, i, model);
        if (from < 0) return "kinds of layers";
        if (tn_layer_d_head(assistant, i) != tn_layer_d_head(model, from)) return "head size";
        if (tn_layer_kv_heads(assistant, i) != tn_layer_kv_heads(model, from)) return "number of KV heads";
        if (tn_layer_window(assistant, i) != tn_layer_window(model, from)) return "window";
    }
    return NULL;
}

/* Values of the longest of what it reads and leaves. */
static size_t widest(const tn_hparams *h) {
    const size_t pair = 2 * (size_t)h->head.n_target, own = (size_t)h->n_embd;
    return pair > own ? pair : own;
}

tern_status tn_assistant_open(tn_ctx *ctx, const tn_model *m, const tn_hparams *model, const tn_kv *kv,
                              const tn_kernels *kern, tn_pool *pool, tn_assistant *out, tern_error *err) {
    const size_t wide = widest(&m->h);
    assert(!tn_assistant_differs(&m->h, model));
    *out = (tn_assistant){.ctx = ctx, .m = m, .kern = kern, .pool = pool, .kv = kv, .read = *kv};
    for (int32_t i = 0; i < m->h.n_layers; i++) out->read.index[i] = kv->index[layer_of(&m->h, i, model)];
    TN_TRY(tn_acts_open(ctx, m, 1, kv->cap_tok, tn_pool_size(pool), &out->acts, err));
    out->pair = tn_alloc(ctx, TN_MEM_ACTIVATIONS, wide, sizeof *out->pair);
    out->blocks = tn_alloc(ctx, TN_MEM_ACTIVATIONS, tn_blocks_acts(wide, 1), sizeof *out->blocks);
    TN_FAIL_IF(!out->pair || !out->blocks, err, TERN_E_MEMORY, "no memory to draft by an assistant");
    return TERN_OK;
}

void tn_assistant_close(tn_assistant *a) {
    if (!a->ctx) return;
    if (a->acts.ctx) tn_acts_close(&a->acts);
    tn_free(a->ctx, a->pair);
    tn_free(a->ctx, a->blocks);
    *a = (tn_assistant){0};
}

uint64_t tn_assistant_work_bytes(const tn_hparams *h, int32_t n_ctx, int n_threads) {
    const size_t target = (size_t)h->head.n_target, row = 12 * (size_t)h->n_embd + 2 * (size_t)h->n_ff +
                                                          2 * (size_t)h->n_heads * (size_t)h->d_head;
    return tn_blocks_acts(widest(h), 1) * sizeof(tn_blocks_act) +
           (widest(h) + 3 * target + row + (size_t)h->n_vocab +
            (size_t)n_threads * tn_rows_scratch(h, n_ctx)) *
               sizeof(float);
}

void tn_assistant_run(tn_assistant *a, int32_t n_tok, const float *embedding, const float *state,
                      float *logits, float *further) {
    static const uint64_t nothing =
        0; /* of a tree that begins at n_tok: a row sees what lies before that alone */
    const tn_hparams *h = &a->m->h;
    const tn_layer *first = &a->m->layers[0];
    const size_t target = (size_t)h->head.n_target, own = (size_t)h->n_embd;
    float *x = a->acts.buf[TN_BUF_X];
    assert(n_tok > 0 && n_tok <= a->kv->cap_tok);
    a->read.k = a->kv->k;
    a->read.v = a->kv->v;
    tn_rows r = {.h = h,
                 .kern = a->kern,
                 .kv = &a->read,
                 .n_rows = 1,
                 .pos = &n_tok,
                 .slot = &n_tok,
                 .tree_base = n_tok,
                 .tree_mask = &nothing,
                 .n_tree_words = 1};
    memcpy(a->pair, embedding, target * sizeof *a->pair);
    memcpy(a->pair + target, state, target * sizeof *a->pair);
    tn_linear_run(&first->linears[TN_W_NEXT_PROJ], a->kern, a->pool, a->pair, 2 * target, x, own, 1,
                  a->blocks);
    tn_forward_begin(&r, &a->acts, false);
    for (int32_t i = 0; i < h->n_layers; i++) tn_forward_layer(a->m, a->pool, &r, &a->acts, i, NULL);
    tn_forward_out_norm(a->m, a->kern, x, a->pair, 1);
    tn_forward_logits(a->m, a->pool, &r, &a->acts, 0, 1, logits);
    tn_linear_run(&first->linears[TN_W_NEXT_BACK], a->kern, a->pool, a->pair, own, further, target, 1,
                  a->blocks);
}
