/* Float attention: every variant against the scalar reference bit for bit, the reference against double
 * arithmetic. */
#include "check.h"
#include "f32_variants.h"

#include <math.h>
#include <stdbool.h>

typedef struct problem {
    tn_attn_f32_args a;
    check_buf q, k, v, scratch;
    int32_t *first, *end;
    uint64_t *tree;
    size_t n_pos; /* one past the last position any row sees */
} problem;

/* K and V hold exactly n_pos positions (K in whole panels); what no row sees is NaN. */
static problem problem_new(tn_rng *rng, size_t n_rows, size_t d, size_t n_ctx, int window,
                           size_t n_tree_words, check_fill fill) {
    problem p = {.n_pos = n_ctx};
    p.first = malloc(n_rows * sizeof *p.first);
    p.end = malloc(n_rows * sizeof *p.end);
    p.tree = calloc(n_rows * (n_tree_words + 1), sizeof *p.tree);
    for (size_t r = 0; r < n_rows; r++) {
        p.end[r] = (int32_t)(n_tree_words || n_rows > n_ctx ? n_ctx : n_ctx - n_rows + r + 1);
        p.first[r] = window && p.end[r] > window ? p.end[r] - window : 0;
        for (size_t j = 0; j < n_tree_words * 64; j++) {
            if (j != r && tn_rng_below(rng, 5)) continue;
            p.tree[r * n_tree_words + j / 64] |= 1ull << (j % 64);
            if (n_ctx + j + 1 > p.n_pos) p.n_pos = n_ctx + j + 1;
        }
    }
    size_t q_stride = d + tn_rng_below(rng, 9), panels = (p.n_pos + TN_KV_PANEL - 1) / TN_KV_PANEL;
    p.q = check_new(((n_rows - 1) * q_stride + d) * 4);
    p.k = check_new(panels * TN_KV_PANEL * d * 4);
    p.v = check_new(p.n_pos * d * 4);
    p.scratch = check_new(tn_attn_f32_scratch(d, p.n_pos) * 4);
    check_fill_f32(rng, fill, p.q.p, p.q.n_bytes / 4);
    check_fill_f32(rng, fill, p.v.p, p.v.n_bytes / 4);
    check_fill_f32(rng, fill, p.k.p, p.k.n_bytes / 4);
    float *k = p.k.p;
    for (size_t pos = p.n_pos; pos < panels * TN_KV_PANEL; pos++) {
        for (size_t i = 0; i < d; i++)
            k[pos / TN_KV_PANEL * d * TN_KV_PANEL + i * TN_KV_PANEL + pos % TN_KV_PANEL] = NAN;
    }
    p.a = (tn_attn_f32_args){.q = p.q.p,
                             .q_stride = q_stride,
                             .k_panels = p.k.p,
                             .v = p.v.p,
                             .n_rows = n_rows,
                             .d_head = d,
                             .scale = 1.0f / sqrtf((float)d),
                             .first_pos = p.first,
                             .end_pos = p.end,
                             .tree_mask = n_tree_words ? p.tree : NULL,
                             .tree_base = n_ctx,
                             .n_tree_words = n_tree_words,
                             .scratch = p.scratch.p,
                             .out_stride = d + tn_rng_below(rng, 9)};
    return p;
}

static void problem_free(problem *p) {
    check_free(&p->q);
    check_free(&p->k);
    check_free(&p->v);
    check_free(&p->scratch);
    free(p->first);
    free(p->end);
    free(p->tree);
}

static check_buf out_new(const problem *p) {
    return check_new(((p->a.n_rows - 1) * p->a.out_stride + p->a.d_head) * 4);
}

static void check_problem(const f32_variant *v, int n_v, problem *p, const char *what) {
    check_buf want = out_new(p);
    p->a.out = want.p;
    v[0].k.attn_f32(&p->a);
    for (int i = 1; i < n_v; i++) {
        check_buf got = out_new(p);
        p->a.out = got.p;
        v[i].k.attn_f32(&p->a);
        for (size_t j = 0; j < got.n_bytes / 4; j++) {
            float x = ((float *)want.p)[j], y = ((float *)got.p)[j];
            if (!check_same_f32(x, y)) {
                fail_msg("%s %s: %zu rows, d %zu, %zu positions: row %zu [%zu] = %a, reference %a", v[i].name,
                         what, p->a.n_rows, p->a.d_head, p->n_pos, j / p->a.out_stride, j % p->a.out_stride,
                         (double)y, (double)x);
            }
        }
        check_free(&got);
    }
    check_free(&want);
}

static void test_variants(void **state) {
    (void)state;
    f32_variant v[4];
    int n_v = f32_variants(v);
    tn_rng rng = {check_seed()};
    static const size_t ds[] = {4, 12, 16, 36, 64, 80, 96, 100, 112, 128, 256},
                        rows[] = {1, 2, 3, 5, 6, 7, 13, 24, 25, 49},
                        ctxs[] = {1, 15, 16, 31, 32, 33, 63, 65, 100, 129, 300};
    for (size_t i = 0; i < 10; i++) {
        for (size_t j = 0; j < 11; j++) {
            size_t d = ds[tn_rng_below(&rng, sizeof ds / sizeof *ds)];
            int window = tn_rng_below(&rng, 3) ? 0 : 1 + (int)tn_rng_below(&rng, 70);
            problem p = problem_new(&rng, rows[i], d, ctxs[j], window, 0,
                                    (check_fill)tn_rng_below(&rng, CHECK_N_FILLS));
            if (!tn_rng_below(&rng, 3)) p.a.soft_cap = 2.0f;
            float sinks[64];
            for (int r = 0; r < 64; r++)
                sinks[r] = r % 9 == 8 ? 500 : r % 9 == 7 ? -500 : (float)tn_rng_below(&rng, 100) / 10 - 5;
            if (!tn_rng_below(&rng, 3)) p.a.sinks = sinks;
            float slopes[64];
            int32_t own[64];
            for (int r = 0; r < 64; r++) {
                slopes[r] = (float)tn_rng_below(&rng, 100) / 100;
                own[r] =
                    (int32_t)tn_rng_below(&rng, 600); /* rows of a text that is all there: anywhere in it */
            }
            if (!tn_rng_below(&rng, 3)) p.a.slopes = slopes, p.a.own_pos = own;
            check_problem(v, n_v, &p, window ? "windowed" : "causal");
            problem_free(&p);
            p = problem_new(&rng, rows[i], d, ctxs[j], window, 1 + tn_rng_below(&rng, 2), CHECK_RANDOM);
            check_problem(v, n_v, &p, "tree");
            problem_free(&p);
        }
    }
}

/* Where values are keys too, the bits are those of keys that hold the same: in every form, for every variant. */
static void test_values_as_keys(void **state) {
    (void)state;
    f32_variant v[4];
    int n_v = f32_variants(v);
    tn_rng rng = {check_seed()};
    static const size_t ds[] = {20, 48, 64, 100, 320, 576}, rows[] = {1, 5, 8, 24, 33};
    for (int i = 0; i < check_rounds(60); i++) {
        const size_t d = ds[i % 6], n_ctx = 1 + tn_rng_below(&rng, 200);
        const tn_kv_type type = (tn_kv_type)(i / 6 % TN_N_KV_TYPES);
        problem p = problem_new(&rng, rows[i % 5], d, n_ctx, 0, i % 2, CHECK_RANDOM);
        const size_t panels = (p.n_pos + TN_KV_PANEL - 1) / TN_KV_PANEL;
        check_buf keys = check_new(panels * tn_kv_panel_bytes(type, d)),
                  values = check_new(panels * tn_kv_panel_bytes(type, d));
        memset(keys.p, 0, keys.n_bytes);
        memset(values.p, 0, values.n_bytes);
        for (size_t pos = 0; pos < p.n_pos; pos++) {
            float row[TN_MAX_HEAD], kept[TN_MAX_HEAD];
            check_fill_f32(&rng, CHECK_RANDOM, row, d);
            tn_kv_put_value(type, d, values.p, pos, row);
            for (size_t c = 0; c < d; c++) kept[c] = tn_kv_value(type, d, values.p, pos, c);
            tn_kv_put_key(type, d, keys.p, pos, row);
            for (size_t c = 0; c < d; c++) assert_true(tn_kv_key(type, d, keys.p, pos, c) == kept[c]);
        }
        check_buf want = out_new(&p), got = out_new(&p);
        p.a.kv = type;
        p.a.v = values.p;
        p.a.k_panels = keys.p;
        p.a.out = want.p;
        tn_attn_f32_ref(&p.a);
        p.a.k_panels = NULL;
        p.a.out = got.p;
        tn_attn_f32_ref(&p.a);
        for (size_t r = 0; r < p.a.n_rows; r++)
            assert_memory_equal((float *)want.p + r * p.a.out_stride, (float *)got.p + r * p.a.out_stride,
                                d * sizeof(float));
        check_problem(v, n_v, &p, "values as keys");
        check_free(&keys);
        check_free(&values);
        check_free(&want);
        check_free(&got);
        problem_free(&p);
    }
}

/* A position a row must not see may hold anything, also for its neighbours' sake. */
static void test_unseen_positions_do_not_leak(void **state) {
    (void)state;
    enum { ROWS = 13, D = 64, CTX = 300 };
    f32_variant v[4];
    int n_v = f32_variants(v);
    tn_rng rng = {check_seed()};
    for (int i = 0; i < n_v; i++) {
        problem p = problem_new(&rng, ROWS, D, CTX, 0, 0, CHECK_RANDOM);
        check_buf want = out_new(&p), got = out_new(&p);
        p.a.out = want.p;
        v[i].k.attn_f32(&p.a);
        float *last = (float *)p.v.p + (size_t)(CTX - 1) * D; /* only the last row sees it */
        for (size_t d = 0; d < D; d++) last[d] = NAN;
        p.a.out = got.p;
        v[i].k.attn_f32(&p.a);
        for (size_t r = 0; r < ROWS - 1; r++) {
            assert_memory_equal((float *)want.p + r * p.a.out_stride, (float *)got.p + r * p.a.out_stride,
                                D * sizeof(float));
        }
        assert_true(isnan(((float *)got.p)[(ROWS - 1) * p.a.out_stride]));
        check_free(&want);
        check_free(&got);
        problem_free(&p);
    }
}

static bool row_sees(const problem *p, size_t row, size_t pos) {
    const tn_attn_f32_args *a = &p->a;
    if (pos >= (size_t)p->first[row] && pos < (size_t)p->end[row]) return true;
    if (!a->tree_mask || pos < a->tree_base || pos - a->tree_base >= a->n_tree_words * 64) return false;
    size_t j = pos - a->tree_base;
    return a->tree_mask[row * a->n_tree_words + j / 64] >> (j % 64) & 1;
}

/* A row among others has the bits of the row alone over a cache where all it does not see is NaN: before its
 * window, beyond its end (whole panels never written included), other branches of a draft tree. */
static void test_rows_depend_on_what_they_see_only(void **state) {
    (void)state;
    enum { ROWS = 29, CTX = 330 };
    f32_variant v[4];
    int n_v = f32_variants(v);
    tn_rng rng = {check_seed()};
    static const struct {
        size_t d, n_tree_words;
        int window;
        float soft_cap;
    } cases[] = {{64, 0, 0, 0}, {64, 0, 70, 0}, {80, 0, 33, 30}, {100, 2, 0, 0}, {256, 1, 40, 0}};
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        size_t d = cases[c].d;
        problem p = problem_new(&rng, ROWS, d, CTX, cases[c].window, cases[c].n_tree_words, CHECK_RANDOM);
        p.a.soft_cap = cases[c].soft_cap;
        for (size_t r = 0; r < ROWS && !cases[c].n_tree_words;
             r++) { /* ends in no order, as rows of several sequences */
            p.end[r] = 1 + (int32_t)tn_rng_below(&rng, CTX);
            p.first[r] = cases[c].window && p.end[r] > cases[c].window ? p.end[r] - cases[c].window : 0;
        }
        check_buf all = out_new(&p), k = check_new(p.k.n_bytes), vals = check_new(p.v.n_bytes);
        float *alone = malloc(d * sizeof *alone);
        for (int i = 0; i < n_v; i++) {
            p.a.out = all.p;
            v[i].k.attn_f32(&p.a);
            for (size_t r = 0; r < ROWS; r++) {
                memcpy(k.p, p.k.p, k.n_bytes);
                memcpy(vals.p, p.v.p, vals.n_bytes);
                for (size_t pos = 0; pos < k.n_bytes / 4 / d; pos++) {
                    if (row_sees(&p, r, pos)) continue;
                    for (size_t j = 0; j < d; j++) {
                        ((float *)
                             k.p)[pos / TN_KV_PANEL * d * TN_KV_PANEL + j * TN_KV_PANEL + pos % TN_KV_PANEL] =
                            NAN;
                        if (pos < p.n_pos) ((float *)vals.p)[pos * d + j] = NAN;
                    }
                }
                tn_attn_f32_args one = p.a;
                one.n_rows = 1;
                one.q += r * one.q_stride;
                one.first_pos += r;
                one.end_pos += r;
                if (one.tree_mask) one.tree_mask += r * one.n_tree_words;
                one.k_panels = k.p;
                one.v = vals.p;
                one.out = alone;
                v[i].k.attn_f32(&one);
                if (memcmp(alone, (float *)all.p + r * p.a.out_stride, d * sizeof *alone)) {
                    fail_msg("%s case %zu: row %zu (positions %d..%d) is another one alone", v[i].name, c, r,
                             p.first[r], p.end[r]);
                }
            }
        }
        free(alone);
        check_free(&all);
        check_free(&k);
        check_free(&vals);
        problem_free(&p);
    }
}

static void test_rows_do_not_depend_on_batch(void **state) {
    (void)state;
    enum { ROWS = 31, D = 128, CTX = 400 };
    f32_variant v[4];
    int n_v = f32_variants(v);
    tn_rng rng = {check_seed()};
    for (int i = 0; i < n_v; i++) {
        problem p = problem_new(&rng, ROWS, D, CTX, 300, 1, CHECK_RANDOM);
        check_buf all = out_new(&p);
        p.a.out = all.p;
        v[i].k.attn_f32(&p.a);
        tn_attn_f32_args one = p.a;
        float alone[D];
        one.n_rows = 1;
        one.out = alone;
        for (size_t r = 0; r < ROWS;
             r++, one.q += one.q_stride, one.first_pos++, one.end_pos++, one.tree_mask++) {
            v[i].k.attn_f32(&one);
            assert_memory_equal(alone, (float *)all.p + r * p.a.out_stride, sizeof alone);
        }
        check_free(&all);
        problem_free(&p);
    }
}

/* A row of a draft tree has the bits of a plain row over a cache where its ancestors lie one after another. */
static void test_tree_rows_are_plain_rows(void **state) {
    (void)state;
    enum { ROWS = 17, D = 36, N_SLOTS = 128 };
    f32_variant v[4];
    int n_v = f32_variants(v);
    tn_rng rng = {check_seed()};
    static const size_t ctxs[] = {1, 15, 31, 32, 60, 300};
    for (size_t c = 0; c < sizeof ctxs / sizeof *ctxs; c++) {
        size_t ctx = ctxs[c];
        problem p = problem_new(&rng, ROWS, D, ctx, 0, 2, CHECK_RANDOM);
        if (c & 1) p.a.soft_cap = 5;
        for (size_t r = 0; r < ROWS; r++) { /* windows that begin before the tree and in it */
            size_t n = 0;
            for (size_t j = 0; j < N_SLOTS; j++) n += p.tree[r * 2 + j / 64] >> (j % 64) & 1;
            if (!n) p.tree[r * 2] |= (uint64_t)(n = 1);
            p.first[r] = r % 3 ? (int32_t)tn_rng_below(&rng, ctx + (r % 3 - 1) * n) : 0;
        }
        size_t cap = (ctx + N_SLOTS + TN_KV_PANEL - 1) / TN_KV_PANEL * TN_KV_PANEL;
        float *k = malloc(cap * D * sizeof *k), *vals = malloc(cap * D * sizeof *vals),
              *scratch = malloc(tn_attn_f32_scratch(D, cap) * sizeof *scratch);
        check_buf tree = out_new(&p);
        for (int i = 0; i < n_v; i++) {
            p.a.out = tree.p;
            v[i].k.attn_f32(&p.a);
            for (size_t r = 0; r < ROWS; r++) {
                for (size_t j = 0; j < cap * D; j++) k[j] = vals[j] = NAN;
                memcpy(vals, p.a.v, ctx * D * sizeof *vals);
                size_t to = 0;
                for (size_t slot = 0; slot < ctx + N_SLOTS; slot++) {
                    size_t j = slot - ctx;
                    if (slot >= ctx && !(p.tree[r * 2 + j / 64] >> (j % 64) & 1)) continue;
                    const float *keys = p.a.k_panels, *values = p.a.v;
                    for (size_t d = 0; d < D; d++) {
                        k[to / TN_KV_PANEL * D * TN_KV_PANEL + d * TN_KV_PANEL + to % TN_KV_PANEL] =
                            keys[slot / TN_KV_PANEL * D * TN_KV_PANEL + d * TN_KV_PANEL + slot % TN_KV_PANEL];
                        vals[to * D + d] = values[slot * D + d];
                    }
                    to++;
                }
                int32_t end = (int32_t)to;
                float alone[D];
                tn_attn_f32_args one = p.a;
                one.n_rows = 1;
                one.q += r * one.q_stride;
                one.k_panels = k;
                one.v = vals;
                one.first_pos = &p.first[r];
                one.end_pos = &end;
                one.tree_mask = NULL;
                one.scratch = scratch;
                one.out = alone;
                v[i].k.attn_f32(&one);
                if (memcmp(alone, (float *)tree.p + r * p.a.out_stride, sizeof alone)) {
                    fail_msg(
                        "%s: row %zu (from %d, %zu positions, tree at %zu) is another one stored plainly",
                        v[i].name, r, p.first[r], to, ctx);
                }
            }
        }
        free(k);
        free(vals);
        free(scratch);
        check_free(&tree);
        problem_free(&p);
    }
}

/* The reference against double arithmetic. Each of the two chains of n steps errs by at most n half-ulps of
 * the sum of its absolute terms; scores below 16 and weights below 1 keep the whole within 1e-4 for these
 * sizes. */
static void test_reference_is_attention(void **state) {
    (void)state;
    enum { ROWS = 5, D = 64, CTX = 200 };
    tn_rng rng = {check_seed()};
    problem p = problem_new(&rng, ROWS, D, CTX, 0, 0, CHECK_RANDOM);
    check_buf out = out_new(&p);
    p.a.out = out.p;
    tn_attn_f32_ref(&p.a);
    const float *k = p.k.p, *vals = p.v.p;
    for (size_t r = 0; r < ROWS; r++) {
        double w[CTX], sum = 0;
        for (int pos = 0; pos < p.end[r]; pos++) {
            double s = 0;
            for (int d = 0; d < D; d++)
                s += (double)p.a.q[r * p.a.q_stride + (size_t)d] *
                     (double)k[pos / 32 * D * 32 + d * 32 + pos % 32];
            sum += w[pos] = exp(s * (double)p.a.scale);
        }
        for (int d = 0; d < D; d++) {
            double want = 0;
            for (int pos = 0; pos < p.end[r]; pos++) want += w[pos] / sum * (double)vals[pos * D + d];
            assert_true(fabs(want - (double)p.a.out[r * p.a.out_stride + (size_t)d]) < 1e-4);
        }
    }
    check_free(&out);
    problem_free(&p);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_variants),
        cmocka_unit_test(test_values_as_keys),
        cmocka_unit_test(test_unseen_positions_do_not_leak),
        cmocka_unit_test(test_rows_depend_on_what_they_see_only),
        cmocka_unit_test(test_rows_do_not_depend_on_batch),
        cmocka_unit_test(test_tree_rows_are_plain_rows),
        cmocka_unit_test(test_reference_is_attention),
    };
    return cmocka_run_group_tests_name("attn_f32", tests, NULL, NULL);
}
