/* prefill/steps.h - from a model's program to the steps of a prefill: which ops form one task.
 *
 * The device's linears are steps of their own. The CPU's work between two of them is one step: its ops run
 * row after row, while a row is in cache. A step that recalls a state is separate, because it waits for other
 * chunks. So a plain decoder layer is: norm | qkv | rope | attention | o | norm2 | ffn | glu | down, where
 * "norm" begins with the residual of the previous layer, and the step after the last layer is its residual.
 * Sites with an outlier path have a step for it beside their product, and sparse attention has a plan before
 * it. */
#ifndef TN_PREFILL_STEPS_H
#define TN_PREFILL_STEPS_H

#include "model/program.h"
#include "package/measured.h"

/* All types of steps that a program may have, whatever the package and its options. Times are kept by
 * them. */
typedef struct tn_step_types {
    int32_t n;
    struct {
        const char *name;
        tn_step_kind kind;
    } at[TN_MAX_STEP_TYPES];
} tn_step_types;

void tn_step_types_of(const tn_program *p, tn_step_types *out);
/* Returns the type of that name, or -1 for none. */
int32_t tn_step_type_find(const tn_step_types *t, const char *name);

/* The work of a step. */
typedef struct tn_step_work {
    const tn_op *ops;
    int32_t n_ops;
    int32_t site;   /* PRODUCT, OUTLIERS: of the program; else -1 */
    int32_t alone;  /* PRODUCT: 1 + the number of the site's linear that this step computes; 0: all of them */
    int32_t merges; /* site whose outputs these rows finish first: from 8 bits, with the outliers'
                   contribution; -1: none */
} tn_step_work;

typedef struct tn_steps {
    tn_ctx *ctx;
    tn_step_types types;
    int32_t n;
    tn_step *at;
    tn_step_work *work; /* [n] */
} tn_steps;

typedef struct tn_steps_options {
    bool plan;      /* attention is sparse */
    bool operators; /* the linears of one input are separate steps, as in EdgeFlow: q, k, v, gate, up */
    bool (*has_outliers)(void *user, int32_t site);
    bool (*output_int8)(void *user,
                        int32_t site);            /* NULL: no site; else the next step finishes its outputs */
    bool (*has)(void *user, const tn_step *step); /* NULL: all steps; else asked for every step */
    void *user;
} tn_steps_options;

tern_status tn_steps_make(tn_ctx *ctx, const tn_program *p, const tn_steps_options *o, tn_steps *out,
                          tern_error *err);
void tn_steps_free(tn_steps *s);

#endif
