/* lab/synth.h - random models in the exact shapes of real ones, as GGUF files any engine reads: for speed
 * work and tests. */
#ifndef TN_LAB_SYNTH_H
#define TN_LAB_SYNTH_H

#include "base/pool.h"
#include "formats/tensor.h"

/* Writes the model `name` ("qwen2.5-0.5b", "tiny-llama", ...; tn_synth_name lists them) to path, with weights
 * of type F32, F16, Q8_0 or Q4_0 and vectors in F32. The same seed gives the same bytes whatever the threads.
 * Progress is "synth". */
tern_status tn_synth(tn_ctx *ctx, tn_pool *pool, const char *name, const char *path, uint64_t seed,
                     tn_dtype dtype, tern_error *err);
const char *tn_synth_name(size_t i); /* NULL beyond the last */

#endif
