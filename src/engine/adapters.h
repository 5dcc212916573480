/* engine/adapters.h - an engine's adapters, and the notation that selects them (adapters.c; a minimal
 * build has none, minimal.c). */
#ifndef TN_ENGINE_ADAPTERS_H
#define TN_ENGINE_ADAPTERS_H

#include "engine/engine.h"

/* Opens the adapters that the folder of the engine's model holds, and those of the list "[NAME=]FILE[:SCALE],...". A scale
 * that is not said is 1; of an adapter for a task 0. list: NULL for none. */
tern_status tn_engine_open_adapters(tern_engine *e, const char *path, const char *list, tern_error *err);
/* Estimates their memory from the sizes of their files, and of those of the model's folder from its configuration. */
uint64_t tn_adapters_bytes(const char *model, const tn_hparams *h, const char *list);

/* The mix that "NAME[:SCALE],..." or "none" names; NULL: the engine's own. TERN_E_INVALID lists the known
 * names. */
tern_status tn_mix_parse(const tern_engine *e, const char *text, tn_lora_mix *out, tern_error *err);
/* The adapter of a task alone, and what its texts begin with (*prefix, the engine's). TERN_E_INVALID lists the tasks,
 * TERN_E_UNSUPPORTED: there are none. */
tern_status tn_task_parse(const tern_engine *e, const char *task, tn_lora_mix *out, const char **prefix,
                          tern_error *err);
bool tn_engine_has_tasks(const tern_engine *e);

#endif
