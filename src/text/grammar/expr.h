/* text/grammar/expr.h - a grammar as its readers build it: rules made of expressions over code points.
 *
 *   GBNF text (gbnf.c)  --\
 *                           tn_gb: rules of expressions  -->  tn_gprog: nodes over bytes (compile.c)
 *   JSON Schema (schema*) --/
 *
 * A builder remembers its first failure (no memory, too large). Later calls do nothing, and tn_gb_status
 * returns it, so readers check once, at the end. Expressions are numbers and may be shared. */
#ifndef TN_TEXT_GRAMMAR_EXPR_H
#define TN_TEXT_GRAMMAR_EXPR_H

#include "base/ctx.h"

typedef uint32_t tn_gx;
typedef uint32_t tn_grule;

enum {
    TN_GX_NEVER = 0,
    TN_GX_EMPTY = 1
}; /* the expressions that match nothing at all, and only the empty text */
#define TN_GX_INF UINT32_MAX
enum { TN_GX_MAX = 1 << 20, TN_GX_REPEAT_MAX = 1 << 24 };

typedef struct tn_grange {
    uint32_t lo, hi; /* code points, both included */
} tn_grange;

typedef enum tn_gx_kind {
    TN_GXK_NEVER,
    TN_GXK_EMPTY,
    TN_GXK_SET,  /* one code point: ranges[first..first+n), ascending and apart */
    TN_GXK_TEXT, /* bytes: text[first..first+n) */
    TN_GXK_SEQ,  /* kids[first..first+n) one after another */
    TN_GXK_ALT,  /* one of kids[first..first+n) */
    TN_GXK_REP,  /* first, min to max times (TN_GX_INF: without end) */
    TN_GXK_RULE  /* rule first */
} tn_gx_kind;

typedef struct tn_gx_node {
    tn_gx_kind kind;
    uint32_t first, n, min, max;
} tn_gx_node;

typedef struct tn_grule_def {
    uint32_t name, n_name; /* in text */
    tn_gx body;
    bool defined;
} tn_grule_def;

enum { TN_GB_LATER = 240 };

typedef struct tn_gb {
    tn_ctx *ctx;
    char later[TN_GB_LATER]; /* keywords of a schema that the rules do not hold, with commas */
    tern_status st;          /* of the first failure */
    tn_gx_node *x;
    size_t n_x, cap_x;
    tn_grange *ranges;
    size_t n_ranges, cap_ranges;
    tn_gx *kids;
    size_t n_kids, cap_kids;
    char *text;
    size_t n_text, cap_text;
    tn_grule_def *rules;
    size_t n_rules, cap_rules;
    uint32_t *by_name; /* open addressing over rules, rule + 1, 0 = empty */
    size_t cap_by_name;
} tn_gb;

void tn_gb_open(tn_gb *b, tn_ctx *ctx);
void tn_gb_close(tn_gb *b);
tern_status tn_gb_status(const tn_gb *b, tern_error *err);

tn_gx tn_gx_set(tn_gb *b, const tn_grange *r, size_t n); /* any order; may overlap */
tn_gx tn_gx_not(tn_gb *b, const tn_grange *r, size_t n); /* any other code point */
tn_gx tn_gx_text(tn_gb *b, const char *text, size_t n_bytes);
tn_gx tn_gx_str(tn_gb *b, const char *text); /* the same, zero-terminated */
tn_gx tn_gx_seq(tn_gb *b, const tn_gx *x, size_t n);
tn_gx tn_gx_alt(tn_gb *b, const tn_gx *x, size_t n);
tn_gx tn_gx_rep(tn_gb *b, tn_gx x, uint32_t min, uint32_t max);
tn_gx tn_gx_rule(tn_gb *b, tn_grule r);
#define TN_GX_SEQ(b, ...)                                                                                    \
    tn_gx_seq(b, (const tn_gx[]){__VA_ARGS__}, sizeof(const tn_gx[]){__VA_ARGS__} / sizeof(tn_gx))
#define TN_GX_ALT(b, ...)                                                                                    \
    tn_gx_alt(b, (const tn_gx[]){__VA_ARGS__}, sizeof(const tn_gx[]){__VA_ARGS__} / sizeof(tn_gx))

/* Makes a rule to be defined later. The name may be empty. */
tn_grule tn_gb_rule(tn_gb *b, const char *name, size_t n_name);
void tn_gb_define(tn_gb *b, tn_grule r, tn_gx body);
/* Returns the rule of this name; makes it if there is none. */
tn_grule tn_gb_named(tn_gb *b, const char *name, size_t n_name);
bool tn_gb_has(const tn_gb *b, const char *name, size_t n_name, tn_grule *r);

/* Sorts the ranges and joins those that touch. Returns how many are left. */
size_t tn_granges_normal(tn_grange *r, size_t n);
/* The complement of r (normal) in U+0000..U+10FFFF without surrogates: at most n + 2 ranges. */
size_t tn_granges_complement(const tn_grange *r, size_t n, tn_grange *out);

/* Makes room for `need` elements. Returns false when there is no memory. */
bool tn_gvec_room(tn_ctx *ctx, void **p, size_t *cap, size_t need, size_t size);
#define TN_GVEC_ROOM(ctx, v, cap, need) tn_gvec_room(ctx, (void **)&(v), &(cap), need, sizeof *(v))

#endif
