#include "cli/best_of.h"

#include "base/status.h"
#include "cli/common_words.h"
#include "cli/output.h"

#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool by_likelihood(const best_of_args *a) { return a->by && !strcmp(a->by, "likeliest"); }

int cli_best_of_check(const command *c, const best_of_args *a, float temperature) {
    if (!a->n && (a->by || a->check))
        return cli_usage_error(c, "--%s goes with --best-of", a->by ? "choose" : "check");
    if (a->by && strcmp(a->by, "agreement") && !by_likelihood(a))
        return cli_usage_error(c, "--choose %s: agreement or likeliest", a->by);
    if (a->n && !(temperature > 0))
        return cli_usage_error(c, "--best-of: at --temp 0 all %d answers are the same", (int)a->n);
    return -1;
}

/* ---- answers -------------------------------------------------------------------------------------------- */

static bool on_token(void *user, int32_t token, const char *text, size_t n, float logprob) {
    best_of_answer *a = user;
    if (token >= 0) a->logprobs += (double)logprob;
    return cli_answer_on_token(&a->text, token, text, n, logprob);
}

/* Steps of all that have more, until none has. */
static tern_status read_all(best_of *b, tern_answer **open, tern_error *err) {
    tern_answer *going[TERN_ANSWERS_MAX];
    for (;;) {
        size_t n = 0;
        tern_status failed = TERN_OK;
        for (int32_t i = 0; i < b->n; i++) {
            if (open[i] && tern_answer_more(open[i])) going[n++] = open[i];
            else if (open[i] && failed == TERN_OK) failed = tern_answer_close(&open[i], &b->all[i].res, err);
            if (b->all[i].text.no_memory) return tn_fail(err, TERN_E_MEMORY, "no memory to keep the answers");
        }
        if (failed != TERN_OK) return failed;
        if (!n) return TERN_OK;
        TN_TRY(tern_answers_step(going, n, err));
    }
}

static const char *text_of(const best_of *b, int32_t i) {
    return b->all[i].text.text ? b->all[i].text.text : "";
}

/* Whether the command takes it. */
static tern_status ask(const char *check, const char *text, bool *passed, tern_error *err) {
    fflush(stdout);
    FILE *f = popen(check, "w");
    TN_FAIL_IF(!f, err, TERN_E_IO, "--check: cannot start %s", check);
    void (*before)(int) = signal(SIGPIPE, SIG_IGN); /* it need not read everything */
    (void)fputs(text, f);
    *passed = pclose(f) == 0;
    signal(SIGPIPE, before);
    return TERN_OK;
}

static tern_status choose(const best_of_args *a, best_of *b, tern_error *err) {
    int32_t n_passed = 0;
    for (int32_t i = 0; i < b->n; i++) {
        best_of_answer *x = &b->all[i];
        x->passed = true;
        if (a->check) TN_TRY(ask(a->check, text_of(b, i), &x->passed, err));
        n_passed += x->passed;
        for (int32_t j = 0; j < b->n; j++)
            if (j != i) x->agrees += cli_common_words(text_of(b, i), text_of(b, j)) / (b->n - 1);
    }
    TN_FAIL_IF(!n_passed, err, TERN_E_INVALID, "none of the %d answers passed --check", (int)b->n);
    double most = -INFINITY;
    for (int32_t i = 0; i < b->n; i++) {
        const best_of_answer *x = &b->all[i];
        const double score = !by_likelihood(a) ? x->agrees
                             : x->res.n_tokens ? x->logprobs / x->res.n_tokens
                                               : 0;
        if (!x->passed || !(score > most)) continue;
        most = score;
        b->chosen = i;
    }
    return TERN_OK;
}

/* Opens answers of s and of copies of it. */
static tern_status open_all(const best_of_args *a, tern_engine *e, tern_session *s,
                            const tern_session_options *so, tern_generate_options g, best_of *b,
                            tern_session **sessions, tern_answer **open, tern_error *err) {
    tern_session_options plain = *so;
    plain.store = NULL;
    g.on_token = on_token;
    g.no_logprobs = !by_likelihood(a);
    g.draft = "none";
    for (int32_t i = 0; i < b->n; i++) {
        sessions[i] = s;
        if (i) TN_TRY(tern_session_open(e, &plain, &sessions[i], err));
        if (i) TN_TRY(tern_session_copy(sessions[i], s, err));
    }
    for (int32_t i = 0; i < b->n; i++, g.sampling.seed++) {
        b->all[i].text.quiet = true;
        g.user = &b->all[i];
        TN_TRY(tern_answer_open(sessions[i], &g, &open[i], err));
    }
    return TERN_OK;
}

tern_status cli_best_of(const best_of_args *a, tern_engine *e, tern_session *s,
                        const tern_session_options *so, const tern_generate_options *g, best_of *out,
                        tern_error *err) {
    tern_session *sessions[TERN_ANSWERS_MAX] = {0};
    tern_answer *open[TERN_ANSWERS_MAX] = {0};
    *out = (best_of){.n = a->n, .all = calloc((size_t)a->n, sizeof *out->all)};
    TN_FAIL_IF(!out->all, err, TERN_E_MEMORY, "no memory for %d answers", (int)a->n);
    tern_status st = open_all(a, e, s, so, *g, out, sessions, open, err);
    if (st == TERN_OK) st = read_all(out, open, err);
    for (int32_t i = 0; i < out->n; i++) tern_answer_close(&open[i], NULL, NULL);
    if (st == TERN_OK) st = choose(a, out, err);
    if (st == TERN_OK && out->chosen) st = tern_session_copy(s, sessions[out->chosen], err);
    for (int32_t i = 1; i < out->n; i++) tern_session_close(&sessions[i]);
    return st;
}

json_t *cli_best_of_json(const best_of_args *a, const best_of *b) {
    json_t *answers = json_array();
    for (int32_t i = 0; i < b->n; i++) {
        const best_of_answer *x = &b->all[i];
        json_t *j = tn_json_pack("{s:s%, s:i, s:s, s:f, s:b}", "text", text_of(b, i), x->text.n, "tokens",
                                 (int)x->res.n_tokens, "stop", cli_stop_reason_text(x->res.reason), "agrees",
                                 x->agrees, "passed", (int)x->passed);
        if (by_likelihood(a)) tn_json_set(&j, "logprob", tn_json_real(x->logprobs));
        tn_json_append(&answers, j);
    }
    json_t *j = tn_json_pack("{s:i, s:s}", "chosen", (int)b->chosen, "by", a->by ? a->by : "agreement");
    tn_json_set(&j, "answers", answers);
    return j;
}

void cli_best_of_tell(const best_of_args *a, const best_of *b) {
    const best_of_answer *x = &b->all[b->chosen];
    int n_passed = 0;
    for (int32_t i = 0; i < b->n; i++) n_passed += b->all[i].passed;
    fprintf(stderr, "tern: answer %d of %d", (int)b->chosen + 1, (int)b->n);
    if (a->check) fprintf(stderr, ", %d of which passed", n_passed);
    if (by_likelihood(a))
        fprintf(stderr, ": the likeliest, %.2f nats a token\n",
                x->res.n_tokens ? -x->logprobs / x->res.n_tokens : 0);
    else fprintf(stderr, ": its last line shares %.0f %% of its words with the others'\n", x->agrees * 100);
}

void cli_best_of_free(best_of *b) {
    for (int32_t i = 0; b->all && i < b->n; i++) cli_answer_free(&b->all[i].text);
    free(b->all);
    *b = (best_of){0};
}
