/* npu/scalar.c - the device that defines the arithmetic: one element at a time, weights row by row,
 * sharing no code with the kernels that it is the reference for. Jobs run inside submit. */
#include "npu/backend.h"

#include <math.h>

/* rintf rounds half to even in the default rounding mode. */
static int32_t requantise(float y) {
    float q = rintf(y);
    if (q != q) return 0;
    return q > 127 ? 127 : q < -127 ? -127 : (int32_t)q;
}

static void run_op(const tn_npu_job *j, int32_t i_op) {
    const tn_npu_graph *g = j->graph;
    const tn_npu_op *op = &g->desc.ops[i_op];
    const int8_t *w = tn_npu_op_tiles(j, i_op); /* [N][K]: tiles of 1x1 */
    const float *scale = g->scale[i_op], *bias = g->bias[i_op];
    for (int32_t m = 0; m < j->n_rows; m++) {
        const uint8_t *in = tn_npu_op_in(j, i_op) + (size_t)m * g->desc.in_stride;
        for (int32_t n = 0; n < tn_npu_op_cols(j, i_op); n++) {
            int32_t acc = 0; /* 128 * 127 * 65536 < 2^30 */
            for (int32_t k = 0; k < g->desc.k; k++) acc += (in[k] - 128) * w[(size_t)n * g->desc.k + k];
            size_t at = (size_t)m * op->out_stride + n;
            if (op->out == TN_NPU_OUT_S32) { /* without factors */
                ((int32_t *)j->out[i_op])[at] = acc;
                continue;
            }
            float y = bias ? fmaf((float)acc, scale[n], bias[n]) : (float)acc * scale[n];
            switch (op->out) {
            case TN_NPU_OUT_U8: ((uint8_t *)j->out[i_op])[at] = (uint8_t)(128 + requantise(y)); break;
            case TN_NPU_OUT_S8: ((int8_t *)j->out[i_op])[at] = (int8_t)requantise(y); break;
            default: ((float *)j->out[i_op])[at] = y;
            }
        }
    }
}

static void submit(tn_npu_device *d, tn_npu_job *j) {
    for (int32_t i = 0; i < j->graph->desc.n_ops; i++) run_op(j, i);
    tn_npu_complete(d, j, TERN_OK);
}

static tern_status open_device(tn_npu_device *d, const tn_npu_options *opt, tern_error *err) {
    (void)opt;
    (void)err;
    d->caps.layout = (tn_npu_layout){TN_NPU_LAYOUT_ROWS, 1, 1};
    d->caps.max_m = 4096;
    d->caps.max_n = 1 << 20;
    d->caps.max_k = 65536;
    d->caps.efficient_m = 1;
    d->caps.out_forms = (1u << TN_NPU_N_OUTS) - 1;
    return TERN_OK;
}

static void close_device(tn_npu_device *d) { (void)d; }

const tn_npu_backend tn_npu_scalar = {
    .name = "scalar", .open = open_device, .close = close_device, .submit = submit};
