/* Keys of GGUF files that would change what is computed, put into files that are otherwise fine: they are honoured, or
 * refused by name when the file is opened, and so is one of another type than it must have. Neutral values change
 * nothing. */
#include "model/source.h"
#include "model/tower.h"

#include "base/file.h"
#include "base/pool.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "fixture/fixture.h"

#define FIXTURES TN_SOURCE_DIR "/tests/oracle/fixtures/"

enum { U32 = 4, F32 = 6, BOOL = 7, STRING = 8, ARRAY = 9 };

/* A value as the file has it. */
typedef struct value {
    uint32_t type;
    uint8_t bytes[64];
    size_t n;
} value;

static void append(value *v, const void *p, size_t n) {
    assert_true(v->n + n <= sizeof v->bytes);
    memcpy(v->bytes + v->n, p, n);
    v->n += n;
}

static value number(float x) {
    value v = {.type = F32};
    append(&v, &x, sizeof x);
    return v;
}

static value whole(uint32_t x) {
    value v = {.type = U32};
    append(&v, &x, sizeof x);
    return v;
}

static value flag(uint8_t x) {
    value v = {.type = BOOL};
    append(&v, &x, 1);
    return v;
}

static value word(const char *text) {
    const uint64_t n = strlen(text);
    value v = {.type = STRING};
    append(&v, &n, 8);
    append(&v, text, n);
    return v;
}

static value numbers(uint32_t type, uint64_t n, const uint32_t *of) {
    value v = {.type = ARRAY};
    append(&v, &type, 4);
    append(&v, &n, 8);
    append(&v, of, 4 * n);
    return v;
}

static value words(const char *first, const char *second) {
    const uint32_t type = STRING;
    const uint64_t n = 2, lens[2] = {strlen(first), strlen(second)};
    value v = {.type = ARRAY};
    append(&v, &type, 4);
    append(&v, &n, 8);
    append(&v, &lens[0], 8);
    append(&v, first, lens[0]);
    append(&v, &lens[1], 8);
    append(&v, second, lens[1]);
    return v;
}

static size_t put_key(uint8_t *to, const char *name, const value *v) {
    const uint64_t n = strlen(name);
    memcpy(to, &n, 8);
    memcpy(to + 8, name, n);
    memcpy(to + 8 + n, &v->type, 4);
    memcpy(to + 12 + n, v->bytes, v->n);
    return 12 + n + v->n;
}

/* Writes the file with one key more, and another that keeps tensors aligned. */
static void write_with(const char *path, const char *from, const char *name, const value *v) {
    enum { HEADER = 24, ALIGNED = 32 };
    char *bytes;
    uint8_t added[512];
    size_t n;
    uint64_t n_keys;
    tern_error err;
    must(tn_file_slurp(from, 1 << 24, &bytes, &n, &err), &err);
    memcpy(&n_keys, bytes + 16, 8), n_keys += 2, memcpy(bytes + 16, &n_keys, 8);
    size_t k = put_key(added, name, v);
    char pad[ALIGNED + 1] = "";
    memset(pad, 'x', (2 * ALIGNED - (k + 12 + strlen("general.pad") + 8) % ALIGNED) % ALIGNED);
    const value padding = word(pad);
    k += put_key(added + k, "general.pad", &padding);
    assert_int_equal(k % ALIGNED, 0);
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(bytes, 1, HEADER, f) + fwrite(added, 1, k, f), HEADER + k);
    assert_int_equal(fwrite(bytes + HEADER, 1, n - HEADER, f), n - HEADER);
    fclose(f);
    free(bytes);
}

static tn_ctx ctx;
static tn_pool *pool;
static char changed[] = "/tmp/tern-file-keys-XXXXXX";

static void check(const char *what, const char *key, tern_status got, tern_status want, const tern_error *err,
                  const char *part) {
    if (got != want || (part && (!strstr(err->message, part) || !strstr(err->message, changed))))
        fail_msg("%s with %s: status %d, '%s'", what, key, (int)got, got == TERN_OK ? "" : err->message);
}

static void model_with(const char *model, const char *key, value v, tern_status want, const char *part) {
    char path[512];
    tern_error err = {0};
    tn_source *s;
    snprintf(path, sizeof path, FIXTURES "%s.gguf", model);
    write_with(changed, path, key, &v);
    check(model, key, tn_source_open(&ctx, changed, &s, &err), want, &err, part);
    tn_source_close(&s);
}

static void tower_with(const char *tower, const char *key, value v, tern_status want, const char *part) {
    char path[FIXTURE_PATH];
    tern_error err = {0};
    tn_tower *t = NULL;
    fixture_tower(path, "tower.gguf", tower, 7, TN_F32);
    write_with(changed, path, key, &v);
    check(tower, key, tn_tower_open(&ctx, pool, changed, 64, TN_TOWER_FLOAT, &t, &err), want, &err, part);
    tn_tower_close(&t);
}

/* A factor without a type is linear, as llama.cpp has it, and holds beside Llama 3's own factors of each pair. */
static void a_factor_is_linear(void **state) {
    (void)state;
    static const char *const models[] = {"llama", "llama3-rope"};
    for (int m = 0; m < 2; m++) {
        char path[512];
        tern_error err;
        tn_source *plain, *with;
        snprintf(path, sizeof path, FIXTURES "%s.gguf", models[m]);
        const value four = number(4);
        write_with(changed, path, "llama.rope.scaling.factor", &four);
        must(tn_source_open(&ctx, path, &plain, &err), &err);
        must(tn_source_open(&ctx, changed, &with, &err), &err);
        const tn_hparams *a = tn_source_hparams(plain), *b = tn_source_hparams(with);
        for (int i = 0; i < a->n_rot / 2; i++)
            assert_true(fabsf(4 * b->inv_freq[i] - a->inv_freq[i]) <= 1e-6f * a->inv_freq[i]);
        tn_source_close(&plain);
        tn_source_close(&with);
    }
    model_with("llama", "llama.rope.scaling.factor", number(1), TERN_OK, NULL);
    model_with("llama", "llama.rope.scaling.factor", number(0), TERN_OK, NULL);
    model_with("llama", "llama.rope.scaling.factor", number(-4), TERN_E_FORMAT, "rope scaling factor -4");
    model_with("llama", "llama.rope.scaling.factor", word("4"), TERN_E_FORMAT, "is no finite number");
    model_with("llama", "llama.rope.scaling.type", word("none"), TERN_OK, NULL);
    model_with("llama", "llama.rope.scaling.type", word("ntk"), TERN_E_UNSUPPORTED, "rope scaling 'ntk'");
    model_with("llama", "llama.rope.scaling.type", number(2), TERN_E_FORMAT,
               "'llama.rope.scaling.type' is no word");
    model_with("llama3-rope", "llama.rope.scaling.type", word("yarn"), TERN_E_UNSUPPORTED,
               "yarn beside the tensor rope_freqs.weight");
    model_with("llama", "llama.rope.scaling.attn_factor", number(1), TERN_OK, NULL);
    model_with("llama", "llama.rope.scaling.attn_factor", number(2), TERN_E_UNSUPPORTED,
               "'llama.rope.scaling.attn_factor' is 2");
    model_with("phi3-short", "phi3.rope.scaling.factor", number(1), TERN_OK, NULL);
    model_with("phi3-short", "phi3.rope.scaling.factor", number(4), TERN_E_UNSUPPORTED,
               "'phi3.rope.scaling.factor' is 4 beside the factors of longrope");
}

static void keys_that_nobody_reads(void **state) {
    (void)state;
    static const struct {
        const char *model, *key;
        float base;
    } same[] = {{"llama", "llama.rope.freq_base_swa", 10000},
                {"gemma2", "gemma2.rope.freq_base_swa", 10000},
                {"mamba2", "mamba2.rope.freq_base_swa", 10000}};
    for (size_t i = 0; i < sizeof same / sizeof *same; i++) {
        model_with(same[i].model, same[i].key, number(77), TERN_E_UNSUPPORTED, same[i].key);
        model_with(same[i].model, same[i].key, number(same[i].base), TERN_OK, NULL);
    }
    model_with("qwen2vl", "qwen2vl.attention.sliding_window", whole(8), TERN_E_UNSUPPORTED,
               "'qwen2vl.attention.sliding_window' is 8");
    model_with("qwen2vl", "qwen2vl.attention.sliding_window", whole(0), TERN_OK, NULL);
    model_with("qwen2vl", "qwen2vl.attention.sliding_window", whole(1 << 20), TERN_OK, NULL);
    model_with("qwen2vl", "qwen2vl.attention.sliding_window", word("8"), TERN_E_FORMAT,
               "'qwen2vl.attention.sliding_window' is missing or no whole number");
    model_with("rwkv7", "rwkv7.rescale_every_n_layers", number(6), TERN_E_UNSUPPORTED,
               "'rwkv7.rescale_every_n_layers'");
    model_with("rwkv7", "rwkv7.token_shift_count", whole(1), TERN_E_UNSUPPORTED,
               "'rwkv7.token_shift_count' is 1, want 2");
    model_with("phimoe-gguf", "phimoe.expert_weights_norm", flag(1), TERN_E_UNSUPPORTED,
               "'phimoe.expert_weights_norm'");
    model_with("phimoe-gguf", "phimoe.expert_weights_norm", flag(0), TERN_OK, NULL);
    model_with("minimax-m2", "minimax-m2.expert_weights_norm", flag(1), TERN_OK, NULL);
    model_with("minimax-m2", "minimax-m2.expert_weights_norm", word("yes"), TERN_E_FORMAT,
               "'minimax-m2.expert_weights_norm' is neither true nor false");
}

/* Ling 3: decays have a floor, and clamps are those of every layer, or one for all. */
static void decays_and_clamps(void **state) {
    (void)state;
    static const float clamps[] = {0, 4, 5, 7, 7};
    uint32_t bits[5];
    memcpy(bits, clamps, sizeof bits);
    static const char ling[] = "bailingmoe3", limits[] = "bailingmoe3.swiglu_clamp_exp",
                      shared[] = "bailingmoe3.swiglu_clamp_shexp";
    model_with(ling, limits, numbers(F32, 4, bits), TERN_OK, NULL);
    model_with(ling, shared, numbers(F32, 5, bits), TERN_OK, NULL);
    model_with(ling, limits, number(0), TERN_OK, NULL);
    model_with(ling, limits, numbers(F32, 3, bits), TERN_E_FORMAT,
               "'bailingmoe3.swiglu_clamp_exp' is no list of 4 layers");
    model_with(ling, shared, word("4"), TERN_E_FORMAT, "'bailingmoe3.swiglu_clamp_shexp' is no list of 4");
    model_with(ling, shared, number(-4), TERN_E_FORMAT,
               "'bailingmoe3.swiglu_clamp_shexp' is no number from 0 on in layer 0");
    model_with("kimi-linear", "kimi-linear.kda.gate_lower_bound", number(-5), TERN_E_UNSUPPORTED,
               "'kimi-linear.kda.gate_lower_bound'");
    model_with("bailingmoe2", "bailingmoe2.swiglu_clamp_exp", number(4), TERN_E_UNSUPPORTED,
               "'bailingmoe2.swiglu_clamp_exp'");
    model_with("bailingmoe2", "bailingmoe2.swiglu_clamp_exp", number(0), TERN_OK, NULL);
}

/* A model that writes says the share of the first. */
static void labels(void **state) {
    (void)state;
    static const char key[] = "llama.classifier.output_labels";
    model_with("llama", key, words("Yes", "no"), TERN_OK, NULL);
    model_with("llama", key, words("no", "yes"), TERN_E_UNSUPPORTED,
               "'llama.classifier.output_labels' begins with 'no'");
    model_with("llama", key, word("yes"), TERN_E_FORMAT,
               "'llama.classifier.output_labels' is no list of words");
    model_with("llama", key, number(2), TERN_E_FORMAT, "is no list of words");
}

/* Those of pictures are looked at with the model, not with its first picture. */
static void axes_of_rope(void **state) {
    (void)state;
    static const char key[] = "qwen2vl.rope.dimension_sections";
    static const uint32_t fine[] = {1, 1, 2, 0}, far[] = {1, 1, 1000, 0};
    model_with("qwen2vl", key, numbers(U32, 4, fine), TERN_OK, NULL);
    model_with("qwen2vl", key, numbers(U32, 3, fine), TERN_OK, NULL);
    model_with("qwen2vl", key, numbers(U32, 2, fine), TERN_E_FORMAT, "is no list of 3 or 4 numbers");
    model_with("qwen2vl", key, word("1,1,2"), TERN_E_FORMAT, "is no list of 3 or 4 numbers");
    model_with("qwen2vl", key, number(3), TERN_E_FORMAT, "is no list of 3 or 4 numbers");
    model_with("qwen2vl", key, numbers(F32, 4, fine), TERN_E_FORMAT, "value 0 of metadata key");
    model_with("qwen2vl", key, numbers(U32, 4, far), TERN_E_FORMAT, "value 2 of metadata key");
}

static void towers(void **state) {
    (void)state;
    static const struct {
        const char *tower, *key;
    } integers[] = {{"tiny-qwen25vl-mmproj", "clip.vision.window_size"},
                    {"tiny-internvl-mmproj", "clip.vision.preproc_min_tiles"},
                    {"tiny-internvl-mmproj", "clip.vision.preproc_max_tiles"},
                    {"tiny-qwen25vl-mmproj", "clip.vision.image_min_pixels"},
                    {"tiny-qwen3vl-mmproj", "clip.vision.image_max_pixels"}};
    for (size_t i = 0; i < sizeof integers / sizeof *integers; i++) {
        char part[80];
        snprintf(part, sizeof part, "%s is no whole number", integers[i].key);
        tower_with(integers[i].tower, integers[i].key, word("112"), TERN_E_FORMAT, part);
        tower_with(integers[i].tower, integers[i].key, number(112), TERN_E_FORMAT, part);
    }
    static const char least[] = "clip.vision.preproc_min_tiles", most[] = "clip.vision.preproc_max_tiles";
    tower_with("tiny-internvl-mmproj", most, whole(1), TERN_OK, NULL);
    tower_with("tiny-internvl-mmproj", least, whole(12), TERN_OK, NULL);
    tower_with("tiny-internvl-mmproj", most, whole(0), TERN_E_FORMAT, "grids of 1 to 0 tiles; want 1 to 256");
    tower_with("tiny-internvl-mmproj", least, whole(0), TERN_E_FORMAT,
               "grids of 0 to 12 tiles; want 1 to 256");
    tower_with("tiny-internvl-mmproj", least, whole(13), TERN_E_FORMAT, "grids of 13 to 12 tiles");
    tower_with("tiny-internvl-mmproj", most, whole(257), TERN_E_FORMAT, "grids of 1 to 257 tiles");
    tower_with("tiny-lfm2vl-mmproj", most, whole(12), TERN_E_UNSUPPORTED,
               "clip.vision.preproc_max_tiles is not known");
    tower_with("tiny-lfm2vl-mmproj", "clip.vision.image_max_pixels", whole(9), TERN_E_UNSUPPORTED,
               "clip.vision.image_max_pixels is not known");
    tower_with("tiny-qwen3vl-mmproj", "clip.has_llava_projector", word("no"), TERN_E_FORMAT,
               "clip.has_llava_projector is neither true nor false");
    tower_with("tiny-qwen3vl-mmproj", "clip.use_silu", number(1), TERN_E_FORMAT,
               "clip.use_silu is neither true nor false");
    tower_with("tiny-qwen3vl-mmproj", "clip.has_audio_encoder", flag(0), TERN_OK, NULL);
}

static int setup(void **state) {
    (void)state;
    tern_error err;
    tn_ctx_init(&ctx, NULL);
    const int fd = mkstemp(changed);
    assert_true(fd >= 0);
    close(fd);
    return tn_pool_open(&ctx, 2, &pool, &err) != TERN_OK;
}

static int teardown(void **state) {
    (void)state;
    tn_pool_close(&pool);
    unlink(changed);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_factor_is_linear), cmocka_unit_test(keys_that_nobody_reads),
        cmocka_unit_test(decays_and_clamps),  cmocka_unit_test(labels),
        cmocka_unit_test(axes_of_rope),       cmocka_unit_test(towers)};
    return cmocka_run_group_tests(tests, setup, teardown);
}
