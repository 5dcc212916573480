/* A text as a vector: what the layers make of it, without lm_head. */
#include "session/session.h"

#include "base/status.h"

#include <math.h>
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
