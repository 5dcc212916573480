#include "cli/embedding.h"

#include "cli/args.h"

#include "base/status.h"
#include "engine/engine.h"
#include "model/catalogue.h"
#include "model/folder_text.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct search {
    tn_ctx ctx;
    char *path;
    size_t cap;
    uint64_t n_bytes; /* of the smallest; 0: there is none */
} search;

static bool look_at(void *user, const tn_catalogue_entry *e) {
    search *s = user;
    if ((!s->n_bytes || e->n_bytes < s->n_bytes) && strlen(e->path) < s->cap &&
        tn_file_embeds(&s->ctx, e->path)) {
        snprintf(s->path, s->cap, "%s", e->path);
        s->n_bytes = e->n_bytes ? e->n_bytes : 1;
    }
    return true;
}

bool cli_embedding_at_hand(char *path, size_t cap) {
    search s = {.path = path, .cap = cap};
    tn_ctx_init(&s.ctx, NULL);
    tn_catalogue_each(look_at, &s);
    return s.n_bytes > 0;
}

tern_status cli_embedding_open(const char *model, const char *pooling, embedding *out, tern_error *err) {
    model_args a;
    tern_hooks hooks;
    cli_model_args_defaults(&a, TN_IN_RUN);
    a.model = model;
    cli_args_model_path(&a);
    tern_hooks_defaults(&hooks);
    hooks.log = cli_log_line;
    a.o.hooks = &hooks;
    memset(out, 0, sizeof *out);
    tern_status st = tern_engine_open(a.model, &a.o, &out->e, err);
    if (st == TERN_OK && !(out->path = realpath(a.model, NULL)))
        st = tn_fail(err, TERN_E_IO, "%s: it has no absolute path", a.model);
    if (st == TERN_OK) {
        const tn_hparams *h = &out->e->model->h;
        bool said = h->bidirectional || h->pooling > TN_POOL_NONE;
        bool mean = pooling ? !strcmp(pooling, "mean") : !said;
        st = tn_embedding_open(out->e, out->path, mean, &out->v, &out->as, err);
    }
    if (st != TERN_OK) cli_embedding_close(out);
    return st;
}

tern_status cli_embedding_open_noted(const tn_vectors_info *info, embedding *out, tern_error *err) {
    tern_error why;
    if (cli_embedding_open(info->model, info->mean ? "mean" : "last", out, &why) != TERN_OK)
        return tn_fail(
            err, why.code,
            "the index has vectors, but their model is gone: %s (tern ask --words searches without them; "
            "tern rag add --embed MODEL PATH makes new ones, --embed none removes them)",
            why.message);
    if (out->as.fingerprint == info->fingerprint && out->as.n == info->n) return TERN_OK;
    cli_embedding_close(out);
    return tn_fail(err, TERN_E_INVALID,
                   "%s has changed since it made the vectors of the index (tern rag add --embed MODEL PATH "
                   "makes new ones; tern ask --words searches without them)",
                   info->model);
}

void cli_embedding_close(embedding *x) {
    tn_embedding_close(&x->v);
    tern_engine_close(&x->e);
    free(x->path);
    memset(x, 0, sizeof *x);
}
