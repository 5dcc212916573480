/* lab/soc.c - reads a SoC's data file, section by section from a table, and fits its costs. */
#include "lab/sim.h"

#include "base/json.h"

#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

enum { MAX_ROWS = 64, MAX_COLUMNS = 10 };

/* This is the file as it is written, before anything is fitted. */
typedef struct raw {
    double tokens, layers, embd, heads, kv_heads, d_head, ff, npu_ms, handover_ns; /* npu_anchor */
    double cpu_ms, attn_gmac, core_gmac, attend_factor, estimate_share, topk_ns;
    double float_slower, channels, kept, sync_ns;
    double unpack, setup, graph, optimise;
    double step_layer_ms, step_gb;
    double idle_w, cpu_w, npu_w, flash_w;
    double est_rows, est_keys, est_d;
    double weight_bits, kv_bits, context, vector_gmac; /* whole_runs */
} raw;

typedef struct field {
    const char *section, *name;
    size_t at;
    double max;
} field;

#define F(section, name, member, max)                                                                        \
    { section, name, offsetof(raw, member), max }
static const field fields[] = {
    F("npu_anchor", "tokens", tokens, 131072),
    F("npu_anchor", "layers", layers, 1024),
    F("npu_anchor", "embd", embd, 65536),
    F("npu_anchor", "heads", heads, 1024),
    F("npu_anchor", "kv_heads", kv_heads, 1024),
    F("npu_anchor", "d_head", d_head, 1024),
    F("npu_anchor", "ff", ff, 1e6),
    F("npu_anchor", "ms", npu_ms, 1e6),
    F("npu_anchor", "handover_ns", handover_ns, 1e3),
    F("cpu_anchor", "ms", cpu_ms, 1e6),
    F("cpu_attention", "gmac_per_s", attn_gmac, 1e5),
    F("core_attention", "gmac_per_s", core_gmac, 1e5),
    F("core_attention", "sparse_factor", attend_factor, 100),
    F("core_attention", "estimate_share", estimate_share, 1),
    F("core_attention", "topk_ns", topk_ns, 1e3),
    F("float_on_npu", "slower", float_slower, 1e4),
    F("shadow", "channels", channels, 65536),
    F("shadow", "kept_percent", kept, 100),
    F("shadow", "sync_ns", sync_ns, 1e4),
    F("unpack", "gweights_per_s", unpack, 1e4),
    F("graph", "setup_s_per_gb", setup, 1e3),
    F("graph", "load_s_per_gb", graph, 1e3),
    F("graph", "optimise_s_per_gb", optimise, 1e4),
    F("decode", "layer_ms", step_layer_ms, 1e3),
    F("decode", "gb_per_s", step_gb, 1e4),
    F("power", "idle_w", idle_w, 100),
    F("power", "cpu_w", cpu_w, 100),
    F("power", "npu_w", npu_w, 100),
    F("power", "flash_w", flash_w, 100),
    F("npu_estimate", "rows", est_rows, 1e5),
    F("npu_estimate", "keys", est_keys, 1e6),
    F("npu_estimate", "d_head", est_d, 1024),
    F("whole_runs", "weight_bits", weight_bits, 8),
    F("whole_runs", "kv_bits", kv_bits, 16),
    F("whole_runs", "context", context, 1e6),
    F("whole_runs", "vector_gmac_per_s", vector_gmac, 1e5),
};

typedef struct table {
    const char *section, *columns[MAX_COLUMNS + 1];
    bool optional; /* with its section */
} table;

enum { T_PRODUCTS, T_FLASH, T_LAUNCHES, T_RUNS };
static const table tables[] = {
    [T_PRODUCTS] = {"npu_products", {"m", "k", "n", "npu_ms", "cpu_ms", "gpu_ms", NULL}},
    [T_FLASH] = {"flash", {"gb", "s", NULL}},
    [T_LAUNCHES] = {"npu_estimate", {"heads", "ms", NULL}},
    [T_RUNS] = {"whole_runs",
                {"tokens", "layers", "embd", "heads", "kv_heads", "d_head", "ff", "vocab", "prefill_ms",
                 "tokens_per_s", NULL},
                true},
};

typedef struct rows {
    size_t n;
    double v[MAX_ROWS][MAX_COLUMNS];
} rows;

static tern_status number(const json_t *v, const char *section, const char *name, double max, double *out,
                          tern_error *err) {
    *out = json_number_value(v);
    bool may_be_0 = !strcmp(name, "handover_ns"); /* a whole model's time may hold it already */
    TN_FAIL_IF(!json_is_number(v) || !((*out > 0 || (may_be_0 && *out == 0)) && *out <= max), err,
               TERN_E_FORMAT, "%s: '%s' is not a number above 0, at most %g", section, name, max);
    return TERN_OK;
}

static tern_status read_table(const json_t *root, const table *t, rows *out, tern_error *err) {
    const json_t *list = json_object_get(json_object_get(root, t->section), "table");
    out->n = json_array_size(list);
    if (t->optional && !json_object_get(root, t->section)) return TERN_OK;
    TN_FAIL_IF(out->n < 2 || out->n > MAX_ROWS, err, TERN_E_FORMAT,
               "%s: 'table' has %zu rows; 2 to %d are needed", t->section, out->n, MAX_ROWS);
    for (size_t i = 0; i < out->n; i++) {
        const json_t *row = json_array_get(list, i);
        size_t n = 0;
        for (; t->columns[n]; n++)
            TN_TRY(number(json_object_get(row, t->columns[n]), t->section, t->columns[n], 1e9, &out->v[i][n],
                          err));
        TN_FAIL_IF(json_object_size(row) != n, err, TERN_E_FORMAT, "%s: row %zu has %zu entries, not %zu",
                   t->section, i + 1, json_object_size(row), n);
    }
    return TERN_OK;
}

/* Checks that every key is known and that every section says where its numbers come from. */
static tern_status check_keys(const json_t *root, tern_error *err) {
    const char *section, *name;
    json_t *o, *v;
    TN_FAIL_IF(!json_is_object(root), err, TERN_E_FORMAT, "not an object");
    json_object_foreach((json_t *)root, section, o) {
        bool known = false;
        if (!strcmp(section, "name") || !strcmp(section, "title")) {
            TN_FAIL_IF(!json_is_string(o), err, TERN_E_FORMAT, "'%s' is not a string", section);
            continue;
        }
        for (size_t i = 0; i < sizeof fields / sizeof *fields; i++)
            known |= !strcmp(section, fields[i].section);
        for (size_t i = 0; i < sizeof tables / sizeof *tables; i++)
            known |= !strcmp(section, tables[i].section);
        TN_FAIL_IF(!known, err, TERN_E_FORMAT, "section '%s' is unknown", section);
        TN_FAIL_IF(!json_is_string(json_object_get(o, "source")), err, TERN_E_FORMAT, "%s: no 'source'",
                   section);
        json_object_foreach(o, name, v) {
            known = !strcmp(name, "source");
            for (size_t i = 0; i < sizeof fields / sizeof *fields; i++)
                known |= !strcmp(section, fields[i].section) && !strcmp(name, fields[i].name);
            for (size_t i = 0; i < sizeof tables / sizeof *tables; i++)
                known |= !strcmp(section, tables[i].section) && !strcmp(name, "table");
            TN_FAIL_IF(!known, err, TERN_E_FORMAT, "%s: '%s' is unknown", section, name);
        }
    }
    return TERN_OK;
}

/* Fits y = a + b x by least squares. *rms is that of the relative errors. */
static tern_status fit_line(const char *section, const double *x, const double *y, size_t n, double *a,
                            double *b, double *rms, tern_error *err) {
    double mx = 0, my = 0, xx = 0, xy = 0, rel = 0;
    for (size_t i = 0; i < n; i++) mx += x[i] / (double)n, my += y[i] / (double)n;
    for (size_t i = 0; i < n; i++) xx += (x[i] - mx) * (x[i] - mx), xy += (x[i] - mx) * (y[i] - my);
    TN_FAIL_IF(!(xx > 0), err, TERN_E_FORMAT, "%s: all rows have one size", section);
    *b = xy / xx;
    TN_FAIL_IF(!(*b > 0), err, TERN_E_FORMAT, "%s: what is larger takes less time", section);
    *a = fmax(my - *b * mx, 0);
    for (size_t i = 0; i < n; i++) rel += pow((*a + *b * x[i]) / y[i] - 1, 2);
    *rms = sqrt(rel / (double)n);
    return TERN_OK;
}

/* Solves a1 x + b1 y = c1, a2 x + b2 y = c2 for x, y > 0. */
static tern_status solve(const double a[2], const double b[2], const double c[2], double *x, double *y,
                         tern_error *err) {
    double det = a[0] * b[1] - a[1] * b[0];
    *x = (c[0] * b[1] - c[1] * b[0]) / det, *y = (a[0] * c[1] - a[1] * c[0]) / det;
    TN_FAIL_IF(!(*x > 0 && *y > 0 && isfinite(*x) && isfinite(*y)), err, TERN_E_FORMAT,
               "whole_runs: the two models' times give no time per layer and per weight above 0");
    return TERN_OK;
}

/* Two models that ran wholly on the device give a layer's time, which holds all else but the products and attention,
 * in the launches, and the time per multiplication, of attention over the whole context too; their decoding a
 * layer's and a byte's time. */
static tern_status fit_whole_runs(tn_soc *c, const raw *r, const rows *runs, tern_error *err) {
    enum { TOKENS, LAYERS, EMBD, HEADS, KV, D, FF, VOCAB, MS, SPEED };
    double layers[2], macs[2], bytes[2], prefill_ns[2], step_ns[2];
    TN_FAIL_IF(runs->n != 2, err, TERN_E_FORMAT, "whole_runs: %zu models, not two", runs->n);
    for (int i = 0; i < 2; i++) {
        const double *v = runs->v[i];
        double weights = v[LAYERS] * (v[EMBD] * (2 * v[HEADS] + 2 * v[KV]) * v[D] + 3 * v[EMBD] * v[FF]);
        layers[i] = v[LAYERS];
        macs[i] = v[TOKENS] * (weights + 2 * v[LAYERS] * v[HEADS] * v[D] * r->context);
        bytes[i] = weights * r->weight_bits / 8 + v[VOCAB] * v[EMBD] +
                   2 * v[LAYERS] * v[KV] * v[D] * r->context * r->kv_bits / 8;
        prefill_ns[i] = v[MS] * 1e6, step_ns[i] = 1e9 / v[SPEED];
    }
    TN_TRY(solve(layers, macs, prefill_ns, &c->launch_ns, &c->mac_ns, err));
    TN_TRY(solve(layers, bytes, step_ns, &c->step_layer_ns, &c->step_byte_ns, err));
    c->launch_ns /= 4;                                      /* a layer has four graphs: qkv, o, ffn, down */
    c->byte_ns = c->handover_ns = c->products_residual = 0; /* two equations for two unknowns */
    c->step_weight_bits = r->weight_bits, c->step_context = r->context, c->step_kv_bytes = r->kv_bits / 8;
    c->vector_mac_ns = 1 / r->vector_gmac;
    c->device_attention = true, c->prefill_context = r->context;
    return TERN_OK;
}

static tern_status fit(tn_soc *c, const raw *r, const rows *products, const rows *flash, const rows *launches,
                       tern_error *err) {
    double x[MAX_ROWS], y[MAX_ROWS], cpu = 0, gpu = 0, sum_bb = 0, sum_bs = 0, rel = 0;
    for (size_t i = 0; i < products->n; i++) {
        x[i] = products->v[i][1] * products->v[i][2];
        y[i] = products->v[i][3] * 1e6;
        cpu += log(products->v[i][4] / products->v[i][3]) / (double)products->n;
        gpu += log(products->v[i][5] / products->v[i][3]) / (double)products->n;
    }
    TN_TRY(
        fit_line("npu_products", x, y, products->n, &c->launch_ns, &c->byte_ns, &c->products_residual, err));
    c->cpu_slower = exp(cpu), c->gpu_slower = exp(gpu);
    for (size_t i = 0; i < launches->n; i++)
        x[i] = launches->v[i][0] * r->est_rows * r->est_keys * r->est_d, y[i] = launches->v[i][1] * 1e6;
    TN_TRY(fit_line("npu_estimate", x, y, launches->n, &c->est_launch_ns, &c->est_mac_ns,
                    &c->estimate_residual, err));
    for (size_t i = 0; i < flash->n; i++)
        sum_bb += flash->v[i][0] * flash->v[i][0], sum_bs += flash->v[i][0] * flash->v[i][1];
    c->flash_byte_ns = sum_bs / sum_bb;
    for (size_t i = 0; i < flash->n; i++)
        rel += pow(c->flash_byte_ns * flash->v[i][0] / flash->v[i][1] - 1, 2);
    c->flash_residual = sqrt(rel / (double)flash->n);

    double weights = r->embd * (2 * r->heads + 2 * r->kv_heads) * r->d_head +
                     3 * r->embd * r->ff;                               /* of a layer's linears */
    double product_ns = r->npu_ms * 1e6 / r->layers - 4 * c->launch_ns; /* four graphs: qkv, o, ffn, down */
    c->mac_ns = product_ns / (weights * r->tokens);
    TN_FAIL_IF(product_ns <= c->byte_ns * weights, err, TERN_E_FORMAT,
               "npu_anchor: %.1f ms are less than the table of products allows", r->npu_ms);
    c->handover_ns = r->handover_ns;
    c->attn_mac_ns = c->vector_mac_ns = 1 / r->attn_gmac;
    double attn_ns = 2 * r->tokens * r->tokens * r->heads * r->d_head * c->attn_mac_ns;
    double elems = r->tokens * (2 * r->embd + (r->heads + 2 * r->kv_heads) * r->d_head +
                                r->ff); /* both norms, rope, activation */
    c->elem_ns = (r->cpu_ms * 1e6 / r->layers - attn_ns) / elems;
    TN_FAIL_IF(c->elem_ns <= 0, err, TERN_E_FORMAT, "cpu_anchor: %.1f ms are less than attention takes",
               r->cpu_ms);
    c->core_mac_ns = 1 / r->core_gmac;
    c->attend_factor = r->attend_factor, c->estimate_float = r->estimate_share, c->topk_ns = r->topk_ns;
    c->float_slower = r->float_slower;
    c->outlier_channels = r->channels, c->outliers_kept = r->kept / 100, c->sync_ns = r->sync_ns;
    c->unpack_ns = 1 / r->unpack;
    c->setup_byte_ns = r->setup, c->graph_byte_ns = r->graph, c->optimise_byte_ns = r->optimise;
    c->step_layer_ns = r->step_layer_ms * 1e6, c->step_byte_ns = 1 / r->step_gb;
    c->step_weight_bits = 8;
    c->idle_w = r->idle_w, c->cpu_w = r->cpu_w, c->npu_w = r->npu_w, c->flash_w = r->flash_w;
    return TERN_OK;
}

static tern_status read_soc(tn_soc *c, const json_t *root, tern_error *err) {
    raw r = {0};
    rows t[sizeof tables / sizeof *tables] = {0};
    TN_TRY(check_keys(root, err));
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        const field *f = &fields[i];
        const json_t *section = json_object_get(root, f->section);
        if (!section && !strcmp(f->section, tables[T_RUNS].section)) continue;
        TN_TRY(number(json_object_get(section, f->name), f->section, f->name, f->max,
                      (double *)((char *)&r + f->at), err));
    }
    for (size_t i = 0; i < sizeof tables / sizeof *tables; i++)
        TN_TRY(read_table(root, &tables[i], &t[i], err));
    const char *title = json_string_value(json_object_get(root, "title"));
    snprintf(c->title, sizeof c->title, "%s", title ? title : "");
    TN_TRY(fit(c, &r, &t[T_PRODUCTS], &t[T_FLASH], &t[T_LAUNCHES], err));
    return t[T_RUNS].n ? fit_whole_runs(c, &r, &t[T_RUNS], err) : TERN_OK;
}

tn_soc tn_soc_with_gpu(const tn_soc *soc) {
    tn_soc c = *soc;
    double faster = soc->cpu_slower / soc->gpu_slower;
    c.attn_mac_ns /= faster, c.vector_mac_ns /= faster, c.elem_ns /= faster;
    c.cpu_slower = soc->gpu_slower;
    c.float_slower *= faster; /* relative to the lane that has them otherwise */
    c.float_lane = "GPU";
    return c;
}

tern_status tn_soc_load(tn_soc *out, const char *path, tern_error *err) {
    json_t *root;
    TN_TRY(tn_json_read(path, JSON_REJECT_DUPLICATES, &root, err));
    *out = (tn_soc){.float_lane = "CPU"};
    tern_error why = {0};
    tern_status st = read_soc(out, root, &why);
    json_decref(root);
    TN_FAIL_IF(st != TERN_OK, err, st, "%s: %s", path, why.message);
    return TERN_OK;
}

double tn_sim_product_ns(const tn_soc *c, double weights, double values, double rows) {
    return rows * values * c->handover_ns + c->launch_ns +
           fmax(weights * c->byte_ns, weights * rows * c->mac_ns);
}
