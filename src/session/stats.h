/* session/stats.h - what a session did, counted. The public interface tells it item by item
 * (tern_session_counter, session/tell.c): a new field needs a line there. */
#ifndef TN_SESSION_STATS_H
#define TN_SESSION_STATS_H

#include "tern.h"

/* What drafting did, since the session was opened. */
typedef struct tn_draft_stats {
    uint64_t n_steps;                    /* forwards while generating */
    uint64_t n_rows;                     /* tokens they evaluated: one certain and the drafts */
    uint64_t n_accepted;                 /* drafts that became text */
    double tokens_per_step;              /* accepted length: 1 + accepted drafts a forward */
    double valid, wasted, underutilised; /* shares of n_steps x draft_nodes: kept, rejected, not used */
    double draft_s, draft_max_s;         /* finding drafts: in all, longest of a step */
    double verify_s;                     /* forwards */
    double calibrate_s;                  /* calibration during prefill */
    uint64_t n_calibrated;               /* prompt tokens calibrated */
    uint64_t draft_bytes;                /* memory of the drafters */
    uint64_t n_learned;                  /* tokens of the store that are drafted from */
    double learn_s, commit_s;            /* reading them; writing conversations to the store */
    /* Drafts verified, and right, by who proposed them: copied from text and store, what the model predicted before (calibrated,
     * extend), a draft model, the model's own layer that guesses further */
    uint64_t copied, copied_right, recalled, recalled_right, by_model, by_model_right, by_mtp, by_mtp_right;
    double mtp_s;                    /* that layer's keeping up with the text, prompts included */
    uint64_t by_head, by_head_right; /* the same of a head that drafts for the model */
    double head_s;
} tn_draft_stats;

void tn_session_draft_stats(const tern_session *s, tn_draft_stats *out);

/* What a session's prefills did, since it was opened. Packages only: zero for float models. */
typedef struct tn_stats {
    double wall_s;                       /* of all scheduled runs (chunks of the prompt) */
    double cpu_busy_s, npu_busy_s;       /* summed over the lane's workers */
    double cpu_bubble, npu_bubble;       /* idle share of the lane's workers */
    double decision_us, decision_max_us; /* mean and longest time of a scheduling decision */
    uint64_t n_decisions, n_stolen;      /* parts of tasks run by the other lane */
    uint64_t n_outliers, n_dropped; /* clipped activations made good in float; and beyond a row's capacity */
    uint64_t hot_hits, cold_misses; /* their weight rows found resident; read from the package */
    int32_t n_subgraphs,
        n_shared; /* (chunk, subgraph) pairs of the last wave; of those, served by a shared graph */
    uint64_t kv_bytes, activation_bytes;
    uint64_t graph_bytes, graph_bytes_unshared; /* device memory of the last wave's linear graphs; and were
                                                   there some for each chunk */
    /* Devices that hold one form of a graph at a time, all sessions of the engine together: layers whose form
     * was replaced; time of that; of it, time in which nothing computed; blocks of the last plan and the
     * exposed time it expected. */
    uint64_t n_switched;
    double switch_s, switch_exposed_s, switch_planned_stall_s;
    int32_t switch_blocks;
    /* How the weights came from the package (all sessions together): bytes read, time in which something was
     * being read; unpacking them and making them resident, summed over the threads; from opening until all
     * was there (0: not yet). */
    uint64_t read_bytes;
    double read_s, unpack_s, load_s, loaded_s;
    const char *read_method;
    uint64_t unpacked_by_device; /* weights that the device unpacked itself */
    /* Sparse attention: (row, head) pairs; positions they saw, and selected; with attention_check the exact
     * largest, and how many of those were selected; estimates run on the device; times a head's keys were
     * quantised anew; bytes of INT8 keys and graphs. */
    uint64_t attn_rows, attn_seen, attn_selected, attn_true, attn_found, attn_launches, attn_requantised,
        attn_bytes;
    /* with attention_pipeline: heads estimated, in so many of the launches; plans made, their mean and
     * longest time; time of the planned stages, and of the same from the first to the last of a chunk and
     * layer, whatever ran between */
    uint64_t attn_fused, attn_fused_launches, attn_plans;
    double attn_plan_us, attn_plan_max_us, attn_planned_s, attn_took_s;
    double attn_mass; /* with attention_check: share of the exact softmax weights that lies on selected
                         positions, mean over attn_rows */
    /* Experts that are read on demand, where max-memory has no place for all (all sessions together): their bytes in
     * the file, and the memory they have; experts taken for a product; of those, in memory from before, and read ahead
     * of it; bytes read on demand, and time in which threads waited for that; experts that decoding chose, and
     * had foreseen a layer before. */
    uint64_t experts_bytes, experts_room_bytes, experts_taken, experts_hits, experts_ahead,
        experts_read_bytes;
    double experts_wait_s;
    uint64_t experts_chosen, experts_foreseen;
} tn_stats;

void tn_session_stats(const tern_session *s, tn_stats *out);

#endif
