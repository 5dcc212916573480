/* bench/sched.c - what scheduling costs: a decision, a simulated prefill, a task on real threads.
 *   bench_sched [seconds per figure, default 0.3] */
#include "base/clock.h"
#include "base/cpu.h"
#include "sched/executor.h"
#include "attention/headplan.h"
#include "sched/shapes.h"
#include "sched/virtual.h"

#include <stdio.h>
#include <stdlib.h>

static const float US[SHAPE_SUBGRAPHS] = {300, 1500, 900, 1000, 300, 2500};
static const int32_t ONE_EACH[TN_N_LANES] = {1, 1, 0};

static int by_value(const void *a, const void *b) {
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

static void must(tern_status st, const tern_error *err) {
    if (!st) return;
    fprintf(stderr, "%s\n", err->message);
    exit(1);
}

/* A decision as the executor counts it: report a finished task, choose the next for the same worker. Two
 * workers take turns, which keeps both lanes' queues as full as they get. */
static void decisions(tn_ctx *ctx, double seconds) {
    enum { CAP = 1 << 20 };
    int64_t *ns = malloc(CAP * sizeof *ns);
    if (!ns) exit(1);
    tn_graph *g;
    tn_sched *s;
    tern_error err;
    must(tn_graph_open(ctx, &g, &err), &err);
    must(tn_sched_open(ctx, &s, &err), &err);
    for (int i = 0; i < 1000; i++) {
        int64_t t0 = tn_now_ns();
        ns[i] = tn_now_ns() - t0;
    }
    qsort(ns, 1000, sizeof *ns, by_value);
    printf("decision, ns (of that %lld for the clock; the longest are interruptions)\n", (long long)ns[500]);
    printf("  %-10s %7s %7s %7s %7s %7s %9s\n", "policy", "chunks", "p50", "p90", "p99", "p99.9", "max");
    for (int chunks = 4; chunks <= 64; chunks *= 4) {
        must(shape_prefill(g, 24, chunks, US, NULL, NULL, &err), &err);
        must(tn_sched_bind(s, g, &err), &err);
        for (int k = 0; k < TN_POLICY_PLAN; k++) {
            tn_policy p = tn_policy_defaults((tn_policy_kind)k);
            size_t n = 0;
            for (double begin = tn_now_s(); tn_now_s() - begin < seconds;) {
                tn_pick pick[2];
                bool busy[2] = {false, false};
                tn_sched_start(s, &p, ONE_EACH);
                for (int lane = 0; !tn_sched_finished(s); lane = !lane) {
                    int64_t t0 = tn_now_ns();
                    if (busy[lane]) tn_sched_done(s, pick[lane].task);
                    busy[lane] = tn_sched_pick(s, (tn_lane)lane, &pick[lane]);
                    int64_t t1 = tn_now_ns();
                    if (busy[lane] && n < CAP) ns[n++] = t1 - t0;
                }
            }
            qsort(ns, n, sizeof *ns, by_value);
            printf("  %-10s %7d %7lld %7lld %7lld %7lld %9lld\n", tn_policy_name((tn_policy_kind)k), chunks,
                   (long long)ns[n / 2], (long long)ns[n * 9 / 10], (long long)ns[n * 99 / 100],
                   (long long)ns[n * 999 / 1000], (long long)ns[n - 1]);
        }
    }
    tn_sched_close(&s);
    tn_graph_close(&g);
    free(ns);
}

static void simulations(tn_ctx *ctx, double seconds) {
    tn_graph *g;
    tn_sched *s;
    tern_error err;
    must(tn_graph_open(ctx, &g, &err), &err);
    must(tn_sched_open(ctx, &s, &err), &err);
    must(shape_prefill(g, 24, 4, US, NULL, NULL, &err), &err);
    must(tn_sched_bind(s, g, &err), &err);
    printf("virtual clock, prefill of 24 layers x 6 subgraphs x 4 chunks\n");
    printf("  %-10s %12s %12s %12s %12s\n", "policy", "requests/s", "makespan ms", "npu bubble",
           "cpu bubble");
    for (int k = 0; k < TN_POLICY_PLAN; k++) {
        tn_policy p = tn_policy_defaults((tn_policy_kind)k);
        tn_virtual_result r;
        int n = 0;
        double begin = tn_now_s();
        for (; tn_now_s() - begin < seconds; n += 10)
            for (int i = 0; i < 10; i++) tn_virtual_run(s, &p, ONE_EACH, NULL, &r);
        printf("  %-10s %12.0f %12.3f %10.1f %% %10.1f %%\n", tn_policy_name((tn_policy_kind)k),
               n / (tn_now_s() - begin), (double)r.makespan_ns * 1e-6, 100 * r.bubble[TN_LANE_NPU],
               100 * r.bubble[TN_LANE_CPU]);
    }
    tn_sched_close(&s);
    tn_graph_close(&g);
}

/* Plans of sparse attention's heads (the paper: less than 1 ms). */
static void headplans(void) {
    printf("head plans, random times, medians of 101 (total against no overlap, order or fusion)\n  %-6s "
           "%10s %10s %10s\n",
           "heads", "plan us", "longest us", "total");
    uint64_t rng = 1;
    for (int n = 2; n <= TN_HEADPLAN_MAX_HEADS; n *= 2) {
        int64_t ns[101];
        double ratio = 0;
        for (int run = 0; run < 101; run++) {
            tn_headplan_costs c = {.n_heads = n,
                                   .n_widths = 3,
                                   .width = {1, 2, 4},
                                   .launch_us = {100, 150, 200},
                                   .topk_apart = true};
            for (int i = 0; i < n; i++) {
                rng = rng * 6364136223846793005u + 1442695040888963407u;
                c.bucket[i] = (int32_t)(rng >> 62);
                c.topk_us[i] = (double)(rng >> 40 & 63) + 10;
                c.attend_us[i] = (double)(rng >> 48 & 127) + 10;
            }
            tn_headplan plan, naive;
            tern_error err;
            int64_t t0 = tn_now_ns();
            must(tn_headplan_make(&c, (tn_headplan_switches){0}, &plan, &err), &err);
            ns[run] = tn_now_ns() - t0;
            must(tn_headplan_make(
                     &c, (tn_headplan_switches){.in_order = true, .no_fusion = true, .no_overlap = true},
                     &naive, &err),
                 &err);
            ratio += plan.total_us / naive.total_us / 101;
        }
        qsort(ns, 101, sizeof *ns, by_value);
        printf("  %-6d %10.1f %10.1f %9.1f %%\n", n, (double)ns[50] * 1e-3, (double)ns[100] * 1e-3,
               100 * ratio);
    }
}

static tern_status work_for(void *arg, int i_part, const tn_worker *w, tern_error *err) {
    (void)i_part, (void)w, (void)err;
    for (int64_t end = tn_now_ns() + *(const int64_t *)arg; tn_now_ns() < end;) {
    }
    return TERN_OK;
}

static tern_status nothing(void *arg, int i_part, const tn_worker *w, tern_error *err) {
    (void)arg, (void)i_part, (void)w, (void)err;
    return TERN_OK;
}

static void executor_line(tn_executor *ex, const tn_graph *g, tn_policy p, const char *what,
                          double per_run_ns, double seconds) {
    tn_run run = {.graph = g, .policy = p};
    tn_run_stats st = {0};
    tern_error err;
    int64_t wall[1000], decide = 0, n_decisions = 0, longest = 0;
    size_t n = 0;
    for (double begin = tn_now_s(); n < 1000 && (n < 3 || tn_now_s() - begin < seconds);) {
        must(tn_executor_run(ex, &run, &st, &err), &err);
        wall[n++] = st.wall_ns;
        decide += st.decide_ns;
        n_decisions += st.n_decisions;
        if (st.decide_max_ns > longest) longest = st.decide_max_ns;
    }
    qsort(wall, n, sizeof wall[0], by_value);
    printf("  %-46s %10.3f %12.0f %12.0f %12lld\n", what,
           ((double)wall[n / 2] - per_run_ns) * 1e-3 / g->n_tasks, (double)wall[n / 2] * 1e-3,
           (double)decide / (double)n_decisions, (long long)longest);
}

static void executors(tn_ctx *ctx, double seconds) {
    tn_graph *g;
    tn_executor *one, *two;
    tern_error err;
    int64_t task_ns = 200000;
    must(tn_graph_open(ctx, &g, &err), &err);
    must(tn_executor_open(ctx, (const int32_t[]){1, 0, 0}, &one, &err), &err);
    must(tn_executor_open(ctx, ONE_EACH, &two, &err), &err);
    tn_policy ooe = tn_policy_defaults(TN_POLICY_OOE), in_order = tn_policy_defaults(TN_POLICY_IN_ORDER);
    printf("real threads (%d cores); overhead = wall time beyond the tasks' own, per task\n", tn_cpu_count());
    printf("  %-46s %10s %12s %12s %12s\n", "medians", "us/task", "run us", "decision ns", "longest ns");
    must(shape_prefill(g, 24, 4, US, nothing, NULL, &err), &err);
    executor_line(one, g, ooe, "1 thread, empty tasks, ooe", 0, seconds);
    executor_line(two, g, ooe, "cpu+npu, empty tasks, ooe", 0, seconds);
    executor_line(two, g, in_order, "cpu+npu, empty tasks, in-order", 0, seconds);
    ooe.keep_busy = true;
    executor_line(two, g, ooe, "cpu+npu, empty tasks, ooe keep-busy", 0, seconds);
    must(shape_prefill(g, 24, 1, US, nothing, NULL, &err), &err);
    executor_line(two, g, in_order, "chain of empty tasks, lane to lane, in-order", 0, seconds);
    must(shape_prefill(g, 24, 1, US, work_for, &task_ns, &err), &err);
    executor_line(two, g, in_order, "chain of 200 us tasks, lane to lane, in-order",
                  (double)task_ns * g->n_tasks, seconds);

    tn_graph_clear(g);
    int64_t part_ns = 50000;
    for (int i = 0; i < 20; i++) {
        int32_t id = tn_graph_add(g, &(tn_task){.fn = work_for,
                                                .arg = &part_ns,
                                                .name = "linear",
                                                .lane = TN_LANE_NPU,
                                                .chunk = i,
                                                .n_parts = 16,
                                                .can_steal = true});
        if (i) tn_graph_depend(g, id - 1, id);
    }
    must(tn_graph_seal(g, &err), &err);
    executor_line(two, g, ooe, "16 parts of 50 us each, both cores, keep-busy", 20 * 8 * 50000.0, seconds);
    tn_executor_close(&one);
    tn_executor_close(&two);
    tn_graph_close(&g);
}

int main(int argc, char **argv) {
    double seconds = argc > 1 ? atof(argv[1]) : 0.3;
    tn_ctx ctx;
    tn_ctx_init(&ctx, NULL);
    decisions(&ctx, seconds);
    simulations(&ctx, seconds);
    headplans();
    executors(&ctx, seconds);
    return 0;
}
