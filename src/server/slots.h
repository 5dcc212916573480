/* server/slots.h - sessions that keep their conversations: which one begins as a prompt does.
 *
 * A slot is a session, opened when it is first needed. Idle slots keep the conversation they had; the one
 * used longest ago gives its place up, and its conversation goes to disk. Busy slots have an answer being
 * made; others may copy what they know. One thread at a time: the worker of the queue. */
#ifndef TN_SERVER_SLOTS_H
#define TN_SERVER_SLOTS_H

#include "server/checkpoints.h"
#include "server/queue.h"

#include <stdatomic.h>

typedef struct tn_slot {
    tern_session *s;  /* NULL: not opened yet */
    uint64_t used;    /* when last */
    atomic_bool busy; /* the worker's, which anybody may look at (GET /slots) */
    bool allowed;     /* there is room for its session */
    bool forgotten;   /* what it holds is to leave with its answer */
} tn_slot;

typedef struct tn_slots {
    const tn_queue_options *o;
    tn_slot *at; /* [o->n_sessions] */
    uint64_t clock;
    uint64_t session_bytes; /* what a session takes, as the first was measured */
    const tn_slot *paused;  /* in the middle of a chunk: nothing is copied of it; NULL: none */
    tn_checkpoints *kept;   /* NULL: nothing is kept on disk */
    uint64_t
        own_mix; /* adapters that sessions have by themselves; what was read with others stays in memory */
} tn_slots;

/* Opens the first session, whose errors tell what is wrong with the model or the context. It borrows o. */
tern_status tn_slots_open(const tn_queue_options *o, tn_slots *out, tern_error *err);
/* Conversations go to disk. No slot may be busy. */
void tn_slots_close(tn_slots *s);

/* A prompt, and the adapters that it is read with: what was read with others does not begin as it does.
 * Borrowed. */
typedef struct tn_prompt {
    const int32_t *ids;
    size_t n;
    const tn_lora_mix *mix;
} tn_prompt;

/* How many tokens of the prompt need not be evaluated: the best of all slots and of the disk. */
size_t tn_slots_known(const tn_slots *s, tn_prompt p);
/* Whether a slot is idle, or there is room for one more. The first slot always has a session, so that this
 * is so when no other is busy. */
bool tn_slots_any(tn_slots *s);
/* A session that begins as the prompt does, and holds nothing else; busy from now on. tn_slots_any must
 * have said so. */
tern_status tn_slots_take(tn_slots *s, tn_prompt p, tn_slot **out, tern_error *err);
/* Whether the slot of this number is idle. */
bool tn_slots_idle(const tn_slots *s, int32_t i);
/* The slot of this number, which is idle, with its session open and these adapters; busy from now on. It holds what it
 * held: nothing is copied from others, nor read from the disk. */
tern_status tn_slots_take_at(tn_slots *s, int32_t i, const tn_lora_mix *mix, tn_slot **out, tern_error *err);
void tn_slots_give_back(tn_slots *s, tn_slot *k);

/* Whether it holds the prompt and nothing more, with what comes next: nothing is to be read. */
bool tn_slot_ready(const tn_slot *k, tn_prompt p);
/* How many tokens the lists have in common at their beginnings. */
size_t tn_shared_tokens(const int32_t *a, size_t n_a, const int32_t *b, size_t n_b);

#endif
