/* What a job asks of its session that is no answer: a vector, a score, or a vector for each token. */
#include "server/queue.h"
#include "session/session.h"

#include <stdlib.h>

tern_status tn_job_embed(tn_job *j, tern_session *s, tern_error *err) {
    const tn_hparams *h = &s->e->model->h;
    const int32_t *ids = j->a.said.ids;
    const size_t n = j->a.said.n_ids, n_embd = (size_t)h->n_embd;
    tn_session_mix(s, &j->a.mix);
    if (h->pooling == TN_POOL_RANK) return tern_session_rank(s, ids, n, j->vector, err);
    if (j->pool != TN_POOL_NONE)
        return tern_session_embed(s, ids, n, j->pool == TN_POOL_MEAN, j->vector, n_embd, err);
    TN_FAIL_IF(n > TN_EMBED_NUMBERS / n_embd, err, TERN_E_LIMIT,
               "the input is too large: a vector for each of %zu tokens; at most %zu can be told", n,
               TN_EMBED_NUMBERS / n_embd);
    float *rows = realloc(j->vector, n * n_embd * sizeof *rows);
    TN_FAIL_IF(!rows, err, TERN_E_MEMORY, "no memory for the vectors of %zu tokens", n);
    j->vector = rows;
    return tn_session_embed_rows(s, ids, n, rows, err);
}
