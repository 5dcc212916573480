/* pictures/plugin.c - the decoders as libtern knows them; the one symbol that libtern-pictures exports. */
#include "media/decoder.h"
#include "pictures/picture.h"

__attribute__((visibility("default"))) const tn_decoder_ops tn_decoder_plugin = {
    .size_bytes = sizeof(tn_decoder_ops),
    .version = TERN_VERSION_STRING,
    .decode = tn_picture_decode,
};
