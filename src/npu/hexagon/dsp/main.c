/* npu/hexagon/dsp/main.c - the DSP side: a freestanding program that maps the shared arena, then answers messages. Integer
 * HVX only (v67 has no vector float worth trusting); the epilogue uses the core's own single-precision instructions, which
 * round as IEEE says. Weight tiles are staged 32 columns at a time in a buffer the size of half a VTCM, as a DMA would do it. */
#include "../message.h"

#include <hexagon_protos.h>
#include <hexagon_types.h>
#include <hvx_hexagon_protos.h>
#include <stddef.h>

enum { MAX_K = 65536, ROWS = 4 };
static uint8_t vtcm[MAX_K * 32] __attribute__((aligned(128)));

static long call(long n, long a, long b, long c, long d, long e, long f) {
    register long r0 __asm__("r0") = a, r1 __asm__("r1") = b, r2 __asm__("r2") = c, r3 __asm__("r3") = d, r4 __asm__("r4") = e,
                  r5 __asm__("r5") = f, r6 __asm__("r6") = n;
    __asm__ volatile("trap0(#1)" : "+r"(r0) : "r"(r1), "r"(r2), "r"(r3), "r"(r4), "r"(r5), "r"(r6) : "memory");
    return r0;
}

/* The bytes of 32 columns as u8 = s8 + 128, one vector per four inputs: two 16x4 tiles side by side. */
static void stage(const uint32_t *t0, const uint32_t *t1, uint32_t n_quads) {
    uint32_t *to = (uint32_t *)vtcm;
    for (uint32_t q = 0; q < n_quads; q++, to += 32) {
        for (int i = 0; i < 16; i++) {
            to[i] = t0[q * 16 + i] ^ 0x80808080u;
            to[16 + i] = t1 ? t1[q * 16 + i] ^ 0x80808080u : 0x80808080u;
        }
    }
}

/* Four rows by 32 columns. The weights carry +128, so 128 times the sum of a row is taken off at the end. */
static void product(const uint32_t *const a[ROWS], uint32_t n_quads, HVX_Vector acc[ROWS]) {
    HVX_Vector s0 = Q6_V_vzero(), s1 = s0, s2 = s0, s3 = s0;
    const HVX_Vector *w = (const HVX_Vector *)vtcm, ones = Q6_V_vsplat_R(0x01010101);
    HVX_Vector t0 = s0, t1 = s0, t2 = s0, t3 = s0;
    for (uint32_t q = 0; q < n_quads; q++) {
        uint32_t x0 = a[0][q] ^ 0x80808080u, x1 = a[1][q] ^ 0x80808080u, x2 = a[2][q] ^ 0x80808080u, x3 = a[3][q] ^ 0x80808080u;
        s0 = Q6_Vw_vrmpyacc_VwVubRb(s0, w[q], x0);
        s1 = Q6_Vw_vrmpyacc_VwVubRb(s1, w[q], x1);
        s2 = Q6_Vw_vrmpyacc_VwVubRb(s2, w[q], x2);
        s3 = Q6_Vw_vrmpyacc_VwVubRb(s3, w[q], x3);
        t0 = Q6_Vw_vrmpyacc_VwVubRb(t0, ones, x0);
        t1 = Q6_Vw_vrmpyacc_VwVubRb(t1, ones, x1);
        t2 = Q6_Vw_vrmpyacc_VwVubRb(t2, ones, x2);
        t3 = Q6_Vw_vrmpyacc_VwVubRb(t3, ones, x3);
    }
    acc[0] = Q6_Vw_vsub_VwVw(s0, Q6_Vw_vasl_VwR(t0, 7));
    acc[1] = Q6_Vw_vsub_VwVw(s1, Q6_Vw_vasl_VwR(t1, 7));
    acc[2] = Q6_Vw_vsub_VwVw(s2, Q6_Vw_vasl_VwR(t2, 7));
    acc[3] = Q6_Vw_vsub_VwVw(s3, Q6_Vw_vasl_VwR(t3, 7));
}

/* Clipping first is the same, as the bounds are whole; 1.5 * 2^23 rounds half to even. */
static int32_t requantise(float y) {
    if (y != y) return 0;
    y = y > 127 ? 127 : y < -127 ? -127 : y;
    volatile float r = y + 12582912.0f;
    return (int32_t)(r - 12582912.0f);
}

static void store(const tn_hex_message *g, uint8_t *base, const int32_t *acc, uint32_t m, uint32_t c0) {
    const float *scale = (const float *)(base + g->scale), *bias = (const float *)(base + g->bias);
    for (uint32_t i = 0, n = c0; i < 32 && n < g->n; i++, n++) {
        size_t at = (size_t)m * g->out_stride + n;
        if (g->out_form == 1) {
            ((int32_t *)(base + g->out))[at] = acc[i];
            continue;
        }
        float x = (float)acc[i], y = g->bias ? Q6_R_sfmpyacc_RR(bias[n], x, scale[n]) : x * scale[n];
        if (g->out_form == 0) ((float *)(base + g->out))[at] = y;
        else (base + g->out)[at] = (uint8_t)(requantise(y) + (g->out_form == 2 ? 128 : 0));
    }
}

static int inside(uint32_t size, uint32_t at, uint64_t bytes) { return at <= size && bytes <= size - at; }

static uint32_t run(uint8_t *base, uint32_t size, const tn_hex_message *g) {
    if (!g->m || g->m > 4096 || !g->n || g->n > 1u << 20 || !g->k || g->k > MAX_K || g->k % 4 || g->out_form > 3 || g->out_stride < g->n ||
        g->out_stride > 1u << 20)
        return TN_HEX_BAD;
    uint64_t padded = (g->n + 15) / 16 * 16;
    if (!inside(size, g->in, (uint64_t)g->m * g->k) || !inside(size, g->tiles, padded * g->k) || !inside(size, g->scale, padded * 4) ||
        (g->bias && !inside(size, g->bias, padded * 4)) || !inside(size, g->out, (uint64_t)g->m * g->out_stride * 4))
        return TN_HEX_BAD;
    uint32_t n_quads = g->k / 4;
    HVX_Vector acc[ROWS];
    for (uint32_t c = 0; c < g->n; c += 32) {
        const uint32_t *t0 = (const uint32_t *)(base + g->tiles + (size_t)c * g->k);
        stage(t0, c + 16 < padded ? t0 + n_quads * 16 : NULL, n_quads);
        for (uint32_t m = 0; m < g->m; m += ROWS) {
            const uint32_t *a[ROWS];
            for (uint32_t i = 0; i < ROWS; i++) a[i] = (const uint32_t *)(base + g->in + (size_t)(m + i < g->m ? m + i : g->m - 1) * g->k);
            product(a, n_quads, acc);
            for (uint32_t i = 0; i < ROWS && m + i < g->m; i++) store(g, base, (const int32_t *)&acc[i], m + i, c);
        }
    }
    return TN_HEX_OK;
}

__attribute__((used, noreturn)) static void serve(void) {
    tn_hex_message g;
    uint8_t *base = NULL;
    uint32_t size = 0;
    for (;;) {
        for (long n = 0; n < (long)sizeof g;) {
            long got = call(63, 0, (long)((char *)&g + n), (long)sizeof g - n, 0, 0, 0);
            if (got <= 0) call(94, got < 0, 0, 0, 0, 0, 0);
            n += got;
        }
        uint32_t answer = TN_HEX_BAD;
        if (g.what == TN_HEX_HELLO && !base) {
            long p = call(222, 0, (long)g.arena_bytes, 3, 1, 3, 0);
            if ((unsigned long)p < (unsigned long)-4096) base = (uint8_t *)p, size = g.arena_bytes, answer = TN_HEX_OK;
        } else if (g.what == TN_HEX_RUN && base) {
            answer = run(base, size, &g);
        }
        if (call(64, 0, (long)&answer, sizeof answer, 0, 0, 0) != sizeof answer) call(94, 1, 0, 0, 0, 0, 0);
    }
}

__attribute__((naked, used, noreturn)) void _start(void) { __asm__ volatile("{ r29 = and(r29, #-128) }\n jump serve"); }

void *memset(void *p, int c, size_t n) {
    for (volatile char *d = p; n--;) *d++ = (char)c;
    return p;
}
void *memcpy(void *to, const void *from, size_t n) {
    volatile char *d = to;
    for (const char *s = from; n--;) *d++ = *s++;
    return to;
}
