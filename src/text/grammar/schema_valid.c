/* Whether a value fits a schema: only for values that a schema lists (const, enum) beside other keywords. */
#include "text/grammar/schema_impl.h"

#include "base/status.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static int sign_of(bool more, bool less) { return more - less; }

static int number_order(const json_t *a, const json_t *b) {
    if (json_is_integer(a) && json_is_integer(b)) {
        json_int_t x = json_integer_value(a), y = json_integer_value(b);
        return sign_of(x > y, x < y);
    }
    /* long double holds every integer of 64 bits, so that the order is one */
    long double x = json_is_integer(a) ? (long double)json_integer_value(a) : (long double)json_real_value(a),
                y = json_is_integer(b) ? (long double)json_integer_value(b) : (long double)json_real_value(b);
    return sign_of(x > y, x < y);
}

/* A total order of values, in which equal values compare as equal. */
static int value_order(const json_t *a, const json_t *b);

/* Objects are ordered by the first key, in sorted order, in which they differ; a missing key is the least. */
static int object_order(const json_t *a, const json_t *b) {
    const char *key, *first = NULL;
    json_t *v;
    int order = 0;
    json_object_foreach((json_t *)(uintptr_t)a, key, v) {
        const json_t *w = json_object_get(b, key);
        if (first && strcmp(key, first) >= 0) continue;
        int c = w ? value_order(v, w) : 1;
        if (c) first = key, order = c;
    }
    json_object_foreach((json_t *)(uintptr_t)b, key, v) {
        if (json_object_get(a, key) || (first && strcmp(key, first) >= 0)) continue;
        first = key, order = -1;
    }
    return order;
}

static int value_order(const json_t *a, const json_t *b) {
    if (json_is_number(a) && json_is_number(b)) return number_order(a, b);
    int x = json_is_number(a) ? JSON_INTEGER : json_typeof(a),
        y = json_is_number(b) ? JSON_INTEGER : json_typeof(b);
    if (x != y) return sign_of(x > y, x < y);
    if (x == JSON_OBJECT) return object_order(a, b);
    if (x == JSON_STRING) {
        size_t n = json_string_length(a), m = json_string_length(b);
        int c = memcmp(json_string_value(a), json_string_value(b), n < m ? n : m);
        return c ? c : sign_of(n > m, n < m);
    }
    if (x != JSON_ARRAY) return 0;
    size_t n = json_array_size(a), m = json_array_size(b);
    for (size_t i = 0; i < n && i < m; i++) {
        int c = value_order(json_array_get(a, i), json_array_get(b, i));
        if (c) return c;
    }
    return sign_of(n > m, n < m);
}

bool tn_json_same(const json_t *a, const json_t *b) { return !value_order(a, b); }

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
    if (!tn_sc_steps(c, json_array_size(list))) return false;
    for (size_t i = 0; i < json_array_size(list); i++) {
        const char *name = json_string_value(json_array_get(list, i));
        if (name && !json_object_get(v, name)) return false;
    }
    const char *name;
    json_t *w;
    json_object_foreach((json_t *)(uintptr_t)v, name, w) {
        const json_t *q = json_object_get(own, name);
        if (!q && !json_object_get(s, "patternProperties")) q = more;
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
    if (json_object_get(s, "format") && !tn_sc_later(c, "format"))
        tn_sc_refuse(c, "'format' together with 'enum' or 'const'");
    const json_t *p = json_object_get(s, "pattern");
    return !json_is_string(p) || tn_sc_matches(c, text, n, json_string_value(p)) ||
           tn_sc_forgive(c, "pattern");
}

bool tn_sc_steps(tn_sc *c, size_t n) {
    c->n_steps += n;
    const uint64_t most = c->most_steps ? c->most_steps : TN_SCHEMA_STEPS;
    if (c->n_steps > most)
        tn_sc_fail(c, TERN_E_LIMIT, "it takes more than %llu steps to read", (unsigned long long)most);
    return c->st == TERN_OK;
}

static int by_order(const void *a, const void *b) {
    return value_order(*(const json_t *const *)a, *(const json_t *const *)b);
}

void tn_sc_forget_sorted(tn_sc *c) {
    for (size_t i = 0; i < c->n_sorted; i++) tn_free(c->b->ctx, c->sorted[i].v);
    c->n_sorted = 0;
}

static const tn_sorted *sorted_of(tn_sc *c, const json_t *list) {
    for (size_t i = 0; i < c->n_sorted; i++)
        if (c->sorted[i].list == list) return &c->sorted[i];
    if (c->n_sorted == TN_SCHEMA_ATOMS) tn_sc_forget_sorted(c);
    size_t n = json_array_size(list);
    const json_t **v = tn_alloc(c->b->ctx, TN_MEM_TEXT, n, sizeof *v);
    if (!v) {
        tn_sc_fail(c, TERN_E_MEMORY, "no memory");
        return NULL;
    }
    for (size_t i = 0; i < n; i++) v[i] = json_array_get(list, i);
    qsort(v, n, sizeof *v, by_order);
    (void)tn_sc_steps(c, 4 * n);
    c->sorted[c->n_sorted] = (tn_sorted){list, v, n};
    return &c->sorted[c->n_sorted++];
}

static bool listed(tn_sc *c, const json_t *v, const json_t *s) {
    enum { FEW = 16 };
    const json_t *k = json_object_get(s, "const"), *list = json_object_get(s, "enum");
    if (k && !tn_json_same(v, k)) return false;
    if (!list) return true;
    if (json_array_size(list) > FEW) {
        const tn_sorted *in = sorted_of(c, list);
        return in && bsearch(&v, in->v, in->n, sizeof *in->v, by_order);
    }
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
    return (!any || n_any) && (!one || n_one == 1 || (n_one && c->b->later[0]));
}

bool tn_sc_fits(tn_sc *c, const json_t *v, const json_t *s, int depth) {
    if (depth > TN_SCHEMA_DEPTH) tn_sc_fail(c, TERN_E_LIMIT, "listed values are nested too deeply");
    if (!tn_sc_steps(c, 1 + json_object_size(s)) || json_is_false(s)) return false;
    if (!json_is_object(s)) return true;
    unsigned type = type_of(v), types = tn_sc_types(c, s);
    if (!tn_sc_keywords(c, s, type) || !(types & type)) return false;
    const char *ref = json_string_value(json_object_get(s, "$ref"));
    if (ref) {
        const json_t *to = tn_sc_resolve(c, ref);
        if (!to || !tn_sc_fits(c, v, to, depth + 1)) return false;
    }
    if (!listed(c, v, s) || !alternatives_fit(c, v, s, depth)) return false;
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
