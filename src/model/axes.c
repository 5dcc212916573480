#include "model/axes.h"

enum { MOST = 1 << 30 }; /* ids that no prompt has may repeat a picture's first row for ever */

static const tn_extra_span *grid_of(const tn_extra_rows *e, int32_t id) {
    const tn_extra_span *s = e && id >= e->first ? tn_extra_span_of(e, id) : NULL;
    return s && s->columns > 0 ? s : NULL;
}

static int32_t longer_side(const tn_extra_span *s) {
    const int32_t lines = s->n / s->columns;
    return lines > s->columns ? lines : s->columns;
}

/* Where the picture of a row begins: what is next counts its longer side from its first row on. */
static int32_t start_of(const tn_extra_span *s, int32_t id, int32_t next) {
    return id == s->first ? next : next - longer_side(s);
}

int32_t tn_axes_next(const tn_extra_rows *e, int32_t id, int32_t next) {
    const tn_extra_span *s = grid_of(e, id);
    const int32_t then = s ? start_of(s, id, next) + longer_side(s) : next + 1;
    return then < MOST ? then : MOST;
}

static tn_row_axes axes_of(const tn_hparams *h, const tn_extra_rows *e, int32_t id, int32_t next) {
    const tn_extra_span *s = grid_of(e, id);
    if (!s) return (tn_row_axes){{next, next, next}, NULL};
    const int32_t row = id - s->first, start = start_of(s, id, next);
    const float *x = tn_extra_row(e, id);
    return (tn_row_axes){{start, start + row / s->columns, start + row % s->columns},
                         h->n_deepstack && x ? x + h->n_embd : NULL};
}

bool tn_axes_of(const tn_hparams *h, const tn_extra_rows *e, const int32_t *ids, int32_t n,
                const tn_tree *tree, int32_t pos0, int32_t next, tn_row_axes *out) {
    bool any = next != pos0;
    if (!tn_has_axes(h)) return false;
    for (int32_t i = 0; e && !any && i < n; i++) any = grid_of(e, ids[i]);
    for (int32_t i = 0; any && i < n; i++) {
        out[i] = axes_of(h, e, ids[i], tree ? next + tree->depth[i] : next);
        if (!tree) next = tn_axes_next(e, ids[i], next);
    }
    return any;
}
