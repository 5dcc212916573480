/* params/options.h - what an engine, its sessions and their answers are asked to do.
 *
 * Callers see an opaque object that they fill by name (tern_options_set). The names, ranges and defaults are
 * rows of the table in params.c, and each row says which field below it fills. */
#ifndef TN_PARAMS_OPTIONS_H
#define TN_PARAMS_OPTIONS_H

#include "tern.h"

enum { TN_MAX_PARAMS = 64 };

/* These are values of `steal` that are not a threshold. */
enum {
    TN_STEAL_SHARE_CORES = 0, /* lanes are cores of one machine: who is idle takes part of what there is */
    TN_STEAL_NONE = -1,       /* lanes never take each other's tasks, as on a phone */
    TN_STEAL_MEASURED = -2    /* policy synergy: a threshold from the profile, 5 before it is measured */
};

struct tern_options {
    /* What follows is for the engine. NULL and 0 are the defaults of params.c where they are not values
     * themselves. */
    int32_t n_threads;
    const char *cores;
    const tern_hooks *hooks;
    bool exact;
    bool trace;
    const char *npu, *policy;
    int32_t npu_threads, cpu_threads;
    uint64_t npu_memory_bytes, npu_vtcm_bytes, max_memory_bytes;
    int32_t chunk;
    int32_t
        steal; /* TN_STEAL_..., or policy synergy: the CPU lane takes a product when more than so many wait */
    const char *scheme, *cold_rows, *products;
    bool no_chunk_sharing, npu_separate_weights, npu_apart;
    const char *graph_switch;
    int32_t switch_blocks;
    const char *load, *read, *weights;
    const char *kv;
    const char *attention;
    float attention_ratio; /* share, in (0,1]; 0: the default of prompts or of decoding */
    int32_t attention_buckets, attention_share, attention_pool, attention_threshold;
    bool no_head_ratios, attention_whole, attention_check, attention_decode;
    const char *attention_pipeline, *attention_plan, *attention_preset;
    const char *lora; /* adapters: "[NAME=]FILE[:SCALE],..." */
    const char *draft_head;
    const char *mmproj, *encoder, *keep_encoder;
    bool one_view;
    int32_t picture_rows; /* 0: the default */
    uint64_t picture_memory_bytes, picture_cache_bytes;
    const char *beside; /* no parameter: the file in whose place this one is opened; NULL: itself */
    /* These are for its sessions and their answers, for callers that name them in the same object. */
    tern_session_options session;
    tern_generate_options generate;
    /* These tell what tern_options_set was told: rows set by name, and the texts that they point to. */
    uint64_t given;
    char *texts[TN_MAX_PARAMS];
    tern_hooks own_hooks;
};

void tn_options_defaults(tern_options *o);

/* The attention that was asked for, or its default. */
static inline const char *tn_options_attention(const tern_options *o) {
    return o->attention ? o->attention : o->exact ? "full" : "auto";
}

#endif
