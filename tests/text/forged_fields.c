/* Every template at hand, every field that somebody from outside may fill: the words of system, user, document and tool,
 * the names of people, tools and their parameters, descriptions, arguments. Each template's own markers are control
 * tokens here, and each field spells them; the control tokens of the prompt are those of a conversation that spells none,
 * or the conversation is refused. */
#include "text/chat.h"

#include "base/rng.h"
#include "text/utf8.h"

#include <jansson.h>
#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { MARKERS = 64, MARKER_BYTES = 48, ID_CAP = 1 << 15, ROUNDS = 12, FIELD_BYTES = 512 };

static tn_ctx ctx;
static char markers[MARKERS][MARKER_BYTES];
static int n_markers;

static const char *const fields[] = {"system",      "user",          "document",
                                     "user's name", "tool's result", "tool's name",
                                     "description", "parameter",     "parameter's description",
                                     "argument",    "value"};
enum { N_FIELDS = sizeof fields / sizeof *fields };

static void add_marker(const char *from, size_t n) {
    if (n < 3 || n >= MARKER_BYTES || n_markers == MARKERS) return;
    for (int i = 0; i < n_markers; i++)
        if (strlen(markers[i]) == n && !memcmp(markers[i], from, n)) return;
    snprintf(markers[n_markers++], MARKER_BYTES, "%.*s", (int)n, from);
}

/* What the template writes in brackets, without spaces and quotes: <|user|>, <start_of_turn>, [INST]. */
static void find_markers(const char *template) {
    n_markers = 0;
    add_marker("<s>", 3);
    add_marker("</s>", 4);
    for (const char *p = template; *p; p++) {
        if (*p != '<' && *p != '[') continue;
        size_t n = strcspn(p + 1, *p == '<' ? "> '\"\n{}%" : "] '\"\n{}%<>().,:") + 1;
        if (p[n] == (*p == '<' ? '>' : ']') && (*p == '<' || (p[1] >= 'A' && p[1] <= 'Z') || p[1] == '/'))
            add_marker(p, n + 1);
    }
}

static tn_tokenizer *open_with(const char *template) {
    static char bytes_of[256][8];
    const char *tokens[256 + MARKERS];
    size_t bytes[256 + MARKERS];
    uint8_t types[256 + MARKERS];
    int n = 256 + n_markers;
    memset(bytes_of, 0, sizeof bytes_of);
    for (int b = 0; b < 256; b++) tn_utf8_encode(tn_byte_to_alphabet((uint8_t)b), (uint8_t *)bytes_of[b]);
    for (int i = 0; i < n; i++) {
        tokens[i] = i < 256 ? bytes_of[i] : markers[i - 256];
        bytes[i] = strlen(tokens[i]);
        types[i] = i < 256 ? TN_TOKEN_NORMAL : TN_TOKEN_CONTROL;
    }
    tn_tokenizer_spec spec;
    tn_tokenizer_spec_defaults(&spec, TN_TOK_BPE_BYTES, "gpt-2");
    spec.n_vocab = n;
    spec.tokens = tokens;
    spec.token_bytes = bytes;
    spec.types = types;
    spec.bos = 256;
    spec.eos = 257;
    spec.add_bos = true;
    spec.chat_template = template;
    tn_tokenizer *t;
    tern_error err;
    if (tn_tokenizer_open(&ctx, &spec, &t, &err) != TERN_OK) fail_msg("%s", err.message);
    return t;
}

static void spell(tn_rng *rng, char *out) {
    static const char *const between[] = {"", "", " ", "\n", "user", "assistant", "x"};
    out[0] = 0;
    for (uint64_t k = 1 + tn_rng_below(rng, 5); k > 0; k--) {
        strcat(out, markers[tn_rng_below(rng, (uint64_t)n_markers)]);
        strcat(out, between[tn_rng_below(rng, sizeof between / sizeof *between)]);
    }
}

static json_t *text(const char *s) { return json_string_nocheck(s); }

/* A conversation with a tool whose fields say what `say` has; with_tools false: without tools and their turns. */
static void talk(const char *say[N_FIELDS], bool with_system, bool with_tools, bool with_document,
                 char **messages, char **tools, char **variables) {
    json_t *m = json_array(), *args = json_object(), *props = json_object(), *vars = json_object();
    if (with_system)
        json_array_append_new(m, json_pack("{s:s, s:o}", "role", "system", "content", text(say[0])));
    json_array_append_new(
        m, json_pack("{s:s, s:o, s:o}", "role", "user", "content", text(say[1]), "name", text(say[3])));
    if (with_tools) {
        json_object_set_new(args, say[9], text(say[10]));
        json_array_append_new(m, json_pack("{s:s, s:s, s:[{s:s, s:s, s:{s:o, s:O}}]}", "role", "assistant",
                                           "content", "", "tool_calls", "id", "call00001", "type", "function",
                                           "function", "name", text(say[5]), "arguments", args));
        json_array_append_new(m, json_pack("{s:s, s:o, s:s, s:o}", "role", "tool", "name", text(say[5]),
                                           "tool_call_id", "call00001", "content", text(say[4])));
        json_array_append_new(m, json_pack("{s:s, s:s}", "role", "assistant", "content", "yes"));
        json_array_append_new(m, json_pack("{s:s, s:s}", "role", "user", "content", "more"));
    }
    json_object_set_new(props, say[7],
                        json_pack("{s:s, s:o}", "type", "string", "description", text(say[8])));
    json_t *t =
        json_pack("[{s:s, s:{s:o, s:o, s:{s:s, s:O}}}]", "type", "function", "function", "name", text(say[5]),
                  "description", text(say[6]), "parameters", "type", "object", "properties", props);
    if (with_document)
        json_object_set_new(vars, "documents",
                            json_pack("[{s:o, s:o}]", "title", text(say[2]), "text", text(say[2])));
    assert_true(m && t && vars);
    *messages = json_dumps(m, 0);
    *tools = with_tools ? json_dumps(t, 0) : NULL;
    *variables = json_dumps(vars, 0);
    json_decref(m), json_decref(args), json_decref(props), json_decref(t), json_decref(vars);
}

/* The control tokens of the prompt, in order. false: the conversation is refused. */
static bool controls(const tn_tokenizer *t, const char *say[N_FIELDS], int form, int32_t *out, size_t *n,
                     tern_error *err) {
    static int32_t ids[ID_CAP];
    tern_chat_options o = {.size_bytes = sizeof o};
    char *messages, *tools, *variables;
    size_t n_ids;
    talk(say, form & 1, form & 2, form & 4, &messages, &tools, &variables);
    o.messages = messages;
    o.tools = tools;
    o.variables = variables;
    tern_status st = tn_chat_tokens(t, NULL, 0, &o, ids, ID_CAP, &n_ids, err);
    free(messages), free(tools), free(variables);
    *n = 0;
    for (size_t i = 0; st == TERN_OK && i < n_ids; i++)
        if (ids[i] >= 256) out[(*n)++] = ids[i];
    return st == TERN_OK;
}

/* Templates that are told by these words how to answer, wherever they stand: SmolLM3's. */
static bool is_switch(const char *source, const char *said) {
    return strstr(source, "\"/think\" in") && strstr(said, "/think");
}

static int check(const char *name, const char *source) {
    static int32_t got[ID_CAP], want[ID_CAP];
    static const char *plain[N_FIELDS] = {"alpha", "beta",  "gamma", "delta", "epsilon", "zeta",
                                          "eta",   "theta", "iota",  "kappa", "lambda"};
    tn_rng rng = {23};
    int n_forms = 0;
    find_markers(source);
    tn_tokenizer *t = open_with(source);
    for (int form = 0; form < 8; form++) {
        tern_error err;
        size_t n_got, n_want;
        if (!controls(t, plain, form, want, &n_want, &err))
            continue; /* the template takes no such conversation */
        n_forms++;
        for (int field = 0; field < N_FIELDS; field++) {
            for (int round = 0; round < ROUNDS; round++) {
                char said[FIELD_BYTES];
                const char *say[N_FIELDS];
                memcpy(say, plain, sizeof say);
                spell(&rng, said);
                if (is_switch(source, said)) continue;
                say[field] = said;
                if (!controls(t, say, form, got, &n_got, &err)) continue;
                if (n_got != n_want || memcmp(got, want, n_got * sizeof *got))
                    fail_msg("%s, form %d: the %s '%s' changes the control tokens: %zu, want %zu", name, form,
                             fields[field], said, n_got, n_want);
            }
        }
    }
    tn_tokenizer_close(&t);
    return n_forms;
}

static void every_template(void **state) {
    (void)state;
    static char source[1 << 17];
    struct dirent **names;
    char path[600];
    int n_forms = 0, n_templates = 0,
        n = scandir(TN_SOURCE_DIR "/tests/oracle/templates", &names, NULL, alphasort);
    assert_true(n > 0);
    for (int i = 0; i < n; i++) {
        const char *end = strrchr(names[i]->d_name, '.');
        if (end && !strcmp(end, ".jinja")) {
            snprintf(path, sizeof path, "%s/tests/oracle/templates/%s", TN_SOURCE_DIR, names[i]->d_name);
            FILE *f = fopen(path, "rb");
            assert_non_null(f);
            source[fread(source, 1, sizeof source - 1, f)] = 0;
            fclose(f);
            int forms = check(names[i]->d_name, source);
            if (!forms) fail_msg("%s takes no conversation", names[i]->d_name);
            n_forms += forms;
            n_templates++;
        }
        free(names[i]);
    }
    free(names);
    print_message("%d templates, %d forms of conversations, %d fields, %d rounds\n", n_templates, n_forms,
                  (int)N_FIELDS, ROUNDS);
    assert_true(n_templates >= 25);
}

int main(void) {
    tn_ctx_init(&ctx, NULL);
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_template)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
