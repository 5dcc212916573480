"""Drafters of DFlash for the oracle: drafters of heads.py's model in the forms that folders and GGUF files have, and the logits of every draft
of a block after every place of a text, in float64 from the published definition."""
import math

import numpy as np

from files import GGUF_NAMES, Stored, write_gguf, write_hf_folder
from heads import CHAIN, CHAIN_WIDTH, N_LAYERS, N_VOCAB, WIDTH, inputs, model, weights, write_vectors
from reference import gated, geometry, heads, linear, rms_norm, rope_frequencies, rotate, silu, softmax

SLIDING, FULL = "sliding_attention", "full_attention"
N_TOK, MASK = 40, 47
LAYERS = dict(
    model_type="qwen3", vocab_size=N_VOCAB, hidden_size=WIDTH, intermediate_size=56, num_attention_heads=4, num_key_value_heads=2, head_dim=16,
    hidden_act="silu", max_position_embeddings=64, rms_norm_eps=1e-6, rope_theta=1000000.0, rope_scaling=None, attention_bias=False,
    tie_word_embeddings=False,
)
# Of each: its layers, those of the model that it reads what is left by, the rows of its block, the type of its tensors.
DRAFTERS = {
    "dflash": dict(cfg={**LAYERS, "num_hidden_layers": 2, "layer_types": [FULL] * 2, "sliding_window": None, "use_sliding_window": False,
                        "max_window_layers": 6}, reads=[0, 2, 3, 4], block=8, dtype="F32", scale=None),
    # layers with a window, and embeddings that are multiplied by a number
    "dflash-windows": dict(cfg={**LAYERS, "num_hidden_layers": 3, "layer_types": [SLIDING, SLIDING, FULL], "sliding_window": 6,
                                "use_sliding_window": True, "max_window_layers": 3, "num_key_value_heads": 1}, reads=[1, 3], block=6, dtype="BF16", scale=None),
}
# The same tensors, read otherwise: by what a configuration may say beside the rest.
OTHERWISE = {
    "dflash-few": ("dflash", dict(block=3)),
    "dflash-scaled": ("dflash", dict(scale=2.5)),
    "dflash-all": ("dflash-windows", dict(causal=False)),
    "dflash-before": ("dflash-windows", dict(causal=True)),
}


def drafter(name, d, uniform):
    cfg, out = d["cfg"], {}
    matrix, vector = weights(out, name, uniform, d["dtype"])
    n_heads, n_kv, size = geometry(cfg)
    c, f = cfg["hidden_size"], cfg["intermediate_size"]

    matrix("fc", c, len(d["reads"]) * WIDTH, 1.5)
    vector("hidden_norm", c)
    vector("norm", c)
    for i in range(cfg["num_hidden_layers"]):
        p = f"layers.{i}."
        for n, rows in (("q_proj", n_heads * size), ("k_proj", n_kv * size), ("v_proj", n_kv * size)):
            matrix(p + "self_attn." + n, rows, c, 1.5)
        matrix(p + "self_attn.o_proj", c, n_heads * size, 2.0)
        for n in ("q_norm", "k_norm"):
            vector(p + "self_attn." + n, size)
        matrix(p + "mlp.gate_proj", f, c, 1.5)
        matrix(p + "mlp.up_proj", f, c, 1.5)
        matrix(p + "mlp.down_proj", c, f)
        vector(p + "input_layernorm", c)
        vector(p + "post_attention_layernorm", c)
    return out


def seen(n, block, kind, window, causal):
    """[block, n + block]: which positions the rows at n .. n + block - 1 see. Unless it is said for all layers, those with a window see
    what is before them, the others all."""
    query, key = n + np.arange(block)[:, None], np.arange(n + block)[None, :]
    before = kind == SLIDING if causal is None else causal
    visible = key <= query if before else np.ones((block, n + block), dtype=bool)
    return visible & (abs(query - key) < window) if kind == SLIDING else visible


def attend(q, k, v, visible):
    per_group, out = q.shape[1] // k.shape[1], []
    for h in range(q.shape[1]):
        score = linear(q[:, h], k[:, h // per_group]) / math.sqrt(q.shape[2])
        out.append(linear(softmax(np.where(visible, score, -np.inf)), v[:, h // per_group].T))
    return np.concatenate(out, axis=1)


def drafts(d, model_w, w, ids, last):
    """Logits of the tokens at last + 2 .. last + block, where ids[.. last] are evaluated and ids[last + 1] is drawn."""
    cfg, n, block = d["cfg"], last + 1, d["block"]
    n_heads, n_kv, size = geometry(cfg)
    norm = lambda x, name: rms_norm(x, w[name + ".weight"], cfg["rms_norm_eps"])
    freq, mscale = rope_frequencies(cfg, size, n + block)
    taken = inputs(lambda name: model_w[name], [i + 1 for i in d["reads"]], np.array(ids[:n]))
    features = norm(linear(taken, w["fc.weight"]), "hidden_norm")
    x = model_w["model.embed_tokens.weight"][np.array([ids[n]] + [MASK] * (block - 1))] * (d["scale"] or 1)
    for i, kind in enumerate(cfg["layer_types"]):
        p = f"layers.{i}."
        rows = np.concatenate([features, norm(x, p + "input_layernorm")])
        q, k, v = (heads(linear(rows, w[p + f"self_attn.{m}_proj.weight"]), g) for m, g in (("q", n_heads), ("k", n_kv), ("v", n_kv)))
        q, k = (rotate(norm(y, p + f"self_attn.{m}_norm"), freq, mscale) for m, y in (("q", q), ("k", k)))
        a = attend(q[n:], k, v, seen(n, block, kind, cfg["sliding_window"], d.get("causal")))
        x = x + linear(a, w[p + "self_attn.o_proj.weight"])
        x = x + gated(norm(x, p + "post_attention_layernorm"), *(w[p + f"mlp.{m}_proj.weight"] for m in ("gate", "up", "down")), silu)
    return linear(norm(x, "norm"), model_w["lm_head.weight"])[1:]


def folder_of(d):
    """With the keys that published configurations have, by what the programs that read them are tested with."""
    return {
        "architectures": ["DFlashDraftModel"], "attention_dropout": 0.0, "auto_map": {"AutoModel": "dflash.DFlashDraftModel"},
        "block_size": d["block"], "bos_token_id": 1, "dflash_config": {"mask_token_id": MASK, "target_layer_ids": d["reads"]},
        "dtype": "bfloat16", "eos_token_id": 2, "initializer_range": 0.02, **d["cfg"], "num_target_layers": N_LAYERS,
        "transformers_version": "4.57.1", "use_cache": True,
    }


def gguf_of(d, tensors, name):
    """As llama.cpp's converter makes it of a folder."""
    cfg = d["cfg"]
    n_heads, n_kv, size = geometry(cfg)
    meta = {
        "general.architecture": "dflash", "general.name": name, "dflash.block_count": cfg["num_hidden_layers"],
        "dflash.context_length": cfg["max_position_embeddings"], "dflash.embedding_length": cfg["hidden_size"],
        "dflash.feed_forward_length": cfg["intermediate_size"], "dflash.attention.head_count": n_heads,
        "dflash.attention.head_count_kv": n_kv, "dflash.rope.freq_base": cfg["rope_theta"],
        "dflash.attention.layer_norm_rms_epsilon": cfg["rms_norm_eps"], "dflash.attention.key_length": size,
        "dflash.attention.value_length": size, "dflash.vocab_size": cfg["vocab_size"], "dflash.block_size": d["block"],
        "dflash.target_layers": [i + 1 for i in d["reads"]], "tokenizer.ggml.model": "none", "tokenizer.ggml.mask_token_id": d.get("mask", MASK),
    }
    if cfg["use_sliding_window"]:
        meta["dflash.attention.sliding_window"] = cfg["sliding_window"]
        meta["dflash.attention.sliding_window_pattern"] = [kind == SLIDING for kind in cfg["layer_types"]]
    own, out = {"fc": "fc", "hidden_norm": "enc.output_norm", "norm": "output_norm"}, {}
    for key, t in tensors.items():
        stem, at = key[: -len(".weight")], ""
        if stem.startswith("layers."):
            layer, stem = stem[len("layers.") :].split(".", 1)
            at = f"blk.{layer}."
        out[f"{at}{own.get(stem) or GGUF_NAMES[stem]}.weight"] = Stored(t.values, "F32" if t.values.ndim == 1 else t.dtype)
    return meta, out


def chain(out):
    """A drafter of heads.py's chain, which says f(t) = 5 t + 3 (mod 32) after token t. Row i of a block must hold f^(i - 1) of the first
    row's token. One layer for each: that of distance i, the largest first, has every row read the row i in front of it, and adds f^(i - 1)
    of what that holds, 4^i times; what is kept of the text has no values. So row i gets what it must hold from the first row, while it is
    still as it was, and whatever later layers add to it is less."""
    block, n_heads, size = 9, 4, CHAIN_WIDTH // 4
    cfg = {**LAYERS, "vocab_size": CHAIN, "hidden_size": CHAIN_WIDTH, "num_attention_heads": n_heads, "num_key_value_heads": n_heads, "head_dim": size,
           "intermediate_size": 32, "max_position_embeddings": 512, "rope_theta": 20000.0, "num_hidden_layers": block - 1,
           "use_sliding_window": False, "layer_types": [FULL] * (block - 1)}
    after = np.zeros((CHAIN_WIDTH, CHAIN_WIDTH))
    after[[(5 * t + 3) % CHAIN for t in range(CHAIN)], np.arange(CHAIN)] = 1
    ones, zeros = Stored(np.ones(CHAIN_WIDTH), "F32"), lambda n, k: Stored(np.zeros((n, k)), "Q8_0")
    features = np.zeros((CHAIN_WIDTH, 2 * CHAIN_WIDTH))
    features[CHAIN, CHAIN_WIDTH + CHAIN] = 1  # what is the same of every token, of the second layer that is read
    tensors = {"fc.weight": Stored(features, "Q8_0"), "hidden_norm.weight": ones, "norm.weight": ones}
    freq, _ = rope_frequencies(cfg, size, 1)
    keys = np.zeros((CHAIN_WIDTH, CHAIN_WIDTH))
    slow = freq < 0.1  # the others turn round within a block
    keys[:, CHAIN] = np.tile(np.concatenate([slow, np.zeros(size // 2)]), n_heads)
    for i in range(block - 1):
        p, distance = f"layers.{i}.", block - 1 - i
        turned = np.tile(np.concatenate([slow * np.cos(-distance * freq), slow * np.sin(-distance * freq)]), n_heads)  # as a key so far away is
        queries, values = np.zeros((CHAIN_WIDTH, CHAIN_WIDTH)), np.eye(CHAIN_WIDTH)
        queries[:, CHAIN] = turned
        for _ in range(distance - 1):
            values = after @ values
        values[:, CHAIN:] = 0
        values[CHAIN:] = 0
        of = {"q_proj": queries, "k_proj": keys, "v_proj": values, "o_proj": np.eye(CHAIN_WIDTH) * 4.0**distance}
        tensors |= {f"{p}self_attn.{n}.weight": Stored(v, "F32" if n == "q_proj" else "Q8_0") for n, v in of.items()}
        tensors |= {f"{p}mlp.{n}.weight": zeros(*s) for n, s in
                    {"gate_proj": (32, CHAIN_WIDTH), "up_proj": (32, CHAIN_WIDTH), "down_proj": (CHAIN_WIDTH, 32)}.items()}
        tensors |= {f"{p}{n}.weight": ones for n in ("input_layernorm", "post_attention_layernorm")}
        tensors |= {f"{p}self_attn.q_norm.weight": Stored(np.full(size, 16384.0), "F32"), f"{p}self_attn.k_norm.weight": Stored(np.ones(size), "F32")}
    d = dict(cfg=cfg, reads=[0, 2], block=block, mask=0)
    write_gguf(out / "chain-dflash.gguf", *gguf_of(d, tensors, "chain"))


def make_all(out, uniform, rounded):
    out = out / "heads"
    model_w = {k: t.values for k, t in model(uniform).items()}
    ids = ((uniform("dflash-tokens", (N_TOK,)) + 1) / 2 * N_VOCAB).astype(int).tolist()
    positions = [0, 1, 7, 8, 31, 32, N_TOK - 3]
    chain(out)

    def vectors(name, d, w):
        rows = [drafts(d, model_w, w, ids, p) for p in positions]
        (out / name).mkdir(exist_ok=True)
        write_vectors(out / name, ids, positions, [[rounded(row) for row in block] for block in rows])
        return rows[positions.index(32)]

    for name, d in DRAFTERS.items():
        tensors = drafter(name, d, uniform)
        w = {k: t.values for k, t in tensors.items()}
        (out / name).mkdir()
        write_hf_folder(out / name, folder_of(d), tensors, 1)
        write_gguf(out / f"{name}.gguf", *gguf_of(d, tensors, name))
        whole = vectors(name, d, w)
        for k, v in w.items():  # each shows in every draft
            lost = drafts(d, model_w, {**w, k: v * 0}, ids, 32)
            if (np.abs(lost - whole).max(axis=1) / np.abs(whole).max(axis=1)).min() < 2e-3:
                raise SystemExit(f"{name}: {k} does not show")
        for other, (of, says) in OTHERWISE.items():
            if of != name:
                continue
            changed = vectors(other, {**d, **says}, w)
            n = len(changed)
            if (np.abs(changed - whole[:n]).max(axis=1) / np.abs(whole[:n]).max(axis=1)).max() < 2e-3:
                raise SystemExit(f"{other} does not show")
