/* Answers under a grammar: they keep to it, and drafts change nothing about them. */
#include "base/rng.h"
#include "session/session.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fixture/fixture.h"
#include "fixture/scarce.h"

static char gguf[FIXTURE_PATH];
static tern_engine *e;

static int setup(void **state) {
    (void)state;
    tern_options o;
    fixture_model(gguf, "m.gguf", "tiny-qwen2", 3, TN_F32);
    tn_options_defaults(&o);
    o.n_threads = 2;
    e = fixture_engine(gguf, &o);
    return 0;
}

static int teardown(void **state) {
    (void)state;
    tern_engine_close(&e);
    return 0;
}

typedef struct heard {
    char text[16384];
    size_t n;
    int32_t ids[600], n_ids;
    tern_generate_result res;
} heard;

static bool on_token(void *user, int32_t token, const char *text, size_t n, float logprob) {
    heard *h = user;
    (void)logprob;
    assert_true(h->n + n < sizeof h->text && h->n_ids < 600);
    memcpy(h->text + h->n, text, n);
    h->text[h->n += n] = 0;
    if (token >= 0) h->ids[h->n_ids++] = token;
    return true;
}

static tern_session *open_session(void) { return fixture_session(e, 700, NULL); }

static void answer(tern_session *s, const int32_t *prompt, size_t n, tern_generate_options *o, heard *h) {
    tern_error err = {0};
    h->n = 0;
    h->n_ids = 0;
    h->text[0] = 0;
    o->on_token = on_token;
    o->user = h;
    must(tern_session_prefill(s, prompt, n, &err), &err);
    must(tern_session_generate(s, o, &h->res, &err), &err);
}

static const struct {
    const char *text;
    bool schema;
} all[] = {
    {"root ::= \"yes\" | \"no\"", false},
    {"root ::= ([a-z]{1,9} [ ,]){2,12} \".\"", false},
    {"root ::= \"\xe2\x82\xac\" [\\u00e0-\\u00ff\\u4e00-\\u9fff]{3,9} \"!\"", false},
    {"root ::= \"(\" root \")\" | \"x\"{1,4}", false},
    {"{\"type\":\"object\",\"properties\":{\"name\":{\"type\":\"string\",\"maxLength\":12},\"n\":{\"type\":"
     "\"integer\",\"minimum\":"
     "3,\"maximum\":999},\"list\":{\"type\":\"array\",\"items\":{\"enum\":[\"a\",\"bc\",null]},\"maxItems\":"
     "4}},\"required\":[\"name\",\"n\","
     "\"list\"],\"additionalProperties\":false}",
     true},
    {"{\"type\":\"array\",\"items\":{\"type\":\"boolean\"},\"minItems\":6,\"maxItems\":30}", true},
};

static void kept(void **state) {
    (void)state;
    tern_session *plain = open_session(), *drafted = open_session();
    tn_ctx ctx;
    tn_ctx_init(&ctx, NULL);
    tn_rng rng = {17};
    static heard a, b;
    int ended = 0, n_accepted = 0;
    for (int i = 0; i < 90; i++) {
        size_t k = (size_t)i % (sizeof all / sizeof *all);
        int32_t prompt[40];
        size_t n = 4 + tn_rng_below(&rng, 30);
        for (size_t j = 0; j < n; j++)
            prompt[j] =
                (int32_t)tn_rng_below(&rng, tn_rng_below(&rng, 2) ? 60 : (uint64_t)e->model->h.n_vocab);
        tern_generate_options o;
        tern_generate_options_defaults(&o);
        o.max_tokens = 150;
        *(all[k].schema ? &o.json_schema : &o.grammar) = all[k].text;
        o.sampling.temperature = tn_rng_below(&rng, 2) ? 0 : 1;
        o.sampling.top_k = tn_rng_below(&rng, 2) ? 40 : 0;
        o.sampling.seed = tn_rng_u64(&rng);
        answer(plain, prompt, n, &o, &a);
        static const char *const drafts[] = {"lookup", "sam", "all", "sam,calibrated"};
        o.draft = drafts[tn_rng_below(&rng, 4)];
        o.draft_eager = tn_rng_below(&rng, 2);
        answer(drafted, prompt, n, &o, &b);
        if (a.n_ids != b.n_ids || memcmp(a.ids, b.ids, (size_t)a.n_ids * sizeof *a.ids) ||
            strcmp(a.text, b.text) || a.res.reason != b.res.reason)
            fail_msg("case %d, %s: '%s' instead of '%s'", i, o.draft, b.text, a.text);
        tern_error err = {0};
        tn_grammar *g;
        tern_status st = all[k].schema
                             ? tn_grammar_open_schema(&ctx, all[k].text, strlen(all[k].text), &g, &err)
                             : tn_grammar_open_gbnf(&ctx, all[k].text, strlen(all[k].text), &g, &err);
        must(st, &err);
        bool whole = tn_grammar_accepts(g, a.text, a.n);
        if (a.res.reason == TERN_STOP_END && !whole)
            fail_msg("'%s' is not of the grammar %s", a.text, all[k].text);
        assert_true(a.res.reason == TERN_STOP_END || a.res.reason == TERN_STOP_LENGTH);
        ended += a.res.reason == TERN_STOP_END;
        tn_grammar_close(&g);
    }
    tn_draft_stats ds;
    tn_session_draft_stats(drafted, &ds);
    n_accepted = (int)ds.n_accepted;
    printf("%d of 90 answers ended, %d drafts accepted\n", ended, n_accepted);
    assert_true(ended >= 60);
    assert_true(n_accepted > 50); /* the test is of drafts that are taken */
    tern_session_close(&plain);
    tern_session_close(&drafted);
}

/* Whatever the limit is, what a schema opened is closed within it, drafts or none; and the reason says that it was
 * the limit. */
static void closed(void **state) {
    (void)state;
    tern_session *plain = open_session(), *drafted = open_session(), *small = fixture_session(e, 90, NULL);
    static const struct {
        const char *schema;
        int32_t least; /* more tokens than the shortest text has */
    } of[] = {
        {"{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"string\"}},\"required\":[\"a\"]}", 24},
        {"{\"type\":\"array\",\"items\":{\"type\":\"array\",\"items\":{\"type\":\"string\"}}}", 8},
        {"{\"type\":\"string\",\"minLength\":5}", 8},
    };
    static heard a, b;
    tn_ctx ctx;
    tn_ctx_init(&ctx, NULL);
    int cut = 0;
    for (int i = 0; i < 120; i++) {
        size_t k = (size_t)i % (sizeof of / sizeof *of);
        int32_t prompt[40], n = 4 + i % 30;
        for (int32_t j = 0; j < n; j++) prompt[j] = (i * 37 + j * 11) % 250;
        tern_generate_options o;
        tern_generate_options_defaults(&o);
        o.max_tokens = i % 4 ? of[k].least + i % 20 : -1; /* -1: the context is the limit */
        o.json_schema = of[k].schema;
        o.sampling.temperature = 1;
        o.sampling.top_k = 0;
        o.sampling.seed = (uint64_t)i;
        answer(o.max_tokens < 0 ? small : plain, prompt, (size_t)n, &o, &a);
        if (o.max_tokens >= 0) {
            o.draft = "all";
            o.draft_eager = i & 1;
            answer(drafted, prompt, (size_t)n, &o, &b);
            assert_string_equal(a.text, b.text);
            assert_int_equal(a.res.reason, b.res.reason);
            assert_true(a.n_ids <= o.max_tokens);
        }
        tern_error err = {0};
        tn_grammar *g;
        must(tn_grammar_open_schema(&ctx, of[k].schema, strlen(of[k].schema), &g, &err), &err);
        if (!tn_grammar_accepts(g, a.text, a.n)) fail_msg("case %d: '%s' is cut", i, a.text);
        if (a.res.reason != TERN_STOP_END) {
            assert_int_equal(a.res.reason, o.max_tokens < 0 ? TERN_STOP_CONTEXT : TERN_STOP_LENGTH);
            cut++;
        }
        tn_grammar_close(&g);
    }
    printf("%d of 120 answers were closed by a limit\n", cut);
    assert_true(cut > 40);
    tern_session_close(&plain);
    tern_session_close(&drafted);
    tern_session_close(&small);
}

/* The grammar begins after the thoughts, named or opened by the prompt. */
static void thoughts(void **state) {
    (void)state;
    tern_session *s = open_session();
    static heard h;
    for (int named = 0; named < 2; named++) {
        const char *text = named ? "Q" : "Q<think>\n";
        int32_t prompt[64];
        size_t n;
        tern_error err = {0};
        must(tern_tokenize(e, text, strlen(text), false, true, prompt, 64, &n, &err), &err);
        int thought = 0;
        for (uint64_t seed = 0; seed < 30; seed++) {
            tern_generate_options o;
            tern_generate_options_defaults(&o);
            o.max_tokens = 400;
            o.grammar = "root ::= \"yes\" | \"no\"";
            o.grammar_after = named ? "e" : NULL;
            o.sampling.temperature = 1;
            o.sampling.top_k = 0;
            o.sampling.seed = seed;
            answer(s, prompt, n, &o, &h);
            if (!named) { /* a random model never closes its thought: the limit does */
                assert_int_equal(h.res.reason, TERN_STOP_LENGTH);
                if (!(h.n > 2 && !strcmp(h.text + h.n - 2, "no")) &&
                    !(h.n > 3 && !strcmp(h.text + h.n - 3, "yes")))
                    fail_msg("seed %d: the thought is not closed", (int)seed);
                continue;
            }
            if (h.res.reason == TERN_STOP_LENGTH) continue;
            static char whole[20000]; /* with the text of control tokens, where the word may be */
            size_t k = 0;
            for (int32_t i = 0; i < h.n_ids; i++)
                k += tern_token_bytes(e, h.ids[i], true, whole + k, sizeof whole - 1 - k);
            whole[k] = 0;
            char *at = memchr(whole, 'e', k);
            assert_non_null(at);
            at += 1 + strspn(at + 1, " \n\r\t");
            if (strcmp(at, "yes") && strcmp(at, "no")) fail_msg("'%s'", whole);
            thought++;
        }
        assert_true(!named || thought > 5);
    }
    tern_session_close(&s);
}

/* What stands before the stop string that is whole first comes out, in whatever order stop strings are given
 * and however much of a longer one has come. */
static void stops_in_any_order(void **state) {
    (void)state;
    static const struct {
        const char *answer, *stops[3], *text, *by;
    } cases[] = {
        {"abxyEND", {"END", "xyENDz"}, "abxy", "END"},
        {"abxyENDz", {"END", "xyENDz"}, "abxy", "END"},    /* END is whole first */
        {"abxyEND", {"END", "xyEND", "D"}, "ab", "xyEND"}, /* all end there: the longest */
        {"aaab", {"aab", "aaaa"}, "a", "aab"},             /* a partial match begins earlier */
        {"abcabd", {"abd", "abcabe"}, "abc", "abd"},
        {"abxyEN", {"END", "xyENDz"}, "abxyEN", NULL}, /* held back, then let go */
    };
    tern_session *s = open_session();
    static heard h;
    int32_t prompt[] = {1, 2, 3};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int turned = 0; turned < 2; turned++) {
            const char *stops[4] = {0};
            int n = 0;
            while (n < 3 && cases[i].stops[n]) n++;
            for (int k = 0; k < n; k++) stops[k] = cases[i].stops[turned ? n - 1 - k : k];
            char grammar[64];
            snprintf(grammar, sizeof grammar, "root ::= \"%s\"", cases[i].answer);
            tern_generate_options o;
            tern_generate_options_defaults(&o);
            o.grammar = grammar;
            o.stop = stops;
            answer(s, prompt, 3, &o, &h);
            assert_string_equal(h.text, cases[i].text);
            assert_int_equal(h.res.reason, cases[i].by ? TERN_STOP_STRING : TERN_STOP_END);
            if (cases[i].by) assert_string_equal(s->stopped_by, cases[i].by);
        }
    tern_session_close(&s);
}

static void errors(void **state) {
    (void)state;
    static const struct {
        const char *grammar, *schema, *after;
        bool ignore_end;
        const char *message;
    } bad[] = {
        {"root ::= \"a\"", "{}", NULL, false, "want one of them"},
        {NULL, NULL, "x", false, "goes with a grammar"},
        {"root ::= \"a\"", NULL, NULL, true, "ignore_end"},
        {"root ::= a", NULL, NULL, false, "not defined"},
        {NULL, "{\"not\":{\"minLength\":1}}", NULL, false, "'not' is not supported"},
    };
    tern_session *s = open_session();
    int32_t prompt[] = {1, 2, 3};
    tern_error err = {0};
    must(tern_session_prefill(s, prompt, 3, &err), &err);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        tern_generate_options o;
        tern_generate_options_defaults(&o);
        o.grammar = bad[i].grammar;
        o.json_schema = bad[i].schema;
        o.grammar_after = bad[i].after;
        o.ignore_end = bad[i].ignore_end;
        tern_generate_result r;
        assert_int_not_equal(tern_session_generate(s, &o, &r, &err), TERN_OK);
        if (!strstr(err.message, bad[i].message)) fail_msg("%s", err.message);
    }
    static heard h; /* and the session goes on */
    tern_generate_options o;
    tern_generate_options_defaults(&o);
    o.grammar = "root ::= \"b\"";
    answer(s, prompt, 3, &o, &h);
    assert_string_equal(h.text, "b");
    tern_session_close(&s);
}

/* Memory that is missing while a grammar is followed ends that answer. The session keeps what it compiled for the next text
 * of the same schema: that one must be answered, and as if nothing had been. */
static void after_missing_memory(void **state) {
    (void)state;
    static const char schema[] = "{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"integer\"},\"b\":{"
                                 "\"enum\":[\"x\",\"yes\"]}},\"required\":[\"a\",\"b\"]}";
    const int32_t prompt[] = {1, 2, 3};
    heard *h = malloc(sizeof *h), *want = malloc(sizeof *want);
    scarce m = {.left = -1};
    tern_hooks hooks;
    tern_options eo;
    tern_error err = {0};
    int n_failed = 0;
    assert_true(h && want);
    scarce_hooks(&hooks, &m);
    tn_options_defaults(&eo);
    eo.n_threads = 1;
    eo.hooks = &hooks;
    tern_engine *own = fixture_engine(gguf, &eo);
    for (long at = -1, failed = 1; failed; at++) {
        tern_session *s = fixture_session(own, 256, "none");
        tern_generate_options o;
        tern_generate_options_defaults(&o);
        o.json_schema = schema;
        o.max_tokens = 40;
        o.sampling.temperature = 0;
        o.on_token = on_token;
        o.user = h;
        h->n = 0, h->n_ids = 0, h->text[0] = 0;
        must(tern_session_prefill(s, prompt, 3, &err), &err);
        m.left = at;
        tern_status st = tern_session_generate(s, &o, &h->res, &err);
        failed = at < 0 || m.left < 0;
        m.left = -1;
        if (at < 0) *want = *h;
        n_failed += st != TERN_OK;
        if (st != TERN_OK) {
            assert_int_equal(st, TERN_E_MEMORY);
            answer(s, prompt, 3, &o, h);
        }
        assert_string_equal(h->text, want->text);
        tern_session_close(&s);
    }
    assert_true(n_failed > 20);
    tern_engine_close(&own);
    free(h);
    free(want);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(kept),     cmocka_unit_test(closed),
                                       cmocka_unit_test(thoughts), cmocka_unit_test(stops_in_any_order),
                                       cmocka_unit_test(errors),   cmocka_unit_test(after_missing_memory)};
    return cmocka_run_group_tests(tests, setup, teardown);
}
