/* tern.h - the public C interface of tern, an on-device LLM inference engine.
 *
 * engine:  an opened model. Immutable after open, may be shared by threads, must outlive its sessions.
 * session: one mutable token timeline over an engine. Owns KV cache and logits. One thread at a time;
 *          only tern_session_cancel may be called from another thread.
 *
 * Every function that can fail returns a tern_status and, where it takes `err`, fills it with one clear
 * line (err may be NULL). The library never exits, never prints and keeps no global state.
 * Structs passed in by the caller carry their size and are filled by tern_*_defaults() first, so that
 * fields can be added without breaking the binary interface. */
#ifndef TERN_H
#define TERN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(_WIN32)
#define TERN_API
#else
#define TERN_API __attribute__((visibility("default")))
#endif

#define TERN_VERSION_STRING "0.1.0"

/* Every status code, its number and its text, in one place. */
#define TERN_STATUS_TABLE(X)                                                                                 \
    X(TERN_OK, 0, "ok")                                                                                      \
    X(TERN_E_INVALID, 1, "invalid argument")                                                                 \
    X(TERN_E_MEMORY, 2, "out of memory")                                                                     \
    X(TERN_E_IO, 3, "input/output error")                                                                    \
    X(TERN_E_FORMAT, 4, "malformed file")                                                                    \
    X(TERN_E_UNSUPPORTED, 5, "unsupported model, format or option")                                          \
    X(TERN_E_CANCELLED, 6, "cancelled")                                                                      \
    X(TERN_E_LIMIT, 7, "limit reached")                                                                      \
    X(TERN_E_DEVICE, 8, "device error")

typedef enum tern_status {
#define TERN_STATUS_ENUM(name, value, text) name = value,
    TERN_STATUS_TABLE(TERN_STATUS_ENUM)
#undef TERN_STATUS_ENUM
} tern_status;

typedef struct tern_error {
    tern_status code;
    char message[512]; /* one line, no newline, names file/tensor/offset where that applies */
} tern_error;

TERN_API const char *tern_version(void);
TERN_API const char *tern_status_text(tern_status s);

/* ---- host hooks ---------------------------------------------------------------------------------- */

typedef enum tern_log_level { TERN_LOG_ERROR, TERN_LOG_WARN, TERN_LOG_INFO, TERN_LOG_DEBUG } tern_log_level;

/* Hooks are copied at open and must stay callable, from any thread, until the engine is closed.
 * alloc returns memory aligned to `align` (a power of two) or NULL; release gets what alloc returned. */
typedef struct tern_hooks {
    size_t size_bytes; /* sizeof(tern_hooks), set by tern_hooks_defaults */
    void *(*alloc)(void *user, size_t n_bytes, size_t align);
    void (*release)(void *user, void *p);
    void (*log)(void *user, tern_log_level level, const char *line);
    /* progress of open: fraction in [0,1]; return false to cancel (open then fails with TERN_E_CANCELLED) */
    bool (*progress)(void *user, const char *stage, double fraction);
    void *user;
} tern_hooks;

TERN_API void tern_hooks_defaults(tern_hooks *h);

/* ---- engine -------------------------------------------------------------------------------------- */

typedef struct tern_engine tern_engine;
typedef struct tern_session tern_session;

typedef struct tern_options {
    size_t size_bytes;       /* sizeof(tern_options), set by tern_options_defaults */
    int32_t n_threads;       /* worker threads, 1..64; 0 = one per online core (default) */
    const tern_hooks *hooks; /* NULL = malloc/free, no log, no progress (default) */

    /* Packages only: the INT8 device and the scheduler of its two lanes. */
    const char *npu; /* device backend by name ("host"); NULL = the first built in (default). A float model is
                        packed for a device that is named, at every start */
    const char *policy;        /* "in-order", "overlap", "ooe" or "synergy"; NULL = "ooe" (default) */
    int32_t npu_threads;       /* workers of the NPU lane, 1..63; 0 = n_threads - 1 (default) */
    int32_t cpu_threads;       /* workers of the CPU lane, 1..63; 0 = 1 (default) */
    uint64_t npu_memory_bytes; /* what the device can address; 0 = no limit (default) */
    int32_t chunk; /* prompt tokens per chunk, a multiple of 32 in 32..1024; 0 = what tern bench --tune kept,
                      or 256 (default) */
    bool no_steal; /* lanes never take each other's tasks, as on a phone (default false) */
    const char *scheme; /* models that are no package: "float" (default), "blocks" (default where the file is
                              quantised: its blocks as they are) or the arithmetic of a baseline, "llm-int8",
                              "group-w8a8"; packages have theirs */
    bool no_chunk_sharing; /* graphs, with their weights, for every chunk in flight: what chunk sharing saves
                              (default false) */
    const char *cold_rows; /* where weight rows for outliers of cold channels come from: "file" (the package;
                              what a device with its own memory needs) or "weights" (the device's copy); NULL
                              = weights where possible (default) */
    bool trace;            /* record every task for tern_session_write_trace (default false) */
    bool npu_separate_weights; /* the device's graphs cannot share weights, as on many phones: it holds the
                                  prefill or the decode form of a layer and exchanges them (default false) */
    const char *graph_switch;  /* when: "progressive", "async" or "sync"; NULL = "progressive" (default) */
    int32_t switch_blocks; /* exchanged at once: the model in so many blocks, 1..64; 0 = as many as are best
                              (default) */
    const char *load; /* how the weights come from the file: "stream" (overlapped with the first prefill; what
                         is wrong with the file is then told by that prefill), "overlap", "sequential" or
                         "mmap"; NULL = "stream" (default) */
    int32_t
        steal_above;  /* policy "synergy": an idle CPU lane takes a task of the NPU's when more than so many
                         wait there; -1 = never, 0 = as the profile says, 5 before it is measured (default) */
    const char *read; /* by "threads", "threads-direct", "uring" or "uring-direct"; NULL = threads
                         when the page cache has the file, else what tern bench --tune kept, else uring-direct
                         (default) */
    /* Packages: attention of the prompt (of decoding: attention_decode). "full" (exact; default), "shadow"
     * (the device estimates in INT8, the CPU attends in float to the positions that matter), "auto" (shadow
     * where package, device and context allow it and it pays), or a baseline, "float-sparse", "block-sparse",
     * "npu-full". */
    const char *attention;
    float attention_ratio; /* mean share of the positions a row attends to, in (0,1]; 0 = 0.2, and 0.1 when
                              decoding (default); 1 = full */
    int32_t attention_buckets; /* pairs of scales for the estimate: 1 or 9; 0 = 9 (default) */
    bool no_head_ratios;       /* all heads get the same share, whatever their importance (default false) */
    int32_t attention_share;   /* neighbouring rows, and with them the query heads of a KV head, that share a
                                  selection, 1..8; -1 = every row   and head has its own; 0 = 4, or 8 where a KV
                                  head has one query head (default) */
    int32_t attention_pool; /* where they share: query heads that are estimated as one, their queries added; 0
                               = 2 (default) */
    bool attention_whole;   /* where they share: a launch estimates all positions, as on a device apart, not a
                               part that fits the cache;   the same bits (default false) */
    int32_t attention_threshold; /* chunks of the prompt that end before so many tokens attend in full; 1 =
                                    none; 0 = shadow: where it begins to pay, as tern bench --tune measured
                                    it, or 512; baselines: none (default) */
    bool attention_check;    /* also find the exact largest scores, for tern_stats; slow (default false) */
    const char *weights;     /* packages: weights of fewer than 8 bits are unpacked once to "tiles", or stay
                                "packed" in memory, each     product unpacking what it reads (less memory, quicker
                                plain decoding, slower verification of drafts);     NULL = tiles (default) */
    uint64_t npu_vtcm_bytes; /* device "hexagon": what weights are staged in, 16 KiB to 8 MiB; 0 = 8 MiB, as a
                                Hexagon v73 has (default) */
    bool npu_apart; /* device "host": works on threads of its own (npu_threads), as silicon of its own would,
                       not on the lanes' (default false) */
    const char *attention_pipeline; /* attention "shadow": estimate, selection and attention as tasks of their
                                       own for every head, planned and overlapped, or behind each other in
                                       cache: "on", "off", "auto"; NULL = auto: on where the device has
                                       silicon of its own (default); the same bits */
    const char *attention_plan;     /* how they are planned: "paper", or what to leave out of it, "in-order",
                                       "no-fusion", "no-overlap",     comma-separated; NULL = paper (default) */
    bool attention_decode; /* packages, attention "full" or "shadow": decoding attends sparsely as well, rows
                              that see attention_threshold positions (0 = 2048); a row attends to 256 at least
                              (default false) */
} tern_options;

TERN_API void tern_options_defaults(tern_options *o);

/* Open a GGUF file, a Hugging Face folder (float path) or a .tern package (INT8 device). On failure *out is
 * NULL.
 * The path is opened once: whoever renames another file over it changes nothing for this engine. A float model is
 * mapped while it is opened, and a package as long as it is open with load "mmap". From the first mapping on the
 * process has a handler for SIGBUS: where a mapped file was made shorter by others, the call that reads it returns
 * TERN_E_IO instead of ending the process. The handler passes on every other SIGBUS to the one it found. Copying over
 * a package that is in use changes its weights; put the new one beside it and rename. */
TERN_API tern_status tern_engine_open(const char *path, const tern_options *opt, tern_engine **out,
                                      tern_error *err);
TERN_API void tern_engine_close(tern_engine **e);

typedef struct tern_model_info {
    const char *arch; /* "llama", "qwen2", ... owned by the engine */
    const char *name; /* model name from its metadata, or "" */
    uint64_t n_params;
    int32_t n_layers, n_embd, n_heads, n_kv_heads, d_head, n_ff, n_vocab;
    const char *scheme;    /* "float", or the package's: "llm-npu", ... */
    int32_t ctx_train;     /* longest context the model was trained for, tokens */
    uint64_t weight_bytes; /* bytes the weights take in memory */
} tern_model_info;

TERN_API void tern_engine_info(const tern_engine *e, tern_model_info *out);

/* ---- text ---------------------------------------------------------------------------------------- */

/* Tokenise text[0..n_bytes). add_special adds what the model wants around a prompt (BOS...);
 * parse_special turns the text of special tokens into their ids. Writes at most cap ids;
 * *n_ids gets the number needed, also when that is more than cap (then TERN_E_LIMIT). */
TERN_API tern_status tern_tokenize(const tern_engine *e, const char *text, size_t n_bytes, bool add_special,
                                   bool parse_special, int32_t *ids, size_t cap, size_t *n_ids,
                                   tern_error *err);

/* Bytes of one token, without a terminating zero. Returns the length; writes at most cap bytes.
 * Special tokens give their text only when `special`. A token may be part of a UTF-8 sequence. */
TERN_API size_t tern_token_bytes(const tern_engine *e, int32_t id, bool special, char *buf, size_t cap);

TERN_API bool tern_token_is_end(const tern_engine *e, int32_t id); /* end of text or end of turn */

typedef struct tern_message {
    const char *role; /* "system", "user", "assistant", or what else the template knows */
    const char *content;
} tern_message;

typedef struct tern_chat_options {
    size_t size_bytes; /* sizeof(tern_chat_options), set by tern_chat_options_defaults */
    /* JSON instead of msgs, for what a role and a text do not hold: an array of messages as OpenAI's API and
     * Hugging Face have them, with tool_calls, tool_call_id, name, reasoning_content; NULL = msgs (default) */
    const char *messages;
    const char *tools;     /* JSON array of tools; NULL = none (default) */
    const char *variables; /* JSON object of further variables of the template, such as
                                  {"enable_thinking": false}; NULL = none (default) */
    const char
        *chat_template; /* Jinja source, or chatml, llama2, llama3, mistral, gemma, phi3, zephyr; NULL =
                                  the model's (default) */
    int64_t now_s;  /* the time a template with dates tells, seconds since 1970; 0 = the present (default) */
    bool no_answer; /* end behind the last message, not where the assistant answers (default false) */
} tern_chat_options;

/* Does the model bring a chat template? */
TERN_API bool tern_has_chat_template(const tern_engine *e);

TERN_API void tern_chat_options_defaults(tern_chat_options *o);

/* The messages as a prompt: the model's chat template, ending where the assistant answers, as token ids with
 * all that belongs in front. opt may be NULL. Text of messages, tools and variables never becomes a control
 * token, whatever it spells, so that no document can end a turn or begin one. Same cap rule as tern_tokenize.
 * TERN_E_UNSUPPORTED for a model without a template, or with one that needs what tern lacks; the message names
 * it. TERN_E_INVALID for a conversation that the template refuses. */
TERN_API tern_status tern_chat_tokens(const tern_engine *e, const tern_message *msgs, size_t n_msgs,
                                      const tern_chat_options *opt, int32_t *ids, size_t cap, size_t *n_ids,
                                      tern_error *err);

/* The same as text, without the BOS token; cap and *n_bytes count bytes. To be looked at, not tokenised: in
 * one text the template's markers and what messages spell cannot be told apart. */
TERN_API tern_status tern_chat_render(const tern_engine *e, const tern_message *msgs, size_t n_msgs,
                                      char *buf, size_t cap, size_t *n_bytes, tern_error *err);

/* ---- session ------------------------------------------------------------------------------------- */

typedef struct tern_session_options {
    size_t size_bytes;
    int32_t n_ctx; /* KV cache capacity in tokens; 0 = min(4096, what the model was trained for) (default) */
    /* Drafters that tern_session_generate uses: "none", "all", "auto" (the same, what chat uses), or a
     * comma-separated list of "lookup" (n-grams of the text), "sam" (suffix automata over the text and what
     * tern_session_learn was given), "calibrated" (what the model predicted at places of the prompt: its
     * prefill then computes those), "extend" (rejected drafts once more) and "model:FILE" (a small model of
     * the same vocabulary). The text is the same with any of them, only faster. NULL = "none" (default). */
    const char *draft;
    /* A file that keeps conversations for later drafts ("sam"): every generate stores its session's tokens
     * there before it returns, safe from a crash. Several processes may use one. NULL = none (default). */
    const char *store;
    uint64_t store_bytes; /* of stored tokens: beyond it the least recently used conversations go; 0 = 64 MiB
                             (default) */
} tern_session_options;

TERN_API void tern_session_options_defaults(tern_session_options *o);
TERN_API tern_status tern_session_open(tern_engine *e, const tern_session_options *opt, tern_session **out,
                                       tern_error *err);
TERN_API void tern_session_close(tern_session **s);

/* Make prompt[0..n_tok) the session's prefix, evaluating only what is not cached.
 * On failure or cancel the session keeps a valid prefix of what it had or was given. Borrows prompt. */
TERN_API tern_status tern_session_prefill(tern_session *s, const int32_t *prompt, size_t n_tok,
                                          tern_error *err);

/* As tern_session_prefill from an empty session, giving the logits of positions from first on:
 * on_logits(user, i, logits) for i = first..n_tok-1 in order; return false to stop (TERN_E_CANCELLED). For
 * perplexity and scoring. */
TERN_API tern_status tern_session_score(tern_session *s, const int32_t *prompt, size_t n_tok, size_t first,
                                        bool (*on_logits)(void *user, size_t i, const float *logits),
                                        void *user, tern_error *err);

/* Append one token and evaluate it. */
TERN_API tern_status tern_session_step(tern_session *s, int32_t token, tern_error *err);

/* Logits after the last evaluated token: float[n_vocab], valid until the next call on the session; NULL if
 * none. */
TERN_API const float *tern_session_logits(const tern_session *s);
TERN_API size_t tern_session_length(const tern_session *s);
TERN_API int32_t tern_session_capacity(const tern_session *s);

typedef struct tern_sampling {
    size_t size_bytes;
    float temperature;     /* >= 0; 0 = greedy (default 0.8) */
    int32_t top_k;         /* 0 = off (default 40) */
    float top_p;           /* (0,1]; 1 = off (default 0.95) */
    float min_p;           /* [0,1); 0 = off (default 0.05) */
    float repeat_penalty;  /* > 0; 1 = off (default) */
    int32_t repeat_last_n; /* tokens the penalty looks back over, -1 = all (default 64) */
    uint64_t seed;         /* default 0; the same seed gives the same text */
    uint64_t reserved[4];  /* zero */
} tern_sampling;

TERN_API void tern_sampling_defaults(tern_sampling *p);

typedef struct tern_generate_options {
    size_t size_bytes;
    int32_t max_tokens; /* default 128; -1 = until the end token or a full context */
    bool ignore_end;    /* do not stop at end tokens (default false) */
    tern_sampling sampling;
    const char *const *stop; /* stop strings, NULL-terminated array, or NULL */
    /* Called for each token with the text that became complete (UTF-8 safe; may be empty).
     * logprob: log-probability of the token under the model, before sampling filters.
     * Return false to stop. */
    bool (*on_token)(void *user, int32_t token, const char *text, size_t n_bytes, float logprob);
    void *user;
    const char *draft; /* drafters of this call, as in tern_session_options; NULL = the session's (default) */
    int32_t draft_nodes; /* tokens verified in one forward, 1..32; 0 = 32 (default) */
    bool draft_eager;    /* verify as many drafts as fit, not only those that pay (default false) */
    bool no_logprobs;    /* on_token gets 0 for a log-probability: each costs an exponential per entry of the
                            vocabulary (default false) */
    /* The text keeps to a grammar: GBNF as llama.cpp has it, or the JSON of values that are valid under a JSON Schema. At
     * most one of them. It ends where the grammar ends. What of a schema cannot be held is refused by name. */
    const char *grammar;     /* NULL = none (default) */
    const char *json_schema; /* NULL = none (default) */
    const char
        *grammar_after; /* the grammar begins behind this text, and white space: "</think>" leaves a model its
                                  thoughts; NULL = at once, or "</think>" where the prompt ends with "<think>" (default) */
} tern_generate_options;

TERN_API void tern_generate_options_defaults(tern_generate_options *o);

typedef enum tern_stop_reason {
    TERN_STOP_LENGTH,
    TERN_STOP_END,
    TERN_STOP_STRING,
    TERN_STOP_CALLBACK,
    TERN_STOP_CONTEXT
} tern_stop_reason;

typedef struct tern_generate_result {
    int32_t n_tokens;
    tern_stop_reason reason;
    double decode_s; /* seconds from the first sampled token to the last */
} tern_generate_result;

/* Continue from the current logits. The generated tokens become part of the session. */
TERN_API tern_status tern_session_generate(tern_session *s, const tern_generate_options *opt,
                                           tern_generate_result *result, tern_error *err);

/* Text that later answers may copy from (documents, past answers), as tokens of this model: drafted from,
 * never evaluated. Kept until the session is closed. */
TERN_API tern_status tern_session_learn(tern_session *s, const int32_t *tokens, size_t n, tern_error *err);

/* What drafting did, since the session was opened. */
typedef struct tern_draft_stats {
    size_t size_bytes;                   /* sizeof(tern_draft_stats), set by the caller */
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
} tern_draft_stats;

TERN_API void tern_session_draft_stats(const tern_session *s, tern_draft_stats *out);

/* From any thread: the running prefill/step/generate returns TERN_E_CANCELLED soon. Cleared when it does. */
TERN_API void tern_session_cancel(tern_session *s);

/* What a session's prefills did, since it was opened. Packages only: zero for float models. */
typedef struct tern_stats {
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
} tern_stats;

TERN_API void tern_session_stats(const tern_session *s, tern_stats *out);

/* The recorded tasks as Chrome trace JSON (opens in Perfetto). TERN_E_INVALID unless opened with trace. */
TERN_API tern_status tern_session_write_trace(const tern_session *s, const char *path, tern_error *err);

/* The same as a chart of text on file descriptor fd; width 0 = 100 columns. Colours when fd is a terminal. */
TERN_API tern_status tern_session_write_gantt(const tern_session *s, int fd, int32_t width, tern_error *err);

/* Save/load tokens and KV cache. A state loads only into an engine of the same model (checked). */
TERN_API tern_status tern_session_save(const tern_session *s, const char *path, tern_error *err);
TERN_API tern_status tern_session_load(tern_session *s, const char *path, tern_error *err);

#ifdef __cplusplus
}
#endif
#endif
