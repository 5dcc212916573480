/* kernels/x86/rans_avx512.c - a stream of entropy-coded weightlets, 32 coders a register of words.
 *
 * A coder's tables fit registers: the shared buckets, the frequencies and the bases, so nothing is gathered.
 * Two registers of words are in flight, so their chains of look-ups overlap. */
#include "kernels/rans.h"
#include "kernels/unpack.h"

#include <immintrin.h>
#include <string.h>

enum { GROUP = TN_WEIGHTLET_GROUP, LANES = TN_RANS_LANES, SCALE_BITS = 12 };

#define INLINE static inline __attribute__((always_inline))

typedef struct coders {
    __m512i x[4]; /* 64 states */
    const uint8_t *at;
} coders;

typedef struct lookups {
    __m512i shared, frequency, own, other;
} lookups;

/* The next 16 states. */
INLINE __m512i advance(__m512i x, __m512i f, __m512i index, __mmask16 which, const uint8_t **at) {
    __m512i y = _mm512_add_epi32(_mm512_mullo_epi32(_mm512_srli_epi32(x, SCALE_BITS), f), index);
    const __mmask16 low = _mm512_mask_cmplt_epu32_mask(which, y, _mm512_set1_epi32(TN_RANS_FIRST));
    const __m512i words = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)*at));
    const __m512i in = _mm512_or_si512(_mm512_slli_epi32(y, 16), _mm512_maskz_expand_epi32(low, words));
    *at += 2 * (unsigned)__builtin_popcount(low);
    return _mm512_mask_mov_epi32(_mm512_mask_mov_epi32(x, which, y), low, in);
}

/* One step of those of 32 coders in `which`. Returns their symbols, and 0 for the others. */
INLINE __m256i half_step(coders *c, int first, const lookups *t, __mmask32 which) {
    const __m512i even = _mm512_set_epi16(62, 60, 58, 56, 54, 52, 50, 48, 46, 44, 42, 40, 38, 36, 34, 32, 30,
                                          28, 26, 24, 22, 20, 18, 16, 14, 12, 10, 8, 6, 4, 2, 0);
    const __m512i words = _mm512_permutex2var_epi16(c->x[first], even, c->x[first + 1]);
    const __m512i bucket = _mm512_and_si512(_mm512_srli_epi16(words, 7), _mm512_set1_epi16(31)),
                  in = _mm512_and_si512(words, _mm512_set1_epi16(127));
    const __m512i shared = _mm512_permutexvar_epi16(bucket, t->shared);
    const __mmask32 own = _mm512_cmplt_epu16_mask(in, _mm512_and_si512(shared, _mm512_set1_epi16(255)));
    const __m512i symbol = _mm512_mask_mov_epi16(_mm512_srli_epi16(shared, 8), own, bucket);
    const __m512i f = _mm512_permutexvar_epi16(symbol, t->frequency);
    const __m512i base =
        _mm512_mask_permutexvar_epi16(_mm512_permutexvar_epi16(bucket, t->other), own, bucket, t->own);
    const __m512i index = _mm512_add_epi16(in, base);
    c->x[first] = advance(c->x[first], _mm512_cvtepu16_epi32(_mm512_castsi512_si256(f)),
                          _mm512_cvtepu16_epi32(_mm512_castsi512_si256(index)), (__mmask16)which, &c->at);
    c->x[first + 1] =
        advance(c->x[first + 1], _mm512_cvtepu16_epi32(_mm512_extracti64x4_epi64(f, 1)),
                _mm512_cvtepu16_epi32(_mm512_extracti64x4_epi64(index, 1)), (__mmask16)(which >> 16), &c->at);
    return _mm512_maskz_cvtepi16_epi8(which, symbol);
}

INLINE __m512i step(coders *c, const lookups *t, __mmask64 which) {
    const __m256i low = half_step(c, 0, t, (__mmask32)which);
    return _mm512_inserti64x4(_mm512_castsi256_si512(low), half_step(c, 2, t, (__mmask32)(which >> 32)), 1);
}

/* The bits below the symbols, one plane each. */
INLINE void take_raw(coders *c, unsigned raw, __m512i code[2]) {
    for (int i = 0; i < 2; i++) {
        __m512i low = _mm512_setzero_si512();
        for (unsigned b = 0; b < raw; b++) {
            __mmask64 set;
            memcpy(&set, c->at + 16 * b + 8 * (unsigned)i, sizeof set);
            low = _mm512_or_si512(low, _mm512_maskz_set1_epi8(set, (char)(1 << b)));
        }
        code[i] = _mm512_or_si512(_mm512_sll_epi16(code[i], _mm_cvtsi32_si128((int)raw)), low);
    }
    c->at += 16 * raw;
}

INLINE __m512i bits_of(__m512i code, unsigned low, int mask) {
    return _mm512_and_si512(_mm512_srl_epi16(code, _mm_cvtsi32_si128((int)low)),
                            _mm512_set1_epi8((char)mask));
}

/* 128 codes to weightlets (unpack.h). */
INLINE void put_group(uint8_t *dst, const __m512i code[2], unsigned bits) {
    if (bits == 8) {
        for (int i = 0; i < 2; i++)
            _mm512_storeu_si512(dst + 64 * i, _mm512_xor_si512(code[i], _mm512_set1_epi8((char)0x80)));
        return;
    }
    if (bits & 4) {
        const __m512i mask = _mm512_set1_epi8(15),
                      high = _mm512_slli_epi16(_mm512_and_si512(code[1], mask), 4);
        _mm512_storeu_si512(dst, _mm512_or_si512(_mm512_and_si512(code[0], mask), high));
        dst += 64;
    }
    if (bits & 2) {
        const __m512i a = bits_of(code[0], bits & 4, 3), b = bits_of(code[1], bits & 4, 3);
        const __m512i v = _mm512_or_si512(a, _mm512_slli_epi16(b, 4)); /* 0..31 | 64..95, 32..63 | 96..127 */
        const __m256i up = _mm256_slli_epi16(_mm512_extracti64x4_epi64(v, 1), 2);
        _mm256_storeu_si256((__m256i *)dst, _mm256_or_si256(_mm512_castsi512_si256(v), up));
        dst += 32;
    }
    if (bits & 1) {
        const __m512i a = bits_of(code[0], bits & 6, 1), b = bits_of(code[1], bits & 6, 1);
        const __m512i v =
            _mm512_or_si512(a, _mm512_slli_epi16(b, 4)); /* quarter q of both: bits q and 4 + q */
        __m128i out = _mm512_castsi512_si128(v);
        out = _mm_or_si128(out, _mm_slli_epi16(_mm512_extracti32x4_epi32(v, 1), 1));
        out = _mm_or_si128(out, _mm_slli_epi16(_mm512_extracti32x4_epi32(v, 2), 2));
        out = _mm_or_si128(out, _mm_slli_epi16(_mm512_extracti32x4_epi32(v, 3), 3));
        _mm_storeu_si128((__m128i *)dst, out);
    }
}

INLINE lookups lookups_of(const tn_rans_table *t) {
    return (lookups){_mm512_load_si512(t->shared), _mm512_load_si512(t->frequency),
                     _mm512_load_si512(t->base), _mm512_load_si512(t->base + TN_RANS_BUCKETS)};
}

enum { MOST = 2 * 2 * LANES + 3 * 16 + 64 }; /* bytes that a group may read, or look at */

bool tn_rans_decode_avx512(const tn_rans_args *a, const uint8_t *src, size_t n_bytes, uint8_t *dst) {
    coders c = {.at = src + LANES * sizeof(uint32_t)};
    const uint8_t *end = src + n_bytes;
    uint8_t tail[2 * MOST]; /* copies the last bytes, so that whole registers can be read */
    bool in_tail = false;
    if (n_bytes < LANES * sizeof(uint32_t)) return false;
    for (int i = 0; i < 4; i++) c.x[i] = _mm512_loadu_si512(src + 64 * i);
    for (size_t tile = a->n0; tile < a->n1; tile += TN_TILE_N) {
        const size_t n = a->n1 - tile < TN_TILE_N ? a->n1 - tile : TN_TILE_N;
        unsigned bits[TN_TILE_N];
        const tn_rans_table *table[TN_TILE_N];
        for (size_t i = 0; i < n; i++) {
            bits[i] = tn_channel_bits_get(a->packed_bits, tile + i);
            table[i] = &a->tables[a->channel_table[tile + i]];
        }
        for (size_t k = 0; k < a->k; k += GROUP) {
            const size_t left = a->k - k;
            const __mmask64 which[2] = {left >= LANES ? ~0ull : (1ull << left) - 1,
                                        left >= GROUP   ? ~0ull
                                        : left <= LANES ? 0
                                                        : (1ull << (left - LANES)) - 1};
            for (size_t i = 0; i < n; i++) {
                if ((size_t)(end - c.at) < MOST && !in_tail) {
                    const size_t rest = (size_t)(end - c.at);
                    memcpy(tail, c.at, rest);
                    memset(tail + rest, 0, sizeof tail - rest);
                    c.at = tail;
                    end = tail + rest;
                    in_tail = true;
                }
                const lookups t = lookups_of(table[i]);
                const unsigned b = bits[i], raw = b > TN_RANS_SYMBOL_BITS ? b - TN_RANS_SYMBOL_BITS : 0;
                __m512i code[2] = {step(&c, &t, which[0])};
                code[1] = step(&c, &t, which[1]);
                if (raw) take_raw(&c, raw, code);
                if (left < GROUP)
                    for (int h = 0; h < 2; h++)
                        code[h] = _mm512_mask_mov_epi8(_mm512_set1_epi8(b == 8 ? (char)0x80 : 0), which[h],
                                                       code[h]);
                put_group(dst, code, b);
                dst += GROUP / 8 * b;
                if (c.at > end) return false;
            }
        }
    }
    __mmask16 other = 0;
    for (int i = 0; i < 4; i++) other |= _mm512_cmpneq_epi32_mask(c.x[i], _mm512_set1_epi32(TN_RANS_FIRST));
    return !other && c.at == end;
}
