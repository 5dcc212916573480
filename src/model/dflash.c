#include "model/dflash.h"

#include "base/status.h"
#include "model/blocks.h"

#include <assert.h>
#include <string.h>

size_t tn_dflash_taps(const tn_hparams *h) { return (size_t)h->head.n_from * (size_t)h->head.n_target; }

int32_t tn_dflash_rows(const tn_hparams *h) {
    return h->head.block < TN_TREE_MAX ? h->head.block : TN_TREE_MAX;
}

uint64_t tn_dflash_bytes_of(const tn_hparams *h, int32_t n_ctx) {
    return tn_state_bytes_of(h, n_ctx + TN_TREE_MAX, TN_KV_F32);
}

uint64_t tn_dflash_work_bytes(const tn_hparams *h, int32_t n_ctx, int n_threads) {
    const size_t e = (size_t)h->n_embd, d = (size_t)h->d_head, taps = tn_dflash_taps(h),
                 row = 7 * e + 2 * (size_t)h->n_ff + 2 * (size_t)(h->n_heads + h->n_kv_heads) * d + taps;
    return tn_blocks_acts(taps, TN_TREE_MAX) * sizeof(tn_blocks_act) +
           (TN_TREE_MAX * row + (size_t)tn_dflash_rows(h) * (size_t)h->n_vocab +
            (size_t)n_threads * tn_rows_scratch(h, n_ctx)) *
               sizeof(float);
}

tern_status tn_dflash_open(tn_ctx *ctx, const tn_model *m, const tn_kernels *kern, tn_pool *pool,
                           int32_t n_ctx, bool rope_long, tn_dflash *out, tern_error *err) {
    const size_t e = (size_t)m->h.n_embd, taps = tn_dflash_taps(&m->h);
    *out = (tn_dflash){.ctx = ctx, .m = m, .kern = kern, .pool = pool, .rope_long = rope_long};
    TN_TRY(tn_state_open(ctx, &m->program, &m->h, n_ctx, TN_KV_F32, &out->state, err));
    TN_TRY(tn_acts_open(ctx, m, TN_TREE_MAX, out->state.kv.cap_tok, tn_pool_size(pool), &out->acts, err));
    out->features = tn_alloc(ctx, TN_MEM_ACTIVATIONS, TN_TREE_MAX * e, sizeof *out->features);
    out->blocks = tn_alloc(ctx, TN_MEM_ACTIVATIONS, tn_blocks_acts(taps, TN_TREE_MAX), sizeof *out->blocks);
    TN_FAIL_IF(!out->features || !out->blocks, err, TERN_E_MEMORY, "no memory to draft blocks");
    return TERN_OK;
}

void tn_dflash_close(tn_dflash *d) {
    if (!d->ctx) return;
    tn_state_close(&d->state);
    if (d->acts.ctx) tn_acts_close(&d->acts);
    tn_free(d->ctx, d->features);
    tn_free(d->ctx, d->blocks);
    *d = (tn_dflash){0};
}

/* Rows row0 .. row0 + n - 1, each in its own slot. */
static tn_rows rows_at(tn_dflash *d, int32_t row0, int32_t n) {
    assert(n > 0 && n <= TN_TREE_MAX && row0 >= 0 && row0 + n <= d->state.kv.cap_tok);
    for (int32_t i = 0; i < n; i++) d->pos[i] = row0 + i;
    return (tn_rows){.h = &d->m->h,
                     .kern = d->kern,
                     .kv = &d->state.kv,
                     .n_rows = n,
                     .pos = d->pos,
                     .slot = d->pos,
                     .tree_base = -1};
}

/* Rotates and stores keys, and stores values, as the layer's own op does; there are no queries. */
static void store(tn_dflash *d, const tn_rows *r, int32_t layer) {
    int32_t n;
    const tn_op *op = tn_program_layer(&d->m->program, layer, &n);
    tn_frame f = {.m = d->m, .r = r};
    memcpy(f.buf, d->acts.buf, sizeof f.buf);
    for (int32_t i = 0; i < n; i++) {
        if (op[i].kind != TN_OP_ROPE) continue;
        tn_op keys = op[i];
        keys.rope.n_heads = 0;
        tn_op_info_of(keys.kind)->rows(&keys, &f, 0, r->n_rows, NULL);
    }
}

void tn_dflash_keep(tn_dflash *d, int32_t row0, int32_t n, const float *taps) {
    const tn_layer *first = &d->m->layers[0];
    const size_t e = (size_t)d->m->h.n_embd;
    tn_rows r = rows_at(d, row0, n);
    tn_linear_run(&first->linears[TN_W_NEXT_PROJ], d->kern, d->pool, taps, tn_dflash_taps(&d->m->h),
                  d->features, e, (size_t)n, d->blocks);
    for (size_t i = 0; i < (size_t)n; i++)
        d->kern->rmsnorm_f32(d->features + i * e, first->vectors[TN_W_NEXT_H_NORM], d->m->h.norm_eps,
                             d->features + i * e, e);
    tn_forward_begin(&r, &d->acts, d->rope_long);
    for (int32_t i = 0; i < d->m->h.n_layers; i++) {
        static const tn_role roles[] = {TN_W_K, TN_W_V};
        tn_product p[2];
        for (int k = 0; k < 2; k++) {
            const tn_linear *l = tn_model_linear(d->m, i, roles[k]);
            p[k] = (tn_product){
                .l = l, .m = (size_t)n, .ldo = (size_t)l->n, .out = d->acts.buf[tn_role_buffer(roles[k])]};
        }
        tn_linears_run(p, 2, d->kern, d->pool, d->features, e, d->blocks);
        store(d, &r, i);
    }
}

void tn_dflash_block(tn_dflash *d, int32_t n_tok, int32_t n, const float *embeddings, float *states) {
    const tn_hparams *h = &d->m->h;
    const size_t e = (size_t)h->n_embd;
    float *x = d->acts.buf[TN_BUF_X];
    tn_rows r = rows_at(d, n_tok, n);
    for (int32_t i = 0; i < n; i++) d->block[i] = (tn_row_picture){.first = n_tok, .end = n_tok + n};
    memcpy(x, embeddings, (size_t)n * e * sizeof *x);
    tn_forward_begin(&r, &d->acts, d->rope_long);
    for (int32_t i = 0; i < h->n_layers; i++) {
        const bool before = h->head.sight == TN_SIGHT_BEFORE ||
                            (h->head.sight == TN_SIGHT_BY_LAYER && tn_layer_window(h, i) > 0);
        r.picture = before ? NULL : d->block;
        tn_forward_layer(d->m, d->pool, &r, &d->acts, i, NULL);
    }
    tn_forward_out_norm(d->m, d->kern, x, states, n);
}
