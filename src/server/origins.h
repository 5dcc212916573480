/* server/origins.h - pages of which sites may ask (--allow-origin), and by which names (--allow-host): a browser tells
 * whose page sends a request, and by what name it found the server. */
#ifndef TN_SERVER_ORIGINS_H
#define TN_SERVER_ORIGINS_H

#include "base/status.h"

/* Checks a list of origins, "https://a.example,app://obsidian.md": an entry that ends with '*' means all that begin so,
 * "localhost" alone every page of this machine, and "*" alone all. Without keys "*" is refused, because every site that somebody visits could ask. */
tern_status tn_origins_check(const char *list, bool keys, tern_error *err);
/* list may be NULL: none. */
bool tn_origin_allowed(const char *list, const char *origin);

/* Checks a list of host names, "tern.example,box.local". */
tern_status tn_hosts_check(const char *list, tern_error *err);
/* Is a request's Host, with its port or without, a name of this machine or one of the list, which may be NULL? */
bool tn_host_allowed(const char *list, const char *host);

#endif
