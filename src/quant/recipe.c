#include "quant/recipe.h"

#include "kernels/unpack.h"
#include "quant/choose.h"
#include "quant/round.h"

#include <math.h>
#include <stdatomic.h>
#include <string.h>

enum {
    SAMPLE_ROWS = 256,
    SHARED_ROWS = 512,
    ROWS_PER_ITEM = 32,
    TILE = 16,
    EXPERT_ROWS =
        32, /* an expert with fewer rows is smoothed like the layer: its own choice would be random */
    EXPERT_SAMPLE = 64,
    LAYER_ROWS = 2048 /* rows that a layer's smoothing is chosen on, where experts have their own */
};

static const float DAMPING = 0.03f, TIED_DAMPING = 1.0f;

void tn_rounded_free(tn_ctx *ctx, tn_rounded *r) {
    tn_free(ctx, r->bits);
    tn_free(ctx, r->weightlets);
    tn_free(ctx, r->col_sum);
    tn_free(ctx, r->scale);
    *r = (tn_rounded){0};
}

tern_status tn_rounded_open(tn_ctx *ctx, int32_t n, int32_t k, const uint8_t *bits, bool with_codes,
                            tn_rounded *out, tern_error *err) {
    size_t rows = (size_t)n, pad = (rows + TILE - 1) / TILE * TILE;
    *out = (tn_rounded){0};
    out->bits = tn_calloc(ctx, TN_MEM_OTHER, tn_channel_bits_bytes(rows), 1);
    TN_FAIL_IF(!out->bits, err, TERN_E_MEMORY, "no memory for a linear's codes");
    for (size_t i = 0; i < rows; i++) tn_channel_bits_put(out->bits, i, bits[i]);
    out->n_bytes = tn_weightlets_bytes(out->bits, 0, rows, (size_t)k);
    if (with_codes) out->weightlets = tn_calloc(ctx, TN_MEM_OTHER, out->n_bytes, 1);
    out->col_sum = tn_calloc(ctx, TN_MEM_OTHER, pad, sizeof *out->col_sum);
    out->scale = tn_calloc(ctx, TN_MEM_OTHER, pad, sizeof *out->scale);
    TN_FAIL_IF((with_codes && !out->weightlets) || !out->col_sum || !out->scale, err, TERN_E_MEMORY,
               "no memory for a linear's codes");
    return TERN_OK;
}

void tn_recipe_codes_free(tn_ctx *ctx, tn_recipe_site *s) {
    for (int i = 0; i < TN_SITE_MAX_OPS; i++) {
        tn_free(ctx, s->ops[i].weightlets);
        s->ops[i].weightlets = NULL;
    }
}

void tn_recipe_site_free(tn_ctx *ctx, tn_recipe_site *s) {
    for (int i = 0; i < TN_SITE_MAX_OPS; i++) tn_rounded_free(ctx, &s->ops[i]);
    tn_free(ctx, s->smooth);
    *s = (tn_recipe_site){0};
}

/* Channels of o that read one channel of V share its scale. */
static tern_status tie_channels(const tn_recipe *r, tn_role absorber, int32_t k, int32_t **tied,
                                tern_error *err) {
    *tied = NULL;
    if (absorber != TN_W_V) return TERN_OK;
    *tied = tn_alloc(r->ctx, TN_MEM_OTHER, (size_t)k, sizeof **tied);
    TN_FAIL_IF(!*tied, err, TERN_E_MEMORY, "no memory to smooth");
    for (int32_t j = 0; j < k; j++) (*tied)[j] = tn_value_row(r->h, j);
    return TERN_OK;
}

/* Inputs of down are products and have long tails. Inputs of an output layer that is also the embedding
 * cannot be smoothed, and one outlier channel there costs more than all layers (tern-tiny at 8 bits: KL
 * .00053 of .0015, rotated .00011). Elsewhere rotations gain nothing once inputs are smoothed. */
static bool rotates(tn_site site) {
    return site == TN_SITE_DOWN || site == TN_SITE_EXPERTS_DOWN || site == TN_SITE_LM_HEAD;
}

/* Makes the choices for the inputs x of all the site's matrices (-1) or of one expert. x becomes the
 * values that are quantised. */
static tern_status choose_for(const tn_recipe *r, int layer, tn_site site, const tn_site_ops *ops,
                              int32_t expert, float *x, int32_t n_rows, tn_choice *c, tern_error *err) {
    const int32_t parts = expert < 0 ? 1 : ops->n_experts, most = expert < 0 ? SAMPLE_ROWS : EXPERT_SAMPLE,
                  total = ops->n_total / parts, step = (total + most - 1) / most,
                  i_site = tn_program_site_index(r->program, layer, site);
    int32_t n_w = 0, *tied = NULL;
    tn_role absorber = tn_program_absorber(r->program, i_site);
    size_t k = (size_t)ops->k;
    float *w = tn_alloc(r->ctx, TN_MEM_OTHER, (SAMPLE_ROWS + TN_SITE_MAX_OPS) * k, sizeof *w);
    tern_status st = w ? TERN_OK : tn_fail(err, TERN_E_MEMORY, "no memory for a sample of the weights");
    for (int32_t op = 0; op < ops->n_ops; op++) {
        const int32_t each = ops->n[op] / parts, first = expert < 0 ? 0 : expert * each;
        for (int32_t n = first; n < first + each && st == TERN_OK; n += step)
            st = tn_source_read(r->src, layer, ops->roles[op], n, n + 1, w + (size_t)n_w++ * k, err);
    }
    if (st == TERN_OK) st = tie_channels(r, absorber, ops->k, &tied, err);
    if (st == TERN_OK)
        st = tn_choose(r->ctx,
                       &(tn_choose_args){.kern = r->kern,
                                         .pool = r->pool,
                                         .x = x,
                                         .n_rows = n_rows,
                                         .k = ops->k,
                                         .w = w,
                                         .n_w = n_w,
                                         .w_share = (double)total / n_w,
                                         .bits = r->bits,
                                         .can_smooth = absorber != TN_W_N_ROLES ||
                                                       tn_program_divides(r->program, i_site),
                                         .tied = tied,
                                         .rotate = rotates(site) ? tn_hadamard_block(ops->k) : 0},
                       c, err);
    tn_free(r->ctx, tied);
    tn_free(r->ctx, w);
    return st;
}

tern_status tn_recipe_choose(const tn_recipe *r, int layer, tn_site site, const tn_site_ops *ops, float *x,
                             int32_t n_rows, tn_recipe_site *out, tern_error *err) {
    tn_choice c = {0};
    out->rotated = rotates(site) ? tn_hadamard_block(ops->k) : 0;
    tern_status st = choose_for(r, layer, site, ops, -1, x, n_rows, &c, err);
    out->clip = c.clip;
    out->alpha = c.alpha;
    out->smooth = c.smooth;
    return st;
}

typedef struct job {
    const tn_recipe *r;
    int layer;
    tn_role role;
    const tn_recipe_site *site;
    const tn_factor *f;
    const float *smooth; /* of the rows' inputs, or NULL */
    int32_t row0, row1;  /* row in the linear that it belongs to */
    const uint8_t *bits; /* of all its rows */
    tn_rounded *out;
    float *error; /* of all */
    atomic_bool failed;
    tern_error err; /* of the first thread that failed */
} job;

static int32_t sum_of(const int8_t *q, size_t k) {
    int32_t lane[16] = {0}, sum = 0;
    size_t i = 0;
    for (; i + 16 <= k; i += 16)
        for (int l = 0; l < 16; l++) lane[l] += q[i + (size_t)l];
    for (; i < k; i++) sum += q[i];
    for (int l = 0; l < 16; l++) sum += lane[l];
    return sum;
}

static void round_item(void *arg, int i_item, int i_thread) {
    (void)i_thread;
    job *j = arg;
    if (atomic_load(&j->failed)) return;
    int32_t n0 = j->row0 + i_item * ROWS_PER_ITEM,
            n1 = n0 + ROWS_PER_ITEM < j->row1 ? n0 + ROWS_PER_ITEM : j->row1;
    size_t k = (size_t)j->f->k, n_values = (size_t)(n1 - n0) * k;
    tn_ctx *ctx = j->r->ctx;
    float *w = tn_alloc(ctx, TN_MEM_OTHER, n_values, sizeof *w);
    float *scratch = tn_alloc(ctx, TN_MEM_OTHER, tn_round_scratch(j->f, n1 - n0), sizeof *scratch);
    int8_t *q = tn_alloc(ctx, TN_MEM_OTHER, n_values, 1);
    tern_error err;
    tern_status st = w && scratch && q ? tn_source_read(j->r->src, j->layer, j->role, n0, n1, w, &err)
                                       : tn_fail(&err, TERN_E_MEMORY, "no memory to round weights");
    if (st == TERN_OK) {
        for (int32_t n = 0; n < n1 - n0; n++) {
            float *row = w + (size_t)n * k;
            for (size_t i = 0; j->smooth && i < k; i++) row[i] *= j->smooth[i];
            if (j->site->rotated)
                tn_hadamard_wide(j->r->kern->hadamard_f32, row, k, (size_t)j->site->rotated);
        }
        tn_round_rows(j->f, j->r->kern, w, n1 - n0, j->bits + n0, j->r->rate, q, j->out->scale + n0,
                      j->error + n0, scratch);
        for (int32_t n = 0; n < n1 - n0; n++) {
            j->out->col_sum[n0 + n] = sum_of(q + (size_t)n * k, k);
        }
        tn_weightlets_pack(j->out->weightlets + tn_weightlets_bytes(j->out->bits, 0, (size_t)n0, k),
                           j->out->bits, q, (size_t)n0, (size_t)n1, k);
    }
    if (st != TERN_OK && !atomic_exchange(&j->failed, true)) j->err = err;
    tn_free(ctx, w);
    tn_free(ctx, scratch);
    tn_free(ctx, q);
}

/* Rounds rows row0 .. row1 - 1 of a linear with allocated memory, for the inputs of f, which were divided by
 * smooth. */
static tern_status round_rows(const tn_recipe *r, int layer, tn_role role, const tn_factor *f,
                              const float *smooth, int32_t row0, int32_t row1, const uint8_t *bits,
                              tn_recipe_site *site, tn_rounded *out, tern_error *err) {
    float *error = tn_calloc(r->ctx, TN_MEM_OTHER, (size_t)row1, sizeof *error);
    TN_FAIL_IF(!error, err, TERN_E_MEMORY, "no memory for a linear's codes");
    job j = {.r = r,
             .layer = layer,
             .role = role,
             .site = site,
             .f = f,
             .smooth = smooth,
             .row0 = row0,
             .row1 = row1,
             .bits = bits,
             .out = out,
             .error = error};
    tn_pool_for(r->pool, (row1 - row0 + ROWS_PER_ITEM - 1) / ROWS_PER_ITEM, round_item, &j);
    for (int32_t i = row0; i < row1; i++) site->error += (double)error[i];
    tn_free(r->ctx, error);
    if (!atomic_load(&j.failed)) return TERN_OK;
    if (err) *err = j.err;
    return j.err.code;
}

static tern_status round_linear(const tn_recipe *r, int layer, tn_role role, const tn_factor *f, int32_t n,
                                const uint8_t *bits, tn_recipe_site *site, tn_rounded *out, tern_error *err) {
    TN_TRY(tn_rounded_open(r->ctx, n, f->k, bits, true, out, err));
    return round_rows(r, layer, role, f, site->smooth, 0, n, bits, site, out, err);
}

/* ---- experts --------------------------------------------------------------------------------------- */

static bool reads(const tn_inputs *in, int32_t row, int32_t e) {
    for (int32_t i = 0; i < in->n_readers; i++)
        if (in->readers[row * in->n_readers + i] == e) return true;
    return false;
}

/* The inputs for which expert e is rounded: its own rows, plus some of all rows if it has few. Its Gram
 * matrix becomes w G(own) + (1 - w) G(all), w = own / (own + k / 4): at k / 4 own rows both weigh the
 * same. mix [n_rows][k] is memory for them. */
static int32_t mix_rows(const tn_inputs *in, int32_t k, int32_t e, float *mix) {
    int32_t n_own = 0, step = (in->n_rows + SHARED_ROWS - 1) / SHARED_ROWS,
            n_all = (in->n_rows + step - 1) / step;
    for (int32_t row = 0; row < in->n_rows; row++) n_own += reads(in, row, e);
    float w = (float)n_own / ((float)n_own + (float)k / 4), n = (float)(n_own + n_all),
          own = n_own ? sqrtf(w * n / (float)n_own) : 0, all = sqrtf((1 - w) * n / (float)n_all);
    for (int32_t row = 0; row < in->n_rows; row++) {
        const float *x = in->x + (size_t)row * (size_t)k;
        float by[2] = {reads(in, row, e) ? own : 0, row % step ? 0 : all};
        for (int i = 0; i < 2; i++) {
            for (int32_t c = 0; by[i] > 0 && c < k; c++) mix[c] = by[i] * x[c];
            mix += by[i] > 0 ? k : 0;
        }
    }
    return n_own + n_all;
}

/* Every step-th row of the inputs that expert e reads, or of all (-1); out [n][k]. */
static int32_t rows_of(const tn_inputs *in, int32_t k, int32_t e, int32_t step, float *out) {
    int32_t n = 0;
    for (int32_t row = 0; row < in->n_rows; row += step)
        if (e < 0 || reads(in, row, e))
            memcpy(out + (size_t)n++ * (size_t)k, in->x + (size_t)row * (size_t)k, (size_t)k * sizeof *out);
    return n;
}

/* Applies an expert's choice to its rows that were not used for choosing. */
static void transform(const tn_recipe *r, const tn_choice *c, int32_t rotated, size_t k, float *x,
                      int32_t n) {
    for (int32_t row = 0; row < n; row++, x += k) {
        for (size_t i = 0; c->smooth && i < k; i++) x[i] /= c->smooth[i];
        if (rotated) tn_hadamard_wide(r->kern->hadamard_f32, x, k, (size_t)rotated);
    }
}

/* Chooses for every expert on its own rows; an expert with few is smoothed and clipped like all rows together
 * (choices[n_experts]). The inputs become the values that are quantised, except for the site's one scale. */
static tern_status choose_each(const tn_recipe *r, int layer, tn_site site, const tn_site_ops *ops,
                               const tn_inputs *in, int32_t rotated, float *own, tn_choice *choices,
                               tern_error *err) {
    const size_t k = (size_t)ops->k;
    int32_t n = rows_of(in, ops->k, -1, (in->n_rows + LAYER_ROWS - 1) / LAYER_ROWS, own);
    TN_TRY(choose_for(r, layer, site, ops, -1, own, n, &choices[ops->n_experts], err));
    for (int32_t e = 0; e < ops->n_experts; e++) {
        n = rows_of(in, ops->k, e, 1, own);
        if (n < EXPERT_ROWS) transform(r, &choices[ops->n_experts], rotated, k, own, n);
        else TN_TRY(choose_for(r, layer, site, ops, e, own, n, &choices[e], err));
        for (int32_t row = 0, i = 0; row < in->n_rows; row++)
            if (reads(in, row, e)) memcpy(in->x + (size_t)row * k, own + (size_t)i++ * k, k * sizeof *own);
    }
    return TERN_OK;
}

/* A smoothing for each expert, if one expert reads an input and its up can hold the divisor. All share the
 * site's static scale, so the smoothing also evens out their clips, which is as good as a scale for each. */
static tern_status choose_experts(const tn_recipe *r, int layer, tn_site site, const tn_site_ops *ops,
                                  const tn_inputs *in, tn_recipe_site *out, tern_error *err) {
    const size_t k = (size_t)ops->k, n = (size_t)ops->n_experts;
    float *own = tn_alloc(r->ctx, TN_MEM_OTHER, (size_t)in->n_rows * k, sizeof *own);
    tn_choice *choices = tn_calloc(r->ctx, TN_MEM_OTHER, n + 1, sizeof *choices);
    out->rotated = rotates(site) ? tn_hadamard_block(ops->k) : 0;
    out->smooth = tn_alloc(r->ctx, TN_MEM_OTHER, n * k, sizeof *out->smooth);
    out->n_smooth = ops->n_experts;
    tern_status st = own && choices && out->smooth
                         ? choose_each(r, layer, site, ops, in, out->rotated, own, choices, err)
                         : tn_fail(err, TERN_E_MEMORY, "no memory to smooth the inputs of experts");
    for (size_t e = 0; e < n && st == TERN_OK; e++) {
        if (!(choices[e].clip > 0)) continue;
        out->clip = choices[e].clip > out->clip ? choices[e].clip : out->clip;
    }
    if (!(out->clip > 0) && st == TERN_OK) out->clip = choices[n].clip;
    for (size_t e = 0; e < n && st == TERN_OK; e++) {
        const tn_choice *c = choices[e].clip > 0 ? &choices[e] : &choices[n];
        const float by = c->clip / out->clip;
        out->alpha += c->alpha / (float)n;
        for (size_t i = 0; i < k; i++) out->smooth[e * k + i] = (c->smooth ? c->smooth[i] : 1) * by;
        for (int32_t row = 0; row < in->n_rows; row++)
            for (size_t i = 0; reads(in, row, (int32_t)e) && i < k; i++) in->x[(size_t)row * k + i] /= by;
    }
    for (size_t e = 0; choices && e <= n; e++) tn_free(r->ctx, choices[e].smooth);
    tn_free(r->ctx, choices);
    tn_free(r->ctx, own);
    return st;
}

/* All experts' linears, each expert rounded for its own inputs. */
static tern_status round_experts(const tn_recipe *r, int layer, const tn_site_ops *ops, const tn_inputs *in,
                                 const uint8_t *bits, tn_recipe_site *out, tern_error *err) {
    size_t room = ((size_t)in->n_rows + SHARED_ROWS) * (size_t)ops->k;
    const uint8_t *at = bits;
    for (int32_t op = 0; op < ops->n_ops; at += ops->n[op++])
        TN_TRY(tn_rounded_open(r->ctx, ops->n[op], ops->k, at, true, &out->ops[op], err));
    float *mix = tn_alloc(r->ctx, TN_MEM_OTHER, room, sizeof *mix);
    TN_FAIL_IF(!mix, err, TERN_E_MEMORY, "no memory for the inputs of experts");
    tern_status st = TERN_OK;
    for (int32_t e = 0; e < ops->n_experts && st == TERN_OK; e++) {
        tn_factor f;
        tn_stage_enter(r->clock, TN_STAGE_FACTOR);
        int32_t n_rows = mix_rows(in, ops->k, e, mix);
        st = tn_factor_make(r->ctx, r->pool, r->kern, mix, n_rows, ops->k, DAMPING, r->block_max, &f, err);
        if (st != TERN_OK) break;
        tn_stage_enter(r->clock, TN_STAGE_ROUND);
        at = bits;
        for (int32_t op = 0; op < ops->n_ops && st == TERN_OK; at += ops->n[op++]) {
            int32_t n = tn_site_op_n(ops, op);
            const float *smooth = tn_recipe_smooth(out, (int64_t)e * n, ops->n[op], ops->k);
            st = round_rows(r, layer, ops->roles[op], &f, smooth, e * n, (e + 1) * n, at, out, &out->ops[op],
                            err);
        }
        tn_factor_close(&f);
    }
    tn_free(r->ctx, mix);
    return st;
}

tern_status tn_recipe_site_make(const tn_recipe *r, int layer, tn_site site, const tn_site_ops *ops,
                                const tn_inputs *in, const uint8_t *bits, tn_recipe_site *out,
                                tern_error *err) {
    *out = (tn_recipe_site){0};
    tn_stage_enter(r->clock, TN_STAGE_CHOOSE);
    const tn_role absorber = tn_program_absorber(r->program, tn_program_site_index(r->program, layer, site));
    if (absorber == TN_W_UP_EXPS) TN_TRY(choose_experts(r, layer, site, ops, in, out, err));
    else TN_TRY(tn_recipe_choose(r, layer, site, ops, in->x, in->n_rows, out, err));
    if (ops->n_experts) return round_experts(r, layer, ops, in, bits, out, err);
    tn_factor f;
    tn_stage_enter(r->clock, TN_STAGE_FACTOR);
    /* Rows of a matrix that is also the embedding are looked up as well, so errors must not be moved far. */
    float damping = site == TN_SITE_LM_HEAD && ops->roles[0] == TN_W_EMBD ? TIED_DAMPING : DAMPING;
    TN_TRY(
        tn_factor_make(r->ctx, r->pool, r->kern, in->x, in->n_rows, ops->k, damping, r->block_max, &f, err));
    tn_stage_enter(r->clock, TN_STAGE_ROUND);
    tern_status st = TERN_OK;
    for (int32_t op = 0; op < ops->n_ops && st == TERN_OK; op++) {
        st = round_linear(r, layer, ops->roles[op], &f, ops->n[op], bits, out, &out->ops[op], err);
        bits += ops->n[op];
    }
    tn_factor_close(&f);
    return st;
}

tern_status tn_recipe_table_make(const tn_recipe *r, tn_role role, int32_t n, int32_t k, const uint8_t *bits,
                                 tn_rounded *out, tern_error *err) {
    const tn_factor none = {.ctx = r->ctx, .k = k};
    tn_recipe_site site = {0};
    *out = (tn_rounded){0};
    return round_linear(r, -1, role, &none, n, bits, &site, out, err);
}
