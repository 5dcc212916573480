/* kernels/x86/unpack_avx512.c - weightlets to tiles. The packed bits of sixteen channels are transposed as
 * 32-bit units before they are separated: they are fewer than the weights, and afterwards every lane is a
 * channel. So different widths are one vector of rotations, masks and zeros for the whole tile, and the rest
 * is the same for all lanes.
 *
 * A unit is four consecutive k, a tile's line is one unit of every channel. Line l of a group of 32 finds its
 *   4-bit weightlets in unit l % 16 of theirs, 4 * (l / 16) bits up,
 *   2-bit weightlets in unit l % 8, 2 * (l / 8) bits up,
 *   1-bit weightlets in unit l % 4, l / 4 bits up. */
#include "kernels/unpack.h"

#include <immintrin.h>

enum { GROUP = TN_WEIGHTLET_GROUP, PLANES = 4 /* of 1, 2, 4 and 8 bits */, AHEAD = 8 /* groups */ };

#define INLINE static inline __attribute__((always_inline))

/* What is specific to a tile. Codes are assembled doubled, so that a weight is one subtraction away. */
typedef struct lanes {
    size_t step;                                  /* bytes of a group of all channels */
    _Alignas(64) uint32_t off[PLANES][TN_TILE_N]; /* of each channel's weightlets in a group */
    unsigned have;                                /* bits of the widths that occur */
    __m512i up1, up2;                             /* rotations that bring the first weightlet to its place */
    __m512i mask1, mask2, mask4, zero;            /* of all bytes of a lane; zero: 2^B - 1 */
    __mmask16 whole;                              /* channels of 8 bits */
} lanes;

/* x moved up by n lanes, zeros below. */
#define LANES_UP(x, n) _mm512_alignr_epi32(x, _mm512_setzero_si512(), 16 - (n))

/* Where channels in `which` find their weightlets; the others read at the first one's place, and masks drop
 * that. */
INLINE void place(lanes *t, int plane, __m512i at, __mmask16 which) {
    __m512i first = _mm512_set1_epi32(which ? __builtin_ctz(which) : 0);
    _mm512_store_si512(t->off[plane], _mm512_mask_mov_epi32(_mm512_permutexvar_epi32(first, at), which, at));
    t->have |= (which != 0) * (1u << plane);
}

INLINE void lanes_of(lanes *t, const uint8_t *bits, size_t n_cols) {
    const __m512i width = _mm512_cvtepu8_epi32(_mm_maskz_loadu_epi8((__mmask16)((1u << n_cols) - 1), bits)),
                  one = _mm512_set1_epi32(1), two = _mm512_set1_epi32(2), four = _mm512_set1_epi32(4);
    const __mmask16 has1 = _mm512_test_epi32_mask(width, one), has2 = _mm512_test_epi32_mask(width, two),
                    has4 = _mm512_test_epi32_mask(width, four);
    t->whole = _mm512_test_epi32_mask(width, _mm512_set1_epi32(8));
    __m512i sum = _mm512_add_epi32(width, LANES_UP(width, 1)); /* of the widths up to a channel */
    sum = _mm512_add_epi32(sum, LANES_UP(sum, 2));
    sum = _mm512_add_epi32(sum, LANES_UP(sum, 4));
    sum = _mm512_add_epi32(sum, LANES_UP(sum, 8));
    const __m512i from = _mm512_sub_epi32(sum, width), with4 = _mm512_and_si512(width, four),
                  with6 = _mm512_and_si512(width, _mm512_set1_epi32(6));
    t->step = GROUP / 8 * (size_t)(uint32_t)_mm_extract_epi32(_mm512_extracti32x4_epi32(sum, 3), 3);
    t->have = 0;
    place(t, 3, _mm512_slli_epi32(from, 4), t->whole);
    place(t, 2, _mm512_slli_epi32(from, 4), has4);
    place(t, 1, _mm512_slli_epi32(_mm512_add_epi32(from, with4), 4), has2);
    place(t, 0, _mm512_slli_epi32(_mm512_add_epi32(from, with6), 4), has1);
    t->up1 = _mm512_add_epi32(with6, one);
    t->up2 = _mm512_add_epi32(with4, one);
    t->mask1 = _mm512_maskz_sllv_epi32(has1, _mm512_set1_epi32(0x01010101), t->up1);
    t->mask2 = _mm512_maskz_sllv_epi32(has2, _mm512_set1_epi32(0x03030303), t->up2);
    t->mask4 = _mm512_maskz_set1_epi32(has4, 0x1e1e1e1e);
    t->zero = _mm512_sub_epi8(_mm512_sllv_epi32(_mm512_set1_epi32(0x01010101), width),
                              _mm512_set1_epi32(0x01010101));
}

/* Lane c of unit[i] = unit i of the 16 bytes at src + off[c]. */
INLINE void units(const uint8_t *src, const uint32_t *off, __m512i unit[static 4]) {
    __m512i r[4], t[4];
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        r[i] = _mm512_castsi128_si512(_mm_loadu_si128((const __m128i *)(src + off[i])));
        r[i] = _mm512_inserti32x4(r[i], _mm_loadu_si128((const __m128i *)(src + off[4 + i])), 1);
        r[i] = _mm512_inserti32x4(r[i], _mm_loadu_si128((const __m128i *)(src + off[8 + i])), 2);
        r[i] = _mm512_inserti32x4(r[i], _mm_loadu_si128((const __m128i *)(src + off[12 + i])), 3);
    }
    t[0] = _mm512_unpacklo_epi32(r[0], r[1]);
    t[1] = _mm512_unpackhi_epi32(r[0], r[1]);
    t[2] = _mm512_unpacklo_epi32(r[2], r[3]);
    t[3] = _mm512_unpackhi_epi32(r[2], r[3]);
    unit[0] = _mm512_unpacklo_epi64(t[0], t[2]);
    unit[1] = _mm512_unpackhi_epi64(t[0], t[2]);
    unit[2] = _mm512_unpacklo_epi64(t[1], t[3]);
    unit[3] = _mm512_unpackhi_epi64(t[1], t[3]);
}

/* Every lane rotated right by n < 32. The intrinsic needs a constant, and -O1 unrolls nothing. */
INLINE __m512i turned(__m512i x, unsigned n) {
    __v16su u = (__v16su)x;
    return n ? (__m512i)(u >> n | u << (32 - n)) : x;
}

/* acc | (x & mask) */
#define PUT(acc, x, mask) _mm512_ternarylogic_epi32(acc, x, mask, 0xf8)

/* Writes a group's 32 lines to out; have: the sizes of weightlets that the tile has. */
INLINE void group(const uint8_t *src, const lanes *t, unsigned have, int8_t *out) {
    __m512i one[4] = {{0}}, two[4] = {{0}}, four[4] = {{0}}, whole[4] = {{0}};
    if (have & 1) {
        units(src, t->off[0], one);
#pragma GCC unroll 4
        for (int i = 0; i < 4; i++) one[i] = _mm512_rolv_epi32(one[i], t->up1);
    }
#pragma GCC unroll 4
    for (int j = 0; j < 4; j++) {
        const int q = j % 2 * 2 + j / 2; /* lines 4q..4q+3 and 16 on from those: 0, 2, 1, 3 */
        if (have & 2 && j % 2 == 0) {
            units(src + 16 * (q % 2), t->off[1], two);
#pragma GCC unroll 4
            for (int i = 0; i < 4; i++) two[i] = _mm512_rolv_epi32(two[i], t->up2);
        }
        if (have & 4) units(src + 16 * q, t->off[2], four);
#pragma GCC unroll 2
        for (int h = 0; h < 2; h++) {
            if (have & 8) units(src + 64 * h + 16 * q, t->off[3], whole);
#pragma GCC unroll 4
            for (int i = 0; i < 4; i++) {
                __m512i w = _mm512_setzero_si512();
                if (have & 4)
                    w = _mm512_and_si512(h ? turned(four[i], 3) : _mm512_add_epi8(four[i], four[i]),
                                         t->mask4);
                if (have & 2) w = PUT(w, turned(two[i], (unsigned)(2 * (q / 2) + 4 * h)), t->mask2);
                if (have & 1) w = PUT(w, turned(one[i], (unsigned)(q + 4 * h)), t->mask1);
                w = _mm512_sub_epi8(w, t->zero);
                if (have & 8) w = _mm512_mask_mov_epi32(w, t->whole, whole[i]);
                _mm512_store_si512(out + 64 * (16 * h + 4 * q + i), w);
            }
        }
    }
}

/* All groups of a tile. The last one may have fewer lines than it holds weights for. */
INLINE void groups(const uint8_t *src, const lanes *t, size_t n_lines, unsigned have, int8_t *tile) {
    _Alignas(64) int8_t rest[GROUP * TN_TILE_N];
    for (size_t line = 0; line < n_lines; line += GROUP / TN_TILE_K, src += t->step) {
        /* A group's loads outrun the hardware prefetcher (a third of the rate from memory and L3). The
         * prefetch may reach past the tile: the next tile follows, and a prefetch does not read. */
        const uintptr_t next = (uintptr_t)src + AHEAD * t->step;
        for (size_t i = 0; i < t->step; i += 64) _mm_prefetch((const char *)(next + i), _MM_HINT_T1);
        const size_t left = n_lines - line;
        group(src, t, have, left < GROUP / TN_TILE_K ? rest : tile + line * 64);
        for (size_t i = 0; left < GROUP / TN_TILE_K && i < left; i++)
            _mm512_store_si512(tile + (line + i) * 64, _mm512_load_si512(rest + i * 64));
    }
}

size_t tn_unpack_tile_avx512(const uint8_t *src, const uint8_t *bits, size_t n_cols, size_t k, int8_t *tile) {
    lanes t;
    lanes_of(&t, bits, n_cols);
    const size_t n_lines = (k + TN_TILE_K - 1) / TN_TILE_K;
    switch (
        t.have) { /* the combinations in packages of 2 to 8 bits by loss; a general loop costs a third more */
    case 2: groups(src, &t, n_lines, 2, tile); break;
    case 3: groups(src, &t, n_lines, 3, tile); break;
    case 4: groups(src, &t, n_lines, 4, tile); break;
    case 5: groups(src, &t, n_lines, 5, tile); break;
    case 6: groups(src, &t, n_lines, 6, tile); break;
    case 7: groups(src, &t, n_lines, 7, tile); break;
    case 8: groups(src, &t, n_lines, 8, tile); break;
    case 15: groups(src, &t, n_lines, 15, tile); break;
    default: groups(src, &t, n_lines, t.have, tile); break;
    }
    if (k % TN_TILE_K) { /* k beyond the end are zero, whatever their codes */
        __m512i *last = (__m512i *)(tile + (n_lines - 1) * 64);
        *last = _mm512_and_si512(*last, _mm512_set1_epi32((int)((1u << k % TN_TILE_K * 8) - 1)));
    }
    return (k + GROUP - 1) / GROUP * t.step;
}
