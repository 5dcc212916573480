/* The Hexagon DSP is killed, and stopped, in the middle of a session: the CPU goes on with the same bits, after one warning. */
#include "base/ctx.h"
#include "npu/npu.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <dirent.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { M = 8, N = 48, K = 64 };

static int n_warnings;

static void on_log(void *user, tern_log_level level, const char *line) {
    (void)user;
    if (level <= TERN_LOG_WARN) {
        print_message("%s\n", line);
        n_warnings++;
    }
}

/* The only child of this process. */
static pid_t child(void) {
    DIR *proc = opendir("/proc");
    pid_t found = 0;
    for (struct dirent *e; (e = readdir(proc));) {
        char path[300], line[512] = "";
        long ppid = 0;
        if (atol(e->d_name) <= 0) continue;
        snprintf(path, sizeof path, "/proc/%s/stat", e->d_name);
        FILE *f = fopen(path, "r");
        if (!f) continue;
        if (fgets(line, sizeof line, f) && strrchr(line, ')')) sscanf(strrchr(line, ')') + 1, " %*c %ld", &ppid);
        fclose(f);
        if (ppid == (long)getpid()) found = (pid_t)atol(e->d_name);
    }
    closedir(proc);
    return found;
}

static void fault(int signal_) {
    tern_hooks hooks;
    tern_hooks_defaults(&hooks);
    hooks.log = on_log;
    tn_ctx ctx;
    tn_ctx_init(&ctx, &hooks);
    tn_npu_device *d = NULL;
    tern_error err = {0};
    setenv("TERN_HEXAGON_DSP", TN_BINARY_DIR "/hexagon-dsp", 0);
    setenv("TERN_HEXAGON_WAIT_MS", "1000", 1);
    if (tn_npu_open(&ctx, "hexagon", NULL, &d, &err) != TERN_OK) {
        print_message("skipped: %s\n", err.message);
        skip();
    }
    tn_npu_weights *w = NULL;
    assert_int_equal(tn_npu_weights_open(d, N, K, false, &w, &err), TERN_OK);
    tn_npu_weights_data data = tn_npu_weights_get(w);
    int8_t rows[N * K];
    uint8_t in[M * K];
    for (int i = 0; i < N * K; i++) rows[i] = (int8_t)(i * 37 % 255 - 127);
    for (int i = 0; i < M * K; i++) in[i] = (uint8_t)(i * 91 % 255 + 1);
    tn_npu_tiles_pack(&tn_npu_device_caps(d)->layout, data.tiles, data.col_sum, rows, 0, N, K);
    for (int i = 0; i < N; i++) data.scale[i] = 0.01f * (float)(i + 1);
    tn_npu_graph_desc desc = {.kind = TN_NPU_LINEARS, .m = M, .k = K, .n_ops = 1};
    desc.ops[0] = (tn_npu_op){.n = N, .act_scale = 0.5f, .out = TN_NPU_OUT_F32};
    tn_npu_graph *g = NULL;
    assert_int_equal(tn_npu_compile(d, &desc, &g, &err), TERN_OK);
    assert_int_equal(tn_npu_load(g, &w, &err), TERN_OK);
    float want[M * N], got[M * N];
    tn_npu_job job = {.graph = g, .n_rows = M, .in = {in}, .out = {want}};
    assert_int_equal(tn_npu_submit(&job, &err), TERN_OK);
    assert_int_equal(tn_npu_wait(&job), TERN_OK);
    n_warnings = 0;
    pid_t dsp = child();
    assert_true(dsp > 0);
    assert_int_equal(kill(dsp, signal_), 0);
    for (int i = 0; i < 3; i++) {
        memset(got, 0, sizeof got);
        job = (tn_npu_job){.graph = g, .n_rows = M, .in = {in}, .out = {got}};
        assert_int_equal(tn_npu_submit(&job, &err), TERN_OK);
        assert_int_equal(tn_npu_wait(&job), TERN_OK);
        assert_memory_equal(got, want, sizeof want);
    }
    assert_int_equal(n_warnings, 1);
    tn_npu_graph_close(&g);
    tn_npu_weights_close(&w);
    tn_npu_close(&d);
}

static void killed(void **state) {
    (void)state;
    fault(SIGKILL);
}

static void hung(void **state) {
    (void)state;
    fault(SIGSTOP);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(killed), cmocka_unit_test(hung)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
