/* cli/prompt.h - text to a token prompt, shared by run and chat. */
#ifndef TN_CLI_PROMPT_H
#define TN_CLI_PROMPT_H

#include "tern.h"
#include "text/chat.h"

/* Returns malloc'ed ids with BOS in front, or NULL with a message printed. parse_special is for what the user
 * typed as a prompt, never for text out of documents. */
int32_t *cli_prompt_ids(const tern_engine *e, const char *text, size_t n_bytes, bool parse_special,
                        size_t *n_ids);
/* Puts messages through the model's chat template, or through `source` (may be NULL). Returns malloc'ed ids,
 * or NULL with a message printed. */
int32_t *cli_prompt_chat(const tern_engine *e, const tern_message *msgs, size_t n_msgs, const char *source,
                         size_t *n_ids);

#define TEMPLATE_ARG(given)                                                                                  \
    {                                                                                                        \
        "chat-template", 0, "FILE|NAME", ARG_STR | ARG_MORE, &(given), 0, 0,                                 \
            "chat template to use instead of the model's: a Jinja file, or " TN_CHAT_NAMES                   \
    }

/* Reads what --chat-template names, malloc'ed (NULL when nothing was given). Returns false with a message
 * printed. */
bool cli_prompt_template(const char *given, char **source);

#endif
