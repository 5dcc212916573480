/* text/detok.c - ids to text, piece by piece. */
#include "text/tokenizer_impl.h"

#include "base/utf8.h"

#include <assert.h>

void tn_detok_init(tn_detok *d, const tn_tokenizer *t, bool special, bool at_start) {
    *d = (tn_detok){.t = t,
                    .special = special,
                    .started = !at_start || t->kind < TN_TOK_BPE_SPM ||
                               !(t->space_prefix || t->kind == TN_TOK_WORDPIECE)};
}

/* Whether more bytes could complete the unfinished sequence. */
static bool may_complete(const uint8_t *p, size_t n) {
    static const uint8_t fill[][4] = {{0x80, 0x80, 0x80, 0x80}, {0xbf, 0xbf, 0xbf, 0xbf}};
    for (int i = 0; i < 2; i++) {
        uint8_t s[8];
        uint32_t cp;
        memcpy(s, p, n);
        memcpy(s + n, fill[i], 4);
        if (tn_utf8_decode(s, s + n + 4, &cp) > n) return true;
    }
    return false;
}

static size_t put_text(char *buf, size_t cap, size_t at, const void *p, size_t n) {
    assert(n <= cap - at);
    if (n > cap - at) n = cap - at;
    memcpy(buf + at, p, n);
    return at + n;
}

static const char replacement[3] = "\xef\xbf\xbd";

size_t tn_detok_push(tn_detok *d, int32_t id, char *buf, size_t cap) {
    const tn_tokenizer *t = d->t;
    if (id < 0 || (uint32_t)id >= t->n_vocab) return 0;
    tn_token_type ty = tn_tok_type(t, (uint32_t)id);
    if (!d->special && (ty == TN_TOKEN_CONTROL || ty == TN_TOKEN_UNKNOWN)) return 0;
    size_t n, out = 0;
    const uint8_t *p = tn_tok_text(t, (uint32_t)id, &n), *end = p + n;
    if (n && !d->started) {
        d->started = true;
        if (*p == ' ') p++;
    }
    while (p < end) {
        uint32_t cp;
        size_t len;
        if (d->n_pending == 0 && (len = tn_utf8_decode(p, end, &cp)) > 0) {
            out = put_text(buf, cap, out, p, len);
            p += len;
            continue;
        }
        /* byte by byte; a pending sequence that cannot be completed becomes one U+FFFD */
        uint8_t *q = (uint8_t *)d->pending;
        q[d->n_pending] = *p;
        if (tn_utf8_decode(q, q + d->n_pending + 1, &cp) == d->n_pending + 1) {
            out = put_text(buf, cap, out, q, d->n_pending + 1);
            d->n_pending = 0;
            p++;
        } else if (may_complete(q, d->n_pending + 1)) {
            d->n_pending++;
            p++;
        } else {
            out = put_text(buf, cap, out, replacement, 3);
            if (d->n_pending == 0) p++; /* of this byte itself; otherwise the byte starts a new sequence */
            d->n_pending = 0;
        }
    }
    return out;
}

size_t tn_detok_flush(tn_detok *d, char *buf, size_t cap) {
    if (!d->n_pending) return 0;
    d->n_pending = 0;
    return put_text(buf, cap, 0, replacement, 3);
}
