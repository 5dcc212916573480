/* text/jinja/eval.c - expressions. */
#include "text/jinja/impl.h"

#include <math.h>

/* ---- attributes and items ---- */

static tn_jval loop_attr(tn_jinja *j, tn_jloop *l, const tn_jstr *name) {
    int64_t at = (int64_t)l->at, n = (int64_t)l->items->n;
    if (tn_jstr_is(name, "index")) return tn_j_int(at + 1);
    if (tn_jstr_is(name, "index0")) return tn_j_int(at);
    if (tn_jstr_is(name, "revindex")) return tn_j_int(n - at);
    if (tn_jstr_is(name, "revindex0")) return tn_j_int(n - at - 1);
    if (tn_jstr_is(name, "first")) return tn_j_bool(at == 0);
    if (tn_jstr_is(name, "last")) return tn_j_bool(at + 1 == n);
    if (tn_jstr_is(name, "length")) return tn_j_int(n);
    if (tn_jstr_is(name, "depth")) return tn_j_int(l->depth0 + 1);
    if (tn_jstr_is(name, "depth0")) return tn_j_int(l->depth0);
    if (tn_jstr_is(name, "previtem"))
        return at ? l->items->v[at - 1] : tn_j_undefined(j, "there is no previous item");
    if (tn_jstr_is(name, "nextitem"))
        return at + 1 < n ? l->items->v[at + 1] : tn_j_undefined(j, "there is no next item");
    return tn_j_undefined(j, "'loop' has no attribute '%.*s'", (int)(name->n < 60 ? name->n : 60), name->p);
}

static tn_jval no_attr(tn_jinja *j, tn_jval v, tn_jval key) {
    const tn_jstr *s = tn_j_to_str(j, key);
    return tn_j_undefined(j, "%s has no '%.*s'", tn_j_type_name(v), (int)(s->n < 60 ? s->n : 60), s->p);
}

static bool own_item(tn_jinja *j, tn_jval v, tn_jval key, tn_jval *out) {
    if (v.type == J_DICT || v.type == J_NAMESPACE) {
        const tn_jval *found = tn_j_get(j, v.u.d, key);
        if (found) *out = *found;
        return found != NULL;
    }
    if (key.type != J_INT && key.type != J_BOOL) return false;
    int64_t i = key.type == J_BOOL ? key.u.b : key.u.i;
    if (v.type == J_LIST && v.u.l->kind <= J_RANGE) {
        int64_t n = (int64_t)v.u.l->n;
        if (i < 0) i += n;
        if (i < 0 || i >= n) return false;
        *out = v.u.l->v[i];
        return true;
    }
    if (v.type == J_STRING) {
        int64_t n = (int64_t)tn_jstr_length(v.u.s), end = i + 1;
        tn_jsteps(j, v.u.s->n / 16);
        if (i < 0) i += n, end += n;
        if (i < 0 || i >= n) return false;
        *out = tn_j_str(tn_jstr_slice(j, v.u.s, &i, &end, 1));
        return true;
    }
    return false;
}

tn_jval tn_j_attr(tn_jinja *j, tn_jval v, const tn_jstr *name) {
    tn_jval out;
    tn_j_check_defined(j, v);
    if (v.type != J_NAMESPACE && tn_jmethod(j, v, name, &out)) return out;
    if (own_item(j, v, tn_j_str(name), &out)) return out;
    if (v.type == J_LOOP) return loop_attr(j, v.u.loop, name);
    return no_attr(j, v, tn_j_str(name));
}

static tn_jval item_at(tn_jinja *j, tn_jval v, tn_jval key) {
    tn_jval out;
    tn_j_check_defined(j, v);
    if (own_item(j, v, key, &out)) return out;
    if (key.type == J_STRING && v.type != J_NAMESPACE && tn_jmethod(j, v, key.u.s, &out)) return out;
    if (key.type == J_STRING && v.type == J_LOOP) return loop_attr(j, v.u.loop, key.u.s);
    return no_attr(j, v, key);
}

/* Follows a path as the attribute arguments of filters have it: parts at dots, digits are indices. */
tn_jval tn_j_path(tn_jinja *j, tn_jval v, tn_jval path) {
    if (path.type == J_INT) return item_at(j, v, path);
    const tn_jstr *s = tn_j_need_str(j, path, "an attribute's name");
    tn_jval parts = tn_jstr_split(j, s, tn_jstr_span(j, ".", 1, false), -1, false);
    for (size_t i = 0; i < parts.u.l->n; i++) {
        const tn_jstr *part = parts.u.l->v[i].u.s;
        bool number = part->n > 0 && part->n < 10;
        int64_t index = 0;
        for (size_t k = 0; number && k < part->n; k++) {
            number = part->p[k] >= '0' && part->p[k] <= '9';
            index = index * 10 + (part->p[k] - '0');
        }
        v = item_at(j, v, number ? tn_j_int(index) : tn_j_str(part));
    }
    return v;
}

static tn_jval slice_list(tn_jinja *j, const tn_jlist *l, const int64_t *start, const int64_t *stop,
                          int64_t step) {
    int64_t n = (int64_t)l->n, lo = step < 0 ? -1 : 0, hi = step < 0 ? n - 1 : n;
    int64_t a = start ? *start : step < 0 ? hi : lo, b = stop ? *stop : step < 0 ? lo : hi;
    if (start && a < 0) a = a < -n ? lo : a + n;
    if (stop && b < 0) b = b < -n ? lo : b + n;
    a = a < lo ? lo : a > hi ? hi : a;
    b = b < lo ? lo : b > hi ? hi : b;
    tn_jval out = tn_j_list(j, 4, l->kind);
    tn_jsteps(j, l->n);
    for (; step > 0 ? a < b : a > b; a += step) tn_j_push(j, out, l->v[a]);
    return out;
}

static tn_jval slice(tn_jinja *j, tn_jval v, const tn_jnode *n) {
    const tn_jnode *parts[3] = {n->a, n->b, n->c};
    int64_t val[3];
    const int64_t *at[3] = {0};
    bool sliceable = v.type == J_STRING || (v.type == J_LIST && v.u.l->kind <= J_RANGE);
    tn_j_check_defined(j, v);
    for (int i = 0; i < 3; i++) {
        if (!parts[i]) continue;
        tn_jval x = tn_jeval(j, parts[i]);
        if (x.type == J_NONE) continue;
        if (x.type != J_INT && x.type != J_BOOL) sliceable = false;
        if (!sliceable) continue;
        val[i] = tn_j_as_int(j, x, "a slice's bound");
        if (val[i] < -INT32_MAX) val[i] = -INT32_MAX;
        if (val[i] > INT32_MAX) val[i] = INT32_MAX;
        at[i] = &val[i];
    }
    int64_t step = at[2] ? *at[2] : 1;
    if (!sliceable) tn_jfail(j, TERN_E_INVALID, "%s has no such slice", tn_j_type_name(v));
    if (!step) tn_jfail(j, TERN_E_INVALID, "a slice's step is zero");
    if (v.type == J_STRING) return tn_j_str(tn_jstr_slice(j, v.u.s, at[0], at[1], step));
    return slice_list(j, v.u.l, at[0], at[1], step);
}

/* ---- operators ---- */

static const char *op_text(int op) {
    switch (op) {
    case '+': return "+";
    case '-': return "-";
    case '*': return "*";
    case '/': return "/";
    case '%': return "%";
    case J_OP('/', '/'): return "//";
    default: return "**";
    }
}

static _Noreturn void overflow(tn_jinja *j) { tn_jfail(j, TERN_E_LIMIT, "an integer beyond 64 bits"); }

static int64_t int_power(tn_jinja *j, int64_t a, int64_t b) {
    int64_t r = 1;
    if (a == 1 || (a == -1 && b % 2 == 0) || b == 0) return 1;
    if (a == -1) return -1;
    if (a == 0) return 0;
    for (; b > 0; b--)
        if (__builtin_mul_overflow(r, a, &r)) overflow(j);
    return r;
}

static tn_jval int_op(tn_jinja *j, int op, int64_t a, int64_t b) {
    int64_t r = 0;
    bool bad = false;
    if ((op == '%' || op == J_OP('/', '/') || op == '/') && !b)
        tn_jfail(j, TERN_E_INVALID, "division by zero");
    switch (op) {
    case '+': bad = __builtin_add_overflow(a, b, &r); break;
    case '-': bad = __builtin_sub_overflow(a, b, &r); break;
    case '*': bad = __builtin_mul_overflow(a, b, &r); break;
    case '/': return tn_j_float((double)a / (double)b);
    case '%':
        r = b == -1 ? 0 : a % b;
        if (r && (r < 0) != (b < 0)) r += b;
        break;
    case J_OP('/', '/'):
        if (b == -1) return int_op(j, '-', 0, a);
        r = a / b - (a % b && (a < 0) != (b < 0));
        break;
    default:
        if (b < 0) return tn_j_float(pow((double)a, (double)b));
        r = int_power(j, a, b);
    }
    if (bad) overflow(j);
    return tn_j_int(r);
}

static tn_jval float_op(tn_jinja *j, int op, double a, double b) {
    if ((op == '%' || op == J_OP('/', '/') || op == '/') && b == 0)
        tn_jfail(j, TERN_E_INVALID, "division by zero");
    double r;
    switch (op) {
    case '+': return tn_j_float(a + b);
    case '-': return tn_j_float(a - b);
    case '*': return tn_j_float(a * b);
    case '/': return tn_j_float(a / b);
    case '%':
        r = fmod(a, b);
        if (r != 0 && (r < 0) != (b < 0)) r += b;
        return tn_j_float(r != 0 ? r : copysign(0, b));
    case J_OP('/', '/'):
        r = fmod(a, b);
        return tn_j_float(floor((a - r) / b + 0.5) - (r != 0 && (r < 0) != (b < 0)));
    default: return tn_j_float(pow(a, b));
    }
}

static tn_jval repeat(tn_jinja *j, tn_jval v, int64_t times) {
    tn_jbuf b = {0};
    tn_jval out = v.type == J_LIST ? tn_j_list(j, 4, v.u.l->kind) : v;
    for (; times > 0; times--) {
        tn_jsteps(j, 1);
        if (v.type == J_STRING) tn_jbuf_str(j, &b, v.u.s);
        for (size_t i = 0; v.type == J_LIST && i < v.u.l->n; i++) tn_j_push(j, out, v.u.l->v[i]);
        if (v.type == J_LIST) tn_jsteps(j, v.u.l->n);
    }
    return v.type == J_STRING ? tn_j_str(tn_jbuf_take(j, &b)) : out;
}

static const tn_jstr *escaped(tn_jinja *j, const tn_jstr *s) {
    static const char *const from[] = {"&", ">", "<", "'", "\""};
    static const char *const to[] = {"&amp;", "&gt;", "&lt;", "&#39;", "&#34;"};
    for (int i = 0; i < 5 && !s->markup; i++)
        s = tn_jstr_replace(j, s, tn_jstr_span(j, from[i], 1, false),
                            tn_jstr_span(j, to[i], strlen(to[i]), false), -1);
    return s;
}

tn_jval tn_j_binary(tn_jinja *j, int op, tn_jval a, tn_jval b) {
    tn_j_check_defined(j, a);
    if (op == '%' && a.type == J_STRING) {
        tn_jval args = b;
        if (b.type != J_LIST || b.u.l->kind != J_TUPLE) {
            args = tn_j_list(j, 1, J_TUPLE);
            tn_j_push(j, args, b);
        }
        return tn_j_format(j, a.u.s, args.u.l);
    }
    tn_j_check_defined(j, b);
    if (tn_j_is_number(a) && tn_j_is_number(b)) {
        if (a.type == J_FLOAT || b.type == J_FLOAT)
            return float_op(j, op, tn_j_as_float(a), tn_j_as_float(b));
        return int_op(j, op, tn_j_as_int(j, a, "a number"), tn_j_as_int(j, b, "a number"));
    }
    if (op == '+' && a.type == J_STRING && b.type == J_STRING) {
        bool markup = a.u.s->markup || b.u.s->markup;
        tn_jbuf buf = {0};
        tn_jbuf_str(j, &buf, markup ? escaped(j, a.u.s) : a.u.s);
        tn_jbuf_str(j, &buf, markup ? escaped(j, b.u.s) : b.u.s);
        tn_jstr *both = (tn_jstr *)(uintptr_t)tn_jbuf_take(j, &buf); /* fresh: not shared yet */
        both->markup = markup;
        return tn_j_str(both);
    }
    if (op == '+' && a.type == J_LIST && b.type == J_LIST && a.u.l->kind == b.u.l->kind &&
        a.u.l->kind <= J_TUPLE) {
        tn_jval out = tn_j_list(j, a.u.l->n + b.u.l->n, a.u.l->kind);
        tn_jsteps(j, (a.u.l->n + b.u.l->n) / 4);
        for (size_t i = 0; i < a.u.l->n; i++) tn_j_push(j, out, a.u.l->v[i]);
        for (size_t i = 0; i < b.u.l->n; i++) tn_j_push(j, out, b.u.l->v[i]);
        return out;
    }
    bool seq_a = a.type == J_STRING || (a.type == J_LIST && a.u.l->kind <= J_TUPLE);
    bool seq_b = b.type == J_STRING || (b.type == J_LIST && b.u.l->kind <= J_TUPLE);
    bool int_a = a.type == J_INT || a.type == J_BOOL, int_b = b.type == J_INT || b.type == J_BOOL;
    if (op == '*' && seq_a && int_b) return repeat(j, a, tn_j_as_int(j, b, "a count"));
    if (op == '*' && int_a && seq_b) return repeat(j, b, tn_j_as_int(j, a, "a count"));
    tn_jfail(j, TERN_E_INVALID, "'%s' does not join %s and %s", op_text(op), tn_j_type_name(a),
             tn_j_type_name(b));
}

bool tn_j_compare(tn_jinja *j, int op, tn_jval a, tn_jval b) {
    switch (op) {
    case J_OP('=', '='): return tn_j_equal(j, a, b);
    case J_OP('!', '='): return !tn_j_equal(j, a, b);
    case J_OP_IN: return tn_j_contains(j, b, a);
    case J_OP_NOT_IN: return !tn_j_contains(j, b, a);
    default: break;
    }
    bool with_equal = op >> 8 == '=', less = (op & 255) == '<';
    bool nan = (a.type == J_FLOAT && isnan(a.u.f)) || (b.type == J_FLOAT && isnan(b.u.f));
    int c = tn_j_order(j, a, b, less ? with_equal ? "<=" : "<" : with_equal ? ">=" : ">");
    return !nan && (less ? with_equal ? c <= 0 : c < 0 : with_equal ? c >= 0 : c > 0);
}

static tn_jval compare(tn_jinja *j, const tn_jnode *n) {
    tn_jval a = tn_jeval(j, n->a);
    for (const tn_jnode *k = n->kids; k; k = k->next) {
        tn_jval b = tn_jeval(j, k->a);
        if (!tn_j_compare(j, k->op, a, b)) return tn_j_bool(false);
        a = b;
    }
    return tn_j_bool(true);
}

/* ---- the rest ---- */

void tn_jeval_args(tn_jinja *j, const tn_jnode *kids, tn_jargs *a) {
    size_t n = 0;
    for (const tn_jnode *k = kids; k; k = k->next) n++;
    tn_jval pos = tn_j_list(j, n, J_PLAIN), names = tn_j_dict(j, n);
    for (const tn_jnode *k = kids; k; k = k->next) {
        if (k->kind == JN_KEYWORD) {
            tn_jval name = tn_j_str(k->name);
            if (tn_j_get(j, names.u.d, name)) tn_jfail(j, TERN_E_INVALID, "an argument is given twice");
            tn_j_put(j, names, name, tn_jeval(j, k->a));
        } else if (k->kind == JN_SPREAD) {
            tn_jlist *l = tn_j_iter(j, tn_jeval(j, k->a));
            for (size_t i = 0; i < l->n; i++) tn_j_push(j, pos, l->v[i]);
        } else if (k->kind == JN_SPREAD2) {
            tn_jval d = tn_jeval(j, k->a);
            if (d.type != J_DICT) tn_jfail(j, TERN_E_INVALID, "** wants a dict, not %s", tn_j_type_name(d));
            for (size_t i = 0; i < d.u.d->n; i++) {
                tn_j_need_str(j, d.u.d->keys[i], "an argument's name");
                tn_j_put(j, names, d.u.d->keys[i], d.u.d->vals[i]);
            }
        } else {
            tn_j_push(j, pos, tn_jeval(j, k));
        }
    }
    *a =
        (tn_jargs){.pos = pos.u.l->v, .n_pos = pos.u.l->n, .named = names.u.d->vals, .n_named = names.u.d->n};
    a->names = tn_jalloc(j, a->n_named, sizeof *a->names);
    for (size_t i = 0; i < a->n_named; i++) a->names[i] = names.u.d->keys[i].u.s;
}

static tn_jval name(tn_jinja *j, const tn_jnode *n) {
    for (const tn_jscope *s = j->scope; s; s = s->parent) {
        tn_jsteps(j, 1);
        const tn_jvar *var = tn_jscope_find(j, s, n->name);
        if (var) return var->value;
    }
    return tn_j_undefined(j, "'%.*s' is undefined", (int)(n->name->n < 60 ? n->name->n : 60), n->name->p);
}

static tn_jval literal(tn_jinja *j, const tn_jnode *n) {
    if (n->kind == JN_DICT) {
        tn_jval d = tn_j_dict(j, 4);
        for (const tn_jnode *k = n->kids; k; k = k->next) {
            tn_jval key = tn_jeval(j, k->a);
            tn_j_put(j, d, key, tn_jeval(j, k->b));
        }
        return d;
    }
    if (n->kind == JN_CONCAT) {
        tn_jbuf b = {0};
        for (const tn_jnode *k = n->kids; k; k = k->next) tn_jbuf_str(j, &b, tn_j_to_str(j, tn_jeval(j, k)));
        return tn_j_str(tn_jbuf_take(j, &b));
    }
    tn_jval l = tn_j_list(j, 4, n->kind == JN_TUPLE ? J_TUPLE : J_PLAIN);
    for (const tn_jnode *k = n->kids; k; k = k->next) tn_j_push(j, l, tn_jeval(j, k));
    return l;
}

static tn_jval filter_or_test(tn_jinja *j, const tn_jnode *n) {
    tn_jval v = tn_jeval(j, n->a);
    tn_jargs a;
    tn_jeval_args(j, n->kids, &a);
    j->line = n->line;
    return n->kind == JN_FILTER ? tn_jfilter(j, n->name, v, &a) : tn_j_bool(tn_jtest(j, n->name, v, &a));
}

static tn_jval call(tn_jinja *j, const tn_jnode *n) {
    tn_jval f = tn_jeval(j, n->a);
    tn_jargs a;
    tn_jeval_args(j, n->kids, &a);
    j->line = n->line;
    return tn_jcall(j, f, &a);
}

static tn_jval sign(tn_jinja *j, const tn_jnode *n) {
    tn_jval v = tn_jeval(j, n->a);
    tn_j_check_defined(j, v);
    if (!tn_j_is_number(v)) tn_jfail(j, TERN_E_INVALID, "a sign in front of %s", tn_j_type_name(v));
    if (v.type == J_FLOAT) return tn_j_float(n->kind == JN_NEGATE ? -v.u.f : v.u.f);
    int64_t i = tn_j_as_int(j, v, "a number");
    return n->kind == JN_NEGATE ? int_op(j, '-', 0, i) : tn_j_int(i);
}

static tn_jval logic(tn_jinja *j, const tn_jnode *n) {
    if (n->kind == JN_NOT) return tn_j_bool(!tn_j_truth(j, tn_jeval(j, n->a)));
    if (n->kind == JN_COND) {
        if (tn_j_truth(j, tn_jeval(j, n->b))) return tn_jeval(j, n->a);
        return n->c ? tn_jeval(j, n->c) : tn_j_undefined(j, "a conditional without else was false");
    }
    tn_jval a = tn_jeval(j, n->a);
    return tn_j_truth(j, a) == (n->kind == JN_OR) ? a : tn_jeval(j, n->b);
}

tn_jval tn_jeval(tn_jinja *j, const tn_jnode *n) {
    tn_jval v, w;
    tn_jenter(j);
    tn_jsteps(j, 1);
    j->line = n->line;
    switch (n->kind) {
    case JN_CONST: v = n->value; break;
    case JN_NAME: v = name(j, n); break;
    case JN_LIST:
    case JN_TUPLE:
    case JN_DICT:
    case JN_CONCAT: v = literal(j, n); break;
    case JN_ATTR: v = tn_j_attr(j, tn_jeval(j, n->a), n->name); break;
    case JN_ITEM:
        w = tn_jeval(j, n->a);
        v = n->b->kind == JN_SLICE ? slice(j, w, n->b) : item_at(j, w, tn_jeval(j, n->b));
        break;
    case JN_CALL: v = call(j, n); break;
    case JN_FILTER:
    case JN_TEST: v = filter_or_test(j, n); break;
    case JN_NEGATE:
    case JN_PLUS: v = sign(j, n); break;
    case JN_BINARY:
        w = tn_jeval(j, n->a);
        v = tn_j_binary(j, n->op, w, tn_jeval(j, n->b));
        break;
    case JN_AND:
    case JN_OR:
    case JN_NOT:
    case JN_COND: v = logic(j, n); break;
    case JN_COMPARE: v = compare(j, n); break;
    default: tn_jfail(j, TERN_E_FORMAT, "a statement where a value is expected");
    }
    tn_jleave(j);
    return v;
}
