/* Are single and sharded files read as they are, and is every malformed one refused with one line naming
 * file, tensor and offset? */
#include "formats/safetensors.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "fixture/fixture.h"

static tn_ctx ctx;

static size_t make(uint8_t *out, const char *header, size_t n_data) {
    uint64_t n = strlen(header);
    memcpy(out, &n, 8);
    memcpy(out + 8, header, n);
    for (size_t i = 0; i < n_data; i++) out[8 + n + i] = (uint8_t)i;
    return 8 + n + n_data;
}

static tern_status open_n(const uint8_t *b, size_t n, tern_error *err) {
    uint8_t *copy = malloc(n ? n : 1); /* exact: reads beyond it are seen by ASan */
    assert_non_null(copy);
    memcpy(copy, b, n);
    tn_safetensors *s = NULL;
    *err = (tern_error){0};
    tern_status st = tn_safetensors_open_memory(&ctx, copy, n, "f.safetensors", &s, err);
    if (st == TERN_OK) tn_safetensors_close(&s);
    else assert_null(s);
    free(copy);
    return st;
}

#define TWO                                                                                                  \
    "{\"__metadata__\":{\"format\":\"pt\"},\"a\":{\"dtype\":\"F32\",\"shape\":[2,1],\"data_offsets\":[0,8]}" \
    ",\"b\":{\"dtype\":\"BF16\",\"shape\":[3],\"data_offsets\":[8,14]}}"

static void contents(void **state) {
    (void)state;
    uint8_t b[512];
    size_t n = make(b, TWO, 14);
    tern_error err = {0};
    tn_safetensors *s;
    assert_int_equal(tn_safetensors_open_memory(&ctx, b, n, "f", &s, &err), TERN_OK);
    assert_int_equal(tn_safetensors_n_tensors(s), 2);
    const tn_tensor *t = tn_safetensors_tensor(s, "b");
    assert_non_null(t);
    assert_true(t->dtype == TN_BF16 && t->n_dims == 1 && t->dims[0] == 3 && t->dims[1] == 1 &&
                t->size_bytes == 6 && t->data[0] == 8 && t->off_bytes == n - 6);
    assert_null(tn_safetensors_tensor(s, "__metadata__"));
    tn_safetensors_close(&s);
    tn_safetensors_close(&s);
}

static void every_truncation_is_refused(void **state) {
    (void)state;
    uint8_t b[512];
    size_t n = make(b, TWO, 14);
    tern_error err;
    for (size_t k = 0; k < n; k++) {
        assert_int_equal(open_n(b, k, &err), TERN_E_FORMAT);
        assert_non_null(strstr(err.message, "f.safetensors: "));
    }
    assert_int_equal(open_n(b, n, &err), TERN_OK);
}

#define ONE(dtype, shape, offsets)                                                                           \
    "{\"a\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":" offsets "}}"

static void malformed(void **state) {
    (void)state;
    static const struct {
        const char *header, *part;
    } cases[] = {
        {"[1]", "not a JSON object"},
        {"{", "not a JSON object"},
        {"", "not a JSON object"},
        {"{\"a\":1}", "tensor a in the header at offset 8 lacks"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1]}}", "tensor a in the header at offset 8 lacks"},
        {ONE("F32", "[1]", "[\"0\",\"4\"]"), "tensor a in the header at offset 8 lacks"},
        {ONE("F32", "[1]", "[0]"), "tensor a in the header at offset 8 lacks"},
        {ONE("F32", "[1]", "[0,99]"), " more are missing"},
        {ONE("F32", "[1]", "[4,0]"), "tensor a needs bytes 4 to 0"},
        {ONE("F32", "[1]", "[-4,0]"), "tensor a needs bytes -4 to 0"},
        {ONE("F32", "[-1]", "[0,4]"), "impossible dimensions"},
        {ONE("F32", "[1.5]", "[0,4]"), "impossible dimensions"},
        {ONE("F32", "[4611686018427387904,4]", "[0,0]"), "impossible dimensions"},
        {ONE("F32", "[4611686018427387904]", "[0,0]"), "impossible dimensions"},
        {ONE("F32", "[1,1,1,1,1,1]", "[0,4]"), "has 6 dimensions"},
        {ONE("F32", "[2]", "[0,4]"), "of 2 F32 values takes 8 bytes, the file says 4"},
        {ONE("F16", "[2]", "[0,8]"), "of 2 F16 values takes 4 bytes, the file says 8"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]},\"b\":{\"dtype\":\"F32\",\"shape\":"
         "[1],\"data_offsets\":[4,8]}}",
         "tensors a and b overlap at offset"},
        /* an empty tensor between two others does not hide their overlap */
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]},\"e\":{\"dtype\":\"F32\",\"shape\":"
         "[0],\"data_offsets\":[2,2]},"
         "\"b\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,8]}}",
         "tensors a and b overlap at offset"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]},\"a\":{\"dtype\":\"F32\",\"shape\":"
         "[1],\"data_offsets\":[4,8]}}",
         "duplicate"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        uint8_t b[1024];
        tern_error err;
        size_t n = make(b, cases[i].header, 8);
        tern_status st = open_n(b, n, &err);
        if (st != TERN_E_FORMAT || !strstr(err.message, cases[i].part) ||
            !strstr(err.message, "f.safetensors"))
            fail_msg("case %zu: status %d, '%s'", i, st, err.message);
    }
    uint8_t huge[16] = {0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff};
    tern_error err;
    assert_int_equal(open_n(huge, sizeof huge, &err), TERN_E_FORMAT);
}

/* ---- shards ------------------------------------------------------------------------------------------- */

static char folder[64] = "/tmp/tern-safetensors-XXXXXX";

static void put(const char *name, const void *data, size_t n) {
    char path[256];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    fixture_write(path, data, n);
}

static void index_says(const char *json, tern_status want, const char *part) {
    put("model.safetensors.index.json", json, strlen(json));
    tern_error err = {0};
    tn_safetensors *s = NULL;
    tern_status st = tn_safetensors_open(&ctx, folder, &s, &err);
    if (st != want || (part && !strstr(err.message, part)))
        fail_msg("%s: status %d, '%s'", json, st, err.message);
    if (st == TERN_OK) {
        assert_int_equal(tn_safetensors_n_tensors(s), 2);
        assert_non_null(strstr(tn_safetensors_tensor(s, "b")->file, "two"));
    }
    tn_safetensors_close(&s);
}

static void shards(void **state) {
    (void)state;
    uint8_t b[512];
    put("one", b, make(b, ONE("F32", "[1]", "[0,4]"), 4));
    put("two", b, make(b, "{\"b\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4));
    index_says("{\"weight_map\":{\"a\":\"one\",\"b\":\"two\"}}", TERN_OK, NULL);
    index_says("{\"weight_map\":{\"a\":\"one\",\"b\":\"three\"}}", TERN_E_IO, "three");
    index_says("{\"weight_map\":{\"a\":\"one\",\"b\":\"../two\"}}", TERN_E_FORMAT,
               "tensor b names no file in this folder");
    index_says("{\"weight_map\":{\"a\":7}}", TERN_E_FORMAT, "tensor a");
    index_says("{\"weight_map\":[]}", TERN_E_FORMAT, "no weight_map");
    index_says("{", TERN_E_FORMAT, "line 1");
    put("two", b, make(b, ONE("F32", "[1]", "[0,4]"), 4));
    index_says("{\"weight_map\":{\"a\":\"one\",\"b\":\"two\"}}", TERN_E_FORMAT, "tensor a occurs twice");
}

static void remove_folder(void) {
    static const char *const names[] = {"one", "two", "model.safetensors.index.json"};
    char path[256];
    for (size_t i = 0; i < 3; i++) {
        snprintf(path, sizeof path, "%s/%s", folder, names[i]);
        (void)remove(path);
    }
    (void)rmdir(folder);
}

int main(void) {
    tn_ctx_init(&ctx, NULL);
    if (!mkdtemp(folder)) return 1;
    const struct CMUnitTest tests[] = {cmocka_unit_test(contents),
                                       cmocka_unit_test(every_truncation_is_refused),
                                       cmocka_unit_test(malformed), cmocka_unit_test(shards)};
    int rc = cmocka_run_group_tests(tests, NULL, NULL);
    remove_folder();
    return rc;
}
