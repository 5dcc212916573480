/* model/tower.h - the encoder of pictures beside a language model: tiles of pixels in, rows of the prompt out.
 *
 * It is read from the GGUF file ("mmproj") or the Hugging Face folder that holds it, and computes with the float kernels of the text model, so
 * every instruction set gives the same bits and a tile's rows do not depend on the tiles beside it. The towers are
 * SigLIP's; families differ in where patches stand and in what becomes of them.
 *
 *   patches   [n][3 * patch * patch] x patch^T + bias + position            n = (width / patch) (height / patch)
 *   layers    x += out(attention(q, k, v of LN1(x)));  x += down(gelu(up(LN2(x))))
 *   rows      n / shuffle^2 of the model's width, after a last LN:
 *     Idefics3 (SmolVLM)   fc(shuffle x shuffle neighbours side by side)
 *     Gemma 3              fc(RMS norm of the mean of shuffle x shuffle neighbours)
 *     Qwen3-VL             fc2(gelu(fc1(shuffle x shuffle neighbours side by side)))
 *     LFM2-VL, InternVL    the same, after a layer norm of the neighbours (LFM2-VL: in files that have one)
 *
 * Qwen3-VL reads pictures of any size in whole blocks of shuffle x shuffle patches. Its positions are a square table,
 * interpolated bilinearly over the picture, and queries and keys are rotated besides: the first half of a head's pairs by
 * the patch's line, the second by its column. Some layers (deepstack) are read too: LN of the neighbours side by side,
 * then fc2(gelu(fc1())); these rows stand after the last layer's in each row, and layers of the language model add them.
 * The kernel of its patches has two moments of a film, which a picture shows both: their sum.
 *
 * Qwen2.5-VL is like it, with other layers: RMS norms, down(silu(gate) * up), no table of positions, and but for every
 * full_every-th layer, a patch sees the patches of its window of the picture alone.
 *
 * LFM2-VL reads views of any size as well. Its square table of positions is resized to a view's patches as PyTorch's
 * antialiased bilinear interpolation does it: pixels have centres, and a smaller table is averaged.
 *
 * InternVL's has one row more than patches (the class), which every row sees and which nothing is made of; what
 * attention and the feed-forward add is scaled channel by channel; GELU is the exact one; there is no last LN.
 *
 * Gemma 4's has RMS norms before and after attention and feed-forward, norms of every head's queries, keys and values
 * (values' without weights), and scores that are not scaled. A patch stands at the sum of a place of its column's table
 * and one of its line's; heads are rotated, their first half by the column, the second by the line. Linears may have
 * limits of what they read and give. A row is the mean of neighbours times sqrt(width), less a bias and scaled in files
 * that say so, its RMS norm without weights, and a linear.
 *
 * MiniCPM-V's reads views of any size. A patch takes the place of the table's line and column that it lies in, whatever
 * their number. Learned queries, as many for every view, attend to the patches (keys have sines and cosines of their
 * column and line added to them), in heads of 128; an LN and a linear make the rows of them.
 *
 * A tower is immutable once open. */
#ifndef TN_MODEL_TOWER_H
#define TN_MODEL_TOWER_H

#include "base/pause.h"
#include "base/pool.h"
#include "kernels/kernels.h"

#include <stdatomic.h>

typedef struct tn_tower tn_tower;

typedef enum tn_tower_kind {
    TN_TOWER_IDEFICS3,
    TN_TOWER_GEMMA3,
    TN_TOWER_QWEN25VL,
    TN_TOWER_QWEN3VL,
    TN_TOWER_LFM2,
    TN_TOWER_INTERNVL,
    TN_TOWER_GEMMA4,
    TN_TOWER_MINICPM,
    TN_N_TOWER_KINDS
} tn_tower_kind;

enum {
    TN_TOWER_LAYERS = 256,
    TN_TOWER_DEEP = 16
}; /* at most, and of those that are read beside the last one */

/* What an mmproj file says of the tower and of the pictures that it wants. */
typedef struct tn_tower_shape {
    tn_tower_kind kind;
    int32_t image,
        patch; /* side of a tile, or of what the table of positions is for, and of a patch, in pixels */
    int32_t n_layers, n_heads, width, ff;
    int32_t shuffle; /* neighbours of a side that become one row */
    int32_t out;     /* width of the rows: the text model's */
    int32_t longest; /* longest side that pictures are brought to before they are cut into tiles */
    float eps;
    float mean[3], std[3]; /* of red, green and blue, of values from 0 to 1 */
    int32_t n_deep;        /* layers that are read beside the last one: bits of `deep` */
    uint64_t deep[TN_TOWER_LAYERS / 64];
    int64_t min_pixels, max_pixels; /* that pictures of any size are brought to; 0: there are tiles */
    int32_t window, full_every; /* side of a window in pixels, and layers without windows; 0: none has them */
    /* What follows chooses the views and changes no row of a view; the fingerprint has none of it. */
    int32_t tile; /* side of the tiles that a large picture is cut into, in pixels; 0: `image` */
    int32_t min_tiles, max_tiles; /* of the grid that is the nearest to a picture's aspect; 0: another rule */
    /* What the tensors tell, which the fingerprint has. */
    int32_t queries; /* rows of every view, whatever its size; 0: as many as its blocks */
    int32_t places;  /* side of the table of positions; 0: image / patch */
} tn_tower_shape;

/* Rows have places on three axes of rope, heads are rotated by them, and a picture is a film of two moments. */
static inline bool tn_tower_has_axes(tn_tower_kind k) {
    return k == TN_TOWER_QWEN25VL || k == TN_TOWER_QWEN3VL;
}
/* Heads are rotated by the places of patches. */
static inline bool tn_tower_turns_heads(tn_tower_kind k) {
    return tn_tower_has_axes(k) || k == TN_TOWER_GEMMA4;
}
/* Views have any size in whole blocks of patches. */
static inline bool tn_tower_any_size(tn_tower_kind k) {
    return tn_tower_turns_heads(k) || k == TN_TOWER_LFM2 || k == TN_TOWER_MINICPM;
}

/* Pixels of a tile. */
typedef struct tn_tower_size {
    int32_t width, height;
} tn_tower_size;

static inline int32_t tn_tower_side(const tn_tower_shape *s) { return s->image / s->patch; } /* in patches */
static inline tn_tower_size tn_tower_tile(const tn_tower_shape *s) {
    return (tn_tower_size){s->image, s->image};
}
/* Rows of a tile: so many columns of them, and all. */
static inline int32_t tn_tower_columns(const tn_tower_shape *s, tn_tower_size z) {
    return z.width / s->patch / s->shuffle;
}
static inline int32_t tn_tower_rows(const tn_tower_shape *s, tn_tower_size z) {
    return s->queries ? s->queries : z.height / s->patch / s->shuffle * tn_tower_columns(s, z);
}
static inline int32_t tn_tower_row_width(const tn_tower_shape *s) { return s->out * (1 + s->n_deep); }
static inline bool tn_tower_is_deep(const tn_tower_shape *s, int32_t layer) {
    return s->deep[layer / 64] >> layer % 64 & 1;
}

/* How layers compute: in floats, or in INT8 (model/tower_s8.h). */
typedef enum tn_tower_scheme { TN_TOWER_FLOAT, TN_TOWER_INT8 } tn_tower_scheme;

/* Opens a file, or a Hugging Face folder that holds an encoder with its language model. n_embd: the text model's width, which the rows must have; 0: any. What would change the result and is
 * not known (a key, a tensor, a projector) is refused by its name, before any weight is read. */
tern_status tn_tower_open(tn_ctx *ctx, tn_pool *pool, const char *path, int32_t n_embd,
                          tn_tower_scheme scheme, tn_tower **out, tern_error *err);
/* The same over the caller's bytes, which are not needed afterwards. */
tern_status tn_tower_open_memory(tn_ctx *ctx, tn_pool *pool, const void *data, uint64_t n_bytes,
                                 int32_t n_embd, tn_tower_scheme scheme, tn_tower **out, tern_error *err);
/* The same over pages of a mapped file, which leave memory as they are read. Whoever mapped it asks
 * afterwards whether it was written to. */
tern_status tn_tower_open_mapped(tn_ctx *ctx, tn_pool *pool, const void *data, uint64_t n_bytes,
                                 int32_t n_embd, tn_tower_scheme scheme, tn_tower **out, tern_error *err);
void tn_tower_close(tn_tower **t);
/* Checks the metadata of a file or a folder as opening does: keys, and names, types and sizes of tensors.
 * *out has no weights: it tells its shape and what it needs, and encodes nothing. */
tern_status tn_tower_peek(tn_ctx *ctx, const char *path, int32_t n_embd, tn_tower **out, tern_error *err);
tern_status tn_tower_peek_memory(tn_ctx *ctx, const void *data, uint64_t n_bytes, int32_t n_embd,
                                 tn_tower **out, tern_error *err);
/* Memory of an encoder in a form, of one that was only looked at too. */
typedef struct tn_tower_need {
    uint64_t weight_bytes;
    uint64_t reading_bytes; /* besides, while they are read */
    uint64_t work_bytes;    /* besides, while a picture of that size is encoded */
} tn_tower_need;
tn_tower_need tn_tower_needs(const tn_tower *t, const tn_kernels *kern, int n_threads, tn_tower_scheme scheme,
                             tn_tower_size size);
/* TERN_E_INVALID: rows of `out` values are not of a model that is n_embd wide (0: any is good). */
tern_status tn_tower_fits(const char *path, int32_t out, int32_t n_embd, tern_error *err);

/* Whether a folder's config.json is of a model with an encoder that is read; why tells where it is not, or may be NULL. */
bool tn_tower_in_folder(const char *folder, tern_error *why);
/* That encoder as the bytes of an mmproj file, to be freed with tn_free. */
tern_status tn_tower_folder_bytes(tn_ctx *ctx, const char *folder, uint8_t **bytes, uint64_t *n_bytes,
                                  tern_error *err);

const tn_tower_shape *tn_tower_shape_of(const tn_tower *t);
/* Of the shape, all weights and the scheme: rows of equal pixels and equal fingerprints are equal. */
uint64_t tn_tower_fingerprint(const tn_tower *t);
tn_tower_scheme tn_tower_scheme_of(const tn_tower *t);
uint64_t tn_tower_bytes(const tn_tower *t); /* of its weights in memory */

/* Pictures that are encoded from now on tell their progress as that stage, from .. to of it; NULL (default): none. */
void tn_tower_tell(tn_tower *t, const char *stage, double from, double to);

/* rows [tn_tower_rows][tn_tower_row_width] of a tile rgb [height][width][3], or of a smaller piece in whole
 * blocks, which has the places of the tile's upper left corner. cancel and pause may be NULL; both are asked
 * before every layer. */
tern_status tn_tower_encode(const tn_tower *t, const tn_kernels *kern, tn_pool *pool, const uint8_t *rgb,
                            tn_tower_size size, const atomic_bool *cancel, const tn_pause *pause, float *rows,
                            tern_error *err);

#endif
