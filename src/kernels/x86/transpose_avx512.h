/* kernels/x86/transpose_avx512.h - sixteen registers of sixteen 32-bit lanes, transposed. */
#ifndef TN_KERNELS_X86_TRANSPOSE_AVX512_H
#define TN_KERNELS_X86_TRANSPOSE_AVX512_H

#include <immintrin.h>
#include <stddef.h>

/* Lane i of line[j] = lane j of in[i * step]. */
static inline __attribute__((always_inline)) void transpose_avx512(const __m512i *in, size_t step,
                                                                   __m512i line[static 16]) {
    __m512i r[16], t[16];
#pragma GCC unroll 16
    for (int i = 0; i < 16; i += 2) {
        __m512i x = in[(size_t)i * step], y = in[(size_t)(i + 1) * step];
        t[i] = _mm512_unpacklo_epi32(x, y);
        t[i + 1] = _mm512_unpackhi_epi32(x, y);
    }
#pragma GCC unroll 16
    for (int i = 0; i < 16; i += 4) { /* r[i + j]: lane 4L + j of in[i..i+3], L = its 128 bits */
        r[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
        r[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
        r[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
        r[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
    }
#pragma GCC unroll 4
    for (int j = 0; j < 4; j++) {
        __m512i p = _mm512_shuffle_i32x4(r[j], r[4 + j], 0x88),
                q = _mm512_shuffle_i32x4(r[8 + j], r[12 + j], 0x88);
        __m512i s = _mm512_shuffle_i32x4(r[j], r[4 + j], 0xdd),
                u = _mm512_shuffle_i32x4(r[8 + j], r[12 + j], 0xdd);
        line[j] = _mm512_shuffle_i32x4(p, q, 0x88);
        line[8 + j] = _mm512_shuffle_i32x4(p, q, 0xdd);
        line[4 + j] = _mm512_shuffle_i32x4(s, u, 0x88);
        line[12 + j] = _mm512_shuffle_i32x4(s, u, 0xdd);
    }
}

#endif
