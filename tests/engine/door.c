/* What programs reach through tern.h since its binary interface was declared: answers in steps, compiled grammars, sessions saved
 * to memory, likeliest tokens, hyperparameters and counters. */
#include <tern.h>

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fixture/fixture.h"

static char model[FIXTURE_PATH];
static tern_engine *e;

static int setup(void **state) {
    (void)state;
    tern_error err;
    fixture_llama(model, "m.gguf", 1);
    return tern_engine_open(model, NULL, &e, &err);
}

static int teardown(void **state) {
    (void)state;
    tern_engine_close(&e);
    return 0;
}

static tern_session *read_tokens(int32_t first) {
    tern_error err;
    tern_session *s;
    int32_t ids[9];
    for (int i = 0; i < 9; i++) ids[i] = first + 3 * i;
    must(tern_session_open(e, NULL, &s, &err), &err);
    must(tern_session_prefill(s, ids, 9, &err), &err);
    return s;
}

static tern_generate_options wanted(fixture_heard *t, int32_t n) {
    tern_generate_options o;
    fixture_hear(&o, n, t);
    o.sampling.temperature = 1;
    o.sampling.seed = 7;
    return o;
}

/* Three answers of other lengths, in steps of what is left of them, are the answers that each is alone. */
static void answers_in_steps(void **state) {
    (void)state;
    tern_error err;
    fixture_heard alone[3], beside[3];
    tern_answer *a[3], *go[3];
    tern_session *s[3];
    for (int i = 0; i < 3; i++) {
        tern_generate_options o = wanted(&alone[i], 5 + 4 * i);
        tern_session *one = read_tokens(1 + i);
        must(tern_session_generate(one, &o, NULL, &err), &err);
        tern_session_close(&one);
        o = wanted(&beside[i], 5 + 4 * i);
        s[i] = read_tokens(1 + i);
        must(tern_answer_open(s[i], &o, &a[i], &err), &err);
    }
    tern_answer *second;
    assert_int_equal(tern_answer_open(s[0], NULL, &second, &err), TERN_E_INVALID); /* one at a time */
    assert_int_equal(tern_answers_step((tern_answer *[]){a[0], a[0]}, 2, &err), TERN_E_INVALID);
    assert_int_equal(tern_answers_step(a, 0, &err), TERN_E_INVALID);
    for (;;) {
        size_t n = 0;
        for (int i = 0; i < 3; i++)
            if (tern_answer_more(a[i])) go[n++] = a[i];
        if (!n) break;
        must(tern_answers_step(go, n, &err), &err);
    }
    assert_int_equal(tern_answers_step(a, 1, &err), TERN_E_INVALID); /* it has no more */
    for (int i = 0; i < 3; i++) {
        tern_generate_result r;
        must(tern_answer_close(&a[i], &r, &err), &err);
        assert_null(a[i]);
        assert_int_equal(r.n_tokens, 5 + 4 * i);
        assert_int_equal(beside[i].n, alone[i].n);
        assert_memory_equal(beside[i].ids, alone[i].ids, (size_t)alone[i].n * sizeof(int32_t));
        tern_session_close(&s[i]);
    }
}

/* The last token of a limit, left out of the session: the same answers, with drafts too, and a session that ends before
 * the token and goes on with it as if nothing had been left. */
static void the_last_token_is_left(void **state) {
    (void)state;
    enum { PROMPT = 9, MORE = 4 };
    static const char *const drafts[] = {"none", "all"};
    tern_error err;
    for (int32_t n = 1; n <= 24; n++)
        for (int d = 0; d < 2; d++) {
            fixture_heard whole, left, after;
            tern_generate_options o;
            int32_t text[PROMPT + 24];
            fixture_hear(&o, n + MORE, &whole);
            tern_session *one = read_tokens(1), *other = read_tokens(1);
            must(tern_session_generate(one, &o, NULL, &err), &err);
            assert_int_equal(tern_session_length(one),
                             PROMPT + n + MORE); /* without the option it is evaluated */
            fixture_hear(&o, n, &left);
            o.leave_last = true;
            o.draft = drafts[d];
            o.draft_eager = true;
            must(tern_session_generate(other, &o, NULL, &err), &err);
            assert_int_equal(left.n, n);
            assert_memory_equal(left.ids, whole.ids, (size_t)n * sizeof(int32_t));
            assert_int_equal(tern_session_length(other), PROMPT + n - 1);
            memcpy(text, tern_session_tokens(one), (size_t)(PROMPT + n) * sizeof *text);
            must(tern_session_prefill(other, text, (size_t)(PROMPT + n), &err), &err);
            fixture_hear(&o, MORE, &after);
            must(tern_session_generate(other, &o, NULL, &err), &err);
            assert_memory_equal(after.ids, whole.ids + n, MORE * sizeof(int32_t));
            tern_session_close(&one);
            tern_session_close(&other);
        }
}

typedef struct bytes {
    unsigned char *p;
    size_t n, most;
} bytes;

static bool take_bytes(void *user, const void *p, size_t n) {
    bytes *b = user;
    if (n > b->most - b->n) return false;
    memcpy(b->p + b->n, p, n);
    b->n += n;
    return true;
}

/* Memory has the bytes of the file; a session goes on from them as from the file. What is cut, changed or refused is an error. */
static void to_memory_and_back(void **state) {
    (void)state;
    tern_error err;
    char path[FIXTURE_PATH + 16];
    bytes b = {.p = malloc(1 << 20), .most = 1 << 20};
    tern_session *s = read_tokens(2), *other = read_tokens(5);
    snprintf(path, sizeof path, "%s.session", model);
    must(tern_session_save(s, path, &err), &err);
    must(tern_session_save_to(s, take_bytes, &b, &err), &err);
    FILE *f = fopen(path, "rb");
    unsigned char *file = malloc(b.n + 1);
    assert_int_equal(fread(file, 1, b.n + 1, f), b.n);
    fclose(f);
    assert_memory_equal(file, b.p, b.n);
    must(tern_session_load_from(other, b.p, b.n, &err), &err);
    fixture_heard x, y;
    tern_generate_options o = wanted(&x, 6);
    must(tern_session_generate(s, &o, NULL, &err), &err);
    o = wanted(&y, 6);
    must(tern_session_generate(other, &o, NULL, &err), &err);
    assert_memory_equal(x.ids, y.ids, sizeof x.ids);
    for (size_t n = 0; n < b.n; n += 1 + n / 3)
        assert_int_not_equal(tern_session_load_from(other, b.p, n, &err), TERN_OK);
    b.p[b.n / 2] ^= 1;
    assert_int_equal(tern_session_load_from(other, b.p, b.n, &err), TERN_E_FORMAT);
    bytes small = {.p = b.p, .most = b.n - 1};
    assert_int_equal(tern_session_save_to(s, take_bytes, &small, &err), TERN_E_CANCELLED);
    free(file);
    free(b.p);
    tern_session_close(&s);
    tern_session_close(&other);
}

/* Against sorting all of the logits and a softmax of all of them. */
static void the_likeliest(void **state) {
    (void)state;
    enum { K = 5 };
    tern_model_info info;
    tern_engine_info(e, &info);
    tern_session *s = read_tokens(3);
    const float *logits = tern_session_logits(s);
    int32_t ids[K];
    float logprobs[K];
    assert_int_equal(tern_session_likeliest(s, 0, ids, logprobs), 0);
    assert_int_equal(tern_session_likeliest(s, K, ids, logprobs), K);
    double sum = 0;
    for (int32_t i = 0; i < info.n_vocab; i++) sum += exp((double)logits[i]);
    for (int k = 0; k < K; k++) {
        int before = 0;
        for (int32_t i = 0; i < info.n_vocab; i++)
            before += logits[i] > logits[ids[k]] || (logits[i] == logits[ids[k]] && i < ids[k]);
        assert_int_equal(before, k);
        assert_true(fabs((double)logprobs[k] - ((double)logits[ids[k]] - log(sum))) < 1e-5);
    }
    int32_t *all = malloc((size_t)info.n_vocab * sizeof *all);
    float *of_all = malloc((size_t)info.n_vocab * sizeof *of_all);
    assert_int_equal(tern_session_likeliest(s, 1u << 30, all, of_all), info.n_vocab);
    free(all);
    free(of_all);
    tern_session_close(&s);
}

static void compiled_grammars(void **state) {
    (void)state;
    static const char yes[] = "root ::= (\"yes\" | \"no\") \" \"?";
    tern_error err;
    tern_grammar *g = NULL;
    assert_int_equal(tern_grammar_open(e, "root ::= nothing", NULL, &g, &err), TERN_E_INVALID);
    assert_null(g);
    assert_int_equal(tern_grammar_open(e, yes, "{}", &g, &err), TERN_E_INVALID);
    must(tern_grammar_open(e, yes, NULL, &g, &err), &err);
    fixture_heard by_text, compiled;
    for (int round = 0; round < 3; round++) { /* one grammar, many answers */
        tern_session *s = read_tokens(1 + round), *t = read_tokens(1 + round);
        tern_generate_options o = wanted(&by_text, 12);
        o.ignore_end = false;
        o.grammar = yes;
        must(tern_session_generate(s, &o, NULL, &err), &err);
        tern_generate_options c = wanted(&compiled, 12);
        c.ignore_end = false;
        c.compiled = g;
        must(tern_session_generate(t, &c, NULL, &err), &err);
        assert_int_equal(compiled.n, by_text.n);
        assert_true(compiled.n > 0);
        assert_memory_equal(compiled.ids, by_text.ids, (size_t)by_text.n * sizeof(int32_t));
        c.grammar = yes; /* both */
        assert_int_equal(tern_session_generate(t, &c, NULL, &err), TERN_E_INVALID);
        tern_session_close(&s);
        tern_session_close(&t);
    }
    /* One answer has it for itself until it is closed. */
    tern_session *s = read_tokens(1), *t = read_tokens(2);
    tern_answer *a, *b;
    tern_generate_options o = wanted(&compiled, 12);
    o.ignore_end = false;
    o.compiled = g;
    must(tern_answer_open(s, &o, &a, &err), &err);
    must(tern_answer_open(t, &o, &b, &err), &err);
    assert_int_equal(tern_answer_close(&b, NULL, &err), TERN_E_INVALID);
    assert_non_null(strstr(err.message, "in use"));
    must(tern_answer_close(&a, NULL, &err), &err);
    must(tern_answer_open(t, &o, &b, &err), &err);
    must(tern_answer_close(&b, NULL, &err), &err);
    tern_session_close(&s);
    tern_session_close(&t);
    tern_grammar_close(&g);
    assert_null(g);
}

static double counter(const tern_session *s, const char *name) {
    double v;
    const char *is;
    for (size_t i = 0; (is = tern_session_counter(s, i, &v)); i++)
        if (!strcmp(is, name)) return v;
    fail_msg("there is no counter %s", name);
    return 0;
}

static void item_by_item(void **state) {
    (void)state;
    tern_error err;
    tern_session_options so;
    tern_session *s;
    int32_t ids[40];
    for (int i = 0; i < 40; i++) ids[i] = 1 + i % 4;
    tern_session_options_defaults(&so);
    so.draft = "lookup";
    must(tern_session_open(e, &so, &s, &err), &err);
    must(tern_session_prefill(s, ids, 40, &err), &err);
    fixture_heard t;
    tern_generate_options o = wanted(&t, 20);
    o.draft_eager = true;
    must(tern_session_generate(s, &o, NULL, &err), &err);
    assert_true(counter(s, "kv_bytes") > 0);
    assert_true(counter(s, "draft_forwards") > 0 && counter(s, "draft_rows") >= counter(s, "draft_forwards"));
    assert_true(counter(s, "draft_rows") == counter(s, "draft_copied") + counter(s, "draft_forwards"));
    char buf[64];
    bool found = false;
    const char *name;
    tern_model_info info;
    tern_engine_info(e, &info);
    for (size_t i = 0; (name = tern_engine_property(e, i, buf, sizeof buf)); i++)
        if (!strcmp(name, "n_embd")) found = atoi(buf) == info.n_embd;
    assert_true(found);
    tern_session_close(&s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(answers_in_steps), cmocka_unit_test(to_memory_and_back),
        cmocka_unit_test(the_likeliest),    cmocka_unit_test(compiled_grammars),
        cmocka_unit_test(item_by_item),     cmocka_unit_test(the_last_token_is_left),
    };
    return cmocka_run_group_tests_name("engine/door", tests, setup, teardown);
}
