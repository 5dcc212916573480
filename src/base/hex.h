/* base/hex.h - hexadecimal digits, and percent-encoded bytes. */
#ifndef TN_BASE_HEX_H
#define TN_BASE_HEX_H

#include <stdbool.h>
#include <stddef.h>

/* Returns the value of a hexadecimal digit, or -1. */
static inline int tn_hex_digit(char c) {
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : -1;
}

/* Decodes %41 to A in place and returns the length. %00 stays, because a zero byte would truncate the
 * address and change its meaning. */
static inline size_t tn_percent_decode(char *s) {
    char *to = s;
    for (const char *at = s; *at; at++) {
        int high = *at == '%' ? tn_hex_digit(at[1]) : -1, low = high >= 0 ? tn_hex_digit(at[2]) : -1;
        bool byte = low >= 0 && (high | low);
        *to++ = byte ? (char)(high << 4 | low) : *at;
        if (byte) at += 2;
    }
    *to = 0;
    return (size_t)(to - s);
}

#endif
