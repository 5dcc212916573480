#!/usr/bin/env python3
"""Give a small Llama, or a hybrid (outliers_hybrid.py), the activation outliers of a large one, without changing what it computes.

    inject_outliers.py SRC OUT [--text FILE] [--seed N] [--strength X | --energies FILE] [--keys X] [--check]      HF folder -> HF folder

A scale moves between a tensor and its only readers, so every logit stays what it was:
  norm gain g[c] * s                 columns c of q, k, v (or gate, up) / s
  rows c of v * s                    columns of o that read value channel c, in every query head of the group / s
  row c of up * s                    column c of down / s
  rows of a rope pair of k * s       the same rows of q, in every query head of the group / s      (--keys)
Scales are powers of two, so bf16 weights stay exact and the float results agree to the last bit. The final norm
and the tied embedding are left alone: the embedding has a second reader.

Which channels: real models have 0.1-0.3 % of channels as outliers, nearly always the same few in all layers, worst in
the layers next to input and output, and far larger on some tokens than on others (llm.npu 2.3, LLM.int8()). With 256
channels 0.3 % is less than one, so here it is one to three a norm, drawn with a steep preference from a pool of four
hidden channels; the pool and the down-projection channels are those whose values vary most from token to token
(largest kurtosis and peak on a calibration text), so that scaling magnifies the natural variation.

--energies FILE: not chosen but measured. FILE is an importance matrix of a real model (llama.cpp's legacy format: the mean square of every input
channel of every linear). Every channel is scaled so that the channels of a site, relative to their median, are as unlike as those of the same site
at the same depth there: the r-th largest of n channels takes what the r N / n-th largest of N has, so the largest stays the largest. With a --seed
other than 1 "largest" is by the logarithm and a normal deviate of 1/2, so that other channels of much the same size stand out.

Keys: a few channels of a head are far larger than the rest on all tokens (KIVI, KVQuant). With --keys X every KV head gets one such pair of channels, that which
matters most to the scores; both of a pair, because rope mixes them. --strength 1 --keys X: nothing else.
"""
import argparse
import json
import os
import shutil
import struct
import sys

import numpy as np

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "train"))
import outliers_hybrid  # noqa: E402
import safetensors  # noqa: E402
from bpe import Tokenizer  # noqa: E402


def load(folder):
    with open(f"{folder}/config.json", encoding="utf-8") as f:
        cfg = json.load(f)
    return cfg, safetensors.read(f"{folder}/model.safetensors")


def is_hybrid(cfg):
    return cfg.get("model_type") == outliers_hybrid.MODEL_TYPE


def forward(cfg, w, ids, see=None):
    """Logits [T, V] of one sequence, in the type of the weights; see(name, x) is shown every linear's input."""
    if is_hybrid(cfg):
        return outliers_hybrid.forward(cfg, w, ids, see)
    d, hd, eps = cfg["hidden_size"], cfg["head_dim"], cfg["rms_norm_eps"]
    H, KV, T = cfg["num_attention_heads"], cfg["num_key_value_heads"], len(ids)
    emb = w["model.embed_tokens.weight"]
    inv = cfg["rope_theta"] ** (-np.arange(0, hd, 2) / hd)
    a = np.outer(np.arange(T), inv)
    a = np.concatenate([a, a], -1).astype(emb.dtype)
    cos, sin = np.cos(a), np.sin(a)

    def norm(x, g):
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * g

    def lin(name, x):
        if see:
            see(name, x)
        return x @ w[name].T

    def rope(x):
        h = hd // 2
        return x * cos + np.concatenate([-x[..., h:], x[..., :h]], -1) * sin

    mask = np.triu(np.full((T, T), -np.inf, emb.dtype), 1)
    x = emb[ids]
    for i in range(cfg["num_hidden_layers"]):
        n = f"model.layers.{i}."
        h = norm(x, w[n + "input_layernorm.weight"])
        q, k, v = (lin(n + f"self_attn.{p}_proj.weight", h).reshape(T, -1, hd).transpose(1, 0, 2) for p in "qkv")
        q, k = rope(q), rope(k)
        o = []
        for j in range(H):
            g = j // (H // KV)
            s = q[j] @ k[g].T / np.sqrt(hd).astype(emb.dtype) + mask
            s = np.exp(s - s.max(-1, keepdims=True))
            o.append(s / s.sum(-1, keepdims=True) @ v[g])
        x = x + lin(n + "self_attn.o_proj.weight", np.stack(o, 1).reshape(T, H * hd))
        h = norm(x, w[n + "post_attention_layernorm.weight"])
        g, u = lin(n + "mlp.gate_proj.weight", h), lin(n + "mlp.up_proj.weight", h)
        x = x + lin(n + "mlp.down_proj.weight", g / (1 + np.exp(-g)) * u)
    return norm(x, w["model.norm.weight"]) @ w.get("lm_head.weight", emb).T


def variation(x):
    """Per channel: how much its largest tokens stand out (peak over root mean square)."""
    return np.abs(x).max(0) / np.sqrt((x * x).mean(0) + 1e-12)


def plan(cfg, w, ids, seed, strength):
    """[(layer, site, channel, scale)] with site in attn, mlp, value, down."""
    if is_hybrid(cfg):
        return outliers_hybrid.plan(cfg, w, ids, seed, strength)
    rng, L = np.random.default_rng(seed), cfg["num_hidden_layers"]
    seen = {}
    forward(cfg, w, ids, lambda n, x: seen.__setitem__(n, x))
    key = "model.layers.{}.{}.weight".format
    hidden = sum(np.log(variation(seen[key(i, p)])) for i in range(L) for p in ("self_attn.q_proj", "mlp.gate_proj"))
    pool = np.argsort(-hidden)[:4]
    share = np.array([8.0, 4.0, 2.0, 1.0])
    out = []
    for i in range(L):
        edge = i == 0 or i == L - 1
        s = strength * (4 if edge else 1)
        for site in ("attn", "mlp"):
            n = 3 if edge else int(rng.integers(1, 3))
            chosen = rng.choice(4, n, replace=False, p=share / share.sum())
            for rank, c in enumerate(sorted(chosen)):
                out.append((i, site, int(pool[c]), float(s / 2 ** min(rank, 2))))
        down = variation(seen[key(i, "mlp.down_proj")]) * np.abs(seen[key(i, "mlp.down_proj")]).max(0)
        for rank, c in enumerate(np.argsort(-down)[: 2 if edge else 1]):
            out.append((i, "down", int(c), float(s / 2**rank)))
        if edge:
            v = seen[key(i, "self_attn.q_proj")] @ w[key(i, "self_attn.v_proj")].T
            out.append((i, "value", int(np.argmax(variation(v))), float(s / 4)))
    return out


def read_energies(path):
    """{tensor: mean square of each input channel}"""
    out = {}
    with open(path, "rb") as f:
        data = f.read()
    n, at = struct.unpack_from("<i", data)[0], 4
    for _ in range(n):
        size = struct.unpack_from("<i", data, at)[0]
        name = data[at + 4 : at + 4 + size].decode()
        calls, values = struct.unpack_from("<ii", data, at + 4 + size)
        at += 12 + size
        out[name] = np.frombuffer(data, "<f4", values, at).astype(np.float64) / max(calls, 1)
        at += 4 * values
    return out


def plan_energies(cfg, w, ids, energies, seed):
    """As plan, from a real model's channels."""
    rng = np.random.default_rng(seed)
    seen, out, L = {}, [], cfg["num_hidden_layers"]
    hd, kv, G = cfg["head_dim"], cfg["num_key_value_heads"], cfg["num_attention_heads"] // cfg["num_key_value_heads"]
    forward(cfg, w, ids, lambda n, x: seen.__setitem__(n, np.sqrt((x * x).mean(0)) + 1e-12))
    layers = 1 + max(int(n.split(".")[1]) for n in energies)
    for i in range(L):
        real = f"blk.{round(i * (layers - 1) / max(L - 1, 1))}."
        for site, ours, theirs in (("attn", "self_attn.q_proj", "attn_q"), ("mlp", "mlp.gate_proj", "ffn_gate"), ("value", "self_attn.o_proj", "attn_output"), ("down", "mlp.down_proj", "ffn_down")):
            e = energies.get(f"{real}{theirs}.weight")
            if e is None or not (e > 0).any():
                continue  # some matrices lack their last layers
            own = seen[f"model.layers.{i}.{ours}.weight"]
            if site == "value":  # query heads of a group share a channel of V
                own = np.sqrt((own.reshape(kv, G, hd) ** 2).mean(1)).reshape(-1)
            target = np.sort(np.sqrt(e))[::-1] / np.median(np.sqrt(e))
            order = np.log(own) + (0.5 * rng.standard_normal(len(own)) if seed != 1 else 0)
            for r, c in enumerate(np.argsort(-order)):
                want = max(target[r * len(target) // len(own)], 1e-3)
                s = 2.0 ** np.clip(np.round(np.log2(want / (own[c] / np.median(own)))), -8, 12)
                if s != 1:
                    out.append((i, site, int(c), float(s)))
    return out


def plan_keys(cfg, w, ids, strength):
    """[(layer, "key", first channel of the pair among all keys, scale)]"""
    seen, out, hd, G = {}, [], cfg["head_dim"], cfg["num_attention_heads"] // cfg["num_key_value_heads"]
    forward(cfg, w, ids, lambda n, x: seen.__setitem__(n, x))
    for i in range(cfg["num_hidden_layers"]):
        n = f"model.layers.{i}.self_attn."
        q, k = (np.sqrt(((seen[n + "q_proj.weight"] @ w[n + p].T) ** 2).mean(0)) for p in ("q_proj.weight", "k_proj.weight"))
        for kv in range(cfg["num_key_value_heads"]):
            part = k[kv * hd : (kv + 1) * hd] * q[kv * G * hd : (kv + 1) * G * hd].reshape(G, hd).max(0)
            out.append((i, "key", kv * hd + int(np.argmax(part[: hd // 2] + part[hd // 2 :])), float(strength)))
    return out


def apply(cfg, w, steps):
    if is_hybrid(cfg):
        return outliers_hybrid.apply(cfg, w, steps)
    w = {k: v.copy() for k, v in w.items()}
    hd, G = cfg["head_dim"], cfg["num_attention_heads"] // cfg["num_key_value_heads"]
    for i, site, c, s in steps:
        assert s == 2.0 ** round(np.log2(s)), "scales are powers of two"
        n = f"model.layers.{i}."
        if site == "attn":
            w[n + "input_layernorm.weight"][c] *= s
            for p in "qkv":
                w[n + f"self_attn.{p}_proj.weight"][:, c] /= s
        elif site == "mlp":
            w[n + "post_attention_layernorm.weight"][c] *= s
            for p in ("gate", "up"):
                w[n + f"mlp.{p}_proj.weight"][:, c] /= s
        elif site == "down":
            w[n + "mlp.up_proj.weight"][c] *= s
            w[n + "mlp.down_proj.weight"][:, c] /= s
        elif site == "key":
            kv, e = divmod(c, hd)
            for r in (e, e + hd // 2):
                w[n + "self_attn.k_proj.weight"][kv * hd + r] *= s
                for h in range(kv * G, kv * G + G):
                    w[n + "self_attn.q_proj.weight"][h * hd + r] /= s
        else:  # the query heads kv*G .. kv*G + G-1 read value head kv
            kv, e = divmod(c, hd)
            w[n + "self_attn.v_proj.weight"][c] *= s
            for h in range(kv * G, kv * G + G):
                w[n + "self_attn.o_proj.weight"][:, h * hd + e] /= s
    return w


def main():
    ap = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    ap.add_argument("src")
    ap.add_argument("out")
    ap.add_argument("--text", help="calibration text (default: SRC/calib.txt)")
    ap.add_argument("--tokens", type=int, default=1024)
    ap.add_argument("--seed", type=int, default=1)
    ap.add_argument("--strength", type=float, default=32, help="scale in the middle layers, a power of two; four times it at both ends")
    ap.add_argument("--energies", help="an importance matrix: the channels of that model instead")
    ap.add_argument("--keys", type=float, default=1, help="scale of a pair of key channels in every KV head, a power of two (default 1: none)")
    ap.add_argument("--only", help="of those, these sites, by their names in the list that is printed; expert: all experts'")
    ap.add_argument("--check", action="store_true", help="print how far float64 and float32 logits of both models differ (float64 is always compared)")
    a = ap.parse_args()
    cfg, w = load(a.src)
    if is_hybrid(cfg) and (a.energies or a.keys > 1):
        sys.exit("a hybrid has no --energies and no --keys: its keys are normed behind their projection")
    tok = Tokenizer.load(f"{a.src}/tokenizer.json")
    with open(a.text or f"{a.src}/calib.txt", encoding="utf-8") as f:
        ids = tok.encode(f.read(8 * a.tokens))[: a.tokens]
    steps = plan(cfg, w, ids, a.seed, a.strength) if a.strength > 1 and not a.energies else []
    if a.energies:
        steps = plan_energies(cfg, w, ids, read_energies(a.energies), a.seed)
    if a.keys > 1:
        steps += plan_keys(cfg, w, ids, a.keys)
    if a.only:
        steps = [s for s in steps if ("expert" if isinstance(s[1], int) else s[1]) in a.only.split(",")]
    out = apply(cfg, w, steps)
    # written beside OUT, and renamed once what was written is seen to compute what SRC does
    part = a.out.rstrip("/") + ".part"
    shutil.rmtree(part, ignore_errors=True)
    os.makedirs(part)
    try:
        for f in ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"):
            if os.path.exists(f"{a.src}/{f}"):
                shutil.copyfile(f"{a.src}/{f}", f"{part}/{f}")
        # gains stored as the gain less 1 are not exact in bf16 any more
        safetensors.write(f"{part}/model.safetensors", out, "F32" if is_hybrid(cfg) else "BF16")
        _, back = load(part)
        for t in (np.float64, np.float32) if a.check else (np.float64,):
            x, y = (forward(cfg, {k: v.astype(t) for k, v in m.items()}, ids[:256]) for m in (w, back))
            err = float(np.abs(x - y).max())
            if a.check:
                print(f"{t.__name__}: largest difference of logits {err:g} (logits up to {np.abs(x).max():.1f})")
            if not err <= 1e-9 * (1 if t is np.float64 else 1e5):
                sys.exit(f"the transformation changed the function (logits differ by {err:g}): nothing was written")
        os.makedirs(a.out, exist_ok=True)
        for f in os.listdir(part):
            os.replace(f"{part}/{f}", f"{a.out}/{f}")
    finally:
        shutil.rmtree(part, ignore_errors=True)
    for i, site, c, s in steps:
        print(f"layer {i} {site!s:6} channel {c:4} x {s:g}")


if __name__ == "__main__":
    main()
