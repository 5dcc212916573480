#!/usr/bin/env python3
"""Write the shipped evaluation sets and the calibration text: make_eval.py TEXT_FOLDER MODEL_FOLDER

From the test split: eval/<task>.jsonl with {"prompt", "answer"}, eval/choice.jsonl with {"query", "choices", "gold"},
eval/english.txt. From the train split: calib.txt.
"""
import json
import os
import random
import sys

from bpe import Tokenizer
from data import English, Maker, prompt_of, render

SETS = [("extraction_512", "extraction", 512, 300), ("extraction_1024", "extraction", 1024, 150), ("extraction_2048", "extraction", 2040, 100),
        ("summary", "summary", 512, 200), ("ui_action", "ui_action", 512, 300), ("function_call", "function_call", 512, 300),
        ("reply", "reply", 512, 200)]


def items(maker, count, task, n_tok, n):
    """n items with at least 70 % of n_tok tokens; see the card for the licence of the story sentences among them."""
    out = []
    while len(out) < n:
        it = maker.item(task, n_tok - 24, count, 1)
        if it:
            prompt = prompt_of(it[0], it[1][0][0])
            if count(prompt) >= 0.7 * n_tok:
                out.append({"prompt": prompt, "answer": it[1][0][1]})
    return out


def choice(maker, count, n):
    """Which of four values answers the question: all four stand in the document."""
    out = []
    while len(out) < n:
        it = maker.item("extraction", 300, count, 8)
        if not it or len(it[1]) < 4:
            continue
        q, a = it[1][0]
        if " is " not in a or a[0] == "[":
            continue
        stem, v = a.rsplit(" is ", 1)
        wrong = [x.rsplit(" is ", 1)[1] for _, x in it[1][1:] if " is " in x and x[0] != "["]
        wrong = [x for x in dict.fromkeys(wrong) if x != v][:3]
        if len(wrong) < 3:
            continue
        ch = [v] + wrong
        maker.r.shuffle(ch)
        out.append({"query": prompt_of(it[0], q) + stem + " is", "choices": [" " + c for c in ch], "gold": ch.index(v)})
    return out


def main():
    text, folder = sys.argv[1:3]
    en = English(text)
    tok = Tokenizer.load(f"{folder}/tokenizer.json")

    def count(s):
        return len(tok.encode(s))

    os.makedirs(f"{folder}/eval", exist_ok=True)
    for i, (name, task, n_tok, n) in enumerate(SETS):
        with open(f"{folder}/eval/{name}.jsonl", "w", encoding="utf-8") as f:
            for it in items(Maker("test", 100 + i, en), count, task, n_tok, n):
                f.write(json.dumps(it, ensure_ascii=False) + "\n")
    with open(f"{folder}/eval/choice.jsonl", "w", encoding="utf-8") as f:
        for it in choice(Maker("test", 200, en), count, 300):
            f.write(json.dumps(it, ensure_ascii=False) + "\n")
    with open(f"{folder}/eval/english.txt", "w", encoding="utf-8") as f:
        t = en.text["test"]
        f.write("\n\n".join(t["stories"][:35] + t["plays"][:9]) + "\n")
    m, r, out = Maker("train", 900, en), random.Random(5), []
    tasks = list(m.KINDS)
    while sum(map(len, out)) < 60000:
        if r.random() < 0.3:
            out.append(m.pick(en.text["train"]["stories"]))
        else:
            it = m.item(m.pick(tasks), m.pick([300, 500]), count, 3)
            if it:
                out.append("".join(t for t, _ in render(it[0], it[1])))
    with open(f"{folder}/calib.txt", "w", encoding="utf-8") as f:
        f.write("<|endoftext|>".join(out) + "\n")


if __name__ == "__main__":
    main()
