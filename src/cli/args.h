/* cli/args.h - flags as a table: parsing, --help and range errors from one description. */
#ifndef TN_CLI_ARGS_H
#define TN_CLI_ARGS_H

#include "tern.h"

#include <stdbool.h>
#include <stdint.h>

typedef enum arg_kind { ARG_FLAG, ARG_INT, ARG_U64, ARG_FLOAT, ARG_STR, ARG_LIST } arg_kind;

enum { ARG_LIST_MAX = 32 };
typedef struct arg_list {
    int n;
    const char *items[ARG_LIST_MAX + 1]; /* NULL-terminated */
} arg_list;

typedef struct arg_spec {
    const char *name;  /* long name without dashes, or NULL */
    char letter;       /* short name or 0 */
    const char *value; /* what the value is called in --help; NULL for a flag */
    arg_kind kind;
    void *dst;       /* bool, int32_t, uint64_t, float, const char *, arg_list */
    double min, max; /* of numbers; both 0: no bounds */
    const char *help;
} arg_spec;

typedef struct command {
    const char *name, *usage, *summary;
    const arg_spec *specs; /* ends with a zeroed entry */
    int max_words;         /* positional arguments accepted */
} command;

enum { EXIT_OK = 0, EXIT_FAILED = 1, EXIT_USAGE = 2 };

/* Parse argv[1..argc). Returns -1 to go on, or an exit status (help printed, or a usage error printed).
 * words gets up to max_words positional arguments, NULL-terminated. */
int args_parse(const command *c, int argc, char **argv, const char **words);
/* "tern NAME: message" on standard error; returns EXIT_USAGE. */
int usage_error(const command *c, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* "tern: message" on standard error; returns EXIT_FAILED. */
int failed(const tern_error *err);
int failed_text(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

/* "128,512" to integers in [1, max]; the count, or -1. */
int parse_int_list(const char *text, int32_t *out, int cap, int32_t max);
/* A whole file ("-": standard input) as a zero-terminated string the caller frees with free(); NULL with a
 * message printed. */
char *read_text_file(const char *path, size_t *n_bytes);

/* Options every command that opens a model shares. */
typedef struct model_args {
    const char *model;
    int32_t n_threads;
    const char *npu, *policy, *cold_rows, *scheme;
    int32_t npu_threads, cpu_threads, chunk;
    uint64_t npu_memory, npu_vtcm;
    bool no_steal, no_chunk_sharing, trace, npu_separate, npu_apart;
    const char *graph_switch, *load, *read, *weights, *attention, *attention_pipeline, *attention_plan;
    float attention_percent;
    int32_t attention_buckets, attention_threshold, attention_share, attention_pool;
    bool no_head_ratios, attention_check, attention_whole, attention_decode;
    int32_t switch_blocks, steal_above;
} model_args;
#define MODEL_ARGS(a)                                                                                          \
    {"model",    'm', "MODEL", ARG_STR,                                                                        \
     &(a).model, 0,   0,       "a GGUF file, a Hugging Face folder or a .tern package"},                       \
        {"threads", 't', "N", ARG_INT, &(a).n_threads, 1, 64, "worker threads (default: one per core)"},       \
        {"npu", 0, "NAME", ARG_STR, &(a).npu, 0, 0, "packages: INT8 device (default: host)"},                  \
        {"policy",    0, "NAME", ARG_STR,                                                                      \
         &(a).policy, 0, 0,      "packages: in-order, overlap, ooe (default) or synergy"},                     \
        {"chunk", 0, "L", ARG_INT, &(a).chunk, 32, 1024, "packages: prompt tokens per chunk (default 256)"},   \
        {"npu-threads",    0, "N", ARG_INT,                                                                    \
         &(a).npu_threads, 1, 63,  "packages: workers of the NPU lane (default: threads - 1)"},                \
        {"cpu-threads",    0, "N", ARG_INT,                                                                    \
         &(a).cpu_threads, 1, 63,  "packages: workers of the CPU lane (default: 1)"},                          \
        {"npu-memory",    0, "BYTES", ARG_U64,                                                                 \
         &(a).npu_memory, 0, 0,       "packages: what the device can address (default: no limit)"},            \
        {"npu-vtcm",    0, "BYTES", ARG_U64,                                                                   \
         &(a).npu_vtcm, 0, 0,       "--npu hexagon: what it stages weights in, 16384 to 8388608 (default)"},   \
        {"scheme",                                                                                             \
         0,                                                                                                    \
         "NAME",                                                                                               \
         ARG_STR,                                                                                              \
         &(a).scheme,                                                                                          \
         0,                                                                                                    \
         0,                                                                                                    \
         "models that are no package: float (default), blocks (default where the file is quantised: its "      \
         "blocks as they are) or an accuracy baseline, llm-int8 or group-w8a8"},                               \
        {"no-chunk-sharing",    0, NULL, ARG_FLAG,                                                             \
         &(a).no_chunk_sharing, 0, 0,    "packages: graphs and weights of its own for every chunk in flight"}, \
        {"cold-rows",                                                                                          \
         0,                                                                                                    \
         "FROM",                                                                                               \
         ARG_STR,                                                                                              \
         &(a).cold_rows,                                                                                       \
         0,                                                                                                    \
         0,                                                                                                    \
         "packages: weight rows for outliers of cold channels from file or weights (default, where the "       \
         "device allows)"},                                                                                    \
        {"npu-separate-weights",                                                                               \
         0,                                                                                                    \
         NULL,                                                                                                 \
         ARG_FLAG,                                                                                             \
         &(a).npu_separate,                                                                                    \
         0,                                                                                                    \
         0,                                                                                                    \
         "packages: the device's graphs share no weights: it holds one form of each"},                         \
        {"npu-apart",                                                                                          \
         0,                                                                                                    \
         NULL,                                                                                                 \
         ARG_FLAG,                                                                                             \
         &(a).npu_apart,                                                                                       \
         0,                                                                                                    \
         0,                                                                                                    \
         "--npu host: works on threads of its own (--npu-threads), as silicon of its own would, not on "       \
         "those of the lanes"},                                                                                \
        {"switch",          0, "WHEN", ARG_STR,                                                                \
         &(a).graph_switch, 0, 0,      "then exchange them: progressive (default), async or sync"},            \
        {"switch-blocks",    0, "N", ARG_INT,                                                                  \
         &(a).switch_blocks, 1, 64,  "in so many blocks of layers (default: as many as are best)"},            \
        {"steal-above",                                                                                        \
         0,                                                                                                    \
         "N",                                                                                                  \
         ARG_INT,                                                                                              \
         &(a).steal_above,                                                                                     \
         -1,                                                                                                   \
         1 << 20,                                                                                              \
         "--policy synergy: the CPU lane takes products when more than N wait (default: from the profile, "    \
         "5 before; -1: never)"},                                                                              \
        {"load",                                                                                               \
         0,                                                                                                    \
         "HOW",                                                                                                \
         ARG_STR,                                                                                              \
         &(a).load,                                                                                            \
         0,                                                                                                    \
         0,                                                                                                    \
         "packages: stream (default: overlapped with the first prefill), overlap, sequential or mmap"},        \
        {"weights",                                                                                            \
         0,                                                                                                    \
         "FORM",                                                                                               \
         ARG_STR,                                                                                              \
         &(a).weights,                                                                                         \
         0,                                                                                                    \
         0,                                                                                                    \
         "packages of fewer than 8 bits, in memory: tiles (default: unpacked once) or packed (less memory; "   \
         "quicker without drafts, slower with)"},                                                              \
        {"attention",                                                                                          \
         0,                                                                                                    \
         "HOW",                                                                                                \
         ARG_STR,                                                                                              \
         &(a).attention,                                                                                       \
         0,                                                                                                    \
         0,                                                                                                    \
         "packages: of the prompt: full (default), shadow (estimated in INT8), auto (shadow where it can "     \
         "and pays), float-sparse, block-sparse, npu-full"},                                                   \
        {"attention-decode",                                                                                   \
         0,                                                                                                    \
         NULL,                                                                                                 \
         ARG_FLAG,                                                                                             \
         &(a).attention_decode,                                                                                \
         0,                                                                                                    \
         0,                                                                                                    \
         "packages: decode sparsely too, with --attention full, shadow or auto"},                              \
        {"ratio",                                                                                              \
         0,                                                                                                    \
         "PERCENT",                                                                                            \
         ARG_FLOAT,                                                                                            \
         &(a).attention_percent,                                                                               \
         1,                                                                                                    \
         100,                                                                                                  \
         "sparse attention: mean share of the positions a row attends to (default 20, and 10 when "            \
         "decoding)"},                                                                                         \
        {"buckets",                                                                                            \
         0,                                                                                                    \
         "N",                                                                                                  \
         ARG_INT,                                                                                              \
         &(a).attention_buckets,                                                                               \
         1,                                                                                                    \
         9,                                                                                                    \
         "sparse attention: pairs of scales to choose from, 1 or 9 (default)"},                                \
        {"no-head-ratios",    0, NULL, ARG_FLAG,                                                               \
         &(a).no_head_ratios, 0, 0,    "sparse attention: the same share for every head"},                     \
        {"attention-share",                                                                                    \
         0,                                                                                                    \
         "N",                                                                                                  \
         ARG_INT,                                                                                              \
         &(a).attention_share,                                                                                 \
         -1,                                                                                                   \
         8,                                                                                                    \
         "sparse attention: neighbouring rows that share a selection with their heads (default 4, or 8 "       \
         "without grouped queries); -1: every row and head its own"},                                          \
        {"attention-pool",                                                                                     \
         0,                                                                                                    \
         "N",                                                                                                  \
         ARG_INT,                                                                                              \
         &(a).attention_pool,                                                                                  \
         1,                                                                                                    \
         1024,                                                                                                 \
         "sparse attention: query heads estimated as one where heads share (default 2)"},                      \
        {"attention-whole",                                                                                    \
         0,                                                                                                    \
         NULL,                                                                                                 \
         ARG_FLAG,                                                                                             \
         &(a).attention_whole,                                                                                 \
         0,                                                                                                    \
         0,                                                                                                    \
         "sparse attention: estimate all positions at once, not part by part in cache; the same bits"},        \
        {"attention-pipeline",                                                                                 \
         0,                                                                                                    \
         "WHEN",                                                                                               \
         ARG_STR,                                                                                              \
         &(a).attention_pipeline,                                                                              \
         0,                                                                                                    \
         0,                                                                                                    \
         "--attention shadow: heads as tasks of two lanes, on, off or auto (default: where the device has "    \
         "silicon of its own); the same bits"},                                                                \
        {"attention-plan",                                                                                     \
         0,                                                                                                    \
         "HOW",                                                                                                \
         ARG_STR,                                                                                              \
         &(a).attention_plan,                                                                                  \
         0,                                                                                                    \
         0,                                                                                                    \
         "then planned as in the paper (default), or without: in-order, no-fusion, no-overlap, "               \
         "comma-separated"},                                                                                   \
        {"attention-threshold",                                                                                \
         0,                                                                                                    \
         "N",                                                                                                  \
         ARG_INT,                                                                                              \
         &(a).attention_threshold,                                                                             \
         0,                                                                                                    \
         1 << 24,                                                                                              \
         "sparse attention: in full until the prompt has N tokens (default 0: shadow as --tune measured, "     \
         "or 512)"},                                                                                           \
        {"attention-check",                                                                                    \
         0,                                                                                                    \
         NULL,                                                                                                 \
         ARG_FLAG,                                                                                             \
         &(a).attention_check,                                                                                 \
         0,                                                                                                    \
         0,                                                                                                    \
         "sparse attention: also count how many of the exact largest were selected (slow)"},                   \
        {"read",    0,                                                                                         \
         "BY",      ARG_STR,                                                                                   \
         &(a).read, 0,                                                                                         \
         0,         "packages: threads, threads-direct, uring or uring-direct (default: what suits)"},         \
    {                                                                                                          \
        "no-steal", 0, NULL, ARG_FLAG, &(a).no_steal, 0, 0,                                                    \
            "packages: lanes never help each other, as on a phone"                                             \
    }

/* For tern_hooks: lines to standard error. */
void log_line(void *user, tern_log_level level, const char *line);
/* What the arguments say, into options filled by tern_options_defaults (hooks excepted). */
void model_options(const model_args *a, tern_options *o);
/* Opens the model with a progress line on a terminal. Returns -1 to go on or an exit status. */
int open_engine(const command *c, const model_args *a, tern_engine **out);

double process_age_s(void); /* seconds since this process started */
uint64_t peak_rss_bytes(void);

#endif
