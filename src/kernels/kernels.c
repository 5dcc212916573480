/* Chooses kernels for a processor: later lines win. */
#include "kernels/kernels.h"

#include "base/cpu.h"

/* Products with the block formats of GGUF files. Packages have none: a minimal build leaves them out. */
static void init_blocks(tn_kernels *k, uint32_t cpu) {
    (void)k, (void)cpu;
#ifndef TERN_MINIMAL
    k->blocks_gemm = tn_blocks_gemm_ref;
    k->blocks_quantise = tn_blocks_quantise_ref;
#if defined(__x86_64__)
    if (cpu & TN_CPU_AVX2) {
        k->blocks_gemm = tn_blocks_gemm_avx2;
        k->blocks_quantise = tn_blocks_quantise_avx2;
    }
    if (cpu & TN_CPU_AVXVNNI) k->blocks_gemm = tn_blocks_gemm_avxvnni;
    if (cpu & TN_CPU_AVX512) k->blocks_quantise = tn_blocks_quantise_avx512;
    if (cpu & TN_CPU_AVX512VNNI) k->blocks_gemm = tn_blocks_gemm_avx512vnni;
#elif defined(__aarch64__)
    if (cpu & TN_CPU_NEON) {
        k->blocks_gemm = tn_blocks_gemm_neon;
        k->blocks_quantise = tn_blocks_quantise_neon;
    }
    if (cpu & TN_CPU_DOTPROD) k->blocks_gemm = tn_blocks_gemm_dotprod;
    if (cpu & TN_CPU_I8MM) k->blocks_gemm = tn_blocks_gemm_i8mm;
#endif
#endif
}

/* The kernels that packing rounds weights with. A minimal build packs nothing. */
static void init_rounding(tn_kernels *k, uint32_t cpu) {
    (void)k, (void)cpu;
#ifndef TERN_MINIMAL
    k->grid_errors = tn_grid_errors_ref;
    k->grid_apply = tn_grid_apply_ref;
    k->round_panel = tn_round_panel_ref;
#if defined(__x86_64__)
    if (cpu & TN_CPU_AVX2) {
        k->grid_errors = tn_grid_errors_avx2;
        k->grid_apply = tn_grid_apply_avx2;
        k->round_panel = tn_round_panel_avx2;
    }
    if (cpu & TN_CPU_AVX512) {
        k->grid_errors = tn_grid_errors_avx512;
        k->grid_apply = tn_grid_apply_avx512;
        k->round_panel = tn_round_panel_avx512;
    }
#elif defined(__aarch64__)
    if (cpu & TN_CPU_NEON) {
        k->grid_errors = tn_grid_errors_neon;
        k->grid_apply = tn_grid_apply_neon;
        k->round_panel = tn_round_panel_neon;
    }
#endif
#endif
}

static void init_isa(tn_kernels *k, uint32_t cpu) {
    (void)k, (void)cpu;
#if defined(__x86_64__)
    if (cpu & TN_CPU_AVX2) {
        tn_kernels_f32_avx2(k);
        k->gemm_s8 = tn_gemm_s8_avx2;
        k->quantise_s8 = tn_quantise_s8_avx2;
        k->hadamard_f32 = tn_hadamard_f32_avx2;
        k->quantise_outliers = tn_quantise_outliers_avx2;
        k->outlier_f32 = tn_outlier_f32_avx2;
        k->unpack_tile = tn_unpack_tile_avx2;
        k->topk = tn_topk_avx2;
        k->topk_merge = tn_topk_merge_avx2;
#ifndef TERN_MINIMAL /* a tenth of the whole library: there weights are unpacked once */
        k->rans_decode = tn_rans_decode_avx2;
        k->gemm_packed = tn_gemm_packed_avx2;
        k->packed_rows = SIZE_MAX;
#endif
    }
    if (cpu & TN_CPU_AVXVNNI) {
        k->gemm_s8 = tn_gemm_s8_avxvnni;
        if (k->gemm_packed)
            k->packed_rows = TN_PACKED_FEW; /* its products are faster from tiles than from pairs of codes */
    }
#ifndef TERN_NO_AVX512
    if (cpu & TN_CPU_AVX512) {
        tn_kernels_f32_avx512(k);
        k->quantise_s8 = tn_quantise_s8_avx512;
        k->hadamard_f32 = tn_hadamard_f32_avx512;
        k->quantise_outliers = tn_quantise_outliers_avx512;
        k->outlier_f32 = tn_outlier_f32_avx512;
        k->unpack_tile = tn_unpack_tile_avx512;
        k->rans_decode = tn_rans_decode_avx512;
        k->topk = tn_topk_avx512;
        k->topk_merge = tn_topk_merge_avx512;
    }
    if (cpu & TN_CPU_AVX512VNNI) {
        k->gemm_s8 = tn_gemm_s8_avx512vnni;
        k->gemm_packed = tn_gemm_packed_avx512vnni;
        k->packed_rows = TN_PACKED_FEW;
    }
    if (cpu & TN_CPU_AMXINT8) {
        k->gemm_s8 = tn_gemm_s8_amxint8;
        k->packed_rows = 8; /* more are faster from tiles */
    }
#endif
#elif defined(__aarch64__)
    if (cpu & TN_CPU_NEON) {
        tn_kernels_f32_neon(k);
        k->gemm_s8 = tn_gemm_s8_neon;
        k->quantise_s8 = tn_quantise_s8_neon;
        k->hadamard_f32 = tn_hadamard_f32_neon;
        k->quantise_outliers = tn_quantise_outliers_neon;
        k->outlier_f32 = tn_outlier_f32_neon;
        k->unpack_tile = tn_unpack_tile_neon;
        k->rans_decode = tn_rans_decode_neon;
        k->topk = tn_topk_neon;
        k->topk_merge = tn_topk_merge_neon;
    }
    if (cpu & TN_CPU_DOTPROD) {
        k->gemm_s8 = tn_gemm_s8_dotprod;
        k->gemm_packed = tn_gemm_packed_dotprod;
        k->packed_rows = SIZE_MAX; /* fewer instructions than tiles for any number of rows */
    }
    if (cpu & TN_CPU_I8MM) {
        k->gemm_s8 = tn_gemm_s8_i8mm;
        k->gemm_packed = tn_gemm_packed_i8mm;
    }
#endif
}

void tn_kernels_init(tn_kernels *k, uint32_t cpu) {
    *k = (tn_kernels){
        .cpu = cpu,
        .gemm_f32 = {[TN_PANEL_F32] = tn_gemm_f32_ref,
                     [TN_PANEL_F16] = tn_gemm_f16_ref,
                     [TN_PANEL_BF16] = tn_gemm_bf16_ref},
        .attn_f32 = tn_attn_f32_ref,
#ifndef TERN_MINIMAL /* for heads that select for themselves, used in comparisons */
        .attn_sparse = tn_attn_sparse_ref,
#endif
        .attn_tiles = tn_attn_tiles_ref,
        .kv_rows = tn_kv_rows_ref,
        .topk = tn_topk_ref,
        .topk_merge = tn_topk_merge_ref,
        .rmsnorm_f32 = tn_rmsnorm_f32_ref,
        .layernorm_f32 = tn_layernorm_f32_ref,
        .rope_f32 = tn_rope_f32_ref,
        .glu_f32 = tn_glu_f32_ref,
        .act_f32 = tn_act_f32_ref,
        .add_f32 = tn_add_f32_ref,
        .softmax_f32 = tn_softmax_f32_ref,
        .shares_u8 = tn_shares_u8_ref,
        .absmax_f32 = tn_absmax_f32_ref,
        .taps_f32 = tn_taps_f32_ref,
        .delta_f32 = tn_delta_f32_ref,
        .wkv_f32 = tn_wkv_f32_ref,
        .gemm_s8 = tn_gemm_s8_ref,
        .quantise_s8 = tn_quantise_s8_ref,
        .hadamard_f32 = tn_hadamard_f32_ref,
        .quantise_outliers = tn_quantise_outliers_ref,
        .outlier_f32 = tn_outlier_f32_ref,
        .unpack_tile = tn_unpack_tile_ref,
        .rans_decode = tn_rans_decode_ref,
    };
    init_isa(k, cpu);
    init_blocks(k, cpu);
    init_rounding(k, cpu);
}
