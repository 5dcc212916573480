#include "quant/judge.h"

#include "base/status.h"
#include "model/experts.h"
#include "kernels/unpack.h"
#include "quant/round.h"
#include "quant/stand_in.h"

#include <math.h>
#include <string.h>

enum { TILE = 16, VOCAB = 4096 /* rows of the output layer at a time */ };

/* To the nearest whole number, ties to even, for |x| < 2^22. */
static inline float nearest(float x) { return (x + 12582912.0f) - 12582912.0f; }

/* ---- a site as the device computes it ----------------------------------------------------------------- */

enum { LANES = 16 }; /* values at a time: loops of a known length become vectors */

static void divide(float *x, const float *by, size_t k) {
    size_t i = 0;
    for (; i + LANES <= k; i += LANES)
        for (size_t l = 0; l < LANES; l++) x[i + l] /= by[i + l];
    for (; i < k; i++) x[i] /= by[i];
}

static void multiply(float *x, const float *by, size_t k) {
    size_t i = 0;
    for (; i + LANES <= k; i += LANES)
        for (size_t l = 0; l < LANES; l++) x[i + l] *= by[i + l];
    for (; i < k; i++) x[i] *= by[i];
}

static void widen_codes(float *x, const int8_t *q, float scale, size_t k) {
    size_t i = 0;
    for (; i + LANES <= k; i += LANES)
        for (size_t l = 0; l < LANES; l++) x[i + l] = (float)q[i + l] * scale;
    for (; i < k; i++) x[i] = (float)q[i] * scale;
}

static inline float on_grid(float x, float step, float inv) {
    float u = x * inv;
    return nearest(u < -127 ? -127 : u > 127 ? 127 : u) * step;
}

static void turn(const tn_kernels *kern, const tn_recipe_site *s, float *x, size_t k) {
    if (s->rotated) tn_hadamard_wide(kern->hadamard_f32, x, k, (size_t)s->rotated);
}

/* Quantises an input row, divided by smooth, as the device does, and returns it to the float model's
 * scale. */
static void round_input(const tn_kernels *kern, const tn_recipe_site *s, const float *smooth, float *x,
                        size_t k) {
    float step = s->clip / 127, inv = 1 / step;
    if (smooth) divide(x, smooth, k);
    turn(kern, s, x, k);
    size_t i = 0;
    for (; i + LANES <= k; i += LANES)
        for (size_t l = 0; l < LANES; l++) x[i + l] = on_grid(x[i + l], step, inv);
    for (; i < k; i++) x[i] = on_grid(x[i], step, inv);
    turn(kern, s, x, k); /* its own inverse */
    if (smooth) multiply(x, smooth, k);
}

/* Row n of a linear as stored in the package, in the tile that begins there, for inputs in the float model's
 * scale. q [k] is scratch. */
static void weights_of(const tn_kernels *kern, const tn_recipe_site *s, const tn_rounded *l,
                       const uint8_t *tile, size_t n, size_t n_all, size_t k, int8_t *q, float *out) {
    tn_weightlets_row(tile, l->bits, n, n_all, k, q);
    widen_codes(out, q, l->scale[n], k);
    turn(kern, s, out, k);
    const float *smooth = tn_recipe_smooth(s, (int64_t)n, (int64_t)n_all, (int32_t)k);
    if (smooth) divide(out, smooth, k);
}

typedef struct unpack_job {
    const tn_recipe *r;
    const tn_recipe_site *site;
    const tn_rounded *l;
    int32_t n0, n1, n_all, k; /* rows n0 .. n1 - 1 */
    float *panels, *source;   /* source: of the output layer in the model's file, or NULL */
    tn_role role;             /* in that file */
    atomic_bool failed;
    tern_error err; /* of the first thread that failed */
} unpack_job;

static void unpack_item(void *arg, int i_item, int i_thread) {
    (void)i_thread;
    unpack_job *j = arg;
    size_t k = (size_t)j->k;
    int32_t a = j->n0 + i_item * TN_PANEL_N, b = a + TN_PANEL_N < j->n1 ? a + TN_PANEL_N : j->n1;
    float *w = tn_alloc(j->r->ctx, TN_MEM_OTHER, TN_PANEL_N * k, sizeof *w);
    int8_t *q = tn_alloc(j->r->ctx, TN_MEM_OTHER, k, 1);
    tern_error err;
    tern_status st = w && q ? TERN_OK : tn_fail(&err, TERN_E_MEMORY, "no memory to judge a linear");
    if (st == TERN_OK && j->source) st = tn_source_read(j->r->src, -1, j->role, a, b, w, &err);
    if (st == TERN_OK && j->source)
        tn_panels_pack(TN_PANEL_F32, j->source, w, (size_t)(a - j->n0), (size_t)(b - j->n0), k);
    const uint8_t *tile = j->l->weightlets + tn_weightlets_bytes(j->l->bits, 0, (size_t)a, k);
    for (int32_t n = a; n < b && st == TERN_OK; n++) {
        if (n > a && n % TILE == 0) tile += tn_weightlets_bytes(j->l->bits, (size_t)(n - TILE), (size_t)n, k);
        weights_of(j->r->kern, j->site, j->l, tile, (size_t)n, (size_t)j->n_all, k, q,
                   w + (size_t)(n - a) * k);
    }
    if (st == TERN_OK)
        tn_panels_pack(TN_PANEL_F32, j->panels, w, (size_t)(a - j->n0), (size_t)(b - j->n0), k);
    if (st != TERN_OK && !atomic_exchange(&j->failed, true)) j->err = err;
    tn_free(j->r->ctx, w);
    tn_free(j->r->ctx, q);
}

static tern_status unpack(unpack_job *j, tern_error *err) {
    tn_pool_for(j->r->pool, (j->n1 - j->n0 + TN_PANEL_N - 1) / TN_PANEL_N, unpack_item, j);
    if (!atomic_load(&j->failed)) return TERN_OK;
    if (err) *err = j->err;
    return j->err.code;
}

/* ---- layers ------------------------------------------------------------------------------------------- */

typedef struct rounding {
    const tn_judge *j;
    const tn_recipe_site *made; /* of the layer's sites */
    int32_t first;              /* of them */
    const float *chosen;        /* of the current chunk, where the layer has experts */
} rounding;

typedef struct round_rows {
    const tn_kernels *kern;
    const tn_recipe_site *site;
    const float *smooth; /* of these rows, or NULL */
    float *x;
    size_t ldx, k;
} round_rows;

static void round_row(void *arg, int i_item, int i_thread) {
    (void)i_thread;
    const round_rows *r = arg;
    round_input(r->kern, r->site, r->smooth, r->x + (size_t)i_item * r->ldx, r->k);
}

static void round_site(void *user, int layer, tn_site site, float *x, size_t ldx, int32_t n_rows) {
    const rounding *w = user;
    const tn_program *p = &w->j->c.m->program;
    int32_t i = tn_program_site_index(p, layer, site);
    round_rows r = {.kern = w->j->r->kern,
                    .site = &w->made[i - w->first],
                    .smooth = w->made[i - w->first].smooth,
                    .x = x,
                    .ldx = ldx,
                    .k = (size_t)tn_program_linears(p, i)->k};
    if (!r.site->n_smooth) {
        tn_pool_for(w->j->r->pool, n_rows, round_row, &r);
        return;
    }
    const int32_t used = tn_program_linears(p, i)->n_used;
    for (int32_t e = 0; e < r.site->n_smooth; e++) { /* rows lie expert by expert */
        int32_t n = 0;
        for (int32_t t = 0; t < n_rows / used; t++)
            for (int32_t u = 0; u < used; u++)
                n += tn_chosen_expert(w->chosen + (ptrdiff_t)t * tn_chosen_width(used), u) == e;
        tn_pool_for(w->j->r->pool, n, round_row, &r);
        r.x += (size_t)n * ldx;
        r.smooth += r.k;
    }
}

static void on_route(void *user, int layer, const float *chosen) {
    (void)layer;
    ((rounding *)user)->chosen = chosen;
}

static void run_copy(tn_judge *j, int layer, int copy, const tn_forward_hooks *hooks) {
    float *x = j->c.x;
    size_t n = (size_t)j->n_tok;
    j->c.x += (size_t)copy * n * (size_t)tn_residual_width(&j->c.m->h);
    j->c.n_tok = n;
    tn_corpus_pass(&j->c, layer, hooks, true);
    j->c.x = x;
    j->c.n_tok = 2 * n;
}

/* The linears of a role in the package's form. */
static tern_status unpack_linears(tn_judge *j, int layer, const tn_recipe_site *made, const tn_site_ops *ops,
                                  int32_t op, tn_stand_in *out, tern_error *err) {
    TN_TRY(tn_stand_in_open(j->c.m, layer, ops->roles[op], out, err));
    for (int32_t i = 0, n = ops->n[op] / out->n; i < out->n; i++) {
        unpack_job u = {.r = j->r,
                        .site = made,
                        .l = &made->ops[op],
                        .n0 = i * n,
                        .n1 = (i + 1) * n,
                        .n_all = ops->n[op],
                        .k = ops->k,
                        .panels = out->l[i].panels};
        TN_TRY(unpack(&u, err));
    }
    return TERN_OK;
}

tern_status tn_judge_layer(tn_judge *j, int layer, const tn_recipe_site *made, tern_error *err) {
    tn_model *m = j->c.m;
    const tn_program *p = &m->program;
    tn_stand_in packed[TN_N_SITES][TN_SITE_MAX_OPS] = {0};
    int32_t first, n = tn_program_layer_sites(p, layer, &first);
    tern_status st = TERN_OK;
    run_copy(j, layer, 0, NULL);
    for (int32_t i = 0; i < n; i++) {
        const tn_site_ops *ops = tn_program_linears(p, first + i);
        for (int32_t op = 0; op < ops->n_ops && st == TERN_OK; op++)
            st = unpack_linears(j, layer, &made[i], ops, op, &packed[i][op], err);
    }
    rounding w = {.j = j, .made = made, .first = first};
    tn_forward_hooks hooks = {.site_input = round_site, .routed = on_route, .user = &w};
    for (int pass = 0; pass < 2 && st == TERN_OK; pass++) { /* swapped in, and back */
        for (int32_t i = 0; i < n; i++) {
            const tn_site_ops *ops = tn_program_linears(p, first + i);
            for (int32_t op = 0; op < ops->n_ops; op++)
                tn_stand_in_swap(m, layer, ops->roles[op], &packed[i][op]);
        }
        if (!pass) run_copy(j, layer, 1, &hooks);
    }
    for (int32_t i = 0; i < n; i++)
        for (int op = 0; op < TN_SITE_MAX_OPS; op++) tn_stand_in_close(m, &packed[i][op]);
    return st;
}

/* ---- predictions ------------------------------------------------------------------------------------- */

/* Running sums over the vocabulary, relative to the largest logits: p of the float model, q of the packed
 * one. */
typedef struct sums {
    double max_p, max_q, p, q, p_diff; /* p_diff: of p's weights times (logit p - logit q) */
    double next_p, next_q;             /* logits of the token that follows */
} sums;

typedef struct head {
    tn_judge *j;
    const tn_recipe_site *made;
    float *panels[2]; /* of VOCAB rows of both output layers */
    float *x[2];      /* [n_tok][n_embd] */
    float *logits[2]; /* [n_tok][VOCAB] */
    sums *s;          /* [n_tok] */
    int32_t first, n; /* of the vocabulary, at a time */
} head;

/* What follows the output layer (model/op_cap.c). */
static double shaped(const tn_hparams *h, float logit) {
    double x = (double)logit * (double)h->logit_scale, cap = (double)h->logit_soft_cap;
    return cap > 0 ? cap * tanh(x / cap) : x;
}

static void add(const tn_hparams *h, sums *s, const float *p, const float *q, int32_t n) {
    for (int32_t i = 0; i < n; i++) {
        double lp = shaped(h, p[i]), lq = shaped(h, q[i]);
        if (lp > s->max_p) {
            double f = exp(s->max_p - lp);
            s->p *= f;
            s->p_diff *= f;
            s->max_p = lp;
        }
        if (lq > s->max_q) {
            s->q *= exp(s->max_q - lq);
            s->max_q = lq;
        }
        double e = exp(lp - s->max_p);
        s->p += e;
        s->p_diff += e * (lp - lq);
        s->q += exp(lq - s->max_q);
    }
}

static void add_item(void *arg, int i_item, int i_thread) {
    (void)i_thread;
    const head *h = arg;
    const tn_hparams *hp = &h->j->c.m->h;
    const float *p = h->logits[0] + (size_t)i_item * VOCAB, *q = h->logits[1] + (size_t)i_item * VOCAB;
    add(hp, &h->s[i_item], p, q, h->n);
    int32_t next = h->j->ids[i_item + 1] - h->first; /* a window's last token has no successor */
    if (next < 0 || next >= h->n) return;
    h->s[i_item].next_p = shaped(hp, p[next]);
    h->s[i_item].next_q = shaped(hp, q[next]);
}

/* All predictions over a part of the vocabulary. */
static tern_status vocabulary(head *h, tern_error *err) {
    tn_judge *j = h->j;
    const tn_site_ops *ops = tn_program_linears(&j->c.m->program, j->c.m->program.n_sites - 1);
    unpack_job u = {.r = j->r,
                    .site = h->made,
                    .l = &h->made->ops[0],
                    .n0 = h->first,
                    .n1 = h->first + h->n,
                    .n_all = ops->n[0],
                    .k = ops->k,
                    .panels = h->panels[1],
                    .source = h->panels[0],
                    .role = ops->roles[0]};
    TN_TRY(unpack(&u, err));
    for (int c = 0; c < 2; c++) {
        const tn_linear l = {.n = h->n, .k = ops->k, .dtype = TN_PANEL_F32, .panels = h->panels[c]};
        tn_linear_run(&l, j->r->kern, j->r->pool, h->x[c], (size_t)ops->k, h->logits[c], VOCAB,
                      (size_t)j->n_tok, NULL);
    }
    tn_pool_for(j->r->pool, j->n_tok, add_item, h);
    return TERN_OK;
}

/* The predictions of tokens t0 .. t0 + n - 1. */
static tn_loss sum_up(const head *h, int32_t t0, int32_t n) {
    tn_loss out = {0};
    double square = 0;
    for (int32_t t = t0; t < t0 + n; t++) {
        if (t % h->j->c.window == h->j->c.window - 1) continue; /* what follows is of another window */
        const sums *s = &h->s[t];
        double lp = log(s->p) + s->max_p, lq = log(s->q) + s->max_q, kl = s->p_diff / s->p - lp + lq;
        out.kl += kl;
        square += kl * kl;
        out.nll_diff += (lq - s->next_q) - (lp - s->next_p);
        out.n_tok++;
    }
    if (!out.n_tok) return out;
    out.kl /= out.n_tok;
    out.nll_diff /= out.n_tok;
    out.stderr_ = sqrt(fmax(square / out.n_tok - out.kl * out.kl, 0) / out.n_tok);
    return out;
}

tn_words tn_losses_worst(const tn_losses *l) {
    tn_words worst = 0;
    for (tn_words k = 1; k < TN_N_WORDS; k++)
        if (l->of[k].n_tok && (!l->of[worst].n_tok || l->of[k].kl > l->of[worst].kl)) worst = k;
    return worst;
}

tern_status tn_judge_end(tn_judge *j, const tn_recipe_site *made, tn_losses *out, tern_error *err) {
    tn_ctx *ctx = j->r->ctx;
    const tn_model *m = j->c.m;
    size_t e = (size_t)m->h.n_embd, width = (size_t)tn_residual_width(&m->h), n = (size_t)j->n_tok,
           n_panel = tn_panels_bytes(TN_PANEL_F32, VOCAB, e) / sizeof(float);
    *out = (tn_losses){0};
    sums *s = tn_alloc(ctx, TN_MEM_OTHER, n, sizeof *s);
    float *block = tn_alloc(ctx, TN_MEM_OTHER, 2 * (n_panel + n * (e + VOCAB)), sizeof *block);
    tern_status st = s && block ? TERN_OK : tn_fail(err, TERN_E_MEMORY, "no memory to judge the predictions");
    head h = {.j = j, .made = made, .s = s};
    for (size_t c = 0; c < 2 && st == TERN_OK; c++) {
        h.panels[c] = block + c * n_panel;
        h.x[c] = block + 2 * n_panel + c * n * e;
        h.logits[c] = block + 2 * (n_panel + n * e) + c * n * VOCAB;
        tn_forward_out_norm(m, j->r->kern, j->c.x + c * n * width, h.x[c], j->n_tok);
        for (size_t i = 0; c && i < n; i++) round_input(j->r->kern, made, made->smooth, h.x[c] + i * e, e);
    }
    for (size_t i = 0; i < n && st == TERN_OK; i++) s[i] = (sums){.max_p = -INFINITY, .max_q = -INFINITY};
    for (h.first = 0; h.first < m->h.n_vocab && st == TERN_OK; h.first += VOCAB) {
        h.n = m->h.n_vocab - h.first < VOCAB ? m->h.n_vocab - h.first : VOCAB;
        st = vocabulary(&h, err);
    }
    for (int32_t k = 0, at = 0; k < TN_N_WORDS && st == TERN_OK; at += j->held.n[k++])
        out->of[k] = sum_up(&h, at, j->held.n[k]);
    tn_free(ctx, s);
    tn_free(ctx, block);
    return st;
}

/* ---- life -------------------------------------------------------------------------------------------- */

tern_status tn_judge_open(tn_judge *j, const tn_recipe *r, tn_model *m, const tn_held *held,
                          const uint8_t *embedding_bits, tern_error *err) {
    int32_t n_tok = 0;
    for (int32_t k = 0; k < TN_N_WORDS; k++) n_tok += held->n[k];
    size_t n = (size_t)n_tok, e = (size_t)m->h.n_embd, width = (size_t)tn_residual_width(&m->h);
    const int32_t *ids = held->ids;
    *j = (tn_judge){.r = r, .held = *held, .n_tok = n_tok};
    j->ids = tn_alloc(r->ctx, TN_MEM_OTHER, 2 * n, sizeof *j->ids);
    float *ones = tn_alloc(r->ctx, TN_MEM_OTHER, e, sizeof *ones);
    tern_status st = j->ids && ones ? TERN_OK : tn_fail(err, TERN_E_MEMORY, "no memory to judge");
    if (st == TERN_OK) {
        memcpy(j->ids, ids, n * sizeof *ids);
        memcpy(j->ids + n, ids, n * sizeof *ids);
        j->held.ids = j->ids;
        j->c = (tn_corpus){.kern = r->kern,
                           .pool = r->pool,
                           .src = r->src,
                           .m = m,
                           .ids = j->ids,
                           .n_tok = 2 * n,
                           .window = held->window};
        st = tn_corpus_open(&j->c, err);
    }
    for (size_t i = 0; i < e && ones; i++) ones[i] = 1;
    for (size_t t = 0; t < n && st == TERN_OK; t++)
        tn_round_embedding(r->kern, j->c.x + (n + t) * width, ones, (int32_t)e, embedding_bits[ids[t]],
                           m->h.tied);
    tn_free(r->ctx, ones);
    if (st != TERN_OK) tn_judge_close(j);
    return st;
}

void tn_judge_close(tn_judge *j) {
    if (!j->r) return;
    tn_corpus_close(&j->c);
    tn_free(j->r->ctx, j->ids);
    *j = (tn_judge){0};
}
