/* model/axes.h - where the rows of a text stand on the axes of rope: time, down and across.
 *
 * A token stands at one position on all of them, the one after the row before it. Rows of a picture form a grid, line by
 * line: all of them stand at the time that a token would have had there, and as much further down and across as their
 * line and column are. What follows a picture goes on after its longer side. So a text with pictures has positions that
 * are not those of its slots, and what comes after a row, its "next", follows from the rows before it alone.
 *
 * Models without axes, and texts before their first picture, have no tn_row_axes: rows stand at their slots' positions. */
#ifndef TN_MODEL_AXES_H
#define TN_MODEL_AXES_H

#include "model/rows.h"
#include "model/tree.h"

/* The next of a text after a row of this id, where its next was `next` before the row. */
int32_t tn_axes_next(const tn_extra_rows *e, int32_t id, int32_t next);
/* Fills out [n] for the rows of these ids, the first of them in slot pos0. Returns false, and out is not filled, where
 * all of them stand at their slots' positions and nothing is added to them. e may be NULL: there are no pictures. */
bool tn_axes_of(const tn_hparams *h, const tn_extra_rows *e, const int32_t *ids, int32_t n,
                const tn_tree *tree, int32_t pos0, int32_t next, tn_row_axes *out);

#endif
