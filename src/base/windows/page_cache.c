/* base/windows/page_cache.c - Windows does not tell what of a file is in memory, and drops none of it when asked. */
#include "base/aio.h"

#include "base/status.h"

tern_status tn_aio_drop_cache(const char *path, double *stays, tern_error *err) {
    *stays = 1;
    return tn_fail(err, TERN_E_UNSUPPORTED, "%s: Windows keeps files in memory whatever programs ask", path);
}

double tn_aio_cached_share(int fd) { return (void)fd, 0; }
