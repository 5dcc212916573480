/* model/state.h - what the layers of a model remember of a text, between its tokens.
 *
 * A state is made of kinds: keys and values of attention (kv.h) are the first. Sessions, drafts, saved
 * files and prefix caches know this interface only; the ops that read and write a kind know the kind.
 * Lifecycle: a forward writes rows after position n_tok (rows of a draft tree into slots from n_tok on);
 * tn_state_append makes them part of the text, tn_state_keep one of them; truncate goes back. Some kinds
 * can go back to any position. Others (a recurrent matrix) hold the last position only, and go back to a
 * snapshot; so truncate says how far back it went. One thread at a time. */
#ifndef TN_MODEL_STATE_H
#define TN_MODEL_STATE_H

#include "model/conv.h"
#include "model/delta.h"
#include "model/kv.h"
#include "model/program.h"

#include <string.h>

/* Reads or writes n bytes of a state at data, in the order of the file. */
typedef void (*tn_state_io)(void *user, void *data, size_t n_bytes);

/* What a kind of state can do. Positions are those of the text; self is the kind's. */
typedef struct tn_state_ops {
    const char *name;
    uint64_t (*bytes)(const void *self);
    /* Rows written after n_tok become positions n_tok .. n_tok + n - 1. NULL: nothing to do. */
    void (*append)(void *self, int32_t n_tok, int32_t n);
    /* The row in `slot` becomes position n_tok. */
    void (*keep)(void *self, int32_t slot, int32_t n_tok);
    /* Forget all but the first n_tok positions. NULL: this kind goes back to snapshots only. */
    void (*truncate)(void *self, int32_t n_tok);
    /* With truncate: whether it can go back to n_tok; else the state goes back to a snapshot. NULL: to
     * any. */
    bool (*reaches)(const void *self, int32_t n_tok);
    /* What the first n_tok positions left, for those kinds: bytes of a snapshot; take one; go back to it.
     * All NULL where truncate goes back to any position: such a kind's snapshot is its position. */
    size_t (*snapshot_bytes)(const void *self);
    void (*snapshot)(const void *self, void *out);
    void (*restore)(void *self, const void *from); /* NULL: to before the first position */
    int32_t (*snapshot_at)(const void *from); /* the position that a snapshot is of; NULL: it does not tell */
    /* All of the first n_tok positions through io, the same bytes for the same text. saving: io writes. */
    void (*transfer)(void *self, int32_t n_tok, bool saving, tn_state_io io, void *user);
    void (*close)(void *self);
} tn_state_ops;

/* snapshot_at of snapshots that begin with it. */
static inline int32_t tn_state_snapshot_at(const void *from) {
    int32_t n_tok;
    memcpy(&n_tok, from, sizeof n_tok);
    return n_tok;
}

/* A place to go back to. It holds as long as the text has not been truncated in front of it. */
typedef struct tn_state_mark {
    int32_t n_tok;
    void *data; /* of the kinds that need one, one after another */
} tn_state_mark;

extern const tn_state_ops tn_kv_state;    /* self: a tn_kv (kv.c) */
extern const tn_state_ops tn_conv_state;  /* self: a tn_conv (conv.c) */
extern const tn_state_ops tn_delta_state; /* self: a tn_delta (delta.c) */

enum { TN_STATE_MARKS = 64, TN_STATE_LEAST_MARKS = 8, TN_STATE_MARK_BYTES = 128 << 20 };

typedef struct tn_state {
    tn_ctx *ctx;
    int32_t n_tok;
    struct tn_state_part {
        const tn_state_ops *ops; /* NULL: the model has no such state */
        void *self;
    } parts[TN_N_STATE_KINDS + 1];
    int32_t n_parts;
    tn_kv kv;                            /* the KV part's self */
    tn_conv conv;                        /* the convolutions' */
    tn_delta delta;                      /* the delta nets' */
    tn_state_mark marks[TN_STATE_MARKS]; /* ascending */
    int32_t n_marks;
} tn_state;

/* The kinds that the program's ops use, empty, for n_ctx positions; kv: the form of keys and values. */
tern_status tn_state_open(tn_ctx *ctx, const tn_program *p, const tn_hparams *h, int32_t n_ctx, tn_kv_type kv,
                          tn_state *out, tern_error *err);
void tn_state_close(tn_state *s);
/* One more kind. Takes self, and closes it with the rest. */
void tn_state_add(tn_state *s, const tn_state_ops *ops, void *self);

/* What rows want to know of them (rows.h); NULL: the model has no such layers. */
static inline const tn_conv *tn_state_conv(const tn_state *s) { return s->conv.ring ? &s->conv : NULL; }
static inline tn_delta *tn_state_delta(tn_state *s) { return s->delta.base ? &s->delta : NULL; }
uint64_t tn_state_bytes(const tn_state *s);
/* What a state of this model takes, before there is one. */
uint64_t tn_state_bytes_of(const tn_hparams *h, int32_t n_ctx, tn_kv_type kv);
void tn_state_append(tn_state *s, int32_t n);
void tn_state_keep(tn_state *s, int32_t slot);
/* Can it go back to any position? Else truncate goes back to a mark. */
bool tn_state_truncates(const tn_state *s);
/* Can it go back to this one, without a mark? */
bool tn_state_reaches(const tn_state *s, int32_t n_tok);
/* Forget positions from n_tok on, and maybe some before: returns how many are left, at most n_tok. The caller
 * evaluates the rest again. */
int32_t tn_state_truncate(tn_state *s, int32_t n_tok);
/* What truncate would leave. */
int32_t tn_state_left(const tn_state *s, int32_t n_tok);
/* dst becomes what s was, or would be, after n_tok positions, marks too: n_tok is what tn_state_left says.
 * Both are of one model; keys and values are converted where the forms differ. On failure dst is as before. */
tern_status tn_state_copy(tn_state *dst, const tn_state *s, int32_t n_tok, tern_error *err);
/* Positions since the last mark, where marks are needed; else 0. */
int32_t tn_state_unmarked(const tn_state *s);
/* Remember this position as one to go back to; where there is no room, the mark goes whose neighbours are
 * nearest. Does nothing where every position is one. */
tern_status tn_state_snapshot(tn_state *s, tern_error *err);

/* Places to go back to that are saved with a state. */
typedef struct tn_state_places {
    int32_t n, at[TN_STATE_MARKS]; /* positions, ascending, from 1 on */
    int32_t end;                   /* the one whose logits are saved too; 0: none */
} tn_state_places;

/* Those worth their room in a file: two, or as many as take no more than the rest of the state does. The last is always
 * among them, and so is out->end, which is set to 0 where it is none of them. *n_bytes: what they take. */
void tn_state_places_of(const tn_state *s, tn_state_places *out, uint64_t *n_bytes);
/* With the snapshots at these places, which are some of its marks. */
void tn_state_save(const tn_state *s, const tn_state_places *places, tn_state_io put, void *user);
/* Takes the place of what was there; kv: the form that was saved, which is converted where it is another.
 * io fills with zeros what it cannot read. TERN_E_MEMORY, or TERN_E_FORMAT for a snapshot of another place; s is empty then. */
tern_status tn_state_load(tn_state *s, const tn_hparams *h, int32_t n_tok, tn_kv_type kv,
                          const tn_state_places *places, tn_state_io get, void *user, tern_error *err);

#endif
