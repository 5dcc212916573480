/* lean/regex_impl.h - a compiled pattern: shared by regex.c, which makes it, and regex_match.c. */
#ifndef TN_LEAN_REGEX_IMPL_H
#define TN_LEAN_REGEX_IMPL_H

#include "lean/regex.h"

#include <stdbool.h>

enum {
    TN_RE_MAX_OPS = 4096,
    TN_RE_MAX_SETS = 256,
    TN_RE_MAX_RANGES = 4096,
    TN_RE_MAX_DEPTH = 32, /* groups in groups; bounds the recursion of look-ahead */
    TN_RE_ENDLESS = 1 << 16
};

typedef enum tn_re_op_kind {
    TN_RE_SET,   /* min to max characters of set a; possessive: what was taken is not given back */
    TN_RE_SPLIT, /* go on at a; if that fails, at b */
    TN_RE_JUMP,  /* to a */
    TN_RE_LOOK, /* what starts behind this op, up to its MATCH, must fit here (negate: must not); go on at a */
    TN_RE_START,
    TN_RE_END,      /* of the text */
    TN_RE_LINE_END, /* of the text, or a newline that ends it */
    TN_RE_EDGE,     /* of a word; negate: no edge */
    TN_RE_MATCH
} tn_re_op_kind;

typedef struct tn_re_op {
    tn_re_op_kind kind;
    bool negate, possessive;
    uint32_t a, b, min, max;
} tn_re_op;

enum { TN_RE_SPACE = 1, TN_RE_HAN = 2, TN_RE_WORD = 4 };

/* Part of a set: a range, or characters by property. */
typedef struct tn_re_range {
    uint32_t first, last;
    uint32_t categories; /* bit per general category; a range where this and `classes` are 0 */
    uint8_t classes;     /* TN_RE_SPACE... */
    bool negate;         /* of properties: all but these */
} tn_re_range;

typedef struct tn_re_set {
    uint64_t ascii[2]; /* what the rest says of the first 128 */
    uint32_t first, n; /* ranges */
    bool negate, fold; /* fold: also the other case */
} tn_re_set;

struct tn_regex {
    tn_ctx *ctx;
    tn_re_op *ops;
    tn_re_set *sets;
    tn_re_range *ranges;
    uint32_t n_ops, n_sets, n_ranges;
};

/* Without the table of the first 128. */
bool tn_re_in_set(const tn_regex *r, const tn_re_set *s, uint32_t cp);
bool tn_re_is_word(uint32_t cp);

#endif
