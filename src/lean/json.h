/* lean/json.h - JSON values of our own, for builds that bring no jansson (TERN_MINIMAL).
 *
 * They behave as jansson's: the same texts are read and refused, objects keep the order in which keys were
 * first set, and a value has an owner count. include/jansson.h gives them jansson's names, so that callers
 * are the same in both builds. tests/lean and tests/fuzz/fuzz_lean_json.c compare the two.
 *
 * A reader never recurses deeper than TN_LEAN_MAX_DEPTH. A value belongs to one thread at a time, but for
 * its owner count, and true, false and null, which nobody changes. */
#ifndef TN_LEAN_JSON_H
#define TN_LEAN_JSON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { TN_LEAN_MAX_DEPTH = 2048 };

typedef enum tn_lean_type {
    TN_LEAN_OBJECT,
    TN_LEAN_ARRAY,
    TN_LEAN_STRING,
    TN_LEAN_INTEGER,
    TN_LEAN_REAL,
    TN_LEAN_TRUE,
    TN_LEAN_FALSE,
    TN_LEAN_NULL
} tn_lean_type;

typedef struct tn_lean_json tn_lean_json;

enum {
    TN_LEAN_REJECT_DUPLICATES = 1, /* reading: a key twice in one object is an error */
    TN_LEAN_DECODE_ANY = 2,   /* reading: the text may be a value of any kind, not only an object or array */
    TN_LEAN_ALLOW_NUL = 4,    /* reading: strings, but no keys, may have \u0000 */
    TN_LEAN_INT_AS_REAL = 32, /* reading: every number is a real */
    TN_LEAN_COMPACT = 8,      /* writing: no blanks */
    TN_LEAN_ENCODE_ANY = 16   /* writing: as DECODE_ANY */
};
#define TN_LEAN_INDENT(n) ((size_t)((n)&31) << 8)          /* writing: lines, n spaces a level; 0: one line */
#define TN_LEAN_REAL_PRECISION(n) ((size_t)((n)&31) << 16) /* writing: significant digits; 0: 17 */

typedef enum tn_lean_code { TN_LEAN_OK, TN_LEAN_NO_MEMORY, TN_LEAN_NOT_JSON } tn_lean_code;

typedef struct tn_lean_error {
    int line;       /* from 1 */
    char text[128]; /* what was wrong */
    tn_lean_code code;
} tn_lean_error;

/* NULL with *err filled (err may be NULL): the text is no JSON, or there is no memory. */
tn_lean_json *tn_lean_load(const char *text, size_t n_bytes, size_t flags, tn_lean_error *err);
/* Calls write for every piece of the text in order; -1 where it returns another value than 0, or j cannot be
 * written. */
int tn_lean_dump(const tn_lean_json *j, int (*write)(const char *piece, size_t n, void *user), void *user,
                 size_t flags);

/* Owners: a maker's result has one, which is the caller's. NULL is nothing everywhere. */
tn_lean_json *tn_lean_incref(tn_lean_json *j);
void tn_lean_decref(tn_lean_json *j);

tn_lean_type tn_lean_type_of(const tn_lean_json *j); /* j is not NULL */
bool tn_lean_is(const tn_lean_json *j, tn_lean_type t);

/* NULL: no memory. */
tn_lean_json *tn_lean_object(void);
tn_lean_json *tn_lean_array(void);
tn_lean_json *tn_lean_string(const char *text, size_t n_bytes); /* not checked: UTF-8 */
tn_lean_json *tn_lean_integer(long long v);
tn_lean_json *tn_lean_real(double v); /* NULL too: not finite */
tn_lean_json *tn_lean_true(void);
tn_lean_json *tn_lean_false(void);
tn_lean_json *tn_lean_null(void);

/* What j has, or 0, NULL and "absent" where j is NULL or of another kind. */
const char *tn_lean_text(const tn_lean_json *j);
size_t tn_lean_length(const tn_lean_json *j); /* of a string, bytes */
long long tn_lean_int_of(const tn_lean_json *j);
double tn_lean_real_of(const tn_lean_json *j);
double tn_lean_number_of(const tn_lean_json *j); /* integer or real */
size_t tn_lean_size(const tn_lean_json *j, tn_lean_type t);
tn_lean_json *tn_lean_at(const tn_lean_json *array, size_t i);          /* borrowed */
tn_lean_json *tn_lean_get(const tn_lean_json *object, const char *key); /* borrowed */
tn_lean_json *tn_lean_getn(const tn_lean_json *object, const char *key, size_t n_key);
/* Places in an object, until it changes; NULL: none is left. */
void *tn_lean_iter(tn_lean_json *object);
void *tn_lean_iter_next(tn_lean_json *object, void *iter);
const char *tn_lean_iter_key(void *iter);
bool tn_lean_each(const tn_lean_json *object, size_t *i, const char **key, /* *i from 0; all borrowed */
                  tn_lean_json **value);
bool tn_lean_equal(const tn_lean_json *a, const tn_lean_json *b);

/* 0, or -1: no memory, not that kind, or nothing there. Set and append own value in any case. */
int tn_lean_set(tn_lean_json *object, const char *key, tn_lean_json *value);
int tn_lean_append(tn_lean_json *array, tn_lean_json *value);
int tn_lean_delete(tn_lean_json *object, const char *key);
int tn_lean_remove(tn_lean_json *array, size_t i);
tn_lean_json *tn_lean_copy(const tn_lean_json *j); /* shallow: parts are shared */
tn_lean_json *tn_lean_deep_copy(const tn_lean_json *j);

#endif
