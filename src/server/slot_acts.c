#include "server/slot_acts.h"

#include "base/wait.h"
#include "server/refusals.h"
#include "session/session.h"

#include <sys/stat.h>

enum { ASK_MS = 250 }; /* how often a waiting connection looks whether its client is still there */

tern_status tn_slot_known(int32_t slot, int32_t n_sessions, tern_error *err) {
    TN_FAIL_IF(slot >= n_sessions, err, TERN_E_INVALID, "there is no slot %d: this server has 0 to %d",
               (int)slot, (int)n_sessions - 1);
    return TERN_OK;
}

void tn_slot_acts_open(tn_slot_acts *l) {
    l->first = NULL;
    tn_cond_init(&l->changed);
}

void tn_slot_acts_close(tn_slot_acts *l) { pthread_cond_destroy(&l->changed); }

static void take_out(tn_slot_acts *l, const tn_slot_act *act) {
    for (tn_slot_act **p = &l->first; *p; p = &(*p)->next) {
        if (*p != act) continue;
        *p = act->next;
        return;
    }
}

tern_status tn_slot_acts_wait(tn_slot_acts *l, tn_slot_act *act, pthread_mutex_t *mu, pthread_cond_t *work,
                              bool (*gone)(void *user), void *user, tern_error *err) {
    tn_slot_act **last = &l->first;
    while (*last) last = &(*last)->next;
    *last = act;
    pthread_cond_signal(work);
    while (!act->done) {
        tn_cond_wait_ns(&l->changed, mu, ASK_MS * (int64_t)1000000);
        if (act->done || act->begun || !gone || !gone(user)) continue;
        take_out(l, act);
        return tn_fail(err, TERN_E_CANCELLED, "nobody waits for it any more");
    }
    if (act->err.code != TERN_OK) *err = act->err;
    return act->err.code;
}

/* s NULL: the session is not open, and holds nothing. */
static tern_status act_on(tern_session *s, tn_slot_act *act, tern_error *err) {
    struct stat sb;
    if (act->what == TN_SLOT_RESTORE)
        TN_TRY(tern_session_load(s, act->path, err)); /* else it holds what it held, or nothing */
    act->n_tokens = s ? s->n_tok : 0;
    if (act->what == TN_SLOT_ERASE) {
        if (s) tn_session_truncate(s, 0);
        return TERN_OK;
    }
    TN_FAIL_IF(!act->n_tokens, err, TERN_E_INVALID, "slot %d holds nothing that could be saved",
               (int)act->slot);
    if (act->what == TN_SLOT_SAVE) TN_TRY(tern_session_save(s, act->path, err));
    act->n_bytes = stat(act->path, &sb) ? 0 : (int64_t)sb.st_size;
    return TERN_OK;
}

/* A session is opened to restore one, and for nothing else. */
static void run(tn_slots *s, tn_slot_act *act) {
    const double begin_s = tn_now_s();
    const bool restores = act->what == TN_SLOT_RESTORE;
    tern_session *open = s->at[act->slot].s;
    tn_slot *k = NULL;
    tern_status st = TERN_OK;
    if (open || restores)
        st = tn_slots_take_at(s, act->slot, restores ? &act->mix : &open->mix, &k, &act->err);
    if (st == TERN_OK) (void)act_on(k ? k->s : NULL, act, &act->err);
    if (st == TERN_OK && k) tn_slots_give_back(s, k);
    act->ms = (tn_now_s() - begin_s) * 1e3;
}

void tn_slot_acts_run(tn_slot_acts *l, pthread_mutex_t *mu, tn_slots *s) {
    for (tn_slot_act *act = l->first, *next; act; act = next) {
        next = act->next;
        if (!tn_slots_idle(s, act->slot)) continue;
        act->begun = true;
        pthread_mutex_unlock(mu);
        run(s, act);
        pthread_mutex_lock(mu);
        next = act->next; /* others may have come or gone meanwhile */
        take_out(l, act);
        act->done = true;
        pthread_cond_broadcast(&l->changed);
    }
}

void tn_slot_acts_end(tn_slot_acts *l, pthread_mutex_t *mu) {
    pthread_mutex_lock(mu);
    for (tn_slot_act *act; (act = l->first); act->done = true) {
        l->first = act->next;
        (void)tn_fail(&act->err, TN_E_CLOSING, "the server is closing");
    }
    pthread_cond_broadcast(&l->changed);
    pthread_mutex_unlock(mu);
}
