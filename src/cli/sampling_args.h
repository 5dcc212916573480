/* cli/sampling_args.h - the sampling flags run and chat share. */
#ifndef TN_CLI_SAMPLING_ARGS_H
#define TN_CLI_SAMPLING_ARGS_H

#include "cli/args.h"

#define SAMPLING_ARGS(p)                                                                                     \
    {"temp", 0, "T", ARG_FLOAT, &(p).temperature, 0, 100, "temperature, 0 = greedy (default 0.8)"},          \
        {"top-k", 0, "K", ARG_INT, &(p).top_k, 0, 1e9, "keep the K likeliest tokens, 0 = all (default 40)"}, \
        {"top-p",    0, "P", ARG_FLOAT,                                                                      \
         &(p).top_p, 0, 1,   "keep the likeliest tokens up to this mass, 1 = all (default 0.95)"},           \
        {"min-p",    0, "P", ARG_FLOAT,                                                                      \
         &(p).min_p, 0, 1,   "drop tokens below P times the best one's probability (default 0.05)"},         \
        {"repeat-penalty",    0, "X", ARG_FLOAT,                                                             \
         &(p).repeat_penalty, 0, 100, "penalty on repeated tokens, 1 = off (default)"},                      \
        {"repeat-last-n",    0,  "N", ARG_INT,                                                               \
         &(p).repeat_last_n, -1, 1e9, "tokens the penalty looks back over, -1 = all (default 64)"},          \
    {                                                                                                        \
        "seed", 0, "S", ARG_U64, &(p).seed, 0, 0, "random seed (default 0: the same text every time)"        \
    }

#endif
