#include "kernels/dot_f16.h"

#include "base/cpu.h"
#include "base/half.h"

#include <math.h>

static float dot(const float *q, const uint16_t *v, size_t n) {
    float lane[16] = {0};
    for (size_t i = 0; i < n; i++) lane[i % 16] = fmaf(q[i], tn_f16_f32(v[i]), lane[i % 16]);
    for (size_t stride = 8; stride; stride /= 2) {
        for (size_t i = 0; i < stride; i++) lane[i] += lane[i + stride];
    }
    return lane[0];
}

void tn_dot_f16_ref(const float *q, const uint16_t *v, size_t n, float out[2]) {
    out[0] = dot(q, v, n);
    out[1] = dot(q + n, v, n);
}

tn_dot_f16_fn tn_dot_f16_for(uint32_t cpu) {
#if defined(__x86_64__)
    if (cpu & TN_CPU_AVX2) return tn_dot_f16_avx2;
#elif defined(__aarch64__)
    if (cpu & TN_CPU_NEON) return tn_dot_f16_neon;
#endif
    (void)cpu;
    return tn_dot_f16_ref;
}
