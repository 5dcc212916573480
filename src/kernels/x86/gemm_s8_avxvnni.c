/* kernels/x86/gemm_s8_avxvnni.c - gemm_s8 on VEX-coded VNNI: 6 rows x 16 columns, 12 accumulators. */
#include <immintrin.h>
#include <stdint.h>
#include <string.h>

enum { OFFSET_COLUMNS = 1 };
#define MAX_ROWS 6

struct act {
    __m256i u8;
};

static inline struct act load_act(const uint8_t *p) {
    int32_t v;
    memcpy(&v, p, sizeof v);
    return (struct act){_mm256_set1_epi32(v)};
}

static inline __m256i dot(__m256i acc, struct act a, __m256i w) {
    return _mm256_dpbusd_avx_epi32(acc, a.u8, w);
}

#include "kernels/x86/gemm_s8_ymm.h"

void tn_gemm_s8_avxvnni(const tn_gemm_s8_args *g) { gemm(g); }
