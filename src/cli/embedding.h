/* cli/embedding.h - the models that find passages, opened for a command: what makes an index's vectors, and a reranker. */
#ifndef TN_CLI_EMBEDDING_H
#define TN_CLI_EMBEDDING_H

#include "documents/embed.h"
#include "documents/rerank.h"

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

typedef struct reranking {
    char path[TN_VECTOR_PATH_MAX];
    tern_engine *e;
    tn_reranking *v; /* NULL: there is none */
    tn_reranker as;
} reranking;

/* For arg_spec. otherwise: what holds without the option. */
#define RERANK_ARG(to, otherwise)                                                                            \
    {                                                                                                        \
        "rerank", 0, "MODEL", ARG_STR, &(to), 0, 0,                                                          \
            "order the passages that were found by how well this reranker says they answer "                 \
            "(default: " otherwise ")"                                                                       \
    }
#define RERANK_AT_HAND "the smallest that `tern models` lists; none: as they were found"

/* Opens the reranker of this path or name; it fails where that is none. NULL: the smallest among those that `tern models`
 * lists, and where that cannot be opened a line says so. "none", or none is at hand: TERN_OK, and v is NULL. */
tern_status cli_reranking_open(const char *model, reranking *out, tern_error *err);
void cli_reranking_close(reranking *x);

#endif
