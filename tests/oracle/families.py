"""More families for the oracle: checkpoints under their real names, float64 forwards from the published definitions, the
names that GGUF files have for their tensors, and the cases themselves. cases.py runs them beside its own."""
import math

import numpy as np

from files import Stored, interleave_pairs
from reference import (ACTIVATIONS, FORWARD, attention, gated, geometry, heads, layer_norm, linear, relu, rms_norm, rope_frequencies,
                       rotate, silu, softmax)

ACTIVATIONS["relu2"] = lambda x: relu(x) ** 2

# What each family is, in words of its definition. `names`: where they are not Llama's.
LLAMA_NAMES = dict(
    layers="model.layers.", embed="model.embed_tokens", last="model.norm", head="lm_head", norm1="input_layernorm", norm2="post_attention_layernorm",
    q="self_attn.q_proj", k="self_attn.k_proj", v="self_attn.v_proj", o="self_attn.o_proj",
    gate="mlp.gate_proj", up="mlp.up_proj", down="mlp.down_proj", q_norm="self_attn.q_norm", k_norm="self_attn.k_norm",
    router="mlp.gate", expert="mlp.experts.{}.", shared="mlp.shared_experts.", expert_parts=("gate_proj", "up_proj", "down_proj"),
)
MIXTRAL_NAMES = dict(router="block_sparse_moe.gate", expert="block_sparse_moe.experts.{}.", expert_parts=("w1", "w3", "w2"))
FAMILIES = {
    "arcee": dict(gated=False),
    "bitnet": dict(sub_norms=True),
    "starcoder2": dict(gated=False, layer_norm=True, norm_bias=True, bias=True, names=dict(up="mlp.c_fc", down="mlp.c_proj")),
    "stablelm": dict(layer_norm=True, norm_bias=True),
    "nemotron": dict(gated=False, layer_norm=True, norm_bias=True, plus_one=True),
    "internlm2": dict(names=dict(
        embed="model.tok_embeddings", head="output", norm1="attention_norm", norm2="ffn_norm", qkv="attention.wqkv", o="attention.wo",
        gate="feed_forward.w1", up="feed_forward.w3", down="feed_forward.w2")),
    "exaone": dict(names=dict(
        layers="transformer.h.", embed="transformer.wte", last="transformer.ln_f", norm1="ln_1", norm2="ln_2",
        q="attn.attention.q_proj", k="attn.attention.k_proj", v="attn.attention.v_proj", o="attn.attention.out_proj",
        gate="mlp.c_fc_0", up="mlp.c_fc_1", down="mlp.c_proj")),
    "phimoe": dict(layer_norm=True, norm_bias=True, bias=True, names=MIXTRAL_NAMES),
    "minimax_m2": dict(head_norms="whole", names=MIXTRAL_NAMES),
    "seed_oss": dict(qkv_bias=True),
    "ernie4_5": dict(neighbours=True),
    "ernie4_5_moe": dict(neighbours=True),
    "glm4": dict(neighbours=True, post=True, names=dict(gate_up="mlp.gate_up_proj")),
    "glm4_moe": dict(qkv_bias=True),
    "cohere": dict(neighbours=True, parallel=True, layer_norm=True),
    "cohere2": dict(neighbours=True, parallel=True, layer_norm=True),
    "qwen2_moe": dict(qkv_bias=True, names=dict(shared="mlp.shared_expert.")),
    "hunyuan_v1_moe": dict(head_norms="after", names=dict(
        router="mlp.gate.wg", shared="mlp.shared_mlp.", q_norm="self_attn.query_layernorm", k_norm="self_attn.key_layernorm")),
    "bailing_moe_v2": dict(head_norms="before", qkv_in_order=True, names=dict(
        embed="model.word_embeddings", qkv="attention.query_key_value", o="attention.dense", q_norm="attention.query_layernorm",
        k_norm="attention.key_layernorm")),
    "qwen2_vl": dict(qkv_bias=True),
    "qwen3_vl": dict(head_norms="before"),
}


def spec_of(cfg):
    """The family's words and names, and what the configuration adds to them."""
    s = dict(gated=True, layer_norm=False, norm_bias=False, bias=False, qkv_bias=False, plus_one=False, neighbours=False, post=False,
             parallel=False, head_norms=None, qkv_in_order=False, sub_norms=False)
    f = FAMILIES[cfg["model_type"]]
    s.update({k: v for k, v in f.items() if k != "names"})
    if cfg.get("use_parallel_residual"):
        s["parallel"] = True
    if cfg.get("use_qk_norm"):
        s["head_norms"] = s["head_norms"] or "before"
    return s, {**LLAMA_NAMES, **f.get("names", {})}


def text_of(cfg):
    """Of a model that sees and reads, what is said of its reading."""
    return {**cfg, **cfg["text_config"], "model_type": cfg["model_type"]} if "text_config" in cfg else cfg


def mixture(cfg):
    """Experts: how many, how many a row has, their size, layers without any, size of the shared block and whether it has a gate,
    how scores become weights; None: dense."""
    f = cfg["model_type"]
    if f == "qwen2_moe":
        return dict(n=cfg["num_experts"], used=cfg["num_experts_per_tok"], size=cfg["moe_intermediate_size"], dense=0,
                    shared=cfg["shared_expert_intermediate_size"], gate=True, norm=cfg["norm_topk_prob"], bias=None, scale=1.0)
    if f == "hunyuan_v1_moe":
        return dict(n=cfg["num_experts"], used=cfg["moe_topk"][0], size=cfg["moe_intermediate_size"][0], dense=0,
                    shared=cfg["moe_intermediate_size"][0] * cfg["num_shared_expert"][0], gate=False, norm=True, bias=None, scale=1.0)
    if f == "ernie4_5_moe":
        return dict(n=cfg["moe_num_experts"], used=cfg["moe_k"], size=cfg["moe_intermediate_size"], dense=cfg["moe_layer_start_index"],
                    shared=cfg["moe_intermediate_size"] * cfg["moe_num_shared_experts"], gate=False, norm=True,
                    bias="mlp.moe_statics.e_score_correction_bias", scale=1.0)
    if f == "bailing_moe_v2":
        return dict(n=cfg["num_experts"], used=cfg["num_experts_per_tok"], size=cfg["moe_intermediate_size"], dense=cfg["first_k_dense_replace"],
                    shared=cfg["moe_intermediate_size"] * cfg["num_shared_experts"], gate=False, norm=cfg["norm_topk_prob"],
                    bias="mlp.gate.expert_bias", scale=cfg["routed_scaling_factor"])
    if f == "minimax_m2":
        return dict(n=cfg["num_local_experts"], used=cfg["num_experts_per_tok"], size=cfg["intermediate_size"], dense=0, shared=0, gate=False,
                    norm=True, bias="block_sparse_moe.e_score_correction_bias", scale=1.0)
    if f == "phimoe":
        return dict(n=cfg["num_local_experts"], used=cfg["num_experts_per_tok"], size=cfg["intermediate_size"], dense=0, shared=0, gate=False,
                    norm=False, bias=None, scale=1.0)
    if f == "glm4_moe":
        return dict(n=cfg["n_routed_experts"], used=cfg["num_experts_per_tok"], size=cfg["moe_intermediate_size"],
                    dense=cfg["first_k_dense_replace"], shared=cfg["moe_intermediate_size"] * cfg["n_shared_experts"], gate=False,
                    norm=cfg["norm_topk_prob"], bias="mlp.gate.e_score_correction_bias", scale=cfg["routed_scaling_factor"])
    return None


def ternary(values, dtype):
    """Weights as BitNet computes with them: each is the nearest of -s, 0 and s, where s is their mean magnitude, in the type of storage."""
    s = max(np.abs(values).mean(), 1e-5)
    return Stored(np.clip(np.rint(values / s), -1, 1) * s, dtype).values


def is_ternary(cfg, key):
    return cfg.get("quantization_config") and key.startswith("model.layers.") and key.endswith("_proj.weight")


def checkpoint(name, cfg, dtype, vector_dtype, uniform):
    cfg = text_of(cfg)
    s, n = spec_of(cfg)
    c, f, v = cfg["hidden_size"], cfg["intermediate_size"], cfg["vocab_size"]
    n_heads, n_kv, d = geometry(cfg)
    moe, out = mixture(cfg), {}

    def matrix(key, rows, cols, gain=1.0, bias=False):
        out[key + ".weight"] = Stored(uniform(name + key, (rows, cols)) * gain * (3 / cols) ** 0.5, dtype)
        if bias:
            vector(key + ".bias", rows, 0.0, 0.5)

    def vector(key, size, centre, spread):
        out[key] = Stored(np.round((centre + spread * uniform(name + key, (size,))) * 128) / 128, vector_dtype)

    def norm(key, size=c):
        vector(key + ".weight", size, 0.0 if s["plus_one"] else 1.0, 0.5)
        if s["norm_bias"]:
            vector(key + ".bias", size, 0.0, 0.5)

    def block(p, size, parts=LLAMA_NAMES["expert_parts"]):
        gate, up, down = parts
        matrix(p + gate, size, c, 1.5)
        matrix(p + up, size, c, 1.5)
        matrix(p + down, c, size)

    matrix(n["embed"], v, c, c**0.5 / 2)
    for i in range(cfg.get("num_hidden_layers") or cfg["num_layers"]):
        p = f"{n['layers']}{i}."
        norm(p + n["norm1"])
        if not s["parallel"]:
            norm(p + n["norm2"])
        if s["post"]:
            norm(p + "post_self_attn_layernorm")
            norm(p + "post_mlp_layernorm")
        if "qkv" in n:
            matrix(p + n["qkv"], (n_heads + 2 * n_kv) * d, c, 1.7)
        else:
            biased = s["bias"] or s["qkv_bias"]
            matrix(p + n["q"], n_heads * d, c, 1.7, biased)
            matrix(p + n["k"], n_kv * d, c, 1.7, biased)
            matrix(p + n["v"], n_kv * d, c, 1.0, biased)
        if s["head_norms"]:
            whole = s["head_norms"] == "whole"
            vector(p + n["q_norm"] + ".weight", n_heads * d if whole else d, 1.5, 0.5)
            vector(p + n["k_norm"] + ".weight", n_kv * d if whole else d, 1.5, 0.5)
        matrix(p + n["o"], c, n_heads * d, 1.0, s["bias"])
        if s["sub_norms"]:
            norm(p + "self_attn.attn_sub_norm", n_heads * d)
            norm(p + "mlp.ffn_sub_norm", f)
        if moe and i >= moe["dense"]:
            matrix(p + n["router"], moe["n"], c, 3.0)
            if moe["bias"]:
                out[p + moe["bias"]] = Stored(uniform(name + p + "bias", (1, moe["n"]) if "statics" in moe["bias"] else (moe["n"],)) * 0.25, "F32")
            for e in range(moe["n"]):
                block(p + n["expert"].format(e), moe["size"], n["expert_parts"])
            if moe["shared"]:
                block(p + n["shared"], moe["shared"])
            if moe["gate"]:
                matrix(p + "mlp.shared_expert_gate", 1, c, 2.0)
        elif "gate_up" in n:
            matrix(p + n["gate_up"], 2 * f, c, 1.5)
            matrix(p + n["down"], c, f)
        else:
            if s["gated"]:
                matrix(p + n["gate"], f, c, 1.5)
            matrix(p + n["up"], f, c, 1.5, s["bias"])
            matrix(p + n["down"], c, f, 1.0 if s["gated"] else 2.0, s["bias"])
    norm(n["last"])
    if not cfg.get("tie_word_embeddings", "cohere" in cfg["model_type"]):
        matrix(n["head"], v, c, 1.0, cfg.get("lm_head_bias"))
    return out


def rotate_neighbours(x, freq, mscale):
    """x [T, H, d]: values 2i and 2i + 1 of a head are a pair, which turns by position * freq[i]."""
    out, angle = x.copy(), np.arange(x.shape[0])[:, None] * freq
    c, s = mscale * np.cos(angle)[:, None, :], mscale * np.sin(angle)[:, None, :]
    a, b = x[..., 0 : 2 * len(freq) : 2], x[..., 1 : 2 * len(freq) : 2]
    out[..., 0 : 2 * len(freq) : 2] = a * c - b * s
    out[..., 1 : 2 * len(freq) : 2] = b * c + a * s
    return out


def by_turns(score, noise):
    """Phi-3.5-MoE's two experts as its published code draws them when nothing is trained (SparseMixer): the best, weighed by its share among those
    within twice the noise of it, in proportion to it or to their own size; then the best of the others, in the same way without the first."""
    weights, rows = np.zeros_like(score), np.arange(score.shape[0])
    left = score.copy()
    for _ in range(2):
        best = left.argmax(axis=1)
        top = left[rows, best][:, None]
        near = (top - score) <= 2 * noise * np.maximum(np.abs(score), top)
        kept = np.where(near, left, -np.inf)
        weights[rows, best] = softmax(kept)[rows, best]
        left[rows, best] = -np.inf
    return weights


def routed(cfg, w, p, n, x, moe, act):
    """The experts of a row, by its scores, and the shared block, which all rows pass."""
    score = linear(x, w(p + n["router"] + ".weight"))
    sigmoid = cfg["model_type"] in ("glm4_moe", "bailing_moe_v2", "minimax_m2") or moe["bias"] == "mlp.gate.e_score_correction_bias"
    share = 1 / (1 + np.exp(-score)) if sigmoid else softmax(score)
    choice = share + (w(p + moe["bias"]).reshape(-1) if moe["bias"] else 0)
    if cfg.get("n_group", 1) > 1:  # experts of the best groups alone: by their two best sigmoids, or by their best share
        each = np.sort(choice.reshape(x.shape[0], cfg["n_group"], -1), axis=2)
        good = each[:, :, -2:].sum(axis=2) if sigmoid else each[:, :, -1]
        kept = np.argsort(-good, axis=1, kind="stable")[:, : cfg["topk_group"]]
        lost = np.full_like(choice, -np.inf).reshape(each.shape)
        for t in range(x.shape[0]):
            lost[t, kept[t]] = 0
        choice = choice + lost.reshape(choice.shape)
    chosen = np.argsort(-choice, axis=1, kind="stable")[:, : moe["used"]]
    weights = np.zeros_like(share)
    for t in range(x.shape[0]):
        weights[t, chosen[t]] = share[t, chosen[t]]
    if cfg["model_type"] == "phimoe":
        weights = by_turns(score, cfg["router_jitter_noise"])
    if moe["norm"]:
        weights = weights / weights.sum(axis=1, keepdims=True)
    y = np.zeros_like(x)
    for e in range(moe["n"]):
        q = p + n["expert"].format(e)
        y += weights[:, e : e + 1] * moe["scale"] * gated(x, *(w(q + f"{m}.weight") for m in n["expert_parts"]), act)
    if not moe["shared"]:
        return y
    shared = gated(x, *(w(p + n["shared"] + f"{m}_proj.weight") for m in ("gate", "up", "down")), act)
    if moe["gate"]:
        shared = shared / (1 + np.exp(-linear(x, w(p + "mlp.shared_expert_gate.weight"))))
    return y + shared


def rope_of(cfg, d, n_ctx):
    default = {"glm4": 0.5, "glm4_moe": 0.5, "bailing_moe_v2": 0.5, "nemotron": 0.5, "stablelm": 0.25}.get(cfg["model_type"], 1.0)
    share = cfg.get("partial_rotary_factor", cfg.get("rope_pct", default))
    share = cfg["rotary_dim"] / d if "rotary_dim" in cfg else share
    scaling = cfg.get("rope_scaling")
    if scaling and scaling.get("type", scaling.get("rope_type")) in ("mrope", "dynamic"):
        cfg = {k: v for k, v in cfg.items() if k != "rope_scaling"}  # text has one position; nothing changes in the trained context
    freq, mscale = rope_frequencies(cfg, int(share * d), n_ctx)
    return freq, (scaling or {}).get("long_mscale", mscale)


def forward(cfg, w, ids, n_ctx):
    cfg = text_of(cfg)
    s, n = spec_of(cfg)
    family = cfg["model_type"]
    n_heads, n_kv, d = geometry(cfg)
    eps = next(cfg[k] for k in ("rms_norm_eps", "layer_norm_eps", "norm_epsilon", "norm_eps", "layer_norm_epsilon") if k in cfg)
    act = ACTIVATIONS[cfg.get("hidden_act") or cfg["activation_function"]]
    freq, mscale = rope_of(cfg, d, n_ctx)
    turn = rotate_neighbours if s["neighbours"] else rotate
    if cfg.get("quantization_config"):
        stored, dtype = w, {"bfloat16": "BF16", "float16": "F16"}[cfg["torch_dtype"]]
        w = lambda key: ternary(stored(key), dtype) if is_ternary(cfg, key) else stored(key)
    lin = lambda x, key: linear(x, w(key + ".weight"), w(key + ".bias"))

    def norm(x, key):
        weight = w(key + ".weight") + (1 if s["plus_one"] else 0)
        if not s["layer_norm"]:
            return rms_norm(x, weight, eps)
        return layer_norm(x, weight, w(key + ".bias") if s["norm_bias"] else 0.0, eps)

    moe = mixture(cfg)
    x = w(n["embed"] + ".weight")[ids]
    for i in range(cfg.get("num_hidden_layers") or cfg["num_layers"]):
        p = f"{n['layers']}{i}."
        h = norm(x, p + n["norm1"])
        if s["qkv_in_order"]:
            q, k, v = (heads(x, g) for x, g in zip(np.split(linear(h, w(p + n["qkv"] + ".weight")), [n_heads * d, (n_heads + n_kv) * d], axis=1),
                                                   (n_heads, n_kv, n_kv)))
        elif "qkv" in n:  # by KV head: its queries, its key, its value
            both = linear(h, w(p + n["qkv"] + ".weight")).reshape(len(ids), n_kv, n_heads // n_kv + 2, d)
            q, k, v = both[:, :, :-2].reshape(len(ids), n_heads, d), both[:, :, -2], both[:, :, -1]
        else:
            q, k, v = (heads(lin(h, p + n[m]), g) for m, g in zip("qkv", (n_heads, n_kv, n_kv)))
        if s["head_norms"] == "before":
            q, k = rms_norm(q, w(p + n["q_norm"] + ".weight"), eps), rms_norm(k, w(p + n["k_norm"] + ".weight"), eps)
        if s["head_norms"] == "whole":  # of all heads together
            q, k = (heads(rms_norm(x.reshape(len(ids), -1), w(p + n[m] + ".weight"), eps), g)
                    for x, m, g in ((q, "q_norm", n_heads), (k, "k_norm", n_kv)))
        sliding = family == "cohere2" and (i + 1) % 4 != 0
        if family != "cohere2" or sliding:
            q, k = turn(q, freq, mscale), turn(k, freq, mscale)
        if s["head_norms"] == "after":
            q, k = rms_norm(q, w(p + n["q_norm"] + ".weight"), eps), rms_norm(k, w(p + n["k_norm"] + ".weight"), eps)
        window = cfg["sliding_window"] if sliding or (family == "starcoder2" and cfg.get("sliding_window")) else None
        a = attention(q, k, v, 1 / math.sqrt(d), window)
        a = lin(norm(a, p + "self_attn.attn_sub_norm") if s["sub_norms"] else a, p + n["o"])
        if s["parallel"]:
            y = gated(h, *(w(p + n[m] + ".weight") for m in ("gate", "up", "down")), act)
            x = x + a + y
            continue
        x = x + (norm(a, p + "post_self_attn_layernorm") if s["post"] else a)
        h = norm(x, p + n["norm2"])
        if moe and i >= moe["dense"]:
            y = routed(cfg, w, p, n, h, moe, act)
        elif "gate_up" in n:
            gate, up = np.split(linear(h, w(p + n["gate_up"] + ".weight")), 2, axis=1)
            y = linear(act(gate) * up, w(p + n["down"] + ".weight"))
        elif s["sub_norms"]:
            y = act(lin(h, p + n["gate"])) * lin(h, p + n["up"])
            y = lin(norm(y, p + "mlp.ffn_sub_norm"), p + n["down"])
        elif s["gated"]:
            y = gated(h, *(w(p + n[m] + ".weight") for m in ("gate", "up", "down")), act)
        else:
            y = lin(act(lin(h, p + n["up"])), p + n["down"])
        x = x + (norm(y, p + "post_mlp_layernorm") if s["post"] else y)
    head = w(n["head"] + ".weight")
    logits = linear(norm(x, n["last"]), w(n["embed"] + ".weight") if head is None else head, w(n["head"] + ".bias"))
    return logits * cfg.get("logit_scale", 1.0)


FORWARD.update({f: forward for f in FAMILIES})

# ---- GGUF ---------------------------------------------------------------------------------------------

GGUF_ARCH = {"ernie4_5_moe": "ernie4_5-moe", "glm4_moe": "glm4moe", "cohere": "command-r", "qwen2_moe": "qwen2moe",
             "hunyuan_v1_moe": "hunyuan-moe", "bailing_moe_v2": "bailingmoe2", "minimax_m2": "minimax-m2", "qwen2_vl": "qwen2vl", "qwen3_vl": "qwen3vl"}
GGUF_PARTS = dict(norm1="attn_norm", norm2="ffn_norm", q="attn_q", k="attn_k", v="attn_v", o="attn_output", gate="ffn_gate", up="ffn_up",
                  down="ffn_down", q_norm="attn_q_norm", k_norm="attn_k_norm", router="ffn_gate_inp", gate_up="ffn_up")


def gguf(cfg, tensors, name, widen=False):
    """(meta, tensors) as converters write them: experts as one more dimension, what is fused by KV head apart, norms with their +1."""
    cfg = text_of(cfg)
    s, n = spec_of(cfg)
    family = cfg["model_type"]
    arch = GGUF_ARCH.get(family, family)
    n_heads, n_kv, d = geometry(cfg)
    n_rot = 2 * len(rope_of(cfg, d, 0)[0])
    moe = mixture(cfg)
    say = lambda tail, v: meta.__setitem__(f"{arch}.{tail}", v)
    meta = {"general.architecture": arch, "general.name": name, "tokenizer.ggml.model": "none"}
    say("context_length", cfg["max_position_embeddings"])
    say("embedding_length", cfg["hidden_size"])
    say("block_count", cfg.get("num_hidden_layers") or cfg["num_layers"])
    say("feed_forward_length", cfg["intermediate_size"])
    say("attention.head_count", n_heads)
    say("attention.head_count_kv", n_kv)
    say("attention.layer_norm_epsilon" if s["layer_norm"] else "attention.layer_norm_rms_epsilon",
        next(cfg[k] for k in ("rms_norm_eps", "layer_norm_eps", "norm_epsilon", "norm_eps", "layer_norm_epsilon") if k in cfg))
    say("rope.freq_base", cfg["rope_theta"])
    say("rope.dimension_count", n_rot)
    if cfg.get("head_dim"):
        say("attention.key_length", d)
        say("attention.value_length", d)
    if "logit_scale" in cfg:
        say("logit_scale", cfg["logit_scale"])
        say("rope.scaling.type", "none")
    s_long = cfg.get("rope_scaling") or {}
    if "long_factor" in s_long:
        say("rope.scaling.original_context_length", s_long["original_max_position_embeddings"])
        say("rope.scaling.attn_factor", s_long["long_mscale"])
    if family == "cohere2" or (family == "starcoder2" and cfg.get("sliding_window")):
        say("attention.sliding_window", cfg["sliding_window"])
    if family == "stablelm":  # what converters write where the configuration does not tell
        say("use_parallel_residual", cfg.get("use_parallel_residual", True))
    if family == "bitnet":
        say("hidden_act", cfg["hidden_act"])
        say("rope.scaling.type", "linear")
        say("rope.scaling.factor", 1.0)
    if moe:
        say("expert_count", moe["n"])
        say("expert_used_count", moe["used"])
        say("expert_feed_forward_length", moe["size"])
        if family == "bailing_moe_v2":
            say("expert_group_count", cfg["n_group"])
            say("expert_group_used_count", cfg["topk_group"])
        if family != "glm4_moe" and moe["shared"]:
            say("expert_shared_feed_forward_length", moe["shared"])
        if family in ("glm4_moe", "ernie4_5_moe", "bailing_moe_v2"):
            say("expert_shared_count", moe["shared"] // moe["size"])
            say("leading_dense_block_count", moe["dense"])
        if family == "ernie4_5_moe":
            say("interleave_moe_layer_step", 1)
        if family == "minimax_m2":
            say("expert_gating_func", 2)
        if family in ("glm4_moe", "bailing_moe_v2"):
            say("expert_gating_func", 2)
            say("expert_weights_scale", moe["scale"])
            say("expert_weights_norm", moe["norm"])
    own = {v: k for k, v in n.items()}
    parts = dict(GGUF_PARTS, norm2="post_attention_norm") if family in ("seed_oss", "glm4_moe") else GGUF_PARTS
    out, experts = {}, {}
    put = lambda key, v, dtype: out.__setitem__(key, Stored(v, "F32" if v.ndim == 1 or widen else dtype))
    s_llama3 = cfg.get("rope_scaling") or {}
    if s_llama3.get("rope_type") == "llama3":
        plain = {k: v for k, v in cfg.items() if k != "rope_scaling"}
        out["rope_freqs.weight"] = Stored(rope_frequencies(plain, n_rot, 0)[0] / rope_frequencies(cfg, n_rot, 0)[0], "F32")
    for what in ("long", "short") if "long_factor" in s_long else ():
        out[f"rope_factors_{what}.weight"] = Stored(np.array(s_long[what + "_factor"]), "F32")
    for key, t in tensors.items():
        v, stem, end = t.values, *(key.rsplit(".", 1) if key.endswith((".weight", ".bias")) else (key, "bias"))
        if not stem.startswith(n["layers"]):
            what = own[stem]
            if what == "last" and s["plus_one"] and end == "weight":
                v = v + 1
            put({"embed": "token_embd", "last": "output_norm", "head": "output"}[what] + "." + end, v, t.dtype)
            continue
        layer, part = stem[len(n["layers"]) :].split(".", 1)
        if ".experts." in part:
            which = ("gate", "up", "down")[n["expert_parts"].index(part.split(".")[-1])]
            experts.setdefault(f"blk.{layer}.ffn_{which}_exps.weight", []).append(t)
            continue
        if moe and part.startswith(n["shared"]):
            new = f"ffn_{part.split('.')[-1].split('_')[0]}_shexp"
        elif part == "mlp.shared_expert_gate":
            new, v = "ffn_gate_inp_shexp", v[0]
        elif moe and part == (moe["bias"] or ""):
            new, v = "exp_probs_b", v.reshape(-1)
        elif part == n.get("qkv") and s["qkv_in_order"]:
            new = "attn_qkv"
        elif part == n.get("qkv"):
            both = v.reshape(n_kv, n_heads // n_kv + 2, d, -1)
            put(f"blk.{layer}.attn_q.weight", interleave_pairs(both[:, :-2].reshape(n_heads * d, -1), n_heads), t.dtype)
            put(f"blk.{layer}.attn_k.weight", interleave_pairs(both[:, -2].reshape(n_kv * d, -1), n_kv), t.dtype)
            put(f"blk.{layer}.attn_v.weight", both[:, -1].reshape(n_kv * d, -1), t.dtype)
            continue
        else:
            new = {"post_self_attn_layernorm": "post_attention_norm", "post_mlp_layernorm": "post_ffw_norm",
                   "self_attn.attn_sub_norm": "attn_sub_norm", "mlp.ffn_sub_norm": "ffn_sub_norm"}.get(part) or parts[own[part]]
        if s["plus_one"] and end == "weight" and v.ndim == 1:
            v = v + 1
        if is_ternary(cfg, key):
            v = ternary(v, t.dtype)
        if family == "arcee" and own.get(part) in ("q", "k"):
            v = interleave_pairs(v, n_heads if own[part] == "q" else n_kv)
        put(f"blk.{layer}.{new}.{end}", v, t.dtype)
    for new, each in experts.items():
        out[new] = Stored(np.stack([t.values for t in each]), "F32" if widen else each[0].dtype)
    return meta, out


# ---- cases --------------------------------------------------------------------------------------------


def config(architecture, model_type, **more):
    return {"architectures": [architecture], "model_type": model_type, "vocab_size": 48, "hidden_size": 32, "intermediate_size": 48,
            "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "bos_token_id": 1, "eos_token_id": 2,
            "max_position_embeddings": 512, "rope_theta": 10000.0, **more}


RMS = dict(hidden_act="silu", rms_norm_eps=1e-5)
LLAMA3 = {"factor": 16.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64, "rope_type": "llama3"}
PHI_LONG = {"type": "longrope", "long_factor": [1.0, 1.5, 2.0, 3.0], "short_factor": [1.0, 1.1, 1.2, 1.4], "long_mscale": 1.243,
            "short_mscale": 1.243, "original_max_position_embeddings": 64}
MROPE = {"type": "mrope", "mrope_section": [1, 1, 2]}
F16 = dict(dtype="F16", vectors="F16", n_tok=32, gguf=True)
BF16 = dict(dtype="BF16", vectors="BF16", n_tok=32, gguf=True)

CASES = {
    "arcee": dict(F16, cfg=config("ArceeForCausalLM", "arcee", hidden_act="relu2", rms_norm_eps=1e-5, tie_word_embeddings=False, mlp_bias=False,
                                  attention_bias=False), shows=[dict(hidden_act="relu"), dict(rope_theta=1e6)]),
    "bitnet": dict(BF16, cfg=config(  # weights as they are trained
        "BitNetForCausalLM", "bitnet", hidden_act="relu2", rms_norm_eps=1e-5, tie_word_embeddings=True, torch_dtype="bfloat16",
        quantization_config={"linear_class": "autobitlinear", "quant_method": "bitnet", "quantization_mode": "online"}),
        shows=[dict(hidden_act="relu"), dict(quantization_config=None), dict(drop="attn_sub_norm.weight"), dict(drop="ffn_sub_norm.weight")]),
    "bitnet-plain": dict(F16, cfg=config(  # and such as are computed with as they are
        "BitNetForCausalLM", "bitnet", hidden_act="silu", rms_norm_eps=1e-5, tie_word_embeddings=True, torch_dtype="float16"),
        shows=[dict(hidden_act="relu2"), dict(drop="ffn_sub_norm.weight"), dict(rms_norm_eps=0.1)]),
    "starcoder2": dict(BF16, cfg=config(
        "Starcoder2ForCausalLM", "starcoder2", hidden_act="gelu_pytorch_tanh", norm_epsilon=1e-5, norm_type="layer_norm", mlp_type="default",
        use_bias=True, sliding_window=9, tie_word_embeddings=True, attention_dropout=0.1),
        shows=[dict(sliding_window=10), dict(drop="c_proj.bias"), dict(drop="input_layernorm.bias")]),
    "stablelm": dict(F16, cfg=config(
        "StableLmForCausalLM", "stablelm", hidden_act="silu", layer_norm_eps=1e-5, partial_rotary_factor=0.5, use_parallel_residual=False,
        use_qkv_bias=False, qk_layernorm=False, tie_word_embeddings=False),
        shows=[dict(partial_rotary_factor=1.0), dict(drop="input_layernorm.bias"), dict(drop="model.norm.bias")]),
    "stablelm-parallel": dict(F16, cfg=config(
        "StableLmForCausalLM", "stablelm", hidden_act="silu", norm_eps=1e-5, rope_pct=0.25, use_parallel_residual=True,
        qk_layernorm=False, tie_word_embeddings=False), shows=[dict(rope_pct=1.0)]),
    "nemotron": dict(BF16, cfg=config(
        "NemotronForCausalLM", "nemotron", hidden_act="relu2", norm_eps=1e-5, partial_rotary_factor=0.5, head_dim=16, mlp_bias=False,
        attention_bias=False, tie_word_embeddings=False),
        shows=[dict(partial_rotary_factor=1.0), dict(hidden_act="relu"), dict(drop="input_layernorm.bias")]),
    "internlm2": dict(F16, cfg=config(
        "InternLM2ForCausalLM", "internlm2", **RMS, bias=False, rope_scaling={"type": "dynamic", "factor": 2.0}, tie_word_embeddings=False,
        attn_implementation="eager", pretraining_tp=1), shows=[dict(rope_theta=1e6), dict(rms_norm_eps=0.1)]),
    "exaone": dict(BF16, cfg={k: v for k, v in config(
        "ExaoneForCausalLM", "exaone", activation_function="silu", layer_norm_epsilon=1e-5, num_layers=2, head_dim=16, rope_scaling=LLAMA3,
        tie_word_embeddings=True, embed_dropout=0.0).items() if k != "num_hidden_layers"}, shows=[dict(rope_scaling=None), dict(rope_theta=1e6)]),
    "seed_oss": dict(BF16, cfg=config(
        "SeedOssForCausalLM", "seed_oss", **RMS, head_dim=16, attention_bias=True, attention_out_bias=False, mlp_bias=False,
        rope_scaling={"rope_type": "default"}, residual_dropout=0.1, tie_word_embeddings=False),
        shows=[dict(rope_theta=1e6), dict(drop="q_proj.bias")]),
    "phimoe": dict({**BF16, "gguf": False}, cfg=config(
        "PhiMoEForCausalLM", "phimoe", **RMS, num_local_experts=6, num_experts_per_tok=2, router_jitter_noise=0.4, input_jitter_noise=0.01,
        attention_bias=True, lm_head_bias=True, sliding_window=512, output_router_logits=False, router_aux_loss_coef=0.0,
        rope_scaling=PHI_LONG, original_max_position_embeddings=64, tie_word_embeddings=False),
        shows=[dict(router_jitter_noise=0.01), dict(rope_theta=1e6), dict(drop="input_layernorm.bias"), dict(drop="o_proj.bias"),
               dict(drop="lm_head.bias"), dict(rope_scaling={**PHI_LONG, "short_mscale": 1.0, "long_mscale": 1.0})]),
    "phimoe-gguf": dict(F16, n_ctx=128, gguf_only=True, cfg=config(  # whose files do not say the noise; beyond the first context
        "PhiMoEForCausalLM", "phimoe", **RMS, num_local_experts=6, num_experts_per_tok=2, router_jitter_noise=0.01, input_jitter_noise=0.0,
        attention_bias=True, lm_head_bias=True, sliding_window=512, rope_scaling=PHI_LONG, original_max_position_embeddings=64,
        tie_word_embeddings=False), shows=[dict(router_jitter_noise=0.2), dict(rope_theta=1e6), dict(n_ctx=64)]),
    "minimax-m2": dict(BF16, cfg=config(
        "MiniMaxM2ForCausalLM", "minimax_m2", **RMS, intermediate_size=16, head_dim=16, num_local_experts=6, num_experts_per_tok=2, rotary_dim=8,
        use_qk_norm=True, qk_norm_type="per_layer", use_routing_bias=True, scoring_func="sigmoid", attn_type_list=[1, 1], num_mtp_modules=3,
        mtp_transformer_layers=1, use_mtp=True, mlp_intermediate_size=64, shared_intermediate_size=0, shared_moe_mode="sigmoid",
        layernorm_full_attention_beta=1.0, layernorm_linear_attention_beta=1.0, layernorm_mlp_beta=1.0, router_jitter_noise=0.0,
        sliding_window=None, tie_word_embeddings=False),
        shows=[dict(num_experts_per_tok=3), dict(rotary_dim=16), dict(drop="e_score_correction_bias"), dict(drop="q_norm.weight")]),
    "ernie4_5": dict(BF16, cfg=config("Ernie4_5ForCausalLM", "ernie4_5", **RMS, head_dim=16, use_bias=False, use_rmsnorm=True, tie_word_embeddings=True),
                     shows=[dict(rope_theta=1e6), dict(rms_norm_eps=0.1)]),
    "ernie4_5-moe": dict(BF16, cfg=config(
        "Ernie4_5_MoeForCausalLM", "ernie4_5_moe", **RMS, num_key_value_heads=2, use_bias=False, tie_word_embeddings=True, moe_num_experts=6, moe_k=2,
        moe_intermediate_size=16, moe_layer_start_index=1, moe_layer_interval=1, moe_num_shared_experts=2, moe_use_aux_free=True,
        moe_capacity=[6, 6, 6], moe_norm_min=1e-12),
        shows=[dict(moe_k=3), dict(drop="e_score_correction_bias"), dict(drop="shared_experts.down_proj.weight")]),
    "glm4": dict(F16, cfg=config(
        "Glm4ForCausalLM", "glm4", **RMS, head_dim=16, partial_rotary_factor=0.5, attention_bias=False, tie_word_embeddings=False),
        shows=[dict(partial_rotary_factor=1.0), dict(rope_theta=1e6), dict(drop="post_mlp_layernorm.weight")]),
    "glm4moe": dict(BF16, cfg=config(
        "Glm4MoeForCausalLM", "glm4_moe", **RMS, num_hidden_layers=3, head_dim=16, partial_rotary_factor=0.5, attention_bias=True, use_qk_norm=True,
        n_routed_experts=6, num_experts_per_tok=2, n_shared_experts=1, moe_intermediate_size=16, first_k_dense_replace=1, n_group=1, topk_group=1,
        norm_topk_prob=True, routed_scaling_factor=1.5, tie_word_embeddings=False, num_nextn_predict_layers=1),
        shows=[dict(num_experts_per_tok=3), dict(routed_scaling_factor=1.0), dict(drop="e_score_correction_bias"), dict(partial_rotary_factor=1.0),
               dict(drop="q_norm.weight"), dict(drop="q_proj.bias")]),
    "glm4moe-air": dict(BF16, cfg=config(
        "Glm4MoeForCausalLM", "glm4_moe", **RMS, head_dim=16, partial_rotary_factor=0.5, attention_bias=True, use_qk_norm=False,
        n_routed_experts=6, num_experts_per_tok=2, n_shared_experts=1, moe_intermediate_size=16, first_k_dense_replace=1, n_group=1, topk_group=1,
        norm_topk_prob=True, routed_scaling_factor=1.0, tie_word_embeddings=False), shows=[dict(num_experts_per_tok=3)]),
    "bailingmoe2": dict(BF16, cfg=config(
        "BailingMoeV2ForCausalLM", "bailing_moe_v2", **RMS, num_hidden_layers=3, head_dim=16, num_experts=12, num_experts_per_tok=3,
        num_shared_experts=1, moe_intermediate_size=16, moe_shared_expert_intermediate_size=16, first_k_dense_replace=1, n_group=4, topk_group=2,
        norm_topk_prob=True, routed_scaling_factor=2.5, score_function="sigmoid", moe_router_enable_expert_bias=True, use_qk_norm=True,
        use_rmsnorm=True, use_bias=False, use_qkv_bias=False, partial_rotary_factor=0.5, output_dropout=0.0, embedding_dropout=0.0,
        router_dtype="fp32", num_nextn_predict_layers=0, tie_word_embeddings=False),
        shows=[dict(n_group=1), dict(topk_group=1), dict(partial_rotary_factor=1.0), dict(drop="expert_bias"), dict(routed_scaling_factor=1.0)]),
    "command-r": dict(F16, cfg={**config(
        "CohereForCausalLM", "cohere", hidden_act="silu", layer_norm_eps=1e-5, logit_scale=0.0625, use_qk_norm=False, attention_bias=False,
        model_max_length=512)}, shows=[dict(logit_scale=1.0), dict(rope_theta=1e6)]),
    "cohere2": dict(BF16, cfg=config(
        "Cohere2ForCausalLM", "cohere2", hidden_act="silu", layer_norm_eps=1e-5, logit_scale=0.25, attention_bias=False, num_hidden_layers=5,
        sliding_window=9, sliding_window_pattern=4, layer_switch=4, order_of_interleaved_layers="local_attn_first", rotary_pct=1.0, head_dim=16,
        position_embedding_type="rope_gptj", use_embedding_sharing=True, use_gated_activation=True, use_parallel_block=True,
        use_parallel_embedding=True), shows=[dict(logit_scale=1.0), dict(sliding_window=10), dict(rope_theta=1e6)]),
    "qwen2moe": dict(BF16, cfg=config(
        "Qwen2MoeForCausalLM", "qwen2_moe", **RMS, num_experts=6, num_experts_per_tok=2, moe_intermediate_size=16, shared_expert_intermediate_size=24,
        norm_topk_prob=False, decoder_sparse_step=1, mlp_only_layers=[], use_sliding_window=False, sliding_window=512, max_window_layers=2,
        tie_word_embeddings=False),
        shows=[dict(norm_topk_prob=True), dict(num_experts_per_tok=3), dict(drop="shared_expert_gate.weight"), dict(drop="q_proj.bias")]),
    "hunyuan-moe": dict(BF16, cfg=config(
        "HunYuanMoEV1ForCausalLM", "hunyuan_v1_moe", **RMS, intermediate_size=16, head_dim=16, attention_bias=False, num_experts=6, moe_topk=[2, 2],
        moe_intermediate_size=[16, 16], num_shared_expert=[1, 1], use_mixed_mlp_moe=True, use_qk_norm=True, use_cla=False,
        moe_layer_num_skipped=0, tie_word_embeddings=True),
        shows=[dict(moe_topk=[3, 3]), dict(drop="shared_mlp.down_proj.weight"), dict(drop="query_layernorm.weight")]),
    "qwen2vl": dict(F16, cfg=config(
        "Qwen2_5_VLForConditionalGeneration", "qwen2_5_vl", **RMS, rope_scaling=MROPE, use_sliding_window=False, sliding_window=512,
        max_window_layers=2, tie_word_embeddings=True, vision_config={"depth": 2}, image_token_id=3, vision_start_token_id=4),
        shows=[dict(rope_theta=1e6), dict(drop="q_proj.bias")]),
    "qwen3vl": dict(BF16, cfg={
        "architectures": ["Qwen3VLForConditionalGeneration"], "model_type": "qwen3_vl", "tie_word_embeddings": True, "vision_config": {"depth": 2},
        "text_config": {k: v for k, v in config("", "qwen3_vl_text", **RMS, head_dim=16, attention_bias=False, rope_scaling={
            "rope_type": "default", "mrope_interleaved": True, "mrope_section": [3, 3, 2]}).items() if k != "architectures"}},
        shows=[dict(drop="q_norm.weight")]),
}
FAMILIES["qwen2_5_vl"] = FAMILIES["qwen2_vl"]
GGUF_ARCH["qwen2_5_vl"] = "qwen2vl"
FORWARD["qwen2_5_vl"] = forward
