#!/usr/bin/env python3
"""Models that embed: small random checkpoints with their tokenizers, and what they make of texts, in float64, from the published
definitions. tests/model/embedding.c and tests/text/pieces.c compare with it.

    tests/oracle/embedding.py             writes tests/oracle/embedding
    tests/oracle/embedding.py --check     are the files what this makes?
    tests/oracle/embedding.py --peer URL NAME     asks llama.cpp's server, which runs NAME.gguf with --embeddings, for the text's
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

from files import Stored, write_gguf, write_hf_folder

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
}
POOLING = {"none": 0, "mean": 1, "cls": 2, "last": 3, "rank": 4}


def random_tensor(rng, shape, scale, offset=0.0, dtype="F32"):
    return Stored(offset + scale * rng.standard_normal(shape), dtype)


def weights(name, case, n_vocab):
    rng = np.random.default_rng(sum(map(ord, name)))
    t, d, kv = {}, E // HEADS, case.get("kv", HEADS) * (E // HEADS)
    encoder = case["arch"] in ("bert", "nomic-bert")
    m = lambda *shape, gain=1.0: random_tensor(rng, shape, gain / math.sqrt(shape[-1]), dtype="F16")
    vec = lambda n, offset=0.0: random_tensor(rng, (n,), 0.25, offset)
    t["token_embd.weight"] = random_tensor(rng, (n_vocab, E), 0.5, dtype="F16")
    if encoder:
        t["token_types.weight"] = random_tensor(rng, (1 if case.get("unigram") else 2, E), 0.3)
        t["token_embd_norm.weight"], t["token_embd_norm.bias"] = vec(E, 1), vec(E)
    else:
        t["output_norm.weight"] = vec(E, 1)
    if case["arch"] == "bert":
        t["position_embd.weight"] = random_tensor(rng, (CTX, E), 0.3, dtype="F16")
    for i in range(LAYERS if encoder else 7 if case.get("window") else 3):
        p, bias = f"blk.{i}.", case["arch"] == "bert"
        for k, n in (("q", E), ("k", kv), ("v", kv)):
            t[p + f"attn_{k}.weight"] = m(n, E, gain=2.0 if k != "v" else 1.0)
            if bias:
                t[p + f"attn_{k}.bias"] = vec(n)
        t[p + "attn_output.weight"] = m(E, E)
        if not encoder:
            t[p + "attn_norm.weight"], t[p + "ffn_norm.weight"] = vec(E, 1), vec(E, 1)
            t[p + "attn_q_norm.weight"], t[p + "attn_k_norm.weight"] = vec(d, 1), vec(d, 1)
        if case.get("window"):
            t[p + "post_attention_norm.weight"], t[p + "post_ffw_norm.weight"] = vec(E, 1), vec(E, 1)
        if case["arch"] != "bert":
            t[p + "ffn_gate.weight"] = m(FF, E)
        t[p + "ffn_up.weight"], t[p + "ffn_down.weight"] = m(FF, E), m(E, FF)
        if bias:
            t[p + "attn_output.bias"], t[p + "ffn_up.bias"], t[p + "ffn_down.bias"] = vec(E), vec(FF), vec(E)
        if encoder:
            for k in ("attn_output_norm", "layer_output_norm"):
                t[p + k + ".weight"], t[p + k + ".bias"] = vec(E, 1), vec(E)
    if case.get("dense"):
        t["dense_2.weight"], t["dense_3.weight"] = m(case["dense"], E), m(E, case["dense"])
    if case["pooling"] == "rank":
        if case["arch"] == "qwen3":
            t["cls.output.weight"] = m(2, E, gain=3.0)
            return t
        t["cls.weight"], t["cls.bias"] = m(E, E), vec(E)
        t["cls.output.weight"], t["cls.output.bias"] = m(1, E, gain=3.0), vec(1)
    return t


def hidden_rows(case, t, ids):
    w = {k: v.values for k, v in t.items()}
    n, d, kv = len(ids), E // HEADS, case.get("kv", HEADS)
    arch, window = case["arch"], case.get("window", 0)
    encoder = arch in ("bert", "nomic-bert")

    def layer_norm(x, p):
        return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-12) * w[p + ".weight"] + w[p + ".bias"]

    def rms(x, p):
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-6) * w[p + ".weight"]

    def product(x, p):
        return x @ w[p + ".weight"].T + w.get(p + ".bias", 0.0)

    def rotated(x, base):  # [n][heads][d], halves
        freq = base ** (-np.arange(0, d, 2) / d)
        a = np.arange(n)[:, None] * freq.astype(np.float32).astype(np.float64)
        c, s = np.cos(a)[:, None], np.sin(a)[:, None]
        x1, x2 = x[..., : d // 2], x[..., d // 2 :]
        return np.concatenate([x1 * c - x2 * s, x2 * c + x1 * s], -1)

    erf = np.vectorize(math.erf)
    act = {"bert": lambda x: x * 0.5 * (1 + erf(x / math.sqrt(2))),
           "gemma-embedding": lambda x: 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))}.get(arch, lambda x: x / (1 + np.exp(-x)))
    x = w["token_embd.weight"][ids]
    if arch == "gemma-embedding":
        x = x * np.float64(np.float32(math.sqrt(E)))
    if encoder:
        x = x + w["token_types.weight"][0]
        if arch == "bert":
            x = x + w["position_embd.weight"][:n]
        x = layer_norm(x, "token_embd_norm")
    for i in range(sum(k.endswith("attn_q.weight") for k in t)):
        p = f"blk.{i}."
        y = x if encoder else rms(x, p + "attn_norm")
        q, k, v = (product(y, p + f"attn_{c}").reshape(n, -1, d) for c in "qkv")
        if not encoder:
            q, k = rms(q, p + "attn_q_norm"), rms(k, p + "attn_k_norm")
        local = window and i % 6 != 5
        if arch != "bert":
            base = 1000.0 if arch == "nomic-bert" else 10000.0 if local else 1e6
            q, k = rotated(q, base), rotated(k, base)
        k, v = (np.repeat(a, HEADS // kv, axis=1) for a in (k, v))
        s = np.einsum("ihd,jhd->hij", q, k) / math.sqrt(d)
        away = np.arange(n)[:, None] - np.arange(n)[None]
        if local:
            s = np.where(np.abs(away) > window // 2, -np.inf, s)
        if arch == "qwen3":
            s = np.where(away < 0, -np.inf, s)
        a = np.exp(s - s.max(-1, keepdims=True))
        o = product(np.einsum("hij,jhd->ihd", a / a.sum(-1, keepdims=True), v).reshape(n, -1), p + "attn_output")
        x = layer_norm(x + o, p + "attn_output_norm") if encoder else x + (rms(o, p + "post_attention_norm") if window else o)
        y = x if encoder else rms(x, p + "ffn_norm")
        f = act(product(y, p + "ffn_gate")) * product(y, p + "ffn_up") if arch != "bert" else act(product(y, p + "ffn_up"))
        o = product(f, p + "ffn_down")
        x = layer_norm(x + o, p + "layer_output_norm") if encoder else x + (rms(o, p + "post_ffw_norm") if window else o)
    return x if encoder else rms(x, "output_norm")


def pooled(case, t, rows):
    how = case["pooling"]
    v = rows.mean(0) if how == "mean" else rows[-1] if how == "last" else rows[0]
    w = {k: x.values for k, x in t.items()}
    if how == "rank" and case["arch"] == "qwen3":  # the share of a yes, at the last row
        s = np.exp(w["cls.output.weight"] @ rows[-1])
        return s[:1] / s.sum()
    if how == "rank":
        v = np.tanh(w["cls.weight"] @ v + w["cls.bias"])
        return w["cls.output.weight"] @ v + w["cls.output.bias"]
    if case.get("dense"):
        v = w["dense_3.weight"] @ (w["dense_2.weight"] @ v)
    return v / np.linalg.norm(v)


# ---- files ---------------------------------------------------------------------------------------------

def metadata(name, case):
    a, meta = case["arch"], {}
    layers = 7 if case.get("window") else 3
    meta.update({"general.architecture": a, "general.name": name, f"{a}.block_count": layers, f"{a}.context_length": CTX,
                 f"{a}.embedding_length": E, f"{a}.feed_forward_length": FF, f"{a}.attention.head_count": HEADS,
                 f"{a}.attention.head_count_kv": case.get("kv", HEADS), f"{a}.pooling_type": POOLING[case["pooling"]]})
    if a in ("bert", "nomic-bert"):
        meta[f"{a}.attention.causal"] = False
        meta[f"{a}.attention.layer_norm_epsilon"] = 1e-12
        meta["tokenizer.ggml.token_type_count"] = 1 if case.get("unigram") else 2
    else:
        meta[f"{a}.attention.layer_norm_rms_epsilon"] = 1e-6
        meta[f"{a}.attention.key_length"] = meta[f"{a}.attention.value_length"] = E // HEADS
    if a != "bert":
        meta[f"{a}.rope.freq_base"] = 1000.0 if a == "nomic-bert" else 1e6
    if case.get("window"):
        meta[f"{a}.attention.sliding_window"] = case["window"]
        meta[f"{a}.rope.freq_base_swa"] = 10000.0
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
    v = wordpiece_vocabulary()
    spelled = [t if t in SPECIAL else t[2:] if t.startswith("##") else "▁" + t for t in v]
    meta.update({g + "model": "bert", g + "pre": "jina-v2-en", g + "tokens": spelled, g + "token_type": [3 if t in SPECIAL else 1 for t in v],
                 g + "unknown_token_id": 1, g + "bos_token_id": 2, g + "cls_token_id": 2, g + "seperator_token_id": 3, g + "padding_token_id": 0,
                 g + "mask_token_id": 4})
    return meta, len(v)


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
    if unigram_:
        pieces = unigram_vocabulary()
        tok = {"added_tokens": [{"id": i, "content": pieces[i][0], "special": True} for i in range(4)],
               "normalizer": {"type": "Sequence", "normalizers": [{"type": "Precompiled", "precompiled_charsmap": base64.b64encode(charsmap(MAPPED)).decode()},
                                                                   {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "}]},
               "pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "WhitespaceSplit"}, {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always"}]},
               "post_processor": {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<s>"}}, {"Sequence": {"id": "A"}}, {"SpecialToken": {"id": "</s>"}}],
                                  "special_tokens": {"<s>": {"ids": [0]}, "</s>": {"ids": [2]}}},
               "model": {"type": "Unigram", "unk_id": 3, "vocab": [list(p) for p in pieces]}}
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


def texts_of(case):
    """Ids of a short and a long text as the model reads them, or of a question with each."""
    if case.get("unigram"):
        cut, first, last = lambda s: unigram(s, unigram_vocabulary()), [0], [2]
    else:
        cut, first, last = lambda s: wordpiece(s, wordpiece_vocabulary()), [2], [3]
    between = last * 2 if case.get("unigram") else last
    texts = [TEXTS[0], LONG]
    if case["pooling"] == "rank" and case["arch"] == "qwen3":  # what the two spell is no template, and no control token
        asked = [("which fox jumps?", s) for s in texts] + [("{document} [SEP] {query}", "[CLS] {query} fox")]
        return [(q, s, [2] + cut("the line " + q) + [3] + cut("text, " + s + " now") + [3]) for q, s in asked]
    if case["pooling"] == "rank":
        return [("which fox jumps?", s, first + cut("which fox jumps?") + between + cut(s) + last) for s in texts]
    return [(None, s, first + cut(s) + last) for s in texts]


def make(out):
    for name, case in CASES.items():
        (out / name).mkdir(parents=True)
        meta, n_vocab = metadata(name, case)
        t = weights(name, case, n_vocab)
        write_gguf(out / name / "model.gguf", meta, t)
        if case["arch"] == "bert":
            folder(out / name / "hf", name, case, t)
        told = []
        for question, text, ids in texts_of(case):
            rows = hidden_rows(case, t, ids)
            at = sorted({0, 1, len(ids) // 2, len(ids) - 1})
            told.append({"question": question, "text": text, "ids": ids, "at": at, "rows": [[float(f"{x:.9g}") for x in rows[i]] for i in at],
                         "vector": [float(f"{x:.9g}") for x in pooled(case, t, rows)]})
        (out / name / "vectors.json").write_text(json.dumps(told, separators=(",", ":")) + "\n")
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
            # it puts no separator after a BERT's text, and only one between the texts of RoBERTa's kind
            ids, case = told["ids"], CASES[name]
            ids = ids[: ids.index(2)] + ids[ids.index(2) + 1 :] if case.get("unigram") else ids[:-1]
            t = weights(name, case, metadata(name, case)[1])
            print(name, len(ids), "tokens: score", got, "float64 of the same tokens", pooled(case, t, hidden_rows(case, t, ids))[0])
            continue
        ids = ask("/tokenize", {"content": told["text"], "add_special": True})["tokens"]
        v = np.array(ask("/v1/embeddings", {"input": told["ids"]})["data"][0]["embedding"])
        mine = np.array(told["vector"])
        print(name, len(told["ids"]), "tokens: same ids", ids == told["ids"], "cosine", 1 - float(v @ mine), "below 1, largest difference", float(np.abs(v - mine).max()))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--check"]:
        check()
    elif sys.argv[1:2] == ["--peer"]:
        peer(*sys.argv[2:4])
    else:
        make(HERE)
