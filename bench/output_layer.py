#!/usr/bin/env python3
"""Which share of an output layer's bytes a proven bound leaves to be read: output_layer.py MODEL_FOLDER TEXT [--bits B] [--positions N]

The model is a Hugging Face folder of a Llama with tied embeddings in safetensors (models/tern-tiny); it is run here in NumPy, on TEXT.
The layer has B bits a weight (default 8), a scale a row. Some bits of every row are read first. What the rest can add to a row's logit is at most the
norm of the rest times the norm of the input (Cauchy and Schwarz); the norm of each row's rest is a number made with the weights. The rows
whose upper bound lies at least as high as the best lower bound, less a margin, are read further. Margin 0 is greedy decoding, 2.4 is
temperature 0.8 with min-p 0.05, 5 with min-p 0.002: what sampling can keep is among the rows that are left, so the texts are the same.
"""
import argparse
import json
import os
import struct
import sys

import numpy as np

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "tools", "train"))
from bpe import Tokenizer  # noqa: E402


def tensors(path):
    data = open(path, "rb").read()
    n = struct.unpack("<Q", data[:8])[0]
    out = {}
    for name, t in json.loads(data[8:8 + n]).items():
        if name != "__metadata__":
            begin, end = (8 + n + x for x in t["data_offsets"])
            kind = {"BF16": "<u2", "F16": "<f2", "F32": "<f4"}[t["dtype"]]
            v = np.frombuffer(data[begin:end], dtype=kind)
            v = (v.astype(np.uint32) << 16).view(np.float32) if t["dtype"] == "BF16" else v.astype(np.float32)
            out[name] = v.reshape(t["shape"])
    return out


def inputs(c, w, ids):
    """The output layer's inputs for tokens ids, in contexts of 512: [token][hidden size]."""
    n_heads, n_kv, d = c["num_attention_heads"], c["num_key_value_heads"], c["head_dim"]

    def norm(x, name):
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + c["rms_norm_eps"]) * w[name]

    def rope(x):
        a = np.arange(len(x))[:, None] * c["rope_theta"] ** (-np.arange(0, d, 2) / d)[None]
        cos, sin = np.cos(a)[:, None], np.sin(a)[:, None]
        x1, x2 = x[..., :d // 2], x[..., d // 2:]
        return np.concatenate([x1 * cos - x2 * sin, x2 * cos + x1 * sin], -1)

    out = []
    for at in range(0, len(ids), 512):
        x = w["model.embed_tokens.weight"][np.array([c["bos_token_id"]] + ids[at:at + 512])]
        n = len(x)
        for i in range(c["num_hidden_layers"]):
            p = f"model.layers.{i}."
            h = norm(x, p + "input_layernorm.weight")
            q, k, v = (h @ w[p + f"self_attn.{s}_proj.weight"].T for s in "qkv")
            q, k, v = rope(q.reshape(n, n_heads, d)), rope(k.reshape(n, n_kv, d)), v.reshape(n, n_kv, d)
            o = np.empty((n, n_heads, d))
            for head in range(n_heads):
                kv = head * n_kv // n_heads
                s = q[:, head] @ k[:, kv].T / np.sqrt(d) + np.triu(np.full((n, n), -1e9), 1)
                s = np.exp(s - s.max(-1, keepdims=True))
                o[:, head] = s / s.sum(-1, keepdims=True) @ v[:, kv]
            x = x + o.reshape(n, -1) @ w[p + "self_attn.o_proj.weight"].T
            h = norm(x, p + "post_attention_layernorm.weight")
            g = h @ w[p + "mlp.gate_proj.weight"].T
            x = x + (g / (1 + np.exp(-g)) * (h @ w[p + "mlp.up_proj.weight"].T)) @ w[p + "mlp.down_proj.weight"].T
        out.append(norm(x, "model.norm.weight")[1:])
    return np.concatenate(out)


def share(x, q, scale, width, steps, margin):
    """The share of the bytes that is read, where rows are read by these numbers of their bits as long as they may be chosen."""
    alive, read, before = np.ones((len(x), len(q)), bool), 0.0, 0
    exact = x @ (q * scale).T
    for bits in steps:
        read += alive.mean() * (bits - before) / width
        before = bits
        step = 2 ** (width - bits)
        coarse = (np.floor(q / step) * step + (step - 1) / 2) * scale
        logit = x @ coarse.T
        bound = np.linalg.norm(x, axis=1)[:, None] * np.linalg.norm(q * scale - coarse, axis=1)[None]
        assert (np.abs(exact - logit) <= bound * 1.0001 + 1e-4).all()
        best = np.where(alive, logit - bound, -np.inf).max(-1, keepdims=True)
        alive &= logit + bound >= best - margin
    return read


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("model")
    ap.add_argument("text")
    ap.add_argument("--bits", type=int, default=8)
    ap.add_argument("--positions", type=int, default=800)
    a = ap.parse_args()
    c, w = json.load(open(f"{a.model}/config.json")), tensors(f"{a.model}/model.safetensors")
    ids = Tokenizer.load(f"{a.model}/tokenizer.json").encode(open(a.text, encoding="utf-8").read()[:20 * a.positions])[:a.positions]
    x, rows = inputs(c, w, ids), w["model.embed_tokens.weight"]
    most = 2 ** (a.bits - 1) - 1
    scale = np.abs(rows).max(1, keepdims=True) / most
    q = np.clip(np.round(rows / scale), -most, most)
    cos = np.sort(x @ rows.T / np.linalg.norm(rows, axis=1) / np.linalg.norm(x, axis=1)[:, None], 1)
    print(f"{len(x)} positions, {len(rows)} rows of {rows.shape[1]} inputs; cosine of input and row: best {cos[:, -1].mean():.2f}, "
          f"second {cos[:, -2].mean():.2f}, all {cos.mean():.2f} +- {cos.std(1).mean():.2f}")
    print(f"{'bits read':>16}" + "".join(f"{'margin ' + str(m):>14}" for m in (0, 2.4, 5)))
    for steps in [(b, a.bits) for b in range(2, a.bits)] + [tuple(range(3, a.bits + 1)), tuple(range(4, a.bits + 1, 2))]:
        print(f"{' '.join(map(str, steps)):>16}" + "".join(f"{100 * share(x, q, scale, a.bits, steps, m):12.1f} %" for m in (0, 2.4, 5)))


if __name__ == "__main__":
    main()
