/* cli/args.h - flags as a table: parsing, --help and range errors from one description.
 *
 * A command's own flags are rows here (arg_spec); what an engine, its sessions and their answers are asked to
 * do are rows of params/params.h, which commands take as `--name value` or `--set name=value`. */
#ifndef TN_CLI_ARGS_H
#define TN_CLI_ARGS_H

#include "params/params.h"
#include "tern.h"

#include <stdbool.h>
#include <stdint.h>

typedef enum arg_kind {
    ARG_FLAG,
    ARG_INT,
    ARG_U64,
    ARG_FLOAT,
    ARG_STR,
    ARG_LIST,
    ARG_MODEL,
    ARG_LEVEL, /* int32_t: a flag, 1, which takes "=all", 2 */
    /* These say where --help shows the row: below what the answer is like, or only in `tern help COMMAND`. */
    ARG_ANSWER = 32,
    ARG_MORE = 64,
    ARG_PLACES = ARG_ANSWER | ARG_MORE
} arg_kind;

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
    void *dst;       /* bool, int32_t, uint64_t, float, const char *, arg_list, model_args */
    double min, max; /* of numbers; both 0: no bounds */
    const char *help;
} arg_spec;

/* This is a model and what it is asked to do. */
typedef struct model_args {
    const char *model;
    uint32_t takes;     /* TN_IN_...: the parameters of params/params.h that the command takes */
    tern_options o;     /* texts are those of argv */
    const char *pack;   /* --pack; NULL: not given */
    bool whole_context; /* -c 0 */
    const char *from;   /* of cli_packing_measured; else NULL */
    bool packs;         /* the command answers: a package may take the model's place (cli/packing.h) */
} model_args;

typedef struct command {
    const char *name, *usage, *summary;
    const arg_spec *specs; /* ends with a zeroed entry */
    int max_words;         /* positional arguments accepted */
} command;

enum { EXIT_OK = 0, EXIT_FAILED = 1, EXIT_USAGE = 2 };

/* Parses argv[1..argc). Returns -1 to go on, or an exit status (help printed, or a usage error printed).
 * words gets up to max_words positional arguments, NULL-terminated. */
int cli_args_parse(const command *c, int argc, char **argv, const char **words);
/* Prints "tern NAME: message" on standard error and returns EXIT_USAGE. */
int cli_usage_error(const command *c, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Prints "tern: message" on standard error and returns EXIT_FAILED. */
int cli_failed(const tern_error *err);
int cli_failed_text(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

/* Reads "128,512" as integers in [1, max]. Returns how many there are, or -1. */
int cli_parse_int_list(const char *text, int32_t *out, int cap, int32_t max);
/* Reads a whole file ("-": standard input) as a zero-terminated string that the caller frees with free().
 * Returns NULL with a message printed. */
char *cli_read_text_file(const char *path, size_t *n_bytes);

void cli_model_args_defaults(model_args *a, uint32_t takes);
/* This is the row of -m MODEL, and with it all parameters that the command takes. */
#define MODEL_ARGS(a)                                                                                        \
    { "model", 'm', "MODEL", ARG_MODEL, &(a), 0, 0, "a GGUF file, a Hugging Face folder or a .tern package" }
#define PACK_ARG(a)                                                                                          \
    {                                                                                                        \
        "pack", 0, "WHEN", ARG_STR | ARG_MORE, &(a).pack, 0, 0,                                              \
            "keep a package of the model for the next start (tern cache): auto (default: of float "          \
            "models, in the background), later (of any model), now (before the answer), or never"            \
    }
/* A model that is no path may be the name of one that `tern models` lists. args_parse does this for -m. */
void cli_args_model_path(model_args *a);
/* The same of any model: name itself, or what it stands for, in path. */
enum { MODEL_PATH_MAX = 4096 };
const char *cli_model_path(const char *name, char path[MODEL_PATH_MAX]);
/* The same of a command's word for a model, which is changed to what it stands for. Returns -1, or
 * EXIT_FAILED where there is no such model, which was said. */
int cli_model_word(const char **word, char path[MODEL_PATH_MAX]);
/* Takes a word (or NULL) as the model, where -m named none. Returns -1, or EXIT_USAGE where both did. */
int cli_args_model_word(const command *c, model_args *a, const char *word);
/* Says of a name that is no model what would work. Returns EXIT_FAILED. */
int cli_no_model(const char *name);
/* Tells whether a parameter was given on the command line. */
bool cli_args_given(const model_args *a, const char *name);

/* Prints everything that can be set by name, for `tern help set`. */
int cli_help_set(void);

/* The progress line is on a terminal's standard error. progress_stop may be called by a signal handler: what
 * shows progress is then cancelled. progress_of_prompt says that a prompt of n tokens is read next.
 * progress_done clears the line. */
void cli_progress_stop(void);
void cli_progress_go_on(void); /* what comes next is not stopped */
void cli_progress_of_prompt(size_t n);
void cli_progress_done(void);
/* From now on a command shows progress of its own, and what the model does in between is not shown. */
void cli_progress_quiet(void);

/* Writes lines to standard error, for tern_hooks. */
void cli_log_line(void *user, tern_log_level level, const char *line);
/* Opens the model with a progress line on a terminal. c may be NULL when there is a model. Returns -1 to go
 * on or an exit status. */
int cli_open_engine(const command *c, const model_args *a, tern_engine **out);
/* -c 0 becomes the context that the model was trained for, and that is said. */
void cli_use_context(model_args *a, const tern_engine *e);

#endif
