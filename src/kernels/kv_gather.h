/* kernels/kv_gather.h - the keys and values of listed positions, side by side in the layout of attn_f32.h: rows that share a list attend to
 * the copy with the same kernel, and so the same bits, as to the whole cache (shadowAttn 3.2). */
#ifndef TN_KERNELS_KV_GATHER_H
#define TN_KERNELS_KV_GATHER_H

#include "kernels/attn_f32.h"

typedef struct tn_kv_gather_args {
    const float *k_panels, *v; /* as in attn_f32.h; whole panels are read */
    size_t d_head;             /* multiple of 4, <= 512 */
    const uint32_t *idx;       /* [n_idx] ascending */
    size_t n_idx;
    float *k_out; /* gets whole panels of keys in the order of the list, zeros behind the last: tn_kv_gather_room floats */
    float *v_out; /* gets [n_idx][d_head] */
} tn_kv_gather_args;

static inline size_t tn_kv_gather_room(size_t n_idx, size_t d_head) { return (n_idx + TN_KV_PANEL - 1) / TN_KV_PANEL * TN_KV_PANEL * d_head; }

typedef void (*tn_kv_gather_fn)(const tn_kv_gather_args *a);
void tn_kv_gather_ref(const tn_kv_gather_args *a);

#endif
