/* server/reply.h - failures as clients are told of them. */
#ifndef TN_SERVER_REPLY_H
#define TN_SERVER_REPLY_H

#include "base/json.h"

/* Both tell of a failure: the HTTP status, and the body in OpenAI's or Anthropic's form. OpenAI's `type` is
 * what llama.cpp's server says, and its `code` what OpenAI's does. */
int tn_reply_status(const tern_error *err);
json_t *tn_reply_error(const tern_error *err, int status, bool of_messages);
/* A prompt that is too long: the message has the numbers, and so has the body. */
tern_status tn_fail_context(size_t n_prompt, int32_t n_ctx, tern_error *err);
/* The same of a text that is embedded, which needs no room for an answer. */
tern_status tn_fail_context_of_text(size_t n_tokens, int32_t n_ctx, tern_error *err);

#endif
