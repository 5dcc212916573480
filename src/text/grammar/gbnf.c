#include "text/grammar/gbnf.h"

#include "base/hex.h"
#include "base/status.h"
#include "text/utf8.h"

#include <string.h>

enum { DEPTH_MAX = 200 }; /* of brackets */

typedef struct reader {
    tn_gb *b;
    const char *begin, *p, *end;
    int depth;
    tern_error *err;
    tern_status st;
} reader;

/* Keeps the first failure, with its line. */
static tn_gx wrong(reader *r, tern_status st, const char *what) {
    if (r->st != TERN_OK) return TN_GX_NEVER;
    int line = 1, column = 1;
    for (const char *p = r->begin; p < r->p; p++) {
        column = *p == '\n' ? 1 : column + 1;
        line += *p == '\n';
    }
    r->st = tn_fail(r->err, st, "grammar, line %d, column %d: %s", line, column, what);
    return TN_GX_NEVER;
}

static tn_gx bad(reader *r, const char *what) { return wrong(r, TERN_E_INVALID, what); }

static bool at(const reader *r, const char *s) {
    size_t n = strlen(s);
    return (size_t)(r->end - r->p) >= n && !memcmp(r->p, s, n);
}

static bool take(reader *r, char c) {
    if (r->p == r->end || *r->p != c) return false;
    r->p++;
    return true;
}

static void space(reader *r, bool lines) {
    while (r->p < r->end) {
        if (*r->p == '#') {
            while (r->p < r->end && *r->p != '\n' && *r->p != '\r') r->p++;
        } else if (*r->p == ' ' || *r->p == '\t' || (lines && (*r->p == '\n' || *r->p == '\r'))) {
            r->p++;
        } else {
            return;
        }
    }
}

static bool is_name(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_';
}

static size_t name(reader *r) { /* returns its length, with p after it */
    const char *from = r->p;
    while (r->p < r->end && is_name(*r->p)) r->p++;
    return (size_t)(r->p - from);
}

/* Reads one character of a literal or class, escaped or not. */
static uint32_t character(reader *r) {
    uint32_t cp = 0;
    size_t n = tn_utf8_decode((const uint8_t *)r->p, (const uint8_t *)r->end, &cp);
    if (!n) return bad(r, "the text is not valid UTF-8");
    r->p += n;
    if (cp != '\\') return cp;
    if (r->p == r->end) return bad(r, "the text ends inside an escape");
    char c = *r->p++;
    int digits = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
    if (!digits) {
        static const char from[] = "nrt\\\"[]-^/'", to[] = "\n\r\t\\\"[]-^/'";
        const char *k = c ? strchr(from, c) : NULL;
        return k ? (uint32_t)(uint8_t)to[k - from] : bad(r, "this escape is unknown");
    }
    uint32_t x = 0;
    for (int i = 0; i < digits; i++) {
        int v = r->p < r->end ? tn_hex_digit(*r->p) : -1;
        if (v < 0) return bad(r, "an escape lacks hexadecimal digits");
        x = x << 4 | (uint32_t)v;
        r->p++;
    }
    if (x > 0x10ffff || (x >= 0xd800 && x < 0xe000)) return bad(r, "an escape names no character");
    return x;
}

static tn_gx literal(reader *r) {
    tn_gx whole = TN_GX_EMPTY;
    char buf[256];
    size_t n = 0;
    while (r->st == TERN_OK) {
        if (r->p == r->end || *r->p == '\n') return bad(r, "a quoted text does not end");
        if (take(r, '"')) break;
        n += tn_utf8_encode(character(r), (uint8_t *)buf + n);
        if (n + 4 > sizeof buf) {
            whole = TN_GX_SEQ(r->b, whole, tn_gx_text(r->b, buf, n));
            n = 0;
        }
    }
    return TN_GX_SEQ(r->b, whole, tn_gx_text(r->b, buf, n));
}

static tn_gx char_class(reader *r) {
    tn_ctx *ctx = r->b->ctx;
    tn_grange *v = NULL;
    size_t n = 0, cap = 0;
    bool negated = take(r, '^');
    while (r->st == TERN_OK) {
        if (r->p == r->end || *r->p == '\n') bad(r, "a class of characters does not end");
        else if (take(r, ']')) break;
        if (r->st != TERN_OK) break;
        uint32_t lo = character(r), hi = lo;
        if (r->end - r->p > 1 && *r->p == '-' && r->p[1] != ']') {
            r->p++;
            hi = character(r);
        }
        if (hi < lo) bad(r, "a range of characters runs backwards");
        if (!TN_GVEC_ROOM(ctx, v, cap, n + 1)) wrong(r, TERN_E_MEMORY, "no memory for the grammar");
        else v[n++] = (tn_grange){lo, hi};
    }
    tn_gx x = TN_GX_NEVER;
    if (r->st == TERN_OK) x = negated ? tn_gx_not(r->b, v, n) : tn_gx_set(r->b, v, n);
    tn_free(ctx, v);
    return x;
}

static bool number(reader *r, uint32_t *out) {
    const char *from = r->p;
    uint64_t x = 0;
    for (; r->p < r->end && *r->p >= '0' && *r->p <= '9'; r->p++) {
        x = 10 * x + (uint64_t)(*r->p - '0');
        if (x > TN_GX_REPEAT_MAX) bad(r, "a repetition is larger than 16777216");
        if (r->st != TERN_OK) return false;
    }
    *out = (uint32_t)x;
    return r->p > from;
}

static tn_gx repeated(reader *r, tn_gx x) {
    for (int n = 0; r->st == TERN_OK; n++) {
        if (n > 8) return bad(r, "repetitions of repetitions are nested too deeply");
        if (take(r, '*')) {
            x = tn_gx_rep(r->b, x, 0, TN_GX_INF);
        } else if (take(r, '+')) {
            x = tn_gx_rep(r->b, x, 1, TN_GX_INF);
        } else if (take(r, '?')) {
            x = tn_gx_rep(r->b, x, 0, 1);
        } else if (take(r, '{')) {
            uint32_t min = 0, max;
            space(r, true);
            bool has_min = number(r, &min);
            max = min;
            space(r, true);
            if (take(r, ',')) {
                space(r, true);
                if (!number(r, &max)) max = TN_GX_INF;
            } else if (!has_min) {
                return bad(r, "a repetition lacks its number");
            }
            space(r, true);
            if (!take(r, '}')) return bad(r, "a repetition does not end with }");
            if (min > max) return bad(r, "a repetition's bounds are the wrong way round");
            x = tn_gx_rep(r->b, x, min, max);
        } else {
            break;
        }
    }
    return x;
}

static tn_gx alternatives(reader *r, bool nested);

static tn_gx group(reader *r) {
    if (++r->depth > DEPTH_MAX) return bad(r, "brackets are nested too deeply");
    space(r, true);
    tn_gx x = alternatives(r, true);
    space(r, true);
    if (r->st == TERN_OK && !take(r, ')')) return bad(r, "a bracket is not closed");
    r->depth--;
    return x;
}

/* Reads one element. Returns TN_GX_NEVER, with *none, where no element begins. */
static tn_gx element(reader *r, bool *none) {
    if (take(r, '"')) return literal(r);
    if (take(r, '[')) return char_class(r);
    if (take(r, '(')) return group(r);
    if (take(r, '.')) return tn_gx_not(r->b, NULL, 0);
    if (r->p < r->end && (*r->p == '<' || *r->p == '!'))
        return wrong(r, TERN_E_UNSUPPORTED,
                     "tokens by name or number (<...>) are not supported; write their text");
    const char *from = r->p;
    size_t n = name(r);
    if (n) return tn_gx_rule(r->b, tn_gb_named(r->b, from, n));
    *none = true;
    return TN_GX_NEVER;
}

static tn_gx sequence(reader *r, bool nested) {
    tn_ctx *ctx = r->b->ctx;
    tn_gx *v = NULL;
    size_t n = 0, cap = 0;
    while (r->st == TERN_OK) {
        bool none = false;
        tn_gx x = element(r, &none);
        if (none || r->st != TERN_OK) break;
        x = repeated(r, x);
        if (!TN_GVEC_ROOM(ctx, v, cap, n + 1)) wrong(r, TERN_E_MEMORY, "no memory for the grammar");
        else v[n++] = x;
        space(r, nested);
    }
    tn_gx x = r->st == TERN_OK ? tn_gx_seq(r->b, v, n) : TN_GX_NEVER;
    tn_free(ctx, v);
    return x;
}

static tn_gx alternatives(reader *r, bool nested) {
    tn_ctx *ctx = r->b->ctx;
    tn_gx *v = NULL;
    size_t n = 0, cap = 0;
    do {
        space(r, true);
        tn_gx x = sequence(r, nested);
        if (r->st != TERN_OK) break;
        if (!TN_GVEC_ROOM(ctx, v, cap, n + 1)) wrong(r, TERN_E_MEMORY, "no memory for the grammar");
        else v[n++] = x;
        space(r, nested);
    } while (r->st == TERN_OK && take(r, '|'));
    tn_gx x = r->st == TERN_OK ? tn_gx_alt(r->b, v, n) : TN_GX_NEVER;
    tn_free(ctx, v);
    return x;
}

static void rule(reader *r) {
    const char *from = r->p;
    size_t n = name(r);
    if (!n) {
        bad(r, "a rule begins with its name");
        return;
    }
    space(r, false);
    if (!at(r, "::=")) {
        bad(r, "a rule's name is followed by ::=");
        return;
    }
    r->p += 3;
    tn_grule id = tn_gb_named(r->b, from, n);
    if (r->b->st == TERN_OK && r->b->rules[id].defined) {
        r->p = from;
        bad(r, "this rule is defined twice");
        return;
    }
    tn_gx x = alternatives(r, false);
    if (r->st != TERN_OK) return;
    if (r->p < r->end && *r->p != '\n' && *r->p != '\r') {
        bad(r, "this character cannot stand here");
        return;
    }
    tn_gb_define(r->b, id, x);
    space(r, true);
}

tern_status tn_gbnf_read(tn_gb *b, const char *text, size_t n_bytes, tn_grule *root, tern_error *err) {
    reader r = {.b = b, .begin = text, .p = text, .end = text + n_bytes, .err = err};
    space(&r, true);
    while (r.p < r.end && r.st == TERN_OK && b->st == TERN_OK) rule(&r);
    TN_TRY(r.st);
    TN_TRY(tn_gb_status(b, err));
    TN_FAIL_IF(!tn_gb_has(b, "root", 4, root), err, TERN_E_INVALID, "grammar: there is no rule 'root'");
    return TERN_OK;
}
