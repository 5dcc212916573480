/* text/pretok.c - text cut by one pattern after another. */
#include "text/pretok.h"

#include "base/status.h"
#include "base/utf8.h"
#include "text/pattern.h"

struct tn_pretok {
    tn_ctx *ctx;
    size_t n;
    tn_pattern *pattern[TN_PRETOK_MAX];
};

void tn_pretok_close(tn_pretok **pp) {
    tn_pretok *p = *pp;
    if (!p) return;
    for (size_t i = 0; i < p->n; i++) tn_pattern_close(&p->pattern[i]);
    tn_free(p->ctx, p);
    *pp = NULL;
}

tern_status tn_pretok_open(tn_ctx *ctx, const char *const *patterns, size_t n, tn_pretok **out,
                           tern_error *err) {
    *out = NULL;
    TN_FAIL_IF(n > TN_PRETOK_MAX, err, TERN_E_UNSUPPORTED, "pre-tokenisation with %zu patterns, at most %d",
               n, TN_PRETOK_MAX);
    tn_pretok *p = tn_calloc(ctx, TN_MEM_TEXT, 1, sizeof *p);
    TN_FAIL_IF(!p, err, TERN_E_MEMORY, "out of memory for the pre-tokeniser");
    p->ctx = ctx;
    tern_status st = TERN_OK;
    for (; st == TERN_OK && p->n < n; p->n += st == TERN_OK)
        st = tn_pattern_open(ctx, patterns[p->n], p->n, &p->pattern[p->n], err);
    if (st != TERN_OK) tn_pretok_close(&p);
    *out = p;
    return st;
}

/* One run: the patterns' searches, and where the pieces go. */
typedef struct run {
    const tn_pretok *p;
    tn_search *search[TN_PRETOK_MAX];
    tn_piece_fn fn;
    void *user;
    tern_error *err;
} run;

/* text is valid UTF-8 and never empty */
static tern_status split(run *r, size_t stage, const char *text, size_t n) {
    if (stage == r->p->n) return r->fn(r->user, text, n);
    size_t done = 0, from = 0; /* pieces are given out up to `done`, the search goes on at `from` */
    while (from < n) {
        size_t a, b;
        bool found;
        TN_TRY(tn_search_next(r->search[stage], text, n, from, &a, &b, &found, r->err));
        if (!found) break;
        TN_FAIL_IF(a < done || b < a || b > n, r->err, TERN_E_UNSUPPORTED,
                   "pre-tokenisation pattern %zu moves the start of its match", stage);
        if (a == b) { /* nothing to cut out: look again behind the next character */
            from = a;
            do from++;
            while (from < n && ((uint8_t)text[from] & 0xc0) == 0x80);
            continue;
        }
        if (a > done) TN_TRY(split(r, stage + 1, text + done, a - done));
        TN_TRY(split(r, stage + 1, text + a, b - a));
        done = from = b;
    }
    return done < n ? split(r, stage + 1, text + done, n - done) : TERN_OK;
}

/* Checked here once, not at each match. What is not UTF-8 is a piece by itself. */
static tern_status run_stretches(run *r, const uint8_t *b, const uint8_t *end) {
    while (b < end) {
        const uint8_t *q = b;
        uint32_t cp;
        for (size_t len; q < end && (len = tn_utf8_decode(q, end, &cp)); q += len) {
        }
        if (q > b) TN_TRY(split(r, 0, (const char *)b, (size_t)(q - b)));
        for (b = q; q < end && !tn_utf8_decode(q, end, &cp); q++) {
        }
        if (q > b) TN_TRY(r->fn(r->user, (const char *)b, (size_t)(q - b)));
        b = q;
    }
    return TERN_OK;
}

tern_status tn_pretok_run(const tn_pretok *p, const char *text, size_t n, tn_piece_fn fn, void *user,
                          tern_error *err) {
    if (n == 0) return TERN_OK;
    if (p->n == 0) return fn(user, text, n);
    tern_status st = TERN_OK;
    run r = {.p = p, .fn = fn, .user = user, .err = err};
    for (size_t i = 0; st == TERN_OK && i < p->n; i++)
        st = tn_search_open(p->pattern[i], n, &r.search[i], err);
    if (st == TERN_OK) st = run_stretches(&r, (const uint8_t *)text, (const uint8_t *)text + n);
    for (size_t i = 0; i < p->n; i++) tn_search_close(&r.search[i]);
    return st;
}
