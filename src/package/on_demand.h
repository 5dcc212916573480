/* package/on_demand.h - experts of a package read when rows choose them, where memory has no place for all.
 *
 * A unit is one expert of one site: its gate and up, or its down. The weights of resident units lie in slots of
 * one size, each of a linear, which are all the memory that experts take: as many slots as the budget allows. A unit
 * is read as it lies in the file, checked against its own checksum, and its graphs are loaded over the slot,
 * so that products have the bits that they have with everything in memory.
 *
 * take() keeps a unit resident until give(), and reads it where it is not. hint() begins to read units that will be
 * taken soon, as far as nothing else must give way that was hinted at or is in use. The unit taken longest ago goes
 * first; in front of it what was hinted at and not chosen. A prompt passes through all experts of a layer, chunk
 * after chunk, where that rule would keep nothing: what such a pass reads goes before all else, the latest first, so
 * that those that are there stay and are hits. */
#ifndef TN_PACKAGE_ON_DEMAND_H
#define TN_PACKAGE_ON_DEMAND_H

#include "package/npu_model.h"

typedef struct tn_on_demand tn_on_demand;

/* Of all experts of a model, from its index alone. */
typedef struct tn_experts_need {
    uint64_t all_bytes;   /* weights of all experts */
    uint64_t least_bytes; /* of slots to work at all: twice what a token chooses in a layer */
    bool can; /* the package has a checksum for every expert, and their weights are used as they lie */
} tn_experts_need;

/* packed: weightlets stay what they are. */
void tn_experts_need_of(const tn_pkg *pkg, const tn_hparams *h, bool packed, tn_experts_need *out);

/* The sites' small tensors are in place, and so are their graphs. path is for messages. TERN_E_LIMIT where
 * the budget holds too few slots. */
tern_status tn_on_demand_open(tn_npu_model *m, const char *path, uint64_t budget_bytes,
                              const tn_aio_options *io, tn_on_demand **out, tern_error *err);
void tn_on_demand_close(tn_on_demand **d); /* NULL-safe; nothing is taken any more */

/* Thread-safe. A thread that takes has taken nothing else. pass: of a prompt's pass through all of them. */
tern_status tn_on_demand_take(tn_on_demand *d, const tn_npu_site *s, int32_t expert, bool pass,
                              tern_error *err);
void tn_on_demand_give(tn_on_demand *d, const tn_npu_site *s, int32_t expert);
/* experts [n], in the order in which they will be taken. */
void tn_on_demand_hint(tn_on_demand *d, const tn_npu_site *s, const int32_t *experts, int32_t n, bool pass);

/* Scores of a layer's experts as they are before the layer has begun become what they will probably be: what
 * earlier ones turned out to differ by, newer ones counting more, is added. learn: what they are. */
void tn_on_demand_correct(tn_on_demand *d, int32_t layer, float *scores);
void tn_on_demand_learn(tn_on_demand *d, int32_t layer, const float *scores);
/* Experts that a layer will probably choose: they are hinted at, and compared with what it chooses. */
void tn_on_demand_predict(tn_on_demand *d, int32_t layer, const int32_t *experts, int32_t n);
void tn_on_demand_chosen(tn_on_demand *d, int32_t layer, const int32_t *experts, int32_t n);

typedef struct tn_on_demand_stats {
    int32_t n_slots, n_units;
    uint64_t slot_bytes, budget_bytes, all_bytes; /* all_bytes: of the experts in the file */
    /* Takes; of those, the unit was in memory from before; it was read for this, but by a hint. */
    uint64_t n_taken, n_hits, n_ahead;
    uint64_t n_reads, n_read_bytes;
    uint64_t n_predicted, n_right; /* experts chosen where a prediction was made; of those, predicted */
    int64_t wait_ns;               /* summed over threads: in take, for reads */
} tn_on_demand_stats;

void tn_on_demand_stats_get(tn_on_demand *d, tn_on_demand_stats *out);

#endif
