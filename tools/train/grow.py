#!/usr/bin/env python3
"""Grow a checkpoint in depth and feed-forward width without changing its function: grow.py RUN NEW_RUN [--d-ff N] [--after 1,2,3,4]

Copying forms first and soonest in a small model; the larger one then starts with it. After each layer named, a copy of
it is inserted whose two output projections are zero, so that it adds nothing yet; new feed-forward channels get random
input rows and zero output columns. Optimizer moments of what is new start at zero.
"""
import argparse
import math
import os
import shutil

import torch

import model as M


def named(c, flat, cfg):
    out, o = {}, 0
    for k, t in M.init_params(cfg, 0).items():
        out[k] = c[flat][o : o + t.numel()].view(t.shape)
        o += t.numel()
    return out


def widen(t, k, d_ff, g, fill):
    """gate and up rows, down columns: grown to d_ff; fill says whether new rows are random or zero."""
    if "gate_proj" in k or "up_proj" in k:
        n = d_ff - t.shape[0]
        new = torch.randn(n, t.shape[1], generator=g) / math.sqrt(t.shape[1]) if fill else torch.zeros(n, t.shape[1])
        return torch.cat([t, new])
    if "down_proj" in k:
        return torch.cat([t, torch.zeros(t.shape[0], d_ff - t.shape[1])], 1)
    return t


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("run")
    ap.add_argument("new_run")
    ap.add_argument("--d-ff", type=int, default=1024)
    ap.add_argument("--after", default="1,2,3,4")
    ap.add_argument("--seed", type=int, default=2)
    a = ap.parse_args()
    c = torch.load(f"{a.run}/ckpt.pt", map_location="cpu")
    old = M.Config(**c["cfg"])
    after = [int(x) for x in a.after.split(",")]
    order = [(i, new) for i in range(old.n_layers) for new in ([False, True] if i in after else [False])]
    cfg = M.Config(**{**c["cfg"], "n_layers": len(order), "d_ff": a.d_ff})
    g = torch.Generator().manual_seed(a.seed)
    out = {"cfg": cfg.dict(), "state": c["state"]}
    for flat in ("w", "m1", "m2"):
        src, dst = named(c, flat, old), []
        for k in M.init_params(cfg, 0):
            if not k.startswith("model.layers."):
                dst.append(src[k])
                continue
            _, _, n, rest = k.split(".", 3)
            i, new = order[int(n)]
            t = widen(src[f"model.layers.{i}.{rest}"], k, a.d_ff, g, flat == "w")
            if new and (flat != "w" or "o_proj" in k or "down_proj" in k):
                t = torch.zeros_like(t)
            dst.append(t)
        out[flat] = torch.cat([t.reshape(-1) for t in dst])
    os.makedirs(a.new_run, exist_ok=True)
    torch.save(out, f"{a.new_run}/ckpt.pt")
    for f in ("tokenizer.json", "loss.csv"):
        if os.path.exists(f"{a.run}/{f}"):
            shutil.copyfile(f"{a.run}/{f}", f"{a.new_run}/{f}")
    x = torch.randint(0, cfg.vocab_size, (1, 64), generator=g)
    with torch.no_grad():
        d = (M.forward(named(c, "w", old), old, x, torch.float32) - M.forward(named(out, "w", cfg), cfg, x, torch.float32)).abs().max()
    print(f"{c['w'].numel()} -> {out['w'].numel()} parameters, largest difference {float(d):g}")


if __name__ == "__main__":
    main()
