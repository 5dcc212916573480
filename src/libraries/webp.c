#include "libraries/stubs.h"

/* clang-format off */
#define FUNCTIONS(F) \
    F(WebPDecode) F(WebPFreeDecBuffer) F(WebPGetFeaturesInternal) F(WebPInitDecoderConfigInternal)
/* clang-format on */

TN_LOADED(tn_loaded_webp, TN_SO_WEBP, "libwebp7", "WebP pictures")
