/* documents/rerank.h - passages in the order of how well they answer a question, by a model that reads both together.
 *
 *   search  the best passages by words and meaning (documents/rag.h): TN_RAG_RERANKED of them, or k
 *   rerank  a score for each; the k best stay
 *
 * A search compares what was made of a passage before anybody asked; a reranker reads the passage with the question,
 * which costs a forward a passage. */
#ifndef TN_DOCUMENTS_RERANK_H
#define TN_DOCUMENTS_RERANK_H

#include "documents/rag.h"
#include "tern.h"

enum {
    TN_RAG_RERANKED = 24
}; /* each costs .14 s of a core in BERT-base's shape (docs/record/performance.md) */

typedef struct tn_reranker {
    /* Scores how well a text answers a question: larger is better. */
    tern_status (*score)(void *user, const char *question, const char *text, float *out, tern_error *err);
    void *user;
    float yes; /* what scores more answers the question, in the model's own view */
} tn_reranker;

/* How many passages to search for where k are wanted; r may be NULL: k. */
int32_t tn_rag_reach(const tn_reranker *r, int32_t k);

/* Scores hits[0..*n), sorts them, best first, equal ones as they were, and frees all but the k best. One that the
 * reranker says yes to fits. r NULL: they stay as they are. On failure they keep their order, and all of them stay. */
tern_status tn_rag_rerank(tn_ctx *ctx, const tn_reranker *r, const char *question, int32_t k,
                          tn_rag_hit *hits, int32_t *n, tern_error *err);

typedef struct tn_reranking tn_reranking;

/* Opens a session of the engine that scores. A question gets at most half of its context, the text the rest: the
 * ends of longer ones are cut. *as borrows *out, and serves one thread at a time. TERN_E_UNSUPPORTED: the model does not score. The engine
 * outlives *out. */
tern_status tn_reranking_open(tern_engine *e, tn_reranking **out, tn_reranker *as, tern_error *err);
void tn_reranking_close(tn_reranking **v);

#endif
