/* The Hexagon DSP is killed (between jobs and within one), stopped, and made to talk nonsense: the CPU goes
 * on with the same bits, after one warning; whatever else is asked of the device still works. */
#include "base/ctx.h"
#include "kernels/unpack.h"
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
#include <sys/stat.h>
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
        if (fgets(line, sizeof line, f) && strrchr(line, ')'))
            sscanf(strrchr(line, ')') + 1, " %*c %ld", &ppid);
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

/* A job of seconds, killed when it is under way; then all that a device is asked for. */
static void killed_within(void **state) {
    (void)state;
    enum { ROWS = 256, COLS = 2048, INPUTS = 4096 };
    tern_hooks hooks;
    tern_hooks_defaults(&hooks);
    hooks.log = on_log;
    tn_ctx ctx;
    tn_ctx_init(&ctx, &hooks);
    tern_error err = {0};
    tn_npu_graph_desc desc = {
        .kind = TN_NPU_LINEARS, .m = ROWS, .k = INPUTS, .in_stride = INPUTS, .n_ops = 1};
    desc.ops[0] = (tn_npu_op){.n = COLS, .act_scale = 0.5f, .out = TN_NPU_OUT_S32};
    uint8_t *in = malloc(ROWS * INPUTS);
    int8_t *w = malloc(COLS * INPUTS);
    int32_t *out[2] = {malloc(ROWS * COLS * 4), malloc(ROWS * COLS * 4)};
    for (int i = 0; i < ROWS * INPUTS; i++) in[i] = (uint8_t)(i * 91 % 255 + 1);
    for (int i = 0; i < COLS * INPUTS; i++) w[i] = (int8_t)(i * 37 % 255 - 127);
    n_warnings = 0;
    for (int i = 0; i < 2; i++) {
        tn_npu_device *d = NULL;
        if (tn_npu_open(&ctx, i ? "hexagon" : "host", NULL, &d, &err) != TERN_OK) {
            print_message("skipped: %s\n", err.message);
            free(in), free(w), free(out[0]), free(out[1]);
            skip();
        }
        const tn_npu_layout *layout = &tn_npu_device_caps(d)->layout;
        tn_npu_weights *weights = NULL;
        assert_int_equal(tn_npu_weights_open(d, COLS, INPUTS, false, &weights, &err), TERN_OK);
        tn_npu_weights_data data = tn_npu_weights_get(weights);
        tn_npu_tiles_pack(layout, data.tiles, data.col_sum, w, 0, COLS, INPUTS);
        for (int c = 0; c < COLS; c++) data.scale[c] = 1;
        tn_npu_graph *g = NULL;
        assert_int_equal(tn_npu_compile(d, &desc, &g, &err), TERN_OK);
        assert_int_equal(tn_npu_load(g, &weights, &err), TERN_OK);
        tn_npu_job job = {.graph = g, .n_rows = ROWS, .in = {in}, .out = {out[i]}};
        if (i)
            assert_int_equal(kill(child(), SIGSTOP),
                             0); /* so that the job cannot be done when it is killed */
        assert_int_equal(tn_npu_submit(&job, &err), TERN_OK);
        if (i) {
            assert_false(tn_npu_done(&job));
            assert_int_equal(kill(child(), SIGKILL), 0);
        }
        assert_int_equal(tn_npu_wait(&job), TERN_OK);
        tn_npu_graph_close(&g);
        if (i) { /* new memory, unpacking, a new graph, all without the DSP */
            void *tiles;
            assert_int_equal(tn_npu_mem_alloc(d, 16 * 128, &tiles, &err), TERN_OK);
            uint8_t packed[16 * 48], bits[8] = {0};
            int8_t want[16 * 128] __attribute__((aligned(64)));
            for (size_t c = 0; c < 16; c++) tn_channel_bits_put(bits, c, 3);
            for (size_t b = 0; b < sizeof packed; b++) packed[b] = (uint8_t)(b * 29);
            tn_weightlets_unpack(tn_unpack_tile_ref, packed, bits, 0, 16, 128, want);
            assert_true(tn_npu_unpack(d, packed, bits, 0, 16, 128, tiles));
            assert_memory_equal(tiles, want, sizeof want);
            tn_npu_mem_free(d, tiles);
            desc.m = 3;
            assert_int_equal(tn_npu_compile(d, &desc, &g, &err), TERN_OK);
            assert_int_equal(tn_npu_load(g, &weights, &err), TERN_OK);
            int32_t *few = malloc(3 * COLS * 4);
            job = (tn_npu_job){.graph = g, .n_rows = 3, .in = {in}, .out = {few}};
            assert_int_equal(tn_npu_submit(&job, &err), TERN_OK);
            assert_int_equal(tn_npu_wait(&job), TERN_OK);
            assert_memory_equal(few, out[0], 3 * COLS * 4);
            free(few);
            tn_npu_graph_close(&g);
        }
        tn_npu_weights_close(&weights);
        tn_npu_close(&d);
    }
    assert_int_equal(n_warnings, 1);
    assert_memory_equal(out[0], out[1], ROWS * COLS * 4);
    free(in), free(w), free(out[0]), free(out[1]);
}

/* A program that is found in the emulator's place. */
typedef struct impostor {
    char dir[32], path[64], *search; /* search: PATH as it was */
} impostor;

static impostor impostor_begin(void) {
    impostor x = {.dir = "/tmp/tern-faults-XXXXXX", .search = getenv("PATH") ? strdup(getenv("PATH")) : NULL};
    assert_non_null(mkdtemp(x.dir));
    snprintf(x.path, sizeof x.path, "%s/qemu-hexagon", x.dir);
    setenv("TERN_HEXAGON_DSP", TN_BINARY_DIR "/hexagon-dsp", 0);
    return x;
}

/* Opens the device on it; it answers request n, whose serial number is `serial`, with what the Python
 * expression says. */
static tern_status impostor_open(const impostor *x, const char *answer, tn_ctx *ctx, tn_npu_device **d,
                                 tern_error *err) {
    char search[4096];
    FILE *f = fopen(x->path, "w");
    assert_non_null(f);
    fprintf(f,
            "#!/usr/bin/env python3\nimport os, struct\nn = 0\nwhile True:\n    g = os.read(0, 208)\n    if "
            "len(g) < 208: break\n    serial = g[4:8]\n"
            "    os.write(1, %s)\n    n += 1\n",
            answer);
    fclose(f);
    assert_int_equal(chmod(x->path, 0755), 0);
    snprintf(search, sizeof search, "%s:%s", x->dir, x->search ? x->search : "");
    setenv("PATH", search, 1);
    tern_hooks hooks;
    tern_hooks_defaults(&hooks);
    hooks.log = on_log;
    tn_ctx_init(ctx, &hooks);
    n_warnings = 0;
    tern_status st = tn_npu_open(ctx, "hexagon", NULL, d, err);
    setenv("PATH", x->search ? x->search : "", 1);
    return st;
}

static void impostor_end(impostor *x) { unlink(x->path), rmdir(x->dir), free(x->search); }

/* In place of the emulator a program that answers so many requests as it should, then with zeros, a wrong
 * number or half an answer. */
static void nonsense(void **state) {
    (void)state;
    static const char *const answers[] = {"bytes(16)", "serial + b'\\x07' * 12",
                                          "serial + struct.pack('<III', 2, 0, 0)", "b'xyz'", "b''"};
    impostor x = impostor_begin();
    setenv("TERN_HEXAGON_WAIT_MS", "2000", 1);
    for (size_t i = 0; i < sizeof answers / sizeof answers[0]; i++) {
        for (int n_good = 0; n_good < 5; n_good += 2) {
            if (i >= 3 && n_good != 2) continue; /* these wait */
            char answer[128];
            snprintf(answer, sizeof answer, "serial + struct.pack('<III', 1, 0, 0) if n < %d else %s", n_good,
                     answers[i]);
            tn_ctx ctx;
            tn_npu_device *d = NULL;
            tern_error err = {0};
            tern_status st = impostor_open(&x, answer, &ctx, &d, &err);
            if (st == TERN_E_UNSUPPORTED) {
                impostor_end(&x);
                skip();
            }
            assert_int_equal(st, n_good ? TERN_OK : TERN_E_DEVICE);
            if (!n_good) continue;
            void *p[8];
            for (int k = 0; k < 8; k++) assert_int_equal(tn_npu_mem_alloc(d, 1000, &p[k], &err), TERN_OK);
            for (int k = 0; k < 8; k++) tn_npu_mem_free(d, p[k]);
            assert_int_equal(n_warnings, 1);
            tn_npu_close(&d);
        }
    }
    impostor_end(&x);
}

/* A DSP that has no memory left says so: an error to the one who wanted it, nothing else. */
static void no_memory(void **state) {
    (void)state;
    impostor x = impostor_begin();
    tn_ctx ctx;
    tn_npu_device *d = NULL;
    tern_error err = {0};
    tern_status st =
        impostor_open(&x, "serial + struct.pack('<III', 4 if n in (2, 5) else 1, 0, 0)", &ctx, &d, &err);
    impostor_end(&x);
    if (st == TERN_E_UNSUPPORTED) skip();
    assert_int_equal(st, TERN_OK);
    void *p = NULL, *q = NULL;
    assert_int_equal(tn_npu_mem_alloc(d, 1000, &p, &err), TERN_OK);
    uint64_t used = tn_npu_used_bytes(d);
    assert_int_equal(tn_npu_mem_alloc(d, 1000, &q, &err), TERN_E_LIMIT);
    assert_non_null(strstr(err.message, "--npu-memory"));
    assert_null(q);
    assert_int_equal(tn_npu_used_bytes(d), used);
    assert_int_equal(tn_npu_mem_alloc(d, 1000, &q, &err), TERN_OK);
    tn_npu_mem_free(d, q);
    tn_npu_weights *w = NULL;
    assert_int_equal(tn_npu_weights_open(d, N, K, false, &w, &err), TERN_E_LIMIT);
    assert_int_equal(tn_npu_used_bytes(d), used);
    tn_npu_mem_free(d, p);
    assert_int_equal(n_warnings, 0);
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
    const struct CMUnitTest tests[] = {cmocka_unit_test(killed), cmocka_unit_test(killed_within),
                                       cmocka_unit_test(hung), cmocka_unit_test(no_memory),
                                       cmocka_unit_test(nonsense)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
