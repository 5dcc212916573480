/* lab/growth_more.h - inputs of lab/growth.c for lists that files and answers may have. */
#ifndef TN_TESTS_LAB_GROWTH_MORE_H
#define TN_TESTS_LAB_GROWTH_MORE_H

#include "base/json.h"
#include "cli/chat_file.h"
#include "fixture/zip.h"
#include "formats/package.h"
#include "formats/safetensors.h"
#include "measure/suite_impl.h"
#include "lab/growth_buf.h"
#include "model/lora.h"
#include "model/small_hparams.h"
#include "package/npu_model.h"
#include "server/mcp.h"
#include "server/mcp_client.h"
#include "server/rag_body.h"
#include "server/talk_nodes.h"
#include "documents/documents.h"
#include "documents/extract.h"
#include "text/chat.h"
#include "text/rwkv.h"
#include "text/spm.h"
#include "text/toolcall.h"
#include "text/tokenizer.h"

#include <archive.h>
#include <archive_entry.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

/* fmt, which has one %zu, for each number below n. */
__attribute__((format(printf, 3, 0))) static void numbered(buf *b, size_t n, const char *fmt) {
    char piece[400];
    for (size_t i = 0; i < n; i++) put(b, piece, (size_t)snprintf(piece, sizeof piece, fmt, i));
}
/* The same as a list in JSON, after the first. */
__attribute__((format(printf, 3, 0))) static void list_of(buf *b, size_t n, const char *fmt) {
    char piece[400];
    for (size_t i = 0; i < n; i++) {
        if (i) puts_(b, ",");
        put(b, piece, (size_t)snprintf(piece, sizeof piece, fmt, i));
    }
}

/* ---- containers ------------------------------------------------------------------------------------ */

static void office(buf *b, const char *entry, const char *head, const char *body, size_t n_body,
                   const char *tail) {
    buf x = {0};
    size_t n;
    puts_(&x, head);
    repeat(&x, body, n_body);
    puts_(&x, tail);
    char *zip = tn_test_zip(entry, x.p, x.n, &n);
    assert_non_null(zip);
    put(b, zip, n);
    free(zip);
    free(x.p);
}

/* A container of many entries: the name has one %zu, and all have the same bytes; the first may have others. */
__attribute__((format(printf, 2, 0))) static void
entries(buf *b, const char *name, size_t n, const char *bytes, const char *first, const buf *first_bytes) {
    struct archive *a = archive_write_new();
    size_t cap = (1 << 20) + n * (400 + strlen(bytes)) + (first ? first_bytes->n : 0), used = 0;
    char *out = malloc(cap), path[80];
    assert_true(a && out);
    archive_write_set_format_zip(a);
    archive_write_zip_set_compression_store(a);
    assert_int_equal(archive_write_open_memory(a, out, cap, &used), ARCHIVE_OK);
    for (size_t i = 0; i <= n; i++) {
        bool is_first = i == n;
        if (is_first && !first) break;
        struct archive_entry *e = archive_entry_new();
        snprintf(path, sizeof path, name, i);
        size_t n_bytes = is_first ? first_bytes->n : strlen(bytes);
        archive_entry_set_pathname(e, is_first ? first : path);
        archive_entry_set_filetype(e, AE_IFREG);
        archive_entry_set_perm(e, 0600);
        archive_entry_set_size(e, (la_int64_t)n_bytes);
        assert_int_equal(archive_write_header(a, e), ARCHIVE_OK);
        assert_int_equal(archive_write_data(a, is_first ? first_bytes->p : bytes, n_bytes),
                         (la_ssize_t)n_bytes);
        archive_entry_free(e);
    }
    archive_write_close(a);
    archive_write_free(a);
    put(b, out, used);
    free(out);
}

static void many_entries(buf *b, size_t n) {
    buf first = {0};
    puts_(&first,
          "<w:document xmlns:w=\"w\"><w:body><w:p><w:r><w:t>a</w:t></w:r></w:p></w:body></w:document>");
    entries(b, "word/media/picture%zu.png", n / 160, "x", "word/document.xml", &first);
    free(first.p);
}
static void docx_attributes(buf *b, size_t n) {
    buf head = {0};
    puts_(&head, "<w:document xmlns:w=\"w\"><w:body><w:p><w:r><w:t");
    numbered(&head, n / 16 < 60 ? n / 16 : 60, " a%zu=\"b\"");
    puts_(&head, ">a</w:t></w:r></w:p>");
    put(&head, "", 1);
    office(b, "word/document.xml", head.p, "<w:p w:a='x' w:b='y'><w:r><w:t>a</w:t></w:r></w:p>", n / 52,
           "</w:body></w:document>");
    free(head.p);
}
static void epub(buf *b, size_t n) {
    buf opf = {0};
    size_t k = n / 320;
    puts_(&opf, "<package><manifest>");
    numbered(&opf, k, "<item id=\"i%zu\" href=\"c");
    opf.n = 0;
    puts_(&opf, "<package><manifest>");
    char one[120];
    for (size_t i = 0; i < k; i++)
        put(&opf, one, (size_t)snprintf(one, sizeof one, "<item id=\"i%zu\" href=\"c%zu.xhtml\"/>", i, i));
    puts_(&opf, "</manifest><spine>");
    numbered(&opf, k, "<itemref idref=\"i%zu\"/>");
    puts_(&opf, "</spine></package>");
    entries(b, "c%zu.xhtml", k, "<html><body><p>a</p></body></html>", "content.opf", &opf);
    free(opf.p);
}
static void pptx(buf *b, size_t n) {
    size_t k = n / 256 < 900 ? n / 256 : 900;
    entries(b, "ppt/slides/slide%zu.xml", k,
            "<p:sld xmlns:p=\"p\" xmlns:a=\"a\"><a:p><a:t>a</a:t></a:p></p:sld>", NULL, NULL);
}
static void odt_spaces(buf *b, size_t n) {
    office(b, "content.xml",
           "<office:document-content xmlns:office=\"o\" xmlns:text=\"t\"><office:body><office:text>",
           "<text:p>a<text:s text:c=\"3\"/><text:tab/>b</text:p>", n / 48,
           "</office:text></office:body></office:document-content>");
}

/* ---- mail, pages, texts ---------------------------------------------------------------------------- */

static void eml_line(buf *b, size_t n) {
    puts_(b, "From: a@b\nSubject: ");
    repeat(b, "a ", n / 2);
    puts_(b, "\n\nbody\n");
}
static void eml_words(buf *b, size_t n) {
    puts_(b, "From: a@b\nSubject: ");
    repeat(b, "=?utf-8?q?a_b?= ", n / 16);
    puts_(b, "\n\nbody\n");
}
static void eml_base64(buf *b, size_t n) {
    puts_(b, "From: a@b\nContent-Type: text/plain\nContent-Transfer-Encoding: base64\n\n");
    repeat(b, "YWJj\n", n / 5);
}
static void eml_quoted(buf *b, size_t n) {
    puts_(b, "From: a@b\nContent-Type: text/plain\nContent-Transfer-Encoding: quoted-printable\n\n");
    repeat(b, "a=C3=A9=\n", n / 9);
}
static void html_tables(buf *b, size_t n) { repeat(b, "<table><tr><td>a", n / 16); }
static void html_attributes(buf *b, size_t n) {
    puts_(b, "<p");
    repeat(b, " a='b' c=\"d\" e", n / 14);
    puts_(b, ">text");
}
static void text_bytes(buf *b, size_t n) { repeat(b, "a\xe9\r\n\xc3\xa9", n / 6); }
static bool take_passage(void *user, const char *p, size_t n) {
    (void)user, (void)p, (void)n;
    return true;
}
static void read_text(const buf *b) { /* and cut into passages */
    char *text;
    size_t n;
    tern_error err;
    const tn_passage_options o = {.max_tokens = 40, .overlap_tokens = 10};
    if (tn_text_decode(&ctx, b->p, b->n, &text, &n, &err) != TERN_OK) fail_msg("%s", err.message);
    tn_passages(text, n, &o, take_passage, NULL);
    tn_free(&ctx, text);
}

/* ---- conversations --------------------------------------------------------------------------------- */

static void saved_messages(buf *b, size_t n) { repeat(b, "user: a\nassistant: b\n", n / 21); }
static void saved_lines(buf *b, size_t n) {
    puts_(b, "user: a");
    repeat(b, "\n\ta", n / 3);
    puts_(b, "\nassistant: b\n");
}
static void read_saved(const buf *b) {
    char *copy = strndup(b->p, b->n), *at = copy;
    const char *role;
    assert_non_null(copy);
    while (*at && cli_chat_file_next(&at, &role)) {
    }
    free(copy);
}

static void long_talk(buf *b, size_t n) {
    char one[120];
    puts_(b, "{\"nodes\":[");
    for (size_t i = 1; i <= n / 60; i++)
        put(b, one,
            (size_t)snprintf(one, sizeof one,
                             "%s{\"id\":%zu,\"parent\":%zu,\"role\":\"%s\",\"content\":\"x\"}",
                             i > 1 ? "," : "", i, i - 1, i % 2 ? "user" : "assistant"));
    puts_(b, "]}");
}
static void wide_talk(buf *b, size_t n) {
    char one[120];
    puts_(b, "{\"nodes\":[");
    for (size_t i = 1; i <= n / 60; i++)
        put(b, one,
            (size_t)snprintf(one, sizeof one,
                             "%s{\"id\":%zu,\"parent\":0,\"role\":\"user\",\"content\":\"x\"}",
                             i > 1 ? "," : "", i));
    puts_(b, "]}");
}
static void read_talk(const buf *b) {
    tern_error err;
    json_t *v = tn_json_parse(b->p, b->n, JSON_REJECT_DUPLICATES, NULL), *list = json_array();
    size_t n = json_array_size(json_object_get(v, "nodes"));
    json_t *body = tn_json_pack("{s:I, s:s}", "parent", (json_int_t)(n & ~(size_t)1), "content", "x");
    int64_t asked, id;
    tn_request r;
    assert_non_null(v);
    if (tn_talk_say(v, body, &list, &asked, &err) == TERN_OK) {
        if (tn_talk_request(v, asked, &(tn_talk_asked){0}, &r, &err) == TERN_OK) tn_request_free(&r);
        (void)tn_talk_add(v, asked, "assistant", "x", 1, NULL, &id, &err);
    }
    json_decref(list);
    json_decref(body);
    json_decref(v);
}

static void rag_document(buf *b, size_t n) {
    puts_(b, "{\"name\":\"a.txt\",\"text\":\"");
    repeat(b, "a\\n", n / 3);
    puts_(b, "\"}");
}
static void rag_base64(buf *b, size_t n) {
    puts_(b, "{\"name\":\"a.txt\",\"data\":\"");
    repeat(b, "YWJj", n / 4);
    puts_(b, "\"}");
}
static void read_rag(const buf *b) {
    tn_rag_given g;
    tern_error err;
    if (tn_rag_read_document(b->p, b->n, &g, &err) == TERN_OK) tn_rag_given_free(&g);
}

/* ---- messages of an agent -------------------------------------------------------------------------- */

static tern_status nothing_found(void *user, const char *text, int32_t n, json_t **out, tern_error *err) {
    (void)user, (void)text, (void)n, (void)err;
    *out = json_array();
    return TERN_OK;
}
static void agent_arguments(buf *b, size_t n) {
    puts_(b, "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"tools/"
             "call\",\"params\":{\"name\":\"search\",\"arguments\":{\"query\":\"x\"");
    numbered(b, n / 12, ",\"k%zu\":1");
    puts_(b, "}}}");
}
static void agent_query(buf *b, size_t n) {
    puts_(b, "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"tools/"
             "call\",\"params\":{\"name\":\"search\",\"arguments\":{\"query\":\"");
    repeat(b, "a ", n / 2);
    puts_(b, "\"}}}");
}
static void read_agent(const buf *b) {
    static const tn_mcp_tools tools = {.search = nothing_found, .read = nothing_found, .ask = nothing_found};
    bool no_memory;
    json_t *m = tn_json_parse(b->p, b->n, JSON_REJECT_DUPLICATES, NULL);
    assert_non_null(m);
    json_decref(tn_mcp_answer(&tools, m, &no_memory));
    json_decref(m);
}

/* ---- servers of tools -------------------------------------------------------------------------------- */

static void tool_list(buf *b, size_t n) {
    puts_(b, "{\"id\":1,\"result\":{\"tools\":[");
    list_of(b, n / 32, "{\"name\":\"t%zu\",\"inputSchema\":{}}");
    puts_(b, "],\"content\":[");
    list_of(b, n / 32, "{\"type\":\"text\",\"text\":\"%zu\"}");
    puts_(b, "]}}\n");
}
static void tool_log(buf *b, size_t n) { repeat(b, "x\n", n / 2); }
static void tool_pings(buf *b, size_t n) { repeat(b, "{\"id\":7,\"method\":\"ping\"}\n", n / 27); }
static void hear_tools(const buf *b) {
    tn_mcp_client *c;
    tern_error err;
    json_t *result, *list = json_array();
    char *text;
    bool failed;
    assert_int_equal(tn_mcp_client_new("t", &c, &err), TERN_OK);
    (void)tn_mcp_client_ask(c, "tools/list", json_object());
    tn_mcp_client_hear(c, b->p, b->n);
    (void)tn_mcp_client_reply(c, &result, &err);
    (void)tn_mcp_read_tools("t", result, &list, &err);
    assert_int_equal(tn_mcp_result_text(result, 1 << 20, &text, &failed, &err), TERN_OK);
    tn_mcp_client_close(&c);
    json_decref(list);
    json_decref(result);
    free(text);
}

/* ---- JSON ------------------------------------------------------------------------------------------ */

static void json_keys(buf *b, size_t n) {
    puts_(b, "{");
    list_of(b, n / 12, "\"k%zu\":1");
    puts_(b, "}");
}
static void json_alike(buf *b, size_t n) {
    puts_(b, "{");
    list_of(b, n / 60, "\"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa%010zu\":1");
    puts_(b, "}");
}
static void json_escapes(buf *b, size_t n) {
    puts_(b, "[\"");
    repeat(b, "\\u00e9\\n\\ud83d\\ude00", n / 20);
    puts_(b, "\"]");
}
static void json_digits(buf *b, size_t n) {
    puts_(b, "[0.");
    repeat(b, "1234567890", n / 10);
    puts_(b, "]");
}
static void json_lists(buf *b, size_t n) {
    puts_(b, "[[]");
    repeat(b, ",[1,{}]", n / 7);
    puts_(b, "]");
}
static void json_lines(buf *b, size_t n) { /* and where it is wrong */
    puts_(b, "[1");
    repeat(b, "\n,1", n / 3);
    puts_(b, "oops");
}
static void read_json(const buf *b) {
    json_error_t je;
    json_decref(tn_json_parse(b->p, b->n, JSON_REJECT_DUPLICATES, &je));
}

/* ---- models ---------------------------------------------------------------------------------------- */

static void layer_types(buf *b, size_t n) {
    puts_(b, "{\"model_type\":\"gemma3_text\",\"layer_types\":[\"full_attention\"");
    repeat(b, ",\"full_attention\"", n / 17);
    puts_(b, "]}");
}
static void ends_of_config(buf *b, size_t n) {
    puts_(b, "{\"model_type\":\"llama\",\"eos_token_id\":[1");
    repeat(b, ",1", n / 2);
    puts_(b, "]}");
}

static void gguf_long_text(buf *b, size_t n) {
    static const char head[] = "GGUF\3\0\0\0\0\0\0\0\0\0\0\0\1\0\0\0\0\0\0\0\1\0\0\0\0\0\0\0a\10\0\0\0";
    put(b, head, sizeof head - 1);
    put_number(b, n, 8);
    repeat(b, "a", n);
}

static void shard_metadata(buf *b, size_t n) {
    buf j = {0};
    puts_(&j, "{\"__metadata__\":{");
    list_of(&j, n / 16, "\"k%zu\":\"v\"");
    puts_(&j, "}}");
    put_number(b, j.n, 8);
    put(b, j.p, j.n);
    free(j.p);
}

/* An adapter's tensors in the order that is worst for pairs: all of one half first. */
static void pairs(buf *b, size_t n) {
    buf j = {0};
    size_t k = n / 256;
    char one[300];
    for (size_t i = 0; i < 2 * k; i++)
        put(&j, one,
            (size_t)snprintf(one, sizeof one,
                             "%s\"base_model.model.model.layers.%zu.self_attn.q_proj.lora_%s.weight\":{"
                             "\"dtype\":\"F32\",\"shape\":[1,1],\"data_offsets\":[%zu,%zu]}",
                             i ? "," : "{", i % k, i < k ? "A" : "B", 4 * i, 4 * i + 4));
    puts_(&j, "}");
    put_number(b, j.n, 8);
    put(b, j.p, j.n);
    repeat(b, "abcd", 2 * k);
    free(j.p);
}
static void open_adapter(const buf *b) {
    tn_hparams h = tn_test_small_hparams("llama");
    tn_program p;
    tn_safetensors *s = NULL;
    tn_lora *l = NULL;
    tern_error err;
    assert_int_equal(tn_program_make(&ctx, &h, &p, &err), TERN_OK);
    if (tn_safetensors_open_memory(&ctx, b->p, b->n, "x", &s, &err) != TERN_OK) fail_msg("%s", err.message);
    (void)tn_lora_read(&ctx, NULL, s,
                       "{\"peft_type\":\"LORA\",\"r\":1,\"lora_alpha\":1,\"target_modules\":[\"q_proj\"]}",
                       "x", &h, &p, NULL, &l, &err);
    tn_lora_close(&l);
    tn_safetensors_close(&s);
    tn_program_free(&p);
}

static void metadata(buf *b, size_t n) {
    puts_(b, "{\"hparams\":{\"arch\":\"llama\"},\"operators\":{");
    list_of(b, n / 16, "\"k%zu\":[1]");
    puts_(b, "}}");
}
static void open_metadata(const buf *b) {
    char path[300], scheme[24], description[64];
    tn_pkg_writer *w = NULL;
    tn_pkg *p = NULL;
    tn_hparams h;
    uint64_t n_params;
    tern_error err;
    snprintf(path, sizeof path, "%s/meta.tern", folder);
    tern_status st = tn_pkg_create(&ctx, path, 1, 0, &w, &err);
    if (st == TERN_OK) st = tn_pkg_put_section(w, TN_PKG_META, -1, b->p, b->n, &err);
    if (st == TERN_OK) st = tn_pkg_finish(&w, &err);
    if (st == TERN_OK) st = tn_pkg_open(&ctx, path, &p, &err);
    if (st != TERN_OK) fail_msg("%s", err.message);
    (void)tn_package_hparams(&ctx, p, &h, scheme, description, &n_params, &err);
    tn_pkg_close(&p);
}

static void pieces(buf *b, size_t n) {
    char one[40];
    for (size_t i = 0; i < n / 16; i++) {
        char piece[24];
        int k = snprintf(piece, sizeof piece, "p%zu", i);
        put(b, one, (size_t)snprintf(one, sizeof one, "\n%c\n%c%s", (char)(k + 2), (char)k, piece));
    }
}
static tern_status take_piece(void *user, int32_t id, const char *text, size_t n, float score,
                              tn_token_type type) {
    (void)user, (void)id, (void)text, (void)n, (void)score, (void)type;
    return TERN_OK;
}
static void open_spm(const buf *b) {
    tn_spm m;
    tern_error err;
    (void)tn_spm_read(b->p, b->n, &m, take_piece, NULL, &err);
}

/* RWKV's vocabulary. */
static void rwkv_tokens(buf *b, size_t n) {
    char one[64];
    for (size_t i = 1; i <= n / 32; i++)
        put(b, one, (size_t)snprintf(one, sizeof one, "%zu '%08zu\\x41\\n' 10\n", i, i));
}
static tern_status take_token(void *user, int32_t id, const char *bytes, size_t n) {
    (void)user, (void)id, (void)bytes, (void)n;
    return TERN_OK;
}
static void open_vocabulary(const buf *b) {
    tern_error err;
    (void)tn_rwkv_read(b->p, b->n, take_token, NULL, &err);
}

/* A tokenizer as a package has it, of n bytes of tokens. */
static void blob(buf *b, size_t n) {
    tn_tokenizer *t;
    tern_error err;
    buf json = {0};
    uint8_t *bytes;
    size_t n_bytes;
    puts_(&json, "{\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false},\"model\":{\"type\":"
                 "\"BPE\",\"vocab\":{");
    list_of(&json, n / 24, "\"a%1$zu\":%1$zu");
    puts_(&json, "},\"merges\":[]},\"added_tokens\":[]}");
    put(&json, "", 1);
    extern tern_status tn_hf_parse(tn_ctx *, const char *, size_t, tn_tokenizer **, tern_error *);
    if (tn_hf_parse(&ctx, json.p, json.n - 1, &t, &err) != TERN_OK) fail_msg("%s", err.message);
    if (tn_tokenizer_save(t, &bytes, &n_bytes, &err) != TERN_OK) fail_msg("%s", err.message);
    put(b, bytes, n_bytes);
    tn_free(&ctx, bytes);
    tn_tokenizer_close(&t);
    free(json.p);
}
static void open_blob(const buf *b) {
    tn_tokenizer *t;
    tern_error err;
    if (tn_tokenizer_load(&ctx, (const uint8_t *)b->p, b->n, &t, &err) != TERN_OK)
        fail_msg("%s", err.message);
    tn_tokenizer_close(&t);
}

static void tokenizer_with(buf *b, const char *what, const char *list, const char *one, size_t n) {
    puts_(b, "{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[]},\"");
    puts_(b, what);
    puts_(b, "\":{\"type\":\"Sequence\",\"");
    puts_(b, list);
    puts_(b, "\":[");
    puts_(b, one);
    for (size_t i = 1; i < n; i++) puts_(b, ","), puts_(b, one);
    puts_(b, "]}}");
}
static void normalizers(buf *b, size_t n) {
    tokenizer_with(b, "normalizer", "normalizers", "{\"type\":\"NFC\"}", n / 15);
}
static void pre_tokenizers(buf *b, size_t n) {
    tokenizer_with(b, "pre_tokenizer", "pretokenizers",
                   "{\"type\":\"Split\",\"behavior\":\"Isolated\",\"pattern\":{\"Regex\":\"a\"}}", n / 64);
}
static void decoders(buf *b, size_t n) {
    tokenizer_with(b, "decoder", "decoders", "{\"type\":\"Fuse\"}", n / 16);
}
static void post_processors(buf *b, size_t n) {
    tokenizer_with(b, "post_processor", "processors",
                   "{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":\"a\"}}]}",
                   n / 68);
}
static void try_tokenizer(const buf *b) {
    extern tern_status tn_hf_parse(tn_ctx *, const char *, size_t, tn_tokenizer **, tern_error *);
    tn_tokenizer *t;
    tern_error err;
    if (tn_hf_parse(&ctx, b->p, b->n, &t, &err) == TERN_OK) tn_tokenizer_close(&t);
}

/* ---- templates, grammars, schemas ------------------------------------------------------------------ */

static void jinja_filters(buf *b, size_t n) { repeat(b, "{{ 'ab'|upper|lower|trim }}", n / 27); }
static void jinja_macros(buf *b, size_t n) { numbered(b, n / 40, "{%% macro m%zu() %%}a{%% endmacro %%}"); }
static void jinja_names(buf *b, size_t n) { numbered(b, n / 48, "{%% set v%zu = 1 %%}{{ ns is defined }}"); }

static void classes(buf *b, size_t n) {
    puts_(b, "root ::= [a");
    repeat(b, "b-cx-z", n / 6);
    puts_(b, "]*\n");
}
static void comments(buf *b, size_t n) {
    repeat(b, "# a\n", n / 4);
    puts_(b, "root ::= \"a\"\n");
}
static void literals(buf *b, size_t n) {
    puts_(b, "root ::= \"");
    repeat(b, "a", n < 60000 ? n : 60000);
    puts_(b, "\"\n");
}

static void required(buf *b, size_t n) {
    puts_(b, "{\"type\":\"object\",\"properties\":{");
    list_of(b, n / 40, "\"p%zu\":{}");
    puts_(b, "},\"required\":[");
    list_of(b, n / 40, "\"p%zu\"");
    puts_(b, "]}");
}
static void definitions(buf *b, size_t n) {
    puts_(b, "{\"anyOf\":[");
    list_of(b, n / 80, "{\"$ref\":\"#/$defs/d%zu\"}");
    puts_(b, "],\"$defs\":{");
    list_of(b, n / 80, "\"d%zu\":{\"type\":\"null\"}");
    puts_(b, "}}");
}
static void any_of(buf *b, size_t n) {
    puts_(b, "{\"anyOf\":[");
    list_of(b, n / 24, "{\"const\":\"a%zu\"}");
    puts_(b, "]}");
}
static void all_of(buf *b, size_t n) {
    puts_(b, "{\"allOf\":[");
    list_of(b, n / 48, "{\"properties\":{\"p%zu\":{\"type\":\"null\"}}}");
    puts_(b, "]}");
}
static void pattern(buf *b, size_t n) {
    puts_(b, "{\"type\":\"string\",\"pattern\":\"^(a");
    repeat(b, "|b", n / 2);
    puts_(b, ")*$\"}");
}
static void pattern_properties(buf *b, size_t n) {
    puts_(b, "{\"type\":\"object\",\"patternProperties\":{");
    list_of(b, n / 32, "\"^p%zu$\":{\"type\":\"null\"}");
    puts_(b, "}}");
}
static void tuple(buf *b, size_t n) {
    puts_(b, "{\"type\":\"array\",\"prefixItems\":[");
    list_of(b, n / 16, "{\"const\":%zu}");
    puts_(b, "]}");
}
static void long_const(buf *b, size_t n) {
    puts_(b, "{\"const\":\"");
    repeat(b, "a", n);
    puts_(b, "\"}");
}

/* ---- what a model says ----------------------------------------------------------------------------- */

static void call_begins(buf *b, size_t n) { repeat(b, "<tool_call>", n / 11); }
static void call_braces(buf *b, size_t n) { repeat(b, "{\"name\":", n / 8); }
static void call_long(buf *b, size_t n) {
    puts_(b, "<tool_call>{\"name\":\"f\",\"arguments\":{\"a\":\"");
    repeat(b, "a\\n", n / 3);
    puts_(b, "\"}}</tool_call>");
}
static void call_many(buf *b, size_t n) {
    repeat(b, "<tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call>\n", n / 52);
}
static void call_list(buf *b, size_t n) {
    puts_(b, "<|tool_call_start|>[f(a=1)");
    repeat(b, ", f(a='b')", n / 10);
    puts_(b, "]<|tool_call_end|>");
}
static void call_parameters(buf *b, size_t n) {
    puts_(b, "<tool_call><function=f>");
    numbered(b, n / 32, "<parameter=a%zu>1</parameter>\n");
    puts_(b, "</function></tool_call>");
}
static void call_angles(buf *b, size_t n) { repeat(b, "<|<", n / 3); }

static bool any_text(void *user, const char *p, size_t n) {
    (void)user, (void)p, (void)n;
    return true;
}
static bool any_call(void *user, const char *name, const char *arguments) {
    (void)user, (void)name, (void)arguments;
    return true;
}
/* In every markup, token by token. */
static void read_calls(const buf *b) {
    json_t *tool = tn_json_pack("{s:s, s:{s:s}}", "type", "function", "function", "name", "f"),
           *list = json_array();
    tn_json_append(&list, tool);
    for (int form = 0; form <= TN_CALLS_HARMONY; form++) {
        for (int forced = 0; forced < 2; forced++) {
            tn_answer *a;
            tern_error err;
            const tn_answer_options o = {
                .form = {.calls = (tn_call_form)form, .think = "<think>", .think_ends = "</think>"},
                .tools = list,
                .forced = forced,
                .on = {any_text, any_text, any_call, NULL}};
            if (tn_answer_open(&ctx, &o, &a, &err) != TERN_OK) continue;
            for (size_t i = 0; i < b->n; i += 5)
                (void)tn_answer_put(a, b->p + i, b->n - i < 5 ? b->n - i : 5);
            (void)tn_answer_end(a);
            tn_answer_close(&a);
        }
    }
    json_decref(list);
}

/* ---- benchmarks ------------------------------------------------------------------------------------ */

static void many_results(buf *b, size_t n) {
    puts_(b, "{\"tern_eval\":1,\"task\":\"ifeval\",\"model\":{},\"form\":{},\"data\":{},\"asked\":{}}\n");
    numbered(b, n / 64, "{\"id\":\"%zu\",\"groups\":[\"a\",\"b\"],\"score\":0.5}\n");
}
static void many_groups(buf *b, size_t n) {
    puts_(b, "{\"tern_eval\":1,\"task\":\"ifeval\",\"model\":{},\"form\":{},\"data\":{},\"asked\":{}}\n");
    char line[120];
    for (size_t i = 0; i < n / 64; i++)
        put(b, line,
            (size_t)snprintf(
                line, sizeof line,
                "{\"id\":\"%zu\",\"groups\":[\"g%zu\"],\"score\":1,\"instructions\":[{\"id\":\"i%zu\"}]}\n",
                i, i, i));
}
static void read_results(const buf *b) {
    json_t *v = NULL, *sum = NULL, *pair = NULL;
    size_t whole;
    if (tn_suite_parse(b->p, b->n, "results", &whole, &v, NULL) != TERN_OK) abort();
    (void)tn_suite_summary(v, &sum, NULL);
    (void)tn_suite_compare(v, v, &pair, NULL);
    json_decref(sum);
    json_decref(pair);
    json_decref(v);
}
static void table_rows(buf *b, size_t n) { repeat(b, "a,b,c,d,e,A\n", n / 12); }
static void table_quotes(buf *b, size_t n) {
    puts_(b, "\"");
    repeat(b, "\"\"", n / 2);
    puts_(b, "\",b,c,d,e,A\n");
}
static void read_table(const buf *b) {
    json_t *rows = NULL, *items = NULL;
    if (tn_suite_csv(b->p, b->n, "table", &rows, NULL) == TERN_OK)
        (void)tn_mmlu_items(rows, "subject", "table", &items, NULL);
    json_decref(items);
    json_decref(rows);
}
/* A question with many parameters, and as many values of each kind; it is its own answer. */
static void call_values(buf *b, size_t n) {
    puts_(b, "{\"id\":\"1\",\"question\":[[{\"role\":\"user\",\"content\":\"x\"}]],\"function\":[{\"name\":"
             "\"f\",\"parameters\":"
             "{\"properties\":{\"a\":{\"type\":\"string\"}");
    numbered(b, n / 80, ",\"p%zu\":{\"type\":\"string\"}");
    puts_(b, "}}}],\"ground_truth\":[{\"f\":{\"a\":[\"z\"");
    numbered(b, n / 80, ",\"v, %zu\"");
    puts_(b, "]");
    numbered(b, n / 80, ",\"p%zu\":[\"\"]");
    puts_(b, "}}]}");
}
static void read_calls_right(const buf *b) {
    json_t *lines = NULL, *items = NULL, *calls = json_array(), *tools;
    char why[40];
    bool right;
    tn_json_append(&calls, tn_json_pack("{s:s, s:s}", "name", "f", "arguments", "{\"a\":\"V 3\"}"));
    if (tn_suite_lines(b->p, b->n, "calls", &lines, NULL) != TERN_OK ||
        tn_bfcl_items(lines, lines, "multiple", "calls", &items, NULL) != TERN_OK)
        abort();
    if (!(tools = tn_bfcl_tools(json_array_get(items, 0)))) abort();
    if (!tn_bfcl_right(json_array_get(items, 0), calls, why, sizeof why, &right) || !right) abort();
    json_decref(tools);
    json_decref(calls);
    json_decref(lines);
    json_decref(items);
}

#endif
