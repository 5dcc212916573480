/* lab/shapes.h - the models that tn_synth writes: what there is of each, and how large it is. */
#ifndef TN_LAB_SHAPES_H
#define TN_LAB_SHAPES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct tn_synth_shape {
    const char *name, *arch; /* arch by its GGUF name */
    int32_t n_layers, n_embd, n_heads, n_kv_heads, d_head, n_ff, n_vocab, ctx;
    float rope_base, eps;
    bool tied;
    int32_t n_rot;       /* 0: d_head */
    float llama3_factor; /* rope scaling of Llama 3.1 and later from a context of 8192; 0: none */
    int32_t window;      /* 0: as the architecture's first models have it */
    float linear;        /* rope scaling of type linear; 0: none */
    float yarn;          /* of type yarn, from orig_ctx tokens; 0: none */
    int32_t orig_ctx;
    int32_t n_experts, n_used, conv_len; /* layers 2, 5, 8... attend, the others convolve */
    int32_t n_ff_exp, n_dense;           /* 0: n_ff; layers without experts */
    int32_t delta_heads, delta_keys,
        delta_d; /* heads and key heads of delta nets, and their sizes; 0: none */
    int32_t window_d,
        window_kv; /* head size and KV heads of layers with a window, which have a base of 1e4 and
                                    rotate all of it, the others a quarter; 0: no such differences */
    int32_t period, n_shared, n_ff_shared, n_ple; /* see tn_hparams */
    bool v_is_k, no_norm;                         /* of a state space: what it gives is gated alone */
    int32_t rank, n_sparse; /* of the product beside attention, layers with sparse gates (Gemma 3n) */
    int32_t n_ff_dense;     /* of layers without experts, where n_ff is a shared expert's */
    bool parallel, qk_norm; /* where an architecture leaves it to the file */
    bool next;              /* a layer after the others guesses one token further */
    int sees; /* its vocabulary has marks of pictures, and it has a template for them: 1 SmolVLM's, 2 Gemma 3's, 3 Qwen3-VL's, 4 LFM2-VL's, 5 InternVL's, 6 Gemma 4's */
    int32_t deepstack;                       /* first layers that add to rows of pictures */
    int32_t groups, groups_used;             /* of experts; 0: one */
    const char *blocks;                      /* of layers of one block: M, *, - or E each */
    int32_t latent, q_rank, d_nope, d_value; /* of latent attention, see tn_hparams; 0: of heads */
    int32_t low[4];                          /* ranks of RWKV-7's products: decays, rates, values, gates */
    int32_t attends;                         /* of delta nets' models every so many-th layer; 0: the fourth */
    int32_t every;                           /* experts are in the last of so many layers; 0: in all */
    bool sigmoid; /* scores of experts become sigmoids, with a bias for the choice, where files say so */
    bool
        unsaid; /* the file leaves out what other engines do not read: chunks of Llama 4, BitNet's activation */
    bool joint;    /* its keys and values are one tensor, as older files have them */
    bool longrope; /* factors for every pair, from orig_ctx tokens */
    bool
        spread; /* values as far apart as a trained model's: what a wrong sign or scale does shows in the logits */
} tn_synth_shape;

const tn_synth_shape *tn_synth_shape_at(size_t i);         /* NULL beyond the last */
const tn_synth_shape *tn_synth_shape_of(const char *name); /* NULL: there is none */

#endif
