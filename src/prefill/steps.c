#include "prefill/steps.h"

#include "base/status.h"

#include <assert.h>
#include <string.h>

int32_t tn_step_type_find(const tn_step_types *t, const char *name) {
    for (int32_t i = 0; i < t->n; i++)
        if (!strcmp(t->at[i].name, name)) return i;
    return -1;
}

static void add_type(tn_step_types *t, const char *name, tn_step_kind kind) {
    if (tn_step_type_find(t, name) >= 0) return;
    assert(t->n < TN_MAX_STEP_TYPES);
    t->at[t->n].name = name;
    t->at[t->n++].kind = kind;
}

/* ---- ops that are one step ------------------------------------------------------------------------- */

/* Tells whether a new step begins with op b, right after op a. Delta nets are steps of their own, because
 * their parts are heads, not rows; so are linears of heads and products of low rank, and so are routing, whose scores are products over many rows, and gathering,
 * which needs all rows' choices. */
static bool begins_step(const tn_op *a, const tn_op *b) {
    return a->lane != TN_LANE_CPU || b->lane != TN_LANE_CPU || b->state_reads || a->kind == TN_OP_DELTA ||
           a->kind == TN_OP_HEADS || b->kind == TN_OP_HEADS || a->kind == TN_OP_LOW || b->kind == TN_OP_LOW ||
           a->kind == TN_OP_ROUTE || b->kind == TN_OP_ROUTE || b->kind == TN_OP_GATHER;
}

/* Counts the ops of the step that begins with op i. Ops after the layers belong to no step. */
static int32_t n_ops_of_step(const tn_program *p, int32_t i) {
    int32_t end = p->first[p->n_layers + 1], n = 1;
    while (i + n < end && !begins_step(&p->ops[i + n - 1], &p->ops[i + n])) n++;
    return n;
}

static tn_step_kind kind_of(const tn_op *first) {
    return first->lane == TN_LANE_NPU    ? TN_STEP_PRODUCT
           : first->kind == TN_OP_ATTEND ? TN_STEP_ATTENTION
                                         : TN_STEP_ROWS;
}

void tn_step_types_of(const tn_program *p, tn_step_types *out) {
    *out = (tn_step_types){0};
    int32_t end = p->first[p->n_layers + 1], n;
    for (int32_t i = 0; i < end; i += n) {
        n = n_ops_of_step(p, i);
        const tn_op *last = &p->ops[i + n - 1];
        tn_step_kind kind = kind_of(&p->ops[i]);
        if (kind == TN_STEP_ATTENTION) {
            add_type(out, "plan", TN_STEP_PLAN);
            for (int k = TN_STEP_ESTIMATE; k <= TN_STEP_ATTEND; k++)
                add_type(out, tn_head_step_name((tn_step_kind)k), (tn_step_kind)k);
        }
        add_type(out, last->name, kind);
        for (int32_t l = 0; kind == TN_STEP_PRODUCT && last->linears.n_ops > 1 && l < last->linears.n_ops;
             l++)
            add_type(out, tn_role_name(last->linears.roles[l]), kind);
        if (kind == TN_STEP_PRODUCT) add_type(out, last->beside, TN_STEP_OUTLIERS);
    }
}

/* ---- the list -------------------------------------------------------------------------------------- */

static void add(tn_steps *s, const tn_steps_options *o, tn_step step, tn_step_work work) {
    step.type = tn_step_type_find(&s->types, step.name);
    if (o->has && !o->has(o->user, &step)) return;
    s->at[s->n] = step;
    s->work[s->n++] = work;
}

static void add_step(tn_steps *s, const tn_program *p, const tn_steps_options *o, int32_t first, int32_t n) {
    const tn_op *op = &p->ops[first], *last = op + n - 1;
    int32_t merges =
        first && op[-1].lane == TN_LANE_NPU ? tn_program_site_index(p, op[-1].layer, op[-1].site) : -1;
    if (merges >= 0 && !o->has_outliers(o->user, merges) &&
        !(o->output_int8 && o->output_int8(o->user, merges)))
        merges = -1;
    tn_step step = {.kind = kind_of(op),
                    .name = last->name,
                    .layer = last->layer < 0 ? 0 : last->layer,
                    .lane = op->lane,
                    .weights = TN_NO_WEIGHTS};
    for (int32_t i = 0; i < n; i++) {
        step.recalls |= op[i].state_reads;
        step.remembers |= op[i].state_writes;
        step.positional = step.positional || op[i].state_reads;
    }
    if (step.kind == TN_STEP_ATTENTION && o->plan)
        add(s, o,
            (tn_step){.kind = TN_STEP_PLAN,
                      .name = "plan",
                      .layer = step.layer,
                      .lane = TN_LANE_CPU,
                      .weights = TN_NO_WEIGHTS,
                      .positional = true},
            (tn_step_work){.ops = op, .site = -1, .merges = -1});
    tn_step_work work = {.ops = op, .n_ops = n, .site = -1, .merges = merges};
    if (step.kind != TN_STEP_PRODUCT) {
        add(s, o, step, work);
        return;
    }
    step.weights = (int32_t)op->site;
    work.site = tn_program_site_index(p, op->layer, op->site);
    /* experts already have a graph each */
    bool apart = o->operators && op->linears.n_ops > 1 && !op->linears.n_experts;
    int32_t n_alone = apart ? op->linears.n_ops : 0;
    if (!n_alone) add(s, o, step, work);
    for (work.alone = 1; work.alone <= n_alone; work.alone++) {
        step.name = tn_role_name(op->linears.roles[work.alone - 1]);
        step.sibling = work.alone > 1;
        add(s, o, step, work);
    }
    work.alone = 0;
    step.sibling = false;
    if (!o->has_outliers(o->user, work.site)) return;
    step.kind = TN_STEP_OUTLIERS;
    step.name = op->beside;
    step.lane = TN_LANE_CPU;
    add(s, o, step, work);
}

tern_status tn_steps_make(tn_ctx *ctx, const tn_program *p, const tn_steps_options *o, tn_steps *out,
                          tern_error *err) {
    *out = (tn_steps){.ctx = ctx};
    tn_step_types_of(p, &out->types);
    /* every op a step, each with a plan or an outlier path, and every linear by itself */
    size_t most = (2 + TN_SITE_MAX_OPS) * (size_t)p->n_ops;
    out->at = tn_alloc(ctx, TN_MEM_GRAPHS, most, sizeof *out->at);
    out->work = tn_alloc(ctx, TN_MEM_GRAPHS, most, sizeof *out->work);
    if (!out->at || !out->work) {
        tn_steps_free(out);
        return tn_fail(err, TERN_E_MEMORY, "no memory for the steps of a prefill");
    }
    int32_t end = p->first[p->n_layers + 1], n;
    for (int32_t i = 0; i < end; i += n) {
        n = n_ops_of_step(p, i);
        add_step(out, p, o, i, n);
    }
    return TERN_OK;
}

void tn_steps_free(tn_steps *s) {
    if (!s->ctx) return;
    tn_free(s->ctx, s->at);
    tn_free(s->ctx, s->work);
    *s = (tn_steps){0};
}
