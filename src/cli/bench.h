/* cli/bench.h - what the benchmarks share. */
#ifndef TN_CLI_BENCH_H
#define TN_CLI_BENCH_H

#include "cli/args.h"

enum { MAX_REPEATS = 1000 };

typedef struct spread {
    double median, min, max;
} spread;

spread cli_spread_of(double *v, int n); /* sorts v */

/* Does tern bench --cold: for every prompt length it starts `repeats` fresh processes, each of which runs
 * bench_once. argv is the command's own. With prime, memory is touched before each. */
int cli_bench_cold(const command *c, const model_args *ma, int argc, char **argv, const int32_t *prompts,
                   int n_prompts, int32_t repeats, bool prime, bool json);
/* Measures one start, begun at start_ns of the monotonic clock, and prints JSON on standard output. */
int cli_bench_once(const command *c, const model_args *ma, int32_t n_prompt, int64_t start_ns);

#endif
