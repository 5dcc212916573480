/* Chats, completions and messages: from the request to the queue, and what the model says back to the
 * connection. */
#include "server/api.h"
#include "server/reply.h"

#include <assert.h>
#include <microhttpd.h>
#include <stdlib.h>
#include <string.h>

enum { HEARTBEAT_MS = 10000, LOOK_MS = 100 };

typedef struct stream {
    tn_job *j;
    tn_served *model;
    struct MHD_Connection *c;
} stream;

static ssize_t read_stream(void *user, uint64_t pos, char *buf, size_t max) {
    (void)pos;
    stream *s = user;
    for (int waited = 0;; waited += LOOK_MS) {
        bool done;
        size_t n = tn_job_take(s->j, buf, max, &done);
        if (n) return (ssize_t)n;
        if (done)
            return s->j->err.code == TERN_OK || s->j->out.n ? MHD_CONTENT_READER_END_OF_STREAM
                                                            : MHD_CONTENT_READER_END_WITH_ERROR;
        if (tn_client_gone(s->c)) {
            tn_job_cancel(s->j);
            return MHD_CONTENT_READER_END_WITH_ERROR;
        }
        if (waited >= HEARTBEAT_MS && max >= 9) { /* a comment: neither side gives up on a long prompt */
            memcpy(buf, ": wait\n\n", 8);
            return 8;
        }
        tn_job_wait(s->j, LOOK_MS);
    }
}

static void free_stream(void *user) {
    stream *s = user;
    tn_job_cancel(s->j); /* a client that left in the middle; nothing where it is done */
    tn_job_leave(s->j);
    tn_models_leave(s->model);
    free(s);
}

/* Takes the job, and the use of its model. */
static enum MHD_Result send_stream(const tn_api_call *a, tn_job *j, tn_served *model) {
    stream *s = malloc(sizeof *s);
    struct MHD_Response *r = NULL;
    if (s) {
        *s = (stream){j, model, a->c};
        r = MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, 4096, read_stream, s, free_stream);
    }
    if (!r) {
        free(s);
        tn_job_cancel(j);
        tn_job_leave(j);
        tn_models_leave(model);
        return MHD_NO;
    }
    return tn_api_body(a, 200, "text/event-stream", r);
}

/* Waits until the job is done, or with first until it has begun to answer. Returns false when its client is
 * gone. The connection is not idle meanwhile. */
static bool wait_whole(const tn_api_call *a, tn_job *j, bool first) {
    bool begun;
    tn_connection_busy(a->c, true);
    while (!tn_job_done(j, &begun) && !(first && begun)) {
        if (tn_client_gone(a->c)) {
            tn_job_cancel(j);
            return false;
        }
        tn_job_wait(j, LOOK_MS);
    }
    tn_connection_busy(a->c, false);
    return true;
}

static enum MHD_Result send_whole(const tn_api_call *a, tn_job *j) {
    if (j->err.code != TERN_OK) return tn_api_error(a, &j->err, j->r.api);
    char *text = malloc(j->out.n + 1);
    bool done;
    if (text) text[tn_job_take(j, text, j->out.n, &done)] = 0;
    return tn_api_body(a, 200, "application/json", tn_body_text(text));
}

enum MHD_Result tn_api_ask(const tn_api_call *a, tn_request *r) {
    tern_error err = {0};
    tn_api api = r->api;
    tn_served *model;
    tn_job *j = NULL;
    r->client = tn_api_client(a, r->body);
    r->asked_ns = a->asked_ns;
    tern_status st = tn_api_use(a, r->body, &model, &err);
    if (st == TERN_OK) st = tn_queue_put(tn_served_queue(model), r, &j, &err);
    else tn_request_free(r);
    if (st != TERN_OK) {
        if (model) tn_models_leave(model);
        return tn_api_error(a, &err, api);
    }
    bool streams = j->r.stream, begun, ended, there = wait_whole(a, j, streams);
    if (there) {
        ended = tn_job_done(j, &begun); /* from the end on, what the job holds stays as it is */
        if (streams && begun) return send_stream(a, j, model);
        assert(ended);
        (void)ended;
    }
    enum MHD_Result ok = there ? send_whole(a, j) : MHD_NO;
    tn_job_leave(j);
    tn_models_leave(model);
    return ok;
}

enum MHD_Result tn_api_complete(const tn_api_call *a, tn_api api) {
    tern_error err = {0};
    tn_request r;
    tern_status st = tn_request_read(api, a->body, a->n_body, &r, &err);
    return st == TERN_OK ? tn_api_ask(a, &r) : tn_api_error(a, &err, api);
}

enum MHD_Result tn_api_count_tokens(const tn_api_call *a) {
    tern_error err = {0};
    size_t n = 0;
    tn_request r;
    tn_served *model = NULL;
    tern_status st = tn_request_read_count(a->body, a->n_body, &r, &err);
    if (st == TERN_OK) {
        st = tn_api_use(a, r.body, &model, &err);
        if (st == TERN_OK) st = tn_queue_measure(tn_served_queue(model), &r, &n, &err);
        else tn_request_free(&r);
    }
    if (model) tn_models_leave(model);
    if (st != TERN_OK) return tn_api_error(a, &err, TN_API_MESSAGES);
    return tn_api_json(a, 200, tn_json_pack("{s:I}", "input_tokens", (json_int_t)n));
}
