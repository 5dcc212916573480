#include "documents/rag.h"

#include "base/status.h"
#include "documents/documents.h"
#include "documents/file_text.h"
#include "documents/office.h"
#include "documents/reader.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#include <xxhash.h>

enum {
    MAX_DEPTH = 64,        /* of folders */
    BATCH_BYTES = 4 << 20, /* text written in one transaction */
    BATCH_DOCUMENTS = 256,
};
static const uint64_t MAX_FILE_BYTES = 32u << 20;

typedef struct indexer {
    tn_store *s;
    tn_ctx *ctx;
    sqlite3 *db;
    const tn_rag_options *o;
    tn_passage_options passages;
    uint64_t max_file_bytes;
    const atomic_bool *cancel;
    tn_rag_added *out;
    sqlite3_stmt *find, *insert, *update, *passage, *words; /* prepared once */
    int64_t document, number;                               /* being written */
    enum { NO_PLACES, LINES, PAGES } places;                /* what of the document can be counted */
    const char *counted;                                    /* up to here ... */
    int64_t place;                                          /* ... it is this line or page */
    uint64_t batch_bytes;
    int32_t batch_documents;
    tern_status st; /* of the callback that writes passages */
    tern_error *err;
    char why[sizeof((tern_error *)0)->message]; /* a document has no text, in its reader's words */
} indexer;

/* ---- SQL ------------------------------------------------------------------------------------------- */

/* Runs a statement that gives no rows, and makes it ready again. */
static tern_status run(tn_store *s, sqlite3_stmt *q, tern_error *err) {
    tern_status st = sqlite3_step(q) == SQLITE_DONE ? TERN_OK : tn_store_failed(s, "write to it", err);
    sqlite3_reset(q);
    sqlite3_clear_bindings(q);
    return st;
}

/* ---- reading files --------------------------------------------------------------------------------- */

static void skip(indexer *x, const char *path, const char *why) {
    x->out->n_skipped++;
    if (!x->o->notice) return;
    char line[4200];
    snprintf(line, sizeof line, "%s: skipped: %s", path, why);
    x->o->notice(x->o->user, line);
}

/* A document that another time could be read. */
static void unread(indexer *x, const char *path, const char *why) {
    x->out->n_unread++;
    skip(x, path, why);
}

/* A file that cannot be opened or looked at: one that is not ours, or has just gone, is none for us. */
static void no_file(indexer *x, const char *path, int why) {
    if (why == EACCES || why == EPERM || why == ENOENT || why == ENXIO || why == ELOOP)
        skip(x, path, strerror(why));
    else unread(x, path, strerror(why));
}

/* The same by a process that can do nothing else. What it says of the document is why it has no text. */
static tern_status text_of_reader(indexer *x, const char *path, char **text, size_t *n_text, const char **why,
                                  tern_error *err) {
    char *read = NULL;
    tern_error said;
    *text = NULL;
    tern_status st = tn_reader_text(x->o->reader, path, x->max_file_bytes, &read, n_text, &said);
    if (st != TERN_OK && st != TERN_E_MEMORY) {
        snprintf(x->why, sizeof x->why, "%s", said.message);
        *why = x->why;
        /* it has no text, or it is too much; else its reader failed */
        x->out->n_unread += st != TERN_E_UNSUPPORTED && st != TERN_E_LIMIT;
        return TERN_OK;
    }
    if (st != TERN_OK) return tn_fail(err, st, "%s: %s", path, said.message);
    *text = tn_alloc(x->ctx, TN_MEM_TEXT, *n_text + 1, 1);
    if (*text) memcpy(*text, read, *n_text + 1);
    free(read);
    TN_FAIL_IF(!*text, err, TERN_E_MEMORY, "no memory for a document");
    return TERN_OK;
}

/* Reads the text of a file as people read it. *why says why it has none. */
static tern_status text_of(indexer *x, const char *path, const char *bytes, size_t n, char **text,
                           size_t *n_text, const char **why, tern_error *err) {
    if (x->o && x->o->reader) return text_of_reader(x, path, text, n_text, why, err);
    return tn_file_text_of(x->ctx, path, bytes, n, x->max_file_bytes, text, n_text, why, err);
}

/* Drops the passages of the documents that the query `which` gives. They go from the index first, which needs
 * their text for that. The query's ?1 is key, or path where that is given. */
static tern_status drop_passages(tn_store *s, const char *which, int64_t key, const char *path,
                                 tern_error *err) {
    static const char *const steps[] = {"INSERT INTO passage_fts(passage_fts, rowid, text) SELECT 'delete', "
                                        "id, tern_words(text) FROM passage WHERE document IN (%s)",
                                        "DELETE FROM passage WHERE document IN (%s)"};
    for (int i = 0; i < 2; i++) {
        char sql[400];
        sqlite3_stmt *q;
        snprintf(sql, sizeof sql, steps[i], which);
        TN_TRY(tn_store_prepare(s, sql, &q, err));
        if (path) sqlite3_bind_text(q, 1, path, -1, SQLITE_STATIC);
        else sqlite3_bind_int64(q, 1, key);
        tern_status st = run(s, q, err);
        sqlite3_finalize(q);
        TN_TRY(st);
    }
    return TERN_OK;
}

/* ---- writing the index ----------------------------------------------------------------------------- */

static tern_status end_batch(indexer *x) {
    if (!x->batch_documents) return TERN_OK;
    x->batch_documents = 0;
    x->batch_bytes = 0;
    return tn_store_commit(x->s, x->err);
}

/* The line or page that a passage begins on. Passages come in their order. */
static int64_t place_of(indexer *x, const char *text) {
    for (; x->counted < text; x->counted++) {
        x->place += *x->counted == (x->places == PAGES ? '\f' : '\n');
    }
    return x->places == PAGES ? -x->place : x->places == LINES ? x->place : 0;
}

static bool write_passage(void *user, const char *text, size_t n) {
    indexer *x = user;
    sqlite3_bind_int64(x->passage, 1, x->document);
    sqlite3_bind_int64(x->passage, 2, ++x->number);
    sqlite3_bind_text64(x->passage, 3, text, n, SQLITE_STATIC, SQLITE_UTF8);
    sqlite3_bind_int64(x->passage, 4, place_of(x, text));
    x->st = run(x->s, x->passage, x->err);
    sqlite3_bind_int64(x->words, 1, sqlite3_last_insert_rowid(x->db));
    sqlite3_bind_text64(x->words, 2, text, n, SQLITE_STATIC, SQLITE_UTF8);
    if (x->st == TERN_OK) x->st = run(x->s, x->words, x->err);
    return x->st == TERN_OK;
}

/* Finds a document. *known is its id, or 0 when it is not there. */
static tern_status find_document(indexer *x, const char *path, int64_t *known, int64_t *hash) {
    *known = *hash = 0;
    sqlite3_bind_text(x->find, 1, path, -1, SQLITE_STATIC);
    int rc = sqlite3_step(x->find);
    if (rc == SQLITE_ROW) {
        *known = sqlite3_column_int64(x->find, 0);
        *hash = sqlite3_column_int64(x->find, 1);
    }
    tern_status st =
        rc == SQLITE_ROW || rc == SQLITE_DONE ? TERN_OK : tn_store_failed(x->s, "search it", x->err);
    sqlite3_reset(x->find);
    return st;
}

/* A passage for each page that has text. */
static void write_pages(indexer *x, const char *text, size_t n) {
    for (const char *at = text, *end = text + n, *next; at < end; at = next + 1) {
        next = memchr(at, '\f', (size_t)(end - at));
        if (!next) next = end;
        if (next > at && !write_passage(x, at, (size_t)(next - at))) return;
    }
}

/* Writes the document's row with its new hash; its old passages go. */
static tern_status write_document(indexer *x, const char *path, int64_t hash, size_t n_bytes,
                                  const char *text, size_t n_text, bool by_page) {
    int64_t known, old_hash;
    if (!x->batch_documents) TN_TRY(tn_store_begin(x->s, x->err));
    x->batch_documents++;
    x->batch_bytes += n_text;
    TN_TRY(find_document(x, path, &known,
                         &old_hash)); /* again: another process may have written before this batch began */
    if (known && old_hash == hash) {
        x->out->n_unchanged++;
        return TERN_OK;
    }
    if (known) x->out->n_changed++;
    else x->out->n_added++;
    x->document = known;
    x->number = 0;
    if (known) {
        TN_TRY(drop_passages(x->s, "SELECT ?1", known, NULL, x->err));
    } else {
        sqlite3_bind_text(x->insert, 1, path, -1, SQLITE_STATIC);
        TN_TRY(run(x->s, x->insert, x->err));
        x->document = sqlite3_last_insert_rowid(x->db);
    }
    x->st = TERN_OK;
    x->counted = text;
    x->place = 1;
    if (by_page) write_pages(x, text, n_text);
    else tn_passages(text, n_text, &x->passages, write_passage, x);
    TN_TRY(x->st);
    sqlite3_bind_int64(x->update, 1, hash);
    sqlite3_bind_int64(x->update, 2, (int64_t)n_bytes);
    sqlite3_bind_int64(x->update, 3, x->number);
    sqlite3_bind_int64(x->update, 4, (int64_t)time(NULL));
    sqlite3_bind_int64(x->update, 5, x->document);
    TN_TRY(run(x->s, x->update, x->err));
    x->out->n_passages += x->number;
    return x->batch_bytes >= BATCH_BYTES || x->batch_documents >= BATCH_DOCUMENTS ? end_batch(x) : TERN_OK;
}

/* What the document shows, which takes long, so that nothing is left to be written meanwhile. An error
 * that ends the work is returned; another is in `said`. */
static tern_status look_at(indexer *x, const char *path, const char *bytes, size_t n, const char *had,
                           char **text, tern_error *said) {
    int64_t n_told = 0;
    *text = NULL;
    TN_TRY(end_batch(x));
    const tern_status st = x->o->caption(x->o->caption_user, path, bytes, n, had, text, &n_told, said);
    if (st == TERN_E_MEMORY || st == TERN_E_CANCELLED)
        return tn_fail(x->err, st, "%s: %s", path, said->message);
    said->code = st;
    if (st == TERN_OK) x->out->n_captions += n_told;
    return TERN_OK;
}

/* A document without text, by what it shows; why: it would be skipped for. */
static tern_status add_caption(indexer *x, const char *path, int64_t hash, const char *bytes, size_t n,
                               const char *why, int64_t n_unread) {
    char *text;
    tern_error said;
    TN_TRY(look_at(x, path, bytes, n, NULL, &text, &said));
    if (said.code == TERN_OK && !text) {
        x->out->n_unread += n_unread;
        skip(x, path, why);
        return TERN_OK;
    }
    if (said.code != TERN_OK || !text[strspn(text, "\f")]) {
        x->out->n_unread += said.code == TERN_E_IO;
        skip(x, path,
             said.code != TERN_OK ? said.message : "it has no text, and the model says nothing of it");
        free(text);
        return TERN_OK;
    }
    x->places = tn_is_pdf(bytes, n) ? PAGES : NO_PLACES;
    tern_status st = write_document(x, path, hash, n, text, strlen(text), true);
    free(text);
    TN_TRY(st);
    TN_TRY(end_batch(x));
    if (x->o->progress) x->o->progress(x->o->user, path, x->out->n_added + x->out->n_changed);
    return TERN_OK;
}

/* Adds what a document with text shows beside it: *text [*n_text] is replaced by another one. *told: it was
 * looked at. */
static tern_status add_shown(indexer *x, const char *path, const char *bytes, size_t n, char **text,
                             size_t *n_text, bool *told) {
    char *more, line[4400];
    tern_error said;
    if (strlen(*text) != *n_text) return TERN_OK; /* a zero within it: what stands after it would be lost */
    TN_TRY(look_at(x, path, bytes, n, *text, &more, &said));
    *told = said.code == TERN_OK;
    if (said.code != TERN_OK && x->o->notice) {
        snprintf(line, sizeof line, "%s: its pictures are left out: %s", path, said.message);
        x->o->notice(x->o->user, line);
    }
    if (!more) return TERN_OK;
    char *own = tn_strdup(x->ctx, TN_MEM_TEXT, more);
    free(more);
    TN_FAIL_IF(!own, x->err, TERN_E_MEMORY, "no memory for what %s shows", path);
    tn_free(x->ctx, *text);
    *text = own;
    *n_text = strlen(own);
    return TERN_OK;
}

static void tell_of_empty_pages(indexer *x, const char *path, const char *text, size_t n) {
    char pages[256], line[4400 + sizeof pages];
    const int64_t n_empty = tn_document_empty_pages(text, n, pages, sizeof pages);
    x->out->n_empty_pages += n_empty;
    if (!n_empty || !x->o->notice) return;
    snprintf(line, sizeof line,
             "%s: page%s %s: no text, so left out (if a picture is there: tern run MODEL FILE#%.*s TEXT)",
             path, n_empty > 1 ? "s" : "", pages, (int)strcspn(pages, " ,"), pages);
    x->o->notice(x->o->user, line);
}

static tern_status add_bytes(indexer *x, const char *path, const char *bytes, size_t n) {
    /* a document cut up in another way is another one */
    XXH64_hash_t seed = XXH64(
        &(uint64_t[]){x->passages.max_tokens, x->passages.overlap_tokens, x->passages.count != NULL}, 24, 0);
    int64_t hash = (int64_t)XXH64(bytes, n, seed), known, old_hash;
    const int64_t hash_told = hash ^ 1; /* with what it shows: then it is not looked at again */
    const bool shows = x->o->caption && (tn_is_pdf(bytes, n) || tn_doc_is_container(bytes, n));
    TN_TRY(find_document(x, path, &known, &old_hash));
    x->out->n_bytes += n;
    if (known && (old_hash == hash_told || (old_hash == hash && !shows))) {
        x->out->n_unchanged++;
        return TERN_OK;
    }
    char *text;
    size_t n_text;
    const char *why = NULL;
    const int64_t n_unread = x->out->n_unread;
    TN_TRY(text_of(x, path, bytes, n, &text, &n_text, &why, x->err));
    if (why && x->o->caption) {
        const int64_t more = x->out->n_unread - n_unread; /* unless it can be told of */
        x->out->n_unread = n_unread;
        return add_caption(x, path, hash_told, bytes, n, why, more);
    }
    if (why) {
        skip(x, path, why);
        return TERN_OK;
    }
    x->places = tn_is_pdf(bytes, n) ? PAGES : tn_document_has_lines(path, bytes, n) ? LINES : NO_PLACES;
    bool told = false;
    tern_status st = shows ? add_shown(x, path, bytes, n, &text, &n_text, &told) : TERN_OK;
    if (st == TERN_OK) st = write_document(x, path, told ? hash_told : hash, n, text, n_text, false);
    if (st == TERN_OK && x->places == PAGES) tell_of_empty_pages(x, path, text, n_text);
    tn_free(x->ctx, text);
    TN_TRY(st);
    if (x->o->progress) x->o->progress(x->o->user, path, x->out->n_added + x->out->n_changed);
    return TERN_OK;
}

static tern_status add_file(indexer *x, const char *path) {
    TN_FAIL_IF(x->cancel && atomic_load_explicit(x->cancel, memory_order_relaxed), x->err, TERN_E_CANCELLED,
               "indexing was stopped");
    int fd;
    do fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a pipe would wait for its writer */
    while (fd < 0 && errno == EINTR);
    struct stat st;
    if (fd < 0 || fstat(fd, &st)) {
        no_file(x, path, errno);
        if (fd >= 0) close(fd);
        return TERN_OK;
    }
    char *bytes = NULL;
    size_t n = 0;
    bool late;
    tern_error err = {0};
    tern_status rc = TERN_OK;
    if (!S_ISREG(st.st_mode)) {
        skip(x, path, "it is no ordinary file");
    } else if ((uint64_t)st.st_size > x->max_file_bytes) {
        skip(x, path, "it is larger than a document may be (--max-file)");
    } else if ((rc = tn_file_text_read(x->ctx, fd, x->max_file_bytes, 0, &bytes, &n, &late, &err)) ==
               TERN_OK) {
        if (n <= x->max_file_bytes) rc = add_bytes(x, path, bytes, n);
        else skip(x, path, "it is larger than a document may be (--max-file)"); /* and says that it is not */
        tn_free(x->ctx, bytes);
    } else if (rc == TERN_E_IO) {
        unread(x, path, err.message);
        rc = TERN_OK;
    } else if (x->err) {
        *x->err = err;
    }
    close(fd);
    return rc;
}

static tern_status add_folder(indexer *x, const char *folder, int depth) {
    struct dirent **entries;
    int n = scandir(folder, &entries, NULL, alphasort);
    if (n < 0) {
        no_file(x, folder, errno);
        return TERN_OK;
    }
    tern_status st = TERN_OK;
    for (int i = 0; i < n; i++) {
        const char *name = entries[i]->d_name;
        size_t cap = strlen(folder) + strlen(name) + 2;
        const bool wanted = name[0] != '.' && st == TERN_OK;
        char *path = wanted ? tn_alloc(x->ctx, TN_MEM_TEXT, cap, 1) : NULL;
        if (wanted && !path) st = tn_fail(x->err, TERN_E_MEMORY, "%s: no memory for its files", folder);
        if (path) {
            struct stat info;
            snprintf(path, cap, "%s/%s", strcmp(folder, "/") ? folder : "", name);
            if (lstat(path, &info)) no_file(x, path, errno);
            else if (S_ISDIR(info.st_mode) && depth == MAX_DEPTH)
                skip(x, path, "folders are nested too deeply");
            else if (S_ISDIR(info.st_mode)) st = add_folder(x, path, depth + 1);
            else if (S_ISREG(info.st_mode)) st = add_file(x, path);
            else /* links may lead round in circles */
                skip(x, path, S_ISLNK(info.st_mode) ? "it is a link" : "it is no ordinary file");
        }
        tn_free(x->ctx, path);
        free(entries[i]);
    }
    free(entries);
    return st;
}

/* ---- removing -------------------------------------------------------------------------------------- */

/* "/" ends in the slash that BELOW adds. */
static const char *below_key(const char *path) { return strcmp(path, "/") ? path : ""; }

/* This selects documents that are `path` or below it. The bounds keep to the index, because everything below
 * begins with "path/" and is less than "path0". */
static const char BELOW[] = "(path = ?1 OR (path >= ?1 || '/' AND path < ?1 || '0'))";

/* Removes what was indexed below the folder and is no longer there. */
static tern_status remove_vanished(indexer *x, const char *folder) {
    sqlite3_stmt *q, *del = NULL;
    bool any = false;
    char sql[160];
    snprintf(sql, sizeof sql, "SELECT id, path FROM document WHERE %s", BELOW);
    TN_TRY(tn_store_prepare(x->s, sql, &q, x->err));
    sqlite3_bind_text(q, 1, below_key(folder), -1, SQLITE_STATIC);
    tern_status st = tn_store_prepare(x->s, "DELETE FROM document WHERE id = ?", &del, x->err);
    int rc = SQLITE_DONE;
    while (st == TERN_OK && (rc = sqlite3_step(q)) == SQLITE_ROW) {
        struct stat info;
        if (!stat((const char *)sqlite3_column_text(q, 1), &info) || errno != ENOENT) continue;
        if (!x->batch_documents) st = tn_store_begin(x->s, x->err);
        if (st != TERN_OK) break;
        x->batch_documents++;
        int64_t id = sqlite3_column_int64(q, 0);
        st = drop_passages(x->s, "SELECT ?1", id, NULL, x->err);
        sqlite3_bind_int64(del, 1, id);
        if (st == TERN_OK) st = run(x->s, del, x->err);
        x->out->n_removed++;
        any = true;
    }
    if (st == TERN_OK && rc != SQLITE_DONE) st = tn_store_failed(x->s, "list its documents", x->err);
    sqlite3_finalize(q);
    sqlite3_finalize(del);
    if (st == TERN_OK && any) st = tn_store_forget(x->s, x->err);
    return st;
}

tern_status tn_rag_remove(tn_store *s, const char *path, int64_t *n, tern_error *err) {
    char which[160], sql[160],
        *real = path ? realpath(path, NULL) : NULL; /* a file that is gone is given as it was listed */
    const char *key = path ? below_key(real ? real : path) : NULL, *where = path ? BELOW : "1";
    snprintf(which, sizeof which, "SELECT id FROM document WHERE %s", where);
    snprintf(sql, sizeof sql, "DELETE FROM document WHERE %s", where);
    sqlite3_stmt *q = NULL;
    tern_status st = tn_store_begin(s, err);
    if (st == TERN_OK) st = drop_passages(s, which, 0, key, err);
    if (st == TERN_OK) st = tn_store_prepare(s, sql, &q, err);
    if (st == TERN_OK && key) sqlite3_bind_text(q, 1, key, -1, SQLITE_STATIC);
    if (st == TERN_OK) st = run(s, q, err);
    *n = sqlite3_changes64(tn_store_db(s));
    sqlite3_finalize(q);
    free(real);
    int64_t left = 1, passages;
    if (st == TERN_OK) st = tn_rag_counts(s, &left, &passages, err);
    q = NULL; /* an index forgets word by word, when it is merged; one of nothing at once */
    if (st == TERN_OK && !left)
        st = tn_store_prepare(s, "INSERT INTO passage_fts(passage_fts) VALUES('delete-all')", &q, err);
    if (q) st = run(s, q, err);
    sqlite3_finalize(q);
    q = NULL;
    if (st == TERN_OK && !left) st = tn_store_prepare(s, "DELETE FROM embedder", &q, err);
    if (q) st = run(s, q, err);
    sqlite3_finalize(q);
    q = NULL;
    if (st == TERN_OK && left && *n)
        st = tn_store_prepare(s, "INSERT INTO passage_fts(passage_fts) VALUES('optimize')", &q, err);
    if (q) st = run(s, q, err);
    sqlite3_finalize(q);
    if (st == TERN_OK && *n) st = tn_store_forget(s, err);
    if (st == TERN_OK) st = tn_store_commit(s, err);
    else tn_store_rollback(s);
    return st == TERN_OK && *n ? tn_store_shrink(s, err) : st;
}

tern_status tn_rag_id(tn_store *s, const char *path, int64_t *id, tern_error *err) {
    sqlite3_stmt *q = NULL;
    *id = 0;
    TN_TRY(tn_store_prepare(s, "SELECT id FROM document WHERE path = ?", &q, err));
    sqlite3_bind_text(q, 1, path, -1, SQLITE_STATIC);
    int rc = sqlite3_step(q);
    if (rc == SQLITE_ROW) *id = sqlite3_column_int64(q, 0);
    tern_status st = rc == SQLITE_ROW || rc == SQLITE_DONE ? TERN_OK : tn_store_failed(s, "read it", err);
    sqlite3_finalize(q);
    return st;
}

/* ---- adding ---------------------------------------------------------------------------------------- */

tern_status tn_rag_add(tn_store *s, const char *path, const tn_rag_options *opt, const atomic_bool *cancel,
                       tn_rag_added *out, tern_error *err) {
    static const tn_rag_options defaults;
    indexer x = {.s = s,
                 .ctx = tn_store_ctx(s),
                 .db = tn_store_db(s),
                 .o = opt ? opt : &defaults,
                 .cancel = cancel,
                 .out = out,
                 .err = err};
    x.passages = x.o->passages;
    if (!x.passages.max_tokens) {
        x.passages.max_tokens = TN_RAG_PASSAGE_TOKENS;
        x.passages.overlap_tokens = TN_RAG_OVERLAP_TOKENS;
    }
    TN_FAIL_IF(x.passages.overlap_tokens >= x.passages.max_tokens, err, TERN_E_INVALID,
               "passages of %zu tokens that overlap by %zu", x.passages.max_tokens,
               x.passages.overlap_tokens);
    x.max_file_bytes = x.o->max_file_bytes ? x.o->max_file_bytes : MAX_FILE_BYTES;
    char *real = realpath(path, NULL);
    TN_FAIL_IF(!real, err, TERN_E_IO, "%s: cannot read: %s", path, strerror(errno));
    struct stat info;
    tern_status st = tn_store_prepare(s, "SELECT id, hash FROM document WHERE path = ?", &x.find, err);
    if (st == TERN_OK)
        st = tn_store_prepare(
            s, "INSERT INTO document(path, hash, n_bytes, n_passages, added) VALUES(?, 0, 0, 0, 0)",
            &x.insert, err);
    if (st == TERN_OK)
        st = tn_store_prepare(
            s, "UPDATE document SET hash = ?, n_bytes = ?, n_passages = ?, added = ? WHERE id = ?", &x.update,
            err);
    if (st == TERN_OK)
        st = tn_store_prepare(s,
                              "INSERT INTO passage(document, number, text, place) VALUES(?, ?, replace(?, "
                              "char(12), char(10)), ?)",
                              &x.passage, err);
    if (st == TERN_OK)
        st = tn_store_prepare(s, "INSERT INTO passage_fts(rowid, text) VALUES(?, tern_words(?))", &x.words,
                              err);
    if (st == TERN_OK && stat(real, &info))
        st = tn_fail(err, TERN_E_IO, "%s: cannot read: %s", path, strerror(errno));
    bool folder = st == TERN_OK && S_ISDIR(info.st_mode);
    if (st == TERN_OK) st = folder ? add_folder(&x, real, 0) : add_file(&x, real);
    if (st == TERN_OK && folder) st = remove_vanished(&x, real);
    if (st == TERN_OK) {
        st = end_batch(&x);
        if (st == TERN_OK && out->n_removed) st = tn_store_shrink(s, err);
    } else if (st == TERN_E_CANCELLED) { /* whole documents are done: keep them */
        tern_error kept;
        x.err = &kept;
        end_batch(&x);
    } else {
        tn_store_rollback(s);
    }
    sqlite3_stmt *all[] = {x.find, x.insert, x.update, x.passage, x.words};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) sqlite3_finalize(all[i]);
    free(real);
    return st;
}

/* ---- listing --------------------------------------------------------------------------------------- */

tern_status tn_rag_list(tn_store *s, bool (*fn)(void *, const tn_rag_document *), void *user,
                        tern_error *err) {
    sqlite3_stmt *q;
    TN_TRY(
        tn_store_prepare(s, "SELECT path, n_passages, n_bytes, added FROM document ORDER BY path", &q, err));
    int rc;
    while ((rc = sqlite3_step(q)) == SQLITE_ROW) {
        const char *path = (const char *)sqlite3_column_text(q, 0);
        const tn_rag_document d = {path ? path : "", sqlite3_column_int64(q, 1), sqlite3_column_int64(q, 2),
                                   sqlite3_column_int64(q, 3)};
        if (!fn(user, &d)) break;
    }
    tern_status st = rc == SQLITE_ROW || rc == SQLITE_DONE ? TERN_OK : tn_store_failed(s, "list it", err);
    sqlite3_finalize(q);
    return st;
}

tern_status tn_rag_counts(tn_store *s, int64_t *n_documents, int64_t *n_passages, tern_error *err) {
    TN_TRY(tn_store_number(s, "SELECT count(*) FROM document", n_documents, err));
    return tn_store_number(s, "SELECT coalesce(sum(n_passages), 0) FROM document", n_passages, err);
}

tern_status tn_rag_text(tn_store *s, const char *path, size_t max_bytes, char **out, size_t *n,
                        tern_error *err) {
    sqlite3_stmt *q;
    *n = 0;
    *out = tn_alloc(tn_store_ctx(s), TN_MEM_TEXT, max_bytes + 1, 1);
    TN_FAIL_IF(!*out, err, TERN_E_MEMORY, "no memory for a document's text");
    tern_status st = tn_store_prepare(
        s,
        "SELECT text FROM passage WHERE document = (SELECT id FROM document WHERE path = ?) ORDER BY number",
        &q, err);
    if (st == TERN_OK) {
        sqlite3_bind_text(q, 1, path, -1, SQLITE_STATIC);
        int rc;
        while ((rc = sqlite3_step(q)) == SQLITE_ROW) {
            const void *text = sqlite3_column_blob(q, 0);
            size_t len = (size_t)sqlite3_column_bytes(q, 0);
            if (!text || len + 1 > max_bytes - *n) break; /* whole passages */
            memcpy(*out + *n, text, len);
            *n += len;
            (*out)[(*n)++] = '\n';
        }
        if (rc != SQLITE_ROW && rc != SQLITE_DONE) st = tn_store_failed(s, "read it", err);
        sqlite3_finalize(q);
    }
    (*out)[*n] = 0;
    if (st == TERN_OK) return st;
    tn_free(tn_store_ctx(s), *out);
    *out = NULL;
    return st;
}
