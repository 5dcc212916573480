/* JPEG, by libjpeg-turbo. */
#include "pictures/formats.h"

#ifdef TERN_JPEG
#include <setjmp.h>
#include <stdio.h>
#include <string.h>

#include <jpeglib.h>

enum { MAX_SCANS = 500 }; /* of a progressive picture: each costs the time of all its pixels */

typedef struct work {
    struct jpeg_error_mgr errors; /* the library hands it back as the first of this struct */
    jmp_buf back;
    char why[JMSG_LENGTH_MAX];
    bool cut; /* bytes are missing or damaged: the library would go on with grey */
    struct jpeg_progress_mgr progress;
    struct jpeg_decompress_struct jpeg;
    uint8_t *row;
} work;

static void fail(j_common_ptr c) {
    work *w = (work *)c->err;
    c->err->format_message(c, w->why);
    longjmp(w->back, 1);
}

static void note(j_common_ptr c, int level) {
    if (level < 0) ((work *)c->err)->cut = true;
}

static void say_nothing(j_common_ptr c) { (void)c; }

static void count_scans(j_common_ptr c) {
    work *w = (work *)c->err;
    if (w->jpeg.input_scan_number <= MAX_SCANS) return;
    snprintf(w->why, sizeof w->why, "it has more than %d scans", MAX_SCANS);
    longjmp(w->back, 1);
}

/* a * b / 255 as Pillow rounds it */
static inline uint8_t times(uint32_t a, uint32_t b) {
    uint32_t t = a * b + 128;
    return (uint8_t)(((t >> 8) + t) >> 8);
}

/* A row as the library gave it. Programs that write CMYK write it inverted, as Adobe does. */
static void as_rgb(const uint8_t *row, uint8_t *rgb, size_t width, int n_components) {
    for (size_t x = 0; x < width; x++, row += n_components, rgb += 3) {
        if (n_components == 1) memset(rgb, row[0], 3);
        else if (n_components == 3) memcpy(rgb, row, 3);
        else
            for (int c = 0; c < 3; c++) rgb[c] = (uint8_t)(row[3] - times(255u - row[c], row[3]));
    }
}

static int orientation(const struct jpeg_decompress_struct *j) {
    for (const struct jpeg_marker_struct *m = j->marker_list; m; m = m->next)
        if (m->marker == JPEG_APP0 + 1 && m->data_length >= 6 && !memcmp(m->data, "Exif\0\0", 6))
            return tn_exif_orientation(m->data, m->data_length);
    return 1;
}

static tern_status read_jpeg(tn_ctx *ctx, work *w, const uint8_t *bytes, size_t n, tn_decoded *out,
                             tern_error *err) {
    struct jpeg_decompress_struct *j = &w->jpeg;
    if (setjmp(w->back)) return tn_fail(err, TERN_E_FORMAT, "the JPEG is damaged: %s", w->why);
    jpeg_create_decompress(j);
    j->progress = &w->progress;
    w->progress.progress_monitor = count_scans;
    jpeg_save_markers(j, JPEG_APP0 + 1, 0xffff);
    jpeg_mem_src(j, bytes, n);
    (void)jpeg_read_header(j, TRUE);
    TN_TRY(tn_picture_make(ctx, "JPEG", j->image_width, j->image_height, &out->picture, err));
    bool four = j->jpeg_color_space == JCS_CMYK || j->jpeg_color_space == JCS_YCCK;
    j->out_color_space = four ? JCS_CMYK : j->num_components == 1 ? JCS_GRAYSCALE : JCS_RGB;
    out->orientation = orientation(j);
    j->dct_method = JDCT_ISLOW; /* the same bits everywhere */
    (void)jpeg_start_decompress(j);
    size_t width = (size_t)out->picture.width;
    w->row = tn_alloc(ctx, TN_MEM_OTHER, width, 4);
    TN_FAIL_IF(!w->row, err, TERN_E_MEMORY, "no memory for a row of %zu pixels", width);
    while (j->output_scanline < j->output_height) {
        size_t y = j->output_scanline;
        JSAMPROW rows[1] = {w->row};
        (void)jpeg_read_scanlines(j, rows, 1);
        as_rgb(w->row, out->picture.rgb + y * width * 3, width, j->output_components);
    }
    (void)jpeg_finish_decompress(j);
    TN_FAIL_IF(w->cut, err, TERN_E_FORMAT, "the JPEG is damaged or cut off: a part of its pixels is missing");
    return TERN_OK;
}

tern_status tn_jpeg_decode(tn_ctx *ctx, const uint8_t *bytes, size_t n, tn_decoded *out, tern_error *err) {
    work *w = tn_calloc(ctx, TN_MEM_OTHER, 1, sizeof *w);
    TN_FAIL_IF(!w, err, TERN_E_MEMORY, "no memory to read a JPEG");
    w->jpeg.err = jpeg_std_error(&w->errors);
    w->errors.error_exit = fail;
    w->errors.emit_message = note;
    w->errors.output_message = say_nothing;
    tern_status st = read_jpeg(ctx, w, bytes, n, out, err);
    jpeg_destroy_decompress(&w->jpeg);
    tn_free(ctx, w->row);
    tn_free(ctx, w);
    return st;
}
#else
tern_status tn_jpeg_decode(tn_ctx *ctx, const uint8_t *bytes, size_t n, tn_decoded *out, tern_error *err) {
    (void)ctx, (void)bytes, (void)n, (void)out;
    return tn_fail(err, TERN_E_UNSUPPORTED,
                   "this build of tern reads no JPEG: it was built without libjpeg-turbo (libjpeg-dev)");
}
#endif
