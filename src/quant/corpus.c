#include "quant/corpus.h"

#include "base/status.h"

#include <math.h>
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
    const size_t width = (size_t)tn_residual_width(h);
    float *x = e->c->x + (size_t)i_item * width;
    int32_t id = e->c->ids[i_item];
    if (*st == TERN_OK)
        *st = tn_source_read(e->c->src, -1, TN_W_EMBD, id, id + 1, x, &e->error[i_thread % 64]);
    for (int32_t j = 0; j < h->n_embd && h->embd_scale != 1.0f; j++) x[j] *= h->embd_scale;
    for (size_t j = (size_t)h->n_embd; j < width; j++) x[j] = 0; /* streams that the first layer begins */
}

/* ---- what layers read besides the residual ----------------------------------------------------------- */

static bool is_shared(const tn_hparams *h, int32_t layer) {
    bool any = false;
    for (int32_t l = h->n_layers - h->n_kv_shared; l < h->n_layers && !any; l++)
        any = tn_layer_kv(h, l) == layer;
    return any;
}

/* Data of a window kept for the layers. */
static size_t kept_before(const tn_corpus *c, int32_t layer) {
    const struct tn_kv_layer *kv = c->state.kv.layers;
    size_t n = 0;
    for (int32_t l = 0; l < layer; l++)
        if (is_shared(&c->m->h, l)) n += 2 * (kv[c->state.kv.index[l] + 1].at - kv[c->state.kv.index[l]].at);
    return n;
}

/* Index of the keys and values of the window that begins at token `at`, of a layer that others share. Windows
 * of different parts of x begin at multiples of the window after the part's beginning, so indices are
 * unique. */
static uint8_t *kept_at(const tn_corpus *c, int32_t layer, size_t at) {
    size_t i = (at + (size_t)c->window - 1) / (size_t)c->window;
    return c->kept + i * c->kept_bytes + kept_before(c, layer);
}

static void keep_kv(const tn_corpus *c, int32_t layer, size_t at, bool back) {
    const tn_kv *kv = &c->state.kv;
    int32_t i = kv->index[layer];
    size_t n = kv->layers[i + 1].at - kv->layers[i].at;
    uint8_t *kept = kept_at(c, layer, at), *k = kv->k + kv->layers[i].at, *v = kv->v + kv->layers[i].at;
    memcpy(back ? k : kept, back ? kept : k, n);
    memcpy(back ? v : kept + n, back ? kept + n : v, n);
}

static tern_status open_kept(tn_corpus *c, tern_error *err) {
    const tn_hparams *h = &c->m->h;
    if (!h->n_kv_shared) return TERN_OK;
    c->kept_bytes = kept_before(c, h->n_layers);
    c->kept = tn_alloc(c->m->ctx, TN_MEM_OTHER, c->n_tok / (size_t)c->window + 2, c->kept_bytes);
    TN_FAIL_IF(!c->kept, err, TERN_E_MEMORY, "no memory for keys and values that layers share");
    return TERN_OK;
}

/* The second embedding of a token. */
static tern_status read_layers(const tn_corpus *c, size_t i, float *out, tern_error *err) {
    const tn_hparams *h = &c->m->h;
    const float scale = sqrtf((float)h->n_ple);
    TN_TRY(tn_source_read(c->src, -1, TN_W_PLE_EMBD, c->ids[i], c->ids[i] + 1, out, err));
    for (int32_t j = 0; j < h->n_layers * h->n_ple; j++) out[j] *= scale;
    return TERN_OK;
}

static tern_status open_embeddings(tn_corpus *c, tern_error *err) {
    const tn_hparams *h = &c->m->h;
    size_t e = (size_t)h->n_embd, width = (size_t)tn_residual_width(h);
    if (h->delta.wkv) {
        c->v_first = tn_calloc(c->m->ctx, TN_MEM_OTHER, c->n_tok, e * sizeof *c->v_first);
        TN_FAIL_IF(!c->v_first, err, TERN_E_MEMORY, "no memory for the first layer's values");
    }
    if (!h->n_ple) return TERN_OK;
    c->emb = tn_alloc(c->m->ctx, TN_MEM_OTHER, c->n_tok, e * sizeof *c->emb);
    TN_FAIL_IF(!c->emb, err, TERN_E_MEMORY, "no memory for the calibration corpus");
    for (size_t i = 0; i < c->n_tok; i++) memcpy(c->emb + i * e, c->x + i * width, e * sizeof *c->emb);
    for (size_t i = 0; i < c->n_tok;
         i++) /* makes sure that they are readable: a pass could not report an error */
        TN_TRY(read_layers(c, i, c->acts.buf[TN_BUF_LAYERS], err));
    return TERN_OK;
}

/* The input of a layer for the rows from token `at` on. */
static void begin_window(tn_corpus *c, int32_t layer, size_t at, int32_t n) {
    const tn_hparams *h = &c->m->h;
    size_t e = (size_t)h->n_embd, all = (size_t)h->n_layers * (size_t)h->n_ple,
           width = (size_t)tn_residual_width(h);
    int32_t from = tn_layer_attends(h, layer) ? tn_layer_kv(h, layer) : layer;
    memcpy(c->acts.buf[TN_BUF_X], c->all + at * width, (size_t)n * width * sizeof *c->all);
    if (from != layer) keep_kv(c, from, at, true);
    if (c->v_first && layer)
        memcpy(c->acts.buf[TN_BUF_V_FIRST], c->v_first + at * e, (size_t)n * e * sizeof *c->v_first);
    if (!h->n_ple) return;
    memcpy(c->acts.buf[TN_BUF_EMB], c->emb + at * e, (size_t)n * e * sizeof *c->emb);
    for (int32_t i = 0; i < n; i++) {
        float *row = c->acts.buf[TN_BUF_LAYERS] + (size_t)i * all;
        tern_error none;
        if (read_layers(c, at + (size_t)i, row, &none) != TERN_OK) memset(row, 0, all * sizeof *row);
    }
}

void tn_corpus_copy(tn_corpus *c, size_t from, size_t to, size_t n) {
    const tn_hparams *h = &c->m->h;
    size_t e = (size_t)tn_residual_width(h), w = (size_t)c->window;
    memcpy(c->all + to * e, c->all + from * e, n * e * sizeof *c->all);
    if (c->v_first) memcpy(c->v_first + to * e, c->v_first + from * e, n * e * sizeof *c->v_first);
    for (size_t at = 0; c->kept && at < n; at += w)
        memcpy(kept_at(c, 0, to + at), kept_at(c, 0, from + at), c->kept_bytes);
}

/* ---- life -------------------------------------------------------------------------------------------- */

tern_status tn_corpus_open(tn_corpus *c, tern_error *err) {
    tn_ctx *ctx = c->m->ctx;
    c->pos = tn_alloc(ctx, TN_MEM_OTHER, (size_t)c->window, sizeof *c->pos);
    c->x = tn_alloc(ctx, TN_MEM_OTHER, c->n_tok * (size_t)tn_residual_width(&c->m->h), sizeof *c->x);
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
        c->all = c->x;
        if (st == TERN_OK) st = open_embeddings(c, err);
        if (st == TERN_OK) st = open_kept(c, err);
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
    tn_free(c->m->ctx, c->emb);
    tn_free(c->m->ctx, c->kept);
    tn_free(c->m->ctx, c->v_first);
    *c = (tn_corpus){0};
}

tern_status tn_corpus_begin_layer(tn_corpus *c, int layer, tern_error *err) {
    return tn_model_load_layer(c->m, c->pool, c->src, layer, err);
}

void tn_corpus_pass(tn_corpus *c, int layer, const tn_forward_hooks *hooks, bool keep) {
    size_t e = (size_t)tn_residual_width(&c->m->h);
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
        size_t first = (size_t)(c->x - c->all) / e + at;
        begin_window(c, layer, first, n);
        tn_forward_layer(c->m, c->pool, &r, &c->acts, layer, hooks);
        if (is_shared(&c->m->h, layer)) keep_kv(c, layer, first, false);
        if (c->v_first && !layer)
            memcpy(c->v_first + first * e, c->acts.buf[TN_BUF_V_FIRST], (size_t)n * e * sizeof *c->v_first);
        if (keep) memcpy(c->x + at * e, c->acts.buf[TN_BUF_X], (size_t)n * e * sizeof *c->x);
    }
}

void tn_corpus_end_layer(tn_corpus *c, int layer) {
    tn_model_drop_layer(c->m, layer);
    tn_source_release(c->src, layer);
}
