/* cli/chat_commands.c - what a line with a slash does. */
#include "base/ctx.h"
#include "cli/chat_file.h"
#include "cli/chat_talk.h"
#include "cli/output.h"
#include "cli/stats.h"
#include "cli/store_args.h"
#include "session/session.h"
#include "store/rag.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void print_history(const chat *c, FILE *f) {
    for (size_t i = 0; i < c->n_msgs; i++) fprintf(f, "%s: %s\n", c->msgs[i].role, c->msgs[i].content);
}

static void save(const chat *c, const char *path) {
    static const tn_outkind kind = {
        .what = "a saved conversation", .begins = {"system: ", "user: "}, .is_private = true};
    output_file f;
    if (!cli_output_open(&f, path, &kind)) return;
    for (size_t i = 0; i < c->n_msgs; i++) cli_chat_file_write(f.stream, c->msgs[i].role, c->msgs[i].content);
    (void)cli_output_close(&f);
}

static void load(chat *c, const char *path) {
    size_t n, had = c->n_msgs;
    char *text = cli_read_text_file(path, &n);
    if (!text) return;
    char *at = text, *content;
    const char *role = NULL;
    bool ok = strlen(text) == n;
    while (ok && *at) ok = (content = cli_chat_file_next(&at, &role)) && cli_chat_push(c, role, content);
    bool whole = ok && c->n_msgs > had && role && strcmp(role, "user");
    free(text);
    if (!whole) {
        cli_chat_pop(c, c->n_msgs - had);
        cli_failed_text("%s: not a conversation that /save wrote", path);
        return;
    }
    /* what was there goes, the loaded takes its place */
    for (size_t i = 0; i < had; i++) free((char *)c->msgs[i].content);
    c->n_msgs -= had;
    memmove(c->msgs, c->msgs + had, c->n_msgs * sizeof *c->msgs);
    c->n_left = 0;
    fprintf(stderr, "%zu messages\n", c->n_msgs);
}

/* The text of a file, for the next question; several gather. */
static void attach(chat *c, const char *path) {
    tn_ctx ctx;
    cli_store_ctx(&ctx);
    tern_error err;
    char *text = NULL, *all = NULL;
    size_t n;
    if (tn_rag_file_text(&ctx, path, 4 << 20, &text, &n, &err) != TERN_OK) {
        cli_failed(&err);
        return;
    }
    const char *slash = strrchr(path, '/');
    int len = asprintf(&all, "%s%s%s:\n\n%s\n", c->attached ? c->attached : "", c->attached ? "\n" : "",
                       slash && slash[1] ? slash + 1 : path, text);
    tn_free(&ctx, text);
    if (len < 0) {
        cli_failed_text("no memory for %s", path);
        return;
    }
    free(c->attached);
    c->attached = all;
    fprintf(stderr, "%zu bytes of text go with the next message\n", n);
}

/* This conversation leaves the screen's memory, the session, the history of lines and the store. */
static void forget(chat *c) {
    size_t keep = c->n_msgs && !strcmp(c->msgs[0].role, "system");
    cli_chat_pop(c, c->n_msgs - keep);
    free(c->attached);
    c->attached = NULL;
    c->n_left = 0;
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

static void print_stats(const chat *c) {
    fprintf(stderr, "%d turns; %zu of %d tokens in the context", c->n_turns, tern_session_length(c->s),
            tern_session_capacity(c->s));
    if (c->n_left) fprintf(stderr, ", %zu messages left it", c->n_left);
    fprintf(stderr, "; questions read in %.1f s, %d tokens answered", c->prefill_s, c->n_decoded);
    if (c->decode_s > 0) fprintf(stderr, ", %.1f a second", c->n_decoded / c->decode_s);
    putc('\n', stderr);
}

static void explain(const chat *c) {
    if (c->n_turns) cli_explain_print(c->s, &c->mark);
    else fputs("there is no answer yet\n", stderr);
}

static void help(void) {
    fputs("/attach FILE    the text of a file goes with the next message\n"
          "/clear          start a new conversation\n"
          "/edit           change the last question\n"
          "/exit           leave (also end of input)\n"
          "/explain        what each mechanism did for the last answer\n"
          "/forget         start anew, and erase this conversation from the store\n"
          "/help           this list\n"
          "/history        print the conversation\n"
          "/load FILE      go on with a conversation that /save wrote\n"
          "/model          which model this is\n"
          "/regen          answer the last question anew\n"
          "/save FILE      save the conversation as text\n"
          "/stats          turns, tokens in the context, speed\n"
          "/system TEXT    set the system message and start anew\n"
          "/temp T         set the temperature\n"
          "/tokens         tokens in the context\n"
          "/undo           take the last exchange back\n",
          stderr);
}

/* Takes the last question back, and its answer. NULL: there is none, or no memory. */
static char *last_question(chat *c) {
    if (c->n_msgs < 2 || strcmp(c->msgs[c->n_msgs - 1].role, "assistant")) return NULL;
    char *text = strdup(c->msgs[c->n_msgs - 2].content);
    if (text) cli_chat_pop(c, 2);
    return text;
}

static void again(chat *c, bool edit) {
    char *question = last_question(c);
    if (!question) fputs("there is no answer yet\n", stderr);
    else if (edit && c->terminal) cli_terminal_suggest(c->typed, question);
    else {
        c->g.sampling.seed++;
        (void)cli_chat_turn(c, question);
    }
    free(question);
}

static void clear(chat *c) {
    bool keep = c->n_msgs && !strcmp(c->msgs[0].role, "system");
    cli_chat_pop(c, c->n_msgs - keep);
    free(c->attached);
    c->attached = NULL;
    c->n_left = 0;
}

/* Those without an argument. */
static bool plain_command(chat *c, const char *name) {
    if (!strcmp(name, "/clear")) clear(c);
    else if (!strcmp(name, "/regen") || !strcmp(name, "/edit")) again(c, name[1] == 'e');
    else if (!strcmp(name, "/explain")) explain(c);
    else if (!strcmp(name, "/forget")) forget(c);
    else if (!strcmp(name, "/help")) help();
    else if (!strcmp(name, "/history")) print_history(c, stderr);
    else if (!strcmp(name, "/model")) print_model(c);
    else if (!strcmp(name, "/stats")) print_stats(c);
    else if (!strcmp(name, "/tokens"))
        fprintf(stderr, "%zu of %d tokens\n", tern_session_length(c->s), tern_session_capacity(c->s));
    else if (!strcmp(name, "/undo")) {
        if (c->n_msgs >= 2 && !strcmp(c->msgs[c->n_msgs - 1].role, "assistant")) cli_chat_pop(c, 2);
    } else return false;
    return true;
}

static bool command_with(chat *c, const char *name, const char *arg) {
    if (!strcmp(name, "/attach")) attach(c, arg);
    else if (!strcmp(name, "/load")) load(c, arg);
    else if (!strcmp(name, "/save")) save(c, arg);
    else if (!strcmp(name, "/system")) {
        cli_chat_pop(c, c->n_msgs);
        clear(c);
        cli_chat_push(c, "system", arg);
    } else if (!strcmp(name, "/temp") && strtof(arg, NULL) >= 0)
        c->g.sampling.temperature = strtof(arg, NULL);
    else return false;
    return true;
}

bool cli_chat_command(chat *c, const char *text) {
    char *line = strdup(text);
    if (!line) return cli_failed_text("no memory for a command"), true;
    char *arg = strchr(line, ' ');
    if (arg) {
        *arg++ = 0;
        arg += strspn(arg, " ");
    }
    bool leave = !strcmp(line, "/exit") || !strcmp(line, "/quit");
    if (!leave && !(arg && *arg ? command_with(c, line, arg) : false) && !plain_command(c, line)) {
        fprintf(stderr, "%s is not a command, or lacks its argument\n", cli_shown(line));
        help();
    }
    free(line);
    return !leave;
}
