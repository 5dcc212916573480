#include "model/experts.h"

#include "model/file_experts.h"

#include <string.h>

enum { PASS_ROWS = 32 }; /* more rows than these are a prompt's, which choose nearly all experts */

typedef struct gather_job {
    const tn_site_ops *l;
    const tn_frame *f;
} gather_job;

/* A row to its places. */
static void gather_item(void *arg, int i_item, int i_thread) {
    (void)i_thread;
    const gather_job *j = arg;
    int32_t used = j->l->n_used;
    const float *x = tn_frame_row(j->f, TN_BUF_GATHERED, j->l->k, i_item),
                *chosen = tn_frame_row(j->f, TN_BUF_CHOSEN, tn_chosen_width(used), i_item);
    float *own = tn_frame_row(j->f, TN_BUF_GIVEN, used * j->l->k, i_item);
    for (int32_t k = 0; k < used; k++)
        memcpy(own + (ptrdiff_t)tn_chosen_place(chosen, k) * j->l->k, x, (size_t)j->l->k * sizeof *x);
}

/* The products of as many experts, at most `most`, from *e on, as there is room for: few rows of many experts are one
 * loop. */
static size_t products_from(const tn_op *op, const tn_frame *f, const int32_t *first, int32_t max_rows,
                            int32_t most, int32_t *e, tn_product *out) {
    const tn_site_ops *l = &op->linears;
    size_t n = 0;
    int32_t n_all;
    for (int32_t at = first[*e]; *e < l->n_experts; ++*e) {
        size_t m = (size_t)(first[*e + 1] - first[*e]);
        if (first[*e + 1] - at > max_rows || n + (size_t)l->n_ops > TN_MAX_PRODUCTS || (m && !most--)) break;
        for (int32_t i = 0; i < l->n_ops && m; i++) {
            const tn_linear *w = &tn_model_linears(f->m, op->layer, l->roles[i], &n_all)[*e];
            size_t width = (size_t)w->n;
            out[n++] = (tn_product){.l = w,
                                    .row0 = (size_t)(first[*e] - at),
                                    .m = m,
                                    .ldo = width,
                                    .out = f->buf[tn_role_buffer(l->roles[i])] + (size_t)first[*e] * width};
        }
    }
    return n;
}

void tn_experts_run(const tn_op *op, const tn_frame *f, tn_pool *pool, int32_t max_rows,
                    tn_blocks_act *acts) {
    const tn_site_ops *l = &op->linears;
    int32_t first[TN_MAX_EXPERTS + 1];
    const float *in = f->buf[op->in];
    size_t k = (size_t)l->k;
    if (op->site == TN_SITE_EXPERTS) {
        gather_job j = {l, f};
        tn_pool_for(pool, f->r->n_rows, gather_item, &j);
        in = f->buf[TN_BUF_GIVEN];
    }
    tn_experts_count(f, l->n_experts, l->n_used, first);
    tn_product p[TN_MAX_PRODUCTS];
    tn_file_experts *away = f->m->file_experts;
    const int32_t most = away ? tn_file_experts_most(away) : l->n_experts;
    bool there = true;
    if (away) tn_file_experts_begin(away);
    for (int32_t e = 0; e < l->n_experts && there;) {
        const float *x = in + (size_t)first[e] * k;
        const int32_t e0 = e;
        size_t n = products_from(op, f, first, max_rows, most, &e, p);
        if (away)
            there = tn_file_experts_take(away, op->layer, first, e0, e, f->r->n_rows > PASS_ROWS,
                                         op->site == TN_SITE_EXPERTS);
        if (there) tn_linears_run(p, n, f->r->kern, pool, x, k, acts);
    }
    if (away) tn_file_experts_end(away); /* where it failed, whoever asks for the next layer is told */
}
