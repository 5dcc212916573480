/* kernels/sparse_cuts.h - the cuts of a list of positions: idx ascending, all below n. */
#ifndef TN_TESTS_KERNELS_SPARSE_CUTS_H
#define TN_TESTS_KERNELS_SPARSE_CUTS_H

#include "kernels/topk.h"

static inline void sparse_cuts(const uint32_t *idx, size_t n_idx, size_t n, uint32_t *cuts) {
    for (size_t b = 0, i = 0; b <= tn_sparse_blocks(n); b++) {
        while (i < n_idx && idx[i] < b * TN_SPARSE_BLOCK) i++;
        cuts[b] = (uint32_t)i;
    }
}

#endif
