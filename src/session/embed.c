/* A text as a vector, or as a score: what the layers make of it, without lm_head. */
#include "session/session.h"

#include "base/status.h"

#include <math.h>
#include <string.h>

typedef struct sum {
    float *out;
    size_t n;
    size_t only; /* the row that counts; SIZE_MAX: all */
} sum;

static void on_hidden(void *user, size_t i, const float *x) {
    sum *t = user;
    for (size_t k = 0; (t->only == SIZE_MAX || t->only == i) && k < t->n; k++) t->out[k] += x[k];
}

/* How rows become one, where the caller leaves it to the file. A scored text is read at its first row, at that which
 * has seen all, or as the mean of all. */
static tn_pooling pooling_of(const tn_hparams *h) {
    if (h->pooling == TN_POOL_MEAN || h->pooling == TN_POOL_FIRST || h->pooling == TN_POOL_LAST)
        return h->pooling;
    if (!h->bidirectional) return TN_POOL_LAST;
    return h->pooling == TN_POOL_RANK && !h->score_mean ? TN_POOL_FIRST : TN_POOL_MEAN;
}

/* out[n_out] = w x + b. */
static void product(const float *w, const float *b, const float *x, size_t n, size_t n_out, float *out) {
    for (size_t i = 0; i < n_out; i++) {
        double sum = b ? (double)b[i] : 0;
        for (size_t k = 0; k < n; k++) sum += (double)w[i * n + k] * (double)x[k];
        out[i] = (float)sum;
    }
}

/* The sum of the rows that count, or the one, in out [n_embd]; a mean is as long as a sum, after all is done. */
static tern_status pooled(tern_session *s, const int32_t *ids, size_t n, tn_pooling by, float *out,
                          tern_error *err) {
    size_t n_embd = (size_t)s->e->model->h.n_embd;
    sum t = {out, n_embd, by == TN_POOL_MEAN ? SIZE_MAX : by == TN_POOL_FIRST ? 0 : n - 1};
    float *row = tn_alloc(&s->e->ctx, TN_MEM_ACTIVATIONS, n_embd, sizeof *row);
    TN_FAIL_IF(!row, err, TERN_E_MEMORY, "no memory for an embedding");
    memset(out, 0, n_embd * sizeof *out);
    tn_session_truncate(s, 0);
    const tn_scorer scorer = {
        .first = by == TN_POOL_LAST ? n - 1 : 0, .user = &t, .on_hidden = on_hidden, .row = row};
    tern_status st = tn_session_append(s, ids, n, &scorer, err);
    tn_free(&s->e->ctx, row);
    return st;
}

static void keep_row(void *user, size_t i, const float *x) {
    const sum *t = user;
    memcpy(t->out + i * t->n, x, t->n * sizeof *x);
}

tern_status tn_session_embed_rows(tern_session *s, const int32_t *ids, size_t n, float *out,
                                  tern_error *err) {
    const tn_hparams *h = &s->e->model->h;
    sum t = {out, (size_t)h->n_embd, SIZE_MAX};
    TN_FAIL_IF(!n, err, TERN_E_INVALID, "a text without tokens has no vectors");
    TN_FAIL_IF(h->pooling == TN_POOL_RANK, err, TERN_E_UNSUPPORTED,
               "this model scores how well a text answers a question, and makes no vectors");
    float *row = tn_alloc(&s->e->ctx, TN_MEM_ACTIVATIONS, t.n, sizeof *row);
    TN_FAIL_IF(!row, err, TERN_E_MEMORY, "no memory for the vectors of %zu tokens", n);
    tn_session_truncate(s, 0);
    const tn_scorer scorer = {.user = &t, .on_hidden = keep_row, .row = row};
    tern_status st = tn_session_append(s, ids, n, &scorer, err);
    tn_free(&s->e->ctx, row);
    return st;
}

/* The products after pooling, where the model has them; `most` is room for what lies between. */
static void through_dense(const tn_model *m, float *v, float *between) {
    const tn_hparams *h = &m->h;
    size_t n = (size_t)h->n_embd, k = (size_t)h->n_between;
    if (!k) return;
    product(tn_model_vector(m, h->n_layers - 1, TN_W_DENSE_1), NULL, v, n, k, between);
    product(tn_model_vector(m, h->n_layers - 1, TN_W_DENSE_2), NULL, between, k, n, v);
}

tern_status tern_session_embed(tern_session *s, const int32_t *ids, size_t n, bool mean, float *out,
                               size_t cap, tern_error *err) {
    TN_FAIL_IF(!s || !out, err, TERN_E_INVALID, "an embedding needs a session and a place for the vector");
    TN_FAIL_IF(!n || !ids, err, TERN_E_INVALID, "a text without tokens has no embedding");
    const tn_hparams *h = &s->e->model->h;
    size_t n_embd = (size_t)h->n_embd;
    TN_FAIL_IF(cap < n_embd, err, TERN_E_LIMIT, "an embedding has %zu numbers, there is room for %zu", n_embd,
               cap);
    TN_FAIL_IF(h->pooling == TN_POOL_RANK, err, TERN_E_UNSUPPORTED,
               "this model scores how well a text answers a question, and makes no vectors");
    float *between = tn_alloc(&s->e->ctx, TN_MEM_ACTIVATIONS, (size_t)h->n_between + 1, sizeof *between);
    TN_FAIL_IF(!between, err, TERN_E_MEMORY, "no memory for an embedding");
    tern_status st = pooled(s, ids, n, mean ? TN_POOL_MEAN : pooling_of(h), out, err);
    if (st == TERN_OK) through_dense(s->e->model, out, between);
    tn_free(&s->e->ctx, between);
    TN_TRY(st);
    double square = 0;
    for (size_t k = 0; k < n_embd; k++) square += (double)out[k] * (double)out[k];
    float scale = square > 0 ? (float)(1 / sqrt(square)) : 0;
    for (size_t k = 0; k < n_embd; k++) out[k] *= scale;
    return TERN_OK;
}

/* What lies in front of the scores: v becomes act(w v + b), normed where the model does so. */
static void score_layer(const tn_model *m, float *v, float *layer) {
    const tn_hparams *h = &m->h;
    size_t n = (size_t)h->n_embd;
    int32_t last = h->n_layers - 1;
    double mean = 0, square = 0;
    product(tn_model_vector(m, last, TN_W_SCORE_IN), tn_model_vector(m, last, TN_W_SCORE_IN_B), v, n, n,
            layer);
    for (size_t i = 0; i < n; i++) {
        const double x = (double)layer[i];
        v[i] = h->score_gelu ? (float)(x * 0.5 * (1 + erf(x * sqrt(0.5)))) : tanhf(layer[i]);
        mean += (double)v[i] / (double)n;
    }
    if (!h->score_norm) return;
    const float *w = tn_model_vector(m, last, TN_W_SCORE_NORM);
    for (size_t i = 0; i < n; i++) square += ((double)v[i] - mean) * ((double)v[i] - mean);
    const double scale = 1 / sqrt(square / (double)n + (double)h->norm_eps);
    for (size_t i = 0; i < n; i++) v[i] = (float)(((double)v[i] - mean) * scale * (double)w[i]);
}

/* The first score; where there are several, of a model that also writes, its share. */
static float score_of(const tn_model *m, float *v, float *layer, float *scores) {
    const tn_hparams *h = &m->h;
    size_t n = (size_t)h->n_embd, n_scores = (size_t)h->n_scores;
    int32_t last = h->n_layers - 1;
    if (h->score_layer) score_layer(m, v, layer);
    product(tn_model_vector(m, last, TN_W_SCORE), tn_model_vector(m, last, TN_W_SCORE_B), v, n, n_scores,
            scores);
    if (h->bidirectional || n_scores == 1) return h->score_tanh ? tanhf(scores[0]) : scores[0];
    double all = 0;
    for (size_t i = 0; i < n_scores; i++) all += exp((double)scores[i] - (double)scores[0]);
    return (float)(1 / all);
}

tern_status tern_session_rank(tern_session *s, const int32_t *ids, size_t n, float *score, tern_error *err) {
    TN_FAIL_IF(!s || !score, err, TERN_E_INVALID, "a score needs a session and a place for it");
    TN_FAIL_IF(!n || !ids, err, TERN_E_INVALID, "a text without tokens has no score");
    const tn_hparams *h = &s->e->model->h;
    TN_FAIL_IF(h->pooling != TN_POOL_RANK || !h->n_scores, err, TERN_E_UNSUPPORTED,
               "this model does not score texts: that takes a reranker");
    size_t n_embd = (size_t)h->n_embd;
    float *v = tn_alloc(&s->e->ctx, TN_MEM_ACTIVATIONS, 2 * n_embd + (size_t)h->n_scores, sizeof *v);
    TN_FAIL_IF(!v, err, TERN_E_MEMORY, "no memory for a score");
    tern_status st = pooled(s, ids, n, pooling_of(h), v, err);
    for (size_t k = 0; h->score_mean && k < n_embd; k++) v[k] /= (float)n; /* a sum until now */
    if (st == TERN_OK) *score = score_of(s->e->model, v, v + n_embd, v + 2 * n_embd);
    tn_free(&s->e->ctx, v);
    return st;
}
