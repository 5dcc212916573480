/* text/chat.h - conversations as prompts: messages through a model's chat template. */
#ifndef TN_TEXT_CHAT_H
#define TN_TEXT_CHAT_H

#include "text/segments.h"
#include "text/tokenizer.h"

/* Appends the rendered conversation to `out`, whose context is the caller's. The text starts after the BOS
 * token, which the tokenizer adds. A template with dates (Llama 3.1 and later) gets its own default date, so
 * that the prompt does not change from day to day. */
tern_status tn_chat_segments(const tn_tokenizer *t, const tern_message *msgs, size_t n_msgs,
                             bool add_generation_prompt, tn_segments *out, tern_error *err);

/* The same as text: see tern_chat_render. */
tern_status tn_chat_render(const tn_tokenizer *t, const tern_message *msgs, size_t n_msgs,
                           bool add_generation_prompt, char *buf, size_t cap, size_t *n_bytes,
                           tern_error *err);

/* The same as ids: see tern_chat_tokens. */
tern_status tn_chat_tokens(const tn_tokenizer *t, const tern_message *msgs, size_t n_msgs,
                           bool add_generation_prompt, int32_t *ids, size_t cap, size_t *n_ids,
                           tern_error *err);

#endif
