#include "kernels.h"

#include <hexagon_protos.h>
#include <hvx_hexagon_protos.h>

enum { UNSIGN = 0x80808080 };

/* ---- linear and Q.K ---------------------------------------------------------------------------------- */

void tn_hex_pack_rows(uint32_t n_rows, const uint8_t *in, uint32_t stride, uint32_t n_bytes, uint64_t *panel,
                      int32_t *sums) {
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

static inline __attribute__((always_inline)) void product(int n_rows, const uint64_t *restrict a,
                                                          const HVX_Vector *restrict w, uint32_t n_units,
                                                          const int32_t *sums, int first,
                                                          HVX_Vector *restrict acc) {
    HVX_Vector s[TN_HEX_ROWS], unsign = Q6_V_vsplat_R(UNSIGN);
    for (int r = 0; r < n_rows; r++)
        s[r] = Q6_Vw_vsub_VwVw(first ? Q6_V_vzero() : acc[r], Q6_V_vsplat_R(sums[r]));
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

static __attribute__((noinline)) void product_2(const uint64_t *a, const HVX_Vector *w, uint32_t n_units,
                                                const int32_t *sums, int first, HVX_Vector *acc) {
    product(2, a, w, n_units, sums, first, acc);
}

/* The loops below are scheduled by hand, because the compiler leaves a slot in four empty. A packet has two
 * multiplications at most, of different rows (i with the unit's first weights, i - 1 with its second). It has
 * two loads: the activations of row i + 2 and, in two packets, the next unit's weights. Those are made
 * unsigned in two more packets. The loops read 256 bytes beyond the weights and 16 beyond the panel, all of
 * it VTCM. Registers: r7:6, r9:8, r11:10, r13:12 hold rows i % 4. */
#define ROW(i, before, lo, hi, pair, more)                                                                   \
    "{ %[s" #i "].w += vrmpy(%[w0].ub," lo ".b); %[s" #before "].w += vrmpy(%[w1].ub," hi ".b)\n" pair       \
    " = memd(%[a]++#8); " more " }"
#define LOAD(raw) raw " = vmem(%[w]++#1)"
#define TO_W0 "%[w0] = vxor(%[x0],%[unsign])"
#define TO_W1 "%[w1] = vxor(%[x1],%[unsign])"
#define BEGIN                                                                                                \
    "{ r13:12 = combine(#0,#0); r7:6 = memd(%[a]++#8); " LOAD("%[x0]") " }\n{ r9:8 = memd(%[a]++#8); " LOAD( \
        "%[x1]") "; " TO_W0 " }\nloop0(1f,%[n])\n.p2align 5\n1:\n"
#define SCALARS "r6", "r7", "r8", "r9", "r10", "r11", "r12", "r13", "lc0", "sa0", "memory"

static __attribute__((noinline)) void product_8(const uint64_t *a, const HVX_Vector *w, uint32_t n_units,
                                                const int32_t *sums, int first, HVX_Vector *acc) {
    HVX_Vector s[8], w0, w1 = Q6_V_vzero(), x0, x1, unsign = Q6_V_vsplat_R(UNSIGN);
#pragma clang loop unroll(full)
    for (int r = 0; r < 8; r++) s[r] = Q6_Vw_vsub_VwVw(first ? Q6_V_vzero() : acc[r], Q6_V_vsplat_R(sums[r]));
    __asm__(
        BEGIN ROW(0, 7, "r6", "r13", "r11:10", TO_W1) "\n" ROW(1, 0, "r8", "r7", "r13:12", "nop") "\n" ROW(
            2, 1, "r10", "r9", "r7:6",
            LOAD(
                "%[x0]")) "\n" ROW(3, 2, "r12", "r11", "r9:8",
                                   "nop") "\n" ROW(4, 3, "r6", "r13", "r11:10",
                                                   LOAD(
                                                       "%[x1]")) "\n" ROW(5, 4, "r8", "r7", "r13:12",
                                                                          "nop") "\n" ROW(6, 5, "r10", "r9",
                                                                                          "r7:6",
                                                                                          "nop") "\n" ROW(7,
                                                                                                          6,
                                                                                                          "r1"
                                                                                                          "2",
                                                                                                          "r1"
                                                                                                          "1",
                                                                                                          "r9"
                                                                                                          ":"
                                                                                                          "8",
                                                                                                          TO_W0) ":endloop0\n"
                                                                                                                 "{ %[s7].w += vrmpy(%[w1].ub,r13.b) }"
        : [a] "+r"(a), [w] "+r"(w), [w0] "=&v"(w0), [w1] "+v"(w1), [x0] "=&v"(x0), [x1] "=&v"(x1),
          [s0] "+v"(s[0]), [s1] "+v"(s[1]), [s2] "+v"(s[2]), [s3] "+v"(s[3]), [s4] "+v"(s[4]),
          [s5] "+v"(s[5]), [s6] "+v"(s[6]), [s7] "+v"(s[7])
        : [n] "r"(n_units), [unsign] "v"(unsign)
        : SCALARS);
#pragma clang loop unroll(full)
    for (int r = 0; r < 8; r++) acc[r] = s[r];
}

static __attribute__((noinline)) void product_4(const uint64_t *a, const HVX_Vector *w, uint32_t n_units,
                                                const int32_t *sums, int first, HVX_Vector *acc) {
    HVX_Vector s[4], w0, w1 = Q6_V_vzero(), x0, x1, unsign = Q6_V_vsplat_R(UNSIGN);
#pragma clang loop unroll(full)
    for (int r = 0; r < 4; r++) s[r] = Q6_Vw_vsub_VwVw(first ? Q6_V_vzero() : acc[r], Q6_V_vsplat_R(sums[r]));
    __asm__(BEGIN ROW(0, 3, "r6", "r13", "r11:10", TO_W1) "\n" ROW(
                1, 0, "r8", "r7", "r13:12",
                LOAD("%[x0]")) "\n" ROW(2, 1, "r10", "r9", "r7:6",
                                        LOAD("%[x1]")) "\n" ROW(3, 2, "r12", "r11", "r9:8",
                                                                TO_W0) ":endloop0\n"
                                                                       "{ %[s3].w += vrmpy(%[w1].ub,r13.b) }"
            : [a] "+r"(a), [w] "+r"(w), [w0] "=&v"(w0), [w1] "+v"(w1), [x0] "=&v"(x0), [x1] "=&v"(x1),
              [s0] "+v"(s[0]), [s1] "+v"(s[1]), [s2] "+v"(s[2]), [s3] "+v"(s[3])
            : [n] "r"(n_units), [unsign] "v"(unsign)
            : SCALARS);
#pragma clang loop unroll(full)
    for (int r = 0; r < 4; r++) acc[r] = s[r];
}

/* One row is bound by the weights: a vector per packet. Two accumulators, so that no sum waits for the
 * previous one. */
static __attribute__((noinline)) void product_1(const uint64_t *a, const HVX_Vector *w, uint32_t n_units,
                                                const int32_t *sums, int first, HVX_Vector *acc) {
    HVX_Vector s0 = Q6_Vw_vsub_VwVw(first ? Q6_V_vzero() : acc[0], Q6_V_vsplat_R(sums[0])), s1 = Q6_V_vzero(),
               raw, x, unsign = Q6_V_vsplat_R(UNSIGN);
    __asm__("{ r7:6 = memd(%[a]++#8); %[raw] = vmem(%[w]++#1) }\n"
            "{ %[x] = vxor(%[raw],%[unsign]); %[raw] = vmem(%[w]++#1) }\n"
            "loop0(1f,%[n])\n.p2align 5\n1:\n"
            "{ %[s0].w += vrmpy(%[x].ub,r6.b); %[x] = vxor(%[raw],%[unsign]); %[raw] = vmem(%[w]++#1) }\n"
            "{ %[s1].w += vrmpy(%[x].ub,r7.b); %[x] = vxor(%[raw],%[unsign]); r7:6 = memd(%[a]++#8); %[raw] "
            "= vmem(%[w]++#1) }:endloop0"
            : [a] "+r"(a), [w] "+r"(w), [s0] "+v"(s0), [s1] "+v"(s1), [raw] "=&v"(raw), [x] "=&v"(x)
            : [n] "r"(n_units), [unsign] "v"(unsign)
            : "r6", "r7", "lc0", "sa0", "memory");
    acc[0] = Q6_Vw_vadd_VwVw(s0, s1);
}

void tn_hex_product(uint32_t n_rows, const uint64_t *panel, const HVX_Vector *w, uint32_t n_units,
                    const int32_t *sums, int first, HVX_Vector *acc) {
    (n_rows == 8   ? product_8
     : n_rows == 4 ? product_4
     : n_rows == 2 ? product_2
                   : product_1)(panel, w, n_units, sums, first, acc);
}

/* ---- epilogue ---------------------------------------------------------------------------------------- */

/* Rounds once: with a bias in a fused operation, without one in a product, as npu.h says. */
static inline __attribute__((always_inline)) float factored(int32_t acc, float scale, int biased,
                                                            float bias) {
    float x = (float)acc;
    return biased ? Q6_R_sfmpyacc_RR(bias, x, scale) : x * scale;
}

/* Clipping before rounding equals clipping after it, because the bounds are integers. The conversion
 * rounds half to even. Factors are finite, so there is no NaN. */
static inline __attribute__((always_inline)) uint8_t requantised(float y, int32_t zero) {
    y = Q6_R_sfmax_RR(Q6_R_sfmin_RR(y, 127), -127);
    return (uint8_t)(Q6_R_convert_sf2w_R(y) + zero);
}

/* Computes two columns of every row at once, because loads and stores of pairs keep both float units busy.
 * out and stride are multiples of 8. */
static inline __attribute__((always_inline)) void to_f32(const int32_t *restrict acc, uint32_t n_rows,
                                                         uint32_t n, const float *restrict scale, int biased,
                                                         const float *restrict bias, uint8_t *restrict out,
                                                         uint32_t stride) {
    typedef union {
        uint64_t both;
        float f[2];
        int32_t i[2];
    } pair;
    for (uint32_t r = 0; r < n_rows; r++, acc += TN_HEX_COLS, out += stride) {
        const uint64_t *a = (const uint64_t *)acc, *s = (const uint64_t *)scale, *b = (const uint64_t *)bias;
        uint64_t *to = (uint64_t *)out;
        for (uint32_t i = 0; i < n / 2; i++) {
            pair x = {a[i]}, f = {s[i]}, add = {biased ? b[i] : 0}, y;
            y.f[0] = factored(x.i[0], f.f[0], biased, add.f[0]);
            y.f[1] = factored(x.i[1], f.f[1], biased, add.f[1]);
            to[i] = y.both;
        }
        if (n % 2)
            ((float *)out)[n - 1] = factored(acc[n - 1], scale[n - 1], biased, biased ? bias[n - 1] : 0);
    }
}

static inline __attribute__((always_inline)) void
to_f32_unaligned(const int32_t *restrict acc, uint32_t n_rows, uint32_t n, const float *restrict scale,
                 const float *restrict bias, uint8_t *restrict out, uint32_t stride) {
    for (uint32_t r = 0; r < n_rows; r++, acc += TN_HEX_COLS, out += stride) {
        for (uint32_t i = 0; i < n; i++)
            ((float *)out)[i] =
                bias ? factored(acc[i], scale[i], 1, bias[i]) : factored(acc[i], scale[i], 0, 0);
    }
}

static inline __attribute__((always_inline)) void to_8(const int32_t *restrict acc, uint32_t n_rows,
                                                       uint32_t n, const float *restrict scale, int biased,
                                                       const float *restrict bias, int32_t zero,
                                                       uint8_t *restrict out, uint32_t stride) {
    for (uint32_t r = 0; r < n_rows; r++, acc += TN_HEX_COLS, out += stride) {
#pragma clang loop unroll_count(4)
        for (uint32_t i = 0; i < n; i++)
            out[i] = requantised(factored(acc[i], scale[i], biased, biased ? bias[i] : 0), zero);
    }
}

static void to_s32(const HVX_Vector *acc, uint32_t n_rows, uint32_t n, uint8_t *out, uint32_t stride) {
    for (uint32_t r = 0; r < n_rows; r++, acc++, out += stride) {
        if (n == TN_HEX_COLS) *(HVX_UVector *)out = *acc;
        else
            for (uint32_t i = 0; i < n; i++) ((int32_t *)out)[i] = ((const int32_t *)acc)[i];
    }
}

__attribute__((noinline)) void tn_hex_finish(uint32_t out_form, const HVX_Vector *acc, uint32_t n_rows,
                                             uint32_t n_cols, const float *scale, const float *bias,
                                             uint8_t *out, uint32_t stride) {
    const int32_t *a = (const int32_t *)acc;
    int32_t zero = out_form == 2 ? 128 : 0;
    if (out_form == 1) to_s32(acc, n_rows, n_cols, out, stride);
    else if (out_form > 1 && bias) to_8(a, n_rows, n_cols, scale, 1, bias, zero, out, stride);
    else if (out_form > 1) to_8(a, n_rows, n_cols, scale, 0, bias, zero, out, stride);
    else if (((uint32_t)out | stride) % 8) to_f32_unaligned(a, n_rows, n_cols, scale, bias, out, stride);
    else if (bias) to_f32(a, n_rows, n_cols, scale, 1, bias, out, stride);
    else to_f32(a, n_rows, n_cols, scale, 0, bias, out, stride);
}

/* ---- weightlets -------------------------------------------------------------------------------------- */

/* A group's weightlets of `width` bits lie in blocks of 16 * width bytes. Block j of the vector must hold
 * the weightlets of the weights in block j of the group. The butterfly network brings the block at byte
 * `at` to all blocks. Each is shifted until its bits are at their place in the code (in doubled codes bit
 * 1 is the lowest), and the rest is masked. */
void tn_hex_spreads_init(tn_hex_spreads *all) {
    for (uint32_t bits = 1; bits < 8; bits++) {
        uint32_t at = 0, low = 0;
        for (uint32_t i = 0, width = 4; i < 3; i++, width /= 2) {
            tn_hex_spread *s = &all->of[bits][i];
            if (!(bits & width)) continue;
            uint32_t block = 16 * width;
            for (uint32_t j = 0; j < 128; j++) ((uint8_t *)&s->route)[j] = (uint8_t)((j ^ at) & ~(block - 1));
            for (uint32_t j = 0; j < 64; j++)
                ((int16_t *)&s->shift)[j] =
                    (int16_t)((int32_t)((2 * j >> (6 - i)) * width) - (int32_t)(low + 1));
            s->mask = Q6_V_vsplat_R((int32_t)((((1u << width) - 1) << (low + 1)) * 0x01010101u));
            at += block;
            low += width;
        }
    }
}

static inline __attribute__((always_inline)) HVX_Vector spread_out(HVX_Vector x, tn_hex_spread s) {
    return Q6_V_vand_VV(Q6_Vh_vlsr_VhVh(Q6_V_vdelta_VV(x, s.route), s.shift), s.mask);
}

static inline __attribute__((always_inline)) void unpack(const tn_hex_spreads *all, uint32_t bits,
                                                         const uint8_t *restrict src, uint32_t stride,
                                                         uint32_t n_groups, HVX_Vector *restrict out) {
    const tn_hex_spread four = all->of[bits][0], two = all->of[bits][1], one = all->of[bits][2];
    HVX_Vector zero = Q6_V_vsplat_R((int32_t)(((1u << bits) - 1) * 0x01010101u));
    for (uint32_t g = 0; g < n_groups; g++, src += stride, out += 16) {
        HVX_Vector x = *(const HVX_UVector *)src, code;
        if (bits & 4) {
            code = spread_out(x, four);
            if (bits & 2) code = Q6_V_vor_VV(code, spread_out(x, two));
            if (bits & 1) code = Q6_V_vor_VV(code, spread_out(x, one));
        } else if (bits & 2) {
            code = spread_out(x, two);
            if (bits & 1) code = Q6_V_vor_VV(code, spread_out(x, one));
        } else {
            code = spread_out(x, one);
        }
        *out = Q6_Vb_vsub_VbVb(code, zero);
    }
}

#define UNPACK(b)                                                                                            \
    static __attribute__((noinline)) void unpack_##b(const tn_hex_spreads *s, const uint8_t *src,            \
                                                     uint32_t stride, uint32_t n_groups, HVX_Vector *out) {  \
        unpack(s, b, src, stride, n_groups, out);                                                            \
    }
UNPACK(1)
UNPACK(2)
UNPACK(3)
UNPACK(4)
UNPACK(5)
UNPACK(6)
UNPACK(7)

static __attribute__((noinline)) void unpack_8(const uint8_t *src, uint32_t stride, uint32_t n_groups,
                                               HVX_Vector *out) {
    for (uint32_t g = 0; g < n_groups; g++, src += stride, out += 16) *out = *(const HVX_UVector *)src;
}

void tn_hex_unpack_channel(const tn_hex_spreads *s, uint32_t bits, const uint8_t *src, uint32_t stride,
                           uint32_t n_groups, HVX_Vector *out) {
    switch (bits) {
    case 1: unpack_1(s, src, stride, n_groups, out); return;
    case 2: unpack_2(s, src, stride, n_groups, out); return;
    case 3: unpack_3(s, src, stride, n_groups, out); return;
    case 4: unpack_4(s, src, stride, n_groups, out); return;
    case 5: unpack_5(s, src, stride, n_groups, out); return;
    case 6: unpack_6(s, src, stride, n_groups, out); return;
    case 7: unpack_7(s, src, stride, n_groups, out); return;
    default: unpack_8(src, stride, n_groups, out); return;
    }
}

/* Interleaves neighbouring channels by 4 bytes, pairs by 8, fours by 16, eights by 32. The result is the
 * lines in order, two per vector. */
__attribute__((noinline)) void tn_hex_transpose(const HVX_Vector *channels, uint8_t *tile, uint32_t n_lines,
                                                uint32_t last_mask) {
    HVX_Vector v[16], t[16];
    for (int i = 0; i < 16; i++) v[i] = channels[i];
#define STAGE(from, to, run)                                                                                 \
    _Pragma("clang loop unroll(full)") for (int i = 0; i < 16; i += 2 * (run)) {                             \
        _Pragma("clang loop unroll(full)") for (int j = 0; j < (run); j++) {                                 \
            HVX_VectorPair p = Q6_W_vshuff_VVR(from[i + (run) + j], from[i + j], -4 * (run));                \
            to[i + 2 * j] = Q6_V_lo_W(p);                                                                    \
            to[i + 2 * j + 1] = Q6_V_hi_W(p);                                                                \
        }                                                                                                    \
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
