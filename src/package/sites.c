/* The sites of a package: the places of their weights, scales and outlier rows, their device, and their
 * static graphs. */
#include "package/impl.h"

#include "base/status.h"
#include "kernels/hadamard.h"
#include "package/switching.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- sections ------------------------------------------------------------------------------------ */

section_view tn_section_view(const tn_npu_model *m, int layer) {
    section_view v = {.base = m->small[layer + 1]};
    v.records =
        tn_pkg_records(m->pkg, tn_pkg_find(m->pkg, layer < 0 ? TN_PKG_MODEL : TN_PKG_LAYER, layer), &v.n);
    return v;
}

/* Returns the payload of a record that must have exactly n_bytes, or NULL with err filled when it is missing
 * or has another size. */
const void *tn_section_payload(const section_view *v, tn_role role, tn_pkg_part part, uint64_t n_bytes,
                               int layer, tern_error *err) {
    const tn_pkg_record *r = tn_pkg_record_find(v->records, v->n, (uint32_t)role, (uint32_t)part);
    if (!r || r->size_bytes != n_bytes) {
        tn_fail(err, TERN_E_FORMAT, "layer %d: %s (part %d) has %" PRIu64 " bytes, its shape needs %" PRIu64,
                layer, tn_role_name(role), (int)part, r ? r->size_bytes : 0, n_bytes);
        return NULL;
    }
    return v->base + r->off_bytes;
}

tern_status tn_section_vector(tn_ctx *ctx, const section_view *v, const tn_hparams *h, int layer,
                              tn_role role, bool required, float **out, tern_error *err) {
    tn_free(ctx, *out); /* of a run that was cancelled after this */
    *out = NULL;
    if (!required && !tn_pkg_record_find(v->records, v->n, (uint32_t)role, TN_PKG_F32)) return TERN_OK;
    int64_t rows, cols;
    tn_role_shape(h, layer, role, &rows, &cols);
    cols *= rows; /* the taps of a convolution are stored as rows */
    const void *p = tn_section_payload(v, role, TN_PKG_F32, (uint64_t)cols * sizeof(float), layer, err);
    if (!p) return TERN_E_FORMAT;
    *out = tn_alloc(ctx, TN_MEM_WEIGHTS, (size_t)cols, sizeof(float));
    TN_FAIL_IF(!*out, err, TERN_E_MEMORY, "no memory for %s", tn_role_name(role));
    memcpy(*out, p, (size_t)cols * sizeof(float));
    return TERN_OK;
}

enum { ROW_ALIGN = 64 };

static uint64_t aligned(uint64_t n) { return (n + TN_AIO_ALIGN - 1) / TN_AIO_ALIGN * TN_AIO_ALIGN; }

/* Memory of a tensor that is read in whole pages. */
static uint64_t room_of(const tn_pkg_section *s, const tn_pkg_record *r) {
    return aligned(tn_file_phase(s, r) + tn_pkg_plain_bytes(r));
}

/* scale NULL: only checks that they exist */
static tern_status rows_of(const tn_npu_model *m, const section_view *v, tn_role role, int64_t n, int layer,
                           float *scale, int32_t *col_sum, tern_error *err) {
    tern_status st =
        tn_pkg_rows(v->records, v->n, v->base, (uint32_t)role, tn_padded(m, n), scale, col_sum, NULL);
    return st == TERN_OK ? st
                         : tn_fail(err, st, "layer %d: %s has no scales and sums of its %" PRId64 " rows",
                                   layer, tn_role_name(role), n);
}

/* The large record of a linear, tiles or weightlets, of the right shape. */
const tn_pkg_record *tn_section_tiles(const tn_npu_model *m, tn_role role, int64_t n, int64_t k, int layer,
                                      tern_error *err) {
    const tn_pkg_section *s = tn_pkg_find(m->pkg, layer < 0 ? TN_PKG_LM_HEAD : TN_PKG_LAYER, layer);
    size_t n_records;
    const tn_pkg_record *records = tn_pkg_records(m->pkg, s, &n_records),
                        *r = tn_pkg_record_find(records, n_records, (uint32_t)role, TN_PKG_TILES);
    if (r && r->n == n && r->k == k && r->size_bytes == tn_npu_tiles_bytes(m->layout, n, k)) return r;
    if (!r) r = tn_pkg_record_find(records, n_records, (uint32_t)role, TN_PKG_WEIGHTLETS);
    if (r && r->part == TN_PKG_WEIGHTLETS && r->n == n && r->k == k &&
        tn_pkg_plain_bytes(r) <= tn_weightlets_most((size_t)n, (size_t)k))
        return r; /* its size depends on widths that have not been read */
    tn_fail(err, TERN_E_FORMAT, "layer %d: the weights of %s are missing or not %" PRId64 " x %" PRId64,
            layer, tn_role_name(role), n, k);
    return NULL;
}

/* Finds the biases of a linear, beside tiles (r NULL) or the weightlets of record r, and memory for its
 * scales and sums, which are read once they are loaded. */
static tern_status linear_data(const tn_npu_model *m, const section_view *v, tn_role role, int64_t n,
                               int layer, int8_t *weights, const tn_pkg_record *r, tile_room *room,
                               tn_npu_weights_data *d, tern_error *err) {
    /* the device takes pointers to writable memory; borrowed weights are only read */
    *d = (tn_npu_weights_data){.tiles = r ? NULL : weights};
    if (r) {
        d->packed = (const uint8_t *)weights;
        d->packed_bytes = tn_pkg_plain_bytes(r);
        d->bits =
            tn_section_payload(v, role, TN_PKG_CHANNEL_BITS, tn_channel_bits_bytes((size_t)n), layer, err);
        if (!d->bits) return TERN_E_FORMAT;
    }
    bool has_bias = tn_pkg_record_find(v->records, v->n, (uint32_t)role, TN_PKG_BIAS) != NULL;
    TN_TRY(rows_of(m, v, role, n, layer, NULL, NULL, err));
    d->scale = (float *)room->rows;
    d->col_sum = (int32_t *)(room->rows + 4 * tn_padded(m, n));
    room->rows += 8 * tn_padded(m, n);
    if (has_bias)
        d->bias = (float *)tn_section_payload(v, role, TN_PKG_BIAS, tn_padded(m, n) * 4, layer, err);
    return !has_bias || d->bias ? TERN_OK : TERN_E_FORMAT;
}

tern_status tn_sites_read_rows(tn_npu_model *m, int layer, tern_error *err) {
    const section_view v = tn_section_view(m, layer);
    int32_t first, n = tn_program_layer_sites(&m->model->program, layer, &first);
    for (int32_t i = first; i < first + n; i++) {
        const tn_npu_site *s = &m->sites[i];
        for (int32_t op = 0; op < s->ops.n_ops; op++)
            TN_TRY(rows_of(m, &v, s->ops.roles[op], s->ops.n[op], layer, s->image[op].scale,
                           s->image[op].col_sum, err));
    }
    return TERN_OK;
}

/* Tells whether the site's graphs are loaded one at a time. The head has one form only. */
static bool keeps_one_form(const tn_npu_model *m, const tn_npu_site *s, bool head) {
    return !head && !s->on_cpu && !tn_npu_device_caps(m->dev)->shares_weights;
}

/* Whether the site's weights lie in the device's own memory, which the CPU can read, rather than in the
 * process's. */
static bool in_device(const tn_npu_model *m, const tn_npu_site *s, bool head) {
    const tn_npu_caps *c = tn_npu_device_caps(m->dev);
    return c->own_memory && c->shared_memory && !s->on_cpu && !keeps_one_form(m, s, head);
}

/* Opens the chunk form again, over a copy of the weights. A device without chunk sharing has one for every
 * chunk (llm.npu 3.2). */
static tern_status open_chunk_copy(tn_npu_model *m, tn_npu_site *s, int i_copy, tern_error *err) {
    tn_npu_device *dev = tn_npu_site_device(m, s);
    for (int i = 0; i < s->ops.n_ops; i++) {
        const tn_npu_weights_data *from = &s->image[i];
        TN_TRY(tn_npu_weights_open(dev, s->ops.n[i], s->ops.k, from->bias != NULL,
                                   &s->chunk_weights[i_copy][i], err));
        tn_npu_weights_data to = tn_npu_weights_get(s->chunk_weights[i_copy][i]);
        memcpy(to.tiles, from->tiles, tn_npu_tiles_bytes(m->layout, s->ops.n[i], s->ops.k));
        memcpy(to.col_sum, from->col_sum, tn_padded(m, s->ops.n[i]) * 4);
        memcpy(to.scale, from->scale, tn_padded(m, s->ops.n[i]) * 4);
        if (to.bias) memcpy(to.bias, from->bias, tn_padded(m, s->ops.n[i]) * 4);
    }
    TN_TRY(tn_npu_compile(dev, tn_npu_graph_get(s->graphs[TN_FORM_CHUNK]), &s->chunk_graphs[i_copy], err));
    return tn_npu_load(s->chunk_graphs[i_copy], s->chunk_weights[i_copy], err);
}

/* Uses the package's graph if it fits, else compiles it. */
static tern_status make_graph(tn_npu_model *m, const tn_npu_site *s, int layer, tn_site site,
                              const tn_npu_graph_desc *d, tn_npu_graph **out, tern_error *err) {
    tn_npu_device *dev = tn_npu_site_device(m, s);
    for (uint32_t i = 0; i < m->n_pkg_graphs; i++) {
        const tn_pkg_graph *g = &m->pkg_graphs[i];
        if (g->layer != layer || g->site != (uint32_t)site || g->m != d->m) continue;
        tern_status st =
            tn_npu_deserialise(dev, (const char *)m->graph_section + g->off_bytes, g->size_bytes, out, err);
        if (st == TERN_E_UNSUPPORTED) continue; /* for another device */
        TN_TRY(st);
        const tn_npu_graph_desc *have = tn_npu_graph_get(*out);
        bool same = have->k == d->k && have->n_ops == d->n_ops &&
                    (d->rows_per_run ? d->rows_per_run : d->m) == have->rows_per_run;
        for (int op = 0; op < d->n_ops && same; op++) {
            same = have->ops[op].n == d->ops[op].n && have->ops[op].has_bias == d->ops[op].has_bias &&
                   have->ops[op].out == d->ops[op].out && have->ops[op].out_scale == d->ops[op].out_scale &&
                   have->ops[op].out_stride == d->ops[op].n &&
                   memcmp(&have->ops[op].act_scale, &d->ops[op].act_scale, sizeof(float)) == 0;
        }
        if (same) return TERN_OK;
        tn_npu_graph_close(out);
    }
    m->n_compiled++;
    return tn_npu_compile(dev, d, out, err);
}

/* Makes graphs of the site's single linears, over the same weights. */
static tern_status open_op_graphs(tn_npu_model *m, tn_npu_site *s, tern_error *err) {
    const tn_npu_graph_desc *whole = tn_npu_graph_get(s->graphs[TN_FORM_CHUNK]);
    for (int i = 0; i < s->ops.n_ops; i++) {
        tn_npu_graph_desc d = *whole;
        d.n_ops = 1;
        d.ops[0] = whole->ops[i];
        TN_TRY(tn_npu_compile(m->dev, &d, &s->op_graphs[i], err));
    }
    return TERN_OK;
}

/* Finds the factors of the inputs before they are quantised. Older packages also have them for the inputs of
 * the experts' down, where now each expert's up holds them. */
static tern_status open_inverse(const tn_program *p, tn_npu_site *s, int32_t i_site, const section_view *v,
                                int layer, tern_error *err) {
    tn_role role = s->ops.roles[0];
    if ((!tn_program_divides(p, i_site) && s->kind != TN_SITE_EXPERTS_DOWN) ||
        (!(s->tiles[0]->flags & TN_PKG_DIVIDED) &&
         !tn_pkg_record_find(v->records, v->n, (uint32_t)role, TN_PKG_INVERSE)))
        return TERN_OK;
    s->inverse =
        tn_section_payload(v, role, TN_PKG_INVERSE, (uint64_t)s->ops.k * sizeof *s->inverse, layer, err);
    return s->inverse ? TERN_OK : TERN_E_FORMAT;
}

/* Finds the 8-bit form of the outputs, if they are not float. */
static tern_status open_outputs(tn_npu_model *m, tn_npu_site *s, const section_view *v, int layer,
                                tern_error *err) {
    if (!(s->tiles[0]->flags & TN_PKG_OUTPUT_INT8)) return TERN_OK;
    for (int i = 0; i < s->ops.n_ops; i++) {
        const tn_pkg_record *r =
            tn_pkg_record_find(v->records, v->n, (uint32_t)s->ops.roles[i], TN_PKG_OUTPUT);
        s->out_factor[i] =
            tn_section_payload(v, s->ops.roles[i], TN_PKG_OUTPUT, tn_padded(m, s->ops.n[i]) * 4, layer, err);
        if (!s->out_factor[i]) return TERN_E_FORMAT;
        s->out_scale[i] = r->act_scale;
        TN_FAIL_IF(!(s->out_scale[i] > 0) || !isfinite(s->out_scale[i]), err, TERN_E_FORMAT,
                   "layer %d: the outputs of %s have no scale", layer, tn_role_name(s->ops.roles[i]));
    }
    m->max_output_n = s->ops.n_total > m->max_output_n ? s->ops.n_total : m->max_output_n;
    return TERN_OK;
}

/* Makes the graph of a form, for the site or for one of its experts. */
static tern_status open_graph(tn_npu_model *m, tn_npu_site *s, int form, tn_npu_graph **out,
                              tern_error *err) {
    tn_npu_graph_desc d = {.kind = TN_NPU_LINEARS,
                           .m = form == TN_FORM_CHUNK ? m->chunk : TN_DECODE_M,
                           .k = s->ops.k,
                           .n_ops = s->ops.n_ops};
    if (form == TN_FORM_CHUNK) d.rows_per_run = m->tuned.rows_per_run[s->kind];
    for (int i = 0; i < s->ops.n_ops; i++) {
        d.ops[i] = (tn_npu_op){.n = tn_site_op_n(&s->ops, i),
                               .act_scale = s->act_scale,
                               .has_bias = s->image[i].bias != NULL,
                               .out = s->out_factor[i] ? TN_NPU_OUT_U8 : TN_NPU_OUT_F32,
                               .out_scale = s->out_scale[i]};
    }
    TN_TRY(make_graph(m, s, s->layer, s->kind, &d, out, err));
    s->in_stride = tn_npu_graph_get(*out)->in_stride; /* depends on k only: the same for both forms */
    if (s->in_stride > m->max_stride) m->max_stride = s->in_stride;
    m->graph_bytes += tn_npu_serialise(*out, NULL, 0);
    if (form == TN_FORM_CHUNK) m->prefill_graph_bytes += tn_npu_load_bytes(*out);
    return TERN_OK;
}

static tern_status open_experts(tn_npu_model *m, tn_npu_site *s, tern_error *err) {
    size_t n = (size_t)s->ops.n_experts;
    s->expert_weights = tn_calloc(m->ctx, TN_MEM_GRAPHS, n * (size_t)s->ops.n_ops, sizeof(tn_npu_weights *));
    s->expert_graphs = tn_calloc(m->ctx, TN_MEM_GRAPHS, n * TN_N_FORMS, sizeof(tn_npu_graph *));
    TN_FAIL_IF(!s->expert_weights || !s->expert_graphs, err, TERN_E_MEMORY, "no memory for %zu experts", n);
    for (size_t i = 0; i < n * TN_N_FORMS; i++)
        TN_TRY(open_graph(m, s, (int)(i % TN_N_FORMS), &s->expert_graphs[i], err));
    return TERN_OK;
}

static tern_status open_graphs(tn_npu_model *m, tn_npu_site *s, tern_error *err) {
    bool head = s->kind == TN_SITE_LM_HEAD;
    if (s->ops.n_experts) return open_experts(m, s, err);
    for (int form = head ? TN_FORM_DECODE : TN_FORM_CHUNK; form < TN_N_FORMS; form++)
        TN_TRY(open_graph(m, s, form, &s->graphs[form], err));
    if (head) return TERN_OK;
    if (m->by_operator && !s->on_cpu && s->ops.n_ops > 1) TN_TRY(open_op_graphs(m, s, err));
    for (int i = 0; i < s->ops.n_ops; i++) m->prefill_graph_bytes += tn_npu_weights_bytes(s->weights[i]);
    return TERN_OK;
}

void tn_site_close_experts(tn_npu_model *m, tn_npu_site *s) {
    for (int32_t i = 0; s->expert_graphs && i < s->ops.n_experts * TN_N_FORMS; i++)
        tn_npu_graph_close(&s->expert_graphs[i]);
    for (int32_t i = 0; s->expert_weights && i < s->ops.n_experts * s->ops.n_ops; i++)
        tn_npu_weights_close(&s->expert_weights[i]);
    tn_free(m->ctx, s->expert_graphs);
    tn_free(m->ctx, s->expert_weights);
}

/* If weights stay packed, *off is the beginning of an expert's part of a linear and is advanced to the
 * next one's; it depends on the channels' widths. */
static int8_t *expert_part(const tn_npu_model *m, const tn_npu_site *s, int32_t e, int i, uint64_t *off) {
    const tn_npu_weights_data *all = &s->image[i];
    size_t n = (size_t)tn_site_op_n(&s->ops, i), at = (size_t)e * n;
    if (all->tiles) return all->tiles + tn_npu_tiles_bytes(m->layout, (int64_t)at, s->ops.k);
    int8_t *part = (int8_t *)(uintptr_t)all->packed + *off;
    *off += tn_weightlets_bytes(all->bits, at, at + n, (size_t)s->ops.k);
    return part;
}

tern_status tn_site_load_expert(const tn_npu_model *m, const tn_npu_site *s, int32_t e, int8_t *const *parts,
                                tern_error *err) {
    tn_npu_weights **w = &s->expert_weights[e * s->ops.n_ops];
    for (int i = 0; i < s->ops.n_ops; i++) {
        const tn_npu_weights_data *all = &s->image[i];
        size_t n = (size_t)tn_site_op_n(&s->ops, i), at = (size_t)e * n, k = (size_t)s->ops.k;
        tn_npu_weights_data d = {.col_sum = all->col_sum + at, .scale = all->scale + at};
        if (all->bias) d.bias = all->bias + at;
        if (all->bits) {
            d.packed = (const uint8_t *)parts[i];
            d.bits = all->bits + tn_channel_bits_bytes(at);
            d.packed_bytes = tn_weightlets_bytes(d.bits, 0, n, k);
        } else {
            d.tiles = parts[i];
        }
        TN_TRY(tn_npu_weights_borrow(tn_npu_site_device(m, s), (int64_t)n, s->ops.k, &d, &w[i], err));
    }
    for (int form = 0; form < TN_N_FORMS; form++)
        TN_TRY(tn_npu_load(s->expert_graphs[e * TN_N_FORMS + form], w, err));
    return TERN_OK;
}

void tn_site_drop_expert(const tn_npu_site *s, int32_t e) {
    for (int form = 0; form < TN_N_FORMS; form++) tn_npu_unload(s->expert_graphs[e * TN_N_FORMS + form]);
    for (int i = 0; i < s->ops.n_ops; i++) tn_npu_weights_close(&s->expert_weights[e * s->ops.n_ops + i]);
}

tern_status tn_npu_model_site_ready(tn_npu_model *m, tn_npu_site *s, tern_error *err) {
    uint64_t off[TN_SITE_MAX_OPS] = {0};
    int8_t *parts[TN_SITE_MAX_OPS] = {0};
    for (int32_t e = 0; !m->experts_bytes && e < s->ops.n_experts; e++) {
        for (int i = 0; i < s->ops.n_ops; i++) parts[i] = expert_part(m, s, e, i, &off[i]);
        TN_TRY(tn_site_load_expert(m, s, e, parts, err));
    }
    if (s->ops.n_experts) return TERN_OK;
    bool head = s == tn_npu_site_at(m, 0, TN_SITE_LM_HEAD);
    if (keeps_one_form(m, s, head)) return tn_switcher_load_site(m, s, TN_FORM_CHUNK, err);
    for (int form = head ? TN_FORM_DECODE : TN_FORM_CHUNK; form < TN_N_FORMS; form++)
        TN_TRY(tn_npu_load(s->graphs[form], s->weights, err));
    for (int i = 0; i < s->ops.n_ops && s->op_graphs[i]; i++)
        TN_TRY(tn_npu_load(s->op_graphs[i], &s->weights[i], err));
    for (int i = 0; m->no_chunk_sharing && !head && i < TN_WAVE_CHUNKS - 1; i++)
        TN_TRY(open_chunk_copy(m, s, i, err));
    return TERN_OK;
}

/* Plans a site's outlier path as far as possible before its rows are read. */
static tern_status plan_outliers(tn_npu_model *m, tn_npu_site *s, const section_view *v, int layer,
                                 tern_error *err) {
    const tn_pkg_record *hot = tn_pkg_record_find(v->records, v->n, (uint32_t)s->ops.roles[0], TN_PKG_HOT);
    TN_FAIL_IF(!hot || hot->n > s->ops.k || hot->size_bytes != (uint64_t)hot->n * 4, err, TERN_E_FORMAT,
               "layer %d: %s has no (sane) list of hot channels", layer, tn_role_name(s->ops.roles[0]));
    uint64_t row_bytes = (uint64_t)s->ops.n_total;
    if (!tn_section_payload(v, s->ops.roles[0], TN_PKG_HOT_ROWS, (uint64_t)hot->n * row_bytes, layer, err))
        return TERN_E_FORMAT;
    s->row_hash = tn_section_payload(v, s->ops.roles[0], TN_PKG_ROW_HASH,
                                     (uint64_t)s->ops.k * sizeof *s->row_hash, layer, err);
    if (!s->row_hash) return TERN_E_FORMAT;
    s->hot_rows = tn_calloc(m->ctx, TN_MEM_OTHER, (size_t)s->ops.k, sizeof *s->hot_rows);
    TN_FAIL_IF(!s->hot_rows, err, TERN_E_MEMORY, "no memory for outlier rows");
    m->hot_row_bytes += (uint64_t)hot->n * row_bytes;
    m->all_row_bytes += (uint64_t)s->ops.k * row_bytes;
    /* where the cold rows are */
    s->rows_section = tn_pkg_find(m->pkg, TN_PKG_OUTLIERS, layer);
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

/* Reads the hot channels, once their rows are loaded. */
tern_status tn_site_read_hot(tn_npu_site *s, const section_view *v, int layer, tern_error *err) {
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

/* Returns a site's share of the device's memory: weights, scales, sums, and buffers of its graphs. */
static uint64_t site_bytes(const tn_npu_model *m, const tn_site_ops *o) {
    uint64_t n = 0;
    for (int32_t i = 0; i < o->n_ops; i++)
        n += tn_npu_tiles_bytes(m->layout, o->n[i], o->k) + 12 * tn_padded(m, o->n[i]) + 4096;
    if (o->n_experts) /* graphs of each expert, buffers of a chunk's rows for one */
        return n + (uint64_t)o->n_experts * 65536 +
               (uint64_t)(m->chunk + TN_DECODE_M) *
                   ((uint64_t)o->k + 4 * (uint64_t)o->n_total / (uint64_t)o->n_experts);
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

/* Places sites. Under a cap the compute-heaviest sites (the FFN) go to the device first (llm.npu 4); the CPU
 * computes the rest. */
tern_status tn_sites_place(tn_npu_model *m, uint64_t cap, tern_error *err) {
    const tn_program *p = &m->model->program;
    int n = p->n_sites;
    placement *all = tn_alloc(m->ctx, TN_MEM_OTHER, (size_t)n, sizeof *all);
    TN_FAIL_IF(!all, err, TERN_E_MEMORY, "no memory to place %d sites", n);
    for (int i = 0; i < n; i++) {
        const tn_site_ops *o = tn_program_linears(p, i);
        /* lm_head works on a few rows only */
        all[i] = (placement){.site = &m->sites[i],
                             .work = tn_site_in_layers(p->sites[i].kind) ? (uint64_t)tn_site_macs(o) : 0,
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

/* Opens a site. Its weights take space from the room, unless they are used where they are mapped. */
tern_status tn_site_open(tn_npu_model *m, int32_t i_site, tile_room *room, tern_error *err) {
    const tn_program *p = &m->model->program;
    tn_npu_site *s = &m->sites[i_site];
    tn_site site = s->kind = p->sites[i_site].kind;
    int32_t layer = s->layer = tn_program_site_layer(p, i_site);
    const section_view v = tn_section_view(m, layer);
    s->ops = *tn_program_linears(p, i_site);
    m->max_k = s->ops.k > m->max_k ? s->ops.k : m->max_k;
    const tn_pkg_section *section = tn_pkg_find(m->pkg, layer < 0 ? TN_PKG_LM_HEAD : TN_PKG_LAYER, layer);
    for (int i = 0; i < s->ops.n_ops; i++) {
        const tn_pkg_record *r = s->tiles[i] =
            tn_section_tiles(m, s->ops.roles[i], s->ops.n[i], s->ops.k, layer, err);
        if (!r) return TERN_E_FORMAT;
        bool packed = tn_npu_stays_packed(m, r);
        int8_t **at = &room->at[in_device(m, s, site == TN_SITE_LM_HEAD)], *weights = *at;
        if (tn_npu_on_demand(m, s)) {
            weights = NULL;
        } else if (tn_npu_in_place(m, r)) {
            weights = (int8_t *)m->map->data + section->off_bytes + r->off_bytes;
        } else if (packed || r->part == TN_PKG_TILES) {
            weights += tn_file_phase(section, r);
            *at += room_of(section, r);
        } else {
            *at += aligned(tn_npu_tiles_bytes(m->layout, s->ops.n[i], s->ops.k));
        }
        tn_npu_weights_data *d = &s->image[i];
        TN_TRY(linear_data(m, &v, s->ops.roles[i], s->ops.n[i], layer, weights, packed ? r : NULL, room, d,
                           err));
        if (s->ops.n_experts) continue; /* each takes a part of them */
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
    TN_TRY(open_outputs(m, s, &v, layer, err));
    TN_TRY(open_inverse(p, s, i_site, &v, layer, err));
    TN_TRY(open_graphs(m, s, err));
    TN_FAIL_IF(s->tiles[0]->flags & ~(uint32_t)TN_PKG_ALL_FLAGS, err, TERN_E_UNSUPPORTED,
               "layer %d: %s has flags %#x, made by a newer tern", layer, tn_role_name(s->ops.roles[0]),
               s->tiles[0]->flags);
    const uint32_t wide = s->tiles[0]->flags & (TN_PKG_WIDER | TN_PKG_WIDEST);
    TN_FAIL_IF(wide && (!(s->tiles[0]->flags & TN_PKG_ROTATED) || wide == (TN_PKG_WIDER | TN_PKG_WIDEST)),
               err, TERN_E_FORMAT, "layer %d: inputs of %s are rotated in two ways", layer,
               tn_site_name(site));
    s->rotated = wide == TN_PKG_WIDEST                 ? TN_HADAMARD_WIDEST
                 : wide                                ? 256
                 : s->tiles[0]->flags & TN_PKG_ROTATED ? TN_HADAMARD_BLOCK
                                                       : 0;
    TN_FAIL_IF(s->ops.n_experts && s->tiles[0]->flags & (TN_PKG_HAS_OUTLIERS | TN_PKG_OUTPUT_INT8), err,
               TERN_E_UNSUPPORTED,
               "layer %d: %s has an outlier path or outputs in 8 bits, which experts cannot have", layer,
               tn_role_name(s->ops.roles[0]));
    TN_FAIL_IF(s->rotated && s->ops.k % s->rotated, err, TERN_E_FORMAT,
               "layer %d: inputs of %s are rotated, but %d is no multiple of %d", layer, tn_site_name(site),
               s->ops.k, s->rotated);
    return s->tiles[0]->flags & TN_PKG_HAS_OUTLIERS ? plan_outliers(m, s, &v, layer, err) : TERN_OK;
}

/* In a mapped package small tensors are already there. */
tern_status tn_room_section(tn_npu_model *m, const tn_pkg_section *s, char **at, char **block,
                            tern_error *err) {
    if (m->map) {
        *at = (char *)m->map->data + s->off_bytes;
        return TERN_OK;
    }
    uint64_t phase = tn_file_phase(s, NULL), n = aligned(phase + tn_pkg_small_bytes(m->pkg, s));
    *block = tn_alloc(m->ctx, TN_MEM_WEIGHTS, n + TN_AIO_ALIGN, 1);
    TN_FAIL_IF(!*block, err, TERN_E_MEMORY, "no memory for %" PRIu64 " bytes of weights", n);
    *at = *block + aligned((uintptr_t)*block) - (uintptr_t)*block + phase;
    return TERN_OK;
}

tern_status tn_room_small(tn_npu_model *m, int layer, tern_error *err) {
    const tn_pkg_section *s = tn_pkg_find(m->pkg, layer < 0 ? TN_PKG_MODEL : TN_PKG_LAYER, layer);
    TN_FAIL_IF(!s, err, TERN_E_FORMAT, "%s: the section of layer %d is missing", tn_pkg_path(m->pkg), layer);
    return tn_room_section(m, s, &m->small[layer + 1], &m->small_blocks[layer + 1], err);
}

/* Allocates scales and sums of a layer's linears (-1: of head and embedding). */
static tern_status room_rows(tn_npu_model *m, const tn_hparams *h, int layer, tile_room *room,
                             tern_error *err) {
    int32_t first, n_sites = tn_program_layer_sites(&m->model->program, layer, &first);
    uint64_t n = layer < 0 && !h->tied ? tn_padded(m, h->n_vocab) : 0;
    for (int32_t s = first; s < first + n_sites; s++) {
        const tn_site_ops *o = tn_program_linears(&m->model->program, s);
        for (int i = 0; i < o->n_ops; i++) n += tn_padded(m, o->n[i]);
    }
    char *block = m->row_blocks[layer + 1] = tn_alloc(m->ctx, TN_MEM_WEIGHTS, 8 * n + ROW_ALIGN, 1);
    TN_FAIL_IF(!block, err, TERN_E_MEMORY, "no memory for the scales of %" PRIu64 " channels", n);
    room->rows = block + (ROW_ALIGN - (uintptr_t)block % ROW_ALIGN) % ROW_ALIGN;
    return TERN_OK;
}

/* Allocates the weights of a layer (-1: of head and embedding). */
tern_status tn_room_tiles(tn_npu_model *m, const tn_hparams *h, int layer, tile_room *room, tern_error *err) {
    const tn_pkg_section *section = tn_pkg_find(m->pkg, layer < 0 ? TN_PKG_LM_HEAD : TN_PKG_LAYER, layer);
    TN_TRY(room_rows(m, h, layer, room, err));
    uint64_t n[2] = {TN_AIO_ALIGN, TN_AIO_ALIGN};
    int32_t first, n_sites = tn_program_layer_sites(&m->model->program, layer, &first);
    for (int32_t s = first; s < first + n_sites; s++) {
        const tn_site_ops *o = tn_program_linears(&m->model->program, s);
        for (int i = 0; i < o->n_ops && !(o->n_experts && m->experts_bytes); i++) {
            const tn_pkg_record *r = tn_section_tiles(m, o->roles[i], o->n[i], o->k, layer, err);
            if (!r) return TERN_E_FORMAT;
            bool device = in_device(m, &m->sites[s], layer < 0);
            if (tn_npu_in_place(m, r)) continue;
            if (tn_npu_stays_packed(m, r) || r->part == TN_PKG_TILES) n[device] += room_of(section, r);
            else n[device] += aligned(tn_npu_tiles_bytes(m->layout, o->n[i], o->k));
        }
    }
    if (layer < 0 && !h->tied) {
        const tn_pkg_record *r = tn_section_tiles(m, TN_W_EMBD, h->n_vocab, h->n_embd, -1, err);
        if (!r) return TERN_E_FORMAT;
        n[0] += tn_npu_in_place(m, r) ? 0 : room_of(section, r);
    }
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

tern_status tn_section_router(tn_npu_model *m, const section_view *v, int32_t layer, tn_linear *l,
                              tern_error *err) {
    const tn_hparams *h = &m->model->h;
    size_t n = (size_t)h->n_experts, k = (size_t)h->n_embd;
    const float *w = tn_section_payload(v, TN_W_ROUTER, TN_PKG_F32, n * k * sizeof *w, layer, err);
    if (!w) return TERN_E_FORMAT;
    for (size_t i = 0; i < n * k; i++)
        TN_FAIL_IF(!isfinite(w[i]), err, TERN_E_FORMAT, "layer %d: the router holds a value that is none",
                   layer);
    tn_free(m->ctx, l->panels); /* of a run that was cancelled after this */
    *l = (tn_linear){.n = (int32_t)n, .k = (int32_t)k, .dtype = TN_PANEL_F32, .bias = l->bias};
    l->panels = tn_alloc(m->ctx, TN_MEM_WEIGHTS, tn_panels_bytes(TN_PANEL_F32, n, k), 1);
    TN_FAIL_IF(!l->panels, err, TERN_E_MEMORY, "no memory for the router of layer %d", layer);
    tn_panels_pack(TN_PANEL_F32, l->panels, w, 0, n, k);
    return tn_section_vector(m->ctx, v, h, layer, TN_W_ROUTER_B, false, &l->bias, err);
}

/* What every head of latent attention multiplies by and products of low rank: blocks, where they lie. */
static tern_status for_cpu(tn_npu_model *m, const section_view *v, int32_t layer, tn_role role,
                           tern_error *err) {
    int64_t n, k;
    if (!tn_layer_may_have(&m->model->h, layer, role)) return TERN_OK;
    tn_role_shape(&m->model->h, layer, role, &n, &k);
    TN_FAIL_IF(k % 32 || n % TN_BLOCKS_N, err, TERN_E_FORMAT,
               "layer %d: %s is of %lld outputs and %lld inputs, want multiples of %d and 32", layer,
               tn_role_name(role), (long long)n, (long long)k, TN_BLOCKS_N);
    const void *blocks = tn_section_payload(
        v, role, TN_PKG_BLOCKS, tn_blocks_bytes(TN_BLOCKS_Q8_0, (size_t)n, (size_t)k), layer, err);
    if (!blocks) return TERN_E_FORMAT;
    m->model->layers[layer].linears[role] = (tn_linear){.n = (int32_t)n,
                                                        .k = (int32_t)k,
                                                        .blocks = (void *)(uintptr_t)blocks,
                                                        .blocks_type = TN_BLOCKS_Q8_0,
                                                        .blocks_in_room = true};
    return TERN_OK;
}

/* Factors of the inputs have been read now: one NaN among them would make all outputs NaN. */
static tern_status check_inverse(const tn_npu_site *s, tern_error *err) {
    for (int32_t i = 0; s->inverse && i < s->ops.k; i++)
        TN_FAIL_IF(!(s->inverse[i] > 0) || !isfinite(s->inverse[i]), err, TERN_E_FORMAT,
                   "layer %d: what the inputs of %s are multiplied by is no positive number", s->layer,
                   tn_role_name(s->ops.roles[0]));
    return TERN_OK;
}

tern_status tn_npu_model_small_ready(tn_npu_model *m, int32_t layer, tern_error *err) {
    const tn_hparams *h = &m->model->h;
    const section_view v = tn_section_view(m, layer);
    if (tn_layer_has_experts(h, layer))
        TN_TRY(tn_section_router(m, &v, layer, &m->model->layers[layer].linears[TN_W_ROUTER], err));
    for (tn_role role = 0; role < TN_W_N_ROLES; role++)
        if (tn_role_of_cpu(role)) TN_TRY(for_cpu(m, &v, layer, role, err));
    float **vectors = m->model->layers[layer].vectors;
    for (int i = 0; i < TN_N_LAYER_VECTORS; i++) {
        tn_role role = tn_layer_vectors[i];
        bool bias = role == TN_W_ATTN_NORM_B || role == TN_W_FFN_NORM_B;
        bool required = !bias && tn_program_uses(&m->model->program, layer, role);
        TN_TRY(tn_section_vector(m->ctx, &v, h, layer, role, required, &vectors[role], err));
    }
    int32_t first, n = tn_program_layer_sites(&m->model->program, layer, &first);
    for (int32_t i = first; i < first + n; i++) {
        TN_TRY(check_inverse(&m->sites[i], err));
        if (m->sites[i].has_outliers) TN_TRY(tn_site_read_hot(&m->sites[i], &v, layer, err));
    }
    return TERN_OK;
}
