/* package/tokens.h - a model's tokenizer without its weights. */
#ifndef TN_PACKAGE_TOKENS_H
#define TN_PACKAGE_TOKENS_H

#include "text/tokenizer.h"

/* Opens the tokenizer of a GGUF file (vocabulary-only files too), a Hugging Face folder (a folder of
 * tokenizer files alone too) or a package. */
tern_status tn_tokens_open(tn_ctx *ctx, const char *path, tn_tokenizer **out, tern_error *err);

#endif
