/* The pipeline of heads in the prefill graph: places are free before they are taken, a slot's stages come one
 * after another, launches in order, and nothing overlaps that should not; under every policy; and overlap
 * hides the device's part. On the virtual clock. */
#include "package/prefill_graph.h"
#include "sched/virtual.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include "package/steps.h"
#include "sched/verify.h"

enum {
    N_CHUNKS = 3,
    N_LAYERS = 2,
    N_SLOTS = 5,
    N_BLOCKS = 4,
    N_STEPS = 3,
    N_HEADS = N_CHUNKS * N_LAYERS * N_BLOCKS * N_SLOTS * N_STEPS
};

typedef struct place {
    int32_t chunk, layer, step, block, slot;
} place;

typedef struct filled {
    place at[2048]; /* step -1: none of the heads */
    tn_step_kind kind[2048];
    int32_t n;
    float estimate_us;
} filled;

static void fill(void *user, const tn_step *step, tn_task *t) {
    filled *f = user;
    f->kind[f->n] = step->kind;
    f->at[f->n++] = (place){t->chunk, t->layer, -1, 0, 0};
    for (int l = 0; l < TN_N_LANES; l++) t->est_us[l] = step->kind == TN_STEP_PRODUCT ? 40 : 10;
    t->can_steal = false;
}

static void fill_head(void *user, const tn_step *plan, tn_step_kind head, int32_t block, int32_t slot,
                      tn_task *t) {
    filled *f = user;
    assert_int_equal(plan->kind, TN_STEP_PLAN);
    f->kind[f->n] = head;
    f->at[f->n++] = (place){t->chunk, t->layer, (int32_t)(head - TN_STEP_ESTIMATE), block, slot};
    for (int l = 0; l < TN_N_LANES; l++)
        t->est_us[l] = head == TN_STEP_ESTIMATE ? f->estimate_us : head == TN_STEP_SELECT ? 5 : 14;
    t->n_parts = head == TN_STEP_ESTIMATE ? 1 : 2;
    t->can_steal = false;
}

/* Ends of all tasks in a run; start in *begin. */
static void times_of(const tn_timeline *tl, int64_t *begin, int64_t *end, int32_t n) {
    for (int32_t i = 0; i < n; i++) begin[i] = INT64_MAX, end[i] = 0;
    for (int32_t k = 0; k < tn_timeline_n_workers(tl); k++) {
        for (int32_t i = 0; i < tn_timeline_n_events(tl, k); i++) {
            const tn_event *e = tn_timeline_event(tl, k, i);
            if (e->start_ns < begin[e->task]) begin[e->task] = e->start_ns;
            if (e->end_ns > end[e->task]) end[e->task] = e->end_ns;
        }
    }
}

/* Must task b of the same chunk and layer wait until a has ended? */
static bool ordered(const place *a, const place *b, bool no_overlap) {
    if (a->step == 0 && b->step == 0)
        return a->block < b->block || (a->block == b->block && a->slot < b->slot);
    if (a->block == b->block && a->slot == b->slot) return a->step < b->step;
    if (a->step == 2 && b->step == 0) return a->block + (no_overlap ? 1 : 2) <= b->block;
    return no_overlap && a->block == b->block && a->step < b->step;
}

static void order_and_overlap(void **state) {
    (void)state;
    static const char *const policies[] = {"in-order", "overlap", "ooe", "synergy"};
    static const int32_t workers[2][TN_N_LANES] = {{1, 1, 0}, {3, 2, 0}};
    tn_ctx ctx;
    tn_ctx_init(&ctx, NULL);
    tern_error err = {0};
    static filled f;
    static int64_t begin[2048], end[2048];
    int64_t makespan[2] = {0};
    for (int i = 3; i >= 0; i--) { /* a quick device runs ahead until there is no place */
        int no_overlap = i % 2;
        tn_graph *g;
        tn_sched *s;
        f.n = 0;
        f.estimate_us = i < 2 ? 20 : 1;
        tn_step steps[N_LAYERS * 11 + 1];
        const tn_prefill_spec spec = {.n_chunks = N_CHUNKS,
                                      .n_steps = decoder_steps(steps, N_LAYERS, 1u << TN_STEP_PLAN),
                                      .steps = steps,
                                      .user = &f,
                                      .fill = fill,
                                      .fill_head = fill_head,
                                      .n_head_slots = N_SLOTS,
                                      .n_head_blocks = N_BLOCKS,
                                      .no_head_overlap = no_overlap};
        if (tn_graph_open(&ctx, &g, &err) != TERN_OK || tn_prefill_graph_build(&spec, g, &err) != TERN_OK ||
            tn_sched_open(&ctx, &s, &err) != TERN_OK || tn_sched_bind(s, g, &err) != TERN_OK)
            fail_msg("%s", err.message);
        assert_int_equal(g->n_tasks, f.n);
        int32_t n_heads = 0;
        for (int32_t i = 0; i < f.n; i++) n_heads += f.at[i].step >= 0;
        assert_int_equal(n_heads, N_HEADS);
        for (int p = 0; p < 4; p++) {
            for (int w = 0; w < 2; w++) {
                tn_policy policy;
                tn_virtual_result r;
                tn_timeline *tl;
                assert_true(tn_policy_parse(policies[p], &policy));
                tn_timeline_options to = {.cap_events = 8192, .cap_flows = 65536};
                for (int l = 0; l < TN_N_LANES; l++) to.n_workers[l] = workers[w][l];
                if (tn_timeline_open(&ctx, &to, &tl, &err) != TERN_OK) fail_msg("%s", err.message);
                tn_virtual_run(s, &policy, workers[w], tl, &r);
                verify_run(g, &policy, workers[w], tl);
                times_of(tl, begin, end, f.n);
                for (int32_t a = 0; a < f.n; a++) {
                    for (int32_t b = 0; b < f.n; b++) {
                        const place *x = &f.at[a], *y = &f.at[b];
                        if (x->chunk != y->chunk || x->layer != y->layer) continue;
                        bool must = x->step >= 0 && y->step >= 0
                                        ? ordered(x, y, no_overlap)
                                        : (f.kind[a] == TN_STEP_PLAN && y->step >= 0) ||
                                              (x->step >= 0 && f.kind[b] == TN_STEP_ATTENTION);
                        if (must && end[a] > begin[b])
                            fail_msg(
                                "%s, overlap %d: %s of block %d, slot %d begins before %s of %d, %d ends",
                                policies[p], !no_overlap, g->tasks[b].name, y->block, y->slot,
                                g->tasks[a].name, x->block, x->slot);
                    }
                }
                if (p == 1 && !w)
                    makespan[no_overlap] = r.makespan_ns; /* lanes strictly in order, one worker each */
                tn_timeline_close(&tl);
            }
        }
        tn_sched_close(&s);
        tn_graph_close(&g);
    }
    /* of a block's five estimates the first at most is not hidden; without overlap none is */
    int64_t est = (int64_t)N_CHUNKS * N_LAYERS * N_BLOCKS * N_SLOTS * 20000;
    assert_true(makespan[0] < makespan[1] - est * 3 / 4);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(order_and_overlap)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
