/* text/grammar/schema.h - JSON Schema to rules of a grammar. See tn_grammar_open_schema for its texts. */
#ifndef TN_TEXT_GRAMMAR_SCHEMA_H
#define TN_TEXT_GRAMMAR_SCHEMA_H

#include "text/grammar/expr.h"

tern_status tn_schema_read(tn_gb *b, const char *json, size_t n_bytes, tn_grule *root, tern_error *err);

#endif
