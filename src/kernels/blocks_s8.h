/* kernels/blocks_s8.h - matrix product over weights that stay in ggml's blocks, as a GGUF file stores them.
 *
 * Every type means w = s * (q - offset) + b: q an unsigned byte, offset the type's constant, s and b (b only
 * where the type has minima) one float for each group of 16 or 32 input channels. Rows of activations are
 * quantised to s8 with a scale for 128 channels; products of bytes are exact, groups are added in float.
 *
 * In memory the weights are tiles of 16 output channels, made once from the file's rows, of the same size. A
 * tile is a sequence of chunks of TN_BLOCKS_CHUNK input channels, the last one shorter. A chunk holds first
 * the bytes of the values as in the file's blocks, in words of four: [word][16 channels][4], field by field
 * and in each field block by block; a line is one such word of all channels. Then come the scales:
 *
 *   fields of values                        scales, [group][16 channels] each
 *   Q8_0            qs                      f16 d
 *   Q4_0, IQ4_NL    qs                      f16 d
 *   Q4_1            qs                      f16 d | f16 m
 *   MXFP4           qs                      the exponent, one byte
 *   NVFP4           qs **                   the scale, one byte
 *   Q1_0, Q2_0      qs **                   f16 d
 *   Q5_0            qs | fifth bits *       f16 d
 *   Q5_1            qs | fifth bits *       f16 d | f16 m
 *   Q4_K            qs                      scales and minima, six bits | f16 d | f16 dmin
 *   Q5_K            qs | qh                 the same
 *   IQ4_XS          qs                      scales, six bits | f16 d
 *   Q6_K            ql | qh                 s8 scale | f16 d
 *   Q2_K            qs                      the byte of scale and minimum | f16 d | f16 dmin
 *   Q3_K            qs | hmask              scales, six bits | f16 d
 *   IQ1, IQ2        qs | third bits         scales, four bits | f16 d
 *   IQ3_XXS, IQ3_S  qs                      scales, four bits | f16 d
 *   TQ              qs                      f16 d
 *   IQ2_K           qs                      scales, four bits | second | f16 d
 *   IQ3_K           qs | qh                 scales, four bits | second | signs of the scales | f16 d
 *   IQ4_K           qs                      scales, six bits | second | f16 d
 *   IQ5_K           qs | qh                 scales, six bits | second | f16 d
 *   IQ6_K           qs | qh                 s8 scale | second | f16 d
 *   IQ2_KS, IQ4_KS  qs                      s8 scale | second | f32 d
 *   IQ3_KS, IQ5_KS  qs | qh                 s8 scale | second | f32 d
 *   KT              s8                      s8 scale | second | f32 d
 *
 * IQ1 to TQ are tern's own forms for ggml's types of code books (formats/code_books.h), where a product
 * would have to look up every value in a list. Here a value is its number in a table of at most 16: 2, 3 or 4
 * bits, placed as in TQ2_0, Q3_K or IQ4_XS. A scale of four bits v means 2 v + 1. tn_blocks_from_codes makes
 * their rows.
 *
 * The rest are ik_llama.cpp's types, whose values are numbers in a table too (formats/ik_types.h): bit g of `second`, 16
 * bits a channel, moves the values of its g-th 16 input channels up by the type's step. Those with f32 d are tern's own
 * forms of types whose rows begin with a number (tn_blocks_from_ik makes their rows). Of KT the values themselves are kept.
 *
 * * bit i of a channel's byte j is the fifth of value 4 i + j of the block: one word for a block.
 * ** in another order than in the file: NVFP4's nibbles as in MXFP4; of Q1_0 and Q2_0, byte j of a block's 16
 * has values j, j + 16, j + 32 .. from its lowest bits on.
 * Six-bit numbers lie four by four in three lines of 16 bytes: numbers 0, 1, 2 of a channel are the lines'
 * low six bits, number 3 is their high pairs, lowest first. K types (and IQ4_XS) exist for whole chunks only.
 */
#ifndef TN_KERNELS_BLOCKS_S8_H
#define TN_KERNELS_BLOCKS_S8_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum tn_blocks_type {
    TN_BLOCKS_Q8_0,
    TN_BLOCKS_Q4_0,
    TN_BLOCKS_Q4_1,
    TN_BLOCKS_Q5_0,
    TN_BLOCKS_Q5_1,
    TN_BLOCKS_Q2_K,
    TN_BLOCKS_Q3_K,
    TN_BLOCKS_Q4_K,
    TN_BLOCKS_Q5_K,
    TN_BLOCKS_Q6_K,
    TN_BLOCKS_IQ4_NL,
    TN_BLOCKS_IQ4_XS,
    TN_BLOCKS_MXFP4,
    TN_BLOCKS_IQ1,
    TN_BLOCKS_IQ2,
    TN_BLOCKS_IQ3_XXS,
    TN_BLOCKS_IQ3_S,
    TN_BLOCKS_TQ,
    TN_BLOCKS_Q1_0,
    TN_BLOCKS_Q2_0,
    TN_BLOCKS_NVFP4,
    TN_BLOCKS_IQ2_K,
    TN_BLOCKS_IQ3_K,
    TN_BLOCKS_IQ4_K,
    TN_BLOCKS_IQ5_K,
    TN_BLOCKS_IQ6_K,
    TN_BLOCKS_IQ4_KS,
    TN_BLOCKS_IQ5_KS,
    TN_BLOCKS_IQ2_KS,
    TN_BLOCKS_IQ3_KS,
    TN_BLOCKS_KT,
    TN_BLOCKS_N_TYPES
} tn_blocks_type;

enum {
    TN_BLOCKS_N = 16,      /* channels of a tile */
    TN_BLOCKS_CHUNK = 256, /* input channels of a chunk */
    TN_BLOCKS_ACT = 128,   /* activations that share a scale */
    TN_BLOCKS_GROUPS = 16  /* groups of a chunk, at most */
};

typedef struct tn_blocks_traits {
    const char *name;
    uint16_t block, bytes; /* values of a row's block, its bytes; block divides K */
    uint8_t offset;        /* of q */
    uint8_t group;         /* input channels that share s and b: 16 or 32 */
    bool has_min;          /* b; offset is 0 then */
} tn_blocks_traits;
extern const tn_blocks_traits tn_blocks_traits_of[TN_BLOCKS_N_TYPES];

/* ---- weights -------------------------------------------------------------------------------------- */

/* Bytes of the tiles of an [N][K] matrix: N rounded up to 16 times the file's row. */
size_t tn_blocks_bytes(tn_blocks_type type, size_t n, size_t k);
/* Makes one tile (16 channels) from rows of the file; rows beyond n_rows are zero, n_rows <= 16. */
void tn_blocks_repack(tn_blocks_type type, const uint8_t *const *rows, size_t n_rows, size_t k,
                      uint8_t *tile);
/* One block of a row of a code-book type: the number of each value in the type's table, a scale of four bits
 * for every 16 values (IQ3: for the first of every two 16s; TQ: none), and d. */
void tn_blocks_from_codes(tn_blocks_type type, const uint8_t codes[TN_BLOCKS_CHUNK],
                          const uint8_t scales[TN_BLOCKS_GROUPS], uint16_t d, uint8_t *block);
/* One block of a row of a type with f32 d: codes (KT: values plus 128), the scales and `second` of tn_ik_block. */
void tn_blocks_from_ik(tn_blocks_type type, const uint8_t codes[TN_BLOCKS_CHUNK],
                       const int8_t scales[TN_BLOCKS_GROUPS], uint16_t second, float d, uint8_t *block);
/* Channel n of the tiles, widened to the values the file's blocks mean: out [K]. */
void tn_blocks_row(tn_blocks_type type, const uint8_t *tiles, size_t n, size_t k, float *out);
/* Whether the blocks' own numbers are finite: n_bytes of the file's blocks at src (no types of code books or f32 d).
 */
bool tn_blocks_finite(tn_blocks_type type, const uint8_t *src, size_t n_bytes);

/* ---- activations ---------------------------------------------------------------------------------- */

/* A chunk of one row. */
typedef struct tn_blocks_act {
    int8_t q[TN_BLOCKS_CHUNK];
    union {
        int32_t start[TN_BLOCKS_GROUPS]; /* offset types: -offset * (the group's sum of q) */
        float sum[TN_BLOCKS_GROUPS];     /* types with minima: the group's sum of q */
    } of;
    float scale[TN_BLOCKS_CHUNK / TN_BLOCKS_ACT];
} tn_blocks_act;

static inline size_t tn_blocks_n_chunks(size_t k) { return (k + TN_BLOCKS_CHUNK - 1) / TN_BLOCKS_CHUNK; }

/* One row x [K] for weights of a type; chunk c goes to out[c * stride]. Within each TN_BLOCKS_ACT channels:
 * scale = max |x| / 127, q = clip(round_half_even(x * (127 / max |x|)), -127, 127), q = 0 for NaN and where
 * all are zero. An infinity makes the scale infinite. Values after K in the last chunk are not written. */
typedef void (*tn_blocks_quantise_fn)(tn_blocks_type type, const float *x, size_t k, tn_blocks_act *out,
                                      size_t stride);
void tn_blocks_quantise_ref(tn_blocks_type type, const float *x, size_t k, tn_blocks_act *out, size_t stride);

/* ---- the product ---------------------------------------------------------------------------------- */

typedef struct tn_blocks_args {
    tn_blocks_type type;
    const uint8_t *tiles;
    const tn_blocks_act *a;      /* [chunk][M] */
    const float *bias;           /* [N] or NULL */
    float *out;                  /* row stride ldo; only columns n0..n1-1 are written */
    size_t ldo, m, n, k, n0, n1; /* k % 32 == 0; n0 % 16 == 0, n1 % 16 == 0 or n1 == n */
} tn_blocks_args;

/* out[m][n] = acc + bias[n], where acc = +0 and then, for each TN_BLOCKS_ACT channels in turn,
 *   p = +0; for each of their groups g: p = fma((float)i_g, s_g, p), and p = fma(b_g, sum_g, p) where the
 * type has minima; acc = fma(p, scale, acc);   i_g = sum over the group of a * (q - offset), exact. s is f16
 * or the exact product of the block's f16 and a number of its group; so is b. Of f32 d s is the rounded product. Rows do not depend on M. |i_g|
 * <= 32 * 127 * 128 < 2^24, so (float)i_g is exact. Reads nothing beyond the operands. */
typedef void (*tn_blocks_gemm_fn)(const tn_blocks_args *g);
void tn_blocks_gemm_ref(const tn_blocks_args *g);

/* Variants: each exists on its architecture only and needs the processor features of its name. */
void tn_blocks_quantise_avx2(tn_blocks_type type, const float *x, size_t k, tn_blocks_act *out,
                             size_t stride);
void tn_blocks_quantise_avx512(tn_blocks_type type, const float *x, size_t k, tn_blocks_act *out,
                               size_t stride);
void tn_blocks_quantise_neon(tn_blocks_type type, const float *x, size_t k, tn_blocks_act *out,
                             size_t stride);
void tn_blocks_gemm_avx2(const tn_blocks_args *g);
void tn_blocks_gemm_avxvnni(const tn_blocks_args *g);
void tn_blocks_gemm_avx512vnni(const tn_blocks_args *g);
void tn_blocks_gemm_neon(const tn_blocks_args *g);
void tn_blocks_gemm_dotprod(const tn_blocks_args *g);
void tn_blocks_gemm_i8mm(const tn_blocks_args *g);

#endif
