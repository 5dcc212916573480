/* What a package says of itself: hyperparameters, the heads' scales, times. */
#include "base/json.h"
#include "package/impl.h"

#include "base/status.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include <jansson.h>

typedef struct reader {
    const json_t *o;
    bool ok;
    const char *missing;
} reader;

static void miss(reader *r, const char *key) {
    if (r->ok) r->missing = key;
    r->ok = false;
}

static int32_t int_of(reader *r, const char *key, int32_t min, int32_t max) {
    const json_t *v = json_object_get(r->o, key);
    json_int_t i = json_integer_value(v);
    if (!json_is_integer(v) || i < min || i > max) {
        miss(r, key);
        return min;
    }
    return (int32_t)i;
}

static float float_of(reader *r, const char *key) {
    const json_t *v = json_object_get(r->o, key);
    double d = json_number_value(v);
    if (!json_is_number(v) || !isfinite(d)) miss(r, key);
    return (float)d;
}

/* Reads a number between min and max, both excluded; 0 counts too where `zero` allows it. config.json and
 * GGUF are held to the same ranges. */
static float range_of(reader *r, const char *key, float min, float max, bool zero) {
    float v = float_of(r, key);
    if (!((v > min || (zero && v == 0)) && v < max)) miss(r, key);
    return v;
}

static bool bool_of(reader *r, const char *key) {
    const json_t *v = json_object_get(r->o, key);
    if (!json_is_boolean(v)) miss(r, key);
    return json_is_true(v);
}

static void text_of(reader *r, const char *key, char *dst, size_t cap) {
    const char *s = json_string_value(json_object_get(r->o, key));
    if (!s || strlen(s) >= cap) miss(r, key);
    else memcpy(dst, s, strlen(s) + 1);
}

/* A number that packages of most architectures do not have. */
static double extra_of(reader *r, const char *key, double fallback, double min, double max) {
    const json_t *v = json_object_get(r->o, key);
    double d = v ? json_number_value(v) : fallback;
    if ((v && !json_is_number(v)) || !(d >= min && d <= max)) miss(r, key);
    return d >= min && d <= max ? d : min;
}

/* An operator that this program does not know would be left out of what is computed. */
static void no_unknown(reader *r) {
    static const char *const known[] = {"norm",
                                        "norm_eps",
                                        "act",
                                        "gated",
                                        "parallel_block",
                                        "post_norms",
                                        "qk_norm",
                                        "tied",
                                        "embd_scale",
                                        "attn_scale",
                                        "attn_soft_cap",
                                        "logit_soft_cap",
                                        "window",
                                        "window_pattern",
                                        "no_pre_norms",
                                        "qk_norm_whole",
                                        "qk_norm_last",
                                        "residual_scale",
                                        "logit_scale",
                                        "temp_scale",
                                        "temp_every",
                                        "no_rope_pattern",
                                        "local_rope",
                                        "attn_gate",
                                        "conv_len",
                                        "delta_heads",
                                        "delta_key_heads",
                                        "delta_d_key",
                                        "delta_d_value",
                                        "delta_tiled",
                                        "delta_mamba",
                                        "delta_no_norm",
                                        "delta_norm_first",
                                        "layer_kinds",
                                        "sinks",
                                        "experts",
                                        "experts_used",
                                        "experts_ff",
                                        "experts_behind",
                                        "experts_norm",
                                        "experts_sigmoid",
                                        "experts_bias",
                                        "experts_scale",
                                        "shared_expert",
                                        "shared_gate",
                                        "experts_beside",
                                        "swiglu_limit",
                                        "window_d_head",
                                        "window_kv_heads",
                                        "window_rot",
                                        "kv_shared",
                                        "ff_shared",
                                        "v_norm",
                                        "v_is_k",
                                        "layer_scale",
                                        "layer_embedding",
                                        "streams",
                                        "laurel_rank",
                                        "sparse_layers",
                                        "sparse_deviations"};
    const char *key;
    json_t *v;
    json_object_foreach((json_t *)(uintptr_t)r->o, key, v) {
        bool found = false;
        for (size_t i = 0; i < sizeof known / sizeof known[0] && !found; i++) found = !strcmp(known[i], key);
        if (!found) miss(r, "operators (one of them is unknown)");
    }
}

/* What the layers mix their tokens by: a letter for each where some do not attend. */
static void mixing_of(reader *r, tn_hparams *h) {
    const char *kinds = json_string_value(json_object_get(r->o, "layer_kinds"));
    bool conv = false, delta = false;
    if (!r->ok) return;
    if (kinds && strlen(kinds) != (size_t)h->n_layers) miss(r, "layer_kinds");
    for (int32_t l = 0; r->ok && kinds && l < h->n_layers; l++) {
        static const char letters[] = "acdb"; /* of tn_layer_kind, in its order */
        const char *at = kinds[l] ? strchr(letters, kinds[l]) : NULL;
        if (!at) miss(r, "layer_kinds");
        else h->layer_kind[l] = (uint8_t)(at - letters), conv |= *at == 'c', delta |= tn_layer_recurs(h, l);
    }
    if (r->ok && !tn_n_attending(h)) miss(r, "layer_kinds");
    h->attn_gate = extra_of(r, "attn_gate", 0, 0, 1) != 0;
    h->conv_len = (int32_t)extra_of(r, "conv_len", 0, conv || delta ? 2 : 0, conv || delta ? TN_MAX_CONV : 0);
    h->delta = (tn_delta_net){
        .n_heads = (int32_t)extra_of(r, "delta_heads", 0, delta, delta ? 1 << 12 : 0),
        .n_key_heads = (int32_t)extra_of(r, "delta_key_heads", 0, delta, delta ? 1 << 12 : 0),
        .d_key = (int32_t)extra_of(r, "delta_d_key", 0, delta ? 2 : 0, delta ? TN_MAX_DELTA : 0),
        .d_value = (int32_t)extra_of(r, "delta_d_value", 0, delta ? TN_DELTA_COLS : 0, delta ? 1 << 12 : 0),
        .tiled = extra_of(r, "delta_tiled", 0, 0, 1) != 0,
        .mamba = extra_of(r, "delta_mamba", 0, 0, 1) != 0};
    h->delta.no_norm = extra_of(r, "delta_no_norm", 0, 0, h->delta.mamba) != 0;
    h->delta.norm_first = extra_of(r, "delta_norm_first", 0, 0, h->delta.mamba) != 0;
    for (int32_t l = 0; r->ok && l < h->n_layers; l++) /* which has a list of its own */
        if (h->layer_kind[l] == TN_LAYER_BOTH &&
            (!h->delta.mamba || h->attn_gate || h->post_norms || h->no_pre_norms || h->parallel_block))
            miss(r, "layer_kinds");
    if (r->ok && delta &&
        (h->delta.n_heads % h->delta.n_key_heads || h->delta.d_key % 2 || h->delta.d_value % TN_DELTA_COLS))
        miss(r, "delta_heads");
}

/* A mixture of experts, where there is one. Each one's channels are whole column tiles, because its weights are
 * a part of all experts' (sites.c). */
static void experts_of(reader *r, tn_hparams *h) {
    h->n_experts = (int32_t)extra_of(r, "experts", 0, 0, TN_MAX_EXPERTS);
    const int32_t any = h->n_experts > 0;
    h->n_experts_used = (int32_t)extra_of(r, "experts_used", 0, any, h->n_experts);
    h->n_ff_exp = (int32_t)extra_of(r, "experts_ff", 0, any, any ? 1 << 18 : 0);
    h->n_dense = (int32_t)extra_of(r, "experts_behind", 0, 0, any ? h->n_layers - 1 : 0);
    h->experts_norm = extra_of(r, "experts_norm", 0, 0, any) != 0;
    h->experts_sigmoid = extra_of(r, "experts_sigmoid", 0, 0, any) != 0;
    h->experts_bias = extra_of(r, "experts_bias", 0, 0, any) != 0;
    h->experts_scale = (float)extra_of(r, "experts_scale", 1, 1e-6, 1e6);
    h->shared_expert = extra_of(r, "shared_expert", 0, 0, any) != 0;
    h->shared_gate = extra_of(r, "shared_gate", 0, 0, h->shared_expert) != 0;
    h->experts_beside = extra_of(r, "experts_beside", 0, 0, any && !h->shared_expert && !h->n_dense) != 0;
    h->swiglu_limit = (float)extra_of(r, "swiglu_limit", 0, 0, 1e6);
    if (r->ok && h->n_ff_exp % TN_EXPERT_CHANNELS) miss(r, "experts_ff");
    if (r->ok && any && (h->n_embd % TN_EXPERT_CHANNELS || h->parallel_block || !h->gated))
        miss(r, "experts");
}

/* What layers differ in, and share. */
static void layers_of(reader *r, tn_hparams *h) {
    h->window_d_head = (int32_t)extra_of(r, "window_d_head", 0, 0, 512);
    h->window_kv_heads = (int32_t)extra_of(r, "window_kv_heads", 0, 0, h->n_heads);
    h->window_rot = (int32_t)extra_of(r, "window_rot", 0, 0, TN_MAX_ROT);
    h->n_kv_shared = (int32_t)extra_of(r, "kv_shared", 0, 0, h->n_layers - 1);
    h->n_ff_shared = (int32_t)extra_of(r, "ff_shared", 0, 0, h->n_kv_shared ? 1 << 18 : 0);
    h->v_norm = extra_of(r, "v_norm", 0, 0, 1) != 0;
    h->v_is_k = extra_of(r, "v_is_k", 0, 0, 1) != 0;
    h->layer_scale = extra_of(r, "layer_scale", 0, 0, 1) != 0;
    h->n_ple = (int32_t)extra_of(r, "layer_embedding", 0, 0, 1 << 12);
    h->n_streams = (int32_t)extra_of(r, "streams", 0, 0, TN_STREAMS);
    const int32_t any = h->n_streams > 0;
    h->laurel_rank = (int32_t)extra_of(r, "laurel_rank", 0, any, any ? 1 << 14 : 0);
    h->n_sparse = (int32_t)extra_of(r, "sparse_layers", 0, 0, any ? h->n_layers : 0);
    h->sparse_deviations = (float)extra_of(r, "sparse_deviations", 0, 0, h->n_sparse ? 100 : 0);
    if (r->ok && any && (h->n_streams != TN_STREAMS || !h->n_ple || h->parallel_block || !h->gated))
        miss(r, "streams");
    if (r->ok && tn_layers_wrong(h)) miss(r, tn_layers_wrong(h));
}

static void parse_hparams(reader *r, const json_t *meta, tn_hparams *h) {
    r->o = json_object_get(meta, "hparams");
    text_of(r, "arch", h->arch, sizeof h->arch);
    text_of(r, "name", h->name, sizeof h->name);
    h->n_layers = int_of(r, "n_layers", 1, TN_MAX_LAYERS);
    h->n_embd = int_of(r, "n_embd", 1, 1 << 16);
    h->n_heads = int_of(r, "n_heads", 1, 1 << 12);
    h->n_kv_heads = int_of(r, "n_kv_heads", 1, 1 << 12);
    h->d_head = int_of(r, "d_head", 1, 512);
    h->n_ff = int_of(r, "n_ff", 1, TN_NPU_MAX_OPS << 16);
    h->n_vocab = int_of(r, "n_vocab", 1, 1 << 24);
    h->ctx_train = int_of(r, "ctx_train", 1, 1 << 24);
    if (r->ok && h->n_heads % h->n_kv_heads) miss(r, "n_kv_heads");
    r->o = json_object_get(meta, "operators");
    h->norm = (tn_norm_kind)int_of(r, "norm", TN_NORM_RMS, TN_NORM_LAYER);
    h->norm_eps = range_of(r, "norm_eps", 0, 1, false);
    h->act = (tn_act)int_of(r, "act", TN_ACT_SILU, TN_ACT_RELU2);
    h->gated = bool_of(r, "gated");
    h->parallel_block = bool_of(r, "parallel_block");
    h->post_norms = bool_of(r, "post_norms");
    h->qk_norm = bool_of(r, "qk_norm");
    h->tied = bool_of(r, "tied");
    h->embd_scale = range_of(r, "embd_scale", 0, 1e6f, false);
    h->attn_scale = range_of(r, "attn_scale", 0, 1e6f, false);
    h->attn_soft_cap = range_of(r, "attn_soft_cap", 0, 1e6f, true);
    h->logit_soft_cap = range_of(r, "logit_soft_cap", 0, 1e6f, true);
    h->window = int_of(r, "window", 0, INT32_MAX);
    h->window_pattern = int_of(r, "window_pattern", 0, TN_MAX_LAYERS);
    h->no_pre_norms = extra_of(r, "no_pre_norms", 0, 0, 1) != 0;
    h->qk_norm_whole = extra_of(r, "qk_norm_whole", 0, 0, 1) != 0;
    h->qk_norm_last = extra_of(r, "qk_norm_last", 0, 0, 1) != 0;
    h->residual_scale = (float)extra_of(r, "residual_scale", 1, 1e-6, 1e6);
    h->logit_scale = (float)extra_of(r, "logit_scale", 1, 1e-6, 1e6);
    h->temp_scale = (float)extra_of(r, "temp_scale", 0, 0, 100);
    h->temp_every = (int32_t)extra_of(r, "temp_every", 0, h->temp_scale > 0, INT32_MAX);
    h->no_rope_pattern = (int32_t)extra_of(r, "no_rope_pattern", 0, 0, TN_MAX_LAYERS);
    h->local_rope = extra_of(r, "local_rope", 0, 0, 1) != 0;
    h->sinks = extra_of(r, "sinks", 0, 0, 1) != 0;
    mixing_of(r, h);
    experts_of(r, h);
    const json_t *operators = r->o;
    r->o = json_object_get(meta, "rope");
    h->n_rot = int_of(r, "n_rot", 0, TN_MAX_ROT);
    h->rope_base = (double)range_of(r, "rope_base", 1, 1e12f, false);
    h->rope_orig_ctx = int_of(r, "rope_orig_ctx", 0, INT32_MAX);
    h->rope_mscale = range_of(r, "rope_mscale", 0, 1e3f, false);
    if (r->ok && (h->n_rot % 2 || h->n_rot > h->d_head || h->d_head % 4)) miss(r, "n_rot");
    r->o = operators;
    layers_of(r, h);
    if (r->ok && h->window_rot > h->n_rot) miss(r, "window_rot");
    no_unknown(r);
}

static tern_status load_meta(tn_ctx *ctx, const tn_pkg *pkg, json_t **meta, tern_error *err) {
    const tn_pkg_section *s = tn_pkg_find(pkg, TN_PKG_META, -1);
    TN_FAIL_IF(!s || s->size_bytes > 1 << 20, err, TERN_E_FORMAT, "package without (sane) metadata");
    char *text = tn_alloc(ctx, TN_MEM_OTHER, s->size_bytes, 1);
    TN_FAIL_IF(!text, err, TERN_E_MEMORY, "no memory for package metadata");
    tern_status st = tn_pkg_read(pkg, s, text, err);
    json_error_t je;
    *meta = st == TERN_OK ? tn_json_parse(text, s->size_bytes, 0, &je) : NULL;
    tn_free(ctx, text);
    if (st != TERN_OK) return st;
    TN_FAIL_IF(!*meta, err, TERN_E_FORMAT, "package metadata is not JSON: %s", je.text);
    return TERN_OK;
}

/* Reads n positive numbers. Returns false where the array is anything else. */
static bool numbers_of(const json_t *a, float *out, size_t n) {
    bool ok = json_array_size(a) == n;
    for (size_t i = 0; ok && i < n; i++) {
        double v = json_number_value(json_array_get(a, i));
        ok = v > 1e-30 && v < 1e30;
        out[i] = (float)v;
    }
    return ok;
}

/* Reads what sparse attention needs. A package without it works in every other way. */
tern_status tn_npu_model_read_heads(tn_npu_model *m, const tn_hparams *h, tern_error *err) {
    json_t *meta;
    TN_TRY(load_meta(m->ctx, m->pkg, &meta, err));
    const json_t *a = json_object_get(meta, "attention"), *rows = json_object_get(a, "head_weight");
    size_t n_layers = (size_t)h->n_layers, n_heads = (size_t)h->n_heads;
    float *q = NULL, *k = NULL, *w = NULL;
    tern_status st = TERN_OK;
    if (a) {
        q = tn_alloc(m->ctx, TN_MEM_OTHER, n_layers, sizeof *q);
        k = tn_alloc(m->ctx, TN_MEM_OTHER, n_layers, sizeof *k);
        w = tn_alloc(m->ctx, TN_MEM_OTHER, n_layers * n_heads, sizeof *w);
        if (!q || !k || !w) st = tn_fail(err, TERN_E_MEMORY, "no memory for the heads' scales");
        bool ok = st == TERN_OK && numbers_of(json_object_get(a, "scale_q"), q, n_layers) &&
                  numbers_of(json_object_get(a, "scale_k"), k, n_layers) && json_array_size(rows) == n_layers;
        for (size_t l = 0; ok && l < n_layers; l++)
            ok = numbers_of(json_array_get(rows, l), w + l * n_heads, n_heads);
        if (st == TERN_OK && !ok)
            st = tn_fail(err, TERN_E_FORMAT, "package metadata: 'attention' does not fit the model's heads");
    }
    json_decref(meta);
    m->attn_scale_q = q;
    m->attn_scale_k = k;
    m->attn_head_weight = w;
    return st == TERN_OK ? tn_package_attn_times(m->ctx, m->pkg, &m->attn_times, err) : st;
}

tern_status tn_package_attn_times(tn_ctx *ctx, const tn_pkg *pkg, tn_attn_times *out, tern_error *err) {
    json_t *meta;
    *out = (tn_attn_times){0};
    TN_TRY(load_meta(ctx, pkg, &meta, err));
    const json_t *times =
        json_object_get(json_object_get(meta, "attention"), "times"); /* older packages have none */
    bool ok = !times || tn_attn_times_read(times, out);
    json_decref(meta);
    TN_FAIL_IF(!ok, err, TERN_E_FORMAT, "package metadata: the times of 'attention' are none");
    return TERN_OK;
}

bool tn_package_holds_next(const tn_hparams *h) {
    bool plain = h->norm == TN_NORM_RMS && !h->parallel_block && !h->window && !h->no_rope_pattern &&
                 !h->sinks && !h->delta.mamba && !h->experts_beside && !h->n_streams && !h->n_ple &&
                 !h->n_kv_shared && !h->layer_scale;
    bool dense = !h->n_experts || h->shared_expert;
    return plain && h->n_layers < TN_MAX_LAYERS && h->n_embd % 32 == 0 && (!dense || h->n_ff % 32 == 0) &&
           (!h->n_experts || h->n_ff_exp % 32 == 0) && h->n_heads * h->d_head % 32 == 0;
}

tern_status tn_package_hparams(tn_ctx *ctx, const tn_pkg *pkg, tn_hparams *h, char scheme[24],
                               char description[64], uint64_t *n_params, tern_error *err) {
    memset(h, 0, sizeof *h);
    json_t *meta;
    TN_TRY(load_meta(ctx, pkg, &meta, err));
    reader r = {.o = meta, .ok = true};
    text_of(&r, "scheme", scheme, 24);
    char source[64];
    text_of(&r, "source", source, sizeof source);
    if (r.ok) snprintf(description, 64, "package, %s", scheme);
    int32_t layout = int_of(&r, "layout", 1, 1 << 20);
    *n_params = (uint64_t)json_integer_value(json_object_get(meta, "n_params"));
    parse_hparams(&r, meta, h);
    r.o = meta;
    if (json_object_get(meta, "next_layers")) h->n_next = int_of(&r, "next_layers", 1, 1);
    if (r.ok && h->n_next && !tn_package_holds_next(h)) miss(&r, "next_layers");
    json_decref(meta);
    TN_FAIL_IF(!r.ok, err, TERN_E_FORMAT, "package metadata: '%s' is missing or out of range", r.missing);
    TN_FAIL_IF(layout != TN_NPU_LAYOUT_16X4, err, TERN_E_UNSUPPORTED,
               "the package's weights are tiled for another device (layout %d, this one wants %d); pack the "
               "model again",
               layout, TN_NPU_LAYOUT_16X4);
    return TERN_OK;
}

bool tn_weights_form_parse(const char *name, tn_weights_form *out) {
    static const char *const names[] = {"tiles", "packed", "auto"};
    for (int i = 0; i <= TN_WEIGHTS_AUTO; i++) {
        if (strcmp(name, names[i])) continue;
        *out = (tn_weights_form)i;
        return true;
    }
    return false;
}

bool tn_load_mode_parse(const char *name, tn_load_mode *out) {
    static const char *const names[TN_N_LOAD_MODES] = {"stream", "overlap", "sequential", "mmap"};
    for (int i = 0; i < TN_N_LOAD_MODES; i++) {
        if (strcmp(name, names[i])) continue;
        *out = (tn_load_mode)i;
        return true;
    }
    return false;
}
