#include "quant/sense.h"

#include "base/status.h"
#include "kernels/hadamard.h"
#include "quant/allocate.h"
#include "quant/capture.h"
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
    READER_ROWS = 256, /* a sample of what reads a linear's outputs */
    MAX_GROUPS = 12    /* groups of layers; each has a copy that passes all later layers */
};

typedef struct sensing {
    const tn_sense_args *a;
    tn_corpus c;
    int32_t n_tok, window; /* of a copy */
    int32_t n_trial;       /* of its tokens, while linears are tried one by one */
    int32_t n_groups, layers_per_group;
    size_t n_embd, width;            /* of the residual, which may be several streams */
    float *before, *after;           /* [n_tok][width] the clean copy before and after a layer */
    tn_recipe recipe;                /* at TN_SENSE_BITS */
    tn_capture seen;                 /* inputs of the layer's sites, of the clean copy */
    tn_recipe_site form[TN_N_SITES]; /* how the layer's sites are smoothed and rotated */
    float *energy[TN_N_SITES];       /* [widest] mean squares of their inputs in that form */
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
    const tn_recipe_site *form;
    const float *energy; /* [k] of the inputs in that form */
    float *panels;       /* NULL: only the errors are wanted */
    float *cost;         /* [n] becomes the rows' errors */
    atomic_bool failed;
    tern_error err; /* of the first thread that failed */
} round_job;

/* A row of weights as the device would multiply with the site's inputs, rounded, and as it was; its error. */
static float round_in_form(const round_job *j, float *row) {
    const tn_recipe_site *f = j->form;
    const size_t k = (size_t)j->k;
    const tn_kernels *kern = j->a->recipe->kern;
    for (size_t i = 0; f->smooth && i < k; i++) row[i] *= f->smooth[i];
    if (f->rotated) tn_hadamard_wide(kern->hadamard_f32, row, k, (size_t)f->rotated);
    const float error = tn_round_plain(kern, row, j->energy, j->k, TN_SENSE_BITS);
    if (f->rotated) tn_hadamard_wide(kern->hadamard_f32, row, k, (size_t)f->rotated);
    for (size_t i = 0; f->smooth && i < k; i++) row[i] /= f->smooth[i];
    return error;
}

static void round_item(void *arg, int i_item, int i_thread) {
    (void)i_thread;
    round_job *j = arg;
    if (atomic_load(&j->failed)) return;
    int32_t n0 = i_item * ROWS_PER_ITEM, n1 = n0 + ROWS_PER_ITEM < j->n ? n0 + ROWS_PER_ITEM : j->n;
    size_t k = (size_t)j->k;
    tn_ctx *ctx = j->a->m->ctx;
    float *w = tn_alloc(ctx, TN_MEM_OTHER, (size_t)(n1 - n0) * k, sizeof *w);
    tern_error err;
    tern_status st =
        w ? tn_source_read(j->a->recipe->src, j->layer, j->role, j->row0 + n0, j->row0 + n1, w, &err)
          : tn_fail(&err, TERN_E_MEMORY, "no memory to round weights");
    if (st == TERN_OK) {
        for (int32_t n = n0; n < n1; n++) j->cost[n] = round_in_form(j, w + (size_t)(n - n0) * k);
        if (j->panels) tn_panels_pack(TN_PANEL_F32, j->panels, w, (size_t)n0, (size_t)n1, k);
    }
    if (st != TERN_OK && !atomic_exchange(&j->failed, true)) j->err = err;
    tn_free(ctx, w);
}

static tern_status round_all(round_job *j, tern_error *err) {
    tn_pool_for(j->a->recipe->pool, (j->n + ROWS_PER_ITEM - 1) / ROWS_PER_ITEM, round_item, j);
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
                       .form = &s->form[site],
                       .energy = s->energy[site],
                       .panels = to->l[i].panels,
                       .cost = cost + (size_t)i * (size_t)n};
        TN_TRY(round_all(&j, err));
    }
    return TERN_OK;
}

/* ---- copies ------------------------------------------------------------------------------------------ */

static void see_input(void *user, int layer, tn_site site, float *x, size_t ldx, int32_t n_rows) {
    (void)layer;
    tn_capture_add(&((sensing *)user)->seen, site, x, ldx, n_rows);
}

static void see_route(void *user, int layer, const float *chosen) {
    (void)layer;
    tn_capture_route(&((sensing *)user)->seen, chosen);
}

/* Decides a site's form and measures its inputs in it, for what was captured. */
static tern_status find_form(sensing *s, int layer, tn_site site, const tn_site_ops *ops, tern_error *err) {
    const tn_inputs in = tn_capture_inputs(&s->seen, site);
    float *energy = s->energy[site];
    TN_TRY(tn_recipe_choose(&s->recipe, layer, site, ops, in.x, in.n_rows, &s->form[site], err));
    memset(energy, 0, (size_t)ops->k * sizeof *energy);
    for (int32_t r = 0; r < in.n_rows; r++)
        for (int32_t i = 0; i < ops->k; i++) {
            const float x = in.x[(size_t)r * (size_t)ops->k + (size_t)i];
            energy[i] += x * x / (float)in.n_rows;
        }
    return TERN_OK;
}

static void drop_forms(sensing *s) {
    for (int site = 0; site < TN_N_SITES; site++) tn_recipe_site_free(s->c.m->ctx, &s->form[site]);
    tn_capture_close(&s->seen);
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

/* The site of the layer whose inputs are the role's outputs, channel by channel, or -1. */
static int32_t reader_of(const sensing *s, int layer, tn_role role) {
    const tn_program *p = &s->c.m->program;
    int32_t first, n = tn_program_layer_sites(p, layer, &first);
    for (int32_t i = first; i < first + n; i++)
        if (tn_program_absorber(p, i) == role) return i;
    return -1;
}

/* Multiplies the errors of V's and up's rows by the squares of the weights that read them. How far a linear
 * moves the residual stream is shared out by its rows' errors, and a row may be large only because what
 * reads it is small: with outlier channels such rows took all the bits of their linear. */
static tern_status weigh_rows(const sensing *s, int layer, tn_role role, int32_t n_rows, float *cost,
                              tern_error *err) {
    const int32_t site = reader_of(s, layer, role);
    if (site < 0) return TERN_OK;
    const tn_site_ops *ops = tn_program_linears(&s->c.m->program, site);
    const int32_t parts = ops->n_experts ? ops->n_experts : 1, of_part = n_rows / parts, k = ops->k,
                  each = ops->n[0] / parts, step = (each + READER_ROWS - 1) / READER_ROWS;
    float *w = tn_alloc(s->c.m->ctx, TN_MEM_OTHER, (size_t)k + (size_t)of_part, sizeof *w);
    TN_FAIL_IF(!w, err, TERN_E_MEMORY, "no memory to measure what errors cost");
    float *sum = w + k;
    tern_status st = TERN_OK;
    for (int32_t part = 0; part < parts && st == TERN_OK; part++, cost += of_part) {
        memset(sum, 0, (size_t)of_part * sizeof *sum);
        for (int32_t r = part * each; r < (part + 1) * each && st == TERN_OK; r += step) {
            st = tn_source_read(s->a->recipe->src, layer, ops->roles[0], r, r + 1, w, err);
            for (int32_t i = 0; i < k && st == TERN_OK; i++)
                sum[role == TN_W_V ? tn_value_row(&s->c.m->h, i) : i] += w[i] * w[i];
        }
        for (int32_t r = 0; r < of_part; r++) cost[r] *= sum[r];
    }
    tn_free(s->c.m->ctx, w);
    return st;
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
            if (ops->roles[op] == TN_W_V || ops->roles[op] == TN_W_UP || ops->roles[op] == TN_W_UP_EXPS)
                TN_TRY(weigh_rows(s, layer, ops->roles[op], ops->n[op], cost, err));
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
    TN_TRY(tn_capture_open(s->c.m->ctx, p, layer, (size_t)s->n_tok, &s->seen, err));
    memcpy(s->before, copy_of(s, 0), bytes);
    if (layer % s->layers_per_group == 0)
        tn_corpus_copy(&s->c, 0, (size_t)(group + 1) * (size_t)s->n_tok, (size_t)s->n_tok);
    tn_forward_hooks hooks = {.site_input = see_input, .routed = see_route, .user = s};
    pass(s, layer, 0, 1, s->n_tok, &hooks);
    if (group) pass(s, layer, 1, group, s->n_tok, NULL);
    pass(s, layer, embedding_copy(s), 1, s->n_tok, NULL);
    memcpy(s->after, copy_of(s, 0), bytes);
    tern_status st = TERN_OK;
    for (int32_t i = first; i < first + n && st == TERN_OK; i++)
        st = find_form(s, layer, p->sites[i].kind, tn_program_linears(p, i), err);
    if (st == TERN_OK) st = try_linears(s, layer, cost, err);
    if (st == TERN_OK) {
        swap_linears(s, layer);
        pass(s, layer, group + 1, 1, s->n_tok, NULL);
        swap_linears(s, layer);
    }
    drop_rounded(s);
    drop_forms(s);
    return st;
}

/* ---- divergence ---------------------------------------------------------------------------------------- */

typedef struct head {
    float *panels, *rounded; /* as they are, and at TN_SENSE_BITS */
    float *normed, *logits;  /* logits [2][ROWS_PER_ITEM][n] of the clean copy and another */
    int32_t n;               /* of the vocabulary */
} head;

/* The output layer's rows, all of them. */
static round_job head_job(const sensing *s) {
    const tn_program *p = &s->c.m->program;
    const tn_site_ops *ops = tn_program_linears(p, p->n_sites - 1);
    return (round_job){.a = s->a,
                       .layer = -1,
                       .role = ops->roles[0],
                       .n = ops->n[0],
                       .k = ops->k,
                       .form = &s->form[TN_SITE_LM_HEAD],
                       .energy = s->energy[TN_SITE_LM_HEAD]};
}

/* Of a large vocabulary only a part is used: its beginning, for half of the room, and samples of the rest. */
static tern_status open_head(const sensing *s, head *h, tern_error *err) {
    const tn_model *m = s->c.m;
    const tn_site_ops *ops = tn_program_linears(&m->program, m->program.n_sites - 1);
    const round_job as = head_job(s);
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
            st = tn_source_read(s->a->recipe->src, -1, ops->roles[0], id, id + 1, rows + (size_t)(n - n0) * e,
                                err);
        }
        if (st == TERN_OK) tn_panels_pack(TN_PANEL_F32, h->panels, rows, (size_t)n0, (size_t)n1, e);
        for (int32_t n = n0; n < n1 && st == TERN_OK; n++)
            (void)round_in_form(&as, rows + (size_t)(n - n0) * e);
        if (st == TERN_OK) tn_panels_pack(TN_PANEL_F32, h->rounded, rows, (size_t)n0, (size_t)n1, e);
    }
    tn_free(m->ctx, rows);
    return st;
}

static void logits_of(const sensing *s, const head *h, float *panels, int32_t copy, int32_t t0, int32_t n,
                      float *out) {
    tn_forward_out_norm(s->c.m, s->a->recipe->kern, copy_of(s, copy) + (size_t)t0 * s->width, h->normed, n);
    const tn_linear l = {.n = h->n, .k = (int32_t)s->n_embd, .dtype = TN_PANEL_F32, .panels = panels};
    tn_linear_run(&l, s->a->recipe->kern, s->a->recipe->pool, h->normed, s->n_embd, out, (size_t)h->n,
                  (size_t)n, NULL);
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

/* The output layer's inputs are the normed residuals. */
static tern_status find_head_form(sensing *s, tern_error *err) {
    const tn_program *p = &s->c.m->program;
    TN_TRY(tn_capture_open(s->c.m->ctx, p, p->n_layers, (size_t)s->n_tok, &s->seen, err));
    float *normed = s->after; /* free after the last layer */
    for (int32_t t = 0; t < s->n_tok; t++) {
        tn_forward_out_norm(s->c.m, s->a->recipe->kern, copy_of(s, 0) + (size_t)t * s->width, normed, 1);
        tn_capture_add(&s->seen, TN_SITE_LM_HEAD, normed, s->n_embd, 1);
    }
    return find_form(s, -1, TN_SITE_LM_HEAD, tn_program_linears(p, p->n_sites - 1), err);
}

/* kl[i] of copy i + 1, per token: of the groups and the embedding; then of the output layer. */
static tern_status divergences(const sensing *s, double *kl, tern_error *err) {
    head h = {0};
    tern_status st = open_head(s, &h, err);
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
    s->c = (tn_corpus){.kern = a->recipe->kern,
                       .pool = a->recipe->pool,
                       .src = a->recipe->src,
                       .m = a->m,
                       .ids = ids,
                       .n_tok = copies * (size_t)s->n_tok,
                       .window = s->window};
    TN_TRY(tn_corpus_open(&s->c, err));
    float *ones = s->after; /* free until the first layer */
    for (size_t j = 0; j < s->n_embd; j++) ones[j] = 1;
    for (int32_t t = 0; t < s->n_tok; t++)
        tn_round_embedding(a->recipe->kern, copy_of(s, embedding_copy(s)) + (size_t)t * s->width, ones,
                           (int32_t)s->n_embd, TN_SENSE_BITS, a->m->h.tied);
    size_t first = (size_t)embedding_copy(s) * (size_t)s->n_tok;
    for (size_t t = first; s->c.emb && t < first + (size_t)s->n_tok; t++) /* layers read it again */
        memcpy(s->c.emb + t * s->n_embd, s->c.x + t * s->width, s->n_embd * sizeof *s->c.emb);
    return TERN_OK;
}

/* The rest of cost: the output layer and the embedding. */
static tern_status table_costs(const sensing *s, const double *kl, float *cost, tern_error *err) {
    round_job j = head_job(s);
    j.cost = cost;
    TN_TRY(round_all(&j, err));
    const bool tied = j.role == TN_W_EMBD;
    double sum = 1e-300;
    double at_0 = 1 / tn_normal_error(TN_SENSE_BITS), embedding = fmax(kl[0], 0) * at_0 / j.n,
           output = fmax(kl[1], 0) * at_0;
    for (int32_t r = 0; r < j.n; r++) sum += (double)cost[r];
    for (int32_t r = 0; r < j.n; r++)
        cost[r] = (float)((double)cost[r] / sum * output + (tied ? embedding : 0));
    for (int32_t r = 0; !tied && r < j.n; r++) cost[j.n + r] = (float)embedding;
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
    if (st == TERN_OK) st = find_head_form(s, err);
    if (st == TERN_OK) st = divergences(s, kl, err);
    if (st == TERN_OK) st = table_costs(s, kl + s->n_groups, at, err);
    drop_forms(s);
    for (int l = 0; l < p->n_layers && st == TERN_OK; l++) {
        int32_t first, n = tn_program_layer_sites(p, l, &first), group = l / s->layers_per_group;
        double each =
            fmax(kl[group], 0) / tn_normal_error(TN_SENSE_BITS) / fmax(s->group_moved[group], 1e-300);
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
                 .recipe = *a->recipe,
                 .n_tok = (int32_t)n,
                 .window = (int32_t)window,
                 .n_embd = (size_t)a->m->h.n_embd,
                 .width = (size_t)tn_residual_width(&a->m->h)};
    s.recipe.bits = TN_SENSE_BITS;
    s.n_trial = (int32_t)((n / window + 1) / 2 * window);
    s.layers_per_group = (n_layers + MAX_GROUPS - 1) / MAX_GROUPS;
    s.n_groups = (n_layers + s.layers_per_group - 1) / s.layers_per_group;
    for (int32_t i = 0; i < a->m->program.n_sites; i++) {
        int32_t k = tn_program_linears(&a->m->program, i)->k;
        widest = k > widest ? k : widest;
    }
    int32_t *ids = tn_alloc(ctx, TN_MEM_OTHER, ((size_t)trial_copy(&s) + 1) * n, sizeof *ids);
    float *energy = tn_alloc(ctx, TN_MEM_OTHER, TN_N_SITES * (size_t)widest, sizeof *energy);
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
