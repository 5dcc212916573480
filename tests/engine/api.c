/* The public interface: resuming, cancelling, stopping, hooks, limits. tern.h only. */
#include <tern.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fixture/fixture.h"

static char model[FIXTURE_PATH];

static int setup(void **state) {
    (void)state;
    fixture_llama(model, "m.gguf", 1);
    return 0;
}

static void open_both(tern_engine **e, tern_session **s, const tern_options *o) {
    tern_error err = {0};
    if (tern_engine_open(model, o, e, &err) != TERN_OK || tern_session_open(*e, NULL, s, &err) != TERN_OK)
        fail_msg("%s", err.message);
}

static void close_both(tern_engine **e, tern_session **s) {
    tern_session_close(s);
    tern_engine_close(e);
    assert_null(*e);
    assert_null(*s);
}

static void prefixes_are_reused(void **state) {
    (void)state;
    tern_engine *e;
    tern_session *a, *b;
    tern_error err;
    open_both(&e, &a, NULL);
    assert_int_equal(tern_session_open(e, NULL, &b, &err), TERN_OK);
    int32_t one[40], two[40];
    for (int i = 0; i < 40; i++) one[i] = two[i] = i * 7 % 500;
    two[30] = 3;
    assert_null(tern_session_logits(a));
    assert_int_equal(tern_session_prefill(a, one, 40, &err), TERN_OK);
    assert_int_equal(tern_session_prefill(a, two, 35, &err), TERN_OK); /* shares 30, drops 10 */
    assert_int_equal(tern_session_length(a), 35);
    assert_int_equal(tern_session_prefill(b, two, 35, &err), TERN_OK);
    assert_memory_equal(tern_session_logits(a), tern_session_logits(b), 512 * sizeof(float));
    assert_int_equal(tern_session_prefill(a, two, 20, &err), TERN_OK); /* a prefix of what is there */
    assert_int_equal(tern_session_prefill(b, two, 20, &err), TERN_OK);
    assert_memory_equal(tern_session_logits(a), tern_session_logits(b), 512 * sizeof(float));
    tern_session_close(&b);
    close_both(&e, &a);
}

static void limits_and_misuse(void **state) {
    (void)state;
    tern_engine *e = NULL;
    tern_session *s;
    tern_error err;
    assert_int_equal(tern_engine_open(NULL, NULL, &e, &err), TERN_E_INVALID);
    assert_int_equal(tern_engine_open("/nonexistent.gguf", NULL, &e, &err), TERN_E_IO);
    assert_non_null(strstr(err.message, "/nonexistent.gguf"));
    assert_null(e);
    tern_options *o;
    assert_int_equal(tern_options_new(&o, &err), TERN_OK);
    assert_int_equal(tern_options_set(o, "threads", "1000", &err), TERN_E_INVALID);
    tern_options_free(&o);
    open_both(&e, &s, NULL);
    tern_session_close(&s);
    s = fixture_session(e, 10, NULL);
    int32_t ids[11] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11};
    assert_int_equal(tern_session_prefill(s, ids, 0, &err), TERN_E_INVALID);
    assert_int_equal(tern_session_prefill(s, ids, 11, &err), TERN_E_LIMIT);
    assert_int_equal(tern_session_prefill(s, ids, 10, &err), TERN_OK);
    assert_int_equal(tern_session_step(s, 1, &err), TERN_E_LIMIT);
    assert_int_equal(tern_session_length(s), 10); /* what was there is still there */
    int32_t bad = 512;
    assert_int_equal(tern_session_prefill(s, &bad, 1, &err), TERN_E_INVALID);
    bad = -1;
    assert_int_equal(tern_session_prefill(s, &bad, 1, &err), TERN_E_INVALID);
    tern_generate_options g;
    tern_generate_options_defaults(&g);
    g.sampling.top_p = 0;
    assert_int_equal(tern_session_prefill(s, ids, 3, &err), TERN_OK);
    assert_int_equal(tern_session_generate(s, &g, NULL, &err), TERN_E_INVALID);
    close_both(&e, &s);
}

typedef struct collected {
    char text[4096];
    size_t n;
    int n_tokens, stop_after;
} collected;

static bool collect(void *user, int32_t token, const char *text, size_t n, float logprob) {
    collected *c = user;
    assert_true(logprob <= 0);
    assert_true(c->n + n < sizeof c->text);
    memcpy(c->text + c->n, text, n);
    c->n += n;
    c->n_tokens += token >= 0;
    return !c->stop_after || c->n_tokens < c->stop_after;
}

static void stop_strings_and_callbacks(void **state) {
    (void)state;
    tern_engine *e;
    tern_session *s;
    tern_error err;
    open_both(&e, &s, NULL);
    int32_t ids[64];
    size_t n;
    assert_int_equal(tern_tokenize(e, "the inn", 7, true, true, ids, 64, &n, &err), TERN_OK);
    tern_generate_options g;
    tern_generate_options_defaults(&g);
    g.sampling.temperature = 0;
    g.ignore_end = true;
    g.max_tokens = 60;
    collected all = {0};
    g.on_token = collect;
    g.user = &all;
    tern_generate_result r;
    assert_int_equal(tern_session_prefill(s, ids, n, &err), TERN_OK);
    assert_int_equal(tern_session_generate(s, &g, &r, &err), TERN_OK);
    assert_int_equal(r.reason, TERN_STOP_LENGTH);
    assert_int_equal(all.n_tokens, 60);
    assert_true(all.n > 20);
    /* stop at every piece of that text: what came out ends right before its first occurrence */
    for (size_t at = 1; at + 4 < all.n; at += 5) {
        char word[5] = {0};
        memcpy(word, all.text + at, 4);
        if (memchr(word, 0, 4)) continue;
        size_t first = 0;
        while (memcmp(all.text + first, word, 4)) first++;
        const char *stops[] = {word, NULL};
        collected some = {0};
        g.stop = stops;
        g.user = &some;
        assert_int_equal(tern_session_prefill(s, ids, n, &err), TERN_OK);
        assert_int_equal(tern_session_generate(s, &g, &r, &err), TERN_OK);
        assert_int_equal(r.reason, TERN_STOP_STRING);
        assert_int_equal(some.n, first);
        assert_memory_equal(some.text, all.text, first);
    }
    collected few = {.stop_after = 5};
    g.stop = NULL;
    g.user = &few;
    assert_int_equal(tern_session_prefill(s, ids, n, &err), TERN_OK);
    assert_int_equal(tern_session_generate(s, &g, &r, &err), TERN_OK);
    assert_int_equal(r.reason, TERN_STOP_CALLBACK);
    assert_int_equal(few.n_tokens, 5);
    close_both(&e, &s);
}

/* Two threads in step: the one that generates stops after its third token until the other has cancelled. */
typedef struct canceller {
    tern_session *s;
    sem_t third, cancelled;
    int n_tokens;
} canceller;

static void *cancel_after_third(void *arg) {
    canceller *c = arg;
    sem_wait(&c->third);
    tern_session_cancel(c->s);
    sem_post(&c->cancelled);
    return NULL;
}

static bool count_to_three(void *user, int32_t token, const char *text, size_t n_bytes, float logprob) {
    canceller *c = user;
    (void)token, (void)text, (void)n_bytes, (void)logprob;
    if (++c->n_tokens != 3) return true;
    sem_post(&c->third);
    sem_wait(&c->cancelled);
    return true;
}

static void cancelled_from_another_thread(void **state) {
    (void)state;
    tern_engine *e;
    tern_session *s;
    tern_error err;
    open_both(&e, &s, NULL);
    tern_generate_options g;
    tern_generate_options_defaults(&g);
    g.ignore_end = true;
    g.max_tokens = -1;
    int32_t ids[3] = {1, 2, 3};
    canceller c = {.s = s};
    sem_init(&c.third, 0, 0);
    sem_init(&c.cancelled, 0, 0);
    g.on_token = count_to_three;
    g.user = &c;
    assert_int_equal(tern_session_prefill(s, ids, 3, &err), TERN_OK);
    pthread_t t;
    assert_int_equal(pthread_create(&t, NULL, cancel_after_third, &c), 0);
    assert_int_equal(tern_session_generate(s, &g, NULL, &err), TERN_E_CANCELLED);
    pthread_join(t, NULL);
    assert_int_equal(c.n_tokens, 3);
    sem_destroy(&c.third);
    sem_destroy(&c.cancelled);
    assert_int_equal(tern_session_prefill(s, ids, 3, &err), TERN_OK); /* the session goes on */
    close_both(&e, &s);
}

static bool refuse(void *user, const char *stage, double fraction) {
    (void)stage;
    ++*(int *)user;
    return fraction < 0.5;
}

static void progress_can_cancel(void **state) {
    (void)state;
    int n = 0;
    tern_hooks h;
    tern_hooks_defaults(&h);
    h.progress = refuse;
    h.user = &n;
    tern_options *o;
    tern_engine *e = NULL;
    tern_error err;
    assert_int_equal(tern_options_new(&o, &err), TERN_OK);
    assert_int_equal(tern_options_set_hooks(o, &h, &err), TERN_OK);
    assert_int_equal(tern_engine_open(model, o, &e, &err), TERN_E_CANCELLED);
    assert_null(e);
    assert_true(n > 0);
    assert_int_equal(tern_options_set_hooks(o, NULL, &err), TERN_OK);
    assert_int_equal(tern_engine_open(model, o, &e, &err), TERN_OK);
    tern_options_free(&o);
    tern_engine_close(&e);
    tern_engine_close(&e);
    tern_engine_close(NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(prefixes_are_reused),        cmocka_unit_test(limits_and_misuse),
        cmocka_unit_test(stop_strings_and_callbacks), cmocka_unit_test(cancelled_from_another_thread),
        cmocka_unit_test(progress_can_cancel),
    };
    return cmocka_run_group_tests(tests, setup, NULL);
}
