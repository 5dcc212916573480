/* base/page_cache.c - which pages of a file are in memory. On Windows: base/windows/page_cache.c. */
#include "base/aio.h"

#include "base/file.h"
#include "base/status.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

tern_status tn_aio_drop_cache(const char *path, double *stays, tern_error *err) {
    *stays = 0;
    struct stat sb;
    int fd = tn_file_open_regular(path, &sb, err);
    if (fd < 0) return TERN_E_IO;
    tern_status st = TERN_OK;
    (void)fsync(fd); /* pages not yet written stay */
    int rc = st == TERN_OK ? posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED) : 0;
    if (rc) st = tn_fail(err, TERN_E_IO, "%s: cannot be dropped from the page cache: %s", path, strerror(rc));
    if (st == TERN_OK && sb.st_size) {
        size_t n_pages = ((size_t)sb.st_size + 4095) / 4096, n = 0;
        unsigned char *in = malloc(n_pages);
        void *map = mmap(NULL, (size_t)sb.st_size, PROT_READ, MAP_SHARED, fd, 0);
        if (in && map != MAP_FAILED && !mincore(map, (size_t)sb.st_size, in)) {
            for (size_t i = 0; i < n_pages; i++) n += in[i] & 1;
        }
        if (map != MAP_FAILED) munmap(map, (size_t)sb.st_size);
        free(in);
        *stays = (double)n / (double)n_pages;
    }
    close(fd);
    return st;
}

#ifdef RWF_NOWAIT
static bool cached_at(int fd, off_t at) {
    char byte;
    struct iovec v = {&byte, 1};
#ifdef __GLIBC__
    return preadv2(fd, &v, 1, at, RWF_NOWAIT) == 1;
#else /* older musl has the flag without the function; the last but one argument is for machines of 32 bits */
    return syscall(SYS_preadv2, fd, &v, 1, at, 0, RWF_NOWAIT) == 1;
#endif
}
#endif

double tn_aio_cached_share(int fd) {
    int n = 0, n_places = 64;
#ifdef RWF_NOWAIT
    struct stat sb;
    if (!fstat(fd, &sb) && sb.st_size > 0) {
        for (int i = 0; i < n_places; i++)
            n += cached_at(fd, (off_t)((double)sb.st_size * (i + 0.5) / n_places));
    }
#else
    (void)fd;
#endif
    return (double)n / n_places;
}
