/* Are the sampler's distributions those of the brute-force oracle (tests/oracle/sampling.py), does drawing
 * follow them, and do large vocabularies go through the same filters as small ones? */
#include "model/sampler.h"

#include "base/rng.h"

#include <jansson.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { MAX = 4096 };

static float number(const json_t *o, const char *key) {
    return (float)json_number_value(json_object_get(o, key));
}

static void oracle_vectors(void **state) {
    (void)state;
    json_error_t je;
    json_t *j = json_load_file(TN_SOURCE_DIR "/tests/oracle/fixtures/sampling.json", 0, &je), *c, *x;
    if (!j) fail_msg("%s:%d: %s", je.source, je.line, je.text);
    float logits[64];
    int32_t history[64];
    size_t i, k, n_vocab = json_array_size(json_object_get(j, "logits")),
                 n_history = json_array_size(json_object_get(j, "history"));
    assert_in_range(n_vocab, 1, 64);
    assert_in_range(n_history, 1, 64);
    json_array_foreach(json_object_get(j, "logits"), i, x) logits[i] = (float)json_number_value(x);
    json_array_foreach(json_object_get(j, "history"), i, x) history[i] = (int32_t)json_integer_value(x);
    tn_ctx ctx;
    tn_ctx_init(&ctx, NULL);
    assert_true(json_array_size(json_object_get(j, "cases")) > 10);
    json_array_foreach(json_object_get(j, "cases"), i, c) {
        tern_sampling p;
        tern_sampling_defaults(&p);
        p.temperature = number(c, "temperature");
        p.top_k = (int32_t)number(c, "top_k");
        p.top_p = number(c, "top_p");
        p.min_p = number(c, "min_p");
        p.repeat_penalty = number(c, "repeat_penalty");
        p.repeat_last_n = (int32_t)number(c, "repeat_last_n");
        tn_sampler s;
        tern_error err;
        if (tn_sampler_open(&ctx, &p, n_vocab, &s, &err) != TERN_OK) fail_msg("case %zu: %s", i, err.message);
        json_t *ids = json_object_get(c, "ids"), *probs = json_object_get(c, "p");
        for (int again = 0; again < 2; again++) { /* a sampler keeps nothing from one call to the next */
            size_t n = tn_sampler_distribution(&s, logits, history, n_history);
            if (n != json_array_size(ids))
                fail_msg("case %zu: %zu candidates, want %zu", i, n, json_array_size(ids));
            for (k = 0; k < n; k++) {
                double want = json_number_value(json_array_get(probs, k));
                if (s.cand[k].id != json_integer_value(json_array_get(ids, k)))
                    fail_msg("case %zu: candidate %zu is token %d", i, k, s.cand[k].id);
                if (fabs(s.cand[k].p - want) > 1e-6)
                    fail_msg("case %zu: token %d has p %.9f, want %.9f", i, s.cand[k].id, s.cand[k].p, want);
            }
        }
        /* 4000 draws stay within five standard deviations of every p */
        enum { N_DRAWS = 4000 };
        int count[64] = {0};
        for (int d = 0; d < N_DRAWS; d++) count[tn_sampler_draw(&s, logits, history, n_history)]++;
        int drawn = 0;
        for (k = 0; k < json_array_size(ids); k++) {
            double want = json_number_value(json_array_get(probs, k)), sd = sqrt(N_DRAWS * want * (1 - want));
            int got = count[json_integer_value(json_array_get(ids, k))];
            if (fabs(got - N_DRAWS * want) > 5 * sd + 1)
                fail_msg("case %zu: token with p %.4f drawn %d times of %d", i, want, got, N_DRAWS);
            drawn += got;
        }
        assert_int_equal(drawn, N_DRAWS);
        tn_sampler_close(&s);
    }
    json_decref(j);
}

static int by_logit(const void *a, const void *b) {
    const tn_candidate *x = a, *y = b;
    if (x->logit != y->logit) return x->logit > y->logit ? -1 : 1;
    return x->id - y->id;
}

/* top-k of many values, with ties and orders that trouble selection algorithms */
static void top_k_is_a_sort(void **state) {
    (void)state;
    tn_ctx ctx;
    tn_ctx_init(&ctx, NULL);
    static float logits[MAX];
    static tn_candidate want[MAX];
    for (uint64_t seed = 1; seed <= 400; seed++) {
        tn_rng rng = {seed};
        size_t n = 1 + tn_rng_below(&rng, seed % 10 ? 200 : MAX);
        uint64_t kind = tn_rng_below(&rng, 5);
        for (size_t i = 0; i < n; i++) {
            double r = tn_rng_f64(&rng);
            logits[i] = (float)(kind == 0   ? (double)i
                                : kind == 1 ? -(double)i
                                : kind == 2 ? floor(r * 4)
                                : kind == 3 ? 7
                                            : r * 20 - 10);
            want[i] = (tn_candidate){.id = (int32_t)i, .logit = logits[i]};
        }
        qsort(want, n, sizeof *want, by_logit);
        tern_sampling p;
        tern_sampling_defaults(&p);
        p.temperature = 1;
        p.top_p = 1;
        p.min_p = 0;
        p.top_k = (int32_t)(1 + tn_rng_below(&rng, n + n / 4 + 1));
        tn_sampler s;
        assert_int_equal(tn_sampler_open(&ctx, &p, n, &s, NULL), TERN_OK);
        size_t kept = tn_sampler_distribution(&s, logits, NULL, 0),
               k = (size_t)p.top_k < n ? (size_t)p.top_k : n;
        if (kept != k) fail_msg("seed %d: kept %zu of %zu, want %zu", (int)seed, kept, n, k);
        double sum = 0;
        for (size_t i = 0; i < k; i++) {
            if (s.cand[i].id != want[i].id)
                fail_msg("seed %d: candidate %zu is %d, want %d", (int)seed, i, s.cand[i].id, want[i].id);
            sum += s.cand[i].p;
        }
        assert_true(fabs(sum - 1) < 1e-9);
        tn_sampler_close(&s);
    }
}

static void draws_are_reproducible(void **state) {
    (void)state;
    tn_ctx ctx;
    tn_ctx_init(&ctx, NULL);
    float logits[32];
    int32_t first[64];
    for (int i = 0; i < 32; i++) logits[i] = (float)(i % 5) * 0.3f;
    tern_sampling p;
    tern_sampling_defaults(&p);
    for (uint64_t run = 0; run < 3; run++) { /* seeds 7, 7, 8 */
        p.seed = 7 + run / 2;
        tn_sampler s;
        assert_int_equal(tn_sampler_open(&ctx, &p, 32, &s, NULL), TERN_OK);
        int same = 0;
        for (int i = 0; i < 64; i++) {
            int32_t id = tn_sampler_draw(&s, logits, NULL, 0);
            if (run == 0) first[i] = id;
            same += first[i] == id;
        }
        if (run < 2) assert_int_equal(same, 64);
        else assert_true(same < 64);
        tn_sampler_close(&s);
    }
}

/* The 10,000th number of seed 5489 is the C++ standard's. The doubles are those of libstdc++ 12 (a program with
 * std::mt19937 and std::uniform_real_distribution<double>): the first three of each seed, and the thousandth after
 * them. */
static void random_numbers_of_cpp(void **state) {
    (void)state;
    static const struct {
        uint64_t seed;
        double first[3], later;
    } want[] = {
        {5489, {0.1354770042967805, 0.8350085899945795, 0.96886777112423139}, 0.85278242934290061},
        {42, {0.79654298428784598, 0.18343478789336848, 0.77969099761266125}, 0.086705210428948729},
        {0, {0.59284461651668263, 0.84426574425659828, 0.85794561998982988}, 0.9202717611549609},
    };
    tn_mt19937 r;
    tn_mt_seed(&r, 5489);
    for (int i = 0; i < 9999; i++) (void)tn_mt_u32(&r);
    assert_int_equal(tn_mt_u32(&r), 4123659995u);
    for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
        tn_mt_seed(&r, want[i].seed);
        for (int k = 0; k < 3; k++) assert_true(tn_mt_f64(&r) == want[i].first[k]);
        for (int k = 6; k < 2000; k++) (void)tn_mt_u32(&r);
        assert_true(tn_mt_f64(&r) == want[i].later);
    }
}

/* The likeliest come first, and the token is the first whose probabilities together reach the number drawn: with
 * four of a quarter each it is the number's first two bits. */
static void draws_go_by_the_number(void **state) {
    (void)state;
    tn_ctx ctx;
    tn_ctx_init(&ctx, NULL);
    const float logits[4] = {2, 2, 2, 2};
    tern_sampling p;
    tern_sampling_defaults(&p);
    p.seed = 42;
    p.top_p = 1;
    tn_sampler s;
    assert_int_equal(tn_sampler_open(&ctx, &p, 4, &s, NULL), TERN_OK);
    assert_int_equal(tn_sampler_draw(&s, logits, NULL, 0), 3); /* 0.797 */
    assert_int_equal(tn_sampler_draw(&s, logits, NULL, 0), 0); /* 0.183 */
    assert_int_equal(tn_sampler_draw(&s, logits, NULL, 0), 3); /* 0.780 */
    tn_sampler_close(&s);
}

static void odd_logits(void **state) {
    (void)state;
    tn_ctx ctx;
    tn_ctx_init(&ctx, NULL);
    const float logits[6] = {NAN, -INFINITY, 1, NAN, 3, -2};
    tern_sampling p;
    tern_sampling_defaults(&p);
    tn_sampler s;
    assert_int_equal(tn_sampler_open(&ctx, &p, 6, &s, NULL), TERN_OK);
    for (int i = 0; i < 200; i++) {
        int32_t id = tn_sampler_draw(&s, logits, NULL, 0);
        assert_true(id == 2 || id == 4 || id == 5);
    }
    tn_sampler_close(&s);
    assert_int_equal(tn_argmax(logits, 6), 4);
    p.temperature = 0;
    assert_int_equal(tn_sampler_open(&ctx, &p, 6, &s, NULL), TERN_OK);
    assert_int_equal(tn_sampler_draw(&s, logits, NULL, 0), 4);
    tn_sampler_close(&s);
    assert_true(fabs((double)tn_logprob(logits + 4, 2, 1) - (-5 - log1p(exp(-5)))) < 1e-6);
}

/* Against looking at everything, with many equals, infinities and no numbers. */
static void top_logits(void **state) {
    (void)state;
    tn_rng rng = {5};
    float x[300], best[8];
    int32_t ids[8];
    for (int round = 0; round < 2000; round++) {
        size_t n = 1 + (size_t)tn_rng_below(&rng, 300);
        int k = 1 + (int)tn_rng_below(&rng, 8), want = 0;
        for (size_t i = 0; i < n; i++) {
            uint64_t v = tn_rng_below(&rng, 40);
            x[i] = v == 39 ? NAN : v == 38 ? -INFINITY : (float)v;
        }
        int got = tn_top_logits(x, n, k, ids, best);
        bool taken[300] = {false};
        for (; want < k; want++) {
            int32_t most = -1;
            for (size_t i = 0; i < n; i++) {
                if (!taken[i] && x[i] > (most < 0 ? -INFINITY : x[most])) most = (int32_t)i;
            }
            if (most < 0) break;
            taken[most] = true;
            assert_true(want < got);
            assert_int_equal(ids[want], most);
            assert_true(best[want] == x[most]);
        }
        assert_int_equal(got, want);
        assert_int_equal(tn_argmax(x, n), want ? ids[0] : 0);
    }
}

static void bad_settings(void **state) {
    (void)state;
    tn_ctx ctx;
    tn_ctx_init(&ctx, NULL);
    for (int i = 0; i < 9; i++) {
        tern_sampling p;
        tern_sampling_defaults(&p);
        switch (i) {
        case 0: p.temperature = -1; break;
        case 1: p.temperature = NAN; break;
        case 2: p.top_k = -1; break;
        case 3: p.top_p = 0; break;
        case 4: p.top_p = 1.5f; break;
        case 5: p.min_p = 1; break;
        case 6: p.min_p = NAN; break;
        case 7: p.repeat_penalty = 0; break;
        default: p.repeat_last_n = -2;
        }
        tn_sampler s;
        tern_error err = {0};
        assert_int_equal(tn_sampler_open(&ctx, &p, 8, &s, &err), TERN_E_INVALID);
        assert_true(err.message[0]);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(oracle_vectors),
        cmocka_unit_test(top_k_is_a_sort),
        cmocka_unit_test(draws_are_reproducible),
        cmocka_unit_test(random_numbers_of_cpp),
        cmocka_unit_test(draws_go_by_the_number),
        cmocka_unit_test(odd_logits),
        cmocka_unit_test(top_logits),
        cmocka_unit_test(bad_settings),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
