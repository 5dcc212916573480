/* session/session.h - one request: a growing text, the layers' state after it, and its logits (internal side
 * of tern.h). One thread at a time uses a session.
 *
 * Main path: tern_session_prefill and step (session.c) -> tern_session_generate (generate.c), which draws
 * tokens with the help of drafting.c, constrain.c and storing.c. saved.c writes a session to a file. */
#ifndef TN_SESSION_SESSION_H
#define TN_SESSION_SESSION_H

#include "engine/engine.h"
#include "model/forward.h"
#include "model/state.h"
#include "session/constrain.h"
#include "session/drafting.h"
#include "session/evaluator.h"
#include "session/pictures.h"
#include "session/stats.h"
#include "session/storing.h"

enum { TN_SCORE_ROWS = 16 }; /* positions whose logits are computed at once when scoring */

struct tern_session {
    tern_engine *e;
    int32_t n_ctx;
    tn_state state; /* the layers' state after the text */
    tn_evaluator *evaluator;
    tn_lora_mix mix; /* adapters that the text is read with */
    tn_step_profile profile;
    tn_timeline *timeline; /* NULL: not traced */
    int32_t *tokens;       /* [n_ctx] */
    int32_t n_tok;         /* evaluated tokens; their K and V are in slots 0..n_tok-1 */
    int32_t *next; /* [n_ctx] position of rope after each (model/axes.h); NULL: one more than its slot */
    float *logits; /* [n_vocab] after token n_tok-1 */
    bool has_logits;
    /* After the first `at` tokens, the last prompt, of a text that goes back to snapshots: another answer needs no token
     * again. at 0: none are kept. */
    struct tn_session_end {
        int32_t at;
        float *logits; /* [n_vocab], made by the first */
    } end;
    size_t n_prompt, n_known; /* of the last prefill: tokens, and how many of them were already evaluated */
    /* place of the rows of the last small forward: in this session's buffers, from this row on */
    const tern_session *rows_in;
    int32_t rows_at;
    float *tree_logits;  /* [TN_TREE_MAX][n_vocab], made by the first tn_session_verify */
    float *score_logits; /* [TN_SCORE_ROWS][n_vocab], made by the first tern_session_score */
    tn_drafting drafting;
    tn_storing storing;
    tn_constraint constraint;
    tn_session_rows *pictures; /* rows that its next prompt may have in place of tokens; NULL: none */
    bool answering;            /* an answer is open: tern_answer_open to tern_answer_close */
    _Atomic bool cancel;
    /* What the token drawn last was drawn from, while an answer is made; n_drawn 0: it was the likeliest. */
    const struct tn_candidate *drawn;
    size_t n_drawn;
    const char *stopped_by; /* of the options of the last generate: the stop text that came, or NULL */
    int32_t ended_with;     /* the token of an end that the last answer drew; -1: it ended otherwise */
    tern_stop_reason
        ended_for;         /* a limit's reason, where one closed the last answer's text; TERN_STOP_END else */
    const tn_pause *pause; /* borrowed; NULL: never */
};

/* Receives the logits of appended positions from first on. */
typedef struct tn_scorer {
    size_t first;
    bool (*on_logits)(void *user, size_t i, const float *logits);
    void *user;
    /* Alternative: the state of a position after the last norm, the input of lm_head, float[n_embd]; needs
     * row, room for one */
    void (*on_hidden)(void *user, size_t i, const float *x);
    float *row;
} tn_scorer;

/* Evaluate tokens[0..n) after the session's prefix; the session's logits are then those of the last one.
 * scorer may be NULL. */
tern_status tn_session_append(tern_session *s, const int32_t *tokens, size_t n, const tn_scorer *scorer,
                              tern_error *err);
/* A prompt read chunk by chunk, so that others have their turn in between. The bits are those of
 * tern_session_prefill. */
typedef struct tn_prefill {
    tern_session *s;
    const int32_t *tokens; /* borrowed: the tokens still to evaluate */
    size_t n, done;
    bool calibrates;
    const tn_scorer *scorer; /* borrowed; NULL: nobody wants the logits */
} tn_prefill;

/* Keeps the session's common beginning with the prompt and plans the rest; n == 0: nothing is left. */
tern_status tn_prefill_begin(tern_session *s, const int32_t *prompt, size_t n_tok, tn_prefill *out,
                             tern_error *err);
/* Before its first chunk: the logits of its tokens are given out as they are read, TN_SCORE_ROWS at a time. Borrows scorer. */
tern_status tn_prefill_score(tn_prefill *p, const tn_scorer *scorer, tern_error *err);
/* Evaluates one more chunk; at the end the session has the last token's logits. After a failure or a cancel
 * the finished chunks stay. Nothing else may change the session in between. */
tern_status tn_prefill_chunk(tn_prefill *p, tern_error *err);
/* While it evaluates its own text alone, the session lets what is more urgent go first (base/pause.h); borrowed. NULL:
 * never again. */
void tn_session_pauses(tern_session *s, const tn_pause *pause);
/* Makes the session a copy of src after its first n tokens, where src's state can go back to them
 * (tn_state_left). Both belong to one engine and use the same rope factors, and n fits. On failure the
 * session is unchanged. */
tern_status tn_session_copy(tern_session *dst, const tern_session *src, int32_t n, tern_error *err);
/* Evaluate a draft tree after the session's prefix. s->tree_logits then holds the logits of every row, with
 * the bits of decoding along the row's ancestors. The prefix is unchanged until rows are kept. */
tern_status tn_session_verify(tern_session *s, const tn_tree *tree, tern_error *err);
/* One session's part in a shared forward: its rows, and the result. */
typedef struct tn_turn {
    tern_session *s;
    tn_tree tree; /* one row: a token that becomes part of the text; several: as in tn_session_verify */
    tern_status status;
    tern_error err;
} tn_turn;

/* Evaluates the rows of up to TN_MAX_TEXTS different sessions of one engine together, TN_TREE_MAX rows in
 * all, and reads the weights once. Every session gets the bits that it would get alone. The next caller
 * handles a cancel. The caller owns all these sessions meanwhile. */
void tn_sessions_forward(tn_turn *turns, int32_t n);
/* Append rows of the tree just verified: first the root, then each time a child of the previous row. */
void tn_session_keep(tern_session *s, const tn_tree *tree, int32_t row);
/* The row kept last: its logits become the session's. */
void tn_session_settle(tern_session *s, int32_t row);
/* Returns the timeline that records the session's work: its own, or the engine's while it is watched; NULL:
 * none. */
tn_timeline *tn_session_timeline(const tern_session *s);
/* Records an event of the session's own thread on that timeline. name is a string constant. */
void tn_session_trace(tern_session *s, const char *name, int64_t start_ns, int64_t end_ns);
/* Drops everything after the common beginning with the prompt. Returns how many of its tokens need no evaluation. */
size_t tn_session_keep_prefix(tern_session *s, const int32_t *prompt, size_t n_tok);
/* Keeps logits as those after the first `at` tokens. Without memory for them, that token is evaluated again. */
void tn_session_keep_end(tern_session *s, int32_t at, const float *logits);
/* The tokens of a saved session that this one could load, malloc'ed, and the places it can go back to. TERN_E_FORMAT: visibly damaged.
 * TERN_E_INVALID and TERN_E_LIMIT: of another model, or too long. */
tern_status tn_session_peek(const tern_session *s, const char *path, int32_t **tokens, int32_t *n,
                            tn_state_places *places, tern_error *err);

/* The residual after the last layer of row i of the last evaluation. */
static inline const float *tn_session_row(const tern_session *s, int32_t i) {
    return s->evaluator->ops->row(s->evaluator, TN_BUF_X, i);
}

/* A package's pipeline, for its times and counts; NULL: the session computes from a file, or is not open. */
static inline tn_pipeline *tn_session_pipeline(const tern_session *s) {
    return s->evaluator ? s->evaluator->pipeline : NULL;
}

/* longrope: the session's capacity chooses the factors, so that a row's bits never depend on the final length
 * of the text. */
static inline bool tn_session_rope_long(const tern_session *s) {
    const tn_hparams *h = &s->e->model->h;
    return h->rope_orig_ctx > 0 && s->n_ctx > h->rope_orig_ctx;
}

/* tern_session_lora with a mix of this engine. */
void tn_session_mix(tern_session *s, const tn_lora_mix *mix);

/* Drop all but the first n tokens, or more where a kind of state can only return to a snapshot: see
 * s->n_tok. */
void tn_session_truncate(tern_session *s, int32_t n);

/* What the model makes of each token, as its last norm leaves it: out [n_tok][n_embd]. The session's text is replaced. */
tern_status tn_session_embed_rows(tern_session *s, const int32_t *ids, size_t n_tok, float *out,
                                  tern_error *err);

#endif
