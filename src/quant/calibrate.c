#include "quant/calibrate.h"

#include "base/half.h"
#include "base/status.h"

#include <math.h>
#include <string.h>

static float bin_edge(size_t bin) { return tn_bits_f32((uint32_t)bin << TN_HIST_SHIFT); } /* lower edge */

tn_site_stats *tn_calibration_site(const tn_calibration *c, int layer, tn_site s) {
    return &c->sites[s == TN_SITE_HEAD ? (size_t)c->n_layers * TN_LAYER_SITES : (size_t)layer * TN_LAYER_SITES + (size_t)s];
}

void tn_calibration_close(tn_calibration *c) {
    for (size_t i = 0; c->sites && i < (size_t)c->n_layers * TN_LAYER_SITES + 1; i++) {
        tn_free(c->ctx, c->sites[i].channel_max);
        tn_free(c->ctx, c->sites[i].channel_square);
        tn_free(c->ctx, c->sites[i].hist);
        tn_free(c->ctx, c->sites[i].channel_count);
    }
    tn_free(c->ctx, c->sites);
    c->sites = NULL;
}

static tern_status open_site(tn_ctx *ctx, tn_site_stats *s, int32_t k, tern_error *err) {
    s->k = k;
    s->channel_max = tn_calloc(ctx, TN_MEM_OTHER, (size_t)k, sizeof *s->channel_max);
    s->channel_square = tn_calloc(ctx, TN_MEM_OTHER, (size_t)k, sizeof *s->channel_square);
    s->hist = tn_calloc(ctx, TN_MEM_OTHER, TN_HIST_BINS, sizeof *s->hist);
    s->channel_count = tn_calloc(ctx, TN_MEM_OTHER, (size_t)k, sizeof *s->channel_count);
    TN_FAIL_IF(!s->channel_max || !s->channel_square || !s->hist || !s->channel_count, err, TERN_E_MEMORY, "no memory for calibration statistics");
    return TERN_OK;
}

static void observe_magnitudes(tn_site_stats *s, const float *x, size_t ldx, int32_t n_rows) {
    for (int32_t i = 0; i < n_rows; i++) {
        const float *row = x + (size_t)i * ldx;
        for (int32_t j = 0; j < s->k; j++) {
            float a = fabsf(row[j]);
            if (!(a <= 3e38f)) continue; /* a value that is not finite tells nothing */
            s->hist[tn_f32_bits(a) >> TN_HIST_SHIFT]++;
            s->channel_square[j] += (double)a * (double)a;
            if (a > s->channel_max[j]) s->channel_max[j] = a;
        }
    }
    s->n_tokens += (uint64_t)n_rows;
    s->n_values += (uint64_t)n_rows * (uint64_t)s->k;
}

static void observe_outliers(tn_site_stats *s, const float *x, size_t ldx, int32_t n_rows) {
    for (int32_t i = 0; i < n_rows; i++) {
        const float *row = x + (size_t)i * ldx;
        for (int32_t j = 0; j < s->k; j++) {
            if (fabsf(row[j]) > s->threshold) {
                s->channel_count[j]++;
                s->n_outliers++;
            }
        }
    }
}

typedef struct observer {
    const tn_model *m;
    tn_calibration *c;
    bool second_pass;
    const float *const *divide_by; /* per site; NULL: inputs as they are */
} observer;

static void observe_smoothed(tn_site_stats *s, bool second_pass, const float *divide_by, const float *x, size_t ldx, int32_t n_rows) {
    for (int32_t i = 0; i < n_rows; i++) {
        const float *row = x + (size_t)i * ldx;
        for (int32_t j = 0; j < s->k; j++) {
            float a = fabsf(row[j] / divide_by[j]);
            if (second_pass && a > s->threshold) {
                s->channel_count[j]++;
                s->n_outliers++;
            }
            if (second_pass || !(a <= 3e38f)) continue;
            s->hist[tn_f32_bits(a) >> TN_HIST_SHIFT]++;
            s->max = a > s->max ? a : s->max;
        }
    }
    if (!second_pass) s->n_values += (uint64_t)n_rows * (uint64_t)s->k;
}

static void observe(const observer *o, int layer, tn_site site, const float *x, size_t ldx, int32_t n_rows) {
    tn_site_stats *s = tn_calibration_site(o->c, layer, site);
    if (!s->k) return;
    if (o->divide_by) {
        const float *d = o->divide_by[s - o->c->sites];
        if (d) observe_smoothed(s, o->second_pass, d, x, ldx, n_rows);
        return;
    }
    if (o->second_pass) observe_outliers(s, x, ldx, n_rows);
    else observe_magnitudes(s, x, ldx, n_rows);
}

static void on_linear_input(void *user, int layer, tn_role role, const float *x, size_t ldx, int32_t n_rows) {
    tn_site site = role == TN_W_Q ? TN_SITE_QKV : role == TN_W_O ? TN_SITE_O : role == TN_W_UP ? TN_SITE_FFN : TN_SITE_DOWN;
    observe(user, layer, site, x, ldx, n_rows);
}

static tern_status one_pass(const tn_model *m, const tn_kernels *kern, tn_pool *pool, const int32_t *ids, size_t n_tok, int32_t window,
                            tn_kv *kv, tn_acts *acts, int32_t *pos, observer *o, tern_error *err) {
    tn_forward_hooks hooks = {.linear_input = on_linear_input, .user = o};
    for (size_t at = 0; at < n_tok; at += (size_t)window) {
        int32_t n = n_tok - at < (size_t)window ? (int32_t)(n_tok - at) : window;
        tn_rows r = {.h = &m->h, .kern = kern, .kv = kv, .n_rows = n, .pos = pos, .slot = pos, .tree_base = -1};
        TN_TRY(tn_forward_rows(m, pool, &r, acts, ids + at, false, NULL, &hooks, err));
        tn_rows_norm(&r, m->out_norm, m->out_norm_b, acts->x, acts->h, 0, n);
        observe(o, 0, TN_SITE_HEAD, acts->h, (size_t)m->h.n_embd, n);
        double done = ((double)at + (double)n) / (double)n_tok;
        TN_FAIL_IF(!tn_progress(m->ctx, o->divide_by ? "smooth" : "calibrate", (o->second_pass + done) / 2), err, TERN_E_CANCELLED, "calibration was cancelled");
    }
    return TERN_OK;
}

/* Buffers of a run over the corpus. */
typedef struct corpus_run {
    tn_kv kv;
    tn_acts acts;
    int32_t *pos;
} corpus_run;

static tern_status open_run(const tn_model *m, tn_pool *pool, int32_t window, corpus_run *r, tern_error *err) {
    r->pos = tn_alloc(m->ctx, TN_MEM_OTHER, (size_t)window, sizeof *r->pos);
    TN_FAIL_IF(!r->pos, err, TERN_E_MEMORY, "no memory for calibration");
    for (int32_t i = 0; i < window; i++) r->pos[i] = i;
    TN_TRY(tn_kv_open(m->ctx, &m->h, window, &r->kv, err));
    return tn_acts_open(m->ctx, &m->h, m->scheme, window, r->kv.cap_tok, tn_pool_size(pool), &r->acts, err);
}

static void close_run(const tn_model *m, corpus_run *r) {
    if (r->kv.ctx) tn_kv_close(&r->kv);
    if (r->acts.ctx) tn_acts_close(&r->acts);
    tn_free(m->ctx, r->pos);
}

tern_status tn_calibrate_smoothed(const tn_model *m, const tn_kernels *kern, tn_pool *pool, const int32_t *ids, size_t n_tok, int32_t window,
                                  const float *const *divide_by, double outlier_share, tn_calibration *c, tern_error *err) {
    for (size_t i = 0; i < (size_t)c->n_layers * TN_LAYER_SITES + 1; i++) {
        tn_site_stats *s = &c->sites[i];
        if (!divide_by[i] || !s->k) continue;
        memset(s->hist, 0, TN_HIST_BINS * sizeof *s->hist);
        s->max = 0;
        s->n_values = s->n_outliers = 0;
        memset(s->channel_count, 0, (size_t)s->k * sizeof *s->channel_count);
    }
    corpus_run run = {0};
    observer o = {.m = m, .c = c, .divide_by = divide_by};
    tern_status st = open_run(m, pool, window, &run, err);
    if (st == TERN_OK) st = one_pass(m, kern, pool, ids, n_tok, window, &run.kv, &run.acts, run.pos, &o, err);
    for (size_t i = 0; i < (size_t)c->n_layers * TN_LAYER_SITES + 1 && st == TERN_OK; i++) {
        if (divide_by[i] && c->sites[i].k) c->sites[i].threshold = tn_stats_quantile(&c->sites[i], outlier_share);
    }
    o.second_pass = true;
    if (st == TERN_OK) st = one_pass(m, kern, pool, ids, n_tok, window, &run.kv, &run.acts, run.pos, &o, err);
    close_run(m, &run);
    return st;
}

tern_status tn_calibrate(const tn_model *m, const tn_kernels *kern, tn_pool *pool, const int32_t *ids, size_t n_tok, int32_t window,
                         double outlier_share, tn_calibration *out, tern_error *err) {
    *out = (tn_calibration){.ctx = m->ctx, .n_layers = m->h.n_layers, .n_tokens = n_tok};
    TN_FAIL_IF(n_tok == 0, err, TERN_E_INVALID, "the calibration corpus has no tokens");
    size_t n_sites = (size_t)m->h.n_layers * TN_LAYER_SITES + 1;
    out->sites = tn_calloc(m->ctx, TN_MEM_OTHER, n_sites, sizeof *out->sites);
    TN_FAIL_IF(!out->sites, err, TERN_E_MEMORY, "no memory for calibration");
    corpus_run run = {0};
    tern_status st = open_run(m, pool, window, &run, err);
    for (size_t i = 0; i < n_sites && st == TERN_OK; i++) {
        tn_site site = i + 1 == n_sites ? TN_SITE_HEAD : (tn_site)(i % TN_LAYER_SITES);
        st = open_site(m->ctx, &out->sites[i], tn_site_get(&m->h, site).k, err);
    }
    observer o = {.m = m, .c = out};
    if (st == TERN_OK) st = one_pass(m, kern, pool, ids, n_tok, window, &run.kv, &run.acts, run.pos, &o, err);
    for (size_t i = 0; i < n_sites && st == TERN_OK; i++) {
        tn_site_stats *s = &out->sites[i];
        for (int32_t j = 0; j < s->k; j++) s->max = s->channel_max[j] > s->max ? s->channel_max[j] : s->max;
        if (s->k) s->threshold = tn_stats_quantile(s, outlier_share);
    }
    o.second_pass = true;
    if (st == TERN_OK) st = one_pass(m, kern, pool, ids, n_tok, window, &run.kv, &run.acts, run.pos, &o, err);
    close_run(m, &run);
    if (st != TERN_OK) tn_calibration_close(out);
    return st;
}

float tn_stats_quantile(const tn_site_stats *s, double share) {
    uint64_t allowed = (uint64_t)(share * (double)s->n_values), above = 0;
    for (size_t b = TN_HIST_BINS; b-- > 0;) {
        above += s->hist[b];
        if (above > allowed) {
            float edge = bin_edge(b + 1); /* everything above this edge is within the share */
            return edge < s->max ? edge : s->max;
        }
    }
    return s->max;
}

float tn_stats_best_clip(const tn_site_stats *s) {
    size_t lo = 0, hi = TN_HIST_BINS;
    while (lo < hi && !s->hist[lo]) lo++;
    while (hi > lo && !s->hist[hi - 1]) hi--;
    if (lo == hi || s->max == 0) return 1; /* nothing but zeros was seen: any scale will do */
    double best = INFINITY;
    float best_t = s->max;
    for (size_t c = lo + 1; c <= hi; c++) {
        double t = c == hi ? (double)s->max : (double)bin_edge(c), step = t / 127, rounding = step * step / 12, err = 0;
        if (t == 0) continue;
        for (size_t b = lo; b < hi && err < best; b++) {
            double x = ((double)bin_edge(b) + (double)bin_edge(b + 1)) / 2, e;
            if (x > t) e = (x - t) * (x - t);
            else e = x * x < rounding ? x * x : rounding; /* far below the step a value is lost, not rounded */
            err += e * (double)s->hist[b];
        }
        if (err < best) {
            best = err;
            best_t = (float)t;
        }
    }
    return best_t;
}

double tn_stats_bulk_error(const tn_site_stats *s, float clip) {
    double step = (double)clip / 127, rounding = step * step / 12, err = 0, energy = 0;
    for (size_t b = 0; b < TN_HIST_BINS && bin_edge(b) < s->threshold; b++) {
        if (!s->hist[b]) continue;
        double x = ((double)bin_edge(b) + (double)bin_edge(b + 1)) / 2, n = (double)s->hist[b], over = x - (double)clip;
        err += n * (over > 0 ? over * over : x * x < rounding ? x * x : rounding);
        energy += n * x * x;
    }
    return energy > 0 ? err / energy : 0;
}
