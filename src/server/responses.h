/* server/responses.h - OpenAI's Responses (/v1/responses): its requests become those of a chat, sink_responses.c
 * writes its answers, and the server remembers them for previous_response_id.
 *
 * What is remembered stays in memory, at most TN_RESPONSES_MAX of them and TN_RESPONSES_BYTES in all; those not
 * asked for longest leave first, and all with the server. */
#ifndef TN_SERVER_RESPONSES_H
#define TN_SERVER_RESPONSES_H

#include "server/sink.h"

enum { TN_RESPONSES_MAX = 1000, TN_RESPONSES_BYTES = 64 << 20 };

extern const tn_sink tn_sink_responses;

typedef struct tn_responses tn_responses;

tern_status tn_responses_open(tn_responses **out, tern_error *err);
void tn_responses_close(tn_responses **x);
/* Remembers copies of a response and of the conversation up to its end. Nothing happens where either is NULL. */
void tn_responses_keep(tn_responses *x, const char *id, const json_t *response, const json_t *messages);
/* Either may be NULL; they are the caller's. TN_E_GONE. */
tern_status tn_responses_find(tn_responses *x, const char *id, json_t **response, json_t **messages,
                              tern_error *err);
/* An item of some response's output, by its id; the caller's. TN_E_GONE. */
tern_status tn_responses_item(tn_responses *x, const char *id, json_t **item, tern_error *err);
tern_status tn_responses_forget(tn_responses *x, const char *id, tern_error *err);

/* Reads the body of a request. Its sink is tn_sink_responses, whose user is x. */
tern_status tn_responses_read(tn_responses *x, const char *body, size_t n_bytes, tn_request *r,
                              tern_error *err);

#endif
