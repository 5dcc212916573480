#include "server/api.h"

#include "server/reply.h"

#include <stdarg.h>
#include <stdio.h>
#include <xxhash.h>

enum MHD_Result tn_api_body(const tn_api_call *a, int status, const char *type, struct MHD_Response *body) {
    static const tn_header headers[] = {{"Cache-Control", "no-store"}, {"WWW-Authenticate", "Bearer"}};
    return tn_respond(a->c, status, type, headers, status == 401 ? 2 : 1, body);
}

enum MHD_Result tn_api_json(const tn_api_call *a, int status, json_t *v) {
    return tn_api_body(a, status, "application/json", tn_body_json(v));
}

enum MHD_Result tn_api_error(const tn_api_call *a, const tern_error *err, tn_api api) {
    int status = tn_reply_status(err);
    return tn_api_json(a, status, tn_reply_error(err, status, api == TN_API_MESSAGES));
}

enum MHD_Result tn_api_refuse(const tn_api_call *a, int status, const char *fmt, ...) {
    tern_error err = {.code = TERN_E_INVALID};
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(err.message, sizeof err.message, fmt, ap);
    va_end(ap);
    return tn_api_json(a, status, tn_reply_error(&err, status, false));
}

uint64_t tn_api_client(const tn_api_call *a, const json_t *body) {
    const json_t *user = json_object_get(body, "user");
    if (!user) user = json_object_get(json_object_get(body, "metadata"), "user_id");
    return XXH64(json_is_string(user) ? json_string_value(user) : "", json_string_length(user), a->client);
}

static bool gone(void *c) { return tn_client_gone(c); }

tern_status tn_api_use(const tn_api_call *a, const json_t *body, tn_served **out, tern_error *err) {
    const json_t *name = json_object_get(body, "model");
    *out = NULL;
    TN_FAIL_IF(name && !json_is_string(name) && !json_is_null(name), err, TERN_E_INVALID,
               "'model' must be a text");
    tn_connection_busy(a->c, true);
    tern_status st = tn_models_use(a->models, json_string_value(name), gone, a->c, out, err);
    tn_connection_busy(a->c, false);
    return st;
}
