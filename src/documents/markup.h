/* documents/markup.h - the XML of documents, opened so that reading it takes time in step with its length.
 *
 * libxml2 searches the attributes of an element, the namespaces in force and the declarations of a document
 * one after the other, and its table of names stops growing: some hundred kilobytes of these cost it minutes.
 * What a document has of them is counted beforehand, in one pass over its bytes. */
#ifndef TN_DOCUMENTS_MARKUP_H
#define TN_DOCUMENTS_MARKUP_H

#include "base/ctx.h"

#include <libxml/xmlreader.h>

enum {
    TN_MARKUP_ATTRIBUTES = 256,    /* of one element, its namespaces among them */
    TN_MARKUP_NAMESPACES = 512,    /* in force at one place */
    TN_MARKUP_DEPTH = 256,         /* of elements */
    TN_MARKUP_NAME_BYTES = 1 << 20 /* of all different names */
};

/* Opens a reader, which stands at the first node: no network, no files, no entities but the five. xml is in an
 * encoding that tn_text_decode tells. *out is NULL where *why, a constant, says what is wrong. *text is what
 * the reader reads; the caller frees it with tn_free after the reader. */
tern_status tn_markup_open(tn_ctx *ctx, const char *xml, size_t n, char **text, xmlTextReaderPtr *out,
                           const char **why, tern_error *err);

#endif
