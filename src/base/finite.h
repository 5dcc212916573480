/* base/finite.h - checks for infinities and NaN. */
#ifndef TN_BASE_FINITE_H
#define TN_BASE_FINITE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* Whether all values of p[0..n) are finite. */
static inline bool tn_all_finite(const float *p, size_t n) {
    uint32_t bad = 0;
    for (size_t i = 0; i < n;
         i += 1024) { /* a block at a time without branches, so that the loop vectorises */
        size_t end = n - i < 1024 ? n : i + 1024;
        for (size_t j = i; j < end; j++) {
            uint32_t u;
            memcpy(&u, p + j, sizeof u);
            bad |= ((u & 0x7f800000u) + 0x00800000u) & 0x80000000u; /* the exponent is all ones */
        }
        if (bad) return false;
    }
    return true;
}

#endif
