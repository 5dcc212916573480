#include "documents/rerank.h"

#include "base/status.h"
#include "session/session.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

int32_t tn_rag_reach(const tn_reranker *r, int32_t k) {
    return r && k < TN_RAG_RERANKED ? TN_RAG_RERANKED : k;
}

/* Few, and equal ones keep their order: by insertion. */
static void sort(tn_rag_hit *hits, int32_t n) {
    for (int32_t i = 1; i < n; i++) {
        const tn_rag_hit h = hits[i];
        int32_t at = i;
        for (; at && hits[at - 1].relevance < h.relevance; at--) hits[at] = hits[at - 1];
        hits[at] = h;
    }
}

tern_status tn_rag_rerank(tn_ctx *ctx, const tn_reranker *r, const char *question, int32_t k,
                          tn_rag_hit *hits, int32_t *n, tern_error *err) {
    float scores[TN_RAG_MAX_K];
    assert(*n <= TN_RAG_MAX_K);
    if (!r) return TERN_OK;
    for (int32_t i = 0; i < *n; i++) TN_TRY(r->score(r->user, question, hits[i].text, &scores[i], err));
    for (int32_t i = 0; i < *n; i++) {
        hits[i].relevance = scores[i];
        hits[i].reranked = true;
        hits[i].fits |= scores[i] > r->yes;
    }
    sort(hits, *n);
    for (; *n > k; (*n)--) {
        tn_free(ctx, hits[*n - 1].path);
        tn_free(ctx, hits[*n - 1].text);
    }
    return TERN_OK;
}

/* ---- by a session ------------------------------------------------------------------------------------ */

struct tn_reranking {
    const tern_engine *e;
    tern_session *s;
    int32_t *ids; /* [n_ctx] */
    size_t n_ctx;
};

/* The longest beginning of two[which] with which both make at most cap tokens, in n[which]; by halves. */
static tern_status cut(tn_reranking *v, const char *const two[2], size_t n[2], int which, size_t cap,
                       size_t *n_ids, tern_error *err) {
    const tn_tokenizer *t = v->e->model->tokenizer;
    size_t fits = 0, too_long = n[which];
    tern_status st = tn_tokenize_pair(t, two, n, v->ids, cap, n_ids, err);
    if (st != TERN_E_LIMIT) return st;
    while (too_long - fits > 1) {
        size_t middle = n[which] = fits + (too_long - fits) / 2;
        while (n[which] && (two[which][n[which]] & 0xc0) == 0x80) n[which]--;
        st = tn_tokenize_pair(t, two, n, v->ids, cap, n_ids, err);
        if (st == TERN_E_LIMIT) too_long = middle;
        else fits = middle;
        if (st != TERN_E_LIMIT) TN_TRY(st);
    }
    for (n[which] = fits; n[which] && (two[which][n[which]] & 0xc0) == 0x80;) n[which]--;
    return tn_tokenize_pair(t, two, n, v->ids, cap, n_ids, err);
}

/* The question and a text as the model reads both. */
static tern_status both(tn_reranking *v, const char *question, const char *text, size_t *n_ids,
                        tern_error *err) {
    const char *const two[2] = {question, text};
    size_t n[2] = {strlen(question), 0};
    TN_TRY(cut(v, two, n, 0, v->n_ctx / 2, n_ids, err));
    n[1] = strlen(text);
    return cut(v, two, n, 1, v->n_ctx, n_ids, err);
}

static tern_status score(void *user, const char *question, const char *text, float *out, tern_error *err) {
    tn_reranking *v = user;
    size_t n_ids;
    TN_TRY(both(v, question, text, &n_ids, err));
    return tern_session_rank(v->s, v->ids, n_ids, out, err);
}

tern_status tn_reranking_open(tern_engine *e, tn_reranking **out, tn_reranker *as, tern_error *err) {
    const tn_hparams *h = &e->model->h;
    tern_session_options so;
    *out = NULL;
    TN_FAIL_IF(h->pooling != TN_POOL_RANK || !h->n_scores, err, TERN_E_UNSUPPORTED,
               "this model does not score texts: that takes a reranker");
    tern_session_options_defaults(&so);
    tn_reranking *v = calloc(1, sizeof *v);
    TN_FAIL_IF(!v, err, TERN_E_MEMORY, "no memory for scores");
    v->e = e;
    tern_status st = tern_session_open(e, &so, &v->s, err);
    if (st == TERN_OK) {
        v->n_ctx = (size_t)tern_session_capacity(v->s);
        v->ids = malloc(v->n_ctx * sizeof *v->ids);
        if (!v->ids) st = tn_fail(err, TERN_E_MEMORY, "no memory for scores");
    }
    if (st != TERN_OK) {
        tn_reranking_close(&v);
        return st;
    }
    *out = v;
    /* a share of several scores, as session/embed.c has it, or the logarithm of odds */
    *as = (tn_reranker){.score = score, .user = v, .yes = h->bidirectional || h->n_scores == 1 ? 0 : 0.5f};
    return TERN_OK;
}

void tn_reranking_close(tn_reranking **pv) {
    tn_reranking *v = *pv;
    if (!v) return;
    *pv = NULL;
    tern_session_close(&v->s);
    free(v->ids);
    free(v);
}
