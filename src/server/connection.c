#include "server/connection.h"

#include "base/json.h"

#include <poll.h>
#include <stdlib.h>
#include <string.h>

struct MHD_Response *tn_body_text(char *text) {
    struct MHD_Response *r =
        text ? MHD_create_response_from_buffer(strlen(text), text, MHD_RESPMEM_MUST_FREE) : NULL;
    if (!r) free(text);
    return r;
}

struct MHD_Response *tn_body_json(json_t *v) {
    char *text = NULL;
    (void)tn_json_text(v, JSON_COMPACT, &text, NULL);
    json_decref(v);
    return tn_body_text(text);
}

enum MHD_Result tn_respond(struct MHD_Connection *c, int status, const char *type, const tn_header *headers,
                           size_t n_headers, struct MHD_Response *body) {
    if (!body) return MHD_NO;
    enum MHD_Result ok = MHD_add_response_header(body, "Content-Type", type);
    for (size_t i = 0; ok == MHD_YES && i < n_headers; i++)
        ok = MHD_add_response_header(body, headers[i][0], headers[i][1]);
    if (ok == MHD_YES) ok = MHD_queue_response(c, (unsigned)status, body);
    MHD_destroy_response(body);
    return ok;
}

void tn_connection_busy(struct MHD_Connection *c, bool busy) {
    MHD_set_connection_option(c, MHD_CONNECTION_OPTION_TIMEOUT, busy ? 0u : (unsigned)TN_CONNECTION_IDLE_S);
}

bool tn_client_gone(void *connection) {
    const union MHD_ConnectionInfo *i =
        MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD);
    struct pollfd p = {.fd = i ? i->connect_fd : -1, .events = POLLIN | POLLRDHUP};
    if (!i || poll(&p, 1, 0) <= 0) return false;
    return (p.revents & (POLLRDHUP | POLLHUP | POLLERR)) != 0;
}
