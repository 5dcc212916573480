/* A GBNF grammar up to the first zero byte; after it a text to follow. */
#include "text/grammar/grammar.h"
#include "small_stack.h"

#include <string.h>

static void read_one(const uint8_t *data, size_t size) {
    tn_ctx ctx;
    tn_ctx_init(&ctx, NULL);
    tern_error err;
    tn_grammar *g;
    const uint8_t *cut = memchr(data, 0, size);
    size_t n = cut ? (size_t)(cut - data) : size;
    if (tn_grammar_open_gbnf(&ctx, (const char *)data, n, &g, &err) != TERN_OK) return;
    if (cut) (void)tn_grammar_accepts(g, (const char *)cut + 1, size - n - 1);
    tn_grammar_close(&g);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    on_small_stack(read_one, data, size);
    return 0;
}
