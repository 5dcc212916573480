/* tern_complete: one answer in one call. */
#include "base/status.h"
#include "session/session.h"

#include <string.h>

typedef struct completion {
    bool (*on_text)(void *user, const char *text, size_t n_bytes);
    void *user;
} completion;

static bool on_token(void *user, int32_t token, const char *text, size_t n_bytes, float logprob) {
    const completion *c = user;
    (void)token, (void)logprob;
    return !n_bytes || c->on_text(c->user, text, n_bytes);
}

/* Turns the messages, or plain text, into ids. The caller frees them, whatever is returned. */
static tern_status tokens_of(tern_engine *e, const tern_message *msgs, size_t n_msgs, int32_t **ids,
                             size_t *n, tern_error *err) {
    bool plain = n_msgs == 1 && !msgs[0].role;
    size_t n_bytes = plain ? strlen(msgs[0].content) : 0, cap = plain ? n_bytes + 16 : 0;
    tern_status st = TERN_OK;
    if (!plain) st = tern_chat_tokens(e, msgs, n_msgs, NULL, NULL, 0, &cap, err);
    if (st != TERN_OK && st != TERN_E_LIMIT) return st;
    *ids = tn_alloc(&e->ctx, TN_MEM_TEXT, cap, sizeof **ids);
    TN_FAIL_IF(!*ids, err, TERN_E_MEMORY, "no memory for a prompt of %zu tokens", cap);
    return plain ? tern_tokenize(e, msgs[0].content, n_bytes, true, false, *ids, cap, n, err)
                 : tern_chat_tokens(e, msgs, n_msgs, NULL, *ids, cap, n, err);
}

tern_status tern_complete(tern_engine *e, const tern_message *msgs, size_t n_msgs, const tern_options *opt,
                          bool (*on_text)(void *user, const char *text, size_t n_bytes), void *user,
                          tern_generate_result *result, tern_error *err) {
    TN_FAIL_IF(!e || !msgs || !n_msgs || !on_text, err, TERN_E_INVALID,
               "tern_complete needs an engine, messages and a place for the answer");
    for (size_t i = 0; i < n_msgs; i++) {
        TN_FAIL_IF(!msgs[i].content, err, TERN_E_INVALID, "message %zu has no content", i + 1);
        TN_FAIL_IF(!msgs[i].role && n_msgs > 1, err, TERN_E_INVALID,
                   "message %zu of %zu has no role: plain text is one message alone", i + 1, n_msgs);
    }
    tern_options o;
    if (opt) o = *opt;
    else tn_options_defaults(&o);
    completion c = {on_text, user};
    o.generate.on_token = on_token;
    o.generate.user = &c;
    o.generate.no_logprobs = true;
    tern_session *s = NULL;
    int32_t *ids = NULL;
    size_t n = 0;
    tern_status st = tokens_of(e, msgs, n_msgs, &ids, &n, err);
    if (st == TERN_OK) st = tern_session_open(e, &o.session, &s, err);
    if (st == TERN_OK) st = tern_session_prefill(s, ids, n, err);
    if (st == TERN_OK) st = tern_session_generate(s, &o.generate, result, err);
    tern_session_close(&s);
    tn_free(&e->ctx, ids);
    return st;
}
