/* Reading a tower from an mmproj file: its keys, then its tensors. */
#include "model/tower_impl.h"

#include "base/cpu.h"
#include "base/finite.h"
#include "base/status.h"
#include "formats/gguf.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <xxhash.h>

/* ---- families ---------------------------------------------------------------------------------------- */

static const struct {
    const char *projector;
    int32_t shuffle;                /* where the file does not say it; 0: it must */
    int64_t min_pixels, max_pixels; /* as their processors have them; 0: there are tiles */
} families[TN_N_TOWER_KINDS] = {[TN_TOWER_IDEFICS3] = {"idefics3", 0, 0, 0},
                                [TN_TOWER_GEMMA3] = {"gemma3", 4, 0, 0},
                                [TN_TOWER_QWEN25VL] = {"qwen2.5vl_merger", 2, 3136, 12845056},
                                [TN_TOWER_QWEN3VL] = {"qwen3vl_merger", 2, 65536, 16777216},
                                [TN_TOWER_LFM2] = {"lfm2", 0, 0, 0},
                                [TN_TOWER_INTERNVL] = {"internvl", 0, 0, 0}};

enum {
    TILED = 1 << TN_TOWER_IDEFICS3 | 1 << TN_TOWER_GEMMA3,
    WINDOWS = 1 << TN_TOWER_QWEN25VL,
    DEEP = 1 << TN_TOWER_QWEN3VL,
    LFM2 = 1 << TN_TOWER_LFM2,
    INTERNVL = 1 << TN_TOWER_INTERNVL,
    QWEN = WINDOWS | DEEP,
    ALL = TILED | QWEN | LFM2 | INTERNVL
};

static bool find_family(const char *name, size_t n, tn_tower_kind *out) {
    for (int i = 0; i < TN_N_TOWER_KINDS; i++) {
        if (strlen(families[i].projector) != n || memcmp(families[i].projector, name, n)) continue;
        *out = (tn_tower_kind)i;
        return true;
    }
    return false;
}

/* ---- keys ------------------------------------------------------------------------------------------- */

typedef struct int_key {
    const char *name;
    size_t at; /* in tn_tower_shape */
    int64_t low, high;
    unsigned of; /* families that read it, a bit each */
} int_key;

#define SHAPE(field) offsetof(tn_tower_shape, field)
static const int_key int_keys[] = {
    {"clip.vision.image_size", SHAPE(image), 1, 4096, ALL},
    {"clip.vision.patch_size", SHAPE(patch), 1, 256, ALL},
    {"clip.vision.block_count", SHAPE(n_layers), 1, TN_TOWER_LAYERS, ALL},
    {"clip.vision.attention.head_count", SHAPE(n_heads), 1, 256, ALL},
    {"clip.vision.embedding_length", SHAPE(width), 4, 16384, ALL},
    {"clip.vision.feed_forward_length", SHAPE(ff), 1, 65536, ALL},
    {"clip.vision.projection_dim", SHAPE(out), 1, 65536, ALL},
    {"clip.vision.projector.scale_factor", SHAPE(shuffle), 1, 64, TILED | LFM2 | INTERNVL},
    {"clip.vision.spatial_merge_size", SHAPE(shuffle), 1, 64, QWEN},
};

/* Further keys that are read, or that change nothing. */
static const struct {
    const char *name;
    unsigned of;
} other_keys[] = {
    {"clip.vision.image_mean", ALL},
    {"clip.vision.image_std", ALL},
    {"clip.vision.attention.layer_norm_epsilon", ALL},
    {"clip.vision.preproc_image_size", TILED},
    {"clip.vision.is_deepstack_layers", DEEP},
    {"clip.vision.n_wa_pattern", WINDOWS},
    {"clip.vision.window_size", WINDOWS},
    {"clip.vision.preproc_min_tiles", INTERNVL},
    {"clip.vision.preproc_max_tiles", INTERNVL},
    {"clip.vision.image_min_pixels", QWEN},
    {"clip.vision.image_max_pixels", QWEN},
    {"clip.projector_type", ALL},
    {"clip.vision.projector_type", ALL},
    {"clip.use_gelu", ALL},
    {"clip.use_silu", ALL},
    {"clip.has_vision_encoder", ALL},
    {"clip.has_audio_encoder", ALL},
    {"clip.has_text_encoder", ALL},
    {"clip.has_llava_projector", ALL},
};

static bool is_key(const char *name, unsigned of, tn_tower_kind kind, const char *key, size_t n) {
    return of >> kind & 1 && strlen(name) == n && !memcmp(name, key, n);
}

static bool is_known(tn_tower_kind kind, const char *key, size_t n) {
    for (size_t i = 0; i < sizeof int_keys / sizeof *int_keys; i++)
        if (is_key(int_keys[i].name, int_keys[i].of, kind, key, n)) return true;
    for (size_t i = 0; i < sizeof other_keys / sizeof *other_keys; i++)
        if (is_key(other_keys[i].name, other_keys[i].of, kind, key, n)) return true;
    return false;
}

/* Names of files, authors and versions change no result; everything else must be known. */
static tern_status check_keys(const tn_gguf *g, tn_tower_kind kind, tern_error *err) {
    for (size_t i = 0; i < tn_gguf_n_keys(g); i++) {
        size_t n;
        const char *key = tn_gguf_key_at(g, i, &n);
        if (n >= 8 && !memcmp(key, "general.", 8)) continue;
        TN_FAIL_IF(!is_known(kind, key, n), err, TERN_E_UNSUPPORTED,
                   "%s: the key %.*s is not known, and what it says could change every result",
                   tn_gguf_path(g), n > 80 ? 80 : (int)n, key);
    }
    return TERN_OK;
}

static bool flag(const tn_gguf *g, const char *key) {
    bool on = false;
    return tn_gguf_bool(g, key, &on) && on;
}

/* A number that a file need not have: *v stays where it does not. */
static tern_status read_int(const tn_gguf *g, const char *key, int64_t *v, tern_error *err) {
    TN_FAIL_IF(!tn_gguf_i64(g, key, v) && tn_gguf_has(g, key), err, TERN_E_FORMAT,
               "%s: %s is no whole number", tn_gguf_path(g), key);
    return TERN_OK;
}

static tern_status check_flags(const tn_gguf *g, tern_error *err) {
    static const char *const keys[] = {"clip.has_vision_encoder", "clip.has_audio_encoder",
                                       "clip.has_text_encoder",   "clip.has_llava_projector",
                                       "clip.use_silu",           "clip.use_gelu"};
    bool on;
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        TN_FAIL_IF(tn_gguf_has(g, keys[i]) && !tn_gguf_bool(g, keys[i], &on), err, TERN_E_FORMAT,
                   "%s: %s is neither true nor false", tn_gguf_path(g), keys[i]);
    TN_FAIL_IF(tn_gguf_has(g, keys[0]) && !flag(g, keys[0]), err, TERN_E_UNSUPPORTED,
               "%s has no encoder of pictures: %s is false", tn_gguf_path(g), keys[0]);
    return TERN_OK;
}

static tern_status check_kind(const tn_gguf *g, tn_tower_kind *kind, tern_error *err) {
    const char *path = tn_gguf_path(g), *type = NULL, *arch = "";
    size_t n = 0, n_arch = 0;
    (void)tn_gguf_str(g, "general.architecture", &arch, &n_arch);
    TN_FAIL_IF(n_arch != 4 || memcmp(arch, "clip", 4), err, TERN_E_FORMAT,
               "%s: this is no encoder of pictures (an mmproj file): its architecture is \"%.*s\", not "
               "\"clip\"",
               path, n_arch > 40 ? 40 : (int)n_arch, arch);
    TN_TRY(check_flags(g, err));
    TN_FAIL_IF(flag(g, "clip.has_audio_encoder"), err, TERN_E_UNSUPPORTED,
               "%s has an encoder of sound, which is not read yet", path);
    if (!tn_gguf_str(g, "clip.vision.projector_type", &type, &n))
        (void)tn_gguf_str(g, "clip.projector_type", &type, &n);
    TN_FAIL_IF(!type, err, TERN_E_FORMAT, "%s names no projector (clip.projector_type)", path);
    TN_FAIL_IF(!find_family(type, n, kind), err, TERN_E_UNSUPPORTED,
               "%s: the projector \"%.*s\" is not known: Idefics3 and SmolVLM (\"idefics3\"), Gemma 3 "
               "(\"gemma3\"), Qwen2.5-VL (\"qwen2.5vl_merger\"), Qwen3-VL (\"qwen3vl_merger\"), LFM2-VL "
               "(\"lfm2\") and InternVL (\"internvl\") are read",
               path, n > 40 ? 40 : (int)n, type);
    const bool silu = flag(g, "clip.use_silu"), gelu = flag(g, "clip.use_gelu");
    TN_FAIL_IF(*kind == TN_TOWER_QWEN25VL ? !silu || gelu : silu || !gelu, err, TERN_E_UNSUPPORTED,
               "%s: the tower's activation is %s, and %s is what is known (clip.use_%s)", path,
               silu   ? "SiLU"
               : gelu ? "GELU"
                      : "the quick form of GELU",
               *kind == TN_TOWER_QWEN25VL ? "SiLU" : "GELU", *kind == TN_TOWER_QWEN25VL ? "silu" : "gelu");
    return TERN_OK;
}

static tern_status read_colours(const tn_gguf *g, const char *key, float *out, tern_error *err) {
    int64_t n = tn_gguf_arr_n(g, key);
    TN_FAIL_IF(n != 3, err, TERN_E_FORMAT, "%s: %s must have 3 values and has %d", tn_gguf_path(g), key,
               n < 0 ? 0 : (int)n);
    for (int i = 0; i < 3; i++) {
        double v;
        TN_FAIL_IF(!tn_gguf_arr_f64(g, key, i, &v) || !isfinite(v) || fabs(v) > 1e6, err, TERN_E_FORMAT,
                   "%s: value %d of %s is no colour", tn_gguf_path(g), i, key);
        out[i] = (float)v;
    }
    return TERN_OK;
}

static tern_status check_shape(const tn_gguf *g, const tn_tower_shape *s, int32_t n_embd, tern_error *err) {
    const char *path = tn_gguf_path(g);
    TN_FAIL_IF(n_embd && s->out != n_embd, err, TERN_E_INVALID,
               "%s is of another model: its rows have %d values and the model's have %d", path, s->out,
               n_embd);
    const bool whole = tn_tower_any_size(s->kind) || tn_tower_side(s) % s->shuffle == 0;
    TN_FAIL_IF(s->patch > s->image || !whole, err, TERN_E_FORMAT,
               "%s: tiles of %d pixels, patches of %d and a shuffle of %d do not go together", path, s->image,
               s->patch, s->shuffle);
    TN_FAIL_IF(tn_tower_side(s) > 256, err, TERN_E_LIMIT, "%s: a tile has %d x %d patches; up to 256 x 256",
               path, tn_tower_side(s), tn_tower_side(s));
    TN_FAIL_IF(s->width % s->n_heads || s->width / s->n_heads % 4 || s->width / s->n_heads > 512, err,
               TERN_E_UNSUPPORTED, "%s: %d heads over a width of %d are not known", path, s->n_heads,
               s->width);
    for (int i = 0; i < 3; i++)
        TN_FAIL_IF(!(s->std[i] > 0), err, TERN_E_FORMAT, "%s: clip.vision.image_std is not positive", path);
    return TERN_OK;
}

/* A flag for every layer; without them, none is read. */
static tern_status read_deep(const tn_gguf *g, tn_tower_shape *s, tern_error *err) {
    static const char key[] = "clip.vision.is_deepstack_layers";
    const int64_t n = tn_gguf_arr_n(g, key);
    if (s->kind != TN_TOWER_QWEN3VL || (n < 0 && !tn_gguf_has(g, key))) return TERN_OK;
    TN_FAIL_IF(n != s->n_layers, err, TERN_E_FORMAT, "%s: %s must have %d values and has %d", tn_gguf_path(g),
               key, s->n_layers, n < 0 ? 0 : (int)n);
    for (int32_t i = 0; i < s->n_layers; i++) {
        int64_t on;
        TN_FAIL_IF(!tn_gguf_arr_i64(g, key, i, &on) || (on != 0 && on != 1), err, TERN_E_FORMAT,
                   "%s: value %d of %s is neither true nor false", tn_gguf_path(g), i, key);
        s->deep[i / 64] |= (uint64_t)on << i % 64;
        s->n_deep += (int32_t)on;
    }
    TN_FAIL_IF(s->n_deep > TN_TOWER_DEEP, err, TERN_E_LIMIT,
               "%s: %d layers are read beside the last; up to %d", tn_gguf_path(g), s->n_deep, TN_TOWER_DEEP);
    return TERN_OK;
}

/* LFM2-VL's processor: views of 64 to 256 rows, and tiles of 256 rows for larger pictures; no file says it. */
static tern_status set_lfm2(const tn_gguf *g, tn_tower_shape *s, tern_error *err) {
    enum { LEAST_ROWS = 64, MOST_ROWS = 256, ROWS_OF_A_SIDE = 16, MIN_TILES = 2, MAX_TILES = 10, MOST = 256 };
    const int64_t block = (int64_t)s->patch * s->shuffle;
    if (s->kind != TN_TOWER_LFM2) return TERN_OK;
    TN_FAIL_IF(block > MOST, err, TERN_E_LIMIT, "%s: a row is of %" PRId64 " pixels a side; up to %d",
               tn_gguf_path(g), block, MOST);
    s->min_pixels = LEAST_ROWS * block * block;
    s->max_pixels = MOST_ROWS * block * block;
    s->tile = (int32_t)(ROWS_OF_A_SIDE * block);
    s->min_tiles = MIN_TILES;
    s->max_tiles = MAX_TILES;
    return TERN_OK;
}

/* InternVL's grids: of as many tiles as the file says, or its processor where the file is old. */
static tern_status read_tiles(const tn_gguf *g, tn_tower_shape *s, tern_error *err) {
    int64_t least = 1, most = 12;
    if (s->kind != TN_TOWER_INTERNVL) return TERN_OK;
    TN_TRY(read_int(g, "clip.vision.preproc_min_tiles", &least, err));
    TN_TRY(read_int(g, "clip.vision.preproc_max_tiles", &most, err));
    TN_FAIL_IF(least < 1 || least > most || most > 256, err, TERN_E_FORMAT,
               "%s: grids of %" PRId64 " to %" PRId64 " tiles; want 1 to 256", tn_gguf_path(g), least, most);
    s->min_tiles = (int32_t)least;
    s->max_tiles = (int32_t)most;
    return TERN_OK;
}

/* Limits of a picture: the file's, or those of the family's processor. */
static tern_status read_pixels(const tn_gguf *g, tn_tower_shape *s, tern_error *err) {
    s->min_pixels = families[s->kind].min_pixels;
    s->max_pixels = families[s->kind].max_pixels;
    if (!s->max_pixels) return set_lfm2(g, s, err);
    TN_TRY(read_int(g, "clip.vision.image_min_pixels", &s->min_pixels, err));
    TN_TRY(read_int(g, "clip.vision.image_max_pixels", &s->max_pixels, err));
    TN_FAIL_IF(s->min_pixels < 1 || s->min_pixels > s->max_pixels || s->max_pixels > 1 << 30, err,
               TERN_E_FORMAT, "%s: pictures of %" PRId64 " to %" PRId64 " pixels; want 1 to %d",
               tn_gguf_path(g), s->min_pixels, s->max_pixels, 1 << 30);
    return TERN_OK;
}

/* Windows of Qwen2.5-VL, in whole blocks of patches. */
static tern_status read_windows(const tn_gguf *g, tn_tower_shape *s, tern_error *err) {
    enum { WINDOW = 112 }; /* pixels, where the file does not say it */
    int64_t window = WINDOW, every = 0;
    if (s->kind != TN_TOWER_QWEN25VL) return TERN_OK;
    TN_TRY(read_int(g, "clip.vision.window_size", &window, err));
    TN_FAIL_IF(!tn_gguf_i64(g, "clip.vision.n_wa_pattern", &every) || every < 1 || every > TN_TOWER_LAYERS,
               err, TERN_E_FORMAT, "%s: clip.vision.n_wa_pattern is missing or not 1 to %d", tn_gguf_path(g),
               TN_TOWER_LAYERS);
    TN_FAIL_IF(window < (int64_t)s->patch * s->shuffle || window > 1 << 20, err, TERN_E_FORMAT,
               "%s: windows of %" PRId64 " pixels, and blocks of %d", tn_gguf_path(g), window,
               s->patch * s->shuffle);
    s->window = (int32_t)window;
    s->full_every = (int32_t)every;
    return TERN_OK;
}

static tern_status read_shape(const tn_gguf *g, int32_t n_embd, tn_tower_shape *s, tern_error *err) {
    const char *path = tn_gguf_path(g);
    TN_TRY(check_kind(g, &s->kind, err));
    TN_TRY(check_keys(g, s->kind, err));
    for (size_t i = 0; i < sizeof int_keys / sizeof *int_keys; i++) {
        const int_key *k = &int_keys[i];
        if (!(k->of >> s->kind & 1)) continue;
        int64_t v = k->at == SHAPE(shuffle) ? families[s->kind].shuffle : 0;
        TN_FAIL_IF(!v && !tn_gguf_has(g, k->name), err, TERN_E_FORMAT, "%s lacks %s", path, k->name);
        TN_TRY(read_int(g, k->name, &v, err));
        TN_FAIL_IF(v < k->low || v > k->high, err, TERN_E_FORMAT,
                   "%s: %s is %" PRId64 "; want %" PRId64 " to %" PRId64, path, k->name, v, k->low, k->high);
        *(int32_t *)((char *)s + k->at) = (int32_t)v;
    }
    double eps;
    TN_FAIL_IF(!tn_gguf_f64(g, "clip.vision.attention.layer_norm_epsilon", &eps) || !(eps > 0) || eps > 1,
               err, TERN_E_FORMAT,
               "%s: clip.vision.attention.layer_norm_epsilon is missing or no small number", path);
    s->eps = (float)eps;
    TN_TRY(read_colours(g, "clip.vision.image_mean", s->mean, err));
    TN_TRY(read_colours(g, "clip.vision.image_std", s->std, err));
    int64_t longest = s->kind == TN_TOWER_IDEFICS3 ? 4 * (int64_t)s->image : s->image;
    if (s->kind == TN_TOWER_IDEFICS3) TN_TRY(read_int(g, "clip.vision.preproc_image_size", &longest, err));
    TN_FAIL_IF(longest < s->image || longest > 16 * (int64_t)s->image, err, TERN_E_FORMAT,
               "%s: clip.vision.preproc_image_size is %" PRId64 "; want %d to %d", path, longest, s->image,
               16 * s->image);
    s->longest = (int32_t)longest;
    TN_TRY(read_pixels(g, s, err));
    TN_TRY(read_tiles(g, s, err));
    TN_TRY(read_deep(g, s, err));
    TN_TRY(read_windows(g, s, err));
    return check_shape(g, s, n_embd, err);
}

/* ---- tensors ------------------------------------------------------------------------------------------ */

/* A tensor, and where it goes: a vector of n * k values, or a linear. */
typedef struct want {
    char name[40];
    const tn_tensor *t;
    float **vector;
    tn_linear *linear;
    int64_t n, k;
    int64_t row0,
        all;     /* where it is a part of the file's tensor: its first row, and all rows; all 0: the whole */
    int n_dims;  /* 4: of a convolution */
    bool loose;  /* further dimensions of 1 may stand in front */
    bool turned; /* the file has [k][n] */
    uint64_t hash;
    tern_status status;
    tern_error err;
} want;

typedef struct reading {
    tn_tower *t;
    const tn_gguf *g;
    tn_pool *pool;
    want *wants;
    size_t n, cap;
} reading;

static want *add(reading *r, int layer, const char *name, const char *suffix, int64_t n, int64_t k) {
    assert(r->n < r->cap);
    want *w = &r->wants[r->n++];
    *w = (want){.n = n, .k = k, .n_dims = k > 1 ? 2 : 1};
    if (layer < 0) snprintf(w->name, sizeof w->name, "%s.%s", name, suffix);
    else snprintf(w->name, sizeof w->name, "v.blk.%d.%s.%s", layer, name, suffix);
    return w;
}

static void add_norm(reading *r, int layer, const char *name, float **weight_bias) {
    add(r, layer, name, "weight", r->t->s.width, 1)->vector = &weight_bias[0];
    if (r->t->s.kind != TN_TOWER_QWEN25VL)
        add(r, layer, name, "bias", r->t->s.width, 1)->vector = &weight_bias[1];
}

static void add_linear(reading *r, int layer, const char *name, int64_t n, int64_t k, bool bias,
                       tn_linear *l) {
    add(r, layer, name, "weight", n, k)->linear = l;
    if (bias) add(r, layer, name, "bias", n, 1)->vector = &l->bias;
}

/* Queries, keys and values, one after another in one tensor of the file. */
static void add_joint(reading *r, int layer, tn_tower_layer *l) {
    tn_linear *const parts[] = {&l->q, &l->k, &l->v};
    const int64_t width = r->t->s.width;
    for (int i = 0; i < 3; i++) {
        add_linear(r, layer, "attn_qkv", width, width, true, parts[i]);
        for (size_t j = r->n - 2; j < r->n; j++) {
            r->wants[j].row0 = i * width;
            r->wants[j].all = 3 * width;
        }
    }
}

static void add_merger(reading *r, int layer, tn_tower_merger *m) {
    const tn_tower_shape *s = &r->t->s;
    const int64_t wide = (int64_t)s->width * s->shuffle * s->shuffle;
    char name[32];
    snprintf(name, sizeof name, "v.deepstack.%d.norm", layer);
    add(r, -1, name, "weight", wide, 1)->vector = &m->norm[0];
    add(r, -1, name, "bias", wide, 1)->vector = &m->norm[1];
    snprintf(name, sizeof name, "v.deepstack.%d.fc1", layer);
    add_linear(r, -1, name, wide, wide, true, &m->fc1);
    snprintf(name, sizeof name, "v.deepstack.%d.fc2", layer);
    add_linear(r, -1, name, s->out, wide, true, &m->fc2);
}

/* The patches' kernel; that of a film has two moments. */
static void add_patches(reading *r) {
    tn_tower *t = r->t;
    const int64_t width = t->s.width, k = 3 * (int64_t)t->s.patch * t->s.patch;
    if (tn_tower_has_axes(t->s.kind)) {
        add(r, -1, "v.patch_embd", "weight", width, k)->vector = &t->moment[0];
        add(r, -1, "v.patch_embd", "weight.1", width, k)->vector = &t->moment[1];
        if (t->s.kind == TN_TOWER_QWEN3VL)
            add(r, -1, "v.patch_embd", "bias", width, 1)->vector = &t->patch.bias;
        r->wants[1].n_dims = 4;
    } else {
        add_linear(r, -1, "v.patch_embd", width, k, true, &t->patch);
    }
    r->wants[0].n_dims = 4;
}

/* Old files call the two linears of a feed-forward by each other's names: the shapes tell. */
static bool is_swapped(const reading *r) {
    const tn_tensor *up = tn_gguf_tensor(r->g, "v.blk.0.ffn_up.weight");
    const tn_tower_shape *s = &r->t->s;
    return up && up->n_dims == 2 && s->ff != s->width && up->dims[0] == (uint64_t)s->width &&
           up->dims[1] == (uint64_t)s->ff;
}

/* The class and n positions, its own in front; both may be batches of one. */
static void add_class(reading *r, int64_t n) {
    want *w = add(r, -1, "v.class_embd", "", r->t->s.width, 1);
    w->name[strlen("v.class_embd")] = '\0'; /* the only tensor without a suffix */
    w->vector = &r->t->class;
    w->loose = true;
    w = add(r, -1, "v.position_embd", "weight", n, r->t->s.width);
    w->vector = &r->t->position;
    w->loose = true;
}

/* Outputs of a linear that no key tells: what its tensor has. */
static int64_t outputs(const reading *r, const char *name) {
    const tn_tensor *t = tn_gguf_tensor(r->g, name);
    return t && t->n_dims == 2 && t->dims[0] >= 1 && t->dims[0] <= 65536 ? (int64_t)t->dims[0] : 1;
}

/* Two linears, the first of `wide` inputs; with a layer norm before it where `norm` is named and there. */
static void add_mlp(reading *r, const char *norm, const char *fc1, const char *fc2, int64_t wide) {
    tn_tower *t = r->t;
    char weight[40];
    snprintf(weight, sizeof weight, "%s.weight", fc1);
    const int64_t between = tn_tower_has_axes(t->s.kind) ? wide : outputs(r, weight);
    if (norm) {
        add(r, -1, norm, "weight", wide, 1)->vector = &t->fc_norm[0];
        add(r, -1, norm, "bias", wide, 1)->vector = &t->fc_norm[1];
    }
    add_linear(r, -1, fc1, between, wide, true, &t->fc);
    add_linear(r, -1, fc2, t->s.out, between, true, &t->fc_out);
}

static void list_wants(reading *r) {
    tn_tower *t = r->t;
    const tn_tower_shape *s = &t->s;
    const int64_t side = tn_tower_side(s), width = s->width;
    const char *up = is_swapped(r) ? "ffn_down" : "ffn_up", *down = is_swapped(r) ? "ffn_up" : "ffn_down";
    add_patches(r);
    if (s->kind == TN_TOWER_INTERNVL) add_class(r, side * side + 1);
    else if (s->kind != TN_TOWER_QWEN25VL)
        add(r, -1, "v.position_embd", "weight", side * side, width)->vector = &t->position;
    for (int i = 0; i < s->n_layers; i++) {
        tn_tower_layer *l = &t->layers[i];
        add_norm(r, i, "ln1", l->ln1);
        if (s->kind == TN_TOWER_QWEN3VL) {
            add_joint(r, i, l);
        } else {
            add_linear(r, i, "attn_q", width, width, true, &l->q);
            add_linear(r, i, "attn_k", width, width, true, &l->k);
            add_linear(r, i, "attn_v", width, width, true, &l->v);
        }
        add_linear(r, i, "attn_out", width, width, true, &l->out);
        add_norm(r, i, "ln2", l->ln2);
        if (s->kind == TN_TOWER_QWEN25VL) add_linear(r, i, "ffn_gate", s->ff, width, true, &l->gate);
        add_linear(r, i, up, s->ff, width, true, &l->up);
        add_linear(r, i, down, width, s->ff, true, &l->down);
        if (s->kind == TN_TOWER_INTERNVL) {
            add(r, i, "ls1", "weight", width, 1)->vector = &l->gain[0];
            add(r, i, "ls2", "weight", width, 1)->vector = &l->gain[1];
        }
        if (l->deep) add_merger(r, i, l->deep);
    }
    if (s->kind != TN_TOWER_INTERNVL) add_norm(r, -1, "v.post_ln", t->post_ln);
    const int64_t wide = width * s->shuffle * s->shuffle;
    if (s->kind == TN_TOWER_IDEFICS3) {
        add_linear(r, -1, "mm.model.fc", s->out, wide, false, &t->fc);
    } else if (tn_tower_has_axes(s->kind)) {
        add_mlp(r, NULL, "mm.0", "mm.2", wide);
    } else if (s->kind == TN_TOWER_LFM2) {
        const bool normed = tn_gguf_tensor(r->g, "mm.input_norm.weight");
        add_mlp(r, normed ? "mm.input_norm" : NULL, "mm.1", "mm.2", wide);
    } else if (s->kind == TN_TOWER_INTERNVL) {
        add_mlp(r, "mm.model.mlp.0", "mm.model.mlp.1", "mm.model.mlp.3", wide);
    } else {
        add(r, -1, "mm.soft_emb_norm", "weight", width, 1)->vector = &t->pool_norm;
        add_linear(r, -1, "mm.input_projection", s->out, width, false, &t->fc);
        r->wants[r->n - 1].turned = true;
    }
}

static bool has_shape(const tn_tensor *t, const want *w, const tn_tower_shape *s) {
    const uint64_t n = (uint64_t)(w->all ? w->all : w->n);
    if (w->loose) {
        const int in_front = t->n_dims - w->n_dims;
        bool is =
            in_front >= 0 && t->dims[in_front] == n && (w->k == 1 || t->dims[in_front + 1] == (uint64_t)w->k);
        for (int i = 0; i < in_front; i++) is = is && t->dims[i] == 1;
        return is;
    }
    if (w->n_dims == 4)
        return t->n_dims == 4 && t->dims[0] == (uint64_t)w->n && t->dims[1] == 3 &&
               t->dims[2] == (uint64_t)s->patch && t->dims[3] == (uint64_t)s->patch;
    if (w->turned) return t->n_dims == 2 && t->dims[0] == (uint64_t)w->k && t->dims[1] == (uint64_t)w->n;
    if (w->k == 1) return t->n_dims == 1 && t->dims[0] == n;
    return t->n_dims == 2 && t->dims[0] == n && t->dims[1] == (uint64_t)w->k;
}

/* Finds every tensor, and finds that there are no others, before one is read. */
static tern_status find_tensors(reading *r, tern_error *err) {
    const char *path = tn_gguf_path(r->g);
    for (size_t i = 0; i < r->n; i++) {
        want *w = &r->wants[i];
        w->t = tn_gguf_tensor(r->g, w->name);
        TN_FAIL_IF(!w->t, err, TERN_E_FORMAT, "%s lacks the tensor %s", path, w->name);
        TN_FAIL_IF(!has_shape(w->t, w, &r->t->s), err, TERN_E_FORMAT,
                   "%s: %s has %" PRIu64 " x %" PRIu64 " values in %d dimensions, not %" PRId64 " x %" PRId64,
                   path, w->name, w->t->dims[0], w->t->dims[1], w->t->n_dims, w->all ? w->all : w->n, w->k);
        TN_FAIL_IF(w->t->dtype != TN_F32 && w->t->dtype != TN_F16 && w->t->dtype != TN_BF16 &&
                       w->t->dtype != TN_Q8_0,
                   err, TERN_E_UNSUPPORTED, "%s: %s is of type %s; F32, F16, BF16 and Q8_0 are read", path,
                   w->name, tn_dtype_name(w->t->dtype));
        TN_FAIL_IF(w->row0 * w->k % tn_dtype_block(w->t->dtype), err, TERN_E_UNSUPPORTED,
                   "%s: queries and keys of %s share a block of %s", path, w->name,
                   tn_dtype_name(w->t->dtype));
    }
    for (size_t i = 0; i < tn_gguf_n_tensors(r->g); i++) {
        const char *name = tn_gguf_tensor_at(r->g, i)->name;
        bool known = false;
        for (size_t j = 0; j < r->n && !known; j++) known = !strcmp(name, r->wants[j].name);
        TN_FAIL_IF(!known, err, TERN_E_UNSUPPORTED,
                   "%s: the tensor %.60s is not known, and the tower would be another without it", path,
                   name);
    }
    return TERN_OK;
}

static tn_panel_dtype panel_dtype(tn_dtype d) {
    return d == TN_F16 ? TN_PANEL_F16 : d == TN_BF16 ? TN_PANEL_BF16 : TN_PANEL_F32;
}

/* Panels of the values, in the narrowest type that holds them exactly. */
static tern_status pack(reading *r, want *w, const float *values) {
    tn_linear *l = w->linear;
    l->n = (int32_t)w->n;
    l->k = (int32_t)w->k;
    l->dtype = panel_dtype(w->t->dtype);
    l->panels = tn_alloc(r->t->ctx, TN_MEM_WEIGHTS, tn_panels_bytes(l->dtype, (size_t)w->n, (size_t)w->k), 1);
    TN_FAIL_IF(!l->panels, &w->err, TERN_E_MEMORY, "no memory for %s", w->name);
    tn_panels_pack(l->dtype, l->panels, values, 0, (size_t)w->n, (size_t)w->k);
    return TERN_OK;
}

/* [k][n] becomes [n][k], in memory of its own. */
static tern_status turn(reading *r, want *w, float **values) {
    tn_ctx *ctx = r->t->ctx;
    float *to = tn_alloc(ctx, TN_MEM_OTHER, (size_t)w->n * (size_t)w->k, sizeof *to);
    TN_FAIL_IF(!to, &w->err, TERN_E_MEMORY, "no memory for %s", w->name);
    for (int64_t i = 0; i < w->n; i++)
        for (int64_t j = 0; j < w->k; j++) to[i * w->k + j] = (*values)[j * w->n + i];
    tn_free(ctx, *values);
    *values = to;
    return TERN_OK;
}

static tern_status read_tensor(reading *r, want *w) {
    tn_ctx *ctx = r->t->ctx;
    size_t n = (size_t)w->n * (size_t)w->k;
    float *values = tn_alloc(ctx, w->vector ? TN_MEM_WEIGHTS : TN_MEM_OTHER, n, sizeof *values);
    TN_FAIL_IF(!values, &w->err, TERN_E_MEMORY, "no memory for %s", w->name);
    if (w->vector) *w->vector = values; /* the tower's from here on */
    const size_t block = (size_t)w->row0 * (size_t)w->k / (size_t)tn_dtype_block(w->t->dtype);
    tn_dequantise(w->t->dtype,
                  (const uint8_t *)w->t->data + block * (size_t)tn_dtype_block_bytes(w->t->dtype), values, n);
    w->hash = XXH64(values, n * sizeof *values, 0);
    tern_status st = tn_all_finite(values, n)
                         ? TERN_OK
                         : tn_fail(&w->err, TERN_E_FORMAT, "%s: %s holds values that are not finite",
                                   tn_gguf_path(r->g), w->name);
    if (w->vector) return st;
    if (st == TERN_OK && w->turned) st = turn(r, w, &values);
    if (st == TERN_OK) st = pack(r, w, values);
    tn_free(ctx, values);
    return st;
}

static void read_item(void *arg, int i_item, int i_thread) {
    (void)i_thread;
    reading *r = arg;
    want *w = &r->wants[i_item];
    w->status = read_tensor(r, w);
}

/* The layers' linears become codes, layer by layer: at most one layer is held twice. */
static tern_status to_int8(reading *r, tern_error *err) {
    tn_tower *t = r->t;
    tn_kernels kern;
    tn_kernels_init(&kern, tn_cpu_flags(NULL));
    for (int i = 0; i < t->s.n_layers; i++) {
        tn_tower_layer *l = &t->layers[i];
        tn_linear *const qkv[] = {&l->q, &l->k, &l->v}, *const out[] = {&l->out}, *const up[] = {&l->up},
                         *const down[] = {&l->down}, *const gate[] = {&l->gate};
        TN_TRY(tn_tower_s8_make(t->ctx, &kern, r->pool, qkv, 3, NULL, &l->qkv_s8, &t->bytes, err));
        TN_TRY(tn_tower_s8_make(t->ctx, &kern, r->pool, out, 1, l->gain[0], &l->out_s8, &t->bytes, err));
        TN_TRY(tn_tower_s8_make(t->ctx, &kern, r->pool, up, 1, NULL, &l->up_s8, &t->bytes, err));
        if (l->gate.n)
            TN_TRY(tn_tower_s8_make(t->ctx, &kern, r->pool, gate, 1, NULL, &l->gate_s8, &t->bytes, err));
        TN_TRY(tn_tower_s8_make(t->ctx, &kern, r->pool, down, 1, l->gain[1], &l->down_s8, &t->bytes, err));
    }
    return TERN_OK;
}

/* A picture is two equal moments of a film. */
static tern_status sum_moments(reading *r, tern_error *err) {
    tn_tower *t = r->t;
    tn_linear *l = &t->patch;
    if (!t->moment[0]) return TERN_OK;
    l->n = t->s.width;
    l->k = 3 * t->s.patch * t->s.patch;
    l->dtype = TN_PANEL_F32;
    const size_t n = (size_t)l->n, k = (size_t)l->k;
    l->panels = tn_alloc(t->ctx, TN_MEM_WEIGHTS, tn_panels_bytes(l->dtype, n, k), 1);
    TN_FAIL_IF(!l->panels, err, TERN_E_MEMORY, "no memory for the kernel of an encoder's patches");
    for (size_t i = 0; i < n * k; i++) t->moment[0][i] += t->moment[1][i];
    tn_panels_pack(l->dtype, l->panels, t->moment[0], 0, n, k);
    for (int i = 0; i < 2; i++) {
        tn_free(t->ctx, t->moment[i]);
        t->moment[i] = NULL;
    }
    t->bytes += tn_panels_bytes(l->dtype, n, k);
    return TERN_OK;
}

static tern_status read_tensors(reading *r, tern_error *err) {
    tn_tower *t = r->t;
    tn_pool_for(r->pool, (int)r->n, read_item, r);
    t->fingerprint = XXH64(&t->s, offsetof(tn_tower_shape, tile), (XXH64_hash_t)t->scheme);
    for (size_t i = 0; i < r->n; i++) {
        want *w = &r->wants[i];
        if (w->status != TERN_OK && err) *err = w->err;
        if (w->status != TERN_OK) return w->status;
        t->fingerprint = XXH64(&w->hash, sizeof w->hash, t->fingerprint);
    }
    TN_TRY(sum_moments(r, err));
    if (t->scheme == TN_TOWER_INT8) TN_TRY(to_int8(r, err));
    for (size_t i = 0; i < r->n; i++) { /* what is still held in floats */
        want *w = &r->wants[i];
        if (w->vector && *w->vector) t->bytes += (uint64_t)w->n * (uint64_t)w->k * sizeof(float);
        if (w->linear && w->linear->panels)
            t->bytes += tn_panels_bytes(w->linear->dtype, (size_t)w->n, (size_t)w->k);
    }
    TN_FAIL_IF(tn_gguf_shrank(r->g), err, TERN_E_IO, "%s became shorter while it was read",
               tn_gguf_path(r->g));
    return TERN_OK;
}

/* ---- opening ------------------------------------------------------------------------------------------ */

static tern_status make_layers(tn_tower *t, tern_error *err) {
    const int32_t n = t->s.n_layers;
    t->layers = tn_calloc(t->ctx, TN_MEM_OTHER, (size_t)n, sizeof *t->layers);
    bool ok = t->layers;
    for (int32_t i = 0; ok && i < n; i++) {
        if (!tn_tower_is_deep(&t->s, i)) continue;
        t->layers[i].deep = tn_calloc(t->ctx, TN_MEM_OTHER, 1, sizeof(tn_tower_merger));
        ok = t->layers[i].deep;
    }
    return ok ? TERN_OK : tn_fail(err, TERN_E_MEMORY, "no memory for an encoder of %d layers", n);
}

static tern_status open_gguf(tn_ctx *ctx, tn_pool *pool, const tn_gguf *g, int32_t n_embd,
                             tn_tower_scheme scheme, tn_tower **out, tern_error *err) {
    tn_tower_shape shape;
    memset(&shape, 0, sizeof shape);
    TN_TRY(read_shape(g, n_embd, &shape, err));
    enum { OF_A_LAYER = 24, OTHERS = 12 };
    tn_tower *t = tn_calloc(ctx, TN_MEM_OTHER, 1, sizeof *t);
    TN_FAIL_IF(!t, err, TERN_E_MEMORY, "no memory for an encoder of pictures");
    *t = (tn_tower){.ctx = ctx, .s = shape, .scheme = scheme};
    reading r = {.t = t, .g = g, .pool = pool, .cap = (size_t)shape.n_layers * OF_A_LAYER + OTHERS};
    r.wants = tn_calloc(ctx, TN_MEM_OTHER, r.cap, sizeof *r.wants);
    tern_status st =
        r.wants ? make_layers(t, err)
                : tn_fail(err, TERN_E_MEMORY, "no memory for an encoder of %d layers", shape.n_layers);
    if (st == TERN_OK) {
        list_wants(&r);
        st = find_tensors(&r, err);
    }
    if (st == TERN_OK) st = read_tensors(&r, err);
    tn_free(ctx, r.wants);
    if (st == TERN_OK) *out = t;
    else tn_tower_close(&t);
    return st;
}

tern_status tn_tower_open(tn_ctx *ctx, tn_pool *pool, const char *path, int32_t n_embd,
                          tn_tower_scheme scheme, tn_tower **out, tern_error *err) {
    tn_gguf *g;
    *out = NULL;
    TN_TRY(tn_gguf_open(ctx, path, &g, err));
    tern_status st = open_gguf(ctx, pool, g, n_embd, scheme, out, err);
    tn_gguf_close(&g);
    return st;
}

tern_status tn_tower_open_memory(tn_ctx *ctx, tn_pool *pool, const void *data, uint64_t n_bytes,
                                 int32_t n_embd, tn_tower_scheme scheme, tn_tower **out, tern_error *err) {
    tn_gguf *g;
    *out = NULL;
    TN_TRY(tn_gguf_open_memory(ctx, data, n_bytes, "memory", &g, err));
    tern_status st = open_gguf(ctx, pool, g, n_embd, scheme, out, err);
    tn_gguf_close(&g);
    return st;
}

static void free_linear(tn_ctx *ctx, tn_linear *l) {
    tn_free(ctx, l->panels);
    tn_free(ctx, l->bias);
}

static void free_pair(tn_ctx *ctx, float **weight_bias) {
    tn_free(ctx, weight_bias[0]);
    tn_free(ctx, weight_bias[1]);
}

void tn_tower_close(tn_tower **pt) {
    tn_tower *t = *pt;
    *pt = NULL;
    if (!t) return;
    tn_ctx *ctx = t->ctx;
    for (int i = 0; t->layers && i < t->s.n_layers; i++) {
        tn_tower_layer *l = &t->layers[i];
        free_pair(ctx, l->ln1);
        free_pair(ctx, l->ln2);
        free_pair(ctx, l->gain);
        tn_linear *linears[] = {&l->q, &l->k, &l->v, &l->out, &l->up, &l->down, &l->gate};
        for (size_t j = 0; j < sizeof linears / sizeof *linears; j++) free_linear(ctx, linears[j]);
        tn_tower_s8 *codes[] = {&l->qkv_s8, &l->out_s8, &l->up_s8, &l->down_s8, &l->gate_s8};
        for (size_t j = 0; j < sizeof codes / sizeof *codes; j++) tn_tower_s8_free(ctx, codes[j]);
        if (!l->deep) continue;
        free_pair(ctx, l->deep->norm);
        free_linear(ctx, &l->deep->fc1);
        free_linear(ctx, &l->deep->fc2);
        tn_free(ctx, l->deep);
    }
    free_pair(ctx, t->post_ln);
    free_pair(ctx, t->fc_norm);
    free_linear(ctx, &t->patch);
    free_pair(ctx, t->moment);
    free_linear(ctx, &t->fc);
    free_linear(ctx, &t->fc_out);
    tn_free(ctx, t->class);
    tn_free(ctx, t->position);
    tn_free(ctx, t->pool_norm);
    tn_free(ctx, t->layers);
    tn_free(ctx, t);
}
