/* Answers with calls and thoughts: every family's own markup, what only looks like it, and each of them
 * cut at every byte. The forms are those of the families' templates and of their documentation. */
#include "base/json.h"
#include "text/grammar/grammar.h"
#include "text/tokenizer.h"
#include "text/toolcall.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "fixture/scarce.h"

static tn_ctx ctx;
static json_t *tools;

/* Events as one text: content as it is, [T:thoughts], {C:name arguments}. Neighbours of a kind are joined. */
typedef struct record {
    char text[1 << 16];
    size_t n;
    char kind;
    int stop_after;
    char name[300], args[8192]; /* of a call that comes in pieces */
    size_t n_args;
    bool open; /* it has not ended */
} record;

static bool add(record *r, char kind, const char *p, size_t n) {
    assert_true(r->n + n + 8 < sizeof r->text);
    if (kind != r->kind) {
        if (r->kind == 'T') r->text[r->n++] = ']';
        if (kind == 'T') r->n += (size_t)sprintf(r->text + r->n, "[T:");
        r->kind = kind;
    }
    memcpy(r->text + r->n, p, n);
    r->text[r->n += n] = 0;
    return !r->stop_after || --r->stop_after;
}
static bool on_text(void *user, const char *p, size_t n) { return add(user, 't', p, n); }
static bool on_thought(void *user, const char *p, size_t n) { return add(user, 'T', p, n); }
static bool on_call(void *user, const char *name, const char *arguments) {
    json_t *v = json_loads(arguments, 0, NULL);
    assert_true(json_is_object(v));
    char *canonical = json_dumps(v, JSON_COMPACT | JSON_SORT_KEYS), line[8192];
    int n = snprintf(line, sizeof line, "{C:%s %s}", name, canonical);
    assert_true(n > 0 && (size_t)n < sizeof line);
    free(canonical);
    json_decref(v);
    return add(user, 'c', line, (size_t)n);
}

/* The end is told as a call that came whole would be; of what turned out to be none the text. */
static bool on_piece(void *user, tn_call_piece what, const char *text, size_t n) {
    record *r = user;
    if (what == TN_PIECE_NAME) {
        assert_false(r->open);
        r->open = true;
        r->n_args = 0;
        snprintf(r->name, sizeof r->name, "%s", text);
        return true;
    }
    assert_true(r->open);
    if (what == TN_PIECE_MORE) {
        assert_true(n && r->n_args + n < sizeof r->args);
        memcpy(r->args + r->n_args, text, n);
        r->n_args += n;
        return true;
    }
    r->args[r->n_args] = 0;
    r->open = false;
    if (what == TN_PIECE_WHOLE) return on_call(user, r->name, r->args);
    char line[8192 + 400];
    int len = snprintf(line, sizeof line, "{C:%s broken %s}", r->name, r->args);
    return add(r, 'c', line, (size_t)len);
}

enum { WITH_TOOLS = 1, THINKING = 2, FORCED = 4, IN_PIECES = 8 };

static tn_answer *open_answer(tn_ctx *c, tn_answer_form form, int flags, record *r) {
    *r = (record){0};
    tn_answer_options o = {.form = form,
                           .tools = flags & WITH_TOOLS ? tools : NULL,
                           .thinking = flags & THINKING,
                           .forced = flags & FORCED,
                           .on = {on_text, on_thought, on_call, r, flags & IN_PIECES ? on_piece : NULL}};
    tn_answer *a;
    return tn_answer_open(c, &o, &a, NULL) == TERN_OK ? a : NULL;
}

static void finish(tn_answer *a, record *r) {
    assert_true(tn_answer_end(a));
    assert_false(r->open);
    if (r->kind == 'T') add(r, 0, "", 0);
    tn_answer_close(&a);
}

/* Whole, byte by byte, and in two parts at every place. */
static void check_one(tn_answer_form form, int flags, const char *text, const char *want) {
    static record r;
    size_t n = strlen(text);
    for (size_t cut = 0; cut <= n + 1; cut++) {
        tn_answer *a = open_answer(&ctx, form, flags, &r);
        if (cut > n) {
            for (size_t i = 0; i < n; i++) assert_true(tn_answer_put(a, text + i, 1));
        } else {
            assert_true(tn_answer_put(a, text, cut));
            assert_true(tn_answer_put(a, text + cut, n - cut));
        }
        finish(a, &r);
        if (strcmp(r.text, want)) fail_msg("cut at %zu:\n%s\ngives\n%s\nnot\n%s", cut, text, r.text, want);
    }
}

/* ... whether calls come whole or in pieces. */
static void check(tn_answer_form form, int flags, const char *text, const char *want) {
    check_one(form, flags, text, want);
    check_one(form, flags | IN_PIECES, text, want);
}

static const char qwen[] = "{% if tools %}<tool_call>{% endif %} </think>", llama[] = "tools <|python_tag|>",
                  mistral[] = "tools [TOOL_CALLS]", gemma[] = "tools <start_function_call>",
                  lfm2[] = "tools <|tool_call_start|>", harmony[] = "tools <|channel|> <|message|>",
                  plain[] = "{{ messages }}";

static void ok(const char *template, const char *text, const char *want) {
    check(tn_answer_form_of(template), WITH_TOOLS, text, want);
}

static void hermes(void **state) {
    (void)state;
    ok(qwen, "Just words.\n", "Just words.\n");
    ok(qwen, "<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Paris\"}}\n</tool_call>",
       "{C:weather {\"city\":\"Paris\"}}");
    ok(qwen,
       "Let me "
       "see.\n\n<tool_call>\n{\"name\":\"weather\",\"arguments\":{}}\n</"
       "tool_call>\n<tool_call>{\"name\":\"other\"}</tool_call>\nDone",
       "Let me see.{C:weather {}}{C:other {}}Done");
    ok(qwen,
       "<think>\nIs it "
       "<tool_call>?\n</think>\n\n<tool_call>{\"name\":\"weather\",\"arguments\":{}}</tool_call>",
       "[T:Is it <tool_call>?]{C:weather {}}");
    ok(qwen, "<think>\n\n</think>\n\nHi", "Hi");
    ok(qwen, "A <think> in the middle </think>", "A <think> in the middle </think>");
    /* markup and brackets in strings; arguments as JSON in a string; two in one tag */
    ok(qwen,
       "<tool_call>{\"name\":\"weather\",\"arguments\":{\"city\":\"</tool_call> }\\\" {[\"}}</tool_call>.",
       "{C:weather {\"city\":\"</tool_call> }\\\" {[\"}}.");
    ok(qwen, "<tool_call>{\"arguments\":\"{\\\"city\\\":\\\"Rom\\\"}\",\"name\":\"weather\"}</tool_call>",
       "{C:weather {\"city\":\"Rom\"}}");
    ok(qwen, "<tool_call>{\"name\":\"a\"}\n{\"name\":\"b\"}</tool_call>", "{C:a {}}{C:b {}}");
    ok(qwen, "<tool_call>{\"name\":\"a\",\"arguments\":{\"x\":\"one\ntwo\"}}</tool_call>",
       "{C:a {\"x\":\"one\\ntwo\"}}");
    ok(qwen, "<tool_call>[{\"name\":\"a\"},{\"function\":{\"name\":\"b\",\"arguments\":{}}}]</tool_call>",
       "{C:a {}}{C:b {}}");
    /* Qwen3-Coder */
    ok(qwen,
       "<tool_call>\n<function=weather>\n<parameter=city>\n12\n</parameter>\n<parameter=days>\n3\n</"
       "parameter>\n</function>\n</tool_call>",
       "{C:weather {\"city\":\"12\",\"days\":3}}");
    ok(qwen, "<function=weather>\n<parameter=city>\nif a < b:\n  </function>\n</parameter>\n</function>",
       "{C:weather {\"city\":\"if a < b:\\n  </function>\"}}");
    /* what only looks like a call */
    ok(qwen, "a <tool_call> b", "a <tool_call> b");
    ok(qwen, "<tool_call>{\"name\":\"weather\",", "<tool_call>{\"name\":\"weather\",");
    ok(qwen, "x <tool_call>{\"name\" \"weather\"}</tool_call>",
       "x <tool_call>{\"name\" \"weather\"}</tool_call>");
    ok(qwen, "<tool_call>{\"name\":7}</tool_call>", "<tool_call>{\"name\":7}</tool_call>");
    ok(qwen, "<tool_call>{\"name\":\"a\",\"arguments\":[1]}</tool_call>",
       "<tool_call>{\"name\":\"a\",\"arguments\":[1]}</tool_call>");
    ok(qwen, "<tool_call>{]}</tool_call> <tool_call>{\"name\":\"a\"}</tool_call>",
       "<tool_call>{]}</tool_call>{C:a {}}");
    ok(qwen, "<tool_call><tool_call>{\"name\":\"a\"}</tool_call>", "<tool_call>{C:a {}}");
    ok(qwen, "<tool_call", "<tool_call");
    ok(qwen, "<think>never ends <tool_call>{\"name\":\"a\"}", "[T:never ends <tool_call>{\"name\":\"a\"}]");
    ok(qwen, "<function=nobody></function>", "<function=nobody></function>");
    ok(qwen, "  \n ", "  \n ");
    tn_answer_form f = tn_answer_form_of(qwen);
    check(f, 0, "<tool_call>{\"name\":\"a\"}</tool_call>",
          "<tool_call>{\"name\":\"a\"}</tool_call>"); /* no tools were given */
    check(f, WITH_TOOLS | THINKING, "\nhm </think> <tool_call>{\"name\":\"a\"}</tool_call>",
          "[T:hm]{C:a {}}");
}

/* Pieces come as soon as it is certain that there is a call, and together are its arguments. */
static void pieces(void **state) {
    (void)state;
    static record r;
    static const struct {
        const char *template, *before, *text, *said;
    } all[] = {
        {qwen, "", "<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Paris\", \"x\": [1",
         "{\"city\": \"Paris\", \"x\": [1"},
        {qwen, "", "<tool_call>{\"name\":\"weather\",\"arguments\":{\"city\":\"a\nb\\\"}",
         "{\"city\":\"a\\u000ab\\\"}"},
        {qwen, "See:", "See: <tool_call>{ \"name\" : \"weather\" , \"arguments\" : {", "{"},
        {qwen, "", "<tool_call>{\"name\":\"weather\",\"arguments\":", NULL},
        {qwen, "", "<tool_call>{\"name\":\"nobody\",\"arguments\":{\"a\":1", NULL}, /* it may still be text */
        {qwen, "", "<tool_call>{\"arguments\":{\"a\":1", NULL},
        {llama, "", "{\"name\":\"weather\",\"parameters\":{\"city\":\"Bo", "{\"city\":\"Bo"},
        {mistral, "", "[TOOL_CALLS]weather[ARGS]{\"city\": \"L", "{\"city\": \"L"},
        {mistral, "", "[TOOL_CALLS][{\"name\":\"weather\",\"arguments\":{", NULL}, /* a list comes whole */
        {harmony, "", "<|channel|>commentary to=functions.weather<|message|>{\"city\":\"O", "{\"city\":\"O"},
        {plain, "", "```json\n{\"name\":\"weather\",\"arguments\":{\"city\":", "{\"city\":"},
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        tn_answer *a = open_answer(&ctx, tn_answer_form_of(all[i].template), WITH_TOOLS | IN_PIECES, &r);
        for (const char *p = all[i].text; *p; p++) assert_true(tn_answer_put(a, p, 1));
        r.args[r.n_args] = 0;
        assert_int_equal(r.open, all[i].said != NULL);
        if (all[i].said) assert_string_equal(r.args, all[i].said);
        assert_string_equal(r.text, all[i].before);
        (void)tn_answer_end(a);
        tn_answer_close(&a);
    }
    /* what has begun cannot be taken back: it ends as what it is, and none of it is content */
    tn_answer_form f = tn_answer_form_of(qwen);
    int flags = WITH_TOOLS | IN_PIECES;
    check_one(f, flags, "<tool_call>{\"name\":\"weather\",\"arguments\":{\"city\":\"Par",
              "{C:weather broken {\"city\":\"Par}");
    check_one(f, flags, "<tool_call>{\"name\":\"weather\",\"arguments\":{city}}</tool_call> Hm",
              "{C:weather broken {city}}Hm");
    check_one(f, flags, "<tool_call>{\"name\":\"weather\",\"arguments\":{} x}</tool_call>",
              "{C:weather broken {}}");
    check_one(f, flags,
              "<tool_call>{\"name\":\"weather\",\"arguments\":{\"a\":[1)}, \"b\": 2}}</tool_call> Hm",
              "{C:weather broken {\"a\":[1)}}Hm");
    check_one(f, flags,
              "<tool_call>{\"name\":\"weather\",\"arguments\":{\"a\":1)}, \"b\": 2}}</tool_call> Hm",
              "{C:weather broken {\"a\":1)}Hm");
    check_one(f, flags, "<tool_call>{\"name\":\"weather\",\"arguments\":{\"a\":[1)} }}, x\nAfter it",
              "{C:weather broken {\"a\":[1)}}After it");
    check_one(
        f, flags,
        "<tool_call>{\"name\":\"weather\",\"arguments\":{a}} <tool_call>{\"name\":\"weather\"}</tool_call>",
        "{C:weather broken {a}}{C:weather {}}");
    check_one(f, flags, "<tool_call>{\"name\":\"weather\",\"arguments\":{\"a\":1}",
              "{C:weather broken {\"a\":1}}");
    check_one(tn_answer_form_of(harmony), flags,
              "<|channel|>commentary to=functions.weather<|message|>{\"a\":[1)}}<|call|>",
              "{C:weather broken {\"a\":[1)}}");
    /* the first of two keys has the arguments, whole and in pieces */
    ok(qwen, "<tool_call>{\"name\":\"weather\",\"parameters\":{},\"arguments\":{\"a\":7}}</tool_call>",
       "{C:weather {}}");
    ok(qwen, "<tool_call>{\"name\":\"weather\",\"arguments\":{\"a\":7},\"parameters\":{}}</tool_call>",
       "{C:weather {\"a\":7}}");
}

static void llama3(void **state) {
    (void)state;
    ok(llama, "{\"name\": \"weather\", \"parameters\": {\"city\": \"Bonn\"}}",
       "{C:weather {\"city\":\"Bonn\"}}");
    ok(llama, "{\"name\":\"weather\",\"parameters\":{}}; {\"name\":\"weather\",\"parameters\":{}}",
       "{C:weather {}}{C:weather {}}");
    ok(llama, "<|python_tag|>{\"name\":\"weather\",\"parameters\":{}}<|eom_id|>", "{C:weather {}}");
    ok(llama, "<|python_tag|>weather.call(city=\"Bonn\", days=2)",
       "{C:weather {\"city\":\"Bonn\",\"days\":2}}");
    ok(llama, "<|python_tag|>print(\"hi\")\n", "{C:python {\"code\":\"print(\\\"hi\\\")\\n\"}}");
    ok(llama, "{\"name\": \"nobody\", \"parameters\": {}}", "{\"name\": \"nobody\", \"parameters\": {}}");
    ok(llama, "{\"answer\": 42} is JSON", "{\"answer\": 42} is JSON");
    ok(llama, "Here: {\"name\": \"weather\", \"parameters\": {}}",
       "Here: {\"name\": \"weather\", \"parameters\": {}}");
    ok(llama, "{ open", "{ open");
}

static void mistral_calls(void **state) {
    (void)state;
    ok(mistral,
       "[TOOL_CALLS][{\"name\": \"weather\", \"arguments\": {\"city\": \"Lyon\"}, \"id\": \"abcdefghi\"}, "
       "{\"name\":\"b\",\"arguments\":{}}]",
       "{C:weather {\"city\":\"Lyon\"}}{C:b {}}");
    ok(mistral, "Yes.[TOOL_CALLS]weather[CALL_ID]a1B2c3D4e[ARGS]{\"city\": \"Lyon\"}[TOOL_CALLS]b[ARGS]{}",
       "Yes.{C:weather {\"city\":\"Lyon\"}}{C:b {}}");
    ok(mistral, "[TOOL_CALLS]weather{\"city\": \"]\"}", "{C:weather {\"city\":\"]\"}}");
    ok(mistral, "[TOOL_CALLS]weather[ARGS]", "[TOOL_CALLS]weather[ARGS]");
    ok(mistral, "[TOOL_CALLS] ?", "[TOOL_CALLS] ?");
    ok(mistral, "[TOOL_CALLS][]", "[TOOL_CALLS][]");
    ok(mistral, "an [array]", "an [array]");
}

static void gemma_and_lfm2(void **state) {
    (void)state;
    ok(gemma,
       "<start_function_call>call:weather{city:<escape>San {Jose}, "
       "\"CA\"<escape>,days:2,tags:[<escape>a<escape>,b],deep:{x:true}}<end_function_call>",
       "{C:weather {\"city\":\"San {Jose}, "
       "\\\"CA\\\"\",\"days\":2,\"deep\":{\"x\":true},\"tags\":[\"a\",\"b\"]}}");
    ok(gemma,
       "<start_function_call>call:a{}<end_function_call><start_function_call>call:b{}<end_function_call>",
       "{C:a {}}{C:b {}}");
    ok(gemma, "<start_function_call>call:a{x:<escape>1}<end_function_call>",
       "<start_function_call>call:a{x:<escape>1}<end_function_call>");
    ok(lfm2,
       "<|tool_call_start|>[weather(city=\"Oslo\", days=3), b(c=[1, 'x', None], d={\"k\": True}, e='it\\'s "
       "\\x41')]<|tool_call_end|>Wait",
       "{C:weather {\"city\":\"Oslo\",\"days\":3}}{C:b {\"c\":[1,\"x\",null],\"d\":{\"k\":true},\"e\":\"it's "
       "A\"}}Wait");
    ok(lfm2, "<|tool_call_start|>[weather(\"Oslo\", 3)]<|tool_call_end|>",
       "{C:weather {\"city\":\"Oslo\",\"days\":3}}");
    ok(lfm2, "<|tool_call_start|>[{\"name\": \"weather\", \"arguments\": {}}]<|tool_call_end|>",
       "{C:weather {}}");
    ok(lfm2, "<|tool_call_start|>[b(c=1]<|tool_call_end|>", "<|tool_call_start|>[b(c=1]<|tool_call_end|>");
    ok(lfm2, "<|tool_call_start|>[b(c=d)]<|tool_call_end|>", "<|tool_call_start|>[b(c=d)]<|tool_call_end|>");
    ok(lfm2, "<|tool_call_start|>[b(1, 2)]", "<|tool_call_start|>[b(1, 2)]");
}

static void harmony_channels(void **state) {
    (void)state;
    ok(harmony,
       "<|channel|>analysis<|message|>They ask.<|end|><|start|>assistant<|channel|>final<|message|>Hello "
       "<b>!",
       "[T:They ask.]Hello <b>!");
    ok(harmony,
       "<|channel|>analysis<|message|>Hm<|end|><|start|>assistant<|channel|>commentary to=functions.weather "
       "<|constrain|>json<|message|>{\"city\":\"Rome\"}<|call|>",
       "[T:Hm]{C:weather {\"city\":\"Rome\"}}");
    ok(harmony, " to=functions.weather<|channel|>commentary json<|message|>{}", "{C:weather {}}");
    ok(harmony,
       "<|channel|>commentary<|message|>Looking it up.<|end|><|start|>assistant "
       "to=functions.a<|channel|>commentary<|message|>{\"x\":1}<|call|>",
       "Looking it up.{C:a {\"x\":1}}");
    ok(harmony, "<|channel|>final<|message|>no end", "no end");
    ok(harmony, "plain words", "plain words");
    ok(harmony, "<|start|>assist<|start|><|channel|>", "<|start|>assist<|start|><|channel|>");
    ok(harmony, "<|channel|>commentary to=functions.a<|message|>{\"x\":<|call|>",
       "<|channel|>commentary to=functions.a<|message|>{\"x\":");
    check(tn_answer_form_of(harmony), 0,
          "<|channel|>analysis<|message|>a<|end|><|start|>assistant<|channel|>final<|message|>b<|return|>",
          "[T:a]b");
}

static void generic(void **state) {
    (void)state;
    ok(plain, "{\"name\": \"weather\", \"arguments\": {\"city\": \"Ulm\"}}",
       "{C:weather {\"city\":\"Ulm\"}}");
    ok(plain, " ```json\n{\"name\":\"weather\",\"arguments\":{}}\n```\n", "{C:weather {}}");
    ok(plain, "```json\n{\"a\":1}\n```\n", "```json\n{\"a\":1}\n```\n");
    ok(plain, "```c\nint x;\n```", "```c\nint x;\n```");
    ok(plain, "[{\"name\":\"weather\",\"arguments\":{}},{\"name\":\"nobody\"}]",
       "[{\"name\":\"weather\",\"arguments\":{}},{\"name\":\"nobody\"}]");
    ok(plain, "<tool_call>{\"name\":\"weather\"}</tool_call>", "{C:weather {}}");
    check(tn_answer_form_of(qwen), WITH_TOOLS | FORCED | THINKING,
          "so</think>\n\n{\"name\":\"weather\",\"arguments\":{\"city\":\"A\"}}",
          "[T:so]{C:weather {\"city\":\"A\"}}");
    check(tn_answer_form_of(mistral), WITH_TOOLS | FORCED, "[{\"name\":\"weather\",\"arguments\":{}}]",
          "{C:weather {}}");
    check(tn_answer_form_of(harmony), WITH_TOOLS | FORCED, "{\"name\":\"weather\",\"arguments\":{}}",
          "{C:weather {}}");
}

/* Long runs of white space go with a call to a limit, deep nesting and many openings end. */
static void hostile(void **state) {
    (void)state;
    static char text[1 << 15], want[1 << 15];
    memset(text, ' ', 400);
    strcpy(text + 400, "<tool_call>{\"name\":\"a\"}</tool_call>");
    memset(want, ' ', 400 - 256);
    strcpy(want + 144, "{C:a {}}");
    ok(qwen, text, want);
    memset(text, '{', 3000);
    text[3000] = 0;
    static record r;
    const char *const all[] = {qwen, llama, mistral, gemma, lfm2, harmony, plain};
    const char *const begin[] = {"<tool_call>",
                                 "<|python_tag|>",
                                 "[TOOL_CALLS]",
                                 "<start_function_call>call:a",
                                 "<|tool_call_start|>[a(x=",
                                 "<|channel|>x to=functions.a<|message|>",
                                 ""};
    for (int i = 0; i < 7; i++) { /* never closed: comes out as it is */
        tn_answer *a = open_answer(&ctx, tn_answer_form_of(all[i]), WITH_TOOLS, &r);
        assert_true(tn_answer_put(a, begin[i], strlen(begin[i])) && tn_answer_put(a, text, strlen(text)));
        finish(a, &r);
        assert_int_equal(r.n, strlen(begin[i]) + 3000);
        assert_memory_equal(r.text, begin[i], strlen(begin[i]));
    }
    for (size_t i = 0; i < 2000; i++) memcpy(text + 11 * i, "<tool_call>", 11);
    text[11 * 2000] = 0;
    tn_answer *a = open_answer(&ctx, tn_answer_form_of(qwen), WITH_TOOLS, &r);
    assert_true(tn_answer_put(a, text, strlen(text)));
    finish(a, &r);
    assert_string_equal(r.text, text);
}

static void templates(void **state) {
    (void)state;
    static const struct {
        const char *file;
        int form;
        bool thinks;
    } of[] = {{"Qwen-Qwen3-0.6B", TN_CALLS_HERMES, true},
              {"Qwen-Qwen2.5-7B-Instruct", TN_CALLS_HERMES, false},
              {"Qwen3-Coder", TN_CALLS_HERMES, false},
              {"mistralai-Mistral-Nemo-Instruct-2407", TN_CALLS_MISTRAL, false},
              {"Mistral-Small-3.2-24B-Instruct-2506", TN_CALLS_MISTRAL, false},
              {"mistralai-Ministral-3-14B-Reasoning-2512", TN_CALLS_MISTRAL, true},
              {"openai-gpt-oss-120b", TN_CALLS_HARMONY, false},
              {"microsoft-Phi-3.5-mini-instruct", TN_CALLS_GENERIC, false},
              {"deepseek-ai-DeepSeek-V3.2", -1, true},
              {"GLM-4.6", -1, true},
              {"MiniMax-M2", -1, true}};
    for (size_t i = 0; i < sizeof of / sizeof *of; i++) {
        char path[512];
        static char text[1 << 17];
        snprintf(path, sizeof path, "%s/tests/oracle/templates/%s.jinja", TN_SOURCE_DIR, of[i].file);
        FILE *file = fopen(path, "r");
        assert_non_null(file);
        text[fread(text, 1, sizeof text - 1, file)] = 0;
        fclose(file);
        tn_answer_form f = tn_answer_form_of(text);
        if (of[i].form < 0 ? !f.foreign : f.foreign || (int)f.calls != of[i].form)
            fail_msg("%s: %d %s", of[i].file, f.calls, f.foreign ? f.foreign : "");
        assert_int_equal(f.think != NULL, of[i].thinks);
    }
    assert_int_equal(tn_answer_form_of(NULL).calls, TN_CALLS_GENERIC);
}

/* The schema of a call takes what the parser reads, and nothing else; references move along. */
static void schemas(void **state) {
    (void)state;
    static const struct {
        const char *name;
        tn_call_form form;
        const char *text;
        bool fits;
    } cases[] = {
        {"weather", TN_CALLS_HERMES, "{\"name\":\"weather\",\"arguments\":{\"city\":\"Rome\",\"days\":3}}",
         true},
        {"weather", TN_CALLS_HERMES, "{\"name\":\"a\",\"arguments\":{\"city\":\"Rome\",\"days\":3}}", false},
        {"weather", TN_CALLS_HERMES, "{\"name\":\"weather\",\"arguments\":{\"city\":\"Rome\",\"days\":30}}",
         false},
        {"weather", TN_CALLS_LLAMA3, "{\"name\":\"weather\",\"parameters\":{\"city\":\"Rome\"}}", true},
        {"weather", TN_CALLS_MISTRAL, "[{\"name\":\"weather\",\"arguments\":{\"city\":\"Rome\",\"days\":9}}]",
         true},
        {"weather", TN_CALLS_MISTRAL, "[]", false},
        {NULL, TN_CALLS_HERMES, "{\"name\":\"weather\",\"arguments\":{\"city\":\"Rome\",\"days\":9}}", true},
        {NULL, TN_CALLS_MISTRAL, "[{\"name\":\"weather\",\"arguments\":{\"city\":\"x\",\"days\":1}}]", true},
        {NULL, TN_CALLS_HERMES, "{\"name\":\"python\",\"arguments\":{\"code\":\"1\"}}", true},
        {NULL, TN_CALLS_HERMES, "{\"name\":\"python\",\"arguments\":{\"city\":\"Rome\"}}", false}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char *schema;
        tern_error err;
        tn_grammar *g;
        if (tn_tools_schema(tools, cases[i].name, cases[i].form, &schema, &err) != TERN_OK)
            fail_msg("%s", err.message);
        if (tn_grammar_open_schema(&ctx, schema, strlen(schema), &g, &err) != TERN_OK)
            fail_msg("%s: %s", schema, err.message);
        if (tn_grammar_accepts(g, cases[i].text, strlen(cases[i].text)) != cases[i].fits)
            fail_msg("%zu: %s under %s", i, cases[i].text, schema);
        tn_grammar_close(&g);
        free(schema);
    }
    char *schema;
    tern_error err;
    assert_int_equal(tn_tools_schema(tools, "nobody", TN_CALLS_HERMES, &schema, &err), TERN_E_INVALID);
    json_t *bad = json_loads("[{\"type\":\"function\",\"function\":{\"name\":\"x\"}},{\"type\":\"function\","
                             "\"function\":{\"name\":\"x\"}}]",
                             0, NULL);
    assert_int_equal(tn_tools_check(bad, &err), TERN_E_INVALID);
    json_decref(bad);
    assert_int_equal(tn_tools_check(tools, &err), TERN_OK);
}

static void as_text(void **state) {
    (void)state;
    json_t *m = json_loads("[{\"role\":\"system\",\"content\":\"Be "
                           "brief.\"},{\"role\":\"user\",\"content\":\"Hi\"},{\"role\":\"assistant\","
                           "\"content\":\"\",\"tool_calls\":"
                           "[{\"id\":\"1\",\"type\":\"function\",\"function\":{\"name\":\"a\",\"arguments\":"
                           "\"{\\\"x\\\":1}\"}}]},{\"role\":\"tool\",\"tool_call_id\":\"1\",\"name\":\"a\","
                           "\"content\":\"7\"},{\"role\":\"tool\",\"content\":\"8\"}]",
                           0, NULL),
           *out;
    assert_int_equal(tn_tools_as_text(m, tools, &out, NULL), TERN_OK);
    assert_int_equal(json_array_size(out), 4);
    const char *sys = json_string_value(json_object_get(json_array_get(out, 0), "content"));
    assert_true(!strncmp(sys, "Be brief.\n\n", 11) && strstr(sys, "\"weather\""));
    assert_string_equal(json_string_value(json_object_get(json_array_get(out, 2), "content")),
                        "{\"name\": \"a\", \"arguments\": {\"x\":1}}");
    assert_string_equal(json_string_value(json_object_get(json_array_get(out, 3), "content")),
                        "The result of a: 7\nThe result of the tool: 8");
    json_decref(out);
    json_decref(m);
}

/* A callback that stops is obeyed; the n-th allocation fails: an error, no gap. */
static void stops_and_faults(void **state) {
    (void)state;
    static const char text[] =
        "Words <tool_call>{\"name\":\"a\",\"arguments\":{\"x\":\"one\ntwo\"}}</tool_call> more";
    static record r;
    tn_answer *a = open_answer(&ctx, tn_answer_form_of(qwen), WITH_TOOLS, &r);
    r.stop_after = 1;
    assert_false(tn_answer_put(a, text, sizeof text - 1));
    assert_string_equal(r.text, "Words");
    assert_false(tn_answer_put(a, "x", 1));
    tn_answer_close(&a);
    scarce memory = {.left = -1};
    tn_ctx c;
    scarce_ctx(&c, &memory);
    bool whole = false;
    int fail_at = 0;
    for (; !whole; fail_at++) {
        memory.left = fail_at;
        a = open_answer(&c, tn_answer_form_of(qwen), WITH_TOOLS, &r);
        if (!a) continue;
        whole = tn_answer_put(a, text, sizeof text - 1) && tn_answer_end(a);
        assert_int_equal(tn_answer_failed(a), !whole);
        tn_answer_close(&a);
    }
    assert_true(fail_at > 3);
    assert_string_equal(r.text, "Words{C:a {\"x\":\"one\\ntwo\"}}more");
}

/* <|end|> ends an answer, but one of several messages where there are channels. */
static void ends(void **state) {
    (void)state;
    static const char *const tokens[] = {"<unk>", "<|end|>", "<|call|>", "<|channel|>", "<|message|>"};
    static const size_t bytes[] = {5, 7, 8, 11, 11};
    static const uint8_t types[] = {TN_TOKEN_UNKNOWN, TN_TOKEN_CONTROL, TN_TOKEN_CONTROL, TN_TOKEN_CONTROL,
                                    TN_TOKEN_CONTROL};
    static const float scores[5];
    for (size_t n = 4; n <= 5; n++) {
        tn_tokenizer_spec spec = {.kind = TN_TOK_BPE_SPM,
                                  .n_vocab = n,
                                  .tokens = tokens,
                                  .token_bytes = bytes,
                                  .types = types,
                                  .scores = scores,
                                  .bos = -1,
                                  .eos = -1,
                                  .eot = -1,
                                  .unk = 0,
                                  .pad = -1};
        tn_tokenizer *t;
        assert_int_equal(tn_tokenizer_open(&ctx, &spec, &t, NULL), TERN_OK);
        assert_int_equal(tn_tokenizer_is_end(t, 1), n == 4);
        assert_int_equal(tn_tokenizer_is_end(t, 2), n == 5);
        tn_tokenizer_close(&t);
    }
}

static int setup(void **state) {
    (void)state;
    tn_ctx_init(&ctx, NULL);
    tools = json_loads("[{\"type\":\"function\",\"function\":{\"name\":\"weather\",\"parameters\":{\"type\":"
                       "\"object\",\"properties\":{\"city\":{\"type\":\"string\"},"
                       "\"days\":{\"$ref\":\"#/$defs/"
                       "d\"}},\"required\":[\"city\"],\"additionalProperties\":false,\"$defs\":{\"d\":{"
                       "\"type\":\"integer\",\"minimum\":0,\"maximum\":9}}}}},"
                       "{\"type\":\"function\",\"function\":{\"name\":\"python\",\"parameters\":{\"type\":"
                       "\"object\",\"properties\":{\"code\":{\"type\":\"string\"}},\"required\":[\"code\"],"
                       "\"additionalProperties\":false}}}]",
                       0, NULL);
    return !tools;
}

static int teardown(void **state) {
    (void)state;
    json_decref(tools);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pieces),           cmocka_unit_test(hermes),
        cmocka_unit_test(llama3),           cmocka_unit_test(mistral_calls),
        cmocka_unit_test(gemma_and_lfm2),   cmocka_unit_test(harmony_channels),
        cmocka_unit_test(generic),          cmocka_unit_test(hostile),
        cmocka_unit_test(templates),        cmocka_unit_test(ends),
        cmocka_unit_test(schemas),          cmocka_unit_test(as_text),
        cmocka_unit_test(stops_and_faults),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
