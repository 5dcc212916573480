/* documents/rag.h - answering from documents: an index of passages in a store, retrieval by words and by meaning, the
 * prompt (sd.npu 2.1).
 *
 *   add     files and folders -> text -> passages -> FTS5 index; a file whose contents did not change is not
 *           read into it again
 *   search  a question in any words -> the passages that match it best: BM25, and the nearest vectors where an
 *           embedding model is given (documents/vectors.h)
 *   rerank  the same passages in the order of a model that scores them (documents/rerank.h)
 *   prompt  passages and question as the messages of a chat
 *
 * Everything is in the store's file (store/store.h) and as durable as what else is there. Documents are known
 * by their absolute path. */
#ifndef TN_DOCUMENTS_RAG_H
#define TN_DOCUMENTS_RAG_H

#include "store/store.h"
#include "documents/extract.h"
#include "documents/vectors.h"

enum { TN_RAG_PASSAGE_TOKENS = 192, TN_RAG_OVERLAP_TOKENS = 24, TN_RAG_K = 4, TN_RAG_MAX_K = 64 };

/* A passage fits a question when it has this share of the weight of its words, or, with vectors, stands
 * out from all others by so many standard deviations of their similarities; with too few vectors to tell,
 * any does. The limits are low: a passage that is left out by mistake costs the answer. */
#define TN_RAG_COVERAGE 0.15f
#define TN_RAG_STANDS_OUT 4.0f
/* The first passage that is cited has this share of the words which the answer adds to the question; each one
 * after it this share that those before do not have. */
#define TN_RAG_CITED 0.25f
#define TN_RAG_CITED_MORE 0.1f

/* What a document shows beside its text; had NULL: it has none. *text is malloc'ed and takes the place of
 * `had`, pages apart by form feeds; NULL: nothing was to be told, and a document without text is skipped as
 * without this. *n_told: pictures and pages that it tells of. An error is why a document without text is
 * skipped, and why another keeps the text it had; but for want of memory and TERN_E_CANCELLED, which end it. */
typedef tern_status (*tn_rag_caption_fn)(void *user, const char *path, const char *bytes, size_t n,
                                         const char *had, char **text, int64_t *n_told, tern_error *err);

typedef struct tn_rag_options {
    tn_passage_options passages; /* max_tokens 0: the defaults above, counted by tn_text_count */
    uint64_t max_file_bytes;     /* larger ones are skipped; 0 = 32 MiB (default) */
    /* notice gets a line for people about a file that was skipped, or pages of it. It may be NULL. */
    void (*notice)(void *user, const char *line);
    /* progress is called after every document that was read. It may be NULL. */
    void (*progress)(void *user, const char *path, int64_t n_done);
    void *user;
    /* Each page of a document without text is a passage. NULL (default): such documents are skipped. One that
     * was told of is as unchanged as others while its bytes are the same, with this and without. */
    tn_rag_caption_fn caption;
    void *caption_user;
    struct tn_reader
        *reader; /* looks into the documents (documents/reader.h), borrowed; NULL: this process does */
} tn_rag_options;

typedef struct tn_rag_added {
    int64_t n_added, n_changed, n_unchanged, n_removed,
        n_skipped;         /* documents; removed: gone from a folder that was given */
    int64_t n_unread;      /* of the skipped: not for what they are, but because reading them failed */
    int64_t n_passages;    /* written */
    int64_t n_captions;    /* pictures and pages that options.caption told of */
    int64_t n_empty_pages; /* of PDF files with text: left out, because they have none */
    uint64_t n_bytes;      /* of files read */
} tn_rag_added;

/* Brings path, a file or a folder with all below it (but hidden ones), into the index. It fails with
 * TERN_E_IO when path does not exist. opt may be NULL. It stops with TERN_E_CANCELLED, keeping what is done,
 * when *cancel (may be NULL) becomes true. It adds to *out. */
tern_status tn_rag_add(tn_store *s, const char *path, const tn_rag_options *opt, const atomic_bool *cancel,
                       tn_rag_added *out, tern_error *err);

/* Removes the document of this path, or all below this folder, or everything for NULL, and the conversations
 * that quote it. Nothing of them stays in the file. *n gets how many documents there were. */
tern_status tn_rag_remove(tn_store *s, const char *path, int64_t *n, tern_error *err);

/* Gives the document's id in the store, for tn_store_quoting, or 0 when it is not in the index. */
tern_status tn_rag_id(tn_store *s, const char *path, int64_t *id, tern_error *err);

typedef struct tn_rag_document {
    const char *path;                   /* borrowed during the callback */
    int64_t n_passages, n_bytes, added; /* added: seconds since 1970 */
} tn_rag_document;

/* Lists documents by path. fn returns false to stop. */
tern_status tn_rag_list(tn_store *s, bool (*fn)(void *user, const tn_rag_document *d), void *user,
                        tern_error *err);
tern_status tn_rag_counts(tn_store *s, int64_t *n_documents, int64_t *n_passages, tern_error *err);

typedef struct tn_rag_hit {
    char *path, *text;
    int32_t number;     /* of the passage in its document, from 1 */
    int32_t line, page; /* that it begins on, from 1; 0: not known, or the document has none */
    float score;        /* larger is better: BM25; with vectors the sum of 1 / (60 + rank) over both lists */
    float similarity;   /* with vectors: as tn_vector_hit has it; 0 where it is not among the nearest */
    float coverage;     /* share of the question's words that stand in it, rare words counting more */
    bool fits;          /* by TN_RAG_COVERAGE or TN_RAG_STANDS_OUT, or a reranker says so */
    float support;      /* tn_rag_support: share of the answer's words that stand in it */
    bool cited;         /* tn_rag_support: the answer came from it */
    bool reranked;      /* relevance is there (documents/rerank.h) */
    float relevance;    /* of a reranker, in its own measure: larger is better */
} tn_rag_hit;

/* Finds the k best passages, best first; *n gets how many there are. The query is words, whatever signs
 * are between them, so it cannot be wrong. With e, which must be the index's own embedding model, the
 * ranks by words and by nearness are fused; NULL: by words alone. The caller frees them with
 * tn_rag_hits_free. */
tern_status tn_rag_search(tn_store *s, const char *query, int32_t k, const tn_embedder *e, tn_rag_hit **out,
                          int32_t *n, tern_error *err);
void tn_rag_hits_free(tn_ctx *ctx, tn_rag_hit **hits, int32_t n);

/* A passage of a document by its number: line, page and text; *hit is freed as above. TERN_E_INVALID: there is no such
 * document or passage; the message says how many there are. */
tern_status tn_rag_passage(tn_store *s, const char *path, int32_t number, tn_rag_hit **hit, tern_error *err);

/* Returns the passages of a document one after the other, at most max_bytes of them. *out is zero-terminated,
 * freed with tn_free, and empty for a path that is not in the index. */
tern_status tn_rag_text(tn_store *s, const char *path, size_t max_bytes, char **out, size_t *n,
                        tern_error *err);

/* Writes the user's message: passages, best last, then the question. It is zero-terminated and freed with
 * tn_free. NULL means that there is no memory. */
char *tn_rag_prompt(tn_ctx *ctx, const char *question, const tn_rag_hit *hits, int32_t n);
/* Finds which passages an answer came from: it fills support and cited. What the answer repeats of the
 * question proves nothing, unless it says nothing else. */
void tn_rag_support(tn_rag_hit *hits, int32_t n, const char *question, const char *answer);
/* For qsort: hits by their support, largest first. */
int tn_rag_by_support(const void *a, const void *b);

#endif
