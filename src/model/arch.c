#include "model/arch_impl.h"

#include "base/status.h"
#include "kernels/delta_f32.h"
#include "kernels/kv_cells.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

const tn_arch *tn_arch_by_hf(const char *model_type) {
    for (int i = 0; i < tn_n_archs; i++) {
        if (!strcmp(tn_archs[i].hf, model_type)) return &tn_archs[i];
        if (tn_archs[i].hf_also && !strcmp(tn_archs[i].hf_also, model_type)) return &tn_archs[i];
    }
    return NULL;
}

const tn_arch *tn_arch_of_config(const json_t *config) {
    const char *type = json_string_value(json_object_get(config, "model_type"));
    const char *class = json_string_value(json_array_get(json_object_get(config, "architectures"), 0));
    if (!type) return NULL;
    if (!strcmp(type, "bailing_moe") && class && !strcmp(class, "BailingMoeV2ForCausalLM"))
        type =
            "bailing_moe_v2"; /* Ling 2 is published by the word of Ling 1, which is another architecture */
    if (!strcmp(type, "bailing_hybrid") && class && !strcmp(class, "BailingMoeV3ForCausalLM"))
        type = "bailing_moe_v3"; /* and Ling 3 by that of Ling 2.5 */
    const tn_arch *a = tn_arch_by_hf(type);
    if (a && !strcmp(a->name, "gemma3") &&
        json_is_true(json_object_get(config, "use_bidirectional_attention")))
        a = tn_arch_named("gemma-embedding");
    return a;
}

const tn_arch *tn_arch_by_gguf(const char *name, size_t n) {
    for (int i = 0; i < tn_n_archs; i++) {
        if (strlen(tn_archs[i].gguf) == n && !memcmp(tn_archs[i].gguf, name, n)) return &tn_archs[i];
    }
    return NULL;
}

const tn_arch *tn_arch_named(const char *name) {
    for (int i = 0; i < tn_n_archs; i++)
        if (!strcmp(tn_archs[i].name, name)) return &tn_archs[i];
    return NULL;
}

const tn_arch *tn_arch_variant(const tn_arch *a, bool experts) {
    if (a->experts == experts) return a;
    for (int i = 0; i < tn_n_archs; i++)
        if ((!strcmp(tn_archs[i].gguf, a->gguf) || !strcmp(tn_archs[i].hf, a->hf)) &&
            tn_archs[i].experts == experts)
            return &tn_archs[i];
    return a;
}

void tn_arch_list(char *buf, size_t cap) {
    const size_t rest = sizeof " and 99999 others";
    size_t n = 0;
    for (int i = 0; i < tn_n_archs; i++) {
        bool fits = n + strlen(tn_archs[i].name) + 3 + (i + 1 < tn_n_archs ? rest : 0) <= cap;
        if (!fits) {
            snprintf(buf + n, cap - n, " and %d others", tn_n_archs - i);
            return;
        }
        n += (size_t)snprintf(buf + n, cap - n, "%s%s", i ? ", " : "", tn_archs[i].name);
    }
}

/* ---- what must be there ----------------------------------------------------------------------------- */

bool tn_arch_required(const tn_arch *a, const tn_hparams *h, tn_role role) {
    if (a->head && (role == TN_W_EMBD || role == TN_W_OUT))
        return role == TN_W_EMBD ? h->head.own_embd : h->head.own_out;
    if (tn_role_of_next(role) || role == TN_W_NEXT_BACK) return h->n_next || a->head;
    if (role == TN_W_HEAD_IN_NORM) return h->head.norm_in;
    if (tn_role_of_mamba(role)) return a->mamba;
    if (tn_role_of_wkv(role)) return a->wkv;
    if (tn_role_of_kda(role)) return a->kda;
    if (tn_role_of_ple(role)) return h->n_ple > 0;
    if (tn_role_of_streams(role)) return h->n_streams > 0;
    if (tn_role_of_text(role))
        return role != TN_W_SCORE_IN_B && role != TN_W_SCORE_B; /* where there are any */
    if (role >= TN_W_SCORE_NORM) return true;                   /* these, too */
    if (tn_role_of_beside(role)) return h->experts_beside;
    if (tn_role_of_latent(role)) return a->latent;
    if (tn_role_of_delta(role)) return a->delta && tn_delta_has(&h->delta, role);
    switch (role) {
    case TN_W_OUT_NORM: return !a->encoder;
    case TN_W_EMBD:
    case TN_W_Q:
    case TN_W_K:
    case TN_W_V:
    case TN_W_O: return true;
    case TN_W_UP:
    case TN_W_DOWN:
        return !a->experts || h->shared_expert || h->n_dense || h->experts_beside || h->experts_every;
    case TN_W_OUT: return !h->tied;
    case TN_W_GATE: return a->gated && (!a->experts || h->shared_expert || h->n_dense || h->experts_beside);
    case TN_W_GATE_EXPS: return a->experts && a->gated;
    case TN_W_ROUTER:
    case TN_W_UP_EXPS:
    case TN_W_DOWN_EXPS: return a->experts;
    case TN_W_ROUTER_B:
    case TN_W_GATE_EXPS_B:
    case TN_W_UP_EXPS_B:
    case TN_W_DOWN_EXPS_B: return a->experts && a->o_bias;
    case TN_W_SINKS: return a->sinks;
    case TN_W_SHARED_GATE: return h->shared_gate;
    case TN_W_LAYER_SCALE: return h->layer_scale;
    case TN_W_ATTN_SUB_NORM:
    case TN_W_FFN_SUB_NORM: return h->sub_norms;
    case TN_W_EXPERTS_BIAS: return h->experts_bias;
    case TN_W_ATT_GATE: return a->attn_gate;
    case TN_W_CONV_IN:
    case TN_W_CONV:
    case TN_W_CONV_OUT: return a->conv;
    case TN_W_ATTN_NORM: return !a->no_pre_norms;
    case TN_W_FFN_NORM: return !h->parallel_block && !a->no_pre_norms;
    case TN_W_Q_NORM:
    case TN_W_K_NORM: return h->qk_norm;
    case TN_W_ATTN_POST_NORM:
    case TN_W_FFN_POST_NORM: return a->post_norms;
    case TN_W_Q_B:
    case TN_W_K_B:
    case TN_W_V_B: return a->qkv_bias || a->biases;
    case TN_W_O_B: return a->biases || a->o_bias;
    case TN_W_ATTN_POST_NORM_B:
    case TN_W_FFN_POST_NORM_B: return a->encoder;
    case TN_W_OUT_NORM_B:
    case TN_W_ATTN_NORM_B: return (a->biases || a->norm_biases) && !a->no_pre_norms;
    case TN_W_FFN_NORM_B: return (a->biases || a->norm_biases) && !h->parallel_block && !a->no_pre_norms;
    case TN_W_UP_B: return a->biases && !a->gated;
    case TN_W_DOWN_B: return a->biases;
    case TN_W_OUT_B: return a->biases && !a->no_out_bias;
    default: return false;
    }
}

tern_status tn_arch_next(const tn_arch *a, const char *file, int32_t said, bool any, tn_hparams *h,
                         tern_error *err) {
    TN_FAIL_IF(said < 0 || said > TN_MAX_NEXT, err, TERN_E_FORMAT,
               "%s: %d layers that guess one token further, want 0 to %d", file, said, TN_MAX_NEXT);
    bool plain = a->norm == TN_NORM_RMS && !a->parallel_block && !a->window && !a->no_rope_pattern &&
                 !a->mamba && !a->sinks && !a->latent && !a->wkv && !a->kda;
    h->n_next = any && plain && h->n_layers < TN_MAX_LAYERS;
    return TERN_OK;
}

/* ---- what both sides share ------------------------------------------------------------------------ */

void tn_arch_begin(const tn_arch *a, tn_hparams *h) {
    memset(h, 0, sizeof *h);
    snprintf(h->arch, sizeof h->arch, "%s", a->name);
    h->norm = a->norm;
    h->act = a->act;
    h->gated = a->gated;
    h->parallel_block = a->parallel_block;
    h->post_norms = a->post_norms;
    h->no_pre_norms = a->no_pre_norms;
    h->qk_norm = a->qk_norm;
    h->qk_norm_whole = a->qk_norm_whole;
    h->qk_norm_last = a->qk_norm_last;
    h->experts_norm = a->experts_norm;
    h->experts_sigmoid = a->experts_sigmoid;
    h->experts_scale = 1;
    h->experts_mixer = a->experts_mixer;
    h->experts_before = a->experts_before;
    h->window_chunks = h->temp_no_rope = h->qk_norm_plain = a->chunked;
    if (a->chunked) h->temp_scale = 0.1f, h->temp_every = 8192;
    h->shared_expert = a->shared_expert;
    h->shared_gate = a->shared_expert && !a->shared_ungated;
    h->attn_gate = a->attn_gate;
    h->experts_beside = a->experts_beside;
    h->swiglu_limit = a->swiglu_limit;
    h->single = a->single;
    h->sub_norms = a->sub_norms;
    h->sinks = a->sinks;
    h->assistant = a->assistant;
    h->v_norm = a->v_norm;
    h->attn_scale = a->attn_scale;
    h->bidirectional = a->bidirectional;
    h->norms_after = a->encoder;
    h->embd_norm = a->encoder || a->shift_ffn || a->modern;
    h->window_rest = h->first_norm_none = h->embd_norm_bare = a->modern;
    h->alibi = a->alibi;
    h->qk_norm_biased = a->qk_norm_found;
    h->shift_ffn = a->shift_ffn;
    h->no_rope_pattern = a->no_rope_pattern;
    h->window_pattern = a->window_pattern;
    h->embd_scale = h->rope_mscale = h->residual_scale = h->logit_scale = 1;
    h->rope_base = 10000;
}

/* What follows from the sizes, and the scales. */
static tern_status finish_scales(const tn_arch *a, const char *file, tn_hparams *h, tern_error *err) {
    if (a->scale_embd) h->embd_scale = sqrtf((float)h->n_embd);
    if (h->attn_scale == 0) h->attn_scale = (float)(1 / sqrt((double)h->d_head));
    if (!h->window) h->window_pattern = 0;
    if (a->no_rope_where_all && h->window) h->no_rope_pattern = h->window_pattern;
    h->local_rope = a->local_rope && h->window > 0;
    TN_FAIL_IF(!(h->attn_scale > 0 && h->attn_scale < 1e6f) ||
                   !(h->attn_soft_cap >= 0 && h->attn_soft_cap < 1e6f) ||
                   !(h->logit_soft_cap >= 0 && h->logit_soft_cap < 1e6f),
               err, TERN_E_FORMAT, "%s: attention scale %g, soft caps %g and %g", file, (double)h->attn_scale,
               (double)h->attn_soft_cap, (double)h->logit_soft_cap);
    const float scales[] = {h->embd_scale, h->residual_scale, h->logit_scale, h->rope_mscale,
                            h->experts_scale};
    for (size_t i = 0; i < sizeof scales / sizeof scales[0]; i++) {
        TN_FAIL_IF(!(scales[i] > 1e-6f && scales[i] < 1e6f), err, TERN_E_FORMAT,
                   "%s: scales of embeddings %g, residuals %g, logits %g, rope %g and experts %g; want "
                   "positive numbers",
                   file, (double)h->embd_scale, (double)h->residual_scale, (double)h->logit_scale,
                   (double)h->rope_mscale, (double)h->experts_scale);
    }
    TN_FAIL_IF(h->temp_scale != 0 && !(h->temp_scale > 0 && h->temp_scale < 100 && h->temp_every > 0), err,
               TERN_E_FORMAT, "%s: temperature scale %g for every %d tokens", file, (double)h->temp_scale,
               h->temp_every);
    return TERN_OK;
}

/* How a row's experts are chosen. */
static tern_status finish_experts(const char *file, const tn_hparams *h, tern_error *err) {
    TN_FAIL_IF(h->experts_mixer != 0 &&
                   !(h->experts_mixer > 0 && h->experts_mixer < 1 && h->n_experts_used == 2),
               err, TERN_E_UNSUPPORTED,
               "%s: %d experts a row, taken one after the other within %g of the best; want 2", file,
               h->n_experts_used, (double)h->experts_mixer);
    TN_FAIL_IF(h->experts_before && h->n_experts_used != 1, err, TERN_E_UNSUPPORTED,
               "%s: %d experts a row, each of which reads the row times its weight; want 1", file,
               h->n_experts_used);
    TN_FAIL_IF(h->experts_every > h->n_layers, err, TERN_E_FORMAT, "%s: experts in every %d-th of %d layers",
               file, h->experts_every, h->n_layers);
    TN_FAIL_IF(!tn_experts_groups_ok(h), err, TERN_E_FORMAT,
               "%s: %d experts in %d groups, of which a row has %d of %d", file, h->n_experts,
               h->experts_groups, h->n_experts_used, h->experts_groups_used);
    return TERN_OK;
}

static tern_status finish_wkv(const char *file, const tn_hparams *h, tern_error *err) {
    TN_FAIL_IF(
        !tn_wkv_ok(h), err, TERN_E_UNSUPPORTED,
        "%s: %d heads of %d values for %d of a row (at most %d), products of ranks %d, %d, %d and %d (at "
        "most %d, the last 0 for none)",
        file, h->delta.n_heads, h->delta.d_value, h->n_embd, TN_MAX_WKV, h->low.decay, h->low.rate,
        h->low.value, h->low.gate, TN_MAX_LOW);
    return TERN_OK;
}

/* Where all layers attend there are no states, whatever the configuration says of them. */
static void forget_states(tn_hparams *h) {
    bool recurs = false, convolves = false;
    for (int32_t l = 0; l < h->n_layers; l++) {
        recurs |= tn_layer_recurs(h, l);
        convolves |= h->layer_kind[l] == TN_LAYER_CONVOLVES;
    }
    if (!recurs) h->delta = (tn_delta_net){0};
    if (!recurs && !convolves) h->conv_len = 0;
}

static tern_status finish_kinds(const char *file, tn_hparams *h, tern_error *err) {
    TN_TRY(finish_experts(file, h, err));
    TN_TRY(finish_wkv(file, h, err));
    TN_FAIL_IF(h->bidirectional && h->window == 1, err, TERN_E_UNSUPPORTED,
               "%s: a window of 1 in a model that reads in both directions is not supported", file);
    forget_states(h);
    return TERN_OK;
}

/* All layers of an assistant read another model's keys and values, whether the file counts them or says 0.
 * Its logits are not capped, whatever it says: nobody who publishes or runs them caps them. */
static tern_status finish_assistant(const tn_arch *a, const char *file, tn_hparams *h, tern_error *err) {
    if (!a->assistant) return TERN_OK;
    TN_FAIL_IF(h->n_kv_shared && h->n_kv_shared != h->n_layers, err, TERN_E_UNSUPPORTED,
               "%s: an assistant of which %d of %d layers have no keys and values: all or none are supported",
               file, h->n_kv_shared, h->n_layers);
    TN_FAIL_IF(
        h->n_ple || h->window == 1, err, TERN_E_UNSUPPORTED,
        "%s: an assistant with %d values of a token for every layer and a window of %d; want 0, and 2 at "
        "least",
        file, h->n_ple, h->window);
    h->n_kv_shared = h->n_layers;
    h->n_ff_shared = 0;
    h->v_is_k = false;
    h->logit_soft_cap = 0;
    return TERN_OK;
}

tern_status tn_arch_finish(const tn_arch *a, const char *file, tn_hparams *h, tern_error *err) {
    TN_TRY(finish_assistant(a, file, h, err));
    const struct {
        const char *what;
        int64_t v, min, max;
    } checks[] = {
        {"layers", h->n_layers, 1, TN_MAX_LAYERS},
        {"embedding", h->n_embd, 1, 1 << 16},
        {"heads", h->n_heads, 1, 1 << 12},
        {"KV heads", h->n_kv_heads, 1, h->n_heads > 0 ? h->n_heads : 1},
        {"head size", h->d_head, 4, a->latent ? TN_MAX_HEAD : 512},
        {"values of a latent", h->latent.rank, a->latent, a->latent ? 1024 : 0},
        {"values that queries come of", h->latent.q_rank, 0, a->latent ? 1 << 14 : 0},
        {"values of a key", h->latent.d_nope, a->latent, a->latent ? 1024 : 0},
        {"values of a value", h->latent.d_value, a->latent, a->latent ? 1024 : 0},
        {"feed-forward size", h->n_ff, 1, 1 << 18},
        {"vocabulary", h->n_vocab, 1, 1 << 22},
        {"context", h->ctx_train, 1, 1 << 24},
        {"rotated values", h->n_rot, 0, h->d_head < TN_MAX_ROT ? h->d_head : TN_MAX_ROT},
        {"window", h->window, 0, INT32_MAX},
        {"values of a convolution", h->conv_len, a->conv || a->delta ? 2 : 0,
         a->conv || a->delta ? TN_MAX_CONV : 0},
        {"heads of a delta net", h->delta.n_heads, a->delta, a->delta ? 1 << 12 : 0},
        {"key heads of a delta net", h->delta.n_key_heads, a->delta, a->delta ? h->delta.n_heads : 0},
        {"keys of a delta net", h->delta.d_key, a->delta ? 2 : 0, a->delta ? TN_MAX_DELTA : 0},
        {"values of a delta net", h->delta.d_value, a->delta ? TN_DELTA_COLS : 0, a->delta ? 1 << 12 : 0},
        {"feed-forward size of an expert", h->n_ff_exp, a->experts, a->experts ? 1 << 18 : 0},
        {"feed-forward size of layers without experts", h->n_ff_dense, 0, a->dense_first ? 1 << 18 : 0},
        {"layers without experts", h->n_dense, 0, a->dense_first ? h->n_layers - 1 : 0},
        {"experts", h->n_experts, a->experts ? 1 : 0, a->experts ? TN_MAX_EXPERTS : 0},
        {"experts used", h->n_experts_used, a->experts ? 1 : 0, h->n_experts},
        {"period of windows", h->window_pattern, 0, TN_MAX_LAYERS},
        {"head size of layers with a window", h->window_d_head, h->window_d_head ? 4 : 0, 512},
        {"KV heads of layers with a window", h->window_kv_heads, 0, h->n_heads},
        {"rotated values of layers with a window", h->window_rot, 0, h->n_rot},
        {"layers that share keys and values", h->n_kv_shared, 0,
         a->shared_kv ? h->n_layers - !a->assistant : 0},
        {"feed-forward size of layers that share", h->n_ff_shared, 0, h->n_kv_shared ? 1 << 18 : 0},
        {"embedding for every layer", h->n_ple, h->n_ple || a->streams ? 4 : 0, a->ple ? 1 << 12 : 0},
        {"residual streams", h->n_streams, a->streams ? TN_STREAMS : 0, a->streams ? TN_STREAMS : 0},
        {"rank of the product beside attention", h->laurel_rank, a->streams, a->streams ? 1 << 14 : 0},
        {"layers with sparse gates", h->n_sparse, 0, a->streams ? h->n_layers : 0},
        {"rows of the embedding that stand for no text", h->n_vocab_rest, 0, 1 << 20},
        {"learned positions", h->n_positions, a->positions ? h->ctx_train : 0, a->positions ? 1 << 20 : 0},
        {"values between dense products", h->n_between, 0, 1 << 16},
        {"scores of a text", h->n_scores, 0, 1 << 10},
        {"period of layers without rope", h->no_rope_pattern, 0, TN_MAX_LAYERS},
    };
    for (size_t i = 0; i < sizeof checks / sizeof checks[0]; i++) {
        TN_FAIL_IF(checks[i].v < checks[i].min || checks[i].v > checks[i].max, err, TERN_E_FORMAT,
                   "%s: %s %lld, want %lld to %lld", file, checks[i].what, (long long)checks[i].v,
                   (long long)checks[i].min, (long long)checks[i].max);
    }
    TN_FAIL_IF(h->n_heads % h->n_kv_heads, err, TERN_E_FORMAT, "%s: %d heads do not share %d KV heads evenly",
               file, h->n_heads, h->n_kv_heads);
    TN_FAIL_IF(
        a->delta && (h->delta.n_heads % h->delta.n_key_heads || h->delta.d_key % 2 ||
                     h->delta.d_value % TN_DELTA_COLS),
        err, TERN_E_UNSUPPORTED,
        "%s: a delta net of %d heads over %d key heads, of %d keys and %d values; want a multiple, and "
        "multiples of 2 and %d",
        file, h->delta.n_heads, h->delta.n_key_heads, h->delta.d_key, h->delta.d_value, TN_DELTA_COLS);
    TN_FAIL_IF(h->d_head % 4 || h->n_rot % 2, err, TERN_E_UNSUPPORTED,
               "%s: head size %d with %d rotated values; want multiples of 4 and 2", file, h->d_head,
               h->n_rot);
    TN_TRY(finish_kinds(file, h, err));
    const char *wrong = tn_layers_wrong(h);
    TN_FAIL_IF(wrong, err, TERN_E_FORMAT,
               "%s: %s (%d heads; of layers with a window %d KV heads of %d values, %d rotated; "
               "%d layers share, each has %d values of a token)",
               file, wrong, h->n_heads, h->window_kv_heads, h->window_d_head, h->window_rot, h->n_kv_shared,
               h->n_ple);
    TN_FAIL_IF(h->n_sparse && !(h->sparse_deviations > 0 && h->sparse_deviations < 100), err, TERN_E_FORMAT,
               "%s: gates that are kept from %g deviations on", file, (double)h->sparse_deviations);
    TN_FAIL_IF(!(h->norm_eps > 0 && h->norm_eps < 1), err, TERN_E_FORMAT, "%s: norm epsilon %g", file,
               (double)h->norm_eps);
    TN_FAIL_IF(!(h->rope_base > 1 && h->rope_base < 1e12), err, TERN_E_FORMAT, "%s: rope base %g", file,
               h->rope_base);
    return finish_scales(a, file, h, err);
}
