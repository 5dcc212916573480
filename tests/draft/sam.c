/* The suffix automaton against looking everywhere, token by token; linear size; no allocation within what was
 * reserved. */
#include "base/rng.h"
#include "draft/sam.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fixture/scarce.h"

static uint64_t seed(void) {
    const char *t = getenv("TERN_SEED");
    return t ? strtoull(t, NULL, 0) : 1;
}

static int32_t same_before(const int32_t *text, int32_t a, int32_t b) {
    int32_t n = 0;
    while (n < a && n < b && text[a - 1 - n] == text[b - 1 - n] && text[a - 1 - n] != TN_SAM_SEPARATOR) n++;
    return n;
}

/* Longest suffix of text[0..n) that ends somewhere before. */
static int32_t longest_self(const int32_t *text, int32_t n) {
    int32_t best = 0;
    for (int32_t e = 1; e < n; e++) {
        int32_t len = same_before(text, e, n);
        best = len > best ? len : best;
    }
    return best;
}

static void random_text(tn_rng *rng, int32_t *text, int32_t n, int32_t alphabet) {
    for (int32_t i = 0; i < n;) {
        if (i > 8 && tn_rng_below(rng, 3) == 0) { /* a copy of something earlier */
            int32_t from = (int32_t)tn_rng_below(rng, (uint64_t)i), len = 1 + (int32_t)tn_rng_below(rng, 12);
            for (int32_t j = 0; j < len && i < n; j++) text[i++] = text[from + j];
        } else {
            text[i++] = (int32_t)tn_rng_below(rng, (uint64_t)alphabet);
        }
    }
}

static void check_next(const tn_sam *s, const tn_sam_match *m, const int32_t *text, int32_t n) {
    int32_t pos[8], n_next = tn_sam_next(s, m, pos, 8);
    if (m->length) assert_true(m->end <= n);
    for (int32_t i = 0; i < n_next; i++) {
        assert_true(pos[i] > 0 && pos[i] < n);
        for (int32_t j = 0; j < i; j++)
            assert_int_not_equal(text[pos[i]], text[pos[j]]); /* different continuations */
        if (i) assert_true(pos[i] <= pos[i - 1]);
        assert_true(same_before(text, pos[i], m->end) >= m->length);
    }
}

static void text_in_itself(void **state) {
    (void)state;
    tn_ctx ctx;
    tn_ctx_init(&ctx, NULL);
    tn_rng rng = {seed()};
    for (int round = 0; round < 120; round++) {
        int32_t text[300], n = 1 + (int32_t)tn_rng_below(&rng, 300),
                           alphabet = 1 + (int32_t)tn_rng_below(&rng, 8);
        random_text(&rng, text, n, alphabet);
        tn_sam *s;
        tern_error err;
        assert_int_equal(tn_sam_open(&ctx, (int32_t)tn_rng_below(&rng, 40), &s, &err), TERN_OK);
        for (int32_t i = 0; i < n; i++) {
            assert_int_equal(tn_sam_push(s, text[i], &err), TERN_OK);
            tn_sam_match m = tn_sam_self(s);
            int32_t want = longest_self(text, i + 1);
            if (m.length != want)
                fail_msg("seed %llu round %d: suffix of %d instead of %d at %d", (unsigned long long)seed(),
                         round, m.length, want, i);
            if (!want) continue;
            assert_true(m.end <= i && same_before(text, m.end, i + 1) >= want);
            check_next(s, &m, text, i + 1);
            int32_t last = m.length;
            for (m = tn_sam_shorter(s, &m); m.length; m = tn_sam_shorter(s, &m)) {
                assert_true(m.length < last && same_before(text, m.end, i + 1) >= m.length);
                last = m.length;
            }
        }
        tn_sam_close(&s);
    }
}

/* Several texts, and a foreign one followed through them. */
static void texts_in_a_store(void **state) {
    (void)state;
    tn_ctx ctx;
    tn_ctx_init(&ctx, NULL);
    tn_rng rng = {seed() + 7};
    for (int round = 0; round < 120; round++) {
        enum { N = 400 };
        int32_t all[N], query[100], n = 0, alphabet = 2 + (int32_t)tn_rng_below(&rng, 6);
        tn_sam *s;
        tern_error err;
        assert_int_equal(tn_sam_open(&ctx, 0, &s, &err), TERN_OK);
        while (n < N - 90) {
            int32_t len = 1 + (int32_t)tn_rng_below(&rng, 80);
            random_text(&rng, all + n, len, alphabet);
            n += len;
            all[n++] = TN_SAM_SEPARATOR;
        }
        for (int32_t i = 0; i < n; i++) assert_int_equal(tn_sam_push(s, all[i], &err), TERN_OK);
        assert_int_equal(tn_sam_length(s), n);
        random_text(&rng, query, 100, alphabet + 1); /* one token is in no text */
        tn_sam_match m = {0};
        for (int32_t i = 0; i < 100; i++) {
            tn_sam_follow(s, &m, query[i]);
            int32_t want = 0;
            for (int32_t e = 1; e <= n; e++) {
                int32_t len = 0;
                while (len < e && len <= i && all[e - 1 - len] == query[i - len]) len++;
                want = len > want ? len : want;
            }
            if (m.length != want)
                fail_msg("seed %llu round %d: match of %d instead of %d at %d", (unsigned long long)seed(),
                         round, m.length, want, i);
            for (int32_t j = 0; j < want; j++) assert_int_equal(all[m.end - 1 - j], query[i - j]);
            if (want) check_next(s, &m, all, n);
        }
        tn_sam_close(&s);
    }
}

static void linear_and_planned(void **state) {
    (void)state;
    tern_hooks h;
    scarce memory = {.left = -1};
    scarce_hooks(&h, &memory);
    tn_ctx ctx;
    tn_ctx_init(&ctx, &h);
    enum { N = 50000 };
    static int32_t text[N];
    tn_rng rng = {seed()};
    tern_error err;
    for (int kind = 0; kind < 3; kind++) {
        if (kind == 0) random_text(&rng, text, N, 3000);
        else
            for (int32_t i = 0; i < N; i++)
                text[i] = kind == 1
                              ? i < N / 2 ? 1 : i % 3
                              : (int32_t)((int64_t)i * i % 977); /* the worst for states; long periods */
        tn_sam *s;
        assert_int_equal(tn_sam_open(&ctx, N, &s, &err), TERN_OK);
        long before = memory.made;
        for (int32_t i = 0; i < N; i++) assert_int_equal(tn_sam_push(s, text[i], &err), TERN_OK);
        assert_int_equal(memory.made, before);
        assert_true(tn_sam_bytes(s) < 200 * (size_t)N);
        tn_sam_clear(s);
        assert_int_equal(tn_sam_self(s).length, 0);
        tn_sam_close(&s);
    }
    for (long at = 0;; at++) { /* growing may fail anywhere; what was there still works */
        memory.left = at;
        tn_sam *s = NULL;
        tern_status st = tn_sam_open(&ctx, 0, &s, &err);
        int32_t i = 0;
        for (; st == TERN_OK && i < 200; i++) st = tn_sam_push(s, i % 7, &err);
        memory.left = -1;
        if (s) {
            int32_t n = tn_sam_length(s);
            for (int32_t j = 0; j < 20; j++) assert_int_equal(tn_sam_push(s, (n + j) % 7, &err), TERN_OK);
            if (n > 7) assert_int_equal(tn_sam_self(s).length, n + 20 - 7);
        }
        tn_sam_close(&s);
        if (st == TERN_OK) break;
        assert_int_equal(st, TERN_E_MEMORY);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(text_in_itself), cmocka_unit_test(texts_in_a_store),
                                       cmocka_unit_test(linear_and_planned)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
