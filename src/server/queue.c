#include "server/queue.h"

#include "base/clock.h"
#include "engine/engine.h"
#include "server/reply.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

enum { WORTH_TOK = 16 };

typedef struct slot {
    tern_session *s;
    uint64_t used; /* when last */
} slot;

struct tn_queue {
    tn_queue_options o;
    pthread_t worker;
    pthread_mutex_t mu;
    pthread_cond_t work;
    tn_job *first, *last;     /* waiting; guarded by mu */
    tn_job *running;          /* guarded by mu */
    tern_session *running_on; /* guarded by mu; the session a cancel reaches */
    bool closing;             /* guarded by mu */
    tn_queue_counts counts;   /* guarded by mu */
    slot *slots;              /* [n_sessions], the worker's */
    uint64_t clock;
};

/* ---- jobs ----------------------------------------------------------------------------------------- */

static void job_free(tn_job *j) {
    tn_request_free(&j->r);
    pthread_cond_destroy(&j->changed);
    json_decref(j->logprobs);
    free(j->ids);
    free(j->out);
    free(j->text);
    free(j);
}

static void job_release(tn_job *j) {
    pthread_mutex_lock(&j->q->mu);
    bool last = !--j->owners;
    pthread_mutex_unlock(&j->q->mu);
    if (last) job_free(j);
}

void tn_job_leave(tn_job *j) { job_release(j); }

void tn_job_cancel(tn_job *j) {
    tn_queue *q = j->q;
    atomic_store(&j->cancelled, true);
    pthread_mutex_lock(&q->mu);
    if (q->running == j && q->running_on) tern_session_cancel(q->running_on);
    pthread_mutex_unlock(&q->mu);
}

void tn_job_wait(tn_job *j, int ms) {
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += (long)(ms % 1000) * 1000000;
    until.tv_sec += ms / 1000 + until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    pthread_mutex_lock(&j->q->mu);
    if (!j->done && j->n_taken == j->n_out) pthread_cond_timedwait(&j->changed, &j->q->mu, &until);
    pthread_mutex_unlock(&j->q->mu);
}

size_t tn_job_take(tn_job *j, char *buf, size_t cap, bool *done) {
    pthread_mutex_lock(&j->q->mu);
    size_t n = j->n_out - j->n_taken;
    if (n > cap) n = cap;
    if (n) memcpy(buf, j->out + j->n_taken, n);
    j->n_taken += n;
    *done = j->done && j->n_taken == j->n_out;
    pthread_mutex_unlock(&j->q->mu);
    return n;
}

bool tn_job_done(tn_job *j, bool *begun) {
    pthread_mutex_lock(&j->q->mu);
    bool done = j->done;
    *begun = j->n_out > 0;
    pthread_mutex_unlock(&j->q->mu);
    return done;
}

/* Makes room for n more bytes and a zero, by doubling. */
static bool text_room(char **p, size_t *cap, size_t n, size_t more) {
    if (n + more + 1 <= *cap) return true;
    size_t want = 2 * (n + more + 1);
    char *q = realloc(*p, want);
    if (!q) return false;
    *p = q;
    *cap = want;
    return true;
}

/* Puts text out and takes it (free). Returns false without memory; text may be NULL for that. */
static bool put_out(tn_job *j, const char *before, char *text, const char *after) {
    size_t b = strlen(before), n = text ? strlen(text) : 0, a = strlen(after);
    pthread_mutex_lock(&j->q->mu);
    bool ok = text && text_room(&j->out, &j->cap_out, j->n_out, b + n + a);
    if (ok) {
        memcpy(j->out + j->n_out, before, b);
        memcpy(j->out + j->n_out + b, text, n);
        memcpy(j->out + j->n_out + b + n, after, a);
        j->n_out += b + n + a;
        pthread_cond_signal(&j->changed);
    }
    pthread_mutex_unlock(&j->q->mu);
    free(text);
    return ok;
}

static bool event(tn_job *j, json_t *value) {
    char *text = NULL;
    (void)tn_json_text(value, JSON_COMPACT, &text, NULL);
    json_decref(value);
    return put_out(j, "data: ", text, "\n\n");
}

/* ---- the worker ------------------------------------------------------------------------------------ */

static bool on_token(void *user, int32_t token, const char *text, size_t n, float logprob) {
    tn_job *j = user;
    if (atomic_load(&j->cancelled)) return false;
    json_t *lp = j->r.logprobs && token >= 0 ? tn_reply_logprob(j->q->o.e, token, logprob) : NULL;
    if (j->r.stream) {
        bool ok = true;
        if (!j->begun && j->r.chat) ok = event(j, tn_reply_role(j));
        j->begun = true;
        if (ok && (n || lp)) return event(j, tn_reply_delta(j, text, n, lp));
        json_decref(lp);
        return ok;
    }
    if (j->r.logprobs && token >= 0) {
        tn_json_append(&j->logprobs, lp);
        if (!j->logprobs) return false;
    }
    if (!text_room(&j->text, &j->cap_text, j->n_text, n)) return false;
    memcpy(j->text + j->n_text, text, n);
    j->n_text += n;
    return true;
}

/* Chooses the session that shares most with the prompt, else an unused one, else the one used longest ago. */
static tern_status slot_for(tn_queue *q, const tn_job *j, slot **out, tern_error *err) {
    slot *best = NULL, *oldest = &q->slots[0], *unused = NULL;
    size_t most = 0;
    for (int32_t i = 0; i < q->o.n_sessions; i++) {
        slot *k = &q->slots[i];
        if (!k->s) {
            unused = unused ? unused : k;
            continue;
        }
        size_t same = 0;
        while (same < j->n_ids && same < (size_t)k->s->n_tok && k->s->tokens[same] == j->ids[same]) same++;
        /* a few tokens in common are not worth another's conversation */
        bool worth = same >= WORTH_TOK || same + 1 >= j->n_ids || same == (size_t)k->s->n_tok;
        if (same > most && worth) most = same, best = k;
        if (!oldest->s || k->used < oldest->used) oldest = k;
    }
    if (!best) best = unused ? unused : oldest;
    if (!best->s) {
        tern_session_options so;
        tern_session_options_defaults(&so);
        so.n_ctx = q->o.n_ctx;
        so.draft = q->o.draft;
        TN_TRY(tern_session_open(q->o.e, &so, &best->s, err));
    }
    best->used = ++q->clock;
    *out = best;
    return TERN_OK;
}

static void running_on(tn_queue *q, tern_session *s) {
    pthread_mutex_lock(&q->mu);
    q->running_on = s;
    pthread_mutex_unlock(&q->mu);
}

static tern_status answer(tn_queue *q, tn_job *j, double *prefill_s, tern_error *err) {
    slot *k;
    TN_TRY(slot_for(q, j, &k, err));
    tern_session *s = k->s;
    while (j->n_cached + 1 < j->n_ids && j->n_cached < (size_t)s->n_tok &&
           s->tokens[j->n_cached] == j->ids[j->n_cached])
        j->n_cached++; /* the last token is evaluated again, for what follows it */
    tern_generate_options o;
    tern_generate_options_defaults(&o);
    o.max_tokens = j->r.max_tokens;
    o.sampling = j->r.sampling;
    o.stop = j->r.stop;
    o.grammar = j->r.grammar;
    o.json_schema = j->r.schema;
    o.no_logprobs = !j->r.logprobs;
    o.on_token = on_token;
    o.user = j;
    running_on(q, s);
    tern_status st;
    double t0 = tn_now_s();
    do { /* a cancel that came too late for the job before is not for this one */
        st = tern_session_prefill(s, j->ids, j->n_ids, err);
    } while (st == TERN_E_CANCELLED && !atomic_load(&j->cancelled));
    *prefill_s = tn_now_s() - t0;
    if (st == TERN_OK) st = tern_session_generate(s, &o, &j->res, err);
    running_on(q, NULL);
    if (st == TERN_OK && j->res.reason == TERN_STOP_CALLBACK)
        st = atomic_load(&j->cancelled) ? tn_fail(err, TERN_E_CANCELLED, "cancelled")
                                        : tn_fail(err, TERN_E_MEMORY, "no memory for the answer");
    return st;
}

static void finish(tn_queue *q, tn_job *j, tern_status st, const tern_error *err, double prefill_s) {
    char *text = NULL;
    bool ok = true;
    if (st == TERN_OK && j->r.stream) {
        if (!j->begun && j->r.chat) ok = event(j, tn_reply_role(j));
        ok = ok && event(j, tn_reply_end(j));
        if (j->r.include_usage) ok = ok && event(j, tn_reply_usage_event(j));
        ok = ok && put_out(j, "data: ", strdup("[DONE]"), "\n\n");
    } else if (st == TERN_OK) {
        json_t *v = tn_reply_whole(j);
        (void)tn_json_text(v, JSON_COMPACT, &text, NULL);
        json_decref(v);
        ok = put_out(j, "", text, "\n");
    } else if (j->r.stream && j->n_out) {
        (void)event(j, tn_reply_error(err, tn_reply_status(err)));
    }
    pthread_mutex_lock(&q->mu);
    if (st != TERN_OK) j->err = *err;
    else if (!ok) (void)tn_fail(&j->err, TERN_E_MEMORY, "no memory for the reply");
    tn_queue_counts *c = &q->counts;
    if (st == TERN_OK) c->n_done++;
    else if (st == TERN_E_CANCELLED) c->n_cancelled++;
    else c->n_failed++;
    if (st == TERN_OK) c->prompt_tokens += j->n_ids, c->cached_tokens += j->n_cached;
    c->output_tokens += (uint64_t)j->res.n_tokens;
    c->prefill_s += prefill_s;
    c->decode_s += j->res.decode_s;
    j->done = true;
    q->running = NULL;
    pthread_cond_signal(&j->changed);
    pthread_mutex_unlock(&q->mu);
    job_release(j);
}

static void *work(void *user) {
    tn_queue *q = user;
    for (;;) {
        pthread_mutex_lock(&q->mu);
        while (!q->first && !q->closing) pthread_cond_wait(&q->work, &q->mu);
        tn_job *j = q->first;
        if (!j) { /* closing */
            pthread_mutex_unlock(&q->mu);
            return NULL;
        }
        q->first = j->next;
        if (!q->first) q->last = NULL;
        q->counts.waiting--;
        q->running = j;
        if (q->closing) atomic_store(&j->cancelled, true);
        pthread_mutex_unlock(&q->mu);
        tern_error err = {0};
        double prefill_s = 0;
        tern_status st = atomic_load(&j->cancelled) ? tn_fail(&err, TERN_E_CANCELLED, "cancelled")
                                                    : answer(q, j, &prefill_s, &err);
        finish(q, j, st, &err, prefill_s);
    }
}

/* ---- the queue ------------------------------------------------------------------------------------- */

static tern_status prompt_ids(const tn_queue *q, tn_job *j, tern_error *err) {
    const tn_request *r = &j->r;
    tern_status st = TERN_E_LIMIT;
    for (size_t cap = r->chat ? 0 : r->n_prompt + 16; st == TERN_E_LIMIT; cap = j->n_ids) {
        free(j->ids);
        j->ids = malloc((cap + 1) * sizeof *j->ids);
        TN_FAIL_IF(!j->ids, err, TERN_E_MEMORY, "no memory for the prompt");
        st = r->chat
                 ? tern_chat_tokens(q->o.e, r->msgs, r->n_msgs, NULL, j->ids, cap, &j->n_ids, err)
                 : tern_tokenize(q->o.e, r->prompt, r->n_prompt, true, false, j->ids, cap, &j->n_ids, err);
    }
    TN_TRY(st);
    TN_FAIL_IF(!j->n_ids, err, TERN_E_INVALID, "the prompt is empty: it has no tokens");
    TN_FAIL_IF(j->n_ids >= (size_t)q->o.n_ctx, err, TERN_E_LIMIT,
               "the prompt has %zu tokens and the context %d, of which one at least is for the answer",
               j->n_ids, q->o.n_ctx);
    return TERN_OK;
}

tern_status tn_queue_put(tn_queue *q, tn_request *r, tn_job **out, tern_error *err) {
    tn_job *j = calloc(1, sizeof *j);
    if (!j) {
        tn_request_free(r);
        return tn_fail(err, TERN_E_MEMORY, "no memory for the request");
    }
    pthread_condattr_t a;
    pthread_condattr_init(&a);
    pthread_condattr_setclock(&a, CLOCK_MONOTONIC);
    pthread_cond_init(&j->changed, &a);
    pthread_condattr_destroy(&a);
    j->q = q;
    j->r = *r;
    *r = (tn_request){0};
    j->created = (int64_t)time(NULL);
    j->owners = 2;
    uint64_t rnd[2] = {0};
    if (getrandom(rnd, sizeof rnd, 0) != sizeof rnd) rnd[0] = (uint64_t)tn_now_ns();
    snprintf(j->id, sizeof j->id, "%s%08llx%08llx", j->r.chat ? "chatcmpl-" : "cmpl-",
             (unsigned long long)(rnd[0] & 0xffffffff), (unsigned long long)(rnd[1] & 0xffffffff));
    j->logprobs = json_array();
    tern_status st = prompt_ids(q, j, err);
    pthread_mutex_lock(&q->mu);
    if (st == TERN_OK && q->closing) st = tn_fail(err, TERN_E_CANCELLED, "the server is closing");
    if (st == TERN_OK && q->counts.waiting >= q->o.max_waiting)
        st = tn_fail(err, TERN_E_LIMIT, "the queue is full: %d requests wait", q->counts.waiting);
    if (st == TERN_OK) {
        if (q->last) q->last->next = j;
        else q->first = j;
        q->last = j;
        q->counts.waiting++;
        pthread_cond_signal(&q->work);
    }
    pthread_mutex_unlock(&q->mu);
    if (st != TERN_OK) job_free(j);
    else *out = j;
    return st;
}

tern_status tn_queue_open(const tn_queue_options *o, tn_queue **out, tern_error *err) {
    tn_queue *q = calloc(1, sizeof *q);
    slot *slots = calloc((size_t)o->n_sessions, sizeof *slots);
    *out = NULL;
    if (!q || !slots) {
        free(q);
        free(slots);
        return tn_fail(err, TERN_E_MEMORY, "no memory for the server");
    }
    q->o = *o;
    q->slots = slots;
    pthread_mutex_init(&q->mu, NULL);
    pthread_cond_init(&q->work, NULL);
    /* the first session now: what is wrong with the model or the context is told at the start */
    tern_session_options so;
    tern_session_options_defaults(&so);
    so.n_ctx = o->n_ctx;
    so.draft = o->draft;
    tern_status st = tern_session_open(o->e, &so, &slots[0].s, err);
    if (st == TERN_OK) q->o.n_ctx = tern_session_capacity(slots[0].s);
    if (st == TERN_OK && pthread_create(&q->worker, NULL, work, q))
        st = tn_fail(err, TERN_E_MEMORY, "cannot start a thread");
    if (st == TERN_OK) {
        *out = q;
        return TERN_OK;
    }
    tern_session_close(&slots[0].s);
    free(slots);
    free(q);
    return st;
}

void tn_queue_stop(tn_queue *q) {
    if (!q) return;
    pthread_mutex_lock(&q->mu);
    q->closing = true;
    if (q->running) atomic_store(&q->running->cancelled, true);
    if (q->running_on) tern_session_cancel(q->running_on);
    pthread_cond_signal(&q->work);
    pthread_mutex_unlock(&q->mu);
}

void tn_queue_close(tn_queue **pq) {
    tn_queue *q = *pq;
    if (!q) return;
    *pq = NULL;
    tn_queue_stop(q);
    pthread_join(q->worker, NULL);
    for (int32_t i = 0; i < q->o.n_sessions; i++) tern_session_close(&q->slots[i].s);
    pthread_mutex_destroy(&q->mu);
    pthread_cond_destroy(&q->work);
    free(q->slots);
    free(q);
}

const tn_queue_options *tn_queue_opts(const tn_queue *q) { return &q->o; }

tn_queue_counts tn_queue_count(tn_queue *q) {
    pthread_mutex_lock(&q->mu);
    tn_queue_counts c = q->counts;
    c.running = q->running != NULL;
    pthread_mutex_unlock(&q->mu);
    return c;
}
