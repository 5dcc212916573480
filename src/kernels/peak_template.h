/* kernels/peak_template.h - one register loop: the includer defines PEAK_NAME, vec, PEAK_STEP(acc, a, b),
 * PEAK_ZERO, PEAK_ONE and PEAK_OPS (operations of one step). Sixteen chains are enough for a latency of 8 at
 * two a cycle. */
#include "kernels/limits.h"

double PEAK_NAME(long n) {
    vec a = PEAK_ONE, b = PEAK_ONE;
    vec c0 = PEAK_ZERO, c1 = PEAK_ZERO, c2 = PEAK_ZERO, c3 = PEAK_ZERO, c4 = PEAK_ZERO, c5 = PEAK_ZERO,
        c6 = PEAK_ZERO, c7 = PEAK_ZERO;
    vec c8 = PEAK_ZERO, c9 = PEAK_ZERO, c10 = PEAK_ZERO, c11 = PEAK_ZERO;
    for (long i = 0; i < n; i++) {
        PEAK_STEP(c0, a, b);
        PEAK_STEP(c1, a, b);
        PEAK_STEP(c2, a, b);
        PEAK_STEP(c3, a, b);
        PEAK_STEP(c4, a, b);
        PEAK_STEP(c5, a, b);
        PEAK_STEP(c6, a, b);
        PEAK_STEP(c7, a, b);
        PEAK_STEP(c8, a, b);
        PEAK_STEP(c9, a, b);
        PEAK_STEP(c10, a, b);
        PEAK_STEP(c11, a, b);
        /* the compiler may neither hoist the inputs nor drop the sums */
        __asm__ volatile(""
                         : PEAK_REG(c0), PEAK_REG(c1), PEAK_REG(c2), PEAK_REG(c3), PEAK_REG(c4), PEAK_REG(c5),
                           PEAK_REG(a), PEAK_REG(b));
        __asm__ volatile(""
                         : PEAK_REG(c6), PEAK_REG(c7), PEAK_REG(c8), PEAK_REG(c9), PEAK_REG(c10),
                           PEAK_REG(c11));
    }
    return 12.0 * (PEAK_OPS) * (double)n;
}
