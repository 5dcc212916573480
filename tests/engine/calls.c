/* What every binder asks for: special tokens, truncation and copies of sessions, logits before the draw, a
 * model from a descriptor, an answer in one call, packing. tern.h alone. */
#include <tern.h>

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "fixture/fixture.h"

enum { N_VOCAB = 512, N_PROMPT = 90 };
static char model[FIXTURE_PATH], package[FIXTURE_PATH];
static int32_t prompt[N_PROMPT];

static int setup(void **state) {
    (void)state;
    fixture_llama(model, "m.gguf", 1);
    fixture_file(package, "m.tern");
    for (int i = 0; i < N_PROMPT; i++) prompt[i] = i * 37 % N_VOCAB;
    return 0;
}

static bool count_progress(void *user, const char *stage, double fraction) {
    (void)stage, (void)fraction;
    return ++*(int *)user < 1000000;
}

static bool cancel_at_third(void *user, const char *stage, double fraction) {
    (void)stage, (void)fraction;
    return ++*(int *)user < 3;
}

static void packing(void **state) {
    (void)state;
    int n = 0;
    tern_hooks h;
    tern_pack_options o;
    tern_pack_report r;
    tern_error err = {0};
    tern_hooks_defaults(&h);
    h.progress = cancel_at_third;
    h.user = &n;
    tern_pack_options_defaults(&o);
    o.hooks = &h;
    assert_int_equal(tern_pack(model, package, &o, &r, &err), TERN_E_CANCELLED);
    assert_int_equal(access(package, F_OK), -1); /* nothing is left */
    h.progress = count_progress;
    n = 0;
    must(tern_pack(model, package, &o, &r, &err), &err);
    assert_true(n > 5);
    FILE *f = fopen(package, "rb");
    assert_non_null(f);
    fseek(f, 0, SEEK_END);
    assert_int_equal(r.package_bytes, ftell(f));
    fclose(f);
    assert_true(r.n_sites > 0 && r.n_calibration_tokens > 100);
    o.scheme = "best";
    assert_int_equal(tern_pack(model, package, &o, NULL, &err), TERN_E_INVALID);
    o.scheme = NULL;
    o.bits = 9;
    assert_int_equal(tern_pack(model, package, &o, NULL, &err), TERN_E_INVALID);
    assert_int_equal(tern_pack(package, package, NULL, NULL, &err), TERN_E_INVALID);
    tern_engine *e = fixture_engine(package, NULL);
    tern_engine_close(&e);
}

static int32_t of_config(const char *key) {
    char text[8192], *at;
    FILE *f = fopen(TN_SOURCE_DIR "/models/tern-tiny/config.json", "r");
    assert_non_null(f);
    text[fread(text, 1, sizeof text - 1, f)] = 0;
    fclose(f);
    assert_non_null(at = strstr(text, key));
    return (int32_t)strtol(strchr(at, ':') + 1, NULL, 10);
}

static void special_tokens(void **state) {
    (void)state;
    tern_engine *e = fixture_engine(TN_SOURCE_DIR "/models/tern-tiny", NULL);
    assert_int_equal(tern_token_special(e, TERN_TOKEN_BOS), of_config("\"bos_token_id\""));
    assert_int_equal(tern_token_special(e, TERN_TOKEN_EOS), of_config("\"eos_token_id\""));
    assert_true(tern_token_is_end(e, tern_token_special(e, TERN_TOKEN_EOS)));
    int32_t eot = tern_token_special(e, TERN_TOKEN_EOT);
    assert_true(eot == -1 || tern_token_is_end(e, eot));
    assert_int_equal(tern_token_special(e, (tern_special_token)77), -1);
    tern_engine_close(&e);
}

/* A copy goes on with the bits of the session it was copied from; a truncated session with those of one
 * that never read further. Float models and packages. */
static void truncated_and_copied(void **state) {
    (void)state;
    const char *const paths[] = {model, package};
    for (int i = 0; i < 2; i++) {
        tern_engine *e = fixture_engine(paths[i], NULL), *other = fixture_engine(paths[i], NULL);
        tern_session *a = fixture_session(e, 128, NULL), *b = fixture_session(e, 256, NULL),
                     *c = fixture_session(e, 128, NULL), *small = fixture_session(e, 20, NULL),
                     *foreign = fixture_session(other, 128, NULL);
        tern_error err = {0};
        must(tern_session_prefill(a, prompt, 70, &err), &err);
        must(tern_session_prefill(b, prompt + 20, 60, &err), &err); /* is overwritten */
        must(tern_session_copy(b, a, &err), &err);
        assert_int_equal(tern_session_length(b), 70);
        assert_memory_equal(tern_session_logits(a), tern_session_logits(b), N_VOCAB * sizeof(float));
        must(tern_session_step(a, 5, &err), &err);
        must(tern_session_step(b, 5, &err), &err);
        assert_memory_equal(tern_session_logits(a), tern_session_logits(b), N_VOCAB * sizeof(float));
        must(tern_session_step(b, 9, &err), &err); /* a does not notice */
        must(tern_session_step(a, 7, &err), &err);
        must(tern_session_truncate(b, 71, &err), &err);
        assert_null(tern_session_logits(b));
        must(tern_session_step(b, 7, &err), &err);
        assert_memory_equal(tern_session_logits(a), tern_session_logits(b), N_VOCAB * sizeof(float));
        must(tern_session_truncate(a, 40, &err), &err);
        assert_int_equal(tern_session_length(a), 40);
        must(tern_session_step(a, 11, &err), &err);
        int32_t fresh[41];
        memcpy(fresh, prompt, sizeof fresh);
        fresh[40] = 11;
        must(tern_session_prefill(c, fresh, 41, &err), &err);
        assert_memory_equal(tern_session_logits(a), tern_session_logits(c), N_VOCAB * sizeof(float));
        assert_int_equal(tern_session_truncate(a, 42, &err), TERN_E_LIMIT);
        assert_int_equal(tern_session_copy(small, a, &err), TERN_E_LIMIT);
        assert_int_equal(tern_session_copy(foreign, a, &err), TERN_E_INVALID);
        must(tern_session_copy(a, a, &err), &err);
        assert_int_equal(tern_session_length(a), 41);
        tern_session_close(&a), tern_session_close(&b), tern_session_close(&c), tern_session_close(&small),
            tern_session_close(&foreign);
        tern_engine_close(&e), tern_engine_close(&other);
    }
}

typedef struct shaped {
    int32_t ids[64];
    int n, n_calls, stop_at;
} shaped;

static bool odd_only(void *user, float *logits, size_t n_vocab) {
    shaped *t = user;
    assert_int_equal(n_vocab, N_VOCAB);
    for (size_t i = 0; i < n_vocab; i += 2) logits[i] = -INFINITY;
    return !t->stop_at || ++t->n_calls < t->stop_at;
}

static bool keep(void *user, int32_t token, const char *text, size_t n_bytes, float logprob) {
    shaped *t = user;
    (void)text, (void)n_bytes;
    assert_true(logprob > -60 && logprob <= 0); /* the model's, not those of the mask */
    if (token >= 0) t->ids[t->n++] = token;
    return true;
}

/* Every token is one that the mask leaves, and the best of those; with and without drafts. */
static void logits_before_the_draw(void **state) {
    (void)state;
    tern_engine *e = fixture_engine(model, NULL);
    shaped plain = {0}, drafted = {0};
    for (int drafts = 0; drafts < 2; drafts++) {
        tern_session *s = fixture_session(e, 256, NULL), *check = fixture_session(e, 256, NULL);
        shaped *t = drafts ? &drafted : &plain;
        tern_error err = {0};
        tern_generate_options g;
        tern_generate_options_defaults(&g);
        g.max_tokens = 40;
        g.ignore_end = true;
        g.sampling.temperature = 0;
        g.on_token = keep;
        g.on_logits = odd_only;
        g.user = t;
        g.draft = drafts ? "all" : "none";
        must(tern_session_prefill(s, prompt, N_PROMPT, &err), &err);
        must(tern_session_prefill(check, prompt, N_PROMPT, &err), &err);
        must(tern_session_generate(s, &g, NULL, &err), &err);
        assert_int_equal(t->n, 40);
        for (int i = 0; i < t->n; i++) {
            const float *l = tern_session_logits(check);
            int32_t best = 1;
            for (int32_t k = 3; k < N_VOCAB; k += 2) best = l[k] > l[best] ? k : best;
            assert_int_equal(t->ids[i], best);
            must(tern_session_step(check, best, &err), &err);
        }
        t->stop_at = 1;
        tern_generate_result r;
        g.on_token = NULL;
        must(tern_session_prefill(s, prompt, 9, &err), &err);
        must(tern_session_generate(s, &g, &r, &err), &err);
        assert_int_equal(r.n_tokens, 0);
        assert_int_equal(r.reason, TERN_STOP_CALLBACK);
        tern_session_close(&s), tern_session_close(&check);
    }
    assert_memory_equal(plain.ids, drafted.ids, sizeof plain.ids);
    tern_engine_close(&e);
}

/* The model is made to say <|im_start|>. */
typedef struct markup {
    char text[256];
    size_t n;
    int32_t id;
} markup;
static bool only_markup(void *user, float *logits, size_t n_vocab) {
    markup *t = user;
    for (size_t i = 0; i < n_vocab; i++) logits[i] = (int32_t)i == t->id ? 1 : -INFINITY;
    return true;
}
static bool keep_text(void *user, int32_t token, const char *text, size_t n_bytes, float logprob) {
    markup *t = user;
    (void)token, (void)logprob;
    memcpy(t->text + t->n, text, n_bytes);
    t->text[t->n += n_bytes] = 0;
    return true;
}
static void text_of_control_tokens(void **state) {
    (void)state;
    tern_error err;
    tern_engine *e = fixture_engine(TN_SOURCE_DIR "/models/tern-tiny", NULL);
    tern_session *s = fixture_session(e, 64, NULL);
    for (int special = 0; special < 2; special++) {
        markup t = {0};
        size_t n;
        must(tern_tokenize(e, "<|im_start|>", 12, false, true, &t.id, 1, &n, &err), &err);
        tern_generate_options g;
        tern_generate_options_defaults(&g);
        g.max_tokens = 3;
        g.on_logits = only_markup;
        g.on_token = keep_text;
        g.user = &t;
        g.special_text = special;
        must(tern_session_prefill(s, &t.id, 1, &err), &err);
        must(tern_session_generate(s, &g, NULL, &err), &err);
        assert_string_equal(t.text, special ? "<|im_start|><|im_start|><|im_start|>" : "");
    }
    tern_session_close(&s);
    tern_engine_close(&e);
}

typedef struct collected {
    char text[4096];
    size_t n;
} collected;

static bool collect(void *user, const char *text, size_t n_bytes) {
    collected *c = user;
    assert_true(n_bytes && c->n + n_bytes < sizeof c->text);
    memcpy(c->text + c->n, text, n_bytes);
    c->n += n_bytes;
    return true;
}

static bool collect_token(void *user, int32_t token, const char *text, size_t n_bytes, float logprob) {
    (void)token, (void)logprob;
    return !n_bytes || collect(user, text, n_bytes);
}

static void one_call(void **state) {
    (void)state;
    tern_engine *e = fixture_engine(model, NULL);
    collected one = {0}, steps = {0};
    tern_options *o;
    tern_error err = {0};
    tern_generate_result r;
    const tern_message text = {NULL, "the old inn"};
    must(tern_options_new(&o, &err), &err);
    const char *const set[][2] = {
        {"temp", "1.5"}, {"seed", "7"}, {"n-predict", "30"}, {"ignore-eos", "on"}, {"ctx-size", "99"}};
    for (size_t i = 0; i < sizeof set / sizeof set[0]; i++)
        must(tern_options_set(o, set[i][0], set[i][1], &err), &err);
    must(tern_complete(e, &text, 1, o, collect, &one, &r, &err), &err);
    assert_int_equal(r.n_tokens, 30);
    tern_session *s = fixture_session(e, 99, NULL);
    int32_t ids[64];
    size_t n;
    tern_generate_options g;
    tern_generate_options_defaults(&g);
    g.sampling.temperature = 1.5f;
    g.sampling.seed = 7;
    g.max_tokens = 30;
    g.ignore_end = true;
    g.on_token = collect_token;
    g.user = &steps;
    must(tern_tokenize(e, text.content, strlen(text.content), true, true, ids, 64, &n, &err), &err);
    must(tern_session_prefill(s, ids, n, &err), &err);
    must(tern_session_generate(s, &g, NULL, &err), &err);
    assert_true(one.n > 10 && one.n == steps.n);
    assert_memory_equal(one.text, steps.text, one.n);
    const tern_message chat[] = {{"user", "hi"}}, broken[] = {{"user", "hi"}, {NULL, "text"}},
                       empty[] = {{"user", NULL}};
    assert_int_equal(tern_complete(e, chat, 1, o, collect, &one, NULL, &err),
                     TERN_E_UNSUPPORTED); /* no template */
    assert_int_equal(tern_complete(e, broken, 2, o, collect, &one, NULL, &err), TERN_E_INVALID);
    assert_int_equal(tern_complete(e, empty, 1, o, collect, &one, NULL, &err), TERN_E_INVALID);
    must(tern_options_set(o, "ctx-size", "2", &err), &err);
    assert_int_equal(tern_complete(e, &text, 1, o, collect, &one, NULL, &err), TERN_E_LIMIT);
    tern_options_free(&o);
    tern_session_close(&s);
    tern_engine_close(&e);
    e = fixture_engine(TN_SOURCE_DIR "/models/tern-tiny", NULL);
    one = (collected){0};
    must(tern_options_new(&o, &err), &err);
    must(tern_options_set(o, "n-predict", "8", &err), &err);
    must(tern_complete(e, chat, 1, o, collect, &one, NULL, &err), &err);
    assert_true(one.n > 0);
    tern_options_free(&o);
    tern_engine_close(&e);
}

/* From a descriptor, whose file has lost its name by the time that anything is computed. */
static void from_a_descriptor(void **state) {
    (void)state;
    const char *const paths[] = {model, package};
    for (int i = 0; i < 2; i++) {
        char copy[300], cmd[700];
        snprintf(copy, sizeof copy, "%s.copy", paths[i]);
        snprintf(cmd, sizeof cmd, "cp %s %s", paths[i], copy);
        assert_int_equal(system(cmd), 0);
        int fd = open(copy, O_RDONLY);
        assert_true(fd >= 0);
        unlink(copy);
        tern_engine *e = NULL, *named = fixture_engine(paths[i], NULL);
        tern_error err = {0};
        lseek(fd, 100, SEEK_SET);
        must(tern_engine_open_fd(fd, NULL, &e, &err), &err);
        close(fd);
        tern_session *s = fixture_session(e, 128, NULL), *t = fixture_session(named, 128, NULL);
        must(tern_session_prefill(s, prompt, N_PROMPT, &err), &err);
        must(tern_session_prefill(t, prompt, N_PROMPT, &err), &err);
        assert_memory_equal(tern_session_logits(s), tern_session_logits(t), N_VOCAB * sizeof(float));
        tern_session_close(&s), tern_session_close(&t);
        tern_engine_close(&e), tern_engine_close(&named);
    }
    tern_engine *none;
    tern_error err = {0};
    assert_int_equal(tern_engine_open_fd(-1, NULL, &none, &err), TERN_E_INVALID);
    assert_int_equal(tern_engine_open_fd(9999, NULL, &none, &err), TERN_E_INVALID);
    int fds[2];
    assert_int_equal(pipe(fds), 0);
    close(fds[1]);
    assert_int_not_equal(tern_engine_open_fd(fds[0], NULL, &none, &err), TERN_OK); /* not a file */
    close(fds[0]);
    assert_null(none);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(packing), /* makes the package that others use */
        cmocka_unit_test(special_tokens),
        cmocka_unit_test(truncated_and_copied),
        cmocka_unit_test(logits_before_the_draw),
        cmocka_unit_test(text_of_control_tokens),
        cmocka_unit_test(one_call),
        cmocka_unit_test(from_a_descriptor),
    };
    return cmocka_run_group_tests(tests, setup, NULL);
}
