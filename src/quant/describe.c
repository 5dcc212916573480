/* quant/describe.c - a package's metadata, compiled graphs and tokenizer. */
#include "quant/packer.h"

#include "base/json.h"
#include "base/status.h"
#include "model/properties.h"

#include <stdlib.h>
#include <string.h>

/* The graphs that the engine loads by default, compiled for the device of the package's layout, so that
 * nothing is compiled at start. */
static tern_status graphs_of_site(packer *p, tn_npu_device *dev, int32_t i_site, char **bytes,
                                  size_t *n_bytes, tn_pkg_graph **table, uint32_t *n, tern_error *err) {
    const tn_program *prog = &p->m->program;
    const tn_site_ops ops = *tn_program_linears(prog, i_site);
    tn_site site = prog->sites[i_site].kind;
    int layer = tn_program_site_layer(prog, i_site);
    for (int form = site == TN_SITE_LM_HEAD; form < 2; form++) {
        tn_npu_graph_desc d = {.kind = TN_NPU_LINEARS,
                               .m = form ? TN_PKG_DECODE_M : TN_PKG_CHUNK,
                               .k = ops.k,
                               .n_ops = ops.n_ops};
        for (int i = 0; i < ops.n_ops; i++) {
            bool has_bias = ops.biases[i] != TN_W_N_ROLES && tn_source_has(p->src, layer, ops.biases[i]);
            d.ops[i] = (tn_npu_op){.n = tn_site_op_n(&ops, i), /* those of experts are all alike */
                                   .act_scale = p->plans[i_site].clip / 127,
                                   .has_bias = has_bias,
                                   .out = TN_NPU_OUT_F32};
            const tn_output_plan *output = output_of(p, i_site, i);
            if (output) d.ops[i].out = TN_NPU_OUT_U8, d.ops[i].out_scale = output->scale;
        }
        tn_npu_graph *g;
        TN_TRY(tn_npu_compile(dev, &d, &g, err));
        size_t size = tn_npu_serialise(g, NULL, 0);
        char *more = tn_realloc(p->ctx, TN_MEM_OTHER, *bytes, *n_bytes + size, 1);
        if (more) {
            *bytes = more;
            tn_npu_serialise(g, more + *n_bytes, size);
        }
        tn_npu_graph_close(&g);
        TN_FAIL_IF(!more, err, TERN_E_MEMORY, "no memory for compiled graphs");
        tn_pkg_graph *t = tn_realloc(p->ctx, TN_MEM_OTHER, *table, *n + 1, sizeof *t);
        TN_FAIL_IF(!t, err, TERN_E_MEMORY, "no memory for compiled graphs");
        *table = t;
        t[(*n)++] = (tn_pkg_graph){.layer = layer,
                                   .site = site,
                                   .m = d.m,
                                   .off_bytes = (uint32_t)*n_bytes,
                                   .size_bytes = (uint32_t)size};
        *n_bytes += size;
    }
    return TERN_OK;
}

tern_status tn_pack_put_graphs(packer *p, tern_error *err) {
    tn_npu_device *dev = NULL;
    char *bytes = NULL, *all = NULL;
    tn_pkg_graph *table = NULL;
    size_t n_bytes = 0;
    uint32_t n = 0;
    tern_status st = tn_npu_open(p->ctx, "host", NULL, &dev, err);
    for (int32_t i = 0; i < p->m->program.n_sites && st == TERN_OK; i++)
        st = graphs_of_site(p, dev, i, &bytes, &n_bytes, &table, &n, err);
    uint32_t front = 8 + n * (uint32_t)sizeof *table;
    all = st == TERN_OK ? tn_alloc(p->ctx, TN_MEM_OTHER, front + n_bytes, 1) : NULL;
    if (st == TERN_OK && !all) st = tn_fail(err, TERN_E_MEMORY, "no memory for compiled graphs");
    if (all) {
        memcpy(all, (uint32_t[2]){n, 0}, 8);
        for (uint32_t i = 0; i < n; i++) table[i].off_bytes += front;
        memcpy(all + 8, table, n * sizeof *table);
        memcpy(all + front, bytes, n_bytes);
        st = tn_pkg_put_section(p->w, TN_PKG_GRAPHS, -1, all, front + n_bytes, err);
    }
    tn_free(p->ctx, all);
    tn_free(p->ctx, table);
    tn_free(p->ctx, bytes);
    tn_npu_close(&dev);
    return st;
}

/* The builders of base/json.h: NULL means no memory. */
static json_t *numbers(const float *x, size_t n) {
    json_t *a = json_array();
    for (size_t i = 0; i < n; i++) tn_json_append(&a, tn_json_real((double)x[i]));
    return a;
}

/* The heads' data for sparse attention. */
static json_t *attention_meta(const packer *p) {
    const tn_head_profile *hp = &p->heads;
    json_t *weights = json_array();
    for (int32_t l = 0; l < hp->n_layers; l++)
        tn_json_append(&weights, numbers(hp->weight + (size_t)l * (size_t)hp->n_heads, (size_t)hp->n_heads));
    json_t *j = tn_json_pack("{s:o, s:o, s:o}", "scale_q", numbers(hp->scale_q, (size_t)hp->n_layers),
                             "scale_k", numbers(hp->scale_k, (size_t)hp->n_layers), "head_weight", weights);
    return j;
}

static void put_property(const tn_property *p, const tn_hparams *h, json_t **into) {
    if (p->type == TN_PROPERTY_KINDS) {
        char kinds[TN_MAX_LAYERS + 1] = {0};
        for (int32_t l = 0; l < h->n_layers; l++) kinds[l] = tn_layer_letters[h->layer_kind[l]];
        if (!tn_only_attends(h)) tn_json_set(into, p->key, tn_json_string(kinds, (size_t)h->n_layers));
        return;
    }
    if (p->type == TN_PROPERTY_NUMBERS) {
        json_t *list = json_array();
        bool said = false;
        for (int32_t l = 0; l < h->n_layers; l++) {
            const double x = (double)tn_property_number(p, h, l);
            said |= x != p->none;
            tn_json_append(&list, tn_json_real(x));
        }
        if (said) tn_json_set(into, p->key, list);
        else json_decref(list);
        return;
    }
    double v = tn_property_get(p, h);
    if (p->always && p->type == TN_PROPERTY_INT) tn_json_set(into, p->key, json_integer((json_int_t)v));
    else if (p->always && p->type == TN_PROPERTY_BOOL) tn_json_set(into, p->key, json_boolean(v != 0));
    else if (p->always || v != p->none) tn_json_set(into, p->key, tn_json_real(v));
}

tern_status tn_pack_put_meta(packer *p, tern_error *err) {
    tn_hparams known = p->m->h;
    const tn_hparams *h = &known;
    if (!h->n_experts)
        known.experts_norm = known.experts_sigmoid = false; /* they carry no information then */
    json_t *hp = tn_json_pack("{s:s, s:s}", "arch", h->arch, "name", h->name);
    json_t *ops = json_object(), *rope = json_object();
    size_t n;
    const tn_property *all = tn_properties(&n);
    for (size_t i = 0; i < n; i++)
        put_property(&all[i], h, all[i].section[0] == 'h' ? &hp : all[i].section[0] == 'o' ? &ops : &rope);
    json_t *meta = tn_json_pack("{s:s, s:s, s:i, s:s, s:I, s:I, s:f, s:o, s:o, s:o}", "format", "tern",
                                "scheme", tn_scheme_name(p->o->scheme), "layout", (int)tn_pack_layout.id,
                                "source", p->m->description, "n_params", (json_int_t)p->m->n_params,
                                "calibration_tokens", (json_int_t)p->report->n_calib_tokens, "prune_percent",
                                (double)p->o->prune_percent, "hparams", hp, "operators", ops, "rope", rope);
    if (h->n_next) tn_json_set(&meta, "next_layers", json_integer(h->n_next));
    tn_json_set(&meta, "attention", attention_meta(p));
    char *text;
    tern_status st = tn_json_text(meta, JSON_COMPACT | JSON_REAL_PRECISION(17), &text, err);
    json_decref(meta);
    TN_TRY(st);
    st = tn_pkg_put_section(p->w, TN_PKG_META, -1, text, strlen(text), err);
    free(text);
    return st;
}

tern_status tn_pack_put_tokenizer(packer *p, tern_error *err) {
    uint8_t *blob = NULL;
    size_t n = 0;
    TN_TRY(tn_tokenizer_save(p->m->tokenizer, &blob, &n, err));
    tern_status st = tn_pkg_put_section(p->w, TN_PKG_TOKENIZER, -1, blob, n, err);
    tn_free(p->ctx, blob);
    return st;
}
