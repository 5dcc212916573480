/* quant/by_gram.c - scheme gram: allocates the bits, rounds every layer as soon as its inputs are known, and
 * measures the loss on held-out text. Without a given number of bits it searches the fewest that lose no more
 * than the target, in as many passes as needed. */
#include "base/status.h"
#include "quant/allocate.h"
#include "quant/cache.h"
#include "quant/gram.h"
#include "quant/judge.h"
#include "quant/packer.h"
#include "quant/sense.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <xxhash.h>

enum {
    HELD_WINDOW = 128,
    HELD_SHARE = 6,           /* every sixth window is held out ... */
    HELD_MAX = 512,           /* ... until this many tokens are */
    STEPS = 4,                /* widths are tried in quarters of a bit on average */
    LARGE = 200 * 1000 * 1000 /* number of parameters from which a pass takes minutes */
};

typedef struct gram_pack {
    packer *p;
    tn_recipe r;
    const int32_t *chosen; /* tokens that decisions are made on */
    size_t n_chosen;
    tn_held held; /* tokens that they are judged on */
    size_t n_held;
    int32_t window;
    size_t n;            /* rows of all linears, including the output layer and the embedding */
    float *cost;         /* [n] nats a token are cost * tn_normal_error(bits); NULL: all get the same width */
    uint32_t *n_weights; /* [n] */
    tn_losses losses;    /* of the last pass ... */
    tn_loss loss;        /* ... and of the kind of text that loses most */
    uint64_t n_passes;   /* begun */
} gram_pack;

/* ---- one pass ---------------------------------------------------------------------------------------- */

typedef struct hook_user {
    packer *p;
    tn_capture c;
} hook_user;

static void capture_input(void *user, int layer, tn_site site, float *x, size_t ldx, int32_t n_rows) {
    (void)layer;
    tn_capture_add(&((hook_user *)user)->c, site, x, ldx, n_rows);
}

static void capture_route(void *user, int layer, const float *chosen) {
    (void)layer;
    tn_capture_route(&((hook_user *)user)->c, chosen);
}

static void capture_qk(void *user, int layer, const float *q, const float *k, int32_t n_rows) {
    tn_head_profile_observe(&((hook_user *)user)->p->heads, layer, q, k, n_rows);
}

static void plan_sites(packer *p, int32_t first, int32_t n) {
    for (int32_t i = first; i < first + n; i++)
        p->plans[i] = (site_plan){.clip = p->made[i].clip,
                                  .smooth = p->made[i].smooth,
                                  .n_smooth = p->made[i].n_smooth,
                                  .rotated = p->made[i].rotated};
}

/* One pass over the layer, captured: everything about its sites is decided from it, down to the codes. */
static tern_status make_layer(gram_pack *g, tn_corpus *corpus, tn_judge *judge, int layer) {
    packer *p = g->p;
    hook_user u = {.p = p};
    const tn_program *prog = &p->m->program;
    tn_stage_enter(&p->clock, TN_STAGE_FORWARD);
    TN_TRY(tn_capture_open(p->ctx, prog, layer, corpus->n_tok, &u.c, p->err));
    tern_status st = tn_corpus_begin_layer(corpus, layer, p->err);
    if (st == TERN_OK) {
        tn_forward_hooks hooks = {
            .site_input = capture_input, .routed = capture_route, .qk = capture_qk, .user = &u};
        tn_corpus_pass(corpus, layer, &hooks, true);
    }
    const uint8_t *bits = p->model_bits + p->n_model_bits;
    int32_t first, n = tn_program_layer_sites(prog, layer, &first);
    for (int32_t i = first; i < first + n && st == TERN_OK; i++) {
        tn_site kind = prog->sites[i].kind;
        const tn_site_ops *ops = tn_program_linears(prog, i);
        tn_recipe_site *made = &p->made[i];
        const tn_inputs in = tn_capture_inputs(&u.c, kind);
        st = tn_recipe_site_make(&g->r, layer, kind, ops, &in, bits, made, p->err);
        bits += ops->n_total;
    }
    tn_capture_close(&u.c);
    tn_stage_enter(&p->clock, TN_STAGE_JUDGE);
    if (st == TERN_OK) st = tn_judge_layer(judge, layer, &p->made[first], p->err);
    tn_corpus_end_layer(corpus, layer);
    plan_sites(p, first, n);
    return st;
}

/* The output layer, whose inputs are the normed residuals, and the embedding. */
static tern_status make_tables(gram_pack *g, tn_corpus *corpus) {
    packer *p = g->p;
    const tn_program *prog = &p->m->program;
    int32_t last = prog->n_sites - 1;
    const tn_site_ops *ops = tn_program_linears(prog, last);
    const uint8_t *bits = p->model_bits + p->n_model_bits;
    tn_recipe_site *made = &p->made[last];
    tn_capture c;
    TN_TRY(tn_capture_open(p->ctx, prog, prog->n_layers, corpus->n_tok, &c, p->err));
    size_t e = (size_t)ops->k, window = (size_t)corpus->window, width = (size_t)tn_residual_width(&p->m->h);
    float *normed = corpus->acts.buf[TN_BUF_NORMED];
    for (size_t at = 0; at < corpus->n_tok; at += window) {
        int32_t n = (int32_t)(corpus->n_tok - at < window ? corpus->n_tok - at : window);
        tn_forward_out_norm(p->m, corpus->kern, corpus->x + at * width, normed, n);
        tn_capture_add(&c, TN_SITE_LM_HEAD, normed, e, n);
    }
    const tn_inputs in = tn_capture_inputs(&c, TN_SITE_LM_HEAD);
    tern_status st = tn_recipe_site_make(&g->r, -1, TN_SITE_LM_HEAD, ops, &in, bits, made, p->err);
    plan_sites(p, last, 1);
    if (st == TERN_OK && ops->roles[0] != TN_W_EMBD)
        st = tn_recipe_table_make(&g->r, TN_W_EMBD, ops->n[0], ops->k, bits + ops->n[0], &p->embedding,
                                  p->err);
    tn_capture_close(&c);
    return st;
}

/* Everything made before is dropped. */
static void forget(packer *p) {
    for (int32_t i = 0; i < p->m->program.n_sites; i++) {
        tn_recipe_site_free(p->ctx, &p->made[i]);
        p->plans[i] = (site_plan){0};
    }
    tn_rounded_free(p->ctx, &p->embedding);
    tn_head_profile_close(&p->heads);
    p->n_model_bits = 0;
}

/* Sources and destinations of a record's values, for a layer or for the tables. */
static tn_partial_layer record_of(gram_pack *g, const tn_corpus *corpus, const tn_judge *judge, int layer) {
    packer *p = g->p;
    const tn_program *prog = &p->m->program;
    int32_t first = prog->n_sites - 1;
    if (layer < prog->n_layers) (void)tn_program_layer_sites(prog, layer, &first);
    tn_partial_layer l = {
        .program = prog, .layer = layer, .made = &p->made[first], .bits = p->model_bits + p->n_model_bits};
    if (layer == prog->n_layers) {
        l.embedding = p->m->h.tied ? NULL : &p->embedding;
        return l;
    }
    const size_t e = (size_t)tn_residual_width(&p->m->h);
    l.residuals[0] = corpus->x;
    l.n_residuals[0] = corpus->n_tok * e;
    l.residuals[1] = judge->c.x;
    l.n_residuals[1] = judge->c.n_tok * e;
    l.head[0] = (double)p->heads.scale_q[layer];
    l.head[1] = (double)p->heads.scale_k[layer];
    l.head[2] = (double)p->heads.seen[layer];
    l.head[3] = p->heads.n_windows[layer];
    return l;
}

/* The layer's share of the widths has been used. */
static void step_over(packer *p, int layer) {
    int32_t first, n = tn_program_layer_sites(&p->m->program, layer, &first);
    for (int32_t i = first; i < first + n; i++)
        p->n_model_bits += (size_t)tn_program_linears(&p->m->program, i)->n_total;
}

/* Reads the results of an earlier process for this pass. Returns the number of layers; *tables: the pass
 * is complete. */
static int restore(gram_pack *g, const tn_corpus *corpus, const tn_judge *judge, bool *tables) {
    packer *p = g->p;
    int layer = 0, n_layers = p->m->h.n_layers;
    *tables = false;
    for (; layer < n_layers; layer++) {
        tn_partial_layer l = record_of(g, corpus, judge, layer);
        if (!tn_partial_next_layer(&p->partial, &l)) break;
        p->heads.scale_q[layer] = (float)l.head[0];
        p->heads.scale_k[layer] = (float)l.head[1];
        p->heads.seen[layer] = (size_t)l.head[2];
        p->heads.n_windows[layer] = (int32_t)l.head[3];
        int32_t first, n = tn_program_layer_sites(&p->m->program, layer, &first);
        plan_sites(p, first, n);
        step_over(p, layer);
    }
    if (!layer) return 0;
    tn_partial_layer l = record_of(g, corpus, judge, layer - 1);
    if (!tn_partial_residuals(&p->partial, &l)) return -1;
    l = record_of(g, corpus, judge, n_layers);
    *tables = layer == n_layers && tn_partial_next_layer(&p->partial, &l);
    if (*tables) plan_sites(p, p->m->program.n_sites - 1, 1);
    p->report->n_resumed += layer;
    return layer;
}

/* Nothing is made yet. */
static tern_status begin_pass(gram_pack *g, tn_corpus *corpus, tn_judge *judge) {
    enum { HEAD_TOKENS = 2048 }; /* enough for a mean of maxima */
    packer *p = g->p;
    tn_judge_close(judge);
    tn_corpus_close(corpus);
    forget(p);
    tn_partial_begin_pass(&p->partial, g->n_passes);
    TN_TRY(tn_head_profile_open(p->ctx, &p->m->h, HEAD_TOKENS, &p->heads, p->err));
    *corpus = (tn_corpus){.kern = &p->kern,
                          .pool = p->pool,
                          .src = p->src,
                          .m = p->m,
                          .ids = g->chosen,
                          .n_tok = g->n_chosen,
                          .window = g->window};
    TN_TRY(tn_corpus_open(corpus, p->err));
    /* The last rows are the embedding's, or the output layer's where that serves as the embedding. */
    const uint8_t *embedding = p->model_bits + g->n - (size_t)p->m->h.n_vocab;
    return tn_judge_open(judge, &g->r, p->m, &g->held, embedding, p->err);
}

static tern_status make_rest(gram_pack *g, tn_corpus *corpus, tn_judge *judge, int first, bool tables) {
    packer *p = g->p;
    const int n_layers = p->m->h.n_layers;
    tern_status st = TERN_OK;
    for (int i = first; i < n_layers && st == TERN_OK; i++) {
        st = make_layer(g, corpus, judge, i);
        tn_partial_layer l = record_of(g, corpus, judge, i);
        if (st == TERN_OK) tn_partial_put_layer(&p->partial, &l);
        step_over(p, i);
        if (st == TERN_OK && !tn_progress(p->ctx, "calibrate", (i + 1.0) / n_layers))
            st = tn_fail(p->err, TERN_E_CANCELLED, "calibration was cancelled");
    }
    if (st == TERN_OK && !tables) {
        st = make_tables(g, corpus);
        tn_partial_layer l = record_of(g, corpus, judge, n_layers);
        if (st == TERN_OK) tn_partial_put_layer(&p->partial, &l);
    }
    tn_stage_enter(&p->clock, TN_STAGE_JUDGE);
    if (st == TERN_OK) st = tn_judge_end(judge, &p->made[p->m->program.n_sites - 1], &g->losses, p->err);
    if (st == TERN_OK) tn_partial_put_loss(&p->partial, &g->losses);
    return st;
}

/* Rounds the whole model with the current widths, reusing the results of an earlier process. */
static tern_status pass(gram_pack *g) {
    packer *p = g->p;
    const uint64_t n_ended = p->partial.head.n_losses;
    const bool ended = g->n_passes < n_ended;
    p->report->n_passes++;
    if (ended) g->losses = p->partial.head.losses[g->n_passes];
    g->loss = g->losses.of[tn_losses_worst(&g->losses)];
    if (g->n_passes + 1 < n_ended) {
        g->n_passes++;
        return TERN_OK; /* another pass came after it */
    }
    tn_corpus corpus = {0};
    tn_judge judge = {0};
    bool tables = false;
    tn_stage_enter(&p->clock, TN_STAGE_FORWARD);
    tern_status st = begin_pass(g, &corpus, &judge);
    int first = st == TERN_OK ? restore(g, &corpus, &judge, &tables) : 0;
    if (first < 0) { /* nothing can be made from damaged residuals */
        first = 0;
        st = begin_pass(g, &corpus, &judge);
    }
    if (st == TERN_OK && !(ended && tables)) {
        if (ended) tn_partial_drop_losses(&p->partial, g->n_passes);
        st = make_rest(g, &corpus, &judge, first, tables);
    }
    g->n_passes++;
    g->loss = g->losses.of[tn_losses_worst(&g->losses)];
    tn_judge_close(&judge);
    tn_corpus_close(&corpus);
    return st;
}

/* ---- bits -------------------------------------------------------------------------------------------- */

/* Widths of this average; *kl: their cost by the measured sensitivities. */
static tern_status hand_out(gram_pack *g, double bits, double *kl) {
    packer *p = g->p;
    p->bits = g->r.bits = bits;
    if (!g->cost) memset(p->model_bits, (int)bits, g->n);
    else TN_TRY(tn_allocate_bits_from(p->ctx, g->cost, g->n_weights, g->n, bits, 2, p->model_bits, p->err));
    double sum = 0, weights = 0;
    *kl = 0;
    for (size_t i = 0; i < g->n; i++) {
        *kl += g->cost ? (double)g->cost[i] * tn_normal_error(p->model_bits[i]) : 0;
        sum += (double)g->n_weights[i] * p->model_bits[i];
        weights += (double)g->n_weights[i];
    }
    p->report->bits = sum / weights;
    return TERN_OK;
}

static bool sensing(void *user, double fraction) {
    return tn_progress(((packer *)user)->ctx, "sense", fraction);
}

static tern_status sense(gram_pack *g) {
    packer *p = g->p;
    g->cost = tn_alloc(p->ctx, TN_MEM_OTHER, g->n, sizeof *g->cost);
    TN_FAIL_IF(!g->cost, p->err, TERN_E_MEMORY, "no memory to allocate bits");
    const tn_sense_args a = {
        .recipe = &g->r, .m = p->m, .ids = g->chosen, .n_ids = g->n_chosen, .progress = sensing, .user = p};
    if (tn_partial_costs(&p->partial, g->cost, g->n)) return TERN_OK;
    TN_TRY(tn_sense_measure(&a, g->cost, p->err));
    tn_partial_put_costs(&p->partial, g->cost, g->n);
    return TERN_OK;
}

static double wanted_kl(const packer *p) {
    return log1p(p->o->quality > 0 ? p->o->quality : TN_PACK_QUALITY);
}

/* The fewest bits, in quarters, with the loss asked for on held-out text. Passes over a large model are
 * expensive: there the first one that is good enough ends the search, and a second is the last. */
static tern_status enough_bits(gram_pack *g) {
    packer *p = g->p;
    const double asked = wanted_kl(p);
    bool large = p->m->n_params > LARGE, known = false; /* hi was tried and is good enough */
    int lo = 3 * STEPS, hi = 8 * STEPS, at = lo, left = large ? 2 : 6;
    /* The loss from rounding the inputs is unknown before a pass; a large model assumes some at once. */
    const double first = large ? asked / 2 : asked;
    for (double kl = INFINITY; kl > first && at<hi; at += kl> first)
        TN_TRY(hand_out(g, at / (double)STEPS, &kl));
    for (double kl;;) {
        TN_TRY(hand_out(g, at / (double)STEPS, &kl));
        TN_TRY(pass(g));
        bool good = g->loss.kl <= asked;
        left--;
        if (good) hi = at;
        else lo = at + 1;
        known = known || good;
        if (lo > hi || (lo == hi && at == hi)) return TERN_OK; /* lo > hi: 8 bits are not enough */
        if (large && (good || !left)) return TERN_OK;
        if (left <= 0 && at == hi) return TERN_OK;
        /* One more bit divides the weights' share of the loss by four. */
        int by = (int)ceil(STEPS * 0.5 * log2(fmax(g->loss.kl, 1e-9) / asked));
        at = good ? at + (by < 0 ? by : -1) : at + (by > 0 ? by : 1);
        at = at < lo ? lo : at > hi - known ? hi - known : at;
        if (lo == hi || left <= 1) at = hi;
    }
}

/* ---- life -------------------------------------------------------------------------------------------- */

static tern_status open_rows(gram_pack *g) {
    packer *p = g->p;
    const tn_program *prog = &p->m->program;
    size_t at = 0;
    for (int32_t i = 0; i < prog->n_sites; i++) g->n += (size_t)tn_program_linears(prog, i)->n_total;
    if (!p->m->h.tied) g->n += (size_t)p->m->h.n_vocab;
    p->model_bits = tn_alloc(p->ctx, TN_MEM_OTHER, g->n, 1);
    p->made = tn_calloc(p->ctx, TN_MEM_OTHER, (size_t)prog->n_sites, sizeof *p->made);
    p->plans = tn_calloc(p->ctx, TN_MEM_OTHER, (size_t)prog->n_sites, sizeof *p->plans);
    g->n_weights = tn_alloc(p->ctx, TN_MEM_OTHER, g->n, sizeof *g->n_weights);
    TN_FAIL_IF(!p->model_bits || !p->made || !p->plans || !g->n_weights, p->err, TERN_E_MEMORY,
               "no memory to allocate bits");
    for (int32_t i = 0; i < prog->n_sites; i++) {
        const tn_site_ops *ops = tn_program_linears(prog, i);
        for (int32_t r = 0; r < ops->n_total; r++) g->n_weights[at++] = (uint32_t)ops->k;
    }
    while (at < g->n) g->n_weights[at++] = (uint32_t)p->m->h.n_embd;
    return TERN_OK;
}

/* Held-out windows are spread over a kind's text; decisions are made on the others, joined. */
static void split_kind(const int32_t *ids, size_t n, size_t window, size_t most, int32_t *chosen,
                       size_t *n_chosen, int32_t *held, size_t *n_held) {
    const size_t wanted = n / window / HELD_SHARE < most / window ? n / window / HELD_SHARE : most / window;
    size_t kept = 0;
    for (size_t at = 0, i = 0; at < n; at += window, i++) {
        size_t some = n - at < window ? n - at : window,
               next = wanted ? kept * (n / window) / wanted + HELD_SHARE / 2 : 0;
        bool keep = some == window && kept < wanted && i >= next;
        memcpy(keep ? held + *n_held : chosen + *n_chosen, ids + at, some * sizeof *ids);
        *(keep ? n_held : n_chosen) += some;
        kept += keep;
    }
}

/* Kinds take turns, window by window, each spread over the whole: scales are chosen on the first half and
 * clips on the second (quant/choose.c), and both must see every kind. */
static void take_turns(int32_t window, const size_t n_of[TN_N_WORDS], const int32_t *by_kind, int32_t *out) {
    size_t taken[TN_N_WORDS] = {0}, n = 0, all = 0;
    for (int k = 0; k < TN_N_WORDS; k++) all += n_of[k];
    while (n < all) {
        int next = -1;
        double least = INFINITY;
        const int32_t *from = by_kind, *of_next = NULL;
        for (int k = 0; k < TN_N_WORDS; from += n_of[k++]) { /* the kind with the smallest share so far */
            double share = ((double)taken[k] + window / 2.0) / (double)n_of[k];
            if (taken[k] == n_of[k] || share >= least) continue;
            least = share;
            next = k;
            of_next = from;
        }
        size_t left = n_of[next] - taken[next], some = left < (size_t)window ? left : (size_t)window;
        memcpy(out + n, of_next + taken[next], some * sizeof *out);
        taken[next] += some;
        n += some;
    }
}

static tern_status split(gram_pack *g, const tn_calib_text *text, int32_t **chosen, int32_t **held) {
    tn_ctx *ctx = g->p->ctx;
    size_t window = HELD_WINDOW, most = HELD_MAX, n_of[TN_N_WORDS];
    for (int k = 0; k < TN_N_WORDS; k++) { /* every kind has enough windows to hold one out */
        size_t longest = text->n_of[k] / (2 * HELD_SHARE);
        if (text->n_of[k] >= 64 && longest < window) window = longest;
    }
    *chosen = tn_alloc(ctx, TN_MEM_OTHER, text->n, sizeof **chosen);
    *held = tn_alloc(ctx, TN_MEM_OTHER, text->n, sizeof **held);
    int32_t *by_kind = tn_alloc(ctx, TN_MEM_OTHER, text->n, sizeof *by_kind);
    tern_status st = *chosen && *held && by_kind
                         ? TERN_OK
                         : tn_fail(g->p->err, TERN_E_MEMORY, "no memory for the calibration corpus");
    if (g->p->m->n_params > LARGE) most /= 2;
    g->chosen = *chosen;
    g->held = (tn_held){.ids = *held, .window = (int32_t)window};
    for (size_t k = 0, at = 0; k < TN_N_WORDS && st == TERN_OK; at += text->n_of[k++]) {
        const size_t n_chosen = g->n_chosen, n_held = g->n_held;
        const bool judged = k != TN_WORDS_TEXT || !g->p->report->text_not_read;
        split_kind(text->ids + at, text->n_of[k], window, judged ? most : 0, by_kind, &g->n_chosen, *held,
                   &g->n_held);
        n_of[k] = g->n_chosen - n_chosen;
        g->held.n[k] = (int32_t)(g->n_held - n_held);
    }
    if (st == TERN_OK) take_turns(g->window, n_of, by_kind, *chosen);
    tn_free(ctx, by_kind);
    return st;
}

/* The file is identified by everything that the package's bytes depend on. */
static tern_status open_partial(gram_pack *g, const tn_calib_text *t) {
    packer *p = g->p;
    const tn_pack_options *o = p->o;
    char key[TN_CACHE_KEY], text[256];
    TN_TRY(tn_cache_key(p->ctx, NULL, p->source_path, TN_CONTENT_READ, key, p->err));
    int n = snprintf(text, sizeof text, "%s %s allocation %d window %d options %016" PRIx64,
                     TERN_VERSION_STRING, key, (int)p->allocation, g->window, tn_pack_options_identity(o));
    const uint64_t id[2] = {XXH3_64bits(text, (size_t)n), XXH3_64bits(t->ids, t->n * sizeof *t->ids)};
    size_t n_residuals = (g->n_chosen + 2 * g->n_held) * (size_t)tn_residual_width(&p->m->h);
    return tn_partial_open(&p->partial, p->ctx, p->partial_path, id, &p->m->program, g->n, n_residuals,
                           p->err);
}

tern_status tn_pack_gram(packer *p, const tn_calib_text *words, int32_t window) {
    gram_pack g = {.p = p, .window = window};
    g.r = (tn_recipe){.ctx = p->ctx,
                      .pool = p->pool,
                      .kern = &p->kern,
                      .src = p->src,
                      .h = &p->m->h,
                      .program = &p->m->program,
                      .block_max = p->o->quick ? TN_GRAM_BLOCK_QUICK : TN_GRAM_BLOCK_MAX,
                      .rate = p->o->compress ? p->o->compress_rate : 0,
                      .clock = &p->clock};
    int32_t *chosen = NULL, *held = NULL;
    double kl;
    tern_status st = split(&g, words, &chosen, &held);
    if (st == TERN_OK) st = open_rows(&g);
    if (st == TERN_OK) st = open_partial(&g, words);
    bool same = p->allocation == TN_ALLOCATE_UNIFORM || p->o->bits == 8;
    tn_stage_enter(&p->clock, TN_STAGE_SENSE);
    if (st == TERN_OK && !same) st = sense(&g);
    if (st == TERN_OK && p->o->bits == 0 && !same) {
        st = enough_bits(&g);
        p->report->not_enough = g.loss.kl > wanted_kl(p);
    } else {
        if (st == TERN_OK) st = hand_out(&g, p->bits, &kl);
        if (st == TERN_OK) st = pass(&g);
    }
    p->report->n_calib_tokens = g.n_chosen;
    p->report->worst = tn_losses_worst(&g.losses);
    for (int k = 0; k < TN_N_WORDS; k++) {
        const tn_loss *l = &g.losses.of[k];
        p->report->by_words[k] = (struct tn_pack_loss){l->kl, l->stderr_, (uint64_t)l->n_tok};
    }
    p->report->n_held_tokens = (uint64_t)g.loss.n_tok;
    p->report->kl = g.loss.kl;
    p->report->kl_stderr = g.loss.stderr_;
    tn_free(p->ctx, g.cost);
    tn_free(p->ctx, g.n_weights);
    tn_free(p->ctx, chosen);
    tn_free(p->ctx, held);
    return st;
}
