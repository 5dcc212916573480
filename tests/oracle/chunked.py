"""Llama 4's text for the oracle, in float64 from its published definition: three layers of four attend within a chunk of positions and rotate,
the others see all and do not; an expert reads a row times its weight."""
import math

import numpy as np

from families import config, rotate_neighbours
from files import Stored
from reference import FORWARD, attention, gated, heads, linear, rms_norm, rope_frequencies, silu

FAMILIES = ("llama4_text",)


def has_experts(cfg, i):
    return (i + 1) % cfg["interleave_moe_layer_step"] == 0


def has_rope(i):
    return (i + 1) % 4 != 0


def checkpoint(name, cfg, dtype, vector_dtype, uniform):
    c, v, d, out = cfg["hidden_size"], cfg["vocab_size"], cfg["head_dim"], {}
    n_heads, n_kv = cfg["num_attention_heads"], cfg["num_key_value_heads"]

    def matrix(key, rows, cols, gain=1.0):
        out[key + ".weight"] = Stored(uniform(name + key, (rows, cols)) * gain * (3 / cols) ** 0.5, dtype)

    def norm(key):
        out[key + ".weight"] = Stored(np.round((1.0 + 0.5 * uniform(name + key, (c,))) * 128) / 128, vector_dtype)

    def block(p, size):
        matrix(p + "gate_proj", size, c, 1.5)
        matrix(p + "up_proj", size, c, 1.5)
        matrix(p + "down_proj", c, size)

    matrix("model.embed_tokens", v, c, c**0.5 / 2)
    for i in range(cfg["num_hidden_layers"]):
        p = f"model.layers.{i}."
        norm(p + "input_layernorm")
        norm(p + "post_attention_layernorm")
        for m, n in zip("qkv", (n_heads, n_kv, n_kv)):
            matrix(p + f"self_attn.{m}_proj", n * d, c, 1.0 if m == "v" else 1.7)
        matrix(p + "self_attn.o_proj", c, n_heads * d)
        if not has_experts(cfg, i):
            block(p + "feed_forward.", cfg["intermediate_size_mlp"])
            continue
        matrix(p + "feed_forward.router", cfg["num_local_experts"], c, 3.0)
        for e in range(cfg["num_local_experts"]):
            block(p + f"feed_forward.experts.{e}.", cfg["intermediate_size"])
        block(p + "feed_forward.shared_expert.", cfg["intermediate_size"])
    norm("model.norm")
    matrix("lm_head", v, c)
    return turned(out)


def turned(tensors):
    """Folders hold the experts of a layer as one tensor, by columns, gate and up beside each other."""
    out, parts = {}, {}
    for key, t in tensors.items():
        if ".experts." not in key:
            out[key] = t
            continue
        where, part = key.split(".experts.")
        parts.setdefault((where, part.split(".")[1]), []).append(t)
    for (where, part), each in parts.items():
        if part == "down_proj":
            out[where + ".experts.down_proj"] = Stored(np.stack([t.values.T for t in each]), each[0].dtype)
        if part == "gate_proj":
            both = [np.concatenate([g.values.T, u.values.T], axis=1) for g, u in zip(each, parts[where, "up_proj"])]
            out[where + ".experts.gate_up_proj"] = Stored(np.stack(both), each[0].dtype)
    return out


def within_chunks(q, k, v, scale, chunk):
    """Every chunk is a text of its own."""
    parts = [attention(q[a : a + chunk], k[a : a + chunk], v[a : a + chunk], scale) for a in range(0, q.shape[0], chunk)]
    return np.concatenate(parts)


def plain_norm(x, eps):
    return rms_norm(x, 1.0, eps)


def attend(cfg, w, p, i, h, n_ctx):
    n_heads, n_kv, d, eps = cfg["num_attention_heads"], cfg["num_key_value_heads"], cfg["head_dim"], cfg["rms_norm_eps"]
    q, k, v = (heads(linear(h, w(p + f"self_attn.{m}_proj.weight")), n) for m, n in zip("qkv", (n_heads, n_kv, n_kv)))
    freq, mscale = rope_frequencies(cfg, d, n_ctx)
    if has_rope(i):
        q, k = rotate_neighbours(q, freq, mscale), rotate_neighbours(k, freq, mscale)
        if cfg["use_qk_norm"]:
            q, k = plain_norm(q, eps), plain_norm(k, eps)
        a = within_chunks(q, k, v, 1 / math.sqrt(d), cfg["attention_chunk_size"])
    else:
        if cfg["attn_temperature_tuning"]:
            t = np.log1p(np.floor((np.arange(len(h)) + 1) / cfg["floor_scale"])) * cfg["attn_scale"] + 1
            q = q * t[:, None, None]
        a = attention(q, k, v, 1 / math.sqrt(d))
    return linear(a, w(p + "self_attn.o_proj.weight"))


def feed(w, p, x):
    return gated(x, *(w(p + f"{m}_proj.weight") for m in ("gate", "up", "down")), silu)


def routed(cfg, w, p, x):
    score = linear(x, w(p + "router.weight"))
    chosen = np.argsort(-score, axis=1, kind="stable")[:, : cfg["num_experts_per_tok"]]
    y = feed(w, p + "shared_expert.", x)
    for e in range(cfg["num_local_experts"]):
        takes = (chosen == e).any(axis=1)
        share = np.where(takes, 1 / (1 + np.exp(-score[:, e])), 0.0)[:, None]
        gate, up = np.split(w(p + "experts.gate_up_proj")[e], 2, axis=1)
        y = y + gated(x * share, gate.T, up.T, w(p + "experts.down_proj")[e].T, silu)
    return y


def forward(cfg, w, ids, n_ctx):
    norm = lambda x, key: rms_norm(x, w(key + ".weight"), cfg["rms_norm_eps"])
    x = w("model.embed_tokens.weight")[ids]
    for i in range(cfg["num_hidden_layers"]):
        p = f"model.layers.{i}."
        x = x + attend(cfg, w, p, i, norm(x, p + "input_layernorm"), n_ctx)
        h = norm(x, p + "post_attention_layernorm")
        p += "feed_forward."
        x = x + (routed(cfg, w, p, h) if has_experts(cfg, i) else feed(w, p, h))
    return linear(norm(x, "model.norm"), w("lm_head.weight"))


FORWARD["llama4_text"] = forward


def gguf(cfg, tensors, name, widen=False):
    """(meta, tensors). Published files leave the sizes of chunks and of the temperature's steps out (8192 each); these say smaller ones."""
    meta = {"general.architecture": "llama4", "general.name": name, "tokenizer.ggml.model": "none"}
    say = lambda tail, v: meta.__setitem__(f"llama4.{tail}", v)
    say("context_length", cfg["max_position_embeddings"])
    say("embedding_length", cfg["hidden_size"])
    say("block_count", cfg["num_hidden_layers"])
    say("feed_forward_length", cfg["intermediate_size_mlp"])
    say("attention.head_count", cfg["num_attention_heads"])
    say("attention.head_count_kv", cfg["num_key_value_heads"])
    say("attention.key_length", cfg["head_dim"])
    say("attention.value_length", cfg["head_dim"])
    say("attention.layer_norm_rms_epsilon", cfg["rms_norm_eps"])
    say("attention.sliding_window", cfg["attention_chunk_size"])
    say("attention.temperature_length", cfg["floor_scale"])
    say("attention.temperature_scale", cfg["attn_scale"])
    say("rope.freq_base", cfg["rope_theta"])
    say("rope.dimension_count", cfg["head_dim"])
    say("vocab_size", cfg["vocab_size"])
    say("expert_count", cfg["num_local_experts"])
    say("expert_used_count", cfg["num_experts_per_tok"])
    say("expert_feed_forward_length", cfg["intermediate_size"])
    say("interleave_moe_layer_step", cfg["interleave_moe_layer_step"])
    plain = {k: v for k, v in cfg.items() if k != "rope_scaling"}
    ratio = rope_frequencies(plain, cfg["head_dim"], 0)[0] / rope_frequencies(cfg, cfg["head_dim"], 0)[0]
    out = {"rope_freqs.weight": Stored(ratio, "F32")}
    put = lambda key, v, dtype: out.__setitem__(key, Stored(v, "F32" if v.ndim == 1 or widen else dtype))
    parts = {"input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
             "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output", "feed_forward.router": "ffn_gate_inp"}
    for m in ("gate", "up", "down"):
        parts[f"feed_forward.{m}_proj"] = f"ffn_{m}"
        parts[f"feed_forward.shared_expert.{m}_proj"] = f"ffn_{m}_shexp"
    for key, t in tensors.items():
        v, stem = t.values, key.removesuffix(".weight")
        if not key.startswith("model.layers."):
            put({"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}[stem] + ".weight", v, t.dtype)
            continue
        layer, part = stem[len("model.layers.") :].split(".", 1)
        if part.endswith("experts.gate_up_proj"):
            for what, half in zip(("gate", "up"), np.split(v, 2, axis=2)):
                put(f"blk.{layer}.ffn_{what}_exps.weight", half.swapaxes(1, 2), t.dtype)
        elif part.endswith("experts.down_proj"):
            put(f"blk.{layer}.ffn_down_exps.weight", v.swapaxes(1, 2), t.dtype)
        else:
            put(f"blk.{layer}.{parts[part]}.weight", v, t.dtype)
    return meta, out


LLAMA3 = {"factor": 16.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64, "rope_type": "llama3"}
CASES = {
    "llama4": dict(dtype="BF16", vectors="BF16", n_tok=300, n_ctx=320, gguf=True, cfg=config(
        "Llama4ForCausalLM", "llama4_text", num_hidden_layers=8, head_dim=16, hidden_act="silu", rms_norm_eps=1e-5, intermediate_size=16,
        intermediate_size_mlp=40, num_local_experts=6, num_experts_per_tok=1, interleave_moe_layer_step=2, use_qk_norm=True, attention_chunk_size=24,
        moe_layers=[1, 3, 5, 7], no_rope_layers=[1, 1, 1, 0] * 2, attn_temperature_tuning=True, floor_scale=32, attn_scale=0.2, rope_scaling=LLAMA3, tie_word_embeddings=False),
        shows=[dict(attention_chunk_size=25), dict(use_qk_norm=False), dict(attn_scale=0.0), dict(num_experts_per_tok=2), dict(rope_scaling=None),
               dict(drop="shared_expert.down_proj.weight")]),
    "llama4-every": dict(dtype="F16", vectors="F16", n_tok=40, gguf=True, cfg=config(  # experts in all layers
        "Llama4ForCausalLM", "llama4_text", num_hidden_layers=4, head_dim=16, hidden_act="silu", rms_norm_eps=1e-5, intermediate_size=16,
        intermediate_size_mlp=40, num_local_experts=4, num_experts_per_tok=1, interleave_moe_layer_step=1, use_qk_norm=True, attention_chunk_size=16,
        attn_temperature_tuning=True, floor_scale=8, attn_scale=0.1, rope_scaling=LLAMA3, tie_word_embeddings=False),
        shows=[dict(attention_chunk_size=17), dict(floor_scale=9)]),
}
