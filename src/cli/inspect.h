/* cli/inspect.h - parts of tern inspect that lie in files of their own. */
#ifndef TN_CLI_INSPECT_H
#define TN_CLI_INSPECT_H

#include "model/source.h"

/* A GGUF file that tern does not run: its metadata as it is stored, and why it does not run. */
int cli_inspect_foreign(tn_ctx *ctx, const char *path, const tern_error *why, bool json, bool tensors);

/* Weights of a model's matrices and norms; without layers that guess further. */
uint64_t cli_count_params(const tn_source *s);

#endif
