/* model/arch_renamed.h - configurations that have words of their own for what others say, too: nomic's, ModernBERT's, Jina's. */
#ifndef TN_MODEL_ARCH_RENAMED_H
#define TN_MODEL_ARCH_RENAMED_H

#include "base/status.h"

#include <jansson.h>

/* Puts the usual words in place of them, and the value that the published code takes where one is left out; the model
 * type becomes one of the table's. *config is replaced (its reference is taken), or left as it is. */
tern_status tn_renamed_config(json_t **config, const char *file, tern_error *err);

#endif
