/* bench/sim.c - how many requests a second the simulator runs on one core, graph building included. */
#include "base/clock.h"
#include "lab/sim.h"

#include <stdio.h>
#include <stdlib.h>

int main(int argc, char **argv) {
    double seconds = argc > 1 ? atof(argv[1]) : 0.3;
    const char *path = argc > 2 ? argv[2] : "share/soc/sd8gen3.json";
    tn_ctx ctx;
    tn_sim sim;
    tn_soc soc;
    tern_error err;
    tn_ctx_init(&ctx, NULL);
    if (tn_soc_load(&soc, path, &err) != TERN_OK || tn_sim_open(&ctx, &sim, &err) != TERN_OK) {
        fprintf(stderr, "%s\n", err.message);
        return 1;
    }
    static const struct {
        const char *what;
        int32_t n_tokens;
        tn_sim_load load;
        tn_sim_attention attention;
    } rows[] = {{"warm", 256, TN_SIM_WARM, TN_SIM_FULL},
                {"warm", 512, TN_SIM_WARM, TN_SIM_FULL},
                {"warm", 1024, TN_SIM_WARM, TN_SIM_FULL},
                {"cold start", 256, TN_SIM_STREAM, TN_SIM_FULL},
                {"cold start", 1024, TN_SIM_STREAM, TN_SIM_FULL},
                {"sparse attention", 512, TN_SIM_WARM, TN_SIM_SHADOW}};
    printf("qwen1.5-1.8b, chunks of 256, ooe\n");
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        tn_sim_request r = {.soc = &soc,
                            .model = tn_sim_model_find("qwen1.5-1.8b"),
                            .n_tokens = rows[i].n_tokens,
                            .n_chunk = 256,
                            .policy = tn_policy_defaults(TN_POLICY_OOE),
                            .load = rows[i].load,
                            .attention = rows[i].attention,
                            .bits = 5};
        tn_sim_result o;
        int n = 0;
        double t0 = tn_now_s(), t = 0;
        for (; t < seconds; n++, t = tn_now_s() - t0) {
            if (tn_sim_run(&sim, &r, NULL, &o, &err) != TERN_OK) return 1;
        }
        printf("  %-18s %5d tokens, %5d tasks: %8.0f requests/s\n", rows[i].what, rows[i].n_tokens, o.n_tasks,
               n / t);
    }
    tn_sim_close(&sim);
    return 0;
}
