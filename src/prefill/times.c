/* What the tasks of waves take: guessed, then measured. The policies decide by it. */
#include "base/status.h"
#include "prefill/impl.h"

/* ---- estimates ------------------------------------------------------------------------------------- */

/* Guesses before anything is measured: multiply-adds at a round rate, right in order of magnitude. */
static double guess_us(const tn_pipeline *p, int32_t step, tn_step_kind kind) {
    double rows = p->n_rows;
    if (tn_step_is_head(kind)) rows /= p->heads.n_slots * p->heads.n_blocks;
    if (kind == TN_STEP_PRODUCT) {
        const tn_site_ops *o = &tn_step_site(p, step)->ops;
        int32_t linear = tn_step_linear(p, step);
        return rows * (linear < 0 ? tn_site_macs(o) : (double)o->k * o->n[linear]) / 4e5;
    }
    return rows * (double)p->model->h.n_embd / 1e3;
}

static bool is_attention(tn_step_kind k) { return k == TN_STEP_ATTENTION || tn_step_is_head(k); }

/* Returns the measured time of attention of a layer at position 0. */
static double attention_us(const tn_pipeline *p) {
    const tn_step_types *t = &p->steps.types;
    double us = 0;
    for (int32_t i = 0; i < t->n; i++) {
        if (!is_attention(t->at[i].kind)) continue;
        us += p->profile->us[i] * (tn_step_is_head(t->at[i].kind) ? p->heads.n_slots * p->heads.n_blocks : 1);
    }
    return us;
}

static int32_t type_of(const tn_pipeline *p, const task_arg *a) {
    return tn_step_is_head(a->kind) ? tn_step_type_find(&p->steps.types, tn_head_step_name(a->kind))
                                    : p->steps.at[a->step].type;
}

/* Tells whether the CPU lane computes this product differently from the device, and so in another time. */
static bool stolen_apart(const tn_pipeline *p, int32_t step) {
    const tn_npu_site *s = tn_step_site(p, step);
    return tn_product_can_be_stolen(p, step) && !tn_site_has_parts(p, s) && !s->ops.n_experts;
}

void tn_wave_estimate(const tn_pipeline *p, wave *w, int32_t n_tasks) {
    for (int32_t i = 0; i < n_tasks; i++) {
        const task_arg *a = &w->args[i];
        double us = guess_us(p, a->step, a->kind);
        if (p->profile->measured) {
            us = p->profile->us[type_of(p, a)];
            /* attention is one task, or the tasks of the heads, which grow in proportion */
            double grows = p->profile->attn_us_per_pos * a->i_chunk * p->n_rows, first = attention_us(p);
            if (p->heads.n_slots) us *= tn_step_is_head(a->kind) && first > 0 ? 1 + grows / first : 1;
            else if (a->kind == TN_STEP_ATTENTION) us += grows;
        }
        double cpu_us = a->kind == TN_STEP_PRODUCT ? p->profile->cpu_us[type_of(p, a)] : 0;
        bool apart = p->profile->measured && cpu_us > 0 && w->graph->tasks[i].lane == TN_LANE_NPU;
        tn_graph_set_est(w->graph, i, TN_LANE_NPU, us);
        tn_graph_set_est(w->graph, i, TN_LANE_CPU, apart ? cpu_us : us);
    }
}

void tn_wave_layer_us(const tn_pipeline *p, double *product, double *other) {
    *product = *other = 0;
    for (int32_t i = 0; i < p->steps.n; i++) {
        const tn_step *s = &p->steps.at[i];
        double us = !p->profile->measured          ? guess_us(p, i, s->kind)
                    : s->kind == TN_STEP_ATTENTION ? attention_us(p)
                                                   : p->profile->us[s->type];
        *(s->kind == TN_STEP_PRODUCT ? product : other) += us / p->m->n_layers;
    }
}

/* ---- measurements of a run ------------------------------------------------------------------------- */

/* Returns the time of attention of a layer, all its tasks, in chunk i_chunk of a wave. */
static double attention_of(const tn_pipeline *p, const wave *w, int32_t i_chunk) {
    double us = 0;
    for (int32_t i = 0; i < w->graph->n_tasks; i++) {
        const task_arg *a = &w->args[i];
        if (a->i_chunk == i_chunk && is_attention(a->kind)) us += (double)w->task_ns[i] * 1e-3;
    }
    return us / p->m->n_layers;
}

/* Merges the times of another wave of the same steps: the minimum of both, because disturbance only adds
 * time. The faster wave decides the growth of attention. */
static void take_least(const tn_pipeline *p, const tn_step_profile *before) {
    double was = 0, is = 0;
    for (int t = 0; t < p->steps.types.n; t++) was += before->us[t], is += p->profile->us[t];
    if (was < is) p->profile->attn_us_per_pos = before->attn_us_per_pos;
    for (int t = 0; t < p->steps.types.n; t++)
        if (before->us[t] > 0 && (before->us[t] < p->profile->us[t] || p->profile->us[t] <= 0))
            p->profile->us[t] = before->us[t];
}

/* Learns the mean time of each type of step over the layers and the first n_chunks chunks, all full, of a
 * wave that begins at position pos0. The time of attention is extrapolated back to position 0 along its
 * growth. */
void tn_wave_learn(tn_pipeline *p, const wave *w, int32_t n_chunks, int32_t pos0) {
    double sum[TN_MAX_STEP_TYPES] = {0};
    int64_t count[TN_MAX_STEP_TYPES] = {0};
    const tn_step_profile before = *p->profile;
    for (int32_t i = 0; i < w->graph->n_tasks; i++) {
        const task_arg *a = &w->args[i];
        if (a->i_chunk >= n_chunks || (is_attention(a->kind) && a->i_chunk > 0)) continue;
        int32_t type = type_of(p, a);
        if (w->stolen_ns[i] && a->kind == TN_STEP_PRODUCT && stolen_apart(p, a->step))
            continue; /* not the device's time */
        sum[type] += (double)w->task_ns[i] * 1e-3;
        count[type]++;
    }
    for (int t = 0; t < TN_MAX_STEP_TYPES; t++) p->profile->us[t] = count[t] ? sum[t] / (double)count[t] : 0;
    double first = attention_us(p),
           per_pos = first / (pos0 + p->n_rows / 2.0); /* on average a row sees half its chunk */
    if (n_chunks > 1) {
        per_pos = (attention_of(p, w, n_chunks - 1) - first) / ((double)(n_chunks - 1) * p->n_rows);
        if (per_pos < 0) per_pos = 0;
    }
    p->profile->attn_us_per_pos = per_pos;
    double share = first > 0 ? 1 - per_pos * pos0 / first : 1; /* share of its time that it took at
                                                                  position 0 */
    if (share < 0.01) share = 0.01;                            /* times are noisy, and must not be zero */
    for (int t = 0; t < p->steps.types.n && pos0; t++)
        if (is_attention(p->steps.types.at[t].kind)) p->profile->us[t] *= share;
    if (before.measured) take_least(p, &before);
    p->profile->measured = true;
    p->profile->n_waves++;
    for (int i = 1; i <= p->n_chunks_open; i++) tn_wave_estimate(p, &p->waves[i], p->waves[i].graph->n_tasks);
}

#ifndef TERN_MINIMAL /* its device works on the CPU's own cores */
tern_status tn_wave_learn_stolen(tn_pipeline *p, tern_error *err) {
    bool known[TN_MAX_STEP_TYPES] = {false}, any = false;
    size_t widest = 0;
    for (int32_t i = 0; i < p->steps.n; i++) {
        const tn_step *s = &p->steps.at[i];
        known[s->type] = known[s->type] || s->kind != TN_STEP_PRODUCT || p->profile->cpu_us[s->type] > 0 ||
                         !stolen_apart(p, i);
        if (known[s->type]) continue;
        size_t n = (size_t)tn_step_site(p, i)->ops.n_total;
        widest = n > widest ? n : widest;
        any = true;
    }
    if (!any) return TERN_OK;
    float *out = tn_alloc(p->ctx, TN_MEM_ACTIVATIONS, widest * (size_t)p->n_rows, sizeof *out);
    TN_FAIL_IF(!out, err, TERN_E_MEMORY, "no memory to measure products on the CPU");
    tern_status st = TERN_OK;
    for (int32_t i = 0; i < p->steps.n && st == TERN_OK; i++) {
        int32_t type = p->steps.at[i].type;
        if (known[type]) continue;
        double us[3] = {0}; /* the median of three: the first brings the weights into cache */
        for (int k = 0; k < 3 && st == TERN_OK; k++) st = tn_product_time_here(p, i, out, &us[k], err);
        double low = us[0] < us[1] ? us[0] : us[1], high = us[0] < us[1] ? us[1] : us[0];
        p->profile->cpu_us[type] = us[2] < low ? low : us[2] > high ? high : us[2];
        known[type] = true;
    }
    tn_free(p->ctx, out);
    for (int i = 1; i <= p->n_chunks_open; i++) tn_wave_estimate(p, &p->waves[i], p->waves[i].graph->n_tasks);
    return st;
}
#endif

void tn_wave_learn_growth(tn_pipeline *p, const wave *w, int32_t n_chunks, int32_t pos0) {
    double per_pos =
        (attention_of(p, w, n_chunks - 1) - attention_us(p)) / (pos0 + (double)(n_chunks - 1) * p->n_rows);
    if (per_pos > 0) p->profile->attn_us_per_pos = per_pos;
}

void tn_pipeline_measured(const tn_pipeline *p, tn_measured_steps *out) {
    *out = (tn_measured_steps){.attn_us_per_pos = p->profile->attn_us_per_pos,
                               .rest_us = p->profile->rest_us,
                               .whole_us = p->profile->whole_us,
                               .whole_tok = p->profile->whole_tok,
                               .wave_chunks = TN_WAVE_CHUNKS};
    for (int32_t i = 0; i < p->steps.n; i++) {
        const tn_step *s = &p->steps.at[i];
        int32_t alone =
            p->steps.work[i].alone; /* single linears are reported as the product they belong to */
        const char *name = alone ? p->steps.work[i].ops->name : s->name;
        int32_t type = alone ? tn_step_type_find(&p->steps.types, name) : s->type;
        tn_measured_step *m = &out->step[type];
        out->n = type + 1 > out->n ? type + 1 : out->n;
        m->name = name;
        m->us = (alone > 1 ? m->us : 0) +
                (s->kind == TN_STEP_ATTENTION ? attention_us(p) : p->profile->us[s->type]);
        m->n_parts = tn_step_parts(p, i, s->kind, p->n_rows);
        m->kept += alone <= 1;
    }
    for (int32_t t = 0; t < out->n; t++) out->step[t].kept /= p->m->n_layers;
}
