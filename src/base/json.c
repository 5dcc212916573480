#include "base/json.h"

#include "base/bytes.h"
#include "base/file.h"

#include <assert.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

/* Returns the number of bytes of the character at p[0..n), or 0 if it is invalid. */
static size_t char_bytes(const char *p, size_t n) {
    utf8proc_int32_t c;
    utf8proc_ssize_t len = utf8proc_iterate((const utf8proc_uint8_t *)p, (utf8proc_ssize_t)n, &c);
    return len > 0 ? (size_t)len : 0;
}

json_t *tn_json_string(const char *text, size_t n_bytes) {
    static const char unknown[] = "\xef\xbf\xbd";
    size_t n = 0;
    bool whole = true;
    for (size_t i = 0, len; i < n_bytes; i += len ? len : 1) {
        len = char_bytes(text + i, n_bytes - i);
        whole = whole && len;
        n += len ? len : 3;
    }
    if (whole) return json_stringn_nocheck(text, n_bytes);
    char *clean = malloc(n);
    if (!clean) return NULL;
    char *to = clean;
    for (size_t i = 0, len; i < n_bytes; i += len ? len : 1) {
        len = char_bytes(text + i, n_bytes - i);
        memcpy(to, len ? text + i : unknown, len ? len : 3);
        to += len ? len : 3;
    }
    json_t *j = json_stringn_nocheck(clean, n);
    free(clean);
    return j;
}

json_t *tn_json_real(double v) { return isfinite(v) ? json_real(v) : json_null(); }

void tn_json_set(json_t **object, const char *key, json_t *value) {
    assert(!*object || json_is_object(*object));
    if (*object && value && !json_object_set_new(*object, key, value)) return;
    if (!*object) json_decref(value); /* otherwise jansson has released it */
    json_decref(*object);
    *object = NULL;
}

void tn_json_append(json_t **array, json_t *value) {
    assert(!*array || json_is_array(*array));
    if (*array && value && !json_array_append_new(*array, value)) return;
    if (!*array) json_decref(value);
    json_decref(*array);
    *array = NULL;
}

static json_t *copy(const json_t *v, bool deep) {
    json_t *own = (json_t *)(uintptr_t)v; /* jansson has no const */
    if (!json_is_object(v) && !json_is_array(v)) return json_deep_copy(own);
    json_t *out = json_is_object(v) ? json_object() : json_array(), *x;
    const char *key;
    size_t i;
    json_object_foreach(own, key, x) tn_json_set(&out, key, deep ? copy(x, true) : json_incref(x));
    json_array_foreach(own, i, x) tn_json_append(&out, deep ? copy(x, true) : json_incref(x));
    return out;
}

json_t *tn_json_copy(const json_t *v) { return copy(v, true); }
json_t *tn_json_copy_flat(const json_t *v) { return copy(v, false); }

typedef struct packing {
    const char *at;
    va_list ap;
} packing;

static char next(packing *p) {
    while (*p->at == ' ' || *p->at == ',' || *p->at == ':') p->at++;
    return *p->at ? *p->at++ : 0;
}

static json_t *pack(packing *p, char kind) {
    switch (kind) {
    case 's': {
        const char *text = va_arg(p->ap, const char *);
        bool sized = *p->at == '%';
        if (sized) p->at++;
        return tn_json_string(text, sized ? va_arg(p->ap, size_t) : strlen(text));
    }
    case 'i': return json_integer(va_arg(p->ap, int));
    case 'I': return json_integer(va_arg(p->ap, json_int_t));
    case 'f': return tn_json_real(va_arg(p->ap, double));
    case 'b': return json_boolean(va_arg(p->ap, int));
    case 'o': return va_arg(p->ap, json_t *);
    case 'O': return json_incref(va_arg(p->ap, json_t *));
    case '{': {
        json_t *o = json_object(); /* the values are taken even if it is NULL */
        for (char c; (c = next(p)) != '}';) {
            assert(c == 's');
            (void)c;
            const char *key = va_arg(p->ap, const char *);
            tn_json_set(&o, key, pack(p, next(p)));
        }
        return o;
    }
    default: assert(!"a format of tn_json_pack"); return NULL;
    }
}

json_t *tn_json_pack(const char *fmt, ...) {
    packing p = {.at = fmt};
    va_start(p.ap, fmt);
    json_t *j = pack(&p, next(&p));
    va_end(p.ap);
    return j;
}

/* What failed stays so: jansson 2.14 continues after a key that could not be written. */
static int add_text(const char *piece, size_t n, void *user) {
    tn_bytes *t = user;
    return !t->failed && tn_bytes_add(t, piece, n) ? 0 : -1;
}

tern_status tn_json_text(const json_t *j, size_t flags, char **out, tern_error *err) {
    tn_bytes t = {0};
    bool ok = j && !json_dump_callback(j, add_text, &t, flags) && !t.failed && t.n;
    *out = ok ? t.p : NULL;
    if (!ok) free(t.p);
    TN_FAIL_IF(!ok, err, TERN_E_MEMORY, "no memory for the JSON text");
    return TERN_OK;
}

tern_status tn_json_read(const char *path, size_t flags, json_t **out, tern_error *err) {
    char *text;
    size_t n;
    json_error_t je;
    *out = NULL;
    TN_TRY(tn_file_slurp(path, TN_JSON_MAX_FILE, &text, &n, err));
    *out = tn_json_parse(text, n, flags, &je);
    free(text);
    if (*out) return TERN_OK;
    bool memory = json_error_code(&je) == json_error_out_of_memory;
    return tn_fail(err, memory ? TERN_E_MEMORY : TERN_E_FORMAT, "%s: line %d: %s", path, je.line, je.text);
}

bool tn_json_is_word(const json_t *o, const char *key, const char *word) {
    const char *s = json_string_value(json_object_get(o, key));
    return s && !strcmp(s, word);
}
