/* What packing decides, from statistics made by hand, so that the answers are known: who keeps an outlier
 * path, which channels are hot, where a site clips, which alpha smooths, who gets how many bits, what the
 * heads weigh. */
#include "base/cpu.h"
#include "base/half.h"
#include "base/rng.h"
#include "lab/synth.h"
#include "quant/choose.h"
#include "quant/packer.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

enum { N_SITES = 20, K = 100 };

static tn_ctx ctx;
static tn_kernels kern;
static tn_pool *pool;
static char gguf[256], package[256];

static int setup(void **state) {
    (void)state;
    tn_ctx_init(&ctx, NULL);
    tn_kernels_init(&kern, tn_cpu_flags(NULL));
    snprintf(gguf, sizeof gguf, TN_BINARY_DIR "/decisions-%ld.gguf", (long)getpid());
    snprintf(package, sizeof package, TN_BINARY_DIR "/decisions-%ld.tern", (long)getpid());
    return tn_pool_open(&ctx, 2, &pool, NULL) == TERN_OK &&
                   tn_synth(&ctx, pool, "tiny-qwen2", gguf, 7, TN_F32, NULL) == TERN_OK
               ? 0
               : -1;
}

static int teardown(void **state) {
    (void)state;
    tn_pool_close(&pool);
    unlink(gguf);
    unlink(package);
    return 0;
}

/* ---- sites without a model ----------------------------------------------------------------------------- */

typedef struct sites {
    packer p;
    tn_model m;
    tn_pack_options o;
    tn_pack_report report;
    tn_site_stats stats[N_SITES];
    site_plan plans[N_SITES];
    uint64_t hist[N_SITES][TN_HIST_BINS];
    uint32_t count[N_SITES][K];
    tern_error err;
} sites;

static void add_values(tn_site_stats *s, float x, uint64_t n) {
    s->hist[tn_f32_bits(x) >> TN_HIST_SHIFT] += n;
    s->n_values += n;
    s->max = x > s->max ? x : s->max;
}

/* Every site has a million values between 0.5 and 1 and one at max[i]; the threshold is 1. */
static sites *sites_open(const float *max) {
    sites *x = calloc(1, sizeof *x);
    tn_pack_defaults(&x->o);
    x->o.scheme = TN_SCHEME_LLM_NPU;
    x->o.prune_error = 1e9f;
    x->m.program.n_sites = N_SITES;
    for (int i = 0; i < N_SITES; i++) {
        tn_site_stats *s = &x->stats[i];
        *s = (tn_site_stats){
            .k = K, .n_tokens = 1000, .threshold = 1, .hist = x->hist[i], .channel_count = x->count[i]};
        for (int v = 0; v < 100; v++) add_values(s, 0.5f + 0.005f * (float)v, 10000);
        add_values(s, max[i], 1);
    }
    x->p = (packer){
        .ctx = &ctx, .o = &x->o, .report = &x->report, .m = &x->m, .plans = x->plans, .err = &x->err};
    x->p.cal = (tn_calibration){.ctx = &ctx, .program = &x->m.program, .sites = x->stats};
    return x;
}

static void sites_close(sites *x) {
    for (int i = 0; i < N_SITES; i++) tn_free(&ctx, x->plans[i].hot);
    free(x);
}

/* The importance of a site is its largest value over its threshold: of twenty, pruning 85 % leaves the
 * three with the largest. */
static void the_least_important_are_pruned(void **state) {
    (void)state;
    float max[N_SITES];
    for (int i = 0; i < N_SITES; i++) max[i] = 2 + (float)(i * 7 % N_SITES);
    sites *x = sites_open(max);
    x->stats[4].threshold = 100; /* the largest value of all, and no outlier */
    add_values(&x->stats[4], 99, 1);
    assert_int_equal(tn_plan_sites(&x->p), TERN_OK);
    for (int i = 0; i < N_SITES; i++) {
        float ratio = x->stats[i].max / x->stats[i].threshold;
        int n_above = 0;
        for (int j = 0; j < N_SITES; j++) n_above += x->stats[j].max / x->stats[j].threshold > ratio;
        assert_true(fabsf(x->plans[i].importance - ratio) < 1e-6f * ratio);
        assert_int_equal(x->plans[i].outliers, n_above < 3);
        if (x->plans[i].outliers) assert_true(x->plans[i].clip == x->stats[i].threshold);
    }
    assert_int_equal(x->report.n_outlier_sites, 3);
    assert_int_equal(x->report.n_sites, N_SITES);
    sites_close(x);
}

/* However unimportant a site, it keeps its path where the clip would cost its other values more than was
 * allowed. */
static void the_error_of_pruning_is_bounded(void **state) {
    (void)state;
    float max[N_SITES];
    for (int i = 0; i < N_SITES; i++) max[i] = 1.5f;
    sites *x = sites_open(max);
    x->o.prune_percent = 100;
    x->o.prune_error = 0.001f;
    /* 20,000 outliers of 1000 pull the clip up until the values below 1 are lost */
    add_values(&x->stats[6], 1000, 20000);
    assert_int_equal(tn_plan_sites(&x->p), TERN_OK);
    for (int i = 0; i < N_SITES; i++) assert_int_equal(x->plans[i].outliers, i == 6);
    assert_true(x->plans[6].clip == 1);
    sites_close(x);
    x = sites_open(max);
    x->o.prune_percent = 100;
    add_values(&x->stats[6], 1000, 20000);
    assert_int_equal(tn_plan_sites(&x->p), TERN_OK); /* without a bound all are */
    assert_int_equal(x->report.n_outlier_sites, 0);
    sites_close(x);
}

/* The mean squared error of a clip over the histogram's values, in double and without its shortcuts. */
static double clip_error(const tn_site_stats *s, double clip) {
    double step = clip / 127, sum = 0;
    for (size_t b = 0; b < TN_HIST_BINS; b++) {
        if (!s->hist[b]) continue;
        double x = ((double)tn_bits_f32((uint32_t)b << TN_HIST_SHIFT) +
                    (double)tn_bits_f32((uint32_t)(b + 1) << TN_HIST_SHIFT)) /
                   2;
        double e = x > clip ? x - clip : fmin(x, step / sqrt(12));
        sum += e * e * (double)s->hist[b];
    }
    return sum;
}

static void the_clip_has_the_least_error(void **state) {
    (void)state;
    float max[N_SITES];
    for (int i = 0; i < N_SITES; i++) max[i] = i < 10 ? 3 + (float)i : 5 * (float)i;
    sites *x = sites_open(max);
    x->o.prune_percent = 100;
    assert_int_equal(tn_plan_sites(&x->p), TERN_OK);
    for (int i = 0; i < N_SITES; i++) {
        double least = INFINITY, got = clip_error(&x->stats[i], (double)x->plans[i].clip);
        for (double c = 0.1; c < 900; c *= 1.01) least = fmin(least, clip_error(&x->stats[i], c));
        assert_true(got <= least * 1.1);
        if (i >= 10) { /* a single value far outside: 127 steps up to it would cost the million far more */
            assert_true(x->plans[i].clip < x->stats[i].max / 4);
            assert_true(clip_error(&x->stats[i], (double)x->stats[i].max) > 2 * got);
        }
    }
    x->o.scheme = TN_SCHEME_NAIVE; /* the baseline takes the largest */
    assert_int_equal(tn_plan_sites(&x->p), TERN_OK);
    for (int i = 0; i < N_SITES; i++)
        assert_true(x->plans[i].clip == x->stats[i].max && !x->plans[i].outliers + 1);
    sites_close(x);
}

/* What the threshold means: the smallest magnitude with at most that share above it. */
static void the_threshold_leaves_its_share_outside(void **state) {
    (void)state;
    static uint64_t hist[TN_HIST_BINS];
    tn_site_stats s = {.k = K, .hist = hist};
    for (int v = 1; v <= 1000; v++) add_values(&s, (float)v, 1);
    float t = tn_stats_quantile(&s, 0.1);
    int above = 0;
    for (int v = 1; v <= 1000; v++) above += (float)v > t;
    assert_in_range(above, 30, 100); /* bins of a sixteenth of an octave: up to 6 % of the value */
    assert_true(tn_stats_quantile(&s, 0) == 1000);
}

static void hot_channels_have_the_most_outliers(void **state) {
    (void)state;
    float max[N_SITES];
    for (int i = 0; i < N_SITES; i++) max[i] = i ? 1.5f : 50;
    sites *x = sites_open(max);
    x->o.prune_percent = 95; /* site 0 alone has a path */
    x->o.hot_max = 0.05f;    /* five channels */
    x->o.hot_coverage = 0.8f;
    static const uint32_t n[][2] = {{77, 400}, {13, 300}, {50, 150}, {99, 100}, {5, 30}, {0, 20}};
    for (int i = 0; i < 6; i++) {
        x->count[0][n[i][0]] = n[i][1];
        x->stats[0].n_outliers += n[i][1];
    }
    assert_int_equal(tn_plan_sites(&x->p), TERN_OK);
    const site_plan *plan = &x->plans[0];
    assert_true(plan->outliers);
    assert_int_equal(plan->n_hot, 3); /* 850 of 1000 */
    assert_int_equal(plan->hot[0], 13);
    assert_int_equal(plan->hot[1], 50);
    assert_int_equal(plan->hot[2], 77);
    assert_true(fabs(x->report.hot_coverage - 0.85) < 1e-9);
    tn_free(&ctx, x->plans[0].hot);
    memset(x->plans, 0, sizeof x->plans);
    x->report = (tn_pack_report){0};
    x->o.hot_coverage = 1;
    assert_int_equal(tn_plan_sites(&x->p), TERN_OK);
    assert_int_equal(plan->n_hot, 5); /* and no more of them than were allowed, whatever they cover */
    sites_close(x);
}

/* ---- alpha ------------------------------------------------------------------------------------------- */

/* The error of a site's outputs, 8-bit inputs with one clip and rows of weights with so many steps each
 * way, as those who compute it would: by quantising both. */
static double output_error(const float *xs, int n_x, const float *w, int n_w, int k, const float *smooth,
                           double clip, int steps) {
    double sum = 0, xq[512], wq[512];
    for (int r = 0; r < n_w; r++) {
        double max = 0;
        for (int i = 0; i < k; i++) max = fmax(max, fabs((double)(w[r * k + i] * smooth[i])));
        for (int i = 0; i < k; i++)
            wq[i] = nearbyint((double)(w[r * k + i] * smooth[i]) / (max / steps)) * (max / steps);
        for (int t = 0; t < n_x; t++) {
            double want = 0, got = 0;
            for (int i = 0; i < k; i++) {
                double x = (double)(xs[t * k + i] / smooth[i]), u = nearbyint(x / (clip / 127));
                xq[i] = fmin(fmax(u, -127), 127) * (clip / 127);
                want += (double)xs[t * k + i] * (double)w[r * k + i];
                got += xq[i] * wq[i];
            }
            sum += (got - want) * (got - want);
        }
    }
    return sum;
}

static double normal(tn_rng *r) {
    return sqrt(-2 * log(1 - tn_rng_f64(r))) * cos(6.283185307179586 * tn_rng_f64(r));
}

/* What makes a channel's inputs large and its weights small is taken back: the values that are quantised are those of
 * the plain channel, but for the rounding of factors to bf16. */
static void scaled_channels_come_back(void **state) {
    (void)state;
    enum { N_X = 128, N_W = 32, K_CHOOSE = 64 };
    float x[2][N_X * K_CHOOSE], w[2][N_W * K_CHOOSE];
    tn_choice c[2];
    tn_rng r = {12};
    for (int i = 0; i < N_X * K_CHOOSE; i++) x[0][i] = (float)normal(&r);
    for (int i = 0; i < N_W * K_CHOOSE; i++) w[0][i] = (float)(normal(&r) * (1 + i % K_CHOOSE % 5));
    for (int i = 0; i < N_X * K_CHOOSE; i++) x[1][i] = x[0][i] * (i % K_CHOOSE % 30 == 7 ? 64 : 1);
    for (int i = 0; i < N_W * K_CHOOSE; i++) w[1][i] = w[0][i] / (i % K_CHOOSE % 30 == 7 ? 64 : 1);
    for (int i = 0; i < 2; i++) {
        const tn_choose_args a = {.kern = &kern,
                                  .pool = pool,
                                  .x = x[i],
                                  .n_rows = N_X,
                                  .k = K_CHOOSE,
                                  .w = w[i],
                                  .n_w = N_W,
                                  .w_share = 1,
                                  .bits = 4,
                                  .can_smooth = true};
        assert_int_equal(tn_choose(&ctx, &a, &c[i], NULL), TERN_OK);
    }
    assert_true(c[0].balanced && c[1].balanced && c[0].alpha == c[1].alpha);
    for (int i = 0; i < N_X * K_CHOOSE; i++) assert_true(fabsf(x[0][i] - x[1][i]) <= 0.01f * fabsf(x[0][i]));
    for (int i = 0; i < 2; i++) tn_free(&ctx, c[i].smooth);
}

/* Three channels of 256 are a hundred times as large. Smoothing pays, and the alpha taken is near the best
 * of those tried one by one. */
static void alpha_is_the_best(void **state) {
    (void)state;
    enum { N_X = 256, N_W = 32, K_CHOOSE = 256 };
    float *xs = malloc(N_X * K_CHOOSE * sizeof *xs), *copy = malloc(N_X * K_CHOOSE * sizeof *copy),
          *w = malloc(N_W * K_CHOOSE * sizeof *w);
    tn_rng r = {11};
    for (int i = 0; i < N_X * K_CHOOSE; i++) xs[i] = (float)(normal(&r) * (i % K_CHOOSE % 90 == 7 ? 100 : 1));
    for (int i = 0; i < N_W * K_CHOOSE; i++) w[i] = (float)normal(&r);
    memcpy(copy, xs, N_X * K_CHOOSE * sizeof *xs);
    tn_choose_args a = {.kern = &kern,
                        .pool = pool,
                        .x = copy,
                        .n_rows = N_X,
                        .k = K_CHOOSE,
                        .w = w,
                        .n_w = N_W,
                        .w_share = 1,
                        .bits = 8,
                        .can_smooth = true};
    tn_choice c;
    assert_int_equal(tn_choose(&ctx, &a, &c, NULL), TERN_OK);
    assert_non_null(c.smooth);
    double error[26], least = INFINITY, most = 0;
    for (int i = 0; i < 26; i++) {
        float smooth[K_CHOOSE], top[K_CHOOSE] = {0}, heavy[K_CHOOSE] = {0};
        for (int j = 0; j < N_W * K_CHOOSE; j++) heavy[j % K_CHOOSE] += w[j] * w[j];
        for (int j = 0; j < N_X / 2 * K_CHOOSE; j++)
            top[j % K_CHOOSE] = fmaxf(top[j % K_CHOOSE], fabsf(xs[j]));
        double largest = 0;
        const float alpha = (float)(i % 13) / 12;
        for (int j = 0; j < K_CHOOSE; j++)
            smooth[j] = powf(top[j], alpha) / (i < 13 ? 1 : powf(sqrtf(heavy[j]), 1 - alpha));
        for (int j = 0; j < N_X * K_CHOOSE; j++)
            largest = fmax(largest, fabs((double)(xs[j] / smooth[j % K_CHOOSE])));
        error[i] = INFINITY;
        for (double clip = largest; clip > largest / 100; clip *= 0.9)
            error[i] = fmin(error[i], output_error(xs, 16, w, N_W, K_CHOOSE, smooth, clip, 127));
        least = fmin(least, error[i]);
        most = fmax(most, error[i]);
    }
    int taken = (int)lroundf(c.alpha * 12) + (c.balanced ? 13 : 0);
    print_message("trial %d of 26: error %.3g; best %.3g, worst %.3g\n", taken, error[taken], least, most);
    assert_true(most > 10 * least);
    assert_true(error[taken] <
                2.5 * least); /* what rounding with knowledge of the inputs saves is guessed there */
    /* channels are divided by what was said, and what comes out fits the clip */
    for (int i = 0; i < K_CHOOSE; i++)
        assert_true(fabsf(copy[i] * c.smooth[i] - xs[i]) <= 1e-4f * fabsf(xs[i]) + 1e-6f);
    tn_free(&ctx, c.smooth);
    /* where the inverse has nowhere to go there is none */
    memcpy(copy, xs, N_X * K_CHOOSE * sizeof *xs);
    a.can_smooth = false;
    assert_int_equal(tn_choose(&ctx, &a, &c, NULL), TERN_OK);
    assert_true(!c.smooth && c.alpha == 0);
    free(xs);
    free(copy);
    free(w);
}

/* ---- with a model's weights ---------------------------------------------------------------------------- */

static packer with_model(const tn_pack_options *o, tn_pack_report *report, tern_error *err) {
    packer p = {.ctx = &ctx, .o = o, .report = report, .err = err, .pool = pool, .kern = kern, .bits = 5};
    if (tn_source_open(&ctx, gguf, &p.src, err) != TERN_OK ||
        tn_model_outline(&ctx, pool, p.src, &p.m, err) != TERN_OK)
        fail_msg("%s", err->message);
    p.plans = calloc((size_t)p.m->program.n_sites, sizeof *p.plans);
    return p;
}

static void drop_model(packer *p) {
    for (int32_t i = 0; i < p->m->program.n_sites; i++) tn_free(&ctx, p->plans[i].smooth);
    free(p->plans);
    tn_calibration_close(&p->cal);
    tn_model_close(&p->m);
    tn_source_close(&p->src);
}

/* EdgeFlow's alpha by the same question: of the 21 on its grid the one taken is among those with the least
 * error. */
static void edgeflow_smooths_by_the_best_alpha(void **state) {
    (void)state;
    enum { N_X = 64 };
    tn_pack_options o;
    tn_pack_report report = {0};
    tern_error err = {0};
    tn_pack_defaults(&o);
    o.scheme = TN_SCHEME_EDGEFLOW;
    packer p = with_model(&o, &report, &err);
    assert_int_equal(tn_calibration_open(&ctx, &p.m->program, &p.cal, &err), TERN_OK);
    tn_site_stats *s = tn_calibration_site(&p.cal, 0, TN_SITE_QKV);
    int32_t k = s->k,
            n = tn_program_linears(&p.m->program, tn_program_site_index(&p.m->program, 0, TN_SITE_QKV))->n[0];
    float *xs = malloc((size_t)(N_X * k) * sizeof *xs), *w = malloc((size_t)(n * k) * sizeof *w);
    tn_rng r = {5};
    s->n_tokens = N_X;
    for (int i = 0; i < N_X * k; i++) {
        float v = xs[i] = (float)(normal(&r) * (i % k == 3 ? 200 : i % k == 20 ? 60 : 1));
        s->channel_max[i % k] = fmaxf(s->channel_max[i % k], fabsf(v));
        s->channel_square[i % k] += (double)v * (double)v;
        s->max = fmaxf(s->max, fabsf(v));
    }
    assert_int_equal(tn_plan_edgeflow(&p, 0, TN_SITE_QKV), TERN_OK);
    const float *smooth = plan_of(&p, 0, TN_SITE_QKV)->smooth;
    assert_non_null(smooth);
    assert_int_equal(tn_source_read(p.src, 0, TN_W_Q, 0, n, w, &err), TERN_OK);
    double least = INFINITY, most = 0, taken = -1,
           alpha = log((double)smooth[3]) / log((double)s->channel_max[3]);
    for (int a = 0; a <= 20; a++) {
        float t[512];
        double largest = 0, error = INFINITY;
        for (int j = 0; j < k; j++) {
            t[j] = powf(s->channel_max[j], (float)a / 20);
            largest = fmax(largest, (double)(s->channel_max[j] / t[j]));
        }
        for (double clip = largest; clip > largest / 100; clip *= 0.9)
            error = fmin(error, output_error(xs, 8, w, n < 32 ? n : 32, k, t, clip, 15));
        least = fmin(least, error);
        most = fmax(most, error);
        if (fabs(alpha - a / 20.0) < 1e-3) taken = error;
    }
    print_message("alpha %.2f: error %.3g; best %.3g, worst %.3g\n", alpha, taken, least, most);
    assert_true(taken >= 0 && most > 3 * least && taken < 1.5 * least);
    free(xs);
    free(w);
    drop_model(&p);
}

/* The relative error of a channel, max |w|^2 over E[w^2] at no bits, against plain loops over the file's
 * weights; and who has a larger one has no fewer bits. */
static void bits_follow_the_relative_error(void **state) {
    (void)state;
    tn_pack_options o;
    tn_pack_report report = {0};
    tern_error err = {0};
    tn_pack_defaults(&o);
    o.scheme = TN_SCHEME_EDGEFLOW;
    packer p = with_model(&o, &report, &err);
    p.allocation = TN_ALLOCATE_RE;
    const tn_site_ops *ops =
        tn_program_linears(&p.m->program, tn_program_site_index(&p.m->program, 1, TN_SITE_DOWN));
    int32_t n = ops->n[0], k = ops->k;
    float *w = malloc((size_t)n * (size_t)k * sizeof *w), *peak = malloc((size_t)n * sizeof *peak);
    double *want = malloc((size_t)n * sizeof *want);
    assert_int_equal(tn_source_read(p.src, 1, ops->roles[0], 0, n, w, &err), TERN_OK);
    for (int32_t i = 0; i < n; i++) {
        double max = 0, square = 0;
        for (int32_t j = 0; j < k; j++) {
            double v = (double)w[i * k + j];
            max = fmax(max, fabs(v));
            square += v * v / k;
        }
        want[i] = max * max / square;
        assert_true(want[i] >= 1);
    }
    quantise_job j = {.p = &p, .layer = 1, .role = ops->roles[0], .n = n, .k = k, .peak = peak};
    assert_int_equal(tn_rows_quantise(&p, &j, &err), TERN_OK);
    for (int32_t i = 0; i < n; i++) assert_true(fabs((double)peak[i] - want[i]) < 1e-5 * want[i]);
    hoard h = {.ctx = &ctx};
    j.peak = NULL;
    p.bits = 3.5;
    assert_int_equal(tn_rows_allocate(&p, &h, &j, &err), TERN_OK);
    int32_t sum = 0, least = 8, most = 1;
    for (int32_t a = 0; a < n; a++) {
        int32_t bits = (int32_t)tn_channel_bits_get(j.bits, (size_t)a);
        sum += bits;
        least = bits < least ? bits : least;
        most = bits > most ? bits : most;
        for (int32_t b = 0; b < n; b++)
            if (want[a] > want[b] * 1.0001)
                assert_true(bits >= (int32_t)tn_channel_bits_get(j.bits, (size_t)b));
    }
    assert_int_equal(sum, (int32_t)(3.5 * n));
    assert_true(most > least);
    /* CMPQ: a bit more for the quarter with the largest, a bit less for that with the least. */
    p.allocation = TN_ALLOCATE_CMPQ;
    p.bits = 4;
    assert_int_equal(tn_rows_allocate(&p, &h, &j, &err), TERN_OK);
    int32_t n_with[9] = {0};
    for (int32_t a = 0; a < n; a++) {
        const uint32_t bits = tn_channel_bits_get(j.bits, (size_t)a);
        n_with[bits]++;
        for (int32_t b = 0; b < n; b++)
            if (want[a] > want[b] * 1.0001) assert_true(bits >= tn_channel_bits_get(j.bits, (size_t)b));
    }
    assert_int_equal(n_with[3], n / 4);
    assert_int_equal(n_with[5], n / 4);
    assert_int_equal(n_with[3] + n_with[4] + n_with[5], n);
    tn_hoard_drop(&h);
    free(w);
    free(peak);
    free(want);
    drop_model(&p);
}

/* The squared error of a row in codes of so many bits, none of which is zero, at a scale. */
static double narrow_error(const float *w, int32_t k, int bits, double scale) {
    const double top = (1 << bits) - 1;
    double sum = 0;
    for (int32_t i = 0; i < k; i++) {
        const double u = fmin(fmax(nearbyint((double)w[i] / scale / 2 + top / 2), 0), top),
                     d = (double)w[i] - (2 * u - top) * scale;
        sum += d * d;
    }
    return sum;
}

/* A scale of few bits is not that of the largest weight, but one that loses less. */
static void narrow_scales_clip(void **state) {
    (void)state;
    tn_pack_options o;
    tn_pack_report report = {0};
    tern_error err = {0};
    tn_pack_defaults(&o);
    o.scheme = TN_SCHEME_EDGEFLOW;
    packer p = with_model(&o, &report, &err);
    const tn_site_ops *ops =
        tn_program_linears(&p.m->program, tn_program_site_index(&p.m->program, 1, TN_SITE_DOWN));
    const int32_t n = ops->n[0], k = ops->k;
    float *w = malloc((size_t)n * (size_t)k * sizeof *w);
    assert_int_equal(tn_source_read(p.src, 1, ops->roles[0], 0, n, w, &err), TERN_OK);
    p.allocation = TN_ALLOCATE_UNIFORM;
    for (int bits = 2; bits <= 4; bits++) {
        hoard h = {.ctx = &ctx};
        quantise_job j = {.p = &p,
                          .layer = 1,
                          .role = ops->roles[0],
                          .n = n,
                          .k = k,
                          .tiles = tn_hoard_keep(&h, tn_npu_tiles_bytes(&tn_pack_layout, n, k), 1),
                          .col_sum = tn_hoard_keep(&h, (size_t)n + 64, 4),
                          .scale = tn_hoard_keep(&h, (size_t)n + 64, 4)};
        p.bits = bits;
        assert_int_equal(tn_rows_allocate(&p, &h, &j, &err), TERN_OK);
        assert_int_equal(tn_rows_quantise(&p, &j, &err), TERN_OK);
        double got = 0, unclipped = 0;
        for (int32_t i = 0; i < n; i++) {
            const float *row = w + (size_t)i * (size_t)k;
            double max = 0;
            for (int32_t a = 0; a < k; a++) max = fmax(max, fabs((double)row[a]));
            got += narrow_error(row, k, bits, (double)j.scale[i]);
            unclipped += narrow_error(row, k, bits, max / (1 << bits));
        }
        print_message("%d bits: %.3f of the error\n", bits, got / unclipped);
        assert_true(got < 0.97 * unclipped);
        tn_hoard_drop(&h);
    }
    free(w);
    drop_model(&p);
}

/* In the package of a model with outlying channels, the norm in front of a smoothed site is divided by its
 * factors: its weights are no multiple of the file's. */
static void packages_are_smoothed(void **state) {
    (void)state;
    static const tn_scheme schemes[] = {TN_SCHEME_EDGEFLOW, TN_SCHEME_GRAM, TN_SCHEME_SMOOTHQUANT,
                                        TN_SCHEME_LLM_NPU};
    for (int i = 0; i < 4; i++) {
        tn_pack_options o;
        tn_pack_defaults(&o);
        o.scheme = schemes[i];
        o.calib_tokens = 256;
        o.own_tokens = 0; /* what a random model writes may not reach its outlying channels */
        o.calib_window = 128;
        o.n_threads = 2;
        o.bits = schemes[i] == TN_SCHEME_EDGEFLOW || schemes[i] == TN_SCHEME_GRAM ? 5 : 0;
        tern_error err = {0};
        if (tn_pack(&ctx, gguf, package, &o, NULL, &err) != TERN_OK) fail_msg("%s", err.message);
        tn_pkg *pkg;
        tn_source *src;
        assert_int_equal(tn_pkg_open(&ctx, package, &pkg, &err), TERN_OK);
        assert_int_equal(tn_source_open(&ctx, gguf, &src, &err), TERN_OK);
        const tn_pkg_section *section = tn_pkg_find(pkg, TN_PKG_LAYER, 0);
        size_t n, k = (size_t)tn_source_hparams(src)->n_embd;
        char *data = malloc(section->size_bytes);
        float *file = malloc(k * sizeof *file), *packed = NULL;
        assert_int_equal(tn_pkg_read(pkg, section, data, &err), TERN_OK);
        assert_int_equal(tn_source_read(src, 0, TN_W_ATTN_NORM, 0, 1, file, &err), TERN_OK);
        const tn_pkg_record *r = tn_pkg_records(pkg, section, &n);
        for (size_t a = 0; a < n; a++)
            if (r[a].role == TN_W_ATTN_NORM && r[a].part == TN_PKG_F32)
                packed = (float *)(data + r[a].off_bytes);
        assert_non_null(packed);
        double least = INFINITY, most = 0;
        for (size_t a = 0; a < k; a++) {
            double ratio = (double)(packed[a] / file[a]);
            least = fmin(least, ratio);
            most = fmax(most, ratio);
        }
        if (schemes[i] == TN_SCHEME_LLM_NPU) assert_true(least == 1 && most == 1);
        else assert_true(most > 1.05 * least);
        free(data);
        free(file);
        tn_source_close(&src);
        tn_pkg_close(&pkg);
    }
}

/* ---- heads ------------------------------------------------------------------------------------------- */

/* The scales are means over heads and windows of max |x| / 127. */
static void scales_are_means(void **state) {
    (void)state;
    tn_hparams h = {.n_layers = 1, .n_heads = 2, .n_kv_heads = 1, .d_head = 4};
    tn_head_profile p;
    assert_int_equal(tn_head_profile_open(&ctx, &h, 5, &p, NULL), TERN_OK);
    const float q1[2][8] = {{1, -2, 0, 0, 3, 0, 0, -12}, {0, 0, 1, 0, 0, 7, 0, 0}}, /* heads: 2 and 12 */
        k1[2][4] = {{5, 0, 0, 0}, {0, 0, -6, 0}},                                   /* 6 */
        q2[4][8] = {{4, 0, 0, 0, 0, 0, 0, 0},
                    {0},
                    {0, 0, 0, 0, 0, 0, 2, 0},
                    {900}},                          /* 4 and 2; the fourth is beyond the
                                                                                    five that count */
        k2[4][4] = {{0}, {0, 12, 0, 0}, {0}, {900}}; /* 12 */
    tn_head_profile_observe(&p, 0, *q1, *k1, 2);
    tn_head_profile_observe(&p, 0, *q2, *k2, 4);
    assert_true(fabsf(p.scale_q[0] - (7.0f + 3.0f) / 2 / 127) < 1e-6f);
    assert_true(fabsf(p.scale_k[0] - (6.0f + 12.0f) / 2 / 127) < 1e-6f);
    tn_head_profile_observe(&p, 0, *q2, *k2, 4); /* enough was seen */
    assert_true(fabsf(p.scale_q[0] - 5.0f / 127) < 1e-6f);
    tn_head_profile_close(&p);
}

typedef struct journal {
    char head[48];
    struct {
        double sum, sq;
        uint64_t check;
    } at[256];
    size_t n; /* records */
} journal;

/* A model, and what measuring its heads on n tokens leaves in the journal. */
typedef struct measured {
    tn_source *src;
    tn_model *m;
    int32_t ids[64], n;
    tn_head_profile p;
    char path[300];
    journal j;
} measured;

static void measure(measured *x) {
    tern_error err = {0};
    if (tn_head_profile_importance(&x->p, x->m, &kern, pool, x->ids, x->n, x->path, &err) != TERN_OK)
        fail_msg("%s", err.message);
}

static void read_journal(measured *x) {
    FILE *f = fopen(x->path, "rb");
    assert_non_null(f);
    size_t n_bytes = fread(&x->j, 1, offsetof(journal, n), f);
    fclose(f);
    assert_true(n_bytes >= 48 && (n_bytes - 48) % 24 == 0);
    x->j.n = (n_bytes - 48) / 24;
}

static void begin(measured *x, int32_t n) {
    tern_error err = {0};
    *x = (measured){.n = n};
    snprintf(x->path, sizeof x->path, "%s.heads", package);
    unlink(x->path);
    assert_int_equal(tn_source_open(&ctx, gguf, &x->src, &err), TERN_OK);
    assert_int_equal(tn_model_load(&ctx, pool, x->src, TN_FLOAT, &x->m, &err), TERN_OK);
    for (int i = 0; i < n; i++) x->ids[i] = (i * 37 + 5) % 400;
    assert_int_equal(tn_head_profile_open(&ctx, &x->m->h, 0, &x->p, &err), TERN_OK);
    measure(x);
    read_journal(x);
}

static void end(measured *x) {
    unlink(x->path);
    tn_head_profile_close(&x->p);
    tn_model_close(&x->m);
    tn_source_close(&x->src);
}

/* Puts down that n tokens lose mean on average, with a standard deviation. */
static void put(journal *j, int32_t n, double mean, double deviation) {
    uint64_t seed;
    memcpy(&seed, j->head + 40, sizeof seed);
    j->at[j->n].sum = n * mean;
    j->at[j->n].sq = n * (mean * mean + deviation * deviation);
    j->at[j->n].check = XXH3_64bits_withSeed(&j->at[j->n], 2 * sizeof(double), seed + (uint64_t)j->n);
    j->n++;
}

/* Measures once more with the journal as it is now; nothing that is not in it may be asked for. */
static void measure_again(measured *x) {
    FILE *f = fopen(x->path, "wb");
    size_t n_bytes = 48 + 24 * x->j.n;
    assert_true(f && fwrite(&x->j, 1, n_bytes, f) == n_bytes && !fclose(f));
    size_t n = x->j.n;
    measure(x);
    read_journal(x);
    assert_int_equal(x->j.n, n);
}

static void check_weights(const measured *x, const double *want, double sum) {
    int32_t n = x->m->h.n_layers * x->m->h.n_heads;
    for (int32_t i = 0; i < n; i++) {
        double mean = sum / n;
        if (fabs((double)x->p.weight[i] - want[i] / mean) > 1e-5 * want[i] / mean)
            fail_msg("head %d weighs %g, want %g", i, (double)x->p.weight[i], want[i] / mean);
    }
}

/* What every ablation loses is what a journal says, so the weights are arithmetic: head times layer, both
 * above the loss with all heads, clamped, over their mean. */
static void weights_follow_the_losses(void **state) {
    (void)state;
    measured x;
    begin(&x, 24); /* too few for parts: one record an ablation */
    int32_t n_layers = x.m->h.n_layers, n_heads = x.m->h.n_heads;
    double want[64], sum = 0;
    x.j.n = 0;
    for (int32_t l = 0; l < n_layers; l++) {
        for (int32_t h = -1; h < n_heads; h++) {
            /* layers cost 0.02 and 0.04; heads 0.001, 0.002, ...; head 1 helps when it is gone, the last
             * one of layer 1 is worth more than what the clamp lets through */
            double more = h < 0                   ? 0.02 * (l + 1)
                          : h == 1                ? -0.1
                          : l && h == n_heads - 1 ? 5
                                                  : 0.001 * (h + 1);
            put(&x.j, 23, more, 0);
            if (h < 0) continue;
            double w = 0.02 * (l + 1) * fmax(more, 0);
            sum += want[l * n_heads + h] = fmin(fmax(w, 1e-5), 1e-3);
        }
    }
    measure_again(&x);
    check_weights(&x, want, sum);
    end(&x);
}

/* A head is asked about only as long as its weight is open. */
static void what_is_clear_is_not_measured(void **state) {
    (void)state;
    measured x;
    begin(&x, 64); /* four parts of 16 tokens, the last with 15 that something follows */
    int32_t n_layers = x.m->h.n_layers, n_heads = x.m->h.n_heads;
    for (int idle = 0; idle < 2; idle++) {
        double want[64], sum = 0;
        x.j.n = 0;
        for (int32_t l = 0; l < n_layers; l++) {
            for (int part = 0; part < 4; part++) /* layers are measured to the end */
                put(&x.j, 16 - (part == 3), l && idle ? -0.01 : 0.5, 3);
            for (int32_t h = 0; h < n_heads; h++) {
                double w = 1e-5;
                if (l && idle) { /* nothing is lost without the layer: no head of it is asked */
                } else if (l) {  /* open to the end */
                    for (int part = 0; part < 4; part++) put(&x.j, 16 - (part == 3), 0.0015, 0.004);
                    w = 0.5 * 0.0015;
                } else if (h % 4 == 0) { /* above the upper clamp by more than the doubt */
                    put(&x.j, 16, 0.02, 0.01);
                    w = 1e-3;
                } else if (h % 4 == 1) { /* below the lower one */
                    put(&x.j, 16, -0.02, 0.01);
                } else if (h % 4 ==
                           2) { /* between them: known within a tenth after two parts, not after one */
                    put(&x.j, 16, 0.0010, 0.0006);
                    put(&x.j, 16, 0.0014, 0.0001);
                    w = 0.5 * 0.0012;
                } else { /* half of the window does not tell it from nothing */
                    put(&x.j, 16, 0.001, 0.01);
                    put(&x.j, 16, 0.001, 0.01);
                    w = 0.5 * 0.001;
                }
                sum += want[l * n_heads + h] = w;
            }
        }
        measure_again(&x);
        check_weights(&x, want, sum);
    }
    end(&x);
}

typedef struct losses {
    const int32_t *ids;
    const tn_hparams *h;
    double *sum;
} losses;

static bool add_loss(void *user, size_t i, const float *logits) {
    const losses *l = user;
    double z = 0;
    for (int32_t v = 0; v < l->h->n_vocab; v++) z += exp((double)logits[v]);
    if (i + 1 < 64) *l->sum += log(z) - (double)logits[l->ids[i + 1]];
    return true;
}

/* Parts attend to those before them, so that what a whole window loses does not depend on how it is read. */
static void parts_are_one_window(void **state) {
    (void)state;
    measured x;
    begin(&x, 64);
    double base;
    memcpy(&base, x.j.head + 32, sizeof base);
    tern_engine *e;
    tern_session *s;
    tern_error err = {0};
    tern_options *o;
    assert_int_equal(tern_options_new(&o, &err), TERN_OK);
    assert_int_equal(tern_options_set(o, "scheme", "float", &err), TERN_OK);
    assert_int_equal(tern_engine_open(gguf, o, &e, &err), TERN_OK);
    assert_int_equal(tern_session_open(e, NULL, &s, &err), TERN_OK);
    double sum = 0;
    assert_int_equal(tern_session_score(s, x.ids, 64, 0, add_loss, &(losses){x.ids, &x.m->h, &sum}, &err),
                     TERN_OK);
    assert_true(fabs(sum / 63 - base) < 1e-5);
    tern_session_close(&s);
    tern_engine_close(&e);
    tern_options_free(&o);
    end(&x);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(the_least_important_are_pruned),
                                       cmocka_unit_test(the_error_of_pruning_is_bounded),
                                       cmocka_unit_test(the_clip_has_the_least_error),
                                       cmocka_unit_test(the_threshold_leaves_its_share_outside),
                                       cmocka_unit_test(hot_channels_have_the_most_outliers),
                                       cmocka_unit_test(alpha_is_the_best),
                                       cmocka_unit_test(scaled_channels_come_back),
                                       cmocka_unit_test(edgeflow_smooths_by_the_best_alpha),
                                       cmocka_unit_test(bits_follow_the_relative_error),
                                       cmocka_unit_test(narrow_scales_clip),
                                       cmocka_unit_test(packages_are_smoothed),
                                       cmocka_unit_test(scales_are_means),
                                       cmocka_unit_test(weights_follow_the_losses),
                                       cmocka_unit_test(what_is_clear_is_not_measured),
                                       cmocka_unit_test(parts_are_one_window)};
    return cmocka_run_group_tests_name("decisions", tests, setup, teardown);
}
