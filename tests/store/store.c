/* tests/store/store.c - is what was stored there, for whom it should be, as much as may be, whatever happens
 * to the file? */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "store/store.h"

#include <pthread.h>
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { N_VOCAB = 1000 };

static tn_ctx ctx;
static char folder[64], path[128];

static int fresh(void **state) {
    (void)state;
    tn_ctx_init(&ctx, NULL);
    strcpy(folder, "/tmp/tern-store-XXXXXX");
    if (!mkdtemp(folder)) return -1;
    snprintf(path, sizeof path, "%s/a/b/store.db", folder);
    return 0;
}

static int clean(void **state) {
    (void)state;
    char cmd[128];
    snprintf(cmd, sizeof cmd, "rm -r %s", folder);
    return system(cmd);
}

static tn_store *open_store(const tn_store_options *o, uint64_t fingerprint) {
    tn_store *s;
    tern_error err = {0};
    if (tn_store_open(&ctx, path, o, &s, &err) != TERN_OK) fail_msg("%s", err.message);
    assert_int_equal(tn_store_vocab(s, fingerprint, N_VOCAB, &err), TERN_OK);
    return s;
}

/* Sequence i: its number, then what follows from it. */
static size_t sequence(int i, int32_t *ids) {
    size_t n = 2 + (size_t)(i * 7919 % 200);
    ids[0] = i % N_VOCAB;
    ids[1] = i / N_VOCAB;
    for (size_t k = 2; k < n; k++)
        ids[k] = (int32_t)((uint32_t)(i + 1) * 2654435761u * (uint32_t)k >> 8) % N_VOCAB;
    return n;
}

static int64_t put(tn_store *s, int i) {
    int32_t ids[202];
    size_t n = sequence(i, ids);
    int64_t id = 0;
    tern_error err = {0};
    if (tn_store_put(s, TN_SEQUENCE_CHAT, ids, n, n / 2, &id, &err) != TERN_OK) fail_msg("%s", err.message);
    return id;
}

typedef struct seen {
    int n, order[64];
    size_t n_tokens;
    char has[1 << 16];
    bool wrong;
} seen;

static bool look(void *user, tn_sequence_kind kind, const int32_t *ids, size_t n) {
    (void)kind;
    seen *v = user;
    int32_t want[202];
    int i = ids[0] + ids[1] * N_VOCAB;
    v->n_tokens += n;
    if (v->n < 64) v->order[v->n] = i;
    v->n++;
    if (n < 2 || i < 0 || i >= (int)sizeof v->has || sequence(i, want) != n ||
        memcmp(ids, want, n * sizeof *ids))
        v->wrong = true;
    else v->has[i] = 1;
    return true;
}

static seen *look_at(tn_store *s, size_t max_tokens) {
    static seen v;
    memset(&v, 0, sizeof v);
    tern_error err = {0};
    if (tn_store_each(s, max_tokens, look, &v, &err) != TERN_OK) fail_msg("%s", err.message);
    return &v;
}

static void keeps_and_orders(void **state) {
    (void)state;
    tn_store *s = open_store(NULL, 1);
    for (int i = 0; i < 20; i++) put(s, i);
    put(s, 3); /* again: marked as used, not stored twice */
    tn_store_close(&s);
    assert_null(s);
    s = open_store(NULL, 1);
    seen *v = look_at(s, SIZE_MAX);
    assert_int_equal(v->n, 20);
    assert_false(v->wrong);
    assert_int_equal(v->order[0], 3);
    assert_int_equal(v->order[1], 19);
    assert_int_equal(v->order[19], 0);
    v = look_at(s, 10); /* the newest one's end */
    assert_int_equal(v->n, 1);
    assert_int_equal(v->n_tokens, 10);
    tn_store_close(&s);
    struct stat st;
    char sub[128];
    snprintf(sub, sizeof sub, "%s/a/b", folder);
    assert_int_equal(stat(sub, &st), 0);
    assert_int_equal(st.st_mode & 077, 0); /* for the user alone */
}

static void a_conversation_grows(void **state) {
    (void)state;
    tn_store *s = open_store(NULL, 1);
    int32_t ids[] = {5, 6, 7, 8, 9};
    int64_t id = 0;
    tern_error err;
    tn_store_info info;
    for (size_t n = 1; n <= 5; n++)
        assert_int_equal(tn_store_put(s, TN_SEQUENCE_CHAT, ids, n, 1, &id, &err), TERN_OK);
    assert_int_equal(tn_store_info_get(s, &info, &err), TERN_OK);
    assert_int_equal(info.n_sequences, 1);
    assert_int_equal(info.token_bytes, 20);
    /* a second one runs into the first: one is left */
    int64_t other = 0;
    assert_int_equal(tn_store_put(s, TN_SEQUENCE_CHAT, ids, 2, 1, &other, &err), TERN_OK);
    assert_int_equal(tn_store_put(s, TN_SEQUENCE_CHAT, ids, 5, 1, &other, &err), TERN_OK);
    assert_int_equal(other, id);
    assert_int_equal(tn_store_info_get(s, &info, &err), TERN_OK);
    assert_int_equal(info.n_sequences, 1);
    tn_store_close(&s);
}

static void vocabularies_are_apart(void **state) {
    (void)state;
    tn_store *s = open_store(NULL, 1);
    put(s, 1);
    tn_store_close(&s);
    s = open_store(NULL, UINT64_MAX - 3);
    assert_int_equal(look_at(s, SIZE_MAX)->n, 0);
    put(s, 2);
    assert_int_equal(look_at(s, SIZE_MAX)->n, 1);
    tern_error err;
    tn_store_info info;
    assert_int_equal(tn_store_info_get(s, &info, &err), TERN_OK);
    assert_int_equal(info.n_sequences, 2);
    assert_int_equal(info.n_own, 1);
    assert_int_equal(info.n_vocabs, 2);
    /* the same tokens, another number of them: not the same vocabulary */
    assert_int_equal(tn_store_vocab(s, 1, N_VOCAB + 1, &err), TERN_E_FORMAT);
    int32_t beyond = N_VOCAB;
    int64_t id = 0;
    assert_int_equal(tn_store_put(s, TN_SEQUENCE_CHAT, &beyond, 1, 0, &id, &err), TERN_E_INVALID);
    tn_store_close(&s);
}

static void stays_within_its_cap(void **state) {
    (void)state;
    tn_store_options o = {.cap_bytes = 100000};
    tn_store *s = open_store(&o, 1);
    tern_error err;
    tn_store_info info;
    for (int i = 0; i < 1500; i++) {
        put(s, i);
        if (i % 10 == 0) put(s, 0); /* in use all the time: it stays */
    }
    assert_int_equal(tn_store_info_get(s, &info, &err), TERN_OK);
    assert_true(info.token_bytes <= o.cap_bytes && info.token_bytes > o.cap_bytes - 1000);
    assert_true(info.n_evicted > 1000);
    seen *v = look_at(s, SIZE_MAX);
    assert_false(v->wrong);
    assert_true(v->has[0] && v->has[1499] && v->has[1400] && !v->has[1] && !v->has[700]);
    tn_store_close(&s);
    struct stat st;
    assert_int_equal(stat(path, &st), 0);
    assert_true(st.st_size < 600000); /* what is deleted is used again */
}

static void exec_sql(const char *file, const char *sql) {
    sqlite3 *db;
    assert_int_equal(sqlite3_open(file, &db), SQLITE_OK);
    assert_int_equal(sqlite3_exec(db, sql, NULL, NULL, NULL), SQLITE_OK);
    sqlite3_close(db);
}

static tern_status open_status(tern_error *err) {
    tn_store *s;
    tern_status st = tn_store_open(&ctx, path, NULL, &s, err);
    tn_store_close(&s);
    return st;
}

/* What a model said: by vocabulary and model, the last one counts, eight models at most, and a damaged piece
 * is none. */
static void what_models_said(void **state) {
    (void)state;
    tern_error err;
    tn_store *s = open_store(NULL, 1);
    int32_t data[] = {1, 2, 3, 4}, *said;
    size_t n;
    for (int round = 0; round < 2; round++) {
        for (int32_t m = 0; m < 10; m++) {
            data[3] = m + 100 * round;
            assert_int_equal(tn_store_put_recalled(s, (uint64_t)m << 60 | 7, data, 4, &err), TERN_OK);
        }
    }
    for (int32_t m = 0; m < 10; m++) {
        assert_int_equal(tn_store_get_recalled(s, (uint64_t)m << 60 | 7, &said, &n, &err), TERN_OK);
        if (m < 2) assert_null(said); /* the two used longest ago */
        else assert_true(n == 4 && said[0] == 1 && said[3] == m + 100);
        tn_free(&ctx, said);
    }
    tn_store_close(&s);
    s = open_store(NULL, 2);
    assert_int_equal(tn_store_get_recalled(s, 5ull << 60 | 7, &said, &n, &err), TERN_OK);
    assert_null(said);
    tn_store_close(&s);
    exec_sql(path, "UPDATE recalled SET data = x'010203'");
    s = open_store(NULL, 1);
    assert_int_equal(tn_store_get_recalled(s, 5ull << 60 | 7, &said, &n, &err), TERN_OK);
    assert_null(said);
    tn_store_close(&s);
}

static void versions(void **state) {
    (void)state;
    tern_error err;
    tn_store *s = open_store(NULL, 1);
    put(s, 4);
    tn_store_close(&s);
    /* back to version 1, as the first stores were: comes up to date with its contents */
    exec_sql(path, "DROP TABLE vector; DROP TABLE embedder; DROP TABLE quote; DROP TABLE recalled; DROP "
                   "TABLE passage_fts; DROP TABLE passage; DROP "
                   "TABLE document; "
                   "PRAGMA user_version = 1");
    tn_store_options ro = {.read_only = true};
    assert_int_equal(tn_store_open(&ctx, path, &ro, &s, &err), TERN_E_UNSUPPORTED);
    s = open_store(NULL, 1);
    seen *v = look_at(s, SIZE_MAX);
    assert_true(v->n == 1 && v->has[4] && !v->wrong);
    tn_store_close(&s);
    exec_sql(path, "INSERT INTO document VALUES(1, 'p', 0, 0, 0, 0)");
    exec_sql(path, "DROP TABLE vector; DROP TABLE embedder; DROP TABLE quote; DROP TABLE recalled; ALTER "
                   "TABLE passage DROP COLUMN place; PRAGMA user_version = 2");
    s = open_store(NULL, 1);
    int32_t *said;
    size_t n_said;
    assert_int_equal(tn_store_get_recalled(s, 5, &said, &n_said, &err), TERN_OK);
    assert_null(said);
    tn_store_close(&s);
    exec_sql(path, "PRAGMA user_version = 7");
    assert_int_equal(open_status(&err), TERN_E_UNSUPPORTED);
    assert_non_null(strstr(err.message, "newer"));
    exec_sql(path, "PRAGMA user_version = 6; PRAGMA application_id = 7");
    assert_int_equal(open_status(&err), TERN_E_FORMAT);
    assert_non_null(strstr(err.message, "not a store"));
    FILE *f = fopen(path, "w");
    fputs("plain text, certainly longer than the header of a database file is, which has a hundred bytes, so "
          "some more words here",
          f);
    fclose(f);
    assert_int_equal(open_status(&err), TERN_E_FORMAT);
}

/* Somebody else's file is refused, with the bytes and the mode that it had. */
static void strangers(void **state) {
    (void)state;
    static char before[1 << 14], after[1 << 14];
    static const char text[] =
        "plain text, certainly longer than the header of a database file is, which has a "
        "hundred bytes, so some more words here";
    char sub[128];
    snprintf(sub, sizeof sub, "%s/a", folder);
    assert_int_equal(mkdir(sub, 0700), 0);
    snprintf(sub, sizeof sub, "%s/a/b", folder);
    assert_int_equal(mkdir(sub, 0700), 0);
    for (int k = 0; k < 2; k++) {
        tern_error err = {0};
        if (k) {
            FILE *f = fopen(path, "w");
            fputs(text, f);
            fclose(f);
        } else {
            exec_sql(path, "CREATE TABLE places(url TEXT); INSERT INTO places VALUES('x')");
        }
        assert_int_equal(chmod(path, 0644), 0);
        FILE *f = fopen(path, "r");
        size_t n = fread(before, 1, sizeof before, f);
        fclose(f);
        assert_int_equal(open_status(&err), TERN_E_FORMAT);
        struct stat st;
        assert_int_equal(stat(path, &st), 0);
        assert_int_equal(st.st_mode & 0777, 0644);
        f = fopen(path, "r");
        assert_int_equal(fread(after, 1, sizeof after, f), n);
        fclose(f);
        assert_memory_equal(before, after, n);
        assert_int_equal(unlink(path), 0);
    }
}

/* A store with bytes flipped: opened or refused, read or refused; never a crash, and never ids outside the
 * vocabulary. */
static bool in_range(void *user, tn_sequence_kind kind, const int32_t *ids, size_t n) {
    (void)user;
    (void)kind;
    for (size_t i = 0; i < n; i++) assert_true(ids[i] >= 0 && ids[i] < N_VOCAB);
    return true;
}

static void damaged_files(void **state) {
    (void)state;
    tn_store *s = open_store(NULL, 1);
    for (int i = 0; i < 30; i++) put(s, i);
    tn_store_close(&s);
    FILE *f = fopen(path, "rb");
    static char good[1 << 18], bad[1 << 18];
    size_t n = fread(good, 1, sizeof good, f);
    fclose(f);
    assert_true(n > 8192 && n < sizeof good);
    uint64_t rng = 42;
    int n_opened = 0;
    for (int trial = 0; trial < 200; trial++) {
        memcpy(bad, good, n);
        for (int k = 0; k < 8; k++) {
            rng = rng * 6364136223846793005u + 1442695040888963407u;
            bad[(rng >> 20) % n] = (char)(rng >> 56);
        }
        f = fopen(path, "wb");
        fwrite(bad, 1, trial % 5 ? n : n / 2 + (size_t)trial, f);
        fclose(f);
        tern_error err;
        tn_store *d;
        if (tn_store_open(&ctx, path, NULL, &d, &err) != TERN_OK) continue;
        n_opened++;
        int64_t id = 0;
        int32_t ids[3] = {1, 2, 3};
        if (tn_store_vocab(d, 1, N_VOCAB, &err) == TERN_OK) {
            tn_store_each(d, SIZE_MAX, in_range, NULL, &err);
            tn_store_put(d, TN_SEQUENCE_CHAT, ids, 3, 1, &id, &err);
        }
        tn_store_close(&d);
        remove(path);
        char side[160];
        snprintf(side, sizeof side, "%s-wal", path);
        remove(side);
        snprintf(side, sizeof side, "%s-shm", path);
        remove(side);
    }
    assert_true(n_opened > 20);
}

enum { PER_WRITER = 60, N_WRITERS = 3 };

/* Several processes make and fill one store at the same moment. */
static void processes_at_once(void **state) {
    (void)state;
    for (int w = 0; w < N_WRITERS; w++) {
        pid_t pid = fork();
        assert_true(pid >= 0);
        if (pid) continue;
        tn_store *s = open_store(NULL, 1);
        for (int i = 0; i < PER_WRITER; i++) put(s, w * PER_WRITER + i);
        tn_store_close(&s);
        _exit(0);
    }
    for (int w = 0; w < N_WRITERS; w++) {
        int status;
        assert_true(wait(&status) > 0);
        assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    }
    tn_store *s = open_store(NULL, 1);
    seen *v = look_at(s, SIZE_MAX);
    assert_int_equal(v->n, N_WRITERS * PER_WRITER);
    assert_false(v->wrong);
    tn_store_close(&s);
}

static sqlite3_mem_methods real_memory;
static int allocations_left;

static void *fails_once(int n) { return --allocations_left ? real_memory.xMalloc(n) : NULL; }

/* SQLite may answer NULL where an allocation failed, and call that a success. */
static void without_memory(void **state) {
    (void)state;
    tn_store *s = open_store(NULL, 1);
    tn_store_close(&s);
    sqlite3_shutdown();
    sqlite3_config(SQLITE_CONFIG_GETMALLOC, &real_memory);
    sqlite3_mem_methods failing = real_memory;
    failing.xMalloc = fails_once;
    sqlite3_config(SQLITE_CONFIG_MALLOC, &failing);
    int n_refused = 0, left = 0;
    for (int n = 1; left <= 0; n++) {
        tern_error err = {0};
        allocations_left = n;
        tern_status st = tn_store_open(&ctx, path, NULL, &s, &err);
        left = allocations_left;
        if (st != TERN_OK) {
            n_refused++;
            assert_int_equal(st, TERN_E_MEMORY);
            assert_non_null(strstr(err.message, "memory"));
        }
        tn_store_close(&s);
    }
    sqlite3_shutdown();
    sqlite3_config(SQLITE_CONFIG_MALLOC, &real_memory);
    assert_true(n_refused > 50);
}

static void default_place(void **state) {
    (void)state;
    setenv("XDG_DATA_HOME", "/somewhere/data", 1);
    char *p;
    tern_error err;
    assert_int_equal(tn_store_default_path(&ctx, &p, &err), TERN_OK);
    assert_string_equal(p, "/somewhere/data/tern/store.db");
    tn_free(&ctx, p);
    setenv("XDG_DATA_HOME", "relative", 1);
    setenv("HOME", "/home/someone", 1);
    assert_int_equal(tn_store_default_path(&ctx, &p, &err), TERN_OK);
    assert_string_equal(p, "/home/someone/.local/share/tern/store.db");
    tn_free(&ctx, p);
    unsetenv("HOME");
    assert_int_equal(tn_store_default_path(&ctx, &p, &err), TERN_E_IO);
    assert_null(p);
}

int main(void) {
#define T(name) cmocka_unit_test_setup_teardown(name, fresh, clean)
    const struct CMUnitTest tests[] = {T(keeps_and_orders),
                                       T(a_conversation_grows),
                                       T(vocabularies_are_apart),
                                       T(stays_within_its_cap),
                                       T(what_models_said),
                                       T(versions),
                                       T(strangers),
                                       T(damaged_files),
                                       T(processes_at_once),
                                       T(without_memory),
                                       T(default_place)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
