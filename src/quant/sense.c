#include "quant/sense.h"

#include "base/status.h"
#include "quant/round.h"
#include "quant/stand_in.h"

#include <math.h>
#include <stdatomic.h>
#include <string.h>

enum {
    ROWS_PER_ITEM = 32,
    MAX_TOKENS = 192,
    MIN_TOKENS = 128,
    SHORT = 768, /* a caller with fewer tokens wants a quick result */
    WINDOW = 64,
    MAX_VOCAB = 8192,
    MAX_GROUPS = 12 /* groups of layers; each has a copy that passes all later layers */
};

typedef struct sensing {
    const tn_sense_args *a;
    tn_corpus c;
    int32_t n_tok, window; /* of a copy */
    int32_t n_trial;       /* of its tokens, while linears are tried one by one */
    int32_t n_groups, layers_per_group;
    size_t n_embd, width;       /* of the residual, which may be several streams */
    float *before, *after;      /* [n_tok][width] the clean copy before and after a layer */
    double *energy[TN_N_SITES]; /* [widest] mean squares of the inputs of the layer's sites */
    int32_t n_seen;             /* rows of the pass so far: the clean copy is the first */
    tn_stand_in rounded[TN_N_SITES][TN_SITE_MAX_OPS]; /* the layer's linears, at TN_SENSE_BITS */
    double *group_moved; /* [n_groups] sums of the shifts by the linears of its layers */
} sensing;

/* Copies: the clean one, the groups', the embedding's, and one for trials. */
static int32_t embedding_copy(const sensing *s) { return s->n_groups + 1; }
static int32_t trial_copy(const sensing *s) { return s->n_groups + 2; }

/* ---- a linear rounded, for a trial ------------------------------------------------------------------ */

typedef struct round_job {
    const tn_sense_args *a;
    int layer;
    tn_role role;
    int32_t row0, n, k; /* rows row0 .. row0 + n - 1 of the role's tensor */
    const double *energy;
    float *panels; /* NULL: only the errors are wanted */
    float *cost;   /* [n] becomes the rows' errors */
    atomic_bool failed;
    tern_error err; /* of the first thread that failed */
} round_job;

static void round_item(void *arg, int i_item, int i_thread) {
    (void)i_thread;
    round_job *j = arg;
    if (atomic_load(&j->failed)) return;
    int32_t n0 = i_item * ROWS_PER_ITEM, n1 = n0 + ROWS_PER_ITEM < j->n ? n0 + ROWS_PER_ITEM : j->n;
    size_t k = (size_t)j->k;
    tn_ctx *ctx = j->a->m->ctx;
    float *w = tn_alloc(ctx, TN_MEM_OTHER, (size_t)(n1 - n0 + 1) * k, sizeof *w);
    tern_error err;
    tern_status st = w ? tn_source_read(j->a->src, j->layer, j->role, j->row0 + n0, j->row0 + n1, w, &err)
                       : tn_fail(&err, TERN_E_MEMORY, "no memory to round weights");
    if (st == TERN_OK) {
        float *weight = w + (size_t)(n1 - n0) * k;
        for (size_t i = 0; i < k; i++) weight[i] = (float)j->energy[i];
        for (int32_t n = n0; n < n1; n++)
            j->cost[n] = tn_round_plain(j->a->kern, w + (size_t)(n - n0) * k, weight, j->k, TN_SENSE_BITS);
        if (j->panels) tn_panels_pack(TN_PANEL_F32, j->panels, w, (size_t)n0, (size_t)n1, k);
    }
    if (st != TERN_OK && !atomic_exchange(&j->failed, true)) j->err = err;
    tn_free(ctx, w);
}

static tern_status round_all(round_job *j, tern_error *err) {
    tn_pool_for(j->a->pool, (j->n + ROWS_PER_ITEM - 1) / ROWS_PER_ITEM, round_item, j);
    if (!atomic_load(&j->failed)) return TERN_OK;
    if (err) *err = j->err;
    return j->err.code;
}

/* The rounded forms of a role's linears; cost [n_total of the role]: loss of their rows. */
static tern_status round_linears(sensing *s, int layer, tn_site site, const tn_site_ops *ops, int32_t op,
                                 float *cost, tern_error *err) {
    tn_stand_in *to = &s->rounded[site][op];
    TN_TRY(tn_stand_in_open(s->c.m, layer, ops->roles[op], to, err));
    for (int32_t i = 0, n = ops->n[op] / to->n; i < to->n; i++) {
        round_job j = {.a = s->a,
                       .layer = layer,
                       .role = ops->roles[op],
                       .row0 = i * n,
                       .n = n,
                       .k = ops->k,
                       .energy = s->energy[site],
                       .panels = to->l[i].panels,
                       .cost = cost + (size_t)i * (size_t)n};
        TN_TRY(round_all(&j, err));
    }
    return TERN_OK;
}

/* ---- copies ------------------------------------------------------------------------------------------ */

static void see_energy(void *user, int layer, tn_site site, float *x, size_t ldx, int32_t n_rows) {
    (void)layer;
    sensing *s = user;
    const tn_program *p = &s->c.m->program;
    int32_t k = tn_program_linears(p, tn_program_site_index(p, layer, site))->k;
    for (int32_t i = 0; i < n_rows; i++) {
        const float *row = x + (size_t)i * ldx;
        for (int32_t j = 0; j < k; j++) s->energy[site][j] += (double)row[j] * (double)row[j] / s->n_tok;
    }
}

/* Passes copies first .. first + n - 1 through the layer, of the last only the first n_last tokens. */
static void pass(sensing *s, int layer, int32_t first, int32_t n, int32_t n_last,
                 const tn_forward_hooks *hooks) {
    float *x = s->c.x;
    size_t n_tok = s->c.n_tok;
    s->c.x += (size_t)first * (size_t)s->n_tok * s->width;
    s->c.n_tok = (size_t)(n - 1) * (size_t)s->n_tok + (size_t)n_last;
    tn_corpus_pass(&s->c, layer, hooks, true);
    s->c.x = x;
    s->c.n_tok = n_tok;
}

static float *copy_of(const sensing *s, int32_t i) {
    return s->c.x + (size_t)i * (size_t)s->n_tok * s->width;
}

/* Distance of the trial's copy from the clean one: squared, relative to the token's own square. */
static double trial_moved(const sensing *s) {
    const float *x = copy_of(s, trial_copy(s));
    double sum = 0;
    for (int32_t t = 0; t < s->n_trial; t++) {
        double far = 0, square = 1e-30;
        for (size_t j = 0; j < s->width; j++) {
            double clean = (double)s->after[(size_t)t * s->width + j],
                   d = (double)x[(size_t)t * s->width + j] - clean;
            far += d * d;
            square += clean * clean;
        }
        sum += far / square;
    }
    return sum;
}

/* Scales a linear's row errors to its share of its group's cost, before that is known. */
static void share_out(const sensing *s, int layer, double moved, float *cost, int32_t n) {
    double rows = 1e-300;
    for (int32_t r = 0; r < n; r++) rows += (double)cost[r];
    for (int32_t r = 0; r < n; r++) cost[r] = (float)((double)cost[r] / rows * moved);
    s->group_moved[layer / s->layers_per_group] += moved;
}

/* Swaps the layer's linears with the rounded ones, and back. */
static void swap_linears(sensing *s, int layer) {
    const tn_program *p = &s->c.m->program;
    int32_t first, n = tn_program_layer_sites(p, layer, &first);
    for (int32_t i = 0; i < n; i++) {
        const tn_site_ops *ops = tn_program_linears(p, first + i);
        for (int32_t op = 0; op < ops->n_ops; op++)
            tn_stand_in_swap(s->c.m, layer, ops->roles[op], &s->rounded[p->sites[first + i].kind][op]);
    }
}

static void drop_rounded(sensing *s) {
    for (int site = 0; site < TN_N_SITES; site++)
        for (int op = 0; op < TN_SITE_MAX_OPS; op++) tn_stand_in_close(s->c.m, &s->rounded[site][op]);
}

/* Tries every linear of the layer rounded alone; makes all rounded ones. */
static tern_status try_linears(sensing *s, int layer, float *cost, tern_error *err) {
    const tn_program *p = &s->c.m->program;
    int32_t first, n = tn_program_layer_sites(p, layer, &first);
    for (int32_t i = 0; i < n; i++) {
        const tn_site_ops *ops = tn_program_linears(p, first + i);
        tn_site site = p->sites[first + i].kind;
        for (int32_t op = 0; op < ops->n_ops; cost += ops->n[op++]) {
            TN_TRY(round_linears(s, layer, site, ops, op, cost, err));
            tn_stand_in_swap(s->c.m, layer, ops->roles[op], &s->rounded[site][op]);
            tn_corpus_copy(&s->c, 0, (size_t)trial_copy(s) * (size_t)s->n_tok, (size_t)s->n_trial);
            memcpy(copy_of(s, trial_copy(s)), s->before, (size_t)s->n_trial * s->width * sizeof(float));
            pass(s, layer, trial_copy(s), 1, s->n_trial, NULL);
            share_out(s, layer, trial_moved(s), cost, ops->n[op]);
            tn_stand_in_swap(s->c.m, layer, ops->roles[op],
                             &s->rounded[site][op]); /* the other linears are tried without it */
        }
    }
    return TERN_OK;
}

static tern_status sense_layer(sensing *s, int layer, float *cost, tern_error *err) {
    size_t bytes = (size_t)s->n_tok * s->width * sizeof(float);
    const tn_program *p = &s->c.m->program;
    int32_t first, n = tn_program_layer_sites(p, layer, &first), group = layer / s->layers_per_group;
    for (int32_t i = 0; i < n; i++)
        memset(s->energy[p->sites[first + i].kind], 0,
               (size_t)tn_program_linears(p, first + i)->k * sizeof(double));
    memcpy(s->before, copy_of(s, 0), bytes);
    if (layer % s->layers_per_group == 0)
        tn_corpus_copy(&s->c, 0, (size_t)(group + 1) * (size_t)s->n_tok, (size_t)s->n_tok);
    tn_forward_hooks hooks = {.site_input = see_energy, .user = s};
    pass(s, layer, 0, 1, s->n_tok, &hooks);
    if (group) pass(s, layer, 1, group, s->n_tok, NULL);
    pass(s, layer, embedding_copy(s), 1, s->n_tok, NULL);
    memcpy(s->after, copy_of(s, 0), bytes);
    tern_status st = try_linears(s, layer, cost, err);
    if (st == TERN_OK) {
        swap_linears(s, layer);
        pass(s, layer, group + 1, 1, s->n_tok, NULL);
        swap_linears(s, layer);
    }
    drop_rounded(s);
    return st;
}

/* ---- divergence ---------------------------------------------------------------------------------------- */

typedef struct head {
    float *panels, *rounded; /* as they are, and at TN_SENSE_BITS */
    float *normed, *logits;  /* logits [2][ROWS_PER_ITEM][n] of the clean copy and another */
    int32_t n;               /* of the vocabulary */
} head;

/* Of a large vocabulary only a part is used: its beginning, for half of the room, and samples of the rest. */
static tern_status open_head(const sensing *s, const float *energy, head *h, tern_error *err) {
    const tn_model *m = s->c.m;
    const tn_site_ops *ops = tn_program_linears(&m->program, m->program.n_sites - 1);
    int32_t n_vocab = ops->n[0], half = MAX_VOCAB / 2;
    h->n = n_vocab < MAX_VOCAB ? n_vocab : MAX_VOCAB;
    size_t e = s->n_embd;
    h->panels = tn_alloc(m->ctx, TN_MEM_OTHER, ((size_t)h->n + TN_PANEL_N) * e, sizeof *h->panels);
    h->rounded = tn_alloc(m->ctx, TN_MEM_OTHER, ((size_t)h->n + TN_PANEL_N) * e, sizeof *h->rounded);
    h->normed = tn_alloc(m->ctx, TN_MEM_OTHER, ROWS_PER_ITEM * e, sizeof *h->normed);
    h->logits = tn_alloc(m->ctx, TN_MEM_OTHER, 2 * ROWS_PER_ITEM * (size_t)h->n, sizeof *h->logits);
    float *rows = tn_alloc(m->ctx, TN_MEM_OTHER, TN_PANEL_N * e, sizeof *rows);
    tern_status st = h->panels && h->rounded && h->normed && h->logits && rows
                         ? TERN_OK
                         : tn_fail(err, TERN_E_MEMORY, "no memory for a part of the vocabulary");
    for (int32_t n0 = 0; n0 < h->n && st == TERN_OK; n0 += TN_PANEL_N) {
        int32_t n1 = n0 + TN_PANEL_N < h->n ? n0 + TN_PANEL_N : h->n;
        for (int32_t n = n0; n < n1 && st == TERN_OK; n++) {
            int32_t id = h->n == n_vocab || n < half
                             ? n
                             : half + (int32_t)((int64_t)(n - half) * (n_vocab - half) / (h->n - half));
            st = tn_source_read(s->a->src, -1, ops->roles[0], id, id + 1, rows + (size_t)(n - n0) * e, err);
        }
        if (st == TERN_OK) tn_panels_pack(TN_PANEL_F32, h->panels, rows, (size_t)n0, (size_t)n1, e);
        for (int32_t n = n0; n < n1 && st == TERN_OK; n++)
            tn_round_plain(s->a->kern, rows + (size_t)(n - n0) * e, energy, (int32_t)e, TN_SENSE_BITS);
        if (st == TERN_OK) tn_panels_pack(TN_PANEL_F32, h->rounded, rows, (size_t)n0, (size_t)n1, e);
    }
    tn_free(m->ctx, rows);
    return st;
}

static void logits_of(const sensing *s, const head *h, float *panels, int32_t copy, int32_t t0, int32_t n,
                      float *out) {
    tn_forward_out_norm(s->c.m, s->a->kern, copy_of(s, copy) + (size_t)t0 * s->width, h->normed, n);
    const tn_linear l = {.n = h->n, .k = (int32_t)s->n_embd, .dtype = TN_PANEL_F32, .panels = panels};
    tn_linear_run(&l, s->a->kern, s->a->pool, h->normed, s->n_embd, out, (size_t)h->n, (size_t)n, NULL);
}

static double divergence(const float *p, const float *q, int32_t n) {
    float max_p = -INFINITY, max_q = -INFINITY;
    for (int32_t i = 0; i < n; i++) {
        max_p = fmaxf(max_p, p[i]);
        max_q = fmaxf(max_q, q[i]);
    }
    double sum_p = 0, sum_q = 0, kl = 0;
    for (int32_t i = 0; i < n; i++) {
        double e = exp((double)p[i] - (double)max_p);
        sum_p += e;
        sum_q += exp((double)q[i] - (double)max_q);
        kl += e * ((double)p[i] - (double)q[i]);
    }
    return kl / sum_p - log(sum_p) + log(sum_q) - (double)max_p + (double)max_q;
}

/* Mean squares of the output layer's inputs. */
static void head_energy(const sensing *s, float *normed, float *energy) {
    memset(energy, 0, s->n_embd * sizeof *energy);
    for (int32_t t = 0; t < s->n_tok; t++) {
        tn_forward_out_norm(s->c.m, s->a->kern, copy_of(s, 0) + (size_t)t * s->width, normed, 1);
        for (size_t j = 0; j < s->n_embd; j++) energy[j] += normed[j] * normed[j] / (float)s->n_tok;
    }
}

/* kl[i] of copy i + 1, per token: of the groups and the embedding; then of the output layer. */
static tern_status divergences(const sensing *s, const float *energy, double *kl, tern_error *err) {
    head h = {0};
    tern_status st = open_head(s, energy, &h, err);
    for (int32_t t = 0; t < s->n_tok && st == TERN_OK; t += ROWS_PER_ITEM) {
        int32_t n = s->n_tok - t < ROWS_PER_ITEM ? s->n_tok - t : ROWS_PER_ITEM;
        float *other = h.logits + (size_t)ROWS_PER_ITEM * (size_t)h.n;
        logits_of(s, &h, h.panels, 0, t, n, h.logits);
        for (int32_t l = 0; l < s->n_groups + 2; l++) {
            if (l <= s->n_groups) logits_of(s, &h, h.panels, l + 1, t, n, other);
            else logits_of(s, &h, h.rounded, 0, t, n, other);
            for (int32_t i = 0; i < n; i++)
                kl[l] +=
                    divergence(h.logits + (size_t)i * (size_t)h.n, other + (size_t)i * (size_t)h.n, h.n) /
                    s->n_tok;
        }
    }
    tn_free(s->c.m->ctx, h.panels);
    tn_free(s->c.m->ctx, h.rounded);
    tn_free(s->c.m->ctx, h.normed);
    tn_free(s->c.m->ctx, h.logits);
    return st;
}

/* ---- life -------------------------------------------------------------------------------------------- */

/* Windows from all over the text. */
static void sample(const tn_sense_args *a, int32_t window, int32_t n_tok, int32_t *ids) {
    int32_t n = n_tok / window;
    for (int32_t i = 0; i < n; i++) {
        size_t at = n > 1 ? (a->n_ids - (size_t)window) * (size_t)i / (size_t)(n - 1) : 0;
        memcpy(ids + (size_t)i * (size_t)window, a->ids + at, (size_t)window * sizeof *ids);
    }
}

static tern_status open_copies(sensing *s, int32_t *ids, tern_error *err) {
    const tn_sense_args *a = s->a;
    size_t copies = (size_t)trial_copy(s) + 1;
    for (size_t i = 0; i < copies; i++) sample(a, s->window, s->n_tok, ids + i * (size_t)s->n_tok);
    s->c = (tn_corpus){.kern = a->kern,
                       .pool = a->pool,
                       .src = a->src,
                       .m = a->m,
                       .ids = ids,
                       .n_tok = copies * (size_t)s->n_tok,
                       .window = s->window};
    TN_TRY(tn_corpus_open(&s->c, err));
    float *ones = s->after; /* free until the first layer */
    for (size_t j = 0; j < s->n_embd; j++) ones[j] = 1;
    for (int32_t t = 0; t < s->n_tok; t++)
        tn_round_embedding(a->kern, copy_of(s, embedding_copy(s)) + (size_t)t * s->width, ones,
                           (int32_t)s->n_embd, TN_SENSE_BITS, a->m->h.tied);
    size_t first = (size_t)embedding_copy(s) * (size_t)s->n_tok;
    for (size_t t = first; s->c.emb && t < first + (size_t)s->n_tok; t++) /* layers read it again */
        memcpy(s->c.emb + t * s->n_embd, s->c.x + t * s->width, s->n_embd * sizeof *s->c.emb);
    return TERN_OK;
}

/* The rest of cost: the output layer and the embedding. */
static tern_status table_costs(const sensing *s, const float *energy, const double *kl, float *cost,
                               tern_error *err) {
    const tn_model *m = s->c.m;
    const tn_site_ops *ops = tn_program_linears(&m->program, m->program.n_sites - 1);
    bool tied = ops->roles[0] == TN_W_EMBD;
    double *wide = tn_alloc(m->ctx, TN_MEM_OTHER, s->n_embd, sizeof *wide), sum = 1e-300;
    TN_FAIL_IF(!wide, err, TERN_E_MEMORY, "no memory to measure what errors cost");
    for (size_t j = 0; j < s->n_embd; j++) wide[j] = (double)energy[j];
    round_job j = {.a = s->a,
                   .layer = -1,
                   .role = ops->roles[0],
                   .n = ops->n[0],
                   .k = ops->k,
                   .energy = wide,
                   .cost = cost};
    tern_status st = round_all(&j, err);
    tn_free(m->ctx, wide);
    TN_TRY(st);
    double at_0 = exp2(2 * TN_SENSE_BITS), embedding = fmax(kl[0], 0) * at_0 / ops->n[0],
           output = fmax(kl[1], 0) * at_0;
    for (int32_t r = 0; r < ops->n[0]; r++) sum += (double)cost[r];
    for (int32_t r = 0; r < ops->n[0]; r++)
        cost[r] = (float)((double)cost[r] / sum * output + (tied ? embedding : 0));
    for (int32_t r = 0; !tied && r < ops->n[0]; r++) cost[ops->n[0] + r] = (float)embedding;
    return TERN_OK;
}

static tern_status measure(sensing *s, float *cost, double *kl, tern_error *err) {
    const tn_program *p = &s->a->m->program;
    tern_status st = TERN_OK;
    float *at = cost;
    for (int l = 0; l < p->n_layers && st == TERN_OK; l++) {
        int32_t first, n = tn_program_layer_sites(p, l, &first);
        st = tn_corpus_begin_layer(&s->c, l, err);
        if (st == TERN_OK) st = sense_layer(s, l, at, err);
        tn_corpus_end_layer(&s->c, l);
        for (int32_t i = 0; i < n; i++) at += tn_program_linears(p, first + i)->n_total;
        if (st == TERN_OK && s->a->progress && !s->a->progress(s->a->user, (l + 1.0) / p->n_layers))
            st = tn_fail(err, TERN_E_CANCELLED, "packing was cancelled");
    }
    float *energy = tn_alloc(s->a->m->ctx, TN_MEM_OTHER, s->n_embd, sizeof *energy);
    if (st == TERN_OK && !energy) st = tn_fail(err, TERN_E_MEMORY, "no memory to measure what errors cost");
    if (st == TERN_OK) head_energy(s, s->after, energy);
    if (st == TERN_OK) st = divergences(s, energy, kl, err);
    if (st == TERN_OK) st = table_costs(s, energy, kl + s->n_groups, at, err);
    tn_free(s->a->m->ctx, energy);
    for (int l = 0; l < p->n_layers && st == TERN_OK; l++) {
        int32_t first, n = tn_program_layer_sites(p, l, &first), group = l / s->layers_per_group;
        double each = fmax(kl[group], 0) * exp2(2 * TN_SENSE_BITS) / fmax(s->group_moved[group], 1e-300);
        for (int32_t i = 0; i < n; i++) {
            for (int32_t r = 0; r < tn_program_linears(p, first + i)->n_total; r++)
                cost[r] = (float)((double)cost[r] * each);
            cost += tn_program_linears(p, first + i)->n_total;
        }
    }
    return st;
}

tern_status tn_sense_measure(const tn_sense_args *a, float *cost, tern_error *err) {
    tn_ctx *ctx = a->m->ctx;
    int32_t n_layers = a->m->h.n_layers, widest = 1;
    size_t n = a->n_ids / (size_t)(n_layers + 14); /* as much work as half the calibration's forward */
    size_t least = a->n_ids < SHORT ? MIN_TOKENS / 2 : MIN_TOKENS;
    n = n > MAX_TOKENS ? MAX_TOKENS : n < least ? least : n;
    if (n > a->n_ids) n = a->n_ids;
    size_t window = n < WINDOW ? n : WINDOW;
    if (window > (size_t)a->m->h.ctx_train) window = (size_t)a->m->h.ctx_train;
    n -= n % window;
    sensing s = {.a = a,
                 .n_tok = (int32_t)n,
                 .window = (int32_t)window,
                 .n_embd = (size_t)a->m->h.n_embd,
                 .width = (size_t)tn_residual_width(&a->m->h)};
    s.n_trial = (int32_t)((n / window + 1) / 2 * window);
    s.layers_per_group = (n_layers + MAX_GROUPS - 1) / MAX_GROUPS;
    s.n_groups = (n_layers + s.layers_per_group - 1) / s.layers_per_group;
    for (int32_t i = 0; i < a->m->program.n_sites; i++) {
        int32_t k = tn_program_linears(&a->m->program, i)->k;
        widest = k > widest ? k : widest;
    }
    int32_t *ids = tn_alloc(ctx, TN_MEM_OTHER, ((size_t)trial_copy(&s) + 1) * n, sizeof *ids);
    double *energy = tn_alloc(ctx, TN_MEM_OTHER, TN_N_SITES * (size_t)widest, sizeof *energy);
    double *kl = tn_calloc(ctx, TN_MEM_OTHER, (size_t)s.n_groups + 2, sizeof *kl);
    s.group_moved = tn_calloc(ctx, TN_MEM_OTHER, (size_t)s.n_groups, sizeof *s.group_moved);
    s.before = tn_alloc(ctx, TN_MEM_OTHER, n * s.width, sizeof *s.before);
    s.after = tn_alloc(ctx, TN_MEM_OTHER, n * s.width, sizeof *s.after);
    tern_status st = ids && energy && kl && s.before && s.after && s.group_moved
                         ? TERN_OK
                         : tn_fail(err, TERN_E_MEMORY, "no memory to measure what errors cost");
    for (size_t i = 0; i < TN_N_SITES && energy; i++) s.energy[i] = energy + i * (size_t)widest;
    if (st == TERN_OK) st = open_copies(&s, ids, err);
    if (st == TERN_OK) st = measure(&s, cost, kl, err);
    tn_corpus_close(&s.c);
    tn_free(ctx, ids);
    tn_free(ctx, energy);
    tn_free(ctx, kl);
    tn_free(ctx, s.group_moved);
    tn_free(ctx, s.before);
    tn_free(ctx, s.after);
    return st;
}
