/* GGUF files by our rounding: a row's blocks are as close to its outputs as their format allows, and closer than
 * when each weight is rounded for itself; a written file has the source's keys and tensors, each weight where it was
 * (rows of queries and keys lie in another order in some files, parts of fused tensors behind each other); what does
 * not go together is refused. */
#include "base/cpu.h"
#include "base/rng.h"
#include "formats/gguf.h"
#include "quant/pack.h"
#include "quant/round_blocks.h"
#include "session/session.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cmocka.h>

#include "fixture/fixture.h"

enum { N_TOK = 300, K = 512, ROWS = 16, ROW_BYTES_MAX = K / 256 * 210 };

/* Mean square of the difference of a row's outputs. */
static double output_error(tn_dtype d, const float *x, const float *w, const uint8_t *blocks) {
    float v[K];
    double sum = 0;
    tn_dequantise(d, blocks, v, K);
    for (int t = 0; t < N_TOK; t++) {
        double y = 0;
        for (int i = 0; i < K; i++) y += (double)x[t * K + i] * ((double)w[i] - (double)v[i]);
        sum += y * y / N_TOK;
    }
    return sum;
}

static void rows_of(tn_dtype d, const tn_factor *f, const tn_kernels *kern, const float *x, const float *w) {
    static uint8_t with[ROWS * ROW_BYTES_MAX], without[ROWS * ROW_BYTES_MAX], alone[ROW_BYTES_MAX];
    const tn_block_form *form = tn_block_form_of(d);
    const size_t row = (size_t)(K / form->n * form->n_bytes);
    const tn_factor none = {.ctx = f->ctx, .k = K};
    assert_int_equal(form->n_bytes, tn_dtype_block_bytes(d));
    float *scratch = malloc(tn_round_blocks_scratch(f) * sizeof *scratch);
    tn_round_blocks(&none, kern, form, w, ROWS, without, scratch);
    tn_round_blocks(f, kern, form, w, ROWS, with, scratch);
    double errors[2] = {0}, all = 0, off = 0;
    for (size_t r = 0; r < ROWS; r++) {
        float v[K];
        errors[0] += output_error(d, x, w + r * K, with + r * row);
        errors[1] += output_error(d, x, w + r * K, without + r * row);
        tn_round_blocks(f, kern, form, w + r * K, 1, alone, scratch); /* rows do not depend on each other */
        assert_memory_equal(alone, with + r * row, row);
        tn_dequantise(d, without + r * row, v, K);
        for (size_t i = 0; i < K; i++) {
            const double e = (double)w[r * K + i] - (double)v[i];
            off += e * e, all += (double)w[r * K + i] * (double)w[r * K + i];
        }
    }
    print_message("%s: error of outputs %.4g, of weights rounded for themselves %.4g; of these %.4f\n",
                  tn_dtype_name(d), errors[0], errors[1], sqrt(off / all));
    /* uniform weights: a step of 1/n of the range leaves 1/n of the root of their mean square, for n codes */
    const double n_steps = form->list ? 15 : (double)(form->high - form->low);
    assert_true(sqrt(off / all) < 1.15 / n_steps);
    assert_true(errors[0] < 0.6 * errors[1]);
    assert_true(output_error(d, x, w + 3 * K, with + 3 * row) == 0);
    free(scratch);
}

static void rows_of_blocks(void **state) {
    (void)state;
    tn_rng rng = {7};
    tn_ctx ctx;
    tn_pool *pool;
    tn_kernels kern;
    tern_error err;
    tn_ctx_init(&ctx, NULL);
    tn_kernels_init(&kern, tn_cpu_flags(NULL));
    must(tn_pool_open(&ctx, 2, &pool, &err), &err);
    static float x[N_TOK * K], w[ROWS * K];
    float cause[12];
    for (int t = 0; t < N_TOK; t++) {
        for (int c = 0; c < 12; c++) cause[c] = (float)(tn_rng_f64(&rng) - 0.5);
        for (int i = 0; i < K; i++)
            x[t * K + i] = cause[i % 12] + cause[i * 5 % 11] + 0.1f * (float)(tn_rng_f64(&rng) - 0.5);
    }
    for (int i = 0; i < ROWS * K; i++) w[i] = (float)(tn_rng_f64(&rng) - 0.5);
    memset(w + 3 * K, 0, K * sizeof *w); /* a row of zeros, and a block */
    memset(w + 5 * K + 32, 0, 32 * sizeof *w);
    tn_factor f;
    must(tn_factor_make(&ctx, pool, &kern, x, N_TOK, K, 0.01f, TN_GRAM_BLOCK_MAX, &f, &err), &err);
    static const tn_dtype types[] = {TN_Q4_0, TN_Q5_0, TN_Q4_K, TN_Q5_K, TN_Q6_K, TN_IQ4_NL, TN_IQ4_XS};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) rows_of(types[i], &f, &kern, x, w);
    tn_factor_close(&f);
    tn_pool_close(&pool);
}

static tern_status pack_as(const char *form, const char *model, const char *out, tern_error *err) {
    tn_ctx ctx;
    tn_ctx_init(&ctx, NULL);
    tn_pack_options o;
    tn_pack_defaults(&o);
    o.gguf_form = tn_gguf_form_named(form);
    assert_non_null(o.gguf_form);
    o.calib_tokens = 256;
    o.own_tokens = 0;
    return tn_pack(&ctx, model, out, &o, NULL, err);
}

static tern_status pack(const char *model, const char *out, tern_error *err) {
    return pack_as("q4_0", model, out, err);
}

static void same_keys(const tn_gguf *a, const tn_gguf *b, int64_t file_type) {
    size_t n_same = 0;
    for (size_t i = 0; i < tn_gguf_n_keys(a); i++) {
        size_t n, n_other;
        uint64_t n_bytes, n_other_bytes;
        const char *key = tn_gguf_key_at(a, i, &n);
        const uint8_t *bytes = tn_gguf_key_bytes(a, i, &n_bytes);
        if (n == 17 && !memcmp(key, "general.file_type", n)) continue;
        for (size_t k = 0; k < tn_gguf_n_keys(b); k++) {
            const char *other = tn_gguf_key_at(b, k, &n_other);
            if (n != n_other || memcmp(key, other, n)) continue;
            const uint8_t *theirs = tn_gguf_key_bytes(b, k, &n_other_bytes);
            assert_int_equal(n_bytes, n_other_bytes);
            assert_memory_equal(bytes, theirs, n_bytes);
            n_same++;
        }
    }
    assert_true(n_same + 2 >= tn_gguf_n_keys(a) && n_same > 10);
    int64_t type = 0;
    assert_true(tn_gguf_i64(b, "general.file_type", &type) && type == file_type);
}

/* Each weight where it was: row by row, what rounding changed is small beside the row. */
static void close_tensor(const tn_tensor *a, const tn_tensor *b) {
    assert_memory_equal(a->dims, b->dims, sizeof a->dims);
    if (b->dtype == a->dtype) {
        assert_memory_equal(a->data, b->data, a->size_bytes);
        return;
    }
    assert_true(b->dtype == TN_Q8_0 || tn_block_form_of(b->dtype));
    const uint64_t k = a->dims[a->n_dims - 1], n = a->size_bytes / 2 / k;
    float *x = malloc(k * sizeof *x), *y = malloc(k * sizeof *y);
    for (uint64_t r = 0; r < n; r++) {
        double off = 0, all = 0;
        tn_dequantise(a->dtype, a->data + r * k * 2, x, k);
        tn_dequantise(b->dtype, b->data + r * (b->size_bytes / n), y, k);
        for (uint64_t i = 0; i < k; i++) {
            off += ((double)x[i] - (double)y[i]) * ((double)x[i] - (double)y[i]);
            all += (double)x[i] * (double)x[i];
        }
        if (!(off < (b->dtype == TN_Q8_0 ? 0.001 : 0.2) * all))
            fail_msg("%s: row %d is off by %.2f", b->name, (int)r, sqrt(off / all));
    }
    free(x), free(y);
}

static void files_keep_their_weights(void **state) {
    (void)state;
    static const char *const names[] = {"tiny-llama", "tiny-phi3", "tiny-qwen2", "tiny-qwen3moe",
                                        "tiny-lfm2"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char model[FIXTURE_PATH], out[FIXTURE_PATH];
        tern_error err;
        fixture_model(model, "from.gguf", names[i], 3, TN_F16);
        fixture_file(out, "to.gguf");
        must(pack(model, out, &err), &err);
        tn_ctx ctx;
        tn_ctx_init(&ctx, NULL);
        tn_gguf *a, *b;
        must(tn_gguf_open(&ctx, model, &a, &err), &err);
        must(tn_gguf_open(&ctx, out, &b, &err), &err);
        same_keys(a, b, 2);
        assert_int_equal(tn_gguf_n_tensors(a), tn_gguf_n_tensors(b));
        size_t n_blocks = 0;
        for (size_t t = 0; t < tn_gguf_n_tensors(a); t++) {
            const tn_tensor *to = tn_gguf_tensor_at(b, t);
            assert_string_equal(tn_gguf_tensor_at(a, t)->name, to->name);
            close_tensor(tn_gguf_tensor_at(a, t), to);
            n_blocks += to->dtype == TN_Q4_0;
        }
        assert_true(n_blocks >= 8);
        tn_gguf_close(&a);
        tn_gguf_close(&b);
        struct tern_engine *e = fixture_engine(out, NULL);
        assert_non_null(e);
        tern_engine_close(&e);
        remove(out);
    }
}

/* Of a file: how many tensors have this type. */
static int n_of(const tn_gguf *g, tn_dtype d) {
    int n = 0;
    for (size_t t = 0; t < tn_gguf_n_tensors(g); t++) n += tn_gguf_tensor_at(g, t)->dtype == d;
    return n;
}

/* Wide rows take blocks of 256, some matrices more bits; narrow rows blocks of 32. */
static void forms(void **state) {
    (void)state;
    static const struct {
        const char *form, *model;
        int64_t file_type;
        tn_dtype most, more, output;
    } cases[] = {{"q4_k_m", "tiny-llama+256", 15, TN_Q4_K, TN_Q6_K, TN_Q6_K},
                 {"Q5_K_M", "tiny-llama+256", 17, TN_Q5_K, TN_Q6_K, TN_Q6_K},
                 {"q4_k_s", "tiny-llama+256", 14, TN_Q4_K, TN_Q4_K, TN_Q6_K},
                 {"q6_k", "tiny-llama+256", 18, TN_Q6_K, TN_Q6_K, TN_Q6_K},
                 {"iq4_xs", "tiny-llama+256", 30, TN_IQ4_XS, TN_IQ4_XS, TN_Q6_K},
                 {"IQ4_XS", "tiny-llama", 30, TN_IQ4_NL, TN_IQ4_NL, TN_Q8_0},
                 {"Q4_K_M", "tiny-llama", 15, TN_Q5_0, TN_Q8_0, TN_Q8_0}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char model[FIXTURE_PATH], out[FIXTURE_PATH];
        tern_error err;
        tn_ctx ctx;
        tn_ctx_init(&ctx, NULL);
        tn_gguf *a, *b;
        fixture_model(model, "from.gguf", cases[i].model, 3, TN_F16);
        fixture_file(out, "to.gguf");
        must(pack_as(cases[i].form, model, out, &err), &err);
        must(tn_gguf_open(&ctx, model, &a, &err), &err);
        must(tn_gguf_open(&ctx, out, &b, &err), &err);
        same_keys(a, b, cases[i].file_type);
        for (size_t t = 0; t < tn_gguf_n_tensors(a); t++)
            close_tensor(tn_gguf_tensor_at(a, t), tn_gguf_tensor_at(b, t));
        assert_int_equal(tn_gguf_tensor(b, "output.weight")->dtype, cases[i].output);
        assert_int_equal(tn_gguf_tensor(b, "blk.0.attn_q.weight")->dtype, cases[i].most);
        assert_int_equal(tn_gguf_tensor(b, "blk.1.ffn_down.weight")->dtype, cases[i].more);
        assert_int_equal(tn_gguf_tensor(b, "blk.1.attn_v.weight")->dtype, cases[i].more);
        assert_int_equal(tn_gguf_tensor(b, "blk.0.ffn_down.weight")->dtype, cases[i].most);
        assert_true(n_of(b, cases[i].most) >= 8);
        tn_gguf_close(&a);
        tn_gguf_close(&b);
        struct tern_engine *e = fixture_engine(out, NULL);
        assert_non_null(e);
        tern_engine_close(&e);
        remove(out);
    }
    assert_null(tn_gguf_form_named("q4_1"));
}

/* The tensors first .. end - 1 of a file as part i of n, with its keys. */
static void write_part(const tn_gguf *g, const char *path, uint32_t i, uint32_t n, size_t first, size_t end) {
    static const char *const none[] = {NULL};
    tn_gguf_writer *to;
    tn_ctx ctx;
    tern_error err;
    tn_ctx_init(&ctx, NULL);
    must(tn_gguf_create(&ctx, path, &to, &err), &err);
    tn_gguf_put_keys(to, g, none);
    tn_gguf_put_u32(to, "general.alignment", 32);
    tn_gguf_put_u32(to, "split.no", i);
    tn_gguf_put_u32(to, "split.count", n);
    for (size_t t = first; t < end; t++) {
        const tn_tensor *from = tn_gguf_tensor_at(g, t);
        tn_gguf_add_tensor(to, from->name, from->dtype, from->n_dims, from->dims);
    }
    must(tn_gguf_begin_data(to, &err), &err);
    for (size_t t = first; t < end; t++) {
        const tn_tensor *from = tn_gguf_tensor_at(g, t);
        must(tn_gguf_write(to, from->data, from->size_bytes, &err), &err);
    }
    must(tn_gguf_finish(&to, &err), &err);
}

/* A split file becomes one, whose layout is its own; none of its parts is written over. */
static void split_files(void **state) {
    (void)state;
    char model[FIXTURE_PATH], parts[2][FIXTURE_PATH], out[FIXTURE_PATH];
    tern_error err = {0};
    tn_ctx ctx;
    tn_ctx_init(&ctx, NULL);
    tn_gguf *a, *b;
    int64_t value;
    fixture_model(model, "from.gguf", "tiny-qwen2", 3, TN_F16);
    fixture_file(parts[0], "split-00001-of-00002.gguf");
    fixture_file(parts[1], "split-00002-of-00002.gguf");
    fixture_file(out, "to.gguf");
    must(tn_gguf_open(&ctx, model, &a, &err), &err);
    write_part(a, parts[0], 0, 2, 0, 5);
    write_part(a, parts[1], 1, 2, 5, tn_gguf_n_tensors(a));
    for (int i = 0; i < 2; i++)
        assert_int_equal(pack(parts[0], parts[i], &err), i ? TERN_E_IO : TERN_E_INVALID);
    must(pack(parts[0], out, &err), &err);
    must(tn_gguf_open(&ctx, out, &b, &err), &err);
    assert_false(tn_gguf_i64(b, "split.count", &value));
    assert_false(tn_gguf_i64(b, "general.alignment", &value));
    assert_int_equal(tn_gguf_n_tensors(a), tn_gguf_n_tensors(b));
    for (size_t t = 0; t < tn_gguf_n_tensors(a); t++)
        close_tensor(tn_gguf_tensor_at(a, t), tn_gguf_tensor_at(b, t));
    tn_gguf_close(&a);
    tn_gguf_close(&b);
    remove(out);
    for (int i = 0; i < 2; i++) remove(parts[i]);
}

/* Files that are there stay: another model, the source under its name, by a link of either kind, or by a longer way, and
 * one that comes while the work is done. */
static const char *comes;

static bool put_there(void *user, const char *stage, double fraction) {
    (void)user, (void)stage, (void)fraction;
    FILE *f = fopen(comes, "wb");
    assert_true(f && fputs("GGUF of somebody else", f) >= 0 && !fclose(f));
    return true;
}

static void nothing_is_written_over(void **state) {
    (void)state;
    char model[FIXTURE_PATH], other[FIXTURE_PATH], hard[FIXTURE_PATH], soft[FIXTURE_PATH], text[64] = "";
    struct stat was, is;
    tern_error err = {0};
    fixture_model(model, "from.gguf", "tiny-llama", 3, TN_F16);
    fixture_model(other, "precious.gguf", "tiny-llama", 4, TN_F16);
    fixture_file(hard, "hard.gguf");
    fixture_file(soft, "soft.gguf");
    remove(hard), remove(soft);
    assert_int_equal(link(model, hard) | symlink(other, soft), 0);
    const struct {
        const char *out;
        tern_status st;
    } tries[] = {{model, TERN_E_INVALID}, {hard, TERN_E_INVALID}, {other, TERN_E_IO}, {soft, TERN_E_IO}};
    for (size_t i = 0; i < sizeof tries / sizeof *tries; i++) {
        assert_int_equal(stat(tries[i].out, &was), 0);
        assert_int_equal(pack(model, tries[i].out, &err), tries[i].st);
        assert_int_equal(stat(tries[i].out, &is), 0);
        assert_true(is.st_ino == was.st_ino && is.st_size == was.st_size &&
                    is.st_mtim.tv_nsec == was.st_mtim.tv_nsec);
    }
    tn_ctx ctx;
    tern_hooks hooks;
    tern_hooks_defaults(&hooks);
    hooks.progress = put_there;
    tn_ctx_init(&ctx, &hooks);
    tn_pack_options o;
    tn_pack_defaults(&o);
    o.gguf_form = tn_gguf_form_named("q4_0");
    o.calib_tokens = 64;
    o.own_tokens = 0;
    remove(hard);
    comes = hard;
    assert_int_equal(tn_pack(&ctx, model, hard, &o, NULL, &err), TERN_E_IO);
    FILE *f = fopen(hard, "rb");
    assert_true(f && fread(text, 1, sizeof text - 1, f) == 21 && !fclose(f));
    assert_string_equal(text, "GGUF of somebody else");
    remove(hard), remove(soft), remove(other);
}

static void refused(void **state) {
    (void)state;
    char model[FIXTURE_PATH], out[FIXTURE_PATH];
    tern_error err = {0};
    fixture_model(model, "from.gguf", "tiny-llama", 3, TN_F16);
    fixture_file(out, "to.gguf");
    assert_int_equal(pack(TN_SOURCE_DIR "/models/tern-tiny", out, &err), TERN_E_UNSUPPORTED); /* a folder */
    assert_non_null(strstr(err.message, "folder"));
    assert_int_equal(pack(model, model, &err), TERN_E_INVALID); /* itself */
    tn_ctx ctx;
    tn_ctx_init(&ctx, NULL);
    tn_pack_options o;
    tn_pack_defaults(&o);
    o.gguf_form = tn_gguf_form_named("q4_0");
    o.bits = 5;
    assert_int_equal(tn_pack(&ctx, model, out, &o, NULL, &err), TERN_E_INVALID);
    assert_null(fopen(out, "rb"));
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(rows_of_blocks),
                                       cmocka_unit_test(files_keep_their_weights),
                                       cmocka_unit_test(forms),
                                       cmocka_unit_test(split_files),
                                       cmocka_unit_test(nothing_is_written_over),
                                       cmocka_unit_test(refused)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
