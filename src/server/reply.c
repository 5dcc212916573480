#include "server/reply.h"

#include "server/refusals.h"

#include <stdio.h>

int tn_reply_status(const tern_error *err) {
    if (err->code == TN_E_ABSENT || err->code == TN_E_GONE) return 404;
    if (err->code == TN_E_BUSY) return 429;
    if (err->code == TN_E_CLOSING) return 503;
    if (err->code == TN_E_CONTEXT) return 400;
    if (err->code == TN_E_FULL) return 507;
    switch (err->code) {
    case TERN_E_INVALID:
    case TERN_E_LIMIT:
    case TERN_E_UNSUPPORTED: return 400;
    case TERN_E_CANCELLED: return 499;
    case TERN_E_MEMORY: return 503;
    default: return 500;
    }
}

/* The message of tn_fail_context is the one place of its numbers. */
#define CONTEXT_FORM "the prompt has %zu tokens, which exceeds the available context size of %d tokens"

tern_status tn_fail_context(size_t n_prompt, int32_t n_ctx, tern_error *err) {
    return tn_fail(err, TN_E_CONTEXT, CONTEXT_FORM ", one of which at least is for the answer", n_prompt,
                   n_ctx);
}

tern_status tn_fail_context_of_text(size_t n_tokens, int32_t n_ctx, tern_error *err) {
    return tn_fail(err, TN_E_CONTEXT, CONTEXT_FORM ": it is too large to embed", n_tokens, n_ctx);
}

static const char *type_of(const tern_error *err, int status, bool of_messages) {
    if (err->code == TN_E_CONTEXT && !of_messages) return "exceed_context_size_error";
    switch (status) {
    case 401: return "authentication_error";
    case 403: return "permission_error";
    case 404: return "not_found_error";
    case 413: return of_messages ? "request_too_large" : "invalid_request_error";
    case 429: return "rate_limit_error";
    case 501: return of_messages ? "invalid_request_error" : "not_supported_error";
    case 503: return of_messages ? "overloaded_error" : "unavailable_error";
    default: return status < 500 ? "invalid_request_error" : of_messages ? "api_error" : "server_error";
    }
}

static const char *code_of(const tern_error *err, int status) {
    if (err->code == TN_E_CONTEXT) return "context_length_exceeded";
    if (err->code == TN_E_ABSENT) return "model_not_found";
    switch (status) {
    case 401: return "invalid_api_key";
    case 404: return "not_found";
    case 405: return "method_not_allowed";
    case 429: return "rate_limit_exceeded";
    case 501: return "unsupported";
    case 503: return "unavailable";
    default:
        return err->code == TERN_E_UNSUPPORTED ? "unsupported_parameter"
               : status < 500                  ? "invalid_request"
                                               : "server_error";
    }
}

json_t *tn_reply_error(const tern_error *err, int status, bool of_messages) {
    const char *type = type_of(err, status, of_messages);
    size_t n_prompt = 0;
    int n_ctx = 0;
    const bool too_long =
        err->code == TN_E_CONTEXT && sscanf(err->message, CONTEXT_FORM, &n_prompt, &n_ctx) == 2;
    if (of_messages) {
        char words[120]; /* Anthropic's, by which its clients know when to shorten a conversation */
        snprintf(words, sizeof words, "prompt is too long: %zu tokens > %d maximum", n_prompt, n_ctx);
        return tn_json_pack("{s:s, s:{s:s, s:s}}", "type", "error", "error", "type", type, "message",
                            too_long ? words : err->message);
    }
    json_t *e = tn_json_pack("{s:s, s:s, s:o, s:s}", "message", err->message, "type", type, "param",
                             json_null(), "code", code_of(err, status));
    if (too_long) {
        tn_json_set(&e, "n_prompt_tokens", json_integer((json_int_t)n_prompt));
        tn_json_set(&e, "n_ctx", json_integer(n_ctx));
    }
    return tn_json_pack("{s:o}", "error", e);
}
