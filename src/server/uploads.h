/* server/uploads.h - documents that a page gave: texts in the index that `tern ask` answers from as well.
 *
 *   bytes -> documents/reader.h -> text -> a file of the folder $XDG_DATA_HOME/tern/uploads -> the store's index
 *
 * Of a document its text is kept, not its bytes. The file (0600, folder 0700) is named by sixteen random
 * digits, and its first line is the document's name: no name from outside becomes a path. Any thread may
 * call. */
#ifndef TN_SERVER_UPLOADS_H
#define TN_SERVER_UPLOADS_H

#include "base/json.h"
#include "documents/reader.h"
#include "documents/rerank.h"
#include "store/store.h"

typedef struct tn_uploads tn_uploads;

enum { TN_UPLOADS_MAX = 1000, TN_UPLOAD_TEXT = 16 << 20, TN_UPLOAD_NAME = 200 };

/* It borrows r and rank, which puts passages in order; rank may be NULL. */
tern_status tn_uploads_open(tn_ctx *ctx, tn_reader *r, const tn_reranker *rank, tn_uploads **out,
                            tern_error *err);
void tn_uploads_close(tn_uploads **u);

/* *doc: {id, title, passages, bytes, added} */
tern_status tn_uploads_add(tn_uploads *u, const char *name, const char *bytes, size_t n, json_t **doc,
                           tern_error *err);
/* The text of a document that is not kept: *text [*n_text], to be freed. The name's ending helps to tell what it is. */
tern_status tn_uploads_text(tn_uploads *u, const char *name, const char *bytes, size_t n, char **text,
                            size_t *n_text, tern_error *err);
/* Those of the page, and how many others the index has: {documents, others}. */
tern_status tn_uploads_list(tn_uploads *u, json_t **list, tern_error *err);
/* It goes from the index and from the disk, and what quotes it too. TN_E_GONE: there is none of this id. */
tern_status tn_uploads_remove(tn_uploads *u, const char *id, tern_error *err);

/* The k passages of all documents that suit the question best, found by words and put in order by the reranker; to be
 * freed with tn_rag_hits_free. */
tern_status tn_uploads_search(tn_uploads *u, const char *question, int32_t k, tn_rag_hit **hits, int32_t *n,
                              tern_error *err);
/* Those that fit it: *sources is [{title, number, text, relevance_score: where a reranker read it, document:
 * its id where it was given to the server}], *prompt the question with them (free), or NULL where nothing
 * was found. */
tern_status tn_uploads_ask(tn_uploads *u, const char *question, char **prompt, json_t **sources,
                           tern_error *err);

/* The index, for what a request reads; nothing else has it until tn_uploads_leave. */
tern_status tn_uploads_enter(tn_uploads *u, tn_store **out, tern_error *err);
void tn_uploads_leave(tn_uploads *u, tn_store **s);

/* Erases the files of the folder; the index is tern_store's affair. */
tern_status tn_uploads_clear(int64_t *n, tern_error *err);

#endif
