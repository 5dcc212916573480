/* server/papers.h - PDF documents of requests in Anthropic's form, {"type": "document", "source": {"type": "base64",
 * "media_type": "application/pdf", "data"}}: their words take their place before the request is read. */
#ifndef TN_SERVER_PAPERS_H
#define TN_SERVER_PAPERS_H

#include "server/uploads.h"

enum { TN_REQUEST_PAPERS = 32 };

/* Gives every PDF of the body's messages, and of the results of tools in them, a source of type text. u reads them,
 * each in a process of its own; where it is NULL they stay as they are, and are refused with the request.
 * TERN_E_INVALID, TERN_E_UNSUPPORTED and TERN_E_LIMIT: no base64, no text in it, too many. */
tern_status tn_papers_read(tn_uploads *u, json_t *body, tern_error *err);

#endif
