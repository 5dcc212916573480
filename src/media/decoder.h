/* media/decoder.h - who decodes files of pictures for the public interface: the program's own readers, or those of
 * libtern-pictures, which brings the formats' libraries. */
#ifndef TN_MEDIA_DECODER_H
#define TN_MEDIA_DECODER_H

#include "media/pixels.h"

#define TN_DECODER_PLUGIN "tn_decoder_plugin"

typedef struct tn_decoder_ops {
    size_t size_bytes;
    const char *version;
    tern_status (*decode)(tn_ctx *ctx, const uint8_t *bytes, size_t n, tn_picture *out, tern_error *err);
} tn_decoder_ops;

void tn_decoder_provide(const tn_decoder_ops *ops);

#endif
