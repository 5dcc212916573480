/* Gemma 3n, and Gemma 4 with experts: is what their files may say wrong of several residual streams, and of experts
 * beside a dense block, named in one line, and what the published configuration says read as it is meant? tests/oracle and tests/model/peers.c tell whether it is computed right. */
#include "formats/gguf.h"
#include "lab/synth.h"
#include "model/arch.h"
#include "model/source.h"

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

static tn_ctx ctx;

/* ---- folders --------------------------------------------------------------------------------------- */

static json_t *config_of(const char *of, const char *patch) {
    json_error_t e;
    char path[512];
    snprintf(path, sizeof path, FIXTURES "%s/config.json", of);
    json_t *c = json_load_file(path, 0, &e);
    fixture_patch(c, patch);
    return c;
}

static void configurations(void **state) {
    (void)state;
    static const struct {
        const char *patch;
        tern_status want;
        const char *part;
    } cases[] = {
        {"{}", TERN_OK, NULL},
        {"{\"activation_sparsity_pattern\":[0,0,0,0,0,0]}", TERN_OK, NULL},
        {"{\"altup_num_inputs\":2}", TERN_E_FORMAT, "residual streams 2, want 4 to 4"},
        {"{\"altup_num_inputs\":null}", TERN_E_FORMAT, "'altup_num_inputs' is not a number"},
        {"{\"altup_active_idx\":1}", TERN_E_UNSUPPORTED, "'altup_active_idx' is 1, want 0"},
        {"{\"altup_correct_scale\":false}", TERN_E_UNSUPPORTED, "'altup_correct_scale' is false"},
        {"{\"laurel_rank\":0}", TERN_E_FORMAT, "rank of the product beside attention 0, want 1 to"},
        {"{\"laurel_rank\":100000}", TERN_E_FORMAT, "rank of the product beside attention 100000"},
        {"{\"hidden_size_per_layer_input\":0}", TERN_E_FORMAT, "embedding for every layer 0, want 4 to"},
        {"{\"vocab_size_per_layer_input\":49}", TERN_E_FORMAT, "is 49, the vocabulary 48"},
        {"{\"vocab_size_per_layer_input\":0}", TERN_E_FORMAT, "is 0, the vocabulary 48"},
        {"{\"activation_sparsity_pattern\":[0.9]}", TERN_E_FORMAT, "has 1 layers, the model 6"},
        {"{\"activation_sparsity_pattern\":0.9}", TERN_E_FORMAT, "has 0 layers, the model 6"},
        {"{\"activation_sparsity_pattern\":[0,0.9,0,0,0,0]}", TERN_E_UNSUPPORTED, "others: layer 1"},
        {"{\"activation_sparsity_pattern\":[0.9,0.8,0,0,0,0]}", TERN_E_UNSUPPORTED, "others: layer 1"},
        {"{\"activation_sparsity_pattern\":[0.9,0,0.9,0,0,0]}", TERN_E_UNSUPPORTED, "others: layer 2"},
        {"{\"activation_sparsity_pattern\":[0.3,0,0,0,0,0]}", TERN_E_UNSUPPORTED, "begins with 0.3"},
        {"{\"activation_sparsity_pattern\":[1,0,0,0,0,0]}", TERN_E_UNSUPPORTED, "begins with 1"},
        {"{\"intermediate_size\":[48,48,48,48,48,64]}", TERN_E_UNSUPPORTED,
         "'intermediate_size' is not the same number in all layers"},
        {"{\"intermediate_size\":[]}", TERN_E_UNSUPPORTED, "'intermediate_size' is not the same number"},
        {"{\"model_type\":\"gemma4_text\"}", TERN_E_UNSUPPORTED, "'altup_num_inputs' is not supported"},
        {"{\"model_type\":\"gemma4_text\",\"altup_num_inputs\":1,\"laurel_rank\":0}", TERN_E_UNSUPPORTED,
         "'activation_sparsity_pattern' is not supported"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        json_t *c = config_of("gemma3n", cases[i].patch);
        const char *type = json_string_value(json_object_get(c, "model_type"));
        tn_hparams h;
        tern_error err = {0};
        tern_status st = tn_arch_hparams_hf(tn_arch_by_hf(type), c, "config.json", &h, &err);
        if (st != cases[i].want || (cases[i].part && !strstr(err.message, cases[i].part)))
            fail_msg("%s: status %d, '%s'", cases[i].patch, (int)st, err.message);
        json_decref(c);
    }
}

static void experts_in_configurations(void **state) {
    (void)state;
    static const struct {
        const char *patch;
        bool with;
        tern_status want;
        const char *part;
    } cases[] = {
        {"{}", true, TERN_OK, NULL},
        {"{}", false, TERN_E_UNSUPPORTED, "'num_experts' is not supported"},
        {"{\"num_experts\":null}", false, TERN_E_UNSUPPORTED, "'enable_moe_block' is not supported"},
        {"{\"num_experts\":0}", true, TERN_E_FORMAT, "experts 0, want 1 to"},
        {"{\"num_experts\":100000}", true, TERN_E_FORMAT, "experts 100000"},
        {"{\"top_k_experts\":7}", true, TERN_E_FORMAT, "experts used 7, want 1 to 6"},
        {"{\"top_k_experts\":null}", true, TERN_E_FORMAT, "'top_k_experts' is not a number"},
        {"{\"moe_intermediate_size\":null}", true, TERN_E_FORMAT, "'moe_intermediate_size' is not a number"},
        {"{\"moe_intermediate_size\":0}", true, TERN_E_FORMAT, "feed-forward size of an expert 0"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        json_t *c = config_of("gemma4-moe", cases[i].patch);
        tn_hparams h;
        tern_error err = {0};
        const tn_arch *a = tn_arch_variant(tn_arch_by_hf("gemma4_text"), cases[i].with);
        tern_status st = tn_arch_hparams_hf(a, c, "config.json", &h, &err);
        if (st != cases[i].want || (cases[i].part && !strstr(err.message, cases[i].part)))
            fail_msg("%s: status %d, '%s'", cases[i].patch, (int)st, err.message);
        if (st == TERN_OK)
            assert_true(h.n_experts == 6 && h.n_experts_used == 2 && h.n_ff == 48 && h.n_ff_exp == 16);
        json_decref(c);
    }
}

/* What E2B's configuration says. Rows after the text's stand for pictures and sounds. */
static void the_published_one(void **state) {
    (void)state;
    tern_error err = {0};
    tn_hparams h;
    json_t *text = json_object(), *kinds = json_array(), *shares = json_array(), *ff = json_array();
    static const struct {
        const char *key;
        double v;
    } numbers[] = {{"vocab_size", 262400},
                   {"vocab_size_per_layer_input", 262144},
                   {"hidden_size", 2048},
                   {"hidden_size_per_layer_input", 256},
                   {"num_hidden_layers", 30},
                   {"num_attention_heads", 8},
                   {"num_key_value_heads", 2},
                   {"head_dim", 256},
                   {"num_kv_shared_layers", 10},
                   {"altup_num_inputs", 4},
                   {"altup_active_idx", 0},
                   {"altup_coef_clip", 120},
                   {"laurel_rank", 64},
                   {"sliding_window", 512},
                   {"max_position_embeddings", 32768},
                   {"rope_theta", 1e6},
                   {"rope_local_base_freq", 1e4},
                   {"rms_norm_eps", 1e-6},
                   {"final_logit_softcapping", 30}};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        assert_false(json_object_set_new(text, numbers[i].key,
                                         numbers[i].v == floor(numbers[i].v)
                                             ? json_integer((json_int_t)numbers[i].v)
                                             : json_real(numbers[i].v)));
    for (int i = 0; i < 30; i++) {
        assert_false(
            json_array_append_new(kinds, json_string(i % 5 == 4 ? "full_attention" : "sliding_attention")));
        assert_false(json_array_append_new(shares, json_real(i < 10 ? 0.95 : 0)));
        assert_false(json_array_append_new(ff, json_integer(8192)));
    }
    assert_false(json_object_set_new(text, "layer_types", kinds));
    assert_false(json_object_set_new(text, "activation_sparsity_pattern", shares));
    assert_false(json_object_set_new(text, "intermediate_size", ff));
    assert_false(json_object_set_new(text, "altup_correct_scale", json_true()));
    assert_false(json_object_set_new(text, "hidden_activation", json_string("gelu_pytorch_tanh")));
    json_t *whole = json_pack("{s:s, s:o}", "model_type", "gemma3n", "text_config", text);
    assert_non_null(whole);
    if (tn_arch_hparams_hf(tn_arch_by_hf("gemma3n"), whole, "config.json", &h, &err) != TERN_OK)
        fail_msg("%s", err.message);
    json_decref(whole);
    assert_true(h.n_vocab == 262144 && h.n_vocab_rest == 256 && h.n_ff == 8192 && h.n_sparse == 10);
    assert_true(h.window == 512 && h.window_pattern == 5 && h.n_kv_shared == 10 && h.attn_scale == 1);
    assert_true(fabs((double)h.sparse_deviations - 1.6448536269514722) < 1e-6);
    assert_true(tn_layer_kv(&h, 24) == 19 && tn_layer_kv(&h, 25) == 18 && tn_layer_kv(&h, 19) == 19);
    assert_true(!h.window_d_head && !h.window_rot && !h.layer_scale && h.local_rope);
}

/* ---- GGUF ------------------------------------------------------------------------------------------ */

static char good[FIXTURE_PATH], broken[FIXTURE_PATH];

/* `n` bytes at `at` after the name become `with`. */
static void refused(const char *name, size_t at, const void *with, size_t n, tern_status want,
                    const char *part) {
    size_t size;
    char *b = fixture_read(good, &size), *p = memmem(b, size, name, strlen(name));
    if (!p) fail_msg("the model has no %s", name);
    memcpy(p + strlen(name) + at, with, n);
    fixture_write(broken, b, size);
    free(b);
    tn_source *s;
    tern_error err = {0};
    tern_status st = tn_source_open(&ctx, broken, &s, &err);
    if (st != want || !strstr(err.message, part)) fail_msg("%s: status %d, '%s'", name, (int)st, err.message);
    assert_null(s);
}

static void files(void **state) {
    (void)state;
    const uint32_t two = 2;
    const uint64_t wide = 63;
    const float other = 1.5f, none = -INFINITY;
    fixture_model(good, "good.gguf", "tiny-gemma3n", 1, TN_F32);
    fixture_file(broken, "broken.gguf");
    refused("gemma3n.altup.num_inputs", 4, &two, 4, TERN_E_FORMAT, "residual streams 2, want 4 to 4");
    refused("gemma3n.altup.active_idx", 4, &two, 4, TERN_E_UNSUPPORTED, "'gemma3n.altup.active_idx' is 2");
    refused("gemma3n.altup.num_input", 0, "x", 1, TERN_E_UNSUPPORTED,
            "'gemma3n.altup.num_inputx' may change");
    refused("gemma3n.activation_sparsity_scal", 0, "x", 1, TERN_E_UNSUPPORTED,
            "'gemma3n.activation_sparsity_scalx' may change what the model computes");
    /* after the key: its type, that of its elements, u64 how many */
    refused("gemma3n.activation_sparsity_scale", 16, &other, 4, TERN_E_UNSUPPORTED, "others: layer 1");
    refused("gemma3n.activation_sparsity_scale", 16, &none, 4, TERN_E_UNSUPPORTED, "others: layer 1");
    refused("gemma3n.activation_sparsity_scale", 16 + 4 * 12, &other, 4, TERN_E_UNSUPPORTED,
            "others: layer 12");
    refused("blk.3.laurel_l", 0, "x", 1, TERN_E_FORMAT, "tensor blk.3.laurel_l.weight is missing");
    refused("blk.0.laurel_l", 0, "x", 1, TERN_E_FORMAT, "tensor blk.0.laurel_l.weight is missing");
    refused("blk.7.altup_predict_coef", 0, "x", 1, TERN_E_FORMAT, "tensor blk.7.altup_predict_coef.weight");
    refused("altup_unembd_proj", 0, "x", 1, TERN_E_FORMAT, "tensor altup_unembd_proj.weight is missing");
    refused("altup_proj.weight", 4, &wide, 8, TERN_E_FORMAT, "tensor altup_proj.weight at offset");
    refused("blk.2.altup_router.weight", 4, &wide, 8, TERN_E_FORMAT, "tensor blk.2.altup_router.weight at");
}

static void files_with_experts(void **state) {
    (void)state;
    const uint64_t few = 7;
    const uint32_t nine = 9, none = 0;
    fixture_model(good, "good.gguf", "tiny-gemma4moe", 1, TN_F32);
    fixture_file(broken, "broken.gguf");
    refused("blk.1.ffn_gate_inp.scal", 0, "x", 1, TERN_E_FORMAT,
            "tensor blk.1.ffn_gate_inp.scale is missing");
    refused("blk.1.ffn_down_exps.scal", 0, "x", 1, TERN_E_FORMAT,
            "tensor blk.1.ffn_down_exps.scale is missing");
    refused("blk.5.pre_ffw_norm_", 0, "x", 1, TERN_E_FORMAT, "tensor blk.5.pre_ffw_norm_2.weight is missing");
    refused("blk.3.ffn_gate_up_exp", 0, "x", 1, TERN_E_FORMAT,
            "tensor blk.3.ffn_gate_up_exps.weight is missing");
    refused("blk.2.ffn_down_exps.scale", 4, &few, 8, TERN_E_FORMAT,
            "tensor blk.2.ffn_down_exps.scale at offset");
    refused("gemma4.expert_used_count", 4, &nine, 4, TERN_E_FORMAT, "experts used 9, want 1 to 8");
    refused("gemma4.expert_feed_forward_length", 4, &none, 4, TERN_E_FORMAT,
            "feed-forward size of an expert 0");
}

int main(void) {
    tn_ctx_init(&ctx, NULL);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(configurations),
        cmocka_unit_test(the_published_one),
        cmocka_unit_test(files),
        cmocka_unit_test(experts_in_configurations),
        cmocka_unit_test(files_with_experts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
