/* formats/package.h - the .tern package: one file, sections in load order, each with its checksum.
 *
 * File: pkg_header | section table | sections, each aligned to 4096 bytes so that direct I/O can read it alone.
 * A section of tensors begins with its own record table (tn_pkg_record) and 64-byte aligned payloads, so that it can be
 * used where it was read. docs/package-format.md specifies every byte. All numbers are little-endian.
 *
 * writer: sections are streamed in order; nothing appears under the final name before finish has synced it all.
 * reader: trusts no length or offset; a section's bytes are checked against its XXH64 when it is read whole. */
#ifndef TN_FORMATS_PACKAGE_H
#define TN_FORMATS_PACKAGE_H

#include "base/ctx.h"
#include "base/status.h"

#include <stdint.h>

enum { TN_PKG_VERSION = 2, TN_PKG_ALIGN = 4096, TN_PKG_TENSOR_ALIGN = 64 };

typedef enum tn_pkg_kind {
    TN_PKG_META = 1,      /* JSON: hyperparameters, scheme, layout */
    TN_PKG_TOKENIZER = 2, /* blob of text/tokenizer.h */
    TN_PKG_MODEL = 3,     /* tensors of the model level: embedding, output norm, head, rope tables */
    TN_PKG_LAYER = 4,     /* tensors of one layer */
    TN_PKG_SHADOW = 5,    /* rows of weights by input channel of one layer, for outliers of cold channels */
    TN_PKG_GRAPHS = 6,    /* compiled graphs of the device */
} tn_pkg_kind;

typedef struct tn_pkg_section {
    uint32_t kind;
    int32_t layer; /* -1: none */
    uint64_t off_bytes, size_bytes;
    uint64_t xxh64; /* of the section's bytes */
} tn_pkg_section;
_Static_assert(sizeof(tn_pkg_section) == 32, "on-disk layout");

typedef enum tn_pkg_part {
    TN_PKG_F32 = 1,     /* f32 vector or row-major matrix [n][k] */
    TN_PKG_TILES = 2,   /* s8 weights of an [n][k] linear in the layout named in META */
    TN_PKG_SCALE = 3,   /* f32 [n rounded up to the tile]: scale per output channel */
    TN_PKG_COL_SUM = 4, /* s32 [n rounded up to the tile] */
    TN_PKG_BIAS = 5,    /* f32 [n rounded up to the tile] */
    TN_PKG_HOT = 6,     /* s32 [n]: hot input channels, ascending */
    TN_PKG_HOT_ROWS = 7, /* s8 [n hot][k = output channels]: their weight rows */
    TN_PKG_ROW_HASH = 11, /* u32 [n = input channels]: XXH32 (seed 0) of each row of ROWS, which is read a row at a time */
    TN_PKG_ROWS = 8,    /* s8 [n = input channels][k = output channels]: every weight row (SHADOW sections) */
    TN_PKG_WEIGHTLETS = 9,    /* [n][k] linear in 1..8 bits per output channel (kernels/unpack.h), instead of TILES */
    TN_PKG_CHANNEL_BITS = 10, /* packed INT3 [n]: their widths less one; stands before WEIGHTLETS */
} tn_pkg_part;

typedef struct tn_pkg_record {
    uint32_t role; /* tn_role */
    uint32_t part; /* tn_pkg_part */
    int64_t n, k;
    uint64_t off_bytes, size_bytes; /* within the section */
    float act_scale; /* TILES, WEIGHTLETS: static scale of the input activations */
    uint32_t flags;  /* TILES, WEIGHTLETS: TN_PKG_HAS_SHADOW */
    uint64_t reserved;
} tn_pkg_record;
_Static_assert(sizeof(tn_pkg_record) == 56, "on-disk layout");

enum { TN_PKG_HAS_SHADOW = 1 }; /* clipped activations of this linear are made good on the CPU */

/* ---- writing ------------------------------------------------------------------------------------- */

typedef struct tn_pkg_writer tn_pkg_writer;

/* path is replaced only by tn_pkg_finish. At most max_sections sections. */
tern_status tn_pkg_create(tn_ctx *ctx, const char *path, uint32_t max_sections, tn_pkg_writer **out, tern_error *err);
tern_status tn_pkg_put_section(tn_pkg_writer *w, tn_pkg_kind kind, int32_t layer, const void *data, uint64_t n_bytes, tern_error *err);

/* A section of tensors: begin, add each tensor (borrowed until end), end writes them all. */
tern_status tn_pkg_begin(tn_pkg_writer *w, tn_pkg_kind kind, int32_t layer, tern_error *err);
tern_status tn_pkg_add(tn_pkg_writer *w, const tn_pkg_record *like, const void *data, uint64_t n_bytes, tern_error *err);
tern_status tn_pkg_end(tn_pkg_writer *w, tern_error *err);

/* Write the table, sync, rename over path. The writer is closed whatever happens. */
tern_status tn_pkg_finish(tn_pkg_writer **w, tern_error *err);
/* Close and remove the temporary file. NULL-safe. */
void tn_pkg_abort(tn_pkg_writer **w);

/* ---- reading ------------------------------------------------------------------------------------- */

typedef struct tn_pkg tn_pkg;

bool tn_pkg_is(const char *path); /* the file begins like a package */
/* Reads and checks header and section table only. */
tern_status tn_pkg_open(tn_ctx *ctx, const char *path, tn_pkg **out, tern_error *err);
void tn_pkg_close(tn_pkg **p);
size_t tn_pkg_n_sections(const tn_pkg *p);
const tn_pkg_section *tn_pkg_section_at(const tn_pkg *p, size_t i);
const tn_pkg_section *tn_pkg_find(const tn_pkg *p, tn_pkg_kind kind, int32_t layer); /* NULL: absent */
/* Read the whole section to dst and check it. Thread-safe. */
tern_status tn_pkg_read(const tn_pkg *p, const tn_pkg_section *s, void *dst, tern_error *err);
/* Read a part of a section, unchecked (rows on demand). Thread-safe. */
tern_status tn_pkg_read_range(const tn_pkg *p, const tn_pkg_section *s, uint64_t off_bytes, uint64_t n_bytes, void *dst, tern_error *err);

/* The records of a tensor section whose first n_bytes were read to `base` (8-byte aligned): the table must lie in them,
 * every payload inside the section, aligned. */
tern_status tn_pkg_records(const tn_pkg_section *s, const void *base, uint64_t n_bytes, const tn_pkg_record **records, size_t *n, tern_error *err);
/* The one with this role and part, or NULL. */
const tn_pkg_record *tn_pkg_record_find(const tn_pkg_record *records, size_t n, uint32_t role, uint32_t part);

/* The weightlets of an [n][k] linear in a section read to base: widths and weights, their sizes checked against each other, so that
 * any part may be unpacked (tn_weightlets_unpack). TERN_E_FORMAT where they are missing or do not fit. */
tern_status tn_pkg_weightlets(const tn_pkg_record *records, size_t n_records, const void *base, uint32_t role, int64_t n, int64_t k,
                              const uint8_t **packed_bits, const uint8_t **weightlets, tern_error *err);

#endif
