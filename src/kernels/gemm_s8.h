/* kernels/gemm_s8.h - the host NPU's matrix product: int8 x int8 -> int32, exact, with its epilogue.
 *
 * Weights W [N][K] s8 in [-127,127] lie in tiles: ceil(N/16) column tiles, each [ceil(K/4)][16][4] bytes:
 * element (n,k) at (n/16)*ceil(K/4)*64 + (k/4)*64 + (n%16)*4 + k%4; missing n and k are zero. After the
 * tiles nothing is read. One tile row is one 64-byte line, a tile is one sequential stream: prefill walks
 * several tiles at once, decode reads them in turn. Activations are u8 = s8 + 128 (the device's native type,
 * made by quantise_s8); col_sum[n] = sum_k W[n][k] undoes the offset. */
#ifndef TN_KERNELS_GEMM_S8_H
#define TN_KERNELS_GEMM_S8_H

#include <stddef.h>
#include <stdint.h>

enum { TN_TILE_N = 16, TN_TILE_K = 4, TN_S8_MAX_K = 65536 };

typedef struct tn_gemm_s8_args {
    const uint8_t *a;       /* [M][K] row stride lda (>= K rounded up to 4; the bytes between K and that are
                               readable, any value) */
    size_t lda;             /* a multiple of 4096 is slow (all rows in one cache set): add 64 */
    const int8_t *tiles;    /* 64-byte aligned */
    const int32_t *col_sum; /* [N rounded up to 16] */
    size_t m, n, k;         /* k <= TN_S8_MAX_K so that 255*127*K fits int32 */
    size_t n0, n1;          /* columns to compute; n0 % 16 == 0, n1 % 16 == 0 or n1 == n */
    /* exactly one output form, row stride ldo elements; only columns n0..n1-1 are written: */
    int32_t *out_s32; /* acc[m][n] */
    float *out_f32;   /* y[m][n] = fma((float)acc, scale[n], bias[n]), or (float)acc * scale[n] without bias;
                       * scale = act_scale * weight scale;   (float)acc rounds to nearest even */
    uint8_t *out_u8;  /* 128 + clip(round_half_even(y[m][n]), -127, 127), NaN gives 128: requantised for the
                       * next product, scale and bias  then already divided by its activation scale */
    size_t ldo;
    const float *scale, *bias; /* [N]; bias may be NULL. Unused with out_s32. */
    const void *next;          /* what the caller reads after these columns: may be prefetched, or NULL */
    size_t next_bytes;
} tn_gemm_s8_args;

/* acc[m][n] = sum_k (a[m][k] - 128) * W[n][k], exact. Rows do not depend on M. m == 0 and n0 == n1 do
 * nothing. */
typedef void (*tn_gemm_s8_fn)(const tn_gemm_s8_args *g);
void tn_gemm_s8_ref(const tn_gemm_s8_args *g);

/* out[i] = 128 + clip(round_half_even(x[i] * inv_scale), -127, 127), i < n. NaN gives 128 (zero).
 * Returns the number of values the clip cut off (|x * inv_scale| > 127, before rounding). */
typedef size_t (*tn_quantise_s8_fn)(const float *x, float inv_scale, uint8_t *out, size_t n);
size_t tn_quantise_s8_ref(const float *x, float inv_scale, uint8_t *out, size_t n);

/* quantise_s8 that also lists what the clip cut off, index ascending: idx[j] = i0 + i, resid[j] = fma(-scale,
 * q, x[i]) with q = +-127 (scale is the caller's 1 / inv_scale). At most cap entries are written; the count
 * returned may be larger: then the list is incomplete. */
typedef size_t (*tn_quantise_outliers_fn)(const float *x, float inv_scale, float scale, uint8_t *out,
                                          size_t n, uint32_t i0, uint32_t *idx, float *resid, size_t cap);
size_t tn_quantise_outliers_ref(const float *x, float inv_scale, float scale, uint8_t *out, size_t n,
                                uint32_t i0, uint32_t *idx, float *resid, size_t cap);

size_t tn_tiles_s8_bytes(size_t n, size_t k);
/* Pack row-major W [n1-n0][K] s8 into the tiles of an [N][K] matrix (n0 % 16 == 0); fills col_sum for those
 * columns. Columns of the last tile beyond n1 are zeroed, in the tiles and in col_sum. */
void tn_tiles_s8_pack(int8_t *tiles, int32_t *col_sum, const int8_t *w, size_t n0, size_t n1, size_t k);

/* Variants: each exists on its architecture only and needs the processor features of its name. */
void tn_gemm_s8_avx2(const tn_gemm_s8_args *g);
void tn_gemm_s8_avxvnni(const tn_gemm_s8_args *g);
void tn_gemm_s8_avx512vnni(const tn_gemm_s8_args *g);
void tn_gemm_s8_amxint8(const tn_gemm_s8_args *g);
void tn_gemm_s8_neon(const tn_gemm_s8_args *g);
void tn_gemm_s8_dotprod(const tn_gemm_s8_args *g);
void tn_gemm_s8_i8mm(const tn_gemm_s8_args *g);
size_t tn_quantise_s8_avx2(const float *x, float inv_scale, uint8_t *out, size_t n);
size_t tn_quantise_s8_avx512(const float *x, float inv_scale, uint8_t *out, size_t n);
size_t tn_quantise_s8_neon(const float *x, float inv_scale, uint8_t *out, size_t n);
size_t tn_quantise_outliers_avx2(const float *x, float inv_scale, float scale, uint8_t *out, size_t n,
                                 uint32_t i0, uint32_t *idx, float *resid, size_t cap);
size_t tn_quantise_outliers_avx512(const float *x, float inv_scale, float scale, uint8_t *out, size_t n,
                                   uint32_t i0, uint32_t *idx, float *resid, size_t cap);
size_t tn_quantise_outliers_neon(const float *x, float inv_scale, float scale, uint8_t *out, size_t n,
                                 uint32_t i0, uint32_t *idx, float *resid, size_t cap);

#endif
