"""Layers of one block for the oracle: Nemotron-H, dense and with experts, and Mamba 2 alone, in float64 from its published definition."""
import math

import numpy as np

from families import config
from files import Stored
from reference import FORWARD, attention, heads, linear, mamba2, relu, rms_norm

FAMILIES = ("nemotron_h", "mamba2")


def as_nemotron(cfg):
    """Mamba 2 alone, in Nemotron-H's words."""
    if cfg["model_type"] != "mamba2":
        return cfg
    return {**cfg, "mamba_num_heads": cfg["num_heads"], "mamba_head_dim": cfg["head_dim"], "ssm_state_size": cfg["state_size"],
            "norm_eps": cfg["layer_norm_epsilon"], "hybrid_override_pattern": "M" * cfg["num_hidden_layers"], "num_attention_heads": 0,
            "num_key_value_heads": 0}


def state_space(cfg):
    """The words that reference.mamba2 knows."""
    return dict(mamba_n_heads=cfg["mamba_num_heads"], mamba_d_state=cfg["ssm_state_size"], mamba_n_groups=cfg["n_groups"], rms_norm_eps=cfg["norm_eps"])


def checkpoint(name, cfg, dtype, vector_dtype, uniform):
    cfg = as_nemotron(cfg)
    c, v, out = cfg["hidden_size"], cfg["vocab_size"], {}
    n_heads, n_kv, d = cfg["num_attention_heads"], cfg["num_key_value_heads"], cfg["head_dim"]
    n_h, groups, states = cfg["mamba_num_heads"], cfg["n_groups"], cfg["ssm_state_size"]
    inner = n_h * cfg["mamba_head_dim"]
    channels = inner + 2 * groups * states

    def matrix(key, rows, cols, gain=1.0):
        out[key + ".weight"] = Stored(uniform(name + key, (rows, cols)) * gain * (3 / cols) ** 0.5, dtype)

    def vector(key, n, centre, spread, as_dtype=vector_dtype):
        out[key] = Stored(np.round((centre + spread * uniform(name + key, (n,))) * 128) / 128, as_dtype)

    def block(p, size):
        matrix(p + "up_proj", size, c, 1.5)
        matrix(p + "down_proj", c, size, 2.0)

    matrix("backbone.embeddings", v, c, c**0.5 / 2)
    for i, kind in enumerate(cfg["hybrid_override_pattern"]):
        p = f"backbone.layers.{i}."
        vector(p + "norm.weight", c, 1.0, 0.5)
        p += "mixer."
        if kind == "M":
            matrix(p + "in_proj", inner + channels + n_h, c, 1.5)
            matrix(p + "out_proj", c, inner)
            out[p + "conv1d.weight"] = Stored(uniform(name + p + "conv", (channels, 1, cfg["conv_kernel"])), dtype)
            vector(p + "conv1d.bias", channels, 0.0, 0.5)
            vector(p + "A_log", n_h, 0.0, 0.5)
            vector(p + "D", n_h, 1.0, 0.5)
            vector(p + "dt_bias", n_h, -2.0, 1.0)
            vector(p + "norm.weight", inner, 1.0, 0.5)
        elif kind == "*":
            for m, n in zip("qkv", (n_heads, n_kv, n_kv)):
                matrix(p + m + "_proj", n * d, c, 1.0 if m == "v" else 1.7)
            matrix(p + "o_proj", c, n_heads * d)
        elif kind == "-":
            block(p, cfg["intermediate_size"])
        else:
            matrix(p + "gate", cfg["n_routed_experts"], c, 3.0)
            out[p + "gate.e_score_correction_bias"] = Stored(uniform(name + p + "bias", (cfg["n_routed_experts"],)) * 0.25, "F32")
            for e in range(cfg["n_routed_experts"]):
                block(p + f"experts.{e}.", cfg["moe_intermediate_size"])
            block(p + "shared_experts.", cfg["moe_shared_expert_intermediate_size"])
    vector("backbone.norm_f.weight", c, 1.0, 0.5)
    if not cfg["tie_word_embeddings"]:
        matrix("lm_head", v, c)
    return out


def feed(w, p, x):
    return linear(relu(linear(x, w(p + "up_proj.weight"))) ** 2, w(p + "down_proj.weight"))


def routed(cfg, w, p, x):
    share = 1 / (1 + np.exp(-linear(x, w(p + "gate.weight"))))
    chosen = np.argsort(-(share + w(p + "gate.e_score_correction_bias")), axis=1, kind="stable")[:, : cfg["num_experts_per_tok"]]
    weights = np.zeros_like(share)
    for t in range(x.shape[0]):
        weights[t, chosen[t]] = share[t, chosen[t]]
    if cfg["norm_topk_prob"]:
        weights = weights / weights.sum(axis=1, keepdims=True)
    y = feed(w, p + "shared_experts.", x)
    for e in range(cfg["n_routed_experts"]):
        y = y + weights[:, e : e + 1] * cfg["routed_scaling_factor"] * feed(w, p + f"experts.{e}.", x)
    return y


def forward(cfg, w, ids, n_ctx):
    cfg = as_nemotron(cfg)
    x, n_heads, n_kv, d = w("backbone.embeddings.weight")[ids], cfg["num_attention_heads"], cfg["num_key_value_heads"], cfg["head_dim"]
    for i, kind in enumerate(cfg["hybrid_override_pattern"]):
        p = f"backbone.layers.{i}."
        h = rms_norm(x, w(p + "norm.weight"), cfg["norm_eps"])
        p += "mixer."
        if kind == "M":
            x = x + mamba2(state_space(cfg), w, p, h)
        elif kind == "*":
            q, k, v = (heads(linear(h, w(p + m + "_proj.weight")), n) for m, n in zip("qkv", (n_heads, n_kv, n_kv)))
            x = x + linear(attention(q, k, v, 1 / math.sqrt(d)), w(p + "o_proj.weight"))
        else:
            x = x + (feed(w, p, h) if kind == "-" else routed(cfg, w, p, h))
    head = w("lm_head.weight")
    return linear(rms_norm(x, w("backbone.norm_f.weight"), cfg["norm_eps"]), w("backbone.embeddings.weight") if head is None else head)


FORWARD.update({f: forward for f in FAMILIES})


def gguf(cfg, tensors, name, widen=False):
    """(meta, tensors): which block a layer is, is told by its KV heads and its feed-forward size; decays are the factors they stand for."""
    alone, cfg = cfg["model_type"] == "mamba2", as_nemotron(cfg)
    pattern, moe = cfg["hybrid_override_pattern"], "n_routed_experts" in cfg
    arch = "mamba2" if alone else "nemotron_h_moe" if moe else "nemotron_h"
    n_h, groups = cfg["mamba_num_heads"], cfg["n_groups"]
    meta = {"general.architecture": arch, "general.name": name, "tokenizer.ggml.model": "none"}
    say = lambda tail, v: meta.__setitem__(f"{arch}.{tail}", v)
    say("context_length", 2**20 if alone else cfg["max_position_embeddings"])
    say("embedding_length", cfg["hidden_size"])
    say("block_count", len(pattern))
    say("feed_forward_length", 0 if alone else [(cfg["moe_intermediate_size"] if moe else cfg["intermediate_size"]) if k in "-E" else 0 for k in pattern])
    say("attention.head_count", cfg["num_attention_heads"])
    if not alone:
        say("attention.head_count_kv", [cfg["num_key_value_heads"] if k == "*" else 0 for k in pattern])
        say("attention.key_length", cfg["head_dim"])
        say("attention.value_length", cfg["head_dim"])
    say("attention.layer_norm_rms_epsilon", cfg["norm_eps"])
    if not alone:
        say("rope.dimension_count", cfg["head_dim"])
    say("ssm.conv_kernel", cfg["conv_kernel"])
    say("ssm.state_size", cfg["ssm_state_size"])
    say("ssm.group_count", groups)
    say("ssm.time_step_rank", n_h)
    say("ssm.inner_size", n_h * cfg["mamba_head_dim"])
    if moe:
        say("expert_count", cfg["n_routed_experts"])
        say("expert_used_count", cfg["num_experts_per_tok"])
        say("expert_feed_forward_length", cfg["moe_intermediate_size"])
        say("expert_shared_feed_forward_length", cfg["moe_shared_expert_intermediate_size"])
        say("expert_shared_count", 1)
        say("expert_group_count", 1)
        say("expert_group_used_count", 1)
        say("expert_weights_norm", cfg["norm_topk_prob"])
        say("expert_weights_scale", cfg["routed_scaling_factor"])
    names = {"norm.weight": "attn_norm.weight", "mixer.in_proj.weight": "ssm_in.weight", "mixer.out_proj.weight": "ssm_out.weight",
             "mixer.conv1d.weight": "ssm_conv1d.weight", "mixer.conv1d.bias": "ssm_conv1d.bias", "mixer.A_log": "ssm_a", "mixer.D": "ssm_d",
             "mixer.dt_bias": "ssm_dt.bias", "mixer.norm.weight": "ssm_norm.weight", "mixer.q_proj.weight": "attn_q.weight",
             "mixer.k_proj.weight": "attn_k.weight", "mixer.v_proj.weight": "attn_v.weight", "mixer.o_proj.weight": "attn_output.weight",
             "mixer.up_proj.weight": "ffn_up.weight", "mixer.down_proj.weight": "ffn_down.weight", "mixer.gate.weight": "ffn_gate_inp.weight",
             "mixer.gate.e_score_correction_bias": "exp_probs_b.bias", "mixer.shared_experts.up_proj.weight": "ffn_up_shexp.weight",
             "mixer.shared_experts.down_proj.weight": "ffn_down_shexp.weight"}
    out, experts = {}, {}
    for key, t in tensors.items():
        v = t.values
        whole = {"backbone.embeddings.weight": "token_embd.weight", "backbone.norm_f.weight": "output_norm.weight", "lm_head.weight": "output.weight"}
        if key in whole:
            out[whole[key]] = Stored(v, "F32" if v.ndim == 1 or widen else t.dtype)
            continue
        layer, part = key[len("backbone.layers.") :].split(".", 1)
        if ".experts." in part:
            experts.setdefault(f"blk.{layer}.ffn_{part.split('.')[-2].split('_')[0]}_exps.weight", []).append(t)
            continue
        if part.endswith("A_log"):
            v = -np.exp(v)
        if part.endswith("conv1d.weight"):
            v = v[:, 0]
        if part in ("mixer.A_log", "mixer.D"):
            v = v[:, None]
        if part == "mixer.norm.weight":
            v = v.reshape(groups, -1)
        new = names[part]
        out[f"blk.{layer}.{new}"] = Stored(v, "F32" if v.ndim == 1 or widen or new.startswith(("ssm_a", "ssm_d", "ssm_norm", "ssm_conv1d")) else t.dtype)
    for new, each in experts.items():
        out[new] = Stored(np.stack([t.values for t in each]), "F32" if widen else each[0].dtype)
    return meta, out


COMMON = dict(head_dim=8, hidden_size=32, mamba_num_heads=4, mamba_head_dim=16, ssm_state_size=24, conv_kernel=4, n_groups=2, norm_eps=1e-5,
              layer_norm_epsilon=1e-5, mlp_hidden_act="relu2", mamba_hidden_act="silu", expand=2, chunk_size=128, use_conv_bias=True, attention_bias=False,
              mamba_proj_bias=False, use_bias=False, mlp_bias=False, rescale_prenorm_residual=True, residual_in_fp32=False, tie_word_embeddings=False,
              num_logits_to_keep=1, use_mamba_kernels=True)
CASES = {
    "nemotron-h": dict(dtype="BF16", vectors="BF16", n_tok=300, n_ctx=320, gguf=True, cfg=config(
        "NemotronHForCausalLM", "nemotron_h", **{**COMMON, "num_hidden_layers": 6}, hybrid_override_pattern="M-M*-M"),
        shows=[dict(drop="mixer.norm.weight"), dict(drop="q_proj.weight"), dict(drop="mixer.D")]),
    "nemotron-h-moe": dict(dtype="F16", vectors="F16", n_tok=40, gguf=True, cfg=config(
        "NemotronHForCausalLM", "nemotron_h", **{**COMMON, "num_hidden_layers": 6}, hybrid_override_pattern="ME*EME", n_routed_experts=6,
        num_experts_per_tok=2, n_shared_experts=1, moe_intermediate_size=16, moe_shared_expert_intermediate_size=24, n_group=1, topk_group=1,
        norm_topk_prob=True, routed_scaling_factor=2.5),
        shows=[dict(num_experts_per_tok=3), dict(drop="e_score_correction_bias"), dict(routed_scaling_factor=1.0), dict(drop="mixer.D")]),
}
ALONE = dict(num_heads=4, head_dim=16, state_size=24, n_groups=2, conv_kernel=4, expand=2, chunk_size=256, layer_norm_epsilon=1e-5, hidden_act="silu",
             use_conv_bias=True, use_bias=False, rms_norm=True, residual_in_fp32=True, rescale_prenorm_residual=False, time_step_rank=2,
             time_step_min=0.001, time_step_max=0.1, time_step_floor=1e-4, initializer_range=0.1)
for name, more, tied in (("mamba2", dict(dtype="BF16", vectors="BF16", n_tok=300, n_ctx=320), True),
                         ("mamba2-apart", dict(dtype="F16", vectors="F16", n_tok=40), False)):
    words = config("Mamba2ForCausalLM", "mamba2", **ALONE, tie_word_embeddings=tied, num_hidden_layers=4)
    for word in ("num_attention_heads", "num_key_value_heads", "intermediate_size", "max_position_embeddings", "rope_theta"):
        del words[word]
    CASES[name] = dict(more, gguf=True, cfg={**words, "n_groups": 2 if tied else 1},
                       shows=[dict(drop="mixer.norm.weight"), dict(drop="mixer.D"), dict(drop="conv1d.bias")])
for case in CASES.values():
    if "hybrid_override_pattern" not in case["cfg"]:
        continue
    case["cfg"]["num_hidden_layers"] = len(case["cfg"]["hybrid_override_pattern"])
