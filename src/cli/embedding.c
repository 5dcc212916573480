#include "cli/embedding.h"

#include "cli/args.h"
#include "cli/output.h"

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
    bool (*is)(tn_ctx *ctx, const char *path); /* a model of the kind that is looked for */
    uint64_t n_bytes;                          /* of the smallest; 0: there is none */
} search;

static bool look_at(void *user, const tn_catalogue_entry *e) {
    search *s = user;
    if ((!s->n_bytes || e->n_bytes < s->n_bytes) && strlen(e->path) < s->cap && s->is(&s->ctx, e->path)) {
        snprintf(s->path, s->cap, "%s", e->path);
        s->n_bytes = e->n_bytes ? e->n_bytes : 1;
    }
    return true;
}

static bool at_hand(bool (*is)(tn_ctx *ctx, const char *path), char *path, size_t cap) {
    search s = {.path = path, .cap = cap, .is = is};
    tn_ctx_init(&s.ctx, NULL);
    tn_catalogue_each(look_at, &s);
    return s.n_bytes > 0;
}

bool cli_embedding_at_hand(char *path, size_t cap) { return at_hand(tn_file_embeds, path, cap); }

static tern_status open_model(const char *path, const char *scheme, tern_engine **out, tern_error *err) {
    model_args a;
    tern_hooks hooks;
    cli_model_args_defaults(&a, TN_IN_RUN);
    a.o.scheme = scheme;
    tern_hooks_defaults(&hooks);
    hooks.log = cli_log_line;
    a.o.hooks = &hooks;
    return tern_engine_open(path, &a.o, out, err);
}

tern_status cli_embedding_open(const char *model, const char *pooling, embedding *out, tern_error *err) {
    char found[MODEL_PATH_MAX];
    const char *path = cli_model_path(model, found);
    memset(out, 0, sizeof *out);
    tern_status st = open_model(path, NULL, &out->e, err);
    if (st == TERN_OK && !(out->path = realpath(path, NULL)))
        st = tn_fail(err, TERN_E_IO, "%s: it has no absolute path", path);
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

/* An encoder's products are in INT8, which takes half the time and hardly changes what comes first. */
static tern_status open_reranker(const char *model, reranking *out, tern_error *err) {
    tern_error why;
    char found[MODEL_PATH_MAX];
    const char *path = cli_model_path(model, found);
    tn_ctx ctx;
    tn_ctx_init(&ctx, NULL);
    TN_TRY(open_model(path, tn_file_reranks(&ctx, path) ? "int8" : NULL, &out->e, err));
    snprintf(out->path, sizeof out->path, "%s", path);
    tern_status st = tn_reranking_open(out->e, &out->v, &out->as, &why);
    if (st == TERN_OK) return st;
    cli_reranking_close(out);
    return tn_fail(err, st, "%s: %s", path, why.message);
}

tern_status cli_reranking_open(const char *model, reranking *out, tern_error *err) {
    char found[TN_VECTOR_PATH_MAX];
    tern_error why;
    memset(out, 0, sizeof *out);
    if (model) return strcmp(model, "none") ? open_reranker(model, out, err) : TERN_OK;
    if (at_hand(tn_file_reranks, found, sizeof found) && open_reranker(found, out, &why) != TERN_OK)
        fprintf(stderr, "tern: passages stay in the order in which they were found: %s\n",
                cli_shown(why.message));
    return TERN_OK;
}

void cli_reranking_close(reranking *x) {
    tn_reranking_close(&x->v);
    tern_engine_close(&x->e);
    memset(x, 0, sizeof *x);
}
