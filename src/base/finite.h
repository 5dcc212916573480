/* base/finite.h - checks for infinities and NaN. */
#ifndef TN_BASE_FINITE_H
#define TN_BASE_FINITE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* Whether all values of p[0..n) are finite. Sixteen lanes at a time without branches, which compilers turn into
 * vectors at -O2 as well. */
static inline bool tn_all_finite(const float *p, size_t n) {
    enum { LANES = 16 };
    uint32_t bad[LANES] = {0}, any = 0;
    size_t i = 0;
    for (; i + LANES <= n; i += LANES)
        for (int lane = 0; lane < LANES; lane++) {
            uint32_t u;
            memcpy(&u, p + i + lane, sizeof u);
            bad[lane] |= (u & 0x7f800000u) + 0x00800000u; /* the exponent is all ones: the sign bit */
        }
    for (; i < n; i++) {
        uint32_t u;
        memcpy(&u, p + i, sizeof u);
        bad[0] |= (u & 0x7f800000u) + 0x00800000u;
    }
    for (int lane = 0; lane < LANES; lane++) any |= bad[lane];
    return any >> 31 == 0;
}

#endif
