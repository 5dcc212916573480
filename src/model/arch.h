/* model/arch.h - the table of architectures, and hyperparameters from a config.json or from GGUF metadata. */
#ifndef TN_MODEL_ARCH_H
#define TN_MODEL_ARCH_H

#include "formats/gguf.h"
#include "model/hparams.h"

#include <jansson.h>

/* A file has at most so many layers that guess further; the first is used. */
enum { TN_MAX_NEXT = 8 };

/* Which words a file has for the scales of embeddings, residuals, attention and logits. */
typedef enum tn_scales { TN_SCALES_NONE, TN_SCALES_GRANITE, TN_SCALES_MINICPM, TN_SCALES_COHERE } tn_scales;

/* What folders have of products after pooling, each in a folder of its own, as tensors (folder_text.h). */
#define TN_FOLDER_DENSE_1 "dense.0.linear.weight"
#define TN_FOLDER_DENSE_2 "dense.1.linear.weight"

typedef struct tn_arch {
    const char *name;    /* ours */
    const char *hf;      /* model_type of config.json */
    const char *hf_also; /* another one, NULL: none */
    const char *gguf;    /* general.architecture, prefix of its keys */
    tn_norm_kind norm;
    tn_act act; /* where the file does not say */
    bool gated, parallel_block, post_norms, no_pre_norms, qk_norm, qk_norm_whole, qk_norm_last;
    tn_scales scales;
    bool experts, experts_norm, experts_beside, sinks; /* see tn_hparams */
    float swiglu_limit;
    bool o_bias;       /* so has what attention gives; with experts: router and experts too */
    bool conv;         /* some layers convolve instead of attending (LFM2) */
    bool delta;        /* all but every fourth layer, or as the file says, are gated delta nets */
    bool delta_tiled;  /* GGUF holds their heads so that head h reads key head h % n_key_heads */
    bool delta_apart;  /* their projections are tensors of their own; else interleaved by key head */
    bool mamba;        /* they are state spaces of Mamba 2, in the layers that the file says; with delta */
    bool mamba_beside; /* or in every layer, beside attention (Falcon-H1) */
    bool attn_gate, shared_expert, experts_sigmoid; /* see tn_hparams; shared experts have a gate... */
    bool shared_ungated;                            /* ... or none */
    bool
        chunked; /* windows are chunks; the layers without one have no rope, and queries that grow (Llama 4) */
    bool experts_turned;   /* folders hold the experts' matrices by their columns */
    bool experts_before;   /* see tn_hparams; the file says in which layers experts are */
    float experts_mixer;   /* see tn_hparams; a folder says half of it as the router's noise */
    bool experts_said;     /* the file says whether scores become sigmoids or shares */
    bool fused_in_order;   /* folders hold queries, keys and values one after another in one tensor */
    bool single;           /* see tn_hparams */
    bool alone;            /* all layers are state spaces or their like: nothing attends (Mamba 2, RWKV-7) */
    bool wkv;              /* they are those of RWKV-7, with delta... */
    bool kda;              /* those that do not attend are Kimi's delta attention, with delta... */
    bool kda_bounded;      /* ... whose decays have a floor: see tn_delta_net (Ling 3) */
    bool shift_ffn;        /* ... and so are its feed-forward blocks and the norm of its embedding */
    bool sub_norms;        /* see tn_hparams; folders may hold weights that three values stand for */
    bool latent;           /* attention is of latents (MLA) */
    bool head;             /* see tn_hparams: its files are no models */
    bool assistant;        /* and it is no head of EAGLE-3 but an assistant */
    bool dflash;           /* or a drafter of DFlash */
    bool experts_biased;   /* a bias chooses experts; its folders always have it */
    bool next_by_number;   /* folders hold layers that guess further as layers after the others: not used */
    bool dense_first;      /* the first layers may be dense, though the others have experts */
    const char *gguf_only; /* why folders are not read; NULL: they are */
    bool temperature;      /* queries are scaled by their position (Ministral 3) */
    bool qkv_bias;         /* Q, K and V have biases */
    bool biases;           /* every linear and norm has one... */
    bool no_out_bias;      /* ... but the output layer */
    bool norm_biases;      /* every norm has one, linears need not */
    bool may_be_parallel;  /* the file says whether blocks are parallel */
    bool qk_norm_said;     /* and whether queries and keys are normed */
    bool dynamic;          /* rope of type "dynamic" changes what is beyond the trained context alone */
    bool sections;         /* rope has several axes, which have the same position in text... */
    bool interleaved;      /* ... and whose pairs take turns */
    bool norm_plus_one;    /* Hugging Face stores norm weights less 1 (GGUF does not) */
    bool scale_embd;       /* embeddings are multiplied by sqrt(n_embd) */
    bool gguf_permuted;    /* GGUF holds Q and K rows in interleaved rope order... */
    bool hf_permuted;      /* ... and so do folders */
    bool gguf_fused;       /* other engines want Q, K, V as one tensor of GGUF, and gate and up as one */
    bool gguf_fused_ffn;   /* of these gate and up alone */
    bool window;           /* config.json's sliding_window holds */
    int32_t window_pattern, no_rope_pattern; /* see tn_hparams */
    bool no_rope_where_all; /* a model of windows: the layers without one have no rope (EXAONE 4) */
    bool local_rope;        /* its layers with a window have a rope table of their own */
    bool window_any;        /* the file says the period of windows layer by layer, whatever it is (Gemma 4) */
    bool window_heads;      /* its layers with a window may have other heads than the rest */
    bool v_norm;            /* see tn_hparams */
    bool streams;           /* several residual streams, a low-rank product beside attention (Gemma 3n) */
    bool bidirectional;     /* its rows see the whole text: it reads and does not write */
    bool encoder;   /* and has BERT's norms: of a token's sum of embeddings, and after what blocks add */
    bool positions; /* of learned rows, in place of rope... */
    bool positions_padded; /* ... which in folders come after those of padding */
    bool modern;        /* or ModernBERT's: norms in front, but of the first layer's attention; no biases */
    float alibi;        /* see tn_hparams */
    bool qk_norm_found; /* the tensors tell whether queries and keys are normed (Jina), */
    bool norm_2_found;  /* and whether attention is normed twice, where the gate comes second in one tensor */
    bool experts_flat; /* folders hold the experts' matrices under each other, those of their output turned */
    bool tasks;        /* folders hold adapters of tasks beside the weights (Jina's third) */
    const char *hf_qkv, *hf_gate_up;  /* such tensors of a layer in folders; NULL: as everywhere */
    const char *hf_before[2];         /* what may come before names in folders, without a dot */
    bool shared_kv, ple;              /* last layers may share keys and values; layers may have embeddings */
    float attn_scale, logit_soft_cap; /* where the file does not say; 0: by the size of heads, none */
    double partial;    /* share of a head that is rotated, where a folder does not say; 0: all */
    double local_base; /* of that table, where the file does not say; 0: the model's base */
    const char
        *hf_dense; /* what comes before "gate_proj.weight" in layers without experts; NULL: as everywhere */
    const char *hf_layers; /* what comes before a layer's number in folders; NULL: "model.layers." */
    const char
        *hf_names[TN_W_N_ROLES]; /* where they differ from Llama's; without "model.layers.N." for layers.
                                    With dense_first those of a shared expert are names in its layers alone */
    const char *gguf_names[TN_W_N_ROLES];
} tn_arch;

/* Kimi-Linear, of what has its delta attention. */
static inline bool tn_arch_is_kimi(const tn_arch *a) { return a->kda && !a->kda_bounded; }

/* Of heads, which are no models (arch_head.c): none of the functions below gives it. */
extern const tn_arch tn_arch_eagle3, tn_arch_assistant, tn_arch_dflash;
static inline bool tn_arch_is_eagle(const tn_arch *a) { return a->head && !a->assistant && !a->dflash; }
const tn_arch *tn_arch_of_head_hf(const json_t *config); /* NULL: it is of a model */
const tn_arch *tn_arch_of_head_gguf(const char *name, size_t n);
/* tn_arch_hparams_hf of a head of this form. */
tern_status tn_arch_head_hf(const tn_arch *a, const json_t *config, const char *file, tn_hparams *h,
                            tern_error *err);

const tn_arch *tn_arch_by_hf(const char *model_type); /* NULL: unknown */
/* Of a config.json: by its model type, and where families share one, by what else it says. */
const tn_arch *tn_arch_of_config(const json_t *config);
const tn_arch *tn_arch_by_gguf(const char *name, size_t n);
const tn_arch *tn_arch_named(const char *name); /* by our own name */
/* The row of the files' name that has experts, or has none, where one name stands for both (Granite 4); else a. */
const tn_arch *tn_arch_variant(const tn_arch *a, bool experts);
/* "llama, mistral, ..." for messages and help; "... and 9 others" where there is no room for all */
void tn_arch_list(char *buf, size_t cap);

/* Tensor name of a role: in the file's own naming. Returns false when the role cannot occur. */
bool tn_arch_hf_name(const tn_arch *a, const tn_hparams *h, int layer, tn_role role, char *buf, size_t cap);
bool tn_arch_gguf_name(const tn_arch *a, const tn_hparams *h, int layer, tn_role role, char *buf, size_t cap);
const char *tn_arch_hf_layers(const tn_arch *a);
/* The layer that guesses further: "model.layers.N.x" becomes "mtp.layers.0.x" in folders. */
void tn_arch_hf_next(char *name, size_t cap);
/* What a file says it has of layers that guess further, and whether it has any of their tensors: h->n_next. */
tern_status tn_arch_next(const tn_arch *a, const char *file, int32_t said, bool any, tn_hparams *h,
                         tern_error *err);
/* Must the tensor be there? */
bool tn_arch_required(const tn_arch *a, const tn_hparams *h, tn_role role);

/* Llama 3.1's scaling of n rope frequencies: long wavelengths are stretched by `factor`, short ones kept,
 * those between blended. */
void tn_rope_llama3(double *freq, int n, double factor, double low, double high, double orig_ctx);

/* Does a config.json say of layers of one block that some are experts? */
bool tn_arch_single_routes(const json_t *config);
/* What a folder's tensors are multiplied by where they are read, because its configuration says so of what they give
 * (Falcon-H1; GGUF files hold the products): by[role], or 0 for nothing. */
tern_status tn_arch_multipliers_hf(const tn_arch *a, const json_t *config, const char *file,
                                   float by[TN_W_N_ROLES], tern_error *err);
/* Does a folder hold weights as they are trained, of which the model computes with the nearest of three values (BitNet)?
 * Weights that are packed already are refused. */
tern_status tn_arch_ternary_hf(const tn_arch *a, const json_t *config, const char *file, bool *ternary,
                               tern_error *err);
tern_status tn_arch_hparams_hf(const tn_arch *a, const json_t *config, const char *file, tn_hparams *h,
                               tern_error *err);
tern_status tn_arch_hparams_gguf(const tn_arch *a, const tn_gguf *g, tn_hparams *h, tern_error *err);

#endif
