/* A safetensors file from anywhere: refused with a status, or every byte of every tensor may be read; and so may the rows
 * of matrices that its tensors stand for when they are taken for packed ones, which the file's length chooses. */
#include "model/packed.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    tn_ctx ctx;
    tn_safetensors *s;
    tern_error err;
    tn_ctx_init(&ctx, NULL);
    if (tn_safetensors_open_memory(&ctx, data, size, "fuzz.safetensors", &s, &err) != TERN_OK) {
        if (!err.message[0]) abort();
        return 0;
    }
    volatile uint8_t sum = 0;
    for (size_t i = 0; i < tn_safetensors_n_tensors(s); i++) {
        const tn_tensor *t = tn_safetensors_tensor_at(s, i);
        if (tn_safetensors_tensor(s, t->name) != t) abort();
        for (uint64_t k = 0; k < t->size_bytes; k++) sum = (uint8_t)(sum + t->data[k]);
        uint64_t n = t->dims[0] * t->dims[1] * t->dims[2] * t->dims[3];
        float v;
        for (uint64_t k = 0; t->dtype < TN_N_DTYPES && k < n; k++)
            tn_dequantise(t->dtype, t->data + k * (uint64_t)tn_dtype_block_bytes(t->dtype), &v, 1);
    }
    char text[48];
    const tn_packing_plan plan = {.kind = (tn_packing)(1 + size % 3),
                                  .bits = 2 + (int32_t)(size / 3 % 7),
                                  .group = size / 21 % 2 ? UINT64_MAX : 32,
                                  .stored_less = size / 42 % 2};
    if (tn_packing_apply(&ctx, &plan, "config.json", s, text, sizeof text, &err) != TERN_OK) {
        if (!err.message[0]) abort();
        tn_safetensors_close(&s);
        return 0;
    }
    for (size_t i = 0; i < tn_safetensors_n_tensors(s); i++) {
        const tn_packed *p = tn_safetensors_tensor_at(s, i)->packed;
        float *row = p ? malloc(p->cols * sizeof *row) : NULL;
        for (uint64_t r = 0; row && r < p->rows; r++) tn_packed_row(p, r, row);
        const uint64_t n_bytes = p && p->blocks != TN_N_DTYPES ? tn_dtype_row_bytes(p->blocks, p->cols) : 0;
        uint8_t *blocks = row && n_bytes ? malloc(p->rows * n_bytes) : NULL;
        if (blocks) tn_packed_blocks(p, 0, p->rows, p->blocks, row, blocks);
        free(blocks);
        free(row);
    }
    tn_safetensors_close(&s);
    return 0;
}
