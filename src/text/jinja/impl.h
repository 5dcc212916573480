/* text/jinja/impl.h - what the files of the interpreter share.
 *
 * One run (tn_jinja) owns an arena: tokens, tree, values and strings live until it ends. Nothing is freed one
 * by one, and a failure anywhere jumps to the run's only exit. Every allocation and every evaluated node is
 * counted against the run's limits.
 *
 * Strings are immutable UTF-8 spans with marks that say which bytes are content (segments.h). Every function
 * that cuts or joins strings keeps the marks. */
#ifndef TN_TEXT_JINJA_IMPL_H
#define TN_TEXT_JINJA_IMPL_H

#include "text/jinja/jinja.h"

#include <setjmp.h>
#include <string.h>

typedef struct tn_jinja tn_jinja;
typedef struct tn_jnode tn_jnode;

/* ---- values ---- */

typedef enum tn_jtype {
    J_UNDEFINED,
    J_NONE,
    J_BOOL,
    J_INT,
    J_FLOAT,
    J_STRING,
    J_LIST,
    J_DICT,
    J_NAMESPACE, /* a dict that `set` may change */
    J_FUNC,
    J_LOOP
} tn_jtype;

typedef struct tn_jstr {
    const char *p;
    size_t n;
    const tn_segment *seg; /* NULL: all bytes are `content` or not */
    size_t n_seg;
    bool content;
    bool markup; /* from `safe`: '+' escapes the other operand, as jinja2's Markup does */
} tn_jstr;

typedef struct tn_jlist tn_jlist;
typedef struct tn_jdict tn_jdict;
typedef struct tn_jfunc tn_jfunc;
typedef struct tn_jloop tn_jloop;

typedef struct tn_jval {
    tn_jtype type;
    union {
        bool b;
        int64_t i;
        double f;
        const tn_jstr *s;
        tn_jlist *l;
        tn_jdict *d;
        const tn_jfunc *fn;
        tn_jloop *loop;
        const char *what; /* undefined: the message, such as "'x' is undefined" */
    } u;
} tn_jval;

/* The kinds of lists that Python has. They print, compare and index differently. */
typedef enum tn_jlist_kind {
    J_PLAIN,
    J_TUPLE,
    J_RANGE,
    J_VIEW,     /* of a dict: no index */
    J_GENERATOR /* of a filter: no length either, and consumed by one loop */
} tn_jlist_kind;

struct tn_jlist {
    tn_jval *v;
    size_t n, cap;
    tn_jlist_kind kind;
};

struct tn_jdict { /* in order of insertion */
    tn_jval *keys, *vals;
    size_t n, cap;
};

/* Arguments of a call: positional ones, then named ones. */
typedef struct tn_jargs {
    tn_jval *pos;
    size_t n_pos;
    const tn_jstr **names;
    tn_jval *named;
    size_t n_named;
} tn_jargs;

typedef tn_jval (*tn_jbuiltin)(tn_jinja *j, tn_jval self, const tn_jargs *a);

typedef struct tn_jscope tn_jscope;

/* A built-in function, a method bound to `self`, or a macro. */
struct tn_jfunc {
    const char *name;
    tn_jbuiltin call; /* NULL: a macro */
    tn_jval self;
    const tn_jnode *macro;
    tn_jscope *scope; /* where the macro was defined */
};

struct tn_jloop {
    tn_jlist *items;
    size_t at;
    int depth0;
    const tn_jnode *recursive; /* the loop to run again, or NULL */
    tn_jscope *scope;          /* of the recursive loop */
    tn_jval changed;           /* the last arguments of loop.changed; undefined: none yet */
};

/* ---- the tree ---- */

typedef enum tn_jkind {
    /* expressions */
    JN_CONST,
    JN_NAME,
    JN_LIST,
    JN_TUPLE,
    JN_DICT, /* kids: JN_PAIR */
    JN_PAIR,
    JN_ATTR,
    JN_ITEM,
    JN_SLICE,
    JN_CALL,
    JN_KEYWORD, /* an argument by name */
    JN_SPREAD,  /* *a */
    JN_SPREAD2, /* **a */
    JN_FILTER,
    JN_TEST,
    JN_NEGATE,
    JN_PLUS,
    JN_BINARY,
    JN_AND,
    JN_OR,
    JN_NOT,
    JN_COMPARE, /* a, then kids: JN_PAIR with op and a */
    JN_CONCAT,
    JN_COND,
    /* statements */
    JN_DATA,
    JN_PRINT,
    JN_IF,
    JN_FOR,
    JN_SET,
    JN_SET_BLOCK,
    JN_MACRO,
    JN_CALL_BLOCK,
    JN_FILTER_BLOCK,
    JN_WITH,
    JN_BREAK,
    JN_CONTINUE,
    JN_GROUP /* statements without a scope of their own */
} tn_jkind;

/* Operators and punctuation have one or two characters. */
#define J_OP(a, b) ((a) | (b) << 8)
enum { J_OP_IN = 1, J_OP_NOT_IN = 2 }; /* comparisons spelled as words */

struct tn_jnode {
    tn_jkind kind;
    int op;
    int line;
    bool recursive;
    const tn_jstr *name;
    tn_jval value;
    tn_jnode *a, *b, *c;     /* what they are depends on the kind: parse.c */
    tn_jnode *kids;          /* a list by `next` */
    tn_jnode *body, *orelse; /* lists of statements */
    tn_jnode *target;
    tn_jnode *next;
};

/* ---- tokens ---- */

typedef enum tn_jtoken_type {
    JT_DATA,
    JT_VAR_BEGIN,
    JT_VAR_END,
    JT_BLOCK_BEGIN,
    JT_BLOCK_END,
    JT_NAME,
    JT_STRING,
    JT_INT,
    JT_FLOAT,
    JT_OP,
    JT_EOF
} tn_jtoken_type;

typedef struct tn_jtoken {
    tn_jtoken_type type;
    int line, op;
    const tn_jstr *s; /* data, names, strings */
    tn_jval v;        /* numbers */
} tn_jtoken;

/* ---- the run ---- */

typedef struct tn_jvar {
    const tn_jstr *name;
    tn_jval value;
} tn_jvar;

struct tn_jscope {
    tn_jscope *parent;
    tn_jvar *vars;
    size_t n, cap;
    uint32_t *slots; /* twice cap: a variable's place and 1, at its name's hash or after it; NULL for a few */
};

/* A string being built. */
typedef struct tn_jbuf {
    char *p;
    size_t n, cap;
    tn_segment *seg;
    size_t n_seg, cap_seg;
} tn_jbuf;

struct tn_jinja {
    tn_ctx *ctx;
    tern_error *err;
    tern_status status;
    jmp_buf fail;
    struct tn_jchunk *chunks;
    uint64_t n_bytes, max_bytes, n_steps, max_steps;
    int depth;
    int line; /* of the statement or expression that runs */
    tn_jscope *scope;
    tn_jbuf *out;
    int64_t now_s;
};

enum { TN_J_MAX_DEPTH = 400, TN_J_MAX_RANGE = 100000 };

_Noreturn void tn_jfail(tn_jinja *j, tern_status code, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
void *tn_jalloc(tn_jinja *j, size_t n, size_t size); /* zeroed; never NULL */
void tn_jsteps(tn_jinja *j, uint64_t n);             /* counts work */

void tn_jrelease(tn_jinja *j); /* frees all that was allocated */
void tn_jenter(tn_jinja *j);   /* one level deeper; fails beyond TN_J_MAX_DEPTH */
void tn_jleave(tn_jinja *j);

/* ---- strings.c ---- */

const tn_jstr *tn_jstr_span(tn_jinja *j, const char *p, size_t n, bool content); /* borrows p */
const tn_jstr *tn_jstr_copy(tn_jinja *j, const char *p, size_t n, bool content);
const tn_jstr *tn_jstr_sub(tn_jinja *j, const tn_jstr *s, size_t from, size_t to); /* bytes */
bool tn_jstr_eq(const tn_jstr *a, const tn_jstr *b);
bool tn_jstr_is(const tn_jstr *s, const char *text);
int tn_jstr_cmp(const tn_jstr *a, const tn_jstr *b);
size_t tn_jstr_length(const tn_jstr *s);                         /* characters */
size_t tn_jstr_char(const tn_jstr *s, size_t at, uint32_t *cp);  /* its bytes; 0xdc00+b for a bad one */
bool tn_jstr_content(const tn_jstr *s, size_t at, size_t *hint); /* of the byte; *hint starts at 0 */
size_t tn_jstr_find(const tn_jstr *s, const tn_jstr *what, size_t from); /* SIZE_MAX: not there */
/* The last place of `what` that ends at `end` or before it; SIZE_MAX: not there. */
size_t tn_jstr_rfind(tn_jinja *j, const tn_jstr *s, const tn_jstr *what, size_t end);
const tn_jstr *tn_jstr_slice(tn_jinja *j, const tn_jstr *s, const int64_t *start, const int64_t *stop,
                             int64_t step);
bool tn_j_is_space(uint32_t cp);
enum { TN_J_LEFT = 1, TN_J_RIGHT = 2 };
const tn_jstr *tn_jstr_strip(tn_jinja *j, const tn_jstr *s, const tn_jstr *chars,
                             int sides); /* chars may be NULL */
typedef enum tn_jcase { J_UPPER, J_LOWER, J_SWAP, J_TITLE, J_CAPITAL, J_TITLE_FILTER } tn_jcase;
const tn_jstr *tn_jstr_case(tn_jinja *j, const tn_jstr *s, tn_jcase how);
const tn_jstr *tn_jstr_replace(tn_jinja *j, const tn_jstr *s, const tn_jstr *from, const tn_jstr *to,
                               int64_t count);

void tn_jbuf_bytes(tn_jinja *j, tn_jbuf *b, const char *p, size_t n, bool content);
void tn_jbuf_text(tn_jinja *j, tn_jbuf *b, const char *text); /* the template's */
void tn_jbuf_str(tn_jinja *j, tn_jbuf *b, const tn_jstr *s);
void tn_jbuf_sub(tn_jinja *j, tn_jbuf *b, const tn_jstr *s, size_t from, size_t to);
const tn_jstr *tn_jbuf_take(tn_jinja *j, tn_jbuf *b);

/* ---- values.c ---- */

tn_jval tn_j_undefined(tn_jinja *j, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
tn_jval tn_j_none(void);
tn_jval tn_j_bool(bool b);
tn_jval tn_j_int(int64_t i);
tn_jval tn_j_float(double f);
tn_jval tn_j_str(const tn_jstr *s);
tn_jval tn_j_text(tn_jinja *j, const char *text); /* borrows; the template's */
tn_jval tn_j_list(tn_jinja *j, size_t cap, tn_jlist_kind kind);
tn_jval tn_j_dict(tn_jinja *j, size_t cap);
void tn_j_push(tn_jinja *j, tn_jval list, tn_jval v);
void tn_j_put(tn_jinja *j, tn_jval dict, tn_jval key, tn_jval v);     /* replaces */
const tn_jval *tn_j_get(tn_jinja *j, const tn_jdict *d, tn_jval key); /* NULL: not there */
tn_jval tn_j_pair(tn_jinja *j, tn_jval a, tn_jval b);
const char *tn_j_type_name(tn_jval v);
bool tn_j_truth(tn_jinja *j, tn_jval v);
bool tn_j_equal(tn_jinja *j, tn_jval a, tn_jval b);
int tn_j_order(tn_jinja *j, tn_jval a, tn_jval b, const char *op); /* fails for types without an order */
bool tn_j_contains(tn_jinja *j, tn_jval where, tn_jval what);
bool tn_j_is_number(tn_jval v); /* booleans too, as in Python */
double tn_j_as_float(tn_jval v);
int64_t tn_j_as_int(tn_jinja *j, tn_jval v, const char *what);
tn_jlist *tn_j_iter(tn_jinja *j, tn_jval v); /* the items of a loop over it */
int64_t tn_j_length(tn_jinja *j, tn_jval v);
const tn_jstr *tn_j_to_str(tn_jinja *j, tn_jval v); /* str() */
void tn_j_repr(tn_jinja *j, tn_jbuf *b, tn_jval v); /* repr() */
const tn_jstr *tn_j_need_str(tn_jinja *j, tn_jval v, const char *who);
void tn_j_check_defined(tn_jinja *j, tn_jval v);

/* ---- format.c ---- */

tn_jval tn_jstr_split(tn_jinja *j, const tn_jstr *s, const tn_jstr *sep, int64_t max, bool right);
tn_jval tn_jstr_lines(tn_jinja *j, const tn_jstr *s, bool keep_ends);
tn_jval tn_j_format(tn_jinja *j, const tn_jstr *format, const tn_jlist *args); /* Python's % */

/* ---- arguments.c ---- */

/* Finds arguments by the names in `params` ("a b c"): out[i] is NULL if it was not given. Fails for other
 * arguments. */
enum { TN_J_MAX_PARAMS = 6 };
void tn_jbind(tn_jinja *j, const char *who, const tn_jargs *a, const char *params,
              const tn_jval *out[TN_J_MAX_PARAMS]);
tn_jval tn_jfunc_new(tn_jinja *j, const char *name, tn_jbuiltin call, tn_jval self);

/* ---- json.c ---- */

const tn_jstr *tn_j_to_json(tn_jinja *j, tn_jval v, const tn_jargs *a);

/* ---- lex.c, parse.c ---- */

tn_jtoken *tn_jlex(tn_jinja *j, const char *source, size_t n);
tn_jnode *tn_jparse(tn_jinja *j, const tn_jtoken *tokens);

/* ---- eval.c, exec.c ---- */

tn_jval tn_jeval(tn_jinja *j, const tn_jnode *n);
void tn_jeval_args(tn_jinja *j, const tn_jnode *kids, tn_jargs *a);
tn_jval tn_j_attr(tn_jinja *j, tn_jval v, const tn_jstr *name);
tn_jval tn_j_path(tn_jinja *j, tn_jval v, tn_jval path); /* "a.b.0" of attribute arguments */
tn_jval tn_j_binary(tn_jinja *j, int op, tn_jval a, tn_jval b);
bool tn_j_compare(tn_jinja *j, int op, tn_jval a, tn_jval b);
tn_jval tn_jcall(tn_jinja *j, tn_jval f, const tn_jargs *a);

typedef enum tn_jflow { J_RUN, J_BREAK, J_CONTINUE } tn_jflow;
tn_jflow tn_jexec(tn_jinja *j, const tn_jnode *list);
tn_jval tn_jcall_macro(tn_jinja *j, const tn_jfunc *f, const tn_jargs *a);
tn_jval tn_jrun_loop(tn_jinja *j, const tn_jnode *n, tn_jval over, int depth0);
void tn_jset(tn_jinja *j, tn_jscope *s, const tn_jstr *name, tn_jval v);
tn_jscope *tn_jscope_new(tn_jinja *j, tn_jscope *parent);
/* The variable of that name in this scope alone, or NULL. */
tn_jvar *tn_jscope_find(tn_jinja *j, const tn_jscope *s, const tn_jstr *name);

/* ---- filters.c, tests.c, methods.c ---- */

tn_jval tn_jfilter(tn_jinja *j, const tn_jstr *name, tn_jval v, const tn_jargs *a);
bool tn_jtest(tn_jinja *j, const tn_jstr *name, tn_jval v, const tn_jargs *a);
/* Finds a method of a value. Returns false if it has none of this name. */
bool tn_jmethod(tn_jinja *j, tn_jval v, const tn_jstr *name, tn_jval *out);

#endif
