/* Compiles patterns of JSON Schema (regular expressions of ECMA-262, the regular part) as contents of a
 * string. */
#include "text/grammar/schema_impl.h"

#include "base/hex.h"
#include "base/json.h"
#include "text/grammar/machine.h"
#include "text/utf8.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DEPTH_MAX = 100, TERMS_MAX = 64 };

typedef struct regex {
    tn_sc *c;
    const char *p, *end;
    int depth;
    /* the terms of the last alternative at depth 0, while they are few; for lengths */
    struct {
        tn_gx x;
        uint32_t min, max;
        bool single; /* x is one character */
    } terms[TERMS_MAX];
    size_t n_terms, n_alternatives;
    bool from_start, to_end;
} regex;

static tn_gx refuse(regex *r, const char *what) {
    char line[120];
    snprintf(line, sizeof line, "in 'pattern', %s", what);
    return tn_sc_refuse(r->c, line);
}

static bool take(regex *r, char x) {
    if (r->p == r->end || *r->p != x) return false;
    r->p++;
    return true;
}

static bool at(const regex *r, const char *s) {
    size_t n = strlen(s);
    return (size_t)(r->end - r->p) >= n && !memcmp(r->p, s, n);
}

/* A growing set of characters. It is negated when it is closed. */
typedef struct charset {
    tn_grange v[512];
    size_t n;
} charset;

static void add(regex *r, charset *s, uint32_t lo, uint32_t hi) {
    if (s->n == sizeof s->v / sizeof *s->v / 2) s->n = tn_granges_normal(s->v, s->n);
    if (s->n == sizeof s->v / sizeof *s->v / 2) refuse(r, "a class of more than 256 ranges");
    else s->v[s->n++] = (tn_grange){lo, hi};
}

static void negate(charset *s) {
    tn_grange out[514];
    s->n = tn_granges_normal(s->v, s->n);
    size_t n = tn_granges_complement(s->v, s->n, out);
    memcpy(s->v, out, n * sizeof *out);
    s->n = n;
}

/* Reads \d \w \s and their negations. Returns false for another letter. */
static bool class_escape(regex *r, char x, charset *s) {
    charset k = {.n = 0};
    char low = (char)(x | 0x20);
    if (low == 'd' || low == 'w') add(r, &k, '0', '9');
    if (low == 'w') add(r, &k, 'a', 'z'), add(r, &k, 'A', 'Z'), add(r, &k, '_', '_');
    if (low == 's') {
        static const tn_grange white[] = {
            {9, 13},          {' ', ' '},       {0xa0, 0xa0},     {0x1680, 0x1680}, {0x2000, 0x200a},
            {0x2028, 0x2029}, {0x202f, 0x202f}, {0x205f, 0x205f}, {0x3000, 0x3000}, {0xfeff, 0xfeff}};
        for (size_t i = 0; i < sizeof white / sizeof *white; i++) add(r, &k, white[i].lo, white[i].hi);
    }
    if (!k.n || !((x >= 'a' && x <= 'z') || (x >= 'A' && x <= 'Z'))) return false;
    if (x < 'a') negate(&k);
    for (size_t i = 0; i < k.n; i++) add(r, s, k.v[i].lo, k.v[i].hi);
    return true;
}

static uint32_t hex(regex *r, int n, bool braces) {
    uint32_t x = 0;
    int i = 0;
    for (; i < n && r->p < r->end; i++, r->p++) {
        int v = tn_hex_digit(*r->p);
        if (v < 0) break;
        x = x << 4 | (uint32_t)v;
    }
    if (!i || (!braces && i < n) || x > 0x10ffff) refuse(r, "this escape of a number");
    return x;
}

/* Reads the character after a backslash. */
static uint32_t char_escape(regex *r) {
    if (r->p == r->end) return refuse(r, "a backslash at the end");
    char x = *r->p++;
    static const char from[] = "nrtfv", to[] = "\n\r\t\f\v";
    const char *k = strchr(from, x);
    if (x && k) return (uint32_t)to[k - from];
    if (x == '0' && !(r->p < r->end && *r->p >= '0' && *r->p <= '9')) return 0;
    if (x == 'x') return hex(r, 2, false);
    if (x == 'c' && r->p < r->end && ((*r->p >= 'a' && *r->p <= 'z') || (*r->p >= 'A' && *r->p <= 'Z')))
        return (uint32_t)(*r->p++ & 31);
    if (x == 'u') {
        if (!take(r, '{')) {
            uint32_t u = hex(r, 4, false);
            if (u >= 0xd800 && u < 0xdc00 && at(r, "\\u")) {
                r->p += 2;
                return 0x10000 + ((u & 0x3ff) << 10) + (hex(r, 4, false) & 0x3ff);
            }
            return u;
        }
        uint32_t cp = hex(r, 6, true);
        if (!take(r, '}')) refuse(r, "this escape of a number");
        return cp;
    }
    if ((x >= 'a' && x <= 'z') || (x >= 'A' && x <= 'Z') || (x >= '0' && x <= '9')) {
        char what[40];
        snprintf(what, sizeof what, "the escape \\%c", x);
        return refuse(r, what);
    }
    return (uint32_t)(uint8_t)x;
}

static uint32_t plain(regex *r) {
    uint32_t cp = 0;
    size_t n = tn_utf8_decode((const uint8_t *)r->p, (const uint8_t *)r->end, &cp);
    if (!n) return refuse(r, "text that is not valid UTF-8");
    r->p += n;
    return cp;
}

static tn_gx char_class(regex *r) {
    charset s = {.n = 0};
    bool negated = take(r, '^');
    while (r->c->st == TERN_OK && !take(r, ']')) {
        if (r->p == r->end) return refuse(r, "a class that does not end");
        uint32_t lo, hi;
        if (take(r, '\\')) {
            if (r->p < r->end && class_escape(r, *r->p, &s)) {
                r->p++;
                continue;
            }
            lo = take(r, 'b') ? '\b' : char_escape(r);
        } else {
            lo = plain(r);
        }
        hi = lo;
        if (r->end - r->p > 1 && *r->p == '-' && r->p[1] != ']') {
            r->p++;
            if (take(r, '\\')) {
                if (r->p < r->end && strchr("dDwWsS", *r->p))
                    return refuse(r, "a range that ends with a class");
                hi = char_escape(r);
            } else {
                hi = plain(r);
            }
        }
        if (hi < lo) return refuse(r, "a range that runs backwards");
        add(r, &s, lo, hi);
    }
    if (r->c->st != TERN_OK) return TN_GX_NEVER;
    if (negated) negate(&s);
    return tn_sc_char_of(r->c, s.v, s.n);
}

static tn_gx alternatives(regex *r);

static tn_gx group(regex *r) {
    if (at(r, "?:")) r->p += 2;
    else if (at(r, "?<") && !at(r, "?<=") && !at(r, "?<!")) {
        while (r->p < r->end && *r->p != '>') r->p++;
        if (!take(r, '>')) return refuse(r, "a group's name that does not end");
    } else if (at(r, "?")) return refuse(r, "looking ahead or behind, or flags of a group");
    if (++r->depth > DEPTH_MAX) return refuse(r, "groups nested so deeply");
    tn_gx x = alternatives(r);
    if (r->c->st == TERN_OK && !take(r, ')')) return refuse(r, "a group that does not end");
    r->depth--;
    return x;
}

/* Separate from `term`, which recurses for every open group: a charset takes kilobytes of stack. */
__attribute__((noinline)) static tn_gx one_char(regex *r) {
    if (take(r, '[')) return char_class(r);
    charset s = {.n = 0};
    if (take(r, '.')) {
        add(r, &s, '\n', '\n'), add(r, &s, '\r', '\r'), add(r, &s, 0x2028, 0x2029);
        negate(&s);
    } else if (take(r, '\\')) {
        if (r->p < r->end && class_escape(r, *r->p, &s)) {
            r->p++;
        } else {
            uint32_t cp = char_escape(r);
            add(r, &s, cp, cp);
        }
    } else {
        if (r->p < r->end && strchr("*+?{^$", *r->p))
            return refuse(r, *r->p == '^' || *r->p == '$' ? "an anchor inside" : "a repetition of nothing");
        uint32_t cp = plain(r);
        add(r, &s, cp, cp);
    }
    return r->c->st == TERN_OK ? tn_sc_char_of(r->c, s.v, s.n) : TN_GX_NEVER;
}

static tn_gx term(regex *r, bool *single) {
    *single = !take(r, '(');
    return *single ? one_char(r) : group(r);
}

static bool count(regex *r, uint32_t *x) {
    const char *from = r->p;
    for (*x = 0; r->p < r->end && *r->p >= '0' && *r->p <= '9'; r->p++) {
        *x = 10 * *x + (uint32_t)(*r->p - '0');
        if (*x > 100000) refuse(r, "a repetition of more than 100000 times");
        if (r->c->st != TERN_OK) return false;
    }
    return r->p > from;
}

static void quantity(regex *r, uint32_t *min, uint32_t *max) {
    *min = *max = 1;
    if (take(r, '*')) *min = 0, *max = TN_GX_INF;
    else if (take(r, '+')) *max = TN_GX_INF;
    else if (take(r, '?')) *min = 0;
    else if (take(r, '{')) {
        if (!count(r, min)) refuse(r, "a brace that is not a repetition");
        *max = *min;
        if (take(r, ',') && !count(r, max)) *max = TN_GX_INF;
        if (r->c->st == TERN_OK && (!take(r, '}') || *max < *min))
            refuse(r, "a repetition that makes no sense");
    } else return;
    take(r, '?'); /* lazy: the same texts */
}

/* Compiles an alternative. At depth 0 anchors count; without them any text may surround it. */
static tn_gx alternative(regex *r) {
    tn_gb *b = r->c->b;
    bool top = r->depth == 0;
    tn_gx x = TN_GX_EMPTY;
    if (top) r->n_terms = 0, r->from_start = take(r, '^'), r->to_end = false;
    while (r->c->st == TERN_OK && r->p < r->end && *r->p != '|' && *r->p != ')') {
        if (top && *r->p == '$' && (r->p + 1 == r->end || r->p[1] == '|')) {
            r->p++;
            r->to_end = true;
            break;
        }
        uint32_t min, max;
        bool single;
        tn_gx one = term(r, &single);
        quantity(r, &min, &max);
        if (r->c->st != TERN_OK) break;
        x = TN_GX_SEQ(b, x, tn_gx_rep(b, one, min, max));
        if (!top) continue;
        size_t k = r->n_terms++;
        if (k >= TERMS_MAX) continue;
        r->terms[k].x = one, r->terms[k].min = min, r->terms[k].max = max, r->terms[k].single = single;
    }
    if (!top || r->c->st != TERN_OK) return x;
    return TN_GX_SEQ(b, r->from_start ? TN_GX_EMPTY : tn_sc_any_chars(r->c), x,
                     r->to_end ? TN_GX_EMPTY : tn_sc_any_chars(r->c));
}

static tn_gx alternatives(regex *r) {
    tn_gx x = TN_GX_NEVER;
    bool top = r->depth == 0;
    do {
        x = TN_GX_ALT(r->c->b, x, alternative(r));
        r->n_alternatives += top;
    } while (r->c->st == TERN_OK && take(r, '|'));
    return x;
}

/* Compiles a row of characters, at most one of them repeated; its repetitions are limited to fit the lengths.
 */
static tn_gx with_length(regex *r, uint32_t min, uint32_t max) {
    static const char what[] = "anything but characters in a row, together with a length,";
    uint32_t fixed = 0;
    size_t varying = SIZE_MAX, n = r->n_terms;
    if (r->n_alternatives != 1 || !r->from_start || !r->to_end || n > TERMS_MAX) return refuse(r, what);
    for (size_t i = 0; i < n; i++) {
        if (!r->terms[i].single) return refuse(r, what);
        if (r->terms[i].min == r->terms[i].max) fixed += r->terms[i].min;
        else if (varying == SIZE_MAX) varying = i;
        else return refuse(r, what);
    }
    if (varying == SIZE_MAX && (fixed < min || fixed > max)) return TN_GX_NEVER;
    if (varying != SIZE_MAX) {
        uint32_t *lo = &r->terms[varying].min, *hi = &r->terms[varying].max;
        if (fixed > max) return TN_GX_NEVER;
        if (min > fixed && min - fixed > *lo) *lo = min - fixed;
        if (max != TN_GX_INF && max - fixed < *hi) *hi = max - fixed;
    }
    tn_gx x = TN_GX_EMPTY;
    for (size_t i = 0; i < n; i++)
        x = TN_GX_SEQ(r->c->b, x, tn_gx_rep(r->c->b, r->terms[i].x, r->terms[i].min, r->terms[i].max));
    return x;
}

tn_gx tn_sc_pattern(tn_sc *c, const char *pattern, size_t n, uint32_t min, uint32_t max) {
    regex r = {.c = c, .p = pattern, .end = pattern + n};
    tn_gx x = alternatives(&r);
    if (c->st == TERN_OK && r.p < r.end) refuse(&r, "a bracket that was not opened");
    if (c->st != TERN_OK) return TN_GX_NEVER;
    return min || max != TN_GX_INF ? with_length(&r, min, max) : x;
}

bool tn_sc_matches(tn_sc *c, const char *text, size_t n, const char *pattern) {
    tn_gb b;
    tn_gprog both = {.ctx = c->b->ctx};
    tn_gb_open(&b, c->b->ctx);
    tn_sc sub = {.b = &b, .root = c->root, .err = c->err};

    tn_gx inside = tn_sc_pattern(&sub, pattern, strlen(pattern), 0, TN_GX_INF);
    tn_grule root = tn_gb_rule(&b, "root", 4);
    tn_gb_define(&b, root, TN_GX_SEQ(&b, tn_gx_str(&b, "\""), inside, tn_gx_str(&b, "\"")));
    bool ok = false;
    json_t *s = tn_json_string(text, n);
    char *quoted = NULL;
    tern_error err = {0};
    (void)tn_json_text(s, JSON_ENCODE_ANY, &quoted, &err);
    tn_gmachine m;
    if (sub.st != TERN_OK) c->st = sub.st;
    else if (!quoted) tn_sc_fail(c, TERN_E_MEMORY, "no memory");
    else if (tn_gprog_make(&b, root, &both, &err) == TERN_OK &&
             tn_gmachine_open(&m, &both, &err) == TERN_OK) {
        uint32_t state = tn_gmachine_start(&m);
        for (const char *p = quoted; *p; p++)
            state = tn_gmachine_step(&m, state, m.prog.class_of[(uint8_t)*p]);
        ok = m.states[state].accept;
        if (tn_gmachine_status(&m, &err) != TERN_OK) c->st = tn_fail(c->err, err.code, "%s", err.message);
        tn_gmachine_close(&m);
    } else if (err.code != TERN_E_INVALID) { /* invalid: nothing fits the pattern */
        c->st = tn_fail(c->err, err.code, "%s", err.message);
    }
    free(quoted);
    json_decref(s);
    tn_gb_close(&b);
    return ok;
}

tn_gx tn_sc_format(tn_sc *c, const char *name) {
    const char *pattern = tn_sc_format_pattern(name);
    return tn_sc_pattern(c, pattern, strlen(pattern), 0, TN_GX_INF);
}
