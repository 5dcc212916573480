/* base/rng.h - splitmix64: a small random number generator, the same for a seed on every machine. */
#ifndef TN_BASE_RNG_H
#define TN_BASE_RNG_H

#include <stdint.h>

typedef struct tn_rng {
    uint64_t s;
} tn_rng;

static inline uint64_t tn_rng_u64(tn_rng *r) {
    uint64_t z = (r->s += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

/* Draws uniformly from [0,1). */
static inline double tn_rng_f64(tn_rng *r) { return (double)(tn_rng_u64(r) >> 11) * 0x1p-53; }
/* Draws uniformly from [0,n), n > 0. */
static inline uint64_t tn_rng_below(tn_rng *r, uint64_t n) {
    return (uint64_t)(((__uint128_t)tn_rng_u64(r) * n) >> 64);
}

#endif
