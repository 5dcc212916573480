/* engine/engine.h - a model opened on this machine (internal side of tern.h): everything that requests share,
 * immutable after tern_engine_open. A request is a session of it (session/session.h).
 *
 * Main path: tern_engine_open (engine.c) resolves the options (configure.c, estimate.c) and opens a package,
 * or another model by imports.c. */
#ifndef TN_ENGINE_ENGINE_H
#define TN_ENGINE_ENGINE_H

#include "model/model.h"
#include "params/options.h"
#include "prefill/pipeline.h"
#include "prefill/profile.h"
#include "text/grammar/grammar.h"

#include <string.h>

/* Rows of a float prefill chunk, for which activations are planned. A picture of Gemma 4 has up to 280 rows, which see each
 * other in models whose layers have no embeddings of their own, so that they are read at once. */
static inline int32_t tn_float_chunk(const tn_hparams *h) {
    return !strcmp(h->arch, "gemma4") && !h->n_ple ? 288 : 256;
}

struct tern_engine {
    tn_ctx ctx;
    tn_pool *pool;
    tn_kernels kern;
    tn_model *model;
    /* packages only, else NULL: */
    tn_npu_model *npu;
    tn_executor *exec;
    tn_policy policy;
    tn_attn_options attention; /* of files too */
    tn_npu_model *estimator;   /* of a file whose attention may be sparse: the estimating device, without a
                                  package; else NULL */
    tn_model *head;            /* that drafts for the model (engine/head.h); NULL: none */
    int32_t *head_ids;         /* [head.n_vocab] tokens of its output layer */
    const char *not_streamed;  /* why a quantised file was read whole before the first prompt; else NULL */
    int32_t n_lane_workers[TN_N_LANES];
    bool trace;
    /* Times that were measured on this machine: beside the package; of a quantised file in the user's cache (imports.h); NULL:
     * nowhere. */
    char *profile_path;
    tn_kv_type kv_short, kv_long; /* form of keys and values in contexts up to TN_KV_FLOATS, and longer */
    _Atomic(tn_gvocab *) gvocab;  /* NULL until a grammar needs it */
    int fd;                       /* of tern_engine_open_fd, or -1 */
    uint64_t experts_bytes;       /* memory for experts read on demand; 0: all are in memory */
    int32_t n_ctx_fits;           /* longest context within max-memory; 0: no limit */
    uint64_t encoder_bytes; /* what max-memory leaves for the encoder of pictures; UINT64_MAX: no limit */
    struct tn_sight *sight; /* pictures (engine/sight.h); NULL in a minimal build */
    tn_timeline *live;      /* made by the first tn_engine_watch, else NULL */
    _Atomic(tn_timeline *) watched; /* live while somebody watches, else NULL */
};

enum { TN_LEAST_CTX = 256 };  /* tokens: max-memory never shortens a context below this */
enum { TN_KV_FLOATS = 4096 }; /* tokens: without an option, longer contexts keep keys and values as halves */
/* The form of keys and values that the options ask for in a context of n_ctx tokens. */
tn_kv_type tn_options_kv(const tern_options *o, int32_t n_ctx);
/* What fits into max_memory_bytes. */
typedef struct tn_fit {
    int32_t n_ctx;          /* the longest context that sessions may have; 0: no limit */
    uint64_t experts_bytes; /* for experts read on demand; 0: all are in memory */
    uint64_t encoder_bytes; /* for the encoder of pictures while it works; UINT64_MAX: no limit */
} tn_fit;
/* Fits the options into max_memory_bytes: first weights stay packed, then keys and values take fewer bits,
 * then the context becomes shorter, each only if no option forbids it. Experts of packages are read on demand
 * before anything else is reduced. An encoder of pictures that was named, or that is to stay, is counted like
 * weights; another one gets what is left, if that is enough. Fails with TERN_E_LIMIT and the numbers where
 * that is not enough. */
tern_status tn_fit_memory(const char *path, tern_options *o, tn_fit *out, tern_error *err);
/* Resolves the options for a package: the engine's lanes, policy and attention, and how the model is
 * opened. */
/* The workers of the lanes, by tn_lane, for a package opened with o. */
void tn_engine_lanes(const tern_options *o, int n_threads, int32_t *n_lane_workers);
/* Returns the number of threads that o asks for. */
int tn_engine_threads(const tern_options *o);
tern_status tn_engine_configure(tern_engine *e, const char *path, const tn_pkg *pkg, const tern_options *o,
                                int n_threads, tn_npu_model_options *out, tern_error *err);

/* The same for a model that is not a package, once it is loaded: its attention, and the estimating device. */
tern_status tn_engine_configure_file(tern_engine *e, const tern_options *o, tern_error *err);
/* What sparse attention estimates with: the package, or the estimator; NULL: attention is always full. */
static inline const tn_npu_model *tn_engine_heads(const tern_engine *e) {
    return e->npu ? e->npu : e->estimator;
}

/* Where the stage times of this machine, model and settings are kept. The path stays the engine's. */
void tn_engine_profile(const tern_engine *e, tn_profile_file *out);
/* From now until tn_engine_unwatch, sessions without a timeline of their own record their work on a live
 * one. *out is the engine's, for tn_timeline_take; its last track is the sessions' own thread. Until then
 * at most one thread may run the engine's sessions, and one may watch. */
tern_status tn_engine_watch(tern_engine *e, tn_timeline **out, tern_error *err);
void tn_engine_unwatch(tern_engine *e);

#endif
