#include "cli/embedding.h"

#include "cli/args.h"

#include "base/status.h"

#include <stdlib.h>
#include <string.h>

tern_status cli_embedding_open(const char *model, bool mean, embedding *out, tern_error *err) {
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
    if (st == TERN_OK) st = tn_embedding_open(out->e, out->path, mean, &out->v, &out->as, err);
    if (st != TERN_OK) cli_embedding_close(out);
    return st;
}

tern_status cli_embedding_open_noted(const tn_vectors_info *info, embedding *out, tern_error *err) {
    tern_error why;
    if (cli_embedding_open(info->model, info->mean, out, &why) != TERN_OK)
        return tn_fail(
            err, why.code,
            "the index has vectors, but not their model: %s (tern ask --words does without; tern rag "
            "add --embed MODEL PATH makes others, --embed none drops them)",
            why.message);
    if (out->as.fingerprint == info->fingerprint && out->as.n == info->n) return TERN_OK;
    cli_embedding_close(out);
    return tn_fail(
        err, TERN_E_INVALID,
        "%s is not the model any more that made the index's vectors (tern rag add --embed MODEL PATH "
        "makes others; tern ask --words does without)",
        info->model);
}

void cli_embedding_close(embedding *x) {
    tn_embedding_close(&x->v);
    tern_engine_close(&x->e);
    free(x->path);
    memset(x, 0, sizeof *x);
}
