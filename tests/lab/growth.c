/* Growth as a class: what does a hostile input cost? Every parser gets inputs of 1, 2 and 4 units that were made to be slow; the
 * instructions it executes may grow as the input does. valgrind counts them, and those of the libraries it calls:
 * the program runs itself under it ("read" as its argument), each input once. What
 * valgrind cannot run (sanitizers, other processors) reads them all and is not counted. */
#include "base/ctx.h"
#include "formats/gguf.h"
#include "formats/package.h"
#include "formats/safetensors.h"
#include "session/session.h"
#include "lab/synth.h"
#include "model/arch.h"
#include "model/gguf_vocab.h"
#include "quant/pack.h"
#include "server/request.h"
#include "documents/documents.h"
#include "text/grammar/grammar.h"
#include "text/hf.h"
#include "text/jinja/jinja.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <inttypes.h>
#include <archive.h>
#include <archive_entry.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "fixture/readers.h"
#include "lab/growth_buf.h"
#include "lab/growth_fields.h"
#include "lab/growth_more.h"
#include "fixture/fixture.h"

/* ---- GGUF ---------------------------------------------------------------------------------------- */

static void gguf_text(buf *b, const char *s, size_t n) {
    put_number(b, n, 8);
    put(b, s, n);
}
static void gguf_head(buf *b, uint64_t n_tensors, uint64_t n_keys) {
    puts_(b, "GGUF");
    put_number(b, 3, 4);
    put_number(b, n_tensors, 8);
    put_number(b, n_keys, 8);
}
static void gguf_str(buf *b, const char *key, const char *value, size_t n) {
    gguf_text(b, key, strlen(key));
    put_number(b, 8, 4);
    gguf_text(b, value, n);
}
static void gguf_array(buf *b, const char *key, uint32_t type, uint64_t n) {
    gguf_text(b, key, strlen(key));
    put_number(b, 9, 4);
    put_number(b, type, 4);
    put_number(b, n, 8);
}

static void many_keys(buf *b, size_t n) { /* and a vocabulary: every token asks for its key */
    size_t k = n / 40;
    gguf_head(b, 0, k + 2);
    char name[32];
    for (size_t i = 0; i < k; i++) {
        snprintf(name, sizeof name, "k%zu", i);
        gguf_text(b, name, strlen(name));
        put_number(b, 0, 4);
        put_number(b, 0, 1);
    }
    gguf_str(b, "tokenizer.ggml.model", "llama", 5);
    gguf_array(b, "tokenizer.ggml.tokens", 8, k);
    for (size_t i = 0; i < k; i++) gguf_text(b, name, (size_t)snprintf(name, sizeof name, "%zu", i));
}

/* A byte-level vocabulary: n tokens of one type, spelled by fmt from their number. */
static void vocabulary(buf *b, size_t n, const char *fmt, int32_t type, const buf *template, size_t n_merges,
                       const char *merge) {
    gguf_head(b, 0, 3u + (template != NULL) + (n_merges > 0));
    gguf_str(b, "tokenizer.ggml.model", "gpt2", 4);
    if (template) gguf_str(b, "tokenizer.chat_template", template->p, template->n);
    gguf_array(b, "tokenizer.ggml.tokens", 8, n);
    char name[64];
    for (size_t i = 0; i < n; i++) gguf_text(b, name, (size_t)snprintf(name, sizeof name, fmt, i));
    gguf_array(b, "tokenizer.ggml.token_type", 5, n);
    for (size_t i = 0; i < n; i++) put_number(b, (uint32_t)type, 4);
    if (!n_merges) return;
    gguf_array(b, "tokenizer.ggml.merges", 8, n_merges);
    for (size_t i = 0; i < n_merges; i++) gguf_text(b, merge, strlen(merge));
}

static void doubles(buf *b, size_t n) { vocabulary(b, n / 16, "a", 1, NULL, 0, NULL); }
static void ends(buf *b, size_t n) { vocabulary(b, n / 30, "<EOT>", 4, NULL, 0, NULL); }
static void markup(buf *b, size_t n) { /* a long template, and many tokens that might be its markup */
    buf t = {0};
    repeat(&t, "<ab", n / 6);
    vocabulary(b, n / 64, "<ab%zu>", 4, &t, 0, NULL);
    free(t.p);
}
static void merges_of_spaces(buf *b, size_t n) {
    buf m = {0};
    repeat(&m, " ", n / 2);
    put(&m, "", 1);
    vocabulary(b, 300, "t%zu", 1, NULL, 1, m.p);
    b->p[b->n - 1] = 'a';
    free(m.p);
}
static void many_tensors(buf *b, size_t n) {
    size_t k = n / 56;
    gguf_head(b, k, 0);
    char name[32];
    for (size_t i = 0; i < k; i++) {
        gguf_text(b, name, (size_t)snprintf(name, sizeof name, "blk.%010zu.w", i));
        put_number(b, 1, 4);
        put_number(b, 1, 8);
        put_number(b, 0, 4);
        put_number(b, 32 * i, 8);
    }
    repeat(b, "0123456789abcdef", 2 * k + 4);
}

static void open_gguf(const buf *b) {
    tn_gguf *g;
    tern_error err;
    if (tn_gguf_open_memory(&ctx, b->p, b->n, "x.gguf", &g, &err) != TERN_OK) fail_msg("%s", err.message);
    tn_tokenizer *t = NULL;
    (void)tn_gguf_tokenizer(&ctx, g, &t, &err);
    tn_tokenizer_close(&t);
    tn_gguf_close(&g);
}

/* ---- safetensors, tokenizer.json, config.json ------------------------------------------------------ */

static void shards(buf *b, size_t n) {
    buf j = {0};
    char one[200];
    size_t k = n / 60;
    for (size_t i = 0; i < k; i++) {
        snprintf(one, sizeof one, "%s\"t%zu\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[%zu,%zu]}",
                 i ? "," : "{", i, 4 * i, 4 * i + 4);
        puts_(&j, one);
    }
    puts_(&j, "}");
    put_number(b, j.n, 8);
    put(b, j.p, j.n);
    repeat(b, "abcd", k);
    free(j.p);
}
static void open_shards(const buf *b) {
    tn_safetensors *s;
    tern_error err;
    if (tn_safetensors_open_memory(&ctx, b->p, b->n, "x.safetensors", &s, &err) != TERN_OK)
        fail_msg("%s", err.message);
    tn_safetensors_close(&s);
}

static void tokenizer_json(buf *b, size_t n, const char *pattern) {
    char one[200];
    puts_(b, "{\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\",\"behavior\":"
             "\"Isolated\","
             "\"pattern\":{\"Regex\":\"");
    puts_(b, pattern);
    puts_(b, "\"}},{\"type\":\"ByteLevel\",\"use_regex\":false}]},\"model\":{\"type\":\"BPE\",\"vocab\":{");
    size_t k = n / 60;
    for (size_t i = 0; i < k; i++) {
        snprintf(one, sizeof one, "%s\"a%zu\":%zu", i ? "," : "", i, i);
        puts_(b, one);
    }
    puts_(b, ",\"a\":1,\"aa\":2},\"merges\":[\"a a\"");
    repeat(b, ",\"   a\"", n / 24);
    puts_(b, "]},\"added_tokens\":[");
    for (size_t i = 0; i < k; i++) {
        snprintf(one, sizeof one, "%s{\"id\":%zu,\"content\":\"<a%zu>\"}", i ? "," : "", k + i, i);
        puts_(b, one);
    }
    puts_(b, "]}");
}
static void plain_json(buf *b, size_t n) { tokenizer_json(b, n, "x"); }
static void greedy_json(buf *b, size_t n) { tokenizer_json(b, n, "(?=[\\\\s\\\\S]*+)"); }
static void lazy_json(buf *b, size_t n) { tokenizer_json(b, n, "[^~]*+~|(?:a|a)*~"); }

static void open_tokenizer(const buf *b) { /* and its own text as a text */
    tn_tokenizer *t = NULL;
    tern_error err;
    if (tn_hf_parse(&ctx, b->p, b->n, &t, &err) != TERN_OK) fail_msg("%s", err.message);
    int32_t *ids = malloc(4 * b->n);
    size_t n_ids;
    assert_non_null(ids);
    (void)tn_tokenize(t, b->p, b->n, false, true, ids, b->n, &n_ids, &err);
    free(ids);
    tn_tokenizer_close(&t);
}

static void config(buf *b, size_t n) {
    puts_(b, "{\"model_type\":\"llama\"");
    char one[32];
    for (size_t i = 0; i < n / 16; i++) {
        snprintf(one, sizeof one, ",\"k%zu\":[[]]", i);
        puts_(b, one);
    }
    puts_(b, ",\"rope_scaling\":{\"long_factor\":[1");
    repeat(b, ",1", n / 8);
    puts_(b, "]}}");
}
static void open_config(const buf *b) {
    json_t *j = json_loadb(b->p, b->n, 0, NULL);
    assert_non_null(j);
    tn_hparams h;
    tern_error err;
    (void)tn_arch_hparams_hf(tn_arch_by_hf("phi3"), j, "config.json", &h, &err);
    json_decref(j);
}

/* ---- packages, profiles, sessions ------------------------------------------------------------------ */

static void sections(buf *b, size_t n) { put_number(b, n / 64, 8); }
static void open_package(const buf *b) { /* as many layers as it has sections; each is looked for */
    uint64_t n;
    memcpy(&n, b->p, 8);
    char path[300];
    snprintf(path, sizeof path, "%s/s.tern", folder);
    tn_pkg_writer *w;
    tern_error err;
    if (tn_pkg_create(&ctx, path, (uint32_t)n, 0, &w, &err) != TERN_OK) fail_msg("%s", err.message);
    for (uint64_t i = 0; i < n; i++)
        if (tn_pkg_put_section(w, TN_PKG_LAYER, (int32_t)i, "x", 1, &err) != TERN_OK)
            fail_msg("%s", err.message);
    if (tn_pkg_finish(&w, &err) != TERN_OK) fail_msg("%s", err.message);
    tn_pkg *p;
    if (tn_pkg_open(&ctx, path, &p, &err) != TERN_OK) fail_msg("%s", err.message);
    for (uint64_t i = 0; i < n; i++) assert_non_null(tn_pkg_find(p, TN_PKG_LAYER, (int32_t)i));
    tn_pkg_close(&p);
}

static void profile_text(buf *b, size_t n) {
    puts_(b, "{\"key\":\"x\",\"stage_us\":{\"a\":1");
    char one[40];
    for (size_t i = 0; i < n / 24; i++) {
        snprintf(one, sizeof one, ",\"k%zu\":1", i);
        puts_(b, one);
    }
    puts_(b, "},\"tuned\":[");
    repeat(b, "[],", n / 8);
    puts_(b, "1]}");
}
static void open_profile(const buf *b) {
    fixture_write(profile, b->p, b->n);
    tn_step_profile p;
    tn_profile_file file;
    tn_engine_profile(engine, &file);
    tn_profile_load(&file, &engine->model->program, &p);
    assert_false(p.measured);
}

static void session(buf *b, size_t n) {
    FILE *f = fopen(saved, "rb");
    char block[4096];
    assert_non_null(f);
    for (size_t k; (k = fread(block, 1, sizeof block, f)) > 0;) put(b, block, k);
    fclose(f);
    repeat(b, "0123456789abcdef", n / 16);
}
static void open_session(const buf *b) {
    char path[300];
    snprintf(path, sizeof path, "%s/long.session", folder);
    fixture_write(path, b->p, b->n);
    tern_session *s;
    tern_error err;
    if (tern_session_open(engine, NULL, &s, &err) != TERN_OK) fail_msg("%s", err.message);
    (void)tern_session_load(s, path, &err);
    tern_session_close(&s);
}

/* ---- templates, grammars, schemas ------------------------------------------------------------------ */

static void jinja_parens(buf *b, size_t n) {
    puts_(b, "{{ ");
    repeat(b, "(", n);
}
static void jinja_tags(buf *b, size_t n) { repeat(b, "{% if a %}{# x #}{{ b ~ 'x' }}{% endif %}", n / 40); }
static void jinja_loop(buf *b, size_t n) {
    puts_(b, "{% set ns = namespace(x='') %}{% for i in range(100000) %}{% set ns.x = ns.x ~ 'aaaaaaaa' %}{% "
             "endfor %}");
    repeat(b, "{{ ns.x | length }}", n / 20);
}
static void render(const buf *b) {
    json_t *vars = json_object();
    assert_non_null(vars);
    tn_segments out;
    tn_segments_init(&out, &ctx);
    tern_error err;
    const tn_jinja_input in = {
        .source = b->p, .n_source = b->n, .variables = vars, .max_bytes = 32 << 20, .max_steps = 300000};
    (void)tn_jinja_render(&ctx, &in, &out, &err);
    tn_segments_free(&out);
    json_decref(vars);
}

static void rules(buf *b, size_t n) {
    puts_(b, "root ::= r0\n");
    char one[64];
    for (size_t i = 0; i < n / 24; i++) {
        snprintf(one, sizeof one, "r%zu ::= \"a\" r%zu\n", i, (i + 1) % (n / 24));
        puts_(b, one);
    }
}
static void nested_rules(buf *b, size_t n) {
    puts_(b, "root ::= ");
    repeat(b, "(", n / 2);
    puts_(b, "\"a\"");
    repeat(b, ")*", n / 4);
    puts_(b, "\n");
}
static void alternatives(buf *b, size_t n) {
    puts_(b, "root ::= (\"a\"");
    repeat(b, "|\"a\"", n / 4);
    puts_(b, ")*\n");
}
static void open_grammar(const buf *b) {
    tn_grammar *g;
    tern_error err;
    if (tn_grammar_open_gbnf(&ctx, b->p, b->n, &g, &err) != TERN_OK) return;
    (void)tn_grammar_accepts(g, "aaaaaaaaaaaaaaaa", 16);
    tn_grammar_close(&g);
}
static void properties(buf *b, size_t n) {
    puts_(b, "{\"type\":\"object\",\"additionalProperties\":false,\"properties\":{");
    char one[64];
    for (size_t i = 0; i < n / 32; i++) {
        snprintf(one, sizeof one, "%s\"p%zu\":{\"type\":\"null\"}", i ? "," : "", i);
        puts_(b, one);
    }
    puts_(b, "}}");
}
static void choices(buf *b, size_t n) {
    puts_(b, "{\"enum\":[1");
    repeat(b, ",\"abc\"", n / 6);
    puts_(b, "]}");
}
static void nested_schema(buf *b, size_t n) {
    repeat(b, "{\"items\":", n / 9);
    puts_(b, "true");
    repeat(b, "}", n / 9);
}
/* Each value of an enum was looked for in all of it. */
static void many_values(buf *b, size_t n) {
    char piece[40];
    puts_(b, "{\"enum\":[0");
    for (size_t i = 0; i < n / 24; i++) put(b, piece, (size_t)snprintf(piece, sizeof piece, ",\"%zu\"", i));
    puts_(b, "],\"x-last\":0}");
}
static void open_schema(const buf *b) {
    tn_grammar *g;
    tern_error err;
    if (tn_grammar_open_schema(&ctx, b->p, b->n, &g, &err) != TERN_OK) return;
    (void)tn_grammar_accepts(g, "{\"p1\":null}", 11);
    tn_grammar_close(&g);
}

/* ---- documents ------------------------------------------------------------------------------------- */

static void read_document(const char *name, const buf *b) {
    char *out;
    size_t n;
    const char *why;
    tern_error err;
    if (tn_document_text(&ctx, name, b->p, b->n, 8 << 20, &out, &n, &why, &err) != TERN_OK)
        fail_msg("%s: %s", name, err.message);
    tn_free(&ctx, out);
}
static void read_html(const buf *b) { read_document("a.html", b); }
static void read_eml(const buf *b) { read_document("a.eml", b); }
static void read_office(const buf *b) { read_document("a.docx", b); }

static void html_angles(buf *b, size_t n) { repeat(b, "<", n); }
static void html_comments(buf *b, size_t n) { repeat(b, "<!--", n / 4); }
static void html_scripts(buf *b, size_t n) { repeat(b, "<script>", n / 8); }
static void html_nested(buf *b, size_t n) { repeat(b, "<div a='", n / 8); }
static void html_entities(buf *b, size_t n) { repeat(b, "&#x41;&amp", n / 10); }
static void eml_headers(buf *b, size_t n) {
    puts_(b, "From: a@b\nSubject: x\n");
    repeat(b, "References: =?utf-8?q?a?=\n =?utf-8?b?QQ==?=\n", n / 46);
    puts_(b, "\nbody\n");
}
static void eml_parts(buf *b, size_t n) {
    puts_(b, "From: a@b\nContent-Type: multipart/mixed; boundary=x\n\n");
    repeat(b, "--x\nContent-Type: multipart/mixed; boundary=x\n\n", n / 47);
}
static void eml_dashes(buf *b, size_t n) {
    puts_(b, "From: a@b\nContent-Type: multipart/mixed; boundary=\"");
    repeat(b, "-", 60);
    puts_(b, "\"\n\n");
    repeat(b, "-", n / 2);
    repeat(b, "\n--", n / 6);
}

static void docx(buf *b, size_t n) {
    office(b, "word/document.xml", "<w:document xmlns:w=\"w\"><w:body>", "<w:p><w:r><w:t>a</w:t></w:r></w:p>",
           n / 36, "</w:body></w:document>");
}
static void docx_tables(buf *b, size_t n) {
    office(b, "word/document.xml", "<w:document xmlns:w=\"w\"><w:body>", "<w:tbl><w:tr><w:tc>", n / 19, "");
}
static void xlsx(buf *b, size_t n) {
    office(b, "xl/worksheets/sheet1.xml", "<worksheet><sheetData>",
           "<row><c t=\"inlineStr\"><is><t>a</t></is></c></row>", n / 50, "</sheetData></worksheet>");
}
static void xlsx_shared(buf *b, size_t n) {
    office(b, "xl/sharedStrings.xml", "<sst>", "<si><t>a</t></si>", n / 17, "</sst>");
}

/* ---- requests -------------------------------------------------------------------------------------- */

static void messages(buf *b, size_t n) {
    puts_(
        b,
        "{\"model\":\"x\",\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"a\"}");
    repeat(b, ",{\"type\":\"text\",\"text\":\"a\"}", n / 26);
    puts_(b, "]}]}");
}
static void nested_request(buf *b, size_t n) {
    puts_(b, "{\"messages\":");
    repeat(b, "[", n);
}
/* Every result looks for its call: a list beside a list, in each form. */
static void results(buf *b, size_t n) {
    puts_(b, "{\"model\":\"x\",\"max_tokens\":1,\"messages\":[{\"role\":\"assistant\",\"content\":[");
    list_of(b, n / 120, "{\"type\":\"tool_use\",\"id\":\"t%zu\",\"name\":\"f\",\"input\":{}}");
    puts_(b, "]},{\"role\":\"user\",\"content\":[");
    list_of(b, n / 120, "{\"type\":\"tool_result\",\"tool_use_id\":\"t%zu\",\"content\":\"x\"}");
    puts_(b, "]}]}");
}
static void results_of_chat(buf *b, size_t n) {
    puts_(b, "{\"model\":\"x\",\"messages\":[{\"role\":\"assistant\",\"tool_calls\":[");
    list_of(b, n / 140,
            "{\"id\":\"t%zu\",\"type\":\"function\",\"function\":{\"name\":\"f\",\"arguments\":\"{}\"}}");
    puts_(b, "]},");
    list_of(b, n / 140, "{\"role\":\"tool\",\"tool_call_id\":\"t%zu\",\"content\":\"x\"}");
    puts_(b, "]}");
}
static void results_of_response(buf *b, size_t n) {
    puts_(b, "{\"model\":\"x\",\"input\":[{\"role\":\"user\",\"content\":\"x\"},");
    list_of(b, n / 130,
            "{\"type\":\"function_call\",\"call_id\":\"t%zu\",\"name\":\"f\",\"arguments\":\"{}\"}");
    puts_(b, ",");
    list_of(b, n / 130, "{\"type\":\"function_call_output\",\"call_id\":\"t%zu\",\"output\":\"x\"}");
    puts_(b, "]}");
}
static void read_messages(const buf *b) {
    tn_request r;
    tern_error err;
    json_t *body = json_loadb(b->p, b->n, 0, NULL);
    if (tn_request_of(TN_API_MESSAGES, body, &r, &err) != TERN_OK) fail_msg("%s", err.message);
    tn_request_free(&r);
}
static void read_chat(const buf *b) {
    tn_request r;
    tern_error err;
    if (tn_request_read(TN_API_CHAT, b->p, b->n, &r, &err) != TERN_OK) fail_msg("%s", err.message);
    tn_request_free(&r);
}
static void read_response(const buf *b) {
    static tn_responses *none;
    tn_request r;
    tern_error err;
    if (!none && tn_responses_open(&none, &err) != TERN_OK) fail_msg("%s", err.message);
    if (tn_responses_read(none, b->p, b->n, &r, &err) != TERN_OK) fail_msg("%s", err.message);
    tn_request_free(&r);
}
static void read_request(const buf *b) {
    tn_request r;
    tern_error err;
    if (tn_request_read(true, b->p, b->n, &r, &err) == TERN_OK) tn_request_free(&r);
}

/* ---- the measure ----------------------------------------------------------------------------------- */

static const struct kase {
    const char *target; /* tests/fuzz/fuzz_TARGET.c */
    const char *name;
    void (*make)(buf *b, size_t n);
    void (*run)(const buf *b);
} cases[] = {
    {"gguf", "gguf: keys", many_keys, open_gguf},
    {"gguf", "gguf: doubled tokens", doubles, open_gguf},
    {"gguf", "gguf: doubled ends", ends, open_gguf},
    {"gguf", "gguf: markup", markup, open_gguf},
    {"gguf", "gguf: merges of spaces", merges_of_spaces, open_gguf},
    {"gguf", "gguf: tensors", many_tensors, open_gguf},
    {"safetensors", "safetensors", shards, open_shards},
    {"tokenizer_json", "tokenizer.json", plain_json, open_tokenizer},
    {"tokenizer_json", "tokenizer.json: looks ahead", greedy_json, open_tokenizer},
    {"tokenizer_json", "tokenizer.json: looks back", lazy_json, open_tokenizer},
    {"config", "config.json", config, open_config},
    {"package", "package: sections", sections, open_package},
    {"profile", "profile", profile_text, open_profile},
    {"session", "session", session, open_session},
    {"jinja", "jinja: parentheses", jinja_parens, render},
    {"jinja", "jinja: tags", jinja_tags, render},
    {"jinja", "jinja: loop", jinja_loop, render},
    {"grammar", "grammar: rules", rules, open_grammar},
    {"grammar", "grammar: nested", nested_rules, open_grammar},
    {"grammar", "grammar: alternatives", alternatives, open_grammar},
    {"schema", "schema: properties", properties, open_schema},
    {"schema", "schema: choices", choices, open_schema},
    {"schema", "schema: nested", nested_schema, open_schema},
    {"schema", "schema: values", many_values, open_schema},
    {"extract", "html: angles", html_angles, read_html},
    {"extract", "html: comments", html_comments, read_html},
    {"extract", "html: scripts", html_scripts, read_html},
    {"extract", "html: nested", html_nested, read_html},
    {"extract", "html: entities", html_entities, read_html},
    {"documents", "eml: headers", eml_headers, read_eml},
    {"documents", "eml: parts", eml_parts, read_eml},
    {"documents", "eml: dashes", eml_dashes, read_eml},
    {"documents", "docx: paragraphs", docx, read_office},
    {"documents", "docx: tables", docx_tables, read_office},
    {"documents", "xlsx: rows", xlsx, read_office},
    {"documents", "xlsx: shared strings", xlsx_shared, read_office},
    {"request", "request: parts", messages, read_request},
    {"request", "request: nested", nested_request, read_request},
    {"request", "request: results", results, read_messages},
    {"request", "request: results of a chat", results_of_chat, read_chat},
    {"request", "request: results of a response", results_of_response, read_response},
    {"chat", "chat: messages", saved_messages, read_saved},
    {"chat", "chat: lines of a message", saved_lines, read_saved},
    {"config", "config.json: kinds of layers", layer_types, open_config},
    {"config", "config.json: ends", ends_of_config, open_config},
    {"documents", "eml: a long line", eml_line, read_eml},
    {"documents", "eml: words", eml_words, read_eml},
    {"documents", "eml: base64", eml_base64, read_eml},
    {"documents", "eml: quoted", eml_quoted, read_eml},
    {"documents", "docx: entries", many_entries, read_office},
    {"documents", "docx: attributes", docx_attributes, read_office},
    {"documents", "epub: chapters", epub, read_office},
    {"documents", "pptx: slides", pptx, read_office},
    {"documents", "odt: spaces", odt_spaces, read_office},
    {"extract", "html: tables", html_tables, read_html},
    {"extract", "html: attributes", html_attributes, read_html},
    {"extract", "text: encodings", text_bytes, read_text},
    {"gguf", "gguf: a long text", gguf_long_text, open_gguf},
    {"grammar", "grammar: classes", classes, open_grammar},
    {"grammar", "grammar: comments", comments, open_grammar},
    {"grammar", "grammar: literals", literals, open_grammar},
    {"jinja", "jinja: filters", jinja_filters, render},
    {"jinja", "jinja: macros", jinja_macros, render},
    {"json", "json: keys", json_keys, read_json},
    {"jinja", "jinja: names", jinja_names, render},
    {"json", "json: keys that are alike", json_alike, read_json},
    {"json", "json: escapes", json_escapes, read_json},
    {"json", "json: digits", json_digits, read_json},
    {"json", "json: lists", json_lists, read_json},
    {"json", "json: lines", json_lines, read_json},
    {"lora", "lora: pairs", pairs, open_adapter},
    {"mcp", "agent: arguments", agent_arguments, read_agent},
    {"mcp", "agent: a long query", agent_query, read_agent},
    {"mcp_client", "tools: a list", tool_list, hear_tools},
    {"mcp_client", "tools: lines of a log", tool_log, hear_tools},
    {"mcp_client", "tools: questions", tool_pings, hear_tools},
    {"package", "package: metadata", metadata, open_metadata},
    {"page", "page: a long conversation", long_talk, read_talk},
    {"page", "page: branches", wide_talk, read_talk},
    {"rag", "rag: a document", rag_document, read_rag},
    {"rag", "rag: a document in base64", rag_base64, read_rag},
    {"safetensors", "safetensors: metadata", shard_metadata, open_shards},
    {"schema", "schema: required", required, open_schema},
    {"schema", "schema: definitions", definitions, open_schema},
    {"schema", "schema: any of", any_of, open_schema},
    {"schema", "schema: all of", all_of, open_schema},
    {"schema", "schema: pattern", pattern, open_schema},
    {"schema", "schema: pattern properties", pattern_properties, open_schema},
    {"schema", "schema: a tuple", tuple, open_schema},
    {"schema", "schema: a long const", long_const, open_schema},
    {"rwkv", "rwkv: tokens", rwkv_tokens, open_vocabulary},
    {"spm", "spm: pieces", pieces, open_spm},
    {"tokenizer_blob", "tokenizer blob", blob, open_blob},
    {"tokenizer_json", "tokenizer.json: normalizers", normalizers, try_tokenizer},
    {"tokenizer_json", "tokenizer.json: pre-tokenizers", pre_tokenizers, try_tokenizer},
    {"tokenizer_json", "tokenizer.json: decoders", decoders, try_tokenizer},
    {"tokenizer_json", "tokenizer.json: template", post_processors, try_tokenizer},
    {"suite", "results: lines", many_results, read_results},
    {"suite", "results: groups", many_groups, read_results},
    {"suite", "table: rows", table_rows, read_table},
    {"suite", "table: quotes", table_quotes, read_table},
    {"suite", "calls: values that are right", call_values, read_calls_right},
    {"toolcall", "calls: beginnings", call_begins, read_calls},
    {"toolcall", "calls: braces", call_braces, read_calls},
    {"toolcall", "calls: one long", call_long, read_calls},
    {"toolcall", "calls: many", call_many, read_calls},
    {"toolcall", "calls: a list", call_list, read_calls},
    {"toolcall", "calls: parameters", call_parameters, read_calls},
    {"toolcall", "calls: angles", call_angles, read_calls},
};

/* A package and a session of it, in a folder of its own. They are made outside valgrind, which would take longer over
 * this than over what it counts; its processes are given the finished folder. */
static void make_files(void) {
    tn_pool *pool;
    tern_error err = {0};
    char gguf[256];
    snprintf(folder, sizeof folder, TN_BINARY_DIR "/growth-XXXXXX");
    if (!mkdtemp(folder)) fail_msg("%s: cannot be made", folder);
    snprintf(gguf, sizeof gguf, "%s/m.gguf", folder);
    snprintf(package, sizeof package, "%s/m.tern", folder);
    snprintf(saved, sizeof saved, "%s/m.session", folder);
    tn_pack_options o;
    tn_pack_defaults(&o);
    o.calib_tokens = 64;
    must(tn_pool_open(&ctx, 1, &pool, &err), &err);
    must(tn_synth(&ctx, pool, "tiny-llama", gguf, 7, TN_F32, &err), &err);
    must(tn_pack(&ctx, gguf, package, &o, NULL, &err), &err);
    tn_pool_close(&pool);
    tern_session *s;
    must(tern_engine_open(package, NULL, &engine, &err), &err);
    must(tern_session_open(engine, NULL, &s, &err), &err);
    must(tern_session_prefill(s, (const int32_t[]){1, 2, 3}, 3, &err), &err);
    must(tern_session_save(s, saved, &err), &err);
    tern_session_close(&s);
    tern_engine_close(&engine);
}

static void open_files(const char *made) {
    tern_error err = {0};
    if (made != folder) snprintf(folder, sizeof folder, "%s", made);
    snprintf(package, sizeof package, "%s/m.tern", folder);
    snprintf(saved, sizeof saved, "%s/m.session", folder);
    must(tern_engine_open(package, NULL, &engine, &err), &err);
    assert_non_null(engine->profile_path);
    snprintf(profile, sizeof profile, "%s", engine->profile_path);
}

static int remove_files(void) {
    char command[300];
    snprintf(command, sizeof command, "rm -rf '%s'", folder);
    return system(command);
}

enum { N_CASES = sizeof cases / sizeof *cases, UNIT = 32 << 10, SIZES = 3, MOST = N_CASES + FIELDS };
static uint64_t instructions[MOST][SIZES];
static size_t bytes[MOST][SIZES];
static int n_all; /* the cases, then each field of a request */

/* Counting all takes minutes: `make test` counts one of forty, `make check` all, in two processes (TERN_GROWTH=all, 0/2
 * and 1/2), and a person those whose names begin so (TERN_GROWTH=request). */
static bool is_counted(int c) {
    const char *which = getenv("TERN_GROWTH"), *name = c < N_CASES ? cases[c].name : field_name(c - N_CASES);
    int part, n_parts;
    if (!TN_COUNTED || (which && !strcmp(which, "all"))) return true;
    if (which && sscanf(which, "%d/%d", &part, &n_parts) == 2 && n_parts > 0) return c % n_parts == part;
    return which ? !strncmp(name, which, strlen(which)) : c % 40 == 0;
}

/* What valgrind counts, and of which it writes one total at each return. */
__attribute__((noinline)) void tn_test_counted(void (*run)(const void *), const void *input);
void tn_test_counted(void (*run)(const void *), const void *input) { run(input); }

static const struct kase *running;
static void run_case(const void *input) { running->run(input); }
static void run_field(const void *input) { (void)input, fields_run(); }

/* Every input once, with its length on stdout: under valgrind this is what is counted. */
static int read_all(const char *made) {
    open_files(made);
    for (int c = 0; c < n_all; c++)
        for (int i = 0; i < SIZES && is_counted(c); i++) {
            buf b = {0};
            size_t n = c < N_CASES ? UNIT << i : FIELD_UNIT << i;
            if (c < N_CASES) {
                running = &cases[c];
                cases[c].make(&b, n);
                n = b.n;
                tn_test_counted(run_case, &b);
            } else {
                fields_make(c - N_CASES, n);
                tn_test_counted(run_field, NULL);
            }
            printf("%zu\n", n);
            free(b.p);
        }
    tern_engine_close(&engine);
    return remove_files();
}

static bool read_counts(const char *lengths, const char *totals, int part, int n_parts) {
    FILE *l = fopen(lengths, "r"), *t = fopen(totals, "r");
    char line[512];
    bool ok = l && t;
    for (int c = part; c < n_all && ok; c += n_parts)
        for (int i = 0; i < SIZES && ok && is_counted(c); i++) {
            ok = fscanf(l, "%zu", &bytes[c][i]) == 1;
            while (ok && (ok = fgets(line, sizeof line, t) != NULL) &&
                   sscanf(line, "totals: %" SCNu64, &instructions[c][i]) != 1) {
            }
        }
    if (l) fclose(l);
    if (t) fclose(t);
    return ok;
}

static int count_all(void **state) {
    (void)state;
    enum { MOST_PARTS = 2 };
    const char *which = getenv("TERN_GROWTH");
    const int n_parts = which && !strcmp(which, "all") ? MOST_PARTS : 1;
    char work[200], lengths[MOST_PARTS][256], totals[MOST_PARTS][256], command[2000];
    FILE *counting[MOST_PARTS];
    bool ok = true;
    snprintf(work, sizeof work, TN_BINARY_DIR "/growth-counts-XXXXXX");
    if (!mkdtemp(work)) return -1;
    for (int i = 0; i < n_parts; i++) {
        snprintf(lengths[i], sizeof lengths[i], "%s/lengths%d", work, i);
        snprintf(totals[i], sizeof totals[i], "%s/totals%d", work, i);
        const int n = n_parts > 1 ? snprintf(command, sizeof command, "TERN_GROWTH=%d/%d ", i, n_parts) : 0;
        make_files();
        snprintf(
            command + n, sizeof command - (size_t)n,
            "valgrind -q --tool=callgrind --collect-atstart=no --toggle-collect=tn_test_counted "
            "--dump-after=tn_test_counted --combine-dumps=yes --callgrind-out-file='%s' '%s' read '%s' >'%s'",
            totals[i], program, folder, lengths[i]);
        counting[i] = popen(command, "w");
    }
    for (int i = 0; i < n_parts; i++)
        ok = counting[i] && !pclose(counting[i]) && read_counts(lengths[i], totals[i], i, n_parts) && ok;
    snprintf(command, sizeof command, "rm -rf '%s'", work);
    return system(command) == 0 && ok ? 0 : -1;
}

/* The square of four is sixteen; five leaves room for logarithms. What takes next to nothing at four units
 * has shown nothing. */
static void growth_is_linear(void **state) {
    const int c = (int)((const uint64_t(*)[SIZES]) * state - instructions);
    const uint64_t *n = instructions[c], nothing = 1000000;
    if (!is_counted(c)) skip();
    const char *name = c < N_CASES ? cases[c].name : field_name(c - N_CASES);
    print_message("%s: %zu, %zu, %zu bytes: %.2f, %.2f, %.2f million instructions\n", name, bytes[c][0],
                  bytes[c][1], bytes[c][2], (double)n[0] * 1e-6, (double)n[1] * 1e-6, (double)n[2] * 1e-6);
    assert_true(n[0] > 0);
    if (n[2] > 5 * n[0] + nothing || 2 * n[1] > 5 * n[0] + 2 * nothing)
        fail_msg("%s: the work grows faster than the input", name);
}

static const char *target_at(size_t i) { return i < N_CASES ? cases[i].target : NULL; }

/* No fuzz target is without a line. */
static void every_reader(void **state) {
    (void)state;
    static const no_line none[] = {
        {"heads", "a record is read once, and a model is run for each that is not there"},
        {"npu_graph", "a graph has a few operators at most"},
        {"pictures", "the formats' libraries do the work, which the pixels bound"},
        {"tower", "its tensors are known by their names before one is read"},
        {"tower_folder", "its tensors' names are compared with those of a short list, and sorted"},
        {"run", "the packages of package, with true weights"},
        {"store", "its file is SQLite's, which finds what is asked for by its indices"},
    };
    assert_true(tn_test_every_reader(TN_SOURCE_DIR, target_at, none, sizeof none / sizeof *none));
    assert_in_range(n_fields, 60, FIELDS);
}

int main(int argc, char **argv) {
    program = argv[0];
    tn_ctx_init(&ctx, NULL);
    fields_find();
    n_all = N_CASES + n_fields;
    if (argc > 2 && !strcmp(argv[1], "read")) return read_all(argv[2]);
    if (!TN_COUNTED) {
        make_files();
        return read_all(folder);
    }
    if (system("command -v valgrind >/dev/null")) {
        fprintf(stderr, "needs valgrind to count instructions (scripts/setup.sh --oracle)\n");
        return 77;
    }
    static struct CMUnitTest tests[MOST + 1];
    tests[n_all] = (struct CMUnitTest)cmocka_unit_test(every_reader);
    for (int i = 0; i < n_all; i++)
        tests[i] = (struct CMUnitTest){.name = i < N_CASES ? cases[i].name : strdup(field_name(i - N_CASES)),
                                       .test_func = growth_is_linear,
                                       .initial_state = &instructions[i]};
    return _cmocka_run_group_tests("growth", tests, (size_t)n_all + 1, count_all, NULL);
}
