#include "base/bytes.h"

#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool tn_bytes_add(tn_bytes *b, const char *p, size_t n) {
    if (n >= b->cap - b->n) {
        size_t cap = 2 * b->cap + n + 64;
        char *more = cap > n ? realloc(b->p, cap) : NULL;
        b->failed = b->failed || !more;
        if (!more) return false;
        b->p = more;
        b->cap = cap;
    }
    if (n) memcpy(b->p + b->n, p, n);
    b->p[b->n += n] = 0;
    return true;
}

bool tn_bytes_addf(tn_bytes *b, const char *format, ...) {
    va_list args;
    va_start(args, format);
    char *p = NULL;
    int n = vasprintf(&p, format, args);
    va_end(args);
    b->failed = b->failed || n < 0;
    bool ok = n >= 0 && tn_bytes_add(b, p, (size_t)n);
    if (n >= 0) free(p);
    return ok;
}

bool tn_bytes_put(tn_bytes *b, const char *text) { return tn_bytes_add(b, text, strlen(text)); }

static int value_of(char c) {
    return c >= 'A' && c <= 'Z'   ? c - 'A'
           : c >= 'a' && c <= 'z' ? c - 'a' + 26
           : c >= '0' && c <= '9' ? c - '0' + 52
           : c == '+' || c == '-' ? 62
           : c == '/' || c == '_' ? 63
                                  : -1;
}

static bool is_blank(char c) { return c == '\n' || c == '\r' || c == ' ' || c == '\t'; }

bool tn_bytes_from_base64(tn_bytes *b, const char *p, size_t n, size_t *bad) {
    size_t end = n, k = 0, n_signs = 0, last = 0;
    while (end && (p[end - 1] == '=' || is_blank(p[end - 1]))) end--;
    *bad = n;
    char *to = malloc(end / 4 * 3 + 3);
    if (!to) return false;
    uint32_t bits = 0;
    for (size_t i = 0; i < end && *bad == n; i++) {
        if (is_blank(p[i])) continue;
        const int v = value_of(p[i]);
        if (v < 0) *bad = i;
        bits = bits << 6 | (uint32_t)v;
        if (n_signs % 4) to[k++] = (char)(bits >> (6 - 2 * (n_signs % 4)) & 255);
        n_signs++;
        last = i;
    }
    if (*bad == n && n_signs % 4 == 1) *bad = last;
    const bool ok = *bad == n && tn_bytes_add(b, to, k);
    free(to);
    return ok;
}
