/* text/pattern_lean.c - patterns in a minimal build: lean/regex.h. */
#include "text/pattern.h"

#include "base/status.h"
#include "lean/regex.h"

struct tn_pattern {
    tn_ctx *ctx;
    tn_regex *regex;
};

struct tn_search {
    const tn_pattern *p;
    tn_regex_stack stack;
};

void tn_pattern_close(tn_pattern **pp) {
    tn_pattern *p = *pp;
    if (!p) return;
    *pp = NULL;
    tn_regex_close(&p->regex);
    tn_free(p->ctx, p);
}

tern_status tn_pattern_open(tn_ctx *ctx, const char *text, size_t number, tn_pattern **out, tern_error *err) {
    (void)number;
    *out = NULL;
    tn_pattern *p = tn_calloc(ctx, TN_MEM_TEXT, 1, sizeof *p);
    TN_FAIL_IF(!p, err, TERN_E_MEMORY, "out of memory for the pre-tokeniser");
    p->ctx = ctx;
    tern_status st = tn_regex_open(ctx, text, &p->regex, err);
    if (st != TERN_OK) tn_pattern_close(&p);
    *out = p;
    return st;
}

void tn_search_close(tn_search **ps) {
    tn_search *s = *ps;
    if (!s) return;
    *ps = NULL;
    tn_regex_stack_close(&s->stack);
    tn_free(s->p->ctx, s);
}

tern_status tn_search_open(const tn_pattern *p, size_t n_max, tn_search **out, tern_error *err) {
    (void)n_max;
    *out = tn_calloc(p->ctx, TN_MEM_TEXT, 1, sizeof **out);
    TN_FAIL_IF(!*out, err, TERN_E_MEMORY, "out of memory for pre-tokenisation");
    (*out)->p = p;
    return TERN_OK;
}

tern_status tn_search_next(tn_search *s, const char *text, size_t n, size_t from, size_t *begin, size_t *end,
                           bool *found, tern_error *err) {
    return tn_regex_find(s->p->regex, &s->stack, text, n, from, begin, end, found, err);
}
