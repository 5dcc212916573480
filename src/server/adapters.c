#include "server/adapters.h"

#include "engine/adapters.h"

#include <stdio.h>

tern_status tn_adapters_read(const tern_engine *e, const json_t *v, const tn_lora_mix *own, tn_lora_mix *out,
                             tern_error *err) {
    enum { EACH = TN_LORA_NAME + 32 };
    char text[TN_LORA_MIX * EACH] = "none";
    size_t n = 0;
    if (!v || json_is_null(v)) {
        *out = *own;
        return TERN_OK;
    }
    if (json_is_string(v)) return tn_mix_parse(e, json_string_value(v), out, err);
    TN_FAIL_IF(!json_is_array(v), err, TERN_E_INVALID,
               "'lora' must be a text or a list of {\"id\", \"scale\"}");
    TN_FAIL_IF(json_array_size(v) > TN_LORA_MIX, err, TERN_E_LIMIT, "'lora' has more than %d adapters",
               TN_LORA_MIX);
    for (size_t i = 0; i < json_array_size(v); i++) {
        const json_t *id = json_object_get(json_array_get(v, i), "id"),
                     *scale = json_object_get(json_array_get(v, i), "scale");
        const char *name = json_is_integer(id) && json_integer_value(id) >= 0
                               ? tern_engine_lora(e, (size_t)json_integer_value(id))
                               : NULL;
        TN_FAIL_IF(!name || !json_is_number(scale), err, TERN_E_INVALID,
                   "lora[%zu]: want the \"id\" of an adapter, counted from 0, and a \"scale\"", i);
        n += (size_t)snprintf(text + n, sizeof text - n, "%s%s:%.9g", i ? "," : "", name,
                              json_number_value(scale));
    }
    return tn_mix_parse(e, text, out, err);
}

json_t *tn_adapters_list(const tern_engine *e, const tn_lora_mix *mix) {
    json_t *list = json_array();
    const char *name;
    for (size_t i = 0; (name = tern_engine_lora(e, i)); i++) {
        double scale = 0;
        for (int32_t k = 0; k < mix->n; k++)
            if (mix->at[k]->name == name) scale = (double)mix->scale[k];
        const char *prefix = "", *task = tern_engine_lora_task(e, i, &prefix);
        tn_json_append(&list, tn_json_pack("{s:I, s:s, s:s, s:f, s:s, s:s}", "id", (json_int_t)i, "path",
                                           name, "name", name, "scale", scale, "task_name", task ? task : "",
                                           "prompt_prefix", prefix));
    }
    return list;
}
