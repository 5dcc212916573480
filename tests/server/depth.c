/* Depth as a class: every reader of bytes from outside gets brackets in brackets, 10 to 10,000,000 of them, on
 * a stack that is a quarter of any thread's of ours that reads. It reads them or refuses them, and comes back. Each line
 * names its fuzz target, and a target without a line fails. */
#include "fixture/readers.h"
#include "fixture/zip.h"
#include "server/depth_readers.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { STACK = 4 << 20 }; /* frames have redzones there */
#else
enum { STACK = 256 << 10 };
#endif

/* ---- what is no text -------------------------------------------------------------------------------- */

typedef struct job {
    reader read;
    char *text;
    size_t n, cap;
    tern_status st;
    tern_error err;
} job;

/* n 0: of a text. Some readers want a zero after it. */
static void grow(job *j, const void *bytes, size_t n) {
    if (!n) n = strlen(bytes);
    if (j->cap - j->n <= n) {
        j->cap = 2 * j->cap + n + 64;
        j->text = realloc(j->text, j->cap);
        assert_non_null(j->text);
    }
    memcpy(j->text + j->n, bytes, n);
    j->n += n;
    j->text[j->n] = 0;
}

/* Arrays in arrays, in the list of keys. */
static void arrays(job *j, size_t deep) {
    static const char head[] = "GGUF\3\0\0\0"
                               "\0\0\0\0\0\0\0\0"
                               "\1\0\0\0\0\0\0\0"
                               "\1\0\0\0\0\0\0\0a"
                               "\11\0\0\0",
                      one[] = "\11\0\0\0\1\0\0\0\0\0\0\0";
    grow(j, head, sizeof head - 1);
    for (size_t i = 0; i < deep; i++) grow(j, one, sizeof one - 1);
    grow(j, "\0\0\0\0\0\0\0\0\0\0\0\0", 12);
}

/* Groups in groups, which the format had before messages; and messages in messages, whose lengths all go to the end. */
static void groups(job *j, size_t deep) {
    for (size_t i = 0; i < deep; i++) grow(j, "\13", 1);
}
static void in_messages(job *j, size_t deep) {
    for (size_t left = deep; left--;) { /* each holds the six bytes of every later one */
        uint8_t head[6] = {0x12};
        size_t n = 6 * left;
        for (int i = 0; i < 5; i++, n >>= 7) head[1 + i] = (uint8_t)((n & 0x7f) | (i < 4 ? 0x80 : 0));
        grow(j, head, sizeof head);
    }
}

static void header(job *j, size_t deep) {
    uint64_t n = 2 * deep + 46;
    grow(j, &n, 8); /* little-endian hosts only */
    grow(j, "{\"a\":{\"dtype\":\"F32\",\"data_offsets\":[0,4],\"shape\":", 0);
    for (size_t i = 0; i < deep; i++) grow(j, "[", 1);
    for (size_t i = 0; i < deep; i++) grow(j, "]", 1);
    grow(j, "}}abcd", 6);
}

/* Each rule names the next one, and so does each definition. */
static void chain_of_rules(job *j, size_t deep) {
    char line[80];
    grow(j, "root ::= r0\n", 0);
    for (size_t i = 0; i < deep; i++)
        grow(j, line, (size_t)snprintf(line, sizeof line, "r%zu ::= r%zu | \"a\"\n", i, i + 1));
    grow(j, line, (size_t)snprintf(line, sizeof line, "r%zu ::= \"a\"\n", deep));
}
static void chain_of_references(job *j, size_t deep) {
    char piece[80];
    grow(j, "{\"$ref\":\"#/$defs/d0\",\"$defs\":{", 0);
    for (size_t i = 0; i < deep; i++)
        grow(j, piece,
             (size_t)snprintf(piece, sizeof piece, "\"d%zu\":{\"$ref\":\"#/$defs/d%zu\"},", i, i + 1));
    grow(j, piece, (size_t)snprintf(piece, sizeof piece, "\"d%zu\":{\"type\":\"null\"}}}", deep));
}

/* Each node of a conversation follows the one before. */
static void chain_of_nodes(job *j, size_t deep) {
    char piece[120];
    grow(j, "{\"nodes\":[", 0);
    for (size_t i = 1; i <= deep; i++)
        grow(j, piece,
             (size_t)snprintf(piece, sizeof piece,
                              "%s{\"id\":%zu,\"parent\":%zu,\"role\":\"%s\",\"content\":\"x\"}",
                              i > 1 ? "," : "", i, i - 1, i % 2 ? "user" : "assistant"));
    grow(j, "]}", 2);
}

/* A container with the document, which is a container. */
static void zips(job *j, size_t deep) {
    static const char *const names[] = {"word/document.xml", "a.docx", "content.xml"};
    char *bytes =
        strdup("<w:document xmlns:w=\"w\"><w:body><w:p><w:r><w:t>a</w:t></w:r></w:p></w:body></w:document>");
    size_t n = strlen(bytes);
    for (size_t i = 0; i < deep; i++) {
        char *outer = tn_test_zip(names[i % 3], bytes, n, &n);
        assert_non_null(outer);
        free(bytes);
        bytes = outer;
    }
    grow(j, bytes, n);
    free(bytes);
}

static void in_office(job *j, size_t deep, const char *entry, const char *before, const char *open,
                      const char *after) {
    size_t n = strlen(before) + deep * strlen(open) + strlen(after), n_zip;
    char *xml = malloc(n + 1), *to = stpcpy(xml, before);
    for (size_t i = 0; i < deep; i++) to = stpcpy(to, open);
    stpcpy(to, after);
    char *bytes = tn_test_zip(entry, xml, n, &n_zip);
    assert_non_null(bytes);
    grow(j, bytes, n_zip);
    free(bytes);
    free(xml);
}
static void tables(job *j, size_t deep) {
    in_office(j, deep, "word/document.xml", "<w:document xmlns:w=\"w\"><w:body>", "<w:tbl><w:tr><w:tc>",
              "<w:p><w:r><w:t>a</w:t></w:r></w:p>");
}
static void cells(job *j, size_t deep) {
    in_office(j, deep, "xl/worksheets/sheet1.xml", "<worksheet><sheetData>", "<row><c t=\"inlineStr\"><is>",
              "<t>a</t>");
}
static void spans(job *j, size_t deep) {
    in_office(j, deep, "content.xml",
              "<office:document-content xmlns:office=\"o\" xmlns:text=\"t\"><office:body>", "<text:span>",
              "a");
}
static void shapes(job *j, size_t deep) {
    in_office(j, deep, "ppt/slides/slide1.xml", "<p:sld xmlns:p=\"p\" xmlns:a=\"a\">", "<p:grpSp>",
              "<a:t>a</a:t>");
}
static void entities(job *j, size_t deep) { /* one inside the other */
    char piece[80];
    grow(j, "<!DOCTYPE x [<!ENTITY e0 \"a\">", 0);
    job inner = {0};
    grow(&inner, "<?xml version=\"1.0\"?><!DOCTYPE x [<!ENTITY e0 \"a\">", 0);
    for (size_t i = 1; i <= deep; i++)
        grow(&inner, piece,
             (size_t)snprintf(piece, sizeof piece, "<!ENTITY e%zu \"&e%zu;&e%zu;\">", i, i - 1, i - 1));
    grow(&inner, piece, (size_t)snprintf(piece, sizeof piece, "]><x><w:t>&e%zu;</w:t></x>", deep));
    size_t n_zip;
    char *bytes = tn_test_zip("word/document.xml", inner.text, inner.n, &n_zip);
    assert_non_null(bytes);
    free(inner.text);
    j->n = 0;
    grow(j, bytes, n_zip);
    free(bytes);
}

/* Parts of a message, each with parts of its own. */
static void parts(job *j, size_t deep) {
    char piece[160];
    grow(j, "From: a\n", 0);
    for (size_t i = 0; i < deep; i++)
        grow(j, piece,
             (size_t)snprintf(piece, sizeof piece, "Content-Type: multipart/mixed; boundary=b%zu\n\n--b%zu\n",
                              i, i));
    grow(j, "Content-Type: text/plain\n\nx\n", 0);
}

/* ---- the nesting ------------------------------------------------------------------------------------ */

static const struct nest {
    const char *target; /* tests/fuzz/fuzz_TARGET.c */
    const char *what;
    reader read;
    const char *before, *open, *middle, *close, *after;
} nests[] = {
    {"json", "JSON, lists", json, "", "[", "1", "]", ""},
    {"json", "JSON, objects", json, "", "{\"a\":", "1", "}", ""},
    {"json", "JSON that does not end", json, "", "[", "", "", ""},
    {"rwkv", "quotes of a token", vocabulary, "1 ", "'", "a", "'", " 1"},
    {"suite", "a result", results,
     "{\"tern_eval\":1,\"task\":\"mmlu\",\"model\":{},\"form\":{},\"data\":{},\"asked\":{}}\n{\"id\":\"1\","
     "\"groups\":[],"
     "\"score\":1,\"answer\":",
     "[", "1", "]", "}\n"},
    {"suite", "a function's parameters", functions,
     "{\"id\":\"1\",\"question\":[[{\"role\":\"user\",\"content\":\"x\"}]],\"ground_truth\":[{\"f\":{\"a\":[["
     "[1]]]}}],"
     "\"function\":[{\"name\":\"f\",\"parameters\":{\"properties\":{\"a\":",
     "{\"type\":\"array\",\"items\":", "{}", "}", "}}}]}"},
    {"suite", "values that are right", functions,
     "{\"id\":\"1\",\"question\":[[{\"role\":\"user\",\"content\":\"x\"}]],\"function\":[{\"name\":\"f\","
     "\"parameters\":{"
     "\"properties\":{\"a\":{\"type\":\"array\"}}}}],\"ground_truth\":[{\"f\":{\"a\":[",
     "[", "1", "]", "]}}]}"},
    {"suite", "words that are asked for", prompts,
     "{\"key\":1,\"prompt\":\"x\",\"instruction_id_list\":[\"keywords:existence\"],\"kwargs\":[{\"keywords\":"
     "[\"",
     "(", "a", ")", "\"]}]}"},
    {"request", "body of a chat", chat, "", "[", "", "]", ""},
    {"request", "messages", chat, "{\"messages\":", "[", "", "]", "}"},
    {"request", "kwargs", chat,
     "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"chat_template_kwargs\":{\"a\":", "[", "1", "]",
     "}}"},
    {"request", "tools", chat,
     "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"tools\":[{\"type\":\"function\",\"function\":{"
     "\"name\":\"f\","
     "\"parameters\":",
     "{\"type\":\"array\",\"items\":", "{}", "}", "}}]}"},
    {"request", "schema of a request", completion, "{\"prompt\":\"x\",\"json_schema\":", "{\"items\":", "{}",
     "}", "}"},
    {"request", "tools of messages", messages,
     "{\"max_tokens\":1,\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"tools\":[{\"name\":\"f\","
     "\"input_schema\":",
     "{\"items\":", "{}", "}", "}]}"},
    {"mcp", "arguments of an agent's call", mcp,
     "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"tools/"
     "call\",\"params\":{\"name\":\"search_documents\",\"arguments\":{\"query\":\"x\",\"a\":",
     "[", "1", "]", "}}}"},
    {"mcp_client", "a tool's result", mcp_client, "{\"id\":1,\"result\":{\"structuredContent\":{\"a\":", "[",
     "1", "]", "}}}"},
    {"mcp_client", "a server's question", mcp_client,
     "{\"id\":1,\"method\":\"ping\",\"params\":{\"a\":", "{\"a\":", "1", "}", "}}\n{\"id\":1,\"result\":{}}"},
    {"rag", "question", rag, "{\"question\":\"x\",\"a\":", "[", "", "]", "}"},
    {"schema", "schema, items", schema, "", "{\"type\":\"array\",\"items\":", "{\"type\":\"null\"}", "}", ""},
    {"schema", "schema, anyOf", schema, "", "{\"anyOf\":[", "{\"type\":\"null\"}", "]}", ""},
    {"schema", "schema, allOf", schema, "", "{\"allOf\":[", "{\"type\":\"null\"}", "]}", ""},
    {"schema", "schema, const", schema, "{\"const\":", "[", "1", "]", "}"},
    {"schema", "schema, enum", schema, "{\"type\":\"array\",\"enum\":[", "[", "1", "]", "]}"},
    {"schema", "schema, pattern", schema, "{\"type\":\"string\",\"pattern\":\"", "(", "a", ")", "\"}"},
    {"grammar", "gbnf, brackets", gbnf, "root ::= ", "(", "\"a\"", ")", ""},
    {"grammar", "gbnf, repeats", gbnf, "root ::= ", "(", "\"a\"", "){1,2}", ""},
    {"tokenizer_json", "tokenizer.json", tokenizer, "{\"model\":", "{\"a\":", "1", "}", "}"},
    {"tokenizer_json", "normalizers", tokenizer,
     "{\"normalizer\":", "{\"type\":\"Sequence\",\"normalizers\":[", "", "]}", "}"},
    {"toolcall", "a call in JSON", calls, "{\"name\":\"f\",\"arguments\":", "{\"a\":", "1", "}", "}"},
    {"toolcall", "a call in tags", calls, "<tool_call>{\"name\":\"f\",\"arguments\":", "{\"a\":", "1", "}",
     "}</tool_call>"},
    {"toolcall", "a call in Python", calls, "<|tool_call_start|>[f(a=", "[", "1", "]", ")]<|tool_call_end|>"},
    {"toolcall", "a call of Gemma", calls, "<start_function_call>call:f{a:", "{a:", "1", "}",
     "}<end_function_call>"},
    {"documents", "HTML", html, "<html>", "<div>", "x", "</div>", "</html>"},
    {"documents", "HTML, lists", html, "", "<ul><li>", "x", "", ""},
    {"documents", "mail", mail, "From: a\n", "Content-Type: message/rfc822\n\nFrom: a\n", "\nx", "", ""},
    {"jinja", "template, brackets", template_of, "{{ ", "(", "1", ")", " }}"},
    {"jinja", "template, lists", template_of, "{{ ", "[", "1", "]", " }}"},
    {"jinja", "template, objects", template_of, "{{ ", "{1:", "1", "}", " }}"},
    {"jinja", "template, indices", template_of, "{{ m", "[m", "", "]", " }}"},
    {"jinja", "template, minus", template_of, "{{ ", "- ", "1", "", " }}"},
    {"jinja", "template, not", template_of, "{{ ", "not ", "1", "", " }}"},
    {"jinja", "template, sums", template_of, "{{ 1", "+1", "", "", " }}"},
    {"jinja", "template, powers", template_of, "{{ 1", "**1", "", "", " }}"},
    {"jinja", "template, and", template_of, "{{ 1", " and 1", "", "", " }}"},
    {"jinja", "template, conditions", template_of, "{{ 1", " if 1 else 1", "", "", " }}"},
    {"jinja", "template, attributes", template_of, "{{ m", ".a", "", "", " }}"},
    {"jinja", "template, filters", template_of, "{{ 'x'", "|upper", "", "", " }}"},
    {"jinja", "template, tests", template_of, "{{ 1", " is defined", "", "", " }}"},
    {"jinja", "template, blocks of filters", template_of, "{% filter upper", "|upper", "", "",
     " %}x{% endfilter %}"},
    {"jinja", "template, set with filters", template_of, "{% set x ", "|upper", "", "", " %}x{% endset %}"},
    {"jinja", "template, filters of map", template_of, "{{ 'x'|map('map'", ",'map'", "", "",
     ",'upper')|list }}"},
    {"jinja", "template, if", template_of, "", "{% if 1 %}", "x", "{% endif %}", ""},
    {"jinja", "template, elif", template_of, "{% if 0 %}", "{% elif 0 %}", "x", "", "{% endif %}"},
    {"jinja", "template, for", template_of, "", "{% for a in [1] %}", "x", "{% endfor %}", ""},
    {"jinja", "template, with", template_of, "", "{% with a=1 %}", "x", "{% endwith %}", ""},
    {"jinja", "template, macros", template_of, "", "{% macro a() %}", "x", "{% endmacro %}", ""},
    {"jinja", "template, calls", template_of, "{% macro f() %}{{ caller() }}{% endmacro %}", "{% call f() %}",
     "x", "{% endcall %}", ""},
    {"jinja", "template, targets", template_of, "{% for ", "(", "a", ",)", " in [1] %}{% endfor %}"},
    {"jinja", "template, a macro in itself", template_of, "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
     "", "", "", ""},
    {"jinja", "template, values that nest", template_of,
     "{% set n = namespace(x=[]) %}{% for i in range(3000) %}{% set n.x = [n.x] %}{% endfor %}{{ n.x }}{{ "
     "n.x|tojson }}",
     "", "", "", ""},
    {"jinja", "template, values that are compared", template_of,
     "{% set n = namespace(x=1, y=1) %}{% for i in range(300) %}{% set n.x = [n.x, n.x] %}{% set n.y = [n.y, "
     "n.y] %}{% endfor %}"
     "{{ n.x == n.y }}{{ n.x < n.y }}",
     "", "", "", ""},
    {"request", "body of a completion", llama, "{\"prompt\":", "[", "\"x\"", "]", "}"},
    {"request", "logit_bias", llama, "{\"prompt\":\"x\",\"logit_bias\":", "[", "", "]", "}"},
    {"request", "stop", completion, "{\"prompt\":\"x\",\"stop\":", "[", "\"a\"", "]", "}"},
    {"request", "lora", completion, "{\"prompt\":\"x\",\"lora\":", "[", "", "]", "}"},
    {"request", "parts of a message", chat,
     "{\"messages\":[{\"role\":\"user\",\"content\":", "[{\"type\":\"text\",\"text\":", "\"x\"", "}]", "}]}"},
    {"request", "response_format", chat,
     "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"response_format\":{\"type\":\"json_schema\","
     "\"json_schema\":{\"schema\":",
     "{\"anyOf\":[", "{}", "]}", "}}}"},
    {"request", "tool_choice", chat,
     "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"tool_choice\":", "{\"a\":", "1", "}", "}"},
    {"request", "arguments of a call", chat,
     "{\"messages\":[{\"role\":\"assistant\",\"tool_calls\":[{\"type\":\"function\",\"function\":{\"name\":"
     "\"f\",\"arguments\":\"",
     "[", "", "]", "\"}}]}]}"},
    {"request", "results of a tool", messages,
     "{\"max_tokens\":1,\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"tool_result\",\"tool_use_"
     "id\":\"a\",\"content\":",
     "[{\"type\":\"tool_result\",\"content\":", "\"x\"", "}]", "}]}]}"},
    {"request", "infill", infill, "{\"input_prefix\":\"x\",\"input_suffix\":\"y\",\"input_extra\":", "[", "",
     "]", "}"},
    {"request", "Ollama's format", ollama,
     "{\"model\":\"x\",\"prompt\":\"x\",\"messages\":[],\"format\":", "{\"items\":", "{}", "}", "}"},
    {"request", "Ollama's options", ollama,
     "{\"model\":\"x\",\"prompt\":\"x\",\"messages\":[],\"options\":", "{\"stop\":", "[]", "}", "}"},
    {"request", "items of a response", responses, "{\"input\":", "[", "", "]", "}"},
    {"request", "content of an item", responses, "{\"input\":[{\"role\":\"user\",\"content\":",
     "[{\"type\":\"input_text\",\"text\":", "\"x\"", "}]", "}]}"},
    {"request", "tools of a response", responses,
     "{\"input\":\"x\",\"tools\":[{\"type\":\"function\",\"name\":\"f\",\"parameters\":", "{\"items\":", "{}",
     "}", "}]}"},
    {"rag", "document", document_of_rag, "{\"name\":\"a\",\"text\":", "[", "\"x\"", "]", "}"},
    {"page", "settings of a saved conversation", talk, "{\"nodes\":[],\"settings\":", "{\"a\":", "1", "}",
     "}"},
    {"page", "content of a node", talk,
     "{\"nodes\":[{\"id\":1,\"parent\":0,\"role\":\"user\",\"content\":", "[", "\"x\"", "]", "}]}"},
    {"chat", "a saved conversation", saved, "user: x", "\n\tuser: x\n\t", "", "", "\n"},
    {"chat", "messages for a template", conversation, "[{\"role\":\"user\",\"content\":", "[", "\"x\"", "]",
     "}]"},
    {"chat", "a call's arguments for a template", conversation,
     "[{\"role\":\"user\",\"content\":\"x\"},{\"role\":\"assistant\",\"tool_calls\":[{\"function\":{\"name\":"
     "\"f\",\"arguments\":\"",
     "[", "", "]", "\"}}]}]"},
    {"profile", "stage times", profile, "{\"stage_us\":", "{\"a\":", "1", "}", "}"},
    {"profile", "what was tuned", profile, "{\"tuned\":", "[", "1", "]", "}"},
    {"package", "hyperparameters", metadata, "{\"hparams\":", "{\"a\":", "1", "}", "}"},
    {"package", "attention", metadata, "{\"attention\":", "[", "1", "]", "}"},
    {"config", "the configuration of a text model", config, "", "{\"text_config\":", "{}", "}", ""},
    {"config", "scaling of positions", config,
     "{\"model_type\":\"llama\",\"rope_scaling\":", "{\"rope_scaling\":", "{}", "}", "}"},
    {"config", "kinds of layers", config, "{\"model_type\":\"llama\",\"layer_types\":", "[", "", "]", "}"},
    {"lora", "what an adapter changes", adapter, "{\"peft_type\":\"LORA\",\"r\":4,\"target_modules\":", "[",
     "\"q_proj\"", "]", "}"},
    {"schema", "not", schema, "", "{\"not\":", "{}", "}", ""},
    {"schema", "properties", schema, "", "{\"type\":\"object\",\"properties\":{\"a\":", "{\"type\":\"null\"}",
     "}}", ""},
    {"schema", "definitions", schema, "{\"$defs\":", "{\"$defs\":", "{}", "}", ",\"type\":\"null\"}"},
    {"schema", "alternatives in a pattern", schema, "{\"type\":\"string\",\"pattern\":\"", "(a|", "b", ")",
     "\"}"},
    {"tokenizer_json", "the expression that cuts words", tokenizer,
     "{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[]},\"pre_tokenizer\":{\"type\":\"Split\","
     "\"behavior\":\"Isolated\",\"pattern\":{\"Regex\":\"",
     "(", "a", ")", "\"}}}"},
    {"tokenizer_json", "looking ahead", tokenizer,
     "{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[]},\"pre_tokenizer\":{\"type\":\"Split\","
     "\"behavior\":\"Isolated\",\"pattern\":{\"Regex\":\"",
     "(?=", "a", ")", "\"}}}"},
    {"tokenizer_json", "pre-tokenizers", tokenizer,
     "{\"pre_tokenizer\":", "{\"type\":\"Sequence\",\"pretokenizers\":[", "", "]}", "}"},
    {"tokenizer_json", "decoders", tokenizer, "{\"decoder\":", "{\"type\":\"Sequence\",\"decoders\":[", "",
     "]}", "}"},
    {"extract", "lists of a page", html, "<html>", "<ol><li>", "x", "</li></ol>", "</html>"},
    {"extract", "tables of a page", html, "", "<table><tr><td>", "x", "", ""},
    {"documents", "a page in a message", mail, "From: a\nContent-Type: text/html\n\n", "<div>", "x", "</div>",
     ""},
    {"documents", "comments of a mail's header", mail, "From: a\nContent-Type: text/plain", " (", "a", ")",
     "\n\nx\n"},
};
/* What is no text, or no repetition. */
static const struct built {
    const char *target, *what;
    reader read;
    void (*make)(job *j, size_t deep);
    size_t most; /* it is not made deeper */
} builts[] = {
    {"page", "a long conversation", talk, chain_of_nodes, 12000},
    {"safetensors", "shape of a tensor", safetensors, header, 10000000},
    {"gguf", "arrays in arrays", gguf, arrays, 10000000},
    {"spm", "groups", sentencepiece, groups, 10000000},
    {"spm", "messages in messages", sentencepiece, in_messages, 100000},
    {"grammar", "rules that name rules", gbnf, chain_of_rules, 100000},
    {"schema", "references", schema, chain_of_references, 100000},
    {"documents", "tables of a document", office, tables, 100000},
    {"documents", "cells of a sheet", office, cells, 100000},
    {"documents", "spans of a text", office, spans, 1000000},
    {"documents", "shapes of a slide", office, shapes, 100000},
    {"documents", "entities", office, entities, 100000},
    {"documents", "containers in containers", office, zips, 390},
    {"documents", "parts of a message", mail, parts, 100000},
};
enum { N_NESTS = sizeof nests / sizeof *nests, N_BUILTS = sizeof builts / sizeof *builts };

static void *read_it(void *user) {
    job *j = user;
    j->st = j->read(j->text, j->n, &j->err);
    return NULL;
}

static void build(job *j, const struct nest *k, size_t deep) {
    grow(j, " ", 1); /* a text is never NULL */
    j->n = 0;
    j->text[0] = 0;
    if (*k->before) grow(j, k->before, 0);
    for (size_t i = 0; i < deep; i++) grow(j, k->open, 0);
    if (*k->middle) grow(j, k->middle, 0);
    for (size_t i = 0; *k->close && i < deep; i++) grow(j, k->close, 0);
    if (*k->after) grow(j, k->after, 0);
}

/* The reader comes back, and does not say that memory was missing. */
static void on_small_stack(job *j, const char *what, size_t deep) {
    pthread_attr_t small;
    pthread_t t;
    print_message("%s, %zu deep\n", what, deep);
    pthread_attr_init(&small);
    assert_int_equal(pthread_attr_setstacksize(&small, STACK), 0);
    assert_int_equal(pthread_create(&t, &small, read_it, j), 0);
    assert_int_equal(pthread_join(t, NULL), 0);
    pthread_attr_destroy(&small);
    if (j->st == TERN_E_MEMORY) fail_msg("%s, %zu deep: %s", what, deep, j->err.message);
    free(j->text);
}

static const size_t depths[] = {10, 60, 100, 127, 128, 129, 200, 390, 2000, 12000, 100000, 10000000};
enum { N_DEPTHS = sizeof depths / sizeof *depths };

static void everywhere(void **state) {
    (void)state;
    const char *only = getenv("TERN_TEST_ONLY"); /* lines whose name contains this */
    for (size_t i = 0; i < N_NESTS; i++) {
        const struct nest *k = &nests[i];
        for (size_t d = 0; d < N_DEPTHS && (d == 0 || *k->open) && (!only || strstr(k->what, only)); d++) {
            if (depths[d] > 1000000 && (k->read == template_of || strlen(k->open) > 2)) continue;
            job j = {.read = k->read};
            build(&j, k, depths[d]);
            on_small_stack(&j, k->what, depths[d]);
        }
    }
    for (size_t i = 0; i < N_BUILTS; i++) {
        const struct built *k = &builts[i];
        for (size_t d = 0; d < N_DEPTHS && depths[d] <= k->most && (!only || strstr(k->what, only)); d++) {
            job j = {.read = k->read};
            k->make(&j, depths[d]);
            on_small_stack(&j, k->what, depths[d]);
        }
    }
}

static const char *target_at(size_t i) {
    return i < N_NESTS ? nests[i].target : i < N_NESTS + N_BUILTS ? builts[i - N_NESTS].target : NULL;
}

/* No fuzz target is without a line. */
static void every_reader(void **state) {
    (void)state;
    static const no_line none[] = {
        {"heads", "a journal is a head and records of one size"},
        {"npu_graph", "a graph is a head and a list of operators"},
        {"pictures", "a picture is pieces one after another, which the formats' libraries read"},
        {"tower", "the keys and tensors of gguf, each read once"},
        {"tower_folder", "what json made of two files: values of given keys; and the tensors of safetensors"},
        {"session", "a saved session is a head, and numbers in places that it gives"},
        {"store", "a store is SQLite's file, and what it holds is flat"},
        {"tokenizer_blob",
         "lists of texts and numbers; its template is jinja's, its expression tokenizer.json's"},
        {"run", "the packages of package, with true weights"},
    };
    assert_true(tn_test_every_reader(TN_SOURCE_DIR, target_at, none, sizeof none / sizeof *none));
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
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_reader), cmocka_unit_test(the_limit),
                                       cmocka_unit_test(limits_of_templates), cmocka_unit_test(everywhere)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
