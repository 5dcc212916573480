#include "quant/heads.h"

#include "base/status.h"

#include <math.h>
#include <string.h>

/* The paper clamps the product at 1e-3 from above; from below a head keeps a hundredth of that, so that none is left without positions. */
static const float IMPORTANCE_MAX = 1e-3f, IMPORTANCE_MIN = 1e-5f;

typedef struct observer {
    const tn_model *m;
    tn_head_profile *p;
    double *sum_q, *sum_k; /* [n_layers] */
    int64_t n_windows;
    /* ablation: */
    int32_t layer, head; /* zeroed; head -1: the whole layer's; layer -1: nothing */
} observer;

static float largest(const float *x, size_t ld, int32_t n_rows, int32_t d) {
    float max = 0;
    for (int32_t i = 0; i < n_rows; i++) {
        for (int32_t j = 0; j < d; j++) max = fmaxf(max, fabsf(x[(size_t)i * ld + (size_t)j]));
    }
    return max;
}

static void on_qk(void *user, int layer, const float *q, const float *k, int32_t n_rows) {
    observer *o = user;
    const tn_hparams *h = &o->m->h;
    size_t d = (size_t)h->d_head;
    for (int32_t a = 0; a < h->n_heads; a++) o->sum_q[layer] += (double)largest(q + (size_t)a * d, (size_t)h->n_heads * d, n_rows, h->d_head) / h->n_heads;
    for (int32_t a = 0; a < h->n_kv_heads; a++) o->sum_k[layer] += (double)largest(k + (size_t)a * d, (size_t)h->n_kv_heads * d, n_rows, h->d_head) / h->n_kv_heads;
    if (layer == 0) o->n_windows++;
}

static void on_attention(void *user, int layer, float *att, int32_t n_rows) {
    const observer *o = user;
    const tn_hparams *h = &o->m->h;
    if (layer != o->layer) return;
    size_t d = (size_t)h->d_head, row = (size_t)h->n_heads * d;
    for (int32_t i = 0; i < n_rows; i++) {
        if (o->head < 0) memset(att + (size_t)i * row, 0, row * sizeof *att);
        else memset(att + (size_t)i * row + (size_t)o->head * d, 0, d * sizeof *att);
    }
}

typedef struct run_state {
    tn_pool *pool;
    tn_rows r;
    tn_acts acts;
    tn_kv kv;
    float *logits; /* [LOGIT_ROWS][n_vocab] */
} run_state;

enum { LOGIT_ROWS = 16 };

static tern_status forward(observer *o, run_state *s, const int32_t *ids, int32_t n, bool ablate, tern_error *err) {
    tn_forward_hooks hooks = {.qk = ablate ? NULL : on_qk, .attention_out = ablate ? on_attention : NULL, .user = o};
    s->r.n_rows = n;
    return tn_forward_rows(o->m, s->pool, &s->r, &s->acts, ids, false, NULL, &hooks, err);
}

/* Mean negative log-likelihood of the window's tokens. */
static tern_status loss_of(observer *o, run_state *s, const int32_t *ids, int32_t n, double *loss, tern_error *err) {
    size_t v = (size_t)o->m->h.n_vocab;
    double sum = 0;
    TN_TRY(forward(o, s, ids, n, true, err));
    for (int32_t i = 0; i + 1 < n; i += LOGIT_ROWS) {
        int32_t rows = n - 1 - i < LOGIT_ROWS ? n - 1 - i : LOGIT_ROWS;
        tn_forward_logits(o->m, s->pool, &s->r, &s->acts, i, rows, s->logits);
        for (int32_t j = 0; j < rows; j++) {
            const float *l = s->logits + (size_t)j * v;
            double max = -INFINITY, z = 0;
            for (size_t x = 0; x < v; x++) max = fmax(max, (double)l[x]);
            for (size_t x = 0; x < v; x++) z += exp((double)l[x] - max);
            sum -= (double)l[ids[i + j + 1]] - max - log(z);
        }
    }
    *loss = sum / (n - 1);
    return TERN_OK;
}

static tern_status measure_importance(observer *o, run_state *s, const int32_t *ids, int32_t n, tern_error *err) {
    const tn_hparams *h = &o->m->h;
    double base, layer_loss, head_loss, sum = 0;
    size_t n_all = (size_t)h->n_layers * (size_t)h->n_heads;
    o->layer = -1;
    TN_TRY(loss_of(o, s, ids, n, &base, err));
    for (o->layer = 0; o->layer < h->n_layers; o->layer++) {
        o->head = -1;
        TN_TRY(loss_of(o, s, ids, n, &layer_loss, err));
        for (o->head = 0; o->head < h->n_heads; o->head++) {
            TN_TRY(loss_of(o, s, ids, n, &head_loss, err));
            double w = fmax(layer_loss - base, 0) * fmax(head_loss - base, 0);
            w = fmin(fmax(w, (double)IMPORTANCE_MIN), (double)IMPORTANCE_MAX);
            o->p->weight[(size_t)o->layer * (size_t)h->n_heads + (size_t)o->head] = (float)w;
            sum += w;
        }
        TN_FAIL_IF(!tn_progress(o->m->ctx, "heads", (o->layer + 1.0) / h->n_layers), err, TERN_E_CANCELLED, "measuring the heads was cancelled");
    }
    for (size_t i = 0; i < n_all; i++) o->p->weight[i] = (float)((double)o->p->weight[i] * (double)n_all / sum);
    return TERN_OK;
}

tern_status tn_head_profile_measure(const tn_model *m, const tn_kernels *kern, tn_pool *pool, const int32_t *ids, size_t n_tok, int32_t window,
                                    bool importance, tn_head_profile *out, tern_error *err) {
    const tn_hparams *h = &m->h;
    size_t n_layers = (size_t)h->n_layers, n_all = n_layers * (size_t)h->n_heads;
    *out = (tn_head_profile){.ctx = m->ctx, .n_layers = h->n_layers, .n_heads = h->n_heads};
    TN_FAIL_IF(n_tok < 2, err, TERN_E_INVALID, "the calibration corpus has no tokens");
    observer o = {.m = m, .p = out};
    run_state s = {.pool = pool};
    tern_status st = TERN_OK;
    int32_t *pos = tn_alloc(m->ctx, TN_MEM_OTHER, (size_t)window, sizeof *pos);
    out->scale_q = tn_calloc(m->ctx, TN_MEM_OTHER, n_layers, sizeof(float));
    out->scale_k = tn_calloc(m->ctx, TN_MEM_OTHER, n_layers, sizeof(float));
    out->weight = tn_calloc(m->ctx, TN_MEM_OTHER, n_all, sizeof(float));
    o.sum_q = tn_calloc(m->ctx, TN_MEM_OTHER, n_layers, sizeof(double));
    o.sum_k = tn_calloc(m->ctx, TN_MEM_OTHER, n_layers, sizeof(double));
    s.logits = tn_alloc(m->ctx, TN_MEM_OTHER, LOGIT_ROWS * (size_t)h->n_vocab, sizeof(float));
    TN_BAIL_IF(!pos || !out->scale_q || !out->scale_k || !out->weight || !o.sum_q || !o.sum_k || !s.logits, err, TERN_E_MEMORY, "no memory to measure the heads");
    for (int32_t i = 0; i < window; i++) pos[i] = i;
    for (size_t i = 0; i < n_all; i++) out->weight[i] = 1;
    if ((st = tn_kv_open(m->ctx, h, window, &s.kv, err)) != TERN_OK) goto out;
    if ((st = tn_acts_open(m->ctx, h, m->scheme, window, s.kv.cap_tok, tn_pool_size(pool), &s.acts, err)) != TERN_OK) goto out;
    s.r = (tn_rows){.h = h, .kern = kern, .kv = &s.kv, .pos = pos, .slot = pos, .tree_base = -1};
    for (size_t at = 0; at < n_tok; at += (size_t)window) {
        int32_t n = n_tok - at < (size_t)window ? (int32_t)(n_tok - at) : window;
        if ((st = forward(&o, &s, ids + at, n, false, err)) != TERN_OK) goto out;
        TN_BAIL_IF(!tn_progress(m->ctx, "heads", (double)(at + (size_t)n) / (double)n_tok), err, TERN_E_CANCELLED, "measuring the heads was cancelled");
    }
    for (size_t l = 0; l < n_layers; l++) {
        out->scale_q[l] = (float)fmax(o.sum_q[l] / (double)o.n_windows / 127, 1e-12);
        out->scale_k[l] = (float)fmax(o.sum_k[l] / (double)o.n_windows / 127, 1e-12);
    }
    if (importance) st = measure_importance(&o, &s, ids, n_tok < (size_t)window ? (int32_t)n_tok : window, err);
out:
    if (s.kv.ctx) tn_kv_close(&s.kv);
    if (s.acts.ctx) tn_acts_close(&s.acts);
    tn_free(m->ctx, pos);
    tn_free(m->ctx, o.sum_q);
    tn_free(m->ctx, o.sum_k);
    tn_free(m->ctx, s.logits);
    if (st != TERN_OK) tn_head_profile_close(out);
    return st;
}

void tn_head_profile_close(tn_head_profile *p) {
    if (!p->ctx) return;
    tn_free(p->ctx, p->scale_q);
    tn_free(p->ctx, p->scale_k);
    tn_free(p->ctx, p->weight);
    *p = (tn_head_profile){0};
}
