/* cli/draft_args.h - figures of drafting, for run, chat, ask and bench. */
#ifndef TN_CLI_DRAFT_ARGS_H
#define TN_CLI_DRAFT_ARGS_H

#include "cli/args.h"

#include <jansson.h>

/* Writes the figures of the session's drafts, from the time of its prompts, and decode_s and n_tokens of what
 * was generated. */
json_t *cli_draft_json(const tern_session *s, double prefill_s, double decode_s, int32_t n_tokens);
void cli_draft_print(const tern_session *s, double prefill_s, double decode_s, int32_t n_tokens);

#endif
