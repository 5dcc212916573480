/* text/jinja/json.c - the tojson filter as Hugging Face has it: json.dumps without ASCII escapes. */
#include "text/jinja/impl.h"

#include <math.h>
#include <stdio.h>

typedef struct writer {
    tn_jinja *j;
    tn_jbuf *b;
    const tn_jstr *item, *key, *indent; /* separators; indent NULL: one line */
    bool ascii, sort;
} writer;

static void put_string(const writer *w, const tn_jstr *s) {
    size_t hint = 0;
    tn_jsteps(w->j, s->n);
    tn_jbuf_text(w->j, w->b, "\"");
    for (size_t i = 0, len; i < s->n; i += len) {
        uint32_t cp;
        char esc[16];
        bool content = tn_jstr_content(s, i, &hint);
        len = tn_jstr_char(s, i, &cp);
        if (cp == '"' || cp == '\\') snprintf(esc, sizeof esc, "\\%c", (int)cp);
        else if (cp == '\n') strcpy(esc, "\\n");
        else if (cp == '\r') strcpy(esc, "\\r");
        else if (cp == '\t') strcpy(esc, "\\t");
        else if (cp == '\b') strcpy(esc, "\\b");
        else if (cp == '\f') strcpy(esc, "\\f");
        else if (cp < 0x20 || (w->ascii && cp > 0x7e && cp < 0x10000))
            snprintf(esc, sizeof esc, "\\u%04x", cp);
        else if (w->ascii && cp > 0xffff)
            snprintf(esc, sizeof esc, "\\u%04x\\u%04x", 0xd800 + ((cp - 0x10000) >> 10),
                     0xdc00 + ((cp - 0x10000) & 0x3ff));
        else {
            tn_jbuf_bytes(w->j, w->b, s->p + i, len, content);
            continue;
        }
        tn_jbuf_bytes(w->j, w->b, esc, strlen(esc), content);
    }
    tn_jbuf_text(w->j, w->b, "\"");
}

static void new_line(const writer *w, int depth) {
    if (!w->indent) return;
    tn_jbuf_text(w->j, w->b, "\n");
    while (depth-- > 0) tn_jbuf_str(w->j, w->b, w->indent);
}

static void put_value(const writer *w, tn_jval v, int depth);

static int key_order(tn_jinja *j, const tn_jdict *d, size_t x, size_t y) {
    return tn_j_order(j, d->keys[x], d->keys[y], "sort_keys");
}

static void put_dict(const writer *w, const tn_jdict *d, int depth) {
    size_t *order = tn_jalloc(w->j, d->n, sizeof *order);
    for (size_t i = 0; i < d->n; i++) {
        size_t k = i;
        if (w->sort) tn_jsteps(w->j, i);
        for (; w->sort && k > 0 && key_order(w->j, d, order[k - 1], i) > 0; k--) order[k] = order[k - 1];
        order[k] = i;
    }
    tn_jbuf_text(w->j, w->b, "{");
    for (size_t i = 0; i < d->n; i++) {
        tn_jval key = d->keys[order[i]];
        if (i) tn_jbuf_str(w->j, w->b, w->item);
        new_line(w, depth + 1);
        if (key.type == J_STRING) {
            put_string(w, key.u.s);
        } else { /* numbers, booleans and null, in quotes */
            tn_jbuf_text(w->j, w->b, "\"");
            put_value(w, key, depth);
            tn_jbuf_text(w->j, w->b, "\"");
        }
        tn_jbuf_str(w->j, w->b, w->key);
        put_value(w, d->vals[order[i]], depth + 1);
    }
    if (d->n) new_line(w, depth);
    tn_jbuf_text(w->j, w->b, "}");
}

static void put_list(const writer *w, const tn_jlist *l, int depth) {
    tn_jbuf_text(w->j, w->b, "[");
    for (size_t i = 0; i < l->n; i++) {
        if (i) tn_jbuf_str(w->j, w->b, w->item);
        new_line(w, depth + 1);
        put_value(w, l->v[i], depth + 1);
    }
    if (l->n) new_line(w, depth);
    tn_jbuf_text(w->j, w->b, "]");
}

static void put_value(const writer *w, tn_jval v, int depth) {
    tn_jenter(w->j);
    switch (v.type) {
    case J_NONE: tn_jbuf_text(w->j, w->b, "null"); break;
    case J_BOOL: tn_jbuf_text(w->j, w->b, v.u.b ? "true" : "false"); break;
    case J_STRING: put_string(w, v.u.s); break;
    case J_LIST:
        if (v.u.l->kind > J_TUPLE)
            tn_jfail(w->j, TERN_E_INVALID, "tojson of %s: | list makes it a list", tn_j_type_name(v));
        put_list(w, v.u.l, depth);
        break;
    case J_DICT: put_dict(w, v.u.d, depth); break;
    case J_FLOAT:
        if (isnan(v.u.f) || isinf(v.u.f)) {
            tn_jbuf_text(w->j, w->b, isnan(v.u.f) ? "NaN" : v.u.f < 0 ? "-Infinity" : "Infinity");
            break;
        } /* fall through */
    case J_INT: tn_j_repr(w->j, w->b, v); break;
    default:
        tn_jfail(w->j, TERN_E_INVALID, "tojson of %s", v.type == J_UNDEFINED ? v.u.what : tn_j_type_name(v));
    }
    tn_jleave(w->j);
}

const tn_jstr *tn_j_to_json(tn_jinja *j, tn_jval v, const tn_jargs *a) {
    const tn_jval *p[TN_J_MAX_PARAMS];
    tn_jbuf b = {0};
    tn_jbind(j, "tojson", a, "ensure_ascii indent separators sort_keys", p);
    writer w = {.j = j, .b = &b, .ascii = p[0] && tn_j_truth(j, *p[0]), .sort = p[3] && tn_j_truth(j, *p[3])};
    if (p[1] && p[1]->type == J_STRING) {
        w.indent = p[1]->u.s;
    } else if (p[1] && p[1]->type != J_NONE) {
        int64_t n = tn_j_as_int(j, *p[1], "tojson's indent");
        if (n > 64) tn_jfail(j, TERN_E_LIMIT, "tojson's indent is %lld, at most 64", (long long)n);
        char spaces[64];
        memset(spaces, ' ', sizeof spaces);
        w.indent = tn_jstr_copy(j, spaces, n > 0 ? (size_t)n : 0, false);
    }
    w.item = tn_jstr_span(j, w.indent ? "," : ", ", w.indent ? 1 : 2, false);
    w.key = tn_jstr_span(j, ": ", 2, false);
    if (p[2] && p[2]->type != J_NONE) {
        if (p[2]->type != J_LIST || p[2]->u.l->n != 2)
            tn_jfail(j, TERN_E_INVALID, "tojson's separators are two strings");
        w.item = tn_j_need_str(j, p[2]->u.l->v[0], "tojson's separator");
        w.key = tn_j_need_str(j, p[2]->u.l->v[1], "tojson's separator");
    }
    put_value(&w, v, 0);
    return tn_jbuf_take(j, &b);
}
