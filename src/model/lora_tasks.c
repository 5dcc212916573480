/* Adapters for kinds of tasks, which the folder of Jina's third model holds beside the weights. */
#include "base/json.h"
#include "base/status.h"
#include "formats/safetensors.h"
#include "kernels/gemm_f32.h"
#include "model/arch.h"
#include "model/lora.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

/* The configuration of a folder that may hold adapters of tasks: *out is the caller's, NULL: it is none. */
static tern_status read_config(const char *path, const tn_hparams *h, json_t **out, tern_error *err) {
    char file[4096];
    struct stat sb;
    const tn_arch *arch = tn_arch_named(h->arch);
    *out = NULL;
    if (!arch || !arch->tasks || stat(path, &sb) || !S_ISDIR(sb.st_mode)) return TERN_OK;
    TN_FAIL_IF((size_t)snprintf(file, sizeof file, "%s/config.json", path) >= sizeof file, err,
               TERN_E_INVALID, "%s: path too long", path);
    return tn_json_read(file, 0, out, err);
}

static bool any_adapter(const tn_safetensors *st) {
    for (size_t i = 0; i < tn_safetensors_n_tensors(st); i++)
        if (strstr(tn_safetensors_tensor_at(st, i)->name, ".parametrizations.weight.0.lora_")) return true;
    return false;
}

/* A task's name and what its texts begin with, which the configuration must say where it says it of any. */
static tern_status read_task(const char *path, const json_t *names, const json_t *words, tn_lora_task *t,
                             tern_error *err) {
    const json_t *said;
    t->name = json_string_value(json_array_get(names, (size_t)t->i));
    TN_FAIL_IF(!t->name, err, TERN_E_FORMAT, "%s/config.json: lora_adaptations[%d] is no name", path, t->i);
    for (int32_t k = 0; k < t->i; k++) {
        const char *before = json_string_value(json_array_get(names, (size_t)k));
        TN_FAIL_IF(before && !strcmp(before, t->name), err, TERN_E_FORMAT,
                   "%s/config.json: lora_adaptations names '%.60s' twice", path, t->name);
    }
    said = words ? json_object_get(words, t->name) : NULL;
    TN_FAIL_IF(words && !json_is_string(said), err, TERN_E_FORMAT,
               "%s/config.json: task_instructions has no text for '%.60s'", path, t->name);
    t->prefix = said ? json_string_value(said) : "";
    return TERN_OK;
}

/* What is said of all: one line of error where it is not whole. */
static tern_status read_tasks(const char *path, const json_t *c, tn_lora_task *t, tern_error *err) {
    const json_t *names = json_object_get(c, "lora_adaptations"), *rank = json_object_get(c, "lora_rank"),
                 *alpha = json_object_get(c, "lora_alpha"), *words = json_object_get(c, "task_instructions");
    TN_FAIL_IF(!json_is_array(names) || !json_array_size(names), err, TERN_E_FORMAT,
               "%s: has adapters of tasks, and its config.json no list lora_adaptations that names them",
               path);
    TN_FAIL_IF(json_array_size(names) > TN_MAX_LORAS, err, TERN_E_LIMIT,
               "%s/config.json: %zu tasks; up to %d are supported", path, json_array_size(names),
               TN_MAX_LORAS);
    TN_FAIL_IF((rank && !json_is_integer(rank)) || (alpha && !json_is_number(alpha)), err, TERN_E_FORMAT,
               "%s/config.json: lora_rank and lora_alpha must be numbers", path);
    TN_FAIL_IF(words && !json_is_object(words) && !json_is_null(words), err, TERN_E_FORMAT,
               "%s/config.json: task_instructions must be an object", path);
    *t = (tn_lora_task){.n = (int32_t)json_array_size(names),
                        .rank = rank ? json_integer_value(rank) : 4,
                        .alpha = alpha ? json_number_value(alpha) : 1}; /* as the published code has them */
    TN_FAIL_IF(t->rank < 1 || t->rank > TN_LORA_RANK, err, TERN_E_FORMAT,
               "%s/config.json: lora_rank %lld: want 1 to %d", path, (long long)t->rank, TN_LORA_RANK);
    return TERN_OK;
}

static tern_status open_all(tn_ctx *ctx, const char *path, const json_t *c, const tn_safetensors *st,
                            const tn_hparams *h, const tn_program *p, tn_lora **out, int32_t *n,
                            tern_error *err) {
    tn_lora_task t;
    const json_t *words = json_object_get(c, "task_instructions");
    TN_TRY(read_tasks(path, c, &t, err));
    for (int32_t i = 0; i < t.n; i++) {
        t.i = i;
        TN_TRY(read_task(path, json_object_get(c, "lora_adaptations"), json_is_null(words) ? NULL : words, &t,
                         err));
        TN_TRY(tn_lora_read_task(ctx, st, &t, path, h, p, &out[*n], err));
        out[*n]->scale = 0;
        snprintf(out[*n]->name, sizeof out[*n]->name, "%s", out[*n]->task);
        ++*n;
    }
    return TERN_OK;
}

tern_status tn_lora_open_tasks(tn_ctx *ctx, const char *path, const tn_hparams *h, const tn_program *p,
                               tn_lora *out[TN_MAX_LORAS], int32_t *n, tern_error *err) {
    json_t *c;
    tn_safetensors *st = NULL;
    *n = 0;
    TN_TRY(read_config(path, h, &c, err));
    if (!c) return TERN_OK;
    tern_status rc = tn_safetensors_open(ctx, path, &st, err);
    if (rc == TERN_OK && any_adapter(st)) rc = open_all(ctx, path, c, st, h, p, out, n, err);
    tn_safetensors_close(&st);
    json_decref(c);
    while (rc != TERN_OK && *n) tn_lora_close(&out[--*n]);
    return rc;
}

uint64_t tn_lora_tasks_bytes(const char *path, const tn_hparams *h) {
    json_t *c;
    tn_lora_task t;
    tern_error err;
    if (read_config(path, h, &c, &err) != TERN_OK || !c) return 0;
    const bool any = json_object_get(c, "lora_adaptations") && read_tasks(path, c, &t, &err) == TERN_OK;
    json_decref(c);
    if (!any) return 0;
    const uint64_t e = (uint64_t)h->n_embd, ff = (uint64_t)h->n_ff, rank = (uint64_t)t.rank,
                   panels =
                       (3 * rank + TN_PANEL_N - 1) / TN_PANEL_N * TN_PANEL_N, /* A's rows of Q, K and V */
        layer = panels * (3 * e + ff) + rank * (5 * e + ff);
    return (uint64_t)t.n * sizeof(float) *
           ((uint64_t)h->n_layers * layer + rank * ((uint64_t)h->n_vocab + e) + e);
}
