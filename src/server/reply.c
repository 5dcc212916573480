#include "server/reply.h"

#include "server/refusals.h"

#include <string.h>

static const char *object_name(const tn_job *j, bool chunk) {
    return j->r.api == TN_API_COMPLETIONS ? "text_completion"
           : chunk                        ? "chat.completion.chunk"
                                          : "chat.completion";
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

static json_t *delta(json_t *d) { /* takes d */
    return tn_json_pack("{s:i, s:o, s:o}", "index", 0, "delta", d, "finish_reason", json_null());
}

/* The passages that the prompt quotes, where it quotes any. */
static json_t *with_sources(const tn_job *j, json_t *f) {
    if (j->r.sources) tn_json_set(&f, "sources", json_incref(j->r.sources));
    return f;
}

json_t *tn_reply_role(const tn_job *j) {
    return with_sources(
        j, frame(j, true, delta(tn_json_pack("{s:s, s:s}", "role", "assistant", "content", "")), false));
}

json_t *tn_reply_delta(const tn_job *j, const char *field, const char *text, size_t n, json_t *lps) {
    json_t *c;
    if (j->r.api == TN_API_CHAT) {
        json_t *d = json_object();
        tn_json_set(&d, field, tn_json_string(text, n));
        c = delta(d);
    } else {
        c = tn_json_pack("{s:i, s:s%, s:o}", "index", 0, "text", text, n, "finish_reason", json_null());
    }
    if (lps) tn_json_set(&c, "logprobs", logprobs_of(lps));
    return frame(j, true, c, false);
}

static json_t *call_of(const tn_job *j, size_t i) {
    const json_t *c = json_array_get(j->calls, i);
    return tn_json_pack("{s:O, s:s, s:{s:O, s:O}}", "id", json_object_get(c, "id"), "type", "function",
                        "function", "name", json_object_get(c, "name"), "arguments",
                        json_object_get(c, "arguments"));
}

json_t *tn_reply_call(const tn_job *j, size_t i_call) {
    json_t *c = call_of(j, i_call), *list = json_array(), *d = json_object();
    tn_json_set(&c, "index", json_integer((json_int_t)i_call));
    tn_json_append(&list, c);
    tn_json_set(&d, "tool_calls", list);
    return frame(j, true, delta(d), false);
}

static const char *reason(const tn_job *j) {
    if (j->res.reason == TERN_STOP_LENGTH || j->res.reason == TERN_STOP_CONTEXT) return "length";
    return j->n_calls ? "tool_calls" : "stop";
}

json_t *tn_reply_end(const tn_job *j) {
    json_t *c;
    if (j->r.api == TN_API_CHAT)
        c = tn_json_pack("{s:i, s:o, s:s}", "index", 0, "delta", json_object(), "finish_reason", reason(j));
    else c = tn_json_pack("{s:i, s:s, s:s}", "index", 0, "text", "", "finish_reason", reason(j));
    return frame(j, true, c, false);
}

json_t *tn_reply_usage_event(const tn_job *j) {
    json_t *f = frame(j, true, NULL, true);
    tn_json_set(&f, "usage", usage(j));
    return f;
}

static json_t *message(const tn_job *j) {
    json_t *m = tn_json_pack(
        "{s:s, s:o}", "role", "assistant", "content",
        j->n_calls && !j->text.n ? json_null() : tn_json_string(j->text.p ? j->text.p : "", j->text.n));
    if (j->thought.n) tn_json_set(&m, "reasoning_content", tn_json_string(j->thought.p, j->thought.n));
    if (!j->n_calls) return m;
    json_t *calls = json_array();
    for (size_t i = 0; i < j->n_calls; i++) tn_json_append(&calls, call_of(j, i));
    tn_json_set(&m, "tool_calls", calls);
    return m;
}

json_t *tn_reply_whole(const tn_job *j) {
    json_t *c;
    if (j->r.api == TN_API_CHAT)
        c = tn_json_pack("{s:i, s:o, s:s}", "index", 0, "message", message(j), "finish_reason", reason(j));
    else
        c = tn_json_pack("{s:i, s:s%, s:s}", "index", 0, "text", j->text.p ? j->text.p : "", j->text.n,
                         "finish_reason", reason(j));
    if (j->r.logprobs) tn_json_set(&c, "logprobs", logprobs_of(json_incref(j->logprobs)));
    else tn_json_set(&c, "logprobs", json_null());
    json_t *f = frame(j, false, c, false);
    tn_json_set(&f, "usage", usage(j));
    return with_sources(j, f);
}

json_t *tn_reply_logprob(const tern_engine *e, int32_t token, float logprob, json_t *top) {
    char buf[512];
    size_t n = tern_token_bytes(e, token, true, buf, sizeof buf);
    if (n > sizeof buf) n = sizeof buf;
    json_t *bytes = json_array();
    for (size_t i = 0; i < n; i++) tn_json_append(&bytes, json_integer((uint8_t)buf[i]));
    json_t *v = tn_json_pack("{s:s%, s:f, s:o}", "token", buf, n, "logprob", (double)logprob, "bytes", bytes);
    if (top) tn_json_set(&v, "top_logprobs", top);
    return v;
}

int tn_reply_status(const tern_error *err) {
    if (err->code == TN_E_ABSENT) return 404;
    if (err->code == TN_E_BUSY) return 429;
    if (err->code == TN_E_CLOSING) return 503;
    switch (err->code) {
    case TERN_E_INVALID:
    case TERN_E_LIMIT:
    case TERN_E_UNSUPPORTED: return 400;
    case TERN_E_CANCELLED: return 499;
    case TERN_E_MEMORY: return 503;
    default: return 500;
    }
}

json_t *tn_reply_error(const tern_error *err, int status, bool of_messages) {
    const char *type = status == 401                  ? "authentication_error"
                       : status == 404 && of_messages ? "not_found_error"
                       : status == 429                ? "rate_limit_error"
                       : status < 500                 ? "invalid_request_error"
                       : of_messages                  ? status == 503 ? "overloaded_error" : "api_error"
                                                      : "server_error";
    if (of_messages)
        return tn_json_pack("{s:s, s:{s:s, s:s}}", "type", "error", "error", "type", type, "message",
                            err->message);
    return tn_json_pack("{s:{s:s, s:s, s:o, s:i}}", "error", "message", err->message, "type", type, "param",
                        json_null(), "code", status);
}
