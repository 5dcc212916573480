/* session/decoder.h - an answer being made: tern_session_generate in steps, so that several go forward
 * together.
 *
 * Lifecycle: open on a session with logits draws and gives out the first token; while there is more, a
 * step evaluates it and gives out what follows; close gives out what was held back, and tells how it
 * ended. The session and what the options point to stay until then. */
#ifndef TN_SESSION_DECODER_H
#define TN_SESSION_DECODER_H

#include "tern.h"

typedef struct tn_decoder tn_decoder;

/* Fails, with *out NULL, where the call itself is wrong. What is wrong with a grammar or a draft ends the
 * answer: close tells it. */
tern_status tn_decoder_open(tern_session *s, const tern_generate_options *o, tn_decoder **out,
                            tern_error *err);
bool tn_decoder_more(const tn_decoder *d);
/* One forward for all, with their drafts: at most TN_MAX_TEXTS decoders that have more, of one engine,
 * each of a session of its own. Each gives out the tokens that it would give out alone. */
void tn_decoders_step(tn_decoder *const *d, int32_t n);
/* Returns how the answer ended; result and err may be NULL. */
tern_status tn_decoder_close(tn_decoder **d, tern_generate_result *result, tern_error *err);

#endif
