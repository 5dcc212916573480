/* kernels/x86/rans_avx2.c - a stream of entropy-coded weightlets, eight coders a register.
 *
 * A coder's look-ups are shuffles of tables of 32 bytes: gathers would take five times as long. The words for
 * coders that fell below 2^16 are distributed by a table of 256 permutations. */
#include "kernels/rans.h"
#include "kernels/unpack.h"

#include <immintrin.h>
#include <string.h>

enum { GROUP = TN_WEIGHTLET_GROUP, LANES = TN_RANS_LANES, SCALE_BITS = 12, N = LANES / 8 };

#define INLINE static inline __attribute__((always_inline))

typedef struct coders {
    __m256i x[N]; /* 64 states */
    const uint8_t *at;
    uint8_t spread[256][8]; /* for each set of lanes: which of the following words each lane takes */
} coders;

static void make_spread(coders *c) {
    for (unsigned m = 0; m < 256; m++)
        for (unsigned i = 0, n = 0; i < 8; i++) {
            c->spread[m][i] = (uint8_t)n;
            n += m >> i & 1;
        }
}

/* Places of 16 numbers below 32 in words, for look: those of the first and of the second half of a table of
 * bytes; the other half's, and the words' upper bytes, give 0. */
typedef struct places {
    __m256i low, high;
} places;

INLINE places places_of(__m256i word) {
    return (places){_mm256_add_epi16(word, _mm256_set1_epi16((short)0x8070)),
                    _mm256_add_epi16(word, _mm256_set1_epi16((short)0x80f0))};
}

INLINE __m256i look(const uint8_t *table, places p) {
    const __m128i *t = (const __m128i *)(const void *)table;
    return _mm256_or_si256(_mm256_shuffle_epi8(_mm256_broadcastsi128_si256(_mm_load_si128(t)), p.low),
                           _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(_mm_load_si128(t + 1)), p.high));
}

INLINE __m256i look_words(const uint8_t table[2][TN_RANS_BUCKETS], places p) {
    return _mm256_or_si256(look(table[0], p), _mm256_slli_epi16(look(table[1], p), 8));
}

/* The next states of eight coders; inactive ones keep theirs. */
INLINE __m256i advance(coders *c, __m256i x, __m256i f, __m256i index, bool all, __m256i active) {
    const __m256i y = _mm256_add_epi32(_mm256_mullo_epi32(_mm256_srli_epi32(x, SCALE_BITS), f), index);
    __m256i low = _mm256_cmpeq_epi32(_mm256_srli_epi32(y, 16), _mm256_setzero_si256());
    if (!all) low = _mm256_and_si256(low, active);
    const unsigned m = (unsigned)_mm256_movemask_ps(_mm256_castsi256_ps(low));
    const __m256i words = _mm256_permutevar8x32_epi32(
        _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(const void *)c->at)),
        _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)c->spread[m])));
    const __m256i after = _mm256_blendv_epi8(y, _mm256_or_si256(_mm256_slli_epi32(y, 16), words), low);
    c->at += 2 * (unsigned)__builtin_popcount(m);
    return all ? after : _mm256_blendv_epi8(x, after, active);
}

/* One step of 16 coders in two registers x, n of them active. Returns their symbols in words, fours of both
 * registers alternating. */
INLINE __m256i quarter_step(coders *c, __m256i *x, const tn_rans_table *t, bool all, int n) {
    const __m256i slot = _mm256_set1_epi32(TN_RANS_SCALE - 1), zero = _mm256_setzero_si256(),
                  lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    const __m256i words = _mm256_packus_epi32(_mm256_and_si256(x[0], slot), _mm256_and_si256(x[1], slot));
    const __m256i bucket = _mm256_srli_epi16(words, 7), in = _mm256_and_si256(words, _mm256_set1_epi16(127));
    const places p = places_of(bucket);
    const __m256i is_own = _mm256_cmpgt_epi16(look(t->bytes[0][0], p), in);
    const __m256i symbol = _mm256_blendv_epi8(look(t->bytes[0][1], p), bucket, is_own);
    const __m256i base = _mm256_blendv_epi8(look_words(t->bytes[3], p), look_words(t->bytes[2], p), is_own);
    const __m256i f = look_words(t->bytes[1], places_of(symbol)), index = _mm256_add_epi16(in, base);
    const __m256i active[2] = {_mm256_cmpgt_epi32(_mm256_set1_epi32(n), lane),
                               _mm256_cmpgt_epi32(_mm256_set1_epi32(n - 8), lane)};
    x[0] =
        advance(c, x[0], _mm256_unpacklo_epi16(f, zero), _mm256_unpacklo_epi16(index, zero), all, active[0]);
    x[1] =
        advance(c, x[1], _mm256_unpackhi_epi16(f, zero), _mm256_unpackhi_epi16(index, zero), all, active[1]);
    return all ? symbol : _mm256_and_si256(symbol, _mm256_packs_epi32(active[0], active[1]));
}

/* One step of 32 coders, starting with register `first`, n of them active. Returns their symbols. */
INLINE __m256i half_step(coders *c, int first, const tn_rans_table *t, bool all, size_t n) {
    const __m256i low = quarter_step(c, &c->x[first], t, all, (int)n),
                  high = quarter_step(c, &c->x[first + 2], t, all, (int)n - 16);
    return _mm256_permutevar8x32_epi32(_mm256_packus_epi16(low, high),
                                       _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
}

/* The bits below the symbols, one plane each. */
INLINE void take_raw(coders *c, unsigned raw, __m256i code[4]) {
    const __m256i spread = _mm256_setr_epi8(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2,
                                            2, 2, 3, 3, 3, 3, 3, 3, 3, 3),
                  bit = _mm256_set1_epi64x((long long)0x8040201008040201ull);
    for (int i = 0; i < 4; i++) {
        __m256i low = _mm256_setzero_si256();
        for (unsigned b = 0; b < raw; b++) {
            int bits;
            memcpy(&bits, c->at + 16 * b + 4 * (unsigned)i, sizeof bits);
            const __m256i set = _mm256_and_si256(_mm256_shuffle_epi8(_mm256_set1_epi32(bits), spread), bit);
            low = _mm256_or_si256(
                low, _mm256_and_si256(_mm256_cmpeq_epi8(set, bit), _mm256_set1_epi8((char)(1 << b))));
        }
        code[i] = _mm256_or_si256(_mm256_sll_epi16(code[i], _mm_cvtsi32_si128((int)raw)), low);
    }
    c->at += 16 * raw;
}

INLINE __m256i bits_of(__m256i code, unsigned low, int mask) {
    return _mm256_and_si256(_mm256_srl_epi16(code, _mm_cvtsi32_si128((int)low)),
                            _mm256_set1_epi8((char)mask));
}

/* 128 codes to weightlets (unpack.h). */
INLINE void put_group(uint8_t *dst, const __m256i code[4], unsigned bits) {
    if (bits == 8) {
        for (int i = 0; i < 4; i++)
            _mm256_storeu_si256((__m256i *)(void *)(dst + 32 * i),
                                _mm256_xor_si256(code[i], _mm256_set1_epi8((char)0x80)));
        return;
    }
    if (bits & 4) {
        for (int i = 0; i < 2; i++)
            _mm256_storeu_si256(
                (__m256i *)(void *)(dst + 32 * i),
                _mm256_or_si256(bits_of(code[i], 0, 15), _mm256_slli_epi16(bits_of(code[2 + i], 0, 15), 4)));
        dst += 64;
    }
    if (bits & 2) {
        __m256i v = bits_of(code[0], bits & 4, 3);
        for (int i = 1; i < 4; i++)
            v = _mm256_or_si256(v, _mm256_slli_epi16(bits_of(code[i], bits & 4, 3), 2 * i));
        _mm256_storeu_si256((__m256i *)(void *)dst, v);
        dst += 32;
    }
    if (bits & 1) {
        __m128i v = _mm_setzero_si128();
        for (int i = 0; i < 4; i++) {
            const __m256i one = bits_of(code[i], bits & 6, 1);
            v = _mm_or_si128(v, _mm_slli_epi16(_mm256_castsi256_si128(one), 2 * i));
            v = _mm_or_si128(v, _mm_slli_epi16(_mm256_extracti128_si256(one, 1), 2 * i + 1));
        }
        _mm_storeu_si128((__m128i *)(void *)dst, v);
    }
}

/* Codes after the last input are ignored. */
INLINE void clear_behind(__m256i code[4], size_t left, unsigned bits) {
    const __m256i place = _mm256_setr_epi8(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18,
                                           19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31);
    for (int i = 0; i < 4; i++) {
        const int n = (int)left - 32 * i;
        const __m256i is = _mm256_cmpgt_epi8(_mm256_set1_epi8((char)(n < 0 ? 0 : n > 32 ? 32 : n)), place);
        code[i] = _mm256_blendv_epi8(_mm256_set1_epi8(bits == 8 ? (char)0x80 : 0), code[i], is);
    }
}

/* One group of one channel, of which `left` codes are in the stream. */
INLINE void group(coders *c, const tn_rans_table *t, unsigned bits, bool all, size_t left, uint8_t *dst) {
    const unsigned raw = tn_rans_raw_bits(bits);
    const size_t first = left < LANES ? left : LANES, second = left - first;
    __m256i code[4];
    for (int i = 0; i < 2; i++) {
        const size_t n = i ? second : first;
        code[2 * i] = half_step(c, 0, t, all, n);
        code[2 * i + 1] = half_step(c, 4, t, all, n < 32 ? 0 : n - 32);
    }
    if (raw) take_raw(c, raw, code);
    if (!all) clear_behind(code, left, bits);
    put_group(dst, code, bits);
}

enum { MOST = 2 * 2 * LANES + 3 * 16 + 64 }; /* bytes that a group may read, or look at */

bool tn_rans_decode_avx2(const tn_rans_args *a, const uint8_t *src, size_t n_bytes, uint8_t *dst) {
    coders c = {.at = src + LANES * sizeof(uint32_t)};
    const uint8_t *end = src + n_bytes;
    uint8_t tail[2 * MOST]; /* copies the last bytes, so that whole registers can be read */
    bool in_tail = false;
    if (n_bytes < LANES * sizeof(uint32_t)) return false;
    make_spread(&c);
    for (int i = 0; i < N; i++) c.x[i] = _mm256_loadu_si256((const __m256i *)(const void *)(src + 32 * i));
    for (size_t tile = a->n0; tile < a->n1; tile += TN_TILE_N) {
        const size_t n = a->n1 - tile < TN_TILE_N ? a->n1 - tile : TN_TILE_N;
        for (size_t k = 0; k < a->k; k += GROUP) {
            const size_t left = a->k - k < GROUP ? a->k - k : GROUP;
            for (size_t i = 0; i < n; i++) {
                const unsigned bits = tn_channel_bits_get(a->packed_bits, tile + i);
                const tn_rans_table *t = &a->tables[a->channel_table[tile + i]];
                if ((size_t)(end - c.at) < MOST && !in_tail) {
                    const size_t rest = (size_t)(end - c.at);
                    memcpy(tail, c.at, rest);
                    memset(tail + rest, 0, sizeof tail - rest);
                    c.at = tail;
                    end = tail + rest;
                    in_tail = true;
                }
                if (left == GROUP) group(&c, t, bits, true, GROUP, dst);
                else group(&c, t, bits, false, left, dst);
                dst += GROUP / 8 * bits;
                if (c.at > end) return false;
            }
        }
    }
    __m256i other = _mm256_setzero_si256();
    for (int i = 0; i < N; i++)
        other = _mm256_or_si256(other, _mm256_xor_si256(c.x[i], _mm256_set1_epi32(TN_RANS_FIRST)));
    return _mm256_testz_si256(other, other) && c.at == end;
}
