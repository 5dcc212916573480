/* measure/eval_text.h - a text's tokens as one, two or three models predict them, over the same windows.
 * For one model that is perplexity; a source adds the KL divergence from its predictions; a second model adds
 * paired differences, whose standard error is far smaller than that of either perplexity. */
#ifndef TN_MEASURE_EVAL_TEXT_H
#define TN_MEASURE_EVAL_TEXT_H

#include "measure/eval.h"

tern_status tn_eval_text(tern_engine *e, const tn_eval_options *o, const char *text, size_t n_bytes,
                         tn_eval_result *out, tern_error *err);

#endif
