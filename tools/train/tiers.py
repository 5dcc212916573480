#!/usr/bin/env python3
"""What a hybrid's experts gain from being known beforehand: tiers.py MODEL_FOLDER TEXT_FOLDER (docs/record/beyond.md)

Which experts a layer chooses is counted on the train split and on the test split, in floats, in every layer but the first. Popularity and capacities come
from the train split, what they are worth from the test split: reads of a decoded token with memory for a part of the experts, by who stays there; and rows of
graphs of fixed shapes in a prompt.
"""
import os
import sys

import numpy as np

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
import inject_outliers  # noqa: E402
from bpe import Tokenizer  # noqa: E402
from data import English, Maker, render  # noqa: E402
from foresee import TOKENS, chosen, scores  # noqa: E402

CHUNK, SHAPES = 256, (16, 32, 48, 64, 96, 128, 192, 256)


def texts(split, tok, english, n):
    maker = Maker(split, 0, english)
    tasks = list(maker.KINDS)
    items = [maker.item(tasks[i % len(tasks)], 400, lambda s: len(tok.encode(s))) for i in range(n)]
    return {"English": [x for k in ("stories", "plays", "wiki") for x in english.text[split][k][:n]],
            "device": ["".join(a for a, _ in render(it[0], it[1])) for it in items if it]}


def routes(cfg, w, tok, list_of_texts):
    """[tokens][layers][experts] of 0 and 1, text after text."""
    out, used = [], cfg["num_experts_per_tok"]
    for t in list_of_texts:
        ids = tok.encode(t[:2500])[:TOKENS]
        if len(ids) >= 64:
            out.append(np.stack([chosen(s[0], used) for s in scores(cfg, w, np.array(ids))], 1))
    return np.concatenate(out)


def reads(route, room, pinned=(), half=0, best=False):
    """Experts read for a token, with room for so many; pinned ones stay for ever. The rest go by last use; by uses, which count half after so many tokens;
    or (best) by next use, which nobody knows."""
    n_tok, n_layers, n = route.shape
    flat = route.reshape(n_tok, n_layers * n).astype(bool)
    nexts = np.full(flat.shape, n_tok, np.int32)
    for t in range(n_tok - 2, -1, -1):
        nexts[t] = np.where(flat[t + 1], t + 1, nexts[t + 1])
    fixed, loose, last, heat, total = set(pinned), set(), {}, {}, 0
    for t in range(n_tok):
        for u in np.flatnonzero(flat[t]):
            if u in fixed:
                continue
            if u not in loose:
                total += 1
                if len(loose) == room - len(fixed) and loose:
                    loose.remove(max(loose, key=lambda x: nexts[t][x]) if best else min(loose, key=(heat if half else last).get))
                if len(loose) < room - len(fixed):
                    loose.add(u)
            last[u] = t * flat.shape[1] + u
            if half:  # the logarithm of the count, if it were never halved
                heat[u] = t / half + np.log2(1 + 2 ** (heat.get(u, -1e3) - t / half))
    return total / n_tok


def rows(route, shape_of):
    """Rows computed in graphs of these shapes, and rows beyond them, of what is routed."""
    done = beyond = 0
    for t in range(0, len(route) - CHUNK + 1, CHUNK):
        need = route[t:t + CHUNK].sum(0)
        done += np.where(need > 0, shape_of, 0).sum()
        beyond += np.maximum(need - shape_of, 0).sum()
    n = len(route) // CHUNK * CHUNK * route.shape[1] * route[0, 0].sum()
    return done / n, beyond / n


def main():
    folder, text = sys.argv[1:3]
    cfg, w = inject_outliers.load(folder)
    tok, english = Tokenizer.load(f"{folder}/tokenizer.json"), English(text)
    train, test = ({k: routes(cfg, w, tok, v) for k, v in texts(s, tok, english, 12).items()} for s in ("train", "test"))
    train["both"] = np.concatenate(list(train.values()))
    n_units = train["both"][0].size
    for kind, held in test.items():
        print(f"{kind}: {len(held)} tokens kept apart")
        for known, seen in (("the same kind", train[kind]), ("both kinds", train["both"])):
            order = np.argsort(-seen.mean(0), 1, kind="stable")
            share = [np.take_along_axis(held.mean(0), order[:, :k], 1).sum() / held.mean(0).sum() for k in (order.shape[1] // 4, order.shape[1] // 2)]
            print(f"  most popular by the train split, {known}: the first quarter has {share[0]:.1%} of the choices, the first half {share[1]:.1%}")
        popular = np.argsort(-train["both"].mean(0).ravel(), kind="stable")
        for part in (0.25, 0.5, 0.75):
            room = int(part * n_units)
            print(f"  room for {part:.0%}: experts read a token, of {held[0].sum():.0f}: last use {reads(held, room):.2f}, "
                  f"popular ones stay {reads(held, room, popular[:room]):.2f}, half of the room popular {reads(held, room, popular[:room // 2]):.2f}, "
                  + "".join(f"uses that halve in {h} tokens {reads(held, room, half=h):.2f}, " for h in (16, 64, 256))
                  + f"by next use (the bound) {reads(held, room, best=True):.2f}")
        n = len(train["both"]) // CHUNK * CHUNK
        need = train["both"][:n].reshape(-1, CHUNK, *held.shape[1:]).sum(1)
        fits = lambda q: np.array(SHAPES)[np.searchsorted(SHAPES, np.quantile(need, q, 0, method="higher"))]  # noqa: E731
        for name, shape in (("every graph has the chunk's rows", np.full(held.shape[1:], CHUNK)), ("one capacity for all", np.full(held.shape[1:], fits(0.95).max())),
                            ("tiers, 95 % of chunks fit", fits(0.95)), ("tiers, half of the chunks fit", fits(0.5))):
            done, beyond = rows(held, shape)
            print(f"  chunks of {CHUNK}, {name}: {done:.2f} rows computed for one routed, {beyond:.1%} of the rows beyond their graph")


if __name__ == "__main__":
    main()
