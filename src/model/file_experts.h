/* model/file_experts.h - experts of a GGUF file that are read when rows choose them, where max-memory does not hold all of
 * them (package/on_demand.h does it for packages).
 *
 * A unit is one expert of one layer: gate, up and down. Units in memory lie in slots of one size, as tiles, so products
 * have the bits of everything in memory. What is not there is turned to tiles out of the mapped file; the system is told
 * of all that a layer's rows chose before the first of them is turned, and before the layer's attention of those that it
 * will probably choose.
 *
 * Of units in memory those used least go, where a use counts half after 64 tokens. A prompt passes through all experts
 * of a layer, chunk after chunk, and that rule would keep nothing for the next chunk: what such a pass read goes before
 * all others, the latest first, but for the layer at work. */
#ifndef TN_MODEL_FILE_EXPERTS_H
#define TN_MODEL_FILE_EXPERTS_H

#include "model/model.h"

/* Sizes of all experts of a model, from its index alone. */
typedef struct tn_experts_need {
    uint64_t all_bytes;   /* weights of all experts */
    uint64_t least_bytes; /* minimum memory of slots: twice the experts that a token chooses in a layer */
    bool can; /* experts can be read one by one: from packages with a checksum each, from files in blocks */
} tn_experts_need;

typedef struct tn_file_experts_stats {
    int32_t n_slots, n_units;
    uint64_t slot_bytes, all_bytes; /* all_bytes: of the experts, as tiles */
    uint64_t n_taken,
        n_hits; /* of a token's or a chunk's experts in a layer; of those, in memory from before */
    uint64_t n_read_bytes;
    int64_t wait_ns;               /* reading and turning */
    uint64_t n_predicted, n_right; /* experts that few rows chose where a guess was made; of those, guessed */
    uint64_t n_ahead;              /* experts read for a product that a guess had told the system of */
} tn_file_experts_stats;

#ifndef TERN_MINIMAL
void tn_file_experts_need_of(const tn_source *src, tn_experts_need *out);
/* m was loaded without its experts from *src, which is taken. TERN_E_LIMIT: the budget holds too few slots. */
tern_status tn_file_experts_open(tn_model *m, tn_pool *pool, tn_source **src, uint64_t budget_bytes,
                                 tern_error *err);
void tn_file_experts_close(tn_file_experts **x); /* NULL-safe */

/* Experts stay in memory between begin and end, which one thread at a time may hold. */
void tn_file_experts_begin(tn_file_experts *x);
void tn_file_experts_end(tn_file_experts *x);
/* How many experts of a layer can be taken at once. */
int32_t tn_file_experts_most(const tn_file_experts *x);
/* Makes those of the experts e0 .. e1 - 1 of a layer resident that have rows (first[e + 1] > first[e]), and lets go of
 * what was taken before. pass: part of a prompt's pass through all experts; counts: they are a new choice. false: it
 * failed, and so does every later call; see tn_file_experts_status. */
bool tn_file_experts_take(tn_file_experts *x, int32_t layer, const int32_t *first, int32_t e0, int32_t e1,
                          bool pass, bool counts);
/* Tells the system of the experts (by number) that rows will probably choose, before a layer begins. */
void tn_file_experts_foresee(tn_file_experts *x, int32_t layer, const bool *likely);
/* Corrects scores that were guessed by what they have differed by lately, and learns from the true ones (see
 * package/on_demand.h). */
void tn_file_experts_correct(tn_file_experts *x, int32_t layer, float *scores);
void tn_file_experts_learn(tn_file_experts *x, int32_t layer, const float *scores);
/* The failure that stays. Any thread may ask. */
tern_status tn_file_experts_status(tn_file_experts *x, tern_error *err);
/* A hash of the experts as the file has them, which begins from seed. Reads all of them. */
uint64_t tn_file_experts_hash(const tn_file_experts *x, uint64_t seed);
void tn_file_experts_stats_get(tn_file_experts *x, tn_file_experts_stats *out);
#else /* packages alone */
static inline void tn_file_experts_close(tn_file_experts **x) { (void)x; }
static inline void tn_file_experts_begin(tn_file_experts *x) { (void)x; }
static inline void tn_file_experts_end(tn_file_experts *x) { (void)x; }
static inline int32_t tn_file_experts_most(const tn_file_experts *x) { return (void)x, TN_MAX_EXPERTS; }
static inline bool tn_file_experts_take(tn_file_experts *x, int32_t layer, const int32_t *first, int32_t e0,
                                        int32_t e1, bool pass, bool counts) {
    return (void)x, (void)layer, (void)first, (void)e0, (void)e1, (void)pass, (void)counts, true;
}
static inline void tn_file_experts_foresee(tn_file_experts *x, int32_t layer, const bool *likely) {
    (void)x, (void)layer, (void)likely;
}
static inline void tn_file_experts_correct(tn_file_experts *x, int32_t layer, float *scores) {
    (void)x, (void)layer, (void)scores;
}
static inline void tn_file_experts_learn(tn_file_experts *x, int32_t layer, const float *scores) {
    (void)x, (void)layer, (void)scores;
}
static inline tern_status tn_file_experts_status(tn_file_experts *x, tern_error *err) {
    return (void)x, (void)err, TERN_OK;
}
static inline uint64_t tn_file_experts_hash(const tn_file_experts *x, uint64_t seed) { return (void)x, seed; }
#endif

#endif
