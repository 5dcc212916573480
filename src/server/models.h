/* server/models.h - the models of a server: those in memory, each with its queue, and those that are loaded
 * when somebody asks for them.
 *
 *   away --use--> loading --> ready --idle, or its room is wanted--> away
 *                    \--> failed (the next use tries again; also where its weights could not be read later)
 *
 * A connection uses a model from before its request is put into the queue until after it has left its job,
 * and the model stays in memory that long. One thread, the keeper, loads and unloads. Where the memory
 * allowed does not hold a model beside the others, those that nobody uses leave, the one used longest ago
 * first; where that is not enough, requests wait in the order of their coming until those who answer are
 * done, so that no model keeps another out for ever.
 *
 * Lock: models.mu guards the list of those who wait and what is `guarded` below; it may be held when a
 * queue's lock is taken, never the other way round. */
#ifndef TN_SERVER_MODELS_H
#define TN_SERVER_MODELS_H

#include "server/live.h"
#include "server/queue.h"

#include "params/options.h"

typedef struct tn_models tn_models;
typedef struct tn_served tn_served;

enum { TN_MODELS_PATH = 4096, TN_MODELS_NAME = 512, TN_MODELS_MAX = 4096 };

typedef struct tn_models_options {
    tn_queue_options queue; /* of every model; e, model, turns and room are filled in here */
    tern_options engine;    /* how models are opened; max_memory_bytes is for all together, 0: no limit */
    int64_t idle_ns;        /* a model that nobody has used for so long leaves; 0: never */
    bool any_name;          /* there is one model, which answers whatever name is asked for */
    /* The file to open for a model, such as its package from the cache; NULL: its own. */
    void (*place)(void *user, const char *path, char out[TN_MODELS_PATH]);
    /* Looks for models that came after the start, and adds them (tn_models_add); NULL: those there are stay all. */
    void (*look)(void *user);
    void (*tell)(void *user, const char *line); /* what the server's log says of models; NULL: nothing */
    void *user;
    int64_t (*now_ns)(void); /* NULL: the monotonic clock; tests have their own */
} tn_models_options;

/* It borrows what the options point to. */
tern_status tn_models_open(const tn_models_options *o, tn_models **out, tern_error *err);
/* Ends all answers and refuses further ones; from any thread. NULL-safe. */
void tn_models_stop(tn_models *m);
/* Every use must have been left. */
void tn_models_close(tn_models **m);

/* Before the first use, or from within look: a model is known from now on. A second one of a name or path is left
 * out. */
tern_status tn_models_add(tn_models *m, const char *name, const char *path, tern_error *err);
size_t tn_models_count(const tn_models *m);
/* What requests that name no model ask for; name NULL: nothing, so that they are refused where there are
 * several. */
void tn_models_default(tn_models *m, const char *name);

/* Waits until the model is in memory; name NULL or "" is the default. *out is to be left. TN_E_ABSENT:
 * there is no such model. TN_E_BUSY: too many wait. TERN_E_MEMORY: it does not fit into the memory
 * allowed. TERN_E_CANCELLED: gone(user) says that nobody waits any more. What opening a model returns says
 * what is wrong with its file. */
tern_status tn_models_use(tn_models *m, const char *name, bool (*gone)(void *user), void *user,
                          tn_served **out, tern_error *err);
void tn_models_leave(tn_served *model);

/* While it is used: how long after its last use it stays in memory (0: it leaves at once, -1: for ever), until it
 * leaves; ns NULL: as the options say. */
void tn_models_keep(tn_served *model, const int64_t *ns);

const char *tn_served_name(const tn_served *model);
/* While it is used. */
tn_queue *tn_served_queue(const tn_served *model);

/* The timeline of a model, whether it is in memory or not; TN_E_ABSENT. */
tern_status tn_models_live(tn_models *m, const char *name, tn_live **out, tern_error *err);
/* [{id, object, created, owned_by, state, ...}] as /v1/models lists them, or the one of this name alone
 * (NULL: none such). */
json_t *tn_models_list(tn_models *m, const char *name);
/* The figures of /metrics, as Prometheus reads them. NULL: no memory. */
char *tn_models_metrics(tn_models *m);
/* Of all queues together, since the start. */
tn_queue_counts tn_models_counts(tn_models *m);
uint64_t tn_models_memory(tn_models *m); /* bytes held by those in memory, as counted against the limit */

tn_ctx *tn_models_ctx(tn_models *m); /* for what belongs to no model */
bool tn_models_closing(tn_models *m);
/* The keeper looks at the clock again: for tests. */
void tn_models_look(tn_models *m);

#endif
