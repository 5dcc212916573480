/* tern synth - a random model in the exact shapes of a real one. */
#include "cli/args.h"
#include "cli/live.h"
#include "lab/commands.h"

#include "base/cpu.h"
#include "lab/synth.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define TYPES                                                                                                \
    "f32, f16, q8_0, q4_0, iq1_s, iq1_m, iq2_xxs, iq2_xs, iq2_s, iq3_xxs, iq3_s, tq1_0, tq2_0, q1_0, q2_0, " \
    "nvfp4, mxfp4, q6_0, iq2_k, iq3_k, iq4_k, iq5_k, iq6_k, iq4_ks, iq4_kss, iq5_ks, iq2_ks, iq3_ks, "       \
    "iq2_kl, "                                                                                               \
    "iq1_kt, iq2_kt, "                                                                                       \
    "iq3_kt, iq4_kt"

static bool show_progress(void *user, const char *stage, double fraction) {
    (void)user;
    if (fraction < 1) cli_live_line("%s %3.0f %%", stage, fraction * 100);
    else cli_live_clear();
    return true;
}

int cmd_synth(int argc, char **argv) {
    const char *arch = NULL, *out = NULL, *type = "f16";
    uint64_t seed = 1;
    int32_t n_threads = 0;
    bool list = false, tiny = false;
    const arg_spec specs[] = {
        {"arch", 0, "NAME", ARG_STR, &arch, 0, 0, "whose shapes (--list names them)"},
        {"output", 'o', "OUT.gguf", ARG_STR, &out, 0, 0, "the file to write"},
        {"seed", 0, "S", ARG_U64, &seed, 0, 0, "random seed (default 1); the same seed gives the same bytes"},
        {"type", 0, "TYPE", ARG_STR, &type, 0, 0, "storage of the weights: " TYPES " (default f16)"},
        {"threads", 't', "N", ARG_INT, &n_threads, 1, 64, "worker threads (default: one per core)"},
        {"tiny", 0, NULL, ARG_FLAG, &tiny, 0, 0,
         "a small model of the architecture NAME instead: 'tiny-NAME' of the list"},
        {"list", 0, NULL, ARG_FLAG, &list, 0, 0, "list the names and stop"},
        {0},
    };
    const command c = {"synth", "--arch NAME -o OUT.gguf [OPTIONS]",
                       "Write random weights in the exact shapes of a real model, readable by other engines.",
                       specs, 0};
    const char *words[1];
    int rc = cli_args_parse(&c, argc, argv, words);
    if (rc >= 0) return rc;
    for (size_t i = 0; list && tn_synth_name(i); i++) puts(tn_synth_name(i));
    for (size_t i = 0; list && tn_synth_tower_name(i); i++) puts(tn_synth_tower_name(i));
    if (list) return EXIT_OK;
    if (!arch) return cli_usage_error(&c, "--arch is required");
    if (!out) return cli_usage_error(&c, "-o OUT.gguf is required");
    char tiny_name[64];
    if (tiny) {
        snprintf(tiny_name, sizeof tiny_name, "tiny-%s", arch);
        arch = tiny_name;
    }
    tn_dtype dtype = tn_synth_type(type);
    if (dtype == TN_N_DTYPES) return cli_usage_error(&c, "type '%s' is unknown; there are " TYPES, type);
    tern_hooks hooks;
    tern_hooks_defaults(&hooks);
    if (cli_live()) hooks.progress = show_progress;
    tn_ctx ctx;
    tn_ctx_init(&ctx, &hooks);
    tn_pool *pool;
    tern_error err;
    if (tn_pool_open(&ctx, n_threads ? n_threads : tn_cpu_count(), &pool, &err) != TERN_OK)
        return cli_failed(&err);
    tern_status st = tn_synth(&ctx, pool, arch, out, seed, dtype, &err);
    tn_pool_close(&pool);
    return st == TERN_OK ? EXIT_OK : cli_failed(&err);
}
