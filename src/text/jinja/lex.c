/* text/jinja/lex.c - a template as tokens, with jinja2's rules for white space: trim_blocks (drops the
 * newline after a block's end), lstrip_blocks (drops blanks before a block that begins its line), "-" and
 * "+". */
#include "text/jinja/impl.h"

#include "base/hex.h"
#include "text/utf8.h"

#include <errno.h>
#include <stdlib.h>

typedef struct lexer {
    tn_jinja *j;
    const char *s; /* newlines are \n */
    size_t n, at;
    int line;
    bool line_starting; /* before `at` the line holds only the end of a tag with its newline */
    tn_jtoken *tok;
    size_t n_tok, cap_tok;
} lexer;

static tn_jtoken *add(lexer *l, tn_jtoken_type type) {
    if (l->n_tok == l->cap_tok) {
        size_t cap = l->cap_tok * 2 + 256;
        tn_jtoken *more = tn_jalloc(l->j, cap, sizeof *more);
        if (l->n_tok) memcpy(more, l->tok, l->n_tok * sizeof *more);
        l->tok = more;
        l->cap_tok = cap;
    }
    tn_jtoken *t = &l->tok[l->n_tok++];
    tn_jsteps(l->j, 1);
    *t = (tn_jtoken){.type = type, .line = l->line};
    return t;
}

static bool one_of(char c, const char *set) { return c && strchr(set, c); }

static bool here(const lexer *l, size_t at, const char *text) {
    size_t n = strlen(text);
    return l->n - at >= n && at <= l->n && !memcmp(l->s + at, text, n);
}

static void advance(lexer *l, size_t to) {
    for (; l->at < to; l->at++) l->line += l->s[l->at] == '\n';
    l->j->line = l->line;
}

static size_t skip_space(const lexer *l, size_t at) {
    while (at < l->n) {
        uint32_t cp;
        tn_jstr s = {.p = l->s, .n = l->n};
        size_t len = tn_jstr_char(&s, at, &cp);
        if (!tn_j_is_space(cp)) break;
        at += len;
    }
    return at;
}

/* Finds the end of a tag at `at`: `close`, perhaps after a sign. Returns where the text continues, or 0 if it
 * is not there. The end of a variable keeps the newline and has no plus. */
static size_t tag_end(const lexer *l, size_t at, const char *close, bool variable) {
    char sign = at < l->n && (l->s[at] == '-' || (l->s[at] == '+' && !variable)) ? l->s[at] : 0;
    if (!here(l, at + (sign != 0), close)) return 0;
    at += (sign != 0) + 2;
    if (sign == '-') return skip_space(l, at);
    if (!sign && !variable && at < l->n && l->s[at] == '\n') at++;
    return at;
}

/* Finds `{% raw %}` at `at`. Returns where its text starts, or 0. */
static size_t raw_begin(const lexer *l, size_t at) {
    if (!here(l, at, "{%")) return 0;
    at += 2;
    if (at < l->n && (l->s[at] == '-' || l->s[at] == '+')) at++;
    at = skip_space(l, at);
    if (!here(l, at, "raw")) return 0;
    at = skip_space(l, at + 3);
    if (here(l, at, "-%}")) return skip_space(l, at + 3);
    return here(l, at, "%}") ? at + 2 : 0;
}

static size_t raw_end(const lexer *l, size_t at) {
    if (!here(l, at, "{%")) return 0;
    at += 2;
    if (at < l->n && (l->s[at] == '-' || l->s[at] == '+')) at++;
    at = skip_space(l, at);
    if (!here(l, at, "endraw")) return 0;
    return tag_end(l, skip_space(l, at + 6), "%}", false);
}

/* Adds the text up to a tag (or the end) without the white space that the tag removes. */
static void add_text(lexer *l, size_t to, char sign, bool strips_line) {
    size_t end = to;
    if (sign == '-') {
        tn_jstr all = {.p = l->s + l->at, .n = to - l->at};
        end = l->at + tn_jstr_strip(l->j, &all, NULL, TN_J_RIGHT)->n;
    } else if (sign != '+' && strips_line) {
        size_t from = to;
        while (from > l->at && l->s[from - 1] != '\n') from--;
        if ((from > l->at || l->line_starting) && skip_space(l, from) >= to) end = from;
    }
    if (end > l->at) add(l, JT_DATA)->s = tn_jstr_span(l->j, l->s + l->at, end - l->at, false);
    advance(l, to);
}

/* ---- inside tags ---- */

static int hex_digits(const char *p, const char *end, int n, uint32_t *v) {
    *v = 0;
    for (int i = 0; i < n; i++) {
        int d = p + i < end ? tn_hex_digit(p[i]) : -1;
        if (d < 0) return 0;
        *v = *v * 16 + (uint32_t)d;
    }
    return n;
}

/* Reads one escape of Python's strings at p (after the backslash). Returns the bytes used. */
static size_t unescape(lexer *l, tn_jbuf *b, const char *p, const char *end) {
    static const char from[] = "ntrabfv\\'\"", to[] = "\n\t\r\a\b\f\v\\'\"";
    const char *known = *p ? strchr(from, *p) : NULL;
    uint32_t cp = 0;
    if (known) {
        tn_jbuf_bytes(l->j, b, &to[known - from], 1, false);
        return 1;
    }
    if (*p == '\n') return 1; /* a continued line */
    int n = *p == 'x' ? 2 : *p == 'u' ? 4 : *p == 'U' ? 8 : 0;
    size_t used = 0;
    if (n) {
        used = 1 + (size_t)hex_digits(p + 1, end, n, &cp);
        if (used == 1 || cp > 0x10ffff) tn_jfail(l->j, TERN_E_FORMAT, "a broken \\%c escape", *p);
    } else if (*p >= '0' && *p <= '7') {
        for (; used < 3 && p + used < end && p[used] >= '0' && p[used] <= '7'; used++)
            cp = cp * 8 + (uint32_t)(p[used] - '0');
    } else if (*p == 'N') {
        tn_jfail(l->j, TERN_E_UNSUPPORTED, "characters by name (\\N) are not supported");
    } else {
        tn_jbuf_text(l->j, b, "\\"); /* not an escape */
        return 0;
    }
    if (cp >= 0xd800 && cp < 0xe000) tn_jfail(l->j, TERN_E_UNSUPPORTED, "surrogates are not supported");
    uint8_t utf8[4];
    tn_jbuf_bytes(l->j, b, (const char *)utf8, tn_utf8_encode(cp, utf8), false);
    return used;
}

static void lex_string(lexer *l) {
    char quote = l->s[l->at];
    size_t at = l->at + 1;
    tn_jbuf b = {0};
    while (at < l->n && l->s[at] != quote) {
        if (l->s[at] == '\\' && at + 1 < l->n) {
            at += 1 + unescape(l, &b, l->s + at + 1, l->s + l->n);
        } else {
            size_t from = at;
            while (at < l->n && l->s[at] != quote && (l->s[at] != '\\' || at + 1 == l->n)) at++;
            tn_jbuf_bytes(l->j, &b, l->s + from, at - from, false);
        }
    }
    if (at >= l->n) tn_jfail(l->j, TERN_E_FORMAT, "a string that does not end");
    add(l, JT_STRING)->s = tn_jbuf_take(l->j, &b);
    advance(l, at + 1);
}

static bool digit(char c) { return c >= '0' && c <= '9'; }

static size_t digits(const lexer *l, size_t at) { /* with single underscores between */
    while (at < l->n && (digit(l->s[at]) || (l->s[at] == '_' && at + 1 < l->n && digit(l->s[at + 1])))) at++;
    return at;
}

static void lex_number(lexer *l, bool after_dot) {
    size_t at = digits(l, l->at), end = at;
    char text[64];
    bool real = false;
    if (l->s[l->at] == '0' && l->at + 1 < l->n && one_of(l->s[l->at + 1], "xXoObB"))
        tn_jfail(l->j, TERN_E_UNSUPPORTED, "numbers with a base are not supported");
    if (!after_dot && at + 1 < l->n && l->s[at] == '.' && digit(l->s[at + 1])) {
        end = at = digits(l, at + 1);
        real = true;
    }
    if (!after_dot && at < l->n && (l->s[at] == 'e' || l->s[at] == 'E')) {
        size_t exp = at + 1;
        if (exp < l->n && (l->s[exp] == '+' || l->s[exp] == '-')) exp++;
        if (exp < l->n && digit(l->s[exp])) {
            end = digits(l, exp);
            real = true;
        }
    }
    size_t n = 0;
    for (size_t i = l->at; i < end; i++) {
        if (l->s[i] == '_') continue;
        if (n + 1 == sizeof text) tn_jfail(l->j, TERN_E_LIMIT, "a number of more than %zu digits", n);
        text[n++] = l->s[i];
    }
    text[n] = 0;
    tn_jtoken *t = add(l, real ? JT_FLOAT : JT_INT);
    errno = 0;
    t->v = real ? tn_j_float(strtod(text, NULL)) : tn_j_int(strtoll(text, NULL, 10));
    if (errno == ERANGE && !real) tn_jfail(l->j, TERN_E_LIMIT, "the number %s is too large", text);
    advance(l, end);
}

static bool name_char(uint8_t c) {
    return c == '_' || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || digit((char)c) || c >= 0x80;
}

/* Brackets open at once. A tag does not end inside them. */
typedef struct brackets {
    char open[200];
    int n;
} brackets;

static void lex_operator(lexer *l, brackets *b) {
    static const char *const two[] = {"//", "**", "==", "!=", ">=", "<="};
    for (size_t i = 0; i < sizeof two / sizeof *two; i++) {
        if (!here(l, l->at, two[i])) continue;
        add(l, JT_OP)->op = J_OP(two[i][0], two[i][1]);
        advance(l, l->at + 2);
        return;
    }
    char c = l->s[l->at];
    if (!one_of(c, "+-/*%~[](){}<>=.:|,;")) tn_jfail(l->j, TERN_E_FORMAT, "unexpected '%.1s'", c ? &c : "?");
    if (strchr("([{", c)) {
        if (b->n == (int)sizeof b->open) tn_jfail(l->j, TERN_E_LIMIT, "brackets nest deeper than %d", b->n);
        b->open[b->n++] = c == '(' ? ')' : c == '[' ? ']' : '}';
    } else if (strchr(")]}", c)) {
        if (!b->n || b->open[b->n - 1] != c) tn_jfail(l->j, TERN_E_FORMAT, "unexpected '%c'", c);
        b->n--;
    }
    add(l, JT_OP)->op = c;
    advance(l, l->at + 1);
}

static void lex_tag(lexer *l, const char *close, bool variable) {
    brackets b = {.n = 0};
    for (;;) {
        size_t end = b.n ? 0 : tag_end(l, l->at, close, variable);
        if (end) {
            add(l, variable ? JT_VAR_END : JT_BLOCK_END);
            l->line_starting = l->s[end - 1] == '\n';
            advance(l, end);
            return;
        }
        if (l->at >= l->n) tn_jfail(l->j, TERN_E_FORMAT, "a tag that does not end");
        size_t after = skip_space(l, l->at);
        char c = l->s[l->at];
        if (after > l->at) {
            advance(l, after);
        } else if (digit(c)) {
            const tn_jtoken *last = &l->tok[l->n_tok - 1];
            lex_number(l, last->type == JT_OP && last->op == '.');
        } else if (name_char((uint8_t)c)) {
            while (after < l->n && name_char((uint8_t)l->s[after])) after++;
            add(l, JT_NAME)->s = tn_jstr_span(l->j, l->s + l->at, after - l->at, false);
            advance(l, after);
        } else if (c == '"' || c == '\'') {
            lex_string(l);
        } else {
            lex_operator(l, &b);
        }
    }
}

static void lex_raw(lexer *l, size_t text) {
    advance(l, text);
    for (size_t at = text; at < l->n; at++) {
        size_t end = raw_end(l, at);
        if (!end) continue;
        char sign = l->s[at + 2] == '-' || l->s[at + 2] == '+' ? l->s[at + 2] : 0;
        add_text(l, at, sign, true);
        l->line_starting = l->s[end - 1] == '\n';
        advance(l, end);
        return;
    }
    tn_jfail(l->j, TERN_E_FORMAT, "raw without endraw");
}

static void lex_comment(lexer *l) {
    size_t first = l->at + 2;
    if (first < l->n && one_of(l->s[first], "-+")) first++;
    for (size_t at = first; at < l->n; at++) {
        size_t end = tag_end(l, at, "#}", false);
        if (!end) continue;
        l->line_starting = l->s[end - 1] == '\n';
        advance(l, end);
        return;
    }
    tn_jfail(l->j, TERN_E_FORMAT, "a comment that does not end");
}

/* Turns \r\n and \r into \n and drops one newline at the end. */
static void normalise(lexer *l, const char *source, size_t n) {
    char *s = tn_jalloc(l->j, n + 1, 1);
    size_t m = 0;
    for (size_t i = 0; i < n; i++) {
        if (source[i] == '\r') {
            s[m++] = '\n';
            i += i + 1 < n && source[i + 1] == '\n';
        } else {
            s[m++] = source[i];
        }
    }
    l->s = s;
    l->n = m && s[m - 1] == '\n' ? m - 1 : m;
}

tn_jtoken *tn_jlex(tn_jinja *j, const char *source, size_t n) {
    lexer l = {.j = j, .line = 1, .line_starting = true};
    normalise(&l, source, n);
    while (l.at < l.n) {
        size_t at = l.at;
        for (; at + 1 < l.n; at++) {
            const char *open = memchr(l.s + at, '{', l.n - at);
            at = open ? (size_t)(open - l.s) : l.n;
            if (at + 1 < l.n && one_of(l.s[at + 1], "{%#")) break;
        }
        if (at + 1 >= l.n) at = l.n;
        if (at == l.n) {
            add_text(&l, l.n, 0, false);
            break;
        }
        char kind = l.s[at + 1],
             sign = at + 2 < l.n && (l.s[at + 2] == '-' || l.s[at + 2] == '+') ? l.s[at + 2] : 0;
        add_text(&l, at, sign, kind != '{');
        size_t raw = raw_begin(&l, at);
        if (raw) {
            lex_raw(&l, raw);
        } else if (kind == '#') {
            lex_comment(&l);
        } else {
            add(&l, kind == '{' ? JT_VAR_BEGIN : JT_BLOCK_BEGIN);
            advance(&l, at + 2 + (sign != 0));
            lex_tag(&l, kind == '{' ? "}}" : "%}", kind == '{');
        }
    }
    add(&l, JT_EOF);
    return l.tok;
}
