#include "server/queue.h"

#include "base/wait.h"
#include "session/session.h"
#include "server/fair.h"
#include "server/priority.h"
#include "server/refusals.h"
#include "server/seat.h"
#include "server/slot_acts.h"
#include "server/slots.h"
#include "server/turns.h"
#include "server/watch.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* In PASSED turns in a row somebody may be passed over for work that goes first. Answers that go first have a step
 * whenever others were read for SHARE times as long as the last one took. While others answer, prompts of up to
 * COPIED tokens are copied for several answers at once, which takes a millisecond or two each. */
enum { PASSED = 4, SHARE = 5, COPIED = 1024 };

struct tn_queue {
    tn_queue_options o;
    pthread_t worker;
    pthread_mutex_t mu;
    pthread_cond_t work;
    tn_job *first, *last;          /* waiting; guarded by mu */
    bool closing;                  /* guarded by mu */
    tn_queue_counts counts;        /* guarded by mu */
    size_t n_unread, n_probs;      /* of all jobs; guarded by mu */
    tn_job *running[TN_MAX_TEXTS]; /* guarded by mu */
    tn_fair seated;                /* clients whose requests sat down; guarded by mu */
    uint64_t n_seated;             /* guarded by mu */
    tn_lora_mix own;               /* guarded by mu */
    tn_slot_acts acts;             /* guarded by mu */
    int n_passed;                  /* seats given to who goes first, in a row; guarded by mu */
    atomic_int n_put; /* jobs that came; relaxed, as the next: looked at in the middle of a chunk, */
    atomic_int
        n_mute[TN_PRIORITIES]; /* and jobs whose first words are still to come; what they say is behind mu */
    /* the worker's */
    tn_slots slots;
    tn_seat seats[TN_MAX_TEXTS];
    int32_t n_seats;
    uint64_t turn;
    tn_fair read;          /* clients whose prompts had a chunk */
    int n_apart;           /* chunks since the last step */
    double decode_until_s; /* since the last chunk others have that long for their steps */
    double step_s;         /* what the last one took */
    tern_session *embedder;
    /* of the chunk that is read; its threads look at these, which change while none of them works */
    tn_pause pause;
    const tn_seat *reading;
    int level, n_seen, n_chunks_passed; /* its priority; n_put when there was nothing more urgent */
    bool pausing;
    double slice_until_s, paused_s; /* 0: nobody who goes first writes */
    tn_credit credit;
};

/* ---- who is next ------------------------------------------------------------------------------------ */

/* Background work leaves a seat to the others. A request for a certain session waits for it in the list: it would keep
 * a seat from those who can be answered. */
static bool may_sit(const tn_queue *q, const tn_job *j) {
    int n = 0;
    if (j->a.r.slot && !tn_slots_idle(&q->slots, j->a.r.slot - 1)) return false;
    for (int32_t i = 0; i < q->n_seats; i++)
        if (j->a.r.slot && q->running[i] && q->running[i]->a.r.slot == j->a.r.slot) return false;
    for (int32_t i = 0; i < q->n_seats; i++) n += q->running[i] && q->running[i]->a.r.priority < TN_ORDINARY;
    return j->a.r.priority >= TN_ORDINARY || q->n_seats == 1 || n < q->n_seats - 1;
}

/* Who goes first among those who may sit down, above a priority: TN_INTERACTIVE or less; where some were passed over
 * often enough, everybody. *passes: somebody is passed over. With the lock. */
static int first_level(const tn_queue *q, int above, bool *passes) {
    int most = TN_BACKGROUND, least = TN_INTERACTIVE;
    for (const tn_job *j = q->first; j; j = j->next) {
        if (!may_sit(q, j)) continue;
        if (j->a.r.priority > most) most = j->a.r.priority;
        if (j->a.r.priority < least) least = j->a.r.priority;
    }
    *passes = least < most;
    if (above >= TN_BACKGROUND) return above + 1 > most ? above + 1 : most;
    return q->n_passed < PASSED ? most : TN_BACKGROUND;
}

/* Takes the next of those who wait from the list, of a priority above this one; NULL: nobody waits. With the lock. */
static tn_job *next_job(tn_queue *q, int above) {
    tn_job **best = NULL, *last = NULL;
    int fewest = 0;
    bool passes;
    const int level = first_level(q, above, &passes);
    for (tn_job **p = &q->first; *p; p = &(*p)->next) {
        if ((*p)->a.r.priority < level || !may_sit(q, *p)) continue;
        uint64_t client = (*p)->a.r.client;
        int n = 0;
        for (int32_t i = 0; i < q->n_seats; i++) n += q->running[i] && q->running[i]->a.r.client == client;
        const uint64_t mine = tn_fair_turn(&q->seated, client),
                       his = best ? tn_fair_turn(&q->seated, (*best)->a.r.client) : 0;
        bool first = !best || n < fewest || (n == fewest && mine < his) ||
                     (n == fewest && mine == his && client == (*best)->a.r.client &&
                      tn_fair_due_ns(*p) < tn_fair_due_ns(*best));
        if (first) best = p, fewest = n;
    }
    if (!best) return NULL;
    tn_job *j = *best;
    *best = j->next;
    j->next = NULL;
    q->n_passed = passes && level > TN_BACKGROUND ? q->n_passed + 1 : 0;
    for (tn_job *k = q->first; k; k = k->next) last = k;
    q->last = last;
    j->seated = ++q->n_seated;
    tn_fair_served(&q->seated, j->a.r.client, j->seated);
    return j;
}

/* Whether one more request may wait. With the lock. */
static bool may_wait(const tn_queue *q, uint64_t client) {
    if (q->counts.waiting < q->o.max_waiting) return true;
    if (q->counts.waiting >= 2 * q->o.max_waiting) return false;
    for (const tn_job *j = q->first; j; j = j->next)
        if (j->a.r.client == client) return false;
    return true;
}

/* Those who wait, above a priority, sit down where a seat is free. With the lock. */
static void give_seats(tn_queue *q, int above) {
    for (int32_t i = 0; i < q->n_seats; i++) {
        if (q->seats[i].j) continue;
        tn_job *j = next_job(q, above);
        if (!j) return;
        q->counts.waiting--;
        q->counts.running++;
        q->running[i] = j;
        q->seats[i] = (tn_seat){.j = j};
    }
}

/* ---- jobs ----------------------------------------------------------------------------------------- */

static void job_free(tn_job *j) {
    pthread_cond_destroy(&j->changed);
    tn_answering_free(&j->a);
    tn_grammar_close(&j->grammar);
    free(j->out.p);
    free(j->vector);
    free(j);
}

static void job_release(tn_job *j) {
    pthread_mutex_lock(&j->q->mu);
    bool last = !--j->owners;
    if (last) j->q->n_unread -= j->out.n - j->n_taken, j->q->n_probs -= j->n_probs;
    pthread_mutex_unlock(&j->q->mu);
    if (last) job_free(j);
}

void tn_job_leave(tn_job *j) { job_release(j); }

void tn_job_cancel(tn_job *j) {
    tn_queue *q = j->q;
    atomic_store(&j->cancelled, true);
    pthread_mutex_lock(&q->mu);
    if (j->on) tern_session_cancel(j->on);
    pthread_mutex_unlock(&q->mu);
}

void tn_job_wait(tn_job *j, int ms) {
    pthread_mutex_lock(&j->q->mu);
    if (!j->done && j->n_taken == j->out.n) tn_cond_wait_ns(&j->changed, &j->q->mu, ms * (int64_t)1000000);
    pthread_mutex_unlock(&j->q->mu);
}

size_t tn_job_take(tn_job *j, char *buf, size_t cap, bool *done) {
    pthread_mutex_lock(&j->q->mu);
    size_t n = j->out.n - j->n_taken;
    if (n > cap) n = cap;
    if (n) memcpy(buf, j->out.p + j->n_taken, n);
    j->n_taken += n;
    j->q->n_unread -= n;
    if (j->n_taken == j->out.n) j->n_taken = j->out.n = 0;
    *done = j->done && j->n_taken == j->out.n;
    pthread_mutex_unlock(&j->q->mu);
    return n;
}

bool tn_job_done(tn_job *j, bool *begun) {
    pthread_mutex_lock(&j->q->mu);
    bool done = j->done;
    *begun = j->has_begun;
    pthread_mutex_unlock(&j->q->mu);
    return done;
}

/* ---- what an answer has of its job ------------------------------------------------------------------- */

static bool put_out(void *user, const char *text, size_t n) {
    tn_job *j = user;
    tn_queue *q = j->q;
    pthread_mutex_lock(&q->mu);
    if (j->a.r.echo && n > j->n_echo)
        j->n_echo = n; /* the prompt, which the client knows, is its largest event */
    const size_t all = j->out.n - j->n_taken, unread = all > j->n_echo ? all - j->n_echo : 0;
    bool much = unread > TN_UNREAD_BYTES ||
                (unread > TN_UNREAD_LEAST_BYTES && q->n_unread > TN_UNREAD_ALL_BYTES) ||
                (unread > TN_UNREAD_PRESSED_BYTES && q->first);
    bool ok = j->why || !much; /* the last words of one that ends for it still come */
    if (!ok) j->why = "the client does not read its answer";
    ok = ok && tn_bytes_add(&j->out, text, n);
    if (ok) q->n_unread += n, j->has_begun = true;
    if (ok) pthread_cond_signal(&j->changed);
    pthread_mutex_unlock(&q->mu);
    return ok;
}

static bool keep_probs(void *user, size_t n) {
    tn_job *j = user;
    tn_queue *q = j->q;
    pthread_mutex_lock(&q->mu);
    q->n_probs += n;
    j->n_probs += n;
    if (j->n_probs > TN_KEPT_PROBS / (size_t)j->a.r.n ||
        (j->n_probs > TN_KEPT_LEAST_PROBS && q->n_probs > TN_KEPT_ALL_PROBS))
        j->why = "probabilities of too many tokens wait for the end of their replies: ask for a stream";
    bool ok = !j->why;
    pthread_mutex_unlock(&q->mu);
    return ok;
}

static void count_token(void *user) {
    tn_job *j = user;
    tn_queue *q = j->q;
    int64_t now = tn_now_ns();
    double s = (double)(now - (j->token_ns ? j->token_ns : j->a.r.asked_ns)) * 1e-9;
    pthread_mutex_lock(&q->mu);
    tn_times_add(j->token_ns ? &q->counts.between : &q->counts.first, s);
    if (!j->token_ns && q->counts.first.count == 1) q->counts.opened_first_s = s;
    pthread_mutex_unlock(&q->mu);
    j->token_ns = now;
}

/* ---- the worker ------------------------------------------------------------------------------------ */

/* The session that a cancel of the job reaches; NULL: none any more. */
static void running_on(tn_queue *q, tn_job *j, tern_session *s) {
    pthread_mutex_lock(&q->mu);
    j->on = s;
    if (s) atomic_store(&s->cancel, atomic_load(&j->cancelled)); /* not that of the job before */
    pthread_mutex_unlock(&q->mu);
}

/* Its first words come, or never will. */
static void no_more_mute(tn_queue *q, tn_job *j) {
    if (j->counted)
        atomic_fetch_sub_explicit(&q->n_mute[j->a.r.priority - TN_BACKGROUND], 1, memory_order_relaxed);
    j->counted = false;
}

static void finish(tn_queue *q, tn_seat *a, tern_status st, const tern_error *err) {
    tn_job *j = a->j;
    tern_error why = *err;
    no_more_mute(q, j);
    running_on(q, j, NULL);
    tn_watch_end(j->a.r.watch);
    if (a->slot) tn_slots_give_back(&q->slots, a->slot);
    pthread_mutex_lock(&q->mu);
    bool closing = q->closing;
    pthread_mutex_unlock(&q->mu);
    if (st == TERN_E_CANCELLED && closing) (void)tn_fail(&why, TN_E_CLOSING, "the server is closing");
    /* weights are read while the first prompt is: their damage is found now */
    if (st != TERN_OK && q->o.path) tn_queue_hide_path(q->o.path, q->o.model, &why);
    bool ok = j->vector || tn_answering_finish(&j->a, st, &why);
    pthread_mutex_lock(&q->mu);
    if (st != TERN_OK) j->err = why;
    else if (!ok) (void)tn_fail(&j->err, TERN_E_MEMORY, "no memory for the reply");
    tn_queue_counts *c = &q->counts;
    if (st == TERN_OK) c->n_done++;
    else if (st == TERN_E_CANCELLED) c->n_cancelled++;
    else c->n_failed++;
    if (st == TERN_OK) c->prompt_tokens += j->a.said.n_ids, c->cached_tokens += j->a.said.n_cached;
    c->output_tokens += (uint64_t)j->a.said.res.n_tokens;
    c->prefill_s += j->a.said.prefill_s;
    c->decode_s += j->a.said.res.decode_s;
    c->running--;
    j->done = true;
    q->running[a - q->seats] = NULL;
    pthread_cond_signal(&j->changed);
    pthread_mutex_unlock(&q->mu);
    *a = (tn_seat){0};
    job_release(j);
}

/* ---- decoding: a step of all together ---------------------------------------------------------------- */

static void finish_decoded(tn_queue *q, tn_seat *a) {
    tn_job *j = a->j;
    tern_error err = {0};
    tern_status st = tern_answer_close(&a->d, &j->a.said.res, &err);
    if (st == TERN_OK) j->a.said.stopped_by = a->slot->s->stopped_by;
    j->a.said.n_evaluated = a->slot->s->n_tok - (int32_t)j->a.said.n_ids;
    if (st == TERN_OK && j->a.r.scores) st = tn_job_ended(j, a->slot->s, &err);
    const bool refused = st == TERN_OK && j->a.said.res.reason == TERN_STOP_CALLBACK;
    if (refused && j->why) st = tn_fail(&err, TERN_E_LIMIT, "%s", j->why);
    else if (refused && !j->a.enough)
        st = atomic_load(&j->cancelled) ? tn_fail(&err, TERN_E_CANCELLED, "cancelled")
                                        : tn_fail(&err, TERN_E_MEMORY, "no memory for the answer");
    else if (refused && a->slot->s->ended_for != TERN_STOP_END)
        j->a.said.res.reason = a->slot->s->ended_for; /* the call was closed for want of room */
    finish(q, a, st, &err);
}

/* Returns how many answers went on. */
static int32_t decode_step(tn_queue *q) {
    tern_answer *d[TN_MAX_TEXTS];
    int32_t n = 0;
    for (int32_t i = 0; i < q->n_seats; i++) {
        if (q->seats[i].d) d[n++] = q->seats[i].d;
    }
    const double begin_s = tn_now_s();
    if (n) (void)tern_answers_step(d, (size_t)n, NULL); /* an answer that failed says so when it is closed */
    if (n) q->step_s = tn_now_s() - begin_s;
    pthread_mutex_lock(&q->mu);
    tn_queue_counts *c = &q->counts;
    c->n_steps += n > 0;
    if (n > c->most_together) c->most_together = n;
    if (n && q->n_apart > c->most_chunks_apart) c->most_chunks_apart = q->n_apart;
    q->n_apart = 0;
    pthread_mutex_unlock(&q->mu);
    for (int32_t i = 0; i < q->n_seats; i++) {
        tn_seat *a = &q->seats[i];
        if (a->d && !tern_answer_more(a->d)) finish_decoded(q, a);
    }
    return n;
}

/* ---- prompts: a chunk of one of them ------------------------------------------------------------------ */

static tn_prompt prompt_of(const tn_job *j) { return (tn_prompt){j->a.said.ids, j->a.said.n_ids, &j->a.mix}; }

/* Someone else is reading much of the same text: a copy will cost less than reading it too. */
static bool better_wait(const tn_queue *q, const tn_seat *a) {
    size_t soon = 0;
    if (a->j->a.r.anew) return false;
    for (int32_t i = 0; i < q->n_seats; i++) {
        const tn_seat *b = &q->seats[i];
        if (!b->slot || b->d) continue;
        size_t same = tn_seats_share(b, a);
        if (same > (size_t)b->slot->s->n_tok && same > soon) soon = same;
    }
    return soon && soon >= tn_slots_known(&q->slots, prompt_of(a->j)) + TN_CHECKPOINT_LEAST;
}

/* Gives the prompt a session, and keeps of what that holds what the prompt begins with. */
static tern_status begin_prompt(tn_queue *q, tn_seat *a, tern_error *err) {
    tn_job *j = a->j;
    if (j->a.r.scores) TN_TRY(tn_job_keep_scores(j, err));
    const tn_prompt known = j->a.r.anew ? (tn_prompt){.mix = &j->a.mix} : prompt_of(j);
    TN_TRY(j->a.r.slot ? tn_slots_take_at(&q->slots, j->a.r.slot - 1, &j->a.mix, &a->slot, err)
                       : tn_slots_take(&q->slots, known, &a->slot, err));
    tern_session *s = a->slot->s;
    running_on(q, j, s);
    /* the last token is evaluated again, for what follows it, unless the session kept that */
    size_t n = j->a.said.n_ids, same = tn_shared_tokens(s->tokens, (size_t)s->n_tok, j->a.said.ids, n - 1);
    if ((size_t)s->end.at == n || (!j->a.r.pictures && tn_slot_ready(a->slot, known)))
        same = tn_session_keep_prefix(s, j->a.said.ids, n);
    tn_session_truncate(s, j->a.r.anew ? 0 : (int32_t)same);
    j->a.said.n_cached = (size_t)s->n_tok; /* less where the state goes back to snapshots only */
    tn_answering_options_of(&j->a, &a->o);
    j->a.on = s;
    tn_watch_begin(j->a.r.watch, s, j->a.said.n_ids, j->a.said.n_cached);
    return tn_answering_read(&j->a, j->a.said.n_cached)
               ? TERN_OK
               : tn_fail(err, TERN_E_MEMORY, "no memory for the answer");
}

/* A view of a picture, as long as one is not known; then a chunk of the prompt. */
static tern_status read_on(tn_seat *a, tern_error *err) {
    tn_job *j = a->j;
    bool more = false;
    if (a->begun) return tn_prefill_chunk(&a->prompt, err);
    TN_TRY(tn_answering_see(&j->a, j->a.said.n_cached, &more, err));
    if (more) return TERN_OK;
    TN_TRY(tn_session_look(a->slot->s, j->a.shown, j->a.n_shown, err));
    TN_TRY(tn_prefill_begin(a->slot->s, j->a.said.ids, j->a.said.n_ids, &a->prompt, err));
    if (j->a.r.scores) TN_TRY(tn_job_score(j, &a->prompt, err));
    a->begun = true;
    return j->a.n_shown ? TERN_OK : tn_prefill_chunk(&a->prompt, err);
}

static bool something_urgent(void *user);
static void go_first(void *user);

/* The chunk that follows lets go first what is more urgent. Returns whether that may be. */
static bool begin_pausable(tn_queue *q, const tn_seat *a, tern_session *s) {
    if (q->pausing || a->j->a.r.priority == TN_INTERACTIVE) return false;
    q->pause = (tn_pause){.wanted = something_urgent, .run = go_first, .user = q};
    q->reading = a;
    q->level = a->j->a.r.priority;
    q->paused_s = q->slice_until_s = 0;
    for (int32_t i = 0; i < q->n_seats; i++) /* they had their step just now */
        if (q->seats[i].d && q->seats[i].j->a.r.priority > q->level)
            q->slice_until_s = tn_now_s() + q->step_s * SHARE;
    tn_session_pauses(s, &q->pause);
    return true;
}

/* Returns how long it was paused. */
static double end_pausable(tn_queue *q, tern_session *s) {
    tn_session_pauses(s, NULL);
    q->reading = NULL;
    return q->paused_s;
}

static void read_chunk(tn_queue *q, tn_seat *a) {
    tn_job *j = a->j;
    tern_error err = {0};
    tern_status st = TERN_OK;
    double t0 = tn_now_s();
    if (!a->slot) st = begin_prompt(q, a, &err);
    if (st == TERN_OK) {
        const bool pauses = begin_pausable(q, a, a->slot->s);
        st = read_on(a, &err);
        if (pauses) t0 += end_pausable(q, a->slot->s);
    }
    j->a.said.prefill_s += tn_now_s() - t0;
    if (st == TERN_OK && !tn_answering_read(&j->a, j->a.said.n_cached + a->prompt.done))
        st = tn_fail(&err, TERN_E_MEMORY, "no memory for the answer");
    if (st == TERN_OK && a->begun && a->prompt.done == a->prompt.n) {
        tn_watch_read(j->a.r.watch);
        tn_constraint_give(a->slot->s, &a->o, &j->grammar);
        a->slot->s->constraint.unless = tn_answering_mark(&j->a);
        a->slot->s->constraint.begun = tn_answering_begun(&j->a, &a->slot->s->constraint.n_begun);
        if (j->a.r.scores && !tn_answering_scored(&j->a)) st = tn_job_unsaid(j, &err);
        if (st == TERN_OK) st = tern_answer_open(a->slot->s, &a->o, &a->d, &err);
        no_more_mute(q, j);
    }
    if (st != TERN_OK) finish(q, a, st, &err);
    else if (a->d && !tern_answer_more(a->d)) finish_decoded(q, a);
}

static void embed(tn_queue *q, tn_seat *a) {
    tn_job *j = a->j;
    tern_error err = {0};
    tern_status st = TERN_OK;
    if (!q->embedder && q->o.room && !q->o.room(q->o.room_user, q->slots.session_bytes)) {
        st = tn_fail(&err, TERN_E_MEMORY,
                     "the session that makes embeddings would take %.0f MiB, which max-memory does not leave",
                     (double)q->slots.session_bytes / 1048576);
    } else if (!q->embedder) {
        tern_session_options so;
        tern_session_options_defaults(&so);
        so.n_ctx = q->o.n_ctx;
        st = tern_session_open(q->o.e, &so, &q->embedder, &err);
    }
    if (st == TERN_OK) {
        running_on(q, j, q->embedder);
        const bool pauses = begin_pausable(q, a, q->embedder);
        st = tn_job_embed(j, q->embedder, &err);
        if (pauses) (void)end_pausable(q, q->embedder);
    }
    finish(q, a, st, &err);
}

/* Whether a's chunk comes before b's: what goes first, then the client that had none for longest, and of his prompts
 * the one that had none for longest. */
static bool reads_before(const tn_queue *q, const tn_seat *a, const tn_seat *b) {
    const int mine = a->j->a.r.priority, his = b->j->a.r.priority;
    if (mine != his && (q->pausing || q->n_chunks_passed < PASSED)) return mine > his;
    const uint64_t my_turn = tn_fair_turn(&q->read, a->j->a.r.client),
                   his_turn = tn_fair_turn(&q->read, b->j->a.r.client);
    return my_turn < his_turn || (my_turn == his_turn && a->turn < b->turn);
}

/* Whether there is a session that it can begin on now. */
static bool may_begin(const tn_queue *q, const tn_seat *a, bool any_slot) {
    const int32_t its = a->j->a.r.slot;
    return its ? tn_slots_idle(&q->slots, its - 1) : any_slot && !better_wait(q, a);
}

/* Who waits for the same prompt begins with what it left, before a step takes its logits. */
static void begin_alike(tn_queue *q, const tn_seat *a) {
    const double paused_s = q->paused_s;
    for (tn_seat *b = q->seats; b < q->seats + q->n_seats && a->d; b++)
        if (tn_seats_alike(a, b) && may_begin(q, b, tn_slots_any(&q->slots))) read_chunk(q, b);
    q->paused_s = paused_s; /* none of them had a pause */
}

/* A chunk of a prompt above a priority. Returns false when there is none to read. */
static bool prompt_turn(tn_queue *q, int above) {
    tn_seat *next = NULL;
    bool waits = false, passes = false; /* an answer; somebody is passed over */
    bool any_slot = tn_slots_any(&q->slots);
    for (int32_t i = 0; i < q->n_seats; i++) {
        tn_seat *a = &q->seats[i];
        waits = waits || a->d;
        if (!a->j || a->d || a == q->reading || a->j->a.r.priority <= above ||
            (a->j->vector && q->reading && q->reading->j->vector) || /* its session is in the middle of one */
            (!a->slot && !a->j->vector && !may_begin(q, a, any_slot)))
            continue;
        passes |= next && next->j->a.r.priority != a->j->a.r.priority;
        if (!next || reads_before(q, a, next)) next = a;
    }
    if (!next) return false;
    if (!q->pausing) q->n_chunks_passed = passes && q->n_chunks_passed < PASSED ? q->n_chunks_passed + 1 : 0;
    next->turn = ++q->turn;
    tn_fair_served(&q->read, next->j->a.r.client, q->turn);
    if (next->j->vector) embed(q, next);
    else read_chunk(q, next);
    pthread_mutex_lock(&q->mu);
    q->counts.n_chunks++;
    if (next->d && !q->closing) give_seats(q, above); /* the others of its request may have come meanwhile */
    pthread_mutex_unlock(&q->mu);
    if (next->d && (!waits || next->j->a.said.n_ids <= COPIED)) begin_alike(q, next);
    if (waits) q->n_apart++;
    return true;
}

/* ---- what goes first --------------------------------------------------------------------------------- */

/* Asked between the parts of a chunk, by any thread that works on it. */
static bool something_urgent(void *user) {
    tn_queue *q = user;
    if (q->slice_until_s > 0 && tn_now_s() >= q->slice_until_s) return true;
    if (q->credit.s <= 0) return false;
    if (q->o.turns && tn_turns_above(q->o.turns, q->level)) return true;
    if (atomic_load_explicit(&q->n_put, memory_order_relaxed) == q->n_seen) return false;
    for (int i = q->level + 1; i <= TN_INTERACTIVE; i++)
        if (atomic_load_explicit(&q->n_mute[i - TN_BACKGROUND], memory_order_relaxed)) return true;
    return false;
}

/* Prompts that go first are read, with a step of all answers after every chunk; then answers that go first have a step
 * now and then. */
static void go_first(void *user) {
    tn_queue *q = user;
    const double begin_s = tn_now_s();
    bool any = true, writes = false, read = false;
    q->pausing = true;
    q->slots.paused = q->reading->slot;
    if (q->o.turns && tn_turns_above(q->o.turns, q->level)) { /* of another model */
        tn_turns_give(q->o.turns);
        tn_turns_take(q->o.turns, q->level);
    }
    while (any) {
        pthread_mutex_lock(&q->mu);
        q->n_seen = atomic_load_explicit(&q->n_put, memory_order_relaxed);
        if (!q->closing) give_seats(q, q->level);
        pthread_mutex_unlock(&q->mu);
        any = tn_now_s() - begin_s < q->credit.s && prompt_turn(q, q->level);
        if (any || !read) (void)decode_step(q); /* after a chunk they have had it */
        read |= any;
    }
    if (read) q->credit.s -= tn_now_s() - begin_s; /* a step that came before its time is paid for too */
    for (int32_t i = 0; i < q->n_seats; i++)
        writes |= q->seats[i].d && q->seats[i].j->a.r.priority > q->level;
    q->slice_until_s = writes ? tn_now_s() + SHARE * q->step_s : 0;
    q->slots.paused = NULL;
    q->pausing = false;
    q->paused_s += tn_now_s() - begin_s;
    pthread_mutex_lock(&q->mu);
    q->counts.n_pauses++;
    pthread_mutex_unlock(&q->mu);
}

/* ---- rounds ------------------------------------------------------------------------------------------ */

/* Waits for work. Jobs sit down in the order that next_job says. Returns false when all is over. */
static bool sit_down(tn_queue *q) {
    bool any = false;
    pthread_mutex_lock(&q->mu);
    while (!q->first && !q->counts.running && !q->closing) {
        if (!q->acts.first) pthread_cond_wait(&q->work, &q->mu);
        else tn_slot_acts_run(&q->acts, &q->mu, &q->slots);
    }
    tn_slot_acts_run(&q->acts, &q->mu, &q->slots);
    q->n_seen = atomic_load_explicit(&q->n_put, memory_order_relaxed);
    give_seats(q, TN_BACKGROUND - 1);
    for (int32_t i = 0; i < q->n_seats; i++) {
        tn_seat *a = &q->seats[i];
        if (a->j && q->closing) atomic_store(&a->j->cancelled, true);
        any = any || a->j;
    }
    pthread_mutex_unlock(&q->mu);
    for (int32_t i = 0; i < q->n_seats; i++) {
        tn_seat *a = &q->seats[i];
        tern_error err;
        /* one that decodes notices by itself */
        if (a->j && !a->d && atomic_load(&a->j->cancelled))
            finish(q, a, tn_fail(&err, TERN_E_CANCELLED, "cancelled"), &err);
    }
    return any;
}

/* A round is one step of everyone who decodes, and one chunk of one prompt. So nobody waits longer than a
 * chunk for his next token. After a chunk those who decode have half its time: a long prompt does not
 * hold them up for its whole length. */
static void *work(void *user) {
    tn_queue *q = user;
    while (sit_down(q)) {
        tn_turns_take(q->o.turns, tn_seats_level(q->seats, q->n_seats));
        bool decoded = decode_step(q) > 0;
        double now = tn_now_s();
        q->paused_s = q->slice_until_s = 0;
        if ((!decoded || now >= q->decode_until_s) && prompt_turn(q, TN_BACKGROUND - 1)) {
            const double end = tn_now_s(), read_s = end - now - q->paused_s;
            tn_credit_earn(&q->credit, read_s);
            q->decode_until_s =
                end + (q->slice_until_s > 0 ? 0 : 0.5 * read_s); /* else they had it meanwhile */
        }
        tn_turns_give(q->o.turns);
    }
    tn_slot_acts_end(&q->acts, &q->mu);
    return NULL;
}

/* ---- the queue ------------------------------------------------------------------------------------- */

/* A job with the prompt of the request, which it takes. *out is to be freed also where that fails; NULL: no
 * memory. */
static tern_status job_open(tn_queue *q, tn_request *r, tn_job **out, tern_error *err) {
    tn_job *j = *out = calloc(1, sizeof *j);
    if (!j) {
        tn_request_free(r);
        return tn_fail(err, TERN_E_MEMORY, "no memory for the request");
    }
    const tn_answering_options o = {.e = q->o.e,
                                    .model = q->o.model,
                                    .n_ctx = q->o.n_ctx,
                                    .chat_template = q->o.chat_template,
                                    .usual = &q->o.usual,
                                    .own = tn_queue_adapters(q),
                                    .images = q->o.images,
                                    .shift = q->o.shift,
                                    .put = put_out,
                                    .token = count_token,
                                    .keep_probs = keep_probs,
                                    .cancelled = &j->cancelled,
                                    .user = j};
    tn_cond_init(&j->changed);
    j->q = q;
    j->owners = 2;
    return tn_answering_open(&j->a, r, &o, err);
}

tern_status tn_queue_act(tn_queue *q, tn_slot_act *act, bool (*gone)(void *user), void *user,
                         tern_error *err) {
    TN_TRY(tn_slot_known(act->slot, q->o.n_sessions, err));
    pthread_mutex_lock(&q->mu);
    act->mix = q->own;
    tern_status st = q->closing ? tn_fail(err, TN_E_CLOSING, "the server is closing")
                                : tn_slot_acts_wait(&q->acts, act, &q->mu, &q->work, gone, user, err);
    pthread_mutex_unlock(&q->mu);
    if (st != TERN_OK && act->path) tn_queue_hide_path(act->path, act->name, err);
    return st;
}

tern_status tn_queue_put_for(tn_queue *q, tn_request *r, float *vector, tn_pooling pool, tn_job **out,
                             tern_error *err) {
    tn_job *j;
    tern_status st = job_open(q, r, &j, err);
    if (!j) {
        free(vector);
        return st;
    }
    j->vector = vector;
    j->pool = pool;
    if (st == TERN_OK && !vector) {
        tern_generate_options o;
        tn_answering_options_of(&j->a, &o);
        st = tn_constraint_compile(q->o.e, &o, true, &j->grammar, err);
        if (st == TERN_OK && j->grammar) st = tn_answering_grammar(&j->a, j->grammar, err);
    }
    if (!j->a.r.asked_ns) j->a.r.asked_ns = tn_now_ns();
    pthread_mutex_lock(&q->mu);
    if (st == TERN_OK && q->closing) st = tn_fail(err, TN_E_CLOSING, "the server is closing");
    if (st == TERN_OK) st = tn_slot_known(j->a.r.slot - 1, q->o.n_sessions, err);
    if (st == TERN_OK && !j->a.r.choice &&
        !may_wait(q, j->a.r.client)) /* answers to one request come together */
        st = tn_fail(err, TN_E_BUSY, "the queue is full: %d requests wait", q->counts.waiting);
    if (st == TERN_OK) {
        if (q->last) q->last->next = j;
        else q->first = j;
        q->last = j;
        q->counts.waiting++;
        j->counted = true;
        atomic_fetch_add_explicit(&q->n_mute[j->a.r.priority - TN_BACKGROUND], 1, memory_order_relaxed);
        atomic_fetch_add_explicit(&q->n_put, 1, memory_order_relaxed);
        pthread_cond_signal(&q->work);
    }
    pthread_mutex_unlock(&q->mu);
    if (st != TERN_OK) job_free(j);
    else *out = j;
    return st;
}

tern_status tn_queue_put(tn_queue *q, tn_request *r, tn_job **out, tern_error *err) {
    return tn_queue_put_for(q, r, NULL, TN_POOL_UNSAID, out, err);
}

tern_status tn_queue_measure(tn_queue *q, tn_request *r, size_t *n_tokens, tern_error *err) {
    tn_job *j;
    tern_status st = job_open(q, r, &j, err);
    if (!j) return st;
    *n_tokens = j->a.said.n_ids;
    job_free(j);
    return st;
}

tern_status tn_queue_render(tn_queue *q, tn_request *r, char **text, size_t *n_bytes, tern_error *err) {
    tn_job *j;
    r->renders = true;
    tern_status st = job_open(q, r, &j, err);
    if (!j) return st;
    *text = j->a.said.text.p; /* the caller's now */
    *n_bytes = j->a.said.text.n;
    j->a.said.text = (tn_bytes){0};
    job_free(j);
    return st;
}

tern_status tn_queue_open(const tn_queue_options *o, tn_queue **out, tern_error *err) {
    tn_queue *q = calloc(1, sizeof *q);
    *out = NULL;
    TN_FAIL_IF(!q, err, TERN_E_MEMORY, "no memory for the server");
    q->o = *o;
    q->credit.s = TN_CREDIT_MOST_S;
    q->n_seats = o->n_sessions < TN_MAX_TEXTS ? o->n_sessions : TN_MAX_TEXTS;
    tern_status st = tn_slots_open(&q->o, &q->slots, err);
    if (st != TERN_OK) {
        free(q);
        return st;
    }
    q->own = q->slots.at[0].s->mix;
    q->o.n_ctx = tern_session_capacity(q->slots.at[0].s);
    pthread_mutex_init(&q->mu, NULL);
    pthread_cond_init(&q->work, NULL);
    tn_slot_acts_open(&q->acts);
    if (!pthread_create(&q->worker, NULL, work, q)) {
        *out = q;
        return TERN_OK;
    }
    tn_slots_close(&q->slots);
    tn_slot_acts_close(&q->acts);
    free(q);
    return tn_fail(err, TERN_E_MEMORY, "cannot start a thread");
}

void tn_queue_stop(tn_queue *q) {
    if (!q) return;
    pthread_mutex_lock(&q->mu);
    q->closing = true;
    for (int32_t i = 0; i < q->n_seats; i++) {
        tn_job *j = q->running[i];
        if (!j) continue;
        atomic_store(&j->cancelled, true);
        if (j->on) tern_session_cancel(j->on);
    }
    pthread_cond_signal(&q->work);
    pthread_mutex_unlock(&q->mu);
}

void tn_queue_close(tn_queue **pq) {
    tn_queue *q = *pq;
    if (!q) return;
    *pq = NULL;
    tn_queue_stop(q);
    pthread_join(q->worker, NULL);
    tn_slots_close(&q->slots);
    tn_slot_acts_close(&q->acts);
    tern_session_close(&q->embedder);
    pthread_mutex_destroy(&q->mu);
    pthread_cond_destroy(&q->work);
    free(q);
}

tn_lora_mix tn_queue_adapters(tn_queue *q) {
    pthread_mutex_lock(&q->mu);
    const tn_lora_mix mix = q->own;
    pthread_mutex_unlock(&q->mu);
    return mix;
}

void tn_queue_adapt(tn_queue *q, const tn_lora_mix *mix) {
    pthread_mutex_lock(&q->mu);
    q->own = *mix;
    pthread_mutex_unlock(&q->mu);
}

bool tn_queue_slot_busy(const tn_queue *q, int32_t slot) { return !tn_slots_idle(&q->slots, slot); }

const tn_queue_options *tn_queue_opts(const tn_queue *q) { return &q->o; }

tn_queue_counts tn_queue_count(tn_queue *q) {
    pthread_mutex_lock(&q->mu);
    tn_queue_counts c = q->counts;
    pthread_mutex_unlock(&q->mu);
    return c;
}
