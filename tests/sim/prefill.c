/* tests/sim/prefill.c - are simulated prefills valid schedules, deterministic, and within the bounds of any schedule? */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "sim/sim.h"

#include <stdio.h>

static tn_ctx ctx;
static tn_graph *g;
static tn_sched *s;
static tn_soc soc;

static tn_sim_result simulate(const char *model, int32_t n, int32_t chunk, tn_policy_kind kind, tn_timeline *tl) {
    tn_sim_request r = {.soc = &soc, .model = tn_sim_model_find(model), .n_tokens = n, .n_chunk = chunk, .policy = tn_policy_defaults(kind)};
    tn_sim_result o;
    assert_non_null(r.model);
    assert_int_equal(tn_sim_prefill(&r, g, s, tl, &o, NULL), TERN_OK);
    return o;
}

/* What the fit was made from must come out again: NPU and CPU time of Qwen1.5-1.8B at one chunk of 256 tokens. The CPU's
 * anchor is without the outlier paths and the last residual, which add some percent. */
static void anchors_come_back(void **state) {
    (void)state;
    tn_sim_result o = simulate("qwen1.5-1.8b", 256, 256, TN_POLICY_IN_ORDER, NULL);
    assert_true(o.work_ns[TN_LANE_NPU] > 314.9e6 && o.work_ns[TN_LANE_NPU] < 315.1e6);
    assert_true(o.work_ns[TN_LANE_CPU] > 157.5e6 * 0.999 && o.work_ns[TN_LANE_CPU] < 157.5e6 * 1.05);
    assert_true(soc.fit_residual < 0.25);
}

static void bounds_hold(void **state) {
    (void)state;
    static const tn_policy_kind kinds[] = {TN_POLICY_IN_ORDER, TN_POLICY_OVERLAP, TN_POLICY_OOE, TN_POLICY_SYNERGY};
    for (int32_t m = 0; tn_sim_model_at(m); m++)
        for (int32_t n = 64; n <= 2048; n *= 4) {
            tn_sim_result first = {0};
            for (int k = 0; k < 4; k++) {
                tn_sim_result o = simulate(tn_sim_model_at(m)->name, n, 256, kinds[k], NULL), again = simulate(tn_sim_model_at(m)->name, n, 256, kinds[k], NULL);
                assert_true(o.run.makespan_ns == again.run.makespan_ns);
                assert_true(o.run.makespan_ns >= o.critical_ns);
                assert_true(o.run.makespan_ns >= o.work_ns[TN_LANE_NPU] && o.run.makespan_ns >= o.work_ns[TN_LANE_CPU]);
                /* one task at a time is the slowest a schedule without idle waiting can be */
                if (!k) assert_true(o.run.makespan_ns == o.work_ns[TN_LANE_NPU] + o.work_ns[TN_LANE_CPU]), first = o;
                assert_true(o.run.makespan_ns <= first.run.makespan_ns);
            }
        }
}

/* From the events alone: a lane does one thing at a time, and a chunk's stages follow each other. */
static void schedules_are_valid(void **state) {
    (void)state;
    tn_timeline_options opt = {.n_workers = {1, 1, 0}, .cap_events = 1 << 14, .cap_flows = 1 << 16};
    tn_timeline *tl;
    assert_int_equal(tn_timeline_open(&ctx, &opt, &tl, NULL), TERN_OK);
    tn_sim_result o = simulate("qwen2.5-0.5b", 1024, 256, TN_POLICY_OOE, tl);
    static int64_t start[1 << 14], end[1 << 14];
    int32_t seen = 0;
    for (int32_t track = 0; track < 2; track++) {
        int64_t free_at = 0;
        for (int32_t i = 0; i < tn_timeline_n_events(tl, track); i++, seen++) {
            const tn_event *e = tn_timeline_event(tl, track, i);
            assert_true(e->start_ns >= free_at && e->end_ns >= e->start_ns);
            free_at = e->end_ns;
            start[e->task] = e->start_ns;
            end[e->task] = e->end_ns;
        }
    }
    assert_int_equal(seen, o.n_tasks);
    for (int32_t t = 0; t < g->n_tasks; t++)
        for (int32_t p = g->pred_off[t]; p < g->pred_off[t + 1]; p++) assert_true(end[g->pred[p]] <= start[t]);
    tn_timeline_close(&tl);
}

/* A device ten times slower is the bottleneck; one ten thousand times faster is not. */
static void bottlenecks_are_named(void **state) {
    (void)state;
    tn_soc kept = soc;
    soc.mac_ns *= 10;
    tn_sim_result o = simulate("qwen1.5-1.8b", 1024, 256, TN_POLICY_OOE, NULL);
    assert_string_equal(tn_sim_bottleneck(&o), "npu");
    soc.mac_ns /= 1e5, soc.byte_ns /= 1e5, soc.launch_ns /= 1e5;
    o = simulate("qwen1.5-1.8b", 1024, 256, TN_POLICY_OOE, NULL);
    assert_string_equal(tn_sim_bottleneck(&o), "cpu");
    soc = kept;
    o = simulate("qwen1.5-1.8b", 1024, 256, TN_POLICY_IN_ORDER, NULL);
    assert_string_equal(tn_sim_bottleneck(&o), "schedule");
}

/* A file that lacks a section, or whose numbers make no sense, is refused with a message. */
static void bad_files_are_refused(void **state) {
    (void)state;
    static const char *const bad[] = {"", "{}", "[1]", "{\"npu_matmul\": {\"rows\": [{\"k\": 1, \"n\": 1, \"ms\": 1}]}}",
                                      "{\"npu_matmul\": {\"rows\": [{\"k\": 1, \"n\": 1, \"ms\": 1}, {\"k\": 1, \"n\": 1, \"ms\": 2}]}}",
                                      "{\"npu_matmul\": {\"rows\": [{\"k\": 1, \"n\": 1, \"ms\": 2}, {\"k\": 2, \"n\": 1, \"ms\": 1}]}}",
                                      "{\"npu_matmul\": {\"rows\": [{\"k\": 1, \"n\": 1, \"ms\": 1}, {\"k\": 2, \"n\": 1, \"ms\": -2}]}}"};
    const char *path = TN_BINARY_DIR "/sim-bad.json";
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        FILE *f = fopen(path, "w");
        assert_non_null(f);
        fputs(bad[i], f);
        fclose(f);
        tern_error err = {0};
        tn_soc out;
        assert_int_equal(tn_soc_load(&out, path, &err), TERN_E_FORMAT);
    }
    remove(path);
}

int main(void) {
    tn_ctx_init(&ctx, NULL);
    if (tn_graph_open(&ctx, &g, NULL) || tn_sched_open(&ctx, &s, NULL)) return 1;
    if (tn_soc_load(&soc, TN_SOURCE_DIR "/share/soc/sd8gen3.json", NULL)) return 1;
    const struct CMUnitTest tests[] = {cmocka_unit_test(anchors_come_back), cmocka_unit_test(bounds_hold), cmocka_unit_test(schedules_are_valid),
                                       cmocka_unit_test(bottlenecks_are_named), cmocka_unit_test(bad_files_are_refused)};
    int rc = cmocka_run_group_tests(tests, NULL, NULL);
    tn_sched_close(&s);
    tn_graph_close(&g);
    return rc;
}
