/* engine/imports.h - models other than packages: GGUF files and Hugging Face folders (imports.c; a minimal
 * build refuses them, minimal.c). */
#ifndef TN_ENGINE_IMPORTS_H
#define TN_ENGINE_IMPORTS_H

#include "engine/engine.h"
#include "model/file_experts.h"

/* With a device the model is first packed for it, into a file that is deleted with the engine. */
tern_status tn_import_open(tern_engine *e, const char *path, const tern_options *o, int n_threads,
                           tern_error *err);
/* Memory of the weights under a scheme; NULL: the one that opening would choose. *n_next_bytes: of these, the layer's that
 * guesses further. *blocks: they stay blocks, so experts may be read on demand. */
tern_status tn_import_estimate(tn_ctx *ctx, const char *path, const char *scheme, tn_hparams *h,
                               uint64_t *n_bytes, uint64_t *n_next_bytes, tn_experts_need *experts,
                               bool *blocks, tern_error *err);

/* Called by engine.c. Takes *pkg once it is responsible for it. */
tern_status tn_engine_open_package(tern_engine *e, const char *path, tn_pkg **pkg, const tern_options *o,
                                   int n_threads, tern_error *err);

#endif
