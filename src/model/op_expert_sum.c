/* EXPERT_SUM: branch = sum over the row's experts of weight * what they gave, in order of their numbers; with a
 * shared expert they are added to what that one left there, times its weight; then a bias, where there is one. */
#include "model/experts.h"

#include <string.h>

static void rows(const tn_op *op, const tn_frame *f, int32_t row0, int32_t row1, float *scratch) {
    (void)scratch;
    int32_t used = op->experts.used;
    size_t n_embd = (size_t)op->experts.n_embd;
    for (int32_t r = row0; r < row1; r++) {
        const float *chosen = tn_frame_row(f, TN_BUF_CHOSEN, tn_chosen_width(used), r),
                    *given = tn_frame_row(f, op->in, used * op->experts.n_embd, r);
        float *branch = tn_frame_row(f, op->out, op->width, r);
        if (!op->experts.shared) memset(branch, 0, n_embd * sizeof *branch);
        for (size_t i = 0; op->experts.shared_gate && i < n_embd; i++) branch[i] *= chosen[3 * used];
        for (int32_t k = 0; k < used; k++)
            f->r->kern->add_f32(branch, given + (ptrdiff_t)tn_chosen_place(chosen, k) * (ptrdiff_t)n_embd,
                                tn_chosen_weight(chosen, k), n_embd);
        if (op->experts.out_bias)
            f->r->kern->add_f32(branch, tn_model_vector(f->m, op->layer, TN_W_EXPERTS_OUT_B), 1, n_embd);
    }
}

static void cost(const tn_op *op, int32_t n_rows, int32_t pos0, tn_cost *c) {
    (void)pos0;
    double e = op->experts.n_embd;
    c->macs = n_rows * e * (op->experts.used + op->experts.shared_gate);
    c->values = n_rows * e;
    c->bytes = 4 * n_rows * e * (op->experts.used + 2);
}

const tn_op_info tn_op_expert_sum = {"expert sum", rows, cost};
