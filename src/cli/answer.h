/* cli/answer.h - an answer on its way out, for run, ask and chat: printed as it comes, kept whole, stopped by
 * Ctrl-C. */
#ifndef TN_CLI_ANSWER_H
#define TN_CLI_ANSWER_H

#include "base/json.h"
#include "cli/args.h"
#include "cli/render.h"

typedef struct answer {
    bool quiet;     /* keep it, print nothing */
    render *view;   /* of a terminal, or NULL: plain */
    json_t *tokens; /* NULL, or an array that gets every token with its log-probability */
    char *text;     /* the whole answer, or NULL before the first byte */
    size_t n, cap;
    double first_s; /* process age at the first token */
    bool no_memory; /* it ended for want of memory */
} answer;

/* This is the on_token of tern_generate_options, with an answer as user. */
bool cli_answer_on_token(void *user, int32_t token, const char *text, size_t n, float logprob);
void cli_answer_clear(answer *a); /* for the next one; keeps the memory */
void cli_answer_free(answer *a);

/* Says on standard error where a limit cut an answer of n_tokens, and of one that keeps to a JSON schema (g; NULL: none does) whether
 * it is whole all the same. */
void cli_answer_tell_cut(const tern_engine *e, const tern_session *s, tern_stop_reason r, int32_t n_tokens,
                         const answer *a, const tern_generate_options *g);

const char *cli_stop_reason_text(tern_stop_reason r);

/* Whether Ctrl-C came since the next of these was called last. */
bool cli_interrupted(void);
/* Lets Ctrl-C cancel this session. With NULL it cancels only what shows progress. A second one ends the
 * process. */
void cli_interrupts_cancel(tern_session *s);

/* Whether a prompt of n tokens fits the context; what would help was printed where it does not. */
bool cli_prompt_fits(const tern_engine *e, const tern_session *s, size_t n);

/* Prefills, and shows progress on a terminal: tokens read and the time left. */
tern_status cli_prefill_shown(tern_session *s, const int32_t *ids, size_t n, tern_error *err);

#endif
