/* Reads GGUF: header, key-value pairs, tensor table, alignment, data. It runs on little-endian hosts only,
 * like the rest of the formats. */
#include "formats/gguf.h"

#include "base/checked.h"
#include "base/file.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    GGUF_U8,
    GGUF_I8,
    GGUF_U16,
    GGUF_I16,
    GGUF_U32,
    GGUF_I32,
    GGUF_F32,
    GGUF_BOOL,
    GGUF_STRING,
    GGUF_ARRAY,
    GGUF_U64,
    GGUF_I64,
    GGUF_F64,
    GGUF_N_TYPES
};
static const uint8_t type_bytes[GGUF_N_TYPES] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};

/* These are ggml's numbers of the storage types that tern reads, and from 133 on ik_llama.cpp's. */
static const struct {
    uint32_t ggml;
    tn_dtype dtype;
} ggml_types[] = {{0, TN_F32},      {1, TN_F16},      {2, TN_Q4_0},      {3, TN_Q4_1},     {6, TN_Q5_0},
                  {7, TN_Q5_1},     {8, TN_Q8_0},     {10, TN_Q2_K},     {11, TN_Q3_K},    {12, TN_Q4_K},
                  {13, TN_Q5_K},    {14, TN_Q6_K},    {20, TN_IQ4_NL},   {23, TN_IQ4_XS},  {30, TN_BF16},
                  {39, TN_MXFP4},   {19, TN_IQ1_S},   {29, TN_IQ1_M},    {16, TN_IQ2_XXS}, {17, TN_IQ2_XS},
                  {22, TN_IQ2_S},   {18, TN_IQ3_XXS}, {21, TN_IQ3_S},    {34, TN_TQ1_0},   {35, TN_TQ2_0},
                  {41, TN_Q1_0},    {42, TN_Q2_0},    {40, TN_NVFP4},    {15, TN_Q8_K},    {133, TN_Q6_0},
                  {137, TN_IQ2_K},  {138, TN_IQ3_K},  {139, TN_IQ4_K},   {140, TN_IQ5_K},  {141, TN_IQ6_K},
                  {144, TN_IQ4_KS}, {145, TN_IQ2_KS}, {146, TN_IQ4_KSS}, {152, TN_IQ5_KS}, {153, TN_IQ2_KT},
                  {154, TN_IQ3_KT}, {155, TN_IQ4_KT}, {156, TN_IQ3_KS},  {157, TN_IQ2_KL}, {158, TN_IQ1_KT}};

/* Names of the other types, for messages. */
static const char *foreign_type_name(uint32_t type) {
    static const char *const names[] = {
        [9] = "Q8_1", [24] = "I8", [25] = "I16", [26] = "I32", [27] = "I64", [28] = "F64"};
    if (type >= 97 && type < 400) return "one of ik_llama.cpp's own";
    return type < sizeof names / sizeof names[0] && names[type] ? names[type] : "no type of GGUF";
}

typedef struct text {
    const char *s;
    size_t n;
} text;

typedef struct pair {
    text key;
    uint32_t type; /* of the value, or of the array's elements */
    bool is_array;
    uint64_t n;          /* elements of an array */
    const uint8_t *data; /* scalars and arrays of scalars */
    text *strings;       /* a string (n = 1) or an array of them */
    const uint8_t *raw;  /* all of it in the file */
    uint64_t n_raw;
} pair;

struct tn_gguf {
    tn_ctx *ctx;
    tn_file *file;
    char *path;
    const uint8_t *data;
    uint64_t size;
    uint32_t version;
    uint64_t n_pairs, n_tensors;
    pair *pairs;
    const pair **by_key;       /* sorted by key */
    tn_tensor *tensors;        /* names are our own copies */
    const tn_tensor **by_name; /* sorted by name */
    /* A split file, opened by its first part: */
    tn_gguf **parts; /* [n_parts], the others */
    size_t n_parts;
    const tn_tensor **all; /* [n_all] tensors of all parts in order; NULL: not split */
    uint64_t n_all;
};

typedef struct cursor {
    const tn_gguf *g;
    uint64_t at;
    tern_error *err;
    const char *tensor; /* of the description being read, or "" */
} cursor;

static tern_status take(cursor *c, uint64_t n, const uint8_t **out, const char *what) {
    TN_FAIL_IF(!tn_range_ok(c->at, n, c->g->size), c->err, TERN_E_FORMAT,
               "%s: truncated: %s%s%.100s at offset %" PRIu64 " needs %" PRIu64
               " bytes, the file has %" PRIu64,
               c->g->path, what, *c->tensor ? " of tensor " : "", c->tensor, c->at, n, c->g->size);
    *out = c->g->data + c->at;
    c->at += n;
    return TERN_OK;
}

static tern_status take_u32(cursor *c, uint32_t *out, const char *what) {
    const uint8_t *p;
    TN_TRY(take(c, 4, &p, what));
    memcpy(out, p, 4);
    return TERN_OK;
}

static tern_status take_u64(cursor *c, uint64_t *out, const char *what) {
    const uint8_t *p;
    TN_TRY(take(c, 8, &p, what));
    memcpy(out, p, 8);
    return TERN_OK;
}

static tern_status take_text(cursor *c, text *out, const char *what) {
    uint64_t n;
    const uint8_t *p;
    TN_TRY(take_u64(c, &n, what));
    TN_TRY(take(c, n, &p, what));
    *out = (text){(const char *)p, n};
    return TERN_OK;
}

/* ---- metadata ------------------------------------------------------------------------------------ */

static tern_status read_value(cursor *c, pair *p) {
    TN_TRY(take_u32(c, &p->type, "value type"));
    p->n = 1;
    if (p->type == GGUF_ARRAY) {
        p->is_array = true;
        TN_TRY(take_u32(c, &p->type, "array type"));
        TN_TRY(take_u64(c, &p->n, "array length"));
    }
    TN_FAIL_IF(p->type >= GGUF_N_TYPES || p->type == GGUF_ARRAY, c->err, TERN_E_FORMAT,
               "%s: key '%.*s' has value type %u at offset %" PRIu64 ", which does not exist or nests",
               c->g->path, (int)(p->key.n < 100 ? p->key.n : 100), p->key.s, p->type, c->at);
    if (p->type != GGUF_STRING) {
        uint64_t n_bytes;
        TN_FAIL_IF(!tn_mul_u64(p->n, type_bytes[p->type], &n_bytes), c->err, TERN_E_FORMAT,
                   "%s: array of %" PRIu64 " elements at offset %" PRIu64, c->g->path, p->n, c->at);
        return take(c, n_bytes, &p->data, "array");
    }
    /* every string takes at least the eight bytes of its length */
    TN_FAIL_IF(p->n > (c->g->size - c->at) / 8, c->err, TERN_E_FORMAT,
               "%s: truncated: %" PRIu64 " strings at offset %" PRIu64 ", the file has %" PRIu64 " bytes",
               c->g->path, p->n, c->at, c->g->size);
    p->strings = tn_alloc(c->g->ctx, TN_MEM_TEXT, p->n, sizeof *p->strings);
    TN_FAIL_IF(!p->strings, c->err, TERN_E_MEMORY, "%s: no memory for %" PRIu64 " strings", c->g->path, p->n);
    for (uint64_t i = 0; i < p->n; i++) TN_TRY(take_text(c, &p->strings[i], "string"));
    return TERN_OK;
}

static int key_order(text x, text y) {
    int cmp = memcmp(x.s, y.s, x.n < y.n ? x.n : y.n);
    return cmp ? cmp : x.n < y.n ? -1 : x.n > y.n;
}

static const pair *find(const tn_gguf *g, const char *key) {
    const text want = {key, strlen(key)};
    uint64_t lo = 0, hi = g->n_pairs;
    while (lo < hi) {
        uint64_t mid = (lo + hi) / 2;
        int cmp = key_order(g->by_key[mid]->key, want);
        if (!cmp) return g->by_key[mid];
        if (cmp < 0) lo = mid + 1;
        else hi = mid;
    }
    return NULL;
}

static bool is_integer(uint32_t t) { return t != GGUF_F32 && t != GGUF_F64 && t != GGUF_STRING; }

static int64_t integer_at(const pair *p, uint64_t i) {
    const uint8_t *d = p->data + i * type_bytes[p->type];
    uint64_t u = 0;
    memcpy(&u, d, type_bytes[p->type]);
    switch (p->type) {
    case GGUF_I8: return (int8_t)u;
    case GGUF_I16: return (int16_t)u;
    case GGUF_I32: return (int32_t)u;
    case GGUF_BOOL: return u != 0;
    default: return (int64_t)u;
    }
}

static double number_at(const pair *p, uint64_t i) {
    const uint8_t *d = p->data + i * type_bytes[p->type];
    if (p->type == GGUF_F32) {
        float f;
        memcpy(&f, d, 4);
        return (double)f;
    }
    if (p->type == GGUF_F64) {
        double f;
        memcpy(&f, d, 8);
        return f;
    }
    return (double)integer_at(p, i);
}

bool tn_gguf_has(const tn_gguf *g, const char *key) { return find(g, key) != NULL; }

size_t tn_gguf_n_keys(const tn_gguf *g) { return (size_t)g->n_pairs; }

const char *tn_gguf_key_at(const tn_gguf *g, size_t i, size_t *n) {
    *n = g->pairs[i].key.n;
    return g->pairs[i].key.s;
}

const uint8_t *tn_gguf_key_bytes(const tn_gguf *g, size_t i, uint64_t *n) {
    *n = g->pairs[i].n_raw;
    return g->pairs[i].raw;
}

bool tn_gguf_i64(const tn_gguf *g, const char *key, int64_t *out) {
    const pair *p = find(g, key);
    if (!p || p->is_array || !is_integer(p->type)) return false;
    *out = integer_at(p, 0);
    return true;
}

bool tn_gguf_f64(const tn_gguf *g, const char *key, double *out) {
    const pair *p = find(g, key);
    if (!p || p->is_array || p->type == GGUF_STRING) return false;
    *out = number_at(p, 0);
    return true;
}

bool tn_gguf_is_bool(const tn_gguf *g, const char *key) {
    const pair *p = find(g, key);
    return p && !p->is_array && p->type == GGUF_BOOL;
}

bool tn_gguf_bool(const tn_gguf *g, const char *key, bool *out) {
    int64_t v;
    if (!tn_gguf_i64(g, key, &v)) return false;
    *out = v != 0;
    return true;
}

bool tn_gguf_str(const tn_gguf *g, const char *key, const char **s, size_t *n) {
    const pair *p = find(g, key);
    if (!p || p->is_array || p->type != GGUF_STRING) return false;
    *s = p->strings[0].s;
    *n = p->strings[0].n;
    return true;
}

int64_t tn_gguf_arr_n(const tn_gguf *g, const char *key) {
    const pair *p = find(g, key);
    return p && p->is_array ? (int64_t)p->n : -1;
}

static const pair *elements(const tn_gguf *g, const char *key, int64_t i, int64_t n) {
    const pair *p = find(g, key);
    return p && p->is_array && i >= 0 && n >= 0 && tn_range_ok((uint64_t)i, (uint64_t)n, p->n) ? p : NULL;
}

bool tn_gguf_arr_strs(const tn_gguf *g, const char *key, int64_t i, int64_t n, const char **s,
                      size_t *bytes) {
    const pair *p = elements(g, key, i, n);
    if (!p || (n && p->type != GGUF_STRING)) return false;
    for (int64_t e = 0; e < n; e++) {
        s[e] = p->strings[i + e].s;
        bytes[e] = p->strings[i + e].n;
    }
    return true;
}

bool tn_gguf_arr_f64s(const tn_gguf *g, const char *key, int64_t i, int64_t n, double *out) {
    const pair *p = elements(g, key, i, n);
    if (!p || p->type == GGUF_STRING) return false;
    for (int64_t e = 0; e < n; e++) out[e] = number_at(p, (uint64_t)(i + e));
    return true;
}

bool tn_gguf_arr_i64s(const tn_gguf *g, const char *key, int64_t i, int64_t n, int64_t *out) {
    const pair *p = elements(g, key, i, n);
    if (!p || !is_integer(p->type)) return false;
    for (int64_t e = 0; e < n; e++) out[e] = integer_at(p, (uint64_t)(i + e));
    return true;
}

bool tn_gguf_arr_str(const tn_gguf *g, const char *key, int64_t i, const char **s, size_t *n) {
    return tn_gguf_arr_strs(g, key, i, 1, s, n);
}

bool tn_gguf_arr_f64(const tn_gguf *g, const char *key, int64_t i, double *out) {
    return tn_gguf_arr_f64s(g, key, i, 1, out);
}

bool tn_gguf_arr_i64(const tn_gguf *g, const char *key, int64_t i, int64_t *out) {
    return tn_gguf_arr_i64s(g, key, i, 1, out);
}

/* ---- tensors ------------------------------------------------------------------------------------- */

uint32_t tn_gguf_type(tn_dtype d) {
    for (size_t i = 0; i < sizeof ggml_types / sizeof ggml_types[0]; i++) {
        if (ggml_types[i].dtype == d) return ggml_types[i].ggml;
    }
    return UINT32_MAX;
}

static tern_status read_tensor(cursor *c, tn_tensor *t) {
    const tn_gguf *g = c->g;
    text name;
    uint32_t n_dims, type;
    uint64_t at = c->at;
    c->tensor = "";
    TN_TRY(take_text(c, &name, "tensor name"));
    char *copy = tn_strndup(g->ctx, TN_MEM_TEXT, name.s, name.n);
    TN_FAIL_IF(!copy, c->err, TERN_E_MEMORY, "%s: no memory for a tensor's name", g->path);
    t->name = c->tensor = copy;
    t->file = g->path;
    TN_TRY(take_u32(c, &n_dims, "dimensions"));
    TN_FAIL_IF(n_dims < 1 || n_dims > 4, c->err, TERN_E_FORMAT,
               "%s: tensor %.100s at offset %" PRIu64 " has %u dimensions, 1 to 4 are possible", g->path,
               t->name, at, n_dims);
    t->n_dims = (int32_t)n_dims;
    for (int i = 0; i < 4; i++) t->dims[i] = 1;
    for (uint32_t i = 0; i < n_dims; i++) { /* the file stores them innermost first */
        TN_TRY(take_u64(c, &t->dims[n_dims - 1 - i], "dimension"));
    }
    TN_TRY(take_u32(c, &type, "type"));
    TN_TRY(take_u64(c, &t->off_bytes, "offset"));
    t->dtype = TN_N_DTYPES;
    const uint32_t numbers = 27; /* I64: no weights, but tables that some files have */
    for (size_t i = 0; i < sizeof ggml_types / sizeof ggml_types[0]; i++) {
        if (ggml_types[i].ggml == type) t->dtype = ggml_types[i].dtype;
    }
    TN_FAIL_IF(t->dtype == TN_N_DTYPES && type != numbers, c->err, TERN_E_UNSUPPORTED,
               "%s: tensor %.100s at offset %" PRIu64 " has storage type %u (%s), which tern does not read",
               g->path, t->name, at, type, foreign_type_name(type));
    uint64_t n = 1, heads = 0, inner = t->dims[n_dims - 1];
    const uint64_t block = type == numbers ? 1 : (uint64_t)tn_dtype_block(t->dtype),
                   block_bytes = type == numbers ? 8 : (uint64_t)tn_dtype_block_bytes(t->dtype),
                   head_bytes = type == numbers ? 0 : (uint64_t)tn_dtype_head_bytes(t->dtype);
    bool ok = inner % block == 0;
    for (int i = 0; i < 4; i++) ok = ok && t->dims[i] > 0 && tn_mul_u64(n, t->dims[i], &n);
    ok = ok && tn_mul_u64(n / block, block_bytes, &t->size_bytes) &&
         tn_mul_u64(n / inner, head_bytes, &heads) && heads <= UINT64_MAX - t->size_bytes;
    t->size_bytes += ok ? heads : 0;
    TN_FAIL_IF(!ok, c->err, TERN_E_FORMAT,
               "%s: tensor %.100s of type %s at offset %" PRIu64 " has impossible dimensions %" PRIu64
               " x %" PRIu64 " x %" PRIu64 " x %" PRIu64,
               g->path, t->name, tn_dtype_name(t->dtype), at, t->dims[0], t->dims[1], t->dims[2], t->dims[3]);
    return TERN_OK;
}

static int by_offset(const void *a, const void *b) {
    const tn_tensor *x = *(const tn_tensor *const *)a, *y = *(const tn_tensor *const *)b;
    return x->off_bytes < y->off_bytes ? -1 : x->off_bytes > y->off_bytes;
}

static int by_name(const void *a, const void *b) {
    return strcmp((*(const tn_tensor *const *)a)->name, (*(const tn_tensor *const *)b)->name);
}

static int by_key(const void *a, const void *b) {
    return key_order((*(const pair *const *)a)->key, (*(const pair *const *)b)->key);
}

/* From here on `find` works. */
static tern_status sort_keys(tn_gguf *g, tern_error *err) {
    const pair **order = g->by_key = tn_alloc(g->ctx, TN_MEM_OTHER, g->n_pairs, sizeof *order);
    TN_FAIL_IF(!order, err, TERN_E_MEMORY, "%s: no memory for %" PRIu64 " keys", g->path, g->n_pairs);
    for (uint64_t i = 0; i < g->n_pairs; i++) order[i] = &g->pairs[i];
    qsort(order, g->n_pairs, sizeof *order, by_key);
    for (uint64_t i = 1; i < g->n_pairs; i++) {
        const text *k = &order[i]->key;
        TN_FAIL_IF(!by_key(&order[i - 1], &order[i]), err, TERN_E_FORMAT, "%s: key '%.*s' occurs twice",
                   g->path, (int)(k->n < 100 ? k->n : 100), k->s);
    }
    return TERN_OK;
}

/* Returns how many bytes of the data section lie beyond the end of the file. */
static uint64_t missing_bytes(const tn_gguf *g, uint64_t data_off) {
    uint64_t need = 0, end;
    for (uint64_t i = 0; i < g->n_tensors; i++) {
        const tn_tensor *t = &g->tensors[i];
        if (!tn_add_u64(data_off, t->off_bytes, &end) || !tn_add_u64(end, t->size_bytes, &end)) return 0;
        if (end > need) need = end;
    }
    return need > g->size ? need - g->size : 0;
}

/* Places the tensors in the data section. It refuses overlaps and duplicate names. */
static tern_status place_tensors(tn_gguf *g, uint64_t data_off, uint64_t alignment, tern_error *err) {
    const tn_tensor **order = tn_alloc(g->ctx, TN_MEM_OTHER, g->n_tensors, sizeof *order);
    g->by_name = tn_alloc(g->ctx, TN_MEM_OTHER, g->n_tensors, sizeof *g->by_name);
    tern_status st = TERN_OK;
    TN_BAIL_IF(!order || !g->by_name, err, TERN_E_MEMORY, "%s: no memory for %" PRIu64 " tensors", g->path,
               g->n_tensors);
    for (uint64_t i = 0; i < g->n_tensors; i++) {
        tn_tensor *t = &g->tensors[i];
        uint64_t off;
        bool aligned = t->off_bytes % alignment == 0 && tn_add_u64(data_off, t->off_bytes, &off),
             ok = aligned && tn_range_ok(off, t->size_bytes, g->size);
        uint64_t missing = aligned && !ok ? missing_bytes(g, data_off) : 0;
        TN_BAIL_IF(missing, err, TERN_E_FORMAT,
                   "%s: the file is cut off, as by a download that stopped: it has %" PRIu64
                   " bytes, and %" PRIu64 " more are missing (tensor %.100s needs [%" PRIu64 ", +%" PRIu64
                   ") of the data at offset %" PRIu64 ")",
                   g->path, g->size, missing, t->name, t->off_bytes, t->size_bytes, data_off);
        TN_BAIL_IF(!ok, err, TERN_E_FORMAT,
                   "%s: tensor %.100s needs [%" PRIu64 ", +%" PRIu64 ") of the data at offset %" PRIu64
                   " (alignment %" PRIu64 "), the file has %" PRIu64 " bytes",
                   g->path, t->name, t->off_bytes, t->size_bytes, data_off, alignment, g->size);
        t->off_bytes = off;
        t->data = g->data + off;
        order[i] = t;
        g->by_name[i] = t;
    }
    qsort(order, g->n_tensors, sizeof *order, by_offset);
    for (uint64_t i = 1; i < g->n_tensors; i++) {
        TN_BAIL_IF(order[i]->off_bytes < order[i - 1]->off_bytes + order[i - 1]->size_bytes, err,
                   TERN_E_FORMAT, "%s: tensors %.100s and %.100s overlap at offset %" PRIu64, g->path,
                   order[i - 1]->name, order[i]->name, order[i]->off_bytes);
    }
    qsort(g->by_name, g->n_tensors, sizeof *g->by_name, by_name);
    for (uint64_t i = 1; i < g->n_tensors; i++) {
        const tn_tensor *a = g->by_name[i - 1], *b = g->by_name[i];
        TN_BAIL_IF(!strcmp(a->name, b->name), err, TERN_E_FORMAT,
                   "%s: tensor %.100s occurs twice, at offsets %" PRIu64 " and %" PRIu64, g->path, a->name,
                   a->off_bytes, b->off_bytes);
    }
out:
    tn_free(g->ctx, order);
    return st;
}

/* What stands where a GGUF file was expected, by its first bytes: what browsers, git and people save under that name. */
static const char *instead(const uint8_t *p, uint64_t n) {
    static const struct {
        const char *begins, *is;
    } kinds[] = {
        {"<!", "not a GGUF file but a web page: download the file itself (tern pull takes its address)"},
        {"<html", "not a GGUF file but a web page: download the file itself (tern pull takes its address)"},
        {"version https://git-lfs",
         "not a GGUF file but Git LFS's pointer to one: git lfs pull fetches the file"},
        {"PK\3\4", "not a GGUF file but a zip archive or a PyTorch checkpoint"},
        {"\x1f\x8b", "not a GGUF file but a gzip archive: unpack it"},
        {"ggjt", "a file of llama.cpp from before GGUF: convert the original model to GGUF"},
        {"tjgg", "a file of llama.cpp from before GGUF: convert the original model to GGUF"},
        {"{", "not a GGUF file but JSON: of a Hugging Face model give the folder"},
    };
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (n >= strlen(kinds[i].begins) && !memcmp(p, kinds[i].begins, strlen(kinds[i].begins)))
            return kinds[i].is;
    /* safetensors: the length of a JSON object in eight bytes, then the object */
    if (n > 9 && p[8] == '{' && !p[6] && !p[7])
        return "not a GGUF file but safetensors: give the folder that it lies in, with config.json";
    return n ? "not a GGUF file, nor a .tern package" : "the file is empty";
}

static tern_status parse(tn_gguf *g, tern_error *err) {
    cursor c = {.g = g, .err = err, .tensor = ""};
    const uint8_t *magic;
    TN_FAIL_IF(g->size < 4 || memcmp(g->data, "GGUF", 4), err, TERN_E_FORMAT, "%s: %s", g->path,
               instead(g->data, g->size));
    TN_TRY(take(&c, 4, &magic, "magic"));
    TN_TRY(take_u32(&c, &g->version, "version"));
    TN_FAIL_IF(g->version == 0x02000000u || g->version == 0x03000000u, err, TERN_E_UNSUPPORTED,
               "%s: a big-endian GGUF file; convert it to little-endian", g->path);
    TN_FAIL_IF(g->version != 2 && g->version != 3, err, TERN_E_UNSUPPORTED,
               "%s: GGUF version %u, tern reads 2 and 3", g->path, g->version);
    uint64_t n_tensors, n_pairs;
    TN_TRY(take_u64(&c, &n_tensors, "tensor count"));
    TN_TRY(take_u64(&c, &n_pairs, "key count"));
    /* a key takes at least 8 + 4 + 1 bytes, a tensor 8 + 4 + 8 + 4 + 8 */
    TN_FAIL_IF(n_pairs > g->size / 13 || n_tensors > g->size / 32, err, TERN_E_FORMAT,
               "%s: %" PRIu64 " keys and %" PRIu64 " tensors do not fit %" PRIu64 " bytes: cut off?", g->path,
               n_pairs, n_tensors, g->size);
    g->pairs = tn_calloc(g->ctx, TN_MEM_OTHER, n_pairs, sizeof *g->pairs);
    g->tensors = tn_calloc(g->ctx, TN_MEM_OTHER, n_tensors, sizeof *g->tensors);
    TN_FAIL_IF(!g->pairs || !g->tensors, err, TERN_E_MEMORY,
               "%s: no memory for %" PRIu64 " keys and %" PRIu64 " tensors", g->path, n_pairs, n_tensors);
    for (uint64_t i = 0; i < n_pairs; i++) {
        pair *p = &g->pairs[i];
        g->n_pairs = i + 1; /* so that close frees what was read */
        const uint64_t at = c.at;
        TN_TRY(take_text(&c, &p->key, "key"));
        TN_TRY(read_value(&c, p));
        p->raw = g->data + at;
        p->n_raw = c.at - at;
    }
    for (uint64_t i = 0; i < n_tensors; i++) {
        g->n_tensors = i + 1;
        TN_TRY(read_tensor(&c, &g->tensors[i]));
    }
    TN_TRY(sort_keys(g, err));
    int64_t alignment = 32;
    (void)tn_gguf_i64(g, "general.alignment", &alignment);
    TN_FAIL_IF(alignment < 1 || alignment > 1 << 20 || (alignment & (alignment - 1)), err, TERN_E_FORMAT,
               "%s: general.alignment is %" PRId64 ", want a power of two", g->path, alignment);
    uint64_t data_off = (c.at + (uint64_t)alignment - 1) / (uint64_t)alignment * (uint64_t)alignment;
    return place_tensors(g, data_off, (uint64_t)alignment, err);
}

static tern_status open_bytes(tn_ctx *ctx, tn_file *file, const void *data, uint64_t n_bytes,
                              const char *name, tn_gguf **out, tern_error *err) {
    *out = NULL;
    tn_gguf *g = tn_calloc(ctx, TN_MEM_OTHER, 1, sizeof *g);
    if (!g || !(g->path = tn_strdup(ctx, TN_MEM_OTHER, name))) {
        tn_free(ctx, g);
        tn_file_close(&file);
        return tn_fail(err, TERN_E_MEMORY, "no memory to open %s", name);
    }
    g->ctx = ctx;
    g->file = file;
    g->data = data;
    g->size = n_bytes;
    tern_status st = parse(g, err);
    if (st == TERN_OK) *out = g;
    else tn_gguf_close(&g);
    return st;
}

tern_status tn_gguf_open_memory(tn_ctx *ctx, const void *data, uint64_t n_bytes, const char *name,
                                tn_gguf **out, tern_error *err) {
    return open_bytes(ctx, NULL, data, n_bytes, name, out, err);
}

static tern_status open_part(tn_ctx *ctx, const char *path, tn_gguf **out, tern_error *err) {
    *out = NULL;
    tn_file *f;
    TN_TRY(tn_file_open(ctx, path, &f, err));
    return open_bytes(ctx, f, f->data, f->size_bytes, path, out, err);
}

const tn_file *tn_gguf_file(const tn_gguf *g) { return g->all ? NULL : g->file; }
bool tn_gguf_changed(const tn_gguf *g) {
    for (size_t i = 0; i < g->n_parts; i++)
        if (tn_file_changed(g->parts[i]->file)) return true;
    return tn_file_changed(g->file);
}

/* ---- split files: NAME-00001-of-00003.gguf holds the metadata, all hold tensors ------------------- */

enum { MAX_PARTS = 999, SPLIT_TAIL = 20 /* "-00001-of-00003.gguf" */ };

/* Makes the path of part i, counted from 1, beside that of the first one. */
static void part_path(const tn_gguf *g, int64_t i, int64_t n, char *out, size_t cap) {
    snprintf(out, cap, "%.*s-%05d-of-%05d.gguf", (int)(strlen(g->path) - SPLIT_TAIL), g->path, (int)i,
             (int)n);
}

static tern_status merge_parts(tn_gguf *g, tern_error *err) {
    g->n_all = g->n_tensors;
    for (size_t i = 0; i < g->n_parts; i++) g->n_all += g->parts[i]->n_tensors;
    const tn_tensor **names = tn_realloc(g->ctx, TN_MEM_OTHER, g->by_name, g->n_all, sizeof *names);
    TN_FAIL_IF(!names, err, TERN_E_MEMORY, "%s: no memory for %" PRIu64 " tensors", g->path, g->n_all);
    g->by_name = names;
    g->all = tn_alloc(g->ctx, TN_MEM_OTHER, g->n_all, sizeof *g->all);
    TN_FAIL_IF(!g->all, err, TERN_E_MEMORY, "%s: no memory for %" PRIu64 " tensors", g->path, g->n_all);
    uint64_t n = 0;
    for (uint64_t k = 0; k < g->n_tensors; k++) g->all[n++] = &g->tensors[k];
    for (size_t i = 0; i < g->n_parts; i++)
        for (uint64_t k = 0; k < g->parts[i]->n_tensors; k++) g->all[n++] = &g->parts[i]->tensors[k];
    memcpy(g->by_name, g->all, n * sizeof *g->all);
    qsort(g->by_name, n, sizeof *g->by_name, by_name);
    for (uint64_t i = 1; i < n; i++) {
        const tn_tensor *a = g->by_name[i - 1], *b = g->by_name[i];
        TN_FAIL_IF(!strcmp(a->name, b->name), err, TERN_E_FORMAT, "%s: tensor %.100s is also in %s", a->file,
                   a->name, b->file);
    }
    return TERN_OK;
}

/* Opens the other parts of a split file. */
static tern_status open_parts(tn_gguf *g, tern_error *err) {
    int64_t n = 0, no = 0, i_part;
    if (!tn_gguf_i64(g, "split.count", &n) || n <= 1) return TERN_OK;
    (void)tn_gguf_i64(g, "split.no", &no);
    char path[4096], tail[64];
    size_t len = strlen(g->path);
    TN_FAIL_IF(n > MAX_PARTS || no < 0 || no >= n, err, TERN_E_FORMAT,
               "%s: part %" PRId64 " of %" PRId64 ": there are at most %d", g->path, no + 1, n, MAX_PARTS);
    snprintf(tail, sizeof tail, "-%05d-of-%05d.gguf", (int)no + 1, (int)n);
    TN_FAIL_IF(len <= SPLIT_TAIL || len >= sizeof path || strcmp(g->path + len - SPLIT_TAIL, tail), err,
               TERN_E_FORMAT, "%s: part %d of %d of a split file: its name must end in %s", g->path,
               (int)no + 1, (int)n, tail);
    part_path(g, 1, n, path, sizeof path);
    TN_FAIL_IF(no, err, TERN_E_INVALID, "%s: part %d of a split file; open the first: %s", g->path,
               (int)no + 1, path);
    g->parts = tn_calloc(g->ctx, TN_MEM_OTHER, (size_t)n - 1, sizeof *g->parts);
    TN_FAIL_IF(!g->parts, err, TERN_E_MEMORY, "%s: no memory for %d parts", g->path, (int)n);
    for (i_part = 1; i_part < n; i_part++) {
        part_path(g, i_part + 1, n, path, sizeof path);
        TN_TRY(open_part(g->ctx, path, &g->parts[g->n_parts], err));
        const tn_gguf *p = g->parts[g->n_parts++];
        int64_t its_n = 0, its_no = -1;
        TN_FAIL_IF(!tn_gguf_i64(p, "split.count", &its_n) || !tn_gguf_i64(p, "split.no", &its_no) ||
                       its_n != n || its_no != i_part,
                   err, TERN_E_FORMAT, "%s: says that it is part %" PRId64 " of %" PRId64 ", not %d of %d",
                   path, its_no + 1, its_n, (int)i_part + 1, (int)n);
    }
    return merge_parts(g, err);
}

tern_status tn_gguf_open(tn_ctx *ctx, const char *path, tn_gguf **out, tern_error *err) {
    TN_TRY(open_part(ctx, path, out, err));
    tern_status st = open_parts(*out, err);
    if (st != TERN_OK) tn_gguf_close(out);
    return st;
}

void tn_gguf_close(tn_gguf **pg) {
    tn_gguf *g = *pg;
    if (!g) return;
    *pg = NULL;
    for (uint64_t i = 0; g->pairs && i < g->n_pairs; i++) tn_free(g->ctx, g->pairs[i].strings);
    for (uint64_t i = 0; g->tensors && i < g->n_tensors; i++) tn_free(g->ctx, (char *)g->tensors[i].name);
    tn_free(g->ctx, g->pairs);
    tn_free(g->ctx, g->by_key);
    tn_free(g->ctx, g->tensors);
    tn_free(g->ctx, g->by_name);
    for (size_t i = 0; i < g->n_parts; i++) tn_gguf_close(&g->parts[i]);
    tn_free(g->ctx, g->parts);
    tn_free(g->ctx, g->all);
    tn_free(g->ctx, g->path);
    tn_file_close(&g->file);
    tn_free(g->ctx, g);
}

const char *tn_gguf_path(const tn_gguf *g) { return g->path; }
uint32_t tn_gguf_version(const tn_gguf *g) { return g->version; }
size_t tn_gguf_n_tensors(const tn_gguf *g) { return g->all ? g->n_all : g->n_tensors; }
const tn_tensor *tn_gguf_tensor_at(const tn_gguf *g, size_t i) { return g->all ? g->all[i] : &g->tensors[i]; }

const tn_tensor *tn_gguf_tensor(const tn_gguf *g, const char *name) {
    uint64_t lo = 0, hi = tn_gguf_n_tensors(g);
    while (lo < hi) {
        uint64_t mid = (lo + hi) / 2;
        int cmp = strcmp(g->by_name[mid]->name, name);
        if (!cmp) return g->by_name[mid];
        if (cmp < 0) lo = mid + 1;
        else hi = mid;
    }
    return NULL;
}
