/* ATTEND: out[row][head] = softmax(q[row][head] k^T * scale, soft-capped where the model says so) v over
 * the positions the row sees: its own and those before it, at most `window` of them; or, where `both`, those of the
 * whole text, of a window the half on either side; or those of its chunk of `window` positions. Query heads of one
 * group share K and V. A head's sink is one more score, without a value: it takes its share of the
 * softmax. Long prompts may attend sparsely instead: attention/. */
#include "model/op.h"

static void rows(const tn_op *op, const tn_frame *f, int32_t row0, int32_t row1, float *scratch) {
    for (int32_t head = 0; head < op->attend.n_heads; head++)
        tn_rows_attention(f->r, op->layer, tn_op_sinks(op, f), head, f->buf[op->in], f->buf[op->out], row0,
                          row1, scratch);
}

/* Positions that the rows see, together. */
static double seen(const tn_op *op, int32_t n_rows, int32_t pos0) {
    double sum = 0;
    int32_t window = op->attend.window, side = window / 2, n = pos0 + n_rows;
    for (int32_t i = 0; i < n_rows; i++) {
        int32_t all = pos0 + i + 1, after = n - all;
        if (op->attend.both && window)
            sum += 1 + (side < all - 1 ? side : all - 1) + (side < after ? side : after);
        else if (op->attend.both) sum += n;
        else if (window && op->attend.chunks) sum += (all - 1) % window + 1;
        else sum += window && window < all ? window : all;
    }
    return sum;
}

static void cost(const tn_op *op, int32_t n_rows, int32_t pos0, tn_cost *c) {
    int32_t last = pos0 + n_rows, first = op->attend.window && pos0 >= op->attend.window && !op->attend.both
                                              ? pos0 - op->attend.window + 1
                                              : 0; /* positions that any row reads */
    if (op->attend.window && op->attend.chunks) first = pos0 / op->attend.window * op->attend.window;
    double d = op->attend.d_head, q = op->attend.n_heads * d;
    c->macs = 2 * q * seen(op, n_rows, pos0);
    c->values = n_rows * q;
    c->bytes = 8 * n_rows * q + 8 * d * op->attend.n_kv_heads * (last - first);
}

const tn_op_info tn_op_attend = {"attention", rows, cost};
