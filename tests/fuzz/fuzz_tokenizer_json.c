/* A tokenizer.json from anywhere: refused with a status, or safe to use. */
#include "text/hf.h"

#include <stdint.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    tn_ctx ctx;
    tn_tokenizer *t;
    tern_error err;
    tn_ctx_init(&ctx, NULL);
    if (tn_hf_parse(&ctx, (const char *)data, size, &t, &err) != TERN_OK) return 0;
    /* the input is as good a text as any */
    int32_t ids[512];
    char out[4096];
    size_t n, n_text = size < 400 ? size : 400;
    if (tn_tokenize(t, (const char *)data, n_text, true, true, ids, 512, &n, &err) == TERN_OK) {
        size_t cap = 4 * tn_tokenizer_max_token_bytes(t) + 16;
        tn_detok d;
        tn_detok_init(&d, t, true, true);
        for (size_t i = 0; i < n && cap <= sizeof out; i++) tn_detok_push(&d, ids[i], out, sizeof out);
        tn_detok_flush(&d, out, sizeof out);
    }
    tn_tokenizer_close(&t);
    return 0;
}
