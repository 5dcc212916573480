/* text/pretok.c - pre-tokenisation through PCRE2, compiled to machine code where it can. */
#define PCRE2_CODE_UNIT_WIDTH 8
#include "text/pretok_cut.h"

#include "base/status.h"
#include "text/utf8.h"

#include <assert.h>
#include <pcre2.h>
#include <stdio.h>
#include <string.h>

struct tn_pretok {
    tn_ctx *ctx;
    pcre2_general_context *gctx;
    size_t n;
    pcre2_code *code[TN_PRETOK_MAX];
    bool jit[TN_PRETOK_MAX], grouped[TN_PRETOK_MAX];
};

static void *pcre_alloc(PCRE2_SIZE n, void *ctx) { return tn_alloc(ctx, TN_MEM_TEXT, n, 1); }
static void pcre_release(void *p, void *ctx) { tn_free(ctx, p); }

void tn_pretok_close(tn_pretok **pp) {
    tn_pretok *p = *pp;
    if (!p) return;
    for (size_t i = 0; i < p->n; i++) pcre2_code_free(p->code[i]);
    pcre2_general_context_free(p->gctx);
    tn_free(p->ctx, p);
    *pp = NULL;
}

tern_status tn_pretok_open(tn_ctx *ctx, const char *const *patterns, size_t n, tn_pretok **out,
                           tern_error *err) {
    *out = NULL;
    TN_FAIL_IF(n > TN_PRETOK_MAX, err, TERN_E_UNSUPPORTED, "pre-tokenisation with %zu patterns, at most %d",
               n, TN_PRETOK_MAX);
    tern_status st = TERN_OK;
    pcre2_compile_context *cctx = NULL;
    tn_pretok *p = tn_calloc(ctx, TN_MEM_TEXT, 1, sizeof *p);
    TN_FAIL_IF(!p, err, TERN_E_MEMORY, "out of memory for the pre-tokeniser");
    p->ctx = ctx;
    p->gctx = pcre2_general_context_create(pcre_alloc, pcre_release, ctx);
    cctx = p->gctx ? pcre2_compile_context_create(p->gctx) : NULL;
    TN_BAIL_IF(!cctx, err, TERN_E_MEMORY, "out of memory for the pre-tokeniser");
    pcre2_set_max_pattern_length(cctx, 1 << 16);
    for (; p->n < n; p->n++) {
        int code;
        PCRE2_SIZE at;
        const tn_pretok_grouping *g = tn_pretok_grouped(patterns[p->n]);
        char run[64]; /* not inside a run: if a run does not end at an edge, all of it is skipped at once */
        if (g) snprintf(run, sizeof run, g->edge ? "(?<!\\d)%s\\b" : "%s", g->run);
        p->grouped[p->n] = g != NULL;
        pcre2_code *c = pcre2_compile((PCRE2_SPTR)(g ? run : patterns[p->n]), PCRE2_ZERO_TERMINATED,
                                      PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C, &code, &at, cctx);
        if (!c) {
            char text[128];
            pcre2_get_error_message(code, (PCRE2_UCHAR *)text, sizeof text);
            st = tn_fail(err, code == PCRE2_ERROR_HEAP_FAILED ? TERN_E_MEMORY : TERN_E_UNSUPPORTED,
                         "pre-tokenisation pattern %zu, offset %zu: %s", p->n, (size_t)at, text);
            goto out;
        }
        p->code[p->n] = c;
        /* Without JIT (hardened host, unusual CPU) it is only slower. */
        p->jit[p->n] = pcre2_jit_compile(c, PCRE2_JIT_COMPLETE | PCRE2_JIT_PARTIAL_HARD) == 0;
    }
out:
    pcre2_compile_context_free(cctx);
    if (st != TERN_OK) tn_pretok_close(&p);
    *out = p;
    return st;
}

/* One run: the patterns' match data, and where the pieces go.
 *
 * The cost of a text is bounded by its length, whatever the patterns. PCRE2's match limit counts decisions,
 * not the characters that a loop or a look-ahead passes, and only within one call. So a call sees a window of
 * the text; if it touches the window's end (a partial match), it is repeated with a window four times as
 * long. Windows are charged to the text's budget, and so are decisions beyond those of ordinary words. */
typedef struct run {
    const tn_pretok *p;
    pcre2_match_context *mctx;
    pcre2_match_data *md[TN_PRETOK_MAX];
    tern_error *err;
    size_t window;  /* the first one's length */
    size_t n_bytes; /* of the whole text */
    size_t budget;
} run;

enum { WINDOW = 512, DECISIONS = 20000, DECISIONS_MAX = 1 << 24, BUDGET = 4 << 20, BUDGET_PER_BYTE = 16 };

static tern_status gave_up(const run *r, size_t stage, size_t from, size_t n) {
    return tn_fail(r->err, TERN_E_LIMIT,
                   "pre-tokenisation pattern %zu gave up at byte %zu of a stretch of %zu: "
                   "it takes more than %d steps and %d for each of the text's %zu bytes",
                   stage, from, n, BUDGET, BUDGET_PER_BYTE, r->n_bytes);
}

static tern_status charge(run *r, size_t steps, size_t stage, size_t from, size_t n) {
    if (steps > r->budget) return gave_up(r, stage, from, n);
    r->budget -= steps;
    return TERN_OK;
}

/* One call on text[0..end) from `from`; with `here` only a match that starts there. Allows more decisions
 * until the budget is spent. *rc: PCRE2's result. */
static tern_status call(run *r, size_t stage, const char *text, size_t n, size_t end, size_t from, bool here,
                        int *rc) {
    const pcre2_code *code = r->p->code[stage];
    pcre2_match_data *md = r->md[stage];
    uint32_t options = end < n ? PCRE2_PARTIAL_HARD : 0;
    for (uint32_t limit = DECISIONS;; limit *= 8) {
        pcre2_set_match_limit(r->mctx, limit);
        if (r->p->jit[stage] && !here) { /* JIT code ignores the anchored option */
            *rc = pcre2_jit_match(code, (PCRE2_SPTR)text, end, from, options, md, r->mctx);
            if (*rc != PCRE2_ERROR_JIT_STACKLIMIT && *rc != PCRE2_ERROR_MATCHLIMIT) return TERN_OK;
        }
        if (!r->p->jit[stage] || here || *rc == PCRE2_ERROR_JIT_STACKLIMIT)
            *rc = pcre2_match(code, (PCRE2_SPTR)text, end, from,
                              options | PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT | (here ? PCRE2_ANCHORED : 0), md,
                              r->mctx);
        if (*rc != PCRE2_ERROR_MATCHLIMIT) return TERN_OK;
        if (limit > DECISIONS_MAX) return gave_up(r, stage, from, n);
        TN_TRY(charge(r, limit, stage, from, n));
    }
}

/* The end of a window of that length, never inside a character. */
static size_t window_end(const char *text, size_t n, size_t from, size_t length) {
    if (length >= n - from) return n;
    size_t end = from + length;
    while (end < n && ((uint8_t)text[end] & 0xc0) == 0x80) end++;
    return end;
}

/* The next match at or after `from`, *a = SIZE_MAX: there is none. */
static tern_status next_match(void *self, size_t stage, const char *text, size_t n, size_t from, size_t *a,
                              size_t *b) {
    run *r = self;
    const PCRE2_SIZE *ov = pcre2_get_ovector_pointer(r->md[stage]);
    *a = *b = SIZE_MAX;
    bool here = false;
    for (size_t length = r->window; from < n;) {
        size_t end = window_end(text, n, from, length);
        int rc;
        TN_TRY(call(r, stage, text, n, end, from, here, &rc));
        if (rc == PCRE2_ERROR_PARTIAL || (rc >= 0 && end < n && ov[1] == end)) {
            /* no match starts before ov[0]; one that starts there needs a longer window */
            if (rc == PCRE2_ERROR_PARTIAL && !here && ov[0] == end) {
                from = end;
                length = r->window;
                continue;
            }
            if (ov[0] > from && ov[0] < end) from = ov[0];
            here = true;
            length *= 4;
            TN_TRY(charge(r, length < n - from ? length : n - from, stage, from, n));
        } else if (rc == PCRE2_ERROR_NOMATCH) {
            from = here ? window_end(text, n, from, 1) : end;
            here = false;
            length = r->window;
        } else {
            TN_FAIL_IF(rc < 0, r->err, rc == PCRE2_ERROR_NOMEMORY ? TERN_E_MEMORY : TERN_E_LIMIT,
                       "pre-tokenisation pattern %zu gave up at byte %zu of %zu (PCRE2 error %d)", stage,
                       from, n, rc);
            *a = ov[0];
            *b = ov[1];
            return TERN_OK;
        }
    }
    return TERN_OK;
}

tern_status tn_pretok_run(const tn_pretok *p, const char *text, size_t n, tn_piece_fn fn, void *user,
                          tern_error *err) {
    return tn_pretok_run_windows(p, text, n, WINDOW, fn, user, err);
}

tern_status tn_pretok_run_windows(const tn_pretok *p, const char *text, size_t n, size_t window,
                                  tn_piece_fn fn, void *user, tern_error *err) {
    if (n == 0) return TERN_OK;
    if (p->n == 0) return fn(user, text, n);
    tern_status st = TERN_OK;
    run r = {.p = p, .err = err, .window = window, .n_bytes = n};
    r.budget =
        BUDGET + (n < SIZE_MAX / BUDGET_PER_BYTE / 2 ? n : SIZE_MAX / BUDGET_PER_BYTE / 2) * BUDGET_PER_BYTE;
    r.mctx = pcre2_match_context_create(p->gctx);
    TN_BAIL_IF(!r.mctx, err, TERN_E_MEMORY, "out of memory for pre-tokenisation");
    pcre2_set_heap_limit(r.mctx, 64 * 1024);
    for (size_t i = 0; i < p->n; i++) {
        r.md[i] = pcre2_match_data_create(1, p->gctx);
        TN_BAIL_IF(!r.md[i], err, TERN_E_MEMORY, "out of memory for pre-tokenisation");
    }
    const tn_pretok_cut c = {.n_stages = p->n,
                             .grouped = p->grouped,
                             .next = next_match,
                             .self = &r,
                             .fn = fn,
                             .user = user,
                             .err = err};
    st = tn_pretok_cut_all(&c, text, n); /* PCRE2 need not check UTF-8 at each match */
out:
    for (size_t i = 0; i < p->n; i++) pcre2_match_data_free(r.md[i]);
    pcre2_match_context_free(r.mctx);
    return st;
}
