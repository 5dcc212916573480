/* model/wrapped.h - folders of models that see: their configuration holds that of a text model. */
#ifndef TN_MODEL_WRAPPED_H
#define TN_MODEL_WRAPPED_H

#include "base/status.h"

#include <jansson.h>

/* The object of the text; NULL: the configuration is the text's itself. */
const json_t *tn_wrapped_text(const json_t *config);
/* The configuration that the reader of the text wants, which the caller releases: where the model type is one of those
 * that add an encoder to another's text, the text's object with what transformers takes where it says nothing; else
 * config itself. */
tern_status tn_wrapped_config(const json_t *config, const char *file, json_t **out, tern_error *err);

#endif
