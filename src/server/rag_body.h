/* server/rag_body.h - the bodies of /v1/rag: bytes of a document, and questions. */
#ifndef TN_SERVER_RAG_BODY_H
#define TN_SERVER_RAG_BODY_H

#include "server/request.h"

typedef struct tn_rag_given { /* free the three with tn_rag_given_free */
    json_t *body;
    const char *name;
    const char *bytes; /* [n] */
    size_t n;
    char *decoded;
} tn_rag_given;

/* {"name": NAME, "text": TEXT} or {"name": NAME, "data": BASE64}. On failure nothing is to be freed. */
tern_status tn_rag_read_document(const char *body, size_t n_bytes, tn_rag_given *out, tern_error *err);
void tn_rag_given_free(tn_rag_given *g);

/* {"question": TEXT, and what a chat may have besides messages}. *body is a new value, to which
 * tn_rag_request adds what is to be said to the model. *question points into it. */
tern_status tn_rag_read_question(const char *body, size_t n_bytes, json_t **out, const char **question,
                                 tern_error *err);
/* The chat that asks `prompt`, with what `body` says besides. */
tern_status tn_rag_request(const json_t *body, const char *prompt, tn_request *r, tern_error *err);

#endif
