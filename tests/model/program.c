/* Programs of all architectures: is every buffer and state written before it is read, does a program name
 * every tensor its architecture must have and no other, are its sites those of a package made from it, and
 * are costs what counting gives? */
#include "formats/package.h"
#include "lab/synth.h"
#include "model/arch.h"
#include "model/program.h"
#include "model/source.h"
#include "quant/pack.h"

#include <jansson.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "small_hparams.h"

static tn_ctx ctx;

static const char config[] =
    "{\"num_hidden_layers\":5,\"hidden_size\":48,\"num_attention_heads\":6,\"num_key_value_heads\":2,"
    "\"intermediate_size\":80,\"vocab_size\":101,\"max_position_embeddings\":512,\"head_dim\":16,"
    "\"sliding_window\":7,\"final_logit_softcapping\":30,\"tie_word_embeddings\":%s}";

typedef struct each {
    const tn_arch *a;
    tn_hparams h;
    tn_program p;
} each;

/* fn for every architecture of the table, with and without tied embeddings. */
static void for_each(void (*fn)(const each *)) {
    char list[4096], text[512];
    tn_arch_list(list, sizeof list);
    int n = 0;
    for (char *name = strtok(list, ", "); name; name = strtok(NULL, ", ")) {
        for (int tied = 0; tied < 2; tied++) {
            tern_error err = {0};
            each e = {.a = tn_arch_named(name)};
            assert_non_null(e.a);
            tn_arch of_folder = *e.a; /* of those that are read from GGUF only, too */
            of_folder.gguf_only = NULL;
            e.a = &of_folder;
            snprintf(text, sizeof text, config, tied ? "true" : "false");
            json_t *j = json_loads(text, 0, NULL);
            if (e.a->conv) {
                json_t *types = json_array();
                for (int i = 0; i < 5; i++)
                    assert_false(
                        json_array_append_new(types, json_string(i % 3 == 2 ? "full_attention" : "conv")));
                assert_false(json_object_set_new(j, "layer_types", types));
                assert_false(json_object_set_new(j, "conv_L_cache", json_integer(3)));
                assert_false(json_object_set_new(j, "head_dim", json_integer(8)));
            }
            static const struct {
                const char *key;
                int v;
            } of_experts[] = {{"num_experts", 6},
                              {"num_experts_per_tok", 2},
                              {"moe_intermediate_size", 96},
                              {"shared_expert_intermediate_size", 64}},
              of_mamba[] = {{"mamba_d_conv", 4},     {"mamba_n_heads", 6}, {"mamba_n_groups", 1},
                            {"mamba_d_state", 8},    {"mamba_d_head", 16}, {"shared_intermediate_size", 64},
                            {"num_local_experts", 6}},
              of_delta[] = {{"linear_conv_kernel_dim", 4},
                            {"linear_num_value_heads", 6},
                            {"linear_num_key_heads", 2},
                            {"linear_key_head_dim", 8},
                            {"linear_value_head_dim", 16}};
            for (int i = 0; e.a->experts && i < 4; i++)
                assert_false(json_object_set_new(j, of_experts[i].key, json_integer(of_experts[i].v)));
            for (int i = 0; e.a->delta && i < 5; i++)
                assert_false(json_object_set_new(j, of_delta[i].key, json_integer(of_delta[i].v)));
            for (int i = 0; e.a->mamba && i < 6 + e.a->experts; i++)
                assert_false(json_object_set_new(j, of_mamba[i].key, json_integer(of_mamba[i].v)));
            if (e.a->mamba_beside) { /* with a norm in one of the two */
                assert_false(json_object_del(j, "shared_intermediate_size"));
                assert_false(json_object_set_new(j, "mamba_d_ssm", json_integer(96)));
                assert_false(json_object_set_new(j, "mamba_rms_norm", json_boolean(tied)));
            } else if (e.a->mamba) {
                json_t *types = json_array();
                for (int i = 0; i < 5; i++)
                    assert_false(
                        json_array_append_new(types, json_string(i % 3 == 2 ? "attention" : "mamba")));
                assert_false(json_object_set_new(j, "layer_types", types));
                assert_false(json_object_set_new(j, "mamba_conv_bias", json_true()));
            }
            if (e.a->window_heads) { /* layers 2 and 4 see all; 3 and 4 read the keys and values of 1 and 2 */
                static const struct {
                    const char *key;
                    int v;
                } of_layers[] = {{"global_head_dim", 32},
                                 {"num_global_key_value_heads", 1},
                                 {"num_kv_shared_layers", 2},
                                 {"hidden_size_per_layer_input", 8},
                                 {"num_attention_heads", 6}};
                json_t *types = json_array();
                for (int i = 0; i < 5; i++)
                    assert_false(json_array_append_new(
                        types, json_string(i % 2 ? "full_attention" : "sliding_attention")));
                assert_false(json_object_set_new(j, "layer_types", types));
                for (size_t i = 0; i < sizeof of_layers / sizeof *of_layers; i++)
                    assert_false(json_object_set_new(j, of_layers[i].key, json_integer(of_layers[i].v)));
                assert_false(json_object_set_new(j, "attention_k_eq_v", json_true()));
                assert_false(json_object_set_new(j, "use_double_wide_mlp", json_true()));
            }
            if (e.a->experts_beside) assert_false(json_object_set_new(j, "top_k_experts", json_integer(2)));
            if (e.a->experts_before) {
                static const struct {
                    const char *key;
                    int v;
                } of_llama4[] = {{"num_experts_per_tok", 1},
                                 {"attention_chunk_size", 3},
                                 {"interleave_moe_layer_step", 2},
                                 {"intermediate_size_mlp", 112}};
                for (size_t i = 0; i < sizeof of_llama4 / sizeof *of_llama4; i++)
                    assert_false(json_object_set_new(j, of_llama4[i].key, json_integer(of_llama4[i].v)));
            }
            if (e.a->streams) {
                json_t *shares = json_array();
                for (int i = 0; i < 5; i++)
                    assert_false(json_array_append_new(shares, json_real(i < 2 ? 0.95 : 0)));
                assert_false(json_object_set_new(j, "activation_sparsity_pattern", shares));
                assert_false(json_object_set_new(j, "altup_num_inputs", json_integer(4)));
                assert_false(json_object_set_new(j, "laurel_rank", json_integer(12)));
            }
            if (e.a->single) { /* what follows from these is read of other keys for other architectures */
                static const struct {
                    const char *key;
                    int v;
                } of_blocks[] = {{"mamba_num_heads", 6}, {"mamba_head_dim", 16},
                                 {"ssm_state_size", 8},  {"n_groups", 2},
                                 {"conv_kernel", 4},     {"moe_shared_expert_intermediate_size", 64}};
                for (size_t i = 0; i < sizeof of_blocks / sizeof *of_blocks; i++)
                    assert_false(json_object_set_new(j, of_blocks[i].key, json_integer(of_blocks[i].v)));
                static const char *const of_granite[] = {
                    "mamba_d_conv", "mamba_n_heads", "mamba_n_groups",           "mamba_d_state",
                    "mamba_d_head", "layer_types",   "shared_intermediate_size", "mamba_conv_bias"};
                for (size_t i = 0; i < sizeof of_granite / sizeof *of_granite; i++)
                    (void)json_object_del(j, of_granite[i]);
                assert_false(json_object_set_new(j, "hybrid_override_pattern",
                                                 json_string(e.a->experts ? "ME*ME" : "M-*M-")));
            }
            if (e.a->latent) {
                static const struct {
                    const char *key;
                    int v;
                } of_latents[] = {{"kv_lora_rank", 32},
                                  {"qk_rope_head_dim", 8},
                                  {"qk_nope_head_dim", 16},
                                  {"v_head_dim", 64},
                                  {"q_lora_rank", 24}};
                for (int i = 0; i < 4 + tied; i++)
                    assert_false(json_object_set_new(j, of_latents[i].key, json_integer(of_latents[i].v)));
            }
            if (e.a->kda_bounded) { /* layers 3 and 5 attend */
                assert_false(json_object_set_new(j, "layer_group_size", json_integer(3)));
                assert_false(json_object_set_new(j, "head_dim", json_integer(32)));
                assert_false(json_object_set_new(j, "kda_lower_bound", json_integer(-5)));
                assert_false(json_object_set_new(j, "gated_attention_proj_granularity_type",
                                                 json_string("head_wise")));
                static const char *const flags[] = {"kda_safe_gate", "no_kda_lora",
                                                    "moe_router_enable_expert_bias"};
                for (int i = 0; i < 3; i++) assert_false(json_object_set_new(j, flags[i], json_true()));
            } else if (e.a->kda) { /* layers 3 and 5 attend */
                json_t *of = json_object(), *lists[2] = {json_array(), json_array()};
                for (int i = 1; i <= 5; i++)
                    assert_false(json_array_append_new(lists[i == 3 || i == 5], json_integer(i)));
                assert_false(json_object_set_new(of, "kda_layers", lists[0]));
                assert_false(json_object_set_new(of, "full_attn_layers", lists[1]));
                assert_false(json_object_set_new(of, "num_heads", json_integer(6)));
                assert_false(json_object_set_new(of, "head_dim", json_integer(32)));
                assert_false(json_object_set_new(j, "linear_attn_config", of));
                assert_false(json_object_set_new(j, "mla_use_nope", json_true()));
            }
            if (e.a->wkv) {
                assert_false(json_object_set_new(j, "hidden_size", json_integer(128)));
                assert_false(json_object_set_new(j, "head_dim", json_integer(64)));
                assert_false(json_object_set_new(j, "v_low_rank_dim", json_integer(tied ? 32 : 96)));
            }
            if (e.a->hf_layers) assert_false(json_object_set_new(j, "num_layers", json_integer(5)));
            if (e.a->may_be_parallel)
                assert_false(json_object_set_new(j, "use_parallel_residual", json_boolean(tied)));
            if (e.a->qk_norm_said) assert_false(json_object_set_new(j, "use_qk_norm", json_boolean(tied)));
            if (e.a->dense_first) assert_false(json_object_set_new(j, "num_dense_layers", json_integer(2)));
            if (e.a->experts_sigmoid) assert_false(json_object_set_new(j, "use_expert_bias", json_true()));
            if (e.a->experts_flat)
                assert_false(json_object_set_new(j, "moe_every_n_layers", json_integer(2)));
            if (e.a->alibi > 0) assert_false(json_object_set_new(j, "num_key_value_heads", json_integer(6)));
            if (tn_arch_hparams_hf(e.a, j, name, &e.h, &err) != TERN_OK) fail_msg("%s", err.message);
            json_decref(j);
            if (e.a->qk_norm_found) e.h.qk_norm = e.h.attn_norm_twice = tied; /* which tensors tell */
            if (e.a->experts_flat) e.h.experts_out_bias = tied;
            if (tn_program_make(&ctx, &e.h, &e.p, &err) != TERN_OK) fail_msg("%s", err.message);
            fn(&e);
            tn_program_free(&e.p);
            n++;
        }
    }
    assert_true(n >= 18); /* nine architectures at least */
}

/* ---- buffers and states ----------------------------------------------------------------------------- */

static void read_what_was_written(const each *e) {
    uint64_t written = 0;
    int32_t seen = 0;
    for (int32_t layer = -1; layer <= e->p.n_layers; layer++) {
        uint32_t state = 0;
        int32_t n, n_of;
        const tn_op *op = tn_program_layer(&e->p, layer, &n);
        assert_true(n > 0);
        /* of the tokens before, too; keys and values may be an earlier layer's */
        int32_t of = layer >= 0 && layer < e->p.n_layers ? tn_layer_kv(&e->h, layer) : layer;
        assert_true(of <= layer);
        const tn_op *from = tn_program_layer(&e->p, of, &n_of);
        for (int32_t i = 0; i < n_of; i++) state |= from[i].state_writes;
        for (int32_t i = 0; i < n; i++, seen++) {
            if (op[i].layer != layer) fail_msg("%s: %s is not of layer %d", e->a->name, op[i].name, layer);
            if (op[i].reads & ~written)
                fail_msg("%s, layer %d: %s reads buffers %llx that nothing has written", e->a->name, layer,
                         op[i].name, (unsigned long long)(op[i].reads & ~written));
            if (op[i].state_reads & ~state)
                fail_msg("%s, layer %d: %s reads a state that the layer does not keep", e->a->name, layer,
                         op[i].name);
            assert_true(op[i].writes && (op[i].writes >> op[i].out & 1));
            for (int b = 0; b < TN_N_BUFFERS; b++)
                if ((op[i].reads | op[i].writes) >> b & 1) assert_true(e->p.width[b] > 0);
            written |= op[i].writes;
            if (op[i].state_reads) assert_true(op[i].positional);
        }
    }
    assert_int_equal(seen, e->p.n_ops);
    assert_true(written >> TN_BUF_LOGITS & 1);
}

static void buffers_are_written_before_they_are_read(void **state) {
    (void)state;
    for_each(read_what_was_written);
}

/* ---- tensors ---------------------------------------------------------------------------------------- */

static bool optional_bias(tn_role r) {
    switch (r) {
    case TN_W_OUT_NORM_B:
    case TN_W_OUT_B:
    case TN_W_ATTN_NORM_B:
    case TN_W_Q_B:
    case TN_W_K_B:
    case TN_W_V_B:
    case TN_W_O_B:
    case TN_W_FFN_NORM_B:
    case TN_W_GATE_B:
    case TN_W_UP_B:
    case TN_W_DOWN_B:
    case TN_W_ROUTER_B:
    case TN_W_GATE_EXPS_B:
    case TN_W_UP_EXPS_B:
    case TN_W_DOWN_EXPS_B: return true;
    default: return false;
    }
}

static void tensors_of(const each *e) {
    for (int role = 0; role < TN_W_N_ROLES; role++) {
        bool model_level = tn_role_of_model((tn_role)role);
        for (int32_t layer = model_level ? -1 : 0; layer < (model_level ? 0 : e->p.n_layers); layer++) {
            bool must = tn_arch_required(e->a, &e->h, (tn_role)role) &&
                        tn_layer_may_have(&e->h, layer, (tn_role)role),
                 used = tn_program_uses(&e->p, layer, (tn_role)role);
            /* a bias may be there unasked, and then belongs to an op all the same */
            if (must && !used && !(role == TN_W_OUT_B && e->h.tied))
                fail_msg("%s: no op uses %s", e->a->name, tn_role_name((tn_role)role));
            if (used && !must && !optional_bias((tn_role)role))
                fail_msg("%s: an op uses %s, which files need not have", e->a->name,
                         tn_role_name((tn_role)role));
        }
    }
}

static void programs_use_the_tensors_there_are(void **state) {
    (void)state;
    for_each(tensors_of);
}

/* ---- sites ------------------------------------------------------------------------------------------ */

static void sites_of(const each *e) {
    int32_t n_linears = 0, n_seen = 0;
    for (int32_t i = 0; i < e->p.n_ops; i++) n_linears += e->p.ops[i].kind == TN_OP_LINEARS;
    assert_int_equal(n_linears, e->p.n_sites);
    for (int32_t layer = -1; layer < e->p.n_layers; layer++) {
        int32_t first, n = tn_program_layer_sites(&e->p, layer, &first);
        n_seen += n;
        assert_true(n > 0);
        for (int32_t i = first; i < first + n; i++) {
            const tn_program_site *s = &e->p.sites[i];
            const tn_op *op = &e->p.ops[s->op], *source = tn_program_source(&e->p, i);
            assert_int_equal(tn_program_site_index(&e->p, layer, s->kind), i);
            assert_int_equal(op->site, s->kind);
            if (i > first) assert_true(s->kind > e->p.sites[i - 1].kind);
            assert_true(source < op && source->layer == op->layer && source->feeds == s->kind);
            assert_true(source->width == op->linears.k * tn_site_rows(s->kind, &op->linears, 1));
            assert_true(source->writes >> op->in & 1);
            assert_false(op->reads & ~(UINT64_C(1) << op->in | UINT64_C(1) << TN_BUF_CHOSEN));
        }
    }
    assert_int_equal(n_seen, e->p.n_sites);
}

/* Every product's weights in the package are those of a site, and the other way round. */
static void packages_hold_the_sites(void **state) {
    (void)state;
    static const char *const names[] = {"tiny-qwen2",     "tiny-gemma2",    "tiny-phi2",      "tiny-llama",
                                        "tiny-qwen3moe",  "tiny-qwen35moe", "tiny-gemma4",    "tiny-gemma3n",
                                        "tiny-gemma4moe", "tiny-falcon-h1", "tiny-deepseek2", "tiny-minicpm3",
                                        "tiny-bitnet",    "tiny-phimoe",    "tiny-mamba2",    "tiny-rwkv7"};
    for_each(sites_of);
    char gguf[512], path[512];
    snprintf(gguf, sizeof gguf, TN_BINARY_DIR "/program-%ld.gguf", (long)getpid());
    snprintf(path, sizeof path, TN_BINARY_DIR "/program-%ld.tern", (long)getpid());
    for (size_t a = 0; a < sizeof names / sizeof *names; a += getenv("TERN_TEST_QUICK") ? 3 : 1) {
        tern_error err = {0};
        tn_pool *pool;
        tn_source *src;
        tn_program p;
        tn_pkg *pkg;
        tn_pack_options o;
        tn_pack_defaults(&o);
        o.calib_tokens = 64;
        if (tn_pool_open(&ctx, 2, &pool, &err) != TERN_OK ||
            tn_synth(&ctx, pool, names[a], gguf, 3, TN_F32, &err) != TERN_OK ||
            tn_pack(&ctx, gguf, path, &o, NULL, &err) != TERN_OK ||
            tn_source_open(&ctx, gguf, &src, &err) != TERN_OK ||
            tn_program_make(&ctx, tn_source_hparams(src), &p, &err) != TERN_OK ||
            tn_pkg_open(&ctx, path, &pkg, &err) != TERN_OK)
            fail_msg("%s", err.message);
        tn_pool_close(&pool);
        int32_t n_records = 0, n_linears = 0;
        for (size_t s = 0; s < tn_pkg_n_sections(pkg); s++) {
            size_t n;
            const tn_pkg_record *r = tn_pkg_records(pkg, tn_pkg_section_at(pkg, s), &n);
            for (size_t i = 0; i < n; i++)
                n_records += r[i].part == TN_PKG_TILES || r[i].part == TN_PKG_WEIGHTLETS;
        }
        for (int32_t i = 0; i < p.n_sites; i++) {
            const tn_site_ops *l = tn_program_linears(&p, i);
            int32_t layer = tn_program_site_layer(&p, i);
            for (int32_t op = 0; op < l->n_ops; op++, n_linears++) {
                size_t n;
                const tn_pkg_record *all = tn_pkg_records(
                    pkg, tn_pkg_find(pkg, layer < 0 ? TN_PKG_LM_HEAD : TN_PKG_LAYER, layer), &n);
                const tn_pkg_record *r = tn_pkg_record_find(all, n, l->roles[op], TN_PKG_TILES);
                if (!r) r = tn_pkg_record_find(all, n, l->roles[op], TN_PKG_WEIGHTLETS);
                if (!r) fail_msg("%s, layer %d: no %s", names[a], layer, tn_role_name(l->roles[op]));
                assert_true(r->n == l->n[op] && r->k == l->k);
            }
        }
        bool tied = tn_source_hparams(src)->tied;
        assert_int_equal(n_records, n_linears + !tied); /* an untied embedding is no linear */
        tn_pkg_close(&pkg);
        tn_program_free(&p);
        tn_source_close(&src);
        unlink(path);
    }
    unlink(gguf);
}

/* ---- costs ------------------------------------------------------------------------------------------ */

/* Output channels that a row computes: of experts, those of the few that it chose. */
static int32_t passed(const tn_hparams *h, const tn_op *op, int32_t l) {
    if (op->site == TN_SITE_EXPERTS) return h->n_experts_used * h->n_ff_exp;
    return op->site == TN_SITE_EXPERTS_DOWN ? h->n_experts_used * h->n_embd : op->linears.n[l];
}

/* Counted one by one, as a plain implementation would compute. */
static double count_macs(const tn_hparams *h, const tn_op *op, int32_t n_rows, int32_t pos0) {
    double n = 0;
    for (int32_t row = 0; row < n_rows; row++) {
        switch (op->kind) {
        case TN_OP_LINEARS:
            for (int32_t l = 0; l < op->linears.n_ops; l++)
                for (int32_t o = 0; o < passed(h, op, l); o++)
                    for (int32_t k = 0; k < op->linears.k; k++) n++;
            break;
        case TN_OP_ATTEND:
            for (int32_t head = 0; head < h->n_heads; head++)
                for (int32_t key = 0; key <= pos0 + (h->bidirectional ? n_rows - 1 : row); key++) {
                    const int32_t all = h->window_rest ? 0 : h->window_pattern - 1; /* of a period */
                    bool windowed =
                        h->window && (h->window_pattern <= 1 || op->layer % h->window_pattern != all);
                    if (windowed && h->window_chunks) {
                        if (key < (pos0 + row) / h->window * h->window) continue;
                    } else if (windowed && (h->bidirectional ? abs(key - pos0 - row) > h->window / 2
                                                             : key + h->window <= pos0 + row))
                        continue;
                    for (int32_t d = 0; d < tn_layer_d_head(h, op->layer); d++) n += 2; /* q k, p v */
                }
            break;
        case TN_OP_ROPE:
            for (int32_t head = 0,
                         n_kv = tn_layer_kv(h, op->layer) == op->layer ? tn_layer_kv_heads(h, op->layer) : 0,
                         size = tn_layer_d_head(h, op->layer);
                 head < h->n_heads + n_kv; head++) {
                bool local = tn_layer_rope_is_local(h, op->layer);
                for (int32_t d = 0; d < size && head >= h->n_heads && h->v_norm; d++) n += 2;
                bool rope = !(h->no_rope_pattern && (op->layer + 1) % h->no_rope_pattern == 0);
                for (int32_t d = 0; d < size && (h->qk_norm || (h->qk_norm_plain && rope)); d++) n += 2;
                for (int32_t pair = 0; pair < (local ? tn_local_rot(h) : h->n_rot) / 2 && rope; pair++)
                    n += 4;
                for (int32_t d = 0;
                     d < h->d_head && head < h->n_heads && h->temp_scale != 0 && !(h->temp_no_rope && rope);
                     d++)
                    n++;
            }
            break;
        case TN_OP_COPY: break;
        case TN_OP_CONV_GATE:
            for (int32_t i = 0; i < h->n_embd; i++) n++;
            break;
        case TN_OP_CONV:
            for (int32_t i = 0; i < h->n_embd; i++) n += h->conv_len + 1; /* the sum, c */
            break;
        case TN_OP_ROUTE:
            for (int32_t i = 0; i < h->n_experts; i++) n += h->n_embd;
            if (h->shared_gate) n += h->n_embd; /* its score */
            break;
        case TN_OP_GATHER:
            for (int32_t i = 0; i < h->n_embd && h->experts_before; i++) n++;
            break;
        case TN_OP_EXPERT_GATE:
            for (int32_t i = 0; i < h->n_experts_used * h->n_ff_exp; i++) n += h->gated ? 2 : 1;
            break;
        case TN_OP_EXPERT_SUM:
            for (int32_t i = 0; i < h->n_experts_used; i++) n += h->n_embd; /* weights */
            if (h->shared_gate) n += h->n_embd;
            break;
        case TN_OP_ATTN_GATE:
            if (tn_latent(h)) n += h->n_heads * (1 + h->latent.d_value);
            for (int32_t i = 0; !tn_latent(h) && i < h->n_heads * h->d_head; i++) n += 2;
            break;
        case TN_OP_DELTA_MIX: {
            int32_t keys = h->delta.n_key_heads * h->delta.d_key,
                    values = h->delta.n_heads * h->delta.d_value;
            for (int32_t i = 0; i < 2 * keys + values; i++) n += h->conv_len + 1; /* taps, the activation */
            for (int32_t i = 0; !h->delta.mamba && i < 2 * keys; i++) n += 2;     /* lengths */
            for (int32_t i = 0; h->delta.kda && i < keys; i++) n += 2; /* decays and rates of keys */
            break;
        }
        case TN_OP_DELTA_GATES:
            for (int32_t i = 0; i < h->delta.n_heads; i++) n += h->delta.kda ? 1 + 2 * h->delta.d_key : 3;
            break;
        case TN_OP_DELTA:
            for (int32_t head = 0; head < h->delta.n_heads; head++)
                for (int32_t v = 0; v < h->delta.d_value; v++) {
                    for (int32_t k = 0; k < h->delta.d_key; k++)
                        n += h->delta.mamba                 ? 3
                             : h->delta.wkv || h->delta.kda ? 5  /* + b u */
                                                            : 4; /* S k but of Mamba 2, d S, + k r, S q */
                    n += 2;                                      /* r; of Mamba 2 what passes by, too */
                }
            break;
        case TN_OP_SHIFT:
        case TN_OP_LERP:
            for (int32_t i = 0; i < h->n_embd; i++) n++;
            break;
        case TN_OP_LOW:
            for (int i = 0; i < 4; i++) {
                const int32_t ranks[] = {h->low.decay, h->low.rate, h->low.gate,
                                         op->layer ? h->low.value : 0};
                for (int32_t k = 0; k < h->n_embd && ranks[i]; k++)
                    n += 1 + 2 * ranks[i]; /* the mixture, there and back */
            }
            break;
        case TN_OP_WKV_MIX: /* three activations but in the first layer, their results, directions, keys */
            for (int32_t i = 0; i < h->n_embd; i++) n += 9 + (op->layer ? 2 : 0);
            break;
        case TN_OP_WKV_NORM: /* the norm, r k RK, times v, the gate */
            for (int32_t i = 0; i < h->n_embd; i++) n += 3 + 3 + (h->low.gate > 0);
            break;
        case TN_OP_DELTA_NORM:
            for (int32_t i = 0; i < h->delta.n_heads * h->delta.d_value; i++) n += h->delta.no_norm ? 2 : 4;
            break;
        case TN_OP_NORM:
            for (int32_t i = 0; i < (op->in == TN_BUF_Q_A   ? h->latent.q_rank
                                     : op->in == TN_BUF_ATT ? h->n_heads * h->d_head
                                     : op->in == TN_BUF_UP  ? h->n_ff
                                                            : h->n_embd);
                 i++)
                n += 2;
            break;
        case TN_OP_LATENT:
            for (int32_t i = 0; i < h->latent.rank; i++) n += 2;
            for (int32_t head = 0; head <= h->n_heads; head++)
                for (int32_t pair = 0; pair < h->n_rot / 2; pair++) n += 4;
            break;
        case TN_OP_HEADS:
            if (tn_role_of_kda(op->heads.role)) {
                for (int32_t i = 0; i < h->delta.n_heads * h->delta.d_value; i++) n += h->delta.d_key;
                break;
            }
            for (int32_t head = 0; head < h->n_heads; head++)
                n += h->latent.rank * (op->heads.role == TN_W_K_UP ? h->latent.d_nope : h->latent.d_value);
            break;
        case TN_OP_RESIDUAL:
            for (int32_t i = 0; i < h->n_embd; i++) n += h->post_norms ? 3 : 1;
            break;
        case TN_OP_GATE:
            for (int32_t i = 0; i < tn_layer_ff(h, op->layer); i++) n += h->gated ? 2 : 1;
            break;
        case TN_OP_EMBED_LAYERS:
            for (int32_t i = 0; i < h->n_layers * h->n_ple; i++) n++;
            break;
        case TN_OP_LAYER_MIX:
            for (int32_t i = 0; i < h->n_ple; i++) n += 6; /* scale, norm, half, activation, product */
            break;
        case TN_OP_SCALE:
            for (int32_t i = 0; i < h->n_embd; i++) n++;
            break;
        case TN_OP_NORM_ADD:
            for (int32_t i = 0; i < h->n_embd; i++) n += 3; /* squares, weights, the sum */
            break;
        case TN_OP_GATE_SPARSE:
            for (int32_t i = 0; i < h->n_ff; i++) n += 3; /* mean, deviation, cut */
            break;
        case TN_OP_STREAMS:
            for (int32_t s = 0; s < 4; s++) n += s ? 2 * h->n_embd : h->n_embd; /* squares, sizes */
            break;
        case TN_OP_ALTUP_PREDICT:
            n += 2 * h->n_embd + 4 * (h->n_embd + 1); /* norm, scores */
            for (int32_t s = 0; s < 4; s++) n += 4 * (4 + h->n_embd);
            break;
        case TN_OP_ALTUP_CORRECT:
            n += 2 * h->n_embd + 4 * (h->n_embd + 1);
            for (int32_t s = 0; s < 4; s++) n += 4 + h->n_embd;
            n += 2 * h->n_embd; /* what differs, scale */
            break;
        case TN_OP_ALTUP_ADD: n += 2 * h->n_embd + 3 * h->n_embd; break;
        case TN_OP_ALTUP_MERGE: n += (3 + (op->stream == 3)) * h->n_embd; break;
        case TN_OP_EMBED_ADD: n += ((h->embd_type != 0) + (h->n_positions > 0)) * h->n_embd; break;
        case TN_OP_EMBED: n += h->embd_scale == 1 ? 0 : h->n_embd; break;
        case TN_OP_CAP: n += (2 + (h->logit_scale != 1)) * h->n_vocab; break;
        case TN_OP_PAIR: n += 2 * 2 * h->n_embd; break; /* squares, weights, of two */
        default: fail_msg("op kind %d is not counted here", (int)op->kind);
        }
    }
    return n;
}

static void costs_of(const each *e) {
    static const int32_t shapes[][2] = {{1, 0}, {1, 3}, {5, 0}, {9, 4}, {3, 40}};
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
        int32_t n_rows = shapes[s][0], pos0 = shapes[s][1];
        for (int32_t i = 0; i < e->p.n_ops; i++) {
            const tn_op *op = &e->p.ops[i];
            tn_cost c = tn_op_cost(op, n_rows, pos0);
            double want = count_macs(&e->h, op, n_rows, pos0);
            if (c.macs != want)
                fail_msg("%s: %s of %d rows from %d: %g multiply-adds, counted %g", e->a->name, op->name,
                         n_rows, pos0, c.macs, want);
            assert_true(c.values >= (double)n_rows * op->width && c.bytes >= 4 * c.values);
            tn_cost more =
                tn_op_cost(op, n_rows, pos0 + 1); /* what depends on the position, and nothing else */
            if (!op->positional) assert_true(memcmp(&more, &c, sizeof c) == 0);
        }
    }
}

static void costs_are_what_counting_gives(void **state) {
    (void)state;
    for_each(costs_of);
}

/* Gemma 2: every other layer sees a window, so lists differ from layer to layer. */
static void layers_may_differ(void **state) {
    (void)state;
    tern_error err = {0};
    const tn_arch *a = tn_arch_by_hf("gemma2");
    char text[512];
    snprintf(text, sizeof text, config, "true");
    json_t *j = json_loads(text, 0, NULL);
    tn_hparams h;
    tn_program p;
    assert_int_equal(tn_arch_hparams_hf(a, j, "gemma2", &h, &err), TERN_OK);
    json_decref(j);
    assert_int_equal(tn_program_make(&ctx, &h, &p, &err), TERN_OK);
    for (int32_t layer = 0; layer < h.n_layers; layer++) {
        int32_t n;
        const tn_op *op = tn_program_layer(&p, layer, &n);
        while (op->kind != TN_OP_ATTEND) op++;
        assert_int_equal(op->attend.window, layer % 2 ? 0 : 7);
    }
    tn_program_free(&p);
}

/* What a head reads is kept as these layers get it; the rest of the program is as it was. */
static void tapped(const each *e) {
    tn_program p;
    tern_error err = {0};
    const int32_t layers[] = {1, 3, 1};
    if (e->h.n_streams || e->h.n_layers < 4) return;
    if (tn_program_make(&ctx, &e->h, &p, &err) != TERN_OK ||
        tn_program_tap(&p, &e->h, layers, 3, &err) != TERN_OK)
        fail_msg("%s", err.message);
    assert_int_equal(p.n_ops, e->p.n_ops + 3);
    assert_int_equal(p.width[TN_BUF_TAPS], 3 * e->h.n_embd);
    for (int32_t l = -1, at = 0; l <= p.n_layers; l++) {
        int32_t n, n_before, taps = 0;
        const tn_op *op = tn_program_layer(&p, l, &n), *before = tn_program_layer(&e->p, l, &n_before);
        assert_ptr_equal(op, p.ops + at);
        at += n;
        for (; op->kind == TN_OP_TAP; op++, taps++) {
            assert_int_equal(layers[op->stream], l);
            assert_int_equal(op->in_width, e->h.n_embd);
        }
        assert_int_equal(taps, l == 1 ? 2 : l == 3);
        assert_int_equal(n - taps, n_before);
        for (int32_t i = 0; i < n_before; i++) assert_int_equal(op[i].kind, before[i].kind);
    }
    for (int32_t i = 0; i < p.n_sites; i++) {
        const tn_op *op = &p.ops[p.sites[i].op];
        assert_true(op->kind == TN_OP_LINEARS && op->site == p.sites[i].kind &&
                    op->layer == p.sites[i].layer);
    }
    tn_program_free(&p);
}

static void taps_change_nothing_else(void **state) {
    (void)state;
    for_each(tapped);
}

/* The layer of a head. */
static void heads_have_pairs(void **state) {
    (void)state;
    tern_error err = {0};
    for (int residual = 0; residual < 2; residual++) {
        each e = {.a = &tn_arch_eagle3, .h = tn_test_small_hparams("eagle3")};
        e.h.head.n_target = 12;
        e.h.head.n_vocab = 9;
        e.h.head.norm_residual = residual;
        e.h.logit_scale = 1;
        if (tn_program_make(&ctx, &e.h, &e.p, &err) != TERN_OK) fail_msg("%s", err.message);
        costs_of(&e);
        int32_t n;
        const tn_op *op = tn_program_layer(&e.p, 0, &n);
        assert_true(op->kind == TN_OP_PAIR && op->keeps == !residual && op->width == 2 * e.h.n_embd);
        assert_int_equal(tn_program_linears(&e.p, 0)->k, 2 * e.h.n_embd);
        assert_int_equal(tn_program_linears(&e.p, e.p.n_sites - 1)->n_total, 9);
        tn_program_free(&e.p);
    }
}

int main(void) {
    tn_ctx_init(&ctx, NULL);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(buffers_are_written_before_they_are_read),
        cmocka_unit_test(programs_use_the_tensors_there_are),
        cmocka_unit_test(packages_hold_the_sites),
        cmocka_unit_test(costs_are_what_counting_gives),
        cmocka_unit_test(layers_may_differ),
        cmocka_unit_test(taps_change_nothing_else),
        cmocka_unit_test(heads_have_pairs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
