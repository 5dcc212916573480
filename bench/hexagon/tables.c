/* Unpacking and multiplying weights of few bits on HVX: by tern's kernels, by arithmetic in a layout of whole
 * vectors, and by look-up in tables (T-MAN, arXiv 2511.11248). bench/hexagon-tables.sh compiles it for one FORM
 * at a time and counts packets; a wrong result exits with 1. 128 channels of 1536 inputs, with the codes
 * 2 q - (2^bits - 1) of packages. */
#include "npu/hexagon/dsp/kernels.h"

#define NOINLINE __attribute__((noinline))

enum { N = 128, K = 1536, GROUPS = K / 4, VECTOR = 128 };
enum { UNPACK_TERN, UNPACK_SHIFT, UNPACK_TABLE, DECODE_TILES, DECODE_SHIFT, DECODE_TABLE, DECODE_SUMS, SUMS };
#define CODES ((1 << BITS) - 1)

static uint8_t q[N][K];           /* codes, unsigned */
static _Alignas(128) int8_t a[K]; /* a row's activations */
static _Alignas(128) uint8_t packed[N * K + VECTOR];
static _Alignas(128) int8_t out[N * K];
static _Alignas(
    128) int16_t sums[GROUPS / 4][32][2]; /* four tables a vector: [entry, + 16 for odd ones][half] */
static _Alignas(128) int32_t got[N];
static uint64_t panel[K / 8];

/* ---- unpacking: packed to one s8 per weight, in the order of the inputs ------------------------------ */

/* Field f of a vector's bytes is inputs 128 f .. 128 f + 127, so that shifts bring them out in order. `low` is the
 * first bit of the codes that is packed. */
static void pack_fields(uint8_t *to, const uint8_t *from, int width, int low) {
    for (int i = 0; i < 8 / width * VECTOR; i++)
        to[i % VECTOR] =
            (uint8_t)(to[i % VECTOR] | (from[i] >> low & ((1 << width) - 1)) << i / VECTOR * width);
}

/* vlut32 without a match wants its 32 bytes in the lower halves of halfwords. */
static inline __attribute__((always_inline)) HVX_Vector table_of(const int8_t *entries) {
    static _Alignas(128) int8_t t[64][2];
    for (int i = 0; i < 32; i++) t[i][0] = entries[i];
    return *(const HVX_Vector *)t;
}

NOINLINE static void unpack_shift_4(const HVX_Vector *src, HVX_Vector *to, int n) {
    const HVX_Vector low = Q6_V_vsplat_R(0x1e1e1e1e), mid = Q6_V_vsplat_R(0x0f0f0f0f);
    for (int i = 0; i < n; i++, to += 2) {
        HVX_Vector x = *src++;
        to[0] = Q6_Vb_vsub_VbVb(Q6_V_vand_VV(Q6_Vh_vasl_VhR(x, 1), low), mid);
        to[1] = Q6_Vb_vsub_VbVb(Q6_V_vand_VV(Q6_Vuh_vlsr_VuhR(x, 3), low), mid);
    }
}

/* Entries repeat, so that the look-up of five bits needs no mask. */
NOINLINE static void unpack_table_4(const HVX_Vector *src, HVX_Vector table, HVX_Vector *to, int n) {
    for (int i = 0; i < n; i++, to += 2) {
        HVX_Vector x = *src++;
        to[0] = Q6_Vb_vlut32_VbVbR_nomatch(x, table, 0);
        to[1] = Q6_Vb_vlut32_VbVbR_nomatch(Q6_Vuh_vlsr_VuhR(x, 4), table, 0);
    }
}

/* Three bits: two vectors of crumbs and one plane are 1024 weights. */
NOINLINE static void unpack_shift_3(const HVX_Vector *src, HVX_Vector *to, int n) {
    const HVX_Vector two = Q6_V_vsplat_R(0x06060606), one = Q6_V_vsplat_R(0x08080808),
                     mid = Q6_V_vsplat_R(0x07070707);
    for (int i = 0; i < n; i++, src += 3, to += 8) {
        HVX_Vector bit = src[2];
        _Pragma("clang loop unroll(full)") for (int f = 0; f < 8; f++) {
            HVX_Vector c = f % 4 ? Q6_Vuh_vlsr_VuhR(src[f / 4], f % 4 * 2 - 1)
                                 : Q6_Vh_vasl_VhR(src[f / 4], 1),
                       b = f < 3   ? Q6_Vh_vasl_VhR(bit, 3 - f)
                           : f > 3 ? Q6_Vuh_vlsr_VuhR(bit, f - 3)
                                   : bit;
            to[f] = Q6_Vb_vsub_VbVb(Q6_V_vor_VV(Q6_V_vand_VV(c, two), Q6_V_vand_VV(b, one)), mid);
        }
    }
}

/* Three planes of 1024 weights, in two levels as T-MAN has them: a nibble of a plane is four weights' bits, which
 * the first table spreads over the nibbles of 16 bits. The planes are joined, and the second table turns a nibble
 * into its value. */
NOINLINE static void unpack_table_3(const HVX_Vector *src, const HVX_Vector *spread, HVX_Vector table,
                                    HVX_Vector *to, int n) {
    for (int i = 0; i < n; i++, src += 3, to += 8) {
        _Pragma("clang loop unroll(full)") for (int h = 0; h < 2; h++) {
            HVX_VectorPair all = Q6_W_vcombine_VV(Q6_V_vzero(), Q6_V_vzero());
            _Pragma("clang loop unroll(full)") for (int p = 0; p < 3; p++) {
                HVX_Vector x = h ? Q6_Vuh_vlsr_VuhR(src[p], 4) : src[p];
                HVX_VectorPair y = Q6_Wh_vlut16_VbVhR_nomatch(x, spread[p], 0);
                all = Q6_W_vcombine_VV(Q6_V_vor_VV(Q6_V_hi_W(all), Q6_V_hi_W(y)),
                                       Q6_V_vor_VV(Q6_V_lo_W(all), Q6_V_lo_W(y)));
            }
            _Pragma("clang loop unroll(full)") for (int v = 0; v < 2; v++) {
                HVX_Vector x = v ? Q6_V_hi_W(all) : Q6_V_lo_W(all);
                to[4 * h + 2 * v] = Q6_Vb_vlut32_VbVbR_nomatch(x, table, 0);
                to[4 * h + 2 * v + 1] = Q6_Vb_vlut32_VbVbR_nomatch(Q6_Vuh_vlsr_VuhR(x, 4), table, 0);
            }
        }
    }
}

/* ---- decoding: one row times packed weights ---------------------------------------------------------- */

/* Vectors are 32 columns by 4 inputs; one holds 8 / BITS of them, of inputs that follow each other. */
NOINLINE static HVX_Vector decode(const HVX_Vector *src, HVX_Vector table) {
    const int per = 8 / BITS, low = FORM == DECODE_SHIFT ? CODES : 0;
    const HVX_Vector mask = Q6_V_vsplat_R(low * 0x01010101);
    HVX_Vector acc[4] = {Q6_V_vzero(), Q6_V_vzero(), Q6_V_vzero(), Q6_V_vzero()};
    const int32_t *x = (const int32_t *)a;
    for (int i = 0; i < GROUPS / per; i++, x += per) {
        HVX_Vector w = *src++;
        _Pragma("clang loop unroll(full)") for (int f = 0; f < per; f++) {
            HVX_Vector y = f ? Q6_Vuh_vlsr_VuhR(w, f * BITS) : w;
            y = low ? Q6_V_vand_VV(y, mask) : Q6_Vb_vlut32_VbVbR_nomatch(y, table, 0);
            acc[f] = Q6_Vw_vrmpyacc_VwVubRb(acc[f], y, x[f]);
        }
    }
    return Q6_Vw_vadd_VwVw(Q6_Vw_vadd_VwVw(acc[0], acc[1]), Q6_Vw_vadd_VwVw(acc[2], acc[3]));
}

/* The sums that four activations can make, of every four: 16 entries of 16 bits. */
NOINLINE static void make_sums(void) {
    for (int g = 0; g < GROUPS; g++) {
        int16_t(*t)[2] = &sums[g / 4][g % 2 * 16];
        const int8_t *x = a + 4 * g;
        int half = g / 2 % 2;
        t[0][half] = 0;
        for (int b = 0; b < 4; b++)
            for (int i = 0; i < 1 << b; i++) t[i | 1 << b][half] = (int16_t)(t[i][half] + x[b]);
    }
}

/* A plane's nibbles, four inputs of one channel each, choose from these sums: 128 channels in a vector, two groups
 * in its bytes. Sums of 64 groups fit 16 bits. */
NOINLINE static void decode_sums(const HVX_Vector *src) {
    HVX_VectorPair total[2] = {0};
    for (int p = 0; p < BITS; p++)
        for (int g = 0; g < GROUPS; g += 64) {
            HVX_Vector even = Q6_V_vzero(), odd = even;
            for (int i = g / 4; i < g / 4 + 16; i++) {
                HVX_Vector t = *(const HVX_Vector *)sums[i];
                _Pragma("clang loop unroll(full)") for (int h = 0; h < 2; h++) {
                    HVX_Vector x = *src++;
                    HVX_VectorPair y = h ? Q6_Wh_vlut16_VbVhR_nomatch(x, t, 2)
                                         : Q6_Wh_vlut16_VbVhR_nomatch(x, t, 0),
                                   z = h ? Q6_Wh_vlut16_VbVhR_nomatch(Q6_Vuh_vlsr_VuhR(x, 4), t, 3)
                                         : Q6_Wh_vlut16_VbVhR_nomatch(Q6_Vuh_vlsr_VuhR(x, 4), t, 1);
                    even = Q6_Vh_vadd_VhVh(even, Q6_Vh_vadd_VhVh(Q6_V_lo_W(y), Q6_V_lo_W(z)));
                    odd = Q6_Vh_vadd_VhVh(odd, Q6_Vh_vadd_VhVh(Q6_V_hi_W(y), Q6_V_hi_W(z)));
                }
            }
            HVX_Vector by = Q6_V_vsplat_R((1 << p) * 0x00010001);
            total[0] = Q6_Ww_vmpyacc_WwVhVh(total[0], even, by);
            total[1] = Q6_Ww_vmpyacc_WwVhVh(total[1], odd, by);
        }
    HVX_Vector *to = (HVX_Vector *)got; /* words i of the four: channels 4 i, 4 i + 2, 4 i + 1, 4 i + 3 */
    to[0] = Q6_V_lo_W(total[0]), to[1] = Q6_V_hi_W(total[0]), to[2] = Q6_V_lo_W(total[1]),
    to[3] = Q6_V_hi_W(total[1]);
}

/* ---- the count --------------------------------------------------------------------------------------- */

static void leave(int status) {
    register long r0 __asm__("r0") = status, r6 __asm__("r6") = 94;
    __asm__ volatile("trap0(#1)" : : "r"(r0), "r"(r6));
}

void *memset(void *p, int c, unsigned n) {
    for (volatile uint8_t *b = p; n--; b++) *b = (uint8_t)c;
    return p;
}
void *memcpy(void *to, const void *from, unsigned n) {
    for (unsigned i = 0; i < n; i++) ((volatile uint8_t *)to)[i] = ((const uint8_t *)from)[i];
    return to;
}

static uint32_t seed = 1;
static uint32_t next(void) { return (seed = seed * 1664525 + 1013904223) >> 16; }

static void pack(uint32_t stride) {
    uint8_t *to = packed;
    if (FORM == UNPACK_TERN)
        for (int c = 0; c < N; c++)
            for (int g = 0; g < K / 128; g++, to += stride)
                for (int width = 4, low = 0, at = 0; width; width /= 2) {
                    if (!(BITS & width)) continue;
                    for (int i = 0, block = 16 * width; i < 128; i++)
                        to[at + i % block] =
                            (uint8_t)(to[at + i % block] | (q[c][g * 128 + i] >> low & ((1 << width) - 1))
                                                               << i / block * width);
                    at += 16 * width, low += width;
                }
    if (FORM == UNPACK_SHIFT || (FORM == UNPACK_TABLE && BITS == 4))
        for (const uint8_t *from = q[0]; from < q[0] + N * K; from += BITS == 4 ? 256 : 1024) {
            for (int i = 0; i < (BITS == 4 ? 1 : 2); i++, to += VECTOR)
                pack_fields(to, from + 512 * i, BITS == 4 ? 4 : 2, 0);
            if (BITS == 3) pack_fields(to, from, 1, 2), to += VECTOR;
        }
    if (FORM == UNPACK_TABLE && BITS == 3)
        for (const uint8_t *from = q[0]; from < q[0] + N * K; from += 1024)
            for (int p = 0; p < 3; p++, to += VECTOR)
                for (int o = 0; o < 1024; o++) { /* output o is byte o % 128 of vector o / 128 */
                    int h = o / 512, v = o / 256 % 2, high = o / 128 % 2, byte = o % 128;
                    int nibble = 2 * (byte % 2) + high; /* of the halfword that the first look-up gives */
                    to[byte / 2 * 2 + v] =
                        (uint8_t)(to[byte / 2 * 2 + v] | (from[o] >> p & 1) << (nibble + 4 * h));
                }
    if (FORM == DECODE_SHIFT || FORM == DECODE_TABLE)
        for (int n0 = 0; n0 < N; n0 += 32)
            for (int g = 0; g < GROUPS; g += 8 / BITS, to += VECTOR)
                for (int f = 0; f < 8 / BITS; f++)
                    for (int i = 0; i < 128; i++)
                        to[i] = (uint8_t)(to[i] | q[n0 + i / 4][(g + f) * 4 + i % 4] << f * BITS);
    if (FORM == DECODE_SUMS)
        for (int p = 0; p < BITS; p++)
            for (int g = 0; g < GROUPS; g += 2, to += VECTOR)
                for (int c = 0; c < N; c++)
                    for (int i = 0; i < 8; i++) to[c] = (uint8_t)(to[c] | (q[c][g * 4 + i] >> p & 1) << i);
    if (FORM == DECODE_TILES)
        for (int n0 = 0; n0 < N; n0 += 32)
            for (int g = 0; g < GROUPS; g++, to += VECTOR)
                for (int i = 0; i < 128; i++) to[i] = (uint8_t)(2 * q[n0 + i / 4][g * 4 + i % 4] - CODES);
}

static tn_hex_spreads spreads;

__attribute__((used, noreturn)) void begin(void) {
    volatile int times = TIMES;
    int32_t sum = 0, tile_sums[1];
    int8_t levels[32];
    _Alignas(128) static int16_t spread[3][64];
    const uint32_t stride = 16 * BITS;
    for (int i = 0; i < N * K; i++) q[0][i] = (uint8_t)(next() & CODES);
    for (int i = 0; i < K; i++) a[i] = (int8_t)(next() % 255 - 127), sum += a[i];
    for (int i = 0; i < 32; i++)
        levels[i] = (int8_t)(2 * (i & CODES) - CODES + (FORM == DECODE_TABLE ? 128 : 0));
    for (int p = 0; p < 3; p++)
        for (int i = 0; i < 16; i++)
            for (int b = 0; b < 4; b++)
                spread[p][2 * i] = (int16_t)(spread[p][2 * i] | (i >> b & 1) << (4 * b + p));
    HVX_Vector table = table_of(levels);
    uint8_t u8[8];
    for (int i = 0; i < K; i += 8) {
        for (int j = 0; j < 8; j++) u8[j] = (uint8_t)a[i + j];
        memcpy(&panel[i / 8], u8, 8);
    }
    tile_sums[0] = 128 * sum;
    tn_hex_spreads_init(&spreads);
    pack(stride);
    make_sums();
    for (int t = 0; t < times; t++) {
        if (FORM == UNPACK_TERN)
            for (int c = 0; c < N; c++) /* vectors of 16 channels lie between each other */
                tn_hex_unpack_channel(&spreads, BITS, packed + (uint32_t)c * (K / 128) * stride, stride,
                                      K / 128, (HVX_Vector *)out + c / 16 * 16 * (K / 128) + c % 16);
        if (FORM == UNPACK_SHIFT && BITS == 4)
            unpack_shift_4((const HVX_Vector *)packed, (HVX_Vector *)out, N * K / 256);
        if (FORM == UNPACK_TABLE && BITS == 4)
            unpack_table_4((const HVX_Vector *)packed, table, (HVX_Vector *)out, N * K / 256);
        if (FORM == UNPACK_SHIFT && BITS == 3)
            unpack_shift_3((const HVX_Vector *)packed, (HVX_Vector *)out, N * K / 1024);
        if (FORM == UNPACK_TABLE && BITS == 3)
            unpack_table_3((const HVX_Vector *)packed, (const HVX_Vector *)spread, table, (HVX_Vector *)out,
                           N * K / 1024);
        for (int n0 = 0; n0 < N && FORM >= DECODE_TILES && FORM <= DECODE_TABLE; n0 += 32) {
            HVX_Vector *to = (HVX_Vector *)&got[n0];
            if (FORM == DECODE_TILES)
                tn_hex_product(1, panel, (const HVX_Vector *)(packed + n0 * K), K / 8, tile_sums, 1, to);
            else *to = decode((const HVX_Vector *)(packed + n0 * GROUPS * 4 / (8 / BITS)), table);
        }
        if (FORM == DECODE_SUMS) decode_sums((const HVX_Vector *)packed);
        if (FORM == SUMS) make_sums();
    }
    int wrong = 0;
    for (int c = 0; c < N && FORM != SUMS; c++) {
        int32_t want = 0;
        for (int i = 0; i < K; i++) {
            int32_t w = 2 * q[c][i] - CODES;
            want += w * a[i];
            int at = FORM == UNPACK_TERN ? ((c / 16 * (K / 128) + i / 128) * 16 + c % 16) * 128 + i % 128
                                         : c * K + i;
            if (FORM < DECODE_TILES) wrong |= out[at] != w;
        }
        int32_t is = FORM == DECODE_SUMS ? got[(c % 2 * 2 + c / 2 % 2) * 32 + c / 4] : got[c];
        if (FORM == DECODE_SHIFT || FORM == DECODE_SUMS) is = 2 * is - CODES * sum;
        if (FORM == DECODE_TABLE) is -= 128 * sum;
        if (FORM >= DECODE_TILES) wrong |= is != want;
    }
    leave(wrong);
    for (;;) {
    }
}

__asm__(".globl _start\n_start: { r29 = and(r29,#-128) }\n jump begin\n");
