#include "quant/calibrate.h"

#include "base/half.h"
#include "base/status.h"

#include <math.h>
#include <string.h>

static float bin_edge(size_t bin) { return tn_bits_f32((uint32_t)bin << TN_HIST_SHIFT); } /* lower edge */

tn_site_stats *tn_calibration_site(const tn_calibration *c, int layer, tn_site s) {
    int32_t i = tn_program_site_index(c->program, layer, s);
    return i < 0 ? NULL : &c->sites[i];
}

void tn_calibration_close(tn_calibration *c) {
    for (int32_t i = 0; c->sites && i < c->program->n_sites; i++) {
        tn_free(c->ctx, c->sites[i].channel_max);
        tn_free(c->ctx, c->sites[i].channel_square);
        tn_free(c->ctx, c->sites[i].hist);
        tn_free(c->ctx, c->sites[i].channel_count);
    }
    tn_free(c->ctx, c->sites);
    c->sites = NULL;
}

static tern_status open_site(tn_ctx *ctx, tn_site_stats *s, const tn_site_ops *ops, tern_error *err) {
    const int32_t k = s->k = ops->k;
    s->n_experts = ops->n_experts;
    s->channel_max = tn_calloc(ctx, TN_MEM_OTHER, (size_t)k, sizeof *s->channel_max);
    s->channel_square = tn_calloc(ctx, TN_MEM_OTHER, (size_t)k, sizeof *s->channel_square);
    s->hist = tn_calloc(ctx, TN_MEM_OTHER, TN_HIST_BINS, sizeof *s->hist);
    s->channel_count = tn_calloc(ctx, TN_MEM_OTHER, (size_t)k, sizeof *s->channel_count);
    TN_FAIL_IF(!s->channel_max || !s->channel_square || !s->hist || !s->channel_count, err, TERN_E_MEMORY,
               "no memory for calibration statistics");
    return TERN_OK;
}

static void observe_magnitudes(tn_site_stats *s, const float *x, size_t ldx, int32_t n_rows) {
    for (int32_t i = 0; i < n_rows; i++) {
        const float *row = x + (size_t)i * ldx;
        for (int32_t j = 0; j < s->k; j++) {
            float a = fabsf(row[j]);
            if (!(a <= 3e38f)) continue; /* non-finite values are ignored */
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
    tn_calibration *c;
    bool second_pass;
    const float *const *divide_by; /* per site of the layer; NULL: inputs as they are */
    void (*qk)(void *user, int layer, const float *q, const float *k, int32_t n_rows);
    void *qk_user;
} observer;

static void observe_smoothed(tn_site_stats *s, bool second_pass, const float *divide_by, const float *x,
                             size_t ldx, int32_t n_rows) {
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

static void observe(const observer *o, tn_site_stats *s, const float *divide_by, const float *x, size_t ldx,
                    int32_t n_rows) {
    if (o->divide_by && !divide_by) return;
    if (divide_by) observe_smoothed(s, o->second_pass, divide_by, x, ldx, n_rows);
    else if (o->second_pass) observe_outliers(s, x, ldx, n_rows);
    else observe_magnitudes(s, x, ldx, n_rows);
}

static void on_site_input(void *user, int layer, tn_site site, float *x, size_t ldx, int32_t n_rows) {
    const observer *o = user;
    observe(o, tn_calibration_site(o->c, layer, site), o->divide_by ? o->divide_by[site] : NULL, x, ldx,
            n_rows);
}

static void on_qk(void *user, int layer, const float *q, const float *k, int32_t n_rows) {
    const observer *o = user;
    o->qk(o->qk_user, layer, q, k, n_rows);
}

tern_status tn_calibration_open(tn_ctx *ctx, const tn_program *p, tn_calibration *out, tern_error *err) {
    *out = (tn_calibration){.ctx = ctx, .program = p};
    out->sites = tn_calloc(ctx, TN_MEM_OTHER, (size_t)p->n_sites, sizeof *out->sites);
    TN_FAIL_IF(!out->sites, err, TERN_E_MEMORY, "no memory for calibration");
    for (int32_t i = 0; i < p->n_sites; i++) {
        tern_status st = open_site(ctx, &out->sites[i], tn_program_linears(p, i), err);
        if (st == TERN_OK) continue;
        tn_calibration_close(out);
        return st;
    }
    return TERN_OK;
}

/* Two passes over a layer: the first decides which values count as outliers in the second. */
static void find_threshold(tn_site_stats *s, double outlier_share) {
    for (int32_t j = 0; j < s->k; j++) s->max = s->channel_max[j] > s->max ? s->channel_max[j] : s->max;
    s->threshold = tn_stats_quantile(s, outlier_share);
}

void tn_calibrate_layer(tn_calibration *c, tn_corpus *corpus, int layer, double outlier_share,
                        void (*qk)(void *, int, const float *, const float *, int32_t), void *qk_user,
                        bool keep) {
    observer o = {.c = c, .qk = qk, .qk_user = qk_user};
    tn_forward_hooks hooks = {.site_input = on_site_input, .qk = qk ? on_qk : NULL, .user = &o};
    tn_corpus_pass(corpus, layer, &hooks, false);
    int32_t first, n = tn_program_layer_sites(c->program, layer, &first);
    for (int32_t i = first; i < first + n; i++) find_threshold(&c->sites[i], outlier_share);
    o.second_pass = true;
    hooks.qk = NULL;
    tn_corpus_pass(corpus, layer, &hooks, keep);
}

void tn_calibrate_smoothed(tn_calibration *c, tn_corpus *corpus, int layer, const float *const *divide_by,
                           double outlier_share, bool keep) {
    observer o = {.c = c, .divide_by = divide_by};
    tn_forward_hooks hooks = {.site_input = on_site_input, .user = &o};
    int32_t first, n = tn_program_layer_sites(c->program, layer, &first);
    for (int32_t i = first; i < first + n; i++) {
        tn_site_stats *s = &c->sites[i];
        if (!divide_by[c->program->sites[i].kind]) continue;
        memset(s->hist, 0, TN_HIST_BINS * sizeof *s->hist);
        s->max = 0;
        s->n_values = s->n_outliers = 0;
        memset(s->channel_count, 0, (size_t)s->k * sizeof *s->channel_count);
    }
    tn_corpus_pass(corpus, layer, &hooks, false);
    for (int32_t i = first; i < first + n; i++) {
        if (divide_by[c->program->sites[i].kind])
            c->sites[i].threshold = tn_stats_quantile(&c->sites[i], outlier_share);
    }
    o.second_pass = true;
    tn_corpus_pass(corpus, layer, &hooks, keep);
}

void tn_calibrate_lm_head(tn_calibration *c, tn_corpus *corpus, double outlier_share) {
    const tn_model *m = corpus->m;
    size_t e = (size_t)m->h.n_embd, width = (size_t)tn_residual_width(&m->h);
    tn_site_stats *s = tn_calibration_site(c, 0, TN_SITE_LM_HEAD);
    for (int pass = 0; pass < 2; pass++) {
        observer o = {.c = c, .second_pass = pass};
        for (size_t at = 0; at < corpus->n_tok; at += (size_t)corpus->window) {
            int32_t n =
                corpus->n_tok - at < (size_t)corpus->window ? (int32_t)(corpus->n_tok - at) : corpus->window;
            float *normed = corpus->acts.buf[TN_BUF_NORMED];
            tn_forward_out_norm(m, corpus->kern, corpus->x + at * width, normed, n);
            observe(&o, s, NULL, normed, e, n);
        }
        if (!pass) find_threshold(s, outlier_share);
    }
}

float tn_stats_quantile(const tn_site_stats *s, double share) {
    uint64_t allowed = (uint64_t)(share * (double)s->n_values), above = 0;
    for (size_t b = TN_HIST_BINS; b-- > 0;) {
        above += s->hist[b];
        if (above > allowed) {
            float edge = bin_edge(b + 1); /* the values above this edge make up at most the share */
            return edge < s->max ? edge : s->max;
        }
    }
    return s->max;
}

float tn_stats_best_clip(const tn_site_stats *s) {
    size_t lo = 0, hi = TN_HIST_BINS;
    while (lo < hi && !s->hist[lo]) lo++;
    while (hi > lo && !s->hist[hi - 1]) hi--;
    if (lo == hi || s->max == 0) return 1; /* only zeros were seen: any scale works */
    double best = INFINITY;
    float best_t = s->max;
    for (size_t c = lo + 1; c <= hi; c++) {
        double t = c == hi ? (double)s->max : (double)bin_edge(c), step = t / 127,
               rounding = step * step / 12, err = 0;
        if (t == 0) continue;
        for (size_t b = lo; b < hi && err < best; b++) {
            double x = ((double)bin_edge(b) + (double)bin_edge(b + 1)) / 2, e;
            if (x > t) e = (x - t) * (x - t);
            else
                e = x * x < rounding ? x * x
                                     : rounding; /* far below the step a value is lost rather than rounded */
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
        double x = ((double)bin_edge(b) + (double)bin_edge(b + 1)) / 2, n = (double)s->hist[b],
               over = x - (double)clip;
        err += n * (over > 0 ? over * over : x * x < rounding ? x * x : rounding);
        energy += n * x * x;
    }
    return energy > 0 ? err / energy : 0;
}
