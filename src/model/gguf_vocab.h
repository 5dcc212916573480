/* model/gguf_vocab.h - a tokenizer from GGUF metadata (tokenizer.ggml.*). */
#ifndef TN_MODEL_GGUF_VOCAB_H
#define TN_MODEL_GGUF_VOCAB_H

#include "formats/gguf.h"
#include "text/tokenizer.h"

/* *out is NULL, without an error, when the file has no tokenizer. */
tern_status tn_gguf_tokenizer(tn_ctx *ctx, const tn_gguf *g, tn_tokenizer **out, tern_error *err);

#endif
