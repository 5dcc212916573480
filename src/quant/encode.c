#include "quant/encode.h"

#include "kernels/unpack.h"

#include <string.h>

enum { GROUP = TN_WEIGHTLET_GROUP, LANES = TN_RANS_LANES, SCALE_BITS = 12, BUCKET = 128 };

static size_t n_groups(size_t k) { return (k + GROUP - 1) / GROUP; }

void tn_rans_frequencies(const uint64_t *counts, unsigned n_symbols, uint16_t *frequency) {
    uint64_t sum = 0;
    int left = TN_RANS_SCALE - (int)n_symbols;
    memset(frequency, 0, TN_RANS_SYMBOLS * sizeof *frequency);
    for (unsigned s = 0; s < n_symbols; s++) sum += counts[s];
    for (unsigned s = 0; s < n_symbols; s++) {
        const int part = sum ? (int)(counts[s] * (uint64_t)(TN_RANS_SCALE - (int)n_symbols) / sum) : 0;
        frequency[s] = (uint16_t)(1 + part);
        left -= part;
    }
    /* The rounding remainder goes to the most frequent symbol, where it matters least. */
    unsigned most = 0;
    for (unsigned s = 1; s < n_symbols; s++)
        if (counts[s] > counts[most]) most = s;
    frequency[most] = (uint16_t)(frequency[most] + left);
}

size_t tn_rans_bound(const tn_rans_args *a) {
    /* A symbol of the least frequency takes twelve bits, and words come out whole. */
    const size_t n_codes = (a->n1 - a->n0) * n_groups(a->k) * GROUP;
    return LANES * sizeof(uint32_t) + n_codes * (sizeof(uint16_t) + 1);
}

typedef struct writer {
    uint32_t x[LANES];
    uint8_t *at; /* words are written downwards from here */
} writer;

static void put(writer *w, unsigned lane, const tn_rans_table *t, unsigned symbol, const uint16_t *number) {
    const uint32_t f = t->frequency[symbol];
    uint32_t x = w->x[lane];
    if (x >= (uint64_t)f << (32 - SCALE_BITS)) {
        const uint16_t word = (uint16_t)x;
        w->at -= sizeof word;
        memcpy(w->at, &word, sizeof word);
        x >>= 16;
    }
    w->x[lane] = (x / f) << SCALE_BITS | number[x % f];
}

/* The numbers of each symbol by index: the inverse of the decoder's table. first [33]. */
static void numbers_of(const tn_rans_table *t, uint16_t *first, uint16_t *number) {
    first[0] = 0;
    for (unsigned s = 0; s < TN_RANS_SYMBOLS; s++) first[s + 1] = (uint16_t)(first[s] + t->frequency[s]);
    for (unsigned slot = 0; slot < TN_RANS_SCALE; slot++) {
        const unsigned bucket = slot / BUCKET, in = slot % BUCKET;
        const bool own = in < (t->shared[bucket] & 255u);
        const unsigned s = own ? bucket : t->shared[bucket] >> 8;
        number[first[s] + (uint16_t)(in + t->base[own ? bucket : 32 + bucket])] = (uint16_t)slot;
    }
}

size_t tn_rans_encode(const tn_rans_args *a, const uint8_t *src, uint8_t *dst) {
    const size_t bound = tn_rans_bound(a);
    writer w = {.at = dst + bound};
    for (size_t i = 0; i < LANES; i++) w.x[i] = TN_RANS_FIRST;
    /* The last code is encoded first. */
    const tn_rans_table *of = NULL;
    uint16_t first[TN_RANS_SYMBOLS + 1], number[TN_RANS_SCALE];
    for (size_t end = a->n1; end > a->n0;) {
        const size_t tile = (end - 1) / TN_TILE_N * TN_TILE_N;
        const size_t at = tn_weightlets_bytes(a->packed_bits, a->n0, tile, a->k),
                     group_bytes = tn_weightlets_bytes(a->packed_bits, tile, end, 1);
        for (size_t g = n_groups(a->k); g-- > 0;) {
            size_t after = at + (g + 1) * group_bytes;
            for (size_t c = end; c-- > tile;) {
                const unsigned bits = tn_channel_bits_get(a->packed_bits, c), raw = tn_rans_raw_bits(bits);
                const tn_rans_table *t = &a->tables[a->channel_table[c]];
                const size_t n = a->k - g * GROUP < GROUP ? a->k - g * GROUP : GROUP;
                uint8_t code[GROUP];
                after -= GROUP / 8 * bits;
                tn_weightlets_group_codes(src + after, bits, code);
                if (t != of) numbers_of(t, first, number);
                of = t;
                w.at -= raw * (GROUP / 8);
                memset(w.at, 0, raw * (GROUP / 8));
                for (unsigned b = 0; b < raw; b++)
                    for (size_t j = 0; j < n; j++)
                        w.at[b * (GROUP / 8) + j / 8] |= (uint8_t)((code[j] >> b & 1) << j % 8);
                for (size_t j = n; j-- > 0;)
                    put(&w, (unsigned)(j % LANES), t, code[j] >> raw, number + first[code[j] >> raw]);
            }
        }
        end = tile;
    }
    const size_t n_words = (size_t)(dst + bound - w.at);
    memmove(dst + sizeof w.x, w.at, n_words);
    memcpy(dst, w.x, sizeof w.x);
    return sizeof w.x + n_words;
}

void tn_rans_count(const uint8_t *tile, const uint8_t *packed_bits, size_t n, size_t n_all, size_t k,
                   uint64_t *counts) {
    const size_t t = n / TN_TILE_N * TN_TILE_N, end = t + TN_TILE_N < n_all ? t + TN_TILE_N : n_all;
    const unsigned bits = tn_channel_bits_get(packed_bits, n), raw = tn_rans_raw_bits(bits);
    const size_t before = tn_weightlets_bytes(packed_bits, t, n, 1),
                 group = tn_weightlets_bytes(packed_bits, t, end, 1);
    for (size_t g = 0; g < n_groups(k); g++) {
        uint8_t code[GROUP];
        tn_weightlets_group_codes(tile + g * group + before, bits, code);
        const size_t n_codes = k - g * GROUP < GROUP ? k - g * GROUP : GROUP;
        for (size_t j = 0; j < n_codes; j++) counts[code[j] >> raw]++;
    }
}
