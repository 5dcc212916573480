/* quant/describe.c - what a package says of itself: its description, compiled graphs, tokenizer. */
#include "quant/packer.h"

#include "base/json.h"
#include "base/status.h"

#include <stdlib.h>
#include <string.h>

/* The graphs the engine loads by default, compiled for the device whose layout the package has: nothing is
 * compiled at start. */
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
            d.ops[i] = (tn_npu_op){.n = tn_site_op_n(&ops, i), /* those of experts are alike */
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

/* The builders of base/json.h: NULL where there was no memory. */
static json_t *numbers(const float *x, size_t n) {
    json_t *a = json_array();
    for (size_t i = 0; i < n; i++) tn_json_append(&a, tn_json_real((double)x[i]));
    return a;
}

/* What sparse attention wants to know of the heads. */
static json_t *attention_meta(const packer *p) {
    const tn_head_profile *hp = &p->heads;
    json_t *weights = json_array();
    for (int32_t l = 0; l < hp->n_layers; l++)
        tn_json_append(&weights, numbers(hp->weight + (size_t)l * (size_t)hp->n_heads, (size_t)hp->n_heads));
    json_t *j = tn_json_pack("{s:o, s:o, s:o}", "scale_q", numbers(hp->scale_q, (size_t)hp->n_layers),
                             "scale_k", numbers(hp->scale_k, (size_t)hp->n_layers), "head_weight", weights);
    return j;
}

/* What layers mix their tokens by, where some do not attend, or not alone. */
static void put_layer_kinds(const tn_hparams *h, json_t **ops) {
    if (h->delta.no_norm) tn_json_set(ops, "delta_no_norm", tn_json_real(1));
    if (h->delta.norm_first) tn_json_set(ops, "delta_norm_first", tn_json_real(1));
    if (!tn_only_attends(h)) {
        char kinds[TN_MAX_LAYERS + 1] = {0};
        for (int32_t l = 0; l < h->n_layers; l++) kinds[l] = "acdb"[h->layer_kind[l]];
        tn_json_set(ops, "layer_kinds", tn_json_string(kinds, (size_t)h->n_layers));
    }
}

static void put_streams(const tn_hparams *h, json_t **ops) {
    if (h->experts_beside) tn_json_set(ops, "experts_beside", tn_json_real(1));
    if (!h->n_streams) return;
    tn_json_set(ops, "streams", tn_json_real(h->n_streams));
    tn_json_set(ops, "laurel_rank", tn_json_real(h->laurel_rank));
    tn_json_set(ops, "sparse_layers", tn_json_real(h->n_sparse));
    tn_json_set(ops, "sparse_deviations", tn_json_real((double)h->sparse_deviations));
}

tern_status tn_pack_put_meta(packer *p, tern_error *err) {
    const tn_hparams *h = &p->m->h;
    json_t *hp = tn_json_pack("{s:s, s:s, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i}", "arch", h->arch, "name",
                              h->name, "n_layers", h->n_layers, "n_embd", h->n_embd, "n_heads", h->n_heads,
                              "n_kv_heads", h->n_kv_heads, "d_head", h->d_head, "n_ff", h->n_ff, "n_vocab",
                              h->n_vocab, "ctx_train", h->ctx_train);
    json_t *ops =
        tn_json_pack("{s:i, s:f, s:i, s:b, s:b, s:b, s:b, s:b, s:f, s:f, s:f, s:f, s:i, s:i}", "norm",
                     (int)h->norm, "norm_eps", (double)h->norm_eps, "act", (int)h->act, "gated", h->gated,
                     "parallel_block", h->parallel_block, "post_norms", h->post_norms, "qk_norm", h->qk_norm,
                     "tied", h->tied, "embd_scale", (double)h->embd_scale, "attn_scale",
                     (double)h->attn_scale, "attn_soft_cap", (double)h->attn_soft_cap, "logit_soft_cap",
                     (double)h->logit_soft_cap, "window", h->window, "window_pattern", h->window_pattern);
    const bool any = h->n_experts > 0;
    /* Written where they say something: packages of older architectures stay the same bytes. */
    const struct {
        const char *key;
        double value, none;
    } numbers_of[] = {{"no_pre_norms", h->no_pre_norms, 0},
                      {"qk_norm_whole", h->qk_norm_whole, 0},
                      {"qk_norm_last", h->qk_norm_last, 0},
                      {"residual_scale", (double)h->residual_scale, 1},
                      {"logit_scale", (double)h->logit_scale, 1},
                      {"temp_scale", (double)h->temp_scale, 0},
                      {"temp_every", h->temp_every, 0},
                      {"no_rope_pattern", h->no_rope_pattern, 0},
                      {"local_rope", h->local_rope, 0},
                      {"attn_gate", h->attn_gate, 0},
                      {"conv_len", h->conv_len, 0},
                      {"delta_heads", h->delta.n_heads, 0},
                      {"delta_key_heads", h->delta.n_key_heads, 0},
                      {"delta_d_key", h->delta.d_key, 0},
                      {"delta_d_value", h->delta.d_value, 0},
                      {"delta_tiled", h->delta.tiled, 0},
                      {"delta_mamba", h->delta.mamba, 0},
                      {"sinks", h->sinks, 0},
                      {"experts", h->n_experts, 0},
                      {"experts_used", h->n_experts_used, 0},
                      {"experts_ff", h->n_ff_exp, 0},
                      {"experts_behind", h->n_dense, 0},
                      {"experts_norm", any && h->experts_norm, 0},
                      {"experts_sigmoid", any && h->experts_sigmoid, 0},
                      {"experts_bias", h->experts_bias, 0},
                      {"experts_scale", (double)h->experts_scale, 1},
                      {"shared_expert", h->shared_expert, 0},
                      {"shared_gate", h->shared_gate, 0},
                      {"swiglu_limit", (double)h->swiglu_limit, 0},
                      {"window_d_head", h->window_d_head, 0},
                      {"window_kv_heads", h->window_kv_heads, 0},
                      {"window_rot", h->window_rot, 0},
                      {"kv_shared", h->n_kv_shared, 0},
                      {"ff_shared", h->n_ff_shared, 0},
                      {"v_norm", h->v_norm, 0},
                      {"v_is_k", h->v_is_k, 0},
                      {"layer_scale", h->layer_scale, 0},
                      {"layer_embedding", h->n_ple, 0}};
    for (size_t i = 0; i < sizeof numbers_of / sizeof numbers_of[0]; i++) {
        if (numbers_of[i].value != numbers_of[i].none)
            tn_json_set(&ops, numbers_of[i].key, tn_json_real(numbers_of[i].value));
    }
    put_layer_kinds(h, &ops);
    put_streams(h, &ops);
    json_t *rope = tn_json_pack("{s:i, s:f, s:i, s:f}", "n_rot", h->n_rot, "rope_base", h->rope_base,
                                "rope_orig_ctx", h->rope_orig_ctx, "rope_mscale", (double)h->rope_mscale);
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
