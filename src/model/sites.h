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
    TN_SITE_LM_HEAD, /* of the model, behind the layers */
    TN_N_SITES,
    TN_NO_SITE = TN_N_SITES
} tn_site;

/* Chunks of the prompt pass through it: it has the chunk's form as well as the decode form. */
static inline bool tn_site_in_layers(tn_site s) { return s != TN_SITE_LM_HEAD; }

enum { TN_SITE_MAX_OPS = 6 };

typedef struct tn_site_ops {
    int32_t n_ops;
    tn_role roles[TN_SITE_MAX_OPS], biases[TN_SITE_MAX_OPS]; /* TN_W_N_ROLES: no bias */
    int32_t k;                                               /* input channels */
    int32_t n[TN_SITE_MAX_OPS];                              /* output channels of each op */
    int32_t n_total;
} tn_site_ops;

const char *tn_site_name(tn_site s); /* "qkv", "o", "ffn", "down", "lm_head" */

#endif
