#!/usr/bin/env python3
"""Small models of six kinds, from texts that come with Debian and WikiText-2, to see whether what packing says of its loss is true
on models and texts that nothing was tuned on (docs/record/performance.md, "What a pack tells and what is true").

    kinds.py KIND OUT [--minutes 9] [--wikitext FILE]      KIND: english, chinese, code, chat, mixture, hybrid
    kinds.py KIND OUT --more --ctx 2048 --rows 2           goes on from OUT's checkpoint in longer contexts

OUT gets train.txt and test.txt (the second is kept apart), a tokenizer of its own, the checkpoint, and hf/, the folder that tern opens.
chinese wants debian-reference-zh-cn and manpages-zh; code reads Python's library; chat asks English manual pages what they are about.
mixture has experts in every layer, hybrid has gated delta nets in three of four layers, too; both learn what english does.
"""
import argparse
import glob
import gzip
import html
import os
import random
import re
import subprocess
import sys
import time

import torch

import bpe
import hybrid
import model as M
import train as T

VOCABULARY = 3072
PART = 4000  # characters of a part; every twentieth part is kept apart


def plain_manual(path):
    """A manual page's text, less its markup."""
    with gzip.open(path, "rt", encoding="utf-8", errors="ignore") as f:
        lines = f.read().splitlines()
    lines = [re.sub(r"^\.[A-Za-z]+ ?", "", x) for x in lines if not x.startswith((".\\\"", "'", ".if", ".ie", ".el", ".ds", ".de", ".so", ".nr", ".."))]
    text = "\n".join(x for x in lines if x.strip())
    return re.sub(r"\\f[A-Z]|\\&|\\[|^%]", "", text).replace("\\-", "-").replace("\\(aq", "'").replace("\\e", "\\")


def chinese():
    for path in sorted(glob.glob("/usr/share/debian-reference/*.zh-cn.html")):
        with open(path, encoding="utf-8") as f:
            yield html.unescape(re.sub(r"\n\s*\n+", "\n", re.sub(r"<[^>]+>", "", re.sub(r"(?s)<head>.*?</head>", "", f.read()))))
    for path in sorted(glob.glob("/usr/share/man/zh_CN/man*/*.gz")):
        yield plain_manual(path)


def code():
    paths = sorted(glob.glob("/usr/lib/python3.11/*.py") + glob.glob("/usr/lib/python3.11/[a-z]*/*.py"))
    random.Random(1).shuffle(paths)
    size = 0
    for path in paths:
        with open(path, encoding="utf-8", errors="ignore") as f:
            text = f.read()
        size += len(text)
        if size > 6e6:
            return
        yield text


def chat():
    """Turns of a question and an answer in the template that export.py writes."""
    ask = ["What is {}?", "Tell me about {}.", "What does {} do?", "How is {} used?"]
    r = random.Random(1)
    for path in sorted(glob.glob("/usr/share/man/man[1-8]/*.gz")):
        name = os.path.basename(path).split(".")[0]
        try:
            text = plain_manual(path)
        except OSError:
            continue
        for part in re.split(r"\n(?=[A-Z][A-Z ]+\n)", text):
            if 200 < len(part) < 1500:
                yield f"<|im_start|>user\n{r.choice(ask).format(name)}<|im_end|>\n<|im_start|>assistant\n{part.strip()}<|im_end|>\n"


def english(path):
    with open(path, encoding="utf-8") as f:
        yield f.read()


def write_texts(kind, out, wikitext):
    """train.txt and test.txt; every twentieth part of every source is kept apart."""
    source = {"chinese": chinese, "code": code, "chat": chat}.get(kind, lambda: english(wikitext))
    text = "\n".join(source())
    cut = re.split(r"(?=<\|im_start\|>user)", text) if kind == "chat" else [text[i : i + PART] for i in range(0, len(text), PART)]
    for name, wanted in (("train", lambda i: i % 20 != 7), ("test", lambda i: i % 20 == 7)):
        with open(f"{out}/{name}.txt", "w", encoding="utf-8") as f:
            f.write("".join(x for i, x in enumerate(cut) if wanted(i)))


def config(kind, n_vocab):
    if kind in ("mixture", "hybrid"):
        return hybrid.Config(vocab_size=n_vocab, attend_every=1 if kind == "mixture" else 4, n_layers=4 if kind == "mixture" else 8)
    return M.Config(vocab_size=n_vocab, n_layers=5, d_ff=640)


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("kind", choices=["english", "chinese", "code", "chat", "mixture", "hybrid"])
    ap.add_argument("out")
    ap.add_argument("--minutes", type=float, default=9)
    ap.add_argument("--wikitext", default="wikitext2_train_part.txt")
    ap.add_argument("--rows", type=int, default=16, help="rows of a step")
    ap.add_argument("--ctx", type=int, default=256, help="tokens of a row")
    ap.add_argument("--more", action="store_true", help="begin with the checkpoint in OUT")
    a = ap.parse_args()
    torch.set_num_threads(1)
    os.makedirs(a.out, exist_ok=True)
    if not os.path.exists(f"{a.out}/tokenizer.json"):
        write_texts(a.kind, a.out, a.wikitext)
        with open(f"{a.out}/train.txt", encoding="utf-8") as f:
            bpe.Tokenizer(*bpe.train([re.sub(r"<\|\w+\|>", "\n", f.read()[:1500000])], VOCABULARY)).save(f"{a.out}/tokenizer.json")
    tok = bpe.Tokenizer.load(f"{a.out}/tokenizer.json")
    with open(f"{a.out}/train.txt", encoding="utf-8") as f:
        ids = torch.tensor(tok.encode(f.read()))
    cfg = config(a.kind, len(tok.vocab))
    sh = T.Shared(cfg, 1, 1, "cpu")
    if a.more:
        sh.w.copy_(torch.load(f"{a.out}/ckpt.pt")["w"])
    p = sh.params(0)
    how = argparse.Namespace(muon_lr=0.02, adam_lr=0.004, wd=0.01)
    g, begin, step, ema, ctx = torch.Generator().manual_seed(1), time.time(), 0, None, a.ctx
    while (left := 1 - (time.time() - begin) / (60 * a.minutes)) > 0:
        at = torch.randint(0, len(ids) - ctx - 1, (a.rows,), generator=g)
        x = torch.stack([ids[i : i + ctx + 1] for i in at.tolist()])
        sh.g[0].zero_()
        aux = []
        h = sh.arch.forward(p, cfg, x[:, :-1].contiguous(), aux=aux)
        y = x[:, 1:].reshape(-1)
        loss = M.loss_sum(p, h, y, torch.ones(len(y))) / len(y)
        sum(aux, loss).backward()
        for k in sh.names:
            T.update(sh, k, min(1, (step + 1) / 40, max(left / 0.4, 0.02)), step + 1, how)
        step += 1
        ema = loss.item() if ema is None else 0.95 * ema + 0.05 * loss.item()
        if step % (12800 // ctx) == 0:
            print(f"{step} steps, {step * a.rows * ctx} of {len(ids)} tokens, loss {ema:.3f}", flush=True)
    torch.save({"cfg": cfg.dict(), "w": sh.w, "state": {"step": step, "tok": step * a.rows * ctx}}, f"{a.out}/ckpt.pt")
    subprocess.run([sys.executable, os.path.join(os.path.dirname(os.path.abspath(__file__)), "export.py"), a.out, f"{a.out}/hf"], check=True)


if __name__ == "__main__":
    main()
