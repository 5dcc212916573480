/* Sessions through tern.h alone, of a float model and of a package: saved states and their damage, two at
 * once in two threads, a cancelled prefill, the host's hooks, misuse. */
#include <tern.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "fixture/fixture.h"
#include "fixture/scarce.h"

enum { N_PROMPT = 300, N_VOCAB = 512 };

static char gguf[FIXTURE_PATH], package[FIXTURE_PATH], other[FIXTURE_PATH];
static int32_t prompt[N_PROMPT];

static int setup(void **state) {
    (void)state;
    fixture_llama(gguf, "m.gguf", 1);
    fixture_llama(other, "other.gguf", 9);
    fixture_package(package, "m.tern", gguf, NULL);
    fixture_prompt(prompt, N_PROMPT);
    return 0;
}

/* name may be NULL */
static tern_options *options_of(const tern_hooks *hooks, const char *name, const char *value) {
    tern_options *o;
    tern_error err = {0};
    if (tern_options_new(&o, &err) != TERN_OK || tern_options_set_hooks(o, hooks, &err) != TERN_OK ||
        (name && tern_options_set(o, name, value, &err) != TERN_OK))
        fail_msg("%s", err.message);
    return o;
}

/* A damaged state is refused with one line naming the file, and leaves a session that works. */
static void refused(tern_session *s, const char *path, const float *want, size_t n_tok) {
    tern_error err = {0};
    tern_status st = tern_session_load(s, path, &err);
    if (st != TERN_E_FORMAT && st != TERN_E_INVALID && st != TERN_E_UNSUPPORTED && st != TERN_E_LIMIT)
        fail_msg("status %d", st);
    assert_non_null(strstr(err.message, path));
    assert_null(strchr(err.message, '\n'));
    if (!want) return;
    must(tern_session_prefill(s, prompt, n_tok, &err), &err);
    assert_memory_equal(tern_session_logits(s), want, N_VOCAB * sizeof *want);
}

static void states(const char *model, const char *kv) {
    enum { N = 21 }; /* not a whole panel of keys */
    char path[300], bad[310];
    snprintf(path, sizeof path, "%s.state", model);
    snprintf(bad, sizeof bad, "%s.bad", path);
    tern_options *o = options_of(NULL, "kv", kv);
    tern_engine *e = fixture_engine(model, o), *foreign = fixture_engine(other, NULL);
    tern_session *a = fixture_session(e, 64, NULL), *b = fixture_session(e, 64, NULL),
                 *small = fixture_session(e, N - 1, NULL), *f = fixture_session(foreign, 64, NULL);
    tern_error err = {0};
    must(tern_session_prefill(a, prompt, N, &err), &err);
    must(tern_session_save(a, path, &err), &err);
    float want[N_VOCAB];
    memcpy(want, tern_session_logits(a), sizeof want);
    must(tern_session_prefill(b, prompt + 5, 30, &err), &err); /* what was there is replaced */
    must(tern_session_load(b, path, &err), &err);
    assert_int_equal(tern_session_length(b), N);
    assert_memory_equal(tern_session_logits(b), want, sizeof want);
    must(tern_session_step(a, 7, &err), &err);
    must(tern_session_step(b, 7, &err), &err);
    assert_memory_equal(tern_session_logits(a), tern_session_logits(b), sizeof want);
    refused(f, path, NULL, 0);
    assert_int_equal(tern_session_load(small, path, &err), TERN_E_LIMIT);
    assert_int_equal(tern_session_load(b, "/nonexistent.state", &err), TERN_E_IO);
    assert_int_equal(tern_session_length(b), N + 1); /* nothing was lost yet */
    assert_int_equal(tern_session_save(b, "/nonexistent/dir/x.state", &err), TERN_E_IO);
    assert_int_equal(tern_session_load(b, model, &err), TERN_E_FORMAT); /* no state at all */

    size_t n;
    char *bytes = fixture_read(path, &n);
    for (size_t cut = 0; cut < n; cut += cut < 64 ? 5 : n / 13) {
        fixture_write(bad, bytes, cut);
        refused(b, bad, want, N);
    }
    for (size_t at = 0; at < n; at += at < 48 ? 1 : n / 13) {
        bytes[at] ^= (char)(1 << at % 8);
        fixture_write(bad, bytes, n);
        refused(b, bad, want, N);
        bytes[at] ^= (char)(1 << at % 8);
    }
    free(bytes);
    unlink(path);
    unlink(bad);
    tern_session_close(&a);
    tern_session_close(&b);
    tern_session_close(&small);
    tern_session_close(&f);
    tern_engine_close(&e);
    tern_engine_close(&foreign);
    tern_options_free(&o);
}

static void states_of_a_float_model(void **state) {
    (void)state;
    states(gguf, "f32");
    states(gguf, "int4");
}

static void states_of_a_package(void **state) {
    (void)state;
    states(package, "f16");
    states(package, "int8");
}

/* A session that keeps keys and values in another form goes on from the same text, and what it saves can
 * be read again. */
static void states_of_another_form(void **state) {
    (void)state;
    static const char *const forms[] = {"f32", "f16", "int8", "int4"};
    enum { N = 21 };
    char path[FIXTURE_PATH + 8], back[FIXTURE_PATH + 16];
    snprintf(path, sizeof path, "%s.forms", gguf);
    snprintf(back, sizeof back, "%s.back", path);
    tern_error err = {0};
    for (int i = 0; i < 16; i++) {
        tern_options *from = options_of(NULL, "kv", forms[i / 4]), *to = options_of(NULL, "kv", forms[i % 4]);
        tern_engine *e = fixture_engine(gguf, from), *g = fixture_engine(gguf, to);
        tern_session *a = fixture_session(e, 64, NULL), *b = fixture_session(g, 80, NULL),
                     *c = fixture_session(e, 64, NULL);
        must(tern_session_prefill(a, prompt, N, &err), &err);
        must(tern_session_save(a, path, &err), &err);
        must(tern_session_load(b, path, &err), &err);
        assert_int_equal(tern_session_length(b), N);
        assert_memory_equal(tern_session_logits(a), tern_session_logits(b), N_VOCAB * sizeof(float));
        must(tern_session_save(b, back, &err), &err);
        must(tern_session_load(c, back, &err), &err);
        must(tern_session_step(a, 7, &err), &err);
        must(tern_session_step(b, 7, &err), &err);
        must(tern_session_step(c, 7, &err), &err);
        const float *x = tern_session_logits(a), *y = tern_session_logits(b), *z = tern_session_logits(c);
        double size = 0, off = 0, off_back = 0;
        for (int j = 0; j < N_VOCAB; j++) {
            size += (double)x[j] * (double)x[j];
            off += (double)(x[j] - y[j]) * (double)(x[j] - y[j]);
            off_back += (double)(x[j] - z[j]) * (double)(x[j] - z[j]);
        }
        bool same = i / 4 == i % 4, coarse = i / 4 == 3 || i % 4 == 3;
        if (same ? off + off_back > 0
                 : off > size * (coarse ? 0.05 : 0.001) || off_back > size * (coarse ? 0.05 : 0.001))
            fail_msg("%s to %s: %g, and back %g, of %g", forms[i / 4], forms[i % 4], off, off_back, size);
        tern_session_close(&a);
        tern_session_close(&b);
        tern_session_close(&c);
        tern_engine_close(&e);
        tern_engine_close(&g);
        tern_options_free(&from);
        tern_options_free(&to);
    }
    unlink(path);
    unlink(back);
}

typedef struct worker {
    tern_session *s;
    int32_t first;
    float logits[N_VOCAB];
    tern_status st;
} worker;

static void *work(void *arg) {
    worker *w = arg;
    w->st = TERN_OK;
    for (int round = 0; round < 3 && w->st == TERN_OK; round++) {
        int32_t start =
            w->first; /* another first token than the last round's: everything is evaluated again */
        w->st = tern_session_prefill(w->s, prompt + start + !(round & 1), 200, NULL);
        for (int32_t i = 0; i < 4 && w->st == TERN_OK; i++) w->st = tern_session_step(w->s, start + i, NULL);
    }
    if (w->st == TERN_OK) memcpy(w->logits, tern_session_logits(w->s), sizeof w->logits);
    return NULL;
}

static void two_sessions_in_two_threads(void **state) {
    (void)state;
    const char *const paths[] = {gguf, package};
    for (int p = 0; p < 2; p++) {
        tern_engine *e = fixture_engine(paths[p], NULL);
        worker alone[2] = {{.first = 0}, {.first = 60}}, together[2] = {{.first = 0}, {.first = 60}};
        for (int i = 0; i < 2; i++) {
            alone[i].s = fixture_session(e, 256, NULL);
            together[i].s = fixture_session(e, 256, NULL);
            work(&alone[i]);
            assert_int_equal(alone[i].st, TERN_OK);
        }
        pthread_t t[2];
        for (int i = 0; i < 2; i++) assert_int_equal(pthread_create(&t[i], NULL, work, &together[i]), 0);
        for (int i = 0; i < 2; i++) {
            pthread_join(t[i], NULL);
            assert_int_equal(together[i].st, TERN_OK);
            assert_memory_equal(together[i].logits, alone[i].logits, sizeof alone[i].logits);
            tern_session_close(&alone[i].s);
            tern_session_close(&together[i].s);
        }
        tern_engine_close(&e);
    }
}

typedef struct canceller {
    tern_session *s;
    long wait_ns;
} canceller;

static void *cancel_later(void *arg) {
    const canceller *c = arg;
    struct timespec t = {.tv_nsec = c->wait_ns};
    nanosleep(&t, NULL);
    tern_session_cancel(c->s);
    return NULL;
}

/* Cancelled at various moments, a prefill leaves a prefix of the prompt; finishing it gives the bits of an
 * undisturbed one. */
static void cancelled_prefill(void **state) {
    (void)state;
    const char *const paths[] = {gguf, package};
    for (int p = 0; p < 2; p++) {
        tern_options *o = options_of(NULL, "chunk", "32");
        tern_engine *e = fixture_engine(paths[p], o);
        tern_options_free(&o);
        tern_session *s = fixture_session(e, 320, NULL), *calm = fixture_session(e, 320, NULL);
        tern_error err = {0};
        must(tern_session_prefill(calm, prompt, N_PROMPT, &err), &err);
        int n_cancelled = 0;
        for (int i = 0; i < 25; i++) {
            int32_t last = i & 1 ? 3 : 4;
            while (tern_session_prefill(s, &last, 1, &err) == TERN_E_CANCELLED) {
            } /* takes a cancel that came late */
            if (i == 0)
                tern_session_cancel(
                    s); /* one for certain; the others fall where the machine's speed has them */
            canceller c = {s, 60000L * i};
            pthread_t t;
            assert_int_equal(pthread_create(&t, NULL, cancel_later, &c), 0);
            tern_status st = tern_session_prefill(s, prompt, N_PROMPT, &err);
            pthread_join(t, NULL);
            if (st == TERN_E_CANCELLED) {
                n_cancelled++;
                assert_true(tern_session_length(s) < N_PROMPT);
            } else {
                must(st, &err);
            }
            st = tern_session_prefill(s, prompt, N_PROMPT, &err);
            if (st == TERN_E_CANCELLED) st = tern_session_prefill(s, prompt, N_PROMPT, &err);
            must(st, &err);
            assert_memory_equal(tern_session_logits(s), tern_session_logits(calm), N_VOCAB * sizeof(float));
        }
        tern_session_cancel(s); /* before the call: this one is cancelled for certain */
        int32_t one = 9;
        assert_int_equal(tern_session_prefill(s, &one, 1, &err), TERN_E_CANCELLED);
        assert_int_equal(tern_session_prefill(s, &one, 1, &err), TERN_OK);
        assert_true(n_cancelled > 0);
        tern_session_close(&s);
        tern_session_close(&calm);
        tern_engine_close(&e);
    }
}

/* The fraction of a stage never falls. */
typedef struct host {
    scarce memory; /* first: the hooks' user is both */
    int n_lines, n_progress;
    double fraction;
    char stage[32], line[600];
} host;

static void host_log(void *user, tern_log_level level, const char *line) {
    host *h = user;
    assert_true(level >= TERN_LOG_ERROR && level <= TERN_LOG_DEBUG);
    assert_null(strchr(line, '\n'));
    snprintf(h->line, sizeof h->line, "%s", line);
    h->n_lines++;
}

static bool host_progress(void *user, const char *stage, double fraction) {
    host *h = user;
    assert_true(fraction >= 0 && fraction <= 1);
    if (!strcmp(stage, h->stage)) assert_true(fraction >= h->fraction);
    snprintf(h->stage, sizeof h->stage, "%s", stage);
    h->fraction = fraction;
    h->n_progress++;
    return true;
}

static tern_hooks hooks_of(host *h) {
    tern_hooks k;
    scarce_hooks(&k, &h->memory);
    k.log = host_log;
    k.progress = host_progress;
    return k;
}

static void log_and_progress(void **state) {
    (void)state;
    host h = {.memory.left = -1};
    tern_hooks k = hooks_of(&h);
    tern_options *o = options_of(&k, NULL, NULL);
    tern_engine *e = fixture_engine(gguf, o);
    tern_options_free(&o);
    memset(&k, 0, sizeof k); /* the engine has its own copy */
    assert_true(h.n_progress > 0);
    tern_model_info info;
    tern_engine_info(e, &info);
    tern_session *s = fixture_session(e, info.ctx_train + 1, NULL);
    assert_int_equal(h.n_lines, 1);
    assert_non_null(strstr(h.line, "trained"));
    tern_session_close(&s);
    tern_engine_close(&e);
    assert_int_equal(h.memory.live, 0);
}

/* Allocation number i fails, for every i: an error of memory, nothing left behind. Packages:
 * tests/prefill/pipeline.c. */
static void allocation_failures(void **state) {
    (void)state;
    long step = getenv("TERN_TEST_QUICK") ? 7 : 1;
    for (long i = 0;; i += step) {
        host h = {.memory.left = i};
        tern_hooks k = hooks_of(&h);
        tern_options *o = options_of(&k, "threads", "2");
        tern_engine *e = NULL;
        tern_session *s = NULL;
        tern_error err = {0};
        int32_t ids[64];
        size_t n;
        tern_generate_options g;
        tern_generate_options_defaults(&g);
        g.max_tokens = 4;
        tern_status st = tern_engine_open(gguf, o, &e, &err);
        tern_options_free(&o);
        if (st == TERN_OK) st = tern_session_open(e, NULL, &s, &err);
        if (st == TERN_OK) st = tern_tokenize(e, "the inn", 7, true, true, ids, 64, &n, &err);
        if (st == TERN_OK) st = tern_session_prefill(s, ids, n, &err);
        if (st == TERN_OK) st = tern_session_generate(s, &g, NULL, &err);
        tern_session_close(&s);
        tern_engine_close(&e);
        assert_int_equal(h.memory.live, 0);
        if (st != TERN_OK && st != TERN_E_MEMORY)
            fail_msg("allocation %ld: status %d, %s", i, st, err.message);
        if (st != TERN_OK && !err.message[0]) fail_msg("allocation %ld: no message", i);
        if (st == TERN_OK && h.memory.left >= 0) {
            assert_true(i > 30);
            break;
        }
    }
}

static bool score_none(void *user, size_t i, const float *logits) {
    (void)user;
    (void)i;
    (void)logits;
    return true;
}

static void null_arguments(void **state) {
    (void)state;
    tern_engine *e = fixture_engine(gguf, NULL);
    tern_session *s = fixture_session(e, 32, NULL), *none;
    tern_error err;
    int32_t id = 1;
    size_t n;
    assert_int_equal(tern_engine_open(gguf, NULL, NULL, &err), TERN_E_INVALID);
    assert_int_equal(tern_session_open(NULL, NULL, &none, &err), TERN_E_INVALID);
    assert_null(none);
    assert_int_equal(tern_session_open(e, NULL, NULL, &err), TERN_E_INVALID);
    assert_int_equal(tern_session_prefill(NULL, &id, 1, &err), TERN_E_INVALID);
    assert_int_equal(tern_session_prefill(s, NULL, 1, NULL), TERN_E_INVALID);
    assert_int_equal(tern_session_step(NULL, 1, &err), TERN_E_INVALID);
    assert_int_equal(tern_session_score(NULL, &id, 1, 0, score_none, NULL, &err), TERN_E_INVALID);
    assert_int_equal(tern_session_score(s, &id, 1, 0, NULL, NULL, &err), TERN_E_INVALID);
    assert_int_equal(tern_session_save(NULL, gguf, &err), TERN_E_INVALID);
    assert_int_equal(tern_session_save(s, NULL, &err), TERN_E_INVALID);
    assert_int_equal(tern_session_load(NULL, gguf, &err), TERN_E_INVALID);
    assert_int_equal(tern_session_load(s, NULL, &err), TERN_E_INVALID);
    assert_int_equal(tern_tokenize(NULL, "a", 1, true, true, &id, 1, &n, &err), TERN_E_INVALID);
    assert_int_equal(tern_tokenize(e, NULL, 1, true, true, &id, 1, &n, &err), TERN_E_INVALID);
    assert_int_equal(tern_tokenize(e, "a", 1, true, true, &id, 1, NULL, &err), TERN_E_INVALID);
    assert_int_equal(tern_tokenize(e, "aaaa bbbb", 9, true, true, NULL, 0, &n, &err),
                     TERN_E_LIMIT); /* asks for the size */
    assert_true(n > 1);
    tern_generate_result r;
    memset(&r, 0x55, sizeof r);
    assert_int_equal(tern_session_generate(NULL, NULL, &r, &err), TERN_E_INVALID);
    assert_int_equal(tern_session_generate(s, NULL, &r, &err), TERN_E_INVALID); /* no prompt yet */
    assert_int_equal(r.n_tokens, 0);
    tern_session_cancel(NULL);
    tern_session_close(NULL);
    none = NULL;
    tern_session_close(&none);
    tern_session_close(&s);
    tern_engine_close(&e);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(states_of_a_float_model), cmocka_unit_test(states_of_a_package),
        cmocka_unit_test(states_of_another_form),  cmocka_unit_test(two_sessions_in_two_threads),
        cmocka_unit_test(cancelled_prefill),       cmocka_unit_test(log_and_progress),
        cmocka_unit_test(allocation_failures),     cmocka_unit_test(null_arguments),
    };
    return cmocka_run_group_tests(tests, setup, NULL);
}
