/* text/jinja/methods.c - methods of strings, lists, dicts and loops, as Python names them. Those that change
 * their object are refused, as in jinja2's sandbox. */
#include "text/jinja/impl.h"

#include <stdio.h>
#include <utf8proc.h>

typedef const tn_jval *const *params;
typedef tn_jval (*method_fn)(tn_jinja *j, tn_jval self, params p);

static const tn_jstr *str_or(tn_jinja *j, const tn_jval *v, const char *who) {
    return v && v->type != J_NONE ? tn_j_need_str(j, *v, who) : NULL;
}
static int64_t int_or(tn_jinja *j, const tn_jval *v, int64_t otherwise) {
    return v && v->type != J_NONE ? tn_j_as_int(j, *v, "an argument") : otherwise;
}
static const tn_jstr *need(tn_jinja *j, const tn_jval *v, const char *who) {
    if (!v) tn_jfail(j, TERN_E_INVALID, "%s wants an argument", who);
    return tn_j_need_str(j, *v, who);
}

/* ---- strings ---- */

static tn_jval s_strip(tn_jinja *j, tn_jval v, params p) {
    return tn_j_str(tn_jstr_strip(j, v.u.s, str_or(j, p[0], "strip"), TN_J_LEFT | TN_J_RIGHT));
}
static tn_jval s_lstrip(tn_jinja *j, tn_jval v, params p) {
    return tn_j_str(tn_jstr_strip(j, v.u.s, str_or(j, p[0], "lstrip"), TN_J_LEFT));
}
static tn_jval s_rstrip(tn_jinja *j, tn_jval v, params p) {
    return tn_j_str(tn_jstr_strip(j, v.u.s, str_or(j, p[0], "rstrip"), TN_J_RIGHT));
}
static tn_jval s_split(tn_jinja *j, tn_jval v, params p) {
    return tn_jstr_split(j, v.u.s, str_or(j, p[0], "split"), int_or(j, p[1], -1), false);
}
static tn_jval s_rsplit(tn_jinja *j, tn_jval v, params p) {
    return tn_jstr_split(j, v.u.s, str_or(j, p[0], "rsplit"), int_or(j, p[1], -1), true);
}
static tn_jval s_splitlines(tn_jinja *j, tn_jval v, params p) {
    return tn_jstr_lines(j, v.u.s, p[0] && tn_j_truth(j, *p[0]));
}
static tn_jval s_upper(tn_jinja *j, tn_jval v, params p) {
    (void)p;
    return tn_j_str(tn_jstr_case(j, v.u.s, J_UPPER));
}
static tn_jval s_lower(tn_jinja *j, tn_jval v, params p) {
    (void)p;
    return tn_j_str(tn_jstr_case(j, v.u.s, J_LOWER));
}
static tn_jval s_title(tn_jinja *j, tn_jval v, params p) {
    (void)p;
    return tn_j_str(tn_jstr_case(j, v.u.s, J_TITLE));
}
static tn_jval s_capitalize(tn_jinja *j, tn_jval v, params p) {
    (void)p;
    return tn_j_str(tn_jstr_case(j, v.u.s, J_CAPITAL));
}
static tn_jval s_swapcase(tn_jinja *j, tn_jval v, params p) {
    (void)p;
    return tn_j_str(tn_jstr_case(j, v.u.s, J_SWAP));
}
static tn_jval s_replace(tn_jinja *j, tn_jval v, params p) {
    const tn_jstr *from = need(j, p[0], "replace"), *to = need(j, p[1], "replace");
    return tn_j_str(tn_jstr_replace(j, v.u.s, from, to, int_or(j, p[2], -1)));
}

static bool at_side(tn_jinja *j, const tn_jstr *s, const tn_jstr *part, bool end) {
    tn_jsteps(j, 1 + part->n / 64);
    return s->n >= part->n && !memcmp(s->p + (end ? s->n - part->n : 0), part->p, part->n);
}

static tn_jval starts_or_ends(tn_jinja *j, tn_jval v, params p, bool end) {
    if (p[1]) tn_jfail(j, TERN_E_UNSUPPORTED, "startswith and endswith know no bounds");
    if (!p[0]) tn_jfail(j, TERN_E_INVALID, "startswith and endswith want a string");
    if (p[0]->type != J_LIST) return tn_j_bool(at_side(j, v.u.s, need(j, p[0], "startswith"), end));
    for (size_t i = 0; i < p[0]->u.l->n; i++)
        if (at_side(j, v.u.s, tn_j_need_str(j, p[0]->u.l->v[i], "startswith"), end)) return tn_j_bool(true);
    return tn_j_bool(false);
}
static tn_jval s_startswith(tn_jinja *j, tn_jval v, params p) { return starts_or_ends(j, v, p, false); }
static tn_jval s_endswith(tn_jinja *j, tn_jval v, params p) { return starts_or_ends(j, v, p, true); }

static tn_jval s_removeprefix(tn_jinja *j, tn_jval v, params p) {
    const tn_jstr *part = need(j, p[0], "removeprefix");
    return at_side(j, v.u.s, part, false) ? tn_j_str(tn_jstr_sub(j, v.u.s, part->n, v.u.s->n)) : v;
}
static tn_jval s_removesuffix(tn_jinja *j, tn_jval v, params p) {
    const tn_jstr *part = need(j, p[0], "removesuffix");
    return at_side(j, v.u.s, part, true) ? tn_j_str(tn_jstr_sub(j, v.u.s, 0, v.u.s->n - part->n)) : v;
}

static tn_jval s_join(tn_jinja *j, tn_jval v, params p) {
    tn_jbuf b = {0};
    if (!p[0]) tn_jfail(j, TERN_E_INVALID, "join wants a list");
    tn_j_check_defined(j, *p[0]);
    const tn_jlist *l = tn_j_iter(j, *p[0]);
    for (size_t i = 0; i < l->n; i++) {
        if (i) tn_jbuf_str(j, &b, v.u.s);
        tn_jbuf_str(j, &b, tn_j_need_str(j, l->v[i], "join"));
    }
    return tn_j_str(tn_jbuf_take(j, &b));
}

/* Returns a position in characters, or -1. Bounds limit the search. */
static int64_t position(tn_jinja *j, tn_jval v, params p, bool last) {
    const tn_jstr *what = need(j, p[0], "find"), *s = v.u.s;
    int64_t n = (int64_t)tn_jstr_length(s), from = int_or(j, p[1], 0), to = int_or(j, p[2], n);
    if (from < 0) from = from + n < 0 ? 0 : from + n;
    if (to > n) to = n;
    if (to < 0) to = to + n < 0 ? 0 : to + n;
    if (from > to) return -1;
    s = tn_jstr_slice(j, s, &from, &to, 1);
    size_t at = SIZE_MAX;
    if (!last) at = tn_jstr_find(s, what, 0);
    else at = tn_jstr_rfind(j, s, what, s->n);
    return at == SIZE_MAX ? -1 : from + (int64_t)tn_jstr_length(tn_jstr_sub(j, s, 0, at));
}
static tn_jval s_find(tn_jinja *j, tn_jval v, params p) { return tn_j_int(position(j, v, p, false)); }
static tn_jval s_rfind(tn_jinja *j, tn_jval v, params p) { return tn_j_int(position(j, v, p, true)); }
static tn_jval s_index(tn_jinja *j, tn_jval v, params p) {
    int64_t at = position(j, v, p, false);
    if (at < 0) tn_jfail(j, TERN_E_INVALID, "index: the string does not hold it");
    return tn_j_int(at);
}
static tn_jval s_count(tn_jinja *j, tn_jval v, params p) {
    const tn_jstr *what = need(j, p[0], "count");
    int64_t n = 0;
    if (!what->n) return tn_j_int((int64_t)tn_jstr_length(v.u.s) + 1);
    for (size_t at = 0; (at = tn_jstr_find(v.u.s, what, at)) != SIZE_MAX; at += what->n) n++;
    return tn_j_int(n);
}

static tn_jval partition(tn_jinja *j, tn_jval v, params p, bool last) {
    const tn_jstr *sep = need(j, p[0], "partition"), *s = v.u.s;
    if (!sep->n) tn_jfail(j, TERN_E_INVALID, "partition by an empty string");
    size_t at = SIZE_MAX;
    at = last ? tn_jstr_rfind(j, s, sep, s->n) : tn_jstr_find(s, sep, 0);
    tn_jval out = tn_j_list(j, 3, J_TUPLE), none = tn_j_text(j, "");
    bool found = at != SIZE_MAX;
    tn_j_push(j, out, found ? tn_j_str(tn_jstr_sub(j, s, 0, at)) : last ? none : v);
    tn_j_push(j, out, found ? tn_j_str(tn_jstr_sub(j, s, at, at + sep->n)) : none);
    tn_j_push(j, out, found ? tn_j_str(tn_jstr_sub(j, s, at + sep->n, s->n)) : last ? v : none);
    return out;
}
static tn_jval s_partition(tn_jinja *j, tn_jval v, params p) { return partition(j, v, p, false); }
static tn_jval s_rpartition(tn_jinja *j, tn_jval v, params p) { return partition(j, v, p, true); }

typedef enum char_class { DIGIT, ALPHA, ALNUM, SPACE } char_class;

static bool in_class(uint32_t cp, char_class c) {
    utf8proc_category_t k = utf8proc_category((utf8proc_int32_t)cp);
    bool digit = k == UTF8PROC_CATEGORY_ND, alpha = k >= UTF8PROC_CATEGORY_LU && k <= UTF8PROC_CATEGORY_LO;
    if (c == SPACE) return tn_j_is_space(cp);
    return c == DIGIT   ? digit
           : c == ALPHA ? alpha
                        : digit || alpha || k == UTF8PROC_CATEGORY_NL || k == UTF8PROC_CATEGORY_NO;
}

static tn_jval all_in(const tn_jstr *s, char_class c) {
    bool all = s->n > 0;
    for (size_t i = 0; i < s->n && all;) {
        uint32_t cp;
        i += tn_jstr_char(s, i, &cp);
        all = in_class(cp, c);
    }
    return tn_j_bool(all);
}
static tn_jval s_isdigit(tn_jinja *j, tn_jval v, params p) {
    (void)j, (void)p;
    return all_in(v.u.s, DIGIT);
}
static tn_jval s_isalpha(tn_jinja *j, tn_jval v, params p) {
    (void)j, (void)p;
    return all_in(v.u.s, ALPHA);
}
static tn_jval s_isalnum(tn_jinja *j, tn_jval v, params p) {
    (void)j, (void)p;
    return all_in(v.u.s, ALNUM);
}
static tn_jval s_isspace(tn_jinja *j, tn_jval v, params p) {
    (void)j, (void)p;
    return all_in(v.u.s, SPACE);
}
static tn_jval cased(tn_jinja *j, const tn_jstr *s, tn_jcase same, tn_jcase other) {
    return tn_j_bool(tn_jstr_eq(tn_jstr_case(j, s, same), s) && !tn_jstr_eq(tn_jstr_case(j, s, other), s));
}
static tn_jval s_isupper(tn_jinja *j, tn_jval v, params p) {
    (void)p;
    return cased(j, v.u.s, J_UPPER, J_LOWER);
}
static tn_jval s_islower(tn_jinja *j, tn_jval v, params p) {
    (void)p;
    return cased(j, v.u.s, J_LOWER, J_UPPER);
}

/* ---- lists, dicts ---- */

static tn_jval l_index(tn_jinja *j, tn_jval v, params p) {
    for (size_t i = 0; p[0] && i < v.u.l->n; i++)
        if (tn_j_equal(j, v.u.l->v[i], *p[0])) return tn_j_int((int64_t)i);
    tn_jfail(j, TERN_E_INVALID, "index: the list does not hold it");
}
static tn_jval l_count(tn_jinja *j, tn_jval v, params p) {
    int64_t n = 0;
    for (size_t i = 0; p[0] && i < v.u.l->n; i++) n += tn_j_equal(j, v.u.l->v[i], *p[0]);
    return tn_j_int(n);
}

static tn_jval d_items(tn_jinja *j, tn_jval v, params p) {
    (void)p;
    tn_jval out = tn_j_list(j, v.u.d->n, J_VIEW);
    for (size_t i = 0; i < v.u.d->n; i++) tn_j_push(j, out, tn_j_pair(j, v.u.d->keys[i], v.u.d->vals[i]));
    return out;
}
static tn_jval d_keys(tn_jinja *j, tn_jval v, params p) {
    (void)p;
    tn_jval out = tn_j_list(j, v.u.d->n, J_VIEW);
    for (size_t i = 0; i < v.u.d->n; i++) tn_j_push(j, out, v.u.d->keys[i]);
    return out;
}
static tn_jval d_values(tn_jinja *j, tn_jval v, params p) {
    (void)p;
    tn_jval out = tn_j_list(j, v.u.d->n, J_VIEW);
    for (size_t i = 0; i < v.u.d->n; i++) tn_j_push(j, out, v.u.d->vals[i]);
    return out;
}
static tn_jval d_get(tn_jinja *j, tn_jval v, params p) {
    if (!p[0]) tn_jfail(j, TERN_E_INVALID, "get wants a key");
    const tn_jval *found = tn_j_get(j, v.u.d, *p[0]);
    return found ? *found : p[1] ? *p[1] : tn_j_none();
}
static tn_jval d_copy(tn_jinja *j, tn_jval v, params p) {
    (void)p;
    tn_jval out = tn_j_dict(j, v.u.d->n);
    for (size_t i = 0; i < v.u.d->n; i++) tn_j_put(j, out, v.u.d->keys[i], v.u.d->vals[i]);
    return out;
}
static tn_jval l_copy(tn_jinja *j, tn_jval v, params p) {
    (void)p;
    tn_jval out = tn_j_list(j, v.u.l->n, v.u.l->kind);
    for (size_t i = 0; i < v.u.l->n; i++) tn_j_push(j, out, v.u.l->v[i]);
    return out;
}

static tn_jval refused(tn_jinja *j, tn_jval v, params p) {
    (void)p;
    tn_jfail(j, TERN_E_INVALID, "a template may not change %s", tn_j_type_name(v));
}

/* ---- loop, cycler ---- */

static tn_jval loop_cycle(tn_jinja *j, tn_jval self, const tn_jargs *a) {
    if (!a->n_pos) tn_jfail(j, TERN_E_INVALID, "cycle of nothing");
    return a->pos[self.u.loop->at % a->n_pos];
}

static tn_jval loop_changed(tn_jinja *j, tn_jval self, const tn_jargs *a) {
    tn_jval now = tn_j_list(j, a->n_pos, J_TUPLE);
    for (size_t i = 0; i < a->n_pos; i++) tn_j_push(j, now, a->pos[i]);
    bool same = self.u.loop->changed.type == J_LIST && tn_j_equal(j, self.u.loop->changed, now);
    self.u.loop->changed = now;
    return tn_j_bool(!same);
}

/* A cycler is a function whose self is [position, items...]. */
static tn_jval cycler_next(tn_jinja *j, tn_jval self, const tn_jargs *a) {
    (void)j, (void)a;
    tn_jlist *l = self.u.l;
    size_t at = (size_t)l->v[0].u.i;
    l->v[0].u.i = (int64_t)((at + 1) % (l->n - 1));
    return l->v[at + 1];
}
static tn_jval cycler_reset(tn_jinja *j, tn_jval self, const tn_jargs *a) {
    (void)j, (void)a;
    self.u.l->v[0].u.i = 0;
    return tn_j_none();
}

static bool cycler_method(tn_jinja *j, const tn_jfunc *f, const tn_jstr *name, tn_jval *out) {
    if (strcmp(f->name, "cycler")) return false;
    if (tn_jstr_is(name, "current")) *out = f->self.u.l->v[(size_t)f->self.u.l->v[0].u.i + 1];
    else if (tn_jstr_is(name, "next")) *out = tn_jfunc_new(j, "next", cycler_next, f->self);
    else if (tn_jstr_is(name, "reset")) *out = tn_jfunc_new(j, "reset", cycler_reset, f->self);
    else return false;
    return true;
}

/* ---- the table ---- */

static const struct method {
    tn_jtype type;
    const char *name, *params;
    method_fn fn;
} methods[] = {
    {J_STRING, "strip", "chars", s_strip},
    {J_STRING, "lstrip", "chars", s_lstrip},
    {J_STRING, "rstrip", "chars", s_rstrip},
    {J_STRING, "split", "sep maxsplit", s_split},
    {J_STRING, "rsplit", "sep maxsplit", s_rsplit},
    {J_STRING, "splitlines", "keepends", s_splitlines},
    {J_STRING, "upper", "", s_upper},
    {J_STRING, "lower", "", s_lower},
    {J_STRING, "casefold", "", s_lower},
    {J_STRING, "title", "", s_title},
    {J_STRING, "capitalize", "", s_capitalize},
    {J_STRING, "swapcase", "", s_swapcase},
    {J_STRING, "replace", "old new count", s_replace},
    {J_STRING, "startswith", "prefix start", s_startswith},
    {J_STRING, "endswith", "suffix start", s_endswith},
    {J_STRING, "removeprefix", "prefix", s_removeprefix},
    {J_STRING, "removesuffix", "suffix", s_removesuffix},
    {J_STRING, "join", "iterable", s_join},
    {J_STRING, "find", "sub start end", s_find},
    {J_STRING, "rfind", "sub start end", s_rfind},
    {J_STRING, "index", "sub start end", s_index},
    {J_STRING, "count", "sub", s_count},
    {J_STRING, "partition", "sep", s_partition},
    {J_STRING, "rpartition", "sep", s_rpartition},
    {J_STRING, "isdigit", "", s_isdigit},
    {J_STRING, "isdecimal", "", s_isdigit},
    {J_STRING, "isnumeric", "", s_isdigit},
    {J_STRING, "isalpha", "", s_isalpha},
    {J_STRING, "isalnum", "", s_isalnum},
    {J_STRING, "isspace", "", s_isspace},
    {J_STRING, "isupper", "", s_isupper},
    {J_STRING, "islower", "", s_islower},
    {J_LIST, "index", "value", l_index},
    {J_LIST, "count", "value", l_count},
    {J_LIST, "copy", "", l_copy},
    {J_LIST, "append", "value", refused},
    {J_LIST, "extend", "values", refused},
    {J_LIST, "insert", "at value", refused},
    {J_LIST, "pop", "at", refused},
    {J_LIST, "remove", "value", refused},
    {J_LIST, "clear", "", refused},
    {J_LIST, "reverse", "", refused},
    {J_LIST, "sort", "key reverse", refused},
    {J_DICT, "items", "", d_items},
    {J_DICT, "keys", "", d_keys},
    {J_DICT, "values", "", d_values},
    {J_DICT, "get", "key default", d_get},
    {J_DICT, "copy", "", d_copy},
    {J_DICT, "update", "other", refused},
    {J_DICT, "pop", "key default", refused},
    {J_DICT, "popitem", "", refused},
    {J_DICT, "setdefault", "key default", refused},
    {J_DICT, "clear", "", refused},
};
enum { N_METHODS = sizeof methods / sizeof *methods };

/* Calls a method. The function's name is the table's own string: it says which row. */
static tn_jval call_method(tn_jinja *j, const struct method *m, tn_jval self, const tn_jargs *a) {
    const tn_jval *p[TN_J_MAX_PARAMS];
    tn_jbind(j, m->name, a, m->params, p);
    if (self.type == J_STRING) tn_jsteps(j, self.u.s->n / 16);
    if (self.type == J_LIST) tn_jsteps(j, self.u.l->n / 4);
    if (self.type == J_DICT) tn_jsteps(j, self.u.d->n / 4);
    return m->fn(j, self, p);
}

tn_jval tn_jcall(tn_jinja *j, tn_jval f, const tn_jargs *a) {
    tn_j_check_defined(j, f);
    if (f.type == J_LOOP) {
        tn_jloop *l = f.u.loop;
        if (!l->recursive || a->n_pos != 1)
            tn_jfail(j, TERN_E_INVALID, "loop() wants a recursive loop and one list");
        tn_jscope *scope = j->scope;
        tn_jenter(j);
        j->scope = l->scope;
        tn_jval text = tn_jrun_loop(j, l->recursive, a->pos[0], l->depth0 + 1);
        j->scope = scope;
        tn_jleave(j);
        return text;
    }
    if (f.type != J_FUNC) tn_jfail(j, TERN_E_INVALID, "%s cannot be called", tn_j_type_name(f));
    if (f.u.fn->macro) return tn_jcall_macro(j, f.u.fn, a);
    if (f.u.fn->call) return f.u.fn->call(j, f.u.fn->self, a);
    for (size_t i = 0; i < N_METHODS; i++)
        if (methods[i].name == f.u.fn->name && methods[i].type == f.u.fn->self.type)
            return call_method(j, &methods[i], f.u.fn->self, a);
    tn_jfail(j, TERN_E_INVALID, "%s cannot be called", f.u.fn->name);
}

bool tn_jmethod(tn_jinja *j, tn_jval v, const tn_jstr *name, tn_jval *out) {
    if (v.type == J_LOOP) {
        bool cycle = tn_jstr_is(name, "cycle");
        if (!cycle && !tn_jstr_is(name, "changed")) return false;
        *out = tn_jfunc_new(j, cycle ? "cycle" : "changed", cycle ? loop_cycle : loop_changed, v);
        return true;
    }
    if (v.type == J_FUNC) return cycler_method(j, v.u.fn, name, out);
    for (size_t i = 0; i < N_METHODS; i++) {
        if (methods[i].type != v.type || !tn_jstr_is(name, methods[i].name)) continue;
        if (v.type == J_LIST && v.u.l->kind > J_RANGE) return false;
        *out = tn_jfunc_new(j, methods[i].name, NULL, v);
        return true;
    }
    static const char *const lacking[] = {"format", "encode",       "zfill",      "ljust",
                                          "rjust",  "center",       "expandtabs", "translate",
                                          "rindex", "isidentifier", "format_map", "istitle"};
    for (size_t i = 0; v.type == J_STRING && i < sizeof lacking / sizeof *lacking; i++)
        if (tn_jstr_is(name, lacking[i]))
            tn_jfail(j, TERN_E_UNSUPPORTED, "the method '%s' of strings is not supported", lacking[i]);
    return false;
}
