#include "server/queue.h"

#include "base/clock.h"
#include "engine/engine.h"
#include "server/answering.h"
#include "server/checkpoints.h"
#include "server/watch.h"

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
    tern_session *embedder; /* the worker's, or NULL */
    tn_checkpoints *kept;   /* the worker's, or NULL */
};

/* ---- jobs ----------------------------------------------------------------------------------------- */

static void job_free(tn_job *j) {
    tn_request_free(&j->r);
    pthread_cond_destroy(&j->changed);
    tn_answering_free(j);
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
    if (!j->done && j->n_taken == j->out.n) pthread_cond_timedwait(&j->changed, &j->q->mu, &until);
    pthread_mutex_unlock(&j->q->mu);
}

size_t tn_job_take(tn_job *j, char *buf, size_t cap, bool *done) {
    pthread_mutex_lock(&j->q->mu);
    size_t n = j->out.n - j->n_taken;
    if (n > cap) n = cap;
    if (n) memcpy(buf, j->out.p + j->n_taken, n);
    j->n_taken += n;
    *done = j->done && j->n_taken == j->out.n;
    pthread_mutex_unlock(&j->q->mu);
    return n;
}

bool tn_job_done(tn_job *j, bool *begun) {
    pthread_mutex_lock(&j->q->mu);
    bool done = j->done;
    *begun = j->out.n > 0;
    pthread_mutex_unlock(&j->q->mu);
    return done;
}

void tn_queue_lock(tn_queue *q) { pthread_mutex_lock(&q->mu); }
void tn_queue_unlock(tn_queue *q) { pthread_mutex_unlock(&q->mu); }

/* ---- the worker ------------------------------------------------------------------------------------ */

static size_t shared(const tern_session *s, const int32_t *ids, size_t n) {
    size_t k = 0;
    while (k < n && k < (size_t)s->n_tok && s->tokens[k] == ids[k]) k++;
    return k;
}

static tern_status open_slot(tn_queue *q, slot *k, tern_error *err) {
    tern_session_options so;
    tern_session_options_defaults(&so);
    so.n_ctx = q->o.n_ctx;
    so.draft = q->o.draft;
    return tern_session_open(q->o.e, &so, &k->s, err);
}

/* An unused slot, else the one used longest ago, whose conversation goes to disk. Not `but`, unless it is the only one. */
static tern_status free_slot(tn_queue *q, const slot *but, slot **out, tern_error *err) {
    slot *oldest = NULL;
    for (int32_t i = 0; i < q->o.n_sessions; i++) {
        slot *k = &q->slots[i];
        if (k == but) continue;
        if (!k->s) {
            *out = k;
            return open_slot(q, k, err);
        }
        if (!oldest || k->used < oldest->used) oldest = k;
    }
    *out = oldest ? oldest : (slot *)(uintptr_t)but;
    if (q->kept) tn_checkpoints_save(q->kept, (*out)->s);
    return TERN_OK;
}

/* A session that begins as the prompt does: the one in memory that shares most with it, unless the disk knows more. One
 * whose conversation went on otherwise keeps it: the common part is copied. */
static tern_status slot_for(tn_queue *q, const tn_job *j, slot **out, tern_error *err) {
    slot *best = NULL;
    size_t most = 0, which = 0, on_disk = 0;
    for (int32_t i = 0; i < q->o.n_sessions; i++) {
        slot *k = &q->slots[i];
        size_t same = k->s ? shared(k->s, j->ids, j->n_ids) : 0;
        if (!same || (!tn_state_truncates(&k->s->state) && same < (size_t)k->s->n_tok)) continue;
        if (same > most) most = same, best = k;
    }
    bool whole = !tn_state_truncates(&q->slots[0].s->state);
    if (q->kept) on_disk = tn_checkpoints_match(q->kept, j->ids, j->n_ids, whole, &which);
    slot *k = best;
    tern_status st = TERN_OK;
    if (on_disk >= most + TN_CHECKPOINT_LEAST) {
        st = free_slot(q, NULL, &k, err);
        /* what was saved just now may have moved the entries */
        if (st == TERN_OK && tn_checkpoints_match(q->kept, j->ids, j->n_ids, whole, &which) >= on_disk)
            (void)tn_checkpoints_load(q->kept, which, k->s);
    } else {
        /* a few tokens in common are not worth a copy */
        bool worth = best && (most >= WORTH_TOK || most + 1 >= j->n_ids || most == (size_t)best->s->n_tok);
        if (!worth || (size_t)best->s->n_tok > most + WORTH_TOK) st = free_slot(q, best, &k, err);
        if (st == TERN_OK && worth && k != best) st = tern_session_copy(k->s, best->s, err);
    }
    if (st != TERN_OK) return st;
    k->used = ++q->clock;
    *out = k;
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
    j->n_cached =
        shared(s, j->ids, j->n_ids - 1); /* the last token is evaluated again, for what follows it */
    tn_session_truncate(s, (int32_t)j->n_cached);
    j->n_cached = (size_t)s->n_tok; /* less where the state goes back to snapshots only */
    tern_generate_options o;
    tn_answering_options(j, &o);
    running_on(q, s);
    tern_status st;
    double t0 = tn_now_s();
    tn_watch_begin(j->r.watch, s, j->n_ids, j->n_cached);
    do { /* a cancel that came too late for the job before is not for this one */
        st = tern_session_prefill(s, j->ids, j->n_ids, err);
    } while (st == TERN_E_CANCELLED && !atomic_load(&j->cancelled));
    *prefill_s = tn_now_s() - t0;
    if (st == TERN_OK) tn_watch_read(j->r.watch);
    if (st == TERN_OK) st = tern_session_generate(s, &o, &j->res, err);
    tn_watch_end(j->r.watch);
    running_on(q, NULL);
    if (st == TERN_OK) j->stopped_by = s->stopped_by;
    if (st == TERN_OK && j->res.reason == TERN_STOP_CALLBACK && !j->enough)
        st = atomic_load(&j->cancelled) ? tn_fail(err, TERN_E_CANCELLED, "cancelled")
                                        : tn_fail(err, TERN_E_MEMORY, "no memory for the answer");
    return st;
}

static tern_status embed(tn_queue *q, tn_job *j, tern_error *err) {
    if (!q->embedder) {
        tern_session_options so;
        tern_session_options_defaults(&so);
        so.n_ctx = q->o.n_ctx;
        TN_TRY(tern_session_open(q->o.e, &so, &q->embedder, err));
    }
    running_on(q, q->embedder);
    tern_status st;
    do {
        st = tern_session_embed(q->embedder, j->ids, j->n_ids, j->mean, j->vector,
                                (size_t)q->o.e->model->h.n_embd, err);
    } while (st == TERN_E_CANCELLED && !atomic_load(&j->cancelled));
    running_on(q, NULL);
    return st;
}

static void finish(tn_queue *q, tn_job *j, tern_status st, const tern_error *err, double prefill_s) {
    tern_error why = *err;
    pthread_mutex_lock(&q->mu);
    bool closing = q->closing;
    pthread_mutex_unlock(&q->mu);
    if (st == TERN_E_CANCELLED && closing) (void)tn_fail(&why, st, "the server is closing");
    bool ok = j->vector || tn_answering_finish(j, st, &why);
    pthread_mutex_lock(&q->mu);
    if (st != TERN_OK) j->err = why;
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
                         : j->vector                ? embed(q, j, &err)
                                                    : answer(q, j, &prefill_s, &err);
        finish(q, j, st, &err, prefill_s);
    }
}

/* ---- the queue ------------------------------------------------------------------------------------- */

static tern_status put(tn_queue *q, tn_request *r, float *vector, bool mean, tn_job **out, tern_error *err) {
    tn_job *j = calloc(1, sizeof *j);
    if (!j) {
        tn_request_free(r);
        free(vector);
        return tn_fail(err, TERN_E_MEMORY, "no memory for the request");
    }
    pthread_condattr_t a;
    pthread_condattr_init(&a);
    pthread_condattr_setclock(&a, CLOCK_MONOTONIC);
    pthread_cond_init(&j->changed, &a);
    pthread_condattr_destroy(&a);
    j->q = q;
    j->vector = vector;
    j->mean = mean;
    j->r = *r;
    *r = (tn_request){0};
    j->created = (int64_t)time(NULL);
    j->owners = 2;
    uint64_t rnd[2] = {0};
    if (getrandom(rnd, sizeof rnd, 0) != sizeof rnd) rnd[0] = (uint64_t)tn_now_ns();
    static const char *const before[] = {"cmpl-", "chatcmpl-", "msg_"};
    snprintf(j->id, sizeof j->id, "%s%08llx%08llx", before[j->r.api],
             (unsigned long long)(rnd[0] & 0xffffffff), (unsigned long long)(rnd[1] & 0xffffffff));
    j->logprobs = json_array();
    j->calls = json_array();
    tern_status st = tn_answering_open(j, q->o.e, err);
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

tern_status tn_queue_put(tn_queue *q, tn_request *r, tn_job **out, tern_error *err) {
    return put(q, r, NULL, false, out, err);
}

tern_status tn_queue_measure(tn_queue *q, const char *body, size_t n_bytes, size_t *n_tokens,
                             tern_error *err) {
    tn_job *j = calloc(1, sizeof *j);
    TN_FAIL_IF(!j, err, TERN_E_MEMORY, "no memory for the request");
    j->q = q;
    pthread_cond_init(&j->changed, NULL);
    tern_status st = tn_request_read_count(body, n_bytes, &j->r, err);
    if (st == TERN_OK) st = tn_answering_open(j, q->o.e, err);
    *n_tokens = j->n_ids;
    job_free(j);
    return st;
}

tern_status tn_queue_embed(tn_queue *q, const char *text, size_t n_bytes, bool mean, bool (*gone)(void *user),
                           void *user, float *out, size_t *n_tokens, tern_error *err) {
    tern_model_info info;
    tern_engine_info(q->o.e, &info);
    float *v = malloc((size_t)info.n_embd * sizeof *v);
    json_t *body = tn_json_pack("{s:s%}", "prompt", text, n_bytes);
    if (!v || !body) {
        free(v);
        json_decref(body);
        return tn_fail(err, TERN_E_MEMORY, "no memory for the embeddings");
    }
    const json_t *prompt = json_object_get(body, "prompt");
    tn_request r = {
        .body = body, .prompt = json_string_value(prompt), .n_prompt = json_string_length(prompt)};
    tn_job *j;
    tern_status st = put(q, &r, v, mean, &j, err); /* takes r and v */
    if (st != TERN_OK) return st;
    bool begun;
    while (!tn_job_done(j, &begun)) {
        if (gone(user)) tn_job_cancel(j);
        tn_job_wait(j, 100);
    }
    st = j->err.code;
    if (st != TERN_OK && err) *err = j->err;
    if (st == TERN_OK) memcpy(out, j->vector, (size_t)info.n_embd * sizeof *out);
    *n_tokens += j->n_ids;
    tn_job_leave(j);
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
    tern_status st = open_slot(q, &slots[0], err);
    if (st == TERN_OK) q->o.n_ctx = tern_session_capacity(slots[0].s);
    tern_error why;
    if (st == TERN_OK && o->cache_bytes &&
        tn_checkpoints_open(slots[0].s, o->cache_bytes, &q->kept, &why) != TERN_OK)
        tn_log((tn_ctx *)&o->e->ctx, TERN_LOG_WARN, "conversations are kept in memory only: %s", why.message);
    if (st == TERN_OK && pthread_create(&q->worker, NULL, work, q))
        st = tn_fail(err, TERN_E_MEMORY, "cannot start a thread");
    if (st == TERN_OK) {
        *out = q;
        return TERN_OK;
    }
    tn_checkpoints_close(&q->kept);
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

bool tn_queue_closing(tn_queue *q) {
    pthread_mutex_lock(&q->mu);
    bool closing = q->closing;
    pthread_mutex_unlock(&q->mu);
    return closing;
}

void tn_queue_close(tn_queue **pq) {
    tn_queue *q = *pq;
    if (!q) return;
    *pq = NULL;
    tn_queue_stop(q);
    pthread_join(q->worker, NULL);
    for (int32_t i = 0; i < q->o.n_sessions; i++) {
        if (q->kept && q->slots[i].s) tn_checkpoints_save(q->kept, q->slots[i].s);
        tern_session_close(&q->slots[i].s);
    }
    tn_checkpoints_close(&q->kept);
    tern_session_close(&q->embedder);
    pthread_mutex_destroy(&q->mu);
    pthread_cond_destroy(&q->work);
    free(q->slots);
    free(q);
}

const tn_queue_options *tn_queue_opts(const tn_queue *q) { return &q->o; }

const char *tn_queue_cache_folder(const tn_queue *q) {
    return q->kept ? tn_checkpoints_folder(q->kept) : NULL;
}

tn_queue_counts tn_queue_count(tn_queue *q) {
    pthread_mutex_lock(&q->mu);
    tn_queue_counts c = q->counts;
    c.running = q->running != NULL;
    pthread_mutex_unlock(&q->mu);
    return c;
}
