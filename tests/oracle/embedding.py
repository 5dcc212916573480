#!/usr/bin/env python3
"""Models that embed: small random checkpoints with their tokenizers, and what they make of texts, in float64, from the published
definitions. tests/model/embedding.c and tests/text/pieces.c compare with it.

    tests/oracle/embedding.py             writes tests/oracle/embedding
    tests/oracle/embedding.py --check     are the files what this makes?
    tests/oracle/embedding.py --peer URL NAME [TASK]     asks llama.cpp's server, which runs NAME.gguf with --embeddings, for the text's
                                                  vectors too, and keeps the largest difference with the vectors
"""
import base64
import filecmp
import json
import math
import struct
import sys
import tempfile
import unicodedata
import urllib.request
from pathlib import Path

import numpy as np

from files import Stored, write_gguf, write_hf_folder, write_safetensors

HERE = Path(__file__).parent / "embedding"
TEXTS = [
    "The quick brown fox jumps over the lazy dog.",
    "Héllo, WÖRLD!  don't stop\tnow\nplease",
    "中文 text ﬁts １２３ in a line",
    "unbelievable understatement of thermodynamics, 3.14 & more",
    "",
    "  spaces   around  ",
    "zzzz ☃ qqq",
    "Ünïcödé e\u0301 a\u030a n\u0303",
    "x" * 101 + " " + "y" * 99,
    "a\u200bb\x00c\ufffdd \u00a0 \u3000 end",
]
LONG = " ".join(f"{w} {i}" for i, w in enumerate(("the fox under a line stops more than words can say " * 8).split()))

# ---- WordPiece -----------------------------------------------------------------------------------------

WORDS = ["the", "quick", "brown", "fox", "over", "lazy", "dog", "un", "under", "stop", "now", "in", "line", "hello", "text", "3", "14", "中"]
TAILS = ["s", "ing", "believ", "able", "state", "ment", "world", "er", "or", "ld", "mo", "dy", "nam", "ics", "1", "2"]
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def wordpiece_vocabulary():
    letters = [chr(c) for c in range(97, 123)] + [c for c in "0123456789.,!&'"]
    v = list(SPECIAL) + letters + ["##" + c for c in letters if c.isalnum() and c not in "jqz"] + [w for w in WORDS if len(w) > 1 or w == "中"]
    return v + ["##" + t for t in TAILS if len(t) > 1]


def wordpiece(text, vocab):
    """Clean, lower-case, strip accents; words; the longest piece first."""
    out = []
    for c in text:
        k = unicodedata.category(c)
        if c in "\t\n\r":
            out.append(" ")
        elif c in "\0\ufffd" or k in ("Cc", "Cf", "Co"):
            continue
        elif "CJK UNIFIED" in unicodedata.name(c, ""):
            out.append(f" {c} ")
        else:
            out.append(c)
    text = "".join(c for c in unicodedata.normalize("NFD", "".join(out)) if unicodedata.category(c) != "Mn").lower()
    text = "".join(f" {c} " if (c.isascii() and c.isprintable() and not c.isalnum() and c != " ") or unicodedata.category(c)[0] == "P" else c for c in text)
    index, ids = {t: i for i, t in enumerate(vocab)}, []
    for word in text.split():
        pieces, at = [], 0
        while at < len(word) and len(word) <= 100:
            end = len(word)
            while end > at and ("##" * (at > 0) + word[at:end]) not in index:
                end -= 1
            if end == at:
                break
            pieces.append(index["##" * (at > 0) + word[at:end]])
            at = end
        ids += pieces if at == len(word) else [index["[UNK]"]]
    return ids


# ---- unigram -------------------------------------------------------------------------------------------

MAPPED = {"ﬁ": "fi", "１": "1", "２": "2", "３": "3", "\t": " ", "\n": " ", "\u00a0": " ", "\u3000": " ", "e\u0301": "é", "\u200b": "", "…": "..."}


def charsmap(mapped):
    """SentencePiece's precompiled map: size, double array of units (label, has value, offset), strings."""
    trie, strings = {}, b""
    for key in sorted(mapped):
        node = trie
        for b in key.encode():
            node = node.setdefault(b, {})
        node[-1] = len(strings)
        strings += mapped[key].encode() + b"\0"
    units, used = {0: 0}, {0}

    def place(node, at):
        labels = [0 if b == -1 else b for b in node]
        offset = next(o for o in range(1, 1 << 21) if all((at ^ o ^ b) not in used for b in labels) and o < 1 << 21)
        units[at] |= offset << 10 | (-1 in node) << 8
        for b in labels:
            used.add(at ^ offset ^ b)
        for b, child in node.items():
            if b == -1:
                units[at ^ offset] = 1 << 31 | child
            else:
                units[at ^ offset ^ b] = b
        for b, child in node.items():
            if b != -1:
                place(child, at ^ offset ^ b)

    place(trie, 0)
    array = [units.get(i, 0) for i in range(max(units) + 1)]
    return struct.pack(f"<I{len(array)}I", 4 * len(array), *array) + strings


def unigram_vocabulary():
    pieces = [("<s>", 0.0), ("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0)]
    for w in WORDS + TAILS + ["▁", "▁the", "▁fox", "▁a", "▁qui", "ck", "bro", "wn", "▁in", "fi", "ts", "▁line", "é", "ö", "wör", "than", "▁words"]:
        if w not in [p for p, _ in pieces]:
            pieces.append((w, -3.0 - (len(pieces) * 7 % 11) / 4))
    for c in "abcdefghijklmnopqrstuvwxyzHWT0123456789.,!&'":
        if c not in [p for p, _ in pieces]:
            pieces.append((c, -7.0 - (ord(c) * 5 % 13) / 8))
    return [(p, float(np.float32(s))) for p, s in pieces]


def unigram(text, pieces):
    out, i = "", 0
    while i < len(text):
        keys = [k for k in MAPPED if text.startswith(k, i)]
        key = max(keys, key=len) if keys else text[i]
        out += MAPPED.get(key, key)
        i += len(key)
    words = [w for w in out.replace("▁", " ").split(" ") if w]
    index = {p: (i, s) for i, (p, s) in enumerate(pieces) if i > 3}
    unknown, ids = min(s for _, s in index.values()) - 10, []
    for word in ["▁" + w for w in words]:
        best = [(0.0, [])] + [None] * len(word)
        for end in range(1, len(word) + 1):
            for start in range(end):
                if best[start] is None:
                    continue
                piece = word[start:end]
                got = index.get(piece, (3, unknown) if end == start + 1 else None)
                if got and (best[end] is None or best[start][0] + got[1] > best[end][0]):
                    best[end] = (best[start][0] + got[1], best[start][1] + [got[0]])
        word_ids = best[-1][1]
        ids += [x for k, x in enumerate(word_ids) if not (x == 3 and k and word_ids[k - 1] == 3)]
    return ids


# ---- ranked merges of bytes ----------------------------------------------------------------------------

MERGES = ["t h", "th e", "Ġ the", "Ġ f", "o x", "Ġf ox", "i n", "in g", "Ġ l", "Ġl in", "Ġlin e", "Ġ q", "u i", "c k", "Ġ w", "o r", "Ġw or", "d s", "Ġ 1",
          "Ã ©", "e r", "Ġ s", "a y", "s t", "o p", "Ġ ju", "j u", "m p", "ju mp"]


def byte_letters():
    """GPT-2's letter for every byte."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    rest = [b for b in range(256) if b not in plain]
    return {**{b: chr(b) for b in plain}, **{b: chr(256 + i) for i, b in enumerate(rest)}}


def bpe_vocabulary(special):
    """Special tokens in front (RoBERTa's kind) or after the rest (ModernBERT)."""
    words = [c for _, c in sorted(byte_letters().items())] + [m.replace(" ", "") for m in MERGES]
    return special + words if special[0] == "<s>" else words + special


def gpt2_pieces(text):
    """'s|'t|'re|'ve|'m|'ll|'d| ?letters| ?digits| ?others|spaces, of which the last goes to what comes after them."""
    kind = lambda c: "s" if c.isspace() else {"L": "l", "N": "n"}.get(unicodedata.category(c)[0], "o")
    out, i = [], 0
    while i < len(text):
        tail = next((t for t in ("'s", "'t", "'re", "'ve", "'m", "'ll", "'d") if text.startswith(t, i)), None)
        if tail:
            out.append(tail)
            i += len(tail)
            continue
        at = i + (text[i] == " " and i + 1 < len(text) and kind(text[i + 1]) != "s")
        k = kind(text[at])
        end = at
        while end < len(text) and kind(text[end]) == k:
            end += 1
        if k == "s" and end < len(text) and end - at > 1:
            end -= 1
        out.append(text[i:end])
        i = end
    return out


def bpe(text, vocab):
    letters, rank, index, ids = byte_letters(), {tuple(m.split(" ")): i for i, m in enumerate(MERGES)}, {t: i for i, t in enumerate(vocab)}, []
    for piece in gpt2_pieces(text):
        parts = [letters[b] for b in piece.encode()]
        while len(parts) > 1:
            best = min(range(len(parts) - 1), key=lambda i: rank.get((parts[i], parts[i + 1]), 1 << 30))
            if (parts[best], parts[best + 1]) not in rank:
                break
            parts[best : best + 2] = [parts[best] + parts[best + 1]]
        ids += [index[x] for x in parts]
    return ids


MODERN = ["[UNK]", "[CLS]", "[SEP]", "[PAD]", "[MASK]"]
ROBERTA = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]

# ---- models --------------------------------------------------------------------------------------------

E, HEADS, FF, LAYERS, CTX = 32, 4, 64, 3, 512
CASES = {
    "bert": dict(arch="bert", pooling="cls"),
    "bert-rank": dict(arch="bert", pooling="rank"),
    "xlm-roberta": dict(arch="bert", pooling="mean", unigram=True, padded=2),
    "xlm-roberta-rank": dict(arch="bert", pooling="rank", unigram=True, padded=2),
    "nomic-bert": dict(arch="nomic-bert", pooling="mean"),
    "gemma-embedding": dict(arch="gemma-embedding", pooling="mean", window=64, dense=48, kv=1),
    "qwen3-embedding": dict(arch="qwen3", pooling="last", kv=2),
    "qwen3-rerank": dict(arch="qwen3", pooling="rank", kv=2),
    "modern-bert": dict(arch="modern-bert", pooling="cls", window=64, bytes=MODERN, layers=5),
    "modern-bert-silu": dict(arch="modern-bert", pooling="mean", window=64, bytes=MODERN, layers=2, act="silu"),
    "modern-bert-rank": dict(arch="modern-bert", pooling="rank", window=64, bytes=MODERN, layers=4),
    "jina-bert-v2": dict(arch="jina-bert-v2", pooling="mean"),
    "jina-bert-v2-code": dict(arch="jina-bert-v2", pooling="mean", bytes=ROBERTA, code=True, e=24, heads=6),
    "jina-bert-v3": dict(arch="jina-bert-v3", pooling="mean", unigram=True, joined=True, tasks=True),
    "jina-rerank-v1": dict(arch="jina-bert-v2", pooling="rank", bytes=ROBERTA, code=True, e=24, heads=6, layers=2, bare=True),
    "jina-rerank-v1-words": dict(arch="jina-bert-v2", pooling="rank", layers=2, bare=True),
    "jina-rerank-v2": dict(arch="bert", pooling="rank", unigram=True, padded=2, joined=True),
    "nomic-bert-moe": dict(arch="nomic-bert-moe", pooling="mean", unigram=True, experts=4, layers=4),
}
AFTER = ("bert", "nomic-bert", "nomic-bert-moe", "jina-bert-v2", "jina-bert-v3")  # norms come after blocks
BIASED = ("bert", "nomic-bert-moe", "jina-bert-v2", "jina-bert-v3")
GATED = ("nomic-bert", "modern-bert", "jina-bert-v2", "qwen3", "gemma-embedding")


def width(case):
    return case.get("e", E)


def n_heads(case):
    return case.get("heads", HEADS)


def n_layers(case):
    return case.get("layers", LAYERS if case["arch"] in AFTER else 7 if case.get("window") else 3)
POOLING = {"none": 0, "mean": 1, "cls": 2, "last": 3, "rank": 4}


def random_tensor(rng, shape, scale, offset=0.0, dtype="F32"):
    return Stored(offset + scale * rng.standard_normal(shape), dtype)


def weights(name, case, n_vocab):
    rng = np.random.default_rng(sum(map(ord, name)))
    E = width(case)
    arch, d, kv = case["arch"], E // n_heads(case), case.get("kv", n_heads(case)) * (E // n_heads(case))
    after, modern, bias, t = arch in AFTER, arch == "modern-bert", arch in BIASED, {}
    m = lambda *shape, gain=1.0: random_tensor(rng, shape, gain / math.sqrt(shape[-1]), dtype="F16")
    vec = lambda n, offset=0.0: random_tensor(rng, (n,), 0.25, offset)
    t["token_embd.weight"] = random_tensor(rng, (n_vocab, E), 0.5, dtype="F16")
    if after:
        t["token_types.weight"] = random_tensor(rng, (1 if case.get("unigram") else 2, E), 0.3)
        t["token_embd_norm.weight"], t["token_embd_norm.bias"] = vec(E, 1), vec(E)
    else:
        t["output_norm.weight"] = vec(E, 1)
    if modern:
        t["token_embd_norm.weight"] = vec(E, 1)
    if arch == "bert":
        t["position_embd.weight"] = random_tensor(rng, (CTX, E), 0.3, dtype="F16")
    for i in range(n_layers(case)):
        p = f"blk.{i}."
        for k, n in (("q", E), ("k", kv), ("v", kv)):
            t[p + f"attn_{k}.weight"] = m(n, E, gain=2.0 if k != "v" else 1.0)
            if bias:
                t[p + f"attn_{k}.bias"] = vec(n)
        t[p + "attn_output.weight"] = m(E, E)
        if not after:
            if i or not modern:
                t[p + "attn_norm.weight"] = vec(E, 1)
            t[p + "ffn_norm.weight"] = vec(E, 1)
        if not after and not modern:
            t[p + "attn_q_norm.weight"], t[p + "attn_k_norm.weight"] = vec(d, 1), vec(d, 1)
        if case.get("window") and not modern:
            t[p + "post_attention_norm.weight"], t[p + "post_ffw_norm.weight"] = vec(E, 1), vec(E, 1)
        if case.get("code"):
            for k in ("attn_q_norm", "attn_k_norm", "attn_norm_2"):
                t[p + k + ".weight"], t[p + k + ".bias"] = vec(E, 1), vec(E)
        if case.get("experts") and i % 2:
            x = case["experts"]
            t[p + "ffn_gate_inp.weight"] = Stored(m(x, E, gain=3.0).values, "F32")
            t[p + "ffn_up_exps.weight"] = m(x, FF, E)
            t[p + "ffn_down_exps.weight"] = m(x, E, FF)
        else:
            if arch in GATED:
                t[p + "ffn_gate.weight"] = m(FF, E)
            t[p + "ffn_up.weight"], t[p + "ffn_down.weight"] = m(FF, E), m(E, FF)
        if bias:
            t[p + "attn_output.bias"] = vec(E)
        if bias and p + "ffn_up.weight" in t:
            if arch not in GATED:
                t[p + "ffn_up.bias"] = vec(FF)
            t[p + "ffn_down.bias"] = vec(E)
        if after:
            for k in ("attn_output_norm", "layer_output_norm"):
                t[p + k + ".weight"], t[p + k + ".bias"] = vec(E, 1), vec(E)
    if case.get("dense"):
        t["dense_2.weight"], t["dense_3.weight"] = m(case["dense"], E), m(E, case["dense"])
    if case["pooling"] == "rank":
        if arch == "qwen3":
            t["cls.output.weight"] = m(2, E, gain=3.0)
            return t
        t["cls.weight"] = m(E, E)
        if modern:
            t["cls.norm.weight"] = vec(E, 1)
        else:
            t["cls.bias"] = vec(E)
        t["cls.output.weight"], t["cls.output.bias"] = m(1, E, gain=3.0), vec(1)
    return t


TASKS = {"retrieval.query": "Represent the query for retrieving evidence documents: ", "retrieval.passage": "Represent the document for retrieval: ",
         "separation": "", "classification": "", "text-matching": ""}  # of Jina's third model, with what its texts begin with
FILES = ("retrieval.query", "text-matching")
RANK, ALPHA = 4, 1.0


def adapters(t):
    """What each task adds to the embedding, the types and the linears of a layer: A and B [task] of every tensor as the folder has it. A tensor
    of a linear becomes W + alpha / rank B A; of an embedding, whose rows are looked up, W + alpha / rank A B."""
    rng, out = np.random.default_rng(31), {}
    whole = {k: v for k, v in t.items() if not any(f".attn_{c}." in k for c in "qkv")}
    for i in range(LAYERS):
        whole[f"blk.{i}.attn_qkv.weight"] = join([t[f"blk.{i}.attn_{c}.weight"] for c in "qkv"])
    for name in sorted(whole):
        n, *k = whole[name].values.shape
        if name.endswith("norm.weight") or not k:
            continue
        looked_up = name in ("token_embd.weight", "token_types.weight")
        a, b = ((n, RANK), (RANK, k[0])) if looked_up else ((RANK, k[0]), (n, RANK))
        out[name] = tuple(Stored(rng.standard_normal((len(TASKS), *s)) * (0.9 if looked_up else 1.2 / k[0] ** 0.5 if s is a else 0.6), "F32") for s in (a, b))
    return out


def merged(case, t, task, without=None):
    """The weights with the adapter of a task."""
    i, out = list(TASKS).index(task), dict(t)
    for name, (a, b) in adapters(t).items():
        if name == without:
            continue
        a, b = a.values[i], b.values[i]
        add = ALPHA / RANK * (a @ b if name in ("token_embd.weight", "token_types.weight") else b @ a)
        if "attn_qkv" in name:
            for j, c in enumerate("qkv"):
                out[name.replace("qkv", c)] = Exact(t[name.replace("qkv", c)].values + add[j * E : (j + 1) * E])
        else:
            out[name] = Exact(t[name].values + add)
    return out


class Exact:
    """Of no file."""

    def __init__(self, values):
        self.values = values


def slopes(n):
    """ALiBi's: powers of a number that follows from the number of heads; beyond a power of two, every other one of twice as many."""
    whole = 1 << int(math.log2(n))
    first = [2 ** (-8 / whole * (i + 1)) for i in range(whole)]
    return np.array(first + [2 ** (-4 / whole * (2 * i + 1)) for i in range(n - whole)]).astype(np.float32).astype(np.float64)


def hidden_rows(case, t, ids, out_bias=None):
    w = {k: v.values for k, v in t.items()}
    E, HEADS = width(case), n_heads(case)
    n, d, kv = len(ids), E // HEADS, case.get("kv", HEADS)
    arch, window = case["arch"], case.get("window", 0)
    after, modern = arch in AFTER, arch == "modern-bert"
    eps = {"modern-bert": 1e-5}.get(arch, 1e-12)

    def layer_norm(x, p):
        return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + eps) * w[p + ".weight"] + w.get(p + ".bias", 0.0)

    def rms(x, p):
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-6) * w[p + ".weight"]

    def before(x, p):
        return x if p + ".weight" not in w else layer_norm(x, p) if modern else rms(x, p)

    def product(x, p):
        return x @ w[p + ".weight"].T + w.get(p + ".bias", 0.0)

    def rotated(x, base):  # [n][heads][d], halves
        freq = base ** (-np.arange(0, d, 2) / d)
        a = np.arange(n)[:, None] * freq.astype(np.float32).astype(np.float64)
        c, s = np.cos(a)[:, None], np.sin(a)[:, None]
        x1, x2 = x[..., : d // 2], x[..., d // 2 :]
        return np.concatenate([x1 * c - x2 * s, x2 * c + x1 * s], -1)

    erf = np.vectorize(math.erf)
    silu, gelu = lambda x: x / (1 + np.exp(-x)), lambda x: x * 0.5 * (1 + erf(x / math.sqrt(2)))
    act = {"gemma-embedding": lambda x: 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
           "nomic-bert": silu, "qwen3": silu}.get(arch, silu if case.get("act") else gelu)
    x = w["token_embd.weight"][ids]
    if arch == "gemma-embedding":
        x = x * np.float64(np.float32(math.sqrt(E)))
    if after:
        x = x + w["token_types.weight"][0]
    if arch == "bert":
        x = x + w["position_embd.weight"][:n]
    if after or modern:
        x = layer_norm(x, "token_embd_norm")
    for i in range(n_layers(case)):
        p = f"blk.{i}."
        y = before(x, p + "attn_norm")
        q, k, v = (product(y, p + f"attn_{c}") for c in "qkv")
        if case.get("code"):
            q, k = layer_norm(q, p + "attn_q_norm"), layer_norm(k, p + "attn_k_norm")
        q, k, v = (a.reshape(n, -1, d) for a in (q, k, v))
        if not after and not modern:
            q, k = rms(q, p + "attn_q_norm"), rms(k, p + "attn_k_norm")
        local = window and (i % 3 != 0 if modern else i % 6 != 5)
        if arch not in ("bert", "jina-bert-v2"):
            base = {"nomic-bert": 1000.0, "nomic-bert-moe": 10000.0, "jina-bert-v3": 20000.0, "modern-bert": 160000.0}.get(arch, 1e6)
            q, k = (rotated(a, 10000.0 if local else base) for a in (q, k))
        k, v = (np.repeat(a, HEADS // kv, axis=1) for a in (k, v))
        s = np.einsum("ihd,jhd->hij", q, k) / math.sqrt(d)
        away = np.arange(n)[:, None] - np.arange(n)[None]
        if arch == "jina-bert-v2":
            s = s - slopes(HEADS)[:, None, None] * np.abs(away)
        if local:
            s = np.where(np.abs(away) > window // 2, -np.inf, s)
        if arch == "qwen3":
            s = np.where(away < 0, -np.inf, s)
        a = np.exp(s - s.max(-1, keepdims=True))
        o = product(np.einsum("hij,jhd->ihd", a / a.sum(-1, keepdims=True), v).reshape(n, -1), p + "attn_output")
        if after:
            y = layer_norm(x + o, p + "attn_output_norm")
            x = layer_norm(x + y, p + "attn_norm_2") if case.get("code") else y
        else:
            x = x + (rms(o, p + "post_attention_norm") if window and not modern else o)
        y = before(x, p + "ffn_norm")
        if p + "ffn_gate_inp.weight" in w:  # two of the experts, by their shares of all
            g = product(y, p + "ffn_gate_inp")
            g = np.exp(g - g.max(-1, keepdims=True))
            g /= g.sum(-1, keepdims=True)
            g = np.where(g >= np.sort(g, -1)[:, -2:-1], g, 0)
            each = np.einsum("nxf,xef->nxe", act(np.einsum("ne,xfe->nxf", y, w[p + "ffn_up_exps.weight"])), w[p + "ffn_down_exps.weight"])
            o = np.einsum("nx,nxe->ne", g, each) + (0.0 if out_bias is None else out_bias[i])
        else:
            f = act(product(y, p + "ffn_gate")) * product(y, p + "ffn_up") if arch in GATED else act(product(y, p + "ffn_up"))
            o = product(f, p + "ffn_down")
        x = layer_norm(x + o, p + "layer_output_norm") if after else x + (rms(o, p + "post_ffw_norm") if window and not modern else o)
    return x if after else before(x, "output_norm")


def pooled(case, t, rows):
    how, modern = case["pooling"], case["arch"] == "modern-bert"
    v = rows.mean(0) if how == "mean" or (how == "rank" and modern) else rows[-1] if how == "last" else rows[0]
    w = {k: x.values for k, x in t.items()}
    if how == "rank" and case["arch"] == "qwen3":  # the share of a yes, at the last row
        s = np.exp(w["cls.output.weight"] @ rows[-1])
        return s[:1] / s.sum()
    if how == "rank" and modern:
        v = w["cls.weight"] @ v
        v = v * 0.5 * (1 + np.vectorize(math.erf)(v / math.sqrt(2)))
        v = (v - v.mean()) / np.sqrt(v.var() + 1e-5) * w["cls.norm.weight"]
        return w["cls.output.weight"] @ v + w["cls.output.bias"]
    if how == "rank" and "cls.weight" not in w:
        return np.tanh(w["cls.output.weight"] @ v + w["cls.output.bias"])
    if how == "rank":
        v = np.tanh(w["cls.weight"] @ v + w["cls.bias"])
        return w["cls.output.weight"] @ v + w["cls.output.bias"]
    if case.get("dense"):
        v = w["dense_3.weight"] @ (w["dense_2.weight"] @ v)
    return v / np.linalg.norm(v)


# ---- files ---------------------------------------------------------------------------------------------

def metadata(name, case):
    a, meta = case["arch"], {}
    meta.update({"general.architecture": a, "general.name": name, f"{a}.block_count": n_layers(case), f"{a}.context_length": CTX,
                 f"{a}.embedding_length": width(case), f"{a}.feed_forward_length": FF, f"{a}.attention.head_count": n_heads(case),
                 f"{a}.attention.head_count_kv": case.get("kv", n_heads(case)), f"{a}.pooling_type": POOLING[case["pooling"]]})
    if a in AFTER or a == "modern-bert":
        meta[f"{a}.attention.causal"] = False
        meta[f"{a}.attention.layer_norm_epsilon"] = 1e-5 if a == "modern-bert" else 1e-12
        meta["tokenizer.ggml.token_type_count"] = 1 if case.get("unigram") else 2
    else:
        meta[f"{a}.attention.layer_norm_rms_epsilon"] = 1e-6
        meta[f"{a}.attention.key_length"] = meta[f"{a}.attention.value_length"] = E // HEADS
    base = {"bert": 0, "jina-bert-v2": 0, "nomic-bert": 1000.0, "nomic-bert-moe": 10000.0, "jina-bert-v3": 20000.0, "modern-bert": 160000.0}.get(a, 1e6)
    if base:
        meta[f"{a}.rope.freq_base"] = base
    if case.get("window"):
        meta[f"{a}.attention.sliding_window"] = case["window"]
        meta[f"{a}.rope.freq_base_swa"] = 10000.0
    if a == "modern-bert":
        meta[f"{a}.attention.sliding_window_pattern"] = 3
        meta[f"{a}.hidden_activation"] = case.get("act", "gelu")
    if case.get("experts"):
        meta.update({f"{a}.expert_count": case["experts"], f"{a}.expert_used_count": 2, f"{a}.moe_every_n_layers": 2})
    if case.get("dense"):
        meta.update({f"{a}.dense_2_feat_in": E, f"{a}.dense_2_feat_out": case["dense"], f"{a}.dense_3_feat_in": case["dense"], f"{a}.dense_3_feat_out": E})
    g = "tokenizer.ggml."
    if a == "qwen3" and case["pooling"] == "rank":
        meta[f"{a}.classifier.output_labels"] = ["yes", "no"]
        meta["tokenizer.chat_template.rerank"] = "[CLS]the line {query} [SEP] text, {document} now[SEP]"
    if case.get("unigram"):
        pieces = unigram_vocabulary()
        meta.update({g + "model": "t5", g + "pre": "default", g + "tokens": [p for p, _ in pieces], g + "scores": [s for _, s in pieces],
                     g + "token_type": [3, 3, 3, 2] + [1] * (len(pieces) - 4), g + "add_space_prefix": True,
                     g + "remove_extra_whitespaces": True, g + "precompiled_charsmap": charsmap(MAPPED), g + "bos_token_id": 0,
                     g + "eos_token_id": 2, g + "unknown_token_id": 3, g + "padding_token_id": 1, g + "seperator_token_id": 2,
                     g + "add_bos_token": True, g + "add_eos_token": True})
        return meta, len(pieces)
    if case.get("bytes"):
        special = case["bytes"]
        v = bpe_vocabulary(special)
        one = lambda i: v.index(special[i])
        meta.update({g + "model": "gpt2", g + "pre": "modern-bert" if special is MODERN else "jina-v1-en" if case.get("bare") else "jina-v2-code", g + "tokens": v, g + "merges": MERGES,
                     g + "token_type": [3 if t in special else 1 for t in v], g + "add_bos_token": True, g + "add_eos_token": True, g + "add_sep_token": True})
        ids = dict(unknown=0, bos=1, cls=1, eos=2, seperator=2, padding=3, mask=4) if special is MODERN else dict(bos=0, cls=0, padding=1, eos=2, seperator=2, unknown=3, mask=4)
        meta.update({g + f"{k}_token_id": one(i) for k, i in ids.items()})
        return meta, len(v)
    v = wordpiece_vocabulary()
    spelled = [t if t in SPECIAL else t[2:] if t.startswith("##") else "▁" + t for t in v]
    meta.update({g + "model": "bert", g + "pre": "jina-v2-en", g + "tokens": spelled, g + "token_type": [3 if t in SPECIAL else 1 for t in v],
                 g + "unknown_token_id": 1, g + "bos_token_id": 2, g + "cls_token_id": 2, g + "seperator_token_id": 3, g + "padding_token_id": 0,
                 g + "mask_token_id": 4})
    return meta, len(v)


def bare(t):
    """Of Jina's first rerankers as llama.cpp's converter leaves them: without the layer in front of the scores, and a tanh of these."""
    return {k: v for k, v in t.items() if k not in ("cls.weight", "cls.bias")}


def gguf_tensors(case, t):
    """Joined where converters join them; the two shapes that they turn."""
    if case.get("bare"):
        t = {k.replace("cls.output", "cls"): v for k, v in bare(t).items()}
    joined, out = case["arch"] in ("modern-bert", "jina-bert-v2"), {}
    qkv = ("weight", "bias") if case.get("joined") else ("weight",) if case["arch"] == "modern-bert" else ()
    for key, v in t.items():
        stem, tail = key.rsplit(".", 1)
        p, k = stem.rsplit(".", 1) if "." in stem else ("", stem)
        if joined and k == "ffn_gate":
            pair = [v, t[p + ".ffn_up.weight"]]
            out[p + ".ffn_up.weight"] = join(pair[::-1] if case.get("code") else pair)
        elif joined and k == "ffn_up":
            continue
        elif tail in qkv and k in ("attn_q", "attn_k", "attn_v"):
            if k == "attn_q":
                out[p + ".attn_qkv." + tail] = join([t[p + f".attn_{c}.{tail}"] for c in "qkv"])
        else:
            out[key] = v
    return out


def join(parts):
    return Stored(np.concatenate([x.values for x in parts]), parts[0].dtype)


HF = {"token_embd": "embeddings.word_embeddings", "token_types": "embeddings.token_type_embeddings", "position_embd": "embeddings.position_embeddings",
      "token_embd_norm": "embeddings.LayerNorm", "attn_q": "attention.self.query", "attn_k": "attention.self.key", "attn_v": "attention.self.value",
      "attn_output": "attention.output.dense", "attn_output_norm": "attention.output.LayerNorm", "ffn_up": "intermediate.dense",
      "ffn_down": "output.dense", "layer_output_norm": "output.LayerNorm"}


def folder(out, name, case, t):
    """As Hugging Face's BERT and XLM-RoBERTa are published."""
    out.mkdir(parents=True)
    unigram_, rank = case.get("unigram"), case["pooling"] == "rank"
    prefix = ("roberta." if unigram_ else "bert.") if rank else ""
    heads = ({"cls": "classifier.dense", "cls.output": "classifier.out_proj"} if unigram_ else {"cls": "bert.pooler.dense", "cls.output": "classifier"})
    tensors = {}
    for key, v in t.items():
        stem, tail = key.rsplit(".", 1)
        if key == "position_embd.weight" and case.get("padded"):
            rng = np.random.default_rng(7)
            v = Stored(np.concatenate([rng.standard_normal((case["padded"], E)), v.values]), "F16")
        if stem in heads:
            new = heads[stem]
        elif stem.startswith("blk."):
            new = f"{prefix}encoder.layer.{stem.split('.')[1]}.{HF[stem.split('.')[2]]}"
        else:
            new = prefix + HF[stem]
        tensors[f"{new}.{tail}"] = v
    cfg = {"architectures": ["XLMRobertaModel" if unigram_ else "BertModel"], "model_type": "xlm-roberta" if unigram_ else "bert", "hidden_size": E,
           "num_attention_heads": HEADS, "num_hidden_layers": LAYERS, "intermediate_size": FF, "hidden_act": "gelu", "layer_norm_eps": 1e-12,
           "max_position_embeddings": CTX + case.get("padded", 0), "type_vocab_size": len(t["token_types.weight"].values), "vocab_size": len(t["token_embd.weight"].values),
           "position_embedding_type": "absolute", "pad_token_id": 1 if unigram_ else 0, "use_cache": True, "classifier_dropout": None}
    write_hf_folder(out, cfg, tensors, 1)
    if not rank:
        (out / "1_Pooling").mkdir()
        how = {"cls": "cls_token", "mean": "mean_tokens"}[case["pooling"]]
        (out / "1_Pooling" / "config.json").write_text(json.dumps({"word_embedding_dimension": E, "pooling_mode_" + how: True}))
        (out / "modules.json").write_text(json.dumps([{"idx": i, "type": f"sentence_transformers.models.{k}"} for i, k in enumerate(("Transformer", "Pooling", "Normalize"))]))
    tokenizer(out, case)


FLASH = {"token_embd": "embeddings.word_embeddings", "token_types": "embeddings.token_type_embeddings", "token_embd_norm": "emb_ln",
         "attn_output_norm": "norm1", "layer_output_norm": "norm2", "ffn_up": "mlp.fc1", "ffn_down": "mlp.fc2", "ffn_gate_inp": "mlp.router.layer"}
NOMIC = {**FLASH, "attn_qkv": "attn.Wqkv", "attn_output": "attn.out_proj"}
OWN = {  # what folders call a layer, what comes in front of names, and tensors
    "modern-bert": ("layers.", "", {"token_embd": "embeddings.tok_embeddings", "token_embd_norm": "embeddings.norm", "output_norm": "final_norm", "attn_qkv": "attn.Wqkv",
                                    "attn_output": "attn.Wo", "attn_norm": "attn_norm", "ffn_norm": "mlp_norm", "ffn_gate_up": "mlp.Wi", "ffn_down": "mlp.Wo"}),
    "jina-bert-v2": ("encoder.layer.", "", {**HF, "ffn_gate_up": "mlp.gated_layers", "ffn_down": "mlp.wo", "layer_output_norm": "mlp.layernorm"}),
    "jina-bert-v2-code": ("encoder.layer.", "bert.", {**HF, "ffn_gate_up": "mlp.up_gated_layer", "ffn_down": "mlp.down_layer", "attn_q_norm": "attention.self.layer_norm_q",
                                                      "attn_k_norm": "attention.self.layer_norm_k", "attn_norm_2": "layer_norm_1", "layer_output_norm": "layer_norm_2"}),
    "jina-bert-v3": ("encoder.layers.", "roberta.", {**FLASH, "attn_qkv": "mixer.Wqkv", "attn_output": "mixer.out_proj"}),
    "jina-rerank-v2": ("encoder.layers.", "roberta.", {**FLASH, "position_embd": "embeddings.position_embeddings", "attn_qkv": "mixer.Wqkv", "attn_output": "mixer.out_proj"}),
    "nomic-bert": ("encoder.layers.", "", {**NOMIC, "ffn_up": "mlp.fc11", "ffn_gate": "mlp.fc12"}),
    "nomic-bert-moe": ("encoder.layers.", "", NOMIC),
    "gemma-embedding": ("layers.", "", {"token_embd": "embed_tokens", "output_norm": "norm", "attn_norm": "input_layernorm", "post_attention_norm": "post_attention_layernorm",
                                        "ffn_norm": "pre_feedforward_layernorm", "post_ffw_norm": "post_feedforward_layernorm", "ffn_gate": "mlp.gate_proj",
                                        "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj",
                                        "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj", "attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm"}),
}
HEAD = {"cls": "head.dense", "cls.norm": "head.norm", "cls.output": "classifier"}


def own_tensors(kind, case, t, out_bias):
    """Of a folder whose names are not BERT's."""
    layer, before, names = OWN[kind]
    heads = {"cls": "classifier.dense", "cls.output": "classifier.out_proj"} if case.get("unigram") else HEAD
    if case["arch"] == "jina-bert-v2":
        heads, before = {"cls": "bert.pooler.dense", "cls.output": "classifier"}, "bert." if case["pooling"] == "rank" else before
    if case["pooling"] == "rank" and kind == "modern-bert":
        before = "model."
    tensors, tasks = {}, adapters(t) if case.get("tasks") else {}
    if tasks:  # of a layer that makes no vectors
        for x in "AB":
            tensors[f"roberta.pooler.dense.parametrizations.weight.0.lora_{x}"] = Stored(np.ones((5, RANK, E) if x == "A" else (5, E, RANK)), "F32")

    def put(p, k, tail, v):
        name = (f"{before}{layer}{p}." if p is not None else before) + names[k] + "." + tail
        if case.get("tasks") and tail == "weight" and "norm" not in k:  # as weights of training, with adapters beside them
            name = name.replace(".weight", ".parametrizations.weight.original")
            for letter, x in zip("AB", tasks[(f"blk.{p}." if p is not None else "") + k + ".weight"]):
                tensors[name.replace(".original", f".0.lora_{letter}")] = x
        tensors[name] = v

    for key, v in t.items():
        stem, tail = key.rsplit(".", 1)
        if stem in heads:
            tensors[f"{heads[stem]}.{tail}"] = v
            continue
        if key == "position_embd.weight":
            v = Stored(np.concatenate([np.random.default_rng(7).standard_normal((case["padded"], E)), v.values]), "F16")
        if stem.startswith("dense_"):
            continue
        p, k = stem.split(".")[1:3] if stem.startswith("blk.") else (None, stem)
        b = f"blk.{p}."
        if "attn_qkv" in names and k in ("attn_q", "attn_k", "attn_v"):
            if k == "attn_q":
                put(p, "attn_qkv", tail, join([t[f"{b}attn_{c}.{tail}"] for c in "qkv"]))
        elif "ffn_gate_up" in names and k in ("ffn_gate", "ffn_up"):
            if k == "ffn_gate":
                put(p, "ffn_gate_up", tail, join([t[b + "ffn_up.weight"], v] if case.get("code") else [v, t[b + "ffn_up.weight"]]))
        elif k == "ffn_up_exps":
            tensors[f"{before}{layer}{p}.mlp.experts.mlp.w1"] = Stored(v.values.reshape(-1, E), v.dtype)
        elif k == "ffn_down_exps":
            tensors[f"{before}{layer}{p}.mlp.experts.mlp.w2"] = Stored(v.values.swapaxes(1, 2).reshape(-1, E), v.dtype)
            tensors[f"{before}{layer}{p}.mlp.experts.bias"] = Stored(out_bias[int(p)], "F32")
        elif kind == "gemma-embedding" and "norm" in k:  # less 1
            put(p, k, tail, Stored(v.values - 1, "F32"))
        else:
            put(p, k, tail, v)
    return tensors


def own_config(kind, case, t):
    n_vocab, layers, e, heads = len(t["token_embd.weight"].values), n_layers(case), width(case), n_heads(case)
    usual = {"hidden_size": e, "num_attention_heads": heads, "num_hidden_layers": layers, "intermediate_size": FF, "max_position_embeddings": CTX,
             "vocab_size": n_vocab}
    if kind == "modern-bert":
        head = "ForSequenceClassification" if case["pooling"] == "rank" else "Model"
        rope = {"global_rope_theta": 160000.0, "local_rope_theta": 10000.0}
        if case.get("act"):  # as transformers 5 says it
            rope = {"rope_parameters": {k: {"rope_type": "default", "rope_theta": b} for k, b in (("full_attention", 160000.0), ("sliding_attention", 10000.0))},
                    "layer_types": ["sliding_attention" if i % 3 else "full_attention" for i in range(layers)]}
        return {**usual, **rope, "architectures": ["ModernBert" + head], "model_type": "modernbert", "norm_eps": 1e-5, "layer_norm_eps": 1e-5, "norm_bias": False,
                "attention_bias": False, "mlp_bias": False, "hidden_activation": case.get("act", "gelu"), "local_attention": case["window"], "global_attn_every_n_layers": 3,
                "position_embedding_type": "absolute", "classifier_pooling": "mean", "classifier_activation": "gelu", "classifier_bias": False, "decoder_bias": True,
                "tie_word_embeddings": True, "id2label": {"0": "LABEL_0"}, "sparse_pred_ignore_index": -100, "pad_token_id": n_vocab - 2}
    if kind == "jina-rerank-v2":  # without a model_type
        return {**usual, "_name_or_path": "jinaai/jina-reranker-v2-base-multilingual", "architectures": ["XLMRobertaForSequenceClassification"],
                "auto_map": {"AutoConfig": "configuration_xlm_roberta.XLMRobertaFlashConfig", "AutoModel": "modeling_xlm_roberta.XLMRobertaModel"},
                "attention_probs_dropout_prob": 0.1, "bos_token_id": 0, "classifier_dropout": None, "emb_pooler": None, "eos_token_id": 2, "hidden_act": "gelu",
                "hidden_dropout_prob": 0.1, "num_labels": 1, "id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}, "layer_norm_eps": 1e-12,
                "max_position_embeddings": CTX + case["padded"], "output_past": True, "pad_token_id": 1, "position_embedding_type": "absolute", "type_vocab_size": 1,
                "use_cache": False, "use_flash_attn": True}
    if kind == "jina-bert-v3":
        return {**usual, "architectures": ["XLMRobertaModel"], "model_type": "xlm-roberta", "position_embedding_type": "rotary", "rotary_emb_base": 20000.0,
                "lora_adaptations": list(TASKS), "task_instructions": TASKS, "lora_alpha": 1, "lora_rank": RANK, "lora_dropout_p": 0.0,
                "lora_main_params_trainable": False, "load_trained_adapters": True, "layer_norm_eps": 1e-12, "hidden_act": "gelu", "emb_pooler": "mean",
                "type_vocab_size": 1, "truncate_dim": None, "matryoshka_dimensions": [32], "pad_token_id": 1, "use_flash_attn": True}
    if kind.startswith("jina") and case["pooling"] == "rank":
        return {**usual, "architectures": ["JinaBertForSequenceClassification"], "model_type": "bert", "position_embedding_type": "alibi", "feed_forward_type": "geglu",
                "hidden_act": "gelu", "layer_norm_eps": 1e-12, "emb_pooler": None, "type_vocab_size": 2, "id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0},
                "classifier_dropout": None, "auto_map": {"AutoConfig": "configuration_bert.JinaBertConfig", "AutoModelForSequenceClassification": "modeling_bert.JinaBertForSequenceClassification"}}
    if kind.startswith("jina"):
        return {**usual, "architectures": ["JinaBertForMaskedLM"], "model_type": "bert", "position_embedding_type": "alibi", "feed_forward_type": "geglu", "hidden_act": "gelu",
                "layer_norm_eps": 1e-12, "emb_pooler": "mean", "type_vocab_size": 2,
                "auto_map": {"AutoModel": "jinaai/jina-bert-%s--modeling_bert.JinaBertModel" % ("v2-qk-post-norm" if case.get("code") else "implementation")}}
    if kind.startswith("nomic"):
        moe = {"num_experts": case["experts"], "moe_top_k": 2, "moe_every_n_layers": 2, "moe_normalize_expert_weights": False, "expert_choice_router": False, "ffn_div": 1,
               "num_shared_experts": 0, "moe_impl": "megablocks", "rotary_emb_base": 10000} if case.get("experts") else {"rotary_emb_base": 1000, "num_experts": 0}
        return {"architectures": ["NomicBertModel"], "model_type": "nomic_bert", "n_embd": E, "n_head": HEADS, "n_layer": layers, "n_inner": FF, "n_positions": 8192,
                "max_trained_positions": CTX, "vocab_size": n_vocab, "layer_norm_epsilon": 1e-12, "activation_function": "gelu" if case.get("experts") else "swiglu",
                "rotary_emb_fraction": 1.0, "rotary_emb_interleaved": False, "rotary_emb_scale_base": None, "prenorm": False, "causal": False, "use_rms_norm": False,
                "qkv_proj_bias": bool(case.get("experts")), "mlp_fc1_bias": bool(case.get("experts")), "mlp_fc2_bias": bool(case.get("experts")), "scale_attn_weights": True,
                "type_vocab_size": 1 if case.get("experts") else 2, "summary_type": "cls_index", "parallel_block": False, **moe}
    return {**usual, "architectures": ["Gemma3TextModel"], "model_type": "gemma3_text", "use_bidirectional_attention": True, "num_key_value_heads": case["kv"],
            "head_dim": E // HEADS, "rms_norm_eps": 1e-6, "hidden_activation": "gelu_pytorch_tanh", "query_pre_attn_scalar": E // HEADS, "rope_theta": 1e6,
            "rope_local_base_freq": 10000.0, "sliding_window": case["window"], "_sliding_window_pattern": 6,
            "layer_types": ["full_attention" if i % 6 == 5 else "sliding_attention" for i in range(layers)]}


def tokenizer(out, case):
    if case.get("unigram"):
        pieces = unigram_vocabulary()
        tok = {"added_tokens": [{"id": i, "content": pieces[i][0], "special": True} for i in range(4)],
               "normalizer": {"type": "Sequence", "normalizers": [{"type": "Precompiled", "precompiled_charsmap": base64.b64encode(charsmap(MAPPED)).decode()},
                                                                   {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "}]},
               "pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "WhitespaceSplit"}, {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always"}]},
               "post_processor": {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<s>"}}, {"Sequence": {"id": "A"}}, {"SpecialToken": {"id": "</s>"}}],
                                  "special_tokens": {"<s>": {"ids": [0]}, "</s>": {"ids": [2]}}},
               "model": {"type": "Unigram", "unk_id": 3, "vocab": [list(p) for p in pieces]}}
    elif case.get("bytes"):
        special = case["bytes"]
        v = bpe_vocabulary(special)
        first, last = v.index(special[1 if special is MODERN else 0]), v.index(special[2])
        around = {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "[CLS]"}}, {"Sequence": {"id": "A"}}, {"SpecialToken": {"id": "[SEP]"}}],
                  "special_tokens": {"[CLS]": {"ids": [first]}, "[SEP]": {"ids": [last]}}}
        if special is ROBERTA:
            around = {"type": "RobertaProcessing", "sep": ["</s>", last], "cls": ["<s>", first], "trim_offsets": True, "add_prefix_space": False}
        tok = {"added_tokens": [{"id": v.index(x), "content": x, "special": True} for x in special], "normalizer": {"type": "NFC"} if special is MODERN else None,
               "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True}, "post_processor": around, "decoder": {"type": "ByteLevel"},
               "model": {"type": "BPE", "vocab": {x: i for i, x in enumerate(v)}, "merges": MERGES}}
    else:
        v = wordpiece_vocabulary()
        tok = {"added_tokens": [{"id": i, "content": s, "special": True} for i, s in enumerate(SPECIAL)],
               "normalizer": {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True, "strip_accents": None, "lowercase": True},
               "pre_tokenizer": {"type": "BertPreTokenizer"},
               "post_processor": {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "[CLS]"}}, {"Sequence": {"id": "A"}}, {"SpecialToken": {"id": "[SEP]"}}],
                                  "special_tokens": {"[CLS]": {"ids": [2]}, "[SEP]": {"ids": [3]}}},
               "model": {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##", "max_input_chars_per_word": 100,
                         "vocab": {s: i for i, s in enumerate(v)}}}
    (out / "tokenizer.json").write_text(json.dumps(tok, ensure_ascii=True, separators=(",", ":")))


def own_folder(out, kind, case, t, out_bias):
    out.mkdir(parents=True)
    write_hf_folder(out, own_config(kind, case, t), own_tensors(kind, case, t, out_bias), 1)
    modules = ["Transformer", "Pooling"] + ["Dense"] * (2 if case.get("dense") else 0) + ["Normalize"]
    if case["pooling"] != "rank":
        (out / "1_Pooling").mkdir()
        how = {"cls": "cls_token", "mean": "mean_tokens"}[case["pooling"]]
        (out / "1_Pooling" / "config.json").write_text(json.dumps({"word_embedding_dimension": width(case), "pooling_mode_" + how: True}))
        for i, m in enumerate(modules):
            if m == "Dense":
                d = out / f"{i}_Dense"
                d.mkdir()
                k = t[f"dense_{i}.weight"]
                (d / "config.json").write_text(json.dumps({"in_features": k.values.shape[1], "out_features": k.values.shape[0], "bias": False,
                                                           "activation_function": "torch.nn.modules.linear.Identity"}))
                write_safetensors(d / "model.safetensors", {"linear.weight": k})
        (out / "modules.json").write_text(json.dumps([{"idx": i, "name": str(i), "path": "" if not i else f"{i}_{m}", "type": f"sentence_transformers.models.{m}"}
                                                      for i, m in enumerate(modules)]))
    tokenizer(out, case)


def texts_of(case):
    """Ids of a short and a long text as the model reads them, or of a question with each."""
    if case.get("unigram"):
        cut, first, last = lambda s: unigram(s, unigram_vocabulary()), [0], [2]
    elif case.get("bytes"):
        v = bpe_vocabulary(case["bytes"])
        cut = lambda s: bpe(s, v)
        first, last = ([v.index(c)] for c in (("[CLS]", "[SEP]") if case["bytes"] is MODERN else ("<s>", "</s>")))
    else:
        cut, first, last = lambda s: wordpiece(s, wordpiece_vocabulary()), [2], [3]
    between = last * 2 if case.get("unigram") or case.get("bytes") is ROBERTA else last
    texts = [TEXTS[0], LONG]
    if case["pooling"] == "rank" and case["arch"] == "qwen3":  # what the two spell is no template, and no control token
        asked = [("which fox jumps?", s) for s in texts] + [("{document} [SEP] {query}", "[CLS] {query} fox")]
        return [(q, s, [2] + cut("the line " + q) + [3] + cut("text, " + s + " now") + [3]) for q, s in asked]
    if case["pooling"] == "rank":
        return [("which fox jumps?", s, first + cut("which fox jumps?") + between + cut(s) + last) for s in texts]
    return [(None, s, first + cut(s) + last) for s in texts]


JUDGE = ('<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct provided. Note that the answer can only be '
         '"yes" or "no".<|im_end|>\n<|im_start|>user\n<Instruct>: Given a web search query, retrieve relevant passages that answer the query\n<Query>: {}\n'
         '<Document>: {}<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n')
YES, NO = 17, 12


def judge(out, case, t):
    """As Qwen3-Reranker is published: a model that writes, whose scores are of two rows of its embedding, with a template that is known."""
    out.mkdir(parents=True)
    names = OWN["gemma-embedding"][2]
    tensors = {"model." + (names[k] if "." not in k else "layers.{}.".format(k.split(".")[1]) + (names | {"ffn_norm": "post_attention_layernorm"})[k.split(".")[2]])
               + ".weight": v for k, v in ((key.removesuffix(".weight"), v) for key, v in t.items()) if k != "cls.output"}
    embd = t["token_embd.weight"]
    cfg = {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_size": E, "num_attention_heads": HEADS, "num_key_value_heads": case["kv"],
           "head_dim": E // HEADS, "num_hidden_layers": n_layers(case), "intermediate_size": FF, "hidden_act": "silu", "rms_norm_eps": 1e-6, "rope_theta": 1000000,
           "max_position_embeddings": CTX, "vocab_size": len(embd.values), "tie_word_embeddings": True, "max_window_layers": n_layers(case),
           "use_sliding_window": False, "sliding_window": None, "attention_bias": False}
    write_hf_folder(out, cfg, tensors, 1)
    (out / "1_LogitScore").mkdir()
    (out / "1_LogitScore" / "config.json").write_text(json.dumps({"true_token_id": YES, "false_token_id": NO}))
    (out / "modules.json").write_text(json.dumps([{"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.base.modules.transformer.Transformer"},
                                                  {"idx": 1, "name": "1", "path": "1_LogitScore", "type": "sentence_transformers.cross_encoder.modules.logit_score.LogitScore"}]))
    (out / "README.md").write_text("---\nlicense: apache-2.0\n---\n# Qwen3-Reranker-0.6B\n")
    tokenizer(out, case)
    asked = [("which fox jumps?", TEXTS[0]), ("{document} <|im_end|> {query}", "<think> {query} fox")]
    pairs = [(q, s, wordpiece(JUDGE.format(q, s), wordpiece_vocabulary())) for q, s in asked]
    two = {**t, "cls.output.weight": Stored(embd.values[[YES, NO]], embd.dtype)}
    (out / "vectors.json").write_text(told_of(case, two, None, pairs))


def told_of(case, t, out_bias, texts=None):
    told = []
    for question, text, ids in texts or texts_of(case):
        rows = hidden_rows(case, t, ids, out_bias)
        at = sorted({0, 1, len(ids) // 2, len(ids) - 1})
        told.append({"question": question, "text": text, "ids": ids, "at": at, "rows": [[float(f"{x:.9g}") for x in rows[i]] for i in at],
                     "vector": [float(f"{x:.9g}") for x in pooled(case, t, rows)]})
    return json.dumps(told, separators=(",", ":")) + "\n"


def task_files(out, name, case, t):
    """Two adapters as llama.cpp's converter writes them, and vectors of all tasks."""
    told = []
    for i, (task, prefix) in enumerate(TASKS.items()):
        tensors = {}
        for k, (a, b) in adapters(t).items():
            a, b = a.values[i], b.values[i]
            if k == "token_embd.weight":
                b = b.T
            if k == "token_types.weight":
                a, b = b, a
            tensors[k + ".lora_a"], tensors[k + ".lora_b"] = Stored(a, "F32"), Stored(b, "F32")
        meta = {"general.architecture": case["arch"], "general.type": "adapter", "adapter.type": "lora", "adapter.lora.alpha": ALPHA, "adapter.lora.task_name": task,
                "adapter.lora.prompt_prefix": prefix}
        if task in FILES:
            write_gguf(out / f"lora-{task}.gguf", meta, tensors)
        with_it = merged(case, t, task)
        told += [{"task": task, "bare": text, **x} for text, x in zip((TEXTS[0], LONG[:400]), json.loads(told_of(case, with_it, None, [
            (None, prefix + text, [0] + unigram(prefix + text, unigram_vocabulary()) + [2]) for text in (TEXTS[0], LONG[:400])])))]
    (out / "tasks.json").write_text(json.dumps(told, separators=(",", ":")) + "\n")


def make(out):
    for name, case in CASES.items():
        (out / name).mkdir(parents=True)
        meta, n_vocab = metadata(name, case)
        t = weights(name, case, n_vocab)
        write_gguf(out / name / "model.gguf", meta, gguf_tensors(case, t))
        (out / name / "vectors.json").write_text(told_of(case, bare(t) if case.get("bare") else t, None))
        kind = name if name in OWN else "jina-bert-v2-code" if case.get("code") else case["arch"]
        out_bias = np.random.default_rng(5).standard_normal((n_layers(case), width(case))).astype(np.float32) if case.get("experts") else None
        if case["arch"] == "bert" and name not in OWN:
            folder(out / name / "hf", name, case, t)
        elif name == "qwen3-rerank":
            judge(out / name / "hf", case, t)
        elif kind in OWN:
            own_folder(out / name / "hf", kind, case, t, out_bias)
        if case.get("bare"):
            (out / name / "hf" / "vectors.json").write_text(told_of(case, t, None))
        if case.get("tasks"):
            task_files(out / name, name, case, t)
        if out_bias is not None:  # which GGUF files leave out
            (out / name / "hf" / "vectors.json").write_text(told_of(case, t, out_bias))
    with open(out / "pieces.jsonl", "w") as f:
        for text in TEXTS:
            f.write(json.dumps({"text": text, "wordpiece": wordpiece(text, wordpiece_vocabulary()), "unigram": unigram(text, unigram_vocabulary())}) + "\n")


def check():
    with tempfile.TemporaryDirectory() as d:
        make(Path(d))
        bad = [str(p.relative_to(d)) for p in sorted(Path(d).rglob("*")) if p.is_file() and not filecmp.cmp(p, HERE / p.relative_to(d), shallow=False)]
    if bad:
        sys.exit("not what the script makes: " + ", ".join(bad))


def peer(url, name):
    def ask(path, body):
        r = urllib.request.Request(url + path, json.dumps(body).encode(), {"Content-Type": "application/json"})
        return json.load(urllib.request.urlopen(r))

    for told in json.loads((HERE / name / "vectors.json").read_text()):
        if told["question"]:
            got = ask("/v1/rerank", {"query": told["question"], "documents": [told["text"]]})["results"][0]["relevance_score"]
            # it puts no separator after a BERT's text, only one between the texts of RoBERTa's kind, and two between ModernBERT's
            ids, case = told["ids"], CASES[name]
            if case.get("bytes") is ROBERTA:  # as it was published
                pass
            elif case.get("bytes"):
                at = ids.index(ids[-1])
                ids = ids[:at] + ids[at : at + 1] + ids[at:]
            else:
                ids = ids[: ids.index(2)] + ids[ids.index(2) + 1 :] if case.get("unigram") else ids[:-1]
            t = weights(name, case, metadata(name, case)[1])
            t = bare(t) if case.get("bare") else t
            print(name, len(ids), "tokens: score", got, "float64 of the same tokens", pooled(case, t, hidden_rows(case, t, ids))[0])
            continue
        ids = ask("/tokenize", {"content": told["text"], "add_special": True})["tokens"]
        v = np.array(ask("/v1/embeddings", {"input": told["ids"]})["data"][0]["embedding"])
        mine = np.array(told["vector"])
        print(name, len(told["ids"]), "tokens: same ids", ids == told["ids"], "cosine", 1 - float(v @ mine), "below 1, largest difference", float(np.abs(v - mine).max()))


def peer_of_task(url, name, task):
    """With that file of an adapter (--lora). llama.cpp leaves out what it adds to types."""
    case = CASES[name]
    t = merged(case, weights(name, case, metadata(name, case)[1]), task, "token_types.weight")
    for told in json.loads((HERE / name / "tasks.json").read_text()):
        if told["task"] == task:
            r = urllib.request.Request(url + "/v1/embeddings", json.dumps({"input": told["ids"]}).encode(), {"Content-Type": "application/json"})
            v = np.array(json.load(urllib.request.urlopen(r))["data"][0]["embedding"])
            mine, whole = pooled(case, t, hidden_rows(case, t, told["ids"])), np.array(told["vector"])
            print(task, len(told["ids"]), "tokens: cosine", 1 - float(v @ mine), "below 1, largest difference", float(np.abs(v - mine).max()), "; with its types",
                  1 - float(v @ whole))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--check"]:
        check()
    elif sys.argv[1:2] == ["--peer"]:
        (peer_of_task if sys.argv[4:] else peer)(*sys.argv[2:])
    else:
        make(HERE)
