/* Models whose weights stay in the file's blocks: they are the default for quantised files, take the
 * file's bytes of memory and no more, give the logits of the widened weights but for the rounding of INT8
 * rows, and the same bits alone, in a batch and on any number of threads. A block that holds no number is
 * refused with its tensor's name. */
#include "params/options.h"
#include "base/cpu.h"
#include "base/half.h"
#include "base/rng.h"
#include "formats/gguf.h"
#include "model/blocks.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "fixture/fixture.h"

enum { N_TOK = 40, N_VOCAB_MAX = 600 };

/* Types that tern synth fills with random blocks; tiles of most are another form than the file's. */
static const char *const random_types[] = {
    "iq1_s",  "iq1_m",  "iq2_xxs", "iq2_xs", "iq2_s",  "iq3_xxs", "iq3_s",  "tq1_0", "tq2_0",  "q1_0",
    "q2_0",   "nvfp4",  "mxfp4",   "iq2_k",  "iq3_k",  "iq4_k",   "iq5_k",  "iq6_k", "iq4_ks", "iq4_kss",
    "iq5_ks", "iq2_ks", "iq3_ks",  "iq2_kl", "iq1_kt", "iq2_kt",  "iq3_kt", "iq4_kt"};
enum { N_RANDOM_TYPES = sizeof random_types / sizeof *random_types };

static const char fixture[] = TN_SOURCE_DIR "/tests/oracle/fixtures/qwen2-quantised.gguf"; /* Q8_0 and Q4_0 */
static char made[256], experts[256];

static int setup(void **state) {
    (void)state;
    char cmd[900];
    snprintf(made, sizeof made, TN_BINARY_DIR "/blocks-%ld.gguf", (long)getpid());
    snprintf(experts, sizeof experts, TN_BINARY_DIR "/blocks-%ld-experts.gguf", (long)getpid());
    snprintf(cmd, sizeof cmd,
             TN_TERN " synth --arch tiny-llama --type q4_0 -o %s && " TN_TERN
                     " synth --arch tiny-qwen3moe --type q4_0 -o %s",
             made, experts);
    return system(cmd) ? -1 : 0;
}

static int teardown(void **state) {
    (void)state;
    return unlink(made) | unlink(experts);
}

static tern_engine *open_engine(const char *path, const char *scheme, int n_threads) {
    tern_options o;
    tern_error err = {0};
    tern_engine *e;
    tn_options_defaults(&o);
    o.scheme = scheme;
    o.n_threads = n_threads;
    if (tern_engine_open(path, &o, &e, &err) != TERN_OK) fail_msg("%s", err.message);
    return e;
}

static int32_t n_vocab(const tern_engine *e) {
    tern_model_info info;
    tern_engine_info(e, &info);
    return info.n_vocab;
}

static void tokens(const tern_engine *e, int32_t *ids) {
    for (int i = 0; i < N_TOK; i++)
        ids[i] = (int32_t)(((uint32_t)i * 2654435761u >> 8) % (uint32_t)n_vocab(e));
}

/* Logits of the last of N_TOK tokens, evaluated `step` at a time. */
static void logits(const char *path, const char *scheme, int n_threads, int step, float *out) {
    tern_engine *e = open_engine(path, scheme, n_threads);
    tern_session *s = fixture_session(e, 64, NULL);
    tern_error err = {0};
    int32_t ids[N_TOK];
    tokens(e, ids);
    for (int n = step; n <= N_TOK; n += step)
        if (tern_session_prefill(s, ids, (size_t)n, &err) != TERN_OK) fail_msg("%s", err.message);
    memcpy(out, tern_session_logits(s), (size_t)n_vocab(e) * sizeof *out);
    tern_session_close(&s);
    tern_engine_close(&e);
}

static void close_to_floats(const char *path, double most) {
    static float exact[N_VOCAB_MAX], blocks[N_VOCAB_MAX];
    tern_engine *e = open_engine(path, NULL, 1);
    size_t n = (size_t)n_vocab(e);
    assert_in_range(n, 1, N_VOCAB_MAX);
    tern_engine_close(&e);
    logits(path, "float", 2, N_TOK, exact);
    logits(path, "blocks", 2, N_TOK, blocks);
    double square = 0, off = 0;
    for (size_t i = 0; i < n; i++) {
        square += (double)exact[i] * exact[i];
        off += ((double)exact[i] - blocks[i]) * ((double)exact[i] - blocks[i]);
    }
    /* A row of INT8 loses about 1 / 127 / sqrt(12) of its largest value in every place; the values'
     * rms is a third of that, so a product is off by 0.7 %, and by some times as much after the
     * products of two layers. */
    print_message("%s: off by %.2f %%\n", path, 100 * sqrt(off / square));
    assert_true(sqrt(off / square) < most);
    assert_true(off > 0); /* or the blocks were not used */
}

static void close_to_the_widened_weights(void **state) {
    (void)state;
    const char *paths[] = {fixture, made, experts};
    for (int p = 0; p < 3; p++) close_to_floats(paths[p], 0.05);
}

static void same_bits(const char *path) {
    static float all[N_VOCAB_MAX], some[N_VOCAB_MAX], alone[N_VOCAB_MAX], one_thread[N_VOCAB_MAX];
    logits(path, NULL, 2, N_TOK, all);
    logits(path, NULL, 2, N_TOK / 4, some);
    logits(path, NULL, 2, 1, alone);
    logits(path, NULL, 1, N_TOK, one_thread);
    assert_memory_equal(all, some, sizeof all);
    assert_memory_equal(all, alone, sizeof all);
    assert_memory_equal(all, one_thread, sizeof all);
}

static void rows_and_threads(void **state) {
    (void)state;
    const char *paths[] = {fixture, made, experts};
    for (int p = 0; p < 3; p++) same_bits(paths[p]);
}

/* A dense model and one of experts, of every such type. */
static void types_of_random_blocks(void **state) {
    (void)state;
    static const char *const shapes[] = {"tiny-llama+256", "tiny-qwen3moe+256"};
    for (int i = 0; i < 2 * N_RANDOM_TYPES; i++) {
        char path[300], cmd[700];
        snprintf(path, sizeof path, TN_BINARY_DIR "/blocks-%ld-%s.gguf", (long)getpid(), random_types[i / 2]);
        snprintf(cmd, sizeof cmd, TN_TERN " synth --arch %s --type %s -o %s", shapes[i % 2],
                 random_types[i / 2], path);
        assert_int_equal(system(cmd), 0);
        tern_engine *e = open_engine(path, NULL, 1);
        tern_model_info info;
        tern_engine_info(e, &info);
        assert_string_equal(info.scheme, "blocks");
        tern_engine_close(&e);
        close_to_floats(path, i % 2 ? 0.08 : 0.05); /* a router may choose another expert */
        same_bits(path);
        unlink(path);
    }
}

static void one_copy_of_the_files_size(void **state) {
    (void)state;
    tern_engine *e = open_engine(made, NULL, 1);
    tern_model_info info;
    tern_engine_info(e, &info);
    assert_string_equal(info.scheme, "blocks");
    FILE *f = fopen(made, "rb");
    assert_non_null(f);
    fseek(f, 0, SEEK_END);
    assert_in_range(info.weight_bytes, 1, (uint64_t)ftell(f));
    fclose(f);
    tern_engine_close(&e);
    e = open_engine(TN_SOURCE_DIR "/tests/oracle/fixtures/qwen2.gguf", NULL, 1);
    tern_engine_info(e, &info);
    assert_string_equal(info.scheme, "float"); /* nothing is quantised there */
    tern_engine_close(&e);
}

/* Row 5 of a matrix of the model has a second block whose f16 is NaN. */
static void refuse_nan(const char *model, bool streams, uint64_t block, uint64_t block_bytes, const char *nan,
                       size_t n_nan, uint64_t in_block) {
    tn_ctx ctx;
    tn_ctx_init(&ctx, NULL);
    tn_gguf *g;
    tern_error err = {0};
    assert_int_equal(tn_gguf_open(&ctx, model, &g, &err), TERN_OK);
    const tn_tensor *t = tn_gguf_tensor(g, "blk.1.ffn_down.weight");
    assert_non_null(t);
    assert_int_equal(tn_dtype_block_bytes(t->dtype), block_bytes);
    uint64_t at = t->off_bytes + 5 * (t->dims[1] / block * block_bytes) + block_bytes + in_block;
    tn_gguf_close(&g);
    char path[300];
    snprintf(path, sizeof path, "%s.bad", model);
    fixture_copy(model, path);
    fixture_write_at(path, at, nan, n_nan);
    for (int whole = 0; whole < 2; whole++) { /* what arrives beside the first prompt is looked at then */
        tern_options o;
        tern_engine *e = NULL;
        tern_session *s = NULL;
        const int32_t id = 1;
        tn_options_defaults(&o);
        o.load = whole ? "sequential" : "stream";
        tern_status st = tern_engine_open(path, &o, &e, &err);
        assert_int_equal(st, whole || !streams ? TERN_E_FORMAT : TERN_OK);
        if (st == TERN_OK) {
            s = fixture_session(e, 64, NULL);
            assert_int_equal(tern_session_prefill(s, &id, 1, &err), TERN_E_FORMAT);
            assert_int_equal(tern_session_prefill(s, &id, 1, &err), TERN_E_FORMAT); /* it stays so */
        }
        tern_session_close(&s);
        tern_engine_close(&e);
        if (!strstr(err.message, "blk.1.ffn_down.weight") || !strstr(err.message, "row 5"))
            fail_msg("%s", err.message);
    }
    unlink(path);
}

static void a_scale_that_is_no_number(void **state) {
    (void)state;
    refuse_nan(made, true, 32, 18, "\x00\x7e", 2, 0);
    char path[300], cmd[700];
    snprintf(path, sizeof path, TN_BINARY_DIR "/blocks-%ld-nan.gguf", (long)getpid());
    snprintf(cmd, sizeof cmd, TN_TERN " synth --arch tiny-llama+256 --type iq1_m -o %s", path);
    assert_int_equal(system(cmd), 0);
    /* the f16 is in the high nibbles of four words */
    refuse_nan(path, false, 256, 56, "\x00\x00\x00\x00\x00\xe0\x00\x70", 8, 48);
    unlink(path);
    snprintf(cmd, sizeof cmd, TN_TERN " synth --arch tiny-llama+256 --type q6_0 -o %s", path);
    assert_int_equal(system(cmd), 0);
    refuse_nan(path, false, 32, 26, "\x00\x7e", 2, 0);
    unlink(path);
}

/* A linear of random blocks, whose bytes are such that no scale is NaN or large. */
static void make_linear(tn_blocks_type type, int32_t n, int32_t k, tn_rng *rng, tn_linear *out) {
    size_t bytes = tn_blocks_bytes(type, (size_t)n, (size_t)k);
    uint8_t *tiles = NULL;
    assert_false(posix_memalign((void **)&tiles, 64, bytes));
    for (size_t i = 0; i < bytes; i++) tiles[i] = (uint8_t)tn_rng_below(rng, 48);
    *out = (tn_linear){.n = n, .k = k, .blocks = tiles, .blocks_type = type};
}

/* Linears of a site in several types, and experts each of rows of its own: what the kernels' references say of
 * each alone. */
static void many_linears_at_once(void **state) {
    (void)state;
    enum { K = 512, N_ROWS = 16, N_PRODUCTS = 40, MOST = 80 };
    static const tn_blocks_type types[] = {TN_BLOCKS_Q4_K, TN_BLOCKS_Q4_K, TN_BLOCKS_Q6_K, TN_BLOCKS_Q4_0,
                                           TN_BLOCKS_Q8_0};
    static float x[N_ROWS * K], out[N_PRODUCTS][N_ROWS * MOST], want[N_ROWS * MOST];
    static tn_blocks_act acts[2 * N_ROWS], own[2 * N_ROWS];
    tn_linear linears[N_PRODUCTS];
    tn_product p[N_PRODUCTS];
    tn_rng rng = {7};
    tn_kernels kern;
    tn_pool *pool;
    tn_ctx ctx;
    tn_ctx_init(&ctx, NULL);
    tn_kernels_init(&kern, tn_cpu_flags(NULL));
    assert_int_equal(tn_pool_open(&ctx, 2, &pool, NULL), TERN_OK);
    for (size_t i = 0; i < N_ROWS * K; i++) x[i] = (float)tn_rng_below(&rng, 2001) / 1000 - 1;
    for (int same_rows = 0; same_rows < 2; same_rows++) {
        size_t row = 0;
        for (int i = 0; i < N_PRODUCTS; i++) {
            tn_blocks_type type = types[same_rows ? i % 5 : i / 20 * 3];
            make_linear(type, 48 + i % 3 * 16, K, &rng, &linears[i]);
            size_t m = same_rows ? N_ROWS : 1 + (size_t)(i / 2 % 3) % 2;
            if (i % 2 == 0) row = i % 20 ? row + p[i - 1].m : 0; /* two products of every row */
            p[i] = (tn_product){&linears[i], same_rows ? 0 : row, m, MOST, out[i]};
        }
        memset(out, 0, sizeof out);
        for (int i = 0; i < N_PRODUCTS; i += 20) tn_linears_run(p + i, 20, &kern, pool, x, K, acts);
        for (int i = 0; i < N_PRODUCTS; i++) {
            for (size_t m = 0; m < p[i].m; m++)
                tn_blocks_quantise_ref(linears[i].blocks_type, x + (p[i].row0 + m) * K, K, own + m, p[i].m);
            memset(want, 0, sizeof want);
            tn_blocks_gemm_ref(&(tn_blocks_args){.type = linears[i].blocks_type,
                                                 .tiles = linears[i].blocks,
                                                 .a = own,
                                                 .out = want,
                                                 .ldo = MOST,
                                                 .m = p[i].m,
                                                 .n = (size_t)linears[i].n,
                                                 .k = K,
                                                 .n1 = (size_t)linears[i].n});
            assert_memory_equal(out[i], want, sizeof want);
            free(linears[i].blocks);
        }
    }
    tn_pool_close(&pool);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(close_to_the_widened_weights), cmocka_unit_test(rows_and_threads),
        cmocka_unit_test(types_of_random_blocks),       cmocka_unit_test(one_copy_of_the_files_size),
        cmocka_unit_test(a_scale_that_is_no_number),    cmocka_unit_test(many_linears_at_once)};
    return cmocka_run_group_tests(tests, setup, teardown);
}
