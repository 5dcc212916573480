/* server/reply.h - replies and events in OpenAI's and Anthropic's forms, as values of base/json.h: NULL is
 * no memory. */
#ifndef TN_SERVER_REPLY_H
#define TN_SERVER_REPLY_H

#include "server/queue.h"

/* ---- OpenAI ---------------------------------------------------------------------------------------- */

json_t *tn_reply_role(const tn_job *j); /* the first event of a chat */
/* field is "content" or "reasoning_content". It takes lps, an array of tn_reply_logprob, which may be
 * NULL. */
json_t *tn_reply_delta(const tn_job *j, const char *field, const char *text, size_t n, json_t *lps);
json_t *tn_reply_call(const tn_job *j, size_t i_call); /* of j->calls */
json_t *tn_reply_end(const tn_job *j);                 /* with the reason */
json_t *tn_reply_usage_event(const tn_job *j);
json_t *tn_reply_whole(const tn_job *j);
/* top has the alternatives and is taken. */
json_t *tn_reply_logprob(const tern_engine *e, int32_t token, float logprob, json_t *top);

/* ---- Anthropic ------------------------------------------------------------------------------------- */

json_t *tn_message_start(const tn_job *j);
/* kind is 't' for text, 'T' for a thought, 'c' for the call i_call. */
json_t *tn_message_block_start(const tn_job *j, char kind, size_t i_call);
json_t *tn_message_block_delta(const tn_job *j, char kind, const char *text, size_t n);
json_t *tn_message_block_stop(const tn_job *j);
json_t *tn_message_delta(const tn_job *j); /* the reason, and usage */
json_t *tn_message_whole(const tn_job *j);

/* ---- failures -------------------------------------------------------------------------------------- */

/* Both tell of a failure: the HTTP status, and the body. */
int tn_reply_status(const tern_error *err);
json_t *tn_reply_error(const tern_error *err, int status, bool of_messages);

#endif
