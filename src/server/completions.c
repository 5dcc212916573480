/* Chats, completions and messages: from the request to the queue, and what the model says back to the
 * connection. A request may want several answers: they are a group of jobs on one connection, whose events
 * go out one after the other as they come. */
#include "base/clock.h"
#include "server/api.h"
#include "server/papers.h"
#include "server/reply.h"
#include "server/responses.h"

#include <microhttpd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    HEAD_MS =
        500, /* a stream's status is sent after that at the latest: what fails sooner has a status of its own */
    PING_MS = 1000,
    LOOK_MS = 50,
    BLOCK_BYTES = 4096
};

typedef struct group {
    tn_job **jobs;
    tn_said **said; /* theirs, for the sink */
    size_t n;
    const tn_sink *sink;
    tn_served *model;
    struct MHD_Connection *c;
    char ignored[sizeof((tn_request *)0)->ignored]; /* fields that were not followed */
    /* of a stream */
    size_t at;     /* the job whose output is next */
    bool within;   /* and an event of it is not out whole */
    tn_bytes more; /* what the connection itself says */
    size_t n_more; /* of that sent */
    bool ended;
} group;

static void group_cancel(group *g) {
    for (size_t i = 0; i < g->n; i++) tn_job_cancel(g->jobs[i]);
}

static void group_close(group *g) {
    for (size_t i = 0; i < g->n; i++) tn_job_leave(g->jobs[i]);
    if (g->model) tn_models_leave(g->model);
    free(g->more.p);
    free(g->jobs);
    free(g->said);
    free(g);
}

/* Puts a job for every answer. It takes r. */
static tern_status group_put(group *g, tn_request *r, tern_error *err) {
    size_t n = (size_t)r->n;
    tn_request_name(r);
    g->sink = r->sink ? r->sink : tn_sink_of(r->api);
    g->jobs = calloc(n, sizeof *g->jobs);
    g->said = calloc(n, sizeof *g->said);
    tern_status st = g->jobs && g->said ? TERN_OK : tn_fail(err, TERN_E_MEMORY, "no memory for the request");
    while (st == TERN_OK && g->n < n) {
        tn_request one;
        st = tn_request_copy(r, (int32_t)g->n, &one, err);
        if (st == TERN_OK) st = tn_queue_put(tn_served_queue(g->model), &one, &g->jobs[g->n], err);
        if (st != TERN_OK) break;
        g->said[g->n] = &g->jobs[g->n]->a.said;
        g->n++;
    }
    tn_request_free(r);
    if (st != TERN_OK) group_cancel(g);
    return st;
}

/* Tells whether all are done and, in *begun, whether something has been said; *err is the first failure, but of one that
 * was cancelled only where there is no other: it is a failure that cancels the rest. */
static bool group_done(group *g, bool *begun, const tern_error **err) {
    bool all = true;
    *begun = false;
    *err = NULL;
    for (size_t i = 0; i < g->n; i++) {
        bool has_begun, done = tn_job_done(g->jobs[i], &has_begun);
        *begun |= has_begun;
        all &= done;
        if (done && g->jobs[i]->err.code != TERN_OK && (!*err || (*err)->code == TERN_E_CANCELLED))
            *err = &g->jobs[i]->err;
    }
    return all;
}

/* ---- streams ------------------------------------------------------------------------------------------ */

/* Whole events of one job, then those of the next one. */
static size_t take_events(group *g, char *buf, size_t max) {
    for (size_t i = 0; i < g->n; i++) {
        bool done;
        size_t n = tn_job_take(g->jobs[g->at], buf, max, &done);
        g->within = n == max;
        if (!g->within) g->at = (g->at + 1) % g->n;
        if (n) return n;
    }
    return 0;
}

static size_t take_more(group *g, char *buf, size_t max) {
    size_t n = g->more.n - g->n_more;
    if (n > max) n = max;
    if (n) memcpy(buf, g->more.p + g->n_more, n);
    g->n_more += n;
    if (g->n_more == g->more.n) g->n_more = g->more.n = 0;
    return n;
}

/* What follows the last event. false: no memory. */
static bool end_stream(group *g, const tern_error *err) {
    g->ended = true;
    if (!err) return !g->sink->tail || g->sink->tail(g->said, g->n, &g->more);
    for (size_t i = 0; i < g->n; i++)
        if (g->jobs[i]->a.told && g->jobs[i]->err.code != TERN_OK) return true; /* its last event says it */
    return g->sink->fail(err, &g->more);
}

/* Waits for the next answer that is not done: one that is would be no wait. */
static void wait_for_next(const group *g) {
    bool begun;
    for (size_t i = 0; i < g->n; i++) {
        tn_job *j = g->jobs[(g->at + i) % g->n];
        if (tn_job_done(j, &begun)) continue;
        tn_job_wait(j, LOOK_MS);
        return;
    }
}

static ssize_t read_stream(void *user, uint64_t pos, char *buf, size_t max) {
    (void)pos;
    group *g = user;
    const double since = tn_now_s();
    for (;;) {
        bool begun;
        const tern_error *err;
        size_t n = take_more(g, buf, max);
        if (n) return (ssize_t)n;
        if (g->ended) return MHD_CONTENT_READER_END_OF_STREAM;
        bool done = group_done(g, &begun, &err);
        if (err && !done) group_cancel(g); /* one failure is that of the request */
        n = take_events(g, buf, max);
        if (n) return (ssize_t)n;
        if (done && !end_stream(g, err)) return MHD_CONTENT_READER_END_WITH_ERROR;
        if (done) continue;
        if (tn_client_gone(g->c)) {
            group_cancel(g);
            return MHD_CONTENT_READER_END_WITH_ERROR;
        }
        /* neither side gives up on a long prompt */
        if ((tn_now_s() - since) * 1000 < PING_MS || !g->sink->ping(g->said[0], &g->more)) wait_for_next(g);
    }
}

static void free_stream(void *user) {
    group_cancel(user); /* a client that left in the middle; nothing where it is done */
    group_close(user);
}

/* Takes the group. */
static enum MHD_Result send_stream(const tn_api_call *a, group *g) {
    struct MHD_Response *r =
        MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, BLOCK_BYTES, read_stream, g, free_stream);
    if (!r) {
        free_stream(g);
        return MHD_NO;
    }
    return tn_api_body_of(a, 200, g->sink->type, r, g->ignored);
}

/* ---- requests ----------------------------------------------------------------------------------------- */

/* Waits until all are done, or with most_ms until a stream has begun, for so long. Returns false when the
 * client is gone. The connection is not idle meanwhile. */
static bool wait_for(const tn_api_call *a, group *g, int most_ms) {
    bool begun;
    const tern_error *err;
    tn_connection_busy(a->c, true);
    for (int waited = 0; !group_done(g, &begun, &err) && !(most_ms && (begun || waited >= most_ms));
         waited += LOOK_MS) {
        if (tn_client_gone(a->c) || err) group_cancel(g);
        if (tn_client_gone(a->c)) return false;
        for (size_t i = 0; i < g->n; i++) {
            if (tn_job_done(g->jobs[i], &begun)) continue;
            tn_job_wait(g->jobs[i], LOOK_MS);
            break;
        }
    }
    tn_connection_busy(a->c, false);
    return true;
}

/* Of a group that is done. */
static enum MHD_Result send_whole(const tn_api_call *a, group *g) {
    bool begun;
    const tern_error *err;
    (void)group_done(g, &begun, &err);
    if (!err)
        return tn_api_body_of(a, 200, "application/json", tn_body_json(g->sink->whole(g->said, g->n)),
                              g->ignored);
    int status = tn_reply_status(err);
    return tn_api_json(a, status, g->sink->error(err, status));
}

/* Takes r, also on failure. */
static tern_status group_open(const tn_api_call *a, tn_request *r, group **out, tern_error *err) {
    r->client = tn_api_client(a, r->body);
    r->asked_ns = a->asked_ns;
    group *g = calloc(1, sizeof *g);
    tern_status st = g ? TERN_OK : tn_fail(err, TERN_E_MEMORY, "no memory for the request");
    if (st == TERN_OK) snprintf(g->ignored, sizeof g->ignored, "%s", r->ignored);
    if (st == TERN_OK) st = tn_api_strict(a, r->ignored, err);
    if (st == TERN_OK) st = tn_api_priority(a, r->body, &r->priority, err);
    if (st == TERN_OK) st = tn_api_use(a, r->body, &g->model, err);
    if (st == TERN_OK && r->keeps) tn_models_keep(g->model, &r->keep_ns);
    if (st == TERN_OK) st = group_put(g, r, err);
    else tn_request_free(r);
    if (st == TERN_OK) g->c = a->c;
    else if (g) group_close(g);
    *out = st == TERN_OK ? g : NULL;
    return st;
}

tern_status tn_api_answer(const tn_api_call *a, tn_request *r, json_t **out, tern_error *err) {
    group *g;
    bool begun;
    const tern_error *failed = NULL;
    *out = NULL;
    r->stream = false;
    TN_TRY(group_open(a, r, &g, err));
    tern_status st = wait_for(a, g, 0) ? TERN_OK : tn_fail(err, TERN_E_CANCELLED, "nobody waits any more");
    if (st == TERN_OK) (void)group_done(g, &begun, &failed);
    if (failed) st = tn_fail(err, failed->code, "%s", failed->message);
    if (st == TERN_OK) *out = g->sink->whole(g->said, g->n);
    group_close(g);
    TN_FAIL_IF(st == TERN_OK && !*out, err, TERN_E_MEMORY, "no memory for the reply");
    return st;
}

enum MHD_Result tn_api_ask(const tn_api_call *a, tn_request *r) {
    tern_error err = {0};
    const tn_sink *sink = r->sink ? r->sink : tn_sink_of(r->api);
    bool streams = r->stream, begun;
    const tern_error *failed;
    group *g;
    if (group_open(a, r, &g, &err) != TERN_OK) {
        int status = tn_reply_status(&err);
        return tn_api_json(a, status, sink->error(&err, status));
    }
    bool there = wait_for(a, g, streams ? HEAD_MS : 0);
    /* from the end on, what the jobs hold stays as it is */
    if (there && streams && (!group_done(g, &begun, &failed) || begun)) return send_stream(a, g);
    enum MHD_Result ok = there ? send_whole(a, g) : MHD_NO;
    group_close(g);
    return ok;
}

/* counts: its tokens alone are wanted. */
static tern_status read_request(const tn_api_call *a, tn_api api, bool counts, tn_request *r,
                                tern_error *err) {
    json_t *body;
    if (api != TN_API_MESSAGES) return tn_request_read(api, a->body, a->n_body, r, err);
    TN_TRY(tn_request_object(a->body, a->n_body, &body, err));
    tern_status st = tn_papers_read(a->uploads, body, err);
    if (st == TERN_OK) return counts ? tn_request_of_count(body, r, err) : tn_request_of(api, body, r, err);
    json_decref(body);
    return st;
}

enum MHD_Result tn_api_complete(const tn_api_call *a, tn_api api) {
    tern_error err = {0};
    tn_request r;
    tern_status st = read_request(a, api, false, &r, &err);
    return st == TERN_OK ? tn_api_ask(a, &r) : tn_api_error(a, &err, api);
}

/* Takes r. */
static tern_status measure(const tn_api_call *a, tn_request *r, size_t *n, tern_error *err) {
    tn_served *model = NULL;
    tern_status st = tn_api_use(a, r->body, &model, err);
    if (st == TERN_OK) st = tn_queue_measure(tn_served_queue(model), r, n, err);
    else tn_request_free(r);
    if (model) tn_models_leave(model);
    return st;
}

static enum MHD_Result count_tokens(const tn_api_call *a, tn_api api) {
    tern_error err = {0};
    size_t n = 0;
    tn_request r;
    tern_status st = read_request(a, api, true, &r, &err);
    if (st == TERN_OK) st = measure(a, &r, &n, &err);
    if (st != TERN_OK) return tn_api_error(a, &err, api);
    return tn_api_json(a, 200, tn_json_pack("{s:I}", "input_tokens", (json_int_t)n));
}

enum MHD_Result tn_api_count_tokens(const tn_api_call *a) { return count_tokens(a, TN_API_MESSAGES); }
enum MHD_Result tn_api_count_chat(const tn_api_call *a) { return count_tokens(a, TN_API_CHAT); }

/* What OpenAI's and llama.cpp's servers tell of a request for a response. */
enum MHD_Result tn_api_count_response(const tn_api_call *a) {
    tern_error err = {0};
    size_t n = 0;
    tn_request r;
    tern_status st = tn_responses_read(a->responses, a->body, a->n_body, &r, &err);
    if (st == TERN_OK) st = measure(a, &r, &n, &err);
    if (st != TERN_OK) return tn_api_error(a, &err, TN_API_CHAT);
    return tn_api_json(
        a, 200, tn_json_pack("{s:s, s:I}", "object", "response.input_tokens", "input_tokens", (json_int_t)n));
}

enum MHD_Result tn_api_infill(const tn_api_call *a) {
    tern_error err = {0};
    tn_request r;
    tern_status st = tn_request_read_infill(a->body, a->n_body, &r, &err);
    return st == TERN_OK ? tn_api_ask(a, &r) : tn_api_error(a, &err, TN_API_LLAMA);
}

enum MHD_Result tn_api_responses(const tn_api_call *a) {
    tern_error err = {0};
    tn_request r;
    tern_status st = tn_responses_read(a->responses, a->body, a->n_body, &r, &err);
    return st == TERN_OK ? tn_api_ask(a, &r) : tn_api_error(a, &err, TN_API_CHAT);
}
