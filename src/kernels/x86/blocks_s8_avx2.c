/* kernels/x86/blocks_s8_avx2.c - products over ggml's blocks on VPMADDUBSW: 3 rows x 1 tile. Values below 64
 * are its unsigned operand: 2 * 63 * 127 fits 16 bits. For values of eight bits their sign moves to the
 * activations: 2 * 128 * 127 fits, too. */
#include <immintrin.h>
#include <stdint.h>

#define SIGNED 1
#define PAIRS 1
struct act {
    __m256i v;
};
static inline __m256i dot(__m256i acc, __m256i w, struct act x, int wide) {
    __m256i a = wide ? _mm256_sign_epi8(x.v, w) : x.v, u = wide ? _mm256_abs_epi8(w) : w;
    return _mm256_add_epi32(acc, _mm256_madd_epi16(_mm256_maddubs_epi16(u, a), _mm256_set1_epi16(1)));
}

#define pairs_of(w, x) _mm256_maddubs_epi16(w, (x).v)
#define pairs_add _mm256_add_epi16
#define pairs_widen(acc, p) _mm256_add_epi32(acc, _mm256_madd_epi16(p, _mm256_set1_epi16(1)))

#include "kernels/x86/blocks_s8_ymm.h"

void tn_blocks_gemm_avx2(const tn_blocks_args *g) { gemm(g); }
