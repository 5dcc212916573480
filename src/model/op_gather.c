/* GATHER: every row gets a place with each of its experts (experts.h), and gathered = the row as they read
 * it, times the weight of its one expert where that is so (Llama 4), which then gives as much as it gives. Its rows need the choices of all rows of the frame: it runs on the whole chunk's, never on a slice. */
#include "model/experts.h"

#include <string.h>

void tn_experts_count(const tn_frame *f, int32_t n, int32_t used, int32_t *first) {
    memset(first, 0, ((size_t)n + 1) * sizeof *first);
    for (int32_t r = 0; r < f->r->n_rows; r++) {
        const float *chosen = tn_frame_row(f, TN_BUF_CHOSEN, tn_chosen_width(used), r);
        for (int32_t k = 0; k < used; k++) first[tn_chosen_expert(chosen, k) + 1]++;
    }
    for (int32_t e = 0; e < n; e++) first[e + 1] += first[e];
}

static void rows(const tn_op *op, const tn_frame *f, int32_t row0, int32_t row1, float *scratch) {
    (void)scratch;
    int32_t used = op->experts.used, next[TN_MAX_EXPERTS + 1];
    tn_experts_count(f, op->experts.n, used, next);
    for (int32_t r = 0; r < row1; r++) {
        float *chosen = tn_frame_row(f, TN_BUF_CHOSEN, tn_chosen_width(used), r);
        for (int32_t k = 0; k < used; k++) {
            int32_t place = next[tn_chosen_expert(chosen, k)]++;
            if (r >= row0) chosen[3 * k + 2] = (float)(place - r * used);
        }
        if (r < row0) continue;
        float *out = tn_frame_row(f, op->out, op->width, r);
        memcpy(out, tn_frame_row(f, op->in, op->width, r), (size_t)op->width * sizeof *out);
        for (int32_t i = 0; op->experts.before && i < op->width; i++) out[i] *= chosen[1];
        if (op->experts.before) chosen[1] = 1;
    }
}

static void cost(const tn_op *op, int32_t n_rows, int32_t pos0, tn_cost *c) {
    (void)pos0;
    c->macs = op->experts.before ? (double)n_rows * op->width : 0;
    c->values = (double)n_rows * (op->width + op->experts.used);
    c->bytes = 8 * c->values;
}

const tn_op_info tn_op_gather = {"gather", rows, cost};
