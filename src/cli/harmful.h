/* cli/harmful.h - which characters of text from outside a terminal must not get. */
#ifndef CLI_HARMFUL_H
#define CLI_HARMFUL_H

#include <stddef.h>

/* Bytes of the harmful character at p[0..n), n > 0; 0: another character. A terminal obeys C0 controls,
 * delete and, as UTF-8 has them, C1 controls. Marks of direction (U+202A to U+202E, U+2066 to U+2069)
 * reorder what is read. Newline and tab count: who lets them through says so. */
static inline size_t harmful_bytes(const char *p, size_t n) {
    unsigned char c = (unsigned char)p[0], d = n > 1 ? (unsigned char)p[1] : 0,
                  e = n > 2 ? (unsigned char)p[2] : 0;
    if (c < 0x20 || c == 0x7f) return 1;
    if (c == 0xc2) return d >= 0x80 && d < 0xa0 ? 2 : 0;
    if (c != 0xe2) return 0;
    return (d == 0x80 && e >= 0xaa && e <= 0xae) || (d == 0x81 && e >= 0xa6 && e <= 0xa9) ? 3 : 0;
}

#endif
