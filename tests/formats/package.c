/* Packages that are cut, bent or hostile, writers that are abandoned, memory that runs out: one clear line
 * each time, nothing left. */
#include "formats/package.h"

#include "base/status.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <glob.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>
#include <xxhash.h>

#include "fixture/scarce.h"
#include "fixture/fixture.h"

static char path[256];

/* META, a section of two tensors and one of odd size. */
static tern_status write_package(tn_ctx *ctx, tern_error *err) {
    static const char meta[] = "{\"format\":\"tern\"}";
    static float a[24];
    static int8_t b[70];
    for (int i = 0; i < 24; i++) a[i] = (float)i;
    memset(b, 7, sizeof b);
    tn_pkg_writer *w;
    tn_pkg_record ra = {.role = 1, .part = TN_PKG_F32, .n = 2, .k = 12},
                  rb = {.role = 2, .part = TN_PKG_TILES, .n = 7, .k = 10, .act_scale = 0.5f};
    TN_TRY(tn_pkg_create(ctx, path, 3, tn_pkg_toc_bound(2, 1000), &w, err));
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
        size_t n;
        tn_pkg_records(p, s, &n);
        if (n != (s->kind == TN_PKG_LAYER ? 2 : 0))
            st = tn_fail(err, TERN_E_FORMAT, "section %zu has %zu tensors", i, n);
        tn_free(ctx, base);
    }
    tn_pkg_close(&p);
    return st;
}

static void must_fail(tn_ctx *ctx, const char *what, size_t at) {
    tern_error err = {0};
    if (read_package(ctx, &err) == TERN_OK) fail_msg("%s at %zu was accepted", what, at);
    assert_true(strlen(err.message) > 10);
}

/* An index that lies, with true checksums over it. */
static void put_index(uint8_t *b, size_t n) {
    enum { N_SECTIONS = 3, TOC_OFF = 64 + N_SECTIONS * sizeof(tn_pkg_section) };
    uint64_t index_bytes, hash;
    uint32_t toc_bytes;
    memcpy(&index_bytes, b + 24, 8);
    memcpy(&toc_bytes, b + 64 + 40 + 36, 4);
    hash = XXH64(b + TOC_OFF, toc_bytes < 4000 ? toc_bytes : 4000, 0);
    memcpy(b + 64 + 40 + 24, &hash, 8);
    hash = XXH64(b + 64, index_bytes, 0);
    memcpy(b + 32, &hash, 8);
    hash = XXH64(b, 48, 0);
    memcpy(b + 48, &hash, 8);
    fixture_write(path, b, n);
}

static void every_bit_counts(void **state) {
    (void)state;
    tn_ctx ctx;
    tern_error err = {0};
    tn_ctx_init(&ctx, NULL);
    if (write_package(&ctx, &err) != TERN_OK || read_package(&ctx, &err) != TERN_OK)
        fail_msg("%s", err.message);
    size_t n;
    uint8_t *b = fixture_read(path, &n);
    tn_pkg *p;
    assert_int_equal(tn_pkg_open(&ctx, path, &p, &err), TERN_OK);
    assert_int_equal(tn_pkg_n_sections(p), 3);
    for (size_t i = 0; i < 3; i++) { /* every byte of every section */
        tn_pkg_section s = *tn_pkg_section_at(p, i);
        uint64_t small = s.toc_bytes ? tn_pkg_small_bytes(p, &s) : s.size_bytes;
        for (uint64_t at = s.off_bytes; at < s.off_bytes + s.size_bytes; at++) {
            if (at == s.off_bytes + small)
                at = s.off_bytes +
                     TN_PKG_SHORT_ALIGN; /* nothing lies between the small tensors and the large one */
            b[at] ^= (uint8_t)(1u << at % 8);
            fixture_write(path, b, n);
            must_fail(&ctx, "a flipped bit", at);
            b[at] ^= (uint8_t)(1u << at % 8);
        }
    }
    tn_pkg_close(&p);
    for (size_t at = 0; at < 64 + 3 * sizeof(tn_pkg_section) + 16 + 2 * 56 + 2 * 8;
         at++) { /* header and index */
        if (at == 56) at = 64;
        b[at] ^= 0x40;
        fixture_write(path, b, n);
        must_fail(&ctx, "a flipped bit", at);
        b[at] ^= 0x40;
    }
    for (size_t cut = 0; cut < n; cut += cut < 200 || cut % 4096 < 2 || cut % 4096 > 4094 ? 1 : 31) {
        fixture_write(path, b, cut);
        must_fail(&ctx, "a cut", cut);
    }
    for (b[8] = TN_PKG_OLDEST; b[8] < TN_PKG_VERSION; b[8]++) { /* older ones are read */
        put_index(b, n);
        assert_int_equal(read_package(&ctx, &err), TERN_OK);
    }
    b[8] = TN_PKG_VERSION + 1;
    fixture_write(path, b, n);
    assert_int_equal(read_package(&ctx, &err), TERN_E_UNSUPPORTED);
    assert_non_null(strstr(err.message, "newer tern"));
    b[8] = TN_PKG_OLDEST - 1;
    fixture_write(path, b, n);
    assert_int_equal(read_package(&ctx, &err), TERN_E_UNSUPPORTED);
    assert_non_null(strstr(err.message, "pack the model again"));
    free(b);
    unlink(path);
    assert_int_equal(read_package(&ctx, &err), TERN_E_IO);
}

static void tables_lie(void **state) {
    (void)state;
    tn_ctx ctx;
    tern_error err = {0};
    tn_ctx_init(&ctx, NULL);
    assert_int_equal(write_package(&ctx, &err), TERN_OK);
    size_t n;
    uint8_t *b = fixture_read(path, &n);
    put_index(b, n);
    assert_int_equal(read_package(&ctx, &err), TERN_OK); /* the second section is the one with a table */
    uint8_t *toc = b + 64 + 3 * sizeof(tn_pkg_section), good[16 + 2 * 56];
    memcpy(good, toc, sizeof good);
    const tn_pkg_record bad_small[] = {{.part = 1, .off_bytes = 32, .size_bytes = 4},
                                       {.part = 1, .off_bytes = 64, .size_bytes = 96},
                                       {.part = 1, .off_bytes = UINT64_MAX - 63, .size_bytes = 64},
                                       {.part = 1, .size_bytes = UINT64_MAX},
                                       {.part = 1, .n = -1},
                                       {.part = 1, .k = INT64_MIN}};
    for (size_t i = 0; i < sizeof bad_small / sizeof bad_small[0]; i++) {
        memcpy(toc + 16, &bad_small[i], 56);
        put_index(b, n);
        must_fail(&ctx, "a small tensor that does not fit", i);
    }
    memcpy(toc, good, sizeof good);
    const tn_pkg_record bad_large[] = {{.part = TN_PKG_TILES, .off_bytes = 64, .size_bytes = 70},
                                       {.part = TN_PKG_TILES, .off_bytes = 0, .size_bytes = 70},
                                       {.part = TN_PKG_TILES, .off_bytes = 128, .size_bytes = 71},
                                       {.part = TN_PKG_TILES, .off_bytes = 256, .size_bytes = 0},
                                       {.part = TN_PKG_TILES, .off_bytes = 128, .size_bytes = UINT64_MAX}};
    for (size_t i = 0; i < sizeof bad_large / sizeof bad_large[0]; i++) {
        memcpy(toc + 16 + 56, &bad_large[i], 56);
        put_index(b, n);
        must_fail(&ctx, "a large tensor that does not fit", i);
    }
    memcpy(toc, good, sizeof good);
    for (int field = 0; field < 3; field++) { /* numbers of records, of checksums, small bytes */
        toc[4 * field] ^= 1;
        put_index(b, n);
        must_fail(&ctx, "a table of another size", (size_t)field);
        toc[4 * field] ^= 0x81; /* and far more */
        toc[4 * field + 3] ^= 0x80;
        put_index(b, n);
        must_fail(&ctx, "a table of another size", (size_t)field);
        memcpy(toc, good, sizeof good);
    }
    for (int byte = 32; byte < 40; byte++) { /* where the table lies in the index */
        b[64 + 40 + byte] ^= 0x11;
        put_index(b, n);
        must_fail(&ctx, "a table elsewhere", (size_t)byte);
        b[64 + 40 + byte] ^= 0x11;
    }
    put_index(b, n);
    assert_int_equal(read_package(&ctx, &err), TERN_OK);
    free(b);
    unlink(path);
}

/* Blocks are checked one by one: the message names the one that differs. */
static void blocks_are_told(void **state) {
    (void)state;
    tn_ctx ctx;
    tern_error err = {0};
    tn_ctx_init(&ctx, NULL);
    size_t size = 3 * TN_PKG_BLOCK + 77;
    uint8_t *data = malloc(size);
    assert_non_null(data);
    for (size_t i = 0; i < size; i++) data[i] = (uint8_t)(i * 2654435761u >> 13);
    tn_pkg_writer *w;
    tn_pkg_record r = {.role = 7, .part = TN_PKG_WEIGHTLETS, .n = 1, .k = 1},
                  small = {.role = 5, .part = TN_PKG_F32, .n = 1, .k = 1};
    assert_int_equal(tn_pkg_create(&ctx, path, 1, tn_pkg_toc_bound(2, size + 4), &w, &err), TERN_OK);
    assert_int_equal(tn_pkg_begin(w, TN_PKG_LAYER, 3, &err), TERN_OK);
    assert_int_equal(tn_pkg_add(w, &r, data, size, &err), TERN_OK);
    assert_int_equal(tn_pkg_add(w, &small, "abcd", 4, &err), TERN_OK);
    assert_int_equal(tn_pkg_end(w, &err), TERN_OK);
    assert_int_equal(tn_pkg_finish(&w, &err), TERN_OK);
    tn_pkg *p;
    assert_int_equal(tn_pkg_open(&ctx, path, &p, &err), TERN_OK);
    const tn_pkg_section *s = tn_pkg_section_at(p, 0);
    size_t n;
    const tn_pkg_record *records = tn_pkg_records(p, s, &n);
    assert_int_equal(n, 2);
    const size_t at = (size_t)(s->off_bytes + records[0].off_bytes);
    assert_int_equal(at % TN_PKG_ALIGN, 0); /* it can be read directly, */
    assert_true(records[0].off_bytes >= 4); /* and lies after the small one */
    assert_int_equal(records[1].off_bytes, 0);
    assert_int_equal(tn_pkg_check(p, s, &records[0], 0, data, size, &err), TERN_OK);
    assert_int_equal(tn_pkg_check(p, s, NULL, 0, "abcd", 4, &err), TERN_OK);
    assert_int_equal(tn_pkg_check(p, s, NULL, 0, "abce", 4, &err), TERN_E_FORMAT);
    data[2 * TN_PKG_BLOCK + 5] ^= 1;
    assert_int_equal(tn_pkg_check(p, s, &records[0], 0, data, 2 * TN_PKG_BLOCK, &err), TERN_OK);
    assert_int_equal(
        tn_pkg_check(p, s, &records[0], TN_PKG_BLOCK, data + TN_PKG_BLOCK, size - TN_PKG_BLOCK, &err),
        TERN_E_FORMAT);
    char want[64];
    snprintf(want, sizeof want, "offset %zu", at + 2 * TN_PKG_BLOCK);
    assert_non_null(strstr(err.message, want));
    assert_non_null(strstr(err.message, "layer 3"));
    tn_pkg_close(&p);
    unlink(path);
    free(data);
}

/* Short tensors lie one after another; what is of a block or more begins with a page. */
static void short_ones_share_pages(void **state) {
    (void)state;
    tn_ctx ctx;
    tern_error err = {0};
    tn_ctx_init(&ctx, NULL);
    static uint8_t data[TN_PKG_BLOCK];
    const size_t sizes[] = {130, 129, TN_PKG_BLOCK, 5, TN_PKG_BLOCK - 1};
    enum { N = sizeof sizes / sizeof *sizes };
    tn_pkg_writer *w;
    assert_int_equal(tn_pkg_create(&ctx, path, 2, tn_pkg_toc_bound(N + 1, 3 * TN_PKG_BLOCK), &w, &err),
                     TERN_OK);
    assert_int_equal(tn_pkg_put_section(w, TN_PKG_META, -1, "{}", 2, &err), TERN_OK);
    assert_int_equal(tn_pkg_begin(w, TN_PKG_LAYER, 0, &err), TERN_OK);
    for (uint32_t i = 0; i < N; i++) {
        memset(data, (int)i + 1, sizeof data);
        tn_pkg_record r = {.role = i, .part = TN_PKG_WEIGHTLETS, .n = 1, .k = 1};
        assert_int_equal(tn_pkg_add(w, &r, data, sizes[i], &err), TERN_OK);
    }
    assert_int_equal(tn_pkg_end(w, &err), TERN_OK);
    assert_int_equal(tn_pkg_finish(&w, &err), TERN_OK);
    tn_pkg *p;
    assert_int_equal(tn_pkg_open(&ctx, path, &p, &err), TERN_OK);
    assert_int_equal(tn_pkg_file_bytes(p) % TN_PKG_ALIGN, 0);
    const tn_pkg_section *s = tn_pkg_section_at(p, 1);
    size_t n;
    const tn_pkg_record *r = tn_pkg_records(p, s, &n);
    uint64_t end = s->off_bytes;
    assert_int_equal(s->off_bytes % TN_PKG_SHORT_ALIGN, 0);
    assert_true(s->off_bytes < TN_PKG_ALIGN);
    for (size_t i = 0; i < N; i++) {
        uint64_t at = s->off_bytes + r[i].off_bytes, align = i == 2 ? TN_PKG_ALIGN : TN_PKG_SHORT_ALIGN;
        assert_int_equal(at, (end + align - 1) / align * align);
        end = at + r[i].size_bytes;
    }
    tn_pkg_close(&p);
    unlink(path);
}

/* Scales and sums of 32 rows, and of as many that do not fit into 16 bits. */
static void rows_in_16_bits(void **state) {
    (void)state;
    enum { N = 32 };
    float scale[N], back[N], by;
    int32_t sum[N], back_sum[N];
    uint16_t rows16[2 * N];
    for (int i = 0; i < N; i++) {
        scale[i] = i < 29 ? ldexpf(1 + 0.03f * (float)i, -10 - i % 13) : 0; /* the last are padding */
        sum[i] = i < 29 ? (i % 2 ? -1 : 1) * (32767 - 1000 * i) : 0;
    }
    sum[1] = -32768;
    assert_true(tn_pkg_rows16_pack(scale, sum, N, rows16, &by));
    tn_pkg_record r[2] = {{.role = 9, .part = TN_PKG_ROWS16, .size_bytes = sizeof rows16, .act_scale = by}};
    tern_error err = {0};
    assert_int_equal(tn_pkg_rows(r, 1, rows16, 9, N, back, back_sum, &err), TERN_OK);
    for (int i = 0; i < N; i++) {
        assert_true(fabsf(back[i] - scale[i]) <= scale[i] / 2048);
        assert_int_equal(back_sum[i], sum[i]);
    }
    assert_int_equal(tn_pkg_rows(r, 1, rows16, 9, N, NULL, NULL, &err), TERN_OK);
    assert_int_equal(tn_pkg_rows(r, 1, rows16, 8, N, back, back_sum, &err), TERN_E_FORMAT);
    assert_int_equal(tn_pkg_rows(r, 1, rows16, 9, N + 16, back, back_sum, &err), TERN_E_FORMAT);
    sum[7] = 32768; /* one too many */
    assert_false(tn_pkg_rows16_pack(scale, sum, N, rows16, &by));
    sum[7] = 0;
    scale[7] = scale[0] * 1e-7f; /* a thousandth of the least that 16 bits hold exactly enough */
    assert_false(tn_pkg_rows16_pack(scale, sum, N, rows16, &by));
    struct {
        float scale[N];
        int32_t sum[N];
    } longer;
    memcpy(longer.scale, scale, sizeof scale);
    memcpy(longer.sum, sum, sizeof sum);
    r[0] = (tn_pkg_record){.role = 9, .part = TN_PKG_SCALE, .size_bytes = sizeof scale};
    r[1] = (tn_pkg_record){
        .role = 9, .part = TN_PKG_COL_SUM, .off_bytes = sizeof scale, .size_bytes = sizeof sum};
    assert_int_equal(tn_pkg_rows(r, 2, &longer, 9, N, back, back_sum, &err), TERN_OK);
    assert_memory_equal(back, scale, sizeof scale);
    assert_memory_equal(back_sum, sum, sizeof sum);
    assert_int_equal(tn_pkg_rows(r, 1, &longer, 9, N, back, back_sum, &err), TERN_E_FORMAT);
}

static void nothing_beside(void) {
    char pattern[300];
    glob_t found;
    snprintf(pattern, sizeof pattern, "%s?*", path);
    int rc = glob(pattern, 0, NULL, &found);
    if (!rc) fail_msg("%s was left", found.gl_pathv[0]);
    globfree(&found);
}

static const char OLD[] = "TERNPKG\nold";

/* A writer that is killed leaves nothing, a disk that is full is told, and the old package stays. */
static void killed_and_full(void **state) {
    (void)state;
    tn_ctx ctx;
    tern_error err = {0};
    tn_ctx_init(&ctx, NULL);
    fixture_write(path, (const uint8_t *)OLD, sizeof OLD);
    pid_t pid = fork();
    if (!pid) {
        tn_pkg_writer *w;
        if (tn_pkg_create(&ctx, path, 1, 0, &w, &err) != TERN_OK ||
            tn_pkg_put_section(w, TN_PKG_META, -1, "x", 1, &err) != TERN_OK)
            _exit(1);
        kill(getpid(), SIGKILL);
    }
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFSIGNALED(status));
    nothing_beside();
    pid = fork();
    if (!pid) { /* a limit on files is a disk that is full after so many bytes */
        signal(SIGXFSZ, SIG_IGN);
        if (setrlimit(RLIMIT_FSIZE, &(struct rlimit){100000, 100000})) _exit(1);
        tn_pkg_writer *w;
        static char big[200000];
        if (tn_pkg_create(&ctx, path, 1, 0, &w, &err) != TERN_OK) _exit(2);
        if (tn_pkg_put_section(w, TN_PKG_META, -1, big, sizeof big, &err) != TERN_E_IO) _exit(3);
        tn_pkg_abort(&w);
        _exit(strstr(err.message, "no room on the disk") ? 0 : 4);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
    size_t n;
    uint8_t *b = fixture_read(path, &n);
    assert_int_equal(n, sizeof OLD);
    free(b);
    unlink(path);
}

static void abandoned_writer_leaves_the_old_file(void **state) {
    (void)state;
    tn_ctx ctx;
    tern_error err = {0};
    tn_ctx_init(&ctx, NULL);
    fixture_write(path, (const uint8_t *)OLD, sizeof OLD);
    tn_pkg_writer *w;
    assert_int_equal(tn_pkg_create(&ctx, path, 1, 0, &w, &err), TERN_OK);
    assert_int_equal(tn_pkg_put_section(w, TN_PKG_META, -1, "x", 1, &err), TERN_OK);
    assert_int_equal(tn_pkg_put_section(w, TN_PKG_META, -1, "x", 1, &err), TERN_E_LIMIT);
    tn_pkg_abort(&w);
    assert_null(w);
    nothing_beside();
    size_t n;
    uint8_t *b = fixture_read(path, &n);
    assert_int_equal(n, sizeof OLD);
    free(b);
    unlink(path);
    assert_int_equal(tn_pkg_create(&ctx, "/nonexistent/folder/x.tern", 1, 0, &w, &err), TERN_E_IO);
    assert_null(w);
}

static void memory_runs_out(void **state) {
    (void)state;
    for (int reading = 0; reading < 2; reading++) {
        tern_error err = {0};
        tern_status st = TERN_E_MEMORY;
        for (long i = 0; st != TERN_OK; i++) {
            scarce f = {.left = i};
            tern_hooks h;
            scarce_hooks(&h, &f);
            tn_ctx ctx;
            tn_ctx_init(&ctx, &h);
            st = reading ? read_package(&ctx, &err) : write_package(&ctx, &err);
            assert_int_equal(f.live, 0);
            if (st == TERN_OK) assert_true(i >= 4);
            else assert_int_equal(st, TERN_E_MEMORY);
            if (!reading) assert_int_equal(access(path, F_OK) == 0, st == TERN_OK);
            nothing_beside();
        }
    }
    unlink(path);
}

int main(void) {
    snprintf(path, sizeof path, TN_BINARY_DIR "/package-%ld.tern", (long)getpid());
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_bit_counts),
        cmocka_unit_test(tables_lie),
        cmocka_unit_test(blocks_are_told),
        cmocka_unit_test(short_ones_share_pages),
        cmocka_unit_test(rows_in_16_bits),
        cmocka_unit_test(killed_and_full),
        cmocka_unit_test(abandoned_writer_leaves_the_old_file),
        cmocka_unit_test(memory_runs_out),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
