/* HEADS: a linear of every head: its n outputs are rows of a weight of its own times k of the head's inputs, which lie
 * in_stride apart, as the outputs lie out_stride apart. Latent attention multiplies queries into latents with it, and
 * makes values of what heads give. Where in_stride is 0, all heads read the same inputs. It reads float panels, or blocks by rows of activations in INT8 (blocks_s8.h). */
#include "model/op.h"

#include <assert.h>

enum { ROWS = 16, MOST_CHUNKS = 4 };

/* Channels n0 .. n0 + n - 1 by whole panels: products begin where one does. out [][ldo] begins with channel n0. */
static void by_panels(const tn_op *op, const tn_kernels *kern, const tn_linear *l, const float *in,
                      float *out, size_t m, size_t n0, size_t n) {
    float tile[ROWS * TN_PANEL_N];
    for (size_t p = n0 / TN_PANEL_N * TN_PANEL_N; p < n0 + n; p += TN_PANEL_N) {
        const size_t end = p + TN_PANEL_N < (size_t)l->n ? p + TN_PANEL_N : (size_t)l->n;
        kern->gemm_f32[l->dtype](in, (size_t)op->in_width, l->panels, NULL, tile - p, TN_PANEL_N, m, p, end,
                                 (size_t)op->heads.k);
        for (size_t i = 0; i < m; i++)
            for (size_t c = p < n0 ? n0 : p; c < end && c < n0 + n; c++)
                out[i * (size_t)op->width + c - n0] = tile[i * TN_PANEL_N + c - p];
    }
}

/* Rows of a head, few enough that its inputs in INT8 lie on the stack. */
static void few_rows(const tn_op *op, const tn_kernels *kern, const tn_linear *l, int32_t head,
                     const float *in, float *out, size_t m) {
    const size_t k = (size_t)op->heads.k, n = (size_t)op->heads.n, n0 = (size_t)head * n;
    in += head * op->heads.in_stride;
    out += head * op->heads.out_stride - head * op->heads.n; /* products count channels of all heads */
    if (!l->blocks && n % TN_PANEL_N) {
        by_panels(op, kern, l, in, out + n0, m, n0, n);
        return;
    }
    if (!l->blocks) {
        kern->gemm_f32[l->dtype](in, (size_t)op->in_width, l->panels, NULL, out, (size_t)op->width, m, n0,
                                 n0 + n, k);
        return;
    }
    tn_blocks_act acts[ROWS * MOST_CHUNKS];
    assert(tn_blocks_n_chunks(k) <= MOST_CHUNKS);
    for (size_t i = 0; i < m; i++)
        kern->blocks_quantise(l->blocks_type, in + i * (size_t)op->in_width, k, acts + i, m);
    kern->blocks_gemm(&(tn_blocks_args){.type = l->blocks_type,
                                        .tiles = l->blocks,
                                        .a = acts,
                                        .out = out,
                                        .ldo = (size_t)op->width,
                                        .m = m,
                                        .n = (size_t)l->n,
                                        .k = k,
                                        .n0 = n0,
                                        .n1 = n0 + n});
}

static void some(const tn_op *op, const tn_frame *f, int32_t row0, int32_t row1, int32_t head0,
                 int32_t head1) {
    const tn_linear *l = tn_model_linear(f->m, op->layer, op->heads.role);
    for (int32_t head = head0; head < head1; head++)
        for (int32_t i = row0; i < row1; i += ROWS)
            few_rows(op, f->r->kern, l, head, tn_frame_row(f, op->in, op->in_width, i),
                     tn_frame_row(f, op->out, op->width, i), (size_t)(row1 - i < ROWS ? row1 - i : ROWS));
}

void tn_heads_run(const tn_op *op, const tn_frame *f, int32_t n_rows, int32_t head0, int32_t head1) {
    some(op, f, 0, n_rows, head0, head1);
}

static void rows(const tn_op *op, const tn_frame *f, int32_t row0, int32_t row1, float *scratch) {
    (void)scratch;
    some(op, f, row0, row1, 0, op->heads.n_heads);
}

static void cost(const tn_op *op, int32_t n_rows, int32_t pos0, tn_cost *c) {
    (void)pos0;
    double weights = (double)op->heads.n_heads * op->heads.n * op->heads.k;
    c->macs = n_rows * weights;
    c->values = (double)n_rows * op->width; /* beside rotated values of queries, which stay */
    c->bytes =
        weights + 4.0 * n_rows * (op->heads.in_stride ? op->heads.n_heads : 1) * op->heads.k + 4 * c->values;
}

const tn_op_info tn_op_heads = {"heads", rows, cost};
