/* cli/suite.h - the published benchmarks of tern eval (measure/suite.h): a run, and what it or two of them say. */
#ifndef TN_CLI_SUITE_H
#define TN_CLI_SUITE_H

#include "cli/args.h"
#include "measure/suite.h"

typedef struct suite_args {
    tn_suite_options o;
    const char *lengths, *thinking; /* as they were given; NULL: not */
    int32_t limit, shots, samples, max_tokens, ctx;
    bool json, items;
    const char *model, *from; /* what is told of the model: cli/packing.h */
} suite_args;

/* The defaults of what is asked. */
void cli_suite_defaults(suite_args *a);
/* Fills a->o. Returns -1 to go on, or EXIT_USAGE where the task does not take what was given. */
int cli_suite_check(const command *c, suite_args *a);
/* Whether an option was given that belongs to such tasks alone; its name, or NULL. */
const char *cli_suite_given(const suite_args *a);
/* against: a second model for the same items, or NULL. */
int cli_suite_run(suite_args *a, tern_engine *e, tern_engine *against);
/* Two files of results, item by item. */
int cli_suite_compare(const char *first, const char *second, bool json);

#endif
