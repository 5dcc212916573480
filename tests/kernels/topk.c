/* Top-k selection: every variant against sorting, on distributions that are friendly and hostile to its
 * threshold search. */
#include "check.h"
#include "f32_variants.h"
#include "kernels/sparse_cuts.h"

static const int32_t *sort_scores;

static int by_score(const void *pa, const void *pb) {
    uint32_t a = *(const uint32_t *)pa, b = *(const uint32_t *)pb;
    int32_t x = sort_scores[a], y = sort_scores[b];
    return x != y ? (x < y) - (x > y) : (a > b) - (a < b);
}

static int by_position(const void *pa, const void *pb) {
    uint32_t a = *(const uint32_t *)pa, b = *(const uint32_t *)pb;
    return (a > b) - (a < b);
}

enum { MAX_N = 5000, N_SHAPES_OF_SCORES = 8 };

static int32_t score_of(tn_rng *rng, int shape, int32_t bound, size_t i, size_t n) {
    switch (shape) {
    case 0:
        return (int32_t)(((double)tn_rng_below(rng, 2001) + (double)tn_rng_below(rng, 2001) +
                          (double)tn_rng_below(rng, 2001) - 3000) /
                         3000 * bound);
    case 1: return 7;                                        /* all equal */
    case 2: return tn_rng_below(rng, 2) ? bound : -bound;    /* two values, the ends */
    case 3: return (int32_t)((double)i / (double)n * bound); /* ascending */
    case 4: return (int32_t)tn_rng_below(rng, 100);          /* below the keys' resolution */
    case 5: return i % 97 ? (int32_t)tn_rng_below(rng, 50) - bound : bound - (int32_t)i; /* a few far above */
    case 6: return -(int32_t)i;                                                          /* descending */
    default: return (int32_t)tn_rng_below(rng, 3) - 1;
    }
}

static void check(const f32_variant *v, tn_rng *rng, int shape, size_t n, size_t k, int32_t bound) {
    check_buf scores = check_new(n * sizeof(int32_t)), idx = check_new((k + 32) * sizeof(uint32_t));
    void *scratch = aligned_alloc(64, (tn_topk_scratch(n) + 63) / 64 * 64);
    int32_t *s = scores.p;
    uint32_t order[MAX_N];
    for (size_t i = 0; i < n; i++) {
        s[i] = score_of(rng, shape, bound, i, n);
        order[i] = (uint32_t)i;
    }
    sort_scores = s;
    qsort(order, n, sizeof *order, by_score);
    qsort(order, k, sizeof *order, by_position);
    check_buf cuts = check_new((tn_sparse_blocks(n) + 1) * sizeof(uint32_t)),
              want_cuts = check_new(cuts.n_bytes);
    v->k.topk(&(tn_topk_args){
        .scores = s, .n = n, .k = k, .bound = bound, .idx = idx.p, .cuts = cuts.p, .scratch = scratch});
    sparse_cuts(order, k, n, want_cuts.p);
    assert_memory_equal(cuts.p, want_cuts.p, cuts.n_bytes);
    check_free(&cuts);
    check_free(&want_cuts);
    if (memcmp(idx.p, order, k * sizeof *order))
        fail_msg("%s: shape %d, n %zu, k %zu, bound %d", v->name, shape, n, k, (int)bound);
    free(scratch);
    check_free(&scores);
    check_free(&idx);
}

static void test_against_sorting(void **state) {
    (void)state;
    f32_variant v[4];
    int n_variants = f32_variants(v);
    static const size_t ns[] = {1, 2, 15, 31, 32, 33, 63, 64, 65, 500, 2048, 4999};
    for (int i = 0; i < n_variants; i++) {
        tn_rng rng = {11};
        for (int shape = 0; shape < N_SHAPES_OF_SCORES; shape++) {
            for (size_t j = 0; j < sizeof ns / sizeof *ns; j++) {
                size_t n = ns[j], ks[] = {1, n / 5 + 1, n / 2 + 1, n > 1 ? n - 1 : 1, n};
                for (int x = 0; x < 5; x++) {
                    int32_t bound = tn_rng_below(&rng, 2) ? 127 * 127 * 64 : 127 * 127 * 512;
                    check(&v[i], &rng, shape, n, ks[x] < n ? ks[x] : n, bound);
                }
            }
        }
        for (int round = 0; round < 300; round++) {
            size_t n = 1 + tn_rng_below(&rng, MAX_N - 1);
            check(&v[i], &rng, (int)tn_rng_below(&rng, N_SHAPES_OF_SCORES), n,
                  1 + tn_rng_below(&rng, (uint32_t)n), 5000 + (int32_t)tn_rng_below(&rng, 1 << 30));
        }
    }
}

/* Merged scores against the definition; what lies outside the range stays. */
static void test_merge(void **state) {
    (void)state;
    f32_variant v[4];
    int n_variants = f32_variants(v);
    tn_rng rng = {12};
    for (int round = 0; round < 300; round++) {
        size_t n_rows = 1 + tn_rng_below(&rng, 20), n = 1 + tn_rng_below(&rng, 700),
               lds = n + tn_rng_below(&rng, 9);
        check_buf scores = check_new(((n_rows - 1) * lds + n) * 4), out = check_new(n * 4);
        const int32_t *row[20];
        int32_t first[20], end[20], top[20], *s = scores.p, *o = out.p;
        size_t window = 1 + tn_rng_below(&rng, (uint32_t)n), from = n;
        for (size_t i = 0; i < (n_rows - 1) * lds + n; i++)
            s[i] = (int32_t)tn_rng_below(&rng, 1 << 25) - (1 << 24);
        for (size_t r = 0; r < n_rows; r++) { /* neighbours end at most 3 apart; the last ends at n */
            end[r] = (int32_t)(n - (r + 1 < n_rows ? tn_rng_below(&rng, n < 4 ? (uint32_t)n : 4) : 0));
            first[r] = end[r] > (int32_t)window + 3 && round % 2 ? end[r] - (int32_t)window - 3 : 0;
            top[r] = (int32_t)tn_rng_below(&rng, 1 << 24);
            row[r] = s + r * lds;
            from = (size_t)first[r] < from ? (size_t)first[r] : from;
        }
        size_t p0 = round % 3 ? from : from + tn_rng_below(&rng, n - from),
               p1 = round % 3 ? n : p0 + tn_rng_below(&rng, n - p0 + 1);
        size_t base = tn_rng_below(&rng, 2) ? p0 / 2 : 0;
        for (size_t r = 0; r < n_rows; r++) row[r] += base;
        for (int i = 0; i < n_variants; i++) {
            for (size_t p = 0; p < n; p++) o[p] = 77;
            int32_t bound = v[i].k.topk_merge(&(tn_topk_merge_args){.row = row,
                                                                    .base = base,
                                                                    .n_rows = n_rows,
                                                                    .first = first,
                                                                    .end = end,
                                                                    .top = top,
                                                                    .p0 = p0,
                                                                    .p1 = p1,
                                                                    .out = o});
            int64_t largest = 1;
            for (size_t p = 0; p < n; p++) {
                bool inside = p >= p0 && p < p1;
                int64_t want = inside ? INT64_MIN : 77;
                for (size_t r = 0; r < n_rows && inside; r++) {
                    if ((int32_t)p < first[r] || (int32_t)p >= end[r]) continue;
                    int64_t d = s[r * lds + p] - top[r];
                    want = d > want ? d : want;
                }
                if (o[p] != want)
                    fail_msg("%s: position %zu of %zu is %d, not %lld", v[i].name, p, n, (int)o[p],
                             (long long)want);
                if (inside && llabs(want) > largest) largest = llabs(want);
            }
            assert_int_equal(bound, largest);
        }
        check_free(&scores);
        check_free(&out);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_against_sorting), cmocka_unit_test(test_merge)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
