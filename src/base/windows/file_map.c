/* base/windows/file_map.c - mapped files on Windows. While a file is mapped nobody can cut it off there, so no access
 * finds its bytes gone. */
#include "base/file.h"

#include "base/status.h"

#define WIN32_LEAN_AND_MEAN
#include <windows.h>

bool tn_file_shrank(const tn_file *f) { return (void)f, false; }

static const uint8_t empty[1];

tern_status tn_file_map(tn_ctx *ctx, int fd, const char *path, tn_file **out, tern_error *err) {
    *out = NULL;
    struct stat sb;
    TN_FAIL_IF(fstat(fd, &sb), err, TERN_E_IO, "%s: %s", path, strerror(errno));
    tn_file *f = tn_calloc(ctx, TN_MEM_OTHER, 1, sizeof *f);
    if (!f || !(f->path = tn_strdup(ctx, TN_MEM_OTHER, path))) {
        tn_free(ctx, f);
        return tn_fail(err, TERN_E_MEMORY, "no memory to open %s", path);
    }
    f->ctx = ctx;
    tn_file_note(f, &sb);
    f->slot = -1;
    f->data = empty;
    *out = f;
    if (!sb.st_size) return TERN_OK;
    HANDLE m = CreateFileMappingW((HANDLE)_get_osfhandle(fd), NULL, PAGE_READONLY, 0, 0, NULL);
    void *p = m ? MapViewOfFile(m, FILE_MAP_READ, 0, 0, (size_t)sb.st_size) : NULL;
    unsigned long why = GetLastError();
    if (m) CloseHandle(m); /* the view keeps it */
    if (p) {
        f->data = p;
        f->size_bytes = (uint64_t)sb.st_size;
        return TERN_OK;
    }
    tn_file_close(out);
    return tn_fail(err, TERN_E_IO, "%s: cannot map: error %lu", path, why);
}

void tn_file_close(tn_file **pf) {
    tn_file *f = *pf;
    if (!f) return;
    *pf = NULL;
    if (f->size_bytes) UnmapViewOfFile(f->data);
    tn_free(f->ctx, f->path);
    tn_free(f->ctx, f);
}

void tn_file_flush(int fd, uint64_t off_bytes, uint64_t n_bytes) { (void)fd, (void)off_bytes, (void)n_bytes; }

/* Unlocking pages that are not locked takes them out of the working set. */
void tn_file_release(const void *p, uint64_t n_bytes) { (void)VirtualUnlock((void *)p, (size_t)n_bytes); }
