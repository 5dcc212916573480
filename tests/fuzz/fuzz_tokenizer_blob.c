/* A tokenizer blob from anywhere, its checksum made right so that the checks after it are reached. */
#include "text/chat.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    tn_ctx ctx;
    tn_tokenizer *t;
    tern_error err;
    tn_ctx_init(&ctx, NULL);
    uint8_t *blob = malloc(size ? size : 1);
    if (!blob) return 0;
    memcpy(blob, data, size);
    if (size >= 16) {
        uint64_t h = XXH3_64bits(blob + 16, size - 16);
        for (int i = 0; i < 8; i++) blob[8 + i] = (uint8_t)(h >> 8 * i);
    }
    if (tn_tokenizer_load(&ctx, blob, size, &t, &err) == TERN_OK) {
        static const char text[] = "ab cd <s>\xe2\x96\x81 e\xcc\x81\xff 11 "
                                   "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";
        int32_t ids[512];
        char out[4096];
        size_t n;
        tn_tokenize(t, text, sizeof text - 1, true, true, ids, 512, &n, &err);
        tn_tokenize(t, (const char *)data, size < 200 ? size : 200, false, false, ids, 512, &n, &err);
        for (int32_t id = -1; id < 300; id++) tn_token_bytes(t, id, true, out, sizeof out);
        const tern_message hi = {"user", "Hi"};
        tn_chat_render(t, &hi, 1, NULL, out, sizeof out, &n, &err);
        uint8_t *again, *twice;
        size_t n_again, n_twice;
        tn_tokenizer *u;
        if (tn_tokenizer_save(t, &again, &n_again, &err) ==
            TERN_OK) { /* what was read is saved the same way twice */
            if (tn_tokenizer_load(&ctx, again, n_again, &u, &err) != TERN_OK) abort();
            if (tn_tokenizer_save(u, &twice, &n_twice, &err) != TERN_OK) abort();
            if (n_again != n_twice || memcmp(again, twice, n_twice)) abort();
            tn_free(&ctx, again);
            tn_free(&ctx, twice);
            tn_tokenizer_close(&u);
        }
        tn_tokenizer_close(&t);
    }
    free(blob);
    return 0;
}
