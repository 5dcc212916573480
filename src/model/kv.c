#include "model/state.h"

#include "base/status.h"
#include "kernels/attn_f32.h"

#include <string.h>

tern_status tn_kv_open(tn_ctx *ctx, const tn_hparams *h, int32_t n_ctx, tn_kv *out, tern_error *err) {
    *out = (tn_kv){.ctx = ctx, .n_kv_heads = h->n_kv_heads, .d_head = h->d_head};
    for (int32_t l = 0; l < h->n_layers; l++)
        out->index[l] = tn_layer_attends(h, l) ? (int16_t)out->n_layers++ : -1;
    out->cap_tok = (n_ctx + TN_KV_PANEL - 1) / TN_KV_PANEL * TN_KV_PANEL;
    size_t n = tn_kv_head_offset(out, out->n_layers, 0);
    out->k = tn_alloc(ctx, TN_MEM_KV, n, sizeof(float));
    out->v = tn_alloc(ctx, TN_MEM_KV, n, sizeof(float));
    if (out->k && out->v) return TERN_OK;
    tn_kv_close(out);
    return tn_fail(err, TERN_E_MEMORY,
                   "no memory for a KV cache of %d tokens (%zu bytes); ask for a smaller context", n_ctx,
                   2 * n * sizeof(float));
}

void tn_kv_close(tn_kv *kv) {
    tn_free(kv->ctx, kv->k);
    tn_free(kv->ctx, kv->v);
    kv->k = kv->v = NULL;
}

static size_t k_offset(const tn_kv *kv, int32_t pos) {
    return (size_t)(pos / TN_KV_PANEL) * (size_t)kv->d_head * TN_KV_PANEL + (size_t)(pos % TN_KV_PANEL);
}

void tn_kv_put(const tn_kv *kv, int layer, int head, int32_t pos, const float *k, const float *v) {
    float *dst = tn_kv_k(kv, layer, head) + k_offset(kv, pos);
    for (int d = 0; d < kv->d_head; d++) dst[(size_t)d * TN_KV_PANEL] = k[d];
    memcpy(tn_kv_v(kv, layer, head) + (size_t)pos * (size_t)kv->d_head, v, (size_t)kv->d_head * sizeof *v);
}

void tn_kv_move(const tn_kv *kv, int32_t from, int32_t to) {
    if (from == to) return;
    for (int l = 0; l < kv->n_layers; l++) {
        for (int h = 0; h < kv->n_kv_heads; h++) {
            float *k = kv->k + tn_kv_head_offset(kv, l, h), *v = kv->v + tn_kv_head_offset(kv, l, h);
            const float *src = k + k_offset(kv, from);
            float *dst = k + k_offset(kv, to);
            for (int d = 0; d < kv->d_head; d++) dst[(size_t)d * TN_KV_PANEL] = src[(size_t)d * TN_KV_PANEL];
            memcpy(v + (size_t)to * (size_t)kv->d_head, v + (size_t)from * (size_t)kv->d_head,
                   (size_t)kv->d_head * sizeof *v);
        }
    }
}

/* ---- as a kind of state ---------------------------------------------------------------------------- */

static uint64_t state_bytes(const void *self) {
    const tn_kv *kv = self;
    return 2 * sizeof(float) * (uint64_t)tn_kv_head_offset(kv, kv->n_layers, 0);
}

static void state_keep(void *self, int32_t slot, int32_t n_tok) { tn_kv_move(self, slot, n_tok); }

/* What lies behind the text is never read, and overwritten by the next rows. */
static void state_truncate(void *self, int32_t n_tok) {
    (void)self;
    (void)n_tok;
}

/* The last K panel is written whole: the slots behind n_tok get a value, so that files are reproducible. */
static void clear_tail(const tn_kv *kv, int32_t n_tok) {
    size_t d = (size_t)kv->d_head, in_panel = (size_t)(n_tok % TN_KV_PANEL);
    if (!in_panel) return;
    size_t off = (size_t)(n_tok / TN_KV_PANEL) * d * TN_KV_PANEL;
    for (int l = 0; l < kv->n_layers; l++) {
        for (int h = 0; h < kv->n_kv_heads; h++) {
            for (size_t i = 0; i < d; i++) {
                memset(kv->k + tn_kv_head_offset(kv, l, h) + off + i * TN_KV_PANEL + in_panel, 0,
                       (TN_KV_PANEL - in_panel) * sizeof(float));
            }
        }
    }
}

/* Per layer and KV head: K panels, V rows (f32). */
static void state_transfer(void *self, int32_t n_tok, bool saving, tn_state_io io, void *user) {
    const tn_kv *kv = self;
    if (saving) clear_tail(kv, n_tok);
    size_t d = (size_t)kv->d_head, k_pos = (size_t)(n_tok + TN_KV_PANEL - 1) / TN_KV_PANEL * TN_KV_PANEL;
    for (int l = 0; l < kv->n_layers; l++) {
        for (int h = 0; h < kv->n_kv_heads; h++) {
            io(user, kv->k + tn_kv_head_offset(kv, l, h), k_pos * d * sizeof(float));
            io(user, kv->v + tn_kv_head_offset(kv, l, h), (size_t)n_tok * d * sizeof(float));
        }
    }
}

static void state_close(void *self) { tn_kv_close(self); }

const tn_state_ops tn_kv_state = {.name = "kv",
                                  .bytes = state_bytes,
                                  .keep = state_keep,
                                  .truncate = state_truncate,
                                  .transfer = state_transfer,
                                  .close = state_close};
