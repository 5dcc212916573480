/* Threads that all want the same at once: sessions of an engine whose weights are still being read, while
 * others cancel them; and one store written by several. To be run under the thread sanitizer too. */
#include "base/rng.h"
#include "session/session.h"
#include "quant/pack.h"
#include "store/store.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "fixture/fixture.h"

enum { N_THREADS = 4, N_PROMPT = 150, MAX_VOCAB = 1024, N_PUT = 12 };

static char package[FIXTURE_PATH];
static int32_t prompt[N_PROMPT];
static float want[MAX_VOCAB];
static size_t n_vocab;

typedef struct reader {
    tern_engine *e;
    _Atomic(tern_session *) s; /* set while it may be cancelled */
    int n_cancelled;
    const char *wrong; /* NULL: all is well */
} reader;

static atomic_bool over;

/* Reads the prompt, as often as others cancel it. */
static void *read_prompt(void *arg) {
    reader *r = arg;
    tern_session *s;
    tern_error err = {0};
    if (tern_session_open(r->e, NULL, &s, &err) != TERN_OK) {
        r->wrong = "a session cannot be opened";
        return NULL;
    }
    atomic_store(&r->s, s);
    tern_status st;
    /* the last tries are not disturbed: whoever cancels stops then */
    for (int tries = 0; (st = tern_session_prefill(s, prompt, N_PROMPT, &err)) == TERN_E_CANCELLED; tries++) {
        r->n_cancelled++;
        if (tries == 20) atomic_store(&over, true);
    }
    if (st != TERN_OK) r->wrong = "the prompt cannot be read";
    else if (memcmp(tern_session_logits(s), want, n_vocab * sizeof *want)) r->wrong = "other logits";
    while (!atomic_load(&over)) sched_yield(); /* the session must be there for who cancels it */
    tern_session_close(&s);
    return NULL;
}

static void *cancel_all(void *arg) {
    reader *r = arg;
    tn_rng rng = {.s = 5};
    for (int i = 0; i < 60 && !atomic_load(&over); i++) {
        tern_session *s = atomic_load(&r[tn_rng_below(&rng, N_THREADS)].s);
        if (s) tern_session_cancel(s);
        for (uint64_t k = tn_rng_below(&rng, 40); k; k--) sched_yield();
    }
    atomic_store(&over, true);
    return NULL;
}

static void first_prefill_by_many(void **state) {
    (void)state;
    static const char *const loads[] = {"stream", "overlap", "mmap"};
    int rounds = getenv("TERN_TEST_QUICK") ? 2 : 6, n_cancelled = 0;
    for (int round = 0; round < rounds; round++) {
        tern_options *o;
        tern_engine *e;
        tern_error err = {0};
        assert_int_equal(tern_options_new(&o, &err), TERN_OK);
        assert_int_equal(tern_options_set(o, "load", loads[round % 3], &err), TERN_OK);
        assert_int_equal(tern_options_set(o, "threads", "2", &err), TERN_OK);
        if (tern_engine_open(package, o, &e, &err) != TERN_OK) fail_msg("%s", err.message);
        tern_options_free(&o);
        reader readers[N_THREADS] = {0};
        pthread_t threads[N_THREADS + 1];
        atomic_store(&over, false);
        for (int i = 0; i < N_THREADS; i++) {
            readers[i].e = e;
            assert_int_equal(pthread_create(&threads[i], NULL, read_prompt, &readers[i]), 0);
        }
        assert_int_equal(pthread_create(&threads[N_THREADS], NULL, cancel_all, readers), 0);
        pthread_join(threads[N_THREADS], NULL);
        for (int i = 0; i < N_THREADS; i++) {
            pthread_join(threads[i], NULL);
            if (readers[i].wrong) fail_msg("%s, thread %d: %s", loads[round % 3], i, readers[i].wrong);
            n_cancelled += readers[i].n_cancelled;
        }
        tern_engine_close(&e);
    }
    print_message("%d cancelled\n", n_cancelled);
}

static char store_path[FIXTURE_PATH];

static void *write_store(void *arg) {
    const char **wrong = arg;
    tn_ctx ctx;
    tn_store *s;
    tern_error err;
    tn_ctx_init(&ctx, NULL);
    if (tn_store_open(&ctx, store_path, NULL, &s, &err) != TERN_OK ||
        tn_store_vocab(s, 9, 100000, &err) != TERN_OK) {
        *wrong = "the store cannot be opened";
        return NULL;
    }
    static atomic_int next;
    for (int i = 0; i < N_PUT; i++) {
        int32_t ids[4] = {atomic_fetch_add(&next, 1), 1, 2, 3};
        int64_t id = 0;
        if (tn_store_put(s, TN_SEQUENCE_CHAT, ids, 4, 1, &id, &err) != TERN_OK)
            *wrong = "a sequence cannot be put";
    }
    tn_store_close(&s);
    return NULL;
}

static bool note_first(void *user, tn_sequence_kind kind, const int32_t *ids, size_t n) {
    bool *seen = user;
    (void)kind;
    if (n == 4 && ids[0] >= 0 && ids[0] < N_THREADS * N_PUT) seen[ids[0]] = true;
    return true;
}

static void a_store_by_many(void **state) {
    (void)state;
    pthread_t threads[N_THREADS];
    const char *wrong[N_THREADS] = {0};
    bool seen[N_THREADS * N_PUT] = {0};
    fixture_file(store_path, "s.db");
    for (int i = 0; i < N_THREADS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, write_store, &wrong[i]), 0);
    for (int i = 0; i < N_THREADS; i++) {
        pthread_join(threads[i], NULL);
        if (wrong[i]) fail_msg("thread %d: %s", i, wrong[i]);
    }
    tn_ctx ctx;
    tn_store *s;
    tern_error err;
    tn_ctx_init(&ctx, NULL);
    assert_int_equal(tn_store_open(&ctx, store_path, NULL, &s, &err), TERN_OK);
    assert_int_equal(tn_store_vocab(s, 9, 100000, &err), TERN_OK);
    assert_int_equal(tn_store_each(s, 100000, note_first, seen, &err), TERN_OK);
    tn_store_close(&s);
    for (int i = 0; i < N_THREADS * N_PUT; i++)
        if (!seen[i]) fail_msg("sequence %d is not there", i);
}

static int setup(void **state) {
    (void)state;
    char gguf[FIXTURE_PATH];
    tern_error err = {0};
    tn_pack_options o;
    tn_pack_defaults(&o);
    o.calib_tokens = 64;
    fixture_model(gguf, "m.gguf", "tiny-llama", 7, TN_F32);
    fixture_package(package, "m.tern", gguf, &o);
    fixture_prompt(prompt, N_PROMPT);
    tern_engine *e = fixture_engine(package, NULL);
    tern_session *s = fixture_session(e, 0, NULL);
    must(tern_session_prefill(s, prompt, N_PROMPT, &err), &err);
    tern_model_info info;
    tern_engine_info(e, &info);
    n_vocab = (size_t)info.n_vocab;
    assert_true(n_vocab <= MAX_VOCAB);
    memcpy(want, tern_session_logits(s), n_vocab * sizeof *want);
    tern_session_close(&s);
    tern_engine_close(&e);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(first_prefill_by_many),
                                       cmocka_unit_test(a_store_by_many)};
    return cmocka_run_group_tests(tests, setup, NULL);
}
