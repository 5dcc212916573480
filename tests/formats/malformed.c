/* GGUF and safetensors files that are cut, bent or hostile: each is one clear line, never a crash (run under
 * ASan too). */
#include "base/file.h"
#include "formats/gguf.h"
#include "formats/safetensors.h"
#include "model/source.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "fixture/fixture.h"

#define FIXTURES TN_SOURCE_DIR "/tests/oracle/fixtures/"

static tn_ctx ctx;

/* Opens exactly n bytes (so that ASan sees a read beyond them). */
static tern_status gguf_of(const uint8_t *bytes, size_t n, tern_error *err) {
    uint8_t *copy = malloc(n ? n : 1);
    memcpy(copy, bytes, n);
    tn_gguf *g;
    err->message[0] = 0;
    tern_status st = tn_gguf_open_memory(&ctx, copy, n, "x.gguf", &g, err);
    assert_true(st == TERN_OK || strlen(err->message) > 8);
    tn_gguf_close(&g);
    free(copy);
    return st;
}

static void gguf_truncated_anywhere(void **state) {
    (void)state;
    size_t n;
    uint8_t *b = fixture_read(FIXTURES "llama.gguf", &n);
    tern_error err;
    assert_int_equal(gguf_of(b, n, &err), TERN_OK);
    size_t step = getenv("TERN_TEST_QUICK") ? 101 : 7;
    for (size_t cut = 0; cut < n - 64; cut += cut < 4096 ? 1 : step) {
        if (gguf_of(b, cut, &err) == TERN_OK) fail_msg("%zu of %zu bytes were accepted", cut, n);
    }
    free(b);
}

static void gguf_bent_anywhere(void **state) {
    (void)state;
    size_t n;
    uint8_t *b = fixture_read(FIXTURES "qwen2.gguf", &n);
    tern_error err;
    size_t end = n < 6000 ? n : 6000;
    for (size_t at = 0; at < end; at++) { /* any answer but a crash */
        static const uint8_t masks[] = {0x01, 0x80, 0xff};
        for (int m = 0; m < 3; m++) {
            b[at] ^= masks[m];
            (void)gguf_of(b, n, &err);
            b[at] ^= masks[m];
        }
    }
    b[0] = 'X';
    assert_int_equal(gguf_of(b, n, &err), TERN_E_FORMAT);
    b[0] = 'G';
    b[4] = 1;
    assert_int_equal(gguf_of(b, n, &err), TERN_E_UNSUPPORTED); /* version 1 */
    memcpy(b + 4, "\0\0\0\3", 4);
    assert_int_equal(gguf_of(b, n, &err), TERN_E_UNSUPPORTED); /* big endian */
    assert_non_null(strstr(err.message, "big-endian"));
    free(b);
}

/* A file written by our writer with one thing wrong. */
static tern_status written(const char *name2, uint64_t dim, tern_error *err) {
    char path[256];
    snprintf(path, sizeof path, TN_BINARY_DIR "/malformed-%ld.gguf", (long)getpid());
    tn_gguf_writer *w;
    assert_int_equal(tn_gguf_create(&ctx, path, &w, err), TERN_OK);
    tn_gguf_put_str(w, "general.architecture", "llama");
    uint64_t dims[2] = {2, 16};
    float data[64] = {0};
    tn_gguf_add_tensor(w, "a.weight", TN_F32, 2, dims);
    tn_gguf_add_tensor(w, name2, TN_F32, 2, dims);
    assert_int_equal(tn_gguf_begin_data(w, err), TERN_OK);
    assert_int_equal(tn_gguf_write(w, data, sizeof data, err), TERN_OK);
    assert_int_equal(tn_gguf_finish(&w, err), TERN_OK);
    size_t n;
    uint8_t *b = fixture_read(path, &n);
    unlink(path);
    if (dim) { /* the first tensor's outer dimension */
        uint8_t *p = NULL;
        for (size_t i = 0; i + 8 < n; i++) {
            if (!memcmp(b + i, "a.weight", 8)) p = b + i + 8 + 4 + 8;
        }
        assert_non_null(p);
        memcpy(p, &dim, 8);
    }
    tern_status st = gguf_of(b, n, err);
    free(b);
    return st;
}

static void gguf_table_lies(void **state) {
    (void)state;
    tern_error err;
    assert_int_equal(written("b.weight", 0, &err), TERN_OK);
    assert_int_equal(written("a.weight", 0, &err), TERN_E_FORMAT);
    assert_non_null(strstr(err.message, "a.weight occurs twice"));
    assert_int_equal(written("b.weight", 3, &err), TERN_E_FORMAT);
    assert_non_null(strstr(err.message, "overlap"));
    assert_int_equal(written("b.weight", UINT64_MAX / 8, &err), TERN_E_FORMAT);
    assert_non_null(strstr(err.message, "a.weight"));
    assert_int_equal(written("b.weight", 1u << 30, &err), TERN_E_FORMAT);
}

static void nothing_beside(const char *path) {
    char pattern[300];
    glob_t found;
    snprintf(pattern, sizeof pattern, "%s?*", path);
    if (!glob(pattern, 0, NULL, &found)) fail_msg("%s was left", found.gl_pathv[0]);
    globfree(&found);
}

static void abandoned_writer_leaves_nothing(void **state) {
    (void)state;
    char path[256];
    tern_error err;
    snprintf(path, sizeof path, TN_BINARY_DIR "/abandoned-%ld.gguf", (long)getpid());
    tn_gguf_writer *w;
    assert_int_equal(tn_gguf_create(&ctx, path, &w, &err), TERN_OK);
    uint64_t dims[1] = {64};
    tn_gguf_add_tensor(w, "a", TN_F32, 1, dims);
    assert_int_equal(tn_gguf_begin_data(w, &err), TERN_OK);
    assert_int_equal(tn_gguf_finish(&w, &err), TERN_E_INVALID); /* its data is missing */
    assert_int_not_equal(access(path, F_OK), 0);
    nothing_beside(path);
    assert_int_equal(tn_gguf_create(&ctx, "/nonexistent/folder/x.gguf", &w, &err), TERN_E_IO);
}

static tern_status st_of(const char *header, size_t n_data, tern_error *err) {
    uint64_t n = strlen(header);
    uint8_t *b = calloc(1, 8 + n + n_data);
    memcpy(b, &n, 8);
    memcpy(b + 8, header, n);
    tn_safetensors *s;
    err->message[0] = 0;
    tern_status st = tn_safetensors_open_memory(&ctx, b, 8 + n + n_data, "x.safetensors", &s, err);
    assert_true(st == TERN_OK || strlen(err->message) > 8);
    tn_safetensors_close(&s);
    free(b);
    return st;
}

static void safetensors_headers(void **state) {
    (void)state;
    tern_error err;
    assert_int_equal(st_of("{\"a\":{\"dtype\":\"F32\",\"shape\":[2,2],\"data_offsets\":[0,16]}}", 16, &err),
                     TERN_OK);
    assert_int_equal(st_of("{\"a\":{\"dtype\":\"F32\",\"shape\":[2,2],\"data_offsets\":[0,16]}}", 15, &err),
                     TERN_E_FORMAT);
    assert_int_equal(st_of("{\"a\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[0,16]}}", 16, &err),
                     TERN_E_FORMAT);
    assert_non_null(strstr(err.message, "tensor a"));
    assert_int_equal(
        st_of("{\"a\":{\"dtype\":\"F32\",\"shape\":[4611686018427387904,4],\"data_offsets\":[0,16]}}", 16,
              &err),
        TERN_E_FORMAT);
    assert_int_equal(st_of("{\"a\":{\"dtype\":\"F32\",\"shape\":[-1],\"data_offsets\":[0,16]}}", 16, &err),
                     TERN_E_FORMAT);
    assert_int_equal(st_of("{\"a\":{\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[16,0]}}", 16, &err),
                     TERN_E_FORMAT);
    assert_int_equal(st_of("{\"a\":{\"dtype\":\"F32\",\"shape\":[4]}}", 16, &err), TERN_E_FORMAT);
    assert_int_equal(st_of("{\"a\":{\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[0,16]},\"b\":{"
                           "\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[8,24]}}",
                           24, &err),
                     TERN_E_FORMAT);
    assert_non_null(strstr(err.message, "overlap"));
    assert_int_equal(st_of("{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]},\"a\":{\"dtype\":"
                           "\"F32\",\"shape\":[1],\"data_offsets\":[4,8]}}",
                           8, &err),
                     TERN_E_FORMAT);
    assert_int_equal(st_of("[]", 0, &err), TERN_E_FORMAT);
    assert_int_equal(st_of("{", 0, &err), TERN_E_FORMAT);
}

/* A folder made of a fixture's config and a changed weights file. */
static tern_status folder_of(const uint8_t *weights, size_t n, tern_error *err) {
    char dir[200], path[300];
    snprintf(dir, sizeof dir, TN_BINARY_DIR "/malformed-%ld", (long)getpid());
    char cmd[700];
    snprintf(cmd, sizeof cmd, "mkdir -p %s && cp " FIXTURES "qwen3/config.json %s/", dir, dir);
    assert_int_equal(system(cmd), 0);
    snprintf(path, sizeof path, "%s/model.safetensors", dir);
    fixture_write(path, weights, n);
    tn_source *s;
    tern_status st = tn_source_open(&ctx, dir, &s, err);
    float buf[64 * 64];
    for (int layer = 0; st == TERN_OK && layer < 2; layer++)
        st = tn_source_read(s, layer, TN_W_DOWN, 0, 40, buf, err);
    tn_source_close(&s);
    snprintf(cmd, sizeof cmd, "rm -r %s", dir);
    assert_int_equal(system(cmd), 0);
    return st;
}

static void replace(uint8_t *b, size_t n, const char *from, const char *to) {
    for (size_t i = 0; i + strlen(from) <= n; i++) {
        if (!memcmp(b + i, from, strlen(from))) memcpy(b + i, to, strlen(to));
    }
}

static void weights_missing_bent_or_nan(void **state) {
    (void)state;
    size_t n;
    uint8_t *b = fixture_read(FIXTURES "qwen3/model.safetensors", &n);
    tern_error err;
    assert_int_equal(folder_of(b, n, &err), TERN_OK);
    for (size_t cut = 0; cut < n; cut += n / 23) assert_int_not_equal(folder_of(b, cut, &err), TERN_OK);
    replace(b, n, "layers.1.mlp.down_proj", "layers.1.mlp.gone_proj");
    assert_int_equal(folder_of(b, n, &err), TERN_E_FORMAT);
    assert_non_null(strstr(err.message, "model.layers.1.mlp.down_proj.weight is missing"));
    replace(b, n, "layers.1.mlp.gone_proj", "layers.1.mlp.down_proj");
    tn_safetensors *s;
    assert_int_equal(tn_safetensors_open_memory(&ctx, b, n, "q", &s, &err), TERN_OK);
    const tn_tensor *t = tn_safetensors_tensor(s, "model.layers.1.mlp.down_proj.weight");
    assert_non_null(t);
    memset((uint8_t *)t->data + t->size_bytes - 4, 0xff, 4); /* NaN in every type */
    tn_safetensors_close(&s);
    assert_int_equal(folder_of(b, n, &err), TERN_E_FORMAT);
    assert_non_null(strstr(err.message, "NaN"));
    assert_non_null(strstr(err.message, "down_proj"));
    free(b);
}

int main(void) {
    tn_ctx_init(&ctx, NULL);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gguf_truncated_anywhere), cmocka_unit_test(gguf_bent_anywhere),
        cmocka_unit_test(gguf_table_lies),         cmocka_unit_test(abandoned_writer_leaves_nothing),
        cmocka_unit_test(safetensors_headers),     cmocka_unit_test(weights_missing_bent_or_nan),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
