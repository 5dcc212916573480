/* tests/store/store_kill.c - a writing process is killed again and again, at any instant from its start on:
 * is everything there that it reported as stored? TERN_KILLS=N for more kills than the suite does (the target
 * kill-test does 500). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "store/store.h"

#include <signal.h>
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { N_VOCAB = 50000, N_IDS = 40, MAX_SEQ = 1 << 20 };

static tn_ctx ctx;
static char has[MAX_SEQ];

static void fill(int i, int32_t *ids) {
    ids[0] = i % N_VOCAB;
    ids[1] = i / N_VOCAB;
    for (int k = 2; k < N_IDS; k++)
        ids[k] = (int32_t)((uint32_t)(i + 7) * 2654435761u * (uint32_t)k >> 5) % N_VOCAB;
}

/* Writes sequences from `first` on, and each one's number to fd once it is reported as stored. */
static void writer(const char *path, int first, int fd) {
    tn_store *s;
    if (tn_store_open(&ctx, path, NULL, &s, NULL) != TERN_OK ||
        tn_store_vocab(s, 9, N_VOCAB, NULL) != TERN_OK)
        _exit(1);
    for (int i = first;; i++) {
        int32_t ids[N_IDS];
        fill(i, ids);
        int64_t id = 0;
        if (tn_store_put(s, TN_SEQUENCE_CHAT, ids, N_IDS, 10, &id, NULL) != TERN_OK) _exit(2);
        if (write(fd, &i, sizeof i) != sizeof i) _exit(3);
    }
}

static bool look(void *user, tn_sequence_kind kind, const int32_t *ids, size_t n) {
    (void)kind;
    int32_t want[N_IDS];
    int i = ids[0] + ids[1] * N_VOCAB;
    assert_true(n == N_IDS && i >= 0 && i < MAX_SEQ);
    fill(i, want);
    assert_memory_equal(ids, want, sizeof want);
    has[i] = 1;
    ++*(int *)user;
    return true;
}

static void nothing_reported_is_lost(void **state) {
    (void)state;
    const char *env = getenv("TERN_KILLS");
    int n_kills = env ? atoi(env) : 60, first = 0, n_reported = 0, n_present = 0;
    char folder[] = "/tmp/tern-kill-XXXXXX", path[64], cmd[64];
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/store.db", folder);
    static char reported[MAX_SEQ];
    uint64_t rng = 1;
    for (int kill_i = 0; kill_i < n_kills; kill_i++) {
        int fds[2];
        assert_int_equal(pipe(fds), 0);
        pid_t pid = fork();
        assert_true(pid >= 0);
        if (!pid) {
            close(fds[0]);
            writer(path, first, fds[1]);
        }
        close(fds[1]);
        rng = rng * 6364136223846793005u + 1442695040888963407u;
        /* half of them within the first milliseconds: opening, setting up, recovering the log of the one
         * killed before; the others while something is written after the first one reported, however long
         * that takes on a busy machine */
        int status, i;
        bool reports = kill_i % 2 == 0 && read(fds[0], &i, sizeof i) == sizeof i;
        if (reports) reported[i] = 1, n_reported++, first = i + 1;
        long ns = (long)((rng >> 33) % (kill_i % 2 ? 4000000 : 40000000));
        nanosleep(&(struct timespec){.tv_nsec = ns}, NULL);
        kill(pid, SIGKILL);
        waitpid(pid, &status, 0);
        assert_true(WIFSIGNALED(status)); /* not: failed */
        while (read(fds[0], &i, sizeof i) == sizeof i) {
            reported[i] = 1;
            n_reported++;
            first = i + 1;
        }
        first++; /* the one under way may be there or not */
        close(fds[0]);
        if (kill_i % 10 != 9 && kill_i != n_kills - 1) continue;
        tn_store *s;
        tern_error err = {0};
        if (tn_store_open(&ctx, path, NULL, &s, &err) != TERN_OK)
            fail_msg("after %d kills: %s", kill_i + 1, err.message);
        assert_int_equal(tn_store_vocab(s, 9, N_VOCAB, &err), TERN_OK);
        memset(has, 0, sizeof has);
        n_present = 0;
        assert_int_equal(tn_store_each(s, SIZE_MAX, look, &n_present, &err), TERN_OK);
        for (int k = 0; k < first; k++) assert_true(!reported[k] || has[k]);
        sqlite3_stmt *q;
        sqlite3_prepare_v2(tn_store_db(s), "PRAGMA integrity_check", -1, &q, NULL);
        assert_int_equal(sqlite3_step(q), SQLITE_ROW);
        assert_string_equal((const char *)sqlite3_column_text(q, 0), "ok");
        sqlite3_finalize(q);
        tn_store_close(&s);
    }
    print_message("%d kills, %d sequences reported as stored, %d present\n", n_kills, n_reported, n_present);
    assert_true(n_reported >= n_kills / 2);
    snprintf(cmd, sizeof cmd, "rm -r %s", folder);
    assert_int_equal(system(cmd), 0);
}

int main(void) {
    tn_ctx_init(&ctx, NULL);
    const struct CMUnitTest tests[] = {cmocka_unit_test(nothing_reported_is_lost)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
