/* RWKV's vocabulary from anywhere: refused with a status, or tokens in order; and what a GGUF file says of one of its
 * tokens. */
#include "text/rwkv.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef struct seen {
    size_t size;
    int32_t n;
} seen;

static tern_status on_token(void *user, int32_t id, const char *bytes, size_t n) {
    seen *s = user;
    if (id != ++s->n || !n || n > s->size || !memchr(bytes, bytes[n - 1], n)) abort();
    return TERN_OK;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    seen s = {.size = size};
    tern_error err;
    char *out = malloc(size + 1);
    if (!out) return 0;
    (void)tn_rwkv_read((const char *)data, size, on_token, &s, &err);
    const size_t n = tn_rwkv_bytes((const char *)data, size, out);
    if (n != SIZE_MAX && n > size) abort();
    free(out);
    return 0;
}
