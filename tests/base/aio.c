/* Asynchronous reads: every method gives the file's bytes; short reads, errors, early ends and bad pieces end
 * in one clear line. */
#include "base/aio.h"
#include "base/rng.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { FILE_BYTES = 37 * 4096, N_READS = 24 };

static const char *const methods[] = {"threads", "threads-direct", "uring", "uring-direct"};
static char path[256];
static uint8_t *content;

static tn_aio_options options(const char *method) {
    tn_aio_options o;
    tn_aio_defaults(&o);
    assert_true(tn_aio_method_parse(method, &o));
    o.piece_bytes = 8192;
    return o;
}

static ssize_t halves(void *user, uint64_t off, uint64_t n) {
    (void)user, (void)off;
    return n > 1 ? (ssize_t)(n / 2) : 0;
}

static ssize_t bad_at(void *user, uint64_t off, uint64_t n) {
    uint64_t bad = *(const uint64_t *)user;
    return off <= bad && bad - off < n ? -EIO : 0;
}

static ssize_t interrupted(void *user, uint64_t off, uint64_t n) {
    (void)off, (void)n;
    return __atomic_fetch_add((int *)user, 1, __ATOMIC_RELAXED) % 3 ? -EINTR : 0;
}

static tern_status compare(void *user, const tn_aio_read *r, uint64_t at, uint64_t n, tern_error *err) {
    (void)err;
    __atomic_fetch_add((uint64_t *)user, n, __ATOMIC_RELAXED);
    return memcmp((const uint8_t *)r->dst + at, content + r->off_bytes + at, n) ? TERN_E_FORMAT : TERN_OK;
}

/* Reads of every kind in any order, all compared. */
static void reads(const tn_aio_options *o, uint64_t seed) {
    tn_ctx ctx;
    tn_ctx_init(&ctx, NULL);
    tn_rng rng = {seed};
    tn_aio *a;
    tern_error err = {0};
    assert_int_equal(tn_aio_open(&ctx, path, o, &a, &err), TERN_OK);
    static tn_aio_read r[N_READS];
    uint64_t checked = 0, total = 0;
    uint8_t *dst[N_READS];
    for (int i = 0; i < N_READS; i++) {
        bool aligned = i % 2;
        uint64_t off = tn_rng_below(&rng, FILE_BYTES), n = 1 + tn_rng_below(&rng, FILE_BYTES - off);
        if (aligned) {
            off = off / 4096 * 4096;
            n = (n + 4095) / 4096 * 4096 < FILE_BYTES - off ? (n + 4095) / 4096 * 4096 : FILE_BYTES - off;
        }
        dst[i] = aligned_alloc(4096, (n + 4095) / 4096 * 4096);
        assert_non_null(dst[i]);
        r[i] =
            (tn_aio_read){.off_bytes = off, .n_bytes = n, .dst = dst[i], .check = compare, .user = &checked};
        total += n;
        tn_aio_submit(a, &r[i], i % 5 == 0);
    }
    for (int i = N_READS; i-- > 0;) {
        if (tn_aio_wait(a, &r[i], &err) != TERN_OK) fail_msg("%s: %s", tn_aio_method(a), err.message);
        assert_memory_equal(dst[i], content + r[i].off_bytes, r[i].n_bytes);
        assert_true(r[i].end_ns >= r[i].start_ns);
        free(dst[i]);
    }
    assert_int_equal(checked, total);
    tn_aio_stats s;
    tn_aio_stats_get(a, &s);
    assert_int_equal(s.n_bytes, total);
    assert_true(s.busy_ns > 0);
    tn_aio_close(&a);
}

static void every_method_reads(void **state) {
    (void)state;
    for (size_t m = 0; m < 4; m++) {
        for (uint64_t seed = 1; seed <= 4; seed++) {
            tn_aio_options o = options(methods[m]);
            reads(&o, seed);
            o.fault = halves;
            reads(&o, seed);
            int n = 0;
            o.fault = interrupted;
            o.fault_user = &n;
            reads(&o, seed);
            o.n_parallel = 1;
            reads(&o, seed);
        }
    }
}

static tern_status refuse(void *user, const tn_aio_read *r, uint64_t at, uint64_t n, tern_error *err) {
    (void)user, (void)r, (void)n;
    if (at != 8192) return TERN_OK;
    *err = (tern_error){.code = TERN_E_FORMAT, .message = "the piece at 8192 is damaged"};
    return TERN_E_FORMAT;
}

static void failures_are_told(void **state) {
    (void)state;
    tn_ctx ctx;
    tn_ctx_init(&ctx, NULL);
    uint8_t *dst = aligned_alloc(4096, FILE_BYTES + 8192);
    assert_non_null(dst);
    for (size_t m = 0; m < 4; m++) {
        uint64_t bad = 5 * 4096 + 17;
        tn_aio_options o = options(methods[m]);
        o.fault = bad_at;
        o.fault_user = &bad;
        tn_aio *a;
        tern_error err = {0};
        assert_int_equal(tn_aio_open(&ctx, path, &o, &a, &err), TERN_OK);
        tn_aio_read r = {.n_bytes = FILE_BYTES, .dst = dst},
                    good = {.off_bytes = 8 * 4096, .n_bytes = 4096, .dst = dst};
        tn_aio_submit(a, &r, false);
        assert_int_equal(tn_aio_wait(a, &r, &err), TERN_E_IO);
        assert_non_null(strstr(err.message, "offset 16384"));
        assert_non_null(strstr(err.message, path));
        tn_aio_submit(a, &good, false); /* one bad place does not end the reader */
        assert_int_equal(tn_aio_wait(a, &good, &err), TERN_OK);
        r = (tn_aio_read){.off_bytes = 36 * 4096, .n_bytes = 8192, .dst = dst};
        tn_aio_submit(a, &r, false);
        assert_int_equal(tn_aio_wait(a, &r, &err), TERN_E_FORMAT);
        assert_non_null(strstr(err.message, "ends at offset 151552"));
        r = (tn_aio_read){.off_bytes = 8 * 4096, .n_bytes = 5 * 4096, .dst = dst, .check = refuse};
        tn_aio_submit(a, &r, false);
        assert_int_equal(tn_aio_wait(a, &r, &err), TERN_E_FORMAT);
        assert_string_equal(err.message, "the piece at 8192 is damaged");
        r = (tn_aio_read){.off_bytes = 0, .n_bytes = 4096, .dst = dst};
        tn_aio_submit(a, &r, false);
        tn_aio_close(&a); /* with a read that may not have begun */
    }
    free(dst);
    tn_aio *a;
    tern_error err = {0};
    assert_int_equal(tn_aio_open(&ctx, "/nonexistent/file", NULL, &a, &err), TERN_E_IO);
    assert_null(a);
    tn_aio_options o;
    assert_false(tn_aio_method_parse("carrier-pigeon", &o));
}

int main(void) {
    snprintf(path, sizeof path, TN_BINARY_DIR "/aio-%ld.bin", (long)getpid());
    content = malloc(FILE_BYTES);
    tn_rng rng = {7};
    for (size_t i = 0; content && i < FILE_BYTES; i++) content[i] = (uint8_t)tn_rng_below(&rng, 256);
    FILE *f = fopen(path, "wb");
    if (!content || !f || fwrite(content, 1, FILE_BYTES, f) != FILE_BYTES || fclose(f)) return 1;
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_method_reads),
                                       cmocka_unit_test(failures_are_told)};
    int rc = cmocka_run_group_tests(tests, NULL, NULL);
    unlink(path);
    free(content);
    return rc;
}
