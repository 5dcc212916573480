/* Scalar loop of kv_gather.h. */
#include "kernels/kv_gather.h"

#include <string.h>

void tn_kv_gather_ref(const tn_kv_gather_args *a) {
    size_t d_head = a->d_head, n_pad = (a->n_idx + TN_KV_PANEL - 1) / TN_KV_PANEL * TN_KV_PANEL;
    for (size_t i = 0; i < n_pad; i++) {
        float *to = a->k_out + i / TN_KV_PANEL * d_head * TN_KV_PANEL + i % TN_KV_PANEL;
        const float *from = i < a->n_idx ? a->k_panels + a->idx[i] / TN_KV_PANEL * d_head * TN_KV_PANEL + a->idx[i] % TN_KV_PANEL : NULL;
        for (size_t d = 0; d < d_head; d++) to[d * TN_KV_PANEL] = from ? from[d * TN_KV_PANEL] : 0;
        if (from) memcpy(a->v_out + i * d_head, a->v + a->idx[i] * d_head, d_head * sizeof *a->v);
    }
}
