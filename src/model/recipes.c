/* What the layers of the architectures consist of. */
#include "model/recipes.h"

#include <string.h>

#define NORM(NAME, W, B)                                                                                     \
    { .kind = TN_OP_NORM, .name = NAME, .in = TN_BUF_X, .out = TN_BUF_NORMED, .weight = W, .bias = B }
/* In place, where the architecture has it. */
#define SUB_NORM(NAME, BUF, W)                                                                               \
    { .kind = TN_OP_NORM, .name = NAME, .in = BUF, .out = BUF, .weight = W }
#define ROPE                                                                                                 \
    { .kind = TN_OP_ROPE, .name = "rope", .in = TN_BUF_Q, .out = TN_BUF_Q }
#define ATTEND                                                                                               \
    { .kind = TN_OP_ATTEND, .name = "attention", .in = TN_BUF_Q, .out = TN_BUF_ATT }
#define GATE                                                                                                 \
    { .kind = TN_OP_GATE, .name = "glu", .in = TN_BUF_UP, .out = TN_BUF_UP }
#define RESIDUAL(W)                                                                                          \
    { .kind = TN_OP_RESIDUAL, .name = "residual", .in = TN_BUF_BRANCH, .out = TN_BUF_X, .weight = W }
#define LINEARS(SITE, NAME, IN, ...)                                                                         \
    {                                                                                                        \
        .kind = TN_OP_LINEARS, .name = NAME, .beside = NAME " outliers", .in = IN, .site = SITE,             \
        .linears = {                                                                                         \
            __VA_ARGS__                                                                                      \
        }                                                                                                    \
    }

/* ---- a layer mixes tokens: */

static const tn_recipe attending[] = {
    NORM("norm", TN_W_ATTN_NORM, TN_W_ATTN_NORM_B),
    LINEARS(TN_SITE_QKV, "qkv", TN_BUF_NORMED, TN_W_Q, TN_W_ATT_GATE, TN_W_K, TN_W_V),
    ROPE,
    ATTEND,
    {.kind = TN_OP_ATTN_GATE, .name = "attention gate", .in = TN_BUF_ATT, .out = TN_BUF_ATT},
    SUB_NORM("heads' norm", TN_BUF_ATT, TN_W_ATTN_SUB_NORM),
    LINEARS(TN_SITE_O, "o", TN_BUF_ATT, TN_W_O),
    RESIDUAL(TN_W_ATTN_POST_NORM),
};

/* What attention leaves is normed with the stream, and so is the sum of both (Jina's models of code). */
static const tn_recipe attending_normed_twice[] = {
    NORM("norm", TN_W_ATTN_NORM, TN_W_ATTN_NORM_B),
    LINEARS(TN_SITE_QKV, "qkv", TN_BUF_NORMED, TN_W_Q, TN_W_K, TN_W_V),
    ROPE,
    ATTEND,
    LINEARS(TN_SITE_O, "o", TN_BUF_ATT, TN_W_O),
    {.kind = TN_OP_RESIDUAL,
     .name = "attention norm",
     .in = TN_BUF_X,
     .out = TN_BUF_BRANCH,
     .weight = TN_W_ATTN_POST_NORM},
    RESIDUAL(TN_W_ATTN_NORM_2),
};

/* Latent attention: one key for all heads, which queries are multiplied into; what a head gives may be gated. */
#define HEADS(NAME, IN, OUT, W)                                                                              \
    { .kind = TN_OP_HEADS, .name = NAME, .in = IN, .out = OUT, .weight = W }
#define HEADS_GATE                                                                                           \
    { .kind = TN_OP_ATTN_GATE, .name = "heads' gate", .in = TN_BUF_HEADS, .out = TN_BUF_HEADS }
static const tn_recipe attending_latents[] = {
    NORM("norm", TN_W_ATTN_NORM, TN_W_ATTN_NORM_B),
    LINEARS(TN_SITE_QKV, "latents", TN_BUF_NORMED, TN_W_Q_A, TN_W_KV_A, TN_W_ATT_GATE),
    {.kind = TN_OP_NORM, .name = "query norm", .in = TN_BUF_Q_A, .out = TN_BUF_Q_A, .weight = TN_W_Q_A_NORM},
    LINEARS(TN_SITE_LATENT_Q, "queries", TN_BUF_Q_A, TN_W_LATENT_Q),
    {.kind = TN_OP_LATENT, .name = "latent", .in = TN_BUF_KV_A, .out = TN_BUF_KV_A, .weight = TN_W_KV_A_NORM},
    HEADS("absorb", TN_BUF_LATENT_Q, TN_BUF_Q, TN_W_K_UP),
    ATTEND,
    HEADS("values", TN_BUF_ATT, TN_BUF_HEADS, TN_W_V_UP),
    HEADS_GATE,
    {.kind = TN_OP_COPY, .name = "heads", .in = TN_BUF_HEADS, .out = TN_BUF_HEADS},
    LINEARS(TN_SITE_O, "o", TN_BUF_HEADS, TN_W_O),
    RESIDUAL(TN_W_ATTN_POST_NORM),
};
/* The same where queries come at once of what the norm leaves. */
static const tn_recipe attending_latents_at_once[] = {
    NORM("norm", TN_W_ATTN_NORM, TN_W_ATTN_NORM_B),
    LINEARS(TN_SITE_QKV, "latents", TN_BUF_NORMED, TN_W_LATENT_Q, TN_W_KV_A, TN_W_ATT_GATE),
    {.kind = TN_OP_LATENT, .name = "latent", .in = TN_BUF_KV_A, .out = TN_BUF_KV_A, .weight = TN_W_KV_A_NORM},
    HEADS("absorb", TN_BUF_LATENT_Q, TN_BUF_Q, TN_W_K_UP),
    ATTEND,
    HEADS("values", TN_BUF_ATT, TN_BUF_HEADS, TN_W_V_UP),
    HEADS_GATE,
    {.kind = TN_OP_COPY, .name = "heads", .in = TN_BUF_HEADS, .out = TN_BUF_HEADS},
    LINEARS(TN_SITE_O, "o", TN_BUF_HEADS, TN_W_O),
    RESIDUAL(TN_W_ATTN_POST_NORM),
};

/* A short convolution in place of attention. */
static const tn_recipe convolving[] = {
    NORM("norm", TN_W_ATTN_NORM, TN_W_ATTN_NORM_B),
    LINEARS(TN_SITE_QKV, "conv in", TN_BUF_NORMED, TN_W_CONV_IN),
    {.kind = TN_OP_CONV_GATE, .name = "conv gate", .in = TN_BUF_BCX, .out = TN_BUF_BCX},
    {.kind = TN_OP_CONV, .name = "convolution", .in = TN_BUF_BCX, .out = TN_BUF_ATT, .weight = TN_W_CONV},
    LINEARS(TN_SITE_O, "conv out", TN_BUF_ATT, TN_W_CONV_OUT),
    RESIDUAL(TN_W_ATTN_POST_NORM),
};

/* A gated delta net; the state space of Mamba 2, which has no rates of its own. */
#define MEMORY(NAME)                                                                                         \
    {.kind = TN_OP_DELTA_GATES, .name = NAME " gates", .in = TN_BUF_DELTA_DECAY, .out = TN_BUF_DELTA_DECAY}, \
        {.kind = TN_OP_DELTA_MIX, .name = NAME " mix", .in = TN_BUF_DELTA_Q, .out = TN_BUF_DELTA_MIXED},     \
        {.kind = TN_OP_DELTA, .name = NAME " net", .in = TN_BUF_DELTA_MIXED, .out = TN_BUF_DELTA}, {         \
        .kind = TN_OP_DELTA_NORM, .name = NAME " norm", .in = TN_BUF_DELTA, .out = TN_BUF_DELTA,             \
        .weight = TN_W_DELTA_NORM                                                                            \
    }
#define RECURRENT(NAME)                                                                                      \
    NORM("norm", TN_W_ATTN_NORM, TN_W_ATTN_NORM_B),                                                          \
        LINEARS(TN_SITE_QKV, NAME " in", TN_BUF_NORMED, TN_W_DELTA_Q, TN_W_DELTA_K, TN_W_DELTA_V,            \
                TN_W_DELTA_GATE, TN_W_DELTA_DECAY, TN_W_DELTA_RATE),                                         \
        MEMORY(NAME), LINEARS(TN_SITE_O, NAME " out", TN_BUF_DELTA, TN_W_DELTA_OUT),                         \
        RESIDUAL(TN_W_ATTN_POST_NORM)
/* Kimi's delta attention: decays and gates come by way of fewer values. */
static const tn_recipe attending_by_delta[] = {
    NORM("norm", TN_W_ATTN_NORM, TN_W_ATTN_NORM_B),
    LINEARS(TN_SITE_QKV, "kda in", TN_BUF_NORMED, TN_W_DELTA_Q, TN_W_DELTA_K, TN_W_DELTA_V, TN_W_DELTA_RATE,
            TN_W_KDA_F_A, TN_W_KDA_G_A),
    {.kind = TN_OP_COPY, .name = "kda low", .in = TN_BUF_KDA_F, .out = TN_BUF_KDA_F},
    HEADS("kda decays", TN_BUF_KDA_F, TN_BUF_DELTA_DECAY, TN_W_KDA_F_B),
    HEADS("kda gates in", TN_BUF_KDA_G, TN_BUF_DELTA_GATE, TN_W_KDA_G_B),
    MEMORY("kda"),
    LINEARS(TN_SITE_O, "kda out", TN_BUF_DELTA, TN_W_DELTA_OUT),
    RESIDUAL(TN_W_ATTN_POST_NORM),
};
static const tn_recipe attending_by_delta_at_once[] = {RECURRENT("kda")};
static const tn_recipe recurrent[] = {RECURRENT("delta")};
static const tn_recipe state_space[] = {RECURRENT("mamba")};

/* RWKV-7: every product reads a mixture of the row and the one before of its own. */
#define SHIFTED(NAME, W, B, I)                                                                               \
    {.kind = TN_OP_NORM, .name = NAME, .in = TN_BUF_X, .out = TN_BUF_SHIFT_X, .weight = W, .bias = B}, {     \
        .kind = TN_OP_SHIFT, .name = "shift", .in = TN_BUF_SHIFT_X, .out = TN_BUF_SHIFT, .stream = I         \
    }
#define LERP(NAME, W)                                                                                        \
    { .kind = TN_OP_LERP, .name = NAME, .in = TN_BUF_SHIFT_X, .out = TN_BUF_NORMED, .weight = W }
static const tn_recipe remembering[] = {
    SHIFTED("norm", TN_W_ATTN_NORM, TN_W_ATTN_NORM_B, 0),
    {.kind = TN_OP_LOW, .name = "low rank", .in = TN_BUF_SHIFT_X, .out = TN_BUF_DELTA_DECAY},
    LERP("r in", TN_W_LERP_R),
    LINEARS(TN_SITE_QKV, "r", TN_BUF_NORMED, TN_W_DELTA_Q),
    LERP("k in", TN_W_LERP_K),
    LINEARS(TN_SITE_WKV_K, "k", TN_BUF_NORMED, TN_W_DELTA_K),
    LERP("v in", TN_W_LERP_V),
    LINEARS(TN_SITE_WKV_V, "v", TN_BUF_NORMED, TN_W_DELTA_V),
    {.kind = TN_OP_WKV_MIX, .name = "wkv mix", .in = TN_BUF_DELTA_Q, .out = TN_BUF_DELTA_MIXED},
    {.kind = TN_OP_DELTA, .name = "wkv", .in = TN_BUF_DELTA_MIXED, .out = TN_BUF_DELTA},
    {.kind = TN_OP_WKV_NORM,
     .name = "wkv norm",
     .in = TN_BUF_DELTA,
     .out = TN_BUF_DELTA,
     .weight = TN_W_DELTA_NORM},
    LINEARS(TN_SITE_O, "wkv out", TN_BUF_DELTA, TN_W_DELTA_OUT),
    RESIDUAL(0),
};

/* Both: one product of the norm's rows gives what either reads. The state space goes first, so that the
 * device computes its way out while attention of other rows has the CPU. */
static const tn_recipe beside_attention[] = {
    NORM("norm", TN_W_ATTN_NORM, TN_W_ATTN_NORM_B),
    LINEARS(TN_SITE_QKV, "qkv", TN_BUF_NORMED, TN_W_Q, TN_W_K, TN_W_V, TN_W_DELTA_Q, TN_W_DELTA_K,
            TN_W_DELTA_V, TN_W_DELTA_GATE, TN_W_DELTA_DECAY),
    ROPE,
    MEMORY("mamba"),
    LINEARS(TN_SITE_MAMBA_OUT, "mamba out", TN_BUF_DELTA, TN_W_DELTA_OUT),
    {.kind = TN_OP_RESIDUAL, .name = "mamba residual", .in = TN_BUF_BRANCH, .out = TN_BUF_X},
    ATTEND,
    LINEARS(TN_SITE_O, "o", TN_BUF_ATT, TN_W_O),
    RESIDUAL(0),
};

/* ---- and then feeds forward: */

static const tn_recipe feeding[] = {
    NORM("norm2", TN_W_FFN_NORM, TN_W_FFN_NORM_B),
    LINEARS(TN_SITE_FFN, "ffn", TN_BUF_NORMED, TN_W_GATE, TN_W_UP),
    GATE,
    SUB_NORM("glu norm", TN_BUF_UP, TN_W_FFN_SUB_NORM),
    LINEARS(TN_SITE_DOWN, "down", TN_BUF_UP, TN_W_DOWN),
    RESIDUAL(TN_W_FFN_POST_NORM),
};

static const tn_recipe feeding_shifted[] = {
    SHIFTED("norm2", TN_W_FFN_NORM, TN_W_FFN_NORM_B, 1), LERP("ffn in", TN_W_LERP_FFN),
    LINEARS(TN_SITE_FFN, "ffn", TN_BUF_NORMED, TN_W_UP), GATE,
    LINEARS(TN_SITE_DOWN, "down", TN_BUF_UP, TN_W_DOWN), RESIDUAL(0),
};

/* The experts of a row, chosen from what the norm leaves; their products; their sum. */
#define ROUTE                                                                                                \
    {.kind = TN_OP_ROUTE, .name = "route", .in = TN_BUF_NORMED, .out = TN_BUF_CHOSEN}, {                     \
        .kind = TN_OP_GATHER, .name = "gather", .in = TN_BUF_NORMED, .out = TN_BUF_GATHERED                  \
    }
#define EXPERTS LINEARS(TN_SITE_EXPERTS, "experts", TN_BUF_GATHERED, TN_W_GATE_EXPS, TN_W_UP_EXPS)
#define EXPERT_GATE                                                                                          \
    { .kind = TN_OP_EXPERT_GATE, .name = "expert glu", .in = TN_BUF_EXPERT_UP, .out = TN_BUF_EXPERT_UP }
#define EXPERTS_DOWN LINEARS(TN_SITE_EXPERTS_DOWN, "experts down", TN_BUF_EXPERT_UP, TN_W_DOWN_EXPS)
#define EXPERT_SUM                                                                                           \
    { .kind = TN_OP_EXPERT_SUM, .name = "expert sum", .in = TN_BUF_GIVEN, .out = TN_BUF_BRANCH }

static const tn_recipe with_experts[] = {
    NORM("norm2", TN_W_FFN_NORM, TN_W_FFN_NORM_B),
    ROUTE,
    EXPERTS,
    EXPERT_GATE,
    EXPERTS_DOWN,
    EXPERT_SUM,
    RESIDUAL(TN_W_FFN_POST_NORM),
};

/* The shared expert is an ordinary block, whose products go beside those of the others. */
static const tn_recipe with_shared_expert[] = {
    NORM("norm2", TN_W_FFN_NORM, TN_W_FFN_NORM_B),
    ROUTE,
    EXPERTS,
    LINEARS(TN_SITE_FFN, "ffn", TN_BUF_NORMED, TN_W_GATE, TN_W_UP),
    EXPERT_GATE,
    GATE,
    EXPERTS_DOWN,
    LINEARS(TN_SITE_DOWN, "down", TN_BUF_UP, TN_W_DOWN),
    EXPERT_SUM,
    RESIDUAL(TN_W_FFN_POST_NORM),
};

/* A dense block beside the experts: each reads a norm of its own, the router another, and what they give is
 * normed, added up and normed again. */
static const tn_recipe beside_experts[] = {
    NORM("router norm", TN_W_ROUTER_NORM, 0),
    {.kind = TN_OP_ROUTE, .name = "route", .in = TN_BUF_NORMED, .out = TN_BUF_CHOSEN},
    NORM("experts norm", TN_W_EXPERTS_NORM, 0),
    {.kind = TN_OP_GATHER, .name = "gather", .in = TN_BUF_NORMED, .out = TN_BUF_GATHERED},
    EXPERTS,
    EXPERT_GATE,
    EXPERTS_DOWN,
    EXPERT_SUM,
    {.kind = TN_OP_NORM,
     .name = "experts post norm",
     .in = TN_BUF_BRANCH,
     .out = TN_BUF_ACTIVE,
     .weight = TN_W_EXPERTS_POST_NORM},
    NORM("norm2", TN_W_FFN_NORM, TN_W_FFN_NORM_B),
    LINEARS(TN_SITE_FFN, "ffn", TN_BUF_NORMED, TN_W_GATE, TN_W_UP),
    GATE,
    LINEARS(TN_SITE_DOWN, "down", TN_BUF_UP, TN_W_DOWN),
    {.kind = TN_OP_RESIDUAL,
     .name = "both",
     .in = TN_BUF_BRANCH,
     .out = TN_BUF_ACTIVE,
     .weight = TN_W_FFN_OWN_NORM},
    {.kind = TN_OP_RESIDUAL,
     .name = "residual",
     .in = TN_BUF_ACTIVE,
     .out = TN_BUF_X,
     .weight = TN_W_FFN_POST_NORM},
};

/* Both read one norm (Phi-2). */
static const tn_recipe parallel[] = {
    NORM("norm", TN_W_ATTN_NORM, TN_W_ATTN_NORM_B),
    LINEARS(TN_SITE_QKV, "qkv", TN_BUF_NORMED, TN_W_Q, TN_W_K, TN_W_V, TN_W_GATE, TN_W_UP),
    ROPE,
    ATTEND,
    LINEARS(TN_SITE_O, "o", TN_BUF_ATT, TN_W_O),
    RESIDUAL(0),
    GATE,
    LINEARS(TN_SITE_DOWN, "down", TN_BUF_UP, TN_W_DOWN),
    RESIDUAL(0),
};

/* ---- and adds what it takes of the token's embedding: */

#define TAKE(FROM)                                                                                           \
    {.kind = TN_OP_COPY, .name = "layer embedding", .in = TN_BUF_EMB, .out = TN_BUF_NORMED},                 \
        LINEARS(TN_SITE_LAYER_IN, "layer in", TN_BUF_NORMED, TN_W_PLE_IN),                                   \
        {.kind = TN_OP_COPY, .name = "layer residual", .in = FROM, .out = TN_BUF_NORMED},                    \
        LINEARS(TN_SITE_LAYER_GATE, "layer gate", TN_BUF_NORMED, TN_W_PLE_GATE),                             \
        {.kind = TN_OP_LAYER_MIX,                                                                            \
         .name = "layer mix",                                                                                \
         .in = TN_BUF_LAYER_GATE,                                                                            \
         .out = TN_BUF_LAYER_GATE,                                                                           \
         .weight = TN_W_PLE_NORM},                                                                           \
        LINEARS(TN_SITE_LAYER_OUT, "layer out", TN_BUF_LAYER_GATE, TN_W_PLE_OUT)

static const tn_recipe adding[] = {
    TAKE(TN_BUF_X),
    RESIDUAL(TN_W_PLE_POST_NORM),
};

static const tn_recipe scaling[] = {
    {.kind = TN_OP_SCALE, .name = "layer scale", .in = TN_BUF_X, .out = TN_BUF_X, .weight = TN_W_LAYER_SCALE},
};

/* Or what pictures have for it: */
static const tn_recipe deepening[] = {
    {.kind = TN_OP_DEEPSTACK, .name = "deepstack", .in = TN_BUF_X, .out = TN_BUF_X},
};

/* ---- several residual streams, of which a layer works on one (AltUp): */

#define FROM_STREAM(I, NAME)                                                                                 \
    { .kind = TN_OP_COPY, .name = NAME, .in = TN_BUF_X, .out = TN_BUF_NORMED, .stream = I }
#define TO_ACTIVE(W)                                                                                         \
    { .kind = TN_OP_RESIDUAL, .name = "residual", .in = TN_BUF_BRANCH, .out = TN_BUF_ACTIVE, .weight = W }

/* In front of the first layer. */
static const tn_recipe beginning_streams[] = {
    FROM_STREAM(0, "embedding"),
    LINEARS(TN_SITE_ALTUP_IN, "streams in", TN_BUF_NORMED, TN_W_ALTUP_IN_1, TN_W_ALTUP_IN_2, TN_W_ALTUP_IN_3),
    {.kind = TN_OP_STREAMS, .name = "streams", .in = TN_BUF_STREAM_1, .out = TN_BUF_X},
};

/* What the norm leaves goes by itself too, and through a product of low rank (Laurel). */
static const tn_recipe attending_in_stream[] = {
    {.kind = TN_OP_ALTUP_PREDICT, .name = "predict", .in = TN_BUF_X, .out = TN_BUF_ACTIVE},
    {.kind = TN_OP_NORM_ADD,
     .name = "norm",
     .in = TN_BUF_ACTIVE,
     .out = TN_BUF_NORMED,
     .weight = TN_W_ATTN_NORM},
    LINEARS(TN_SITE_QKV, "qkv", TN_BUF_NORMED, TN_W_Q, TN_W_K, TN_W_V, TN_W_LAUREL_IN),
    {.kind = TN_OP_COPY, .name = "laurel in", .in = TN_BUF_LAUREL, .out = TN_BUF_LAUREL},
    LINEARS(TN_SITE_LAUREL, "laurel", TN_BUF_LAUREL, TN_W_LAUREL_OUT),
    TO_ACTIVE(TN_W_LAUREL_NORM),
    ROPE,
    ATTEND,
    LINEARS(TN_SITE_O, "o", TN_BUF_ATT, TN_W_O),
    TO_ACTIVE(TN_W_ATTN_POST_NORM),
    {.kind = TN_OP_SCALE, .name = "halves", .in = TN_BUF_ACTIVE, .out = TN_BUF_ACTIVE},
};

static const tn_recipe feeding_in_stream[] = {
    {.kind = TN_OP_NORM, .name = "norm2", .in = TN_BUF_ACTIVE, .out = TN_BUF_NORMED, .weight = TN_W_FFN_NORM},
    LINEARS(TN_SITE_FFN, "ffn", TN_BUF_NORMED, TN_W_GATE, TN_W_UP),
    {.kind = TN_OP_GATE_SPARSE, .name = "sparse gate", .in = TN_BUF_GATE, .out = TN_BUF_GATE},
    GATE,
    LINEARS(TN_SITE_DOWN, "down", TN_BUF_UP, TN_W_DOWN),
    TO_ACTIVE(TN_W_FFN_POST_NORM),
    {.kind = TN_OP_ALTUP_CORRECT, .name = "correct", .in = TN_BUF_ACTIVE, .out = TN_BUF_X},
};

static const tn_recipe adding_to_streams[] = {
    TAKE(TN_BUF_ACTIVE),
    {.kind = TN_OP_ALTUP_ADD,
     .name = "residuals",
     .in = TN_BUF_BRANCH,
     .out = TN_BUF_X,
     .weight = TN_W_PLE_POST_NORM},
};

#define LEAVE(I)                                                                                             \
    FROM_STREAM(I, "stream"),                                                                                \
        LINEARS(TN_SITE_ALTUP_OUT_##I, "stream out", TN_BUF_NORMED, TN_W_ALTUP_OUT_##I), {                   \
        .kind = TN_OP_ALTUP_MERGE, .name = "merge", .in = TN_BUF_BRANCH, .out = TN_BUF_ACTIVE, .stream = I   \
    }

/* After the last layer. */
static const tn_recipe leaving_streams[] = {LEAVE(1), LEAVE(2), LEAVE(3)};
_Static_assert(TN_STREAMS == 4, "a site for what every stream but the first leaves");

/* A token's embedding, and what its text's type and its position add. */
static const tn_recipe beginning[] = {
    {.kind = TN_OP_EMBED_ADD, .name = "embed", .in = TN_BUF_X, .out = TN_BUF_X},
    {.kind = TN_OP_NORM,
     .name = "embed",
     .in = TN_BUF_X,
     .out = TN_BUF_X,
     .weight = TN_W_EMBD_NORM,
     .bias = TN_W_EMBD_NORM_B},
};

static const tn_recipe before[] = {
    {.kind = TN_OP_EMBED, .name = "embed", .in = TN_BUF_X, .out = TN_BUF_X},
};

/* Where layers read it again. */
static const tn_recipe before_adding[] = {
    {.kind = TN_OP_EMBED, .name = "embed", .in = TN_BUF_X, .out = TN_BUF_X},
    {.kind = TN_OP_COPY, .name = "embed", .in = TN_BUF_X, .out = TN_BUF_EMB},
    {.kind = TN_OP_EMBED_LAYERS, .name = "embed", .in = TN_BUF_LAYERS, .out = TN_BUF_LAYERS},
};

static const tn_recipe behind[] = {
    NORM("output norm", TN_W_OUT_NORM, TN_W_OUT_NORM_B),
    LINEARS(TN_SITE_LM_HEAD, "lm_head", TN_BUF_NORMED, TN_W_OUT),
    {.kind = TN_OP_CAP, .name = "cap", .in = TN_BUF_LOGITS, .out = TN_BUF_LOGITS},
};

#define RECIPES(LIST)                                                                                        \
    { LIST, sizeof LIST / sizeof *LIST }

static void streams_of(const tn_hparams *h, int32_t layer, tn_recipes out[TN_MAX_PARTS]) {
    if (!layer) out[0] = (tn_recipes)RECIPES(beginning_streams);
    out[1] = (tn_recipes)RECIPES(attending_in_stream);
    out[2] = (tn_recipes)RECIPES(feeding_in_stream);
    out[3] = (tn_recipes)RECIPES(adding_to_streams);
    if (layer == h->n_layers - 1) out[4] = (tn_recipes)RECIPES(leaving_streams);
}

/* Of a head, in front of the same feed-forward. */
static const tn_recipe attending_to_pairs[] = {
    {.kind = TN_OP_PAIR, .name = "pair", .in = TN_BUF_EMB, .out = TN_BUF_PAIR, .weight = TN_W_ATTN_NORM},
    LINEARS(TN_SITE_QKV, "qkv", TN_BUF_PAIR, TN_W_Q, TN_W_K, TN_W_V),
    ROPE,
    ATTEND,
    LINEARS(TN_SITE_O, "o", TN_BUF_ATT, TN_W_O),
    RESIDUAL(0),
};

void tn_recipes_of(const tn_hparams *h, int32_t layer, tn_recipes out[TN_MAX_PARTS]) {
    static const tn_recipes mixing[TN_N_LAYER_KINDS] = {[TN_LAYER_ATTENDS] = RECIPES(attending),
                                                        [TN_LAYER_CONVOLVES] = RECIPES(convolving),
                                                        [TN_LAYER_DELTA] = RECIPES(recurrent),
                                                        [TN_LAYER_BOTH] = RECIPES(beside_attention)};
    memset(out, 0, TN_MAX_PARTS * sizeof *out);
    if (layer < 0) out[0] = h->n_ple ? (tn_recipes)RECIPES(before_adding) : (tn_recipes)RECIPES(before);
    else if (layer == h->n_layers) out[0] = (tn_recipes)RECIPES(behind);
    else if (h->n_streams) streams_of(h, layer, out);
    else if (h->parallel_block) out[0] = (tn_recipes)RECIPES(parallel);
    else {
        if (!layer && h->embd_norm) *out++ = (tn_recipes)RECIPES(beginning);
        out[0] = mixing[h->layer_kind[layer]];
        if (h->layer_kind[layer] == TN_LAYER_DELTA && h->delta.mamba)
            out[0] = (tn_recipes)RECIPES(state_space);
        if (h->layer_kind[layer] == TN_LAYER_DELTA && h->delta.kda)
            out[0] = tn_delta_at_once(&h->delta) ? (tn_recipes)RECIPES(attending_by_delta_at_once)
                                                 : (tn_recipes)RECIPES(attending_by_delta);
        if (h->layer_kind[layer] == TN_LAYER_DELTA && h->delta.wkv) out[0] = (tn_recipes)RECIPES(remembering);
        if (h->layer_kind[layer] == TN_LAYER_ATTENDS && tn_latent(h))
            out[0] = h->latent.q_rank ? (tn_recipes)RECIPES(attending_latents)
                                      : (tn_recipes)RECIPES(attending_latents_at_once);
        if (tn_is_eagle(h)) out[0] = (tn_recipes)RECIPES(attending_to_pairs);
        if (h->attn_norm_twice) out[0] = (tn_recipes)RECIPES(attending_normed_twice);
        if (tn_layer_feeds(h, layer))
            out[1] = h->shift_ffn                      ? (tn_recipes)RECIPES(feeding_shifted)
                     : !tn_layer_has_experts(h, layer) ? (tn_recipes)RECIPES(feeding)
                     : h->experts_beside               ? (tn_recipes)RECIPES(beside_experts)
                     : h->shared_expert                ? (tn_recipes)RECIPES(with_shared_expert)
                                                       : (tn_recipes)RECIPES(with_experts);
        if (h->n_ple) out[2] = (tn_recipes)RECIPES(adding);
        else if (layer < h->n_deepstack) out[2] = (tn_recipes)RECIPES(deepening);
        if (h->layer_scale) out[3] = (tn_recipes)RECIPES(scaling);
    }
}
