/* pictures/formats.h - what the decoders of single formats share. Internal to pictures/. */
#ifndef TN_PICTURES_FORMATS_H
#define TN_PICTURES_FORMATS_H

#include "base/status.h"
#include "pictures/picture.h"

/* The result of one decoder: pixels as they lie in the file, and how to turn them upright. */
typedef struct tn_decoded {
    tn_picture picture;
    int orientation; /* of EXIF, 1 to 8; 1: upright */
} tn_decoded;

/* n pixels RGBA become RGB on white, with the bits of Pillow's alpha_composite. */
void tn_picture_on_white(const uint8_t *rgba, uint8_t *rgb, size_t n);
/* Orientation out of a block of EXIF (TIFF, with "Exif\0\0" in front or not); 1 where it tells none. */
int tn_exif_orientation(const uint8_t *bytes, size_t n);
/* Turns a picture upright. */
tern_status tn_picture_turn(tn_picture *p, int orientation, tern_error *err);

tern_status tn_png_decode(tn_ctx *ctx, const uint8_t *bytes, size_t n, tn_decoded *out, tern_error *err);
tern_status tn_jpeg_decode(tn_ctx *ctx, const uint8_t *bytes, size_t n, tn_decoded *out, tern_error *err);
tern_status tn_webp_decode(tn_ctx *ctx, const uint8_t *bytes, size_t n, tn_decoded *out, tern_error *err);

#endif
