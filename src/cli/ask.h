/* cli/ask.h - what tern ask and tern mcp share: a question with its passages as a prompt. */
#ifndef TN_CLI_ASK_H
#define TN_CLI_ASK_H

#include "base/json.h"
#include "documents/rag.h"

/* Writes the question with the first n passages as the model wants it: in its chat template, or as plain text where it
 * has none. source is a template's text, or NULL: the model's. The caller frees the ids with free; NULL after a message. */
int32_t *cli_ask_ids(const tern_engine *e, tn_ctx *ctx, const char *source, const char *system,
                     const char *question, const tn_rag_hit *hits, int32_t n, size_t *n_ids);

#endif
