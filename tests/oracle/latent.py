"""Latent attention (MLA) for the oracle: DeepSeek 2 and 3, GLM-4.7-Flash, Mistral 4 and MiniCPM3, in float64 from the published definitions. Keys and
values of every head are made of the latents, position by position: the plain form, which the engine never computes."""
import math

import numpy as np

from families import config, rotate_neighbours, routed
from files import Stored
from reference import ACTIVATIONS, FORWARD, attention, gated, linear, rms_norm, rope_frequencies, rotate

FAMILIES = ("deepseek_v2", "deepseek_v3", "glm4_moe_lite", "mistral4", "minicpm3")
NAMES = dict(router="mlp.gate", expert="mlp.experts.{}.", shared="mlp.shared_experts.", expert_parts=("gate_proj", "up_proj", "down_proj"))
LATENT_EPS = 1e-6  # of the norms of latents, which are made without the model's own


def mixture(cfg):
    if "n_routed_experts" not in cfg:
        return None
    return dict(n=cfg["n_routed_experts"], used=cfg["num_experts_per_tok"], size=cfg["moe_intermediate_size"], dense=cfg["first_k_dense_replace"],
                shared=cfg["moe_intermediate_size"] * cfg["n_shared_experts"], gate=False, norm=cfg["norm_topk_prob"],
                bias="mlp.gate.e_score_correction_bias" if sigmoid(cfg) else None, scale=cfg["routed_scaling_factor"])


def sigmoid(cfg):
    return cfg.get("scoring_func", "softmax" if cfg["model_type"] in ("deepseek_v2", "mistral4") else "sigmoid") == "sigmoid"


def sizes(cfg):
    return cfg["num_attention_heads"], cfg["kv_lora_rank"], cfg["qk_nope_head_dim"], cfg["qk_rope_head_dim"], cfg["v_head_dim"]


def checkpoint(name, cfg, dtype, vector_dtype, uniform):
    c, f, v = cfg["hidden_size"], cfg["intermediate_size"], cfg["vocab_size"]
    n_heads, rank, nope, rot, value = sizes(cfg)
    q_rank, moe, out = cfg.get("q_lora_rank"), mixture(cfg), {}

    def matrix(key, rows, cols, gain=1.0):
        out[key + ".weight"] = Stored(uniform(name + key, (rows, cols)) * gain * (3 / cols) ** 0.5, dtype)

    def norm(key, size=c, centre=1.0):
        out[key + ".weight"] = Stored(np.round((centre + 0.5 * uniform(name + key, (size,))) * 128) / 128, vector_dtype)

    def block(p, size):
        matrix(p + "gate_proj", size, c, 1.5)
        matrix(p + "up_proj", size, c, 1.5)
        matrix(p + "down_proj", c, size)

    matrix("model.embed_tokens", v, c, c**0.5 / 2)
    for i in range(cfg["num_hidden_layers"]):
        p = f"model.layers.{i}."
        norm(p + "input_layernorm")
        norm(p + "post_attention_layernorm")
        a = p + "self_attn."
        if q_rank:
            matrix(a + "q_a_proj", q_rank, c)
            norm(a + "q_a_layernorm", q_rank)
            matrix(a + "q_b_proj", n_heads * (nope + rot), q_rank, 1.7)
        else:
            matrix(a + "q_proj", n_heads * (nope + rot), c, 1.7)
        matrix(a + "kv_a_proj_with_mqa", rank + rot, c, 1.7)
        norm(a + "kv_a_layernorm", rank)
        matrix(a + "kv_b_proj", n_heads * (nope + value), rank, 1.3)
        matrix(a + "o_proj", c, n_heads * value)
        if moe and i >= moe["dense"]:
            matrix(p + "mlp.gate", moe["n"], c, 3.0)
            if moe["bias"]:
                out[p + moe["bias"]] = Stored(uniform(name + p + "bias", (moe["n"],)) * 0.25, "F32")
            for e in range(moe["n"]):
                block(p + NAMES["expert"].format(e), moe["size"])
            block(p + NAMES["shared"], moe["shared"])
        else:
            block(p + "mlp.", f)
    norm("model.norm")
    if not cfg.get("tie_word_embeddings"):
        matrix("lm_head", v, c)
    return stacked(out) if cfg["model_type"] == "mistral4" else out


def stacked(tensors):
    """Mistral 4's folders hold the experts of a layer as one tensor, gate and up one after the other."""
    out, parts = {}, {}
    for key, t in tensors.items():
        if ".experts." not in key:
            out[key] = t
            continue
        where, part = key.split(".experts.")
        parts.setdefault((where, part.split(".")[1]), []).append(t)
    for (where, part), each in parts.items():
        if part == "down_proj":
            out[where + ".experts.down_proj"] = Stored(np.stack([t.values for t in each]), each[0].dtype)
        if part == "gate_proj":
            both = [np.concatenate([g.values, u.values]) for g, u in zip(each, parts[where, "up_proj"])]
            out[where + ".experts.gate_up_proj"] = Stored(np.stack(both), each[0].dtype)
    return out


def expert_by_expert(w):
    """The weights as those of stacked experts, each by a name of its own."""

    def get(key):
        if ".experts." not in key:
            return w(key)
        where, part = key.split(".experts.")
        e, name = int(part.split(".")[0]), part.split(".")[1]
        if name == "down_proj":
            return w(where + ".experts.down_proj")[e]
        gate, up = np.split(w(where + ".experts.gate_up_proj")[e], 2)
        return gate if name == "gate_proj" else up

    return get


def growth(factor, m):
    return 1 + 0.1 * m * math.log(factor)


def rope_of(cfg, n_ctx):
    """Frequencies, factor on cos and sin, factor on scores."""
    s = cfg.get("rope_parameters") or cfg.get("rope_scaling") or {}
    freq, mscale = rope_frequencies(cfg, cfg["qk_rope_head_dim"], n_ctx)
    if s.get("type") != "yarn":
        return freq, mscale, 1.0
    every = s.get("mscale_all_dim", 0)
    return freq, growth(s["factor"], s.get("mscale", 1)) / growth(s["factor"], every), growth(s["factor"], every) ** 2


def mix(cfg, w, p, h, n_ctx):
    """Attention's block of a layer for rows h."""
    n_heads, rank, nope, rot, value = sizes(cfg)
    t = h.shape[0]
    lin = lambda x, key: linear(x, w(p + key + ".weight"))
    freq, mscale, sharper = rope_of(cfg, n_ctx)
    turn = rotate if cfg["model_type"] == "minicpm3" else rotate_neighbours
    if cfg.get("q_lora_rank"):
        q = lin(rms_norm(lin(h, "q_a_proj"), w(p + "q_a_layernorm.weight"), LATENT_EPS), "q_b_proj")
    else:
        q = lin(h, "q_proj")
    q = q.reshape(t, n_heads, nope + rot)
    both = lin(h, "kv_a_proj_with_mqa")
    latent = rms_norm(both[:, :rank], w(p + "kv_a_layernorm.weight"), LATENT_EPS)
    kv = lin(latent, "kv_b_proj").reshape(t, n_heads, nope + value)
    k_rot = np.repeat(turn(both[:, None, rank:], freq, mscale), n_heads, axis=1)
    q = np.concatenate([q[..., :nope], turn(q[..., nope:], freq, mscale)], axis=-1)
    s = cfg.get("rope_parameters") or {}
    if "llama_4_scaling_beta" in s:  # queries grow with their position
        steps = np.floor(np.arange(t) / s["original_max_position_embeddings"])
        q = q * (1 + s["llama_4_scaling_beta"] * np.log(1 + steps))[:, None, None]
    k = np.concatenate([kv[..., :nope], k_rot], axis=-1)
    width = max(nope + rot, value)
    v = np.concatenate([kv[..., nope:], np.zeros((t, n_heads, width - value))], axis=-1)
    wide = lambda x: np.concatenate([x, np.zeros((t, n_heads, width - nope - rot))], axis=-1)
    a = attention(wide(q), wide(k), v, sharper / math.sqrt(nope + rot)).reshape(t, n_heads, width)[..., :value]
    return lin(a.reshape(t, -1), "o_proj")


def forward(cfg, w, ids, n_ctx):
    eps, act, moe = cfg["rms_norm_eps"], ACTIVATIONS[cfg["hidden_act"]], mixture(cfg)
    if cfg["model_type"] == "mistral4":
        w = expert_by_expert(w)
    depth = cfg["scale_depth"] / math.sqrt(cfg["num_hidden_layers"]) if "scale_depth" in cfg else 1.0
    x = w("model.embed_tokens.weight")[ids] * cfg.get("scale_emb", 1.0)
    for i in range(cfg["num_hidden_layers"]):
        p = f"model.layers.{i}."
        x = x + depth * mix(cfg, w, p + "self_attn.", rms_norm(x, w(p + "input_layernorm.weight"), eps), n_ctx)
        h = rms_norm(x, w(p + "post_attention_layernorm.weight"), eps)
        if moe and i >= moe["dense"]:
            y = routed(cfg, w, p, NAMES, h, moe, act)
        else:
            y = gated(h, *(w(p + f"mlp.{m}_proj.weight") for m in ("gate", "up", "down")), act)
        x = x + depth * y
    head = w("lm_head.weight")
    x = rms_norm(x, w("model.norm.weight"), eps) * cfg.get("dim_model_base", cfg["hidden_size"]) / cfg["hidden_size"]
    return linear(x, w("model.embed_tokens.weight") if head is None else head)


FORWARD.update({f: forward for f in FAMILIES})


def gguf(cfg, tensors, name, widen=False):
    """(meta, tensors). In the newer files what makes keys lies turned, head by head, apart from what makes values; in the older ones both are
    the one tensor that folders have, and sizes are those of heads. `joint`, a word of the case, asks for these."""
    n_heads, rank, nope, rot, value = sizes(cfg)
    moe, joint = mixture(cfg), name.endswith("joint") or cfg["model_type"] == "minicpm3"
    arch = cfg["model_type"] if cfg["model_type"] in ("minicpm3", "mistral4") else "deepseek2"
    meta = {"general.architecture": arch, "general.name": name, "tokenizer.ggml.model": "none"}
    say = lambda tail, v: meta.__setitem__(f"{arch}.{tail}", v)
    say("context_length", cfg["max_position_embeddings"])
    say("embedding_length", cfg["hidden_size"])
    say("block_count", cfg["num_hidden_layers"])
    say("feed_forward_length", cfg["intermediate_size"])
    say("attention.head_count", n_heads)
    say("attention.head_count_kv", n_heads if joint else 1)
    say("attention.layer_norm_rms_epsilon", cfg["rms_norm_eps"])
    say("rope.freq_base", cfg.get("rope_parameters", cfg)["rope_theta"])
    say("rope.dimension_count", rot)
    say("vocab_size", cfg["vocab_size"])
    if cfg.get("q_lora_rank"):
        say("attention.q_lora_rank", cfg["q_lora_rank"])
    say("attention.kv_lora_rank", rank)
    say("attention.key_length", nope + rot if joint else rank + rot)
    say("attention.value_length", value if joint else rank)
    if not joint:
        say("attention.key_length_mla", nope + rot)
        say("attention.value_length_mla", value)
    out, experts = {}, {}
    put = lambda key, v, dtype: out.__setitem__(key, Stored(v, "F32" if v.ndim == 1 or widen else dtype))
    s = cfg.get("rope_parameters") or cfg.get("rope_scaling") or {}
    if "llama_4_scaling_beta" in s:
        say("attention.temperature_scale", s["llama_4_scaling_beta"])
        say("attention.temperature_length", s["original_max_position_embeddings"])
    if s.get("type") == "yarn":
        say("rope.scaling.type", "yarn")
        say("rope.scaling.factor", s["factor"])
        say("rope.scaling.original_context_length", s["original_max_position_embeddings"])
        say("rope.scaling.yarn_log_multiplier", 0.1 * s["mscale_all_dim"])
    if s.get("type") == "longrope":
        out["rope_factors_long.weight"] = Stored(np.array(s["long_factor"]), "F32")
        out["rope_factors_short.weight"] = Stored(np.array(s["short_factor"]), "F32")
    if moe:
        say("expert_group_count", cfg["n_group"])
        say("expert_group_used_count", cfg["topk_group"])
        say("expert_count", moe["n"])
        say("expert_used_count", moe["used"])
        say("expert_feed_forward_length", moe["size"])
        say("expert_shared_count", cfg["n_shared_experts"])
        say("leading_dense_block_count", moe["dense"])
        say("expert_weights_scale", moe["scale"])
        say("expert_weights_norm", moe["norm"])
        if sigmoid(cfg):
            say("expert_gating_func", 2)
    parts = {"input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm", "self_attn.q_proj": "attn_q", "self_attn.q_a_proj": "attn_q_a",
             "self_attn.q_a_layernorm": "attn_q_a_norm", "self_attn.q_b_proj": "attn_q_b", "self_attn.kv_a_proj_with_mqa": "attn_kv_a_mqa",
             "self_attn.kv_a_layernorm": "attn_kv_a_norm", "self_attn.kv_b_proj": "attn_kv_b", "self_attn.o_proj": "attn_output",
             "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down", "mlp.gate": "ffn_gate_inp",
             "mlp.shared_experts.gate_proj": "ffn_gate_shexp", "mlp.shared_experts.up_proj": "ffn_up_shexp",
             "mlp.shared_experts.down_proj": "ffn_down_shexp"}
    for key, t in tensors.items():
        v = t.values
        if not key.startswith("model.layers."):
            put({"model.embed_tokens.weight": "token_embd", "model.norm.weight": "output_norm", "lm_head.weight": "output"}[key] + ".weight", v, t.dtype)
            continue
        layer, part = key[len("model.layers.") :].split(".", 1)
        if part == "mlp.experts.gate_up_proj" and name.endswith("apart"):
            for what, half in zip(("gate", "up"), np.split(v, 2, axis=1)):
                put(f"blk.{layer}.ffn_{what}_exps.weight", half, t.dtype)
        elif part in ("mlp.experts.gate_up_proj", "mlp.experts.down_proj"):
            put(f"blk.{layer}.ffn_{part[len('mlp.experts.') : -len('_proj')]}_exps.weight", v, t.dtype)
        elif ".experts." in part:
            experts.setdefault(f"blk.{layer}.ffn_{part.split('.')[-2].split('_')[0]}_exps.weight", []).append(t)
        elif part == "mlp.gate.e_score_correction_bias":
            put(f"blk.{layer}.exp_probs_b.bias", v, "F32")
        elif part == "self_attn.kv_b_proj.weight" and not joint:
            v = v.reshape(n_heads, nope + value, rank)
            put(f"blk.{layer}.attn_k_b.weight", v[:, :nope].swapaxes(1, 2), t.dtype)
            put(f"blk.{layer}.attn_v_b.weight", v[:, nope:], t.dtype)
        else:
            put(f"blk.{layer}.{parts[part.removesuffix('.weight')]}.weight", v, t.dtype)
    for new, each in experts.items():
        out[new] = Stored(np.stack([t.values for t in each]), "F32" if widen else each[0].dtype)
    return meta, out


# ---- cases --------------------------------------------------------------------------------------------

MOE = dict(n_routed_experts=6, num_experts_per_tok=2, n_shared_experts=2, moe_intermediate_size=16, first_k_dense_replace=1, moe_layer_freq=1,
           n_group=1, topk_group=1, ep_size=1)
COMMON = dict(hidden_act="silu", rms_norm_eps=1e-5, attention_bias=False, num_hidden_layers=3, kv_lora_rank=32, tie_word_embeddings=False)
YARN = {"type": "yarn", "factor": 8.0, "mscale": 0.707, "mscale_all_dim": 0.707, "beta_fast": 32, "beta_slow": 1, "original_max_position_embeddings": 32}
M4 = {k: v for k, v in MOE.items() if k not in ("moe_layer_freq", "ep_size")}
LONG = {**YARN, "rope_type": "yarn", "rope_theta": 10000.0, "mscale": 1.0, "mscale_all_dim": 1.0, "original_max_position_embeddings": 16,
        "max_position_embeddings": 512, "partial_rotary_factor": 0.333, "llama_4_scaling_beta": 0.2}
CASES = {
    "deepseek2": dict(dtype="BF16", vectors="BF16", n_tok=300, n_ctx=320, gguf=True, cfg={**config(
        "DeepseekV2ForCausalLM", "deepseek_v2", **COMMON, **MOE, num_attention_heads=4, q_lora_rank=None, qk_nope_head_dim=16, qk_rope_head_dim=8,
        v_head_dim=32, scoring_func="softmax", topk_method="greedy", norm_topk_prob=False, routed_scaling_factor=1.0, rope_scaling=YARN,
        aux_loss_alpha=0.001, seq_aux=True), "num_key_value_heads": 4},
        shows=[dict(rope_scaling={**YARN, "mscale": 1.0}), dict(rope_scaling={**YARN, "mscale": 1.0, "mscale_all_dim": 1.0}), dict(num_experts_per_tok=3), dict(drop="kv_a_layernorm.weight")]),
    "deepseek3-joint": dict(dtype="F16", vectors="F16", n_tok=40, gguf=True, cfg={**config(
        "DeepseekV3ForCausalLM", "deepseek_v3", **COMMON, **{**MOE, "n_group": 3, "topk_group": 2}, num_attention_heads=10, q_lora_rank=16, qk_nope_head_dim=16, qk_rope_head_dim=8,
        v_head_dim=32, scoring_func="sigmoid", topk_method="noaux_tc", norm_topk_prob=True, routed_scaling_factor=2.5, num_nextn_predict_layers=1,
        rope_scaling={**YARN, "mscale": 1.0, "mscale_all_dim": 1.0}), "num_key_value_heads": 10},
        shows=[dict(rope_theta=1e6), dict(drop="q_a_layernorm.weight"), dict(drop="e_score_correction_bias"), dict(routed_scaling_factor=1.0)]),
    "glm4-moe-lite": dict(dtype="BF16", vectors="BF16", n_tok=40, gguf=True, cfg={**config(
        "Glm4MoeLiteForCausalLM", "glm4_moe_lite", **COMMON, **{**MOE, "n_shared_experts": 1}, num_attention_heads=5, q_lora_rank=24,
        qk_nope_head_dim=12, qk_rope_head_dim=8, qk_head_dim=20, v_head_dim=64, topk_method="noaux_tc", norm_topk_prob=True, routed_scaling_factor=1.8,
        num_nextn_predict_layers=1, partial_rotary_factor=1.0, rope_interleave=True, rope_scaling=None), "num_key_value_heads": 5},
        shows=[dict(rope_theta=1e6), dict(num_experts_per_tok=3), dict(drop="q_a_layernorm.weight"), dict(drop="e_score_correction_bias")]),
    "mistral4": dict(dtype="BF16", vectors="BF16", n_tok=40, gguf=True, cfg={**{k: v for k, v in config(
        "Mistral4ForCausalLM", "mistral4", **COMMON, **{**M4, "n_shared_experts": 1}, num_attention_heads=4, q_lora_rank=16, qk_nope_head_dim=16,
        qk_rope_head_dim=8, v_head_dim=32, norm_topk_prob=True, routed_scaling_factor=1.0, rope_interleave=True, rope_parameters=LONG).items()
        if k != "rope_theta"}, "num_key_value_heads": 4},
        shows=[dict(num_experts_per_tok=3), dict(norm_topk_prob=False), dict(rope_parameters={**LONG, "llama_4_scaling_beta": 0.0}),
               dict(rope_parameters={**LONG, "mscale_all_dim": 0.5}), dict(drop="shared_experts.down_proj.weight")]),
    "mistral4-apart": dict(dtype="F16", vectors="F16", n_tok=40, gguf=True, gguf_only=True, cfg={**{k: v for k, v in config(  # gate and up as tensors of their own
        "Mistral4ForCausalLM", "mistral4", **COMMON, **{**M4, "n_shared_experts": 2}, num_attention_heads=4, q_lora_rank=None, qk_nope_head_dim=16,
        qk_rope_head_dim=8, v_head_dim=32, norm_topk_prob=True, routed_scaling_factor=2.0, rope_interleave=True, rope_parameters=LONG).items()
        if k != "rope_theta"}, "num_key_value_heads": 4},
        shows=[dict(num_experts_per_tok=3), dict(routed_scaling_factor=1.0)]),
    "minicpm3": dict(dtype="BF16", vectors="BF16", n_tok=40, cfg={**config(
        "MiniCPM3ForCausalLM", "minicpm3", **COMMON, num_attention_heads=4, q_lora_rank=16, qk_nope_head_dim=16, qk_rope_head_dim=8, v_head_dim=32,
        scale_emb=12, scale_depth=1.4, dim_model_base=16, original_max_position_embeddings=512, rope_scaling={
            "type": "longrope", "original_max_position_embeddings": 512, "long_factor": [1.0, 1.5, 2.0, 3.0], "short_factor": [1.0, 1.1, 1.2, 1.4]}),
        "num_key_value_heads": 4}, shows=[dict(rope_scaling=None), dict(scale_emb=1.0), dict(dim_model_base=32), dict(scale_depth=2.0)]),
    "minicpm3-gguf": dict(dtype="F16", vectors="F16", n_tok=40, gguf=True, gguf_only=True, cfg={**config(  # whose files say no scales
        "MiniCPM3ForCausalLM", "minicpm3", **COMMON, num_attention_heads=4, q_lora_rank=16, qk_nope_head_dim=16, qk_rope_head_dim=8, v_head_dim=32,
        scale_emb=12, scale_depth=1.4, dim_model_base=256, original_max_position_embeddings=512, rope_scaling={
            "type": "longrope", "original_max_position_embeddings": 512, "long_factor": [1.0, 1.5, 2.0, 3.0], "short_factor": [1.0, 1.1, 1.2, 1.4]}),
        "num_key_value_heads": 4, "v_head_dim": 32, "hidden_size": 128}, shows=[dict(rope_scaling=None), dict(scale_emb=1.0)]),
}
