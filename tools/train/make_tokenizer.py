#!/usr/bin/env python3
"""Train the tokenizer on a seeded sample of the training mixture: make_tokenizer.py TEXT_FOLDER OUT/tokenizer.json"""
import re
import sys

import bpe
from data import English, Maker, render


def main():
    text, out = sys.argv[1:3]
    en = English(text)
    m = Maker("train", 1, en)
    texts = []
    for i in range(4000):
        it = m.item(m.pick(list(m.KINDS)), 300, lambda s: len(s) // 3, 2)
        if it:
            texts.append(re.sub(r"<\|\w+\|>", "", "".join(t for t, _ in render(it[0], it[1]))))
    t = en.text["train"]
    texts += t["stories"] + t["wiki"][:1500] + t["plays"][::3]
    vocab, merges = bpe.train(texts, 4096)
    bpe.Tokenizer(vocab, merges).save(out)


if __name__ == "__main__":
    main()
