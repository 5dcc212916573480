/* What does a hostile input cost? Every parser gets inputs of 1, 2 and 4 units that were made to be slow; the
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
#include "store/documents.h"
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

static tn_ctx ctx;
static const char *program;
static char folder[200], package[256], profile[300], saved[256];
static tern_engine *engine;

typedef struct buf {
    char *p;
    size_t n, cap;
} buf;

static void put(buf *b, const void *data, size_t n) {
    if (b->cap - b->n < n) {
        b->cap = 2 * b->cap + n;
        b->p = realloc(b->p, b->cap);
        assert_non_null(b->p);
    }
    if (n) memcpy(b->p + b->n, data, n);
    b->n += n;
}
static void puts_(buf *b, const char *s) { put(b, s, strlen(s)); }
static void put_number(buf *b, uint64_t v, size_t n) { put(b, &v, n); } /* little-endian hosts only */
static void repeat(buf *b, const char *s, size_t n) {
    for (size_t i = 0; i < n; i++) puts_(b, s);
}

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

static void write_file(const char *path, const buf *b) {
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(b->p, 1, b->n, f), b->n);
    assert_int_equal(fclose(f), 0);
}
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
    write_file(profile, b);
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
    write_file(path, b);
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

static void office(buf *b, const char *entry, const char *head, const char *body, size_t n_body,
                   const char *tail) {
    struct archive *a = archive_write_new();
    size_t cap = (1 << 20) + 8 * n_body * strlen(body), used = 0;
    char *out = malloc(cap);
    buf x = {0};
    assert_true(a && out);
    puts_(&x, head);
    repeat(&x, body, n_body);
    puts_(&x, tail);
    archive_write_set_format_zip(a);
    archive_write_zip_set_compression_store(a);
    assert_int_equal(archive_write_open_memory(a, out, cap, &used), ARCHIVE_OK);
    struct archive_entry *e = archive_entry_new();
    archive_entry_set_pathname(e, entry);
    archive_entry_set_filetype(e, AE_IFREG);
    archive_entry_set_perm(e, 0600);
    archive_entry_set_size(e, (int64_t)x.n);
    assert_int_equal(archive_write_header(a, e), ARCHIVE_OK);
    assert_int_equal(archive_write_data(a, x.p, x.n), (ssize_t)x.n);
    archive_entry_free(e);
    archive_write_close(a);
    archive_write_free(a);
    put(b, out, used);
    free(out);
    free(x.p);
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
static void read_request(const buf *b) {
    tn_request r;
    tern_error err;
    if (tn_request_read(true, b->p, b->n, &r, &err) == TERN_OK) tn_request_free(&r);
}

/* ---- the measure ----------------------------------------------------------------------------------- */

static const struct kase {
    const char *name;
    void (*make)(buf *b, size_t n);
    void (*run)(const buf *b);
} cases[] = {
    {"gguf: keys", many_keys, open_gguf},
    {"gguf: doubled tokens", doubles, open_gguf},
    {"gguf: doubled ends", ends, open_gguf},
    {"gguf: markup", markup, open_gguf},
    {"gguf: merges of spaces", merges_of_spaces, open_gguf},
    {"gguf: tensors", many_tensors, open_gguf},
    {"safetensors", shards, open_shards},
    {"tokenizer.json", plain_json, open_tokenizer},
    {"tokenizer.json: looks ahead", greedy_json, open_tokenizer},
    {"tokenizer.json: looks back", lazy_json, open_tokenizer},
    {"config.json", config, open_config},
    {"package: sections", sections, open_package},
    {"profile", profile_text, open_profile},
    {"session", session, open_session},
    {"jinja: parentheses", jinja_parens, render},
    {"jinja: tags", jinja_tags, render},
    {"jinja: loop", jinja_loop, render},
    {"grammar: rules", rules, open_grammar},
    {"grammar: nested", nested_rules, open_grammar},
    {"grammar: alternatives", alternatives, open_grammar},
    {"schema: properties", properties, open_schema},
    {"schema: choices", choices, open_schema},
    {"schema: nested", nested_schema, open_schema},
    {"schema: values", many_values, open_schema},
    {"html: angles", html_angles, read_html},
    {"html: comments", html_comments, read_html},
    {"html: scripts", html_scripts, read_html},
    {"html: nested", html_nested, read_html},
    {"html: entities", html_entities, read_html},
    {"eml: headers", eml_headers, read_eml},
    {"eml: parts", eml_parts, read_eml},
    {"eml: dashes", eml_dashes, read_eml},
    {"docx: paragraphs", docx, read_office},
    {"docx: tables", docx_tables, read_office},
    {"xlsx: rows", xlsx, read_office},
    {"xlsx: shared strings", xlsx_shared, read_office},
    {"request: parts", messages, read_request},
    {"request: nested", nested_request, read_request},
};

static int setup(void) {
    tn_ctx_init(&ctx, NULL);
    tn_pool *pool;
    tern_error err = {0};
    char gguf[256];
    snprintf(folder, sizeof folder, TN_BINARY_DIR "/growth-XXXXXX");
    if (!mkdtemp(folder) || tn_pool_open(&ctx, 1, &pool, &err) != TERN_OK) return -1;
    snprintf(gguf, sizeof gguf, "%s/m.gguf", folder);
    snprintf(package, sizeof package, "%s/m.tern", folder);
    snprintf(saved, sizeof saved, "%s/m.session", folder);
    tn_pack_options o;
    tn_pack_defaults(&o);
    o.calib_tokens = 64;
    bool ok = tn_synth(&ctx, pool, "tiny-llama", gguf, 7, TN_F32, &err) == TERN_OK &&
              tn_pack(&ctx, gguf, package, &o, NULL, &err) == TERN_OK &&
              tern_engine_open(package, NULL, &engine, &err) == TERN_OK;
    tn_pool_close(&pool);
    if (!ok) fail_msg("%s", err.message);
    assert_non_null(engine->profile_path);
    snprintf(profile, sizeof profile, "%s", engine->profile_path);
    tern_session *s;
    assert_int_equal(tern_session_open(engine, NULL, &s, &err), TERN_OK);
    assert_int_equal(tern_session_prefill(s, (const int32_t[]){1, 2, 3}, 3, &err), TERN_OK);
    assert_int_equal(tern_session_save(s, saved, &err), TERN_OK);
    tern_session_close(&s);
    return 0;
}

static int teardown(void) {
    char command[300];
    tern_engine_close(&engine);
    snprintf(command, sizeof command, "rm -rf '%s'", folder);
    return system(command);
}

enum { N_CASES = sizeof cases / sizeof *cases, UNIT = 64 << 10, SIZES = 3 };
static uint64_t instructions[N_CASES][SIZES];
static size_t bytes[N_CASES][SIZES];

/* What valgrind counts, and of which it writes one total at each return. */
__attribute__((noinline)) void tn_test_counted(const struct kase *k, const buf *b);
void tn_test_counted(const struct kase *k, const buf *b) { k->run(b); }

/* Every input once, with its length on stdout: under valgrind this is what is counted. */
static int read_all(void) {
    if (setup()) return 1;
    for (int c = 0; c < N_CASES; c++)
        for (int i = 0; i < SIZES; i++) {
            buf b = {0};
            cases[c].make(&b, (size_t)UNIT << i);
            tn_test_counted(&cases[c], &b);
            printf("%zu\n", b.n);
            free(b.p);
        }
    return teardown();
}

static bool read_counts(const char *lengths, const char *totals) {
    FILE *l = fopen(lengths, "r"), *t = fopen(totals, "r");
    char line[512];
    int n = 0;
    while (l && n < N_CASES * SIZES && fscanf(l, "%zu", &bytes[n / SIZES][n % SIZES]) == 1) n++;
    bool ok = n == N_CASES * SIZES;
    n = 0;
    while (t && n < N_CASES * SIZES && fgets(line, sizeof line, t))
        if (sscanf(line, "totals: %" SCNu64, &instructions[n / SIZES][n % SIZES]) == 1) n++;
    if (l) fclose(l);
    if (t) fclose(t);
    return ok && n == N_CASES * SIZES;
}

static int count_all(void **state) {
    (void)state;
    char work[200], lengths[256], totals[256], command[2000];
    snprintf(work, sizeof work, TN_BINARY_DIR "/growth-counts-XXXXXX");
    if (!mkdtemp(work)) return -1;
    snprintf(lengths, sizeof lengths, "%s/lengths", work);
    snprintf(totals, sizeof totals, "%s/totals", work);
    snprintf(command, sizeof command,
             "valgrind -q --tool=callgrind --collect-atstart=no --toggle-collect=tn_test_counted "
             "--dump-after=tn_test_counted --combine-dumps=yes --callgrind-out-file='%s' '%s' read >'%s'",
             totals, program, lengths);
    bool ok = system(command) == 0 && read_counts(lengths, totals);
    snprintf(command, sizeof command, "rm -rf '%s'", work);
    return system(command) == 0 && ok ? 0 : -1;
}

/* The square of four is sixteen; five leaves room for logarithms. What takes next to nothing at four units
 * has shown nothing. */
static void growth_is_linear(void **state) {
    const struct kase *k = *state;
    const uint64_t *n = instructions[k - cases], nothing = 1000000;
    print_message("%s: %zu, %zu, %zu bytes: %.2f, %.2f, %.2f million instructions\n", k->name,
                  bytes[k - cases][0], bytes[k - cases][1], bytes[k - cases][2], (double)n[0] * 1e-6,
                  (double)n[1] * 1e-6, (double)n[2] * 1e-6);
    assert_true(n[0] > 0);
    if (n[2] > 5 * n[0] + nothing || 2 * n[1] > 5 * n[0] + 2 * nothing)
        fail_msg("%s: the work grows faster than the input", k->name);
}

int main(int argc, char **argv) {
    program = argv[0];
    if (!TN_COUNTED || (argc > 1 && !strcmp(argv[1], "read"))) return read_all();
    if (system("command -v valgrind >/dev/null")) {
        fprintf(stderr, "needs valgrind to count instructions (scripts/setup.sh --oracle)\n");
        return 77;
    }
    struct CMUnitTest tests[N_CASES];
    for (int i = 0; i < N_CASES; i++)
        tests[i] = (struct CMUnitTest){.name = cases[i].name,
                                       .test_func = growth_is_linear,
                                       .initial_state = (void *)(uintptr_t)&cases[i]};
    return cmocka_run_group_tests(tests, count_all, NULL);
}
