/* A package's metadata: hyperparameters, the heads' scales, times. */
#include "base/json.h"
#include "model/properties.h"
#include "package/impl.h"

#include "base/status.h"

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

static void text_of(reader *r, const char *key, char *dst, size_t cap) {
    const char *s = json_string_value(json_object_get(r->o, key));
    if (!s || strlen(s) >= cap) miss(r, key);
    else memcpy(dst, s, strlen(s) + 1);
}

/* How each layer mixes tokens, a letter per layer, where some do not attend. */
static void kinds_of(reader *r, const tn_property *p, const json_t *v, tn_hparams *h) {
    const char *kinds = json_string_value(v);
    if (!kinds || strlen(kinds) != (size_t)h->n_layers) {
        miss(r, p->key);
        return;
    }
    for (int32_t l = 0; l < h->n_layers; l++) {
        const char *at = strchr(tn_layer_letters, kinds[l]);
        if (!at) miss(r, p->key);
        else h->layer_kind[l] = (uint8_t)(at - tn_layer_letters);
    }
}

static void list_of(reader *r, const tn_property *p, const json_t *v, tn_hparams *h) {
    bool ok = json_is_array(v) && json_array_size(v) == (size_t)h->n_layers;
    for (int32_t l = 0; l < h->n_layers && ok; l++) {
        const json_t *x = json_array_get(v, (size_t)l);
        ok = json_is_number(x) && tn_property_ok(p, json_number_value(x));
        if (ok) tn_property_numbers(p, h)[l] = (float)json_number_value(x);
    }
    if (!ok) miss(r, p->key);
}

static void property_of(reader *r, const tn_property *p, const json_t *v, tn_hparams *h) {
    if (p->type == TN_PROPERTY_KINDS) {
        if (v) kinds_of(r, p, v, h);
        return;
    }
    if (p->type == TN_PROPERTY_NUMBERS) {
        if (v) list_of(r, p, v, h);
        return;
    }
    const bool plain = p->always && p->type == TN_PROPERTY_BOOL;
    const double x = !v ? p->none : plain ? json_is_true(v) : json_number_value(v);
    const bool typed = !v                                        ? !p->always
                       : plain                                   ? json_is_boolean(v)
                       : p->always && p->type == TN_PROPERTY_INT ? json_is_integer(v)
                                                                 : json_is_number(v);
    if (!typed || !tn_property_ok(p, x)) miss(r, p->key);
    else tn_property_set(p, h, x);
}

/* An unknown operator would be left out of the computation. */
static void no_unknown(reader *r, const tn_property *p, size_t n) {
    const char *key;
    json_t *v;
    json_object_foreach((json_t *)(uintptr_t)r->o, key, v) {
        bool found = false;
        for (size_t i = 0; i < n && !found; i++)
            found = !strcmp(p[i].section, "operators") && !strcmp(p[i].key, key);
        if (!found) miss(r, "operators (one of them is unknown)");
    }
}

/* Returns the key of a property that contradicts the others; NULL: none. An expert's channels must be
 * whole column tiles, because its weights are part of one matrix of all experts (sites.c). */
static const char *does_not_fit(const tn_hparams *h) {
    bool conv = false, delta = false, both = false, feeds = false;
    for (int32_t l = 0; l < h->n_layers; l++) {
        conv |= h->layer_kind[l] == TN_LAYER_CONVOLVES;
        both |= h->layer_kind[l] == TN_LAYER_BOTH;
        feeds |= h->layer_kind[l] == TN_LAYER_FEEDS;
        delta |= tn_layer_recurs(h, l);
    }
    const tn_delta_net *d = &h->delta;
    const bool none = delta && !tn_n_attending(h), alone = h->single && !feeds && none; /* all state spaces */
    const bool experts = h->n_experts > 0, streams = h->n_streams > 0;
    const struct {
        bool wrong;
        const char *key;
    } rules[] = {
        {h->n_heads % h->n_kv_heads, "n_kv_heads"},
        {h->temp_scale > 0 && !h->temp_every, "temp_every"},
        {!tn_n_attending(h) && !alone && !(none && d->wkv && !conv), "layer_kinds"},
        {!tn_wkv_ok(h) || (d->wkv && (tn_n_attending(h) || h->single || h->parallel_block || streams)),
         "delta_wkv"},
        {feeds != (h->single && !alone) ||
             (feeds && (h->n_dense || h->parallel_block || h->n_streams || h->n_ple)),
         "single_blocks"},
        /* such a layer has a list of its own */
        {both && (!d->mamba || h->attn_gate || h->post_norms || h->no_pre_norms || h->parallel_block),
         "layer_kinds"},
        {conv || delta ? h->conv_len < 2 : h->conv_len > 0, "conv_len"},
        {delta != (d->n_heads > 0), "delta_heads"},
        {delta != (d->n_key_heads > 0), "delta_key_heads"},
        {delta ? d->d_key < 2 : d->d_key > 0, "delta_d_key"},
        {delta ? d->d_value < TN_DELTA_COLS : d->d_value > 0, "delta_d_value"},
        {d->no_norm && !d->mamba && !d->wkv, "delta_no_norm"},
        {d->norm_first && !d->mamba, "delta_norm_first"},
        {delta && d->n_key_heads > 0 && d->n_heads % d->n_key_heads, "delta_heads"},
        {delta && (d->d_key % 2 || d->d_value % TN_DELTA_COLS), "delta_heads"},
        {experts != (h->n_experts_used > 0) || h->n_experts_used > h->n_experts, "experts_used"},
        {experts != (h->n_ff_exp > 0) || h->n_ff_exp % TN_EXPERT_CHANNELS, "experts_ff"},
        {h->n_dense > (experts ? h->n_layers - 1 : 0), "experts_behind"},
        {!experts && (h->experts_norm || h->experts_sigmoid || h->experts_bias || h->shared_expert),
         "experts"},
        {h->shared_gate && !h->shared_expert, "shared_gate"},
        {h->sub_norms && (experts || conv || delta || streams || h->parallel_block || tn_latent(h) ||
                          h->n_kv_shared || h->window_d_head),
         "sub_norms"},
        {!tn_experts_groups_ok(h), "experts_groups"},
        {h->window_chunks && (!h->window || h->bidirectional), "window_chunks"},
        {h->temp_no_rope && !h->temp_every, "temp_no_rope"},
        {h->qk_norm_plain && (h->qk_norm || h->window_d_head || tn_latent(h)), "qk_norm_plain"},
        {h->experts_before && (h->n_experts_used != 1 || h->experts_beside), "experts_before"},
        {h->experts_every &&
             (!experts || h->experts_every > h->n_layers || h->n_dense || h->single || h->experts_beside),
         "experts_every"},
        {h->experts_mixer > 0 && (h->n_experts_used != 2 || h->experts_sigmoid || h->experts_bias ||
                                  h->experts_groups || h->experts_beside),
         "experts_mixer"},
        {h->experts_beside && (!experts || h->shared_expert || h->n_dense), "experts_beside"},
        {experts && (h->n_embd % TN_EXPERT_CHANNELS || h->parallel_block), "experts"},
        {h->n_rot % 2 || h->n_rot > h->d_head || h->d_head % 4, "n_rot"},
        {h->window_kv_heads > h->n_heads, "window_kv_heads"},
        {h->window_rot > h->n_rot, "window_rot"},
        {h->n_kv_shared > h->n_layers - 1, "kv_shared"},
        {h->n_ff_shared && !h->n_kv_shared, "ff_shared"},
        {streams != (h->laurel_rank > 0), "laurel_rank"},
        {h->n_sparse > (streams ? h->n_layers : 0), "sparse_layers"},
        {h->sparse_deviations > 0 && !h->n_sparse, "sparse_deviations"},
        {streams && (h->n_streams != TN_STREAMS || !h->n_ple || h->parallel_block || !h->gated), "streams"}};
    for (size_t i = 0; i < sizeof rules / sizeof rules[0]; i++)
        if (rules[i].wrong) return rules[i].key;
    return tn_layers_wrong(h);
}

static void parse_hparams(reader *r, const json_t *meta, tn_hparams *h) {
    r->o = json_object_get(meta, "hparams");
    text_of(r, "arch", h->arch, sizeof h->arch);
    text_of(r, "name", h->name, sizeof h->name);
    size_t n;
    const tn_property *p = tn_properties(&n);
    for (size_t i = 0; r->ok && i < n; i++) /* the number of layers comes first */
        property_of(r, &p[i], json_object_get(json_object_get(meta, p[i].section), p[i].key), h);
    r->o = json_object_get(meta, "operators");
    no_unknown(r, p, n);
    const char *wrong = r->ok ? does_not_fit(h) : NULL;
    if (wrong) miss(r, wrong);
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

/* Reads n positive numbers. Returns false if the array holds anything else. */
static bool numbers_of(const json_t *a, float *out, size_t n) {
    bool ok = json_array_size(a) == n;
    for (size_t i = 0; ok && i < n; i++) {
        double v = json_number_value(json_array_get(a, i));
        ok = v > 1e-30 && v < 1e30;
        out[i] = (float)v;
    }
    return ok;
}

/* Reads the data for sparse attention. A package without it works in every other way. */
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
                 !h->sinks && !h->delta.mamba && !tn_delta_by_key(&h->delta) && !h->experts_beside &&
                 !h->n_streams && !h->n_ple && !h->n_kv_shared && !h->layer_scale;
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
