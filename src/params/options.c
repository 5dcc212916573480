/* Options by name. */
#include "params/options.h"

#include "base/sized.h"
#include "base/status.h"
#include "params/params.h"

#include <stdlib.h>
#include <string.h>

void tn_options_defaults(tern_options *o) {
    *o = (tern_options){.hooks = NULL};
    tern_session_options_defaults(&o->session);
    tern_generate_options_defaults(&o->generate);
    o->session.draft = "auto";
}

tern_status tern_options_new(tern_options **out, tern_error *err) {
    TN_FAIL_IF(!out, err, TERN_E_INVALID, "tern_options_new needs a place for the options");
    *out = malloc(sizeof **out);
    TN_FAIL_IF(!*out, err, TERN_E_MEMORY, "no memory for options");
    tn_options_defaults(*out);
    return TERN_OK;
}

void tern_options_free(tern_options **po) {
    if (!po || !*po) return;
    for (int i = 0; i < TN_MAX_PARAMS; i++) free((*po)->texts[i]);
    free(*po);
    *po = NULL;
}

static tern_status find(const char *name, const tn_param **out, tern_error *err) {
    TN_FAIL_IF(!name, err, TERN_E_INVALID, "no name of a parameter given");
    *out = tn_param_find(name, strlen(name));
    TN_FAIL_IF(!*out, err, TERN_E_INVALID, "no parameter is called '%s'", name);
    return TERN_OK;
}

tern_status tern_options_set(tern_options *o, const char *name, const char *value, tern_error *err) {
    const tn_param *p;
    TN_FAIL_IF(!o || !value, err, TERN_E_INVALID, "tern_options_set needs options, a name and a value");
    TN_TRY(find(name, &p, err));
    size_t i = (size_t)(p - tn_param_at(0));
    char *copy = strdup(value);
    TN_FAIL_IF(!copy, err, TERN_E_MEMORY, "no memory for a value of %s", name);
    tern_status st = tn_param_set(o, p, copy, err);
    if (st == TERN_OK) {
        free(o->texts[i]);
        o->texts[i] = copy;
    } else {
        free(copy);
    }
    return st;
}

tern_status tern_options_get(const tern_options *o, const char *name, char *buf, size_t cap, size_t *n_bytes,
                             tern_error *err) {
    const tn_param *p;
    TN_FAIL_IF(!o || !n_bytes || (!buf && cap), err, TERN_E_INVALID,
               "tern_options_get needs options, a name, room for the value and a place for its length");
    TN_TRY(find(name, &p, err));
    char number[64] = "";
    const char *value = number;
    if (p->kind == TN_PARAM_TEXT || p->kind == TN_PARAM_CHOICE) {
        value = *(const char *const *)((const char *)o + p->offset);
        if (!value) value = "";
    } else {
        tn_param_format(o, p, number, sizeof number);
    }
    size_t n = strlen(value);
    *n_bytes = n;
    TN_FAIL_IF(n > cap, err, TERN_E_LIMIT, "%s has %zu bytes, there is room for %zu", name, n, cap);
    memcpy(buf, value, n);
    return TERN_OK;
}

tern_status tern_options_answer_sized(const tern_options *o, tern_session_options *session,
                                      size_t session_bytes, tern_generate_options *generate,
                                      size_t generate_bytes, tern_error *err) {
    TN_FAIL_IF(!o, err, TERN_E_INVALID, "no options given");
    tern_session_options so = o->session;
    tern_generate_options g = o->generate;
    so.size_bytes = session_bytes;
    g.size_bytes = generate_bytes;
    TN_FAIL_IF(session && tn_sized_out(session, session_bytes, &so, sizeof so,
                                       TN_SIZE_UP_TO(tern_session_options, n_ctx)) != TERN_OK,
               err, TERN_E_INVALID, "tern_session_options of %zu bytes are none", session_bytes);
    TN_FAIL_IF(generate && tn_sized_out(generate, generate_bytes, &g, sizeof g,
                                        TN_SIZE_UP_TO(tern_generate_options, user)) != TERN_OK,
               err, TERN_E_INVALID, "tern_generate_options of %zu bytes are none", generate_bytes);
    return TERN_OK;
}

tern_status tern_options_set_hooks(tern_options *o, const tern_hooks *hooks, tern_error *err) {
    TN_FAIL_IF(!o, err, TERN_E_INVALID, "no options given");
    tern_hooks h;
    tern_hooks_defaults(&h);
    if (hooks)
        TN_TRY(tn_sized_in(&h, sizeof h, hooks, hooks->size_bytes, TN_SIZE_UP_TO(tern_hooks, user),
                           "tern_hooks", err));
    o->own_hooks = h;
    o->hooks = hooks ? &o->own_hooks : NULL;
    return TERN_OK;
}
