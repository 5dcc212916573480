/* libraries/library.h - libraries of others that most runs do not need.
 *
 * tern and tern-lab load each of them at its first need (loaded.c); tests, plugins and static programs are linked with
 * them (linked.c). The callers are the same: they include the library's own header, and ask here before their first
 * call. Whoever reads in a sealed process asks before it is sealed. */
#ifndef TN_LIBRARIES_LIBRARY_H
#define TN_LIBRARIES_LIBRARY_H

#include "base/status.h"

typedef enum tn_library {
    TN_LIBRARY_SQLITE,
    TN_LIBRARY_ARCHIVE,
    TN_LIBRARY_XML,
    TN_LIBRARY_MICROHTTPD,
    TN_LIBRARY_GNUTLS,
    TN_LIBRARY_EDIT,
    TN_LIBRARY_PNG,
    TN_LIBRARY_JPEG,
    TN_LIBRARY_WEBP,
    TN_N_LIBRARIES
} tn_library;

/* Returns NULL when the library is loaded: any thread may call it from then on, and it is never unloaded. Otherwise
 * returns a constant sentence that names the library, its Debian package and the reason. It is decided once per
 * process; children forked later inherit it, so a sealed one never searches. */
const char *tn_library_lacks(tn_library l);

static inline tern_status tn_library_need(tn_library l, tern_error *err) {
    const char *why = tn_library_lacks(l);
    TN_FAIL_IF(why, err, TERN_E_UNSUPPORTED, "%s", why);
    return TERN_OK;
}

#endif
