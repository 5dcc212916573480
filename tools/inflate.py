#!/usr/bin/env python3
"""A small Llama in a larger shape that computes the same function, so that a large model has something to say.

    inflate.py SRC OUT [--shape qwen2.5-0.5b|qwen2.5-1.5b] [--context N] [--theta T]
    inflate.py SRC OUT --width D --ffn F --layers L --heads H --kv-heads K --head-dim N --vocab V

SRC and OUT are Hugging Face folders (OUT gets F16 weights, F32 norms, SRC's tokenizer). What a random model of a shape cannot show is an
answer that copies from its prompt; this one shows it at the shape's full cost:

- every dimension of the residual stream, every neuron and every head of a group of queries stands there several times; what reads them
  divides SRC's weights among the copies, unevenly and at random, so that nothing is zero or alike;
- pair i of a head's rotation becomes pair i * N / n, which turns at the same rate; a head's further dimensions are zero;
- further layers have random weights and add nothing; further rows of the vocabulary are zero.

--theta changes the rotation's base: 30000 lets tern-tiny, trained for 2,048 tokens, copy from 4,096.
"""
import argparse
import json
import os
import shutil
import sys

import numpy as np

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "train"))
import safetensors  # noqa: E402

LINEARS = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj", "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj")
NORMS = ("input_layernorm", "post_attention_layernorm")
SHAPES = {"qwen2.5-1.5b": dict(width=1536, ffn=8960, layers=28, heads=12, kv_heads=2, head_dim=128, vocab=151936)}
UNEVEN = 0.3  # spread of what the copies get beside their equal share, against it


class Refused(Exception):
    pass


class Shape:
    def __init__(self, c):
        self.width, self.ffn, self.layers = c["hidden_size"], c["intermediate_size"], c["num_hidden_layers"]
        self.heads, self.kv_heads, self.vocab = c["num_attention_heads"], c["num_key_value_heads"], c["vocab_size"]
        self.head_dim = c.get("head_dim") or self.width // self.heads


def repeated(small, large):
    """Which of the small ones each of the large ones is."""
    return np.arange(large) % small


def divided(rng, w, at):
    """w's columns as those of `at`, whose copies of a column add up to it."""
    copies = np.bincount(at)[at].astype(np.float32)
    out = w[:, at] / copies
    extra = rng.standard_normal(out.shape, np.float32) * np.float32(UNEVEN) * np.abs(out).mean()
    mean = np.zeros_like(w)
    for j in range(w.shape[1]):
        mean[:, j] = extra[:, at == j].mean(axis=1)
    return out + np.where(copies > 1, extra - mean[:, at], 0)


def rows_of_heads(small, large, per_group):
    """For every row of the large projection the small one's, or -1: per_group heads of a group that the small one has as many of."""
    step, of = large.head_dim // small.head_dim, np.full((large.kv_heads, per_group[1], large.head_dim), -1)
    for group in range(large.kv_heads):
        for head in range(per_group[1]):
            first = (group % small.kv_heads * per_group[0] + head % per_group[0]) * small.head_dim
            for half in range(2):
                for pair in range(small.head_dim // 2):
                    of[group, head, half * (large.head_dim // 2) + pair * step] = first + half * (small.head_dim // 2) + pair
    return of.reshape(-1)


def taken(w, of):
    """Rows of w, zeros where there is none."""
    return np.where(of[:, None] >= 0, w[np.maximum(of, 0)], np.float32(0))


def layer(rng, src, small, large, i):
    """The tensors of a layer: SRC's layer i, or one that adds nothing where i is None."""
    dims, neurons = repeated(small.width, large.width), repeated(small.ffn, large.ffn)
    q_of = rows_of_heads(small, large, (small.heads // small.kv_heads, large.heads // large.kv_heads))
    kv_of = rows_of_heads(small, large, (1, 1))
    w = {n: src[f"model.layers.{i or 0}.{n}.weight"] for n in LINEARS}
    out = {}
    for name, of, gain in (("self_attn.q_proj", q_of, (large.head_dim / small.head_dim) ** 0.5), ("self_attn.k_proj", kv_of, 1),
                           ("self_attn.v_proj", kv_of, 1), ("mlp.gate_proj", neurons, 1), ("mlp.up_proj", neurons, 1)):
        out[name] = divided(rng, taken(w[name], of) * np.float32(gain), dims)
    live = q_of >= 0
    o = np.zeros((small.width, len(q_of)), np.float32)
    o[:, live] = divided(rng, w["self_attn.o_proj"], q_of[live])
    out["self_attn.o_proj"], out["mlp.down_proj"] = o[dims], divided(rng, w["mlp.down_proj"], neurons)[dims]
    for name in NORMS:
        out[name] = src[f"model.layers.{i or 0}.{name}.weight"][dims]
    if i is None:
        out["self_attn.o_proj"][:] = 0
        out["mlp.down_proj"][:] = 0
    return out


def check(config, small, large):
    if config.get("model_type") != "llama" or config.get("attention_bias") or config.get("rope_scaling") or not config.get("tie_word_embeddings"):
        raise Refused("the source must be a Llama with a tied embedding, without biases and without scaled rotations")
    for name in vars(small):
        if getattr(large, name) < getattr(small, name):
            raise Refused(f"{name.replace('_', ' ')}: {getattr(large, name)} is less than the source's {getattr(small, name)}")
    for name in ("width", "head_dim"):
        if getattr(large, name) % getattr(small, name):
            raise Refused(f"{name.replace('_', ' ')}: {getattr(large, name)} is no multiple of the source's {getattr(small, name)}")
    if large.kv_heads != small.kv_heads:
        raise Refused(f"kv heads: {large.kv_heads} are not the source's {small.kv_heads}")
    if large.heads % large.kv_heads or large.heads // large.kv_heads < small.heads // small.kv_heads:
        raise Refused(f"{large.heads} heads over {large.kv_heads} do not hold the source's groups")


def write(path, plan):
    """plan: (name, shape, dtype, function that makes it). One tensor is in memory at a time, a layer at most."""
    head, at = {"__metadata__": {"format": "pt"}}, 0
    for name, shape, dtype, _ in plan:
        n = int(np.prod(shape)) * np.dtype(dtype).itemsize
        head[name] = {"dtype": {"float16": "F16", "float32": "F32"}[dtype], "shape": list(shape), "data_offsets": [at, at + n]}
        at += n
    h = json.dumps(head, separators=(",", ":")).encode()
    h += b" " * (-len(h) % 8)
    with open(path, "wb") as f:
        f.write(len(h).to_bytes(8, "little") + h)
        for _, _, dtype, make in plan:
            f.write(np.ascontiguousarray(make(), dtype).tobytes())


def inflate(src_folder, out_folder, a):
    config = json.load(open(os.path.join(src_folder, "config.json")))
    small = Shape(config)
    sizes = SHAPES[a.shape] if a.shape else {n: getattr(a, n) for n in vars(small)}
    names = dict(width="hidden_size", ffn="intermediate_size", layers="num_hidden_layers", heads="num_attention_heads",
                 kv_heads="num_key_value_heads", head_dim="head_dim", vocab="vocab_size")
    config |= {names[n]: v if v else getattr(small, n) for n, v in sizes.items()}
    large = Shape(config)
    check(config, small, large)
    config["torch_dtype"] = "float16"
    if a.theta:
        config["rope_theta"] = a.theta
    if a.context:
        config["max_position_embeddings"] = a.context
    src = safetensors.read(os.path.join(src_folder, "model.safetensors"))
    place = {round(i * large.layers / small.layers): i for i in range(small.layers)}
    rng = np.random.default_rng(1)

    def embedding():
        w = np.zeros((large.vocab, large.width), np.float16)
        w[:small.vocab] = src["model.embed_tokens.weight"][:, repeated(small.width, large.width)]
        return w

    def last_norm():  # the tied output layer adds up all copies
        return src["model.norm.weight"][repeated(small.width, large.width)] * np.float32(small.width / large.width)

    made = {}  # the layer at work: its tensors are written one behind the other

    def part(n, name):
        if made.get("layer") != n:
            made.clear()
            made.update(layer(rng, src, small, large, place.get(n)), layer=n)
        return made[name]

    q, kv = large.heads * large.head_dim, large.kv_heads * large.head_dim
    shapes = {"self_attn.q_proj": (q, large.width), "self_attn.k_proj": (kv, large.width), "self_attn.v_proj": (kv, large.width),
              "self_attn.o_proj": (large.width, q), "mlp.gate_proj": (large.ffn, large.width), "mlp.up_proj": (large.ffn, large.width),
              "mlp.down_proj": (large.width, large.ffn), "input_layernorm": (large.width,), "post_attention_layernorm": (large.width,)}
    plan = [("model.embed_tokens.weight", (large.vocab, large.width), "float16", embedding)]
    for n in range(large.layers):
        plan += [(f"model.layers.{n}.{name}.weight", s, "float16" if len(s) == 2 else "float32", lambda n=n, name=name: part(n, name))
                 for name, s in shapes.items()]
    plan.append(("model.norm.weight", (large.width,), "float32", last_norm))
    os.makedirs(out_folder)
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        shutil.copy(os.path.join(src_folder, name), out_folder)
    json.dump(config, open(os.path.join(out_folder, "config.json"), "w"), indent=1)
    write(os.path.join(out_folder, "model.safetensors"), plan)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("src")
    p.add_argument("out")
    p.add_argument("--shape", choices=SHAPES)
    for name in SHAPES["qwen2.5-1.5b"]:
        p.add_argument("--" + name.replace("_", "-"), type=int, help="default: the source's")
    p.add_argument("--context", type=int)
    p.add_argument("--theta", type=float)
    try:
        a = p.parse_args()
        inflate(a.src, a.out, a)
    except (Refused, OSError) as why:
        print(f"inflate: {why}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
