#include "quant/choose.h"

#include "base/half.h"
#include "quant/round.h"

#include <math.h>
#include <string.h>

enum {
    N_ALPHA = 13, /* 0, 1/12 ... 1 */
    N_TRIALS = 2 * N_ALPHA,
    TRIAL_ROWS = 256, /* share of the inputs used while alpha is searched */
    N_BINS = 4096,    /* of magnitudes: 16 an octave */
    BIN_SHIFT = 19
};

/* Magnitudes of the inputs, weighted by the cost of an error in their channel. */
typedef struct histogram {
    double n[N_BINS], x[N_BINS], xx[N_BINS]; /* sums of weight, weight x, weight x^2 */
} histogram;

static void observe(histogram *h, const float *x, const float *cost, int32_t k) {
    for (int32_t i = 0; i < k; i++) {
        float a = fabsf(x[i]);
        if (!(a <= 3e38f)) continue; /* non-finite values are ignored */
        uint32_t b = tn_f32_bits(a) >> BIN_SHIFT;
        double c = (double)cost[i];
        h->n[b] += c;
        h->x[b] += c * (double)a;
        h->xx[b] += c * (double)a * (double)a;
    }
}

static double edge(int b) { return (double)tn_bits_f32((uint32_t)b << BIN_SHIFT); }

/* The clip with the least error: rounding below it, clipping above it, loss of values under half a step. */
static double best_clip(const histogram *h, float *clip) {
    int lo = 0, hi = N_BINS;
    while (lo < hi && h->n[lo] == 0) lo++;
    while (hi > lo && h->n[hi - 1] == 0) hi--;
    double least = INFINITY, n = 0, x = 0, xx = 0; /* sums above the clip */
    *clip = 1;
    for (int c = hi; c > lo; c--) { /* the clip is the upper edge of bin c - 1 */
        double t = edge(c), step = t / 127, err = xx - 2 * t * x + t * t * n;
        for (int b = lo; b < c && err < least; b++)
            err += edge(b + 1) <= step / 2 ? h->xx[b] : h->n[b] * step * step / 12;
        if (err < least) {
            least = err;
            *clip = (float)t;
        }
        n += h->n[c - 1];
        x += h->x[c - 1];
        xx += h->xx[c - 1];
    }
    return least < INFINITY ? least : 0;
}

/* Largest magnitude of a normal value worth keeping in B bits, in standard deviations. */
static double loading(double bits) {
    static const double at[9] = {0.8, 0.8, 1.99, 2.34, 2.68, 3.0, 3.33, 3.65, 3.95};
    int b = bits < 1 ? 1 : bits > 8 ? 8 : (int)bits;
    return b == 8 ? at[8] : at[b] + (at[b + 1] - at[b]) * (bits - b);
}

/* Sums have eight lanes, so no addition waits for the previous one. */
static double squares(const float *x, int32_t k) {
    double lane[8] = {0}, sum = 0;
    int32_t i = 0;
    for (; i + 8 <= k; i += 8)
        for (int l = 0; l < 8; l++) lane[l] += (double)x[i + l] * (double)x[i + l];
    for (; i < k; i++) sum += (double)x[i] * (double)x[i];
    for (int l = 0; l < 8; l++) sum += lane[l];
    return sum;
}

/* Noise in a row's output from rounding its weights: one step for the row and uniform errors. Rounding
 * with knowledge of the inputs is assumed to save half of it at every width; the true saving depends on
 * the factor, which is not known yet. */
static double weight_noise(const float *w, int32_t k, double bits, double energy) {
    double max = (double)tn_largest(w, k), square = squares(w, k),
           range = fmin(max, loading(bits) * sqrt(square / k) * 1.15), step = 2 * range / exp2(bits);
    return 0.5 * step * step / 12 * energy;
}

enum {
    N_CHUNKS = 8
}; /* groups of rows in the last pass, each with its own histogram, so that sums have one order */

/* One trial of alpha. Trials run in parallel, so each has its own buffers. */
typedef struct trial {
    const tn_choose_args *a;
    const double *column;   /* [k] sum of the squares of a channel's weights */
    const float *top;       /* [k] largest input of the channel, or of all channels that share its scale */
    const float *heavy;     /* [k] root of the squares of the same channels' weights */
    float *scale, *inverse; /* [k] of the channels, for one alpha */
    float *row, *cost;      /* [k] */
    float alpha;
    bool balanced;
    double noise;
    histogram h;
} trial;

static void transform(const trial *t, const float *from, const float *by, float *to) {
    int32_t i = 0;
    for (; i + 16 <= t->a->k; i += 16)
        for (int l = 0; l < 16; l++) to[i + l] = from[i + l] * by[i + l];
    for (; i < t->a->k; i++) to[i] = from[i] * by[i];
    if (t->a->rotate) tn_hadamard_wide(t->a->kern->hadamard_f32, to, (size_t)t->a->k, (size_t)t->a->rotate);
}

/* The inputs are divided by top^alpha, as in EdgeFlow, or by top^alpha / heavy^(1 - alpha), as in SmoothQuant:
 * the latter takes back whatever makes a channel's inputs large and its weights small. */
static void set_alpha(trial *t, float alpha, bool balanced) {
    t->alpha = alpha;
    t->balanced = balanced;
    for (int32_t i = 0; i < t->a->k; i++) {
        const int32_t at = t->a->tied ? t->a->tied[i] : i;
        const float by = balanced ? powf(t->heavy[at], 1 - alpha) : 1;
        t->scale[i] = tn_round_bf16(powf(t->top[at], alpha) / by); /* as it is stored */
        t->inverse[i] = 1 / t->scale[i];
    }
    /* cost of an error after the rotation: the mean of its block */
    for (int32_t i = 0; i < t->a->k; i++)
        t->cost[i] = (float)(t->column[i] * (double)t->scale[i] * (double)t->scale[i]);
    const int32_t block = t->a->rotate;
    for (int32_t b = 0; block && b < t->a->k; b += block) {
        float mean = 0;
        for (int32_t i = 0; i < block; i++) mean += t->cost[b + i] / (float)block;
        for (int32_t i = 0; i < block; i++) t->cost[b + i] = mean;
    }
}

/* Scales come from the rows before this one, alpha and clip from the others: no input stands out among
 * those that the scales were made from, but some do among others. With both chosen on the same 512 tokens,
 * 7 bits were worse than 6. */
static int32_t first_held_back(const tn_choose_args *a) { return a->n_rows / 2; }

/* Values of other texts exceed those of the given inputs, the more so the fewer these are. On WikiText,
 * which tern-tiny was not calibrated on, a tenth more halves the KL at 5 bits; it costs other texts 3 %. */
static float margin(const tn_choose_args *a) { return 1.08f + 50 / (float)(a->n_rows - first_held_back(a)); }

/* The error of the outputs with an alpha, per token. */
static void try_item(void *arg, int i_item, int i_thread) {
    (void)i_thread;
    trial *t = (trial *)arg + i_item;
    const tn_choose_args *a = t->a;
    set_alpha(t, (float)(i_item % N_ALPHA) / (N_ALPHA - 1), i_item >= N_ALPHA);
    memset(&t->h, 0, sizeof t->h);
    int32_t first = first_held_back(a), step = (a->n_rows - first + TRIAL_ROWS - 1) / TRIAL_ROWS, n = 0;
    double energy = 0;
    t->noise = 0;
    for (int32_t r = first; r < a->n_rows; r += step, n++) {
        transform(t, a->x + (size_t)r * (size_t)a->k, t->inverse, t->row);
        observe(&t->h, t->row, t->cost, a->k);
        energy += squares(t->row, a->k);
    }
    for (int32_t r = 0; r < a->n_w; r++) {
        transform(t, a->w + (size_t)r * (size_t)a->k, t->scale, t->row);
        t->noise += a->w_share * weight_noise(t->row, a->k, a->bits, energy / n);
    }
    float clip;
    t->noise += best_clip(&t->h, &clip) / n;
}

static void find_tops(const tn_choose_args *a, float *own, float *top, float *heavy, double *column) {
    float largest = 0, heaviest = 0;
    for (int32_t r = 0; r < first_held_back(a); r++) {
        const float *x = a->x + (size_t)r * (size_t)a->k;
        for (int32_t i = 0; i < a->k; i++) {
            float v = fabsf(x[i]);
            own[i] = v <= 3e38f && v > own[i] ? v : own[i];
        }
    }
    for (int32_t i = 0; i < a->k; i++) {
        float *at = &top[a->tied ? a->tied[i] : i];
        *at = own[i] > *at ? own[i] : *at;
        largest = own[i] > largest ? own[i] : largest;
    }
    for (int32_t i = 0; i < a->k; i++) top[i] = fmaxf(top[i], largest * 1e-4f + 1e-20f);
    for (int32_t r = 0; r < a->n_w; r++) {
        for (int32_t i = 0; i < a->k; i++) {
            double w = (double)a->w[(size_t)r * (size_t)a->k + (size_t)i];
            column[i] += a->w_share * w * w;
        }
    }
    for (int32_t i = 0; i < a->k; i++) heavy[a->tied ? a->tied[i] : i] += (float)column[i];
    for (int32_t i = 0; i < a->k; i++) heaviest = fmaxf(heaviest, heavy[i] = sqrtf(heavy[i]));
    for (int32_t i = 0; i < a->k; i++) heavy[i] = fmaxf(heavy[i], heaviest * 1e-4f + 1e-20f);
}

typedef struct last_pass {
    const trial *best;
    trial *trials; /* their histograms are reused for the chunks */
} last_pass;

/* The inputs become what is quantised. */
static void last_item(void *arg, int i_item, int i_thread) {
    (void)i_thread;
    const last_pass *l = arg;
    const tn_choose_args *a = l->best->a;
    histogram *h = &l->trials[i_item].h;
    memset(h, 0, sizeof *h);
    int32_t r1 = (int32_t)((int64_t)a->n_rows * (i_item + 1) / N_CHUNKS);
    for (int32_t r = (int32_t)((int64_t)a->n_rows * i_item / N_CHUNKS); r < r1; r++) {
        float *x = a->x + (size_t)r * (size_t)a->k;
        transform(l->best, x, l->best->inverse, x);
        if (r >= first_held_back(a)) observe(h, x, l->best->cost, a->k);
    }
}

static float transform_all(const trial *best, trial *trials) {
    last_pass l = {best, trials};
    tn_pool_for(best->a->pool, N_CHUNKS, last_item, &l);
    /* The widest clip of all parts, so that a rare kind of text keeps its largest values, too. */
    float clip = 0;
    for (int c = 0; c < N_CHUNKS; c++) {
        float wanted = 0;
        if (best_clip(&trials[c].h, &wanted) > 0 && wanted > clip) clip = wanted;
    }
    return clip > 0 ? clip : 1;
}

_Static_assert((int)N_CHUNKS <= (int)N_TRIALS, "a chunk takes a trial's histogram");

tern_status tn_choose(tn_ctx *ctx, const tn_choose_args *a, tn_choice *out, tern_error *err) {
    size_t k = (size_t)a->k;
    *out = (tn_choice){.clip = 1};
    float *block = tn_calloc(ctx, TN_MEM_OTHER, (4 * N_TRIALS + 3) * k, sizeof *block);
    double *column = tn_calloc(ctx, TN_MEM_OTHER, k, sizeof *column);
    trial *trials = tn_calloc(ctx, TN_MEM_OTHER, N_TRIALS, sizeof *trials), *best = trials;
    tern_status st = block && column && trials ? TERN_OK : tn_fail(err, TERN_E_MEMORY, "no memory to smooth");
    if (st == TERN_OK) {
        float *top = block + 4 * N_TRIALS * k, *heavy = top + k;
        find_tops(a, heavy + k, top, heavy, column);
        for (size_t i = 0; i < N_TRIALS; i++) {
            trial *t = &trials[i];
            t->a = a;
            t->column = column;
            t->top = top;
            t->heavy = heavy;
            t->scale = block + 4 * i * k;
            t->inverse = t->scale + k;
            t->row = t->inverse + k;
            t->cost = t->row + k;
        }
        if (a->can_smooth) tn_pool_for(a->pool, N_TRIALS, try_item, trials);
        else set_alpha(best, 0, false);
        for (int i = 1; a->can_smooth && i < N_TRIALS; i++)
            best = trials[i].noise < best->noise ? &trials[i] : best;
        out->alpha = best->alpha;
        out->balanced = best->balanced;
        out->clip = transform_all(best, trials) * margin(a);
        const bool smooths = best != trials;
        out->smooth = smooths ? tn_alloc(ctx, TN_MEM_OTHER, k, sizeof *out->smooth) : NULL;
        if (out->smooth) memcpy(out->smooth, best->scale, k * sizeof *best->scale);
        else if (smooths) st = tn_fail(err, TERN_E_MEMORY, "no memory to smooth");
    }
    tn_free(ctx, block);
    tn_free(ctx, column);
    tn_free(ctx, trials);
    return st;
}
