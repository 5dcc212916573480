#include "kernels.h"

#include <hexagon_protos.h>
#include <hvx_hexagon_protos.h>

enum { UNSIGN = 0x80808080 };

/* ---- linear and Q.K -------------------------------------------------------------------------------------- */

void tn_hex_pack_rows(uint32_t n_rows, const uint8_t *in, uint32_t stride, uint32_t n_bytes, uint64_t *panel, int32_t *sums) {
    const uint64_t flip = 0x8080808080808080ull;
    uint32_t n_units = n_bytes / TN_HEX_UNIT;
    for (uint32_t r = 0; r < n_rows; r++, in += stride) {
        const uint64_t *from = (const uint64_t *)in;
        uint64_t *to = panel + r, sum = 0;
        for (uint32_t u = 0; u < n_units; u++, to += n_rows) {
            uint64_t x = from[u];
            sum = (uint64_t)Q6_P_vraddubacc_PP((int64_t)sum, (int64_t)x, 0);
            *to = x ^ flip;
        }
        if (n_bytes % TN_HEX_UNIT) {
            uint64_t x = *(const uint32_t *)(from + n_units);
            sum = (uint64_t)Q6_P_vraddubacc_PP((int64_t)sum, (int64_t)x, 0);
            *to = x ^ UNSIGN;
        }
        sums[r] = (int32_t)(((uint32_t)sum + (uint32_t)(sum >> 32) - 128 * n_bytes) * 128);
    }
}

static inline __attribute__((always_inline)) void product(int n_rows, const uint64_t *restrict a, const HVX_Vector *restrict w, uint32_t n_units,
                                                          const int32_t *sums, int first, HVX_Vector *restrict acc) {
    HVX_Vector s[TN_HEX_ROWS], unsign = Q6_V_vsplat_R(UNSIGN);
    for (int r = 0; r < n_rows; r++) s[r] = Q6_Vw_vsub_VwVw(first ? Q6_V_vzero() : acc[r], Q6_V_vsplat_R(sums[r]));
    for (uint32_t u = 0; u < n_units; u++, w += 2, a += n_rows) {
        HVX_Vector w0 = Q6_V_vxor_VV(w[0], unsign), w1 = Q6_V_vxor_VV(w[1], unsign);
#pragma clang loop unroll(full)
        for (int r = 0; r < n_rows; r++) {
            s[r] = Q6_Vw_vrmpyacc_VwVubRb(s[r], w0, (int32_t)a[r]);
            s[r] = Q6_Vw_vrmpyacc_VwVubRb(s[r], w1, (int32_t)(a[r] >> 32));
        }
    }
    for (int r = 0; r < n_rows; r++) acc[r] = s[r];
}

#define PRODUCT(n)                                                                                                                      \
    static __attribute__((noinline)) void product_##n(const uint64_t *a, const HVX_Vector *w, uint32_t n_units, const int32_t *sums,     \
                                                      int first, HVX_Vector *acc) {                                                      \
        product(n, a, w, n_units, sums, first, acc);                                                                                     \
    }
PRODUCT(1)
PRODUCT(2)
PRODUCT(4)
PRODUCT(8)

void tn_hex_product(uint32_t n_rows, const uint64_t *panel, const HVX_Vector *w, uint32_t n_units, const int32_t *sums, int first,
                    HVX_Vector *acc) {
    (n_rows == 8 ? product_8 : n_rows == 4 ? product_4 : n_rows == 2 ? product_2 : product_1)(panel, w, n_units, sums, first, acc);
}

/* ---- epilogue -------------------------------------------------------------------------------------------- */

/* One rounding with a bias (fused), one without: npu.h. */
static inline __attribute__((always_inline)) float factored(int32_t acc, float scale, int biased, float bias) {
    float x = (float)acc;
    return biased ? Q6_R_sfmpyacc_RR(bias, x, scale) : x * scale;
}

/* Clipping first is the same, as the bounds are whole; the conversion rounds half to even. */
static inline __attribute__((always_inline)) uint8_t requantised(float y, int32_t zero) {
    if (y != y) y = 0;
    y = Q6_R_sfmax_RR(Q6_R_sfmin_RR(y, 127), -127);
    return (uint8_t)(Q6_R_convert_sf2w_R(y) + zero);
}

static inline __attribute__((always_inline)) void to_f32(const int32_t *restrict acc, uint32_t n, const float *restrict scale, int biased,
                                                         const float *restrict bias, float *restrict out) {
    uint32_t i = 0;
    for (; i + 4 <= n; i += 4) {
#pragma clang loop unroll(full)
        for (uint32_t j = i; j < i + 4; j++) out[j] = factored(acc[j], scale[j], biased, biased ? bias[j] : 0);
    }
    for (; i < n; i++) out[i] = factored(acc[i], scale[i], biased, biased ? bias[i] : 0);
}

static inline __attribute__((always_inline)) void to_8(const int32_t *restrict acc, uint32_t n, const float *restrict scale, int biased,
                                                       const float *restrict bias, int32_t zero, uint8_t *restrict out) {
    for (uint32_t i = 0; i < n; i++) out[i] = requantised(factored(acc[i], scale[i], biased, biased ? bias[i] : 0), zero);
}

__attribute__((noinline)) void tn_hex_finish(uint32_t out_form, const HVX_Vector *acc, uint32_t n_cols, const float *scale, const float *bias, uint8_t *out) {
    const int32_t *a = (const int32_t *)acc;
    if (out_form == 1) {
        if (n_cols == TN_HEX_COLS) *(HVX_UVector *)out = *acc;
        else for (uint32_t i = 0; i < n_cols; i++) ((int32_t *)out)[i] = a[i];
    } else if (out_form == 0) {
        if (bias) to_f32(a, n_cols, scale, 1, bias, (float *)out);
        else to_f32(a, n_cols, scale, 0, bias, (float *)out);
    } else {
        int32_t zero = out_form == 2 ? 128 : 0;
        if (bias) to_8(a, n_cols, scale, 1, bias, zero, out);
        else to_8(a, n_cols, scale, 0, bias, zero, out);
    }
}

/* ---- weightlets ------------------------------------------------------------------------------------------ */

/* A group's weightlets of `width` bits lie in blocks of 16 * width bytes; block j of the vector is to hold those of the weights that
 * are block j of the group. The butterfly network brings the block at byte `at` to all blocks, each is shifted until its bits are where the
 * code wants them (doubled codes: bit 1 is the lowest), the rest is masked. */
typedef struct spread {
    HVX_Vector route, shift, mask;
} spread;

static inline __attribute__((always_inline)) spread spread_of(uint32_t width, uint32_t at, uint32_t low) {
    union {
        HVX_Vector v;
        uint8_t b[128];
        int16_t h[64];
    } route, shift;
    uint32_t block = 16 * width;
    for (uint32_t i = 0; i < 128; i++) route.b[i] = (uint8_t)((i ^ at) & ~(block - 1));
    for (uint32_t i = 0; i < 64; i++) shift.h[i] = (int16_t)((int32_t)(2 * i / block * width) - (int32_t)(low + 1));
    return (spread){route.v, shift.v, Q6_V_vsplat_R((int32_t)((((1u << width) - 1) << (low + 1)) * 0x01010101u))};
}

static inline __attribute__((always_inline)) HVX_Vector spread_out(HVX_Vector x, const spread *s) {
    return Q6_V_vand_VV(Q6_Vh_vlsr_VhVh(Q6_V_vdelta_VV(x, s->route), s->shift), s->mask);
}

static inline __attribute__((always_inline)) void unpack(uint32_t bits, const uint8_t *restrict src, uint32_t stride, uint32_t n_groups,
                                                         HVX_Vector *restrict out) {
    uint32_t at = 0, low = 0;
    spread four = {0}, two = {0}, one = {0};
    if (bits & 4) four = spread_of(4, at, low), at += 64, low += 4;
    if (bits & 2) two = spread_of(2, at, low), at += 32, low += 2;
    if (bits & 1) one = spread_of(1, at, low);
    HVX_Vector zero = Q6_V_vsplat_R((int32_t)(((1u << bits) - 1) * 0x01010101u));
    for (uint32_t g = 0; g < n_groups; g++, src += stride, out += 16) {
        HVX_Vector x = *(const HVX_UVector *)src, code;
        if (bits & 4) {
            code = spread_out(x, &four);
            if (bits & 2) code = Q6_V_vor_VV(code, spread_out(x, &two));
            if (bits & 1) code = Q6_V_vor_VV(code, spread_out(x, &one));
        } else if (bits & 2) {
            code = spread_out(x, &two);
            if (bits & 1) code = Q6_V_vor_VV(code, spread_out(x, &one));
        } else {
            code = spread_out(x, &one);
        }
        *out = Q6_Vb_vsub_VbVb(code, zero);
    }
}

#define UNPACK(b)                                                                                                                       \
    static __attribute__((noinline)) void unpack_##b(const uint8_t *src, uint32_t stride, uint32_t n_groups, HVX_Vector *out) {          \
        unpack(b, src, stride, n_groups, out);                                                                                           \
    }
UNPACK(1)
UNPACK(2)
UNPACK(3)
UNPACK(4)
UNPACK(5)
UNPACK(6)
UNPACK(7)

static __attribute__((noinline)) void unpack_8(const uint8_t *src, uint32_t stride, uint32_t n_groups, HVX_Vector *out) {
    for (uint32_t g = 0; g < n_groups; g++, src += stride, out += 16) *out = *(const HVX_UVector *)src;
}

void tn_hex_unpack_channel(uint32_t bits, const uint8_t *src, uint32_t stride, uint32_t n_groups, HVX_Vector *out) {
    switch (bits) {
    case 1: unpack_1(src, stride, n_groups, out); return;
    case 2: unpack_2(src, stride, n_groups, out); return;
    case 3: unpack_3(src, stride, n_groups, out); return;
    case 4: unpack_4(src, stride, n_groups, out); return;
    case 5: unpack_5(src, stride, n_groups, out); return;
    case 6: unpack_6(src, stride, n_groups, out); return;
    case 7: unpack_7(src, stride, n_groups, out); return;
    default: unpack_8(src, stride, n_groups, out); return;
    }
}

/* Neighbouring channels are interleaved by 4 bytes, pairs by 8, fours by 16, eights by 32: lines in order, two per vector. */
__attribute__((noinline)) void tn_hex_transpose(const HVX_Vector *channels, uint8_t *tile, uint32_t n_lines, uint32_t last_mask) {
    HVX_Vector v[16], t[16];
    for (int i = 0; i < 16; i++) v[i] = channels[i];
#define STAGE(from, to, run)                                                                                                            \
    _Pragma("clang loop unroll(full)") for (int i = 0; i < 16; i += 2 * (run)) {                                                          \
        _Pragma("clang loop unroll(full)") for (int j = 0; j < (run); j++) {                                                              \
            HVX_VectorPair p = Q6_W_vshuff_VVR(from[i + (run) + j], from[i + j], -4 * (run));                                             \
            to[i + 2 * j] = Q6_V_lo_W(p);                                                                                                \
            to[i + 2 * j + 1] = Q6_V_hi_W(p);                                                                                            \
        }                                                                                                                               \
    }
    STAGE(v, t, 1)
    STAGE(t, v, 2)
    STAGE(v, t, 4)
    STAGE(t, v, 8)
#undef STAGE
    union {
        HVX_Vector v;
        uint32_t w[32];
    } last;
    HVX_UVector *to = (HVX_UVector *)tile;
    uint32_t n_whole = (n_lines - 1) / 2;
    if (n_whole == 15) {
#pragma clang loop unroll(full)
        for (int i = 0; i < 15; i++) to[i] = v[i];
        last.v = v[15];
    } else {
        for (uint32_t i = 0; i < n_whole; i++) to[i] = v[i];
        last.v = v[n_whole];
    }
    if (n_lines == 32 && last_mask == ~0u) {
        to[15] = last.v;
        return;
    }
    uint32_t *end = (uint32_t *)(to + n_whole), n = (n_lines - 2 * n_whole) * 16;
    for (uint32_t i = 0; i < n; i++) end[i] = last.w[i] & (i + 16 >= n ? last_mask : ~0u);
}
