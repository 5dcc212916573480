#include "quant/heads.h"

#include "base/status.h"

#include <math.h>
#include <string.h>

/* The paper clamps the product at 1e-3 from above; from below a head keeps a hundredth of that, so that none is left without positions. */
static const float IMPORTANCE_MAX = 1e-3f, IMPORTANCE_MIN = 1e-5f;

typedef struct observer {
    const tn_model *m;
    int32_t layer, head; /* zeroed; head -1: the whole layer's; layer -1: nothing */
} observer;

static float largest(const float *x, size_t ld, int32_t n_rows, int32_t d) {
    float max = 0;
    for (int32_t i = 0; i < n_rows; i++) {
        for (int32_t j = 0; j < d; j++) max = fmaxf(max, fabsf(x[(size_t)i * ld + (size_t)j]));
    }
    return max;
}

/* scale_q and scale_k are running means of the windows' maxima. */
void tn_head_profile_observe(void *user, int layer, const float *q, const float *k, int32_t n_rows) {
    tn_head_profile *p = user;
    const tn_hparams *h = p->h;
    size_t d = (size_t)h->d_head, left = p->n_tok - p->seen[layer];
    int32_t n = (size_t)n_rows < left ? n_rows : (int32_t)left;
    if (!n) return;
    double sum_q = 0, sum_k = 0;
    for (int32_t a = 0; a < h->n_heads; a++) sum_q += (double)largest(q + (size_t)a * d, (size_t)h->n_heads * d, n, h->d_head) / h->n_heads;
    for (int32_t a = 0; a < h->n_kv_heads; a++) sum_k += (double)largest(k + (size_t)a * d, (size_t)h->n_kv_heads * d, n, h->d_head) / h->n_kv_heads;
    double w = 1.0 / ++p->n_windows[layer];
    p->scale_q[layer] += (float)(w * (fmax(sum_q / 127, 1e-12) - (double)p->scale_q[layer]));
    p->scale_k[layer] += (float)(w * (fmax(sum_k / 127, 1e-12) - (double)p->scale_k[layer]));
    p->seen[layer] += (size_t)n;
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

/* Mean negative log-likelihood of the window's tokens. */
static tern_status loss_of(observer *o, run_state *s, const int32_t *ids, int32_t n, double *loss, tern_error *err) {
    size_t v = (size_t)o->m->h.n_vocab;
    double sum = 0;
    tn_forward_hooks hooks = {.attention_out = on_attention, .user = o};
    s->r.n_rows = n;
    TN_TRY(tn_forward_rows(o->m, s->pool, &s->r, &s->acts, ids, false, NULL, &hooks, err));
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

static tern_status measure_importance(tn_head_profile *p, observer *o, run_state *s, const int32_t *ids, int32_t n, tern_error *err) {
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
            p->weight[(size_t)o->layer * (size_t)h->n_heads + (size_t)o->head] = (float)w;
            sum += w;
        }
        TN_FAIL_IF(!tn_progress(o->m->ctx, "heads", (o->layer + 1.0) / h->n_layers), err, TERN_E_CANCELLED, "measuring the heads was cancelled");
    }
    for (size_t i = 0; i < n_all; i++) p->weight[i] = (float)((double)p->weight[i] * (double)n_all / sum);
    return TERN_OK;
}

tern_status tn_head_profile_open(tn_ctx *ctx, const tn_hparams *h, size_t n_tok, tn_head_profile *out, tern_error *err) {
    size_t n_layers = (size_t)h->n_layers, n_all = n_layers * (size_t)h->n_heads;
    *out = (tn_head_profile){.ctx = ctx, .h = h, .n_layers = h->n_layers, .n_heads = h->n_heads, .n_tok = n_tok ? n_tok : SIZE_MAX};
    out->scale_q = tn_calloc(ctx, TN_MEM_OTHER, n_layers, sizeof(float));
    out->scale_k = tn_calloc(ctx, TN_MEM_OTHER, n_layers, sizeof(float));
    out->weight = tn_calloc(ctx, TN_MEM_OTHER, n_all, sizeof(float));
    out->seen = tn_calloc(ctx, TN_MEM_OTHER, n_layers, sizeof *out->seen);
    out->n_windows = tn_calloc(ctx, TN_MEM_OTHER, n_layers, sizeof *out->n_windows);
    bool ok = out->scale_q && out->scale_k && out->weight && out->seen && out->n_windows;
    for (size_t i = 0; ok && i < n_all; i++) out->weight[i] = 1;
    if (ok) return TERN_OK;
    tn_head_profile_close(out);
    return tn_fail(err, TERN_E_MEMORY, "no memory to measure the heads");
}

tern_status tn_head_profile_importance(tn_head_profile *p, const tn_model *m, const tn_kernels *kern, tn_pool *pool, const int32_t *ids, int32_t n, tern_error *err) {
    const tn_hparams *h = &m->h;
    observer o = {.m = m};
    run_state s = {.pool = pool};
    int32_t *pos = tn_alloc(m->ctx, TN_MEM_OTHER, (size_t)n, sizeof *pos);
    s.logits = tn_alloc(m->ctx, TN_MEM_OTHER, LOGIT_ROWS * (size_t)h->n_vocab, sizeof(float));
    tern_status st = TERN_OK;
    TN_BAIL_IF(!pos || !s.logits, err, TERN_E_MEMORY, "no memory to measure the heads");
    for (int32_t i = 0; i < n; i++) pos[i] = i;
    if ((st = tn_kv_open(m->ctx, h, n, &s.kv, err)) != TERN_OK) goto out;
    if ((st = tn_acts_open(m->ctx, h, m->scheme, n, s.kv.cap_tok, tn_pool_size(pool), &s.acts, err)) != TERN_OK) goto out;
    s.r = (tn_rows){.h = h, .kern = kern, .kv = &s.kv, .pos = pos, .slot = pos, .tree_base = -1};
    st = measure_importance(p, &o, &s, ids, n, err);
out:
    if (s.kv.ctx) tn_kv_close(&s.kv);
    if (s.acts.ctx) tn_acts_close(&s.acts);
    tn_free(m->ctx, pos);
    tn_free(m->ctx, s.logits);
    return st;
}

void tn_head_profile_close(tn_head_profile *p) {
    if (!p->ctx) return;
    tn_free(p->ctx, p->scale_q);
    tn_free(p->ctx, p->scale_k);
    tn_free(p->ctx, p->weight);
    tn_free(p->ctx, p->seen);
    tn_free(p->ctx, p->n_windows);
    *p = (tn_head_profile){0};
}
