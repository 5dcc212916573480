/* documents/office.h - office documents and books: containers of XML. */
#ifndef TN_DOCUMENTS_OFFICE_H
#define TN_DOCUMENTS_OFFICE_H

#include "documents/doc_text.h"

enum { TN_DOC_ZIP_ENTRIES = 10000 };

/* Reads docx, pptx, xlsx, odt, ods, odp and epub; a container's entries say which it is. Where there is no text
 * *why says the reason, a constant. */
tern_status tn_doc_office(tn_doc_text *t, const char *bytes, size_t n, const char **why, tern_error *err);

#endif
