/* base/json_parse.c - a reader of JSON (RFC 8259) that makes jansson's values. When memory fails while a
 * token grows, jansson's own reader drops characters or reads past the token. This reader works in place
 * and copies only tokens with escapes. */
#include "base/json.h"

#include "base/utf8.h"

#include <errno.h>
#include <locale.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

typedef struct parser {
    const char *text, *at, *end;
    size_t flags;
    int depth;
    json_error_t *je; /* or NULL */
    char *stack;      /* keys of the open objects, then the current token */
    size_t n_stack, cap_stack;
    json_malloc_t alloc; /* same limit as jansson's for values */
    json_free_t release;
} parser;

/* Reports what is wrong at p->at. Always returns NULL. */
__attribute__((format(printf, 3, 4))) static json_t *wrong(parser *p, enum json_error_code code,
                                                           const char *fmt, ...) {
    json_error_t *e = p->je;
    if (!e) return NULL;
    e->line = 1;
    e->position = (int)(p->at - p->text);
    const char *line = p->text;
    for (const char *c = p->text; c < p->at; c++)
        if (*c == '\n') e->line++, line = c + 1;
    e->column = (int)(p->at - line);
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(e->text, JSON_ERROR_TEXT_LENGTH - 1, fmt, ap);
    va_end(ap);
    size_t near = 0; /* the text there, where it is printable */
    while (near < 20 && p->at + near < p->end && p->at[near] > ' ' && p->at[near] < 127) near++;
    bool at_end = p->at == p->end && code == json_error_invalid_syntax;
    if (n > 0 && n < 120 && at_end) snprintf(e->text + n, 30, " near end of file");
    else if (n > 0 && n < 120 && near && code == json_error_invalid_syntax)
        snprintf(e->text + n, 30, " near '%.*s'", (int)near, p->at);
    e->text[JSON_ERROR_TEXT_LENGTH - 1] = (char)(at_end ? json_error_premature_end_of_input : code);
    return NULL;
}

static json_t *no_memory(parser *p) { return wrong(p, json_error_out_of_memory, "no memory for the value"); }

/* Makes room for n more bytes on top of the stack. */
static bool reserve(parser *p, size_t n) {
    if (p->cap_stack - p->n_stack >= n) return true;
    size_t cap = 2 * p->cap_stack + n + 64;
    char *more = p->alloc(cap);
    if (!more) return no_memory(p), false;
    if (p->n_stack) memcpy(more, p->stack, p->n_stack);
    p->release(p->stack);
    p->stack = more;
    p->cap_stack = cap;
    return true;
}

static void skip_blanks(parser *p) {
    while (p->at < p->end && (*p->at == ' ' || *p->at == '\n' || *p->at == '\t' || *p->at == '\r')) p->at++;
}

static bool is_digit(const parser *p) { return p->at < p->end && *p->at >= '0' && *p->at <= '9'; }

/* ---- texts ------------------------------------------------------------------------------------------- */

/* Moves past a text to its closing quote and checks every byte. Returns false if it is malformed. */
static bool scan_text(parser *p, bool *has_escapes) {
    *has_escapes = false;
    while (p->at < p->end && *p->at != '"') {
        unsigned char c = (unsigned char)*p->at;
        if (c < 0x20)
            return wrong(p, json_error_invalid_syntax, "control character 0x%x in a text", c), false;
        if (c >= 0x80) {
            uint32_t code;
            size_t n = tn_utf8_decode((const uint8_t *)p->at, (const uint8_t *)p->end, &code);
            if (!n) return wrong(p, json_error_invalid_utf8, "unable to decode byte 0x%x", c), false;
            p->at += n;
            continue;
        }
        *has_escapes |= c == '\\';
        p->at += c == '\\' && p->end - p->at > 1 && p->at[1] >= 0x20 && p->at[1] < 127 ? 2 : 1;
    }
    if (p->at == p->end) return wrong(p, json_error_invalid_syntax, "a text has no end"), false;
    return true;
}

/* The four digits at s, or -1. */
static int32_t hex4(const char *s, const char *end) {
    int32_t v = 0;
    if (end - s < 4) return -1;
    for (int i = 0; i < 4; i++) {
        char c = s[i];
        int d = c >= '0' && c <= '9'                 ? c - '0'
                : (c | 32) >= 'a' && (c | 32) <= 'f' ? (c | 32) - 'a' + 10
                                                     : -1;
        if (d < 0) return -1;
        v = v << 4 | d;
    }
    return v;
}

/* Reads the character of "\uXXXX" or of a surrogate pair at *s and moves *s past it. -1: malformed. */
static int32_t escaped(const char **s, const char *end) {
    int32_t c = hex4(*s + 2, end), low;
    if (c < 0 || (c >= 0xdc00 && c <= 0xdfff)) return -1;
    *s += 6;
    if (c < 0xd800 || c > 0xdbff) return c;
    if (end - *s < 6 || (*s)[0] != '\\' || (*s)[1] != 'u') return -1;
    low = hex4(*s + 2, end);
    if (low < 0xdc00 || low > 0xdfff) return -1;
    *s += 6;
    return 0x10000 + ((c - 0xd800) << 10) + (low - 0xdc00);
}

/* Writes the text [s, end) on top of the stack with its escapes resolved, which never lengthens it. *n:
 * number of bytes. */
static bool unescape(parser *p, const char *s, const char *end, size_t *n) {
    static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
    const char *closing = p->at;
    if (!reserve(p, (size_t)(end - s) + 1)) return false;
    char *begin = p->stack + p->n_stack, *out = begin;
    while (s < end) {
        const char *k = *s != '\\' ? NULL : s + 1 < end && s[1] ? strchr(from, s[1]) : NULL;
        if (*s != '\\') {
            *out++ = *s++;
        } else if (k) {
            *out++ = to[k - from];
            s += 2;
        } else {
            p->at = s;
            int32_t c = s + 1 < end && s[1] == 'u' ? escaped(&s, end) : -1;
            if (c < 0) return wrong(p, json_error_invalid_syntax, "invalid escape"), false;
            if (!c && (p->flags & TN_JSON_NO_NUL)) c = 0xfffd;
            if (!c && !(p->flags & JSON_ALLOW_NUL))
                return wrong(p, json_error_null_character, "\\u0000 is not allowed"), false;
            out += tn_utf8_encode((uint32_t)c, (uint8_t *)out);
        }
    }
    *out = 0;
    *n = (size_t)(out - begin);
    p->at = closing;
    return true;
}

static json_t *text(parser *p) {
    const char *begin = ++p->at;
    bool has_escapes;
    if (!scan_text(p, &has_escapes)) return NULL;
    size_t n = (size_t)(p->at - begin);
    if (has_escapes && !unescape(p, begin, p->at, &n)) return NULL;
    json_t *v = json_stringn_nocheck(has_escapes ? p->stack + p->n_stack : begin, n);
    p->at++;
    return v ? v : no_memory(p);
}

/* ---- numbers ----------------------------------------------------------------------------------------- */

static json_t *real(parser *p, const char *begin) {
    size_t n = (size_t)(p->at - begin);
    if (!reserve(p, n + 1)) return NULL;
    char *copy = p->stack + p->n_stack, *point;
    memcpy(copy, begin, n);
    copy[n] = 0;
    if ((point = strchr(copy, '.')))
        *point = *localeconv()->decimal_point; /* strtod expects the locale's decimal point */
    errno = 0;
    double v = strtod(copy, NULL);
    if (isinf(v)) return wrong(p, json_error_numeric_overflow, "real number overflow");
    json_t *j = json_real(v);
    return j ? j : no_memory(p);
}

static json_t *number(parser *p) {
    const char *begin = p->at;
    bool minus = *p->at == '-', whole = true, fits = true;
    json_int_t v = 0;
    p->at += minus;
    if (!is_digit(p)) return wrong(p, json_error_invalid_syntax, "invalid token");
    if (*p->at == '0') {
        p->at++;
        if (is_digit(p)) return wrong(p, json_error_invalid_syntax, "invalid token");
    }
    for (; is_digit(p); p->at++) {
        int d = *p->at - '0';
        fits = fits && !__builtin_mul_overflow(v, (json_int_t)10, &v) &&
               !__builtin_add_overflow(v, (json_int_t)(minus ? -d : d), &v);
    }
    if (p->at < p->end && *p->at == '.') {
        p->at++;
        whole = false;
        if (!is_digit(p)) return wrong(p, json_error_invalid_syntax, "invalid token");
        while (is_digit(p)) p->at++;
    }
    if (p->at < p->end && (*p->at == 'e' || *p->at == 'E')) {
        p->at++;
        whole = false;
        if (p->at < p->end && (*p->at == '+' || *p->at == '-')) p->at++;
        if (!is_digit(p)) return wrong(p, json_error_invalid_syntax, "invalid token");
        while (is_digit(p)) p->at++;
    }
    if (!whole || (p->flags & JSON_DECODE_INT_AS_REAL)) return real(p, begin);
    if (!fits)
        return wrong(p, json_error_numeric_overflow, minus ? "too big negative integer" : "too big integer");
    json_t *j = json_integer(v);
    return j ? j : no_memory(p);
}

/* ---- lists, objects ---------------------------------------------------------------------------------- */

static json_t *value(parser *p);

/* Reads a key onto the stack. */
static bool key(parser *p, const json_t *object) {
    bool has_escapes;
    size_t n;
    if (p->at == p->end || *p->at != '"')
        return wrong(p, json_error_invalid_syntax, "string or '}' expected"), false;
    const char *begin = ++p->at;
    if (!scan_text(p, &has_escapes)) return false;
    n = (size_t)(p->at - begin);
    if (has_escapes && !unescape(p, begin, p->at, &n)) return false;
    if (!has_escapes) {
        if (!reserve(p, n + 1)) return false;
        memcpy(p->stack + p->n_stack, begin, n);
        p->stack[p->n_stack + n] = 0;
    }
    const char *k = p->stack + p->n_stack;
    if (strlen(k) != n)
        return wrong(p, json_error_null_byte_in_key, "NUL byte in object key not supported"), false;
    if ((p->flags & JSON_REJECT_DUPLICATES) && json_object_get(object, k))
        return wrong(p, json_error_duplicate_key, "duplicate object key"), false;
    p->at++;
    p->n_stack += n + 1;
    return true;
}

/* Reads the members up to the closing bracket, which it does not consume. */
static bool members(parser *p, json_t *object) {
    for (;;) {
        size_t from = p->n_stack;
        if (!key(p, object)) return false;
        skip_blanks(p);
        if (p->at == p->end || *p->at != ':')
            return wrong(p, json_error_invalid_syntax, "':' expected"), false;
        p->at++;
        json_t *v = value(p);
        if (!v) return false;
        if (json_object_set_new_nocheck(object, p->stack + from, v)) return no_memory(p), false;
        p->n_stack = from;
        skip_blanks(p);
        if (p->at < p->end && *p->at == '}') return true;
        if (p->at == p->end || *p->at != ',')
            return wrong(p, json_error_invalid_syntax, "'}' expected"), false;
        p->at++;
        skip_blanks(p);
    }
}

static bool items(parser *p, json_t *list) {
    for (;;) {
        json_t *v = value(p);
        if (!v) return false;
        if (json_array_append_new(list, v)) return no_memory(p), false;
        skip_blanks(p);
        if (p->at < p->end && *p->at == ']') return true;
        if (p->at == p->end || *p->at != ',')
            return wrong(p, json_error_invalid_syntax, "']' expected"), false;
        p->at++;
    }
}

static json_t *nest(parser *p) {
    bool object = *p->at == '{';
    if (p->depth == TN_JSON_MAX_DEPTH)
        return wrong(p, json_error_stack_overflow, "nested deeper than %d", TN_JSON_MAX_DEPTH);
    json_t *v = object ? json_object() : json_array();
    if (!v) return no_memory(p);
    p->depth++;
    p->at++;
    skip_blanks(p);
    bool ok = p->at < p->end && *p->at == (object ? '}' : ']');
    if (!ok) ok = object ? members(p, v) : items(p, v);
    p->at += ok;
    p->depth--;
    if (ok) return v;
    json_decref(v);
    return NULL;
}

static json_t *value(parser *p) {
    static const char *const words[] = {"true", "false", "null"};
    skip_blanks(p);
    if (p->at == p->end) return wrong(p, json_error_invalid_syntax, "unexpected token");
    if (*p->at == '"') return text(p);
    if (*p->at == '{' || *p->at == '[') return nest(p);
    if (*p->at == '-' || is_digit(p)) return number(p);
    for (int i = 0; i < 3; i++) {
        size_t n = strlen(words[i]);
        if ((size_t)(p->end - p->at) < n || memcmp(p->at, words[i], n) != 0) continue;
        p->at += n;
        return i == 2 ? json_null() : json_boolean(i == 0);
    }
    return wrong(p, json_error_invalid_syntax, "invalid token");
}

json_t *tn_json_parse(const char *text, size_t n, size_t flags, json_error_t *je) {
    parser p = {.text = text, .at = text, .end = text + n, .flags = flags, .je = je};
    json_get_alloc_funcs(&p.alloc, &p.release);
    if (je) *je = (json_error_t){.line = 1, .source = "<buffer>"};
    skip_blanks(&p);
    bool nests = p.at < p.end && (*p.at == '{' || *p.at == '[');
    json_t *v = nests || (flags & JSON_DECODE_ANY)
                    ? value(&p)
                    : wrong(&p, json_error_invalid_syntax, "'[' or '{' expected");
    skip_blanks(&p);
    if (v && p.at < p.end && !(flags & JSON_DISABLE_EOF_CHECK)) {
        json_decref(v);
        v = wrong(&p, json_error_end_of_input_expected, "end of file expected");
    }
    if (v && je) je->position = (int)(p.at - text);
    p.release(p.stack);
    return v;
}
