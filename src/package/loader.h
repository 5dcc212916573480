/* package/loader.h - a package's weights on their way from the file to the device (EdgeFlow 4.2-4.3).
 *
 * The way is cut into units, in the order of the file: of each layer its small tensors (norms, scales,
 * biases, hot rows), then its sites one by one; then the head and the embedding, last the layer that guesses
 * further. A unit is read
 * (asynchronously, checked block by block as it arrives), unpacked (weightlets to the device's tiles; tiles
 * are read to where they stay) and loaded (its graphs become resident). Packed weights pass through a ring of
 * fixed size, so that little memory is needed beside the one copy of the weights. A unit's read begins when
 * the units whose place it takes are loaded (`after`).
 *
 * In stream mode the steps are tasks of the first prefill's graph (sched/prefill_graph.h), and reading begins
 * when the model is opened. The other modes take all steps when the model is opened. Steps may be repeated
 * after a cancelled run; a failure stays. */
#ifndef TN_PACKAGE_LOADER_H
#define TN_PACKAGE_LOADER_H

#include "base/aio.h"
#include "package/npu_model.h"
#include "sched/prefill_graph.h"

/* The kind says where a unit belongs and what waits for it. */
typedef enum tn_unit_kind {
    TN_UNIT_SMALL,
    TN_UNIT_SITE,
    TN_UNIT_HEAD,
    TN_UNIT_EMBD,
    TN_UNIT_NEXT
} tn_unit_kind;

/* Opens a loader. path is the package that m was opened from. Sections, sites and memory of m are in place;
 * reading begins. */
tern_status tn_loader_open(tn_npu_model *m, const char *path, const tn_npu_model_options *opt,
                           tn_loader **out, tern_error *err);
void tn_loader_close(tn_loader **l);

/* Tells whether everything is loaded, and acquires what was loaded. */
bool tn_loader_done(const tn_loader *l);
/* Tells whether loading has failed for want of memory or in a read, which another opening may not meet again. */
bool tn_loader_is_broken(tn_loader *l);
/* Whoever loads, or waits for it, holds this lock. */
void tn_loader_lock(tn_loader *l);
void tn_loader_unlock(tn_loader *l);

/* These are the units as the task graph sees them. */
int32_t tn_loader_n_units(const tn_loader *l);
const tn_prefill_unit *tn_loader_units(const tn_loader *l);
uint64_t tn_loader_unit_bytes(const tn_loader *l, int32_t unit); /* in the file */
int32_t tn_loader_n_parts(const tn_loader *l, int32_t unit);     /* of unpacking */

/* These are the steps of a unit, each after the one before. Those of a loaded unit do nothing. Parts of
 * unpacking may run at once. */
tern_status tn_loader_read(tn_loader *l, int32_t unit, tern_error *err);
tern_status tn_loader_unpack(tn_loader *l, int32_t unit, int32_t part, tern_error *err);
tern_status tn_loader_load(tn_loader *l, int32_t unit, tern_error *err);

/* Takes all steps of the units of layers 0..layer, spread over the pool. Layer n_layers means everything. */
tern_status tn_loader_finish(tn_loader *l, tn_pool *pool, int32_t layer, tern_error *err);

/* The embedding is read last, but its rows are needed first. So these tokens' rows are read before anything
 * else that has not begun. wait waits until they are there. Rows stay until the next begin, or until
 * everything is loaded. */
tern_status tn_loader_rows_begin(tn_loader *l, const int32_t *ids, int32_t n, tern_error *err);
tern_status tn_loader_rows_wait(tn_loader *l, tern_error *err);
/* Tile of the embedding that holds a token's row, *packed: as weightlets: of the rows begun, or of the loaded
 * embedding. */
const int8_t *tn_loader_row_tile(const tn_loader *l, int32_t id, bool *packed);

typedef struct tn_loader_stats {
    uint64_t n_read_bytes;
    uint64_t
        n_first_bytes; /* of those, read before the first product could begin; the rest came beside the work */
    int64_t read_ns;   /* something was being read */
    int64_t unpack_ns, load_ns;    /* summed over the threads */
    uint64_t n_unpacked_by_device; /* weights */
    int64_t done_ns;               /* from opening to everything loaded; 0: not yet */
    const char *method;            /* of reading */
} tn_loader_stats;

void tn_loader_stats_get(tn_loader *l, tn_loader_stats *out);

#endif
