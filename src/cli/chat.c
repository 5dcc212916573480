/* tern chat - talk with a model; the session's cache is kept, so each turn evaluates only what is new. */
#include "cli/answer.h"
#include "cli/args.h"
#include "cli/commands.h"
#include "cli/draft_args.h"
#include "cli/grammar_args.h"
#include "cli/output.h"
#include "cli/prompt.h"
#include "cli/store_args.h"
#include "cli/terminal.h"

#include "base/clock.h"
#include "base/status.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MAX_MESSAGES = 1024 };

typedef struct chat {
    tern_engine *e;
    tern_session *s;
    tern_generate_options g;
    tern_message msgs[MAX_MESSAGES];
    size_t n_msgs;
    answer answer;
    double prefill_s, decode_s; /* of all turns */
    int32_t n_decoded;
    bool terminal, keeps; /* keeps: the history of what was typed lasts */
    terminal *typed;
    char *source; /* of the chat template, or NULL: the model's */
} chat;

static void pop(chat *c, size_t n) {
    while (n-- && c->n_msgs) free((char *)c->msgs[--c->n_msgs].content);
}

static bool push(chat *c, const char *role, const char *content) {
    if (c->n_msgs == MAX_MESSAGES) {
        failed_text("this conversation has %d messages, the most it can have: /clear starts anew",
                    MAX_MESSAGES);
        return false;
    }
    char *copy = strdup(content);
    if (!copy) return false;
    c->msgs[c->n_msgs++] = (tern_message){role, copy};
    return true;
}

/* Takes one turn: the user's text goes in, the answer comes out. A failed turn leaves the conversation as it
 * was. */
static bool turn(chat *c, const char *text) {
    if (!push(c, "user", text)) return false;
    tern_error err;
    size_t n_ids;
    bool ok = false;
    int32_t *ids = prompt_chat(c->e, c->msgs, c->n_msgs, c->source, &n_ids);
    tern_generate_result res = {0};
    if (ids) {
        answer_clear(&c->answer);
        interrupts_cancel(c->s);
        double t0 = tn_now_s();
        tern_status st = prefill_shown(c->s, ids, n_ids, &err);
        c->prefill_s += tn_now_s() - t0;
        if (st == TERN_OK) st = tern_session_generate(c->s, &c->g, &res, &err);
        if (c->terminal) interrupts_cancel(NULL);
        c->decode_s += res.decode_s;
        c->n_decoded += res.n_tokens;
        if (c->answer.view) render_end(c->answer.view);
        putchar('\n');
        fflush(stdout); /* a program that reads the answer waits for its end */
        if (st == TERN_OK && c->answer.no_memory)
            st = tn_fail(&err, TERN_E_MEMORY, "no memory for the answer");
        ok = st == TERN_OK || (st == TERN_E_CANCELLED && c->answer.n);
        if (st != TERN_OK) failed(&err);
    }
    free(ids);
    if (ok && push(c, "assistant", c->answer.text ? c->answer.text : "")) return true;
    pop(c, 1);
    return false;
}

static void slash_help(void) {
    fputs("/clear          start a new conversation\n/history        print the conversation\n/system TEXT    "
          "set the system message and start anew\n"
          "/temp T         set the temperature\n/undo           take the last exchange back\n/save FILE      "
          "save the conversation as text\n"
          "/regen          answer the last question anew\n/edit           change the last question\n"
          "/tokens         tokens in the context\n/help           this list\n/exit           leave (also end "
          "of input)\n",
          stderr);
}

static void print_history(const chat *c, FILE *f) {
    for (size_t i = 0; i < c->n_msgs; i++) fprintf(f, "%s: %s\n", c->msgs[i].role, c->msgs[i].content);
}

/* Obeys a command. Returns false to leave. */
static bool slash(chat *c, char *line) {
    char *arg = strchr(line, ' ');
    if (arg) *arg++ = 0;
    if (!strcmp(line, "/exit") || !strcmp(line, "/quit")) return false;
    if (!strcmp(line, "/clear")) {
        bool keep = c->n_msgs && !strcmp(c->msgs[0].role, "system");
        pop(c, c->n_msgs - keep);
    } else if (!strcmp(line, "/history")) {
        print_history(c, stderr);
    } else if (!strcmp(line, "/system") && arg) {
        pop(c, c->n_msgs);
        push(c, "system", arg);
    } else if (!strcmp(line, "/temp") && arg && strtof(arg, NULL) >= 0) {
        c->g.sampling.temperature = strtof(arg, NULL);
    } else if (!strcmp(line, "/undo")) {
        if (c->n_msgs >= 2 && !strcmp(c->msgs[c->n_msgs - 1].role, "assistant")) pop(c, 2);
    } else if (!strcmp(line, "/save") && arg) {
        static const tn_outkind kind = {
            .what = "a saved conversation", .begins = {"system: ", "user: "}, .is_private = true};
        output_file f;
        if (output_open(&f, arg, &kind)) {
            print_history(c, f.stream);
            (void)output_close(&f);
        }
    } else if (!strcmp(line, "/tokens")) {
        fprintf(stderr, "%zu of %d tokens\n", tern_session_length(c->s), tern_session_capacity(c->s));
    } else {
        if (strcmp(line, "/help")) fprintf(stderr, "%s is not a command, or lacks its argument\n", line);
        slash_help();
    }
    return true;
}

/* Takes the last question back, and its answer. Returns NULL when there is none, or no memory. */
static char *last_question(chat *c) {
    if (c->n_msgs < 2 || strcmp(c->msgs[c->n_msgs - 1].role, "assistant")) return NULL;
    char *text = strdup(c->msgs[c->n_msgs - 2].content);
    if (text) pop(c, 2);
    return text;
}

/* Obeys a line of commands. /regen and /edit need the turn and the terminal, the others the conversation
 * alone. */
static bool command_line(chat *c, const char *text) {
    if (!strcmp(text, "/regen") || !strcmp(text, "/edit")) {
        char *question = last_question(c);
        if (!question) fputs("there is no answer yet\n", stderr);
        else if (!strcmp(text, "/edit") && c->terminal) terminal_suggest(c->typed, question);
        else {
            c->g.sampling.seed++;
            (void)turn(c, question);
        }
        free(question);
        return true;
    }
    char *line = strdup(text);
    bool stays = line && slash(c, line);
    free(line);
    return stays;
}

/* Answers messages until the end of input. */
static int talk(chat *c) {
    char history[4096];
    const char *state = getenv("XDG_STATE_HOME"), *home = getenv("HOME"), *term = getenv("TERM");
    bool has_history =
        state && *state ? snprintf(history, sizeof history, "%s/tern-history", state) < (int)sizeof history
        : home && *home ? snprintf(history, sizeof history, "%s/.tern_history", home) < (int)sizeof history
                        : false;
    render view;
    if (!(c->typed = terminal_open(has_history && c->keeps ? history : NULL)))
        return failed_text("no memory for a line editor");
    c->terminal = terminal_is_interactive(c->typed);
    if (isatty(STDOUT_FILENO)) {
        render_begin(&view, stdout, !getenv("NO_COLOR") && term && strcmp(term, "dumb"));
        c->answer.view = &view;
    }
    int rc = EXIT_OK;
    const char *text;
    for (terminal_event e; rc == EXIT_OK && (e = terminal_read(c->typed, &text)) != TERMINAL_END;) {
        if (e == TERMINAL_CLEAR) continue;
        if (text[0] == '/') {
            if (!command_line(c, text)) break;
        } else if (!turn(c, text) && !c->terminal) {
            rc = EXIT_FAILED; /* a script must see it */
        }
    }
    c->answer.view = NULL;
    terminal_close(&c->typed);
    return rc;
}

int cmd_chat(int argc, char **argv) {
    model_args ma;
    model_args_defaults(&ma, TN_IN_CHAT);
    const char *system = NULL, *store = NULL, *template = NULL;
    bool stats = false, no_store = false;
    chat c = {0};
    grammar_args ga = {0};
    ma.o.generate.max_tokens = 1024;
    const arg_spec specs[] = {
        MODEL_ARGS(ma),
        PACK_ARG(ma),
        {"system", 0, "TEXT", ARG_STR, &system, 0, 0, "system message"},
        TEMPLATE_ARG(template),
        GRAMMAR_ARGS(ga),
        STORE_ARGS(store, no_store),
        {"stats", 0, NULL, ARG_FLAG | ARG_ANSWER, &stats, 0, 0,
         "print what drafting did on standard error at the end"},
        {0},
    };
    const command cmd = {"chat", "MODEL [OPTIONS]  or  -m MODEL [OPTIONS]",
                         "Talk with a model. /help lists the commands inside; Ctrl-C stops an answer.", specs,
                         1};
    const char *words[2];
    int rc = args_parse(&cmd, argc, argv, words);
    if (rc >= 0) return rc;
    if (words[0] && ma.model) return usage_error(&cmd, "unexpected argument '%s'", words[0]);
    if (words[0]) ma.model = words[0];
    args_model_path(&ma);
    if (!grammar_options(&ga, &ma.o.generate)) return EXIT_FAILED;
    if (!prompt_template(template, &c.source)) {
        grammar_args_free(&ga);
        return EXIT_FAILED;
    }
    rc = open_engine(&cmd, &ma, &c.e);
    if (rc >= 0) {
        free(c.source);
        return rc;
    }
    tern_session_options so = ma.o.session;
    c.g = ma.o.generate;
    rc = open_stored_session(c.e, &so, store, no_store, &c.s);
    if (rc >= 0) {
        tern_engine_close(&c.e);
        free(c.source);
        return rc;
    }
    c.g.on_token = answer_on_token;
    c.g.no_logprobs = true;
    c.g.user = &c.answer;
    c.keeps = !no_store;
    if (system) push(&c, "system", system);
    rc = talk(&c);
    if (stats) draft_print(c.s, c.prefill_s, c.decode_s, c.n_decoded);
    pop(&c, c.n_msgs);
    answer_free(&c.answer);
    free(c.source);
    grammar_args_free(&ga);
    tern_session_close(&c.s);
    tern_engine_close(&c.e);
    return rc;
}
