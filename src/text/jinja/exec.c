/* text/jinja/exec.c - statements, macros, loops. A loop's body, a macro and the blocks that make text have
 * scopes of their own; `if` has none. */
#include "text/jinja/impl.h"

tn_jscope *tn_jscope_new(tn_jinja *j, tn_jscope *parent) {
    tn_jscope *s = tn_jalloc(j, 1, sizeof *s);
    s->parent = parent;
    return s;
}

enum { FEW = 16 }; /* variables, which are compared one by one */

/* Where a name stands or would stand in a scope's table. The last bytes of a long name are enough: every slot that
 * is passed counts. */
static uint32_t *slot_of(tn_jinja *j, const tn_jscope *s, const tn_jstr *name) {
    const size_t mask = 2 * s->cap - 1;
    uint64_t hash = name->n;
    for (size_t i = name->n > 64 ? name->n - 64 : 0; i < name->n; i++)
        hash = (hash ^ (unsigned char)name->p[i]) * 0x100000001b3;
    size_t at = (hash ^ hash >> 32) & mask, passed = 0;
    for (; s->slots[at] && !tn_jstr_eq(s->vars[s->slots[at] - 1].name, name); at = (at + 1) & mask) passed++;
    tn_jsteps(j, passed / 8);
    return &s->slots[at];
}

tn_jvar *tn_jscope_find(tn_jinja *j, const tn_jscope *s, const tn_jstr *name) {
    if (s->slots) {
        const uint32_t place = *slot_of(j, s, name);
        return place ? &s->vars[place - 1] : NULL;
    }
    for (size_t i = 0; i < s->n; i++)
        if (tn_jstr_eq(s->vars[i].name, name)) return &s->vars[i];
    return NULL;
}

static void grow(tn_jinja *j, tn_jscope *s) {
    s->cap = s->cap ? 2 * s->cap : 4;
    tn_jvar *more = tn_jalloc(j, s->cap, sizeof *more);
    if (s->n) memcpy(more, s->vars, s->n * sizeof *more);
    s->vars = more;
    if (s->cap <= FEW) return;
    s->slots = tn_jalloc(j, 2 * s->cap, sizeof *s->slots);
    for (size_t i = 0; i < s->n; i++) *slot_of(j, s, s->vars[i].name) = (uint32_t)(i + 1);
}

void tn_jset(tn_jinja *j, tn_jscope *s, const tn_jstr *name, tn_jval v) {
    tn_jvar *var = tn_jscope_find(j, s, name);
    if (var) {
        var->value = v;
        return;
    }
    if (s->n == s->cap) grow(j, s);
    s->vars[s->n++] = (tn_jvar){name, v};
    if (s->slots) *slot_of(j, s, name) = (uint32_t)s->n;
}

/* Assigns in the current scope. Only a namespace's attributes can be assigned. */
static void assign(tn_jinja *j, const tn_jnode *target, tn_jval v) {
    if (target->kind == JN_NAME) {
        tn_jset(j, j->scope, target->name, v);
        return;
    }
    if (target->kind == JN_ATTR) {
        tn_jval ns = tn_jeval(j, target->a);
        if (ns.type != J_NAMESPACE)
            tn_jfail(j, TERN_E_INVALID, "only a namespace's attributes can be set, not those of %s",
                     tn_j_type_name(ns));
        tn_j_put(j, ns, tn_j_str(target->name), v);
        return;
    }
    tn_j_check_defined(j, v);
    const tn_jlist *l = tn_j_iter(j, v);
    size_t n = 0;
    for (const tn_jnode *k = target->kids; k; k = k->next) n++;
    if (l->n != n) tn_jfail(j, TERN_E_INVALID, "%zu values for %zu names", l->n, n);
    size_t i = 0;
    for (const tn_jnode *k = target->kids; k; k = k->next) assign(j, k, l->v[i++]);
}

/* Returns the text that statements write, in a scope of their own. */
static const tn_jstr *text_of(tn_jinja *j, const tn_jnode *list) {
    tn_jbuf b = {0}, *out = j->out;
    tn_jscope *scope = j->scope;
    j->out = &b;
    j->scope = tn_jscope_new(j, scope);
    (void)tn_jexec(j, list);
    j->out = out;
    j->scope = scope;
    return tn_jbuf_take(j, &b);
}

static tn_jval filtered(tn_jinja *j, const tn_jnode *filter, tn_jval text) {
    tn_jargs a;
    if (!filter) return text;
    tn_jenter(j);
    text = filtered(j, filter->a, text);
    tn_jeval_args(j, filter->kids, &a);
    text = tn_jfilter(j, filter->name, text, &a);
    tn_jleave(j);
    return text;
}

/* ---- loops ---- */

/* Returns the items that pass the loop's condition, which sees the loop's names but no `loop`. */
static tn_jlist *chosen(tn_jinja *j, const tn_jnode *n, tn_jlist *all) {
    if (!n->b) return all;
    tn_jval out = tn_j_list(j, all->n, J_PLAIN);
    tn_jscope *scope = j->scope;
    for (size_t i = 0; i < all->n; i++) {
        j->scope = tn_jscope_new(j, scope);
        assign(j, n->target, all->v[i]);
        if (tn_j_truth(j, tn_jeval(j, n->b))) tn_j_push(j, out, all->v[i]);
    }
    j->scope = scope;
    return out.u.l;
}

static tn_jflow run_loop(tn_jinja *j, const tn_jnode *n, tn_jval over, int depth0) {
    static const tn_jstr loop_name = {.p = "loop", .n = 4};
    tn_jscope *scope = j->scope;
    tn_jloop *loop = tn_jalloc(j, 1, sizeof *loop);
    *loop = (tn_jloop){.items = chosen(j, n, tn_j_iter(j, over)),
                       .depth0 = depth0,
                       .recursive = n->recursive ? n : NULL,
                       .scope = scope,
                       .changed = {.type = J_UNDEFINED}};
    for (; loop->at < loop->items->n; loop->at++) {
        tn_jsteps(j, 1);
        j->scope = tn_jscope_new(j, scope);
        tn_jset(j, j->scope, &loop_name, (tn_jval){.type = J_LOOP, .u.loop = loop});
        assign(j, n->target, loop->items->v[loop->at]);
        if (tn_jexec(j, n->body) == J_BREAK) break;
    }
    tn_jflow flow = J_RUN;
    if (!loop->items->n) {
        j->scope = tn_jscope_new(j, scope);
        flow = tn_jexec(j, n->orelse);
    }
    j->scope = scope;
    return flow;
}

tn_jval tn_jrun_loop(tn_jinja *j, const tn_jnode *n, tn_jval over, int depth0) {
    tn_jbuf b = {0}, *out = j->out;
    j->out = &b;
    (void)run_loop(j, n, over, depth0);
    j->out = out;
    return tn_j_str(tn_jbuf_take(j, &b));
}

/* ---- macros ---- */

static tn_jval *take_named(tn_jinja *j, const tn_jargs *a, bool *used, const tn_jstr *name) {
    tn_jsteps(j, a->n_named / 8);
    for (size_t i = 0; i < a->n_named; i++) {
        if (used[i] || !tn_jstr_eq(a->names[i], name)) continue;
        used[i] = true;
        return &a->named[i];
    }
    return NULL;
}

/* Binds the names that a macro uses beside its parameters; `op` says which (parse.c, extras_named). */
static void bind_extras(tn_jinja *j, const tn_jnode *m, const tn_jargs *a, bool *used, size_t n_pos) {
    static const tn_jstr varargs = {.p = "varargs", .n = 7}, kwargs = {.p = "kwargs", .n = 6},
                         caller = {.p = "caller", .n = 6};
    tn_jval *by = take_named(j, a, used, &caller);
    if (by && !(m->op & 4)) tn_jfail(j, TERN_E_INVALID, "the macro does not call its caller");
    if (m->op & 4) tn_jset(j, j->scope, &caller, by ? *by : tn_j_undefined(j, "no caller is defined"));
    if (n_pos < a->n_pos && !(m->op & 1))
        tn_jfail(j, TERN_E_INVALID, "the macro takes %zu arguments at most", n_pos);
    if (m->op & 1) {
        tn_jval rest = tn_j_list(j, 4, J_TUPLE);
        for (; n_pos < a->n_pos; n_pos++) tn_j_push(j, rest, a->pos[n_pos]);
        tn_jset(j, j->scope, &varargs, rest);
    }
    tn_jval named = tn_j_dict(j, 4);
    for (size_t i = 0; i < a->n_named; i++) {
        if (used[i]) continue;
        if (!(m->op & 2))
            tn_jfail(j, TERN_E_INVALID, "the macro has no argument '%.*s'",
                     (int)(a->names[i]->n < 60 ? a->names[i]->n : 60), a->names[i]->p);
        tn_j_put(j, named, tn_j_str(a->names[i]), a->named[i]);
    }
    if (m->op & 2) tn_jset(j, j->scope, &kwargs, named);
}

tn_jval tn_jcall_macro(tn_jinja *j, const tn_jfunc *f, const tn_jargs *a) {
    const tn_jnode *m = f->macro;
    tn_jscope *scope = j->scope;
    bool *used = tn_jalloc(j, a->n_named, sizeof *used);
    size_t n_pos = 0;
    tn_jenter(j);
    j->scope = tn_jscope_new(j, f->scope);
    for (const tn_jnode *p = m->kids; p; p = p->next) {
        tn_jval *named = take_named(j, a, used, p->name);
        if (named && n_pos < a->n_pos)
            tn_jfail(j, TERN_E_INVALID, "the argument '%.*s' is given twice",
                     (int)(p->name->n < 60 ? p->name->n : 60), p->name->p);
        tn_jval v = n_pos < a->n_pos ? a->pos[n_pos++]
                    : named          ? *named
                    : p->a           ? tn_jeval(j, p->a)
                                     : tn_j_undefined(j, "parameter '%.*s' was not provided",
                                                      (int)(p->name->n < 60 ? p->name->n : 60), p->name->p);
        tn_jset(j, j->scope, p->name, v);
    }
    bind_extras(j, m, a, used, n_pos);
    tn_jval text = tn_j_str(text_of(j, m->body));
    j->scope = scope;
    tn_jleave(j);
    return text;
}

static tn_jval macro_value(tn_jinja *j, const tn_jnode *m) {
    tn_jfunc *f = tn_jalloc(j, 1, sizeof *f);
    *f = (tn_jfunc){.name = "macro", .macro = m, .scope = j->scope};
    return (tn_jval){.type = J_FUNC, .u.fn = f};
}

/* ---- statements ---- */

/* Calls with the block as an additional argument, `caller`. */
static tn_jval call_with_block(tn_jinja *j, const tn_jnode *n) {
    tn_jval f = tn_jeval(j, n->a->a);
    tn_jargs a;
    tn_jeval_args(j, n->a->kids, &a);
    const tn_jstr **names = tn_jalloc(j, a.n_named + 1, sizeof *names);
    tn_jval *named = tn_jalloc(j, a.n_named + 1, sizeof *named);
    if (a.n_named) {
        memcpy(names, a.names, a.n_named * sizeof *names);
        memcpy(named, a.named, a.n_named * sizeof *named);
    }
    names[a.n_named] = tn_jstr_span(j, "caller", 6, false);
    named[a.n_named++] = macro_value(j, n);
    a.names = names;
    a.named = named;
    return tn_jcall(j, f, &a);
}

static tn_jflow with(tn_jinja *j, const tn_jnode *n) {
    tn_jscope *scope = j->scope, *inner = tn_jscope_new(j, scope);
    for (const tn_jnode *k = n->kids; k; k = k->next) { /* all values are evaluated in the outer scope */
        tn_jval v = tn_jeval(j, k->a);
        j->scope = inner;
        assign(j, k->target, v);
        j->scope = scope;
    }
    j->scope = inner;
    tn_jflow flow = tn_jexec(j, n->body);
    j->scope = scope;
    return flow;
}

static tn_jflow exec_one(tn_jinja *j, const tn_jnode *n) {
    tn_jval v;
    switch (n->kind) {
    case JN_DATA: tn_jbuf_str(j, j->out, n->name); break;
    case JN_PRINT: tn_jbuf_str(j, j->out, tn_j_to_str(j, tn_jeval(j, n->a))); break;
    case JN_IF: return tn_jexec(j, tn_j_truth(j, tn_jeval(j, n->a)) ? n->body : n->orelse);
    case JN_FOR: return run_loop(j, n, tn_jeval(j, n->a), 0);
    case JN_SET: assign(j, n->target, tn_jeval(j, n->a)); break;
    case JN_SET_BLOCK:
        v = tn_j_str(text_of(j, n->body));
        assign(j, n->target, filtered(j, n->a, v));
        break;
    case JN_MACRO: tn_jset(j, j->scope, n->name, macro_value(j, n)); break;
    case JN_CALL_BLOCK: tn_jbuf_str(j, j->out, tn_j_to_str(j, call_with_block(j, n))); break;
    case JN_FILTER_BLOCK:
        v = tn_j_str(text_of(j, n->body));
        tn_jbuf_str(j, j->out, tn_j_to_str(j, filtered(j, n->a, v)));
        break;
    case JN_WITH: return with(j, n);
    case JN_GROUP: return tn_jexec(j, n->body);
    case JN_BREAK: return J_BREAK;
    case JN_CONTINUE: return J_CONTINUE;
    default: tn_jfail(j, TERN_E_FORMAT, "a value where a statement is expected");
    }
    return J_RUN;
}

tn_jflow tn_jexec(tn_jinja *j, const tn_jnode *list) {
    tn_jflow flow = J_RUN;
    tn_jenter(j);
    for (; list && flow == J_RUN; list = list->next) {
        tn_jsteps(j, 1);
        j->line = list->line;
        flow = exec_one(j, list);
    }
    tn_jleave(j);
    return flow;
}
