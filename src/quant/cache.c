#include "quant/cache.h"

#include "base/file.h"
#include "base/outfile.h"
#include "base/status.h"
#include "formats/package.h"
#include "model/source.h"
#include "quant/partial.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

/* ---- folder --------------------------------------------------------------------------------------- */

static tern_status private_folder(const char *path, bool make, tern_error *err) {
    struct stat sb;
    if (make && mkdir(path, 0700) && errno != EEXIST)
        return tn_fail(err, TERN_E_IO, "%s: cannot be made: %s", path, strerror(errno));
    if (stat(path, &sb)) {
        if (!make && errno == ENOENT) return TERN_OK; /* nothing is there */
        return tn_fail(err, TERN_E_IO, "%s: %s", path, strerror(errno));
    }
    TN_FAIL_IF(!S_ISDIR(sb.st_mode), err, TERN_E_IO, "%s: not a folder", path);
    TN_FAIL_IF(sb.st_uid != geteuid(), err, TERN_E_IO, "%s belongs to another user", path);
    TN_FAIL_IF(sb.st_mode & 022, err, TERN_E_IO, "%s: others may write to it", path);
    return TERN_OK;
}

static tern_status folder_of(const char *name, char out[TN_CACHE_PATH], bool make, tern_error *err) {
    const char *xdg = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    char base[TN_CACHE_PATH - 32];
    int n;
    if (xdg && tn_file_is_absolute(xdg)) n = snprintf(base, sizeof base, "%s", xdg);
    else if (home && tn_file_is_absolute(home)) n = snprintf(base, sizeof base, "%s/.cache", home);
    else
        return tn_fail(err, TERN_E_IO,
                       "neither XDG_CACHE_HOME nor HOME is the path of a folder: nothing is kept");
    TN_FAIL_IF(n >= (int)sizeof base, err, TERN_E_INVALID, "the cache folder's path is too long");
    if (make && mkdir(base, 0700) && errno != EEXIST)
        return tn_fail(err, TERN_E_IO, "%s: cannot be made: %s", base, strerror(errno));
    snprintf(out, TN_CACHE_PATH, "%s/tern", base);
    TN_TRY(private_folder(out, make, err));
    snprintf(out, TN_CACHE_PATH, "%s/tern/%s", base, name);
    return private_folder(out, make, err);
}

tern_status tn_cache_folder(char out[TN_CACHE_PATH], bool make, tern_error *err) {
    return folder_of("packages", out, make, err);
}

tern_status tn_cache_profiles(char out[TN_CACHE_PATH], bool make, tern_error *err) {
    return folder_of("profiles", out, make, err);
}

tern_status tn_cache_forget_profiles(tern_error *err) {
    char folder[TN_CACHE_PATH], path[TN_CACHE_PATH + 256];
    TN_TRY(tn_cache_profiles(folder, false, err));
    DIR *d = opendir(folder);
    for (struct dirent *f = d ? readdir(d) : NULL; f; f = readdir(d)) {
        const size_t n = strlen(f->d_name);
        if (n > 8 && !strcmp(f->d_name + n - 8, ".profile") &&
            snprintf(path, sizeof path, "%s/%s", folder, f->d_name) < (int)sizeof path)
            (void)unlink(path); /* somebody else may have removed it */
    }
    if (d) closedir(d);
    return TERN_OK;
}

/* Makes the path of KEY and an ending in the folder. */
static tern_status entry_path(const char *folder, const char *key, const char *ending,
                              char out[TN_CACHE_PATH], tern_error *err) {
    TN_FAIL_IF(snprintf(out, TN_CACHE_PATH, "%s/%s%s", folder, key, ending) >= TN_CACHE_PATH, err,
               TERN_E_INVALID, "the cache folder's path is too long");
    return TERN_OK;
}

static bool is_key(const char *s, size_t n) {
    if (n != TN_CACHE_KEY - 1) return false;
    for (size_t i = 0; i < n; i++)
        if (!strchr("0123456789abcdef", s[i])) return false;
    return true;
}

/* ---- keys ----------------------------------------------------------------------------------------- */

static int is_model_file(const struct dirent *d) {
    const char *end = strrchr(d->d_name, '.');
    return end && (!strcmp(end, ".json") || !strcmp(end, ".safetensors") || !strcmp(end, ".model") ||
                   !strcmp(end, ".txt") || !strcmp(end, ".jinja"));
}

/* Adds a file's contents to the hash; *known becomes false where they are not known. */
static tern_status hash_file(tn_ctx *ctx, XXH3_state_t *h, const char *folder, const char *path,
                             tn_content_from from, bool *known, tern_error *err) {
    tn_content c;
    bool is_known;
    if (!*known) return TERN_OK;
    TN_TRY(tn_content_of(ctx, folder, path, from, &c, &is_known, err));
    *known = is_known;
    if (is_known) XXH3_128bits_update(h, &c, sizeof c);
    return TERN_OK;
}

static tern_status hash_folder(tn_ctx *ctx, XXH3_state_t *h, const char *folder, const char *path,
                               tn_content_from from, bool *known, tern_error *err) {
    struct dirent **names;
    int n = scandir(path, &names, is_model_file, alphasort);
    TN_FAIL_IF(n < 0, err, TERN_E_IO, "%s: %s", path, strerror(errno));
    tern_status st = TERN_OK;
    for (int i = 0; i < n; i++) {
        char file[TN_CACHE_PATH];
        if (st == TERN_OK && snprintf(file, sizeof file, "%s/%s", path, names[i]->d_name) >= (int)sizeof file)
            st = tn_fail(err, TERN_E_INVALID, "%s: path too long", path);
        if (st == TERN_OK) {
            XXH3_128bits_update(h, names[i]->d_name, strlen(names[i]->d_name) + 1);
            st = hash_file(ctx, h, folder, file, from, known, err);
        }
        free(names[i]);
    }
    free(names);
    return st;
}

tern_status tn_cache_key(tn_ctx *ctx, const char *folder, const char *model, tn_content_from from,
                         char key[TN_CACHE_KEY], tern_error *err) {
    static const char version[] = "tern packages 8"; /* increase it when packages are made differently */
    struct stat sb;
    key[0] = 0;
    TN_FAIL_IF(stat(model, &sb), err, TERN_E_IO, "%s: %s", model, strerror(errno));
    XXH3_state_t *h = XXH3_createState();
    TN_FAIL_IF(!h, err, TERN_E_MEMORY, "no memory for a hash");
    XXH3_128bits_reset(h);
    XXH3_128bits_update(h, version, sizeof version);
    bool known = true;
    tern_status st = S_ISDIR(sb.st_mode) ? hash_folder(ctx, h, folder, model, from, &known, err)
                                         : hash_file(ctx, h, folder, model, from, &known, err);
    XXH128_hash_t v = XXH3_128bits_digest(h);
    XXH3_freeState(h);
    if (st == TERN_OK && known)
        snprintf(key, TN_CACHE_KEY, "%016llx%016llx", (unsigned long long)v.high64,
                 (unsigned long long)v.low64);
    return st;
}

/* ---- using ---------------------------------------------------------------------------------------- */

bool tn_cache_find(const char *folder, const char *key, char path[TN_CACHE_PATH]) {
    char source[TN_CACHE_PATH];
    struct stat sb;
    if (entry_path(folder, key, ".tern", path, NULL) != TERN_OK ||
        entry_path(folder, key, ".source", source, NULL) != TERN_OK)
        return false;
    if (lstat(path, &sb) || !S_ISREG(sb.st_mode) || sb.st_uid != geteuid() || !tn_pkg_is(path)) return false;
    (void)utimensat(AT_FDCWD, source, NULL, 0); /* on a full or read-only disk the package is still good */
    return true;
}

static int by_use(const void *a, const void *b) {
    const tn_cache_entry *x = a, *y = b;
    if (x->used_s != y->used_s) return x->used_s > y->used_s ? -1 : 1;
    return strcmp(x->key, y->key);
}

static void read_source(const char *path, char out[TN_CACHE_PATH]) {
    out[0] = 0;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0) return;
    ssize_t n = read(fd, out, TN_CACHE_PATH - 1);
    out[n > 0 ? n : 0] = 0;
    close(fd);
}

/* Left by a process that was killed while packing (quant/partial.h). */
static const char PARTIAL[] = ".tern" TN_PARTIAL_ENDING;

tern_status tn_cache_list(tn_ctx *ctx, const char *folder, tn_cache_entry **out, size_t *n, tern_error *err) {
    *out = NULL;
    *n = 0;
    DIR *d = opendir(folder);
    if (!d) {
        TN_FAIL_IF(errno != ENOENT, err, TERN_E_IO, "%s: %s", folder, strerror(errno));
        return TERN_OK;
    }
    tern_status st = TERN_OK;
    for (struct dirent *e; st == TERN_OK && (e = readdir(d));) {
        char path[TN_CACHE_PATH], source[TN_CACHE_PATH], key[TN_CACHE_KEY] = "";
        struct stat sb;
        size_t len = strlen(e->d_name);
        const char *ending = len < TN_CACHE_KEY - 1 ? "" : e->d_name + TN_CACHE_KEY - 1;
        bool unfinished = !strcmp(ending, PARTIAL);
        if ((strcmp(ending, ".tern") && !unfinished) || !is_key(e->d_name, TN_CACHE_KEY - 1)) continue;
        memcpy(key, e->d_name, TN_CACHE_KEY - 1);
        if ((st = entry_path(folder, key, ending, path, err)) != TERN_OK ||
            (st = entry_path(folder, key, ".source", source, err)) != TERN_OK || lstat(path, &sb))
            continue; /* it has gone meanwhile */
        tn_cache_entry *more = tn_realloc(ctx, TN_MEM_OTHER, *out, *n + 1, sizeof *more);
        if (!more) {
            st = tn_fail(err, TERN_E_MEMORY, "no memory to list %zu packages", *n + 1);
            continue;
        }
        *out = more;
        tn_cache_entry *x = &more[(*n)++];
        *x = (tn_cache_entry){
            .bytes = (uint64_t)sb.st_size, .used_s = sb.st_mtim.tv_sec, .unfinished = unfinished};
        memcpy(x->key, key, sizeof key);
        read_source(source, x->source);
        if (!lstat(source, &sb)) x->used_s = sb.st_mtim.tv_sec;
        if (!unfinished) tn_cache_about_get(path, &x->about);
    }
    closedir(d);
    if (st == TERN_OK) {
        if (*n) qsort(*out, *n, sizeof **out, by_use);
    } else {
        tn_free(ctx, *out);
        *out = NULL;
        *n = 0;
    }
    return st;
}

tern_status tn_cache_remove(const char *folder, const char *key, tern_error *err) {
    static const char *const endings[] = {".source", ".tern.profile", ".about", ".lock"};
    bool unfinished;
    char path[TN_CACHE_PATH];
    TN_FAIL_IF(!is_key(key, strlen(key)), err, TERN_E_INVALID,
               "%s is not the key of a package (tern cache ls lists them)", key);
    TN_TRY(entry_path(folder, key, PARTIAL, path, err));
    unfinished = !unlink(path);
    TN_TRY(entry_path(folder, key, ".tern", path, err));
    if (unlink(path) && !unfinished) {
        TN_FAIL_IF(errno == ENOENT, err, TERN_E_INVALID, "no package %s; tern cache ls lists what is there",
                   key);
        return tn_fail(err, TERN_E_IO, "%s: cannot be removed: %s", path, strerror(errno));
    }
    for (size_t i = 0; i < sizeof endings / sizeof endings[0]; i++) {
        TN_TRY(entry_path(folder, key, endings[i], path, err));
        (void)unlink(path);
    }
    return TERN_OK;
}

/* ---- making --------------------------------------------------------------------------------------- */

tern_status tn_cache_options(tn_ctx *ctx, const char *model, tn_pack_options *out, tern_error *err) {
    tn_source *src;
    tn_pack_defaults(out);
    TN_TRY(tn_source_open(ctx, model, &src, err));
    const double bits = tn_source_bits(src);
    tn_source_close(&src);
    if (bits > 0) out->bits = fmin(8, ceil(bits) + 1);
    return TERN_OK;
}

/* Takes the lock of a key. The lock ends with the process, however it ends. */
static tern_status take_lock(const char *folder, const char *key, int *fd, bool *busy, tern_error *err) {
    char path[TN_CACHE_PATH];
    TN_TRY(entry_path(folder, key, ".lock", path, err));
    for (;;) {
        struct stat opened, named;
        *fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
        TN_FAIL_IF(*fd < 0, err, TERN_E_IO, "%s: cannot be made: %s", path, strerror(errno));
        if (flock(*fd, LOCK_EX | LOCK_NB)) {
            *busy = errno == EWOULDBLOCK;
            tern_status st = *busy ? TERN_OK : tn_fail(err, TERN_E_IO, "%s: %s", path, strerror(errno));
            close(*fd);
            *fd = -1;
            return st;
        }
        /* the last holder may have removed the name meanwhile: the lock would then guard nothing */
        if (!fstat(*fd, &opened) && !stat(path, &named) && opened.st_ino == named.st_ino) return TERN_OK;
        close(*fd);
    }
}

bool tn_cache_making(const char *folder, const char *key) {
    char path[TN_CACHE_PATH];
    if (entry_path(folder, key, ".lock", path, NULL) != TERN_OK) return false;
    int fd = open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
    bool taken = fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) && errno == EWOULDBLOCK;
    if (fd >= 0) close(fd);
    return taken;
}

static void release_lock(const char *folder, const char *key, int fd) {
    char path[TN_CACHE_PATH];
    if (entry_path(folder, key, ".lock", path, NULL) == TERN_OK) (void)unlink(path);
    close(fd);
}

static tern_status put_source(const char *folder, const char *key, const char *model, tern_error *err) {
    char path[TN_CACHE_PATH], *full = realpath(model, NULL);
    TN_FAIL_IF(!full, err, TERN_E_IO, "%s: %s", model, strerror(errno));
    tern_status st = entry_path(folder, key, ".source", path, err);
    int fd = st == TERN_OK ? open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600) : -1;
    if (st == TERN_OK && (fd < 0 || write(fd, full, strlen(full)) != (ssize_t)strlen(full)))
        st = tn_fail(err, TERN_E_IO, "%s: cannot be written: %s", path, strerror(errno));
    if (fd >= 0) close(fd);
    free(full);
    return st;
}

/* Removes the least recently used packages, but never `keep`. */
static tern_status evict(tn_ctx *ctx, const char *folder, const char *keep, uint64_t limit_bytes,
                         tern_error *err) {
    tn_cache_entry *e;
    size_t n;
    uint64_t total = 0;
    TN_TRY(tn_cache_list(ctx, folder, &e, &n, err));
    for (size_t i = 0; i < n; i++) total += e[i].bytes;
    tern_status st = TERN_OK;
    for (size_t i = n; i-- && total > limit_bytes && st == TERN_OK;) {
        if (!strcmp(e[i].key, keep))
            continue; /* an unfinished one may belong to another process, which finishes nevertheless */
        st = tn_cache_remove(folder, e[i].key, err);
        if (st == TERN_E_INVALID) st = TERN_OK; /* somebody else was quicker */
        total -= e[i].bytes;
    }
    tn_free(ctx, e);
    return st;
}

/* ---- limit ---------------------------------------------------------------------------------------- */

static const char LIMIT_MARK[] = "tern cache limit ";

static tern_status limit_path(const char *folder, char out[TN_CACHE_PATH], tern_error *err) {
    return entry_path(folder, "limit", "", out, err);
}

tern_status tn_cache_limit(const char *folder, uint64_t *bytes, tern_error *err) {
    char path[TN_CACHE_PATH], text[64], *end = NULL;
    const size_t mark = sizeof LIMIT_MARK - 1;
    *bytes = TN_CACHE_LIMIT_BYTES;
    TN_TRY(limit_path(folder, path, err));
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW);
    if (fd < 0 && errno == ENOENT) return TERN_OK;
    ssize_t n = fd < 0 ? -1 : read(fd, text, sizeof text - 1);
    if (fd >= 0) close(fd);
    text[n < 0 ? 0 : n] = 0;
    uint64_t there =
        n > (ssize_t)mark && !memcmp(text, LIMIT_MARK, mark) ? strtoull(text + mark, &end, 10) : 0;
    TN_FAIL_IF(!end || end == text + mark || strcmp(end, "\n"), err, TERN_E_FORMAT,
               "%s: not a limit; `tern cache limit SIZE` sets it again", path);
    *bytes = there;
    return TERN_OK;
}

tern_status tn_cache_set_limit(tn_ctx *ctx, const char *folder, uint64_t bytes, tern_error *err) {
    static const tn_outkind kind = {.what = "a limit of the cache", .begins = {""}, .is_private = true};
    char path[TN_CACHE_PATH], text[64];
    tn_outfile *file;
    TN_TRY(limit_path(folder, path, err));
    TN_TRY(tn_outfile_open(ctx, path, &kind, &file, err));
    int n = snprintf(text, sizeof text, "%s%llu\n", LIMIT_MARK, (unsigned long long)bytes);
    tern_status st = tn_outfile_write(file, text, (uint64_t)n, err);
    if (st == TERN_OK) st = tn_outfile_commit(&file, err);
    tn_outfile_abort(&file);
    return st == TERN_OK ? evict(ctx, folder, "", bytes, err) : st;
}

/* ---- making one ----------------------------------------------------------------------------------- */

tern_status tn_cache_make(tn_ctx *ctx, const char *folder, const char *model, const tn_pack_options *opt,
                          uint64_t limit_bytes, bool *busy, tern_error *err) {
    char key[TN_CACHE_KEY], after[TN_CACHE_KEY], path[TN_CACHE_PATH], part[TN_CACHE_PATH] = "";
    *busy = false;
    TN_FAIL_IF(tn_pkg_is(model), err, TERN_E_INVALID, "%s is a package already", model);
    TN_TRY(tn_cache_key(ctx, folder, model, TN_CONTENT_READ, key, err));
    if (tn_cache_find(folder, key, path)) return TERN_OK; /* of the same bytes, under whatever name */
    int fd;
    TN_TRY(take_lock(folder, key, &fd, busy, err));
    if (*busy) return TERN_OK;
    tn_pack_options o;
    tn_pack_report r = {0};
    tern_status st = TERN_OK;
    if (tn_cache_find(folder, key, path)) goto out; /* made while this process waited for the lock */
    if (opt) o = *opt;
    else if ((st = tn_cache_options(ctx, model, &o, err)) != TERN_OK) goto out;
    if ((st = entry_path(folder, key, ".tern", path, err)) != TERN_OK) goto out;
    (void)unlink(path); /* the file is not one of this cache's packages */
    if ((st = entry_path(folder, key, PARTIAL, part, err)) != TERN_OK) goto out;
    if (tn_outfile_may(part, &tn_partial_kind, NULL) != TERN_OK) (void)unlink(part);
    if ((st = put_source(folder, key, model, err)) != TERN_OK) goto out;
    if ((st = tn_pack(ctx, model, path, &o, &r, err)) != TERN_OK) goto out;
    (void)chmod(path, 0600);
    const tn_cache_about about = {
        .bits = r.bits, .kl = r.kl, .kl_stderr = r.kl_stderr, .n_held_tokens = r.n_held_tokens};
    st = tn_cache_about_put(ctx, path, &about, err);
    if (st != TERN_OK) (void)tn_cache_remove(folder, key, NULL);
    if (st == TERN_OK) st = tn_cache_key(ctx, folder, model, TN_CONTENT_READ, after, err);
    if (st == TERN_OK && strcmp(key, after)) {
        (void)tn_cache_remove(folder, key, NULL);
        st = tn_fail(err, TERN_E_IO, "%s was replaced while it was packed", model);
    }
    if (st == TERN_OK) st = evict(ctx, folder, key, limit_bytes, err);
out:
    if (!tn_cache_find(folder, key, path) && access(part, F_OK) &&
        entry_path(folder, key, ".source", path, NULL) == TERN_OK)
        (void)unlink(path);
    release_lock(folder, key, fd);
    return st;
}
