/* kernels/x86/gemm_s8_avx2.c - gemm_s8 without VNNI. vpmaddubsw saturates for u8 activations (2 * 255 * 127 >
 * 32767), so the sign of the activation moves to the weight: |a| <= 128 and |w| <= 127 give pairs of at most
 * 2 * 128 * 127 = 32512, exact. */
#include <immintrin.h>
#include <stdint.h>
#include <string.h>

enum { OFFSET_COLUMNS = 0 };
#define MAX_ROWS 4

struct act {
    __m256i s8, abs;
};

static inline struct act load_act(const uint8_t *p) {
    int32_t v;
    memcpy(&v, p, sizeof v);
    __m256i s8 = _mm256_xor_si256(_mm256_set1_epi32(v), _mm256_set1_epi8((char)0x80));
    return (struct act){s8, _mm256_abs_epi8(s8)}; /* |-128| stays 0x80, which is 128 unsigned */
}

static inline __m256i dot(__m256i acc, struct act a, __m256i w) {
    __m256i pairs = _mm256_maddubs_epi16(a.abs, _mm256_sign_epi8(w, a.s8));
    return _mm256_add_epi32(acc, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
}

#include "kernels/x86/gemm_s8_ymm.h"

void tn_gemm_s8_avx2(const tn_gemm_s8_args *g) { gemm(g); }
