#include "server/seat.h"

#include "server/priority.h"

size_t tn_seats_share(const tn_seat *a, const tn_seat *b) {
    const tn_said *x = &a->j->a.said, *y = &b->j->a.said;
    return tn_lora_mix_id(&a->j->a.mix) == tn_lora_mix_id(&b->j->a.mix)
               ? tn_shared_tokens(x->ids, x->n_ids, y->ids, y->n_ids)
               : 0;
}

bool tn_seats_alike(const tn_seat *a, const tn_seat *b) {
    if (!b->j || b->slot || b->j->a.r.slot || b->j->vector || b->j->a.r.scores || b->j->a.r.pictures)
        return false;
    const size_t n = a->j->a.said.n_ids;
    return b->j->a.r.priority == a->j->a.r.priority && b->j->a.said.n_ids == n && tn_seats_share(a, b) == n;
}

int tn_seats_level(const tn_seat *seats, int32_t n) {
    int level = TN_BACKGROUND;
    for (int32_t i = 0; i < n; i++)
        if (seats[i].j && seats[i].j->counted && seats[i].j->a.r.priority > level)
            level = seats[i].j->a.r.priority;
    return level;
}
