/* server/bytes.h - a text that grows. */
#ifndef TN_SERVER_BYTES_H
#define TN_SERVER_BYTES_H

#include <stdbool.h>
#include <stddef.h>

typedef struct tn_bytes { /* zero-terminated once something was added; p is freed with free */
    char *p;
    size_t n, cap;
} tn_bytes;

/* Returns false, with nothing added, when there is no memory. */
bool tn_bytes_add(tn_bytes *b, const char *p, size_t n);
bool tn_bytes_put(tn_bytes *b, const char *text);
/* Adds what base64 stands for, with or without its padding, in either alphabet. Where that fails *bad is the byte that is
 * none, or n: there is no memory. */
bool tn_bytes_from_base64(tn_bytes *b, const char *p, size_t n, size_t *bad);

#endif
