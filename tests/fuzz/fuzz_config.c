/* Any bytes as a config.json: hyperparameters within bounds or a clear error. */
#include "model/arch.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    json_t *j = json_loadb((const char *)data, size, 0, NULL);
    const char *type = json_string_value(json_object_get(j, "model_type"));
    const tn_arch *a = type ? tn_arch_by_hf(type) : NULL;
    tn_hparams h;
    tern_error err;
    if (a && tn_arch_hparams_hf(a, j, "fuzz", &h, &err) == TERN_OK) {
        if (h.n_layers < 1 || h.d_head < 4 || h.n_heads % h.n_kv_heads || h.n_rot > h.d_head) abort();
    }
    json_decref(j);
    return 0;
}
