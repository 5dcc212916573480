/* tern chat - talk with a model; the session's cache is kept, so each turn evaluates only what is new. */
#include "cli/args.h"
#include "cli/chat_pictures.h"
#include "cli/chat_tools.h"
#include "cli/commands.h"
#include "cli/draft_args.h"
#include "cli/grammar_args.h"
#include "cli/mcp_args.h"
#include "cli/output.h"
#include "cli/prompt.h"
#include "cli/store_args.h"
#include "documents/reader.h"
#include "engine/engine.h"
#include "model/streamed.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* One message; pictures that it names go with it, or with the next where it says nothing else. */
static bool say(chat *c, const char *text) {
    char *words = strdup(text);
    if (!words) return cli_failed_text("no memory for a message"), false;
    c->refused = false;
    bool ok = cli_chat_find_pictures(c, &words), only = ok && words[strspn(words, " \t\n")] == 0;
    ok = ok && (only || cli_chat_turn(c, words));
    free(words);
    return ok;
}

/* Answers messages until the end of input. */
static int talk(chat *c) {
    char history[4096];
    const char *term = getenv("TERM");
    render view;
    tern_error err;
    const bool keeps = c->keeps && cli_history_path(history, sizeof history);
    if (!(c->typed = cli_terminal_open(keeps ? history : NULL, &err))) return cli_failed(&err);
    c->terminal = cli_terminal_is_interactive(c->typed);
    if (isatty(STDOUT_FILENO)) {
        cli_render_begin(&view, stdout, !getenv("NO_COLOR") && term && strcmp(term, "dumb"));
        c->answer.view = &view;
    }
    if (c->terminal) fprintf(stderr, "%s; /help lists the commands, Ctrl-D leaves\n", cli_shown(c->model));
    int rc = EXIT_OK;
    bool failed = false; /* a message or a command of a script, which must see it; what followed went on */
    const char *text;
    for (terminal_event e; rc == EXIT_OK && (e = cli_terminal_read(c->typed, &text)) != TERMINAL_END;) {
        if (e == TERMINAL_CLEAR) continue;
        if (e == TERMINAL_FAILED) {
            rc = cli_failed_text("cannot read a message: %s", strerror(errno));
            break;
        }
        if (text[0] == '/' && !cli_chat_is_path(text)) {
            bool goes_on = cli_chat_command(c, text);
            failed = failed || c->undone;
            if (!goes_on) break;
        } else if (!say(c, text) && !c->terminal) {
            failed = failed || c->refused;
            if (!c->refused) rc = EXIT_FAILED; /* a script must see it */
        }
    }
    if (failed && !c->terminal && rc == EXIT_OK) rc = EXIT_FAILED;
    c->answer.view = NULL;
    cli_terminal_close(&c->typed);
    return rc;
}

/* The session, and how the conversation becomes a prompt. -1 to go on, or an exit status. */
static int begin(chat *c, const model_args *ma, const char *store, bool no_store) {
    tern_session_options so = ma->o.session;
    tern_model_info info;
    tern_engine_info(c->e, &info);
    if (info.embeds)
        return cli_failed_text("%s is an embedding model and writes no text: use tern embed",
                               cli_shown(ma->model));
    c->plain = !c->source && !tern_has_chat_template(c->e);
    if (c->plain)
        fputs("tern: the model has no chat template: it continues your text as plain text\n", stderr);
    int rc = cli_open_stored_session(c->e, &so, store, no_store, &c->s);
    if (rc >= 0) return rc;
    c->g = ma->o.generate;
    c->g.on_token = cli_answer_on_token;
    c->g.no_logprobs = true;
    c->g.user = &c->answer;
    c->keeps = !no_store;
    c->model = ma->model;
    if (!no_store) c->store = cli_store_path(store);
    return -1;
}

static void end(chat *c) {
    cli_chat_pop(c, c->n_msgs);
    cli_chat_tools_close(c);
    cli_answer_free(&c->answer);
    free(c->source);
    free(c->store);
    cli_chat_drop_pictures(c, SIZE_MAX);
    free(c->attached);
    free(c->too_long);
    tern_session_close(&c->s);
    tern_engine_close(&c->e);
}

int cmd_chat(int argc, char **argv) {
    model_args ma;
    cli_model_args_defaults(&ma, TN_IN_CHAT);
    const char *system = NULL, *store = NULL, *template = NULL, *on_full = "shift";
    bool no_store = false;
    int32_t stats = 0;
    chat c = {0};
    grammar_args ga = {0};
    arg_list mcp = {0}, may = {0};
    tn_mcp_servers *servers = NULL;
    const arg_spec specs[] = {
        MODEL_ARGS(ma),
        PACK_ARG(ma),
        {"system", 0, "TEXT", ARG_STR, &system, 0, 0, "system message"},
        {"on-full", 0, "shift|stop", ARG_STR, &on_full, 0, 0,
         "when the context is full: drop the oldest turns, or end the answer (default shift)"},
        TEMPLATE_ARG(template),
        GRAMMAR_ARGS(ga),
        STORE_ARGS(store, no_store),
        MCP_ARGS(mcp, may),
        {"stats", 0, NULL, ARG_LEVEL | ARG_ANSWER, &stats, 0, 0,
         "at the end, print turns, tokens and speed on standard error (--stats=all: drafting too)"},
        {"explain", 0, NULL, ARG_FLAG | ARG_ANSWER, &c.explains, 0, 0,
         "after every answer, print on standard error what each mechanism did and saved, or why it was off"},
        {0},
    };
    const command cmd = {"chat", "MODEL [OPTIONS]  or  -m MODEL [OPTIONS]",
                         "Talk with a model. /help lists the commands inside; Ctrl-C stops an answer.", specs,
                         1};
    const char *words[2];
    int rc = cli_args_parse(&cmd, argc, argv, words);
    if (rc >= 0) return rc;
    if (words[0] && ma.model) return cli_usage_error(&cmd, "unexpected argument '%s'", words[0]);
    c.shift = !strcmp(on_full, "shift");
    if (!c.shift && strcmp(on_full, "stop"))
        return cli_usage_error(&cmd, "--on-full %s: want shift or stop", on_full);
    if (words[0]) ma.model = words[0];
    cli_args_model_path(&ma);
    tern_error err;
    tn_picture_provide();
    if (tn_reader_open(1, TN_READER_WAIT_S, &c.reader, &err) != TERN_OK)
        return cli_failed(&err); /* while there is one thread */
    rc = cli_mcp_start(&cmd, &mcp, &may, false, &servers);
    bool ready =
        rc < 0 && cli_grammar_options(&ga, &ma.o.generate) && cli_prompt_template(template, &c.source);
    if (rc < 0) rc = ready ? cli_open_engine(&cmd, &ma, &c.e) : EXIT_FAILED;
    if (rc < 0 && c.e->model->streamed) tn_streamed_ahead(c.e->model->streamed); /* while the user types */
    if (rc < 0) cli_use_context(&ma, c.e);
    if (rc < 0) rc = begin(&c, &ma, store, no_store);
    if (rc < 0) rc = cli_chat_tools_open(&c, servers), servers = NULL;
    tn_mcp_servers_close(&servers);
    if (rc < 0) {
        if (system) cli_chat_push(&c, "system", system);
        rc = talk(&c);
        if (stats) cli_chat_print_stats(&c);
        if (stats > 1) cli_draft_print(c.s, c.prefill_s, c.decode_s, c.n_decoded);
    }
    end(&c);
    tn_reader_close(&c.reader);
    cli_grammar_args_free(&ga);
    return rc;
}
