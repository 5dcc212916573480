#!/usr/bin/env python3
"""Train tern-tiny, or with --arch hybrid a small mixture of experts with gated delta nets (hybrid.py), from scratch.

One process per CPU core works on its own batch (a step then waits only once for a busy core, not at every
multiplication); gradients meet in shared memory and every worker updates its share of the parameters: Muon for
the matrices, Adam for the embedding and the norms. On a GPU (--device cuda) there is one worker and the rest is the same.

The schedule counts tokens and steps; with --until the cool-down follows the clock. A control file in the
output folder (ctl.json: {"stage": n, "lr": x, "until": "HH:MM", "stop": true}) may
overrule it while it runs.
"""
import argparse
import csv
import datetime
import json
import math
import os
import random
import time

import torch
import torch.multiprocessing as mp

import model as M
from bpe import Tokenizer
from data import English, Maker, render

# One row per curriculum stage: from this token count on, rows of ctx tokens drawn from these lengths.
# qa: questions asked about one document. english, drill: shares of rows and of items.
# In the shipped run the last three stages began at 12.0, 20.1 and 22.3 M tokens, with 1024 again from 23.3 to 25 M.
STAGES = [
    {"from_tok": 0, "ctx": 256, "lengths": [100, 128, 160, 192, 250], "qa": 6, "english": 0.10, "drill": 0.45},
    {"from_tok": 10e6, "ctx": 256, "lengths": [128, 160, 192, 250], "qa": 5, "english": 0.15, "drill": 0.15},
    {"from_tok": 12e6, "ctx": 512, "lengths": [160, 250, 350, 500, 500], "qa": 6, "english": 0.2, "drill": 0.05},
    {"from_tok": 20e6, "ctx": 1024, "lengths": [250, 500, 500, 1000, 1000], "qa": 24, "english": 0.2, "drill": 0.0},
    {"from_tok": 25e6, "ctx": 2048, "lengths": [250, 500, 500, 1000, 1000, 2000], "qa": 32, "english": 0.2, "drill": 0.0},
]
# The hybrid is trained to be measured by its perplexity on plain English, in an hour of one core.
HYBRID_STAGES = [
    {"from_tok": 0, "ctx": 128, "lengths": [100, 120], "qa": 3, "english": 1.4, "drill": 0.2},
    {"from_tok": 1.5e6, "ctx": 256, "lengths": [128, 160, 192, 250], "qa": 5, "english": 1.4, "drill": 0.1},
]
TASKS = ["extraction"] * 5 + ["ui_action"] * 2 + ["function_call"] * 2 + ["summary"] * 3 + ["reply"] * 1 + ["quote"]
DOC_SAMPLE = 0.15  # share of document tokens that enter the loss: most are drawn at random and cannot be predicted


class Stream:
    """Rows of ctx + 1 tokens with loss weights; each worker owns one."""

    def __init__(self, tok, english, seed):
        self.tok, self.en = tok, english
        self.r = random.Random(seed)
        self.maker = Maker("train", 0, english, self.r)
        self.eot = tok.ids["<|endoftext|>"]
        self.buf = []

    def count(self, s):
        return len(self.tok.encode_plain(s))

    def english_ids(self, n):
        """n tokens of plain English out of a running text buffer."""
        while len(self.buf) < n:
            kind = self.maker.pick(["stories", "stories", "wiki", "wiki", "wiki", "plays"])
            self.buf += [self.eot] + self.tok.encode_plain(self.maker.pick(self.en.text["train"][kind]))
        out, self.buf = self.buf[:n], self.buf[n:]
        return out

    def row(self, st):
        ctx, r = st["ctx"], self.r
        self.maker.one_wording = ctx < 512
        ids, w = [], []
        if r.random() < st["english"] * 0.6:
            ids = self.english_ids(ctx + 1)
            return ids, [1.0] * (ctx + 1)
        while ctx - len(ids) > 90:
            left = ctx - len(ids) - 2
            n = min(left, self.maker.pick(st["lengths"]))
            if r.random() < st["drill"]:
                it = self.maker.copy_drill(n, self.count)
            else:
                it = self.maker.item(self.maker.pick(TASKS), n, self.count, st["qa"])
            if it is None:
                break
            one, ow = [self.eot], [0.0]
            for text, answer in render(it[0], it[1]):
                t = self.tok.encode(text)
                one += t
                ow += [1.0] * len(t) if answer else [0.5 if r.random() < DOC_SAMPLE else 0.0 for _ in t]
            if len(one) > left + 2:
                break
            ids += one
            w += ow
        n = ctx + 1 - len(ids)
        ids = ids + self.english_ids(n)
        w = w + [1.0] * n
        return ids, w

    def batch(self, st, n_tok, device):
        rows = [self.row(st) for _ in range(max(1, n_tok // st["ctx"]))]
        ids = torch.tensor([x for x, _ in rows], device=device)
        w = torch.tensor([x for _, x in rows], device=device)
        return ids[:, :-1].contiguous(), ids[:, 1:].reshape(-1), w[:, 1:].reshape(-1)


def orthogonalize(g, steps=5):
    """Newton-Schulz iteration of Muon (Jordan et al. 2024): the nearest semi-orthogonal matrix, roughly, of
    every matrix of a stack."""
    x = g.to(torch.bfloat16)
    flip = x.shape[-2] > x.shape[-1]
    if flip:
        x = x.transpose(-1, -2)
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(steps):
        a = x @ x.transpose(-1, -2)
        b = -4.7750 * a + 2.0315 * (a @ a)
        x = 3.4445 * x + b @ x
    return (x.transpose(-1, -2) if flip else x).float()


class Shared:
    """Parameters, gradients and optimizer state in flat shared tensors, with named views."""

    def __init__(self, cfg, seed, n_workers, device):
        self.arch = M.module_of(cfg)
        init = self.arch.init_params(cfg, seed)
        self.names = list(init)
        n = sum(t.numel() for t in init.values())
        self.n_params = n
        share = device == "cpu"

        def flat(*shape):
            t = torch.zeros(*shape, device=device)
            return t.share_memory_() if share else t

        self.w, self.m1, self.m2 = flat(n), flat(n), flat(n)
        self.g = flat(n_workers, n)
        self.stats = flat(n_workers, 8)
        self.span, o = {}, 0
        for k, t in init.items():
            self.span[k] = (o, t.numel(), t.shape)
            self.w[o : o + t.numel()].copy_(t.detach().reshape(-1))
            o += t.numel()

    def view(self, flat, k):
        o, n, shape = self.span[k]
        return flat[o : o + n].view(shape)

    def params(self, rank):
        """Parameter views of the shared weights, whose .grad are views of this worker's gradient."""
        p = {}
        for k in self.names:
            t = self.view(self.w, k).detach()
            t.requires_grad_(True)
            t.grad = self.view(self.g[rank], k)
            p[k] = t
        return p

    def owner(self, n_workers):
        """Who updates what: greedily balanced by size."""
        load, own = [0] * n_workers, {}
        for k in sorted(self.names, key=lambda k: -self.span[k][1]):
            i = load.index(min(load))
            own[k] = i
            # a Muon update costs many multiplications, the embedding's Adam update hardly any
            load[i] += self.span[k][1] * (0.3 if "embed" in k else 1)
        return own


def update(sh, k, lr, step, args):
    """One optimizer step for tensor k; lr in 0..1 is the schedule's factor."""
    w, m1, m2 = sh.view(sh.w, k), sh.view(sh.m1, k), sh.view(sh.m2, k)
    g = sh.view(sh.g[0], k)
    for i in range(1, sh.g.shape[0]):
        g = g + sh.view(sh.g[i], k)
    g = g / sh.g.shape[0]
    if sh.arch.by_muon(k, w):
        m1.lerp_(g, 0.05)
        o = orthogonalize(g.lerp(m1, 0.95))
        w.mul_(1 - lr * args.muon_lr * args.wd)
        w.add_(o, alpha=-lr * args.muon_lr * math.sqrt(max(1.0, w.shape[-2] / w.shape[-1])))
    else:
        b1, b2 = 0.9, 0.98
        m1.lerp_(g, 1 - b1)
        m2.mul_(b2).addcmul_(g, g, value=1 - b2)
        den = (m2 / (1 - b2**step)).sqrt_().add_(1e-9)
        w.addcdiv_(m1, den, value=-lr * args.adam_lr / (1 - b1**step))


def minutes_until(hhmm):
    now = datetime.datetime.utcnow()
    h, m = map(int, hhmm.split(":"))
    d = (now.replace(hour=h, minute=m, second=0, microsecond=0) - now).total_seconds() / 60
    return d if d > -720 else d + 1440


def save(path, obj):
    torch.save(obj, path + ".part")
    os.replace(path + ".part", path)


def worker(rank, args, cfg, sh, barrier, state):
    torch.set_num_threads(args.threads)
    dev = args.device
    tok = Tokenizer.load(f"{args.out}/tokenizer.json")
    en = English(args.text)
    stream = Stream(tok, en, args.seed * 7919 + rank)
    s = state or {"step": 0, "tok": 0, "cpu_s": 0.0}
    if state:
        stream.r.setstate(s["rng"][rank])
        stream.buf = list(s["buf"][rank])
        torch.manual_seed(args.seed + s["step"])
    p = sh.params(rank)
    own = [k for k, o in sh.owner(args.workers).items() if o == rank]
    stages = HYBRID_STAGES if args.arch == "hybrid" else STAGES
    ctl, cpu0, t_mark = {}, time.process_time(), time.time()
    step, ntok = s["step"], s["tok"]
    cool_f, done, ema = s.get("cool_f", 1.0), False, None
    log = open(f"{args.out}/loss.csv", "a", newline="") if rank == 0 else None

    def snapshot():
        """Each worker hands over its data stream; rank 0 writes."""
        save(f"{args.out}/stream{rank}.pt", {"rng": stream.r.getstate(), "buf": stream.buf})
        barrier.wait()
        if rank == 0:
            st = [torch.load(f"{args.out}/stream{i}.pt") for i in range(args.workers)]
            save(f"{args.out}/ckpt.pt", {
                "cfg": cfg.dict(), "w": sh.w.cpu(), "m1": sh.m1.cpu(), "m2": sh.m2.cpu(),
                "state": {"step": step, "tok": ntok, "cpu_s": s["cpu_s"] + time.process_time() - cpu0, "cool_f": cool_f,
                          "rng": [x["rng"] for x in st], "buf": [x["buf"] for x in st]}})
        barrier.wait()

    while True:
        if rank == 0 and step % 10 == 0:  # decisions are taken by rank 0 and travel through the shared stats
            try:
                with open(f"{args.out}/ctl.json") as f:
                    ctl = json.load(f)
            except (OSError, ValueError):
                pass
            until = ctl.get("until", args.until)
            left = minutes_until(until) if until else None
            if left is not None:
                # by the clock: pauses and busy cores make the cool-down shorter in steps, but it always ends cold
                cool_f = min(cool_f, max(0.02, left / ctl.get("cool_min", args.cool_min)))
                done = left <= 0
            elif args.max_steps:
                cool_f = min(1.0, max(0.02, (args.max_steps - step) / (args.max_steps / 3)))
                done = step >= args.max_steps
            stage = max(i for i, t in enumerate(stages) if t["from_tok"] <= ntok)
            sh.stats[0, 4] = ctl.get("stage", stage)
            sh.stats[0, 5] = ctl.get("lr", 1.0) * cool_f
            sh.stats[0, 6] = bool(done or ctl.get("stop") or args.stop_tok and ntok >= args.stop_tok)
        barrier.wait()
        stage, lrf, stop = (float(x) for x in sh.stats[0, 4:7])
        if stop:
            break
        st = stages[int(stage)]
        lr = lrf * min(1.0, (step + 1) / args.warmup)

        sh.g[rank].zero_()
        x, y, w = stream.batch(st, args.batch // args.workers, dev)
        aux = []
        h = sh.arch.forward(p, cfg, x, aux=aux)
        idx = torch.nonzero(w).squeeze(1)
        loss = M.loss_sum(p, h[idx], y[idx], w[idx]) / w.sum()
        sum(aux, loss).backward()
        sh.stats[rank, 0] = loss.item()
        sh.stats[rank, 1] = x.numel()
        barrier.wait()
        for k in own:
            update(sh, k, lr, step + 1, args)
        step += 1
        ntok += int(sh.stats[:, 1].sum())
        if rank == 0:
            v = float(sh.stats[:, 0].mean())
            ema = v if ema is None else 0.95 * ema + 0.05 * v
            if step % 20 == 0:
                now = time.time()
                csv.writer(log).writerow([step, ntok, int(stage), f"{v:.4f}", f"{ema:.4f}", f"{lr:.4f}",
                                          f"{s['cpu_s'] + time.process_time() - cpu0:.0f}",
                                          f"{(now - t_mark) / 20:.3f}"])
                log.flush()
                t_mark = now
        if step % args.save_every == 0:
            barrier.wait()
            snapshot()
    snapshot()
    if rank == 0:
        open(f"{args.out}/done", "w").close()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--out", required=True, help="folder of checkpoint, loss.csv, tokenizer.json (made by make_tokenizer.py)")
    ap.add_argument("--text", required=True, help="folder of the English corpora")
    ap.add_argument("--device", default="cpu")
    ap.add_argument("--workers", type=int, default=2)
    ap.add_argument("--threads", type=int, default=1, help="threads of each worker")
    ap.add_argument("--seed", type=int, default=1)
    ap.add_argument("--batch", type=int, default=8192, help="tokens of a step, all workers")
    ap.add_argument("--muon-lr", type=float, default=0.02)
    ap.add_argument("--adam-lr", type=float, default=0.004)
    ap.add_argument("--wd", type=float, default=0.01)
    ap.add_argument("--warmup", type=int, default=60)
    ap.add_argument("--until", help="HH:MM (UTC) at which the cool-down shall end")
    ap.add_argument("--cool-min", type=float, default=45, help="minutes of cool-down before --until")
    ap.add_argument("--max-steps", type=int, help="instead of --until: this many steps, the last third cooling down")
    ap.add_argument("--stop-tok", type=float, help="save and end at this many tokens (to grow the model)")
    ap.add_argument("--save-every", type=int, default=200)
    # the shape of a new run; a checkpoint brings its own
    ap.add_argument("--arch", choices=["llama", "hybrid"], default="llama")
    shape = ("d_model", "n_layers", "n_heads", "n_kv_heads", "d_ff", "n_experts", "n_used", "d_expert", "d_shared")
    for f in shape:
        ap.add_argument("--" + f.replace("_", "-"), type=int)
    args = ap.parse_args()
    if args.device != "cpu":
        args.workers = 1
    state = torch.load(f"{args.out}/ckpt.pt", map_location=args.device) if os.path.exists(f"{args.out}/ckpt.pt") else None
    if state:
        cfg = M.config_of(state["cfg"])
        args.arch = state["cfg"].get("kind", "llama")
    else:
        given = {f: getattr(args, f) for f in shape if getattr(args, f) is not None}
        n_vocab = len(Tokenizer.load(f"{args.out}/tokenizer.json").vocab)
        cfg = M.config_of({"vocab_size": n_vocab, **({"kind": "hybrid"} if args.arch == "hybrid" else {}), **given})
    torch.set_num_threads(1)
    sh = Shared(cfg, args.seed, args.workers, args.device)
    if state:
        for k in ("w", "m1", "m2"):
            getattr(sh, k).copy_(state[k])
        state = state["state"]
    print(f"{sh.n_params} parameters, {cfg}", flush=True)
    ctx = mp.get_context("fork" if args.device == "cpu" else "spawn")
    barrier = ctx.Barrier(args.workers)
    if args.workers == 1:
        worker(0, args, cfg, sh, barrier, state)
        return
    ps = [ctx.Process(target=worker, args=(i, args, cfg, sh, barrier, state)) for i in range(args.workers)]
    for q in ps:
        q.start()
    for q in ps:
        q.join()


if __name__ == "__main__":
    main()
