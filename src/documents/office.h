/* documents/office.h - office documents and books: containers of XML. */
#ifndef TN_DOCUMENTS_OFFICE_H
#define TN_DOCUMENTS_OFFICE_H

#include "documents/doc_text.h"

#include <string.h>

enum { TN_DOC_ZIP_ENTRIES = 10000, TN_DOC_PICTURES = 200 };

/* Tells whether it may be one: a ZIP file. */
static inline bool tn_doc_is_container(const char *bytes, size_t n) {
    return n >= 4 && !memcmp(bytes, "PK\3\4", 4);
}

/* Loads the libraries that reading one takes, if they can be loaded. Call it before sealing this process, or before
 * forking one that will be sealed. */
void tn_doc_office_prepare(void);

/* Reads docx, pptx, xlsx, odt, ods, odp and epub; a container's entries say which it is. Where there is no text
 * *why says the reason, a constant. */
tern_status tn_doc_office(tn_doc_text *t, const char *bytes, size_t n, const char **why, tern_error *err);

/* The file of a picture in such a container, `number` from 1 on in the order of their names (image2 before
 * image10); nothing beyond the last, or beyond TN_DOC_PICTURES. Of one that is damaged the bytes are no
 * picture's. *out is zero-terminated; free with tn_free. *why: as above. */
tern_status tn_doc_office_picture(tn_ctx *ctx, const char *bytes, size_t n, int number, char **out,
                                  size_t *n_out, const char **why, tern_error *err);

#endif
