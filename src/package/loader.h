/* package/loader.h - moves a package's weights from the file to the device (EdgeFlow 4.2-4.3).
 *
 * The weights are cut into units, in the order of the file: for each layer its small tensors (norms,
 * scales, biases, hot rows), then its sites one by one; then the head and the embedding; last the layer
 * that guesses one token further. A unit is read (asynchronously, checked block by block as it arrives),
 * unpacked (weightlets to the device's tiles; tiles are read to their final place) and loaded (its graphs
 * become resident). Packed weights pass through a ring of fixed size, so little memory is needed besides
 * the one copy of the weights. A unit's read starts once the units whose memory it reuses are loaded
 * (`after`).
 *
 * In stream mode reading begins when the model is opened, and the steps are tasks of the first prefill's
 * graph (package/prefill_graph.h). The other modes take all steps when the model is opened. Steps may be
 * repeated after a cancelled run; a failure is permanent. */
#ifndef TN_PACKAGE_LOADER_H
#define TN_PACKAGE_LOADER_H

#include "base/aio.h"
#include "package/npu_model.h"
#include "package/prefill_graph.h"

/* The place of a unit, and what waits for it. */
typedef enum tn_unit_kind {
    TN_UNIT_SMALL,
    TN_UNIT_SITE,
    TN_UNIT_HEAD,
    TN_UNIT_EMBD,
    TN_UNIT_NEXT
} tn_unit_kind;

/* Opens a loader and begins reading. path is the package that m was opened from. Sections, sites and memory
 * of m must be ready. */
tern_status tn_loader_open(tn_npu_model *m, const char *path, const tn_npu_model_options *opt,
                           tn_loader **out, tern_error *err);
void tn_loader_close(tn_loader **l);

/* Whether everything is loaded. If so, the loaded data is visible to this thread. */
bool tn_loader_done(const tn_loader *l);
/* Whether loading failed for lack of memory or in a read, so that opening again may succeed. */
bool tn_loader_is_broken(tn_loader *l);
/* Held by the thread that loads, or waits for loading. */
void tn_loader_lock(tn_loader *l);
void tn_loader_unlock(tn_loader *l);

/* The units as the task graph sees them. */
int32_t tn_loader_n_units(const tn_loader *l);
const tn_prefill_unit *tn_loader_units(const tn_loader *l);
uint64_t tn_loader_unit_bytes(const tn_loader *l, int32_t unit); /* in the file */
int32_t tn_loader_n_parts(const tn_loader *l, int32_t unit);     /* of unpacking */

/* The steps of a unit, in this order. Those of a loaded unit do nothing. Parts of unpacking may run at
 * once. */
tern_status tn_loader_read(tn_loader *l, int32_t unit, tern_error *err);
tern_status tn_loader_unpack(tn_loader *l, int32_t unit, int32_t part, tern_error *err);
tern_status tn_loader_load(tn_loader *l, int32_t unit, tern_error *err);

/* Takes all steps of the units of layers 0..layer, spread over the pool; layer n_layers: of everything. */
tern_status tn_loader_finish(tn_loader *l, tn_pool *pool, int32_t layer, tern_error *err);

/* The embedding is read last, but its rows are needed first. So begin reads these tokens' rows ahead of
 * all reads that have not begun. The rows stay until the next begin, or until everything is loaded. */
tern_status tn_loader_rows_begin(tn_loader *l, const int32_t *ids, int32_t n, tern_error *err);
/* Tile of the embedding with a token's row (*packed: as weightlets), from the rows begun or from the loaded
 * embedding. */
const int8_t *tn_loader_row_tile(const tn_loader *l, int32_t id, bool *packed);

typedef struct tn_loader_stats {
    uint64_t n_read_bytes;
    uint64_t n_first_bytes; /* of those, read before the first product could begin; the rest overlapped with
                          work */
    int64_t read_ns;        /* something was being read */
    int64_t unpack_ns, load_ns;    /* summed over the threads */
    uint64_t n_unpacked_by_device; /* weights */
    int64_t done_ns;               /* from opening until everything is loaded; 0: not yet */
    const char *method;            /* of reading */
} tn_loader_stats;

void tn_loader_stats_get(tn_loader *l, tn_loader_stats *out);

#endif
