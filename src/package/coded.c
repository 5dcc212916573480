#include "package/coded.h"

#include "kernels/unpack.h"
#include "model/hparams.h"

#include <string.h>

struct tn_coded {
    tn_role role;
    tn_rans_args args;
    int64_t channels;
    size_t n_streams, n_tables;
    uint64_t *off;  /* [n_streams + 1] */
    uint8_t *table; /* [n] */
    tn_rans_table tables[];
};

enum { MOST_TABLES = 16 };

/* Checks the places of the streams, the tables, and each channel's table, which must have as many symbols
 * as the channel. */
static tern_status fill(tn_coded *c, const uint8_t *at, const tn_pkg_record *r, const uint8_t *bits,
                        tern_error *err) {
    const size_t n = (size_t)r->n;
    uint16_t frequency[MOST_TABLES][TN_RANS_SYMBOLS];
    unsigned n_symbols[MOST_TABLES] = {0};
    for (size_t i = 0; i < c->n_streams; i++, at += 4) {
        uint32_t size;
        memcpy(&size, at, sizeof size);
        c->off[i + 1] = c->off[i] + size;
    }
    memcpy(frequency, at, c->n_tables * sizeof *frequency);
    at += c->n_tables * sizeof *frequency;
    for (size_t i = 0; i < n; i++) {
        const unsigned t = at[i / 2] >> i % 2 * 4 & 15, of = tn_rans_n_symbols(tn_channel_bits_get(bits, i));
        TN_FAIL_IF(t >= c->n_tables || (n_symbols[t] && n_symbols[t] != of), err, TERN_E_FORMAT,
                   "%s: channel %zu has a table of symbols that is not for it", tn_role_name(c->role), i);
        c->table[i] = (uint8_t)t;
        n_symbols[t] = of;
    }
    for (size_t t = 0; t < c->n_tables; t++)
        TN_FAIL_IF(n_symbols[t] && !tn_rans_table_make(frequency[t], n_symbols[t], &c->tables[t]), err,
                   TERN_E_FORMAT, "%s: the frequencies of table %zu do not add up", tn_role_name(c->role), t);
    TN_FAIL_IF(c->off[c->n_streams] != r->size_bytes, err, TERN_E_FORMAT,
               "the coded weights of %s have %" PRIu64 " bytes, their streams %" PRIu64,
               tn_role_name(c->role), r->size_bytes, c->off[c->n_streams]);
    return TERN_OK;
}

tern_status tn_coded_open(tn_ctx *ctx, const tn_pkg_record *records, size_t n_records, const void *base,
                          const tn_pkg_record *r, const uint8_t *bits, tn_coded **out, tern_error *err) {
    const tn_pkg_record *s = tn_pkg_record_find(records, n_records, r->role, TN_PKG_STREAMS);
    const int64_t each = tn_pkg_stream_channels(r->role == TN_W_EMBD);
    const size_t n = (size_t)r->n, n_streams = (n + (size_t)each - 1) / (size_t)each;
    *out = NULL;
    TN_FAIL_IF(!s || s->n != (int64_t)n_streams || s->k < 1 || s->k > MOST_TABLES ||
                   s->size_bytes != 4 * n_streams + 2 * TN_RANS_SYMBOLS * (uint64_t)s->k + (n + 1) / 2,
               err, TERN_E_FORMAT, "the streams of %s are not described, or in another shape",
               tn_role_name((tn_role)r->role));
    const size_t n_tables = (size_t)s->k, head = sizeof(tn_coded) + n_tables * sizeof(tn_rans_table),
                 places = (n_streams + 1) * sizeof(uint64_t);
    tn_coded *c = tn_calloc(ctx, TN_MEM_OTHER, head + places + n, 1);
    TN_FAIL_IF(!c, err, TERN_E_MEMORY, "no memory for %zu streams", n_streams);
    c->role = (tn_role)r->role;
    c->channels = each;
    c->n_streams = n_streams;
    c->n_tables = n_tables;
    c->off = (uint64_t *)((char *)c + head);
    c->table = (uint8_t *)c + head + places;
    c->args = (tn_rans_args){
        .packed_bits = bits, .channel_table = c->table, .tables = c->tables, .k = (size_t)r->k, .n1 = n};
    const tern_status st = fill(c, (const uint8_t *)base + s->off_bytes, r, bits, err);
    if (st == TERN_OK) *out = c;
    else tn_free(ctx, c);
    return st;
}

void tn_coded_close(tn_ctx *ctx, tn_coded **c) {
    tn_free(ctx, *c);
    *c = NULL;
}

int64_t tn_coded_channels(const tn_coded *c) { return c->channels; }
const uint64_t *tn_coded_offsets(const tn_coded *c) { return c->off; }

tern_status tn_coded_decode(const tn_coded *c, const tn_kernels *kern, const uint8_t *coded, int64_t n0,
                            int64_t n1, uint8_t *dst, tern_error *err) {
    tn_rans_args a = c->args;
    for (size_t s = (size_t)(n0 / c->channels); n0 < n1; s++, n0 = (int64_t)a.n1) {
        a.n0 = (size_t)n0;
        a.n1 = c->args.n1 < a.n0 + (size_t)c->channels ? c->args.n1 : a.n0 + (size_t)c->channels;
        TN_FAIL_IF(!kern->rans_decode(&a, coded + c->off[s], c->off[s + 1] - c->off[s], dst), err,
                   TERN_E_FORMAT, "the coded weights of %s, channels %zu to %zu, are damaged",
                   tn_role_name(c->role), a.n0, a.n1 - 1);
        dst += tn_weightlets_bytes(a.packed_bits, a.n0, a.n1, a.k);
    }
    return TERN_OK;
}
