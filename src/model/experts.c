#include "model/experts.h"

#include <string.h>

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

void tn_experts_run(const tn_op *op, const tn_frame *f, tn_pool *pool, tn_blocks_act *acts) {
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
    for (int32_t e = 0; e < l->n_experts; e++) {
        size_t at = (size_t)first[e], m = (size_t)(first[e + 1] - first[e]);
        for (int32_t i = 0; i < l->n_ops && m; i++) {
            int32_t n_all;
            const tn_linear *all = tn_model_linears(f->m, op->layer, l->roles[i], &n_all);
            size_t n = (size_t)all[e].n;
            tn_linear_run(&all[e], f->r->kern, pool, in + at * k, k,
                          f->buf[tn_role_buffer(l->roles[i])] + at * n, n, m, acts);
        }
    }
}
