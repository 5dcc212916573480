#include "server/reply.h"

#include <string.h>

static const char *object_name(const tn_job *j, bool chunk) {
    return !j->r.chat ? "text_completion" : chunk ? "chat.completion.chunk" : "chat.completion";
}

/* Makes the frame of a reply. It takes choice, or NULL for none. */
static json_t *frame(const tn_job *j, bool chunk, json_t *choice, bool empty) {
    json_t *list = json_array();
    if (!empty) tn_json_append(&list, choice);
    return tn_json_pack("{s:s, s:s, s:I, s:s, s:o}", "id", j->id, "object", object_name(j, chunk), "created",
                        (json_int_t)j->created, "model", tn_queue_opts(j->q)->model, "choices", list);
}

static json_t *usage(const tn_job *j) {
    return tn_json_pack("{s:I, s:I, s:I, s:{s:I}}", "prompt_tokens", (json_int_t)j->n_ids,
                        "completion_tokens", (json_int_t)j->res.n_tokens, "total_tokens",
                        (json_int_t)j->n_ids + j->res.n_tokens, "prompt_tokens_details", "cached_tokens",
                        (json_int_t)j->n_cached);
}

static json_t *logprobs_of(json_t *list) { return tn_json_pack("{s:o}", "content", list); }

json_t *tn_reply_role(const tn_job *j) {
    json_t *c = tn_json_pack("{s:i, s:{s:s, s:s}, s:o}", "index", 0, "delta", "role", "assistant", "content",
                             "", "finish_reason", json_null());
    return frame(j, true, c, false);
}

json_t *tn_reply_delta(const tn_job *j, const char *text, size_t n, json_t *lp) {
    json_t *c;
    if (j->r.chat)
        c = tn_json_pack("{s:i, s:{s:s%}, s:o}", "index", 0, "delta", "content", text, n, "finish_reason",
                         json_null());
    else c = tn_json_pack("{s:i, s:s%, s:o}", "index", 0, "text", text, n, "finish_reason", json_null());
    if (lp) {
        json_t *list = json_array();
        tn_json_append(&list, lp);
        tn_json_set(&c, "logprobs", logprobs_of(list));
    }
    return frame(j, true, c, false);
}

static const char *reason(const tn_job *j) {
    return j->res.reason == TERN_STOP_LENGTH || j->res.reason == TERN_STOP_CONTEXT ? "length" : "stop";
}

json_t *tn_reply_end(const tn_job *j) {
    json_t *c;
    if (j->r.chat)
        c = tn_json_pack("{s:i, s:o, s:s}", "index", 0, "delta", json_object(), "finish_reason", reason(j));
    else c = tn_json_pack("{s:i, s:s, s:s}", "index", 0, "text", "", "finish_reason", reason(j));
    return frame(j, true, c, false);
}

json_t *tn_reply_usage_event(const tn_job *j) {
    json_t *f = frame(j, true, NULL, true);
    tn_json_set(&f, "usage", usage(j));
    return f;
}

json_t *tn_reply_whole(const tn_job *j) {
    const char *text = j->text ? j->text : "";
    json_t *c;
    if (j->r.chat)
        c = tn_json_pack("{s:i, s:{s:s, s:s%}, s:s}", "index", 0, "message", "role", "assistant", "content",
                         text, j->n_text, "finish_reason", reason(j));
    else
        c = tn_json_pack("{s:i, s:s%, s:s}", "index", 0, "text", text, j->n_text, "finish_reason", reason(j));
    if (j->r.logprobs) tn_json_set(&c, "logprobs", logprobs_of(json_incref(j->logprobs)));
    else tn_json_set(&c, "logprobs", json_null());
    json_t *f = frame(j, false, c, false);
    tn_json_set(&f, "usage", usage(j));
    return f;
}

json_t *tn_reply_logprob(const tern_engine *e, int32_t token, float logprob) {
    char buf[512];
    size_t n = tern_token_bytes(e, token, true, buf, sizeof buf);
    if (n > sizeof buf) n = sizeof buf;
    json_t *bytes = json_array();
    for (size_t i = 0; i < n; i++) tn_json_append(&bytes, json_integer((uint8_t)buf[i]));
    return tn_json_pack("{s:s%, s:f, s:o, s:o}", "token", buf, n, "logprob", (double)logprob, "bytes", bytes,
                        "top_logprobs", json_array());
}

int tn_reply_status(const tern_error *err) {
    switch (err->code) {
    case TERN_E_INVALID:
    case TERN_E_UNSUPPORTED: return 400;
    case TERN_E_LIMIT: return strncmp(err->message, "the queue", 9) ? 400 : 429;
    case TERN_E_CANCELLED: return 499;
    case TERN_E_MEMORY: return 503;
    default: return 500;
    }
}

json_t *tn_reply_error(const tern_error *err, int status) {
    const char *type = status == 401   ? "authentication_error"
                       : status == 429 ? "rate_limit_error"
                       : status < 500  ? "invalid_request_error"
                                       : "server_error";
    return tn_json_pack("{s:{s:s, s:s, s:o, s:i}}", "error", "message", err->message, "type", type, "param",
                        json_null(), "code", status);
}
