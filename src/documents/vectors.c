#include "documents/vectors.h"

#include "base/cpu.h"
#include "base/half.h"
#include "base/status.h"
#include "kernels/dot_f16.h"

#include <inttypes.h>
#include <math.h>
#include <sqlite3.h>
#include <stdio.h>
#include <string.h>

enum { BATCH = 16, SAMPLE = 512 };

/* ---- which model ----------------------------------------------------------------------------------- */

/* Reads the note alone, not the counts. */
static tern_status read_note(tn_store *s, tn_vectors_info *out, tern_error *err) {
    sqlite3_stmt *q;
    memset(out, 0, sizeof *out);
    TN_TRY(tn_store_prepare(s, "SELECT model, fingerprint, n, mean FROM embedder", &q, err));
    int rc = sqlite3_step(q);
    if (rc == SQLITE_ROW) {
        const char *model = (const char *)sqlite3_column_text(q, 0);
        snprintf(out->model, sizeof out->model, "%s", model ? model : "");
        out->fingerprint = (uint64_t)sqlite3_column_int64(q, 1);
        int64_t n = sqlite3_column_int64(q, 2);
        out->n = n >= 1 && n <= TN_VECTOR_MAX ? (int32_t)n : 0;
        out->mean = sqlite3_column_int(q, 3) != 0;
        out->any = *out->model; /* an empty one: vectors are not wanted */
        out->declined = !out->any;
    }
    tern_status st = rc == SQLITE_ROW || rc == SQLITE_DONE ? TERN_OK : tn_store_failed(s, "read it", err);
    sqlite3_finalize(q);
    return st;
}

static bool same_model(const tn_vectors_info *info, const tn_embedder *e) {
    return info->any && info->fingerprint == e->fingerprint && info->n == e->n && info->mean == e->mean;
}

static const char MISSING[] = "SELECT count(*) FROM passage WHERE id NOT IN (SELECT passage FROM vector)";

tern_status tn_vectors_info_get(tn_store *s, tn_vectors_info *out, tern_error *err) {
    TN_TRY(read_note(s, out, err));
    if (!out->any) return TERN_OK;
    TN_TRY(tn_store_number(s, "SELECT count(*) FROM vector", &out->n_vectors, err));
    return tn_store_number(s, MISSING, &out->n_missing, err);
}

tern_status tn_vectors_drop(tn_store *s, tern_error *err) {
    TN_TRY(tn_store_begin(s, err));
    tern_status st = tn_store_run(s,
                                  "DELETE FROM vector; DELETE FROM embedder; INSERT INTO embedder(id, model, "
                                  "fingerprint, n, mean) VALUES(1, '', 0, 0, 0)",
                                  "write to it", err);
    if (st == TERN_OK) st = tn_store_commit(s, err);
    else tn_store_rollback(s);
    return st == TERN_OK ? tn_store_shrink(s, err) : st;
}

/* Notes the model, also under the path by which it was opened this time. */
static tern_status write_note(tn_store *s, const tn_embedder *e, tern_error *err) {
    tn_vectors_info now;
    sqlite3_stmt *q = NULL;
    TN_TRY(tn_store_begin(s, err));
    tern_status st = read_note(s, &now, err);
    bool same = st == TERN_OK && same_model(&now, e),
         others = st == TERN_OK && (now.any || now.declined) && !same;
    if (others) st = tn_store_run(s, "DELETE FROM vector; DELETE FROM embedder", "write to it", err);
    if (st == TERN_OK)
        st =
            tn_store_prepare(s,
                             "INSERT INTO embedder(id, model, fingerprint, n, mean) VALUES(1, ?1, ?2, ?3, ?4)"
                             " ON CONFLICT(id) DO UPDATE SET model = ?1",
                             &q, err);
    if (st == TERN_OK) {
        sqlite3_bind_text(q, 1, e->model, -1, SQLITE_STATIC);
        sqlite3_bind_int64(q, 2, (int64_t)e->fingerprint);
        sqlite3_bind_int(q, 3, e->n);
        sqlite3_bind_int(q, 4, e->mean);
        if (sqlite3_step(q) != SQLITE_DONE) st = tn_store_failed(s, "write to it", err);
        sqlite3_finalize(q);
    }
    if (st == TERN_OK) st = tn_store_commit(s, err);
    else tn_store_rollback(s);
    return st == TERN_OK && others ? tn_store_shrink(s, err) : st;
}

/* ---- filling --------------------------------------------------------------------------------------- */

/* Some passages and their vectors. The model runs outside of transactions: others may write meanwhile. */
typedef struct batch {
    int32_t n;
    int64_t id[BATCH];
    char *text[BATCH];
    uint16_t *half; /* [BATCH][n of the embedder] */
    float *row;     /* [n of the embedder] */
} batch;

static void batch_clear(tn_ctx *ctx, batch *b) {
    for (int32_t i = 0; i < b->n; i++) tn_free(ctx, b->text[i]);
    b->n = 0;
}

static tern_status batch_read(tn_store *s, batch *b, int64_t behind, tern_error *err) {
    sqlite3_stmt *q;
    TN_TRY(tn_store_prepare(
        s,
        "SELECT id, text FROM passage WHERE id > ?1 AND id NOT IN (SELECT passage FROM vector)"
        " ORDER BY id LIMIT ?2",
        &q, err));
    sqlite3_bind_int64(q, 1, behind);
    sqlite3_bind_int(q, 2, BATCH);
    tern_status st = TERN_OK;
    int rc = SQLITE_DONE;
    while (st == TERN_OK && b->n < BATCH && (rc = sqlite3_step(q)) == SQLITE_ROW) {
        const char *text = (const char *)sqlite3_column_text(q, 1);
        b->id[b->n] = sqlite3_column_int64(q, 0);
        b->text[b->n] = tn_strdup(tn_store_ctx(s), TN_MEM_TEXT, text ? text : "");
        if (!b->text[b->n]) st = tn_fail(err, TERN_E_MEMORY, "no memory for a passage");
        else b->n++;
    }
    if (st == TERN_OK && rc != SQLITE_ROW && rc != SQLITE_DONE) st = tn_store_failed(s, "read it", err);
    sqlite3_finalize(q);
    return st;
}

static tern_status batch_embed(const tn_embedder *e, batch *b, tern_error *err) {
    for (int32_t i = 0; i < b->n; i++) {
        TN_TRY(e->embed(e->user, b->text[i], strlen(b->text[i]), b->row, err));
        uint16_t *out = b->half + (size_t)i * (size_t)e->n;
        for (int32_t k = 0; k < e->n; k++) out[k] = tn_f32_f16(b->row[k]);
    }
    return TERN_OK;
}

/* A passage that is gone, or whose number went to another text, gets none: it is read again in its turn. */
static tern_status batch_write(tn_store *s, const tn_embedder *e, const batch *b, int64_t *n_made,
                               tern_error *err) {
    tn_vectors_info now;
    sqlite3_stmt *q = NULL;
    TN_TRY(tn_store_begin(s, err));
    tern_status st = read_note(s, &now, err);
    if (st == TERN_OK && !same_model(&now, e))
        st = tn_fail(err, TERN_E_INVALID, "%s: another process has given the index another embedding model",
                     tn_store_path(s));
    if (st == TERN_OK)
        st = tn_store_prepare(
            s,
            "INSERT INTO vector(passage, data) SELECT id, ?3 FROM passage WHERE id = ?1 AND text = ?2"
            " ON CONFLICT(passage) DO NOTHING",
            &q, err);
    for (int32_t i = 0; st == TERN_OK && i < b->n; i++) {
        sqlite3_bind_int64(q, 1, b->id[i]);
        sqlite3_bind_text(q, 2, b->text[i], -1, SQLITE_STATIC);
        sqlite3_bind_blob(q, 3, b->half + (size_t)i * (size_t)e->n, e->n * (int)sizeof *b->half,
                          SQLITE_STATIC);
        if (sqlite3_step(q) != SQLITE_DONE) st = tn_store_failed(s, "write to it", err);
        *n_made += st == TERN_OK ? sqlite3_changes64(tn_store_db(s)) : 0;
        sqlite3_reset(q);
    }
    sqlite3_finalize(q);
    if (st == TERN_OK) return tn_store_commit(s, err);
    tn_store_rollback(s);
    return st;
}

tern_status tn_vectors_fill(tn_store *s, const tn_embedder *e, const atomic_bool *cancel,
                            void (*progress)(void *, int64_t, int64_t), void *user, int64_t *n_made,
                            tern_error *err) {
    tn_ctx *ctx = tn_store_ctx(s);
    TN_FAIL_IF(e->n < 1 || e->n > TN_VECTOR_MAX, err, TERN_E_UNSUPPORTED,
               "vectors of %d values: want 1 to %d", e->n, TN_VECTOR_MAX);
    TN_FAIL_IF(strlen(e->model) >= TN_VECTOR_PATH_MAX, err, TERN_E_INVALID,
               "the embedding model's path has more than %d bytes", TN_VECTOR_PATH_MAX - 1);
    TN_TRY(write_note(s, e, err));
    batch b = {.half = tn_alloc(ctx, TN_MEM_OTHER, (size_t)BATCH * (size_t)e->n, sizeof *b.half),
               .row = tn_alloc(ctx, TN_MEM_OTHER, (size_t)e->n, sizeof *b.row)};
    tern_status st = b.half && b.row ? TERN_OK : tn_fail(err, TERN_E_MEMORY, "no memory for vectors");
    int64_t n_all = 0, n_done = 0, behind = -1;
    if (st == TERN_OK) st = tn_store_number(s, MISSING, &n_all, err);
    while (st == TERN_OK) {
        if (cancel && atomic_load_explicit(cancel, memory_order_relaxed)) {
            st = tn_fail(err, TERN_E_CANCELLED, "making vectors was stopped; the same command goes on");
            break;
        }
        st = batch_read(s, &b, behind, err);
        if (st != TERN_OK || !b.n) break;
        behind = b.id[b.n - 1];
        st = batch_embed(e, &b, err);
        if (st == TERN_OK) st = batch_write(s, e, &b, n_made, err);
        n_done += b.n;
        batch_clear(ctx, &b);
        if (st == TERN_OK && progress) progress(user, n_done, n_all);
    }
    batch_clear(ctx, &b);
    tn_free(ctx, b.half);
    tn_free(ctx, b.row);
    return st;
}

/* ---- searching ------------------------------------------------------------------------------------- */

/* The bytes of a row as n halves, all finite, or NULL. SQLite's blobs have any alignment. */
static const uint16_t *halves(sqlite3_stmt *q, int column, int32_t n, uint16_t *copy) {
    const void *blob = sqlite3_column_blob(q, column);
    if (!blob || sqlite3_column_bytes(q, column) != n * (int)sizeof *copy) return NULL;
    memcpy(copy, blob, (size_t)n * sizeof *copy);
    uint16_t bad = 0;
    for (int32_t i = 0; i < n; i++) bad |= (uint16_t)((copy[i] & 0x7c00u) == 0x7c00u);
    return bad ? NULL : copy;
}

/* The centre of up to SAMPLE vectors, evenly over the passages' numbers. */
static tern_status centre_of(tn_store *s, int32_t n, uint16_t *copy, float *centre, int64_t *n_sampled,
                             tern_error *err) {
    int64_t lo = 0, hi = 0;
    sqlite3_stmt *q;
    memset(centre, 0, (size_t)n * sizeof *centre);
    *n_sampled = 0;
    TN_TRY(tn_store_number(s, "SELECT coalesce(min(passage), 0) FROM vector", &lo, err));
    TN_TRY(tn_store_number(s, "SELECT coalesce(max(passage), 0) FROM vector", &hi, err));
    TN_FAIL_IF(lo < 0, err, TERN_E_FORMAT, "%s: damaged: a vector of passage %" PRId64, tn_store_path(s), lo);
    TN_TRY(tn_store_prepare(
        s, "SELECT passage, data FROM vector WHERE passage >= ?1 ORDER BY passage LIMIT 1", &q, err));
    int64_t step = (hi - lo) / SAMPLE, next = lo;
    int rc = SQLITE_ROW;
    for (int i = 0; i <= SAMPLE && rc == SQLITE_ROW; i++) {
        sqlite3_bind_int64(q, 1, next);
        rc = sqlite3_step(q);
        if (rc != SQLITE_ROW) break;
        int64_t at = sqlite3_column_int64(q, 0);
        const uint16_t *v = halves(q, 1, n, copy);
        for (int32_t k = 0; v && k < n; k++) centre[k] += tn_f16_f32(v[k]);
        *n_sampled += v != NULL;
        if (at == hi) break;
        next = at + 1 > next + step ? at + 1 : next + step;
        sqlite3_reset(q);
    }
    tern_status st = rc == SQLITE_ROW || rc == SQLITE_DONE ? TERN_OK : tn_store_failed(s, "read it", err);
    sqlite3_finalize(q);
    for (int32_t k = 0; *n_sampled && k < n; k++) centre[k] /= (float)*n_sampled;
    return st;
}

static void keep_best(tn_vector_hit *best, int32_t k, int32_t *n, tn_vector_hit h) {
    if (*n == k && !(h.similarity > best[k - 1].similarity)) return;
    int32_t i = *n < k ? (*n)++ : k - 1;
    for (; i && h.similarity > best[i - 1].similarity; i--) best[i] = best[i - 1];
    best[i] = h;
}

/* rows: the question from the centre, then the centre. A passage v of length 1 lies at v - centre. */
static tern_status scan(tn_store *s, int32_t n_values, const float *rows, uint16_t *copy, int32_t k,
                        tn_vector_hit *out, int32_t *n, tern_error *err) {
    tn_dot_f16_fn dot = tn_dot_f16_for(tn_cpu_flags(NULL));
    double qq = 0, qc = 0, cc = 0;
    for (int32_t i = 0; i < n_values; i++) {
        double a = (double)rows[i], c = (double)rows[n_values + i];
        qq += a * a;
        qc += a * c;
        cc += c * c;
    }
    sqlite3_stmt *q;
    TN_TRY(tn_store_prepare(s, "SELECT passage, data FROM vector ORDER BY passage", &q, err));
    int rc;
    double sum = 0, squares = 0, n_seen = 0;
    while ((rc = sqlite3_step(q)) == SQLITE_ROW) {
        const uint16_t *v = halves(q, 1, n_values, copy);
        float p[2];
        if (!v) continue;
        dot(rows, v, (size_t)n_values, p);
        double square = 1 - 2 * (double)p[1] + cc, size = sqrt(qq * (square > 0 ? square : 0));
        double cosine = size > 1e-9 ? fmax(-1, fmin(1, ((double)p[0] - qc) / size)) : 0;
        sum += cosine;
        squares += cosine * cosine;
        n_seen++;
        keep_best(out, k, n, (tn_vector_hit){sqlite3_column_int64(q, 0), (float)cosine, 0});
    }
    tern_status st = rc == SQLITE_DONE ? TERN_OK : tn_store_failed(s, "read it", err);
    sqlite3_finalize(q);
    double mean = sum / fmax(n_seen, 1), spread = sqrt(fmax(squares / fmax(n_seen, 1) - mean * mean, 0));
    for (int32_t i = 0; i < *n; i++)
        out[i].stands_out = spread > 1e-9 ? (float)(((double)out[i].similarity - mean) / spread) : 0;
    return st;
}

tern_status tn_vectors_search(tn_store *s, const tn_embedder *e, const char *query, int32_t k,
                              tn_vector_hit *out, int32_t *n, bool *centred, tern_error *err) {
    tn_ctx *ctx = tn_store_ctx(s);
    tn_vectors_info info;
    *n = 0;
    *centred = false;
    TN_FAIL_IF(k < 1, err, TERN_E_INVALID, "%d passages: want at least 1", k);
    TN_TRY(read_note(s, &info, err));
    TN_FAIL_IF(!same_model(&info, e), err, TERN_E_INVALID,
               "%s: its vectors are of another embedding model than %s", tn_store_path(s), e->model);
    size_t n_values = (size_t)e->n;
    float *rows = tn_alloc(ctx, TN_MEM_OTHER, 2 * n_values, sizeof *rows),
          *centre = rows ? rows + n_values : NULL;
    uint16_t *copy = tn_alloc(ctx, TN_MEM_OTHER, n_values, sizeof *copy);
    tern_status st = rows && copy ? TERN_OK : tn_fail(err, TERN_E_MEMORY, "no memory for vectors");
    int64_t n_sampled = 0;
    if (st == TERN_OK) st = centre_of(s, e->n, copy, centre, &n_sampled, err);
    if (st == TERN_OK)
        st = (e->embed_query ? e->embed_query : e->embed)(e->user, query, strlen(query), rows, err);
    if (st == TERN_OK) {
        *centred = n_sampled >= TN_VECTOR_CENTRED;
        if (!*centred) memset(centre, 0, n_values * sizeof *centre);
        for (size_t i = 0; i < n_values; i++) rows[i] -= centre[i];
        st = scan(s, e->n, rows, copy, k, out, n, err);
    }
    tn_free(ctx, rows);
    tn_free(ctx, copy);
    return st;
}
