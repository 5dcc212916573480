/* lean/regex.c - a pattern to a program. */
#include "lean/regex_impl.h"

#include "base/status.h"
#include "base/utf8.h"

#include <string.h>

typedef struct parser {
    tn_regex *r;
    const char *pattern;
    const uint8_t *p, *end;
    bool fold;
    int depth;
    tern_error *err;
    tern_status st;
} parser;

static bool refuse(parser *c, const char *what) {
    if (c->st == TERN_OK)
        c->st = tn_fail(c->err, TERN_E_UNSUPPORTED,
                        "pre-tokenisation pattern, offset %zu: this build does not know %s",
                        (size_t)(c->p - (const uint8_t *)c->pattern), what);
    return false;
}

static bool too_large(parser *c) {
    if (c->st == TERN_OK) c->st = tn_fail(c->err, TERN_E_LIMIT, "a pre-tokenisation pattern is too large");
    return false;
}

static tn_re_op *emit(parser *c, tn_re_op_kind kind) {
    tn_regex *r = c->r;
    if (r->n_ops == TN_RE_MAX_OPS) {
        too_large(c);
        return NULL;
    }
    tn_re_op *op = &r->ops[r->n_ops++];
    *op = (tn_re_op){.kind = kind, .min = 1, .max = 1};
    return op;
}

/* ---- sets ---- */

static bool add_range(parser *c, tn_re_range range) {
    tn_regex *r = c->r;
    if (r->n_ranges == TN_RE_MAX_RANGES) return too_large(c);
    r->ranges[r->n_ranges++] = range;
    r->sets[r->n_sets - 1].n++;
    return true;
}

static bool begin_set(parser *c, bool negate) {
    tn_regex *r = c->r;
    if (r->n_sets == TN_RE_MAX_SETS) return too_large(c);
    r->sets[r->n_sets++] = (tn_re_set){.first = r->n_ranges, .negate = negate, .fold = c->fold};
    return true;
}

/* The last set is whole: its table of the first 128, and an op that takes one of it. */
static bool end_set(parser *c) {
    tn_regex *r = c->r;
    tn_re_set *s = &r->sets[r->n_sets - 1];
    for (uint32_t cp = 0; cp < 128; cp++)
        if (tn_re_in_set(r, s, cp)) s->ascii[cp / 64] |= 1ull << (cp % 64);
    tn_re_op *op = emit(c, TN_RE_SET);
    if (op) op->a = r->n_sets - 1;
    return op != NULL;
}

/* Categories by their names; the letter alone is all of its kind. */
static bool categories_of(const char *name, size_t n, uint32_t *out) {
    static const char names[] = "CnLuLlLtLmLoMnMcMeNdNlNoPcPdPsPePiPfPoSmScSkSoZsZlZpCcCfCsCo";
    *out = 0;
    for (int i = 0; i < 30; i++)
        if (names[2 * i] == name[0] && (n == 1 || (n == 2 && names[2 * i + 1] == name[1]))) *out |= 1u << i;
    return *out != 0;
}

/* Behind \p or \P. */
static bool property(parser *c, bool negate) {
    tn_re_range range = {.negate = negate};
    const char *name = (const char *)c->p;
    size_t n = 1;
    if (c->p < c->end && *c->p == '{') {
        const uint8_t *close = memchr(c->p, '}', (size_t)(c->end - c->p));
        if (!close) return refuse(c, "a property without its end");
        if (*++name == '^') {
            name++;
            range.negate = !negate;
        }
        n = (size_t)((const char *)close - name);
        c->p = close;
    }
    if (c->p >= c->end) return refuse(c, "a property without its name");
    c->p++;
    if (n == 3 && !memcmp(name, "Han", 3)) range.classes = TN_RE_HAN;
    else if (!n || !categories_of(name, n, &range.categories)) return refuse(c, "this property");
    bool cased = (range.categories & 0xe) && (range.categories & 0xe) != 0xe; /* Lu, Ll, Lt: one, not all */
    if (c->fold && cased) return refuse(c, "letters of one case without regard to case");
    return add_range(c, range);
}

static bool hex_digit(uint8_t d, uint32_t *v) {
    uint8_t low = d | 0x20;
    bool digit = d >= '0' && d <= '9', letter = low >= 'a' && low <= 'f';
    if (digit || letter) *v = *v * 16 + (uint32_t)(digit ? d - '0' : low - 'a' + 10);
    return digit || letter;
}

/* Behind \x. */
static bool hex(parser *c, uint32_t *cp) {
    bool braces = c->p < c->end && *c->p == '{';
    c->p += braces;
    int n = 0;
    for (*cp = 0; c->p < c->end && n < (braces ? 6 : 2) && hex_digit(*c->p, cp); c->p++) n++;
    bool ok = n && *cp <= 0x10ffff && (*cp < 0xd800 || *cp > 0xdfff);
    if (braces) ok = ok && c->p < c->end && *c->p++ == '}';
    return ok || refuse(c, "this character by number");
}

/* One escape, its backslash behind us: a character (*one, *cp), or a class, which is added to the last
 * set. */
static bool escape(parser *c, bool *one, uint32_t *cp) {
    static const char letters[] = "rntfae", plain[] = "\r\n\t\f\a\033";
    if (c->p >= c->end) return refuse(c, "a backslash at the end");
    uint8_t e = *c->p++;
    const char *at = strchr(letters, e);
    *one = true;
    if (e && at) *cp = (uint8_t)plain[at - letters];
    else if (e == 'x') return hex(c, cp);
    else if (e < 128 && !((e | 0x20) >= 'a' && (e | 0x20) <= 'z') && !(e >= '0' && e <= '9')) *cp = e;
    else {
        *one = false;
        if ((e | 0x20) == 'p') return property(c, e == 'P');
        if ((e | 0x20) == 's') return add_range(c, (tn_re_range){.classes = TN_RE_SPACE, .negate = e == 'S'});
        if ((e | 0x20) == 'w') return add_range(c, (tn_re_range){.classes = TN_RE_WORD, .negate = e == 'W'});
        if ((e | 0x20) == 'd') return add_range(c, (tn_re_range){.categories = 1u << 9, .negate = e == 'D'});
        return refuse(c, "this escape");
    }
    return true;
}

static bool literal(parser *c, uint32_t *cp) {
    size_t len = tn_utf8_decode(c->p, c->end, cp);
    if (!len) return refuse(c, "bytes that are no UTF-8");
    c->p += len;
    return true;
}

/* One member of [...]: a character or a class. */
static bool member(parser *c, bool *one, uint32_t *cp) {
    if (*c->p == '\\') {
        c->p++;
        if (c->p < c->end && *c->p == 'b') return refuse(c, "\\b in a set");
        return escape(c, one, cp);
    }
    if (c->end - c->p > 1 && *c->p == '[' && (c->p[1] == ':' || c->p[1] == '.' || c->p[1] == '='))
        return refuse(c, "this class in a set");
    *one = true;
    return literal(c, cp);
}

/* Behind '['. */
static bool set(parser *c) {
    bool negate = c->p < c->end && *c->p == '^';
    c->p += negate;
    if (!begin_set(c, negate)) return false;
    for (bool first = true; c->p < c->end && (first || *c->p != ']'); first = false) {
        bool one;
        uint32_t cp = 0, last;
        if (!member(c, &one, &cp)) return false;
        if (!one) {
            if (c->end - c->p > 1 && *c->p == '-' && c->p[1] != ']') return refuse(c, "a range from a class");
            continue;
        }
        last = cp;
        if (c->end - c->p > 1 && *c->p == '-' && c->p[1] != ']') {
            c->p++;
            if (!member(c, &one, &last)) return false;
            if (!one || last < cp) return refuse(c, "this range");
        }
        if (c->fold && last >= 128) return refuse(c, "a set like this without regard to case");
        if (!add_range(c, (tn_re_range){.first = cp, .last = last})) return false;
    }
    if (c->p >= c->end) return refuse(c, "a set without its end");
    c->p++;
    return end_set(c);
}

static bool one_char(parser *c, uint32_t cp) {
    if (c->fold && cp >= 128) return refuse(c, "this character without regard to case");
    return begin_set(c, false) && add_range(c, (tn_re_range){.first = cp, .last = cp}) && end_set(c);
}

/* ---- atoms, quantifiers, alternatives ---- */

static bool alternatives(parser *c, bool *empty);

static bool look_ahead(parser *c, bool negate) {
    tn_re_op *op = emit(c, TN_RE_LOOK);
    if (!op) return false;
    op->negate = negate;
    uint32_t at = (uint32_t)(op - c->r->ops);
    bool empty;
    if (!alternatives(c, &empty) || !emit(c, TN_RE_MATCH)) return false;
    c->r->ops[at].a = c->r->n_ops;
    return true;
}

/* Behind '('. *empty: it may match nothing; *look: it takes no quantifier. */
static bool group(parser *c, bool *empty, bool *look) {
    bool fold = c->fold, ok;
    *look = false;
    *empty = true;
    if (++c->depth > TN_RE_MAX_DEPTH) return too_large(c);
    size_t left = (size_t)(c->end - c->p);
    if (!left || *c->p != '?') ok = alternatives(c, empty);
    else if (left > 1 && c->p[1] == ':') c->p += 2, ok = alternatives(c, empty);
    else if (left > 2 && !memcmp(c->p, "?i:", 3)) c->p += 3, c->fold = true, ok = alternatives(c, empty);
    else if (left > 1 && (c->p[1] == '=' || c->p[1] == '!'))
        *look = true, c->p += 2, ok = look_ahead(c, c->p[-1] == '!');
    else return refuse(c, "this kind of group");
    c->fold = fold;
    c->depth--;
    if (!ok) return false;
    if (c->p >= c->end || *c->p != ')') return refuse(c, "a group without its end");
    c->p++;
    return true;
}

/* *empty: it may match nothing; *look: it is a place, not text. */
static bool atom(parser *c, bool *empty, bool *look) {
    uint8_t k = *c->p;
    *empty = *look = false;
    if (k == '(') return c->p++, group(c, empty, look);
    if (k == '[') return c->p++, set(c);
    if (k == '.') {
        c->p++;
        return begin_set(c, true) && add_range(c, (tn_re_range){.first = '\n', .last = '\n'}) && end_set(c);
    }
    uint8_t e = k == '\\' && c->end - c->p > 1 ? c->p[1] : 0;
    if (k == '^' || k == '$' || (e && strchr("bBAz", e))) {
        c->p += e ? 2 : 1;
        *empty = *look = true;
        tn_re_op *op = emit(c, k == '^' || e == 'A' ? TN_RE_START
                               : k == '$'           ? TN_RE_LINE_END
                               : e == 'z'           ? TN_RE_END
                                                    : TN_RE_EDGE);
        if (op) op->negate = e == 'B';
        return op != NULL;
    }
    uint32_t cp;
    if (k != '\\')
        return strchr("*+?", k) ? refuse(c, "a quantifier of nothing") : literal(c, &cp) && one_char(c, cp);
    bool one;
    c->p++;
    uint32_t n_sets = c->r->n_sets;
    if (!begin_set(c, false) || !escape(c, &one, &cp)) return false;
    if (!one) return end_set(c);
    c->r->n_sets = n_sets; /* a character: its own set */
    return one_char(c, cp);
}

/* {n}, {n,}, {n,m} at c->p; false: a brace like any other. */
static bool braces(parser *c, uint32_t *min, uint32_t *max) {
    const uint8_t *p = c->p + 1;
    uint32_t v[2] = {0, TN_RE_ENDLESS};
    int n = 0;
    for (; p < c->end && *p >= '0' && *p <= '9' && v[0] < TN_RE_ENDLESS; p++, n++)
        v[0] = v[0] * 10 + *p - '0';
    if (!n || p >= c->end) return false;
    if (*p == ',') {
        p++;
        uint32_t last = 0;
        for (n = 0; p < c->end && *p >= '0' && *p <= '9' && last < TN_RE_ENDLESS; p++, n++)
            last = last * 10 + *p - '0';
        if (n) v[1] = last;
    } else {
        v[1] = v[0];
    }
    if (p >= c->end || *p != '}') return false;
    c->p = p + 1;
    *min = v[0];
    *max = v[1];
    return true;
}

/* Appends ops[from..to) once more, their jumps moved along. */
static bool repeat_ops(parser *c, uint32_t from, uint32_t to) {
    uint32_t shift = c->r->n_ops - from;
    for (uint32_t i = from; i < to; i++) {
        tn_re_op *op = emit(c, TN_RE_MATCH);
        if (!op) return false;
        *op = c->r->ops[i];
        bool jumps = op->kind == TN_RE_SPLIT || op->kind == TN_RE_JUMP || op->kind == TN_RE_LOOK;
        if (jumps) op->a += shift;
        if (op->kind == TN_RE_SPLIT) op->b += shift;
    }
    return true;
}

/* A SPLIT in front of ops[at..): they move by one. */
static bool insert_split(parser *c, uint32_t at) {
    tn_regex *r = c->r;
    if (!emit(c, TN_RE_SPLIT)) return false;
    for (uint32_t i = r->n_ops - 1; i > at; i--) {
        r->ops[i] = r->ops[i - 1];
        tn_re_op *op = &r->ops[i];
        bool jumps = op->kind == TN_RE_SPLIT || op->kind == TN_RE_JUMP || op->kind == TN_RE_LOOK;
        if (jumps) op->a++;
        if (op->kind == TN_RE_SPLIT) op->b++;
    }
    r->ops[at] = (tn_re_op){.kind = TN_RE_SPLIT, .a = at + 1};
    return true;
}

/* The group ops[from..) min to max times: copies, those beyond min behind a SPLIT each, or a loop at the
 * end. */
static bool repeat_group(parser *c, uint32_t from, uint32_t min, uint32_t max, bool empty) {
    tn_regex *r = c->r;
    uint32_t len = r->n_ops - from, splits[64], n_splits = 0;
    if (max == TN_RE_ENDLESS && empty) return refuse(c, "repetition of what may be empty");
    if (max != TN_RE_ENDLESS && max - min > 64) return too_large(c);
    if (max == 0) {
        r->n_ops = from;
        return true;
    }
    uint32_t body = from; /* a copy that nothing was put in front of */
    for (uint32_t i = 1; i < min; i++)
        if (!repeat_ops(c, body, body + len)) return false;
    if (max == TN_RE_ENDLESS) {
        if (min && !repeat_ops(c, body, body + len)) return false;
        uint32_t at = r->n_ops - len;
        if (!insert_split(c, at)) return false;
        tn_re_op *back = emit(c, TN_RE_JUMP);
        if (!back) return false;
        back->a = at;
        r->ops[at].b = r->n_ops;
        return true;
    }
    for (uint32_t i = min; i < max; i++) {
        /* the first copy is there where min is 0; its SPLIT moves it */
        if (i && !repeat_ops(c, body, body + len)) return false;
        uint32_t at = r->n_ops - len;
        if (!insert_split(c, at)) return false;
        if (at == body) body++;
        splits[n_splits++] = at;
    }
    for (uint32_t i = 0; i < n_splits; i++) r->ops[splits[i]].b = r->n_ops;
    return true;
}

static bool quantified(parser *c, bool *empty) {
    uint32_t from = c->r->n_ops, min = 1, max = 1;
    bool look;
    if (!atom(c, empty, &look)) return false;
    if (c->p >= c->end) return true;
    if (*c->p == '*') c->p++, min = 0, max = TN_RE_ENDLESS;
    else if (*c->p == '+') c->p++, max = TN_RE_ENDLESS;
    else if (*c->p == '?') c->p++, min = 0;
    else if (*c->p != '{' || !braces(c, &min, &max)) return true;
    bool possessive = c->p < c->end && *c->p == '+';
    c->p += possessive;
    if (c->p < c->end && (*c->p == '?' || *c->p == '*' || *c->p == '+')) return refuse(c, "this quantifier");
    if (look) return refuse(c, "a quantifier of a place");
    if (min > max || min >= TN_RE_ENDLESS) return refuse(c, "this number of times");
    tn_re_op *op = &c->r->ops[from];
    bool single = c->r->n_ops == from + 1 && op->kind == TN_RE_SET && op->min == 1 && op->max == 1;
    if (single) {
        op->min = min;
        op->max = max;
        op->possessive = possessive;
    } else {
        if (possessive) return refuse(c, "a possessive group");
        if (!repeat_group(c, from, min, max, *empty)) return false;
    }
    *empty = *empty || !min;
    return true;
}

/* Up to ')' or the end. *empty: one of them may match nothing. */
static bool alternatives(parser *c, bool *empty) {
    tn_regex *r = c->r;
    uint32_t jumps[256], n_jumps = 0;
    *empty = false;
    for (;;) {
        uint32_t from = r->n_ops;
        bool nothing = true;
        while (c->p < c->end && *c->p != '|' && *c->p != ')') {
            bool e;
            if (!quantified(c, &e)) return false;
            nothing = nothing && e;
        }
        *empty = *empty || nothing;
        if (c->p >= c->end || *c->p != '|') break;
        c->p++;
        if (n_jumps == 256) return too_large(c);
        if (!insert_split(c, from)) return false;
        jumps[n_jumps++] = r->n_ops;
        if (!emit(c, TN_RE_JUMP)) return false;
        r->ops[from].b = r->n_ops;
    }
    for (uint32_t i = 0; i < n_jumps; i++) r->ops[jumps[i]].a = r->n_ops;
    return true;
}

void tn_regex_close(tn_regex **pr) {
    tn_regex *r = *pr;
    if (!r) return;
    *pr = NULL;
    tn_free(r->ctx, r->ops);
    tn_free(r->ctx, r->sets);
    tn_free(r->ctx, r->ranges);
    tn_free(r->ctx, r);
}

/* Gives back what the pattern does not need. */
static void *shrink(tn_ctx *ctx, void *p, size_t n, size_t item_bytes) {
    void *less = tn_realloc(ctx, TN_MEM_TEXT, p, n ? n : 1, item_bytes);
    return less ? less : p;
}

tern_status tn_regex_open(tn_ctx *ctx, const char *pattern, tn_regex **out, tern_error *err) {
    *out = NULL;
    tn_regex *r = tn_calloc(ctx, TN_MEM_TEXT, 1, sizeof *r);
    TN_FAIL_IF(!r, err, TERN_E_MEMORY, "out of memory for the pre-tokeniser");
    r->ctx = ctx;
    r->ops = tn_alloc(ctx, TN_MEM_TEXT, TN_RE_MAX_OPS, sizeof *r->ops);
    r->sets = tn_alloc(ctx, TN_MEM_TEXT, TN_RE_MAX_SETS, sizeof *r->sets);
    r->ranges = tn_alloc(ctx, TN_MEM_TEXT, TN_RE_MAX_RANGES, sizeof *r->ranges);
    parser c = {.r = r, .pattern = pattern, .p = (const uint8_t *)pattern, .err = err};
    c.end = c.p + strlen(pattern);
    if (!r->ops || !r->sets || !r->ranges) {
        c.st = tn_fail(err, TERN_E_MEMORY, "out of memory for the pre-tokeniser");
    } else {
        bool empty;
        if (alternatives(&c, &empty) && c.p < c.end) refuse(&c, "a closing bracket here");
        if (c.st == TERN_OK) emit(&c, TN_RE_MATCH);
    }
    if (c.st != TERN_OK) {
        tn_regex_close(&r);
        return c.st;
    }
    r->ops = shrink(ctx, r->ops, r->n_ops, sizeof *r->ops);
    r->sets = shrink(ctx, r->sets, r->n_sets, sizeof *r->sets);
    r->ranges = shrink(ctx, r->ranges, r->n_ranges, sizeof *r->ranges);
    *out = r;
    return TERN_OK;
}
