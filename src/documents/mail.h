/* documents/mail.h - a message's text (RFC 5322 and MIME). */
#ifndef TN_DOCUMENTS_MAIL_H
#define TN_DOCUMENTS_MAIL_H

#include "documents/doc_text.h"

enum { TN_DOC_MAIL_DEPTH = 8, TN_DOC_MAIL_PARTS = 256 };

/* Tells whether these bytes begin like a message's header. */
bool tn_doc_is_mail(const char *bytes, size_t n);
/* Reads a message. Where there is no text *why says the reason, a constant. */
tern_status tn_doc_mail(tn_doc_text *t, const char *bytes, size_t n, const char **why, tern_error *err);

#endif
