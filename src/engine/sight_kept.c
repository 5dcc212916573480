/* A file is kept_head | rows f32, little endian as everything else. */
#include "engine/sight_kept.h"

#include "base/file.h"
#include "base/finite.h"
#include "base/outfile.h"
#include "base/status.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

enum { NAME_BYTES = 2 * TN_VIEW_KEY + 8, FILES_MAX = 1 << 16 };

static const char MAGIC[8] = "TERNROW";

typedef struct kept_head {
    char magic[8];
    int32_t n, width;
    uint8_t key[TN_VIEW_KEY];
    uint64_t sum; /* XXH64 of the rows */
} kept_head;
_Static_assert(sizeof(kept_head) == 56, "on-disk layout");

bool tn_kept_place(char out[TN_KEPT_PATH]) {
    const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME"), *middle = "";
    if (!cache || cache[0] != '/') cache = home, middle = "/.cache";
    return cache && *cache &&
           snprintf(out, TN_KEPT_PATH, "%s%s/tern/pictures", cache, middle) < TN_KEPT_PATH - NAME_BYTES;
}

static void path_of(const char *folder, const char *name, char out[TN_KEPT_PATH + NAME_BYTES]) {
    snprintf(out, TN_KEPT_PATH + NAME_BYTES, "%.4095s/%.70s", folder, name);
}

static void name_of(const uint8_t key[TN_VIEW_KEY], char out[NAME_BYTES]) {
    for (int i = 0; i < TN_VIEW_KEY; i++) snprintf(out + 2 * i, 3, "%02x", key[i]);
    memcpy(out + 2 * TN_VIEW_KEY, ".rows", 6);
}

/* An entry, or what a writer that was killed left of one (base/outfile.c). */
static bool is_entry(const char *name) {
    return strspn(name, "0123456789abcdef") == 2 * TN_VIEW_KEY &&
           !strncmp(name + 2 * TN_VIEW_KEY, ".rows", 5);
}

/* ---- reading and writing ------------------------------------------------------------------------------- */

static bool read_rows(int fd, const char *path, const uint8_t key[TN_VIEW_KEY], int32_t n, int32_t width,
                      float *rows) {
    const uint64_t n_bytes = (uint64_t)n * (uint64_t)width * sizeof *rows;
    kept_head h;
    return tn_file_read_at(fd, path, &h, sizeof h, 0, NULL) == TERN_OK &&
           !memcmp(h.magic, MAGIC, sizeof MAGIC) && h.n == n && h.width == width &&
           !memcmp(h.key, key, TN_VIEW_KEY) &&
           tn_file_read_at(fd, path, rows, n_bytes, sizeof h, NULL) == TERN_OK &&
           XXH64(rows, n_bytes, 0) == h.sum && tn_all_finite(rows, (size_t)n * (size_t)width);
}

bool tn_kept_read(const tn_kept *k, const uint8_t key[TN_VIEW_KEY], int32_t n, int32_t width, float *rows) {
    char name[NAME_BYTES], path[TN_KEPT_PATH + NAME_BYTES];
    struct stat sb;
    if (!k->limit_bytes) return false;
    name_of(key, name);
    path_of(k->folder, name, path);
    int fd = tn_file_open_regular(path, &sb, NULL);
    if (fd < 0) return false;
    bool ok = sb.st_uid == geteuid() && read_rows(fd, path, key, n, width, rows);
    close(fd);
    if (ok) (void)utimensat(AT_FDCWD, path, NULL, 0); /* it was needed now */
    else unlink(path);
    return ok;
}

/* ---- the limit ------------------------------------------------------------------------------------------ */

typedef struct aged {
    char name[NAME_BYTES];
    int64_t used_ns;
    uint64_t n_bytes;
} aged;

static int by_age(const void *a, const void *b) {
    const aged *x = a, *y = b;
    return x->used_ns != y->used_ns ? (x->used_ns < y->used_ns ? -1 : 1) : strcmp(x->name, y->name);
}

/* Returns how many there are, at most `cap`, and all their bytes. */
static size_t list(const char *folder, aged *out, size_t cap, uint64_t *total) {
    char path[TN_KEPT_PATH + NAME_BYTES];
    struct stat sb;
    size_t n = 0;
    *total = 0;
    DIR *d = opendir(folder);
    for (struct dirent *f; d && n < cap && (f = readdir(d));) {
        if (!is_entry(f->d_name) || strlen(f->d_name) >= NAME_BYTES) continue;
        path_of(folder, f->d_name, path);
        if (lstat(path, &sb) || !S_ISREG(sb.st_mode)) continue;
        if (out) {
            snprintf(out[n].name, NAME_BYTES, "%.*s", NAME_BYTES - 1, f->d_name);
            out[n].used_ns = (int64_t)sb.st_mtim.tv_sec * 1000000000 + sb.st_mtim.tv_nsec;
            out[n].n_bytes = (uint64_t)sb.st_size;
        }
        *total += (uint64_t)sb.st_size;
        n++;
    }
    if (d) closedir(d);
    return n;
}

/* The oldest go until a tenth of the limit is free. */
static void shrink(tn_ctx *ctx, const char *folder, uint64_t limit_bytes, uint64_t *total) {
    aged *all = tn_alloc(ctx, TN_MEM_OTHER, FILES_MAX, sizeof *all);
    if (!all) return;
    size_t n = list(folder, all, FILES_MAX, total);
    qsort(all, n, sizeof *all, by_age);
    for (size_t i = 0; i<n && * total> limit_bytes - limit_bytes / 10; i++) {
        char path[TN_KEPT_PATH + NAME_BYTES];
        path_of(folder, all[i].name, path);
        if (!unlink(path)) *total -= all[i].n_bytes;
    }
    tn_free(ctx, all);
}

static tern_status write_rows(tn_ctx *ctx, const char *path, const kept_head *h, const float *rows,
                              uint64_t n_bytes) {
    static const tn_outkind kind = {.what = "rows of a picture", .begins = {"TERNROW"}, .is_private = true};
    tn_outfile *f;
    TN_TRY(tn_outfile_open(ctx, path, &kind, &f, NULL));
    tern_status st = tn_outfile_write(f, h, sizeof *h, NULL);
    if (st == TERN_OK) st = tn_outfile_write(f, rows, n_bytes, NULL);
    if (st == TERN_OK) return tn_outfile_commit(&f, NULL);
    tn_outfile_abort(&f);
    return st;
}

void tn_kept_write(tn_ctx *ctx, tn_kept *k, const uint8_t key[TN_VIEW_KEY], int32_t n, int32_t width,
                   const float *rows) {
    const uint64_t n_bytes = (uint64_t)n * (uint64_t)width * sizeof *rows;
    char name[NAME_BYTES], path[TN_KEPT_PATH + NAME_BYTES];
    tern_error why;
    if (k->total_bytes == UINT64_MAX || n_bytes + sizeof(kept_head) > k->limit_bytes) return;
    if (!k->total_bytes) {
        if (tn_file_private_folder(k->folder, &why) != TERN_OK) {
            k->total_bytes = UINT64_MAX;
            tn_log(ctx, TERN_LOG_WARN, "pictures are not kept on disk: %s", why.message);
            return;
        }
        (void)list(k->folder, NULL, SIZE_MAX, &k->total_bytes);
    }
    kept_head h = {.n = n, .width = width, .sum = XXH64(rows, n_bytes, 0)};
    memcpy(h.magic, MAGIC, sizeof h.magic);
    memcpy(h.key, key, TN_VIEW_KEY);
    name_of(key, name);
    path_of(k->folder, name, path);
    if (write_rows(ctx, path, &h, rows, n_bytes) != TERN_OK) {
        k->total_bytes = UINT64_MAX;
        tn_log(ctx, TERN_LOG_WARN, "pictures are not kept on disk: %s cannot be written", path);
        return;
    }
    k->total_bytes += n_bytes + sizeof h;
    if (k->total_bytes > k->limit_bytes) shrink(ctx, k->folder, k->limit_bytes, &k->total_bytes);
}

tern_status tn_kept_clear(int64_t *n, tern_error *err) {
    char folder[TN_KEPT_PATH], path[TN_KEPT_PATH + NAME_BYTES];
    tern_status st = TERN_OK;
    *n = 0;
    if (!tn_kept_place(folder)) return TERN_OK;
    DIR *d = opendir(folder);
    if (!d) return errno == ENOENT ? TERN_OK : tn_fail(err, TERN_E_IO, "%s: %s", folder, strerror(errno));
    for (struct dirent *f; (f = readdir(d));) {
        if (!is_entry(f->d_name)) continue;
        path_of(folder, f->d_name, path);
        if (!unlink(path)) ++*n;
        else if (errno != ENOENT && st == TERN_OK)
            st = tn_fail(err, TERN_E_IO, "%s: %s", path, strerror(errno));
    }
    closedir(d);
    return st;
}
