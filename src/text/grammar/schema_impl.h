/* text/grammar/schema_impl.h - what the files that compile a JSON Schema share.
 *
 *   schema_goals.c   failures, keywords, references; goals: the schemas that one value must fit together
 *   schema.c         compiles goals one after another; alternatives
 *   schema_types.c   what a value of one type may be under a goal: objects, arrays, strings, numbers
 *   schema_pattern.c strings: patterns and formats
 *   schema_text.c    strings: characters, keys that are none of some names; values written out
 *   schema_number.c  numbers in a range
 *   schema_later.c   keywords that rules cannot express: the finished text is checked
 *   schema_valid.c   whether a value fits a schema (for enum and const beside other keywords)
 *
 * A goal is a conjunction of schemas. A property that several of them name becomes a goal of its own, so
 * allOf is exact. */
#ifndef TN_TEXT_GRAMMAR_SCHEMA_IMPL_H
#define TN_TEXT_GRAMMAR_SCHEMA_IMPL_H

#include "text/grammar/expr.h"

#include <jansson.h>

enum {
    TN_SCHEMA_ATOMS = 48,
    TN_SCHEMA_GOALS = 20000,
    TN_SCHEMA_SLOTS = 1 << 16,
    TN_SCHEMA_BRANCHES = 512,
    TN_SCHEMA_DEPTH = 64,
    TN_SCHEMA_STEPS = 20000000, /* keywords, values and alternatives looked at: under a second */
    TN_SCHEMA_CHECK_STEPS =
        500000 /* the same for a finished text, while others wait: about a tenth of a second */
};

/* Parts of a schema that a goal has already expanded. */
enum { TN_SKIP_REF = 1, TN_SKIP_ALL = 2, TN_SKIP_ANY = 4, TN_SKIP_ONE = 8 };

typedef struct tn_atom {
    const json_t *s;
    uint32_t skip;
} tn_atom;

typedef struct tn_goal {
    size_t n;
    tn_atom a[TN_SCHEMA_ATOMS];
} tn_goal;

typedef enum tn_jtype {
    TN_J_NULL = 1,
    TN_J_BOOL = 2,
    TN_J_INT = 4, /* numbers without a fraction */
    TN_J_NUM = 8, /* all numbers; implies TN_J_INT */
    TN_J_STR = 16,
    TN_J_ARR = 32,
    TN_J_OBJ = 64,
    TN_J_ALL = 127
} tn_jtype;

typedef struct tn_known_goal {
    size_t first, n; /* atoms */
    tn_grule rule;
} tn_known_goal;

/* The values of an enum, sorted for binary search. `list` is the schema's own array. */
typedef struct tn_sorted {
    const json_t *list;
    const json_t **v;
    size_t n;
} tn_sorted;

typedef struct tn_sc {
    tn_gb *b;
    const json_t *root;
    tern_error *err;
    tern_status st; /* of the first failure */
    tn_atom *atoms;
    size_t n_atoms, cap_atoms;
    tn_known_goal *goals; /* rules made, the first n_done of them compiled */
    size_t n_goals, cap_goals, n_done;
    uint32_t *slots; /* [TN_SCHEMA_SLOTS]: a number in goals plus one, by the hash of its atoms; 0: free */
    uint64_t n_steps, most_steps;      /* most_steps 0: TN_SCHEMA_STEPS */
    tn_sorted sorted[TN_SCHEMA_ATOMS]; /* the enums of the values at hand; older ones give way */
    size_t n_sorted;
    bool checks;  /* finished texts can be checked: tn_schema_checks() */
    json_t *text; /* the schema of texts, made when first used */
    int branches; /* alternatives of the goal at hand */
    tn_gx ws, string, chars, key_end, one_char, number,
        integer; /* rules of every schema, made when first used */
} tn_sc;

/* Remembers the first failure and returns TN_GX_NEVER. */
tn_gx tn_sc_fail(tn_sc *c, tern_status st, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
/* Fails with "json schema: WHAT is not supported". */
tn_gx tn_sc_refuse(tn_sc *c, const char *what);

bool tn_goal_never(const tn_goal *g);                         /* nothing fits it */
void tn_goal_add(tn_sc *c, tn_goal *g, const json_t *schema); /* absent (NULL) and true add nothing */
/* Returns the rule of a goal, compiled once. */
tn_gx tn_sc_goal(tn_sc *c, const tn_goal *g);
/* Returns the schema that a $ref names. */
const json_t *tn_sc_resolve(tn_sc *c, const char *ref);
/* Notes a keyword that the rules ignore or enforce in part, so the finished text will be checked. Returns
 * false if it cannot be checked; the caller then refuses it. The rules then accept more than the schema,
 * never less. */
bool tn_sc_later(tn_sc *c, const char *what);
/* Clears a failure that the check of the finished text covers, so reading continues without this part. */
bool tn_sc_forgive(tn_sc *c, const char *what);
/* What rules can enforce of checked keywords: types and texts that "not" leaves (NEVER: no restriction), keys
 * by "propertyNames" (false: no restriction) and members by "patternProperties". */
unsigned tn_sc_later_types(tn_sc *c, const tn_goal *g, unsigned types);
tn_gx tn_sc_later_string(tn_sc *c, const tn_goal *g);
bool tn_sc_later_key(tn_sc *c, const tn_goal *g, const char *const *names, size_t n, tn_gx *key);
tn_gx tn_sc_later_members(tn_sc *c, const tn_goal *g);
/* Whether this build checks finished texts (schema_later.c) or not (no_later.c). */
bool tn_schema_checks(void);
/* Refuses anything in the whole schema that the check does not support. */
void tn_sc_later_ready(tn_sc *c);
/* Refuses keywords that cannot be enforced for values of these types. */
bool tn_sc_keywords(tn_sc *c, const json_t *schema, unsigned types);
unsigned tn_sc_types(tn_sc *c, const json_t *schema); /* that "type" allows */

tn_gx tn_sc_object(tn_sc *c, const tn_goal *g);
tn_gx tn_sc_array(tn_sc *c, const tn_goal *g);
tn_gx tn_sc_string(tn_sc *c, const tn_goal *g);
tn_gx tn_sc_number(tn_sc *c, const tn_goal *g, bool integer);
tn_gx tn_sc_value(tn_sc *c, const json_t *value); /* just this value */

tn_gx tn_sc_ws(tn_sc *c);
tn_gx tn_sc_any_string(tn_sc *c);
tn_gx tn_sc_any_chars(tn_sc *c); /* of a string, any number */
tn_gx tn_sc_one_char(tn_sc *c);
tn_gx tn_sc_any_number(tn_sc *c, bool integer);
tn_gx tn_sc_quoted(tn_sc *c, const char *text, size_t n_bytes); /* a string of just this text */
tn_gx tn_sc_char_of(tn_sc *c, const tn_grange *r, size_t n);    /* a character of a string, out of a set */
tn_gx tn_sc_pattern(tn_sc *c, const char *pattern, size_t n, uint32_t min,
                    uint32_t max);                  /* contents of a string */
tn_gx tn_sc_format(tn_sc *c, const char *name);     /* contents of a string; it is known */
bool tn_sc_any_name(const json_t *v);               /* of propertyNames: names are texts anyway */
const char *tn_sc_format_pattern(const char *name); /* NULL: not known */
tn_gx tn_sc_key_but(tn_sc *c, const char *const *names, size_t n); /* a string other than these */

/* Numbers between bounds, which may be infinite. */
typedef struct tn_bounds {
    double lo, hi;
    bool lo_open, hi_open; /* the bound itself is excluded */
} tn_bounds;
tn_gx tn_sc_between(tn_sc *c, tn_bounds b, bool integer);

/* Counts work. Returns false beyond the limit, and the schema is refused. */
bool tn_sc_steps(tn_sc *c, size_t n);
void tn_sc_forget_sorted(tn_sc *c);

/* Compares as JSON does: 1 and 1.0 are the same. */
bool tn_json_same(const json_t *a, const json_t *b);
/* Whether a value fits a schema. False after a failure, too. */
bool tn_sc_fits(tn_sc *c, const json_t *value, const json_t *schema, int depth);
bool tn_sc_matches(tn_sc *c, const char *text, size_t n, const char *pattern);

#endif
