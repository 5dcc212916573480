/* cli/chat_commands.c - what a line with a slash does. */
#include "base/ctx.h"
#include "cli/chat_file.h"
#include "cli/chat_pictures.h"
#include "cli/chat_tools.h"
#include "cli/output.h"
#include "cli/stats.h"
#include "cli/store_args.h"
#include "session/session.h"
#include "documents/documents.h"
#include "documents/reader.h"

#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static bool has_system(const chat *c) { return c->n_msgs && !strcmp(c->msgs[0].role, "system"); }

static void print_history(const chat *c, FILE *f) {
    render plain;
    for (size_t i = 0; i < c->n_msgs; i++) {
        if (c->n_left && i == has_system(c) + c->n_left)
            fprintf(f, "(the %zu messages above have left the context: the model no longer sees them)\n",
                    c->n_left);
        fprintf(f, "%s: ", c->msgs[i].role);
        cli_render_begin(&plain, f, false);
        cli_render_put(&plain, c->msgs[i].content, strlen(c->msgs[i].content));
        cli_render_end(&plain);
        putc('\n', f);
        const json_t *calls = json_object_get(c->as[i], "tool_calls");
        for (size_t k = 0; k < json_array_size(calls); k++) {
            const json_t *call = json_object_get(json_array_get(calls, k), "function");
            fprintf(f, "(calls %s ", cli_shown(json_string_value(json_object_get(call, "name"))));
            fprintf(f, "%s)\n", cli_shown(json_string_value(json_object_get(call, "arguments"))));
        }
    }
}

static void save(chat *c, const char *path) {
    static const tn_outkind kind = {
        .what = "a saved conversation", .begins = {"system: ", "user: "}, .is_private = true};
    output_file f;
    if (!c->n_msgs) {
        fputs("there is nothing to save\n", stderr); /* and an older conversation stays */
        return;
    }
    c->undone = true;
    if (!cli_output_open(&f, path, &kind)) return;
    size_t n = 0;
    for (size_t i = 0; i < c->n_msgs; i++)
        if (!c->as[i]) cli_chat_file_write(f.stream, c->msgs[i].role, c->msgs[i].content), n++;
    if (cli_output_close(&f) != EXIT_OK) return;
    fprintf(stderr, "%zu messages are in %s%s%s\n", n, cli_shown(path),
            cli_chat_has_pictures(c, 0) ? ", without their pictures" : "",
            n < c->n_msgs ? ", without calls of tools" : "");
    c->undone = false;
}

static void load(chat *c, const char *path) {
    size_t n, had = c->n_msgs;
    char *text = cli_read_text_file(path, &n);
    c->undone = true;
    if (!text) return;
    char *at = text, *content;
    const char *role = NULL;
    bool ok = strlen(text) == n, pushed = true;
    while (ok && *at) {
        ok = (content = cli_chat_file_next(&at, &role)) != NULL;
        ok = ok && (pushed = cli_chat_push(c, role, content));
    }
    bool whole = ok && c->n_msgs > had && role && strcmp(role, "user");
    free(text);
    if (!whole) {
        cli_chat_pop(c, c->n_msgs - had);
        if (pushed) cli_failed_text("%s: not a conversation that /save wrote", path);
        return;
    }
    c->undone = false;
    /* what was there goes, the loaded takes its place */
    for (size_t i = 0; i < had; i++) {
        free((char *)c->msgs[i].content);
        cli_chat_drop_pictures(c, i);
        json_decref(c->as[i]);
        c->as[i] = NULL;
    }
    c->n_msgs -= had; /* what was loaded has no pictures */
    memmove(c->msgs, c->msgs + had, c->n_msgs * sizeof *c->msgs);
    c->n_left = 0;
    fprintf(stderr, "%zu messages\n", c->n_msgs);
}

/* The text of a file, for the next question; several gather. */
static void attach(chat *c, const char *path) {
    tern_error err;
    char *text = NULL, *all = NULL;
    size_t n;
    c->undone = true;
    if (tn_reader_text(c->reader, path, 4 << 20, &text, &n, &err) != TERN_OK) {
        cli_failed_text("%s: %s", path, err.message);
        return;
    }
    char empty[256];
    const bool pages = strchr(text, '\f') && tn_document_empty_pages(text, n, empty, sizeof empty);
    for (char *p = text; (p = strchr(p, '\f'));) *p = '\n'; /* between pages */
    const char *slash = strrchr(path, '/');
    int len = asprintf(&all, "%s%s%s:\n\n%s\n", c->attached ? c->attached : "", c->attached ? "\n" : "",
                       slash && slash[1] ? slash + 1 : path, text);
    free(text);
    if (len < 0) {
        cli_failed_text("no memory for %s", path);
        return;
    }
    free(c->attached);
    c->attached = all;
    c->undone = false;
    fprintf(stderr, "%zu bytes of text will go with the next message\n", n);
    if (pages) fprintf(stderr, "%s has no text on page %s\n", cli_shown(path), empty);
}

static void clear(chat *c) {
    cli_chat_pop(c, c->n_msgs - has_system(c));
    cli_chat_drop_pictures(c, SIZE_MAX);
    free(c->attached);
    c->attached = NULL;
    c->n_left = 0;
}

/* This conversation leaves the screen's memory, the session, the history of lines and the store. */
static void forget(chat *c) {
    clear(c);
    tern_error err;
    int64_t id = c->s->storing.id, n = 0;
    tn_session_truncate(c->s, 0);
    c->s->storing.id = 0;
    c->s->storing.n_stored = 0;
    cli_terminal_forget(c->typed);
    if (c->store && id) {
        tn_ctx ctx;
        cli_store_ctx(&ctx);
        tn_store *s;
        tern_status st = tn_store_open(&ctx, c->store, NULL, &s, &err);
        if (st == TERN_OK) {
            st = tn_store_erase(s, id, &n, &err);
            tn_store_close(&s);
        }
        if (st != TERN_OK) {
            c->undone = true;
            cli_failed(&err);
            return;
        }
    }
    fputs(n ? "forgotten, in the store too\n" : "forgotten\n", stderr);
}

static void print_model(const chat *c) {
    tern_model_info i;
    tern_engine_info(c->e, &i);
    fprintf(stderr, "%s\n%s, %.0f million parameters, %s, %.1f MiB of weights; context %d of %d tokens\n",
            cli_shown(c->model), i.arch, (double)i.n_params / 1e6, i.scheme, (double)i.weight_bytes / 1048576,
            tern_session_capacity(c->s), i.ctx_train);
}

void cli_chat_print_stats(const chat *c) {
    fprintf(stderr, "%d turn%s; %zu of %d tokens in the context", c->n_turns, c->n_turns == 1 ? "" : "s",
            tern_session_length(c->s), tern_session_capacity(c->s));
    if (c->n_left) fprintf(stderr, ", %zu messages left it", c->n_left);
    fprintf(stderr, "; questions read in %.1f s, %d tokens answered", c->prefill_s, c->n_decoded);
    if (c->decode_s > 0) fprintf(stderr, ", %.1f a second", c->n_decoded / c->decode_s);
    putc('\n', stderr);
}

static void explain(const chat *c) {
    if (c->n_turns) cli_explain_print(c->s, &c->mark);
    else fputs("there is no answer yet\n", stderr);
}

static const struct {
    const char *name, *arg, *help;
} commands[] = {
    {"/attach", "FILE", "send the text of a file with the next message"},
    {"/clear", NULL, "start a new conversation"},
    {"/cut", NULL, "send the part that fits of a message that was too long"},
    {"/edit", NULL, "change the last question"},
    {"/exit", NULL, "leave (also end of input)"},
    {"/explain", NULL, "show what each mechanism did for the last answer"},
    {"/forget", NULL, "start over, and erase this conversation from the store"},
    {"/help", NULL, "this list"},
    {"/history", NULL, "print the conversation"},
    {"/image", "FILE", "send a picture with the next message (or write or paste its path)"},
    {"/load", "FILE", "continue a conversation that /save wrote"},
    {"/model", NULL, "which model this is"},
    {"/regen", NULL, "answer the last question again"},
    {"/save", "FILE", "save the conversation as text"},
    {"/stats", NULL, "show turns, tokens in the context, speed"},
    {"/system", "TEXT", "set the system message and start over"},
    {"/temp", "T", "set the temperature"},
    {"/tokens", NULL, "tokens in the context"},
    {"/tools", NULL, "tools of MCP servers that the model may call"},
    {"/undo", NULL, "take the last exchange back"},
};
enum { N_COMMANDS = sizeof commands / sizeof commands[0] };

static void help(void) {
    for (int i = 0; i < N_COMMANDS; i++)
        fprintf(stderr, "%-9s %-6s %s\n", commands[i].name, commands[i].arg ? commands[i].arg : "",
                commands[i].help);
}

/* The last exchange: a question, what tools said, and the answer. 0: there is none. */
static size_t exchange(const chat *c) {
    size_t at = cli_chat_question(c);
    return c->n_msgs && at + 1 < c->n_msgs && !strcmp(c->msgs[c->n_msgs - 1].role, "assistant")
               ? c->n_msgs - at
               : 0;
}

/* Asks the last question again, or lets it be changed. Where that fails the exchange stays as it was. */
static void again(chat *c, bool edit) {
    size_t n = exchange(c), at = c->n_msgs - n, n_left = c->n_left;
    if (!n) {
        fputs("there is no answer yet\n", stderr);
        return;
    }
    tern_message *was = malloc(n * sizeof *was);
    json_t **as = malloc(n * sizeof(json_t *));
    c->undone = !was || !as;
    if (c->undone) cli_failed_text("no memory for a question");
    else {
        memcpy(was, c->msgs + at, n * sizeof *was);
        memcpy(as, c->as + at, n * sizeof *as);
        memset(c->as + at, 0, n * sizeof *as);
        c->n_msgs = at + 1;
        cli_chat_take_pictures(c);
        c->n_msgs = at;
        if (c->n_left > at) c->n_left = at;
        if (edit && c->terminal) {
            c->undone = !cli_terminal_suggest(c->typed, was[0].content);
            if (c->undone) cli_failed_text("no memory for a line");
        } else {
            c->g.sampling.seed++;
            c->undone = !cli_chat_turn(c, was[0].content);
        }
        if (c->undone) {
            memcpy(c->msgs + at, was, n * sizeof *was);
            memcpy(c->as + at, as, n * sizeof *as);
            c->n_msgs = at + 1;
            if (c->next) cli_chat_give_pictures(c);
            c->n_msgs = at + n;
            c->n_left = n_left;
        }
        for (size_t i = 0; !c->undone && i < n; i++)
            free((char *)(uintptr_t)was[i].content), json_decref(as[i]);
    }
    free(was);
    free(as);
}

static void undo(chat *c) {
    size_t n = exchange(c);
    if (!n) {
        fputs("there is nothing to take back\n", stderr);
        return;
    }
    cli_chat_pop(c, n);
    fprintf(stderr, "took back the last exchange; %zu messages are left\n", c->n_msgs);
}

static void cut(chat *c) {
    bool any = c->too_long != NULL, sent = cli_chat_cut(c);
    c->undone = any && !sent;
}

static void set_temperature(chat *c, const char *text) {
    tern_options o;
    tern_error err;
    tn_options_defaults(&o);
    if (tn_param_set(&o, tn_param_find("temp", 4), text, &err) != TERN_OK) {
        fprintf(stderr, "tern: /%s; it stays %.7g\n", cli_shown(err.message),
                (double)c->g.sampling.temperature);
        return;
    }
    c->g.sampling.temperature = o.generate.sampling.temperature;
    fprintf(stderr, "the temperature is %.7g\n", (double)c->g.sampling.temperature);
}

static void set_system(chat *c, const char *text) {
    char *copy = strdup(text);
    if (!copy) {
        c->undone = true;
        cli_failed_text("no memory for a message");
        return;
    }
    cli_chat_pop(c, c->n_msgs);
    clear(c);
    c->msgs[c->n_msgs++] = (tern_message){"system", copy};
    fputs("the system message is set; a new conversation\n", stderr);
}

/* Those without an argument. */
static void plain_command(chat *c, const char *name) {
    if (!strcmp(name, "/clear")) clear(c), fputs("a new conversation\n", stderr);
    else if (!strcmp(name, "/cut")) cut(c);
    else if (!strcmp(name, "/regen") || !strcmp(name, "/edit")) again(c, name[1] == 'e');
    else if (!strcmp(name, "/explain")) explain(c);
    else if (!strcmp(name, "/forget")) forget(c);
    else if (!strcmp(name, "/help")) help();
    else if (!strcmp(name, "/history")) print_history(c, stderr);
    else if (!strcmp(name, "/model")) print_model(c);
    else if (!strcmp(name, "/stats")) cli_chat_print_stats(c);
    else if (!strcmp(name, "/tokens"))
        fprintf(stderr, "%zu of %d tokens\n", tern_session_length(c->s), tern_session_capacity(c->s));
    else if (!strcmp(name, "/tools")) cli_chat_tools_print(c);
    else if (!strcmp(name, "/undo")) undo(c);
}

/* The path may be in quotes, as a terminal writes one that is dragged into it. */
static bool look_at(chat *c, const char *arg) {
    char *words = strdup(arg);
    const bool whole = cli_is_picture(arg) || cli_is_pdf(arg);
    bool ok = words && (whole ? cli_chat_look(c, arg) : cli_chat_find_pictures(c, &words));
    if (ok && !whole && words[strspn(words, " ")]) {
        (void)(access(words, R_OK) ? cli_failed_text("%s: %s", words, strerror(errno))
                                   : cli_failed_text("%s is not a picture that can be read", words));
        ok = false;
    }
    free(words);
    return ok;
}

static void command_with(chat *c, const char *name, const char *arg) {
    if (!strcmp(name, "/attach")) attach(c, arg);
    else if (!strcmp(name, "/image")) c->undone = !look_at(c, arg);
    else if (!strcmp(name, "/load")) load(c, arg);
    else if (!strcmp(name, "/save")) save(c, arg);
    else if (!strcmp(name, "/system")) set_system(c, arg);
    else if (!strcmp(name, "/temp")) set_temperature(c, arg);
}

bool cli_chat_command(chat *c, const char *text) {
    char *line = strdup(text);
    c->undone = !line;
    if (!line) return cli_failed_text("no memory for a command"), true;
    size_t n = strcspn(line, " \t\n");
    char *arg = line + n + strspn(line + n, " \t\n");
    bool leave = false;
    int i = 0;
    line[n] = 0;
    for (size_t k = strlen(arg); k && strchr(" \t\n", arg[k - 1]);) arg[--k] = 0;
    if (!strcmp(line, "/quit")) memcpy(line, "/exit", 5);
    while (i < N_COMMANDS && strcmp(commands[i].name, line)) i++;
    if (i == N_COMMANDS) fprintf(stderr, "tern: %s is not a command; /help lists them\n", cli_shown(line));
    else if (commands[i].arg && !*arg)
        fprintf(stderr, "tern: %s %s: %s\n", line, commands[i].arg, commands[i].help);
    else if (!commands[i].arg && *arg) fprintf(stderr, "tern: %s takes no argument\n", line);
    else if (commands[i].arg) command_with(c, line, arg);
    else if (!(leave = !strcmp(line, "/exit"))) plain_command(c, line);
    free(line);
    return !leave;
}
