/* text/toolcall_impl.h - from the text of a call to its name and arguments; shared by text/toolcall*.c
 * only. */
#ifndef TN_TEXT_TOOLCALL_IMPL_H
#define TN_TEXT_TOOLCALL_IMPL_H

#include "text/toolcall.h"

enum { TN_CALL_NAME_MAX = 256, TN_CALL_DEPTH = 64 };

/* A growing text. Running out of memory sets `failed`; later appends are dropped. */
typedef struct tn_sb {
    tn_ctx *ctx;
    char *p;
    size_t n, cap;
    bool failed;
} tn_sb;

void tn_sb_add(tn_sb *b, const char *s, size_t n);
void tn_sb_put(tn_sb *b, const char *s);
void tn_sb_json(tn_sb *b, const char *s, size_t n); /* as a JSON string */
void tn_sb_free(tn_sb *b);

/* The calls of one payload in a row: name, zero, arguments, zero. */
typedef struct tn_calls {
    tn_sb text;
    size_t n;
    const json_t *tools; /* tools that may be called by name alone; NULL: any */
    const json_t *known; /* for types of arguments */
} tn_calls;

/* Each reads all of p[0..n) and appends its calls. Returns false, with nothing appended, if it is not of this
 * form. */
bool tn_calls_json(tn_calls *c, const char *p, size_t n); /* an object or an array of them */
bool tn_calls_arguments(tn_calls *c, const char *name, size_t n_name, const char *p,
                        size_t n);                          /* a JSON object */
bool tn_calls_python(tn_calls *c, const char *p, size_t n); /* [f(a=1), g()] or f(a=1) */
bool tn_calls_gemma(tn_calls *c, const char *p, size_t n);  /* call:f{a:1} */
bool tn_calls_xml(tn_calls *c, const char *p, size_t n);    /* <function=f><parameter=a>... */
bool tn_calls_code(tn_calls *c, const char *p, size_t n);   /* code for a tool named python */

/* Returns the function of a tool, by name, or NULL when there is none. */
const json_t *tn_tools_find(const json_t *tools, const char *name, size_t n);

#endif
