/* text/hf.h - a tokenizer from the text of a tokenizer.json alone, for tests and fuzzing. For folders see
 * tokenizer.h. */
#ifndef TN_TEXT_HF_H
#define TN_TEXT_HF_H

#include "text/tokenizer.h"

tern_status tn_hf_parse(tn_ctx *ctx, const char *text, size_t n, tn_tokenizer **out, tern_error *err);

#endif
