/* kernels/kernels.h - the table of inner loops, chosen once per engine by processor features.
 * Each entry's contract stands beside its scalar reference (gemm_f32.h, attn_f32.h, elem_f32.h,
 * gemm_s8.h...). Float kernels are specified as fixed chains of fused multiply-adds, so every instruction set
 * gives the same bits, and a row's result never depends on how many rows are computed with it (decision 5).
 */
#ifndef TN_KERNELS_KERNELS_H
#define TN_KERNELS_KERNELS_H

#include "kernels/attn_f32.h"
#include "kernels/attn_sparse.h"
#include "kernels/attn_tiles.h"
#include "kernels/blocks_s8.h"
#include "kernels/delta_f32.h"
#include "kernels/elem_f32.h"
#include "kernels/gemm_f32.h"
#include "kernels/gemm_packed.h"
#include "kernels/gemm_s8.h"
#include "kernels/hadamard.h"
#include "kernels/rans.h"
#include "kernels/round.h"
#include "kernels/outlier_f32.h"
#include "kernels/topk.h"
#include "kernels/unpack.h"
#include "kernels/wkv_f32.h"

#include <stdint.h>

typedef struct tn_kernels {
    uint32_t cpu; /* TN_CPU_* flags the table was chosen for */
    tn_gemm_f32_fn gemm_f32[TN_PANEL_N_DTYPES];
    tn_attn_f32_fn attn_f32;
    tn_attn_sparse_fn attn_sparse;
    tn_attn_tiles_fn attn_tiles;
    tn_kv_rows_fn kv_rows;
    tn_topk_fn topk;
    tn_topk_merge_fn topk_merge;
    tn_rmsnorm_f32_fn rmsnorm_f32;
    tn_layernorm_f32_fn layernorm_f32;
    tn_rope_f32_fn rope_f32;
    tn_glu_f32_fn glu_f32;
    tn_act_f32_fn act_f32;
    tn_add_f32_fn add_f32;
    tn_softmax_f32_fn softmax_f32;
    tn_shares_u8_fn shares_u8;
    tn_absmax_f32_fn absmax_f32;
    tn_taps_f32_fn taps_f32;
    tn_delta_f32_fn delta_f32;
    tn_wkv_f32_fn wkv_f32;
    tn_gemm_s8_fn gemm_s8;
    tn_gemm_packed_fn
        gemm_packed; /* for up to packed_rows rows; for more, weights are unpacked to tiles (gemm_packed.h) */
    size_t packed_rows;
    tn_quantise_s8_fn quantise_s8;
    tn_hadamard_f32_fn hadamard_f32;
    tn_grid_errors_fn grid_errors;
    tn_grid_apply_fn grid_apply;
    tn_round_panel_fn round_panel;
    tn_quantise_outliers_fn quantise_outliers;
    tn_outlier_f32_fn outlier_f32;
    tn_unpack_tile_fn unpack_tile;
    tn_rans_decode_fn rans_decode;
    tn_blocks_gemm_fn blocks_gemm;
    tn_blocks_quantise_fn blocks_quantise;
} tn_kernels;

/* Fill the table for the given features (tn_cpu_flags()). */
void tn_kernels_init(tn_kernels *k, uint32_t cpu);

/* Put an instruction set's float kernels into the table (f32_template.h). */
void tn_kernels_f32_avx2(tn_kernels *k);
void tn_kernels_f32_avx512(tn_kernels *k);
void tn_kernels_f32_neon(tn_kernels *k);

#endif
