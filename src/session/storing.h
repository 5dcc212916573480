/* session/storing.h - a session's store: earlier texts become drafts, the session's own text is kept (sd.npu
 * 4.1, step 6). */
#ifndef TN_SESSION_STORING_H
#define TN_SESSION_STORING_H

#include "store/store.h"

enum { TN_STORING_TOKENS = 1 << 16 }; /* number of the store's newest tokens that a session drafts from */

typedef struct tn_storing {
    const tn_store_ops *ops;
    tn_store *store;  /* NULL: none */
    int64_t id;       /* id of this conversation's sequence; 0: not stored yet */
    int32_t n_stored; /* its tokens */
    bool learned;
    uint64_t n_learned; /* tokens */
    int64_t learn_ns, commit_ns, n_commits;
} tn_storing;

/* Provides the store for sessions opened from now on. The program calls it once, before any session.
 * Otherwise the first session that names a store loads libtern-store. */
void tn_storing_provide(const tn_store_ops *ops);

/* Opens the store. With path NULL the session has none. */
tern_status tn_storing_open(tern_session *s, const char *path, uint64_t cap_bytes, tern_error *err);
void tn_storing_close(tern_session *s);

/* On the first call, turns the store's newest sequences into texts to draft from. */
tern_status tn_storing_learn(tern_session *s, tern_error *err);
/* Stores the session's tokens, of which the first n_prompt were given. They are on disk when this returns. A
 * failing store is only logged, because the answer exists all the same. */
void tn_storing_commit(tern_session *s, int32_t n_prompt);
/* Notes that texts stored from now on quote these documents of the store. */
tern_status tn_storing_quoting(tern_session *s, const int64_t *documents, size_t n, tern_error *err);
/* Stores a document's text for the drafts of later sessions. It does nothing without a store; a failing one
 * is logged. */
void tn_storing_corpus(tern_session *s, const char *text, size_t n_bytes);
/* Notes that the session drops all but its first n tokens. A conversation that keeps less than half of what
 * is stored becomes a new one. */
static inline void tn_storing_truncate(tn_storing *t, int32_t n) {
    if (n >= t->n_stored / 2) return;
    t->id = 0;
    t->n_stored = 0;
}

#endif
