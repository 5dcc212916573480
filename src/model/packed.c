#include "model/packed.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* ---- the configuration ------------------------------------------------------------------------------- */

static bool one_of(const char *key, const char *const *list) {
    for (; *list; list++)
        if (!strcmp(key, *list)) return true;
    return false;
}

static tern_status read_sizes(const json_t *o, const char *file, int32_t *bits, uint64_t *group,
                              tern_error *err) {
    const json_t *b = json_object_get(o, "bits"), *g = json_object_get(o, "group_size");
    if (b) {
        const json_int_t v = json_integer_value(b);
        TN_FAIL_IF(v < 2 || v > 8 || v == 7, err, TERN_E_UNSUPPORTED,
                   "%s: 'bits' of its quantisation is %lld, which is not read", file, (long long)v);
        *bits = (int32_t)v;
    }
    if (g) {
        const json_int_t v = json_integer_value(g);
        TN_FAIL_IF((v < 1 && v != -1) || v > 1 << 24, err, TERN_E_FORMAT,
                   "%s: 'group_size' of its quantisation is %lld", file, (long long)v);
        *group = v < 0 ? UINT64_MAX : (uint64_t)v;
    }
    return TERN_OK;
}

/* Keys that only say how the numbers were found, or by which kernels they are multiplied. */
static const char *const gptq_idle[] = {"quant_method",
                                        "bits",
                                        "group_size",
                                        "desc_act",
                                        "sym",
                                        "checkpoint_format",
                                        "damp_percent",
                                        "damp_auto_increment",
                                        "true_sequential",
                                        "static_groups",
                                        "model_name_or_path",
                                        "model_file_base_name",
                                        "model_seqlen",
                                        "block_name_to_quantize",
                                        "module_name_preceding_first_block",
                                        "modules_in_block_to_quantize",
                                        "dataset",
                                        "tokenizer",
                                        "batch_size",
                                        "pad_token_id",
                                        "use_exllama",
                                        "disable_exllama",
                                        "exllama_config",
                                        "max_input_length",
                                        "cache_block_outputs",
                                        "use_cuda_fp16",
                                        "backend",
                                        "meta",
                                        "quantizer",
                                        "lm_head",
                                        "mse",
                                        "act_group_aware",
                                        NULL};
static const char *const awq_idle[] = {"quant_method",    "bits",           "group_size",
                                       "version",         "zero_point",     "modules_to_not_convert",
                                       "backend",         "do_fuse",        "fuse_max_seq_len",
                                       "modules_to_fuse", "exllama_config", NULL};
static const char *const mlx_idle[] = {"group_size", "bits", "mode", NULL};

static tern_status refuse(const char *file, const char *key, tern_error *err) {
    return tn_fail(err, TERN_E_UNSUPPORTED, "%s: '%.60s' of 'quantization_config' is not supported", file,
                   key);
}

static tern_status known_keys(const json_t *q, const char *const *idle, const char *file, bool modules,
                              tern_error *err) {
    const char *key;
    const json_t *v;
    json_object_foreach((json_t *)(uintptr_t)q, key, v) {
        const bool nothing =
            json_is_null(v) || json_is_false(v) || (json_is_object(v) && !json_object_size(v));
        const bool module = modules && (json_is_object(v) || json_is_boolean(v));
        if (!nothing && !module && !one_of(key, idle) &&
            !(tn_json_is_word(q, key, "int32") && !strcmp(key, "pack_dtype")))
            return refuse(file, key, err);
    }
    return TERN_OK;
}

static tern_status read_gptq(const json_t *q, const char *file, tn_packing_plan *p, tern_error *err) {
    const json_t *format = json_object_get(q, "checkpoint_format");
    TN_TRY(known_keys(q, gptq_idle, file, false, err));
    p->kind = TN_PACKING_GPTQ;
    p->stored_less = !tn_json_is_word(q, "checkpoint_format", "gptq_v2");
    p->ordered = json_is_true(json_object_get(q, "desc_act"));
    if (format && !json_is_null(format) && p->stored_less && !tn_json_is_word(q, "checkpoint_format", "gptq"))
        return refuse(file, "checkpoint_format", err);
    return TERN_OK;
}

static tern_status read_awq(const json_t *q, const char *file, tn_packing_plan *p, tern_error *err) {
    const json_t *told = json_object_get(q, "version");
    const char *version = json_string_value(told);
    const json_t *zero = json_object_get(q, "zero_point");
    TN_TRY(known_keys(q, awq_idle, file, false, err));
    p->kind = TN_PACKING_AWQ;
    if (told && !json_is_null(told) && (!version || (strcmp(version, "gemm") && strcmp(version, "GEMM"))))
        return refuse(file, "version", err);
    if (zero && !json_is_true(zero)) return refuse(file, "zero_point", err);
    return TERN_OK;
}

static bool says(const json_t *v) { return v && !json_is_null(v) && !json_is_false(v); }

bool tn_packing_told(const json_t *config) {
    return says(json_object_get(config, "quantization")) ||
           says(json_object_get(config, "quantization_config"));
}

tern_status tn_packing_hf(const json_t *config, bool ternary, const char *file, tn_packing_plan *out,
                          tern_error *err) {
    const json_t *mlx_q = json_object_get(config, "quantization"),
                 *other = json_object_get(config, "quantization_config"), *q = says(mlx_q) ? mlx_q : other;
    *out = (tn_packing_plan){.group = UINT64_MAX};
    /* one of the two says how weights are to be read; converters for MLX write it under both names */
    TN_FAIL_IF(says(mlx_q) && (!json_is_object(mlx_q) || ternary || json_object_get(other, "quant_method")),
               err, TERN_E_UNSUPPORTED, "%s: 'quantization' is not supported%s", file,
               json_is_object(mlx_q) ? " beside another 'quantization_config'" : " in this form");
    if (!says(q) || ternary) return TERN_OK;
    const char *method = json_string_value(json_object_get(q, "quant_method"));
    const bool mlx = !method && json_object_get(q, "bits") && json_object_get(q, "group_size");
    TN_FAIL_IF(!method && !mlx, err, TERN_E_UNSUPPORTED, "%s: 'quantization_config' is not supported", file);
    TN_TRY(read_sizes(q, file, &out->bits, &out->group, err));
    if (mlx) {
        out->kind = TN_PACKING_MLX;
        out->of = q;
        if (json_object_get(q, "mode") && !tn_json_is_word(q, "mode", "affine"))
            return refuse(file, "mode", err);
        return known_keys(q, mlx_idle, file, true, err);
    }
    if (!strcmp(method, "gptq")) TN_TRY(read_gptq(q, file, out, err));
    else if (!strcmp(method, "awq")) TN_TRY(read_awq(q, file, out, err));
    else
        return tn_fail(
            err, TERN_E_UNSUPPORTED,
            "%s: its weights are packed by '%.40s' ('quant_method'), which is not read; gptq, awq and "
            "MLX's are",
            file, method);
    TN_FAIL_IF(!out->bits, err, TERN_E_FORMAT, "%s: 'bits' of 'quantization_config' is missing", file);
    TN_FAIL_IF(out->kind == TN_PACKING_AWQ && out->bits != 4, err, TERN_E_UNSUPPORTED,
               "%s: 'bits' of its quantisation is %d, which is not read of AWQ", file, out->bits);
    return TERN_OK;
}

/* ---- tensors ------------------------------------------------------------------------------------------ */

typedef struct making {
    const tn_packing_plan *plan;
    const char *file;
    tn_safetensors *st;
    tn_packed *made;
    size_t n_made;
    bool *gone;
    tern_error *err;
} making;

/* The length of a name without its ending; 0: it has another. */
static size_t module_of(const char *name, const char *ending) {
    const size_t n = strlen(name), m = strlen(ending);
    return n > m && !strcmp(name + n - m, ending) ? n - m : 0;
}

/* A tensor of the module; it is gone then. */
static const tn_tensor *take(making *m, const char *name, size_t n_module, const char *ending) {
    char of[400];
    if ((size_t)snprintf(of, sizeof of, "%.*s%s", (int)n_module, name, ending) >= sizeof of) return NULL;
    const tn_tensor *t = tn_safetensors_tensor(m->st, of);
    if (t) m->gone[t - tn_safetensors_tensor_at(m->st, 0)] = true;
    return t;
}

/* MLX: bits and groups of one module. */
static tern_status sizes_of(making *m, const char *name, size_t n_module, tn_packed *p) {
    char module[400];
    snprintf(module, sizeof module, "%.*s", (int)n_module, name);
    const json_t *own = m->plan->of ? json_object_get(m->plan->of, module) : NULL;
    if (!json_is_object(own)) return TERN_OK;
    const char *key;
    const json_t *v;
    json_object_foreach((json_t *)(uintptr_t)own, key, v) {
        if (!one_of(key, mlx_idle)) return refuse(m->file, key, m->err);
    }
    if (json_object_get(own, "mode") && !tn_json_is_word(own, "mode", "affine"))
        return refuse(m->file, "mode", m->err);
    return read_sizes(own, m->file, &p->bits, &p->group, m->err);
}

/* The module whose tensor t is; others are left as they are. */
static tern_status make(making *m, const tn_tensor *t) {
    const bool mlx = m->plan->kind == TN_PACKING_MLX;
    const size_t n = module_of(t->name, mlx ? ".scales" : ".qweight");
    if (!n) return TERN_OK;
    tn_packed *p = &m->made[m->n_made];
    *p = (tn_packed){.kind = m->plan->kind,
                     .bits = m->plan->bits,
                     .group = m->plan->group,
                     .zero_plus = m->plan->stored_less};
    const tn_tensor *q = take(m, t->name, n, mlx ? ".weight" : ".qweight"),
                    *scales = take(m, t->name, n, ".scales"),
                    *zeros = take(m, t->name, n, mlx ? ".biases" : ".qzeros"),
                    *indices = m->plan->kind == TN_PACKING_GPTQ ? take(m, t->name, n, ".g_idx") : NULL;
    TN_FAIL_IF(!q || !scales || !zeros || (m->plan->ordered && !indices), m->err, TERN_E_FORMAT,
               "%s: beside %s there is no %s", t->file, t->name,
               !q        ? ".weight"
               : !scales ? ".scales"
               : !zeros  ? (mlx ? ".biases" : ".qzeros")
                         : ".g_idx, which 'desc_act' wants");
    p->q = *q, p->scales = *scales, p->zeros = *zeros;
    if (indices) p->indices = *indices;
    if (mlx) TN_TRY(sizes_of(m, t->name, n, p));
    TN_TRY(tn_packed_check(p, m->err));
    m->n_made++;
    return TERN_OK;
}

/* Modules that MLX's configuration names are there: another word is no module, and might mean anything. */
static tern_status check_modules(const making *m) {
    const char *key;
    const json_t *v;
    if (!m->plan->of) return TERN_OK;
    json_object_foreach((json_t *)(uintptr_t)m->plan->of, key, v) {
        char name[400];
        const bool fits = (size_t)snprintf(name, sizeof name, "%s.weight", key) < sizeof name;
        if ((json_is_object(v) || json_is_true(v)) && !(fits && tn_safetensors_tensor(m->st, name)))
            return refuse(m->file, key, m->err);
    }
    return TERN_OK;
}

static void tell(const making *m, char *text, size_t cap) {
    const tn_packing_plan *p = m->plan;
    int n = snprintf(text, cap, "%s, %d bits", tn_packing_name(p->kind), p->bits);
    if (p->group != UINT64_MAX && n > 0 && (size_t)n < cap)
        snprintf(text + n, cap - (size_t)n, " in groups of %" PRIu64, p->group);
}

tern_status tn_packing_apply(tn_ctx *ctx, const tn_packing_plan *plan, const char *file, tn_safetensors *st,
                             char *text, size_t cap, tern_error *err) {
    const size_t n = tn_safetensors_n_tensors(st);
    if (plan->kind == TN_PACKING_NONE || !n) return TERN_OK;
    making m = {.plan = plan, .file = file, .st = st, .err = err};
    m.made = tn_calloc(ctx, TN_MEM_OTHER, n, sizeof *m.made);
    m.gone = tn_calloc(ctx, TN_MEM_OTHER, n, sizeof *m.gone);
    tern_status done = m.made && m.gone
                           ? check_modules(&m)
                           : tn_fail(err, TERN_E_MEMORY, "%s: no memory for %zu tensors", file, n);
    for (size_t i = 0; i < n && done == TERN_OK; i++) done = make(&m, tn_safetensors_tensor_at(st, i));
    if (done == TERN_OK && !m.n_made)
        done = tn_fail(err, TERN_E_FORMAT,
                       "%s: 'quantization_config' tells of packed weights, and there are none", file);
    if (done == TERN_OK) tell(&m, text, cap);
    if (done == TERN_OK) done = tn_safetensors_replace(st, m.gone, m.made, m.n_made, err);
    else tn_free(ctx, m.made);
    tn_free(ctx, m.gone);
    return done;
}
