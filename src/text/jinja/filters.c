/* text/jinja/filters.c - the filters, in the order of jinja2's documentation. */
#include "text/jinja/impl.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

typedef const tn_jval *const *params;
typedef tn_jval (*filter_fn)(tn_jinja *j, tn_jval v, const tn_jargs *a, params p);

static bool flag(tn_jinja *j, const tn_jval *v) { return v && tn_j_truth(j, *v); }
static const tn_jstr *text(tn_jinja *j, tn_jval v) { return tn_j_to_str(j, v); }
static tn_jval undefined_first(tn_jinja *j) {
    return tn_j_undefined(j, "an empty sequence has no such item");
}

/* ---- text ---- */

static tn_jval f_upper(tn_jinja *j, tn_jval v, const tn_jargs *a, params p) {
    (void)a, (void)p;
    return tn_j_str(tn_jstr_case(j, text(j, v), J_UPPER));
}
static tn_jval f_lower(tn_jinja *j, tn_jval v, const tn_jargs *a, params p) {
    (void)a, (void)p;
    return tn_j_str(tn_jstr_case(j, text(j, v), J_LOWER));
}
static tn_jval f_title(tn_jinja *j, tn_jval v, const tn_jargs *a, params p) {
    (void)a, (void)p;
    return tn_j_str(tn_jstr_case(j, text(j, v), J_TITLE_FILTER));
}
static tn_jval f_capitalize(tn_jinja *j, tn_jval v, const tn_jargs *a, params p) {
    (void)a, (void)p;
    return tn_j_str(tn_jstr_case(j, text(j, v), J_CAPITAL));
}
static tn_jval f_string(tn_jinja *j, tn_jval v, const tn_jargs *a, params p) {
    (void)a, (void)p;
    return tn_j_str(text(j, v));
}

static tn_jval f_safe(tn_jinja *j, tn_jval v, const tn_jargs *a, params p) {
    (void)a, (void)p;
    tn_jstr *s = tn_jalloc(j, 1, sizeof *s);
    *s = *text(j, v);
    s->markup = true;
    return tn_j_str(s);
}

static tn_jval f_trim(tn_jinja *j, tn_jval v, const tn_jargs *a, params p) {
    (void)a;
    const tn_jstr *chars = p[0] && p[0]->type != J_NONE ? tn_j_need_str(j, *p[0], "trim") : NULL;
    return tn_j_str(tn_jstr_strip(j, text(j, v), chars, TN_J_LEFT | TN_J_RIGHT));
}

static tn_jval f_replace(tn_jinja *j, tn_jval v, const tn_jargs *a, params p) {
    (void)a;
    if (!p[0] || !p[1]) tn_jfail(j, TERN_E_INVALID, "replace needs a text and its replacement");
    int64_t count = p[2] && p[2]->type != J_NONE ? tn_j_as_int(j, *p[2], "replace's count") : -1;
    return tn_j_str(tn_jstr_replace(j, text(j, v), text(j, *p[0]), text(j, *p[1]), count));
}

/* A width or a length; sums of two do not overflow. */
static int64_t small_int(tn_jinja *j, tn_jval v, const char *what) {
    int64_t i = tn_j_as_int(j, v, what);
    if (i > INT32_MAX || i < -INT32_MAX) tn_jfail(j, TERN_E_LIMIT, "%s is too large", what);
    tn_jsteps(j, i > 0 ? (uint64_t)i / 16 : 0);
    return i;
}

static tn_jval f_indent(tn_jinja *j, tn_jval v, const tn_jargs *a, params p) {
    (void)a;
    tn_jbuf pad = {0}, b = {0};
    if (p[0] && p[0]->type == J_STRING) tn_jbuf_str(j, &pad, p[0]->u.s);
    else
        for (int64_t n = p[0] ? small_int(j, *p[0], "indent's width") : 4; n > 0; n--)
            tn_jbuf_text(j, &pad, " ");
    const tn_jstr *in = tn_jbuf_take(j, &pad);
    bool first = flag(j, p[1]), blank = flag(j, p[2]);
    /* jinja2 appends a newline before it cuts, so that the last line may be empty */
    tn_jbuf_str(j, &b, tn_j_need_str(j, v, "indent"));
    tn_jbuf_text(j, &b, "\n");
    const tn_jlist *lines = tn_jstr_lines(j, tn_jbuf_take(j, &b), false).u.l;
    for (size_t i = 0; i < lines->n; i++) {
        const tn_jstr *line = lines->v[i].u.s;
        if (i) tn_jbuf_text(j, &b, "\n");
        if (i ? line->n || blank : first) tn_jbuf_str(j, &b, in);
        tn_jbuf_str(j, &b, line);
    }
    return tn_j_str(tn_jbuf_take(j, &b));
}

static tn_jval f_center(tn_jinja *j, tn_jval v, const tn_jargs *a, params p) {
    (void)a;
    const tn_jstr *s = text(j, v);
    tn_jsteps(j, s->n / 16);
    int64_t width = p[0] ? small_int(j, *p[0], "center's width") : 80,
            pad = width - (int64_t)tn_jstr_length(s);
    int64_t left = pad > 0 ? pad / 2 + (pad & width & 1) : 0;
    tn_jbuf b = {0};
    for (int64_t i = 0; i < left; i++) tn_jbuf_text(j, &b, " ");
    tn_jbuf_str(j, &b, s);
    for (int64_t i = left; i < pad; i++) tn_jbuf_text(j, &b, " ");
    return tn_j_str(tn_jbuf_take(j, &b));
}

static tn_jval f_truncate(tn_jinja *j, tn_jval v, const tn_jargs *a, params p) {
    (void)a;
    if (v.type == J_UNDEFINED) return v;
    const tn_jstr *s = tn_j_need_str(j, v, "truncate"),
                  *end = p[2] ? text(j, *p[2]) : tn_jstr_span(j, "...", 3, false);
    int64_t length = p[0] ? small_int(j, *p[0], "truncate's length") : 255;
    int64_t leeway = p[3] && p[3]->type != J_NONE ? small_int(j, *p[3], "truncate's leeway") : 5;
    tn_jsteps(j, (s->n + end->n) / 16);
    int64_t zero = 0, stop = length - (int64_t)tn_jstr_length(end);
    if (stop < 0) tn_jfail(j, TERN_E_INVALID, "truncate to fewer characters than its ending has");
    if ((int64_t)tn_jstr_length(s) <= length + leeway) return tn_j_str(s);
    const tn_jstr *head = tn_jstr_slice(j, s, &zero, &stop, 1);
    size_t n = head->n;
    if (!flag(j, p[1])) { /* not within a word */
        while (n && head->p[n - 1] != ' ') n--;
        n = n ? n - 1 : head->n;
    }
    tn_jbuf b = {0};
    tn_jbuf_sub(j, &b, head, 0, n);
    tn_jbuf_str(j, &b, end);
    return tn_j_str(tn_jbuf_take(j, &b));
}

static tn_jval f_wordcount(tn_jinja *j, tn_jval v, const tn_jargs *a, params p) {
    (void)a, (void)p;
    const tn_jstr *s = text(j, v);
    int64_t n = 0;
    bool in = false;
    tn_jsteps(j, s->n / 16);
    for (size_t i = 0; i < s->n;) {
        uint32_t cp;
        i += tn_jstr_char(s, i, &cp);
        bool word = cp == '_' || cp >= 0x80 || (cp >= '0' && cp <= '9') || (cp >= 'a' && cp <= 'z') ||
                    (cp >= 'A' && cp <= 'Z');
        n += word && !in;
        in = word;
    }
    return tn_j_int(n);
}

static tn_jval f_format(tn_jinja *j, tn_jval v, const tn_jargs *a, params p) {
    (void)p;
    if (a->n_named) tn_jfail(j, TERN_E_UNSUPPORTED, "format with named arguments is not supported");
    tn_jlist args = {.v = a->pos, .n = a->n_pos, .kind = J_TUPLE};
    return tn_j_format(j, text(j, v), &args);
}

static tn_jval f_tojson(tn_jinja *j, tn_jval v, const tn_jargs *a, params p) {
    (void)p;
    return tn_j_str(tn_j_to_json(j, v, a));
}

static tn_jval f_join(tn_jinja *j, tn_jval v, const tn_jargs *a, params p) {
    (void)a;
    tn_jbuf b = {0};
    const tn_jlist *l = tn_j_iter(j, v);
    for (size_t i = 0; i < l->n; i++) {
        if (i && p[0]) tn_jbuf_str(j, &b, text(j, *p[0]));
        tn_jbuf_str(j, &b, text(j, p[1] && p[1]->type != J_NONE ? tn_j_path(j, l->v[i], *p[1]) : l->v[i]));
    }
    return tn_j_str(tn_jbuf_take(j, &b));
}

/* ---- numbers ---- */

/* Reads a whole string as a number. Returns false if it is not one. */
static bool parse_float(const tn_jstr *s, double *f) {
    char buf[64], *end;
    size_t n = 0;
    for (size_t i = 0; i < s->n; i++) {
        if (s->p[i] == '_' && i && i + 1 < s->n) continue;
        if (n + 1 == sizeof buf || s->p[i] == 'x' || s->p[i] == 'X' || s->p[i] == 'p') return false;
        buf[n++] = s->p[i];
    }
    buf[n] = 0;
    *f = strtod(buf, &end);
    return end != buf && !*end;
}

static tn_jval from_float(tn_jinja *j, double f, tn_jval otherwise) {
    if (isnan(f) || isinf(f)) return otherwise;
    if (!(fabs(f) < 9e18)) tn_jfail(j, TERN_E_LIMIT, "an integer beyond 64 bits");
    return tn_j_int((int64_t)f);
}

static tn_jval f_int(tn_jinja *j, tn_jval v, const tn_jargs *a, params p) {
    (void)a;
    tn_jval otherwise = p[0] ? *p[0] : tn_j_int(0);
    int64_t base = p[1] ? tn_j_as_int(j, *p[1], "int's base") : 10;
    tn_j_check_defined(j, v);
    if (v.type == J_INT) return v;
    if (v.type == J_BOOL) return tn_j_int(v.u.b);
    if (v.type == J_FLOAT) return from_float(j, v.u.f, otherwise);
    if (v.type != J_STRING) return otherwise;
    char buf[80], *end;
    const tn_jstr *s = tn_jstr_strip(j, v.u.s, NULL, TN_J_LEFT | TN_J_RIGHT);
    if (!s->n || s->n >= sizeof buf || base < 2 || base > 36) return otherwise;
    memcpy(buf, s->p, s->n);
    buf[s->n] = 0;
    long long i = strtoll(buf, &end, (int)base);
    if (!*end) return tn_j_int(i);
    double f;
    return base == 10 && parse_float(s, &f) ? from_float(j, f, otherwise) : otherwise;
}

static tn_jval f_float(tn_jinja *j, tn_jval v, const tn_jargs *a, params p) {
    (void)a;
    double f;
    tn_j_check_defined(j, v);
    if (tn_j_is_number(v)) return tn_j_float(tn_j_as_float(v));
    if (v.type == J_STRING && parse_float(tn_jstr_strip(j, v.u.s, NULL, TN_J_LEFT | TN_J_RIGHT), &f))
        return tn_j_float(f);
    return p[0] ? *p[0] : tn_j_float(0);
}

static tn_jval f_abs(tn_jinja *j, tn_jval v, const tn_jargs *a, params p) {
    (void)a, (void)p;
    tn_j_check_defined(j, v);
    if (v.type == J_FLOAT) return tn_j_float(fabs(v.u.f));
    int64_t i = tn_j_as_int(j, v, "abs's number");
    return i < 0 ? tn_j_binary(j, '-', tn_j_int(0), tn_j_int(i)) : tn_j_int(i);
}

static tn_jval f_round(tn_jinja *j, tn_jval v, const tn_jargs *a, params p) {
    (void)a;
    int64_t digits = p[0] ? tn_j_as_int(j, *p[0], "round's precision") : 0;
    const tn_jstr *how = p[1] ? tn_j_need_str(j, *p[1], "round") : NULL;
    bool up = how && tn_jstr_is(how, "ceil"), down = how && tn_jstr_is(how, "floor");
    if (how && !up && !down && !tn_jstr_is(how, "common"))
        tn_jfail(j, TERN_E_INVALID, "round knows common, ceil and floor");
    if (!tn_j_is_number(v)) tn_jfail(j, TERN_E_INVALID, "round wants a number, not %s", tn_j_type_name(v));
    if (!up && !down && v.type != J_FLOAT && digits >= 0)
        return tn_j_int(tn_j_as_int(j, v, "a number")); /* Python rounds integers to integers */
    if (digits < 0 || digits > 15) tn_jfail(j, TERN_E_UNSUPPORTED, "round to %lld digits", (long long)digits);
    double f = tn_j_as_float(v), scale = pow(10, (double)digits);
    if (up || down) { /* Python's are integers in between: never a negative zero */
        double whole = up ? ceil(f * scale) : floor(f * scale);
        return tn_j_float(whole == 0 ? 0 : whole / scale);
    }
    char buf[400]; /* C prints halves to even and exactly, as Python rounds */
    snprintf(buf, sizeof buf, "%.*f", (int)digits, f);
    return tn_j_float(strtod(buf, NULL));
}

/* ---- sequences ---- */

static tn_jval f_default(tn_jinja *j, tn_jval v, const tn_jargs *a, params p) {
    (void)a;
    bool use = v.type == J_UNDEFINED || (flag(j, p[1]) && !tn_j_truth(j, v));
    return !use ? v : p[0] ? *p[0] : tn_j_text(j, "");
}

static tn_jval f_length(tn_jinja *j, tn_jval v, const tn_jargs *a, params p) {
    (void)a, (void)p;
    return tn_j_int(tn_j_length(j, v));
}

static tn_jval f_first(tn_jinja *j, tn_jval v, const tn_jargs *a, params p) {
    (void)a, (void)p;
    const tn_jlist *l = tn_j_iter(j, v);
    return l->n ? l->v[0] : undefined_first(j);
}
static tn_jval f_last(tn_jinja *j, tn_jval v, const tn_jargs *a, params p) {
    (void)a, (void)p;
    if (v.type == J_LIST && v.u.l->kind == J_GENERATOR) tn_jfail(j, TERN_E_INVALID, "last of a generator");
    const tn_jlist *l = tn_j_iter(j, v);
    return l->n ? l->v[l->n - 1] : undefined_first(j);
}

static tn_jval copy_list(tn_jinja *j, const tn_jlist *l, tn_jlist_kind kind) {
    tn_jval out = tn_j_list(j, l->n, kind);
    tn_jsteps(j, l->n / 4);
    if (l->n) memcpy(out.u.l->v, l->v, l->n * sizeof *l->v);
    out.u.l->n = l->n;
    return out;
}

static tn_jval f_list(tn_jinja *j, tn_jval v, const tn_jargs *a, params p) {
    (void)a, (void)p;
    return copy_list(j, tn_j_iter(j, v), J_PLAIN);
}

static tn_jval f_reverse(tn_jinja *j, tn_jval v, const tn_jargs *a, params p) {
    (void)a, (void)p;
    if (v.type == J_STRING) return tn_j_str(tn_jstr_slice(j, v.u.s, NULL, NULL, -1));
    if (v.type == J_LIST && v.u.l->kind == J_GENERATOR) tn_jfail(j, TERN_E_INVALID, "reverse of a generator");
    tn_jval out = copy_list(j, tn_j_iter(j, v), J_GENERATOR);
    tn_jlist *l = out.u.l;
    for (size_t i = 0; i < l->n / 2; i++) {
        tn_jval t = l->v[i];
        l->v[i] = l->v[l->n - 1 - i];
        l->v[l->n - 1 - i] = t;
    }
    return out;
}

static tn_jval f_items(tn_jinja *j, tn_jval v, const tn_jargs *a, params p) {
    (void)a, (void)p;
    tn_jval out = tn_j_list(j, 8, J_GENERATOR);
    if (v.type == J_UNDEFINED) return out;
    if (v.type != J_DICT) tn_jfail(j, TERN_E_INVALID, "items of %s", tn_j_type_name(v));
    for (size_t i = 0; i < v.u.d->n; i++) tn_j_push(j, out, tn_j_pair(j, v.u.d->keys[i], v.u.d->vals[i]));
    return out;
}

/* Returns the sort key of an item: an attribute, case-folded unless told otherwise. */
static tn_jval sort_key(tn_jinja *j, tn_jval v, const tn_jval *attribute, bool with_case) {
    if (attribute && attribute->type == J_STRING && memchr(attribute->u.s->p, ',', attribute->u.s->n))
        tn_jfail(j, TERN_E_UNSUPPORTED, "several attributes at once are not supported");
    if (attribute && attribute->type != J_NONE) v = tn_j_path(j, v, *attribute);
    return v.type == J_STRING && !with_case ? tn_j_str(tn_jstr_case(j, v.u.s, J_LOWER)) : v;
}

/* Sorts by keys: a stable merge sort, so no input is slow. */
static void sort_by(tn_jinja *j, tn_jval *v, tn_jval *key, size_t n, bool reverse, bool equal_first) {
    tn_jval *v2 = tn_jalloc(j, n, sizeof *v2), *key2 = tn_jalloc(j, n, sizeof *key2);
    for (size_t width = 1; width < n; width *= 2) {
        tn_jsteps(j, n);
        for (size_t at = 0; at < n; at += 2 * width) {
            size_t x = at, x_end = at + width < n ? at + width : n, y = x_end,
                   y_end = at + 2 * width < n ? at + 2 * width : n;
            for (size_t k = at; k < y_end; k++) {
                bool right = x == x_end;
                if (!right && y < y_end && !(equal_first && tn_j_equal(j, key[y], key[x]))) {
                    int c = tn_j_order(j, key[y], key[x], "sort");
                    right = reverse ? c > 0 : c < 0;
                }
                v2[k] = right ? v[y] : v[x];
                key2[k] = right ? key[y++] : key[x++];
            }
        }
        memcpy(v, v2, n * sizeof *v);
        memcpy(key, key2, n * sizeof *key);
    }
}

static tn_jval sorted(tn_jinja *j, tn_jval v, const tn_jval *attribute, bool with_case, bool reverse,
                      bool equal_first) {
    tn_jval out = copy_list(j, tn_j_iter(j, v), J_PLAIN);
    tn_jlist *l = out.u.l;
    tn_jval *keys = tn_jalloc(j, l->n, sizeof *keys);
    for (size_t i = 0; i < l->n; i++) keys[i] = sort_key(j, l->v[i], attribute, with_case);
    sort_by(j, l->v, keys, l->n, reverse, equal_first);
    return out;
}

static tn_jval f_sort(tn_jinja *j, tn_jval v, const tn_jargs *a, params p) {
    (void)a;
    /* keys are compared as lists of one: items may be equal without being ordered */
    return sorted(j, v, p[2], flag(j, p[1]), flag(j, p[0]), true);
}

static tn_jval f_dictsort(tn_jinja *j, tn_jval v, const tn_jargs *a, params p) {
    if (v.type != J_DICT) tn_jfail(j, TERN_E_INVALID, "dictsort of %s", tn_j_type_name(v));
    bool by_value = p[1] && tn_jstr_is(tn_j_need_str(j, *p[1], "dictsort"), "value");
    if (p[1] && !by_value && !tn_jstr_is(p[1]->u.s, "key"))
        tn_jfail(j, TERN_E_INVALID, "dictsort is by key or value");
    tn_jval at = tn_j_int(by_value);
    return sorted(j, f_items(j, v, a, p), &at, flag(j, p[0]), flag(j, p[2]), false);
}

static tn_jval f_unique(tn_jinja *j, tn_jval v, const tn_jargs *a, params p) {
    (void)a;
    const tn_jlist *l = tn_j_iter(j, v);
    tn_jval out = tn_j_list(j, 8, J_GENERATOR), seen = tn_j_dict(j, 8);
    for (size_t i = 0; i < l->n; i++) {
        tn_jval key = sort_key(j, l->v[i], p[1], flag(j, p[0]));
        if (tn_j_get(j, seen.u.d, key)) continue;
        tn_j_put(j, seen, key, tn_j_none());
        tn_j_push(j, out, l->v[i]);
    }
    return out;
}

static tn_jval extreme(tn_jinja *j, tn_jval v, params p, int sign) {
    const tn_jlist *l = tn_j_iter(j, v);
    if (!l->n) return undefined_first(j);
    size_t best = 0;
    tn_jval best_key = sort_key(j, l->v[0], p[1], flag(j, p[0]));
    for (size_t i = 1; i < l->n; i++) {
        tn_jval key = sort_key(j, l->v[i], p[1], flag(j, p[0]));
        if (tn_j_order(j, key, best_key, "min or max") * sign <= 0) continue;
        best = i;
        best_key = key;
    }
    return l->v[best];
}
static tn_jval f_min(tn_jinja *j, tn_jval v, const tn_jargs *a, params p) {
    (void)a;
    return extreme(j, v, p, -1);
}
static tn_jval f_max(tn_jinja *j, tn_jval v, const tn_jargs *a, params p) {
    (void)a;
    return extreme(j, v, p, 1);
}

static tn_jval f_sum(tn_jinja *j, tn_jval v, const tn_jargs *a, params p) {
    (void)a;
    const tn_jlist *l = tn_j_iter(j, v);
    tn_jval sum = p[1] ? *p[1] : tn_j_int(0);
    for (size_t i = 0; i < l->n; i++)
        sum = tn_j_binary(j, '+', sum, p[0] && p[0]->type != J_NONE ? tn_j_path(j, l->v[i], *p[0]) : l->v[i]);
    return sum;
}

static tn_jval f_batch(tn_jinja *j, tn_jval v, const tn_jargs *a, params p) {
    (void)a;
    int64_t n = p[0] ? tn_j_as_int(j, *p[0], "batch's size") : 0;
    if (n < 1) tn_jfail(j, TERN_E_INVALID, "batch wants a size");
    const tn_jlist *l = tn_j_iter(j, v);
    tn_jval out = tn_j_list(j, 8, J_GENERATOR), row = {0};
    for (size_t i = 0; i < l->n; i++) {
        if (i % (size_t)n == 0) tn_j_push(j, out, row = tn_j_list(j, 4, J_PLAIN));
        tn_j_push(j, row, l->v[i]);
    }
    if (l->n && p[1] && p[1]->type != J_NONE)
        while (row.u.l->n < (size_t)n) {
            tn_jsteps(j, 1);
            tn_j_push(j, row, *p[1]);
        }
    return out;
}

static tn_jval f_groupby(tn_jinja *j, tn_jval v, const tn_jargs *a, params p) {
    (void)a;
    if (!p[0] || p[1]) tn_jfail(j, TERN_E_UNSUPPORTED, "groupby wants an attribute and knows no default");
    tn_jval all = sorted(j, v, p[0], flag(j, p[2]), false, false), out = tn_j_list(j, 8, J_PLAIN), key = {0},
            group = {0};
    for (size_t i = 0; i < all.u.l->n; i++) {
        tn_jval k = sort_key(j, all.u.l->v[i], p[0], flag(j, p[2]));
        if (!i || !tn_j_equal(j, k, key)) {
            group = tn_j_list(j, 4, J_PLAIN);
            tn_j_push(j, out, tn_j_pair(j, tn_j_path(j, all.u.l->v[i], *p[0]), group));
        }
        key = k;
        tn_j_push(j, group, all.u.l->v[i]);
    }
    return out;
}

static tn_jval f_attr(tn_jinja *j, tn_jval v, const tn_jargs *a, params p) {
    (void)a;
    tn_jval out;
    if (!p[0]) tn_jfail(j, TERN_E_INVALID, "attr wants a name");
    const tn_jstr *name = tn_j_need_str(j, *p[0], "attr");
    if (v.type == J_NAMESPACE || v.type == J_LOOP) return tn_j_attr(j, v, name);
    return tn_jmethod(j, v, name, &out)
               ? out
               : tn_j_undefined(j, "no attribute '%.*s'", (int)(name->n < 60 ? name->n : 60), name->p);
}

/* ---- map and select ---- */

static tn_jargs behind(const tn_jargs *a, size_t n) {
    tn_jargs rest = *a;
    rest.pos += n;
    rest.n_pos -= n;
    return rest;
}

static tn_jval f_map(tn_jinja *j, tn_jval v, const tn_jargs *a, params p) {
    (void)p;
    tn_jval out = tn_j_list(j, 8, J_GENERATOR);
    if (!tn_j_truth(j, v)) return out; /* none too */
    const tn_jlist *l = tn_j_iter(j, v);
    if (!a->n_pos) {
        const tn_jval *q[TN_J_MAX_PARAMS];
        tn_jbind(j, "map", a, "attribute default", q);
        if (!q[0]) tn_jfail(j, TERN_E_INVALID, "map wants a filter or an attribute");
        for (size_t i = 0; i < l->n; i++) {
            tn_jval x = tn_j_path(j, l->v[i], *q[0]);
            tn_j_push(j, out, x.type == J_UNDEFINED && q[1] ? *q[1] : x);
        }
        return out;
    }
    const tn_jstr *name = tn_j_need_str(j, a->pos[0], "map");
    tn_jargs rest = behind(a, 1);
    for (size_t i = 0; i < l->n; i++) tn_j_push(j, out, tn_jfilter(j, name, l->v[i], &rest));
    return out;
}

/* Selects the items for which the test (by default: truth) gives `want`. */
static tn_jval select_items(tn_jinja *j, tn_jval v, const tn_jargs *a, bool want, bool by_attr) {
    tn_jval out = tn_j_list(j, 8, J_GENERATOR);
    if (!tn_j_truth(j, v)) return out; /* none too */
    const tn_jlist *l = tn_j_iter(j, v);
    if (by_attr && !a->n_pos) tn_jfail(j, TERN_E_INVALID, "selectattr and rejectattr want an attribute");
    tn_jargs rest = behind(a, by_attr);
    const tn_jstr *test = rest.n_pos ? tn_j_need_str(j, rest.pos[0], "a test's name") : NULL;
    if (test) rest = behind(&rest, 1);
    for (size_t i = 0; i < l->n; i++) {
        tn_jval x = by_attr ? tn_j_path(j, l->v[i], a->pos[0]) : l->v[i];
        if ((test ? tn_jtest(j, test, x, &rest) : tn_j_truth(j, x)) == want) tn_j_push(j, out, l->v[i]);
    }
    return out;
}
static tn_jval f_select(tn_jinja *j, tn_jval v, const tn_jargs *a, params p) {
    (void)p;
    return select_items(j, v, a, true, false);
}
static tn_jval f_reject(tn_jinja *j, tn_jval v, const tn_jargs *a, params p) {
    (void)p;
    return select_items(j, v, a, false, false);
}
static tn_jval f_selectattr(tn_jinja *j, tn_jval v, const tn_jargs *a, params p) {
    (void)p;
    return select_items(j, v, a, true, true);
}
static tn_jval f_rejectattr(tn_jinja *j, tn_jval v, const tn_jargs *a, params p) {
    (void)p;
    return select_items(j, v, a, false, true);
}

/* ---- the table ---- */

/* Parameters by name; "*": the filter reads its arguments itself. Undefined values are refused exactly where
 * jinja2 refuses them. */
static const struct {
    const char *name, *params;
    filter_fn fn;
} filters[] = {
    {"abs", "", f_abs},
    {"attr", "name", f_attr},
    {"batch", "linecount fill_with", f_batch},
    {"capitalize", "", f_capitalize},
    {"center", "width", f_center},
    {"count", "", f_length},
    {"d", "default_value boolean", f_default},
    {"default", "default_value boolean", f_default},
    {"dictsort", "case_sensitive by reverse", f_dictsort},
    {"first", "", f_first},
    {"float", "default", f_float},
    {"format", "*", f_format},
    {"groupby", "attribute default case_sensitive", f_groupby},
    {"indent", "width first blank", f_indent},
    {"int", "default base", f_int},
    {"items", "", f_items},
    {"join", "d attribute", f_join},
    {"last", "", f_last},
    {"length", "", f_length},
    {"list", "", f_list},
    {"lower", "", f_lower},
    {"map", "*", f_map},
    {"max", "case_sensitive attribute", f_max},
    {"min", "case_sensitive attribute", f_min},
    {"reject", "*", f_reject},
    {"rejectattr", "*", f_rejectattr},
    {"replace", "old new count", f_replace},
    {"reverse", "", f_reverse},
    {"round", "precision method", f_round},
    {"safe", "", f_safe},
    {"select", "*", f_select},
    {"selectattr", "*", f_selectattr},
    {"sort", "reverse case_sensitive attribute", f_sort},
    {"string", "", f_string},
    {"sum", "attribute start", f_sum},
    {"title", "", f_title},
    {"tojson", "*", f_tojson},
    {"trim", "chars", f_trim},
    {"truncate", "length killwords end leeway", f_truncate},
    {"unique", "case_sensitive attribute", f_unique},
    {"upper", "", f_upper},
    {"wordcount", "", f_wordcount},
};

tn_jval tn_jfilter(tn_jinja *j, const tn_jstr *name, tn_jval v, const tn_jargs *a) {
    const tn_jval *p[TN_J_MAX_PARAMS] = {0};
    tn_jsteps(j, 1);
    for (size_t i = 0; i < sizeof filters / sizeof *filters; i++) {
        if (!tn_jstr_is(name, filters[i].name)) continue;
        if (*filters[i].params != '*') tn_jbind(j, filters[i].name, a, filters[i].params, p);
        tn_jenter(j); /* map calls filters, and may call itself */
        v = filters[i].fn(j, v, a, p);
        tn_jleave(j);
        return v;
    }
    tn_jfail(j, TERN_E_UNSUPPORTED, "the filter '%.*s' is not supported", (int)(name->n < 60 ? name->n : 60),
             name->p);
}
