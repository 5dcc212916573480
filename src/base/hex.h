/* base/hex.h - hexadecimal digits. */
#ifndef TN_BASE_HEX_H
#define TN_BASE_HEX_H

/* Returns the value of a hexadecimal digit, or -1. */
static inline int tn_hex_digit(char c) {
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : -1;
}

#endif
