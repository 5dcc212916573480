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

#endif
