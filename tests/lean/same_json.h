/* tests/lean/same_json.h - a value of our own beside jansson's. */
#ifndef TESTS_LEAN_SAME_JSON_H
#define TESTS_LEAN_SAME_JSON_H

#include "lean/json.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

typedef struct json_text {
    char *p;
    size_t n, cap;
} json_text;

static int json_text_add(const char *piece, size_t n, void *user) {
    json_text *t = user;
    if (t->n + n + 1 > t->cap) {
        t->cap = 2 * (t->n + n + 1);
        t->p = realloc(t->p, t->cap);
        if (!t->p) abort();
    }
    memcpy(t->p + t->n, piece, n);
    t->p[t->n += n] = 0;
    return 0;
}

/* The same types, numbers, strings and order of keys. */
static inline bool same_json(const tn_lean_json *a, const json_t *b) {
    if (!a || !b) return !a && !b;
    if ((int)tn_lean_type_of(a) != (int)json_typeof(b)) return false;
    bool same = true;
    switch (json_typeof(b)) {
    case JSON_OBJECT: {
        const char *key, *own_key;
        json_t *value;
        tn_lean_json *own;
        size_t i = 0;
        same = tn_lean_size(a, TN_LEAN_OBJECT) == json_object_size(b);
        json_object_foreach((json_t *)b, key, value) {
            same = same && tn_lean_each(a, &i, &own_key, &own) && !strcmp(own_key, key) &&
                   same_json(own, value) && tn_lean_get(a, key) == own;
        }
        return same && !tn_lean_each(a, &i, &own_key, &own);
    }
    case JSON_ARRAY:
        same = tn_lean_size(a, TN_LEAN_ARRAY) == json_array_size(b);
        for (size_t i = 0; same && i < json_array_size(b); i++)
            same = same_json(tn_lean_at(a, i), json_array_get(b, i));
        return same;
    case JSON_STRING:
        return tn_lean_length(a) == json_string_length(b) &&
               !memcmp(tn_lean_text(a), json_string_value(b), json_string_length(b));
    case JSON_INTEGER: return tn_lean_int_of(a) == json_integer_value(b);
    case JSON_REAL: return tn_lean_real_of(a) == json_real_value(b);
    default: return true;
    }
}

/* Both refuse the text, or both read the same and write it alike. */
static inline bool same_reading(const char *text, size_t n) {
    static const size_t own[] = {0, TN_LEAN_REJECT_DUPLICATES | TN_LEAN_INT_AS_REAL,
                                 TN_LEAN_DECODE_ANY | TN_LEAN_ALLOW_NUL},
                        other[] = {0, JSON_REJECT_DUPLICATES | JSON_DECODE_INT_AS_REAL,
                                   JSON_DECODE_ANY | JSON_ALLOW_NUL};
    bool same = true;
    for (size_t i = 0; same && i < 3; i++) {
        tn_lean_error err;
        tn_lean_json *a = tn_lean_load(text, n, own[i], &err);
        json_t *b = json_loadb(text, n, other[i], NULL);
        same = same_json(a, b) && (a != NULL) == (err.code == TN_LEAN_OK);
        static const size_t how[] = {TN_LEAN_COMPACT | TN_LEAN_ENCODE_ANY,
                                     TN_LEAN_INDENT(1) | TN_LEAN_REAL_PRECISION(6)},
                            their[] = {JSON_COMPACT | JSON_ENCODE_ANY,
                                       JSON_INDENT(1) | JSON_REAL_PRECISION(6)};
        for (size_t k = 0; same && a && k < 2; k++) {
            json_text x = {0}, y = {0};
            int ra = tn_lean_dump(a, json_text_add, &x, how[k]),
                rb = json_dump_callback(b, json_text_add, &y, their[k]);
            same = ra == rb && (ra || (x.n == y.n && !memcmp(x.p, y.p, x.n)));
            free(x.p);
            free(y.p);
        }
        tn_lean_decref(a);
        json_decref(b);
    }
    return same;
}

#endif
