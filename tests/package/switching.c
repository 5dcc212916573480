/* Devices that hold one form of a graph at a time: the same bits whenever and however forms are exchanged,
 * and the exchange is planned, done in time, traced and counted. */
#include "session/session.h"
#include "quant/pack.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { N_PROMPT = 500, N_STEPS = 3, N_LAYERS_MAX = 64 };

static char package[256];
static int32_t prompt[N_PROMPT];
static int32_t n_layers, n_vocab;

static int setup(void **state) {
    (void)state;
    tn_ctx ctx;
    tn_ctx_init(&ctx, NULL);
    snprintf(package, sizeof package, TN_BINARY_DIR "/switching-%ld.tern", (long)getpid());
    tn_pack_options o;
    tn_pack_defaults(&o);
    o.scheme = TN_SCHEME_LLM_NPU; /* tiles in the file: quick to open, which these tests do often */
    o.calib_tokens = 256;
    tern_error err = {0};
    if (tn_pack(&ctx, TN_SOURCE_DIR "/models/tern-tiny", package, &o, NULL, &err) != TERN_OK)
        fail_msg("%s", err.message);
    for (int i = 0; i < N_PROMPT; i++) prompt[i] = 10 + (int32_t)((uint32_t)i * 2654435761u >> 8) % 2000;
    return 0;
}

static int teardown(void **state) {
    (void)state;
    char profile[300];
    snprintf(profile, sizeof profile, "%s.profile", package);
    unlink(profile);
    unlink(package);
    return 0;
}

static tern_engine *open_engine(const tern_options *o) {
    tern_engine *e;
    tern_error err = {0};
    if (tern_engine_open(package, o, &e, &err) != TERN_OK) fail_msg("%s", err.message);
    tern_model_info info;
    tern_engine_info(e, &info);
    n_layers = info.n_layers;
    n_vocab = info.n_vocab;
    return e;
}

static tern_session *open_session(tern_engine *e) {
    tern_session *s;
    tern_session_options so;
    tern_session_options_defaults(&so);
    so.n_ctx = 1024;
    tern_error err = {0};
    if (tern_session_open(e, &so, &s, &err) != TERN_OK) fail_msg("%s", err.message);
    return s;
}

/* Logits after the prompt, and after each of some steps. */
static void request(tern_session *s, int32_t n, float *out) {
    tern_error err = {0};
    if (tern_session_prefill(s, prompt, (size_t)n, &err) != TERN_OK) fail_msg("%s", err.message);
    for (int i = 0;; i++) {
        memcpy(out + (size_t)i * (size_t)n_vocab, tern_session_logits(s), (size_t)n_vocab * sizeof *out);
        if (i == N_STEPS) break;
        if (tern_session_step(s, 40 + i, &err) != TERN_OK) fail_msg("%s", err.message);
    }
}

static float *wanted(int32_t n) {
    tern_options o;
    tn_options_defaults(&o);
    o.chunk = 64;
    tern_engine *e = open_engine(&o);
    tern_session *s = open_session(e);
    float *out = malloc((size_t)(N_STEPS + 1) * (size_t)n_vocab * sizeof *out);
    request(s, n, out);
    tn_stats st;
    tn_session_stats(s, &st);
    assert_int_equal(st.n_switched, 0); /* graphs that share weights are all loaded */
    tern_session_close(&s);
    tern_engine_close(&e);
    return out;
}

static void same(const float *want, const float *got, const char *what) {
    if (memcmp(want, got, (size_t)(N_STEPS + 1) * (size_t)n_vocab * sizeof *want))
        fail_msg("other bits with %s", what);
}

static tern_options separate(const char *when) {
    tern_options o;
    tn_options_defaults(&o);
    o.chunk = 64;
    o.npu_separate_weights = true;
    o.graph_switch = when;
    return o;
}

/* Under a sanitizer: two chunks of 256 still. */
static int32_t n_prompt(void) { return getenv("TERN_TEST_QUICK") ? 300 : N_PROMPT; }

static const char *const kinds[] = {"progressive", "async", "sync"};

static void bits_do_not_depend_on_when(void **state) {
    (void)state;
    float *want = wanted(n_prompt()), *got = malloc((size_t)(N_STEPS + 1) * (size_t)n_vocab * sizeof *got);
    static const char *const policies[] = {"in-order", "overlap", "ooe", "synergy"};
    static const int32_t blocks[] = {0, 1, 2, 5, 64};
    for (int k = 0; k < 3; k++) {
        for (int i = 0; i < 20; i += getenv("TERN_TEST_QUICK") ? k ? 12 : 6 : 1) {
            tern_options o = separate(kinds[k]);
            o.policy = policies[i % 4];
            o.switch_blocks = blocks[i % 5];
            o.n_threads = 1 + i % 3;
            o.steal = i % 2 ? TN_STEAL_NONE : TN_STEAL_SHARE_CORES;
            if (i == 6) o.chunk = 256;                 /* two chunks */
            if (i == 12) o.npu_memory_bytes = 5 << 20; /* some layers stay with the CPU */
            tern_engine *e = open_engine(&o);
            tern_session *s = open_session(e);
            request(s, n_prompt(), got);
            same(want, got, kinds[k]);
            for (int32_t l = 0; l < n_layers; l++)
                assert_int_equal(tn_switcher_form(e->npu->switcher, l), TN_FORM_DECODE);
            tn_stats st;
            tn_session_stats(s, &st);
            assert_int_equal(st.n_switched, n_layers);
            assert_true(st.switch_s > 0 && st.switch_exposed_s <= st.switch_s);
            assert_true(st.switch_blocks >= 1 && st.switch_blocks <= n_layers);
            if (k == 2) assert_true(st.switch_exposed_s > 0.999 * st.switch_s); /* nothing runs beside it */
            if (o.npu_memory_bytes) {
                assert_true(e->npu->n_on_cpu > 0);
                assert_true(tn_npu_used_bytes(e->npu->dev) <= o.npu_memory_bytes);
            }
            tern_session_close(&s);
            tern_engine_close(&e);
        }
    }
    free(want);
    free(got);
}

/* Further requests begin with decode graphs; a cancelled one leaves some of each. */
static void turns_and_cancels(void **state) {
    (void)state;
    float *want = wanted(N_PROMPT), *want_short = wanted(20),
          *got = malloc((size_t)(N_STEPS + 1) * (size_t)n_vocab * sizeof *got);
    tern_options o = separate(NULL);
    tern_engine *e = open_engine(&o);
    tern_session *s = open_session(e);
    tern_error err;
    for (int turn = 0; turn < 6; turn++) {
        if (turn % 2) {
            request(s, 20, got); /* fits the decode graphs */
            same(want_short, got, "a short prompt");
        }
        tn_session_truncate(s, 0);
        if (turn >= 2) {
            tern_session_cancel(s);
            assert_int_equal(tern_session_prefill(s, prompt, N_PROMPT, &err), TERN_E_CANCELLED);
        }
        request(s, N_PROMPT, got);
        same(want, got, "a further request");
        tn_session_truncate(s, 0);
    }
    tern_session_close(&s);
    tern_engine_close(&e);
    free(want);
    free(want_short);
    free(got);
}

typedef struct rival {
    tern_engine *e;
    const float *want;
    bool ok;
} rival;

static void *run_rival(void *arg) {
    rival *r = arg;
    float *got = malloc((size_t)(N_STEPS + 1) * (size_t)n_vocab * sizeof *got);
    tern_session *s = open_session(r->e);
    r->ok = true;
    for (int i = 0; i < (getenv("TERN_TEST_QUICK") ? 2 : 4); i++) {
        tn_session_truncate(s, 0);
        request(s, N_PROMPT, got);
        r->ok = r->ok && !memcmp(got, r->want, (size_t)(N_STEPS + 1) * (size_t)n_vocab * sizeof *got);
    }
    tern_session_close(&s);
    free(got);
    return NULL;
}

/* Two sessions take the device's graphs from each other. */
static void sessions_share_a_device(void **state) {
    (void)state;
    tern_options o = separate(NULL);
    tern_engine *e = open_engine(&o);
    float *want = wanted(N_PROMPT);
    rival r[2] = {{.e = e, .want = want}, {.e = e, .want = want}};
    pthread_t t[2];
    for (int i = 0; i < 2; i++) assert_int_equal(pthread_create(&t[i], NULL, run_rival, &r[i]), 0);
    for (int i = 0; i < 2; i++) pthread_join(t[i], NULL);
    assert_true(r[0].ok && r[1].ok);
    tern_engine_close(&e);
    free(want);
}

/* A load is exposed while nobody computes, and hidden while somebody does. */
static void exposed_is_what_nothing_hides(void **state) {
    (void)state;
    tern_options o = separate(NULL);
    tern_engine *e = open_engine(&o);
    tn_switcher *w = e->npu->switcher;
    tn_switcher_stats before, hidden, exposed;
    tn_switcher_lock(w);
    tn_form form = tn_switcher_form(w, 0), other = form == TN_FORM_CHUNK ? TN_FORM_DECODE : TN_FORM_CHUNK;
    tn_switcher_stats_get(w, &before);
    tn_switcher_compute(w, true);
    assert_int_equal(tn_switcher_load(w, 0, 1, other, NULL), TERN_OK);
    tn_switcher_compute(w, false);
    tn_switcher_stats_get(w, &hidden);
    assert_true(hidden.load_ns > before.load_ns && hidden.exposed_ns == before.exposed_ns);
    assert_int_equal(tn_switcher_load(w, 0, 1, form, NULL), TERN_OK);
    tn_switcher_stats_get(w, &exposed);
    tn_switcher_unlock(w);
    assert_true(exposed.exposed_ns > hidden.exposed_ns);
    assert_true(exposed.exposed_ns - hidden.exposed_ns == exposed.load_ns - hidden.load_ns);
    tern_engine_close(&e);
}

/* Of one wave, exchanged all at once: what the loads take, and what the wave takes. */
static void sync_plan(tern_engine *e, double *load_us, double *wave_us) {
    const tn_switch_plan *plan;
    tn_switcher_lock(e->npu->switcher);
    assert_int_equal(tn_switcher_plan(e->npu->switcher, 1, 1, 1, &plan, NULL), TERN_OK);
    assert_non_null(plan);
    *load_us = plan->stall_us;
    *wave_us = plan->total_us - plan->stall_us;
    tn_switcher_unlock(e->npu->switcher);
}

/* What loads take and what a wave takes are learned from those that were made. */
static void times_are_learned(void **state) {
    (void)state;
    tern_options o = separate("sync");
    tern_engine *e = open_engine(&o);
    tern_session *s = open_session(e);
    tern_error err = {0};
    double load[3], wave[3];
    if (tern_session_prefill(s, prompt, 128, &err) != TERN_OK) fail_msg("%s", err.message);
    sync_plan(e, &load[0], &wave[0]);
    tn_session_truncate(s, 0);
    if (tern_session_prefill(s, prompt, 128, &err) != TERN_OK) fail_msg("%s", err.message);
    sync_plan(e, &load[1], &wave[1]);
    assert_true(wave[0] > 0 && wave[1] > 0 && wave[1] != wave[0]);
    tn_switcher_lock(e->npu->switcher);
    for (int i = 0; i < 2; i++)
        assert_int_equal(tn_switcher_ensure(e->npu->switcher, i ? TN_FORM_CHUNK : TN_FORM_DECODE, &err),
                         TERN_OK);
    tn_switcher_unlock(e->npu->switcher);
    sync_plan(e, &load[2], &wave[2]);
    assert_true(load[1] > 0 && load[2] > 0 && load[2] != load[1]);
    assert_true(fabs(wave[2] - wave[1]) <
                1e-9 * (wave[1] + load[1] + load[2])); /* but for the rounding of sums */
    tern_session_close(&s);
    tern_engine_close(&e);
}

/* Before a long prompt, graphs of decoding are exchanged for those of prompts where those are much quicker, and not where
 * they are not. Within one wave of three times what its loads take there are more than two blocks: of two, the second's
 * loads would all be waited for. */
static void plans_follow_the_times(void **state) {
    (void)state;
    for (int worth = 0; worth < 2; worth++) {
        tern_options o = separate("progressive");
        tern_engine *e = open_engine(&o);
        tn_switcher *w = e->npu->switcher;
        const tn_switch_plan *plan;
        tn_switcher_lock(w);
        assert_int_equal(tn_switcher_ensure(w, TN_FORM_DECODE, NULL), TERN_OK);
        tn_switcher_measured(w, TN_FORM_CHUNK, 1e6, 10); /* a second a layer: no load takes so long */
        tn_switcher_measured(w, TN_FORM_DECODE, worth ? 1e7 : 1e6, 10);
        assert_int_equal(tn_switcher_plan(w, 20, 1, 1, &plan, NULL), TERN_OK);
        for (int32_t i = 0; i < n_layers; i++)
            assert_int_equal(tn_switcher_form(w, i), worth ? TN_FORM_CHUNK : TN_FORM_DECODE);
        tn_switcher_unlock(w);
        tern_engine_close(&e);
        e = open_engine(&o);
        w = e->npu->switcher;
        tn_switcher_lock(w);
        tn_switcher_stats st;
        for (int i = 0; i < 2; i++)
            assert_int_equal(tn_switcher_ensure(w, i ? TN_FORM_CHUNK : TN_FORM_DECODE, NULL), TERN_OK);
        tn_switcher_stats_get(w, &st);
        const double load_us = (double)st.load_ns * 1e-3 / (double)st.n_loads;
        tn_switcher_measured(w, TN_FORM_CHUNK, 3 * load_us, 0);
        tn_switcher_measured(w, TN_FORM_DECODE, 30 * load_us, 0);
        assert_int_equal(tn_switcher_plan(w, 1, 1, 1, &plan, NULL), TERN_OK);
        assert_non_null(plan);
        assert_true(plan->n_blocks > 2);
        tn_switcher_unlock(w);
        tern_engine_close(&e);
    }
}

/* The plan is followed: the loads it puts beside the computation are on the timeline, one at a time. */
static void planned_and_traced(void **state) {
    (void)state;
    double stall[3];
    for (int k = 0; k < 3; k++) {
        tern_options o = separate(kinds[k]);
        o.trace = true;
        o.switch_blocks = 4;
        tern_engine *e = open_engine(&o);
        tern_session *s = open_session(e);
        float *got = malloc((size_t)(N_STEPS + 1) * (size_t)n_vocab * sizeof *got);
        request(s, N_PROMPT, got);
        tn_stats st;
        tn_session_stats(s, &st);
        stall[k] = st.switch_planned_stall_s;
        assert_int_equal(st.switch_blocks, 4);
        int32_t track = tn_timeline_first_track(s->timeline, TN_LANE_IO),
                n_events = tn_timeline_n_events(s->timeline, track);
        if (k) assert_int_equal(n_events, k == 1 ? 3 : 0); /* async: the last block after prefill */
        else assert_true(n_events >= 1);
        for (int32_t i = 0; i < n_events; i++) {
            const tn_event *ev = tn_timeline_event(s->timeline, track, i);
            assert_string_equal(ev->name, "switch graphs");
            assert_true(!i || ev->start_ns >= tn_timeline_event(s->timeline, track, i - 1)->end_ns);
        }
        free(got);
        tern_session_close(&s);
        tern_engine_close(&e);
    }
    assert_true(stall[2] > 0 && stall[0] >= 0 &&
                stall[1] >= 0); /* each by its own engine's times: what is least is package/switch.c's test */
    tern_options o = separate("whenever");
    tern_engine *e;
    tern_error err;
    assert_int_equal(tern_engine_open(package, &o, &e, &err), TERN_E_INVALID);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(bits_do_not_depend_on_when),
                                       cmocka_unit_test(turns_and_cancels),
                                       cmocka_unit_test(sessions_share_a_device),
                                       cmocka_unit_test(planned_and_traced),
                                       cmocka_unit_test(times_are_learned),
                                       cmocka_unit_test(plans_follow_the_times),
                                       cmocka_unit_test(exposed_is_what_nothing_hides)};
    return cmocka_run_group_tests(tests, setup, teardown);
}
