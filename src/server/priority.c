#include "server/priority.h"

#include <string.h>

tern_status tn_priority_word(const char *word, int *out, tern_error *err) {
    static const char *const words[TN_PRIORITIES] = {"background", "ordinary", "interactive"};
    for (int i = 0; word && i < TN_PRIORITIES; i++) {
        if (strcmp(word, words[i]) != 0) continue;
        *out = i + TN_BACKGROUND;
        return TERN_OK;
    }
    TN_FAIL_IF(word, err, TERN_E_INVALID, "priority '%.40s': want interactive, ordinary or background", word);
    return TERN_OK;
}

tern_status tn_priority_read(const json_t *body, int *out, tern_error *err) {
    const json_t *p = json_object_get(body, "priority");
    const char *tier = json_string_value(json_object_get(body, "service_tier"));
    if (tier && !strcmp(tier, "priority")) *out = TN_INTERACTIVE;
    if (tier && !strcmp(tier, "flex")) *out = TN_BACKGROUND;
    if (!p || json_is_null(p)) return TERN_OK;
    if (json_is_integer(p)) {
        const json_int_t n = json_integer_value(p);
        *out = n < 0 ? TN_INTERACTIVE : n > 0 ? TN_BACKGROUND : TN_ORDINARY;
        return TERN_OK;
    }
    TN_FAIL_IF(!json_is_string(p), err, TERN_E_INVALID,
               "'priority' must be interactive, ordinary or background, or a whole number");
    return tn_priority_word(json_string_value(p), out, err);
}
