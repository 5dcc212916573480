/* cli/serve_files.h - the files that a server may open: the system's, to be read; those that its command line and its
 * models name, to be read; tern's own folders of caches and documents, to be written. */
#ifndef TN_CLI_SERVE_FILES_H
#define TN_CLI_SERVE_FILES_H

#include "base/status.h"

/* For this thread and those that it starts, so before others are started. model: what -m stands for, models: --models; reranker: --rerank;
 * slots: --slot-save-path, which is written to; each may be NULL. TERN_E_UNSUPPORTED: this kernel has no Landlock. */
tern_status cli_serve_files(char **argv, const char *model, const char *models, const char *reranker,
                            const char *slots, tern_error *err);

#endif
