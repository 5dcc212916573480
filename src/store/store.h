/* store/store.h - data that outlives a process: token sequences to draft from, and documents to answer
 * from (sd.npu 4.1).
 *
 * It is one SQLite file in WAL mode. Data reported as stored is on the disk: it survives a killed process
 * and a power cut. Several processes may use one file at once; a writer waits up to busy_ms for another. A
 * tn_store belongs to one thread at a time. Nothing in the file is trusted: sequences with ids outside the
 * vocabulary are skipped and counted. SQLite's own memory does not go through tn_ctx, because its
 * allocator is process-wide; everything handed out here does.
 *
 * Sequences (a conversation with its answers, or a document that was answered from) belong to a
 * vocabulary, known by the fingerprint of its tokenizer. A store may hold sequences of several models and
 * shows each model only its own.
 *
 * Schema versions are in PRAGMA user_version. Opening migrates an older file and refuses a newer one:
 *   1  vocab, sequence
 *   2  document, passage, passage_fts (documents/rag.h)
 *   3  recalled
 *   4  quote: which sequences hold text of which document, so that they go with it
 *   5  embedder, vector (documents/vectors.h): a vector goes with its passage
 *
 * The file is private (0600); if others could read it, its mode is narrowed, with a notice. Deleted data
 * is overwritten with zeros, in the file and in the write-ahead log. A foreign file is data only: views,
 * triggers and virtual tables in it are refused. */
#ifndef TN_STORE_STORE_H
#define TN_STORE_STORE_H

#include "text/tokenizer.h"

struct sqlite3;

enum { TN_STORE_VERSION = 6, TN_STORE_MAX_SEQUENCE = 1 << 20 /* tokens */ };

typedef enum tn_sequence_kind { TN_SEQUENCE_CHAT, TN_SEQUENCE_CORPUS } tn_sequence_kind;

typedef struct tn_store_options {
    uint64_t
        cap_bytes; /* of the sequences: beyond it the least recently used are evicted; 0 = 64 MiB (default) */
    int32_t busy_ms; /* wait for another process; 0 = 10000 (default) */
    bool read_only;  /* the file must exist and have this version (default false) */
} tn_store_options;

typedef struct tn_store tn_store;

/* Opens a store; makes it, with its folders, if absent. opt may be NULL. Fails with TERN_E_FORMAT if the
 * file is damaged or not a store, and with TERN_E_UNSUPPORTED if it is from a newer tern. */
tern_status tn_store_open(tn_ctx *ctx, const char *path, const tn_store_options *opt, tn_store **out,
                          tern_error *err);
void tn_store_close(tn_store **s);

/* Gives $XDG_DATA_HOME/tern/store.db, or the same under ~/.local/share. The caller frees it with tn_free.
 * Fails with TERN_E_IO without a home folder, or with TERN_E_MEMORY. */
tern_status tn_store_default_path(tn_ctx *ctx, char **out, tern_error *err);

/* From now on sequences of this vocabulary are used (tn_tokenizer_fingerprint). */
tern_status tn_store_vocab(tn_store *s, uint64_t fingerprint, int32_t n_vocab, tern_error *err);

/* Stores ids[0..n): the prompt, then the output from n_prompt on. *id is 0 for a new sequence, or that of
 * an earlier version of the same conversation, which is replaced; it gets the sequence's id. A sequence
 * that is already stored is only marked as used. It is durable when this returns TERN_OK. Longer ones keep
 * their last TN_STORE_MAX_SEQUENCE tokens. Then the store is evicted down to the cap. */
tern_status tn_store_put(tn_store *s, tn_sequence_kind kind, const int32_t *ids, size_t n, size_t n_prompt,
                         int64_t *id, tern_error *err);

/* Sequences that are put from now on quote these documents (ids of the table; n 0: none). They are erased
 * together with any of these. */
tern_status tn_store_quoting(tn_store *s, const int64_t *documents, size_t n, tern_error *err);
/* Erases, within a transaction, the sequences that quote a removed document, those whose documents are
 * unknown, and the recalled predictions of models. */
tern_status tn_store_forget(tn_store *s, tern_error *err);

/* Erases sequences and recalled predictions from the bytes of the file: the one with this id, or all (0),
 * then with the vocabularies. *n: number of erased sequences. */
tern_status tn_store_erase(tn_store *s, int64_t id, int64_t *n, tern_error *err);

typedef struct tn_store_sequence {
    int64_t id, n_tokens, created; /* seconds since 1970 */
    tn_sequence_kind kind;
} tn_store_sequence;
/* Sequences of all vocabularies, most recently used first; false stops. */
tern_status tn_store_list(tn_store *s, bool (*fn)(void *user, const tn_store_sequence *q), void *user,
                          tern_error *err);

/* Passes sequences of the vocabulary to the callback, most recently used first, up to max_tokens in all.
 * The last one is cut at its beginning. The callback borrows ids and returns false to stop. */
tern_status tn_store_each(tn_store *s, size_t max_tokens,
                          bool (*fn)(void *user, tn_sequence_kind kind, const int32_t *ids, size_t n),
                          void *user, tern_error *err);

/* Keep a model's recent predictions (draft.h, tn_draft_recalled): one piece of data per model, for the
 * eight models used last. get gives *data to the caller; NULL: nothing is kept. It comes from a file and
 * is untrusted. */
tern_status tn_store_put_recalled(tn_store *s, uint64_t model, const int32_t *data, size_t n,
                                  tern_error *err);
tern_status tn_store_get_recalled(tn_store *s, uint64_t model, int32_t **data, size_t *n, tern_error *err);

typedef struct tn_store_info {
    int64_t n_sequences, n_vocabs; /* of all vocabularies */
    int64_t n_own;                 /* of the vocabulary in use */
    int64_t n_skipped;             /* by tn_store_each: damaged */
    int64_t n_evicted;             /* by this process */
    uint64_t token_bytes, cap_bytes;
} tn_store_info;

tern_status tn_store_info_get(tn_store *s, tn_store_info *out, tern_error *err);

/* ---- for sessions, which know a store by this table ------------------------------------------------
 *
 * libtern has no SQLite. The program provides the table itself (session/storing.h); elsewhere a session
 * that names a store loads it from libtern-store, whose symbol tn_store_plugin is this table. Both come
 * from one build: the size and the version say so. */
typedef struct tn_store_ops {
    uint64_t size_bytes; /* of this struct */
    const char *version; /* TERN_VERSION_STRING */
    tern_status (*open)(tn_ctx *ctx, const char *path, const tn_store_options *opt, tn_store **out,
                        tern_error *err);
    void (*close)(tn_store **s);
    tern_status (*vocab)(tn_store *s, uint64_t fingerprint, int32_t n_vocab, tern_error *err);
    tern_status (*put)(tn_store *s, tn_sequence_kind kind, const int32_t *ids, size_t n, size_t n_prompt,
                       int64_t *id, tern_error *err);
    tern_status (*quoting)(tn_store *s, const int64_t *documents, size_t n, tern_error *err);
    tern_status (*each)(tn_store *s, size_t max_tokens,
                        bool (*fn)(void *user, tn_sequence_kind kind, const int32_t *ids, size_t n),
                        void *user, tern_error *err);
    tern_status (*put_recalled)(tn_store *s, uint64_t model, const int32_t *data, size_t n, tern_error *err);
    tern_status (*get_recalled)(tn_store *s, uint64_t model, int32_t **data, size_t *n, tern_error *err);
} tn_store_ops;

#define TN_STORE_PLUGIN "tn_store_plugin"
extern const tn_store_ops tn_store_plugin;

/* ---- for documents/rag.c and vectors.c, which keep their tables in the same file ----------------------- */

struct sqlite3 *tn_store_db(tn_store *s);
struct sqlite3_stmt;
/* On failure *out is NULL. The caller finalises it. */
tern_status tn_store_prepare(tn_store *s, const char *sql, struct sqlite3_stmt **out, tern_error *err);
/* Runs statements without results; `what` completes the error "cannot ...". */
tern_status tn_store_run(tn_store *s, const char *sql, const char *what, tern_error *err);
/* Reads one integer from a query that has no parameters and one row. */
tern_status tn_store_number(tn_store *s, const char *sql, int64_t *out, tern_error *err);
tn_ctx *tn_store_ctx(tn_store *s);
const char *tn_store_path(const tn_store *s);
/* begin takes the writer's lock at once (waiting up to busy_ms), so that a transaction cannot fail
 * half-way because of another's. */
tern_status tn_store_begin(tn_store *s, tern_error *err);
tern_status tn_store_commit(tn_store *s, tern_error *err); /* rolls back when it fails */
/* Removes deleted data from the file, and from the write-ahead log unless another process is reading it. */
tern_status tn_store_shrink(tn_store *s, tern_error *err);
void tn_store_rollback(tn_store *s);
/* Returns the status and message for SQLite's last error. */
tern_status tn_store_failed(tn_store *s, const char *what, tern_error *err);

#endif
