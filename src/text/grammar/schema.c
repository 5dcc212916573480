#include "text/grammar/schema.h"

#include "base/hex.h"
#include "base/json.h"
#include "base/status.h"
#include "text/grammar/schema_impl.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

tn_gx tn_sc_fail(tn_sc *c, tern_status st, const char *fmt, ...) {
    if (c->st != TERN_OK) return TN_GX_NEVER;
    char line[400];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(line, sizeof line, fmt, ap);
    va_end(ap);
    c->st = tn_fail(c->err, st, "json schema: %s", line);
    return TN_GX_NEVER;
}

tn_gx tn_sc_refuse(tn_sc *c, const char *what) {
    return tn_sc_fail(c, TERN_E_UNSUPPORTED, "%s is not supported", what);
}

/* ---- keywords ------------------------------------------------------------------------------------- */

enum { ANY = TN_J_ALL, NUMBERS = TN_J_INT | TN_J_NUM };

/* This says what is done with a keyword. With 0 it is held, or says nothing about values. Else these are the
 * types of values for which it would have to be held and is not. */
static const struct keyword {
    const char *name;
    unsigned refused_for;
} keywords[] = {
    {"$schema", 0},
    {"$comment", 0},
    {"$defs", 0},
    {"definitions", 0},
    {"title", 0},
    {"description", 0},
    {"default", 0},
    {"examples", 0},
    {"example", 0},
    {"deprecated", 0},
    {"readOnly", 0},
    {"writeOnly", 0},
    {"contentEncoding", 0},
    {"contentMediaType", 0},
    {"contentSchema", 0},
    {"$anchor", 0},
    {"$vocabulary", 0},
    {"type", 0},
    {"enum", 0},
    {"const", 0},
    {"$ref", 0},
    {"allOf", 0},
    {"anyOf", 0},
    {"oneOf", 0},
    {"properties", 0},
    {"required", 0},
    {"additionalProperties", 0},
    {"items", 0},
    {"prefixItems", 0},
    {"additionalItems", 0},
    {"minItems", 0},
    {"maxItems", 0},
    {"minLength", 0},
    {"maxLength", 0},
    {"pattern", 0},
    {"format", 0},
    {"minimum", 0},
    {"maximum", 0},
    {"exclusiveMinimum", 0},
    {"exclusiveMaximum", 0},
    {"then", 0},
    {"else", 0}, /* without "if" they say nothing */
    {"minContains", 0},
    {"maxContains", 0}, /* nor these without "contains" */
    {"$id", 0},
    {"id", 0},
    {"not", ANY},
    {"if", ANY},
    {"$dynamicRef", ANY},
    {"$recursiveRef", ANY},
    {"$dynamicAnchor", 0},
    {"$recursiveAnchor", 0},
    {"patternProperties", TN_J_OBJ},
    {"propertyNames", TN_J_OBJ},
    {"dependentRequired", TN_J_OBJ},
    {"dependentSchemas", TN_J_OBJ},
    {"dependencies", TN_J_OBJ},
    {"minProperties", TN_J_OBJ},
    {"maxProperties", TN_J_OBJ},
    {"unevaluatedProperties", TN_J_OBJ},
    {"uniqueItems", TN_J_ARR},
    {"contains", TN_J_ARR},
    {"unevaluatedItems", TN_J_ARR},
    {"multipleOf", NUMBERS},
};

static bool empty_object(const json_t *v) { return json_is_object(v) && !json_object_size(v); }

bool tn_sc_keywords(tn_sc *c, const json_t *schema, unsigned types) {
    const char *name;
    json_t *v;
    json_object_foreach((json_t *)(uintptr_t)schema, name, v) {
        char what[160];
        size_t i = 0, n = sizeof keywords / sizeof *keywords;
        while (i < n && strcmp(keywords[i].name, name)) i++;
        snprintf(what, sizeof what, "'%.100s'", name);
        if (i == n) {
            if (name[0] != 'x' || name[1] != '-') tn_sc_refuse(c, what);
        } else if (keywords[i].refused_for & types) {
            bool nothing = (!strcmp(name, "uniqueItems") && json_is_false(v)) ||
                           (!strcmp(name, "minProperties") && json_is_integer(v) && !json_integer_value(v)) ||
                           (strncmp(name, "uneval", 6) && empty_object(v) && strcmp(name, "not") &&
                            strcmp(name, "contains"));
            if (!nothing && !tn_sc_later(c, name)) tn_sc_refuse(c, what);
        } else if ((!strcmp(name, "$id") || !strcmp(name, "id")) && json_is_string(v) && schema != c->root) {
            tn_sc_refuse(c, "'$id' inside a schema");
        }
    }
    return c->st == TERN_OK;
}

static unsigned type_named(tn_sc *c, const json_t *t) {
    static const struct {
        const char *name;
        unsigned type;
    } names[] = {{"null", TN_J_NULL},  {"boolean", TN_J_BOOL},          {"integer", TN_J_INT},
                 {"string", TN_J_STR}, {"number", TN_J_INT | TN_J_NUM}, {"array", TN_J_ARR},
                 {"object", TN_J_OBJ}};
    const char *s = json_string_value(t);
    for (size_t i = 0; s && i < sizeof names / sizeof *names; i++)
        if (!strcmp(s, names[i].name)) return names[i].type;
    tn_sc_fail(c, TERN_E_INVALID, "type '%.60s' does not exist", s ? s : "(not a text)");
    return 0;
}

unsigned tn_sc_types(tn_sc *c, const json_t *schema) {
    const json_t *t = json_object_get(schema, "type");
    if (!t) return TN_J_ALL;
    if (!json_is_array(t)) return type_named(c, t);
    unsigned types = 0;
    for (size_t i = 0; i < json_array_size(t); i++) types |= type_named(c, json_array_get(t, i));
    return types;
}

/* ---- references ----------------------------------------------------------------------------------- */

/* Takes one step of a JSON pointer out of *p, its escapes (%41, ~0, ~1) undone. */
static bool pointer_step(const char **p, char *out, size_t cap) {
    size_t n = 0;
    for (; **p && **p != '/'; (*p)++) {
        char x = **p;
        if (x == '%' && tn_hex_digit((*p)[1]) >= 0 && tn_hex_digit((*p)[2]) >= 0) {
            x = (char)(tn_hex_digit((*p)[1]) << 4 | tn_hex_digit((*p)[2]));
            *p += 2;
        }
        if (n && out[n - 1] == '~' && (x == '0' || x == '1')) out[n - 1] = x == '0' ? '\001' : '/';
        else out[n++] = x;
        if (n + 1 >= cap) return false;
    }
    for (size_t i = 0; i < n; i++)
        if (out[i] == '\001') out[i] = '~';
    out[n] = 0;
    return true;
}

const json_t *tn_sc_resolve(tn_sc *c, const char *ref) {
    const json_t *at = c->root;
    char key[512];
    if (ref[0] != '#' || (ref[1] && ref[1] != '/')) {
        tn_sc_fail(c, TERN_E_UNSUPPORTED,
                   "reference '%.200s' is not supported, only those inside the schema (#/...)", ref);
        return NULL;
    }
    for (const char *p = ref + 1; *p && at;) {
        p++;
        if (!pointer_step(&p, key, sizeof key)) at = NULL;
        else if (json_is_array(at)) at = json_array_get(at, strtoul(key, NULL, 10));
        else at = json_object_get(at, key);
        if (at && json_is_string(json_object_get(at, "$id"))) {
            tn_sc_refuse(c, "'$id' inside a schema");
            return NULL;
        }
    }
    if (!at) tn_sc_fail(c, TERN_E_INVALID, "reference '%.200s' leads nowhere", ref);
    return at;
}

/* ---- goals ---------------------------------------------------------------------------------------- */

static bool never(const tn_goal *g) { return g->n && json_is_false(g->a[0].s); }

void tn_goal_add(tn_sc *c, tn_goal *g, const json_t *schema) {
    if (!schema || json_is_true(schema) || never(g)) return;
    if (json_is_false(schema)) { /* nothing fits, whatever else is asked */
        *g = (tn_goal){.n = 1, .a[0] = {schema, 0}};
        return;
    }
    if (!json_is_object(schema)) {
        tn_sc_fail(c, TERN_E_INVALID, "a schema must be an object or a truth value");
        return;
    }
    for (size_t i = 0; i < g->n; i++) {
        if (g->a[i].s != schema) continue;
        if (g->a[i].skip & (TN_SKIP_ANY | TN_SKIP_ONE))
            tn_sc_fail(c, TERN_E_INVALID, "a schema is an alternative of itself");
        return;
    }
    if (g->n == TN_SCHEMA_ATOMS) {
        tn_sc_fail(c, TERN_E_LIMIT, "more than %d schemas meet in one value", TN_SCHEMA_ATOMS);
        return;
    }
    g->a[g->n++] = (tn_atom){schema, 0};
}

static bool is_goal(const tn_sc *c, const tn_known_goal *k, const tn_goal *g) {
    bool same = k->n == g->n;
    for (size_t j = 0; j < g->n && same; j++)
        same = c->atoms[k->first + j].s == g->a[j].s && c->atoms[k->first + j].skip == g->a[j].skip;
    return same;
}

tn_gx tn_sc_goal(tn_sc *c, const tn_goal *g) {
    if (c->st != TERN_OK || never(g)) return TN_GX_NEVER;
    uint64_t h = 0; /* addresses are the heap's: a schema cannot make its parts collide */
    for (size_t j = 0; j < g->n; j++)
        h = (h ^ (uint64_t)(uintptr_t)g->a[j].s ^ g->a[j].skip) * 0x9e3779b97f4a7c15u;
    size_t at = (size_t)(h >> 32) % TN_SCHEMA_SLOTS;
    for (; c->slots[at]; at = (at + 1) % TN_SCHEMA_SLOTS) {
        const tn_known_goal *k = &c->goals[c->slots[at] - 1];
        if (is_goal(c, k, g)) return tn_gx_rule(c->b, k->rule);
    }
    tn_ctx *ctx = c->b->ctx;
    if (c->n_goals >= TN_SCHEMA_GOALS)
        return tn_sc_fail(c, TERN_E_LIMIT, "more than %d parts", TN_SCHEMA_GOALS);
    if (!TN_GVEC_ROOM(ctx, c->atoms, c->cap_atoms, c->n_atoms + g->n) ||
        !TN_GVEC_ROOM(ctx, c->goals, c->cap_goals, c->n_goals + 1))
        return tn_sc_fail(c, TERN_E_MEMORY, "no memory");
    tn_grule r = tn_gb_rule(c->b, "", 0);
    if (g->n) memcpy(c->atoms + c->n_atoms, g->a, g->n * sizeof *g->a);
    c->goals[c->n_goals++] = (tn_known_goal){c->n_atoms, g->n, r};
    c->slots[at] = (uint32_t)c->n_goals;
    c->n_atoms += g->n;
    return tn_gx_rule(c->b, r);
}

static tn_gx goal_expr(tn_sc *c, const tn_goal *g, int depth);

/* Takes references and conjunctions in. */
static void unfold(tn_sc *c, tn_goal *g) {
    for (size_t i = 0; i < g->n && c->st == TERN_OK && !never(g); i++) {
        tn_atom *a = &g->a[i];
        const json_t *s = a->s, *v;
        if (!(a->skip & TN_SKIP_REF) && (v = json_object_get(s, "$ref"))) {
            a->skip |= TN_SKIP_REF;
            if (!json_is_string(v)) tn_sc_fail(c, TERN_E_INVALID, "'$ref' must be a text");
            else tn_goal_add(c, g, tn_sc_resolve(c, json_string_value(v)));
        }
        if (never(g)) return;
        if (!(g->a[i].skip & TN_SKIP_ALL) && (v = json_object_get(s, "allOf"))) {
            g->a[i].skip |= TN_SKIP_ALL;
            if (!json_is_array(v) || !json_array_size(v))
                tn_sc_fail(c, TERN_E_INVALID, "'allOf' must be a list");
            for (size_t k = 0; k < json_array_size(v) && !never(g); k++)
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

/* Tells whether no value fits both, as far as can be told from types, values, and properties that both
 * require. */
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

/* Makes the schemas of a goal without what was passed over: alternatives chosen are schemas of their own here. */
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

/* Compiles the values that a const or enum lists and every schema of the goal takes. */
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
    tn_sc_forget_sorted(c); /* they are of the schemas that go here */
    tn_free(c->b->ctx, all);
    for (size_t k = 0; k < g->n; k++) json_decref(flat[k]);
    return x;
}

static tn_gx goal_expr(tn_sc *c, const tn_goal *given, int depth) {
    tn_goal g = *given;
    unfold(c, &g);
    if (c->st != TERN_OK || never(&g)) return TN_GX_NEVER;
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
    tn_sc c = {.b = b, .root = s, .err = err};
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
