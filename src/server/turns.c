#include "server/turns.h"

void tn_turns_init(tn_turns *t) {
    *t = (tn_turns){0};
    pthread_mutex_init(&t->mu, NULL);
    pthread_cond_init(&t->next, NULL);
}

void tn_turns_destroy(tn_turns *t) {
    pthread_mutex_destroy(&t->mu);
    pthread_cond_destroy(&t->next);
}

void tn_turns_take(tn_turns *t) {
    if (!t) return;
    pthread_mutex_lock(&t->mu);
    uint64_t mine = t->n_asked++;
    while (t->n_given != mine) pthread_cond_wait(&t->next, &t->mu);
    pthread_mutex_unlock(&t->mu);
}

void tn_turns_give(tn_turns *t) {
    if (!t) return;
    pthread_mutex_lock(&t->mu);
    t->n_given++;
    pthread_cond_broadcast(&t->next);
    pthread_mutex_unlock(&t->mu);
}
