/* The embeddings for every layer: a token needs one row of this table, so rows stay in the file until
 * then. */
#include "package/impl.h"

#include "base/status.h"

#include <math.h>
#include <string.h>
#include <xxhash.h>

enum { LARGEST_ROW = 2 << 20 }; /* hparams.c bounds the values of a row */

static int32_t rows_of(const tn_hparams *h, int32_t part) {
    int32_t left = h->n_vocab - part * TN_PKG_TABLE_ROWS;
    return left < TN_PKG_TABLE_ROWS ? left : TN_PKG_TABLE_ROWS;
}

static tern_status open_part(tn_npu_model *m, const tn_hparams *h, int32_t part, tern_error *err) {
    struct tn_table_part *t = &m->table[part];
    size_t n, n_row = tn_pkg_table_row(h->n_layers, h->n_ple), n_rows = (size_t)rows_of(h, part);
    t->section = tn_pkg_find(m->pkg, TN_PKG_TABLE, part);
    TN_FAIL_IF(!t->section, err, TERN_E_FORMAT, "%s: part %d of the embeddings for every layer is missing",
               tn_pkg_path(m->pkg), part);
    const tn_pkg_record *all = tn_pkg_records(m->pkg, t->section, &n),
                        *rows = tn_pkg_record_find(all, n, TN_W_PLE_EMBD, TN_PKG_ROWS),
                        *hash = tn_pkg_record_find(all, n, TN_W_PLE_EMBD, TN_PKG_ROW_HASH);
    bool ok = rows && hash && rows->n == (int64_t)n_rows && rows->k == (int64_t)n_row &&
              rows->size_bytes == n_rows * n_row && hash->size_bytes == n_rows * sizeof(uint32_t) &&
              tn_pkg_small_bytes(m->pkg, t->section) >= hash->off_bytes + hash->size_bytes;
    TN_FAIL_IF(!ok, err, TERN_E_FORMAT,
               "%s: part %d of the embeddings for every layer is not %zu rows of %zu bytes",
               tn_pkg_path(m->pkg), part, n_rows, n_row);
    t->off_bytes = rows->off_bytes;
    char *small = tn_alloc(m->ctx, TN_MEM_OTHER, (size_t)tn_pkg_small_bytes(m->pkg, t->section), 1);
    TN_FAIL_IF(!small, err, TERN_E_MEMORY, "no memory for the embeddings for every layer");
    tern_status st = tn_pkg_read_small(m->pkg, t->section, small, err);
    if (st == TERN_OK)
        memcpy(m->table_hash + (size_t)part * TN_PKG_TABLE_ROWS, small + hash->off_bytes, hash->size_bytes);
    tn_free(m->ctx, small);
    return st;
}

tern_status tn_table_open(tn_npu_model *m, const tn_hparams *h, tern_error *err) {
    if (!h->n_ple) return TERN_OK;
    int32_t n = (h->n_vocab + TN_PKG_TABLE_ROWS - 1) / TN_PKG_TABLE_ROWS;
    m->table = tn_calloc(m->ctx, TN_MEM_OTHER, (size_t)n, sizeof *m->table);
    m->table_hash = tn_alloc(m->ctx, TN_MEM_OTHER, (size_t)h->n_vocab, sizeof *m->table_hash);
    m->table_failed = tn_calloc(m->ctx, TN_MEM_OTHER, 1, sizeof *m->table_failed);
    TN_FAIL_IF(!m->table || !m->table_hash || !m->table_failed ||
                   tn_pkg_table_row(h->n_layers, h->n_ple) > LARGEST_ROW,
               err, TERN_E_MEMORY, "no memory for the embeddings for every layer");
    for (int32_t i = 0; i < n; i++) TN_TRY(open_part(m, h, i, err));
    return TERN_OK;
}

void tn_table_close(tn_npu_model *m) {
    tn_free(m->ctx, m->table);
    tn_free(m->ctx, m->table_hash);
    tn_free(m->ctx, m->table_failed);
}

void tn_npu_model_embed_layers(const tn_npu_model *m, const tn_hparams *h, int32_t id, float *out) {
    size_t n = (size_t)h->n_layers * (size_t)h->n_ple, n_row = tn_pkg_table_row(h->n_layers, h->n_ple);
    const struct tn_table_part *t = &m->table[id / TN_PKG_TABLE_ROWS];
    uint8_t *row = tn_alloc(m->ctx, TN_MEM_OTHER, n_row, 1);
    tern_status st =
        row ? tn_pkg_read_range(m->pkg, t->section, t->off_bytes + (uint64_t)(id % TN_PKG_TABLE_ROWS) * n_row,
                                n_row, row, NULL)
            : TERN_E_MEMORY;
    if (st == TERN_OK && XXH32(row, n_row, 0) != m->table_hash[id]) st = TERN_E_FORMAT;
    if (st != TERN_OK) {
        atomic_store(m->table_failed, (int)st);
        memset(out, 0, n * sizeof *out);
        tn_free(m->ctx, row);
        return;
    }
    for (int32_t l = 0; l < h->n_layers; l++) {
        float scale;
        memcpy(&scale, row + n + (size_t)l * sizeof scale, sizeof scale);
        for (int32_t i = 0; i < h->n_ple; i++, out++)
            *out = (float)(int8_t)row[(size_t)l * (size_t)h->n_ple + (size_t)i] * scale;
    }
    tn_free(m->ctx, row);
}

tern_status tn_npu_model_table_ok(const tn_npu_model *m, tern_error *err) {
    const tern_status st = m->table ? (tern_status)atomic_exchange(m->table_failed, TERN_OK) : TERN_OK;
    TN_FAIL_IF(st != TERN_OK, err, st, "%s: a token's embeddings for every layer %s", tn_pkg_path(m->pkg),
               st == TERN_E_MEMORY   ? "find no memory"
               : st == TERN_E_FORMAT ? "are damaged (checksum differs)"
                                     : "cannot be read");
    return TERN_OK;
}
