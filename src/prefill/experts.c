/* Experts in a prefill. The rows that chose an expert are gathered and quantised before its graphs, so that a
 * chunk uses each expert once; its outputs are summed row by row (model/experts.h). */
#include "model/experts.h"

#include "base/status.h"
#include "package/on_demand.h"
#include "prefill/impl.h"

#include <math.h>
#include <string.h>

enum {
    PIECES = 8 /* maximum number of parts of an expert's product, where parts are to be even */
};

static uint8_t *place_of(const chunk *c, const tn_npu_site *s, int64_t place) {
    return c->expert_x + place * s->in_stride;
}

static bool foresees(const tn_pipeline *p, const chunk *c) {
    return p->m->on_demand && p->call.form == TN_FORM_DECODE && c->f.r->n_rows < TN_FEW_ROWS;
}

static void correct(void *user, int32_t layer, float *scores) { tn_on_demand_correct(user, layer, scores); }

static void foresee(const tn_pipeline *p, const chunk *c, const tn_op *op, int32_t row) {
    int32_t likely[TN_MAX_EXPERTS];
    const float *x = tn_frame_row(&c->f, TN_BUF_X, op->experts.n_embd, row);
    if (tn_route_guess(op, p->model, p->kern, x, correct, p->m->on_demand, likely))
        tn_on_demand_predict(p->m->on_demand, op->layer, likely, op->experts.used);
}

void tn_experts_foresee(const tn_pipeline *p, const chunk *c, const tn_op *ops, int32_t n_ops) {
    const tn_program *prog = &p->model->program;
    for (int32_t i = 0; foresees(p, c) && i < n_ops; i++) {
        int32_t layer = ops[i].layer, n;
        if (layer < 1 || layer >= prog->n_layers)
            continue; /* the first layer chooses by more than the
                                                               embedding */
        const tn_op *first = tn_program_layer(prog, layer, &n);
        for (const tn_op *op = first; &ops[i] == first && op < first + n; op++)
            if (op->kind == TN_OP_ROUTE) foresee(p, c, op, c->f.r->n_rows - 1);
    }
}

void tn_experts_route(const tn_pipeline *p, const chunk *c, const tn_op *op, int32_t row0, int32_t row1) {
    tn_route_scores(op, &c->f, row0, row1);
    if (foresees(p, c) && row1 == c->f.r->n_rows)
        tn_on_demand_learn(p->m->on_demand, op->layer,
                           tn_frame_row(&c->f, TN_BUF_ROUTE, op->experts.n, row1 - 1));
    tn_op_info_of(op->kind)->rows(op, &c->f, row0, row1, NULL);
    for (int32_t row = row0; foresees(p, c) && row < row1; row++) {
        const float *chosen = tn_frame_row(&c->f, op->out, op->width, row);
        int32_t experts[TN_MAX_EXPERTS];
        for (int32_t k = 0; k < op->experts.used; k++) experts[k] = tn_chosen_expert(chosen, k);
        tn_on_demand_chosen(p->m->on_demand, op->layer, experts, op->experts.used);
    }
}

/* Multiplies, rotates and quantises a row of inputs, which is overwritten. */
static void quantise(const tn_pipeline *p, const tn_npu_site *s, float *x, uint8_t *out) {
    size_t k = (size_t)s->ops.k;
    for (size_t i = 0; s->inverse && i < k; i++) x[i] *= s->inverse[i];
    if (s->rotated) tn_hadamard_wide(p->kern->hadamard_f32, x, k, (size_t)s->rotated);
    p->kern->quantise_s8(x, s->inv_scale, out, k);
}

void tn_experts_gather(tn_pipeline *p, chunk *c, const tn_op *op, int32_t row0, int32_t row1) {
    const tn_npu_site *s = tn_npu_site_at(p->m, op->layer, op->feeds);
    int32_t used = op->experts.used;
    tn_op_info_of(op->kind)->rows(op, &c->f, row0, row1, NULL);
    for (int32_t row = row0; row < row1; row++) {
        const float *chosen = tn_frame_row(&c->f, TN_BUF_CHOSEN, tn_chosen_width(used), row);
        int64_t own = (int64_t)row * used;
        uint8_t *first = place_of(c, s, own + tn_chosen_place(chosen, 0));
        quantise(p, s, tn_frame_row(&c->f, op->out, op->width, row), first);
        for (int32_t k = 1; k < used; k++)
            memcpy(place_of(c, s, own + tn_chosen_place(chosen, k)), first, (size_t)s->in_stride);
    }
}

void tn_experts_quantise(tn_pipeline *p, chunk *c, const tn_npu_site *s, const tn_op *op, int32_t row) {
    float *x = tn_frame_row(&c->f, op->out, op->width, row);
    for (int32_t i = 0; i < s->ops.n_used; i++)
        quantise(p, s, x + (size_t)i * (size_t)s->ops.k, place_of(c, s, (int64_t)row * s->ops.n_used + i));
}

int32_t tn_experts_parts(const tn_pipeline *p, const tn_npu_site *s) {
    return tn_site_has_parts(p, s) ? p->n_compute * 4 : 1;
}

/* The product of the rows first .. end - 1 with expert e, in the decode form for few rows. */
static void make_job(const tn_npu_site *s, const chunk *c, int32_t e, int32_t first, int32_t end,
                     tn_npu_job *job) {
    tn_form form = end - first <= TN_DECODE_M ? TN_FORM_DECODE : TN_FORM_CHUNK;
    job->graph = s->expert_graphs[e * TN_N_FORMS + (int32_t)form];
    job->n_rows = end - first;
    job->in[0] = place_of(c, s, first);
    for (int32_t i = 0; i < s->ops.n_ops; i++)
        job->out[i] =
            c->f.buf[tn_role_buffer(s->ops.roles[i])] + (size_t)first * (size_t)tn_site_op_n(&s->ops, i);
}

/* Whole jobs: all are queued before the first is waited for. */
static tern_status run_whole(const tn_pipeline *p, chunk *c, const tn_npu_site *s, const int32_t *first,
                             bool here, tern_error *err) {
    tern_status st = TERN_OK, rc;
    int32_t e = 0;
    for (; e < s->ops.n_experts && st == TERN_OK; e++) {
        if (first[e] == first[e + 1]) continue;
        tn_npu_job *job = &c->expert_jobs[e];
        make_job(s, c, e, first[e], first[e + 1], job);
        st = here ? tn_npu_compute_here(job, p->kern, err) : tn_npu_submit(job, err);
        if (st != TERN_OK) break; /* this one is not queued */
    }
    for (int32_t i = 0; i < e && !here; i++) {
        if (first[i] == first[i + 1] || (rc = tn_npu_wait(&c->expert_jobs[i])) == TERN_OK) continue;
        if (st == TERN_OK) st = tn_fail(err, rc, "the device failed in expert %d of layer %d", i, s->layer);
    }
    return st;
}

/* On demand an expert is one piece, so that a chunk loads it once; a part loads the next one while it runs
 * this one. */
static tern_status run_on_demand(tn_pipeline *p, const chunk *c, const tn_npu_site *s, const int32_t *first,
                                 const int32_t *mine, int32_t n, tern_error *err) {
    tn_on_demand *d = p->m->on_demand;
    bool pass = p->call.form == TN_FORM_CHUNK;
    for (int32_t i = 0; i < n; i++) {
        int32_t e = mine[i];
        tn_npu_job job = {0};
        TN_TRY(tn_on_demand_take(d, s, e, pass, err));
        if (i + 1 < n) tn_on_demand_hint(d, s, &mine[i + 1], 1, pass);
        make_job(s, c, e, first[e], first[e + 1], &job);
        tern_status st = tn_npu_run_part(&job, 0, 1, err);
        tn_on_demand_give(d, s, e);
        TN_TRY(st);
    }
    return TERN_OK;
}

/* Lines up the pieces of all experts, each as long as its cost: its rows, and reading its weights. A part
 * runs the pieces whose middle lies in its stretch. So parts are even, and the same whoever runs them. */
static tern_status run_pieces(tn_pipeline *p, const chunk *c, const tn_npu_site *s, const int32_t *first,
                              int32_t part, int32_t n_parts, tern_error *err) {
    enum { READING = 8 }; /* reading an expert's weights costs as much as this many rows */
    int32_t n_pieces = p->m->on_demand ? 1 : PIECES, mine[TN_MAX_EXPERTS], n_mine = 0;
    int64_t total = 0, at = 0;
    for (int32_t e = 0; e < s->ops.n_experts; e++)
        if (first[e] < first[e + 1]) total += first[e + 1] - first[e] + READING;
    for (int32_t e = 0; e < s->ops.n_experts; e++) {
        int32_t from = n_pieces, end = 0;
        if (first[e] == first[e + 1]) continue;
        int64_t cost = first[e + 1] - first[e] + READING;
        for (int32_t i = 0; i < n_pieces; i++) {
            int64_t middle = 2 * n_pieces * at + cost * (2 * i + 1);
            if (middle * n_parts / (2 * n_pieces * total) != part) continue;
            from = i < from ? i : from;
            end = i + 1;
        }
        at += cost;
        if (p->m->on_demand && from < end) mine[n_mine++] = e;
        if (p->m->on_demand) continue;
        tn_npu_job job = {0};
        if (from < end) make_job(s, c, e, first[e], first[e + 1], &job);
        if (end - from == PIECES) TN_TRY(tn_npu_run_part(&job, 0, 1, err));
        for (int32_t i = from; i < end && end - from < PIECES; i++)
            TN_TRY(tn_npu_run_part(&job, i, PIECES, err));
    }
    return run_on_demand(p, c, s, first, mine, n_mine, err);
}

tern_status tn_experts_product(tn_pipeline *p, int32_t i_chunk, const tn_npu_site *s, int32_t part,
                               int32_t n_parts, bool here, tern_error *err) {
    chunk *c = &p->chunks[i_chunk];
    int32_t first[TN_MAX_EXPERTS + 1];
    tn_experts_count(&c->f, s->ops.n_experts, s->ops.n_used, first);
    if (!tn_site_has_parts(p, s)) return run_whole(p, c, s, first, here, err);
    return run_pieces(p, c, s, first, part, n_parts, err);
}
