/* base/mt19937.h - the Mersenne Twister, and doubles drawn from it like std::uniform_real_distribution of
 * libstdc++: as llama.cpp draws tokens, so that a seed gives the same text here. */
#ifndef TN_BASE_MT19937_H
#define TN_BASE_MT19937_H

#include <math.h>
#include <stdint.h>

enum { TN_MT_N = 624, TN_MT_M = 397 };

typedef struct tn_mt19937 {
    uint32_t x[TN_MT_N];
    int at; /* index of the next one; TN_MT_N: all are used up */
} tn_mt19937;

/* All bits of seeds beyond 32 bits count. */
static inline void tn_mt_seed(tn_mt19937 *r, uint64_t seed) {
    r->x[0] = (uint32_t)(seed ^ seed >> 32);
    for (uint32_t i = 1; i < TN_MT_N; i++) r->x[i] = 1812433253u * (r->x[i - 1] ^ r->x[i - 1] >> 30) + i;
    r->at = TN_MT_N;
}

static inline uint32_t tn_mt_u32(tn_mt19937 *r) {
    if (r->at == TN_MT_N) {
        for (int i = 0; i < TN_MT_N; i++) {
            const uint32_t y = (r->x[i] & 0x80000000u) | (r->x[(i + 1) % TN_MT_N] & 0x7fffffffu);
            r->x[i] = r->x[(i + TN_MT_M) % TN_MT_N] ^ y >> 1 ^ (y & 1 ? 0x9908b0dfu : 0);
        }
        r->at = 0;
    }
    uint32_t y = r->x[r->at++];
    y ^= y >> 11;
    y ^= y << 7 & 0x9d2c5680u;
    y ^= y << 15 & 0xefc60000u;
    return y ^ y >> 18;
}

/* Draws from [0,1) with two numbers, the second one as the upper bits. */
static inline double tn_mt_f64(tn_mt19937 *r) {
    const double low = tn_mt_u32(r), high = tn_mt_u32(r), x = (low + high * 0x1p32) * 0x1p-64;
    return x < 1 ? x : nextafter(1, 0);
}

#endif
