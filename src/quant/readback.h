/* quant/readback.h - checks a package before it gets its name. */
#ifndef TN_QUANT_READBACK_H
#define TN_QUANT_READBACK_H

#include "formats/package.h"
#include "model/model.h"

/* Reads the sealed file of w as an engine will: every checksum, the metadata, the tokenizer. Fails if it
 * is unreadable or not the package of m. */
tern_status tn_pack_read_back(tn_ctx *ctx, tn_pool *pool, const tn_pkg_writer *w, const tn_model *m,
                              tern_error *err);

#endif
