/* lab/explain.h - what each mechanism did for a request: was it on, why not, what it saved. Figures that
 * one run cannot measure, because the other way was not taken, are estimates from stage times that were
 * measured; the text says so. */
#ifndef TN_LAB_EXPLAIN_H
#define TN_LAB_EXPLAIN_H

#include "tern.h"

#include <stdbool.h>
#include <stddef.h>

enum { TN_EXPLAIN_MAX = 8, TN_EXPLAIN_TEXT = 320, TN_EXPLAIN_ROWS = 32 /* of a forward with drafts */ };

typedef struct tn_explained {
    const char *mechanism;      /* a string constant, as docs/reference/cli.md lists them */
    bool on;                    /* it took part in this request */
    bool knows_saved;           /* saved_ms says something */
    double saved_ms;            /* against the request without it; below 0: it cost */
    char text[TN_EXPLAIN_TEXT]; /* what it did, or why it was off */
} tn_explained;

/* What the session did since it was opened, its last prompt above all. One entry a mechanism, in the order
 * in which a request meets them; returns their number, at most TN_EXPLAIN_MAX. */
size_t tn_explain(const tern_session *s, tn_explained out[TN_EXPLAIN_MAX]);

/* What was before a request, of a session that answers many. */
typedef struct tn_explain_mark {
    tern_stats stats;
    tern_draft_stats drafts;
    uint64_t n_steps_of[TN_EXPLAIN_ROWS + 1]; /* forwards by number of rows */
} tn_explain_mark;
void tn_explain_mark_set(const tern_session *s, tn_explain_mark *m);
/* The same as tn_explain, of what the session did since m. */
size_t tn_explain_since(const tern_session *s, const tn_explain_mark *m, tn_explained out[TN_EXPLAIN_MAX]);

#endif
