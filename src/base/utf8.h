/* base/utf8.h - one character of UTF-8. Never reads at or beyond `end`. */
#ifndef TN_BASE_UTF8_H
#define TN_BASE_UTF8_H

#include <stddef.h>
#include <stdint.h>

/* Length of the well-formed sequence at p < end and its code point; 0 if there is none (RFC 3629). */
static inline size_t tn_utf8_decode(const uint8_t *p, const uint8_t *end, uint32_t *cp) {
    size_t left = (size_t)(end - p);
    uint8_t a = p[0];
    if (a < 0x80) {
        *cp = a;
        return 1;
    }
    if (a < 0xc2 || a > 0xf4) return 0;
    if (left < 2) return 0;
    /* the second byte excludes over-long forms, surrogates and values beyond U+10FFFF */
    uint8_t lo = a == 0xe0 ? 0xa0 : a == 0xf0 ? 0x90 : 0x80;
    uint8_t hi = a == 0xed ? 0x9f : a == 0xf4 ? 0x8f : 0xbf;
    if (p[1] < lo || p[1] > hi) return 0;
    if (a < 0xe0) {
        *cp = (uint32_t)(a & 0x1f) << 6 | (p[1] & 0x3f);
        return 2;
    }
    if (left < 3 || (p[2] & 0xc0) != 0x80) return 0;
    if (a < 0xf0) {
        *cp = (uint32_t)(a & 0x0f) << 12 | (uint32_t)(p[1] & 0x3f) << 6 | (p[2] & 0x3f);
        return 3;
    }
    if (left < 4 || (p[3] & 0xc0) != 0x80) return 0;
    *cp = (uint32_t)(a & 0x07) << 18 | (uint32_t)(p[1] & 0x3f) << 12 | (uint32_t)(p[2] & 0x3f) << 6 |
          (p[3] & 0x3f);
    return 4;
}

/* Writes 1..4 bytes. */
static inline size_t tn_utf8_encode(uint32_t cp, uint8_t *out) {
    if (cp < 0x80) {
        out[0] = (uint8_t)cp;
        return 1;
    }
    if (cp < 0x800) {
        out[0] = (uint8_t)(0xc0 | cp >> 6);
        out[1] = (uint8_t)(0x80 | (cp & 0x3f));
        return 2;
    }
    if (cp < 0x10000) {
        out[0] = (uint8_t)(0xe0 | cp >> 12);
        out[1] = (uint8_t)(0x80 | (cp >> 6 & 0x3f));
        out[2] = (uint8_t)(0x80 | (cp & 0x3f));
        return 3;
    }
    out[0] = (uint8_t)(0xf0 | cp >> 18);
    out[1] = (uint8_t)(0x80 | (cp >> 12 & 0x3f));
    out[2] = (uint8_t)(0x80 | (cp >> 6 & 0x3f));
    out[3] = (uint8_t)(0x80 | (cp & 0x3f));
    return 4;
}

#endif
