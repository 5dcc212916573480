/* text/jinja/parse.c - tokens as a tree, by jinja2's grammar and precedences.
 *
 * The fields of a node are described where it is made. Tags that read other files (include, extends, ...) and
 * tags of extensions that Hugging Face does not load are refused by name. */
#include "text/jinja/impl.h"

#include <assert.h>

typedef struct parser {
    tn_jinja *j;
    const tn_jtoken *t; /* the next token */
    int loops;          /* open around the statement */
} parser;

static tn_jnode *expression(parser *p);
static tn_jnode *conditional(parser *p, bool with_if);
static tn_jnode *unary(parser *p, bool with_filters);
static tn_jnode *statements(parser *p, const char *const *ends);

static tn_jnode *node(parser *p, tn_jkind kind) {
    tn_jnode *n = tn_jalloc(p->j, 1, sizeof *n);
    n->kind = kind;
    n->line = p->t->line;
    return n;
}

static void take(parser *p) {
    assert(p->t->type != JT_EOF);
    p->t++;
    p->j->line = p->t->line;
}

static bool is_op(const parser *p, int op) { return p->t->type == JT_OP && p->t->op == op; }
static bool is_word(const parser *p, const char *w) {
    return p->t->type == JT_NAME && tn_jstr_is(p->t->s, w);
}
static bool skip_op(parser *p, int op) {
    if (!is_op(p, op)) return false;
    take(p);
    return true;
}
static bool skip_word(parser *p, const char *w) {
    if (!is_word(p, w)) return false;
    take(p);
    return true;
}

static _Noreturn void unexpected(parser *p, const char *want) {
    const tn_jtoken *t = p->t;
    p->j->line = t->line;
    if (t->type == JT_NAME)
        tn_jfail(p->j, TERN_E_FORMAT, "'%.*s' where %s is expected", (int)(t->s->n < 40 ? t->s->n : 40),
                 t->s->p, want);
    if (t->type == JT_OP)
        tn_jfail(p->j, TERN_E_FORMAT, "'%c%.1s' where %s is expected", t->op & 255,
                 (const char[]){(char)(t->op >> 8), 0}, want);
    static const char *const names[] = {"text",     "{{",       "}}",       "{%", "%}",     "",
                                        "a string", "a number", "a number", "",   "the end"};
    tn_jfail(p->j, TERN_E_FORMAT, "%s where %s is expected", names[t->type], want);
}

static void expect_op(parser *p, int op) {
    const char want[] = {'\'', (char)op, '\'', 0};
    if (!skip_op(p, op)) unexpected(p, want);
}

static const tn_jstr *expect_name(parser *p) {
    if (p->t->type != JT_NAME) unexpected(p, "a name");
    const tn_jstr *s = p->t->s;
    take(p);
    return s;
}

static void end_block(parser *p) {
    if (p->t->type != JT_BLOCK_END) unexpected(p, "%}");
    take(p);
}

/* Appends to the list whose end is *tail. */
static void append(tn_jnode ***tail, tn_jnode *n) {
    **tail = n;
    *tail = &n->next;
}

/* ---- expressions ---- */

/* Fills kids with arguments: those by name are JN_KEYWORD with `a`, * and ** are JN_SPREAD and JN_SPREAD2. */
static void call_args(parser *p, tn_jnode *call) {
    tn_jnode **tail = &call->kids;
    bool named = false;
    expect_op(p, '(');
    while (!is_op(p, ')')) {
        tn_jnode *arg;
        if (is_op(p, '*') || is_op(p, J_OP('*', '*'))) {
            arg = node(p, is_op(p, '*') ? JN_SPREAD : JN_SPREAD2);
            take(p);
            arg->a = expression(p);
        } else if (p->t->type == JT_NAME && p->t[1].type == JT_OP && p->t[1].op == '=') {
            arg = node(p, JN_KEYWORD);
            arg->name = expect_name(p);
            take(p);
            arg->a = expression(p);
            named = true;
        } else {
            if (named) unexpected(p, "an argument by name");
            arg = expression(p);
        }
        append(&tail, arg);
        if (!is_op(p, ')')) expect_op(p, ',');
    }
    take(p);
}

/* Parses after a `(`: an expression, or a tuple if there is a comma or nothing. */
static tn_jnode *tuple_body(parser *p, bool with_if, bool parens) {
    tn_jnode *n = node(p, JN_TUPLE), **tail = &n->kids;
    bool comma = false;
    for (;;) {
        bool ends = p->t->type == JT_VAR_END || p->t->type == JT_BLOCK_END || is_op(p, ')') ||
                    (!with_if && is_word(p, "recursive"));
        if (ends) break;
        append(&tail, conditional(p, with_if));
        comma = is_op(p, ',');
        if (!skip_op(p, ',')) break;
    }
    if (!n->kids && !parens) unexpected(p, "an expression");
    return n->kids && !n->kids->next && !comma ? n->kids : n;
}

static tn_jnode *dict_literal(parser *p) { /* kids: JN_PAIR a, b */
    tn_jnode *n = node(p, JN_DICT), **tail = &n->kids;
    expect_op(p, '{');
    while (!is_op(p, '}')) {
        tn_jnode *pair = node(p, JN_PAIR);
        pair->a = expression(p);
        expect_op(p, ':');
        pair->b = expression(p);
        append(&tail, pair);
        if (!is_op(p, '}')) expect_op(p, ',');
    }
    take(p);
    return n;
}

static tn_jnode *list_literal(parser *p) { /* kids */
    tn_jnode *n = node(p, JN_LIST), **tail = &n->kids;
    expect_op(p, '[');
    while (!is_op(p, ']')) {
        append(&tail, expression(p));
        if (!is_op(p, ']')) expect_op(p, ',');
    }
    take(p);
    return n;
}

static tn_jnode *constant(parser *p, tn_jval v) {
    tn_jnode *n = node(p, JN_CONST);
    n->value = v;
    take(p);
    return n;
}

static tn_jnode *primary(parser *p) {
    const tn_jtoken *t = p->t;
    if (t->type == JT_NAME) {
        if (is_word(p, "true") || is_word(p, "True")) return constant(p, tn_j_bool(true));
        if (is_word(p, "false") || is_word(p, "False")) return constant(p, tn_j_bool(false));
        if (is_word(p, "none") || is_word(p, "None")) return constant(p, tn_j_none());
        tn_jnode *n = node(p, JN_NAME);
        n->name = expect_name(p);
        return n;
    }
    if (t->type == JT_STRING) {
        tn_jbuf b = {0}; /* adjacent strings are one */
        tn_jnode *n = node(p, JN_CONST);
        for (; p->t->type == JT_STRING; take(p)) tn_jbuf_str(p->j, &b, p->t->s);
        n->value = tn_j_str(tn_jbuf_take(p->j, &b));
        return n;
    }
    if (t->type == JT_INT || t->type == JT_FLOAT) return constant(p, t->v);
    if (skip_op(p, '(')) {
        tn_jnode *n = tuple_body(p, true, true);
        expect_op(p, ')');
        return n;
    }
    if (is_op(p, '[')) return list_literal(p);
    if (is_op(p, '{')) return dict_literal(p);
    unexpected(p, "an expression");
}

/* Parses between square brackets: a JN_SLICE (a, b, c may be NULL), an expression, or a tuple of several. */
static tn_jnode *subscript(parser *p) {
    tn_jnode *parts[3] = {0};
    int n = 0;
    bool slice = false;
    for (; !is_op(p, ']');) {
        if (is_op(p, ':')) {
            slice = true;
            take(p);
            if (++n == 3) unexpected(p, "']'");
            continue;
        }
        if (parts[n]) unexpected(p, "']'");
        parts[n] = expression(p);
        if (is_op(p, ',')) tn_jfail(p->j, TERN_E_UNSUPPORTED, "subscripts with a comma are not supported");
    }
    if (!slice && !parts[0]) unexpected(p, "an index");
    if (!slice) return parts[0];
    tn_jnode *s = node(p, JN_SLICE);
    s->a = parts[0];
    s->b = parts[1];
    s->c = parts[2];
    return s;
}

/* Parses after a value: .name, [index], (call). a is the value, b of a JN_ITEM the index. */
static tn_jnode *postfix(parser *p, tn_jnode *v) {
    for (;;) {
        tn_jnode *n;
        if (is_op(p, '.')) {
            take(p);
            if (p->t->type == JT_INT) {
                n = node(p, JN_ITEM);
                n->b = constant(p, p->t->v);
            } else {
                n = node(p, JN_ATTR);
                n->name = expect_name(p);
            }
        } else if (is_op(p, '[')) {
            n = node(p, JN_ITEM);
            take(p);
            n->b = subscript(p);
            expect_op(p, ']');
        } else if (is_op(p, '(')) {
            n = node(p, JN_CALL);
            call_args(p, n);
        } else {
            return v;
        }
        n->a = v;
        v = n;
    }
}

static const tn_jstr *dotted_name(parser *p) {
    const tn_jstr *first = expect_name(p);
    if (!is_op(p, '.')) return first;
    tn_jbuf b = {0};
    tn_jbuf_str(p->j, &b, first);
    while (skip_op(p, '.')) {
        tn_jbuf_text(p->j, &b, ".");
        tn_jbuf_str(p->j, &b, expect_name(p));
    }
    return tn_jbuf_take(p->j, &b);
}

/* Parses a filter: a is what is filtered (NULL: the text of a block), then name, and kids with the
 * arguments. */
static tn_jnode *one_filter(parser *p, tn_jnode *v) {
    tn_jnode *n = node(p, JN_FILTER);
    n->name = dotted_name(p);
    n->a = v;
    if (is_op(p, '(')) call_args(p, n);
    return n;
}

static tn_jnode *one_test(parser *p, tn_jnode *v) {
    bool negated = skip_word(p, "not");
    tn_jnode *n = node(p, JN_TEST);
    n->name = dotted_name(p);
    n->a = v;
    const tn_jtoken *t = p->t;
    bool starts = t->type == JT_NAME || t->type == JT_STRING || t->type == JT_INT || t->type == JT_FLOAT ||
                  is_op(p, '[') || is_op(p, '{');
    if (is_op(p, '(')) {
        call_args(p, n);
    } else if (starts && !is_word(p, "else") && !is_word(p, "or") && !is_word(p, "and")) {
        if (is_word(p, "is")) tn_jfail(p->j, TERN_E_FORMAT, "tests cannot be chained");
        n->kids = postfix(p, primary(p));
    }
    if (!negated) return n;
    tn_jnode *not = node(p, JN_NOT);
    not ->a = n;
    return not ;
}

static tn_jnode *unary(parser *p, bool with_filters) {
    tn_jnode *n;
    tn_jenter(p->j);
    if (is_op(p, '-') || is_op(p, '+')) {
        n = node(p, is_op(p, '-') ? JN_NEGATE : JN_PLUS);
        take(p);
        n->a = unary(p, false);
    } else {
        n = primary(p);
    }
    n = postfix(p, n);
    while (with_filters) {
        if (skip_op(p, '|')) {
            n = one_filter(p, n);
        } else if (skip_word(p, "is")) {
            n = one_test(p, n);
        } else if (is_op(p, '(')) {
            tn_jnode *call = node(p, JN_CALL);
            call->a = n;
            call_args(p, call);
            n = call;
        } else {
            break;
        }
    }
    tn_jleave(p->j);
    return n;
}

static tn_jnode *binary(parser *p, int op, tn_jnode *a, tn_jnode *b) {
    tn_jnode *n = node(p, JN_BINARY);
    n->op = op;
    n->a = a;
    n->b = b;
    return n;
}

static tn_jnode *power(parser *p) {
    tn_jnode *n = unary(p, true);
    while (skip_op(p, J_OP('*', '*'))) n = binary(p, J_OP('*', '*'), n, unary(p, true));
    return n;
}

static tn_jnode *product(parser *p) {
    tn_jnode *n = power(p);
    while (is_op(p, '*') || is_op(p, '/') || is_op(p, J_OP('/', '/')) || is_op(p, '%')) {
        int op = p->t->op;
        take(p);
        n = binary(p, op, n, power(p));
    }
    return n;
}

static tn_jnode *concat(parser *p) { /* kids */
    tn_jnode *first = product(p);
    if (!is_op(p, '~')) return first;
    tn_jnode *n = node(p, JN_CONCAT), **tail = &n->kids;
    append(&tail, first);
    while (skip_op(p, '~')) append(&tail, product(p));
    return n;
}

static tn_jnode *sum(parser *p) {
    tn_jnode *n = concat(p);
    while (is_op(p, '+') || is_op(p, '-')) {
        int op = p->t->op;
        take(p);
        n = binary(p, op, n, concat(p));
    }
    return n;
}

/* Parses comparisons: a is the first value, and kids are JN_PAIR with op and a, compared with the one
 * before. */
static tn_jnode *comparison(parser *p) {
    static const int ops[] = {J_OP('=', '='), J_OP('!', '='), '<', J_OP('<', '='), '>', J_OP('>', '=')};
    tn_jnode *first = sum(p), *n = NULL, **tail = NULL;
    for (;;) {
        int op = 0;
        for (size_t i = 0; i < sizeof ops / sizeof *ops; i++)
            if (is_op(p, ops[i])) op = ops[i];
        if (is_word(p, "in")) op = J_OP_IN;
        bool not_in = is_word(p, "not") && p->t[1].type == JT_NAME && tn_jstr_is(p->t[1].s, "in");
        if (not_in) {
            op = J_OP_NOT_IN;
            take(p);
        }
        if (!op) return n ? n : first;
        if (!n) {
            n = node(p, JN_COMPARE);
            n->a = first;
            tail = &n->kids;
        }
        take(p);
        tn_jnode *pair = node(p, JN_PAIR);
        pair->op = op;
        pair->a = sum(p);
        append(&tail, pair);
    }
}

static tn_jnode *negation(parser *p) {
    if (!is_word(p, "not")) return comparison(p);
    tn_jenter(p->j);
    tn_jnode *n = node(p, JN_NOT);
    take(p);
    n->a = negation(p);
    tn_jleave(p->j);
    return n;
}

static tn_jnode *conjunction(parser *p) {
    tn_jnode *n = negation(p);
    while (skip_word(p, "and")) {
        tn_jnode *both = node(p, JN_AND);
        both->a = n;
        both->b = negation(p);
        n = both;
    }
    return n;
}

static tn_jnode *disjunction(parser *p) {
    tn_jnode *n = conjunction(p);
    while (skip_word(p, "or")) {
        tn_jnode *either = node(p, JN_OR);
        either->a = n;
        either->b = conjunction(p);
        n = either;
    }
    return n;
}

/* Parses JN_COND: a if b else c (NULL: undefined). */
static tn_jnode *conditional(parser *p, bool with_if) {
    tn_jenter(p->j);
    tn_jnode *n = disjunction(p);
    while (with_if && skip_word(p, "if")) {
        tn_jnode *cond = node(p, JN_COND);
        cond->a = n;
        cond->b = disjunction(p);
        cond->c = skip_word(p, "else") ? conditional(p, true) : NULL;
        n = cond;
    }
    tn_jleave(p->j);
    return n;
}

static tn_jnode *expression(parser *p) { return conditional(p, true); }

/* ---- statements ---- */

/* Parses names to assign to: JN_NAME, JN_ATTR of a name (with_attr), or a JN_TUPLE of them. */
static tn_jnode *one_target(parser *p, bool with_attr) {
    tn_jnode *n = node(p, JN_NAME);
    if (skip_op(p, '(')) {
        n = node(p, JN_TUPLE);
        tn_jnode **tail = &n->kids;
        tn_jenter(p->j);
        while (!is_op(p, ')')) {
            append(&tail, one_target(p, false));
            if (!is_op(p, ')')) expect_op(p, ',');
        }
        tn_jleave(p->j);
        take(p);
        return n;
    }
    n->name = expect_name(p);
    if (!with_attr || !is_op(p, '.')) return n;
    take(p);
    tn_jnode *attr = node(p, JN_ATTR);
    attr->a = n;
    attr->name = expect_name(p);
    return attr;
}

static tn_jnode *targets(parser *p, bool with_attr) {
    tn_jnode *first = one_target(p, with_attr);
    if (!is_op(p, ',')) return first;
    tn_jnode *n = node(p, JN_TUPLE), **tail = &n->kids;
    append(&tail, first);
    while (skip_op(p, ',') && p->t->type == JT_NAME && !is_word(p, "in"))
        append(&tail, one_target(p, with_attr));
    return n;
}

static bool ends_here(const parser *p, const char *const *ends) {
    for (; *ends; ends++)
        if (is_word(p, *ends)) return true;
    return false;
}

/* Parses a body up to one of `ends`, without consuming that word. */
static tn_jnode *body(parser *p, const char *const *ends) {
    end_block(p);
    return statements(p, ends);
}

/* Parses an if: a is the condition, then body and orelse. */
static tn_jnode *if_statement(parser *p) {
    tn_jnode *top = node(p, JN_IF), *n = top;
    static const char *const ends[] = {"elif", "else", "endif", NULL}, *const last[] = {"endif", NULL};
    for (;;) {
        n->a = tuple_body(p, false, false);
        n->body = body(p, ends);
        if (skip_word(p, "elif")) {
            n->orelse = node(p, JN_IF);
            n = n->orelse;
            continue;
        }
        if (skip_word(p, "else")) n->orelse = body(p, last);
        take(p); /* endif */
        end_block(p);
        return top;
    }
}

/* Parses a for: target, a is over what, b the filter or NULL, then body, orelse and recursive. */
static tn_jnode *for_statement(parser *p) {
    static const char *const ends[] = {"else", "endfor", NULL}, *const last[] = {"endfor", NULL};
    tn_jnode *n = node(p, JN_FOR);
    n->target = targets(p, false);
    if (!skip_word(p, "in")) unexpected(p, "'in'");
    n->a = tuple_body(p, false, false);
    if (skip_word(p, "if")) n->b = expression(p);
    n->recursive = skip_word(p, "recursive");
    p->loops++;
    n->body = body(p, ends);
    p->loops--;
    if (skip_word(p, "else")) n->orelse = body(p, last);
    take(p);
    end_block(p);
    return n;
}

/* Parses JN_SET with target and a, or JN_SET_BLOCK with target, a for filters on the text or NULL, and
 * body. */
static tn_jnode *set_statement(parser *p) {
    static const char *const ends[] = {"endset", NULL};
    tn_jnode *n = node(p, JN_SET);
    n->target = targets(p, true);
    if (skip_op(p, '=')) {
        n->a = tuple_body(p, true, false);
        end_block(p);
        return n;
    }
    n->kind = JN_SET_BLOCK;
    while (skip_op(p, '|')) n->a = one_filter(p, n->a);
    n->body = body(p, ends);
    take(p);
    end_block(p);
    return n;
}

/* Fills kids with JN_NAME, whose a is the default or NULL. */
static void parameters(parser *p, tn_jnode *n) {
    tn_jnode **tail = &n->kids;
    expect_op(p, '(');
    while (!is_op(p, ')')) {
        tn_jnode *param = node(p, JN_NAME);
        param->name = expect_name(p);
        if (skip_op(p, '=')) param->a = expression(p);
        append(&tail, param);
        if (!is_op(p, ')')) expect_op(p, ',');
    }
    take(p);
}

/* Finds which extra names a macro's body uses, as bits of `op`. jinja2 gives a macro varargs or kwargs only
 * if it names them, and refuses extra arguments otherwise. */
static int extras_named(tn_jinja *j, const tn_jtoken *from, const tn_jtoken *to) {
    int found = 0;
    tn_jsteps(j, (uint64_t)(to - from) / 4); /* macros inside macros are searched again */
    for (; from < to; from++) {
        if (from->type != JT_NAME) continue;
        found |= tn_jstr_is(from->s, "varargs") | tn_jstr_is(from->s, "kwargs") << 1 |
                 tn_jstr_is(from->s, "caller") << 2;
    }
    return found;
}

static tn_jnode *macro_statement(parser *p) {
    static const char *const ends[] = {"endmacro", NULL};
    tn_jnode *n = node(p, JN_MACRO);
    int loops = p->loops;
    n->name = expect_name(p);
    parameters(p, n);
    const tn_jtoken *from = p->t;
    p->loops = 0;
    n->body = body(p, ends);
    p->loops = loops;
    n->op = extras_named(p->j, from, p->t);
    take(p);
    end_block(p);
    return n;
}

/* Parses a call block: kids are the parameters of the block, a is the call, then body. */
static tn_jnode *call_block(parser *p) {
    static const char *const ends[] = {"endcall", NULL};
    tn_jnode *n = node(p, JN_CALL_BLOCK);
    if (is_op(p, '(')) parameters(p, n);
    n->a = expression(p);
    if (n->a->kind != JN_CALL) tn_jfail(p->j, TERN_E_FORMAT, "a call block without a call");
    const tn_jtoken *from = p->t;
    n->body = body(p, ends);
    n->op = extras_named(p->j, from, p->t);
    take(p);
    end_block(p);
    return n;
}

static tn_jnode *filter_block(parser *p) { /* a: filters, body */
    static const char *const ends[] = {"endfilter", NULL};
    tn_jnode *n = node(p, JN_FILTER_BLOCK);
    do n->a = one_filter(p, n->a);
    while (skip_op(p, '|'));
    n->body = body(p, ends);
    take(p);
    end_block(p);
    return n;
}

static tn_jnode *with_statement(parser *p) { /* kids: JN_PAIR target, a; body */
    static const char *const ends[] = {"endwith", NULL};
    tn_jnode *n = node(p, JN_WITH), **tail = &n->kids;
    while (p->t->type != JT_BLOCK_END) {
        if (n->kids) expect_op(p, ',');
        tn_jnode *pair = node(p, JN_PAIR);
        pair->target = one_target(p, false);
        expect_op(p, '=');
        pair->a = expression(p);
        append(&tail, pair);
    }
    n->body = body(p, ends);
    take(p);
    end_block(p);
    return n;
}

static tn_jnode *statement(parser *p) {
    static const char *const generation[] = {"endgeneration", NULL};
    const tn_jstr *word = expect_name(p);
    if (tn_jstr_is(word, "if")) return if_statement(p);
    if (tn_jstr_is(word, "for")) return for_statement(p);
    if (tn_jstr_is(word, "set")) return set_statement(p);
    if (tn_jstr_is(word, "macro")) return macro_statement(p);
    if (tn_jstr_is(word, "call")) return call_block(p);
    if (tn_jstr_is(word, "filter")) return filter_block(p);
    if (tn_jstr_is(word, "with")) return with_statement(p);
    bool leaves = tn_jstr_is(word, "break");
    if (leaves || tn_jstr_is(word, "continue")) {
        if (!p->loops) tn_jfail(p->j, TERN_E_FORMAT, "%s outside a loop", leaves ? "break" : "continue");
        tn_jnode *n = node(p, leaves ? JN_BREAK : JN_CONTINUE);
        end_block(p);
        return n;
    }
    if (tn_jstr_is(word, "generation")) { /* marks the assistant's text for training: no effect on it */
        tn_jnode *n = node(p, JN_GROUP);
        n->body = body(p, generation);
        take(p);
        end_block(p);
        return n;
    }
    static const char *const others[] = {"include", "import", "from",  "extends",   "block",
                                         "do",      "trans",  "debug", "autoescape"};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (tn_jstr_is(word, others[i]))
            tn_jfail(p->j, TERN_E_UNSUPPORTED, "the tag '%s' is not supported", others[i]);
    tn_jfail(p->j, TERN_E_FORMAT, "unknown tag '%.*s'", (int)(word->n < 40 ? word->n : 40), word->p);
}

static tn_jnode *statements(parser *p, const char *const *ends) {
    tn_jnode *first = NULL, **tail = &first;
    tn_jenter(p->j);
    for (;;) {
        const tn_jtoken *t = p->t;
        if (t->type == JT_EOF) {
            if (*ends) tn_jfail(p->j, TERN_E_FORMAT, "the template ends before %s", ends[0]);
            break;
        }
        tn_jnode *n;
        if (t->type == JT_DATA) {
            n = node(p, JN_DATA);
            n->name = t->s;
            take(p);
        } else if (t->type == JT_VAR_BEGIN) {
            take(p);
            n = node(p, JN_PRINT);
            n->a = tuple_body(p, true, false);
            if (p->t->type != JT_VAR_END) unexpected(p, "}}");
            take(p);
        } else {
            take(p); /* {% */
            if (ends_here(p, ends)) break;
            n = statement(p);
        }
        append(&tail, n);
    }
    tn_jleave(p->j);
    return first;
}

tn_jnode *tn_jparse(tn_jinja *j, const tn_jtoken *tokens) {
    static const char *const none[] = {NULL};
    parser p = {.j = j, .t = tokens};
    j->line = tokens->line;
    return statements(&p, none);
}
