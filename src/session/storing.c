#include "session/session.h"

#include "base/clock.h"
#include "base/status.h"

#include <dlfcn.h>
#include <stdatomic.h>
#include <string.h>

#define LIBRARY "libtern-store.so.1"

static _Atomic(const tn_store_ops *) provided;

void tn_storing_provide(const tn_store_ops *ops) { atomic_store(&provided, ops); }

/* Finds the store's library. It stays loaded, because sessions of other threads may use it. */
static tern_status find_store(const tn_store_ops **out, tern_error *err) {
    *out = atomic_load(&provided);
    if (*out) return TERN_OK;
    void *library = dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL);
    TN_FAIL_IF(!library, err, TERN_E_UNSUPPORTED, "a store needs " LIBRARY " beside libtern: %s", dlerror());
    const tn_store_ops *ops = dlsym(library, TN_STORE_PLUGIN);
    bool ours = ops && ops->size_bytes == sizeof *ops && !strcmp(ops->version, TERN_VERSION_STRING);
    if (!ours) dlclose(library);
    TN_FAIL_IF(!ours, err, TERN_E_UNSUPPORTED, LIBRARY " is not that of tern %s", TERN_VERSION_STRING);
    tn_storing_provide(*out = ops);
    return TERN_OK;
}

tern_status tn_storing_open(tern_session *s, const char *path, uint64_t cap_bytes, tern_error *err) {
    tn_storing *t = &s->storing;
    if (!path) return TERN_OK;
    const tn_tokenizer *tok = s->e->model->tokenizer;
    TN_FAIL_IF(!tok, err, TERN_E_UNSUPPORTED, "a store needs a model with a tokenizer: this one has none");
    TN_TRY(find_store(&t->ops, err));
    const tn_store_options o = {.cap_bytes = cap_bytes};
    TN_TRY(t->ops->open(&s->e->ctx, path, &o, &t->store, err));
    return t->ops->vocab(t->store, tn_tokenizer_fingerprint(tok), s->e->model->h.n_vocab, err);
}

void tn_storing_close(tern_session *s) {
    if (s->storing.store) s->storing.ops->close(&s->storing.store);
}

typedef struct collected {
    int32_t *ids;     /* [TN_STORING_TOKENS] sequences one after the other, newest first */
    int32_t *lengths; /* [TN_STORING_TOKENS] */
    size_t n, n_sequences;
} collected;

static bool collect(void *user, tn_sequence_kind kind, const int32_t *ids, size_t n) {
    (void)kind;
    collected *c = user;
    memcpy(c->ids + c->n, ids, n * sizeof *ids);
    c->lengths[c->n_sequences++] = (int32_t)n;
    c->n += n;
    return true;
}

tern_status tn_storing_learn(tern_session *s, tern_error *err) {
    tn_storing *t = &s->storing;
    tn_ctx *ctx = &s->e->ctx;
    if (!t->store || t->learned) return TERN_OK;
    int64_t t0 = tn_now_ns();
    collected c = {.ids = tn_alloc(ctx, TN_MEM_OTHER, TN_STORING_TOKENS, sizeof *c.ids),
                   .lengths = tn_alloc(ctx, TN_MEM_OTHER, TN_STORING_TOKENS, sizeof *c.lengths)};
    tern_status st = c.ids && c.lengths ? t->ops->each(t->store, TN_STORING_TOKENS, collect, &c, err)
                                        : tn_fail(err, TERN_E_MEMORY, "no memory to read a store");
    /* the newest last: of several possible continuations drafts follow the last one */
    for (size_t end = c.n; st == TERN_OK && c.n_sequences; end -= (size_t)c.lengths[c.n_sequences]) {
        size_t n = (size_t)c.lengths[--c.n_sequences];
        st = tern_session_learn(s, c.ids + end - n, n, err);
    }
    int32_t *said = NULL;
    size_t n_said;
    if (st == TERN_OK && s->drafting.draft)
        st = t->ops->get_recalled(t->store, tn_model_fingerprint(s->e->model), &said, &n_said, err);
    if (said) tn_draft_recall(s->drafting.draft, said, n_said);
    tn_free(ctx, said);
    t->n_learned = c.n;
    t->learned = st == TERN_OK;
    tn_free(ctx, c.ids);
    tn_free(ctx, c.lengths);
    t->learn_ns = tn_now_ns() - t0;
    tn_session_trace(s, "store: learn", t0, t0 + t->learn_ns);
    return st;
}

/* Rows of pictures mean nothing to other processes: the tokens around them are stored. */
static tern_status put_tokens(tern_session *s, int32_t n_prompt, tern_error *err) {
    tn_storing *t = &s->storing;
    tn_ctx *ctx = &s->e->ctx;
    int32_t *ids = tn_alloc(ctx, TN_MEM_OTHER, (size_t)s->n_tok, sizeof *ids);
    size_t n = 0, n_given = 0;
    TN_FAIL_IF(!ids, err, TERN_E_MEMORY, "no memory for its tokens");
    for (int32_t i = 0; i < s->n_tok; i++) {
        if (s->tokens[i] < s->e->model->h.n_vocab) ids[n++] = s->tokens[i];
        if (i + 1 == n_prompt) n_given = n;
    }
    tern_status st = t->ops->put(t->store, TN_SEQUENCE_CHAT, ids, n, n_given, &t->id, err);
    tn_free(ctx, ids);
    return st;
}

void tn_storing_commit(tern_session *s, int32_t n_prompt) {
    tn_storing *t = &s->storing;
    if (!t->store || s->n_tok <= n_prompt) return;
    tern_error err;
    int64_t t0 = tn_now_ns();
    if (put_tokens(s, n_prompt, &err) != TERN_OK) {
        tn_log(&s->e->ctx, TERN_LOG_WARN, "the conversation is not stored: %s", err.message);
        return;
    }
    t->n_stored = s->n_tok;
    t->n_commits++;
    tn_draft *d = s->drafting.draft;
    size_t n_said = d ? tn_draft_recalled(d, NULL) : 0;
    int32_t *said = n_said ? tn_alloc(&s->e->ctx, TN_MEM_OTHER, n_said, sizeof *said) : NULL;
    if (said) {
        tn_draft_recalled(d, said);
        if (t->ops->put_recalled(t->store, tn_model_fingerprint(s->e->model), said, n_said, &err) !=
            TERN_OK) {
            tn_log(&s->e->ctx, TERN_LOG_WARN, "what the model said is not stored for drafts: %s",
                   err.message);
        }
        tn_free(&s->e->ctx, said);
    }
    int64_t t1 = tn_now_ns();
    t->commit_ns += t1 - t0;
    tn_session_trace(s, "store: commit", t0, t1);
}

void tn_storing_corpus(tern_session *s, const char *text, size_t n_bytes) {
    tn_storing *t = &s->storing;
    tn_ctx *ctx = &s->e->ctx;
    if (!t->store || !n_bytes) return;
    tern_error err;
    size_t n = 0, cap = n_bytes + 16;
    int64_t id = 0;
    int32_t *ids = tn_alloc(ctx, TN_MEM_TEXT, cap, sizeof *ids);
    tern_status st =
        ids ? tn_tokenize(s->e->model->tokenizer, text, n_bytes, false, false, ids, cap, &n, &err)
            : tn_fail(&err, TERN_E_MEMORY, "no memory for its tokens");
    if (st == TERN_OK && n) st = t->ops->put(t->store, TN_SEQUENCE_CORPUS, ids, n, n, &id, &err);
    if (st != TERN_OK) tn_log(ctx, TERN_LOG_WARN, "a document is not stored for drafts: %s", err.message);
    tn_free(ctx, ids);
}

tern_status tn_storing_quoting(tern_session *s, const int64_t *documents, size_t n, tern_error *err) {
    return s->storing.store ? s->storing.ops->quoting(s->storing.store, documents, n, err) : TERN_OK;
}
