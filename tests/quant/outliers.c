/* Scheme gram on a model with outlier channels. models/tern-tiny gets some in every layer without a change of
 * what it computes: a power of two moves between a tensor and its only readers. Packing should take that back,
 * so a package of it loses about what one of the plain model loses. */
#include "measure/eval.h"
#include "quant/pack.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "fixture/fixture.h"

#define MODEL TN_SOURCE_DIR "/models/tern-tiny"

enum { N_LAYERS = 10, D_HEAD = 64, N_HEADS = 4, N_KV_HEADS = 2 };

static char folder[512], weights[600], package[600];

typedef struct file {
    char *bytes; /* a length of 8 bytes, a header of that many, the tensors */
    size_t n;
} file;

static file load(const char *path) {
    file f = {0};
    f.bytes = fixture_read(path, &f.n);
    return f;
}

/* A tensor's bf16 values; shape [rows][cols], a vector has one row. */
static uint16_t *tensor(const file *f, int layer, const char *what, long *rows, long *cols) {
    char name[96];
    snprintf(name, sizeof name, "\"model.layers.%d.%s.weight\":", layer, what);
    const char *at = strstr(f->bytes + 8, name);
    assert_non_null(at);
    long begin;
    *rows = 1;
    at = strstr(at, "\"shape\":[");
    if (sscanf(at, "\"shape\":[%ld,%ld]", rows, cols) != 2) {
        *rows = 1;
        assert_int_equal(sscanf(at, "\"shape\":[%ld]", cols), 1);
    }
    assert_int_equal(sscanf(strstr(at, "\"data_offsets\":["), "\"data_offsets\":[%ld,", &begin), 1);
    uint64_t header;
    memcpy(&header, f->bytes, 8);
    return (uint16_t *)(void *)(f->bytes + 8 + header + begin);
}

/* Adds to the exponent of a row (col < 0) or a column (row < 0). */
static void scale(const file *f, int layer, const char *what, long row, long col, int exponent) {
    long rows, cols;
    uint16_t *w = tensor(f, layer, what, &rows, &cols);
    assert_true(row < rows && col < cols);
    for (long r = row < 0 ? 0 : row; r < (row < 0 ? rows : row + 1); r++)
        for (long c = col < 0 ? 0 : col; c < (col < 0 ? cols : col + 1); c++) {
            uint16_t *at = w + r * cols + c;
            if (*at & 0x7f80) *at = (uint16_t)(*at + exponent * 128); /* not zero */
        }
}

/* Norm's outputs times 32, rows of V times 32, rows of up times 64; what reads them takes it back. */
static void inject(const file *f) {
    for (int l = 0; l < N_LAYERS; l++) {
        const long c = 17 + 11 * l, v = 5 + 7 * l, u = 100 + 61 * l;
        scale(f, l, "input_layernorm", 0, c, 5);
        scale(f, l, "self_attn.q_proj", -1, c, -5);
        scale(f, l, "self_attn.k_proj", -1, c, -5);
        scale(f, l, "self_attn.v_proj", -1, c, -5);
        scale(f, l, "post_attention_layernorm", 0, c + 3, 5);
        scale(f, l, "mlp.gate_proj", -1, c + 3, -5);
        scale(f, l, "mlp.up_proj", -1, c + 3, -5);
        scale(f, l, "self_attn.v_proj", v, -1, 5);
        const long group = N_HEADS / N_KV_HEADS, head = v / D_HEAD * group;
        for (long h = head; h < head + group; h++)
            scale(f, l, "self_attn.o_proj", -1, h * D_HEAD + v % D_HEAD, -5);
        scale(f, l, "mlp.up_proj", u, -1, 6);
        scale(f, l, "mlp.down_proj", -1, u, -6);
    }
}

static int setup(void **state) {
    (void)state;
    snprintf(folder, sizeof folder, TN_BINARY_DIR "/outliers-%ld", (long)getpid());
    snprintf(weights, sizeof weights, "%s/model.safetensors", folder);
    snprintf(package, sizeof package, "%s/x.tern", folder);
    assert_int_equal(mkdir(folder, 0700), 0);
    static const char *const same[] = {"config.json", "tokenizer.json", "tokenizer_config.json"};
    for (size_t i = 0; i < sizeof same / sizeof *same; i++) {
        char from[1024], to[1024];
        snprintf(from, sizeof from, MODEL "/%s", same[i]);
        snprintf(to, sizeof to, "%s/%s", folder, same[i]);
        assert_int_equal(symlink(from, to), 0);
    }
    file f = load(MODEL "/model.safetensors");
    inject(&f);
    fixture_write(weights, f.bytes, f.n);
    free(f.bytes);
    return 0;
}

static int teardown(void **state) {
    (void)state;
    char command[1100];
    snprintf(command, sizeof command, "rm -rf '%s'", folder);
    return system(command);
}

/* KL of a package of 4 bits from the model it was made of. */
static tn_estimate loss_of(const char *model) {
    tern_error err = {0};
    tn_ctx ctx;
    tn_ctx_init(&ctx, NULL);
    tn_pack_options o;
    tn_pack_defaults(&o);
    o.scheme = TN_SCHEME_GRAM;
    o.bits = 4;
    o.calib_path = MODEL "/calib.txt";
    o.calib_tokens = 1024;
    tn_pack_report report;
    unlink(package);
    if (tn_pack(&ctx, model, package, &o, &report, &err) != TERN_OK) fail_msg("%s", err.message);
    tern_engine *source = NULL, *e = NULL;
    if (tern_engine_open(model, NULL, &source, &err) != TERN_OK ||
        tern_engine_open(package, NULL, &e, &err) != TERN_OK)
        fail_msg("%s", err.message);
    const tn_eval_options eo = {
        .task = "ppl", .data = MODEL "/eval/english.txt", .n_ctx = 256, .limit = 6, .source = source};
    tn_eval_result r;
    if (tn_eval(e, &eo, &r, &err) != TERN_OK) fail_msg("%s", err.message);
    tern_engine_close(&e);
    tern_engine_close(&source);
    print_message("%s: KL %.5f +- %.5f\n", model, r.loss.kl.value, r.loss.kl.stderr_);
    return r.loss.kl;
}

static void outliers_are_taken_back(void **state) {
    (void)state;
    if (getenv("TERN_TEST_QUICK")) skip(); /* quality.c has the same code */
    const tn_estimate plain = loss_of(MODEL), with = loss_of(folder);
    assert_true(plain.value > 0.002); /* the measure sees errors */
    assert_true(with.value < 1.15 * plain.value);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(outliers_are_taken_back)};
    return cmocka_run_group_tests(tests, setup, teardown);
}
