/* A journal of heads from anywhere: what packing measured before a kill. As it is, and with the head and
 * the checks that belong to the model: the measurement ends, and its weights are finite. */
#include "tiny.h"

#include "base/cpu.h"
#include "model/source.h"
#include "quant/heads.h"

#include <math.h>
#include <xxhash.h>

static tn_ctx ctx;
static tn_model *model;
static tn_pool *pool;
static tn_kernels kern;
static char path[300];

static void measure(const void *data, size_t n) {
    static const int32_t ids[] = {1, 2, 3, 4, 5, 6};
    tern_error err = {0};
    FILE *f = fopen(path, "wb");
    if (!f || fwrite(data, 1, n, f) != n || fclose(f)) abort();
    tn_head_profile p;
    if (tn_head_profile_open(&ctx, &model->h, 0, &p, &err) != TERN_OK) abort();
    tern_status st =
        tn_head_profile_importance(&p, model, &kern, pool, ids, sizeof ids / sizeof *ids, path, &err);
    if (st != TERN_OK && !err.message[0]) abort();
    for (int32_t i = 0; st == TERN_OK && i < p.n_layers * p.n_heads; i++)
        if (!isfinite(p.weight[i]) || !(p.weight[i] >= 0)) abort();
    tn_head_profile_close(&p);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    enum { HEAD = 48, RECORD = 16, MAX = 64 };
    static uint8_t whole[HEAD + MAX * RECORD];
    static size_t n_whole;
    if (!model) {
        tern_error err = {0};
        tiny_make("tiny-llama", false);
        tn_ctx_init(&ctx, NULL);
        tn_kernels_init(&kern, 0);
        snprintf(path, sizeof path, "%s/x", tiny_folder);
        tn_source *src;
        if (tn_pool_open(&ctx, 1, &pool, &err) != TERN_OK ||
            tn_source_open(&ctx, tiny_gguf, &src, &err) != TERN_OK ||
            tn_model_load(&ctx, pool, src, TN_FLOAT, &model, &err) != TERN_OK)
            abort();
        tn_source_close(&src);
        measure("", 0);
        FILE *f = fopen(path, "rb");
        if (!f) abort();
        n_whole = fread(whole, 1, sizeof whole, f);
        fclose(f);
        if (n_whole < HEAD + RECORD) abort(); /* its head is what the records below go with */
    }
    if (size > 4096) return 0;
    measure(data, size);
    /* the input's numbers as the losses of a journal whose head and checks are true */
    uint64_t check;
    memcpy(&check, whole + HEAD - 8, 8);
    size_t n = size / 8 < MAX ? size / 8 : MAX;
    for (size_t i = 0; i < n; i++) {
        memcpy(whole + HEAD + i * RECORD, data + 8 * i, 8);
        uint64_t sum = XXH3_64bits_withSeed(data + 8 * i, 8, check + i);
        memcpy(whole + HEAD + i * RECORD + 8, &sum, 8);
    }
    measure(whole, HEAD + n * RECORD);
    return 0;
}
