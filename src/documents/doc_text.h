/* documents/doc_text.h - a growing text of bounded length, which the readers of formats write into. */
#ifndef TN_DOCUMENTS_DOC_TEXT_H
#define TN_DOCUMENTS_DOC_TEXT_H

#include "base/ctx.h"

#include <string.h>

/* After a failure nothing is added. */
typedef struct tn_doc_text {
    tn_ctx *ctx;
    char *p; /* zero-terminated once something was put */
    size_t n, cap, max;
    bool no_memory, full; /* full: there was more than max bytes */
} tn_doc_text;

void tn_doc_put(tn_doc_text *t, const char *s, size_t n);
static inline void tn_doc_put_str(tn_doc_text *t, const char *s) { tn_doc_put(t, s, strlen(s)); }
/* Puts so many newlines between what was put and what comes, unless nothing was put. */
void tn_doc_break(tn_doc_text *t, int n_newlines);

#endif
