/* cli/chat_talk.c - turns: what goes into the context, what leaves it when it is full. */
#include "cli/chat_pictures.h"
#include "cli/chat_tools.h"

#include "base/clock.h"
#include "base/status.h"
#include "cli/output.h"
#include "cli/prompt.h"
#include "cli/stats.h"
#include "session/session.h"

#include <stdio.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

void cli_chat_pop(chat *c, size_t n) {
    while (n-- && c->n_msgs) {
        free((char *)c->msgs[--c->n_msgs].content);
        json_decref(c->as[c->n_msgs]);
        c->as[c->n_msgs] = NULL;
        cli_chat_drop_pictures(c, c->n_msgs);
    }
    if (c->n_left > c->n_msgs) c->n_left = c->n_msgs;
}

bool cli_chat_push(chat *c, const char *role, const char *content) {
    if (c->n_msgs == CHAT_MESSAGES)
        return cli_failed_text(
                   "this conversation has %d messages, the most it can have: /clear starts a new one",
                   CHAT_MESSAGES),
               false;
    char *copy = strdup(content);
    if (!copy) return cli_failed_text("no memory for a message"), false;
    c->msgs[c->n_msgs++] = (tern_message){role, copy};
    return true;
}

static size_t first_turn(const chat *c) { return c->n_msgs && !strcmp(c->msgs[0].role, "system"); }

/* What was typed and answered, one after another. */
static int32_t *plain_ids(const chat *c, size_t from, size_t *n_ids) {
    size_t n = 1, at = 0;
    for (size_t i = from; i < c->n_msgs; i++) n += strlen(c->msgs[i].content) + 1;
    char *text = malloc(n);
    if (!text) return cli_failed_text("no memory for the prompt"), NULL;
    for (size_t i = from; i < c->n_msgs; i++) {
        size_t len = strlen(c->msgs[i].content);
        memcpy(text + at, c->msgs[i].content, len);
        at += len;
        if (i + 1 < c->n_msgs && strcmp(c->msgs[i].role, "user")) text[at++] = '\n';
    }
    int32_t *ids = cli_prompt_ids(c->e, text, at, false, n_ids);
    free(text);
    return ids;
}

size_t cli_chat_question(const chat *c) {
    for (size_t i = c->n_msgs; i--;)
        if (!strcmp(c->msgs[i].role, "user")) return i;
    return c->n_msgs;
}

int32_t *cli_chat_render(const chat *c, size_t *n_ids) {
    size_t sys = first_turn(c);
    if (c->plain) return plain_ids(c, sys + c->n_left, n_ids);
    if (cli_chat_has_pictures(c, sys + c->n_left)) return cli_chat_looking_ids(c, sys + c->n_left, n_ids);
    if (c->tools) return cli_chat_tools_ids(c, sys + c->n_left, n_ids);
    tern_message *in = malloc((c->n_msgs + 1) * sizeof *in);
    if (!in) return cli_failed_text("no memory for the prompt"), NULL;
    size_t n = 0;
    if (sys) in[n++] = c->msgs[0];
    for (size_t i = sys + c->n_left; i < c->n_msgs; i++) in[n++] = c->msgs[i];
    int32_t *ids = cli_prompt_chat(c->e, in, n, c->source, n_ids);
    free(in);
    return ids;
}

/* The oldest turn that is still in the context leaves it; never the question to be answered. */
static bool leave_one(chat *c) {
    size_t i = first_turn(c) + c->n_left + 1;
    while (i < c->n_msgs && strcmp(c->msgs[i].role, "user")) i++;
    if (i >= c->n_msgs) return false;
    c->n_left = i - first_turn(c);
    return true;
}

/* Says once that turns have left; never in the middle of an answer. */
static void tell(chat *c) {
    if (c->leaves && !c->told)
        fprintf(stderr,
                "tern: the context of %d tokens is full: the oldest turns are dropped (-c N makes it larger; "
                "--on-full stop ends the answer instead)\n",
                tern_session_capacity(c->s));
    c->told = c->told || c->leaves;
}

/* Then it lasts for some turns, and their prefix stays as it is. */
int32_t *cli_chat_make_room(chat *c, int32_t *ids, size_t *n_ids) {
    size_t half = (size_t)tern_session_capacity(c->s) / 2, before = c->n_left;
    while (ids && *n_ids > half && leave_one(c)) {
        free(ids);
        ids = cli_chat_render(c, n_ids);
    }
    c->leaves = c->leaves || (ids && c->n_left > before);
    return ids;
}

/* The tokens that a question may have at most, the system message with it; the others are for its answer. */
static size_t most_asked(const chat *c) {
    size_t cap = (size_t)tern_session_capacity(c->s), room = cap / 16;
    return cap - (c->g.max_tokens >= 0 && (size_t)c->g.max_tokens < room ? (size_t)c->g.max_tokens : room);
}

/* The tokens of the last message, with the system message alone. false: it cannot be told, and why was
 * printed. */
static bool tokens_alone(chat *c, size_t *n) {
    size_t left = c->n_left;
    c->n_left = c->n_msgs - first_turn(c) - 1;
    int32_t *ids = cli_chat_render(c, n);
    c->n_left = left;
    free(ids);
    return ids != NULL;
}

static void refuse(chat *c, size_t n_tokens) {
    size_t n = 0;
    c->refused = true;
    cli_chat_tools_leave_out(c, true);
    bool fits = tokens_alone(c, &n) && n <= most_asked(c); /* without the tools */
    cli_chat_tools_leave_out(c, false);
    if (fits && cli_chat_tools_are_blamed(c, n_tokens, n)) return;
    fprintf(stderr,
            "tern: this message has %zu tokens; in the context of %d there is room for %zu. It was not sent, "
            "and the conversation is unchanged. /cut sends the part that fits; -c N makes the context "
            "larger; tern rag add FILE and tern ask answer from long documents\n",
            n_tokens, tern_session_capacity(c->s), most_asked(c));
}

/* The conversation with its last message, as far as it fits. NULL: it does not, or cannot be told; why was
 * printed. */
static int32_t *fitting_ids(chat *c, size_t *n_ids) {
    size_t cap = (size_t)tern_session_capacity(c->s), room = cap / 4, alone;
    int32_t *ids = cli_chat_render(c, n_ids);
    if (c->g.max_tokens >= 0 && (size_t)c->g.max_tokens < room) room = (size_t)c->g.max_tokens;
    if (!ids || *n_ids + room <= cap) return ids;
    bool fits = tokens_alone(c, &alone) && alone <= most_asked(c);
    if (fits && c->shift) return cli_chat_make_room(c, ids, n_ids);
    if (fits && *n_ids < cap) return ids;
    if (!fits) refuse(c, alone);
    else
        cli_failed_text(
            "the context of %zu tokens is full: with this message the conversation has %zu (/clear starts a "
            "new one; --on-full shift drops the oldest turns; -c N makes the context larger)",
            cap, *n_ids);
    c->refused = true;
    free(ids);
    return NULL;
}

/* A context that fills up within an answer: turns leave, and the answer goes on where it was. NULL: none
 * can. *n_prompt of the tokens are the prompt, the others the answer so far. */
static int32_t *going_on(chat *c, size_t *n_prompt, size_t *n_ids) {
    size_t n_said = tern_session_length(c->s) - *n_prompt, n = 0;
    if (!leave_one(c)) return NULL;
    c->leaves = true;
    int32_t *ids = cli_chat_render(c, &n);
    ids = cli_chat_make_room(c, ids, &n);
    if (!ids) return NULL;
    bool fits = n + n_said < (size_t)tern_session_capacity(c->s);
    int32_t *all = fits ? realloc(ids, (n + n_said) * sizeof *ids) : NULL;
    if (!all) {
        free(ids);
        return NULL;
    }
    memcpy(all + n, c->s->tokens + *n_prompt, n_said * sizeof *all);
    *n_prompt = n;
    *n_ids = n + n_said;
    return all;
}

/* Takes ids. */
static tern_status answer_to(chat *c, int32_t *ids, size_t n_ids, tern_error *err) {
    tern_generate_options g = c->g;
    tern_generate_result res = {0};
    tern_status st = TERN_OK;
    size_t n_prompt = n_ids;
    /* turns that leave make room for ever: no answer is longer than the context */
    if (g.max_tokens < 0 && c->shift) g.max_tokens = tern_session_capacity(c->s);
    c->said = 0;
    st = cli_chat_tools_listen(c, ids, n_ids, &g, err);
    if (st != TERN_OK) free(ids);
    while (st == TERN_OK && ids) {
        double t0 = tn_now_s();
        st = cli_chat_see(c, first_turn(c) + c->n_left, err);
        if (st == TERN_OK) st = cli_prefill_shown(c->s, ids, n_ids, err);
        c->prefill_s += tn_now_s() - t0;
        if (st == TERN_OK) st = tern_session_generate(c->s, &g, &res, err);
        free(ids);
        ids = NULL;
        c->decode_s += res.decode_s;
        c->n_decoded += res.n_tokens;
        c->said += res.n_tokens;
        if (st != TERN_OK || res.reason != TERN_STOP_CONTEXT) break;
        if (g.max_tokens >= 0) g.max_tokens -= res.n_tokens;
        if (c->shift && !g.grammar && !g.json_schema) ids = going_on(c, &n_prompt, &n_ids);
    }
    if (!cli_chat_tools_heard(c) && st == TERN_OK)
        st = tn_fail(err, TERN_E_MEMORY, "no memory for the answer");
    bool whole_context = c->g.max_tokens < 0 && res.reason == TERN_STOP_LENGTH;
    c->ended = whole_context ? TERN_STOP_CONTEXT : res.reason;
    return st;
}

/* The question, with the files that go with it. */
static bool push_question(chat *c, const char *text) {
    char *with = NULL;
    if (c->attached && asprintf(&with, "%s\n%s", c->attached, text) < 0)
        return cli_failed_text("no memory for a message"), false;
    bool pushed = cli_chat_push(c, "user", with ? with : text);
    free(with);
    if (pushed && c->next) cli_chat_give_pictures(c);
    return pushed;
}

/* It goes again, and its pictures are those of the next question as before. */
static void pop_question(chat *c) {
    cli_chat_take_pictures(c);
    cli_chat_pop(c, 1);
}

/* Makes text, the attached files or the question, so short that both fit. */
static bool cut_to_fit(chat *c, char *text, const char *question) {
    size_t fits = 0, too_long = strlen(text), n_all = too_long, n;
    while (too_long - fits > 1) {
        size_t at = fits + (too_long - fits) / 2;
        char here = text[at];
        text[at] = 0;
        bool told = push_question(c, question) && tokens_alone(c, &n);
        text[at] = here;
        if (!told) return false;
        pop_question(c);
        *(n <= most_asked(c) ? &fits : &too_long) = at;
    }
    while (fits && ((uint8_t)text[fits] & 0xc0) == 0x80) fits--; /* no half characters */
    text[fits] = 0;
    fprintf(stderr, "tern: the first %zu of %zu bytes are sent\n", fits, n_all);
    return fits > 0;
}

bool cli_chat_cut(chat *c) {
    char *text = c->too_long;
    if (!text) return fputs("tern: no message was too long: there is nothing to cut\n", stderr), false;
    c->too_long = NULL;
    bool ok = cut_to_fit(c, c->attached ? c->attached : text, text) && cli_chat_turn(c, text);
    free(text);
    return ok;
}

/* Shows the answer to what is in the context. Takes ids. false: there is none, and why was printed. */
static bool show_answer(chat *c, int32_t *ids, size_t n_ids) {
    tern_error err;
    cli_answer_clear(&c->answer);
    tn_explain_mark_set(c->s, &c->mark);
    cli_interrupts_cancel(c->s);
    tern_status st = answer_to(c, ids, n_ids, &err);
    if (c->terminal) cli_interrupts_cancel(NULL);
    if (c->answer.view) cli_render_end(c->answer.view);
    if (c->answer.n || !cli_chat_tools_called(c)) putchar('\n');
    fflush(stdout); /* a program that reads the answer waits for its end */
    if (st == TERN_OK && c->answer.no_memory) st = tn_fail(&err, TERN_E_MEMORY, "no memory for the answer");
    bool ok = st == TERN_OK || (st == TERN_E_CANCELLED && c->answer.n);
    tell(c);
    if (st == TERN_OK) cli_answer_tell_cut(c->e, c->s, c->ended, c->said, &c->answer, &c->g);
    if (st == TERN_E_CANCELLED && c->terminal)
        fputs("tern: stopped\n", stderr); /* where does not matter to who did it */
    else if (st != TERN_OK) cli_failed(&err);
    else if (c->explains) {
        if (c->seen[c->n_msgs - 1]) cli_looking_print(c->seen[c->n_msgs - 1]);
        cli_explain_print(c->s, &c->mark);
    }
    c->stopped = st != TERN_OK;
    return ok;
}

bool cli_chat_turn(chat *c, const char *text) {
    size_t had = c->n_msgs, had_left = c->n_left;
    c->refused = false;
    free(c->too_long);
    c->too_long = NULL;
    if (!cli_chat_tools_begin(c) || !push_question(c, text)) return false;
    size_t n_ids;
    int32_t *ids = fitting_ids(c, &n_ids);
    if (c->refused) c->too_long = strdup(text);
    tell(c);
    bool ok = ids && show_answer(c, ids, n_ids);
    for (int round = 0; ok && !c->stopped && cli_chat_tools_called(c); round++)
        ok = cli_chat_tools_run(c, round) && (ids = cli_chat_tools_go_on(c, &n_ids)) &&
             show_answer(c, ids, n_ids);
    if (ok && cli_chat_push(c, "assistant", c->answer.text ? c->answer.text : "")) {
        free(c->attached);
        c->attached = NULL;
        c->n_turns++;
        return true;
    }
    cli_chat_pop(c, c->n_msgs - had - 1);
    pop_question(c);
    c->n_left = had_left;
    return false;
}
