#include "server/turns.h"

void tn_turns_init(tn_turns *t) {
    *t = (tn_turns){.n_asked = 0};
    pthread_mutex_init(&t->mu, NULL);
    pthread_cond_init(&t->next, NULL);
}

void tn_turns_destroy(tn_turns *t) {
    pthread_mutex_destroy(&t->mu);
    pthread_cond_destroy(&t->next);
}

bool tn_turns_above(tn_turns *t, int priority) {
    bool any = false;
    for (int i = priority + 1; t && i <= TN_INTERACTIVE; i++)
        any |= atomic_load_explicit(&t->n_waiting[i - TN_BACKGROUND], memory_order_relaxed) > 0;
    return any;
}

void tn_turns_take(tn_turns *t, int priority) {
    if (!t) return;
    atomic_fetch_add_explicit(&t->n_waiting[priority - TN_BACKGROUND], 1, memory_order_relaxed);
    pthread_mutex_lock(&t->mu);
    uint64_t mine = t->n_asked++;
    while (t->n_given != mine) pthread_cond_wait(&t->next, &t->mu);
    pthread_mutex_unlock(&t->mu);
    atomic_fetch_sub_explicit(&t->n_waiting[priority - TN_BACKGROUND], 1, memory_order_relaxed);
}

void tn_turns_give(tn_turns *t) {
    if (!t) return;
    pthread_mutex_lock(&t->mu);
    t->n_given++;
    pthread_cond_broadcast(&t->next);
    pthread_mutex_unlock(&t->mu);
}
