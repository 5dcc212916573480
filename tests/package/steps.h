/* tests/package/steps.h - the steps of a plain decoder, written by hand. */
#ifndef TESTS_PACKAGE_STEPS_H
#define TESTS_PACKAGE_STEPS_H

#include "package/prefill_graph.h"

enum { W_QKV, W_O, W_FFN, W_DOWN };

/* Of n_layers layers; which: kinds that every layer has besides (bits of 1 << tn_step_kind). Returns their
 * number. */
static int32_t decoder_steps(tn_step *out, int32_t n_layers, uint32_t which) {
    static const tn_step layer[] = {
        {TN_STEP_ROWS, "norm", 0, 0, TN_LANE_CPU, TN_NO_WEIGHTS, 0, 0, false, false},
        {TN_STEP_PRODUCT, "qkv", 1, 0, TN_LANE_NPU, W_QKV, 0, 0, false, false},
        {TN_STEP_ROWS, "rope", 2, 0, TN_LANE_CPU, TN_NO_WEIGHTS, 0, 1, false, false},
        {TN_STEP_PLAN, "plan", 3, 0, TN_LANE_CPU, TN_NO_WEIGHTS, 0, 0, true, false},
        {TN_STEP_ATTENTION, "attention", 4, 0, TN_LANE_CPU, TN_NO_WEIGHTS, 1, 0, true, false},
        {TN_STEP_PRODUCT, "o", 5, 0, TN_LANE_NPU, W_O, 0, 0, false, false},
        {TN_STEP_ROWS, "norm2", 6, 0, TN_LANE_CPU, TN_NO_WEIGHTS, 0, 0, false, false},
        {TN_STEP_PRODUCT, "ffn", 7, 0, TN_LANE_NPU, W_FFN, 0, 0, false, false},
        {TN_STEP_OUTLIERS, "ffn outliers", 8, 0, TN_LANE_CPU, W_FFN, 0, 0, false, false},
        {TN_STEP_ROWS, "glu", 9, 0, TN_LANE_CPU, TN_NO_WEIGHTS, 0, 0, false, false},
        {TN_STEP_PRODUCT, "down", 10, 0, TN_LANE_NPU, W_DOWN, 0, 0, false, false},
    };
    int32_t n = 0;
    for (int32_t l = 0; l < n_layers; l++) {
        for (size_t i = 0; i < sizeof layer / sizeof *layer; i++) {
            bool extra = layer[i].kind == TN_STEP_PLAN || layer[i].kind == TN_STEP_OUTLIERS;
            if (extra && !(which >> layer[i].kind & 1)) continue;
            out[n] = layer[i];
            out[n++].layer = l;
        }
    }
    out[n++] = (tn_step){.kind = TN_STEP_ROWS,
                         .name = "residual",
                         .type = 11,
                         .layer = n_layers - 1,
                         .lane = TN_LANE_CPU,
                         .weights = TN_NO_WEIGHTS};
    return n;
}

#endif
