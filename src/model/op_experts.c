/* EXPERTS: branch = sum over the chosen experts of weight * expert(in), in order of the experts' numbers;
 * with a shared expert they are added to what that one left there, times the sigmoid of a score of its own
 * where it has one. The router's scores choose `used` experts of a row, the lower number where scores are
 * equal; weights are the softmax of the scores, over the chosen ones where `norm`, or their sigmoids,
 * which a bias is added to for the choice. An expert is gate, up and down as in a feed-forward block. Rows
 * are gathered expert by expert, so that each one's weights are read once for a chunk; a row's result is
 * the same in any chunk, because products are row-wise and its experts are added in one order. */
#include "model/experts.h"

#include <math.h>
#include <string.h>

/* The experts with the largest values; the lower number where they are equal. */
static void largest(const float *value, int32_t n, int32_t used, bool *taken) {
    for (int32_t k = 0; k < used; k++) {
        int32_t best = -1;
        for (int32_t e = 0; e < n; e++)
            if (!taken[e] && (best < 0 || value[e] > value[best])) best = e;
        taken[best] = true;
    }
}

/* Scores of one row -> its experts, ascending, and their weights, as pairs. */
static void choose(const tn_op *op, const float *bias, const float *score, float *pairs) {
    int32_t used = op->experts.used, n = op->experts.n;
    bool taken[TN_MAX_EXPERTS] = {0};
    float weight[TN_MAX_EXPERTS], biased[TN_MAX_EXPERTS], max = -INFINITY, sum = 0;
    for (int32_t e = 0; e < n; e++)
        if (score[e] > max) max = score[e];
    for (int32_t e = 0; e < n; e++) {
        weight[e] = op->experts.sigmoid ? 1 / (1 + tn_expf(-score[e])) : tn_expf(score[e] - max);
        if (bias) biased[e] = weight[e] + bias[e];
    }
    largest(bias ? biased : score, n, used, taken);
    for (int32_t e = 0; e < n; e++)
        if (taken[e] || !op->experts.norm) sum += weight[e];
    if (op->experts.sigmoid) sum = op->experts.norm ? sum + 1e-6f : 1;
    for (int32_t e = 0, k = 0; e < n; e++) {
        if (!taken[e]) continue;
        pairs[2 * k] = (float)e;
        pairs[2 * k++ + 1] = weight[e] / sum * op->experts.scale;
    }
}

/* up = act(gate) up; or, with a limit, (up + 1) gate sigmoid(1.702 gate) of clamped values. */
static void gate_rows(const tn_op *op, const tn_kernels *kern, const float *gate, float *up, size_t n) {
    float limit = op->experts.limit;
    if (!(limit > 0)) {
        kern->glu_f32(op->experts.act, gate, up, up, n);
        return;
    }
    for (size_t i = 0; i < n; i++) {
        float g = gate[i] < limit ? gate[i] : limit, u = up[i] < limit ? up[i] : limit;
        if (u < -limit) u = -limit;
        float x = 1.702f * g;
        float sigmoid = x < 0 ? tn_expf(x) / (1 + tn_expf(x)) : 1 / (1 + tn_expf(-x));
        up[i] = (u + 1) * (g * sigmoid);
    }
}

typedef struct gate_job {
    const tn_op *op;
    const tn_kernels *kern;
    const float *gate;
    float *up;
    size_t n, per_item;
} gate_job;

static void gate_item(void *arg, int i_item, int i_thread) {
    (void)i_thread;
    const gate_job *j = arg;
    size_t at = (size_t)i_item * j->per_item, n = j->n - at < j->per_item ? j->n - at : j->per_item;
    gate_rows(j->op, j->kern, j->gate + at, j->up + at, n);
}

/* The rows that chose expert e, gathered: their numbers and weights. */
static int32_t gather(const tn_op *op, const tn_frame *f, int32_t e, int32_t *row, float *weight) {
    int32_t n = 0, used = op->experts.used, width = op->experts.n_embd;
    for (int32_t r = 0; r < f->r->n_rows; r++) {
        const float *pairs = tn_frame_row(f, TN_BUF_CHOSEN, 2 * used, r);
        for (int32_t k = 0; k < used; k++) {
            if ((int32_t)pairs[2 * k] != e) continue;
            memcpy(tn_frame_row(f, TN_BUF_GATHERED, width, n), tn_frame_row(f, op->in, width, r),
                   (size_t)width * sizeof(float));
            row[n] = r;
            weight[n++] = pairs[2 * k + 1];
        }
    }
    return n;
}

/* What the shared expert gave, times the sigmoid of a score of the row. */
static void gate_shared(const tn_op *op, const float *w, const float *x, float *branch) {
    double score = 0;
    for (int32_t i = 0; i < op->experts.n_embd; i++) score += (double)w[i] * (double)x[i];
    float share = (float)(1 / (1 + exp(-score)));
    for (int32_t i = 0; i < op->width; i++) branch[i] *= share;
}

void tn_experts_run(const tn_op *op, const tn_frame *f, tn_pool *pool, tn_blocks_act *acts, int32_t *row,
                    float *weight) {
    const tn_kernels *kern = f->r->kern;
    const tn_layer *l = tn_model_layer(f->m, op->layer);
    size_t n_embd = (size_t)op->experts.n_embd, n_ff = (size_t)op->experts.n_ff,
           n_rows = (size_t)f->r->n_rows;
    const tn_linear *router = &l->linears[TN_W_ROUTER];
    tn_linear_run(router, kern, pool, f->buf[op->in], n_embd, f->buf[TN_BUF_ROUTE], (size_t)op->experts.n,
                  n_rows, acts);
    for (int32_t r = 0; r < f->r->n_rows; r++)
        choose(op, op->experts.bias ? l->vectors[TN_W_EXPERTS_BIAS] : NULL,
               tn_frame_row(f, TN_BUF_ROUTE, op->experts.n, r),
               tn_frame_row(f, TN_BUF_CHOSEN, 2 * op->experts.used, r));
    if (!op->experts.shared) memset(f->buf[op->out], 0, n_rows * n_embd * sizeof(float));
    for (int32_t r = 0; op->experts.shared_gate && r < f->r->n_rows; r++)
        gate_shared(op, l->vectors[TN_W_SHARED_GATE], tn_frame_row(f, op->in, op->experts.n_embd, r),
                    tn_frame_row(f, op->out, op->width, r));
    for (int32_t e = 0; e < op->experts.n; e++) {
        int32_t n = gather(op, f, e, row, weight);
        if (!n) continue;
        const float *x = f->buf[TN_BUF_GATHERED];
        float *gate = f->buf[TN_BUF_GATE], *up = f->buf[TN_BUF_UP];
        tn_linear_run(&l->experts[0][e], kern, pool, x, n_embd, gate, n_ff, (size_t)n, acts);
        tn_linear_run(&l->experts[1][e], kern, pool, x, n_embd, up, n_ff, (size_t)n, acts);
        gate_job j = {op, kern, gate, up, (size_t)n * n_ff, 16384};
        tn_pool_for(pool, (int)((j.n + j.per_item - 1) / j.per_item), gate_item, &j);
        tn_linear_run(&l->experts[2][e], kern, pool, up, n_ff, f->buf[TN_BUF_GIVEN], n_embd, (size_t)n, acts);
        for (int32_t i = 0; i < n; i++)
            kern->add_f32(tn_frame_row(f, op->out, op->width, row[i]),
                          f->buf[TN_BUF_GIVEN] + (size_t)i * n_embd, weight[i], n_embd);
    }
}

static void cost(const tn_op *op, int32_t n_rows, int32_t pos0, tn_cost *c) {
    (void)pos0;
    double e = op->experts.n_embd, f = op->experts.n_ff, used = op->experts.used, n = op->experts.n,
           read = n_rows * used < n ? n_rows * used : n; /* experts whose weights are read, at most */
    c->macs = n_rows * (n * e + used * (3 * e * f + 2 * f + e) + (op->experts.shared_gate ? 2 * e : 0));
    c->values = n_rows * (n + 2 * used + used * (2 * f + 2 * e) + e);
    c->bytes = 4 * n * e + read * 3 * e * f + 8 * c->values;
}

const tn_op_info tn_op_experts = {"experts", NULL, cost};
