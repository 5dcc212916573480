/* base/checked.h - arithmetic on sizes that come from outside. Each function returns false on overflow. */
#ifndef TN_BASE_CHECKED_H
#define TN_BASE_CHECKED_H

#include <stdbool.h>
#include <stdint.h>

static inline bool tn_mul_u64(uint64_t a, uint64_t b, uint64_t *out) {
    return !__builtin_mul_overflow(a, b, out);
}
static inline bool tn_add_u64(uint64_t a, uint64_t b, uint64_t *out) {
    return !__builtin_add_overflow(a, b, out);
}

/* Whether [off, off + len) lies within [0, size). */
static inline bool tn_range_ok(uint64_t off, uint64_t len, uint64_t size) {
    return off <= size && len <= size - off;
}

#endif
