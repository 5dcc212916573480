/* cli/draft_args.h - the drafting flags run and chat share, and their figures. */
#ifndef TN_CLI_DRAFT_ARGS_H
#define TN_CLI_DRAFT_ARGS_H

#include "cli/args.h"

#include <jansson.h>

#define DRAFT_ARGS(draft, g)                                                                                 \
    {"draft",                                                                                                \
     0,                                                                                                      \
     "LIST",                                                                                                 \
     ARG_STR,                                                                                                \
     &(draft),                                                                                               \
     0,                                                                                                      \
     0,                                                                                                      \
     "drafters: none, auto (default), all, or some of lookup,sam,calibrated,extend,model:FILE; the text is " \
     "the same with any"},                                                                                   \
        {"draft-nodes",    0, "N", ARG_INT,                                                                  \
         &(g).draft_nodes, 1, 32,  "tokens verified in one forward at most (default 32)"},                   \
    {                                                                                                        \
        "draft-eager", 0, NULL, ARG_FLAG, &(g).draft_eager, 0, 0,                                            \
            "verify as many drafts as fit, not only those that pay"                                          \
    }

/* Figures of the session's drafts; the time of its prompts, decode_s and n_tokens of what was generated. */
json_t *draft_json(const tern_session *s, double prefill_s, double decode_s, int32_t n_tokens);
void draft_print(const tern_session *s, double prefill_s, double decode_s, int32_t n_tokens);

#endif
