/* quant/encode.h - weightlets to the streams that kernels/rans.h decodes. */
#ifndef TN_QUANT_ENCODE_H
#define TN_QUANT_ENCODE_H

#include "kernels/rans.h"

/* Frequencies of at least 1 for every symbol, of counts [n_symbols]. */
void tn_rans_frequencies(const uint64_t *counts, unsigned n_symbols, uint16_t *frequency);

/* Most bytes that a stream can take. */
size_t tn_rans_bound(const tn_rans_args *a);
/* Encodes weightlets at src to dst [tn_rans_bound]; returns the stream's bytes. Every symbol that occurs has a
 * frequency in its channel's table. */
size_t tn_rans_encode(const tn_rans_args *a, const uint8_t *src, uint8_t *dst);

/* Counts of the symbols of channel n of n_all, whose tile of weightlets begins at tile: counts [32] are added to. */
void tn_rans_count(const uint8_t *tile, const uint8_t *packed_bits, size_t n, size_t n_all, size_t k,
                   uint64_t *counts);

#endif
