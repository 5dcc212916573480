/* quant/outputs.c - outputs of products in 8 bits, as on a QNN-like device: one frozen scale per tensor,
 * after EdgeFlow's output factor S_O^beta has equalised the channels (4.1). */
#include "quant/packer.h"

#include "base/half.h"
#include "base/status.h"

#include <math.h>
#include <string.h>

/* Statistics of one linear's outputs. */
typedef struct seen {
    float *max; /* [n] largest magnitude per channel */
    uint64_t *hist;
    float scaled_max; /* after the division */
    uint64_t n_values;
} seen;

typedef struct observer {
    packer *p;
    int32_t first, n_sites; /* of the layer */
    seen (*at)[TN_SITE_MAX_OPS];
    bool second_pass;
} observer;

static tn_output_plan *find(const observer *o, tn_role role, int32_t *i_site, int32_t *i_op) {
    for (int32_t i = 0; i < o->n_sites; i++) {
        const tn_site_ops *ops = tn_program_linears(&o->p->m->program, o->first + i);
        for (int32_t op = 0; op < ops->n_ops; op++) {
            if (ops->roles[op] != role) continue;
            *i_site = i;
            *i_op = op;
            return &o->p->outputs[(o->first + i) * TN_SITE_MAX_OPS + op];
        }
    }
    return NULL;
}

static void on_output(void *user, int layer, tn_role role, const float *y, int32_t n, int32_t n_rows) {
    (void)layer;
    observer *o = user;
    int32_t i, op;
    const tn_output_plan *plan = find(o, role, &i, &op);
    if (!plan) return;
    seen *s = &o->at[i][op];
    for (int32_t r = 0; r < n_rows; r++, y += n) {
        for (int32_t c = 0; c < n; c++) {
            float a = fabsf(y[c]);
            if (!(a <= 3e38f)) continue; /* non-finite values are ignored */
            if (!o->second_pass) {
                s->max[c] = a > s->max[c] ? a : s->max[c];
                continue;
            }
            a /= plan->factor[c];
            s->hist[tn_f32_bits(a) >> TN_HIST_SHIFT]++;
            s->scaled_max = a > s->scaled_max ? a : s->scaled_max;
            s->n_values++;
        }
    }
}

static tern_status open_layer(observer *o, hoard *h, tern_error *err) {
    for (int32_t i = 0; i < o->n_sites; i++) {
        const tn_site_ops *ops = tn_program_linears(&o->p->m->program, o->first + i);
        for (int32_t op = 0; op < ops->n_ops && !ops->n_experts; op++) { /* experts give floats */
            tn_output_plan *plan = &o->p->outputs[(o->first + i) * TN_SITE_MAX_OPS + op];
            o->at[i][op] = (seen){.max = tn_hoard_keep(h, (size_t)ops->n[op], sizeof(float)),
                                  .hist = tn_hoard_keep(h, TN_HIST_BINS, sizeof(uint64_t))};
            plan->factor = tn_alloc(o->p->ctx, TN_MEM_OTHER, (size_t)ops->n[op], sizeof *plan->factor);
            TN_FAIL_IF(!o->at[i][op].max || !o->at[i][op].hist || !plan->factor, err, TERN_E_MEMORY,
                       "no memory to calibrate outputs");
        }
    }
    return TERN_OK;
}

/* S_O^beta relative to the largest, so factors are at most 1. A channel without any output is not divided. */
static void choose_factors(const observer *o) {
    for (int32_t i = 0; i < o->n_sites; i++) {
        const tn_site_ops *ops = tn_program_linears(&o->p->m->program, o->first + i);
        for (int32_t op = 0; op < ops->n_ops; op++) {
            const float *max = o->at[i][op].max;
            if (!max) continue;
            float *factor = o->p->outputs[(o->first + i) * TN_SITE_MAX_OPS + op].factor, largest = 0;
            for (int32_t c = 0; c < ops->n[op]; c++) largest = fmaxf(largest, max[c]);
            for (int32_t c = 0; c < ops->n[op]; c++)
                factor[c] = largest > 0 ? powf(fmaxf(max[c] / largest, 1e-4f), o->p->o->output_beta) : 1;
        }
    }
}

static void choose_scales(const observer *o) {
    for (int32_t i = 0; i < o->n_sites; i++) {
        const tn_site_ops *ops = tn_program_linears(&o->p->m->program, o->first + i);
        for (int32_t op = 0; op < ops->n_ops; op++) {
            const seen *s = &o->at[i][op];
            if (!s->hist) continue;
            const tn_site_stats stats = {.hist = s->hist, .max = s->scaled_max, .n_values = s->n_values};
            o->p->outputs[(o->first + i) * TN_SITE_MAX_OPS + op].scale = tn_stats_best_clip(&stats) / 127;
        }
    }
}

static tern_status calibrate_layer(packer *p, tn_corpus *corpus, int layer) {
    seen at[TN_N_SITES][TN_SITE_MAX_OPS] = {0};
    observer o = {.p = p, .at = at};
    hoard h = {.ctx = p->ctx};
    o.n_sites = tn_program_layer_sites(&p->m->program, layer, &o.first);
    tern_status st = open_layer(&o, &h, p->err);
    if (st == TERN_OK) st = tn_corpus_begin_layer(corpus, layer, p->err);
    if (st == TERN_OK) {
        const tn_forward_hooks hooks = {.output = on_output, .user = &o};
        tn_corpus_pass(corpus, layer, &hooks, false);
        choose_factors(&o);
        o.second_pass = true;
        tn_corpus_pass(corpus, layer, &hooks, true);
        choose_scales(&o);
        tn_corpus_end_layer(corpus, layer);
    }
    tn_hoard_drop(&h);
    return st;
}

tern_status tn_pack_outputs(packer *p, const int32_t *ids, size_t n_ids, int32_t window) {
    const tn_hparams *h = &p->m->h;
    TN_FAIL_IF(
        !tn_only_attends(h), p->err, TERN_E_UNSUPPORTED,
        "outputs in 8 bits: layers that convolve or recur keep theirs in float; architecture %s has some",
        h->arch);
    p->outputs =
        tn_calloc(p->ctx, TN_MEM_OTHER, (size_t)p->m->program.n_sites * TN_SITE_MAX_OPS, sizeof *p->outputs);
    TN_FAIL_IF(!p->outputs, p->err, TERN_E_MEMORY, "no memory to calibrate outputs");
    tn_corpus corpus;
    tern_status st = tn_pack_by_layer(p, ids, n_ids, window, "outputs", calibrate_layer, &corpus);
    tn_corpus_close(&corpus);
    return st;
}

void tn_pack_outputs_free(packer *p) {
    for (int32_t i = 0; p->outputs && i < p->m->program.n_sites * TN_SITE_MAX_OPS; i++)
        tn_free(p->ctx, p->outputs[i].factor);
    tn_free(p->ctx, p->outputs);
    p->outputs = NULL;
}
