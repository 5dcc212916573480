#include "cli/chat_tools.h"

#include "base/status.h"
#include "cli/mcp_args.h"
#include "cli/output.h"
#include "engine/engine.h"
#include "session/constrain.h"
#include "text/tokenizer_impl.h"
#include "text/toolcall.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { SHOWN = 4000, SMALLEST = 256 };

typedef struct chat_tools {
    tn_mcp_servers *servers;
    tn_answer_form form;
    json_t *list, *given; /* of this question: the tools, and as the template is told of them */
    tn_answer *reader;    /* of this answer */
    json_t *calls;        /* [{id, name, arguments}] */
    chat *c;
    int n_calls;   /* of the conversation, for ids */
    bool thinks;   /* a thought is being shown */
    bool marked;   /* ... and its beginning was put */
    bool left_out; /* a prompt is made without the tools */
} chat_tools;

/* ---- opening ---------------------------------------------------------------------------------------------- */

int cli_chat_tools_open(chat *c, tn_mcp_servers *servers) {
    if (!servers) return -1;
    chat_tools *t = c->tools = calloc(1, sizeof *t);
    if (!t) tn_mcp_servers_close(&servers);
    if (!t) return cli_failed_text("no memory for tools");
    t->servers = servers;
    t->c = c;
    if (c->plain) return cli_failed_text("the model has no chat template: it cannot call tools (--mcp)");
    const tn_tokenizer *k = c->e->model->tokenizer;
    const char *source = c->source ? c->source : k->tool_template ? k->tool_template : k->chat_template;
    t->form = tn_answer_form_of(source);
    if (t->form.foreign)
        return cli_failed_text("the model writes calls of tools in a form that is not read (%s)",
                               cli_shown(t->form.foreign));
    tn_mcp_servers_open(servers, cli_mcp_tell, NULL, NULL);
    tn_mcp_servers_revive(servers, NULL, NULL);
    return -1;
}

void cli_chat_tools_close(chat *c) {
    chat_tools *t = c->tools;
    c->tools = NULL;
    if (!t) return;
    tn_mcp_servers_close(&t->servers);
    tn_answer_close(&t->reader);
    json_decref(t->list);
    json_decref(t->given);
    json_decref(t->calls);
    free(t);
}

static bool interrupted(void *user) {
    (void)user;
    return cli_interrupted();
}

/* The tools as they are now. Ctrl-C at a terminal ends the wait for servers that tell what changed; the tools of before are
 * listed then. */
static json_t *list_now(chat *c) {
    if (!c->terminal) return tn_mcp_servers_list(c->tools->servers, true, NULL, NULL);
    cli_interrupts_cancel(NULL);
    json_t *list = tn_mcp_servers_list(c->tools->servers, true, interrupted, NULL);
    if (cli_interrupted())
        fputs("tern: stopped asking which tools there are: those of before are used\n", stderr);
    cli_interrupts_cancel(NULL);
    return list;
}

bool cli_chat_tools_begin(chat *c) {
    chat_tools *t = c->tools;
    if (!t) return true;
    json_decref(t->list);
    json_decref(t->given);
    t->list = list_now(c);
    t->given = tn_mcp_servers_tools(t->list);
    if (!t->list || !t->given) return cli_failed_text("no memory for tools"), false;
    return true;
}

void cli_chat_tools_print(chat *c) {
    const chat_tools *t = c->tools;
    json_t *list = t ? list_now(c) : NULL, *one;
    size_t i;
    if (!json_array_size(list)) fputs("there are no tools (--mcp NAME=COMMAND)\n", stderr);
    json_array_foreach(list, i, one) {
        char name[TN_MCP_USER_NAME];
        const char *about = json_string_value(json_object_get(one, "description"));
        tn_mcp_user_name(one, name);
        fprintf(stderr, "%s%s%s%.*s\n", cli_shown_exactly(name),
                tn_mcp_servers_allows(t->servers, one) ? " (allowed)" : "", about && *about ? ": " : "",
                about ? (int)strcspn(about, "\n") : 0, about ? cli_shown(about) : "");
    }
    json_decref(list);
}

/* ---- the prompt ------------------------------------------------------------------------------------------- */

json_t *cli_chat_message(const chat *c, size_t i, json_t *content) {
    json_t *v = c->as[i] ? tn_json_copy_flat(c->as[i]) : tn_json_pack("{s:s}", "role", c->msgs[i].role);
    tn_json_set(&v, "content", content);
    return v;
}

void cli_chat_tools_leave_out(chat *c, bool out) {
    if (c->tools) c->tools->left_out = out;
}

bool cli_chat_tools_are_blamed(const chat *c, size_t n_with, size_t n_without) {
    const chat_tools *t = c->tools;
    const size_t n = json_array_size(t ? t->given : NULL), took = n_with > n_without ? n_with - n_without : 0;
    if (!n) return false;
    const json_t *first = json_object_get(json_array_get(t->list, 0), "server"), *one;
    size_t i;
    bool alone = true;
    json_array_foreach(t->list, i, one) alone = alone && json_equal(json_object_get(one, "server"), first);
    fprintf(
        stderr,
        "tern: the %zu tools of %s take %zu tokens of the context of %d, and leave no room for this message. "
        "It was not sent, and the conversation is unchanged. Start tern with servers of fewer tools (--mcp), "
        "or with a larger context (-c N)\n",
        n, alone ? cli_shown(json_string_value(first)) : "all servers", took, tern_session_capacity(c->s));
    return true;
}

tern_status cli_chat_tools_texts(const chat *c, const json_t *list, char **messages, char **tools,
                                 tern_error *err) {
    const chat_tools *t = c->tools;
    json_t *as_text = NULL;
    tern_status st = TERN_OK;
    bool any = t && !t->left_out && json_array_size(t->given);
    *messages = *tools = NULL;
    if (t && !t->form.knows_tools) st = tn_tools_as_text(list, any ? t->given : NULL, &as_text, err);
    if (st == TERN_OK) st = tn_json_text(as_text ? as_text : list, JSON_COMPACT, messages, err);
    if (st == TERN_OK && any && !as_text) st = tn_json_text(t->given, JSON_COMPACT, tools, err);
    json_decref(as_text);
    return st;
}

int32_t *cli_chat_tools_ids(const chat *c, size_t from, size_t *n_ids) {
    tern_error err;
    json_t *list = json_array();
    char *messages = NULL, *tools = NULL;
    int32_t *ids = NULL;
    for (size_t i = 0; i < c->n_msgs; i++)
        if (i >= from || !strcmp(c->msgs[i].role, "system")) {
            const char *text = c->msgs[i].content;
            tn_json_append(&list, cli_chat_message(c, i, tn_json_string(text, strlen(text))));
        }
    tern_status st = cli_chat_tools_texts(c, list, &messages, &tools, &err);
    tern_chat_options o;
    tern_chat_options_defaults(&o);
    o.messages = messages;
    o.tools = tools;
    o.chat_template = c->source;
    *n_ids = 0;
    for (size_t cap = 0; st == TERN_OK;) { /* the number needed is told */
        st = tern_chat_tokens(c->e, NULL, 0, &o, ids, cap, n_ids, &err);
        if (st != TERN_E_LIMIT || *n_ids <= cap) break;
        free(ids);
        ids = malloc((cap = *n_ids) * sizeof *ids);
        st = ids ? TERN_OK : tn_fail(&err, TERN_E_MEMORY, "no memory for the prompt");
    }
    if (st != TERN_OK) cli_failed(&err);
    if (st != TERN_OK) free(ids), ids = NULL;
    json_decref(list);
    free(messages);
    free(tools);
    return ids;
}

/* ---- the answer ------------------------------------------------------------------------------------------- */

static bool put(chat_tools *t, const char *p, size_t n) {
    return cli_answer_on_token(&t->c->answer, -1, p, n, 0);
}

static bool on_text(void *user, const char *p, size_t n) {
    chat_tools *t = user;
    bool ended = t->thinks && t->form.think_ends;
    t->thinks = false;
    return (!ended || (put(t, t->form.think_ends, strlen(t->form.think_ends)) && put(t, "\n\n", 2))) &&
           put(t, p, n);
}

/* Thoughts without marks of the template's own could not be told from the answer later: they are not shown. */
static bool on_thought(void *user, const char *p, size_t n) {
    chat_tools *t = user;
    if (!t->form.think) return true;
    bool begins = !t->thinks && !t->marked;
    t->thinks = t->marked = true;
    return (!begins || put(t, t->form.think, strlen(t->form.think))) && put(t, p, n);
}

static bool on_call(void *user, const char *name, const char *arguments) {
    chat_tools *t = user;
    char id[16];
    snprintf(id, sizeof id, "call%05d",
             ++t->n_calls % 100000); /* nine letters and digits: every template takes it */
    if (json_array_size(t->calls) == TN_MCP_CALLS) return true;
    tn_json_append(&t->calls,
                   tn_json_pack("{s:s, s:s, s:s}", "id", id, "name", name, "arguments", arguments));
    return t->calls != NULL;
}

static bool on_token(void *user, int32_t token, const char *text, size_t n, float logprob) {
    chat_tools *t = user;
    (void)token;
    (void)logprob;
    return tn_answer_put(t->reader, text, n);
}

tern_status cli_chat_tools_listen(chat *c, const int32_t *ids, size_t n_ids, tern_generate_options *g,
                                  tern_error *err) {
    chat_tools *t = c->tools;
    if (!t) return TERN_OK;
    tn_answer_close(&t->reader);
    json_decref(t->calls);
    t->calls = json_array();
    TN_FAIL_IF(!t->calls, err, TERN_E_MEMORY, "no memory for the answer");
    t->thinks = false;
    t->marked = t->form.think && tn_prompt_ends_with(c->e->model->tokenizer, ids, n_ids, t->form.think);
    const tn_answer_options o = {.form = t->form,
                                 .tools = json_array_size(t->given) ? t->given : NULL,
                                 .thinking = t->marked,
                                 .on = {on_text, on_thought, on_call, t}};
    g->on_token = on_token;
    g->user = t;
    g->special_text = t->form.has_markers;
    return tn_answer_open((tn_ctx *)&c->e->ctx, &o, &t->reader, err);
}

bool cli_chat_tools_heard(chat *c) {
    chat_tools *t = c->tools;
    if (!t || !t->reader) return true;
    bool ok = tn_answer_end(t->reader) && t->calls;
    if (ok && t->thinks && t->form.think_ends) ok = put(t, t->form.think_ends, strlen(t->form.think_ends));
    tn_answer_close(&t->reader);
    return ok;
}

bool cli_chat_tools_called(const chat *c) { return c->tools && json_array_size(c->tools->calls); }

/* ---- calls ------------------------------------------------------------------------------------------------ */

/* A text of any length, a piece at a time: each is shown whole, and no character is cut, which would hide what it is. */
static void show(const char *p, size_t n) {
    enum { PIECE = 200 };
    char piece[PIECE + 1];
    while (n) {
        size_t k = n < PIECE ? n : PIECE;
        while (k < n && k > PIECE - 4 && ((unsigned char)p[k] & 0xc0) == 0x80) k--;
        memcpy(piece, p, k);
        piece[k] = 0;
        fputs(cli_shown_exactly(piece), stderr);
        p += k;
        n -= k;
    }
}

/* Arguments as they are shown: all of them, or the two ends of many, which is said. */
static bool show_call(const char *name, const char *arguments) {
    size_t n = strlen(arguments), half = SHOWN / 2, end = n - half;
    fprintf(stderr, "tern: %s ", cli_shown_exactly(name));
    if (n <= SHOWN) {
        show(arguments, n);
    } else {
        while (half && ((unsigned char)arguments[half] & 0xc0) == 0x80) half--;
        while (end < n && ((unsigned char)arguments[end] & 0xc0) == 0x80) end++;
        show(arguments, half);
        fprintf(stderr, " [%zu bytes more] ", end - half);
        show(arguments + end, n - end);
    }
    fputc('\n', stderr);
    return n > SHOWN;
}

typedef enum consent { REFUSED, ALLOWED, ALWAYS, SHOW, STOPPED, UNKNOWN } consent;

/* What somebody typed. Spaces around it and capitals do not matter; an empty line is no. A line of `cap` was cut. */
static consent meant_by(char *line, size_t cap) {
    size_t n = strlen(line);
    if (n + 1 >= cap) return UNKNOWN;
    while (n && strchr(" \t\r", line[n - 1])) line[--n] = 0;
    line += strspn(line, " \t");
    if (!*line || !strcasecmp(line, "n") || !strcasecmp(line, "no")) return REFUSED;
    if (!strcasecmp(line, "y") || !strcasecmp(line, "yes")) return ALLOWED;
    if (!strcasecmp(line, "s") || !strcasecmp(line, "show")) return SHOW;
    return !strcasecmp(line, "a") || !strcasecmp(line, "always") ? ALWAYS : UNKNOWN;
}

/* Whoever sits there decides, and is asked once more where nobody knows what was meant. Who has seen the ends of the arguments
 * alone may see them all, and is asked again. */
static consent ask_person(chat *c, const char *arguments, bool cut) {
    static const char *const questions[2][2] = {
        {"Call it? (y)es, (n)o, (a)lways: ", "Please type y, n or a. Call it? (y)es, (n)o, (a)lways: "},
        {"Call it? (y)es, (n)o, (a)lways, (s)how all of it: ",
         "Please type y, n, a or s. Call it? (y)es, (n)o, (a)lways, (s)how all of it: "}};
    char line[64];
    for (int i = 0; i < 2; i++) {
        if (!cli_terminal_ask(c->typed, questions[cut][i], line, sizeof line)) return STOPPED;
        consent may = meant_by(line, sizeof line);
        if (may == SHOW && cut) {
            show(arguments, strlen(arguments));
            fputc('\n', stderr);
            i--;
        } else if (may != UNKNOWN && may != SHOW) {
            return may;
        }
    }
    fputs("tern: that counts as no: it was not called\n", stderr);
    return REFUSED;
}

/* Is the call allowed, by its name or by who sits there? */
static consent ask(chat *c, const json_t *entry, const char *arguments) {
    chat_tools *t = c->tools;
    char name[TN_MCP_USER_NAME];
    tn_mcp_user_name(entry, name);
    const bool cut = show_call(name, arguments);
    if (tn_mcp_servers_allows(t->servers, entry)) return ALLOWED;
    if (!c->terminal) {
        fprintf(stderr, "tern: it was not called: --mcp-allow %s would allow it\n", cli_shown_exactly(name));
        return REFUSED;
    }
    consent may = ask_person(c, arguments, cut);
    if (may != ALWAYS) return may;
    return tn_mcp_servers_allow(t->servers, entry) ? ALLOWED : REFUSED;
}

/* What the model is told of a call; NULL: it ends here. */
static char *result_of(chat *c, const json_t *call, int round) {
    chat_tools *t = c->tools;
    const char *name = json_string_value(json_object_get(call, "name")),
               *arguments = json_string_value(json_object_get(call, "arguments")), *told = NULL;
    const json_t *entry = tn_mcp_servers_find(t->list, name);
    char *text = NULL;
    bool failed = false;
    tern_error err;
    if (round >= TN_MCP_ROUNDS) told = TN_MCP_ENOUGH;
    else if (!entry) told = TN_MCP_UNKNOWN;
    else {
        consent may = ask(c, entry, arguments);
        if (may == STOPPED) return NULL;
        if (may == REFUSED) told = TN_MCP_REFUSED;
    }
    if (told) {
        if (!(text = strdup(told))) cli_failed_text("no memory for a result");
        return text;
    }
    cli_interrupts_cancel(NULL);
    tern_status st =
        tn_mcp_servers_call(t->servers, entry, arguments, interrupted, NULL, &text, &failed, &err);
    if (st != TERN_OK && st != TERN_E_CANCELLED) cli_failed(&err);
    if (failed) fprintf(stderr, "tern: it failed: %s\n", cli_shown(text));
    return text;
}

/* The message of an answer with calls. */
static bool push_calls(chat *c) {
    chat_tools *t = c->tools;
    json_t *list = json_array(), *one;
    size_t i;
    json_array_foreach(t->calls, i, one) {
        tn_json_append(&list,
                       tn_json_pack("{s:O, s:s, s:{s:O, s:O}}", "id", json_object_get(one, "id"), "type",
                                    "function", "function", "name", json_object_get(one, "name"), "arguments",
                                    json_object_get(one, "arguments")));
    }
    json_t *as = tn_json_pack("{s:s, s:o}", "role", "assistant", "tool_calls", list);
    if (!as) return cli_failed_text("no memory for a message"), false;
    if (!cli_chat_push(c, "assistant", c->answer.text ? c->answer.text : "")) return json_decref(as), false;
    c->as[c->n_msgs - 1] = as;
    return true;
}

bool cli_chat_tools_run(chat *c, int round) {
    chat_tools *t = c->tools;
    json_t *one;
    size_t i;
    if (round > TN_MCP_ROUNDS)
        return cli_failed_text("the model calls tools without end (%d times)", TN_MCP_ROUNDS), false;
    if (!push_calls(c)) return false;
    json_array_foreach(t->calls, i, one) {
        char *text = result_of(c, one, round);
        json_t *as = text ? tn_json_pack("{s:s, s:O, s:O}", "role", "tool", "tool_call_id",
                                         json_object_get(one, "id"), "name", json_object_get(one, "name"))
                          : NULL;
        bool ok = as && cli_chat_push(c, "tool", text);
        free(text);
        if (ok) c->as[c->n_msgs - 1] = as;
        else json_decref(as);
        if (!ok) {
            if (c->terminal) fputs("tern: stopped; the question was not answered\n", stderr);
            return false;
        }
    }
    return true;
}

/* Cuts the longest result since the question in half. false: all are short. */
static bool shorten(chat *c) {
    static const char rest[] = "\n[the rest is left out: the context has no room for it]";
    char *longest = NULL;
    for (size_t i = cli_chat_question(c); i < c->n_msgs; i++) {
        char *text = (char *)(uintptr_t)c->msgs[i].content;
        if (!strcmp(c->msgs[i].role, "tool") && (!longest || strlen(text) > strlen(longest))) longest = text;
    }
    size_t n = longest ? strlen(longest) : 0, half = n / 2;
    if (half < SMALLEST) return false;
    while (half && ((uint8_t)longest[half] & 0xc0) == 0x80) half--;
    memcpy(longest + half, rest, sizeof rest); /* there is room: half is more */
    return true;
}

int32_t *cli_chat_tools_go_on(chat *c, size_t *n_ids) {
    size_t cap = (size_t)tern_session_capacity(c->s), room = cap / 4;
    if (c->g.max_tokens >= 0 && (size_t)c->g.max_tokens < room) room = (size_t)c->g.max_tokens;
    int32_t *ids = cli_chat_render(c, n_ids);
    if (ids && *n_ids + room > cap && c->shift) ids = cli_chat_make_room(c, ids, n_ids);
    while (ids && *n_ids + room > cap && shorten(c)) {
        free(ids);
        ids = cli_chat_render(c, n_ids);
    }
    if (!ids || *n_ids < cap) return ids;
    free(ids);
    cli_failed_text(
        "the context of %zu tokens is full: what the tools said has no room (-c N makes it larger)", cap);
    return NULL;
}
