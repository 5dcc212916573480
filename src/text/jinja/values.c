/* text/jinja/values.c - values as Python sees them: truth, equality, order, str() and repr(). */
#include "text/jinja/impl.h"

#include "text/utf8.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <utf8proc.h>

tn_jval tn_j_undefined(tn_jinja *j, const char *fmt, ...) {
    char text[200];
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    size_t len = n < 0 ? 0 : (size_t)n < sizeof text ? (size_t)n : sizeof text - 1;
    char *copy = tn_jalloc(j, len + 1, 1);
    memcpy(copy, text, len);
    return (tn_jval){.type = J_UNDEFINED, .u.what = copy};
}
tn_jval tn_j_none(void) { return (tn_jval){.type = J_NONE}; }
tn_jval tn_j_bool(bool b) { return (tn_jval){.type = J_BOOL, .u.b = b}; }
tn_jval tn_j_int(int64_t i) { return (tn_jval){.type = J_INT, .u.i = i}; }
tn_jval tn_j_float(double f) { return (tn_jval){.type = J_FLOAT, .u.f = f}; }
tn_jval tn_j_str(const tn_jstr *s) { return (tn_jval){.type = J_STRING, .u.s = s}; }
tn_jval tn_j_text(tn_jinja *j, const char *text) {
    return tn_j_str(tn_jstr_span(j, text, strlen(text), false));
}

tn_jval tn_j_list(tn_jinja *j, size_t cap, tn_jlist_kind kind) {
    tn_jlist *l = tn_jalloc(j, 1, sizeof *l);
    l->v = tn_jalloc(j, cap, sizeof *l->v);
    l->cap = cap;
    l->kind = kind;
    return (tn_jval){.type = J_LIST, .u.l = l};
}

void tn_j_push(tn_jinja *j, tn_jval list, tn_jval v) {
    tn_jlist *l = list.u.l;
    if (l->n == l->cap) {
        size_t cap = l->cap * 2 + 4;
        tn_jval *more = tn_jalloc(j, cap, sizeof *more);
        if (l->n) memcpy(more, l->v, l->n * sizeof *more);
        l->v = more;
        l->cap = cap;
    }
    l->v[l->n++] = v;
}

tn_jval tn_j_pair(tn_jinja *j, tn_jval a, tn_jval b) {
    tn_jval p = tn_j_list(j, 2, J_TUPLE);
    tn_j_push(j, p, a);
    tn_j_push(j, p, b);
    return p;
}

tn_jval tn_j_dict(tn_jinja *j, size_t cap) {
    tn_jdict *d = tn_jalloc(j, 1, sizeof *d);
    d->keys = tn_jalloc(j, cap, sizeof *d->keys);
    d->vals = tn_jalloc(j, cap, sizeof *d->vals);
    d->cap = cap;
    return (tn_jval){.type = J_DICT, .u.d = d};
}

static bool hashable(tn_jval key) {
    bool ok = key.type != J_DICT && (key.type != J_LIST || key.u.l->kind == J_TUPLE);
    for (size_t i = 0; ok && key.type == J_LIST && i < key.u.l->n; i++) {
        tn_jval part = key.u.l->v[i]; /* nested tuples are not searched */
        ok = part.type != J_DICT && (part.type != J_LIST || part.u.l->kind == J_TUPLE);
    }
    return ok;
}

const tn_jval *tn_j_get(tn_jinja *j, const tn_jdict *d, tn_jval key) {
    if (!hashable(key)) tn_jfail(j, TERN_E_INVALID, "%s cannot be a key", tn_j_type_name(key));
    tn_jsteps(j, d->n / 8);
    for (size_t i = 0; i < d->n; i++)
        if (tn_j_equal(j, d->keys[i], key)) return &d->vals[i];
    return NULL;
}

void tn_j_put(tn_jinja *j, tn_jval dict, tn_jval key, tn_jval v) {
    tn_jdict *d = dict.u.d;
    tn_jval *old = (tn_jval *)(uintptr_t)tn_j_get(j, d, key);
    if (old) {
        *old = v;
        return;
    }
    if (d->n == d->cap) {
        size_t cap = d->cap * 2 + 4;
        tn_jval *keys = tn_jalloc(j, cap, sizeof *keys), *vals = tn_jalloc(j, cap, sizeof *vals);
        if (d->n) {
            memcpy(keys, d->keys, d->n * sizeof *keys);
            memcpy(vals, d->vals, d->n * sizeof *vals);
        }
        d->keys = keys;
        d->vals = vals;
        d->cap = cap;
    }
    d->keys[d->n] = key;
    d->vals[d->n++] = v;
}

/* ---- questions ---- */

const char *tn_j_type_name(tn_jval v) {
    static const char *const names[] = {"undefined",   "none",       "a boolean", "an integer",
                                        "a float",     "a string",   "a list",    "a dict",
                                        "a namespace", "a function", "a loop"};
    static const char *const lists[] = {"a list", "a tuple", "a range", "a view of a dict", "a generator"};
    return v.type == J_LIST ? lists[v.u.l->kind] : names[v.type];
}

void tn_j_check_defined(tn_jinja *j, tn_jval v) {
    if (v.type == J_UNDEFINED) tn_jfail(j, TERN_E_INVALID, "%s", v.u.what);
}

bool tn_j_is_number(tn_jval v) { return v.type == J_INT || v.type == J_FLOAT || v.type == J_BOOL; }

double tn_j_as_float(tn_jval v) {
    return v.type == J_FLOAT ? v.u.f : v.type == J_BOOL ? (double)v.u.b : (double)v.u.i;
}

int64_t tn_j_as_int(tn_jinja *j, tn_jval v, const char *what) {
    tn_j_check_defined(j, v);
    if (v.type == J_BOOL) return v.u.b;
    if (v.type != J_INT) tn_jfail(j, TERN_E_INVALID, "%s is %s, not an integer", what, tn_j_type_name(v));
    return v.u.i;
}

const tn_jstr *tn_j_need_str(tn_jinja *j, tn_jval v, const char *who) {
    tn_j_check_defined(j, v);
    if (v.type != J_STRING) tn_jfail(j, TERN_E_INVALID, "%s wants a string, not %s", who, tn_j_type_name(v));
    return v.u.s;
}

bool tn_j_truth(tn_jinja *j, tn_jval v) {
    (void)j;
    switch (v.type) {
    case J_UNDEFINED:
    case J_NONE: return false;
    case J_BOOL: return v.u.b;
    case J_INT: return v.u.i != 0;
    case J_FLOAT: return v.u.f != 0;
    case J_STRING: return v.u.s->n != 0;
    case J_LIST: return v.u.l->n != 0 || v.u.l->kind == J_GENERATOR;
    case J_DICT: return v.u.d->n != 0;
    case J_NAMESPACE:
    case J_FUNC:
    case J_LOOP: break;
    }
    return true;
}

static bool dicts_equal(tn_jinja *j, const tn_jdict *a, const tn_jdict *b) {
    if (a->n != b->n) return false;
    for (size_t i = 0; i < a->n; i++) {
        tn_jsteps(j, 1);
        const tn_jval *v = tn_j_get(j, b, a->keys[i]);
        if (!v || !tn_j_equal(j, a->vals[i], *v)) return false;
    }
    return true;
}

bool tn_j_equal(tn_jinja *j, tn_jval a, tn_jval b) {
    if (tn_j_is_number(a) && tn_j_is_number(b)) {
        if (a.type != J_FLOAT && b.type != J_FLOAT)
            return (a.type == J_BOOL ? a.u.b : a.u.i) == (b.type == J_BOOL ? b.u.b : b.u.i);
        return tn_j_as_float(a) == tn_j_as_float(b);
    }
    if (a.type != b.type) return false;
    bool same = true;
    switch (a.type) {
    case J_STRING:
        if (a.u.s->n == b.u.s->n) tn_jsteps(j, a.u.s->n / 64);
        return tn_jstr_eq(a.u.s, b.u.s);
    case J_LIST:
        if (a.u.l == b.u.l) return true;
        if (a.u.l->kind == J_GENERATOR || a.u.l->n != b.u.l->n || a.u.l->kind != b.u.l->kind) return false;
        tn_jenter(j);
        tn_jsteps(j, 1); /* shared parts are compared again: one comparison per leaf of the tree */
        for (size_t i = 0; same && i < a.u.l->n; i++) {
            tn_jsteps(j, 1);
            same = tn_j_equal(j, a.u.l->v[i], b.u.l->v[i]);
        }
        tn_jleave(j);
        return same;
    case J_DICT:
        tn_jenter(j);
        tn_jsteps(j, 1);
        same = dicts_equal(j, a.u.d, b.u.d);
        tn_jleave(j);
        return same;
    case J_NAMESPACE: return a.u.d == b.u.d;
    case J_FUNC: return a.u.fn == b.u.fn;
    case J_LOOP: return a.u.loop == b.u.loop;
    default: return true; /* none and none, undefined and undefined */
    }
}

int tn_j_order(tn_jinja *j, tn_jval a, tn_jval b, const char *op) {
    tn_j_check_defined(j, a);
    tn_j_check_defined(j, b);
    if (tn_j_is_number(a) && tn_j_is_number(b)) {
        if (a.type != J_FLOAT && b.type != J_FLOAT) {
            int64_t x = tn_j_as_int(j, a, op), y = tn_j_as_int(j, b, op);
            return (x > y) - (x < y);
        }
        double x = tn_j_as_float(a), y = tn_j_as_float(b);
        return (x > y) - (x < y);
    }
    if (a.type == J_STRING && b.type == J_STRING) {
        tn_jsteps(j, (a.u.s->n < b.u.s->n ? a.u.s->n : b.u.s->n) / 64);
        return tn_jstr_cmp(a.u.s, b.u.s);
    }
    if (a.type == J_LIST && b.type == J_LIST && a.u.l->kind == b.u.l->kind && a.u.l->kind <= J_TUPLE) {
        const tn_jlist *x = a.u.l, *y = b.u.l;
        tn_jenter(j);
        tn_jsteps(j, 1);
        for (size_t i = 0; i < x->n && i < y->n; i++) {
            tn_jsteps(j, 1);
            if (tn_j_equal(j, x->v[i], y->v[i])) continue;
            int c = tn_j_order(j, x->v[i], y->v[i], op);
            tn_jleave(j);
            return c;
        }
        tn_jleave(j);
        return (x->n > y->n) - (x->n < y->n);
    }
    tn_jfail(j, TERN_E_INVALID, "'%s' does not compare %s with %s", op, tn_j_type_name(a), tn_j_type_name(b));
}

bool tn_j_contains(tn_jinja *j, tn_jval where, tn_jval what) {
    if (where.type == J_STRING) {
        const tn_jstr *s = tn_j_need_str(j, what, "'in' of a string");
        tn_jsteps(j, where.u.s->n / 64);
        return tn_jstr_find(where.u.s, s, 0) != SIZE_MAX;
    }
    if (where.type == J_DICT) return tn_j_get(j, where.u.d, what) != NULL;
    if (where.type == J_UNDEFINED) return false;
    if (where.type != J_LIST)
        tn_jfail(j, TERN_E_INVALID, "'in' wants a string, list or dict, not %s", tn_j_type_name(where));
    const tn_jlist *l = tn_j_iter(j, where);
    for (size_t i = 0; i < l->n; i++)
        if (tn_j_equal(j, l->v[i], what)) return true;
    return false;
}

int64_t tn_j_length(tn_jinja *j, tn_jval v) {
    switch (v.type) {
    case J_STRING: tn_jsteps(j, v.u.s->n / 16); return (int64_t)tn_jstr_length(v.u.s);
    case J_LIST:
        if (v.u.l->kind == J_GENERATOR) tn_jfail(j, TERN_E_INVALID, "a generator has no length");
        return (int64_t)v.u.l->n;
    case J_DICT: return (int64_t)v.u.d->n;
    case J_UNDEFINED: return 0;
    case J_LOOP: return (int64_t)v.u.loop->items->n;
    default: tn_jfail(j, TERN_E_INVALID, "%s has no length", tn_j_type_name(v));
    }
}

tn_jlist *tn_j_iter(tn_jinja *j, tn_jval v) {
    /* the caller goes through all items; filters, tests and methods do not count them again */
    if (v.type == J_LIST || v.type == J_DICT) tn_jsteps(j, v.type == J_LIST ? v.u.l->n : v.u.d->n);
    if (v.type == J_LIST && v.u.l->kind != J_GENERATOR) return v.u.l;
    if (v.type == J_LIST) { /* once */
        tn_jlist *all = tn_jalloc(j, 1, sizeof *all);
        *all = *v.u.l;
        *v.u.l = (tn_jlist){.kind = J_GENERATOR};
        return all;
    }
    tn_jval out = tn_j_list(j, 8, J_PLAIN);
    if (v.type == J_DICT) {
        for (size_t i = 0; i < v.u.d->n; i++) tn_j_push(j, out, v.u.d->keys[i]);
    } else if (v.type == J_STRING) {
        tn_jsteps(j, v.u.s->n);
        for (size_t i = 0, len; i < v.u.s->n; i += len) {
            uint32_t cp;
            len = tn_jstr_char(v.u.s, i, &cp);
            tn_j_push(j, out, tn_j_str(tn_jstr_sub(j, v.u.s, i, i + len)));
        }
    } else if (v.type != J_UNDEFINED) {
        tn_jfail(j, TERN_E_INVALID, "%s cannot be looped over", tn_j_type_name(v));
    }
    return out.u.l;
}

/* ---- str and repr ---- */

/* Prints a float as Python does: the shortest text that reads back the same. */
static void float_text(double f, char buf[32]) {
    if (isnan(f) || isinf(f)) {
        strcpy(buf, isnan(f) ? "nan" : f < 0 ? "-inf" : "inf");
        return;
    }
    char digits[40];
    int prec = 1;
    for (; prec <= 17; prec++) {
        snprintf(digits, sizeof digits, "%.*e", prec - 1, f);
        if (strtod(digits, NULL) == f) break;
    }
    char *e = strchr(digits, 'e');
    int exp = (int)strtol(e + 1, NULL, 10);
    if (exp < -4 ||
        exp >= 16) { /* the digits unchanged; like C, Python writes at least two digits of exponent */
        snprintf(buf, 32, "%.*s%s", (int)(e - digits), digits, e);
        return;
    }
    int decimals = prec - 1 - exp;
    snprintf(buf, 32, "%.*f", decimals > 0 ? decimals : 1, f);
}

static bool printable(uint32_t cp) {
    if (cp >= 0xdc80 && cp <= 0xdcff) return true; /* an invalid byte stays unchanged */
    utf8proc_category_t c = utf8proc_category((utf8proc_int32_t)cp);
    return !(c == UTF8PROC_CATEGORY_CC || c == UTF8PROC_CATEGORY_CF || c == UTF8PROC_CATEGORY_CS ||
             c == UTF8PROC_CATEGORY_CO || c == UTF8PROC_CATEGORY_CN || c == UTF8PROC_CATEGORY_ZL ||
             c == UTF8PROC_CATEGORY_ZP || (c == UTF8PROC_CATEGORY_ZS && cp != ' '));
}

static void repr_str(tn_jinja *j, tn_jbuf *b, const tn_jstr *s) {
    bool single = memchr(s->p, '\'', s->n) && !memchr(s->p, '"', s->n);
    const char *quote = single ? "\"" : "'";
    size_t hint = 0;
    tn_jsteps(j, s->n);
    tn_jbuf_text(j, b, quote);
    for (size_t i = 0, len; i < s->n; i += len) {
        uint32_t cp;
        bool content = tn_jstr_content(s, i, &hint);
        len = tn_jstr_char(s, i, &cp);
        char esc[16];
        if (cp == '\\' || cp == (uint32_t)(uint8_t)*quote) snprintf(esc, sizeof esc, "\\%c", (int)cp);
        else if (cp == '\n') strcpy(esc, "\\n");
        else if (cp == '\r') strcpy(esc, "\\r");
        else if (cp == '\t') strcpy(esc, "\\t");
        else if (printable(cp)) {
            tn_jbuf_bytes(j, b, s->p + i, len, content);
            continue;
        } else if (cp < 0x100) snprintf(esc, sizeof esc, "\\x%02x", cp);
        else if (cp < 0x10000) snprintf(esc, sizeof esc, "\\u%04x", cp);
        else snprintf(esc, sizeof esc, "\\U%08x", cp);
        tn_jbuf_bytes(j, b, esc, strlen(esc), content);
    }
    tn_jbuf_text(j, b, quote);
}

static void repr_list(tn_jinja *j, tn_jbuf *b, const tn_jlist *l) {
    bool tuple = l->kind == J_TUPLE;
    if (!tuple && l->kind != J_PLAIN)
        tn_jfail(j, TERN_E_UNSUPPORTED, "printing %s is not supported",
                 tn_j_type_name((tn_jval){.type = J_LIST, .u.l = (tn_jlist *)(uintptr_t)l}));
    tn_jbuf_text(j, b, tuple ? "(" : "[");
    for (size_t i = 0; i < l->n; i++) {
        if (i) tn_jbuf_text(j, b, ", ");
        tn_j_repr(j, b, l->v[i]);
    }
    tn_jbuf_text(j, b, tuple ? (l->n == 1 ? ",)" : ")") : "]");
}

static void repr_dict(tn_jinja *j, tn_jbuf *b, const tn_jdict *d) {
    tn_jbuf_text(j, b, "{");
    for (size_t i = 0; i < d->n; i++) {
        if (i) tn_jbuf_text(j, b, ", ");
        tn_j_repr(j, b, d->keys[i]);
        tn_jbuf_text(j, b, ": ");
        tn_j_repr(j, b, d->vals[i]);
    }
    tn_jbuf_text(j, b, "}");
}

void tn_j_repr(tn_jinja *j, tn_jbuf *b, tn_jval v) {
    char num[32];
    tn_jenter(j);
    switch (v.type) {
    case J_UNDEFINED: tn_jbuf_text(j, b, "Undefined"); break;
    case J_NONE: tn_jbuf_text(j, b, "None"); break;
    case J_BOOL: tn_jbuf_text(j, b, v.u.b ? "True" : "False"); break;
    case J_INT:
        snprintf(num, sizeof num, "%lld", (long long)v.u.i);
        tn_jbuf_text(j, b, num);
        break;
    case J_FLOAT:
        float_text(v.u.f, num);
        tn_jbuf_text(j, b, num);
        break;
    case J_STRING: repr_str(j, b, v.u.s); break;
    case J_LIST: repr_list(j, b, v.u.l); break;
    case J_DICT: repr_dict(j, b, v.u.d); break;
    case J_NAMESPACE:
        tn_jbuf_text(j, b, "<Namespace ");
        repr_dict(j, b, v.u.d);
        tn_jbuf_text(j, b, ">");
        break;
    case J_FUNC:
    case J_LOOP: tn_jfail(j, TERN_E_UNSUPPORTED, "printing %s is not supported", tn_j_type_name(v));
    }
    tn_jleave(j);
}

const tn_jstr *tn_j_to_str(tn_jinja *j, tn_jval v) {
    if (v.type == J_STRING) return v.u.s;
    tn_jbuf b = {0};
    if (v.type != J_UNDEFINED) tn_j_repr(j, &b, v);
    return tn_jbuf_take(j, &b);
}
