/* tests/sched/graph.c - does a graph keep what was added, in an order that respects it, and refuse nonsense?
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "sched/policy.h"
#include "sched/shapes.h"

#include <math.h>
#include <string.h>

#include "fixture/scarce.h"

static tn_ctx ctx;

static tn_task cpu_task(int32_t chunk, int32_t subgraph) {
    return (tn_task){.name = "t", .chunk = chunk, .subgraph = subgraph, .est_us = {[TN_LANE_CPU] = 1}};
}

static void lists_and_orders(void **state) {
    (void)state;
    tn_graph *g;
    tern_error err = {0};
    assert_int_equal(tn_graph_open(&ctx, &g, &err), TERN_OK);
    /* added in reverse of the prompt's order; 2 before 0 contradicts the positions */
    int32_t a = tn_graph_add(
        g, &(tn_task){
               .name = "a", .chunk = 1, .lane = TN_LANE_NPU, .est_us = {[TN_LANE_NPU] = 2.5f}, .plan = 9});
    tn_task late = cpu_task(0, 5), early = cpu_task(0, 1);
    int32_t b = tn_graph_add(g, &late), c = tn_graph_add(g, &early);
    assert_int_equal(a, 0);
    assert_int_equal(c, 2);
    tn_graph_depend(g, b, c); /* although c comes first by position */
    tn_graph_depend(g, b, c); /* twice: merged */
    tn_graph_depend(g, b, a);
    assert_int_equal(tn_graph_seal(g, &err), TERN_OK);
    assert_int_equal(g->n_preds[a], 1);
    assert_int_equal(g->n_preds[b], 0);
    assert_int_equal(g->n_preds[c], 1);
    assert_int_equal(g->succ_off[b + 1] - g->succ_off[b], 2);
    assert_int_equal(g->succ[g->succ_off[b]], a);
    assert_int_equal(g->succ[g->succ_off[b] + 1], c);
    assert_int_equal(g->pred[g->pred_off[c]], b);
    assert_int_equal(g->pred_xor[c], b);
    assert_int_equal(g->by_rank[0], b);
    assert_int_equal(g->by_rank[1], c);
    assert_int_equal(g->by_rank[2], a);
    assert_int_equal(g->by_plan_rank[2], a);
    assert_int_equal(g->tasks[a].n_parts, 1);
    /* no estimate for the CPU: as on the NPU */
    assert_int_equal(g->est_ns[TN_LANE_CPU][a], 2500);
    int64_t path;
    assert_int_equal(tn_graph_critical_path_ns(g, &path, &err), TERN_OK);
    assert_int_equal(path, 3500);
    assert_int_equal(tn_graph_work_ns(g, TN_LANE_CPU), 2000);
    tn_graph_set_est(g, a, TN_LANE_NPU, 7);
    assert_int_equal(tn_graph_work_ns(g, TN_LANE_NPU), 7000);
    tn_graph_close(&g);
    assert_null(g);
    tn_graph_close(&g);
}

static void orders_respect_dependencies(void **state) {
    (void)state;
    tn_graph *g;
    tern_error err = {0};
    assert_int_equal(tn_graph_open(&ctx, &g, &err), TERN_OK);
    tn_rng rng = {.s = 11};
    for (int round = 0; round < 100; round++) {
        int n = (int)tn_rng_below(&rng, 200);
        assert_int_equal(shape_random(g, &rng, n, NULL, NULL, 0, &err), TERN_OK);
        for (int32_t t = 0; t < n; t++) {
            assert_int_equal(g->by_rank[g->rank[t]], t);
            assert_int_equal(g->by_plan_rank[g->plan_rank[t]], t);
            for (int32_t e = g->succ_off[t]; e < g->succ_off[t + 1]; e++) {
                assert_true(g->rank[t] < g->rank[g->succ[e]]);
                assert_true(g->plan_rank[t] < g->plan_rank[g->succ[e]]);
                if (e > g->succ_off[t]) assert_true(g->succ[e - 1] < g->succ[e]);
            }
        }
    }
    tn_graph_close(&g);
}

static void nonsense_is_refused(void **state) {
    (void)state;
    tn_graph *g;
    tern_error err = {0};
    assert_int_equal(tn_graph_open(&ctx, &g, &err), TERN_OK);
    tn_task t = cpu_task(0, 0);
    int32_t a = tn_graph_add(g, &t), b = tn_graph_add(g, &t), c = tn_graph_add(g, &t);
    tn_graph_depend(g, a, b);
    tn_graph_depend(g, b, c);
    tn_graph_depend(g, c, b);
    assert_int_equal(tn_graph_seal(g, &err), TERN_E_INVALID);
    assert_non_null(strstr(err.message, "2 of 3 tasks"));

    tn_graph_clear(g);
    a = tn_graph_add(g, &t);
    tn_graph_depend(g, a, a);
    assert_int_equal(tn_graph_add(g, &t), -1); /* the first failure stays */
    assert_int_equal(tn_graph_seal(g, &err), TERN_E_INVALID);

    tn_graph_clear(g);
    tn_graph_depend(g, 0, 1);
    assert_int_equal(tn_graph_seal(g, &err), TERN_E_INVALID);

    tn_task bad[] = {t, t, t, t, t};
    bad[0].name = NULL;
    bad[1].n_parts = -1;
    bad[2].est_us[0] = NAN;
    bad[3].lane = TN_LANE_IO, bad[3].can_steal = true;
    bad[4].est_us[1] = -1;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        tn_graph_clear(g);
        assert_int_equal(tn_graph_add(g, &bad[i]), -1);
        assert_int_equal(tn_graph_seal(g, &err), TERN_E_INVALID);
    }
    tn_graph_clear(g);
    assert_int_equal(tn_graph_seal(g, &err), TERN_OK); /* an empty graph is one */
    tn_graph_close(&g);
}

static void rebuilding_allocates_nothing_and_failing_leaks_nothing(void **state) {
    (void)state;
    const float us[SHAPE_SUBGRAPHS] = {1, 2, 3, 4, 5, 6};
    for (int fail_at = -1;; fail_at++) {
        scarce f = {.left = fail_at};
        tn_ctx mine;
        scarce_ctx(&mine, &f);
        tn_graph *g = NULL;
        tn_sched *s = NULL;
        tern_error err = {0};
        tern_status st = tn_graph_open(&mine, &g, &err);
        if (!st) st = tn_sched_open(&mine, &s, &err);
        if (!st) st = shape_prefill(g, 4, 8, us, NULL, NULL, &err);
        if (!st) st = tn_sched_bind(s, g, &err);
        long n = f.made;
        if (!st) {
            assert_int_equal(shape_prefill(g, 3, 8, us, NULL, NULL, &err), TERN_OK);
            assert_int_equal(tn_sched_bind(s, g, &err), TERN_OK);
            assert_int_equal(f.made, n);
        } else {
            assert_int_equal(st, TERN_E_MEMORY);
        }
        tn_sched_close(&s);
        tn_graph_close(&g);
        assert_int_equal(mine.live_bytes[TN_MEM_GRAPHS], 0);
        if (!st && fail_at >= 0) break;
    }
}

int main(void) {
    tn_ctx_init(&ctx, NULL);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lists_and_orders),
        cmocka_unit_test(orders_respect_dependencies),
        cmocka_unit_test(nonsense_is_refused),
        cmocka_unit_test(rebuilding_allocates_nothing_and_failing_leaks_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
