/* base/json.h - JSON that is complete or an error.
 *
 * Building: NULL means out of memory, and every builder passes it on: a value built around NULL is NULL,
 * and what the builder took is released. So only the last step, which turns the value into text, must
 * check. Text may hold anything: invalid UTF-8 becomes U+FFFD. A number that is not finite becomes null.
 *
 * Reading: a text nests at most TN_JSON_MAX_DEPTH deep, because the reader and most walks over a value
 * recurse, some on threads with small stacks. A file is a regular file of bounded size, read whole; pipes
 * and devices never block the reader.
 *
 * scripts/lint.sh refuses jansson's own builders and readers everywhere else. */
#ifndef TN_BASE_JSON_H
#define TN_BASE_JSON_H

#include "base/status.h"

#include <jansson.h>
#include <stdio.h>

/* Builds a value. Supported formats of json_pack: {s:..}, s and s% (text, text with a size_t), i, I, f, b, o
 * (takes), O (borrows). Objects nest. Keys are literals. */
json_t *tn_json_pack(const char *fmt, ...);
json_t *tn_json_string(const char *text, size_t n_bytes);
json_t *tn_json_real(double v);

/* Whether an object's member is this text. */
bool tn_json_is_word(const json_t *o, const char *key, const char *word);
/* Both take value. On failure *object or *array is released and becomes NULL. */
void tn_json_set(json_t **object, const char *key, json_t *value);
void tn_json_append(json_t **array, json_t *value);
/* A deep copy of a value, or a shallow copy of an object or array that shares its values. NULL: no memory.
 * jansson's own copies drop values when memory runs out. */
json_t *tn_json_copy(const json_t *v);
json_t *tn_json_copy_flat(const json_t *v);

/* Writes the text of j with jansson's flags. *out is zero-terminated; the caller frees it with free. It fails
 * with TERN_E_MEMORY, also when j is NULL. */
tern_status tn_json_text(const json_t *j, size_t flags, char **out, tern_error *err);

enum { TN_JSON_MAX_FILE = 64 << 20, TN_JSON_MAX_DEPTH = 128 };

/* A flag of this reader's own: "\u0000" is U+FFFD, in keys too. It is valid JSON, but C's texts end there. */
#define TN_JSON_NO_NUL ((size_t)1 << 20)
/* For what clients send. */
#define TN_JSON_REQUEST (JSON_REJECT_DUPLICATES | TN_JSON_NO_NUL)

/* Reads a text with jansson's flags (json_parse.c): the same texts as jansson's json_loadb, except those
 * nested too deep. je, which may be NULL, says what is wrong and where; its code is json_error_out_of_memory
 * whenever memory failed. */
json_t *tn_json_parse(const char *text, size_t n, size_t flags, json_error_t *je);

/* Reads a file. *out is the caller's. It fails with TERN_E_IO for a file that is absent, not regular or
 * unreadable, TERN_E_LIMIT beyond TN_JSON_MAX_FILE bytes, TERN_E_FORMAT without JSON, and TERN_E_MEMORY. */
tern_status tn_json_read(const char *path, size_t flags, json_t **out, tern_error *err);

#endif
