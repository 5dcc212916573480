/* text/pretok_lean.c - text/pretok.h in a minimal build: patterns through lean/regex.h. */
#include "text/pretok.h"

#include "base/status.h"
#include "base/utf8.h"
#include "lean/regex_impl.h"

struct tn_pretok {
    tn_ctx *ctx;
    size_t n;
    tn_regex *regex[TN_PRETOK_MAX];
    const tn_pretok_grouping *grouped[TN_PRETOK_MAX]; /* or NULL */
};

void tn_pretok_close(tn_pretok **pp) {
    tn_pretok *p = *pp;
    if (!p) return;
    *pp = NULL;
    for (size_t i = 0; i < p->n; i++) tn_regex_close(&p->regex[i]);
    tn_free(p->ctx, p);
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
    for (; st == TERN_OK && p->n < n; p->n += st == TERN_OK) {
        const tn_pretok_grouping *g = p->grouped[p->n] = tn_pretok_grouped(patterns[p->n]);
        st = tn_regex_open(ctx, g ? g->run : patterns[p->n], &p->regex[p->n], err);
    }
    if (st != TERN_OK) tn_pretok_close(&p);
    *out = p;
    return st;
}

/* One run: what it may still cost, and where the pieces go. */
typedef struct run {
    const tn_pretok *p;
    tn_regex_search search;
    tn_piece_fn fn;
    void *user;
    tern_error *err;
} run;

static size_t next_char(const char *text, size_t n, size_t at) {
    do at++;
    while (at < n && ((uint8_t)text[at] & 0xc0) == 0x80);
    return at;
}

static bool word_begins(const char *text, size_t n) {
    uint32_t cp = 0;
    return n && tn_utf8_decode((const uint8_t *)text, (const uint8_t *)text + n, &cp) && tn_re_is_word(cp);
}

static tern_status split(run *r, size_t stage, const char *text, size_t n);

/* A run of digits in threes, counted from its end. */
static tern_status split_groups(run *r, size_t stage, const char *text, size_t n) {
    for (size_t at = 0, len; at < n; at += len) {
        len = at ? tn_pretok_three(text + at, n - at) : tn_pretok_first_group(text, n);
        TN_TRY(split(r, stage + 1, text + at, len));
    }
    return TERN_OK;
}

/* text is valid UTF-8 and never empty */
static tern_status split(run *r, size_t stage, const char *text, size_t n) {
    if (stage == r->p->n) return r->fn(r->user, text, n);
    size_t done = 0, from = 0; /* pieces are given out up to `done`, the search goes on at `from` */
    while (from < n) {
        size_t a, b;
        bool found;
        TN_TRY(tn_regex_find(r->p->regex[stage], &r->search, text, n, from, &a, &b, &found, r->err));
        if (!found) break;
        if (a == b) { /* nothing to cut out: look again behind the next character */
            from = next_char(text, n, a);
            continue;
        }
        const tn_pretok_grouping *g = r->p->grouped[stage];
        if (g && g->edge && word_begins(text + b, n - b)) { /* no edge of a word: it stays where it is */
            from = b;
            continue;
        }
        if (a > done) TN_TRY(split(r, stage + 1, text + done, a - done));
        if (g) TN_TRY(split_groups(r, stage, text + a, b - a));
        else TN_TRY(split(r, stage + 1, text + a, b - a));
        done = from = b;
    }
    return done < n ? split(r, stage + 1, text + done, n - done) : TERN_OK;
}

/* What is not UTF-8 is a piece by itself. */
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
    run r = {.p = p, .fn = fn, .user = user, .err = err};
    tn_regex_search_init(&r.search, n);
    tern_status st = run_stretches(&r, (const uint8_t *)text, (const uint8_t *)text + n);
    tn_regex_search_close(&r.search);
    return st;
}
