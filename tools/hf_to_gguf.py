#!/usr/bin/env python3
"""A Llama in a Hugging Face folder as GGUF, for engines that read nothing else.

    hf_to_gguf.py SRC OUT.gguf [--type f32|f16|q8_0|q4_0]

Linears and the embedding get the type (a linear whose rows are no multiple of 32 stays f16 under q8_0 and q4_0; there is no matrix of importance), norms stay f32. The tokenizer must be
byte-level BPE with Qwen2's pre-tokenisation, as tern-tiny's is; anything else is refused.
"""
import argparse
import json
import os
import struct
import sys

import numpy as np

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "train"))
import safetensors  # noqa: E402

QWEN2 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
NAMES = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
ALIGN = 32


def string(s):
    b = s.encode()
    return struct.pack("<Q", len(b)) + b


def value(v):
    if isinstance(v, bool):
        return struct.pack("<I?", 7, v)
    if isinstance(v, int):
        return struct.pack("<II", 4, v)
    if isinstance(v, float):
        return struct.pack("<If", 6, v)
    if isinstance(v, str):
        return struct.pack("<I", 8) + string(v)
    kind, items = (8, b"".join(map(string, v))) if isinstance(v[0], str) else (5, struct.pack(f"<{len(v)}i", *v))
    return struct.pack("<IIQ", 9, kind, len(v)) + items


def gguf_name(name):
    if name in NAMES:
        return NAMES[name]
    parts = name.split(".")  # model.layers.N.<part>.weight
    return f"blk.{parts[2]}.{NAMES['.'.join(parts[3:-1])]}.{parts[-1]}"


def encoded(a, kind):
    """GGUF's type number and the bytes."""
    if a.ndim == 1 or kind == "f32":
        return 0, a.astype("<f4").tobytes()
    if kind == "f16" or a.shape[-1] % 32:
        return 1, a.astype("<f2").tobytes()
    b = a.reshape(-1, 32)
    if kind == "q4_0":
        top = b[np.arange(len(b)), np.abs(b).argmax(1)][:, None].astype(np.float32)
        d = top / -8
        q = np.minimum(15, (b * np.divide(1, d, out=np.zeros_like(d), where=d != 0) + 8.5).astype(np.uint8))
        return 2, np.concatenate([d.astype("<f2").view(np.uint8), q[:, :16] | q[:, 16:] << 4], 1).tobytes()
    d = np.abs(b).max(1, keepdims=True) / 127  # q by the unrounded scale, as ggml's reference does
    q = b * np.divide(1, d, out=np.zeros_like(d), where=d > 0)
    q = np.trunc(q + np.copysign(0.5, q)).astype(np.int8)
    return 8, np.concatenate([d.astype("<f2").view(np.uint8), q.view(np.uint8)], 1).tobytes()


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("src")
    p.add_argument("out")
    p.add_argument("--type", default="f16", choices=["f32", "f16", "q8_0", "q4_0"])
    o = p.parse_args()
    with open(f"{o.src}/config.json", encoding="utf-8") as f:
        cfg = json.load(f)
    with open(f"{o.src}/tokenizer.json", encoding="utf-8") as f:
        tok = json.load(f)
    pre = [q.get("pattern", {}).get("Regex") for q in tok["pre_tokenizer"].get("pretokenizers", [])]
    if cfg["model_type"] != "llama" or cfg.get("rope_scaling") or pre[:1] != [QWEN2]:
        sys.exit(f"{o.src}: not a Llama without rope scaling and with Qwen2's pre-tokenisation")
    hd, heads, kv = cfg["head_dim"], cfg["num_attention_heads"], cfg["num_key_value_heads"]
    tokens, types = [""] * cfg["vocab_size"], [5] * cfg["vocab_size"]
    for text, i in tok["model"]["vocab"].items():
        tokens[i], types[i] = text, 1
    for t in tok["added_tokens"]:
        tokens[t["id"]], types[t["id"]] = t["content"], 3 if t["special"] else 4
    for i, t in enumerate(tokens):
        tokens[i] = t or f"[unused{i}]"
    merges = [m if isinstance(m, str) else " ".join(m) for m in tok["model"]["merges"]]
    meta = {
        "general.architecture": "llama",
        "general.name": os.path.basename(os.path.normpath(o.src)),
        "llama.block_count": cfg["num_hidden_layers"],
        "llama.context_length": cfg["max_position_embeddings"],
        "llama.embedding_length": cfg["hidden_size"],
        "llama.feed_forward_length": cfg["intermediate_size"],
        "llama.attention.head_count": heads,
        "llama.attention.head_count_kv": kv,
        "llama.attention.key_length": hd,
        "llama.attention.value_length": hd,
        "llama.rope.dimension_count": hd,
        "llama.rope.freq_base": float(cfg["rope_theta"]),
        "llama.attention.layer_norm_rms_epsilon": float(cfg["rms_norm_eps"]),
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "qwen2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.bos_token_id": cfg["bos_token_id"],
        "tokenizer.ggml.eos_token_id": cfg["eos_token_id"],
        "tokenizer.ggml.add_bos_token": False,
    }
    head, blobs, at = [], [], 0
    weights = safetensors.read(f"{o.src}/model.safetensors")
    if cfg["tie_word_embeddings"]:
        weights.pop("lm_head.weight", None)
    for name, a in weights.items():
        for part, n in (("q_proj", heads), ("k_proj", kv)):
            if part in name:  # GGUF keeps the two halves of a rotary pair next to each other
                a = a.reshape(n, 2, hd // 2, -1).swapaxes(1, 2).reshape(a.shape)
        kind, raw = encoded(np.ascontiguousarray(a), o.type)
        head.append(string(gguf_name(name)) + struct.pack(f"<I{a.ndim}QIQ", a.ndim, *a.shape[::-1], kind, at))
        blobs.append(raw + b"\0" * (-len(raw) % ALIGN))
        at += len(blobs[-1])
    out = b"GGUF" + struct.pack("<IQQ", 3, len(head), len(meta)) + b"".join(string(k) + value(v) for k, v in meta.items()) + b"".join(head)
    with open(o.out, "wb") as f:
        f.write(out + b"\0" * (-len(out) % ALIGN))
        f.writelines(blobs)


if __name__ == "__main__":
    main()
