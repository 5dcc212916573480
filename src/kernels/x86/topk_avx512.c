/* Loops of topk.h on 512-bit vectors (AVX-512 F, BW). */
#define TOPK_NAME tn_topk_avx512
#define MERGE_NAME tn_topk_merge_avx512

#include "kernels/topk.h"

#include <immintrin.h>

static void to_keys(const int32_t *scores, size_t n, int shift, int16_t *keys, int64_t *sum,
                    int64_t *sum_sq) {
    __m128i by = _mm_cvtsi32_si128(shift);
    __m512 sf = _mm512_setzero_ps(), qf = sf; /* floats suffice: they only place the first guess */
    size_t i = 0;
    int64_t s = 0, q = 0;
    for (; i + 16 <= n; i += 16) {
        __m512i v = _mm512_sra_epi32(_mm512_loadu_si512(scores + i), by);
        __m512 f = _mm512_cvtepi32_ps(v);
        sf = _mm512_add_ps(sf, f);
        qf = _mm512_fmadd_ps(f, f, qf);
        _mm256_storeu_si256((__m256i *)(keys + i), _mm512_cvtepi32_epi16(v));
    }
    for (; i < n; i++) {
        keys[i] = (int16_t)(scores[i] >> shift);
        s += keys[i];
        q += (int32_t)keys[i] * keys[i];
    }
    for (; i % 32; i++) keys[i] = -32768;
    *sum = s + (int64_t)_mm512_reduce_add_ps(sf);
    *sum_sq = q + (int64_t)_mm512_reduce_add_ps(qf);
}

static size_t count_from(const int16_t *keys, size_t n, int32_t t) {
    __m512i limit = _mm512_set1_epi16((short)t), one = _mm512_set1_epi16(1);
    size_t c = 0;
    for (size_t i = 0; i < n;) { /* 16-bit counters: up to 4 * 32767 vectors */
        __m512i a0 = _mm512_setzero_si512(), a1 = a0, a2 = a0, a3 = a0;
        size_t end = n - i > 1 << 20 ? i + (1 << 20) : n;
        for (; i + 128 <= end; i += 128) {
            a0 = _mm512_mask_add_epi16(a0, _mm512_cmpge_epi16_mask(_mm512_loadu_si512(keys + i), limit), a0,
                                       one);
            a1 = _mm512_mask_add_epi16(a1, _mm512_cmpge_epi16_mask(_mm512_loadu_si512(keys + i + 32), limit),
                                       a1, one);
            a2 = _mm512_mask_add_epi16(a2, _mm512_cmpge_epi16_mask(_mm512_loadu_si512(keys + i + 64), limit),
                                       a2, one);
            a3 = _mm512_mask_add_epi16(a3, _mm512_cmpge_epi16_mask(_mm512_loadu_si512(keys + i + 96), limit),
                                       a3, one);
        }
        for (; i < end; i += 32)
            a0 = _mm512_mask_add_epi16(a0, _mm512_cmpge_epi16_mask(_mm512_loadu_si512(keys + i), limit), a0,
                                       one);
        __m512i s =
            _mm512_add_epi32(_mm512_add_epi32(_mm512_madd_epi16(a0, one), _mm512_madd_epi16(a1, one)),
                             _mm512_add_epi32(_mm512_madd_epi16(a2, one), _mm512_madd_epi16(a3, one)));
        c += (size_t)_mm512_reduce_add_epi32(s);
    }
    return c;
}

static size_t find_equal(const int16_t *keys, size_t n, int32_t t, uint32_t *at) {
    __m512i key = _mm512_set1_epi16((short)t);
    size_t c = 0;
    for (size_t i = 0; i < n; i += 32) {
        for (uint32_t m = _mm512_cmpeq_epi16_mask(_mm512_loadu_si512(keys + i), key); m; m &= m - 1)
            at[c++] = (uint32_t)i + (uint32_t)__builtin_ctz(m);
    }
    return c;
}

static void emit_from(const int16_t *keys, size_t n, int32_t t, uint32_t *idx, uint32_t *cuts) {
    __m512i limit = _mm512_set1_epi16((short)t),
            at = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15),
            sixteen = _mm512_set1_epi32(16);
    uint32_t *to = idx;
    for (size_t i = 0; i < n; i += 32) {
        if (cuts && i % TN_SPARSE_BLOCK == 0) cuts[i / TN_SPARSE_BLOCK] = (uint32_t)(to - idx);
        uint32_t m = _mm512_cmpge_epi16_mask(_mm512_loadu_si512(keys + i), limit);
        _mm512_storeu_si512(to, _mm512_maskz_compress_epi32((__mmask16)m, at));
        to += __builtin_popcount(m & 0xffff);
        at = _mm512_add_epi32(at, sixteen);
        _mm512_storeu_si512(to, _mm512_maskz_compress_epi32((__mmask16)(m >> 16), at));
        to += __builtin_popcount(m >> 16);
        at = _mm512_add_epi32(at, sixteen);
    }
}

typedef __m512i vi;
enum { VN = 16 };
#define v_load(p) _mm512_loadu_si512(p)
#define v_store(p, v) _mm512_storeu_si512(p, v)
#define v_set1 _mm512_set1_epi32
#define v_sub _mm512_sub_epi32
#define v_max _mm512_max_epi32
#define v_min _mm512_min_epi32

#include "kernels/topk_template.h"
