/* cli/best_of.h - several answers to one prompt, read together, of which one is given (self-consistency: Wang et al., arXiv
 * 2203.11171). */
#ifndef TN_CLI_BEST_OF_H
#define TN_CLI_BEST_OF_H

#include "cli/answer.h"

typedef struct best_of_args {
    int32_t n; /* 0: one answer, as without */
    const char *by, *check;
} best_of_args;

#define BEST_OF_ARGS(a)                                                                                      \
    {"best-of",                                                                                              \
     0,                                                                                                      \
     "N",                                                                                                    \
     ARG_INT | ARG_MORE,                                                                                     \
     &(a).n,                                                                                                 \
     2,                                                                                                      \
     TERN_ANSWERS_MAX,                                                                                       \
     "read N answers together, whose seeds count up from --seed, and give the best"},                        \
        {"choose",                                                                                           \
         0,                                                                                                  \
         "HOW",                                                                                              \
         ARG_STR | ARG_MORE,                                                                                 \
         &(a).by,                                                                                            \
         0,                                                                                                  \
         0,                                                                                                  \
         "... which: agreement (default: whose last line shares most words with the others'), or "           \
         "likeliest"},                                                                                       \
    {                                                                                                        \
        "check", 0, "COMMAND", ARG_STR | ARG_MORE, &(a).check, 0, 0,                                         \
            "... among those with which COMMAND, which reads an answer, ends with status 0"                  \
    }

/* Returns -1 to go on or an exit status. */
int cli_best_of_check(const command *c, const best_of_args *a, float temperature);

typedef struct best_of_answer {
    answer text;
    tern_generate_result res;
    double logprobs; /* of its tokens, added up */
    double agrees;   /* mean share of common words with the others' last lines, 0..1 */
    bool passed;
} best_of_answer;

typedef struct best_of {
    best_of_answer *all; /* [n] */
    int32_t n, chosen;
} best_of;

/* Continues s, which has read the prompt, n times (so: what it was opened with), and goes on with the chosen answer. The
 * result belongs to the caller also after a failure. */
tern_status cli_best_of(const best_of_args *a, tern_engine *e, tern_session *s,
                        const tern_session_options *so, const tern_generate_options *g, best_of *out,
                        tern_error *err);
json_t *cli_best_of_json(const best_of_args *a, const best_of *b);
void cli_best_of_tell(const best_of_args *a, const best_of *b); /* on standard error */
void cli_best_of_free(best_of *b);

#endif
