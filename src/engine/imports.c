#include "engine/imports.h"

#include "base/status.h"
#include "kernels/gemm_f32.h"
#include "model/blocks.h"
#include "model/file_experts.h"
#include "model/properties.h"
#include "model/source.h"
#include "model/streamed.h"
#include "package/tuned.h"
#include "quant/cache.h"
#include "quant/pack.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

/* Names the profile of a quantised file: by what times depend on, so that its content may change and nothing stale is
 * believed. Where there is no cache, there is no profile. */
static tern_status name_profile(tern_engine *e, const tn_source *src, int fd, tern_error *err) {
    const tn_hparams *h = tn_source_hparams(src);
    char folder[TN_CACHE_PATH];
    size_t n_properties;
    const tn_property *all = tn_properties(&n_properties);
    struct stat sb;
    XXH64_hash_t print = 0;
    for (size_t i = 0; i < n_properties; i++) {
        if (!tn_property_single(&all[i])) continue;
        const double v = tn_property_get(&all[i], h);
        print = XXH64(&v, sizeof v, print);
    }
    for (size_t i = 0; i < tn_source_n_tensors(src); i++) {
        const tn_tensor *t = tn_source_tensor_at(src, i);
        const uint64_t of[] = {t->dims[0], t->dims[1], (uint64_t)(t->packed ? t->packed->blocks : t->dtype)};
        print = XXH64(of, sizeof of, print);
    }
    if (!fstat(fd, &sb)) { /* how it is read fastest is a matter of its storage */
        const uint64_t device = (uint64_t)sb.st_dev;
        print = XXH64(&device, sizeof device, print);
    }
    if (tn_cache_profiles(folder, false, NULL) != TERN_OK) return TERN_OK;
    const size_t cap = strlen(folder) + 32;
    e->profile_path = tn_alloc(&e->ctx, TN_MEM_OTHER, cap, 1);
    TN_FAIL_IF(!e->profile_path, err, TERN_E_MEMORY, "no memory for a path");
    snprintf(e->profile_path, cap, "%s/%016" PRIx64 ".profile", folder, (uint64_t)print);
    return TERN_OK;
}

/* Opens a quantised file so that its weights are read while computing (EdgeFlow 4.2), if possible;
 * otherwise e->model stays NULL. */
static tern_status open_streamed(tern_engine *e, const tern_options *o, int fd, tn_source **src,
                                 tern_error *err) {
    tn_load_mode mode = TN_LOAD_STREAM;
    if (e->experts_bytes) return TERN_OK; /* these are read when they are chosen */
    tn_aio_options io;
    tn_aio_defaults(&io);
    if (!o->read && fd >= 0) tn_tuned_read(fd, e->profile_path, &io);
    TN_FAIL_IF(o->load && !tn_load_mode_parse(o->load, &mode), err, TERN_E_INVALID,
               "loading '%s' is unknown; there are stream, overlap, sequential, mmap", o->load);
    TN_FAIL_IF(o->read && !tn_aio_method_parse(o->read, &io), err, TERN_E_INVALID,
               "reading by '%s' is unknown; there are threads, threads-direct, uring, uring-direct", o->read);
    e->not_streamed = mode == TN_LOAD_SEQUENTIAL || mode == TN_LOAD_MMAP
                          ? "set load=stream reads it beside the work"
                          : tn_streamed_why_not(*src);
    if (e->not_streamed) return TERN_OK;
    TN_TRY(tn_streamed_open(&e->ctx, e->pool, src, &io, &e->model, err));
    if (!e->model) e->not_streamed = "too many of its matrices cannot be used where they lie";
    return mode == TN_LOAD_OVERLAP && e->model ? tn_model_need(e->model, TN_NEED_ALL, err) : TERN_OK;
}

static tern_status open_blocks(tern_engine *e, const char *path, const tern_options *o, int n_threads,
                               tn_source **src, tern_error *err) {
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    tn_engine_lanes(o, n_threads, e->n_lane_workers); /* times were measured with so many */
    tern_status st = name_profile(e, *src, fd, err);
    if (st == TERN_OK) st = open_streamed(e, o, fd, src, err);
    if (fd >= 0) close(fd);
    return st;
}

static tern_status open_float(tern_engine *e, const char *path, const tern_options *o, int n_threads,
                              tern_error *err) {
    const char *scheme_name = o->scheme;
    tn_float_scheme scheme = TN_FLOAT;
    bool int8 =
        scheme_name && !strcmp(scheme_name, "int8"); /* blocks too, made of floats where the file has them */
    TN_FAIL_IF(scheme_name && !int8 && !tn_float_scheme_parse(scheme_name, &scheme), err, TERN_E_INVALID,
               "scheme '%s' cannot run on a float model: there are float, blocks, int8, llm-int8, group-w8a8 "
               "(tern pack makes packages of the others)",
               scheme_name);
    tn_source *src = NULL;
    tern_status st = tn_source_open_weights(&e->ctx, path, &src, err);
    if (st == TERN_OK && !scheme_name && tn_blocks_in_source(src)) scheme = TN_FLOAT_BLOCKS;
    if (st == TERN_OK && scheme == TN_FLOAT_LLM_INT8 && tn_source_hparams(src)->parallel_block) {
        st = tn_fail(err, TERN_E_UNSUPPORTED, "%s: the llm-int8 baseline does not cover parallel blocks",
                     path);
    }
    if (st == TERN_OK && scheme == TN_FLOAT_BLOCKS) st = open_blocks(e, path, o, n_threads, &src, err);
    if (st == TERN_OK && src) st = tn_source_read_text(src, err);
    if (st == TERN_OK && e->experts_bytes) {
        st = tn_model_load_without_experts(&e->ctx, e->pool, src, &e->model, err);
        if (st == TERN_OK) st = tn_file_experts_open(e->model, e->pool, &src, e->experts_bytes, err);
    } else if (st == TERN_OK && !e->model)
        st = int8 ? tn_model_load_q8(&e->ctx, e->pool, src, &e->model, err)
                  : tn_model_load(&e->ctx, e->pool, src, scheme, &e->model, err);
    tn_source_close(&src);
    return st == TERN_OK ? tn_engine_configure_file(e, o, err) : st;
}

/* A float model with a named device: its static INT8 graphs come from a package that is made here and
 * deleted with the engine. */
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
    tn_free(&e->ctx, e->profile_path); /* nothing of it stays */
    e->profile_path = NULL;
    return st;
}

tern_status tn_import_open(tern_engine *e, const char *path, const tern_options *o, int n_threads,
                           tern_error *err) {
    if (o->npu) return open_packed(e, path, o, n_threads, err);
    return open_float(e, path, o, n_threads, err);
}

tern_status tn_import_estimate(tn_ctx *ctx, const char *path, const char *scheme_name, tn_hparams *h,
                               uint64_t *n_bytes, uint64_t *n_next_bytes, tn_experts_need *experts,
                               bool *blocks, tern_error *err) {
    tn_source *src;
    tn_float_scheme scheme = TN_FLOAT;
    bool int8 = scheme_name && !strcmp(scheme_name, "int8"),
         named = int8 || (scheme_name && tn_float_scheme_parse(scheme_name, &scheme));
    if (int8) scheme = TN_FLOAT_BLOCKS; /* floats are counted as they are stored: an upper bound */
    TN_TRY(tn_source_open(ctx, path, &src, err));
    *h = *tn_source_hparams(src);
    *n_bytes = *n_next_bytes = 0;
    if (!named && tn_blocks_in_source(src)) scheme = TN_FLOAT_BLOCKS;
    for (int layer = -1; layer < h->n_layers + h->n_next; layer++)
        for (tn_role role = 0; role < TN_W_N_ROLES; role++) {
            const uint64_t one = tn_model_role_bytes(src, scheme, layer, role);
            *n_bytes += one;
            *n_next_bytes += layer < h->n_layers ? 0 : one;
        }
    *blocks = scheme == TN_FLOAT_BLOCKS;
    *experts = (tn_experts_need){.can = false};
    if (*blocks && !int8) tn_file_experts_need_of(src, experts);
    tn_source_close(&src);
    return TERN_OK;
}
