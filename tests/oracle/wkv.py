"""RWKV-7 for the oracle, in float64 from its published definition: a matrix for every head, row after row."""
import math

import numpy as np

from families import config
from files import Stored
from reference import FORWARD, layer_norm, linear, relu

FAMILIES = ("rwkv7",)
LERP = "rwkvag"
LOW = {"w": "decay_low_rank_dim", "a": "a_low_rank_dim", "v": "v_low_rank_dim", "g": "gate_low_rank_dim"}


def checkpoint(name, cfg, dtype, vector_dtype, uniform):
    c, f, v, out = cfg["hidden_size"], cfg["intermediate_size"], cfg["vocab_size"], {}
    d = cfg["head_dim"]

    def matrix(key, rows, cols, gain=1.0):
        out[key + ".weight"] = Stored(uniform(name + key, (rows, cols)) * gain * (3 / cols) ** 0.5, dtype)

    def vector(key, n, centre, spread):
        out[key] = Stored(np.round((centre + spread * uniform(name + key, (n,))) * 128) / 128, vector_dtype)

    def norm(key):
        vector(key + ".weight", c, 1.0, 0.5)
        vector(key + ".bias", c, 0.0, 0.5)

    matrix("model.embeddings", v, c, c**0.5 / 2)
    norm("model.layers.0.pre_norm")
    for i in range(cfg["num_hidden_layers"]):
        p = f"model.layers.{i}."
        norm(p + "attn_norm")
        norm(p + "ffn_norm")
        a = p + "attn."
        for m in LERP:
            vector(a + "x_" + m, c, 0.5, 0.5)
            if cfg["fuse_norm"]:  # as some have them
                out[a + "x_" + m] = Stored(out[a + "x_" + m].values.reshape(1, 1, c), vector_dtype)
        for m in "rkvo":
            matrix(a + m + "_proj", c, c, 1.5)
        for m, key in LOW.items():
            if m == "v" and i == 0 and not cfg["fuse_norm"]:
                continue  # nobody reads it
            matrix(f"{a}{m}_lora.lora.0", cfg[key], c, 1.5)
            matrix(f"{a}{m}_lora.lora.2", c, cfg[key], 1.5)
            if m != "g":
                vector(f"{a}{m}_lora.lora.2.bias", c, -2.0 if m == "w" else 0.0, 1.0)
        vector(a + "k_k", c, 0.8, 0.4)
        vector(a + "k_a", c, 0.8, 0.4)
        vector(a + "r_k", c, 0.0, 0.5)
        out[a + "r_k"] = Stored(out[a + "r_k"].values.reshape(c // d, d), vector_dtype)
        norm(a + "g_norm")
        vector(p + "ffn.x_k", c, 0.5, 0.5)
        matrix(p + "ffn.key", f, c, 1.5)
        matrix(p + "ffn.value", c, f, 1.5)
    norm("model.norm")
    matrix("lm_head", v, c)
    return out


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def before(x):
    return np.concatenate([np.zeros_like(x[:1]), x[:-1]]) - x


def memory(cfg, w, p, x, first):
    """What a layer gives, and its values."""
    d, t = cfg["head_dim"], x.shape[0]
    by_head = lambda v: v.reshape(t, -1, d)
    mixed = {m: x + before(x) * w(p + "x_" + m).reshape(-1) for m in LERP}
    r, k, v = (linear(mixed[m], w(p + m + "_proj.weight")) for m in "rkv")

    def low(m, act=lambda h: h):
        y = linear(act(linear(mixed[m], w(f"{p}{m}_lora.lora.0.weight"))), w(f"{p}{m}_lora.lora.2.weight"))
        return y if m == "g" else y + w(f"{p}{m}_lora.lora.2.bias")

    decay = np.exp(-math.exp(-0.5) * sigmoid(low("w", np.tanh)))
    a, g = sigmoid(low("a")), low("g", sigmoid)
    own = v
    if first is not None:
        v = v + (first - v) * sigmoid(low("v"))
    kk = by_head(k * w(p + "k_k"))
    kk = kk / np.maximum(np.sqrt((kk**2).sum(axis=2, keepdims=True)), 1e-12)
    k = k * (1 + (a - 1) * w(p + "k_a"))
    r, k, v, decay, a = (by_head(m) for m in (r, k, v, decay, a))
    state = np.zeros((r.shape[1], d, d))  # values, keys
    out = np.zeros_like(r)
    for i in range(t):
        found = np.einsum("hvk,hk->hv", state, -kk[i])
        state = state * decay[i][:, None, :] + found[:, :, None] * (kk[i] * a[i])[:, None, :] + v[i][:, :, None] * k[i][:, None, :]
        out[i] = np.einsum("hvk,hk->hv", state, r[i])
    out = out - out.mean(axis=2, keepdims=True)
    out = out / np.sqrt((out**2).mean(axis=2, keepdims=True) + cfg["norm_eps"] * d)
    out = out.reshape(t, -1) * w(p + "g_norm.weight") + w(p + "g_norm.bias")
    out = out + ((r * k * w(p + "r_k")).sum(axis=2, keepdims=True) * v).reshape(t, -1)
    return linear(out * g, w(p + "o_proj.weight")), own


def forward(cfg, w, ids, n_ctx):
    norm = lambda x, key: layer_norm(x, w(key + ".weight"), w(key + ".bias"), cfg["norm_eps"])
    x, first = norm(w("model.embeddings.weight")[ids], "model.layers.0.pre_norm"), None
    for i in range(cfg["num_hidden_layers"]):
        p = f"model.layers.{i}."
        y, v = memory(cfg, w, p + "attn.", norm(x, p + "attn_norm"), first)
        first = v if first is None else first
        x = x + y
        h = norm(x, p + "ffn_norm")
        h = h + before(h) * w(p + "ffn.x_k")
        x = x + linear(relu(linear(h, w(p + "ffn.key.weight"))) ** 2, w(p + "ffn.value.weight"))
    return linear(norm(x, "model.norm"), w("lm_head.weight"))


FORWARD.update({f: forward for f in FAMILIES})


def gguf(cfg, tensors, name, widen=False):
    """(meta, tensors): mixtures with the row before are one tensor."""
    meta = {"general.architecture": "rwkv7", "general.name": name, "tokenizer.ggml.model": "none"}
    say = lambda tail, v: meta.__setitem__(f"rwkv7.{tail}", v)
    say("context_length", 2**20)
    say("embedding_length", cfg["hidden_size"])
    say("block_count", cfg["num_hidden_layers"])
    say("feed_forward_length", cfg["intermediate_size"])
    say("attention.head_count", 0)
    say("attention.layer_norm_epsilon", cfg["norm_eps"])
    say("wkv.head_size", cfg["head_dim"])
    for tail, m in (("decay", "w"), ("iclr", "a"), ("value_residual_mix", "v"), ("gate", "g")):
        say(f"attention.{tail}_lora_rank", cfg[LOW[m]])
    names = {"attn_norm": "attn_norm", "ffn_norm": "attn_norm_2", "attn.r_proj": "time_mix_receptance", "attn.k_proj": "time_mix_key",
             "attn.v_proj": "time_mix_value", "attn.o_proj": "time_mix_output", "attn.g_norm": "time_mix_ln", "ffn.key": "channel_mix_key",
             "ffn.value": "channel_mix_value"}
    whole = {"model.embeddings.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight", "model.norm.bias": "output_norm.bias",
             "lm_head.weight": "output.weight", "model.layers.0.pre_norm.weight": "token_embd_norm.weight",
             "model.layers.0.pre_norm.bias": "token_embd_norm.bias"}
    out = {}
    put = lambda key, v, dtype: out.__setitem__(key, Stored(v, "F32" if np.ndim(v) == 1 or widen else dtype))
    for key, t in tensors.items():
        if key in whole:
            put(whole[key], t.values, t.dtype)
            continue
        layer, part = key[len("model.layers.") :].split(".", 1)
        b, v = f"blk.{layer}.", t.values
        if part.startswith("attn.x_"):
            if part.endswith("x_r"):
                rows = [tensors[key[:-1] + m].values.reshape(1, 1, -1) for m in LERP]
                out[b + "time_mix_lerp_fused.weight"] = Stored(np.stack(rows), "F32")
        elif "_lora." in part:
            put(f"{b}time_mix_{part[5]}{ {'0.weight': 1, '2.weight': 2, '2.bias': 0}[part.split('.', 3)[-1]] }.weight", v, t.dtype)
        elif part in ("attn.k_k", "attn.k_a", "attn.r_k"):
            put(f"{b}time_mix_{part[5:]}.weight", v.reshape(-1), t.dtype)
        elif part == "ffn.x_k":
            put(b + "channel_mix_lerp_k.weight", v, t.dtype)
        else:
            stem, tail = part.rsplit(".", 1)
            put(f"{b}{names[stem]}.{tail}", v, t.dtype)
    return meta, out


WORDS = dict(attn_mode="chunk", hidden_act="sqrelu", hidden_ratio=4.0, norm_first=True, norm_bias=True, norm_eps=4e-5, head_dim=16, attn=None,
             num_heads=2, fuse_norm=True, fuse_cross_entropy=True, use_l2warp=True, tie_word_embeddings=False, decay_low_rank_dim=8, a_low_rank_dim=12,
             v_low_rank_dim=4, gate_low_rank_dim=20, value_dim=[32] * 3)


def words(**more):
    of = config("RWKV7ForCausalLM", "rwkv7", **{**WORDS, "num_hidden_layers": 3, **more})
    for word in ("num_attention_heads", "num_key_value_heads", "rope_theta"):
        del of[word]
    return of


SHOWS = [dict(drop="attn.x_w"), dict(drop="attn.x_g"), dict(drop="w_lora.lora.0.weight"), dict(drop="v_lora.lora.2.bias"), dict(drop="attn.k_k"),
         dict(drop="attn.k_a"), dict(drop="attn.r_k"), dict(drop="g_norm.bias"), dict(drop="pre_norm.bias"), dict(drop="ffn.x_k"), dict(norm_eps=1e-2)]
CASES = {
    "rwkv7": dict(dtype="BF16", vectors="BF16", n_tok=300, n_ctx=320, gguf=True, cfg=words(), shows=SHOWS),
    "rwkv7-plain": dict(dtype="F16", vectors="F16", n_tok=40, gguf=True, cfg=words(fuse_norm=False, max_position_embeddings=64), shows=SHOWS),
}
