/* measure/bfcl_match.c - whether a call of a function is one of those that BFCL takes for right, by the rules of its AST checker.
 *
 * An answer of a parameter is a list of values; "" among them means that the parameter may be left out. Values are compared as
 * Python has them, for whose types the rules were written: true is 1, 2 is 2.0 but no float where an integer is wanted. Texts
 * are compared without case, spaces and some punctuation. A value of another type than the function's description wants is right
 * where the answers have that type: it then names a variable. */
#include "base/status.h"
#include "measure/suite_impl.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Python's types of JSON's values. */
typedef enum type { NONE, STR, INT, FLOAT, BOOL, LIST, DICT, UNKNOWN } type;

static type type_of(const json_t *v) {
    if (json_is_string(v)) return STR;
    if (json_is_integer(v)) return INT;
    if (json_is_real(v)) return FLOAT;
    if (json_is_boolean(v)) return BOOL;
    if (json_is_array(v)) return LIST;
    if (json_is_object(v)) return DICT;
    return NONE;
}

/* The type that a description's word means. */
static type type_named(const char *name) {
    static const struct {
        const char *name;
        type is;
    } names[] = {{"string", STR}, {"integer", INT}, {"float", FLOAT}, {"boolean", BOOL},
                 {"array", LIST}, {"tuple", LIST},  {"dict", DICT},   {"any", STR}};
    for (size_t i = 0; name && i < sizeof names / sizeof *names; i++)
        if (!strcmp(names[i].name, name)) return names[i].is;
    return UNKNOWN;
}

static double number(const json_t *v) { return json_is_boolean(v) ? json_is_true(v) : json_number_value(v); }

/* Python's ==. */
static bool equal(const json_t *a, const json_t *b) {
    type x = type_of(a), y = type_of(b);
    const char *key;
    const json_t *v;
    bool x_number = x == INT || x == FLOAT || x == BOOL, y_number = y == INT || y == FLOAT || y == BOOL;
    if (x == INT && y == INT) return json_integer_value(a) == json_integer_value(b);
    if (x_number || y_number) return x_number && y_number && number(a) == number(b);
    if (x != y) return false;
    if (x == LIST) {
        bool same = json_array_size(a) == json_array_size(b);
        for (size_t i = 0; same && i < json_array_size(a); i++)
            same = equal(json_array_get(a, i), json_array_get(b, i));
        return same;
    }
    if (x != DICT) return json_equal(a, b);
    if (json_object_size(a) != json_object_size(b)) return false;
    json_object_foreach((json_t *)a, key, v) {
        const json_t *w = json_object_get(b, key);
        if (!w || !equal(v, w)) return false;
    }
    return true;
}

static bool in(const json_t *v, const json_t *list) {
    const json_t *one;
    size_t i;
    json_array_foreach(list, i, one) if (equal(v, one)) return true;
    return false;
}

static bool may_be_absent(const json_t *answers) {
    const json_t *one;
    size_t i;
    json_array_foreach(answers, i, one) if (json_is_string(one) && !json_string_length(one)) return true;
    return false;
}

/* ---- texts --------------------------------------------------------------------------------------- */

typedef struct matcher {
    char *why;
    size_t cap;
    bool no_memory;
} matcher;

__attribute__((format(printf, 2, 3))) static bool wrong(matcher *m, const char *format, ...) {
    va_list args;
    va_start(args, format);
    (void)vsnprintf(m->why, m->cap, format, args);
    va_end(args);
    return false;
}

/* A text as it is compared; another value is itself. The caller owns it; NULL: no memory, which is noted. */
static json_t *plain(matcher *m, const json_t *v) {
    tn_bytes kept = {0}, low = {0};
    if (!json_is_string(v)) return json_incref((json_t *)v);
    const char *p = json_string_value(v);
    tn_bytes_add(&kept, "", 0);
    for (size_t i = 0; i < json_string_length(v); i++)
        if (!p[i] || !strchr(" ,./-_*^", p[i])) tn_bytes_add(&kept, p[i] == '\'' ? "\"" : p + i, 1);
    tn_bytes_add(&low, "", 0);
    if (!kept.failed) tn_suite_lower(&low, kept.p, kept.n);
    json_t *out = kept.failed || low.failed ? NULL : tn_json_string(low.p, low.n);
    m->no_memory = m->no_memory || !out;
    free(kept.p);
    free(low.p);
    return out;
}

/* The same of every element. A text is the list of its letters, as in Python. */
static json_t *plain_list(matcher *m, const json_t *v) {
    json_t *list = json_array();
    const json_t *one;
    size_t i;
    if (json_is_string(v)) {
        const char *p = json_string_value(v);
        for (size_t at = 0, n; at < json_string_length(v); at += n) {
            for (n = 1; (p[at + n] & 0xc0) == 0x80; n++) continue;
            json_t *letter = tn_json_string(p + at, n);
            tn_json_append(&list, letter ? plain(m, letter) : NULL);
            json_decref(letter);
        }
    }
    json_array_foreach(v, i, one) tn_json_append(&list, plain(m, one));
    m->no_memory = m->no_memory || !list;
    return list;
}

static bool is_text_of(matcher *m, const json_t *v, const json_t *answers) {
    json_t *x = plain(m, v), *one;
    bool found = false;
    size_t i;
    json_array_foreach(answers, i, one) {
        json_t *y = json_is_string(one) ? plain(m, one) : NULL;
        found = found || (x && y && json_equal(x, y));
        json_decref(y);
    }
    json_decref(x);
    return found;
}

static bool is_list_of(matcher *m, const json_t *v, const json_t *answers) {
    json_t *x = plain_list(m, v), *one;
    bool found = false;
    size_t i;
    json_array_foreach(answers, i, one) {
        json_t *y = json_is_array(one) || json_is_string(one) ? plain_list(m, one) : NULL;
        found = found || (x && y && equal(x, y));
        json_decref(y);
    }
    json_decref(x);
    return found;
}

static bool is_dict(matcher *m, const json_t *v, const json_t *answer) {
    const char *key;
    const json_t *one;
    if (!json_is_object(v) || !json_is_object(answer)) return false;
    json_object_foreach((json_t *)v, key, one) {
        const json_t *may = json_object_get(answer, key);
        json_t *x = plain(m, one), *list = may ? plain_list(m, may) : NULL;
        bool ok = x && list && in(x, list);
        json_decref(x);
        json_decref(list);
        if (!ok) return false;
    }
    json_object_foreach((json_t *)answer, key,
                        one) if (!json_object_get(v, key) && !may_be_absent(one)) return false;
    return true;
}

static bool is_dict_of(matcher *m, const json_t *v, const json_t *answers) {
    const json_t *one;
    size_t i;
    json_array_foreach(answers, i, one) if (is_dict(m, v, one)) return true;
    return false;
}

/* The same dictionaries in the same order. "" stands for an empty list. */
static bool is_list_of_dicts(matcher *m, const json_t *v, const json_t *answers) {
    const json_t *one;
    size_t i;
    json_array_foreach(answers, i, one) {
        bool same =
            json_array_size(one) == json_array_size(v) && (json_is_array(one) || may_be_absent(answers));
        for (size_t k = 0; same && k < json_array_size(v); k++)
            same = is_dict(m, json_array_get(v, k), json_array_get(one, k));
        if (same) return true;
    }
    return false;
}

/* ---- types --------------------------------------------------------------------------------------- */

/* The type of the answers: that of the first that is not "". */
static type type_of_answers(const json_t *answers) {
    const json_t *one;
    size_t i;
    json_array_foreach(answers, i,
                       one) if (!json_is_string(one) || json_string_length(one)) return type_of(one);
    return UNKNOWN;
}

/* Whether every element fits one of the answers' lists. */
static bool elements_fit(const json_t *v, const json_t *answers, type inner) {
    const json_t *answer, *one;
    size_t i, k;
    json_array_foreach(answers, i, answer) {
        bool fit = true;
        if (json_is_array(answer))
            json_array_foreach(v, k, one) fit =
                fit && (type_of(one) == inner || type_of(one) == type_of_answers(answer));
        if (fit) return true;
    }
    return false;
}

/* inner: of a list's elements, or UNKNOWN. */
static bool type_fits(const json_t *v, const json_t *answers, type want, type inner, bool *variable) {
    type theirs = type_of_answers(answers);
    *variable = theirs != UNKNOWN && theirs != want;
    if (type_of(v) == want) return inner == UNKNOWN || elements_fit(v, answers, inner);
    *variable = true;
    return theirs != UNKNOWN && type_of(v) == theirs;
}

static bool value_right(matcher *m, const char *name, const json_t *about, const json_t *v,
                        const json_t *answers) {
    const char *word = json_string_value(json_object_get(about, "type"));
    type want = type_named(word), inner = UNKNOWN;
    bool variable, ok;
    if (want == LIST)
        inner = type_named(json_string_value(json_object_get(json_object_get(about, "items"), "type")));
    json_t *value = want == FLOAT && json_is_integer(v) ? tn_json_real((double)json_integer_value(v))
                                                        : json_incref((json_t *)v);
    m->no_memory = m->no_memory || !value;
    if (!type_fits(value, answers, want, inner, &variable)) {
        json_decref(value);
        return wrong(m, "parameter %s: want type %s", name, word);
    }
    if (variable) ok = in(value, answers);
    else if (want == DICT) ok = is_dict_of(m, value, answers);
    else if (want == LIST && inner == DICT) ok = is_list_of_dicts(m, value, answers);
    else if (want == STR) ok = is_text_of(m, value, answers);
    else if (want == LIST) ok = is_list_of(m, value, answers);
    else ok = in(value, answers);
    json_decref(value);
    return ok || wrong(m, "parameter %s: none of the values that are right", name);
}

/* ---- calls --------------------------------------------------------------------------------------- */

static bool arguments_right(matcher *m, const json_t *function, const json_t *given, const json_t *answer) {
    const json_t *parameters = json_object_get(function, "parameters"), *v,
                 *about = json_object_get(parameters, "properties");
    const char *name;
    size_t i;
    json_array_foreach(
        json_object_get(parameters, "required"), i,
        v) if (!json_object_get(given, json_string_value(v))) return wrong(m, "parameter %s is missing",
                                                                           json_string_value(v));
    json_object_foreach((json_t *)given, name, v) {
        const json_t *one = json_object_get(about, name), *answers = json_object_get(answer, name);
        if (!one || !answers) return wrong(m, "parameter %s is not wanted", name);
        if (!value_right(m, name, one, v, answers)) return false;
    }
    json_object_foreach((json_t *)answer, name,
                        v) if (!json_object_get(given, name) &&
                               !may_be_absent(v)) return wrong(m, "parameter %s is missing", name);
    return true;
}

/* Names of functions reach the model with _ for each dot: APIs allow no dots in them. */
static bool same_name(const char *published, const char *called) {
    for (; *published && *called; published++, called++)
        if (*called != (*published == '.' ? '_' : *published)) return false;
    return *published == *called;
}

bool tn_bfcl_right(const json_t *item, const json_t *calls, char *why, size_t cap, bool *right) {
    matcher m = {why, cap, false};
    const json_t *answer = json_object_get(item, "answer"), *functions = json_object_get(item, "function"),
                 *f, *call = json_array_get(calls, 0);
    const char *name = json_object_iter_key(json_object_iter((json_t *)answer)),
               *called = json_string_value(json_object_get(call, "name")),
               *text = json_string_value(json_object_get(call, "arguments"));
    size_t n = json_array_size(calls), i;
    why[0] = 0;
    *right = false;
    if (!answer) {
        *right = !n;
        if (n) wrong(&m, "there is nothing to call, and %s was called", called ? called : "something");
    } else if (n != 1) {
        wrong(&m, "%zu calls where one is right", n);
    } else if (!called || !same_name(name, called)) {
        wrong(&m, "%s was called in place of %s", called ? called : "nothing", name);
    } else {
        json_error_t je = {0};
        json_t *given = text ? tn_json_parse(text, strlen(text), 0, &je) : NULL;
        const json_t *function = NULL;
        m.no_memory = !given && json_error_code(&je) == json_error_out_of_memory;
        json_array_foreach(functions, i,
                           f) if (!function && !strcmp(json_string_value(json_object_get(f, "name")), name))
            function = f;
        if (json_is_object(given))
            *right = arguments_right(&m, function, given, json_object_get(answer, name));
        else wrong(&m, "the arguments are no JSON object");
        json_decref(given);
    }
    return !m.no_memory;
}
