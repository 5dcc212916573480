/* engine/adapters.h - an engine's adapters, and the notation that selects them (adapters.c; a minimal
 * build has none, minimal.c). */
#ifndef TN_ENGINE_ADAPTERS_H
#define TN_ENGINE_ADAPTERS_H

#include "engine/engine.h"

/* Opens the adapters of the list "[NAME=]FILE[:SCALE],..." for the engine's model. list: NULL for none. */
tern_status tn_engine_open_adapters(tern_engine *e, const char *list, tern_error *err);
/* Estimates their memory from the sizes of their files. */
uint64_t tn_adapters_bytes(const char *list);

/* The mix that "NAME[:SCALE],..." or "none" names; NULL: the engine's own. TERN_E_INVALID lists the known
 * names. */
tern_status tn_mix_parse(const tern_engine *e, const char *text, tn_lora_mix *out, tern_error *err);

#endif
