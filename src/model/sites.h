/* model/sites.h - where a model quantises: each site is one activation tensor and the linears that read it.
 * One static scale belongs to a site, one graph of the device computes its linears. Which sites a model has
 * is said by its program (program.h). */
#ifndef TN_MODEL_SITES_H
#define TN_MODEL_SITES_H

#include "model/hparams.h"

/* The kinds of sites. A layer has at most one of each. Packages hold the numbers: new kinds go to the end. */
typedef enum tn_site {
    TN_SITE_QKV,
    TN_SITE_O,
    TN_SITE_FFN,
    TN_SITE_DOWN,
    TN_SITE_LM_HEAD, /* of the model, after the layers */
    TN_SITE_EXPERTS, /* gate and up of all experts of a layer */
    TN_SITE_EXPERTS_DOWN,
    TN_SITE_LAYER_IN, /* what a layer takes of a token's embedding, where every layer adds some of it (n_ple) */
    TN_SITE_LAYER_GATE,
    TN_SITE_LAYER_OUT,
    TN_SITE_LAUREL,      /* the way back of the low-rank product beside attention */
    TN_SITE_ALTUP_IN,    /* what several residual streams begin with, in the first layer */
    TN_SITE_ALTUP_OUT_1, /* what they leave, in the last */
    TN_SITE_ALTUP_OUT_2,
    TN_SITE_ALTUP_OUT_3,
    TN_SITE_MAMBA_OUT, /* of a state space beside attention, whose own is TN_SITE_O */
    TN_SITE_LATENT_Q,  /* queries of latent attention that come by way of fewer values */
    TN_SITE_WKV_K,     /* of RWKV-7, whose products read mixtures of their own */
    TN_SITE_WKV_V,
    TN_N_SITES,
    TN_NO_SITE = TN_N_SITES
} tn_site;

/* Chunks of the prompt pass through it: it has the chunk's form as well as the decode form. */
static inline bool tn_site_in_layers(tn_site s) { return s != TN_SITE_LM_HEAD; }

/* Packages cut a matrix of all experts at multiples of so many channels: the device's column tile. */
enum { TN_EXPERT_CHANNELS = 16 };

/* Is it of what a layer adds of the token's embedding? */
static inline bool tn_site_of_ple(tn_site s) { return s >= TN_SITE_LAYER_IN && s <= TN_SITE_LAYER_OUT; }
/* Is it of several residual streams? */
static inline bool tn_site_of_streams(tn_site s) { return s >= TN_SITE_LAUREL && s <= TN_SITE_ALTUP_OUT_3; }
/* Is it of experts? Each row passes some of them. */
static inline bool tn_site_of_experts(tn_site s) { return s == TN_SITE_EXPERTS || s == TN_SITE_EXPERTS_DOWN; }

enum { TN_SITE_MAX_OPS = 8 }; /* as many as a graph of the device has (npu.h) */

typedef struct tn_site_ops {
    int32_t n_ops;
    tn_role roles[TN_SITE_MAX_OPS], biases[TN_SITE_MAX_OPS]; /* TN_W_N_ROLES: no bias */
    int32_t k;                                               /* input channels */
    int32_t n[TN_SITE_MAX_OPS];                              /* output channels of each op */
    int32_t n_total;
    /* A site of experts: each linear is those of n_experts, one after another, so n counts the channels of
     * all; a row passes n_used of them. Else 0. */
    int32_t n_experts, n_used;
} tn_site_ops;

/* Output channels that one product of linear i computes: an expert's, or all. */
static inline int32_t tn_site_op_n(const tn_site_ops *o, int32_t i) {
    return o->n_experts ? o->n[i] / o->n_experts : o->n[i];
}
/* Rows of a site's inputs for so many tokens. */
static inline int64_t tn_site_rows(tn_site s, const tn_site_ops *o, int64_t n_tok) {
    return s == TN_SITE_EXPERTS_DOWN ? n_tok * o->n_used : n_tok;
}
/* Multiply-adds of a site for one token. */
static inline double tn_site_macs(const tn_site_ops *o) {
    double all = (double)o->k * o->n_total;
    return o->n_experts ? all / o->n_experts * o->n_used : all;
}

const char *tn_site_name(
    tn_site s); /* "qkv", "o", "ffn", "down", "lm_head", "experts", "experts down", "layer in", ... */

#endif
