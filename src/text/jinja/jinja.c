/* text/jinja/jinja.c - a run: its memory, limits and failure; the global functions; JSON as values. */
#include "text/jinja/impl.h"

#include "base/status.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

/* ---- memory, limits, failure ---- */

enum { CHUNK_BYTES = 64 << 10 };

typedef struct tn_jchunk {
    struct tn_jchunk *next;
    size_t used, size;
    _Alignas(max_align_t) char bytes[];
} tn_jchunk;

_Noreturn void tn_jfail(tn_jinja *j, tern_status code, const char *fmt, ...) {
    char text[400];
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    if (n < 0) text[0] = 0;
    for (char *c = text; *c; c++) /* one line, whatever the template says */
        if ((uint8_t)*c < ' ' || *c == 0x7f) *c = ' ';
    j->status = tn_fail(j->err, code, "chat template, line %d: %s", j->line, text);
    longjmp(j->fail, 1);
}

void *tn_jalloc(tn_jinja *j, size_t n, size_t size) {
    size_t bytes;
    if (__builtin_mul_overflow(n, size, &bytes) || bytes > j->max_bytes || j->n_bytes > j->max_bytes - bytes)
        tn_jfail(j, TERN_E_LIMIT, "the template takes more than %" PRIu64 " bytes of memory", j->max_bytes);
    j->n_bytes += bytes;
    bytes = (bytes + 15) & ~(size_t)15;
    tn_jchunk *c = j->chunks;
    if (!c || bytes > c->size - c->used) {
        size_t room = bytes > CHUNK_BYTES ? bytes : CHUNK_BYTES;
        c = tn_alloc(j->ctx, TN_MEM_TEXT, sizeof *c + room, 1);
        if (!c) tn_jfail(j, TERN_E_MEMORY, "out of memory for the conversation");
        *c = (tn_jchunk){.next = j->chunks, .size = room};
        j->chunks = c;
    }
    void *p = c->bytes + c->used;
    c->used += bytes;
    memset(p, 0, bytes);
    return p;
}

void tn_jsteps(tn_jinja *j, uint64_t n) {
    j->n_steps += n;
    if (j->n_steps > j->max_steps)
        tn_jfail(j, TERN_E_LIMIT, "the template takes more than %" PRIu64 " steps", j->max_steps);
}

void tn_jenter(tn_jinja *j) {
    if (++j->depth > TN_J_MAX_DEPTH)
        tn_jfail(j, TERN_E_LIMIT, "the template nests deeper than %d", TN_J_MAX_DEPTH);
}
void tn_jleave(tn_jinja *j) { j->depth--; }

/* ---- arguments ---- */

/* Finds the i-th word of params, or returns false. */
static bool param_name(const char *params, size_t i, tn_jstr *out) {
    for (;; i--) {
        size_t n = strcspn(params, " ");
        if (!n) return false;
        if (!i) {
            *out = (tn_jstr){.p = params, .n = n};
            return true;
        }
        params += n + (params[n] == ' ');
    }
}

void tn_jbind(tn_jinja *j, const char *who, const tn_jargs *a, const char *params,
              const tn_jval *out[TN_J_MAX_PARAMS]) {
    tn_jstr name;
    size_t n = 0;
    for (; param_name(params, n, &name); n++) out[n] = n < a->n_pos ? &a->pos[n] : NULL;
    for (size_t i = n; i < TN_J_MAX_PARAMS; i++) out[i] = NULL;
    if (a->n_pos > n) tn_jfail(j, TERN_E_INVALID, "%s takes %zu arguments at most", who, n);
    for (size_t k = 0; k < a->n_named; k++) {
        size_t i = 0;
        while (i < n && !(param_name(params, i, &name) && tn_jstr_eq(&name, a->names[k]))) i++;
        if (i == n)
            tn_jfail(j, TERN_E_UNSUPPORTED, "%s has no argument '%.*s'", who,
                     (int)(a->names[k]->n < 60 ? a->names[k]->n : 60), a->names[k]->p);
        if (out[i]) tn_jfail(j, TERN_E_INVALID, "%s: an argument is given twice", who);
        out[i] = &a->named[k];
    }
}

/* ---- global functions ---- */

tn_jval tn_jfunc_new(tn_jinja *j, const char *name, tn_jbuiltin call, tn_jval self) {
    tn_jfunc *f = tn_jalloc(j, 1, sizeof *f);
    *f = (tn_jfunc){.name = name, .call = call, .self = self};
    return (tn_jval){.type = J_FUNC, .u.fn = f};
}

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

/* Makes a dict or a namespace of a dict or pairs, then names. */
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

/* ---- JSON as values ---- */

/* Roles by the names that templates know are no content: they pick markers, and cannot spell any. */
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

static size_t json_bytes(const json_t *v) { /* about what it takes, of strings alone */
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

/* This is apart from its caller, so that none of its variables changes between setjmp and the jump. */
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
    for (tn_jchunk *c = j.chunks, *next; c; c = next) {
        next = c->next;
        tn_free(ctx, c);
    }
    return j.status;
}
