/* tests/package/switch.c - are graph-switching plans valid, hidden when they can be, and near the best there
 * is? */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "package/switch.h"

#include <math.h>
#include <string.h>

static uint64_t rng = 0x5eed5eed;
static uint32_t next_u32(void) {
    rng = rng * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(rng >> 33);
}
static double uniform(double lo, double hi) { return lo + (hi - lo) * next_u32() / 2147483648.0; }

static tn_switch_costs even(int32_t n_blocks, int32_t n_chunks, double load, double g1, double g2) {
    tn_switch_costs c = {.n_blocks = n_blocks, .n_chunks = n_chunks};
    for (int32_t i = 0; i < n_blocks; i++) {
        c.load_us[i] = load;
        c.g1_us[i] = g1;
        c.g2_us[i] = g2;
    }
    return c;
}

static tn_switch_plan make(const tn_switch_costs *c, tn_switch_kind kind) {
    tn_switch_plan p;
    tern_error err;
    assert_int_equal(tn_switch_plan_make(c, kind, &p, &err), TERN_OK);
    return p;
}

static void window(void **state) {
    (void)state;
    const double us[] = {2, 3, 4};
    assert_int_equal(tn_switch_window(us, 3, 0), 1);
    assert_int_equal(tn_switch_window(us, 3, 2), 1);
    assert_int_equal(tn_switch_window(us, 3, 2.1), 2);
    assert_int_equal(tn_switch_window(us, 3, 9), 3);
    assert_int_equal(tn_switch_window(us, 3, 9.1), 4);
    assert_int_equal(tn_switch_window(us, 0, 1), 1); /* n + 1 */
}

/* The paper's figure 9: six blocks, two chunks, a load hidden by two blocks. */
static void figure_9(void **state) {
    (void)state;
    tn_switch_costs c = even(6, 2, 2, 1, 1);
    tn_switch_plan sync = make(&c, TN_SWITCH_SYNC), async = make(&c, TN_SWITCH_ASYNC),
                   prog = make(&c, TN_SWITCH_PROGRESSIVE);
    assert_true(sync.total_us == 12 + 12);
    assert_true(async.total_us == 7 + 12); /* the loads begin when the last chunk has left block 0 */
    assert_true(prog.total_us == 12 && prog.stall_us == 0);
    /* started at once, as the paper does: blocks 6 and 5 during 1..4, then the rest */
    assert_int_equal(prog.start[5], 0);
    assert_int_equal(prog.start[4], 2);
    assert_int_equal(tn_switch_chunk(&prog, 5), 0);
    assert_int_equal(tn_switch_chunk(&sync, 5), 2);
    assert_int_equal(tn_switch_chunk(&async, 0), 2);
}

/* With decode graphs slower than prefill graphs, a long prompt switches at its end, not at its beginning. */
static void starts_late(void **state) {
    (void)state;
    tn_switch_costs c = even(2, 16, 5, 10, 14);
    tn_switch_plan p = make(&c, TN_SWITCH_PROGRESSIVE);
    assert_true(p.start[0] >= 30 && p.start[1] >= 28);
    assert_true(p.stall_us <= 5 && p.slower_us <= 4);
    assert_true(p.total_us <= 16 * 20 + 5);
}

/* A short last chunk hides little: what would be left for it is loaded before. */
static void short_last_chunk(void **state) {
    (void)state;
    tn_switch_costs c = even(2, 4, 8, 10, 10.5);
    c.last_chunk = 0.1;
    tn_switch_plan p = make(&c, TN_SWITCH_PROGRESSIVE), async = make(&c, TN_SWITCH_ASYNC);
    assert_true(async.stall_us > 14); /* 16 of loading beside 1 of computing */
    assert_true(p.stall_us < 1e-9);
    assert_true(p.start[0] < 6 && p.start[1] < 6);
    c.last_chunk = 1.5;
    tern_error err;
    assert_int_equal(tn_switch_plan_make(&c, TN_SWITCH_SYNC, &p, &err), TERN_E_INVALID);
}

/* ---- the best there is ----------------------------------------------------------------------------- */

static double best_of(const tn_switch_costs *c, tn_switch_plan *p, int32_t block) {
    if (block == c->n_blocks) {
        tn_switch_simulate(c, p);
        return p->total_us;
    }
    double best = INFINITY;
    for (int32_t s = 0; s <= c->n_blocks * c->n_chunks; s++) {
        p->start[block] = s;
        best = fmin(best, best_of(c, p, block + 1));
    }
    return best;
}

static void against_exhaustive_search(void **state) {
    (void)state;
    double sum = 0, worst = 1, sum_async = 0;
    int n = 0, n_best = 0;
    for (int trial = 0; trial < 400; trial++) {
        tn_switch_costs c = {.n_blocks = 1 + (int32_t)(next_u32() % 4)};
        c.n_chunks = 1 + (int32_t)(next_u32() % (c.n_blocks < 4 ? 4 : 2));
        if (trial % 3 == 0) c.last_chunk = uniform(0.05, 1);
        double load = uniform(0.1, 4), slow = uniform(1, 1.6), spread = uniform(0, 0.9);
        for (int32_t i = 0; i < c.n_blocks; i++) {
            c.g1_us[i] = uniform(1 - spread, 1 + spread);
            c.g2_us[i] = c.g1_us[i] * slow;
            c.load_us[i] = load * uniform(1 - spread, 1 + spread);
        }
        tn_switch_plan p = make(&c, TN_SWITCH_PROGRESSIVE), sync = make(&c, TN_SWITCH_SYNC),
                       async = make(&c, TN_SWITCH_ASYNC), scratch;
        double best = best_of(&c, &scratch, 0);
        assert_true(p.total_us >= best * (1 - 1e-12));
        assert_true(p.total_us <= async.total_us && async.total_us <= sync.total_us * (1 + 1e-12));
        double ratio = p.total_us / best;
        sum += ratio;
        sum_async += async.total_us / best;
        worst = fmax(worst, ratio);
        n_best += ratio < 1 + 1e-9;
        n++;
    }
    print_message("progressive / best: mean %.4f, worst %.3f, best in %d of %d; async / best: mean %.3f\n",
                  sum / n, worst, n_best, n, sum_async / n);
    assert_true(sum / n < 1.01);
    assert_true(worst < 1.15);
}

/* What a plan says of itself holds: total = computing on G1 + extra of G2 + stalls. */
static void accounts_add_up(void **state) {
    (void)state;
    for (int trial = 0; trial < 2000; trial++) {
        tn_switch_costs c = {.n_blocks = 1 + (int32_t)(next_u32() % 12),
                             .n_chunks = 1 + (int32_t)(next_u32() % 20)};
        double g1 = 0;
        for (int32_t i = 0; i < c.n_blocks; i++) {
            c.g1_us[i] = uniform(0.5, 2);
            c.g2_us[i] = c.g1_us[i] * uniform(0.9, 2);
            c.load_us[i] = uniform(0, 6);
            g1 += c.g1_us[i];
        }
        for (int kind = 0; kind < TN_N_SWITCHES; kind++) {
            tn_switch_plan p = make(&c, (tn_switch_kind)kind);
            double want = g1 * c.n_chunks + p.slower_us + p.stall_us;
            assert_true(fabs(p.total_us - want) < 1e-9 * want);
            bool seen[TN_SWITCH_MAX_BLOCKS] = {false};
            for (int32_t i = 0; i < c.n_blocks; i++) {
                assert_false(seen[p.order[i]]);
                seen[p.order[i]] = true;
                assert_true(i == 0 || p.start[p.order[i - 1]] <= p.start[p.order[i]]);
            }
        }
    }
}

static void refuses_nonsense(void **state) {
    (void)state;
    tn_switch_plan p;
    tern_error err;
    tn_switch_costs c = even(0, 1, 1, 1, 1);
    assert_int_equal(tn_switch_plan_make(&c, TN_SWITCH_SYNC, &p, &err), TERN_E_INVALID);
    c = even(2, 0, 1, 1, 1);
    assert_int_equal(tn_switch_plan_make(&c, TN_SWITCH_SYNC, &p, &err), TERN_E_INVALID);
    c = even(2, 1, NAN, 1, 1);
    assert_int_equal(tn_switch_plan_make(&c, TN_SWITCH_PROGRESSIVE, &p, &err), TERN_E_INVALID);
    c = even(2, 1, 1, -1, 1);
    assert_int_equal(tn_switch_plan_make(&c, TN_SWITCH_ASYNC, &p, &err), TERN_E_INVALID);
    tn_switch_kind k;
    assert_true(tn_switch_parse("async", &k) && k == TN_SWITCH_ASYNC);
    assert_false(tn_switch_parse("eager", &k));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(window),
        cmocka_unit_test(figure_9),
        cmocka_unit_test(starts_late),
        cmocka_unit_test(short_last_chunk),
        cmocka_unit_test(against_exhaustive_search),
        cmocka_unit_test(accounts_add_up),
        cmocka_unit_test(refuses_nonsense),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
