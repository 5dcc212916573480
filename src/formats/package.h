/* formats/package.h - the .tern package: one file, sections in load order, each with its checksums.
 *
 * File: pkg_header | index: section table, tables of contents | sections.
 *
 * The index comes first and holds everything needed to place every tensor, so a package can be used while
 * it is being read. A section of tensors has a table of contents: records, and the checksums of blocks of
 * 256 KiB. Its small tensors come first, back to back ("the small part"), then the large ones
 * (tn_pkg_is_large). Large ones of a block or more begin at multiples of 4096 in the file, so each can be
 * read directly to its final place and checked block by block meanwhile; shorter ones share their first
 * and last page with neighbours. docs/reference/package-format.md specifies every byte. All numbers are
 * little-endian.
 *
 * A writer streams sections in order; nothing appears under the final name before finish has synced
 * everything. A reader trusts no length or offset, and checks bytes against their checksums when it reads
 * them. */
#ifndef TN_FORMATS_PACKAGE_H
#define TN_FORMATS_PACKAGE_H

#include "base/ctx.h"
#include "base/outfile.h"
#include "base/status.h"

#include <stdint.h>

/* Version 6 has TN_PKG_ROWS16 and packs short sections and tensors, version 5 may have weightlets in HEAD,
 * version 4 knows TN_PKG_ROTATED; all of them and version 3 are read. */
enum {
    TN_PKG_VERSION = 6,
    TN_PKG_OLDEST = 3,
    TN_PKG_ALIGN = 4096,      /* of large tensors of a block or more, in the file; of the file's end */
    TN_PKG_SHORT_ALIGN = 128, /* of shorter ones, and of sections */
    TN_PKG_TENSOR_ALIGN = 64,
    TN_PKG_BLOCK = 256 << 10
};

typedef enum tn_pkg_kind {
    TN_PKG_META = 1,      /* JSON: hyperparameters, scheme, layout */
    TN_PKG_TOKENIZER = 2, /* blob of text/tokenizer.h */
    TN_PKG_MODEL = 3, /* tensors of the model level: output norm, rope tables, scales of embedding and head */
    TN_PKG_LAYER = 4, /* tensors of one layer */
    TN_PKG_OUTLIERS = 5, /* rows of weights by input channel of one layer, for outliers of cold channels */
    TN_PKG_GRAPHS = 6,   /* compiled graphs of the device: tn_pkg_graph table, then their bytes */
    TN_PKG_LM_HEAD = 7,  /* large tensors of the model level: embedding, head. After the layers, because
                           they are needed last */
    TN_PKG_TABLE =
        9, /* a part of the embeddings for every layer, read row by row on demand; the section's layer
              numbers the parts */
    TN_PKG_SMOOTHING = 8, /* divisors of the inputs of sites; read only for adapters */
    TN_PKG_ENCODER =
        11, /* the encoder of pictures: an mmproj file (GGUF) as it is; read by the first picture */
    TN_PKG_VERDICT = 12, /* tn_pkg_verdict: whether that encoder computes in INT8 */
    TN_PKG_NEXT = 10,    /* tensors of the layer that guesses one token further, all small */
} tn_pkg_kind;

typedef struct tn_pkg_section {
    uint32_t kind;
    int32_t layer; /* -1: none */
    uint64_t off_bytes, size_bytes;
    uint64_t xxh64; /* of the section's table of contents where it has one, else of its bytes */
    uint32_t toc_off_bytes, toc_bytes; /* in the index; 0, 0: none */
} tn_pkg_section;
_Static_assert(sizeof(tn_pkg_section) == 40, "on-disk layout");

typedef enum tn_pkg_part {
    TN_PKG_F32 = 1,      /* f32 vector or row-major matrix [n][k] */
    TN_PKG_TILES = 2,    /* s8 weights of an [n][k] linear in the layout named in META */
    TN_PKG_SCALE = 3,    /* f32 [n rounded up to the tile]: scale per output channel */
    TN_PKG_COL_SUM = 4,  /* s32 [n rounded up to the tile] */
    TN_PKG_BIAS = 5,     /* f32 [n rounded up to the tile] */
    TN_PKG_HOT = 6,      /* s32 [n]: hot input channels, ascending */
    TN_PKG_HOT_ROWS = 7, /* s8 [n hot][k = output channels]: their weight rows */
    TN_PKG_ROW_HASH =
        11, /* u32 [n = input channels]: XXH32 (seed 0) of each row of ROWS, which is read a row at a time */
    TN_PKG_ROWS = 8, /* s8 [n = input channels][k = output channels]: every weight row (SHADOW sections) */
    TN_PKG_WEIGHTLETS =
        9, /* [n][k] linear in 1..8 bits per output channel (kernels/unpack.h), instead of TILES */
    TN_PKG_CHANNEL_BITS = 10, /* packed INT3 [n]: their widths minus one */
    TN_PKG_TILE_HASH = 12,    /* u32 [n / tile_n rounded up]: XXH32 (seed 0) of each column tile of TILES, for
                                 rows looked up alone */
    TN_PKG_OUTPUT =
        13, /* f32 [n rounded up to the tile]: factors of a linear's 8-bit outputs, besides their scale,
               which is the record's act_scale */
    TN_PKG_INVERSE =
        14, /* f32 [k]: factors of a site's inputs before they are quantised, where no earlier tensor could
               hold them (first linear of the site; absent: 1) */
    TN_PKG_EXPERT_HASH =
        15,             /* u32 [n experts]: XXH32 (seed 0) of each expert's part of TILES or WEIGHTLETS, which
                                may be read alone */
    TN_PKG_ROWS16 = 16, /* f16 [n rounded up to the tile], then s16 in the same way: scales, to be
                           multiplied by the record's act_scale, and sums; replaces SCALE and COL_SUM */
    TN_PKG_BLOCKS = 17, /* [n][k] linear as tiles of Q8_0 (kernels/blocks_s8.h), for the CPU; k % 32 == 0 */
    TN_PKG_STREAMS =
        18, /* beside WEIGHTLETS that are entropy-coded, in n streams by k tables: their sizes u32 [n],
               frequencies u16 [k][32], each channel's table in 4 bits, even channels in the low ones */
} tn_pkg_part;

typedef struct tn_pkg_record {
    uint32_t role; /* tn_role */
    uint32_t part; /* tn_pkg_part */
    int64_t n, k;
    uint64_t off_bytes, size_bytes; /* within the section */
    float act_scale;                /* TILES, WEIGHTLETS: static scale of the input activations */
    uint32_t flags;                 /* TILES, WEIGHTLETS: flags below */
    uint64_t plain_bytes;           /* CODED: size of the weightlets */
} tn_pkg_record;
_Static_assert(sizeof(tn_pkg_record) == 56, "on-disk layout");

static inline bool tn_pkg_is_large(uint32_t part) {
    return part == TN_PKG_TILES || part == TN_PKG_WEIGHTLETS || part == TN_PKG_ROWS;
}

/* A section of compiled graphs has u32 count, u32 zero, then this many entries, then the graphs' bytes (npu.h
 * serialises them). */
typedef struct tn_pkg_graph {
    int32_t layer;                  /* -1: the head */
    uint32_t site;                  /* tn_site */
    int32_t m;                      /* rows of its form */
    uint32_t off_bytes, size_bytes; /* in the section */
} tn_pkg_graph;
_Static_assert(sizeof(tn_pkg_graph) == 20, "on-disk layout");

/* Cosines of the encoder's rows in INT8 to those in floats (model/tower_judge.h). */
typedef struct tn_pkg_verdict {
    uint32_t version, zero; /* of the judge */
    uint64_t fingerprint;   /* of the encoder in INT8 */
    float mean, least;
} tn_pkg_verdict;
_Static_assert(sizeof(tn_pkg_verdict) == 24, "on-disk layout");

/* A package holds these forms for every site: chunks of the prompt, and decoding (the head's only form). */
enum { TN_PKG_CHUNK = 256, TN_PKG_DECODE_M = 32 };

/* Rows of a part of the table. A row is s8 codes, layer by layer, then an f32 scale for every layer. */
enum { TN_PKG_TABLE_ROWS = 4096 };
static inline size_t tn_pkg_table_row(int32_t n_layers, int32_t n) {
    return n ? (size_t)n_layers * ((size_t)n + sizeof(float)) : 0;
}

enum {
    TN_PKG_HAS_OUTLIERS = 1, /* the CPU adds back the clipped activations of this linear */
    TN_PKG_ROTATED = 2,      /* its inputs are rotated before they are quantised (kernels/hadamard.h) */
    TN_PKG_OUTPUT_INT8 = 4,  /* its outputs leave the device in 8 bits */
    TN_PKG_DIVIDED = 8,      /* its inputs come from a delta net or a convolution, and have an INVERSE */
    TN_PKG_WIDER = 16,       /* rotated in blocks of 256 */
    TN_PKG_WIDEST = 32,      /* rotated in blocks of 1024 */
    TN_PKG_CODED = 64,       /* WEIGHTLETS: entropy-coded streams (kernels/rans.h), described by STREAMS */
    TN_PKG_ALL_FLAGS = 127   /* a reader refuses others */
};

static inline bool tn_pkg_is_coded(const tn_pkg_record *r) {
    return r->part == TN_PKG_WEIGHTLETS && r->flags & TN_PKG_CODED;
}
/* Size of a record's tensor in memory; weightlets stay packed. */
static inline uint64_t tn_pkg_plain_bytes(const tn_pkg_record *r) {
    return tn_pkg_is_coded(r) ? r->plain_bytes : r->size_bytes;
}
/* Channels of a stream. The embedding has fewer, because its rows are looked up one by one. */
static inline int64_t tn_pkg_stream_channels(bool embedding) { return embedding ? 64 : 256; }

/* ---- writing ------------------------------------------------------------------------------------- */

extern const tn_outkind tn_pkg_kind_of_file;

typedef struct tn_pkg_writer tn_pkg_writer;
typedef struct tn_pkg tn_pkg;

/* Creates a package. path is replaced only by tn_pkg_finish. It has at most max_sections sections, whose
 * tables of contents take at most cap_toc_bytes (tn_pkg_toc_bound added up over the sections of tensors). */
tern_status tn_pkg_create(tn_ctx *ctx, const char *path, uint32_t max_sections, uint64_t cap_toc_bytes,
                          tn_pkg_writer **out, tern_error *err);
uint64_t tn_pkg_toc_bound(uint32_t n_tensors, uint64_t payload_bytes);
tern_status tn_pkg_put_section(tn_pkg_writer *w, tn_pkg_kind kind, int32_t layer, const void *data,
                               uint64_t n_bytes, tern_error *err);

/* To write a section of tensors: begin, add each tensor (borrowed until end), end writes them all. */
tern_status tn_pkg_begin(tn_pkg_writer *w, tn_pkg_kind kind, int32_t layer, tern_error *err);
tern_status tn_pkg_add(tn_pkg_writer *w, const tn_pkg_record *like, const void *data, uint64_t n_bytes,
                       tern_error *err);
tern_status tn_pkg_end(tn_pkg_writer *w, tern_error *err);

/* Writes the table and syncs. The file is then a complete package without a name. */
tern_status tn_pkg_seal(tn_pkg_writer *w, tern_error *err);
/* Opens a reader of the sealed file with its own descriptor. The writer may be closed before it. */
tern_status tn_pkg_reopen(const tn_pkg_writer *w, tn_pkg **out, tern_error *err);
/* Seals if necessary and renames over path. Always closes the writer. */
tern_status tn_pkg_finish(tn_pkg_writer **w, tern_error *err);
/* Closes the writer and removes the temporary file. NULL-safe. */
void tn_pkg_abort(tn_pkg_writer **w);

/* ---- reading ------------------------------------------------------------------------------------- */

bool tn_pkg_is(const char *path); /* whether it is a regular file that begins like a package */
/* Opens a package: it reads and checks header and index only. */
tern_status tn_pkg_open(tn_ctx *ctx, const char *path, tn_pkg **out, tern_error *err);
/* Like tn_pkg_open, by a descriptor. If the file does not begin like a package, is not regular or not
 * readable, *out is NULL without an error. */
tern_status tn_pkg_open_if(tn_ctx *ctx, const char *path, tn_pkg **out, tern_error *err);
void tn_pkg_close(tn_pkg **p);
/* Asks the kernel to fetch everything before the layers, which is needed first. */
void tn_pkg_fetch_front(const tn_pkg *p);
int tn_pkg_fd(const tn_pkg *p); /* the one descriptor; duplicate it if you need another */
const char *tn_pkg_path(const tn_pkg *p);
uint64_t tn_pkg_file_bytes(const tn_pkg *p);
size_t tn_pkg_n_sections(const tn_pkg *p);
const tn_pkg_section *tn_pkg_section_at(const tn_pkg *p, size_t i);
const tn_pkg_section *tn_pkg_find(const tn_pkg *p, tn_pkg_kind kind, int32_t layer); /* NULL: absent */
/* Reads the whole section to dst and checks it. Thread-safe. */
tern_status tn_pkg_read(const tn_pkg *p, const tn_pkg_section *s, void *dst, tern_error *err);
/* The same for the small tensors only: the first tn_pkg_small_bytes of the section. */
uint64_t tn_pkg_small_bytes(const tn_pkg *p, const tn_pkg_section *s);
tern_status tn_pkg_read_small(const tn_pkg *p, const tn_pkg_section *s, void *dst, tern_error *err);
/* Reads a part of a section, unchecked (rows on demand). Thread-safe. */
tern_status tn_pkg_read_range(const tn_pkg *p, const tn_pkg_section *s, uint64_t off_bytes, uint64_t n_bytes,
                              void *dst, tern_error *err);
/* Checks bytes [at, at + n) of a large tensor (or, r NULL, of the small part) that were read by other means.
 * `at` is a multiple of TN_PKG_BLOCK; so is the end, unless it is the tensor's. TERN_E_FORMAT names layer,
 * tensor and file offset of the differing block. */
tern_status tn_pkg_check(const tn_pkg *p, const tn_pkg_section *s, const tn_pkg_record *r, uint64_t at,
                         const void *data, uint64_t n, tern_error *err);

/* Returns the records of a tensor section, which p owns. Every payload lies inside the section, aligned. *n =
 * 0 for other sections. */
const tn_pkg_record *tn_pkg_records(const tn_pkg *p, const tn_pkg_section *s, size_t *n);
/* Returns the record with this role and part, or NULL. */
const tn_pkg_record *tn_pkg_record_find(const tn_pkg_record *records, size_t n, uint32_t role, uint32_t part);

/* Packs scales and sums of a linear's n_pad rows (n rounded up to the tile) in the short form, within
 * 2^-11 of the originals. Returns false if some do not fit and the long form is needed. */
bool tn_pkg_rows16_pack(const float *scale, const int32_t *col_sum, size_t n_pad, uint16_t *rows16,
                        float *by);
/* Reads them in either form. A missing record or one of another size is TERN_E_FORMAT. scale NULL: only
 * checks. */
tern_status tn_pkg_rows(const tn_pkg_record *records, size_t n_records, const void *base, uint32_t role,
                        size_t n_pad, float *scale, int32_t *col_sum, tern_error *err);

/* Finds an [n][k] linear in weightlets: its widths, at base (the section, or its small part, as read), and
 * the record of its weights, whose size is checked against them, so that any part may be unpacked
 * (tn_weightlets_unpack). A missing or unfitting record is TERN_E_FORMAT. */
tern_status tn_pkg_weightlets(const tn_pkg_record *records, size_t n_records, const void *base, uint32_t role,
                              int64_t n, int64_t k, const uint8_t **packed_bits,
                              const tn_pkg_record **weightlets, tern_error *err);

#endif
