/* Tells whether a value fits a schema. This is only for values that a schema lists (const, enum) beside other
 * keywords. */
#include "text/grammar/schema_impl.h"

#include "base/status.h"

#include <math.h>
#include <string.h>

bool tn_json_same(const json_t *a, const json_t *b) {
    if (json_is_number(a) && json_is_number(b)) {
        if (json_is_integer(a) && json_is_integer(b)) return json_integer_value(a) == json_integer_value(b);
        return json_number_value(a) == json_number_value(b);
    }
    if (json_typeof(a) != json_typeof(b)) return false;
    if (json_is_array(a)) {
        if (json_array_size(a) != json_array_size(b)) return false;
        for (size_t i = 0; i < json_array_size(a); i++)
            if (!tn_json_same(json_array_get(a, i), json_array_get(b, i))) return false;
        return true;
    }
    if (json_is_object(a)) {
        const char *name;
        json_t *v;
        if (json_object_size(a) != json_object_size(b)) return false;
        json_object_foreach((json_t *)(uintptr_t)a, name, v) {
            const json_t *w = json_object_get(b, name);
            if (!w || !tn_json_same(v, w)) return false;
        }
        return true;
    }
    return json_equal(a, b);
}

static unsigned type_of(const json_t *v) {
    switch (json_typeof(v)) {
    case JSON_OBJECT: return TN_J_OBJ;
    case JSON_ARRAY: return TN_J_ARR;
    case JSON_STRING: return TN_J_STR;
    case JSON_INTEGER: return TN_J_INT;
    case JSON_REAL: return json_real_value(v) == floor(json_real_value(v)) ? TN_J_INT : TN_J_NUM;
    case JSON_NULL: return TN_J_NULL;
    default: return TN_J_BOOL;
    }
}

static bool bound(const json_t *s, const char *word, double x, int sign,
                  bool open) { /* sign * x is not too small */
    const json_t *v = json_object_get(s, word);
    if (!json_is_number(v)) return true;
    double b = json_number_value(v);
    return sign > 0 ? (open ? x > b : x >= b) : (open ? x < b : x <= b);
}

static bool object_fits(tn_sc *c, const json_t *v, const json_t *s, int depth) {
    const json_t *own = json_object_get(s, "properties"), *list = json_object_get(s, "required");
    const json_t *more = json_object_get(s, "additionalProperties");
    for (size_t i = 0; i < json_array_size(list); i++) {
        const char *name = json_string_value(json_array_get(list, i));
        if (name && !json_object_get(v, name)) return false;
    }
    const char *name;
    json_t *w;
    json_object_foreach((json_t *)(uintptr_t)v, name, w) {
        const json_t *q = json_object_get(own, name);
        if (!q) q = more;
        if (q && !tn_sc_fits(c, w, q, depth + 1)) return false;
    }
    return true;
}

static bool array_fits(tn_sc *c, const json_t *v, const json_t *s, int depth) {
    const json_t *first = json_object_get(s, "prefixItems"), *rest = json_object_get(s, "items");
    if (json_is_array(rest)) {
        first = rest;
        rest = json_object_get(s, "additionalItems");
    }
    size_t n = json_array_size(v);
    if (!bound(s, "minItems", (double)n, 1, false) || !bound(s, "maxItems", (double)n, -1, false))
        return false;
    for (size_t i = 0; i < n; i++) {
        const json_t *q = i < json_array_size(first) ? json_array_get(first, i) : rest;
        if (q && !tn_sc_fits(c, json_array_get(v, i), q, depth + 1)) return false;
    }
    return true;
}

static bool string_fits(tn_sc *c, const json_t *v, const json_t *s) {
    const char *text = json_string_value(v);
    size_t n = json_string_length(v), points = 0;
    for (size_t i = 0; i < n; i++) points += (text[i] & 0xc0) != 0x80;
    if (!bound(s, "minLength", (double)points, 1, false) || !bound(s, "maxLength", (double)points, -1, false))
        return false;
    if (json_object_get(s, "format")) tn_sc_refuse(c, "'format' together with 'enum' or 'const'");
    const json_t *p = json_object_get(s, "pattern");
    return !json_is_string(p) || tn_sc_matches(c, text, n, json_string_value(p));
}

static bool listed(const json_t *v, const json_t *s) {
    const json_t *k = json_object_get(s, "const"), *list = json_object_get(s, "enum");
    if (k && !tn_json_same(v, k)) return false;
    if (!list) return true;
    for (size_t i = 0; i < json_array_size(list); i++)
        if (tn_json_same(v, json_array_get(list, i))) return true;
    return false;
}

static bool alternatives_fit(tn_sc *c, const json_t *v, const json_t *s, int depth) {
    const json_t *all = json_object_get(s, "allOf"), *any = json_object_get(s, "anyOf"),
                 *one = json_object_get(s, "oneOf");
    size_t n_any = 0, n_one = 0;
    for (size_t i = 0; i < json_array_size(all); i++)
        if (!tn_sc_fits(c, v, json_array_get(all, i), depth + 1)) return false;
    for (size_t i = 0; i < json_array_size(any); i++)
        n_any += tn_sc_fits(c, v, json_array_get(any, i), depth + 1);
    for (size_t i = 0; i < json_array_size(one); i++)
        n_one += tn_sc_fits(c, v, json_array_get(one, i), depth + 1);
    return (!any || n_any) && (!one || n_one == 1);
}

bool tn_sc_fits(tn_sc *c, const json_t *v, const json_t *s, int depth) {
    if (depth > TN_SCHEMA_DEPTH) tn_sc_fail(c, TERN_E_LIMIT, "listed values are nested too deeply");
    if (c->st != TERN_OK || json_is_false(s)) return false;
    if (!json_is_object(s)) return true;
    unsigned type = type_of(v), types = tn_sc_types(c, s);
    if (!tn_sc_keywords(c, s, type) || !(types & type)) return false;
    const char *ref = json_string_value(json_object_get(s, "$ref"));
    if (ref) {
        const json_t *to = tn_sc_resolve(c, ref);
        if (!to || !tn_sc_fits(c, v, to, depth + 1)) return false;
    }
    if (!listed(v, s) || !alternatives_fit(c, v, s, depth)) return false;
    switch (type) {
    case TN_J_OBJ: return object_fits(c, v, s, depth);
    case TN_J_ARR: return array_fits(c, v, s, depth);
    case TN_J_STR: return string_fits(c, v, s) && c->st == TERN_OK;
    case TN_J_INT:
    case TN_J_NUM: {
        double x = json_number_value(v);
        return bound(s, "minimum", x, 1, json_is_true(json_object_get(s, "exclusiveMinimum"))) &&
               bound(s, "maximum", x, -1, json_is_true(json_object_get(s, "exclusiveMaximum"))) &&
               bound(s, "exclusiveMinimum", x, 1, true) && bound(s, "exclusiveMaximum", x, -1, true);
    }
    default: return true;
    }
}
