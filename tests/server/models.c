/* Models that come and go: by an own clock, within a limit, asked for by many at once, with readers of
 * their timelines and clients that leave. To be run under the thread sanitizer too. */
#include "engine/sight.h"
#include "session/session.h"
#include "fixture/scarce.h"
#include "lab/synth.h"
#include "model/file_experts.h"
#include "model/source.h"
#include "quant/pack.h"
#include "server/models.h"
#include "server/refusals.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "fixture/fixture.h"

enum { N_MODELS = 3, N_CLIENTS = 6, MAX_REPLY = 1 << 14 };

static char files[N_MODELS][256];
static const char *const names[N_MODELS] = {"a", "b", "c"};
static _Atomic(int64_t) now_ns;

static int64_t own_clock(void) { return atomic_load(&now_ns); }

static tn_models *open_models(uint64_t max_bytes, int64_t idle_ns) {
    tn_models *m;
    tern_error err = {0};
    tn_models_options o = {.queue = {.n_ctx = 256, .n_sessions = 2, .max_waiting = 100, .draft = "none"},
                           .idle_ns = idle_ns,
                           .now_ns = own_clock};
    tn_options_defaults(&o.engine);
    o.engine.n_threads = 2;
    o.engine.max_memory_bytes = max_bytes;
    must(tn_models_open(&o, &m, &err), &err);
    for (int i = 0; i < N_MODELS; i++) must(tn_models_add(m, names[i], files[i], &err), &err);
    return m;
}

/* The text that a model says; n_tokens of it. */
static void ask(tn_models *m, const char *name, int n_tokens, char out[MAX_REPLY]) {
    tn_served *k;
    tn_request r;
    tn_job *j;
    tern_error err = {0};
    char body[200];
    bool begun;
    must(tn_models_use(m, name, NULL, NULL, &k, &err), &err);
    int n = snprintf(body, sizeof body,
                     "{\"prompt\": \"Once upon\", \"max_tokens\": %d, \"temperature\": 1, \"seed\": 5}",
                     n_tokens);
    must(tn_request_read(TN_API_COMPLETIONS, body, (size_t)n, &r, &err), &err);
    must(tn_queue_put(tn_served_queue(k), &r, &j, &err), &err);
    while (!tn_job_done(j, &begun)) tn_job_wait(j, 1000);
    assert_int_equal(j->err.code, TERN_OK);
    assert_true(j->a.said.text.n > 0);
    snprintf(out, MAX_REPLY, "%s", j->a.said.text.p);
    tn_job_leave(j);
    tn_models_leave(k);
}

static bool is(tn_models *m, const char *name, const char *state) {
    json_t *v = tn_models_list(m, name);
    bool yes = !strcmp(json_string_value(json_object_get(v, "state")), state);
    json_decref(v);
    return yes;
}

static int64_t number(tn_models *m, const char *name, const char *what) {
    json_t *v = tn_models_list(m, name);
    int64_t n = json_integer_value(json_object_get(v, what));
    json_decref(v);
    return n;
}

static void wait_until(tn_models *m, const char *name, const char *state) {
    while (!is(m, name, state)) poll(NULL, 0, 1);
}

/* ---- weights that cannot be read ---------------------------------------------------------------------- */

static tern_status ask_once(tn_models *m, char out[MAX_REPLY]) {
    static const char body[] = "{\"prompt\": \"Once upon\", \"max_tokens\": 3, \"temperature\": 0}";
    tn_served *k;
    tn_request r;
    tn_job *j;
    tern_error err = {0};
    bool begun;
    out[0] = 0;
    tern_status st = tn_models_use(m, "p", NULL, NULL, &k, &err);
    if (st != TERN_OK) return st;
    st = tn_request_read(TN_API_COMPLETIONS, body, sizeof body - 1, &r, &err);
    if (st == TERN_OK) st = tn_queue_put(tn_served_queue(k), &r, &j, &err);
    if (st == TERN_OK) {
        while (!tn_job_done(j, &begun)) tn_job_wait(j, 1000);
        st = j->err.code;
        if (st == TERN_OK) snprintf(out, MAX_REPLY, "%s", j->a.said.text.p);
        tn_job_leave(j);
    }
    tn_models_leave(k);
    return st;
}

/* Each allocation of a server with the model at path fails once. Some are missed while the weights are read, after the model was opened:
 * the next request must be answered all the same, and with the right text. */
static void answers_after_each(const char *path) {
    char text[MAX_REPLY], want[MAX_REPLY] = "";
    tern_error err = {0};
    int n_failed = 0;
    bool failed = true;
    for (long at = -1; failed; at++) {
        scarce s = {.left = at};
        tern_hooks hooks;
        tn_models *m;
        scarce_hooks(&hooks, &s);
        tn_models_options o = {.queue = {.n_ctx = 64, .n_sessions = 1, .max_waiting = 100, .draft = "none"}};
        tn_options_defaults(&o.engine);
        o.engine.n_threads = 1;
        o.engine.hooks = &hooks;
        tern_status st = tn_models_open(&o, &m, &err);
        if (st == TERN_OK) st = tn_models_add(m, "p", path, &err);
        if (st == TERN_OK) st = ask_once(m, text);
        if (at < 0) snprintf(want, sizeof want, "%s", text);
        failed = at < 0 || s.left < 0;
        if (st == TERN_OK) assert_string_equal(text, want);
        else n_failed++;
        if (st != TERN_OK && m && failed) {
            st = ask_once(m, text);
            if (st != TERN_OK) fail_msg("without allocation %ld nothing is answered any more", at);
            assert_string_equal(text, want);
        }
        tn_models_close(&m);
    }
    print_message("%s: %d allocations that were missed\n", strrchr(path, '.'), n_failed);
    assert_true(n_failed > 50);
}

static void opens_again(void **state) {
    (void)state;
    char package[300], blocks[300];
    tern_error err = {0};
    tn_ctx ctx;
    tn_pool *pool;
    tn_pack_options po;
    tn_ctx_init(&ctx, NULL);
    snprintf(package, sizeof package, "%s.tern", files[0]);
    snprintf(blocks, sizeof blocks, "%s.q8.gguf", files[0]);
    tn_pack_defaults(&po);
    po.calib_tokens = 64;
    must(tn_pack(&ctx, files[0], package, &po, NULL, &err), &err);
    must(tn_pool_open(&ctx, 2, &pool, &err), &err);
    must(tn_synth(&ctx, pool, "tiny-llama", blocks, 3, TN_Q8_0, &err), &err);
    tn_pool_close(&pool);
    answers_after_each(package);
    answers_after_each(blocks);
    unlink(package);
    unlink(blocks);
}

/* A file whose experts are read when rows choose them is written to: the answer at work fails, and the next is of the file as it
 * is now. */
static void opens_what_was_written(void **state) {
    (void)state;
    char path[300], text[MAX_REPLY], want[MAX_REPLY];
    tern_error err = {0};
    tn_ctx ctx;
    tn_pool *pool;
    tn_models *m;
    tern_estimate e;
    tn_source *src;
    tn_experts_need need;
    tn_ctx_init(&ctx, NULL);
    snprintf(path, sizeof path, "%s.mixture.gguf", files[0]);
    must(tn_pool_open(&ctx, 2, &pool, &err), &err);
    must(tn_synth(&ctx, pool, "tiny-qwen3moe", path, 3, TN_Q8_0, &err), &err);
    tn_models_options o = {.queue = {.n_ctx = 64, .n_sessions = 1, .max_waiting = 100, .draft = "none"}};
    tn_options_defaults(&o.engine);
    o.engine.n_threads = 1;
    o.engine.session.n_ctx = 64;
    must(tern_engine_estimate(path, &o.engine, &e, &err), &err);
    must(tn_source_open(&ctx, path, &src, &err), &err);
    tn_file_experts_need_of(src, &need);
    tn_source_close(&src);
    o.engine.max_memory_bytes =
        e.weight_bytes + e.kv_bytes + e.work_bytes - need.all_bytes + need.least_bytes;
    must(tn_models_open(&o, &m, &err), &err);
    must(tn_models_add(m, "p", path, &err), &err);
    assert_int_equal(ask_once(m, want), TERN_OK);
    for (int i = 0; i < 3; i++) {
        FILE *f = fopen(path, "r+b");
        assert_non_null(f);
        assert_int_equal(fputc('G', f), 'G'); /* GGUF: as it was */
        assert_int_equal(fclose(f), 0);
        assert_int_equal(ask_once(m, text), TERN_E_IO);
        assert_int_equal(ask_once(m, text), TERN_OK);
        assert_string_equal(text, want);
    }
    assert_int_equal(number(m, "p", "loads"), 4);
    tn_models_close(&m);
    tn_pool_close(&pool);
    unlink(path);
}

/* ---- idle -------------------------------------------------------------------------------------------- */

static void leaves_when_idle(void **state) {
    (void)state;
    char text[MAX_REPLY], again[MAX_REPLY];
    tn_models *m = open_models(0, 1000);
    tn_served *held;
    tern_error err = {0};
    assert_true(is(m, "a", "away") && is(m, "b", "away"));
    ask(m, "a", 8, text);
    must(tn_models_use(m, "b", NULL, NULL, &held, &err), &err);
    atomic_fetch_add(&now_ns, 999);
    tn_models_look(m);
    ask(m, "c", 1, again); /* the keeper has looked at the clock meanwhile */
    assert_true(is(m, "a", "ready"));
    atomic_fetch_add(&now_ns, 1);
    tn_models_look(m);
    wait_until(m, "a", "away");
    assert_int_equal(number(m, "a", "memory_bytes"), 0);
    assert_true(is(m, "c", "ready")); /* used later */
    atomic_fetch_add(&now_ns, 5000);
    tn_models_look(m);
    wait_until(m, "c", "away");
    assert_true(is(m, "b", "ready")); /* somebody uses it */
    tn_models_leave(held);
    ask(m, "a", 8, again);
    assert_string_equal(again, text);
    assert_int_equal(number(m, "a", "loads"), 2);
    assert_int_equal((int)tn_models_counts(m).n_done, 3); /* those of models that left too */
    tn_models_close(&m);
}

/* An encoder of pictures leaves after a minute without one, also where models stay for ever. */
static void encoders_leave_when_idle(void **state) {
    (void)state;
    static uint8_t rgb[40 * 30 * 3];
    const tn_picture p = {.width = 40, .height = 30, .rgb = rgb};
    char model[FIXTURE_PATH], tower[FIXTURE_PATH];
    tern_error err = {0};
    tn_served *k;
    tn_look *l;
    bool more;
    fixture_model(model, "sees.gguf", "tiny-llama+sees", 1, TN_F32);
    fixture_tower(tower, "mmproj-sees.gguf", "tiny-smolvlm-mmproj", 1, TN_F32);
    tn_models *m = open_models(0, 0);
    must(tn_models_add(m, "sees", model, &err), &err);
    must(tn_models_use(m, "sees", NULL, NULL, &k, &err), &err);
    tern_engine *e = tn_queue_opts(tn_served_queue(k))->e;
    must(tn_look_at(e, &p, true, &l, &err), &err);
    must(tn_look_encode(l, NULL, &more, &err), &err);
    tn_look_close(&l);
    assert_true(tn_sight_count(e).encoder_bytes > 0);
    while (tn_sight_count(e).encoder_bytes) {
        atomic_fetch_add(&now_ns, INT64_C(60000000000));
        tn_models_look(m);
        poll(NULL, 0, 1);
    }
    assert_true(is(m, "sees", "ready"));
    tn_models_leave(k);
    tn_models_close(&m);
    unlink(tower); /* the others do not see */
}

/* ---- a limit ----------------------------------------------------------------------------------------- */

static void keeps_within_limit(void **state) {
    (void)state;
    char want[N_MODELS][MAX_REPLY], got[MAX_REPLY];
    uint64_t need[N_MODELS], most = 0, least = UINT64_MAX;
    tern_error err = {0};
    tn_models *m = open_models(0, 0);
    for (int i = 0; i < N_MODELS; i++) {
        ask(m, names[i], 8, want[i]);
        need[i] = (uint64_t)number(m, names[i], "memory_bytes");
        most = need[i] > most ? need[i] : most;
        least = need[i] < least ? need[i] : least;
    }
    tn_models_close(&m);
    m = open_models(most + least - 1, 0);
    for (int k = 0; k < 2; k++) {
        for (int i = 0; i < N_MODELS; i++) {
            ask(m, names[i], 8, got);
            assert_string_equal(got, want[i]);
            assert_true(tn_models_memory(m) < most + least);
        }
    }
    assert_int_equal(number(m, "a", "loads"), 2);
    tn_models_close(&m);
    m = open_models(most / 2, 0);
    tn_served *k;
    assert_int_equal(tn_models_use(m, "a", NULL, NULL, &k, &err), TERN_E_MEMORY);
    assert_non_null(strstr(err.message, "max-memory allows"));
    assert_null(strstr(err.message, files[0]));
    assert_int_equal(tn_models_use(m, "nobody", NULL, NULL, &k, &err), TN_E_ABSENT);
    assert_int_equal(tn_models_use(m, NULL, NULL, NULL, &k, &err), TERN_E_INVALID);
    tn_models_close(&m);
}

static bool at_once(void *user) {
    atomic_int *n = user;
    return atomic_fetch_add(n, 1) >= 0;
}

/* While one is used that leaves no room, another waits; who gives up is told so, and does not hold up
 * those after it. */
static void waits_for_room(void **state) {
    (void)state;
    char text[MAX_REPLY];
    tern_error err = {0};
    tn_served *a, *b;
    atomic_int asked = 0;
    tn_models *m = open_models(0, 0);
    ask(m, "a", 1, text);
    uint64_t need = (uint64_t)number(m, "a", "memory_bytes");
    tn_models_close(&m);
    m = open_models(need + need / 2, 0);
    must(tn_models_use(m, "a", NULL, NULL, &a, &err), &err);
    assert_int_equal(tn_models_use(m, "b", at_once, &asked, &b, &err), TERN_E_CANCELLED);
    assert_true(is(m, "b", "away"));
    ask(m, "a", 1, text); /* the way is free again */
    tn_models_leave(a);
    ask(m, "b", 1, text);
    assert_true(is(m, "a", "away"));
    tn_models_close(&m);
}

/* ---- many at once ------------------------------------------------------------------------------------ */

typedef struct client {
    tn_models *m;
    int number;
    char (*want)[MAX_REPLY]; /* [N_MODELS] */
} client;

static void *be_client(void *arg) {
    client *c = arg;
    char got[MAX_REPLY];
    for (int k = 0; k < 6; k++) {
        int i = (c->number + k) % N_MODELS;
        tn_served *use;
        atomic_int asked = 0;
        ask(c->m, names[i], 8, got);
        assert_string_equal(got, c->want[i]);
        if (c->number % 2 && tn_models_use(c->m, names[k % N_MODELS], at_once, &asked, &use, NULL) == TERN_OK)
            tn_models_leave(use);
    }
    return NULL;
}

static atomic_bool watching;

static void *watch(void *arg) {
    tn_models *m = arg;
    char part[1024];
    tn_live_reader *r[N_MODELS];
    tern_error err = {0};
    for (int i = 0; i < N_MODELS; i++) {
        tn_live *l;
        must(tn_models_live(m, names[i], &l, &err), &err);
        must(tn_live_reader_open(l, &r[i], &err), &err);
    }
    while (atomic_load(&watching)) {
        for (int i = 0; i < N_MODELS; i++)
            while (tn_live_reader_read(r[i], part, sizeof part)) {
            }
        atomic_fetch_add(&now_ns, 50);
        tn_models_look(m);
        json_decref(tn_models_list(m, NULL));
        free(tn_models_metrics(m));
        poll(NULL, 0, 1);
    }
    for (int i = 0; i < N_MODELS; i++) tn_live_reader_close(&r[i]);
    return NULL;
}

static void many_at_once(void **state) {
    (void)state;
    static char want[N_MODELS][MAX_REPLY];
    pthread_t t[N_CLIENTS], w;
    client c[N_CLIENTS];
    uint64_t most = 0;
    tn_models *m = open_models(0, 0);
    for (int i = 0; i < N_MODELS; i++) {
        ask(m, names[i], 8, want[i]);
        uint64_t n = (uint64_t)number(m, names[i], "memory_bytes");
        most = n > most ? n : most;
    }
    assert_string_not_equal(want[0], want[1]);
    tn_models_close(&m);
    m = open_models(2 * most + most / 2, 400); /* two fit, and they leave soon */
    atomic_store(&watching, true);
    assert_int_equal(pthread_create(&w, NULL, watch, m), 0);
    for (int i = 0; i < N_CLIENTS; i++) {
        c[i] = (client){m, i, want};
        assert_int_equal(pthread_create(&t[i], NULL, be_client, &c[i]), 0);
    }
    for (int i = 0; i < N_CLIENTS; i++) pthread_join(t[i], NULL);
    atomic_store(&watching, false);
    pthread_join(w, NULL);
    int64_t loads = 0;
    for (int i = 0; i < N_MODELS; i++) loads += number(m, names[i], "loads");
    print_message("%d answers, models were loaded %lld times\n", (int)tn_models_counts(m).n_done,
                  (long long)loads);
    assert_int_equal((int)tn_models_counts(m).n_done, N_CLIENTS * 6);
    assert_int_equal((int)tn_models_counts(m).n_failed, 0);
    tn_models_close(&m);
}

/* The server ends while some wait. */
static void *want_b(void *arg) {
    tn_served *k;
    tern_error err = {0};
    assert_int_equal(tn_models_use(arg, "b", NULL, NULL, &k, &err), TN_E_CLOSING);
    return NULL;
}

static void closes(void **state) {
    (void)state;
    tern_error err = {0};
    tn_served *a;
    pthread_t t;
    tn_models *m = open_models(0, 0);
    must(tn_models_use(m, "a", NULL, NULL, &a, &err), &err);
    uint64_t need = (uint64_t)number(m, "a", "memory_bytes");
    tn_models_leave(a);
    tn_models_close(&m);
    m = open_models(need + need / 2, 0);
    must(tn_models_use(m, "a", NULL, NULL, &a, &err), &err);
    assert_int_equal(pthread_create(&t, NULL, want_b, m), 0);
    while (!tn_models_counts(m).waiting) poll(NULL, 0, 1);
    tn_models_stop(m);
    pthread_join(t, NULL);
    tn_models_leave(a);
    tn_models_close(&m);
}

static int setup(void **state) {
    (void)state;
    tn_ctx ctx;
    tn_pool *pool;
    tern_error err = {0};
    tn_ctx_init(&ctx, NULL);
    tern_status st = tn_pool_open(&ctx, 2, &pool, &err);
    for (int i = 0; st == TERN_OK && i < N_MODELS; i++) {
        snprintf(files[i], sizeof files[i], TN_BINARY_DIR "/models-%s-%ld.gguf", names[i], (long)getpid());
        st = tn_synth(&ctx, pool, "tiny-llama", files[i], (uint64_t)i + 5, TN_F16, &err);
    }
    tn_pool_close(&pool);
    if (st != TERN_OK) print_message("%s\n", err.message);
    return st == TERN_OK ? 0 : -1;
}

static int teardown(void **state) {
    (void)state;
    for (int i = 0; i < N_MODELS; i++) unlink(files[i]);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(leaves_when_idle),   cmocka_unit_test(encoders_leave_when_idle),
        cmocka_unit_test(keeps_within_limit), cmocka_unit_test(waits_for_room),
        cmocka_unit_test(many_at_once),       cmocka_unit_test(closes),
        cmocka_unit_test(opens_again),        cmocka_unit_test(opens_what_was_written)};
    return cmocka_run_group_tests(tests, setup, teardown);
}
