/* What is removed is gone from the bytes of the store; what is private has its owner alone; a store from
 * elsewhere is data. */
#include "documents/rag.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char folder[200], path[256], secret_file[256], other_file[256];
static tn_ctx ctx;
static int n_notices;

static void notice(void *user, tern_log_level level, const char *line) {
    (void)user;
    n_notices += level == TERN_LOG_WARN && strstr(line, "others could read") != NULL;
}

static void put(const char *file, const char *text) {
    FILE *f = fopen(file, "w");
    assert_true(f && fputs(text, f) >= 0);
    fclose(f);
}

static int setup(void **state) {
    (void)state;
    tern_hooks h;
    tern_hooks_defaults(&h);
    h.log = notice;
    tn_ctx_init(&ctx, &h);
    snprintf(folder, sizeof folder, TN_BINARY_DIR "/erase-XXXXXX");
    if (!mkdtemp(folder)) return -1;
    snprintf(path, sizeof path, "%s/s.db", folder);
    snprintf(secret_file, sizeof secret_file, "%s/secret.txt", folder);
    snprintf(other_file, sizeof other_file, "%s/other.txt", folder);
    put(secret_file, "The password of the vault is Quizzaciously Wherretjumbled, and nobody knows it.\n");
    put(other_file, "The old inn is near the weir, and everybody knows it.\n");
    return 0;
}

static int teardown(void **state) {
    (void)state;
    char command[300];
    snprintf(command, sizeof command, "rm -rf '%s'", folder);
    return system(command);
}

/* How often a needle stands in the store's file or beside it. */
static int count(const void *needle, size_t n) {
    static const char *const ends[] = {"", "-wal", "-journal"};
    int found = 0;
    for (int i = 0; i < 3; i++) {
        char name[300];
        snprintf(name, sizeof name, "%s%s", path, ends[i]);
        FILE *f = fopen(name, "rb");
        if (!f) continue;
        static char bytes[8 << 20];
        size_t size = fread(bytes, 1, sizeof bytes, f);
        fclose(f);
        for (char *p = bytes; (p = memmem(p, size - (size_t)(p - bytes), needle, n)); p++) found++;
    }
    return found;
}

static int words(void) {
    return count("Quizzaciously", 13) + count("Wherretjumbled", 14) + count("quizzaci", 8) +
           count("wherretjumbl", 12);
}

static const int32_t said[] = {40111, 40222, 40333, 40444, 40555}, copied[] = {41111, 41222, 41333, 41444},
                     harmless[] = {42111, 42222, 42333, 42444}, elsewhere[] = {43111, 43222, 43333};

static tn_store *open_store(void) {
    tn_store *s;
    tern_error err;
    if (tn_store_open(&ctx, path, NULL, &s, &err) != TERN_OK) fail_msg("%s", err.message);
    assert_int_equal(tn_store_vocab(s, 77, 50000, &err), TERN_OK);
    return s;
}

static int64_t id_of(tn_store *s, const char *file) {
    int64_t id;
    assert_int_equal(tn_rag_id(s, file, &id, NULL), TERN_OK);
    return id;
}

static void fill(tn_store *s) {
    tern_error err;
    tn_rag_added sum = {0};
    assert_int_equal(tn_rag_add(s, folder, NULL, NULL, &sum, &err), TERN_OK);
    int64_t both[] = {id_of(s, secret_file), id_of(s, other_file)}, id = 0;
    assert_true(both[0] && both[1]);
    /* an answer from both, the document itself, an answer from the other, a talk about nothing */
    assert_int_equal(tn_store_quoting(s, both, 2, &err), TERN_OK);
    assert_int_equal(tn_store_put(s, TN_SEQUENCE_CHAT, said, 5, 3, &id, &err), TERN_OK);
    assert_int_equal(tn_store_quoting(s, both, 1, &err), TERN_OK);
    id = 0;
    assert_int_equal(tn_store_put(s, TN_SEQUENCE_CORPUS, copied, 4, 4, &id, &err), TERN_OK);
    assert_int_equal(tn_store_quoting(s, both + 1, 1, &err), TERN_OK);
    id = 0;
    assert_int_equal(tn_store_put(s, TN_SEQUENCE_CORPUS, harmless, 4, 4, &id, &err), TERN_OK);
    assert_int_equal(tn_store_quoting(s, NULL, 0, &err), TERN_OK);
    id = 0;
    assert_int_equal(tn_store_put(s, TN_SEQUENCE_CHAT, elsewhere, 3, 1, &id, &err), TERN_OK);
    assert_int_equal(tn_store_put_recalled(s, 5, said, 5, &err), TERN_OK);
}

static void nothing_stays(void) {
    assert_int_equal(words(), 0);
    assert_int_equal(count(said, sizeof said), 0);
    assert_int_equal(count(copied, sizeof copied), 0);
    assert_true(count(harmless, sizeof harmless) >= 1);
    assert_true(count(elsewhere, sizeof elsewhere) >= 1);
    assert_true(count("old inn", 7) >= 1);
}

/* While the store is open: the write-ahead log counts too. */
static void a_document_takes_its_quotes_along(void **state) {
    (void)state;
    tern_error err;
    int64_t n;
    tn_store *s = open_store();
    fill(s);
    assert_true(words() >= 3 && count(said, sizeof said) >= 2 && count(copied, sizeof copied) >= 1);
    assert_int_equal(tn_rag_remove(s, secret_file, &n, &err), TERN_OK);
    assert_int_equal(n, 1);
    nothing_stays();
    tn_store_close(&s);
    nothing_stays();
}

/* A document that is gone when its folder is read again. */
static void a_vanished_document_does_too(void **state) {
    (void)state;
    tern_error err;
    tn_store *s = open_store();
    fill(s);
    assert_true(count(said, sizeof said) >= 1);
    char aside[300];
    snprintf(aside, sizeof aside, "%s.aside", folder);
    assert_int_equal(rename(secret_file, aside), 0);
    tn_rag_added sum = {0};
    assert_int_equal(tn_rag_add(s, folder, NULL, NULL, &sum, &err), TERN_OK);
    assert_int_equal(sum.n_removed, 1);
    assert_int_equal(rename(aside, secret_file), 0);
    tn_store_close(&s);
    assert_int_equal(count(said, sizeof said), 0);
    assert_int_equal(count(copied, sizeof copied), 0);
    assert_true(count(harmless, sizeof harmless) >= 1);
}

static void exec_sql(const char *sql) {
    sqlite3 *db;
    char *message = NULL;
    assert_int_equal(sqlite3_open(path, &db), SQLITE_OK);
    if (sqlite3_exec(db, sql, NULL, NULL, &message) != SQLITE_OK) fail_msg("%s", message);
    sqlite3_close(db);
}

/* Kept before the store noted what quotes what: they go with the first document that does. */
static void what_nobody_noted(void **state) {
    (void)state;
    tern_error err;
    int64_t n;
    unlink(path);
    tn_store *s = open_store();
    fill(s);
    tn_store_close(&s);
    exec_sql("DROP TABLE vector; DROP TABLE embedder; DROP TABLE quote; ALTER TABLE passage DROP COLUMN "
             "place; PRAGMA user_version = 3");
    s = open_store();
    assert_int_equal(tn_rag_remove(s, other_file, &n, &err), TERN_OK);
    assert_int_equal(count(said, sizeof said), 0);
    assert_int_equal(count(elsewhere, sizeof elsewhere), 0);
    tn_store_close(&s);
}

static void modes(void **state) {
    (void)state;
    mode_t before = umask(0);
    static const char *const ends[] = {"", "-wal", "-shm"};
    for (int narrow = 0; narrow < 2; narrow++) {
        struct stat sb;
        if (!narrow) unlink(path);
        else assert_int_equal(chmod(path, 0644), 0);
        n_notices = 0;
        tn_store *s = open_store();
        fill(s);
        for (int i = 0; i < 3; i++) {
            char name[300];
            snprintf(name, sizeof name, "%s%s", path, ends[i]);
            assert_true(!stat(name, &sb) && (sb.st_mode & 0777) == 0600);
        }
        assert_int_equal(n_notices, narrow);
        tn_store_close(&s);
    }
    umask(before);
    unlink(path);
    assert_int_equal(mkfifo(path, 0600), 0);
    tn_store *s;
    tern_error err;
    assert_int_equal(tn_store_open(&ctx, path, NULL, &s, &err), TERN_E_IO);
    unlink(path);
}

/* Endless views, triggers, tables of modules: refused before a row is asked for. */
static void a_store_from_elsewhere(void **state) {
    (void)state;
    static const char *const tricks[] = {
        "DROP TABLE document; CREATE VIEW document AS WITH RECURSIVE r(i) AS (SELECT 1 UNION ALL SELECT i + "
        "1 FROM r) "
        "SELECT i AS id, 'p' AS path, 0 AS hash, 0 AS n_bytes, 0 AS n_passages, 0 AS added FROM r",
        "DROP TABLE sequence; CREATE VIEW sequence AS WITH RECURSIVE r(i) AS (SELECT 1 UNION ALL SELECT i + "
        "1 FROM r) "
        "SELECT i AS id, 1 AS vocab, 0 AS kind, x'00000000' AS tokens, 0 AS used FROM r",
        "CREATE TRIGGER t AFTER INSERT ON sequence BEGIN DELETE FROM document; END",
        "DROP TABLE document; CREATE VIRTUAL TABLE document USING fts5(id, path, hash, n_bytes, n_passages, "
        "added)",
        "DROP TABLE passage_fts; CREATE VIRTUAL TABLE passage_fts USING fts5(text)",
    };
    for (size_t i = 0; i < sizeof tricks / sizeof tricks[0]; i++) {
        tern_error err;
        tn_store *s = open_store();
        fill(s);
        tn_store_close(&s);
        exec_sql(tricks[i]);
        assert_int_equal(tn_store_open(&ctx, path, NULL, &s, &err), TERN_E_FORMAT);
        assert_non_null(strstr(err.message, "views"));
        unlink(path);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_document_takes_its_quotes_along),
        cmocka_unit_test(a_vanished_document_does_too),
        cmocka_unit_test(what_nobody_noted),
        cmocka_unit_test(modes),
        cmocka_unit_test(a_store_from_elsewhere),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
