/* tests/kernels/f32_variants.h - the float tables this processor can run, the scalar one first. */
#ifndef TN_TESTS_KERNELS_F32_VARIANTS_H
#define TN_TESTS_KERNELS_F32_VARIANTS_H

#include "base/cpu.h"
#include "kernels/kernels.h"

typedef struct f32_variant {
    const char *name;
    tn_kernels k;
} f32_variant;

/* Fills out[4], returns how many. Include check.h first. */
static inline int f32_variants(f32_variant *out) {
    static const char *const words[] = {"scalar", "avx2", "avx512", "neon"};
    uint32_t have = tn_cpu_detect(), last = 0;
    int n = 0;
    for (int i = 0; i < 4; i++) {
        uint32_t flags = tn_cpu_limit(words[i], have);
        if (i && flags == last) continue;
        if (i && !(flags & (TN_CPU_AVX2 | TN_CPU_NEON))) continue;
        print_message("variant %s\n", words[i]);
        out[n].name = words[i];
        tn_kernels_init(&out[n++].k, flags);
        last = flags;
    }
    return n;
}

#endif
