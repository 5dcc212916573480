"""Ling 3 for the oracle, in float64 from its published definition: Kimi's delta attention whose decays have a floor, row after row, beside latent
attention in its plain form with rope and a gate for every head, and experts in groups, whose gates and ups may be clamped."""
import math

import numpy as np

import latent
from families import config, rotate_neighbours
from files import Stored
from kda import sigmoid
from reference import FORWARD, attention, causal_convolution, linear, rms_norm, rope_frequencies, silu, to_length_one

FAMILIES = ("bailing_hybrid",)
PARTS = ("gate_proj", "up_proj", "down_proj")


def recurs(cfg, i):
    every, n = cfg["layer_group_size"], cfg["num_hidden_layers"]
    return (i + 1) % every != 0 and i < n // every * every


def checkpoint(name, cfg, dtype, vector_dtype, uniform):
    c, v, out = cfg["hidden_size"], cfg["vocab_size"], {}
    n_heads, rank, nope, rot, value = latent.sizes(cfg)
    d, taps, q_rank = cfg["head_dim"], cfg["short_conv_kernel_size"], cfg["q_lora_rank"]

    def matrix(key, rows, cols, gain=1.0):
        out[key + ".weight"] = Stored(uniform(name + key, (rows, cols)) * gain * (3 / cols) ** 0.5, dtype)

    def vector(key, n, centre, spread):
        out[key] = Stored(np.round((centre + spread * uniform(name + key, (n,))) * 128) / 128, vector_dtype)

    def block(p, size):
        matrix(p + "gate_proj", size, c, 1.5)
        matrix(p + "up_proj", size, c, 1.5)
        matrix(p + "down_proj", c, size)

    matrix("model.word_embeddings", v, c, c**0.5 / 2)
    for i in range(cfg["num_hidden_layers"] + cfg["num_nextn_predict_layers"]):
        p = f"model.layers.{i}."
        if i >= cfg["num_hidden_layers"]:  # it guesses further, and nobody reads it
            for m in ("enorm", "hnorm", "final_layernorm"):
                vector(f"{p}{m}.weight", c, 1.0, 0.5)
            matrix(p + "eh_proj", c, 2 * c)
        vector(p + "input_layernorm.weight", c, 1.0, 0.5)
        vector(p + "post_attention_layernorm.weight", c, 1.0, 0.5)
        a = p + "attention."
        if recurs(cfg, i):
            for m in "qkv":
                matrix(f"{a}{m}_proj", n_heads * d, c, 1.5)
                out[f"{a}{m}_conv1d.weight"] = Stored(uniform(f"{name}{a}{m}conv", (n_heads * d, 1, taps)), dtype)
            for m, rows in (("f", n_heads * d), ("g", n_heads * d), ("b", n_heads)):
                matrix(f"{a}{m}_proj", rows, c, 1.5)
            vector(a + "A_log", n_heads, 0.0, 0.75)
            vector(a + "dt_bias", n_heads * d, -2.0, 1.5)
            vector(a + "o_norm.weight", d, 1.0, 0.5)
            matrix(a + "o_proj", c, n_heads * d, 2.0)
        else:
            if q_rank:
                matrix(a + "q_a_proj", q_rank, c)
                vector(a + "q_a_layernorm.weight", q_rank, 1.0, 0.5)
                matrix(a + "q_b_proj", n_heads * (nope + rot), q_rank, 1.7)
            else:
                matrix(a + "q_proj", n_heads * (nope + rot), c, 1.7)
            matrix(a + "kv_a_proj_with_mqa", rank + rot, c, 1.7)
            vector(a + "kv_a_layernorm.weight", rank, 1.0, 0.5)
            matrix(a + "kv_b_proj", n_heads * (nope + value), rank, 1.3)
            matrix(a + "g_proj", n_heads, c, 2.0)
            matrix(a + "dense", c, n_heads * value, 2.0)
        m = p + "mlp."
        if i < cfg["first_k_dense_replace"]:
            block(m, cfg["intermediate_size"])
            continue
        matrix(m + "gate", cfg["num_experts"], c, 3.0)
        out[m + "gate.expert_bias"] = Stored(uniform(name + m + "bias", (cfg["num_experts"],)) * 0.25, "F32")
        for e in range(cfg["num_experts"]):
            block(f"{m}experts.{e}.", cfg["moe_intermediate_size"])
        block(m + "shared_experts.", cfg["moe_shared_expert_intermediate_size"] * cfg["num_shared_experts"])
    vector("model.norm.weight", c, 1.0, 0.5)
    matrix("lm_head", v, c)
    return out


def delta_attention(cfg, w, p, x):
    h, d, t = cfg["num_attention_heads"], cfg["head_dim"], x.shape[0]
    lin = lambda y, key: linear(y, w(p + key + "_proj.weight"))
    kernel = lambda m: w(f"{p}{m}_conv1d.weight").reshape(h * d, -1)
    q, k, v = (silu(causal_convolution(lin(x, m), kernel(m))).reshape(t, h, d) for m in "qkv")
    q, k = to_length_one(q) / math.sqrt(d), to_length_one(k)
    rate = sigmoid(lin(x, "b"))
    steps = (lin(x, "f") + w(p + "dt_bias")).reshape(t, h, d)
    decay = np.exp(cfg["kda_lower_bound"] * sigmoid(np.exp(w(p + "A_log").reshape(h, 1)) * steps))
    state, out = np.zeros((h, d, d)), np.zeros_like(v)  # keys, values
    for i in range(t):
        state = state * decay[i][:, :, None]
        known = np.einsum("hkv,hk->hv", state, k[i])
        state = state + np.einsum("hk,hv->hkv", k[i], rate[i][:, None] * (v[i] - known))
        out[i] = np.einsum("hkv,hk->hv", state, q[i])
    gate = sigmoid(lin(x, "g")).reshape(t, h, d)
    return lin((rms_norm(out, w(p + "o_norm.weight"), cfg["rms_norm_eps"]) * gate).reshape(t, -1), "o")


def latent_attention(cfg, w, p, x, n_ctx):
    n_heads, rank, nope, rot, value = latent.sizes(cfg)
    t, lin = x.shape[0], lambda y, key: linear(y, w(p + key + ".weight"))
    freq, mscale = rope_frequencies(cfg, rot, n_ctx)
    if cfg["q_lora_rank"]:
        q = lin(rms_norm(lin(x, "q_a_proj"), w(p + "q_a_layernorm.weight"), latent.LATENT_EPS), "q_b_proj").reshape(t, n_heads, nope + rot)
    else:
        q = lin(x, "q_proj").reshape(t, n_heads, nope + rot)
    both = lin(x, "kv_a_proj_with_mqa")
    kv = lin(rms_norm(both[:, :rank], w(p + "kv_a_layernorm.weight"), latent.LATENT_EPS), "kv_b_proj").reshape(t, n_heads, nope + value)
    q = np.concatenate([q[..., :nope], rotate_neighbours(q[..., nope:], freq, mscale)], axis=-1)
    k_rot = np.repeat(rotate_neighbours(both[:, None, rank:], freq, mscale), n_heads, axis=1)
    k = np.concatenate([kv[..., :nope], k_rot], axis=-1)
    width = max(nope + rot, value)
    wide = lambda y: np.concatenate([y, np.zeros((t, n_heads, width - y.shape[2]))], axis=-1)
    a = attention(wide(q), wide(k), wide(kv[..., nope:]), 1 / math.sqrt(nope + rot)).reshape(t, n_heads, width)[..., :value]
    return lin((a * sigmoid(lin(x, "g_proj"))[..., None]).reshape(t, -1), "dense")


def block(w, p, x, most):
    """most: what SiLU of the gate is at most, and up on either side; 0: anything."""
    gate, up, down = (w(p + m + ".weight") for m in PARTS)
    g, u = silu(linear(x, gate)), linear(x, up)
    if most:
        g, u = np.minimum(g, most), np.clip(u, -most, most)
    return linear(g * u, down)


def routed(cfg, w, p, x, i):
    n, groups = cfg["num_experts"], cfg["n_group"]
    share = sigmoid(linear(x, w(p + "gate.weight")))
    choice = share + w(p + "gate.expert_bias")
    of_group = choice.reshape(-1, groups, n // groups)
    best_two = np.sort(of_group, axis=2)[..., -2:].sum(axis=2)
    kept = np.argsort(-best_two, axis=1, kind="stable")[:, : cfg["topk_group"]]
    weights = np.zeros_like(share)
    for t in range(x.shape[0]):
        allowed = np.full((groups, n // groups), -np.inf)
        allowed[kept[t]] = of_group[t, kept[t]]
        chosen = np.argsort(-allowed.reshape(-1), kind="stable")[: cfg["num_experts_per_tok"]]
        weights[t, chosen] = share[t, chosen] / share[t, chosen].sum() * cfg["routed_scaling_factor"]
    most = [(cfg.get(f"{whose}_swiglu_limit_list") or [0] * (i + 1))[i] for whose in ("expert", "share_expert")]
    y = block(w, p + "shared_experts.", x, most[1])
    for e in range(n):
        y = y + weights[:, e : e + 1] * block(w, f"{p}experts.{e}.", x, most[0])
    return y


def forward(cfg, w, ids, n_ctx):
    eps, x = cfg["rms_norm_eps"], w("model.word_embeddings.weight")[ids]
    for i in range(cfg["num_hidden_layers"]):
        p = f"model.layers.{i}."
        h = rms_norm(x, w(p + "input_layernorm.weight"), eps)
        x = x + (delta_attention(cfg, w, p + "attention.", h) if recurs(cfg, i) else latent_attention(cfg, w, p + "attention.", h, n_ctx))
        h = rms_norm(x, w(p + "post_attention_layernorm.weight"), eps)
        x = x + (block(w, p + "mlp.", h, 0) if i < cfg["first_k_dense_replace"] else routed(cfg, w, p + "mlp.", h, i))
    return linear(rms_norm(x, w("model.norm.weight"), eps), w("lm_head.weight"))


FORWARD.update({f: forward for f in FAMILIES})


def gguf(cfg, tensors, name, widen=False):
    """(meta, tensors), as converters write them: layers whose KV heads are none are delta attention, and A is above 0. Some call the products of
    decays and gates by the first of Kimi's two, others by neither: a case whose name ends in "plain" has these."""
    n_heads, rank, nope, rot, value = latent.sizes(cfg)
    further = cfg["num_nextn_predict_layers"]
    low, layers = "" if name.endswith("plain") else "_a", range(cfg["num_hidden_layers"] + further)
    meta = {"general.architecture": "bailingmoe3", "general.name": name, "tokenizer.ggml.model": "none"}
    said = [("context_length", cfg["max_position_embeddings"]), ("embedding_length", cfg["hidden_size"]), ("block_count", len(layers)),
            ("feed_forward_length", cfg["intermediate_size"]), ("attention.head_count", n_heads),
            ("attention.head_count_kv", [0 if recurs(cfg, i) else 1 for i in layers]),
            ("attention.layer_norm_rms_epsilon", cfg["rms_norm_eps"]), ("rope.freq_base", float(cfg["rope_theta"])), ("rope.dimension_count", rot),
            ("vocab_size", cfg["vocab_size"]), ("attention.kv_lora_rank", rank), ("attention.key_length", rank + rot),
            ("attention.value_length", cfg["head_dim"]), ("attention.key_length_mla", nope + rot), ("attention.value_length_mla", value),
            ("ssm.conv_kernel", cfg["short_conv_kernel_size"]), ("kda.head_dim", cfg["head_dim"]), ("kda.safe_gate", True),
            ("kda.gate_lower_bound", float(cfg["kda_lower_bound"])), ("expert_count", cfg["num_experts"]),
            ("expert_used_count", cfg["num_experts_per_tok"]), ("expert_group_count", cfg["n_group"]), ("expert_group_used_count", cfg["topk_group"]),
            ("expert_feed_forward_length", cfg["moe_intermediate_size"]),
            ("expert_shared_feed_forward_length", cfg["moe_shared_expert_intermediate_size"]), ("expert_shared_count", cfg["num_shared_experts"]),
            ("leading_dense_block_count", cfg["first_k_dense_replace"]), ("expert_weights_scale", cfg["routed_scaling_factor"]),
            ("expert_weights_norm", True), ("expert_gating_func", 2)]
    if further:
        said.append(("nextn_predict_layers", further))
    if cfg["q_lora_rank"]:
        said.append(("attention.q_lora_rank", cfg["q_lora_rank"]))
    for key, tail in (("expert_swiglu_limit_list", "swiglu_clamp_exp"), ("share_expert_swiglu_limit_list", "swiglu_clamp_shexp")):
        if cfg.get(key):
            said.append((tail, [float(v) for v in cfg[key]]))
    meta.update({f"bailingmoe3.{tail}": v for tail, v in said})
    parts = {"input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm", "attention.q_proj": "attn_q", "attention.k_proj": "attn_k",
             "attention.v_proj": "attn_v", "attention.o_proj": "attn_output", "attention.dense": "attn_output", "attention.f_proj": "ssm_f" + low,
             "attention.b_proj": "ssm_beta", "attention.o_norm": "ssm_norm", "attention.q_a_proj": "attn_q_a",
             "attention.q_a_layernorm": "attn_q_a_norm", "attention.q_b_proj": "attn_q_b", "attention.kv_a_proj_with_mqa": "attn_kv_a_mqa",
             "attention.kv_a_layernorm": "attn_kv_a_norm", "mlp.gate": "ffn_gate_inp", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
             "mlp.down_proj": "ffn_down", "mlp.shared_experts.gate_proj": "ffn_gate_shexp", "mlp.shared_experts.up_proj": "ffn_up_shexp",
             "mlp.shared_experts.down_proj": "ffn_down_shexp", "enorm": "nextn.enorm", "hnorm": "nextn.hnorm", "eh_proj": "nextn.eh_proj",
             "final_layernorm": "layer_output_norm"}
    out, experts = {}, {}
    put = lambda key, v, dtype: out.__setitem__(key, Stored(v, "F32" if v.ndim == 1 or widen else dtype))
    for key, t in tensors.items():
        v = t.values
        if not key.startswith("model.layers."):
            put({"model.word_embeddings.weight": "token_embd", "model.norm.weight": "output_norm", "lm_head.weight": "output"}[key] + ".weight", v, t.dtype)
            continue
        layer, part = key[len("model.layers.") :].split(".", 1)
        b = f"blk.{layer}."
        if ".experts." in part:
            experts.setdefault(f"{b}ffn_{part.split('.')[-2].split('_')[0]}_exps.weight", []).append(t)
        elif "_conv1d" in part:
            put(f"{b}ssm_conv1d_{part[len('attention.')]}.weight", v.reshape(1, v.shape[0], 1, -1), "F32")
        elif part == "attention.A_log":
            put(b + "ssm_a", np.exp(v).reshape(-1, 1), "F32")
        elif part == "attention.dt_bias":
            put(b + "ssm_dt.bias", v, "F32")
        elif part == "mlp.gate.expert_bias":
            put(b + "exp_probs_b.bias", v, "F32")
        elif part == "attention.g_proj.weight":
            put(b + (f"ssm_g{low}" if recurs(cfg, int(layer)) else "attn_gate") + ".weight", v, t.dtype)
        elif part == "attention.kv_b_proj.weight":
            v = v.reshape(n_heads, nope + value, rank)
            put(b + "attn_k_b.weight", v[:, :nope].swapaxes(1, 2), t.dtype)
            put(b + "attn_v_b.weight", v[:, nope:], t.dtype)
        else:
            put(f"{b}{parts[part.removesuffix('.weight')]}.weight", v, t.dtype)
    for new, each in experts.items():
        out[new] = Stored(np.stack([t.values for t in each]), "F32" if widen else each[0].dtype)
    return meta, out


def words(layers, group, **more):
    """As published, but for sizes; what says nothing is among it."""
    return {**config(
        "BailingMoeV3ForCausalLM", "bailing_hybrid", num_hidden_layers=layers, layer_group_size=group, hidden_act="silu", rms_norm_eps=1e-5, head_dim=16,
        rope_theta=6000000, rope_interleave=True, rope_scaling=None, partial_rotary_factor=0.5, rotary_dim=8, q_lora_rank=24, kv_lora_rank=32,
        qk_nope_head_dim=16, qk_rope_head_dim=8, qk_head_dim=24, v_head_dim=32, gated_attention_proj_granularity_type="head_wise",
        short_conv_kernel_size=4, kda_safe_gate=True, kda_lower_bound=-5, no_kda_lora=True, use_kda_lora=False, linear_silu=True, use_qk_norm=True,
        group_norm_size=1, num_kv_heads_for_linear_attn=0, use_mla_nope=False, use_nGPT=False, up_proj_norm=False, value_norm=False,
        scale_router_input=False, num_experts=12, num_experts_per_tok=3, num_shared_experts=1, moe_intermediate_size=16,
        moe_shared_expert_intermediate_size=24, first_k_dense_replace=1, n_group=4, topk_group=2, norm_topk_prob=True, routed_scaling_factor=2.5,
        score_function="sigmoid", scoring_func="sigmoid", topk_method="noaux_tc", moe_router_enable_expert_bias=True, router_dtype="fp32", seq_aux=True,
        use_bias=False, use_qkv_bias=False, embedding_dropout=0.0, output_dropout=0.0, mtp_loss_scaling_factor=0, mtp_use_kda=False,
        max_window_layers=20, num_nextn_predict_layers=0, expert_swiglu_limit_list=None, share_expert_swiglu_limit_list=None,
        tie_word_embeddings=False), "num_key_value_heads": 4, **more}


SHOWS = [dict(drop="f_proj.weight"), dict(drop="g_proj.weight"), dict(drop="dt_bias"), dict(drop="A_log"), dict(drop="b_proj.weight"),
         dict(drop="k_conv1d.weight"), dict(drop="o_norm.weight"), dict(drop="gate.expert_bias"), dict(kda_lower_bound=-4), dict(rope_theta=1e6),
         dict(n_group=1), dict(topk_group=1), dict(num_experts_per_tok=4), dict(routed_scaling_factor=1.0)]
CASES = {
    "bailingmoe3": dict(dtype="BF16", vectors="BF16", n_tok=300, n_ctx=320, gguf=True, cfg=words(4, 4), shows=SHOWS),
    # queries at once, a layer that is left over and one that guesses further, two shared experts, clamps, the other names
    "bailingmoe3-plain": dict(dtype="F16", vectors="F16", n_tok=40, gguf=True, cfg=words(
        4, 3, q_lora_rank=None, num_nextn_predict_layers=1, num_shared_experts=2, expert_swiglu_limit_list=[0, 0, 1, 0.5, 0], share_expert_swiglu_limit_list=[0, 0.5, 0.75, 1, 0]),
        shows=[*SHOWS, dict(expert_swiglu_limit_list=None), dict(share_expert_swiglu_limit_list=None),
               dict(expert_swiglu_limit_list=[0, 0, 1, 0, 0])]),
}
