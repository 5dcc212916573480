#include "quant/content.h"

#include "base/file.h"
#include "base/outfile.h"
#include "base/status.h"

#include <dirent.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include <xxhash.h>

enum { PIECE = 1 << 20, PATH_BYTES = 4096 };
static const int64_t SAME_TIME_NS = INT64_C(2000000000); /* the coarsest clock of a file system */

static const tn_outkind kept_kind = {
    .what = "a list of files' contents", .begins = {"TNCONT01"}, .is_private = true};

/* What the kernel says of a file. Numbers of devices are not the same after every start of a machine. */
typedef struct facts {
    int64_t inode, size, written_s, written_ns, changed_s, changed_ns;
} facts;

/* On disk, after eight letters. */
typedef struct record {
    facts of;
    int64_t begun_ns; /* hashing, since 1970 */
    tn_content is;
    uint64_t check; /* of what is in front of it */
} record;
_Static_assert(sizeof(record) == 80, "on-disk layout");

static facts facts_of(const struct stat *sb) {
    return (facts){(int64_t)sb->st_ino,          (int64_t)sb->st_size,        sb->st_mtim.tv_sec,
                   (int64_t)sb->st_mtim.tv_nsec, (int64_t)sb->st_ctim.tv_sec, (int64_t)sb->st_ctim.tv_nsec};
}

static bool same(const facts *a, const facts *b) { return !memcmp(a, b, sizeof *a); }

static uint64_t check_of(const record *r) { return XXH3_64bits(r, offsetof(record, check)); }

/* A change at the same time as the hashing may have come after it. */
static bool is_apart(const facts *of, int64_t begun_ns) {
    const int64_t changed_ns = of->changed_s * INT64_C(1000000000) + of->changed_ns;
    return begun_ns - changed_ns > SAME_TIME_NS || changed_ns - begun_ns > SAME_TIME_NS;
}

static bool is_believed(const record *r) { return is_apart(&r->of, r->begun_ns); }

static int64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (int64_t)t.tv_sec * INT64_C(1000000000) + t.tv_nsec;
}

/* ---- what is kept ------------------------------------------------------------------------------------ */

/* The records of the folder, with room for one more, the caller's with tn_free; NULL: none, or no memory. A list that is
 * damaged holds none. */
static record *kept(tn_ctx *ctx, const char *folder, size_t *n) {
    char path[PATH_BYTES], *text;
    size_t n_bytes;
    *n = 0;
    if (snprintf(path, sizeof path, "%s/contents", folder) >= (int)sizeof path ||
        tn_file_slurp(path, 8 + TN_CONTENT_MOST * sizeof(record), &text, &n_bytes, NULL) != TERN_OK)
        return NULL;
    record *r = NULL;
    if (n_bytes >= 8 && !memcmp(text, kept_kind.begins[0], 8) && (n_bytes - 8) % sizeof *r == 0)
        r = tn_alloc(ctx, TN_MEM_OTHER, n_bytes - 8 + sizeof *r, 1);
    if (r) {
        *n = (n_bytes - 8) / sizeof *r;
        memcpy(r, text + 8, *n * sizeof *r);
    }
    free(text);
    for (size_t i = 0; r && i < *n;)
        if (r[i].check != check_of(&r[i])) memmove(&r[i], &r[i + 1], (--*n - i) * sizeof *r);
        else i++;
    return r;
}

/* At the end of the list, in place of what was known of this file and of the oldest. */
static tern_status keep(tn_ctx *ctx, const char *folder, const record *is, tern_error *err) {
    char path[PATH_BYTES];
    tn_outfile *f = NULL;
    size_t n, n_left = 0;
    TN_FAIL_IF(snprintf(path, sizeof path, "%s/contents", folder) >= (int)sizeof path, err, TERN_E_INVALID,
               "the cache folder's path is too long");
    record *r = kept(ctx, folder, &n);
    if (!r) r = tn_alloc(ctx, TN_MEM_OTHER, 1, sizeof *r);
    TN_FAIL_IF(!r, err, TERN_E_MEMORY, "no memory to keep a file's hash");
    for (size_t i = 0; i < n; i++)
        if (r[i].of.inode != is->of.inode || r[i].of.size != is->of.size) r[n_left++] = r[i];
    r[n_left++] = *is;
    const size_t first = n_left > TN_CONTENT_MOST ? n_left - TN_CONTENT_MOST : 0;
    if (tn_outfile_may(path, &kept_kind, NULL) != TERN_OK) (void)unlink(path); /* it is damaged */
    tern_status st = tn_outfile_open(ctx, path, &kept_kind, &f, err);
    if (st == TERN_OK) st = tn_outfile_write(f, kept_kind.begins[0], 8, err);
    if (st == TERN_OK) st = tn_outfile_write(f, r + first, (n_left - first) * sizeof *r, err);
    if (st == TERN_OK) st = tn_outfile_commit(&f, err);
    tn_outfile_abort(&f);
    tn_free(ctx, r);
    return st;
}

static bool find(tn_ctx *ctx, const char *folder, const facts *of, tn_content *out) {
    size_t n = 0;
    record *r = folder ? kept(ctx, folder, &n) : NULL;
    bool found = false;
    for (size_t i = 0; i < n && !found; i++) {
        found = same(&r[i].of, of) && is_believed(&r[i]);
        if (found) *out = r[i].is;
    }
    tn_free(ctx, r);
    return found;
}

/* ---- hashing ----------------------------------------------------------------------------------------- */

static tern_status hash(tn_ctx *ctx, int fd, const char *path, uint64_t n_bytes, tn_content *out,
                        tern_error *err) {
    XXH3_state_t *h = XXH3_createState();
    uint8_t *piece = tn_alloc(ctx, TN_MEM_OTHER, PIECE, 1);
    tern_status st =
        h && piece ? TERN_OK : tn_fail(err, TERN_E_MEMORY, "no memory to find out what %s holds", path);
    if (st == TERN_OK) XXH3_128bits_reset(h);
    for (uint64_t at = 0; at < n_bytes && st == TERN_OK; at += PIECE) {
        const uint64_t n = n_bytes - at < PIECE ? n_bytes - at : PIECE;
        st = tn_file_read_at(fd, path, piece, n, at, err);
        if (st == TERN_OK) XXH3_128bits_update(h, piece, (size_t)n);
    }
    if (st == TERN_OK) {
        const XXH128_hash_t v = XXH3_128bits_digest(h);
        *out = (tn_content){v.high64, v.low64};
    }
    tn_free(ctx, piece);
    XXH3_freeState(h);
    return st;
}

tern_status tn_content_of(tn_ctx *ctx, const char *folder, const char *path, tn_content_from from,
                          tn_content *out, bool *known, tern_error *err) {
    struct stat sb;
    *known = false;
    int fd = tn_file_open_regular(path, &sb, err);
    if (fd < 0) return TERN_E_IO;
    record r = {.of = facts_of(&sb), .begun_ns = now_ns()};
    tern_status st = TERN_OK;
    if (from == TN_CONTENT_KNOWN && find(ctx, folder, &r.of, out)) {
        *known = true;
    } else if (from == TN_CONTENT_READ || sb.st_size <= TN_CONTENT_SMALL) {
        st = hash(ctx, fd, path, (uint64_t)sb.st_size, out, err);
        if (st == TERN_OK && fstat(fd, &sb)) st = tn_fail(err, TERN_E_IO, "%s: it cannot be looked at", path);
        const facts after = facts_of(&sb);
        if (st == TERN_OK && !same(&r.of, &after))
            st = tn_fail(err, TERN_E_IO, "%s: was written to while it was read", path);
        *known = st == TERN_OK;
        r.is = *out;
        r.check = check_of(&r);
        if (*known && folder && from == TN_CONTENT_READ) (void)keep(ctx, folder, &r, NULL);
    }
    close(fd);
    return st;
}

/* ---- marks ------------------------------------------------------------------------------------------- */

typedef struct marking {
    XXH3_state_t *h;
    int64_t begun_ns;
    bool settled;
} marking;

static bool mark_file(marking *m, const char *path) {
    struct stat sb;
    if (stat(path, &sb) || !S_ISREG(sb.st_mode)) return false;
    const facts of = facts_of(&sb);
    XXH3_128bits_update(m->h, &of, sizeof of);
    m->settled = m->settled && is_apart(&of, m->begun_ns);
    return true;
}

static int is_of_model(const struct dirent *d) {
    const char *end = strrchr(d->d_name, '.');
    return end && (!strcmp(end, ".json") || !strcmp(end, ".safetensors"));
}

static bool mark_folder(marking *m, const char *folder) {
    struct dirent **names;
    const int n = scandir(folder, &names, is_of_model, alphasort);
    bool ok = n > 0;
    for (int i = 0; i < n; i++) {
        char path[PATH_BYTES];
        ok = ok && snprintf(path, sizeof path, "%s/%s", folder, names[i]->d_name) < (int)sizeof path;
        if (ok) XXH3_128bits_update(m->h, names[i]->d_name, strlen(names[i]->d_name) + 1);
        ok = ok && mark_file(m, path);
        free(names[i]);
    }
    if (n >= 0) free(names);
    return ok;
}

bool tn_content_mark(const char *path, tn_content *out, bool *settled) {
    struct stat sb;
    marking m = {.h = XXH3_createState(), .begun_ns = now_ns(), .settled = true};
    bool ok = m.h && !stat(path, &sb);
    if (ok) XXH3_128bits_reset(m.h);
    const char *slash = strrchr(path, '/');
    if (ok && S_ISDIR(sb.st_mode)) ok = mark_folder(&m, path);
    else if (ok) ok = !strstr(slash ? slash : path, "-of-") && mark_file(&m, path);
    if (ok) {
        const XXH128_hash_t v = XXH3_128bits_digest(m.h);
        *out = (tn_content){v.high64, v.low64};
    }
    *settled = ok && m.settled;
    XXH3_freeState(m.h);
    return ok;
}
