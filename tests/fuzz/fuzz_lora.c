/* An adapter from anywhere, as a GGUF file (after a byte 0), as PEFT's configuration and tensors (after a byte 1 and the
 * configuration's size in two bytes) or as one of two tasks' beside the tensors of a folder (after a byte 2 and its
 * number), for models of three architectures: refused with a status, or rows and an embedding go through it. */
#include "formats/gguf.h"
#include "formats/safetensors.h"
#include "model/lora.h"
#include "../model/small_hparams.h"

#include <stdlib.h>
#include <string.h>

enum { ROWS = 3, WIDE = 64 };

static void through(const tn_lora *l, const tn_hparams *h, const tn_program *p) {
    static tn_kernels kern;
    static float x[ROWS * WIDE], out[ROWS * WIDE];
    const tn_lora_mix mix = {.n = 1, .at = {l}, .scale = {0.5f}};
    tn_lora *const all[] = {(tn_lora *)(uintptr_t)l};
    float *scratch = malloc(tn_lora_scratch(all, 1, p) * sizeof *scratch + 64);
    tn_kernels_init(&kern, 0);
    if (!scratch) abort();
    for (int32_t i = 0; i < p->n_sites; i++) {
        const tn_site_ops *ops = tn_program_linears(p, i);
        float *at[TN_SITE_MAX_OPS];
        size_t ldo[TN_SITE_MAX_OPS];
        for (int op = 0; op < ops->n_ops; op++) at[op] = out, ldo[op] = WIDE;
        if (tn_lora_at(&mix, i)) tn_lora_rows(&mix, &kern, ops, i, x, WIDE, ROWS, at, ldo, scratch);
    }
    tn_lora_embed(&mix, &kern, h->n_vocab - 1, x, (size_t)h->n_embd);
    free(scratch);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const char *const archs[] = {"llama", "phi3", "jina-bert-v3"};
    tn_ctx ctx;
    tn_ctx_init(&ctx, NULL);
    if (size < 4) return 0;
    for (int i = 0; i < 3; i++) {
        tn_hparams h = tn_test_small_hparams(archs[i]);
        h.gated = i < 2;
        h.embd_type = i == 2;
        tn_program p;
        tern_error err = {0};
        tn_gguf *g = NULL;
        tn_safetensors *st = NULL;
        tn_lora *l = NULL;
        tern_status rc;
        if (tn_program_make(&ctx, &h, &p, &err) != TERN_OK) abort();
        if (!(data[0] & 3)) {
            rc = tn_gguf_open_memory(&ctx, data + 1, size - 1, "fuzz.gguf", &g, &err);
            if (rc == TERN_OK) rc = tn_lora_read(&ctx, g, NULL, NULL, "fuzz.gguf", &h, &p, NULL, &l, &err);
        } else if (data[0] & 2) {
            const tn_lora_task task = {"it", "words", data[1] & 1, 2, 2, 1};
            rc = tn_safetensors_open_memory(&ctx, data + 2, size - 2, "fuzz", &st, &err);
            if (rc == TERN_OK) rc = tn_lora_read_task(&ctx, st, &task, "fuzz", &h, &p, &l, &err);
        } else {
            size_t n = (size_t)data[1] + 256 * (size_t)data[2];
            if (n > size - 3) n = size - 3;
            char *config = malloc(n + 1);
            memcpy(config, data + 3, n);
            config[n] = 0;
            rc = tn_safetensors_open_memory(&ctx, data + 3 + n, size - 3 - n, "fuzz", &st, &err);
            if (rc == TERN_OK) rc = tn_lora_read(&ctx, NULL, st, config, "fuzz", &h, &p, NULL, &l, &err);
            free(config);
        }
        if (rc == TERN_OK) through(l, &h, &p);
        else if (l || !err.message[0]) abort();
        tn_lora_close(&l);
        tn_gguf_close(&g);
        tn_safetensors_close(&st);
        tn_program_free(&p);
    }
    return 0;
}
