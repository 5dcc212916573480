/* tests/sched/executor.c - does a run on real threads do every task once, in a valid order, on all its cores,
 * and stop cleanly? To be run under the thread sanitizer too. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/clock.h"
#include "base/status.h"
#include "sched/executor.h"
#include "sched/shapes.h"
#include "sched/verify.h"

#include <pthread.h>
#include <sched.h>
#include <string.h>

#include "fixture/scarce.h"

static tn_ctx ctx;

/* A task that checks what it can see. Plain fields on purpose: dependencies must order them, and the thread
 * sanitizer says whether they do. */
typedef struct probe {
    const tn_graph *g;
    struct probe *all;
    atomic_int n_runs;
    int32_t id, n_done[8];
    tern_status fail_with;
    atomic_bool *cancel; /* sets it */
    atomic_int *n_at_once, *most_at_once;
    bool bad;
} probe;

static tern_status probe_run(void *arg, int i_part, const tn_worker *w, tern_error *err) {
    probe *p = arg;
    (void)w;
    atomic_fetch_add(&p->n_runs, 1);
    if (p->n_at_once) {
        int now = atomic_fetch_add(p->n_at_once, 1) + 1;
        if (now > atomic_load(p->most_at_once)) atomic_store(p->most_at_once, now);
    }
    for (int32_t e = p->g->pred_off[p->id]; e < p->g->pred_off[p->id + 1]; e++) {
        probe *before = &p->all[p->g->pred[e]];
        for (int32_t k = 0; k < p->g->tasks[before->id].n_parts; k++)
            if (before->n_done[k] != 1) p->bad = true;
    }
    p->n_done[i_part]++;
    if (p->n_at_once) atomic_fetch_sub(p->n_at_once, 1);
    if (p->cancel) atomic_store(p->cancel, true);
    if (p->fail_with) return tn_fail(err, p->fail_with, "task %d cannot", p->id);
    return TERN_OK;
}

enum { CAP_TASKS = 400 };
static probe probes[CAP_TASKS];

static void arm(const tn_graph *g) {
    for (int32_t t = 0; t < g->n_tasks; t++) {
        memset(&probes[t], 0, sizeof probes[t]);
        probes[t].g = g, probes[t].all = probes, probes[t].id = t;
    }
}

static const int32_t CREWS[][TN_N_LANES] = {{1, 0, 0}, {1, 1, 0}, {2, 2, 0}, {2, 1, 1}, {0, 1, 0}, {3, 3, 2}};
enum { N_CREWS = sizeof CREWS / sizeof CREWS[0] };

static void random_graphs(void **state) {
    (void)state;
    const uint64_t seed = 4711;
    print_message("seed %llu\n", (unsigned long long)seed);
    tn_rng rng = {.s = seed};
    tn_graph *g;
    assert_int_equal(tn_graph_open(&ctx, &g, NULL), TERN_OK);
    for (int c = 0; c < N_CREWS; c++) {
        tn_executor *ex;
        assert_int_equal(tn_executor_open(&ctx, CREWS[c], &ex, NULL), TERN_OK);
        tn_timeline_options o = {.cap_events = 4 * CAP_TASKS, .cap_flows = 1};
        memcpy(o.n_workers, CREWS[c], sizeof o.n_workers);
        tn_timeline *tl;
        assert_int_equal(tn_timeline_open(&ctx, &o, &tl, NULL), TERN_OK);
        for (int round = 0; round < 30; round++) {
            assert_int_equal(shape_random(g, &rng, (int)tn_rng_below(&rng, round % 6 ? 50 : CAP_TASKS),
                                          probe_run, probes, sizeof probes[0], NULL),
                             TERN_OK);
            for (int k = 0; k < TN_N_POLICIES; k++) {
                tn_run run = {.graph = g,
                              .policy = tn_policy_defaults((tn_policy_kind)k),
                              .timeline = round % 2 ? tl : NULL};
                run.policy.keep_busy = tn_rng_below(&rng, 2);
                arm(g);
                tn_timeline_clear(tl);
                tern_error err = {0};
                tn_run_stats stats;
                assert_int_equal(tn_executor_run(ex, &run, &stats, &err), TERN_OK);
                int64_t n_parts = 0;
                for (int32_t t = 0; t < g->n_tasks; t++) {
                    assert_false(probes[t].bad);
                    assert_int_equal(probes[t].n_runs, g->tasks[t].n_parts);
                    n_parts += g->tasks[t].n_parts;
                }
                assert_int_equal(stats.n_decisions, n_parts);
                if (run.timeline) verify_run(g, &run.policy, CREWS[c], tl);
            }
        }
        tn_timeline_close(&tl);
        tn_executor_close(&ex);
        assert_null(ex);
    }
    tn_graph_close(&g);
}

static tern_status count_atomically(void *arg, int i_part, const tn_worker *w, tern_error *err) {
    (void)i_part, (void)w, (void)err;
    atomic_fetch_add_explicit((atomic_int *)arg, 1, memory_order_relaxed);
    return TERN_OK;
}

/* A long prompt's graph of tasks that do nothing: all the time goes into hand-overs, sleeping and waking. */
static void many_tiny_tasks(void **state) {
    (void)state;
    tn_graph *g;
    atomic_int n = 0;
    const float us[SHAPE_SUBGRAPHS] = {1, 2, 3, 4, 5, 6};
    assert_int_equal(tn_graph_open(&ctx, &g, NULL), TERN_OK);
    assert_int_equal(shape_prefill(g, 24, 16, us, count_atomically, &n, NULL), TERN_OK);
    for (int c = 0; c < N_CREWS; c++) {
        tn_executor *ex;
        assert_int_equal(tn_executor_open(&ctx, CREWS[c], &ex, NULL), TERN_OK);
        for (int k = 0; k < TN_N_POLICIES; k++) {
            tn_run run = {.graph = g, .policy = tn_policy_defaults((tn_policy_kind)k)};
            for (int busy = 0; busy < 2; busy++) {
                run.policy.keep_busy = busy;
                n = 0;
                assert_int_equal(tn_executor_run(ex, &run, NULL, NULL), TERN_OK);
                assert_int_equal(n, g->n_tasks);
            }
        }
        tn_executor_close(&ex);
    }
    tn_graph_close(&g);
}

static void in_order_is_one_at_a_time(void **state) {
    (void)state;
    tn_graph *g;
    tn_executor *ex;
    atomic_int now = 0, most = 0;
    assert_int_equal(tn_graph_open(&ctx, &g, NULL), TERN_OK);
    assert_int_equal(tn_executor_open(&ctx, (const int32_t[]){2, 2, 0}, &ex, NULL), TERN_OK);
    const float us[SHAPE_SUBGRAPHS] = {1, 1, 1, 1, 1, 1};
    assert_int_equal(shape_prefill(g, 8, 4, us, probe_run, NULL, NULL), TERN_OK);
    tn_run run = {.graph = g, .policy = tn_policy_defaults(TN_POLICY_IN_ORDER)};
    for (int busy = 0; busy < 2; busy++) {
        run.policy.keep_busy = busy;
        arm(g);
        for (int32_t t = 0; t < g->n_tasks; t++) {
            g->tasks[t].arg = &probes[t];
            probes[t].n_at_once = &now, probes[t].most_at_once = &most;
        }
        assert_int_equal(tn_executor_run(ex, &run, NULL, NULL), TERN_OK);
        assert_int_equal(most, 1);
        for (int32_t t = 0; t < g->n_tasks; t++) assert_false(probes[t].bad);
    }
    tn_executor_close(&ex);
    tn_graph_close(&g);
}

/* Parts that wait for each other: they only end when several workers take them at once. */
typedef struct meeting {
    atomic_int n_here;
    int n_wanted;
} meeting;

static tern_status meet(void *arg, int i_part, const tn_worker *w, tern_error *err) {
    meeting *m = arg;
    (void)i_part, (void)w;
    atomic_fetch_add(&m->n_here, 1);
    for (int64_t begin = tn_now_ns(); atomic_load(&m->n_here) < m->n_wanted; sched_yield())
        if (tn_now_ns() - begin > INT64_C(20000000000))
            return tn_fail(err, TERN_E_LIMIT, "nobody came to part %d", i_part);
    return TERN_OK;
}

static void all_workers_share_one_task(void **state) {
    (void)state;
    tn_graph *g;
    tn_executor *ex;
    tern_error err = {0};
    assert_int_equal(tn_graph_open(&ctx, &g, NULL), TERN_OK);
    meeting m = {.n_wanted = 3};
    tn_task t = {.fn = meet, .arg = &m, .name = "big", .lane = TN_LANE_NPU, .n_parts = 3, .can_steal = true};
    tn_graph_add(g, &t);
    assert_int_equal(tn_graph_seal(g, NULL), TERN_OK);
    assert_int_equal(tn_executor_open(&ctx, (const int32_t[]){2, 1, 0}, &ex, NULL), TERN_OK);
    for (int round = 0; round < 200; round++) {
        for (int k = 0; k < TN_N_POLICIES; k++) {
            tn_run run = {.graph = g, .policy = tn_policy_defaults((tn_policy_kind)k)};
            run.policy.keep_busy = true;
            tn_run_stats stats;
            m.n_here = 0;
            assert_int_equal(tn_executor_run(ex, &run, &stats, &err), TERN_OK);
            assert_int_equal(stats.n_stolen, 2);
        }
    }
    tn_executor_close(&ex);
    tn_graph_close(&g);
}

/* Independent tasks of both lanes meet, too: an idle NPU worker takes the CPU's. */
static void idle_lanes_help_both_ways(void **state) {
    (void)state;
    tn_graph *g;
    tn_executor *ex;
    assert_int_equal(tn_graph_open(&ctx, &g, NULL), TERN_OK);
    assert_int_equal(tn_executor_open(&ctx, (const int32_t[]){1, 1, 0}, &ex, NULL), TERN_OK);
    for (int lane = 0; lane < 2; lane++) {
        tn_graph_clear(g);
        meeting m = {.n_wanted = 2};
        for (int i = 0; i < 2; i++)
            tn_graph_add(
                g, &(tn_task){.fn = meet, .arg = &m, .name = "m", .lane = (tn_lane)lane, .can_steal = true});
        assert_int_equal(tn_graph_seal(g, NULL), TERN_OK);
        tn_run run = {.graph = g, .policy = tn_policy_defaults(TN_POLICY_OOE)};
        run.policy.keep_busy = true;
        tern_error err = {0};
        assert_int_equal(tn_executor_run(ex, &run, NULL, &err), TERN_OK);
    }
    tn_executor_close(&ex);
    tn_graph_close(&g);
}

static void the_first_failure_stops_the_run(void **state) {
    (void)state;
    tn_graph *g;
    tn_rng rng = {.s = 99};
    assert_int_equal(tn_graph_open(&ctx, &g, NULL), TERN_OK);
    for (int c = 0; c < N_CREWS; c++) {
        tn_executor *ex;
        assert_int_equal(tn_executor_open(&ctx, CREWS[c], &ex, NULL), TERN_OK);
        for (int round = 0; round < 40; round++) {
            assert_int_equal(shape_random(g, &rng, 60, probe_run, probes, sizeof probes[0], NULL), TERN_OK);
            arm(g);
            int32_t bad = (int32_t)tn_rng_below(&rng, 60);
            probes[bad].fail_with = TERN_E_DEVICE;
            int64_t task_ns[60];
            tn_run run = {.graph = g,
                          .policy = tn_policy_defaults((tn_policy_kind)(round % TN_N_POLICIES)),
                          .task_ns = task_ns};
            tern_error err = {0};
            assert_int_equal(tn_executor_run(ex, &run, NULL, &err), TERN_E_DEVICE);
            assert_int_equal(err.code, TERN_E_DEVICE);
            assert_non_null(strstr(err.message, "cannot"));
            for (int32_t e = g->succ_off[bad]; e < g->succ_off[bad + 1]; e++)
                assert_int_equal(probes[g->succ[e]].n_runs, 0);
            for (int32_t t = 0; t < g->n_tasks; t++) {
                assert_false(probes[t].bad);
                assert_true(probes[t].n_runs <= g->tasks[t].n_parts);
                if (!probes[t].n_runs) assert_int_equal(task_ns[t], 0);
            }
            /* and the next run is as good as new */
            arm(g);
            assert_int_equal(tn_executor_run(ex, &run, NULL, &err), TERN_OK);
            for (int32_t t = 0; t < g->n_tasks; t++) assert_int_equal(probes[t].n_runs, g->tasks[t].n_parts);
        }
        tn_executor_close(&ex);
    }
    tn_graph_close(&g);
}

static tern_status fail_silently(void *arg, int i_part, const tn_worker *w, tern_error *err) {
    (void)arg, (void)i_part, (void)w, (void)err;
    return TERN_E_IO;
}

static void a_silent_failure_gets_a_message(void **state) {
    (void)state;
    tn_graph *g;
    tn_executor *ex;
    assert_int_equal(tn_graph_open(&ctx, &g, NULL), TERN_OK);
    assert_int_equal(tn_executor_open(&ctx, CREWS[0], &ex, NULL), TERN_OK);
    tn_graph_add(g, &(tn_task){.fn = fail_silently, .name = "down_proj", .chunk = 2, .layer = 7});
    assert_int_equal(tn_graph_seal(g, NULL), TERN_OK);
    tern_error err = {0};
    tn_run run = {.graph = g};
    assert_int_equal(tn_executor_run(ex, &run, NULL, &err), TERN_E_IO);
    assert_string_equal(err.message, "task down_proj (chunk 2, layer 7) failed: input/output error");
    tn_executor_close(&ex);
    tn_graph_close(&g);
}

static void cancel_stops_the_run(void **state) {
    (void)state;
    tn_graph *g;
    tn_rng rng = {.s = 3};
    assert_int_equal(tn_graph_open(&ctx, &g, NULL), TERN_OK);
    for (int c = 0; c < N_CREWS; c++) {
        tn_executor *ex;
        assert_int_equal(tn_executor_open(&ctx, CREWS[c], &ex, NULL), TERN_OK);
        const float us[SHAPE_SUBGRAPHS] = {1, 1, 1, 1, 1, 1};
        assert_int_equal(shape_prefill(g, 16, 4, us, probe_run, NULL, NULL), TERN_OK);
        for (int32_t t = 0; t < g->n_tasks; t++) g->tasks[t].arg = &probes[t];
        for (int round = 0; round < 40; round++) {
            atomic_bool cancel = false;
            arm(g);
            int32_t at = (int32_t)tn_rng_below(&rng, (uint64_t)g->n_tasks / 2);
            probes[at].cancel = &cancel;
            tn_run run = {.graph = g,
                          .policy = tn_policy_defaults((tn_policy_kind)(round % TN_N_POLICIES)),
                          .cancel = &cancel};
            tern_error err = {0};
            assert_int_equal(tn_executor_run(ex, &run, NULL, &err), TERN_E_CANCELLED);
            assert_int_equal(err.code, TERN_E_CANCELLED);
            for (int32_t e = g->succ_off[at]; e < g->succ_off[at + 1]; e++)
                assert_int_equal(probes[g->succ[e]].n_runs, 0);
            /* a flag that is already set: nothing runs */
            arm(g);
            assert_int_equal(tn_executor_run(ex, &run, NULL, &err), TERN_E_CANCELLED);
            for (int32_t t = 0; t < g->n_tasks; t++) assert_int_equal(probes[t].n_runs, 0);
        }
        tn_executor_close(&ex);
    }
    tn_graph_close(&g);
}

static void *run_often(void *arg) {
    const void **a = arg;
    for (int i = 0; i < 50; i++)
        if (tn_executor_run((tn_executor *)a[0], a[1], NULL, NULL)) return arg;
    return NULL;
}

static tern_status nothing(void *arg, int i_part, const tn_worker *w, tern_error *err) {
    (void)arg, (void)i_part, (void)w, (void)err;
    return TERN_OK;
}

static tern_status count(void *arg, int i_part, const tn_worker *w, tern_error *err) {
    (void)i_part, (void)w, (void)err;
    ++*(int *)arg; /* one task at a time, one run at a time: no atomic needed */
    return TERN_OK;
}

static void two_callers_take_turns(void **state) {
    (void)state;
    tn_graph *g;
    tn_executor *ex;
    int n = 0;
    assert_int_equal(tn_graph_open(&ctx, &g, NULL), TERN_OK);
    assert_int_equal(tn_executor_open(&ctx, (const int32_t[]){1, 1, 0}, &ex, NULL), TERN_OK);
    const float us[SHAPE_SUBGRAPHS] = {1, 1, 1, 1, 1, 1};
    assert_int_equal(shape_prefill(g, 2, 1, us, count, &n, NULL), TERN_OK);
    tn_run run = {.graph = g, .policy = tn_policy_defaults(TN_POLICY_IN_ORDER)};
    const void *arg[] = {ex, &run};
    pthread_t other;
    assert_int_equal(pthread_create(&other, NULL, run_often, arg), 0);
    assert_null(run_often(arg));
    void *result;
    assert_int_equal(pthread_join(other, &result), 0);
    assert_null(result);
    assert_int_equal(n, 100 * g->n_tasks);
    tn_executor_close(&ex);
    tn_graph_close(&g);
}

static void a_run_allocates_nothing_and_failing_leaks_nothing(void **state) {
    (void)state;
    const float us[SHAPE_SUBGRAPHS] = {1, 2, 3, 4, 5, 6};
    for (int fail_at = -1;; fail_at++) {
        scarce f = {.left = fail_at};
        tn_ctx mine;
        scarce_ctx(&mine, &f);
        tn_graph *g = NULL;
        tn_executor *ex = NULL;
        tn_timeline *tl = NULL;
        tern_error err = {0};
        tern_status st = tn_executor_open(&mine, (const int32_t[]){1, 1, 0}, &ex, &err);
        if (!st)
            st = tn_timeline_open(
                &mine, &(tn_timeline_options){.n_workers = {1, 1, 0}, .cap_events = 10, .cap_flows = 10}, &tl,
                &err);
        if (!st) st = tn_graph_open(&mine, &g, &err);
        if (!st) st = shape_prefill(g, 2, 3, us, nothing, NULL, &err);
        tn_run run = {.graph = g, .policy = tn_policy_defaults(TN_POLICY_IN_ORDER), .timeline = tl};
        if (!st) st = tn_executor_run(ex, &run, NULL, &err);
        long n_allocs = f.made;
        if (!st) {
            for (int k = 0; k < TN_N_POLICIES; k++) {
                run.policy = tn_policy_defaults((tn_policy_kind)k);
                assert_int_equal(tn_executor_run(ex, &run, NULL, &err), TERN_OK);
            }
            assert_int_equal(f.made, n_allocs);
        } else {
            assert_int_equal(st, TERN_E_MEMORY);
            assert_int_not_equal(err.code, TERN_OK);
        }
        tn_timeline_close(&tl);
        tn_executor_close(&ex);
        tn_graph_close(&g);
        for (int cat = 0; cat < TN_MEM_N_CATS; cat++) assert_int_equal(mine.live_bytes[cat], 0);
        if (!st && fail_at >= 0) break;
    }
}

static void bad_crews_are_refused(void **state) {
    (void)state;
    tn_executor *ex;
    tern_error err = {0};
    assert_int_equal(tn_executor_open(&ctx, (const int32_t[]){0, 0, 0}, &ex, &err), TERN_E_INVALID);
    assert_null(ex);
    assert_int_equal(tn_executor_open(&ctx, (const int32_t[]){-1, 2, 0}, &ex, &err), TERN_E_INVALID);
    assert_int_equal(tn_executor_open(&ctx, (const int32_t[]){200, 200, 0}, &ex, &err), TERN_E_INVALID);
    tn_graph *g;
    tn_timeline *tl;
    assert_int_equal(tn_executor_open(&ctx, (const int32_t[]){1, 1, 0}, &ex, &err), TERN_OK);
    assert_int_equal(tn_executor_n_workers(ex), 2);
    assert_int_equal(tn_graph_open(&ctx, &g, NULL), TERN_OK);
    assert_int_equal(tn_graph_seal(g, NULL), TERN_OK);
    assert_int_equal(
        tn_timeline_open(
            &ctx, &(tn_timeline_options){.n_workers = {2, 0, 0}, .cap_events = 1, .cap_flows = 1}, &tl, &err),
        TERN_OK);
    tn_run run = {.graph = g, .timeline = tl};
    assert_int_equal(tn_executor_run(ex, &run, NULL, &err), TERN_E_INVALID);
    run.timeline = NULL;
    assert_int_equal(tn_executor_run(ex, &run, NULL, &err), TERN_OK); /* an empty graph is done at once */
    tn_timeline_close(&tl);
    tn_graph_close(&g);
    tn_executor_close(&ex);
}

int main(void) {
    tn_ctx_init(&ctx, NULL);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_graphs),
        cmocka_unit_test(many_tiny_tasks),
        cmocka_unit_test(in_order_is_one_at_a_time),
        cmocka_unit_test(all_workers_share_one_task),
        cmocka_unit_test(idle_lanes_help_both_ways),
        cmocka_unit_test(the_first_failure_stops_the_run),
        cmocka_unit_test(a_silent_failure_gets_a_message),
        cmocka_unit_test(cancel_stops_the_run),
        cmocka_unit_test(two_callers_take_turns),
        cmocka_unit_test(a_run_allocates_nothing_and_failing_leaks_nothing),
        cmocka_unit_test(bad_crews_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
