/* tests/sched/virtual.c - do the policies decide as published, and is any schedule of theirs a valid one? */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "sched/shapes.h"
#include "sched/verify.h"
#include "sched/virtual.h"

#include <string.h>

static tn_ctx ctx;
static tn_graph *g;
static tn_sched *s;
static const int32_t ONE_EACH[TN_N_LANES] = {1, 1, 0};

static int32_t add(const char *name, tn_lane lane, float us, int32_t chunk, int32_t subgraph) {
    tn_task t = {.name = name, .lane = lane, .chunk = chunk, .subgraph = subgraph};
    t.est_us[lane] = us;
    return tn_graph_add(g, &t);
}

static int64_t run_us(tn_policy policy, const int32_t n_workers[TN_N_LANES], tn_virtual_result *r) {
    tn_virtual_result mine;
    if (!r) r = &mine;
    assert_int_equal(tn_sched_bind(s, g, NULL), TERN_OK);
    tn_virtual_run(s, &policy, n_workers, NULL, r);
    assert_int_equal(r->makespan_ns % 1000, 0);
    return r->makespan_ns / 1000;
}

static int64_t kind_us(tn_policy_kind kind) {
    tn_policy p = tn_policy_defaults(kind);
    p.steal_above = -1;
    return run_us(p, ONE_EACH, NULL);
}

/* Two chunks of CPU 2, NPU 3, CPU 2, NPU 3 us, each step after the one before.
 * in-order: the sum, 20.
 * overlap:  CPU A0 0-2, C0 5-7, A1 7-9, C1 13-15; NPU B0 2-5, D0 7-10, B1 10-13, D1 15-18.
 * ooe:      CPU A0 0-2, A1 2-4, C0 5-7, C1 8-10;  NPU B0 2-5, B1 5-8, D0 8-11, D1 11-14. */
static void two_chunks_by_hand(void **state) {
    (void)state;
    tn_graph_clear(g);
    for (int32_t chunk = 0; chunk < 2; chunk++) {
        int32_t before = -1;
        for (int32_t j = 0; j < 4; j++) {
            int32_t id = add(&"abcd"[j], j % 2 ? TN_LANE_NPU : TN_LANE_CPU, j % 2 ? 3 : 2, chunk, j);
            if (j) tn_graph_depend(g, before, id);
            before = id;
        }
    }
    assert_int_equal(tn_graph_seal(g, NULL), TERN_OK);
    assert_int_equal(kind_us(TN_POLICY_IN_ORDER), 20);
    assert_int_equal(kind_us(TN_POLICY_OVERLAP), 18);
    assert_int_equal(kind_us(TN_POLICY_OOE), 14);
    tn_virtual_result r;
    run_us(tn_policy_defaults(TN_POLICY_OOE), ONE_EACH, &r);
    assert_int_equal(r.busy_ns[TN_LANE_CPU], 8000);
    assert_int_equal(r.busy_ns[TN_LANE_NPU], 12000);
    assert_true(r.bubble[TN_LANE_NPU] > 2.0 / 14 - 1e-12 && r.bubble[TN_LANE_NPU] < 2.0 / 14 + 1e-12);
}

/* x of chunk 0 feeds nothing, y of chunk 1 feeds 10 us of NPU: C(y) = 10 > C(x) = 0, so y goes first. */
static void ooe_prefers_what_feeds_the_npu(void **state) {
    (void)state;
    tn_graph_clear(g);
    add("x", TN_LANE_CPU, 4, 0, 0);
    int32_t y = add("y", TN_LANE_CPU, 4, 1, 0), z = add("z", TN_LANE_NPU, 10, 1, 1);
    tn_graph_depend(g, y, z);
    assert_int_equal(tn_graph_seal(g, NULL), TERN_OK);
    assert_int_equal(kind_us(TN_POLICY_OOE), 14);     /* y 0-4, z 4-14, x 4-8 */
    assert_int_equal(kind_us(TN_POLICY_SYNERGY), 18); /* x 0-4, y 4-8, z 8-18 */
    /* What a run tells of its order: y began before x, and x beside z, under out of order alone. */
    static const struct {
        tn_policy_kind kind;
        int32_t n_ahead, n_beside;
    } want[] = {{TN_POLICY_OOE, 1, 1},
                {TN_POLICY_OVERLAP, 0, 0},
                {TN_POLICY_SYNERGY, 0, 0},
                {TN_POLICY_IN_ORDER, 0, 0}};
    for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
        tn_virtual_result r;
        run_us(tn_policy_defaults(want[i].kind), ONE_EACH, &r);
        assert_int_equal(r.counts.n_tasks, 3);
        assert_int_equal(r.counts.n_ahead, want[i].n_ahead);
        assert_int_equal(r.counts.n_beside, want[i].n_beside);
    }
}

/* x feeds a task of the CPU that the NPU could compute too, in 20 us; that does not count, at the begin and later:
 * C(x) = 0, C(y) = 10. y 0-4, z 4-14; and where that task and y wait for f, too: f 0-1, y 1-5, z 5-15. */
static void ooe_counts_the_npu_alone(void **state) {
    (void)state;
    for (int later = 0; later < 2; later++) {
        tn_graph_clear(g);
        int32_t f = later ? add("f", TN_LANE_CPU, 1, 0, 0) : -1, x = add("x", TN_LANE_CPU, 4, 0, 1);
        tn_task either = {.name = "either", .lane = TN_LANE_CPU, .chunk = 0, .subgraph = 2};
        either.est_us[TN_LANE_CPU] = 1;
        either.est_us[TN_LANE_NPU] = 20;
        int32_t c = tn_graph_add(g, &either), y = add("y", TN_LANE_CPU, 4, 1, 0),
                z = add("z", TN_LANE_NPU, 10, 1, 1);
        tn_graph_depend(g, x, c);
        tn_graph_depend(g, y, z);
        if (later) {
            tn_graph_depend(g, f, c);
            tn_graph_depend(g, f, y);
        }
        assert_int_equal(tn_graph_seal(g, NULL), TERN_OK);
        assert_int_equal(kind_us(TN_POLICY_OOE), 14 + later);
        assert_int_equal(kind_us(TN_POLICY_SYNERGY), later ? 20 : 19);
    }
}

static void ooe_follows_gains_that_change(void **state) {
    (void)state;
    tn_graph_clear(g);
    int32_t a = add("a", TN_LANE_CPU, 2, 0, 0), b = add("b", TN_LANE_CPU, 2, 0, 1),
            c = add("c", TN_LANE_CPU, 2, 0, 2);
    int32_t z = add("z", TN_LANE_NPU, 10, 0, 3), y = add("y", TN_LANE_NPU, 1, 0, 4);
    tn_graph_depend(g, a, z);
    tn_graph_depend(g, c, z);
    tn_graph_depend(g, b, y);
    assert_int_equal(tn_graph_seal(g, NULL), TERN_OK);
    /* At 0: C(a) = C(c) = 0 as both hold z back, C(b) = 1: b. At 2: a by position. At 4: c now has C = 10.
     * b 0-2, y 2-3, a 2-4, c 4-6, z 6-16. */
    assert_int_equal(kind_us(TN_POLICY_OOE), 16);

    /* e feeds nothing and stands before c; a's end raises c above it in the queue. */
    tn_graph_clear(g);
    a = add("a", TN_LANE_CPU, 2, 0, 0);
    add("e", TN_LANE_CPU, 2, 0, 1);
    c = add("c", TN_LANE_CPU, 2, 0, 2);
    z = add("z", TN_LANE_NPU, 10, 0, 3);
    tn_graph_depend(g, a, z);
    tn_graph_depend(g, c, z);
    assert_int_equal(tn_graph_seal(g, NULL), TERN_OK);
    assert_int_equal(kind_us(TN_POLICY_OOE), 14);     /* a 0-2, c 2-4, z 4-14 */
    assert_int_equal(kind_us(TN_POLICY_SYNERGY), 16); /* a, e, c, z 6-16 */
}

/* On the NPU the shortest goes first, so the CPU gets its work early: s 0-1, l 1-9; u 1-9. */
static void ooe_runs_short_npu_tasks_first(void **state) {
    (void)state;
    tn_graph_clear(g);
    add("l", TN_LANE_NPU, 8, 0, 0);
    int32_t sh = add("s", TN_LANE_NPU, 1, 1, 0), u = add("u", TN_LANE_CPU, 8, 1, 1);
    tn_graph_depend(g, sh, u);
    assert_int_equal(tn_graph_seal(g, NULL), TERN_OK);
    assert_int_equal(kind_us(TN_POLICY_OOE), 9);
    assert_int_equal(kind_us(TN_POLICY_SYNERGY), 17);
}

/* Eight NPU tasks of 10 us, 30 on the CPU. Threshold 5: the CPU takes one of 8 at 0 and is back at 30, when
 * 4 wait: too few. Threshold 3: it takes another one then. */
static void stealing_by_threshold(void **state) {
    (void)state;
    tn_graph_clear(g);
    for (int32_t i = 0; i < 8; i++)
        tn_graph_add(
            g,
            &(tn_task){.name = "m", .lane = TN_LANE_NPU, .est_us = {30, 10}, .chunk = i, .can_steal = true});
    assert_int_equal(tn_graph_seal(g, NULL), TERN_OK);
    assert_int_equal(tn_policy_steal_above(g), 3);
    tn_policy p = tn_policy_defaults(TN_POLICY_SYNERGY);
    assert_int_equal(p.steal_above, 5);
    tn_virtual_result r;
    assert_int_equal(run_us(p, ONE_EACH, &r), 70);
    assert_int_equal(r.n_stolen, 1);
    p.steal_above = 3;
    assert_int_equal(run_us(p, ONE_EACH, &r), 60);
    assert_int_equal(r.n_stolen, 2);
    p.steal_above = -1;
    assert_int_equal(run_us(p, ONE_EACH, &r), 80);
    assert_int_equal(r.n_stolen, 0);
    for (int32_t i = 0; i < 8; i++) tn_graph_set_est(g, i, TN_LANE_CPU, 31);
    assert_int_equal(tn_policy_steal_above(g), 4);
    for (int32_t i = 0; i < 8; i++) tn_graph_set_est(g, i, TN_LANE_CPU, 2);
    assert_int_equal(tn_policy_steal_above(g), 1);
}

/* One task of 8 parts, 80 us in all: alone 80; two NPU workers, or the CPU's help: 40. */
static void parts_are_shared(void **state) {
    (void)state;
    tn_graph_clear(g);
    tn_graph_add(g, &(tn_task){.name = "big",
                               .lane = TN_LANE_NPU,
                               .est_us = {[TN_LANE_NPU] = 80},
                               .n_parts = 8,
                               .can_steal = true});
    assert_int_equal(tn_graph_seal(g, NULL), TERN_OK);
    for (int k = 0; k < TN_N_POLICIES; k++) {
        tn_policy p = tn_policy_defaults((tn_policy_kind)k);
        assert_int_equal(run_us(p, ONE_EACH, NULL), 80);
        assert_int_equal(run_us(p, (const int32_t[]){1, 2, 0}, NULL), 40);
        p.keep_busy = true;
        assert_int_equal(run_us(p, ONE_EACH, NULL), 40);
        assert_int_equal(run_us(p, (const int32_t[]){4, 1, 0}, NULL), 20); /* 5 workers: two rounds */
        assert_int_equal(run_us(p, (const int32_t[]){1, 0, 0}, NULL), 80);
    }
    /* parts add up to the task although 10 does not divide by 3: 4 + 3 + 3 ns */
    tn_graph_clear(g);
    tn_graph_add(g, &(tn_task){.name = "odd", .est_us = {0.01f}, .n_parts = 3});
    assert_int_equal(tn_graph_seal(g, NULL), TERN_OK);
    assert_int_equal(tn_sched_bind(s, g, NULL), TERN_OK);
    tn_virtual_result r;
    tn_policy p = tn_policy_defaults(TN_POLICY_OOE);
    tn_virtual_run(s, &p, ONE_EACH, NULL, &r);
    assert_int_equal(r.makespan_ns, 10);
}

static void plan_is_followed(void **state) {
    (void)state;
    tn_graph_clear(g);
    tn_graph_add(g, &(tn_task){.name = "first", .est_us = {3}, .plan = 2});
    int32_t b = tn_graph_add(g, &(tn_task){.name = "second", .est_us = {3}, .plan = 1});
    int32_t c = tn_graph_add(
        g, &(tn_task){.name = "fed", .lane = TN_LANE_NPU, .est_us = {[TN_LANE_NPU] = 5}, .plan = 3});
    tn_graph_depend(g, b, c);
    assert_int_equal(tn_graph_seal(g, NULL), TERN_OK);
    assert_int_equal(kind_us(TN_POLICY_PLAN), 8);
    assert_int_equal(kind_us(TN_POLICY_OVERLAP), 11);
}

static void names(void **state) {
    (void)state;
    tn_policy p;
    for (int k = 0; k < TN_N_POLICIES; k++) {
        assert_true(tn_policy_parse(tn_policy_name((tn_policy_kind)k), &p));
        assert_int_equal(p.kind, k);
    }
    assert_false(tn_policy_parse("fastest", &p));
}

/* Bounds no schedule beats, and Graham's for those that never leave a lane idle beside ready work: the path
 * back from the end alternates between tasks of one chain and times when that lane is full. */
static void check_bounds(const tn_policy *p, const int32_t n_workers[TN_N_LANES], const tn_virtual_result *r,
                         bool crossing) {
    int64_t path, work = 0, full = 0, n_all = 0, longest_work = 0;
    assert_int_equal(tn_graph_critical_path_ns(g, &path, NULL), TERN_OK);
    for (int l = 0; l < TN_N_LANES; l++) {
        int64_t w = tn_graph_work_ns(g, (tn_lane)l);
        work += w;
        n_all += n_workers[l];
        if (n_workers[l]) full += (w + n_workers[l] - 1) / n_workers[l];
        if (n_workers[l] && !crossing && w / n_workers[l] > longest_work) longest_work = w / n_workers[l];
    }
    assert_true(r->makespan_ns >= path);
    assert_true(r->makespan_ns * n_all >= work);
    assert_true(r->makespan_ns >= longest_work);
    if (crossing) return;
    assert_true(r->makespan_ns <=
                work); /* somebody is always busy: never worse than in order on one worker */
    if (p->kind == TN_POLICY_OOE || p->kind == TN_POLICY_SYNERGY) assert_true(r->makespan_ns <= full + path);
}

static void random_graphs(void **state) {
    (void)state;
    const uint64_t seed = 20261120;
    print_message("seed %llu\n", (unsigned long long)seed);
    tn_rng rng = {.s = seed};
    double worst = 0;
    static const int32_t CREWS[][TN_N_LANES] = {{1, 1, 1}, {2, 1, 1}, {1, 3, 1}, {2, 2, 2}, {1, 0, 0},
                                                {0, 1, 0}, {1, 1, 0}, {0, 0, 1}, {3, 0, 1}};
    for (int round = 0; round < 400; round++) {
        int n = (int)tn_rng_below(&rng, round % 10 ? 40 : 400);
        assert_int_equal(shape_random(g, &rng, n, NULL, NULL, 0, NULL), TERN_OK);
        assert_int_equal(tn_sched_bind(s, g, NULL), TERN_OK);
        const int32_t *crew = CREWS[tn_rng_below(&rng, sizeof CREWS / sizeof CREWS[0])];
        tn_timeline *tl[2];
        for (int i = 0; i < 2; i++) {
            tn_timeline_options o = {.cap_events = 4 * 400, .cap_flows = 1};
            memcpy(o.n_workers, crew, sizeof o.n_workers);
            assert_int_equal(tn_timeline_open(&ctx, &o, &tl[i], NULL), TERN_OK);
        }
        bool all_lanes = crew[0] && crew[1] && crew[2];
        int64_t overlap_ns = 0;
        for (int k = 0; k < TN_N_POLICIES; k++) {
            for (int variant = 0; variant < 3; variant++) {
                tn_policy p = tn_policy_defaults((tn_policy_kind)k);
                p.steal_above = variant == 1 ? (int32_t)tn_rng_below(&rng, 4) : -1;
                p.keep_busy = variant == 2;
                tn_virtual_result r[2];
                for (int i = 0; i < 2; i++) {
                    tn_timeline_clear(tl[i]);
                    tn_virtual_run(s, &p, crew, tl[i], &r[i]);
                    verify_run(g, &p, crew, tl[i]);
                }
                assert_int_equal(r[0].makespan_ns, r[1].makespan_ns);
                assert_int_equal(r[0].n_stolen, r[1].n_stolen);
                for (int32_t t = 0; t < tn_timeline_n_workers(tl[0]); t++) {
                    assert_int_equal(tn_timeline_n_events(tl[0], t), tn_timeline_n_events(tl[1], t));
                    for (int32_t i = 0; i < tn_timeline_n_events(tl[0], t); i++)
                        assert_memory_equal(tn_timeline_event(tl[0], t, i), tn_timeline_event(tl[1], t, i),
                                            sizeof(tn_event));
                }
                check_bounds(&p, crew, &r[0], variant || !all_lanes);
                if (variant || crew != CREWS[0]) continue;
                /* one worker per lane: all the work is at most what any schedule takes times the lanes that
                 * have some, and a schedule that always keeps somebody busy takes no longer than all the work
                 */
                if (k == TN_POLICY_OVERLAP) overlap_ns = r[0].makespan_ns;
                if (k != TN_POLICY_OOE) continue;
                int64_t lanes = 0;
                for (int l = 0; l < TN_N_LANES; l++) lanes += tn_graph_work_ns(g, (tn_lane)l) > 0;
                assert_true(r[0].makespan_ns <= lanes * overlap_ns);
                if (overlap_ns && worst < (double)r[0].makespan_ns / (double)overlap_ns)
                    worst = (double)r[0].makespan_ns / (double)overlap_ns;
            }
        }
        tn_timeline_close(&tl[0]);
        tn_timeline_close(&tl[1]);
    }
    print_message("out of order over overlapping in order, at worst: %.3f\n", worst);
}

/* llm.npu's setting, coarsely: the NPU has about twice the CPU's work, four chunks. The paper finds 37 % of
 * bubbles in order, and 18 to 44 % of latency saved out of order. */
static void prefill_bubbles(void **state) {
    (void)state;
    const float us[SHAPE_SUBGRAPHS] = {300, 1500, 900, 1000, 300, 2500};
    assert_int_equal(shape_prefill(g, 24, 4, us, NULL, NULL, NULL), TERN_OK);
    tn_virtual_result r[TN_N_POLICIES];
    for (int k = 0; k < TN_N_POLICIES; k++) run_us(tn_policy_defaults((tn_policy_kind)k), ONE_EACH, &r[k]);
    assert_true(r[TN_POLICY_OVERLAP].bubble[TN_LANE_NPU] > 0.33 &&
                r[TN_POLICY_OVERLAP].bubble[TN_LANE_NPU] < 0.40);
    int64_t saved_percent = 100 - 100 * r[TN_POLICY_OOE].makespan_ns / r[TN_POLICY_OVERLAP].makespan_ns;
    assert_in_range(saved_percent, 18, 44);
    assert_true(r[TN_POLICY_OOE].bubble[TN_LANE_NPU] < 0.2);
    assert_true(r[TN_POLICY_IN_ORDER].makespan_ns >= r[TN_POLICY_OVERLAP].makespan_ns);
}

static int set_up(void **state) {
    (void)state;
    tn_ctx_init(&ctx, NULL);
    return tn_graph_open(&ctx, &g, NULL) || tn_sched_open(&ctx, &s, NULL);
}

static int tear_down(void **state) {
    (void)state;
    tn_sched_close(&s);
    tn_graph_close(&g);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(two_chunks_by_hand),
        cmocka_unit_test(ooe_prefers_what_feeds_the_npu),
        cmocka_unit_test(ooe_counts_the_npu_alone),
        cmocka_unit_test(ooe_follows_gains_that_change),
        cmocka_unit_test(ooe_runs_short_npu_tasks_first),
        cmocka_unit_test(stealing_by_threshold),
        cmocka_unit_test(parts_are_shared),
        cmocka_unit_test(plan_is_followed),
        cmocka_unit_test(names),
        cmocka_unit_test(random_graphs),
        cmocka_unit_test(prefill_bubbles),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
