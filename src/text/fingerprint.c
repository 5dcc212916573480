#include "text/tokenizer.h"

#include <xxhash.h>

uint64_t tn_tokenizer_fingerprint(const tn_tokenizer *t) {
    XXH64_hash_t h = 0;
    size_t n = tn_tokenizer_n_vocab(t);
    char buf[256];
    for (size_t i = 0; i < n; i++) {
        size_t len = tn_token_bytes(t, (int32_t)i, true, buf, sizeof buf);
        h = XXH64(&len, sizeof len, h);
        h = XXH64(buf, len < sizeof buf ? len : sizeof buf, h);
    }
    return h;
}
