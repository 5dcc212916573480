/* Finds a token by its bytes, in the table that tokenizer.c fills. */
#include "text/tokenizer_impl.h"

#include <string.h>
#include <xxhash.h>

uint64_t tn_tok_hash(const tn_tokenizer *t, const uint8_t *p, size_t n) {
    return XXH3_64bits_withSeed(p, n, t->seed);
}

uint32_t tn_tok_lookup(const tn_tokenizer *t, const uint8_t *p, size_t n) {
    return tn_tok_lookup_hashed(t, p, n, tn_tok_hash(t, p, n));
}

uint32_t tn_tok_lookup_hashed(const tn_tokenizer *t, const uint8_t *p, size_t n, uint64_t h) {
    for (uint64_t i = h;; i++) {
        uint64_t e = t->table[i & t->table_mask];
        if (!e) return TN_TOK_NONE;
        if (e >> 32 != h >> 32) continue;
        uint32_t id = (uint32_t)e - 1;
        size_t len;
        const uint8_t *text = tn_tok_text(t, id, &len);
        if (len == n && !memcmp(text, p, n)) return id;
    }
}
