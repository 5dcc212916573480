/* quant/coded.c - weightlets as entropy-coded streams (kernels/rans.h): which channels share a table, and
 * the coding. */
#include "base/status.h"
#include "quant/encode.h"
#include "quant/packer.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_TABLES = 16, N_PASSES = 4, TABLE_BITS = 2 * TN_RANS_SYMBOLS * 8, COUNTS_PER_ITEM = 64 };

/* Tables of some channels: the table of each channel, and the cost of all. */
typedef struct grouping {
    uint16_t frequency[MOST_TABLES][TN_RANS_SYMBOLS];
    double bits;
    size_t n;
} grouping;

typedef struct coding {
    packer *p;
    const uint8_t *packed, *bits;
    size_t n, k, channels; /* of a stream */
    uint32_t (*counts)[TN_RANS_SYMBOLS];
    uint8_t *table; /* [n] */
    tn_rans_table *tables;
    uint8_t **streams;
    uint32_t *sizes;
    atomic_bool failed;
} coding;

static void count_item(void *arg, int i_item, int i_thread) {
    (void)i_thread;
    const coding *c = arg;
    const size_t n0 = (size_t)i_item * COUNTS_PER_ITEM,
                 n1 = n0 + COUNTS_PER_ITEM < c->n ? n0 + COUNTS_PER_ITEM : c->n;
    for (size_t t = n0; t < n1; t += TN_TILE_N) {
        const uint8_t *tile = c->packed + tn_weightlets_bytes(c->bits, 0, t, c->k);
        for (size_t i = t; i < n1 && i < t + TN_TILE_N; i++) {
            uint64_t counts[TN_RANS_SYMBOLS] = {0};
            tn_rans_count(tile, c->bits, i, c->n, c->k, counts);
            for (int s = 0; s < TN_RANS_SYMBOLS; s++) c->counts[i][s] = (uint32_t)counts[s];
        }
    }
}

/* Bits of a channel's symbols by a table; price [32]: bits of each symbol. */
static double price_of(const uint32_t *counts, const double *price) {
    double sum = 0;
    for (int s = 0; s < TN_RANS_SYMBOLS; s++) sum += counts[s] * price[s];
    return sum;
}

static void prices(const uint16_t *frequency, double *price) {
    for (int s = 0; s < TN_RANS_SYMBOLS; s++)
        price[s] = frequency[s] ? log2((double)TN_RANS_SCALE / frequency[s]) : 0;
}

/* Divides channels [n_of], ordered by how evenly their symbols are distributed, among n tables (Lloyd's
 * algorithm: a table fits its channels, and a channel takes the cheapest table). table: of all channels,
 * written for these. */
static grouping divide(const coding *c, const uint32_t *channel, size_t n_of, size_t n, unsigned n_symbols,
                       uint8_t *table) {
    grouping g = {.n = n};
    double price[MOST_TABLES][TN_RANS_SYMBOLS];
    for (size_t i = 0; i < n_of; i++) table[channel[i]] = (uint8_t)(i * n / n_of);
    for (int pass = 0; pass < N_PASSES; pass++) {
        uint64_t sums[MOST_TABLES][TN_RANS_SYMBOLS] = {0};
        for (size_t i = 0; i < n_of; i++)
            for (int s = 0; s < TN_RANS_SYMBOLS; s++) sums[table[channel[i]]][s] += c->counts[channel[i]][s];
        for (size_t t = 0; t < n; t++) {
            tn_rans_frequencies(sums[t], n_symbols, g.frequency[t]);
            prices(g.frequency[t], price[t]);
        }
        g.bits = (double)n * TABLE_BITS;
        for (size_t i = 0; i < n_of; i++) {
            double least = INFINITY;
            for (size_t t = 0; t < n; t++) {
                const double bits = price_of(c->counts[channel[i]], price[t]);
                if (bits >= least) continue;
                least = bits;
                table[channel[i]] = (uint8_t)t;
            }
            g.bits += least;
        }
    }
    return g;
}

typedef struct evenness {
    double bits;
    uint32_t channel;
} evenness;

static int by_bits(const void *a, const void *b) {
    const evenness *x = a, *y = b;
    if (x->bits != y->bits) return x->bits < y->bits ? -1 : 1;
    return (x->channel > y->channel) - (x->channel < y->channel);
}

/* Channels of a width, by how evenly their symbols are distributed. Returns their number. */
static size_t of_width(const coding *c, unsigned bits, evenness *all, uint32_t *channel) {
    size_t n = 0;
    for (size_t i = 0; i < c->n; i++) {
        if (tn_channel_bits_get(c->bits, i) != bits) continue;
        uint64_t counts[TN_RANS_SYMBOLS];
        uint16_t frequency[TN_RANS_SYMBOLS];
        double price[TN_RANS_SYMBOLS];
        for (int s = 0; s < TN_RANS_SYMBOLS; s++) counts[s] = c->counts[i][s];
        tn_rans_frequencies(counts, tn_rans_n_symbols(bits), frequency);
        prices(frequency, price);
        all[n++] = (evenness){price_of(c->counts[i], price), (uint32_t)i};
    }
    qsort(all, n, sizeof *all, by_bits);
    for (size_t i = 0; i < n; i++) channel[i] = all[i].channel;
    return n;
}

/* Chooses the tables of all channels, frequencies [MOST_TABLES][32]. Each width has as many tables of its
 * own as pay. Returns their number. */
static size_t choose(const coding *c, hoard *h, uint16_t (*frequency)[TN_RANS_SYMBOLS]) {
    evenness *all = tn_hoard_keep(h, c->n, sizeof *all);
    uint32_t *channel = tn_hoard_keep(h, c->n, sizeof *channel);
    uint8_t *tried = tn_hoard_keep(h, c->n, 1);
    bool seen[9] = {false};
    size_t n_widths = 0, n_tables = 0;
    if (!all || !channel || !tried) return 0;
    for (size_t i = 0; i < c->n; i++) seen[tn_channel_bits_get(c->bits, i)] = true;
    for (unsigned b = 1; b <= 8; b++) n_widths += seen[b];
    for (unsigned b = 1; b <= 8; b++) {
        if (!seen[b]) continue;
        n_widths--;
        const size_t n_of = of_width(c, b, all, channel), room = MOST_TABLES - n_tables - n_widths;
        grouping best = {.bits = INFINITY};
        for (size_t n = 1; n <= room && n <= 8 && n <= n_of; n *= 2) {
            const grouping g = divide(c, channel, n_of, n, tn_rans_n_symbols(b), tried);
            if (g.bits >= best.bits) continue;
            best = g;
            for (size_t i = 0; i < n_of; i++) c->table[channel[i]] = (uint8_t)(n_tables + tried[channel[i]]);
        }
        memcpy(frequency[n_tables], best.frequency, best.n * sizeof *frequency);
        n_tables += best.n;
    }
    return n_tables;
}

static void code_item(void *arg, int i_item, int i_thread) {
    (void)i_thread;
    coding *c = arg;
    tn_rans_args a = {.packed_bits = c->bits, .channel_table = c->table, .tables = c->tables, .k = c->k};
    a.n0 = (size_t)i_item * c->channels;
    a.n1 = a.n0 + c->channels < c->n ? a.n0 + c->channels : c->n;
    uint8_t *room = tn_alloc(c->p->ctx, TN_MEM_OTHER, tn_rans_bound(&a), 1);
    const size_t size =
        room ? tn_rans_encode(&a, c->packed + tn_weightlets_bytes(c->bits, 0, a.n0, a.k), room) : 0;
    uint8_t *out = room ? tn_alloc(c->p->ctx, TN_MEM_OTHER, size, 1) : NULL;
    if (out) memcpy(out, room, size);
    else atomic_store(&c->failed, true);
    tn_free(c->p->ctx, room);
    c->streams[i_item] = out;
    c->sizes[i_item] = (uint32_t)size;
}

/* The streams back to back, and what describes them. */
static tern_status join(const coding *c, hoard *h, size_t n_tables, uint16_t (*frequency)[TN_RANS_SYMBOLS],
                        tn_pack_coded *out, tern_error *err) {
    uint64_t at = 0;
    for (size_t i = 0; i < out->n_streams; i++) out->n_bytes += c->sizes[i];
    out->n_tables = n_tables;
    out->streams_bytes = 4 * out->n_streams + n_tables * sizeof *frequency + (c->n + 1) / 2;
    uint8_t *all = tn_hoard_keep(h, out->n_bytes, 1), *about = tn_hoard_keep(h, out->streams_bytes, 1),
            *table = about + 4 * out->n_streams + n_tables * sizeof *frequency;
    TN_FAIL_IF(!all || !about, err, TERN_E_MEMORY, "no memory to pack");
    for (size_t i = 0; i < out->n_streams; at += c->sizes[i++]) memcpy(all + at, c->streams[i], c->sizes[i]);
    memcpy(about, c->sizes, 4 * out->n_streams);
    memcpy(about + 4 * out->n_streams, frequency, n_tables * sizeof *frequency);
    for (size_t i = 0; i < c->n; i++) table[i / 2] |= (uint8_t)(c->table[i] << i % 2 * 4);
    out->bytes = all;
    out->streams = about;
    out->sizes = c->sizes;
    return TERN_OK;
}

/* own: memory that is not needed afterwards. */
static tern_status code(coding *c, hoard *h, hoard *own, tn_pack_coded *out, tern_error *err) {
    uint16_t frequency[MOST_TABLES][TN_RANS_SYMBOLS] = {0};
    unsigned n_symbols[MOST_TABLES] = {0};
    c->counts = tn_hoard_keep(own, c->n, sizeof *c->counts);
    c->table = tn_hoard_keep(own, c->n, 1);
    c->tables = tn_hoard_keep(own, MOST_TABLES, sizeof *c->tables);
    c->streams = tn_hoard_keep(own, out->n_streams, sizeof *c->streams);
    c->sizes = tn_hoard_keep(h, out->n_streams, sizeof *c->sizes);
    TN_FAIL_IF(!c->counts || !c->table || !c->tables || !c->streams || !c->sizes, err, TERN_E_MEMORY,
               "no memory to pack");
    tn_pool_for(c->p->pool, (int)((c->n + COUNTS_PER_ITEM - 1) / COUNTS_PER_ITEM), count_item, c);
    const size_t n_tables = choose(c, own, frequency);
    TN_FAIL_IF(!n_tables, err, TERN_E_MEMORY, "no memory to pack");
    for (size_t i = 0; i < c->n; i++)
        n_symbols[c->table[i]] = tn_rans_n_symbols(tn_channel_bits_get(c->bits, i));
    for (size_t t = 0; t < n_tables; t++) /* a table that no channel took in the end has no symbols */
        if (n_symbols[t]) (void)tn_rans_table_make(frequency[t], n_symbols[t], &c->tables[t]);
    tn_pool_for(c->p->pool, (int)out->n_streams, code_item, c);
    tern_status st = atomic_load(&c->failed) ? tn_fail(err, TERN_E_MEMORY, "no memory to pack")
                                             : join(c, h, n_tables, frequency, out, err);
    for (size_t i = 0; i < out->n_streams; i++) tn_free(c->p->ctx, c->streams[i]);
    return st;
}

tern_status tn_pack_code(packer *p, hoard *h, bool embedding, const uint8_t *weightlets, const uint8_t *bits,
                         size_t n, size_t k, tn_pack_coded *out, tern_error *err) {
    coding c = {.p = p, .packed = weightlets, .bits = bits, .n = n, .k = k};
    hoard own = {.ctx = p->ctx};
    c.channels = (size_t)tn_pkg_stream_channels(embedding);
    *out = (tn_pack_coded){.n_streams = (n + c.channels - 1) / c.channels};
    const tern_status st = code(&c, h, &own, out, err);
    tn_hoard_drop(&own);
    return st;
}
