/* model/tower_judge.h - whether an encoder of pictures computes in INT8 when nobody says how: its rows of a built-in
 * drawing are compared with those in floats. Trained encoders differ in how much INT8 changes what they see, and no file
 * says it.
 *
 * The drawing is small first. Where its rows are far from both limits, on either side, the verdict is known; otherwise
 * a larger one decides, at last one as large as the encoder's pictures. A large one takes as long as a picture in floats. */
#ifndef TN_MODEL_TOWER_JUDGE_H
#define TN_MODEL_TOWER_JUDGE_H

#include "model/tower.h"

/* Cosines of rows in INT8 to those in floats; of deepstack's slices apart. */
typedef struct tn_tower_verdict {
    float mean, least;
} tn_tower_verdict;

enum { TN_TOWER_VERDICT = 2 }; /* version of the drawing, of INT8 in towers, and of what a verdict is */

#define TN_TOWER_MEAN 0.999f /* INT8 is taken from these on */
#define TN_TOWER_LEAST 0.99f

static inline bool tn_tower_holds(tn_tower_verdict v) {
    return v.mean >= TN_TOWER_MEAN && v.least >= TN_TOWER_LEAST;
}
/* Whether no larger drawing is needed: what is lost is below 2/5 of what either limit allows, or above 5/2 of
 * it. The loss by a large drawing was mostly within a third of a small one's. */
bool tn_tower_is_clear(tn_tower_verdict v);

/* How an encoder is opened, and by what it computes. Progress of ctx is told as stage "encoder". */
typedef struct tn_tower_judging {
    tn_ctx *ctx;
    const tn_kernels *kern;
    tn_pool *pool;
    tern_status (*open)(void *user, tn_tower_scheme scheme, tn_tower **out, tern_error *err);
    void *user;
} tn_tower_judging;

/* *t: the encoder in a form, or NULL; afterwards it is open in one of them, or NULL. One is in memory at a time. */
tern_status tn_tower_judge(const tn_tower_judging *j, tn_tower **t, tn_tower_verdict *out, tern_error *err);

enum { TN_TOWER_DRAWINGS = 3 };
/* Sizes of the drawings, in whole blocks of patches: some 256 x 256 pixels, then 384 x 384, unless the family has tiles
 * that are hardly larger, then a tile. Returns how many. */
int tn_tower_drawings(const tn_tower_shape *s, tn_tower_size out[TN_TOWER_DRAWINGS]);
/* Draws rgb [height][width][3]: lines of small signs, coloured buttons, a disc in shades, noise. */
void tn_tower_draw(uint8_t *rgb, tn_tower_size z);
/* Of n rows of `width` values each. Rows of zeros alone are equal if both are. */
tn_tower_verdict tn_tower_compare(const float *a, const float *b, size_t n, size_t width);

#endif
