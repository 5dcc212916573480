/* cli/embedding.h - the model that makes an index's vectors, opened for a command. */
#ifndef TN_CLI_EMBEDDING_H
#define TN_CLI_EMBEDDING_H

#include "documents/embed.h"

typedef struct embedding {
    char *path; /* absolute */
    tern_engine *e;
    tn_embedding *v;
    tn_embedder as;
} embedding;

/* Opens a model by its path, or by a name that `tern models` lists. pooling: "mean", "last" or NULL, as the model's
 * file says, else the mean. On failure everything is closed again. */
tern_status cli_embedding_open(const char *model, const char *pooling, embedding *out, tern_error *err);
/* The smallest model that embeds among those that `tern models` lists. Returns false where there is none. */
bool cli_embedding_at_hand(char *path, size_t cap);
/* Opens the model that made an index's vectors. It fails where that is gone or has become another one. */
tern_status cli_embedding_open_noted(const tn_vectors_info *info, embedding *out, tern_error *err);
void cli_embedding_close(embedding *x);

#endif
