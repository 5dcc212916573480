/* params/params.h - the one table of parameters. The parser of the command line, --help, the manual page,
 * the reference in docs/reference/cli.md, tern_options_set and what checks values all read it; nothing
 * else parses, validates or documents one of these parameters. */
#ifndef TN_PARAMS_H
#define TN_PARAMS_H

#include "base/ctx.h"
#include "params/options.h"

typedef enum tn_param_kind {
    TN_PARAM_FLAG,    /* bool */
    TN_PARAM_INT,     /* int32_t */
    TN_PARAM_U64,     /* uint64_t */
    TN_PARAM_SIZE,    /* uint64_t: bytes, with K, M or G for powers of 1024 */
    TN_PARAM_FLOAT,   /* float */
    TN_PARAM_PERCENT, /* float: a share, given in percent */
    TN_PARAM_CHOICE,  /* const char *: one of `choices` */
    TN_PARAM_TEXT,    /* const char * */
    TN_PARAM_STEAL    /* int32_t: one of `choices`, or a number */
} tn_param_kind;

typedef enum tn_audience {
    TN_FOR_USERS,  /* shown by --help */
    TN_FOR_DEVICE, /* how this machine does it: speed and memory, hardly ever the text */
    TN_FOR_LAB,    /* to see what a mechanism is worth */
    TN_N_AUDIENCES
} tn_audience;

/* These are the commands that take a parameter. */
enum {
    TN_IN_RUN = 1,
    TN_IN_CHAT = 2,
    TN_IN_ASK = 4,
    TN_IN_EVAL = 8,
    TN_IN_BENCH = 16,
    TN_IN_SERVE = 32,
    TN_IN_EMBED = 64,
    TN_IN_ANSWERS = TN_IN_RUN | TN_IN_CHAT | TN_IN_ASK, /* those that write text */
    TN_IN_ALL = 127
};

/* A need is what a parameter has an effect with. Without that it is announced. */
typedef enum tn_param_need {
    TN_NEEDS_NOTHING,
    TN_NEEDS_PACKAGE,
    TN_NEEDS_STREAM,   /* a package or a quantised file: what may arrive beside the first prompt */
    TN_NEEDS_HEXAGON,  /* npu hexagon */
    TN_NEEDS_HOST,     /* npu host */
    TN_NEEDS_SEPARATE, /* npu-separate-weights */
    TN_NEEDS_SPARSE,   /* sparse attention of prompts or of decoding */
    TN_NEEDS_SHADOW,   /* attention shadow or auto */
    TN_N_NEEDS
} tn_param_need;

typedef struct tn_param {
    const char *name;
    char letter; /* short spelling on the command line, or 0 */
    tn_param_kind kind;
    tn_audience audience;
    uint32_t commands;
    tn_param_need needs;
    bool of_answer;        /* of what is written, not of the machine: groups of --help */
    size_t offset;         /* of the field of tern_options */
    double min, max, step; /* numbers: a multiple of step (0: any) from min to max (both 0: any); the default
                              is valid too */
    const char *unit;      /* what the value is called */
    const char *dflt;      /* the default, for people */
    const char *choices;   /* "a|b|c" */
    const char *help;
} tn_param;

size_t tn_params_count(void);
const tn_param *tn_param_at(size_t i); /* in the order of --help; NULL after the last */
const tn_param *tn_param_find(const char *name, size_t n_name);

/* An alias is a spelling of earlier versions: `name` stands for `now`, with `value` when it took none. */
typedef struct tn_param_alias {
    const char *name, *now, *value;
} tn_param_alias;
const tn_param_alias *tn_param_alias_find(const char *name, size_t n_name);

/* Sets a parameter from text, which must outlive o. A flag takes on or off, or NULL for on. */
tern_status tn_param_set(tern_options *o, const tn_param *p, const char *value, tern_error *err);
/* Sets from "name=value", or from the name of a flag alone. n_name bytes of it are the name. */
tern_status tn_params_assign(tern_options *o, const char *assignment, tern_error *err);
/* Writes the value as text that tn_param_set takes, "" where the default is no value of its own. */
void tn_param_format(const tern_options *o, const tn_param *p, char *buf, size_t cap);
bool tn_param_given(const tern_options *o, const tn_param *p);
/* Reads a number; with `size` it may end in K, M or G (of 1024). */
bool tn_params_u64(const char *value, bool size, uint64_t *out);
/* Checks that every value is within its range, and that none contradicts another. */
tern_status tn_params_check(const tern_options *o, tern_error *err);
/* Fills in what a preset says of parameters that were not set (by name, or in the fields of o). Presets that were
 * filled in once change nothing when they are again. */
void tn_params_preset(tern_options *o);
/* Logs a warning for every parameter set by name that has no effect on such a model. sparse: its attention may be. */
void tn_params_announce(const tern_options *o, tn_ctx *ctx, const char *path, bool package, bool blocks,
                        bool sparse);
/* Writes "a whole number from 1 to 64" and so on, for people. */
void tn_param_range(const tn_param *p, char *buf, size_t cap);

#endif
