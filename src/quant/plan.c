/* quant/plan.c - decisions of the papers' schemes for a site: clip, outlier path and hot channels (llm.npu
 * 3.3), smoothing (SmoothQuant; EdgeFlow 4.1). */
#include "quant/packer.h"

#include "base/half.h"
#include "base/status.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static int by_count(const void *a, const void *b) {
    const uint64_t x = *(const uint64_t *)a,
                   y = *(const uint64_t *)b; /* count in the high half, channel in the low */
    return x > y ? -1 : x < y;
}

static int by_channel(const void *a, const void *b) { return *(const int32_t *)a - *(const int32_t *)b; }

static tern_status choose_hot(packer *p, site_plan *plan, const tn_site_stats *s) {
    uint64_t *order = tn_alloc(p->ctx, TN_MEM_OTHER, (size_t)s->k, sizeof *order);
    int32_t cap = (int32_t)ceilf(p->o->hot_max * (float)s->k);
    if (cap < 1) cap = 1;
    plan->hot = tn_alloc(p->ctx, TN_MEM_OTHER, (size_t)cap, sizeof *plan->hot);
    TN_FAIL_IF(!order || !plan->hot, p->err, TERN_E_MEMORY, "no memory to choose hot channels");
    for (int32_t j = 0; j < s->k; j++) order[j] = (uint64_t)s->channel_count[j] << 32 | (uint32_t)(s->k - j);
    qsort(order, (size_t)s->k, sizeof *order, by_count);
    uint64_t covered = 0;
    while (plan->n_hot < cap && (double)covered < (double)p->o->hot_coverage * (double)s->n_outliers &&
           order[plan->n_hot] >> 32) {
        covered += order[plan->n_hot] >> 32;
        plan->hot[plan->n_hot] = s->k - (int32_t)(uint32_t)order[plan->n_hot];
        plan->n_hot++;
    }
    qsort(plan->hot, (size_t)plan->n_hot, sizeof *plan->hot, by_channel);
    tn_free(p->ctx, order);
    p->report->n_hot += (uint64_t)plan->n_hot;
    p->report->n_channels += (uint64_t)s->k;
    p->report->n_outliers += s->n_outliers;
    p->report->n_values += s->n_values;
    p->report->hot_coverage += (double)covered; /* divided at the end */
    return TERN_OK;
}

static int by_importance(const void *a, const void *b) {
    const site_plan *x = *(site_plan *const *)a, *y = *(site_plan *const *)b;
    if (x->importance != y->importance) return x->importance < y->importance ? -1 : 1;
    return x < y ? -1 : x > y;
}

tern_status tn_plan_sites(packer *p) {
    size_t n_sites = (size_t)p->m->program.n_sites, n = 0;
    site_plan **order = tn_alloc(p->ctx, TN_MEM_OTHER, n_sites, sizeof *order);
    TN_FAIL_IF(!order, p->err, TERN_E_MEMORY, "no memory to plan %zu sites", n_sites);
    for (size_t i = 0; i < n_sites; i++) {
        const tn_site_stats *s = &p->cal.sites[i];
        site_plan *plan = &p->plans[i];
        plan->importance = s->threshold > 0 ? s->max / s->threshold : 1;
        plan->clip = p->o->scheme == TN_SCHEME_LLM_NPU ? tn_stats_best_clip(s) : s->max;
        order[n++] = plan;
    }
    p->report->n_sites = (int32_t)n;
    tern_status st = TERN_OK;
    if (p->o->scheme == TN_SCHEME_LLM_NPU) {
        qsort(order, n, sizeof *order, by_importance);
        size_t n_pruned = (size_t)lround((double)n * (double)p->o->prune_percent / 100);
        for (size_t i = 0; i < n && st == TERN_OK; i++) {
            const tn_site_stats *s = &p->cal.sites[order[i] - p->plans];
            if (i < n_pruned && tn_stats_bulk_error(s, order[i]->clip) <= (double)p->o->prune_error) continue;
            if (s->n_experts) continue; /* weight rows by input channel would be needed for all experts */
            order[i]->outliers = true;
            order[i]->clip = s->threshold;
            p->report->n_outlier_sites++;
            st = choose_hot(p, order[i], s);
        }
        if (p->report->n_outliers) p->report->hot_coverage /= (double)p->report->n_outliers;
    }
    tn_free(p->ctx, order);
    return st;
}

/* SmoothQuant (alpha 0.5): s_k = sqrt(max |X_k| / max |W_k|) for the sites after a norm. */
tern_status tn_plan_smooth(packer *p, int layer, tn_site site) {
    const tn_site_ops ops =
        *tn_program_linears(&p->m->program, tn_program_site_index(&p->m->program, layer, site));
    site_plan *plan = plan_of(p, layer, site);
    tn_site_stats *s = tn_calibration_site(&p->cal, layer, site);
    plan->smooth = tn_calloc(p->ctx, TN_MEM_OTHER, (size_t)ops.k, sizeof *plan->smooth);
    float *row = tn_alloc(p->ctx, TN_MEM_OTHER, (size_t)ops.k, sizeof *row);
    TN_FAIL_IF(!plan->smooth || !row, p->err, TERN_E_MEMORY, "no memory to smooth");
    tern_status st = TERN_OK;
    for (int32_t op = 0; op < ops.n_ops; op++) {
        for (int32_t n = 0; n < ops.n[op] && st == TERN_OK; n++) {
            st = tn_source_read(p->src, layer, ops.roles[op], n, n + 1, row, p->err);
            for (int32_t k = 0; k < ops.k; k++) plan->smooth[k] = fmaxf(plan->smooth[k], fabsf(row[k]));
        }
    }
    float clip = 0;
    for (int32_t k = 0; k < ops.k; k++) {
        float x = fmaxf(s->channel_max[k], 1e-5f), w = fmaxf(plan->smooth[k], 1e-5f);
        plan->smooth[k] = tn_round_bf16(sqrtf(x / w)); /* as it is stored */
        clip = fmaxf(clip, s->channel_max[k] / plan->smooth[k]);
    }
    plan->clip = clip;
    tn_free(p->ctx, row);
    return st;
}

/* ---- EdgeFlow: NPU-aware smoothing --------------------------------------------------------------- */

enum { N_ALPHA = 21, SAMPLE_ROWS = 256 };

const char tn_pack_unsmoothed[] = "no norm or linear in front of them could take the inverse of their scales";

/* Noise in a site's outputs from 8-bit inputs divided by t, at the clip that minimises it: rounding (one step
 * for all channels) plus the clipped-off part of a channel, taken as Laplace-distributed with the channel's
 * mean square. column[k]: sum of the squares of channel k's weights. */
static double input_noise(const tn_site_stats *s, const float *t, const double *column, double largest) {
    enum { N_CLIPS = 24 };
    double best = INFINITY, clip = largest;
    for (int c = 0; c < N_CLIPS; c++, clip *= 0.8) {
        double rounding = clip * clip / (127.0 * 127.0 * 12), sum = 0;
        for (int32_t k = 0; k < s->k && sum < best; k++) {
            double square = s->channel_square[k] / ((double)s->n_tokens * (double)t[k] * (double)t[k]),
                   b = sqrt(square / 2);
            double cut = b > 0 && clip < (double)(s->channel_max[k] / t[k]) ? square * exp(-clip / b) : 0;
            sum += column[k] * (double)t[k] * (double)t[k] * (rounding + cut);
        }
        best = fmin(best, sum);
    }
    return best;
}

/* s_k = S_k^alpha, S the largest input of the channel. alpha, from a grid, minimises the noise in the site's
 * outputs from the inputs and the weights (a step per row). Scaling outputs (beta = 1) is the row's own
 * dequantisation scale and changes no code. */
tern_status tn_plan_edgeflow(packer *p, int layer, tn_site site) {
    const tn_site_ops ops =
        *tn_program_linears(&p->m->program, tn_program_site_index(&p->m->program, layer, site));
    site_plan *plan = plan_of(p, layer, site);
    tn_site_stats *s = tn_calibration_site(&p->cal, layer, site);
    size_t n_k = (size_t)ops.k;
    float *table = tn_alloc(p->ctx, TN_MEM_OTHER, N_ALPHA * n_k, sizeof *table),
          *row = tn_alloc(p->ctx, TN_MEM_OTHER, n_k, sizeof *row);
    float *top = tn_calloc(p->ctx, TN_MEM_OTHER, n_k, sizeof *top);
    double *column = tn_calloc(p->ctx, TN_MEM_OTHER, n_k, sizeof *column);
    tern_status st =
        table && row && top && column ? TERN_OK : tn_fail(p->err, TERN_E_MEMORY, "no memory to smooth");
    double noise[N_ALPHA] = {0}, largest[N_ALPHA] = {0}, energy[N_ALPHA] = {0};
    const int32_t i_site = tn_program_site_index(&p->m->program, layer, site);
    tn_role absorber = tn_program_absorber(&p->m->program, i_site);
    /* after delta nets and convolutions this scheme's scales lose more than they gain
     * (tests/engine/families.c) */
    bool can = absorber != TN_W_N_ROLES || (tn_program_divides(&p->m->program, i_site) &&
                                            !tn_program_divides_alone(&p->m->program, i_site));
    p->report->n_unsmoothed += !can;
    int n_alpha = st == TERN_OK ? can ? N_ALPHA : 1 : 0, best = 0;
    for (size_t k = 0; k < n_k && st == TERN_OK; k++) {
        size_t at = absorber == TN_W_V ? (size_t)tn_value_row(&p->m->h, (int32_t)k) : k;
        top[at] = fmaxf(top[at], fmaxf(s->channel_max[k], s->max * 1e-4f + 1e-20f));
    }
    for (int a = 0; a < n_alpha; a++) {
        float *t = table + (size_t)a * n_k;
        for (size_t k = 0; k < n_k; k++) {
            t[k] =
                tn_round_bf16(powf(top[absorber == TN_W_V ? (size_t)tn_value_row(&p->m->h, (int32_t)k) : k],
                                   (float)a / (N_ALPHA - 1))); /* as it is stored */
            largest[a] = fmax(largest[a], (double)(s->channel_max[k] / t[k]));
            energy[a] += s->channel_square[k] / ((double)s->n_tokens * (double)t[k] * (double)t[k]);
        }
    }
    double levels = exp2(p->bits);
    for (int32_t op = 0; op < ops.n_ops && st == TERN_OK; op++) {
        int32_t step = (ops.n[op] + SAMPLE_ROWS - 1) / SAMPLE_ROWS;
        for (int32_t n = 0; n < ops.n[op] && st == TERN_OK; n += step) {
            st = tn_source_read(p->src, layer, ops.roles[op], n, n + 1, row, p->err);
            for (size_t k = 0; k < n_k && st == TERN_OK; k++)
                column[k] += step * (double)row[k] * (double)row[k];
            for (int a = 0; a < n_alpha && st == TERN_OK; a++) {
                const float *t = table + (size_t)a * n_k;
                float max = 0;
                for (size_t k = 0; k < n_k; k++) max = fmaxf(max, fabsf(row[k] * t[k]));
                double w_step = 2 * (double)max / levels;
                noise[a] += step * w_step * w_step * energy[a] / 12;
            }
        }
    }
    for (int a = 0; a < n_alpha && st == TERN_OK; a++)
        noise[a] += input_noise(s, table + (size_t)a * n_k, column, largest[a]);
    for (int a = 1; a < n_alpha; a++) best = noise[a] < noise[best] ? a : best;
    if (st == TERN_OK && best) {
        plan->smooth = tn_alloc(p->ctx, TN_MEM_OTHER, n_k, sizeof *plan->smooth);
        if (!plan->smooth) st = tn_fail(p->err, TERN_E_MEMORY, "no memory to smooth");
        else memcpy(plan->smooth, table + (size_t)best * n_k, n_k * sizeof *table);
    }
    tn_free(p->ctx, table);
    tn_free(p->ctx, row);
    tn_free(p->ctx, top);
    tn_free(p->ctx, column);
    return st;
}

/* The clip with the least cost: scaling by the largest value would waste steps on a few values. Clipped
 * parts are added back where the rest would suffer. */
tern_status tn_plan_edgeflow_clips(packer *p) {
    for (int32_t i = 0; i < p->m->program.n_sites; i++) {
        site_plan *plan = &p->plans[i];
        const tn_site_stats *s = &p->cal.sites[i];
        plan->clip = tn_stats_best_clip(s);
        plan->outliers = !s->n_experts && (p->o->outliers == TN_OUTLIERS_ON ||
                                           (p->o->outliers == TN_OUTLIERS_AUTO &&
                                            tn_stats_bulk_error(s, plan->clip) > (double)p->o->prune_error));
        if (!plan->outliers) continue;
        plan->clip = s->threshold;
        p->report->n_outlier_sites++;
        TN_TRY(choose_hot(p, plan, s));
    }
    if (p->report->n_outliers) p->report->hot_coverage /= (double)p->report->n_outliers;
    return TERN_OK;
}
