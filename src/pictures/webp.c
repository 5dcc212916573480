/* WebP, by libwebp. */
#include "pictures/formats.h"

#ifdef TERN_WEBP
#include <string.h>
#include <webp/decode.h>

/* The chunk of that name in the RIFF container; NULL: there is none. */
static const uint8_t *chunk(const uint8_t *bytes, size_t n, const char *name, size_t *n_chunk) {
    enum { FIRST = 12, HEAD = 8 };
    for (size_t at = FIRST; at <= n && n - at >= HEAD;) {
        const uint8_t *c = bytes + at;
        size_t size = (size_t)c[4] | (size_t)c[5] << 8 | (size_t)c[6] << 16 | (size_t)c[7] << 24;
        at += HEAD;
        if (size > n - at) return NULL;
        *n_chunk = size;
        if (!memcmp(c, name, 4)) return c + HEAD;
        at += size + (size & 1);
    }
    return NULL;
}

static const char *why(VP8StatusCode code) {
    switch (code) {
    case VP8_STATUS_NOT_ENOUGH_DATA: return "it ends too early";
    case VP8_STATUS_UNSUPPORTED_FEATURE: return "it has what the library does not know";
    case VP8_STATUS_OUT_OF_MEMORY: return "no memory for it";
    default: return "its bytes make no sense";
    }
}

tern_status tn_webp_decode(tn_ctx *ctx, const uint8_t *bytes, size_t n, tn_decoded *out, tern_error *err) {
    WebPDecoderConfig c;
    TN_FAIL_IF(!WebPInitDecoderConfig(&c), err, TERN_E_UNSUPPORTED, "libwebp is of another version");
    VP8StatusCode code = WebPGetFeatures(bytes, n, &c.input);
    TN_FAIL_IF(code != VP8_STATUS_OK, err, TERN_E_FORMAT, "the WebP is damaged: %s", why(code));
    TN_FAIL_IF(c.input.has_animation, err, TERN_E_UNSUPPORTED,
               "the WebP is animated: give one of its pictures as PNG, JPEG or WebP");
    TN_TRY(
        tn_picture_make(ctx, "WebP", (uint64_t)c.input.width, (uint64_t)c.input.height, &out->picture, err));
    size_t width = (size_t)out->picture.width, n_pixels = width * (size_t)out->picture.height;
    bool alpha = c.input.has_alpha;
    uint8_t *rgba = alpha ? tn_alloc(ctx, TN_MEM_OTHER, n_pixels, 4) : out->picture.rgb;
    TN_FAIL_IF(!rgba, err, TERN_E_MEMORY, "no memory for the pixels of a WebP");
    c.output.colorspace = alpha ? MODE_RGBA : MODE_RGB;
    c.output.is_external_memory = 1;
    c.output.u.RGBA.rgba = rgba;
    c.output.u.RGBA.stride = (int)(width * (alpha ? 4 : 3));
    c.output.u.RGBA.size = n_pixels * (alpha ? 4 : 3);
    code = WebPDecode(bytes, n, &c);
    WebPFreeDecBuffer(&c.output);
    if (alpha) {
        if (code == VP8_STATUS_OK) tn_picture_on_white(rgba, out->picture.rgb, n_pixels);
        tn_free(ctx, rgba);
    }
    TN_FAIL_IF(code != VP8_STATUS_OK, err, TERN_E_FORMAT, "the WebP is damaged: %s", why(code));
    size_t n_exif;
    const uint8_t *exif = chunk(bytes, n, "EXIF", &n_exif);
    if (exif) out->orientation = tn_exif_orientation(exif, n_exif);
    return TERN_OK;
}
#else
tern_status tn_webp_decode(tn_ctx *ctx, const uint8_t *bytes, size_t n, tn_decoded *out, tern_error *err) {
    (void)ctx, (void)bytes, (void)n, (void)out;
    return tn_fail(err, TERN_E_UNSUPPORTED,
                   "this build of tern reads no WebP: it was built without libwebp (libwebp-dev)");
}
#endif
