/* Loops of topk.h on 256-bit vectors (AVX2). */
#define TOPK_NAME tn_topk_avx2
#define MERGE_NAME tn_topk_merge_avx2

#include "kernels/topk.h"

#include <immintrin.h>

static int64_t sum_floats(__m256 v) {
    float lane[8], s = 0;
    _mm256_storeu_ps(lane, v);
    for (int i = 0; i < 8; i++) s += lane[i];
    return (int64_t)s;
}

static void to_keys(const int32_t *scores, size_t n, int shift, int16_t *keys, int64_t *sum,
                    int64_t *sum_sq) {
    __m128i by = _mm_cvtsi32_si128(shift);
    __m256 sf = _mm256_setzero_ps(), qf = sf; /* floats suffice: they only place the first guess */
    size_t i = 0;
    int64_t s = 0, q = 0;
    for (; i + 16 <= n; i += 16) {
        __m256i a = _mm256_sra_epi32(_mm256_loadu_si256((const __m256i *)(scores + i)), by),
                b = _mm256_sra_epi32(_mm256_loadu_si256((const __m256i *)(scores + i + 8)), by);
        __m256 f = _mm256_cvtepi32_ps(a), g = _mm256_cvtepi32_ps(b);
        sf = _mm256_add_ps(sf, _mm256_add_ps(f, g));
        qf = _mm256_fmadd_ps(f, f, _mm256_fmadd_ps(g, g, qf));
        _mm256_storeu_si256((__m256i *)(keys + i), _mm256_permute4x64_epi64(_mm256_packs_epi32(a, b), 0xd8));
    }
    for (; i < n; i++) {
        keys[i] = (int16_t)(scores[i] >> shift);
        s += keys[i];
        q += (int32_t)keys[i] * keys[i];
    }
    for (; i % 32; i++) keys[i] = -32768;
    *sum = s + sum_floats(sf);
    *sum_sq = q + sum_floats(qf);
}

static uint32_t mask32(__m256i lo, __m256i hi) { /* of 16-bit lanes, all ones or none */
    return (uint32_t)_mm256_movemask_epi8(_mm256_permute4x64_epi64(_mm256_packs_epi16(lo, hi), 0xd8));
}

static size_t count_from(const int16_t *keys, size_t n, int32_t t) {
    __m256i below = _mm256_set1_epi16((short)(t - 1)), one = _mm256_set1_epi16(1);
    size_t c = 0;
    for (size_t i = 0; i < n;) { /* 16-bit counters */
        __m256i a = _mm256_setzero_si256(), b = a;
        size_t end = n - i > 1 << 19 ? i + (1 << 19) : n;
        for (; i < end; i += 32) {
            a = _mm256_sub_epi16(a,
                                 _mm256_cmpgt_epi16(_mm256_loadu_si256((const __m256i *)(keys + i)), below));
            b = _mm256_sub_epi16(
                b, _mm256_cmpgt_epi16(_mm256_loadu_si256((const __m256i *)(keys + i + 16)), below));
        }
        int32_t lane[8];
        _mm256_storeu_si256((__m256i *)lane,
                            _mm256_add_epi32(_mm256_madd_epi16(a, one), _mm256_madd_epi16(b, one)));
        for (int j = 0; j < 8; j++) c += (size_t)lane[j];
    }
    return c;
}

static size_t find_equal(const int16_t *keys, size_t n, int32_t t, uint32_t *at) {
    __m256i key = _mm256_set1_epi16((short)t);
    size_t c = 0;
    for (size_t i = 0; i < n; i += 32) {
        uint32_t m = mask32(_mm256_cmpeq_epi16(_mm256_loadu_si256((const __m256i *)(keys + i)), key),
                            _mm256_cmpeq_epi16(_mm256_loadu_si256((const __m256i *)(keys + i + 16)), key));
        for (; m; m &= m - 1) at[c++] = (uint32_t)i + (uint32_t)__builtin_ctz(m);
    }
    return c;
}

static void emit_from(const int16_t *keys, size_t n, int32_t t, uint32_t *idx, uint32_t *cuts) {
    __m256i below = _mm256_set1_epi16((short)(t - 1));
    uint32_t *to = idx;
    for (size_t i = 0; i < n; i += 32) {
        if (cuts && i % TN_SPARSE_BLOCK == 0) cuts[i / TN_SPARSE_BLOCK] = (uint32_t)(to - idx);
        uint32_t m = mask32(_mm256_cmpgt_epi16(_mm256_loadu_si256((const __m256i *)(keys + i)), below),
                            _mm256_cmpgt_epi16(_mm256_loadu_si256((const __m256i *)(keys + i + 16)), below));
        for (; m; m &= m - 1) *to++ = (uint32_t)i + (uint32_t)__builtin_ctz(m);
    }
}

typedef __m256i vi;
enum { VN = 8 };
#define v_load(p) _mm256_loadu_si256((const __m256i *)(p))
#define v_store(p, v) _mm256_storeu_si256((__m256i *)(p), v)
#define v_set1 _mm256_set1_epi32
#define v_sub _mm256_sub_epi32
#define v_max _mm256_max_epi32
#define v_min _mm256_min_epi32

#include "kernels/topk_template.h"
