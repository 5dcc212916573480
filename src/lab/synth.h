/* lab/synth.h - random models in the exact shapes of real ones, as GGUF files any engine reads: for speed
 * work and tests. */
#ifndef TN_LAB_SYNTH_H
#define TN_LAB_SYNTH_H

#include "base/pool.h"
#include "formats/tensor.h"

/* Writes the model `name` ("qwen2.5-0.5b", "tiny-llama", ...; tn_synth_name lists them) to path, with weights
 * of type F32, F16, Q8_0 or Q4_0, or random blocks of IQ1 to IQ3, TQ, Q1_0, Q2_0, NVFP4, MXFP4 or ik_llama.cpp's
 * types, and vectors in F32. The same seed gives the same bytes whatever the threads.
 * Progress is "synth". */
tern_status tn_synth(tn_ctx *ctx, tn_pool *pool, const char *name, const char *path, uint64_t seed,
                     tn_dtype dtype, tern_error *err);
tn_dtype tn_synth_type(const char *name); /* "iq2_xs", as the command line names it; TN_N_DTYPES: none */
const char *tn_synth_name(size_t i);      /* NULL beyond the last */

/* Encoders of pictures beside models that see ("tiny-smolvlm-mmproj", ...), which tn_synth writes too. They may be BF16
 * as well. */
tern_status tn_synth_tower(tn_ctx *ctx, const char *name, const char *path, uint64_t seed, tn_dtype dtype,
                           tern_error *err);
const char *tn_synth_tower_name(size_t i); /* NULL beyond the last */
bool tn_synth_is_tower(const char *name);

#endif
