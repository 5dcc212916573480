#include "formats/package.h"

#include "base/checked.h"
#include "base/file.h"
#include "base/half.h"
#include "base/outfile.h"
#include "kernels/unpack.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

static const char MAGIC[8] = {'T', 'E', 'R', 'N', 'P', 'K', 'G', '\n'};

/* The first 12 bytes are the same in every version. */
typedef struct pkg_header {
    char magic[8];
    uint32_t version, n_sections;
    uint64_t file_bytes;
    uint64_t index_bytes; /* from INDEX_OFF on: n_sections table entries, then the tables of contents */
    uint64_t index_xxh64;
    uint64_t reserved;
    uint64_t header_xxh64; /* of the bytes before this field */
} pkg_header;
_Static_assert(sizeof(pkg_header) == 56, "on-disk layout");

/* A table of contents is this, then n_records records, then n_hashes XXH3 of blocks: of the small part, then
 * of each large tensor in the order of the records. */
typedef struct toc_head {
    uint32_t n_records, n_hashes;
    uint64_t small_bytes;
} toc_head;
_Static_assert(sizeof(toc_head) == 16, "on-disk layout");

enum { INDEX_OFF = 64, MAX_RECORDS = 256 };

static uint64_t n_blocks(uint64_t n_bytes) { return n_bytes / TN_PKG_BLOCK + (n_bytes % TN_PKG_BLOCK != 0); }
static uint64_t header_hash(const pkg_header *h) { return XXH64(h, offsetof(pkg_header, header_xxh64), 0); }
static uint64_t align_up(uint64_t v, uint64_t a) { return (v + a - 1) / a * a; }

/* ---- writing ------------------------------------------------------------------------------------- */

const tn_outkind tn_pkg_kind_of_file = {.what = "a package", .begins = {"TERNPKG\n"}};

struct tn_pkg_writer {
    tn_ctx *ctx;
    char *path;
    tn_outfile *file;
    int fd; /* of file */
    bool sealed;
    uint64_t off; /* end of what is written */
    uint32_t max_sections, n_sections;
    tn_pkg_section *sections;
    uint64_t cap_toc_bytes, n_toc_bytes;
    char *toc;
    /* the tensor section being assembled */
    bool open;
    tn_pkg_kind kind;
    int32_t layer;
    uint32_t n_records;
    tn_pkg_record records[MAX_RECORDS];
    const void *payloads[MAX_RECORDS];
};

static tern_status write_at(tn_pkg_writer *w, const void *data, uint64_t n, uint64_t off, tern_error *err) {
    const char *p = data;
    while (n) {
        ssize_t done = pwrite(w->fd, p, n < (1u << 30) ? n : (1u << 30), (off_t)off);
        if (done < 0 && errno == EINTR) continue;
        TN_FAIL_IF(done <= 0 && (done == 0 || errno == ENOSPC || errno == EDQUOT || errno == EFBIG), err,
                   TERN_E_IO, "%s: no room on the disk after %.1f MB of the package; nothing was changed",
                   w->path, (double)off * 1e-6);
        TN_FAIL_IF(done < 0, err, TERN_E_IO, "%s: cannot write at offset %" PRIu64 ": %s", w->path, off,
                   strerror(errno));
        p += done;
        off += (uint64_t)done;
        n -= (uint64_t)done;
    }
    return TERN_OK;
}

uint64_t tn_pkg_toc_bound(uint32_t n_tensors, uint64_t payload_bytes) {
    return sizeof(toc_head) + n_tensors * (sizeof(tn_pkg_record) + 2 * sizeof(uint64_t)) +
           (n_blocks(payload_bytes) + 1) * sizeof(uint64_t);
}

tern_status tn_pkg_create(tn_ctx *ctx, const char *path, uint32_t max_sections, uint64_t cap_toc_bytes,
                          tn_pkg_writer **out, tern_error *err) {
    *out = NULL;
    tn_pkg_writer *w = tn_calloc(ctx, TN_MEM_OTHER, 1, sizeof *w);
    TN_FAIL_IF(!w, err, TERN_E_MEMORY, "no memory to write %s", path);
    *w = (tn_pkg_writer){.ctx = ctx, .fd = -1, .max_sections = max_sections, .cap_toc_bytes = cap_toc_bytes};
    w->path = tn_strdup(ctx, TN_MEM_OTHER, path);
    w->sections = tn_calloc(ctx, TN_MEM_OTHER, max_sections, sizeof *w->sections);
    w->toc = tn_alloc(ctx, TN_MEM_OTHER, cap_toc_bytes, 1);
    tern_status st = TERN_OK;
    TN_BAIL_IF(!w->path || !w->sections || !w->toc, err, TERN_E_MEMORY, "no memory to write %s", path);
    if ((st = tn_outfile_open(ctx, path, &tn_pkg_kind_of_file, &w->file, err)) != TERN_OK) goto out;
    w->fd = tn_outfile_fd(w->file);
    w->off = align_up(INDEX_OFF + (uint64_t)max_sections * sizeof(tn_pkg_section) + cap_toc_bytes,
                      TN_PKG_SHORT_ALIGN);
    *out = w;
    return TERN_OK;
out:
    tn_pkg_abort(&w);
    return st;
}

void tn_pkg_abort(tn_pkg_writer **pw) {
    tn_pkg_writer *w = *pw;
    if (!w) return;
    *pw = NULL;
    tn_outfile_abort(&w->file);
    tn_free(w->ctx, w->path);
    tn_free(w->ctx, w->sections);
    tn_free(w->ctx, w->toc);
    tn_free(w->ctx, w);
}

static tern_status claim(tn_pkg_writer *w, tn_pkg_kind kind, int32_t layer, tn_pkg_section **out,
                         tern_error *err) {
    TN_FAIL_IF(w->n_sections == w->max_sections, err, TERN_E_LIMIT, "%s: more than the %u sections planned",
               w->path, w->max_sections);
    *out = &w->sections[w->n_sections++];
    **out = (tn_pkg_section){.kind = (uint32_t)kind, .layer = layer, .off_bytes = w->off};
    return TERN_OK;
}

tern_status tn_pkg_put_section(tn_pkg_writer *w, tn_pkg_kind kind, int32_t layer, const void *data,
                               uint64_t n_bytes, tern_error *err) {
    tn_pkg_section *s;
    TN_TRY(claim(w, kind, layer, &s, err));
    TN_TRY(write_at(w, data, n_bytes, w->off, err));
    s->size_bytes = n_bytes;
    s->xxh64 = XXH64(data, n_bytes, 0);
    w->off = align_up(w->off + n_bytes, TN_PKG_SHORT_ALIGN);
    return TERN_OK;
}

tern_status tn_pkg_begin(tn_pkg_writer *w, tn_pkg_kind kind, int32_t layer, tern_error *err) {
    TN_FAIL_IF(w->open, err, TERN_E_INVALID, "a section is open already");
    w->open = true;
    w->kind = kind;
    w->layer = layer;
    w->n_records = 0;
    return TERN_OK;
}

tern_status tn_pkg_add(tn_pkg_writer *w, const tn_pkg_record *like, const void *data, uint64_t n_bytes,
                       tern_error *err) {
    TN_FAIL_IF(!w->open || w->n_records == MAX_RECORDS, err, TERN_E_INVALID,
               "a section holds at most %d tensors", MAX_RECORDS);
    w->records[w->n_records] = *like;
    w->records[w->n_records].size_bytes = n_bytes;
    w->payloads[w->n_records++] = data;
    return TERN_OK;
}

/* Writes a stretch of a section and hashes its blocks. */
typedef struct stretch {
    tn_pkg_writer *w;
    XXH3_state_t *hash;
    uint64_t off, n; /* in the file; bytes so far */
    uint64_t *hashes;
    uint32_t n_hashes;
} stretch;

static tern_status stretch_put(stretch *s, const void *data, uint64_t n, tern_error *err) {
    TN_TRY(write_at(s->w, data, n, s->off + s->n, err));
    for (const char *p = data; n;) {
        uint64_t room = TN_PKG_BLOCK - s->n % TN_PKG_BLOCK, part = n < room ? n : room;
        XXH3_64bits_update(s->hash, p, part);
        s->n += part;
        p += part;
        n -= part;
        if (s->n % TN_PKG_BLOCK) continue;
        s->hashes[s->n_hashes++] = XXH3_64bits_digest(s->hash);
        XXH3_64bits_reset(s->hash);
    }
    return TERN_OK;
}

static void stretch_end(stretch *s) {
    if (s->n % TN_PKG_BLOCK) s->hashes[s->n_hashes++] = XXH3_64bits_digest(s->hash);
    XXH3_64bits_reset(s->hash);
    s->n = 0;
}

static tern_status write_tensors(tn_pkg_writer *w, uint64_t small_bytes, stretch *s, tern_error *err) {
    static const char zeros[TN_PKG_TENSOR_ALIGN];
    s->off = w->off;
    for (uint32_t i = 0; i < w->n_records; i++) {
        if (tn_pkg_is_large(w->records[i].part)) continue;
        TN_TRY(stretch_put(s, zeros, w->records[i].off_bytes - s->n, err));
        TN_TRY(stretch_put(s, w->payloads[i], w->records[i].size_bytes, err));
    }
    (void)small_bytes;
    assert(s->n == small_bytes);
    stretch_end(s);
    for (uint32_t i = 0; i < w->n_records; i++) {
        if (!tn_pkg_is_large(w->records[i].part)) continue;
        s->off = w->off + w->records[i].off_bytes;
        TN_TRY(stretch_put(s, w->payloads[i], w->records[i].size_bytes, err));
        stretch_end(s);
    }
    return TERN_OK;
}

tern_status tn_pkg_end(tn_pkg_writer *w, tern_error *err) {
    tn_pkg_section *s;
    w->open = false;
    TN_TRY(claim(w, w->kind, w->layer, &s, err));
    toc_head head = {.n_records = w->n_records};
    uint64_t end = 0, hashes = 0;
    for (uint32_t i = 0; i < w->n_records; i++) {
        if (tn_pkg_is_large(w->records[i].part)) continue;
        w->records[i].off_bytes = align_up(end, TN_PKG_TENSOR_ALIGN);
        end = w->records[i].off_bytes + w->records[i].size_bytes;
    }
    head.small_bytes = end;
    hashes = n_blocks(end);
    for (uint32_t i = 0; i < w->n_records; i++) {
        if (!tn_pkg_is_large(w->records[i].part)) continue;
        uint64_t align = w->records[i].size_bytes < TN_PKG_BLOCK ? TN_PKG_SHORT_ALIGN : TN_PKG_ALIGN;
        w->records[i].off_bytes = align_up(w->off + end, align) - w->off;
        end = w->records[i].off_bytes + w->records[i].size_bytes;
        hashes += n_blocks(w->records[i].size_bytes);
    }
    head.n_hashes = (uint32_t)hashes;
    uint64_t n_records_bytes = w->n_records * sizeof(tn_pkg_record),
             toc_bytes = sizeof head + n_records_bytes + hashes * sizeof(uint64_t);
    TN_FAIL_IF(toc_bytes > w->cap_toc_bytes - w->n_toc_bytes, err, TERN_E_LIMIT,
               "%s: tables of contents of more than the %" PRIu64 " bytes planned", w->path,
               w->cap_toc_bytes);
    char *toc = w->toc + w->n_toc_bytes; /* all its parts are multiples of 8 bytes */
    memcpy(toc, &head, sizeof head);
    memcpy(toc + sizeof head, w->records, n_records_bytes);
    stretch t = {
        .w = w, .hash = XXH3_createState(), .hashes = (uint64_t *)(toc + sizeof head + n_records_bytes)};
    TN_FAIL_IF(!t.hash, err, TERN_E_MEMORY, "no memory for a checksum");
    XXH3_64bits_reset(t.hash);
    tern_status st = write_tensors(w, head.small_bytes, &t, err);
    XXH3_freeState(t.hash);
    TN_TRY(st);
    assert(t.n_hashes == head.n_hashes);
    s->size_bytes = end;
    s->xxh64 = XXH64(toc, toc_bytes, 0);
    s->toc_off_bytes = (uint32_t)w->n_toc_bytes; /* finish adds the length of the section table */
    s->toc_bytes = (uint32_t)toc_bytes;
    w->n_toc_bytes += toc_bytes;
    tn_file_flush(w->fd, w->off, end);
    w->off = align_up(w->off + end, TN_PKG_SHORT_ALIGN);
    return TERN_OK;
}

tern_status tn_pkg_seal(tn_pkg_writer *w, tern_error *err) {
    assert(!w->sealed && !w->open);
    w->sealed = true;
    w->off = align_up(w->off, TN_PKG_ALIGN); /* whole pages can be read up to the end */
    uint64_t table_bytes = w->n_sections * sizeof *w->sections;
    for (uint32_t i = 0; i < w->n_sections; i++) {
        if (w->sections[i].toc_bytes) w->sections[i].toc_off_bytes += (uint32_t)table_bytes;
    }
    pkg_header h = {.version = TN_PKG_VERSION,
                    .n_sections = w->n_sections,
                    .file_bytes = w->off,
                    .index_bytes = table_bytes + w->n_toc_bytes};
    memcpy(h.magic, MAGIC, sizeof h.magic);
    /* the index is hashed in two parts, in its order in memory */
    XXH64_state_t *hash = XXH64_createState();
    tern_status st = hash ? TERN_OK : tn_fail(err, TERN_E_MEMORY, "no memory for a checksum");
    if (hash) {
        XXH64_reset(hash, 0);
        XXH64_update(hash, w->sections, table_bytes);
        XXH64_update(hash, w->toc, w->n_toc_bytes);
        h.index_xxh64 = XXH64_digest(hash);
        XXH64_freeState(hash);
    }
    h.header_xxh64 = header_hash(&h);
    if (st == TERN_OK) st = write_at(w, w->sections, table_bytes, INDEX_OFF, err);
    if (st == TERN_OK) st = write_at(w, w->toc, w->n_toc_bytes, INDEX_OFF + table_bytes, err);
    if (st == TERN_OK && ftruncate(w->fd, (off_t)w->off))
        st = tn_fail(err, TERN_E_IO, "%s: %s", w->path, strerror(errno));
    if (st == TERN_OK && fsync(w->fd))
        st = tn_fail(err, TERN_E_IO, "%s: cannot sync: %s", w->path, strerror(errno));
    if (st == TERN_OK)
        st = write_at(w, &h, sizeof h, 0, err); /* the magic, which makes it a package, is written last */
    if (st == TERN_OK && fsync(w->fd))
        st = tn_fail(err, TERN_E_IO, "%s: cannot sync: %s", w->path, strerror(errno));
    return st;
}

tern_status tn_pkg_finish(tn_pkg_writer **pw, tern_error *err) {
    tn_pkg_writer *w = *pw;
    tern_status st = w->sealed ? TERN_OK : tn_pkg_seal(w, err);
    if (st == TERN_OK) st = tn_outfile_commit(&w->file, err);
    tn_pkg_abort(pw);
    return st;
}

/* ---- reading ------------------------------------------------------------------------------------- */

struct tn_pkg {
    tn_ctx *ctx;
    char *path;
    int fd;
    uint64_t file_bytes;
    uint32_t n_sections;
    tn_pkg_section *sections;       /* the front of the index */
    const tn_pkg_section **by_kind; /* the same, by kind, layer and place */
    char *index;
};

static int by_kind_and_layer(const void *a, const void *b) {
    const tn_pkg_section *x = *(const tn_pkg_section *const *)a, *y = *(const tn_pkg_section *const *)b;
    if (x->kind != y->kind) return x->kind < y->kind ? -1 : 1;
    if (x->layer != y->layer) return x->layer < y->layer ? -1 : 1;
    return (x > y) - (x < y);
}

static tern_status read_at(const tn_pkg *p, void *dst, uint64_t n, uint64_t off, tern_error *err) {
    return tn_file_read_at(p->fd, p->path, dst, n, off, err);
}

static bool begins_like_one(int fd) {
    char magic[sizeof MAGIC];
    return tn_file_read_at(fd, "", magic, sizeof magic, 0, NULL) == TERN_OK &&
           !memcmp(magic, MAGIC, sizeof magic);
}

bool tn_pkg_is(const char *path) {
    struct stat sb;
    int fd = tn_file_open_regular(path, &sb, NULL);
    bool is = fd >= 0 && begins_like_one(fd);
    if (fd >= 0) close(fd);
    return is;
}

static const toc_head *toc_of(const tn_pkg *p, const tn_pkg_section *s) {
    return s->toc_bytes ? (const toc_head *)(p->index + s->toc_off_bytes) : NULL;
}

/* Checks a table of contents inside the index: its parts must fill it, its tensors must fit the section, and
 * the number of checksums must match the blocks. */
static tern_status check_toc(const tn_pkg *p, const tn_pkg_section *s, uint64_t index_bytes,
                             tern_error *err) {
    TN_FAIL_IF(!tn_range_ok(s->toc_off_bytes, s->toc_bytes, index_bytes) || s->toc_off_bytes % 8 ||
                   s->toc_bytes < sizeof(toc_head),
               err, TERN_E_FORMAT,
               "%s: the contents of the section at offset %" PRIu64 " are outside the index", p->path,
               s->off_bytes);
    const toc_head *head = toc_of(p, s);
    TN_FAIL_IF(XXH64(head, s->toc_bytes, 0) != s->xxh64, err, TERN_E_FORMAT,
               "%s: the contents of the section at offset %" PRIu64 " are damaged (checksum differs)",
               p->path, s->off_bytes);
    TN_FAIL_IF(head->n_records > MAX_RECORDS || sizeof *head + head->n_records * sizeof(tn_pkg_record) +
                                                        (uint64_t)head->n_hashes * sizeof(uint64_t) !=
                                                    s->toc_bytes,
               err, TERN_E_FORMAT,
               "%s: section at offset %" PRIu64
               ": %u tensors and %u checksums do not fill its table of contents",
               p->path, s->off_bytes, head->n_records, head->n_hashes);
    const tn_pkg_record *r = (const tn_pkg_record *)(head + 1);
    uint64_t hashes = n_blocks(head->small_bytes);
    bool ok = head->small_bytes <= s->size_bytes;
    for (uint32_t i = 0; i < head->n_records && ok; i++) {
        bool large = tn_pkg_is_large(r[i].part);
        ok = tn_range_ok(r[i].off_bytes, r[i].size_bytes, large ? s->size_bytes : head->small_bytes) &&
             r[i].off_bytes % (large ? TN_PKG_SHORT_ALIGN : TN_PKG_TENSOR_ALIGN) == 0 &&
             (!large || r[i].off_bytes >= head->small_bytes) && r[i].n >= 0 && r[i].k >= 0;
        if (large) hashes += n_blocks(r[i].size_bytes);
        TN_FAIL_IF(!ok, err, TERN_E_FORMAT,
                   "%s: section at offset %" PRIu64 ": tensor %u (role %u) needs [%" PRIu64 ", +%" PRIu64
                   "), the section has %" PRIu64 " bytes, of them small %" PRIu64,
                   p->path, s->off_bytes, i, r[i].role, r[i].off_bytes, r[i].size_bytes, s->size_bytes,
                   head->small_bytes);
    }
    TN_FAIL_IF(!ok || hashes != head->n_hashes, err, TERN_E_FORMAT,
               "%s: section at offset %" PRIu64 ": %u checksums for %" PRIu64 " blocks", p->path,
               s->off_bytes, head->n_hashes, hashes);
    return TERN_OK;
}

static tern_status read_index(tn_pkg *p, tern_error *err) {
    pkg_header h;
    TN_FAIL_IF(p->file_bytes < sizeof h, err, TERN_E_FORMAT,
               "%s: %" PRIu64 " bytes are too few for a package", p->path, p->file_bytes);
    TN_TRY(read_at(p, &h, sizeof h, 0, err));
    TN_FAIL_IF(memcmp(h.magic, MAGIC, sizeof h.magic), err, TERN_E_FORMAT, "%s: not a .tern package",
               p->path);
    TN_FAIL_IF(h.version > TN_PKG_VERSION, err, TERN_E_UNSUPPORTED,
               "%s: package version %u was made by a newer tern; this one reads version %d", p->path,
               h.version, TN_PKG_VERSION);
    TN_FAIL_IF(h.version < TN_PKG_OLDEST, err, TERN_E_UNSUPPORTED,
               "%s: package version %u, this tern reads %d to %d; pack the model again", p->path, h.version,
               TN_PKG_OLDEST, TN_PKG_VERSION);
    TN_FAIL_IF(h.header_xxh64 != header_hash(&h), err, TERN_E_FORMAT, "%s: header damaged (checksum differs)",
               p->path);
    TN_FAIL_IF(h.file_bytes != p->file_bytes, err, TERN_E_FORMAT,
               "%s: truncated: %" PRIu64 " bytes of %" PRIu64, p->path, p->file_bytes, h.file_bytes);
    uint64_t table_bytes = (uint64_t)h.n_sections * sizeof(tn_pkg_section);
    TN_FAIL_IF(!tn_range_ok(INDEX_OFF, h.index_bytes, p->file_bytes) || table_bytes > h.index_bytes, err,
               TERN_E_FORMAT, "%s: %u sections do not fit the index, or that the file", p->path,
               h.n_sections);
    p->index = tn_alloc(p->ctx, TN_MEM_OTHER, h.index_bytes, 1);
    TN_FAIL_IF(!p->index, err, TERN_E_MEMORY, "no memory for an index of %" PRIu64 " bytes", h.index_bytes);
    p->sections = (tn_pkg_section *)p->index;
    TN_TRY(read_at(p, p->index, h.index_bytes, INDEX_OFF, err));
    TN_FAIL_IF(XXH64(p->index, h.index_bytes, 0) != h.index_xxh64, err, TERN_E_FORMAT,
               "%s: index damaged (checksum differs)", p->path);
    for (uint32_t i = 0; i < h.n_sections; i++) {
        const tn_pkg_section *s = &p->sections[i];
        TN_FAIL_IF(!tn_range_ok(s->off_bytes, s->size_bytes, p->file_bytes) ||
                       s->off_bytes % TN_PKG_SHORT_ALIGN,
                   err, TERN_E_FORMAT,
                   "%s: section %u needs [%" PRIu64 ", +%" PRIu64 "), the file has %" PRIu64 " bytes",
                   p->path, i, s->off_bytes, s->size_bytes, p->file_bytes);
        if (s->toc_bytes) TN_TRY(check_toc(p, s, h.index_bytes, err));
    }
    p->by_kind = tn_calloc(p->ctx, TN_MEM_OTHER, h.n_sections ? h.n_sections : 1, sizeof *p->by_kind);
    TN_FAIL_IF(!p->by_kind, err, TERN_E_MEMORY, "no memory for %u sections", h.n_sections);
    for (uint32_t i = 0; i < h.n_sections; i++) p->by_kind[i] = &p->sections[i];
    qsort(p->by_kind, h.n_sections, sizeof *p->by_kind, by_kind_and_layer);
    p->n_sections = h.n_sections;
    return TERN_OK;
}

/* Opens a package by fd, which it always takes. */
static tern_status open_fd(tn_ctx *ctx, int fd, uint64_t file_bytes, const char *path, tn_pkg **out,
                           tern_error *err) {
    *out = NULL;
    tn_pkg *p = tn_calloc(ctx, TN_MEM_OTHER, 1, sizeof *p);
    if (!p) close(fd);
    TN_FAIL_IF(!p, err, TERN_E_MEMORY, "no memory to open %s", path);
    *p = (tn_pkg){.ctx = ctx, .fd = fd, .file_bytes = file_bytes};
    p->path = tn_strdup(ctx, TN_MEM_OTHER, path);
    tern_status st = p->path ? TERN_OK : tn_fail(err, TERN_E_MEMORY, "no memory to open %s", path);
    if (st == TERN_OK) st = read_index(p, err);
    if (st == TERN_OK) *out = p;
    else tn_pkg_close(&p);
    return st;
}

tern_status tn_pkg_open(tn_ctx *ctx, const char *path, tn_pkg **out, tern_error *err) {
    *out = NULL;
    struct stat sb;
    int fd = tn_file_open_regular(path, &sb, err);
    return fd < 0 ? TERN_E_IO : open_fd(ctx, fd, (uint64_t)sb.st_size, path, out, err);
}

tern_status tn_pkg_open_if(tn_ctx *ctx, const char *path, tn_pkg **out, tern_error *err) {
    *out = NULL;
    struct stat sb;
    int fd = tn_file_open_regular(path, &sb, NULL);
    if (fd < 0) return TERN_OK;
    if (begins_like_one(fd)) return open_fd(ctx, fd, (uint64_t)sb.st_size, path, out, err);
    close(fd);
    return TERN_OK;
}

tern_status tn_pkg_reopen(const tn_pkg_writer *w, tn_pkg **out, tern_error *err) {
    assert(w->sealed);
    *out = NULL;
    int fd = fcntl(w->fd, F_DUPFD_CLOEXEC, 0);
    TN_FAIL_IF(fd < 0, err, TERN_E_IO, "%s: cannot read it back: %s", w->path, strerror(errno));
    return open_fd(w->ctx, fd, w->off, w->path, out, err);
}

void tn_pkg_close(tn_pkg **pp) {
    tn_pkg *p = *pp;
    if (!p) return;
    *pp = NULL;
    if (p->fd >= 0) close(p->fd);
    tn_free(p->ctx, p->by_kind);
    tn_free(p->ctx, p->index);
    tn_free(p->ctx, p->path);
    tn_free(p->ctx, p);
}

void tn_pkg_fetch_front(const tn_pkg *p) {
    uint64_t end = p->file_bytes;
    for (uint32_t i = 0; i < p->n_sections; i++) {
        const tn_pkg_section *s = &p->sections[i];
        if (s->kind != TN_PKG_META && s->kind != TN_PKG_TOKENIZER && s->kind != TN_PKG_MODEL &&
            s->kind != TN_PKG_GRAPHS && s->off_bytes < end)
            end = s->off_bytes;
    }
    (void)posix_fadvise(p->fd, 0, (off_t)end, POSIX_FADV_WILLNEED); /* a hint */
}

int tn_pkg_fd(const tn_pkg *p) { return p->fd; }
const char *tn_pkg_path(const tn_pkg *p) { return p->path; }
uint64_t tn_pkg_file_bytes(const tn_pkg *p) { return p->file_bytes; }
size_t tn_pkg_n_sections(const tn_pkg *p) { return p->n_sections; }
const tn_pkg_section *tn_pkg_section_at(const tn_pkg *p, size_t i) { return &p->sections[i]; }

const tn_pkg_section *tn_pkg_find(const tn_pkg *p, tn_pkg_kind kind, int32_t layer) {
    uint32_t begin = 0, end = p->n_sections; /* the first that is not before it is in [begin, end] */
    while (begin < end) {
        uint32_t middle = begin + (end - begin) / 2;
        const tn_pkg_section *s = p->by_kind[middle];
        bool before = s->kind != (uint32_t)kind ? s->kind < (uint32_t)kind : s->layer < layer;
        if (before) begin = middle + 1;
        else end = middle;
    }
    const tn_pkg_section *s = begin < p->n_sections ? p->by_kind[begin] : NULL;
    return s && s->kind == (uint32_t)kind && s->layer == layer ? s : NULL;
}

const tn_pkg_record *tn_pkg_records(const tn_pkg *p, const tn_pkg_section *s, size_t *n) {
    const toc_head *head = toc_of(p, s);
    *n = head ? head->n_records : 0;
    return head ? (const tn_pkg_record *)(head + 1) : NULL;
}

uint64_t tn_pkg_small_bytes(const tn_pkg *p, const tn_pkg_section *s) {
    const toc_head *head = toc_of(p, s);
    return head ? head->small_bytes : 0;
}

tern_status tn_pkg_check(const tn_pkg *p, const tn_pkg_section *s, const tn_pkg_record *r, uint64_t at,
                         const void *data, uint64_t n, tern_error *err) {
    const toc_head *head = toc_of(p, s);
    const tn_pkg_record *records = (const tn_pkg_record *)(head + 1);
    const uint64_t *hash = (const uint64_t *)(records + head->n_records);
    if (r) hash += n_blocks(head->small_bytes);
    for (const tn_pkg_record *q = records; r && q < r; q++) {
        if (tn_pkg_is_large(q->part)) hash += n_blocks(q->size_bytes);
    }
    uint64_t end = r ? r->size_bytes : head->small_bytes;
    assert(at % TN_PKG_BLOCK == 0 && tn_range_ok(at, n, end) &&
           ((at + n) % TN_PKG_BLOCK == 0 || at + n == end));
    for (uint64_t done = 0; done < n; done += TN_PKG_BLOCK) {
        uint64_t part = n - done < TN_PKG_BLOCK ? n - done : TN_PKG_BLOCK;
        if (XXH3_64bits((const char *)data + done, part) == hash[(at + done) / TN_PKG_BLOCK]) continue;
        char what[48] = "small tensors";
        if (r) snprintf(what, sizeof what, "tensor of role %u, part %u", r->role, r->part);
        return tn_fail(err, TERN_E_FORMAT,
                       "%s: layer %d, %s: the %" PRIu64 " bytes at offset %" PRIu64
                       " are damaged (checksum differs)",
                       p->path, s->layer, what, part, s->off_bytes + (r ? r->off_bytes : 0) + at + done);
    }
    (void)end;
    return TERN_OK;
}

tern_status tn_pkg_read_small(const tn_pkg *p, const tn_pkg_section *s, void *dst, tern_error *err) {
    uint64_t n = tn_pkg_small_bytes(p, s);
    TN_TRY(read_at(p, dst, n, s->off_bytes, err));
    return n ? tn_pkg_check(p, s, NULL, 0, dst, n, err) : TERN_OK;
}

tern_status tn_pkg_read(const tn_pkg *p, const tn_pkg_section *s, void *dst, tern_error *err) {
    TN_TRY(read_at(p, dst, s->size_bytes, s->off_bytes, err));
    const toc_head *head = toc_of(p, s);
    if (head) {
        const tn_pkg_record *r = (const tn_pkg_record *)(head + 1);
        if (head->small_bytes) TN_TRY(tn_pkg_check(p, s, NULL, 0, dst, head->small_bytes, err));
        for (uint32_t i = 0; i < head->n_records; i++) {
            if (tn_pkg_is_large(r[i].part) && r[i].size_bytes)
                TN_TRY(tn_pkg_check(p, s, &r[i], 0, (char *)dst + r[i].off_bytes, r[i].size_bytes, err));
        }
        return TERN_OK;
    }
    TN_FAIL_IF(XXH64(dst, s->size_bytes, 0) != s->xxh64, err, TERN_E_FORMAT,
               "%s: section at offset %" PRIu64 " (kind %u, layer %d) is damaged (checksum differs)", p->path,
               s->off_bytes, s->kind, s->layer);
    return TERN_OK;
}

tern_status tn_pkg_read_range(const tn_pkg *p, const tn_pkg_section *s, uint64_t off_bytes, uint64_t n_bytes,
                              void *dst, tern_error *err) {
    TN_FAIL_IF(!tn_range_ok(off_bytes, n_bytes, s->size_bytes), err, TERN_E_INVALID,
               "%s: [%" PRIu64 ", +%" PRIu64 ") is outside a section of %" PRIu64 " bytes", p->path,
               off_bytes, n_bytes, s->size_bytes);
    return read_at(p, dst, n_bytes, s->off_bytes + off_bytes, err);
}

const tn_pkg_record *tn_pkg_record_find(const tn_pkg_record *records, size_t n, uint32_t role,
                                        uint32_t part) {
    for (size_t i = 0; i < n; i++) {
        if (records[i].role == role && records[i].part == part) return &records[i];
    }
    return NULL;
}

bool tn_pkg_rows16_pack(const float *scale, const int32_t *col_sum, size_t n_pad, uint16_t *rows16,
                        float *by) {
    float top = 0;
    for (size_t i = 0; i < n_pad; i++) top = scale[i] > top ? scale[i] : top;
    *by = top > 0 ? top : 1;
    for (size_t i = 0; i < n_pad; i++) {
        rows16[i] = tn_f32_f16(scale[i] / *by);
        rows16[n_pad + i] = (uint16_t)(int16_t)col_sum[i];
        float back = tn_f16_f32(rows16[i]) * *by;
        if (!(fabsf(back - scale[i]) <= ldexpf(scale[i], -11)) || (int16_t)col_sum[i] != col_sum[i])
            return false;
    }
    return true;
}

tern_status tn_pkg_rows(const tn_pkg_record *records, size_t n_records, const void *base, uint32_t role,
                        size_t n_pad, float *scale, int32_t *col_sum, tern_error *err) {
    const tn_pkg_record *r = tn_pkg_record_find(records, n_records, role, TN_PKG_ROWS16),
                        *l = tn_pkg_record_find(records, n_records, role, TN_PKG_SCALE),
                        *sums = tn_pkg_record_find(records, n_records, role, TN_PKG_COL_SUM);
    TN_FAIL_IF(r ? r->size_bytes != 4 * (uint64_t)n_pad
                 : !l || !sums || l->size_bytes != 4 * (uint64_t)n_pad || sums->size_bytes != l->size_bytes,
               err, TERN_E_FORMAT, "scales and sums of role %u are missing or not of %zu rows", role, n_pad);
    if (!scale) return TERN_OK;
    if (!r) {
        memcpy(scale, (const char *)base + l->off_bytes, 4 * n_pad);
        memcpy(col_sum, (const char *)base + sums->off_bytes, 4 * n_pad);
        return TERN_OK;
    }
    const uint16_t *rows16 = (const uint16_t *)((const char *)base + r->off_bytes);
    for (size_t i = 0; i < n_pad; i++) {
        scale[i] = tn_f16_f32(rows16[i]) * r->act_scale;
        col_sum[i] = (int16_t)rows16[n_pad + i];
    }
    return TERN_OK;
}

tern_status tn_pkg_weightlets(const tn_pkg_record *records, size_t n_records, const void *base, uint32_t role,
                              int64_t n, int64_t k, const uint8_t **packed_bits,
                              const tn_pkg_record **weightlets, tern_error *err) {
    const tn_pkg_record *b = tn_pkg_record_find(records, n_records, role, TN_PKG_CHANNEL_BITS),
                        *w = tn_pkg_record_find(records, n_records, role, TN_PKG_WEIGHTLETS);
    TN_FAIL_IF(!b || !w || w->n != n || w->k != k || b->size_bytes != tn_channel_bits_bytes((size_t)n), err,
               TERN_E_FORMAT, "the packed weights of role %u are missing or have another shape", role);
    *packed_bits = (const uint8_t *)base + b->off_bytes;
    *weightlets = w;
    uint64_t want = tn_weightlets_bytes(*packed_bits, 0, (size_t)n, (size_t)k);
    TN_FAIL_IF(tn_pkg_plain_bytes(w) != want, err, TERN_E_FORMAT,
               "the packed weights of role %u have %" PRIu64 " bytes, their widths need %" PRIu64, role,
               tn_pkg_plain_bytes(w), want);
    return TERN_OK;
}
