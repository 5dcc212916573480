/* lab/noise.h - the values of random weights. */
#ifndef TN_LAB_NOISE_H
#define TN_LAB_NOISE_H

#include "base/rng.h"

/* Sums four uniforms: close enough to normal, cheap, the same everywhere. Values depend on seed and index
 * only. */
static inline float tn_synth_noise(uint64_t seed, uint64_t i) {
    tn_rng r = {seed + i * 0x9e3779b97f4a7c15u};
    uint64_t u = tn_rng_u64(&r);
    int32_t s = (int32_t)(u & 0xffff) + (int32_t)(u >> 16 & 0xffff) + (int32_t)(u >> 32 & 0xffff) +
                (int32_t)(u >> 48);
    return (float)(s - 131070) * (1.0f / 37837.0f); /* standard deviation 1 */
}

#endif
