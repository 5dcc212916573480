/* Measuring the heads is taken up where a process was stopped or killed, and the package is the same; a
 * journal that is damaged or another's is not believed. */
#include "lab/synth.h"
#include "quant/pack.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "fixture/fixture.h"

static char gguf[256], other_gguf[256], package[256], journal[264];

typedef struct watch {
    int n_steps;    /* of measuring heads */
    double stop_at; /* at this share; 0: never */
    bool kill;
    char said[512];
} watch;

static bool on_progress(void *user, const char *stage, double fraction) {
    watch *w = user;
    if (strcmp(stage, "heads")) return true;
    w->n_steps++;
    if (w->stop_at == 0 || fraction < w->stop_at) return true;
    if (w->kill) raise(SIGKILL);
    return false;
}

static void on_log(void *user, tern_log_level level, const char *text) {
    watch *w = user;
    if (level <= TERN_LOG_WARN) snprintf(w->said, sizeof w->said, "%s", text);
}

static tern_status pack(const char *src, watch *w) {
    tern_hooks hooks;
    tern_hooks_defaults(&hooks);
    hooks.progress = on_progress;
    hooks.log = on_log;
    hooks.user = w;
    tn_ctx ctx;
    tn_ctx_init(&ctx, &hooks);
    tn_pack_options o;
    tn_pack_defaults(&o);
    o.calib_tokens = 128;
    o.calib_window = 64;
    o.n_threads = 2;
    o.head_importance = true;
    return tn_pack(&ctx, src, package, &o, NULL, NULL);
}

static char *want;
static size_t n_want;
static int n_all;

static int setup(void **state) {
    (void)state;
    tn_ctx ctx;
    tn_ctx_init(&ctx, NULL);
    tn_pool *pool;
    snprintf(gguf, sizeof gguf, TN_BINARY_DIR "/heads-%ld.gguf", (long)getpid());
    snprintf(other_gguf, sizeof other_gguf, TN_BINARY_DIR "/heads-other-%ld.gguf", (long)getpid());
    snprintf(package, sizeof package, TN_BINARY_DIR "/heads-%ld.tern", (long)getpid());
    snprintf(journal, sizeof journal, "%s.heads", package);
    if (tn_pool_open(&ctx, 2, &pool, NULL) != TERN_OK ||
        tn_synth(&ctx, pool, "tiny-qwen2", gguf, 7, TN_F32, NULL) != TERN_OK ||
        tn_synth(&ctx, pool, "tiny-qwen2", other_gguf, 8, TN_F32, NULL) != TERN_OK) {
        return -1;
    }
    tn_pool_close(&pool);
    watch w = {0};
    if (pack(gguf, &w) != TERN_OK) return -1;
    want = fixture_read(package, &n_want);
    n_all = w.n_steps;
    return access(journal, F_OK) ? 0 : -1; /* none is left behind */
}

static int teardown(void **state) {
    (void)state;
    unlink(gguf);
    unlink(other_gguf);
    unlink(package);
    unlink(journal);
    free(want);
    return 0;
}

static void check_package(void) {
    size_t n;
    char *got = fixture_read(package, &n);
    assert_int_equal(n, n_want);
    assert_memory_equal(got, want, n);
    free(got);
    assert_int_not_equal(access(journal, F_OK), 0);
}

static void stopped(void) {
    watch w = {.stop_at = 0.5};
    unlink(package);
    unlink(journal);
    assert_int_equal(pack(gguf, &w), TERN_E_CANCELLED);
    assert_int_not_equal(access(package, F_OK), 0);
    assert_int_equal(access(journal, F_OK), 0);
}

static void goes_on(void **state) {
    (void)state;
    stopped();
    watch w = {0};
    assert_int_equal(pack(gguf, &w), TERN_OK);
    assert_in_range(w.n_steps, 1, n_all - 2);
    check_package();
}

static void goes_on_after_a_kill(void **state) {
    (void)state;
    unlink(package);
    fflush(stdout);
    pid_t child = fork();
    if (!child) {
        watch w = {.stop_at = 0.5, .kill = true};
        pack(gguf, &w);
        _exit(1);
    }
    int status;
    waitpid(child, &status, 0);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    watch w = {0};
    assert_int_equal(pack(gguf, &w), TERN_OK);
    assert_in_range(w.n_steps, 1, n_all - 2);
    check_package();
}

/* A record that was half written, one that was changed, a changed header, something else altogether. */
static void damaged(void **state) {
    (void)state;
    for (int how = 0; how < 4; how++) {
        stopped();
        size_t n;
        char *bytes = fixture_read(journal, &n);
        if (how == 0) n -= 5;
        if (how == 1) bytes[48 + 24 + 3] ^= 1;
        if (how == 2) bytes[9] ^= 1;
        if (how == 3) memset(bytes, 'x', n);
        fixture_write(journal, bytes, n);
        free(bytes);
        watch w = {0};
        if (how == 3) { /* somebody else's file stays what it is */
            assert_int_equal(pack(gguf, &w), TERN_E_IO);
            char *now = fixture_read(journal, &n);
            assert_int_equal(now[0], 'x');
            free(now);
            unlink(journal);
            continue;
        }
        assert_int_equal(pack(gguf, &w), TERN_OK);
        assert_true(!strstr(w.said, "damaged") == !how); /* half a record is what a kill leaves */
        assert_true(how >= 2 ? w.n_steps == n_all : w.n_steps < n_all);
        check_package();
    }
}

static void of_another_model(void **state) {
    (void)state;
    watch fresh = {0}, w = {0};
    unlink(journal);
    assert_int_equal(pack(other_gguf, &fresh), TERN_OK);
    stopped();
    assert_int_equal(pack(other_gguf, &w), TERN_OK);
    assert_int_equal(w.n_steps, fresh.n_steps);
    assert_non_null(strstr(w.said, "another"));
    assert_int_equal(pack(gguf, &w), TERN_OK);
    check_package();
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(goes_on), cmocka_unit_test(goes_on_after_a_kill),
                                       cmocka_unit_test(damaged), cmocka_unit_test(of_another_model)};
    return cmocka_run_group_tests_name("heads", tests, setup, teardown);
}
