/* Packages that are cut, bent or hostile, writers that are abandoned, memory that runs out: one clear line each time, nothing left. */
#include "formats/package.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char path[256], tmp[300];

/* META, a section of two tensors and one of odd size. */
static tern_status write_package(tn_ctx *ctx, tern_error *err) {
    static const char meta[] = "{\"format\":\"tern\"}";
    static float a[24];
    static int8_t b[70];
    for (int i = 0; i < 24; i++) a[i] = (float)i;
    memset(b, 7, sizeof b);
    tn_pkg_writer *w;
    tn_pkg_record ra = {.role = 1, .part = TN_PKG_F32, .n = 2, .k = 12}, rb = {.role = 2, .part = TN_PKG_TILES, .n = 7, .k = 10, .act_scale = 0.5f};
    TN_TRY(tn_pkg_create(ctx, path, 3, &w, err));
    tern_status st = tn_pkg_put_section(w, TN_PKG_META, -1, meta, sizeof meta - 1, err);
    if (st == TERN_OK) st = tn_pkg_begin(w, TN_PKG_LAYER, 0, err);
    if (st == TERN_OK) st = tn_pkg_add(w, &ra, a, sizeof a, err);
    if (st == TERN_OK) st = tn_pkg_add(w, &rb, b, sizeof b, err);
    if (st == TERN_OK) st = tn_pkg_end(w, err);
    if (st == TERN_OK) st = tn_pkg_put_section(w, TN_PKG_GRAPHS, -1, b, 33, err);
    if (st == TERN_OK) return tn_pkg_finish(&w, err);
    tn_pkg_abort(&w);
    return st;
}

/* Opens the file and reads every section; tables of tensors are walked. */
static tern_status read_package(tn_ctx *ctx, tern_error *err) {
    tn_pkg *p;
    TN_TRY(tn_pkg_open(ctx, path, &p, err));
    tern_status st = TERN_OK;
    for (size_t i = 0; i < tn_pkg_n_sections(p) && st == TERN_OK; i++) {
        const tn_pkg_section *s = tn_pkg_section_at(p, i);
        void *base = tn_alloc(ctx, TN_MEM_OTHER, s->size_bytes, 1);
        st = base ? tn_pkg_read(p, s, base, err) : tn_fail(err, TERN_E_MEMORY, "no memory for a section");
        const tn_pkg_record *r;
        size_t n;
        if (st == TERN_OK && s->kind == TN_PKG_LAYER) st = tn_pkg_records(s, base, s->size_bytes, &r, &n, err);
        tn_free(ctx, base);
    }
    tn_pkg_close(&p);
    return st;
}

static void put(const uint8_t *bytes, size_t n) {
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(bytes, 1, n, f), n);
    fclose(f);
}

static uint8_t *slurp(size_t *n) {
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    fseek(f, 0, SEEK_END);
    *n = (size_t)ftell(f);
    rewind(f);
    uint8_t *b = malloc(*n);
    assert_non_null(b);
    assert_int_equal(fread(b, 1, *n, f), *n);
    fclose(f);
    return b;
}

static void must_fail(tn_ctx *ctx, const char *what, size_t at) {
    tern_error err = {0};
    if (read_package(ctx, &err) == TERN_OK) fail_msg("%s at %zu was accepted", what, at);
    assert_true(strlen(err.message) > 10);
}

static void every_bit_counts(void **state) {
    (void)state;
    tn_ctx ctx;
    tern_error err = {0};
    tn_ctx_init(&ctx, NULL);
    if (write_package(&ctx, &err) != TERN_OK || read_package(&ctx, &err) != TERN_OK) fail_msg("%s", err.message);
    size_t n;
    uint8_t *b = slurp(&n);
    tn_pkg *p;
    assert_int_equal(tn_pkg_open(&ctx, path, &p, &err), TERN_OK);
    assert_int_equal(tn_pkg_n_sections(p), 3);
    for (size_t i = 0; i < 3; i++) { /* every byte of every section */
        tn_pkg_section s = *tn_pkg_section_at(p, i);
        for (uint64_t at = s.off_bytes; at < s.off_bytes + s.size_bytes; at++) {
            b[at] ^= (uint8_t)(1u << at % 8);
            put(b, n);
            must_fail(&ctx, "a flipped bit", at);
            b[at] ^= (uint8_t)(1u << at % 8);
        }
    }
    tn_pkg_close(&p);
    for (size_t at = 0; at < 48 + 3 * sizeof(tn_pkg_section); at++) { /* header and table */
        b[at] ^= 0x40;
        put(b, n);
        must_fail(&ctx, "a flipped bit", at);
        b[at] ^= 0x40;
    }
    for (size_t cut = 0; cut < n; cut += cut < 200 || cut % 4096 < 2 || cut % 4096 > 4094 ? 1 : 31) {
        put(b, cut);
        must_fail(&ctx, "a cut", cut);
    }
    b[8] = TN_PKG_VERSION + 1;
    put(b, n);
    assert_int_equal(read_package(&ctx, &err), TERN_E_UNSUPPORTED);
    assert_non_null(strstr(err.message, "version 3"));
    free(b);
    unlink(path);
    assert_int_equal(read_package(&ctx, &err), TERN_E_IO);
}

/* A table that lies: `n_bytes` is all there is in memory, however large the section is said to be. */
static void tables_lie(void **state) {
    (void)state;
    tern_error err = {0};
    const tn_pkg_record *r;
    size_t n;
    struct {
        uint32_t n_records, reserved;
        tn_pkg_record r[2];
    } *t = calloc(1, sizeof *t); /* on the heap: reads beyond it are seen by ASan */
    assert_non_null(t);
    tn_pkg_section s = {.kind = TN_PKG_SHADOW, .layer = 0, .size_bytes = 1 << 20};
    t->n_records = 2;
    t->r[0] = (tn_pkg_record){.n = 1, .k = 64, .off_bytes = 128, .size_bytes = 64};
    t->r[1] = (tn_pkg_record){.n = 1, .k = 64, .off_bytes = (1 << 20) - 64, .size_bytes = 64};
    assert_int_equal(tn_pkg_records(&s, t, sizeof *t, &r, &n, &err), TERN_OK);
    assert_int_equal(n, 2);
    t->n_records = 200; /* they would fit the section, not what was read of it */
    assert_int_equal(tn_pkg_records(&s, t, sizeof *t, &r, &n, &err), TERN_E_FORMAT);
    assert_int_equal(n, 0);
    t->n_records = UINT32_MAX;
    assert_int_equal(tn_pkg_records(&s, t, sizeof *t, &r, &n, &err), TERN_E_FORMAT);
    t->n_records = 2;
    const tn_pkg_record good = t->r[1];
    const tn_pkg_record bad[] = {
        {.off_bytes = (1 << 20) - 64, .size_bytes = 65}, {.off_bytes = 32, .size_bytes = 4}, {.off_bytes = UINT64_MAX - 63, .size_bytes = 64},
        {.off_bytes = 64, .size_bytes = UINT64_MAX}, {.n = -1, .off_bytes = 64}, {.k = INT64_MIN, .off_bytes = 64},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        t->r[1] = bad[i];
        assert_int_equal(tn_pkg_records(&s, t, sizeof *t, &r, &n, &err), TERN_E_FORMAT);
    }
    t->r[1] = good;
    assert_int_equal(tn_pkg_records(&s, t, 7, &r, &n, &err), TERN_E_FORMAT);
    free(t);
}

static void abandoned_writer_leaves_the_old_file(void **state) {
    (void)state;
    tn_ctx ctx;
    tern_error err = {0};
    tn_ctx_init(&ctx, NULL);
    put((const uint8_t *)"old", 3);
    tn_pkg_writer *w;
    assert_int_equal(tn_pkg_create(&ctx, path, 1, &w, &err), TERN_OK);
    assert_int_equal(access(tmp, F_OK), 0);
    assert_int_equal(tn_pkg_put_section(w, TN_PKG_META, -1, "x", 1, &err), TERN_OK);
    assert_int_equal(tn_pkg_put_section(w, TN_PKG_META, -1, "x", 1, &err), TERN_E_LIMIT);
    tn_pkg_abort(&w);
    assert_null(w);
    assert_int_not_equal(access(tmp, F_OK), 0);
    size_t n;
    uint8_t *b = slurp(&n);
    assert_int_equal(n, 3);
    free(b);
    unlink(path);
    assert_int_equal(tn_pkg_create(&ctx, "/nonexistent/folder/x.tern", 1, &w, &err), TERN_E_IO);
    assert_null(w);
}

typedef struct failing {
    long left, live;
} failing;

static void *failing_alloc(void *user, size_t n, size_t align) {
    failing *f = user;
    void *p = NULL;
    if (f->left-- == 0 || posix_memalign(&p, align, n)) return NULL;
    f->live++;
    return p;
}

static void failing_release(void *user, void *p) {
    ((failing *)user)->live--;
    free(p);
}

static void memory_runs_out(void **state) {
    (void)state;
    for (int reading = 0; reading < 2; reading++) {
        tern_error err = {0};
        tern_status st = TERN_E_MEMORY;
        for (long i = 0; st != TERN_OK; i++) {
            failing f = {.left = i};
            tern_hooks h;
            tern_hooks_defaults(&h);
            h.alloc = failing_alloc;
            h.release = failing_release;
            h.user = &f;
            tn_ctx ctx;
            tn_ctx_init(&ctx, &h);
            st = reading ? read_package(&ctx, &err) : write_package(&ctx, &err);
            assert_int_equal(f.live, 0);
            if (st == TERN_OK) assert_true(i >= 4);
            else assert_int_equal(st, TERN_E_MEMORY);
            if (!reading) assert_int_equal(access(path, F_OK) == 0, st == TERN_OK);
            assert_int_not_equal(access(tmp, F_OK), 0);
        }
    }
    unlink(path);
}

int main(void) {
    snprintf(path, sizeof path, TN_BINARY_DIR "/package-%ld.tern", (long)getpid());
    snprintf(tmp, sizeof tmp, "%s.tmp%ld", path, (long)getpid());
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_bit_counts), cmocka_unit_test(tables_lie), cmocka_unit_test(abandoned_writer_leaves_the_old_file), cmocka_unit_test(memory_runs_out),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
