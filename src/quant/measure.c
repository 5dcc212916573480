/* quant/measure.c - the model over the calibration text: what every site's inputs look like, what errors cost;
 * with scheme gram a layer is rounded as soon as its inputs are known. */
#include "base/status.h"
#include "quant/allocate.h"
#include "quant/builtin_corpus.h"
#include "quant/packer.h"
#include "quant/sense.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

tern_status tn_pack_ids(packer *p, int32_t **ids, size_t *n, tern_error *err) {
    TN_FAIL_IF(!p->m->tokenizer, err, TERN_E_UNSUPPORTED,
               "the model has no tokenizer: it cannot be calibrated on text");
    const char *text = tn_builtin_corpus;
    char *file_text = NULL;
    size_t n_bytes = strlen(text);
    if (p->o->calib_path) {
        FILE *f = fopen(p->o->calib_path, "rb");
        TN_FAIL_IF(!f, err, TERN_E_IO, "%s: cannot read: %s", p->o->calib_path, strerror(errno));
        size_t cap = (size_t)p->o->calib_tokens * 16 + 1; /* enough text for the tokens wanted */
        file_text = malloc(cap);
        n_bytes = file_text ? fread(file_text, 1, cap - 1, f) : 0;
        int failed = ferror(f) ? errno : 0;
        fclose(f);
        TN_FAIL_IF(!file_text, err, TERN_E_MEMORY, "no memory for the calibration corpus");
        if (failed) {
            free(file_text);
            return tn_fail(err, TERN_E_IO, "%s: cannot read: %s", p->o->calib_path, strerror(failed));
        }
        file_text[n_bytes] = 0;
        while (n_bytes && ((unsigned char)file_text[n_bytes - 1] & 0xc0) == 0x80)
            n_bytes--; /* no half character at the end */
        text = file_text;
    }
    size_t cap = n_bytes + 16;
    *ids = tn_alloc(p->ctx, TN_MEM_OTHER, cap, sizeof **ids);
    tern_status st = *ids ? tn_tokenize(p->m->tokenizer, text, n_bytes, true, true, *ids, cap, n, err)
                          : tn_fail(err, TERN_E_MEMORY, "no memory for the calibration corpus");
    free(file_text);
    if (st != TERN_OK) return st;
    if (*n > (size_t)p->o->calib_tokens) *n = (size_t)p->o->calib_tokens;
    TN_FAIL_IF(*n < 64, err, TERN_E_INVALID, "the calibration corpus has %zu tokens, at least 64 are needed",
               *n);
    return TERN_OK;
}

/* The layer's inputs are measured, with edgeflow also behind smoothing; nothing is decided that other layers
 * have a say in. */
static tern_status calibrate_layer(packer *p, tn_corpus *corpus, int layer) {
    bool smooth = p->o->scheme == TN_SCHEME_EDGEFLOW;
    double share = (double)p->o->outlier_share;
    TN_TRY(tn_corpus_begin_layer(corpus, layer, p->err));
    tn_calibrate_layer(&p->cal, corpus, layer, share, tn_head_profile_observe, &p->heads, !smooth);
    tern_status st = TERN_OK;
    int32_t first, n = tn_program_layer_sites(&p->m->program, layer, &first);
    const tn_program_site *sites = p->m->program.sites;
    for (int32_t i = first; i < first + n && smooth && st == TERN_OK; i++)
        st = tn_plan_edgeflow(p, layer, sites[i].kind);
    if (smooth && st == TERN_OK) {
        const float *divide_by[TN_N_SITES] = {0};
        for (int32_t i = first; i < first + n; i++) divide_by[sites[i].kind] = p->plans[i].smooth;
        tn_calibrate_smoothed(&p->cal, corpus, layer, divide_by, share, true);
    }
    tn_corpus_end_layer(corpus, layer);
    return st;
}

typedef struct gram_pass {
    packer *p;
    tn_capture c;
} gram_pass;

static void capture_input(void *user, int layer, tn_site site, const float *x, size_t ldx, int32_t n_rows) {
    (void)layer;
    tn_capture_add(&((gram_pass *)user)->c, site, x, ldx, n_rows);
}

static void capture_qk(void *user, int layer, const float *q, const float *k, int32_t n_rows) {
    tn_head_profile_observe(&((gram_pass *)user)->p->heads, layer, q, k, n_rows);
}

/* One pass over the layer, kept: everything about its sites is decided from it, down to the codes. */
static tern_status gram_layer(packer *p, tn_corpus *corpus, int layer) {
    gram_pass g = {.p = p};
    const tn_program *prog = &p->m->program;
    const tn_recipe r = {
        .ctx = p->ctx, .pool = p->pool, .kern = &p->kern, .src = p->src, .h = &p->m->h, .bits = p->bits};
    TN_TRY(tn_capture_open(p->ctx, prog, layer, corpus->n_tok, &g.c, p->err));
    tern_status st = tn_corpus_begin_layer(corpus, layer, p->err);
    if (st == TERN_OK) {
        tn_forward_hooks hooks = {.site_input = capture_input, .qk = capture_qk, .user = &g};
        tn_corpus_pass(corpus, layer, &hooks, true);
    }
    tn_corpus_end_layer(corpus, layer);
    int32_t first, n = tn_program_layer_sites(prog, layer, &first);
    for (int32_t i = first; i < first + n && st == TERN_OK; i++) {
        tn_site kind = prog->sites[i].kind;
        const tn_site_ops *ops = tn_program_linears(prog, i);
        tn_recipe_site *made = &p->made[i];
        st = tn_recipe_site_make(&r, layer, kind, ops, g.c.x[kind], g.c.rows[kind],
                                 p->model_bits + p->n_model_bits, made, p->err);
        p->n_model_bits += (size_t)ops->n_total;
        p->plans[i].clip = made->clip;
        p->plans[i].smooth = made->smooth;
        p->plans[i].rotated = made->rotated;
    }
    tn_capture_close(&g.c);
    return st;
}

/* The output layer, whose inputs are the normed residuals, and the embedding. */
static tern_status gram_tables(packer *p, tn_corpus *corpus) {
    const tn_program *prog = &p->m->program;
    int32_t last = prog->n_sites - 1;
    const tn_site_ops *ops = tn_program_linears(prog, last);
    const tn_recipe r = {
        .ctx = p->ctx, .pool = p->pool, .kern = &p->kern, .src = p->src, .h = &p->m->h, .bits = p->bits};
    const uint8_t *bits = p->model_bits + p->n_model_bits;
    tn_recipe_site *made = &p->made[last];
    tn_capture c;
    TN_TRY(tn_capture_open(p->ctx, prog, prog->n_layers, corpus->n_tok, &c, p->err));
    size_t e = (size_t)ops->k, window = (size_t)corpus->window;
    float *normed = corpus->acts.buf[TN_BUF_NORMED];
    for (size_t at = 0; at < corpus->n_tok; at += window) {
        int32_t n = (int32_t)(corpus->n_tok - at < window ? corpus->n_tok - at : window);
        tn_forward_out_norm(p->m, corpus->kern, corpus->x + at * e, normed, n);
        tn_capture_add(&c, TN_SITE_LM_HEAD, normed, e, n);
    }
    tern_status st = tn_recipe_site_make(&r, -1, TN_SITE_LM_HEAD, ops, c.x[TN_SITE_LM_HEAD],
                                         c.rows[TN_SITE_LM_HEAD], bits, made, p->err);
    p->plans[last].clip = made->clip;
    if (st == TERN_OK && ops->roles[0] != TN_W_EMBD)
        st = tn_recipe_table_make(&r, TN_W_EMBD, ops->n[0], ops->k, bits + ops->n[0], &p->embedding, p->err);
    tn_capture_close(&c);
    return st;
}

static bool sensing(void *user, double fraction) {
    return tn_progress(((packer *)user)->ctx, "sense", fraction);
}

/* The average of p->bits. */
static tern_status hand_out(packer *p, const float *cost, const uint32_t *n_weights, size_t n) {
    TN_TRY(tn_allocate_bits_from(p->ctx, cost, n_weights, n, p->bits, 2, p->model_bits, p->err));
    double sum = 0, weights = 0, kl = 0;
    for (size_t i = 0; i < n; i++) {
        kl += (double)cost[i] * exp2(-2.0 * p->model_bits[i]);
        sum += (double)n_weights[i] * p->model_bits[i];
        weights += (double)n_weights[i];
    }
    p->report->bits = sum / weights;
    p->report->sensed_kl = kl;
    return TERN_OK;
}

/* The fewest bits, in quarters, whose loss is what was asked for. A part of that is left to the inputs' rounding,
 * which is not in the costs. */
static tern_status enough_bits(packer *p, const float *cost, const uint32_t *n_weights, size_t n) {
    const double weights_part = 0.6, asked = p->o->quality > 0 ? p->o->quality : TN_PACK_QUALITY;
    int lo = 4 * 3, hi = 4 * 8; /* what is asked for has hi bits, or nothing has */
    while (lo < hi) {
        int mid = (lo + hi) / 2;
        p->bits = mid / 4.0;
        TN_TRY(hand_out(p, cost, n_weights, n));
        if (p->report->sensed_kl <= weights_part * log1p(asked)) hi = mid;
        else lo = mid + 1;
    }
    p->bits = hi / 4.0;
    return hand_out(p, cost, n_weights, n);
}

/* Widths of all rows, the output layer's and the embedding's too, before the first of them is rounded. */
tern_status tn_pack_gram_bits(packer *p, const int32_t *ids, size_t n_ids) {
    size_t n = 0, at = 0;
    const tn_program *prog = &p->m->program;
    for (int32_t i = 0; i < prog->n_sites; i++) n += (size_t)tn_program_linears(prog, i)->n_total;
    if (!p->m->h.tied) n += (size_t)p->m->h.n_vocab;
    p->model_bits = tn_alloc(p->ctx, TN_MEM_OTHER, n, 1);
    p->made = tn_calloc(p->ctx, TN_MEM_OTHER, (size_t)prog->n_sites, sizeof *p->made);
    TN_FAIL_IF(!p->model_bits || !p->made, p->err, TERN_E_MEMORY, "no memory to allocate bits");
    memset(p->model_bits, (int)p->bits, n);
    p->report->bits = p->bits;
    if (p->allocation == TN_ALLOCATE_UNIFORM || p->bits == 8) return TERN_OK;
    float *cost = tn_alloc(p->ctx, TN_MEM_OTHER, n, sizeof *cost);
    uint32_t *n_weights = tn_alloc(p->ctx, TN_MEM_OTHER, n, sizeof *n_weights);
    tern_status st =
        cost && n_weights ? TERN_OK : tn_fail(p->err, TERN_E_MEMORY, "no memory to allocate bits");
    for (int32_t i = 0; i < prog->n_sites && st == TERN_OK; i++) {
        const tn_site_ops *ops = tn_program_linears(prog, i);
        for (int32_t r = 0; r < ops->n_total; r++) n_weights[at++] = (uint32_t)ops->k;
    }
    while (st == TERN_OK && at < n) n_weights[at++] = (uint32_t)p->m->h.n_embd;
    const tn_sense_args a = {.kern = &p->kern,
                             .pool = p->pool,
                             .src = p->src,
                             .m = p->m,
                             .ids = ids,
                             .n_ids = n_ids,
                             .progress = sensing,
                             .user = p};
    if (st == TERN_OK) st = tn_sense_measure(&a, cost, p->err);
    if (st == TERN_OK) st = p->o->bits ? hand_out(p, cost, n_weights, n) : enough_bits(p, cost, n_weights, n);
    tn_free(p->ctx, cost);
    tn_free(p->ctx, n_weights);
    return st;
}

tern_status tn_pack_calibrate(packer *p, const int32_t *ids, size_t n_ids, int32_t window) {
    enum { HEAD_TOKENS = 2048 }; /* enough for a mean of maxima */
    size_t n_sites = (size_t)p->m->program.n_sites;
    p->plans = tn_calloc(p->ctx, TN_MEM_OTHER, n_sites, sizeof *p->plans);
    TN_FAIL_IF(!p->plans, p->err, TERN_E_MEMORY, "no memory to plan %zu sites", n_sites);
    TN_TRY(tn_calibration_open(p->ctx, &p->m->program, &p->cal, p->err));
    TN_TRY(tn_head_profile_open(p->ctx, &p->m->h, HEAD_TOKENS, &p->heads, p->err));
    tn_corpus corpus = {.kern = &p->kern,
                        .pool = p->pool,
                        .src = p->src,
                        .m = p->m,
                        .ids = ids,
                        .n_tok = n_ids,
                        .window = window};
    tern_status st = tn_corpus_open(&corpus, p->err);
    for (int i = 0; i < p->m->h.n_layers && st == TERN_OK; i++) {
        st = p->made ? gram_layer(p, &corpus, i) : calibrate_layer(p, &corpus, i);
        if (st == TERN_OK && !tn_progress(p->ctx, "calibrate", (i + 1.0) / p->m->h.n_layers))
            st = tn_fail(p->err, TERN_E_CANCELLED, "calibration was cancelled");
    }
    if (st == TERN_OK && p->made) st = gram_tables(p, &corpus);
    else if (st == TERN_OK) tn_calibrate_lm_head(&p->cal, &corpus, (double)p->o->outlier_share);
    tn_corpus_close(&corpus);
    return st;
}

/* The whole model in floats, for as long as it takes. A process that is killed at it goes on where it was. */
tern_status tn_pack_importance(packer *p, const int32_t *ids, size_t n_ids, int32_t window) {
    tn_model *m = NULL;
    tern_status st = tn_model_load(p->ctx, p->pool, p->src, TN_FLOAT, &m, p->err);
    if (st == TERN_OK)
        st = tn_head_profile_importance(&p->heads, m, &p->kern, p->pool, ids,
                                        n_ids < (size_t)window ? (int32_t)n_ids : window, p->journal, p->err);
    tn_model_close(&m);
    return st;
}
