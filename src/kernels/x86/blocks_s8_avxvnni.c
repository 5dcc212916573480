/* kernels/x86/blocks_s8_avxvnni.c - products over ggml's blocks on the VEX form of VPDPBUSD: 3 rows x 1 tile.
 */
#include <immintrin.h>
#include <stdint.h>

#define SIGNED 0
#define PAIRS 0
struct act {
    __m256i v;
};
static inline __m256i dot(__m256i acc, __m256i w, struct act x, int wide) {
    (void)wide;
    return _mm256_dpbusd_avx_epi32(acc, w, x.v);
}

#include "kernels/x86/blocks_s8_ymm.h"

void tn_blocks_gemm_avxvnni(const tn_blocks_args *g) { gemm(g); }
