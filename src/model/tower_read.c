/* Reading a tower from an mmproj file: its keys, then its tensors. */
#include "model/tower_folder.h"

#include "base/status.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

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
                                [TN_TOWER_INTERNVL] = {"internvl", 0, 0, 0},
                                [TN_TOWER_GEMMA4] = {"gemma4v", 3, 0, 0},
                                [TN_TOWER_MINICPM] = {"resampler", 1, 0, 0}};

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
    {"clip.vision.projection_dim", SHAPE(out), 1, 65536, ALL & ~MINICPM},
    {"clip.vision.projector.scale_factor", SHAPE(shuffle), 1, 64, TILED | LFM2 | INTERNVL | GEMMA4},
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
    {"clip.vision.projection_dim", MINICPM}, /* 0; the tensors tell */
    {"clip.minicpmv_version", MINICPM},
    {"clip.minicpmv_query_num", MINICPM},
    {"clip.has_minicpmv_projector", MINICPM},
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
        if (kind == TN_TOWER_GEMMA4 && n >= 11 && !memcmp(key, "clip.audio.", 11))
            continue; /* of another encoder */
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
    if (!tn_gguf_str(g, "clip.vision.projector_type", &type, &n))
        (void)tn_gguf_str(g, "clip.projector_type", &type, &n);
    TN_FAIL_IF(!type, err, TERN_E_FORMAT, "%s names no projector (clip.projector_type)", path);
    TN_FAIL_IF(
        !find_family(type, n, kind), err, TERN_E_UNSUPPORTED,
        "%s: the projector \"%.*s\" is not known: Idefics3 and SmolVLM (\"idefics3\"), Gemma 3 "
        "(\"gemma3\"), Qwen2.5-VL (\"qwen2.5vl_merger\"), Qwen3-VL (\"qwen3vl_merger\"), LFM2-VL "
        "(\"lfm2\"), InternVL (\"internvl\"), Gemma 4 (\"gemma4v\") and MiniCPM-V (\"resampler\") are read",
        path, n > 40 ? 40 : (int)n, type);
    TN_FAIL_IF(flag(g, "clip.has_audio_encoder") && *kind != TN_TOWER_GEMMA4, err, TERN_E_UNSUPPORTED,
               "%s has an encoder of sound, which is not read yet", path);
    /* Gemma 4's converter writes none of them. */
    const bool silu = flag(g, "clip.use_silu"),
               gelu = flag(g, "clip.use_gelu") ||
                      (*kind == TN_TOWER_GEMMA4 && !silu && !tn_gguf_has(g, "clip.use_gelu"));
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

tern_status tn_tower_fits(const char *path, int32_t out, int32_t n_embd, tern_error *err) {
    TN_FAIL_IF(n_embd && out != n_embd, err, TERN_E_INVALID,
               "%s is of another model: its rows have %d values and the model's have %d", path, out, n_embd);
    return TERN_OK;
}

static tern_status check_shape(const tn_gguf *g, const tn_tower_shape *s, int32_t n_embd, tern_error *err) {
    const char *path = tn_gguf_path(g);
    TN_TRY(tn_tower_fits(path, s->out, n_embd, err));
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

/* LFM2-VL's processor: views of 64 to 256 rows, and tiles of 256 rows for larger pictures; Gemma 4's: views of up to 280
 * rows. No file says it. */
static tern_status set_rows(const tn_gguf *g, tn_tower_shape *s, tern_error *err) {
    enum { LEAST_ROWS = 64, MOST_ROWS = 256, ROWS_OF_A_SIDE = 16, MIN_TILES = 2, MAX_TILES = 10, MOST = 256 };
    enum { GEMMA4_ROWS = 280 };
    const int64_t block = (int64_t)s->patch * s->shuffle;
    if (s->kind != TN_TOWER_LFM2 && s->kind != TN_TOWER_GEMMA4) return TERN_OK;
    TN_FAIL_IF(block > MOST, err, TERN_E_LIMIT, "%s: a row is of %" PRId64 " pixels a side; up to %d",
               tn_gguf_path(g), block, MOST);
    if (s->kind == TN_TOWER_GEMMA4) {
        s->max_pixels = GEMMA4_ROWS * block * block;
        return TERN_OK;
    }
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
    if (!s->max_pixels) return set_rows(g, s, err);
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

/* The square table's side; 0: it is none. */
static int32_t side_of(const tn_tensor *table) {
    int32_t side = 1;
    if (!table || table->n_dims != 2) return 0;
    while (side < 256 && (uint64_t)side * (uint64_t)side < table->dims[0]) side++;
    return (uint64_t)side * (uint64_t)side == table->dims[0] ? side : 0;
}

enum { OLDEST_MINICPM = 3 }; /* 2.6: versions before it have other marks and towers */

/* MiniCPM-V's file leaves to the tensors how wide rows are, how many, and how many places there are. */
static tern_status read_resampler(const tn_tower_file *f, tn_tower_shape *s, tern_error *err) {
    enum { D_HEAD = 128, MOST_QUERIES = 4096 };
    const tn_gguf *g = f->g;
    const char *path = tn_gguf_path(g);
    const tn_tensor *query = tn_tower_tensor(f, "resampler.query");
    int64_t version = 0, n_queries = 0;
    if (s->kind != TN_TOWER_MINICPM) return TERN_OK;
    TN_TRY(read_int(g, "clip.minicpmv_version", &version, err));
    TN_TRY(read_int(g, "clip.minicpmv_query_num", &n_queries, err));
    TN_FAIL_IF(version < OLDEST_MINICPM, err, TERN_E_UNSUPPORTED,
               "%s: clip.minicpmv_version is %" PRId64 "; MiniCPM-V 2.6 (3) and later are read", path,
               version);
    TN_FAIL_IF(!query || query->n_dims != 2 || query->dims[0] > MOST_QUERIES || query->dims[1] > 1 << 16 ||
                   query->dims[1] % D_HEAD,
               err, TERN_E_FORMAT, "%s: resampler.query is missing, or no rows of a multiple of %d values",
               path, D_HEAD);
    TN_FAIL_IF(n_queries && (uint64_t)n_queries != query->dims[0], err, TERN_E_FORMAT,
               "%s: clip.minicpmv_query_num is %" PRId64 ", and there are %" PRIu64 " queries", path,
               n_queries, query->dims[0]);
    s->queries = (int32_t)query->dims[0];
    s->out = (int32_t)query->dims[1];
    s->places = side_of(tn_tower_tensor(f, "v.position_embd.weight"));
    TN_FAIL_IF(!s->places, err, TERN_E_FORMAT,
               "%s: v.position_embd.weight is missing, or no square of up to 256 x 256 places", path);
    return TERN_OK;
}

static tern_status read_shape(const tn_tower_file *f, int32_t n_embd, tn_tower_shape *s, tern_error *err) {
    const tn_gguf *g = f->g;
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
    if (s->kind == TN_TOWER_MINICPM) s->shuffle = families[s->kind].shuffle;
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
    TN_TRY(read_resampler(f, s, err));
    return check_shape(g, s, n_embd, err);
}

/* ---- writing ------------------------------------------------------------------------------------------ */

void tn_tower_put_keys(tn_gguf_writer *w, const tn_tower_shape *s) {
    const bool windows = s->kind == TN_TOWER_QWEN25VL;
    bool deep[TN_TOWER_LAYERS];
    tn_gguf_put_str(w, "general.architecture", "clip");
    tn_gguf_put_str(w, "general.type", "mmproj");
    tn_gguf_put_bool(w, "clip.has_vision_encoder", true);
    tn_gguf_put_str(w, "clip.vision.projector_type", families[s->kind].projector);
    tn_gguf_put_bool(w, windows ? "clip.use_silu" : "clip.use_gelu", true);
    for (size_t i = 0; i < sizeof int_keys / sizeof *int_keys; i++)
        if (int_keys[i].of >> s->kind & 1)
            tn_gguf_put_u32(w, int_keys[i].name,
                            (uint32_t) * (const int32_t *)((const char *)s + int_keys[i].at));
    tn_gguf_put_f32(w, "clip.vision.attention.layer_norm_epsilon", s->eps);
    tn_gguf_put_arr_f32(w, "clip.vision.image_mean", s->mean, 3);
    tn_gguf_put_arr_f32(w, "clip.vision.image_std", s->std, 3);
    if (s->kind == TN_TOWER_IDEFICS3)
        tn_gguf_put_u32(w, "clip.vision.preproc_image_size", (uint32_t)s->longest);
    for (int32_t i = 0; i < s->n_layers; i++) deep[i] = tn_tower_is_deep(s, i);
    if (s->kind == TN_TOWER_QWEN3VL)
        tn_gguf_put_arr_bool(w, "clip.vision.is_deepstack_layers", deep, (size_t)s->n_layers);
    if (windows) tn_gguf_put_u32(w, "clip.vision.n_wa_pattern", (uint32_t)s->full_every);
    if (windows) tn_gguf_put_u32(w, "clip.vision.window_size", (uint32_t)s->window);
    if (s->kind == TN_TOWER_INTERNVL) {
        tn_gguf_put_u32(w, "clip.vision.preproc_min_tiles", (uint32_t)s->min_tiles);
        tn_gguf_put_u32(w, "clip.vision.preproc_max_tiles", (uint32_t)s->max_tiles);
    }
    if (s->kind == TN_TOWER_MINICPM) {
        tn_gguf_put_i32(w, "clip.minicpmv_version", OLDEST_MINICPM);
        tn_gguf_put_u32(w, "clip.minicpmv_query_num", (uint32_t)s->queries);
    }
    if (tn_tower_has_axes(s->kind)) {
        tn_gguf_put_u32(w, "clip.vision.image_min_pixels", (uint32_t)s->min_pixels);
        tn_gguf_put_u32(w, "clip.vision.image_max_pixels", (uint32_t)s->max_pixels);
    }
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

tern_status tn_tower_open_file(const tn_tower_how *how, const tn_tower_file *f, tn_tower **out,
                               tern_error *err) {
    *out = NULL;
    tn_tower_shape shape;
    memset(&shape, 0, sizeof shape);
    TN_TRY(read_shape(f, how->n_embd, &shape, err));
    tn_tower *t = tn_calloc(how->ctx, TN_MEM_OTHER, 1, sizeof *t);
    TN_FAIL_IF(!t, err, TERN_E_MEMORY, "no memory for an encoder of pictures");
    *t = (tn_tower){.ctx = how->ctx, .s = shape, .scheme = how->scheme};
    tern_status st = make_layers(t, err);
    if (st == TERN_OK) st = tn_tower_read_tensors(t, f, how->pool, err);
    if (st == TERN_OK) *out = t;
    else tn_tower_close(&t);
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
        free_pair(ctx, l->post);
        free_pair(ctx, l->head_norm);
        for (int j = 0; j < TN_N_TOWER_PARTS; j++) {
            free_pair(ctx, l->limits[j].of);
            free_pair(ctx, l->limits[j].of + 2);
        }
        tn_linear *linears[] = {&l->q, &l->k, &l->v, &l->out, &l->up, &l->down, &l->gate};
        for (size_t j = 0; j < sizeof linears / sizeof *linears; j++) free_linear(ctx, linears[j]);
        for (int j = 0; j < 3; j++) tn_tower_s8_free(ctx, &l->part_s8[j]);
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
    free_pair(ctx, t->standard);
    tn_free(ctx, t->ones);
    free_linear(ctx, &t->patch);
    free_pair(ctx, t->moment);
    free_linear(ctx, &t->fc);
    free_linear(ctx, &t->fc_out);
    tn_tower_resampler *m = &t->resampler;
    tn_linear *linears[] = {&m->kv, &m->q, &m->k, &m->v, &m->given, &m->proj};
    for (size_t j = 0; j < sizeof linears / sizeof *linears; j++) free_linear(ctx, linears[j]);
    free_pair(ctx, m->ln_q);
    free_pair(ctx, m->ln_kv);
    free_pair(ctx, m->ln_post);
    tn_free(ctx, m->query);
    tn_free(ctx, t->class);
    tn_free(ctx, t->position);
    tn_free(ctx, t->pool_norm);
    tn_free(ctx, t->layers);
    tn_free(ctx, t);
}
