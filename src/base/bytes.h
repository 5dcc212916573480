/* base/bytes.h - a text that grows. */
#ifndef TN_BASE_BYTES_H
#define TN_BASE_BYTES_H

#include <stdbool.h>
#include <stddef.h>

typedef struct tn_bytes { /* zero-terminated once something was added; p is freed with free */
    char *p;
    size_t n, cap;
    bool failed; /* memory ran out once, so something is missing */
} tn_bytes;

/* Each returns false, with nothing added, when there is no memory. Sums of many may look at `failed` at the end. */
bool tn_bytes_add(tn_bytes *b, const char *p, size_t n);
bool tn_bytes_put(tn_bytes *b, const char *text);
__attribute__((format(printf, 2, 3))) bool tn_bytes_addf(tn_bytes *b, const char *format, ...);
/* Adds what base64 stands for, with or without its padding, in either alphabet, in lines or not. Where that
 * fails *bad is the byte that is none, or the last one of a text that ends in the middle, or n: there is no
 * memory. */
bool tn_bytes_from_base64(tn_bytes *b, const char *p, size_t n, size_t *bad);

#endif
