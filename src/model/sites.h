/* model/sites.h - where a decoder quantises: each site is one activation tensor and the linears that read it.
 * One static scale belongs to a site, one graph of the device computes its linears. */
#ifndef TN_MODEL_SITES_H
#define TN_MODEL_SITES_H

#include "model/hparams.h"

typedef enum tn_site {
    TN_SITE_QKV,
    TN_SITE_O,
    TN_SITE_FFN,
    TN_SITE_DOWN,
    TN_LAYER_SITES,
    TN_SITE_HEAD = TN_LAYER_SITES,
    TN_N_SITES
} tn_site;

enum { TN_SITE_MAX_OPS = 5 };

typedef struct tn_site_ops {
    int32_t n_ops; /* 0: the architecture has no such site (parallel blocks have no FFN site) */
    tn_role roles[TN_SITE_MAX_OPS], biases[TN_SITE_MAX_OPS];
    int32_t k;                  /* input channels */
    int32_t n[TN_SITE_MAX_OPS]; /* output channels of each op */
    int32_t n_total;
} tn_site_ops;

const char *tn_site_name(tn_site s); /* "qkv", "o", "ffn", "down", "head" */
tn_site_ops tn_site_get(const tn_hparams *h, tn_site s);

#endif
