/* model/forward.h - the float forward: interprets the program. The plain path, and the reference for
 * everything faster. */
#ifndef TN_MODEL_FORWARD_H
#define TN_MODEL_FORWARD_H

#include "model/op.h"

/* Activations of one session, planned once for chunks of up to max_rows rows: the program's buffers but the
 * logits, the angles of the rows' positions, then one attention scratch per thread. */
typedef struct tn_acts {
    tn_ctx *ctx;
    int32_t max_rows;
    float *base;
    float *buf[TN_N_BUFFERS]; /* [max_rows][width in the program]; logits: the caller's */
    float *rope_cs;
    float *scratch; /* [n_threads][scratch_stride] */
    size_t scratch_stride;
    float *outliers;    /* llm-int8: [max_rows][widest input], else NULL */
    bool *has_outliers; /* [max_rows] */
    float *lora;        /* [n_threads][lora_stride] with adapters */
    size_t lora_stride;
    tn_blocks_act *blocks; /* scheme "blocks": quantised rows, else NULL */
} tn_acts;

tern_status tn_acts_open(tn_ctx *ctx, const tn_model *m, int32_t max_rows, int32_t cap_tok, int n_threads,
                         tn_acts *out, tern_error *err);
void tn_acts_close(tn_acts *a);

/* Calls `fn` may use while the forward runs layer by layer: hooks see the input of every site. */
typedef struct tn_forward_hooks {
    void (*site_input)(void *user, int layer, tn_site site, float *x, size_t ldx,
                       int32_t n_rows); /* may change it: rounding as a device would */
    void (*routed)(void *user, int layer,
                   const float *chosen); /* before the experts' inputs: CHOSEN of the rows (experts.h) */
    void (*qk)(void *user, int layer, const float *q, const float *k, int32_t n_rows); /* after rope */
    void (*attention_out)(void *user, int layer, float *att,
                          int32_t n_rows); /* may change it: head ablation */
    void (*output)(void *user, int layer, tn_role role, const float *y, int32_t n,
                   int32_t n_rows); /* [n_rows][n] of every linear in a layer */
    void *user;
} tn_forward_hooks;

/* What tn_forward_layer needs of a before the first layer: the angles of the rows' positions; and the tokens'
 * embeddings. */
void tn_forward_begin(tn_rows *r, tn_acts *a, bool rope_long);
void tn_forward_embed(const tn_model *m, tn_pool *pool, tn_rows *r, tn_acts *a, const int32_t *ids);
/* One layer over the rows of a->buf[TN_BUF_X], in place; fills its part of the cache. */
void tn_forward_layer(const tn_model *m, tn_pool *pool, tn_rows *r, tn_acts *a, int layer,
                      const tn_forward_hooks *hooks);

/* The layer as far as its keys and values: what later rows read of these. */
void tn_forward_stores(const tn_model *m, tn_pool *pool, tn_rows *r, tn_acts *a, int layer);

/* Evaluate r->n_rows tokens: buffer X holds the last layer's residual afterwards. ids [n_rows]. Fills the
 * cache. cancel may be NULL; TERN_E_CANCELLED leaves the cache slots of these rows undefined. hooks may be
 * NULL. */
tern_status tn_forward_rows(const tn_model *m, tn_pool *pool, tn_rows *r, tn_acts *a, const int32_t *ids,
                            bool rope_long, const _Atomic bool *cancel, const tn_forward_hooks *hooks,
                            tern_error *err);

/* The same for the next rows of several texts together, few of each: the weights are read once for all. A
 * row gets the bits that it gets alone. texts [n_texts], at most TN_MAX_TEXTS, each with its own cache,
 * positions and slots; rope_cs is set here. ids: of all, text by text, at most a->max_rows. *all: all
 * rows, as tn_forward_logits wants them. Caches are at most as long as a was opened for. */
void tn_forward_texts(const tn_model *m, tn_pool *pool, tn_rows *texts, const bool *rope_long,
                      int32_t n_texts, tn_acts *a, const int32_t *ids, tn_rows *all);

/* The norm after the last layer over n rows: what lm_head reads. */
void tn_forward_out_norm(const tn_model *m, const tn_kernels *kern, const float *x, float *out, int32_t n);
/* logits [n][n_vocab] of rows row0..row0+n-1 of buffer X: what the program has after the layers. */
void tn_forward_logits(const tn_model *m, tn_pool *pool, const tn_rows *r, tn_acts *a, int32_t row0,
                       int32_t n, float *logits);

#endif
