/* media/pixels.h - a picture as pixels, whoever decoded it. */
#ifndef TN_MEDIA_PIXELS_H
#define TN_MEDIA_PIXELS_H

#include "base/ctx.h"

enum {
    TN_PICTURE_MAX_SIDE = 65535, /* pixels */
    TN_PICTURE_MAX_PIXELS = 100 * 1000000
};

/* width x height pixels, upright: [height][width][3] of red, green and blue. */
typedef struct tn_picture {
    tn_ctx *ctx; /* NULL: the pixels are borrowed */
    int32_t width, height;
    uint8_t *rgb;
} tn_picture;

/* Checks a size that somebody tells against the limits above, then allocates the pixels. `what` names the picture. */
tern_status tn_picture_make(tn_ctx *ctx, const char *what, uint64_t width, uint64_t height, tn_picture *out,
                            tern_error *err);
/* The check alone. */
tern_status tn_picture_check(const char *what, uint64_t width, uint64_t height, tern_error *err);
void tn_picture_free(tn_picture *p); /* NULL-safe */

#endif
