/* A text as a vector: the state after the layers, without lm_head. */
#include "base/status.h"
#include "session/embed.h"
#include "session/session.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct sum {
    float *out;
    size_t n;
} sum;

static void on_hidden(void *user, size_t i, const float *x) {
    sum *t = user;
    (void)i;
    for (size_t k = 0; k < t->n; k++) t->out[k] += x[k];
}

tern_status tern_session_embed(tern_session *s, const int32_t *ids, size_t n, bool mean, float *out,
                               size_t cap, tern_error *err) {
    TN_FAIL_IF(!s || !out, err, TERN_E_INVALID, "an embedding needs a session and a place for the vector");
    TN_FAIL_IF(!n || !ids, err, TERN_E_INVALID, "a text without tokens has no embedding");
    size_t n_embd = (size_t)s->e->model->h.n_embd;
    TN_FAIL_IF(cap < n_embd, err, TERN_E_LIMIT, "an embedding has %zu numbers, there is room for %zu", n_embd,
               cap);
    sum t = {out, n_embd};
    float *row = tn_alloc(&s->e->ctx, TN_MEM_ACTIVATIONS, n_embd, sizeof *row);
    TN_FAIL_IF(!row, err, TERN_E_MEMORY, "no memory for an embedding");
    memset(out, 0, n_embd * sizeof *out);
    tn_session_truncate(s, 0);
    const tn_scorer scorer = {.first = mean ? 0 : n - 1, .user = &t, .on_hidden = on_hidden, .row = row};
    tern_status st = tn_session_append(s, ids, n, &scorer, err);
    tn_free(&s->e->ctx, row);
    TN_TRY(st);
    double square = 0;
    for (size_t k = 0; k < n_embd; k++) square += (double)out[k] * (double)out[k];
    float scale = square > 0 ? (float)(1 / sqrt(square)) : 0;
    for (size_t k = 0; k < n_embd; k++) out[k] *= scale;
    return TERN_OK;
}

/* ---- in the form of an index of documents ----------------------------------------------------------- */

struct tn_embedding {
    const tern_engine *e;
    tern_session *s;
    int32_t *ids; /* [n_ctx]: longer texts are cut */
    size_t n_ctx, n_embd;
    bool mean;
};

static tern_status embed_text(void *user, const char *text, size_t n_bytes, float *out, tern_error *err) {
    tn_embedding *v = user;
    size_t n = 0;
    tern_status st = tern_tokenize(v->e, text, n_bytes, true, false, v->ids, v->n_ctx, &n, err);
    if (st == TERN_E_LIMIT && n > v->n_ctx) n = v->n_ctx;
    else TN_TRY(st);
    return tern_session_embed(v->s, v->ids, n, v->mean, out, v->n_embd, err);
}

tern_status tn_embedding_open(tern_engine *e, const char *model, bool mean, tn_embedding **out,
                              tn_embedder *as, tern_error *err) {
    tern_session_options so;
    tern_session_options_defaults(&so);
    tn_embedding *v = calloc(1, sizeof *v);
    *out = NULL;
    TN_FAIL_IF(!v, err, TERN_E_MEMORY, "no memory for embeddings");
    v->e = e;
    v->mean = mean;
    v->n_embd = (size_t)e->model->h.n_embd;
    tern_status st = tern_session_open(e, &so, &v->s, err);
    if (st == TERN_OK) {
        v->n_ctx = (size_t)tern_session_capacity(v->s);
        v->ids = malloc(v->n_ctx * sizeof *v->ids);
        if (!v->ids) st = tn_fail(err, TERN_E_MEMORY, "no memory for embeddings");
    }
    if (st != TERN_OK) {
        tn_embedding_close(&v);
        return st;
    }
    *out = v;
    *as = (tn_embedder){.model = model,
                        .fingerprint = e->model->fingerprint ^ tn_lora_mix_id(&v->s->mix),
                        .n = e->model->h.n_embd,
                        .mean = mean,
                        .embed = embed_text,
                        .user = v};
    return TERN_OK;
}

void tn_embedding_close(tn_embedding **pv) {
    tn_embedding *v = *pv;
    if (!v) return;
    *pv = NULL;
    tern_session_close(&v->s);
    free(v->ids);
    free(v);
}
