/* lean/json_read.c - JSON text to values. */
#include "lean/json.h"

#include "base/hex.h"
#include "base/utf8.h"

#include <errno.h>
#include <locale.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct reader {
    const uint8_t *p, *end;
    int line, depth;
    size_t flags;
    tn_lean_error *err;
} reader;

static tn_lean_json *refuse(reader *r, const char *what) {
    if (r->err && r->err->code == TN_LEAN_OK) {
        r->err->code = TN_LEAN_NOT_JSON;
        r->err->line = r->line;
        snprintf(r->err->text, sizeof r->err->text, "%s", what);
    }
    return NULL;
}

static tn_lean_json *no_memory(reader *r) {
    (void)refuse(r, "out of memory");
    if (r->err) r->err->code = TN_LEAN_NO_MEMORY;
    return NULL;
}

static void blanks(reader *r) {
    for (; r->p < r->end && (*r->p == ' ' || *r->p == '\t' || *r->p == '\n' || *r->p == '\r'); r->p++)
        r->line += *r->p == '\n';
}

static bool take(reader *r, char c) {
    blanks(r);
    if (r->p == r->end || *r->p != (uint8_t)c) return false;
    r->p++;
    return true;
}

static bool hex4(reader *r, uint32_t *out) {
    *out = 0;
    if (r->end - r->p < 4) return false;
    for (int i = 0; i < 4; i++, r->p++) {
        int digit = tn_hex_digit((char)*r->p);
        if (digit < 0) return false;
        *out = *out << 4 | (uint32_t)digit;
    }
    return true;
}

/* Behind "\u". A pair of surrogates is one character; a lone one is an error. */
static bool unicode_escape(reader *r, uint32_t *cp) {
    uint32_t low;
    if (!hex4(r, cp)) return false;
    if (*cp >= 0xdc00 && *cp <= 0xdfff) return false;
    if (*cp < 0xd800 || *cp > 0xdbff) return true;
    if (r->end - r->p < 6 || r->p[0] != '\\' || r->p[1] != 'u') return false;
    r->p += 2;
    if (!hex4(r, &low) || low < 0xdc00 || low > 0xdfff) return false;
    *cp = 0x10000 + ((*cp - 0xd800) << 10) + (low - 0xdc00);
    return true;
}

/* The bytes of one character or escape go to `to`. Their number; 0: refused. */
static size_t string_char(reader *r, uint8_t to[4], bool key) {
    static const char letters[] = "\"\\/bfnrt", plain[] = "\"\\/\b\f\n\r\t";
    uint32_t cp;
    if (*r->p != '\\') {
        if (*r->p < 0x20) return refuse(r, "control character in a string"), 0;
        size_t len = tn_utf8_decode(r->p, r->end, &cp);
        if (!len) return refuse(r, "invalid UTF-8"), 0;
        memcpy(to, r->p, len);
        r->p += len;
        return len;
    }
    if (r->end - r->p < 2) return refuse(r, "the text ends in a string"), 0;
    uint8_t c = r->p[1];
    r->p += 2;
    if (c != 'u') {
        const char *at = c ? strchr(letters, c) : NULL;
        if (!at) return refuse(r, "invalid escape"), 0;
        to[0] = (uint8_t)plain[at - letters];
        return 1;
    }
    if (!unicode_escape(r, &cp)) return refuse(r, "invalid Unicode escape"), 0;
    if (!cp && (key || !(r->flags & TN_LEAN_ALLOW_NUL))) return refuse(r, "\\u0000 is not allowed"), 0;
    return tn_utf8_encode(cp, to);
}

/* Behind the first quote. Allocated; NULL: refused, or no memory. */
static char *read_text(reader *r, size_t *n, bool key) {
    size_t longest = 0; /* no character needs more bytes than it is written with */
    while (r->p + longest < r->end && r->p[longest] != '"') longest += r->p[longest] == '\\' ? 2 : 1;
    if (r->p + longest >= r->end) return refuse(r, "the text ends in a string"), NULL;
    char *text = malloc(longest + 4);
    if (!text) return no_memory(r), NULL;
    size_t len = 0;
    while (*r->p != '"') {
        size_t more = string_char(r, (uint8_t *)text + len, key);
        if (!more || r->p >= r->end) {
            if (more) refuse(r, "the text ends in a string");
            free(text);
            return NULL;
        }
        len += more;
    }
    r->p++;
    text[len] = 0;
    *n = len;
    return text;
}

static tn_lean_json *read_string(reader *r) {
    size_t n;
    char *text = read_text(r, &n, false);
    if (!text) return NULL;
    tn_lean_json *j = tn_lean_string(text, n);
    free(text);
    return j ? j : no_memory(r);
}

static size_t digits(const uint8_t *p, const uint8_t *end) {
    size_t n = 0;
    while (p + n < end && p[n] >= '0' && p[n] <= '9') n++;
    return n;
}

static tn_lean_json *read_number(reader *r) {
    const uint8_t *from = r->p, *p = from + (*from == '-');
    size_t n = digits(p, r->end);
    if (!n || (n > 1 && *p == '0')) return refuse(r, "invalid number");
    p += n;
    bool real = r->flags & TN_LEAN_INT_AS_REAL;
    if (p < r->end && *p == '.') {
        n = digits(p + 1, r->end);
        if (!n) return refuse(r, "invalid number");
        p += 1 + n;
        real = true;
    }
    if (p < r->end && (*p | 0x20) == 'e') {
        const uint8_t *e = p + 1;
        if (e < r->end && (*e == '+' || *e == '-')) e++;
        n = digits(e, r->end);
        if (!n) return refuse(r, "invalid number");
        p = e + n;
        real = true;
    }
    size_t len = (size_t)(p - from);
    char few[64], *text = len < sizeof few ? few : malloc(len + 1);
    if (!text) return no_memory(r);
    memcpy(text, from, len);
    text[len] = 0;
    char *point = memchr(text, '.', len);
    if (point) *point = *localeconv()->decimal_point;
    r->p = p;
    errno = 0;
    double d = real ? strtod(text, NULL) : 0;
    long long i = real ? 0 : strtoll(text, NULL, 10);
    bool fits = real ? isfinite(d) : errno == 0;
    if (text != few) free(text);
    if (!fits) return refuse(r, "number out of range");
    tn_lean_json *j = real ? tn_lean_real(d) : tn_lean_integer(i);
    return j ? j : no_memory(r);
}

static tn_lean_json *read_value(reader *r);

static tn_lean_json *read_array(reader *r) {
    tn_lean_json *a = tn_lean_array();
    if (!a) return no_memory(r);
    if (take(r, ']')) return a;
    do {
        tn_lean_json *v = read_value(r);
        if (!v || tn_lean_append(a, v)) {
            if (v) no_memory(r);
            goto bad;
        }
    } while (take(r, ','));
    if (take(r, ']')) return a;
    refuse(r, "']' or ',' expected");
bad:
    tn_lean_decref(a);
    return NULL;
}

/* One key with its value. */
static bool read_member(reader *r, tn_lean_json *o) {
    size_t n;
    if (!take(r, '"')) return refuse(r, "a key expected"), false;
    char *key = read_text(r, &n, true);
    if (!key) return false;
    bool ok = !(r->flags & TN_LEAN_REJECT_DUPLICATES) || !tn_lean_get(o, key);
    if (!ok) refuse(r, "a key twice in an object");
    if (ok && !take(r, ':')) {
        refuse(r, "':' expected");
        ok = false;
    }
    tn_lean_json *v = ok ? read_value(r) : NULL;
    ok = v && !tn_lean_set(o, key, v);
    if (v && !ok) no_memory(r);
    free(key);
    return ok;
}

static tn_lean_json *read_object(reader *r) {
    tn_lean_json *o = tn_lean_object();
    if (!o) return no_memory(r);
    if (take(r, '}')) return o;
    do {
        if (!read_member(r, o)) goto bad;
    } while (take(r, ','));
    if (take(r, '}')) return o;
    refuse(r, "'}' or ',' expected");
bad:
    tn_lean_decref(o);
    return NULL;
}

static bool word(reader *r, const char *w) {
    size_t n = strlen(w);
    if ((size_t)(r->end - r->p) < n || memcmp(r->p, w, n)) return false;
    uint8_t next = r->p + n < r->end ? r->p[n] | 0x20 : 0;
    if (next >= 'a' && next <= 'z') return false;
    r->p += n;
    return true;
}

static tn_lean_json *read_value(reader *r) {
    blanks(r);
    if (r->p == r->end) return refuse(r, "the text ends where a value is expected");
    if (r->depth == TN_LEAN_MAX_DEPTH) return refuse(r, "nested too deep");
    uint8_t c = *r->p;
    if (c == '{' || c == '[') {
        r->p++;
        r->depth++;
        tn_lean_json *j = c == '{' ? read_object(r) : read_array(r);
        r->depth--;
        return j;
    }
    if (c == '"') {
        r->p++;
        return read_string(r);
    }
    if (c == '-' || (c >= '0' && c <= '9')) return read_number(r);
    if (word(r, "true")) return tn_lean_true();
    if (word(r, "false")) return tn_lean_false();
    if (word(r, "null")) return tn_lean_null();
    return refuse(r, "a value expected");
}

tn_lean_json *tn_lean_load(const char *text, size_t n_bytes, size_t flags, tn_lean_error *err) {
    if (err) *err = (tn_lean_error){.line = 1};
    reader r = {.p = (const uint8_t *)text,
                .end = (const uint8_t *)text + n_bytes,
                .line = 1,
                .flags = flags,
                .err = err};
    blanks(&r);
    bool any = flags & TN_LEAN_DECODE_ANY;
    if (!any && (r.p == r.end || (*r.p != '{' && *r.p != '['))) return refuse(&r, "'[' or '{' expected");
    tn_lean_json *j = read_value(&r);
    blanks(&r);
    if (j && r.p != r.end) {
        refuse(&r, "the text goes on behind its value");
        tn_lean_decref(j);
        return NULL;
    }
    return j;
}
