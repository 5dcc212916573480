/* server/adapters.h - the adapters that a request is answered with, and those that the server has for requests that name
 * none. */
#ifndef TN_SERVER_ADAPTERS_H
#define TN_SERVER_ADAPTERS_H

#include "base/json.h"
#include "engine/engine.h"
#include "model/lora.h"

/* Reads `lora`: adapters by name, "NAME[:SCALE],...", or as llama.cpp's server has it, [{"id": 0, "scale": 0.5}], where
 * those that are not in the list have no part. NULL or null: own. */
tern_status tn_adapters_read(const tern_engine *e, const json_t *v, const tn_lora_mix *own, tn_lora_mix *out,
                             tern_error *err);
/* [{id, path, name, scale, task_name, prompt_prefix}] of all adapters; scales in that mix. */
json_t *tn_adapters_list(const tern_engine *e, const tn_lora_mix *mix);

#endif
