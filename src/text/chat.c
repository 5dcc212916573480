#include "text/chat.h"

#include "base/json.h"
#include "base/status.h"
#include "text/jinja/jinja.h"
#include "text/tokenizer_impl.h"

#include <assert.h>
#include <time.h>

static tern_status no_memory(tern_error *err) {
    return tn_fail(err, TERN_E_MEMORY, "out of memory for the conversation");
}

/* ---- which template ---- */

/* A name has no braces. */
tern_status tn_chat_source(const tn_tokenizer *t, const tern_chat_options *o, const char **source,
                           tern_error *err) {
    const char *given = o->chat_template;
    *source = t->tool_template && o->tools ? t->tool_template : t->chat_template;
    if (given && *given) {
        *source = strchr(given, '{') ? given : tn_chat_builtin(given);
        TN_FAIL_IF(!*source, err, TERN_E_INVALID,
                   "there is no chat template '%.60s'; by name there are " TN_CHAT_NAMES, given);
    }
    TN_FAIL_IF(!*source || !**source, err, TERN_E_UNSUPPORTED,
               "the model has no chat template; give it plain text, or name a template");
    TN_FAIL_IF(o->tools && !strstr(*source, "tools"), err, TERN_E_UNSUPPORTED,
               "the model's chat template knows no tools");
    return TERN_OK;
}

/* ---- the template's variables ---- */

static tern_status parse(const char *what, const char *text, bool array, json_t **out, tern_error *err) {
    json_error_t je;
    *out = tn_json_parse(text, strlen(text), 0, &je);
    TN_FAIL_IF(!*out && json_error_code(&je) == json_error_out_of_memory, err, TERN_E_MEMORY,
               "out of memory for the conversation");
    TN_FAIL_IF(!*out, err, TERN_E_INVALID, "%s: line %d is not JSON", what, je.line);
    bool right = array ? json_is_array(*out) : json_is_object(*out);
    if (right) return TERN_OK;
    json_decref(*out);
    *out = NULL;
    return tn_fail(err, TERN_E_INVALID, "%s: not %s", what, array ? "an array" : "an object");
}

static tern_status from_messages(const tern_message *msgs, size_t n, json_t **out, tern_error *err) {
    *out = json_array();
    for (size_t i = 0; i < n; i++) {
        if (!msgs[i].role || !msgs[i].content) {
            json_decref(*out);
            *out = NULL;
            return tn_fail(err, TERN_E_INVALID, "message %zu lacks its role or content", i);
        }
        tn_json_append(out, tn_json_pack("{s:s, s:s}", "role", msgs[i].role, "content", msgs[i].content));
    }
    return *out ? TERN_OK : no_memory(err);
}

/* Sets object[key] = value. Takes the value, borrows the object. */
static bool put(json_t *object, const char *key, json_t *value) {
    json_t *held = json_incref(object);
    tn_json_set(&held, key, value);
    json_decref(held);
    return held != NULL;
}

/* The object that the text of arguments is; one without words says that there are none. NULL: it is no object. */
static json_t *object_of(const json_t *args) {
    const char *text = json_string_value(args);
    if (!text) return NULL;
    if (!text[strspn(text, " \t\r\n")]) return json_object();
    json_t *v = tn_json_parse(text, json_string_length(args), TN_JSON_NO_NUL, NULL);
    if (json_is_object(v)) return v;
    json_decref(v);
    return NULL;
}

/* Turns the arguments of calls into objects. Clients send them as JSON in a string, but templates that loop
 * over them or pass them to tojson expect an object. */
static tern_status open_arguments(const char *source, json_t *messages, tern_error *err) {
    bool objects = false;
    for (const char *s = source; (s = strstr(s, "arguments")) && !objects;) {
        s += strlen("arguments");
        while (*s == '\'' || *s == '"' || *s == ']' || *s == ')' || *s == ' ') s++;
        if (*s == '|') s++;
        while (*s == ' ') s++;
        objects = !strncmp(s, "tojson", 6) || !strncmp(s, ".items", 6) || !strncmp(s, "items", 5) ||
                  !strncmp(s, "is mapping", 10);
    }
    size_t i, k;
    json_t *m, *call;
    if (!objects) return TERN_OK;
    json_array_foreach(messages, i, m) json_array_foreach(json_object_get(m, "tool_calls"), k, call) {
        json_t *f = json_object_get(call, "function");
        if (!json_is_object(f)) f = call;
        json_t *object = object_of(json_object_get(f, "arguments"));
        if (object && !put(f, "arguments", object)) return no_memory(err);
    }
    return TERN_OK;
}

/* Builds the variables as Hugging Face passes them: absent tools and documents are none, not undefined. */
static tern_status build_variables(const char *source, const tern_message *msgs, size_t n_msgs,
                                   const tern_chat_options *o, json_t **out, tern_error *err) {
    json_t *vars = NULL, *messages = NULL, *tools = NULL;
    tern_status st = TERN_OK;
    if (o->variables) st = parse("template variables", o->variables, false, &vars, err);
    else if (!(vars = json_object())) st = no_memory(err);
    if (st == TERN_OK)
        st = o->messages ? parse("messages", o->messages, true, &messages, err)
                         : from_messages(msgs, n_msgs, &messages, err);
    if (st == TERN_OK) st = open_arguments(source, messages, err);
    if (st == TERN_OK && o->tools) st = parse("tools", o->tools, true, &tools, err);
    if (st == TERN_OK) {
        if (!json_object_get(vars, "documents")) tn_json_set(&vars, "documents", json_null());
        tn_json_set(&vars, "messages", messages);
        tn_json_set(&vars, "tools", tools ? tools : json_null());
        tn_json_set(&vars, "add_generation_prompt", json_boolean(!o->no_answer));
        if (!vars) st = no_memory(err);
    } else {
        json_decref(messages);
        json_decref(tools);
        json_decref(vars);
        vars = NULL;
    }
    *out = vars;
    return st;
}

/* Collects the texts of the special tokens that the model has. */
static tern_status build_trusted(const tn_tokenizer *t, json_t **out, tern_error *err) {
    const struct {
        const char *name;
        int32_t id;
    } tokens[] = {{"bos_token", t->bos}, {"eos_token", t->eos}, {"unk_token", t->unk}, {"pad_token", t->pad}};
    *out = json_object();
    for (size_t i = 0; i < sizeof tokens / sizeof *tokens; i++) {
        if (tokens[i].id < 0) continue;
        size_t n;
        const uint8_t *p = tn_tok_text(t, (uint32_t)tokens[i].id, &n);
        tn_json_set(out, tokens[i].name, tn_json_string((const char *)p, n));
    }
    return *out ? TERN_OK : no_memory(err);
}

/* ---- rendering ---- */

static tern_status render(const tn_tokenizer *t, const char *source, const json_t *vars,
                          const json_t *trusted, const tern_chat_options *o, tn_segments *out,
                          tern_error *err) {
    const tn_jinja_input in = {.source = source,
                               .n_source = strlen(source),
                               .variables = vars,
                               .trusted = trusted,
                               .now_s = o->now_s ? o->now_s : (int64_t)time(NULL)};
    (void)t;
    return tn_jinja_render(out->ctx, &in, out, err);
}

static bool has_role(const json_t *m, const char *role) {
    const char *r = json_string_value(json_object_get(m, "role"));
    return r && !strcmp(r, role);
}

static const char *system_text(const json_t *messages, size_t i) {
    const json_t *m = json_array_get(messages, i);
    return has_role(m, "system") ? json_string_value(json_object_get(m, "content")) : NULL;
}

/* Whether the text is in the output. White space around it may be missing. */
static bool holds(const tn_segments *out, const char *text) {
    size_t from = strspn(text, " \t\r\n"), n = strlen(text);
    while (n > from && strchr(" \t\r\n", text[n - 1])) n--;
    return n <= from || (out->n_bytes && memmem(out->text, out->n_bytes, text + from, n - from));
}

/* Gives the message both texts, with an empty line between them. */
static bool join(tn_ctx *ctx, json_t *m, const char *first, const char *second) {
    size_t n = strlen(first), n_second = strlen(second);
    char *both = tn_alloc(ctx, TN_MEM_TEXT, n + 2 + n_second, 1);
    if (!both) return false;
    memcpy(both, first, n);
    memcpy(both + n, "\n\n", 2);
    memcpy(both + n + 2, second, n_second);
    json_t *s = tn_json_string(both, n + 2 + n_second);
    tn_free(ctx, both);
    return put(m, "content", s);
}

static const char *user_text(const json_t *messages, size_t i) {
    const json_t *m = json_array_get(messages, i);
    return has_role(m, "user") ? json_string_value(json_object_get(m, "content")) : NULL;
}

/* Removes the system message and puts its text in front of the first question, where there is one after it. */
static tern_status move_system(tn_ctx *ctx, json_t *messages, tern_error *err) {
    const char *sys = system_text(messages, 0), *text = user_text(messages, 1);
    if (!sys || !text) return TERN_OK;
    return join(ctx, json_array_get(messages, 1), sys, text) && !json_array_remove(messages, 0)
               ? TERN_OK
               : no_memory(err);
}

/* A system message after the first becomes words of the user: of the message before it, of that after it (system messages
 * between them are gathered), or one of its own. */
static tern_status fold_systems(tn_ctx *ctx, json_t *messages, tern_error *err) {
    for (size_t i = 1; i < json_array_size(messages); i++) {
        const char *sys = system_text(messages, i), *before = user_text(messages, i - 1),
                   *after = user_text(messages, i + 1);
        if (!sys) continue;
        if (!after) after = system_text(messages, i + 1);
        bool ok = before  ? join(ctx, json_array_get(messages, i - 1), before, sys)
                  : after ? join(ctx, json_array_get(messages, i + 1), sys, after)
                          : put(json_array_get(messages, i), "role", tn_json_string("user", 4));
        if (ok && (before || after)) ok = !json_array_remove(messages, i--);
        if (!ok) return no_memory(err);
    }
    return TERN_OK;
}

/* Whether the template refused the messages, or left the words of a system message out: of the first, or of a later one. */
static bool loses(tern_status st, const tn_segments *out, const json_t *messages, bool later) {
    for (size_t i = later; i < (later ? json_array_size(messages) : 1); i++) {
        const char *sys = system_text(messages, i);
        if (sys && (st == TERN_E_INVALID || (st == TERN_OK && !holds(out, sys)))) return true;
    }
    return false;
}

/* Drops a BOS that the template writes in front, because the tokenizer adds it. */
static void drop_bos(const tn_tokenizer *t, tn_segments *s) {
    size_t n = 0;
    if (!t->add_bos || t->bos < 0 || !s->n_seg || s->seg[0].content) return;
    const uint8_t *p = tn_tok_text(t, (uint32_t)t->bos, &n);
    if (!n || s->seg[0].end < n || memcmp(s->text, p, n)) return;
    memmove(s->text, s->text + n, s->n_bytes - n);
    s->n_bytes -= n;
    for (size_t i = 0; i < s->n_seg; i++) s->seg[i].end -= n;
    if (s->seg[0].end) return;
    memmove(s->seg, s->seg + 1, --s->n_seg * sizeof *s->seg);
}

/* Checks that the tools are in the output. A template that mentions tools may still leave them out if it
 * expects another name. */
static tern_status tools_arrived(const tn_segments *out, const json_t *tools, tern_error *err) {
    for (size_t i = 0; i < json_array_size(tools); i++) {
        const json_t *t = json_array_get(tools, i), *f = json_object_get(t, "function");
        const char *name = json_string_value(json_object_get(json_is_object(f) ? f : t, "name"));
        TN_FAIL_IF(name && !holds(out, name), err, TERN_E_UNSUPPORTED,
                   "the model's chat template leaves the tool '%.60s' out", name);
    }
    return TERN_OK;
}

static const tern_chat_options plain_options = {.size_bytes = sizeof plain_options};

static tern_status segments_of(const tn_tokenizer *t, const char *source, const tern_message *msgs,
                               size_t n_msgs, const tern_chat_options *o, tn_segments *out, tern_error *err) {
    json_t *vars = NULL, *trusted = NULL;
    tn_segments text;
    tn_segments_init(&text, out->ctx);
    tern_status st = build_variables(source, msgs, n_msgs, o, &vars, err);
    if (st == TERN_OK) st = build_trusted(t, &trusted, err);
    if (st != TERN_OK) goto out;
    json_t *messages = json_object_get(vars, "messages");
    st = render(t, source, vars, trusted, o, &text, err);
    for (int later = 1; later >= 0; later--) {
        if (!loses(st, &text, messages, later)) continue;
        st = later ? fold_systems(out->ctx, messages, err) : move_system(out->ctx, messages, err);
        if (st != TERN_OK) goto out;
        tn_segments_free(&text);
        st = render(t, source, vars, trusted, o, &text, err);
    }
    if (st == TERN_OK) st = tools_arrived(&text, json_object_get(vars, "tools"), err);
    if (st != TERN_OK) goto out;
    drop_bos(t, &text);
    for (size_t i = 0, from = 0; i < text.n_seg; from = text.seg[i++].end)
        tn_segments_add(out, text.text + from, text.seg[i].end - from, text.seg[i].content);
    if (out->failed) st = no_memory(err);
out:
    tn_segments_free(&text);
    json_decref(vars);
    json_decref(trusted);
    return st;
}

tern_status tn_chat_segments(const tn_tokenizer *t, const tern_message *msgs, size_t n_msgs,
                             const tern_chat_options *opt, tn_segments *out, tern_error *err) {
    const tern_chat_options *o = opt ? opt : &plain_options;
    const char *source;
    assert(t && out && (msgs || !n_msgs));
    TN_TRY(tn_chat_source(t, o, &source, err));
    return segments_of(t, source, msgs, n_msgs, o, out, err);
}

tern_status tn_chat_render(const tn_tokenizer *t, const tern_message *msgs, size_t n_msgs,
                           const tern_chat_options *opt, char *buf, size_t cap, size_t *n_bytes,
                           tern_error *err) {
    assert(n_bytes && (buf || !cap));
    *n_bytes = 0;
    tn_segments text;
    tn_segments_init(&text, t->ctx);
    tern_status st = tn_chat_segments(t, msgs, n_msgs, opt, &text, err);
    if (st == TERN_OK) {
        *n_bytes = text.n_bytes;
        if (text.n_bytes && cap) memcpy(buf, text.text, text.n_bytes < cap ? text.n_bytes : cap);
        if (text.n_bytes > cap)
            st = tn_fail(err, TERN_E_LIMIT, "the conversation takes %zu bytes, room for %zu", text.n_bytes,
                         cap);
    }
    tn_segments_free(&text);
    return st;
}

tern_status tn_chat_tokens(const tn_tokenizer *t, const tern_message *msgs, size_t n_msgs,
                           const tern_chat_options *opt, int32_t *ids, size_t cap, size_t *n_ids,
                           tern_error *err) {
    const tern_chat_options *o = opt ? opt : &plain_options;
    const char *source;
    assert(n_ids && (ids || !cap));
    *n_ids = 0;
    tn_segments text;
    tn_segments_init(&text, t->ctx);
    tern_status st = tn_chat_source(t, o, &source, err);
    if (st == TERN_OK) st = segments_of(t, source, msgs, n_msgs, o, &text, err);
    if (st == TERN_OK) st = tn_tokenize_segments(t, &text, source, true, ids, cap, n_ids, err);
    tn_segments_free(&text);
    return st;
}
