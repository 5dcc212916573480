/* A safetensors file has a u64 length, a JSON header of that length, and data. Offsets in the header count
 * from the data's start. */
#include "formats/safetensors.h"

#include "base/checked.h"
#include "base/file.h"
#include "base/json.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { MAX_FILES = 1024, MAX_HEADER = 100 << 20, MAX_DIMS = 5 };

struct tn_safetensors {
    tn_ctx *ctx;
    tn_file *files[MAX_FILES];
    int n_files;
    tn_tensor *tensors; /* sorted by name; names are our own copies */
    size_t n_tensors, cap_tensors;
    tn_tensor *gone; /* names of those that were replaced */
    size_t n_gone;
    tn_packed *packed;
};

static tern_status add_tensor(tn_safetensors *s, const char *file, const uint8_t *data, uint64_t data_bytes,
                              uint64_t data_off, const char *name, const json_t *info, tern_error *err) {
    const char *dtype = json_string_value(json_object_get(info, "dtype"));
    const json_t *shape = json_object_get(info, "shape"), *offsets = json_object_get(info, "data_offsets");
    const json_t *first = json_array_get(offsets, 0), *last = json_array_get(offsets, 1);
    TN_FAIL_IF(!dtype || !json_is_array(shape) || json_array_size(offsets) != 2 || !json_is_integer(first) ||
                   !json_is_integer(last),
               err, TERN_E_FORMAT,
               "%s: tensor %.100s in the header at offset 8 lacks dtype, shape or data_offsets", file, name);
    json_int_t begin = json_integer_value(first), end = json_integer_value(last);
    TN_FAIL_IF(begin < 0 || end < begin || (uint64_t)end > data_bytes, err, TERN_E_FORMAT,
               "%s: tensor %.100s needs bytes %lld to %lld of the data at offset %" PRIu64
               ", there are %" PRIu64,
               file, name, (long long)begin, (long long)end, data_off, data_bytes);
    uint64_t n = 1, want = 0, at = data_off + (uint64_t)begin;
    size_t n_dims = json_array_size(shape);
    TN_FAIL_IF(n_dims > MAX_DIMS, err, TERN_E_FORMAT,
               "%s: tensor %.100s at offset %" PRIu64 " has %zu dimensions, at most %d are possible", file,
               name, at, n_dims, MAX_DIMS);
    tn_tensor t = {.file = file,
                   .dtype = !strcmp(dtype, "F32")    ? TN_F32
                            : !strcmp(dtype, "F16")  ? TN_F16
                            : !strcmp(dtype, "BF16") ? TN_BF16
                                                     : TN_N_DTYPES,
                   .n_dims = n_dims ? (int32_t)n_dims : 1,
                   .dims = {1, 1, 1, 1}};
    for (size_t i = 0; i < n_dims; i++) {
        const json_t *dim = json_array_get(shape, i);
        bool ok = json_is_integer(dim) && json_integer_value(dim) >= 0 &&
                  tn_mul_u64(n, (uint64_t)json_integer_value(dim), &n);
        TN_FAIL_IF(!ok, err, TERN_E_FORMAT,
                   "%s: tensor %.100s at offset %" PRIu64 " has impossible dimensions", file, name, at);
        if (i < 4) t.dims[i] = (uint64_t)json_integer_value(dim);
        else t.dims[3] *= (uint64_t)json_integer_value(dim); /* n, a multiple of it, did not overflow */
    }
    t.size_bytes = (uint64_t)(end - begin);
    bool readable = t.dtype < TN_N_DTYPES;
    TN_FAIL_IF(readable && !tn_mul_u64(n, (uint64_t)tn_dtype_block_bytes(t.dtype), &want), err, TERN_E_FORMAT,
               "%s: tensor %.100s at offset %" PRIu64 " has impossible dimensions", file, name, at);
    TN_FAIL_IF(readable && want != t.size_bytes, err, TERN_E_FORMAT,
               "%s: tensor %.100s at offset %" PRIu64 " of %" PRIu64 " %s values takes %" PRIu64
               " bytes, the file says %" PRIu64,
               file, name, at, n, dtype, want, t.size_bytes);
    t.off_bytes = at;
    t.data = data + begin;
    if (s->n_tensors == s->cap_tensors) {
        size_t cap = s->cap_tensors ? 2 * s->cap_tensors : 256;
        tn_tensor *more = tn_realloc(s->ctx, TN_MEM_OTHER, s->tensors, cap, sizeof *more);
        TN_FAIL_IF(!more, err, TERN_E_MEMORY, "%s: no memory for %zu tensors", file, cap);
        s->tensors = more;
        s->cap_tensors = cap;
    }
    t.name = tn_strdup(s->ctx, TN_MEM_TEXT, name);
    TN_FAIL_IF(!t.name, err, TERN_E_MEMORY, "%s: no memory for a tensor's name", file);
    s->tensors[s->n_tensors++] = t;
    return TERN_OK;
}

/* Returns how many bytes of the tensors lie beyond the end of the data. */
static uint64_t missing_bytes(const json_t *tensors, uint64_t data_bytes) {
    json_int_t need = 0;
    const char *key;
    json_t *info;
    json_object_foreach((json_t *)(uintptr_t)tensors, key, info) {
        json_int_t end = json_integer_value(json_array_get(json_object_get(info, "data_offsets"), 1));
        if (end > need) need = end;
    }
    return (uint64_t)need > data_bytes ? (uint64_t)need - data_bytes : 0;
}

static tern_status parse_file(tn_safetensors *s, const char *name, const uint8_t *data, uint64_t n_bytes,
                              tern_error *err) {
    uint64_t header;
    TN_FAIL_IF(n_bytes < 8, err, TERN_E_FORMAT, "%s: %" PRIu64 " bytes are too few for a safetensors file",
               name, n_bytes);
    memcpy(&header, data, 8);
    TN_FAIL_IF(!tn_range_ok(8, header, n_bytes) || header > MAX_HEADER, err, TERN_E_FORMAT,
               "%s: truncated or no safetensors file: its header needs %" PRIu64
               " bytes, the file has %" PRIu64,
               name, header, n_bytes);
    json_error_t je;
    json_t *j = tn_json_parse((const char *)data + 8, header, JSON_REJECT_DUPLICATES, &je);
    tern_status st = TERN_OK;
    if (!json_is_object(j))
        st = tn_fail(err, TERN_E_FORMAT, "%s: header at offset 8 is not a JSON object: %s", name,
                     j ? "another value" : je.text);
    const char *key;
    json_t *info;
    uint64_t missing = st == TERN_OK ? missing_bytes(j, n_bytes - 8 - header) : 0;
    if (missing)
        st = tn_fail(err, TERN_E_FORMAT,
                     "%s: the file is cut off, as by a download that stopped: it has %" PRIu64
                     " bytes, and %" PRIu64 " more are missing",
                     name, n_bytes, missing);
    json_object_foreach(j, key, info) {
        if (st != TERN_OK) break;
        if (!strcmp(key, "__metadata__")) continue;
        if ((st = add_tensor(s, name, data + 8 + header, n_bytes - 8 - header, 8 + header, key, info, err)) !=
            TERN_OK)
            break;
    }
    json_decref(j);
    return st;
}

static int by_place(const void *a, const void *b) {
    const tn_tensor *x = *(const tn_tensor *const *)a, *y = *(const tn_tensor *const *)b;
    return x->data < y->data ? -1 : x->data > y->data;
}

/* Sorts for look-up. It refuses duplicate names and overlapping tensors. */
static tern_status finish(tn_safetensors *s, tern_error *err) {
    if (!s->n_tensors) return TERN_OK;
    qsort(s->tensors, s->n_tensors, sizeof *s->tensors, tn_tensor_by_name);
    for (size_t i = 1; i < s->n_tensors; i++) {
        TN_FAIL_IF(!strcmp(s->tensors[i - 1].name, s->tensors[i].name), err, TERN_E_FORMAT,
                   "%s: tensor %.100s occurs twice (also in %s)", s->tensors[i].file, s->tensors[i].name,
                   s->tensors[i - 1].file);
    }
    const tn_tensor **order = tn_alloc(s->ctx, TN_MEM_OTHER, s->n_tensors, sizeof *order);
    TN_FAIL_IF(!order, err, TERN_E_MEMORY, "no memory for %zu tensors", s->n_tensors);
    size_t n = 0; /* empty tensors overlap nothing */
    for (size_t i = 0; i < s->n_tensors; i++) {
        if (s->tensors[i].size_bytes) order[n++] = &s->tensors[i];
    }
    if (n) qsort(order, n, sizeof *order, by_place);
    tern_status st = TERN_OK;
    for (size_t i = 1; i < n && st == TERN_OK; i++) {
        if (order[i]->data < order[i - 1]->data + order[i - 1]->size_bytes) {
            st = tn_fail(err, TERN_E_FORMAT, "%s: tensors %.100s and %.100s overlap at offset %" PRIu64,
                         order[i]->file, order[i - 1]->name, order[i]->name, order[i]->off_bytes);
        }
    }
    tn_free(s->ctx, order);
    return st;
}

static tern_status add_file(tn_safetensors *s, const char *path, tern_error *err) {
    TN_FAIL_IF(s->n_files == MAX_FILES, err, TERN_E_LIMIT, "%s: more than %d shards", path, MAX_FILES);
    tn_file *f;
    TN_TRY(tn_file_open(s->ctx, path, &f, err));
    s->files[s->n_files++] = f;
    return parse_file(s, f->path, f->data, f->size_bytes, err);
}

/* Adds every shard that the index names, once. Shards must lie in the folder. */
static tern_status add_shards(tn_safetensors *s, const char *folder, const char *index, tern_error *err) {
    json_t *j;
    TN_TRY(tn_json_read(index, 0, &j, err));
    const json_t *map = json_object_get(j, "weight_map");
    tern_status st = json_is_object(map) ? TERN_OK : tn_fail(err, TERN_E_FORMAT, "%s: no weight_map", index);
    const char *key;
    json_t *v;
    json_object_foreach((json_t *)map, key, v) {
        const char *file = json_string_value(v);
        char path[4096];
        if (st == TERN_OK && (!file || strchr(file, '/') || !*file))
            st = tn_fail(err, TERN_E_FORMAT, "%s: tensor %.100s names no file in this folder", index, key);
        if (st == TERN_OK && (size_t)snprintf(path, sizeof path, "%s/%s", folder, file) >= sizeof path)
            st = tn_fail(err, TERN_E_INVALID, "%s: path too long", folder);
        bool seen = false;
        for (int i = 0; i < s->n_files && st == TERN_OK; i++) seen = seen || !strcmp(s->files[i]->path, path);
        if (st == TERN_OK && !seen) st = add_file(s, path, err);
        if (st != TERN_OK) break;
    }
    json_decref(j);
    return st;
}

tern_status tn_safetensors_open(tn_ctx *ctx, const char *path, tn_safetensors **out, tern_error *err) {
    *out = NULL;
    tn_safetensors *s = tn_calloc(ctx, TN_MEM_OTHER, 1, sizeof *s);
    TN_FAIL_IF(!s, err, TERN_E_MEMORY, "no memory to open %s", path);
    s->ctx = ctx;
    char file[4096];
    struct stat sb;
    tern_status st;
    if (!stat(path, &sb) && !S_ISDIR(sb.st_mode)) {
        st = add_file(s, path, err);
    } else if ((size_t)snprintf(file, sizeof file, "%s/model.safetensors.index.json", path) >= sizeof file) {
        st = tn_fail(err, TERN_E_INVALID, "%s: path too long", path);
    } else if (!stat(file, &sb)) {
        st = add_shards(s, path, file, err);
    } else {
        snprintf(file, sizeof file, "%s/model.safetensors", path);
        if (!stat(file, &sb) || errno != ENOENT) st = add_file(s, file, err);
        else
            st = tn_fail(
                err, TERN_E_IO,
                "%s: there is no model.safetensors in it; weights are read from safetensors alone, not "
                "from PyTorch's files, which can run programs",
                path);
    }
    if (st == TERN_OK) st = finish(s, err);
    if (st == TERN_OK) *out = s;
    else tn_safetensors_close(&s);
    return st;
}

tern_status tn_safetensors_open_memory(tn_ctx *ctx, const void *data, uint64_t n_bytes, const char *name,
                                       tn_safetensors **out, tern_error *err) {
    *out = NULL;
    tn_safetensors *s = tn_calloc(ctx, TN_MEM_OTHER, 1, sizeof *s);
    TN_FAIL_IF(!s, err, TERN_E_MEMORY, "no memory to open %s", name);
    s->ctx = ctx;
    tern_status st = parse_file(s, name, data, n_bytes, err);
    if (st == TERN_OK) st = finish(s, err);
    if (st == TERN_OK) *out = s;
    else tn_safetensors_close(&s);
    return st;
}

bool tn_safetensors_changed(const tn_safetensors *s) {
    for (int i = 0; i < s->n_files; i++) {
        if (tn_file_changed(s->files[i])) return true;
    }
    return false;
}

void tn_safetensors_close(tn_safetensors **ps) {
    tn_safetensors *s = *ps;
    if (!s) return;
    *ps = NULL;
    for (size_t i = 0; i < s->n_tensors; i++) tn_free(s->ctx, (char *)s->tensors[i].name);
    for (size_t i = 0; i < s->n_gone; i++) tn_free(s->ctx, (char *)s->gone[i].name);
    tn_free(s->ctx, s->gone);
    tn_free(s->ctx, s->packed);
    tn_free(s->ctx, s->tensors);
    for (int i = 0; i < s->n_files; i++) tn_file_close(&s->files[i]);
    tn_free(s->ctx, s);
}

/* The matrix that p stands for; its name is the caller's. */
static tn_tensor matrix_of(tn_ctx *ctx, const tn_packed *p) {
    const size_t n = (size_t)(strrchr(p->q.name, '.') - p->q.name);
    char *name = tn_alloc(ctx, TN_MEM_TEXT, n + sizeof ".weight", 1);
    if (name) {
        memcpy(name, p->q.name, n);
        memcpy(name + n, ".weight", sizeof ".weight");
    }
    const uint64_t x = p->n_experts;
    return (tn_tensor){.name = name,
                       .file = p->q.file,
                       .dtype = TN_F32,
                       .n_dims = x ? 3 : 2,
                       .dims = {x ? x : p->rows, x ? p->rows / x : p->cols, x ? p->cols : 1, 1},
                       .off_bytes = p->q.off_bytes,
                       .size_bytes = p->q.size_bytes + p->scales.size_bytes + p->zeros.size_bytes,
                       .data = p->q.data,
                       .packed = p};
}

tern_status tn_safetensors_replace(tn_safetensors *s, const bool *gone, tn_packed *made, size_t n_made,
                                   tern_error *err) {
    assert(!s->packed);
    s->packed = made;
    tn_tensor *kept = tn_alloc(s->ctx, TN_MEM_OTHER, s->n_tensors + n_made, sizeof *kept);
    s->gone = tn_alloc(s->ctx, TN_MEM_OTHER, s->n_tensors, sizeof *s->gone);
    if (!kept || !s->gone) {
        tn_free(s->ctx, kept);
        return tn_fail(err, TERN_E_MEMORY, "no memory for %zu tensors", s->n_tensors + n_made);
    }
    size_t n = 0;
    for (size_t i = 0; i < s->n_tensors; i++) {
        if (gone[i]) s->gone[s->n_gone++] = s->tensors[i];
        else kept[n++] = s->tensors[i];
    }
    tn_free(s->ctx, s->tensors);
    s->tensors = kept;
    s->cap_tensors = s->n_tensors + n_made;
    s->n_tensors = n;
    for (size_t i = 0; i < n_made; i++) {
        kept[s->n_tensors] = matrix_of(s->ctx, &made[i]);
        TN_FAIL_IF(!kept[s->n_tensors].name, err, TERN_E_MEMORY, "no memory for a tensor's name");
        s->n_tensors++;
    }
    qsort(kept, s->n_tensors, sizeof *kept, tn_tensor_by_name);
    for (size_t i = 1; i < s->n_tensors; i++)
        TN_FAIL_IF(!strcmp(kept[i - 1].name, kept[i].name), err, TERN_E_FORMAT,
                   "%s: tensor %.100s is there packed and as it is", kept[i].file, kept[i].name);
    return TERN_OK;
}

size_t tn_safetensors_n_tensors(const tn_safetensors *s) { return s->n_tensors; }
const tn_tensor *tn_safetensors_tensor_at(const tn_safetensors *s, size_t i) { return &s->tensors[i]; }

const tn_tensor *tn_safetensors_tensor(const tn_safetensors *s, const char *name) {
    if (!s->n_tensors) return NULL;
    const tn_tensor key = {.name = name};
    return bsearch(&key, s->tensors, s->n_tensors, sizeof *s->tensors, tn_tensor_by_name);
}
