/* tests/sched/timeline.c - does the timeline tell what happened: trace, Gantt, figures? */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "sched/executor.h"
#include "sched/shapes.h"
#include "sched/virtual.h"

#include <jansson.h>
#include <pthread.h>
#include <string.h>

#include "fixture/scarce.h"

static tn_ctx ctx;
static const int32_t ONE_EACH[TN_N_LANES] = {1, 1, 0};

static tn_timeline *open_timeline(int32_t n_cpu, int32_t n_npu, int32_t cap_events, int32_t cap_flows) {
    tn_timeline *tl;
    tn_timeline_options o = {
        .n_workers = {n_cpu, n_npu, 0}, .cap_events = cap_events, .cap_flows = cap_flows};
    assert_int_equal(tn_timeline_open(&ctx, &o, &tl, NULL), TERN_OK);
    return tl;
}

/* What a writer writes; to be freed. */
static char *text_of(const tn_timeline *tl, tern_status (*write)(const tn_timeline *, FILE *, tern_error *)) {
    char *text;
    size_t n;
    FILE *f = open_memstream(&text, &n);
    assert_non_null(f);
    assert_int_equal(write(tl, f, NULL), TERN_OK);
    fclose(f);
    return text;
}

static tern_status gantt_40(const tn_timeline *tl, FILE *f, tern_error *err) {
    return tn_timeline_write_gantt(tl, -1, 40, false, f, err);
}
static tern_status gantt_40_colour(const tn_timeline *tl, FILE *f, tern_error *err) {
    return tn_timeline_write_gantt(tl, -1, 40, true, f, err);
}
static tern_status summary(const tn_timeline *tl, FILE *f, tern_error *err) {
    return tn_timeline_write_summary(tl, -1, f, err);
}

static double num(json_t *e, const char *key) { return json_number_value(json_object_get(e, key)); }

/* Every part of every task is in the trace once, with its name and place, and every dependency is a pair of
 * arrow ends that lie in slices of its two tasks. */
static void check_trace(const tn_timeline *tl, const tn_graph *g, int32_t run) {
    char *text = text_of(tl, tn_timeline_write_trace);
    json_error_t je;
    json_t *root = json_loads(text, 0, &je), *e;
    if (!root) fail_msg("line %d: %s", je.line, je.text);
    json_t *events = json_object_get(root, "traceEvents");
    int *n_parts = calloc((size_t)g->n_tasks + 1, sizeof *n_parts), n_leave = 0, n_arrive = 0, n_names = 0;
    size_t i, k;
    json_array_foreach(events, i, e) {
        const char *ph = json_string_value(json_object_get(e, "ph"));
        if (ph[0] == 'M') n_names += !strcmp(json_string_value(json_object_get(e, "name")), "thread_name");
        if (ph[0] == 'X') {
            json_t *args = json_object_get(e, "args");
            int t = (int)num(args, "task");
            if ((int)num(args, "run") != run) continue;
            assert_in_range(t, 0, g->n_tasks - 1);
            n_parts[t]++;
            assert_string_equal(json_string_value(json_object_get(e, "name")), g->tasks[t].name);
            assert_int_equal((int)num(args, "chunk"), g->tasks[t].chunk);
            assert_int_equal((int)num(args, "layer"), g->tasks[t].layer);
            assert_true(num(e, "dur") >= 0 && num(e, "ts") >= 0);
        }
        if (ph[0] == 's' || ph[0] == 'f') {
            ph[0] == 's' ? n_leave++ : n_arrive++;
            bool inside = false;
            json_t *x;
            json_array_foreach(events, k, x) {
                if (json_string_value(json_object_get(x, "ph"))[0] != 'X' || num(x, "tid") != num(e, "tid"))
                    continue;
                double ts = num(e, "ts");
                if (num(x, "ts") <= ts && ts <= num(x, "ts") + num(x, "dur")) inside = true;
            }
            assert_true(inside);
        }
    }
    for (int32_t t = 0; t < g->n_tasks; t++) assert_int_equal(n_parts[t], g->tasks[t].n_parts);
    assert_int_equal(n_leave, g->succ_off[g->n_tasks]);
    assert_int_equal(n_arrive, n_leave);
    assert_int_equal(n_names, tn_timeline_n_workers(tl));
    json_decref(root);
    free(n_parts);
    free(text);
}

static tern_status nothing(void *arg, int i_part, const tn_worker *w, tern_error *err) {
    (void)arg, (void)i_part, (void)w, (void)err;
    return TERN_OK;
}

static void traces_hold_every_task(void **state) {
    (void)state;
    tn_graph *g;
    tn_sched *s;
    tn_executor *ex;
    tn_rng rng = {.s = 77};
    assert_int_equal(tn_graph_open(&ctx, &g, NULL), TERN_OK);
    assert_int_equal(tn_sched_open(&ctx, &s, NULL), TERN_OK);
    assert_int_equal(tn_executor_open(&ctx, ONE_EACH, &ex, NULL), TERN_OK);
    tn_timeline *tl = open_timeline(1, 1, 400, 400);
    for (int round = 0; round < 10; round++) {
        assert_int_equal(shape_random(g, &rng, 50, nothing, NULL, 0, NULL), TERN_OK);
        tn_policy p = tn_policy_defaults((tn_policy_kind)(round % TN_N_POLICIES));
        p.keep_busy = round % 2;
        assert_int_equal(tn_sched_bind(s, g, NULL), TERN_OK);
        tn_timeline_clear(tl);
        tn_virtual_result r;
        tn_virtual_run(s, &p, ONE_EACH, tl, &r);
        check_trace(tl, g, 0);
        tn_timeline_clear(tl);
        tn_run run = {.graph = g, .policy = p, .timeline = tl};
        assert_int_equal(tn_executor_run(ex, &run, NULL, NULL), TERN_OK);
        check_trace(tl, g, 0);
    }
    tn_timeline_close(&tl);
    tn_executor_close(&ex);
    tn_sched_close(&s);
    tn_graph_close(&g);
}

/* The example of tests/sched/virtual.c, out of order: CPU 0-2 2-4 5-7 8-10, NPU 2-5 5-8 8-11 11-14 us. */
static tn_timeline *example(tn_graph *g, int32_t cap_events, int32_t cap_flows, int n_runs) {
    tn_sched *s;
    assert_int_equal(tn_sched_open(&ctx, &s, NULL), TERN_OK);
    tn_graph_clear(g);
    for (int32_t chunk = 0; chunk < 2; chunk++) {
        for (int32_t j = 0; j < 4; j++) {
            int32_t id = tn_graph_add(g, &(tn_task){.name = j % 2 ? "linear" : "a \"float\"\n",
                                                    .lane = j % 2 ? TN_LANE_NPU : TN_LANE_CPU,
                                                    .chunk = chunk,
                                                    .subgraph = j,
                                                    .est_us = {2, 3}});
            if (j) tn_graph_depend(g, id - 1, id);
        }
    }
    assert_int_equal(tn_graph_seal(g, NULL), TERN_OK);
    assert_int_equal(tn_sched_bind(s, g, NULL), TERN_OK);
    tn_timeline *tl = open_timeline(1, 1, cap_events, cap_flows);
    tn_policy p = tn_policy_defaults(TN_POLICY_OOE);
    tn_virtual_result r;
    for (int i = 0; i < n_runs; i++) tn_virtual_run(s, &p, ONE_EACH, tl, &r);
    tn_sched_close(&s);
    return tl;
}

static void figures_by_hand(void **state) {
    (void)state;
    tn_graph *g;
    assert_int_equal(tn_graph_open(&ctx, &g, NULL), TERN_OK);
    tn_timeline *tl = example(g, 100, 100, 2);
    tn_timeline_summary s;
    for (int32_t run = -1; run < 2; run++) {
        int n = run < 0 ? 2 : 1;
        assert_int_equal(tn_timeline_summarise(tl, run, &s, NULL), TERN_OK);
        assert_int_equal(s.end_ns - s.start_ns, 14000);
        assert_int_equal(s.busy_ns[TN_LANE_CPU], 8000 * n);
        assert_int_equal(s.busy_ns[TN_LANE_NPU], 12000 * n);
        assert_int_equal(s.n_events[TN_LANE_CPU], 4 * n);
        assert_int_equal(s.n_stolen[TN_LANE_CPU], 0);
        assert_int_equal(s.critical_ns, 10000 * n); /* 2 + 3 + 2 + 3 */
        assert_int_equal(s.n_lost, 0);
    }
    assert_true(s.bubble[TN_LANE_CPU] > 6.0 / 14 - 1e-12 && s.bubble[TN_LANE_CPU] < 6.0 / 14 + 1e-12);
    tn_timeline_close(&tl);

    tl = example(g, 100, 100, 1);
    char *text = text_of(tl, summary);
    assert_string_equal(text, "0.014 ms, critical path 0.010 ms (71.4 %)\n"
                              "cpu: 1 worker, 4 parts (0 from other lanes), busy 0.008 ms, bubbles 42.9 %\n"
                              "npu: 1 worker, 4 parts (0 from other lanes), busy 0.012 ms, bubbles 14.3 %\n");
    free(text);
    check_trace(tl, g, 0); /* whose names need escapes */
    tn_timeline_close(&tl);
    tn_graph_close(&g);
}

static void gantt_by_hand(void **state) {
    (void)state;
    tn_graph *g;
    assert_int_equal(tn_graph_open(&ctx, &g, NULL), TERN_OK);
    tn_timeline *tl = example(g, 100, 100, 1);
    char *text = text_of(tl, gantt_40);
    assert_string_equal(text, "cpu 0 ┃███████████▒  ▓█████  ░█████▓           ┃  57.1 % busy\n"
                              "      ┃000000111111  000000  1111111           ┃\n"
                              "npu 0 ┃     ▒██████████████████████████████████┃  85.7 % busy\n"
                              "      ┃     00000000011111111100000000111111111┃\n"
                              "      0                                   0.014 ms\n"
                              "█ over 3/4 busy, ▓ over 1/2, ▒ over 1/4, ░ less; below, the chunk: 0-9, a-z, "
                              "then again from 0; . = none\n");
    free(text);
    text = text_of(tl, gantt_40_colour);
    assert_non_null(strstr(text, "\x1b[31m"));
    assert_non_null(strstr(text, "\x1b[32m"));
    free(text);
    tern_error err;
    assert_int_equal(tn_timeline_write_gantt(tl, -1, 5, false, stdout, &err), TERN_E_INVALID);
    tn_timeline_clear(tl);
    text = text_of(tl, gantt_40);
    assert_string_equal(text, "nothing ran\n");
    free(text);
    tn_timeline_close(&tl);
    tn_graph_close(&g);
}

static void full_rings_keep_the_newest(void **state) {
    (void)state;
    tn_graph *g;
    assert_int_equal(tn_graph_open(&ctx, &g, NULL), TERN_OK);
    tn_timeline *tl = example(g, 3, 2, 2);
    assert_int_equal(tn_timeline_n_events(tl, 1), 3);
    assert_int_equal(tn_timeline_event(tl, 1, 0)->start_ns, 5000);
    assert_int_equal(tn_timeline_event(tl, 1, 2)->end_ns, 14000);
    assert_int_equal(tn_timeline_event(tl, 1, 2)->run, 1);
    tn_timeline_summary s;
    assert_int_equal(tn_timeline_summarise(tl, -1, &s, NULL), TERN_OK);
    assert_int_equal(s.n_lost, 2 * 8 - 2 * 3 + 2 * 6 - 2 * 2);
    char *text = text_of(tl, tn_timeline_write_trace);
    json_t *root = json_loads(text, 0, NULL);
    assert_non_null(root);
    json_decref(root);
    free(text);
    tn_timeline_close(&tl);
    tn_graph_close(&g);
}

static void events_of_others(void **state) {
    (void)state;
    static const char *const EXTRA[] = {"flash \\ reads"};
    tn_timeline *tl;
    tn_timeline_options o = {
        .n_workers = {1, 0, 1}, .extra = EXTRA, .n_extra = 1, .cap_events = 4, .cap_flows = 4};
    assert_int_equal(tn_timeline_open(&ctx, &o, &tl, NULL), TERN_OK);
    assert_int_equal(tn_timeline_first_track(tl, TN_LANE_IO), 1);
    assert_int_equal(tn_timeline_n_workers(tl), 2);
    tn_timeline_add(tl, 2,
                    &(tn_event){.start_ns = 5,
                                .end_ns = 2000005,
                                .name = "read",
                                .task = -1,
                                .run = -1,
                                .chunk = -1,
                                .layer = 3,
                                .lane = TN_LANE_IO});
    char *text = text_of(tl, tn_timeline_write_trace);
    json_t *root = json_loads(text, 0, NULL);
    assert_non_null(root);
    json_t *read = json_array_get(json_object_get(root, "traceEvents"),
                                  json_array_size(json_object_get(root, "traceEvents")) - 1);
    assert_string_equal(json_string_value(json_object_get(read, "name")), "read");
    assert_true(num(read, "dur") == 2000.0);
    assert_null(json_object_get(json_object_get(read, "args"), "stolen"));
    json_decref(root);
    free(text);
    text = text_of(tl, gantt_40);
    assert_non_null(strstr(text, "flash \\ reads ┃████████████████████████████████████████┃ 100.0 % busy"));
    assert_non_null(strstr(text, "┃........................................┃"));
    free(text);
    tn_timeline_close(&tl);
}

static void failures(void **state) {
    (void)state;
    tern_error err;
    tn_timeline *tl;
    assert_int_equal(tn_timeline_open(&ctx, &(tn_timeline_options){.n_workers = {1, 1, 0}}, &tl, &err),
                     TERN_E_INVALID);
    assert_null(tl);
    assert_int_equal(
        tn_timeline_open(&ctx, &(tn_timeline_options){.cap_events = 1, .cap_flows = 1}, &tl, &err),
        TERN_E_INVALID);
    tl = open_timeline(1, 1, 4, 4);
    FILE *full = fopen("/dev/full", "w");
    if (full) {
        assert_int_equal(tn_timeline_write_trace(tl, full, &err), TERN_E_IO);
        fclose(full);
    }
    tn_timeline_close(&tl);
    for (int fail_at = 0;; fail_at++) {
        scarce f = {.left = fail_at};
        tn_ctx mine;
        scarce_ctx(&mine, &f);
        tn_timeline_options o = {.n_workers = {1, 1, 0}, .cap_events = 4, .cap_flows = 4};
        tern_status st = tn_timeline_open(&mine, &o, &tl, &err);
        if (!st) {
            tn_timeline_add(tl, 0, &(tn_event){.end_ns = 1, .name = "x"});
            FILE *f2 = fopen("/dev/null", "w");
            assert_non_null(f2);
            st = tn_timeline_write_trace(tl, f2, &err);
            if (!st) st = tn_timeline_write_gantt(tl, -1, 40, false, f2, &err);
            if (!st) st = tn_timeline_write_summary(tl, -1, f2, &err);
            fclose(f2);
        }
        assert_true(st == TERN_OK || st == TERN_E_MEMORY);
        tn_timeline_close(&tl);
        assert_int_equal(mine.live_bytes[TN_MEM_OTHER], 0);
        if (!st) break;
    }
}

typedef struct live_writer {
    tn_timeline *tl;
    int32_t n;
} live_writer;

static void *write_live(void *user) {
    live_writer *w = user;
    for (int32_t i = 0; i < w->n; i++)
        tn_timeline_add(w->tl, 1, &(tn_event){.start_ns = i, .end_ns = i + 1, .name = "x", .seq = i});
    return NULL;
}

/* What a reader takes while another thread writes is what was written, in order; what found no room is
 * counted. */
static void live_events_are_taken_once(void **state) {
    (void)state;
    tn_timeline *tl;
    tn_timeline_options o = {.n_workers = {1, 1, 0}, .cap_events = 64, .cap_flows = 1, .live = true};
    assert_int_equal(tn_timeline_open(&ctx, &o, &tl, NULL), TERN_OK);
    live_writer w = {.tl = tl, .n = 20000};
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, write_live, &w), 0);
    tn_event got[48];
    int64_t n_lost = 0, n_got = 0;
    int32_t next = 0;
    bool ended = false;
    for (int32_t n = 1; n || !ended;) {
        if (!n && !ended) pthread_join(thread, NULL), ended = true;
        n = tn_timeline_take(tl, 1, got, 48, &n_lost);
        for (int32_t i = 0; i < n; i++) {
            assert_true(got[i].seq >= next);
            assert_int_equal(got[i].end_ns, got[i].seq + 1);
            next = got[i].seq + 1;
        }
        n_got += n;
    }
    assert_true(n_got >= 64);
    assert_int_equal(n_got + n_lost, w.n);
    assert_int_equal(tn_timeline_take(tl, 0, got, 48, &n_lost), 0); /* nobody wrote there */
    tn_timeline_close(&tl);
}

int main(void) {
    tn_ctx_init(&ctx, NULL);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(traces_hold_every_task),
        cmocka_unit_test(figures_by_hand),
        cmocka_unit_test(gantt_by_hand),
        cmocka_unit_test(full_rings_keep_the_newest),
        cmocka_unit_test(events_of_others),
        cmocka_unit_test(failures),
        cmocka_unit_test(live_events_are_taken_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
