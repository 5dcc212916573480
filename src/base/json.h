/* base/json.h - JSON that is whole or an error.
 *
 * Building: NULL means that there was no memory, and every builder passes it on. What is made around a NULL
 * is NULL, and what the builder was given to own is released. So only the last step, which turns the value
 * into text, has to ask. Text from outside may hold anything: bytes that are no UTF-8 become U+FFFD. A number
 * that is not finite becomes null, because JSON has no other word for it.
 *
 * Reading: a text nests at most TN_JSON_MAX_DEPTH deep, because the reader and most walks over a value
 * recurse, and some run on threads with small stacks. A file is a regular file of a bounded size, read whole.
 * A pipe or a device never blocks the reader.
 *
 * scripts/lint.sh refuses jansson's own builders and readers everywhere else. */
#ifndef TN_BASE_JSON_H
#define TN_BASE_JSON_H

#include "base/status.h"

#include <jansson.h>
#include <stdio.h>

/* Builds a value. The formats of json_pack that are needed exist: {s:..}, s and s% (text, text with a
 * size_t), i, I, f, b, o (takes), O (borrows). Objects nest. Keys are literals. */
json_t *tn_json_pack(const char *fmt, ...);
json_t *tn_json_string(const char *text, size_t n_bytes);
json_t *tn_json_real(double v);

/* Both take value. When that fails *object or *array is released and becomes NULL. */
void tn_json_set(json_t **object, const char *key, json_t *value);
void tn_json_append(json_t **array, json_t *value);
/* A copy of a value and all in it, or of an object or array alone, whose values are shared; NULL: no memory. jansson's
 * own copies leave out what they have no memory for. */
json_t *tn_json_copy(const json_t *v);
json_t *tn_json_copy_flat(const json_t *v);

/* Writes the text of j with jansson's flags. *out is zero-terminated; the caller frees it with free. It fails
 * with TERN_E_MEMORY, also when j is NULL. */
tern_status tn_json_text(const json_t *j, size_t flags, char **out, tern_error *err);

enum { TN_JSON_MAX_FILE = 64 << 20, TN_JSON_MAX_DEPTH = 128 };

/* Reads a text with jansson's flags (json_parse.c): what jansson's json_loadb reads, less what is nested too deep. je,
 * which may be NULL, tells what is wrong and where; its code is json_error_out_of_memory whenever memory failed. */
json_t *tn_json_parse(const char *text, size_t n, size_t flags, json_error_t *je);

/* Reads a file. *out is the caller's. It fails with TERN_E_IO when the file is absent, no regular file or
 * cannot be read, with TERN_E_LIMIT when it has more than TN_JSON_MAX_FILE bytes, with TERN_E_FORMAT when it
 * holds no JSON, and with TERN_E_MEMORY. */
tern_status tn_json_read(const char *path, size_t flags, json_t **out, tern_error *err);

#endif
