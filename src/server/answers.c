#include "server/priority.h"
#include "server/answers.h"

#include "base/wait.h"
#include "base/json.h"
#include "server/refusals.h"
#include "server/sink.h"
#include "server/talk_nodes.h"
#include "server/watch.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { LOOK_MS = 100 };
static const int64_t SAVE_NS = 2000000000, PROGRESS_NS = 400000000;

typedef struct answer {
    tn_answers *all;
    char talk[TN_TALK_ID];
    int64_t node;
    tn_job *j; /* its thread's, and so is the use of the model */
    tn_served *model;
    /* what it answers, for the requests after calls of tools */
    json_t *asked_in, *settings;
    int64_t asked;
    char *prompt;
    tn_tool_use use;
    tn_watch *
        past[TN_MCP_ROUNDS + 1]; /* of requests before; somebody may look at them until the answer is freed */
    int n_past;
    pthread_t thread;
    bool joined;
    /* guarded by all->mu */
    struct answer *next;
    tn_watch *watch;
    int n_followers;
    bool stop, done, no_memory;
    tn_bytes content, thinking;
    json_t *end; /* the node as it was saved last */
    /* its thread's */
    const char *cut; /* tokens, context: what ended it before its own end; NULL: nothing */
    char error[sizeof((tern_error *)0)->message];
} answer;

struct tn_answers {
    tn_models *models;
    tn_talks *talks;
    tn_uploads *uploads;   /* or NULL */
    tn_mcp_servers *tools; /* or NULL */
    pthread_mutex_t mu;
    pthread_cond_t changed; /* any answer grew or ended */
    answer *first;          /* newest first */
};

struct tn_follower {
    answer *a;
    size_t n_content, n_thinking; /* sent */
    uint64_t version;             /* of the steps that were */
    bool started, ended;
    int64_t progress_ns;
    tn_bytes out;
    size_t n_sent;
};

/* ---- an answer's own thread --------------------------------------------------------------------------- */

/* The page's sink: an answer's texts, as the followers read them. */
static bool hear(tn_said *s, const tn_saying *e, tn_bytes *out) {
    answer *a = s->user;
    (void)out; /* nothing goes to a connection */
    if (e->kind != TN_SAYS_TEXT && e->kind != TN_SAYS_THOUGHT) return true;
    pthread_mutex_lock(&a->all->mu);
    bool ok = tn_bytes_add(e->kind == TN_SAYS_TEXT ? &a->content : &a->thinking, e->text, e->n);
    a->no_memory |= !ok;
    pthread_cond_broadcast(&a->all->changed);
    pthread_mutex_unlock(&a->all->mu);
    return ok;
}

static bool no_event(const tern_error *err, tn_bytes *out) {
    (void)err; /* the answer's thread tells it */
    (void)out;
    return true;
}

static const tn_sink page_sink = {.prefix = "page-", .say = hear, .fail = no_event};

/* Writes what there is into the conversation. A conversation that was erased meanwhile stays erased. */
static void save(answer *a, const char *state) {
    tn_answers *all = a->all;
    json_t *talk = NULL, *node = NULL, *progress = tn_watch_progress(a->watch);
    tn_talks_lock(all->talks);
    if (tn_talks_get(all->talks, a->talk, &talk, NULL) == TERN_OK)
        node = json_incref(tn_talk_node(talk, a->node));
    pthread_mutex_lock(&all->mu);
    if (node) tn_json_set(&node, "content", tn_json_string(a->content.p ? a->content.p : "", a->content.n));
    if (node && !a->thinking.n) json_object_del(node, "thinking"); /* an earlier step's, which has it now */
    if (node && a->thinking.n) tn_json_set(&node, "thinking", tn_json_string(a->thinking.p, a->thinking.n));
    if (node && json_array_size(a->use.steps)) tn_json_set(&node, "steps", tn_json_copy(a->use.steps));
    pthread_mutex_unlock(&all->mu);
    if (node) tn_json_set(&node, "state", tn_json_string(state, strlen(state)));
    if (node) tn_json_set(&node, "stats", json_incref(progress));
    if (node && a->cut) tn_json_set(&node, "cut", tn_json_string(a->cut, strlen(a->cut)));
    if (node && a->error[0]) tn_json_set(&node, "error", tn_json_string(a->error, strlen(a->error)));
    tern_error err;
    if (node && tn_talks_put(all->talks, a->talk, talk, &err) != TERN_OK) {
        tn_json_set(&node, "error",
                    tn_json_string(err.message, strlen(err.message))); /* followers are told */
        tn_log(tn_models_ctx(all->models), TERN_LOG_WARN, "an answer is not kept: %s", err.message);
    }
    tn_talks_unlock(all->talks);
    pthread_mutex_lock(&all->mu);
    json_decref(a->end);
    a->end = node;
    pthread_mutex_unlock(&all->mu);
    json_decref(talk);
    json_decref(progress);
}

/* Until the request is answered. */
static void wait_for_job(answer *a) {
    tn_answers *all = a->all;
    int64_t saved_ns = tn_now_ns();
    size_t n_saved = 0;
    bool begun;
    for (bool cancelled = false; !tn_job_done(a->j, &begun);) {
        pthread_mutex_lock(&all->mu);
        bool stop = a->stop || a->no_memory;
        size_t n = a->content.n + a->thinking.n;
        pthread_mutex_unlock(&all->mu);
        if (stop && !cancelled) tn_job_cancel(a->j), cancelled = true;
        if (n > n_saved && tn_now_ns() - saved_ns > SAVE_NS)
            save(a, "writing"), saved_ns = tn_now_ns(), n_saved = n;
        tn_job_wait(a->j, LOOK_MS);
    }
}

/* A prompt that is too long is not the question's fault alone. */
static void blame_tools(const answer *a, tern_error *err) {
    char why[sizeof err->message];
    const size_t n = json_array_size(a->use.tools);
    if (err->code != TN_E_CONTEXT || !n) return;
    snprintf(why, sizeof why, "%s", err->message);
    (void)tn_fail(err, TN_E_CONTEXT,
                  "%.250s. %zu tools are part of it: start tern with servers of fewer tools, or a larger "
                  "context (-c N)",
                  why, n);
}

/* Hands a request of the answer to the queue. Takes r. */
static tern_status put(answer *a, tn_request *r, tern_error *err) {
    tn_watch *w = tn_watch_open();
    if (!w) tn_request_free(r);
    TN_FAIL_IF(!w, err, TERN_E_MEMORY, "no memory for an answer");
    pthread_mutex_lock(&a->all->mu);
    if (a->watch) a->past[a->n_past++] = a->watch;
    a->watch = w;
    pthread_mutex_unlock(&a->all->mu);
    r->watch = w;
    r->sink = &page_sink;
    r->sink_user = a;
    r->priority = TN_INTERACTIVE; /* somebody looks at it */
    tern_status st = tn_queue_put(tn_served_queue(a->model), r, &a->j, err);
    if (st != TERN_OK) blame_tools(a, err);
    return st;
}

/* What there is of the conversation, with the answer so far. */
static tern_status request_of(const answer *a, tn_request *r, tern_error *err) {
    const tn_talk_asked besides = {
        .prompt = a->prompt, .settings = a->settings, .steps = a->use.steps, .tools = a->use.tools};
    return tn_talk_request(a->asked_in, a->asked, &besides, r, err);
}

static void keep(void *user) { save(user, "writing"); }

/* The calls that the answer made are decided and made, and it goes on from there. */
static tern_status go_on(answer *a, tern_error *err) {
    json_t *calls = tn_json_copy(a->j->a.said.calls); /* the job may end in the worker's hands */
    tn_job_leave(a->j);
    a->j = NULL;
    bool ok = a->use.rounds <= TN_MCP_ROUNDS;
    pthread_mutex_lock(&a->all->mu);
    bool fits = !ok || (calls && tn_tool_use_step(&a->use, &a->content, &a->thinking, calls));
    if (ok) a->content.n = a->thinking.n = 0;
    pthread_mutex_unlock(&a->all->mu);
    json_decref(calls);
    TN_FAIL_IF(!ok, err, TERN_E_LIMIT, "the model calls tools without end (%d times)", TN_MCP_ROUNDS);
    TN_FAIL_IF(!fits, err, TERN_E_MEMORY, "no memory for calls of tools");
    tn_request r;
    TN_TRY(tn_tool_use_run(&a->use, keep, a, err));
    TN_TRY(request_of(a, &r, err));
    return put(a, &r, err);
}

static bool calls(const answer *a) {
    return a->use.servers && a->j->err.code == TERN_OK && !a->no_memory && a->j->a.said.n_calls;
}

static void *write_down(void *user) {
    answer *a = user;
    tn_answers *all = a->all;
    tern_error err = {0};
    for (wait_for_job(a); calls(a); wait_for_job(a))
        if (go_on(a, &err) != TERN_OK) break;
    if (a->j) err = a->j->err, blame_tools(a, &err);
    bool stopped = err.code == TERN_E_CANCELLED || err.code == TN_E_CLOSING,
         failed = err.code != TERN_OK && !stopped;
    if (a->no_memory) snprintf(a->error, sizeof a->error, "no memory for the answer");
    else if (failed) snprintf(a->error, sizeof a->error, "%s", err.message);
    else a->error[0] = 0; /* a stopped answer is no failure */
    const tern_stop_reason why = a->j ? a->j->a.said.res.reason : TERN_STOP_END;
    if (err.code == TERN_OK && why == TERN_STOP_LENGTH) a->cut = "tokens";
    if (err.code == TERN_OK && why == TERN_STOP_CONTEXT) a->cut = "context";
    save(a, failed || a->no_memory ? "failed" : err.code == TERN_OK ? "done" : "stopped");
    if (a->j) tn_job_leave(a->j);
    tn_models_leave(a->model);
    pthread_mutex_lock(&all->mu);
    a->done = true;
    pthread_cond_broadcast(&all->changed);
    pthread_mutex_unlock(&all->mu);
    return NULL;
}

/* ---- the list ------------------------------------------------------------------------------------------ */

/* One whose thread has ended, or never began. */
static void answer_free(answer *a) {
    tn_watch_close(&a->watch);
    for (int i = 0; i < a->n_past; i++) tn_watch_close(&a->past[i]);
    tn_tool_use_close(&a->use);
    json_decref(a->asked_in);
    json_decref(a->settings);
    free(a->prompt);
    free(a->content.p);
    free(a->thinking.p);
    json_decref(a->end);
    free(a);
}

static answer *find(tn_answers *all, const char *talk, int64_t node) {
    for (answer *a = all->first; a; a = a->next)
        if (a->node == node && !strcmp(a->talk, talk)) return a;
    return NULL;
}

/* Those that ended longest ago leave. Called without the lock. */
static void drop_old(tn_answers *all) {
    answer *gone = NULL;
    pthread_mutex_lock(&all->mu);
    int n = 0;
    for (answer **p = &all->first; *p;) {
        answer *a = *p;
        if (++n <= TN_ANSWERS_KEPT || !a->done || a->n_followers) {
            p = &a->next;
            continue;
        }
        *p = a->next;
        a->next = gone;
        gone = a;
    }
    pthread_mutex_unlock(&all->mu);
    for (answer *a = gone, *next; a; a = next) {
        next = a->next;
        pthread_join(a->thread, NULL);
        answer_free(a);
    }
}

static int n_running(tn_answers *all) {
    int n = 0;
    pthread_mutex_lock(&all->mu);
    for (const answer *a = all->first; a; a = a->next) n += !a->done;
    pthread_mutex_unlock(&all->mu);
    return n;
}

tern_status tn_answers_open(tn_models *models, tn_talks *talks, tn_uploads *uploads, tn_mcp_servers *tools,
                            tn_answers **out, tern_error *err) {
    tn_answers *all = *out = calloc(1, sizeof *all);
    TN_FAIL_IF(!all, err, TERN_E_MEMORY, "no memory for the page");
    tn_cond_init(&all->changed);
    pthread_mutex_init(&all->mu, NULL);
    all->models = models;
    all->talks = talks;
    all->uploads = uploads;
    all->tools = tools;
    return TERN_OK;
}

void tn_answers_close(tn_answers **pall) {
    tn_answers *all = *pall;
    *pall = NULL;
    if (!all) return;
    pthread_mutex_lock(&all->mu);
    for (answer *a = all->first; a; a = a->next) a->stop = true;
    pthread_mutex_unlock(&all->mu);
    for (answer *a = all->first, *next; a; a = next) {
        next = a->next;
        pthread_join(a->thread, NULL);
        answer_free(a);
    }
    pthread_cond_destroy(&all->changed);
    pthread_mutex_destroy(&all->mu);
    free(all);
}

/* ---- saying ------------------------------------------------------------------------------------------- */

/* An answer to node `asked` of the conversation, which nobody has begun. Takes *prompt. */
static tern_status answer_new(tn_answers *all, const char *id, json_t *talk, int64_t asked, char **prompt,
                              const json_t *body, answer **out, tern_error *err) {
    answer *a = *out = calloc(1, sizeof *a);
    TN_FAIL_IF(!a, err, TERN_E_MEMORY, "no memory for an answer");
    a->all = all;
    a->asked_in = json_incref(talk);
    a->asked = asked;
    a->prompt = *prompt;
    *prompt = NULL;
    a->settings = json_incref(json_object_get(body, "settings"));
    snprintf(a->talk, sizeof a->talk, "%s", id);
    if (!all->tools || !json_is_true(json_object_get(body, "tools"))) return TERN_OK;
    return tn_tool_use_open(&a->use, all->tools, json_object_get(talk, "allowed"), &all->mu, &all->changed,
                            &a->stop, err);
}

/* Its request goes to the queue, and it to a thread. Takes r. */
static tern_status start(answer *a, tn_request *r, tern_error *err) {
    TN_TRY(put(a, r, err));
    if (pthread_create(&a->thread, NULL, write_down, a)) {
        tn_job_cancel(a->j);
        bool begun;
        while (!tn_job_done(a->j, &begun)) tn_job_wait(a->j, LOOK_MS); /* it tells the watch */
        tn_job_leave(a->j);
        return tn_fail(err, TERN_E_MEMORY, "cannot start a thread");
    }
    pthread_mutex_lock(&a->all->mu);
    a->next = a->all->first;
    a->all->first = a;
    pthread_mutex_unlock(&a->all->mu);
    return TERN_OK;
}

/* Begins the answer to node `asked`, which gets a node of its own, and puts the conversation on the disk.
 * *model is NULL when the answer has taken its use. */
static tern_status begin(tn_answers *all, const char *id, json_t *talk, int64_t asked, const json_t *body,
                         tn_served **model, int64_t *node, tern_error *err) {
    const char *question = json_string_value(json_object_get(tn_talk_node(talk, asked), "content"));
    char *prompt = NULL;
    json_t *sources = NULL;
    answer *a = NULL;
    tn_request r;
    if (all->uploads && question && json_is_true(json_object_get(body, "documents")))
        TN_TRY(tn_uploads_ask(all->uploads, question, &prompt, &sources, err));
    tern_status st = answer_new(all, id, talk, asked, &prompt, body, &a, err);
    if (st == TERN_OK) st = request_of(a, &r, err);
    if (st == TERN_OK) {
        st = tn_talk_add(talk, asked, "assistant", "", 0, "writing", node, err);
        json_t *v = st == TERN_OK ? json_incref(tn_talk_node(talk, *node)) : NULL;
        if (v && sources) tn_json_set(&v, "sources", json_incref(sources));
        if (v)
            tn_json_set(&v, "model", tn_json_string(tn_served_name(*model), strlen(tn_served_name(*model))));
        json_decref(v);
        a->node = *node;
        a->model = *model;
        if (st == TERN_OK) st = start(a, &r, err);
        else tn_request_free(&r);
        if (st == TERN_OK) *model = NULL, a = NULL; /* the answer's, and the list's */
        if (st == TERN_OK && (st = tn_talks_put(all->talks, id, talk, err)) != TERN_OK)
            tn_answers_stop(all, id, *node); /* it has no place */
    }
    if (a) answer_free(a);
    free(prompt);
    json_decref(sources);
    return st;
}

/* With the conversation locked. */
static tern_status say(tn_answers *all, const char *id, const json_t *body, tn_served **model, json_t **reply,
                       tern_error *err) {
    int64_t asked, node;
    json_t *talk;
    TN_TRY(tn_talks_get(all->talks, id, &talk, err));
    json_t *list = json_array();
    tern_status st = tn_talk_say(talk, body, &list, &asked, err);
    if (st == TERN_OK) st = begin(all, id, talk, asked, body, model, &node, err);
    if (st == TERN_OK) {
        tn_json_append(&list, json_incref(tn_talk_node(talk, node)));
        *reply = tn_json_pack("{s:O, s:O}", "nodes", list, "title", json_object_get(talk, "title"));
    }
    json_decref(list);
    json_decref(talk);
    return st;
}

tern_status tn_answers_say(tn_answers *all, const char *id, const json_t *body, bool (*gone)(void *user),
                           void *user, json_t **reply, tern_error *err) {
    const json_t *name = json_object_get(json_object_get(body, "settings"), "model");
    tn_served *model;
    *reply = NULL;
    drop_old(all);
    TN_FAIL_IF(n_running(all) >= TN_ANSWERS_RUNNING, err, TN_E_BUSY,
               "the queue is full: %d answers are being written", TN_ANSWERS_RUNNING);
    if (json_is_true(json_object_get(body, "tools")))
        json_decref(tn_mcp_servers_list(all->tools, true, gone,
                                        user)); /* those that changed, before anything is locked */
    TN_TRY(tn_models_use(all->models, json_string_value(name), gone, user, &model, err));
    tn_talks_lock(all->talks);
    tern_status st = say(all, id, body, &model, reply, err);
    tn_talks_unlock(all->talks);
    if (model) tn_models_leave(model);
    return st;
}

/* The conversation remembers what is always allowed in it. */
static tern_status keep_allowed(tn_answers *all, const char *id, const char *name, tern_error *err) {
    json_t *talk;
    tn_talks_lock(all->talks);
    tern_status st = tn_talks_get(all->talks, id, &talk, err);
    if (st == TERN_OK) {
        json_t *list = json_incref(json_object_get(talk, "allowed"));
        if (!json_is_array(list)) json_decref(list), list = json_array();
        tn_json_append(&list, tn_json_string(name, strlen(name)));
        tn_json_set(&talk, "allowed", list);
        st = talk ? tn_talks_put(all->talks, id, talk, err)
                  : tn_fail(err, TERN_E_MEMORY, "no memory for the conversation");
        json_decref(talk);
    }
    tn_talks_unlock(all->talks);
    return st;
}

tern_status tn_answers_decide(tn_answers *all, const char *talk, int64_t node, const char *call,
                              tn_decision d, tern_error *err) {
    char name[TN_MCP_KEPT_NAME];
    pthread_mutex_lock(&all->mu);
    answer *a = find(all, talk, node);
    bool asked = a && !a->done && a->use.servers && tn_tool_use_decide(&a->use, call, d, name);
    pthread_mutex_unlock(&all->mu);
    TN_FAIL_IF(!asked, err, TN_E_GONE, "nobody asks for this call");
    return d == TN_CALL_ALWAYS ? keep_allowed(all, talk, name, err) : TERN_OK;
}

void tn_answers_stop(tn_answers *all, const char *talk, int64_t node) {
    pthread_mutex_lock(&all->mu);
    answer *a = find(all, talk, node);
    if (a) a->stop = true;
    pthread_mutex_unlock(&all->mu);
}

void tn_answers_forget(tn_answers *all, const char *talk) {
    pthread_mutex_lock(&all->mu);
    for (answer *a = all->first; a; a = a->next) {
        if (strcmp(a->talk, talk) != 0) continue;
        a->stop = true;
        a->n_followers++; /* it stays until it is done */
        while (!a->done) pthread_cond_wait(&all->changed, &all->mu);
        a->n_followers--;
        a->talk[0] = 0; /* nobody finds it; it leaves with the others */
    }
    pthread_mutex_unlock(&all->mu);
}

void tn_answers_mend(tn_answers *all, const char *id, json_t *talk) {
    const json_t *nodes = json_object_get(talk, "nodes");
    for (size_t i = 0; i < json_array_size(nodes); i++) {
        json_t *n = json_incref(json_array_get(nodes, i));
        const char *state = json_string_value(json_object_get(n, "state"));
        pthread_mutex_lock(&all->mu);
        const answer *a = find(all, id, json_integer_value(json_object_get(n, "id")));
        bool writes = a && !a->done;
        pthread_mutex_unlock(&all->mu);
        if (state && !strcmp(state, "writing") && !writes)
            tn_json_set(&n, "state", tn_json_string("stopped", 7));
        json_decref(n);
    }
}

/* ---- reading ------------------------------------------------------------------------------------------ */

json_t *tn_answers_how(tn_answers *all, const char *talk, int64_t node) {
    pthread_mutex_lock(&all->mu);
    answer *a = find(all, talk, node);
    tn_watch *w = a ? a->watch : NULL;
    if (a) a->n_followers++;
    pthread_mutex_unlock(&all->mu);
    if (!a) return NULL;
    json_t *v = tn_watch_drafts(w);
    if (v) tn_json_set(&v, "explained", tn_watch_explained(w));
    if (v) tn_json_set(&v, "progress", tn_watch_progress(w));
    pthread_mutex_lock(&all->mu);
    a->n_followers--;
    pthread_mutex_unlock(&all->mu);
    return v;
}

json_t *tn_answers_running(tn_answers *all) {
    json_t *list = json_array();
    pthread_mutex_lock(&all->mu);
    for (answer *a = all->first; a; a = a->next)
        if (!a->done)
            tn_json_append(&list, tn_json_pack("{s:s, s:I, s:o}", "talk", a->talk, "node",
                                               (json_int_t)a->node, "progress", tn_watch_progress(a->watch)));
    pthread_mutex_unlock(&all->mu);
    return list;
}

tern_status tn_answers_follow(tn_answers *all, const char *talk, int64_t node, tn_follower **out,
                              tern_error *err) {
    tn_follower *f = *out = calloc(1, sizeof *f);
    TN_FAIL_IF(!f, err, TERN_E_MEMORY, "no memory for a reader");
    pthread_mutex_lock(&all->mu);
    f->a = find(all, talk, node);
    if (f->a) f->a->n_followers++;
    pthread_mutex_unlock(&all->mu);
    if (f->a) return TERN_OK;
    free(f);
    *out = NULL;
    return tn_fail(err, TERN_E_INVALID, "nobody writes this answer");
}

void tn_follower_close(tn_follower **pf) {
    tn_follower *f = *pf;
    *pf = NULL;
    if (!f) return;
    pthread_mutex_lock(&f->a->all->mu);
    f->a->n_followers--;
    pthread_mutex_unlock(&f->a->all->mu);
    free(f->out.p);
    free(f);
}

/* Takes v. */
static bool emit(tn_follower *f, json_t *v) {
    char *text = NULL;
    (void)tn_json_text(v, JSON_COMPACT, &text, NULL);
    json_decref(v);
    bool ok = text && tn_bytes_add(&f->out, "data: ", 6) && tn_bytes_add(&f->out, text, strlen(text)) &&
              tn_bytes_add(&f->out, "\n\n", 2);
    free(text);
    return ok;
}

static bool emit_text(tn_follower *f, const char *type, const tn_bytes *b, size_t *n_sent) {
    if (b->n == *n_sent) return true;
    bool ok = emit(f, tn_json_pack("{s:s, s:s%}", "type", type, "text", b->p + *n_sent, b->n - *n_sent));
    *n_sent = b->n;
    return ok;
}

static bool emit_progress(tn_follower *f) {
    json_t *v = tn_watch_progress(f->a->watch);
    if (v) tn_json_set(&v, "type", tn_json_string("progress", 8));
    f->progress_ns = tn_now_ns();
    return emit(f, v);
}

/* What is new, into f->out. With the lock. */
static bool emit_news(tn_follower *f) {
    const answer *a = f->a;
    bool ok = true;
    if (a->use.version != f->version) { /* what was said before belongs to them */
        ok = emit(f, tn_json_pack("{s:s, s:O}", "type", "steps", "steps", a->use.steps));
        f->version = a->use.version;
        f->n_content = f->n_thinking = 0;
    }
    ok = ok && emit_text(f, "thinking", &a->thinking, &f->n_thinking) &&
         emit_text(f, "content", &a->content, &f->n_content);
    if (ok && (a->done || tn_now_ns() - f->progress_ns > PROGRESS_NS)) ok = emit_progress(f);
    if (ok && a->done) {
        ok = emit(
            f, tn_json_pack("{s:s, s:o}", "type", "end", "node", a->end ? json_incref(a->end) : json_null()));
        f->ended = true;
    }
    return ok;
}

size_t tn_follower_read(tn_follower *f, char *buf, size_t cap, int ms, bool *ended) {
    *ended = false;
    if (f->n_sent == f->out.n) {
        f->out.n = f->n_sent = 0;
        if (f->ended) {
            *ended = true;
            return 0;
        }
        tn_answers *all = f->a->all;
        pthread_mutex_lock(&all->mu);
        if (!f->a->done && f->a->use.version == f->version && f->a->content.n == f->n_content &&
            f->a->thinking.n == f->n_thinking)
            tn_cond_wait_ns(&all->changed, &all->mu, ms * (int64_t)1000000);
        bool ok = emit_news(f);
        pthread_mutex_unlock(&all->mu);
        if (!ok) *ended = f->ended = true;
        if (!ok) return 0;
    }
    size_t n = f->out.n - f->n_sent;
    if (n > cap) n = cap;
    if (n) memcpy(buf, f->out.p + f->n_sent, n);
    f->n_sent += n;
    return n;
}
