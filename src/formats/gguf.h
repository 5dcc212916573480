/* formats/gguf.h - reading GGUF v2 and v3 (little-endian), and writing v3. A reader is immutable after open
 * and shared by threads; strings and tensor data point into the mapped file. Nothing in the file is trusted:
 * every length, offset and count is checked against the size of the file. */
#ifndef TN_FORMATS_GGUF_H
#define TN_FORMATS_GGUF_H

#include "base/file.h"
#include "base/outfile.h"
#include "formats/tensor.h"

typedef struct tn_gguf tn_gguf;

/* Opens a file. A split file (NAME-00001-of-00003.gguf, as written by llama-gguf-split) is opened by its
 * first part, which has the metadata; tensors come from all parts. */
tern_status tn_gguf_open(tn_ctx *ctx, const char *path, tn_gguf **out, tern_error *err);
/* The same over the caller's bytes, which stay until close; name stands for the path in messages. */
tern_status tn_gguf_open_memory(tn_ctx *ctx, const void *data, uint64_t n_bytes, const char *name,
                                tn_gguf **out, tern_error *err);
/* Whether a part was truncated or written to while open. What was read from it may then be anything. */
bool tn_gguf_changed(const tn_gguf *g);
/* The mapping of the whole file; NULL: it is split, or in memory. */
const tn_file *tn_gguf_file(const tn_gguf *g);
void tn_gguf_close(tn_gguf **g);

const char *tn_gguf_path(const tn_gguf *g);
uint32_t tn_gguf_version(const tn_gguf *g);
size_t tn_gguf_n_tensors(const tn_gguf *g);
const tn_tensor *tn_gguf_tensor_at(const tn_gguf *g, size_t i);
const tn_tensor *tn_gguf_tensor(const tn_gguf *g, const char *name); /* NULL: absent */
/* ggml's number of a type; UINT32_MAX: it has none. */
uint32_t tn_gguf_type(tn_dtype d);

/* Read metadata. Each returns false when the key is absent or of another type. Strings are not
 * zero-terminated. */
bool tn_gguf_has(const tn_gguf *g, const char *key);
size_t tn_gguf_n_keys(const tn_gguf *g);
const char *tn_gguf_key_at(const tn_gguf *g, size_t i, size_t *n);
/* A key with its value as the file has them. */
const uint8_t *tn_gguf_key_bytes(const tn_gguf *g, size_t i, uint64_t *n);
bool tn_gguf_i64(const tn_gguf *g, const char *key, int64_t *out); /* any integer, or bool */
bool tn_gguf_f64(const tn_gguf *g, const char *key, double *out);  /* any number */
bool tn_gguf_bool(const tn_gguf *g, const char *key, bool *out);
/* Whether the file has it as a truth value, and not as a number that serves as one. */
bool tn_gguf_is_bool(const tn_gguf *g, const char *key);
bool tn_gguf_str(const tn_gguf *g, const char *key, const char **s, size_t *n);
int64_t tn_gguf_arr_n(const tn_gguf *g, const char *key); /* elements; -1: not an array */
bool tn_gguf_arr_str(const tn_gguf *g, const char *key, int64_t i, const char **s, size_t *n);
bool tn_gguf_arr_f64(const tn_gguf *g, const char *key, int64_t i, double *out);
bool tn_gguf_arr_i64(const tn_gguf *g, const char *key, int64_t i, int64_t *out);
/* Elements i .. i + n - 1. A vocabulary's arrays are long, and a key is looked up once for all that is asked for. */
bool tn_gguf_arr_strs(const tn_gguf *g, const char *key, int64_t i, int64_t n, const char **s, size_t *bytes);
bool tn_gguf_arr_f64s(const tn_gguf *g, const char *key, int64_t i, int64_t n, double *out);
bool tn_gguf_arr_i64s(const tn_gguf *g, const char *key, int64_t i, int64_t n, int64_t *out);

/* ---- writing: keys, then tensor declarations, then their bytes in that order; streamed and atomic */

typedef struct tn_gguf_writer tn_gguf_writer;

tern_status tn_gguf_create(tn_ctx *ctx, const char *path, tn_gguf_writer **out, tern_error *err);
/* The same in the place of nothing but an empty file. */
tern_status tn_gguf_create_new(tn_ctx *ctx, const char *path, tn_gguf_writer **out, tern_error *err);
extern const tn_outkind tn_gguf_new;
/* The same into memory, which tn_gguf_take hands out; name stands for the path in messages. */
tern_status tn_gguf_create_memory(tn_ctx *ctx, const char *name, tn_gguf_writer **out, tern_error *err);
/* Write metadata. A failure is remembered and reported by tn_gguf_begin_data. */
/* Copies all keys of a file except those named (the list ends with NULL). */
void tn_gguf_put_keys(tn_gguf_writer *w, const tn_gguf *from, const char *const *but);
void tn_gguf_put_str(tn_gguf_writer *w, const char *key, const char *value);
void tn_gguf_put_u32(tn_gguf_writer *w, const char *key, uint32_t value);
void tn_gguf_put_i32(tn_gguf_writer *w, const char *key, int32_t value);
void tn_gguf_put_f32(tn_gguf_writer *w, const char *key, float value);
void tn_gguf_put_bool(tn_gguf_writer *w, const char *key, bool value);
void tn_gguf_put_arr_str(tn_gguf_writer *w, const char *key, const char *const *values, const size_t *n_bytes,
                         size_t n);
void tn_gguf_put_arr_f32(tn_gguf_writer *w, const char *key, const float *values, size_t n);
void tn_gguf_put_arr_i32(tn_gguf_writer *w, const char *key, const int32_t *values, size_t n);
void tn_gguf_put_arr_bool(tn_gguf_writer *w, const char *key, const bool *values, size_t n);
/* Adds a tensor. dims come outermost first. */
void tn_gguf_add_tensor(tn_gguf_writer *w, const char *name, tn_dtype dtype, int32_t n_dims,
                        const uint64_t *dims);
tern_status tn_gguf_begin_data(tn_gguf_writer *w, tern_error *err);
/* Writes the tensors' bytes one after the other; the writer adds the padding. */
tern_status tn_gguf_write(tn_gguf_writer *w, const void *data, uint64_t n_bytes, tern_error *err);
/* Syncs and renames. It fails when bytes are missing. Always closes the writer. */
tern_status tn_gguf_finish(tn_gguf_writer **w, tern_error *err);
/* The bytes of a writer into memory, to be freed with tn_free. It fails when some are missing. Always closes the
 * writer. */
tern_status tn_gguf_take(tn_gguf_writer **w, uint8_t **bytes, uint64_t *n_bytes, tern_error *err);
void tn_gguf_abort(tn_gguf_writer **w); /* NULL-safe; nothing is left */

/* Quantises n values (a multiple of 32) to Q8_0 blocks, as ggml's reference rounds. */
void tn_quantise_q8_0(const float *src, uint8_t *dst, uint64_t n);
void tn_quantise_q4_0(const float *src, uint8_t *dst, uint64_t n); /* to Q4_0 */

#endif
