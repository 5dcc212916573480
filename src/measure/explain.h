/* measure/explain.h - what each mechanism did for a request: was it on, why not, what it saved. Every figure is
 * counted or measured in the request itself; the time that it would have taken another way is not known, and
 * so not told. */
#ifndef TN_MEASURE_EXPLAIN_H
#define TN_MEASURE_EXPLAIN_H

#include "session/stats.h"

#include <stdbool.h>
#include <stddef.h>

enum { TN_EXPLAIN_MAX = 8, TN_EXPLAIN_TEXT = 320 };

typedef struct tn_explained {
    const char *mechanism; /* a string constant, as docs/reference/cli.md lists them */
    bool on;               /* it took part in this request */
    uint64_t saved, of;    /* what it spared or did beside other work, of how much in all; of 0: nothing */
    const char *unit;      /* of both, a phrase: "tokens not computed" */
    char text[TN_EXPLAIN_TEXT]; /* what it did, or why it was off */
} tn_explained;

/* What the session did since it was opened, its last prompt above all. One entry a mechanism, in the order
 * in which a request meets them; returns their number, at most TN_EXPLAIN_MAX. */
size_t tn_explain(const tern_session *s, tn_explained out[TN_EXPLAIN_MAX]);

/* What was before a request, of a session that answers many. */
typedef struct tn_explain_mark {
    tn_stats stats;
    tn_draft_stats drafts;
    uint64_t n_tasks, n_ahead, n_beside;
} tn_explain_mark;
void tn_explain_mark_set(const tern_session *s, tn_explain_mark *m);
/* The same as tn_explain, of what the session did since m. */
size_t tn_explain_since(const tern_session *s, const tn_explain_mark *m, tn_explained out[TN_EXPLAIN_MAX]);

#endif
