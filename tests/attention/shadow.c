/* tern_shadow.h: full attention at ratio 1, near it below, whatever the shape; nothing breaks on degenerate
 * input. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "tern_shadow.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static uint64_t rng = 0x5eed;
static float uniform(void) {
    rng = rng * 6364136223846793005u + 1442695040888963407u;
    return (float)(rng >> 40) / 8388608.0f - 1;
}

typedef struct text {
    int32_t n, heads, kv, d;
    float *q, *k, *v, *out;
} text;

static text text_new(int32_t n, int32_t heads, int32_t kv, int32_t d, float sharp) {
    text t = {.n = n, .heads = heads, .kv = kv, .d = d};
    size_t nq = (size_t)(n * heads * d), nk = (size_t)(n * kv * d);
    t.q = malloc(nq * 4);
    t.k = malloc(nk * 4);
    t.v = malloc(nk * 4);
    t.out = malloc(nq * 4);
    for (size_t i = 0; i < nk; i++) t.k[i] = uniform(), t.v[i] = uniform();
    for (size_t i = 0; i < nq; i++) { /* every query looks for some key before it */
        size_t row = i / (size_t)(heads * d), head = i / (size_t)d % (size_t)heads,
               pos = row * (head + 1) / (size_t)(heads + 1);
        t.q[i] = sharp * (t.k[(pos * (size_t)kv + head / (size_t)(heads / kv)) * (size_t)d + i % (size_t)d] +
                          0.3f * uniform());
    }
    return t;
}

static void text_free(text *t) { free(t->q), free(t->k), free(t->v), free(t->out); }

static tern_shadow_options options(const text *t, float ratio) {
    tern_shadow_options o;
    tern_shadow_options_defaults(&o);
    o.n_heads = t->heads;
    o.n_kv_heads = t->kv;
    o.d_head = t->d;
    o.max_tokens = t->n;
    o.ratio = ratio;
    return o;
}

static tern_shadow *open_it(const tern_shadow_options *o) {
    tern_shadow *s;
    tern_error err;
    if (tern_shadow_open(o, &s, &err)) fail_msg("%s", err.message);
    return s;
}

static void feed(tern_shadow *s, const text *t, int32_t from, int32_t to, int32_t chunk) {
    tern_error err;
    for (int32_t i = from, n; i < to; i += n) {
        n = to - i < chunk ? to - i : chunk;
        size_t kv = (size_t)(i * t->kv * t->d), row = (size_t)(i * t->heads * t->d);
        if (tern_shadow_append(s, t->k + kv, t->v + kv, n, &err) ||
            tern_shadow_attend(s, t->q + row, n, t->out + row, &err))
            fail_msg("%s", err.message);
    }
}

/* Mean distance from exact attention in double arithmetic, relative to its size. */
static double distance(const text *t) {
    double error = 0, size = 0, *w = malloc((size_t)t->n * sizeof *w), *o = malloc((size_t)t->d * sizeof *o);
    for (int32_t i = 0; i < t->n; i++) {
        for (int32_t h = 0; h < t->heads; h++) {
            const float *q = t->q + (i * t->heads + h) * t->d, *got = t->out + (i * t->heads + h) * t->d;
            int32_t a = h / (t->heads / t->kv);
            double max = -INFINITY, sum = 0;
            for (int32_t p = 0; p <= i; p++) {
                w[p] = 0;
                for (int32_t x = 0; x < t->d; x++)
                    w[p] += (double)q[x] * (double)t->k[(p * t->kv + a) * t->d + x] / sqrt(t->d);
                max = fmax(max, w[p]);
            }
            memset(o, 0, (size_t)t->d * sizeof *o);
            for (int32_t p = 0; p <= i; p++) {
                sum += w[p] = exp(w[p] - max);
                for (int32_t x = 0; x < t->d; x++) o[x] += w[p] * (double)t->v[(p * t->kv + a) * t->d + x];
            }
            for (int32_t x = 0; x < t->d; x++) {
                error += pow((double)got[x] - o[x] / sum, 2);
                size += pow(o[x] / sum, 2);
            }
        }
    }
    free(w);
    free(o);
    return sqrt(error / size);
}

static void near_full(void **state) {
    (void)state;
    static const int32_t shapes[][4] = {{300, 4, 2, 32}, {257, 3, 1, 20}, {130, 2, 2, 64}, {250, 14, 2, 64}};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        text t = text_new(shapes[i][0], shapes[i][1], shapes[i][2], shapes[i][3], 12);
        for (int share = -1; share <= 8; share += 3) {
            tern_shadow_options o = options(&t, 1);
            tern_shadow *s = open_it(&o);
            feed(s, &t, 0, t.n, 64);
            double full = distance(&t);
            assert_true(tern_shadow_selected(s) == 1);
            tern_shadow_close(&s);
            o = options(&t, 0.5f);
            o.share_rows = share;
            o.pool_heads = 1;
            s = open_it(&o);
            feed(s, &t, 0, t.n, 64);
            double sparse = distance(&t);
            assert_true(full < 1e-5);
            if (!(sparse < 0.25) || tern_shadow_selected(s) > 0.85)
                fail_msg("shape %zu, share %d: %.3f away, %.3f selected", i, share, sparse,
                         tern_shadow_selected(s));
            tern_shadow_close(&s);
        }
        text_free(&t);
    }
}

/* Rows that share a list have their say by their own largest scores: one whose scores are three times as large takes no more
 * of it: by the same measure for all, quiet rows are .22 away. */
static void loud_rows_share(void **state) {
    (void)state;
    text t = text_new(300, 4, 2, 32, 12);
    double away[2];
    for (int loud = 0; loud < 2; loud++) {
        const size_t row = (size_t)(t.heads * t.d);
        for (int32_t i = 0; i < t.n && loud; i++)
            for (size_t x = 0; x < row && i % 4; x++) t.q[(size_t)i * row + x] *= 0.3f;
        tern_shadow_options o = options(&t, 0.25f);
        o.share_rows = 4;
        o.pool_heads = 1;
        tern_shadow *s = open_it(&o);
        feed(s, &t, 0, t.n, 64);
        away[loud] = distance(&t);
        tern_shadow_close(&s);
    }
    print_message("%.3f away, %.3f with loud rows\n", away[0], away[1]);
    assert_true(away[1] < 0.16);
    text_free(&t);
}

/* What was taken back leaves nothing; with scales given, neither does the first text. */
static void taken_back(void **state) {
    (void)state;
    text a = text_new(200, 4, 2, 32, 6), b = text_new(200, 4, 2, 32, 6);
    tern_shadow_options o = options(&a, 0.3f);
    o.scale_q = 6.0f / 127;
    o.scale_k = 1.0f / 127;
    tern_shadow *s = open_it(&o), *fresh = open_it(&o);
    feed(s, &a, 0, 200, 50);
    assert_int_equal(tern_shadow_truncate(s, 0, NULL), 0);
    feed(s, &b, 0, 200, 50);
    float *want = malloc(200 * 4 * 32 * 4);
    memcpy(want, b.out, 200 * 4 * 32 * 4);
    feed(fresh, &b, 0, 200, 50);
    assert_memory_equal(want, b.out, 200 * 4 * 32 * 4);
    assert_int_equal(tern_shadow_n_tokens(s), 200);
    free(want);
    tern_shadow_close(&s);
    tern_shadow_close(&fresh);
    text_free(&a);
    text_free(&b);
}

static void degenerate(void **state) {
    (void)state;
    for (int kind = 0; kind < 7; kind++) {
        for (int32_t n = 1; n <= 400; n = n < 4 ? n + 1 : n * 3 + 1) {
            for (int share = -1; share <= 4; share += 5) {
                text t = text_new(n, kind == 1 ? 1 : 4, 1, 16, 3);
                size_t nq = (size_t)(n * t.heads * t.d), nk = (size_t)(n * t.d), bad = nk / 2;
                for (size_t i = 0; i < nk; i++) {
                    if (kind == 2) t.k[i] = 0.5f; /* all scores of a row equal */
                    if (kind == 3) t.k[i] = 0;    /* and nothing to scale by */
                    if (kind == 4 && i == bad) t.k[i] = NAN;
                    if (kind == 5 && i == bad) t.k[i] = i % 2 ? INFINITY : -INFINITY;
                }
                if (kind == 6) t.q[nq / 2] = NAN;
                tern_shadow_options o = options(&t, 0.1f);
                o.share_rows = share;
                tern_shadow *s = open_it(&o);
                feed(s, &t, 0, n, 100);
                size_t until = kind < 4 ? nq
                               : kind == 6
                                   ? nq / 2 / (size_t)(t.heads * t.d) / 4 * 4 * (size_t)(t.heads * t.d)
                                   : bad / 16 * (size_t)(t.heads * t.d);
                for (size_t i = 0; i < until; i++)
                    assert_true(isfinite(t.out[i])); /* what lies before the bad one does not see it */
                tern_shadow_close(&s);
                text_free(&t);
            }
        }
    }
}

static void refusals(void **state) {
    (void)state;
    text t = text_new(8, 4, 2, 16, 1);
    tern_shadow *s;
    tern_error err = {0};
    for (int i = 0; i < 10; i++) {
        tern_shadow_options o = options(&t, 0.2f);
        if (i == 0) o.size_bytes = 3;
        if (i == 1) o.n_kv_heads = 3;
        if (i == 2) o.d_head = 18;
        if (i == 3) o.max_tokens = 0;
        if (i == 4) o.ratio = 0;
        if (i == 5) o.ratio = NAN;
        if (i == 6) o.share_rows = 9;
        if (i == 7) o.scale_k = -1;
        float weights[4] = {1, 0, 1, 1};
        if (i == 8) o.head_weight = weights;
        if (i == 9) o.share_rows = -2;
        assert_int_not_equal(tern_shadow_open(&o, &s, &err), 0);
        assert_null(s);
        assert_true(strlen(err.message) > 5);
    }
    tern_shadow_options o = options(&t, 0.2f);
    s = open_it(&o);
    assert_int_not_equal(tern_shadow_attend(s, t.q, 1, t.out, &err), 0);
    assert_int_not_equal(tern_shadow_append(s, t.k, t.v, 9, &err), 0);
    assert_int_not_equal(tern_shadow_truncate(s, 1, NULL), 0);
    assert_int_not_equal(tern_shadow_append(s, NULL, t.v, 1, &err), 0);
    assert_int_not_equal(tern_shadow_append(s, t.k, NULL, 1, &err), 0);
    assert_int_equal(tern_shadow_append(s, NULL, NULL, 0, &err), 0);
    assert_int_equal(tern_shadow_n_tokens(s), 0);
    assert_int_equal(tern_shadow_append(s, t.k, t.v, 1, &err), 0);
    assert_int_not_equal(tern_shadow_attend(s, NULL, 1, t.out, &err), 0);
    assert_int_not_equal(tern_shadow_attend(s, t.q, 1, NULL, &err), 0);
    tern_shadow_close(&s);
    tern_shadow_close(&s);
    text_free(&t);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(near_full), cmocka_unit_test(loud_rows_share),
                                       cmocka_unit_test(taken_back), cmocka_unit_test(degenerate),
                                       cmocka_unit_test(refusals)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
