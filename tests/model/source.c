/* Is a model the same weights whatever file it came in, and is what a broken one lacks named in one line? */
#include "formats/gguf.h"
#include "lab/synth.h"
#include "model/arch.h"
#include "model/same_model.h"
#include "model/source.h"

#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "fixture/fixture.h"
#include "fixture/scarce.h"

#define FIXTURES TN_SOURCE_DIR "/tests/oracle/fixtures/"

static tn_ctx ctx;

static tn_source *open_ok(const char *path) {
    tn_source *s;
    tern_error err = {0};
    if (tn_source_open(&ctx, path, &s, &err) != TERN_OK) fail_msg("%s", err.message);
    return s;
}

/* Permuted Q and K, Gemma's +1, fused QKV and gate-up, tied heads: all undone, so that both files say the
 * same. */
static void both_formats_hold_the_same_model(void **state) {
    (void)state;
    static const char *const names[] = {
        "llama", "llama3-rope", "llama-linear-rope", "qwen2",  "qwen3",        "gemma",   "gemma2",
        "phi2",  "phi3-short",  "phi3-long",         "bitnet", "bitnet-plain", "mistral4"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        char hf_path[512], gguf_path[512];
        snprintf(hf_path, sizeof hf_path, FIXTURES "%s", names[i]);
        snprintf(gguf_path, sizeof gguf_path, FIXTURES "%s.gguf", names[i]);
        tn_source *a = open_ok(hf_path), *b = open_ok(gguf_path);
        assert_string_equal(tn_source_hparams(a)->arch, tn_source_hparams(b)->arch);
        same_hparams(names[i], tn_source_hparams(a), tn_source_hparams(b));
        same_weights(names[i], a, b, 0);
        tn_source_close(&a);
        tn_source_close(&b);
    }
}

/* Both formats share the code that cuts fused tensors, so this looks at the stored rows themselves. */
static void fused_tensors_are_cut_in_order(void **state) {
    (void)state;
    tn_source *s = open_ok(FIXTURES "phi3-short.gguf");
    tn_gguf *g;
    tern_error err = {0};
    assert_int_equal(tn_gguf_open(&ctx, FIXTURES "phi3-short.gguf", &g, &err), TERN_OK);
    static const struct {
        const char *name;
        tn_role parts[3];
        int n_parts;
    } fused[] = {{"blk.1.attn_qkv.weight", {TN_W_Q, TN_W_K, TN_W_V}, 3},
                 {"blk.1.ffn_up.weight", {TN_W_GATE, TN_W_UP}, 2}};
    for (int i = 0; i < 2; i++) {
        const tn_tensor *t = tn_gguf_tensor(g, fused[i].name);
        assert_non_null(t);
        uint64_t n = t->dims[0] * t->dims[1], at = 0;
        float *all = malloc(n * sizeof *all);
        assert_non_null(all);
        tn_dequantise(t->dtype, t->data, all, n);
        for (int k = 0; k < fused[i].n_parts; k++) {
            int64_t n_part;
            float *v = read_role(s, 1, fused[i].parts[k], &n_part);
            assert_true(at + (uint64_t)n_part <= n);
            if (memcmp(v, all + at, (size_t)n_part * sizeof *v))
                fail_msg("%s: %s is not the rows from %llu", t->name, tn_role_name(fused[i].parts[k]),
                         (unsigned long long)(at / t->dims[1]));
            at += (uint64_t)n_part;
            free(v);
        }
        assert_true(at == n);
        free(all);
    }
    tn_gguf_close(&g);
    tn_source_close(&s);
}

typedef struct reader {
    const tn_source *s;
    const float *want;
    int64_t rows, cols;
    bool ok;
} reader;

static void *read_rows(void *arg) {
    reader *r = arg;
    float *row = malloc((size_t)r->cols * sizeof *row);
    r->ok = row != NULL;
    for (int64_t i = 0; r->ok && i < r->rows; i++) {
        r->ok = tn_source_read(r->s, 1, TN_W_Q, i, i + 1, row, NULL) == TERN_OK &&
                !memcmp(row, r->want + i * r->cols, (size_t)r->cols * sizeof *row);
    }
    free(row);
    return NULL;
}

static void rows_alone_and_from_threads(void **state) {
    (void)state;
    tn_source *s = open_ok(FIXTURES "llama.gguf");
    int64_t n;
    float *all = read_role(s, 1, TN_W_Q, &n), dummy = 7;
    reader r[3];
    pthread_t t[3];
    for (int i = 0; i < 3; i++) {
        r[i] = (reader){.s = s, .want = all};
        tn_role_shape(tn_source_hparams(s), 1, TN_W_Q, &r[i].rows, &r[i].cols);
        assert_int_equal(pthread_create(&t[i], NULL, read_rows, &r[i]), 0);
    }
    for (int i = 0; i < 3; i++) {
        pthread_join(t[i], NULL);
        assert_true(r[i].ok);
    }
    tern_error err;
    /* no rows asked for: nothing written; rows that are not there and tensors that are not there: refused */
    assert_int_equal(tn_source_read(s, 0, TN_W_ATTN_NORM, 0, 0, &dummy, &err), TERN_OK);
    assert_true(dummy == 7);
    assert_int_equal(tn_source_read(s, 0, TN_W_Q, 0, r[0].rows + 1, all, &err), TERN_E_INVALID);
    assert_int_equal(tn_source_read(s, 0, TN_W_Q_B, 0, 1, all, &err), TERN_E_INVALID);
    free(all);
    tn_source_close(&s);
}

/* ---- broken files ------------------------------------------------------------------------------------ */

static char folder[64] = "/tmp/tern-source-XXXXXX", broken_path[128];

typedef struct file {
    uint8_t *b;
    size_t n;
} file;

static file load(const char *path) {
    file o;
    o.b = fixture_read(path, &o.n);
    return o;
}

static uint8_t *find(const file *f, const char *text) {
    uint8_t *p = memmem(f->b, f->n, text, strlen(text));
    if (!p) fail_msg("the fixture has no %s", text);
    return p;
}

static void save(const file *f) { fixture_write(broken_path, f->b, f->n); }

static void refused(tern_status want, const char *part) {
    tn_source *s;
    tern_error err = {0};
    tern_status st = tn_source_open(&ctx, broken_path, &s, &err);
    if (st != want) fail_msg("status %d, '%s'", (int)st, err.message);
    if (!strstr(err.message, broken_path) || !strstr(err.message, part))
        fail_msg("'%s' lacks '%s'", err.message, part);
    assert_null(s);
}

/* Description of a tensor in the file: name, u32 dimensions, u64 each, u32 type, u64 offset. */
static uint8_t *after_name(const file *f, const char *name) { return find(f, name) + strlen(name); }

static void broken_gguf(void **state) {
    (void)state;
    snprintf(broken_path, sizeof broken_path, "%s/broken.gguf", folder);
    const char *good = FIXTURES "qwen2.gguf";
    uint32_t type;
    uint64_t dim;
    file f = load(good);
    find(&f, "blk.1.ffn_up.weight")[10] = 'x', save(&f),
             refused(TERN_E_FORMAT, "tensor blk.1.ffn_up.weight is missing (architecture qwen2 needs it)");
    free(f.b), f = load(good);
    find(&f, "blk.0.attn_k.bias")[7] = 'x', save(&f),
             refused(TERN_E_FORMAT, "tensor blk.0.attn_k.bias is missing");
    free(f.b), f = load(good);
    dim = 32, memcpy(after_name(&f, "blk.1.ffn_up.weight") + 12, &dim, 8), save(&f),
    refused(TERN_E_FORMAT, "tensor blk.1.ffn_up.weight at offset ");
    free(f.b), f = load(good);
    type = 24, memcpy(after_name(&f, "blk.0.attn_q.weight") + 20, &type, 4), save(&f),
    refused(TERN_E_UNSUPPORTED, "tensor blk.0.attn_q.weight at offset ");
    free(f.b), f = load(good);
    memcpy(find(&f, "qwen2"), "qwenX", 5), save(&f),
        refused(TERN_E_UNSUPPORTED, "architecture 'qwenX' is not supported; there are llama, ");
    free(f.b), f = load(good);
    find(&f, "qwen2.block_count")[16] = 'x', save(&f),
             refused(TERN_E_FORMAT, "'qwen2.block_count' is missing");
    free(f.b), f = load(good);
    type = 100000, memcpy(after_name(&f, "qwen2.block_count") + 4, &type, 4), save(&f),
    refused(TERN_E_FORMAT, "layers 100000");
    free(f.b), f = load(good);
    type = 0, memcpy(after_name(&f, "qwen2.attention.head_count") + 4, &type, 4), save(&f),
    refused(TERN_E_FORMAT, "heads 0");
    free(f.b), f = load(good);
    type = 5, memcpy(after_name(&f, "qwen2.rope.freq_base"), &type, 4), type = 0xffffffffu,
    memcpy(after_name(&f, "qwen2.rope.freq_base") + 4, &type, 4), save(&f);
    refused(TERN_E_FORMAT, "rope base -1");
    free(f.b), f = load(good); /* a key that may change what is computed, a tensor that no op uses */
    memcpy(find(&f, "qwen2.vocab_size"), "qwen2.vocab_sizf", 16), save(&f);
    refused(TERN_E_UNSUPPORTED, "metadata key 'qwen2.vocab_sizf' may change what the model computes");
    free(f.b), f = load(good);
    memcpy(find(&f, "qwen2.vocab_size"), "qwen2.logit_size", 16);
    memcpy(find(&f, "qwen2.logit_size"), "qwen2.logit_scal", 16), save(&f);
    refused(TERN_E_UNSUPPORTED, "metadata key 'qwen2.logit_scal' may change what the model computes");
    free(f.b), f = load(FIXTURES "llama3-rope.gguf");
    memcpy(find(&f, "rope_freqs.weight"), "blk.0.lora.weight", 17), save(&f);
    refused(TERN_E_UNSUPPORTED, "tensor blk.0.lora.weight is none that architecture llama has");
    free(f.b), f = load(FIXTURES "qwen3.gguf");
    memcpy(find(&f, "blk.1.attn_q_norm.weight"), "blk.7.attn_q_norm.weight", 24);
    save(&f);
    refused(TERN_E_FORMAT, "tensor blk.1.attn_q_norm.weight is missing");
    free(f.b), f = load(FIXTURES "gemma2.gguf");
    memcpy(find(&f, "blk.1.ffn_norm.weight"), "blk.1.ffn_norx.weight", 21);
    memcpy(find(&f, "blk.2.ffn_norm.weight"), "blk.1.ffn_norm.weight", 21), save(&f);
    refused(TERN_E_FORMAT, "tensor blk.2.ffn_norm.weight is missing");
    free(f.b),
        f = load(
            FIXTURES
            "llama3-rope.gguf"); /* a key or tensor that is there but malformed is not taken for absent */
    type = 1, memcpy(after_name(&f, "rope_freqs.weight") + 12, &type, 4), save(&f),
    refused(TERN_E_FORMAT, "tensor rope_freqs.weight at offset ");
    free(f.b), f = load(good);
    f.n /= 2, save(&f), refused(TERN_E_FORMAT, "the file is cut off");
    free(f.b);
}

static void set_u32(file *f, const char *key, uint32_t v) { memcpy(after_name(f, key) + 4, &v, 4); }

/* What layers of Gemma 4 differ in and share. The tensors are those of the right numbers. */
static void broken_layers(void **state) {
    (void)state;
    tern_error err = {0};
    tn_pool *pool;
    char good[600];
    snprintf(broken_path, sizeof broken_path, "%s/broken.gguf", folder);
    snprintf(good, sizeof good, "%s/gemma4.gguf", folder);
    assert_int_equal(tn_pool_open(&ctx, 1, &pool, &err), TERN_OK);
    if (tn_synth(&ctx, pool, "tiny-gemma4", good, 1, TN_F32, &err) != TERN_OK) fail_msg("%s", err.message);
    tn_pool_close(&pool);
    static const struct {
        const char *key;
        uint32_t v;
        tern_status want;
        const char *part;
    } cases[] = {
        {"gemma4.attention.shared_kv_layers", 9, TERN_E_FORMAT, "9 of 9 layers share keys and values"},
        {"gemma4.attention.shared_kv_layers", 8, TERN_E_UNSUPPORTED, "in another of its kind"},
        {"gemma4.attention.shared_kv_layers", 2, TERN_E_UNSUPPORTED, "in another of its kind"},
        {"gemma4.embedding_length_per_layer_input", 16, TERN_E_FORMAT,
         "tensor per_layer_token_embd.weight at offset "},
        {"gemma4.embedding_length_per_layer_input", 100000, TERN_E_FORMAT,
         "embedding for every layer 100000"},
        {"gemma4.attention.key_length_swa", 48, TERN_E_UNSUPPORTED, "keys of 48 values and values of 32"},
        {"gemma4.attention.value_length_swa", 0, TERN_E_UNSUPPORTED, "keys of 32 values and values of 0"},
        {"gemma4.rope.dimension_count_swa", 64, TERN_E_FORMAT, "head size of layers with a window"},
        {"gemma4.rope.dimension_count_swa", 66, TERN_E_FORMAT, "66 in layers with a window"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        file f = load(good);
        set_u32(&f, cases[i].key, cases[i].v), save(&f);
        refused(cases[i].want, cases[i].part);
        free(f.b);
    }
    file f = load(good); /* elements of an array: u32 type, u64 how many */
    uint32_t v = 0;
    memcpy(after_name(&f, "gemma4.attention.head_count_kv") + 16, &v, 4), save(&f);
    refused(TERN_E_FORMAT, "'gemma4.attention.head_count_kv' is 0 in layer 0");
    free(f.b), f = load(good);
    memcpy(after_name(&f, "gemma4.attention.sliding_window_pattern") + 16 + 4, &v, 4), save(&f);
    refused(TERN_E_UNSUPPORTED, "is not the pattern of this architecture at layer 2");
    free(f.b), f = load(good);
    find(&f, "per_layer_token_embd.weight")[4] = 'x', save(&f);
    refused(TERN_E_FORMAT, "tensor per_layer_token_embd.weight is missing");
    free(f.b), f = load(good);
    find(&f, "blk.4.layer_output_scale.weight")[8] = 'x', save(&f);
    refused(TERN_E_FORMAT, "tensor blk.4.layer_output_scale.weight is missing");
    free(f.b), f = load(good); /* a layer that shares has no keys, and nobody misses them */
    find(&f, "blk.5.attn_k.weight")[4] = '6', save(&f);
    refused(TERN_E_FORMAT, "tensor blk.5.attn_k.weight is missing");
    free(f.b);
    unlink(good);
}

/* Mistral's files name the architecture llama, and their window. */
static void llama_with_a_window(void **state) {
    (void)state;
    static const char extra[] = "\x1e\0\0\0\0\0\0\0llama.attention.sliding_window\4\0\0\0\x09\0\0\0"
                                "\5\0\0\0\0\0\0\0pad.x\0\0\0\0\1";
    enum { HEADER = 24, N_EXTRA = sizeof extra - 1 };
    _Static_assert(N_EXTRA % 32 == 0, "tensors stay aligned");
    snprintf(broken_path, sizeof broken_path, "%s/broken.gguf", folder);
    file f = load(FIXTURES "llama.gguf");
    uint64_t n_keys;
    memcpy(&n_keys, f.b + 16, 8), n_keys += 2, memcpy(f.b + 16, &n_keys, 8);
    f.b = realloc(f.b, f.n + N_EXTRA);
    assert_non_null(f.b);
    memmove(f.b + HEADER + N_EXTRA, f.b + HEADER, f.n - HEADER);
    memcpy(f.b + HEADER, extra, N_EXTRA);
    f.n += N_EXTRA, save(&f);
    tn_source *s = open_ok(broken_path), *without = open_ok(FIXTURES "llama.gguf");
    const tn_hparams *h = tn_source_hparams(s);
    assert_int_equal(tn_source_hparams(without)->window, 0);
    assert_int_equal(h->window, 9);
    for (int32_t i = 0; i < h->n_layers; i++) assert_int_equal(tn_layer_window(h, i), 9);
    tn_source_close(&s);
    tn_source_close(&without);
    free(f.b);
}

static void weights_that_are_no_numbers(void **state) {
    (void)state;
    snprintf(broken_path, sizeof broken_path, "%s/broken.gguf", folder);
    static const uint8_t bits[2][4] = {{0xff, 0xff, 0xff, 0xff}, {0, 0, 0x80, 0x7f}};
    int n_halves = 0;
    tern_error err = {0};
    tn_gguf *g;
    assert_int_equal(tn_gguf_open(&ctx, FIXTURES "llama-linear-rope.gguf", &g, &err), TERN_OK);
    for (int i = 0; i < 2; i++) {
        static const char *const names[] = {"blk.1.ffn_down.weight", "output_norm.weight"};
        static const struct {
            int layer;
            tn_role role;
        } roles[] = {{1, TN_W_DOWN}, {-1, TN_W_OUT_NORM}};
        for (int k = 0; k < 2; k++) {
            const tn_tensor *t = tn_gguf_tensor(g, names[k]);
            assert_non_null(t);
            size_t width = (size_t)tn_dtype_block_bytes(t->dtype);
            file f = load(FIXTURES "llama-linear-rope.gguf");
            uint8_t *at = f.b + t->off_bytes + 5 * width;
            if (width == 4) memcpy(at, bits[i], 4);
            else memcpy(at, t->dtype == TN_BF16 ? bits[i] + 2 : i ? (const uint8_t[]){0, 0x7c} : bits[0], 2);
            save(&f);
            free(f.b);
            tn_source *s = open_ok(broken_path);
            int64_t rows, cols;
            tn_role_shape(tn_source_hparams(s), 0, roles[k].role, &rows, &cols);
            float *v = malloc((size_t)(rows * cols) * sizeof *v);
            char part[128];
            snprintf(part, sizeof part, "broken.gguf: tensor %s at offset %llu holds %s at element 5",
                     names[k], (unsigned long long)t->off_bytes, i ? "an infinity" : "NaN");
            assert_int_equal(tn_source_read(s, roles[k].layer, roles[k].role, 0, rows, v, &err),
                             TERN_E_FORMAT);
            if (!strstr(err.message, part)) fail_msg("'%s' lacks '%s'", err.message, part);
            if (tn_source_has_halves(s, roles[k].layer, roles[k].role)) {
                err.message[0] = 0;
                assert_int_equal(
                    tn_source_read_halves(s, roles[k].layer, roles[k].role, 0, rows, (uint16_t *)v, &err),
                    TERN_E_FORMAT);
                if (!strstr(err.message, part)) fail_msg("'%s' lacks '%s'", err.message, part);
                n_halves++;
            }
            free(v);
            tn_source_close(&s);
        }
    }
    assert_int_equal(n_halves, 2);
    tn_gguf_close(&g);
}

static void broken_folder(void **state) {
    (void)state;
    char path[256];
    snprintf(broken_path, sizeof broken_path, "%s", folder);
    refused(TERN_E_FORMAT, "config.json");
    file config = load(FIXTURES "phi3-short/config.json"),
         weights = load(FIXTURES "phi3-short/model.safetensors");
    static const struct {
        const char *find, *put, *part;
    } cases[] = {{"\"phi3\"", "\"phi9\"", "model type 'phi9' is not supported; there are llama, "},
                 {"self_attn.qkv_proj", "self_attn.qkv_prox", "self_attn.q_proj.weight is missing"},
                 {"mlp.gate_up_proj", "mlp.gate_up_prox", "mlp.gate_proj.weight is missing"},
                 {"input_layernorm", "input_layernorx", "input_layernorm.weight is missing"}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        for (int what = 0; what < 2; what++) {
            const file *f = what ? &weights : &config;
            uint8_t *copy = malloc(f->n), *at;
            memcpy(copy, f->b, f->n);
            if ((at = memmem(copy, f->n, cases[i].find, strlen(cases[i].find))))
                memcpy(at, cases[i].put, strlen(cases[i].put));
            snprintf(path, sizeof path, "%s/%s", folder, what ? "model.safetensors" : "config.json");
            fixture_write(path, copy, f->n);
            free(copy);
        }
        refused(i ? TERN_E_FORMAT : TERN_E_UNSUPPORTED, cases[i].part);
    }
    free(config.b);
    free(weights.b);
}

/* A valid configuration with one entry changed. */
static void configs(void **state) {
    (void)state;
    static const struct {
        const char *arch, *patch;
        tern_status want;
        const char *part;
    } cases[] = {
        {"qwen2", "{}", TERN_OK, NULL},
        /* what is not known is refused by its name, unless it says nothing */
        {"qwen2", "{\"logit_multiplier\":7}", TERN_E_UNSUPPORTED,
         "'logit_multiplier' is not supported for model type qwen2"},
        {"llama", "{\"norm_epsilon\":1e-3}", TERN_E_UNSUPPORTED, "'norm_epsilon' is not supported"},
        {"llama", "{\"position_embedding_type\":\"alibi\"}", TERN_E_UNSUPPORTED,
         "'position_embedding_type' is not supported"},
        {"llama", "{\"key_multiplier\":0.5}", TERN_E_UNSUPPORTED,
         "'key_multiplier' is not supported for model type llama"},
        {"llama", "{\"use_pos_enc\":false}", TERN_E_UNSUPPORTED, "'use_pos_enc' is not supported"},
        {"llama", "{\"quantization_config\":{\"bits\":4}}", TERN_E_UNSUPPORTED,
         "'quantization_config' is not supported"},
        {"phimoe", "{\"num_local_experts\":6,\"num_experts_per_tok\":3}", TERN_E_UNSUPPORTED,
         "3 experts a row, taken one after the other within 0.02 of the best; want 2"},
        {"phimoe",
         "{\"num_local_experts\":6,\"num_experts_per_tok\":2,\"max_position_embeddings\":512,\"original_max_"
         "position_embeddings\":64,\"rope_scaling\":{\"type\":\"longrope\",\"short_factor\":[1,1,1,1],\"long_"
         "factor\":[1,1,1,1],\"short_mscale\":1.1,\"long_mscale\":1.2}}",
         TERN_E_UNSUPPORTED, "short_mscale of 1.1 and long_mscale of 1.2 differ"},
        {"minimax_m2", "{\"num_experts\":6,\"num_experts_per_tok\":2,\"attn_type_list\":[1,0]}",
         TERN_E_UNSUPPORTED, "'attn_type_list' is 0 of layer 1"},
        {"minimax_m2", "{\"num_experts\":6,\"num_experts_per_tok\":2,\"use_routing_bias\":false}",
         TERN_E_UNSUPPORTED, "'use_routing_bias' is false"},
        {"minimax_m2", "{\"num_experts\":6,\"num_experts_per_tok\":2,\"layernorm_mlp_beta\":0.5}",
         TERN_E_UNSUPPORTED, "'layernorm_mlp_beta' is not supported"},
        {"minimax_m2", "{\"num_experts\":6,\"num_experts_per_tok\":2,\"qk_norm_type\":\"per_head\"}",
         TERN_E_UNSUPPORTED, "'qk_norm_type' is not supported"},
        {"llama4_text", "{\"num_local_experts\":6,\"num_experts_per_tok\":2}", TERN_E_UNSUPPORTED,
         "2 experts a row, each of which reads the row times its weight; want 1"},
        {"llama4_text", "{\"num_local_experts\":6,\"num_experts_per_tok\":1,\"moe_layers\":[0]}",
         TERN_E_UNSUPPORTED, "'moe_layers' are not the last of every 1 layers"},
        {"llama4_text", "{\"num_local_experts\":6,\"num_experts_per_tok\":1,\"attention_chunk_size\":0}",
         TERN_E_FORMAT, "'attention_chunk_size' is 0"},
        {"mistral4",
         "{\"n_group\":2,\"topk_group\":1,\"num_experts\":4,\"num_experts_per_tok\":2,\"moe_intermediate_"
         "size\":16,\"n_shared_experts\":1}",
         TERN_E_UNSUPPORTED, "'n_group' is not supported for model type mistral4"},
        {"kimi_linear",
         "{\"num_experts\":4,\"num_experts_per_token\":2,\"moe_intermediate_size\":16,\"num_shared_experts\":"
         "1,\"kv_lora_rank\":32,\"qk_nope_head_dim\":16,\"qk_rope_head_dim\":8,\"v_head_dim\":32,\"linear_"
         "attn_config\":{\"full_attn_layers\":[2],\"kda_layers\":[1],\"num_heads\":2,\"head_dim\":16},\"mla_"
         "use_nope\":true}",
         TERN_OK, NULL},
        {"kimi_linear",
         "{\"num_experts\":4,\"num_experts_per_token\":2,\"moe_intermediate_size\":16,\"num_shared_experts\":"
         "1,\"kv_lora_rank\":32,\"qk_nope_head_dim\":16,\"qk_rope_head_dim\":8,\"v_head_dim\":32,\"linear_"
         "attn_config\":{\"full_attn_layers\":[2],\"kda_layers\":[1],\"num_heads\":2,\"head_dim\":16},\"mla_"
         "use_nope\":false}",
         TERN_E_UNSUPPORTED, "'mla_use_nope' is not true"},
        {"kimi_linear",
         "{\"num_experts\":4,\"num_experts_per_token\":2,\"moe_intermediate_size\":16,\"num_shared_experts\":"
         "1,\"kv_lora_rank\":32,\"qk_nope_head_dim\":16,\"qk_rope_head_dim\":8,\"v_head_dim\":32,\"linear_"
         "attn_config\":{\"full_attn_layers\":[2],\"kda_layers\":[1,2],\"num_heads\":2,\"head_dim\":16},"
         "\"mla_use_nope\":true}",
         TERN_E_FORMAT, "has layer 2 in both"},
        {"kimi_linear",
         "{\"num_experts\":4,\"num_experts_per_token\":2,\"moe_intermediate_size\":16,\"num_shared_experts\":"
         "1,\"kv_lora_rank\":32,\"qk_nope_head_dim\":16,\"qk_rope_head_dim\":8,\"v_head_dim\":32,\"linear_"
         "attn_config\":{\"full_attn_layers\":[2],\"kda_layers\":[3],\"num_heads\":2,\"head_dim\":16},\"mla_"
         "use_nope\":true}",
         TERN_E_FORMAT, "or in neither"},
        {"kimi_linear",
         "{\"num_experts\":4,\"num_experts_per_token\":2,\"moe_intermediate_size\":16,\"num_shared_experts\":"
         "1,\"kv_lora_rank\":32,\"qk_nope_head_dim\":16,\"qk_rope_head_dim\":8,\"v_head_dim\":32,\"linear_"
         "attn_config\":{\"full_attn_layers\":[2],\"kda_layers\":[1],\"num_heads\":2,\"head_dim\":16},\"mla_"
         "use_nope\":true,\"moe_router_activation_func\":\"softmax\"}",
         TERN_E_UNSUPPORTED, "'moe_router_activation_func' is 'softmax'"},
        {"kimi_linear",
         "{\"num_experts\":4,\"num_experts_per_token\":2,\"moe_intermediate_size\":16,\"num_shared_experts\":"
         "1,\"kv_lora_rank\":32,\"qk_nope_head_dim\":16,\"qk_rope_head_dim\":8,\"v_head_dim\":32,\"linear_"
         "attn_config\":{\"full_attn_layers\":[2],\"kda_layers\":[1],\"num_heads\":2,\"head_dim\":16},\"mla_"
         "use_nope\":true,\"num_expert_group\":3,\"topk_group\":1}",
         TERN_E_FORMAT, "4 experts in 3 groups"},
        {"kimi_linear",
         "{\"num_experts\":4,\"num_experts_per_token\":2,\"moe_intermediate_size\":16,\"num_shared_experts\":"
         "1,\"kv_lora_rank\":32,\"qk_nope_head_dim\":16,\"qk_rope_head_dim\":8,\"v_head_dim\":32,\"linear_"
         "attn_config\":{\"full_attn_layers\":[2],\"kda_layers\":[1],\"num_heads\":2,\"head_dim\":16},\"mla_"
         "use_nope\":true,\"use_output_norm\":true}",
         TERN_E_UNSUPPORTED, "'use_output_norm' is not supported"},
        {"rwkv7", "{\"hidden_size\":128,\"head_dim\":64}", TERN_OK, NULL},
        {"rwkv7", "{\"hidden_size\":128,\"head_dim\":64,\"attn\":{\"layers\":[1]}}", TERN_E_UNSUPPORTED,
         "'attn' is not supported for model type rwkv7"},
        {"rwkv7", "{\"hidden_size\":128,\"head_dim\":64,\"norm_bias\":false}", TERN_E_UNSUPPORTED,
         "'norm_bias' is false"},
        {"rwkv7", "{\"hidden_size\":128,\"head_dim\":64,\"norm_eps\":1e-3}", TERN_E_UNSUPPORTED,
         "which the norms of heads add, is not 0.00064"},
        {"rwkv7", "{\"hidden_size\":128,\"head_dim\":64,\"value_dim\":[128,64]}", TERN_E_UNSUPPORTED,
         "'value_dim' of layer 1 is not 128"},
        {"rwkv7", "{\"hidden_size\":128,\"head_dim\":64,\"gate_low_rank_dim\":2000}", TERN_E_UNSUPPORTED,
         "products of ranks 32, 32, 32 and 2000"},
        {"rwkv7", "{\"hidden_size\":128,\"head_dim\":64,\"num_heads\":3}", TERN_E_UNSUPPORTED,
         "3 heads of 64 values for 128 of a row"},
        {"rwkv7", "{\"hidden_size\":128,\"head_dim\":64,\"rescale_every\":6}", TERN_E_UNSUPPORTED,
         "'rescale_every' is not supported"},
        {"bitnet", "{\"quantization_config\":{\"quantization_mode\":\"offline\"}}", TERN_E_UNSUPPORTED,
         "its weights are packed ('quantization_mode' is 'offline')"},
        {"bitnet", "{\"quantization_config\":{\"quantization_mode\":\"online\",\"use_rms_norm\":true}}",
         TERN_E_UNSUPPORTED, "'use_rms_norm' of 'quantization_config' is not supported"},
        {"bitnet", "{\"quantization_config\":{\"quantization_mode\":\"online\",\"quant_method\":\"fp8\"}}",
         TERN_E_UNSUPPORTED, "'quant_method' of 'quantization_config' is not supported"},
        {"llama", "{\"rope_scaling\":{\"type\":\"linear\",\"factor\":2,\"long_mscale\":1.2}}",
         TERN_E_UNSUPPORTED, "'long_mscale' is not supported for model type llama"},
        {"llama", "{\"rope_parameters\":{\"full_attention\":{\"rope_type\":\"default\",\"turns\":2}}}",
         TERN_E_UNSUPPORTED, "'turns' is not supported for model type llama"},
        {"qwen2",
         "{\"attention_dropout\":0.1,\"image_token_id\":7,\"_x\":5,\"quantization_config\":null,"
         "\"my_flag\":false,\"my_list\":[],\"norm_type\":\"rms\",\"use_pos_enc\":true}",
         TERN_OK, NULL},
        {"qwen2", "{\"rope_scaling\":{\"type\":\"dynamic\",\"factor\":4.0}}", TERN_E_UNSUPPORTED,
         "rope scaling 'dynamic' is not supported (linear, llama3, longrope and yarn are)"},
        {"qwen2", "{\"rope_scaling\":{\"type\":\"yarn\",\"factor\":4.0}}", TERN_OK, NULL},
        {"qwen2", "{\"rope_scaling\":{\"type\":\"yarn\",\"factor\":0.5}}", TERN_E_FORMAT, "a factor of 0.5"},
        {"qwen2", "{\"rope_scaling\":{\"type\":\"yarn\",\"factor\":2,\"beta_fast\":1}}", TERN_E_FORMAT,
         "betas 1 and 1"},
        {"llama", "{\"rope_parameters\":{\"rope_type\":\"default\",\"llama_4_scaling_beta\":0.1}}",
         TERN_E_UNSUPPORTED, "'llama_4_scaling_beta' is not supported for model type llama"},
        {"ministral3", "{\"rope_parameters\":{\"rope_type\":\"default\",\"llama_4_scaling_beta\":0.1}}",
         TERN_E_FORMAT, "'original_max_position_embeddings' is missing"},
        {"llama", "{\"logits_scaling\":8}", TERN_E_UNSUPPORTED,
         "'logits_scaling' is not supported for model type llama"},
        {"llama", "{\"logits_scaling\":1,\"num_experts\":0,\"clip_qkv\":null}", TERN_OK, NULL},
        {"llama", "{\"num_local_experts\":8}", TERN_E_UNSUPPORTED, "'num_local_experts' is not supported"},
        {"olmo2", "{\"clip_qkv\":8}", TERN_E_UNSUPPORTED, "'clip_qkv' is not supported"},
        {"qwen3", "{\"no_rope_layers\":[1,0]}", TERN_E_UNSUPPORTED, "'no_rope_layers' is not supported"},
        {"granite", "{\"logits_scaling\":0}", TERN_E_FORMAT, "logits inf"},
        {"granite", "{\"residual_multiplier\":-1}", TERN_E_FORMAT, "residuals -1"},
        {"smollm3", "{\"no_rope_layers\":[1,1]}", TERN_OK, NULL},
        {"smollm3", "{\"no_rope_layers\":[1,0]}", TERN_E_UNSUPPORTED, "no period of 4: layer 1"},
        {"smollm3", "{\"no_rope_layers\":[1,0,1]}", TERN_E_FORMAT,
         "'no_rope_layers' has 3 layers, the model 2"},
        {"smollm3", "{\"no_rope_layer_interval\":0}", TERN_E_FORMAT, "'no_rope_layer_interval' is 0"},
        {"gemma3_text", "{\"sliding_window\":8,\"sliding_window_pattern\":0}", TERN_E_FORMAT,
         "'sliding_window_pattern' is 0"},
        {"gemma3_text", "{\"sliding_window\":8,\"layer_types\":[\"sliding_attention\",\"full_attention\"]}",
         TERN_E_UNSUPPORTED, "says 'full_attention' of layer 1"},
        {"gemma3_text", "{\"sliding_window\":-1}", TERN_E_FORMAT, "window -1"},
        {"exaone4", "{\"sliding_window\":8,\"sliding_window_pattern\":\"LGL\"}", TERN_E_UNSUPPORTED,
         "is 'LGL', want L"},
        {"qwen3", "{\"layer_types\":[\"full_attention\",\"linear_attention\"]}", TERN_E_UNSUPPORTED,
         "layer 1 is of type 'linear_attention'"},
        {"lfm2", "{\"conv_L_cache\":3,\"layer_types\":[\"conv\",\"full_attention\"]}", TERN_OK, NULL},
        {"lfm2", "{\"conv_L_cache\":3,\"layer_types\":[\"conv\",\"conv\"]}", TERN_E_UNSUPPORTED,
         "no layer attends"},
        {"lfm2", "{\"conv_L_cache\":3,\"layer_types\":[\"conv\",\"mamba\"]}", TERN_E_UNSUPPORTED,
         "layer 1 is of type 'mamba'"},
        {"lfm2", "{\"conv_L_cache\":1,\"layer_types\":[\"conv\",\"full_attention\"]}", TERN_E_FORMAT,
         "values of a convolution 1, want 2 to 16"},
        {"lfm2", "{\"conv_L_cache\":3,\"conv_bias\":true,\"layer_types\":[\"conv\",\"full_attention\"]}",
         TERN_E_UNSUPPORTED, "'conv_bias' is not supported"},
        {"lfm2", "{\"conv_L_cache\":3,\"layer_types\":[\"conv\"]}", TERN_E_FORMAT,
         "'layer_types' has 1 layers, the model 2"},
        {"lfm2", "{\"conv_L_cache\":3,\"full_attn_idxs\":[1]}", TERN_OK, NULL},
        {"lfm2", "{\"conv_L_cache\":3,\"full_attn_idxs\":[]}", TERN_E_UNSUPPORTED, "no layer attends"},
        {"lfm2", "{\"conv_L_cache\":3,\"full_attn_idxs\":[2]}", TERN_E_FORMAT,
         "'full_attn_idxs' has something else than numbers of the 2 layers"},
        {"lfm2", "{\"conv_L_cache\":3,\"full_attn_idxs\":[\"1\"]}", TERN_E_FORMAT,
         "'full_attn_idxs' has something else than numbers of the 2 layers"},
        {"phi3", "{\"full_attn_mod\":1,\"interpolate_factor\":1}", TERN_OK, NULL},
        {"phi3", "{\"full_attn_mod\":2}", TERN_E_UNSUPPORTED, "'full_attn_mod' is not supported"},
        {"qwen3", "{\"conv_L_cache\":3}", TERN_E_UNSUPPORTED, "'conv_L_cache' is not supported"},
        {"qwen3_moe", "{\"num_experts\":8,\"num_experts_per_tok\":2}", TERN_OK, NULL},
        {"qwen3_5_text",
         "{\"linear_conv_kernel_dim\":4,\"linear_num_value_heads\":4,\"linear_num_key_heads\":2,\"linear_key_"
         "head_dim\":8,\"linear_value_head_dim\":16,\"full_attention_interval\":2}",
         TERN_OK, NULL},
        {"qwen3_5_text",
         "{\"linear_conv_kernel_dim\":4,\"linear_num_value_heads\":0,\"linear_num_key_heads\":2,\"linear_key_"
         "head_dim\":8,\"linear_value_head_dim\":16,\"full_attention_interval\":2}",
         TERN_E_FORMAT, "heads of a delta net 0, want 1 to"},
        {"qwen3_5_text",
         "{\"linear_conv_kernel_dim\":4,\"linear_num_value_heads\":4,\"linear_num_key_heads\":5,\"linear_key_"
         "head_dim\":8,\"linear_value_head_dim\":16,\"full_attention_interval\":2}",
         TERN_E_FORMAT, "key heads of a delta net 5, want 1 to 4"},
        {"qwen3_5_text",
         "{\"linear_conv_kernel_dim\":4,\"linear_num_value_heads\":4,\"linear_num_key_heads\":3,\"linear_key_"
         "head_dim\":8,\"linear_value_head_dim\":16,\"full_attention_interval\":2}",
         TERN_E_UNSUPPORTED, "a delta net of 4 heads over 3 key heads"},
        {"qwen3_5_text",
         "{\"linear_conv_kernel_dim\":4,\"linear_num_value_heads\":4,\"linear_num_key_heads\":2,\"linear_key_"
         "head_dim\":100000,\"linear_value_head_dim\":16,\"full_attention_interval\":2}",
         TERN_E_FORMAT, "keys of a delta net 100000, want 2 to 256"},
        {"qwen3_5_text",
         "{\"linear_conv_kernel_dim\":4,\"linear_num_value_heads\":4,\"linear_num_key_heads\":2,\"linear_key_"
         "head_dim\":8,\"linear_value_head_dim\":24,\"full_attention_interval\":2}",
         TERN_E_UNSUPPORTED, "of 8 keys and 24 values; want"},
        {"qwen3_5_text",
         "{\"linear_conv_kernel_dim\":4,\"linear_num_value_heads\":4,\"linear_num_key_heads\":2,\"linear_key_"
         "head_dim\":8,\"linear_value_head_dim\":16,\"full_attention_interval\":0}",
         TERN_E_FORMAT, "'full_attention_interval' is 0"},
        {"qwen3_5_text",
         "{\"linear_conv_kernel_dim\":4,\"linear_num_value_heads\":4,\"linear_num_key_heads\":2,\"linear_key_"
         "head_dim\":8,\"linear_value_head_dim\":16,\"full_attention_interval\":5}",
         TERN_E_UNSUPPORTED, "no layer attends"},
        {"qwen3_5_text",
         "{\"linear_conv_kernel_dim\":1,\"linear_num_value_heads\":4,\"linear_num_key_heads\":2,\"linear_key_"
         "head_dim\":8,\"linear_value_head_dim\":16,\"full_attention_interval\":2}",
         TERN_E_FORMAT, "values of a convolution 1, want 2 to"},
        {"qwen3_5_text",
         "{\"linear_conv_kernel_dim\":4,\"linear_num_value_heads\":4,\"linear_num_key_heads\":2,\"linear_"
         "value_head_dim\":16,\"full_attention_interval\":2}",
         TERN_E_FORMAT, "'linear_key_head_dim' is missing"},
        {"qwen3_5_text",
         "{\"linear_conv_kernel_dim\":4,\"linear_num_value_heads\":4,\"linear_num_key_heads\":2,\"linear_key_"
         "head_dim\":8,\"linear_value_head_dim\":16,\"full_attention_interval\":2,\"attn_output_gate\":"
         "false}",
         TERN_E_UNSUPPORTED, "'attn_output_gate' is not true"},
        {"qwen3_5_text",
         "{\"linear_conv_kernel_dim\":4,\"linear_num_value_heads\":4,\"linear_num_key_heads\":2,\"linear_key_"
         "head_dim\":8,\"linear_value_head_dim\":16,\"full_attention_interval\":2,\"layer_types\":[\"linear_"
         "attention\",\"mamba\"]}",
         TERN_E_UNSUPPORTED, "layer 1 is of type 'mamba'"},
        {"qwen3_5_text",
         "{\"linear_conv_kernel_dim\":4,\"linear_num_value_heads\":4,\"linear_num_key_heads\":2,\"linear_key_"
         "head_dim\":8,\"linear_value_head_dim\":16,\"full_attention_interval\":2,\"num_experts\":8}",
         TERN_E_UNSUPPORTED, "'num_experts' is not supported"},
        {"qwen3_next",
         "{\"linear_conv_kernel_dim\":4,\"linear_num_value_heads\":4,\"linear_num_key_heads\":2,\"linear_key_"
         "head_dim\":8,\"linear_value_head_dim\":16,\"full_attention_interval\":2,\"num_experts\":8,\"num_"
         "experts_per_tok\":2}",
         TERN_E_FORMAT, "'shared_expert_intermediate_size' is missing"},
        {"qwen3", "{\"linear_num_value_heads\":4}", TERN_E_UNSUPPORTED,
         "'linear_num_value_heads' is not supported"},
        {"lfm2_moe",
         "{\"conv_L_cache\":3,\"layer_types\":[\"conv\",\"full_attention\"],\"num_experts\":4,\"num_experts_"
         "per_tok\":2,\"num_dense_layers\":1}",
         TERN_OK, NULL},
        {"lfm2_moe",
         "{\"conv_L_cache\":3,\"layer_types\":[\"conv\",\"full_attention\"],\"num_experts\":4,\"num_experts_"
         "per_tok\":2,\"num_dense_layers\":2}",
         TERN_E_FORMAT, "layers without experts 2, want 0 to 1"},
        {"lfm2_moe",
         "{\"conv_L_cache\":3,\"layer_types\":[\"conv\",\"full_attention\"],\"num_experts\":4,\"num_experts_"
         "per_tok\":2,\"routed_scaling_factor\":-2}",
         TERN_E_FORMAT, "experts -2"},
        {"gpt_oss", "{\"num_local_experts\":8,\"num_experts_per_tok\":2}", TERN_E_UNSUPPORTED,
         "is read from GGUF files only"},
        {"qwen3_moe", "{\"num_experts\":0,\"num_experts_per_tok\":2}", TERN_E_FORMAT, "experts 0, want 1 to"},
        {"qwen3_moe", "{\"num_experts\":8,\"num_experts_per_tok\":9}", TERN_E_FORMAT,
         "experts used 9, want 1 to 8"},
        {"qwen3_moe", "{\"num_experts\":100000,\"num_experts_per_tok\":1}", TERN_E_FORMAT, "experts 100000"},
        {"qwen3_moe", "{\"num_experts\":8}", TERN_E_FORMAT, "'num_experts_per_tok' is missing"},
        {"qwen3_moe", "{\"num_experts\":8,\"num_experts_per_tok\":2,\"mlp_only_layers\":[1]}",
         TERN_E_UNSUPPORTED, "'mlp_only_layers' is not supported"},
        {"qwen3_moe", "{\"num_experts\":8,\"num_experts_per_tok\":2,\"decoder_sparse_step\":2}",
         TERN_E_UNSUPPORTED, "'decoder_sparse_step'"},
        {"granitemoe", "{\"num_local_experts\":8,\"num_experts_per_tok\":2,\"shared_intermediate_size\":64}",
         TERN_E_UNSUPPORTED, "'shared_intermediate_size' is not supported"},
        {"qwen3", "{\"layer_types\":[\"full_attention\"]}", TERN_E_FORMAT,
         "'layer_types' has 1 layers, the model 2"},
        {"llama", "{\"rope_scaling\":{\"rope_type\":\"linear\"}}", TERN_E_FORMAT, "'factor' is missing"},
        {"llama", "{\"rope_scaling\":{\"rope_type\":\"linear\",\"factor\":0}}", TERN_E_FORMAT,
         "rope factor 0"},
        {"llama", "{\"rope_scaling\":[{\"rope_type\":\"linear\",\"factor\":2}]}", TERN_E_FORMAT,
         "'rope_scaling' is not an object"},
        {"llama", "{\"rope_parameters\":\"linear\"}", TERN_E_FORMAT, "'rope_parameters' is not an object"},
        {"llama", "{\"rope_scaling\":{\"type\":1,\"factor\":2}}", TERN_E_FORMAT,
         "'type' of 'rope_scaling' is not a string"},
        {"gemma3_text", "{\"rope_parameters\":{\"full_attention\":3}}", TERN_E_FORMAT,
         "'full_attention' is not an object"},
        {"phi3", "{\"rope_scaling\":{\"type\":\"longrope\",\"short_factor\":[1],\"long_factor\":[1]}}",
         TERN_E_FORMAT, "'short_factor' has 1 factors, want 4"},
        {"llama", "{\"hidden_size\":null}", TERN_E_FORMAT, "'hidden_size' is not a number"},
        {"llama", "{\"hidden_size\":32.5}", TERN_E_FORMAT, "'hidden_size' is 32.5, not a whole number"},
        {"llama", "{\"hidden_size\":1e30}", TERN_E_FORMAT, "'hidden_size' is 1e+30, out of range"},
        {"llama", "{\"num_hidden_layers\":0}", TERN_E_FORMAT, "layers 0"},
        {"llama", "{\"num_hidden_layers\":1000000}", TERN_E_FORMAT, "layers 1000000"},
        {"llama", "{\"num_key_value_heads\":3}", TERN_E_FORMAT, "4 heads do not share 3 KV heads evenly"},
        {"llama", "{\"vocab_size\":\"many\"}", TERN_E_FORMAT, "'vocab_size' is not a number"},
        {"llama", "{\"hidden_act\":\"mish\"}", TERN_E_UNSUPPORTED, "activation 'mish' is unknown"},
        {"bert", "{\"is_decoder\":true}", TERN_E_UNSUPPORTED, "'is_decoder' is not supported"},
        {"llama", "{\"is_decoder\":true}", TERN_OK, NULL},
        {"llama", "{\"hidden_act\":3}", TERN_E_FORMAT, "'hidden_act' is no word"},
        {"llama", "{\"hidden_activation\":true}", TERN_E_FORMAT, "'hidden_activation' is no word"},
        {"llama", "{\"tie_word_embeddings\":1}", TERN_E_FORMAT,
         "'tie_word_embeddings' is neither true nor false"},
        {"qwen2", "{\"use_sliding_window\":\"yes\"}", TERN_E_FORMAT,
         "'use_sliding_window' is neither true nor false"},
        {"qwen3", "{\"layer_types\":\"sliding_attention\"}", TERN_E_FORMAT, "'layer_types' is no list"},
        {"llama", "{\"rms_norm_eps\":-1}", TERN_E_FORMAT, "norm epsilon -1"},
        {"phi", "{\"partial_rotary_factor\":7}", TERN_E_FORMAT, "partial_rotary_factor 7"},
        {"phi", "{\"qk_layernorm\":true}", TERN_E_UNSUPPORTED, "qk_layernorm"},
        {"gemma4_text",
         "{\"layer_types\":[\"sliding_attention\",\"full_attention\"],\"sliding_window\":8,\"head_dim\":8}",
         TERN_OK, NULL},
        {"gemma4_text",
         "{\"layer_types\":[\"sliding_attention\",\"full_attention\"],\"sliding_window\":8,\"head_dim\":8,"
         "\"global_head_dim\":16,\"hidden_size_per_layer_input\":8}",
         TERN_OK, NULL},
        {"gemma4_text", "{\"sliding_window\":8}", TERN_E_FORMAT, "'layer_types' is missing"},
        {"gemma4_text",
         "{\"layer_types\":[\"sliding_attention\",\"full_attention\"],\"sliding_window\":8,\"head_dim\":8,"
         "\"num_kv_shared_layers\":2}",
         TERN_E_FORMAT, "'num_kv_shared_layers' is 2 of 2 layers"},
        {"gemma4_text",
         "{\"layer_types\":[\"sliding_attention\",\"full_attention\"],\"sliding_window\":8,\"head_dim\":8,"
         "\"num_kv_shared_layers\":-1}",
         TERN_E_FORMAT, "'num_kv_shared_layers' is -1"},
        {"gemma4_text",
         "{\"layer_types\":[\"sliding_attention\",\"full_attention\"],\"sliding_window\":8,\"head_dim\":8,"
         "\"num_kv_shared_layers\":1}",
         TERN_E_FORMAT, "none before them is of their kind"},
        {"gemma4_text",
         "{\"layer_types\":[\"sliding_attention\",\"full_attention\"],\"sliding_window\":8,\"head_dim\":8,"
         "\"global_head_dim\":100000}",
         TERN_E_FORMAT, "head size 100000"},
        {"gemma4_text",
         "{\"layer_types\":[\"sliding_attention\",\"full_attention\"],\"sliding_window\":8,\"head_dim\":8,"
         "\"global_head_dim\":0}",
         TERN_E_FORMAT, "head size 0"},
        {"gemma4_text",
         "{\"layer_types\":[\"sliding_attention\",\"full_attention\"],\"sliding_window\":8,\"head_dim\":8,"
         "\"global_head_dim\":4}",
         TERN_E_UNSUPPORTED, "8 rotated values in layers with a window, 4 in the others"},
        {"gemma4_text",
         "{\"layer_types\":[\"sliding_attention\",\"full_attention\"],\"sliding_window\":8,\"head_dim\":8,"
         "\"hidden_size_per_layer_input\":5000}",
         TERN_E_FORMAT, "embedding for every layer 5000, want 4 to 4096"},
        {"gemma4_text",
         "{\"layer_types\":[\"sliding_attention\",\"full_attention\"],\"sliding_window\":8,\"head_dim\":8,"
         "\"hidden_size_per_layer_input\":-8}",
         TERN_E_FORMAT, "'hidden_size_per_layer_input' is -8, out of range"},
        {"gemma4_text",
         "{\"layer_types\":[\"sliding_attention\",\"full_attention\"],\"sliding_window\":8,\"head_dim\":8,"
         "\"num_global_key_value_heads\":1}",
         TERN_E_UNSUPPORTED, "without 'attention_k_eq_v'"},
        {"gemma4_text",
         "{\"layer_types\":[\"sliding_attention\",\"full_attention\"],\"sliding_window\":8,\"head_dim\":8,"
         "\"num_global_key_value_heads\":3,\"attention_k_eq_v\":true}",
         TERN_E_FORMAT, "4 heads do not share 3 KV heads evenly"},
        {"gemma4_text",
         "{\"layer_types\":[\"sliding_attention\",\"full_attention\"],\"sliding_window\":8,\"head_dim\":8,"
         "\"enable_moe_block\":true}",
         TERN_E_UNSUPPORTED, "'enable_moe_block' is not supported"},
        {"gemma4_text",
         "{\"layer_types\":[\"sliding_attention\",\"full_attention\"],\"sliding_window\":8,\"head_dim\":8,"
         "\"use_bidirectional_attention\":\"vision\"}",
         TERN_OK, NULL},
        {"gemma4_text",
         "{\"layer_types\":[\"sliding_attention\",\"full_attention\"],\"sliding_window\":8,\"head_dim\":8,"
         "\"use_bidirectional_attention\":\"all\"}",
         TERN_E_UNSUPPORTED, "'use_bidirectional_attention' is not supported"},
        {"gemma3_text", "{\"num_kv_shared_layers\":1}", TERN_E_UNSUPPORTED,
         "'num_kv_shared_layers' is not supported"},
        {"llama", "{\"hidden_size_per_layer_input\":8}", TERN_E_UNSUPPORTED,
         "'hidden_size_per_layer_input' is not supported"},
        {"qwen2", "{\"use_sliding_window\":true,\"max_window_layers\":1}", TERN_E_UNSUPPORTED,
         "use_sliding_window"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        json_t *c = json_pack("{s:i,s:i,s:i,s:i,s:i,s:i,s:i}", "hidden_size", 32, "num_hidden_layers", 2,
                              "num_attention_heads", 4, "num_key_value_heads", 2, "intermediate_size", 64,
                              "vocab_size", 48, "max_position_embeddings", 64);
        fixture_patch(c, cases[i].patch);
        tn_hparams h;
        tern_error err = {0};
        tern_status st = tn_arch_hparams_hf(tn_arch_by_hf(cases[i].arch), c, "config.json", &h, &err);
        if (st != cases[i].want ||
            (cases[i].part && (!strstr(err.message, cases[i].part) || !strstr(err.message, "config.json")))) {
            fail_msg("%s %s: status %d, '%s'", cases[i].arch, cases[i].patch, st, err.message);
        }
        json_decref(c);
    }
}

/* Ling 3 as published, with one entry changed: what decays and gates are, which layers attend, what is clamped. */
static void configs_of_ling(void **state) {
    (void)state;
    static const struct {
        const char *patch;
        tern_status want;
        const char *part;
    } cases[] = {
        {"{}", TERN_OK, NULL},
        {"{\"layer_group_size\":null}", TERN_E_FORMAT, "'layer_group_size' is missing"},
        {"{\"layer_group_size\":1.5}", TERN_E_FORMAT, "or no whole number from 1 on"},
        {"{\"no_kda_lora\":false}", TERN_E_UNSUPPORTED, "'no_kda_lora' is not true"},
        {"{\"use_kda_lora\":true}", TERN_E_UNSUPPORTED, "'use_kda_lora' is not supported"},
        {"{\"kda_safe_gate\":false}", TERN_E_UNSUPPORTED, "'kda_safe_gate' is not true"},
        {"{\"kda_lower_bound\":0}", TERN_E_UNSUPPORTED, "'kda_lower_bound' is not below 0"},
        {"{\"kda_lower_bound\":\"-5\"}", TERN_E_UNSUPPORTED, "'kda_lower_bound' is not below 0"},
        {"{\"kda_lower_bound\":-65}", TERN_E_UNSUPPORTED, "or below -64"},
        {"{\"moe_router_enable_expert_bias\":false}", TERN_E_UNSUPPORTED,
         "'moe_router_enable_expert_bias' is not true"},
        {"{\"gated_attention_proj_granularity_type\":\"element_wise\"}", TERN_E_UNSUPPORTED,
         "is not 'head_wise'"},
        {"{\"gated_attention_proj_granularity_type\":null}", TERN_E_UNSUPPORTED, "is not 'head_wise'"},
        {"{\"group_norm_size\":4}", TERN_E_UNSUPPORTED, "'group_norm_size' is not supported"},
        {"{\"rope_interleave\":false}", TERN_E_UNSUPPORTED, "'rope_interleave' is not supported"},
        {"{\"use_mla_nope\":true}", TERN_E_UNSUPPORTED, "'use_mla_nope' is not supported"},
        {"{\"value_norm\":true}", TERN_E_UNSUPPORTED, "'value_norm' is not supported"},
        {"{\"score_function\":\"softmax\"}", TERN_E_UNSUPPORTED, "'score_function' is not supported"},
        {"{\"scoring_func\":\"softmax\"}", TERN_E_UNSUPPORTED, "'scoring_func' is not supported"},
        {"{\"pregate_enabled\":true}", TERN_E_UNSUPPORTED, "'pregate_enabled' is not supported"},
        {"{\"n_group\":5}", TERN_E_FORMAT, "12 experts in 5 groups"},
        {"{\"expert_swiglu_limit_list\":[0,0,null,4,4]}", TERN_OK, NULL},
        {"{\"expert_swiglu_limit_list\":[0,0,4]}", TERN_E_FORMAT,
         "'expert_swiglu_limit_list' is no list of 4 layers"},
        {"{\"share_expert_swiglu_limit_list\":7}", TERN_E_FORMAT,
         "'share_expert_swiglu_limit_list' is no list of 4 layers"},
        {"{\"share_expert_swiglu_limit_list\":[0,0,-1,0]}", TERN_E_FORMAT,
         "'share_expert_swiglu_limit_list' is no number from 0 on in layer 2"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        json_t *c = json_load_file(FIXTURES "bailingmoe3/config.json", 0, NULL);
        assert_non_null(c);
        fixture_patch(c, cases[i].patch);
        const tn_arch *a = tn_arch_of_config(c);
        assert_non_null(a);
        tn_hparams h;
        tern_error err = {0};
        tern_status st = tn_arch_hparams_hf(a, c, "config.json", &h, &err);
        if (st != cases[i].want ||
            (cases[i].part && (!strstr(err.message, cases[i].part) || !strstr(err.message, "config.json"))))
            fail_msg("%s: status %d, '%s'", cases[i].patch, st, err.message);
        if (!i) { /* of another class the same word is another architecture's */
            fixture_patch(c, "{\"architectures\":[\"BailingMoeV2_5ForCausalLM\"]}");
            assert_null(tn_arch_of_config(c));
        }
        json_decref(c);
    }
}

/* Falcon-H1, with one entry changed; and what it multiplies its tensors by. */
static void configs_of_both(void **state) {
    (void)state;
    static const char base[] =
        "{\"hidden_size\":32,\"num_hidden_layers\":2,\"num_attention_heads\":4,\"num_key_value_heads\":2,"
        "\"intermediate_size\":64,\"vocab_size\":48,\"max_position_embeddings\":64,\"mamba_n_heads\":4,"
        "\"mamba_d_head\":16,\"mamba_d_ssm\":64,\"mamba_n_groups\":2,\"mamba_d_state\":8,\"mamba_d_conv\":4,"
        "\"attention_in_multiplier\":2,\"key_multiplier\":0.25,\"ssm_in_multiplier\":0.5,"
        "\"ssm_multipliers\":[1,2,3,4,5]}";
    static const struct {
        const char *patch;
        tern_status want;
        const char *part;
    } cases[] = {
        {"{}", TERN_OK, NULL},
        {"{\"mamba_d_head\":\"auto\",\"mamba_rms_norm\":true}", TERN_OK, NULL},
        {"{\"mamba_d_ssm\":null,\"mamba_d_head\":\"auto\",\"mamba_expand\":2}", TERN_OK, NULL},
        {"{\"time_step_limit\":[0.0,null],\"attn_layer_indices\":null}", TERN_OK, NULL},
        {"{\"mamba_d_ssm\":72}", TERN_E_FORMAT, "72 values of a state space for 4 heads of 16"},
        {"{\"mamba_n_heads\":0}", TERN_E_FORMAT, "64 values of a state space for 0 heads of 16"},
        {"{\"mamba_n_heads\":3,\"mamba_d_head\":\"auto\"}", TERN_E_FORMAT, "for 3 heads of 21"},
        {"{\"mamba_n_groups\":3}", TERN_E_UNSUPPORTED, "4 heads over 3 key heads"},
        {"{\"mamba_d_state\":100000}", TERN_E_FORMAT, "keys of a delta net 100000, want 2 to 256"},
        {"{\"mamba_d_conv\":1}", TERN_E_FORMAT, "values of a convolution 1, want 2 to"},
        {"{\"projectors_bias\":true}", TERN_E_UNSUPPORTED, "'projectors_bias' is not false"},
        {"{\"mamba_conv_bias\":false}", TERN_E_UNSUPPORTED, "'mamba_conv_bias' is not true"},
        {"{\"attn_layer_indices\":[0]}", TERN_E_UNSUPPORTED, "'attn_layer_indices' is not supported"},
        {"{\"time_step_limit\":[0.0,0.5]}", TERN_E_UNSUPPORTED, "'time_step_limit' is not supported"},
        {"{\"hidden_act\":\"gelu\"}", TERN_E_UNSUPPORTED, "activation 'gelu' is not supported"},
        {"{\"residual_multiplier\":0.5}", TERN_E_UNSUPPORTED, "'residual_multiplier' is not supported"},
        {"{\"lm_head_multiplier\":0}", TERN_E_FORMAT, "logits 0"},
        {"{\"key_multiplier\":-1}", TERN_E_FORMAT, "multiplies attn_k by -2"},
        {"{\"ssm_out_multiplier\":\"1\"}", TERN_E_FORMAT, "'ssm_out_multiplier' is not a number"},
        {"{\"mlp_multipliers\":[1]}", TERN_E_FORMAT, "'mlp_multipliers' are 1 numbers, want 2"},
        {"{\"mlp_multipliers\":[1,\"1\"]}", TERN_E_FORMAT, "multiplies ffn_down by 0"},
    };
    const tn_arch *a = tn_arch_by_hf("falcon_h1");
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        json_t *c = json_loads(base, 0, NULL);
        fixture_patch(c, cases[i].patch);
        tn_hparams h;
        float by[TN_W_N_ROLES];
        tern_error err = {0};
        tern_status st = tn_arch_hparams_hf(a, c, "config.json", &h, &err);
        if (st == TERN_OK) st = tn_arch_multipliers_hf(a, c, "config.json", by, &err);
        if (st != cases[i].want ||
            (cases[i].part && (!strstr(err.message, cases[i].part) || !strstr(err.message, "config.json"))))
            fail_msg("%s: status %d, '%s'", cases[i].patch, st, err.message);
        for (int r = 0; st == TERN_OK && r < TN_W_N_ROLES; r++) {
            float want = r == TN_W_Q || r == TN_W_V            ? 2
                         : r == TN_W_K || r == TN_W_DELTA_GATE ? 0.5f
                         : r == TN_W_DELTA_K                   ? 1.5f
                         : r == TN_W_DELTA_Q                   ? 2
                         : r == TN_W_DELTA_DECAY               ? 2.5f
                                                               : 0; /* of values: 1 */
            assert_true(by[r] == want);
        }
        json_decref(c);
    }
    json_t *c = json_loads(base, 0, NULL); /* another architecture would leave them out */
    tn_hparams h;
    tern_error err = {0};
    assert_int_equal(tn_arch_hparams_hf(tn_arch_by_hf("llama"), c, "config.json", &h, &err),
                     TERN_E_UNSUPPORTED);
    assert_non_null(strstr(err.message, "is not supported for model type llama"));
    json_decref(c);
}

static void a_trained_model(void **state) {
    (void)state;
    const char *data = getenv("TERN_DATA");
    char path[512];
    snprintf(path, sizeof path, "%s/models/stories260K.gguf", data ? data : TN_SOURCE_DIR "/../shared/data");
    if (access(path, R_OK)) {
        print_message("%s is not there; skipped\n", path);
        skip();
    }
    tn_source *s = open_ok(path);
    assert_string_equal(tn_source_hparams(s)->arch, "llama");
    assert_non_null(tn_source_tokenizer(s));
    for (int layer = 0; layer < tn_source_hparams(s)->n_layers; layer++) {
        int64_t n;
        free(read_role(s, layer, TN_W_K, &n));
    }
    tn_tokenizer *t = tn_source_take_tokenizer(s);
    assert_non_null(t);
    assert_null(tn_source_tokenizer(s));
    tn_source_close(&s);
    tn_tokenizer_close(&t);
}

static void every_allocation_may_fail(void **state) {
    (void)state;
    char tiny[512];
    snprintf(tiny, sizeof tiny, "%s/models/stories260K.gguf",
             getenv("TERN_DATA") ? getenv("TERN_DATA") : TN_SOURCE_DIR "/../shared/data");
    const char *const paths[] = {FIXTURES "phi3-long.gguf", FIXTURES "llama", tiny};
    for (int i = 0; i < (access(tiny, R_OK) ? 2 : 3); i++) {
        tern_status st = TERN_E_MEMORY;
        /* a tokenizer takes one allocation per few tokens: further apart there */
        for (int n = 0; st != TERN_OK; n += i == 2 && n > 40 ? 37 : 1) {
            scarce u = {.left = n};
            tern_hooks hooks;
            scarce_hooks(&hooks, &u);
            tn_ctx poor;
            tn_ctx_init(&poor, &hooks);
            tn_source *s;
            tern_error err = {0};
            st = tn_source_open(&poor, paths[i], &s, &err);
            if (st != TERN_OK && st != TERN_E_MEMORY)
                fail_msg("allocation %d of %s: %s", n, paths[i], err.message);
            assert_true((s == NULL) == (st != TERN_OK) && (st == TERN_OK || err.message[0]));
            tn_source_close(&s);
            for (int c = 0; c < TN_MEM_N_CATS; c++) assert_int_equal(atomic_load(&poor.live_bytes[c]), 0);
        }
    }
}

int main(void) {
    tn_ctx_init(&ctx, NULL);
    if (!mkdtemp(folder)) return 1;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(both_formats_hold_the_same_model),
        cmocka_unit_test(fused_tensors_are_cut_in_order),
        cmocka_unit_test(rows_alone_and_from_threads),
        cmocka_unit_test(broken_gguf),
        cmocka_unit_test(broken_layers),
        cmocka_unit_test(llama_with_a_window),
        cmocka_unit_test(weights_that_are_no_numbers),
        cmocka_unit_test(broken_folder),
        cmocka_unit_test(configs),
        cmocka_unit_test(configs_of_ling),
        cmocka_unit_test(configs_of_both),
        cmocka_unit_test(a_trained_model),
        cmocka_unit_test(every_allocation_may_fail),
    };
    int rc = cmocka_run_group_tests(tests, NULL, NULL);
    static const char *const names[] = {"broken.gguf", "config.json", "model.safetensors"};
    for (size_t i = 0; i < 3; i++) {
        char path[256];
        snprintf(path, sizeof path, "%s/%s", folder, names[i]);
        (void)remove(path);
    }
    (void)rmdir(folder);
    return rc;
}
