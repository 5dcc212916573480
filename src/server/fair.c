#include "server/fair.h"

#include "server/queue.h"

uint64_t tn_fair_turn(const tn_fair *s, uint64_t client) {
    for (int i = 0; i < TN_FAIR_CLIENTS; i++)
        if (s->turn[i] && s->client[i] == client) return s->turn[i];
    return 0;
}

void tn_fair_served(tn_fair *s, uint64_t client, uint64_t turn) {
    int at = 0;
    for (int i = 0; i < TN_FAIR_CLIENTS; i++) {
        if (s->turn[i] && s->client[i] == client) {
            at = i;
            break;
        }
        if (s->turn[i] < s->turn[at]) at = i;
    }
    s->client[at] = client;
    s->turn[at] = turn;
}

int64_t tn_fair_due_ns(const tn_job *j) {
    enum { MOST = 2048, TOKEN_NS = 5000000, PROMPT_TOKENS = 16 /* that take as long as one of the answer */ };
    size_t n = j->a.said.n_ids / PROMPT_TOKENS;
    if (!j->vector) n += j->a.r.max_tokens < 0 ? MOST : (size_t)j->a.r.max_tokens;
    return j->a.r.asked_ns + (int64_t)(n < MOST ? n : MOST) * TOKEN_NS;
}
