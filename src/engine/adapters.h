/* engine/adapters.h - the adapters of an engine, and how a choice of them is written. adapters.c; in a
 * minimal build minimal.c has none. */
#ifndef TN_ENGINE_ADAPTERS_H
#define TN_ENGINE_ADAPTERS_H

#include "engine/engine.h"

/* Opens those of the list "[NAME=]FILE[:SCALE],..." for the engine's model. list: NULL for none. */
tern_status tn_engine_open_adapters(tern_engine *e, const char *list, tern_error *err);
/* About how many bytes they will take: from the sizes of their files. */
uint64_t tn_adapters_bytes(const char *list);

/* The mix that "NAME[:SCALE],..." or "none" asks for; NULL: those that the engine takes by itself.
 * TERN_E_INVALID names what there is. */
tern_status tn_mix_parse(const tern_engine *e, const char *text, tn_lora_mix *out, tern_error *err);

#endif
