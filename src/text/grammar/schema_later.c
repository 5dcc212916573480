/* Keywords that rules cannot enforce: the part they can, and the check of a finished text. The rules then
 * accept more than the schema, and the check decides. */
#define PCRE2_CODE_UNIT_WIDTH 8
#include "text/grammar/schema_impl.h"

#include "base/json.h"
#include "base/status.h"
#include "text/grammar/grammar.h"

#include <float.h>
#include <math.h>
#include <pcre2.h>
#include <string.h>

bool tn_schema_checks(void) { return true; }

/* ---- what is held --------------------------------------------------------------------------------- */

unsigned tn_sc_later_types(tn_sc *c, const tn_goal *g, unsigned types) {
    for (size_t i = 0; i < g->n; i++) {
        const json_t *no = json_object_get(g->a[i].s, "not");
        if (json_is_true(no) || (json_is_object(no) && !json_object_size(no))) return 0;
        if (json_object_size(no) != 1 || !json_object_get(no, "type")) continue;
        unsigned t = tn_sc_types(c, no);
        if (!(t & TN_J_NUM)) t &= ~(unsigned)TN_J_INT; /* numbers that are not integers: left to the check */
        types &= ~t;
    }
    return types;
}

static const char *text_of(const json_t *values, size_t i) { /* one that rules can exclude */
    const json_t *v = json_is_array(values) ? json_array_get(values, i) : i ? NULL : values;
    return json_is_string(v) && json_string_length(v) < 200 &&
                   strlen(json_string_value(v)) == json_string_length(v)
               ? json_string_value(v)
               : NULL;
}

tn_gx tn_sc_later_string(tn_sc *c, const tn_goal *g) {
    enum { MOST = 256 };
    const char *names[MOST];
    size_t n = 0;
    for (size_t i = 0; i < g->n; i++) {
        const json_t *no = json_object_get(g->a[i].s, "not"), *v = json_object_get(no, "const");
        if (json_object_size(no) != 1) continue;
        if (json_is_array(v)) continue;
        if (!v) v = json_object_get(no, "enum");
        for (size_t k = 0; k < (json_is_array(v) ? json_array_size(v) : 1) && n < MOST; k++)
            if (text_of(v, k)) names[n++] = text_of(v, k);
    }
    return n ? tn_sc_key_but(c, names, n) : TN_GX_NEVER;
}

/* Compiles the names of a list that are not declared properties. */
static tn_gx key_of(tn_sc *c, const json_t *list, const char *const *names, size_t n) {
    tn_gx x = TN_GX_NEVER;
    for (size_t i = 0; i < json_array_size(list) && tn_sc_steps(c, n + 1); i++) {
        const json_t *v = json_array_get(list, i);
        bool own = !json_is_string(v);
        for (size_t k = 0; k < n && !own; k++) own = !strcmp(names[k], json_string_value(v));
        if (!own) x = TN_GX_ALT(c->b, x, tn_sc_value(c, v));
    }
    return x;
}

bool tn_sc_later_key(tn_sc *c, const tn_goal *g, const char *const *names, size_t n, tn_gx *key) {
    tn_goal sub = {.n = 0};
    for (size_t i = 0; i < g->n; i++) {
        const json_t *s = json_object_get(g->a[i].s, "propertyNames"), *list = json_object_get(s, "enum");
        if (json_is_array(list)) return *key = key_of(c, list, names, n), true;
        if (!tn_sc_any_name(s)) tn_goal_add(c, &sub, s);
    }
    if (!sub.n) return false;
    if (!c->text && !(c->text = tn_json_pack("{s:s}", "type", "string")))
        return *key = tn_sc_fail(c, TERN_E_MEMORY, "no memory"), true;
    tn_goal_add(c, &sub, c->text);
    *key = tn_sc_goal(c, &sub);
    return true;
}

tn_gx tn_sc_later_members(tn_sc *c, const tn_goal *g) {
    tn_gx x = TN_GX_NEVER, quote = tn_gx_str(c->b, "\"");
    for (size_t i = 0; i < g->n; i++) {
        const char *pattern;
        json_t *s;
        json_object_foreach(json_object_get(g->a[i].s, "patternProperties"), pattern, s) {
            if (json_is_false(s) || c->st != TERN_OK) continue;
            tn_goal sub = {.n = 0};
            tn_goal_add(c, &sub, s);
            tn_gx name = tn_sc_pattern(c, pattern, strlen(pattern), 0, TN_GX_INF);
            if (tn_sc_forgive(c, "patternProperties")) name = tn_sc_any_chars(c);
            x = TN_GX_ALT(
                c->b, x,
                TN_GX_SEQ(c->b, quote, name, quote, tn_gx_str(c->b, ":"), tn_sc_ws(c), tn_sc_goal(c, &sub)));
        }
    }
    return x;
}

/* ---- patterns that only PCRE2 has ----------------------------------------------------------------- */

/* Whether a pattern means the same in PCRE2 as in ECMA-262. */
static bool same_there(const char *p) {
    for (; *p; p++) {
        if (*p == '\\') {
            if (!*++p || strchr("AZzKGQERhHNXCagko", *p)) return false;
        } else if (*p == '(' && p[1] == '*') {
            return false;
        } else if (*p == '(' && p[1] == '?') {
            bool name = p[2] == '<' && p[3] && !strchr("=!", p[3]);
            if (!p[2] || (!strchr(":=!", p[2]) && p[2] != '<') || (p[2] == '<' && !p[3])) return false;
            if (name && !strchr(p, '>')) return false;
        } else if (strchr("*+?", *p) && p[1] == '+') { /* possessive */
            return false;
        } else if (*p == '[' && p[1] == ':') {
            return false;
        }
    }
    return true;
}

static void *regex_alloc(PCRE2_SIZE n, void *ctx) { return tn_alloc(ctx, TN_MEM_TEXT, n, 1); }
static void regex_release(void *p, void *ctx) { tn_free(ctx, p); }

/* Returns 1, 0, or a negative number if undecided. With text NULL: whether the pattern compiles. */
static int regex(tn_ctx *ctx, const char *pattern, const char *text, size_t n) {
    enum { MATCHES = 100000, HEAP_KIB = 65536 };
    if (!same_there(pattern)) return -1;
    int code, rc = -1;
    PCRE2_SIZE at;
    pcre2_general_context *gc = pcre2_general_context_create(regex_alloc, regex_release, ctx);
    pcre2_compile_context *cc = gc ? pcre2_compile_context_create(gc) : NULL;
    pcre2_match_context *mc = gc ? pcre2_match_context_create(gc) : NULL;
    pcre2_code *re = NULL;
    if (cc && mc) {
        pcre2_set_newline(cc, PCRE2_NEWLINE_ANYCRLF);
        pcre2_set_match_limit(mc, MATCHES);
        pcre2_set_heap_limit(mc, HEAP_KIB);
        re = pcre2_compile((PCRE2_SPTR)pattern, PCRE2_ZERO_TERMINATED,
                           PCRE2_UTF | PCRE2_NEVER_BACKSLASH_C | PCRE2_DOLLAR_ENDONLY |
                               PCRE2_ALLOW_EMPTY_CLASS | PCRE2_ALT_BSUX | PCRE2_MATCH_UNSET_BACKREF,
                           &code, &at, cc);
    }
    pcre2_match_data *md = re ? pcre2_match_data_create(1, gc) : NULL;
    if (md) rc = text ? pcre2_match(re, (PCRE2_SPTR)text, n, 0, 0, md, mc) : 1;
    pcre2_match_data_free(md);
    pcre2_code_free(re);
    pcre2_match_context_free(mc);
    pcre2_compile_context_free(cc);
    pcre2_general_context_free(gc);
    return rc == PCRE2_ERROR_NOMATCH ? 0 : rc >= 0 ? 1 : -1;
}

static bool matches(tn_sc *c, const char *text, size_t n, const char *pattern) {
    if (c->st != TERN_OK) return false;
    bool ok = tn_sc_matches(c, text, n, pattern);
    if (c->st != TERN_E_UNSUPPORTED) return ok;
    enum { REGEX_STEPS = 2000 }; /* the charge for compiling and matching */
    c->st = TERN_OK;
    if (!tn_sc_steps(c, REGEX_STEPS)) return false;
    c->st = TERN_E_UNSUPPORTED;
    int rc = regex(c->b->ctx, pattern, text, n);
    if (rc < 0) return false;
    c->st = TERN_OK;
    return rc > 0;
}

/* ---- can all of it be checked? -------------------------------------------------------------------- */

static void ready_pattern(tn_sc *c, const char *pattern) {
    if (c->st != TERN_OK) return;
    (void)tn_sc_matches(c, "", 0, pattern);
    if (c->st == TERN_E_UNSUPPORTED && regex(c->b->ctx, pattern, NULL, 0) > 0) c->st = TERN_OK;
}

static void ready(tn_sc *c, const json_t *s, int depth) {
    static const char *const one[] = {"not",
                                      "if",
                                      "then",
                                      "else",
                                      "contains",
                                      "propertyNames",
                                      "items",
                                      "additionalItems",
                                      "additionalProperties",
                                      "unevaluatedItems",
                                      "unevaluatedProperties"},
                             *const lists[] = {"allOf", "anyOf", "oneOf", "prefixItems", "items"},
                             *const maps[] = {"properties", "patternProperties", "$defs", "definitions",
                                              "dependentSchemas"};
    if (!json_is_object(s) || !tn_sc_steps(c, 1 + json_object_size(s))) return;
    if (depth > TN_SCHEMA_DEPTH) tn_sc_fail(c, TERN_E_LIMIT, "it is nested too deeply");
    (void)tn_sc_types(c, s);
    if (!tn_sc_keywords(c, s, 0)) return;
    const char *name, *dynamic[] = {"$dynamicRef", "$recursiveRef"};
    for (int i = 0; i < 2; i++)
        if (json_object_get(s, dynamic[i])) tn_sc_refuse(c, dynamic[i]);
    if ((name = json_string_value(json_object_get(s, "$ref")))) (void)tn_sc_resolve(c, name);
    if ((name = json_string_value(json_object_get(s, "pattern")))) ready_pattern(c, name);
    json_t *v;
    json_object_foreach(json_object_get(s, "patternProperties"), name, v) ready_pattern(c, name);
    json_object_foreach(json_object_get(s, "dependencies"), name, v) ready(c, v, depth + 1);
    for (size_t i = 0; i < sizeof one / sizeof *one; i++) ready(c, json_object_get(s, one[i]), depth + 1);
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++)
        for (size_t k = 0; k < json_array_size(json_object_get(s, lists[i])); k++)
            ready(c, json_array_get(json_object_get(s, lists[i]), k), depth + 1);
    for (size_t i = 0; i < sizeof maps / sizeof *maps; i++)
        json_object_foreach(json_object_get(s, maps[i]), name, v) ready(c, v, depth + 1);
}

void tn_sc_later_ready(tn_sc *c) {
    c->n_steps = 0;
    ready(c, c->root, 0);
}

/* ---- the check ------------------------------------------------------------------------------------ */

/* A value under a schema. seen[i]: some keyword evaluated its i-th member or item. */
typedef struct under {
    tn_sc *c;
    const json_t *v, *s;
    uint8_t *seen;
    int depth;
} under;

static bool fits(tn_sc *c, const json_t *v, const json_t *s, int depth, uint8_t *seen);

static bool fits_too(const under *u, const json_t *s) { /* the same value */
    return fits(u->c, u->v, s, u->depth + 1, u->seen);
}

static bool bound(const json_t *s, const char *word, double x, int sign, bool open) {
    const json_t *b = json_object_get(s, word);
    if (!json_is_number(b)) return true;
    double d = sign * (x - json_number_value(b));
    return open ? d > 0 : d >= 0;
}

static bool number_fits(const json_t *v, const json_t *s) {
    double x = json_number_value(v);
    const json_t *m = json_object_get(s, "multipleOf");
    if (json_is_integer(v) && json_is_integer(m)) {
        if (json_integer_value(m) <= 0 || json_integer_value(v) % json_integer_value(m)) return false;
    } else if (json_is_number(m)) {
        double k = json_number_value(m), q = x / k; /* 4.35 is 435 times 0.01 only nearly in doubles */
        bool near = fabs(q) < 0x1p50 && fabs(q - round(q)) <= 4 * DBL_EPSILON * fabs(q);
        double part = 1 / k; /* every whole number is a multiple of one n-th */
        near |= json_is_integer(v) && part >= 1 && part < 0x1p50 &&
                fabs(part - round(part)) <= 4 * DBL_EPSILON * part;
        if (!(k > 0) || (!near && fmod(x, k) != 0)) return false;
    }
    return bound(s, "minimum", x, 1, json_is_true(json_object_get(s, "exclusiveMinimum"))) &&
           bound(s, "maximum", x, -1, json_is_true(json_object_get(s, "exclusiveMaximum"))) &&
           bound(s, "exclusiveMinimum", x, 1, true) && bound(s, "exclusiveMaximum", x, -1, true);
}

static bool text_fits(tn_sc *c, const json_t *v, const json_t *s) {
    const char *text = json_string_value(v), *p = json_string_value(json_object_get(s, "pattern")),
               *f = json_string_value(json_object_get(s, "format"));
    size_t n = json_string_length(v), points = 0;
    for (size_t i = 0; i < n; i++) points += (text[i] & 0xc0) != 0x80;
    f = f ? tn_sc_format_pattern(f) : NULL;
    return bound(s, "minLength", (double)points, 1, false) &&
           bound(s, "maxLength", (double)points, -1, false) && (!p || matches(c, text, n, p)) &&
           (!f || matches(c, text, n, f));
}

static bool all_there(const json_t *v, const json_t *names) {
    for (size_t i = 0; i < json_array_size(names); i++) {
        const char *name = json_string_value(json_array_get(names, i));
        if (name && !json_object_get(v, name)) return false;
    }
    return true;
}

static bool dependents_fit(const under *u) {
    const char *name;
    json_t *d;
    json_object_foreach(json_object_get(u->s, "dependentRequired"), name,
                        d) if (json_object_get(u->v, name) && !all_there(u->v, d)) return false;
    json_object_foreach(json_object_get(u->s, "dependentSchemas"), name,
                        d) if (json_object_get(u->v, name) && !fits_too(u, d)) return false;
    json_object_foreach(json_object_get(u->s, "dependencies"), name, d) {
        if (!json_object_get(u->v, name)) continue;
        if (json_is_array(d) ? !all_there(u->v, d) : !fits_too(u, d)) return false;
    }
    return true;
}

static bool member_fits(const under *u, const char *name, const json_t *w, uint8_t *seen) {
    tn_sc *c = u->c;
    const json_t *own = json_object_get(json_object_get(u->s, "properties"), name),
                 *more = json_object_get(u->s, "additionalProperties");
    bool known = own != NULL;
    if (own && !fits(c, w, own, u->depth + 1, NULL)) return false;
    const char *pattern;
    json_t *s;
    json_object_foreach(json_object_get(u->s, "patternProperties"), pattern, s) {
        if (!matches(c, name, strlen(name), pattern)) continue;
        known = true;
        if (!fits(c, w, s, u->depth + 1, NULL)) return false;
    }
    if (!known && more && !fits(c, w, more, u->depth + 1, NULL)) return false;
    *seen |= known || more;
    const json_t *names = json_object_get(u->s, "propertyNames");
    json_t *key = names ? tn_json_string(name, strlen(name)) : NULL;
    bool ok = !names || (key && fits(c, key, names, u->depth + 1, NULL));
    json_decref(key);
    return ok;
}

static bool object_fits(const under *u) {
    double n = (double)json_object_size(u->v);
    if (!bound(u->s, "minProperties", n, 1, false) || !bound(u->s, "maxProperties", n, -1, false) ||
        !all_there(u->v, json_object_get(u->s, "required")) || !dependents_fit(u))
        return false;
    const char *name;
    json_t *w;
    size_t i = 0;
    json_object_foreach((json_t *)(uintptr_t)u->v, name,
                        w) if (!member_fits(u, name, w, &u->seen[i++])) return false;
    const json_t *rest = json_object_get(u->s, "unevaluatedProperties");
    i = 0;
    json_object_foreach((json_t *)(uintptr_t)u->v, name, w) {
        if (rest && !u->seen[i] && !fits(u->c, w, rest, u->depth + 1, NULL)) return false;
        u->seen[i++] |= rest != NULL;
    }
    return true;
}

static bool contains_fit(const under *u, size_t n) {
    const json_t *s = json_object_get(u->s, "contains");
    size_t found = 0;
    for (size_t i = 0; s && i < n; i++) {
        if (!fits(u->c, json_array_get(u->v, i), s, u->depth + 1, NULL)) continue;
        found++;
        u->seen[i] = 1;
    }
    return !s || (bound(u->s, "minContains", (double)found, 1, false) &&
                  bound(u->s, "maxContains", (double)found, -1, false) &&
                  (found || json_object_get(u->s, "minContains")));
}

static bool array_fits(const under *u) {
    const json_t *first = json_object_get(u->s, "prefixItems"), *rest = json_object_get(u->s, "items"),
                 *other = json_object_get(u->s, "unevaluatedItems");
    if (json_is_array(rest)) first = rest, rest = json_object_get(u->s, "additionalItems");
    size_t n = json_array_size(u->v);
    if (!bound(u->s, "minItems", (double)n, 1, false) || !bound(u->s, "maxItems", (double)n, -1, false))
        return false;
    for (size_t i = 0; i < n; i++) {
        const json_t *q = i < json_array_size(first) ? json_array_get(first, i) : rest;
        if (q && !fits(u->c, json_array_get(u->v, i), q, u->depth + 1, NULL)) return false;
        u->seen[i] |= q != NULL;
    }
    if (json_is_true(json_object_get(u->s, "uniqueItems")))
        for (size_t i = 0; i < n; i++)
            for (size_t k = 0; k < i && tn_sc_steps(u->c, 1); k++)
                if (tn_json_same(json_array_get(u->v, i), json_array_get(u->v, k))) return false;
    if (!contains_fit(u, n)) return false;
    for (size_t i = 0; other && i < n; i++) {
        if (!u->seen[i] && !fits(u->c, json_array_get(u->v, i), other, u->depth + 1, NULL)) return false;
        u->seen[i] = 1;
    }
    return true;
}

static bool combined_fit(const under *u) {
    const json_t *all = json_object_get(u->s, "allOf"), *any = json_object_get(u->s, "anyOf"),
                 *one = json_object_get(u->s, "oneOf"), *no = json_object_get(u->s, "not"),
                 *cond = json_object_get(u->s, "if");
    const char *ref = json_string_value(json_object_get(u->s, "$ref"));
    if (ref) {
        const json_t *to = tn_sc_resolve(u->c, ref);
        if (!to || !fits_too(u, to)) return false;
    }
    size_t n_any = 0, n_one = 0;
    for (size_t i = 0; i < json_array_size(all); i++)
        if (!fits_too(u, json_array_get(all, i))) return false;
    for (size_t i = 0; i < json_array_size(any); i++) n_any += fits_too(u, json_array_get(any, i));
    for (size_t i = 0; i < json_array_size(one); i++) n_one += fits_too(u, json_array_get(one, i));
    if ((any && !n_any) || (one && n_one != 1)) return false;
    if (no && fits(u->c, u->v, no, u->depth + 1, NULL)) return false;
    if (!cond) return true;
    const json_t *then = json_object_get(u->s, fits_too(u, cond) ? "then" : "else");
    return !then || fits_too(u, then);
}

static bool listed(const json_t *v, const json_t *s) {
    const json_t *k = json_object_get(s, "const"), *list = json_object_get(s, "enum");
    bool in = !list;
    for (size_t i = 0; i < json_array_size(list) && !in; i++) in = tn_json_same(v, json_array_get(list, i));
    return in && (!k || tn_json_same(v, k));
}

static bool type_fits(tn_sc *c, const json_t *v, const json_t *s) {
    static const unsigned of[] = {
        [JSON_OBJECT] = TN_J_OBJ,  [JSON_ARRAY] = TN_J_ARR, [JSON_STRING] = TN_J_STR,
        [JSON_INTEGER] = TN_J_INT, [JSON_REAL] = TN_J_NUM,  [JSON_TRUE] = TN_J_BOOL,
        [JSON_FALSE] = TN_J_BOOL,  [JSON_NULL] = TN_J_NULL};
    unsigned t = of[json_typeof(v)];
    if (t == TN_J_NUM && json_real_value(v) == floor(json_real_value(v))) t = TN_J_INT;
    return tn_sc_types(c, s) & t;
}

static bool fits(tn_sc *c, const json_t *v, const json_t *s, int depth, uint8_t *seen) {
    if (depth > TN_SCHEMA_DEPTH) tn_sc_fail(c, TERN_E_LIMIT, "it is nested too deeply");
    if (!tn_sc_steps(c, 1 + json_object_size(s)) || json_is_false(s)) return false;
    if (!json_is_object(s)) return true;
    if (!type_fits(c, v, s) || !listed(v, s)) return false;
    if (json_is_string(v) && !text_fits(c, v, s)) return false;
    if (json_is_number(v) && !number_fits(v, s)) return false;
    size_t n = json_is_object(v) ? json_object_size(v) : json_array_size(v);
    under u = {c, v, s, tn_calloc(c->b->ctx, TN_MEM_TEXT, n + 1, 1), depth};
    if (!u.seen) tn_sc_fail(c, TERN_E_MEMORY, "no memory");
    bool ok = u.seen && combined_fit(&u) && (!json_is_object(v) || object_fits(&u)) &&
              (!json_is_array(v) || array_fits(&u));
    for (size_t i = 0; ok && seen && i < n; i++) seen[i] |= u.seen[i];
    tn_free(c->b->ctx, u.seen);
    return ok && c->st == TERN_OK;
}

bool tn_schema_fits(tn_ctx *ctx, const char *schema, size_t n_schema, const char *text, size_t n_bytes) {
    const size_t flags = JSON_DECODE_ANY | JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL;
    json_t *s = tn_json_parse(schema, n_schema, JSON_DECODE_ANY | JSON_REJECT_DUPLICATES, NULL),
           *v = tn_json_parse(text, n_bytes, flags, NULL);
    tn_gb b;
    tern_error err = {0};
    tn_gb_open(&b, ctx);
    tn_sc c = {.b = &b, .root = s, .err = &err, .checks = true, .most_steps = TN_SCHEMA_CHECK_STEPS};
    bool ok = s && v && fits(&c, v, s, 0, NULL) && c.st == TERN_OK;
    tn_gb_close(&b);
    json_decref(s);
    json_decref(v);
    return ok;
}
