#!/usr/bin/env python3
"""Held-out accuracy of a checkpoint: evaluate.py RUN_FOLDER TEXT_FOLDER [--split valid] [-n 100] [--eval FOLDER]

Exact match of greedy decoding. Greedy output equals the reference exactly when, with the reference fed in, every
position's best token is the reference's next one; so one forward pass per item answers it.
"""
import argparse
import glob
import json
import math
import os

import torch
import torch.nn.functional as F

import model as M
import safetensors
from bpe import Tokenizer
from data import English, Maker, prompt_of

SETS = [("extraction", 250), ("extraction", 512), ("extraction", 1024), ("extraction", 2048), ("summary", 512), ("ui_action", 512),
        ("function_call", 512), ("reply", 512), ("quote", 512)]


def load_hf(folder):
    with open(f"{folder}/config.json", encoding="utf-8") as f:
        cfg = M.config_of(json.load(f))
    return cfg, {k: torch.from_numpy(v) for k, v in safetensors.read(f"{folder}/model.safetensors").items()}


def load(folder):
    """(config, parameters, state) of an exported folder or of a run's checkpoint."""
    if os.path.exists(f"{folder}/model.safetensors"):
        return *load_hf(folder), {"step": 0, "tok": 0}
    c = torch.load(f"{folder}/ckpt.pt", map_location="cpu")
    cfg = M.config_of(c["cfg"])
    return cfg, M.unflatten(cfg, c["w"]), c["state"]


@torch.no_grad()
def score(p, cfg, tok, prompt, answer, dtype=torch.bfloat16, trace=None):
    """(every token right, share of tokens right, sum of negative log likelihoods, tokens) of answer + <|im_end|>"""
    a, b = tok.encode(prompt), tok.encode(answer + "<|im_end|>")
    x = torch.tensor([(a + b)[:-1]])
    h = M.module_of(cfg).forward(p, cfg, x, dtype, trace=trace)[len(a) - 1 :]
    logits = F.linear(h, p["model.embed_tokens.weight"].to(dtype)).float()
    y = torch.tensor(b)
    ok = logits.argmax(-1) == y
    return bool(ok.all()), float(ok.float().mean()), float(F.cross_entropy(logits, y, reduction="sum")), len(b)


@torch.no_grad()
def choose(p, cfg, tok, query, choices, dtype=torch.bfloat16):
    """Index of the choice with the largest log likelihood a byte."""
    best = []
    for c in choices:
        a, b = tok.encode(query), tok.encode(c)
        h = M.module_of(cfg).forward(p, cfg, torch.tensor([(a + b)[:-1]]), dtype)[len(a) - 1 :]
        logits = F.linear(h, p["model.embed_tokens.weight"].to(dtype)).float()
        best.append(-float(F.cross_entropy(logits, torch.tensor(b), reduction="sum")) / len(c.encode()))
    return best.index(max(best))


@torch.no_grad()
def perplexity(p, cfg, ids, ctx=512, dtype=torch.bfloat16, trace=None):
    nll, n = 0.0, 0
    for i in range(0, len(ids) - 1, ctx):
        x = ids[i : i + ctx + 1]
        if len(x) < 2:
            break
        h = M.module_of(cfg).forward(p, cfg, torch.tensor([x[:-1]]), dtype, trace=trace)
        logits = F.linear(h, p["model.embed_tokens.weight"].to(dtype)).float()
        nll += float(F.cross_entropy(logits, torch.tensor(x[1:]), reduction="sum"))
        n += len(x) - 1
    return math.exp(nll / n), n


def wilson(k, n, z=1.96):
    f = k / n
    c, d = f + z * z / (2 * n), z * math.sqrt(f * (1 - f) / n + z * z / (4 * n * n))
    return (c - d) / (1 + z * z / n), (c + d) / (1 + z * z / n)


def make_items(split, en, tok, task, n_tok, n, index):
    m = Maker(split, index, en, None)
    out = []
    while len(out) < n:
        it = m.item(task, n_tok - 20, lambda s: len(tok.encode_plain(s)), 1)
        if it:
            out.append((prompt_of(it[0], it[1][0][0]), it[1][0][1]))
    return out


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("run")
    ap.add_argument("text")
    ap.add_argument("--split", default="valid")
    ap.add_argument("-n", type=int, default=50)
    ap.add_argument("--max-len", type=int, default=2048)
    ap.add_argument("--eval", help="score the shipped sets in this folder instead")
    ap.add_argument("--json")
    ap.add_argument("--show", type=int, default=0)
    ap.add_argument("--threads", type=int, default=1)
    a = ap.parse_args()
    torch.set_num_threads(a.threads)
    tok = Tokenizer.load(f"{a.run}/tokenizer.json")
    cfg, p, st = load(a.run)
    print(f"step {st['step']} tokens {st['tok'] / 1e6:.2f} M")
    en = English(a.text)
    result = {"step": st["step"], "tokens": st["tok"]}
    if a.eval:
        sets = [(os.path.basename(f)[:-6], [(j["prompt"], j["answer"]) for j in map(json.loads, open(f, encoding="utf-8"))])
                for f in sorted(glob.glob(f"{a.eval}/*.jsonl")) if not f.endswith("choice.jsonl")]
    else:
        sets = [(f"{t}_{l}", make_items(a.split, en, tok, t, l, a.n, i)) for i, (t, l) in enumerate(SETS) if l <= a.max_len]
    for name, items in sets:
        k, share, nll, n = 0, 0.0, 0.0, 0
        shown = 0
        for prompt, answer in items:
            em, f, s, c = score(p, cfg, tok, prompt, answer)
            k, share, nll, n = k + em, share + f, nll + s, n + c
        lo, hi = wilson(k, len(items))
        result[name] = {"items": len(items), "exact": k / len(items), "low": lo, "high": hi, "token_accuracy": share / len(items)}
        print(f"{name:18} exact {k / len(items):.3f} [{lo:.3f}, {hi:.3f}]  tokens {share / len(items):.3f}  nll/token {nll / n:.3f}", flush=True)
    if a.eval:
        items = [json.loads(l) for l in open(f"{a.eval}/choice.jsonl", encoding="utf-8")]
        k = sum(choose(p, cfg, tok, i["query"], i["choices"]) == i["gold"] for i in items)
        lo, hi = wilson(k, len(items))
        result["choice"] = {"items": len(items), "accuracy": k / len(items), "low": lo, "high": hi}
        print(f"choice             right {k / len(items):.3f} [{lo:.3f}, {hi:.3f}]  (chance 0.250)")
        ids = tok.encode(open(f"{a.eval}/english.txt", encoding="utf-8").read())
        result["ppl_english.txt"], n = perplexity(p, cfg, ids)
        print(f"perplexity english.txt {result['ppl_english.txt']:.2f}  ({n} tokens)")
    for kind in ("stories", "wiki", "plays"):
        ids = []
        for t in en.text[a.split][kind]:
            ids += [tok.ids["<|endoftext|>"]] + tok.encode_plain(t)
        chars = sum(map(len, en.text[a.split][kind]))
        ppl, n = perplexity(p, cfg, ids[:12000 if not a.eval else None])
        result["ppl_" + kind] = ppl
        print(f"perplexity {kind:8} {ppl:.2f}  ({n} tokens, {chars / len(ids):.2f} characters each)", flush=True)
    if a.json:
        json.dump(result, open(a.json, "w"), indent=1)


if __name__ == "__main__":
    main()
