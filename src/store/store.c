#include "store/store.h"
#include "store/words.h"

#include "base/file.h"
#include "base/status.h"
#include "libraries/library.h"

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

#define APPLICATION_ID "1952805486" /* 0x7465726e: "tern" */

enum { BUSY_MS = 10000 };
static const uint64_t CAP_BYTES = 64u << 20;

/* Each brings a file from version i to i + 1. They are never changed once released. */
static const char *const migrations[TN_STORE_VERSION] = {
    ("CREATE TABLE vocab(id INTEGER PRIMARY KEY, fingerprint INTEGER NOT NULL UNIQUE, n_vocab INTEGER NOT "
     "NULL);"
     "CREATE TABLE sequence(id INTEGER PRIMARY KEY AUTOINCREMENT, vocab INTEGER NOT NULL REFERENCES "
     "vocab(id), kind INTEGER NOT NULL,"
     " hash INTEGER NOT NULL, n_prompt INTEGER NOT NULL, n_bytes INTEGER NOT NULL, used INTEGER NOT NULL, "
     "created INTEGER NOT NULL, tokens BLOB NOT NULL);"
     "CREATE UNIQUE INDEX sequence_hash ON sequence(vocab, hash);"
     "CREATE INDEX sequence_used ON sequence(used, n_bytes);"),
    ("CREATE TABLE document(id INTEGER PRIMARY KEY, path TEXT NOT NULL UNIQUE, hash INTEGER NOT NULL, "
     "n_bytes INTEGER NOT NULL,"
     " n_passages INTEGER NOT NULL, added INTEGER NOT NULL);"
     "CREATE TABLE passage(id INTEGER PRIMARY KEY, document INTEGER NOT NULL REFERENCES document(id), number "
     "INTEGER NOT NULL, text TEXT NOT NULL);"
     "CREATE INDEX passage_document ON passage(document);"
     "CREATE VIRTUAL TABLE passage_fts USING fts5(text, content='passage', content_rowid='id', "
     "tokenize='porter unicode61 remove_diacritics 2');"), /* kept in step by documents/rag.c: triggers would
                                                              need a trusted schema */
    ("CREATE TABLE recalled(id INTEGER PRIMARY KEY, vocab INTEGER NOT NULL REFERENCES vocab(id), model "
     "INTEGER NOT NULL, used INTEGER NOT NULL, data BLOB NOT NULL,"
     " UNIQUE(vocab, model))"),
    /* document 0: it is unknown which documents the sequence quotes */
    ("CREATE TABLE quote(document INTEGER NOT NULL, sequence INTEGER NOT NULL, PRIMARY KEY(document, "
     "sequence)) "
     "WITHOUT ROWID;"
     "INSERT INTO quote(document, sequence) SELECT 0, id FROM sequence"),
    ("CREATE TABLE embedder(id INTEGER PRIMARY KEY CHECK(id = 1), model TEXT NOT NULL, fingerprint INTEGER "
     "NOT "
     "NULL, n INTEGER NOT NULL, mean INTEGER NOT NULL);"
     "CREATE TABLE vector(passage INTEGER PRIMARY KEY REFERENCES passage(id) ON DELETE CASCADE, data BLOB "
     "NOT "
     "NULL)"),
    /* place: the line of a passage in its document; negative: the page; 0: unknown. Scripts without
     * spaces are indexed in pieces (words.h) */
    ("ALTER TABLE passage ADD COLUMN place INTEGER NOT NULL DEFAULT 0;"
     "INSERT INTO passage_fts(passage_fts, rowid, text) SELECT 'delete', id, text FROM passage WHERE "
     "tern_words(text) <> text;"
     "INSERT INTO passage_fts(rowid, text) SELECT id, tern_words(text) FROM passage WHERE tern_words(text) "
     "<> "
     "text"),
};

struct tn_store {
    tn_ctx *ctx;
    sqlite3 *db;
    char *path;
    uint64_t cap_bytes;
    int64_t vocab; /* row id; 0: none chosen */
    int32_t n_vocab;
    int64_t n_skipped, n_evicted;
    int64_t *quoted; /* documents quoted by the sequences that are put now */
    size_t n_quoted;
    bool read_only;
};

/* ---- SQLite ---------------------------------------------------------------------------------------- */

tern_status tn_store_failed(tn_store *s, const char *what, tern_error *err) {
    tern_status st = TERN_E_IO;
    switch (sqlite3_errcode(s->db) & 0xff) {
    case SQLITE_NOTADB:
    case SQLITE_CORRUPT: st = TERN_E_FORMAT; break;
    case SQLITE_NOMEM: st = TERN_E_MEMORY; break;
    case SQLITE_FULL:
    case SQLITE_TOOBIG: st = TERN_E_LIMIT; break;
    default: break;
    }
    /* SQLite reports a full disk as an I/O error if its shared memory has no room */
    bool full = (sqlite3_errcode(s->db) & 0xff) == SQLITE_IOERR &&
                (sqlite3_system_errno(s->db) == ENOSPC || sqlite3_system_errno(s->db) == EDQUOT);
    return tn_fail(err, st, "%s: cannot %s: %s", s->path, what,
                   full ? strerror(ENOSPC) : sqlite3_errmsg(s->db));
}

tern_status tn_store_run(tn_store *s, const char *sql, const char *what, tern_error *err) {
    return sqlite3_exec(s->db, sql, NULL, NULL, NULL) == SQLITE_OK ? TERN_OK : tn_store_failed(s, what, err);
}

tern_status tn_store_prepare(tn_store *s, const char *sql, sqlite3_stmt **out, tern_error *err) {
    return sqlite3_prepare_v2(s->db, sql, -1, out, NULL) == SQLITE_OK ? TERN_OK
                                                                      : tn_store_failed(s, "read it", err);
}

/* Reads one integer; args are bound in order. */
static tern_status get_int(tn_store *s, const char *sql, const int64_t *args, int n_args, int64_t *out,
                           bool *found, tern_error *err) {
    sqlite3_stmt *q;
    TN_TRY(tn_store_prepare(s, sql, &q, err));
    for (int i = 0; i < n_args; i++) sqlite3_bind_int64(q, i + 1, args[i]);
    int rc = sqlite3_step(q);
    bool has = rc == SQLITE_ROW;
    if (has) *out = sqlite3_column_int64(q, 0);
    if (found) *found = has;
    tern_status st = has || rc == SQLITE_DONE ? TERN_OK : tn_store_failed(s, "read it", err);
    sqlite3_finalize(q);
    return st;
}

tern_status tn_store_number(tn_store *s, const char *sql, int64_t *out, tern_error *err) {
    return get_int(s, sql, NULL, 0, out, NULL, err);
}

tern_status tn_store_begin(tn_store *s, tern_error *err) {
    return tn_store_run(s, "BEGIN IMMEDIATE", "write to it", err);
}

tern_status tn_store_commit(tn_store *s, tern_error *err) {
    tern_status st = tn_store_run(s, "COMMIT", "write to it", err);
    if (st != TERN_OK) tn_store_rollback(s);
    return st;
}

void tn_store_rollback(tn_store *s) {
    if (!sqlite3_get_autocommit(s->db)) sqlite3_exec(s->db, "ROLLBACK", NULL, NULL, NULL);
}

sqlite3 *tn_store_db(tn_store *s) { return s->db; }
tn_ctx *tn_store_ctx(tn_store *s) { return s->ctx; }
const char *tn_store_path(const tn_store *s) { return s->path; }

/* tern_words(text) in SQL: the form of a passage for FTS5. */
static void words_of(sqlite3_context *c, int n_args, sqlite3_value **args) {
    (void)n_args;
    const char *text = (const char *)sqlite3_value_text(args[0]);
    size_t n = 0;
    char *out = tn_words_spread(text ? text : "", (size_t)sqlite3_value_bytes(args[0]), TN_WORDS_INDEX, &n);
    if (out) sqlite3_result_text64(c, out, n, free, SQLITE_UTF8);
    else sqlite3_result_error_nomem(c);
}

/* ---- open ------------------------------------------------------------------------------------------ */

tern_status tn_store_default_path(tn_ctx *ctx, char **out, tern_error *err) {
    const char *data = getenv("XDG_DATA_HOME"), *home = getenv("HOME"), *middle = "";
    if (!data || !tn_file_is_absolute(data)) { /* the specification: relative paths are ignored */
        data = home;
        middle = "/.local/share";
    }
    *out = NULL;
    TN_FAIL_IF(!data || !*data, err, TERN_E_IO,
               "no place for a store: neither XDG_DATA_HOME nor HOME is set");
    size_t cap = strlen(data) + strlen(middle) + sizeof "/tern/store.db";
    *out = tn_alloc(ctx, TN_MEM_OTHER, cap, 1);
    TN_FAIL_IF(!*out, err, TERN_E_MEMORY, "no memory for a path");
    snprintf(*out, cap, "%s%s/tern/store.db", data, middle);
    return TERN_OK;
}

/* Makes the folders above path. The store holds conversations, so its own folder is private. */
static tern_status make_folders(tn_ctx *ctx, const char *path, tern_error *err) {
    char *copy = tn_strdup(ctx, TN_MEM_OTHER, path);
    TN_FAIL_IF(!copy, err, TERN_E_MEMORY, "no memory for a path");
    tern_status st = tn_file_make_parents(copy, err);
    tn_free(ctx, copy);
    return st;
}

/* Makes the folder private that tern itself made for stores. One that the user chose stays as it is. */
static void narrow_default_folder(tn_ctx *ctx, const char *path) {
    struct stat sb;
    char *folder;
    if (tn_store_default_path(ctx, &folder, NULL) == TERN_OK && !strcmp(folder, path)) {
        *strrchr(folder, '/') = 0;
        if (!stat(folder, &sb) && sb.st_mode & 077 && !chmod(folder, 0700))
            tn_log(ctx, TERN_LOG_WARN, "%s: others could look into it (mode %o); it is yours alone now",
                   folder, (unsigned)(sb.st_mode & 0777));
    }
    tn_free(ctx, folder);
}

/* A new file is private from the start. An existing one is not opened, because closing it would release
 * the locks that this process holds on it through SQLite. */
static void create_private(tn_ctx *ctx, const char *path) {
    narrow_default_folder(ctx, path);
    int fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd >= 0) close(fd);
}

/* The store's file is private, and so are SQLite's files beside it, which take its mode. */
static tern_status make_private(tn_ctx *ctx, const char *path, tern_error *err) {
    static const char *const ends[] = {"", "-wal", "-shm"};
    struct stat sb;
    bool told = false;
    for (int i = 0; i < 3; i++) {
        char name[4096];
        TN_FAIL_IF((size_t)snprintf(name, sizeof name, "%s%s", path, ends[i]) >= sizeof name, err,
                   TERN_E_INVALID, "%s: path too long", path);
        if (stat(name, &sb)) continue; /* SQLite reports what is wrong with a path */
        TN_FAIL_IF(!S_ISREG(sb.st_mode), err, TERN_E_IO, "%s: not a regular file", name);
        if (!(sb.st_mode & 077) || chmod(name, 0600)) continue;
        if (!told) /* of the three, once */
            tn_log(ctx, TERN_LOG_WARN, "%s: others could read what was said (mode %o); it is yours alone now",
                   name, (unsigned)(sb.st_mode & 0777));
        told = true;
    }
    return TERN_OK;
}

/* Refuses anything else in the file: it has no rows of its own to read, and a view could be endless. Views
 * and virtual tables have no root page. */
static tern_status check_schema(tn_store *s, tern_error *err) {
    int64_t n = 0;
    TN_TRY(get_int(
        s,
        "SELECT count(*) FROM sqlite_master WHERE type NOT IN ('table', 'index') OR ((rootpage IS NULL OR "
        "rootpage = 0) AND NOT (name = 'passage_fts' AND sql = "
        "'CREATE VIRTUAL TABLE passage_fts USING fts5(text, content=''passage'', content_rowid=''id'', "
        "tokenize=''porter unicode61 remove_diacritics 2'')'))",
        NULL, 0, &n, NULL, err));
    TN_FAIL_IF(n, err, TERN_E_FORMAT, "%s: has views, triggers or tables that a store has not", s->path);
    return TERN_OK;
}

/* An empty file becomes a store, and an older store is brought up to date. Each step is one transaction with
 * its version. */
static tern_status migrate(tn_store *s, tern_error *err) {
    int64_t version = 0;
    TN_TRY(get_int(s, "PRAGMA user_version", NULL, 0, &version, NULL, err));
    TN_FAIL_IF(version > TN_STORE_VERSION, err, TERN_E_UNSUPPORTED,
               "%s: written by a newer tern (version %" PRId64 " of the store, this one knows up to %d)",
               s->path, version, TN_STORE_VERSION);
    TN_FAIL_IF(version < 0, err, TERN_E_FORMAT, "%s: version %" PRId64 " of the store", s->path, version);
    TN_FAIL_IF(s->read_only && version != TN_STORE_VERSION, err, TERN_E_UNSUPPORTED,
               "%s: version %" PRId64 " of the store; open it for writing once to bring it to %d", s->path,
               version, TN_STORE_VERSION);
    TN_TRY(check_schema(s, err));
    if (version == TN_STORE_VERSION) return TERN_OK;
    TN_TRY(tn_store_begin(s, err));
    /* another process may have done it while this one waited */
    tern_status st = get_int(s, "PRAGMA user_version", NULL, 0, &version, NULL, err);
    if (st == TERN_OK) st = tn_store_run(s, "PRAGMA application_id = " APPLICATION_ID, "mark it", err);
    for (; version < TN_STORE_VERSION && st == TERN_OK; version++)
        st = tn_store_run(s, migrations[version], "set it up", err);
    char sql[64];
    snprintf(sql, sizeof sql, "PRAGMA user_version = %d", TN_STORE_VERSION);
    if (st == TERN_OK && version == TN_STORE_VERSION) st = tn_store_run(s, sql, "mark it", err);
    if (st == TERN_OK) return tn_store_commit(s, err);
    tn_store_rollback(s);
    return st;
}

static int see_stranger(void *user, int n, char **values, char **names) {
    (void)n, (void)names;
    if (!values[0]) return 1; /* without memory the pragma has no value, and SQLite calls that a success */
    *(bool *)user = strcmp(values[0], "0") != 0;
    return 0;
}

/* Two processes may make the file at once. SQLite reports "busy" to one of them without waiting, so this
 * waits. */
static tern_status patiently(tn_store *s, const char *sql, bool *stranger, int32_t busy_ms, tern_error *err) {
    for (int32_t waited = 0;; waited += 10) {
        int rc = sqlite3_exec(s->db, sql, stranger ? see_stranger : NULL, stranger, NULL);
        if (rc == SQLITE_OK) return TERN_OK;
        TN_FAIL_IF(rc == SQLITE_ABORT, err, TERN_E_MEMORY, "%s: no memory to open it", s->path);
        if ((rc & 0xff) != SQLITE_BUSY || waited >= busy_ms) return tn_store_failed(s, "open it", err);
        nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
    }
}

/* Refuses another program's file before changing anything in it. One statement, so that the changes of
 * another process to an empty file are seen completely or not at all. */
static tern_status check_owner(tn_store *s, int32_t busy_ms, tern_error *err) {
    bool stranger = false;
    TN_TRY(patiently(s,
                     "SELECT application_id != " APPLICATION_ID
                     " AND ((SELECT count(*) FROM sqlite_master) OR "
                     "(SELECT user_version FROM pragma_user_version)) FROM pragma_application_id",
                     &stranger, busy_ms, err));
    TN_FAIL_IF(stranger, err, TERN_E_FORMAT, "%s: a database, but not a store of tern's; give another file",
               s->path);
    return TERN_OK;
}

tern_status tn_store_open(tn_ctx *ctx, const char *path, const tn_store_options *opt, tn_store **out,
                          tern_error *err) {
    static const tn_store_options defaults;
    if (!opt) opt = &defaults;
    *out = NULL;
    TN_FAIL_IF(!path || !*path, err, TERN_E_INVALID, "no path for the store");
    TN_TRY(tn_library_need(TN_LIBRARY_SQLITE, err));
    tn_store *s = tn_calloc(ctx, TN_MEM_OTHER, 1, sizeof *s);
    TN_FAIL_IF(!s, err, TERN_E_MEMORY, "no memory for a store");
    s->ctx = ctx;
    s->read_only = opt->read_only;
    s->cap_bytes = opt->cap_bytes ? opt->cap_bytes : CAP_BYTES;
    s->path = tn_strdup(ctx, TN_MEM_OTHER, path);
    struct stat sb;
    tern_status st = TERN_OK;
    TN_BAIL_IF(!s->path, err, TERN_E_MEMORY, "no memory for a store");
    if (!opt->read_only && (st = make_folders(ctx, path, err)) != TERN_OK) goto out;
    if (!opt->read_only) create_private(ctx, path);
    if (!stat(path, &sb) && !S_ISREG(sb.st_mode)) { /* SQLite reports other problems with a path */
        st = tn_fail(err, TERN_E_IO, "%s: not a regular file", path);
        goto out;
    }
    int flags = opt->read_only ? SQLITE_OPEN_READONLY : SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE;
    if (sqlite3_open_v2(path, &s->db, flags, NULL) != SQLITE_OK) {
        st =
            s->db ? tn_store_failed(s, "open it", err) : tn_fail(err, TERN_E_MEMORY, "no memory for a store");
        goto out;
    }
    int32_t busy_ms = opt->busy_ms > 0 ? opt->busy_ms : BUSY_MS;
    sqlite3_busy_timeout(s->db, busy_ms);
    sqlite3_extended_result_codes(s->db, 1);
    if (sqlite3_create_function(s->db, "tern_words", 1,
                                SQLITE_UTF8 | SQLITE_DETERMINISTIC | SQLITE_DIRECTONLY, NULL, words_of, NULL,
                                NULL) != SQLITE_OK) {
        st = tn_store_failed(s, "open it", err);
        goto out;
    }
    /* foreign files may hold views and triggers, which get no rights */
    sqlite3_db_config(s->db, SQLITE_DBCONFIG_TRUSTED_SCHEMA, 0, NULL);
    sqlite3_db_config(s->db, SQLITE_DBCONFIG_DEFENSIVE, 1, NULL);
    if ((st = check_owner(s, busy_ms, err)) != TERN_OK) goto out;
    if ((st = make_private(ctx, path, err)) != TERN_OK) goto out;
    /* auto_vacuum only takes in an empty file; FULL: a commit is on the disk, not only in the WAL's buffers
     */
    if (!opt->read_only)
        st = patiently(s, "PRAGMA auto_vacuum = INCREMENTAL; PRAGMA journal_mode = WAL", NULL, busy_ms, err);
    if (st == TERN_OK)
        st = tn_store_run(s,
                          "PRAGMA synchronous = FULL; PRAGMA foreign_keys = ON; PRAGMA cell_size_check = ON;"
                          "PRAGMA secure_delete = ON",
                          "open it", err);
    if (st == TERN_OK) st = migrate(s, err);
    if (st == TERN_OK) *out = s;
out:
    if (st != TERN_OK) tn_store_close(&s);
    return st;
}

void tn_store_close(tn_store **ps) {
    tn_store *s = *ps;
    if (!s) return;
    *ps = NULL;
    sqlite3_close(s->db);
    tn_free(s->ctx, s->quoted);
    tn_free(s->ctx, s->path);
    tn_free(s->ctx, s);
}

/* ---- vocabulary ------------------------------------------------------------------------------------ */

tern_status tn_store_vocab(tn_store *s, uint64_t fingerprint, int32_t n_vocab, tern_error *err) {
    TN_FAIL_IF(n_vocab < 1, err, TERN_E_INVALID, "a vocabulary of %d tokens", n_vocab);
    int64_t key = (int64_t)fingerprint, id = 0, known = n_vocab;
    bool found;
    TN_TRY(get_int(s, "SELECT id FROM vocab WHERE fingerprint = ?", &key, 1, &id, &found, err));
    if (found) {
        TN_TRY(get_int(s, "SELECT n_vocab FROM vocab WHERE id = ?", &id, 1, &known, NULL, err));
        TN_FAIL_IF(known != n_vocab, err, TERN_E_FORMAT,
                   "%s: this vocabulary has %d tokens, the store says %" PRId64, s->path, n_vocab, known);
    } else if (!s->read_only) {
        int64_t args[] = {key, n_vocab};
        int64_t none;
        TN_TRY(get_int(s, "INSERT OR IGNORE INTO vocab(fingerprint, n_vocab) VALUES(?, ?)", args, 2, &none,
                       NULL, err));
        TN_TRY(get_int(s, "SELECT id FROM vocab WHERE fingerprint = ?", &key, 1, &id, NULL, err));
    }
    s->vocab = id;
    s->n_vocab = n_vocab;
    return TERN_OK;
}

/* ---- sequences ------------------------------------------------------------------------------------- */

/* Removes the least recently used sequences until all others fit, and never the newest. */
static tern_status evict(tn_store *s, tern_error *err) {
    int64_t total = 0, oldest, none;
    TN_TRY(get_int(s, "SELECT total(n_bytes) FROM sequence", NULL, 0, &total, NULL, err));
    bool any = false;
    while ((uint64_t)total > s->cap_bytes) {
        bool found;
        int64_t n_bytes;
        TN_TRY(get_int(
            s, "SELECT id FROM sequence WHERE used < (SELECT max(used) FROM sequence) ORDER BY used LIMIT 1",
            NULL, 0, &oldest, &found, err));
        if (!found) break;
        TN_TRY(get_int(s, "SELECT n_bytes FROM sequence WHERE id = ?", &oldest, 1, &n_bytes, NULL, err));
        TN_TRY(get_int(s, "DELETE FROM sequence WHERE id = ?", &oldest, 1, &none, NULL, err));
        total -= n_bytes;
        s->n_evicted++;
        any = true;
    }
    return any ? tn_store_run(s, "PRAGMA incremental_vacuum(64)", "shrink it", err) : TERN_OK;
}

tern_status tn_store_shrink(tn_store *s, tern_error *err) {
    TN_TRY(tn_store_run(s, "PRAGMA incremental_vacuum", "shrink it", err));
    int64_t busy = 0;
    TN_TRY(get_int(s, "PRAGMA wal_checkpoint(TRUNCATE)", NULL, 0, &busy, NULL, err));
    if (busy)
        tn_log(s->ctx, TERN_LOG_WARN,
               "%s-wal: another process reads the store; what was removed leaves this file when it has ended",
               s->path);
    return TERN_OK;
}

/* ---- quotes ---------------------------------------------------------------------------------------- */

tern_status tn_store_quoting(tn_store *s, const int64_t *documents, size_t n, tern_error *err) {
    int64_t *copy = n ? tn_alloc(s->ctx, TN_MEM_OTHER, n, sizeof *copy) : NULL;
    TN_FAIL_IF(n && !copy, err, TERN_E_MEMORY, "no memory for %zu documents", n);
    if (n) memcpy(copy, documents, n * sizeof *copy);
    tn_free(s->ctx, s->quoted);
    s->quoted = copy;
    s->n_quoted = n;
    return TERN_OK;
}

tern_status tn_store_forget(tn_store *s, tern_error *err) {
    TN_TRY(tn_store_run(s,
                        "DELETE FROM sequence WHERE id IN (SELECT sequence FROM quote WHERE document NOT IN "
                        "(SELECT id FROM document))",
                        "forget", err));
    return tn_store_run(s,
                        "DELETE FROM quote WHERE sequence NOT IN (SELECT id FROM sequence);"
                        "DELETE FROM recalled",
                        "forget", err);
}

tern_status tn_store_erase(tn_store *s, int64_t id, int64_t *n, tern_error *err) {
    int64_t none;
    TN_TRY(tn_store_begin(s, err));
    tern_status st = id ? get_int(s, "DELETE FROM sequence WHERE id = ?", &id, 1, &none, NULL, err)
                        : tn_store_run(s, "DELETE FROM sequence", "forget", err);
    *n = sqlite3_changes64(s->db);
    if (st == TERN_OK)
        st = tn_store_run(
            s, "DELETE FROM quote WHERE sequence NOT IN (SELECT id FROM sequence); DELETE FROM recalled",
            "forget", err);
    if (st == TERN_OK && !id && !s->vocab) st = tn_store_run(s, "DELETE FROM vocab", "forget", err);
    if (st == TERN_OK) st = tn_store_commit(s, err);
    else tn_store_rollback(s);
    return st == TERN_OK ? tn_store_shrink(s, err) : st;
}

tern_status tn_store_list(tn_store *s, bool (*fn)(void *, const tn_store_sequence *), void *user,
                          tern_error *err) {
    sqlite3_stmt *q;
    int rc;
    TN_TRY(
        tn_store_prepare(s, "SELECT id, n_bytes, created, kind FROM sequence ORDER BY used DESC", &q, err));
    while ((rc = sqlite3_step(q)) == SQLITE_ROW) {
        const tn_store_sequence one = {.id = sqlite3_column_int64(q, 0),
                                       .n_tokens = sqlite3_column_int64(q, 1) / (int64_t)sizeof(int32_t),
                                       .created = sqlite3_column_int64(q, 2),
                                       .kind =
                                           sqlite3_column_int(q, 3) ? TN_SEQUENCE_CORPUS : TN_SEQUENCE_CHAT};
        if (!fn(user, &one)) break;
    }
    tern_status st = rc == SQLITE_ROW || rc == SQLITE_DONE ? TERN_OK : tn_store_failed(s, "read it", err);
    sqlite3_finalize(q);
    return st;
}

static tern_status write_quotes(tn_store *s, int64_t sequence, tern_error *err) {
    for (size_t i = 0; i < s->n_quoted; i++) {
        int64_t args[] = {s->quoted[i], sequence}, none;
        TN_TRY(get_int(s, "INSERT OR IGNORE INTO quote(document, sequence) VALUES(?, ?)", args, 2, &none,
                       NULL, err));
    }
    return TERN_OK;
}

static tern_status write_sequence(tn_store *s, tn_sequence_kind kind, const int32_t *ids, size_t n,
                                  size_t n_prompt, int64_t *id, tern_error *err) {
    int64_t hash = (int64_t)XXH64(ids, n * sizeof *ids, (uint64_t)kind), same = 0, used = 0, none;
    int64_t key[] = {s->vocab, hash};
    bool found;
    TN_TRY(get_int(s, "SELECT coalesce(max(used), 0) + 1 FROM sequence", NULL, 0, &used, NULL, err));
    TN_TRY(get_int(s, "SELECT id FROM sequence WHERE vocab = ? AND hash = ?", key, 2, &same, &found, err));
    if (found) {
        int64_t args[] = {used, same};
        TN_TRY(get_int(s, "UPDATE sequence SET used = ? WHERE id = ?", args, 2, &none, NULL, err));
        /* the conversation has become equal to a stored one, so its earlier version is redundant */
        if (*id && *id != same)
            TN_TRY(get_int(s, "DELETE FROM sequence WHERE id = ?", id, 1, &none, NULL, err));
        *id = same;
        return TERN_OK;
    }
    sqlite3_stmt *q;
    /* a version that was evicted meanwhile, or that another process deleted, comes back under its own id */
    TN_TRY(tn_store_prepare(
        s,
        "INSERT INTO sequence(id, vocab, kind, hash, n_prompt, n_bytes, used, created, tokens) VALUES(?1, "
        "?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)"
        " ON CONFLICT(id) DO UPDATE SET hash = ?4, n_prompt = ?5, n_bytes = ?6, used = ?7, tokens = ?9",
        &q, err));
    if (*id) sqlite3_bind_int64(q, 1, *id);
    sqlite3_bind_int64(q, 2, s->vocab);
    sqlite3_bind_int(q, 3, (int)kind);
    sqlite3_bind_int64(q, 4, hash);
    sqlite3_bind_int64(q, 5, (int64_t)n_prompt);
    sqlite3_bind_int64(q, 6, (int64_t)(n * sizeof *ids));
    sqlite3_bind_int64(q, 7, used);
    sqlite3_bind_int64(q, 8, (int64_t)time(NULL));
    sqlite3_bind_blob64(q, 9, ids, n * sizeof *ids, SQLITE_STATIC);
    tern_status st = sqlite3_step(q) == SQLITE_DONE ? TERN_OK : tn_store_failed(s, "write to it", err);
    sqlite3_finalize(q);
    if (st == TERN_OK && !*id) *id = sqlite3_last_insert_rowid(s->db);
    return st;
}

tern_status tn_store_put(tn_store *s, tn_sequence_kind kind, const int32_t *ids, size_t n, size_t n_prompt,
                         int64_t *id, tern_error *err) {
    TN_FAIL_IF(!s->vocab, err, TERN_E_INVALID, "the store has no vocabulary yet");
    TN_FAIL_IF(!n || n_prompt > n, err, TERN_E_INVALID, "a sequence of %zu tokens with a prompt of %zu", n,
               n_prompt);
    for (size_t i = 0; i < n; i++)
        TN_FAIL_IF(ids[i] < 0 || ids[i] >= s->n_vocab, err, TERN_E_INVALID,
                   "token %d is outside the vocabulary of %d", ids[i], s->n_vocab);
    if (n > TN_STORE_MAX_SEQUENCE) {
        size_t cut = n - TN_STORE_MAX_SEQUENCE;
        ids += cut;
        n -= cut;
        n_prompt = n_prompt > cut ? n_prompt - cut : 0;
    }
    int64_t new_id = *id;
    TN_TRY(tn_store_begin(s, err));
    tern_status st = write_sequence(s, kind, ids, n, n_prompt, &new_id, err);
    if (st == TERN_OK) st = write_quotes(s, new_id, err);
    if (st == TERN_OK) st = evict(s, err);
    if (st != TERN_OK) {
        tn_store_rollback(s);
        return st;
    }
    TN_TRY(tn_store_commit(s, err));
    *id = new_id;
    return TERN_OK;
}

/* Loads a sequence's tokens into an aligned buffer. Returns 0 for a damaged one. */
static size_t load_tokens(tn_store *s, sqlite3_stmt *q, int32_t **buf, size_t *cap, tern_status *st,
                          tern_error *err) {
    size_t n_bytes = (size_t)sqlite3_column_bytes(q, 1), n = n_bytes / sizeof **buf;
    const void *blob = sqlite3_column_blob(q, 1);
    if (!blob || !n || n_bytes % sizeof **buf) return 0;
    if (n > *cap) {
        int32_t *more = tn_realloc(s->ctx, TN_MEM_OTHER, *buf, n, sizeof *more);
        if (!more) {
            *st = tn_fail(err, TERN_E_MEMORY, "no memory for a stored sequence of %zu tokens", n);
            return 0;
        }
        *buf = more;
        *cap = n;
    }
    memcpy(*buf, blob, n_bytes);
    for (size_t i = 0; i < n; i++) {
        if ((*buf)[i] < 0 || (*buf)[i] >= s->n_vocab) return 0;
    }
    return n;
}

tern_status tn_store_each(tn_store *s, size_t max_tokens,
                          bool (*fn)(void *, tn_sequence_kind, const int32_t *, size_t), void *user,
                          tern_error *err) {
    sqlite3_stmt *q;
    TN_TRY(
        tn_store_prepare(s, "SELECT kind, tokens FROM sequence WHERE vocab = ? ORDER BY used DESC", &q, err));
    sqlite3_bind_int64(q, 1, s->vocab);
    int32_t *buf = NULL;
    size_t cap = 0;
    tern_status st = TERN_OK;
    int rc;
    while (max_tokens && (rc = sqlite3_step(q)) != SQLITE_DONE) {
        if (rc != SQLITE_ROW) {
            st = tn_store_failed(s, "read it", err);
            break;
        }
        size_t n = load_tokens(s, q, &buf, &cap, &st, err);
        if (st != TERN_OK) break;
        if (!n) {
            s->n_skipped++;
            continue;
        }
        size_t cut = n > max_tokens ? n - max_tokens : 0;
        max_tokens -= n - cut;
        if (!fn(user, sqlite3_column_int(q, 0) ? TN_SEQUENCE_CORPUS : TN_SEQUENCE_CHAT, buf + cut, n - cut))
            break;
    }
    sqlite3_finalize(q);
    tn_free(s->ctx, buf);
    return st;
}

/* ---- what a model said ----------------------------------------------------------------------------- */

enum { RECALLED_MODELS = 8, RECALLED_BYTES = 1 << 20 };

tern_status tn_store_put_recalled(tn_store *s, uint64_t model, const int32_t *data, size_t n,
                                  tern_error *err) {
    sqlite3_stmt *q;
    int64_t none;
    TN_FAIL_IF(!s->vocab || n > RECALLED_BYTES / sizeof *data, err, TERN_E_INVALID,
               "%zu recalled numbers, or no vocabulary", n);
    TN_TRY(tn_store_begin(s, err));
    tern_status st = tn_store_prepare(
        s,
        "INSERT INTO recalled(vocab, model, used, data) VALUES(?1, ?2, (SELECT coalesce(max(used), "
        "0) + 1 FROM recalled), ?3)"
        " ON CONFLICT(vocab, model) DO UPDATE SET used = excluded.used, data = excluded.data",
        &q, err);
    if (st == TERN_OK) {
        sqlite3_bind_int64(q, 1, s->vocab);
        sqlite3_bind_int64(q, 2, (int64_t)model);
        sqlite3_bind_blob(q, 3, data, (int)(n * sizeof *data), SQLITE_STATIC);
        if (sqlite3_step(q) != SQLITE_DONE) st = tn_store_failed(s, "write to it", err);
        sqlite3_finalize(q);
    }
    const int64_t keep = RECALLED_MODELS;
    if (st == TERN_OK)
        st = get_int(
            s, "DELETE FROM recalled WHERE id NOT IN (SELECT id FROM recalled ORDER BY used DESC LIMIT ?)",
            &keep, 1, &none, NULL, err);
    if (st == TERN_OK) return tn_store_commit(s, err);
    tn_store_rollback(s);
    return st;
}

tern_status tn_store_get_recalled(tn_store *s, uint64_t model, int32_t **data, size_t *n, tern_error *err) {
    sqlite3_stmt *q;
    *data = NULL;
    *n = 0;
    TN_TRY(tn_store_prepare(s, "SELECT data FROM recalled WHERE vocab = ? AND model = ?", &q, err));
    sqlite3_bind_int64(q, 1, s->vocab);
    sqlite3_bind_int64(q, 2, (int64_t)model);
    int rc = sqlite3_step(q);
    tern_status st = rc == SQLITE_ROW || rc == SQLITE_DONE ? TERN_OK : tn_store_failed(s, "read it", err);
    size_t n_bytes = rc == SQLITE_ROW ? (size_t)sqlite3_column_bytes(q, 0) : 0;
    const void *blob = n_bytes ? sqlite3_column_blob(q, 0) : NULL;
    if (blob && n_bytes <= RECALLED_BYTES && n_bytes % sizeof **data == 0) {
        *data = tn_alloc(s->ctx, TN_MEM_OTHER, n_bytes, 1);
        if (*data) memcpy(*data, blob, n_bytes);
        else st = tn_fail(err, TERN_E_MEMORY, "no memory for a model's recalled predictions");
        *n = *data ? n_bytes / sizeof **data : 0;
    }
    sqlite3_finalize(q);
    return st;
}

tern_status tn_store_info_get(tn_store *s, tn_store_info *out, tern_error *err) {
    int64_t bytes = 0;
    *out = (tn_store_info){.n_skipped = s->n_skipped, .n_evicted = s->n_evicted, .cap_bytes = s->cap_bytes};
    TN_TRY(get_int(s, "SELECT count(*) FROM sequence", NULL, 0, &out->n_sequences, NULL, err));
    TN_TRY(get_int(s, "SELECT count(*) FROM vocab", NULL, 0, &out->n_vocabs, NULL, err));
    TN_TRY(get_int(s, "SELECT count(*) FROM sequence WHERE vocab = ?", &s->vocab, 1, &out->n_own, NULL, err));
    TN_TRY(get_int(s, "SELECT coalesce(sum(n_bytes), 0) FROM sequence", NULL, 0, &bytes, NULL, err));
    out->token_bytes = (uint64_t)bytes;
    return TERN_OK;
}
