/* The cold start's part of the prefill graph: weights are read, unpacked and loaded before they are used, in
 * every chunk, no sooner than their place is free; under every policy; and overlapping hides what it can. On
 * the virtual clock. */
#include "package/prefill_graph.h"
#include "sched/virtual.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <string.h>

#include "package/steps.h"
#include "sched/verify.h"

enum { N_LAYERS = 6, PER_LAYER = 5, N_UNITS = N_LAYERS * PER_LAYER + 1 };

static const int32_t unit_weights[PER_LAYER] = {TN_NO_WEIGHTS, W_QKV, W_O, W_FFN, W_DOWN};
static const char *const unit_step[PER_LAYER] = {"norm", "qkv", "o", "ffn", "down"};

typedef struct times {
    float read_us, unpack_us;
    int32_t n_parts;
} times;

static void fill(void *user, const tn_step *step, tn_task *t) {
    (void)user;
    bool product = step->kind == TN_STEP_PRODUCT;
    t->est_us[TN_LANE_NPU] = product ? 300 : 900;
    t->est_us[TN_LANE_CPU] = product ? 1500 : 100;
}

static void fill_load(void *user, int32_t unit, tn_load_step step, tn_task *t) {
    const times *x = user;
    bool small = unit % PER_LAYER == 0 && unit < N_UNITS - 1;
    for (int l = 0; l < TN_N_LANES; l++)
        t->est_us[l] = step == TN_LD_READ     ? (small ? 20 : x->read_us)
                       : step == TN_LD_UNPACK ? (small ? 1 : x->unpack_us)
                                              : 10;
    if (step == TN_LD_UNPACK && !small) t->n_parts = x->n_parts;
}

/* Units whose place is that of the unit `ring` units before. */
static void units_of(tn_prefill_unit *u, int32_t ring) {
    for (int32_t i = 0; i < N_UNITS; i++) {
        u[i] = (tn_prefill_unit){.layer = i / PER_LAYER,
                                 .weights = i == N_UNITS - 1 ? W_DOWN + 1 : unit_weights[i % PER_LAYER],
                                 .after = ring && i >= ring ? i - ring : -1};
    }
}

static int32_t find(const tn_graph *g, int32_t n_step_tasks, int32_t chunk, int32_t layer, const char *step) {
    for (int32_t t = 0; t < n_step_tasks; t++) {
        if (g->tasks[t].chunk == chunk && g->tasks[t].layer == layer && !strcmp(g->tasks[t].name, step))
            return t;
    }
    return -1;
}

static bool waits_for(const tn_graph *g, int32_t task, int32_t before) {
    for (int32_t e = g->pred_off[task]; e < g->pred_off[task + 1]; e++) {
        if (g->pred[e] == before) return true;
    }
    return false;
}

static int64_t run(tn_ctx *ctx, const times *x, int32_t n_chunks, int32_t ring, tn_policy policy,
                   const int32_t *workers) {
    tn_prefill_unit units[N_UNITS];
    units_of(units, ring);
    tn_graph *g;
    tern_error err = {0};
    assert_int_equal(tn_graph_open(ctx, &g, &err), TERN_OK);
    tn_step steps[N_LAYERS * 11 + 1];
    const tn_prefill_spec spec = {.n_chunks = n_chunks,
                                  .n_steps = decoder_steps(steps, N_LAYERS, 1u << TN_STEP_OUTLIERS),
                                  .steps = steps,
                                  .user = (void *)x,
                                  .fill = fill,
                                  .n_units = N_UNITS,
                                  .units = units,
                                  .fill_load = fill_load};
    if (tn_prefill_graph_build(&spec, g, &err) != TERN_OK) fail_msg("%s", err.message);
    int32_t first = g->n_tasks - N_UNITS * TN_N_LOAD_STEPS;
    for (int32_t u = 0; u < N_UNITS; u++) {
        int32_t id = first + u * TN_N_LOAD_STEPS;
        assert_string_equal(g->tasks[id].name, "read");
        assert_true(g->tasks[id].lane == TN_LANE_IO && !g->tasks[id].can_steal);
        assert_true(waits_for(g, id + TN_LD_UNPACK, id) && waits_for(g, id + TN_LD_LOAD, id + TN_LD_UNPACK));
        if (u) assert_true(waits_for(g, id, id - TN_N_LOAD_STEPS));
        if (ring && u >= ring)
            assert_true(waits_for(g, id, first + (u - ring) * TN_N_LOAD_STEPS + TN_LD_LOAD));
        for (int32_t c = 0; c < n_chunks && u < N_UNITS - 1; c++) {
            const char *step = unit_step[u % PER_LAYER];
            assert_true(waits_for(g, find(g, first, c, u / PER_LAYER, step), id + TN_LD_LOAD));
            if (!strcmp(step, "ffn"))
                assert_true(waits_for(g, find(g, first, c, u / PER_LAYER, "ffn outliers"),
                                      id + TN_LD_LOAD)); /* its rows too */
        }
    }
    tn_sched *s;
    tn_timeline *tl;
    tn_timeline_options to = {.cap_events = 1 << 14, .cap_flows = 1 << 14};
    memcpy(to.n_workers, workers, sizeof to.n_workers);
    assert_int_equal(tn_sched_open(ctx, &s, &err), TERN_OK);
    assert_int_equal(tn_sched_bind(s, g, &err), TERN_OK);
    assert_int_equal(tn_timeline_open(ctx, &to, &tl, &err), TERN_OK);
    tn_virtual_result r;
    tn_virtual_run(s, &policy, workers, tl, &r);
    verify_run(g, &policy, workers, tl);
    tn_timeline_close(&tl);
    tn_sched_close(&s);
    tn_graph_close(&g);
    return r.makespan_ns;
}

static void every_policy(void **state) {
    (void)state;
    tn_ctx ctx;
    tn_ctx_init(&ctx, NULL);
    static const int32_t lanes[][TN_N_LANES] = {{1, 1, 1}, {1, 0, 1}, {2, 2, 1}};
    const times x = {.read_us = 500, .unpack_us = 200, .n_parts = 4};
    for (size_t l = 0; l < 3; l++) {
        for (int k = 0; k < TN_POLICY_PLAN; k++) {
            for (int busy = 0; busy < 2; busy++) {
                for (int32_t ring = 0; ring <= 7; ring += 1 + 2 * (ring > 0)) {
                    for (int32_t n_chunks = 1; n_chunks <= 3; n_chunks++) {
                        tn_policy p = tn_policy_defaults((tn_policy_kind)k);
                        p.keep_busy = busy;
                        run(&ctx, &x, n_chunks, ring, p, lanes[l]);
                    }
                }
            }
        }
    }
}

/* Where the disk is slowest, a start takes little more than reading; where it is fast, little more than
 * computing. */
static void overlap_hides(void **state) {
    (void)state;
    tn_ctx ctx;
    tn_ctx_init(&ctx, NULL);
    static const int32_t lanes[TN_N_LANES] = {1, 1, 1};
    const times slow = {.read_us = 4000, .unpack_us = 200, .n_parts = 4},
                fast = {.read_us = 10, .unpack_us = 5, .n_parts = 4},
                none = {.read_us = 0, .unpack_us = 0, .n_parts = 1};
    const int64_t reading = (N_LAYERS * 4 + 1) * INT64_C(4000000);
    for (int k = TN_POLICY_OVERLAP; k < TN_POLICY_PLAN; k++) {
        tn_policy p = tn_policy_defaults((tn_policy_kind)k);
        int64_t computing = run(&ctx, &none, 1, 0, p, lanes), cold = run(&ctx, &slow, 1, 0, p, lanes),
                narrow = run(&ctx, &slow, 1, 4, p, lanes);
        assert_true(cold >= reading && cold < reading + computing / 4);
        assert_true(narrow <
                    reading + reading / 20 + computing / 4); /* a ring of four units is enough for that */
        assert_true(run(&ctx, &fast, 1, 0, p, lanes) < computing + computing / 10);
        assert_true(run(&ctx, &slow, 1, 1, p, lanes) > cold); /* one unit is not */
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_policy), cmocka_unit_test(overlap_hides)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
