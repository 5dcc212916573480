#!/usr/bin/env python3
"""Give a small dense model the shape of a large one without changing its function: as_shape.py MODEL_FOLDER OUT_FOLDER --shape 1.5b

What it writes answers as the small model does, and takes the large one's time: for measuring what depends on both, as
drafts do. Channels, feed-forward channels and vocabulary go on with zeros, norms are made up for the longer mean, heads
that are added are read by nobody, and layers that are added add nothing. A layer that guesses one token further (mtp.py)
grows alike.
"""
import argparse
import json
import math
import os
import shutil

import numpy as np

import safetensors

# layers, width, heads, head size, feed-forward size, vocabulary: of Qwen2.5. All have two heads of keys and values.
SHAPES = {"0.5b": (24, 896, 14, 64, 4864, 151936), "1.5b": (28, 1536, 12, 128, 8960, 151936)}
KV = 2


def grown(t, name, c, shape, rng, empty):
    """A tensor of the small model (config c) in the large one's shape; empty: of a layer that adds nothing."""
    _, d, n_heads, d_head, d_ff, n_vocab = shape
    small, old_head = c["hidden_size"], c["head_dim"]
    per_kv, old_per_kv = n_heads // KV, c["num_attention_heads"] // KV
    i = np.arange(old_head)
    turned = i % (old_head // 2) * (d_head // old_head) + i // (old_head // 2) * (d_head // 2)  # the same angles
    q_heads = [h // old_per_kv * per_kv + h % old_per_kv for h in range(c["num_attention_heads"])]
    kind = name.split(".")[-2]
    if t.ndim == 1:
        out = np.zeros(d, np.float32)
        out[:small] = t * math.sqrt(small / d)
        return out
    rows = cols = range(small)
    n_rows = n_cols = d
    if kind == "embed_tokens":
        rows, n_rows = range(t.shape[0]), n_vocab
    elif kind in ("q_proj", "k_proj"):
        heads, n_rows = (q_heads, n_heads * d_head) if kind == "q_proj" else (range(KV), KV * d_head)
        rows = [h * d_head + k for h in heads for k in turned]
        t = t * math.sqrt(d_head / old_head) if kind == "q_proj" else t
    elif kind == "v_proj":
        rows, n_rows = [h * d_head + k for h in range(KV) for k in range(old_head)], KV * d_head
    elif kind == "o_proj":
        cols, n_cols = [h * d_head + k for h in q_heads for k in range(old_head)], n_heads * d_head
    elif kind in ("gate_proj", "up_proj"):
        rows, n_rows = range(t.shape[0]), d_ff
    elif kind == "down_proj":
        cols, n_cols = range(t.shape[1]), d_ff
    elif kind == "fc":  # the token's embedding, then the state
        cols, n_cols = [*range(small), *range(d, d + small)], 2 * d
    if empty:
        quiet = kind in ("o_proj", "down_proj")
        return np.zeros((n_rows, n_cols), np.float32) if quiet else rng.standard_normal((n_rows, n_cols), np.float32) * 0.02
    out = np.zeros((n_rows, n_cols), np.float32)
    out[np.ix_(rows, cols)] = t
    return out


def write(path, names, make):
    """F32 tensors as bf16, one at a time; names: (name, shape)."""
    head, at = {"__metadata__": {"format": "pt"}}, 0
    for n, shape in names:
        size = 2 * math.prod(shape)
        head[n] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [at, at + size]}
        at += size
    h = json.dumps(head, separators=(",", ":")).encode()
    h += b" " * (-len(h) % 8)
    with open(path, "wb") as f:
        f.write(len(h).to_bytes(8, "little") + h)
        for n, shape in names:
            t = make(n)
            assert t.shape == tuple(shape), (n, t.shape, shape)
            f.write(safetensors.to_bf16(t).tobytes())


def shape_of(name, shape):
    _, d, n_heads, d_head, d_ff, n_vocab = shape
    kind = name.split(".")[-2]
    return {"embed_tokens": (n_vocab, d), "q_proj": (n_heads * d_head, d), "k_proj": (KV * d_head, d), "v_proj": (KV * d_head, d),
            "o_proj": (d, n_heads * d_head), "gate_proj": (d_ff, d), "up_proj": (d_ff, d), "down_proj": (d, d_ff), "fc": (d, 2 * d)}.get(kind, (d,))


def plan(c, p, shape):
    """The large model's tensors: whose shape each has, and unless it is a new layer's, whose numbers."""
    assert c["num_key_value_heads"] == KV and shape[3] % c["head_dim"] == 0
    last, of = f"model.layers.{c['num_hidden_layers'] - 1}.", {n: n for n in p}
    for layer in range(c["num_hidden_layers"], shape[0]):
        of.update({f"model.layers.{layer}.{n[len(last):]}": n for n in p if n.startswith(last)})
    return of


def config_of(c, shape):
    layers, d, n_heads, d_head, d_ff, n_vocab = shape
    return {**c, "num_hidden_layers": layers, "hidden_size": d, "num_attention_heads": n_heads, "head_dim": d_head,
            "intermediate_size": d_ff, "vocab_size": n_vocab, "rms_norm_eps": c["rms_norm_eps"] * c["hidden_size"] / d}


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("model"), ap.add_argument("out")
    ap.add_argument("--shape", choices=SHAPES, default="1.5b")
    a = ap.parse_args()
    c = json.load(open(f"{a.model}/config.json"))
    p, shape = safetensors.read(f"{a.model}/model.safetensors"), SHAPES[a.shape]
    assert c["tie_word_embeddings"], "the output layer is to be the embedding"
    os.makedirs(a.out, exist_ok=True)
    for n in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        shutil.copy(f"{a.model}/{n}", a.out)
    json.dump(config_of(c, shape), open(f"{a.out}/config.json", "w"), indent=1)
    of, rng = plan(c, p, shape), np.random.default_rng(1)
    write(f"{a.out}/model.safetensors", [(n, shape_of(n, shape)) for n in of],
          lambda n: grown(p[of[n]], of[n], c, shape, rng, n != of[n]))


if __name__ == "__main__":
    main()
