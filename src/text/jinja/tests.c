/* text/jinja/tests.c - the tests after `is`. */
#include "text/jinja/impl.h"

#include <math.h>

typedef bool (*test_fn)(tn_jinja *j, tn_jval v, const tn_jval *x);

static bool t_defined(tn_jinja *j, tn_jval v, const tn_jval *x) {
    (void)j, (void)x;
    return v.type != J_UNDEFINED;
}
static bool t_undefined(tn_jinja *j, tn_jval v, const tn_jval *x) {
    (void)j, (void)x;
    return v.type == J_UNDEFINED;
}
static bool t_none(tn_jinja *j, tn_jval v, const tn_jval *x) {
    (void)j, (void)x;
    return v.type == J_NONE;
}
static bool t_boolean(tn_jinja *j, tn_jval v, const tn_jval *x) {
    (void)j, (void)x;
    return v.type == J_BOOL;
}
static bool t_true(tn_jinja *j, tn_jval v, const tn_jval *x) {
    (void)j, (void)x;
    return v.type == J_BOOL && v.u.b;
}
static bool t_false(tn_jinja *j, tn_jval v, const tn_jval *x) {
    (void)j, (void)x;
    return v.type == J_BOOL && !v.u.b;
}
static bool t_integer(tn_jinja *j, tn_jval v, const tn_jval *x) {
    (void)j, (void)x;
    return v.type == J_INT;
}
static bool t_float(tn_jinja *j, tn_jval v, const tn_jval *x) {
    (void)j, (void)x;
    return v.type == J_FLOAT;
}
static bool t_number(tn_jinja *j, tn_jval v, const tn_jval *x) {
    (void)j, (void)x;
    return tn_j_is_number(v);
}
static bool t_string(tn_jinja *j, tn_jval v, const tn_jval *x) {
    (void)j, (void)x;
    return v.type == J_STRING;
}
static bool t_mapping(tn_jinja *j, tn_jval v, const tn_jval *x) {
    (void)j, (void)x;
    return v.type == J_DICT;
}
static bool t_iterable(tn_jinja *j, tn_jval v, const tn_jval *x) {
    (void)j, (void)x;
    return v.type == J_STRING || v.type == J_LIST || v.type == J_DICT || v.type == J_UNDEFINED ||
           v.type == J_LOOP;
}
static bool t_sequence(tn_jinja *j, tn_jval v, const tn_jval *x) {
    (void)j, (void)x;
    if (v.type == J_LIST) return v.u.l->kind <= J_RANGE;
    return v.type == J_STRING || v.type == J_DICT || v.type == J_UNDEFINED;
}
static bool t_callable(tn_jinja *j, tn_jval v, const tn_jval *x) {
    (void)j, (void)x;
    return v.type == J_FUNC || v.type == J_LOOP || v.type == J_UNDEFINED;
}
static bool t_escaped(tn_jinja *j, tn_jval v, const tn_jval *x) {
    (void)j, (void)v, (void)x;
    return false;
}
static bool cased(tn_jinja *j, tn_jval v, tn_jcase same, tn_jcase other) {
    const tn_jstr *s = tn_j_to_str(j, v);
    return tn_jstr_eq(tn_jstr_case(j, s, same), s) && !tn_jstr_eq(tn_jstr_case(j, s, other), s);
}
static bool t_lower(tn_jinja *j, tn_jval v, const tn_jval *x) {
    (void)x;
    return cased(j, v, J_LOWER, J_UPPER);
}
static bool t_upper(tn_jinja *j, tn_jval v, const tn_jval *x) {
    (void)x;
    return cased(j, v, J_UPPER, J_LOWER);
}
static bool t_odd(tn_jinja *j, tn_jval v, const tn_jval *x) {
    (void)x;
    if (v.type == J_FLOAT) return fmod(v.u.f, 2) == 1 || fmod(v.u.f, 2) == -1;
    return tn_j_as_int(j, v, "odd's number") % 2 != 0;
}
static bool t_even(tn_jinja *j, tn_jval v, const tn_jval *x) {
    (void)x;
    if (v.type == J_FLOAT) return fmod(v.u.f, 2) == 0;
    return tn_j_as_int(j, v, "even's number") % 2 == 0;
}
static bool t_divisibleby(tn_jinja *j, tn_jval v, const tn_jval *x) {
    if (v.type == J_FLOAT || x->type == J_FLOAT) {
        tn_jval r = tn_j_binary(j, '%', v, *x);
        return tn_j_as_float(r) == 0;
    }
    int64_t d = tn_j_as_int(j, *x, "divisibleby's number");
    if (!d) tn_jfail(j, TERN_E_INVALID, "division by zero");
    return d == -1 || tn_j_as_int(j, v, "divisibleby's number") % d == 0;
}
static bool t_sameas(tn_jinja *j, tn_jval v, const tn_jval *x) {
    if (v.type != x->type) return false;
    switch (v.type) {
    case J_STRING: return v.u.s == x->u.s || tn_jstr_eq(v.u.s, x->u.s);
    case J_LIST: return v.u.l == x->u.l;
    case J_DICT: return v.u.d == x->u.d;
    default: return tn_j_equal(j, v, *x);
    }
}
static bool t_in(tn_jinja *j, tn_jval v, const tn_jval *x) { return tn_j_contains(j, *x, v); }
static bool t_eq(tn_jinja *j, tn_jval v, const tn_jval *x) { return tn_j_equal(j, v, *x); }
static bool t_ne(tn_jinja *j, tn_jval v, const tn_jval *x) { return !tn_j_equal(j, v, *x); }
static bool t_lt(tn_jinja *j, tn_jval v, const tn_jval *x) { return tn_j_compare(j, '<', v, *x); }
static bool t_le(tn_jinja *j, tn_jval v, const tn_jval *x) { return tn_j_compare(j, J_OP('<', '='), v, *x); }
static bool t_gt(tn_jinja *j, tn_jval v, const tn_jval *x) { return tn_j_compare(j, '>', v, *x); }
static bool t_ge(tn_jinja *j, tn_jval v, const tn_jval *x) { return tn_j_compare(j, J_OP('>', '='), v, *x); }

/* A row: the names, one after another, and the number of arguments. */
static const struct {
    const char *name;
    size_t n_args;
    test_fn fn;
} tests[] = {
    {"defined", 0, t_defined},
    {"undefined", 0, t_undefined},
    {"none", 0, t_none},
    {"boolean", 0, t_boolean},
    {"true", 0, t_true},
    {"false", 0, t_false},
    {"integer", 0, t_integer},
    {"float", 0, t_float},
    {"number", 0, t_number},
    {"string", 0, t_string},
    {"mapping", 0, t_mapping},
    {"iterable", 0, t_iterable},
    {"sequence", 0, t_sequence},
    {"callable", 0, t_callable},
    {"escaped", 0, t_escaped},
    {"lower", 0, t_lower},
    {"upper", 0, t_upper},
    {"odd", 0, t_odd},
    {"even", 0, t_even},
    {"divisibleby", 1, t_divisibleby},
    {"sameas", 1, t_sameas},
    {"in", 1, t_in},
    {"eq", 1, t_eq},
    {"equalto", 1, t_eq},
    {"==", 1, t_eq},
    {"ne", 1, t_ne},
    {"!=", 1, t_ne},
    {"lt", 1, t_lt},
    {"lessthan", 1, t_lt},
    {"<", 1, t_lt},
    {"le", 1, t_le},
    {"<=", 1, t_le},
    {"gt", 1, t_gt},
    {"greaterthan", 1, t_gt},
    {">", 1, t_gt},
    {"ge", 1, t_ge},
    {">=", 1, t_ge},
};

bool tn_jtest(tn_jinja *j, const tn_jstr *name, tn_jval v, const tn_jargs *a) {
    tn_jsteps(j, 1);
    for (size_t i = 0; i < sizeof tests / sizeof *tests; i++) {
        if (!tn_jstr_is(name, tests[i].name)) continue;
        if (a->n_pos != tests[i].n_args || a->n_named)
            tn_jfail(j, TERN_E_INVALID, "the test '%s' takes %zu arguments", tests[i].name, tests[i].n_args);
        return tests[i].fn(j, v, a->pos);
    }
    tn_jfail(j, TERN_E_UNSUPPORTED, "the test '%.*s' is not supported", (int)(name->n < 60 ? name->n : 60),
             name->p);
}
