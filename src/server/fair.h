/* server/fair.h - when each client was served last; those that were not for longest make room for new ones. */
#ifndef TN_SERVER_FAIR_H
#define TN_SERVER_FAIR_H

#include <stdint.h>

struct tn_job;

enum { TN_FAIR_CLIENTS = 64 };

typedef struct tn_fair {
    uint64_t client[TN_FAIR_CLIENTS], turn[TN_FAIR_CLIENTS]; /* turn 0: free */
} tn_fair;

/* 0: it is not known that the client was served. */
uint64_t tn_fair_turn(const tn_fair *f, uint64_t client);
void tn_fair_served(tn_fair *f, uint64_t client, uint64_t turn);
/* When a request is due: later, the more it asks for. So a short one passes long ones of its client that came before it,
 * which wait ten seconds longer for that and no more. */
int64_t tn_fair_due_ns(const struct tn_job *j);

#endif
