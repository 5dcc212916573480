/* Random encoders of pictures, in the shapes of real ones. */
#include "lab/synth.h"

#include "base/half.h"
#include "base/status.h"
#include "formats/gguf.h"
#include "lab/noise.h"
#include "lab/sim_views.h"
#include "model/tower.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

typedef struct tower {
    const char *name;
    tn_tower_kind kind;
    int32_t n_layers, n_heads, width, ff, image, patch, shuffle, out, longest;
    float eps;
    uint64_t
        deep; /* layers that are read beside the last one, a bit each; of windows: which layers have none */
    int32_t between; /* what the projector's first linear gives; 0: as much as it reads; MiniCPM-V: queries */
    bool normed;     /* LFM2-VL: a layer norm before it */
    int32_t places;  /* Gemma 4: of columns, and of lines; MiniCPM-V: of a side */
    bool limited;    /* Gemma 4: linears have limits; else pooled rows have a bias and a scale */
} tower;

#define DEEP_5_11_17 (1 << 5 | 1 << 11 | 1 << 17)

/* Sizes are as the models' published configurations have them; the last are for tests, odd in every way. */
static const tower towers[] = {
    {"smolvlm-256m-mmproj", TN_TOWER_IDEFICS3, 12, 12, 768, 3072, 512, 16, 4, 576, 2048, 1e-6f, .deep = 0},
    {"smolvlm-500m-mmproj", TN_TOWER_IDEFICS3, 12, 12, 768, 3072, 512, 16, 4, 960, 2048, 1e-6f, .deep = 0},
    {"smolvlm-2.2b-mmproj", TN_TOWER_IDEFICS3, 27, 16, 1152, 4304, 384, 14, 3, 2048, 1536, 1e-6f, .deep = 0},
    {"tiny-smolvlm-mmproj", TN_TOWER_IDEFICS3, 2, 2, 32, 64, 32, 8, 2, 64, 64, 1e-6f, .deep = 0},
    {"tiny-idefics3-mmproj", TN_TOWER_IDEFICS3, 3, 3, 36, 52, 47, 5, 3, 40, 94, 1e-5f, .deep = 0},
    {"gemma3-4b-mmproj", TN_TOWER_GEMMA3, 27, 16, 1152, 4304, 896, 14, 4, 2560, 896, 1e-6f, .deep = 0},
    {"tiny-gemma3-mmproj", TN_TOWER_GEMMA3, 2, 2, 32, 64, 32, 4, 2, 64, 32, 1e-6f, .deep = 0},
    {"qwen3-vl-2b-mmproj", TN_TOWER_QWEN3VL, 24, 16, 1024, 4096, 768, 16, 2, 2048, 0, 1e-6f,
     .deep = DEEP_5_11_17},
    {"qwen3-vl-4b-mmproj", TN_TOWER_QWEN3VL, 24, 16, 1024, 4096, 768, 16, 2, 2560, 0, 1e-6f,
     .deep = DEEP_5_11_17},
    {"qwen3.5-0.8b-mmproj", TN_TOWER_QWEN3VL, 12, 12, 768, 3072, 768, 16, 2, 1024, 0, 1e-6f, .deep = 0},
    {"qwen2.5-vl-3b-mmproj", TN_TOWER_QWEN25VL, 32, 16, 1280, 3420, 560, 14, 2, 2048, 0, 1e-6f, .deep = 8},
    {"tiny-qwen25vl-mmproj", TN_TOWER_QWEN25VL, 3, 2, 80, 44, 56, 14, 2, 64, 0, 1e-6f, .deep = 2},
    {"tiny-qwen3vl-mmproj", TN_TOWER_QWEN3VL, 3, 2, 32, 48, 40, 8, 2, 64, 0, 1e-6f, .deep = 1 << 0 | 1 << 2},
    {"tiny-qwen35-mmproj", TN_TOWER_QWEN3VL, 2, 3, 36, 52, 21, 3, 3, 64, 0, 1e-5f, .deep = 0},
    {"lfm2-vl-450m-mmproj", TN_TOWER_LFM2, 12, 12, 768, 3072, 256, 16, 2, 1024, 0, 1e-6f, .between = 2560,
     .normed = true},
    {"lfm2-vl-1.6b-mmproj", TN_TOWER_LFM2, 26, 16, 1152, 4304, 256, 16, 2, 2048, 0, 1e-6f, .between = 2560,
     .normed = true},
    {"tiny-lfm2vl-mmproj", TN_TOWER_LFM2, 2, 2, 32, 64, 20, 4, 2, 64, 0, 1e-6f, .between = 96,
     .normed = true},
    {"gemma4-e2b-mmproj", TN_TOWER_GEMMA4, 16, 12, 768, 3072, 224, 16, 3, 1536, 0, 1e-6f, .places = 10240,
     .limited = true},
    {"gemma4-31b-mmproj", TN_TOWER_GEMMA4, 27, 16, 1152, 4304, 224, 16, 3, 5376, 0, 1e-6f, .places = 10240},
    {"tiny-gemma4-mmproj", TN_TOWER_GEMMA4, 2, 2, 32, 64, 24, 4, 3, 64, 0, 1e-6f, .places = 900,
     .limited = true},
    {"tiny-gemma4-31b-mmproj", TN_TOWER_GEMMA4, 3, 3, 36, 52, 21, 3, 2, 64, 0, 1e-5f, .places = 700},
    {"internvl-mmproj", TN_TOWER_INTERNVL, 24, 16, 1024, 4096, 448, 14, 2, 896, 0, 1e-6f, .between = 896},
    {"tiny-internvl-mmproj", TN_TOWER_INTERNVL, 2, 2, 32, 64, 24, 4, 2, 64, 0, 1e-6f, .between = 64},
    {"tiny-interns1-mmproj", TN_TOWER_INTERNVL, 3, 3, 36, 52, 47, 5, 3, 64, 0, 1e-5f, .between = 700},
    /* 2.6; positions are of 70 x 70 places */
    {"minicpmv-mmproj", TN_TOWER_MINICPM, 27, 16, 1152, 4304, 448, 14, 0, 3584, 0, 1e-6f, .between = 64,
     .places = 70},
    {"tiny-minicpmv-mmproj", TN_TOWER_MINICPM, 2, 2, 32, 64, 32, 4, 0, 256, 0, 1e-6f, .between = 5,
     .places = 7},
    {"tiny-minicpmo-mmproj", TN_TOWER_MINICPM, 3, 3, 36, 52, 30, 3, 0, 128, 0, 1e-5f, .between = 70,
     .places = 4},
    {"tiny-lfm2.5vl-mmproj", TN_TOWER_LFM2, 3, 3, 36, 52, 21, 3, 3, 64, 0, 1e-5f, .between = 700},
};

static const tower *tower_of(const char *name) {
    for (size_t i = 0; i < sizeof towers / sizeof *towers; i++)
        if (!strcmp(towers[i].name, name)) return &towers[i];
    return NULL;
}

const char *tn_synth_tower_name(size_t i) {
    return i < sizeof towers / sizeof *towers ? towers[i].name : NULL;
}
bool tn_synth_is_tower(const char *name) { return tower_of(name); }

bool tn_sim_encoder_find(const char *name, tn_sim_encoder *out) {
    const tower *t = tower_of(name);
    if (!t) return false;
    const int32_t side = t->image / t->patch, n = t->shuffle ? t->shuffle : 1;
    const bool means =
        t->kind == TN_TOWER_GEMMA3 || t->kind == TN_TOWER_GEMMA4 || !t->shuffle; /* of neighbours */
    *out = (tn_sim_encoder){.n_layers = t->n_layers,
                            .width = t->width,
                            .ff = t->ff,
                            .gated = t->kind == TN_TOWER_QWEN25VL || t->kind == TN_TOWER_GEMMA4,
                            .patches = side * side,
                            .rows = t->shuffle ? (side / n) * (side / n) : t->between,
                            .joined = t->width * (means ? 1 : n * n),
                            .out = t->out};
    return true;
}

typedef struct writing {
    const tower *t;
    tn_gguf_writer *w;
    tn_ctx *ctx;
    tn_dtype dtype;
    uint64_t seed, n_tensors;
    bool declares; /* every tensor first, then the bytes of all */
    tern_status status;
    tern_error *err;
} writing;

static void convert(tn_dtype d, const float *v, uint8_t *out, uint64_t n) {
    if (d == TN_F32) memcpy(out, v, n * 4);
    if (d == TN_Q8_0) tn_quantise_q8_0(v, out, n);
    for (uint64_t i = 0; (d == TN_F16 || d == TN_BF16) && i < n; i++) {
        uint16_t h = d == TN_F16 ? tn_f32_f16(v[i]) : tn_f32_bf16(v[i]);
        memcpy(out + 2 * i, &h, 2);
    }
}

static void produce(writing *x, tn_dtype d, uint64_t n, float offset, float scale) {
    float *v = tn_alloc(x->ctx, TN_MEM_OTHER, n, sizeof *v);
    uint8_t *out = tn_alloc(x->ctx, TN_MEM_OTHER, n, 4);
    if (v && out) {
        for (uint64_t i = 0; i < n; i++)
            v[i] = offset + scale * tn_synth_noise(x->seed ^ x->n_tensors << 40, i);
        convert(d, v, out, n);
        x->status = tn_gguf_write(
            x->w, out, n / (uint64_t)tn_dtype_block(d) * (uint64_t)tn_dtype_block_bytes(d), x->err);
    } else {
        x->status = tn_fail(x->err, TERN_E_MEMORY, "no memory to write an encoder");
    }
    tn_free(x->ctx, v);
    tn_free(x->ctx, out);
}

/* A tensor of n_dims dimensions, outermost first. */
static void tensor(writing *x, const char *name, int n_dims, const uint64_t *dims, float offset,
                   float scale) {
    uint64_t n = 1;
    for (int i = 0; i < n_dims; i++) n *= dims[i];
    const bool plain = n_dims == 1 || !strncmp(name, "v.position", 10) || !strncmp(name, "v.class", 7);
    tn_dtype d = plain                                                      ? TN_F32
                 : x->dtype == TN_Q8_0 && (n_dims > 2 || dims[1] % 32 != 0) ? TN_F16
                                                                            : x->dtype;
    x->n_tensors++;
    if (x->declares) tn_gguf_add_tensor(x->w, name, d, n_dims, dims);
    else if (x->status == TERN_OK) produce(x, d, n, offset, scale);
}

static void vector(writing *x, int layer, const char *name, int32_t n, float offset, float scale) {
    char full[64];
    if (layer < 0) snprintf(full, sizeof full, "%s", name);
    else snprintf(full, sizeof full, "v.blk.%d.%s", layer, name);
    tensor(x, full, 1, (uint64_t[]){(uint64_t)n}, offset, scale);
}

static void linear(writing *x, int layer, const char *name, int32_t n, int32_t k, float gain) {
    char full[64];
    if (layer < 0) snprintf(full, sizeof full, "%s.weight", name);
    else snprintf(full, sizeof full, "v.blk.%d.%s.weight", layer, name);
    tensor(x, full, 2, (uint64_t[]){(uint64_t)n, (uint64_t)k}, 0, gain / sqrtf((float)k));
    snprintf(full, sizeof full, "%s.bias", name);
    vector(x, layer, full, n, 0, 0.2f);
}

/* Two products of neighbours side by side. */
static void merger(writing *x, const char *fc1, const char *fc2) {
    const int32_t wide = x->t->width * x->t->shuffle * x->t->shuffle,
                  between = x->t->between ? x->t->between : wide;
    linear(x, -1, fc1, between, wide, 1);
    linear(x, -1, fc2, x->t->out, between, 1);
}

/* The layer norm of neighbours side by side. */
static void merger_norm(writing *x, const char *name) {
    const int32_t wide = x->t->width * x->t->shuffle * x->t->shuffle;
    char full[40];
    snprintf(full, sizeof full, "%s.weight", name);
    vector(x, -1, full, wide, 1, 0.2f);
    snprintf(full, sizeof full, "%s.bias", name);
    vector(x, -1, full, wide, 0, 0.2f);
}

static void deep_merger(writing *x, int layer) {
    char name[32], other[32];
    snprintf(name, sizeof name, "v.deepstack.%d.norm", layer);
    merger_norm(x, name);
    snprintf(name, sizeof name, "v.deepstack.%d.fc1", layer);
    snprintf(other, sizeof other, "v.deepstack.%d.fc2", layer);
    merger(x, name, other);
}

/* Layer norms have biases, RMS norms none. */
static void norm(writing *x, int layer, const char *name) {
    char full[40];
    snprintf(full, sizeof full, "%s.weight", name);
    vector(x, layer, full, x->t->width, 1, 0.2f);
    snprintf(full, sizeof full, "%s.bias", name);
    const bool rms = x->t->kind == TN_TOWER_QWEN25VL || x->t->kind == TN_TOWER_GEMMA4;
    if (!rms) vector(x, layer, full, x->t->width, 0, 0.2f);
}

/* A linear without a bias, and with limits where the tower has them. */
static void limited(writing *x, int layer, const char *name, int32_t n, int32_t k, float gain) {
    static const struct {
        const char *suffix;
        float at;
    } limits[] = {{"input_min", -1.3f}, {"input_max", 1.4f}, {"output_min", -1.2f}, {"output_max", 1.1f}};
    char full[64];
    snprintf(full, sizeof full, "v.blk.%d.%s.weight", layer, name);
    tensor(x, full, 2, (uint64_t[]){(uint64_t)n, (uint64_t)k}, 0, gain / sqrtf((float)k));
    for (int i = 0; x->t->limited && i < 4; i++) {
        snprintf(full, sizeof full, "%s.%s", name, limits[i].suffix);
        vector(x, layer, full, 1, limits[i].at, 0.2f);
    }
}

static void gemma4_tensors(writing *x) {
    const tower *t = x->t;
    const uint64_t width = (uint64_t)t->width, patch = (uint64_t)t->patch;
    tensor(x, "v.patch_embd.weight", 4, (uint64_t[]){width, 3, patch, patch}, 0,
           1.5f / sqrtf(3 * (float)(patch * patch)));
    tensor(x, "v.position_embd.weight", 3, (uint64_t[]){2, (uint64_t)t->places, width}, 0, 0.3f);
    for (int i = 0; i < t->n_layers; i++) {
        norm(x, i, "ln1");
        limited(x, i, "attn_q", t->width, t->width, 1);
        limited(x, i, "attn_k", t->width, t->width, 1);
        limited(x, i, "attn_v", t->width, t->width, 1);
        limited(x, i, "attn_out", t->width, t->width, 1);
        vector(x, i, "attn_q_norm.weight", t->width / t->n_heads, 0.7f, 0.2f);
        vector(x, i, "attn_k_norm.weight", t->width / t->n_heads, 0.7f, 0.2f);
        vector(x, i, "attn_post_norm.weight", t->width, 1, 0.2f);
        norm(x, i, "ln2");
        limited(x, i, "ffn_gate", t->ff, t->width, 1);
        limited(x, i, "ffn_up", t->ff, t->width, 1);
        limited(x, i, "ffn_down", t->width, t->ff, 1);
        vector(x, i, "ffn_post_norm.weight", t->width, 1, 0.2f);
    }
    if (!t->limited) {
        vector(x, -1, "v.std_bias", t->width, 0, 0.5f);
        vector(x, -1, "v.std_scale", t->width, 1, 0.3f);
    }
    tensor(x, "mm.input_projection.weight", 2, (uint64_t[]){(uint64_t)t->out, width}, 0,
           1 / sqrtf((float)t->width));
    if (t->limited) { /* some of the encoder of sound */
        vector(x, -1, "a.blk.0.norm.weight", t->width, 1, 0.2f);
        vector(x, -1, "mm.a.fc.bias", t->out, 0, 0.2f);
    }
}

/* A linear of the resampler, with a bias or without. */
static void resampling(writing *x, const char *name, int32_t k, bool bias) {
    char full[64];
    snprintf(full, sizeof full, "%s.weight", name);
    tensor(x, full, 2, (uint64_t[]){(uint64_t)x->t->out, (uint64_t)k}, 0, 1.5f / sqrtf((float)k));
    snprintf(full, sizeof full, "%s.bias", name);
    if (bias) vector(x, -1, full, x->t->out, 0, 0.2f);
}

static void resampler(writing *x) {
    static const char *const norms[] = {"resampler.ln_q", "resampler.ln_kv", "resampler.ln_post"},
                             *const attn[] = {"resampler.attn.q", "resampler.attn.k", "resampler.attn.v",
                                              "resampler.attn.out"};
    const int32_t out = x->t->out;
    char full[64];
    tensor(x, "resampler.query", 2, (uint64_t[]){(uint64_t)x->t->between, (uint64_t)out}, 0, 0.5f);
    tensor(x, "resampler.pos_embed_k", 3, (uint64_t[]){2, 2, (uint64_t)out}, 0, 0.5f); /* nobody reads it */
    resampling(x, "resampler.kv", x->t->width, false);
    for (int i = 0; i < 3; i++) {
        snprintf(full, sizeof full, "%s.weight", norms[i]);
        vector(x, -1, full, out, 1, 0.2f);
        snprintf(full, sizeof full, "%s.bias", norms[i]);
        vector(x, -1, full, out, 0, 0.2f);
    }
    for (int i = 0; i < 4; i++) resampling(x, attn[i], out, true);
    resampling(x, "resampler.proj", out, false);
}

static void all_tensors(writing *x) {
    const tower *t = x->t;
    if (t->kind == TN_TOWER_GEMMA4) {
        gemma4_tensors(x);
        return;
    }
    const bool film = tn_tower_has_axes(t->kind), windows = t->kind == TN_TOWER_QWEN25VL,
               classed = t->kind == TN_TOWER_INTERNVL;
    const uint64_t width = (uint64_t)t->width, patch = (uint64_t)t->patch,
                   side = (uint64_t)(t->kind == TN_TOWER_MINICPM ? t->places : t->image / t->patch);
    tensor(x, "v.patch_embd.weight", 4, (uint64_t[]){width, 3, patch, patch}, 0,
           1.5f / sqrtf(3 * (float)(patch * patch)));
    if (film) /* its second moment */
        tensor(x, "v.patch_embd.weight.1", 4, (uint64_t[]){width, 3, patch, patch}, 0,
               1.5f / sqrtf(3 * (float)(patch * patch)));
    if (!windows) vector(x, -1, "v.patch_embd.bias", t->width, 0, 0.2f);
    if (classed) tensor(x, "v.class_embd", 3, (uint64_t[]){1, 1, width}, 0, 0.5f);
    if (classed) tensor(x, "v.position_embd.weight", 3, (uint64_t[]){1, side * side + 1, width}, 0, 0.3f);
    else if (!windows) tensor(x, "v.position_embd.weight", 2, (uint64_t[]){side * side, width}, 0, 0.3f);
    for (int i = 0; i < t->n_layers; i++) {
        norm(x, i, "ln1");
        if (t->kind == TN_TOWER_QWEN3VL) {
            linear(x, i, "attn_qkv", 3 * t->width, t->width, 1.5f);
        } else {
            linear(x, i, "attn_q", t->width, t->width, 1.5f); /* attention is far from uniform */
            linear(x, i, "attn_k", t->width, t->width, 1.5f);
            linear(x, i, "attn_v", t->width, t->width, 1);
        }
        linear(x, i, "attn_out", t->width, t->width, 1);
        norm(x, i, "ln2");
        if (windows) linear(x, i, "ffn_gate", t->ff, t->width, 1);
        linear(x, i, "ffn_up", t->ff, t->width, 1);
        linear(x, i, "ffn_down", t->width, t->ff, 1);
        if (classed) vector(x, i, "ls1.weight", t->width, 0.4f, 0.3f);
        if (classed) vector(x, i, "ls2.weight", t->width, 0.4f, 0.3f);
        if (!windows && t->deep >> i & 1) deep_merger(x, i);
    }
    if (classed) {
        merger_norm(x, "mm.model.mlp.0");
        merger(x, "mm.model.mlp.1", "mm.model.mlp.3");
        return;
    }
    norm(x, -1, "v.post_ln");
    if (t->kind == TN_TOWER_MINICPM) {
        resampler(x);
        return;
    }
    if (film) {
        merger(x, "mm.0", "mm.2");
        return;
    }
    if (t->kind == TN_TOWER_LFM2) {
        if (t->normed) merger_norm(x, "mm.input_norm");
        merger(x, "mm.1", "mm.2");
        return;
    }
    if (t->kind == TN_TOWER_GEMMA3) {
        vector(x, -1, "mm.soft_emb_norm.weight", t->width, 1, 0.2f);
        tensor(x, "mm.input_projection.weight", 2, (uint64_t[]){width, (uint64_t)t->out}, 0,
               1 / sqrtf((float)t->width));
        return;
    }
    const uint64_t k = width * (uint64_t)t->shuffle * (uint64_t)t->shuffle;
    tensor(x, "mm.model.fc.weight", 2, (uint64_t[]){(uint64_t)t->out, k}, 0, 1 / sqrtf((float)k));
}

static void put_keys(const writing *x) {
    static const char *const projectors[TN_N_TOWER_KINDS] = {[TN_TOWER_IDEFICS3] = "idefics3",
                                                             [TN_TOWER_GEMMA3] = "gemma3",
                                                             [TN_TOWER_QWEN25VL] = "qwen2.5vl_merger",
                                                             [TN_TOWER_QWEN3VL] = "qwen3vl_merger",
                                                             [TN_TOWER_LFM2] = "lfm2",
                                                             [TN_TOWER_INTERNVL] = "internvl",
                                                             [TN_TOWER_GEMMA4] = "gemma4v",
                                                             [TN_TOWER_MINICPM] = "resampler"};
    const bool windows = x->t->kind == TN_TOWER_QWEN25VL;
    static const float halves[] = {0.5f, 0.5f, 0.5f}, none[] = {0, 0, 0}, one[] = {1, 1, 1};
    const bool gemma4 = x->t->kind == TN_TOWER_GEMMA4; /* whose encoder of sound is in the same file */
    bool deep[64];
    const tower *t = x->t;
    const struct {
        const char *key;
        int32_t v;
    } numbers[] = {
        {"clip.vision.image_size", t->image},
        {"clip.vision.patch_size", t->patch},
        {"clip.vision.embedding_length", t->width},
        {"clip.vision.feed_forward_length", t->ff},
        {"clip.vision.block_count", t->n_layers},
        {"clip.vision.projection_dim", t->kind == TN_TOWER_MINICPM ? 0 : t->out},
        {"clip.vision.attention.head_count", t->n_heads},
        {tn_tower_has_axes(t->kind) ? "clip.vision.spatial_merge_size" : "clip.vision.projector.scale_factor",
         t->shuffle},
        {"clip.vision.preproc_image_size", t->longest}};
    tn_gguf_put_str(x->w, "general.architecture", "clip");
    tn_gguf_put_str(x->w, "general.type", "mmproj");
    tn_gguf_put_str(x->w, "general.name", t->name);
    tn_gguf_put_bool(x->w, "clip.has_vision_encoder", true);
    tn_gguf_put_str(x->w, gemma4 ? "clip.vision.projector_type" : "clip.projector_type", projectors[t->kind]);
    if (!gemma4) tn_gguf_put_bool(x->w, windows ? "clip.use_silu" : "clip.use_gelu", true);
    if (windows) tn_gguf_put_u32(x->w, "clip.vision.n_wa_pattern", (uint32_t)t->deep);
    if (t->kind == TN_TOWER_MINICPM) { /* as its converter writes them */
        tn_gguf_put_bool(x->w, "clip.has_minicpmv_projector", true);
        tn_gguf_put_bool(x->w, "clip.has_text_encoder", false);
        tn_gguf_put_i32(x->w, "clip.minicpmv_version", 3);
        tn_gguf_put_u32(x->w, "clip.minicpmv_query_num", 0);
        tn_gguf_put_u32(x->w, "clip.vision.projection_dim", 0);
    }
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        if (numbers[i].v) tn_gguf_put_u32(x->w, numbers[i].key, (uint32_t)numbers[i].v);
    for (int i = 0; i < t->n_layers; i++) deep[i] = t->deep >> i & 1;
    if (t->kind == TN_TOWER_QWEN3VL)
        tn_gguf_put_arr_bool(x->w, "clip.vision.is_deepstack_layers", deep, (size_t)t->n_layers);
    tn_gguf_put_f32(x->w, "clip.vision.attention.layer_norm_epsilon", t->eps);
    tn_gguf_put_arr_f32(x->w, "clip.vision.image_mean", gemma4 ? none : halves, 3);
    tn_gguf_put_arr_f32(x->w, "clip.vision.image_std", gemma4 ? one : halves, 3);
    if (!gemma4 || !t->limited) return;
    tn_gguf_put_bool(x->w, "clip.has_audio_encoder", true);
    tn_gguf_put_str(x->w, "clip.audio.projector_type", "gemma4a");
    tn_gguf_put_u32(x->w, "clip.audio.block_count", 1);
}

tern_status tn_synth_tower(tn_ctx *ctx, const char *name, const char *path, uint64_t seed, tn_dtype dtype,
                           tern_error *err) {
    writing x = {.t = tower_of(name), .ctx = ctx, .dtype = dtype, .declares = true, .err = err};
    TN_FAIL_IF(!x.t, err, TERN_E_INVALID, "encoder '%s' is unknown; tern synth --list names those there are",
               name);
    TN_FAIL_IF(dtype != TN_F32 && dtype != TN_F16 && dtype != TN_BF16 && dtype != TN_Q8_0, err,
               TERN_E_INVALID, "weights of an encoder can be written as F32, F16, BF16 or Q8_0");
    tn_rng r = {seed};
    x.seed = tn_rng_u64(&r);
    TN_TRY(tn_gguf_create(ctx, path, &x.w, err));
    put_keys(&x);
    all_tensors(&x);
    x.declares = false;
    x.n_tensors = 0;
    x.status = tn_gguf_begin_data(x.w, err);
    if (x.status == TERN_OK) all_tensors(&x);
    if (x.status == TERN_OK) x.status = tn_gguf_finish(&x.w, err);
    tn_gguf_abort(&x.w);
    return x.status;
}
