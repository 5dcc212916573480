/* ROUTE: the scores of a row choose `used` experts, the lower number where scores are equal. Weights are the
 * softmax of the scores, over the chosen ones where `norm`, or their sigmoids. A bias is added to the shares
 * or sigmoids for the choice alone. With a mixer two are taken one after the other, see tn_hparams. Of experts in groups those of the best groups are chosen from. Beside a dense block scores are divided by the root of n_embd, and each expert has a scale.
 * Beside them, what the shared expert's result is multiplied by: 1, or the sigmoid of a score of its own. The
 * caller has computed the scores: by tn_route_scores, or over a pool. */
#include "model/experts.h"

#include <math.h>

/* The experts with the largest values; the lower number where they are equal. */
static void largest(const float *value, int32_t n, int32_t used, bool *taken) {
    for (int32_t k = 0; k < used; k++) {
        int32_t best = -1;
        for (int32_t e = 0; e < n; e++)
            if (!taken[e] && (best < 0 || value[e] > value[best])) best = e;
        taken[best] = true;
    }
}

/* Leaves the experts of the best groups: those of the others lose whatever they are compared with. A group is as good as
 * the two best of it where scores are sigmoids, else as its best. */
static void keep_groups(const tn_op *op, float *value) {
    const int32_t n = op->experts.groups, each = op->experts.n / n;
    float good[TN_MAX_EXPERTS];
    bool kept[TN_MAX_EXPERTS] = {0};
    for (int32_t g = 0; g < n; g++) {
        float first = -INFINITY, second = -INFINITY;
        for (int32_t e = g * each; e < (g + 1) * each; e++) {
            if (value[e] > first) second = first, first = value[e];
            else if (value[e] > second) second = value[e];
        }
        good[g] = op->experts.sigmoid ? first + second : first;
    }
    largest(good, n, op->experts.groups_used, kept);
    for (int32_t e = 0; e < op->experts.n; e++)
        if (!kept[e / each]) value[e] = -INFINITY;
}

/* The best of those that are not taken yet, and its share of those near it. */
static int32_t take_one(const tn_op *op, const float *score, bool *taken, float *share) {
    const int32_t n = op->experts.n;
    float all = 0;
    int32_t best = -1;
    for (int32_t e = 0; e < n; e++)
        if (!taken[e] && (best < 0 || score[e] > score[best])) best = e;
    for (int32_t e = 0; e < n; e++) {
        const float less = score[best] - score[e], size = fmaxf(fabsf(score[e]), score[best]);
        if (!taken[e] && !(less > op->experts.mixer * size)) all += tn_expf(-less);
    }
    taken[best] = true;
    *share = 1 / all;
    return best;
}

static void choose_by_turns(const tn_op *op, const float *score, float *chosen) {
    bool taken[TN_MAX_EXPERTS] = {0};
    float share[2];
    const int32_t first = take_one(op, score, taken, &share[0]),
                  second = take_one(op, score, taken, &share[1]);
    const bool in_order = first < second; /* the row's experts are in order of their numbers */
    chosen[0] = (float)(in_order ? first : second);
    chosen[1] = share[!in_order] * op->experts.scale;
    chosen[3] = (float)(in_order ? second : first);
    chosen[4] = share[in_order] * op->experts.scale;
}

void tn_route_choose(const tn_op *op, const tn_model *m, float *score, float *chosen) {
    const float *bias = op->experts.bias ? tn_model_vector(m, op->layer, TN_W_EXPERTS_BIAS) : NULL,
                *scale = op->experts.beside ? tn_model_vector(m, op->layer, TN_W_EXPERTS_SCALE) : NULL;
    if (op->experts.mixer > 0) {
        choose_by_turns(op, score, chosen);
        return;
    }
    int32_t used = op->experts.used, n = op->experts.n;
    bool taken[TN_MAX_EXPERTS] = {0};
    float weight[TN_MAX_EXPERTS], value[TN_MAX_EXPERTS] = {0}, max = -INFINITY, sum = 0, all = 0;
    float by = op->experts.beside ? 1 / sqrtf((float)op->experts.n_embd) : 1;
    for (int32_t e = 0; e < n; e++) {
        score[e] *= by;
        if (score[e] > max) max = score[e];
    }
    for (int32_t e = 0; e < n; e++) {
        weight[e] = op->experts.sigmoid ? 1 / (1 + tn_expf(-score[e])) : tn_expf(score[e] - max);
        all += weight[e];
    }
    for (int32_t e = 0; e < n; e++) {
        const float share = op->experts.sigmoid ? weight[e] : weight[e] / all;
        value[e] = bias ? share + bias[e] : op->experts.groups ? share : score[e];
    }
    if (op->experts.groups) keep_groups(op, value);
    largest(value, n, used, taken);
    for (int32_t e = 0; e < n; e++)
        if (taken[e] || !op->experts.norm) sum += weight[e];
    if (op->experts.sigmoid) sum = op->experts.norm ? sum + 1e-6f : 1;
    for (int32_t e = 0; e < n; e++) {
        if (!taken[e]) continue;
        chosen[0] = (float)e;
        chosen[1] = weight[e] / sum * op->experts.scale * (scale ? scale[e] : 1);
        chosen += 3;
    }
}

bool tn_route_guess(const tn_op *op, const tn_model *m, const tn_kernels *kern, const float *x,
                    tn_correct_fn correct, void *user, int32_t *likely) {
    enum { MAX_EMBD = 8192 };
    const tn_role norm = op->experts.beside ? TN_W_ROUTER_NORM : TN_W_FFN_NORM;
    const float *w = tn_model_vector(m, op->layer, norm);
    const size_t n_embd = (size_t)op->experts.n_embd, n = (size_t)op->experts.n;
    float normed[MAX_EMBD], score[TN_MAX_EXPERTS], chosen[3 * TN_MAX_EXPERTS + 1];
    const tn_linear *l = tn_model_linear(m, op->layer, TN_W_ROUTER);
    if (!w || m->h.norm != TN_NORM_RMS || n_embd > MAX_EMBD || !l->panels) return false;
    kern->rmsnorm_f32(x, w, m->h.norm_eps, normed, n_embd);
    kern->gemm_f32[l->dtype](normed, n_embd, l->panels, l->bias, score, n, 1, 0, n, n_embd);
    correct(user, op->layer, score);
    tn_route_choose(op, m, score, chosen);
    for (int32_t k = 0; k < op->experts.used; k++) likely[k] = tn_chosen_expert(chosen, k);
    return true;
}

static float shared_weight(const tn_op *op, const float *w, const float *x) {
    if (!op->experts.shared_gate) return 1;
    double score = 0;
    for (int32_t i = 0; i < op->experts.n_embd; i++) score += (double)w[i] * (double)x[i];
    return (float)(1 / (1 + exp(-score)));
}

void tn_route_scores(const tn_op *op, const tn_frame *f, int32_t row0, int32_t row1) {
    const tn_linear *l = tn_model_linear(f->m, op->layer, TN_W_ROUTER);
    f->r->kern->gemm_f32[l->dtype](tn_frame_row(f, op->in, op->experts.n_embd, row0),
                                   (size_t)op->experts.n_embd, l->panels, l->bias,
                                   tn_frame_row(f, TN_BUF_ROUTE, op->experts.n, row0), (size_t)op->experts.n,
                                   (size_t)(row1 - row0), 0, (size_t)l->n, (size_t)l->k);
}

static void rows(const tn_op *op, const tn_frame *f, int32_t row0, int32_t row1, float *scratch) {
    (void)scratch;
    int32_t used = op->experts.used;
    const float *shared = tn_model_vector(f->m, op->layer, TN_W_SHARED_GATE);
    for (int32_t r = row0; r < row1; r++) {
        float *chosen = tn_frame_row(f, op->out, op->width, r);
        tn_route_choose(op, f->m, tn_frame_row(f, TN_BUF_ROUTE, op->experts.n, r), chosen);
        chosen[3 * used] = shared_weight(op, shared, tn_frame_row(f, op->in, op->experts.n_embd, r));
    }
}

static void cost(const tn_op *op, int32_t n_rows, int32_t pos0, tn_cost *c) {
    (void)pos0;
    double e = op->experts.n_embd, n = op->experts.n;
    c->macs = n_rows * (n * e + (op->experts.shared_gate ? e : 0));
    c->values = n_rows * (n + op->width);
    c->bytes = 4 * n * e + 4 * n_rows * e + 8 * c->values;
}

const tn_op_info tn_op_route = {"route", rows, cost};
