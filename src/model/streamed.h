/* model/streamed.h - a GGUF file's blocks that arrive while the first prompt is computed (EdgeFlow 4.2, on a file as
 * it is).
 *
 * A layer is read with one request, to memory that mirrors its part of the file, in the order in which layers are
 * computed; then the output layer, last an embedding of its own. Reading begins when the model is opened. Whoever is
 * about to compute with a layer asks for it: it waits for the bytes and turns the blocks to tiles where they lie, so
 * that no second copy is made and no weight waits for a later one. The rows of the embedding that a chunk needs before
 * the embedding is there are read on their own; layers that are there are turned while those rows come. */
#ifndef TN_MODEL_STREAMED_H
#define TN_MODEL_STREAMED_H

#include "base/aio.h"
#include "model/file_experts.h"
#include "model/model.h"

/* Why a model cannot be opened so; NULL: it can, as far as its header tells. */
const char *tn_streamed_why_not(const tn_source *src);
/* Opens the model of *src, which is taken, and begins to read; then it makes the tokenizer, if *src has none yet.
 * *out NULL: its tensors cannot be used where they lie, and *src is left. */
tern_status tn_streamed_open(tn_ctx *ctx, tn_pool *pool, tn_source **src, const tn_aio_options *io,
                             tn_model **out, tern_error *err);
enum { TN_NEED_ALL = INT32_MAX };

/* Rows of the embedding that were read before the rest of it. */
typedef struct tn_streamed_rows {
    tn_ctx *ctx;
    int32_t n, *ids; /* ascending */
    size_t n_embd;
    float *values; /* [n][n_embd]; NULL: the embedding is there */
} tn_streamed_rows;

typedef struct tn_streamed_stats {
    uint64_t n_read_bytes, n_first_bytes; /* of those, arrived before the first layer was ready */
    int64_t read_ns, turn_ns;             /* something was being read; blocks were turned */
    int64_t done_ns;                      /* from opening until everything is there; 0: not yet */
    const char *method;
    int32_t n_early; /* layers turned before the prompt came to them */
} tn_streamed_stats;

#ifndef TERN_MINIMAL
/* Stops reading. */
void tn_streamed_close(tn_streamed **s);
tern_status tn_streamed_need(tn_streamed *s, int32_t layer, tern_error *err);
tern_status tn_streamed_status(const tn_streamed *s); /* the failure so far; waits for nothing */
/* A thread of its own waits for everything, for where the first prompt comes later. */
void tn_streamed_ahead(tn_streamed *s);
/* Reads the embeddings of these tokens (ids beyond the vocabulary are none); out->values stays NULL where the embedding is there. */
tern_status tn_streamed_rows_read(tn_streamed *s, const int32_t *ids, int32_t n, tn_streamed_rows *out,
                                  tern_error *err);
/* The values of a token that was asked for, [n_embd]. */
const float *tn_streamed_row(const tn_streamed_rows *r, int32_t id);
void tn_streamed_rows_close(tn_streamed_rows *r);
void tn_streamed_stats_get(tn_streamed *s, tn_streamed_stats *out);
#else /* packages alone */
static inline void tn_streamed_close(tn_streamed **s) { (void)s; }
static inline tern_status tn_streamed_need(tn_streamed *s, int32_t layer, tern_error *err) {
    return (void)s, (void)layer, (void)err, TERN_OK;
}
static inline tern_status tn_streamed_status(const tn_streamed *s) { return (void)s, TERN_OK; }
static inline tern_status tn_streamed_rows_read(tn_streamed *s, const int32_t *ids, int32_t n,
                                                tn_streamed_rows *out, tern_error *err) {
    return (void)s, (void)ids, (void)n, (void)out, (void)err, TERN_OK;
}
static inline const float *tn_streamed_row(const tn_streamed_rows *r, int32_t id) {
    return (void)id, r->values;
}
static inline void tn_streamed_rows_close(tn_streamed_rows *r) { (void)r; }
#endif

/* Waits until the weights of layers 0 .. layer may be used; layer n_layers: the output layer too; TN_NEED_ALL: all.
 * Failures stay: TERN_E_IO, TERN_E_FORMAT for blocks that hold no numbers, TERN_E_MEMORY. TERN_E_CANCELLED does not.
 * Any thread may ask. */
static inline tern_status tn_model_need(const tn_model *m, int32_t layer, tern_error *err) {
    if (m->file_experts) return tn_file_experts_status(m->file_experts, err);
    return m->streamed ? tn_streamed_need(m->streamed, layer, err) : TERN_OK;
}
/* The failure that stays, so far. It waits for nothing. */
static inline tern_status tn_model_failure(const tn_model *m) {
    if (m->file_experts) return tn_file_experts_status(m->file_experts, NULL);
    return m->streamed ? tn_streamed_status(m->streamed) : TERN_OK;
}

#endif
