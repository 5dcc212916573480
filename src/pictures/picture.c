#include "pictures/formats.h"

#include "libraries/library.h"

#include <string.h>

/* ---- kinds ------------------------------------------------------------------------------------------ */

static const struct {
    const char *name;
    tn_picture_kind kind;
    size_t at, n; /* where its mark lies */
    const char *mark;
    const char *start; /* further 4 bytes at the beginning, or NULL */
} formats[] = {
    {"PNG", TN_PICTURE_PNG, 0, 8, "\x89PNG\r\n\x1a\n", NULL},
    {"JPEG", TN_PICTURE_JPEG, 0, 3, "\xff\xd8\xff", NULL},
    {"WebP", TN_PICTURE_WEBP, 8, 4, "WEBP", "RIFF"},
    {"GIF", TN_PICTURE_OTHER, 0, 6, "GIF87a", NULL},
    {"GIF", TN_PICTURE_OTHER, 0, 6, "GIF89a", NULL},
    {"TIFF", TN_PICTURE_OTHER, 0, 4, "II*\0", NULL},
    {"TIFF", TN_PICTURE_OTHER, 0, 4, "MM\0*", NULL},
    {"HEIC", TN_PICTURE_OTHER, 4, 8, "ftypheic", NULL},
    {"HEIC", TN_PICTURE_OTHER, 4, 8, "ftypheix", NULL},
    {"HEIF", TN_PICTURE_OTHER, 4, 8, "ftypmif1", NULL},
    {"AVIF", TN_PICTURE_OTHER, 4, 8, "ftypavif", NULL},
    {"JPEG XL", TN_PICTURE_OTHER, 0, 12, "\0\0\0\x0cJXL \r\n\x87\n", NULL},
};

static int format_of(const uint8_t *bytes, size_t n) {
    for (int i = 0; i < (int)(sizeof formats / sizeof *formats); i++) {
        if (n < formats[i].at + formats[i].n || memcmp(bytes + formats[i].at, formats[i].mark, formats[i].n))
            continue;
        if (!formats[i].start || !memcmp(bytes, formats[i].start, 4)) return i;
    }
    return -1;
}

/* A Windows bitmap begins with two letters, as texts do too: its header must have one of the known lengths. */
static bool is_bmp(const uint8_t *b, size_t n) {
    return n >= TN_PICTURE_SNIFF && b[0] == 'B' && b[1] == 'M' && !b[6] && !b[7] && !b[8] && !b[9] &&
           (b[14] == 12 || b[14] == 40 || b[14] == 56 || b[14] == 108 || b[14] == 124) && !b[15];
}

tn_picture_kind tn_picture_kind_of(const uint8_t *bytes, size_t n) {
    int i = format_of(bytes, n);
    if (i >= 0) return formats[i].kind;
    return is_bmp(bytes, n) ? TN_PICTURE_OTHER : TN_PICTURE_NONE;
}

const char *tn_picture_format(const uint8_t *bytes, size_t n) {
    int i = format_of(bytes, n);
    return i >= 0 ? formats[i].name : is_bmp(bytes, n) ? "BMP" : NULL;
}

bool tn_picture_reads(tn_picture_kind kind) {
    switch (kind) {
#ifdef TERN_PNG
    case TN_PICTURE_PNG: return true;
#endif
#ifdef TERN_JPEG
    case TN_PICTURE_JPEG: return true;
#endif
#ifdef TERN_WEBP
    case TN_PICTURE_WEBP: return true;
#endif
    default: return false;
    }
}

tern_status tn_picture_need(const uint8_t *bytes, size_t n, tern_error *err) {
    const tn_picture_kind kind = tn_picture_kind_of(bytes, n);
    if (!tn_picture_reads(kind)) return TERN_OK;
    return tn_library_need(kind == TN_PICTURE_PNG    ? TN_LIBRARY_PNG
                           : kind == TN_PICTURE_JPEG ? TN_LIBRARY_JPEG
                                                     : TN_LIBRARY_WEBP,
                           err);
}

/* ---- pixels ----------------------------------------------------------------------------------------- */

/* x / 255, rounded as Pillow rounds it. */
static inline uint32_t over_255(uint32_t x) { return ((x >> 8) + x) >> 8; }

void tn_picture_on_white(const uint8_t *rgba, uint8_t *rgb, size_t n) {
    for (size_t i = 0; i < n; i++, rgba += 4, rgb += 3) {
        uint32_t a = rgba[3];
        for (int c = 0; c < 3; c++) /* seven bits more than the result has */
            rgb[c] = (uint8_t)(over_255(128 * (rgba[c] * a + 255 * (255 - a)) + (128 << 7)) >> 7);
    }
}

/* ---- orientation ------------------------------------------------------------------------------------- */

static uint32_t number(const uint8_t *p, int n, bool big) {
    uint32_t v = 0;
    for (int i = 0; i < n; i++) v |= (uint32_t)p[big ? n - 1 - i : i] << 8 * i;
    return v;
}

int tn_exif_orientation(const uint8_t *bytes, size_t n) {
    enum { ENTRY = 12, ORIENTATION = 0x0112, SHORT = 3 };
    if (n >= 6 && !memcmp(bytes, "Exif\0\0", 6)) bytes += 6, n -= 6;
    if (n < 8 || (memcmp(bytes, "II*\0", 4) && memcmp(bytes, "MM\0*", 4))) return 1;
    bool big = bytes[0] == 'M';
    size_t at = number(bytes + 4, 4, big);
    if (at > n || n - at < 2) return 1;
    uint32_t n_entries = number(bytes + at, 2, big);
    for (at += 2; n_entries && n - at >= ENTRY; at += ENTRY, n_entries--) {
        if (number(bytes + at, 2, big) != ORIENTATION) continue;
        uint32_t v = number(bytes + at + 8, 2, big);
        return number(bytes + at + 2, 2, big) == SHORT && v >= 1 && v <= 8 ? (int)v : 1;
    }
    return 1;
}

tern_status tn_picture_turn(tn_picture *p, int orientation, tern_error *err) {
    if (orientation < 2 || orientation > 8) return TERN_OK;
    bool swaps = orientation >= 5; /* rows become columns */
    bool flip_x = orientation == 2 || orientation == 3 || orientation == 7 || orientation == 8;
    bool flip_y = orientation == 3 || orientation == 4 || orientation == 6 || orientation == 7;
    tn_picture to;
    TN_TRY(tn_picture_make(p->ctx, "picture", (uint64_t)(swaps ? p->height : p->width),
                           (uint64_t)(swaps ? p->width : p->height), &to, err));
    for (int32_t y = 0; y < to.height; y++) {
        uint8_t *row = to.rgb + (size_t)y * (size_t)to.width * 3;
        for (int32_t x = 0; x < to.width; x++) {
            /* where the pixel comes from */
            int32_t fx = swaps ? y : x, fy = swaps ? x : y;
            if (flip_x) fx = p->width - 1 - fx;
            if (flip_y) fy = p->height - 1 - fy;
            memcpy(row + (size_t)x * 3, p->rgb + ((size_t)fy * (size_t)p->width + (size_t)fx) * 3, 3);
        }
    }
    tn_picture_free(p);
    *p = to;
    return TERN_OK;
}

/* ---- any of them -------------------------------------------------------------------------------------- */

static tern_status decode(tn_ctx *ctx, const uint8_t *bytes, size_t n, tn_decoded *d, tern_error *err) {
    switch (tn_picture_kind_of(bytes, n)) {
    case TN_PICTURE_PNG: return tn_png_decode(ctx, bytes, n, d, err);
    case TN_PICTURE_JPEG: return tn_jpeg_decode(ctx, bytes, n, d, err);
    case TN_PICTURE_WEBP: return tn_webp_decode(ctx, bytes, n, d, err);
    case TN_PICTURE_OTHER:
        return tn_fail(err, TERN_E_UNSUPPORTED, "%s pictures are not read: save it as PNG, JPEG or WebP",
                       tn_picture_format(bytes, n));
    default: return tn_fail(err, TERN_E_FORMAT, "this is no picture: PNG, JPEG and WebP are read");
    }
}

tern_status tn_picture_decode(tn_ctx *ctx, const uint8_t *bytes, size_t n, tn_picture *out, tern_error *err) {
    *out = (tn_picture){0};
    TN_FAIL_IF(n > TN_PICTURE_MAX_BYTES, err, TERN_E_LIMIT, "the picture has %zu bytes; up to %d are read", n,
               TN_PICTURE_MAX_BYTES);
    tn_decoded d = {.orientation = 1};
    TN_TRY(tn_picture_need(bytes, n, err));
    tern_status st = decode(ctx, bytes, n, &d, err);
    if (st == TERN_OK) st = tn_picture_turn(&d.picture, d.orientation, err);
    if (st == TERN_OK) *out = d.picture;
    else tn_picture_free(&d.picture);
    return st;
}
