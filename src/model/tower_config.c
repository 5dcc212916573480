/* A folder's config.json and processor as the shape of its encoder. Defaults are those of transformers' configurations. */
#include "model/tower_folder.h"

#include "base/json.h"
#include "base/status.h"
#include "model/keys.h"
#include "model/wrapped.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const struct {
    const char *model_type;
    tn_tower_kind kind;
} families[] = {{"smolvlm", TN_TOWER_IDEFICS3},  {"idefics3", TN_TOWER_IDEFICS3},
                {"gemma3", TN_TOWER_GEMMA3},     {"qwen2_5_vl", TN_TOWER_QWEN25VL},
                {"qwen3_vl", TN_TOWER_QWEN3VL},  {"qwen3_vl_moe", TN_TOWER_QWEN3VL},
                {"qwen3_5", TN_TOWER_QWEN3VL},   {"qwen3_5_moe", TN_TOWER_QWEN3VL},
                {"lfm2_vl", TN_TOWER_LFM2},      {"lfm2-vl", TN_TOWER_LFM2},
                {"internvl", TN_TOWER_INTERNVL}, {"internvl_chat", TN_TOWER_INTERNVL},
                {"gemma4", TN_TOWER_GEMMA4},     {"minicpmv", TN_TOWER_MINICPM}};

/* ---- what keys may say --------------------------------------------------------------------------------- */

/* A key of these families, and the only value that is computed here; NULL: it is read, or changes nothing. */
typedef struct rule {
    const char *key;
    unsigned of;
    const char *want;
} rule;

static const rule vision_rules[] = {
    {"hidden_size", ALL, NULL},
    {"intermediate_size", ALL, NULL},
    {"num_hidden_layers", ALL & ~QWEN, NULL},
    {"num_attention_heads", ALL & ~QWEN, NULL},
    {"depth", QWEN, NULL},
    {"num_heads", QWEN, NULL},
    {"image_size", IDEFICS3 | GEMMA3 | INTERNVL | LFM2 | MINICPM, NULL},
    {"patch_size", ALL, NULL},
    {"num_patches", LFM2, NULL},
    {"spatial_merge_size", QWEN, NULL},
    {"out_hidden_size", QWEN, NULL},
    {"num_position_embeddings", DEEP, NULL},
    {"deepstack_visual_indexes", DEEP, NULL},
    {"window_size", WINDOWS, NULL},
    {"fullatt_block_indexes", WINDOWS, NULL},
    {"layer_norm_eps", IDEFICS3 | GEMMA3 | LFM2 | INTERNVL | MINICPM, NULL},
    {"rms_norm_eps", GEMMA4, NULL},
    {"pooling_kernel_size", GEMMA4, NULL},
    {"use_clipped_linears", GEMMA4, NULL},
    {"standardize", GEMMA4, NULL},
    {"head_dim", GEMMA4, NULL},
    {"global_head_dim", GEMMA4, NULL},
    {"num_key_value_heads", GEMMA4, NULL},
    {"rope_parameters", GEMMA4, NULL},
    {"rope_theta", GEMMA4, "100"},
    {"hidden_act", IDEFICS3 | GEMMA3 | LFM2 | DEEP | MINICPM, "gelu_pytorch_tanh"},
    {"hidden_act", WINDOWS, "silu"},
    {"hidden_act", INTERNVL, "gelu"},
    {"hidden_activation", GEMMA4, "gelu_pytorch_tanh"},
    {"num_channels", ALL, "3"},
    {"in_channels", QWEN, "3"},
    {"in_chans", QWEN, "3"},
    {"temporal_patch_size", QWEN, "2"},
    {"attention_bias", INTERNVL, "true"},
    {"qkv_bias", INTERNVL, "true"},
    {"attention_bias", GEMMA4, "false"},
    {"norm_type", INTERNVL, "layer_norm"},
    {"use_absolute_position_embeddings", INTERNVL, "true"},
    {"use_mean_pooling", INTERNVL, "true"},
    {"default_output_length", GEMMA4, "280"},
    {"vision_use_head", ALL, NULL},
    {"spatial_patch_size", QWEN, NULL},
    {"tokens_per_second", WINDOWS, NULL},
    {"layer_scale_init_value", INTERNVL, NULL},
    {"drop_path_rate", INTERNVL, NULL},
    {"max_position_embeddings", GEMMA4, NULL},
    {"position_embedding_size", GEMMA4, NULL}, /* its table tells */
    {"max_image_size", IDEFICS3, NULL},
    {"size", IDEFICS3, NULL},
    {"use_base_siglip", IDEFICS3, NULL},
    {"projection_dim", GEMMA3 | LFM2, NULL},
};

/* Beside vision_config, where the text has an object of its own; else the reader of the text sees to them. */
static const rule top_rules[] = {
    {"text_config", ALL, NULL},
    {"llm_config", INTERNVL, NULL},
    {"tie_word_embeddings", ALL, NULL},
    {"vocab_size", ALL, NULL},
    {"hidden_size", ALL, NULL},
    {"scale_factor", IDEFICS3, NULL},
    {"pixel_shuffle_factor", IDEFICS3, NULL},
    {"transformers.js_config", ALL, NULL},
    {"max_frames", IDEFICS3, NULL},
    {"mm_tokens_per_image", GEMMA3, NULL},
    {"downsample_factor", LFM2, NULL},
    {"projector_hidden_size", LFM2, NULL},
    {"projector_use_layernorm", LFM2, NULL}, /* its tensors tell */
    {"projector_bias", LFM2, "true"},
    {"projector_hidden_act", LFM2 | INTERNVL, "gelu"},
    {"vision_feature_layer", LFM2 | INTERNVL, "-1"},
    {"vision_feature_select_strategy", INTERNVL, "default"},
    {"select_layer", INTERNVL, "-1"},
    {"ps_version", INTERNVL, "v2"},
    {"downsample_ratio", INTERNVL, NULL},
    {"dynamic_image_size", INTERNVL, "true"},
    {"use_thumbnail", INTERNVL, "true"},
    {"force_image_size", INTERNVL, NULL},
    {"min_dynamic_patch", INTERNVL, NULL},
    {"max_dynamic_patch", INTERNVL, NULL},
    {"image_seq_length", INTERNVL, NULL},
    {"template", INTERNVL, NULL},
    {"vision_soft_tokens_per_image", GEMMA4, "280"},
};

/* LFM2-VL says of its processor in config.json too. */
static const rule lfm2_rules[] = {
    {"use_thumbnail", LFM2, "true"},
    {"do_image_splitting", LFM2, "true"},
    {"min_tiles", LFM2, "2"},
    {"max_tiles", LFM2, "10"},
    {"min_image_tokens", LFM2, "64"},
    {"max_image_tokens", LFM2, "256"},
    {"max_pixels_tolerance", LFM2, "2"},
    {"use_image_special_tokens", LFM2, "true"},
    {"tile_size", LFM2, NULL},
    {"encoder_patch_size", LFM2, NULL},
    {"downsample_factor", LFM2, NULL},
    {"max_num_patches", LFM2, NULL},
    {"return_row_col_info", LFM2, NULL},
};

static const rule processor_rules[] = {
    {"image_mean", ALL, NULL},
    {"image_std", ALL, NULL},
    {"size", ALL, NULL},
    {"do_resize", ALL & ~LFM2, "true"},
    {"do_resize", LFM2, NULL}, /* transformers' processor resizes whatever it says */
    {"do_rescale", ALL, "true"},
    {"rescale_factor", ALL, NULL},
    {"do_normalize", ALL & ~GEMMA4, "true"},
    {"do_normalize", GEMMA4, "false"},
    {"resample", IDEFICS3, "1"},
    {"resample", GEMMA3 | LFM2, "2"},
    {"resample", QWEN | INTERNVL | GEMMA4, "3"},
    {"do_image_splitting", IDEFICS3, "true"},
    {"max_image_size", IDEFICS3, NULL},
    {"min_pixels", QWEN, NULL},
    {"max_pixels", QWEN, NULL},
    {"patch_size", QWEN | GEMMA4 | LFM2 | MINICPM, NULL},
    {"merge_size", QWEN, NULL},
    {"temporal_patch_size", QWEN, "2"},
    {"max_soft_tokens", GEMMA4, "280"},
    {"pooling_kernel_size", GEMMA4, NULL},
    {"crop_to_patches", INTERNVL, NULL}, /* transformers' processor cuts whatever it says */
    {"min_patches", INTERNVL, NULL},
    {"max_patches", INTERNVL, NULL},
    {"norm_mean", MINICPM, NULL},
    {"norm_std", MINICPM, NULL},
    {"max_slice_nums", MINICPM, "9"},
    {"scale_resolution", MINICPM, NULL},
    {"slice_mode", MINICPM, "true"},
    {"use_image_id", MINICPM, "true"},
    {"image_feature_size", MINICPM, NULL},
    {"im_start", MINICPM, "<image>"},
    {"im_end", MINICPM, "</image>"},
    {"slice_start", MINICPM, "<slice>"},
    {"slice_end", MINICPM, "</slice>"},
    {"unk", MINICPM, "<unk>"},
    {"im_id_start", MINICPM, "<image_id>"},
    {"im_id_end", MINICPM, "</image_id>"},
    {"version", MINICPM, NULL},
    {"do_convert_rgb", ALL, NULL},
    {"do_pad", ALL, NULL},
    {"video_sampling", IDEFICS3, NULL},
    {"image_processor_type", ALL, NULL},
    {"feature_extractor_type", ALL, NULL},
    {"processor_class", ALL, NULL},
    {"image_seq_length", ALL, NULL},
    {"data_format", ALL, NULL},
    {"default_to_square", ALL, NULL},
};

/* MiniCPM-V says of its encoder beside its text's own keys. */
static const rule minicpm_rules[] = {
    {"drop_vision_last_layer", MINICPM, "false"},
    {"slice_mode", MINICPM, "true"},
    {"use_image_id", MINICPM, "true"},
};
static const rule slice_rules[] = {
    {"max_slice_nums", MINICPM, "9"},
    {"scale_resolution", MINICPM, NULL},
    {"patch_size", MINICPM, NULL},
};

typedef struct reading {
    const char *file; /* at work */
    tn_tower_shape *s;
    tern_error *err;
} reading;

static bool is_value(const json_t *v, const char *want) {
    if (json_is_string(v)) return !strcmp(json_string_value(v), want);
    if (json_is_boolean(v)) return !strcmp(json_is_true(v) ? "true" : "false", want);
    return json_is_number(v) && json_number_value(v) == strtod(want, NULL) &&
           (isdigit(want[0]) || want[0] == '-');
}

static const rule *find_rule(const rule *rules, size_t n, const char *key, tn_tower_kind kind) {
    for (size_t i = 0; i < n; i++)
        if (rules[i].of >> kind & 1 && !strcmp(rules[i].key, key)) return &rules[i];
    return NULL;
}

static tern_status refuse_value(const reading *r, const rule *one) {
    return tn_fail(r->err, TERN_E_UNSUPPORTED,
                   "%s: '%s' of an encoder of pictures is not %s, which is not supported", r->file, one->key,
                   one->want);
}

static tern_status check(const reading *r, const json_t *o, const rule *rules, size_t n_rules) {
    const char *key;
    json_t *v;
    json_object_foreach((json_t *)(uintptr_t)o, key, v) {
        const rule *one = find_rule(rules, n_rules, key, r->s->kind);
        if (!one) one = find_rule(lfm2_rules, sizeof lfm2_rules / sizeof *lfm2_rules, key, r->s->kind);
        if (one && one->want && !json_is_null(v) && !is_value(v, one->want)) return refuse_value(r, one);
        TN_FAIL_IF(!one && !tn_key_idle_hf(key, v), r->err, TERN_E_UNSUPPORTED,
                   "%s: '%.60s' is not known, and what it says could change every picture", r->file, key);
    }
    return TERN_OK;
}

/* ---- values ----------------------------------------------------------------------------------------------- */

/* A whole number; of two equal ones that one. fallback < 0: it must be there. */
static tern_status whole(const reading *r, const json_t *o, const char *key, int64_t fallback, int32_t *out) {
    const json_t *v = json_object_get(o, key);
    if (json_is_array(v) && json_array_size(v) == 2 && json_equal(json_array_get(v, 0), json_array_get(v, 1)))
        v = json_array_get(v, 0);
    TN_FAIL_IF((!v || json_is_null(v)) && fallback < 0, r->err, TERN_E_FORMAT,
               "%s says no '%s' of the encoder of pictures", r->file, key);
    const double x =
        v && !json_is_null(v) ? (json_is_number(v) ? json_number_value(v) : -1) : (double)fallback;
    TN_FAIL_IF(!(x >= 0 && x <= 1 << 30) || x != floor(x), r->err, TERN_E_FORMAT,
               "%s: '%s' is no whole number up to %d", r->file, key, 1 << 30);
    *out = (int32_t)x;
    return TERN_OK;
}

/* What is said must be this number. */
static tern_status expect(const reading *r, const json_t *o, const char *key, int64_t want) {
    int32_t v;
    TN_TRY(whole(r, o, key, want, &v));
    TN_FAIL_IF(v != want, r->err, TERN_E_UNSUPPORTED, "%s: '%s' is %d; it is supported as %" PRId64, r->file,
               key, v, want);
    return TERN_OK;
}

static tern_status number(const reading *r, const json_t *o, const char *key, double fallback, double *out) {
    const json_t *v = json_object_get(o, key);
    *out = v && !json_is_null(v) ? json_number_value(v) : fallback;
    TN_FAIL_IF(v && !json_is_null(v) && !json_is_number(v), r->err, TERN_E_FORMAT, "%s: '%s' is no number",
               r->file, key);
    return TERN_OK;
}

static tern_status colours(const reading *r, const json_t *o, const char *key, float out[3]) {
    const json_t *v = json_object_get(o, key);
    TN_FAIL_IF(json_array_size(v) != 3, r->err, TERN_E_FORMAT, "%s: '%s' must have 3 numbers", r->file, key);
    for (size_t i = 0; i < 3; i++) {
        TN_FAIL_IF(!json_is_number(json_array_get(v, i)), r->err, TERN_E_FORMAT,
                   "%s: '%s' must have 3 numbers", r->file, key);
        out[i] = (float)json_number_value(json_array_get(v, i));
    }
    return TERN_OK;
}

/* A root that is whole; 0: there is none. */
static int32_t root_of(int32_t n) {
    const int32_t root = (int32_t)lround(sqrt((double)n));
    return root * root == n ? root : 0;
}

/* ---- families --------------------------------------------------------------------------------------------- */

/* Sizes where vision_config says none; -1: it must. */
typedef struct sizes {
    int32_t width, ff, layers, heads, image, patch;
} sizes;
static const sizes defaults[TN_N_TOWER_KINDS] = {
    [TN_TOWER_IDEFICS3] = {1152, 3072, 12, 16, 224, 32}, [TN_TOWER_GEMMA3] = {768, 3072, 12, 12, 224, 16},
    [TN_TOWER_QWEN25VL] = {3584, 3420, 32, 16, 0, 14},   [TN_TOWER_QWEN3VL] = {1152, 4304, 27, 16, 0, 16},
    [TN_TOWER_LFM2] = {768, 3072, 12, 12, 0, 16},        [TN_TOWER_INTERNVL] = {1024, 4096, 24, 16, 448, 14},
    [TN_TOWER_GEMMA4] = {768, 3072, 16, 12, 0, 16},      [TN_TOWER_MINICPM] = {1152, 4304, 27, 16, 980, 14}};

static tern_status read_sizes(const reading *r, const json_t *v) {
    tn_tower_shape *s = r->s;
    const sizes *d = &defaults[s->kind];
    const bool qwen = tn_tower_has_axes(s->kind);
    double eps;
    TN_TRY(whole(r, v, "hidden_size", d->width, &s->width));
    TN_TRY(whole(r, v, "intermediate_size", d->ff, &s->ff));
    TN_TRY(whole(r, v, qwen ? "depth" : "num_hidden_layers", d->layers, &s->n_layers));
    TN_TRY(whole(r, v, qwen ? "num_heads" : "num_attention_heads", d->heads, &s->n_heads));
    TN_TRY(whole(r, v, "patch_size", d->patch, &s->patch));
    if (d->image) TN_TRY(whole(r, v, "image_size", d->image, &s->image));
    TN_TRY(number(r, v, s->kind == TN_TOWER_GEMMA4 ? "rms_norm_eps" : "layer_norm_eps", 1e-6, &eps));
    s->eps = qwen ? 1e-6f : (float)eps; /* transformers writes Qwen's down in its program */
    TN_FAIL_IF(s->patch < 1 || s->patch > 256 || s->n_layers < 1 || s->n_layers > TN_TOWER_LAYERS ||
                   s->n_heads < 1 || s->width < s->n_heads,
               r->err, TERN_E_FORMAT, "%s: an encoder of %d layers, %d heads over %d values, patches of %d",
               r->file, s->n_layers, s->n_heads, s->width, s->patch);
    return TERN_OK;
}

/* Every n-th layer has no windows. */
static tern_status read_windows(const reading *r, const json_t *v) {
    const json_t *full = json_object_get(v, "fullatt_block_indexes");
    const size_t n = json_array_size(full);
    TN_TRY(whole(r, v, "window_size", 112, &r->s->window));
    r->s->full_every = n ? (int32_t)json_integer_value(json_array_get(full, 0)) + 1 : 8;
    bool regular = r->s->full_every >= 1 && r->s->full_every <= r->s->n_layers;
    for (size_t i = 0; i < n; i++)
        regular = regular &&
                  json_integer_value(json_array_get(full, i)) == (json_int_t)(i + 1) * r->s->full_every - 1;
    TN_FAIL_IF(!regular || (n && (int32_t)n != r->s->n_layers / r->s->full_every), r->err, TERN_E_UNSUPPORTED,
               "%s: 'fullatt_block_indexes' is no layer of every so many", r->file);
    return TERN_OK;
}

static tern_status read_deep(const reading *r, const json_t *v, tn_tower_config *c) {
    const json_t *deep = json_object_get(v, "deepstack_visual_indexes");
    TN_FAIL_IF(json_array_size(deep) > TN_TOWER_DEEP, r->err, TERN_E_LIMIT,
               "%s: 'deepstack_visual_indexes' has %zu layers; up to %d", r->file, json_array_size(deep),
               TN_TOWER_DEEP);
    for (size_t i = 0; i < json_array_size(deep); i++) {
        const json_int_t layer = json_integer_value(json_array_get(deep, i));
        TN_FAIL_IF(!json_is_integer(json_array_get(deep, i)) || layer < 0 || layer >= r->s->n_layers ||
                       (i && layer <= c->deep[i - 1]),
                   r->err, TERN_E_UNSUPPORTED, "%s: 'deepstack_visual_indexes' is no rising list of layers",
                   r->file);
        c->deep[i] = (int32_t)layer;
        r->s->deep[layer / 64] |= (uint64_t)1 << layer % 64;
        r->s->n_deep++;
    }
    return TERN_OK;
}

static tern_status read_qwen(const reading *r, const json_t *v, tn_tower_config *c) {
    enum { SIDE = 560 }; /* of no consequence: there is no table of positions */
    tn_tower_shape *s = r->s;
    int32_t places, out = s->out;
    TN_TRY(whole(r, v, "spatial_merge_size", 2, &s->shuffle));
    TN_TRY(whole(r, v, "out_hidden_size", 3584, &s->out));
    TN_FAIL_IF(s->out != out, r->err, TERN_E_FORMAT,
               "%s: the encoder's rows have %d values, and the text's %d", r->file, s->out, out);
    s->image = SIDE;
    if (s->kind == TN_TOWER_QWEN25VL) return read_windows(r, v);
    TN_TRY(whole(r, v, "num_position_embeddings", 2304, &places));
    TN_FAIL_IF(!root_of(places) || root_of(places) > 256, r->err, TERN_E_UNSUPPORTED,
               "%s: %d positions are no square of up to 256 x 256", r->file, places);
    s->image = root_of(places) * s->patch;
    return read_deep(r, v, c);
}

static tern_status read_gemma4(const reading *r, const json_t *v, tn_tower_config *c) {
    enum { SIDE = 224 }; /* of no consequence: pictures have any size */
    tn_tower_shape *s = r->s;
    const json_t *rope = json_object_get(v, "rope_parameters");
    const char *type = json_string_value(json_object_get(rope, "rope_type"));
    double theta;
    s->image = SIDE;
    TN_TRY(whole(r, v, "pooling_kernel_size", 3, &s->shuffle));
    TN_TRY(expect(r, v, "head_dim", s->width / s->n_heads));
    TN_TRY(expect(r, v, "global_head_dim", s->width / s->n_heads));
    TN_TRY(expect(r, v, "num_key_value_heads", s->n_heads));
    TN_TRY(number(r, rope, "rope_theta", 100, &theta));
    TN_FAIL_IF(theta != 100 || (type && strcmp(type, "default")), r->err, TERN_E_UNSUPPORTED,
               "%s: the encoder's rope is of type %.20s and base %g; it is supported as default and 100",
               r->file, type ? type : "default", theta);
    c->limited = json_is_true(json_object_get(v, "use_clipped_linears"));
    c->standard = json_is_true(json_object_get(v, "standardize"));
    return TERN_OK;
}

static tern_status read_minicpm(const reading *r, const json_t *top) {
    enum { SLICE = 448, QUERIES = 64 };
    tn_tower_shape *s = r->s;
    const json_t *slices = json_object_get(top, "slice_config");
    for (size_t i = 0; i < sizeof minicpm_rules / sizeof *minicpm_rules; i++) {
        const rule *one = &minicpm_rules[i];
        const json_t *v = json_object_get(top, one->key);
        if (v ? !is_value(v, one->want) : !strcmp(one->want, "false")) return refuse_value(r, one);
    }
    TN_TRY(check(r, slices, slice_rules, sizeof slice_rules / sizeof *slice_rules));
    s->places = s->image / s->patch; /* of the table, for pictures of any size */
    s->shuffle = 1;
    TN_TRY(whole(r, top, "query_num", QUERIES, &s->queries));
    TN_TRY(expect(r, top, "patch_size", s->patch));
    TN_TRY(expect(r, slices, "patch_size", s->patch));
    return whole(r, slices, "scale_resolution", SLICE, &s->image);
}

/* What is said beside vision_config, or in it. */
static tern_status read_family(const reading *r, const json_t *top, const json_t *v, tn_tower_config *c) {
    tn_tower_shape *s = r->s;
    int32_t n;
    double ratio;
    switch (s->kind) {
    case TN_TOWER_IDEFICS3: return whole(r, top, "scale_factor", 2, &s->shuffle);
    case TN_TOWER_GEMMA3:
        TN_TRY(whole(r, top, "mm_tokens_per_image", 256, &n));
        TN_FAIL_IF(!root_of(n) || s->image / s->patch % root_of(n), r->err, TERN_E_UNSUPPORTED,
                   "%s: %d rows are no square part of %d x %d patches", r->file, n, s->image / s->patch,
                   s->image / s->patch);
        s->shuffle = s->image / s->patch / root_of(n);
        return TERN_OK;
    case TN_TOWER_LFM2:
        TN_TRY(whole(r, top, "downsample_factor", 2, &s->shuffle));
        TN_TRY(whole(r, v, "num_patches", 256, &n));
        TN_FAIL_IF(!root_of(n) || root_of(n) > 256, r->err, TERN_E_UNSUPPORTED,
                   "%s: %d positions are no square of up to 256 x 256", r->file, n);
        s->image = root_of(n) * s->patch;
        return TERN_OK;
    case TN_TOWER_INTERNVL:
        TN_TRY(number(r, top, "downsample_ratio", 0.5, &ratio));
        TN_FAIL_IF(!(ratio > 0.01 && ratio <= 1) || 1 / ratio != floor(1 / ratio), r->err, TERN_E_UNSUPPORTED,
                   "%s: 'downsample_ratio' is %g, of which no whole number of patches becomes a row", r->file,
                   ratio);
        s->shuffle = (int32_t)(1 / ratio);
        TN_TRY(expect(r, top, "force_image_size", s->image));
        TN_TRY(whole(r, top, "min_dynamic_patch", 1, &s->min_tiles));
        return whole(r, top, "max_dynamic_patch", 12, &s->max_tiles);
    case TN_TOWER_GEMMA4: return read_gemma4(r, v, c);
    case TN_TOWER_MINICPM: return read_minicpm(r, top);
    default: return read_qwen(r, v, c);
    }
}

/* ---- the processor ---------------------------------------------------------------------------------------- */

static tern_status read_lfm2_processor(const reading *r, const json_t *p) {
    enum { BLOCKS_OF_A_TILE = 16 };
    TN_TRY(expect(r, p, "encoder_patch_size", r->s->patch));
    TN_TRY(expect(r, p, "patch_size", r->s->patch));
    TN_TRY(expect(r, p, "downsample_factor", r->s->shuffle));
    return expect(r, p, "tile_size", (int64_t)BLOCKS_OF_A_TILE * r->s->patch * r->s->shuffle);
}

static tern_status read_pixels(const reading *r, const json_t *p) {
    const json_t *size = json_object_get(p, "size");
    int32_t least = r->s->kind == TN_TOWER_QWEN25VL ? 3136 : 65536,
            most = r->s->kind == TN_TOWER_QWEN25VL ? 12845056 : 16777216;
    TN_TRY(whole(r, size, "shortest_edge", least, &least));
    TN_TRY(whole(r, size, "longest_edge", most, &most));
    TN_TRY(whole(r, p, "min_pixels", least, &least));
    TN_TRY(whole(r, p, "max_pixels", most, &most));
    TN_TRY(expect(r, p, "patch_size", r->s->patch));
    TN_TRY(expect(r, p, "merge_size", r->s->shuffle));
    r->s->min_pixels = least;
    r->s->max_pixels = most;
    return TERN_OK;
}

static tern_status read_views(const reading *r, const json_t *p) {
    tn_tower_shape *s = r->s;
    const json_t *size = json_object_get(p, "size");
    switch (s->kind) {
    case TN_TOWER_IDEFICS3:
        TN_TRY(expect(r, json_object_get(p, "max_image_size"), "longest_edge", s->image));
        return whole(r, size, "longest_edge", -1, &s->longest);
    case TN_TOWER_LFM2: return read_lfm2_processor(r, p);
    case TN_TOWER_INTERNVL:
        TN_TRY(whole(r, p, "min_patches", s->min_tiles, &s->min_tiles));
        TN_TRY(whole(r, p, "max_patches", s->max_tiles, &s->max_tiles)); /* fallthrough */
    case TN_TOWER_GEMMA3:
        TN_TRY(expect(r, size, "height", s->image));
        return expect(r, size, "width", s->image);
    case TN_TOWER_GEMMA4:
        TN_TRY(expect(r, p, "patch_size", s->patch));
        return expect(r, p, "pooling_kernel_size", s->shuffle);
    case TN_TOWER_MINICPM:
        TN_TRY(expect(r, p, "patch_size", s->patch));
        TN_TRY(expect(r, p, "scale_resolution", s->image));
        return expect(r, p, "image_feature_size", s->queries);
    default: return read_pixels(r, p);
    }
}

static tern_status read_processor(const reading *r, const json_t *p) {
    tn_tower_shape *s = r->s;
    double factor;
    TN_TRY(check(r, p, processor_rules, sizeof processor_rules / sizeof *processor_rules));
    TN_TRY(number(r, p, "rescale_factor", 1.0 / 255, &factor));
    TN_FAIL_IF(fabs(factor * 255 - 1) > 1e-6, r->err, TERN_E_UNSUPPORTED,
               "%s: 'rescale_factor' is %g; it is supported as 1/255", r->file, factor);
    if (s->kind == TN_TOWER_GEMMA4) { /* its values are not normalised */
        for (int i = 0; i < 3; i++) s->mean[i] = 0, s->std[i] = 1;
    } else {
        const bool minicpm = s->kind == TN_TOWER_MINICPM;
        TN_TRY(colours(r, p, minicpm ? "norm_mean" : "image_mean", s->mean));
        TN_TRY(colours(r, p, minicpm ? "norm_std" : "image_std", s->std));
    }
    return read_views(r, p);
}

/* preprocessor_config.json, or an object of processor_config.json. */
static tern_status open_processor(const char *folder, char file[4096], json_t **out, tern_error *err) {
    json_t *all;
    *out = NULL;
    snprintf(file, 4096, "%s/preprocessor_config.json", folder);
    if (!access(file, F_OK)) return tn_json_read(file, 0, out, err);
    snprintf(file, 4096, "%s/processor_config.json", folder);
    TN_FAIL_IF(access(file, F_OK), err, TERN_E_FORMAT,
               "%s has no preprocessor_config.json: how its model wants pictures is not known", folder);
    TN_TRY(tn_json_read(file, 0, &all, err));
    *out = json_incref(json_object_get(all, "image_processor"));
    json_decref(all);
    TN_FAIL_IF(!*out, err, TERN_E_FORMAT, "%s says nothing of pictures ('image_processor')", file);
    return TERN_OK;
}

/* ---- the folder --------------------------------------------------------------------------------------------- */

static bool find_family(const json_t *config, tn_tower_kind *kind) {
    const char *type = json_string_value(json_object_get(config, "model_type"));
    for (size_t i = 0; type && i < sizeof families / sizeof *families; i++) {
        if (strcmp(families[i].model_type, type)) continue;
        *kind = families[i].kind;
        return json_is_object(json_object_get(config, "vision_config"));
    }
    return false;
}

bool tn_tower_in_folder(const char *folder, tern_error *why) {
    char file[4096];
    json_t *config;
    tn_tower_kind kind;
    if ((size_t)snprintf(file, sizeof file, "%s/config.json", folder) >= sizeof file ||
        tn_json_read(file, 0, &config, why) != TERN_OK)
        return false;
    const bool ok = find_family(config, &kind);
    json_decref(config);
    if (!ok)
        (void)tn_fail(why, TERN_E_UNSUPPORTED,
                      "%s has no picture encoder that is read, in itself or beside it (a file mmproj*.gguf): "
                      "give one with --mmproj FILE",
                      folder);
    return ok;
}

static tern_status read_config(const reading *r, const json_t *config, tn_tower_config *c) {
    const json_t *vision = json_object_get(config, "vision_config");
    json_t *wrapped;
    TN_FAIL_IF(!find_family(config, &r->s->kind), r->err, TERN_E_UNSUPPORTED,
               "%s: its model has no encoder of pictures that is read", r->file);
    TN_TRY(check(r, vision, vision_rules, sizeof vision_rules / sizeof *vision_rules));
    if (tn_wrapped_text(config)) TN_TRY(check(r, config, top_rules, sizeof top_rules / sizeof *top_rules));
    TN_TRY(tn_wrapped_config(config, r->file, &wrapped, r->err));
    const json_t *text = tn_wrapped_text(wrapped);
    tern_status st = whole(r, text ? text : wrapped, "hidden_size", -1, &r->s->out);
    json_decref(wrapped);
    TN_TRY(st);
    TN_TRY(read_sizes(r, vision));
    TN_TRY(read_family(r, config, vision, c));
    return r->s->kind == TN_TOWER_LFM2 ? read_lfm2_processor(r, config) : TERN_OK;
}

tern_status tn_tower_config_of(const json_t *config, const json_t *processor, const char *config_name,
                               const char *processor_name, tn_tower_config *out, tern_error *err) {
    memset(out, 0, sizeof *out);
    const reading r = {config_name, &out->s, err}, p = {processor_name, &out->s, err};
    TN_TRY(read_config(&r, config, out));
    out->s.longest = out->s.image;
    return read_processor(&p, processor);
}

tern_status tn_tower_config_read(const char *folder, tn_tower_config *out, tern_error *err) {
    char file[4096], other[4096];
    json_t *config, *processor;
    TN_FAIL_IF(strlen(folder) + 32 > sizeof file, err, TERN_E_INVALID, "%s: path too long", folder);
    snprintf(file, sizeof file, "%s/config.json", folder);
    TN_TRY(tn_json_read(file, 0, &config, err));
    tern_status st = open_processor(folder, other, &processor, err);
    if (st == TERN_OK) st = tn_tower_config_of(config, processor, file, other, out, err);
    json_decref(config);
    json_decref(processor);
    return st;
}
