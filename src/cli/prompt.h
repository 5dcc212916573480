/* cli/prompt.h - text to a token prompt, shared by run and chat. */
#ifndef TN_CLI_PROMPT_H
#define TN_CLI_PROMPT_H

#include "tern.h"

/* malloc'ed ids; NULL with a message printed. */
int32_t *prompt_ids(const tern_engine *e, const char *text, size_t n_bytes, bool add_special, size_t *n_ids);
/* The chat template applied to messages: malloc'ed text; NULL with a message printed. */
char *prompt_render(const tern_engine *e, const tern_message *msgs, size_t n_msgs, size_t *n_bytes);

#endif
