/* tern.h - the public C interface of tern, an on-device LLM inference engine.
 *
 * engine:  an opened model. Immutable after open, may be shared by threads, must outlive its sessions.
 * session: one mutable token timeline over an engine. Owns KV cache and logits. One thread at a time;
 *          only tern_session_cancel may be called from another thread.
 *
 * Every function that can fail returns a tern_status and, where it takes `err`, fills it with one clear line
 * (err may be NULL). The library never exits and never prints. Of
 * the process it keeps one thing: a handler of SIGBUS, installed with the first file that is mapped, which
 * reads zeros where such a file has shrunk and passes every other fault on to the handler of before.
 *
 * NULL: any pointer may be NULL. A function that returns a tern_status then returns TERN_E_INVALID, unless
 * NULL has a meaning that is told there; others return 0, NULL or false, or do nothing.
 *
 * Sizes: structs grow at their end, so every call is told how large the caller's struct is, and nothing is
 * read or written after that. The macros below say sizeof; other languages call the functions with the
 * size of their own declaration. A size smaller than the first version's is refused. A struct larger than
 * this library's is accepted when what this library does not know is zero. tern_error, tern_message,
 * tern_sampling and tern_generate_result never change.
 *
 * This is binary interface 1 (libtern.so.1): within it functions and fields are added, none is changed or
 * removed, and abi/libtern.abi, which the tests compare with, says so. */
#ifndef TERN_H
#define TERN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(_WIN32) && defined(TERN_BUILD)
#define TERN_API __declspec(dllexport)
#elif defined(_WIN32) && !defined(TERN_STATIC)
#define TERN_API __declspec(dllimport)
#elif defined(_WIN32)
#define TERN_API
#else
#define TERN_API __attribute__((visibility("default")))
#endif

#define TERN_VERSION_MAJOR 0
#define TERN_VERSION_MINOR 1
#define TERN_VERSION_PATCH 0
#define TERN_VERSION_NUMBER (TERN_VERSION_MAJOR * 10000 + TERN_VERSION_MINOR * 100 + TERN_VERSION_PATCH)
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
TERN_API uint32_t tern_version_number(void); /* of the library: TERN_VERSION_NUMBER of its header */
TERN_API const char *tern_status_text(tern_status s);

/* ---- host hooks ---------------------------------------------------------------------------------- */

typedef enum tern_log_level { TERN_LOG_ERROR, TERN_LOG_WARN, TERN_LOG_INFO, TERN_LOG_DEBUG } tern_log_level;

/* Hooks are copied at open and must stay callable, from any thread, until the engine is closed.
 * alloc returns memory aligned to `align` (a power of two) or NULL; release gets what alloc returned. */
typedef struct tern_hooks {
    size_t size_bytes; /* set by tern_hooks_defaults */
    void *(*alloc)(void *user, size_t n_bytes, size_t align);
    void (*release)(void *user, void *p);
    void (*log)(void *user, tern_log_level level, const char *line);
    /* Progress of opening, as stage "text" of cutting more than 256 KiB of text into tokens, and as stage
     * "prompt" of prompts that take more than one chunk: fraction in [0,1]. Return false to cancel (the
     * call then fails with TERN_E_CANCELLED). */
    bool (*progress)(void *user, const char *stage, double fraction);
    void *user;
} tern_hooks;

TERN_API tern_status tern_hooks_init(tern_hooks *h, size_t size_bytes);
#define tern_hooks_defaults(h) tern_hooks_init((h), sizeof *(h))

/* ---- engine -------------------------------------------------------------------------------------- */

typedef struct tern_engine tern_engine;
typedef struct tern_session tern_session;
typedef struct tern_answer tern_answer;
typedef struct tern_grammar tern_grammar;

/* How a model is opened and used, by name: threads, attention, temp... `tern help set` and
 * docs/reference/cli.md list the names with types, ranges and defaults. Values are text, as on the command
 * line ("4", "on", "shadow"). An engine copies what it needs: options may be freed after the call. */
typedef struct tern_options tern_options;

TERN_API tern_status tern_options_new(tern_options **out, tern_error *err);
TERN_API void tern_options_free(tern_options **o);

/* TERN_E_INVALID for a name or value that does not exist, saying which do. The text is copied. */
TERN_API tern_status tern_options_set(tern_options *o, const char *name, const char *value, tern_error *err);

/* The value as text, without a terminating zero; empty where the default is chosen later. Same cap rule as
 * tern_tokenize. */
TERN_API tern_status tern_options_get(const tern_options *o, const char *name, char *buf, size_t cap,
                                      size_t *n_bytes, tern_error *err);

/* Copied; NULL for hooks = malloc/free, no log, no progress (default). */
TERN_API tern_status tern_options_set_hooks(tern_options *o, const tern_hooks *hooks, tern_error *err);

/* Open a GGUF file, a Hugging Face folder (float path) or a .tern package (INT8 device). On failure *out
 * is NULL. What path names is what is opened: the packages that `tern run` and `tern serve` make by
 * themselves (tern cache) take no file's place here; `package` of tern_model_info tells. The path is opened once: whoever renames another file over it changes nothing for this engine.
 * A float model is mapped while it is opened, and a package as long as it is open with load "mmap". From
 * the first mapping on the process has a handler for SIGBUS: where a mapped file was made shorter by
 * others, the call that reads it returns TERN_E_IO instead of ending the process. The handler passes on
 * every other SIGBUS to the one it found. Copying over a package that is in use changes its weights; put
 * the new one beside it and rename. */
TERN_API tern_status tern_engine_open(const char *path, const tern_options *opt, tern_engine **out,
                                      tern_error *err);
/* The same from a file descriptor of a GGUF file or a package, for apps that are handed one. The
 * descriptor is duplicated: the caller may close its own. The file's position is not used. */
TERN_API tern_status tern_engine_open_fd(int fd, const tern_options *opt, tern_engine **out, tern_error *err);
TERN_API void tern_engine_close(tern_engine **e);

/* What a model will take, read from its header and shapes; nothing is loaded. */
typedef struct tern_estimate {
    char arch[32];
    uint64_t weight_bytes; /* weights as they will lie in memory */
    uint64_t kv_bytes;     /* keys and values of one session of n_ctx tokens */
    uint64_t work_bytes;   /* about what a session computes in, with the process's own code and tables */
    int32_t n_ctx;         /* the options' ctx-size, or its default */
} tern_estimate;

/* opt as for tern_engine_open. Fails as opening would when header or shapes are wrong or unsupported. */
TERN_API tern_status tern_engine_estimate_sized(const char *path, const tern_options *opt, tern_estimate *out,
                                                size_t size_bytes, tern_error *err);
#define tern_engine_estimate(path, opt, out, err)                                                            \
    tern_engine_estimate_sized((path), (opt), (out), sizeof *(out), (err))

typedef struct tern_model_info {
    const char *arch; /* "llama", "qwen2", ... owned by the engine */
    const char *name; /* model name from its metadata, or "" */
    uint64_t n_params;
    int32_t n_layers, n_embd, n_heads, n_kv_heads, d_head, n_ff, n_vocab;
    const char *scheme;    /* "float", or the package's: "llm-npu", ... */
    int32_t ctx_train;     /* longest context the model was trained for, tokens */
    uint64_t weight_bytes; /* bytes the weights take in memory */
    bool package;          /* a .tern package was opened; else the model's own file */
    bool embeds; /* it reads texts as a whole, makes vectors or scores of them, and does not write */
} tern_model_info;

TERN_API tern_status tern_engine_info_sized(const tern_engine *e, tern_model_info *out, size_t size_bytes);
#define tern_engine_info(e, out) tern_engine_info_sized((e), (out), sizeof *(out))

/* The model's hyperparameters, one by one: the name of number i, static, with its value as text in buf
 * (n_bytes with the terminating zero; cut if longer); NULL after the last. Numbers as C prints them, with
 * commas between where layers differ, layer kinds as a letter each. */
TERN_API const char *tern_engine_property(const tern_engine *e, size_t i, char *buf, size_t n_bytes);

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

typedef enum tern_special_token {
    TERN_TOKEN_BOS, /* begins a text */
    TERN_TOKEN_EOS, /* ends it */
    TERN_TOKEN_EOT  /* ends a turn */
} tern_special_token;

/* Its id; -1: the model has none. */
TERN_API int32_t tern_token_special(const tern_engine *e, tern_special_token which);

typedef struct tern_message {
    const char *role; /* "system", "user", "assistant", or what else the template knows */
    const char *content;
} tern_message;

typedef struct tern_chat_options {
    size_t size_bytes; /* sizeof(tern_chat_options), set by tern_chat_options_defaults */
    /* JSON instead of msgs, for what a role and a text do not hold: an array of messages as OpenAI's API
     * and Hugging Face have them, with tool_calls, tool_call_id, name, reasoning_content; NULL = msgs
     * (default) */
    const char *messages;
    const char *tools;     /* JSON array of tools; NULL = none (default) */
    const char *variables; /* JSON object of further variables of the template, such as
                                  {"enable_thinking": false}; NULL = none (default) */
    const char
        *chat_template; /* Jinja source, or chatml, llama2, llama3, mistral, gemma, phi3, zephyr; NULL =
                                  the model's (default) */
    int64_t now_s;  /* the time a template with dates tells, seconds since 1970; 0 = the present (default) */
    bool no_answer; /* end after the last message, not where the assistant answers (default false) */
} tern_chat_options;

/* Does the model bring a chat template? */
TERN_API bool tern_has_chat_template(const tern_engine *e);

TERN_API tern_status tern_chat_options_init(tern_chat_options *o, size_t size_bytes);
#define tern_chat_options_defaults(o) tern_chat_options_init((o), sizeof *(o))

/* The messages as a prompt: the model's chat template, ending where the assistant answers, as token ids
 * with all that belongs in front. opt may be NULL. Text of messages, tools and variables never becomes a
 * control token, whatever it spells, so that no document can end a turn or begin one. Same cap rule as
 * tern_tokenize. TERN_E_UNSUPPORTED for a model without a template, or with one that needs what tern
 * lacks; the message names it. TERN_E_INVALID for a conversation that the template refuses. */
TERN_API tern_status tern_chat_tokens(const tern_engine *e, const tern_message *msgs, size_t n_msgs,
                                      const tern_chat_options *opt, int32_t *ids, size_t cap, size_t *n_ids,
                                      tern_error *err);

/* The same as text, without the BOS token; cap and *n_bytes count bytes. To be looked at, not tokenised: in
 * one text the template's markers and what messages spell cannot be told apart. */
TERN_API tern_status tern_chat_render(const tern_engine *e, const tern_message *msgs, size_t n_msgs,
                                      char *buf, size_t cap, size_t *n_bytes, tern_error *err);

/* ---- session ------------------------------------------------------------------------------------- */

typedef struct tern_session_options {
    size_t size_bytes; /* set by tern_session_options_defaults */
    int32_t n_ctx; /* KV cache capacity in tokens; 0 = min(4096, what the model was trained for) (default) */
    /* Drafters that tern_session_generate uses: "none", "all", "auto" (the same, what chat uses), or a
     * comma-separated list of "lookup" (n-grams of the text), "sam" (suffix automata over the text and what
     * tern_session_learn was given), "calibrated" (what the model predicted at places of the prompt: its
     * prefill then computes those), "extend" (rejected drafts once more), "mtp" (the model's own layer that
     * guesses one token further; with "all" and "auto" where it has one), "head" (a head trained to draft for
     * the model, option draft-head; with "all" and "auto" where there is one) and "model:FILE" (a small model
     * of the same vocabulary). The text is the same with any of them, only faster. NULL = "none" (default). */
    const char *draft;
    /* A file that keeps conversations for later drafts ("sam"): every generate stores its session's tokens
     * there before it returns, safe from a crash. Several processes may use one. A program that links
     * libtern.so alone needs libtern-store.so.1 beside it, which brings SQLite. NULL = none (default). */
    const char *store;
    uint64_t store_bytes; /* of stored tokens: beyond it the least recently used conversations go; 0 = 64 MiB
                             (default) */
} tern_session_options;

TERN_API tern_status tern_session_options_init(tern_session_options *o, size_t size_bytes);
#define tern_session_options_defaults(o) tern_session_options_init((o), sizeof *(o))

TERN_API tern_status tern_session_open(tern_engine *e, const tern_session_options *opt, tern_session **out,
                                       tern_error *err);
TERN_API void tern_session_close(tern_session **s);

/* The name of adapter i of those that the option lora opened with the engine, owned by the engine; NULL
 * after the last. */
TERN_API const char *tern_engine_lora(const tern_engine *e, size_t i);

/* The task that adapter i was learned for, where its file says one (jina-embeddings-v3: "retrieval.query"): sessions have it
 * when tern_session_lora names it, and texts of the task begin with *prefix ("": as they are). Owned by the engine. NULL:
 * it is for no task, or there is no such adapter. */
TERN_API const char *tern_engine_lora_task(const tern_engine *e, size_t i, const char **prefix);

/* Which adapters the session's text is read with from now on: "NAME[:SCALE],...", "none" for the model as
 * it is, or NULL for those that the engine takes by itself, which a new session has (all whose scale is
 * not 0; of those for a task none whose scale was not said). No weights are moved. The session forgets its
 * text where they are others than before.
 * TERN_E_INVALID names the adapters that there are. */
TERN_API tern_status tern_session_lora(tern_session *s, const char *adapters, tern_error *err);

/* Make prompt[0..n_tok) the session's prefix, evaluating only what is not cached.
 * On failure or cancel the session keeps a valid prefix of what it had or was given. Borrows prompt. */
TERN_API tern_status tern_session_prefill(tern_session *s, const int32_t *prompt, size_t n_tok,
                                          tern_error *err);

/* ---- pictures: models with an encoder (option mmproj, or the mmproj file beside the model) ---- */

/* A picture's pixels, upright: [height][width][3] of red, green and blue. This struct never changes. */
typedef struct tern_image {
    int32_t width, height;
    const uint8_t *rgb;
} tern_image;

TERN_API bool tern_engine_sees(const tern_engine *e); /* the model has an encoder of pictures */

/* Decodes the bytes of a file (PNG, JPEG, WebP) in this process, within the limits of docs/reference/pictures.md; what
 * strangers send is better decoded in a process that may do nothing else. A program that links libtern.so alone needs
 * libtern-pictures.so.1 beside it. *out is the caller's, for tern_image_free. */
TERN_API tern_status tern_image_decode(const void *bytes, size_t n_bytes, tern_image *out, tern_error *err);
TERN_API void tern_image_free(tern_image *image); /* of tern_image_decode alone */

/* The prompt of a conversation with pictures, as tern_chat_tokens gives that of one without: where a content of
 * opt->messages is a list of parts, {"type": "image"} among them, the images stand there, in their order; without
 * opt->messages they stand in front of the last message's text. Views that are not known are encoded, and the session holds
 * their rows until it is told of other pictures: ids from n_vocab on are rows, to be given to tern_session_prefill. Equal
 * pictures have equal ids. Same cap rule as tern_tokenize; what does not fit is not encoded. */
TERN_API tern_status tern_session_look(tern_session *s, const tern_message *msgs, size_t n_msgs,
                                       const tern_chat_options *opt, const tern_image *images,
                                       size_t n_images, int32_t *ids, size_t cap, size_t *n_ids,
                                       tern_error *err);

/* As tern_session_prefill from an empty session, giving the logits of positions from first on:
 * on_logits(user, i, logits) for i = first..n_tok-1 in order; return false to stop (TERN_E_CANCELLED). For
 * perplexity and scoring. */
TERN_API tern_status tern_session_score(tern_session *s, const int32_t *prompt, size_t n_tok, size_t first,
                                        bool (*on_logits)(void *user, size_t i, const float *logits),
                                        void *user, tern_error *err);

/* Append one token and evaluate it. */
TERN_API tern_status tern_session_step(tern_session *s, int32_t token, tern_error *err);

/* Forget all but the first n_tok tokens. The logits are gone then: the next prefill evaluates at least one
 * token. TERN_E_LIMIT when there are fewer tokens; TERN_E_UNSUPPORTED, and nothing forgotten, where a
 * model's state cannot go back to that position. */
TERN_API tern_status tern_session_truncate(tern_session *s, size_t n_tok, tern_error *err);

/* dst gets the tokens, keys, values and logits of src, another session of the same engine, so that both
 * can go on from there. On failure dst is as before. What either drafts from stays its own. */
TERN_API tern_status tern_session_copy(tern_session *dst, const tern_session *src, tern_error *err);

/* Logits after the last evaluated token: float[n_vocab], valid until the next call on the session; NULL if
 * none. */
TERN_API const float *tern_session_logits(const tern_session *s);
/* The k likeliest next tokens of those logits, likeliest first (of equals the smaller id), and the logarithms
 * of their probabilities over the whole vocabulary. Returns how many there are, at most k; 0 without logits.
 * tokens [k], logprobs [k]. */
TERN_API size_t tern_session_likeliest(const tern_session *s, size_t k, int32_t *tokens, float *logprobs);
TERN_API size_t tern_session_length(const tern_session *s);
/* The evaluated tokens, tern_session_length of them, valid until the next call on the session; NULL if
 * none. */
TERN_API const int32_t *tern_session_tokens(const tern_session *s);
TERN_API int32_t tern_session_capacity(const tern_session *s);

typedef struct tern_sampling {
    size_t size_bytes;     /* set by tern_sampling_defaults */
    float temperature;     /* >= 0; 0 = greedy (default 0.8) */
    int32_t top_k;         /* 0 = off (default 40) */
    float top_p;           /* (0,1]; 1 = off (default 0.95) */
    float min_p;           /* [0,1); 0 = off (default 0.05) */
    float repeat_penalty;  /* > 0; 1 = off (default) */
    int32_t repeat_last_n; /* tokens the penalty looks back over, -1 = all (default 64) */
    uint64_t seed;         /* default 0; the same seed gives the same text */
    uint64_t reserved[4];  /* zero */
} tern_sampling;

TERN_API tern_status tern_sampling_init(tern_sampling *p, size_t size_bytes);
#define tern_sampling_defaults(p) tern_sampling_init((p), sizeof *(p))

typedef struct tern_generate_options {
    size_t size_bytes;  /* set by tern_generate_options_defaults */
    int32_t max_tokens; /* default -1: until the end token or a full context */
    bool ignore_end;    /* do not stop at end tokens (default false) */
    tern_sampling sampling;
    const char *const *stop; /* stop strings, NULL-terminated array, or NULL */
    /* Called for each token with the text that became complete (UTF-8 safe; may be empty), and at the end
     * with token -1 where text was held back until then: half a character, or the beginning of a stop string.
     * logprob: log-probability of the token under the model, before sampling filters.
     * Return false to stop. */
    bool (*on_token)(void *user, int32_t token, const char *text, size_t n_bytes, float logprob);
    void *user;
    const char *draft; /* drafters of this call, as in tern_session_options; NULL = the session's (default) */
    int32_t draft_nodes; /* tokens verified in one forward, 1..32; 0 = 32 (default) */
    bool draft_eager;    /* verify as many drafts as fit, not only those that pay (default false) */
    bool no_logprobs;    /* on_token gets 0 for a log-probability: each costs an exponential per entry of the
                            vocabulary (default false) */
    /* The text keeps to a grammar: GBNF as llama.cpp has it, or the JSON of values that are valid under a
     * JSON Schema. At most one of them. It ends where the grammar ends. What of a schema cannot be held is
     * refused by name. */
    const char *grammar;     /* NULL = none (default) */
    const char *json_schema; /* NULL = none (default) */
    const char
        *grammar_after; /* the grammar begins after this text, and white space: "</think>" leaves a model its
                                  thoughts; NULL = at once, or "</think>" where the prompt ends with "<think>" (default) */
    /* Called before every draw with a copy of the model's logits, float[n_vocab]: change them, or mask a
     * token with -INFINITY. Log-probabilities stay the model's. Return false to stop. NULL = none
     * (default). */
    bool (*on_logits)(void *user, float *logits, size_t n_vocab);
    /* on_token gets the text of control tokens too, for whoever reads a model's markup ("<|python_tag|>");
     * tokens that end a turn have none (default false) */
    bool special_text;
    /* A grammar that is compiled already, in place of grammar and json_schema; borrowed until the answer has
     * ended, and by one answer at a time. NULL = none (default). */
    tern_grammar *compiled;
    /* The token that max_tokens ends with is given out and not evaluated: the session ends before it, and
     * nobody waits for a step that nothing is drawn from. For answers that do not go on (default false) */
    bool leave_last;
} tern_generate_options;

TERN_API tern_status tern_generate_options_init(tern_generate_options *o, size_t size_bytes);
#define tern_generate_options_defaults(o) tern_generate_options_init((o), sizeof *(o))

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
    double decode_s;      /* seconds from the first sampled token to the last */
    uint64_t reserved[4]; /* zero */
} tern_generate_result;

/* Continue from the current logits. The generated tokens become part of the session. */
TERN_API tern_status tern_session_generate(tern_session *s, const tern_generate_options *opt,
                                           tern_generate_result *result, tern_error *err);

/* The same in steps, so that several answers go forward together: the weights are read once for all.
 *
 * open draws the first token and gives it out; while there is more, a step evaluates it and gives out what
 * follows; close gives out what was held back and tells how it ended. opt is copied; what it points to, and
 * the session, stay until then. A session has one open answer at a time, and nothing else may change it
 * meanwhile. Each answer has the text that it would have alone. */
TERN_API tern_status tern_answer_open(tern_session *s, const tern_generate_options *opt, tern_answer **out,
                                      tern_error *err);
TERN_API bool tern_answer_more(const tern_answer *a);
enum { TERN_ANSWERS_MAX = 8 }; /* of a step */
/* One forward for answers[0..n), of different sessions of one engine, which all have more. What fails in one
 * ends that one: close tells it. TERN_E_INVALID, and nothing done, where they cannot go together. */
TERN_API tern_status tern_answers_step(tern_answer *const *answers, size_t n, tern_error *err);
/* result and err may be NULL. */
TERN_API tern_status tern_answer_close(tern_answer **a, tern_generate_result *result, tern_error *err);

/* Compiles a grammar once for many answers, by any thread: GBNF or a JSON Schema, the other NULL, as in
 * tern_generate_options. The engine outlives it. An answer that runs has it for itself. */
TERN_API tern_status tern_grammar_open(tern_engine *e, const char *gbnf, const char *json_schema,
                                       tern_grammar **out, tern_error *err);
TERN_API void tern_grammar_close(tern_grammar **g);

/* One answer in one call: opens a session, reads the messages, writes the answer piece by piece. The
 * options name what sessions and answers can be asked for (ctx-size, n-predict, temp, seed, draft...);
 * NULL = the defaults. One message whose role is NULL is plain text, not a conversation. on_text returns
 * false to stop; result may be NULL. */
TERN_API tern_status tern_complete(tern_engine *e, const tern_message *msgs, size_t n_msgs,
                                   const tern_options *opt,
                                   bool (*on_text)(void *user, const char *text, size_t n_bytes), void *user,
                                   tern_generate_result *result, tern_error *err);

/* What the options name for sessions and answers, as the structs that tern_session_open and
 * tern_session_generate take: a program that has sessions of its own need not know the names. Either
 * struct may be NULL. Texts in them are the options', which must outlive them. */
TERN_API tern_status tern_options_answer_sized(const tern_options *o, tern_session_options *session,
                                               size_t session_bytes, tern_generate_options *generate,
                                               size_t generate_bytes, tern_error *err);
#define tern_options_answer(o, session, generate, err)                                                       \
    tern_options_answer_sized((o), (session), sizeof *(session), (generate), sizeof *(generate), (err))

/* What the model makes of ids[0..n_tok) as a vector of length 1, to be compared with others by their
 * product: as its file says (of the first or last token, the mean over all), where that says nothing of the last
 * token, of a model that reads texts as a whole the mean; or with `mean` the mean, whatever the file says. The
 * session's text is replaced by them. out: float[n_embd]; TERN_E_LIMIT when cap, in floats, is less. */
TERN_API tern_status tern_session_embed(tern_session *s, const int32_t *ids, size_t n_tok, bool mean,
                                        float *out, size_t cap, tern_error *err);

/* How well a text answers a question, by a model that scores texts (a reranker): a higher number is better. ids are
 * both, as the model wants them: tern_rank_tokens. TERN_E_UNSUPPORTED of other models. The session's text is replaced. */
TERN_API tern_status tern_session_rank(tern_session *s, const int32_t *ids, size_t n_tok, float *score,
                                       tern_error *err);

/* Text that later answers may copy from (documents, past answers), as tokens of this model: drafted from,
 * never evaluated. Kept until the session is closed. */
TERN_API tern_status tern_session_learn(tern_session *s, const int32_t *tokens, size_t n, tern_error *err);

/* From any thread: the running prefill/step/generate returns TERN_E_CANCELLED soon. Cleared when it does. */
TERN_API void tern_session_cancel(tern_session *s);

/* What a session did since it was opened, as a list of counters: the name of number i, static, and its value so far;
 * NULL after the last. Times end in _s or _us, sizes in _bytes; names that begin with draft_ are of drafting,
 * the others of prompts (of packages; zero for other files). docs/reference/counters.md says what each counts.
 * Later versions may know more. */
TERN_API const char *tern_session_counter(const tern_session *s, size_t i, double *value);

/* The recorded tasks as Chrome trace JSON (opens in Perfetto). TERN_E_INVALID unless opened with trace. */
TERN_API tern_status tern_session_write_trace(const tern_session *s, const char *path, tern_error *err);

/* The same as a chart of text on file descriptor fd; width 0 = 100 columns. Colours when fd is a terminal.
 * TERN_E_UNSUPPORTED in a build with TERN_MINIMAL. */
TERN_API tern_status tern_session_write_gantt(const tern_session *s, int fd, int32_t width, tern_error *err);

/* Save/load tokens and KV cache. A state loads only into an engine of the same model (checked). */
TERN_API tern_status tern_session_save(const tern_session *s, const char *path, tern_error *err);
TERN_API tern_status tern_session_load(tern_session *s, const char *path, tern_error *err);
/* The same bytes to and from memory. write gets them in order, and returns false to stop
 * (TERN_E_CANCELLED). */
TERN_API tern_status tern_session_save_to(const tern_session *s,
                                          bool (*write)(void *user, const void *bytes, size_t n_bytes),
                                          void *user, tern_error *err);
TERN_API tern_status tern_session_load_from(tern_session *s, const void *bytes, size_t n_bytes,
                                            tern_error *err);

/* ---- packing ------------------------------------------------------------------------------------- */

typedef struct tern_pack_options {
    size_t size_bytes;       /* set by tern_pack_options_defaults */
    const tern_hooks *hooks; /* memory, log and progress, whose false cancels; NULL = none (default) */
    /* "gram" (default when NULL), "edgeflow", "llm-npu", "naive-w8a8" or "smoothquant" */
    const char *scheme;
    /* Average per weight of the layers, 1 to 8. 0 (default): 5 with edgeflow, 8 with the others but gram, which
     * takes the fewest that lose little on its calibration text. */
    float bits;
    const char
        *calibration;  /* a text file; NULL = a small text of the library's own and, with gram, what the model
                                writes by itself (default) */
    int32_t n_threads; /* 1 to 64; 0 = one per core (default) */
} tern_pack_options;

TERN_API tern_status tern_pack_options_init(tern_pack_options *o, size_t size_bytes);
#define tern_pack_options_defaults(o) tern_pack_options_init((o), sizeof *(o))

/* What a package holds. */
typedef struct tern_pack_report {
    uint64_t package_bytes, n_calibration_tokens;
    int32_t n_sites, n_outlier_sites; /* places where activations are quantised; those with an outlier path */
} tern_pack_report;

/* Quantise a GGUF file or a Hugging Face folder into a package at out, which is there whole or not at all.
 * opt and report may be NULL. TERN_E_CANCELLED when progress returned false. */
TERN_API tern_status tern_pack_sized(const char *src, const char *out, const tern_pack_options *opt,
                                     tern_pack_report *report, size_t report_bytes, tern_error *err);
#define tern_pack(src, out, opt, report, err)                                                                \
    tern_pack_sized((src), (out), (opt), (report), sizeof(tern_pack_report), (err))

#ifdef __cplusplus
}
#endif
#endif
