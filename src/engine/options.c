/* Options by name, and what they mean for a package's device, lanes and attention. */
#include "engine/options.h"

#include "base/sized.h"
#include "base/status.h"
#include "engine/engine.h"
#include "engine/params.h"
#include "package/tuned.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void tn_options_defaults(tern_options *o) {
    *o = (tern_options){.hooks = NULL};
    tern_session_options_defaults(&o->session);
    tern_generate_options_defaults(&o->generate);
    o->session.draft = "auto";
}

/* ---- by name ------------------------------------------------------------------------------------- */

tern_status tern_options_new(tern_options **out, tern_error *err) {
    TN_FAIL_IF(!out, err, TERN_E_INVALID, "tern_options_new needs a place for the options");
    *out = malloc(sizeof **out);
    TN_FAIL_IF(!*out, err, TERN_E_MEMORY, "no memory for options");
    tn_options_defaults(*out);
    return TERN_OK;
}

void tern_options_free(tern_options **po) {
    if (!po || !*po) return;
    for (int i = 0; i < TN_MAX_PARAMS; i++) free((*po)->texts[i]);
    free(*po);
    *po = NULL;
}

static tern_status find(const char *name, const tn_param **out, tern_error *err) {
    TN_FAIL_IF(!name, err, TERN_E_INVALID, "no name of a parameter given");
    *out = tn_param_find(name, strlen(name));
    TN_FAIL_IF(!*out, err, TERN_E_INVALID, "no parameter is called '%s'", name);
    return TERN_OK;
}

tern_status tern_options_set(tern_options *o, const char *name, const char *value, tern_error *err) {
    const tn_param *p;
    TN_FAIL_IF(!o || !value, err, TERN_E_INVALID, "tern_options_set needs options, a name and a value");
    TN_TRY(find(name, &p, err));
    size_t i = (size_t)(p - tn_param_at(0));
    char *copy = strdup(value);
    TN_FAIL_IF(!copy, err, TERN_E_MEMORY, "no memory for a value of %s", name);
    tern_status st = tn_param_set(o, p, copy, err);
    if (st == TERN_OK) {
        free(o->texts[i]);
        o->texts[i] = copy;
    } else {
        free(copy);
    }
    return st;
}

tern_status tern_options_get(const tern_options *o, const char *name, char *buf, size_t cap, size_t *n_bytes,
                             tern_error *err) {
    const tn_param *p;
    TN_FAIL_IF(!o || !n_bytes || (!buf && cap), err, TERN_E_INVALID,
               "tern_options_get needs options, a name, room for the value and a place for its length");
    TN_TRY(find(name, &p, err));
    char number[64] = "";
    const char *value = number;
    if (p->kind == TN_PARAM_TEXT || p->kind == TN_PARAM_CHOICE) {
        value = *(const char *const *)((const char *)o + p->offset);
        if (!value) value = "";
    } else {
        tn_param_format(o, p, number, sizeof number);
    }
    size_t n = strlen(value);
    *n_bytes = n;
    TN_FAIL_IF(n > cap, err, TERN_E_LIMIT, "%s has %zu bytes, there is room for %zu", name, n, cap);
    memcpy(buf, value, n);
    return TERN_OK;
}

tern_status tern_options_answer_sized(const tern_options *o, tern_session_options *session,
                                      size_t session_bytes, tern_generate_options *generate,
                                      size_t generate_bytes, tern_error *err) {
    TN_FAIL_IF(!o, err, TERN_E_INVALID, "no options given");
    tern_session_options so = o->session;
    tern_generate_options g = o->generate;
    so.size_bytes = session_bytes;
    g.size_bytes = generate_bytes;
    TN_FAIL_IF(session && tn_sized_out(session, session_bytes, &so, sizeof so,
                                       TN_SIZE_UP_TO(tern_session_options, n_ctx)) != TERN_OK,
               err, TERN_E_INVALID, "tern_session_options of %zu bytes are none", session_bytes);
    TN_FAIL_IF(generate && tn_sized_out(generate, generate_bytes, &g, sizeof g,
                                        TN_SIZE_UP_TO(tern_generate_options, user)) != TERN_OK,
               err, TERN_E_INVALID, "tern_generate_options of %zu bytes are none", generate_bytes);
    return TERN_OK;
}

tern_status tern_options_set_hooks(tern_options *o, const tern_hooks *hooks, tern_error *err) {
    TN_FAIL_IF(!o, err, TERN_E_INVALID, "no options given");
    tern_hooks h;
    tern_hooks_defaults(&h);
    if (hooks)
        TN_TRY(tn_sized_in(&h, sizeof h, hooks, hooks->size_bytes, TN_SIZE_UP_TO(tern_hooks, user),
                           "tern_hooks", err));
    o->own_hooks = h;
    o->hooks = hooks ? &o->own_hooks : NULL;
    return TERN_OK;
}

/* ---- for a package ------------------------------------------------------------------------------- */

/* Sets the lanes. Both are cores of one machine here, so no core stays idle unless the user wants to see a
 * phone's lanes. */
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
    e->n_lane_workers[TN_LANE_CPU] = o->cpu_threads ? o->cpu_threads : 1;
    e->n_lane_workers[TN_LANE_NPU] = o->npu_threads ? o->npu_threads : n_threads > 1 ? n_threads - 1 : 0;
    e->n_lane_workers[TN_LANE_IO] = 1; /* waits for reads, loads graphs */
    return TERN_OK;
}

static tern_status attention_of(tern_engine *e, const tern_options *o, tern_error *err) {
    tn_attn_options *a = &e->attention;
    *a = (tn_attn_options){.ratio = o->attention_ratio > 0 ? o->attention_ratio : 0.2f,
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
               "a plan of heads '%s': there is paper, or some of in-order, no-fusion, no-overlap",
               o->attention_plan);
    TN_FAIL_IF(a->decode && a->mode != TN_ATTN_FULL && a->mode != TN_ATTN_SHADOW, err, TERN_E_INVALID,
               "attention '%s' is a baseline for prompts: decoding is sparse with full and shadow only",
               mode);
    return TERN_OK;
}

tern_status tn_options_for_package(tern_engine *e, const char *path, const tn_pkg *pkg, const tern_options *o,
                                   int n_threads, tn_npu_model_options *out, tern_error *err) {
    TN_TRY(lanes_of(e, o, n_threads, err));
    TN_TRY(attention_of(e, o, err));
    size_t cap = strlen(path) + 16;
    e->profile_path = tn_alloc(&e->ctx, TN_MEM_OTHER, cap, 1);
    TN_FAIL_IF(!e->profile_path, err, TERN_E_MEMORY, "no memory for a path");
    snprintf(e->profile_path, cap, "%s.profile", path);
    *out = (tn_npu_model_options){.backend = o->npu,
                                  .n_threads = e->n_lane_workers[TN_LANE_NPU],
                                  .memory_cap_bytes = o->npu_memory_bytes,
                                  .chunk = o->chunk,
                                  .cold_rows = o->cold_rows,
                                  .no_chunk_sharing = o->no_chunk_sharing,
                                  .separate_weights = o->npu_separate_weights,
                                  .apart = o->npu_apart,
                                  .switch_blocks = o->switch_blocks,
                                  .scratch_bytes = o->npu_vtcm_bytes};
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
