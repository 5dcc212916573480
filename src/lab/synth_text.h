/* lab/synth_text.h - the tokenizer of random models: the 256 bytes, a few words, then unused tokens. */
#ifndef TN_LAB_SYNTH_TEXT_H
#define TN_LAB_SYNTH_TEXT_H

#include "formats/gguf.h"

/* sees: the family of pictures whose marks and template the model has (shapes.h); 0: none. */
tern_status tn_synth_put_tokenizer(tn_ctx *ctx, tn_gguf_writer *w, int32_t n_vocab, int sees,
                                   tern_error *err);

#endif
