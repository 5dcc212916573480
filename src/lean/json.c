#include "lean/json.h"

#include <locale.h>
#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <xxhash.h>

typedef struct entry {
    char *key; /* zero-terminated */
    size_t n_key;
    uint64_t hash;
    tn_lean_json *value;
} entry;

/* An object keeps its entries in order; from FEW entries on, `index` finds them: open addressing, entry +
 * 1. */
struct tn_lean_json {
    tn_lean_type type;
    size_t owners; /* changed atomically; not for true, false and null */
    size_t n, cap; /* entries, elements, bytes */
    union {
        struct {
            entry *entries;
            uint32_t *index;
            size_t index_mask;
        };
        tn_lean_json **elements;
        char *text; /* zero-terminated */
        long long integer;
        double real;
    };
};

enum { FEW = 12 };

static tn_lean_json constants[3] = {{.type = TN_LEAN_TRUE}, {.type = TN_LEAN_FALSE}, {.type = TN_LEAN_NULL}};

tn_lean_json *tn_lean_true(void) { return &constants[0]; }
tn_lean_json *tn_lean_false(void) { return &constants[1]; }
tn_lean_json *tn_lean_null(void) { return &constants[2]; }

/* ---- owners ---- */

tn_lean_json *tn_lean_incref(tn_lean_json *j) {
    if (j && j->type < TN_LEAN_TRUE) __atomic_add_fetch(&j->owners, 1, __ATOMIC_RELAXED);
    return j;
}

/* Deep values nest as deep as the reader and the caller let them: recursion is bounded by
 * TN_LEAN_MAX_DEPTH there. */
static void release(tn_lean_json *j) {
    if (j->type == TN_LEAN_OBJECT) {
        for (size_t i = 0; i < j->n; i++) {
            free(j->entries[i].key);
            tn_lean_decref(j->entries[i].value);
        }
        free(j->entries);
        free(j->index);
    } else if (j->type == TN_LEAN_ARRAY) {
        for (size_t i = 0; i < j->n; i++) tn_lean_decref(j->elements[i]);
        free(j->elements);
    } else if (j->type == TN_LEAN_STRING) {
        free(j->text);
    }
    free(j);
}

void tn_lean_decref(tn_lean_json *j) {
    if (j && j->type < TN_LEAN_TRUE && !__atomic_sub_fetch(&j->owners, 1, __ATOMIC_ACQ_REL)) release(j);
}

/* ---- making ---- */

static tn_lean_json *make(tn_lean_type type) {
    tn_lean_json *j = calloc(1, sizeof *j);
    if (j) *j = (tn_lean_json){.type = type, .owners = 1};
    return j;
}

tn_lean_json *tn_lean_object(void) { return make(TN_LEAN_OBJECT); }
tn_lean_json *tn_lean_array(void) { return make(TN_LEAN_ARRAY); }

/* Takes text, which was allocated. */
static tn_lean_json *own_string(char *text, size_t n) {
    tn_lean_json *j = text ? make(TN_LEAN_STRING) : NULL;
    if (!j) {
        free(text);
        return NULL;
    }
    j->text = text;
    j->n = n;
    return j;
}

static char *copy_text(const char *text, size_t n) {
    char *p = n < SIZE_MAX ? malloc(n + 1) : NULL;
    if (!p) return NULL;
    memcpy(p, text, n);
    p[n] = 0;
    return p;
}

tn_lean_json *tn_lean_string(const char *text, size_t n_bytes) {
    return text ? own_string(copy_text(text, n_bytes), n_bytes) : NULL;
}

tn_lean_json *tn_lean_integer(long long v) {
    tn_lean_json *j = make(TN_LEAN_INTEGER);
    if (j) j->integer = v;
    return j;
}

tn_lean_json *tn_lean_real(double v) {
    tn_lean_json *j = isfinite(v) ? make(TN_LEAN_REAL) : NULL;
    if (j) j->real = v;
    return j;
}

/* ---- looking ---- */

tn_lean_type tn_lean_type_of(const tn_lean_json *j) { return j->type; }
bool tn_lean_is(const tn_lean_json *j, tn_lean_type t) { return j && j->type == t; }
const char *tn_lean_text(const tn_lean_json *j) { return tn_lean_is(j, TN_LEAN_STRING) ? j->text : NULL; }
size_t tn_lean_length(const tn_lean_json *j) { return tn_lean_is(j, TN_LEAN_STRING) ? j->n : 0; }
long long tn_lean_int_of(const tn_lean_json *j) { return tn_lean_is(j, TN_LEAN_INTEGER) ? j->integer : 0; }
double tn_lean_real_of(const tn_lean_json *j) { return tn_lean_is(j, TN_LEAN_REAL) ? j->real : 0; }
double tn_lean_number_of(const tn_lean_json *j) {
    return tn_lean_is(j, TN_LEAN_INTEGER) ? (double)j->integer : tn_lean_real_of(j);
}
size_t tn_lean_size(const tn_lean_json *j, tn_lean_type t) { return tn_lean_is(j, t) ? j->n : 0; }

tn_lean_json *tn_lean_at(const tn_lean_json *array, size_t i) {
    return i < tn_lean_size(array, TN_LEAN_ARRAY) ? array->elements[i] : NULL;
}

/* Keys of a hostile text must not meet in one place: nobody outside knows the seed. */
static uint64_t hash_of(const char *key, size_t n_key) {
    static _Atomic uint64_t seed;
    uint64_t s =
        atomic_load_explicit(&seed, memory_order_relaxed); /* any thread's will do, but one for all */
    if (!s) {
        uint64_t mine = 0, none = 0;
        if (getrandom(&mine, sizeof mine, GRND_NONBLOCK) != sizeof mine) mine = (uint64_t)(uintptr_t)&mine;
        mine |= 1;
        s = atomic_compare_exchange_strong(&seed, &none, mine) ? mine : none;
    }
    return XXH3_64bits_withSeed(key, n_key, s);
}

static bool is_key(const entry *e, const char *key, size_t n_key, uint64_t hash) {
    return e->hash == hash && e->n_key == n_key && !memcmp(e->key, key, n_key);
}

static size_t find(const tn_lean_json *o, const char *key, size_t n_key, uint64_t hash) {
    if (!o->index) {
        for (size_t i = 0; i < o->n; i++)
            if (is_key(&o->entries[i], key, n_key, hash)) return i;
        return SIZE_MAX;
    }
    for (uint64_t at = hash;; at++) {
        uint32_t i = o->index[at & o->index_mask];
        if (!i) return SIZE_MAX;
        if (is_key(&o->entries[i - 1], key, n_key, hash)) return i - 1;
    }
}

tn_lean_json *tn_lean_getn(const tn_lean_json *object, const char *key, size_t n_key) {
    if (!key || !tn_lean_is(object, TN_LEAN_OBJECT)) return NULL;
    size_t i = find(object, key, n_key, hash_of(key, n_key));
    return i < object->n ? object->entries[i].value : NULL;
}

tn_lean_json *tn_lean_get(const tn_lean_json *object, const char *key) {
    return key ? tn_lean_getn(object, key, strlen(key)) : NULL;
}

void *tn_lean_iter(tn_lean_json *object) {
    return tn_lean_size(object, TN_LEAN_OBJECT) ? object->entries : NULL;
}

void *tn_lean_iter_next(tn_lean_json *object, void *iter) {
    entry *next = (entry *)iter + 1;
    return next < object->entries + object->n ? next : NULL;
}

const char *tn_lean_iter_key(void *iter) { return ((entry *)iter)->key; }

bool tn_lean_each(const tn_lean_json *object, size_t *i, const char **key, tn_lean_json **value) {
    if (*i >= tn_lean_size(object, TN_LEAN_OBJECT)) return false;
    const entry *e = &object->entries[(*i)++];
    *key = e->key;
    *value = e->value;
    return true;
}

bool tn_lean_equal(const tn_lean_json *a, const tn_lean_json *b) {
    if (!a || !b || a->type != b->type) return false;
    if (a == b || a->type >= TN_LEAN_TRUE) return true;
    if (a->type == TN_LEAN_INTEGER) return a->integer == b->integer;
    if (a->type == TN_LEAN_REAL) return a->real == b->real;
    if (a->n != b->n) return false;
    if (a->type == TN_LEAN_STRING) return !memcmp(a->text, b->text, a->n);
    bool same = true;
    for (size_t i = 0; same && i < a->n; i++)
        same = a->type == TN_LEAN_ARRAY
                   ? tn_lean_equal(a->elements[i], b->elements[i])
                   : tn_lean_equal(a->entries[i].value, tn_lean_get(b, a->entries[i].key));
    return same;
}

/* ---- changing ---- */

static bool grow(void **items, size_t *cap, size_t n, size_t item_bytes) {
    if (n < *cap) return true;
    size_t more = *cap ? 2 * *cap : 4;
    void *p = more < UINT32_MAX / 2 ? realloc(*items, more * item_bytes) : NULL;
    if (!p) return false;
    *items = p;
    *cap = more;
    return true;
}

static void index_entry(tn_lean_json *o, size_t i) {
    uint64_t at = o->entries[i].hash;
    while (o->index[at & o->index_mask]) at++;
    o->index[at & o->index_mask] = (uint32_t)i + 1;
}

/* An index with room for twice the entries; false: no memory, and there is the old one. */
static bool reindex(tn_lean_json *o) {
    size_t size = 4 * FEW;
    while (size < 4 * o->n) size *= 2;
    uint32_t *index = calloc(size, sizeof *index);
    if (!index) return false;
    free(o->index);
    o->index = index;
    o->index_mask = size - 1;
    for (size_t i = 0; i < o->n; i++) index_entry(o, i);
    return true;
}

int tn_lean_set(tn_lean_json *object, const char *key, tn_lean_json *value) {
    bool possible = value && key && object != value && tn_lean_is(object, TN_LEAN_OBJECT);
    size_t n_key = possible ? strlen(key) : 0;
    uint64_t hash = possible ? hash_of(key, n_key) : 0;
    size_t i = possible ? find(object, key, n_key, hash) : SIZE_MAX;
    if (i != SIZE_MAX) {
        tn_lean_decref(object->entries[i].value);
        object->entries[i].value = value;
        return 0;
    }
    void *entries = possible ? object->entries : NULL;
    bool room = possible && grow(&entries, &object->cap, object->n, sizeof *object->entries);
    if (room) object->entries = entries;
    if (room && object->n >= FEW && (!object->index || 2 * object->n > object->index_mask))
        room = reindex(object);
    char *copy = room ? copy_text(key, n_key) : NULL;
    if (!copy) {
        tn_lean_decref(value);
        return -1;
    }
    object->entries[object->n++] = (entry){copy, n_key, hash, value};
    if (object->index) index_entry(object, object->n - 1);
    return 0;
}

int tn_lean_append(tn_lean_json *array, tn_lean_json *value) {
    bool possible = value && array != value && tn_lean_is(array, TN_LEAN_ARRAY);
    void *elements = possible ? array->elements : NULL;
    if (!possible || !grow(&elements, &array->cap, array->n, sizeof *array->elements)) {
        tn_lean_decref(value);
        return -1;
    }
    array->elements = elements;
    array->elements[array->n++] = value;
    return 0;
}

int tn_lean_delete(tn_lean_json *object, const char *key) {
    if (!key || !tn_lean_is(object, TN_LEAN_OBJECT)) return -1;
    size_t i = find(object, key, strlen(key), hash_of(key, strlen(key)));
    if (i == SIZE_MAX) return -1;
    free(object->entries[i].key);
    tn_lean_decref(object->entries[i].value);
    memmove(object->entries + i, object->entries + i + 1, (--object->n - i) * sizeof *object->entries);
    if (!object->index) return 0;
    memset(object->index, 0, (object->index_mask + 1) * sizeof *object->index);
    for (size_t k = 0; k < object->n; k++) index_entry(object, k);
    return 0;
}

int tn_lean_remove(tn_lean_json *array, size_t i) {
    if (i >= tn_lean_size(array, TN_LEAN_ARRAY)) return -1;
    tn_lean_decref(array->elements[i]);
    memmove(array->elements + i, array->elements + i + 1, (--array->n - i) * sizeof *array->elements);
    return 0;
}

/* Parts are shared, or copied too. */
static tn_lean_json *copy_value(const tn_lean_json *j, bool deep) {
    tn_lean_json *out = NULL;
    int bad = 0;
    switch (j->type) {
    case TN_LEAN_OBJECT:
        out = tn_lean_object();
        for (size_t i = 0; out && !bad && i < j->n; i++) {
            tn_lean_json *v = j->entries[i].value;
            bad = tn_lean_set(out, j->entries[i].key, deep ? copy_value(v, true) : tn_lean_incref(v));
        }
        break;
    case TN_LEAN_ARRAY:
        out = tn_lean_array();
        for (size_t i = 0; out && !bad && i < j->n; i++) {
            tn_lean_json *v = j->elements[i];
            bad = tn_lean_append(out, deep ? copy_value(v, true) : tn_lean_incref(v));
        }
        break;
    case TN_LEAN_STRING: return tn_lean_string(j->text, j->n);
    case TN_LEAN_INTEGER: return tn_lean_integer(j->integer);
    case TN_LEAN_REAL: return tn_lean_real(j->real);
    default: return &constants[j->type - TN_LEAN_TRUE];
    }
    if (bad) tn_lean_decref(out);
    return bad ? NULL : out;
}

tn_lean_json *tn_lean_copy(const tn_lean_json *j) { return j ? copy_value(j, false) : NULL; }
tn_lean_json *tn_lean_deep_copy(const tn_lean_json *j) { return j ? copy_value(j, true) : NULL; }

/* ---- writing ---- */

typedef struct writer {
    int (*write)(const char *piece, size_t n, void *user);
    void *user;
    size_t flags;
} writer;

static bool put(const writer *w, const char *text, size_t n) { return !n || !w->write(text, n, w->user); }

static bool put_string(const writer *w, const char *text, size_t n) {
    bool ok = put(w, "\"", 1);
    for (size_t i = 0, from = 0; ok && i <= n; i++) {
        uint8_t c = i < n ? (uint8_t)text[i] : '"';
        if (i < n && c >= 0x20 && c != '"' && c != '\\') continue;
        ok = put(w, text + from, i - from);
        from = i + 1;
        if (i == n || !ok) break;
        static const char plain[] = "\"\\\b\f\n\r\t", letters[] = "\"\\bfnrt";
        const char *at = c ? strchr(plain, c) : NULL;
        char escape[8];
        int len = at ? snprintf(escape, sizeof escape, "\\%c", letters[at - plain])
                     : snprintf(escape, sizeof escape, "\\u%04X", c);
        ok = put(w, escape, (size_t)len);
    }
    return ok && put(w, "\"", 1);
}

/* As C's %g, but a real stays one when it is read, and exponents have no plus and no leading zeros. */
static bool put_real(const writer *w, double v) {
    int digits = (int)(w->flags >> 16 & 31);
    char buf[48], out[48];
    snprintf(buf, sizeof buf, "%.*g", digits ? digits : 17, v);
    char *point = strchr(buf, *localeconv()->decimal_point);
    if (point) *point = '.';
    char *e = strchr(buf, 'e');
    if (!e) {
        int n = snprintf(out, sizeof out, "%s%s", buf, strchr(buf, '.') ? "" : ".0");
        return put(w, out, (size_t)n);
    }
    *e = 0;
    int n = snprintf(out, sizeof out, "%se%d", buf, (int)strtol(e + 1, NULL, 10));
    return put(w, out, (size_t)n);
}

static bool new_line(const writer *w, int depth, bool blank) {
    size_t spaces = (w->flags >> 8 & 31) * (size_t)depth;
    if (!(w->flags >> 8 & 31)) return !blank || w->flags & TN_LEAN_COMPACT || put(w, " ", 1);
    bool ok = put(w, "\n", 1);
    while (ok && spaces--) ok = put(w, " ", 1);
    return ok;
}

static bool put_value(const writer *w, const tn_lean_json *j, int depth) {
    char buf[32];
    if (depth > TN_LEAN_MAX_DEPTH) return false;
    if (j->type == TN_LEAN_STRING) return put_string(w, j->text, j->n);
    if (j->type == TN_LEAN_INTEGER) return put(w, buf, (size_t)snprintf(buf, sizeof buf, "%lld", j->integer));
    if (j->type == TN_LEAN_REAL) return put_real(w, j->real);
    if (j->type == TN_LEAN_TRUE) return put(w, "true", 4);
    if (j->type == TN_LEAN_FALSE) return put(w, "false", 5);
    if (j->type == TN_LEAN_NULL) return put(w, "null", 4);
    bool object = j->type == TN_LEAN_OBJECT;
    bool ok = put(w, object ? "{" : "[", 1);
    for (size_t i = 0; ok && i < j->n; i++) {
        ok = (!i || put(w, ",", 1)) && new_line(w, depth + 1, i > 0);
        if (ok && object)
            ok = put_string(w, j->entries[i].key, strlen(j->entries[i].key)) &&
                 put(w, ": ", w->flags & TN_LEAN_COMPACT ? 1 : 2);
        ok = ok && put_value(w, object ? j->entries[i].value : j->elements[i], depth + 1);
    }
    return ok && (!j->n || new_line(w, depth, false)) && put(w, object ? "}" : "]", 1);
}

int tn_lean_dump(const tn_lean_json *j, int (*write)(const char *piece, size_t n, void *user), void *user,
                 size_t flags) {
    const writer w = {write, user, flags};
    if (!j || (!(flags & TN_LEAN_ENCODE_ANY) && j->type > TN_LEAN_ARRAY)) return -1;
    return put_value(&w, j, 0) ? 0 : -1;
}
