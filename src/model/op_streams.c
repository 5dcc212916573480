/* STREAMS: X's first stream is the token's embedding; the others become what linears made of it, scaled so that
 * each is as large as it (root of the mean square). One that is next to nothing is not blown up. */
#include "model/op.h"

#include <math.h>
#include <string.h>

static const float LEAST = 1e-5f; /* mean square, as the published model has it */

static float size_of(const float *x, int32_t n) {
    double sum = 0;
    for (int32_t i = 0; i < n; i++) sum += (double)x[i] * (double)x[i];
    return (float)(sum / n);
}

float tn_stream_ratio(const float *first, const float *x, int32_t n) {
    return sqrtf(size_of(first, n)) / sqrtf(fmaxf(size_of(x, n), LEAST));
}

static void rows(const tn_op *op, const tn_frame *f, int32_t row0, int32_t row1, float *scratch) {
    (void)scratch;
    int32_t e = op->in_width;
    for (int32_t r = row0; r < row1; r++) {
        float *x = tn_frame_row(f, op->out, op->width, r);
        for (int32_t s = 1; s < TN_STREAMS; s++) {
            const float *own = tn_frame_row(f, (tn_buffer)(op->in + s - 1), e, r);
            float by = tn_stream_ratio(x, own, e), *to = x + (ptrdiff_t)s * e;
            for (int32_t i = 0; i < e; i++) to[i] = own[i] * by;
        }
    }
}

static void cost(const tn_op *op, int32_t n_rows, int32_t pos0, tn_cost *c) {
    (void)pos0;
    c->values = (double)n_rows * op->width;
    c->macs = 2 * c->values - (double)n_rows * op->in_width; /* squares of all, sizes of the others */
    c->bytes = 12 * c->values;
}

const tn_op_info tn_op_streams = {"streams", rows, cost};
