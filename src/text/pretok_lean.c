/* text/pretok_lean.c - text/pretok.h in a minimal build: patterns through lean/regex.h. */
#include "text/pretok_cut.h"

#include "base/status.h"
#include "base/utf8.h"
#include "lean/regex_impl.h"

struct tn_pretok {
    tn_ctx *ctx;
    size_t n;
    tn_regex *regex[TN_PRETOK_MAX];
    bool grouped[TN_PRETOK_MAX], edge[TN_PRETOK_MAX]; /* tn_pretok_grouping */
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
        const tn_pretok_grouping *g = tn_pretok_grouped(patterns[p->n]);
        p->grouped[p->n] = g != NULL;
        p->edge[p->n] = g && g->edge;
        st = tn_regex_open(ctx, g ? g->run : patterns[p->n], &p->regex[p->n], err);
    }
    if (st != TERN_OK) tn_pretok_close(&p);
    *out = p;
    return st;
}

typedef struct run {
    const tn_pretok *p;
    tn_regex_search search; /* with what it may still cost */
    tern_error *err;
} run;

static bool word_begins(const char *text, size_t n) {
    uint32_t cp = 0;
    return n && tn_utf8_decode((const uint8_t *)text, (const uint8_t *)text + n, &cp) && tn_re_is_word(cp);
}

static tern_status next_match(void *self, size_t stage, const char *text, size_t n, size_t from, size_t *a,
                              size_t *b) {
    run *r = self;
    for (;; from = *b) {
        bool found;
        TN_TRY(tn_regex_find(r->p->regex[stage], &r->search, text, n, from, a, b, &found, r->err));
        if (!found) *a = SIZE_MAX;
        /* a run that ends at no edge of a word stays where it is */
        if (!found || *a == *b || !r->p->edge[stage] || !word_begins(text + *b, n - *b)) return TERN_OK;
    }
}

tern_status tn_pretok_run(const tn_pretok *p, const char *text, size_t n, tn_piece_fn fn, void *user,
                          tern_error *err) {
    if (n == 0) return TERN_OK;
    if (p->n == 0) return fn(user, text, n);
    run r = {.p = p, .err = err};
    tn_regex_search_init(&r.search, n);
    const tn_pretok_cut c = {.n_stages = p->n,
                             .grouped = p->grouped,
                             .next = next_match,
                             .self = &r,
                             .fn = fn,
                             .user = user,
                             .err = err};
    tern_status st = tn_pretok_cut_all(&c, text, n);
    tn_regex_search_close(&r.search);
    return st;
}
