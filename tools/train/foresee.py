#!/usr/bin/env python3
"""How many of the experts that a layer chooses are foreseen, by what guesses: foresee.py MODEL_FOLDER TEXT_FOLDER

Of a hybrid's folder, in floats. As many experts are guessed as are used, in every layer but the first, on texts of the English test split
and on device documents with their questions. tern guesses by the last line (src/prefill/experts.c).
"""
import os
import sys

import numpy as np

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
import inject_outliers  # noqa: E402
import outliers_hybrid as H  # noqa: E402
from bpe import Tokenizer  # noqa: E402
from data import English, Maker, render  # noqa: E402

TOKENS, SKIPPED, NEW = 512, 16, 0.05


def scores(cfg, w, ids):
    """Of every layer's experts [T, n]: as they are; of the stream where the layer begins; and in front of the layer before's experts."""
    x, before, out = w["model.embed_tokens.weight"][ids], None, []
    see = lambda name, x: None  # noqa: E731

    def norm(x, g):
        return H.rms(x, cfg["rms_norm_eps"]) * (1 + w[g])

    for i, kind in enumerate(cfg["layer_types"]):
        n = f"model.layers.{i}."
        begins = x
        x = x + (H.delta_net if kind == "linear_attention" else H.attention)(cfg, w, n, norm(x, n + "input_layernorm.weight"), see)
        h = norm(x, n + "post_attention_layernorm.weight")
        if i:
            out.append([norm(y, n + "post_attention_layernorm.weight") @ w[n + "mlp.gate.weight"].T for y in (x, begins, before)])
        before = x
        x = x + H.mixture(cfg, w, n, h, see)
    return out


def chosen(s, used):
    out = np.zeros_like(s)
    np.put_along_axis(out, np.argsort(-s, 1, kind="stable")[:, :used], 1, 1)
    return out


def corrected(guess, true):
    """With what it has been off by lately: a mean, whose part NEW is the last token's."""
    drift, out = np.zeros(guess.shape[1]), np.empty_like(guess)
    for t in range(len(guess)):
        out[t] = guess[t] + drift
        drift += NEW * (true[t] - guess[t] - drift)
    return out


def main():
    folder, text = sys.argv[1:3]
    cfg, w = inject_outliers.load(folder)
    tok, used, english = Tokenizer.load(f"{folder}/tokenizer.json"), cfg["num_experts_per_tok"], English(text)
    maker = Maker("test", 0, english)
    tasks = list(maker.KINDS)
    items = [maker.item(tasks[i % len(tasks)], 400, lambda s: len(tok.encode(s))) for i in range(16)]
    kinds = {"English": [x for k in ("stories", "plays", "wiki") for x in english.text["test"][k][:12]],
             "device": ["".join(a for a, _ in render(it[0], it[1])) for it in items if it]}
    print(f"chance: {used / cfg['num_experts']:.1%}")
    for kind, texts in kinds.items():
        right, total = {}, 0
        for t in texts:
            ids = tok.encode(t[:2500])[:TOKENS]
            if len(ids) < 2 * SKIPPED:
                continue
            for true, begins, before in scores(cfg, w, np.array(ids)):
                is_, n = chosen(true, used), true.shape[1]
                last = np.vstack([np.zeros((1, n)), is_[:-1]])
                guesses = {"the last token's": last, "before the layer before's experts": before,
                           "the same, + .5 of the last token's": before + 0.5 * last, "the same, corrected": corrected(before, true),
                           "where the layer begins": begins, "where the layer begins, corrected": corrected(begins, true)}
                for name, g in guesses.items():
                    right[name] = right.get(name, 0) + (chosen(g, used) * is_)[SKIPPED:].sum()
                total += is_[SKIPPED:].sum()
        for name, hits in right.items():
            print(f"{kind:8} {name:40} {hits / total:.1%}")


if __name__ == "__main__":
    main()
