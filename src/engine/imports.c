#include "engine/imports.h"

#include "base/status.h"
#include "kernels/gemm_f32.h"
#include "model/blocks.h"
#include "model/source.h"
#include "quant/pack.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static tern_status open_float(tern_engine *e, const char *path, const tern_options *o, tern_error *err) {
    const char *scheme_name = o->scheme;
    tn_float_scheme scheme = TN_FLOAT;
    bool int8 =
        scheme_name && !strcmp(scheme_name, "int8"); /* blocks too, made of floats where the file has them */
    TN_FAIL_IF(scheme_name && !int8 && !tn_float_scheme_parse(scheme_name, &scheme), err, TERN_E_INVALID,
               "scheme '%s' cannot run on a float model: there are float, blocks, int8, llm-int8, group-w8a8 "
               "(tern pack makes packages of the others)",
               scheme_name);
    tn_source *src = NULL;
    tern_status st = tn_source_open(&e->ctx, path, &src, err);
    if (st == TERN_OK && !scheme_name && tn_blocks_in_source(src)) scheme = TN_FLOAT_BLOCKS;
    if (st == TERN_OK && scheme == TN_FLOAT_LLM_INT8 && tn_source_hparams(src)->parallel_block) {
        st = tn_fail(err, TERN_E_UNSUPPORTED, "%s: the llm-int8 baseline does not cover parallel blocks",
                     path);
    }
    if (st == TERN_OK)
        st = int8 ? tn_model_load_q8(&e->ctx, e->pool, src, &e->model, err)
                  : tn_model_load(&e->ctx, e->pool, src, scheme, &e->model, err);
    tn_source_close(&src);
    return st == TERN_OK ? tn_engine_configure_file(e, o, err) : st;
}

/* A float model for which a device was named: its static INT8 graphs come from a package that is made here
 * and deleted with the engine. */
static tern_status open_packed(tern_engine *e, const char *path, const tern_options *o, int n_threads,
                               tern_error *err) {
    const char *dir = getenv("TMPDIR");
    char name[512];
    tn_pack_options p;
    tn_pack_defaults(&p);
    p.n_threads = n_threads;
    for (int s = 0; o->scheme && s <= TN_N_SCHEMES; s++) {
        TN_FAIL_IF(s == TN_N_SCHEMES, err, TERN_E_INVALID,
                   "scheme '%s' runs on no device: leave the device out, or take gram, edgeflow, llm-npu, "
                   "naive-w8a8 or smoothquant",
                   o->scheme);
        p.scheme = (tn_scheme)s;
        if (!strcmp(o->scheme, tn_scheme_name(p.scheme))) break;
    }
    TN_FAIL_IF(snprintf(name, sizeof name, "%s/tern-XXXXXX", dir && *dir ? dir : "/tmp") >= (int)sizeof name,
               err, TERN_E_INVALID, "TMPDIR is too long");
    int fd = mkstemp(name);
    TN_FAIL_IF(fd < 0, err, TERN_E_IO, "%s: cannot be made for the model's INT8 form: %s", name,
               strerror(errno));
    close(fd);
    tn_log(&e->ctx, TERN_LOG_INFO,
           "%s is packed for the device at every start; tern pack makes a package that stays", path);
    tern_status st = tn_pack(&e->ctx, path, name, &p, NULL, err);
    tn_pkg *pkg = NULL;
    if (st == TERN_OK) st = tn_pkg_open(&e->ctx, name, &pkg, err);
    unlink(name); /* its readers have it open */
    if (st == TERN_OK) st = tn_engine_open_package(e, name, &pkg, o, n_threads, err);
    tn_pkg_close(&pkg);
    tn_free(&e->ctx, e->profile_path); /* nothing stays of it */
    e->profile_path = NULL;
    return st;
}

tern_status tn_import_open(tern_engine *e, const char *path, const tern_options *o, int n_threads,
                           tern_error *err) {
    if (o->npu) return open_packed(e, path, o, n_threads, err);
    return open_float(e, path, o, err);
}

tern_status tn_import_estimate(tn_ctx *ctx, const char *path, const char *scheme_name, tn_hparams *h,
                               uint64_t *n_bytes, bool *blocks, tern_error *err) {
    tn_source *src;
    tn_float_scheme scheme = TN_FLOAT;
    bool int8 = scheme_name && !strcmp(scheme_name, "int8"),
         named = int8 || (scheme_name && tn_float_scheme_parse(scheme_name, &scheme));
    if (int8) scheme = TN_FLOAT_BLOCKS; /* floats are counted as they are stored: an upper bound */
    TN_TRY(tn_source_open(ctx, path, &src, err));
    *h = *tn_source_hparams(src);
    *n_bytes = 0;
    if (!named && tn_blocks_in_source(src)) scheme = TN_FLOAT_BLOCKS;
    for (int layer = -1; layer < h->n_layers + h->n_next; layer++)
        for (tn_role role = 0; role < TN_W_N_ROLES; role++)
            *n_bytes += tn_model_role_bytes(src, scheme, layer, role);
    *blocks = scheme == TN_FLOAT_BLOCKS;
    tn_source_close(&src);
    return TERN_OK;
}
