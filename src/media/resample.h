/* media/resample.h - pictures in another size, bit for bit as Pillow's Image.resize gives them (9.4 and later):
 * separable and antialiased, horizontally first, in bytes, with coefficients of 22 bits after the point. */
#ifndef TN_MEDIA_RESAMPLE_H
#define TN_MEDIA_RESAMPLE_H

#include "media/pixels.h"

typedef enum tn_filter { TN_FILTER_BILINEAR, TN_FILTER_BICUBIC, TN_FILTER_LANCZOS } tn_filter;

/* *out: `in` stretched to width x height, in memory of its own. Limits are those of pixels.h, and the picture
 * between both passes, width x in->height, counts too. */
tern_status tn_picture_resize(const tn_picture *in, tn_filter filter, int32_t width, int32_t height,
                              tn_picture *out, tern_error *err);

#endif
