#include "model/sites.h"

const char *tn_site_name(tn_site s) {
    static const char *const names[TN_N_SITES] = {"qkv", "o", "ffn", "down", "head"};
    return names[s];
}

static void add(const tn_hparams *h, tn_site_ops *o, tn_role role, tn_role bias) {
    int64_t n, k;
    tn_role_shape(h, role, &n, &k);
    o->roles[o->n_ops] = role;
    o->biases[o->n_ops] = bias;
    o->n[o->n_ops++] = (int32_t)n;
    o->n_total += (int32_t)n;
    o->k = (int32_t)k;
}

tn_site_ops tn_site_get(const tn_hparams *h, tn_site s) {
    tn_site_ops o = {0};
    switch (s) {
    case TN_SITE_QKV:
        add(h, &o, TN_W_Q, TN_W_Q_B);
        add(h, &o, TN_W_K, TN_W_K_B);
        add(h, &o, TN_W_V, TN_W_V_B);
        if (!h->parallel_block) break;
        if (h->gated) add(h, &o, TN_W_GATE, TN_W_GATE_B); /* the MLP reads the same norm */
        add(h, &o, TN_W_UP, TN_W_UP_B);
        break;
    case TN_SITE_O: add(h, &o, TN_W_O, TN_W_O_B); break;
    case TN_SITE_FFN:
        if (h->parallel_block) break;
        if (h->gated) add(h, &o, TN_W_GATE, TN_W_GATE_B);
        add(h, &o, TN_W_UP, TN_W_UP_B);
        break;
    case TN_SITE_DOWN: add(h, &o, TN_W_DOWN, TN_W_DOWN_B); break;
    case TN_SITE_HEAD: add(h, &o, h->tied ? TN_W_EMBD : TN_W_OUT, TN_W_OUT_B); break;
    case TN_N_SITES: break;
    }
    return o;
}
