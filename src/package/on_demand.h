/* package/on_demand.h - reads experts of a package when rows choose them, if memory does not hold all of
 * them.
 *
 * A unit is one expert of one site: its gate and up, or its down. Weights of resident units lie in slots
 * of one size, one per linear; experts take no other memory, and the budget determines the number of
 * slots. A unit is read in the file's form, checked against its own checksum, and its graphs are loaded
 * over the slots. So products have the same bits as with everything in memory.
 *
 * take() keeps a unit resident until give(), and reads it if necessary. hint() starts reading units that
 * will be taken soon, unless that would evict a unit in use or hinted at.
 *
 * Units hinted at but not chosen are evicted first, then those used least, where a use counts half after 64
 * tokens; resident units that were hinted at stay until they are taken. A prompt passes through all experts of a
 * layer, chunk after chunk, and that rule would keep nothing for the next chunk. So units read by such a pass are
 * evicted before all others, the latest first, and the rest stay as hits. */
#ifndef TN_PACKAGE_ON_DEMAND_H
#define TN_PACKAGE_ON_DEMAND_H

#include "model/file_experts.h"
#include "package/npu_model.h"

typedef struct tn_on_demand tn_on_demand;

/* packed: weightlets stay packed. */
void tn_experts_need_of(const tn_pkg *pkg, const tn_hparams *h, bool packed, tn_experts_need *out);

/* The sites' small tensors and graphs must be in place. path is for messages. TERN_E_LIMIT: the budget
 * holds too few slots. */
tern_status tn_on_demand_open(tn_npu_model *m, const char *path, uint64_t budget_bytes,
                              const tn_aio_options *io, tn_on_demand **out, tern_error *err);
void tn_on_demand_close(tn_on_demand **d); /* NULL-safe; no unit may be taken */

/* Thread-safe. A thread takes one unit at a time. pass: part of a prompt's pass through all experts. */
tern_status tn_on_demand_take(tn_on_demand *d, const tn_npu_site *s, int32_t expert, bool pass,
                              tern_error *err);
void tn_on_demand_give(tn_on_demand *d, const tn_npu_site *s, int32_t expert);
/* experts [n], in the order in which they will be taken. */
void tn_on_demand_hint(tn_on_demand *d, const tn_npu_site *s, const int32_t *experts, int32_t n, bool pass);

/* Corrects scores of a layer's experts that were computed before the layer began: adds a running mean of the
 * recent differences. learn gives the true scores. */
void tn_on_demand_correct(tn_on_demand *d, int32_t layer, float *scores);
void tn_on_demand_learn(tn_on_demand *d, int32_t layer, const float *scores);
/* Experts that a layer will probably choose. They are hinted at, and later compared with its choice. */
void tn_on_demand_predict(tn_on_demand *d, int32_t layer, const int32_t *experts, int32_t n);
void tn_on_demand_chosen(tn_on_demand *d, int32_t layer, const int32_t *experts, int32_t n);

typedef struct tn_on_demand_stats {
    int32_t n_slots, n_units;
    uint64_t slot_bytes, budget_bytes, all_bytes; /* all_bytes: of the experts in the file */
    /* Number of takes; of those, units that were resident before, and units that a hint had read. */
    uint64_t n_taken, n_hits, n_ahead;
    uint64_t n_reads, n_read_bytes;
    uint64_t n_predicted, n_right; /* experts chosen where a prediction was made; of those, predicted */
    int64_t wait_ns;               /* time in take waiting for reads, summed over threads */
} tn_on_demand_stats;

void tn_on_demand_stats_get(tn_on_demand *d, tn_on_demand_stats *out);

#endif
