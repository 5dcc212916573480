/* server/queue.h - one generation at a time, in the order of arrival, on sessions that keep their prefixes.
 *
 * A job belongs to two: the connection that asks and the worker that answers. The later of them frees it. The
 * connection reads what the worker has written so far; when its client goes away it cancels, which the worker
 * notices within a step. Lock: queue.mu guards the list, every job's fields behind `guarded`, and which job
 * runs. */
#ifndef TN_SERVER_QUEUE_H
#define TN_SERVER_QUEUE_H

#include "server/request.h"

#include <pthread.h>
#include <stdatomic.h>

typedef struct tn_queue tn_queue;

typedef struct tn_job {
    tn_queue *q;
    tn_request r;
    char id[40];
    int64_t created;
    int32_t *ids; /* the prompt */
    size_t n_ids;
    atomic_bool cancelled;
    /* guarded */
    struct tn_job *next;
    pthread_cond_t changed;
    int owners;
    bool done;
    tern_error err; /* err.code when done */
    char *out;      /* streaming: events; else the body of the reply */
    size_t n_out, cap_out, n_taken;
    /* the worker's */
    char *text;
    size_t n_text, cap_text;
    json_t *logprobs;
    tern_generate_result res;
    size_t n_cached;
    bool begun;
} tn_job;

typedef struct tn_queue_options {
    tern_engine *e;
    const char *model; /* its name in replies */
    int32_t n_ctx, n_sessions, max_waiting;
    const char *draft;
} tn_queue_options;

typedef struct tn_queue_counts {
    uint64_t n_done, n_failed, n_cancelled, prompt_tokens, cached_tokens, output_tokens;
    double prefill_s, decode_s;
    int waiting;
    bool running;
} tn_queue_counts;

tern_status tn_queue_open(const tn_queue_options *o, tn_queue **out, tern_error *err);
/* Cancels what runs and what waits, and takes no more. NULL-safe. */
void tn_queue_stop(tn_queue *q);
/* Stops, and waits until all is answered. Every job must have been left. */
void tn_queue_close(tn_queue **q);
const tn_queue_options *tn_queue_opts(const tn_queue *q);
tn_queue_counts tn_queue_count(tn_queue *q);

/* Takes the request, also on failure. It fails with TERN_E_LIMIT when too many wait or the prompt is too
 * long. */
tern_status tn_queue_put(tn_queue *q, tn_request *r, tn_job **out, tern_error *err);
/* Waits at most `ms` for more output or the end. */
void tn_job_wait(tn_job *j, int ms);
/* Copies output not taken yet. *done tells that nothing will follow. */
size_t tn_job_take(tn_job *j, char *buf, size_t cap, bool *done);
/* Tells whether it is done and, in *begun, whether it has begun to answer. */
bool tn_job_done(tn_job *j, bool *begun);
void tn_job_cancel(tn_job *j);
void tn_job_leave(tn_job *j); /* the connection's part of it */

#endif
