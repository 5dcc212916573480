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

/* Bytes of the character at p[0..n), n > 0, that is harmful or that nobody sees; 0: another character. What somebody is asked
 * to allow has to be what he reads: no joiners, fillers, marks of direction, separators of lines and tags. */
static inline size_t unseen_bytes(const char *p, size_t n) {
    unsigned char c = (unsigned char)p[0], d = n > 1 ? (unsigned char)p[1] : 0,
                  e = n > 2 ? (unsigned char)p[2] : 0;
    const size_t harmful = harmful_bytes(p, n);
    if (harmful) return harmful;
    switch (c) {
    case 0xc2: return d == 0xad ? 2 : 0; /* U+00AD */
    case 0xd8: return d == 0x9c ? 2 : 0; /* U+061C */
    case 0xe1:
        return (d == 0x85 && (e == 0x9f || e == 0xa0)) || (d == 0xa0 && e >= 0x8b && e <= 0x8f) ? 3 : 0;
    case 0xe2:
        if (d == 0x80)
            return (e >= 0x8b && e <= 0x8f) || e == 0xa8 || e == 0xa9 ? 3 : 0;      /* U+200B-F, 2028, 2029 */
        return d == 0x81 && e >= 0xa0 && e <= 0xaf ? 3 : 0;                         /* U+2060 to U+206F */
    case 0xe3: return d == 0x85 && e == 0xa4 ? 3 : 0;                               /* U+3164 */
    case 0xef: return (d == 0xbb && e == 0xbf) || (d == 0xbe && e == 0xa0) ? 3 : 0; /* U+FEFF, U+FFA0 */
    case 0xf3: return n > 3 && d == 0xa0 && (e == 0x80 || e == 0x81) ? 4 : 0;       /* U+E0000 to U+E007F */
    default: return 0;
    }
}

#endif
