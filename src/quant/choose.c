#include "quant/choose.h"

#include "base/half.h"

#include <math.h>
#include <string.h>

enum {
    N_ALPHA = 13,     /* 0, 1/12 ... 1 */
    TRIAL_ROWS = 256, /* of the inputs, while alpha is sought */
    N_BINS = 4096,    /* of magnitudes: 16 an octave */
    BIN_SHIFT = 19
};

/* Magnitudes of the inputs, weighted by what an error in their channel costs the outputs. */
typedef struct histogram {
    double n[N_BINS], x[N_BINS], xx[N_BINS]; /* sums of weight, weight x, weight x^2 */
} histogram;

static void observe(histogram *h, const float *x, const float *cost, int32_t k) {
    for (int32_t i = 0; i < k; i++) {
        float a = fabsf(x[i]);
        if (!(a <= 3e38f)) continue; /* a value that is not finite tells nothing */
        uint32_t b = tn_f32_bits(a) >> BIN_SHIFT;
        double c = (double)cost[i];
        h->n[b] += c;
        h->x[b] += c * (double)a;
        h->xx[b] += c * (double)a * (double)a;
    }
}

static double edge(int b) { return (double)tn_bits_f32((uint32_t)b << BIN_SHIFT); }

/* The clip with the least error: rounding below it, cutting off above it, loss of what is under half a step. */
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

/* Largest magnitude worth keeping, in standard deviations, for a normal value in B bits. */
static double loading(double bits) {
    static const double at[9] = {0.8, 0.8, 1.99, 2.34, 2.68, 3.0, 3.33, 3.65, 3.95};
    int b = bits < 1 ? 1 : bits > 8 ? 8 : (int)bits;
    return b == 8 ? at[8] : at[b] + (at[b + 1] - at[b]) * (bits - b);
}

/* Noise of the weights' rounding in a row's output: a step for the row, uniform errors, less what rounding with
 * knowledge of the inputs saves (measured on models of 6 to 11 million parameters: about a half). */
static double weight_noise(const float *w, int32_t k, double bits, double energy) {
    double max = 0, square = 0;
    for (int32_t i = 0; i < k; i++) {
        max = fmax(max, (double)fabsf(w[i]));
        square += (double)w[i] * (double)w[i];
    }
    double range = fmin(max, loading(bits) * sqrt(square / k) * 1.15), step = 2 * range / exp2(bits);
    return 0.5 * step * step / 12 * energy;
}

typedef struct trial {
    const tn_choose_args *a;
    float *scale, *inverse; /* [k] of the channels, for one alpha */
    float *row, *cost;      /* [k] */
    double *column;         /* [k] sum of the squares of a channel's weights */
    float *top;             /* [k] largest input of the channel, or of those that share its scale */
    histogram *h;
} trial;

static void transform(const trial *t, const float *from, const float *by, float *to) {
    for (int32_t i = 0; i < t->a->k; i++) to[i] = from[i] * by[i];
    if (t->a->rotate) t->a->kern->hadamard_f32(to, (size_t)t->a->k);
}

static void set_alpha(const trial *t, float alpha) {
    for (int32_t i = 0; i < t->a->k; i++) {
        t->scale[i] = powf(t->top[t->a->tied ? t->a->tied[i] : i], alpha);
        t->inverse[i] = 1 / t->scale[i];
    }
    /* what an error costs behind the rotation: the mean of its block */
    for (int32_t i = 0; i < t->a->k; i++)
        t->cost[i] = (float)(t->column[i] * (double)t->scale[i] * (double)t->scale[i]);
    for (int32_t b = 0; t->a->rotate && b < t->a->k; b += TN_HADAMARD_BLOCK) {
        float mean = 0;
        for (int32_t i = 0; i < TN_HADAMARD_BLOCK; i++) mean += t->cost[b + i] / TN_HADAMARD_BLOCK;
        for (int32_t i = 0; i < TN_HADAMARD_BLOCK; i++) t->cost[b + i] = mean;
    }
}

/* The error of the outputs with this alpha, by the token. */
static double noise_of(const trial *t, float alpha) {
    const tn_choose_args *a = t->a;
    set_alpha(t, alpha);
    memset(t->h, 0, sizeof *t->h);
    int32_t step = (a->n_rows + TRIAL_ROWS - 1) / TRIAL_ROWS, n = 0;
    double energy = 0, noise = 0;
    for (int32_t r = 0; r < a->n_rows; r += step, n++) {
        transform(t, a->x + (size_t)r * (size_t)a->k, t->inverse, t->row);
        observe(t->h, t->row, t->cost, a->k);
        for (int32_t i = 0; i < a->k; i++) energy += (double)t->row[i] * (double)t->row[i];
    }
    for (int32_t r = 0; r < a->n_w; r++) {
        transform(t, a->w + (size_t)r * (size_t)a->k, t->scale, t->row);
        noise += a->w_share * weight_noise(t->row, a->k, a->bits, energy / n);
    }
    float clip;
    return noise + best_clip(t->h, &clip) / n;
}

static void find_tops(const trial *t) {
    const tn_choose_args *a = t->a;
    float largest = 0;
    for (int32_t r = 0; r < a->n_rows; r++) {
        const float *x = a->x + (size_t)r * (size_t)a->k;
        for (int32_t i = 0; i < a->k; i++) {
            float v = fabsf(x[i]);
            float *top = &t->top[a->tied ? a->tied[i] : i];
            if (v <= 3e38f && v > *top) *top = v;
            largest = fmaxf(largest, *top);
        }
    }
    for (int32_t i = 0; i < a->k; i++) t->top[i] = fmaxf(t->top[i], largest * 1e-4f + 1e-20f);
    for (int32_t r = 0; r < a->n_w; r++) {
        for (int32_t i = 0; i < a->k; i++) {
            double w = (double)a->w[(size_t)r * (size_t)a->k + (size_t)i];
            t->column[i] += a->w_share * w * w;
        }
    }
}

tern_status tn_choose(tn_ctx *ctx, const tn_choose_args *a, tn_choice *out, tern_error *err) {
    size_t k = (size_t)a->k;
    *out = (tn_choice){.clip = 1};
    float *block = tn_calloc(ctx, TN_MEM_OTHER, 5 * k, sizeof *block);
    trial t = {.a = a,
               .scale = block,
               .inverse = block + k,
               .row = block + 2 * k,
               .cost = block + 3 * k,
               .top = block + 4 * k,
               .column = tn_calloc(ctx, TN_MEM_OTHER, k, sizeof *t.column),
               .h = tn_alloc(ctx, TN_MEM_OTHER, 1, sizeof *t.h)};
    tern_status st = block && t.column && t.h ? TERN_OK : tn_fail(err, TERN_E_MEMORY, "no memory to smooth");
    if (st == TERN_OK) {
        find_tops(&t);
        double least = INFINITY;
        for (int i = 0; a->can_smooth && i < N_ALPHA; i++) {
            double noise = noise_of(&t, (float)i / (N_ALPHA - 1));
            if (!(noise < least)) continue;
            least = noise;
            out->alpha = (float)i / (N_ALPHA - 1);
        }
        set_alpha(&t, out->alpha);
        memset(t.h, 0, sizeof *t.h);
        for (int32_t r = 0; r < a->n_rows; r++) {
            float *x = a->x + (size_t)r * k;
            transform(&t, x, t.inverse, x);
            observe(t.h, x, t.cost, a->k);
        }
        (void)best_clip(t.h, &out->clip);
        out->smooth = out->alpha > 0 ? tn_alloc(ctx, TN_MEM_OTHER, k, sizeof *out->smooth) : NULL;
        if (out->smooth) memcpy(out->smooth, t.scale, k * sizeof *t.scale);
        else if (out->alpha > 0) st = tn_fail(err, TERN_E_MEMORY, "no memory to smooth");
    }
    tn_free(ctx, block);
    tn_free(ctx, t.column);
    tn_free(ctx, t.h);
    return st;
}
