/* Any bytes as a safetensors file: an answer or a clear error. */
#include "formats/safetensors.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    tn_ctx ctx;
    tn_ctx_init(&ctx, NULL);
    tern_error err;
    tn_safetensors *f;
    if (tn_safetensors_open_memory(&ctx, data, size, "fuzz", &f, &err) != TERN_OK) return 0;
    for (size_t i = 0; i < tn_safetensors_n_tensors(f); i++) {
        const tn_tensor *t = tn_safetensors_tensor_at(f, i);
        if (tn_safetensors_tensor(f, t->name) != t) __builtin_trap();
        volatile uint8_t last = t->size_bytes ? t->data[t->size_bytes - 1] : 0; /* what was promised is there */
        (void)last;
    }
    tn_safetensors_close(&f);
    return 0;
}
