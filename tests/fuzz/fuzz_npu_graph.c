/* Compiled graphs from outside: the bytes as they are, then with a true length and checksum so that the
 * fields after them are reached. What is accepted must serialise to the same bytes and, if small, run within
 * its buffers. */
#include "npu/npu.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

static void put(uint8_t *p, uint64_t v, int n) {
    for (int i = 0; i < n; i++) p[i] = (uint8_t)(v >> 8 * i);
}

static void run(tn_npu_device *d, tn_npu_graph *g) {
    const tn_npu_graph_desc *desc = tn_npu_graph_get(g);
    const tn_npu_layout *l = &tn_npu_device_caps(d)->layout;
    tn_npu_weights *weights[TN_NPU_MAX_OPS] = {0};
    void *sums[TN_NPU_MAX_OPS] = {0}, *tiles[TN_NPU_MAX_OPS] = {0}, *out[TN_NPU_MAX_OPS] = {0};
    uint64_t work = (uint64_t)desc->m * (uint64_t)desc->in_stride;
    for (int i = 0; i < desc->n_ops; i++) {
        work += (uint64_t)desc->m * (uint64_t)desc->ops[i].n * (uint64_t)desc->k +
                4 * (uint64_t)desc->m * (uint64_t)desc->ops[i].out_stride;
    }
    if (work > 1 << 20) return;
    tn_npu_job job = {.graph = g, .n_rows = desc->m};
    uint8_t *in = calloc((size_t)desc->m, (size_t)desc->in_stride);
    bool ok = in;
    for (int i = 0; i < desc->n_ops; i++) {
        const tn_npu_op *op = &desc->ops[i];
        uint64_t n_bytes = tn_npu_tiles_bytes(l, op->n, desc->k);
        size_t e = op->out == TN_NPU_OUT_U8 || op->out == TN_NPU_OUT_S8 ? 1 : 4;
        job.in[i] = in;
        job.out[i] = out[i] = malloc((size_t)desc->m * (size_t)op->out_stride * e);
        ok = ok && out[i];
        if (desc->kind == TN_NPU_LINEARS) {
            if (tn_npu_weights_open(d, op->n, desc->k, op->has_bias, &weights[i], NULL) != TERN_OK) abort();
            tn_npu_weights_data w = tn_npu_weights_get(weights[i]);
            memset(w.tiles, 3, n_bytes);
            for (int32_t n = 0; n < op->n; n++) {
                w.scale[n] = 1e-3f;
                w.col_sum[n] = 3 * desc->k;
                if (w.bias) w.bias[n] = 1;
            }
        } else {
            if (tn_npu_mem_alloc(d, n_bytes, &tiles[i], NULL) != TERN_OK) abort();
            memset(tiles[i], 3, n_bytes);
            sums[i] = calloc((size_t)op->n + (size_t)l->tile_n, 4);
            ok = ok && sums[i];
            job.k[i].tiles = tiles[i];
            job.k[i].col_sum = sums[i];
            job.k[i].n_pos = op->n;
        }
    }
    if (ok && tn_npu_load(g, desc->kind == TN_NPU_LINEARS ? weights : NULL, NULL) == TERN_OK) {
        if (tn_npu_submit(&job, NULL) != TERN_OK || tn_npu_wait(&job) != TERN_OK) abort();
        tn_npu_unload(g);
    }
    for (int i = 0; i < desc->n_ops; i++) {
        tn_npu_weights_close(&weights[i]);
        tn_npu_mem_free(d, tiles[i]);
        free(sums[i]);
        free(out[i]);
    }
    free(in);
}

static void try_bytes(tn_npu_device *d, const uint8_t *data, size_t size) {
    tn_npu_graph *g;
    tern_error err;
    if (tn_npu_deserialise(d, data, size, &g, &err) != TERN_OK) {
        if (g) abort();
        return;
    }
    uint8_t *again = malloc(size);
    if (!again) abort();
    if (tn_npu_serialise(g, again, size) != size || memcmp(again, data, size)) abort();
    free(again);
    run(d, g);
    tn_npu_graph_close(&g);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    tn_ctx ctx;
    tn_ctx_init(&ctx, NULL);
    tn_npu_device *d;
    if (tn_npu_open(&ctx, "scalar", NULL, &d, NULL) != TERN_OK) abort();
    try_bytes(d, data, size);
    if (size >= 40 && size < 4096) {
        uint8_t *fixed = malloc(size);
        if (!fixed) abort();
        memcpy(fixed, data, size);
        memset(fixed + 8, 0, 24);
        memcpy(fixed, "TNPG\1\0\0\0scalar", 14);
        put(fixed + 24, tn_npu_device_caps(d)->layout.id, 4);
        put(fixed + 28, size - 40, 4);
        put(fixed + 32, XXH64(fixed + 40, size - 40, XXH64(fixed, 32, 0)), 8);
        try_bytes(d, fixed, size);
        free(fixed);
    }
    tn_npu_close(&d);
    return 0;
}
