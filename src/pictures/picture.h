/* pictures/picture.h - files of pictures to upright RGB pixels.
 *
 * A picture's kind is told by its first bytes, never by its name. Alpha is composited on white, 16 bits become 8 as
 * Pillow takes them (the high byte), CMYK is taken as Adobe writes it, and the orientation that a camera noted (EXIF)
 * is applied. Colour profiles are not looked at. Each format needs its library when tern is built; where one is
 * missing, the error names it. */
#ifndef TN_PICTURES_PICTURE_H
#define TN_PICTURES_PICTURE_H

#include "media/pixels.h"

typedef enum tn_picture_kind {
    TN_PICTURE_NONE, /* no picture */
    TN_PICTURE_PNG,
    TN_PICTURE_JPEG,
    TN_PICTURE_WEBP,
    TN_PICTURE_OTHER /* a picture of a format that is not read: tn_picture_format names it */
} tn_picture_kind;

enum {
    TN_PICTURE_SNIFF = 16,          /* bytes that tell the kind */
    TN_PICTURE_MAX_BYTES = 64 << 20 /* of a file */
};

tn_picture_kind tn_picture_kind_of(const uint8_t *bytes, size_t n);
/* The format's name ("PNG", "GIF", ...), for messages. NULL: no picture. */
const char *tn_picture_format(const uint8_t *bytes, size_t n);
/* Tells whether this build reads the kind. */
bool tn_picture_reads(tn_picture_kind kind);

/* Loads the library that decoding these bytes takes. Call it before sealing this process, or before forking one that
 * will be sealed. */
tern_status tn_picture_need(const uint8_t *bytes, size_t n, tern_error *err);

/* Decodes a file's bytes. Sizes are checked against the limits (media/pixels.h) before anything is allocated for them, and what
 * is cut off or damaged is an error, never half a picture. On failure *out is empty. */
tern_status tn_picture_decode(tn_ctx *ctx, const uint8_t *bytes, size_t n, tn_picture *out, tern_error *err);

#endif
