/* Opening a model: from a path to an engine. */
#include "engine/engine.h"

#include "base/cpu.h"
#include "base/status.h"
#include "model/blocks.h"
#include "package/tuned.h"
#include "quant/pack.h"
#include "text/chat.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

void tern_options_defaults(tern_options *o) { *o = (tern_options){.size_bytes = sizeof *o}; }

static tern_status open_float(tern_engine *e, const char *path, const char *scheme_name,
                              const char *attention, bool attention_decode, tern_error *err) {
    TN_FAIL_IF(attention && strcmp(attention, "full") && strcmp(attention, "auto"), err, TERN_E_INVALID,
               "attention '%s' needs a package (tern pack makes one)", attention);
    TN_FAIL_IF(attention_decode, err, TERN_E_INVALID,
               "sparse attention when decoding needs a package (tern pack makes one)");
    tn_float_scheme scheme = TN_FLOAT;
    TN_FAIL_IF(
        scheme_name && !tn_float_scheme_parse(scheme_name, &scheme), err, TERN_E_INVALID,
        "scheme '%s' cannot run on a float model: there are float, blocks, llm-int8, group-w8a8 (tern pack "
        "makes packages of the others)",
        scheme_name);
    tn_source *src = NULL;
    tern_status st = tn_source_open(&e->ctx, path, &src, err);
    if (st == TERN_OK && !scheme_name && tn_blocks_in_source(src)) scheme = TN_FLOAT_BLOCKS;
    if (st == TERN_OK && scheme == TN_FLOAT_LLM_INT8 && tn_source_hparams(src)->parallel_block) {
        st = tn_fail(err, TERN_E_UNSUPPORTED, "%s: the llm-int8 baseline does not cover parallel blocks",
                     path);
    }
    if (st == TERN_OK) st = tn_model_load(&e->ctx, e->pool, src, scheme, &e->model, err);
    tn_source_close(&src);
    return st;
}

/* Takes *pkg where it gets so far. */
static tern_status open_package(tern_engine *e, const char *path, tn_pkg **pkg, const tern_options *o,
                                int n_threads, tern_error *err) {
    TN_FAIL_IF(o->npu_threads < 0 || o->npu_threads > 63 || o->cpu_threads < 0 || o->cpu_threads > 63, err,
               TERN_E_INVALID, "%d NPU and %d CPU workers: want 1 to 63 each, or 0 for the default",
               o->npu_threads, o->cpu_threads);
    TN_FAIL_IF(o->chunk && (o->chunk < TN_CHUNK_MIN || o->chunk > TN_CHUNK_MAX || o->chunk % 32), err,
               TERN_E_INVALID, "chunks of %d tokens: want a multiple of 32 from %d to %d", o->chunk,
               TN_CHUNK_MIN, TN_CHUNK_MAX);
    tn_policy policy = tn_policy_defaults(TN_POLICY_OOE);
    TN_FAIL_IF(o->policy && !tn_policy_parse(o->policy, &policy), err, TERN_E_INVALID,
               "policy '%s' is unknown; there are in-order, overlap, ooe, synergy", o->policy);
    /* both lanes are cores of one machine here, so no core stays idle unless the user wants to see a phone's
     * lanes */
    TN_FAIL_IF(o->steal_above < -1, err, TERN_E_INVALID,
               "stealing above %d waiting tasks: want 1 or more, or -1 for never", o->steal_above);
    if (o->steal_above) policy.steal_above = o->steal_above;
    policy.steal_by_profile = !o->steal_above && policy.kind == TN_POLICY_SYNERGY;
    policy.keep_busy = !o->no_steal && policy.kind != TN_POLICY_IN_ORDER;
    e->policy = policy;
    e->trace = o->trace;
    e->n_lane_workers[TN_LANE_CPU] = o->cpu_threads ? o->cpu_threads : 1;
    e->n_lane_workers[TN_LANE_NPU] = o->npu_threads ? o->npu_threads : n_threads > 1 ? n_threads - 1 : 0;
    size_t cap = strlen(path) + 16;
    e->profile_path = tn_alloc(&e->ctx, TN_MEM_OTHER, cap, 1);
    TN_FAIL_IF(!e->profile_path, err, TERN_E_MEMORY, "no memory for a path");
    snprintf(e->profile_path, cap, "%s.profile", path);
    tn_npu_model_options mo = {.pkg = pkg,
                               .backend = o->npu,
                               .n_threads = e->n_lane_workers[TN_LANE_NPU],
                               .memory_cap_bytes = o->npu_memory_bytes,
                               .chunk = o->chunk,
                               .cold_rows = o->cold_rows,
                               .no_chunk_sharing = o->no_chunk_sharing,
                               .separate_weights = o->npu_separate_weights,
                               .apart = o->npu_apart,
                               .switch_blocks = o->switch_blocks,
                               .scratch_bytes = o->npu_vtcm_bytes};
    TN_FAIL_IF(o->graph_switch && !tn_switch_parse(o->graph_switch, &mo.graph_switch), err, TERN_E_INVALID,
               "graph switching '%s' is unknown; there are progressive, async, sync", o->graph_switch);
    TN_FAIL_IF(o->switch_blocks < 0 || o->switch_blocks > TN_SWITCH_MAX_BLOCKS, err, TERN_E_INVALID,
               "%d blocks to switch: want 1 to %d, or 0 for the best", o->switch_blocks,
               TN_SWITCH_MAX_BLOCKS);
    e->attention = (tn_attn_options){.ratio = o->attention_ratio > 0 ? o->attention_ratio : 0.2f,
                                     .n_buckets = o->attention_buckets ? o->attention_buckets : 9,
                                     .no_head_ratios = o->no_head_ratios,
                                     .check = o->attention_check,
                                     .whole = o->attention_whole,
                                     .threshold = o->attention_threshold,
                                     .share_rows = o->attention_share < 0 ? -1 : o->attention_share,
                                     .pool_heads = o->attention_pool ? o->attention_pool : TN_ATTN_POOL};
    TN_FAIL_IF(e->attention.share_rows > TN_ATTN_MAX_SHARE, err, TERN_E_INVALID,
               "%d rows that share a selection: at most %d may", o->attention_share, TN_ATTN_MAX_SHARE);
    TN_FAIL_IF(e->attention.pool_heads < 1, err, TERN_E_INVALID, "pools of %d heads: want at least 1",
               o->attention_pool);
    e->attention.automatic = o->attention && !strcmp(o->attention, "auto");
    TN_FAIL_IF(
        o->attention &&
            !tn_attn_mode_parse(e->attention.automatic ? "shadow" : o->attention, &e->attention.mode),
        err, TERN_E_INVALID,
        "attention '%s' is unknown; there are full, shadow, auto, float-sparse, block-sparse, npu-full",
        o->attention);
    TN_FAIL_IF(
        o->attention_pipeline && !tn_attn_pipeline_parse(o->attention_pipeline, &e->attention.pipeline), err,
        TERN_E_INVALID, "attention as a pipeline '%s': there are auto, on, off", o->attention_pipeline);
    TN_FAIL_IF(e->attention.pipeline == TN_ATTN_PIPELINE_ON && e->attention.mode != TN_ATTN_SHADOW, err,
               TERN_E_INVALID, "heads are a pipeline with attention shadow only");
    TN_FAIL_IF(o->attention_plan && !tn_attn_plan_parse(o->attention_plan, &e->attention.plan), err,
               TERN_E_INVALID,
               "a plan of heads '%s': there is paper, or some of in-order, no-fusion, no-overlap",
               o->attention_plan);
    e->attention.decode = o->attention_decode;
    e->attention.decode_ratio = o->attention_ratio > 0 ? o->attention_ratio : 0.1f;
    TN_FAIL_IF(e->attention.decode && e->attention.mode != TN_ATTN_FULL &&
                   e->attention.mode != TN_ATTN_SHADOW,
               err, TERN_E_INVALID,
               "attention '%s' is a baseline for prompts: decoding is sparse with full and shadow only",
               o->attention);
    TN_FAIL_IF(!(o->attention_ratio >= 0 && o->attention_ratio <= 1), err, TERN_E_INVALID,
               "an attention ratio of %g: want more than 0, at most 1", (double)o->attention_ratio);
    TN_FAIL_IF(e->attention.n_buckets != 1 && e->attention.n_buckets != 9, err, TERN_E_INVALID,
               "%d buckets of scales: there are 1 and 9", e->attention.n_buckets);
    e->n_lane_workers[TN_LANE_IO] = 1; /* waits for reads, loads graphs */
    TN_FAIL_IF(o->load && !tn_load_mode_parse(o->load, &mo.load), err, TERN_E_INVALID,
               "loading '%s' is unknown; there are stream, overlap, sequential, mmap", o->load);
    TN_FAIL_IF(o->weights && !tn_weights_form_parse(o->weights, &mo.weights), err, TERN_E_INVALID,
               "weights '%s' are unknown; there are tiles, packed", o->weights);
    tn_aio_defaults(&mo.io);
    if (!o->read) tn_tuned_read(tn_pkg_fd(*pkg), e->profile_path, &mo.io);
    TN_FAIL_IF(o->read && !tn_aio_method_parse(o->read, &mo.io), err, TERN_E_INVALID,
               "reading by '%s' is unknown; there are threads, threads-direct, uring, uring-direct", o->read);
    tn_tuned_load(e->profile_path, e->kern.cpu, e->n_lane_workers, &mo.tuned);
    TN_TRY(tn_executor_open(&e->ctx, e->n_lane_workers, &e->exec, err));
    TN_TRY(tn_npu_model_open(&e->ctx, e->pool, &e->kern, path, &mo, &e->npu, &e->model, err));
    TN_FAIL_IF(o->scheme && strcmp(o->scheme, e->npu->scheme), err, TERN_E_INVALID,
               "%s was packed with scheme %s; pack the model again for %s", path, e->npu->scheme, o->scheme);
    return TERN_OK;
}

/* A float model for which a device was named: its static INT8 graphs come from a package, made here and gone
 * with the engine. */
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
    unlink(name); /* what reads it has it open */
    if (st == TERN_OK) st = open_package(e, name, &pkg, o, n_threads, err);
    tn_pkg_close(&pkg);
    tn_free(&e->ctx, e->profile_path); /* nothing stays of it */
    e->profile_path = NULL;
    return st;
}

static tern_status open_any(tern_engine *e, const char *path, const tern_options *o, int n_threads,
                            tern_error *err) {
    tn_pkg *pkg;
    TN_TRY(tn_pkg_open_if(&e->ctx, path, &pkg, err));
    if (pkg) {
        tern_status st = open_package(e, path, &pkg, o, n_threads, err);
        tn_pkg_close(&pkg);
        return st;
    }
    return o->npu ? open_packed(e, path, o, n_threads, err)
                  : open_float(e, path, o->scheme, o->attention, o->attention_decode, err);
}

tern_status tern_engine_open(const char *path, const tern_options *opt, tern_engine **out, tern_error *err) {
    TN_FAIL_IF(!out, err, TERN_E_INVALID, "tern_engine_open needs a place for the engine");
    *out = NULL;
    TN_FAIL_IF(!path || !*path, err, TERN_E_INVALID, "no model path given");
    tern_options o;
    tern_options_defaults(&o);
    if (opt) memcpy(&o, opt, opt->size_bytes < sizeof o ? opt->size_bytes : sizeof o);
    TN_FAIL_IF(o.n_threads < 0 || o.n_threads > 64, err, TERN_E_INVALID,
               "%d threads: want 1 to 64, or 0 for one per core", o.n_threads);
    int n_threads = o.n_threads ? o.n_threads : tn_cpu_count();
    if (n_threads > 64) n_threads = 64;

    tn_ctx boot; /* the engine's own memory comes from the hooks too */
    tn_ctx_init(&boot, o.hooks);
    tern_engine *e = boot.hooks.alloc(boot.hooks.user, sizeof *e, 64);
    TN_FAIL_IF(!e, err, TERN_E_MEMORY, "no memory for an engine");
    memset(e, 0, sizeof *e);
    tn_ctx_init(&e->ctx, o.hooks);
    const char *bad = NULL;
    uint32_t cpu = tn_cpu_flags(&bad);
    if (bad)
        tn_log(&e->ctx, TERN_LOG_WARN,
               "TERN_CPU=%s is unknown and ignored; try scalar, avx2, avxvnni, avx512, avx512vnni, neon, "
               "dotprod, i8mm",
               bad);
    tn_kernels_init(&e->kern, cpu);

    tern_status st = tn_pool_open(&e->ctx, n_threads, &e->pool, err);
    if (st == TERN_OK) st = open_any(e, path, &o, n_threads, err);
    if (st == TERN_OK) *out = e;
    else tern_engine_close(&e);
    return st;
}

void tern_engine_close(tern_engine **pe) {
    if (!pe || !*pe) return;
    tern_engine *e = *pe;
    *pe = NULL;
    tn_gvocab *v = atomic_load(&e->gvocab);
    tn_gvocab_close(&v);
    tn_model_close(&e->model);
    tn_npu_model_close(&e->npu);
    tn_executor_close(&e->exec);
    tn_free(&e->ctx, e->profile_path);
    tn_pool_close(&e->pool);
    tern_hooks hooks = e->ctx.hooks;
    hooks.release(hooks.user, e);
}

void tern_engine_info(const tern_engine *e, tern_model_info *out) {
    const tn_hparams *h = &e->model->h;
    *out = (tern_model_info){
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
    };
}

/* ---- text ---------------------------------------------------------------------------------------- */

static tern_status need_tokenizer(const tern_engine *e, tern_error *err) {
    TN_FAIL_IF(!e, err, TERN_E_INVALID, "no engine given");
    TN_FAIL_IF(!e->model->tokenizer, err, TERN_E_UNSUPPORTED,
               "this model has no tokenizer; give token ids instead of text");
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
    return e->model->tokenizer ? tn_token_bytes(e->model->tokenizer, id, special, buf, cap) : 0;
}

bool tern_token_is_end(const tern_engine *e, int32_t id) {
    return e->model->tokenizer && tn_tokenizer_is_end(e->model->tokenizer, id);
}

bool tern_has_chat_template(const tern_engine *e) {
    return e && e->model->tokenizer && tn_tokenizer_has_template(e->model->tokenizer);
}

void tern_chat_options_defaults(tern_chat_options *o) { *o = (tern_chat_options){.size_bytes = sizeof *o}; }

tern_status tern_chat_tokens(const tern_engine *e, const tern_message *msgs, size_t n_msgs,
                             const tern_chat_options *opt, int32_t *ids, size_t cap, size_t *n_ids,
                             tern_error *err) {
    TN_TRY(need_tokenizer(e, err));
    TN_FAIL_IF((!msgs && n_msgs) || (!ids && cap) || !n_ids, err, TERN_E_INVALID,
               "tern_chat_tokens needs messages, a place for the ids and one for their number");
    tern_chat_options o;
    tern_chat_options_defaults(&o);
    if (opt) memcpy(&o, opt, opt->size_bytes < sizeof o ? opt->size_bytes : sizeof o);
    return tn_chat_tokens(e->model->tokenizer, msgs, n_msgs, &o, ids, cap, n_ids, err);
}

tern_status tern_chat_render(const tern_engine *e, const tern_message *msgs, size_t n_msgs, char *buf,
                             size_t cap, size_t *n_bytes, tern_error *err) {
    TN_TRY(need_tokenizer(e, err));
    TN_FAIL_IF((!msgs && n_msgs) || (!buf && cap) || !n_bytes, err, TERN_E_INVALID,
               "tern_chat_render needs messages, a place for the text and one for its length");
    return tn_chat_render(e->model->tokenizer, msgs, n_msgs, NULL, buf, cap, n_bytes, err);
}
