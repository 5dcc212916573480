/* server/answers.h - the page's answers: they belong to the server, not to a connection.
 *
 *   say      a person's words and the place of their answer become nodes of the conversation, and the answer begins
 *   follow   any number of connections read it from its first word on, while it grows and afterwards
 *   stop     it ends with what there is
 *
 * A conversation is {title, created, updated, leaf, nodes: [{id, parent, role, content, thinking, state, error,
 * stats, created, steps}], allowed: [tools that may be called in it without asking]}: nodes are a tree, 0 is the parent of the first. Two answers to the same words, or two wordings, are
 * branches. state is of answers: "writing", "done", "stopped" or "failed".
 *
 * A thread of its own takes an answer from the queue and keeps it on disk, every other second and at its end; so a page
 * that is loaded again, or a server that is started again, finds it. */
#ifndef TN_SERVER_ANSWERS_H
#define TN_SERVER_ANSWERS_H

#include "server/answer_tools.h"
#include "server/models.h"
#include "server/talks.h"
#include "server/uploads.h"

typedef struct tn_answers tn_answers;
typedef struct tn_follower tn_follower;

enum { TN_ANSWERS_RUNNING = 8, TN_ANSWERS_KEPT = 32 };

/* It borrows them. uploads may be NULL: there are no documents then. tools too: there are none. */
tern_status tn_answers_open(tn_models *models, tn_talks *talks, tn_uploads *uploads, tn_mcp_servers *tools,
                            tn_answers **out, tern_error *err);
/* Stops all answers and waits for them. No follower may be left. */
void tn_answers_close(tn_answers **a);

/* body: {parent, content (absent: answer `parent` again), settings: {model, system, temperature, seed,
 * max_tokens, thinking}, documents: the question is asked with what the documents say of it, and the
 * answer's node has its sources, tools: the model may call tools}. It waits until the model is in memory, unless gone(user)
 * (server/models.h). *reply: {nodes: the new ones}. */
tern_status tn_answers_say(tn_answers *a, const char *talk, const json_t *body, bool (*gone)(void *user),
                           void *user, json_t **reply, tern_error *err);
/* Decides a call that an answer asks for (answer_tools.h); always: for this conversation, which is kept. TN_E_GONE: nobody
 * asks for it. */
tern_status tn_answers_decide(tn_answers *a, const char *talk, int64_t node, const char *call, tn_decision d,
                              tern_error *err);
/* Nothing where it is not being written. */
void tn_answers_stop(tn_answers *a, const char *talk, int64_t node);
/* Stops what is being written of a conversation, and waits for that, so that it can be erased; how its
 * answers came is forgotten. */
void tn_answers_forget(tn_answers *a, const char *talk);
/* Nodes that say "writing" and are not, because a server was killed, say "stopped". */
void tn_answers_mend(tn_answers *a, const char *id, json_t *talk);

/* {tokens, steps, explained, progress} as server/watch.h has them; NULL: it is not known any more, or no
 * memory. */
json_t *tn_answers_how(tn_answers *a, const char *talk, int64_t node);
/* [{talk, node, progress}] of those being written */
json_t *tn_answers_running(tn_answers *a);

/* TERN_E_INVALID: nobody writes it, and what there is stands in the conversation. */
tern_status tn_answers_follow(tn_answers *a, const char *talk, int64_t node, tn_follower **out,
                              tern_error *err);
/* At most cap bytes of server-sent events, waiting up to `ms` for some. *ended: nothing follows. */
size_t tn_follower_read(tn_follower *f, char *buf, size_t cap, int ms, bool *ended);
void tn_follower_close(tn_follower **f);

#endif
