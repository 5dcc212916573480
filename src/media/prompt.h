/* media/prompt.h - the prompt of a conversation with pictures: through the model's chat template, or as plain text. Only
 * the template puts marks of pictures; one that a user's text spells stays text. */
#ifndef TN_MEDIA_PROMPT_H
#define TN_MEDIA_PROMPT_H

#include "media/medium.h"
#include "text/tokenizer.h"

enum { TN_MEDIA_ROW = -1 }; /* in place of the id of each row, in the order of the media */

/* The ids of the conversation o->messages, JSON in which a content may be a list of parts, {"type": "text", "text"} and
 * {"type": "image"}: the media stand where the images do, in their order. *ids [*n_ids] is the caller's, to be freed with
 * tn_free. TERN_E_UNSUPPORTED where the vocabulary has no mark of pictures, or the template leaves a picture out. */
tern_status tn_media_chat(tn_ctx *ctx, const tn_tokenizer *t, const tern_chat_options *o,
                          const tn_medium *const *media, size_t n_media, int32_t **ids, size_t *n_ids,
                          tern_error *err);
/* The same without a template: the pictures, then the text. */
tern_status tn_media_plain(tn_ctx *ctx, const tn_tokenizer *t, const char *text, size_t n_text,
                           const tn_medium *const *media, size_t n_media, int32_t **ids, size_t *n_ids,
                           tern_error *err);

#endif
