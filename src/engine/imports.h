/* engine/imports.h - models that are no packages: GGUF files and Hugging Face folders. imports.c opens
 * them; in a minimal build minimal.c refuses them. */
#ifndef TN_ENGINE_IMPORTS_H
#define TN_ENGINE_IMPORTS_H

#include "engine/engine.h"

/* With a device the model is packed for it first, into a file that is gone with the engine. */
tern_status tn_import_open(tern_engine *e, const char *path, const tern_options *o, int n_threads,
                           tern_error *err);
/* What the weights take as they are computed with under a scheme; NULL: the one that opening would choose. */
tern_status tn_import_estimate(tn_ctx *ctx, const char *path, const char *scheme, tn_hparams *h,
                               uint64_t *n_bytes, tern_error *err);

/* engine.c's. Takes *pkg where it gets so far. */
tern_status tn_engine_open_package(tern_engine *e, const char *path, tn_pkg **pkg, const tern_options *o,
                                   int n_threads, tern_error *err);

#endif
