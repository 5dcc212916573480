/* The ground of every schema file: the first failure, what is done with each keyword, references, and the goals
 * that wait to be compiled. */
#include "text/grammar/schema_impl.h"

#include "base/hex.h"
#include "base/status.h"

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

bool tn_sc_later(tn_sc *c, const char *what) {
    if (!c->checks || !strcmp(what, "$dynamicRef") || !strcmp(what, "$recursiveRef")) return false;
    char *all = c->b->later;
    size_t n = strlen(all), k = strlen(what);
    for (const char *p = all; (p = strstr(p, what)); p += k)
        if ((p == all || p[-1] == ' ') && (!p[k] || p[k] == ',')) return true;
    if (n + k + 3 > TN_GB_LATER) return false;
    snprintf(all + n, TN_GB_LATER - n, "%s%s", n ? ", " : "", what);
    return true;
}

bool tn_sc_forgive(tn_sc *c, const char *what) {
    if (c->st != TERN_E_UNSUPPORTED || !tn_sc_later(c, what)) return false;
    c->st = TERN_OK;
    if (c->err) *c->err = (tern_error){0};
    return true;
}

/* ---- keywords ------------------------------------------------------------------------------------- */

enum { ANY = TN_J_ALL, NUMBERS = TN_J_INT | TN_J_NUM };

/* How a keyword is treated. 0: it is enforced, or says nothing about values. Otherwise: the types of values for which it matters and is not enforced. */
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
    {"discriminator",
     0}, /* OpenAPI's and editors': about values they say nothing that type and anyOf do not */
    {"nullable", 0},
    {"xml", 0},
    {"externalDocs", 0},
    {"markdownDescription", 0},
    {"enumDescriptions", 0},
    {"markdownEnumDescriptions", 0},
    {"enumNames", 0},
    {"errorMessage", 0},
    {"deprecationMessage", 0},
    {"propertyOrdering", 0},
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

bool tn_sc_any_name(const json_t *v) {
    const char *type = json_string_value(json_object_get(v, "type"));
    return json_object_size(v) == 1 && type && !strcmp(type, "string");
}

static bool empty_object(const json_t *v) { return json_is_object(v) && !json_object_size(v); }

bool tn_sc_keywords(tn_sc *c, const json_t *schema, unsigned types) {
    const char *name;
    json_t *v = json_object_get(schema, "multipleOf");
    if (v && !(json_number_value(v) > 0)) /* also of what is no number */
        tn_sc_fail(c, TERN_E_INVALID, "'multipleOf' must be a number above 0");
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
                           (!strcmp(name, "propertyNames") && tn_sc_any_name(v)) ||
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

bool tn_goal_never(const tn_goal *g) { return g->n && json_is_false(g->a[0].s); }

void tn_goal_add(tn_sc *c, tn_goal *g, const json_t *schema) {
    if (!schema || json_is_true(schema) || tn_goal_never(g)) return;
    if (json_is_false(schema)) { /* nothing fits, whatever the other schemas say */
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
    if (c->st != TERN_OK || tn_goal_never(g)) return TN_GX_NEVER;
    uint64_t h = 0; /* the heap chooses the addresses: a schema cannot make its parts collide */
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
