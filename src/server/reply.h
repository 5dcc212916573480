/* server/reply.h - replies and events in OpenAI's form, as values of base/json.h: NULL is no memory. */
#ifndef TN_SERVER_REPLY_H
#define TN_SERVER_REPLY_H

#include "server/queue.h"

json_t *tn_reply_role(const tn_job *j); /* the first event of a chat */
json_t *tn_reply_delta(const tn_job *j, const char *text, size_t n,
                       json_t *lp);    /* takes lp, which may be NULL */
json_t *tn_reply_end(const tn_job *j); /* with the reason */
json_t *tn_reply_usage_event(const tn_job *j);
json_t *tn_reply_whole(const tn_job *j);
json_t *tn_reply_logprob(const tern_engine *e, int32_t token, float logprob);

/* Both tell of a failure: the HTTP status, and the body. */
int tn_reply_status(const tern_error *err);
json_t *tn_reply_error(const tern_error *err, int status);

#endif
