/* tests/kernels/check.h - what every kernel test needs: buffers that end at a guard page and begin after a
 * canary, poisoned outputs, fills. A kernel that reads or writes one byte too far dies here. */
#ifndef TN_TESTS_KERNELS_CHECK_H
#define TN_TESTS_KERNELS_CHECK_H

#include "base/rng.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

enum { CHECK_POISON = 0xa5 };

typedef struct check_buf {
    void *p; /* n_bytes bytes, the last one just before an inaccessible page */
    size_t n_bytes;
    uint8_t *map;
    size_t map_bytes;
} check_buf;

/* All bytes, also those before p, are CHECK_POISON. p is as aligned as n_bytes is. */
static inline check_buf check_new(size_t n_bytes) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    size_t body = (n_bytes + 64 + page - 1) / page * page; /* at least 64 canary bytes in front */
    check_buf b = {.n_bytes = n_bytes, .map_bytes = body + page};
    b.map = mmap(NULL, b.map_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(b.map != MAP_FAILED);
    memset(b.map, CHECK_POISON, body);
    assert_int_equal(mprotect(b.map + body, page, PROT_NONE), 0);
    b.p = b.map + body - n_bytes;
    return b;
}

static inline int check_canary_ok(const check_buf *b) {
    for (const uint8_t *q = b->map; q < (const uint8_t *)b->p; q++) {
        if (*q != CHECK_POISON) return 0;
    }
    return 1;
}

/* Checks the canary and unmaps. */
static inline void check_free(check_buf *b) {
    assert_true(check_canary_ok(b));
    munmap(b->map, b->map_bytes);
    *b = (check_buf){0};
}

static inline float check_rand_f32(tn_rng *r, float lo, float hi) {
    return lo + (hi - lo) * (float)tn_rng_f64(r);
}

/* Fills that find different mistakes: small values, large and tiny ones mixed, alternating signs, zeros of
 * both signs. */
typedef enum check_fill {
    CHECK_RANDOM,
    CHECK_EXTREME,
    CHECK_ALTERNATING,
    CHECK_ZEROS,
    CHECK_N_FILLS
} check_fill;

static inline void check_fill_f32(tn_rng *r, check_fill how, float *x, size_t n) {
    static const float extreme[] = {1e30f, -1e30f, 1e-30f, -1e-38f, 0.0f, -0.0f, 65504.0f, 1e-41f};
    for (size_t i = 0; i < n; i++) {
        switch (how) {
        case CHECK_EXTREME:
            x[i] = tn_rng_below(r, 2) ? extreme[tn_rng_below(r, 8)] : check_rand_f32(r, -4, 4);
            break;
        case CHECK_ALTERNATING: x[i] = i % 2 ? -3.75f : 3.75f; break;
        case CHECK_ZEROS: x[i] = tn_rng_below(r, 3) ? 0.0f : -0.0f; break;
        default: x[i] = check_rand_f32(r, -1, 1);
        }
    }
}

/* Equal bits, or both NaN: the payload of a NaN is the processor's business. */
static inline int check_same_f32(float a, float b) { return (a != a && b != b) || !memcmp(&a, &b, sizeof a); }

/* The seed of this run: TERN_SEED or a fixed one; printed so that a failure can be repeated. */
static inline uint64_t check_seed(void) {
    const char *s = getenv("TERN_SEED");
    uint64_t seed = s ? strtoull(s, NULL, 0) : 1;
    print_message("seed %llu (TERN_SEED)\n", (unsigned long long)seed);
    return seed;
}

/* How many of n random cases are tried: fewer where each takes long, under a sanitizer or an emulator. */
static inline int check_rounds(int n) { return getenv("TERN_TEST_QUICK") ? n / 3 + 1 : n; }

#endif
