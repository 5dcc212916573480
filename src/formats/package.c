#include "formats/package.h"

#include "base/checked.h"
#include "kernels/unpack.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

static const char MAGIC[8] = {'T', 'E', 'R', 'N', 'P', 'K', 'G', '\n'};

typedef struct pkg_header {
    char magic[8];
    uint32_t version, n_sections;
    uint64_t file_bytes;
    uint64_t table_off_bytes;
    uint64_t table_xxh64; /* of the n_sections table entries */
    uint64_t header_xxh64; /* of the bytes before this field */
} pkg_header;
_Static_assert(sizeof(pkg_header) == 48, "on-disk layout");

/* A tensor section begins with this, then n_records records. */
typedef struct records_head {
    uint32_t n_records, reserved;
} records_head;
_Static_assert(sizeof(records_head) == 8, "on-disk layout");

static uint64_t header_hash(const pkg_header *h) { return XXH64(h, offsetof(pkg_header, header_xxh64), 0); }
static uint64_t align_up(uint64_t v, uint64_t a) { return (v + a - 1) / a * a; }

/* ---- writing ------------------------------------------------------------------------------------- */

enum { MAX_RECORDS = 256 };

struct tn_pkg_writer {
    tn_ctx *ctx;
    char *path, *tmp;
    int fd;
    uint64_t off; /* end of what is written */
    uint32_t max_sections, n_sections;
    tn_pkg_section *sections;
    /* the tensor section being put together */
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
        TN_FAIL_IF(done <= 0, err, TERN_E_IO, "%s: cannot write at offset %" PRIu64 ": %s", w->tmp, off, done < 0 ? strerror(errno) : "disk full");
        p += done;
        off += (uint64_t)done;
        n -= (uint64_t)done;
    }
    return TERN_OK;
}

tern_status tn_pkg_create(tn_ctx *ctx, const char *path, uint32_t max_sections, tn_pkg_writer **out, tern_error *err) {
    *out = NULL;
    tn_pkg_writer *w = tn_calloc(ctx, TN_MEM_OTHER, 1, sizeof *w);
    TN_FAIL_IF(!w, err, TERN_E_MEMORY, "no memory to write %s", path);
    *w = (tn_pkg_writer){.ctx = ctx, .fd = -1, .max_sections = max_sections};
    size_t cap = strlen(path) + 32;
    w->path = tn_strdup(ctx, TN_MEM_OTHER, path);
    w->tmp = tn_alloc(ctx, TN_MEM_OTHER, cap, 1);
    w->sections = tn_calloc(ctx, TN_MEM_OTHER, max_sections, sizeof *w->sections);
    tern_status st = TERN_OK;
    TN_BAIL_IF(!w->path || !w->tmp || !w->sections, err, TERN_E_MEMORY, "no memory to write %s", path);
    snprintf(w->tmp, cap, "%s.tmp%ld", path, (long)getpid());
    w->fd = open(w->tmp, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    TN_BAIL_IF(w->fd < 0, err, TERN_E_IO, "%s: cannot create: %s", w->tmp, strerror(errno));
    w->off = align_up(sizeof(pkg_header) + (uint64_t)max_sections * sizeof(tn_pkg_section), TN_PKG_ALIGN);
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
    if (w->fd >= 0) {
        close(w->fd);
        (void)unlink(w->tmp);
    }
    tn_free(w->ctx, w->path);
    tn_free(w->ctx, w->tmp);
    tn_free(w->ctx, w->sections);
    tn_free(w->ctx, w);
}

static tern_status claim(tn_pkg_writer *w, tn_pkg_kind kind, int32_t layer, tn_pkg_section **out, tern_error *err) {
    TN_FAIL_IF(w->n_sections == w->max_sections, err, TERN_E_LIMIT, "%s: more than the %u sections planned", w->path, w->max_sections);
    *out = &w->sections[w->n_sections++];
    **out = (tn_pkg_section){.kind = (uint32_t)kind, .layer = layer, .off_bytes = w->off};
    return TERN_OK;
}

tern_status tn_pkg_put_section(tn_pkg_writer *w, tn_pkg_kind kind, int32_t layer, const void *data, uint64_t n_bytes, tern_error *err) {
    tn_pkg_section *s;
    TN_TRY(claim(w, kind, layer, &s, err));
    TN_TRY(write_at(w, data, n_bytes, w->off, err));
    s->size_bytes = n_bytes;
    s->xxh64 = XXH64(data, n_bytes, 0);
    w->off = align_up(w->off + n_bytes, TN_PKG_ALIGN);
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

tern_status tn_pkg_add(tn_pkg_writer *w, const tn_pkg_record *like, const void *data, uint64_t n_bytes, tern_error *err) {
    TN_FAIL_IF(!w->open || w->n_records == MAX_RECORDS, err, TERN_E_INVALID, "a section holds at most %d tensors", MAX_RECORDS);
    w->records[w->n_records] = *like;
    w->records[w->n_records].size_bytes = n_bytes;
    w->payloads[w->n_records++] = data;
    return TERN_OK;
}

tern_status tn_pkg_end(tn_pkg_writer *w, tern_error *err) {
    tn_pkg_section *s;
    w->open = false;
    TN_TRY(claim(w, w->kind, w->layer, &s, err));
    records_head head = {.n_records = w->n_records};
    uint64_t end = sizeof head + w->n_records * sizeof(tn_pkg_record);
    for (uint32_t i = 0; i < w->n_records; i++) {
        w->records[i].off_bytes = align_up(end, TN_PKG_TENSOR_ALIGN);
        end = w->records[i].off_bytes + w->records[i].size_bytes;
    }
    XXH64_state_t *hash = XXH64_createState();
    TN_FAIL_IF(!hash, err, TERN_E_MEMORY, "no memory for a checksum");
    XXH64_reset(hash, 0);
    static const char zeros[TN_PKG_TENSOR_ALIGN];
    uint64_t at = 0;
    tern_status st = TERN_OK;
    const void *data = &head;
    uint64_t n = sizeof head;
    for (int64_t i = -2; i < (int64_t)w->n_records && st == TERN_OK; i++) { /* head, table, payloads */
        if (i == -1) {
            data = w->records;
            n = w->n_records * sizeof(tn_pkg_record);
        } else if (i >= 0) {
            uint64_t pad = w->records[i].off_bytes - at;
            XXH64_update(hash, zeros, pad);
            st = write_at(w, zeros, pad, w->off + at, err);
            at += pad;
            data = w->payloads[i];
            n = w->records[i].size_bytes;
        }
        XXH64_update(hash, data, n);
        if (st == TERN_OK) st = write_at(w, data, n, w->off + at, err);
        at += n;
    }
    s->size_bytes = at;
    s->xxh64 = XXH64_digest(hash);
    XXH64_freeState(hash);
    w->off = align_up(w->off + at, TN_PKG_ALIGN);
    return st;
}

static tern_status sync_folder(const char *path, tern_error *err) {
    char folder[4096];
    const char *slash = strrchr(path, '/');
    size_t n = slash ? (size_t)(slash - path) : 1;
    TN_FAIL_IF(n >= sizeof folder, err, TERN_E_INVALID, "%s: path too long", path);
    memcpy(folder, slash ? path : ".", n);
    folder[n] = 0;
    int fd = open(n ? folder : "/", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd >= 0) {
        (void)fsync(fd); /* some file systems refuse this; the rename itself is atomic all the same */
        close(fd);
    }
    return TERN_OK;
}

tern_status tn_pkg_finish(tn_pkg_writer **pw, tern_error *err) {
    tn_pkg_writer *w = *pw;
    pkg_header h = {.version = TN_PKG_VERSION, .n_sections = w->n_sections, .file_bytes = w->off, .table_off_bytes = sizeof h};
    memcpy(h.magic, MAGIC, sizeof h.magic);
    h.table_xxh64 = XXH64(w->sections, w->n_sections * sizeof *w->sections, 0);
    h.header_xxh64 = header_hash(&h);
    tern_status st = write_at(w, w->sections, w->n_sections * sizeof *w->sections, sizeof h, err);
    if (st == TERN_OK) st = write_at(w, &h, sizeof h, 0, err);
    if (st == TERN_OK && ftruncate(w->fd, (off_t)w->off)) st = tn_fail(err, TERN_E_IO, "%s: %s", w->tmp, strerror(errno));
    if (st == TERN_OK && fsync(w->fd)) st = tn_fail(err, TERN_E_IO, "%s: cannot sync: %s", w->tmp, strerror(errno));
    if (st == TERN_OK && rename(w->tmp, w->path)) st = tn_fail(err, TERN_E_IO, "%s: cannot rename: %s", w->path, strerror(errno));
    if (st == TERN_OK) {
        close(w->fd);
        w->fd = -1; /* nothing left to remove */
        st = sync_folder(w->path, err);
    }
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
    tn_pkg_section *sections;
};

static tern_status read_at(const tn_pkg *p, void *dst, uint64_t n, uint64_t off, tern_error *err) {
    char *d = dst;
    while (n) {
        ssize_t got = pread(p->fd, d, n < (1u << 30) ? n : (1u << 30), (off_t)off);
        if (got < 0 && errno == EINTR) continue;
        TN_FAIL_IF(got < 0, err, TERN_E_IO, "%s: cannot read at offset %" PRIu64 ": %s", p->path, off, strerror(errno));
        TN_FAIL_IF(got == 0, err, TERN_E_FORMAT, "%s: ends at offset %" PRIu64 ", in the middle of a section", p->path, off);
        d += got;
        off += (uint64_t)got;
        n -= (uint64_t)got;
    }
    return TERN_OK;
}

bool tn_pkg_is(const char *path) {
    char magic[8];
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return false;
    bool is = pread(fd, magic, sizeof magic, 0) == (ssize_t)sizeof magic && !memcmp(magic, MAGIC, sizeof magic);
    close(fd);
    return is;
}

static tern_status read_table(tn_pkg *p, tern_error *err) {
    pkg_header h;
    TN_FAIL_IF(p->file_bytes < sizeof h, err, TERN_E_FORMAT, "%s: %" PRIu64 " bytes are too few for a package", p->path, p->file_bytes);
    TN_TRY(read_at(p, &h, sizeof h, 0, err));
    TN_FAIL_IF(memcmp(h.magic, MAGIC, sizeof h.magic), err, TERN_E_FORMAT, "%s: not a .tern package", p->path);
    TN_FAIL_IF(h.version != TN_PKG_VERSION, err, TERN_E_UNSUPPORTED, "%s: package version %u, this tern reads %d; pack the model again", p->path,
               h.version, TN_PKG_VERSION);
    TN_FAIL_IF(h.header_xxh64 != header_hash(&h), err, TERN_E_FORMAT, "%s: header damaged (checksum differs)", p->path);
    TN_FAIL_IF(h.file_bytes != p->file_bytes, err, TERN_E_FORMAT, "%s: truncated: %" PRIu64 " bytes of %" PRIu64, p->path, p->file_bytes, h.file_bytes);
    uint64_t table_bytes = (uint64_t)h.n_sections * sizeof(tn_pkg_section);
    TN_FAIL_IF(!tn_range_ok(h.table_off_bytes, table_bytes, p->file_bytes), err, TERN_E_FORMAT, "%s: %u sections do not fit the file", p->path, h.n_sections);
    p->sections = tn_alloc(p->ctx, TN_MEM_OTHER, h.n_sections, sizeof *p->sections);
    TN_FAIL_IF(!p->sections, err, TERN_E_MEMORY, "no memory for %u sections", h.n_sections);
    p->n_sections = h.n_sections;
    TN_TRY(read_at(p, p->sections, table_bytes, h.table_off_bytes, err));
    TN_FAIL_IF(XXH64(p->sections, table_bytes, 0) != h.table_xxh64, err, TERN_E_FORMAT, "%s: section table damaged (checksum differs)", p->path);
    for (uint32_t i = 0; i < p->n_sections; i++) {
        const tn_pkg_section *s = &p->sections[i];
        TN_FAIL_IF(!tn_range_ok(s->off_bytes, s->size_bytes, p->file_bytes) || s->off_bytes % TN_PKG_ALIGN, err, TERN_E_FORMAT,
                   "%s: section %u needs [%" PRIu64 ", +%" PRIu64 "), the file has %" PRIu64 " bytes", p->path, i, s->off_bytes, s->size_bytes, p->file_bytes);
    }
    return TERN_OK;
}

tern_status tn_pkg_open(tn_ctx *ctx, const char *path, tn_pkg **out, tern_error *err) {
    *out = NULL;
    tn_pkg *p = tn_calloc(ctx, TN_MEM_OTHER, 1, sizeof *p);
    TN_FAIL_IF(!p, err, TERN_E_MEMORY, "no memory to open %s", path);
    p->ctx = ctx;
    p->fd = open(path, O_RDONLY | O_CLOEXEC);
    p->path = tn_strdup(ctx, TN_MEM_OTHER, path);
    struct stat sb;
    tern_status st = TERN_OK;
    if (!p->path) st = tn_fail(err, TERN_E_MEMORY, "no memory to open %s", path);
    else if (p->fd < 0 || fstat(p->fd, &sb)) st = tn_fail(err, TERN_E_IO, "%s: cannot open: %s", path, strerror(errno));
    else p->file_bytes = (uint64_t)sb.st_size;
    if (st == TERN_OK) st = read_table(p, err);
    if (st == TERN_OK) *out = p;
    else tn_pkg_close(&p);
    return st;
}

void tn_pkg_close(tn_pkg **pp) {
    tn_pkg *p = *pp;
    if (!p) return;
    *pp = NULL;
    if (p->fd >= 0) close(p->fd);
    tn_free(p->ctx, p->sections);
    tn_free(p->ctx, p->path);
    tn_free(p->ctx, p);
}

size_t tn_pkg_n_sections(const tn_pkg *p) { return p->n_sections; }
const tn_pkg_section *tn_pkg_section_at(const tn_pkg *p, size_t i) { return &p->sections[i]; }

const tn_pkg_section *tn_pkg_find(const tn_pkg *p, tn_pkg_kind kind, int32_t layer) {
    for (uint32_t i = 0; i < p->n_sections; i++) {
        if (p->sections[i].kind == (uint32_t)kind && p->sections[i].layer == layer) return &p->sections[i];
    }
    return NULL;
}

tern_status tn_pkg_read(const tn_pkg *p, const tn_pkg_section *s, void *dst, tern_error *err) {
    TN_TRY(read_at(p, dst, s->size_bytes, s->off_bytes, err));
    TN_FAIL_IF(XXH64(dst, s->size_bytes, 0) != s->xxh64, err, TERN_E_FORMAT, "%s: section at offset %" PRIu64 " (kind %u, layer %d) is damaged (checksum differs)",
               p->path, s->off_bytes, s->kind, s->layer);
    return TERN_OK;
}

tern_status tn_pkg_read_range(const tn_pkg *p, const tn_pkg_section *s, uint64_t off_bytes, uint64_t n_bytes, void *dst, tern_error *err) {
    TN_FAIL_IF(!tn_range_ok(off_bytes, n_bytes, s->size_bytes), err, TERN_E_INVALID, "%s: [%" PRIu64 ", +%" PRIu64 ") is outside a section of %" PRIu64 " bytes",
               p->path, off_bytes, n_bytes, s->size_bytes);
    return read_at(p, dst, n_bytes, s->off_bytes + off_bytes, err);
}

tern_status tn_pkg_records(const tn_pkg_section *s, const void *base, uint64_t n_bytes, const tn_pkg_record **records, size_t *n, tern_error *err) {
    records_head head = {0};
    *n = 0;
    TN_FAIL_IF(n_bytes < sizeof head, err, TERN_E_FORMAT, "section at offset %" PRIu64 ": too short for its table", s->off_bytes);
    memcpy(&head, base, sizeof head);
    TN_FAIL_IF(head.n_records > MAX_RECORDS || !tn_range_ok(sizeof head, head.n_records * sizeof(tn_pkg_record), n_bytes), err, TERN_E_FORMAT,
               "section at offset %" PRIu64 ": %u tensors do not fit it", s->off_bytes, head.n_records);
    const tn_pkg_record *r = (const tn_pkg_record *)((const char *)base + sizeof head);
    for (uint32_t i = 0; i < head.n_records; i++) {
        TN_FAIL_IF(!tn_range_ok(r[i].off_bytes, r[i].size_bytes, s->size_bytes) || r[i].off_bytes % TN_PKG_TENSOR_ALIGN || r[i].n < 0 || r[i].k < 0,
                   err, TERN_E_FORMAT, "section at offset %" PRIu64 ": tensor %u (role %u) needs [%" PRIu64 ", +%" PRIu64 "), the section has %" PRIu64 " bytes",
                   s->off_bytes, i, r[i].role, r[i].off_bytes, r[i].size_bytes, s->size_bytes);
    }
    *records = r;
    *n = head.n_records;
    return TERN_OK;
}

const tn_pkg_record *tn_pkg_record_find(const tn_pkg_record *records, size_t n, uint32_t role, uint32_t part) {
    for (size_t i = 0; i < n; i++) {
        if (records[i].role == role && records[i].part == part) return &records[i];
    }
    return NULL;
}

tern_status tn_pkg_weightlets(const tn_pkg_record *records, size_t n_records, const void *base, uint32_t role, int64_t n, int64_t k,
                              const uint8_t **packed_bits, const uint8_t **weightlets, tern_error *err) {
    const tn_pkg_record *b = tn_pkg_record_find(records, n_records, role, TN_PKG_CHANNEL_BITS), *w = tn_pkg_record_find(records, n_records, role, TN_PKG_WEIGHTLETS);
    TN_FAIL_IF(!b || !w || w->n != n || w->k != k || b->size_bytes != tn_channel_bits_bytes((size_t)n), err, TERN_E_FORMAT,
               "the packed weights of role %u are missing or have another shape", role);
    *packed_bits = (const uint8_t *)base + b->off_bytes;
    *weightlets = (const uint8_t *)base + w->off_bytes;
    uint64_t want = tn_weightlets_bytes(*packed_bits, 0, (size_t)n, (size_t)k);
    TN_FAIL_IF(w->size_bytes != want, err, TERN_E_FORMAT, "the packed weights of role %u have %" PRIu64 " bytes, their widths need %" PRIu64, role, w->size_bytes, want);
    return TERN_OK;
}
