#include "model/sites.h"

const char *tn_site_name(tn_site s) {
    static const char *const names[TN_N_SITES] = {
        "qkv",          "o",          "ffn",       "down",     "lm_head",    "experts",      "experts down",
        "layer in",     "layer gate", "layer out", "laurel",   "streams in", "stream 1 out", "stream 2 out",
        "stream 3 out", "mamba out",  "queries",   "wkv keys", "wkv values"};
    return names[s];
}
