/* session/drafting.h - a session's drafts: the drafters of draft/, calibration of the prompt, a draft model,
 * and the figures. */
#ifndef TN_SESSION_DRAFTING_H
#define TN_SESSION_DRAFTING_H

#include "draft/draft.h"
#include "session/mtp.h"

typedef struct tn_draft_model tn_draft_model;

typedef struct tn_drafting {
    tn_draft *draft;
    uint32_t drafters;     /* of the session */
    char *model_path;      /* of the draft model or NULL */
    tn_draft_model *model; /* opened by the first call that uses it */
    tn_mtp *mtp;           /* the same for the model's own layer that guesses one token further */
    tn_mtp *head;          /* and for the engine's head */
    /* For calibration: the output weights of the text's own tokens, so that a prompt row costs hundreds of
     * products instead of the whole vocabulary. */
    int32_t *head_ids; /* [TN_DRAFT_VOCAB] */
    int32_t n_head, cap_head;
    float *head_panels, *head_bias, *head_rows, *head_logits;
    uint64_t n_steps_of[TN_TREE_MAX + 1]; /* forwards by number of rows */
    uint64_t n_steps, n_rows, n_accepted, n_calibrated, n_offered;
    int64_t draft_ns, draft_max_ns, verify_ns, calibrate_ns;
    /* Called after every forward of a drafted answer: the rows from the root to `last` became text, the
     * others were wrong. May be NULL. */
    void (*on_step)(void *user, const tn_tree *tree, int32_t last);
    void *on_step_user;
} tn_drafting;

/* Prepares the drafters named in `text` (NULL: the session's own) and opens what is missing: *drafters. */
tern_status tn_drafting_use(tern_session *s, const char *text, uint32_t *drafters, tern_error *err);
void tn_drafting_close(tern_session *s);
/* dst's text became the first n tokens of src's; NULL: of another's. What learns from a text's words follows by itself. */
void tn_drafting_copy(tern_session *dst, const tern_session *src, int32_t n);

/* Called around a prefill of tokens[0..n) when the session calibrates: the first before it, with the text;
 * the second after each evaluated piece, for its rows at positions pos0... */
bool tn_drafting_calibrates(const tern_session *s, size_t n);
tern_status tn_drafting_before(tern_session *s, const int32_t *tokens, size_t n, tern_error *err);
tern_status tn_drafting_calibrate(tern_session *s, int32_t pos0, int32_t n_rows, tern_error *err);

/* Measures forwards of several numbers of rows after the session's text, relative to one row: the quickest of
 * a few. They leave no trace but the times, at most TN_PROP_COSTS. *n = 0 where the context has no room. */
tern_status tn_drafting_measure(tern_session *s, float *rows, float *relative, int *n, tern_error *err);
/* Does that once per package, before the first forward with drafts, unless the profile beside it has the
 * times. */
tern_status tn_drafting_profile(tern_session *s, tern_error *err);

/* Opens a small draft model. */
tern_status tn_draft_model_open(tern_engine *target, const char *path, int32_t n_ctx, tn_draft_model **out,
                                tern_error *err);
void tn_draft_model_close(tn_draft_model **m);
void tn_draft_model_propose(void *model, tn_proposals *p, const int32_t *text, int32_t n);

#endif
