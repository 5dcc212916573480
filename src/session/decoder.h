/* session/decoder.h - an answer in progress: tern_session_generate in steps, so that several advance
 * together.
 *
 * Open it on a session with logits: that draws and emits the first token. While there is more, a step
 * evaluates the last token and emits the next ones. Close emits the held-back text and tells how the answer
 * ended. The session, and what the options point to, must stay until then. */
#ifndef TN_SESSION_DECODER_H
#define TN_SESSION_DECODER_H

#include "tern.h"

typedef struct tn_decoder tn_decoder;

/* Fails, with *out NULL, where the call itself is wrong. A faulty grammar or draft ends the answer; close
 * reports it. */
tern_status tn_decoder_open(tern_session *s, const tern_generate_options *o, tn_decoder **out,
                            tern_error *err);
bool tn_decoder_more(const tn_decoder *d);
/* One forward for all unfinished decoders, with their drafts: at most TN_MAX_TEXTS of one engine, each with a
 * session of its own. Each emits the tokens that it would emit alone. */
void tn_decoders_step(tn_decoder *const *d, int32_t n);
/* Returns how the answer ended; result and err may be NULL. */
tern_status tn_decoder_close(tn_decoder **d, tern_generate_result *result, tern_error *err);

#endif
