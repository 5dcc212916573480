#!/usr/bin/env python3
"""What per-tensor static INT8 does to a model: simulate_w8a8.py MODEL_FOLDER... [-n items]

Weights: int8, one scale per output channel. Activations: int8, one static scale per linear, calibrated on
MODEL_FOLDER/calib.txt. naive: the scale covers the largest value seen. shadow: the scale covers the largest value
of the channels that are not outliers, and what the clip cuts off is added back in float (llm.npu 3.3).
Products run in bf16, which holds every int8 exactly.
"""
import argparse
import json
import os

import torch

from bpe import Tokenizer
from evaluate import load, perplexity, score, wilson

HERE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "models", "tern-tiny")


def quantize_rows(w):
    s = w.abs().amax(1, keepdim=True).clamp_min(1e-12) / 127
    return (w / s).round().clamp(-127, 127) * s


class Calibration:
    """Per linear input: the largest magnitude of each channel."""

    def __init__(self):
        self.peak = {}

    def __call__(self, names, x):
        m = x.abs().amax(0)
        self.peak[names[0]] = torch.maximum(self.peak.get(names[0], m), m)
        return x


def quantizer(peak, shadow):
    stat = {"clipped": 0, "seen": 0}

    def scale(p):
        if not shadow:
            return float(p.max())
        return float(torch.minimum(p, 4 * p.median()).max())

    scales = {n: scale(p) / 127 for n, p in peak.items()}

    def trace(names, x):
        s, dtype, x = scales[names[0]], x.dtype, x.float()
        q = (x / s).round().clamp(-127, 127) * s
        if shadow:
            over = x.abs() > 127 * s
            stat["clipped"] += int(over.sum())
            stat["seen"] += x.numel()
            q = q + torch.where(over, x - q, torch.zeros_like(x))
        return q.to(dtype)

    return trace, stat


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("models", nargs="+")
    ap.add_argument("-n", type=int, default=100, help="items of each task, 0: perplexity only")
    ap.add_argument("--tokens", type=int, default=8192, help="of english.txt and calib.txt")
    ap.add_argument("--data", default=HERE, help="folder of eval/ and calib.txt")
    a = ap.parse_args()
    torch.set_num_threads(1)
    for folder in a.models:
        tok = Tokenizer.load(f"{folder}/tokenizer.json")
        cfg, p, _ = load(folder)
        ids = {n: tok.encode(open(f"{a.data}/{n}", encoding="utf-8").read()) for n in ("calib.txt", "eval/english.txt")}
        sets = {n: [json.loads(l) for l in open(f"{a.data}/eval/{n}.jsonl", encoding="utf-8")][: a.n]
                for n in ("extraction_512", "ui_action")} if a.n else {}
        c = Calibration()
        perplexity(p, cfg, ids["calib.txt"][: a.tokens], trace=c)
        top = max((float(x.max() / x.median()), n) for n, x in c.peak.items())
        print(f"{folder}: largest channel peak over the median one {top[0]:.0f} ({top[1]})")
        q = {k: quantize_rows(v) if v.dim() == 2 and "embed" not in k else v for k, v in p.items()}
        for name, w, how in (("float", p, None), ("W8 only", q, None), ("W8A8 naive", q, False), ("W8A8 shadow", q, True)):
            trace, stat = quantizer(c.peak, how) if how is not None else (None, None)
            ppl, _ = perplexity(w, cfg, ids["eval/english.txt"][: a.tokens], trace=trace)
            row = f"  {name:12} perplexity {ppl:9.2f}"
            for s, items in sets.items():
                k = sum(score(w, cfg, tok, i["prompt"], i["answer"], trace=trace)[0] for i in items)
                lo, hi = wilson(k, len(items))
                row += f"  {s} {100 * k / len(items):5.1f} % [{100 * lo:.0f}, {100 * hi:.0f}]"
            if stat and stat["seen"]:
                row += f"  clipped {100 * stat['clipped'] / stat['seen']:.3f} %"
            print(row, flush=True)


if __name__ == "__main__":
    main()
