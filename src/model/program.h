/* model/program.h - what a model does with the rows of a chunk, as data: for every layer a short list of ops.
 *
 * The program is the one description of a layer. Four readers use it: model/forward.c interprets it in float,
 * prefill/ turns it into tasks on two lanes, quant/ calibrates and quantises its sites, lab/ prices it.
 * The ops of one layer may differ from those of the next: every layer has its own list, and every op holds
 * what it needs (its window, its rotation), so no reader asks the hyperparameters what a layer is.
 *
 * A program has n_layers + 2 parts: what comes before the layers (layer -1: embedding), the layers, and what
 * follows them (layer n_layers: last norm and lm_head, computed only for the rows whose logits are wanted).
 *
 * Adding an architecture of known ops: a row in arch_table.c. Adding an op: a kind here, a file op_NAME.c with its
 * tn_op_info (op.h), a line in the table of op.c, and a place in a list of program.c. */
#ifndef TN_MODEL_PROGRAM_H
#define TN_MODEL_PROGRAM_H

#include "base/ctx.h"
#include "model/sites.h"
#include "sched/graph.h"

/* What ops pass to each other: one row for every token of the chunk. */
typedef enum tn_buffer {
    TN_BUF_X,      /* residual stream, or streams side by side */
    TN_BUF_NORMED, /* what a norm leaves for the linears after it */
    TN_BUF_Q,
    TN_BUF_K,
    TN_BUF_V,
    TN_BUF_ATT, /* what attention gives, all heads */
    TN_BUF_ATT_GATE,
    TN_BUF_GATE,
    TN_BUF_UP,      /* and what the gate leaves of it */
    TN_BUF_BCX,     /* what a convolution reads */
    TN_BUF_DELTA_Q, /* what a delta net reads, of all heads */
    TN_BUF_DELTA_K,
    TN_BUF_DELTA_V,
    TN_BUF_DELTA_GATE,
    TN_BUF_DELTA_DECAY,
    TN_BUF_DELTA_RATE,
    TN_BUF_DELTA_MIXED, /* q, k and v after its convolution */
    TN_BUF_DELTA,       /* what it gives */
    TN_BUF_ROUTE,       /* scores of the experts */
    TN_BUF_CHOSEN,      /* experts of the row (experts.h) */
    TN_BUF_GATHERED,    /* the row as they read it */
    TN_BUF_EXPERT_GATE, /* of a chunk's rows by expert, as many as the row has experts */
    TN_BUF_EXPERT_UP,
    TN_BUF_GIVEN,  /* what they give, in the same order */
    TN_BUF_EMB,    /* the token's embedding, which layers read again */
    TN_BUF_LAYERS, /* its embeddings for every layer */
    TN_BUF_LAYER_IN,
    TN_BUF_LAYER_GATE,
    TN_BUF_ACTIVE, /* of several streams: the one that a layer works on; what experts and a dense block give together */
    TN_BUF_LAUREL,   /* what is left of it for the low-rank product */
    TN_BUF_STREAM_1, /* what the others begin with */
    TN_BUF_STREAM_2,
    TN_BUF_STREAM_3,
    TN_BUF_Q_A,      /* of latent attention: what queries come of */
    TN_BUF_LATENT_Q, /* queries, before Q has them in the form that latents are multiplied with */
    TN_BUF_KV_A,     /* the row that the state keeps */
    TN_BUF_HEADS,    /* values of what heads give */
    TN_BUF_PAIR,     /* what a head's attention reads: embedding, state */
    TN_BUF_TAPS,     /* what some layers were given, for a head that drafts; as wide as the program says */
    TN_BUF_SHIFT_X,  /* of RWKV-7: what a norm leaves, for the row after it too */
    TN_BUF_SHIFT,    /* the row before minus that */
    TN_BUF_V_FIRST,  /* values of the first layer, which the others take a share of */
    TN_BUF_V_SHARE,  /* which */
    TN_BUF_KDA_F,    /* of Kimi's delta attention: what decays come of */
    TN_BUF_KDA_G,    /* and gates */
    TN_BUF_BRANCH,   /* what a block adds to the residual stream */
    TN_BUF_LOGITS,
    TN_N_BUFFERS
} tn_buffer;

/* What a layer remembers between tokens (state.h). */
typedef enum tn_state_kind { TN_STATE_KV, TN_STATE_CONV, TN_STATE_DELTA, TN_N_STATE_KINDS } tn_state_kind;

typedef enum tn_op_kind {
    TN_OP_EMBED,    /* X = the token's embedding, scaled */
    TN_OP_NORM,     /* out = norm(in) */
    TN_OP_NORM_ADD, /* out = norm(in); in += out */
    TN_OP_COPY, /* out = in, or the part of it that is one of several streams, where an architecture has no norm: the residual stream is quantised as it is */
    TN_OP_LINEARS,       /* the linears of a site: every output = in W^T + bias */
    TN_OP_ROPE,          /* per-head norms and rotation of Q and K; K and V go to the state */
    TN_OP_ATTEND,        /* att = softmax(q k^T) v over the state */
    TN_OP_CONV_GATE,     /* x = b x of a convolution's row b, c, x */
    TN_OP_CONV,          /* att = c * convolution(b x) over the row and those before it */
    TN_OP_ATTN_GATE,     /* att *= sigmoid(gate), value by value or head by head */
    TN_OP_DELTA_GATES,   /* decays and rates of the heads */
    TN_OP_DELTA_MIX,     /* mixed = convolution of q, k, v */
    TN_OP_DELTA,         /* out = the recurrence of a gated delta net over the rows */
    TN_OP_DELTA_NORM,    /* out = norm(out) silu(gate), head by head */
    TN_OP_GATE,          /* up = act(gate) up, or act(up) */
    TN_OP_ROUTE,         /* chosen = the experts of a row, by its scores */
    TN_OP_GATHER,        /* the places of a chunk's rows, expert by expert */
    TN_OP_EXPERT_GATE,   /* up = act(gate) up of the experts */
    TN_OP_EXPERT_SUM,    /* branch = sum over the row's experts of weight * given, beside the shared one */
    TN_OP_RESIDUAL,      /* X += scale norm(in), or X += scale in, or X = norm(X + scale in) */
    TN_OP_EMBED_LAYERS,  /* LAYERS = the token's embeddings for every layer, scaled */
    TN_OP_LAYER_MIX,     /* gate = act(gate) (norm(in) + the layer's embedding) / sqrt(2) */
    TN_OP_SCALE,         /* out *= the layer's number, or a number of the op */
    TN_OP_GATE_SPARSE,   /* gate = what of it is above its row's mean by so many deviations */
    TN_OP_STREAMS,       /* X = its first stream, and the others, as large as it */
    TN_OP_ALTUP_PREDICT, /* X = what its streams are expected to be after the layer; active = the first */
    TN_OP_ALTUP_CORRECT, /* X += what active tells of it; active = the first, scaled */
    TN_OP_ALTUP_ADD,     /* the other streams of X += norm(in) */
    TN_OP_ALTUP_MERGE,   /* active = sum of streams, each as large as the first; the last: X = their mean */
    TN_OP_EMBED_ADD,     /* X += the row of a text's type, and that of the position */
    TN_OP_LATENT,        /* the row of latents to the state; the rotated part of queries to Q */
    TN_OP_HEADS,         /* out = in W^T, head by head */
    TN_OP_SHIFT,         /* out = the row before - in */
    TN_OP_LERP,          /* out = in + share (the row before - in) */
    TN_OP_LOW,           /* decays, rates, gates of RWKV-7 by products of low rank */
    TN_OP_WKV_MIX,       /* what its memory reads */
    TN_OP_WKV_NORM,      /* out = norm(out), the row's own share, the gate */
    TN_OP_DEEPSTACK,     /* X += what the encoder of pictures gives rows of a picture for the layer */
    TN_OP_PAIR,          /* out = norm(in) beside norm(X), of a head */
    TN_OP_TAP,           /* a part of out = X, for a head */
    TN_OP_CAP,           /* logits *= scale; logits = cap tanh(logits / cap) */
    TN_N_OP_KINDS
} tn_op_kind;

/* A product of low rank: what comes between its two linears, and where it goes. */
enum { TN_LOW_PAIRS = 4 };
typedef enum tn_low_kind { TN_LOW_PLAIN, TN_LOW_TANH, TN_LOW_SIGMOID } tn_low_kind;
typedef struct tn_low_pair {
    tn_role lerp, first, second, bias; /* bias: TN_W_N_ROLES: none */
    tn_low_kind kind;
    int32_t rank;
    tn_buffer out;
} tn_low_pair;

typedef struct tn_op {
    tn_op_kind kind;
    const char *name;   /* of the step that ends with it: "norm", "qkv"... */
    const char *beside; /* LINEARS: name of the float step beside the product: "qkv outliers" */
    tn_lane lane;       /* CPU: float, row by row; NPU: static INT8 */
    int32_t layer;      /* -1 before the layers, n_layers after them */
    tn_buffer in, out;
    uint64_t reads, writes;             /* bits of tn_buffer */
    uint32_t state_reads, state_writes; /* bits of tn_state_kind */
    bool positional;                    /* its result depends on where the rows lie in the text */
    tn_site site;                       /* LINEARS: their site */
    tn_site feeds;                      /* site whose input `out` is; TN_NO_SITE: none */
    tn_role weight, bias;               /* of a norm; TN_W_N_ROLES: none */
    bool after;                         /* RESIDUAL: its norm is of the sum */
    int32_t width, in_width;            /* values of a row of `out`; of `in`, or of an embedding */
    union {
        tn_site_ops linears; /* LINEARS; their outputs go to tn_role_buffer(role) */
        struct {
            tn_role q_norm, k_norm;              /* TN_W_N_ROLES: none */
            tn_role q_bias, k_bias;              /* with these they are layer norms */
            int32_t n_heads, n_kv_heads, d_head; /* KV heads 0: keys and values are an earlier layer's */
            int32_t n_rot;                       /* rotated values of a head; 0: this layer has no rope */
            int32_t table;                       /* which of the rows' rope tables; 1: the local one */
            bool whole, behind;            /* a norm is of all heads together; it comes after the rotation */
            bool v_norm, v_is_k;           /* V is normed, without weights; it is K as projected */
            bool plain;                    /* norms after the rotation have no weights */
            float temp_scale;              /* of queries, by position; 0: none */
            int32_t temp_every, temp_from; /* the first position's number */
        } rope;
        struct {
            int32_t n_heads, n_kv_heads, d_head;
            int32_t window; /* tokens a row sees, itself included; 0: all */
            tn_role sinks;  /* TN_W_N_ROLES: none */
            bool chunks;    /* they are those of a chunk of so many */
            bool both;      /* or around it: the text is all there; a window is half on either side */
            bool v_normed;  /* the values it passes on were normed */
        } attend;
        struct {
            int32_t n_embd, len;
        } conv;
        struct {
            tn_delta_net net;
            int32_t len; /* of the convolution */
            bool gated;  /* WKV_NORM: there is a gate */
        } delta;         /* DELTA_GATES, DELTA_MIX, DELTA, DELTA_NORM, WKV_MIX, WKV_NORM */
        struct {
            int32_t n, values, mixed; /* pairs; values that each makes; of a row of DELTA_MIXED */
            tn_low_pair pairs[TN_LOW_PAIRS];
        } low;               /* LOW */
        int32_t shift_first; /* SHIFT: where in what a layer keeps of a row its own part begins */
        struct {
            int32_t n, used, n_ff, n_embd;
            bool before;                             /* see tn_hparams.experts_before */
            bool norm;                               /* the weights of those chosen add up to 1 */
            bool sigmoid, bias, shared, shared_gate; /* see tn_hparams */
            bool gated;
            int32_t groups, groups_used; /* 0: one */
            bool
                beside; /* scores are divided by the root of n_embd, weights multiplied by the experts' scales */
            float scale;
            float mixer; /* see tn_hparams.experts_mixer */
            tn_act act;
            float limit; /* see tn_hparams.swiglu_limit */
            float most;  /* see tn_hparams.experts_most */
            bool out_bias;
        } experts; /* ROUTE, GATHER, EXPERT_GATE, EXPERT_SUM */
        struct {
            tn_act act;
            bool gated;
            float most; /* see tn_hparams.shared_most */
        } gate;
        int32_t gate_each; /* ATTN_GATE: values that each number of the gate multiplies */
        float scale;       /* EMBED, EMBED_LAYERS, RESIDUAL, SCALE without a weight */
        struct {
            bool type, positions;
        } add; /* EMBED_ADD: which of the two there are */
        struct {
            int32_t n_heads, rank, d_nope, n_rot;
            bool rotates;
            float temp_scale; /* of queries, by position; 0: none */
            int32_t temp_every;
        } latent;
        struct {
            tn_role role;
            int32_t n_heads, k, n, in_stride, out_stride;
        } heads;
        float deviations; /* GATE_SPARSE */
        int32_t stream;   /* COPY, ALTUP_MERGE: number of the stream; TAP: of the part */
        bool keeps;       /* PAIR: the residual stays as it is */
        struct {
            int32_t n, first; /* values of a layer; where this one's begin in LAYERS */
            int32_t n_all;    /* of all layers */
            float in_scale;   /* of what the norm reads */
            tn_act act;
        } mix; /* LAYER_MIX */
        struct {
            float scale, cap; /* cap 0: none */
        } logits;             /* CAP */
    };
} tn_op;

typedef struct tn_program_site {
    tn_site kind;
    int32_t layer; /* n_layers: lm_head */
    int32_t op;    /* its linears: index into ops */
} tn_program_site;

typedef struct tn_program {
    tn_ctx *ctx;
    int32_t n_layers, n_ops, n_sites;
    tn_op *ops;
    int32_t *first;              /* [n_layers + 3] ops of layer l: first[l + 1] .. first[l + 2] - 1 */
    tn_program_site *sites;      /* in the order of their layers, within one by kind; lm_head last */
    int32_t *site_at;            /* [n_layers + 1][TN_N_SITES] index into sites, or -1 */
    int32_t width[TN_N_BUFFERS]; /* widest row of each buffer; 0: no op uses it */
} tn_program;

tern_status tn_program_make(tn_ctx *ctx, const tn_hparams *h, tn_program *out, tern_error *err);
void tn_program_free(tn_program *p);
/* What these n layers are given goes to TAPS too, of which row r has n_embd values of each. Before anything
 * is made of the program, once. */
tern_status tn_program_tap(tn_program *p, const tn_hparams *h, const int32_t *layers, int32_t n,
                           tern_error *err);

/* The ops of a layer (-1 .. n_layers). */
static inline const tn_op *tn_program_layer(const tn_program *p, int32_t layer, int32_t *n) {
    *n = p->first[layer + 2] - p->first[layer + 1];
    return p->ops + p->first[layer + 1];
}
/* Index of a layer's site, -1 where it has none. lm_head: layer n_layers, or any. */
static inline int32_t tn_program_site_index(const tn_program *p, int32_t layer, tn_site kind) {
    return p->site_at[(kind == TN_SITE_LM_HEAD ? p->n_layers : layer) * TN_N_SITES + (int32_t)kind];
}
/* Where the tensors of site i lie: its layer, or -1, the model level. */
static inline int32_t tn_program_site_layer(const tn_program *p, int32_t i) {
    return p->sites[i].layer < p->n_layers ? p->sites[i].layer : -1;
}
/* Sites of a layer (-1: of the model level): indices *first .. *first + the result - 1. */
int32_t tn_program_layer_sites(const tn_program *p, int32_t layer, int32_t *first);
/* The linears of site i. */
static inline const tn_site_ops *tn_program_linears(const tn_program *p, int32_t i) {
    return &p->ops[p->sites[i].op].linears;
}
/* The op whose output site i quantises. */
const tn_op *tn_program_source(const tn_program *p, int32_t site);
/* The tensor that can take the inverse of scales that the inputs of a layer's site are multiplied by: a
 * norm's weights; rows of V, which attention passes on; rows of up, which a gated activation is linear in;
 * rows of the experts' up, each for itself. TN_W_N_ROLES: none can. */
tn_role tn_program_absorber(const tn_program *p, int32_t site);
/* Are the inputs of a layer's site divided where they are quantised, because others read them as they are
 * (the router beside a shared expert), or no tensor could take the scales (what experts read, and what they
 * give after clamped gates; what a delta net or a convolution gives; normed values; what layers add of an
 * embedding)? It can be smoothed then, and nothing absorbs. */
bool tn_program_divides(const tn_program *p, int32_t site);
/* Of those, all but experts' and routers', which packages of before had not smoothed. */
bool tn_program_divides_alone(const tn_program *p, int32_t site);
/* Does an op of the layer (-1: of the model) compute with this tensor? Biases of linears and norms may be
 * absent all the same. */
bool tn_program_uses(const tn_program *p, int32_t layer, tn_role role);

/* Values of a row of a buffer in a layer (-1 .. n_layers). */
int32_t tn_buffer_width(const tn_hparams *h, int32_t layer, tn_buffer b);
/* Where the output of a linear goes. */
tn_buffer tn_role_buffer(tn_role r);

/* What an op costs for n_rows rows at positions pos0, pos0 + 1, ... */
typedef struct tn_cost {
    double macs;   /* multiply-adds; an activation function counts as one */
    double values; /* that it produces, in buffers and state */
    double bytes;  /* read and written: activations and state in f32, weights of linears at one byte, small
                      tensors in f32 */
} tn_cost;

tn_cost tn_op_cost(const tn_op *op, int32_t n_rows, int32_t pos0);

#endif
