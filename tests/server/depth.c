/* Depth as a class: every reader of texts from outside gets brackets in brackets, 10 to 10,000,000 of them, on
 * a stack that is half as large as that of any thread of ours. It reads them or refuses them, and comes back. */
#include "base/json.h"
#include "formats/safetensors.h"
#include "server/rag_body.h"
#include "server/request.h"
#include "store/documents.h"
#include "store/extract.h"
#include "text/grammar/grammar.h"
#include "text/hf.h"
#include "text/jinja/jinja.h"
#include "text/toolcall.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { STACK = 4 << 20 }; /* frames have redzones there */
#else
enum { STACK = 256 << 10 };
#endif

static tn_ctx ctx;

/* ---- the readers ----------------------------------------------------------------------------------- */

/* A reader returns TERN_OK or why it refuses. */
typedef tern_status (*reader)(const char *text, size_t n, tern_error *err);

static tern_status json(const char *text, size_t n, tern_error *err) {
    json_error_t je;
    json_t *v = tn_json_parse(text, n, JSON_DECODE_ANY | JSON_REJECT_DUPLICATES, &je),
           *copy = json_deep_copy(v);
    char *again = NULL;
    if (!v) return tn_fail(err, TERN_E_INVALID, "%s", je.text);
    tern_status st = tn_json_text(copy, JSON_ENCODE_ANY, &again, err);
    free(again);
    json_decref(copy);
    json_decref(v);
    return st;
}

static tern_status request_of(tn_api api, const char *text, size_t n, tern_error *err) {
    tn_request r;
    TN_TRY(tn_request_read(api, text, n, &r, err));
    tn_request_free(&r);
    return TERN_OK;
}
static tern_status chat(const char *text, size_t n, tern_error *err) {
    return request_of(TN_API_CHAT, text, n, err);
}
static tern_status completion(const char *text, size_t n, tern_error *err) {
    return request_of(TN_API_COMPLETIONS, text, n, err);
}
static tern_status messages(const char *text, size_t n, tern_error *err) {
    return request_of(TN_API_MESSAGES, text, n, err);
}

static tern_status rag(const char *text, size_t n, tern_error *err) {
    json_t *body;
    const char *question;
    TN_TRY(tn_rag_read_question(text, n, &body, &question, err));
    json_decref(body);
    return TERN_OK;
}

static tern_status close_grammar(tern_status st, tn_grammar *g) {
    if (st == TERN_OK) {
        (void)tn_grammar_accepts(g, "[[[[", 4);
        tn_grammar_close(&g);
    }
    return st;
}
static tern_status schema(const char *text, size_t n, tern_error *err) {
    tn_grammar *g;
    tern_status st = tn_grammar_open_schema(&ctx, text, n, &g, err);
    return close_grammar(st, g);
}
static tern_status gbnf(const char *text, size_t n, tern_error *err) {
    tn_grammar *g;
    tern_status st = tn_grammar_open_gbnf(&ctx, text, n, &g, err);
    return close_grammar(st, g);
}

static tern_status tokenizer(const char *text, size_t n, tern_error *err) {
    tn_tokenizer *t;
    TN_TRY(tn_hf_parse(&ctx, text, n, &t, err));
    tn_tokenizer_close(&t);
    return TERN_OK;
}

static tern_status template_of(const char *text, size_t n, tern_error *err) {
    tn_segments out;
    json_t *vars = tn_json_pack("{s:{s:s}}", "m", "a", "b");
    const tn_jinja_input in = {.source = text, .n_source = n, .variables = vars};
    tn_segments_init(&out, &ctx);
    tern_status st = tn_jinja_render(&ctx, &in, &out, err);
    tn_segments_free(&out);
    json_decref(vars);
    return st;
}

static bool ignore(void *user, const char *p, size_t n) {
    (void)user, (void)p, (void)n;
    return true;
}
static bool ignore_call(void *user, const char *name, const char *arguments) {
    (void)user, (void)name, (void)arguments;
    return true;
}
/* The answer of a model, in every markup of calls. */
static tern_status calls(const char *text, size_t n, tern_error *err) {
    json_t *tools = tn_json_pack("{s:s, s:{s:s}}", "type", "function", "function", "name", "f"),
           *list = json_array();
    tn_json_append(&list, tools);
    for (int form = 0; form <= TN_CALLS_LFM2 || form <= TN_CALLS_GENERIC || form <= TN_CALLS_HARMONY;
         form++) {
        tn_answer *a;
        const tn_answer_options o = {.form = {.calls = (tn_call_form)form},
                                     .tools = list,
                                     .forced = true,
                                     .on = {ignore, ignore, ignore_call, NULL}};
        if (tn_answer_open(&ctx, &o, &a, err) != TERN_OK) continue;
        (void)(tn_answer_put(a, text, n) && tn_answer_end(a));
        tn_answer_close(&a);
    }
    json_decref(list);
    return TERN_OK;
}

static tern_status document(const char *name, const char *text, size_t n, tern_error *err) {
    char *out;
    size_t n_out;
    const char *why;
    TN_TRY(tn_document_text(&ctx, name, text, n, 1 << 20, &out, &n_out, &why, err));
    tn_free(&ctx, out);
    return TERN_OK;
}
static tern_status html(const char *text, size_t n, tern_error *err) {
    return document("a.html", text, n, err);
}
static tern_status mail(const char *text, size_t n, tern_error *err) {
    return document("a.eml", text, n, err);
}

/* ---- the nesting ------------------------------------------------------------------------------------ */

static const struct nest {
    const char *what;
    reader read;
    const char *before, *open, *middle, *close, *after;
} nests[] = {
    {"JSON, lists", json, "", "[", "1", "]", ""},
    {"JSON, objects", json, "", "{\"a\":", "1", "}", ""},
    {"JSON that does not end", json, "", "[", "", "", ""},
    {"body of a chat", chat, "", "[", "", "]", ""},
    {"messages", chat, "{\"messages\":", "[", "", "]", "}"},
    {"kwargs", chat, "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"chat_template_kwargs\":{\"a\":",
     "[", "1", "]", "}}"},
    {"tools", chat,
     "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"tools\":[{\"type\":\"function\",\"function\":{"
     "\"name\":\"f\","
     "\"parameters\":",
     "{\"type\":\"array\",\"items\":", "{}", "}", "}}]}"},
    {"schema of a request", completion, "{\"prompt\":\"x\",\"json_schema\":", "{\"items\":", "{}", "}", "}"},
    {"tools of messages", messages,
     "{\"max_tokens\":1,\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"tools\":[{\"name\":\"f\","
     "\"input_schema\":",
     "{\"items\":", "{}", "}", "}]}"},
    {"question", rag, "{\"question\":\"x\",\"a\":", "[", "", "]", "}"},
    {"schema, items", schema, "", "{\"type\":\"array\",\"items\":", "{\"type\":\"null\"}", "}", ""},
    {"schema, anyOf", schema, "", "{\"anyOf\":[", "{\"type\":\"null\"}", "]}", ""},
    {"schema, allOf", schema, "", "{\"allOf\":[", "{\"type\":\"null\"}", "]}", ""},
    {"schema, const", schema, "{\"const\":", "[", "1", "]", "}"},
    {"schema, enum", schema, "{\"type\":\"array\",\"enum\":[", "[", "1", "]", "]}"},
    {"schema, pattern", schema, "{\"type\":\"string\",\"pattern\":\"", "(", "a", ")", "\"}"},
    {"gbnf, brackets", gbnf, "root ::= ", "(", "\"a\"", ")", ""},
    {"gbnf, repeats", gbnf, "root ::= ", "(", "\"a\"", "){1,2}", ""},
    {"tokenizer.json", tokenizer, "{\"model\":", "{\"a\":", "1", "}", "}"},
    {"normalizers", tokenizer, "{\"normalizer\":", "{\"type\":\"Sequence\",\"normalizers\":[", "", "]}", "}"},
    {"a call in JSON", calls, "{\"name\":\"f\",\"arguments\":", "{\"a\":", "1", "}", "}"},
    {"a call in tags", calls, "<tool_call>{\"name\":\"f\",\"arguments\":", "{\"a\":", "1", "}",
     "}</tool_call>"},
    {"a call in Python", calls, "<|tool_call_start|>[f(a=", "[", "1", "]", ")]<|tool_call_end|>"},
    {"a call of Gemma", calls, "<start_function_call>call:f{a:", "{a:", "1", "}", "}<end_function_call>"},
    {"HTML", html, "<html>", "<div>", "x", "</div>", "</html>"},
    {"HTML, lists", html, "", "<ul><li>", "x", "", ""},
    {"mail", mail, "From: a\n", "Content-Type: message/rfc822\n\nFrom: a\n", "\nx", "", ""},
    {"template, brackets", template_of, "{{ ", "(", "1", ")", " }}"},
    {"template, lists", template_of, "{{ ", "[", "1", "]", " }}"},
    {"template, objects", template_of, "{{ ", "{1:", "1", "}", " }}"},
    {"template, indices", template_of, "{{ m", "[m", "", "]", " }}"},
    {"template, minus", template_of, "{{ ", "- ", "1", "", " }}"},
    {"template, not", template_of, "{{ ", "not ", "1", "", " }}"},
    {"template, sums", template_of, "{{ 1", "+1", "", "", " }}"},
    {"template, powers", template_of, "{{ 1", "**1", "", "", " }}"},
    {"template, and", template_of, "{{ 1", " and 1", "", "", " }}"},
    {"template, conditions", template_of, "{{ 1", " if 1 else 1", "", "", " }}"},
    {"template, attributes", template_of, "{{ m", ".a", "", "", " }}"},
    {"template, filters", template_of, "{{ 'x'", "|upper", "", "", " }}"},
    {"template, tests", template_of, "{{ 1", " is defined", "", "", " }}"},
    {"template, blocks of filters", template_of, "{% filter upper", "|upper", "", "", " %}x{% endfilter %}"},
    {"template, set with filters", template_of, "{% set x ", "|upper", "", "", " %}x{% endset %}"},
    {"template, filters of map", template_of, "{{ 'x'|map('map'", ",'map'", "", "", ",'upper')|list }}"},
    {"template, if", template_of, "", "{% if 1 %}", "x", "{% endif %}", ""},
    {"template, elif", template_of, "{% if 0 %}", "{% elif 0 %}", "x", "", "{% endif %}"},
    {"template, for", template_of, "", "{% for a in [1] %}", "x", "{% endfor %}", ""},
    {"template, with", template_of, "", "{% with a=1 %}", "x", "{% endwith %}", ""},
    {"template, macros", template_of, "", "{% macro a() %}", "x", "{% endmacro %}", ""},
    {"template, calls", template_of, "{% macro f() %}{{ caller() }}{% endmacro %}", "{% call f() %}", "x",
     "{% endcall %}", ""},
    {"template, targets", template_of, "{% for ", "(", "a", ",)", " in [1] %}{% endfor %}"},
    {"template, a macro in itself", template_of, "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "", "",
     "", ""},
    {"template, values that nest", template_of,
     "{% set n = namespace(x=[]) %}{% for i in range(3000) %}{% set n.x = [n.x] %}{% endfor %}{{ n.x }}{{ "
     "n.x|tojson }}",
     "", "", "", ""},
    {"template, values that are compared", template_of,
     "{% set n = namespace(x=1, y=1) %}{% for i in range(300) %}{% set n.x = [n.x, n.x] %}{% set n.y = [n.y, "
     "n.y] %}{% endfor %}"
     "{{ n.x == n.y }}{{ n.x < n.y }}",
     "", "", "", ""},
};

typedef struct job {
    const struct nest *nest;
    char *text;
    size_t n;
    tern_status st;
    tern_error err;
} job;

static void *read_it(void *user) {
    job *j = user;
    j->st = j->nest->read(j->text, j->n, &j->err);
    return NULL;
}

static void build(job *j, size_t deep) {
    const struct nest *k = j->nest;
    size_t n = strlen(k->before) + strlen(k->middle) + strlen(k->after) +
               deep * (strlen(k->open) + strlen(k->close)) + 1;
    char *to = j->text = malloc(n);
    assert_non_null(to);
    to = stpcpy(to, k->before);
    for (size_t i = 0; i < deep; i++) to = stpcpy(to, k->open);
    to = stpcpy(to, k->middle);
    for (size_t i = 0; i < deep; i++) to = stpcpy(to, k->close);
    to = stpcpy(to, k->after);
    j->n = (size_t)(to - j->text);
}

static void everywhere(void **state) {
    (void)state;
    static const size_t depths[] = {10, 60, 100, 127, 128, 129, 200, 390, 2000, 12000, 100000, 10000000};
    pthread_attr_t small;
    pthread_attr_init(&small);
    assert_int_equal(pthread_attr_setstacksize(&small, STACK), 0);
    for (size_t i = 0; i < sizeof nests / sizeof *nests; i++) {
        for (size_t k = 0; k < sizeof depths / sizeof *depths && (k == 0 || *nests[i].open); k++) {
            job j = {.nest = &nests[i]};
            pthread_t t;
            if (depths[k] > 1000000 && (nests[i].read == template_of || strlen(nests[i].open) > 2)) continue;
            build(&j, depths[k]);
            print_message("%s, %zu deep\n", nests[i].what, depths[k]);
            assert_int_equal(pthread_create(&t, &small, read_it, &j), 0);
            assert_int_equal(pthread_join(t, NULL), 0);
            if (j.st == TERN_E_MEMORY) fail_msg("%s, %zu deep: %s", nests[i].what, depths[k], j.err.message);
            free(j.text);
        }
    }
    pthread_attr_destroy(&small);
}

/* The limit itself: 128 is read, 129 is refused with words that tell it. */
static void the_limit(void **state) {
    (void)state;
    char text[2 * TN_JSON_MAX_DEPTH + 3];
    for (size_t deep = TN_JSON_MAX_DEPTH; deep <= TN_JSON_MAX_DEPTH + 1; deep++) {
        json_error_t je;
        memset(text, '[', deep);
        memset(text + deep, ']', deep);
        json_t *v = tn_json_parse(text, 2 * deep, 0, &je);
        assert_true((v != NULL) == (deep == TN_JSON_MAX_DEPTH));
        json_decref(v);
        if (deep == TN_JSON_MAX_DEPTH) continue;
        assert_string_equal(je.text, "nested deeper than 128");
        assert_int_not_equal(json_error_code(&je), json_error_out_of_memory);
    }
    /* brackets in strings are letters */
    char quoted[600];
    snprintf(quoted, sizeof quoted, "[\"\\\"%0500d\"]", 0);
    memset(quoted + 5, '[', 400);
    json_t *v = tn_json_parse(quoted, strlen(quoted), 0, NULL);
    assert_non_null(v);
    json_decref(v);
}

/* What a template may not spend: refused, and not rendered as nothing. */
static void limits_of_templates(void **state) {
    (void)state;
    static const char *const all[] = {
        "{{ '%2000000000d' % 1 }}",
        "{{ '%3000000000d' % 1 }}",
        "{{ '%.3000000000f' % 1.5 }}",
        "{{ '%d' % 1e300 }}",
        "{{ 'x'|center(-9223372036854775807) }}",
        "{{ 'x'|truncate(9223372036854775807, leeway=9223372036854775807) }}",
        "{% set n = namespace(x=1, y=1) %}{% for i in range(300) %}{% set n.x = [n.x, n.x] %}{% set n.y = "
        "[n.y, n.y] %}"
        "{% endfor %}{{ n.x == n.y }}",
        "{% set big = [1] * 100000 %}{% for i in range(100000) %}{% if big|sum %}{% endif %}{% endfor %}",
        "{% set big = 'a' * 1000000 %}{% for i in range(100000) %}{% if big|length %}{% endif %}{% endfor %}",
        "{% set big = 'a' * 1000000 %}{% set same = 'a' * 1000000 %}{% for i in range(100000) %}{% if big == "
        "same %}{% endif %}"
        "{% endfor %}",
        "{% set big = 'a' * 1000000 %}{% if big.rsplit('b' + 'a' * 500000, 1) %}{% endif %}",
        "{% set big = 'a' * 1000000 %}{% if big.strip('b' * 1000000 + 'a') %}{% endif %}",
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        tern_error err = {0};
        tern_status st = template_of(all[i], strlen(all[i]), &err);
        if (st != TERN_E_LIMIT) fail_msg("%s: %d %s", all[i], (int)st, err.message);
    }
}

int main(void) {
    tn_ctx_init(&ctx, NULL);
    const struct CMUnitTest tests[] = {cmocka_unit_test(the_limit), cmocka_unit_test(limits_of_templates),
                                       cmocka_unit_test(everywhere)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
