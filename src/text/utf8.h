/* text/utf8.h - the alphabet of byte-level tokens; with base/utf8.h. */
#ifndef TN_TEXT_UTF8_H
#define TN_TEXT_UTF8_H

#include "base/utf8.h"

/* The GPT-2 byte alphabet: printable Latin-1 bytes stand for themselves, the other 68 for U+0100... in order.
 */
static inline uint32_t tn_byte_to_alphabet(uint8_t b) {
    if ((b >= 0x21 && b <= 0x7e) || (b >= 0xa1 && b <= 0xac) || b >= 0xae) return b;
    if (b <= 0x20) return 0x100u + b;
    if (b <= 0xa0) return 0x100u + 33 + (b - 0x7fu);
    return 0x143; /* 0xad */
}

/* -1: not a letter of the alphabet */
static inline int tn_alphabet_to_byte(uint32_t cp) {
    if (cp < 0x100) return tn_byte_to_alphabet((uint8_t)cp) == cp ? (int)cp : -1;
    if (cp <= 0x120) return (int)(cp - 0x100);
    if (cp <= 0x142) return (int)(cp - 0x121 + 0x7f);
    return cp == 0x143 ? 0xad : -1;
}

#endif
