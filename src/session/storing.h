/* session/storing.h - a session's store: what was said before becomes drafts, what is said now is kept
 * (sd.npu 4.1, step 6). */
#ifndef TN_SESSION_STORING_H
#define TN_SESSION_STORING_H

#include "store/store.h"

enum { TN_STORING_TOKENS = 1 << 16 }; /* the newest tokens of the store that a session drafts from */

typedef struct tn_storing {
    const tn_store_ops *ops;
    tn_store *store;  /* NULL: none */
    int64_t id;       /* of this conversation's sequence; 0: not stored yet */
    int32_t n_stored; /* its tokens */
    bool learned;
    uint64_t n_learned; /* tokens */
    int64_t learn_ns, commit_ns, n_commits;
} tn_storing;

/* Provides the store that sessions opened from now on use. The program calls it once, before any session.
 * Where nobody did, the first session that names a store loads libtern-store. */
void tn_storing_provide(const tn_store_ops *ops);

/* Opens the store. With path NULL the session has none. */
tern_status tn_storing_open(tern_session *s, const char *path, uint64_t cap_bytes, tern_error *err);
void tn_storing_close(tern_session *s);

/* Turns the store's newest sequences into texts to draft from, the first time it is called. */
tern_status tn_storing_learn(tern_session *s, tern_error *err);
/* Keeps the session's tokens, of which the first n_prompt were given. They are on the disk when this returns.
 * A store that fails is logged, because the answer is there all the same. */
void tn_storing_commit(tern_session *s, int32_t n_prompt);
/* Says that what is kept from now on quotes these documents of the store. */
tern_status tn_storing_quoting(tern_session *s, const int64_t *documents, size_t n, tern_error *err);
/* Keeps a document's text for the drafts of later sessions. It does nothing without a store; one that fails
 * is logged. */
void tn_storing_corpus(tern_session *s, const char *text, size_t n_bytes);
/* Notes that the session forgets all but its first n tokens. A conversation that keeps less than half of what
 * is stored is another one. */
static inline void tn_storing_truncate(tn_storing *t, int32_t n) {
    if (n >= t->n_stored / 2) return;
    t->id = 0;
    t->n_stored = 0;
}

#endif
