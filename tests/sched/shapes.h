/* tests/sched/shapes.h - graphs that the scheduler's tests and benchmark share. */
#ifndef TN_TESTS_SCHED_SHAPES_H
#define TN_TESTS_SCHED_SHAPES_H

#include "base/rng.h"
#include "sched/graph.h"

#include <assert.h>

enum { SHAPE_SUBGRAPHS = 6 };

/* One chunk of llm.npu's prefill: six subgraphs per layer, alternately CPU and NPU; attention needs the
 * Q/K/V of its own and all earlier chunks (SYSTEMS.md 1.4). us[j]: time of subgraph j; attention's grows
 * by its own size per earlier chunk. */
static inline tern_status shape_prefill(tn_graph *g, int n_layers, int n_chunks,
                                        const float us[SHAPE_SUBGRAPHS], tn_task_fn fn, void *arg,
                                        tern_error *err) {
    static const char *const names[SHAPE_SUBGRAPHS] = {"norm", "qkv", "attention", "o", "norm2", "ffn"};
    tn_graph_clear(g);
    for (int layer = 0; layer < n_layers; layer++) {
        for (int j = 0; j < SHAPE_SUBGRAPHS; j++) {
            for (int chunk = 0; chunk < n_chunks; chunk++) {
                tn_lane lane = j % 2 ? TN_LANE_NPU : TN_LANE_CPU;
                float t = j == 2 ? us[j] * (float)(chunk + 1) : us[j];
                int32_t id = tn_graph_add(
                    g,
                    &(tn_task){.fn = fn,
                               .arg = arg,
                               .name = names[j],
                               .est_us = {[TN_LANE_CPU] = lane == TN_LANE_NPU ? 3 * t : t, [TN_LANE_NPU] = t},
                               .chunk = chunk,
                               .layer = layer,
                               .subgraph = j,
                               .lane = lane,
                               .can_steal = lane == TN_LANE_NPU});
                if (layer || j) tn_graph_depend(g, id - n_chunks, id);
                if (j == 2)
                    for (int c = 0; c < chunk; c++) tn_graph_depend(g, id - n_chunks - chunk + c, id);
            }
        }
    }
    return tn_graph_seal(g, err);
}

/* A random graph: edges go from smaller to larger ids, so there is no cycle; positions are random, so the
 * chunk-major order often contradicts the edges. */
static inline tern_status shape_random(tn_graph *g, tn_rng *r, int n_tasks, tn_task_fn fn, void *args,
                                       size_t arg_size, tern_error *err) {
    tn_graph_clear(g);
    int density = (int)tn_rng_below(r, 5), max_parts = tn_rng_below(r, 2) ? 4 : 1;
    for (int i = 0; i < n_tasks; i++) {
        tn_lane lane = (tn_lane)tn_rng_below(r, tn_rng_below(r, 4) ? 2 : 3);
        float us = (float)tn_rng_below(r, 50);
        tn_task t = {.fn = fn,
                     .arg = args ? (char *)args + (size_t)i * arg_size : NULL,
                     .name = "task",
                     .chunk = (int32_t)tn_rng_below(r, 4),
                     .layer = (int32_t)tn_rng_below(r, 3),
                     .subgraph = (int32_t)tn_rng_below(r, 3),
                     .plan = (int32_t)tn_rng_below(r, 100),
                     .n_parts = 1 + (int32_t)tn_rng_below(r, (uint64_t)max_parts),
                     .lane = lane,
                     .can_steal = lane != TN_LANE_IO && tn_rng_below(r, 2)};
        t.est_us[lane] = us;
        if (lane == TN_LANE_NPU && tn_rng_below(r, 2)) t.est_us[TN_LANE_CPU] = us * 2;
        int32_t id = tn_graph_add(g, &t);
        for (int e = 0; i && e < density; e++) tn_graph_depend(g, (int32_t)tn_rng_below(r, (uint64_t)i), id);
    }
    return tn_graph_seal(g, err);
}

#endif
