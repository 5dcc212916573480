/* A GGUF file from anywhere: refused with a status, or every tensor, key, hyperparameter and token of it is
 * safe to use. */
#include "model/arch.h"
#include "model/gguf_vocab.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    tn_ctx ctx;
    tn_gguf *g;
    tern_error err;
    tn_ctx_init(&ctx, NULL);
    if (tn_gguf_open_memory(&ctx, data, size, "fuzz.gguf", &g, &err) != TERN_OK) {
        if (!err.message[0]) abort();
        return 0;
    }
    for (size_t i = 0; i < tn_gguf_n_tensors(g); i++) {
        const tn_tensor *t = tn_gguf_tensor_at(g, i);
        float block[256];
        if (!tn_gguf_tensor(g, t->name)) abort();
        if (t->dtype == TN_N_DTYPES) continue; /* whole numbers */
        const uint64_t head = (uint64_t)tn_dtype_head_bytes(t->dtype), k = t->dims[t->n_dims - 1];
        uint64_t n = t->size_bytes / (uint64_t)tn_dtype_block_bytes(t->dtype);
        if (head) { /* rows, the first block of each */
            n = tn_tensor_values(t) / k;
            for (uint64_t r = 0; r < n && r < 4096; r++)
                tn_dequantise(t->dtype, t->data + r * tn_dtype_row_bytes(t->dtype, k), block, 256);
            continue;
        }
        for (uint64_t b = 0; b < n && b < 4096; b++) {
            tn_dequantise(t->dtype, t->data + b * (uint64_t)tn_dtype_block_bytes(t->dtype), block,
                          (uint64_t)tn_dtype_block(t->dtype));
        }
    }
    const char *name;
    size_t n_name;
    const tn_arch *a =
        tn_gguf_str(g, "general.architecture", &name, &n_name) ? tn_arch_by_gguf(name, n_name) : NULL;
    tn_hparams h;
    if (a) (void)tn_arch_hparams_gguf(a, g, &h, &err);
    if (tn_arch_hparams_gguf(&tn_arch_eagle3, g, &h, &err) == TERN_OK &&
        (h.n_layers != 1 || h.n_vocab < 1 || h.head.from[2] < 0))
        abort();
    if (tn_arch_hparams_gguf(&tn_arch_assistant, g, &h, &err) == TERN_OK &&
        (h.n_layers < 1 || h.n_kv_shared != h.n_layers))
        abort();
    if (tn_arch_hparams_gguf(&tn_arch_dflash, g, &h, &err) == TERN_OK &&
        (h.n_layers < 1 || h.head.block < 2 || h.head.n_from < 1 || h.head.n_from > TN_MAX_TAPS ||
         h.head.mask < 0 || h.head.mask >= h.n_vocab))
        abort();
    tn_tokenizer *tok;
    if (tn_gguf_tokenizer(&ctx, g, &tok, &err) == TERN_OK) tn_tokenizer_close(&tok);
    tn_gguf_close(&g);
    return 0;
}
