#include "text/pretok_cut.h"

#include "base/status.h"
#include "base/utf8.h"

/* The end of the character that begins at `at`. */
static size_t next_char(const char *text, size_t n, size_t at) {
    do at++;
    while (at < n && ((uint8_t)text[at] & 0xc0) == 0x80);
    return at;
}

static tern_status split(const tn_pretok_cut *c, size_t stage, const char *text, size_t n);

/* A run of digits in threes, counted from its end. */
static tern_status split_groups(const tn_pretok_cut *c, size_t stage, const char *text, size_t n) {
    for (size_t at = 0, len; at < n; at += len) {
        len = at ? tn_pretok_three(text + at, n - at) : tn_pretok_first_group(text, n);
        TN_TRY(split(c, stage + 1, text + at, len));
    }
    return TERN_OK;
}

/* text is valid UTF-8 and never empty */
static tern_status split(const tn_pretok_cut *c, size_t stage, const char *text, size_t n) {
    if (stage == c->n_stages) return c->fn(c->user, text, n);
    size_t done = 0, from = 0; /* pieces up to `done` have been given out; the search continues at `from` */
    while (from < n) {
        size_t a, b;
        TN_TRY(c->next(c->self, stage, text, n, from, &a, &b));
        if (a == SIZE_MAX) break;
        TN_FAIL_IF(a < done || b < a || b > n, c->err, TERN_E_UNSUPPORTED,
                   "pre-tokenisation pattern %zu moves the start of its match", stage);
        if (a == b) { /* an empty match: continue after the next character */
            from = a < n ? next_char(text, n, a) : n;
            continue;
        }
        if (a > done) TN_TRY(split(c, stage + 1, text + done, a - done));
        if (c->grouped[stage]) TN_TRY(split_groups(c, stage, text + a, b - a));
        else TN_TRY(split(c, stage + 1, text + a, b - a));
        done = from = b;
    }
    return done < n ? split(c, stage + 1, text + done, n - done) : TERN_OK;
}

tern_status tn_pretok_cut_all(const tn_pretok_cut *c, const char *text, size_t n) {
    const uint8_t *b = (const uint8_t *)text, *end = b + n;
    while (b < end) {
        const uint8_t *q = b;
        uint32_t cp;
        for (size_t len; q < end && (len = tn_utf8_decode(q, end, &cp)); q += len) {
        }
        if (q > b) TN_TRY(split(c, 0, (const char *)b, (size_t)(q - b)));
        for (b = q; q < end && !tn_utf8_decode(q, end, &cp); q++) {
        }
        if (q > b) TN_TRY(c->fn(c->user, (const char *)b, (size_t)(q - b)));
        b = q;
    }
    return TERN_OK;
}
