#include "documents/embed.h"

#include "base/status.h"
#include "session/session.h"

#include <stdlib.h>

struct tn_embedding {
    const tern_engine *e;
    tern_session *s;
    int32_t *ids; /* [n_ctx]: a longer text is cut */
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
