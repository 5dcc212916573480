/* tern.h as a caller of an earlier version has it: structs before fields were added at their end. The
 * functions are this library's. Used by old_header.c in place of tern.h. */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef int tern_status;
typedef struct tern_error {
    tern_status code;
    char message[512];
} tern_error;
typedef struct tern_engine tern_engine;
typedef struct tern_session tern_session;
typedef struct tern_options tern_options;

typedef struct tern_session_options {
    size_t size_bytes;
    int32_t n_ctx;
} tern_session_options;

typedef struct tern_sampling {
    size_t size_bytes;
    float temperature;
    int32_t top_k;
    float top_p, min_p, repeat_penalty;
    int32_t repeat_last_n;
    uint64_t seed, reserved[4];
} tern_sampling;

typedef struct tern_generate_options {
    size_t size_bytes;
    int32_t max_tokens;
    bool ignore_end;
    tern_sampling sampling;
    const char *const *stop;
    bool (*on_token)(void *user, int32_t token, const char *text, size_t n_bytes, float logprob);
    void *user;
} tern_generate_options;

typedef struct tern_generate_result {
    int32_t n_tokens;
    int reason;
    double decode_s;
    uint64_t reserved[4];
} tern_generate_result;

typedef struct tern_model_info {
    const char *arch, *name;
    uint64_t n_params;
    int32_t n_layers, n_embd, n_heads, n_kv_heads, d_head, n_ff, n_vocab;
    const char *scheme;
    int32_t ctx_train;
    uint64_t weight_bytes;
} tern_model_info;

typedef struct tern_hooks {
    size_t size_bytes;
    void *(*alloc)(void *user, size_t n_bytes, size_t align);
    void (*release)(void *user, void *p);
    void (*log)(void *user, int level, const char *line);
    bool (*progress)(void *user, const char *stage, double fraction);
    void *user;
} tern_hooks;

tern_status tern_hooks_init(tern_hooks *h, size_t size_bytes);
tern_status tern_options_new(tern_options **out, tern_error *err);
tern_status tern_options_set_hooks(tern_options *o, const tern_hooks *hooks, tern_error *err);
void tern_options_free(tern_options **o);
tern_status tern_engine_open(const char *path, const tern_options *opt, tern_engine **out, tern_error *err);
void tern_engine_close(tern_engine **e);
tern_status tern_engine_info_sized(const tern_engine *e, tern_model_info *out, size_t size_bytes);
tern_status tern_session_options_init(tern_session_options *o, size_t size_bytes);
tern_status tern_session_open(tern_engine *e, const tern_session_options *opt, tern_session **out,
                              tern_error *err);
void tern_session_close(tern_session **s);
tern_status tern_session_prefill(tern_session *s, const int32_t *prompt, size_t n_tok, tern_error *err);
int32_t tern_session_capacity(const tern_session *s);
tern_status tern_sampling_init(tern_sampling *p, size_t size_bytes);
tern_status tern_generate_options_init(tern_generate_options *o, size_t size_bytes);
tern_status tern_session_generate(tern_session *s, const tern_generate_options *opt,
                                  tern_generate_result *result, tern_error *err);
