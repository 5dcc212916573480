/* Writes GGUF v3: header and keys are collected in memory, tensors are streamed after them. */
#include "formats/gguf.h"

#include "base/outfile.h"
#include "base/half.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { ALIGNMENT = 32 };
enum { T_U32 = 4, T_I32 = 5, T_F32 = 6, T_BOOL = 7, T_STRING = 8, T_ARRAY = 9 };

struct tn_gguf_writer {
    tn_ctx *ctx;
    char *path;
    tn_outfile *file;      /* NULL: all goes to memory */
    uint8_t *keys, *infos; /* metadata pairs and tensor table in the form of the file */
    uint8_t *memory;
    size_t n_keys_bytes, cap_keys, n_infos_bytes, cap_infos, n_memory, cap_memory;
    uint64_t n_keys, n_tensors, cap_tensors;
    uint64_t *sizes; /* bytes of each tensor */
    uint64_t i_tensor, in_tensor,
        data_off; /* the current tensor, its bytes so far, and the beginning of the next */
    tern_status failed;
};

const tn_outkind tn_gguf_new = {.what = "empty"};

static tern_status create(tn_ctx *ctx, const char *path, const tn_outkind *kind, tn_gguf_writer **out,
                          tern_error *err) {
    *out = NULL;
    tn_gguf_writer *w = tn_calloc(ctx, TN_MEM_OTHER, 1, sizeof *w);
    TN_FAIL_IF(!w, err, TERN_E_MEMORY, "no memory to write %s", path);
    w->ctx = ctx;
    w->path = tn_strdup(ctx, TN_MEM_OTHER, path);
    tern_status st = w->path ? TERN_OK : tn_fail(err, TERN_E_MEMORY, "no memory to write %s", path);
    if (st == TERN_OK && kind) st = tn_outfile_open(ctx, path, kind, &w->file, err);
    if (st == TERN_OK) *out = w;
    else tn_gguf_abort(&w);
    return st;
}

tern_status tn_gguf_create(tn_ctx *ctx, const char *path, tn_gguf_writer **out, tern_error *err) {
    static const tn_outkind kind = {.what = "a GGUF file", .begins = {"GGUF"}};
    return create(ctx, path, &kind, out, err);
}

tern_status tn_gguf_create_new(tn_ctx *ctx, const char *path, tn_gguf_writer **out, tern_error *err) {
    return create(ctx, path, &tn_gguf_new, out, err);
}

tern_status tn_gguf_create_memory(tn_ctx *ctx, const char *name, tn_gguf_writer **out, tern_error *err) {
    return create(ctx, name, NULL, out, err);
}

void tn_gguf_abort(tn_gguf_writer **pw) {
    tn_gguf_writer *w = *pw;
    if (!w) return;
    *pw = NULL;
    tn_outfile_abort(&w->file);
    tn_free(w->ctx, w->keys);
    tn_free(w->ctx, w->infos);
    tn_free(w->ctx, w->memory);
    tn_free(w->ctx, w->sizes);
    tn_free(w->ctx, w->path);
    tn_free(w->ctx, w);
}

static void append(tn_gguf_writer *w, uint8_t **buf, size_t *n, size_t *cap, const void *data,
                   size_t n_bytes) {
    if (w->failed != TERN_OK || !n_bytes) return;
    if (*n + n_bytes > *cap) {
        size_t more = (*n + n_bytes) * 2;
        uint8_t *p = tn_realloc(w->ctx, TN_MEM_OTHER, *buf, more, 1);
        if (!p) {
            w->failed = TERN_E_MEMORY;
            return;
        }
        *buf = p;
        *cap = more;
    }
    memcpy(*buf + *n, data, n_bytes);
    *n += n_bytes;
}

static void key_bytes(tn_gguf_writer *w, const void *data, size_t n) {
    append(w, &w->keys, &w->n_keys_bytes, &w->cap_keys, data, n);
}
static void key_u32(tn_gguf_writer *w, uint32_t v) { key_bytes(w, &v, 4); }
static void key_u64(tn_gguf_writer *w, uint64_t v) { key_bytes(w, &v, 8); }

static void key_text(tn_gguf_writer *w, const char *s, size_t n) {
    key_u64(w, n);
    key_bytes(w, s, n);
}

static void begin_key(tn_gguf_writer *w, const char *key, uint32_t type) {
    w->n_keys++;
    key_text(w, key, strlen(key));
    key_u32(w, type);
}

void tn_gguf_put_keys(tn_gguf_writer *w, const tn_gguf *from, const char *const *but) {
    for (size_t i = 0; i < tn_gguf_n_keys(from); i++) {
        size_t n;
        uint64_t n_bytes;
        const char *key = tn_gguf_key_at(from, i, &n), *const *left_out = but;
        while (*left_out && (strlen(*left_out) != n || memcmp(*left_out, key, n))) left_out++;
        if (*left_out) continue;
        const uint8_t *bytes = tn_gguf_key_bytes(from, i, &n_bytes);
        w->n_keys++;
        key_bytes(w, bytes, (size_t)n_bytes);
    }
}

void tn_gguf_put_str(tn_gguf_writer *w, const char *key, const char *value) {
    begin_key(w, key, T_STRING);
    key_text(w, value, strlen(value));
}

void tn_gguf_put_u32(tn_gguf_writer *w, const char *key, uint32_t value) {
    begin_key(w, key, T_U32);
    key_u32(w, value);
}

void tn_gguf_put_i32(tn_gguf_writer *w, const char *key, int32_t value) {
    begin_key(w, key, T_I32);
    key_u32(w, (uint32_t)value);
}

void tn_gguf_put_f32(tn_gguf_writer *w, const char *key, float value) {
    begin_key(w, key, T_F32);
    key_bytes(w, &value, 4);
}

void tn_gguf_put_bool(tn_gguf_writer *w, const char *key, bool value) {
    uint8_t v = value;
    begin_key(w, key, T_BOOL);
    key_bytes(w, &v, 1);
}

static void begin_array(tn_gguf_writer *w, const char *key, uint32_t type, size_t n) {
    begin_key(w, key, T_ARRAY);
    key_u32(w, type);
    key_u64(w, n);
}

void tn_gguf_put_arr_str(tn_gguf_writer *w, const char *key, const char *const *values, const size_t *n_bytes,
                         size_t n) {
    begin_array(w, key, T_STRING, n);
    for (size_t i = 0; i < n; i++) key_text(w, values[i], n_bytes[i]);
}

void tn_gguf_put_arr_f32(tn_gguf_writer *w, const char *key, const float *values, size_t n) {
    begin_array(w, key, T_F32, n);
    key_bytes(w, values, n * sizeof *values);
}

void tn_gguf_put_arr_i32(tn_gguf_writer *w, const char *key, const int32_t *values, size_t n) {
    begin_array(w, key, T_I32, n);
    key_bytes(w, values, n * sizeof *values);
}

void tn_gguf_put_arr_bool(tn_gguf_writer *w, const char *key, const bool *values, size_t n) {
    begin_array(w, key, T_BOOL, n);
    for (size_t i = 0; i < n; i++) key_bytes(w, &(uint8_t){values[i]}, 1);
}

static uint64_t aligned(uint64_t n) { return (n + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT; }

void tn_gguf_add_tensor(tn_gguf_writer *w, const char *name, tn_dtype dtype, int32_t n_dims,
                        const uint64_t *dims) {
    uint32_t type = tn_gguf_type(dtype);
    if (type == UINT32_MAX || n_dims < 1 || n_dims > 4) w->failed = TERN_E_INVALID;
    if (w->failed == TERN_OK && w->n_tensors == w->cap_tensors) {
        uint64_t cap = w->cap_tensors ? 2 * w->cap_tensors : 64;
        uint64_t *sizes = tn_realloc(w->ctx, TN_MEM_OTHER, w->sizes, cap, sizeof *sizes);
        if (!sizes) w->failed = TERN_E_MEMORY;
        else w->sizes = sizes, w->cap_tensors = cap;
    }
    if (w->failed != TERN_OK) return;
    uint64_t n = 1, name_len = strlen(name), inner;
    uint32_t nd = (uint32_t)n_dims;
    append(w, &w->infos, &w->n_infos_bytes, &w->cap_infos, &name_len, 8);
    append(w, &w->infos, &w->n_infos_bytes, &w->cap_infos, name, name_len);
    append(w, &w->infos, &w->n_infos_bytes, &w->cap_infos, &nd, 4);
    for (int32_t i = n_dims; i-- > 0;) { /* innermost first */
        inner = dims[i];
        n *= inner;
        append(w, &w->infos, &w->n_infos_bytes, &w->cap_infos, &inner, 8);
    }
    append(w, &w->infos, &w->n_infos_bytes, &w->cap_infos, &type, 4);
    append(w, &w->infos, &w->n_infos_bytes, &w->cap_infos, &w->data_off, 8);
    w->sizes[w->n_tensors] = n / dims[n_dims - 1] * tn_dtype_row_bytes(dtype, dims[n_dims - 1]);
    w->data_off = aligned(w->data_off + w->sizes[w->n_tensors++]);
}

static tern_status put(tn_gguf_writer *w, const void *data, uint64_t n, tern_error *err) {
    if (w->file) return tn_outfile_write(w->file, data, n, err);
    append(w, &w->memory, &w->n_memory, &w->cap_memory, data, (size_t)n);
    return w->failed == TERN_OK ? TERN_OK : tn_fail(err, w->failed, "no memory for %s", w->path);
}

static tern_status pad(tn_gguf_writer *w, uint64_t at, tern_error *err) {
    static const uint8_t zeros[ALIGNMENT];
    return put(w, zeros, aligned(at) - at, err);
}

tern_status tn_gguf_begin_data(tn_gguf_writer *w, tern_error *err) {
    TN_FAIL_IF(w->failed != TERN_OK, err, w->failed, "%s: cannot put its metadata together (%s)", w->path,
               tern_status_text(w->failed));
    uint32_t version = 3;
    TN_TRY(put(w, "GGUF", 4, err));
    TN_TRY(put(w, &version, 4, err));
    TN_TRY(put(w, &w->n_tensors, 8, err));
    TN_TRY(put(w, &w->n_keys, 8, err));
    TN_TRY(put(w, w->keys, w->n_keys_bytes, err));
    TN_TRY(put(w, w->infos, w->n_infos_bytes, err));
    return pad(w, 24 + w->n_keys_bytes + w->n_infos_bytes, err);
}

tern_status tn_gguf_write(tn_gguf_writer *w, const void *data, uint64_t n_bytes, tern_error *err) {
    const uint8_t *p = data;
    while (n_bytes) {
        TN_FAIL_IF(w->i_tensor == w->n_tensors, err, TERN_E_INVALID,
                   "%s: more data than tensors were declared", w->path);
        uint64_t left = w->sizes[w->i_tensor] - w->in_tensor, n = n_bytes < left ? n_bytes : left;
        TN_TRY(put(w, p, n, err));
        p += n;
        n_bytes -= n;
        w->in_tensor += n;
        if (w->in_tensor < w->sizes[w->i_tensor]) continue;
        TN_TRY(pad(w, w->sizes[w->i_tensor++], err));
        w->in_tensor = 0;
    }
    return TERN_OK;
}

static tern_status check_complete(const tn_gguf_writer *w, tern_error *err) {
    TN_FAIL_IF(w->i_tensor != w->n_tensors, err, TERN_E_INVALID,
               "%s: data of tensor %" PRIu64 " of %" PRIu64 " is missing", w->path, w->i_tensor,
               w->n_tensors);
    return TERN_OK;
}

tern_status tn_gguf_take(tn_gguf_writer **pw, uint8_t **bytes, uint64_t *n_bytes, tern_error *err) {
    tn_gguf_writer *w = *pw;
    tern_status st = check_complete(w, err);
    *bytes = st == TERN_OK ? w->memory : NULL;
    *n_bytes = st == TERN_OK ? w->n_memory : 0;
    if (st == TERN_OK) w->memory = NULL;
    tn_gguf_abort(pw);
    return st;
}

tern_status tn_gguf_finish(tn_gguf_writer **pw, tern_error *err) {
    tn_gguf_writer *w = *pw;
    tern_status st = check_complete(w, err);
    if (st == TERN_OK) st = tn_outfile_commit(&w->file, err);
    tn_gguf_abort(pw);
    return st;
}

void tn_quantise_q8_0(const float *src, uint8_t *dst, uint64_t n) {
    for (uint64_t b = 0; b < n / 32; b++) {
        const float *x = src + b * 32;
        uint8_t *y = dst + b * 34;
        float max = 0;
        for (int i = 0; i < 32; i++) max = fmaxf(max, fabsf(x[i]));
        float d = max / 127, inv = d > 0 ? 1 / d : 0;
        uint16_t h = tn_f32_f16(d);
        memcpy(y, &h, 2);
        for (int i = 0; i < 32; i++) y[2 + i] = (uint8_t)(int8_t)roundf(x[i] * inv);
    }
}

void tn_quantise_q4_0(const float *src, uint8_t *dst, uint64_t n) {
    for (uint64_t b = 0; b < n / 32; b++) {
        const float *x = src + b * 32;
        uint8_t *y = dst + b * 18;
        float far = 0; /* the value of largest magnitude becomes code 0 */
        for (int i = 0; i < 32; i++) far = fabsf(x[i]) > fabsf(far) ? x[i] : far;
        float d = far / -8, inv = d != 0 ? 1 / d : 0;
        uint16_t h = tn_f32_f16(d);
        memcpy(y, &h, 2);
        for (int i = 0; i < 16; i++) {
            int lo = (int)(x[i] * inv + 8.5f), hi = (int)(x[16 + i] * inv + 8.5f);
            y[2 + i] = (uint8_t)((lo > 15 ? 15 : lo) | (hi > 15 ? 15 : hi) << 4);
        }
    }
}
