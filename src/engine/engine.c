/* Opening a model: from a path to an engine. */
#include "engine/engine.h"

#include "base/cpu.h"
#include "base/machine.h"
#include "base/sized.h"
#include "base/status.h"
#include "engine/adapters.h"
#include "engine/head.h"
#include "engine/imports.h"
#include "engine/sight.h"
#include "params/params.h"
#include "text/chat.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The paper's ratios come from the loss of the model without a head (shadowAttn 3.2). */
static void warn_of_equal_heads(tern_engine *e, const char *path) {
    const tn_hparams *h = &e->model->h;
    const float *w = e->npu->attn_head_weight;
    size_t n = (size_t)h->n_layers * (size_t)h->n_heads, i = 1;
    while (w && i < n && w[i] == w[0]) i++;
    if (w && i == n)
        tn_log(&e->ctx, TERN_LOG_WARN,
               "attention-preset paper: all heads of %s have one importance; pack it with --head-importance",
               path);
}

tern_status tn_engine_open_package(tern_engine *e, const char *path, tn_pkg **pkg, const tern_options *o,
                                   int n_threads, tern_error *err) {
    tn_npu_model_options mo;
    TN_TRY(tn_engine_configure(e, path, *pkg, o, n_threads, &mo, err));
    mo.pkg = pkg;
    TN_TRY(tn_executor_open(&e->ctx, e->n_lane_workers, &e->exec, err));
    TN_TRY(tn_npu_model_open(&e->ctx, e->pool, &e->kern, path, &mo, &e->npu, &e->model, err));
#ifndef TERN_MINIMAL
    (void)tn_packed_form_use(&e->kern, e->npu->tuned.packed_form); /* "": as it is; a minimal build has one */
#endif
    /* only a device that runs on cores shares them; one with its own silicon cannot lend or borrow a core */
    e->policy.keep_busy = e->policy.keep_busy && tn_npu_device_caps(e->npu->dev)->has_parts;
    if (o->attention_preset && !strcmp(o->attention_preset, "paper") && !o->no_head_ratios)
        warn_of_equal_heads(e, path);
    TN_FAIL_IF(o->scheme && strcmp(o->scheme, e->npu->scheme), err, TERN_E_INVALID,
               "%s was packed with scheme %s; pack the model again for %s", path, e->npu->scheme, o->scheme);
    return TERN_OK;
}

static tern_status open_any(tern_engine *e, const char *path, const tern_options *o, int n_threads,
                            tern_error *err) {
    tn_pkg *pkg;
    TN_TRY(tn_pkg_open_if(&e->ctx, path, &pkg, err));
    tern_status st = TERN_OK;
    if (pkg) st = tn_engine_open_package(e, path, &pkg, o, n_threads, err);
    else st = tn_import_open(e, path, o, n_threads, err);
    tn_pkg_close(&pkg);
    if (st == TERN_OK)
        tn_params_announce(o, &e->ctx, path, e->npu != NULL, !e->npu && e->model->scheme == TN_FLOAT_BLOCKS,
                           tn_engine_heads(e) != NULL);
    return st;
}

tern_status tern_engine_open(const char *path, const tern_options *opt, tern_engine **out, tern_error *err) {
    TN_FAIL_IF(!out, err, TERN_E_INVALID, "tern_engine_open needs a place for the engine");
    *out = NULL;
    TN_FAIL_IF(!path || !*path, err, TERN_E_INVALID, "no model path given");
    tern_options o;
    if (opt) o = *opt;
    else tn_options_defaults(&o);
    TN_TRY(tn_params_check(&o, err));
    tn_params_preset(&o);
#ifndef TERN_MINIMAL
    TN_TRY(tn_cores_use(o.cores, err)); /* before threads are counted and started: they inherit it */
#else
    TN_FAIL_IF(o.cores && strcmp(o.cores, "all"), err, TERN_E_UNSUPPORTED, "this build cannot choose cores");
    TN_FAIL_IF(o.draft_head && strcmp(o.draft_head, "none"), err, TERN_E_UNSUPPORTED,
               "%s: this build has no heads that draft", o.draft_head);
#endif
    tn_fit fit;
    TN_TRY(tn_fit_memory(path, &o, &fit, err));
    int n_threads = tn_engine_threads(&o);

    tn_ctx boot; /* the engine's own memory comes from the hooks too */
    tn_ctx_init(&boot, o.hooks);
    tern_engine *e = boot.hooks.alloc(boot.hooks.user, sizeof *e, 64);
    TN_FAIL_IF(!e, err, TERN_E_MEMORY, "no memory for an engine");
    memset(e, 0, sizeof *e);
    e->fd = -1;
    e->n_ctx_fits = fit.n_ctx;
    e->experts_bytes = fit.experts_bytes;
    e->encoder_bytes = fit.encoder_bytes;
    e->kv_short = tn_options_kv(&o, 1);
    e->kv_long = tn_options_kv(&o, INT32_MAX);
    tn_ctx_init(&e->ctx, o.hooks);
    const char *bad = NULL;
    uint32_t cpu = tn_cpu_flags(&bad);
    if (bad)
        tn_log(&e->ctx, TERN_LOG_WARN,
               "TERN_CPU=%s is unknown and ignored; try scalar, avx2, avxvnni, avx512, avx512vnni, amxint8, "
               "neon, "
               "dotprod, i8mm",
               bad);
    tn_kernels_init(&e->kern, cpu);

    tern_status st = tn_pool_open(&e->ctx, n_threads, &e->pool, err);
    if (st == TERN_OK) st = open_any(e, path, &o, n_threads, err);
    if (st == TERN_OK) st = tn_engine_open_adapters(e, path, o.lora, err);
#ifndef TERN_MINIMAL
    if (st == TERN_OK) st = tn_head_open(e, path, &o, err);
    if (st == TERN_OK) st = tn_sight_open(e, path, &o, err);
#endif
    if (st == TERN_OK) *out = e;
    else tern_engine_close(&e);
    return st;
}

/* Opens it by the name that the system gives to an open descriptor; the rest of the engine does not know
 * descriptors. The descriptor stays open with the engine for later reads. */
tern_status tern_engine_open_fd(int fd, const tern_options *opt, tern_engine **out, tern_error *err) {
    TN_FAIL_IF(!out, err, TERN_E_INVALID, "tern_engine_open_fd needs a place for the engine");
    *out = NULL;
    int copy = fd >= 0 ? fcntl(fd, F_DUPFD_CLOEXEC, 3) : -1;
    TN_FAIL_IF(copy < 0, err, TERN_E_INVALID, "descriptor %d is not open", fd);
    char path[32];
    snprintf(path, sizeof path, "/proc/self/fd/%d", copy);
    tern_status st = tern_engine_open(path, opt, out, err);
    if (st == TERN_OK) (*out)->fd = copy;
    else close(copy);
    return st;
}

void tern_engine_close(tern_engine **pe) {
    if (!pe || !*pe) return;
    tern_engine *e = *pe;
    *pe = NULL;
    tn_gvocab *v = atomic_load(&e->gvocab);
    tn_gvocab_close(&v);
#ifndef TERN_MINIMAL
    tn_sight_close(e);
    tn_head_close(e);
#endif
    tn_model_close(&e->model);
    tn_npu_model_close(&e->npu);
    if (e->estimator && e->estimator->dev) tn_npu_close(&e->estimator->dev);
    tn_free(&e->ctx, e->estimator);
    tn_executor_close(&e->exec);
    tn_timeline_close(&e->live);
    tn_free(&e->ctx, e->profile_path);
    tn_pool_close(&e->pool);
    if (e->fd >= 0) close(e->fd);
    tern_hooks hooks = e->ctx.hooks;
    hooks.release(hooks.user, e);
}

tern_status tern_engine_info_sized(const tern_engine *e, tern_model_info *out, size_t size_bytes) {
    if (!e) return TERN_E_INVALID;
    const tn_hparams *h = &e->model->h;
    const tern_model_info info = {
        .arch = h->arch,
        .name = h->name,
        .scheme = e->npu ? e->npu->scheme : tn_float_scheme_name(e->model->scheme),
        .n_params = e->model->n_params,
        .n_layers = h->n_layers,
        .n_embd = h->n_embd,
        .n_heads = h->n_heads,
        .n_kv_heads = h->n_kv_heads,
        .d_head = h->d_head,
        .n_ff = h->n_ff,
        .n_vocab = h->n_vocab,
        .ctx_train = h->ctx_train,
        .weight_bytes = e->model->weight_bytes,
        .package = e->npu != NULL,
        .embeds = h->bidirectional,
    };
    return tn_sized_out(out, size_bytes, &info, sizeof info, TN_SIZE_UP_TO(tern_model_info, weight_bytes));
}

/* ---- text ---------------------------------------------------------------------------------------- */

static tern_status need_tokenizer(const tern_engine *e, tern_error *err) {
    TN_FAIL_IF(!e, err, TERN_E_INVALID, "no engine given");
    TN_FAIL_IF(
        !e->model->tokenizer, err, TERN_E_UNSUPPORTED,
        "the model has no tokenizer: copy tokenizer.json (or tokenizer.model) from where the model came from "
        "into its folder; without one only token ids can be read");
    return TERN_OK;
}

tern_status tern_tokenize(const tern_engine *e, const char *text, size_t n_bytes, bool add_special,
                          bool parse_special, int32_t *ids, size_t cap, size_t *n_ids, tern_error *err) {
    TN_TRY(need_tokenizer(e, err));
    TN_FAIL_IF((!text && n_bytes) || (!ids && cap) || !n_ids, err, TERN_E_INVALID,
               "tern_tokenize needs text, a place for the ids and one for their number");
    return tn_tokenize(e->model->tokenizer, text, n_bytes, add_special, parse_special, ids, cap, n_ids, err);
}

size_t tern_token_bytes(const tern_engine *e, int32_t id, bool special, char *buf, size_t cap) {
    if (!e || (!buf && cap)) return 0;
    return e->model->tokenizer ? tn_token_bytes(e->model->tokenizer, id, special, buf, cap) : 0;
}

bool tern_token_is_end(const tern_engine *e, int32_t id) {
    return e && e->model->tokenizer && tn_tokenizer_is_end(e->model->tokenizer, id);
}

int32_t tern_token_special(const tern_engine *e, tern_special_token which) {
    const tn_tokenizer *t = e ? e->model->tokenizer : NULL;
    if (!t) return -1;
    switch (which) {
    case TERN_TOKEN_BOS: return tn_tokenizer_bos(t);
    case TERN_TOKEN_EOS: return tn_tokenizer_eos(t);
    case TERN_TOKEN_EOT: return tn_tokenizer_eot(t);
    }
    return -1;
}

bool tern_has_chat_template(const tern_engine *e) {
    return e && e->model->tokenizer && tn_tokenizer_has_template(e->model->tokenizer);
}

enum { LEAST_CHAT = TN_SIZE_UP_TO(tern_chat_options, no_answer) };

tern_status tern_chat_options_init(tern_chat_options *o, size_t size_bytes) {
    const tern_chat_options d = {.size_bytes = size_bytes};
    return tn_sized_out(o, size_bytes, &d, sizeof d, LEAST_CHAT);
}

tern_status tern_chat_tokens(const tern_engine *e, const tern_message *msgs, size_t n_msgs,
                             const tern_chat_options *opt, int32_t *ids, size_t cap, size_t *n_ids,
                             tern_error *err) {
    TN_TRY(need_tokenizer(e, err));
    TN_FAIL_IF((!msgs && n_msgs) || (!ids && cap) || !n_ids, err, TERN_E_INVALID,
               "tern_chat_tokens needs messages, a place for the ids and one for their number");
    tern_chat_options o;
    tern_chat_options_defaults(&o);
    if (opt) TN_TRY(tn_sized_in(&o, sizeof o, opt, opt->size_bytes, LEAST_CHAT, "tern_chat_options", err));
    return tn_chat_tokens(e->model->tokenizer, msgs, n_msgs, &o, ids, cap, n_ids, err);
}

tern_status tern_chat_render(const tern_engine *e, const tern_message *msgs, size_t n_msgs, char *buf,
                             size_t cap, size_t *n_bytes, tern_error *err) {
    TN_TRY(need_tokenizer(e, err));
    TN_FAIL_IF((!msgs && n_msgs) || (!buf && cap) || !n_bytes, err, TERN_E_INVALID,
               "tern_chat_render needs messages, a place for the text and one for its length");
    return tn_chat_render(e->model->tokenizer, msgs, n_msgs, NULL, buf, cap, n_bytes, err);
}
