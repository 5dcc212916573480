#include "package/npu_model.h"

#include "base/status.h"
#include "package/loader.h"
#include "package/switching.h"

#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

/* ---- META ---------------------------------------------------------------------------------------- */

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
    h->norm_eps = float_of(r, "norm_eps");
    h->act = (tn_act)int_of(r, "act", TN_ACT_SILU, TN_ACT_RELU2);
    h->gated = bool_of(r, "gated");
    h->parallel_block = bool_of(r, "parallel_block");
    h->post_norms = bool_of(r, "post_norms");
    h->qk_norm = bool_of(r, "qk_norm");
    h->tied = bool_of(r, "tied");
    h->embd_scale = float_of(r, "embd_scale");
    h->attn_scale = float_of(r, "attn_scale");
    h->attn_soft_cap = float_of(r, "attn_soft_cap");
    h->logit_soft_cap = float_of(r, "logit_soft_cap");
    h->window = int_of(r, "window", 0, INT32_MAX);
    h->window_pattern = int_of(r, "window_pattern", 0, TN_MAX_LAYERS);
    r->o = json_object_get(meta, "rope");
    h->n_rot = int_of(r, "n_rot", 0, TN_MAX_ROT);
    h->rope_base = (double)float_of(r, "rope_base");
    h->rope_orig_ctx = int_of(r, "rope_orig_ctx", 0, INT32_MAX);
    h->rope_mscale = float_of(r, "rope_mscale");
    if (r->ok && (h->n_rot % 2 || h->n_rot > h->d_head || h->d_head % 4)) miss(r, "n_rot");
}

static tern_status load_meta(tn_ctx *ctx, const tn_pkg *pkg, json_t **meta, tern_error *err) {
    const tn_pkg_section *s = tn_pkg_find(pkg, TN_PKG_META, -1);
    TN_FAIL_IF(!s || s->size_bytes > 1 << 20, err, TERN_E_FORMAT, "package without (sane) metadata");
    char *text = tn_alloc(ctx, TN_MEM_OTHER, s->size_bytes, 1);
    TN_FAIL_IF(!text, err, TERN_E_MEMORY, "no memory for package metadata");
    tern_status st = tn_pkg_read(pkg, s, text, err);
    json_error_t je;
    *meta = st == TERN_OK ? json_loadb(text, s->size_bytes, 0, &je) : NULL;
    tn_free(ctx, text);
    if (st != TERN_OK) return st;
    TN_FAIL_IF(!*meta, err, TERN_E_FORMAT, "package metadata is not JSON: %s", je.text);
    return TERN_OK;
}

/* n positive numbers; false where the array is anything else. */
static bool numbers_of(const json_t *a, float *out, size_t n) {
    bool ok = json_array_size(a) == n;
    for (size_t i = 0; ok && i < n; i++) {
        double v = json_number_value(json_array_get(a, i));
        ok = v > 1e-30 && v < 1e30;
        out[i] = (float)v;
    }
    return ok;
}

/* What sparse attention needs; a package without it works but for that. */
static tern_status read_heads(tn_npu_model *m, const tn_hparams *h, tern_error *err) {
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
    json_decref(meta);
    TN_FAIL_IF(!r.ok, err, TERN_E_FORMAT, "package metadata: '%s' is missing or out of range", r.missing);
    TN_FAIL_IF(layout != TN_NPU_LAYOUT_16X4, err, TERN_E_UNSUPPORTED,
               "the package's weights are tiled for another device (layout %d, this one wants %d); pack the "
               "model again",
               layout, TN_NPU_LAYOUT_16X4);
    return TERN_OK;
}

bool tn_weights_form_parse(const char *name, tn_weights_form *out) {
    static const char *const names[TN_N_WEIGHTS_FORMS] = {"tiles", "packed"};
    for (int i = 0; i < TN_N_WEIGHTS_FORMS; i++) {
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

/* ---- sections ------------------------------------------------------------------------------------ */

/* The small tensors of a section: where they are, or will be. */
typedef struct section_view {
    const char *base;
    const tn_pkg_record *records;
    size_t n;
} section_view;

static section_view view_of(const tn_npu_model *m, int layer) {
    section_view v = {.base = m->small[layer + 1]};
    v.records =
        tn_pkg_records(m->pkg, tn_pkg_find(m->pkg, layer < 0 ? TN_PKG_MODEL : TN_PKG_LAYER, layer), &v.n);
    return v;
}

/* The payload of a record that must have exactly n_bytes; NULL with err filled when it is missing or odd. */
static const void *payload(const section_view *v, tn_role role, tn_pkg_part part, uint64_t n_bytes, int layer,
                           tern_error *err) {
    const tn_pkg_record *r = tn_pkg_record_find(v->records, v->n, (uint32_t)role, (uint32_t)part);
    if (!r || r->size_bytes != n_bytes) {
        tn_fail(err, TERN_E_FORMAT, "layer %d: %s (part %d) has %" PRIu64 " bytes, its shape needs %" PRIu64,
                layer, tn_role_name(role), (int)part, r ? r->size_bytes : 0, n_bytes);
        return NULL;
    }
    return v->base + r->off_bytes;
}

static tern_status copy_vector(tn_ctx *ctx, const section_view *v, const tn_hparams *h, int layer,
                               tn_role role, bool required, float **out, tern_error *err) {
    tn_free(ctx, *out); /* of a run that was cancelled behind this */
    *out = NULL;
    if (!required && !tn_pkg_record_find(v->records, v->n, (uint32_t)role, TN_PKG_F32)) return TERN_OK;
    int64_t rows, cols;
    tn_role_shape(h, role, &rows, &cols);
    const void *p = payload(v, role, TN_PKG_F32, (uint64_t)cols * sizeof(float), layer, err);
    if (!p) return TERN_E_FORMAT;
    *out = tn_alloc(ctx, TN_MEM_WEIGHTS, (size_t)cols, sizeof(float));
    TN_FAIL_IF(!*out, err, TERN_E_MEMORY, "no memory for %s", tn_role_name(role));
    memcpy(*out, p, (size_t)cols * sizeof(float));
    return TERN_OK;
}

static uint64_t padded(int64_t n) { return (uint64_t)((n + 15) / 16 * 16); }

static uint64_t tiles_bytes(int64_t n, int64_t k) {
    const tn_npu_layout layout = {TN_NPU_LAYOUT_16X4, 16, 4};
    return tn_npu_tiles_bytes(&layout, n, k);
}

static uint64_t aligned(uint64_t n) { return (n + TN_AIO_ALIGN - 1) / TN_AIO_ALIGN * TN_AIO_ALIGN; }

/* The large record of a linear, tiles or (layers only) weightlets, of the right shape. */
static const tn_pkg_record *tiles_record(const tn_npu_model *m, tn_role role, int64_t n, int64_t k, int layer,
                                         tern_error *err) {
    const tn_pkg_section *s = tn_pkg_find(m->pkg, layer < 0 ? TN_PKG_HEAD : TN_PKG_LAYER, layer);
    size_t n_records;
    const tn_pkg_record *records = tn_pkg_records(m->pkg, s, &n_records),
                        *r = tn_pkg_record_find(records, n_records, (uint32_t)role, TN_PKG_TILES);
    if (r && r->n == n && r->k == k && r->size_bytes == tiles_bytes(n, k)) return r;
    if (!r && layer >= 0) r = tn_pkg_record_find(records, n_records, (uint32_t)role, TN_PKG_WEIGHTLETS);
    if (r && r->part == TN_PKG_WEIGHTLETS && r->n == n && r->k == k)
        return r; /* its size depends on widths that are still in the file */
    tn_fail(err, TERN_E_FORMAT, "layer %d: the weights of %s are missing or not %" PRId64 " x %" PRId64,
            layer, tn_role_name(role), n, k);
    return NULL;
}

/* Scales, sums and biases of a linear, beside tiles (r NULL) or the weightlets of record r. */
static tern_status linear_data(const section_view *v, tn_role role, int64_t n, int layer, int8_t *weights,
                               const tn_pkg_record *r, tn_npu_weights_data *d, tern_error *err) {
    /* the device takes pointers to writable memory; borrowed weights are only read */
    *d = (tn_npu_weights_data){.tiles = r ? NULL : weights};
    if (r) {
        d->packed = (const uint8_t *)weights;
        d->packed_bytes = r->size_bytes;
        d->bits = payload(v, role, TN_PKG_CHANNEL_BITS, tn_channel_bits_bytes((size_t)n), layer, err);
        if (!d->bits) return TERN_E_FORMAT;
    }
    bool has_bias = tn_pkg_record_find(v->records, v->n, (uint32_t)role, TN_PKG_BIAS) != NULL;
    d->col_sum = (int32_t *)payload(v, role, TN_PKG_COL_SUM, padded(n) * 4, layer, err);
    d->scale = d->col_sum ? (float *)payload(v, role, TN_PKG_SCALE, padded(n) * 4, layer, err) : NULL;
    if (d->scale && has_bias) d->bias = (float *)payload(v, role, TN_PKG_BIAS, padded(n) * 4, layer, err);
    return d->scale && (!has_bias || d->bias) ? TERN_OK : TERN_E_FORMAT;
}

/* Are the site's graphs loaded one at a time? The head has one form only. */
static bool keeps_one_form(const tn_npu_model *m, const tn_npu_site *s, bool head) {
    return !head && !s->on_cpu && !tn_npu_device_caps(m->dev)->shares_weights;
}

/* Are the site's weights placed in the device's own memory, which the CPU reads too? Else they lie in the
 * process's. */
static bool in_device(const tn_npu_model *m, const tn_npu_site *s, bool head) {
    const tn_npu_caps *c = tn_npu_device_caps(m->dev);
    return c->own_memory && c->shared_memory && !s->on_cpu && !keeps_one_form(m, s, head);
}

/* The chunk form again, over a copy of the weights: what a device without chunk sharing has for every chunk
 * (llm.npu 3.2). */
static tern_status open_chunk_copy(tn_npu_model *m, tn_npu_site *s, int i_copy, tern_error *err) {
    tn_npu_device *dev = tn_npu_site_device(m, s);
    for (int i = 0; i < s->ops.n_ops; i++) {
        const tn_npu_weights_data *from = &s->image[i];
        TN_TRY(tn_npu_weights_open(dev, s->ops.n[i], s->ops.k, from->bias != NULL,
                                   &s->chunk_weights[i_copy][i], err));
        tn_npu_weights_data to = tn_npu_weights_get(s->chunk_weights[i_copy][i]);
        memcpy(to.tiles, from->tiles, tiles_bytes(s->ops.n[i], s->ops.k));
        memcpy(to.col_sum, from->col_sum, padded(s->ops.n[i]) * 4);
        memcpy(to.scale, from->scale, padded(s->ops.n[i]) * 4);
        if (to.bias) memcpy(to.bias, from->bias, padded(s->ops.n[i]) * 4);
    }
    TN_TRY(tn_npu_compile(dev, tn_npu_graph_get(s->graphs[TN_FORM_CHUNK]), &s->chunk_graphs[i_copy], err));
    return tn_npu_load(s->chunk_graphs[i_copy], s->chunk_weights[i_copy], err);
}

/* A graph of the package, when it is the one wanted; else it is compiled. */
static tern_status make_graph(tn_npu_model *m, const tn_npu_site *s, int layer, tn_site site,
                              const tn_npu_graph_desc *d, tn_npu_graph **out, tern_error *err) {
    tn_npu_device *dev = tn_npu_site_device(m, s);
    for (uint32_t i = 0; i < m->n_pkg_graphs; i++) {
        const tn_pkg_graph *g = &m->pkg_graphs[i];
        if (g->layer != layer || g->site != (uint32_t)site || g->m != d->m) continue;
        tern_status st =
            tn_npu_deserialise(dev, (const char *)m->graph_section + g->off_bytes, g->size_bytes, out, err);
        if (st == TERN_E_UNSUPPORTED) continue; /* another device's */
        TN_TRY(st);
        const tn_npu_graph_desc *have = tn_npu_graph_get(*out);
        bool same = have->k == d->k && have->n_ops == d->n_ops &&
                    (d->rows_per_run ? d->rows_per_run : d->m) == have->rows_per_run;
        for (int op = 0; op < d->n_ops && same; op++) {
            same = have->ops[op].n == d->ops[op].n && have->ops[op].has_bias == d->ops[op].has_bias &&
                   have->ops[op].out == d->ops[op].out && have->ops[op].out_stride == d->ops[op].n &&
                   memcmp(&have->ops[op].act_scale, &d->ops[op].act_scale, sizeof(float)) == 0;
        }
        if (same) return TERN_OK;
        tn_npu_graph_close(out);
    }
    m->n_compiled++;
    return tn_npu_compile(dev, d, out, err);
}

static tern_status open_graphs(tn_npu_model *m, tn_npu_site *s, tn_site site, int layer, tern_error *err) {
    bool head = site == TN_SITE_LM_HEAD;
    for (int form = head ? TN_FORM_DECODE : TN_FORM_CHUNK; form < TN_N_FORMS; form++) {
        tn_npu_graph_desc d = {.kind = TN_NPU_LINEARS,
                               .m = form == TN_FORM_CHUNK ? m->chunk : TN_DECODE_M,
                               .k = s->ops.k,
                               .n_ops = s->ops.n_ops};
        if (form == TN_FORM_CHUNK) d.rows_per_run = m->tuned.rows_per_run[site];
        for (int i = 0; i < s->ops.n_ops; i++) {
            d.ops[i] = (tn_npu_op){.n = s->ops.n[i],
                                   .act_scale = s->act_scale,
                                   .has_bias = s->image[i].bias != NULL,
                                   .out = TN_NPU_OUT_F32};
        }
        TN_TRY(make_graph(m, s, layer, site, &d, &s->graphs[form], err));
        s->in_stride =
            tn_npu_graph_get(s->graphs[form])->in_stride; /* depends on k only: the same for both forms */
        if (s->in_stride > m->max_stride) m->max_stride = s->in_stride;
        m->graph_bytes += tn_npu_serialise(s->graphs[form], NULL, 0);
    }
    if (head) return TERN_OK;
    m->prefill_graph_bytes += tn_npu_load_bytes(s->graphs[TN_FORM_CHUNK]);
    for (int i = 0; i < s->ops.n_ops; i++) m->prefill_graph_bytes += tn_npu_weights_bytes(s->weights[i]);
    return TERN_OK;
}

tern_status tn_npu_model_site_ready(tn_npu_model *m, tn_npu_site *s, tern_error *err) {
    bool head = s == tn_npu_site_at(m, 0, TN_SITE_LM_HEAD);
    if (keeps_one_form(m, s, head)) return tn_switcher_load_site(s, TN_FORM_CHUNK, err);
    for (int form = head ? TN_FORM_DECODE : TN_FORM_CHUNK; form < TN_N_FORMS; form++)
        TN_TRY(tn_npu_load(s->graphs[form], s->weights, err));
    for (int i = 0; m->no_chunk_sharing && !head && i < TN_WAVE_CHUNKS - 1; i++)
        TN_TRY(open_chunk_copy(m, s, i, err));
    return TERN_OK;
}

/* What can be known of a site's outlier path before its rows are read. */
static tern_status plan_outliers(tn_npu_model *m, tn_npu_site *s, const section_view *v, int layer,
                                 tern_error *err) {
    const tn_pkg_record *hot = tn_pkg_record_find(v->records, v->n, (uint32_t)s->ops.roles[0], TN_PKG_HOT);
    TN_FAIL_IF(!hot || hot->n > s->ops.k || hot->size_bytes != (uint64_t)hot->n * 4, err, TERN_E_FORMAT,
               "layer %d: %s has no (sane) list of hot channels", layer, tn_role_name(s->ops.roles[0]));
    uint64_t row_bytes = (uint64_t)s->ops.n_total;
    if (!payload(v, s->ops.roles[0], TN_PKG_HOT_ROWS, (uint64_t)hot->n * row_bytes, layer, err))
        return TERN_E_FORMAT;
    s->row_hash =
        payload(v, s->ops.roles[0], TN_PKG_ROW_HASH, (uint64_t)s->ops.k * sizeof *s->row_hash, layer, err);
    if (!s->row_hash) return TERN_E_FORMAT;
    s->hot_rows = tn_calloc(m->ctx, TN_MEM_OTHER, (size_t)s->ops.k, sizeof *s->hot_rows);
    TN_FAIL_IF(!s->hot_rows, err, TERN_E_MEMORY, "no memory for outlier rows");
    m->hot_row_bytes += (uint64_t)hot->n * row_bytes;
    m->all_row_bytes += (uint64_t)s->ops.k * row_bytes;
    /* where the cold rows are */
    s->rows_section = tn_pkg_find(m->pkg, TN_PKG_SHADOW, layer);
    TN_FAIL_IF(!s->rows_section, err, TERN_E_FORMAT, "layer %d: its outlier rows are missing", layer);
    size_t n;
    const tn_pkg_record *records = tn_pkg_records(m->pkg, s->rows_section, &n),
                        *r = tn_pkg_record_find(records, n, (uint32_t)s->ops.roles[0], TN_PKG_ROWS);
    TN_FAIL_IF(!r || r->size_bytes != (uint64_t)s->ops.k * row_bytes, err, TERN_E_FORMAT,
               "layer %d: the outlier rows of %s have another shape", layer, tn_role_name(s->ops.roles[0]));
    s->rows_off_bytes = r->off_bytes;
    s->has_outliers = m->any_outliers = true;
    m->max_outlier_n = s->ops.n_total > m->max_outlier_n ? s->ops.n_total : m->max_outlier_n;
    return TERN_OK;
}

/* The hot channels and their rows are there. */
static tern_status read_hot(tn_npu_site *s, const section_view *v, int layer, tern_error *err) {
    const tn_pkg_record *hot = tn_pkg_record_find(v->records, v->n, (uint32_t)s->ops.roles[0], TN_PKG_HOT),
                        *rows =
                            tn_pkg_record_find(v->records, v->n, (uint32_t)s->ops.roles[0], TN_PKG_HOT_ROWS);
    const int32_t *ids = (const int32_t *)(v->base + hot->off_bytes);
    for (int64_t i = 0; i < hot->n; i++) {
        TN_FAIL_IF(ids[i] < 0 || ids[i] >= s->ops.k, err, TERN_E_FORMAT, "layer %d: hot channel %d of %d",
                   layer, ids[i], s->ops.k);
        s->hot_rows[ids[i]] =
            (const int8_t *)v->base + rows->off_bytes + (uint64_t)i * (uint64_t)s->ops.n_total;
    }
    return TERN_OK;
}

/* What a site takes of the device's memory: weights with scales and sums, and room for its graphs' buffers.
 */
static uint64_t site_bytes(const tn_npu_model *m, const tn_site_ops *o) {
    const tn_npu_layout layout = {TN_NPU_LAYOUT_16X4, 16, 4};
    uint64_t n = 0;
    for (int32_t i = 0; i < o->n_ops; i++)
        n += tn_npu_tiles_bytes(&layout, o->n[i], o->k) + 12 * padded(o->n[i]) + 4096;
    return n + 65536 + (uint64_t)(m->chunk + TN_DECODE_M) * ((uint64_t)o->k + 4 * (uint64_t)o->n_total);
}

typedef struct placement {
    tn_npu_site *site;
    uint64_t work, n_bytes;
    int order;
} placement;

static int by_work(const void *a, const void *b) {
    const placement *x = a, *y = b;
    if (x->work != y->work) return x->work > y->work ? -1 : 1;
    return x->order - y->order;
}

/* Under a cap the compute-heaviest sites (the FFN) go to the device first (llm.npu 4); the rest stays with
 * the CPU. */
static tern_status place_sites(tn_npu_model *m, uint64_t cap, tern_error *err) {
    const tn_program *p = &m->model->program;
    int n = p->n_sites;
    placement *all = tn_alloc(m->ctx, TN_MEM_OTHER, (size_t)n, sizeof *all);
    TN_FAIL_IF(!all, err, TERN_E_MEMORY, "no memory to place %d sites", n);
    for (int i = 0; i < n; i++) {
        const tn_site_ops *o = tn_program_linears(p, i);
        /* lm_head works on a few rows only */
        all[i] = (placement){
            .site = &m->sites[i],
            .work = tn_site_in_layers(p->sites[i].kind) ? (uint64_t)o->k * (uint64_t)o->n_total : 0,
            .n_bytes = site_bytes(m, o),
            .order = i};
    }
    qsort(all, (size_t)n, sizeof *all, by_work);
    uint64_t used = 0;
    for (int i = 0; i < n; i++) {
        all[i].site->on_cpu = all[i].n_bytes > cap - used;
        if (all[i].site->on_cpu) m->n_on_cpu++;
        else used += all[i].n_bytes;
    }
    tn_free(m->ctx, all);
    return TERN_OK;
}

/* Where the weights of a layer go: in the process's memory, or the device's. */
typedef struct tile_room {
    int8_t *at[2];
} tile_room;

/* Weights go to the room, which shrinks, unless they are used where they are mapped. */
static tern_status open_site(tn_npu_model *m, int32_t i_site, tile_room *room, tern_error *err) {
    const tn_program *p = &m->model->program;
    tn_npu_site *s = &m->sites[i_site];
    tn_site site = s->kind = p->sites[i_site].kind;
    int32_t layer = s->layer = tn_program_site_layer(p, i_site);
    const section_view v = view_of(m, layer);
    s->ops = *tn_program_linears(p, i_site);
    m->max_k = s->ops.k > m->max_k ? s->ops.k : m->max_k;
    const tn_pkg_section *section = tn_pkg_find(m->pkg, layer < 0 ? TN_PKG_HEAD : TN_PKG_LAYER, layer);
    for (int i = 0; i < s->ops.n_ops; i++) {
        const tn_pkg_record *r = s->tiles[i] =
            tiles_record(m, s->ops.roles[i], s->ops.n[i], s->ops.k, layer, err);
        if (!r) return TERN_E_FORMAT;
        bool packed = tn_npu_stays_packed(m, r);
        int8_t **at = &room->at[in_device(m, s, site == TN_SITE_LM_HEAD)], *weights = *at;
        if (m->map && (packed || r->part == TN_PKG_TILES))
            weights = (int8_t *)m->map->data + section->off_bytes + r->off_bytes;
        else *at += aligned(packed ? r->size_bytes : tiles_bytes(s->ops.n[i], s->ops.k));
        tn_npu_weights_data *d = &s->image[i];
        TN_TRY(linear_data(&v, s->ops.roles[i], s->ops.n[i], layer, weights, packed ? r : NULL, d, err));
        if (keeps_one_form(m, s, site == TN_SITE_LM_HEAD))
            TN_TRY(tn_npu_weights_open(m->dev, s->ops.n[i], s->ops.k, d->bias != NULL, &s->weights[i], err));
        else
            TN_TRY(tn_npu_weights_borrow(tn_npu_site_device(m, s), s->ops.n[i], s->ops.k, d, &s->weights[i],
                                         err));
    }
    s->act_scale = s->tiles[0]->act_scale;
    TN_FAIL_IF(!(s->act_scale > 0) || !isfinite(s->act_scale), err, TERN_E_FORMAT,
               "layer %d: %s has no activation scale", layer, tn_role_name(s->ops.roles[0]));
    s->inv_scale = 1 / s->act_scale;
    TN_TRY(open_graphs(m, s, site, layer, err));
    TN_FAIL_IF(s->tiles[0]->flags & ~(uint32_t)TN_PKG_ALL_FLAGS, err, TERN_E_UNSUPPORTED,
               "layer %d: %s has flags %#x, made by a newer tern", layer, tn_role_name(s->ops.roles[0]),
               s->tiles[0]->flags);
    s->rotated = (s->tiles[0]->flags & TN_PKG_ROTATED) != 0;
    TN_FAIL_IF(s->rotated && s->ops.k % TN_HADAMARD_BLOCK, err, TERN_E_FORMAT,
               "layer %d: inputs of %s are rotated, but %d is no multiple of %d", layer, tn_site_name(site),
               s->ops.k, TN_HADAMARD_BLOCK);
    return s->tiles[0]->flags & TN_PKG_HAS_SHADOW ? plan_outliers(m, s, &v, layer, err) : TERN_OK;
}

/* ---- open ---------------------------------------------------------------------------------------- */

/* Room for the small tensors of model (-1) or layer; where the package is mapped, they are there. */
static tern_status plan_small(tn_npu_model *m, int layer, tern_error *err) {
    const tn_pkg_section *s = tn_pkg_find(m->pkg, layer < 0 ? TN_PKG_MODEL : TN_PKG_LAYER, layer);
    TN_FAIL_IF(!s, err, TERN_E_FORMAT, "%s: the section of layer %d is missing", tn_pkg_path(m->pkg), layer);
    if (m->map) {
        m->small[layer + 1] = (char *)m->map->data + s->off_bytes;
        return TERN_OK;
    }
    uint64_t n = aligned(tn_pkg_small_bytes(m->pkg, s));
    char *block = m->small_blocks[layer + 1] = tn_alloc(m->ctx, TN_MEM_WEIGHTS, n + TN_AIO_ALIGN, 1);
    TN_FAIL_IF(!block, err, TERN_E_MEMORY, "no memory for %" PRIu64 " bytes of weights", n);
    m->small[layer + 1] = block + aligned((uintptr_t)block) - (uintptr_t)block;
    return TERN_OK;
}

/* Room for the weights of a layer (-1: head and embedding). */
static tern_status plan_tiles(tn_npu_model *m, const tn_hparams *h, int layer, tile_room *room,
                              tern_error *err) {
    uint64_t n[2] = {TN_AIO_ALIGN, TN_AIO_ALIGN};
    int32_t first, n_sites = tn_program_layer_sites(&m->model->program, layer, &first);
    for (int32_t s = first; s < first + n_sites; s++) {
        const tn_site_ops *o = tn_program_linears(&m->model->program, s);
        for (int i = 0; i < o->n_ops; i++) {
            const tn_pkg_record *r = tiles_record(m, o->roles[i], o->n[i], o->k, layer, err);
            if (!r) return TERN_E_FORMAT;
            bool device = in_device(m, &m->sites[s], layer < 0);
            if (tn_npu_stays_packed(m, r)) n[device] += m->map ? 0 : aligned(r->size_bytes);
            else if (!m->map || r->part != TN_PKG_TILES) n[device] += aligned(tiles_bytes(o->n[i], o->k));
        }
    }
    if (layer < 0 && !h->tied && !m->map) n[0] += aligned(tiles_bytes(h->n_vocab, h->n_embd));
    if (n[0] > TN_AIO_ALIGN) {
        m->tile_blocks[layer + 1] = tn_alloc(m->ctx, TN_MEM_WEIGHTS, n[0], 1);
        TN_FAIL_IF(!m->tile_blocks[layer + 1], err, TERN_E_MEMORY,
                   "no memory for %" PRIu64 " bytes of weights", n[0]);
    }
    if (n[1] > TN_AIO_ALIGN) {
        void *block;
        TN_TRY(tn_npu_mem_alloc(m->dev, n[1], &block, err));
        m->device_blocks[layer + 1] = block;
    }
    for (int i = 0; i < 2; i++) {
        uintptr_t block = (uintptr_t)(i ? m->device_blocks : m->tile_blocks)[layer + 1];
        room->at[i] = (int8_t *)aligned(block);
    }
    return TERN_OK;
}

static tern_status open_model_level(tn_npu_model *m, tn_model *model, tern_error *err) {
    tn_hparams *h = &model->h;
    TN_FAIL_IF(!tn_pkg_find(m->pkg, TN_PKG_HEAD, -1), err, TERN_E_FORMAT,
               "%s: the section of the head is missing", tn_pkg_path(m->pkg));
    TN_TRY(plan_small(m, -1, err));
    const tn_pkg_section *section = tn_pkg_find(m->pkg, TN_PKG_MODEL, -1);
    if (!m->map) TN_TRY(tn_pkg_read_small(m->pkg, section, m->small[0], err));
    else if (tn_pkg_small_bytes(m->pkg, section))
        TN_TRY(tn_pkg_check(m->pkg, section, NULL, 0, m->small[0], tn_pkg_small_bytes(m->pkg, section), err));
    const section_view v = view_of(m, -1);
    uint64_t rope_bytes = (uint64_t)(h->n_rot / 2) * sizeof(float);
    const void *inv = payload(&v, TN_W_Q_NORM, TN_PKG_F32, rope_bytes, -1, err);
    const void *inv_long = inv ? payload(&v, TN_W_K_NORM, TN_PKG_F32, rope_bytes, -1, err) : NULL;
    if (!inv_long) return TERN_E_FORMAT;
    memcpy(h->inv_freq, inv, rope_bytes);
    memcpy(h->inv_freq_long, inv_long, rope_bytes);
    float **top = model->top.vectors;
    TN_TRY(copy_vector(m->ctx, &v, h, -1, TN_W_OUT_NORM, true, &top[TN_W_OUT_NORM], err));
    TN_TRY(copy_vector(m->ctx, &v, h, -1, TN_W_OUT_NORM_B, false, &top[TN_W_OUT_NORM_B], err));
    tile_room room;
    tn_npu_site *lm_head = tn_npu_site_at(m, 0, TN_SITE_LM_HEAD);
    TN_TRY(plan_tiles(m, h, -1, &room, err));
    TN_TRY(open_site(m, (int32_t)(lm_head - m->sites), &room, err));
    if (lm_head->has_outliers) TN_TRY(read_hot(lm_head, &v, -1, err));
    const tn_pkg_record *r = tiles_record(m, TN_W_EMBD, h->n_vocab, h->n_embd, -1, err);
    if (!r) return TERN_E_FORMAT;
    m->embd_tiles = h->tied  ? lm_head->image[0].tiles
                    : m->map ? (const int8_t *)m->map->data +
                                   tn_pkg_find(m->pkg, TN_PKG_HEAD, -1)->off_bytes + r->off_bytes
                             : room.at[0];
    m->embd_scale = payload(&v, TN_W_EMBD, TN_PKG_SCALE, padded(h->n_vocab) * 4, -1, err);
    m->embd_tile_hash =
        m->embd_scale ? payload(&v, TN_W_EMBD, TN_PKG_TILE_HASH, padded(h->n_vocab) / 16 * 4, -1, err) : NULL;
    return m->embd_tile_hash ? TERN_OK : TERN_E_FORMAT;
}

static tern_status open_layer(tn_npu_model *m, const tn_hparams *h, int layer, tern_error *err) {
    tile_room room;
    TN_TRY(plan_small(m, layer, err));
    TN_TRY(plan_tiles(m, h, layer, &room, err));
    int32_t first, n = tn_program_layer_sites(&m->model->program, layer, &first);
    for (int32_t i = first; i < first + n; i++) TN_TRY(open_site(m, i, &room, err));
    return TERN_OK;
}

tern_status tn_npu_model_small_ready(tn_npu_model *m, int32_t layer, tern_error *err) {
    const tn_hparams *h = &m->model->h;
    const section_view v = view_of(m, layer);
    float **vectors = m->model->layers[layer].vectors;
    for (int i = 0; i < TN_N_LAYER_VECTORS; i++) {
        tn_role role = tn_layer_vectors[i];
        bool bias = role == TN_W_ATTN_NORM_B || role == TN_W_FFN_NORM_B;
        bool required = !bias && tn_program_uses(&m->model->program, layer, role);
        TN_TRY(copy_vector(m->ctx, &v, h, layer, role, required, &vectors[role], err));
    }
    int32_t first, n = tn_program_layer_sites(&m->model->program, layer, &first);
    for (int32_t i = first; i < first + n; i++)
        if (m->sites[i].has_outliers) TN_TRY(read_hot(&m->sites[i], &v, layer, err));
    return TERN_OK;
}

/* The package's compiled graphs; a package without them has to be compiled. */
static tern_status open_pkg_graphs(tn_npu_model *m, tern_error *err) {
    const tn_pkg_section *s = tn_pkg_find(m->pkg, TN_PKG_GRAPHS, -1);
    if (!s) return TERN_OK;
    m->graph_section = tn_alloc(m->ctx, TN_MEM_GRAPHS, s->size_bytes, 1);
    TN_FAIL_IF(!m->graph_section, err, TERN_E_MEMORY, "no memory for compiled graphs");
    TN_TRY(tn_pkg_read(m->pkg, s, m->graph_section, err));
    uint32_t n = 0;
    if (s->size_bytes >= 8) memcpy(&n, m->graph_section, sizeof n);
    TN_FAIL_IF(s->size_bytes < 8 || (s->size_bytes - 8) / sizeof(tn_pkg_graph) < n, err, TERN_E_FORMAT,
               "%s: %u compiled graphs do not fit their section", tn_pkg_path(m->pkg), n);
    m->pkg_graphs = (const tn_pkg_graph *)((const char *)m->graph_section + 8);
    for (uint32_t i = 0; i < n; i++) {
        TN_FAIL_IF(m->pkg_graphs[i].off_bytes > s->size_bytes ||
                       m->pkg_graphs[i].size_bytes > s->size_bytes - m->pkg_graphs[i].off_bytes,
                   err, TERN_E_FORMAT, "%s: compiled graph %u is outside its section", tn_pkg_path(m->pkg),
                   i);
    }
    m->n_pkg_graphs = n;
    return TERN_OK;
}

static tern_status read_tokenizer(tn_npu_model *m, uint8_t **blob, tern_error *err) {
    const tn_pkg_section *s = tn_pkg_find(m->pkg, TN_PKG_TOKENIZER, -1);
    if (!s) return TERN_OK;
    *blob = tn_alloc(m->ctx, TN_MEM_OTHER, s->size_bytes, 1);
    TN_FAIL_IF(!*blob, err, TERN_E_MEMORY, "no memory for the tokenizer");
    return tn_pkg_read(m->pkg, s, *blob, err);
}

/* Takes the blob. */
static tern_status open_tokenizer(tn_npu_model *m, tn_model *model, uint8_t *blob, tern_error *err) {
    if (!blob) return TERN_OK;
    const tn_pkg_section *s = tn_pkg_find(m->pkg, TN_PKG_TOKENIZER, -1);
    tern_status st = tn_tokenizer_load(m->ctx, blob, s->size_bytes, &model->tokenizer, err);
    tn_free(m->ctx, blob);
    TN_TRY(st);
    TN_FAIL_IF(tn_tokenizer_n_vocab(model->tokenizer) > (size_t)model->h.n_vocab, err, TERN_E_FORMAT,
               "the tokenizer has %zu tokens, the embedding %d", tn_tokenizer_n_vocab(model->tokenizer),
               model->h.n_vocab);
    return TERN_OK;
}

tern_status tn_npu_model_open(tn_ctx *ctx, tn_pool *pool, const tn_kernels *kern, const char *path,
                              const tn_npu_model_options *opt, tn_npu_model **out, tn_model **model_out,
                              tern_error *err) {
    *out = NULL;
    *model_out = NULL;
    tn_npu_model *m = tn_calloc(ctx, TN_MEM_OTHER, 1, sizeof *m);
    tn_model *model = tn_calloc(ctx, TN_MEM_OTHER, 1, sizeof *model);
    uint8_t *tokenizer = NULL;
    tern_status st;
    if (m) *m = (tn_npu_model){.ctx = ctx, .kern = kern, .model = model};
    if (model) model->ctx = ctx;
    TN_BAIL_IF(!m || !model, err, TERN_E_MEMORY, "no memory for a model");
    if ((st = tn_pkg_open(ctx, path, &m->pkg, err)) != TERN_OK) goto out;
    tn_pkg_fetch_front(m->pkg);
    if ((st = tn_package_hparams(ctx, m->pkg, &model->h, m->scheme, model->description, &model->n_params,
                                 err)) != TERN_OK)
        goto out;
    m->n_layers = model->h.n_layers;
    if ((st = tn_program_make(ctx, &model->h, &model->program, err)) != TERN_OK) goto out;
    if ((st = read_heads(m, &model->h, err)) != TERN_OK) goto out;
    size_t n_parts = (size_t)m->n_layers + 1;
    m->small = tn_calloc(ctx, TN_MEM_OTHER, n_parts, sizeof *m->small);
    m->small_blocks = tn_calloc(ctx, TN_MEM_OTHER, n_parts, sizeof *m->small_blocks);
    m->tile_blocks = tn_calloc(ctx, TN_MEM_OTHER, n_parts, sizeof *m->tile_blocks);
    m->device_blocks = tn_calloc(ctx, TN_MEM_OTHER, n_parts, sizeof *m->device_blocks);
    m->sites = tn_calloc(ctx, TN_MEM_OTHER, (size_t)model->program.n_sites, sizeof *m->sites);
    m->n_sites = model->program.n_sites;
    model->layers = tn_calloc(ctx, TN_MEM_OTHER, (size_t)m->n_layers, sizeof *model->layers);
    TN_BAIL_IF(!m->small || !m->small_blocks || !m->tile_blocks || !m->device_blocks || !m->sites ||
                   !model->layers,
               err, TERN_E_MEMORY, "no memory for a model");
    if (opt->load == TN_LOAD_MMAP && (st = tn_file_open(ctx, path, &m->map, err)) != TERN_OK) goto out;
    for (size_t i = 0; i < tn_pkg_n_sections(m->pkg); i++) {
        const tn_pkg_section *s = tn_pkg_section_at(m->pkg, i);
        if (s->kind != TN_PKG_MODEL && s->kind != TN_PKG_LAYER && s->kind != TN_PKG_HEAD) continue;
        model->weight_bytes += s->size_bytes;
        model->fingerprint = XXH64(&s->xxh64, sizeof(uint64_t), model->fingerprint);
    }
    bool tuned = opt->tuned.chunk && opt->tuned.fingerprint == model->fingerprint;
    m->chunk = opt->chunk ? opt->chunk : tuned ? opt->tuned.chunk : TN_CHUNK_DEFAULT;
    if (tuned && m->chunk == opt->tuned.chunk) m->tuned = opt->tuned;
    if (tuned) m->tuned.attn_times = opt->tuned.attn_times; /* for chunks of any length */
    tn_npu_options dev;
    tn_npu_options_defaults(&dev);
    dev.n_threads = opt->n_threads > 0 ? opt->n_threads : 1;
    dev.memory_cap_bytes = opt->memory_cap_bytes;
    dev.scratch_bytes = opt->scratch_bytes;
    dev.separate_weights = opt->separate_weights;
    dev.apart = opt->apart;
    TN_BAIL_IF(opt->apart && opt->backend && strcmp(opt->backend, "host"), err, TERN_E_INVALID,
               "device '%s' has silicon of its own: only the host device works apart", opt->backend);
    dev.kernels = kern;
    if ((st = tn_npu_open(ctx, opt->backend ? opt->backend : tn_npu_backend_name(0), &dev, &m->dev, err)) !=
        TERN_OK)
        goto out;
    const tn_npu_caps *caps = tn_npu_device_caps(m->dev);
    TN_BAIL_IF(caps->layout.id != TN_NPU_LAYOUT_16X4, err, TERN_E_UNSUPPORTED,
               "device '%s' wants weights in layout %u, packages have them in %d: it cannot run one",
               caps->name, caps->layout.id, TN_NPU_LAYOUT_16X4);
    TN_BAIL_IF(caps->max_m < m->chunk, err, TERN_E_INVALID,
               "device '%s' runs at most %d rows at once, chunks have %d", caps->name, caps->max_m, m->chunk);
    TN_BAIL_IF(opt->cold_rows && strcmp(opt->cold_rows, "file") && strcmp(opt->cold_rows, "weights"), err,
               TERN_E_INVALID, "rows of cold channels from '%s': there are weights and file", opt->cold_rows);
    TN_BAIL_IF(opt->no_chunk_sharing && (opt->separate_weights || opt->memory_cap_bytes), err, TERN_E_INVALID,
               "graphs per chunk (no chunk sharing) need a device without a memory cap and without separate "
               "weights");
    m->no_chunk_sharing = opt->no_chunk_sharing;
    bool can_pack =
        caps->has_weightlets && caps->shares_weights && !opt->no_chunk_sharing && !opt->memory_cap_bytes;
    TN_BAIL_IF(opt->weights == TN_WEIGHTS_PACKED && !can_pack, err, TERN_E_INVALID,
               "weights that stay packed need a device that reads them (host), without a memory cap, "
               "separate weights or graphs per chunk");
    m->packed = opt->weights == TN_WEIGHTS_PACKED;
    m->cold_from_file = opt->cold_rows ? !strcmp(opt->cold_rows, "file") : !caps->shared_memory;
    TN_BAIL_IF(!m->cold_from_file && !caps->shared_memory, err, TERN_E_INVALID,
               "the CPU cannot read the weights of device '%s': its cold rows come from the file",
               caps->name);
    if (caps->memory_cap_bytes) {
        if ((st = place_sites(m, caps->memory_cap_bytes, err)) != TERN_OK) goto out;
        dev.memory_cap_bytes = 0;
        dev.separate_weights = dev.apart = false;
        if (m->n_on_cpu && (st = tn_npu_open(ctx, "host", &dev, &m->cpu_dev, err)) != TERN_OK) goto out;
        if (m->n_on_cpu || opt->memory_cap_bytes)
            tn_log(ctx, TERN_LOG_INFO,
                   "%d of %d sites do not fit the device's %" PRIu64 " bytes and run on the CPU", m->n_on_cpu,
                   model->program.n_sites, caps->memory_cap_bytes);
    }
    if ((st = open_pkg_graphs(m, err)) != TERN_OK || (st = open_model_level(m, model, err)) != TERN_OK)
        goto out;
    for (int i = 0; i < m->n_layers; i++) {
        if ((st = open_layer(m, &model->h, i, err)) != TERN_OK) goto out;
    }
    if (m->n_compiled)
        tn_log(ctx, TERN_LOG_DEBUG, "%s: %d graphs are not in the package and were compiled", path,
               m->n_compiled);
    /* behind the loader's reads the tokenizer's would wait; making it takes some time, in which layers arrive
     */
    st = read_tokenizer(m, &tokenizer, err);
    if (st == TERN_OK) st = tn_loader_open(m, path, opt, &m->loader, err);
    if (st != TERN_OK) {
        tn_free(ctx, tokenizer);
        goto out;
    }
    if ((st = open_tokenizer(m, model, tokenizer, err)) != TERN_OK) goto out;
    /* graphs that change places, or have copies of the weights, are made from what is there */
    bool now = opt->load != TN_LOAD_STREAM || !caps->shares_weights || m->no_chunk_sharing;
    if (now && (st = tn_loader_finish(m->loader, pool, m->n_layers, err)) != TERN_OK) goto out;
    TN_BAIL_IF(!tn_progress(ctx, "load", 1), err, TERN_E_CANCELLED, "loading was cancelled");
    if (!caps->shares_weights && (st = tn_switcher_open(m, opt, &m->switcher, err)) != TERN_OK) goto out;
    *out = m;
    *model_out = model;
    m = NULL;
    model = NULL;
out:
    tn_npu_model_close(&m); /* its loader may be writing to the model */
    if (model) tn_model_close(&model);
    return st;
}

void tn_npu_model_close(tn_npu_model **pm) {
    tn_npu_model *m = *pm;
    if (!m) return;
    *pm = NULL;
    tn_loader_close(&m->loader); /* reads end here */
    tn_free(m->ctx, m->attn_scale_q);
    tn_free(m->ctx, m->attn_scale_k);
    tn_free(m->ctx, m->attn_head_weight);
    tn_switcher_close(&m->switcher);
    for (int32_t i = 0; m->sites && i < m->n_sites; i++) {
        tn_npu_site *s = &m->sites[i];
        for (int f = 0; f < TN_N_FORMS; f++) tn_npu_graph_close(&s->graphs[f]);
        for (int c = 0; c < TN_WAVE_CHUNKS - 1; c++) {
            tn_npu_graph_close(&s->chunk_graphs[c]);
            for (int w = 0; w < TN_SITE_MAX_OPS; w++) tn_npu_weights_close(&s->chunk_weights[c][w]);
        }
        for (int w = 0; w < TN_SITE_MAX_OPS; w++) tn_npu_weights_close(&s->weights[w]);
        tn_free(m->ctx, s->hot_rows);
    }
    for (int i = 0; m->device_blocks && i < m->n_layers + 1; i++)
        tn_npu_mem_free(m->dev, m->device_blocks[i]);
    tn_free(m->ctx, m->device_blocks);
    tn_npu_close(&m->dev);
    tn_npu_close(&m->cpu_dev);
    for (int i = 0; i < m->n_layers + 1; i++) {
        if (m->small_blocks) tn_free(m->ctx, m->small_blocks[i]);
        if (m->tile_blocks) tn_free(m->ctx, m->tile_blocks[i]);
    }
    tn_free(m->ctx, m->small);
    tn_free(m->ctx, m->small_blocks);
    tn_free(m->ctx, m->tile_blocks);
    tn_free(m->ctx, m->graph_section);
    tn_file_close(&m->map);
    tn_free(m->ctx, m->sites);
    tn_pkg_close(&m->pkg);
    tn_free(m->ctx, m);
}

void tn_npu_model_embed(const tn_npu_model *m, const tn_hparams *h, int32_t id, float *out) {
    const tn_npu_layout layout = {TN_NPU_LAYOUT_16X4, 16, 4};
    int8_t *q = (int8_t *)out; /* the row is unpacked into the front of out and widened from its end */
    tn_npu_tiles_row(&layout, tn_loader_row_tile(m->loader, id), id % 16, h->n_embd, q);
    for (int32_t i = h->n_embd; i-- > 0;) {
        float v = (float)q[i] * m->embd_scale[id];
        memcpy((char *)out + (size_t)i * sizeof v, &v, sizeof v);
    }
}
