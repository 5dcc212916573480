/* model/small_hparams.h - the smallest model that adapters are read for. */
#ifndef TN_TESTS_MODEL_SMALL_HPARAMS_H
#define TN_TESTS_MODEL_SMALL_HPARAMS_H

#include "model/hparams.h"

#include <stdio.h>

static inline tn_hparams tn_test_small_hparams(const char *arch) {
    tn_hparams h = {.n_layers = 1,
                    .n_embd = 8,
                    .n_heads = 2,
                    .n_kv_heads = 1,
                    .d_head = 4,
                    .n_ff = 12,
                    .n_vocab = 16,
                    .gated = true,
                    .n_rot = 4};
    snprintf(h.arch, sizeof h.arch, "%s", arch);
    return h;
}

#endif
