/* server/connection.h - replies on one connection, for the API's routes (http.c) and the page's (page.c). */
#ifndef TN_SERVER_CONNECTION_H
#define TN_SERVER_CONNECTION_H

#include <jansson.h>
#include <microhttpd.h>
#include <stdbool.h>
#include <stddef.h>

enum { TN_CONNECTION_IDLE_S = 30 };

typedef const char *tn_header[2]; /* name, value */

/* Makes a body of a text, which it takes and frees; NULL gives NULL, as no memory does. */
struct MHD_Response *tn_body_text(char *text);
/* The same of a JSON value, which it takes. */
struct MHD_Response *tn_body_json(json_t *v);
/* Queues a reply of that type with further headers. It takes the body; MHD_NO where that is NULL, which
 * ends the connection. */
enum MHD_Result tn_respond(struct MHD_Connection *c, int status, const char *type, const tn_header *headers,
                           size_t n_headers, struct MHD_Response *body);
/* While the server is busy with a request its connection may be silent for as long as that takes. */
void tn_connection_busy(struct MHD_Connection *c, bool busy);
/* Tells whether the client of a struct MHD_Connection has closed its side; as those who wait for something ask it. */
bool tn_client_gone(void *connection);

#endif
