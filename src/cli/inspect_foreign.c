/* cli/inspect_foreign.c - what is in a GGUF file that tern does not run. */
#include "cli/args.h"
#include "cli/inspect.h"
#include "cli/output.h"

#include "base/json.h"
#include "formats/gguf.h"

#include <stdio.h>
#include <string.h>

/* A key's value: numbers and texts as they are, arrays by their length. */
static json_t *value_of(const tn_gguf *g, const char *key) {
    const char *text;
    size_t n;
    int64_t i;
    double x;
    bool on;
    if (tn_gguf_str(g, key, &text, &n)) return tn_json_pack("s%", text, n < 2000 ? n : (size_t)2000);
    if (tn_gguf_arr_n(g, key) >= 0) return tn_json_pack("{s:I}", "array", (json_int_t)tn_gguf_arr_n(g, key));
    if (tn_gguf_is_bool(g, key) && tn_gguf_bool(g, key, &on)) return json_boolean(on);
    if (tn_gguf_i64(g, key, &i)) return json_integer((json_int_t)i);
    if (tn_gguf_f64(g, key, &x)) return tn_json_pack("f", x);
    return json_null();
}

static json_t *keys_of(const tn_gguf *g) {
    json_t *all = json_object();
    for (size_t i = 0; all && i < tn_gguf_n_keys(g); i++) {
        char key[200];
        size_t n;
        const char *p = tn_gguf_key_at(g, i, &n);
        if (n >= sizeof key) continue;
        memcpy(key, p, n);
        key[n] = 0;
        tn_json_set(&all, key, value_of(g, key));
    }
    return all;
}

static json_t *tensors_of(const tn_gguf *g) {
    json_t *all = json_array();
    for (size_t i = 0; all && i < tn_gguf_n_tensors(g); i++) {
        const tn_tensor *t = tn_gguf_tensor_at(g, i);
        json_t *shape = json_array();
        for (int32_t d = 0; d < t->n_dims; d++) tn_json_append(&shape, json_integer((json_int_t)t->dims[d]));
        tn_json_append(&all, tn_json_pack("{s:s, s:s, s:o, s:I, s:I}", "name", t->name, "type",
                                          tn_dtype_name(t->dtype), "shape", shape, "offset",
                                          (json_int_t)t->off_bytes, "bytes", (json_int_t)t->size_bytes));
    }
    return all;
}

static uint64_t values_of(const tn_gguf *g) {
    uint64_t sum = 0;
    for (size_t i = 0; i < tn_gguf_n_tensors(g); i++) {
        const uint64_t *d = tn_gguf_tensor_at(g, i)->dims;
        sum += d[0] * d[1] * d[2] * d[3];
    }
    return sum;
}

static void print_value(const char *key, const json_t *v) {
    const char *text = json_string_value(v);
    size_t n = text ? strcspn(text, "\n") : 0;
    printf("%-44s ", cli_shown(key));
    if (text) printf("%.*s%s\n", n > 100 ? 100 : (int)n, text, text[n] || n > 100 ? "..." : "");
    else if (json_is_object(v)) printf("%lld values\n", json_integer_value(json_object_get(v, "array")));
    else if (json_is_integer(v)) printf("%lld\n", json_integer_value(v));
    else if (json_is_real(v)) printf("%.7g\n", json_real_value(v));
    else puts(json_is_true(v) ? "yes" : json_is_false(v) ? "no" : "?");
}

int cli_inspect_foreign(tn_ctx *ctx, const char *path, const tern_error *why, bool json, bool tensors) {
    tn_gguf *g;
    tern_error err;
    if (tn_gguf_open(ctx, path, &g, &err) != TERN_OK) return cli_failed(why);
    json_t *keys = keys_of(g), *list = tensors ? tensors_of(g) : NULL;
    int rc = keys && (list || !tensors) ? EXIT_OK : cli_failed_text("no memory to describe %s", path);
    const char *key;
    json_t *v;
    size_t i;
    if (rc == EXIT_OK && json) {
        json_t *j = tn_json_pack("{s:s, s:s, s:b, s:s, s:I, s:I, s:O}", "file", path, "format", "GGUF",
                                 "runs", 0, "why_not", why->message, "parameters", (json_int_t)values_of(g),
                                 "n_tensors", (json_int_t)tn_gguf_n_tensors(g), "metadata", keys);
        if (tensors) tn_json_set(&j, "tensors", json_incref(list));
        rc = cli_emit_json(j, JSON_INDENT(2) | JSON_REAL_PRECISION(7));
    } else if (rc == EXIT_OK) {
        printf("format         GGUF, version %u; tern does not run it\nparameters     %.1f million in %zu "
               "tensors\n\n",
               tn_gguf_version(g), (double)values_of(g) * 1e-6, tn_gguf_n_tensors(g));
        json_object_foreach(keys, key, v) print_value(key, v);
        json_array_foreach(list, i, v) printf(
            "%s%-44s %s, %lld bytes\n", i ? "" : "\n", json_string_value(json_object_get(v, "name")),
            json_string_value(json_object_get(v, "type")), json_integer_value(json_object_get(v, "bytes")));
        fflush(stdout);
        fprintf(stderr, "tern: %s\n", cli_shown(why->message));
    }
    json_decref(keys);
    json_decref(list);
    tn_gguf_close(&g);
    return rc;
}
