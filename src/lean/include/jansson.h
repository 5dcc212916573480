/* jansson's names for lean/json.h, as far as libtern uses them. On the include path of TERN_MINIMAL only. */
#ifndef TN_LEAN_JANSSON_H
#define TN_LEAN_JANSSON_H

#include "lean/json.h"

#include <string.h>

typedef tn_lean_json json_t;
typedef long long json_int_t;
typedef tn_lean_error json_error_t;
#define JSON_INTEGER_FORMAT "lld"

#define JSON_OBJECT TN_LEAN_OBJECT
#define JSON_ARRAY TN_LEAN_ARRAY
#define JSON_STRING TN_LEAN_STRING
#define JSON_INTEGER TN_LEAN_INTEGER
#define JSON_REAL TN_LEAN_REAL
#define JSON_TRUE TN_LEAN_TRUE
#define JSON_FALSE TN_LEAN_FALSE
#define JSON_NULL TN_LEAN_NULL

#define JSON_REJECT_DUPLICATES TN_LEAN_REJECT_DUPLICATES
#define JSON_DECODE_ANY TN_LEAN_DECODE_ANY
#define JSON_ALLOW_NUL TN_LEAN_ALLOW_NUL
#define JSON_DECODE_INT_AS_REAL TN_LEAN_INT_AS_REAL
#define JSON_COMPACT TN_LEAN_COMPACT
#define JSON_ENCODE_ANY TN_LEAN_ENCODE_ANY
#define JSON_INDENT TN_LEAN_INDENT
#define JSON_REAL_PRECISION TN_LEAN_REAL_PRECISION

enum { json_error_out_of_memory = TN_LEAN_NO_MEMORY };
#define json_error_code(e) ((int)(e)->code)

#define json_loadb tn_lean_load
#define json_loads(text, flags, err) tn_lean_load(text, strlen(text), flags, err)
#define json_dump_callback tn_lean_dump
#define json_incref tn_lean_incref
#define json_decref tn_lean_decref

#define json_typeof tn_lean_type_of
#define json_is_object(j) tn_lean_is(j, TN_LEAN_OBJECT)
#define json_is_array(j) tn_lean_is(j, TN_LEAN_ARRAY)
#define json_is_string(j) tn_lean_is(j, TN_LEAN_STRING)
#define json_is_integer(j) tn_lean_is(j, TN_LEAN_INTEGER)
#define json_is_real(j) tn_lean_is(j, TN_LEAN_REAL)
#define json_is_true(j) tn_lean_is(j, TN_LEAN_TRUE)
#define json_is_false(j) tn_lean_is(j, TN_LEAN_FALSE)
#define json_is_null(j) tn_lean_is(j, TN_LEAN_NULL)
static inline bool json_is_number(const json_t *j) { return json_is_integer(j) || json_is_real(j); }
static inline bool json_is_boolean(const json_t *j) { return json_is_true(j) || json_is_false(j); }

#define json_object tn_lean_object
#define json_array tn_lean_array
#define json_stringn_nocheck tn_lean_string
#define json_integer tn_lean_integer
#define json_real tn_lean_real
#define json_true tn_lean_true
#define json_false tn_lean_false
#define json_null tn_lean_null
#define json_boolean(v) ((v) ? tn_lean_true() : tn_lean_false())

#define json_string_value tn_lean_text
#define json_string_length tn_lean_length
#define json_integer_value tn_lean_int_of
#define json_real_value tn_lean_real_of
#define json_number_value tn_lean_number_of
#define json_array_size(j) tn_lean_size(j, TN_LEAN_ARRAY)
#define json_object_size(j) tn_lean_size(j, TN_LEAN_OBJECT)
#define json_array_get tn_lean_at
#define json_object_get tn_lean_get
#define json_equal tn_lean_equal
#define json_copy tn_lean_copy
#define json_deep_copy tn_lean_deep_copy
#define json_object_getn tn_lean_getn
#define json_object_iter tn_lean_iter
#define json_object_iter_next tn_lean_iter_next
#define json_object_iter_key tn_lean_iter_key

#define json_object_set_new tn_lean_set
#define json_array_append_new tn_lean_append
#define json_object_del tn_lean_delete
#define json_array_remove tn_lean_remove

#define json_object_foreach(object, key, value)                                                              \
    for (size_t lean_i_ = 0; tn_lean_each(object, &lean_i_, &(key), &(value));)
#define json_array_foreach(array, i, value)                                                                  \
    for ((i) = 0; (i) < json_array_size(array) && ((value) = json_array_get(array, i)); (i)++)

#endif
