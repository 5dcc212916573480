/* cli/pack_progress.h - one line for the whole of packing: how far it is, what is left of its time, what it does. */
#ifndef TN_CLI_PACK_PROGRESS_H
#define TN_CLI_PACK_PROGRESS_H

#include <stdbool.h>
#include <stddef.h>

/* Packing has stages, which come in one order and of which some come several times (until the bits suffice). A stage takes its usual
 * share of what was left when it began, so that the whole never goes back and never ends before its time. */
typedef struct pack_progress {
    char stage[24];
    double fraction;   /* of the stage, told last */
    double begin, end; /* of the stage in the whole */
    double started_s;  /* by the caller's clock */
    bool shown;
} pack_progress;

/* How much of all is done when a stage of this name is so far; it never falls. */
double cli_pack_progress(pack_progress *p, const char *stage, double fraction);
/* "packing: 42 %, about 30 s left (rounding the weights)" */
const char *cli_pack_progress_line(pack_progress *p, const char *stage, double fraction, double now_s,
                                   char *out, size_t cap);
/* For tern_hooks, whose user is a pack_progress: shows the line on a terminal. */
bool cli_pack_progress_show(void *user, const char *stage, double fraction);
/* Clears the line. */
void cli_pack_progress_done(pack_progress *p);
#endif
