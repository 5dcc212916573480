/* server/refusals.h - why the server refuses a request, where tern's own codes do not say it. These codes
 * stay within server/; tn_reply_status (reply.h) makes HTTP statuses of them. */
#ifndef TN_SERVER_REFUSALS_H
#define TN_SERVER_REFUSALS_H

#include "base/status.h"

#define TN_E_ABSENT ((tern_status)100)  /* there is no such thing: 404 */
#define TN_E_BUSY ((tern_status)101)    /* too many wait: 429 */
#define TN_E_CLOSING ((tern_status)102) /* the server ends: 503 */

#endif
