/* documents/vectors.h - passages as vectors of an embedding model, beside their words.
 *
 *   fill    every passage that has none yet gets its vector; what was stopped goes on where it was
 *   search  a question -> the passages whose vectors are nearest, by brute force
 *
 * A store holds vectors of one model, asked in one way. They are kept as halves of unit length and go with
 * their passages. Nothing in the file is trusted: a vector of another length is passed over. */
#ifndef TN_DOCUMENTS_VECTORS_H
#define TN_DOCUMENTS_VECTORS_H

#include "store/store.h"

enum { TN_VECTOR_MAX = 16384, TN_VECTOR_PATH_MAX = 4096, TN_VECTOR_CENTRED = 32 };

typedef struct tn_embedder {
    const char *model;    /* as it is opened again: the store notes it */
    uint64_t fingerprint; /* of the model */
    int32_t n;            /* values of a vector, 1 to TN_VECTOR_MAX */
    bool mean;            /* over the tokens; else of the last one. Another way makes other vectors */
    /* Gives what the model makes of a text: out [n], of length 1. */
    tern_status (*embed)(void *user, const char *text, size_t n_bytes, float *out, tern_error *err);
    void *user;
    /* The same of a question, where the model wants those in other words; NULL: as of a text. */
    tern_status (*embed_query)(void *user, const char *text, size_t n_bytes, float *out, tern_error *err);
} tn_embedder;

typedef struct tn_vectors_info {
    bool any;                       /* the index has an embedding model; the rest is zero without one */
    char model[TN_VECTOR_PATH_MAX]; /* as it was noted */
    uint64_t fingerprint;
    int32_t n;
    bool mean;
    int64_t n_vectors, n_missing; /* passages with one, and without */
    bool declined;                /* vectors are not wanted: tn_vectors_drop */
} tn_vectors_info;

tern_status tn_vectors_info_get(tn_store *s, tn_vectors_info *out, tern_error *err);

/* Gives every passage without a vector its own, a few at a time, each few durable. Vectors of another
 * model, or made in another way, are erased first. It stops with TERN_E_CANCELLED, keeping what is done,
 * when *cancel (may be NULL) becomes true. progress may be NULL. *n_made grows by how many there are new. */
tern_status tn_vectors_fill(tn_store *s, const tn_embedder *e, const atomic_bool *cancel,
                            void (*progress)(void *user, int64_t n_done, int64_t n_all), void *user,
                            int64_t *n_made, tern_error *err);

/* Erases all vectors, from the bytes of the file, and the note of their model; what remains is that none are wanted. */
tern_status tn_vectors_drop(tn_store *s, tern_error *err);

typedef struct tn_vector_hit {
    int64_t passage;
    float similarity; /* cosine of the angle from the passages' common centre, in [-1, 1] */
    float stands_out; /* how many standard deviations of all passages' similarities it is above their mean */
} tn_vector_hit;

/* Finds the k nearest passages, nearest first; equal ones in the order of the index. Texts of one language
 * model all lie in one direction from the origin, which says nothing: angles are taken from the centre of
 * a sample of the vectors. An index of fewer than TN_VECTOR_CENTRED has none; *centred tells. The embedder
 * must be the one that tn_vectors_info_get names. out [k]. */
tern_status tn_vectors_search(tn_store *s, const tn_embedder *e, const char *query, int32_t k,
                              tn_vector_hit *out, int32_t *n, bool *centred, tern_error *err);

#endif
