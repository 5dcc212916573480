/* model/model.h - a model in memory, immutable once loaded and shared by sessions.
 * Float models (GGUF, Hugging Face) hold their linears as weight panels in the narrowest exact type. */
#ifndef TN_MODEL_MODEL_H
#define TN_MODEL_MODEL_H

#include "base/pool.h"
#include "kernels/kernels.h"
#include "model/baseline.h"
#include "model/lora.h"
#include "model/program.h"
#include "model/source.h"

typedef struct tn_linear {
    int32_t n, k; /* out, in channels; n == 0: absent */
    tn_panel_dtype dtype;
    void *panels;
    float *bias;  /* [n] or NULL */
    float *full;  /* llm-int8: panels of the unrounded weights, f32; else NULL */
    void *blocks; /* scheme "blocks": the file's blocks as tiles (blocks_s8.h), and no panels; else NULL */
    tn_blocks_type blocks_type;
    bool blocks_in_room; /* blocks lie in the layer's room, which owns them */
} tn_linear;

/* The tensors of a layer by role; what it has not is NULL, or has n == 0. */
typedef struct tn_layer {
    float *vectors[TN_W_N_ROLES];
    tn_linear linears[TN_W_N_ROLES];
    tn_linear
        *experts[TN_N_EXPERT_LINEARS]; /* gate, up, down: [n_experts] each; NULL: the layer has no experts */
    /* What the layer's linears have in blocks, one after another: pages of 2 MiB are for large pieces of
     * memory only, and decoding from 4 KiB pages is a quarter slower. NULL: nothing. */
    void *room;
} tn_layer;

typedef struct tn_model tn_model;
typedef struct tn_streamed tn_streamed;
typedef struct tn_file_experts tn_file_experts;
struct tn_model {
    tn_ctx *ctx;
    tn_hparams h;
    tn_tokenizer *tokenizer; /* NULL: the file has none */
    tn_program program;
    tn_layer top; /* of the model level: embedding (also lm_head when h.tied), lm_head, last norm */
    tn_layer *layers;
    tn_float_scheme scheme;
    uint64_t n_params, weight_bytes;
    _Atomic uint64_t fingerprint; /* see tn_model_fingerprint; 0: nobody has asked yet */
    tn_file_experts
        *file_experts;     /* reads experts when they are chosen (file_experts.h); NULL: all are here */
    tn_streamed *streamed; /* the file's blocks that are on their way (streamed.h); NULL: all are here */
    char description[64];
    tn_lora *loras[TN_MAX_LORAS]; /* owned: adapters that texts may be read with */
    int32_t n_loras;
    tn_model
        *next; /* the layer that guesses one token further, as a model of one layer (next.h); NULL: none */
};

/* What the weights of a role take in memory once a model of this scheme is loaded; 0: they are not there. */
uint64_t tn_model_role_bytes(const tn_source *src, tn_float_scheme scheme, int layer, tn_role role);

/* Load every weight of the source: as float panels, rounded as the scheme rounds; with TN_FLOAT_BLOCKS in the
 * file's blocks where it has some. Takes the source's tokenizer. Reports progress "load". */
tern_status tn_model_load(tn_ctx *ctx, tn_pool *pool, tn_source *src, tn_float_scheme scheme, tn_model **out,
                          tern_error *err);
/* The same in blocks without the experts, which tn_file_experts_open reads on demand; nor is the layer that guesses further. */
tern_status tn_model_load_without_experts(tn_ctx *ctx, tn_pool *pool, tn_source *src, tn_model **out,
                                          tern_error *err);
/* The same with weights of linears in blocks of 8 bits where the file has floats: a third of the time and a quarter
 * of the memory (scheme int8; and for measurements that compare a model with itself). Its text is not the model's, bit by bit. */
tern_status tn_model_load_q8(tn_ctx *ctx, tn_pool *pool, tn_source *src, tn_model **out, tern_error *err);
/* The same without embedding, lm_head and layers (weight_bytes and fingerprint tell nothing then): for work
 * that goes layer by layer in little memory. */
tern_status tn_model_outline(tn_ctx *ctx, tn_pool *pool, tn_source *src, tn_model **out, tern_error *err);
/* The layer of an outline's source that guesses further, into m->next: its linears in blocks of 8 bits, as packages
 * hold them. Each one's inputs are a multiple of 32. */
tern_status tn_model_load_next(tn_model *m, tn_pool *pool, tn_source *src, tern_error *err);
tern_status tn_model_load_layer(tn_model *m, tn_pool *pool, tn_source *src, int layer, tern_error *err);
void tn_model_drop_layer(tn_model *m, int layer);
void tn_model_close(tn_model **m);

/* Identity of every hyperparameter, all weights and the tokenizer: it ties saved states to their model. The first call
 * reads all weights in memory, and waits for those that are on their way; any thread may call. */
uint64_t tn_model_fingerprint(const tn_model *m);

/* A model whose tensors lie in memory as they lie in the file, once somebody has read them there (streamed.h). It has
 * no tokenizer yet.
 * memory: of a role's whole tensor, and after the model's own of 16 rows more; NULL: it is not read. Each layer is placed once, then filled once; only
 * then its weights may be used. *fits: false where tensors cannot be used where they lie: then the model is loaded
 * whole, by tn_model_load. */
typedef uint8_t *(*tn_tensor_memory)(void *user, int layer, tn_role role);
tern_status tn_model_place(tn_ctx *ctx, tn_source *src, tn_tensor_memory memory, void *user, bool *fits,
                           tn_model **out, tern_error *err);
/* layer n_layers: the layer that guesses further, which is read here. */
tern_status tn_model_fill(tn_model *m, tn_pool *pool, tn_source *src, int layer, tn_role role,
                          tn_tensor_memory memory, void *user, tern_error *err);

/* Tensors of a layer; outside 0 .. n_layers - 1 of the model level. */
static inline const tn_layer *tn_model_layer(const tn_model *m, int32_t layer) {
    return layer < 0 || layer >= m->h.n_layers ? &m->top : &m->layers[layer];
}
static inline const float *tn_model_vector(const tn_model *m, int32_t layer, tn_role role) {
    return tn_model_layer(m, layer)->vectors[role];
}
/* The linears of a role: one, or one for every expert. */
static inline tn_linear *tn_model_linears(const tn_model *m, int32_t layer, tn_role role, int32_t *n) {
    tn_layer *l = &m->layers[layer];
    *n = tn_role_of_experts(role) ? m->h.n_experts : 1;
    return tn_role_of_experts(role) ? l->experts[role - TN_W_GATE_EXPS] : &l->linears[role];
}
static inline const tn_linear *tn_model_linear(const tn_model *m, int32_t layer, tn_role role) {
    return &tn_model_layer(m, layer)->linears[role];
}

enum { TN_MAX_PRODUCTS = 32 }; /* that are one loop of the pool */

/* Rows row0 .. row0 + m - 1 through a linear: out [m][ldo]. */
typedef struct tn_product {
    const tn_linear *l;
    size_t row0, m, ldo;
    float *out;
} tn_product;

/* out = x W^T + bias of n products, spread over the pool. They have the same number of input channels, and those of
 * the same first row have the same rows. x [][ldx]; acts: what model/blocks.h asks for where any has blocks, of the
 * rows up to the last; else NULL. */
void tn_linears_run(const tn_product *p, size_t n, const tn_kernels *kern, tn_pool *pool, const float *x,
                    size_t ldx, tn_blocks_act *acts);
/* One product of m rows. */
void tn_linear_run(const tn_linear *l, const tn_kernels *kern, tn_pool *pool, const float *x, size_t ldx,
                   float *out, size_t ldo, size_t m, tn_blocks_act *acts);
/* Row n of the weights, widened: out [k]. */
void tn_linear_row(const tn_linear *l, size_t n, float *out);

#endif
