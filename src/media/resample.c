#include "media/resample.h"

#include "base/status.h"

#include <math.h>
#include <string.h>

enum { BITS = 32 - 8 - 2 }; /* after the point of a coefficient: a sum of bytes times them fits 32 bits */

static double bilinear(double x) {
    x = fabs(x);
    return x < 1 ? 1 - x : 0;
}

static double bicubic(double x) {
    const double a = -0.5;
    x = fabs(x);
    if (x < 1) return ((a + 2) * x - (a + 3)) * x * x + 1;
    return x < 2 ? (((x - 5) * x + 8) * x - 4) * a : 0;
}

static double sinc(double x) {
    const double pi = 3.14159265358979323846;
    if (x == 0) return 1;
    x *= pi;
    return sin(x) / x;
}

static double lanczos(double x) { return x >= -3 && x < 3 ? sinc(x) * sinc(x / 3) : 0; }

static const struct {
    double (*fn)(double x);
    double support;
} filters[] = {[TN_FILTER_BILINEAR] = {bilinear, 1},
               [TN_FILTER_BICUBIC] = {bicubic, 2},
               [TN_FILTER_LANCZOS] = {lanczos, 3}};

/* How the values of one direction are made: value i of the result is the sum over from[i] .. from[i] + n[i] - 1 of the
 * input times k[i * most ...]. */
typedef struct plan {
    tn_ctx *ctx;
    int32_t *from, *n, *k;
    size_t most;
} plan;

static void plan_free(plan *p) {
    tn_free(p->ctx, p->from);
    tn_free(p->ctx, p->n);
    tn_free(p->ctx, p->k);
}

/* The coefficients of one value, as double and then rounded. */
static void coefficients(tn_filter filter, double scale, int32_t in, int32_t i, double *w, plan *p) {
    double wide = scale < 1 ? 1 : scale, support = filters[filter].support * wide, centre = (i + 0.5) * scale,
           inverse = 1 / wide, sum = 0;
    int32_t from = (int32_t)(centre - support + 0.5), to = (int32_t)(centre + support + 0.5);
    if (from < 0) from = 0;
    if (to > in) to = in;
    int32_t n = to - from;
    for (int32_t x = 0; x < n; x++) {
        w[x] = filters[filter].fn((x + from - centre + 0.5) * inverse);
        sum += w[x];
    }
    int32_t *k = p->k + (size_t)i * p->most;
    for (int32_t x = 0; x < n; x++) {
        double c = sum != 0 ? w[x] / sum : w[x];
        k[x] = (int32_t)((c < 0 ? -0.5 : 0.5) + c * (1 << BITS));
    }
    p->from[i] = from;
    p->n[i] = n;
}

static tern_status make_plan(tn_ctx *ctx, tn_filter filter, int32_t in, int32_t out, plan *p,
                             tern_error *err) {
    double scale = (double)in / out, wide = scale < 1 ? 1 : scale;
    *p = (plan){.ctx = ctx, .most = (size_t)ceil(filters[filter].support * wide) * 2 + 1};
    p->from = tn_alloc(ctx, TN_MEM_OTHER, (size_t)out, sizeof *p->from);
    p->n = tn_alloc(ctx, TN_MEM_OTHER, (size_t)out, sizeof *p->n);
    p->k = tn_alloc(ctx, TN_MEM_OTHER, (size_t)out * p->most, sizeof *p->k);
    double *w = tn_alloc(ctx, TN_MEM_OTHER, p->most, sizeof *w);
    if (p->from && p->n && p->k && w) {
        for (int32_t i = 0; i < out; i++) coefficients(filter, scale, in, i, w, p);
        tn_free(ctx, w);
        return TERN_OK;
    }
    tn_free(ctx, w);
    plan_free(p);
    return tn_fail(err, TERN_E_MEMORY, "no memory to resize a picture from %d to %d", (int)in, (int)out);
}

static inline uint8_t rounded(int32_t sum) {
    sum >>= BITS;
    return sum < 0 ? 0 : sum > 255 ? 255 : (uint8_t)sum;
}

static void across(const tn_picture *in, const plan *p, tn_picture *out) {
    for (int32_t y = 0; y < in->height; y++) {
        const uint8_t *row = in->rgb + (size_t)y * (size_t)in->width * 3;
        uint8_t *to = out->rgb + (size_t)y * (size_t)out->width * 3;
        for (int32_t x = 0; x < out->width; x++, to += 3) {
            const int32_t *k = p->k + (size_t)x * p->most;
            const uint8_t *at = row + (size_t)p->from[x] * 3;
            int32_t r = 1 << (BITS - 1), g = r, b = r;
            for (int32_t i = 0; i < p->n[x]; i++, at += 3) {
                r += at[0] * k[i];
                g += at[1] * k[i];
                b += at[2] * k[i];
            }
            to[0] = rounded(r), to[1] = rounded(g), to[2] = rounded(b);
        }
    }
}

/* sums: [3 * width] */
static void down(const tn_picture *in, const plan *p, int32_t *restrict sums, tn_picture *out) {
    size_t n = (size_t)in->width * 3;
    for (int32_t y = 0; y < out->height; y++) {
        const int32_t *k = p->k + (size_t)y * p->most;
        for (size_t x = 0; x < n; x++) sums[x] = 1 << (BITS - 1);
        for (int32_t i = 0; i < p->n[y]; i++) {
            const uint8_t *restrict row = in->rgb + (size_t)(p->from[y] + i) * n;
            for (size_t x = 0; x < n; x++) sums[x] += row[x] * k[i];
        }
        uint8_t *to = out->rgb + (size_t)y * n;
        for (size_t x = 0; x < n; x++) to[x] = rounded(sums[x]);
    }
}

static tern_status resize_across(const tn_picture *in, tn_filter filter, int32_t width, tn_picture *out,
                                 tern_error *err) {
    plan p;
    TN_TRY(tn_picture_make(in->ctx, "resized picture", (uint64_t)width, (uint64_t)in->height, out, err));
    tern_status st = make_plan(in->ctx, filter, in->width, width, &p, err);
    if (st != TERN_OK) {
        tn_picture_free(out);
        return st;
    }
    across(in, &p, out);
    plan_free(&p);
    return TERN_OK;
}

static tern_status resize_down(const tn_picture *in, tn_filter filter, int32_t height, tn_picture *out,
                               tern_error *err) {
    plan p;
    TN_TRY(tn_picture_make(in->ctx, "resized picture", (uint64_t)in->width, (uint64_t)height, out, err));
    tern_status st = make_plan(in->ctx, filter, in->height, height, &p, err);
    if (st != TERN_OK) {
        tn_picture_free(out);
        return st;
    }
    int32_t *sums = tn_alloc(in->ctx, TN_MEM_OTHER, (size_t)in->width * 3, sizeof *sums);
    if (sums) down(in, &p, sums, out);
    plan_free(&p);
    tn_free(in->ctx, sums);
    if (sums) return TERN_OK;
    tn_picture_free(out);
    return tn_fail(err, TERN_E_MEMORY, "no memory to resize a picture");
}

tern_status tn_picture_resize(const tn_picture *in, tn_filter filter, int32_t width, int32_t height,
                              tn_picture *out, tern_error *err) {
    *out = (tn_picture){0};
    if (width == in->width && height == in->height) {
        TN_TRY(tn_picture_make(in->ctx, "picture", (uint64_t)width, (uint64_t)height, out, err));
        memcpy(out->rgb, in->rgb, (size_t)width * (size_t)height * 3);
        return TERN_OK;
    }
    if (height == in->height) return resize_across(in, filter, width, out, err);
    if (width == in->width) return resize_down(in, filter, height, out, err);
    tn_picture between;
    TN_TRY(resize_across(in, filter, width, &between, err));
    tern_status st = resize_down(&between, filter, height, out, err);
    tn_picture_free(&between);
    return st;
}
