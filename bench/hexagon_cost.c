/* One job on the Hexagon backend, so that bench/hexagon-cost.sh can count what the DSP executes:
 *   bench_hexagon_cost linear M N K FORM | qk M N K FORM | unpack BITS N K | topk ROWS N K
 * (FORM: 0 f32, 1 s32, 2 u8, 3 s8). Top-k is asked of the DSP itself, for scores as estimates have them. */
#include "kernels/unpack.h"
#include "base/rng.h"
#include "npu/hexagon/message.h"
#include "npu/hexagon/transport.h"
#include "npu/npu.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int must(tern_status st, const tern_error *err) {
    if (st != TERN_OK) {
        fprintf(stderr, "%s\n", err->message);
        exit(1);
    }
    return 0;
}

static void ask(tn_hex_link *l, tn_hex_request g) {
    tn_hex_reply r;
    if (!tn_hex_transport_here.send(l, &g, sizeof g) ||
        tn_hex_transport_here.receive(l, &r, sizeof r, 60000) != TN_HEX_CAME || r.status != TN_HEX_OK) {
        fprintf(stderr, "the DSP refuses\n");
        exit(1);
    }
}

static int topk(tn_ctx *ctx, uint32_t rows, uint32_t n, uint32_t k) {
    enum { WINDOW = 4096, WINDOW_BYTES = 1 << 20, AREA = 2 << 20 };
    tern_error err;
    tn_hex_link *l;
    must(tn_hex_transport_here.open(ctx, &l, &err), &err);
    ask(l, (tn_hex_request){.what = TN_HEX_HELLO,
                            .hello = {.version = TN_HEX_VERSION,
                                      .arena_bytes = l->arena_bytes,
                                      .window = WINDOW,
                                      .window_bytes = WINDOW_BYTES,
                                      .vtcm_bytes = TN_HEX_VTCM_MOST,
                                      .n_threads = 1,
                                      .n_arenas = 1}});
    ask(l, (tn_hex_request){.what = TN_HEX_MAP, .map = {AREA, (n + k) * 4}});
    tn_rng r = {1};
    for (uint32_t row = 0; row < rows; row++) {
        for (uint32_t p = 0; p < n; p++) { /* nearly normal */
            int32_t sum = 0;
            for (int i = 0; i < 6; i++) sum += (int32_t)tn_rng_below(&r, 60001) - 30000;
            ((int32_t *)(l->arena + AREA))[p] = sum;
        }
        ask(l,
            (tn_hex_request){.what = TN_HEX_TOPK,
                             .topk = {.n_rows = 1, .bound = 180000, .rows = {{AREA, n, k, AREA + n * 4}}}});
    }
    tn_hex_transport_here.close(&l);
    return 0;
}

int main(int argc, char **argv) {
    if (argc < 5) return 2;
    tn_ctx ctx;
    tn_ctx_init(&ctx, NULL);
    if (!strcmp(argv[1], "topk"))
        return topk(&ctx, (uint32_t)atoi(argv[2]), (uint32_t)atoi(argv[3]), (uint32_t)atoi(argv[4]));
    tn_npu_device *d;
    tern_error err;
    must(tn_npu_open(&ctx, "hexagon", NULL, &d, &err), &err);
    const tn_npu_layout *layout = &tn_npu_device_caps(d)->layout;
    int32_t a = atoi(argv[2]), n = atoi(argv[3]), k = atoi(argv[4]);
    if (!strcmp(argv[1], "unpack")) {
        uint8_t *bits = calloc(tn_channel_bits_bytes((size_t)n) + 1, 1);
        for (int32_t c = 0; c < n; c++) tn_channel_bits_put(bits, (size_t)c, (unsigned)a);
        uint8_t *packed = calloc(tn_weightlets_bytes(bits, 0, (size_t)n, (size_t)k), 1);
        void *tiles;
        must(tn_npu_mem_alloc(d, tn_npu_tiles_bytes(layout, n, k), &tiles, &err), &err);
        if (!tn_npu_unpack(d, packed, bits, 0, n, k, tiles)) return 1;
        tn_npu_mem_free(d, tiles);
        free(bits), free(packed);
    } else {
        bool qk = !strcmp(argv[1], "qk");
        tn_npu_graph_desc g = {.kind = qk ? TN_NPU_QK : TN_NPU_LINEARS,
                               .m = a,
                               .k = k,
                               .in_stride = (k + 7) / 8 * 8,
                               .n_ops = 1};
        g.ops[0] = (tn_npu_op){.n = n,
                               .act_scale = 0.01f,
                               .k_scale = qk ? 1 : 0,
                               .has_bias = false,
                               .out = argc > 5 ? (tn_npu_out)atoi(argv[5]) : TN_NPU_OUT_F32,
                               .out_scale = 1};
        tn_npu_weights *w = NULL;
        void *tiles = NULL, *sums = NULL, *in, *out;
        if (qk) {
            must(tn_npu_mem_alloc(d, tn_npu_tiles_bytes(layout, n, k), &tiles, &err), &err);
            must(tn_npu_mem_alloc(d, (uint64_t)(n + 16) * 4, &sums, &err), &err);
        } else {
            must(tn_npu_weights_open(d, n, k, false, &w, &err), &err);
            for (int32_t i = 0; i < n; i++) tn_npu_weights_get(w).scale[i] = 1;
        }
        must(tn_npu_mem_alloc(d, (uint64_t)a * (uint64_t)g.in_stride, &in, &err), &err);
        must(tn_npu_mem_alloc(d, (uint64_t)a * (uint64_t)n * 4, &out, &err), &err);
        tn_npu_graph *graph;
        must(tn_npu_compile(d, &g, &graph, &err), &err);
        must(tn_npu_load(graph, qk ? NULL : &w, &err), &err);
        tn_npu_job j = {.graph = graph, .n_rows = a, .in = {in}, .out = {out}};
        j.k[0].tiles = tiles;
        j.k[0].col_sum = sums;
        j.k[0].n_pos = n;
        must(tn_npu_submit(&j, &err), &err);
        must(tn_npu_wait(&j), &err);
        tn_npu_graph_close(&graph);
        tn_npu_weights_close(&w);
        tn_npu_mem_free(d, in), tn_npu_mem_free(d, out), tn_npu_mem_free(d, tiles), tn_npu_mem_free(d, sums);
    }
    tn_npu_close(&d);
    return 0;
}
