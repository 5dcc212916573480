/* base/heat.h - how often something was used lately: a use counts half after a time. */
#ifndef TN_BASE_HEAT_H
#define TN_BASE_HEAT_H

#include <math.h>

/* log2 of the uses, with one more at `now`, which is counted in half-lives; heat 0: none before. Weights grow with time
 * instead of being halved, and their logarithm keeps them in range. */
static inline double tn_heat(double heat, double now) {
    return heat > 0 ? now + log2(1 + exp2(heat - now)) : now;
}

#endif
