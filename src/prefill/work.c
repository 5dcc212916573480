/* A part of a step: ops over rows and the quantising after them, a product of the device, an outlier path. */
#include "base/clock.h"
#include "base/status.h"
#include "prefill/impl.h"

#include <assert.h>

enum {
    ROW_BLOCK = 16,  /* rows of a part of a row-wise step */
    ATTN_BLOCK = 32, /* rows of a part of attention */
};

/* ---- parts ----------------------------------------------------------------------------------------- */

bool tn_site_has_parts(const tn_pipeline *p, const tn_npu_site *s) {
    return tn_npu_device_caps(tn_npu_site_device(p->m, s))->has_parts;
}

/* Are the parts of a site's product its linears? */
static bool by_operator(const tn_pipeline *p, const tn_npu_site *s) {
    return p->call.form == TN_FORM_CHUNK && s->op_graphs[0];
}

int32_t tn_step_linear(const tn_pipeline *p, int32_t step) {
    int32_t alone = p->steps.work[step].alone;
    return alone && !p->switching.switcher && by_operator(p, tn_step_site(p, step)) ? alone - 1 : -1;
}

bool tn_product_can_be_stolen(const tn_pipeline *p, int32_t step) {
    const tn_npu_caps *c = tn_npu_device_caps(tn_npu_site_device(p->m, tn_step_site(p, step)));
    return c->has_parts || (c->cpu_computes && !p->switching.switcher);
}

int32_t tn_site_blocks(const tn_pipeline *p, const tn_npu_site *s, int32_t linear) {
    int32_t n = 0, part_n = tn_npu_device_caps(tn_npu_site_device(p->m, s))->part_n;
    for (int32_t i = 0; i < s->ops.n_ops; i++)
        if (linear < 0 || i == linear) n += (s->ops.n[i] + part_n - 1) / part_n;
    return n;
}

/* Returns how many rows a part of a row-wise step has. */
static int32_t row_block(const tn_pipeline *p, tn_step_kind kind) {
    if (p->call.form == TN_FORM_DECODE) return p->call.small_rows;
    return kind == TN_STEP_ATTENTION ? ATTN_BLOCK : ROW_BLOCK;
}

/* Returns the number of parts of a product of this many blocks of channels. With few rows it waits for
 * memory, which long parts read best: each worker gets eight, so that little waits for a slower one at the end. A
 * chunk has several parts for each worker, of equal length where possible. */
static int32_t product_parts(const tn_pipeline *p, int32_t blocks) {
    enum { LEAST = 4, MOST = 8 }; /* for each worker */
    int32_t n = p->n_compute, few = 8 * n;
    if (p->call.form == TN_FORM_DECODE) return blocks < few ? blocks : few;
    if (blocks <= MOST * n) return blocks;
    for (int32_t each = LEAST; each <= MOST; each++)
        if (blocks % (each * n) == 0) return each * n;
    return LEAST * n;
}

int32_t tn_step_parts(const tn_pipeline *p, int32_t step, tn_step_kind kind, int32_t n_rows) {
    if (kind == TN_STEP_PLAN) return p->steps.work[step].ops->attend.n_kv_heads;
    if (tn_step_is_head(kind)) return tn_sparse_attn_parts(p->sparse, kind);
    if (kind == TN_STEP_PRODUCT) {
        const tn_npu_site *s = tn_step_site(p, step);
        if (s->ops.n_experts) return tn_experts_parts(p, s);
        int32_t linear = tn_step_linear(p, step);
        if (linear < 0 && p->steps.work[step].alone > 1)
            return 1; /* nothing to do: the first was the whole site */
        if (!tn_site_has_parts(p, s)) return linear < 0 && by_operator(p, s) ? s->ops.n_ops : 1;
        return product_parts(p, tn_site_blocks(p, s, linear));
    }
    const tn_op *op = p->steps.work[step].ops;
    if (op->kind == TN_OP_DELTA) {
        int32_t items = tn_delta_items(op), n = p->n_compute * 2;
        return items < n ? items : n;
    }
    if (op->kind == TN_OP_HEADS)
        return op->heads.n_heads < p->n_compute * 2 ? op->heads.n_heads : p->n_compute * 2;
    if (op->kind == TN_OP_LOW && p->call.form == TN_FORM_DECODE) return op->low.n;
    int32_t block = row_block(p, kind);
    return (n_rows + block - 1) / block;
}

/* ---- rows ------------------------------------------------------------------------------------------ */

const tn_frame *tn_frame_of(const tn_pipeline *p, const chunk *c, int32_t row, int32_t *own) {
    *own = row;
    if (p->call.form != TN_FORM_DECODE) return &c->f;
    int32_t i = p->call.n_texts - 1;
    while (p->call.texts[i].row0 > row) i--;
    *own = row - p->call.texts[i].row0;
    return &p->call.texts[i].f;
}

/* Runs items of a delta net, for every text of the rows. */
static void run_delta(const tn_pipeline *p, const chunk *c, const tn_op *op, int32_t item0, int32_t item1) {
    if (p->call.form != TN_FORM_DECODE) tn_delta_run(op, &c->f, item0, item1);
    for (int32_t i = 0; p->call.form == TN_FORM_DECODE && i < p->call.n_texts; i++)
        tn_delta_run(op, &p->call.texts[i].f, item0, item1);
}

/* Runs the ops of a step on one row; each is followed by quantising its results for a site. */
static void run_ops(tn_pipeline *p, chunk *c, const tn_op *ops, int32_t n_ops, int32_t row) {
    int32_t own;
    const tn_frame *f = tn_frame_of(p, c, row, &own);
    for (int32_t i = 0; i < n_ops; i++) {
        const tn_op *op = &ops[i];
        tn_op_info_of(op->kind)->rows(op, f, own, own + 1, NULL);
        if (op->feeds == TN_NO_SITE) continue;
        const tn_npu_site *s = tn_npu_site_at(p->m, op->layer, op->feeds);
        if (s->ops.n_experts) tn_experts_quantise(p, c, s, op, row);
        else tn_quantise_row(p, c, s, row, tn_frame_row(&c->f, op->out, op->width, row));
    }
}

void tn_step_behind_attention(tn_pipeline *p, chunk *c, int32_t step, int32_t row0, int32_t row1) {
    const tn_step_work *w = &p->steps.work[step];
    const tn_op *op = w->ops;
    for (int32_t row = row0; row < row1; row++) {
        if (op->feeds != TN_NO_SITE)
            tn_quantise_row(p, c, tn_npu_site_at(p->m, op->layer, op->feeds), row,
                            tn_frame_row(&c->f, op->out, op->width, row));
        run_ops(p, c, op + 1, w->n_ops - 1, row);
    }
}

/* Tells whether this chunk attends sparsely in a layer. Its end decides, so the answer is the same in every
 * schedule. Rows of a picture that see each other attend in full, because a selection knows only what came before. */
static bool sparse_chunk(const tn_pipeline *p, const chunk *c, int layer) {
    return p->call.sparse && !c->r.picture &&
           tn_sparse_attn_wanted(p->sparse, layer, c->pos[c->r.n_rows - 1] + 1);
}

static tern_status run_attention(tn_pipeline *p, int32_t i_chunk, int32_t step, int32_t row0, int32_t row1,
                                 int i_worker, tern_error *err) {
    chunk *c = &p->chunks[i_chunk];
    const tn_op *op = p->steps.work[step].ops;
    bool sparse = sparse_chunk(p, c, op->layer);
    if (sparse && !p->heads.n_slots)
        TN_TRY(tn_sparse_attn_rows(p->sparse, &c->r, i_chunk, op->layer, c->f.buf[op->in], c->f.buf[op->out],
                                   row0, row1, i_worker, err));
    if (!sparse)
        tn_op_info_of(op->kind)->rows(op, &c->f, row0, row1,
                                      p->scratch + (size_t)i_worker * p->scratch_stride);
    tn_step_behind_attention(p, c, step, row0, row1);
    return TERN_OK;
}

/* ---- products -------------------------------------------------------------------------------------- */

/* Runs a product on the device, or with `here` on the calling thread, when the CPU lane took it from the
 * device's queue: by the CPU's kernels from the device's tiles, with the same bits. */
static tern_status run_job(const tn_pipeline *p, tn_npu_job *job, int32_t step, int32_t part, int32_t n_parts,
                           bool here, tern_error *err) {
    if (tn_site_has_parts(p, tn_step_site(p, step))) return tn_npu_run_part(job, part, n_parts, err);
    if (here) return tn_npu_compute_here(job, p->kern, err);
    TN_TRY(tn_npu_submit(job, err));
    tern_status rc = tn_npu_wait(job);
    TN_FAIL_IF(rc != TERN_OK, err, rc, "the device failed in %s of layer %d", p->steps.at[step].name,
               p->steps.at[step].layer);
    return TERN_OK;
}

/* Runs a product in its layer's current form. A chunk on the decode graph is several sub-chunks, with the
 * same results, because a row depends neither on other rows nor on M. */
static tern_status run_switched(tn_pipeline *p, int32_t i_chunk, int32_t step, int32_t part, int32_t n_parts,
                                tern_error *err) {
    const tn_npu_site *s = tn_step_site(p, step);
    const tn_npu_job *whole = tn_job_of(p, i_chunk, p->steps.work[step].site);
    tn_form form = s->on_cpu ? p->call.form : tn_switcher_form(p->switching.switcher, s->layer);
    TN_FAIL_IF(form == TN_N_FORMS, err, TERN_E_DEVICE,
               "layer %d has no graph on the device: loading it failed", s->layer);
    int32_t m = form == TN_FORM_CHUNK ? p->n_rows : TN_DECODE_M;
    for (int32_t row = 0; row < whole->n_rows; row += m) {
        tn_npu_job job = {.graph = s->graphs[form],
                          .n_rows = whole->n_rows - row < m ? whole->n_rows - row : m,
                          .in = {whole->in[0] + (size_t)row * (size_t)s->in_stride}};
        for (int32_t op = 0; op < s->ops.n_ops; op++)
            job.out[op] = (char *)whole->out[op] +
                          (size_t)row * (size_t)s->ops.n[op] * (s->out_factor[op] ? 1 : sizeof(float));
        TN_TRY(run_job(p, &job, step, part, n_parts, false, err));
    }
    return TERN_OK;
}

/* Runs one linear of a site, or a part of it. */
static tern_status run_operator(const tn_pipeline *p, int32_t i_chunk, int32_t step, int32_t op, int32_t part,
                                int32_t n_parts, bool here, tern_error *err) {
    const tn_npu_site *s = tn_step_site(p, step);
    const tn_npu_job *whole = tn_job_of(p, i_chunk, p->steps.work[step].site);
    tn_npu_job job = {
        .graph = s->op_graphs[op], .n_rows = whole->n_rows, .in = {whole->in[0]}, .out = {whole->out[op]}};
    return run_job(p, &job, step, part, n_parts, here, err);
}

#ifndef TERN_MINIMAL /* its device works on the CPU's own cores */
tern_status tn_product_time_here(const tn_pipeline *p, int32_t step, float *out, double *us,
                                 tern_error *err) {
    const tn_npu_site *s = tn_step_site(p, step);
    tn_npu_job job = *tn_job_of(p, 0, p->steps.work[step].site);
    int32_t linear = tn_step_linear(p, step);
    job.graph = linear < 0 ? s->graphs[TN_FORM_CHUNK] : s->op_graphs[linear];
    job.n_rows = p->n_rows;
    for (int32_t op = 0; op < (linear < 0 ? s->ops.n_ops : 1); op++) {
        job.out[op] = out;
        out += (size_t)p->n_rows * (size_t)s->ops.n[op];
    }
    int64_t t0 = tn_now_ns();
    TN_TRY(tn_npu_compute_here(&job, p->kern, err));
    *us = (double)(tn_now_ns() - t0) * 1e-3;
    return TERN_OK;
}
#endif

/* ---- a part of a step ------------------------------------------------------------------------------ */

tern_status tn_step_run(tn_pipeline *p, int32_t i_chunk, int32_t step, int32_t part, int32_t n_parts,
                        int i_worker, bool here, tern_error *err) {
    chunk *c = &p->chunks[i_chunk];
    const tn_step_work *w = &p->steps.work[step];
    tn_step_kind kind = p->steps.at[step].kind;
    if (kind == TN_STEP_PRODUCT) {
        if (tn_step_site(p, step)->ops.n_experts)
            return tn_experts_product(p, i_chunk, tn_step_site(p, step), part, n_parts, here, err);
        int32_t linear = tn_step_linear(p, step);
        if (linear >= 0) return run_operator(p, i_chunk, step, linear, part, n_parts, here, err);
        if (w->alone > 1) return TERN_OK; /* the first linear of the site computed all of them */
        if (p->switching.switcher) return run_switched(p, i_chunk, step, part, n_parts, err);
        if (by_operator(p, tn_step_site(p, step)) && !tn_site_has_parts(p, tn_step_site(p, step)))
            return run_operator(p, i_chunk, step, part, 0, 1, here, err);
        return run_job(p, tn_job_of(p, i_chunk, w->site), step, part, n_parts, here, err);
    }
    if (kind == TN_STEP_PLAN) {
        return sparse_chunk(p, c, w->ops->layer)
                   ? tn_sparse_attn_plan(p->sparse, &c->r, i_chunk, w->ops->layer, part, c->f.buf[w->ops->in],
                                         err)
                   : TERN_OK;
    }
    if (w->ops->kind == TN_OP_DELTA) {
        int32_t items = tn_delta_items(w->ops);
        run_delta(p, c, w->ops, part * items / n_parts, (part + 1) * items / n_parts);
        return TERN_OK;
    }
    if (w->ops->kind == TN_OP_HEADS) {
        const int32_t n = w->ops->heads.n_heads;
        tn_heads_run(w->ops, &c->f, c->r.n_rows, part * n / n_parts, (part + 1) * n / n_parts);
        return TERN_OK;
    }
    if (w->ops->kind == TN_OP_LOW && p->call.form == TN_FORM_DECODE) { /* few rows: by pairs */
        tn_low_run(w->ops, &c->f, part, 0, c->r.n_rows);
        return TERN_OK;
    }
    int32_t block = row_block(p, kind), row0 = part * block, row1 = row0 + block;
    if (row1 > c->r.n_rows) row1 = c->r.n_rows;
    assert(row0 < row1);
    if (kind == TN_STEP_OUTLIERS)
        return tn_outlier_rows(p, c, tn_step_site(p, step), row0, row1, i_worker, err);
    if (w->merges >= 0) tn_outputs_take(p, i_chunk, w->merges, row0, row1);
    if (kind == TN_STEP_ATTENTION) return run_attention(p, i_chunk, step, row0, row1, i_worker, err);
    if (w->ops->kind == TN_OP_ROUTE || w->ops->kind == TN_OP_GATHER) { /* over rows of all texts */
        if (w->ops->kind == TN_OP_ROUTE) tn_experts_route(p, c, w->ops, row0, row1);
        else tn_experts_gather(p, c, w->ops, row0, row1);
        return TERN_OK;
    }
    if (w->ops->kind == TN_OP_LOW) {
        tn_op_info_of(TN_OP_LOW)->rows(w->ops, &c->f, row0, row1, NULL);
        return TERN_OK;
    }
    for (int32_t row = row0; row < row1; row++) run_ops(p, c, w->ops, w->n_ops, row);
    tn_experts_foresee(p, c, w->ops, w->n_ops);
    return TERN_OK;
}

tern_status tn_task_run(void *arg, int part, const tn_worker *w, tern_error *err) {
    const task_arg *a = arg;
    tn_pipeline *p = a->p;
    const chunk *c = &p->chunks[a->i_chunk];
    const tn_op *op = p->steps.work[a->step].ops;
    tern_status rc = TERN_OK;
    /* a CPU worker that serves a lane without workers drives the device */
    bool here = w->lane == TN_LANE_CPU && tn_executor_lane_workers(p->exec, TN_LANE_NPU) > 0;
    if (p->switching.switcher) tn_switcher_compute(p->switching.switcher, true);
    if (!tn_step_is_head(a->kind))
        rc = tn_step_run(p, a->i_chunk, a->step, part, tn_step_parts(p, a->step, a->kind, c->r.n_rows),
                         w->i_worker, here, err);
    else if (sparse_chunk(p, c, op->layer))
        rc = tn_sparse_attn_slot(p->sparse, &c->r, a->i_chunk, op->layer, a->kind, a->i_block, a->slot, part,
                                 c->f.buf[op->in], c->f.buf[op->out], w->i_worker, err);
    if (p->switching.switcher) tn_switcher_compute(p->switching.switcher, false);
    return rc;
}
