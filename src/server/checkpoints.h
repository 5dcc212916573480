/* server/checkpoints.h - conversations of the server on disk, so that a prompt's prefix is known after a
 * restart too.
 *
 * A folder of this user's alone (0700) holds saved sessions (tern_session_save, 0600), named by the hash
 * of the model and of the tokens they hold. Their tokens are kept in memory: the entry that shares most
 * with a prompt is found without reading one. Those used longest ago go when the folder outgrows its
 * limit. An entry that is damaged costs one notice, and goes. One thread at a time; several servers may
 * use one folder. */
#ifndef TN_SERVER_CHECKPOINTS_H
#define TN_SERVER_CHECKPOINTS_H

#include "base/ctx.h"

typedef struct tn_checkpoints tn_checkpoints;

enum { TN_CHECKPOINTS_PATH = 4096 };
enum { TN_CHECKPOINT_LEAST = 64 /* tokens: shorter ones are evaluated as quickly */ };

/* A hash of the model, and of what else decides about the bits of a session's state: a file in another form could be
 * loaded, but the text would not be the one that is computed without it. */
uint64_t tn_checkpoints_identity(const tern_session *s);
/* s: a session of the model, whose context bounds what can be used. */
tern_status tn_checkpoints_open(tern_session *s, uint64_t limit_bytes, tn_checkpoints **out, tern_error *err);
void tn_checkpoints_close(tn_checkpoints **c);

/* How many tokens of the prompt the best entry holds, which is *which; 0: none. in_places: its state
 * can go back to some places only, and what counts is the last of them that the prompt shares. */
size_t tn_checkpoints_match(const tn_checkpoints *c, const int32_t *ids, size_t n, bool in_places,
                            size_t *which);
/* false: it was damaged or went meanwhile, and s is empty. */
bool tn_checkpoints_load(tn_checkpoints *c, size_t which, tern_session *s);
/* Nothing where it is there already or too short. A disk that is full costs one notice. Entries that it
 * continues go. */
void tn_checkpoints_save(tn_checkpoints *c, const tern_session *s);

/* $XDG_CACHE_HOME/tern/prefixes, or ~/.cache/tern/prefixes; false: neither is set, or too long. */
bool tn_checkpoints_place(char out[TN_CHECKPOINTS_PATH]);
/* Erases all entries of the default folder, and what was seen of pictures (engine/sight_kept.h), because nobody knows which of them holds what is to be forgotten.
 * Servers that use the folder are told (tn_checkpoints_forgotten). *n: how many there were. */
tern_status tn_checkpoints_clear(int64_t *n, tern_error *err);
/* Tells whether tn_checkpoints_clear came since this was asked last, by this process or by another. Sessions
 * that hold what was read before may not be saved then. */
bool tn_checkpoints_forgotten(tn_checkpoints *c);

#endif
