/* quant/stages.h - the time that packing spends in each stage. A single thread moves the clock from stage
 * to stage. */
#ifndef TN_QUANT_STAGES_H
#define TN_QUANT_STAGES_H

#include "base/clock.h"

typedef enum tn_pack_stage {
    TN_STAGE_OPEN,    /* the model's outline, the calibration text */
    TN_STAGE_SENSE,   /* the cost of errors (sense.h) */
    TN_STAGE_FORWARD, /* the layers' weights and the calibration text through them */
    TN_STAGE_CHOOSE,  /* smoothing and clips (choose.h) */
    TN_STAGE_FACTOR,  /* Gram matrices and their factors (gram.h) */
    TN_STAGE_ROUND,   /* weights to codes (round.h) */
    TN_STAGE_JUDGE,   /* the loss (judge.h) */
    TN_STAGE_WRITE,   /* the package, and reading it back */
    TN_N_STAGES
} tn_pack_stage;

typedef struct tn_stage_time {
    double wall_s, cpu_s; /* cpu_s: of all threads */
} tn_stage_time;

typedef struct tn_stage_clock {
    tn_pack_stage at;
    double wall_s, cpu_s; /* when the stage began */
    tn_stage_time spent[TN_N_STAGES];
} tn_stage_clock;

/* Ends the current stage and begins another. c may be NULL. */
static inline void tn_stage_enter(tn_stage_clock *c, tn_pack_stage stage) {
    if (!c) return;
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    double wall_s = tn_now_s(), cpu_s = (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
    if (c->wall_s > 0) {
        c->spent[c->at].wall_s += wall_s - c->wall_s;
        c->spent[c->at].cpu_s += cpu_s - c->cpu_s;
    }
    c->at = stage;
    c->wall_s = wall_s;
    c->cpu_s = cpu_s;
}

#endif
