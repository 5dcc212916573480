/* text/pattern_pcre2.c - patterns through PCRE2, compiled to machine code where it can. */
#define PCRE2_CODE_UNIT_WIDTH 8
#include "text/pattern.h"

#include "base/status.h"

#include <pcre2.h>

struct tn_pattern {
    tn_ctx *ctx;
    size_t number;
    pcre2_general_context *gctx;
    pcre2_code *code;
    bool jit;
};

struct tn_search {
    const tn_pattern *p;
    pcre2_match_context *mctx;
    pcre2_match_data *md;
};

static void *pcre_alloc(PCRE2_SIZE n, void *ctx) { return tn_alloc(ctx, TN_MEM_TEXT, n, 1); }
static void pcre_release(void *p, void *ctx) { tn_free(ctx, p); }

void tn_pattern_close(tn_pattern **pp) {
    tn_pattern *p = *pp;
    if (!p) return;
    *pp = NULL;
    pcre2_code_free(p->code);
    pcre2_general_context_free(p->gctx);
    tn_free(p->ctx, p);
}

static tern_status compile(tn_pattern *p, const char *text, pcre2_compile_context *cctx, tern_error *err) {
    int code;
    PCRE2_SIZE at;
    pcre2_set_max_pattern_length(cctx, 1 << 16);
    p->code = pcre2_compile((PCRE2_SPTR)text, PCRE2_ZERO_TERMINATED,
                            PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C, &code, &at, cctx);
    if (!p->code) {
        char message[128];
        pcre2_get_error_message(code, (PCRE2_UCHAR *)message, sizeof message);
        return tn_fail(err, code == PCRE2_ERROR_HEAP_FAILED ? TERN_E_MEMORY : TERN_E_UNSUPPORTED,
                       "pre-tokenisation pattern %zu, offset %zu: %s", p->number, (size_t)at, message);
    }
    /* No JIT (hardened host, unusual CPU) only costs speed. */
    p->jit = pcre2_jit_compile(p->code, PCRE2_JIT_COMPLETE) == 0;
    return TERN_OK;
}

tern_status tn_pattern_open(tn_ctx *ctx, const char *text, size_t number, tn_pattern **out, tern_error *err) {
    *out = NULL;
    tn_pattern *p = tn_calloc(ctx, TN_MEM_TEXT, 1, sizeof *p);
    TN_FAIL_IF(!p, err, TERN_E_MEMORY, "out of memory for the pre-tokeniser");
    p->ctx = ctx;
    p->number = number;
    p->gctx = pcre2_general_context_create(pcre_alloc, pcre_release, ctx);
    pcre2_compile_context *cctx = p->gctx ? pcre2_compile_context_create(p->gctx) : NULL;
    tern_status st = cctx ? compile(p, text, cctx, err)
                          : tn_fail(err, TERN_E_MEMORY, "out of memory for the pre-tokeniser");
    pcre2_compile_context_free(cctx);
    if (st != TERN_OK) tn_pattern_close(&p);
    *out = p;
    return st;
}

void tn_search_close(tn_search **ps) {
    tn_search *s = *ps;
    if (!s) return;
    *ps = NULL;
    pcre2_match_data_free(s->md);
    pcre2_match_context_free(s->mctx);
    tn_free(s->p->ctx, s);
}

tern_status tn_search_open(const tn_pattern *p, size_t n_max, tn_search **out, tern_error *err) {
    *out = NULL;
    tn_search *s = tn_calloc(p->ctx, TN_MEM_TEXT, 1, sizeof *s);
    TN_FAIL_IF(!s, err, TERN_E_MEMORY, "out of memory for pre-tokenisation");
    s->p = p;
    s->mctx = pcre2_match_context_create(p->gctx);
    s->md = s->mctx ? pcre2_match_data_create(1, p->gctx) : NULL;
    if (!s->md) {
        tn_search_close(&s);
        return tn_fail(err, TERN_E_MEMORY, "out of memory for pre-tokenisation");
    }
    /* A sane pattern looks at each character a few times; a long run of one class may count as one match. */
    size_t limit = n_max < (1u << 28) ? 1000000 + 4 * n_max : UINT32_MAX;
    pcre2_set_match_limit(s->mctx, (uint32_t)limit);
    pcre2_set_heap_limit(s->mctx, 64 * 1024);
    *out = s;
    return TERN_OK;
}

tern_status tn_search_next(tn_search *s, const char *text, size_t n, size_t from, size_t *begin, size_t *end,
                           bool *found, tern_error *err) {
    const tn_pattern *p = s->p;
    PCRE2_SPTR t = (PCRE2_SPTR)text;
    int rc;
    if (p->jit) {
        rc = pcre2_jit_match(p->code, t, n, from, 0, s->md, s->mctx);
        if (rc == PCRE2_ERROR_JIT_STACKLIMIT)
            rc = pcre2_match(p->code, t, n, from, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, s->md, s->mctx);
    } else {
        rc = pcre2_match(p->code, t, n, from, PCRE2_NO_UTF_CHECK, s->md, s->mctx);
    }
    *found = rc >= 0;
    if (rc == PCRE2_ERROR_NOMATCH) return TERN_OK;
    TN_FAIL_IF(rc < 0, err, rc == PCRE2_ERROR_NOMEMORY ? TERN_E_MEMORY : TERN_E_LIMIT,
               "pre-tokenisation pattern %zu gave up at byte %zu of %zu (PCRE2 error %d)", p->number, from, n,
               rc);
    const PCRE2_SIZE *ov = pcre2_get_ovector_pointer(s->md);
    *begin = ov[0];
    *end = ov[1];
    return TERN_OK;
}
