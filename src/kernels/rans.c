/* kernels/rans.c - entropy-coded weightlets: tables, the scalar decoder. */
#include "kernels/rans.h"

#include "kernels/unpack.h"

#include <string.h>

enum { GROUP = TN_WEIGHTLET_GROUP, LANES = TN_RANS_LANES, SCALE_BITS = 12, BUCKET = 128 };

static size_t n_groups(size_t k) { return (k + GROUP - 1) / GROUP; }

/* ---- tables ------------------------------------------------------------------------------------------- */

bool tn_rans_table_make(const uint16_t *frequency, unsigned n_symbols, tn_rans_table *out) {
    int left[TN_RANS_SYMBOLS], sum = 0;
    unsigned given[TN_RANS_SYMBOLS]; /* numbers of a symbol that have been placed */
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
        /* Fills the bucket with the least of its own symbol from the symbol with the most left. While any
         * bucket lacks something, that symbol has more than a bucketful. */
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
    for (unsigned i = 0; i < TN_RANS_BUCKETS; i++) {
        const uint16_t all[4] = {out->shared[i], frequency[i], out->base[i], out->base[TN_RANS_BUCKETS + i]};
        for (unsigned j = 0; j < 4; j++) {
            out->bytes[j][0][i] = (uint8_t)all[j];
            out->bytes[j][1][i] = (uint8_t)(all[j] >> 8);
        }
    }
    return true;
}

/* ---- the walk that both directions share -------------------------------------------------------------- */

/* One group of one channel. */
typedef struct place {
    unsigned bits;
    size_t n_codes; /* 1..128 */
    size_t dst;     /* of its weightlets, counted from the first channel's */
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

/* One step of n coders; symbols [n]. Returns false if the words run out. */
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
        const unsigned raw = tn_rans_raw_bits(p.bits);
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
