#include "package/switching.h"

#include "package/impl.h"

#include "base/clock.h"
#include "base/status.h"

#include <assert.h>
#include <pthread.h>
#include <string.h>

struct tn_switcher {
    tn_npu_model *m;
    tn_switch_kind kind;
    int32_t n_blocks;       /* asked for; 0 = whatever is best */
    pthread_mutex_t device; /* held during a forward; taken before mu */
    atomic_int *form;       /* [n_layers]; ordered by the task graph or by `device`, so relaxed */
    double load_us; /* of a layer, from here on: running means; written between runs or by the one loader */
    double product_us[TN_N_FORMS], other_us;
    tn_switch_plan plan;
    pthread_mutex_t mu;
    int32_t n_computing; /* guarded by mu, as all that follows */
    bool loading;
    int64_t since_ns; /* of the last change of the two */
    tn_switcher_stats stats;
};

tern_status tn_switcher_load_site(const tn_npu_model *m, tn_npu_site *s, tn_form form, tern_error *err) {
    for (int f = 0; f < TN_N_FORMS; f++) tn_npu_unload(s->graphs[f]);
    for (int i = 0; i < s->ops.n_ops; i++) {
        const tn_npu_weights_data *from = &s->image[i];
        tn_npu_weights_data to = tn_npu_weights_get(s->weights[i]);
        size_t padded_bytes = (size_t)tn_padded(m, s->ops.n[i]) * 4;
        memcpy(to.tiles, from->tiles, tn_npu_tiles_bytes(m->layout, s->ops.n[i], s->ops.k));
        memcpy(to.col_sum, from->col_sum, padded_bytes);
        memcpy(to.scale, from->scale, padded_bytes);
        if (to.bias) memcpy(to.bias, from->bias, padded_bytes);
    }
    return tn_npu_load(s->graphs[form], s->weights, err);
}

static tern_status load_sites(tn_npu_model *m, int32_t layer, tn_form form, tern_error *err) {
    int32_t first, n = tn_program_layer_sites(&m->model->program, layer, &first);
    for (int32_t i = first; i < first + n; i++)
        if (!m->sites[i].on_cpu) TN_TRY(tn_switcher_load_site(m, &m->sites[i], form, err));
    return TERN_OK;
}

tern_status tn_switcher_open(tn_npu_model *m, const tn_npu_model_options *opt, tn_switcher **out,
                             tern_error *err) {
    tn_switcher *w = tn_calloc(m->ctx, TN_MEM_OTHER, 1, sizeof *w);
    TN_FAIL_IF(!w, err, TERN_E_MEMORY, "no memory for graph switching");
    w->form = tn_calloc(m->ctx, TN_MEM_OTHER, (size_t)m->n_layers, sizeof *w->form);
    if (!w->form) {
        tn_free(m->ctx, w);
        return tn_fail(err, TERN_E_MEMORY, "no memory for graph switching");
    }
    w->m = m;
    w->kind = opt->graph_switch;
    w->n_blocks = opt->switch_blocks;
    for (int32_t i = 0; i < m->n_layers; i++) atomic_init(&w->form[i], TN_FORM_CHUNK);
    pthread_mutex_init(&w->device, NULL);
    pthread_mutex_init(&w->mu, NULL);
    *out = w;
    int64_t t0 = tn_now_ns();
    TN_TRY(load_sites(m, m->n_layers - 1, TN_FORM_CHUNK, err));
    w->load_us = (double)(tn_now_ns() - t0) * 1e-3;
    return TERN_OK;
}

void tn_switcher_close(tn_switcher **pw) {
    tn_switcher *w = *pw;
    if (!w) return;
    *pw = NULL;
    pthread_mutex_destroy(&w->device);
    pthread_mutex_destroy(&w->mu);
    tn_ctx *ctx = w->m->ctx;
    tn_free(ctx, w->form);
    tn_free(ctx, w);
}

void tn_switcher_lock(tn_switcher *w) { pthread_mutex_lock(&w->device); }
void tn_switcher_unlock(tn_switcher *w) { pthread_mutex_unlock(&w->device); }

tn_form tn_switcher_form(const tn_switcher *w, int32_t layer) {
    return (tn_form)atomic_load_explicit(&w->form[layer], memory_order_relaxed);
}

/* ---- loading --------------------------------------------------------------------------------------- */

/* Accounts the time until now. mu is held. */
static void account(tn_switcher *w, int64_t now_ns) {
    if (w->loading) {
        w->stats.load_ns += now_ns - w->since_ns;
        if (!w->n_computing) w->stats.exposed_ns += now_ns - w->since_ns;
    }
    w->since_ns = now_ns;
}

static void set_loading(tn_switcher *w, bool loading, int64_t n_loaded) {
    pthread_mutex_lock(&w->mu);
    account(w, tn_now_ns());
    w->loading = loading;
    w->stats.n_loads += n_loaded;
    pthread_mutex_unlock(&w->mu);
}

void tn_switcher_compute(tn_switcher *w, bool begins) {
    pthread_mutex_lock(&w->mu);
    account(w, tn_now_ns());
    w->n_computing += begins ? 1 : -1;
    assert(w->n_computing >= 0);
    pthread_mutex_unlock(&w->mu);
}

tern_status tn_switcher_load(tn_switcher *w, int32_t layer0, int32_t layer1, tn_form form, tern_error *err) {
    tern_status st = TERN_OK;
    for (int32_t layer = layer0; layer < layer1 && st == TERN_OK; layer++) {
        if (tn_switcher_form(w, layer) == form) continue;
        int64_t t0 = tn_now_ns();
        set_loading(w, true, 0);
        atomic_store_explicit(&w->form[layer], TN_N_FORMS,
                              memory_order_relaxed); /* if this fails: neither form */
        st = load_sites(w->m, layer, form, err);
        if (st == TERN_OK) atomic_store_explicit(&w->form[layer], (int)form, memory_order_relaxed);
        set_loading(w, false, st == TERN_OK);
        w->load_us += ((double)(tn_now_ns() - t0) * 1e-3 - w->load_us) / 4;
    }
    return st;
}

tern_status tn_switcher_ensure(tn_switcher *w, tn_form form, tern_error *err) {
    return tn_switcher_load(w, 0, w->m->n_layers, form, err);
}

/* ---- planning -------------------------------------------------------------------------------------- */

void tn_switcher_measured(tn_switcher *w, tn_form form, double product_us, double other_us) {
    double *us = &w->product_us[form];
    *us = *us > 0 ? *us + (product_us - *us) / 4 : product_us;
    w->other_us = w->other_us > 0 ? w->other_us + (other_us - w->other_us) / 4 : other_us;
}

bool tn_switcher_has_times(const tn_switcher *w) {
    return w->product_us[TN_FORM_CHUNK] > 0 || w->product_us[TN_FORM_DECODE] > 0;
}

static double layer_us(const tn_switcher *w, tn_form form) {
    /* an unmeasured form: the cost of sub-chunks on the first device that this was tried on */
    double product = w->product_us[form] > 0  ? w->product_us[form]
                     : form == TN_FORM_DECODE ? w->product_us[TN_FORM_CHUNK] * 1.1
                                              : w->product_us[TN_FORM_DECODE] / 1.1;
    return product + w->other_us;
}

static void costs_of(const tn_switcher *w, int32_t n_blocks, int32_t n_waves, int32_t n_chunks,
                     double last_wave, bool reloaded, tn_switch_costs *c) {
    *c = (tn_switch_costs){.n_blocks = n_blocks, .n_chunks = n_waves, .last_chunk = last_wave};
    tn_switch_plan shape = {.n_blocks = n_blocks};
    for (int32_t b = 0; b < n_blocks; b++) {
        for (int32_t layer = tn_switch_layer(&shape, w->m->n_layers, b);
             layer < tn_switch_layer(&shape, w->m->n_layers, b + 1); layer++) {
            bool is_g1 = reloaded || tn_switcher_form(w, layer) != TN_FORM_DECODE;
            c->load_us[b] += is_g1 ? w->load_us : 0;
            c->g1_us[b] += n_chunks * layer_us(w, is_g1 ? TN_FORM_CHUNK : TN_FORM_DECODE);
            c->g2_us[b] += n_chunks * layer_us(w, TN_FORM_DECODE);
        }
    }
}

/* Finds the best plan among the numbers of blocks worth trying. */
static tern_status best_plan(tn_switcher *w, int32_t n_waves, int32_t n_chunks, double last_wave,
                             bool reloaded, tn_switch_plan *best, tern_error *err) {
    static const int32_t tried[] = {2, 3, 4, 6, 8, 12, 16}; /* the paper found 2 enough */
    int32_t one = w->n_blocks < w->m->n_layers ? w->n_blocks : w->m->n_layers,
            n_tried = w->n_blocks ? 1 : (int32_t)(sizeof tried / sizeof tried[0]);
    *best = (tn_switch_plan){.n_blocks = 0};
    for (int32_t i = 0; i < n_tried; i++) {
        int32_t n = w->n_blocks ? one : tried[i] < w->m->n_layers ? tried[i] : w->m->n_layers;
        if (best->n_blocks == n) break;
        if ((int64_t)n * n_waves > TN_SWITCH_MAX_STEPS) continue;
        tn_switch_costs c;
        tn_switch_plan p;
        costs_of(w, n, n_waves, n_chunks, last_wave, reloaded, &c);
        TN_TRY(tn_switch_plan_make(&c, w->kind, &p, err));
        if (!best->n_blocks || p.total_us < best->total_us * 0.999) *best = p;
    }
    return TERN_OK;
}

tern_status tn_switcher_plan(tn_switcher *w, int32_t n_waves, int32_t n_chunks, double last_wave,
                             const tn_switch_plan **plan, tern_error *err) {
    *plan = NULL;
    int32_t n_decode = 0;
    for (int32_t i = 0; i < w->m->n_layers; i++) n_decode += tn_switcher_form(w, i) != TN_FORM_CHUNK;
    tn_switch_plan as_is, reloaded;
    TN_TRY(best_plan(w, n_waves, n_chunks, last_wave, false, &as_is, err));
    w->plan = as_is;
    if (n_decode) {
        TN_TRY(best_plan(w, n_waves, n_chunks, last_wave, true, &reloaded, err));
        /* a layer left without a graph by a failed load must be loaded anyway */
        if (reloaded.total_us + n_decode * w->load_us < as_is.total_us) {
            TN_TRY(tn_switcher_ensure(w, TN_FORM_CHUNK, err));
            w->plan = reloaded;
        }
        for (int32_t i = 0; i < w->m->n_layers; i++) {
            if (tn_switcher_form(w, i) == TN_N_FORMS)
                TN_TRY(tn_switcher_load(w, i, i + 1, TN_FORM_DECODE, err));
        }
    }
    pthread_mutex_lock(&w->mu);
    w->stats.n_blocks = w->plan.n_blocks;
    w->stats.planned_stall_us = w->plan.stall_us;
    w->stats.planned_slower_us = w->plan.slower_us;
    pthread_mutex_unlock(&w->mu);
    if (w->plan.n_blocks) *plan = &w->plan;
    return TERN_OK;
}

void tn_switcher_stats_get(tn_switcher *w, tn_switcher_stats *out) {
    pthread_mutex_lock(&w->mu);
    *out = w->stats;
    pthread_mutex_unlock(&w->mu);
}
