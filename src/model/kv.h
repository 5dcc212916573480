/* model/kv.h - the KV cache of one session, in a form and layout that kv_cells.h describes.
 *
 * Keys of int4 are kept rotated (kernels/hadamard.h) where heads consist of whole blocks: a rotation
 * spreads what is large in a few channels, and the product of a rotated query with a rotated key is that
 * of the two. Whoever multiplies with such keys rotates the query, by tn_kv_query. */
#ifndef TN_MODEL_KV_H
#define TN_MODEL_KV_H

#include "model/hparams.h"
#include "base/ctx.h"
#include "kernels/kernels.h"

typedef struct tn_kv {
    tn_ctx *ctx;
    tn_kv_type type;
    bool rotated;
    bool joint;       /* a position's value is its key too (latent attention): there are no keys beside it */
    int32_t n_layers; /* that attend, with keys and values of their own */
    struct tn_kv_layer {
        int32_t n_kv_heads, d_head;
        size_t head_bytes;        /* of the keys of a KV head, and of its values */
        size_t at;                /* where its heads begin */
    } layers[TN_MAX_LAYERS + 1];  /* of those; after the last one: `at` is the size */
    int32_t cap_tok;              /* multiple of TN_KV_PANEL */
    int16_t index[TN_MAX_LAYERS]; /* which of those a layer reads; -1: it does not attend, and must not be
                                     asked for */
    int32_t fuse_at;              /* positions at which pages are fused next; it doubles each time */
    uint8_t *k, *v;               /* layer by layer [kv head][head_bytes]; joint: k is NULL */
} tn_kv;

tern_status tn_kv_open(tn_ctx *ctx, const tn_hparams *h, int32_t n_ctx, tn_kv_type type, tn_kv *out,
                       tern_error *err);
void tn_kv_close(tn_kv *kv);
/* What the caches of a model's layers take for n_ctx tokens. */
uint64_t tn_kv_bytes_of(const tn_hparams *h, int32_t n_ctx, tn_kv_type type);

/* index: of the layer among those that have their own. */
static inline size_t tn_kv_head_offset(const tn_kv *kv, int index, int head) {
    return kv->layers[index].at + (size_t)head * kv->layers[index].head_bytes;
}
/* Heads of a layer of the model. */
static inline const struct tn_kv_layer *tn_kv_layer_of(const tn_kv *kv, int layer) {
    return &kv->layers[kv->index[layer]];
}
/* layer: of the model. */
static inline void *tn_kv_k(const tn_kv *kv, int layer, int head) {
    return kv->k ? kv->k + tn_kv_head_offset(kv, kv->index[layer], head) : NULL;
}
static inline void *tn_kv_v(const tn_kv *kv, int layer, int head) {
    return kv->v + tn_kv_head_offset(kv, kv->index[layer], head);
}

/* Store one position's key and value (d_head values each); joint: of the value alone. */
void tn_kv_put(const tn_kv *kv, int layer, int head, int32_t pos, const float *k, const float *v);
/* Copy position `from` over position `to` in every layer and head (draft trees keep the accepted branch). */
void tn_kv_move(const tn_kv *kv, int32_t from, int32_t to);
/* The first n_tok positions of `from`, of another form, become those of `to`, which is of the same model. */
void tn_kv_convert(const tn_kv *from, int32_t n_tok, const tn_kv *to);
/* Turns n query heads [n][d] into what is multiplied with the keys, in place. */
void tn_kv_query(const tn_kv *kv, const tn_kernels *kern, size_t d, float *q, int32_t n);
/* Tells whether the values of positions up to n_tok are finite in a layer and head. */
bool tn_kv_finite(const tn_kv *kv, const tn_kernels *kern, int layer, int head, int32_t n_tok);

#endif
