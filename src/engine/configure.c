/* Resolves options for a package: the engine's lanes, policy and attention, and how the model is opened. */
#include "base/cpu.h"
#include "base/status.h"
#include "engine/engine.h"
#include "package/tuned.h"

#include <stdio.h>
#include <string.h>

int tn_engine_threads(const tern_options *o) {
    int n = o->n_threads ? o->n_threads : tn_cpu_count();
    return n > 64 ? 64 : n;
}

void tn_engine_lanes(const tern_options *o, int n_threads, int32_t *n_lane_workers) {
    n_lane_workers[TN_LANE_CPU] = o->cpu_threads ? o->cpu_threads : 1;
    n_lane_workers[TN_LANE_NPU] = o->npu_threads ? o->npu_threads : n_threads > 1 ? n_threads - 1 : 0;
    n_lane_workers[TN_LANE_IO] = 1; /* waits for reads, loads graphs */
}

/* Sets the lanes. Here both are cores of one machine, so no core stays idle unless the user wants a phone's
 * lanes. */
static tern_status lanes_of(tern_engine *e, const tern_options *o, int n_threads, tern_error *err) {
    tn_policy policy = tn_policy_defaults(TN_POLICY_OOE);
    TN_FAIL_IF(o->policy && !tn_policy_parse(o->policy, &policy), err, TERN_E_INVALID,
               "policy '%s' is unknown; there are in-order, overlap, ooe, synergy", o->policy);
    policy.keep_busy = o->steal == TN_STEAL_SHARE_CORES && policy.kind != TN_POLICY_IN_ORDER;
    policy.steal_by_profile = policy.kind == TN_POLICY_SYNERGY &&
                              (o->steal == TN_STEAL_SHARE_CORES || o->steal == TN_STEAL_MEASURED);
    if (o->steal == TN_STEAL_NONE) policy.steal_above = -1;
    else if (o->steal > 0) policy.steal_above = o->steal;
    e->policy = policy;
    e->trace = o->trace;
    tn_engine_lanes(o, n_threads, e->n_lane_workers);
    return TERN_OK;
}

static tern_status attention_of(tern_engine *e, const tern_options *o, tern_error *err) {
    tn_attn_options *a = &e->attention;
    *a = (tn_attn_options){.ratio = o->attention_ratio > 0 ? o->attention_ratio : TN_ATTN_RATIO,
                           .falls = !(o->attention_ratio > 0),
                           .n_buckets = o->attention_buckets ? o->attention_buckets : 9,
                           .no_head_ratios = o->no_head_ratios,
                           .check = o->attention_check,
                           .whole = o->attention_whole,
                           .threshold = o->attention_threshold,
                           .share_rows = o->attention_share,
                           .pool_heads = o->attention_pool ? o->attention_pool : TN_ATTN_POOL,
                           .decode = o->attention_decode,
                           .decode_ratio = o->attention_ratio > 0 ? o->attention_ratio : 0.1f};
    const char *mode = tn_options_attention(o);
    a->automatic = !strcmp(mode, "auto");
    TN_FAIL_IF(!tn_attn_mode_parse(a->automatic ? "shadow" : mode, &a->mode), err, TERN_E_INVALID,
               "attention '%s' is unknown", mode);
    TN_FAIL_IF(o->attention_pipeline && !tn_attn_pipeline_parse(o->attention_pipeline, &a->pipeline), err,
               TERN_E_INVALID, "attention as a pipeline '%s': there are auto, on, off",
               o->attention_pipeline);
    TN_FAIL_IF(a->pipeline == TN_ATTN_PIPELINE_ON && a->mode != TN_ATTN_SHADOW, err, TERN_E_INVALID,
               "heads are a pipeline with attention shadow only");
    TN_FAIL_IF(o->attention_plan && !tn_attn_plan_parse(o->attention_plan, &a->plan), err, TERN_E_INVALID,
               "a plan of heads '%s': there is paper, or some of in-order, no-fusion, no-overlap, as-printed",
               o->attention_plan);
    TN_FAIL_IF(a->decode && a->mode != TN_ATTN_FULL && a->mode != TN_ATTN_SHADOW, err, TERN_E_INVALID,
               "attention '%s' is a baseline for prompts: decoding is sparse with full and shadow only",
               mode);
    return TERN_OK;
}

/* Other schemes are baselines, with plain attention. Floats are the reference: their attention is sparse
 * only on request. */
tern_status tn_engine_configure_file(tern_engine *e, const tern_options *o, tern_error *err) {
    tn_attn_options *a = &e->attention;
    tn_float_scheme scheme = e->model->scheme;
    TN_TRY(attention_of(e, o, err));
    if (a->automatic && scheme != TN_FLOAT_BLOCKS) a->mode = TN_ATTN_FULL, a->automatic = false;
    if (a->automatic && tn_sparse_attn_why_not(&e->model->h)) a->mode = TN_ATTN_FULL;
    if (a->mode == TN_ATTN_FULL && !a->decode) return TERN_OK;
    TN_FAIL_IF(scheme != TN_FLOAT_BLOCKS && scheme != TN_FLOAT, err, TERN_E_INVALID,
               "scheme %s is a baseline: its attention is full", tn_float_scheme_name(scheme));
    TN_FAIL_IF(a->pipeline == TN_ATTN_PIPELINE_ON, err, TERN_E_INVALID,
               "heads are a pipeline in packages only: leave attention-pipeline and attention-preset out");
    a->pipeline = TN_ATTN_PIPELINE_OFF;
    tn_npu_model *m = e->estimator = tn_calloc(&e->ctx, TN_MEM_OTHER, 1, sizeof *m);
    TN_FAIL_IF(!m, err, TERN_E_MEMORY, "no memory for sparse attention");
    *m = (tn_npu_model){.ctx = &e->ctx, .kern = &e->kern, .attn_follows = true};
    if (e->profile_path) (void)tn_tuned_load(e->profile_path, e->kern.cpu, e->n_lane_workers, &m->tuned);
    const tn_npu_options device = {.n_threads = 1};
    return tn_npu_open(&e->ctx, "host", &device, &m->dev, err);
}

tern_status tn_engine_configure(tern_engine *e, const char *path, const tn_pkg *pkg, const tern_options *o,
                                int n_threads, tn_npu_model_options *out, tern_error *err) {
    TN_TRY(lanes_of(e, o, n_threads, err));
    TN_TRY(attention_of(e, o, err));
    size_t cap = strlen(path) + 16;
    e->profile_path = tn_alloc(&e->ctx, TN_MEM_OTHER, cap, 1);
    TN_FAIL_IF(!e->profile_path, err, TERN_E_MEMORY, "no memory for a path");
    (void)tn_tuned_path(path, e->profile_path, cap); /* it has room */
    *out = (tn_npu_model_options){.backend = o->npu,
                                  .n_threads = e->n_lane_workers[TN_LANE_NPU],
                                  .memory_cap_bytes = o->npu_memory_bytes,
                                  .experts_bytes = e->experts_bytes,
                                  .chunk = o->chunk,
                                  .cold_rows = o->cold_rows,
                                  .no_chunk_sharing = o->no_chunk_sharing,
                                  .separate_weights = o->npu_separate_weights,
                                  .apart = o->npu_apart,
                                  .switch_blocks = o->switch_blocks,
                                  .scratch_bytes = o->npu_vtcm_bytes,
                                  .operators = o->products && !strcmp(o->products, "operators"),
                                  .steals = e->policy.steal_above >= 0 || e->policy.steal_by_profile};
    TN_FAIL_IF(o->graph_switch && !tn_switch_parse(o->graph_switch, &out->graph_switch), err, TERN_E_INVALID,
               "graph switching '%s' is unknown; there are progressive, async, sync", o->graph_switch);
    TN_FAIL_IF(o->load && !tn_load_mode_parse(o->load, &out->load), err, TERN_E_INVALID,
               "loading '%s' is unknown; there are stream, overlap, sequential, mmap", o->load);
    TN_FAIL_IF(!tn_weights_form_parse(o->weights ? o->weights : "auto", &out->weights), err, TERN_E_INVALID,
               "weights '%s' are unknown; there are auto, packed, tiles", o->weights);
    tn_aio_defaults(&out->io);
    if (!o->read) tn_tuned_read(tn_pkg_fd(pkg), e->profile_path, &out->io);
    TN_FAIL_IF(o->read && !tn_aio_method_parse(o->read, &out->io), err, TERN_E_INVALID,
               "reading by '%s' is unknown; there are threads, threads-direct, uring, uring-direct", o->read);
    tn_tuned_load(e->profile_path, e->kern.cpu, e->n_lane_workers, &out->tuned);
    return TERN_OK;
}

void tn_engine_profile(const tern_engine *e, tn_profile_file *out) {
    if (!e->npu) { /* a quantised file: what forwards of several rows take */
        out->path = e->profile_path;
        snprintf(out->key, sizeof out->key, "file-%08x-w%d.%d", e->kern.cpu, e->n_lane_workers[TN_LANE_CPU],
                 e->n_lane_workers[TN_LANE_NPU]);
        return;
    }
    const tn_npu_caps *caps = tn_npu_device_caps(e->npu->dev);
    bool pipelined = tn_attn_pipelined(&e->attention, caps);
    out->path = e->profile_path;
    snprintf(out->key, sizeof out->key, "%016llx-%08x-%s%s-c%d-w%d.%d-a%d%s%s%s",
             (unsigned long long)tn_model_fingerprint(e->model), e->kern.cpu, caps->name,
             caps->has_parts ? "" : "-apart", e->npu->chunk, e->n_lane_workers[TN_LANE_CPU],
             e->n_lane_workers[TN_LANE_NPU], (int)e->attention.mode, pipelined ? "-p" : "",
             e->npu->packed ? "-packed" : "", e->npu->operators ? "-o" : "");
}
