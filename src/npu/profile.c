#include "npu/profile.h"

#include "base/clock.h"
#include "base/order.h"
#include "base/rng.h"
#include "npu/backend.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_RUNS = 101 };

/* Everything that a graph of one shape needs to run. Filled step by step, freed as a whole at any stage. */
typedef struct rig {
    tn_npu_device *dev;
    tn_npu_graph *graph;
    tn_npu_weights *weights[TN_NPU_MAX_OPS];
    void *in[TN_NPU_MAX_OPS], *out[TN_NPU_MAX_OPS], *k[TN_NPU_MAX_OPS], *k_sum[TN_NPU_MAX_OPS];
    char *evict;
    tn_npu_job job;
} rig;

void tn_npu_profile_defaults(tn_npu_profile_options *o) {
    *o = (tn_npu_profile_options){.n_runs = 7, .max_s = 0.5, .evict_bytes = 64 << 20};
}

/* Fills with arbitrary legal weights, bytes in [-63, 64]. Column sums stay 0: they do not affect the time. */
static void fill(int8_t *p, uint64_t n_bytes) {
    tn_rng rng = {1};
    for (uint64_t i = 0; i < n_bytes; i += 8) {
        uint64_t u = tn_rng_u64(&rng) & 0x7f7f7f7f7f7f7f7full;
        for (uint64_t j = i; j < n_bytes && j < i + 8; j++)
            p[j] = (int8_t)((int)(u >> 8 * (j - i) & 0x7f) - 63);
    }
}

static tern_status rig_op(rig *r, int i, tern_error *err) {
    const tn_npu_graph_desc *g = &r->graph->desc;
    const tn_npu_op *op = &g->ops[i];
    const tn_npu_layout *l = &r->dev->caps.layout;
    uint64_t tiles_bytes = tn_npu_tiles_bytes(l, op->n, g->k),
             n_padded = tn_npu_tiles_bytes(l, op->n, 1) / (uint64_t)l->tile_k;
    if (g->kind == TN_NPU_LINEARS) {
        TN_TRY(tn_npu_weights_open(r->dev, op->n, g->k, op->has_bias, &r->weights[i], err));
        tn_npu_weights_data w = tn_npu_weights_get(r->weights[i]);
        fill(w.tiles, tiles_bytes);
        memset(w.col_sum, 0, n_padded * 4);
        for (uint64_t n = 0; n < n_padded; n++) w.scale[n] = 1;
        if (w.bias) memset(w.bias, 0, n_padded * 4);
    } else {
        TN_TRY(tn_npu_mem_alloc(r->dev, tiles_bytes, &r->k[i], err));
        TN_TRY(tn_npu_mem_alloc(r->dev, n_padded * 4, &r->k_sum[i], err));
        fill(r->k[i], tiles_bytes);
        memset(r->k_sum[i], 0, n_padded * 4);
        r->job.k[i].tiles = r->k[i];
        r->job.k[i].col_sum = r->k_sum[i];
        r->job.k[i].n_pos = op->n;
    }
    if (g->kind == TN_NPU_QK || i == 0) {
        uint64_t in_bytes = (uint64_t)g->m * (uint64_t)g->in_stride;
        TN_TRY(tn_npu_mem_alloc(r->dev, in_bytes, &r->in[i], err));
        fill(r->in[i], in_bytes);
        r->job.in[i] = r->in[i];
    }
    uint64_t element = tn_npu_op_requantised(op) ? 1 : 4;
    TN_TRY(tn_npu_mem_alloc(r->dev, (uint64_t)g->m * (uint64_t)op->out_stride * element, &r->out[i], err));
    r->job.out[i] = r->out[i];
    return TERN_OK;
}

static void rig_close(rig *r) {
    tn_npu_graph_close(&r->graph);
    for (int i = 0; i < TN_NPU_MAX_OPS; i++) {
        tn_npu_weights_close(&r->weights[i]);
        tn_npu_mem_free(r->dev, r->in[i]);
        tn_npu_mem_free(r->dev, r->out[i]);
        tn_npu_mem_free(r->dev, r->k[i]);
        tn_npu_mem_free(r->dev, r->k_sum[i]);
    }
    tn_free(r->dev->ctx, r->evict);
}

static tern_status rig_open(rig *r, tn_npu_device *d, const tn_npu_graph_desc *desc,
                            const tn_npu_profile_options *opt, tern_error *err) {
    *r = (rig){.dev = d};
    TN_TRY(tn_npu_compile(d, desc, &r->graph, err));
    for (int i = 0; i < desc->n_ops; i++) TN_TRY(rig_op(r, i, err));
    r->job.n_rows = desc->m;
    if (opt->evict_bytes) {
        r->evict = tn_alloc(d->ctx, TN_MEM_OTHER, opt->evict_bytes, 1);
        TN_FAIL_IF(!r->evict, err, TERN_E_MEMORY, "no memory to profile with");
    }
    return TERN_OK;
}

static double now(const tn_npu_profile_options *opt) {
    return opt->now_s ? opt->now_s(opt->user) : tn_now_s();
}

static tern_status rig_time(rig *r, const tn_npu_profile_options *opt, tn_npu_timing *out, tern_error *err) {
    TN_TRY(tn_npu_load(r->graph, r->graph->desc.kind == TN_NPU_LINEARS ? r->weights : NULL, err));
    r->job.graph = r->graph;
    double t[MAX_RUNS], begun = now(opt);
    int32_t n = 0, n_runs = opt->n_runs < 1 ? 1 : opt->n_runs > MAX_RUNS ? MAX_RUNS : opt->n_runs;
    for (int32_t i = -1; i < n_runs && (n < 1 || now(opt) - begun < opt->max_s); i++) {
        if (r->evict) memset(r->evict, (char)i, opt->evict_bytes);
        /* The previous operator has just written the input. */
        for (int k = 0; k < TN_NPU_MAX_OPS; k++) {
            if (r->in[k])
                memset(r->in[k], 100 + i, (size_t)r->graph->desc.m * (size_t)r->graph->desc.in_stride);
        }
        double t0 = now(opt);
        TN_TRY(tn_npu_submit(&r->job, err));
        tern_status st = tn_npu_wait(&r->job);
        TN_FAIL_IF(st != TERN_OK, err, st, "the %s NPU failed while profiled", r->dev->caps.name);
        if (i >= 0) t[n++] = now(opt) - t0;
    }
    tn_npu_unload(r->graph);
    qsort(t, (size_t)n, sizeof t[0], tn_by_double);
    *out = (tn_npu_timing){.median_s = t[n / 2], .min_s = t[0], .n_runs = n};
    return TERN_OK;
}

tern_status tn_npu_profile(tn_npu_device *d, const tn_npu_graph_desc *desc, const tn_npu_profile_options *opt,
                           tn_npu_timing *out, tern_error *err) {
    tn_npu_profile_options def;
    tn_npu_profile_defaults(&def);
    if (!opt) opt = &def;
    rig r;
    tern_status st = rig_open(&r, d, desc, opt, err);
    if (st == TERN_OK) st = rig_time(&r, opt, out, err);
    rig_close(&r);
    return st;
}

tern_status tn_npu_best_split(tn_npu_device *d, tn_npu_graph_desc *desc, const tn_npu_profile_options *opt,
                              tn_npu_timing *timing, tern_error *err) {
    const double worth = 0.98;
    tn_npu_profile_options def;
    tn_npu_profile_defaults(&def);
    if (!opt) opt = &def;
    tn_npu_graph_desc d1 = *desc;
    d1.rows_per_run = d1.m;
    int32_t best_rows = d1.m;
    rig r; /* shared by all candidates: they differ only in the graph */
    tn_npu_timing best = {0}, t;
    tern_status st = rig_open(&r, d, &d1, opt, err);
    if (st == TERN_OK) st = rig_time(&r, opt, &best, err);
    double whole_s = best.min_s; /* the shortest run: disturbance only adds time */
    for (int32_t i = 0; i < d->caps.n_splits && st == TERN_OK; i++) {
        d1.rows_per_run = d->caps.splits[i];
        if (d1.rows_per_run >= d1.m) continue;
        tn_npu_graph_close(&r.graph);
        st = tn_npu_compile(d, &d1, &r.graph, err);
        if (st == TERN_OK) st = rig_time(&r, opt, &t, err);
        if (st == TERN_OK && t.min_s < best.min_s && t.min_s < whole_s * worth) {
            best = t;
            best_rows = d1.rows_per_run;
        }
    }
    rig_close(&r);
    if (st != TERN_OK) return st;
    desc->rows_per_run = best_rows;
    if (timing) *timing = best;
    return TERN_OK;
}
