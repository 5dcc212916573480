/* server/origins.h - pages of which sites may ask (--allow-origin): a browser tells whose page sends a request. */
#ifndef TN_SERVER_ORIGINS_H
#define TN_SERVER_ORIGINS_H

#include "base/status.h"

/* Checks a list of origins, "https://a.example,app://obsidian.md": an entry that ends with '*' means all that begin so,
 * "localhost" all pages of this machine, and "*" alone all. Without keys "*" is refused, because every site that somebody visits could ask. */
tern_status tn_origins_check(const char *list, bool keys, tern_error *err);
/* list may be NULL: none. */
bool tn_origin_allowed(const char *list, const char *origin);

#endif
