#include "server/bytes.h"

#include <stdlib.h>
#include <string.h>

bool tn_bytes_add(tn_bytes *b, const char *p, size_t n) {
    if (b->n + n + 1 > b->cap) {
        size_t cap = 2 * (b->n + n + 1);
        char *more = realloc(b->p, cap);
        if (!more) return false;
        b->p = more;
        b->cap = cap;
    }
    if (n) memcpy(b->p + b->n, p, n);
    b->p[b->n += n] = 0;
    return true;
}

bool tn_bytes_put(tn_bytes *b, const char *text) { return tn_bytes_add(b, text, strlen(text)); }
