/* text/jinja/format.c - strings cut into lists, and values put into strings. */
#include "text/jinja/impl.h"

#include <stdio.h>

tn_jval tn_jstr_split(tn_jinja *j, const tn_jstr *s, const tn_jstr *sep, int64_t max, bool right) {
    tn_jval list = tn_j_list(j, 4, J_PLAIN);
    tn_jsteps(j, s->n / 16);
    if (sep && !sep->n) tn_jfail(j, TERN_E_INVALID, "split by an empty string");
    if (right && max >= 0) { /* from the end, at most max cuts */
        tn_jval back = tn_j_list(j, 4, J_PLAIN);
        const tn_jstr *rest = sep ? s : tn_jstr_strip(j, s, NULL, TN_J_RIGHT);
        size_t end = rest->n, at;
        if (!sep) tn_jfail(j, TERN_E_UNSUPPORTED, "rsplit at white space with a limit is not supported");
        for (; max && (at = tn_jstr_rfind(j, s, sep, end)) != SIZE_MAX; max--, end = at)
            tn_j_push(j, back, tn_j_str(tn_jstr_sub(j, s, at + sep->n, end)));
        tn_j_push(j, list, tn_j_str(tn_jstr_sub(j, s, 0, end)));
        for (size_t i = back.u.l->n; i-- > 0;) tn_j_push(j, list, back.u.l->v[i]);
        return list;
    }
    size_t from = 0;
    if (sep) {
        for (size_t at; max && (at = tn_jstr_find(s, sep, from)) != SIZE_MAX; max--) {
            tn_j_push(j, list, tn_j_str(tn_jstr_sub(j, s, from, at)));
            from = at + sep->n;
        }
        tn_j_push(j, list, tn_j_str(tn_jstr_sub(j, s, from, s->n)));
        return list;
    }
    for (;;) { /* at runs of white space */
        uint32_t cp = 0;
        size_t len;
        while (from < s->n && (len = tn_jstr_char(s, from, &cp), tn_j_is_space(cp))) from += len;
        if (from == s->n) return list;
        if (!max) {
            tn_j_push(j, list, tn_j_str(tn_jstr_sub(j, s, from, s->n)));
            return list;
        }
        size_t to = from;
        while (to < s->n && (len = tn_jstr_char(s, to, &cp), !tn_j_is_space(cp))) to += len;
        tn_j_push(j, list, tn_j_str(tn_jstr_sub(j, s, from, to)));
        from = to;
        max--;
    }
}

tn_jval tn_jstr_lines(tn_jinja *j, const tn_jstr *s, bool keep_ends) {
    tn_jval list = tn_j_list(j, 8, J_PLAIN);
    tn_jsteps(j, s->n / 16);
    for (size_t from = 0, at = 0; at < s->n;) {
        uint32_t cp;
        size_t len = tn_jstr_char(s, at, &cp), end = at;
        at += len;
        bool breaks = (cp >= 10 && cp <= 13) || (cp >= 0x1c && cp <= 0x1e) || cp == 0x85 || cp == 0x2028 ||
                      cp == 0x2029;
        if (breaks && cp == '\r' && at < s->n && s->p[at] == '\n') at++;
        if (breaks) tn_j_push(j, list, tn_j_str(tn_jstr_sub(j, s, from, keep_ends ? at : end)));
        else if (at == s->n) tn_j_push(j, list, tn_j_str(tn_jstr_sub(j, s, from, at)));
        if (breaks) from = at;
    }
    return list;
}

/* Refuses a width or precision that the C library would spend seconds on. */
static void check_width(tn_jinja *j, const char *spec, size_t n) {
    enum { WIDEST = 400 };
    for (size_t i = 0, width = 0; i < n; i++) {
        width = spec[i] >= '0' && spec[i] <= '9' ? 10 * width + (size_t)(spec[i] - '0') : 0;
        if (width > WIDEST) tn_jfail(j, TERN_E_LIMIT, "a format wider than %d", WIDEST);
    }
}

static void put_number(tn_jinja *j, tn_jbuf *b, const char *num, size_t cap, int printed) {
    if (printed < 0 || (size_t)printed >= cap) tn_jfail(j, TERN_E_LIMIT, "a format too wide");
    tn_jbuf_text(j, b, num);
}

/* Formats as Python's "%s" % (...) does: s, r, d, i, x, X, f, e, g and %%, with width and precision for
 * numbers. */
tn_jval tn_j_format(tn_jinja *j, const tn_jstr *f, const tn_jlist *args) {
    tn_jbuf b = {0};
    size_t used = 0;
    for (size_t i = 0; i < f->n;) {
        const char *percent = memchr(f->p + i, '%', f->n - i);
        size_t at = percent ? (size_t)(percent - f->p) : f->n;
        tn_jbuf_sub(j, &b, f, i, at);
        if (at == f->n) break;
        char spec[24] = "%", num[420];
        size_t n = 1;
        for (i = at + 1; i < f->n && n < 12 && f->p[i] && strchr("-+ 0123456789.", f->p[i]); i++)
            spec[n++] = f->p[i];
        char kind = i < f->n ? f->p[i++] : 0;
        check_width(j, spec, n);
        if (kind == '%' && n == 1) {
            tn_jbuf_text(j, &b, "%");
            continue;
        }
        if (used == args->n) tn_jfail(j, TERN_E_INVALID, "too few values for the format");
        tn_jval v = args->v[used++];
        if ((kind == 's' || kind == 'r') && n == 1) {
            if (kind == 's') tn_jbuf_str(j, &b, tn_j_to_str(j, v));
            else tn_j_repr(j, &b, v);
        } else if (kind && strchr("dixX", kind)) {
            if (v.type == J_FLOAT && !(v.u.f > -9e18 && v.u.f < 9e18))
                tn_jfail(j, TERN_E_LIMIT, "an integer beyond 64 bits");
            int64_t x = v.type == J_FLOAT ? (int64_t)v.u.f : tn_j_as_int(j, v, "a number to format");
            if ((kind == 'x' || kind == 'X') && x < 0)
                tn_jfail(j, TERN_E_UNSUPPORTED, "negative hexadecimal numbers");
            snprintf(spec + n, sizeof spec - n, "ll%c", kind);
            put_number(j, &b, num, sizeof num, snprintf(num, sizeof num, spec, (long long)x));
        } else if (kind && strchr("feg", kind) && tn_j_is_number(v)) {
            snprintf(spec + n, sizeof spec - n, "%c", kind);
            put_number(j, &b, num, sizeof num, snprintf(num, sizeof num, spec, tn_j_as_float(v)));
        } else {
            tn_jfail(j, TERN_E_UNSUPPORTED, "the format '%s%.1s' is not supported", spec, kind ? &kind : "");
        }
    }
    if (used < args->n) tn_jfail(j, TERN_E_INVALID, "too many values for the format");
    return tn_j_str(tn_jbuf_take(j, &b));
}
