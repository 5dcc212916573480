/* server/queue.h - who is answered when: up to TN_MAX_TEXTS requests of a model together, on sessions that
 * keep their prefixes (slots.h). Among those who wait the client with the fewest answers being made is next,
 * then the one served longest ago, then the one that came first; chunks of prompts go round likewise. So a
 * client with many requests does not keep out one that has a single one. Of one client's requests the short ones go
 * first, for up to ten seconds.
 *
 * One worker thread goes round: all answers go one step further in one forward, then one prompt is read a
 * chunk further. A job belongs to two: the connection that asks and the worker that answers. The later of
 * them frees it. The connection reads what the worker has written so far; when its client goes away it
 * cancels, which the worker notices within a step. Lock: queue.mu guards the list, every job's fields
 * after `guarded`, and which jobs run. */
#ifndef TN_SERVER_QUEUE_H
#define TN_SERVER_QUEUE_H

#include "server/answering.h"

#include "quant/cache.h"

#include <pthread.h>

typedef struct tn_queue tn_queue;

typedef struct tn_job {
    tn_queue *q;
    tn_answering a; /* the connection's before it is put and from its end on, the worker's in between */
    atomic_bool cancelled;
    /* guarded */
    struct tn_job *next;
    tern_session *on; /* what a cancel reaches, or NULL */
    pthread_cond_t changed;
    int owners;
    uint64_t seated; /* its number among those whose answers were begun; 0: it waits */
    bool done;
    tern_error err;                  /* err.code when done */
    tn_bytes out;                    /* of a stream: what is not taken begins at n_taken */
    size_t n_taken, n_probs, n_echo; /* n_echo: of its largest event, where the text begins with the prompt */
    bool has_begun;                  /* something was written to out */
    const char *why;                 /* the answer takes too much memory; NULL: it does not */
    /* the worker's */
    float *vector;    /* not NULL: the text's embedding is wanted, and goes there */
    tn_pooling pool;  /* UNSAID: as the model's file has it; MEAN; NONE: a vector for each token */
    int64_t token_ns; /* of its last token; 0: none yet */
    bool counted;     /* among those whose first words are still to come */
    /* compiled by the connection before it is put, so that nobody waits for that but who asks */
    struct tn_grammar *grammar;
} tn_job;

typedef struct tn_queue_options {
    tern_engine *e;
    const char *model; /* its name in replies */
    const char *path;  /* its file, which clients are not told; or NULL */
    int32_t n_ctx, n_sessions, max_waiting;
    const char *draft;
    const char *slot_folder; /* where clients save sessions by name (server/slot_acts.h); NULL: nowhere */
    const char *pooling; /* of embeddings whose request does not say it: mean, none; NULL: the model's own */
    const char *chat_template; /* its source, or NULL: the model's */
    tn_usual usual;            /* of requests that do not say it */
    uint64_t cache_bytes;      /* of conversations on disk; 0: none */
    bool shift;                /* the oldest turns of a conversation that is too long leave it */
    tn_images_from images;     /* who decodes pictures */
    struct tn_turns *turns;    /* with the queues of other models; NULL: there are none */
    bool (*room)(void *user,
                 uint64_t bytes); /* counts memory for one more session; false: no room. NULL: always */
    void *room_user;
    const char *
        from; /* "file", "package", or "cache": a package that tern made answers in the place of its file; or NULL */
    tn_cache_about about; /* of such a package */
} tn_queue_options;

/* Fields that say what answers: from, and of a package in the place of a file what it loses. */
void tn_queue_tell_from(const tn_queue_options *o, json_t **into);

/* A message that has the path of a model has its name instead: clients are not told where files lie. */
void tn_queue_hide_path(const char *path, const char *name, tern_error *err);

/* How long something took, in classes: n[i] took at most tn_times_s[i], the last one any longer. */
enum { TN_TIMES = 15 };
typedef struct tn_times {
    uint64_t n[TN_TIMES + 1], count;
    double sum_s;
} tn_times;
extern const double tn_times_s[TN_TIMES];
void tn_times_add(tn_times *t, double s);

typedef struct tn_queue_counts {
    uint64_t n_done, n_failed, n_cancelled, prompt_tokens, cached_tokens, output_tokens;
    double prefill_s, decode_s;
    uint64_t n_chunks, n_steps; /* of prompts; of answers, all together */
    uint64_t n_pauses;          /* of chunks, for what goes first */
    tn_times first, between;    /* from a request to its first token; from a token of an answer to the next */
    double opened_first_s;      /* that of the very first request; 0: not yet */
    int waiting, running;
    int most_together, most_chunks_apart; /* answers in one step; chunks between two steps of an answer */
} tn_queue_counts;

tern_status tn_queue_open(const tn_queue_options *o, tn_queue **out, tern_error *err);
/* Cancels what runs and what waits, and takes no more. NULL-safe. */
void tn_queue_stop(tn_queue *q);
/* Stops, and waits until all is answered. Every job must have been left. */
void tn_queue_close(tn_queue **q);
const tn_queue_options *tn_queue_opts(const tn_queue *q);
tn_queue_counts tn_queue_count(tn_queue *q);
/* Adapters of requests that name none: the engine's own, until they are set; what waits already keeps its own. */
tn_lora_mix tn_queue_adapters(tn_queue *q);
void tn_queue_adapt(tn_queue *q, const tn_lora_mix *mix);

/* Does something to a session by its number as soon as it answers nobody (server/slot_acts.h). What came of it is in
 * *act. gone(user) is asked now and then whether anybody still waits. */
struct tn_slot_act;
tern_status tn_queue_act(tn_queue *q, struct tn_slot_act *act, bool (*gone)(void *user), void *user,
                         tern_error *err);
/* Whether the session of this number answers; from any thread. */
bool tn_queue_slot_busy(const tn_queue *q, int32_t slot);
/* Takes the request, also on failure. TN_E_BUSY: too many wait; a client without any may still wait where
 * others have filled the queue, up to twice its size. TERN_E_LIMIT: the prompt is too long. */
tern_status tn_queue_put(tn_queue *q, tn_request *r, tn_job **out, tern_error *err);
/* The same for a vector, which it takes too (tn_queue_embed); NULL: an answer is wanted. */
tern_status tn_queue_put_for(tn_queue *q, tn_request *r, float *vector, tn_pooling pool, tn_job **out,
                             tern_error *err);
/* How many tokens the prompt of a request has. Takes the request. */
tern_status tn_queue_measure(tn_queue *q, tn_request *r, size_t *n_tokens, tern_error *err);
/* The prompt of a chat as the template writes it; *text is the caller's. Takes the request. */
tern_status tn_queue_render(tn_queue *q, tn_request *r, char **text, size_t *n_bytes, tern_error *err);
/* What the job's text makes of its session: into j->vector, which grows where it has to. */
tern_status tn_job_embed(tn_job *j, tern_session *s, tern_error *err);
/* Log-probabilities of a prompt (queue_score.c): before it is begun, before its first chunk, and at the answer's end. */
tern_status tn_job_keep_scores(tn_job *j, tern_error *err);
tern_status tn_job_score(tn_job *j, tn_prefill *p, tern_error *err);
tern_status tn_job_ended(tn_job *j, const tern_session *s, tern_error *err);
/* Why what it says could not be put. */
tern_status tn_job_unsaid(const tn_job *j, tern_error *err);
/* The embedding, or of a reranker the score, of a text (a prompt as completions have it), for this client (tn_request), when its turn comes: *out [n_rows][n_embd], the caller's, to be freed with free. lora: the adapters
 * that it is read with, "NAME[:SCALE],..."; NULL: those of requests that name none. n_rows is 1 where pool is not NONE. *n_tokens grows by the tokens read. gone(user) is asked now and then whether anybody still waits. */
tern_status tn_queue_embed(tn_queue *q, const json_t *text, const char *lora, tn_pooling pool,
                           uint64_t client, int priority, bool (*gone)(void *user), void *user, float **out,
                           size_t *n_tokens, tern_error *err);
enum { TN_EMBED_NUMBERS = 1 << 21 }; /* of a text's vectors together */
/* What answers may hold until it is sent: bytes of one whose client does not read it, of all such together, and
 * probabilities of tokens in replies that are no streams. An answer that would hold more ends, and says so. */
enum {
    TN_UNREAD_BYTES = 2 << 20,
    TN_UNREAD_ALL_BYTES = 64 << 20,
    TN_UNREAD_LEAST_BYTES = 256 << 10,  /* less is nobody's fault */
    TN_UNREAD_PRESSED_BYTES = 16 << 10, /* ... unless others wait for their turn */
    TN_KEPT_PROBS = 400000,             /* of a request */
    TN_KEPT_ALL_PROBS = 2000000,
    TN_KEPT_LEAST_PROBS = 10000
};
/* Waits at most `ms` for more output or the end. */
void tn_job_wait(tn_job *j, int ms);
/* Copies output not taken yet. *done tells that nothing will follow. */
size_t tn_job_take(tn_job *j, char *buf, size_t cap, bool *done);
/* Tells whether it is done and, in *begun, whether its stream has begun. */
bool tn_job_done(tn_job *j, bool *begun);
void tn_job_cancel(tn_job *j);
void tn_job_leave(tn_job *j); /* the connection's part of it */

#endif
