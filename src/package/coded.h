/* package/coded.h - entropy-coded weights of a linear: from streams on flash to weightlets. */
#ifndef TN_PACKAGE_CODED_H
#define TN_PACKAGE_CODED_H

#include "base/ctx.h"
#include "base/status.h"
#include "formats/package.h"
#include "kernels/kernels.h"

typedef struct tn_coded tn_coded;

/* Opens the description of the streams of coded record r: the record of its role with part STREAMS among
 * records, whose bytes lie at base. bits: the widths of its channels, borrowed. */
tern_status tn_coded_open(tn_ctx *ctx, const tn_pkg_record *records, size_t n_records, const void *base,
                          const tn_pkg_record *r, const uint8_t *bits, tn_coded **out, tern_error *err);
void tn_coded_close(tn_ctx *ctx, tn_coded **c);

int64_t tn_coded_channels(const tn_coded *c); /* of a stream */
const uint64_t *
tn_coded_offsets(const tn_coded *c); /* offsets of the streams in the record's bytes, and their end */

/* Decodes channels n0..n1-1 (of whole streams) from the record's bytes at coded to weightlets at dst.
 * Thread-safe. TERN_E_FORMAT if they are damaged. */
tern_status tn_coded_decode(const tn_coded *c, const tn_kernels *kern, const uint8_t *coded, int64_t n0,
                            int64_t n1, uint8_t *dst, tern_error *err);

#endif
