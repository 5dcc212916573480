/* Compiles what a value of one type may be under a goal. */
#include "text/grammar/schema_impl.h"

#include "base/status.h"

#include <math.h>
#include <string.h>
#include <xxhash.h>

/* Returns the largest (least) of a keyword's counts over the goal, or `otherwise` when none has it. */
static uint32_t count_of(tn_sc *c, const tn_goal *g, const char *word, bool largest, uint32_t otherwise) {
    uint32_t x = otherwise;
    bool has = false;
    for (size_t i = 0; i < g->n; i++) {
        const json_t *v = json_object_get(g->a[i].s, word);
        if (!v) continue;
        double d = json_is_number(v) ? json_number_value(v) : -1;
        if (d < 0 || d != floor(d) || d > TN_GX_REPEAT_MAX) {
            tn_sc_fail(c, d > TN_GX_REPEAT_MAX ? TERN_E_LIMIT : TERN_E_INVALID,
                       "'%s' must be a whole number from 0 to %d", word, TN_GX_REPEAT_MAX);
            return otherwise;
        }
        uint32_t k = (uint32_t)d;
        x = !has || (largest ? k > x : k < x) ? k : x;
        has = true;
    }
    return x;
}

/* ---- objects -------------------------------------------------------------------------------------- */

typedef struct property {
    const char *name;
    bool required;
} property;

typedef struct properties {
    property *v;
    size_t n, cap;
    uint32_t *slots; /* [n_slots], a power of two: a number in v plus one, by the name's hash; 0: free */
    size_t n_slots;
} properties;

/* Returns the slot of a name: where it is, or the free one where it goes. */
static uint32_t *slot_of(const properties *p, const char *name) {
    uint64_t h = XXH3_64bits_withSeed(name, strlen(name), (uint64_t)(uintptr_t)p);
    uint32_t *at;
    do at = &p->slots[h++ & (p->n_slots - 1)];
    while (*at && strcmp(p->v[*at - 1].name, name));
    return at;
}

static bool slots_room(tn_sc *c, properties *p) {
    if (p->n_slots > 2 * p->n) return true;
    size_t n_slots = p->n_slots ? 2 * p->n_slots : 16;
    uint32_t *slots = tn_calloc(c->b->ctx, TN_MEM_TEXT, n_slots, sizeof *slots);
    if (!slots) return false;
    tn_free(c->b->ctx, p->slots);
    p->slots = slots;
    p->n_slots = n_slots;
    for (size_t i = 0; i < p->n; i++) *slot_of(p, p->v[i].name) = (uint32_t)i + 1;
    return true;
}

static property *property_of(tn_sc *c, properties *p, const char *name) {
    if (!slots_room(c, p) || !TN_GVEC_ROOM(c->b->ctx, p->v, p->cap, p->n + 1)) {
        tn_sc_fail(c, TERN_E_MEMORY, "no memory");
        return NULL;
    }
    uint32_t *slot = slot_of(p, name);
    if (*slot) return &p->v[*slot - 1];
    p->v[p->n] = (property){.name = name};
    *slot = (uint32_t)++p->n;
    return &p->v[p->n - 1];
}

/* Collects names in the order of the schemas, then required ones without a schema. */
static void find_properties(tn_sc *c, const tn_goal *g, properties *p) {
    for (size_t i = 0; i < g->n && c->st == TERN_OK; i++) {
        json_t *list = json_object_get(g->a[i].s, "properties"), *v;
        const char *name;
        if (list && !json_is_object(list)) tn_sc_fail(c, TERN_E_INVALID, "'properties' must be an object");
        json_object_foreach(list, name, v) property_of(c, p, name);
    }
    for (size_t i = 0; i < g->n && c->st == TERN_OK; i++) {
        const json_t *list = json_object_get(g->a[i].s, "required");
        if (list && !json_is_array(list)) tn_sc_fail(c, TERN_E_INVALID, "'required' must be a list of names");
        for (size_t k = 0; k < json_array_size(list) && c->st == TERN_OK; k++) {
            const char *name = json_string_value(json_array_get(list, k));
            property *q = name ? property_of(c, p, name) : NULL;
            if (q) q->required = true;
            else tn_sc_fail(c, TERN_E_INVALID, "'required' must be a list of names");
        }
    }
}

/* Compiles the value of a name (NULL: of any other) under all schemas of the goal. */
static tn_gx property_value(tn_sc *c, const tn_goal *g, const char *name) {
    tn_goal sub = {.n = 0};
    for (size_t i = 0; i < g->n; i++) {
        const json_t *own = name ? json_object_get(json_object_get(g->a[i].s, "properties"), name) : NULL;
        bool other = !own && !json_object_get(g->a[i].s, "patternProperties"); /* it may be one of those */
        tn_goal_add(c, &sub, other ? json_object_get(g->a[i].s, "additionalProperties") : own);
    }
    return tn_sc_goal(c, &sub);
}

static tn_gx member(tn_sc *c, tn_gx key, tn_gx value) {
    if (key == TN_GX_NEVER || value == TN_GX_NEVER) return TN_GX_NEVER;
    return TN_GX_SEQ(c->b, key, tn_gx_str(c->b, ":"), tn_sc_ws(c), value);
}

static tn_gx comma(tn_sc *c) { return TN_GX_SEQ(c->b, tn_gx_str(c->b, ","), tn_sc_ws(c)); }

/* Compiles properties in their order, from last to first. Each rule starts with one property: rest[0] if none
 * came before, rest[1] if one did. */
static tn_gx members(tn_sc *c, const tn_goal *g, const properties *p) {
    const char **names = tn_alloc(c->b->ctx, TN_MEM_TEXT, p->n, sizeof *names);
    if (!names) return tn_sc_fail(c, TERN_E_MEMORY, "no memory");
    for (size_t i = 0; i < p->n; i++) names[i] = p->v[i].name;
    tn_gx other = property_value(c, g, NULL), more = TN_GX_NEVER;
    tn_gx key = TN_GX_NEVER;
    if (other != TN_GX_NEVER && !tn_sc_later_key(c, g, names, p->n, &key))
        key = tn_sc_key_but(c, names, p->n);
    if (other != TN_GX_NEVER) more = member(c, key, other);
    more = TN_GX_ALT(c->b, more, tn_sc_later_members(c, g));
    tn_free(c->b->ctx, names);
    tn_gx tail = tn_gx_rep(c->b, TN_GX_SEQ(c->b, comma(c), more), 0, TN_GX_INF);
    tn_gx rest[2] = {tn_gx_rep(c->b, TN_GX_SEQ(c->b, more, tail), 0, 1), tail};
    for (size_t i = p->n; i-- > 0 && c->st == TERN_OK;) {
        tn_gx value = property_value(c, g, p->v[i].name);
        tn_gx one = member(c, tn_sc_quoted(c, p->v[i].name, strlen(p->v[i].name)), value), next[2];
        for (int k = 0; k < 2; k++) {
            tn_gx with = TN_GX_SEQ(c->b, k ? comma(c) : TN_GX_EMPTY, one, rest[1]);
            tn_grule r = tn_gb_rule(c->b, "", 0);
            tn_gb_define(c->b, r, p->v[i].required ? with : TN_GX_ALT(c->b, with, rest[k]));
            next[k] = tn_gx_rule(c->b, r);
        }
        rest[0] = next[0];
        rest[1] = next[1];
    }
    return rest[0];
}

tn_gx tn_sc_object(tn_sc *c, const tn_goal *g) {
    properties p = {0};
    find_properties(c, g, &p);
    tn_gx x = c->st == TERN_OK ? members(c, g, &p) : TN_GX_NEVER;
    tn_free(c->b->ctx, p.v);
    tn_free(c->b->ctx, p.slots);
    return TN_GX_SEQ(c->b, tn_gx_str(c->b, "{"), tn_sc_ws(c), x, tn_sc_ws(c), tn_gx_str(c->b, "}"));
}

/* ---- arrays --------------------------------------------------------------------------------------- */

/* Returns the schema of item i; with i = SIZE_MAX, of the items beyond those with schemas of their own. */
static const json_t *item_schema(const json_t *s, size_t i) {
    const json_t *first = json_object_get(s, "prefixItems"), *rest = json_object_get(s, "items");
    if (json_is_array(rest)) { /* older drafts */
        first = rest;
        rest = json_object_get(s, "additionalItems");
    }
    return i < json_array_size(first) ? json_array_get(first, i) : rest;
}

static size_t n_own(const json_t *s) {
    const json_t *rest = json_object_get(s, "items");
    return json_array_size(json_is_array(rest) ? rest : json_object_get(s, "prefixItems"));
}

static tn_gx item_value(tn_sc *c, const tn_goal *g, size_t i) {
    tn_goal sub = {.n = 0};
    for (size_t k = 0; k < g->n; k++) tn_goal_add(c, &sub, item_schema(g->a[k].s, i));
    return tn_sc_goal(c, &sub);
}

tn_gx tn_sc_array(tn_sc *c, const tn_goal *g) {
    uint32_t min = count_of(c, g, "minItems", true, 0), max = count_of(c, g, "maxItems", false, TN_GX_INF);
    size_t own = 0;
    for (size_t i = 0; i < g->n; i++) own = n_own(g->a[i].s) > own ? n_own(g->a[i].s) : own;
    if (min > max || c->st != TERN_OK) return TN_GX_NEVER;
    if (own > 4096) return tn_sc_fail(c, TERN_E_LIMIT, "more than 4096 items with schemas of their own");
    tn_gx rest = item_value(c, g, SIZE_MAX), x = TN_GX_EMPTY;
    uint32_t more_min = min > own ? min - (uint32_t)own : 0;
    if (max > own) { /* items after those, each after a comma except the very first */
        uint32_t more_max = max == TN_GX_INF ? max : max - (uint32_t)own;
        tn_gx next = TN_GX_SEQ(c->b, comma(c), rest);
        if (own) {
            x = tn_gx_rep(c->b, next, more_min, more_max);
        } else {
            x = tn_gx_rep(c->b, next, more_min ? more_min - 1 : 0,
                          more_max == TN_GX_INF ? more_max : more_max - 1);
            x = tn_gx_rep(c->b, TN_GX_SEQ(c->b, rest, x), more_min ? 1 : 0, 1);
        }
    }
    for (size_t i = own; i-- > 0 && c->st == TERN_OK;) { /* item i and what follows */
        if (i >= max) continue;
        tn_gx one = TN_GX_SEQ(c->b, i ? comma(c) : TN_GX_EMPTY, item_value(c, g, i), x);
        tn_grule r = tn_gb_rule(c->b, "", 0);
        tn_gb_define(c->b, r, i < min ? one : tn_gx_rep(c->b, one, 0, 1));
        x = tn_gx_rule(c->b, r);
    }
    return TN_GX_SEQ(c->b, tn_gx_str(c->b, "["), tn_sc_ws(c), x, tn_sc_ws(c), tn_gx_str(c->b, "]"));
}

/* ---- strings and numbers -------------------------------------------------------------------------- */

/* Compiles the first pattern of the goal that can be combined with these lengths. Returns false if none can.
 */
static bool pattern_of(tn_sc *c, const tn_goal *g, uint32_t min, uint32_t max, tn_gx *x) {
    for (size_t i = 0; i < g->n; i++) {
        const char *p = json_string_value(json_object_get(g->a[i].s, "pattern"));
        if (!p) continue;
        *x = tn_sc_pattern(c, p, strlen(p), min, max);
        if (c->st == TERN_OK || !tn_sc_forgive(c, "pattern")) return true;
    }
    return false;
}

tn_gx tn_sc_string(tn_sc *c, const tn_goal *g) {
    uint32_t min = count_of(c, g, "minLength", true, 0), max = count_of(c, g, "maxLength", false, TN_GX_INF);
    const char *pattern = NULL, *format = NULL;
    bool counted = min || max != TN_GX_INF;
    for (size_t i = 0; i < g->n; i++) {
        const json_t *p = json_object_get(g->a[i].s, "pattern"), *f = json_object_get(g->a[i].s, "format");
        if ((p && !json_is_string(p)) || (f && !json_is_string(f)))
            return tn_sc_fail(c, TERN_E_INVALID, "'%s' must be a text", p ? "pattern" : "format");
        if (f && !tn_sc_format_pattern(json_string_value(f)))
            f = NULL; /* JSON Schema: an unknown one says nothing */
        if (p && pattern && strcmp(pattern, json_string_value(p)) && !tn_sc_later(c, "pattern"))
            return tn_sc_refuse(c, "more than one 'pattern' for a text");
        if (f && format && strcmp(format, json_string_value(f)) && !tn_sc_later(c, "format"))
            return tn_sc_refuse(c, "more than one 'format' for a text");
        if (p) pattern = json_string_value(p);
        if (f) format = json_string_value(f);
    }
    if (min > max || c->st != TERN_OK) return TN_GX_NEVER;
    if (format && (pattern || counted) && !tn_sc_later(c, "format"))
        return tn_sc_refuse(c,
                            pattern ? "'format' together with 'pattern'" : "'format' together with a length");
    tn_gx inside = TN_GX_NEVER;
    bool held = pattern_of(c, g, min, max, &inside);
    if (!held && counted) held = pattern_of(c, g, 0, TN_GX_INF, &inside);
    if (!held && format) {
        inside = tn_sc_format(c, format);
        held = true;
    }
    if (!held && counted) inside = tn_gx_rep(c->b, tn_sc_one_char(c), min, max);
    else if (!held) {
        inside = tn_sc_later_string(c, g); /* with its quotes */
        return inside == TN_GX_NEVER ? tn_sc_any_string(c) : inside;
    }
    return TN_GX_SEQ(c->b, tn_gx_str(c->b, "\""), inside, tn_gx_str(c->b, "\""));
}

tn_gx tn_sc_number(tn_sc *c, const tn_goal *g, bool integer) {
    tn_bounds b = {-INFINITY, INFINITY, false, false};
    static const char *const words[] = {"minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum"};
    for (size_t i = 0; i < g->n; i++) {
        for (int w = 0; w < 4; w++) {
            const json_t *v = json_object_get(g->a[i].s, words[w]);
            if (!v) continue;
            bool open = w & 1;
            if (open && json_is_boolean(v)) continue; /* draft 4: modifies the other keyword */
            if (!json_is_number(v)) return tn_sc_fail(c, TERN_E_INVALID, "'%s' must be a number", words[w]);
            if (!open && json_is_true(json_object_get(g->a[i].s, words[w + 1]))) open = true;
            double x = json_number_value(v);
            if (w < 2 && (x > b.lo || (x == b.lo && open))) b.lo = x, b.lo_open = open;
            if (w >= 2 && (x < b.hi || (x == b.hi && open))) b.hi = x, b.hi_open = open;
        }
    }
    if (isinf(b.lo) && isinf(b.hi)) return tn_sc_any_number(c, integer);
    return tn_sc_between(c, b, integer);
}
