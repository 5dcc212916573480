/* text/jinja/jinja.c - a run from its input to its text: the global functions; JSON as values. */
#include "text/jinja/impl.h"

#include "base/status.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

/* ---- global functions ---- */

static tn_jval g_range(tn_jinja *j, tn_jval self, const tn_jargs *a) {
    (void)self;
    const tn_jval *p[TN_J_MAX_PARAMS];
    tn_jbind(j, "range", a, "start stop step", p);
    if (!p[0]) tn_jfail(j, TERN_E_INVALID, "range wants a number");
    int64_t from = p[1] ? tn_j_as_int(j, *p[0], "range's start") : 0;
    int64_t to = tn_j_as_int(j, p[1] ? *p[1] : *p[0], "range's end"),
            step = p[2] ? tn_j_as_int(j, *p[2], "range's step") : 1;
    if (!step) tn_jfail(j, TERN_E_INVALID, "range's step is zero");
    tn_jval out = tn_j_list(j, 8, J_RANGE);
    while (step > 0 ? from < to : from > to) {
        if (out.u.l->n == TN_J_MAX_RANGE)
            tn_jfail(j, TERN_E_LIMIT, "a range of more than %d", TN_J_MAX_RANGE);
        tn_j_push(j, out, tn_j_int(from));
        if (__builtin_add_overflow(from, step, &from)) break;
    }
    return out;
}

/* Makes a dict or a namespace from a dict or pairs, then from named arguments. */
static tn_jval g_dict(tn_jinja *j, tn_jval self, const tn_jargs *a) {
    (void)self;
    tn_jval d = tn_j_dict(j, 4);
    if (a->n_pos > 1) tn_jfail(j, TERN_E_INVALID, "dict takes one argument without a name");
    if (a->n_pos && a->pos[0].type == J_DICT) {
        const tn_jdict *from = a->pos[0].u.d;
        for (size_t i = 0; i < from->n; i++) tn_j_put(j, d, from->keys[i], from->vals[i]);
    } else if (a->n_pos) {
        tn_j_check_defined(j, a->pos[0]);
        const tn_jlist *l = tn_j_iter(j, a->pos[0]);
        for (size_t i = 0; i < l->n; i++) {
            if (l->v[i].type != J_LIST || l->v[i].u.l->n != 2)
                tn_jfail(j, TERN_E_INVALID, "dict wants pairs");
            tn_j_put(j, d, l->v[i].u.l->v[0], l->v[i].u.l->v[1]);
        }
    }
    for (size_t i = 0; i < a->n_named; i++) tn_j_put(j, d, tn_j_str(a->names[i]), a->named[i]);
    return d;
}
static tn_jval g_namespace(tn_jinja *j, tn_jval self, const tn_jargs *a) {
    tn_jval d = g_dict(j, self, a);
    d.type = J_NAMESPACE;
    return d;
}

static tn_jval g_cycler(tn_jinja *j, tn_jval self, const tn_jargs *a) {
    (void)self;
    if (!a->n_pos || a->n_named) tn_jfail(j, TERN_E_INVALID, "cycler wants items");
    tn_jval state = tn_j_list(j, a->n_pos + 1, J_PLAIN);
    tn_j_push(j, state, tn_j_int(0));
    for (size_t i = 0; i < a->n_pos; i++) tn_j_push(j, state, a->pos[i]);
    return tn_jfunc_new(j, "cycler", NULL, state);
}

static tn_jval join_next(tn_jinja *j, tn_jval self, const tn_jargs *a) {
    (void)a;
    bool used = self.u.l->v[1].u.b;
    self.u.l->v[1] = tn_j_bool(true);
    return used ? self.u.l->v[0] : tn_j_text(j, "");
}
static tn_jval g_joiner(tn_jinja *j, tn_jval self, const tn_jargs *a) {
    (void)self;
    const tn_jval *p[TN_J_MAX_PARAMS];
    tn_jbind(j, "joiner", a, "sep", p);
    tn_jval state = tn_j_list(j, 2, J_PLAIN);
    tn_j_push(j, state, p[0] ? *p[0] : tn_j_text(j, ", "));
    tn_j_push(j, state, tn_j_bool(false));
    return tn_jfunc_new(j, "joiner", join_next, state);
}

static tn_jval g_raise(tn_jinja *j, tn_jval self, const tn_jargs *a) {
    (void)self;
    const tn_jstr *s = a->n_pos ? tn_j_to_str(j, a->pos[0]) : tn_jstr_span(j, "", 0, false);
    tn_jfail(j, TERN_E_INVALID, "it refuses the conversation: %.*s", (int)(s->n < 300 ? s->n : 300), s->p);
}

static tn_jval g_strftime(tn_jinja *j, tn_jval self, const tn_jargs *a) {
    (void)self;
    const tn_jval *p[TN_J_MAX_PARAMS];
    tn_jbind(j, "strftime_now", a, "format", p);
    const tn_jstr *s = p[0] ? tn_j_need_str(j, *p[0], "strftime_now") : NULL;
    if (!s || s->n > 200 || memchr(s->p, 0, s->n)) tn_jfail(j, TERN_E_INVALID, "strftime_now wants a format");
    char format[256], text[1024];
    memcpy(format, s->p, s->n);
    format[s->n] = 0;
    time_t t = (time_t)j->now_s;
    struct tm tm;
    if (!localtime_r(&t, &tm)) tn_jfail(j, TERN_E_INVALID, "the time cannot be told");
    size_t n = strftime(text, sizeof text, format, &tm);
    return tn_j_str(tn_jstr_copy(j, text, n, false));
}

static void define_globals(tn_jinja *j) {
    static const struct {
        const char *name;
        tn_jbuiltin call;
    } all[] = {{"range", g_range},          {"dict", g_dict},     {"namespace", g_namespace},
               {"cycler", g_cycler},        {"joiner", g_joiner}, {"raise_exception", g_raise},
               {"strftime_now", g_strftime}};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        tn_jset(j, j->scope, tn_jstr_span(j, all[i].name, strlen(all[i].name), false),
                tn_jfunc_new(j, all[i].name, all[i].call, tn_j_none()));
}

/* ---- JSON as values ---- */

/* Roles with well-known names are not content: they select markers and cannot spell any. */
static bool known_role(const char *s, size_t n) {
    static const char *const roles[] = {"system",   "user",  "assistant", "tool",        "developer",
                                        "function", "model", "ipython",   "environment", "observation"};
    for (size_t i = 0; i < sizeof roles / sizeof *roles; i++)
        if (strlen(roles[i]) == n && !memcmp(roles[i], s, n)) return true;
    return false;
}

static tn_jval from_json(tn_jinja *j, const json_t *v, bool content) {
    tn_jval out = tn_j_none();
    tn_jenter(j);
    switch (json_typeof(v)) {
    case JSON_OBJECT: {
        const char *key;
        json_t *x;
        out = tn_j_dict(j, json_object_size(v));
        json_object_foreach((json_t *)(uintptr_t)v, key, x) {
            tn_jdict *d = out.u.d; /* keys of an object are distinct */
            d->keys[d->n] = tn_j_str(tn_jstr_span(j, key, strlen(key), content));
            d->vals[d->n++] = from_json(j, x, content);
        }
        break;
    }
    case JSON_ARRAY:
        out = tn_j_list(j, json_array_size(v), J_PLAIN);
        for (size_t i = 0; i < json_array_size(v); i++)
            tn_j_push(j, out, from_json(j, json_array_get(v, i), content));
        break;
    case JSON_STRING:
        out = tn_j_str(tn_jstr_span(j, json_string_value(v), json_string_length(v), content));
        break;
    case JSON_INTEGER: out = tn_j_int(json_integer_value(v)); break;
    case JSON_REAL: out = tn_j_float(json_real_value(v)); break;
    case JSON_TRUE:
    case JSON_FALSE: out = tn_j_bool(json_is_true(v)); break;
    case JSON_NULL: break;
    }
    tn_jleave(j);
    return out;
}

static void trust_roles(tn_jinja *j, tn_jval messages) {
    tn_jval role = tn_j_text(j, "role");
    for (size_t i = 0; messages.type == J_LIST && i < messages.u.l->n; i++) {
        tn_jval m = messages.u.l->v[i];
        const tn_jval *v = m.type == J_DICT ? tn_j_get(j, m.u.d, role) : NULL;
        if (!v || v->type != J_STRING || !known_role(v->u.s->p, v->u.s->n)) continue;
        tn_j_put(j, m, role, tn_j_str(tn_jstr_span(j, v->u.s->p, v->u.s->n, false)));
    }
}

static void set_variables(tn_jinja *j, const json_t *object, bool content) {
    const char *key;
    json_t *x;
    json_object_foreach((json_t *)(uintptr_t)object, key, x) {
        tn_jval v = from_json(j, x, content);
        if (!strcmp(key, "messages")) trust_roles(j, v);
        tn_jset(j, j->scope, tn_jstr_span(j, key, strlen(key), false), v);
    }
}

/* ---- the run ---- */

static size_t json_bytes(const json_t *v) { /* roughly its size, counting only strings */
    size_t n = 32;
    const char *key;
    json_t *x;
    if (json_is_string(v)) n += json_string_length(v);
    for (size_t i = 0; i < json_array_size(v); i++) n += json_bytes(json_array_get(v, i));
    json_object_foreach((json_t *)(uintptr_t)v, key, x) n += strlen(key) + json_bytes(x);
    return n;
}

static void run(tn_jinja *j, const tn_jinja_input *in, tn_segments *out) {
    tn_jbuf text = {0};
    j->out = &text;
    j->scope = tn_jscope_new(j, NULL);
    define_globals(j);
    j->scope = tn_jscope_new(j, j->scope);
    set_variables(j, in->variables, true);
    set_variables(j, in->trusted, false);
    const tn_jnode *tree = tn_jparse(j, tn_jlex(j, in->source, in->n_source));
    (void)tn_jexec(j, tree);
    size_t from = 0;
    for (size_t i = 0; i < text.n_seg; i++) {
        tn_segments_add(out, text.p + from, text.seg[i].end - from, text.seg[i].content);
        from = text.seg[i].end;
    }
    if (out->failed) tn_jfail(j, TERN_E_MEMORY, "out of memory for the conversation");
}

/* A separate function, so that none of its variables changes between setjmp and the jump. */
static void run_guarded(tn_jinja *j, const tn_jinja_input *in, tn_segments *out) {
    if (!setjmp(j->fail)) run(j, in, out);
}

tern_status tn_jinja_render(tn_ctx *ctx, const tn_jinja_input *in, tn_segments *out, tern_error *err) {
    enum { MIB = 1 << 20, DEFAULT_STEPS = 20000000 };
    tn_jinja j = {.ctx = ctx, .err = err, .now_s = in->now_s};
    j.max_bytes =
        in->max_bytes ? in->max_bytes : 64 * MIB + 32 * (uint64_t)(json_bytes(in->variables) + in->n_source);
    j.max_steps = in->max_steps ? in->max_steps : DEFAULT_STEPS;
    run_guarded(&j, in, out);
    tn_jrelease(&j);
    return j.status;
}
