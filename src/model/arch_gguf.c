/* Hyperparameters from the metadata of a GGUF file. */
#include "model/arch_impl.h"

#include "base/status.h"
#include "kernels/kv_cells.h"
#include "model/keys.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

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

static tern_status gguf_yarn(keys *k, tn_hparams *h, double f[TN_MAX_ROT / 2]) {
    tn_yarn y = {.factor = num_key(k, "rope.scaling.factor", 1),
                 .orig_ctx = num_key(k, "rope.scaling.original_context_length", h->ctx_train),
                 .beta_fast = num_key(k, "rope.scaling.yarn_beta_fast", 32),
                 .beta_slow = num_key(k, "rope.scaling.yarn_beta_slow", 1),
                 .whole = true};
    double all = num_key(k, "rope.scaling.yarn_log_multiplier", 0);
    double grown = tn_yarn_mscale(y.factor, 1);
    double said = num_key(k, "rope.scaling.attn_factor", 1) * num_key(k, "rope.scaling.yarn_attn_factor", 1);
    if (tn_latent(h)) { /* scores grow, and neither cos nor sin; the key is a tenth of what folders say */
        h->attn_scale *= (float)pow(tn_yarn_mscale(y.factor, 10 * all), 2);
        grown = 1, all = 0;
    }
    h->rope_mscale = (float)(said * (all != 0 ? grown / tn_yarn_mscale(y.factor, all) : grown));
    TN_TRY(k->st);
    TN_FAIL_IF(num_key(k, "rope.scaling.yarn_ext_factor", 1) != 1, k->err, TERN_E_UNSUPPORTED,
               "%s: metadata key 'rope.scaling.yarn_ext_factor' is not 1, which is not supported",
               tn_gguf_path(k->g));
    return tn_rope_yarn(tn_gguf_path(k->g), h, &y, f, k->err);
}

/* Pairs of each axis of rope, and of a fourth that no model here has. */
static tern_status gguf_axes(keys *k, const tn_arch *a, tn_hparams *h) {
    char buf[128];
    int64_t axes[TN_AXES + 1] = {0};
    const char *key = key_of(k, "rope.dimension_sections", buf);
    if (!a->sections || !tn_gguf_has(k->g, key)) return TERN_OK;
    const int64_t n = tn_gguf_arr_n(k->g, key);
    TN_FAIL_IF(n < TN_AXES || n > TN_AXES + 1, k->err, TERN_E_FORMAT,
               "%s: metadata key '%s' is no list of %d or %d numbers", tn_gguf_path(k->g), key, TN_AXES,
               TN_AXES + 1);
    for (int64_t i = 0; i < n; i++)
        TN_FAIL_IF(!tn_gguf_arr_i64(k->g, key, i, &axes[i]) || axes[i] < 0 || axes[i] > TN_MAX_ROT / 2,
                   k->err, TERN_E_FORMAT, "%s: value %d of metadata key '%s' is no number of pairs, 0 to %d",
                   tn_gguf_path(k->g), (int)i, key, TN_MAX_ROT / 2);
    if (!axes[TN_AXES]) tn_rope_set_axes(a, h, axes);
    return TERN_OK;
}

static bool is_word(const char *s, size_t n, const char *word) {
    return strlen(word) == n && !memcmp(s, word, n);
}

/* What turns fewer or slower pairs, as llama.cpp has it: a factor without a type is linear, 0 is no factor. */
static tern_status gguf_scale_rope(keys *k, tn_hparams *h, double f[TN_MAX_ROT / 2]) {
    const char *file = tn_gguf_path(k->g), *type = "linear";
    size_t n_type = strlen(type);
    char buf[128];
    double each[TN_MAX_ROT / 2], factor = num_key(k, "rope.scaling.factor", 1),
                                 grown = num_key(k, "rope.scaling.attn_factor", 1);
    const char *key = key_of(k, "rope.scaling.type", buf);
    TN_FAIL_IF(!tn_gguf_str(k->g, key, &type, &n_type) && tn_gguf_has(k->g, key), k->err, TERN_E_FORMAT,
               "%s: metadata key '%s' is no word", file, key);
    const bool yarn = is_word(type, n_type, "yarn"), linear = is_word(type, n_type, "linear");
    TN_FAIL_IF(!yarn && !linear && !is_word(type, n_type, "none"), k->err, TERN_E_UNSUPPORTED,
               "%s: rope scaling '%.*s' is not supported", file, (int)(n_type < 40 ? n_type : 40), type);
    const bool has_each = factors(k, "rope_freqs.weight", h->n_rot / 2, each); /* llama3's, worked out */
    TN_TRY(k->st);
    TN_FAIL_IF(yarn && has_each, k->err, TERN_E_UNSUPPORTED,
               "%s: rope scaling of type yarn beside the tensor rope_freqs.weight is not supported", file);
    if (yarn) return gguf_yarn(k, h, f);
    TN_FAIL_IF(grown != 0 && grown != 1, k->err, TERN_E_UNSUPPORTED,
               "%s: metadata key '%s.rope.scaling.attn_factor' is %g, which is supported for yarn and "
               "longrope alone",
               file, k->prefix, grown);
    if (factor == 0 || !linear) factor = 1;
    TN_FAIL_IF(!(factor > 0), k->err, TERN_E_FORMAT, "%s: rope scaling factor %g", file, factor);
    for (int i = 0; i < h->n_rot / 2; i++) f[i] /= (has_each ? each[i] : 1) * factor;
    return TERN_OK;
}

static tern_status gguf_rope(keys *k, const tn_arch *a, tn_hparams *h) {
    const char *file = tn_gguf_path(k->g);
    if (a->positions || a->alibi > 0) return TERN_OK; /* none: positions are learned rows, or distances */
    h->rope_base = num_key(k, "rope.freq_base", 10000);
    if (!a->latent) h->n_rot = int_key(k, "rope.dimension_count", false, h->d_head);
    if (a->window_heads) h->window_rot = int_key(k, "rope.dimension_count_swa", false, h->window_d_head);
    if (h->window_rot == h->n_rot) h->window_rot = 0;
    TN_FAIL_IF(h->window_rot < 0 || h->window_rot > h->n_rot || h->window_rot % 2, k->err, TERN_E_FORMAT,
               "%s: %d rotated values, %d in layers with a window", file, h->n_rot, h->window_rot);
    TN_FAIL_IF(h->n_rot < 0 || h->n_rot > TN_MAX_ROT || h->n_rot % 2 || !(h->rope_base > 1), k->err,
               TERN_E_FORMAT, "%s: %d rotated values, rope base %g", file, h->n_rot, h->rope_base);
    TN_TRY(gguf_axes(k, a, h));
    double local_base = num_key(k, "rope.freq_base_swa", a->local_base > 0 ? a->local_base : h->rope_base);
    TN_FAIL_IF(!(local_base > 1 && local_base < 1e12), k->err, TERN_E_FORMAT, "%s: rope base %g", file,
               local_base);
    TN_FAIL_IF(
        !a->local_rope && local_base != h->rope_base, k->err, TERN_E_UNSUPPORTED,
        "%s: metadata key '%s.rope.freq_base_swa' is not the base of all layers, which is not supported for "
        "architecture %s",
        file, k->prefix, a->name);
    double f[TN_MAX_ROT / 2], short_f[TN_MAX_ROT / 2], long_f[TN_MAX_ROT / 2];
    int n = h->n_rot / 2;
    tn_rope_plain(h, f);
    if (factors(k, "rope_factors_long.weight", n, long_f) &&
        factors(k, "rope_factors_short.weight", n, short_f)) {
        int32_t orig =
            int_key(k, "rope.scaling.original_context_length", !a->latent, a->latent ? h->ctx_train : 1);
        TN_TRY(k->st);
        TN_FAIL_IF(orig < 1 || orig > h->ctx_train, k->err, TERN_E_FORMAT,
                   "%s: longrope from a context of %d", file, orig);
        const double factor = num_key(k, "rope.scaling.factor", 1);
        TN_FAIL_IF(
            factor != 0 && factor != 1, k->err, TERN_E_UNSUPPORTED,
            "%s: metadata key '%s.rope.scaling.factor' is %g beside the factors of longrope, which is not "
            "supported",
            file, k->prefix, factor);
        tn_rope_long(h, short_f, long_f, orig, num_key(k, "rope.scaling.attn_factor", 0));
        return k->st;
    }
    TN_TRY(gguf_scale_rope(k, h, f));
    tn_rope_set(h, f);
    tn_rope_set_local(h, local_base);
    return k->st;
}

/* ---- windows --------------------------------------------------------------------------------------- */

/* The period is a number, or said layer by layer: 1 for every layer with a window. */
static tern_status gguf_windows(keys *k, const tn_arch *a, tn_hparams *h) {
    char buf[128];
    if (!strcmp(a->gguf, "llama")) { /* Mistral 7B 0.1 comes as a llama, and says this of all its layers */
        h->window = int_key(k, "attention.sliding_window", false, 0);
        return k->st;
    }
    if (!a->window) { /* one that no text outgrows changes nothing */
        const int32_t window = int_key(k, "attention.sliding_window", false, 0);
        TN_FAIL_IF(k->st == TERN_OK && window > 0 && window < h->ctx_train, k->err, TERN_E_UNSUPPORTED,
                   "%s: metadata key '%s' is %d, which is not supported for architecture %s",
                   tn_gguf_path(k->g), key_of(k, "attention.sliding_window", buf), window, a->name);
        return k->st;
    }
    if (a->chunked) { /* files leave it out, and mean the published size; 0 is of models without experts */
        h->window = int_key(k, "attention.sliding_window", false, 8192);
        h->temp_scale = (float)num_key(k, "attention.temperature_scale", (double)h->temp_scale);
        h->temp_every = int_key(k, "attention.temperature_length", false, h->temp_every);
        h->qk_norm_plain = h->n_experts != 128; /* which no key tells: known by its experts */
        TN_FAIL_IF(h->window < 1, k->err, TERN_E_UNSUPPORTED, "%s: '%s' is %d, which is not supported",
                   tn_gguf_path(k->g), key_of(k, "attention.sliding_window", buf), h->window);
        return k->st;
    }
    /* Gemma 2's first files do not say it */
    h->window = int_key(k, "attention.sliding_window", false, !strcmp(a->gguf, "gemma2") ? 4096 : 0);
    int64_t n = tn_gguf_arr_n(k->g, key_of(k, "attention.sliding_window_pattern", buf));
    if (n < 0) {
        h->window_pattern = int_key(k, "attention.sliding_window_pattern", false, a->window_pattern);
        return k->st;
    }
    TN_FAIL_IF(!a->window_pattern, k->err, TERN_E_UNSUPPORTED,
               "%s: '%s' is not supported for architecture %s", tn_gguf_path(k->g), buf, a->name);
    TN_FAIL_IF(n != h->n_layers, k->err, TERN_E_FORMAT, "%s: '%s' has %" PRId64 " layers, the model %d",
               tn_gguf_path(k->g), buf, n, h->n_layers);
    int32_t period = a->window_pattern;
    for (int32_t i = 0; a->window_any && i < h->n_layers; i++) { /* up to the first without a window */
        int64_t v = -1;
        period = i + 1;
        if (tn_gguf_arr_i64(k->g, buf, i, &v) && !v) break;
    }
    h->window_pattern = period;
    for (int32_t i = 0; i < h->n_layers; i++) {
        int64_t v = -1;
        const bool all = (h->window_rest ? i : i + 1) % period == 0;
        TN_FAIL_IF(!tn_gguf_arr_i64(k->g, buf, i, &v) || (v != 0) == all, k->err, TERN_E_UNSUPPORTED,
                   "%s: '%s' is not the pattern of this architecture at layer %d", tn_gguf_path(k->g), buf,
                   i);
    }
    return TERN_OK;
}

/* ---- layers that differ ---------------------------------------------------------------------------- */

/* A number for every layer, or one for all. Those of layers 0 .. n - 1 where `first`, else of the others, must
 * be the same: *out. is_first tells of which a layer is. */
static tern_status two_kinds(keys *k, const char *tail, const tn_hparams *h,
                             bool (*is_first)(const tn_hparams *, int32_t), int32_t *first, int32_t *other) {
    char buf[128];
    int64_t n = tn_gguf_arr_n(k->g, key_of(k, tail, buf));
    if (n < 0) {
        *first = *other = int_key(k, tail, true, 0);
        return k->st;
    }
    TN_FAIL_IF(n != h->n_layers, k->err, TERN_E_FORMAT, "%s: '%s' has %" PRId64 " layers, the model %d",
               tn_gguf_path(k->g), buf, n, h->n_layers);
    *first = *other = 0;
    for (int32_t i = 0; i < h->n_layers; i++) {
        int64_t v = -1;
        int32_t *of = is_first(h, i) ? first : other;
        TN_FAIL_IF(!tn_gguf_arr_i64(k->g, buf, i, &v) || v < 1 || v > 1 << 18, k->err, TERN_E_FORMAT,
                   "%s: '%s' is %" PRId64 " in layer %d", tn_gguf_path(k->g), buf, v, i);
        TN_FAIL_IF(*of && *of != v, k->err, TERN_E_UNSUPPORTED,
                   "%s: '%s' is %" PRId64
                   " in layer %d and %d in another of its kind, which is not supported",
                   tn_gguf_path(k->g), buf, v, i, *of);
        *of = (int32_t)v;
    }
    if (!*first) *first = *other;
    if (!*other) *other = *first;
    return TERN_OK;
}

static bool has_window(const tn_hparams *h, int32_t layer) { return tn_layer_window(h, layer) > 0; }
static bool has_own_kv(const tn_hparams *h, int32_t layer) { return layer < h->n_layers - h->n_kv_shared; }

/* Heads of layers with a window and of the others; layers that share keys and values; embeddings for every
 * layer. The windows have been read. */
static tern_status gguf_layers(keys *k, const tn_arch *a, tn_hparams *h) {
    char name[128];
    if (!a->window_heads) return TERN_OK;
    int32_t ff = 0;
    h->n_kv_shared = int_key(k, "attention.shared_kv_layers", false, 0);
    h->n_ple = int_key(k, "embedding_length_per_layer_input", false, 0);
    TN_TRY(k->st);
    TN_FAIL_IF(h->n_kv_shared < 0 || h->n_kv_shared > h->n_layers - !a->assistant, k->err, TERN_E_FORMAT,
               "%s: %d of %d layers share keys and values", tn_gguf_path(k->g), h->n_kv_shared, h->n_layers);
    TN_TRY(two_kinds(k, "feed_forward_length", h, has_own_kv, &h->n_ff, &ff));
    TN_TRY(two_kinds(k, "attention.head_count_kv", h, has_window, &h->window_kv_heads, &h->n_kv_heads));
    h->n_ff_shared = h->n_kv_shared && ff != h->n_ff ? ff : 0;
    if (h->window_kv_heads == h->n_kv_heads) h->window_kv_heads = 0;
    h->window_d_head = int_key(k, "attention.key_length_swa", false, h->d_head);
    int32_t d_value = int_key(k, "attention.value_length_swa", false, h->window_d_head);
    TN_FAIL_IF(d_value != h->window_d_head, k->err, TERN_E_UNSUPPORTED,
               "%s: keys of %d values and values of %d are not supported", tn_gguf_path(k->g),
               h->window_d_head, d_value);
    if (h->window_d_head == h->d_head || !h->window) h->window_d_head = 0;
    int32_t all = 0; /* the first layer without a window */
    while (all < h->n_layers - h->n_kv_shared && has_window(h, all)) all++;
    snprintf(name, sizeof name, "blk.%d.attn_k.weight", all);
    bool has_k = tn_gguf_tensor(k->g, name);
    snprintf(name, sizeof name, "blk.%d.attn_v.weight", all);
    h->v_is_k = has_k && !tn_gguf_tensor(k->g, name);
    h->layer_scale = tn_gguf_tensor(k->g, "blk.0.layer_output_scale.weight");
    return k->st;
}

/* ---- several residual streams ---------------------------------------------------------------------- */

/* Deviations layer by layer: the same number in the first ones, and what is no positive number in the others. */
static tern_status gguf_sparse(keys *k, tn_hparams *h) {
    char buf[128];
    int64_t n = tn_gguf_arr_n(k->g, key_of(k, "activation_sparsity_scale", buf));
    TN_FAIL_IF(n != h->n_layers, k->err, TERN_E_FORMAT, "%s: '%s' has %" PRId64 " layers, the model %d",
               tn_gguf_path(k->g), buf, n, h->n_layers);
    for (int32_t i = 0; i < h->n_layers; i++) {
        double v = 0;
        bool said = tn_gguf_arr_f64(k->g, buf, i, &v), sparse = said && v > 0;
        TN_FAIL_IF(!said || (sparse && (h->n_sparse < i || (i && (float)v != h->sparse_deviations))), k->err,
                   TERN_E_UNSUPPORTED,
                   "%s: '%s' is not one number in the first layers and none in the others: layer %d",
                   tn_gguf_path(k->g), buf, i);
        if (!sparse) continue;
        h->sparse_deviations = (float)v;
        h->n_sparse = i + 1;
    }
    return TERN_OK;
}

static tern_status gguf_streams(keys *k, const tn_arch *a, tn_hparams *h) {
    if (!a->streams) return TERN_OK;
    h->n_streams = int_key(k, "altup.num_inputs", true, 0);
    int32_t active = int_key(k, "altup.active_idx", false, 0);
    TN_TRY(k->st);
    TN_FAIL_IF(active, k->err, TERN_E_UNSUPPORTED,
               "%s: metadata key '%s.altup.active_idx' is %d, want 0: layers work on the first stream",
               tn_gguf_path(k->g), k->prefix, active);
    const tn_tensor *t = tn_gguf_tensor(k->g, "blk.0.laurel_l.weight");
    TN_FAIL_IF(!t, k->err, TERN_E_FORMAT, "%s: tensor blk.0.laurel_l.weight is missing", tn_gguf_path(k->g));
    h->laurel_rank = t->dims[0] <= 1 << 14 ? (int32_t)t->dims[0] : -1;
    return gguf_sparse(k, h);
}

/* ---- scales ---------------------------------------------------------------------------------------- */

static tern_status gguf_scales(keys *k, const tn_arch *a, tn_hparams *h) {
    if (a->scales == TN_SCALES_COHERE) {
        double by = num_key(k, "logit_scale", 1); /* 0, too, is none */
        h->logit_scale = by != 0 ? (float)by : 1;
    } else if (a->scales != TN_SCALES_NONE) {
        /* MiniCPM3's files do not say them */
        const bool fixed = a->latent;
        double divisor = num_key(k, "logit_scale", fixed ? h->n_embd / 256.0 : 0);
        h->embd_scale = (float)num_key(k, "embedding_scale", fixed ? 12 : 0);
        h->residual_scale = (float)num_key(k, "residual_scale", fixed ? 1.4 / sqrt(h->n_layers) : 0);
        TN_TRY(k->st);
        TN_FAIL_IF(!(divisor > 0) || !(h->embd_scale > 0) || !(h->residual_scale > 0), k->err, TERN_E_FORMAT,
                   "%s: architecture %s needs the metadata keys 'embedding_scale', 'residual_scale' and "
                   "'logit_scale', "
                   "all positive",
                   tn_gguf_path(k->g), a->name);
        h->logit_scale = (float)(1 / divisor);
    }
    bool rope = true;
    char buf[128];
    if (a->scales == TN_SCALES_GRANITE &&
        tn_gguf_bool(k->g, key_of(k, "rope.scaling.finetuned", buf), &rope) && !rope)
        h->no_rope_pattern = 1; /* so these files say that no layer has rope */
    if (a->temperature) {
        h->temp_scale = (float)num_key(k, "attention.temperature_scale", 0);
        h->temp_every = a->latent ? int_key(k, "attention.temperature_length", false, 0) : 0;
        if (!h->temp_every)
            h->temp_every = int_key(k, "rope.scaling.original_context_length", h->temp_scale != 0, 0);
    }
    return k->st;
}

/* KV heads layer by layer: where there are none, the layer is of the other kind. */
static tern_status gguf_kv_heads(keys *k, tn_hparams *h, tn_layer_kind other) {
    char buf[128];
    int64_t n = tn_gguf_arr_n(k->g, key_of(k, "attention.head_count_kv", buf));
    TN_FAIL_IF(n != int_key(k, "block_count", true, 0) || n > TN_MAX_LAYERS, k->err, TERN_E_FORMAT,
               "%s: '%s' has %" PRId64 " layers, the model %d", tn_gguf_path(k->g), buf, n, h->n_layers);
    for (int32_t i = 0; i < h->n_layers; i++) {
        int64_t v = -1;
        bool ok = tn_gguf_arr_i64(k->g, buf, i, &v) && v >= 0 && v <= h->n_heads &&
                  (!v || !h->n_kv_heads || v == h->n_kv_heads);
        TN_FAIL_IF(!ok, k->err, TERN_E_FORMAT, "%s: '%s' is %" PRId64 " in layer %d", tn_gguf_path(k->g), buf,
                   v, i);
        h->layer_kind[i] = (uint8_t)(v ? TN_LAYER_ATTENDS : other);
        if (v) h->n_kv_heads = (int32_t)v;
    }
    TN_FAIL_IF(!h->n_kv_heads, k->err, TERN_E_UNSUPPORTED, "%s: no layer attends", tn_gguf_path(k->g));
    return k->st;
}

/* Layers of one block: those with a feed-forward size have neither of the others. One size for all. */
static tern_status gguf_single(keys *k, const tn_arch *a, tn_hparams *h) {
    char buf[128];
    if (!a->single || a->alone) return TERN_OK;
    int64_t n = tn_gguf_arr_n(k->g, key_of(k, "feed_forward_length", buf));
    int32_t ff = 0;
    TN_FAIL_IF(n != h->n_layers || n > TN_MAX_LAYERS, k->err, TERN_E_FORMAT,
               "%s: '%s' has %" PRId64 " layers, the model %d", tn_gguf_path(k->g), buf, n, h->n_layers);
    for (int32_t i = 0; i < h->n_layers; i++) {
        int64_t v = -1;
        bool ok = tn_gguf_arr_i64(k->g, buf, i, &v) && v >= 0 && v <= 1 << 18 && (!v || !ff || v == ff) &&
                  !(v && h->layer_kind[i] == TN_LAYER_ATTENDS);
        TN_FAIL_IF(!ok, k->err, TERN_E_UNSUPPORTED,
                   "%s: '%s' is %" PRId64 " in layer %d, and not as in the others", tn_gguf_path(k->g), buf,
                   v, i);
        if (v) h->layer_kind[i] = TN_LAYER_FEEDS, ff = (int32_t)v;
    }
    h->n_ff = ff;
    return TERN_OK;
}

static tern_status gguf_kda(keys *k, const tn_arch *a, tn_hparams *h) {
    const int32_t d = int_key(k, "kda.head_dim", true, 0);
    h->conv_len = int_key(k, "ssm.conv_kernel", true, 0);
    TN_TRY(k->st);
    if (a->kda_bounded) return tn_arch_ling_gguf(k->g, d, h, k->err);
    tn_arch_kda(h, h->n_heads, d, 0);
    return TERN_OK;
}

static tern_status gguf_wkv(keys *k, const tn_arch *a, tn_hparams *h) {
    const int32_t each = int_key(k, "wkv.head_size", true, 0),
                  shifts = int_key(k, "token_shift_count", false, 2);
    h->low.decay = int_key(k, "attention.decay_lora_rank", true, 0);
    h->low.rate = int_key(k, "attention.iclr_lora_rank", true, 0);
    h->low.value = int_key(k, "attention.value_residual_mix_lora_rank", true, 0);
    h->low.gate = int_key(k, "attention.gate_lora_rank", false, 0);
    TN_TRY(k->st);
    TN_FAIL_IF(shifts != 1 + a->shift_ffn, k->err, TERN_E_UNSUPPORTED,
               "%s: metadata key '%s.token_shift_count' is %d, want %d", tn_gguf_path(k->g), k->prefix,
               shifts, 1 + a->shift_ffn);
    tn_arch_wkv(h, each > 0 ? h->n_embd / each : 0, each);
    h->delta.no_norm = !tn_gguf_tensor(k->g, "blk.0.time_mix_ln.weight");
    return TERN_OK;
}

/* Which layers attend: every so many-th, where KV heads do not tell. The sizes of delta nets are said as those of
 * state space models. */
static tern_status gguf_delta(keys *k, const tn_arch *a, tn_hparams *h) {
    if (a->wkv) return gguf_wkv(k, a, h);
    if (a->kda) return gguf_kda(k, a, h);
    int32_t every = int_key(k, "full_attention_interval", false, 4),
            inner = int_key(k, "ssm.inner_size", true, 0);
    h->conv_len = int_key(k, "ssm.conv_kernel", true, 0);
    h->delta = (tn_delta_net){.n_heads = int_key(k, "ssm.time_step_rank", true, 0),
                              .n_key_heads = int_key(k, "ssm.group_count", true, 0),
                              .d_key = int_key(k, "ssm.state_size", true, 0),
                              .tiled = a->delta_tiled,
                              .mamba = a->mamba};
    TN_TRY(k->st);
    TN_FAIL_IF(!a->mamba && (every < 1 || every > h->n_layers), k->err, TERN_E_FORMAT,
               "%s: every %d-th of %d layers attends", tn_gguf_path(k->g), every, h->n_layers);
    TN_FAIL_IF(h->delta.n_heads < 1 || inner < 1 || inner % h->delta.n_heads, k->err, TERN_E_FORMAT,
               "%s: %d values of a delta net for %d heads", tn_gguf_path(k->g), inner, h->delta.n_heads);
    h->delta.d_value = inner / h->delta.n_heads;
    h->delta.no_norm = a->mamba_beside && !tn_gguf_tensor(k->g, "blk.0.ssm_norm.weight");
    for (int32_t i = 0; i < h->n_layers && (!a->mamba || a->mamba_beside); i++)
        h->layer_kind[i] = a->mamba_beside   ? TN_LAYER_BOTH
                           : (i + 1) % every ? TN_LAYER_DELTA
                                             : TN_LAYER_ATTENDS;
    return TERN_OK;
}

/* nomic's: in every second layer, and shares of all. */
static tern_status gguf_experts_of_some(keys *k, tn_hparams *h) {
    h->experts_every = int_key(k, "moe_every_n_layers", true, 0);
    TN_TRY(k->st);
    TN_FAIL_IF(h->experts_every != 2, k->err, TERN_E_UNSUPPORTED,
               "%s: metadata key '%s.moe_every_n_layers' is %d, which is not supported: 2 is",
               tn_gguf_path(k->g), k->prefix, h->experts_every);
    h->experts_scale = (float)num_key(k, "expert_weights_scale", 1);
    return k->st;
}

static tern_status gguf_experts(keys *k, const tn_arch *a, tn_hparams *h) {
    int32_t n = int_key(k, "expert_count", false, 0);
    TN_TRY(k->st);
    TN_FAIL_IF(n && !a->experts, k->err, TERN_E_UNSUPPORTED,
               "%s: a mixture of %d experts is not supported for architecture %s", tn_gguf_path(k->g), n,
               a->name);
    if (!a->experts) return TERN_OK;
    h->n_experts = n;
    h->n_experts_used = int_key(k, "expert_used_count", true, 1);
    h->n_ff_exp = int_key(k, "expert_feed_forward_length", false, h->n_ff);
    int32_t dense = h->n_ff, n_shared = int_key(k, "expert_shared_count", false, 1);
    TN_FAIL_IF(n_shared < 0 || n_shared > 1 << 10 || h->n_ff_exp < 0 || h->n_ff_exp > 1 << 18, k->err,
               TERN_E_FORMAT, "%s: %d shared experts of %d values", tn_gguf_path(k->g), n_shared,
               h->n_ff_exp);
    if (a->shared_expert) { /* of all together, of Ling 3 of each */
        const int32_t said = int_key(k, "expert_shared_feed_forward_length", false,
                                     a->kda_bounded ? h->n_ff_exp : n_shared * h->n_ff_exp);
        h->n_ff = !a->kda_bounded ? said : said <= 1 << 18 ? said * n_shared : -1;
    } else if (!a->dense_first && !a->experts_beside) h->n_ff = h->n_ff_exp;
    if (a->dense_first) h->n_dense = int_key(k, "leading_dense_block_count", false, 0);
    const int32_t every = int_key(k, "interleave_moe_layer_step", false, 1);
    if (a->experts_before && every > 1) h->experts_every = every;
    if (a->experts_flat) return gguf_experts_of_some(k, h);
    if (a->shared_expert && (h->n_dense || h->experts_every) && dense != h->n_ff) h->n_ff_dense = dense;
    TN_FAIL_IF(every != (h->experts_every ? h->experts_every : 1), k->err, TERN_E_UNSUPPORTED,
               "%s: metadata key '%s.interleave_moe_layer_step' is not 1, which is not supported",
               tn_gguf_path(k->g), a->gguf);
    h->experts_scale = (float)num_key(k, "expert_weights_scale", 1);
    int32_t groups = int_key(k, "expert_group_count", false, 1);
    if (groups > 1) {
        h->experts_groups = groups;
        h->experts_groups_used = int_key(k, "expert_group_used_count", true, 1);
    }
    char name[128];
    int32_t first = h->n_dense;
    while (first < h->n_layers - 1 && !tn_layer_feeds(h, first)) first++;
    snprintf(name, sizeof name, "blk.%d.exp_probs_b.bias", first);
    h->experts_bias =
        (a->experts_sigmoid || a->experts_biased || a->experts_said) && tn_gguf_tensor(k->g, name);
    /* Files of GLM-4.7-Flash do not say it; only sigmoids have a bias for the choice. */
    const bool sigmoid = a->experts_sigmoid || (a->experts_said && h->experts_bias);
    int32_t gating = int_key(k, "expert_gating_func", false, sigmoid ? 2 : 1);
    if (a->experts_said && gating == 2) h->experts_sigmoid = true;
    TN_FAIL_IF(gating != (h->experts_sigmoid ? 2 : 1), k->err, TERN_E_UNSUPPORTED,
               "%s: metadata key '%s.expert_gating_func' is %d, which is not supported for architecture %s",
               tn_gguf_path(k->g), a->gguf, gating, a->name);
    TN_FAIL_IF(!tn_gguf_bool(k->g, key_of(k, "expert_weights_norm", name), &h->experts_norm) &&
                   tn_gguf_has(k->g, name),
               k->err, TERN_E_FORMAT, "%s: metadata key '%s' is neither true nor false", tn_gguf_path(k->g),
               name);
    return k->st;
}

/* ---- a text's vector -------------------------------------------------------------------------------- */

static int32_t rows_of(const keys *k, const char *tensor) {
    const tn_tensor *t = tn_gguf_tensor(k->g, tensor);
    return !t ? 0 : t->dims[0] <= 1 << 20 ? (int32_t)t->dims[0] : -1;
}

/* What scores are of. Of several, a model that also writes says the share of the first: it must be that of a yes. */
static tern_status gguf_labels(keys *k, const tn_arch *a, const tn_hparams *h) {
    char buf[128];
    const char *word;
    size_t n;
    if (!tn_gguf_has(k->g, key_of(k, "classifier.output_labels", buf))) return TERN_OK;
    const int64_t n_labels = tn_gguf_arr_n(k->g, buf);
    TN_FAIL_IF(!tn_gguf_arr_str(k->g, buf, 0, &word, &n), k->err, TERN_E_FORMAT,
               "%s: metadata key '%s' is no list of words", tn_gguf_path(k->g), buf);
    TN_FAIL_IF(h->n_scores && n_labels != h->n_scores, k->err, TERN_E_FORMAT,
               "%s: metadata key '%s' has %" PRId64 " words for %d scores", tn_gguf_path(k->g), buf, n_labels,
               h->n_scores);
    TN_FAIL_IF(!a->bidirectional && n_labels > 1 && (n != 3 || strncasecmp(word, "yes", 3)), k->err,
               TERN_E_UNSUPPORTED,
               "%s: metadata key '%s' begins with '%.*s', which is not supported: scores are of a yes",
               tn_gguf_path(k->g), buf, (int)(n < 40 ? n : 40), word);
    return TERN_OK;
}

static tern_status gguf_text(keys *k, const tn_arch *a, tn_hparams *h) {
    char buf[128];
    bool causal = false;
    TN_FAIL_IF(a->bidirectional && tn_gguf_bool(k->g, key_of(k, "attention.causal", buf), &causal) && causal,
               k->err, TERN_E_UNSUPPORTED, "%s: '%s' is true, which is not supported for architecture %s",
               tn_gguf_path(k->g), buf, a->name);
    int32_t pooling = int_key(k, "pooling_type", false, -1);
    TN_TRY(k->st);
    TN_FAIL_IF(pooling >= TN_N_POOLINGS - 1, k->err, TERN_E_UNSUPPORTED,
               "%s: '%s.pooling_type' is %d, which is not known", tn_gguf_path(k->g), k->prefix, pooling);
    h->pooling = (tn_pooling)(pooling + 1);
    h->embd_type = a->encoder && rows_of(k, "token_types.weight");
    h->n_positions = a->positions ? h->ctx_train : 0;
    h->n_between = rows_of(k, "dense_2.weight");
    h->score_layer = rows_of(k, "cls.weight");
    h->n_scores = rows_of(k, "cls.output.weight");
    h->score_norm = a->modern && rows_of(k, "cls.norm.weight");
    h->score_gelu = h->score_mean = a->modern;
    h->score_tanh = a->alibi > 0 && rows_of(k, "cls.weight") == 1 && !h->n_scores;
    if (h->score_tanh) h->n_scores = 1, h->score_layer = false;
    if (h->pooling == TN_POOL_UNSAID && a->encoder && h->n_scores) h->pooling = TN_POOL_RANK;
    if (a->qk_norm_found) h->qk_norm = tn_gguf_tensor(k->g, "blk.0.attn_q_norm.weight");
    if (a->norm_2_found) h->attn_norm_twice = tn_gguf_tensor(k->g, "blk.0.attn_norm_2.weight");
    return gguf_labels(k, a, h);
}

/* ---- latent attention ------------------------------------------------------------------------------- */

/* Files whose keys and values are one tensor say sizes of heads as they are; others those of the row that is kept, and
 * those of heads by keys of their own. */
static tern_status gguf_latent(keys *k, const tn_arch *a, tn_hparams *h) {
    if (!a->latent) return TERN_OK;
    int32_t rank = int_key(k, "attention.kv_lora_rank", true, 0),
            rot = int_key(k, "rope.dimension_count", true, 0),
            value = h->n_heads > 0 ? h->n_embd / h->n_heads : 0,
            key = int_key(k, "attention.key_length", false, 0);
    value =
        int_key(k, "attention.value_length_mla", false, int_key(k, "attention.value_length", false, value));
    key = int_key(k, "attention.key_length_mla", false, key);
    h->latent.q_rank = int_key(k, "attention.q_lora_rank", false, 0);
    TN_TRY(k->st);
    TN_FAIL_IF(rank < 1 || rank > 1024 || rot < 2 || rot > TN_MAX_HEAD - rank || key <= rot || key > 2048,
               k->err, TERN_E_FORMAT, "%s: latents of %d values, %d rotated, for keys of %d",
               tn_gguf_path(k->g), rank, rot, key);
    h->latent.rank = rank;
    h->latent.d_nope = key - rot;
    h->latent.d_value = value;
    h->n_rot = rot;
    h->n_kv_heads = 1;
    h->d_head = rank + rot;
    if (h->attn_scale == 0) h->attn_scale = (float)(1 / sqrt((double)key));
    return TERN_OK;
}

/* ---- activations ----------------------------------------------------------------------------------- */

/* BitNet's files and ModernBERT's may say it: their first models have another than some later ones. */
static tern_status gguf_act(const keys *k, const tn_arch *a, tn_hparams *h) {
    char buf[128];
    const char *word, *const other = a->modern ? "gelu" : "relu2";
    size_t n;
    const char *key = key_of(k, a->modern ? "hidden_activation" : "hidden_act", buf);
    if ((!a->sub_norms && !a->modern) || !tn_gguf_str(k->g, key, &word, &n)) return TERN_OK;
    TN_FAIL_IF(!is_word(word, n, other) && !is_word(word, n, "silu"), k->err, TERN_E_UNSUPPORTED,
               "%s: '%s' is '%.*s', which is not supported", tn_gguf_path(k->g), buf, (int)(n < 40 ? n : 40),
               word);
    if (is_word(word, n, "silu")) h->act = TN_ACT_SILU;
    else h->act = a->modern ? TN_ACT_GELU_ERF : TN_ACT_RELU2;
    return TERN_OK;
}

/* ---- keys that nobody reads ------------------------------------------------------------------------ */

static bool harmless(const keys *k, const tn_arch *a, const char *tail) {
    char buf[128];
    double v = 0;
    int64_t i;
    bool flag, number = tn_gguf_f64(k->g, key_of(k, tail, buf), &v);
    if (!number && tn_gguf_i64(k->g, buf, &i)) v = (double)i, number = true;
    if (!number && tn_gguf_bool(k->g, buf, &flag)) v = flag, number = true;
    return tn_key_ok_gguf(a, tail, number ? &v : NULL);
}

/* A key under the architecture's name that is not known may change what the model computes: it is refused. */
static tern_status check_keys(const keys *k, const tn_arch *a) {
    size_t n_prefix = strlen(k->prefix);
    for (size_t i = 0; i < tn_gguf_n_keys(k->g); i++) {
        size_t n;
        char tail[96];
        const char *key = tn_gguf_key_at(k->g, i, &n);
        if (n <= n_prefix + 1 || memcmp(key, k->prefix, n_prefix) || key[n_prefix] != '.') continue;
        snprintf(tail, sizeof tail, "%.*s", (int)(n - n_prefix - 1 < 95 ? n - n_prefix - 1 : 95),
                 key + n_prefix + 1);
        TN_FAIL_IF(!harmless(k, a, tail), k->err, TERN_E_UNSUPPORTED,
                   "%s: metadata key '%s.%s' may change what the model computes, and is not supported",
                   tn_gguf_path(k->g), k->prefix, tail);
    }
    return TERN_OK;
}

/* ---- heads ------------------------------------------------------------------------------------------ */

/* The layers that a head reads, and the key that lists them. Returns how many there are; 0: it is missing, it
 * is no list of layers, or it is longer than TN_MAX_TAPS. */
static int32_t gguf_head_layers(const keys *k, char key[128], int32_t from[TN_MAX_TAPS]) {
    const int64_t n = tn_gguf_arr_n(k->g, key_of(k, "target_layers", key));
    if (n < 0 || n > TN_MAX_TAPS) return 0;
    for (int32_t i = 0; i < n; i++) {
        int64_t v;
        if (!tn_gguf_arr_i64(k->g, key, i, &v) || v < 0 || v >= TN_MAX_LAYERS) return 0;
        from[i] = (int32_t)v;
    }
    return (int32_t)n;
}

static tern_status gguf_dflash(keys *k, tn_hparams *h) {
    char buf[128];
    int64_t mask = -1;
    h->head.n_from = gguf_head_layers(k, buf, h->head.from);
    TN_FAIL_IF(!h->head.n_from, k->err, TERN_E_FORMAT, "%s: '%s' is missing, or no list of 1 to %d layers",
               tn_gguf_path(k->g), buf, TN_MAX_TAPS);
    h->head.n_target = h->n_embd;
    h->head.block = int_key(k, "block_size", false, 16);
    h->n_vocab = int_key(k, "vocab_size", false, (int32_t)tn_gguf_arr_n(k->g, "tokenizer.ggml.tokens"));
    TN_TRY(k->st);
    TN_FAIL_IF(!tn_gguf_i64(k->g, "tokenizer.ggml.mask_token_id", &mask) || mask < 0 || mask > INT32_MAX,
               k->err, TERN_E_FORMAT, "%s: metadata key 'tokenizer.ggml.mask_token_id' is missing",
               tn_gguf_path(k->g));
    h->head.mask = (int32_t)mask;
    return tn_arch_dflash_ok(tn_gguf_path(k->g), h, k->err);
}

static tern_status gguf_head(keys *k, const tn_arch *a, tn_hparams *h) {
    char buf[128];
    if (!a->head) return TERN_OK;
    if (a->dflash) return gguf_dflash(k, h);
    if (a->assistant) {
        h->head.n_target = int_key(k, "embedding_length_out", true, 0);
        h->n_vocab = int_key(k, "vocab_size", false, 0); /* its embedding tells */
        return k->st;
    }
    h->head.n_target = int_key(k, "target_hidden_size", true, 0);
    h->head.n_from = 3;
    (void)tn_gguf_bool(k->g, key_of(k, "norm_before_residual", buf), &h->head.norm_residual);
    (void)tn_gguf_bool(k->g, key_of(k, "norm_before_fc", buf), &h->head.norm_in);
    h->n_vocab = h->head.n_vocab =
        int_key(k, "vocab_size", false, (int32_t)tn_gguf_arr_n(k->g, "tokenizer.ggml.tokens"));
    TN_TRY(k->st);
    TN_FAIL_IF(gguf_head_layers(k, buf, h->head.from) != 3, k->err, TERN_E_FORMAT,
               "%s: '%s' is missing, or no list of 3 layers", tn_gguf_path(k->g), buf);
    TN_FAIL_IF(h->n_layers != 1, k->err, TERN_E_UNSUPPORTED, "%s: a head of %d layers; 1 is supported",
               tn_gguf_path(k->g), h->n_layers);
    return TERN_OK;
}

/* ---- all ------------------------------------------------------------------------------------------- */

/* Some files have lost the tensors of layers that their keys still count. */
static bool has_tensors_of(const tn_gguf *g, int32_t layer) {
    char prefix[32];
    int n = snprintf(prefix, sizeof prefix, "blk.%d.", layer);
    for (size_t i = 0; i < tn_gguf_n_tensors(g); i++)
        if (!strncmp(tn_gguf_tensor_at(g, i)->name, prefix, (size_t)n)) return true;
    return false;
}

tern_status tn_arch_hparams_gguf(const tn_arch *a, const tn_gguf *g, tn_hparams *h, tern_error *err) {
    keys k = {.g = g, .prefix = a->gguf, .err = err};
    tn_arch_begin(a, h);
    const char *name;
    size_t n_name;
    if (tn_gguf_str(g, "general.name", &name, &n_name))
        snprintf(h->name, sizeof h->name, "%.*s", (int)(n_name < 120 ? n_name : 120), name);
    int32_t n_next = int_key(&k, "nextn_predict_layers", false, 0);
    h->n_layers = int_key(&k, "block_count", true, 0);
    TN_FAIL_IF(a->assistant && n_next && n_next != h->n_layers, err, TERN_E_UNSUPPORTED,
               "%s: an assistant of which %d of %d layers draft", tn_gguf_path(g), n_next, h->n_layers);
    if (a->assistant) n_next = 0; /* they are its layers */
    if (n_next > 0 && n_next <= TN_MAX_NEXT) h->n_layers -= n_next;
    h->n_embd = int_key(&k, "embedding_length", true, 0);
    h->n_heads = int_key(&k, "attention.head_count", true, 1);
    TN_TRY(k.st);
    TN_FAIL_IF(h->n_layers < 1 || h->n_layers > TN_MAX_LAYERS, err, TERN_E_FORMAT,
               "%s: layers %d, want 1 to %d", tn_gguf_path(g), h->n_layers, TN_MAX_LAYERS);
    bool any = n_next > 0 && has_tensors_of(g, h->n_layers);
    TN_TRY(tn_arch_next(a, tn_gguf_path(g), n_next, any, h, err));
    if (a->alone) tn_arch_alone(a, h);
    else if (a->conv || a->kda || (a->mamba && !a->mamba_beside))
        TN_TRY(gguf_kv_heads(&k, h, a->conv ? TN_LAYER_CONVOLVES : TN_LAYER_DELTA));
    else if (!a->window_heads) h->n_kv_heads = int_key(&k, "attention.head_count_kv", false, h->n_heads);
    TN_TRY(gguf_single(&k, a, h));
    if (!a->window_heads && !a->single) h->n_ff = int_key(&k, "feed_forward_length", !a->experts, 0);
    h->ctx_train = int_key(&k, "context_length", true, 0);
    if (!a->alone)
        h->d_head = int_key(&k, "attention.key_length", false, h->n_heads > 0 ? h->n_embd / h->n_heads : 0);
    h->norm_eps = (float)num_key(
        &k, a->norm == TN_NORM_LAYER ? "attention.layer_norm_epsilon" : "attention.layer_norm_rms_epsilon",
        a->norm == TN_NORM_LAYER ? num_key(&k, "attention.layer_norm_rms_epsilon", 1e-5) : 1e-5);
    h->attn_soft_cap = (float)num_key(&k, "attn_logit_softcapping", 0);
    h->logit_soft_cap = (float)num_key(&k, "final_logit_softcapping", (double)a->logit_soft_cap);
    h->attn_scale = (float)num_key(&k, "attention.scale", (double)a->attn_scale);
    /* the one model whose scale no key tells: Gemma 2 27B, known by its layers */
    if (a->post_norms && h->n_layers == 46 && h->attn_scale == 0 && h->n_heads > 0)
        h->attn_scale = (float)(1 / sqrt((double)h->n_embd / h->n_heads));
    /* and Gemma 3 27B */
    if (a->local_rope && a->post_norms && a->scale_embd && h->n_layers == 62 && h->attn_scale == 0 &&
        h->n_heads > 0)
        h->attn_scale = (float)(1 / sqrt((double)h->n_embd / h->n_heads));
    int32_t d_value = int_key(&k, "attention.value_length", false, h->d_head);
    TN_TRY(k.st);
    TN_TRY(gguf_experts(&k, a, h));
    TN_FAIL_IF(d_value != h->d_head && !a->latent, err, TERN_E_UNSUPPORTED,
               "%s: keys of %d values and values of %d are not supported", tn_gguf_path(g), h->d_head,
               d_value);
    TN_TRY(check_keys(&k, a));
    TN_TRY(gguf_act(&k, a, h));
    TN_TRY(gguf_latent(&k, a, h));
    if (a->may_be_parallel) h->parallel_block = !tn_gguf_tensor(g, "blk.0.ffn_norm.weight");
    if (a->qk_norm_said) h->qk_norm = tn_gguf_tensor(g, "blk.0.attn_q_norm.weight");
    if (a->conv) h->conv_len = int_key(&k, "shortconv.l_cache", true, 0);
    if (a->delta) TN_TRY(gguf_delta(&k, a, h));
    TN_TRY(gguf_windows(&k, a, h));
    TN_TRY(gguf_layers(&k, a, h));
    TN_TRY(gguf_streams(&k, a, h));
    TN_TRY(gguf_scales(&k, a, h));
    TN_TRY(gguf_text(&k, a, h));
    h->tied = (!a->head || a->assistant) && !tn_gguf_tensor(g, "output.weight");
    const tn_tensor *embd = tn_gguf_tensor(g, "token_embd.weight");
    TN_TRY(gguf_head(&k, a, h));
    TN_FAIL_IF(!embd && !a->head, err, TERN_E_FORMAT, "%s: tensor token_embd.weight is missing",
               tn_gguf_path(g));
    if (embd && !a->dflash) h->n_vocab = embd->dims[0] <= INT32_MAX ? (int32_t)embd->dims[0] : -1;
    TN_TRY(gguf_rope(&k, a, h));
    if (a->sections) h->n_deepstack = int_key(&k, "n_deepstack_layers", false, 0);
    TN_TRY(k.st);
    return tn_arch_finish(a, tn_gguf_path(g), h, err);
}
