/* server/depth_readers.h - every reader of bytes from outside, as a function of its bytes: for server/depth.c. */
#ifndef TN_TESTS_SERVER_DEPTH_READERS_H
#define TN_TESTS_SERVER_DEPTH_READERS_H

#include "base/json.h"
#include "cli/chat_file.h"
#include "formats/gguf.h"
#include "formats/safetensors.h"
#include "measure/suite_impl.h"
#include "model/arch.h"
#include "model/gguf_vocab.h"
#include "model/lora.h"
#include "model/small_hparams.h"
#include "package/npu_model.h"
#include "package/tuned.h"
#include "server/mcp.h"
#include "server/mcp_client.h"
#include "server/ollama.h"
#include "server/rag_body.h"
#include "server/request.h"
#include "server/responses.h"
#include "server/talk_nodes.h"
#include "documents/documents.h"
#include "documents/extract.h"
#include "text/grammar/grammar.h"
#include "text/chat.h"
#include "text/hf.h"
#include "text/jinja/jinja.h"
#include "text/small_vocab.h"
#include "text/rwkv.h"
#include "text/spm.h"
#include "text/toolcall.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

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

static tern_status results(const char *text, size_t n, tern_error *err) {
    json_t *v = NULL, *sum = NULL;
    size_t whole;
    TN_TRY(tn_suite_parse(text, n, "results", &whole, &v, err));
    tern_status st = tn_suite_summary(v, &sum, err);
    json_decref(sum);
    json_decref(v);
    return st;
}

/* The question is its own answer, and the call has no arguments. */
static tern_status functions(const char *text, size_t n, tern_error *err) {
    json_t *lines = NULL, *items = NULL, *tools, *calls = json_array();
    char why[40];
    bool right;
    tn_json_append(&calls, tn_json_pack("{s:s, s:s}", "name", "f", "arguments", "{\"a\":[[1]]}"));
    tern_status st = tn_suite_lines(text, n, "calls", &lines, err);
    if (st == TERN_OK) st = tn_bfcl_items(lines, lines, "multiple", "calls", &items, err);
    if (st == TERN_OK) {
        tools = tn_bfcl_tools(json_array_get(items, 0));
        (void)tn_bfcl_right(json_array_get(items, 0), calls, why, sizeof why, &right);
        json_decref(tools);
    }
    json_decref(calls);
    json_decref(lines);
    json_decref(items);
    return st;
}

static tern_status prompts(const char *text, size_t n, tern_error *err) {
    json_t *lines = NULL, *items = NULL;
    TN_TRY(tn_suite_lines(text, n, "prompts", &lines, err));
    tern_status st = tn_ifeval_items(lines, "prompts", &items, err);
    json_decref(lines);
    json_decref(items);
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

static tern_status llama(const char *text, size_t n, tern_error *err) {
    return request_of(TN_API_LLAMA, text, n, err);
}
static tern_status infill(const char *text, size_t n, tern_error *err) {
    tn_request r;
    TN_TRY(tn_request_read_infill(text, n, &r, err));
    tn_request_free(&r);
    return TERN_OK;
}
static tern_status ollama(const char *text, size_t n, tern_error *err) {
    for (int generate = 0; generate < 2; generate++) {
        tn_request r;
        tn_ollama_asked asked;
        TN_TRY(tn_ollama_read(generate, text, n, &r, &asked, err));
        tn_request_free(&r);
    }
    return TERN_OK;
}
static tern_status responses(const char *text, size_t n, tern_error *err) {
    static tn_responses *none;
    tn_request r;
    if (!none) TN_TRY(tn_responses_open(&none, err));
    TN_TRY(tn_responses_read(none, text, n, &r, err));
    tn_request_free(&r);
    return TERN_OK;
}

static tern_status document_of_rag(const char *text, size_t n, tern_error *err) {
    tn_rag_given g;
    TN_TRY(tn_rag_read_document(text, n, &g, err));
    tn_rag_given_free(&g);
    return TERN_OK;
}

/* A conversation of the page that was saved, the text being the file; and what is asked after its last node. */
static tern_status talk(const char *text, size_t n, tern_error *err) {
    json_t *v = tn_json_parse(text, n, JSON_REJECT_DUPLICATES, NULL), *list = json_array(),
           *body = tn_json_pack("{s:I, s:s}", "parent",
                                (json_int_t)json_array_size(json_object_get(v, "nodes")), "content", "x");
    int64_t asked;
    tn_request r;
    tern_status st = v ? tn_talk_apply(v, v, err) : tn_fail(err, TERN_E_INVALID, "no JSON");
    if (st == TERN_OK && json_is_array(json_object_get(v, "nodes"))) {
        st = tn_talk_say(v, body, &list, &asked, err);
        if (st == TERN_OK)
            st = tn_talk_request(v, asked, &(tn_talk_asked){.settings = json_object_get(v, "settings")}, &r,
                                 err);
        if (st == TERN_OK) tn_request_free(&r);
    }
    json_decref(list);
    json_decref(body);
    json_decref(v);
    return st;
}

/* Messages as a chat template gets them: they are JSON, and so are the arguments of their calls. */
static tern_status conversation(const char *text, size_t n, tern_error *err) {
    static tn_tokenizer *t;
    static small_vocab v;
    char out[64];
    tern_chat_options o;
    if (!t) {
        small_vocab_make(&v, 7);
        v.spec.chat_template = "{{ messages|tojson }}";
        TN_TRY(tn_tokenizer_open(&ctx, &v.spec, &t, err));
    }
    tern_chat_options_defaults(&o);
    o.messages = text;
    tern_status st = tn_chat_render(t, NULL, 0, &o, out, sizeof out, &n, err);
    return st == TERN_E_LIMIT ? TERN_OK : st;
}

/* A file of memory with the text; path names it until close(). */
static int file_of(const char *text, size_t n, char path[64]) {
    char name[] = TN_BINARY_DIR "/depth-XXXXXX";
    int fd = mkstemp(name);
    if (fd < 0 || unlink(name)) abort();
    for (size_t at = 0; at < n;) {
        ssize_t put = write(fd, text + at, n - at);
        if (put <= 0) abort();
        at += (size_t)put;
    }
    if (lseek(fd, 0, SEEK_SET)) abort();
    snprintf(path, 64, "/proc/self/fd/%d", fd);
    return fd;
}

static tern_status profile(const char *text, size_t n, tern_error *err) {
    char path[64];
    static const int32_t workers[TN_N_LANES] = {1};
    tn_tuned t;
    tn_aio_options o;
    json_t *j = NULL;
    int fd = file_of(text, n, path);
    tn_aio_defaults(&o);
    tn_tuned_read(fd, path, &o);
    (void)tn_tuned_load(path, 0, workers, &t);
    tern_status st = tn_json_read(path, 0, &j, err);
    json_decref(j);
    close(fd);
    return st;
}

/* A package whose metadata is the text. */
static tern_status metadata(const char *text, size_t n, tern_error *err) {
    char path[] = TN_BINARY_DIR "/depth-package-XXXXXX", scheme[24], description[64];
    uint64_t n_params;
    tn_pkg_writer *w = NULL;
    tn_pkg *p = NULL;
    tn_hparams h;
    int fd = mkstemp(path);
    if (fd < 0) abort();
    close(fd);
    unlink(path);
    tern_status st = tn_pkg_create(&ctx, path, 1, 0, &w, err);
    if (st == TERN_OK) st = tn_pkg_put_section(w, TN_PKG_META, -1, text, n, err);
    if (st == TERN_OK) st = tn_pkg_finish(&w, err);
    if (st == TERN_OK) st = tn_pkg_open(&ctx, path, &p, err);
    if (st == TERN_OK) st = tn_package_hparams(&ctx, p, &h, scheme, description, &n_params, err);
    tn_pkg_close(&p);
    unlink(path);
    return st;
}

static tern_status config(const char *text, size_t n, tern_error *err) {
    static const char *const types[] = {"llama",       "phi3",       "gemma3_text",
                                        "gemma4_text", "qwen3_next", "granitemoehybrid"};
    json_t *j = tn_json_parse(text, n, 0, NULL);
    if (!j) return tn_fail(err, TERN_E_FORMAT, "no JSON");
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        tn_hparams h;
        float by[TN_W_N_ROLES];
        const tn_arch *a = tn_arch_by_hf(types[i]);
        if (tn_arch_hparams_hf(a, j, "config.json", &h, err) == TERN_OK)
            (void)tn_arch_multipliers_hf(a, j, "config.json", by, err);
    }
    json_decref(j);
    return TERN_OK;
}

static tern_status safetensors(const char *text, size_t n, tern_error *err) {
    tn_safetensors *s;
    TN_TRY(tn_safetensors_open_memory(&ctx, text, n, "x.safetensors", &s, err));
    tn_safetensors_close(&s);
    return TERN_OK;
}

static tern_status adapter(const char *text, size_t n, tern_error *err) {
    static const char empty[] = "\2\0\0\0\0\0\0\0{}";
    tn_hparams h = tn_test_small_hparams("llama");
    tn_program p;
    tn_safetensors *s = NULL;
    tn_lora *l = NULL;
    char *config_text = strndup(text, n);
    tern_status st = tn_program_make(&ctx, &h, &p, err);
    if (st == TERN_OK) st = tn_safetensors_open_memory(&ctx, empty, sizeof empty - 1, "x", &s, err);
    if (st == TERN_OK) st = tn_lora_read(&ctx, NULL, s, config_text, "x", &h, &p, NULL, &l, err);
    tn_lora_close(&l);
    tn_safetensors_close(&s);
    tn_program_free(&p);
    free(config_text);
    return st;
}

static tern_status gguf(const char *text, size_t n, tern_error *err) {
    tn_gguf *g;
    tn_tokenizer *t = NULL;
    TN_TRY(tn_gguf_open_memory(&ctx, text, n, "x.gguf", &g, err));
    tern_status st = tn_gguf_tokenizer(&ctx, g, &t, err);
    tn_tokenizer_close(&t);
    tn_gguf_close(&g);
    return st;
}

static tern_status no_piece(void *user, int32_t id, const char *text, size_t n, float score,
                            tn_token_type type) {
    (void)user, (void)id, (void)text, (void)n, (void)score, (void)type;
    return TERN_OK;
}
static tern_status sentencepiece(const char *text, size_t n, tern_error *err) {
    tn_spm m;
    return tn_spm_read(text, n, &m, no_piece, NULL, err);
}

static tern_status no_token(void *user, int32_t id, const char *bytes, size_t n) {
    (void)user, (void)id, (void)bytes, (void)n;
    return TERN_OK;
}
static tern_status vocabulary(const char *text, size_t n, tern_error *err) {
    return tn_rwkv_read(text, n, no_token, NULL, err);
}

/* A conversation that tern chat saved. */
static tern_status saved(const char *text, size_t n, tern_error *err) {
    char *copy = strndup(text, n), *at = copy;
    const char *role;
    (void)err;
    while (*at && cli_chat_file_next(&at, &role)) {
    }
    free(copy);
    return TERN_OK;
}

static tern_status no_documents(void *user, const char *query, int32_t k, json_t **out, tern_error *err) {
    (void)user, (void)query, (void)k, (void)err;
    *out = json_array();
    return TERN_OK;
}
static tern_status mcp(const char *text, size_t n, tern_error *err) {
    static const tn_mcp_tools tools = {.search = no_documents, .read = no_documents, .ask = no_documents};
    json_error_t je;
    bool no_memory;
    json_t *m = tn_json_parse(text, n, JSON_REJECT_DUPLICATES, &je);
    if (!m) return tn_fail(err, TERN_E_INVALID, "%s", je.text);
    json_decref(tn_mcp_answer(&tools, m, &no_memory));
    json_decref(m);
    return TERN_OK;
}

static tern_status mcp_client(const char *text, size_t n, tern_error *err) {
    tn_mcp_client *c;
    json_t *result = NULL;
    char *shown = NULL;
    bool failed;
    TN_TRY(tn_mcp_client_new("t", &c, err));
    (void)tn_mcp_client_ask(c, "tools/call", json_object());
    tn_mcp_client_hear(c, text, n);
    tn_mcp_client_hear(c, "\n", 1);
    tern_status st = tn_mcp_client_reply(c, &result, err) == 1
                         ? tn_mcp_result_text(result, 1 << 20, &shown, &failed, err)
                         : TERN_E_FORMAT;
    tn_mcp_client_close(&c);
    json_decref(result);
    free(shown);
    return st;
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

static tern_status office(const char *text, size_t n, tern_error *err) {
    return document("a.docx", text, n, err);
}

#endif
