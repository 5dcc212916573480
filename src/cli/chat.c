/* tern chat - talk with a model; the session's cache is kept, so each turn evaluates only what is new. */
#include "cli/args.h"
#include "cli/commands.h"
#include "cli/draft_args.h"
#include "cli/grammar_args.h"
#include "cli/output.h"
#include "cli/prompt.h"
#include "cli/sampling_args.h"
#include "cli/store_args.h"

#include "base/clock.h"
#include "base/status.h"

#include <signal.h>
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
    char *answer;
    size_t n_answer, cap_answer;
    double prefill_s, decode_s; /* of all turns */
    int32_t n_decoded;
    bool terminal, no_memory;
    char *source; /* of the chat template, or NULL: the model's */
} chat;

static tern_session *interrupted;

static void on_interrupt(int sig) {
    (void)sig;
    if (interrupted) tern_session_cancel(interrupted);
}

static bool on_token(void *user, int32_t token, const char *text, size_t n, float logprob) {
    (void)token;
    (void)logprob;
    chat *c = user;
    put_answer(text, n);
    fflush(stdout);
    if (c->n_answer + n + 1 > c->cap_answer) {
        size_t cap = (c->n_answer + n + 1) * 2;
        char *more = realloc(c->answer, cap);
        if (!more) {
            c->no_memory = true;
            return false;
        }
        c->answer = more;
        c->cap_answer = cap;
    }
    memcpy(c->answer + c->n_answer, text, n);
    c->answer[c->n_answer += n] = 0;
    return true;
}

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

/* One turn: the user's text in, the answer out. A failed turn leaves the conversation as it was. */
static bool turn(chat *c, const char *text) {
    if (!push(c, "user", text)) return false;
    tern_error err;
    size_t n_ids;
    bool ok = false;
    int32_t *ids = prompt_chat(c->e, c->msgs, c->n_msgs, c->source, &n_ids);
    tern_generate_result res = {0};
    if (ids) {
        c->n_answer = 0;
        c->no_memory = false;
        if (c->answer) c->answer[0] = 0;
        interrupted = c->s;
        double t0 = tn_now_s();
        tern_status st = tern_session_prefill(c->s, ids, n_ids, &err);
        c->prefill_s += tn_now_s() - t0;
        if (st == TERN_OK) st = tern_session_generate(c->s, &c->g, &res, &err);
        interrupted = NULL;
        c->decode_s += res.decode_s;
        c->n_decoded += res.n_tokens;
        putchar('\n');
        fflush(stdout); /* a program that reads the answer waits for its end */
        if (st == TERN_OK && c->no_memory) st = tn_fail(&err, TERN_E_MEMORY, "no memory for the answer");
        ok = st == TERN_OK || (st == TERN_E_CANCELLED && c->n_answer);
        if (st != TERN_OK) failed(&err);
    }
    free(ids);
    if (ok && push(c, "assistant", c->answer ? c->answer : "")) return true;
    pop(c, 1);
    return false;
}

static void slash_help(void) {
    fputs("/clear          start a new conversation\n/history        print the conversation\n/system TEXT    "
          "set the system message and start anew\n"
          "/temp T         set the temperature\n/undo           take the last exchange back\n/save FILE      "
          "save the conversation as text\n"
          "/tokens         tokens in the context\n/help           this list\n/exit           leave (also end "
          "of input)\n",
          stderr);
}

static void print_history(const chat *c, FILE *f) {
    for (size_t i = 0; i < c->n_msgs; i++) fprintf(f, "%s: %s\n", c->msgs[i].role, c->msgs[i].content);
}

/* Returns false to leave. */
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

int cmd_chat(int argc, char **argv) {
    model_args ma = {0};
    const char *system = NULL, *draft = "auto", *store = NULL, *template = NULL;
    bool stats = false, no_store = false;
    int32_t n_ctx = 0;
    chat c = {.terminal = isatty(STDIN_FILENO)};
    grammar_args ga = {0};
    tern_generate_options_defaults(&c.g);
    c.g.max_tokens = 1024;
    const arg_spec specs[] = {
        MODEL_ARGS(ma),
        {"system", 0, "TEXT", ARG_STR, &system, 0, 0, "system message"},
        TEMPLATE_ARG(template),
        {"n-predict", 'n', "N", ARG_INT, &c.g.max_tokens, -1, 1e9,
         "tokens per answer at most (default 1024)"},
        {"ctx-size", 'c', "N", ARG_INT, &n_ctx, 1, 1 << 24,
         "context in tokens (default: the smaller of 4096 and the model's)"},
        SAMPLING_ARGS(c.g.sampling),
        DRAFT_ARGS(draft, c.g),
        GRAMMAR_ARGS(ga),
        STORE_ARGS(store, no_store),
        {"stats", 0, NULL, ARG_FLAG, &stats, 0, 0, "print what drafting did on standard error at the end"},
        {0},
    };
    const command cmd = {"chat", "-m MODEL [OPTIONS]",
                         "Talk with a model. /help lists the commands inside; Ctrl-C stops an answer.", specs,
                         0};
    const char *words[1];
    int rc = args_parse(&cmd, argc, argv, words);
    if (rc >= 0) return rc;
    if (!grammar_options(&ga, &c.g)) return EXIT_FAILED;
    if (!prompt_template(template, &c.source)) {
        grammar_args_free(&ga);
        return EXIT_FAILED;
    }
    rc = open_engine(&cmd, &ma, &c.e);
    if (rc >= 0) {
        free(c.source);
        return rc;
    }
    tern_session_options so;
    tern_session_options_defaults(&so);
    so.n_ctx = n_ctx;
    so.draft = draft;
    rc = open_stored_session(c.e, &so, store, no_store, &c.s);
    if (rc >= 0) {
        tern_engine_close(&c.e);
        free(c.source);
        return rc;
    }
    c.g.on_token = on_token;
    c.g.no_logprobs = true;
    c.g.user = &c;
    if (system) push(&c, "system", system);
    signal(SIGINT, on_interrupt);
    char *line = NULL;
    size_t cap = 0;
    rc = EXIT_OK;
    for (;;) {
        if (c.terminal) fputs("> ", stderr);
        ssize_t n = getline(&line, &cap, stdin);
        if (n < 0) break;
        if (n && line[n - 1] == '\n') line[--n] = 0;
        if (!n) continue;
        if (line[0] == '/') {
            if (!slash(&c, line)) break;
        } else if (!turn(&c, line) && !c.terminal) {
            rc = EXIT_FAILED; /* a script must see it */
            break;
        }
    }
    if (stats) draft_print(c.s, c.prefill_s, c.decode_s, c.n_decoded);
    free(line);
    pop(&c, c.n_msgs);
    free(c.answer);
    free(c.source);
    grammar_args_free(&ga);
    tern_session_close(&c.s);
    tern_engine_close(&c.e);
    return rc;
}
