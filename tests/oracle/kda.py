"""Kimi-Linear for the oracle, in float64 from its published definition: delta attention with a decay for every key, row after row, and latent
attention without rotation, with experts after a dense layer."""
import math

import numpy as np

import latent
from families import config
from files import Stored
from reference import ACTIVATIONS, FORWARD, attention, causal_convolution, gated, linear, rms_norm, silu, to_length_one

FAMILIES = ("kimi_linear",)


def recurs(cfg, i):
    return i + 1 in cfg["linear_attn_config"]["kda_layers"]


def checkpoint(name, cfg, dtype, vector_dtype, uniform):
    c, v, of, out = cfg["hidden_size"], cfg["vocab_size"], cfg["linear_attn_config"], {}
    n_heads, rank, nope, rot, value = latent.sizes(cfg)
    h, d = of["num_heads"], of["head_dim"]

    def matrix(key, rows, cols, gain=1.0):
        out[key + ".weight"] = Stored(uniform(name + key, (rows, cols)) * gain * (3 / cols) ** 0.5, dtype)

    def vector(key, n, centre, spread):
        out[key] = Stored(np.round((centre + spread * uniform(name + key, (n,))) * 128) / 128, vector_dtype)

    def block(p, size, parts=("gate_proj", "up_proj", "down_proj")):
        matrix(p + parts[0], size, c, 1.5)
        matrix(p + parts[1], size, c, 1.5)
        matrix(p + parts[2], c, size)

    matrix("model.embed_tokens", v, c, c**0.5 / 2)
    for i in range(cfg["num_hidden_layers"]):
        p = f"model.layers.{i}."
        vector(p + "input_layernorm.weight", c, 1.0, 0.5)
        vector(p + "post_attention_layernorm.weight", c, 1.0, 0.5)
        a = p + "self_attn."
        if recurs(cfg, i):
            for m in "qkv":
                matrix(a + m + "_proj", h * d, c, 1.5)
                shape = (h * d, 1, of["short_conv_kernel_size"]) if i else (h * d, of["short_conv_kernel_size"])
                out[f"{a}{m}_conv1d.weight"] = Stored(uniform(f"{name}{a}{m}conv", shape), dtype)
            for m, rows, cols in (("f_a", d, c), ("f_b", h * d, d), ("g_a", d, c), ("g_b", h * d, d), ("b", h, c)):
                matrix(f"{a}{m}_proj", rows, cols, 1.5)
            vector(a + "A_log", h, 0.0, 0.75)
            out[a + "A_log"] = Stored(out[a + "A_log"].values.reshape(1, 1, h, 1), vector_dtype)
            vector(a + "dt_bias", h * d, -2.0, 1.5)
            vector(a + "o_norm.weight", d, 1.0, 0.5)
            matrix(a + "o_proj", c, h * d, 2.0)
        else:
            matrix(a + "q_proj", n_heads * (nope + rot), c, 1.7)
            matrix(a + "kv_a_proj_with_mqa", rank + rot, c, 1.7)
            vector(a + "kv_a_layernorm.weight", rank, 1.0, 0.5)
            matrix(a + "kv_b_proj", n_heads * (nope + value), rank, 1.3)
            matrix(a + "o_proj", c, n_heads * value)
        if i < cfg["first_k_dense_replace"]:
            block(p + "mlp.", cfg["intermediate_size"])
            continue
        m = p + "block_sparse_moe."
        matrix(m + "gate", cfg["num_experts"], c, 3.0)
        out[m + "gate.e_score_correction_bias"] = Stored(uniform(name + m + "bias", (cfg["num_experts"],)) * 0.25, "F32")
        for e in range(cfg["num_experts"]):
            block(f"{m}experts.{e}.", cfg["moe_intermediate_size"], ("w1", "w3", "w2"))
        block(m + "shared_experts.", cfg["moe_intermediate_size"] * cfg["num_shared_experts"])
    vector("model.norm.weight", c, 1.0, 0.5)
    matrix("lm_head", v, c)
    return out


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def delta_attention(cfg, w, p, x):
    of = cfg["linear_attn_config"]
    h, d, t = of["num_heads"], of["head_dim"], x.shape[0]
    lin = lambda y, key: linear(y, w(p + key + "_proj.weight"))
    kernel = lambda m: w(f"{p}{m}_conv1d.weight").reshape(h * d, -1)
    q, k, v = (silu(causal_convolution(lin(x, m), kernel(m))).reshape(t, h, d) for m in "qkv")
    q, k = to_length_one(q) / math.sqrt(d), to_length_one(k)
    rate = sigmoid(lin(x, "b"))
    steps = np.log1p(np.exp(lin(lin(x, "f_a"), "f_b") + w(p + "dt_bias"))).reshape(t, h, d)
    decay = np.exp(-np.exp(w(p + "A_log").reshape(h, 1)) * steps)
    state, out = np.zeros((h, d, d)), np.zeros_like(v)  # keys, values
    for i in range(t):
        state = state * decay[i][:, :, None]
        known = np.einsum("hkv,hk->hv", state, k[i])
        state = state + np.einsum("hk,hv->hkv", k[i], rate[i][:, None] * (v[i] - known))
        out[i] = np.einsum("hkv,hk->hv", state, q[i])
    gate = sigmoid(lin(lin(x, "g_a"), "g_b")).reshape(t, h, d)
    return lin((rms_norm(out, w(p + "o_norm.weight"), cfg["rms_norm_eps"]) * gate).reshape(t, -1), "o")


def latent_attention(cfg, w, p, x):
    n_heads, rank, nope, rot, value = latent.sizes(cfg)
    t, lin = x.shape[0], lambda y, key: linear(y, w(p + key + ".weight"))
    q = lin(x, "q_proj").reshape(t, n_heads, nope + rot)
    both = lin(x, "kv_a_proj_with_mqa")
    kv = lin(rms_norm(both[:, :rank], w(p + "kv_a_layernorm.weight"), latent.LATENT_EPS), "kv_b_proj").reshape(t, n_heads, nope + value)
    k = np.concatenate([kv[..., :nope], np.repeat(both[:, None, rank:], n_heads, axis=1)], axis=-1)
    width = max(nope + rot, value)
    wide = lambda y: np.concatenate([y, np.zeros((t, n_heads, width - y.shape[2]))], axis=-1)
    a = attention(wide(q), wide(k), wide(kv[..., nope:]), 1 / math.sqrt(nope + rot)).reshape(t, n_heads, width)[..., :value]
    return lin(a.reshape(t, -1), "o_proj")


def routed(cfg, w, p, x):
    share = sigmoid(linear(x, w(p + "gate.weight")))
    chosen = np.argsort(-(share + w(p + "gate.e_score_correction_bias")), axis=1, kind="stable")[:, : cfg["num_experts_per_token"]]
    weights = np.zeros_like(share)
    for t in range(x.shape[0]):
        weights[t, chosen[t]] = share[t, chosen[t]]
    if cfg["moe_renormalize"]:
        weights = weights / weights.sum(axis=1, keepdims=True)
    of = lambda q, parts: gated(x, *(w(q + m + ".weight") for m in parts), ACTIVATIONS["silu"])
    y = of(p + "shared_experts.", ("gate_proj", "up_proj", "down_proj"))
    for e in range(cfg["num_experts"]):
        y = y + weights[:, e : e + 1] * cfg["routed_scaling_factor"] * of(f"{p}experts.{e}.", ("w1", "w3", "w2"))
    return y


def forward(cfg, w, ids, n_ctx):
    eps, x = cfg["rms_norm_eps"], w("model.embed_tokens.weight")[ids]
    for i in range(cfg["num_hidden_layers"]):
        p = f"model.layers.{i}."
        mix = delta_attention if recurs(cfg, i) else latent_attention
        x = x + mix(cfg, w, p + "self_attn.", rms_norm(x, w(p + "input_layernorm.weight"), eps))
        h = rms_norm(x, w(p + "post_attention_layernorm.weight"), eps)
        dense = [w(p + f"mlp.{m}_proj.weight") for m in ("gate", "up", "down")]
        x = x + (gated(h, *dense, ACTIVATIONS["silu"]) if i < cfg["first_k_dense_replace"] else routed(cfg, w, p + "block_sparse_moe.", h))
    return linear(rms_norm(x, w("model.norm.weight"), eps), w("lm_head.weight"))


FORWARD.update({f: forward for f in FAMILIES})


def gguf(cfg, tensors, name, widen=False):
    """(meta, tensors): layers whose KV heads are none are delta attention; taps and decays have dimensions of 1, as converters write them."""
    n_heads, rank, nope, rot, value = latent.sizes(cfg)
    of = cfg["linear_attn_config"]
    meta = {"general.architecture": "kimi-linear", "general.name": name, "tokenizer.ggml.model": "none"}
    say = lambda tail, v: meta.__setitem__(f"kimi-linear.{tail}", v)
    for tail, v in (("context_length", cfg["model_max_length"]), ("embedding_length", cfg["hidden_size"]), ("block_count", cfg["num_hidden_layers"]),
                    ("feed_forward_length", cfg["intermediate_size"]), ("attention.head_count", n_heads),
                    ("attention.head_count_kv", [0 if recurs(cfg, i) else 1 for i in range(cfg["num_hidden_layers"])]),
                    ("attention.layer_norm_rms_epsilon", cfg["rms_norm_eps"]), ("rope.freq_base", cfg["rope_theta"]), ("rope.dimension_count", rot),
                    ("vocab_size", cfg["vocab_size"]), ("attention.kv_lora_rank", rank), ("attention.key_length", rank + rot),
                    ("attention.value_length", rank), ("attention.key_length_mla", nope + rot), ("attention.value_length_mla", value),
                    ("ssm.conv_kernel", of["short_conv_kernel_size"]), ("kda.head_dim", of["head_dim"]), ("expert_count", cfg["num_experts"]),
                    ("expert_used_count", cfg["num_experts_per_token"]), ("expert_feed_forward_length", cfg["moe_intermediate_size"]),
                    ("expert_shared_count", cfg["num_shared_experts"]), ("leading_dense_block_count", cfg["first_k_dense_replace"]),
                    ("expert_weights_scale", cfg["routed_scaling_factor"]), ("expert_gating_func", 2)):
        say(tail, v)
    parts = {"input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
             "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output", "self_attn.f_a_proj": "ssm_f_a", "self_attn.f_b_proj": "ssm_f_b",
             "self_attn.g_a_proj": "ssm_g_a", "self_attn.g_b_proj": "ssm_g_b", "self_attn.b_proj": "ssm_beta", "self_attn.o_norm": "ssm_norm",
             "self_attn.kv_a_proj_with_mqa": "attn_kv_a_mqa", "self_attn.kv_a_layernorm": "attn_kv_a_norm", "mlp.gate_proj": "ffn_gate",
             "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down", "block_sparse_moe.gate": "ffn_gate_inp",
             "block_sparse_moe.shared_experts.gate_proj": "ffn_gate_shexp", "block_sparse_moe.shared_experts.up_proj": "ffn_up_shexp",
             "block_sparse_moe.shared_experts.down_proj": "ffn_down_shexp"}
    out, experts = {}, {}
    put = lambda key, v, dtype: out.__setitem__(key, Stored(v, "F32" if v.ndim == 1 or widen else dtype))
    for key, t in tensors.items():
        v = t.values
        if not key.startswith("model.layers."):
            put({"model.embed_tokens.weight": "token_embd", "model.norm.weight": "output_norm", "lm_head.weight": "output"}[key] + ".weight", v, t.dtype)
            continue
        layer, part = key[len("model.layers.") :].split(".", 1)
        b = f"blk.{layer}."
        if ".experts." in part:
            experts.setdefault(f"{b}ffn_{dict(w1='gate', w3='up', w2='down')[part.split('.')[-2]]}_exps.weight", []).append(t)
        elif "_conv1d" in part:
            put(f"{b}ssm_conv1d_{part[len('self_attn.')]}.weight", v.reshape(1, v.shape[0], 1, -1), "F32")
        elif part == "self_attn.A_log":
            put(b + "ssm_a", -np.exp(v), "F32")
        elif part == "self_attn.dt_bias":
            put(b + "ssm_dt.bias", v, "F32")
        elif part == "block_sparse_moe.gate.e_score_correction_bias":
            put(b + "exp_probs_b.bias", v, "F32")
        elif part == "self_attn.kv_b_proj.weight":
            v = v.reshape(n_heads, nope + value, rank)
            put(b + "attn_k_b.weight", v[:, :nope].swapaxes(1, 2), t.dtype)
            put(b + "attn_v_b.weight", v[:, nope:], t.dtype)
        else:
            put(f"{b}{parts[part.removesuffix('.weight')]}.weight", v, t.dtype)
    for new, each in experts.items():
        out[new] = Stored(np.stack([t.values for t in each]), "F32" if widen else each[0].dtype)
    return meta, out


def words(layers, attend, **more):
    of = dict(full_attn_layers=attend, kda_layers=[i for i in range(1, layers + 1) if i not in attend], num_heads=4, head_dim=16, short_conv_kernel_size=4)
    cfg = config("KimiLinearForCausalLM", "kimi_linear", num_hidden_layers=layers, linear_attn_config=of, mla_use_nope=True, hidden_act="silu", rms_norm_eps=1e-5,
                 q_lora_rank=None, kv_lora_rank=32, qk_nope_head_dim=16, qk_rope_head_dim=8, v_head_dim=32, num_experts=6, num_experts_per_token=2,
                 num_shared_experts=1, moe_intermediate_size=16, first_k_dense_replace=1, moe_layer_freq=1, moe_renormalize=True,
                 moe_router_activation_func="sigmoid", routed_scaling_factor=2.446, use_grouped_topk=True, num_expert_group=1, topk_group=1,
                 num_nextn_predict_layers=0, rope_scaling=None, tie_word_embeddings=False, model_max_length=512)
    del cfg["max_position_embeddings"]
    return {**cfg, "num_key_value_heads": 4, **more}


SHOWS = [dict(drop="f_b_proj.weight"), dict(drop="g_b_proj.weight"), dict(drop="dt_bias"), dict(drop="b_proj.weight"), dict(drop="k_conv1d.weight"),
         dict(drop="o_norm.weight"), dict(drop="e_score_correction_bias"), dict(num_experts_per_token=3), dict(routed_scaling_factor=1.0)]
CASES = {
    "kimi-linear": dict(dtype="BF16", vectors="BF16", n_tok=300, n_ctx=320, gguf=True, cfg=words(4, [4]), shows=SHOWS),
    "kimi-linear-twice": dict(dtype="F16", vectors="F16", n_tok=40, gguf=True, cfg=words(4, [2, 3]), shows=SHOWS),
}
