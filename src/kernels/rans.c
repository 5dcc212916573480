/* kernels/rans.c - entropy-coded weightlets: tables, the encoder, the scalar decoder. */
#include "kernels/rans.h"

#include "kernels/unpack.h"

#include <string.h>

enum { GROUP = TN_WEIGHTLET_GROUP, LANES = TN_RANS_LANES, SCALE_BITS = 12, BUCKET = 128 };

static size_t n_groups(size_t k) { return (k + GROUP - 1) / GROUP; }

/* Bits of a code that are no part of its symbol. */
static unsigned raw_bits(unsigned bits) {
    return bits > TN_RANS_SYMBOL_BITS ? bits - TN_RANS_SYMBOL_BITS : 0;
}

/* ---- tables ------------------------------------------------------------------------------------------- */

bool tn_rans_table_make(const uint16_t *frequency, unsigned n_symbols, tn_rans_table *out) {
    int left[TN_RANS_SYMBOLS], sum = 0;
    unsigned given[TN_RANS_SYMBOLS]; /* numbers of a symbol that have a place */
    for (unsigned s = 0; s < TN_RANS_SYMBOLS; s++) {
        if (frequency[s] > TN_RANS_SCALE || (s >= n_symbols && frequency[s])) return false;
        sum += frequency[s];
        left[s] = frequency[s];
        given[s] = 0;
    }
    if (sum != TN_RANS_SCALE) return false;
    memcpy(out->frequency, frequency, sizeof out->frequency);
    bool done[TN_RANS_BUCKETS] = {false};
    for (unsigned i = 0; i < TN_RANS_BUCKETS; i++) {
        /* The bucket that has least of its own symbol is filled up from the symbol that has most left: whoever gives
         * has more than a bucket, as long as one bucket has less. */
        unsigned least = TN_RANS_BUCKETS, most = 0;
        for (unsigned s = 0; s < TN_RANS_BUCKETS; s++) {
            if (!done[s] && (least == TN_RANS_BUCKETS || left[s] < left[least])) least = s;
            if (left[s] > left[most]) most = s;
        }
        const int own = left[least] < BUCKET ? left[least] : BUCKET;
        if (own == BUCKET) most = least;
        done[least] = true;
        out->shared[least] = (uint16_t)(own | (int)most << 8);
        out->base[least] = (uint16_t)given[least];
        given[least] += (unsigned)own;
        left[least] -= own;
        out->base[TN_RANS_BUCKETS + least] = (uint16_t)(given[most] - (unsigned)own);
        given[most] += (unsigned)(BUCKET - own);
        left[most] -= BUCKET - own;
    }
    return true;
}

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
    /* What rounding left goes to the most frequent one, where it changes least. */
    unsigned most = 0;
    for (unsigned s = 1; s < n_symbols; s++)
        if (counts[s] > counts[most]) most = s;
    frequency[most] = (uint16_t)(frequency[most] + left);
}

/* ---- the walk that both directions share -------------------------------------------------------------- */

/* One group of one channel. */
typedef struct place {
    unsigned bits;
    size_t n_codes; /* 1..128 */
    size_t dst;     /* of its weightlets, from the first channel's on */
    const tn_rans_table *table;
} place;

typedef struct walk {
    const tn_rans_args *a;
    size_t tile, group, channel, end; /* end: of the tile's channels */
    size_t dst;
} walk;

static walk begin(const tn_rans_args *a) {
    size_t end = a->n0 + TN_TILE_N < a->n1 ? a->n0 + TN_TILE_N : a->n1;
    return (walk){.a = a, .tile = a->n0, .channel = a->n0, .end = end};
}

static bool next(walk *w, place *p) {
    const tn_rans_args *a = w->a;
    if (w->channel == w->end) {
        w->channel = w->tile;
        if (++w->group == n_groups(a->k)) {
            w->group = 0;
            w->tile = w->channel = w->end;
            w->end = w->end + TN_TILE_N < a->n1 ? w->end + TN_TILE_N : a->n1;
        }
    }
    if (w->tile >= a->n1) return false;
    const size_t left = a->k - w->group * GROUP;
    *p = (place){.bits = tn_channel_bits_get(a->packed_bits, w->channel),
                 .n_codes = left < GROUP ? left : GROUP,
                 .dst = w->dst,
                 .table = &a->tables[a->channel_table[w->channel]]};
    w->dst += GROUP / 8 * p->bits;
    w->channel++;
    return true;
}

/* ---- decoding ----------------------------------------------------------------------------------------- */

typedef struct reader {
    uint32_t x[LANES];
    const uint8_t *at, *end;
} reader;

/* A step of n coders; symbols [n]. Returns false where the words end. */
static bool step(reader *r, const tn_rans_table *t, size_t n, uint8_t *symbol) {
    for (size_t i = 0; i < n; i++) {
        const uint32_t x = r->x[i], slot = x & (TN_RANS_SCALE - 1), bucket = slot / BUCKET,
                       in = slot % BUCKET;
        const bool own = in < (t->shared[bucket] & 255u);
        const unsigned s = own ? bucket : t->shared[bucket] >> 8;
        uint32_t y =
            t->frequency[s] * (x >> SCALE_BITS) + (uint16_t)(in + t->base[own ? bucket : 32 + bucket]);
        if (y < TN_RANS_FIRST) {
            uint16_t word;
            if (r->end - r->at < 2) return false;
            memcpy(&word, r->at, sizeof word);
            r->at += 2;
            y = y << 16 | word;
        }
        r->x[i] = y;
        symbol[i] = (uint8_t)s;
    }
    return true;
}

bool tn_rans_decode_ref(const tn_rans_args *a, const uint8_t *src, size_t n_bytes, uint8_t *dst) {
    reader r = {.at = src + sizeof r.x, .end = src + n_bytes};
    if (n_bytes < sizeof r.x) return false;
    memcpy(r.x, src, sizeof r.x);
    place p;
    for (walk w = begin(a); next(&w, &p);) {
        uint8_t code[GROUP] = {0};
        const size_t first = p.n_codes < LANES ? p.n_codes : LANES;
        if (!step(&r, p.table, first, code) || !step(&r, p.table, p.n_codes - first, code + LANES))
            return false;
        const unsigned raw = raw_bits(p.bits);
        if ((size_t)(r.end - r.at) < raw * (GROUP / 8)) return false;
        for (size_t j = 0; raw && j < GROUP; j++) {
            code[j] = (uint8_t)(code[j] << raw);
            for (unsigned b = 0; b < raw; b++)
                code[j] |= (uint8_t)((r.at[b * (GROUP / 8) + j / 8] >> j % 8 & 1) << b);
        }
        r.at += raw * (GROUP / 8);
        memset(code + p.n_codes, p.bits == 8 ? 128 : 0, GROUP - p.n_codes);
        tn_weightlets_group_pack(dst + p.dst, code, p.bits);
    }
    bool whole = r.at == r.end;
    for (size_t i = 0; i < LANES; i++) whole = whole && r.x[i] == TN_RANS_FIRST;
    return whole;
}

/* ---- encoding ----------------------------------------------------------------------------------------- */

size_t tn_rans_bound(const tn_rans_args *a) {
    /* A symbol of the least frequency takes twelve bits, and a word comes out whole. */
    const size_t n_codes = (a->n1 - a->n0) * n_groups(a->k) * GROUP;
    return LANES * sizeof(uint32_t) + n_codes * (sizeof(uint16_t) + 1);
}

typedef struct writer {
    uint32_t x[LANES];
    uint8_t *at; /* words go down from here */
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

/* The numbers of each symbol by their index: what a table's decoder does, turned round. first [33]. */
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
    /* The last code is the first one to be coded. */
    const tn_rans_table *of = NULL;
    uint16_t first[TN_RANS_SYMBOLS + 1], number[TN_RANS_SCALE];
    for (size_t end = a->n1; end > a->n0;) {
        const size_t tile = (end - 1) / TN_TILE_N * TN_TILE_N;
        const size_t at = tn_weightlets_bytes(a->packed_bits, a->n0, tile, a->k),
                     group_bytes = tn_weightlets_bytes(a->packed_bits, tile, end, 1);
        for (size_t g = n_groups(a->k); g-- > 0;) {
            size_t after = at + (g + 1) * group_bytes;
            for (size_t c = end; c-- > tile;) {
                const unsigned bits = tn_channel_bits_get(a->packed_bits, c), raw = raw_bits(bits);
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
    const unsigned bits = tn_channel_bits_get(packed_bits, n), raw = raw_bits(bits);
    const size_t before = tn_weightlets_bytes(packed_bits, t, n, 1),
                 group = tn_weightlets_bytes(packed_bits, t, end, 1);
    for (size_t g = 0; g < n_groups(k); g++) {
        uint8_t code[GROUP];
        tn_weightlets_group_codes(tile + g * group + before, bits, code);
        const size_t n_codes = k - g * GROUP < GROUP ? k - g * GROUP : GROUP;
        for (size_t j = 0; j < n_codes; j++) counts[code[j] >> raw]++;
    }
}
