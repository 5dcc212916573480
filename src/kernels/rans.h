/* kernels/rans.h - entropy-coded weightlets (unpack.h), as they lie on flash.
 *
 * Codes of bell-shaped weights use a few values most of the time. A stream holds the codes of some
 * channels by asymmetric numeral systems (rANS, Duda, arXiv 1311.2540): 64 interleaved coders, frequencies in
 * 4096ths, states of 32 bits that take in 16 bits when they fall below 2^16.
 *
 * Channels come in the order of their weightlets: tile by tile, in each group by group, in each channel by
 * channel. The 128 codes of a group and channel are two steps: coder i has code i, then code 64 + i; codes
 * after the last input have no symbol. A symbol is a code's upper five bits (all, where it has fewer; an int8
 * counts as w + 128); the bits below them, nearly uniform, follow the two steps uncoded, 16 bytes a bit from
 * the lowest up.
 *
 * A stream: 64 first states (u32), then the words (u16) in the order in which they are read; a step's coders
 * take theirs in order. After the last code every state is 2^16 and every word is read, which is checked. */
#ifndef TN_KERNELS_RANS_H
#define TN_KERNELS_RANS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    TN_RANS_LANES = 64,
    TN_RANS_SYMBOLS = 32,
    TN_RANS_SYMBOL_BITS = 5,
    TN_RANS_SCALE = 4096,
    TN_RANS_BUCKETS = 32, /* of 128 numbers each */
    TN_RANS_FIRST = 1 << 16
};

/* A distribution in the decoder's form (alias method): each of the 32 buckets of the 4096 numbers is shared
 * by its own symbol and at most one other. */
typedef struct tn_rans_table {
    _Alignas(
        64) uint16_t shared[TN_RANS_BUCKETS]; /* numbers of its own symbol (0..128) | the other symbol << 8 */
    uint16_t frequency[TN_RANS_SYMBOLS];
    uint16_t base[2 * TN_RANS_BUCKETS]; /* added to a number's place in its bucket: its index among the
                                           numbers of its symbol, modulo 2^16; own, then other */
    /* The same by bytes, for shuffles: shared, frequency, base of own parts and of others, the low bytes of
     * each first. */
    uint8_t bytes[4][2][TN_RANS_BUCKETS];
} tn_rans_table;

/* Makes a table of frequencies [32] that add up to 4096; those of symbols from n_symbols on are 0. Returns
 * false otherwise. */
bool tn_rans_table_make(const uint16_t *frequency, unsigned n_symbols, tn_rans_table *out);
/* Number of symbols of a channel of that width. */
static inline unsigned tn_rans_n_symbols(unsigned bits) {
    return 1u << (bits < TN_RANS_SYMBOL_BITS ? bits : TN_RANS_SYMBOL_BITS);
}
/* Bits of a code of that width below its symbol. */
static inline unsigned tn_rans_raw_bits(unsigned bits) {
    return bits > TN_RANS_SYMBOL_BITS ? bits - TN_RANS_SYMBOL_BITS : 0;
}

/* A stream: channels n0..n1-1 (n0 % 16 == 0, n1 % 16 == 0 or the last) of a matrix of k inputs. */
typedef struct tn_rans_args {
    const uint8_t *packed_bits;   /* widths of the whole matrix (unpack.h) */
    const uint8_t *channel_table; /* of the whole matrix: each channel's table, one for its width */
    const tn_rans_table *tables;
    size_t n0, n1, k;
} tn_rans_args;

/* Decodes a stream of n_bytes at src (any alignment) to its weightlets. Reads and writes nothing else.
 * Returns false if the stream is damaged; dst is then undefined. */
typedef bool (*tn_rans_decode_fn)(const tn_rans_args *a, const uint8_t *src, size_t n_bytes, uint8_t *dst);
bool tn_rans_decode_ref(const tn_rans_args *a, const uint8_t *src, size_t n_bytes, uint8_t *dst);
bool tn_rans_decode_neon(const tn_rans_args *a, const uint8_t *src, size_t n_bytes, uint8_t *dst);
bool tn_rans_decode_avx2(const tn_rans_args *a, const uint8_t *src, size_t n_bytes, uint8_t *dst);
bool tn_rans_decode_avx512(const tn_rans_args *a, const uint8_t *src, size_t n_bytes, uint8_t *dst);

#endif
