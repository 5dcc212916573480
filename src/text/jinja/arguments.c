/* text/jinja/arguments.c - built-in functions and their arguments. */
#include "text/jinja/impl.h"

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

tn_jval tn_jfunc_new(tn_jinja *j, const char *name, tn_jbuiltin call, tn_jval self) {
    tn_jfunc *f = tn_jalloc(j, 1, sizeof *f);
    *f = (tn_jfunc){.name = name, .call = call, .self = self};
    return (tn_jval){.type = J_FUNC, .u.fn = f};
}
