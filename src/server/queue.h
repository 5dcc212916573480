/* server/queue.h - who is answered when: up to TN_MAX_TEXTS requests of a model together, on sessions that
 * keep their prefixes (slots.h). Among those who wait the client with the fewest answers being made is next,
 * then the one served longest ago, then the one that came first; chunks of prompts go round likewise. So a
 * client with many requests does not keep out one that has a single one.
 *
 * One worker thread goes round: all answers go one step further in one forward, then one prompt is read a
 * chunk further. A job belongs to two: the connection that asks and the worker that answers. The later of
 * them frees it. The connection reads what the worker has written so far; when its client goes away it
 * cancels, which the worker notices within a step. Lock: queue.mu guards the list, every job's fields
 * behind `guarded`, and which jobs run. */
#ifndef TN_SERVER_QUEUE_H
#define TN_SERVER_QUEUE_H

#include "model/lora.h"
#include "server/request.h"
#include "text/toolcall.h"

#include <pthread.h>
#include <stdatomic.h>

typedef struct tn_queue tn_queue;

typedef struct tn_bytes { /* grows by tn_bytes_add, zero-terminated */
    char *p;
    size_t n, cap;
} tn_bytes;

bool tn_bytes_add(tn_bytes *b, const char *p, size_t n); /* false: no memory */

typedef struct tn_job {
    tn_queue *q;
    tn_request r;
    char id[40];
    int64_t created;
    int32_t *ids; /* the prompt */
    size_t n_ids;
    tn_lora_mix mix; /* adapters that it is answered with */
    tn_answer_form form;
    bool thinking; /* the prompt ends within a thought */
    atomic_bool cancelled;
    /* guarded */
    struct tn_job *next;
    tern_session *on; /* what a cancel reaches, or NULL */
    pthread_cond_t changed;
    int owners;
    uint64_t seated; /* its number among those whose answers were begun; 0: it waits */
    bool done;
    tern_error err; /* err.code when done */
    tn_bytes out;   /* streaming: events; else the body of the reply */
    size_t n_taken;
    /* the worker's */
    tn_answer *reader; /* of chats */
    tn_bytes text, thought;
    json_t *calls; /* [{id, name, arguments}] */
    size_t n_calls;
    char block; /* Anthropic's stream: the kind of the open block, or 0 */
    int n_blocks;
    json_t *logprobs; /* streaming: those not sent yet */
    json_t *top;      /* alternatives of the token drawn next */
    tern_generate_result res;
    const char *stopped_by; /* one of r.stop, or NULL */
    size_t n_cached;
    float *vector; /* not NULL: the text's embedding is wanted, and goes there */
    bool mean;
    bool begun, enough; /* enough: the one call asked for is there */
    bool told_first;    /* its first token is counted */
} tn_job;

typedef struct tn_queue_options {
    tern_engine *e;
    const char *model; /* its name in replies */
    const char *path;  /* its file, which clients are not told; or NULL */
    int32_t n_ctx, n_sessions, max_waiting;
    const char *draft;
    const char *chat_template; /* its source, or NULL: the model's */
    uint64_t cache_bytes;      /* of conversations on disk; 0: none */
    bool shift;                /* the oldest turns of a conversation that is too long leave it */
    struct tn_turns *turns;    /* with the queues of other models; NULL: there are none */
    bool (*room)(void *user,
                 uint64_t bytes); /* counts memory for one more session; false: no room. NULL: always */
    void *room_user;
} tn_queue_options;

/* A message that has the path of a model has its name instead: clients are not told where files lie. */
void tn_queue_hide_path(const char *path, const char *name, tern_error *err);

typedef struct tn_queue_counts {
    uint64_t n_done, n_failed, n_cancelled, prompt_tokens, cached_tokens, output_tokens;
    double prefill_s, decode_s;
    uint64_t n_chunks, n_steps; /* of prompts; of answers, all together */
    uint64_t n_first; /* requests that got their first token, and their waiting for it, all together */
    double first_s;
    double opened_first_s; /* that of the very first request; 0: not yet */
    int waiting, running;
    int most_together, most_chunks_apart; /* answers in one step; chunks between two steps of an answer */
} tn_queue_counts;

tern_status tn_queue_open(const tn_queue_options *o, tn_queue **out, tern_error *err);
/* Cancels what runs and what waits, and takes no more. NULL-safe. */
void tn_queue_stop(tn_queue *q);
/* Stops, and waits until all is answered. Every job must have been left. */
void tn_queue_close(tn_queue **q);
const tn_queue_options *tn_queue_opts(const tn_queue *q);
/* Has tn_queue_stop been called? */
bool tn_queue_closing(tn_queue *q);
tn_queue_counts tn_queue_count(tn_queue *q);

/* Takes the request, also on failure. TN_E_BUSY: too many wait; a client without any may still wait where
 * others have filled the queue, up to twice its size. TERN_E_LIMIT: the prompt is too long. */
tern_status tn_queue_put(tn_queue *q, tn_request *r, tn_job **out, tern_error *err);
/* How many tokens the prompt of a request has. Takes the request. */
tern_status tn_queue_measure(tn_queue *q, tn_request *r, size_t *n_tokens, tern_error *err);
/* The embedding of a text, for this client (tn_request), when its turn comes: out [n_embd], *n_tokens
 * grows by the tokens read. gone(user) is asked now and then whether anybody still waits. */
tern_status tn_queue_embed(tn_queue *q, const char *text, size_t n_bytes, bool mean, uint64_t client,
                           bool (*gone)(void *user), void *user, float *out, size_t *n_tokens,
                           tern_error *err);
/* Waits at most `ms` for more output or the end. */
void tn_job_wait(tn_job *j, int ms);
/* Copies output not taken yet. *done tells that nothing will follow. */
size_t tn_job_take(tn_job *j, char *buf, size_t cap, bool *done);
/* Tells whether it is done and, in *begun, whether it has begun to answer. */
bool tn_job_done(tn_job *j, bool *begun);
void tn_job_cancel(tn_job *j);
void tn_job_leave(tn_job *j); /* the connection's part of it */

/* For server/answering.c, which writes what is guarded. */
void tn_queue_lock(tn_queue *q);
void tn_queue_unlock(tn_queue *q);
/* The job has its first token. Without the lock. */
void tn_queue_first(tn_job *j);

#endif
