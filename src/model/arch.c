#include "model/arch.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* A new architecture is a row here and, at most, one new operator. */
static const tn_arch table[] = {
    {.name = "llama",
     .hf = "llama",
     .gguf = "llama",
     .act = TN_ACT_SILU,
     .gated = true,
     .gguf_permuted = true},
    {.name = "mistral",
     .hf = "mistral",
     .gguf = "mistral",
     .act = TN_ACT_SILU,
     .gated = true,
     .gguf_permuted = true,
     .window = true},
    {.name = "qwen2", .hf = "qwen2", .gguf = "qwen2", .act = TN_ACT_SILU, .gated = true, .qkv_bias = true},
    {.name = "qwen3", .hf = "qwen3", .gguf = "qwen3", .act = TN_ACT_SILU, .gated = true, .qk_norm = true},
    {.name = "gemma",
     .hf = "gemma",
     .gguf = "gemma",
     .act = TN_ACT_GELU_TANH,
     .gated = true,
     .norm_plus_one = true,
     .scale_embd = true},
    {.name = "gemma2",
     .hf = "gemma2",
     .gguf = "gemma2",
     .act = TN_ACT_GELU_TANH,
     .gated = true,
     .post_norms = true,
     .norm_plus_one = true,
     .scale_embd = true,
     .window = true,
     .window_pattern = 2,
     .hf_names = {[TN_W_ATTN_POST_NORM] = "post_attention_layernorm.weight",
                  [TN_W_FFN_NORM] = "pre_feedforward_layernorm.weight",
                  [TN_W_FFN_POST_NORM] = "post_feedforward_layernorm.weight"}},
    {.name = "phi2",
     .hf = "phi",
     .gguf = "phi2",
     .norm = TN_NORM_LAYER,
     .act = TN_ACT_GELU_TANH,
     .parallel_block = true,
     .biases = true,
     .hf_names = {[TN_W_O] = "self_attn.dense.weight",
                  [TN_W_O_B] = "self_attn.dense.bias",
                  [TN_W_UP] = "mlp.fc1.weight",
                  [TN_W_UP_B] = "mlp.fc1.bias",
                  [TN_W_DOWN] = "mlp.fc2.weight",
                  [TN_W_DOWN_B] = "mlp.fc2.bias",
                  [TN_W_OUT_NORM] = "model.final_layernorm.weight",
                  [TN_W_OUT_NORM_B] = "model.final_layernorm.bias"}},
    {.name = "phi3",
     .hf = "phi3",
     .gguf = "phi3",
     .act = TN_ACT_SILU,
     .gated = true,
     .window = true,
     .gguf_fused = true},
    {.name = "phonelm", .hf = "phonelm", .gguf = "phonelm", .act = TN_ACT_RELU, .gated = true},
};
enum { N_ARCHS = sizeof table / sizeof table[0] };

const tn_arch *tn_arch_by_hf(const char *model_type) {
    for (int i = 0; i < N_ARCHS; i++) {
        if (!strcmp(table[i].hf, model_type)) return &table[i];
    }
    return NULL;
}

const tn_arch *tn_arch_by_gguf(const char *name, size_t n) {
    for (int i = 0; i < N_ARCHS; i++) {
        if (strlen(table[i].gguf) == n && !memcmp(table[i].gguf, name, n)) return &table[i];
    }
    return NULL;
}

void tn_arch_list(char *buf, size_t cap) {
    size_t n = 0;
    for (int i = 0; i < N_ARCHS && n < cap; i++)
        n += (size_t)snprintf(buf + n, cap - n, "%s%s", i ? ", " : "", table[i].name);
}

/* ---- names --------------------------------------------------------------------------------------- */

static bool is_model_level(tn_role r) { return r <= TN_W_OUT_B; }

bool tn_arch_hf_name(const tn_arch *a, int layer, tn_role role, char *buf, size_t cap) {
    static const char *const names[TN_W_N_ROLES] = {
        [TN_W_EMBD] = "model.embed_tokens.weight",
        [TN_W_OUT_NORM] = "model.norm.weight",
        [TN_W_OUT_NORM_B] = "model.norm.bias",
        [TN_W_OUT] = "lm_head.weight",
        [TN_W_OUT_B] = "lm_head.bias",
        [TN_W_ATTN_NORM] = "input_layernorm.weight",
        [TN_W_ATTN_NORM_B] = "input_layernorm.bias",
        [TN_W_Q] = "self_attn.q_proj.weight",
        [TN_W_K] = "self_attn.k_proj.weight",
        [TN_W_V] = "self_attn.v_proj.weight",
        [TN_W_O] = "self_attn.o_proj.weight",
        [TN_W_Q_B] = "self_attn.q_proj.bias",
        [TN_W_K_B] = "self_attn.k_proj.bias",
        [TN_W_V_B] = "self_attn.v_proj.bias",
        [TN_W_O_B] = "self_attn.o_proj.bias",
        [TN_W_Q_NORM] = "self_attn.q_norm.weight",
        [TN_W_K_NORM] = "self_attn.k_norm.weight",
        [TN_W_FFN_NORM] = "post_attention_layernorm.weight",
        [TN_W_FFN_NORM_B] = "post_attention_layernorm.bias",
        [TN_W_GATE] = "mlp.gate_proj.weight",
        [TN_W_UP] = "mlp.up_proj.weight",
        [TN_W_DOWN] = "mlp.down_proj.weight",
        [TN_W_GATE_B] = "mlp.gate_proj.bias",
        [TN_W_UP_B] = "mlp.up_proj.bias",
        [TN_W_DOWN_B] = "mlp.down_proj.bias",
    };
    const char *name = a->hf_names[role] ? a->hf_names[role] : names[role];
    if (!name) return false;
    if (is_model_level(role)) snprintf(buf, cap, "%s", name);
    else snprintf(buf, cap, "model.layers.%d.%s", layer, name);
    return true;
}

bool tn_arch_gguf_name(int layer, tn_role role, char *buf, size_t cap) {
    static const char *const names[TN_W_N_ROLES] = {
        [TN_W_EMBD] = "token_embd.weight",
        [TN_W_OUT_NORM] = "output_norm.weight",
        [TN_W_OUT_NORM_B] = "output_norm.bias",
        [TN_W_OUT] = "output.weight",
        [TN_W_OUT_B] = "output.bias",
        [TN_W_ATTN_NORM] = "attn_norm.weight",
        [TN_W_ATTN_NORM_B] = "attn_norm.bias",
        [TN_W_Q] = "attn_q.weight",
        [TN_W_K] = "attn_k.weight",
        [TN_W_V] = "attn_v.weight",
        [TN_W_O] = "attn_output.weight",
        [TN_W_Q_B] = "attn_q.bias",
        [TN_W_K_B] = "attn_k.bias",
        [TN_W_V_B] = "attn_v.bias",
        [TN_W_O_B] = "attn_output.bias",
        [TN_W_Q_NORM] = "attn_q_norm.weight",
        [TN_W_K_NORM] = "attn_k_norm.weight",
        [TN_W_ATTN_POST_NORM] = "post_attention_norm.weight",
        [TN_W_FFN_NORM] = "ffn_norm.weight",
        [TN_W_FFN_NORM_B] = "ffn_norm.bias",
        [TN_W_GATE] = "ffn_gate.weight",
        [TN_W_UP] = "ffn_up.weight",
        [TN_W_DOWN] = "ffn_down.weight",
        [TN_W_GATE_B] = "ffn_gate.bias",
        [TN_W_UP_B] = "ffn_up.bias",
        [TN_W_DOWN_B] = "ffn_down.bias",
        [TN_W_FFN_POST_NORM] = "post_ffw_norm.weight",
    };
    if (is_model_level(role)) snprintf(buf, cap, "%s", names[role]);
    else snprintf(buf, cap, "blk.%d.%s", layer, names[role]);
    return true;
}

bool tn_arch_required(const tn_arch *a, const tn_hparams *h, tn_role role) {
    switch (role) {
    case TN_W_EMBD:
    case TN_W_OUT_NORM:
    case TN_W_ATTN_NORM:
    case TN_W_Q:
    case TN_W_K:
    case TN_W_V:
    case TN_W_O:
    case TN_W_UP:
    case TN_W_DOWN: return true;
    case TN_W_OUT: return !h->tied;
    case TN_W_GATE: return a->gated;
    case TN_W_FFN_NORM: return !a->parallel_block;
    case TN_W_Q_NORM:
    case TN_W_K_NORM: return a->qk_norm;
    case TN_W_ATTN_POST_NORM:
    case TN_W_FFN_POST_NORM: return a->post_norms;
    case TN_W_Q_B:
    case TN_W_K_B:
    case TN_W_V_B: return a->qkv_bias || a->biases;
    case TN_W_OUT_NORM_B:
    case TN_W_ATTN_NORM_B:
    case TN_W_O_B:
    case TN_W_UP_B:
    case TN_W_DOWN_B:
    case TN_W_OUT_B: return a->biases;
    default: return false;
    }
}

/* ---- what both sides share ------------------------------------------------------------------------ */

static void begin(const tn_arch *a, tn_hparams *h) {
    memset(h, 0, sizeof *h);
    snprintf(h->arch, sizeof h->arch, "%s", a->name);
    h->norm = a->norm;
    h->act = a->act;
    h->gated = a->gated;
    h->parallel_block = a->parallel_block;
    h->post_norms = a->post_norms;
    h->qk_norm = a->qk_norm;
    h->embd_scale = h->rope_mscale = 1;
    h->rope_base = 10000;
}

static tern_status finish(const tn_arch *a, const char *file, tn_hparams *h, tern_error *err) {
    const struct {
        const char *what;
        int64_t v, min, max;
    } checks[] = {
        {"layers", h->n_layers, 1, TN_MAX_LAYERS},
        {"embedding", h->n_embd, 1, 1 << 16},
        {"heads", h->n_heads, 1, 1 << 12},
        {"KV heads", h->n_kv_heads, 1, h->n_heads > 0 ? h->n_heads : 1},
        {"head size", h->d_head, 4, 512},
        {"feed-forward size", h->n_ff, 1, 1 << 18},
        {"vocabulary", h->n_vocab, 1, 1 << 22},
        {"context", h->ctx_train, 1, 1 << 24},
        {"rotated values", h->n_rot, 0, h->d_head < TN_MAX_ROT ? h->d_head : TN_MAX_ROT},
        {"window", h->window, 0, INT32_MAX},
    };
    for (size_t i = 0; i < sizeof checks / sizeof checks[0]; i++) {
        TN_FAIL_IF(checks[i].v < checks[i].min || checks[i].v > checks[i].max, err, TERN_E_FORMAT,
                   "%s: %s %lld, want %lld to %lld", file, checks[i].what, (long long)checks[i].v,
                   (long long)checks[i].min, (long long)checks[i].max);
    }
    TN_FAIL_IF(h->n_heads % h->n_kv_heads, err, TERN_E_FORMAT, "%s: %d heads do not share %d KV heads evenly",
               file, h->n_heads, h->n_kv_heads);
    TN_FAIL_IF(h->d_head % 4 || h->n_rot % 2, err, TERN_E_UNSUPPORTED,
               "%s: head size %d with %d rotated values; want multiples of 4 and 2", file, h->d_head,
               h->n_rot);
    TN_FAIL_IF(!(h->norm_eps > 0 && h->norm_eps < 1), err, TERN_E_FORMAT, "%s: norm epsilon %g", file,
               (double)h->norm_eps);
    TN_FAIL_IF(!(h->rope_base > 1 && h->rope_base < 1e12), err, TERN_E_FORMAT, "%s: rope base %g", file,
               h->rope_base);
    if (a->scale_embd) h->embd_scale = sqrtf((float)h->n_embd);
    if (h->attn_scale == 0) h->attn_scale = (float)(1 / sqrt((double)h->d_head));
    if (h->window) h->window_pattern = a->window_pattern;
    TN_FAIL_IF(!(h->attn_scale > 0 && h->attn_scale < 1e6f) ||
                   !(h->attn_soft_cap >= 0 && h->attn_soft_cap < 1e6f) ||
                   !(h->logit_soft_cap >= 0 && h->logit_soft_cap < 1e6f),
               err, TERN_E_FORMAT, "%s: attention scale %g, soft caps %g and %g", file, (double)h->attn_scale,
               (double)h->attn_soft_cap, (double)h->logit_soft_cap);
    return TERN_OK;
}

static void plain_rope(const tn_hparams *h, double out[TN_MAX_ROT / 2]) {
    for (int i = 0; i < h->n_rot / 2; i++) out[i] = pow(h->rope_base, -2.0 * i / h->n_rot);
}

static void set_rope(tn_hparams *h, const double f[TN_MAX_ROT / 2]) {
    for (int i = 0; i < h->n_rot / 2; i++) h->inv_freq[i] = h->inv_freq_long[i] = (float)f[i];
}

void tn_rope_llama3(double *f, int n, double factor, double low, double high, double orig) {
    for (int i = 0; i < n; i++) {
        double wavelength = 2 * M_PI / f[i];
        if (wavelength < orig / high) continue;
        if (wavelength > orig / low) {
            f[i] /= factor;
            continue;
        }
        double smooth = (orig / wavelength - low) / (high - low);
        f[i] = (1 - smooth) * f[i] / factor + smooth * f[i];
    }
}

/* Phi-3: per-pair factors, short up to the original context and long beyond; scores grow with the stretch. */
static void longrope(tn_hparams *h, const double *short_f, const double *long_f, int32_t orig,
                     double attn_factor) {
    double f[TN_MAX_ROT / 2];
    plain_rope(h, f);
    for (int i = 0; i < h->n_rot / 2; i++) {
        h->inv_freq[i] = (float)(f[i] / short_f[i]);
        h->inv_freq_long[i] = (float)(f[i] / long_f[i]);
    }
    h->rope_orig_ctx = orig;
    double stretch = (double)h->ctx_train / orig;
    h->rope_mscale = attn_factor > 0           ? (float)attn_factor
                     : stretch > 1 && orig > 1 ? (float)sqrt(1 + log(stretch) / log((double)orig))
                                               : 1;
}

/* ---- config.json ----------------------------------------------------------------------------------- */

typedef struct config {
    const json_t *o;
    const char *file;
    tern_error *err;
    tern_status st;
} config;

static double number(config *c, const json_t *o, const char *key, bool required, double fallback) {
    const json_t *v = json_object_get(o, key);
    if (json_is_number(v) && isfinite(json_number_value(v))) return json_number_value(v);
    if ((required || (v && !json_is_null(v))) && c->st == TERN_OK) {
        c->st =
            tn_fail(c->err, TERN_E_FORMAT, "%s: '%s' is %s", c->file, key, v ? "not a number" : "missing");
    }
    return fallback;
}

static int32_t whole(config *c, const char *key, bool required, int32_t fallback) {
    double v = number(c, c->o, key, required, fallback);
    bool in_range = v >= -1 && v <= INT32_MAX;
    if ((!in_range || v != floor(v)) && c->st == TERN_OK) {
        c->st = tn_fail(c->err, TERN_E_FORMAT, "%s: '%s' is %g, %s", c->file, key, v,
                        in_range ? "not a whole number" : "out of range");
    }
    return in_range ? (int32_t)v : -1;
}

static bool truth(const config *c, const char *key) { return json_is_true(json_object_get(c->o, key)); }

static tern_status parse_act(config *c, const tn_arch *a, tn_hparams *h) {
    const char *s = json_string_value(json_object_get(c->o, "hidden_activation"));
    if (!s) s = json_string_value(json_object_get(c->o, "hidden_act"));
    if (!s) return TERN_OK;
    static const struct {
        const char *name;
        tn_act act;
    } acts[] = {{"silu", TN_ACT_SILU},
                {"swish", TN_ACT_SILU},
                {"gelu_pytorch_tanh", TN_ACT_GELU_TANH},
                {"gelu_new", TN_ACT_GELU_TANH},
                {"gelu_fast", TN_ACT_GELU_TANH},
                {"gelu", TN_ACT_GELU_ERF},
                {"relu", TN_ACT_RELU},
                {"relu2", TN_ACT_RELU2}};
    for (size_t i = 0; i < sizeof acts / sizeof acts[0]; i++) {
        if (strcmp(s, acts[i].name)) continue;
        h->act = acts[i].act;
        if (!strcmp(a->name, "gemma") && h->act == TN_ACT_GELU_ERF)
            h->act = TN_ACT_GELU_TANH; /* Gemma 1 configs say gelu and mean tanh */
        return TERN_OK;
    }
    return tn_fail(c->err, TERN_E_UNSUPPORTED, "%s: activation '%.40s' is unknown", c->file, s);
}

static tern_status parse_factors(config *c, const json_t *o, const char *key, int n, double *out) {
    const json_t *a = json_object_get(o, key);
    TN_FAIL_IF((int)json_array_size(a) != n, c->err, TERN_E_FORMAT, "%s: rope '%s' has %zu factors, want %d",
               c->file, key, json_array_size(a), n);
    for (int i = 0; i < n; i++) {
        out[i] = json_number_value(json_array_get(a, (size_t)i));
        TN_FAIL_IF(!(out[i] > 0), c->err, TERN_E_FORMAT, "%s: rope '%s' has a factor that is not positive",
                   c->file, key);
    }
    return TERN_OK;
}

static tern_status parse_rope(config *c, tn_hparams *h) {
    const json_t *r = json_object_get(c->o, "rope_parameters"); /* transformers 5 */
    if (!json_is_object(r)) r = json_object_get(c->o, "rope_scaling");
    h->rope_base = number(c, c->o, "rope_theta", false, number(c, r, "rope_theta", false, 10000));
    double partial =
        number(c, c->o, "partial_rotary_factor", false, number(c, r, "partial_rotary_factor", false, 1));
    TN_FAIL_IF(!(partial > 0 && partial <= 1), c->err, TERN_E_FORMAT, "%s: partial_rotary_factor %g", c->file,
               partial);
    TN_TRY(c->st);
    TN_FAIL_IF(h->d_head < 4 || h->d_head > 512 || !(h->rope_base > 1), c->err, TERN_E_FORMAT,
               "%s: head size %d, rope base %g", c->file, h->d_head, h->rope_base);
    h->n_rot = (int32_t)((double)h->d_head * partial) / 2 * 2;
    TN_FAIL_IF(h->n_rot > TN_MAX_ROT, c->err, TERN_E_UNSUPPORTED,
               "%s: %d rotated values, at most %d are possible", c->file, h->n_rot, TN_MAX_ROT);
    const char *type = json_string_value(json_object_get(r, "rope_type"));
    if (!type) type = json_string_value(json_object_get(r, "type"));
    double f[TN_MAX_ROT / 2];
    plain_rope(h, f);
    int n = h->n_rot / 2;
    if (!type || !strcmp(type, "default")) {
        set_rope(h, f);
    } else if (!strcmp(type, "linear")) {
        double factor = number(c, r, "factor", true, 1);
        TN_FAIL_IF(!(factor > 0), c->err, TERN_E_FORMAT, "%s: rope factor %g", c->file, factor);
        for (int i = 0; i < n; i++) f[i] /= factor;
        set_rope(h, f);
    } else if (!strcmp(type, "llama3")) {
        double factor = number(c, r, "factor", true, 1), low = number(c, r, "low_freq_factor", true, 1),
               high = number(c, r, "high_freq_factor", true, 4),
               orig = number(c, r, "original_max_position_embeddings", true, 8192);
        TN_FAIL_IF(!(factor > 0 && low > 0 && high > low && orig > 0), c->err, TERN_E_FORMAT,
                   "%s: rope scaling of type llama3 with odd factors", c->file);
        tn_rope_llama3(f, n, factor, low, high, orig);
        set_rope(h, f);
    } else if (!strcmp(type, "longrope") || !strcmp(type, "su")) {
        double short_f[TN_MAX_ROT / 2], long_f[TN_MAX_ROT / 2];
        TN_TRY(parse_factors(c, r, "short_factor", n, short_f));
        TN_TRY(parse_factors(c, r, "long_factor", n, long_f));
        double orig = number(c, c->o, "original_max_position_embeddings", false,
                             number(c, r, "original_max_position_embeddings", false, 0));
        TN_FAIL_IF(!(orig >= 1 && orig <= h->ctx_train), c->err, TERN_E_FORMAT,
                   "%s: longrope without a sane original_max_position_embeddings", c->file);
        longrope(h, short_f, long_f, (int32_t)orig, number(c, r, "attention_factor", false, 0));
    } else {
        return tn_fail(c->err, TERN_E_UNSUPPORTED,
                       "%s: rope scaling '%.40s' is not supported (linear, llama3 and longrope are)", c->file,
                       type);
    }
    return c->st;
}

tern_status tn_arch_hparams_hf(const tn_arch *a, const json_t *o, const char *file, tn_hparams *h,
                               tern_error *err) {
    config c = {.o = o, .file = file, .err = err};
    begin(a, h);
    const char *name = json_string_value(json_object_get(o, "_name_or_path"));
    if (name) snprintf(h->name, sizeof h->name, "%s", name);
    h->n_layers = whole(&c, "num_hidden_layers", true, 0);
    h->n_embd = whole(&c, "hidden_size", true, 0);
    h->n_heads = whole(&c, "num_attention_heads", true, 1);
    h->n_kv_heads = whole(&c, "num_key_value_heads", false, h->n_heads);
    h->n_ff = whole(&c, "intermediate_size", true, 0);
    h->n_vocab = whole(&c, "vocab_size", true, 0);
    h->ctx_train = whole(&c, "max_position_embeddings", true, 0);
    h->d_head = whole(&c, "head_dim", false, h->n_heads > 0 ? h->n_embd / h->n_heads : 0);
    h->norm_eps =
        (float)number(&c, o, a->norm == TN_NORM_LAYER ? "layer_norm_eps" : "rms_norm_eps", false, 1e-5);
    h->tied = truth(&c, "tie_word_embeddings");
    h->attn_soft_cap = (float)number(&c, o, "attn_logit_softcapping", false, 0);
    h->logit_soft_cap = (float)number(&c, o, "final_logit_softcapping", false, 0);
    double q_scalar = number(&c, o, "query_pre_attn_scalar", false, 0);
    if (q_scalar > 0) h->attn_scale = (float)(1 / sqrt(q_scalar));
    if (a->window) h->window = whole(&c, "sliding_window", false, 0);
    TN_TRY(c.st);
    TN_FAIL_IF(truth(&c, "use_sliding_window") && whole(&c, "max_window_layers", false, 0) < h->n_layers, err,
               TERN_E_UNSUPPORTED, "%s: use_sliding_window on some layers only is not supported", file);
    TN_FAIL_IF(truth(&c, "qk_layernorm"), err, TERN_E_UNSUPPORTED, "%s: qk_layernorm is not supported", file);
    TN_TRY(parse_act(&c, a, h));
    TN_TRY(parse_rope(&c, h));
    return finish(a, file, h, err);
}

/* ---- GGUF ------------------------------------------------------------------------------------------ */

typedef struct keys {
    const tn_gguf *g;
    const char *prefix;
    tern_error *err;
    tern_status st;
} keys;

static const char *key_of(const keys *k, const char *tail, char buf[128]) {
    snprintf(buf, 128, "%s.%s", k->prefix, tail);
    return buf;
}

static int32_t int_key(keys *k, const char *tail, bool required, int32_t fallback) {
    char buf[128];
    int64_t v;
    if (tn_gguf_i64(k->g, key_of(k, tail, buf), &v)) return v >= -1 && v <= INT32_MAX ? (int32_t)v : -1;
    if ((required || tn_gguf_has(k->g, buf)) && k->st == TERN_OK)
        k->st = tn_fail(k->err, TERN_E_FORMAT, "%s: metadata key '%s' is missing or no whole number",
                        tn_gguf_path(k->g), buf);
    return fallback;
}

static double num_key(keys *k, const char *tail, double fallback) {
    char buf[128];
    double v;
    if (tn_gguf_f64(k->g, key_of(k, tail, buf), &v) && isfinite(v)) return v;
    if (tn_gguf_has(k->g, buf) && k->st == TERN_OK)
        k->st = tn_fail(k->err, TERN_E_FORMAT, "%s: metadata key '%s' is no finite number",
                        tn_gguf_path(k->g), buf);
    return fallback;
}

/* A tensor of per-pair factors; false when absent. One that is there but malformed fails k. */
static bool factors(keys *k, const char *name, int n, double *out) {
    const tn_tensor *t = tn_gguf_tensor(k->g, name);
    if (!t) return false;
    bool ok = t->dtype == TN_F32 && t->size_bytes == (uint64_t)n * 4;
    for (int i = 0; i < n && ok; i++) {
        float f;
        memcpy(&f, t->data + (size_t)i * 4, 4);
        ok = isfinite(f) && f > 0;
        out[i] = (double)f;
    }
    if (!ok && k->st == TERN_OK) {
        k->st = tn_fail(k->err, TERN_E_FORMAT,
                        "%s: tensor %s at offset %" PRIu64 " is %" PRIu64
                        " %s values, want %d F32, finite and positive",
                        t->file, t->name, t->off_bytes, t->dims[0], tn_dtype_name(t->dtype), n);
    }
    return ok;
}

static tern_status gguf_rope(keys *k, tn_hparams *h) {
    const char *file = tn_gguf_path(k->g), *type = NULL;
    size_t n_type = 0;
    char buf[128];
    h->rope_base = num_key(k, "rope.freq_base", 10000);
    h->n_rot = int_key(k, "rope.dimension_count", false, h->d_head);
    TN_FAIL_IF(h->n_rot < 0 || h->n_rot > TN_MAX_ROT || h->n_rot % 2 || !(h->rope_base > 1), k->err,
               TERN_E_FORMAT, "%s: %d rotated values, rope base %g", file, h->n_rot, h->rope_base);
    double f[TN_MAX_ROT / 2], short_f[TN_MAX_ROT / 2], long_f[TN_MAX_ROT / 2];
    int n = h->n_rot / 2;
    plain_rope(h, f);
    bool has_type = tn_gguf_str(k->g, key_of(k, "rope.scaling.type", buf), &type, &n_type);
    if (factors(k, "rope_factors_long.weight", n, long_f) &&
        factors(k, "rope_factors_short.weight", n, short_f)) {
        int32_t orig = int_key(k, "rope.scaling.original_context_length", true, 1);
        TN_TRY(k->st);
        TN_FAIL_IF(orig < 1 || orig > h->ctx_train, k->err, TERN_E_FORMAT,
                   "%s: longrope from a context of %d", file, orig);
        longrope(h, short_f, long_f, orig, num_key(k, "rope.scaling.attn_factor", 0));
        return k->st;
    }
    if (factors(k, "rope_freqs.weight", n, long_f)) { /* llama3 scaling, worked out by the converter */
        for (int i = 0; i < n; i++) f[i] /= long_f[i];
    } else if (has_type && n_type == 6 && !memcmp(type, "linear", 6)) {
        double factor = num_key(k, "rope.scaling.factor", 1);
        TN_FAIL_IF(!(factor > 0), k->err, TERN_E_FORMAT, "%s: rope scaling factor %g", file, factor);
        for (int i = 0; i < n; i++) f[i] /= factor;
    } else if (has_type && !(n_type == 4 && !memcmp(type, "none", 4))) {
        return tn_fail(k->err, TERN_E_UNSUPPORTED, "%s: rope scaling '%.*s' is not supported", file,
                       (int)(n_type < 40 ? n_type : 40), type);
    }
    set_rope(h, f);
    return k->st;
}

tern_status tn_arch_hparams_gguf(const tn_arch *a, const tn_gguf *g, tn_hparams *h, tern_error *err) {
    keys k = {.g = g, .prefix = a->gguf, .err = err};
    begin(a, h);
    const char *name;
    size_t n_name;
    if (tn_gguf_str(g, "general.name", &name, &n_name))
        snprintf(h->name, sizeof h->name, "%.*s", (int)(n_name < 120 ? n_name : 120), name);
    h->n_layers = int_key(&k, "block_count", true, 0);
    h->n_embd = int_key(&k, "embedding_length", true, 0);
    h->n_heads = int_key(&k, "attention.head_count", true, 1);
    h->n_kv_heads = int_key(&k, "attention.head_count_kv", false, h->n_heads);
    h->n_ff = int_key(&k, "feed_forward_length", true, 0);
    h->ctx_train = int_key(&k, "context_length", true, 0);
    h->d_head = int_key(&k, "attention.key_length", false, h->n_heads > 0 ? h->n_embd / h->n_heads : 0);
    h->norm_eps = (float)num_key(
        &k, a->norm == TN_NORM_LAYER ? "attention.layer_norm_epsilon" : "attention.layer_norm_rms_epsilon",
        1e-5);
    h->attn_soft_cap = (float)num_key(&k, "attn_logit_softcapping", 0);
    h->logit_soft_cap = (float)num_key(&k, "final_logit_softcapping", 0);
    h->attn_scale = (float)num_key(&k, "attention.scale", 0);
    /* the one model whose scale no key tells: Gemma 2 27B, known by its layers */
    if (a->post_norms && h->n_layers == 46 && h->attn_scale == 0 && h->n_heads > 0)
        h->attn_scale = (float)(1 / sqrt((double)h->n_embd / h->n_heads));
    if (a->window) h->window = int_key(&k, "attention.sliding_window", false, a->window_pattern ? 4096 : 0);
    int32_t n_experts = int_key(&k, "expert_count", false, 0);
    TN_TRY(k.st);
    TN_FAIL_IF(n_experts, err, TERN_E_UNSUPPORTED, "%s: a mixture of %d experts is not supported",
               tn_gguf_path(g), n_experts);
    h->tied = !tn_gguf_tensor(g, "output.weight");
    const tn_tensor *embd = tn_gguf_tensor(g, "token_embd.weight");
    TN_FAIL_IF(!embd, err, TERN_E_FORMAT, "%s: tensor token_embd.weight is missing", tn_gguf_path(g));
    h->n_vocab = embd->dims[0] <= INT32_MAX ? (int32_t)embd->dims[0] : -1;
    TN_TRY(gguf_rope(&k, h));
    return finish(a, tn_gguf_path(g), h, err);
}
