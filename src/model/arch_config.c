/* Readers of a config.json. */
#include "model/arch_config.h"

#include "base/status.h"

#include <math.h>

double tn_config_number(tn_config *c, const json_t *o, const char *key, bool required, double fallback) {
    const json_t *v = json_object_get(o, key);
    if (json_is_number(v) && isfinite(json_number_value(v))) return json_number_value(v);
    if ((required || (v && !json_is_null(v))) && c->st == TERN_OK) {
        c->st =
            tn_fail(c->err, TERN_E_FORMAT, "%s: '%s' is %s", c->file, key, v ? "not a number" : "missing");
    }
    return fallback;
}

int32_t tn_config_whole(tn_config *c, const char *key, bool required, int32_t fallback) {
    double v = tn_config_number(c, c->o, key, required, fallback);
    bool in_range = v >= -1 && v <= INT32_MAX;
    if ((!in_range || v != floor(v)) && c->st == TERN_OK) {
        c->st = tn_fail(c->err, TERN_E_FORMAT, "%s: '%s' is %g, %s", c->file, key, v,
                        in_range ? "not a whole number" : "out of range");
    }
    return in_range ? (int32_t)v : -1;
}

double tn_config_first(tn_config *c, const char *const *keys, double fallback) {
    for (; *keys; keys++) {
        const json_t *v = json_object_get(c->o, *keys);
        if (v && !json_is_null(v)) return tn_config_number(c, c->o, *keys, false, fallback);
    }
    return fallback;
}

bool tn_config_is(const tn_config *c, const char *key) { return json_is_true(json_object_get(c->o, key)); }

int32_t tn_config_same(tn_config *c, const char *key, bool required, int32_t fallback) {
    const json_t *all = json_object_get(c->o, key), *v;
    size_t i;
    if (!json_is_array(all)) return tn_config_whole(c, key, required, fallback);
    json_int_t first = json_integer_value(json_array_get(all, 0));
    bool same = first > 0 && first <= INT32_MAX;
    json_array_foreach(all, i, v) same = same && json_is_integer(v) && json_integer_value(v) == first;
    if (!same && c->st == TERN_OK)
        c->st = tn_fail(c->err, TERN_E_UNSUPPORTED, "%s: '%s' is not the same number in all layers", c->file,
                        key);
    return same ? (int32_t)first : -1;
}

int32_t tn_config_first_whole(tn_config *c, const char *const *keys, bool required, int32_t fallback) {
    for (const char *const *k = keys; *k; k++) {
        const json_t *v = json_object_get(c->o, *k);
        if (v && !json_is_null(v)) return tn_config_same(c, *k, required, fallback);
    }
    return tn_config_whole(c, keys[0], required, fallback);
}

int32_t tn_config_layers(const json_t *ids, int32_t shift, int32_t from[TN_MAX_TAPS]) {
    const size_t n = json_array_size(ids);
    if (n > TN_MAX_TAPS) return 0;
    for (size_t i = 0; i < n; i++) {
        const json_t *id = json_array_get(ids, i);
        if (!json_is_integer(id) || json_integer_value(id) < 1 - shift ||
            json_integer_value(id) >= TN_MAX_LAYERS)
            return 0;
        from[i] = (int32_t)json_integer_value(id) + shift;
    }
    return (int32_t)n;
}
