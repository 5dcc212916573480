/* model/hparams.h - what distinguishes one architecture from another, as data.
 * Every supported family is one row of the table in arch_table.c; a new one is a row and at most one operator. */
#ifndef TN_MODEL_HPARAMS_H
#define TN_MODEL_HPARAMS_H

#include "kernels/elem_f32.h"

#include <stdbool.h>
#include <stdint.h>

typedef enum tn_norm_kind { TN_NORM_RMS, TN_NORM_LAYER } tn_norm_kind;

typedef enum tn_layer_kind {
    TN_LAYER_ATTENDS,
    TN_LAYER_CONVOLVES, /* a short convolution (LFM2) */
    TN_LAYER_DELTA,     /* a gated delta net (Qwen3-Next), or the state space of Mamba 2 (Granite 4) */
    TN_LAYER_BOTH,      /* attention and a state space read one norm, and both are added (Falcon-H1) */
    TN_LAYER_FEEDS, /* nothing: it only feeds forward, where blocks are layers of their own (Nemotron-H) */
    TN_N_LAYER_KINDS
} tn_layer_kind;

/* How the rows of a text become its vector: as llama.cpp numbers them, less 1. */
typedef enum tn_pooling {
    TN_POOL_UNSAID, /* a model that writes, whose last row has seen all */
    TN_POOL_NONE,
    TN_POOL_MEAN,
    TN_POOL_FIRST,
    TN_POOL_LAST,
    TN_POOL_RANK, /* no vector, but a score */
    TN_N_POOLINGS
} tn_pooling;

/* Which rows of its block a row of a DFlash drafter sees, in the order of what files say. */
typedef enum tn_block_sight {
    TN_SIGHT_BY_LAYER, /* all; in layers with a window those before it */
    TN_SIGHT_ALL,
    TN_SIGHT_BEFORE
} tn_block_sight;

/* The number of streams that models with several have. */
enum { TN_STREAMS = 4 };
enum {
    TN_MAX_FF = 1 << 19,
    TN_MAX_LAYERS = 512,
    TN_MAX_TAPS = 32,    /* layers of a model that a head reads */
    TN_MAX_BLOCK = 1024, /* rows of a block, as a drafter of DFlash says */
    TN_MAX_ROT = 512,
    TN_MAX_EXPERTS = 1024,
    TN_MAX_CONV = 16,
    TN_MAX_DELTA = 256,
    TN_MAX_WKV = 8192, /* values of a row of RWKV-7 */
    TN_MAX_LOW = 1024  /* of its products of low rank */
};

/* Clamps are below this. */
#define TN_MAX_LIMIT 1e6
/* Beyond, decays are 0 in floats. */
#define TN_MAX_DEEPEST 64

/* A gated delta net: n_heads heads with a matrix of d_key x d_value each; n_key_heads heads of keys and
 * queries. */
typedef struct tn_delta_net {
    int32_t n_heads, n_key_heads, d_key, d_value;
    bool tiled; /* head h reads key head h % n_key_heads; else those of a key head lie side by side */
    /* The state space of Mamba 2, which is the same memory: d_key values of a state for each of a head's d_value,
     * B as keys, C as queries, a group of heads for every key head. A row is put in whole, without what the state
     * knows of it already, and rates are the steps that decays follow from; values also pass by the state (D);
     * the gate comes in front of the norm, which is of a group's heads together. */
    bool mamba;
    bool no_norm;    /* what it gives is gated alone */
    bool norm_first; /* the norm comes in front of the gate */
    /* RWKV-7 (wkv_f32.h): every key decays by itself, and a part of what is found in one direction is taken back. Rows
     * are mixed with the one before in front of their products, and no convolution comes after them. */
    bool wkv;
    /* Kimi's delta attention: the same memory, of which a row takes back along its key what its rate says. Decays of
     * every key and gates come by way of d_key values; q, k and v have convolutions of their own, as delta nets have. */
    bool kda;
    /* Or they are products of the row at once, of full rank, and a decay's logarithm is -deepest sigmoid(-A (decay +
     * bias)), which is never below -deepest (Ling 3); 0: any decay. */
    float deepest;
} tn_delta_net;

/* Do keys decay by themselves? */
static inline bool tn_delta_by_key(const tn_delta_net *n) { return n->wkv || n->kda; }
/* Of Kimi's delta attention: are decays and gates products of the row itself? */
static inline bool tn_delta_at_once(const tn_delta_net *n) { return n->deepest > 0; }

/* What its convolution takes: q, k and v of all heads. */
static inline int32_t tn_delta_channels(const tn_delta_net *n) {
    return n->wkv ? 0 : 2 * n->n_key_heads * n->d_key + n->n_heads * n->d_value;
}
/* Vectors of keys that a row of RWKV-7 brings to its memory: q, k, decays, what is asked for, what is put back. */
enum { TN_WKV_KEYS = 5 };
/* What the recurrence reads: that, or those, and v. */
static inline int32_t tn_delta_mixed(const tn_delta_net *n) {
    return tn_delta_by_key(n) ? TN_WKV_KEYS * n->n_heads * n->d_key + n->n_heads * n->d_value
                              : tn_delta_channels(n);
}
static inline int32_t tn_delta_key_head(const tn_delta_net *n, int32_t head) {
    return n->tiled ? head % n->n_key_heads : head / (n->n_heads / n->n_key_heads);
}

enum { TN_AXES = 3, TN_MAX_DEEPSTACK = 16 };

typedef struct tn_hparams {
    char arch[32]; /* canonical name: a row of the table in arch_table.c */
    char name[128];
    int32_t n_layers, n_embd, n_heads, n_kv_heads, d_head, n_ff, n_vocab, ctx_train;
    int32_t n_next; /* 1: the file has a layer after the others that guesses one token further (next.h) */
    tn_norm_kind norm;
    float norm_eps;
    tn_act act;
    bool gated;          /* gate and up projections (GLU) or a plain two-layer MLP */
    bool parallel_block; /* attention and MLP both read the same norm; x += attn + mlp (Phi-2) */
    bool post_norms;     /* norms after attention and after MLP as well (Gemma 2) */
    bool no_pre_norms;   /* and none in front of them (OLMo 2, EXAONE 4) */
    bool qk_norm;        /* RMS norm of each Q and K head before rope (Qwen3) */
    bool qk_norm_whole;  /* of all heads' values together (OLMo 2) */
    bool qk_norm_last;   /* after rope (Hunyuan) */
    bool tied;           /* output head is the embedding */
    float embd_scale;    /* multiplies embeddings (Gemma: sqrt(n_embd)); 1 = none */
    float attn_scale;    /* multiplies q.k; normally 1/sqrt(d_head) */
    float residual_scale,
        logit_scale; /* multiply what a block adds, and the logits; 1 = none (Granite, MiniCPM) */
    /* Queries at position p are multiplied by 1 + temp_scale * ln(1 + floor(p / temp_every)); 0 = none
     * (Ministral 3) */
    float temp_scale;
    int32_t temp_every;
    float attn_soft_cap, logit_soft_cap; /* 0 = off (Gemma 2) */
    int32_t window;                      /* sliding window in tokens, 0 = none */
    int32_t window_pattern; /* 0: every layer has the window; p: layers i with (i % p) != p-1 have it (Gemma
                               2: 2) */
    int32_t
        no_rope_pattern; /* 0: every layer has rope; p: layers i with (i % p) == p-1 have none (SmolLM3: 4) */
    /* rope: angle of pair i at position p is p * inv_freq[i]; cos and sin are multiplied by rope_mscale */
    int32_t n_rot; /* rotated values per head, <= d_head, even */
    double rope_base;
    float inv_freq[TN_MAX_ROT / 2];      /* scaling (linear, llama3, longrope short) already applied */
    float inv_freq_long[TN_MAX_ROT / 2]; /* longrope: used when the context exceeds rope_orig_ctx; else equal
                                            to inv_freq */
    int32_t rope_orig_ctx;               /* 0: no switch */
    float rope_mscale;
    bool local_rope; /* layers with a window rotate by inv_freq_local, unscaled (Gemma 3) */
    float inv_freq_local[TN_MAX_ROT / 2];
    /* A mixture of experts in place of feed-forward blocks, after the first n_dense layers; 0: none */
    int32_t n_experts, n_experts_used, n_ff_exp, n_dense;
    int32_t n_ff_dense;   /* feed-forward size of those layers, where n_ff is a shared expert's; 0: n_ff */
    bool experts_norm;    /* the weights of those chosen add up to 1; else they are shares of all */
    bool experts_sigmoid; /* a score's weight is its sigmoid; else softmax */
    bool experts_bias;    /* added to weights where experts are chosen, and nowhere else (LFM2-MoE) */
    float experts_scale;  /* multiplies the weights; 1: none */
    bool shared_expert;   /* a feed-forward block of size n_ff beside them, which all rows pass */
    /* The experts read a norm of their own beside a dense block's, and the router another; what either gives is
     * normed before the sum (Gemma 4) */
    bool experts_beside;
    bool shared_gate; /* its result is multiplied by the sigmoid of a score of its own */
    float
        swiglu_limit; /* gate at most, up within +-limit, (up + 1) gate sigmoid(1.702 gate); 0: act(gate) up (gpt-oss) */
    /* Layer by layer: act(gate) is at most this, and up within it on either side, of experts and of the block that is none
     * of them; 0: any (Ling 3) */
    float experts_most[TN_MAX_LAYERS], shared_most[TN_MAX_LAYERS];
    /* Convolutions: values a row sees of every channel, itself included; 0: none */
    int32_t conv_len;
    uint8_t layer_kind[TN_MAX_LAYERS]; /* tn_layer_kind: what a layer mixes its tokens by */
    tn_delta_net delta;                /* of the layers that are one */
    /* Attention's output is multiplied by the sigmoid of a projection beside Q: value by value (Qwen3-Next), or in latent
     * attention head by head (Ling 3) */
    bool attn_gate;
    bool sinks; /* every head has a score that takes its share of the softmax and no value (gpt-oss) */
    /* Of the layers with a window, where they differ from the others: size and number of KV heads, rotated
     * values; 0: as the others (Gemma 4) */
    int32_t window_d_head, window_kv_heads, window_rot;
    /* So many last layers keep no keys and values, and read those of the last layer before them that is of
     * their kind, with a window or without; their feed-forward size, 0: n_ff */
    int32_t n_kv_shared, n_ff_shared;
    bool v_norm;      /* V's heads are normed, without weights */
    bool v_is_k;      /* layers without a window have no V of their own: it is K as projected */
    bool layer_scale; /* what a layer leaves is multiplied by a number of its own */
    /* Values of a token's embedding for every layer, which it adds after its feed-forward block; 0: none */
    int32_t n_ple;
    /* So many residual streams lie side by side, and a layer works on the first and corrects all (AltUp, Gemma
     * 3n); 0: one. */
    int32_t n_streams;
    int32_t laurel_rank; /* of the low-rank product that goes beside attention (Gemma 3n); 0: none */
    /* In so many first layers a gate is kept only as far as it is above its row's mean by so many deviations;
     * 0: in none */
    int32_t n_sparse;
    float sparse_deviations;
    /* A row sees the whole text, those after it too, which is therefore evaluated at once; a window is of so many
     * tokens around it, half of them on either side. Such a model reads and does not write. */
    bool bidirectional;
    bool norms_after; /* what a block adds is not normed, but the sum, in place (BERT) */
    bool
        embd_norm; /* the sum of a token's embedding, of the first text type's row and of the position's is normed */
    bool embd_type;
    int32_t n_positions; /* learned rows, one a position; 0: none */
    tn_pooling pooling;  /* how a text's rows become a vector, where the file says it */
    /* Products that the pooled vector goes through: two dense ones without anything between them, by way of so many
     * values (EmbeddingGemma), or a layer with tanh and then so many scores (rerankers); 0: none. */
    int32_t n_between, n_scores;
    bool score_layer;
    int32_t positions_from; /* rows of the file in front of them */
    int32_t n_vocab_rest;   /* rows of the embedding after n_vocab that stand for no text */
    /* Latent attention (MLA): a position keeps one row for all heads, `rank` values that keys and values come of, and
     * n_rot that are rotated. Queries are multiplied into them (absorbed), so that all heads share one key, which is
     * the value too. d_head is rank + n_rot then, n_kv_heads 1. A head's own key has d_nope values more, and its own
     * value d_value. Queries come by way of q_rank values; 0: at once. rank 0: attention is of heads. */
    struct {
        int32_t rank, q_rank, d_nope, d_value;
    } latent;
    /* Experts are in so many groups, of which a row has the experts of so many: those whose two largest scores (shares:
     * the largest) are largest; 0: one group */
    int32_t experts_groups, experts_groups_used;
    bool single; /* a layer is one block: those that mix tokens do not feed forward */
    /* So many pairs turn by a row's time, and by its place down and across in a picture (axes.h), one after another or,
     * interleaved, in turns as long as there are some; all 0: a row has one position. */
    int32_t rope_axes[TN_AXES];
    bool rope_interleaved;
    int32_t n_deepstack; /* first layers that add values of their own to the rows of pictures */
    /* Two experts are taken one after the other. The weight of each is its share among those whose scores are within so
     * much of the largest, relative to it or to their own size; the first is out for the second (SparseMixer, Phi-3.5-MoE);
     * 0: the largest, at once */
    float experts_mixer;
    /* Llama 4: a window is a chunk of so many positions, of which a row sees those before it; queries grow with their
     * position in the layers without rope alone, counted from 1; queries and keys are normed without weights after their
     * rotation, where they are rotated; an expert reads a row times its weight, and what it gives is taken as it is */
    bool window_chunks, temp_no_rope, qk_norm_plain, experts_before;
    int32_t experts_every; /* experts are in the last of every so many layers; 0: in all */
    bool sub_norms;        /* norms in front of what brings a block's width back (BitNet) */
    /* A head that drafts for another model (EAGLE-3, next.h) is one layer, whose attention reads a token's
     * embedding beside what the head knows of the token before it: at first what three layers of that model
     * were given, joined by a projection. One of DFlash (dflash.h) has several layers, drafts a block of
     * tokens at once, and keeps keys and values of what any number of the model's layers were given. */
    struct {
        int32_t n_target;          /* width of that model's residual; 0: this is a model, and no head */
        int32_t n_from;            /* layers of it whose input is read; 0: it is an assistant */
        int32_t from[TN_MAX_TAPS]; /* which; all 0: the third, the middle one, and the last but two */
        int32_t n_vocab;           /* tokens that its output layer knows */
        bool own_embd, own_out;    /* else they are the model's */
        bool norm_in;              /* what is joined is normed first */
        bool norm_residual;        /* the residual begins with what the norm leaves */
        int32_t block;             /* of DFlash: rows of a block, of which the first is a token; else 0 */
        int32_t mask;              /* the token that stands in the others */
        int32_t n_of;              /* layers of the model that it is for; 0: not said */
        tn_block_sight sight;
    } head;
    /* RWKV-7: products of low rank make decays, rates, the share of the first layer's values, and gates; 0: there is
     * none. Feed-forward blocks mix a row with the one before, too. */
    struct {
        int32_t decay, rate, value, gate;
    } low;
    bool shift_ffn;
    /* The head is an assistant (Gemma 4, assistant.h): several layers, which have no keys and values and
     * attend to the model's. It reads the token's embedding beside the state, both of the model, and leaves
     * such a state. */
    bool assistant;
    /* Of models that embed: of a period's layers the first has no window, in place of the last; the first layer has no
     * norm in front of attention; the norm of a token's embedding has no bias (all ModernBERT). What lies in front of
     * scores ends with GELU in place of tanh, and with a norm; scores are of the mean of rows, not of the first. Scores go through tanh (Jina's first rerankers in GGUF files,
     * which lack the layer in front of them). */
    bool window_rest, first_norm_none, embd_norm_bare, score_gelu, score_norm, score_mean, score_tanh;
    /* Jina's: a score falls by the distance of its rows times a slope of its head, 2^-(alibi / n_heads) to the first,
     * second ... power where heads are a power of two; 0: none. Queries and keys of all heads together have layer norms
     * with biases. What attention leaves is added to the stream and normed once more. */
    float alibi;
    bool qk_norm_biased, attn_norm_twice;
    bool experts_out_bias; /* a vector is added to what a row's experts give together (nomic) */
} tn_hparams;

static inline bool tn_is_head(const tn_hparams *h) { return h->head.n_target > 0; }
static inline bool tn_is_assistant(const tn_hparams *h) { return h->assistant; }
static inline bool tn_is_dflash(const tn_hparams *h) { return h->head.block > 0; }
static inline bool tn_is_eagle(const tn_hparams *h) {
    return tn_is_head(h) && !tn_is_assistant(h) && !tn_is_dflash(h);
}

static inline bool tn_has_axes(const tn_hparams *h) { return h->rope_axes[1] > 0; }
/* Rows of a picture see each other: Gemma 3's, and those of Gemma 4 whose layers have no embeddings of their own. */
bool tn_pictures_see_themselves(const tn_hparams *h);
/* By which axis a pair turns. */
static inline int32_t tn_rope_axis(const tn_hparams *h, int32_t pair) {
    const int32_t *n = h->rope_axes, axis = pair % TN_AXES;
    if (h->rope_interleaved) return axis && pair < TN_AXES * n[axis] ? axis : 0;
    return pair < n[0] ? 0 : pair < n[0] + n[1] ? 1 : 2;
}

static inline bool tn_latent(const tn_hparams *h) { return h->latent.rank > 0; }

/* The tensors of a layer, and of the model, in canonical form: linears [N][K] row-major as in y = x W^T + b;
 * fused QKV and gate-up are split; rope pairs are rotate-half (GGUF's interleaved Llama rows are permuted
 * back); Gemma's norm weights include their +1. */
typedef enum tn_role {
    /* model level (layer = -1) */
    TN_W_EMBD, /* [n_vocab][n_embd] */
    TN_W_OUT_NORM,
    TN_W_OUT_NORM_B,
    TN_W_OUT,
    TN_W_OUT_B, /* absent when tied */
    /* layer level */
    TN_W_ATTN_NORM,
    TN_W_ATTN_NORM_B,
    TN_W_Q,
    TN_W_K,
    TN_W_V,
    TN_W_O,
    TN_W_Q_B,
    TN_W_K_B,
    TN_W_V_B,
    TN_W_O_B,
    TN_W_Q_NORM,
    TN_W_K_NORM,
    TN_W_ATTN_POST_NORM,
    TN_W_FFN_NORM,
    TN_W_FFN_NORM_B,
    TN_W_GATE,
    TN_W_UP,
    TN_W_DOWN,
    TN_W_GATE_B,
    TN_W_UP_B,
    TN_W_DOWN_B,
    TN_W_FFN_POST_NORM,
    TN_W_SINKS,  /* [n_heads] */
    TN_W_ROUTER, /* [n_experts][n_embd] */
    TN_W_ROUTER_B,
    TN_W_GATE_EXPS, /* the experts' tensors one after another: [n_experts * n_ff][n_embd] */
    TN_W_UP_EXPS,
    TN_W_DOWN_EXPS, /* [n_experts * n_embd][n_ff] */
    TN_W_GATE_EXPS_B,
    TN_W_UP_EXPS_B,
    TN_W_DOWN_EXPS_B,
    TN_W_CONV_IN,  /* [3 n_embd][n_embd] b, c, x */
    TN_W_CONV,     /* [conv_len][n_embd], the oldest first */
    TN_W_CONV_OUT, /* [n_embd][n_embd] */
    TN_W_ATT_GATE, /* [n_heads * d_head][n_embd], of latent attention [n_heads][n_embd] */
    TN_W_DELTA_Q,  /* [n_key_heads * d_key][n_embd] of the delta net */
    TN_W_DELTA_K,
    TN_W_DELTA_V, /* [n_heads * d_value][n_embd] */
    TN_W_DELTA_GATE,
    TN_W_DELTA_DECAY, /* [n_heads][n_embd]; where they are never below a number [keys of all heads][n_embd] */
    TN_W_DELTA_RATE,
    TN_W_DELTA_OUT,    /* [n_embd][n_heads * d_value] */
    TN_W_DELTA_CONV,   /* [conv_len][channels], the oldest first */
    TN_W_DELTA_A,      /* [n_heads] negative: what a decay is a power of e to */
    TN_W_DELTA_DT,     /* [n_heads] bias of decays */
    TN_W_DELTA_NORM,   /* [d_value]; of a state space [n_heads * d_value], where it has one */
    TN_W_SHARED_GATE,  /* [n_embd] */
    TN_W_EXPERTS_BIAS, /* [n_experts] */
    TN_W_MAMBA_CONV_B, /* [channels] of a state space's convolution */
    TN_W_MAMBA_D,      /* [n_heads] share of the values that pass by the state */
    TN_W_PLE_EMBD,     /* of the model: [n_vocab][n_layers * n_ple] what a token adds to every layer */
    TN_W_PLE_IN,       /* [n_ple][n_embd] of the token's embedding */
    TN_W_PLE_NORM,     /* [n_ple] of what PLE_IN gives; the same in all layers */
    TN_W_PLE_GATE,     /* [n_ple][n_embd] of the residual stream */
    TN_W_PLE_OUT,      /* [n_embd][n_ple] */
    TN_W_PLE_POST_NORM,
    TN_W_LAYER_SCALE, /* [1] */
    TN_W_NEXT_E_NORM, /* [n_embd] of the layer that guesses further: of the token's embedding */
    TN_W_NEXT_H_NORM, /* of the hidden state in front of it */
    TN_W_NEXT_PROJ,   /* [n_embd][2 n_embd] embedding, state */
    TN_W_NEXT_OUT_NORM,
    TN_W_ALTUP_NORM,    /* [n_embd] of what scores the streams */
    TN_W_ALTUP_ROUTER,  /* [n_streams][n_embd] */
    TN_W_ALTUP_PREDICT, /* [n_streams * n_streams][n_streams] */
    TN_W_ALTUP_CORRECT, /* [n_streams][n_streams] */
    TN_W_ALTUP_SCALE,   /* [n_embd] of the stream that reads the layer's embedding */
    TN_W_LAUREL_IN,     /* [laurel_rank][n_embd] */
    TN_W_LAUREL_OUT,    /* [n_embd][laurel_rank] */
    TN_W_LAUREL_NORM,
    TN_W_ALTUP_IN_1, /* of the first layer: [n_embd][n_embd] what the other streams begin with */
    TN_W_ALTUP_IN_2,
    TN_W_ALTUP_IN_3,
    TN_W_ALTUP_OUT_1, /* of the last layer: what they leave */
    TN_W_ALTUP_OUT_2,
    TN_W_ALTUP_OUT_3,
    TN_W_ROUTER_NORM,   /* [n_embd] of what the router reads, where experts stand beside a dense block */
    TN_W_EXPERTS_SCALE, /* [n_experts] what each gives is multiplied by */
    TN_W_EXPERTS_NORM,  /* [n_embd] of what they read */
    TN_W_EXPERTS_POST_NORM,
    TN_W_FFN_OWN_NORM, /* of what the dense block gives, before the sum */
    TN_W_ATTN_POST_NORM_B,
    TN_W_FFN_POST_NORM_B,
    TN_W_EMBD_NORM, /* of the first layer: what token, type and position add up to */
    TN_W_EMBD_NORM_B,
    TN_W_EMBD_TYPE, /* [n_embd] of texts that come first, or alone */
    TN_W_POSITIONS, /* [n_positions][n_embd] */
    TN_W_DENSE_1,   /* of the last layer: [n_between][n_embd] what the pooled vector goes through */
    TN_W_DENSE_2,   /* [n_embd][n_between] */
    TN_W_SCORE_IN,  /* [n_embd][n_embd] in front of the scores */
    TN_W_SCORE_IN_B,
    TN_W_SCORE, /* [n_scores][n_embd] */
    TN_W_SCORE_B,
    TN_W_Q_A, /* [q_rank][n_embd] of latent attention */
    TN_W_Q_A_NORM,
    TN_W_LATENT_Q, /* [n_heads * (d_nope + n_rot)][q_rank or n_embd] */
    TN_W_KV_A,     /* [rank + n_rot][n_embd] */
    TN_W_KV_A_NORM,
    TN_W_K_UP,          /* [n_heads * rank][d_nope] of queries, head by head: what keys would be made by */
    TN_W_V_UP,          /* [n_heads * d_value][rank] of what a head gives */
    TN_W_ATTN_SUB_NORM, /* [n_heads * d_head] */
    TN_W_FFN_SUB_NORM,  /* [n_ff] */
    TN_W_LERP_R,        /* [n_embd] how much of the row before goes into what makes queries, */
    TN_W_LERP_W,        /* decays, */
    TN_W_LERP_K,
    TN_W_LERP_V,
    TN_W_LERP_A, /* rates, */
    TN_W_LERP_G, /* gates, */
    TN_W_LERP_FFN,
    TN_W_LOW_W_B, /* [values of all heads] of decays */
    TN_W_LOW_A_B, /* of rates */
    TN_W_LOW_V_B, /* of the share of the first layer's values */
    TN_W_WKV_KK,  /* what keys are multiplied by for the direction that is asked for */
    TN_W_WKV_KA,  /* how much of a rate a key takes */
    TN_W_WKV_RK,  /* of the row's own share */
    TN_W_WKV_NORM_B,
    TN_W_LOW_W_1, /* [low.decay][n_embd] */
    TN_W_LOW_W_2, /* [values of all heads][low.decay] */
    TN_W_LOW_A_1,
    TN_W_LOW_A_2,
    TN_W_LOW_V_1,
    TN_W_LOW_V_2,
    TN_W_LOW_G_1,
    TN_W_LOW_G_2,
    TN_W_KDA_CONV_Q, /* [conv_len][values of all heads], the oldest first */
    TN_W_KDA_CONV_K,
    TN_W_KDA_CONV_V,
    TN_W_KDA_F_A, /* [d_key][n_embd] of decays */
    TN_W_KDA_F_B, /* [values of all heads][d_key] */
    TN_W_KDA_G_A, /* of gates */
    TN_W_KDA_G_B,
    TN_W_HEAD_IN_NORM, /* [n_from n_target] of what a head joins; its projection is NEXT_PROJ */
    TN_W_NEXT_BACK,    /* [n_target][n_embd] of an assistant: the state for a guess further */
    TN_W_SCORE_NORM,   /* of what lies in front of the scores */
    TN_W_Q_NORM_B,
    TN_W_K_NORM_B,
    TN_W_ATTN_NORM_2, /* after the norm of what attention leaves, and the stream added once more */
    TN_W_ATTN_NORM_2_B,
    TN_W_EXPERTS_OUT_B, /* [n_embd] */
    TN_W_N_ROLES
} tn_role;

/* Does the layer keep keys and values? */
static inline bool tn_layer_attends(const tn_hparams *h, int32_t layer) {
    return h->layer_kind[layer] == TN_LAYER_ATTENDS || h->layer_kind[layer] == TN_LAYER_BOTH;
}
/* And the memory of a delta net or of a state space? */
static inline bool tn_layer_recurs(const tn_hparams *h, int32_t layer) {
    return h->layer_kind[layer] == TN_LAYER_DELTA || h->layer_kind[layer] == TN_LAYER_BOTH;
}
/* Does it keep last rows, for a short convolution or for what the next row mixes with its own? */
static inline bool tn_layer_keeps_rows(const tn_hparams *h, int32_t layer) {
    return h->layer_kind[layer] == TN_LAYER_CONVOLVES || (h->delta.wkv && tn_layer_recurs(h, layer));
}
/* Values of such a row: in RWKV-7 that of the memory, then that of the feed-forward block. */
static inline int32_t tn_kept_row(const tn_hparams *h) { return h->n_embd * (h->shift_ffn ? 2 : 1); }
/* Do all layers attend, and nothing else? */
bool tn_only_attends(const tn_hparams *h);

/* A number of all that the fields say, whichever they are; what only proposes (n_next) and the name, which changes
 * no bit, are left out. The struct was cleared before it was filled, and copied whole. */
uint64_t tn_hparams_identity(const tn_hparams *h);
/* How many do, for themselves. */
int32_t tn_n_attending(const tn_hparams *h);
/* The layer whose keys and values a layer that attends reads: its own, or an earlier one's. */
int32_t tn_layer_kv(const tn_hparams *h, int32_t layer);
/* Heads of a layer: their size, those of keys and values; the widest of all layers. */
int32_t tn_layer_d_head(const tn_hparams *h, int32_t layer);
int32_t tn_layer_kv_heads(const tn_hparams *h, int32_t layer);
/* The row of V whose value reaches channel j of what heads give: those of one group share it. */
static inline int32_t tn_value_row(const tn_hparams *h, int32_t j) {
    return j / h->d_head / (h->n_heads / h->n_kv_heads) * h->d_head + j % h->d_head;
}
static inline int32_t tn_widest_head(const tn_hparams *h) {
    return h->window_d_head > h->d_head ? h->window_d_head : h->d_head;
}
/* May the layer attend sparsely? Not where some layers have heads of another shape than the others, or read an
 * earlier one's keys and values, and this one has a window: such see little anyway. So all that may have heads of one
 * shape. How many may; the first of them, or -1. */
bool tn_layer_may_be_sparse(const tn_hparams *h, int32_t layer);
int32_t tn_n_sparse(const tn_hparams *h);
int32_t tn_first_sparse(const tn_hparams *h);
/* Values of a row of the residual: all its streams. */
static inline int32_t tn_residual_width(const tn_hparams *h) {
    return h->n_streams ? h->n_streams * h->n_embd : h->n_embd;
}
/* Is V what K is before its norm and rotation? */
bool tn_layer_v_is_k(const tn_hparams *h, int32_t layer);
int32_t tn_layer_ff(const tn_hparams *h, int32_t layer);
/* What is wrong with what layers differ in and share; NULL: nothing. The other fields are in their ranges. */
const char *tn_layers_wrong(const tn_hparams *h);
/* Tokens a row of this layer sees, itself included; 0: all before it. */
int32_t tn_layer_window(const tn_hparams *h, int32_t layer);
/* Does the layer rotate Q and K, and by which table: inv_freq_local? */
bool tn_layer_has_rope(const tn_hparams *h, int32_t layer);
bool tn_layer_rope_is_local(const tn_hparams *h, int32_t layer);
/* Rope tables of a row: the model's, and the local one where there is one. */
static inline int32_t tn_local_rot(const tn_hparams *h) {
    return h->window_rot ? h->window_rot : h->n_rot; /* rotated by the local table; at most n_rot */
}
static inline int32_t tn_rope_tables(const tn_hparams *h) { return h->local_rope ? 2 : 1; }

/* The tensors a layer may have: small ones and linears, each in the order in which files and hashes hold
 * them. */
enum { TN_N_LAYER_VECTORS = 75, TN_N_LAYER_LINEARS = 47, TN_N_EXPERT_LINEARS = 3 };
extern const tn_role tn_layer_vectors[TN_N_LAYER_VECTORS];
extern const struct tn_layer_linear { tn_role role, bias; } tn_layer_linears[TN_N_LAYER_LINEARS];
/* Gate, up and down of the experts. */
extern const struct tn_layer_linear tn_expert_linears[TN_N_EXPERT_LINEARS];
/* Does the layer feed forward? Has it experts? A feed-forward block, dense or as a shared expert? */
static inline bool tn_layer_feeds(const tn_hparams *h, int32_t layer) {
    return !h->single || h->layer_kind[layer] == TN_LAYER_FEEDS;
}
static inline bool tn_layer_has_experts(const tn_hparams *h, int32_t layer) {
    return h->n_experts && layer >= h->n_dense && tn_layer_feeds(h, layer) &&
           (!h->experts_every || (layer + 1) % h->experts_every == 0);
}
static inline bool tn_layer_has_ffn(const tn_hparams *h, int32_t layer) {
    if (!tn_layer_feeds(h, layer)) return false;
    return !tn_layer_has_experts(h, layer) || h->shared_expert || h->experts_beside;
}
/* Are the groups of experts of one size, and large enough for what a row has of them? */
bool tn_experts_groups_ok(const tn_hparams *h);
/* Do the sizes of memories whose keys decay by themselves fit together, and those of RWKV-7 to no other model? */
bool tn_wkv_ok(const tn_hparams *h);
/* May a layer have this tensor, by what it mixes tokens and feeds forward with? */
bool tn_layer_may_have(const tn_hparams *h, int32_t layer, tn_role r);
/* Is it one that only the layer that guesses further has? */
static inline bool tn_role_of_next(tn_role r) { return r >= TN_W_NEXT_E_NORM && r <= TN_W_NEXT_OUT_NORM; }
/* Is it a tensor of a delta net? */
static inline bool tn_role_of_delta(tn_role r) { return r >= TN_W_DELTA_Q && r <= TN_W_DELTA_NORM; }
/* Has a net of this form the tensor? */
static inline bool tn_delta_has(const tn_delta_net *n, tn_role r) {
    if (n->kda && r == TN_W_DELTA_CONV) return false;
    if (n->kda && !tn_delta_at_once(n) && (r == TN_W_DELTA_GATE || r == TN_W_DELTA_DECAY)) return false;
    if (n->wkv) return r <= TN_W_DELTA_V || r == TN_W_DELTA_OUT || (r == TN_W_DELTA_NORM && !n->no_norm);
    return !(n->mamba && r == TN_W_DELTA_RATE) && !(n->no_norm && r == TN_W_DELTA_NORM);
}
static inline bool tn_role_of_mamba(tn_role r) { return r == TN_W_MAMBA_CONV_B || r == TN_W_MAMBA_D; }
/* Is it a tensor of RWKV-7? One of its products of low rank, which no site has? */
static inline bool tn_role_of_wkv(tn_role r) { return r >= TN_W_LERP_R && r <= TN_W_LOW_G_2; }
/* Of Kimi's delta attention? */
static inline bool tn_role_of_kda(tn_role r) { return r >= TN_W_KDA_CONV_Q && r <= TN_W_KDA_G_B; }
static inline bool tn_role_of_kda_conv(tn_role r) { return r >= TN_W_KDA_CONV_Q && r <= TN_W_KDA_CONV_V; }
static inline bool tn_role_of_low(tn_role r) { return r >= TN_W_LOW_W_1 && r <= TN_W_LOW_G_2; }
/* Is it a tensor of embeddings for every layer? */
static inline bool tn_role_of_ple(tn_role r) { return r >= TN_W_PLE_EMBD && r <= TN_W_PLE_POST_NORM; }
/* Is it a tensor of several streams, or of the low-rank product that goes with them? */
static inline bool tn_role_of_streams(tn_role r) { return r >= TN_W_ALTUP_NORM && r <= TN_W_ALTUP_OUT_3; }
/* Is it a tensor of experts that stand beside a dense block? */
static inline bool tn_role_of_beside(tn_role r) { return r >= TN_W_ROUTER_NORM && r <= TN_W_FFN_OWN_NORM; }
/* Is it a vector that has several rows? */
static inline bool tn_role_of_rows(tn_role r) {
    return r == TN_W_CONV || r == TN_W_DELTA_CONV || tn_role_of_kda_conv(r) ||
           (r >= TN_W_ALTUP_ROUTER && r <= TN_W_ALTUP_CORRECT) ||
           (r >= TN_W_POSITIONS && r <= TN_W_SCORE_IN) || r == TN_W_SCORE;
}
/* Is it a tensor of latent attention? One that each head multiplies with rows of its own? */
static inline bool tn_role_of_latent(tn_role r) { return r >= TN_W_Q_A && r <= TN_W_V_UP; }
static inline bool tn_role_by_head(tn_role r) { return r == TN_W_K_UP || r == TN_W_V_UP; }
/* Is it a linear that ops compute, not sites? Packages hold it in blocks of 8 bits, for the CPU. */
static inline bool tn_role_of_cpu(tn_role r) {
    return tn_role_by_head(r) || tn_role_of_low(r) || r == TN_W_KDA_F_B || r == TN_W_KDA_G_B;
}
/* Is it one of what makes a text of tokens, or a vector of a text? They lie with the first and the last layer. */
static inline bool tn_role_of_text(tn_role r) {
    return (r >= TN_W_EMBD_NORM && r <= TN_W_SCORE_B) || r == TN_W_SCORE_NORM;
}
/* Is it a tensor of the model, of none of its layers? */
static inline bool tn_role_of_model(tn_role r) { return r <= TN_W_OUT_B || r == TN_W_PLE_EMBD; }
/* Is it a tensor of all experts, weights or biases? */
static inline bool tn_role_of_experts(tn_role r) { return r >= TN_W_GATE_EXPS && r <= TN_W_DOWN_EXPS_B; }

const char *tn_role_name(tn_role r); /* "attn_q", "ffn_down", ... */
/* Rows and columns of a role's canonical tensor in a layer under h (vectors: rows = 1). */
void tn_role_shape(const tn_hparams *h, int32_t layer, tn_role r, int64_t *n_rows, int64_t *n_cols);

#endif
