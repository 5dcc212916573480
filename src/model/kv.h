/* model/kv.h - the float KV cache of one session, in the layout attn_f32.h describes. */
#ifndef TN_MODEL_KV_H
#define TN_MODEL_KV_H

#include "model/hparams.h"
#include "base/ctx.h"

typedef struct tn_kv {
    tn_ctx *ctx;
    int32_t n_layers; /* that attend */
    int32_t n_kv_heads, d_head;
    int32_t cap_tok; /* multiple of TN_KV_PANEL */
    int16_t index
        [TN_MAX_LAYERS]; /* of a layer among those that attend; -1: it does not, and must not be asked for */
    float *k, *v;        /* [n_layers][kv head][cap_tok * d_head] */
} tn_kv;

tern_status tn_kv_open(tn_ctx *ctx, const tn_hparams *h, int32_t n_ctx, tn_kv *out, tern_error *err);
void tn_kv_close(tn_kv *kv);

/* index: of the layer among those that attend. */
static inline size_t tn_kv_head_offset(const tn_kv *kv, int index, int head) {
    return ((size_t)index * (size_t)kv->n_kv_heads + (size_t)head) * (size_t)kv->cap_tok * (size_t)kv->d_head;
}
/* layer: of the model. */
static inline float *tn_kv_k(const tn_kv *kv, int layer, int head) {
    return kv->k + tn_kv_head_offset(kv, kv->index[layer], head);
}
static inline float *tn_kv_v(const tn_kv *kv, int layer, int head) {
    return kv->v + tn_kv_head_offset(kv, kv->index[layer], head);
}

/* Store one position's key and value (d_head values each). */
void tn_kv_put(const tn_kv *kv, int layer, int head, int32_t pos, const float *k, const float *v);
/* Copy position `from` over position `to` in every layer and head (draft trees keep the accepted branch). */
void tn_kv_move(const tn_kv *kv, int32_t from, int32_t to);

#endif
