/* cli/prompt.h - text to a token prompt, shared by run and chat. */
#ifndef TN_CLI_PROMPT_H
#define TN_CLI_PROMPT_H

#include "tern.h"

/* malloc'ed ids with BOS in front; NULL with a message printed. parse_special is for what the user typed as a
 * prompt, never for text out of documents. */
int32_t *prompt_ids(const tern_engine *e, const char *text, size_t n_bytes, bool parse_special,
                    size_t *n_ids);
/* Messages through the model's chat template: malloc'ed ids; NULL with a message printed. When `plain` is
 * given and the model has no usable template, NULL with *plain set and nothing printed. */
int32_t *prompt_chat(const tern_engine *e, const tern_message *msgs, size_t n_msgs, size_t *n_ids,
                     bool *plain);

#endif
