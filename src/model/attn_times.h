/* model/attn_times.h - how long the stages of sparse attention take, as measured on some machine: what heads
 * are planned by (attention/headplan.h). Kept in profiles, as JSON; packages of
 * earlier versions of tern have some too. */
#ifndef TN_MODEL_ATTN_TIMES_H
#define TN_MODEL_ATTN_TIMES_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

enum { TN_ATTN_WIDTHS = 4 }; /* of launches: 1, 2, 4, 8 units */

typedef struct tn_attn_times {
    int32_t share, pools; /* what was measured: rows that share a selection (0: none does), scored rows for
                             one of the text */
    int32_t n_widths;     /* 1..TN_ATTN_WIDTHS; 0: not measured */
    double launch_us[TN_ATTN_WIDTHS], score_us[TN_ATTN_WIDTHS]; /* a launch of 1, 2, 4, 8 units: as such, and
                                                                   for each million scores of one unit */
    double select_us, select_kpos_us; /* a row of the text: as such, and for every 1000 positions it sees */
    double attend_us, attend_kpos_us; /* the same, and for every 1000 positions it attends to */
} tn_attn_times;

/* New reference. */
/* NULL: no memory */
json_t *tn_attn_times_json(const tn_attn_times *t);
/* False: not such times, or beyond any machine's; *out is zeros then. */
bool tn_attn_times_read(const json_t *j, tn_attn_times *out);

#endif
