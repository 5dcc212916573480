/* text/toolcall_forms.c - reads one call as each family writes it, to a name and a JSON object. */
#include "base/hex.h"
#include "base/json.h"
#include "text/toolcall_impl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- a text that grows ----------------------------------------------------------------------------- */

void tn_sb_add(tn_sb *b, const char *s, size_t n) {
    if (b->failed || !n) return;
    if (b->n + n > b->cap) {
        size_t cap = 2 * (b->n + n) + 64;
        char *more = tn_realloc(b->ctx, TN_MEM_TEXT, b->p, cap, 1);
        if (!more) {
            b->failed = true;
            return;
        }
        b->p = more;
        b->cap = cap;
    }
    memcpy(b->p + b->n, s, n);
    b->n += n;
}

void tn_sb_put(tn_sb *b, const char *s) { tn_sb_add(b, s, strlen(s)); }

void tn_sb_json(tn_sb *b, const char *s, size_t n) {
    tn_sb_add(b, "\"", 1);
    for (size_t i = 0; i < n; i++) {
        unsigned char c = (unsigned char)s[i];
        char code[8];
        if (c == '"' || c == '\\') snprintf(code, sizeof code, "\\%c", c);
        else if (c == '\n') snprintf(code, sizeof code, "\\n");
        else if (c < 0x20 || c == 0x7f) snprintf(code, sizeof code, "\\u%04x", c);
        else {
            tn_sb_add(b, s + i, 1);
            continue;
        }
        tn_sb_put(b, code);
    }
    tn_sb_add(b, "\"", 1);
}

void tn_sb_free(tn_sb *b) {
    tn_free(b->ctx, b->p);
    b->p = NULL;
    b->n = b->cap = 0;
}

/* ---- what is common -------------------------------------------------------------------------------- */

static bool is_space(char c) { return c == ' ' || c == '\n' || c == '\t' || c == '\r'; }
static bool is_digit(char c) { return c >= '0' && c <= '9'; }
static bool is_word(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || is_digit(c) || c == '_' || c == '-' ||
           c == '.';
}

const json_t *tn_tools_find(const json_t *tools, const char *name, size_t n) {
    for (size_t i = 0; i < json_array_size(tools); i++) {
        const json_t *f = json_object_get(json_array_get(tools, i), "function"),
                     *s = json_object_get(f, "name");
        if (json_string_length(s) == n && n && !memcmp(json_string_value(s), name, n)) return f;
    }
    return NULL;
}

static bool may_call(const tn_calls *c, const char *name, size_t n) {
    return n && n < TN_CALL_NAME_MAX && !memchr(name, 0, n) &&
           (!c->tools || tn_tools_find(c->tools, name, n));
}

/* Reads JSON, or returns NULL. Out of memory is distinguished from invalid JSON. */
static json_t *load(tn_sb *b, const char *p, size_t n, size_t flags) {
    json_error_t je;
    json_t *v = tn_json_parse(p, n, flags | JSON_DECODE_INT_AS_REAL, &je);
    if (!v && json_error_code(&je) == json_error_out_of_memory) b->failed = true;
    return v;
}

/* Appends a call with the arguments p[0..n), which must be a JSON object. Checked here, so that the receiver
 * can parse it. */
static bool add_call(tn_calls *c, const char *name, size_t n_name, const char *p, size_t n) {
    json_t *v = load(&c->text, p, n, 0);
    bool ok = json_is_object(v);
    json_decref(v);
    if (!ok || !may_call(c, name, n_name)) return false;
    tn_sb_add(&c->text, name, n_name);
    tn_sb_add(&c->text, "", 1);
    tn_sb_add(&c->text, p, n);
    tn_sb_add(&c->text, "", 1);
    c->n++;
    return !c->text.failed;
}

/* Appends all that `read` appends, or nothing. */
static bool all_or_none(tn_calls *c, bool (*read)(tn_calls *, const char *, size_t), const char *p,
                        size_t n) {
    size_t n_text = c->text.n, n_calls = c->n;
    if (read(c, p, n) && c->n > n_calls) return true;
    c->text.n = n_text;
    c->n = n_calls;
    return false;
}

/* ---- JSON ------------------------------------------------------------------------------------------ */

/* Escapes raw line ends, which small models write inside strings. */
static bool mend(tn_sb *out, const char *p, size_t n) {
    bool in = false;
    for (size_t i = 0; i < n; i++) {
        char code[8];
        if (in && (unsigned char)p[i] < 0x20) {
            snprintf(code, sizeof code, "\\u%04x", (unsigned)p[i]);
            tn_sb_put(out, code);
            continue;
        }
        if (in && p[i] == '\\' && i + 1 < n) tn_sb_add(out, p + i++, 1);
        else if (p[i] == '"') in = !in;
        tn_sb_add(out, p + i, 1);
    }
    return !out->failed;
}

/* Finds the end of the JSON value at p, which is JSON. */
static const char *value_end(const char *p, const char *end) {
    int depth = 0;
    for (; p < end; p++) {
        if (*p == '"') {
            for (p++; p < end && *p != '"'; p++) p += *p == '\\';
            if (!depth) return p + 1;
        } else if (*p == '{' || *p == '[') {
            depth++;
        } else if (*p == '}' || *p == ']') {
            if (!depth) return p;
            if (!--depth) return p + 1;
        } else if (!depth && (*p == ',' || is_space(*p))) {
            return p;
        }
    }
    return end;
}

static const char *blanks(const char *p, const char *end) {
    while (p < end && is_space(*p)) p++;
    return p;
}

/* Finds the text of the value of the first of two keys (other NULL: of one) in the JSON object at p. Keys written with
 * escapes are not found. */
static bool member_of(const char *p, const char *end, const char *key, const char *other, const char **from,
                      const char **to) {
    size_t n = strlen(key), n_other = other ? strlen(other) : 0;
    for (p = blanks(p + 1, end); p < end && *p == '"'; p = blanks(p, end)) {
        const char *k = p + 1, *k_end = value_end(p, end) - 1;
        p = blanks(k_end + 1, end);
        *from = blanks(p + 1, end);
        *to = p = value_end(*from, end);
        if ((size_t)(k_end - k) == n && !memcmp(k, key, n)) return true;
        if (other && (size_t)(k_end - k) == n_other && !memcmp(k, other, n_other)) return true;
        p = blanks(p, end);
        if (p < end && *p == ',') p++;
    }
    return false;
}

static bool member(const char *p, const char *end, const char *key, const char **from, const char **to) {
    return member_of(p, end, key, NULL, from, to);
}

static bool call_object(tn_calls *c, const char *p, const char *end) {
    const char *from, *to, *inner, *inner_end;
    if (!member(p, end, "name", &from, &to) && member(p, end, "function", &inner, &inner_end) &&
        *inner == '{')
        p = inner, end = inner_end;
    if (!member(p, end, "name", &from, &to) && !member(p, end, "function", &from, &to)) return false;
    json_t *name = load(&c->text, from, (size_t)(to - from), JSON_DECODE_ANY);
    bool ok = json_is_string(name);
    json_t *text = NULL;
    const char *args = "{}";
    size_t n_args = 2;
    if (member_of(p, end, "arguments", "parameters", &from, &to)) {
        args = from;
        n_args = (size_t)(to - from);
        if (*from == '"' && (text = load(&c->text, from, n_args, JSON_DECODE_ANY))) { /* JSON in a string */
            args = json_string_value(text);
            n_args = json_string_length(text);
        } else if (n_args == 4 && !memcmp(from, "null", 4)) {
            args = "{}";
            n_args = 2;
        }
    }
    ok = ok && add_call(c, json_string_value(name), json_string_length(name), args, n_args);
    json_decref(name);
    json_decref(text);
    return ok;
}

static bool read_json(tn_calls *c, const char *p, size_t n) {
    json_t *v = load(&c->text, p, n, 0);
    bool array = json_is_array(v), ok = array || json_is_object(v);
    json_decref(v);
    const char *end = p + n;
    p = blanks(p, end);
    if (!ok) return false;
    if (!array) return call_object(c, p, end);
    for (p = blanks(p + 1, end); p < end && *p == '{'; p = blanks(p, end)) {
        const char *to = value_end(p, end);
        if (!call_object(c, p, to)) return false;
        p = blanks(to, end);
        if (p < end && *p == ',') p++;
    }
    return p < end && *p == ']';
}

/* Reads it as it is, or else mended. */
static bool mended(tn_calls *c, bool (*read)(tn_calls *, const char *, size_t), const char *p, size_t n) {
    if (all_or_none(c, read, p, n)) return true;
    tn_sb b = {.ctx = c->text.ctx};
    bool ok = mend(&b, p, n) && b.n != n && all_or_none(c, read, b.p, b.n);
    if (b.failed) c->text.failed = true;
    tn_sb_free(&b);
    return ok;
}

bool tn_calls_json(tn_calls *c, const char *p, size_t n) { return mended(c, read_json, p, n); }

bool tn_calls_arguments(tn_calls *c, const char *name, size_t n_name, const char *p, size_t n) {
    const char *end = p + n;
    p = blanks(p, end);
    while (end > p && is_space(end[-1])) end--;
    n = (size_t)(end - p);
    if (!n) return add_call(c, name, n_name, "{}", 2);
    if (add_call(c, name, n_name, p, n)) return true;
    tn_sb b = {.ctx = c->text.ctx};
    bool ok = mend(&b, p, n) && b.n != n && add_call(c, name, n_name, b.p, b.n);
    if (b.failed) c->text.failed = true;
    tn_sb_free(&b);
    return ok;
}

/* ---- values as Python and Gemma write them ---------------------------------------------------------- */

typedef struct reader {
    const char *p, *end;
    tn_sb *out;
    bool gemma;
    int depth;
} reader;

static bool value(reader *r);

static void skip_blanks(reader *r) { r->p = blanks(r->p, r->end); }

static bool starts(const reader *r, const char *word) {
    size_t n = strlen(word);
    return (size_t)(r->end - r->p) >= n && !memcmp(r->p, word, n);
}

static int hex(const char *p, const char *end, int digits) {
    int v = 0;
    if (end - p < digits) return -1;
    for (int i = 0; i < digits; i++) {
        int d = tn_hex_digit(p[i]);
        if (d < 0) return -1;
        v = v * 16 + d;
    }
    return v;
}

/* Reads 'text' or "text" with Python's escapes. */
static bool quoted(reader *r) {
    char q = *r->p++;
    tn_sb_add(r->out, "\"", 1);
    for (; r->p < r->end && *r->p != q; r->p++) {
        char code[16];
        unsigned char c = (unsigned char)*r->p;
        int v = -1;
        if (c == '\\' && r->p + 1 < r->end) {
            static const char from[] = "nrtbf0", to[] = "\n\r\t\b\f";
            const char *at = strchr(from, *++r->p);
            c = (unsigned char)*r->p;
            if (at && c) c = (unsigned char)to[at - from];
            else if (c == 'x' && (v = hex(r->p + 1, r->end, 2)) >= 0) r->p += 2;
            else if (c == 'u' && (v = hex(r->p + 1, r->end, 4)) >= 0) r->p += 4;
            else if (c != '\\' && c != '\'' && c != '"' && c != '\n') tn_sb_put(r->out, "\\\\");
            if (c == '\n') continue;
        }
        if (v >= 0) snprintf(code, sizeof code, "\\u%04x", v);
        else if (c == '"' || c == '\\') snprintf(code, sizeof code, "\\%c", c);
        else if (c < 0x20) snprintf(code, sizeof code, "\\u%04x", c);
        else snprintf(code, sizeof code, "%c", c);
        tn_sb_put(r->out, code);
    }
    tn_sb_add(r->out, "\"", 1);
    return r->p < r->end && *r->p++ == q;
}

static bool escaped(reader *r) { /* <escape>text<escape> */
    static const char mark[] = "<escape>";
    r->p += 8;
    const char *to = memmem(r->p, (size_t)(r->end - r->p), mark, 8);
    if (!to) return false;
    tn_sb_json(r->out, r->p, (size_t)(to - r->p));
    r->p = to + 8;
    return true;
}

/* Reads a JSON number, true, false or none. For Gemma any other bare text is a string. */
static bool bare(reader *r) {
    static const char *const words[][2] = {{"True", "true"}, {"False", "false"}, {"None", "null"},
                                           {"true", "true"}, {"false", "false"}, {"null", "null"}};
    const char *from = r->p;
    while (r->p < r->end && !strchr(r->gemma ? ",]}" : ",]}):", *r->p) && (r->gemma || !is_space(*r->p)))
        r->p++;
    const char *to = r->p;
    while (to > from && is_space(to[-1])) to--;
    size_t n = (size_t)(to - from);
    for (int i = 0; i < 6; i++) {
        if (n != strlen(words[i][0]) || memcmp(from, words[i][0], n)) continue;
        tn_sb_put(r->out, words[i][1]);
        return true;
    }
    json_t *v = n && n < 400 ? load(r->out, from, n, JSON_DECODE_ANY) : NULL;
    bool number = json_is_number(v);
    json_decref(v);
    if (number) tn_sb_add(r->out, from, n);
    else if (r->gemma && n) tn_sb_json(r->out, from, n);
    return number || (r->gemma && n);
}

static bool list(reader *r) {
    char close = *r->p++ == '(' ? ')' : ']';
    tn_sb_add(r->out, "[", 1);
    skip_blanks(r);
    for (bool first = true; r->p < r->end && *r->p != close; first = false) {
        if (!first) tn_sb_add(r->out, ",", 1);
        if (!value(r)) return false;
        skip_blanks(r);
        if (r->p < r->end && *r->p == ',') {
            r->p++;
            skip_blanks(r);
        } else if (r->p >= r->end || *r->p != close) {
            return false;
        }
    }
    tn_sb_add(r->out, "]", 1);
    return r->p < r->end && *r->p++ == close;
}

/* Reads key: value, between braces. Keys are quoted, or bare for Gemma. */
static bool dict(reader *r) {
    r->p++;
    tn_sb_add(r->out, "{", 1);
    skip_blanks(r);
    for (bool first = true; r->p < r->end && *r->p != '}'; first = false) {
        if (!first) tn_sb_add(r->out, ",", 1);
        if (*r->p == '"' || *r->p == '\'') {
            if (!quoted(r)) return false;
        } else if (r->gemma && starts(r, "<escape>")) {
            if (!escaped(r)) return false;
        } else {
            const char *from = r->p;
            while (r->p < r->end && is_word(*r->p)) r->p++;
            if (!r->gemma || r->p == from) return false;
            tn_sb_json(r->out, from, (size_t)(r->p - from));
        }
        skip_blanks(r);
        if (r->p >= r->end || *r->p++ != ':') return false;
        tn_sb_add(r->out, ":", 1);
        if (!value(r)) return false;
        skip_blanks(r);
        if (r->p < r->end && *r->p == ',') {
            r->p++;
            skip_blanks(r);
        } else if (r->p >= r->end || *r->p != '}') {
            return false;
        }
    }
    tn_sb_add(r->out, "}", 1);
    return r->p < r->end && *r->p++ == '}';
}

static bool value(reader *r) {
    skip_blanks(r);
    if (r->p >= r->end || r->depth >= TN_CALL_DEPTH) return false;
    r->depth++;
    bool ok = *r->p == '{'                                   ? dict(r)
              : *r->p == '[' || (*r->p == '(' && !r->gemma)  ? list(r)
              : r->gemma && starts(r, "<escape>")            ? escaped(r)
              : *r->p == '"' || (*r->p == '\'' && !r->gemma) ? quoted(r)
                                                             : bare(r);
    r->depth--;
    return ok;
}

static bool read_gemma(tn_calls *c, const char *p, size_t n) {
    tn_sb args = {.ctx = c->text.ctx};
    reader r = {.p = p, .end = p + n, .out = &args, .gemma = true};
    if (starts(&r, "call:")) r.p += 5;
    skip_blanks(&r);
    const char *name = r.p;
    while (r.p < r.end && is_word(*r.p)) r.p++;
    size_t n_name = (size_t)(r.p - name);
    skip_blanks(&r);
    bool ok = r.p < r.end && *r.p == '{' && value(&r);
    skip_blanks(&r);
    ok = ok && r.p == r.end && add_call(c, name, n_name, args.p, args.n);
    if (args.failed) c->text.failed = true;
    tn_sb_free(&args);
    return ok;
}

bool tn_calls_gemma(tn_calls *c, const char *p, size_t n) { return all_or_none(c, read_gemma, p, n); }

/* Returns the name of the i-th argument, for those given by their place. */
static const char *argument_name(const tn_calls *c, const char *name, size_t n_name, size_t i) {
    const json_t *f = tn_tools_find(c->known, name, n_name);
    json_t *props = json_object_get(json_object_get(f, "parameters"), "properties");
    void *it = json_object_iter(props);
    while (it && i--) it = json_object_iter_next(props, it);
    return it ? json_object_iter_key(it) : NULL;
}

/* Reads name(a=1, b='x'). */
static bool python_call(tn_calls *c, reader *r) {
    const char *name = r->p;
    while (r->p < r->end && is_word(*r->p)) r->p++;
    size_t n_name = (size_t)(r->p - name);
    if (n_name > 5 && !memcmp(name + n_name - 5, ".call", 5)) n_name -= 5;
    skip_blanks(r);
    if (!n_name || r->p >= r->end || *r->p++ != '(') return false;
    tn_sb_add(r->out, "{", 1);
    skip_blanks(r);
    for (size_t i = 0; r->p < r->end && *r->p != ')'; i++) {
        const char *key = r->p;
        while (r->p < r->end && is_word(*r->p)) r->p++;
        size_t n_key = (size_t)(r->p - key);
        skip_blanks(r);
        if (i) tn_sb_add(r->out, ",", 1);
        if (n_key && r->p < r->end && *r->p == '=') {
            r->p++;
            tn_sb_json(r->out, key, n_key);
        } else {
            const char *by_place = argument_name(c, name, n_name, i);
            if (!by_place) return false;
            r->p = key;
            tn_sb_json(r->out, by_place, strlen(by_place));
        }
        tn_sb_add(r->out, ":", 1);
        if (!value(r)) return false;
        skip_blanks(r);
        if (r->p < r->end && *r->p == ',') {
            r->p++;
            skip_blanks(r);
        } else if (r->p >= r->end || *r->p != ')') {
            return false;
        }
    }
    tn_sb_add(r->out, "}", 1);
    return r->p < r->end && *r->p++ == ')' && !r->out->failed &&
           add_call(c, name, n_name, r->out->p, r->out->n);
}

static bool read_python(tn_calls *c, const char *p, size_t n) {
    tn_sb args = {.ctx = c->text.ctx};
    reader r = {.p = p, .end = p + n, .out = &args};
    skip_blanks(&r);
    bool list = r.p < r.end && *r.p == '[', ok;
    r.p += list;
    do {
        args.n = 0;
        skip_blanks(&r);
        ok = python_call(c, &r);
        skip_blanks(&r);
    } while (ok && list && r.p < r.end && *r.p == ',' && r.p++);
    if (ok && list) ok = r.p < r.end && *r.p++ == ']';
    skip_blanks(&r);
    ok = ok && r.p == r.end;
    if (args.failed) c->text.failed = true;
    tn_sb_free(&args);
    return ok;
}

bool tn_calls_python(tn_calls *c, const char *p, size_t n) { return all_or_none(c, read_python, p, n); }

bool tn_calls_code(tn_calls *c, const char *p, size_t n) {
    static const char *const names[] = {"python", "code_interpreter", "ipython"};
    for (int i = 0; i < 3; i++) {
        const json_t *f = tn_tools_find(c->known, names[i], strlen(names[i]));
        const char *key = f ? argument_name(c, names[i], strlen(names[i]), 0) : NULL;
        if (!f) continue;
        tn_sb args = {.ctx = c->text.ctx};
        tn_sb_put(&args, "{");
        tn_sb_json(&args, key ? key : "code", strlen(key ? key : "code"));
        tn_sb_put(&args, ":");
        tn_sb_json(&args, p, n);
        tn_sb_put(&args, "}");
        bool ok = !args.failed && add_call(c, names[i], strlen(names[i]), args.p, args.n);
        if (args.failed) c->text.failed = true;
        tn_sb_free(&args);
        return ok;
    }
    return false;
}

/* ---- <function=NAME><parameter=KEY> ... --------------------------------------------------------------- */

/* jansson gives values by keys with a length from 2.14 on, and Ubuntu 22.04 has 2.13. */
static const json_t *value_of(json_t *object, const char *key, size_t n_key) {
    const char *k;
    json_t *v;
    json_object_foreach(object, k, v) if (strlen(k) == n_key && !memcmp(k, key, n_key)) return v;
    return NULL;
}

/* Writes a value: as a string if the tool says so or it is not JSON. */
static void xml_value(tn_sb *out, const json_t *f, const char *key, size_t n_key, const char *p, size_t n) {
    json_t *props = json_object_get(json_object_get(f, "parameters"), "properties");
    const json_t *type = json_object_get(value_of(props, key, n_key), "type");
    bool is_text = json_is_string(type) && !strcmp(json_string_value(type), "string");
    json_t *v = is_text ? NULL : load(out, p, n, JSON_DECODE_ANY);
    if (v && f) tn_sb_add(out, p, n);
    else tn_sb_json(out, p, n);
    json_decref(v);
}

static bool read_xml(tn_calls *c, const char *p, size_t n) {
    static const char open[] = "<parameter=", close[] = "</parameter>", last[] = "</function>";
    const char *end = p + n, *name = p + strlen("<function=");
    if (end <= name || memcmp(p, "<function=", 10)) return false;
    const char *to = memchr(name, '>', (size_t)(end - name));
    if (!to) return false;
    size_t n_name = (size_t)(to - name);
    const json_t *f = tn_tools_find(c->known, name, n_name);
    p = blanks(to + 1, end);
    if (p < end && *p == '{') /* <function=NAME>{...}</function> */
        return end - p > 11 && tn_calls_arguments(c, name, n_name, p, (size_t)(end - p) - strlen(last));
    tn_sb args = {.ctx = c->text.ctx};
    bool ok = true;
    tn_sb_put(&args, "{");
    for (bool first = true; (size_t)(end - p) >= sizeof open - 1 && !memcmp(p, open, sizeof open - 1);
         first = false) {
        const char *key = p + sizeof open - 1, *v = memchr(key, '>', (size_t)(end - key)), *v_end;
        ok = v && (v_end = memmem(v, (size_t)(end - v), close, sizeof close - 1)) != NULL;
        if (!ok) break;
        p = blanks(v_end + sizeof close - 1, end);
        size_t n_key = (size_t)(v - key);
        v++;
        if (v < v_end && *v == '\n') v++;
        if (v < v_end && v_end[-1] == '\n') v_end--;
        if (!first) tn_sb_put(&args, ",");
        tn_sb_json(&args, key, n_key);
        tn_sb_put(&args, ":");
        xml_value(&args, f, key, n_key, v, (size_t)(v_end - v));
    }
    tn_sb_put(&args, "}");
    ok = ok && (size_t)(end - p) == sizeof last - 1 && !memcmp(p, last, sizeof last - 1) && !args.failed &&
         add_call(c, name, n_name, args.p, args.n);
    if (args.failed) c->text.failed = true;
    tn_sb_free(&args);
    return ok;
}

bool tn_calls_xml(tn_calls *c, const char *p, size_t n) { return all_or_none(c, read_xml, p, n); }
