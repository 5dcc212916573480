/* LOW: the products of low rank of RWKV-7: out = act(lerp(x) W1^T) W2^T + bias, each of its pairs with a mixture of the
 * row and the one before of its own. They make decays (with tanh between), rates, the share of the first layer's
 * values, and gates (with a sigmoid between). Weights are float panels, or blocks by rows of activations in INT8
 * (blocks_s8.h). A pair mixes its rows in its own part of DELTA_MIXED, which nobody reads yet. */
#include "model/op.h"

#include <assert.h>

enum { ROWS = 8, ACTS = 128 };
_Static_assert((int)ACTS *(int)TN_BLOCKS_CHUNK >= (int)TN_MAX_WKV, "a row's inputs in INT8 fit");
_Static_assert((int)TN_LOW_PAIRS <= (int)TN_WKV_KEYS, "a part of DELTA_MIXED for every pair");

static void project(const tn_kernels *kern, const tn_linear *l, const float *in, size_t ld, float *out,
                    size_t ldo, size_t m) {
    const size_t k = (size_t)l->k, n = (size_t)l->n;
    if (!l->blocks) {
        kern->gemm_f32[l->dtype](in, ld, l->panels, NULL, out, ldo, m, 0, n, k);
        return;
    }
    tn_blocks_act acts[ACTS];
    const size_t most = ACTS / tn_blocks_n_chunks(k);
    for (size_t at = 0, some; at < m; at += some) {
        some = m - at < most ? m - at : most;
        for (size_t i = 0; i < some; i++)
            kern->blocks_quantise(l->blocks_type, in + (at + i) * ld, k, acts + i, some);
        kern->blocks_gemm(&(tn_blocks_args){.type = l->blocks_type,
                                            .tiles = l->blocks,
                                            .a = acts,
                                            .out = out + at * ldo,
                                            .ldo = ldo,
                                            .m = some,
                                            .n = n,
                                            .k = k,
                                            .n0 = 0,
                                            .n1 = n});
    }
}

static void few_rows(const tn_op *op, const tn_frame *f, const tn_low_pair *p, int32_t part, int32_t row0,
                     int32_t n) {
    const int32_t e = op->in_width, mixed = op->low.mixed, values = op->low.values;
    float hidden[ROWS * TN_MAX_LOW], *lerp = tn_frame_row(f, TN_BUF_DELTA_MIXED, mixed, row0) + part * values,
                                     *out = tn_frame_row(f, p->out, values, row0);
    const float *share = tn_model_vector(f->m, op->layer, p->lerp),
                *bias = p->bias == TN_W_N_ROLES ? NULL : tn_model_vector(f->m, op->layer, p->bias);
    for (int32_t i = 0; i < n; i++)
        tn_lerp(tn_frame_row(f, op->in, e, row0 + i), tn_frame_row(f, TN_BUF_SHIFT, e, row0 + i), share,
                lerp + (size_t)i * (size_t)mixed, e);
    project(f->r->kern, tn_model_linear(f->m, op->layer, p->first), lerp, (size_t)mixed, hidden,
            (size_t)p->rank, (size_t)n);
    if (p->kind == TN_LOW_SIGMOID) f->r->kern->act_f32(TN_ACT_SIGMOID, hidden, (size_t)(n * p->rank));
    for (int32_t i = 0; p->kind == TN_LOW_TANH && i < n * p->rank; i++) hidden[i] = tn_tanhf(hidden[i]);
    project(f->r->kern, tn_model_linear(f->m, op->layer, p->second), hidden, (size_t)p->rank, out,
            (size_t)values, (size_t)n);
    for (int32_t i = 0; bias && i < n; i++)
        for (int32_t c = 0; c < values; c++) out[(size_t)i * (size_t)values + (size_t)c] += bias[c];
}

void tn_low_run(const tn_op *op, const tn_frame *f, int32_t pair, int32_t row0, int32_t row1) {
    for (int32_t i = row0; i < row1; i += ROWS)
        few_rows(op, f, &op->low.pairs[pair], pair, i, row1 - i < ROWS ? row1 - i : ROWS);
}

static void rows(const tn_op *op, const tn_frame *f, int32_t row0, int32_t row1, float *scratch) {
    (void)scratch;
    for (int32_t pair = 0; pair < op->low.n; pair++) tn_low_run(op, f, pair, row0, row1);
}

static void cost(const tn_op *op, int32_t n_rows, int32_t pos0, tn_cost *c) {
    (void)pos0;
    for (int32_t i = 0; i < op->low.n; i++) {
        const double weights = (double)op->low.pairs[i].rank * (op->in_width + op->low.values);
        c->macs += n_rows * (weights + op->in_width);
        c->values += (double)n_rows * (op->low.pairs[i].rank + op->low.values);
        c->bytes += weights + 8.0 * n_rows * op->in_width;
    }
    c->bytes += 4 * c->values;
}

const tn_op_info tn_op_low = {"low rank", rows, cost};
