/* kernels/unpack.c - the specification of weightlets: packing and the scalar unpacking. */
#include "kernels/unpack.h"

#include <assert.h>
#include <string.h>

enum { GROUP = TN_WEIGHTLET_GROUP };

static size_t n_groups(size_t k) { return (k + GROUP - 1) / GROUP; }

size_t tn_channel_bits_bytes(size_t n) { return (n * 3 + 7) / 8; }

void tn_channel_bits_put(uint8_t *packed, size_t n, unsigned bits) {
    assert(bits >= 1 && bits <= 8);
    unsigned shift = n * 3 % 8, v = (bits - 1) << shift;
    packed[n * 3 / 8] = (uint8_t)(packed[n * 3 / 8] | v);
    if (shift > 5) packed[n * 3 / 8 + 1] = (uint8_t)(packed[n * 3 / 8 + 1] | v >> 8);
}

unsigned tn_channel_bits_get(const uint8_t *packed, size_t n) {
    unsigned shift = n * 3 % 8, v = packed[n * 3 / 8];
    if (shift > 5) v |= (unsigned)packed[n * 3 / 8 + 1] << 8;
    return (v >> shift & 7) + 1;
}

size_t tn_weightlets_bytes(const uint8_t *packed_bits, size_t n0, size_t n1, size_t k) {
    size_t sum = 0, n = n0;
    for (; n < n1 && n % 8; n++) sum += tn_channel_bits_get(packed_bits, n);
    for (; n + 8 <= n1; n += 8) { /* three bytes; neighbours are added first, in fields of six bits */
        const uint8_t *p = packed_bits + n / 8 * 3;
        uint32_t v = p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16,
                 two = (v & 0x1c71c7u) + (v >> 3 & 0x1c71c7u);
        sum += 8 + (two & 63) + (two >> 6 & 63) + (two >> 12 & 63) + (two >> 18);
    }
    for (; n < n1; n++) sum += tn_channel_bits_get(packed_bits, n);
    return sum * n_groups(k) * (GROUP / 8);
}

/* Weightlets of one width of a group, taken from the codes or put into them from bit `low` up. They are
 * handled as words of eight bytes, which do not mix: every shift is by less than eight, and masked. */
static inline void take(uint8_t *dst, const uint8_t *code, unsigned width, unsigned low) {
    const uint64_t mask = 0x0101010101010101u * ((1u << width) - 1);
    const size_t n_bytes = GROUP / 8 * width;
    for (size_t j = 0; j < n_bytes; j += 8) {
        uint64_t v = 0, c;
        for (unsigned s = 0; s < 8 / width; s++) {
            memcpy(&c, code + s * n_bytes + j, sizeof c);
            v |= (c >> low & mask) << s * width;
        }
        memcpy(dst + j, &v, sizeof v);
    }
}

static inline void put(uint8_t *code, const uint8_t *src, unsigned width, unsigned low) {
    const uint64_t mask = 0x0101010101010101u * ((1u << width) - 1);
    const size_t n_bytes = GROUP / 8 * width;
    for (size_t j = 0; j < n_bytes; j += 8) {
        uint64_t v, c;
        memcpy(&v, src + j, sizeof v);
        for (unsigned s = 0; s < 8 / width; s++) {
            memcpy(&c, code + s * n_bytes + j, sizeof c);
            c |= (v >> s * width & mask) << low;
            memcpy(code + s * n_bytes + j, &c, sizeof c);
        }
    }
}

void tn_weightlets_group_pack(uint8_t *dst, const uint8_t *code, unsigned bits) {
    if (bits == 8)
        for (size_t j = 0; j < GROUP; j++) dst[j] = code[j] ^ 0x80;
    if (bits & 4) take(dst, code, 4, 0), dst += GROUP / 2;
    if (bits & 2) take(dst, code, 2, bits & 4), dst += GROUP / 4;
    if (bits & 1) take(dst, code, 1, bits & 6);
}

void tn_weightlets_group_codes(const uint8_t *src, unsigned bits, uint8_t *code) {
    memset(code, 0, GROUP);
    if (bits == 8)
        for (size_t j = 0; j < GROUP; j++) code[j] = src[j] ^ 0x80;
    if (bits & 4) put(code, src, 4, 0), src += GROUP / 2;
    if (bits & 2) put(code, src, 2, bits & 4), src += GROUP / 4;
    if (bits & 1) put(code, src, 1, bits & 6);
}

static void unpack_group(const uint8_t *src, unsigned bits, int8_t *out) {
    if (bits == 8) {
        memcpy(out, src, GROUP);
        return;
    }
    uint8_t code[GROUP];
    tn_weightlets_group_codes(src, bits, code);
    const uint8_t top = (uint8_t)((1 << bits) - 1);
    for (size_t j = 0; j < GROUP; j++) out[j] = (int8_t)(uint8_t)(2u * code[j] - top);
}

/* code [128]: n weights of fewer than eight bits become their codes; the rest become zeros. */
static void to_codes(uint8_t *code, size_t n, unsigned bits) {
    const unsigned top = (1u << bits) - 1;
    for (size_t j = 0; j < n; j++) {
        const uint8_t twice = (uint8_t)(code[j] + top);
        (void)twice;
        assert(twice % 2 == 0 && twice <= 2 * top);
    }
    for (size_t j = 0; j < GROUP; j++) code[j] = (uint8_t)((uint8_t)(code[j] + top) >> 1);
    memset(code + n, 0, GROUP - n);
}

void tn_weightlets_pack(uint8_t *dst, const uint8_t *packed_bits, const int8_t *w, size_t n0, size_t n1,
                        size_t k) {
    assert(n0 % TN_TILE_N == 0);
    for (size_t t = n0; t < n1; t += TN_TILE_N) {
        size_t end = t + TN_TILE_N < n1 ? t + TN_TILE_N : n1;
        for (size_t g = 0; g < n_groups(k); g++) {
            size_t n_k = k - g * GROUP < GROUP ? k - g * GROUP : GROUP;
            for (size_t n = t; n < end; n++) {
                unsigned bits = tn_channel_bits_get(packed_bits, n);
                const int8_t *row = w + (n - n0) * k + g * GROUP;
                uint8_t code[GROUP] = {0};
                memcpy(code, row, n_k);
                if (bits == 8) {
                    memcpy(dst, code, GROUP);
                } else {
                    to_codes(code, n_k, bits);
                    tn_weightlets_group_pack(dst, code, bits);
                }
                dst += GROUP / 8 * bits;
            }
        }
    }
}

size_t tn_unpack_tile_ref(const uint8_t *src, const uint8_t *bits, size_t n_cols, size_t k, int8_t *tile) {
    const uint8_t *begin = src;
    memset(tile, 0, tn_tiles_s8_bytes(1, k));
    for (size_t g = 0; g < n_groups(k); g++) {
        for (size_t c = 0; c < n_cols; c++) {
            int8_t w[GROUP];
            unpack_group(src, bits[c], w);
            src += GROUP / 8 * bits[c];
            for (size_t i = g * GROUP; i < k && i < (g + 1) * GROUP; i++)
                tile[i / TN_TILE_K * 64 + c * TN_TILE_K + i % TN_TILE_K] = w[i % GROUP];
        }
    }
    return (size_t)(src - begin);
}

void tn_weightlets_row(const uint8_t *tile, const uint8_t *packed_bits, size_t n, size_t n_all, size_t k,
                       int8_t *out) {
    size_t t = n / TN_TILE_N * TN_TILE_N, end = t + TN_TILE_N < n_all ? t + TN_TILE_N : n_all;
    size_t before = tn_weightlets_bytes(packed_bits, t, n, 1),
           group = tn_weightlets_bytes(packed_bits, t, end, 1);
    for (size_t g = 0; g < n_groups(k); g++) {
        int8_t w[GROUP];
        unpack_group(tile + g * group + before, tn_channel_bits_get(packed_bits, n), w);
        memcpy(out + g * GROUP, w, k - g * GROUP < GROUP ? k - g * GROUP : GROUP);
    }
}

void tn_weightlets_unpack(tn_unpack_tile_fn fn, const uint8_t *src, const uint8_t *packed_bits, size_t n0,
                          size_t n1, size_t k, int8_t *tiles) {
    assert(n0 % TN_TILE_N == 0);
    size_t tile_bytes = tn_tiles_s8_bytes(1, k);
    for (size_t t = n0; t < n1; t += TN_TILE_N) {
        uint8_t bits[TN_TILE_N];
        size_t n_cols = n1 - t < TN_TILE_N ? n1 - t : TN_TILE_N;
        for (size_t c = 0; c < n_cols; c++) bits[c] = (uint8_t)tn_channel_bits_get(packed_bits, t + c);
        src += fn(src, bits, n_cols, k, tiles + t / TN_TILE_N * tile_bytes);
    }
}
