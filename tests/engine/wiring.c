/* Does what is measured and computed arrive where it is used? Logits at their position, successors at
 * theirs, the heaviest products on a device that is too small, measured times in the graphs that are
 * scheduled by them. */
#include "session/session.h"
#include "base/json.h"
#include "model/sampler.h"
#include "package/tuned.h"
#include "prefill/impl.h"
#include "quant/pack.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "fixture/fixture.h"

enum { N_PROMPT = 150, N_VOCAB = 512 };

static char gguf[FIXTURE_PATH], package[FIXTURE_PATH], profile[FIXTURE_PATH];
static int32_t prompt[N_PROMPT];

static int setup(void **state) {
    (void)state;
    tn_pack_options o;
    tn_pack_defaults(&o);
    o.scheme = TN_SCHEME_LLM_NPU;
    o.calib_tokens = 256;
    o.n_threads = 2;
    fixture_model(gguf, "m.gguf", "tiny-qwen2", 7, TN_F32);
    fixture_package(package, "m.tern", gguf, &o);
    fixture_file(profile, "m.tern.profile");
    for (int i = 0; i < N_PROMPT; i++) prompt[i] = (i * 3 + 20) % N_VOCAB; /* no token twice */
    return 0;
}

typedef struct run {
    tern_engine *e;
    tern_session *s;
} run;

static run open_run(const char *path, const tern_options *o, const char *draft) {
    unlink(profile);
    tern_engine *e = fixture_engine(path, o);
    return (run){e, fixture_session(e, 512, draft)};
}

static void close_run(run *r) {
    tern_session_close(&r->s);
    tern_engine_close(&r->e);
}

/* The logits after every token of the prompt, token by token. */
static float *one_by_one(const char *path, const int32_t *ids, int32_t n) {
    tern_options o;
    tn_options_defaults(&o);
    run r = open_run(path, &o, "none");
    float *out = malloc((size_t)n * N_VOCAB * sizeof *out);
    assert_int_equal(tern_session_prefill(r.s, ids, 1, NULL), TERN_OK);
    for (int32_t i = 0; i < n; i++) {
        if (i) assert_int_equal(tern_session_step(r.s, ids[i], NULL), TERN_OK);
        memcpy(out + (size_t)i * N_VOCAB, tern_session_logits(r.s), N_VOCAB * sizeof *out);
    }
    close_run(&r);
    return out;
}

/* A prompt of any length, in one chunk or several, ends in the logits of its last token. */
static void logits_are_of_the_last_token(void **state) {
    (void)state;
    const char *const paths[] = {gguf, package};
    static const size_t lengths[] = {1, 2, 31, 33, 64, 65, 149, 150};
    for (int p = 0; p < 2; p++) {
        float *want = one_by_one(paths[p], prompt, N_PROMPT);
        for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
            tern_options o;
            tn_options_defaults(&o);
            o.chunk = p ? 32 : 0;
            run r = open_run(paths[p], &o, "none");
            assert_int_equal(tern_session_prefill(r.s, prompt, lengths[i], NULL), TERN_OK);
            assert_memory_equal(tern_session_logits(r.s), want + (lengths[i] - 1) * N_VOCAB,
                                N_VOCAB * sizeof *want);
            close_run(&r);
        }
        free(want);
    }
}

/* The tokens of the text by logit, the likeliest first. */
static int32_t likeliest(const float *logits, const int32_t *text, int32_t n, int32_t nth) {
    int32_t best = -1;
    for (int32_t i = 0; i < n; i++) {
        int32_t n_before = 0;
        for (int32_t j = 0; j < n; j++) n_before += logits[text[j]] > logits[text[i]];
        if (n_before == nth) best = text[i];
    }
    return best;
}

static bool proposed(const tn_tree *t, int32_t token) { return tn_tree_child(t, 0, token) >= 0; }

/* A text of different tokens and then one of them again, at place i. Who drafts from calibration proposes
 * what the model's logits at place i, and at the end, put first, and nothing that neither does. */
static void successors_are_of_their_position(void **state) {
    (void)state;
    const char *const paths[] = {gguf, package};
    for (int p = 0; p < 2; p++) {
        for (int32_t at = 0; at < N_PROMPT - 1; at += 37) {
            int32_t text[N_PROMPT], n = N_PROMPT;
            memcpy(text, prompt, sizeof text);
            text[n - 1] = text[at];
            float *logits = one_by_one(paths[p], text, n);
            tern_options o;
            tn_options_defaults(&o);
            o.chunk = p ? 64 : 0;
            run r = open_run(paths[p], &o, "calibrated");
            if (at % 2) { /* a text with the same words in another order went before */
                int32_t before[N_PROMPT];
                for (int32_t i = 0; i < n; i++) before[i] = prompt[n - 1 - i];
                assert_int_equal(tern_session_prefill(r.s, before, (size_t)n, NULL), TERN_OK);
            }
            /* all of the text's tokens are known before the last one comes */
            assert_int_equal(tern_session_prefill(r.s, text, (size_t)n, NULL), TERN_OK);
            tn_tree t;
            tn_draft_plan(r.s->drafting.draft, TN_DRAFT_CALIBRATED, TN_TREE_MAX, 0, true, &t);
            assert_true(t.n > 1 && t.token[0] == text[n - 1]);
            const float *here = logits + (size_t)at * N_VOCAB, *end = logits + (size_t)(n - 1) * N_VOCAB;
            assert_true(proposed(&t, likeliest(here, text, n - 1, 0)));
            assert_true(proposed(&t, likeliest(end, text, n - 1, 0)));
            for (int32_t i = 1; i < t.n; i++) {
                if (t.parent[i]) continue;
                bool known = false;
                for (int32_t k = 0; k < 4; k++)
                    known = known || t.token[i] == likeliest(here, text, n - 1, k) ||
                            t.token[i] == likeliest(end, text, n - 1, k);
                if (!known) fail_msg("token %d is behind neither place %d nor the end", t.token[i], at);
            }
            close_run(&r);
            free(logits);
        }
    }
}

/* What a site takes of the device: its weights, and room for rows of two forms. */
static uint64_t bytes_of(const tn_npu_model *m, const tn_npu_site *s) {
    uint64_t n = 65536 + (uint64_t)(m->chunk + TN_DECODE_M) * (uint64_t)(s->ops.k + 4 * s->ops.n_total);
    for (int32_t op = 0; op < s->ops.n_ops; op++) n += tn_npu_weights_bytes(s->weights[op]) + 4096;
    return n;
}

/* The output layer works on a row a prompt. */
static uint64_t work_of(const tn_npu_site *s) {
    return s->layer < 0 ? 0 : (uint64_t)s->ops.k * (uint64_t)s->ops.n_total;
}

/* The sites with the most arithmetic come to a small device first: who is left to the CPU did not fit
 * beside those that are heavier. */
static void a_cap_takes_the_heaviest(void **state) {
    (void)state;
    int n_divided = 0;
    for (uint64_t cap = 100000; cap < 4000000; cap += 50000) {
        tern_options o;
        tn_options_defaults(&o);
        o.npu_memory_bytes = cap;
        run r = open_run(package, &o, "none");
        const tn_npu_model *m = r.e->npu;
        int32_t n_left = 0;
        for (int32_t i = 0; i < m->n_sites; i++) {
            const tn_npu_site *s = &m->sites[i];
            uint64_t heavier = 0;
            n_left += s->on_cpu;
            for (int32_t j = 0; j < m->n_sites && s->on_cpu; j++) {
                const tn_npu_site *x = &m->sites[j];
                if (!x->on_cpu && (work_of(x) > work_of(s) || (work_of(x) == work_of(s) && j < i)))
                    heavier += bytes_of(m, x);
            }
            if (s->on_cpu) assert_true(1.1 * (double)(heavier + bytes_of(m, s)) > (double)cap);
        }
        assert_int_equal(m->n_on_cpu, n_left);
        assert_true(tn_npu_used_bytes(m->dev) <= cap);
        n_divided += n_left && n_left < m->n_sites;
        close_run(&r);
    }
    assert_true(n_divided > 5);
}

/* What nobody asks for is on: tasks run out of order, which a prompt of several chunks shows, weights below 8 bits stay
 * packed, and a row that is decoded attends to a tenth of the positions. */
static void defaults_are_what_pays(void **state) {
    (void)state;
    char four[FIXTURE_PATH];
    tern_error err = {0};
    tn_pack_options po;
    tn_pack_defaults(&po);
    po.calib_tokens = 256;
    po.bits = 4;
    po.n_threads = 2;
    fixture_package(four, "four.tern", gguf, &po);
    tern_options o;
    tn_options_defaults(&o);
    o.chunk = 32;
    o.n_threads = 2;
    tern_engine *e = fixture_engine(four, &o);
    assert_int_equal(e->npu->packed, e->kern.gemm_packed != NULL);
    assert_true(e->attention.decode_ratio == 0.1f);
    assert_int_equal(e->policy.keep_busy, tn_npu_device_caps(e->npu->dev)->has_parts);
    tern_session *s = fixture_session(e, 512, "none");
    /* A wave that brings its weights in waits for them. The next is a wave of four chunks that are all there. */
    must(tern_session_prefill(s, prompt, 128, &err), &err);
    tn_session_truncate(s, 0);
    must(tern_session_prefill(s, prompt, 128, &err), &err);
    const tn_pipeline_stats *st = tn_pipeline_stats_get(tn_session_pipeline(s));
    print_message("%d of %d tasks began before their turn\n", (int)st->n_ahead, (int)st->n_tasks);
    assert_true(st->n_ahead > 0);
    tern_session_close(&s);
    tern_engine_close(&e);
}

/* The first full wave is measured, and its times are what all later graphs are scheduled by, product by
 * product. */
static void measured_times_reach_the_graphs(void **state) {
    (void)state;
    tern_options o;
    tn_options_defaults(&o);
    o.chunk = 32;
    o.attention = "full";
    o.load = "overlap"; /* a wave that brings its weights in tells nothing */
    run r = open_run(package, &o, "none");
    tn_pipeline *p = tn_session_pipeline(r.s);
    assert_false(p->profile->measured);
    double before = p->waves[4].graph->tasks[1].est_us[TN_LANE_CPU];
    assert_int_equal(tern_session_prefill(r.s, prompt, 128, NULL), TERN_OK);
    assert_true(p->profile->measured);
    const wave *w = &p->waves[4]; /* the one that ran */
    int n_types = 0;
    for (int32_t type = 0; type < p->steps.types.n; type++) {
        tn_step_kind kind = p->steps.types.at[type].kind;
        double sum = 0;
        int32_t n = 0;
        for (int32_t t = 0; t < w->graph->n_tasks; t++) {
            const task_arg *a = &w->args[t];
            if (p->steps.at[a->step].type != type || (kind == TN_STEP_ATTENTION && a->i_chunk)) continue;
            sum += (double)w->task_ns[t] * 1e-3;
            n++;
        }
        if (!n) continue;
        n_types++;
        assert_true(sum > 0 && fabs(p->profile->us[type] - sum / n) < 1e-6 * sum);
        for (int32_t t = 0; t < w->graph->n_tasks; t++) {
            const task_arg *a = &w->args[t];
            if (p->steps.at[a->step].type != type) continue;
            double want = sum / n;
            if (kind == TN_STEP_ATTENTION) want += p->profile->attn_us_per_pos * a->i_chunk * p->n_rows;
            tn_lane lane = w->graph->tasks[t].lane;
            assert_true(fabs((double)w->graph->tasks[t].est_us[lane] - want) < 1e-4 * want);
            assert_true(llabs(w->graph->est_ns[lane][t] - llrint(want * 1e3)) <= 1 + (int64_t)(want * 0.1));
        }
    }
    assert_true(n_types >= 8);
    assert_true(p->waves[4].graph->tasks[1].est_us[TN_LANE_CPU] != (float)before);
    /* A wave that met another process is forgotten: the least of several waves counts. */
    double busy = 0, healed = 0;
    for (int32_t type = 0; type < p->steps.types.n; type++) busy += p->profile->us[type] *= 1000;
    p->profile->attn_us_per_pos *= 1000;
    tn_session_truncate(r.s, 0);
    assert_int_equal(tern_session_prefill(r.s, prompt, 128, NULL), TERN_OK);
    for (int32_t type = 0; type < p->steps.types.n; type++) healed += p->profile->us[type];
    assert_true(healed < busy / 2);
    assert_int_equal(p->profile->n_waves, 2);
    double least[TN_MAX_STEP_TYPES];
    for (int32_t type = 0; type < p->steps.types.n; type++) least[type] = p->profile->us[type] *= 1e-6;
    tn_session_truncate(r.s, 0);
    assert_int_equal(tern_session_prefill(r.s, prompt, 128, NULL), TERN_OK);
    assert_memory_equal(least, p->profile->us,
                        (size_t)p->steps.types.n * sizeof *least); /* none took so little */
    close_run(&r);
    /* and they outlive the process */
    tern_error err = {0};
    run again = {0};
    assert_int_equal(tern_engine_open(package, &o, &again.e, &err), TERN_OK);
    assert_int_equal(tern_session_open(again.e, NULL, &again.s, &err), TERN_OK);
    assert_true(tn_session_pipeline(again.s)->profile->measured);
    assert_int_equal(tn_session_pipeline(again.s)->profile->n_waves, 3);
    close_run(&again);
}

/* Storage is read in the way that was measured to be fastest here, and else in the usual one. */
static void storage_is_read_as_measured(void **state) {
    (void)state;
    char path[FIXTURE_PATH];
    tn_ctx ctx;
    tn_aio_options want, got;
    tn_ctx_init(&ctx, NULL);
    fixture_file(path, "read.profile");
    for (int i = 0; i <= TN_TUNED_READS; i++) {
        const bool known = i < TN_TUNED_READS;
        json_t *j = tn_json_pack("{s:{s:s}}", "read", "method", known ? tn_tuned_read_names[i] : "by hand");
        assert_true(tn_profile_put(&ctx, path, j));
        json_decref(j);
        tn_aio_defaults(&want);
        tn_aio_defaults(&got);
        assert_true(tn_aio_method_parse(known ? tn_tuned_read_names[i] : TN_TUNED_READ_DEFAULT, &want));
        tn_tuned_method(path, &got);
        assert_true(got.uring == want.uring && got.direct == want.direct);
        assert_int_equal(got.n_parallel, want.n_parallel);
    }
    unlink(path);
}

/* What was measured for the machine stays in a profile when a session writes its own times there. */
static void what_was_tuned_stays(void **state) {
    (void)state;
    tn_ctx ctx;
    char path[FIXTURE_PATH];
    static const tn_step_profile none;
    tern_engine *e = fixture_engine(package, NULL);
    tn_ctx_init(&ctx, NULL);
    fixture_file(path, "kept.profile");
    json_t *j = tn_json_pack("{s:{s:s}, s:{s:s}}", "tuned", "key", "mine", "read", "method", "uring"), *now;
    assert_true(tn_profile_put(&ctx, path, j));
    json_decref(j);
    tn_profile_file f = {.path = path, .key = "a session's"};
    tn_profile_save(&ctx, &f, &e->model->program, &none);
    assert_int_equal(tn_json_read(path, 0, &now, NULL), TERN_OK);
    assert_string_equal(json_string_value(json_object_get(now, "key")), f.key);
    assert_string_equal(json_string_value(json_object_get(json_object_get(now, "tuned"), "key")), "mine");
    assert_string_equal(json_string_value(json_object_get(json_object_get(now, "read"), "method")), "uring");
    json_decref(now);
    unlink(path);
    tern_engine_close(&e);
}

/* A profile says what its owner runs: nobody else's to read or write, whatever the umask. */
static void a_profile_is_private(void **state) {
    (void)state;
    tn_ctx ctx;
    char path[FIXTURE_PATH];
    struct stat sb;
    tn_ctx_init(&ctx, NULL);
    fixture_file(path, "private.profile");
    unlink(path);
    json_t *j = tn_json_pack("{s:i}", "waves", 1);
    mode_t was = umask(0);
    assert_true(tn_profile_put(&ctx, path, j));
    umask(was);
    assert_int_equal(stat(path, &sb), 0);
    assert_int_equal(sb.st_mode & 0777, 0600);
    json_decref(j);
    unlink(path);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(logits_are_of_the_last_token), cmocka_unit_test(successors_are_of_their_position),
        cmocka_unit_test(a_cap_takes_the_heaviest),     cmocka_unit_test(measured_times_reach_the_graphs),
        cmocka_unit_test(defaults_are_what_pays),       cmocka_unit_test(storage_is_read_as_measured),
        cmocka_unit_test(what_was_tuned_stays),         cmocka_unit_test(a_profile_is_private)};
    return cmocka_run_group_tests_name("wiring", tests, setup, NULL);
}
