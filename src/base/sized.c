#include "base/sized.h"

#include "base/status.h"

#include <string.h>

tern_status tn_sized_in(void *dst, size_t have, const void *src, size_t given, size_t least, const char *name,
                        tern_error *err) {
    TN_FAIL_IF(given < least, err, TERN_E_INVALID, "%s of %zu bytes: fill it with %s_defaults first", name,
               given, name);
    TN_FAIL_IF(given > 65536, err, TERN_E_INVALID, "%s of %zu bytes: its size_bytes is not set", name, given);
    for (size_t i = have; i < given; i++) {
        TN_FAIL_IF(((const char *)src)[i], err, TERN_E_UNSUPPORTED,
                   "%s has a field at byte %zu that this version of the library does not know", name, i);
    }
    memcpy(dst, src, given < have ? given : have);
    return TERN_OK;
}

tern_status tn_sized_out(void *dst, size_t given, const void *src, size_t have, size_t least) {
    if (!dst || given < least) return TERN_E_INVALID;
    memcpy(dst, src, given < have ? given : have);
    if (given > have) memset((char *)dst + have, 0, given - have);
    return TERN_OK;
}
