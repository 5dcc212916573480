#include "server/api.h"

#include "server/ollama.h"
#include "server/priority.h"
#include "server/reply.h"
#include "server/sink.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <xxhash.h>

enum MHD_Result tn_api_body_of(const tn_api_call *a, int status, const char *type, struct MHD_Response *body,
                               const char *ignored) {
    tn_header headers[9] = {{"Cache-Control", "no-store"}};
    size_t n = 1;
    if (status == 401) headers[n][0] = "WWW-Authenticate", headers[n++][1] = "Bearer";
    if (a->allow) headers[n][0] = "Allow", headers[n++][1] = a->allow;
    if (status == 500) /* what failed fails again, and official clients ask again where nothing says so */
        headers[n][0] = "X-Should-Retry", headers[n++][1] = "false";
    if (a->origin) {
        headers[n][0] = "Access-Control-Allow-Origin", headers[n++][1] = a->origin;
        headers[n][0] = "Access-Control-Allow-Credentials", headers[n++][1] = "true";
        headers[n][0] = "Access-Control-Expose-Headers", headers[n++][1] = "X-Tern-Ignored";
        headers[n][0] = "Vary", headers[n++][1] = "Origin";
    }
    if (*ignored) headers[n][0] = "X-Tern-Ignored", headers[n++][1] = ignored;
    return tn_respond(a->c, status, type, headers, n, body);
}

enum MHD_Result tn_api_body(const tn_api_call *a, int status, const char *type, struct MHD_Response *body) {
    return tn_api_body_of(a, status, type, body, "");
}

tern_status tn_api_strict(const tn_api_call *a, const char *ignored, tern_error *err) {
    TN_FAIL_IF(a->strict && *ignored, err, TERN_E_UNSUPPORTED,
               "the request has what is not followed: %.400s (without --strict it would be ignored)",
               ignored);
    return TERN_OK;
}

enum MHD_Result tn_api_json(const tn_api_call *a, int status, json_t *v) {
    return tn_api_body(a, status, "application/json", tn_body_json(v));
}

enum MHD_Result tn_api_error(const tn_api_call *a, const tern_error *err, tn_api api) {
    int status = tn_reply_status(err);
    return tn_api_json(a, status, tn_sink_of(api)->error(err, status));
}

static const tn_sink *sink_at(const char *url) {
    return !strncmp(url, "/api/", 5)           ? &tn_sink_ollama_chat
           : !strncmp(url, "/v1/messages", 12) ? &tn_sink_messages
                                               : &tn_sink_chat;
}

enum MHD_Result tn_api_refuse(const tn_api_call *a, int status, const char *fmt, ...) {
    tern_error err = {.code = TERN_E_INVALID};
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(err.message, sizeof err.message, fmt, ap);
    va_end(ap);
    return tn_api_json(a, status, sink_at(a->url)->error(&err, status));
}

enum MHD_Result tn_api_wants(const tn_api_call *a, const char *what, const char *allow) {
    tn_api_call b = *a;
    b.allow = allow;
    const char *last = strrchr(allow, ',');
    return last ? tn_api_refuse(&b, 405, "%s wants %.*s or%s", what, (int)(last - allow), allow, last + 1)
                : tn_api_refuse(&b, 405, "%s wants %s", what, allow);
}

uint64_t tn_api_client(const tn_api_call *a, const json_t *body) {
    const json_t *user = json_object_get(body, "user");
    if (!user) user = json_object_get(json_object_get(body, "metadata"), "user_id");
    return XXH64(json_is_string(user) ? json_string_value(user) : "", json_string_length(user), a->client);
}

tern_status tn_api_priority(const tn_api_call *a, const json_t *body, int *out, tern_error *err) {
    TN_TRY(tn_priority_word(a->priority, out, err));
    return tn_priority_read(body, out, err);
}

static tern_status use(const tn_api_call *a, const char *name, tn_served **out, tern_error *err) {
    tn_connection_busy(a->c, true);
    tern_status st = tn_models_use(a->models, name, tn_client_gone, a->c, out, err);
    tn_connection_busy(a->c, false);
    return st;
}

tern_status tn_api_use(const tn_api_call *a, const json_t *body, tn_served **out, tern_error *err) {
    const json_t *name = json_object_get(body, "model");
    *out = NULL;
    TN_FAIL_IF(name && !json_is_string(name) && !json_is_null(name), err, TERN_E_INVALID,
               "'model' must be a text");
    return use(a, json_string_value(name), out, err);
}

tern_status tn_api_use_at(const tn_api_call *a, const json_t *body, tn_served **out, tern_error *err) {
    const char *name = MHD_lookup_connection_value(a->c, MHD_GET_ARGUMENT_KIND, "model");
    *out = NULL;
    return name && !json_object_get(body, "model") ? use(a, name, out, err) : tn_api_use(a, body, out, err);
}
