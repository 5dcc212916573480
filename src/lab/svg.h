/* lab/svg.h - the simulator's figures: claims as pairs of bars, requests as Gantt charts one below the other
 * on one time axis. */
#ifndef TN_LAB_SVG_H
#define TN_LAB_SVG_H

#include "lab/reproduce.h"

/* Draws predicted claims, and those that the paper prints no number for. A pair of bars is relative to the
 * paper's. */
void tn_svg_claims(FILE *f, const char *title, const tn_claim *c, int32_t n);

typedef struct tn_svg_run {
    const char *label;
    const tn_timeline *timeline; /* of this one run, with tracks CPU, NPU, IO */
    double ttft_ms, after_ms;    /* first token; what comes after it before decoding can begin */
} tn_svg_run;

void tn_svg_gantt(FILE *f, const char *title, const tn_svg_run *runs, int32_t n);

#endif
