/* PNG, by libpng. */
#include "pictures/formats.h"

#ifdef TERN_PNG
#include <png.h>
#include <string.h>

typedef struct source {
    const uint8_t *bytes;
    size_t n, at;
    char why[160];
} source;

static void give(png_structp png, png_bytep out, size_t n) {
    source *s = png_get_io_ptr(png);
    if (n > s->n - s->at) png_error(png, "it ends too early");
    memcpy(out, s->bytes + s->at, n);
    s->at += n;
}

static void fail(png_structp png, png_const_charp why) {
    source *s = png_get_error_ptr(png);
    strncpy(s->why, why, sizeof s->why - 1);
    png_longjmp(png, 1);
}

static void warn(png_structp png, png_const_charp why) { (void)png, (void)why; }

/* Whatever the file has becomes RGBA of 8 bits. */
static void as_rgba(png_structp png, png_infop info) {
    png_set_strip_16(png);
    png_set_expand(png); /* palettes, 1 to 4 bits of grey, a transparent colour */
    png_set_gray_to_rgb(png);
    png_set_add_alpha(png, 255, PNG_FILLER_AFTER);
    (void)png_set_interlace_handling(png);
    png_read_update_info(png, info);
}

static int orientation(png_structp png, png_infop info) {
    png_bytep exif = NULL;
    png_uint_32 n = 0;
    return png_get_eXIf_1(png, info, &n, &exif) && exif ? tn_exif_orientation(exif, n) : 1;
}

/* Rows one by one; an interlaced picture is there as a whole before it has any. */
static void read_pixels(png_structp png, uint8_t *rgba, tn_picture *p, int n_passes) {
    size_t width = (size_t)p->width;
    if (n_passes == 1) {
        for (int32_t y = 0; y < p->height; y++) {
            png_read_row(png, rgba, NULL);
            tn_picture_on_white(rgba, p->rgb + (size_t)y * width * 3, width);
        }
        return;
    }
    for (int pass = 0; pass < n_passes; pass++)
        for (int32_t y = 0; y < p->height; y++) png_read_row(png, rgba + (size_t)y * width * 4, NULL);
    tn_picture_on_white(rgba, p->rgb, width * (size_t)p->height);
}

/* What a jump would leave behind is in here. */
typedef struct work {
    source s;
    png_structp png;
    png_infop info;
    uint8_t *rgba;
} work;

static tern_status read_png(tn_ctx *ctx, work *w, tn_decoded *out, tern_error *err) {
    if (setjmp(png_jmpbuf(w->png))) return tn_fail(err, TERN_E_FORMAT, "the PNG is damaged: %s", w->s.why);
    png_set_user_limits(w->png, TN_PICTURE_MAX_SIDE, TN_PICTURE_MAX_SIDE);
    png_set_chunk_malloc_max(w->png, 8 << 20); /* of a chunk beside the pixels, unpacked */
    png_set_chunk_cache_max(w->png, 64);
    png_set_read_fn(w->png, &w->s, give);
    png_read_info(w->png, w->info);
    TN_TRY(tn_picture_make(ctx, "PNG", png_get_image_width(w->png, w->info),
                           png_get_image_height(w->png, w->info), &out->picture, err));
    const tn_picture *p = &out->picture;
    int n_passes = png_get_interlace_type(w->png, w->info) == PNG_INTERLACE_NONE ? 1 : 7;
    w->rgba = tn_alloc(ctx, TN_MEM_OTHER, (size_t)p->width * (n_passes > 1 ? (size_t)p->height : 1), 4);
    TN_FAIL_IF(!w->rgba, err, TERN_E_MEMORY, "no memory for the pixels of a PNG");
    as_rgba(w->png, w->info);
    if (png_get_rowbytes(w->png, w->info) != (size_t)p->width * 4)
        return tn_fail(err, TERN_E_FORMAT, "the PNG has rows of %zu bytes for %d pixels",
                       (size_t)png_get_rowbytes(w->png, w->info), (int)p->width);
    read_pixels(w->png, w->rgba, &out->picture, n_passes);
    png_read_end(w->png, w->info);
    out->orientation = orientation(w->png, w->info);
    return TERN_OK;
}

/* libpng would call a size beyond its limits damage. */
static tern_status check_size(const uint8_t *bytes, size_t n, tern_error *err) {
    if (n < 24 || memcmp(bytes + 12, "IHDR", 4)) return TERN_OK;
    return tn_picture_check("PNG", png_get_uint_32(bytes + 16), png_get_uint_32(bytes + 20), err);
}

tern_status tn_png_decode(tn_ctx *ctx, const uint8_t *bytes, size_t n, tn_decoded *out, tern_error *err) {
    TN_TRY(check_size(bytes, n, err));
    work w = {.s = {.bytes = bytes, .n = n}};
    w.png = png_create_read_struct(PNG_LIBPNG_VER_STRING, &w.s, fail, warn);
    w.info = w.png ? png_create_info_struct(w.png) : NULL;
    tern_status st =
        w.info ? read_png(ctx, &w, out, err) : tn_fail(err, TERN_E_MEMORY, "no memory to read a PNG");
    tn_free(ctx, w.rgba);
    png_destroy_read_struct(&w.png, &w.info, NULL);
    return st;
}
#else
tern_status tn_png_decode(tn_ctx *ctx, const uint8_t *bytes, size_t n, tn_decoded *out, tern_error *err) {
    (void)ctx, (void)bytes, (void)n, (void)out;
    return tn_fail(err, TERN_E_UNSUPPORTED,
                   "this build of tern reads no PNG: it was built without libpng (libpng-dev)");
}
#endif
