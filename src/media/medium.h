/* media/medium.h - what a model's encoder reads of a picture: views of pixels, and where their rows stand in the
 * prompt. Each family has its own rule of sizes and its own marks around the rows.
 *
 * SmolVLM, Idefics3: the longest side becomes the file's (2048), both sides are stretched to multiples of the tile
 * (512), tiles follow row by row, and an overview, the whole picture as one tile, comes last. With one view there is the
 * overview alone. As Hugging Face's Idefics3ImageProcessor does it with Pillow, bit for bit.
 *
 * Gemma 3: the picture is stretched to one square tile (896), bilinearly. Its rows see each other in the language model.
 *
 * Qwen2.5-VL, Qwen3-VL: both sides become multiples of a block of patches (28, 32), halves to even ones, and are scaled where there are
 * fewer or more pixels than the encoder's limits; the picture is stretched to that, bicubically. Its rows have places
 * on three axes.
 *
 * LFM2-VL: as Qwen's, but bilinearly, of 64 to 256 rows (64 to 256 times 32 x 32 pixels). A picture of more than twice the
 * pixels of a tile (512 x 512) is also cut: it is stretched to a grid of 2 to 10 tiles, that whose aspect is the nearest,
 * and the view of the whole comes after them.
 *
 * InternVL: stretched to the grid of 1 to 12 tiles (448 x 448) whose aspect is the nearest, bicubically; of more than one
 * tile, the whole as one tile comes after them.
 *
 * MiniCPM-V: the whole at the area of 448 x 448 pixels, in whole patches, upwards too where it is alone. Of a picture of
 * more than that area 2 to 9 slices follow, each at that area, of the grid whose aspect is the nearest; bicubically.
 *
 * Gemma 4: stretched, bicubically, to as many whole blocks (48 x 48) as its aspect and 280 rows allow, upwards too. */
#ifndef TN_MEDIA_MEDIUM_H
#define TN_MEDIA_MEDIUM_H

#include "media/pixels.h"
#include "model/tower.h"
#include "text/segments.h"

enum { TN_MEDIUM_VIEWS = 257, /* at most */ TN_VIEW_KEY = 32 };

/* A view is what an encoder reads at once. */
typedef struct tn_view {
    int32_t width, height; /* pixels */
    int32_t n_rows;        /* of the prompt */
    size_t at;             /* of its pixels in rgb */
    int32_t columns;       /* rows of a line, where they have places on several axes; else 0 */
} tn_view;

typedef struct tn_medium {
    tn_ctx *ctx;
    tn_tower_kind kind;
    int32_t rows,
        columns; /* of the grid of tiles in front of the view of the whole (MiniCPM-V: after it); 0: it is alone */
    int32_t n_views;
    tn_view *views; /* [n_views], owned */
    uint8_t *rgb;   /* of all views, [height][width][3] each; owned */
} tn_medium;

tern_status tn_medium_make(tn_ctx *ctx, const tn_tower_shape *s, const tn_picture *p, bool one_view,
                           tn_medium *out, tern_error *err);
void tn_medium_free(tn_medium *m); /* NULL-safe */

/* What a family's template writes for a picture; of the marks of it, the tokens that begin and end them (each
 * has them, but for what numbers it) and the one that stands for a row. */
const char *tn_medium_mark(tn_tower_kind kind);
const char *tn_medium_begin(tn_tower_kind kind);
const char *tn_medium_end(tn_tower_kind kind);
const char *tn_medium_row(tn_tower_kind kind);
/* What stands between a picture and the text after it where no template says it. */
const char *tn_medium_apart(tn_tower_kind kind);
/* Appends the marks of a medium, which is the number-th of the prompt from 0 on: bytes of the template. */
void tn_medium_marks(const tn_medium *m, int32_t number, tn_segments *out);
int32_t tn_medium_rows(const tn_medium *m); /* of all views */

/* SHA-256 of a view's size and pixels, and of those and the tower's fingerprint: what makes its rows. key may
 * be pixels. */
void tn_view_pixels(const tn_medium *m, int32_t view, uint8_t pixels[TN_VIEW_KEY]);
void tn_view_key(const uint8_t pixels[TN_VIEW_KEY], uint64_t tower, uint8_t key[TN_VIEW_KEY]);

#endif
