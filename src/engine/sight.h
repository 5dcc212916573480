/* engine/sight.h - how an engine sees: the encoder of pictures beside its model, and the rows of whatever was seen.
 *
 *   look    a picture cut into the views that the encoder reads (media/medium.h)       tn_look_at, tn_look_close
 *   seen    what is known of a view: ids beyond the vocabulary, and its rows           tn_seen
 *   sight   the engine's list of those, by content                                      tn_sight_open, tn_sight_close
 *
 * A view's rows belong to its content: SHA-256 of its pixels and of the encoder. Equal views have equal ids as
 * long as the engine knows them, so that comparing ids, as the reuse of prompts does, compares pictures. Rows
 * stay in memory while anybody holds the view, and after that as long as there is room; on disk they outlive
 * the process (sight_kept.h). The encoder's metadata is read when the model is opened, its weights by the first
 * picture that is not known.
 *
 * Any thread may call; what is computed goes through the engine's pool. */
#ifndef TN_ENGINE_SIGHT_H
#define TN_ENGINE_SIGHT_H

#include "base/pause.h"
#include "engine/engine.h"
#include "engine/sight_encoder.h"
#include "media/medium.h"

typedef struct tn_sight tn_sight;

typedef struct tn_seen {
    uint8_t key[TN_VIEW_KEY];
    int32_t first, n;       /* ids first .. first + n - 1 */
    atomic_bool whole;      /* its rows see each other in the language model */
    atomic_bool in_windows; /* in layers with a window alone */
    atomic_int columns;     /* its rows have places in a grid of so many columns; 0: they have none */
    _Atomic(float *) x; /* [n][tn_sight_row_width]; NULL: not in memory. It stays while the view is held. */
    /* guarded by the sight's lock */
    bool unsettled; /* key is of the pixels alone: the encoder's fingerprint is not known yet */
    int32_t holders;
    uint64_t used;
    struct tn_seen *next; /* of its bucket */
} tn_seen;

/* path: the model's file. An encoder that was named and cannot be used is an error (sight_encoder.h). */
tern_status tn_sight_open(tern_engine *e, const char *path, const tern_options *o, tern_error *err);
void tn_sight_close(tern_engine *e);

/* Whether there is an encoder that can be used: named, in the package, or beside the model. why tells where
 * none is, or may be NULL. */
bool tn_sight_can(tern_engine *e, tern_error *why);
/* What it wants of pictures. Nothing is read. */
tern_status tn_sight_shape(tern_engine *e, const tn_tower_shape **out, tern_error *err);
void tn_sight_form(tern_engine *e, tn_encoder_form *out);
/* The encoder's weights leave memory until they are needed again. Unless option keep-encoder is on or auto
 * they do so by themselves after the pictures of a question. */
void tn_sight_rest(tern_engine *e);
/* A server's way with auto: asked now and then, the weights leave after a minute in which no view was
 * encoded. now_ns: of the caller's clock. Returns in how many nanoseconds to ask again; -1: when something
 * was encoded. */
int64_t tn_sight_idle(tern_engine *e, int64_t now_ns);

/* The view of that key, held by the caller; n rows, in memory or not. A new one gets ids. */
tern_status tn_sight_view(tern_engine *e, const uint8_t key[TN_VIEW_KEY], int32_t n, tn_seen **out,
                          tern_error *err);
/* Values of a row: those of an embedding, then those that first layers add (deepstack). */
size_t tn_sight_row_width(const tern_engine *e);
/* Gives it its rows [n][width], which are copied, unless it has them. */
tern_status tn_sight_give(tern_engine *e, tn_seen *v, const float *rows, tern_error *err);
void tn_sight_hold(tern_engine *e, tn_seen *v);
void tn_sight_let_go(tern_engine *e, tn_seen *v);
/* The view that an id belongs to, held by the caller; NULL: none. */
tn_seen *tn_sight_hold_of(tern_engine *e, int32_t id);

typedef struct tn_sight_counts {
    uint64_t encoded, in_memory, on_disk; /* views: computed, and found there */
    uint64_t reads;                       /* times that the encoder's weights were read */
    uint64_t row_bytes, encoder_bytes;    /* in memory: rows, and the encoder's weights */
    double encode_s;
} tn_sight_counts;
tn_sight_counts tn_sight_count(tern_engine *e);

/* ---- pictures ---------------------------------------------------------------------------------------- */

typedef struct tn_look {
    tern_engine *e;
    int32_t width, height; /* of the picture */
    tn_medium medium;      /* without pixels, once all rows are there */
    tn_seen **views;       /* [medium.n_views], held */
    int32_t n_rows;        /* of all views */
    int32_t encoded, in_memory, on_disk;
    int32_t next;          /* views before it have their rows */
    const tn_pause *pause; /* between layers of a view; borrowed; NULL: never */
    bool pending;          /* views are to be encoded; guarded by the sight's lock */
    bool unsettled;        /* rows of some were not looked for on disk */
    double encode_s;
} tn_look;

/* Cuts a picture, whose pixels are not needed afterwards, into its views, and finds those that are known. */
tern_status tn_look_at(tern_engine *e, const tn_picture *p, bool one_view, tn_look **out, tern_error *err);
/* Encodes the next view that has no rows. *more tells whether another one is left. cancel may be NULL. */
tern_status tn_look_encode(tn_look *l, const atomic_bool *cancel, bool *more, tern_error *err);
/* The first n views need no rows: what follows from them is known. */
void tn_look_skip(tn_look *l, int32_t n);
bool tn_look_done(const tn_look *l); /* all others have theirs */
void tn_look_close(tn_look **l);

/* The prompt of a conversation with pictures (media/prompt.h), with the ids of their rows. *ids is the caller's, to be
 * freed with free. */
tern_status tn_look_chat(tern_engine *e, const tern_chat_options *o, tn_look *const *looks, size_t n_looks,
                         int32_t **ids, size_t *n_ids, tern_error *err);
/* The same without a template: the pictures, then the text. */
tern_status tn_look_plain(tern_engine *e, const char *text, size_t n_text, tn_look *const *looks,
                          size_t n_looks, int32_t **ids, size_t *n_ids, tern_error *err);

#endif
