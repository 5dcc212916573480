/* Does the reader give back what a GGUF file holds, does the writer write files it reads, and is every
 * malformed file refused with one line that names file, tensor and offset? */
#include "formats/gguf.h"

#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static tn_ctx ctx;

/* A file in the making, well-formed or not. */
typedef struct bytes {
    uint8_t b[4096];
    size_t n;
} bytes;

static void raw(bytes *o, const void *p, size_t n) {
    assert_true(o->n + n <= sizeof o->b);
    memcpy(o->b + o->n, p, n);
    o->n += n;
}
static void u32(bytes *o, uint32_t v) { raw(o, &v, 4); }
static void u64(bytes *o, uint64_t v) { raw(o, &v, 8); }
static void text(bytes *o, const char *s) {
    u64(o, strlen(s));
    raw(o, s, strlen(s));
}
static bytes begin(uint32_t version, uint64_t n_tensors, uint64_t n_keys) {
    bytes o = {.n = 0};
    raw(&o, "GGUF", 4);
    u32(&o, version);
    u64(&o, n_tensors);
    u64(&o, n_keys);
    return o;
}
static void tensor(bytes *o, const char *name, uint64_t inner, uint64_t outer, uint32_t type, uint64_t off) {
    text(o, name);
    u32(o, 2);
    u64(o, inner);
    u64(o, outer);
    u32(o, type);
    u64(o, off);
}
static void data(bytes *o, size_t n) {
    while (o->n % 32) o->b[o->n++] = 0;
    for (size_t i = 0; i < n; i++) o->b[o->n++] = 1;
}

/* Open exactly n bytes: reads beyond them are seen by ASan. */
static tern_status open_n(const uint8_t *b, size_t n, tern_error *err) {
    uint8_t *copy = malloc(n ? n : 1);
    assert_non_null(copy);
    memcpy(copy, b, n);
    tn_gguf *g = NULL;
    *err = (tern_error){0};
    tern_status st = tn_gguf_open_memory(&ctx, copy, n, "f.gguf", &g, err);
    if (st == TERN_OK) tn_gguf_close(&g);
    else assert_null(g);
    free(copy);
    return st;
}

static void refused(const bytes *o, tern_status want, const char *part) {
    tern_error err;
    assert_int_equal(open_n(o->b, o->n, &err), want);
    if (!strstr(err.message, "f.gguf") || !strstr(err.message, part))
        fail_msg("'%s' lacks '%s'", err.message, part);
    assert_null(strchr(err.message, '\n'));
}

static void headers(void **state) {
    (void)state;
    bytes o = begin(3, 0, 0);
    tern_error err;
    assert_int_equal(open_n(o.b, o.n, &err), TERN_OK);
    o = begin(1, 0, 0), refused(&o, TERN_E_UNSUPPORTED, "GGUF version 1, tern reads 2 and 3");
    o = begin(4, 0, 0), refused(&o, TERN_E_UNSUPPORTED, "GGUF version 4");
    o = begin(0x03000000, 0, 0), refused(&o, TERN_E_UNSUPPORTED, "big-endian");
    o = begin(3, UINT64_MAX, 0), refused(&o, TERN_E_FORMAT, "do not fit");
    o = begin(3, 0, UINT64_MAX), refused(&o, TERN_E_FORMAT, "do not fit");
    o = begin(3, 0, 0), o.b[0] = 'X', refused(&o, TERN_E_FORMAT, "not a GGUF file");
    o = begin(3, 0, 1), text(&o, "a.key"), u32(&o, 13),
    refused(&o, TERN_E_FORMAT, "'a.key' has value type 13");
    o = begin(3, 0, 1), text(&o, "a.key"), u32(&o, 9), u32(&o, 9), u64(&o, 1),
    refused(&o, TERN_E_FORMAT, "nests");
    o = begin(3, 0, 1), text(&o, "a.key"), u32(&o, 9), u32(&o, 10), u64(&o, UINT64_MAX / 4),
    refused(&o, TERN_E_FORMAT, "elements at offset");
    o = begin(3, 0, 1), text(&o, "a.key"), u32(&o, 9), u32(&o, 8), u64(&o, 1ull << 60),
    refused(&o, TERN_E_FORMAT, "strings at offset");
    o = begin(3, 0, 1), u64(&o, UINT64_MAX), u64(&o, 0), refused(&o, TERN_E_FORMAT, "key at offset");
    o = begin(3, 0, 2), text(&o, "k"), u32(&o, 4), u32(&o, 1), text(&o, "k"), u32(&o, 4), u32(&o, 2),
    refused(&o, TERN_E_FORMAT, "key 'k' occurs twice");
    o = begin(3, 0, 1), text(&o, "general.alignment"), u32(&o, 4), u32(&o, 24),
    refused(&o, TERN_E_FORMAT, "general.alignment is 24");
}

static void tensors(void **state) {
    (void)state;
    tern_error err;
    bytes o = begin(3, 2, 0);
    tensor(&o, "a", 4, 2, 0, 0), tensor(&o, "b", 32, 1, 8, 32), data(&o, 96);
    assert_int_equal(open_n(o.b, o.n, &err), TERN_OK);
    o = begin(3, 1, 0), tensor(&o, "a", 4, 2, 24, 0), data(&o, 32),
    refused(&o, TERN_E_UNSUPPORTED, "tensor a at offset 24 has storage type 24 (I8)");
    o = begin(3, 1, 0), tensor(&o, "a", 4, 2, 4, 0), data(&o, 32),
    refused(&o, TERN_E_UNSUPPORTED, "storage type 4 (no type of GGUF)");
    o = begin(3, 1, 0), tensor(&o, "a", 33, 1, 8, 0), data(&o, 64),
    refused(&o, TERN_E_FORMAT, "tensor a of type Q8_0 at offset 24 has impossible dimensions");
    o = begin(3, 1, 0), tensor(&o, "a", 0, 1, 0, 0), data(&o, 64),
    refused(&o, TERN_E_FORMAT, "impossible dimensions");
    o = begin(3, 1, 0), tensor(&o, "a", 1ull << 40, 1ull << 40, 0, 0), data(&o, 64),
    refused(&o, TERN_E_FORMAT, "impossible dimensions");
    o = begin(3, 1, 0), tensor(&o, "a", 1ull << 62, 2, 0, 0), data(&o, 64),
    refused(&o, TERN_E_FORMAT, "impossible dimensions");
    o = begin(3, 1, 0), tensor(&o, "a", 1ull << 30, 2, 0, 0), data(&o, 64),
    refused(&o, TERN_E_FORMAT, "tensor a needs [0, +8589934592)");
    o = begin(3, 1, 0), tensor(&o, "a", 4, 2, 0, 4), data(&o, 64), refused(&o, TERN_E_FORMAT, "alignment 32");
    o = begin(3, 1, 0), tensor(&o, "a", 4, 2, 0, UINT64_MAX - 31), data(&o, 64),
    refused(&o, TERN_E_FORMAT, "tensor a needs");
    o = begin(3, 2, 0), tensor(&o, "a", 16, 1, 0, 0), tensor(&o, "b", 4, 2, 0, 32), data(&o, 64),
    refused(&o, TERN_E_FORMAT, "tensors a and b overlap at offset");
    o = begin(3, 2, 0), tensor(&o, "a", 4, 2, 0, 0), tensor(&o, "a", 4, 2, 0, 32), data(&o, 64),
    refused(&o, TERN_E_FORMAT, "tensor a occurs twice");
    o = begin(3, 1, 0), text(&o, "a"), u32(&o, 5), data(&o, 64),
    refused(&o, TERN_E_FORMAT, "tensor a at offset 24 has 5 dimensions");
    o = begin(3, 1, 0), text(&o, "a"), u32(&o, 2), u64(&o, 1), refused(&o, TERN_E_FORMAT, "truncated");
}

/* ---- written files ---------------------------------------------------------------------------------- */

static char path[512], folder[256] = "/tmp/tern-gguf-XXXXXX";

static int files_in_folder(void) {
    int n = 0;
    DIR *d = opendir(folder);
    for (struct dirent *e; (e = readdir(d));) n += e->d_name[0] != '.';
    closedir(d);
    return n;
}

static void declare(tn_gguf_writer *w) {
    static const char *const words[] = {"a", "",
                                        ("\xc4\xa0"
                                         "b")};
    static const size_t lens[] = {1, 0, 3};
    static const float scores[] = {0.5f, -1e30f};
    static const int32_t ids[] = {-1, INT32_MAX};
    static const uint64_t a[] = {2, 3}, b[] = {2, 32}, c[] = {5};
    tn_gguf_put_str(w, "s", "text");
    tn_gguf_put_u32(w, "u", UINT32_MAX);
    tn_gguf_put_f32(w, "f", 0.25f);
    tn_gguf_put_bool(w, "b", true);
    tn_gguf_put_arr_str(w, "as", words, lens, 3);
    tn_gguf_put_arr_f32(w, "af", scores, 2);
    tn_gguf_put_arr_i32(w, "ai", ids, 2);
    tn_gguf_add_tensor(w, "ta", TN_F32, 2, a);
    tn_gguf_add_tensor(w, "tb", TN_Q8_0, 2, b);
    tn_gguf_add_tensor(w, "tc", TN_F16, 1, c);
}

static void write_one(void) {
    tern_error err = {0};
    tn_gguf_writer *w;
    uint8_t all[24 + 68 + 10];
    for (size_t i = 0; i < sizeof all; i++) all[i] = (uint8_t)i;
    assert_int_equal(tn_gguf_create(&ctx, path, &w, &err), TERN_OK);
    declare(w);
    assert_int_equal(tn_gguf_begin_data(w, &err), TERN_OK);
    assert_int_equal(tn_gguf_write(w, all, 50, &err), TERN_OK); /* across tensors */
    assert_int_equal(tn_gguf_write(w, all + 50, sizeof all - 50, &err), TERN_OK);
    assert_int_not_equal(tn_gguf_write(w, all, 1, &err), TERN_OK); /* more than declared */
    assert_int_equal(tn_gguf_finish(&w, &err), TERN_OK);
    assert_null(w);
}

static void round_trip(void **state) {
    (void)state;
    write_one();
    assert_int_equal(files_in_folder(), 1);
    tern_error err = {0};
    tn_gguf *g;
    if (tn_gguf_open(&ctx, path, &g, &err) != TERN_OK) fail_msg("%s", err.message);
    assert_int_equal(tn_gguf_version(g), 3);
    const char *s;
    size_t n;
    int64_t i;
    double f;
    bool b;
    assert_true(tn_gguf_str(g, "s", &s, &n) && n == 4 && !memcmp(s, "text", 4));
    assert_true(tn_gguf_i64(g, "u", &i) && i == UINT32_MAX);
    assert_true(tn_gguf_f64(g, "f", &f) && f == 0.25);
    assert_true(tn_gguf_bool(g, "b", &b) && b);
    assert_int_equal(tn_gguf_arr_n(g, "as"), 3);
    assert_true(tn_gguf_arr_str(g, "as", 2, &s, &n) && n == 3 &&
                !memcmp(s,
                        "\xc4\xa0"
                        "b",
                        3));
    assert_true(tn_gguf_arr_f64(g, "af", 1, &f) && f == (double)-1e30f);
    assert_true(tn_gguf_arr_i64(g, "ai", 0, &i) && i == -1);
    /* of another kind, beyond the end, absent */
    assert_false(tn_gguf_i64(g, "s", &i) || tn_gguf_i64(g, "f", &i) || tn_gguf_i64(g, "ai", &i) ||
                 tn_gguf_str(g, "as", &s, &n) || tn_gguf_f64(g, "none", &f));
    assert_false(tn_gguf_arr_i64(g, "ai", 2, &i) || tn_gguf_arr_i64(g, "ai", -1, &i) ||
                 tn_gguf_arr_i64(g, "af", 0, &i) || tn_gguf_arr_str(g, "ai", 0, &s, &n));
    assert_int_equal(tn_gguf_arr_n(g, "s"), -1);
    static const struct {
        const char *name;
        tn_dtype d;
        uint64_t d0, d1, size;
        uint8_t first;
    } want[] = {{"ta", TN_F32, 2, 3, 24, 0}, {"tb", TN_Q8_0, 2, 32, 68, 24}, {"tc", TN_F16, 5, 1, 10, 92}};
    assert_int_equal(tn_gguf_n_tensors(g), 3);
    for (size_t k = 0; k < 3; k++) {
        const tn_tensor *t = tn_gguf_tensor(g, want[k].name);
        assert_non_null(t);
        assert_ptr_equal(t, tn_gguf_tensor_at(g, k));
        assert_true(t->dtype == want[k].d && t->dims[0] == want[k].d0 && t->dims[1] == want[k].d1 &&
                    t->size_bytes == want[k].size && t->off_bytes % 32 == 0);
        for (uint64_t j = 0; j < t->size_bytes; j++) assert_int_equal(t->data[j], want[k].first + j);
    }
    assert_null(tn_gguf_tensor(g, "t"));
    tn_gguf_close(&g);
}

static void every_truncation_is_refused(void **state) {
    (void)state;
    write_one();
    FILE *f = fopen(path, "rb");
    static uint8_t b[4096];
    size_t n = fread(b, 1, sizeof b, f),
           n_padding = 22; /* after the last tensor: 32 - 10 bytes nobody needs */
    fclose(f);
    tern_error err;
    for (size_t k = 0; k < n - n_padding; k++) {
        assert_int_equal(open_n(b, k, &err), TERN_E_FORMAT);
        if (!strstr(err.message, "f.gguf: ")) fail_msg("at %zu: %s", k, err.message);
    }
    assert_int_equal(open_n(b, n - n_padding, &err), TERN_OK);
}

static void unfinished_files_vanish(void **state) {
    (void)state;
    (void)remove(path);
    tern_error err = {0};
    tn_gguf_writer *w;
    assert_int_equal(tn_gguf_create(&ctx, path, &w, &err), TERN_OK);
    declare(w);
    assert_int_equal(tn_gguf_begin_data(w, &err), TERN_OK);
    assert_int_equal(tn_gguf_finish(&w, &err), TERN_E_INVALID); /* data missing */
    assert_int_equal(files_in_folder(), 0);
    assert_int_equal(tn_gguf_create(&ctx, path, &w, &err), TERN_OK);
    tn_gguf_abort(&w);
    tn_gguf_abort(&w);
    assert_int_equal(files_in_folder(), 0);
    assert_int_equal(tn_gguf_create(&ctx, "/nowhere/x.gguf", &w, &err), TERN_E_IO);
    assert_non_null(strstr(err.message, "/nowhere/x.gguf"));
    tn_gguf *g;
    assert_int_equal(tn_gguf_open(&ctx, "/nowhere/x.gguf", &g, &err), TERN_E_IO);
    assert_non_null(strstr(err.message, "/nowhere/x.gguf"));
    assert_int_equal(tn_gguf_open(&ctx, folder, &g, &err), TERN_E_IO);
}

int main(void) {
    tn_ctx_init(&ctx, NULL);
    if (!mkdtemp(folder)) return 1;
    snprintf(path, sizeof path, "%s/x.gguf", folder);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(headers), cmocka_unit_test(tensors), cmocka_unit_test(round_trip),
        cmocka_unit_test(every_truncation_is_refused), cmocka_unit_test(unfinished_files_vanish)};
    int rc = cmocka_run_group_tests(tests, NULL, NULL);
    (void)remove(path);
    (void)rmdir(folder);
    return rc;
}
