/* server/refusals.h - why the server refuses a request, where tern's own codes do not say it. These codes
 * stay within server/; tn_reply_status (reply.h) makes HTTP statuses of them. */
#ifndef TN_SERVER_REFUSALS_H
#define TN_SERVER_REFUSALS_H

#include "base/status.h"

#define TN_E_ABSENT ((tern_status)100)  /* there is no such model: 404 */
#define TN_E_BUSY ((tern_status)101)    /* too many wait: 429 */
#define TN_E_CLOSING ((tern_status)102) /* the server ends: 503 */
#define TN_E_GONE ((tern_status)104)    /* there is no other such thing, or none any more: 404 */
#define TN_E_CONTEXT ((tern_status)103) /* the prompt is longer than the context: 400 */
#define TN_E_FULL ((tern_status)105)    /* the disk is full: 507 */
#define TN_E_BLIND ((tern_status)106)   /* by Anthropic's API, a picture for a model that does not see: 500 */

/* What went wrong with the server's own files, for a client: where they lie is not his affair, and a full disk is no
 * fault of his request. Returns the code. */
tern_status tn_own_files(tern_error *err);

#endif
