/* server/seat.h - a request while it is answered. */
#ifndef TN_SERVER_SEAT_H
#define TN_SERVER_SEAT_H

#include "server/queue.h"
#include "server/slots.h"
#include "session/session.h"

/* A seat is a job being answered: it waits for a slot, reads its prompt chunk by chunk, then decodes. */
typedef struct tn_seat {
    tn_job *j;     /* NULL: free */
    tn_slot *slot; /* NULL: not begun, or an embedding */
    tn_prefill prompt;
    bool begun; /* prompt is; before it the pictures are encoded */
    tern_generate_options o;
    tern_answer *d; /* NULL: the prompt is not read yet */
    uint64_t turn;  /* of its last chunk */
} tn_seat;

/* Tokens that the prompts of two jobs begin with; 0 where they are read with different adapters. */
size_t tn_seats_share(const tn_seat *a, const tn_seat *b);
/* Whether b's job is still to begin, and what a's prompt left is all that it reads: neither vectors nor
 * log-probabilities of the prompt nor pictures, and in no certain session. */
bool tn_seats_alike(const tn_seat *a, const tn_seat *b);
/* The priority of what a round of these seats does. */
int tn_seats_level(const tn_seat *seats, int32_t n);

#endif
