/* text/chat.h - conversations as prompts: messages through a model's chat template (text/jinja), as Hugging
 * Face's apply_chat_template has it. */
#ifndef TN_TEXT_CHAT_H
#define TN_TEXT_CHAT_H

#include "text/segments.h"
#include "text/tokenizer.h"

/* Chooses the template that a conversation goes through: the options', or the model's. */
tern_status tn_chat_source(const tn_tokenizer *t, const tern_chat_options *o, const char **source,
                           tern_error *err);

/* Appends the rendered conversation to `out`, whose context is the caller's. opt may be NULL. Where the
 * tokenizer adds a BOS token, the text starts after it. Nothing of the conversation may be lost: a system
 * message that the template refuses or leaves out is put before the first question, a later one into the user's
 * message beside it, and tools for a template without tools are an error. */
tern_status tn_chat_segments(const tn_tokenizer *t, const tern_message *msgs, size_t n_msgs,
                             const tern_chat_options *opt, tn_segments *out, tern_error *err);

/* The same as text: see tern_chat_render. */
tern_status tn_chat_render(const tn_tokenizer *t, const tern_message *msgs, size_t n_msgs,
                           const tern_chat_options *opt, char *buf, size_t cap, size_t *n_bytes,
                           tern_error *err);

/* The same as ids: see tern_chat_tokens. */
tern_status tn_chat_tokens(const tn_tokenizer *t, const tern_message *msgs, size_t n_msgs,
                           const tern_chat_options *opt, int32_t *ids, size_t cap, size_t *n_ids,
                           tern_error *err);

/* The names of the built-in templates. */
#define TN_CHAT_NAMES                                                                                        \
    "chatml, llama2, llama3, llama4, mistral, mistral-v7, gemma, phi3, phi4, zephyr, command-r, deepseek3, " \
    "falcon3, chatglm4, granite"
/* A built-in template by name, or NULL. */
const char *tn_chat_builtin(const char *name);

#endif
