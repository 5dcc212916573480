#include "cli/answer.h"

#include "cli/output.h"

#include "base/process.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static tern_session *_Atomic cancelled_by_signal;

static volatile sig_atomic_t interrupted;

static void on_interrupt(int sig) {
    (void)sig;
    interrupted = 1;
    cli_progress_stop();
    tern_session *s = cancelled_by_signal;
    if (s) tern_session_cancel(s);
}

bool cli_interrupted(void) { return interrupted != 0; }

void cli_interrupts_cancel(tern_session *s) {
    interrupted = 0;
    cli_progress_go_on(); /* what was stopped before is over */
    cancelled_by_signal = s;
    /* A write to a terminal that is full goes on after the handler: one that failed would end the answer
     * as if the output were closed. */
    struct sigaction a = {.sa_handler = on_interrupt, .sa_flags = (int)SA_RESETHAND | SA_RESTART};
    sigemptyset(&a.sa_mask);
    sigaction(SIGINT, &a, NULL);
}

bool cli_answer_on_token(void *user, int32_t token, const char *text, size_t n, float logprob) {
    answer *a = user;
    if (a->first_s <= 0) a->first_s = tn_process_age_s();
    if (!a->quiet) {
        if (a->view) cli_render_put(a->view, text, n);
        else cli_put_answer(text, n);
        fflush(stdout);
        if (ferror(stdout)) return false;
    }
    if (a->n + n + 1 > a->cap) {
        size_t cap = (a->n + n + 1) * 2;
        char *more = realloc(a->text, cap);
        if (!more) {
            a->no_memory = true;
            return false;
        }
        a->text = more;
        a->cap = cap;
    }
    memcpy(a->text + a->n, text, n);
    a->text[a->n += n] = 0;
    if (!a->tokens || token < 0) return true;
    tn_json_append(&a->tokens, tn_json_pack("{s:i, s:f}", "id", (int)token, "logprob", (double)logprob));
    a->no_memory = !a->tokens;
    return !a->no_memory;
}

void cli_answer_clear(answer *a) {
    a->n = 0;
    a->no_memory = false; /* the next answer may have it */
    if (a->text) a->text[0] = 0;
}

void cli_answer_free(answer *a) {
    json_decref(a->tokens);
    free(a->text);
    *a = (answer){0};
}

/* What the limit did to an answer that has a form. */
static const char *form_of(const answer *a, const tern_generate_options *g) {
    if (!g || !(g->grammar || g->json_schema)) return "";
    if (!g->json_schema || g->grammar_after)
        return "; what its grammar had opened is closed if there was room";
    json_error_t why;
    json_t *v = a->text ? tn_json_parse(a->text, a->n, JSON_DECODE_ANY, &why) : NULL;
    const bool whole = v != NULL;
    json_decref(v);
    return whole ? "; its JSON was closed in time"
                 : "; its JSON is not complete: there was no room to close it";
}

void cli_answer_tell_cut(const tern_engine *e, const tern_session *s, tern_stop_reason r, int32_t n_tokens,
                         const answer *a, const tern_generate_options *g) {
    const char *closed = form_of(a, g);
    tern_model_info i;
    if (r == TERN_STOP_LENGTH && n_tokens)
        fprintf(stderr, "tern: the answer was cut after %d token%s (-n)%s\n", n_tokens,
                n_tokens == 1 ? "" : "s", closed);
    if (r != TERN_STOP_CONTEXT) return;
    tern_engine_info(e, &i);
    fprintf(stderr, "tern: the context of %d tokens is full: the answer ends here%s%s\n",
            tern_session_capacity(s), tern_session_capacity(s) < i.ctx_train ? " (-c N is larger)" : "",
            closed);
}

const char *cli_stop_reason_text(tern_stop_reason r) {
    switch (r) {
    case TERN_STOP_LENGTH: return "length";
    case TERN_STOP_END: return "end";
    case TERN_STOP_STRING: return "stop";
    case TERN_STOP_CALLBACK: return "callback";
    case TERN_STOP_CONTEXT: return "context";
    }
    return "?";
}

bool cli_prompt_fits(const tern_engine *e, const tern_session *s, size_t n) {
    tern_model_info i;
    size_t cap = (size_t)tern_session_capacity(s);
    if (n <= cap) return true;
    tern_engine_info(e, &i);
    size_t more = n + n / 8 + 256;
    if (more <= (size_t)i.ctx_train)
        cli_failed_text(
            "the prompt has %zu tokens and does not fit the context of %zu: -c %zu has room for it and an "
            "answer",
            n, cap, more);
    else
        cli_failed_text(
            "the prompt has %zu tokens and does not fit the context of %zu; the model was trained for %d: "
            "shorten it, or index it with tern rag add FILE and ask with tern ask",
            n, cap, i.ctx_train);
    return false;
}

tern_status cli_prefill_shown(tern_session *s, const int32_t *ids, size_t n, tern_error *err) {
    cli_progress_of_prompt(n);
    tern_status st = tern_session_prefill(s, ids, n, err);
    cli_progress_done();
    return st;
}
