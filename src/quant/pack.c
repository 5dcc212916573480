/* quant/pack.c - calibrate, choose scales and outlier paths per site, quantise, write. */
#include "quant/pack.h"

#include "base/cpu.h"
#include "base/file.h"
#include "base/json.h"
#include "base/status.h"
#include "formats/package.h"
#include "kernels/unpack.h"
#include "npu/npu.h"
#include "quant/allocate.h"
#include "quant/builtin_corpus.h"
#include "quant/calibrate.h"
#include "quant/heads.h"
#include "quant/readback.h"
#include "quant/recipe.h"
#include "quant/sense.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

const char *tn_scheme_name(tn_scheme s) {
    static const char *const names[TN_N_SCHEMES] = {"llm-npu", "naive-w8a8", "edgeflow", "smoothquant",
                                                    "gram"};
    return names[s];
}

bool tn_allocation_parse(const char *name, tn_allocation *out) {
    static const char *const names[TN_N_ALLOCATIONS] = {"", "re", "uniform", "cmpq", "loss"};
    for (int i = 1; i < TN_N_ALLOCATIONS; i++) {
        if (strcmp(name, names[i])) continue;
        *out = (tn_allocation)i;
        return true;
    }
    return false;
}

void tn_pack_defaults(tn_pack_options *o) {
    *o = (tn_pack_options){.scheme = TN_SCHEME_EDGEFLOW,
                           .calib_tokens = 8192,
                           .calib_window = 512,
                           .prune_percent = 85,
                           .prune_error = 0.001f,
                           .outlier_share = 0.002f,
                           .hot_coverage = 0.8f,
                           .hot_max = 0.03f};
}

/* What is decided for one site before its weights are quantised. */
typedef struct site_plan {
    float clip;       /* largest magnitude the device sees */
    float importance; /* largest magnitude / outlier threshold */
    bool shadow, rotated;
    int32_t n_hot;
    int32_t *hot;  /* ascending */
    float *smooth; /* [k] weights' columns are multiplied by this, the norm's output divided; NULL: none */
} site_plan;

typedef struct packer {
    tn_ctx *ctx;
    const tn_pack_options *o;
    double bits; /* what the options mean */
    tn_allocation allocation;
    tn_pack_report *report;
    tn_attn_times attn_times;
    tn_source *src;
    tn_pool *pool;
    tn_kernels kern;
    tn_model *m;
    tn_calibration cal;
    tn_head_profile heads;
    char *journal;        /* of their importance, beside the package until that is there */
    tn_recipe_site *made; /* of scheme gram: what becomes of every site; as plans */
    site_plan *plans;     /* as tn_calibration's sites */
    tn_pkg_writer *w;
    uint8_t *model_bits; /* widths of all channels in the order of writing, given out together; NULL: tensor
                            by tensor */
    size_t n_model_bits; /* taken so far */
    /* large tensors of the model level wait for their place behind the layers */
    tn_pkg_record head[2];
    const void *head_data[2];
    int32_t n_head;
    tern_error *err;
} packer;

static const tn_npu_layout LAYOUT = {.id = TN_NPU_LAYOUT_16X4, .tile_n = 16, .tile_k = 4};

static site_plan *plan_of(const packer *p, int layer, tn_site s) {
    return &p->plans[tn_program_site_index(&p->m->program, layer, s)];
}

/* ---- calibration corpus -------------------------------------------------------------------------- */

static tern_status calibration_ids(packer *p, int32_t **ids, size_t *n, tern_error *err) {
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

/* ---- plan ---------------------------------------------------------------------------------------- */

static int by_count(const void *a, const void *b) {
    const uint64_t x = *(const uint64_t *)a,
                   y = *(const uint64_t *)b; /* count in the high half, channel in the low */
    return x > y ? -1 : x < y;
}

static int by_channel(const void *a, const void *b) { return *(const int32_t *)a - *(const int32_t *)b; }

static tern_status choose_hot(packer *p, site_plan *plan, const tn_site_stats *s) {
    uint64_t *order = tn_alloc(p->ctx, TN_MEM_OTHER, (size_t)s->k, sizeof *order);
    int32_t cap = (int32_t)ceilf(p->o->hot_max * (float)s->k);
    if (cap < 1) cap = 1;
    plan->hot = tn_alloc(p->ctx, TN_MEM_OTHER, (size_t)cap, sizeof *plan->hot);
    TN_FAIL_IF(!order || !plan->hot, p->err, TERN_E_MEMORY, "no memory to choose hot channels");
    for (int32_t j = 0; j < s->k; j++) order[j] = (uint64_t)s->channel_count[j] << 32 | (uint32_t)(s->k - j);
    qsort(order, (size_t)s->k, sizeof *order, by_count);
    uint64_t covered = 0;
    while (plan->n_hot < cap && (double)covered < (double)p->o->hot_coverage * (double)s->n_outliers &&
           order[plan->n_hot] >> 32) {
        covered += order[plan->n_hot] >> 32;
        plan->hot[plan->n_hot] = s->k - (int32_t)(uint32_t)order[plan->n_hot];
        plan->n_hot++;
    }
    qsort(plan->hot, (size_t)plan->n_hot, sizeof *plan->hot, by_channel);
    tn_free(p->ctx, order);
    p->report->n_hot += (uint64_t)plan->n_hot;
    p->report->n_channels += (uint64_t)s->k;
    p->report->n_outliers += s->n_outliers;
    p->report->n_values += s->n_values;
    p->report->hot_coverage += (double)covered; /* divided at the end */
    return TERN_OK;
}

static int by_importance(const void *a, const void *b) {
    const site_plan *x = *(site_plan *const *)a, *y = *(site_plan *const *)b;
    if (x->importance != y->importance) return x->importance < y->importance ? -1 : 1;
    return x < y ? -1 : x > y;
}

static tern_status make_plans(packer *p) {
    size_t n_sites = (size_t)p->m->program.n_sites, n = 0;
    site_plan **order = tn_alloc(p->ctx, TN_MEM_OTHER, n_sites, sizeof *order);
    TN_FAIL_IF(!order, p->err, TERN_E_MEMORY, "no memory to plan %zu sites", n_sites);
    for (size_t i = 0; i < n_sites; i++) {
        const tn_site_stats *s = &p->cal.sites[i];
        site_plan *plan = &p->plans[i];
        plan->importance = s->threshold > 0 ? s->max / s->threshold : 1;
        plan->clip = p->o->scheme == TN_SCHEME_LLM_NPU ? tn_stats_best_clip(s) : s->max;
        order[n++] = plan;
    }
    p->report->n_sites = (int32_t)n;
    tern_status st = TERN_OK;
    if (p->o->scheme == TN_SCHEME_LLM_NPU) {
        qsort(order, n, sizeof *order, by_importance);
        size_t n_pruned = (size_t)lround((double)n * (double)p->o->prune_percent / 100);
        for (size_t i = 0; i < n && st == TERN_OK; i++) {
            const tn_site_stats *s = &p->cal.sites[order[i] - p->plans];
            if (i < n_pruned && tn_stats_bulk_error(s, order[i]->clip) <= (double)p->o->prune_error) continue;
            order[i]->shadow = true;
            order[i]->clip = s->threshold;
            p->report->n_shadowed++;
            st = choose_hot(p, order[i], s);
        }
        if (p->report->n_outliers) p->report->hot_coverage /= (double)p->report->n_outliers;
    }
    tn_free(p->ctx, order);
    return st;
}

/* SmoothQuant (alpha 0.5): s_k = sqrt(max |X_k| / max |W_k|) for the sites behind a norm. */
static tern_status smooth_site(packer *p, int layer, tn_site site) {
    const tn_site_ops ops =
        *tn_program_linears(&p->m->program, tn_program_site_index(&p->m->program, layer, site));
    site_plan *plan = plan_of(p, layer, site);
    tn_site_stats *s = tn_calibration_site(&p->cal, layer, site);
    plan->smooth = tn_calloc(p->ctx, TN_MEM_OTHER, (size_t)ops.k, sizeof *plan->smooth);
    float *row = tn_alloc(p->ctx, TN_MEM_OTHER, (size_t)ops.k, sizeof *row);
    TN_FAIL_IF(!plan->smooth || !row, p->err, TERN_E_MEMORY, "no memory to smooth");
    tern_status st = TERN_OK;
    for (int32_t op = 0; op < ops.n_ops; op++) {
        for (int32_t n = 0; n < ops.n[op] && st == TERN_OK; n++) {
            st = tn_source_read(p->src, layer, ops.roles[op], n, n + 1, row, p->err);
            for (int32_t k = 0; k < ops.k; k++) plan->smooth[k] = fmaxf(plan->smooth[k], fabsf(row[k]));
        }
    }
    float clip = 0;
    for (int32_t k = 0; k < ops.k; k++) {
        float x = fmaxf(s->channel_max[k], 1e-5f), w = fmaxf(plan->smooth[k], 1e-5f);
        plan->smooth[k] = sqrtf(x / w);
        clip = fmaxf(clip, s->channel_max[k] / plan->smooth[k]);
    }
    plan->clip = clip;
    tn_free(p->ctx, row);
    return st;
}

/* ---- EdgeFlow: NPU-aware smoothing --------------------------------------------------------------- */

enum { N_ALPHA = 21, SAMPLE_ROWS = 256 };

const char tn_pack_unsmoothed[] = "the activation in front of down is not gated: no linear whose rows could "
                                  "take the inverse of its input scales";

/* Where the inverse of an input scale can be folded: a norm's weights, V's rows (o), up's rows (down: the
 * activation is linear in them). */
static bool can_smooth(const packer *p, tn_site site) {
    if (site == TN_SITE_QKV || site == TN_SITE_FFN) return !p->m->h.no_pre_norms;
    return site == TN_SITE_O || (site == TN_SITE_DOWN && p->m->h.gated);
}

/* Channel j of o reads V's channel of its group of heads: channels that share one must share its scale. */
static int32_t v_channel(const tn_hparams *h, int32_t j) {
    return j / h->d_head / (h->n_heads / h->n_kv_heads) * h->d_head + j % h->d_head;
}

/* Noise in a site's outputs from 8-bit inputs divided by t, at the clip that makes it least: rounding (one
 * step for all channels) and what the clip cuts off a channel, taken as Laplace-distributed with the
 * channel's mean square. column[k]: sum of the squares of channel k's weights. */
static double input_noise(const tn_site_stats *s, const float *t, const double *column, double largest) {
    enum { N_CLIPS = 24 };
    double best = INFINITY, clip = largest;
    for (int c = 0; c < N_CLIPS; c++, clip *= 0.8) {
        double rounding = clip * clip / (127.0 * 127.0 * 12), sum = 0;
        for (int32_t k = 0; k < s->k && sum < best; k++) {
            double square = s->channel_square[k] / ((double)s->n_tokens * (double)t[k] * (double)t[k]),
                   b = sqrt(square / 2);
            double cut = b > 0 && clip < (double)(s->channel_max[k] / t[k]) ? square * exp(-clip / b) : 0;
            sum += column[k] * (double)t[k] * (double)t[k] * (rounding + cut);
        }
        best = fmin(best, sum);
    }
    return best;
}

/* s_k = S_k^alpha, S the largest input of the channel, alpha from a grid: the least noise in the site's
 * outputs, that of the inputs and that of the weights (a step per row). Scaling outputs (beta = 1) is the
 * row's own dequantisation scale and changes no code. */
static tern_status edgeflow_site(packer *p, int layer, tn_site site) {
    const tn_site_ops ops =
        *tn_program_linears(&p->m->program, tn_program_site_index(&p->m->program, layer, site));
    site_plan *plan = plan_of(p, layer, site);
    tn_site_stats *s = tn_calibration_site(&p->cal, layer, site);
    size_t n_k = (size_t)ops.k;
    float *table = tn_alloc(p->ctx, TN_MEM_OTHER, N_ALPHA * n_k, sizeof *table),
          *row = tn_alloc(p->ctx, TN_MEM_OTHER, n_k, sizeof *row);
    float *top = tn_calloc(p->ctx, TN_MEM_OTHER, n_k, sizeof *top);
    double *column = tn_calloc(p->ctx, TN_MEM_OTHER, n_k, sizeof *column);
    tern_status st =
        table && row && top && column ? TERN_OK : tn_fail(p->err, TERN_E_MEMORY, "no memory to smooth");
    double noise[N_ALPHA] = {0}, largest[N_ALPHA] = {0}, energy[N_ALPHA] = {0};
    p->report->n_unsmoothed += !can_smooth(p, site);
    int n_alpha = st == TERN_OK ? can_smooth(p, site) ? N_ALPHA : 1 : 0, best = 0;
    for (size_t k = 0; k < n_k && st == TERN_OK; k++) {
        size_t at = site == TN_SITE_O ? (size_t)v_channel(&p->m->h, (int32_t)k) : k;
        top[at] = fmaxf(top[at], fmaxf(s->channel_max[k], s->max * 1e-4f + 1e-20f));
    }
    for (int a = 0; a < n_alpha; a++) {
        float *t = table + (size_t)a * n_k;
        for (size_t k = 0; k < n_k; k++) {
            t[k] = powf(top[site == TN_SITE_O ? (size_t)v_channel(&p->m->h, (int32_t)k) : k],
                        (float)a / (N_ALPHA - 1));
            largest[a] = fmax(largest[a], (double)(s->channel_max[k] / t[k]));
            energy[a] += s->channel_square[k] / ((double)s->n_tokens * (double)t[k] * (double)t[k]);
        }
    }
    double levels = exp2(p->bits);
    for (int32_t op = 0; op < ops.n_ops && st == TERN_OK; op++) {
        int32_t step = (ops.n[op] + SAMPLE_ROWS - 1) / SAMPLE_ROWS;
        for (int32_t n = 0; n < ops.n[op] && st == TERN_OK; n += step) {
            st = tn_source_read(p->src, layer, ops.roles[op], n, n + 1, row, p->err);
            for (size_t k = 0; k < n_k && st == TERN_OK; k++)
                column[k] += step * (double)row[k] * (double)row[k];
            for (int a = 0; a < n_alpha && st == TERN_OK; a++) {
                const float *t = table + (size_t)a * n_k;
                float max = 0;
                for (size_t k = 0; k < n_k; k++) max = fmaxf(max, fabsf(row[k] * t[k]));
                double w_step = 2 * (double)max / levels;
                noise[a] += step * w_step * w_step * energy[a] / 12;
            }
        }
    }
    for (int a = 0; a < n_alpha && st == TERN_OK; a++)
        noise[a] += input_noise(s, table + (size_t)a * n_k, column, largest[a]);
    for (int a = 1; a < n_alpha; a++) best = noise[a] < noise[best] ? a : best;
    if (st == TERN_OK && best) {
        plan->smooth = tn_alloc(p->ctx, TN_MEM_OTHER, n_k, sizeof *plan->smooth);
        if (!plan->smooth) st = tn_fail(p->err, TERN_E_MEMORY, "no memory to smooth");
        else memcpy(plan->smooth, table + (size_t)best * n_k, n_k * sizeof *table);
    }
    tn_free(p->ctx, table);
    tn_free(p->ctx, row);
    tn_free(p->ctx, top);
    tn_free(p->ctx, column);
    return st;
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
        st = edgeflow_site(p, layer, sites[i].kind);
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

static bool sensing(void *user, double fraction) {
    return tn_progress(((packer *)user)->ctx, "sense", fraction);
}

/* Widths of all rows of the layers' linears, before the first of them is rounded. */
static tern_status gram_bits(packer *p, const int32_t *ids, size_t n_ids) {
    size_t n = 0, at = 0;
    const tn_program *prog = &p->m->program;
    for (int32_t i = 0; i + 1 < prog->n_sites; i++) n += (size_t)tn_program_linears(prog, i)->n_total;
    p->model_bits = tn_alloc(p->ctx, TN_MEM_OTHER, n, 1);
    p->made = tn_calloc(p->ctx, TN_MEM_OTHER, (size_t)prog->n_sites, sizeof *p->made);
    TN_FAIL_IF(!p->model_bits || !p->made, p->err, TERN_E_MEMORY, "no memory to allocate bits");
    memset(p->model_bits, (int)p->bits, n);
    if (p->allocation == TN_ALLOCATE_UNIFORM || p->bits == 8) return TERN_OK;
    float *cost = tn_alloc(p->ctx, TN_MEM_OTHER, n, sizeof *cost);
    uint32_t *n_weights = tn_alloc(p->ctx, TN_MEM_OTHER, n, sizeof *n_weights);
    tern_status st =
        cost && n_weights ? TERN_OK : tn_fail(p->err, TERN_E_MEMORY, "no memory to allocate bits");
    for (int32_t i = 0; i + 1 < prog->n_sites && st == TERN_OK; i++) {
        const tn_site_ops *ops = tn_program_linears(prog, i);
        for (int32_t r = 0; r < ops->n_total; r++) n_weights[at++] = (uint32_t)ops->k;
    }
    const tn_sense_args a = {.kern = &p->kern,
                             .pool = p->pool,
                             .src = p->src,
                             .m = p->m,
                             .ids = ids,
                             .n_ids = n_ids,
                             .progress = sensing,
                             .user = p};
    if (st == TERN_OK) st = tn_sense_measure(&a, cost, p->err);
    if (st == TERN_OK)
        st = tn_allocate_bits_from(p->ctx, cost, n_weights, n, p->bits, 2, p->model_bits, p->err);
    tn_free(p->ctx, cost);
    tn_free(p->ctx, n_weights);
    return st;
}

static tern_status calibrate(packer *p, const int32_t *ids, size_t n_ids, int32_t window) {
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
    if (st == TERN_OK) tn_calibrate_lm_head(&p->cal, &corpus, (double)p->o->outlier_share);
    tn_corpus_close(&corpus);
    return st;
}

/* The clip that costs least: the largest value's scale would waste steps on a few. What it cuts off is made
 * good where the rest would suffer. */
static tern_status edgeflow_clips(packer *p) {
    for (int32_t i = 0; i < p->m->program.n_sites; i++) {
        site_plan *plan = &p->plans[i];
        const tn_site_stats *s = &p->cal.sites[i];
        plan->clip = tn_stats_best_clip(s);
        plan->shadow =
            p->o->shadow == TN_SHADOW_ON || (p->o->shadow == TN_SHADOW_AUTO &&
                                             tn_stats_bulk_error(s, plan->clip) > (double)p->o->prune_error);
        if (!plan->shadow) continue;
        plan->clip = s->threshold;
        p->report->n_shadowed++;
        TN_TRY(choose_hot(p, plan, s));
    }
    if (p->report->n_outliers) p->report->hot_coverage /= (double)p->report->n_outliers;
    return TERN_OK;
}

/* The whole model in floats, for as long as it takes. A process that is killed at it goes on where it was. */
static tern_status measure_importance(packer *p, const int32_t *ids, size_t n_ids, int32_t window) {
    tn_model *m = NULL;
    tern_status st = tn_model_load(p->ctx, p->pool, p->src, TN_FLOAT, &m, p->err);
    if (st == TERN_OK)
        st = tn_head_profile_importance(&p->heads, m, &p->kern, p->pool, ids,
                                        n_ids < (size_t)window ? (int32_t)n_ids : window, p->journal, p->err);
    tn_model_close(&m);
    return st;
}

/* ---- writing ------------------------------------------------------------------------------------- */

/* Memory of one section while it is put together; freed together. */
typedef struct hoard {
    tn_ctx *ctx;
    void *blocks[128];
    int n;
} hoard;

static void *keep(hoard *h, size_t n, size_t size) {
    void *p = h->n < 128 ? tn_calloc(h->ctx, TN_MEM_OTHER, n, size) : NULL;
    if (p) h->blocks[h->n++] = p;
    return p;
}

static void drop(hoard *h) {
    while (h->n) tn_free(h->ctx, h->blocks[--h->n]);
}

typedef struct quantise_job {
    packer *p;
    int layer;
    tn_role role;
    const float *smooth;
    int64_t n, k;
    int8_t *tiles;
    int32_t *col_sum;
    float *scale;
    float *peak;   /* edgeflow, first pass: max^2 over mean square of every row; NULL in the second */
    uint8_t *bits; /* edgeflow, second pass: packed widths and weightlets; NULL: 8 bits in tiles only */
    uint8_t *weightlets;
    atomic_bool failed;
    tern_error err; /* of the first thread that failed */
} quantise_job;

enum { ROWS_PER_ITEM = 64 };

/* Codes 2u - (2^B - 1) of a row; returns the scale with the least squared error among some that cut off the
 * largest weights. */
static float quantise_narrow(const float *w, size_t k, float max, unsigned bits, int8_t *q) {
    int top = (1 << bits) - 1;
    float best = 1, best_error = INFINITY;
    for (int pass = 0; pass <= 16 && max > 0; pass++) { /* the last one keeps the best */
        float scale = pass == 16 ? best
                                 : max / (float)(1 << bits) * (1 - (bits > 5 ? 0.01f : 0.045f) * (float)pass),
              inv = 0.5f / scale, error = 0;
        for (size_t i = 0; i < k; i++) {
            float u = fminf(fmaxf(nearbyintf(w[i] * inv + 0.5f * (float)top), 0), (float)top),
                  v = 2 * u - (float)top, d = w[i] - v * scale;
            q[i] = (int8_t)v;
            error += d * d;
        }
        if (error < best_error) {
            best_error = error;
            best = scale;
        }
    }
    if (!(max > 0)) {
        for (size_t i = 0; i < k; i++) q[i] = 1; /* no code is zero: the scale is */
        return 0;
    }
    if (bits > 1) return best;
    double sum = 0; /* one bit: the sign, and the mean magnitude */
    for (size_t i = 0; i < k; i++) sum += (double)fabsf(w[i]);
    return (float)(sum / (double)k);
}

/* Symmetric per output channel: scale = max |w| / 127, or fewer bits. */
static void quantise_rows(void *arg, int i_item, int i_thread) {
    (void)i_thread;
    quantise_job *j = arg;
    if (atomic_load(&j->failed)) return;
    int64_t n0 = (int64_t)i_item * ROWS_PER_ITEM, n1 = n0 + ROWS_PER_ITEM < j->n ? n0 + ROWS_PER_ITEM : j->n;
    size_t n_values = (size_t)(n1 - n0) * (size_t)j->k;
    float *w = tn_alloc(j->p->ctx, TN_MEM_OTHER, n_values, sizeof *w);
    int8_t *q = tn_alloc(j->p->ctx, TN_MEM_OTHER, n_values, 1);
    tern_error err;
    tern_status st = w && q ? tn_source_read(j->p->src, j->layer, j->role, n0, n1, w, &err)
                            : tn_fail(&err, TERN_E_MEMORY, "no memory to quantise");
    for (int64_t n = n0; n < n1 && st == TERN_OK; n++) {
        float *row = w + (n - n0) * j->k, max = 0;
        for (int64_t k = 0; k < j->k; k++) {
            if (j->smooth) row[k] *= j->smooth[k];
            max = fmaxf(max, fabsf(row[k]));
        }
        if (j->peak) {
            double sum = 0;
            for (int64_t k = 0; k < j->k; k++) sum += (double)row[k] * (double)row[k];
            j->peak[n] = sum > 0 ? (float)((double)max * (double)max * (double)j->k / sum) : 0;
            continue;
        }
        unsigned bits = j->bits ? tn_channel_bits_get(j->bits, (size_t)n) : 8;
        if (bits < 8) {
            j->scale[n] = quantise_narrow(row, (size_t)j->k, max, bits, q + (n - n0) * j->k);
            continue;
        }
        float scale = max > 0 ? max / 127 : 1, inv = 1 / scale;
        j->scale[n] = scale;
        for (int64_t k = 0; k < j->k; k++)
            q[(n - n0) * j->k + k] = (int8_t)fminf(fmaxf(nearbyintf(row[k] * inv), -127), 127);
    }
    if (st == TERN_OK && !j->peak) tn_npu_tiles_pack(&LAYOUT, j->tiles, j->col_sum, q, n0, n1, j->k);
    if (st == TERN_OK && j->bits) {
        tn_weightlets_pack(j->weightlets + tn_weightlets_bytes(j->bits, 0, (size_t)n0, (size_t)j->k), j->bits,
                           q, (size_t)n0, (size_t)n1, (size_t)j->k);
    }
    if (st != TERN_OK && !atomic_exchange(&j->failed, true)) j->err = err;
    tn_free(j->p->ctx, w);
    tn_free(j->p->ctx, q);
}

static tern_status quantise(packer *p, quantise_job *j, tern_error *err) {
    tn_pool_for(p->pool, (int)((j->n + ROWS_PER_ITEM - 1) / ROWS_PER_ITEM), quantise_rows, j);
    if (!atomic_load(&j->failed)) return TERN_OK;
    if (err) *err = j->err;
    return j->err.code;
}

static int by_peak(const void *a, const void *b) {
    const uint64_t x = *(const uint64_t *)a,
                   y = *(const uint64_t *)b; /* the bits of a float that is not negative, then the channel */
    return x < y ? -1 : x > y;
}

static tern_status allocate_cmpq(packer *p, const float *peak, size_t n, uint8_t *bits, tern_error *err) {
    uint64_t *order = tn_alloc(p->ctx, TN_MEM_OTHER, n, sizeof *order);
    TN_FAIL_IF(!order, err, TERN_E_MEMORY, "no memory to allocate bits");
    for (size_t i = 0; i < n; i++) {
        uint32_t u;
        memcpy(&u, &peak[i], sizeof u);
        order[i] = (uint64_t)u << 32 | i;
    }
    qsort(order, n, sizeof *order, by_peak);
    for (size_t i = 0; i < n; i++) {
        int b = (int)p->bits + (i < n / 4 ? -1 : i >= n - n / 4 ? 1 : 0);
        bits[(uint32_t)order[i]] = (uint8_t)(b < 1 ? 1 : b > 8 ? 8 : b);
    }
    tn_free(p->ctx, order);
    return TERN_OK;
}

/* Measure every row, hand out the bits, make room for the weightlets. */
static tern_status allocate(packer *p, hoard *h, quantise_job *j, tern_error *err) {
    uint8_t *bits = keep(h, (size_t)j->n, 1), *packed = keep(h, tn_channel_bits_bytes((size_t)j->n), 1);
    TN_FAIL_IF(!bits || !packed, err, TERN_E_MEMORY, "no memory to pack");
    if (p->allocation == TN_ALLOCATE_UNIFORM) {
        memset(bits, (int)p->bits, (size_t)j->n);
    } else if (p->model_bits) {
        memcpy(bits, p->model_bits + p->n_model_bits, (size_t)j->n);
        p->n_model_bits += (size_t)j->n;
    } else {
        j->peak = keep(h, (size_t)j->n, sizeof *j->peak);
        TN_FAIL_IF(!j->peak, err, TERN_E_MEMORY, "no memory to pack");
        TN_TRY(quantise(p, j, err));
        if (p->allocation == TN_ALLOCATE_CMPQ) TN_TRY(allocate_cmpq(p, j->peak, (size_t)j->n, bits, err));
        else TN_TRY(tn_allocate_bits(p->ctx, j->peak, NULL, (size_t)j->n, p->bits, bits, err));
        j->peak = NULL;
    }
    for (int64_t n = 0; n < j->n; n++) tn_channel_bits_put(packed, (size_t)n, bits[n]);
    j->weightlets = keep(h, tn_weightlets_bytes(packed, 0, (size_t)j->n, (size_t)j->k), 1);
    TN_FAIL_IF(!j->weightlets, err, TERN_E_MEMORY, "no memory to pack");
    j->bits = packed;
    return TERN_OK;
}

/* The channels of every layer's linears bid for the same bits: measure all of them first. */
static tern_status allocate_model(packer *p, tern_error *err) {
    const tn_program *prog = &p->m->program; /* sites as put_layer writes them */
    size_t n = 0;
    for (int32_t i = 0; i < prog->n_sites; i++)
        n += prog->sites[i].kind == TN_SITE_LM_HEAD ? 0 : (size_t)tn_program_linears(prog, i)->n_total;
    float *peak = tn_alloc(p->ctx, TN_MEM_OTHER, n, sizeof *peak);
    uint32_t *n_weights = tn_alloc(p->ctx, TN_MEM_OTHER, n, sizeof *n_weights);
    p->model_bits = tn_alloc(p->ctx, TN_MEM_OTHER, n, 1);
    tern_status st = peak && n_weights && p->model_bits
                         ? TERN_OK
                         : tn_fail(err, TERN_E_MEMORY, "no memory to allocate the bits of %zu channels", n);
    size_t at = 0;
    for (int layer = 0; layer < p->m->h.n_layers && st == TERN_OK; layer++) {
        int32_t first, n_sites = tn_program_layer_sites(prog, layer, &first);
        for (int32_t i = first; i < first + n_sites; i++) {
            const tn_site_ops ops = *tn_program_linears(prog, i);
            for (int32_t op = 0; op < ops.n_ops && st == TERN_OK; op++) {
                quantise_job j = {.p = p,
                                  .layer = layer,
                                  .role = ops.roles[op],
                                  .smooth = p->plans[i].smooth,
                                  .n = ops.n[op],
                                  .k = ops.k,
                                  .peak = peak + at};
                st = quantise(p, &j, err);
                for (int32_t c = 0; c < ops.n[op]; c++) n_weights[at++] = (uint32_t)ops.k;
            }
        }
        tn_source_release(p->src, layer);
        if (st == TERN_OK && !tn_progress(p->ctx, "allocate", (layer + 1.0) / p->m->h.n_layers))
            st = tn_fail(err, TERN_E_CANCELLED, "packing was cancelled");
    }
    if (st == TERN_OK) st = tn_allocate_bits(p->ctx, peak, n_weights, n, p->bits, p->model_bits, err);
    tn_free(p->ctx, peak);
    tn_free(p->ctx, n_weights);
    return st;
}

static tern_status add_vector(packer *p, hoard *h, int layer, tn_role role, const float *divide_by,
                              tern_error *err) {
    if (!tn_source_has(p->src, layer, role)) return TERN_OK;
    int64_t rows, cols;
    tn_role_shape(&p->m->h, role, &rows, &cols);
    float *v = keep(h, (size_t)cols, sizeof *v);
    TN_FAIL_IF(!v, err, TERN_E_MEMORY, "no memory to pack");
    TN_TRY(tn_source_read(p->src, layer, role, 0, 1, v, err));
    for (int64_t i = 0; divide_by && i < cols; i++) v[i] /= divide_by[i];
    return tn_pkg_add(p->w, &(tn_pkg_record){.role = role, .part = TN_PKG_F32, .n = 1, .k = cols}, v,
                      (uint64_t)cols * sizeof *v, err);
}

/* Tiles of the model level, written behind the layers; their hashes go in front, so that rows can be looked
 * up before all is read. */
static tern_status put_off(packer *p, hoard *h, const tn_pkg_record *r, const int8_t *tiles, uint64_t n_bytes,
                           tern_error *err) {
    int64_t n_tiles = (r->n + LAYOUT.tile_n - 1) / LAYOUT.tile_n;
    uint64_t tile_bytes = n_bytes / (uint64_t)n_tiles;
    uint32_t *hash = keep(h, (size_t)n_tiles, sizeof *hash);
    TN_FAIL_IF(!hash, err, TERN_E_MEMORY, "no memory to pack");
    for (int64_t i = 0; i < n_tiles; i++) hash[i] = XXH32(tiles + (uint64_t)i * tile_bytes, tile_bytes, 0);
    p->head[p->n_head] = *r;
    p->head[p->n_head].size_bytes = n_bytes;
    p->head_data[p->n_head++] = tiles;
    return tn_pkg_add(p->w, &(tn_pkg_record){.role = r->role, .part = TN_PKG_TILE_HASH, .n = n_tiles, .k = 1},
                      hash, (uint64_t)n_tiles * sizeof *hash, err);
}

/* What scheme gram made of a linear of a layer, or NULL. */
static const tn_rounded *made_linear(const packer *p, int layer, tn_role role) {
    int32_t first, n = layer < 0 || !p->made ? 0 : tn_program_layer_sites(&p->m->program, layer, &first);
    for (int32_t i = 0; i < n; i++) {
        const tn_site_ops *ops = tn_program_linears(&p->m->program, first + i);
        for (int32_t op = 0; op < ops->n_ops; op++) {
            if (ops->roles[op] == role) return &p->made[first + i].ops[op];
        }
    }
    return NULL;
}

/* One linear of a site: tiles, sums, scales, bias. rows (may be NULL) gets W by input channel at column
 * offset n_off of n_total. */
static tern_status add_linear(packer *p, hoard *h, int layer, tn_role role, tn_role bias,
                              const site_plan *plan, int64_t n, int64_t k, int8_t *rows, int64_t n_off,
                              int64_t n_total, tern_error *err) {
    int64_t n_pad = (n + LAYOUT.tile_n - 1) / LAYOUT.tile_n * LAYOUT.tile_n;
    uint64_t tile_bytes = tn_npu_tiles_bytes(&LAYOUT, n, k);
    quantise_job j = {.p = p,
                      .layer = layer,
                      .role = role,
                      .smooth = plan->smooth,
                      .n = n,
                      .k = k,
                      .tiles = keep(h, tile_bytes, 1),
                      .col_sum = keep(h, (size_t)n_pad, 4),
                      .scale = keep(h, (size_t)n_pad, 4)};
    TN_FAIL_IF(!j.tiles || !j.col_sum || !j.scale, err, TERN_E_MEMORY, "no memory to pack");
    const tn_rounded *made = made_linear(p, layer, role);
    if (made) {
        j.bits = made->bits;
        j.weightlets = made->weightlets;
        memcpy(j.scale, made->scale, (size_t)n_pad * 4);
        memcpy(j.col_sum, made->col_sum, (size_t)n_pad * 4);
    } else {
        if (layer >= 0 && (p->o->scheme == TN_SCHEME_EDGEFLOW || p->bits < 8))
            TN_TRY(allocate(p, h, &j, err));
        TN_TRY(quantise(p, &j, err));
    }
    /* what the next linear's inputs are divided by: V for o, up for down. The row's scale takes it, its codes
     * do not change. */
    const float *divide_by = NULL;
    bool folds = p->o->scheme == TN_SCHEME_EDGEFLOW || p->o->scheme == TN_SCHEME_GRAM;
    if (folds && role == TN_W_V) divide_by = plan_of(p, layer, TN_SITE_O)->smooth;
    if (folds && role == TN_W_UP) divide_by = plan_of(p, layer, TN_SITE_DOWN)->smooth;
    int32_t group = p->m->h.n_heads / p->m->h.n_kv_heads, d = p->m->h.d_head;
    for (int64_t i = 0; divide_by && i < n; i++)
        j.scale[i] /= divide_by[role == TN_W_V ? i / d * group * d + i % d : i];
    tn_pkg_record r = {.role = role,
                       .part = TN_PKG_TILES,
                       .n = n,
                       .k = k,
                       .act_scale = plan->clip / 127,
                       .flags =
                           (plan->shadow ? TN_PKG_HAS_SHADOW : 0u) | (plan->rotated ? TN_PKG_ROTATED : 0u)};
    if (j.bits) {
        TN_TRY(tn_pkg_add(p->w, &(tn_pkg_record){.role = role, .part = TN_PKG_CHANNEL_BITS, .n = n, .k = 1},
                          j.bits, tn_channel_bits_bytes((size_t)n), err));
        r.part = TN_PKG_WEIGHTLETS;
        TN_TRY(tn_pkg_add(p->w, &r, j.weightlets, tn_weightlets_bytes(j.bits, 0, (size_t)n, (size_t)k), err));
    } else if (layer >= 0) {
        TN_TRY(tn_pkg_add(p->w, &r, j.tiles, tile_bytes, err));
    } else {
        TN_TRY(put_off(p, h, &r, j.tiles, tile_bytes, err));
    }
    TN_TRY(tn_pkg_add(p->w, &(tn_pkg_record){.role = role, .part = TN_PKG_SCALE, .n = n, .k = 1}, j.scale,
                      (uint64_t)n_pad * 4, err));
    TN_TRY(tn_pkg_add(p->w, &(tn_pkg_record){.role = role, .part = TN_PKG_COL_SUM, .n = n, .k = 1}, j.col_sum,
                      (uint64_t)n_pad * 4, err));
    if (bias != TN_W_N_ROLES && tn_source_has(p->src, layer, bias)) {
        float *b = keep(h, (size_t)n_pad, sizeof *b);
        TN_FAIL_IF(!b, err, TERN_E_MEMORY, "no memory to pack");
        TN_TRY(tn_source_read(p->src, layer, bias, 0, 1, b, err));
        for (int64_t i = 0; divide_by && i < n; i++)
            b[i] /= divide_by[role == TN_W_V ? i / d * group * d + i % d : i];
        TN_TRY(tn_pkg_add(p->w, &(tn_pkg_record){.role = role, .part = TN_PKG_BIAS, .n = n, .k = 1}, b,
                          (uint64_t)n_pad * 4, err));
    }
    if (rows) {
        int8_t *row = keep(h, (size_t)k, 1);
        TN_FAIL_IF(!row, err, TERN_E_MEMORY, "no memory to pack");
        for (int64_t i = 0; i < n; i++) {
            tn_npu_tiles_row(&LAYOUT, j.tiles, i, k, row);
            for (int64_t c = 0; c < k; c++) rows[c * n_total + n_off + i] = row[c];
        }
    }
    return TERN_OK;
}

/* Every linear of a site, and for shadowed sites the hot channels with their rows; *rows_out gets all rows
 * [k][n_total]. */
static tern_status add_site(packer *p, hoard *h, int layer, tn_site site, int8_t **rows_out,
                            tern_error *err) {
    const int32_t i_site = tn_program_site_index(&p->m->program, layer, site);
    const tn_site_ops ops = *tn_program_linears(&p->m->program, i_site);
    *rows_out = NULL;
    const site_plan *plan = &p->plans[i_site];
    if (plan->shadow) {
        *rows_out = keep(h, (size_t)ops.k * (size_t)ops.n_total, 1);
        TN_FAIL_IF(!*rows_out, err, TERN_E_MEMORY, "no memory for outlier rows");
    }
    int64_t n_off = 0;
    for (int32_t op = 0; op < ops.n_ops; op++) {
        TN_TRY(add_linear(p, h, layer, ops.roles[op], ops.biases[op], plan, ops.n[op], ops.k, *rows_out,
                          n_off, ops.n_total, err));
        n_off += ops.n[op];
    }
    if (!plan->shadow) return TERN_OK;
    int8_t *hot_rows = keep(h, (size_t)plan->n_hot * (size_t)ops.n_total + 1, 1);
    TN_FAIL_IF(!hot_rows, err, TERN_E_MEMORY, "no memory for outlier rows");
    for (int32_t i = 0; i < plan->n_hot; i++) {
        memcpy(hot_rows + (size_t)i * (size_t)ops.n_total,
               *rows_out + (size_t)plan->hot[i] * (size_t)ops.n_total, (size_t)ops.n_total);
    }
    uint64_t hot_bytes = (uint64_t)plan->n_hot * (uint64_t)ops.n_total;
    p->report->hot_row_bytes += hot_bytes;
    p->report->all_row_bytes += (uint64_t)ops.k * (uint64_t)ops.n_total;
    tn_pkg_record hot = {.role = ops.roles[0], .part = TN_PKG_HOT, .n = plan->n_hot, .k = 1};
    TN_TRY(tn_pkg_add(p->w, &hot, plan->hot, (uint64_t)plan->n_hot * sizeof *plan->hot, err));
    uint32_t *hash = keep(h, (size_t)ops.k, sizeof *hash);
    TN_FAIL_IF(!hash, err, TERN_E_MEMORY, "no memory for outlier rows");
    for (int32_t i = 0; i < ops.k; i++)
        hash[i] = XXH32(*rows_out + (size_t)i * (size_t)ops.n_total, (size_t)ops.n_total, 0);
    TN_TRY(tn_pkg_add(p->w,
                      &(tn_pkg_record){.role = ops.roles[0], .part = TN_PKG_ROW_HASH, .n = ops.k, .k = 1},
                      hash, (uint64_t)ops.k * sizeof *hash, err));
    tn_pkg_record rows = {.role = ops.roles[0], .part = TN_PKG_HOT_ROWS, .n = plan->n_hot, .k = ops.n_total};
    return tn_pkg_add(p->w, &rows, hot_rows, hot_bytes, err);
}

/* rows[i]: of site first + i; NULL: none. */
static tern_status put_outlier_rows(packer *p, int layer, int8_t *const *rows, int32_t first, int32_t n,
                                    tern_error *err) {
    bool any = false;
    for (int32_t i = 0; i < n; i++) any = any || rows[i];
    if (!any) return TERN_OK;
    TN_TRY(tn_pkg_begin(p->w, TN_PKG_SHADOW, layer, err));
    for (int32_t i = 0; i < n; i++) {
        if (!rows[i]) continue;
        const tn_site_ops *ops = tn_program_linears(&p->m->program, first + i);
        tn_pkg_record r = {.role = ops->roles[0], .part = TN_PKG_ROWS, .n = ops->k, .k = ops->n_total};
        TN_TRY(tn_pkg_add(p->w, &r, rows[i], (uint64_t)ops->k * (uint64_t)ops->n_total, err));
    }
    return tn_pkg_end(p->w, err);
}

/* What a norm's weights are divided by: the smoothing of the site that reads it. */
static const float *smooth_behind(const packer *p, int layer, tn_role vector) {
    int32_t n;
    const tn_op *op = tn_program_layer(&p->m->program, layer, &n);
    for (int32_t i = 0; i < n; i++) {
        if (op[i].kind == TN_OP_NORM && op[i].feeds != TN_NO_SITE &&
            (op[i].weight == vector || op[i].bias == vector))
            return plan_of(p, layer, op[i].feeds)->smooth;
    }
    return NULL;
}

static tern_status put_layer(packer *p, hoard *h, int layer, tern_error *err) {
    int8_t *rows[TN_N_SITES] = {0};
    int32_t first, n = tn_program_layer_sites(&p->m->program, layer, &first);
    TN_TRY(tn_pkg_begin(p->w, TN_PKG_LAYER, layer, err));
    for (int i = 0; i < TN_N_LAYER_VECTORS; i++) {
        tn_role role = tn_layer_vectors[i];
        TN_TRY(add_vector(p, h, layer, role, smooth_behind(p, layer, role), err));
    }
    for (int32_t i = 0; i < n; i++)
        TN_TRY(add_site(p, h, layer, p->m->program.sites[first + i].kind, &rows[i], err));
    TN_TRY(tn_pkg_end(p->w, err));
    tn_source_release(p->src, layer);
    return put_outlier_rows(p, layer, rows, first, n, err);
}

/* Scales of the embedding (the head's when tied) and head, output norm, rope tables. *rows: outlier rows of
 * the head. */
static tern_status put_model(packer *p, hoard *h, int8_t **rows, tern_error *err) {
    const tn_hparams *hp = &p->m->h;
    TN_TRY(tn_pkg_begin(p->w, TN_PKG_MODEL, -1, err));
    if (!hp->tied) {
        site_plan plain = {.clip = 127};
        TN_TRY(
            add_linear(p, h, -1, TN_W_EMBD, TN_W_N_ROLES, &plain, hp->n_vocab, hp->n_embd, NULL, 0, 0, err));
    }
    TN_TRY(add_vector(p, h, -1, TN_W_OUT_NORM, NULL, err));
    TN_TRY(add_vector(p, h, -1, TN_W_OUT_NORM_B, NULL, err));
    TN_TRY(add_site(p, h, -1, TN_SITE_LM_HEAD, rows, err));
    /* the two rope tables under roles no tensor uses at this level */
    int64_t n = hp->n_rot / 2;
    TN_TRY(tn_pkg_add(p->w, &(tn_pkg_record){.role = TN_W_Q_NORM, .part = TN_PKG_F32, .n = 1, .k = n},
                      hp->inv_freq, (uint64_t)n * 4, err));
    TN_TRY(tn_pkg_add(p->w, &(tn_pkg_record){.role = TN_W_K_NORM, .part = TN_PKG_F32, .n = 1, .k = n},
                      hp->inv_freq_long, (uint64_t)n * 4, err));
    if (hp->local_rope) /* and the one of the layers with a window */
        TN_TRY(tn_pkg_add(p->w, &(tn_pkg_record){.role = TN_W_ATTN_NORM, .part = TN_PKG_F32, .n = 1, .k = n},
                          hp->inv_freq_local, (uint64_t)n * 4, err));
    return tn_pkg_end(p->w, err);
}

static tern_status put_head(packer *p, int8_t *rows, tern_error *err) {
    TN_TRY(tn_pkg_begin(p->w, TN_PKG_HEAD, -1, err));
    for (int32_t i = 0; i < p->n_head; i++)
        TN_TRY(tn_pkg_add(p->w, &p->head[i], p->head_data[i], p->head[i].size_bytes, err));
    TN_TRY(tn_pkg_end(p->w, err));
    return put_outlier_rows(p, -1, &rows, p->m->program.n_sites - 1, 1, err);
}

/* The graphs the engine loads by default, compiled for the device whose layout the package has: nothing is
 * compiled at start. */
static tern_status graphs_of_site(packer *p, tn_npu_device *dev, int32_t i_site, char **bytes,
                                  size_t *n_bytes, tn_pkg_graph **table, uint32_t *n, tern_error *err) {
    const tn_program *prog = &p->m->program;
    const tn_site_ops ops = *tn_program_linears(prog, i_site);
    tn_site site = prog->sites[i_site].kind;
    int layer = tn_program_site_layer(prog, i_site);
    for (int form = site == TN_SITE_LM_HEAD; form < 2; form++) {
        tn_npu_graph_desc d = {.kind = TN_NPU_LINEARS,
                               .m = form ? TN_PKG_DECODE_M : TN_PKG_CHUNK,
                               .k = ops.k,
                               .n_ops = ops.n_ops};
        for (int i = 0; i < ops.n_ops; i++) {
            bool has_bias = ops.biases[i] != TN_W_N_ROLES && tn_source_has(p->src, layer, ops.biases[i]);
            d.ops[i] = (tn_npu_op){.n = ops.n[i],
                                   .act_scale = p->plans[i_site].clip / 127,
                                   .has_bias = has_bias,
                                   .out = TN_NPU_OUT_F32};
        }
        tn_npu_graph *g;
        TN_TRY(tn_npu_compile(dev, &d, &g, err));
        size_t size = tn_npu_serialise(g, NULL, 0);
        char *more = tn_realloc(p->ctx, TN_MEM_OTHER, *bytes, *n_bytes + size, 1);
        if (more) {
            *bytes = more;
            tn_npu_serialise(g, more + *n_bytes, size);
        }
        tn_npu_graph_close(&g);
        TN_FAIL_IF(!more, err, TERN_E_MEMORY, "no memory for compiled graphs");
        tn_pkg_graph *t = tn_realloc(p->ctx, TN_MEM_OTHER, *table, *n + 1, sizeof *t);
        TN_FAIL_IF(!t, err, TERN_E_MEMORY, "no memory for compiled graphs");
        *table = t;
        t[(*n)++] = (tn_pkg_graph){.layer = layer,
                                   .site = site,
                                   .m = d.m,
                                   .off_bytes = (uint32_t)*n_bytes,
                                   .size_bytes = (uint32_t)size};
        *n_bytes += size;
    }
    return TERN_OK;
}

static tern_status put_graphs(packer *p, tern_error *err) {
    tn_npu_device *dev = NULL;
    char *bytes = NULL, *all = NULL;
    tn_pkg_graph *table = NULL;
    size_t n_bytes = 0;
    uint32_t n = 0;
    tern_status st = tn_npu_open(p->ctx, "host", NULL, &dev, err);
    for (int32_t i = 0; i < p->m->program.n_sites && st == TERN_OK; i++)
        st = graphs_of_site(p, dev, i, &bytes, &n_bytes, &table, &n, err);
    uint32_t front = 8 + n * (uint32_t)sizeof *table;
    all = st == TERN_OK ? tn_alloc(p->ctx, TN_MEM_OTHER, front + n_bytes, 1) : NULL;
    if (st == TERN_OK && !all) st = tn_fail(err, TERN_E_MEMORY, "no memory for compiled graphs");
    if (all) {
        memcpy(all, (uint32_t[2]){n, 0}, 8);
        for (uint32_t i = 0; i < n; i++) table[i].off_bytes += front;
        memcpy(all + 8, table, n * sizeof *table);
        memcpy(all + front, bytes, n_bytes);
        st = tn_pkg_put_section(p->w, TN_PKG_GRAPHS, -1, all, front + n_bytes, err);
    }
    tn_free(p->ctx, all);
    tn_free(p->ctx, table);
    tn_free(p->ctx, bytes);
    tn_npu_close(&dev);
    return st;
}

/* Bytes of the tables of contents at most: tensors take no more than four int8 copies of the weights (tiles,
 * rows, hot rows, rest). */
static uint64_t toc_bound(const tn_model *m) {
    const tn_hparams *h = &m->h;
    uint64_t total = 0;
    for (int32_t i = 0; i < m->program.n_sites; i++) {
        const tn_site_ops *ops = tn_program_linears(&m->program, i);
        total += (uint64_t)ops->k * ((uint64_t)ops->n_total + 64);
    }
    total += (uint64_t)h->n_vocab * (uint64_t)h->n_embd;
    return tn_pkg_toc_bound(128, 0) * (2 * (uint64_t)h->n_layers + 3) + tn_pkg_toc_bound(0, 4 * total);
}

/* The builders of base/json.h: NULL where there was no memory. */
static json_t *numbers(const float *x, size_t n) {
    json_t *a = json_array();
    for (size_t i = 0; i < n; i++) tn_json_append(&a, tn_json_real((double)x[i]));
    return a;
}

/* What sparse attention wants to know of the heads. */
static json_t *attention_meta(const packer *p) {
    const tn_head_profile *hp = &p->heads;
    json_t *weights = json_array();
    for (int32_t l = 0; l < hp->n_layers; l++)
        tn_json_append(&weights, numbers(hp->weight + (size_t)l * (size_t)hp->n_heads, (size_t)hp->n_heads));
    json_t *j = tn_json_pack("{s:o, s:o, s:o}", "scale_q", numbers(hp->scale_q, (size_t)hp->n_layers),
                             "scale_k", numbers(hp->scale_k, (size_t)hp->n_layers), "head_weight", weights);
    if (p->attn_times.n_widths) tn_json_set(&j, "times", tn_attn_times_json(&p->attn_times));
    return j;
}

static tern_status put_meta(packer *p, tern_error *err) {
    const tn_hparams *h = &p->m->h;
    json_t *hp = tn_json_pack("{s:s, s:s, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i}", "arch", h->arch, "name",
                              h->name, "n_layers", h->n_layers, "n_embd", h->n_embd, "n_heads", h->n_heads,
                              "n_kv_heads", h->n_kv_heads, "d_head", h->d_head, "n_ff", h->n_ff, "n_vocab",
                              h->n_vocab, "ctx_train", h->ctx_train);
    json_t *ops =
        tn_json_pack("{s:i, s:f, s:i, s:b, s:b, s:b, s:b, s:b, s:f, s:f, s:f, s:f, s:i, s:i}", "norm",
                     (int)h->norm, "norm_eps", (double)h->norm_eps, "act", (int)h->act, "gated", h->gated,
                     "parallel_block", h->parallel_block, "post_norms", h->post_norms, "qk_norm", h->qk_norm,
                     "tied", h->tied, "embd_scale", (double)h->embd_scale, "attn_scale",
                     (double)h->attn_scale, "attn_soft_cap", (double)h->attn_soft_cap, "logit_soft_cap",
                     (double)h->logit_soft_cap, "window", h->window, "window_pattern", h->window_pattern);
    /* Written where they say something: packages of older architectures stay the same bytes. */
    const struct {
        const char *key;
        double value, none;
    } numbers_of[] = {{"no_pre_norms", h->no_pre_norms, 0},
                      {"qk_norm_whole", h->qk_norm_whole, 0},
                      {"qk_norm_last", h->qk_norm_last, 0},
                      {"residual_scale", (double)h->residual_scale, 1},
                      {"logit_scale", (double)h->logit_scale, 1},
                      {"temp_scale", (double)h->temp_scale, 0},
                      {"temp_every", h->temp_every, 0},
                      {"no_rope_pattern", h->no_rope_pattern, 0},
                      {"local_rope", h->local_rope, 0}};
    for (size_t i = 0; i < sizeof numbers_of / sizeof numbers_of[0]; i++) {
        if (numbers_of[i].value != numbers_of[i].none)
            tn_json_set(&ops, numbers_of[i].key, tn_json_real(numbers_of[i].value));
    }
    json_t *rope = tn_json_pack("{s:i, s:f, s:i, s:f}", "n_rot", h->n_rot, "rope_base", h->rope_base,
                                "rope_orig_ctx", h->rope_orig_ctx, "rope_mscale", (double)h->rope_mscale);
    json_t *attention = attention_meta(p);
    json_t *meta =
        tn_json_pack("{s:s, s:s, s:i, s:s, s:I, s:I, s:f, s:o, s:o, s:o, s:o}", "format", "tern", "scheme",
                     tn_scheme_name(p->o->scheme), "layout", (int)LAYOUT.id, "source", p->m->description,
                     "n_params", (json_int_t)p->m->n_params, "calibration_tokens",
                     (json_int_t)p->report->n_calib_tokens, "prune_percent", (double)p->o->prune_percent,
                     "hparams", hp, "operators", ops, "rope", rope, "attention", attention);
    char *text;
    tern_status st = tn_json_text(meta, JSON_COMPACT | JSON_REAL_PRECISION(17), &text, err);
    json_decref(meta);
    TN_TRY(st);
    st = tn_pkg_put_section(p->w, TN_PKG_META, -1, text, strlen(text), err);
    free(text);
    return st;
}

static tern_status put_tokenizer(packer *p, tern_error *err) {
    uint8_t *blob = NULL;
    size_t n = 0;
    TN_TRY(tn_tokenizer_save(p->m->tokenizer, &blob, &n, err));
    tern_status st = tn_pkg_put_section(p->w, TN_PKG_TOKENIZER, -1, blob, n, err);
    tn_free(p->ctx, blob);
    return st;
}

static tern_status write_package(packer *p, const char *out, tern_error *err) {
    const int32_t n_layers = p->m->h.n_layers;
    TN_TRY(tn_pkg_create(p->ctx, out, 2 * (uint32_t)n_layers + 6, toc_bound(p->m), &p->w, err));
    TN_TRY(put_meta(p, err));
    hoard model = {.ctx = p->ctx}, h = {.ctx = p->ctx};
    int8_t *rows = NULL;
    tern_status st = put_model(p, &model, &rows, err);
    if (st == TERN_OK) st = put_graphs(p, err);
    if (st == TERN_OK) st = put_tokenizer(p, err);
    for (int i = 0; i < n_layers && st == TERN_OK; i++) {
        st = put_layer(p, &h, i, err);
        drop(&h);
        if (st == TERN_OK && !tn_progress(p->ctx, "pack", (i + 1.0) / n_layers))
            st = tn_fail(err, TERN_E_CANCELLED, "packing was cancelled");
    }
    drop(&h);
    if (st == TERN_OK) st = put_head(p, rows, err);
    drop(&model);
    if (st == TERN_OK) st = tn_pkg_seal(p->w, err);
    if (st == TERN_OK) st = tn_pack_read_back(p->ctx, p->w, p->m, err);
    if (st == TERN_OK) st = tn_pkg_finish(&p->w, err);
    return st;
}

static tern_status name_journal(packer *p, const char *out) {
    size_t cap = strlen(out) + sizeof ".heads";
    p->journal = tn_alloc(p->ctx, TN_MEM_OTHER, cap, 1);
    TN_FAIL_IF(!p->journal, p->err, TERN_E_MEMORY, "no memory for a file's name");
    snprintf(p->journal, cap, "%s.heads", out);
    return tn_outfile_may(p->journal, &tn_heads_journal_kind, p->err);
}

/* A package can take the place of another, never that of what it is made from. */
static tern_status target(const char *src, const char *out, tern_error *err) {
    struct stat from, to;
    TN_TRY(tn_outfile_may(out, &tn_pkg_kind_of_file, err));
    if (stat(src, &from) || stat(out, &to)) return TERN_OK;
    TN_FAIL_IF(from.st_dev == to.st_dev && from.st_ino == to.st_ino, err, TERN_E_INVALID,
               "%s: is what is to be packed", out);
    if (!S_ISDIR(from.st_mode)) return TERN_OK;
    char within[4096];
    const char *slash = strrchr(out, '/'), *name = slash ? slash + 1 : out, *dot = strrchr(name, '.');
    int n = snprintf(within, sizeof within, "%s/%s", src, name);
    bool there = n > 0 && (size_t)n < sizeof within && !stat(within, &from) && from.st_dev == to.st_dev &&
                 from.st_ino == to.st_ino;
    TN_FAIL_IF(there && (!dot || strcmp(dot, ".tern")), err, TERN_E_INVALID,
               "%s: is a file of the model that is to be packed", out);
    return TERN_OK;
}

static tern_status open_model(packer *p, const char *src, tern_error *err) {
    TN_TRY(tn_source_open(p->ctx, src, &p->src, err));
    const tn_hparams *h = tn_source_hparams(p->src);
    TN_FAIL_IF(
        h->n_experts, err, TERN_E_UNSUPPORTED,
        "%s: packages cannot hold a mixture of experts (architecture %s) yet; tern run opens the file itself",
        src, h->arch);
    TN_FAIL_IF(h->conv_len, err, TERN_E_UNSUPPORTED,
               "%s: packages cannot hold convolutions (architecture %s) yet; tern run opens the file itself",
               src, h->arch);
    return tn_model_outline(p->ctx, p->pool, p->src, &p->m, err);
}

tern_status tn_pack(tn_ctx *ctx, const char *src, const char *out, const tn_pack_options *opt,
                    tn_pack_report *report, tern_error *err) {
    tn_pack_report dummy;
    if (!report) report = &dummy;
    *report = (tn_pack_report){0};
    TN_FAIL_IF(!(opt->prune_percent >= 0 && opt->prune_percent <= 100), err, TERN_E_INVALID,
               "prune %g %%: want 0 to 100", (double)opt->prune_percent);
    TN_FAIL_IF(!(opt->prune_error >= 0), err, TERN_E_INVALID, "prune error %g: want 0 or more",
               (double)opt->prune_error);
    TN_FAIL_IF(!(opt->outlier_share >= 0 && opt->outlier_share < 0.5f), err, TERN_E_INVALID,
               "outlier share %g: want 0 to 0.5", (double)opt->outlier_share);
    TN_FAIL_IF(opt->calib_tokens < 64 || opt->calib_window < 16, err, TERN_E_INVALID,
               "calibration wants at least 64 tokens in windows of at least 16");
    bool gram = opt->scheme == TN_SCHEME_GRAM, edgeflow = gram || opt->scheme == TN_SCHEME_EDGEFLOW;
    packer p = {.ctx = ctx,
                .o = opt,
                .report = report,
                .err = err,
                .bits = opt->bits  ? opt->bits
                        : edgeflow ? 5
                                   : 8};
    p.allocation = opt->allocation ? opt->allocation
                   : gram          ? TN_ALLOCATE_LOSS
                   : edgeflow      ? TN_ALLOCATE_RE
                                   : TN_ALLOCATE_UNIFORM;
    bool fits = gram ? p.allocation == TN_ALLOCATE_LOSS || p.allocation == TN_ALLOCATE_UNIFORM
                     : p.allocation != TN_ALLOCATE_LOSS;
    TN_FAIL_IF(gram && opt->shadow == TN_SHADOW_ON, err, TERN_E_INVALID,
               "scheme gram has no outlier paths; edgeflow and llm-npu have");
    TN_FAIL_IF(!fits, err, TERN_E_INVALID, "%s",
               gram ? "scheme gram allocates bits by loss or uniform"
                    : "allocation by loss belongs to scheme gram");
    TN_FAIL_IF(p.allocation == TN_ALLOCATE_LOSS && p.bits < 2, err, TERN_E_INVALID,
               "%g bits by loss: want 2 to 8", p.bits);
    TN_FAIL_IF(!(p.bits >= 1 && p.bits <= 8), err, TERN_E_INVALID, "%g bits: want 1 to 8", opt->bits);
    TN_FAIL_IF(p.allocation != TN_ALLOCATE_RE && p.allocation != TN_ALLOCATE_LOSS && p.bits != floor(p.bits),
               err, TERN_E_INVALID, "%g bits for everyone: want a whole number", p.bits);
    TN_FAIL_IF(opt->bits_of_model && p.allocation != TN_ALLOCATE_RE, err, TERN_E_INVALID,
               "one budget for the whole model needs allocation by relative error (loss has no other)");
    TN_TRY(target(src, out, err)); /* now, not after the calibration */
    tn_kernels_init(&p.kern, tn_cpu_flags(NULL));
    int32_t *ids = NULL;
    size_t n_ids = 0;
    tern_status st = tn_pool_open(ctx, opt->n_threads ? opt->n_threads : tn_cpu_count(), &p.pool, err);
    if (st == TERN_OK) st = open_model(&p, src, err);
    if (st == TERN_OK) st = calibration_ids(&p, &ids, &n_ids, err);
    int32_t window = opt->calib_window;
    if (st == TERN_OK && window > p.m->h.ctx_train) window = p.m->h.ctx_train;
    report->n_calib_tokens = n_ids;
    if (st == TERN_OK && gram) st = gram_bits(&p, ids, n_ids);
    if (st == TERN_OK) st = calibrate(&p, ids, n_ids, window);
    if (st == TERN_OK && opt->head_importance) st = name_journal(&p, out);
    if (st == TERN_OK && opt->head_importance) st = measure_importance(&p, ids, n_ids, window);
    if (st == TERN_OK && !gram) st = make_plans(&p);
    if (st == TERN_OK && gram) {
        report->n_sites = p.m->program.n_sites;
        p.plans[report->n_sites - 1].clip = tn_stats_best_clip(&p.cal.sites[report->n_sites - 1]);
    }
    for (int32_t i = 0; st == TERN_OK && opt->scheme == TN_SCHEME_SMOOTHQUANT && i < p.m->program.n_sites;
         i++) {
        const tn_program_site *site = &p.m->program.sites[i];
        if (site->layer < p.m->h.n_layers && tn_program_source(&p.m->program, i)->kind == TN_OP_NORM)
            st = smooth_site(&p, site->layer, site->kind);
    }
    if (st == TERN_OK && opt->scheme == TN_SCHEME_EDGEFLOW) st = edgeflow_clips(&p);
    if (st == TERN_OK && opt->bits_of_model) st = allocate_model(&p, err);
    if (st == TERN_OK && opt->attn_times) {
        if (!tn_progress(ctx, "measure", 0)) st = tn_fail(err, TERN_E_CANCELLED, "packing was cancelled");
        if (st == TERN_OK) st = opt->attn_times(ctx, &p.m->h, &p.attn_times, err);
        if (st == TERN_OK && !tn_progress(ctx, "measure", 1))
            st = tn_fail(err, TERN_E_CANCELLED, "packing was cancelled");
    }
    if (st == TERN_OK) st = write_package(&p, out, err);
    if (st == TERN_OK && p.journal) unlink(p.journal);
    struct stat sb;
    if (st == TERN_OK && !stat(out, &sb)) report->package_bytes = (uint64_t)sb.st_size;
    tn_pkg_abort(&p.w);
    for (int32_t i = 0; p.plans && i < p.m->program.n_sites; i++) {
        tn_free(ctx, p.plans[i].hot);
        if (!p.made) tn_free(ctx, p.plans[i].smooth);
    }
    for (int32_t i = 0; p.made && i < p.m->program.n_sites; i++) tn_recipe_site_free(ctx, &p.made[i]);
    tn_free(ctx, p.made);
    tn_free(ctx, p.plans);
    tn_free(ctx, p.model_bits);
    tn_free(ctx, p.journal);
    if (p.cal.sites) tn_calibration_close(&p.cal);
    tn_head_profile_close(&p.heads);
    tn_free(ctx, ids);
    tn_model_close(&p.m);
    tn_source_close(&p.src);
    tn_pool_close(&p.pool);
    return st;
}
