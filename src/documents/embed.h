/* documents/embed.h - a model as what makes the vectors of an index (documents/vectors.h). */
#ifndef TN_DOCUMENTS_EMBED_H
#define TN_DOCUMENTS_EMBED_H

#include "documents/vectors.h"
#include "tern.h"

typedef struct tn_embedding tn_embedding;

/* Opens a session of the engine that makes vectors: the mean over a text's tokens, or the last token's state.
 * Texts longer than the context are cut. *as, which borrows model and *out, is for the index. The engine
 * outlives *out. */
tern_status tn_embedding_open(tern_engine *e, const char *model, bool mean, tn_embedding **out,
                              tn_embedder *as, tern_error *err);
void tn_embedding_close(tn_embedding **v);

#endif
