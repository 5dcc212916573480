#include "text/grammar/schema.h"

#include "base/json.h"
#include "base/status.h"
#include "text/grammar/schema_impl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static tn_gx goal_expr(tn_sc *c, const tn_goal *g, int depth);

/* Expands references and conjunctions. */
static void unfold(tn_sc *c, tn_goal *g) {
    for (size_t i = 0; i < g->n && c->st == TERN_OK && !tn_goal_never(g); i++) {
        tn_atom *a = &g->a[i];
        const json_t *s = a->s, *v;
        if (!(a->skip & TN_SKIP_REF) && (v = json_object_get(s, "$ref"))) {
            a->skip |= TN_SKIP_REF;
            if (!json_is_string(v)) tn_sc_fail(c, TERN_E_INVALID, "'$ref' must be a text");
            else tn_goal_add(c, g, tn_sc_resolve(c, json_string_value(v)));
        }
        if (tn_goal_never(g)) return;
        if (!(g->a[i].skip & TN_SKIP_ALL) && (v = json_object_get(s, "allOf"))) {
            g->a[i].skip |= TN_SKIP_ALL;
            if (!json_is_array(v) || !json_array_size(v))
                tn_sc_fail(c, TERN_E_INVALID, "'allOf' must be a list");
            for (size_t k = 0; k < json_array_size(v) && !tn_goal_never(g); k++)
                tn_goal_add(c, g, json_array_get(v, k));
        }
    }
}

/* ---- alternatives --------------------------------------------------------------------------------- */

static const json_t *deref(tn_sc *c, const json_t *s) {
    for (int i = 0; s && i < 16; i++) {
        const json_t *r = json_object_get(s, "$ref");
        if (!json_is_string(r)) return s;
        s = tn_sc_resolve(c, json_string_value(r));
    }
    return s;
}

static const json_t *values_of(const json_t *s, size_t i) { /* the i-th of const or enum */
    const json_t *k = json_object_get(s, "const");
    if (k) return i ? NULL : k;
    return json_array_get(json_object_get(s, "enum"), i);
}

static unsigned types_of(tn_sc *c, const json_t *s) {
    if (!values_of(s, 0)) return tn_sc_types(c, s);
    unsigned types = 0;
    const json_t *v;
    for (size_t i = 0; (v = values_of(s, i)); i++) {
        switch (json_typeof(v)) {
        case JSON_OBJECT: types |= TN_J_OBJ; break;
        case JSON_ARRAY: types |= TN_J_ARR; break;
        case JSON_STRING: types |= TN_J_STR; break;
        case JSON_INTEGER:
        case JSON_REAL: types |= TN_J_INT | TN_J_NUM; break;
        case JSON_NULL: types |= TN_J_NULL; break;
        default: types |= TN_J_BOOL;
        }
    }
    return types & tn_sc_types(c, s);
}

static bool requires(const json_t *s, const char *name) {
    const json_t *list = json_object_get(s, "required");
    for (size_t i = 0; i < json_array_size(list); i++) {
        const char *r = json_string_value(json_array_get(list, i));
        if (r && !strcmp(r, name)) return true;
    }
    return false;
}

/* Whether no value fits both, judged by types, values, and properties that both require. */
static bool apart(tn_sc *c, const json_t *a, const json_t *b, int depth) {
    if (json_is_false(a) || json_is_false(b)) return true;
    if (!tn_sc_steps(c, 1)) return false;
    a = deref(c, a);
    b = deref(c, b);
    if (!json_is_object(a) || !json_is_object(b) || depth > 4) return false;
    unsigned both = types_of(c, a) & types_of(c, b);
    if (!both) return true;
    if (values_of(a, 0) && values_of(b, 0)) {
        const json_t *x, *y;
        for (size_t i = 0;
             (x = values_of(a, i)) && tn_sc_steps(c, 1 + json_array_size(json_object_get(b, "enum"))); i++)
            for (size_t j = 0; (y = values_of(b, j)); j++)
                if (tn_json_same(x, y)) return false;
        return true;
    }
    if (both != TN_J_OBJ) return false;
    const json_t *pa = json_object_get(a, "properties"), *pb = json_object_get(b, "properties");
    const char *name;
    json_t *v;
    json_object_foreach((json_t *)(uintptr_t)pa, name, v) {
        const json_t *w = json_object_get(pb, name);
        if (requires(a, name) && requires(b, name) && w && apart(c, v, w, depth + 1)) return true;
        if (requires(a, name) && !w && json_is_false(json_object_get(b, "additionalProperties"))) return true;
    }
    json_object_foreach((json_t *)(uintptr_t)pb, name, v) {
        if (requires(b, name) && !json_object_get(pa, name) &&
            json_is_false(json_object_get(a, "additionalProperties")))
            return true;
    }
    return false;
}

/* Compiles the goal with each of the alternatives of its i-th schema's `word`. */
static tn_gx branch(tn_sc *c, const tn_goal *g, size_t i, const char *word, uint32_t skip, int depth) {
    const json_t *list = json_object_get(g->a[i].s, word);
    size_t n = json_array_size(list);
    if (!n) return tn_sc_fail(c, TERN_E_INVALID, "'%s' must be a list", word);
    if (depth > TN_SCHEMA_DEPTH || (c->branches += (int)n) > TN_SCHEMA_BRANCHES)
        return tn_sc_fail(c, TERN_E_LIMIT, "more than %d alternatives meet in one value", TN_SCHEMA_BRANCHES);
    if (skip == TN_SKIP_ONE) {
        for (size_t a = 0; a < n; a++)
            for (size_t b = 0; b < a; b++)
                if (!apart(c, json_array_get(list, a), json_array_get(list, b), 0) &&
                    !tn_sc_later(c, "oneOf"))
                    return tn_sc_fail(
                        c, TERN_E_UNSUPPORTED,
                        "'oneOf' whose alternatives %zu and %zu may both fit is not supported; 'anyOf' is",
                        b + 1, a + 1);
    }
    tn_gx x = TN_GX_NEVER;
    for (size_t k = 0; k < n && c->st == TERN_OK; k++) {
        tn_goal one = *g;
        one.a[i].skip |= skip;
        tn_goal_add(c, &one, json_array_get(list, k));
        x = TN_GX_ALT(c->b, x, goal_expr(c, &one, depth + 1));
    }
    return x;
}

/* Copies the schemas of a goal without the keywords that were expanded; chosen alternatives are separate
 * schemas here. */
static bool flatten(tn_sc *c, const tn_goal *g, json_t *flat[TN_SCHEMA_ATOMS]) {
    static const char *const words[] = {"$ref", "allOf", "anyOf", "oneOf"};
    bool ok = true;
    for (size_t k = 0; k < g->n; k++) {
        flat[k] = tn_json_copy_flat(g->a[k].s);
        ok = ok && flat[k];
        for (int i = 0; i < 4 && flat[k]; i++)
            if (g->a[k].skip >> i & 1) json_object_del(flat[k], words[i]);
        if (flat[k]) json_object_del(flat[k], "$id");
    }
    if (!ok) tn_sc_fail(c, TERN_E_MEMORY, "no memory");
    return ok;
}

/* Compiles the values of a const or enum that fit every schema of the goal. */
static tn_gx listed(tn_sc *c, const tn_goal *g, const json_t *from) {
    json_t *flat[TN_SCHEMA_ATOMS];
    tn_gx *all = NULL, x = TN_GX_NEVER;
    size_t n = 0, cap = 0;
    const json_t *v;
    bool ok = flatten(c, g, flat);
    for (size_t i = 0; ok && (v = values_of(from, i)) && c->st == TERN_OK; i++) {
        bool fits = true;
        for (size_t k = 0; k < g->n && fits; k++) fits = tn_sc_fits(c, v, flat[k], 0);
        if (!fits) continue;
        ok = TN_GVEC_ROOM(c->b->ctx, all, cap, n + 1);
        if (ok) all[n++] = tn_sc_value(c, v);
    }
    if (ok) x = tn_gx_alt(c->b, all, n);
    else tn_sc_fail(c, TERN_E_MEMORY, "no memory");
    tn_sc_forget_sorted(c); /* they belong to the schemas freed here */
    tn_free(c->b->ctx, all);
    for (size_t k = 0; k < g->n; k++) json_decref(flat[k]);
    return x;
}

static tn_gx goal_expr(tn_sc *c, const tn_goal *given, int depth) {
    tn_goal g = *given;
    unfold(c, &g);
    if (c->st != TERN_OK || tn_goal_never(&g)) return TN_GX_NEVER;
    for (size_t i = 0; i < g.n; i++) {
        if (!(g.a[i].skip & TN_SKIP_ANY) && json_object_get(g.a[i].s, "anyOf"))
            return branch(c, &g, i, "anyOf", TN_SKIP_ANY, depth);
        if (!(g.a[i].skip & TN_SKIP_ONE) && json_object_get(g.a[i].s, "oneOf"))
            return branch(c, &g, i, "oneOf", TN_SKIP_ONE, depth);
    }
    unsigned types = TN_J_ALL;
    const json_t *values = NULL;
    for (size_t i = 0; i < g.n; i++) {
        types &= tn_sc_types(c, g.a[i].s);
        if (!values && values_of(g.a[i].s, 0)) values = g.a[i].s;
        if (values_of(g.a[i].s, 0)) types &= types_of(c, g.a[i].s);
        const json_t *e = json_object_get(g.a[i].s, "enum");
        if (e && !json_is_array(e)) return tn_sc_fail(c, TERN_E_INVALID, "'enum' must be a list");
        if (e && !json_array_size(e)) return TN_GX_NEVER;
    }
    types = tn_sc_later_types(c, &g, types);
    for (size_t i = 0; i < g.n; i++)
        if (!tn_sc_keywords(c, g.a[i].s, types)) return TN_GX_NEVER;
    if (values) return listed(c, &g, values);
    tn_gx x = TN_GX_NEVER;
    if (types & TN_J_OBJ) x = TN_GX_ALT(c->b, x, tn_sc_object(c, &g));
    if (types & TN_J_ARR) x = TN_GX_ALT(c->b, x, tn_sc_array(c, &g));
    if (types & TN_J_STR) x = TN_GX_ALT(c->b, x, tn_sc_string(c, &g));
    if (types & (TN_J_INT | TN_J_NUM)) x = TN_GX_ALT(c->b, x, tn_sc_number(c, &g, !(types & TN_J_NUM)));
    if (types & TN_J_BOOL) x = TN_GX_ALT(c->b, x, tn_gx_str(c->b, "true"), tn_gx_str(c->b, "false"));
    if (types & TN_J_NULL) x = TN_GX_ALT(c->b, x, tn_gx_str(c->b, "null"));
    return x;
}

tern_status tn_schema_read(tn_gb *b, const char *json, size_t n_bytes, tn_grule *root, tern_error *err) {
    json_error_t je;
    json_t *s = tn_json_parse(json, n_bytes, JSON_DECODE_ANY | JSON_REJECT_DUPLICATES, &je);
    TN_FAIL_IF(!s, err, TERN_E_INVALID, "json schema: not valid JSON, line %d: %.200s", je.line, je.text);
    tn_sc c = {.b = b, .root = s, .err = err, .checks = tn_schema_checks()};
    c.slots = tn_calloc(b->ctx, TN_MEM_TEXT, TN_SCHEMA_SLOTS, sizeof *c.slots);
    if (!c.slots) {
        json_decref(s);
        return tn_fail(err, TERN_E_MEMORY, "json schema: no memory");
    }
    tn_goal g = {.n = 0};
    tn_goal_add(&c, &g, s);
    *root = tn_gb_rule(b, "root", 4);
    tn_gb_define(b, *root, tn_sc_goal(&c, &g));
    for (; c.n_done < c.n_goals && c.st == TERN_OK && b->st == TERN_OK; c.n_done++) {
        tn_known_goal k = c.goals[c.n_done];
        g.n = k.n;
        if (k.n) memcpy(g.a, c.atoms + k.first, k.n * sizeof *g.a);
        c.branches = 0;
        tn_gb_define(b, k.rule, goal_expr(&c, &g, 0));
    }
    if (b->later[0] && c.st == TERN_OK) tn_sc_later_ready(&c);
    tn_free(b->ctx, c.atoms);
    tn_free(b->ctx, c.goals);
    tn_free(b->ctx, c.slots);
    json_decref(c.text);
    json_decref(s);
    TN_TRY(c.st);
    return tn_gb_status(b, err);
}
