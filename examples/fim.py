"""What stands between two texts, as an editor asks: python3 examples/fim.py MODEL FILE LINE        (text goes in behind that line)

It needs a model that was trained to fill in the middle, and has the tokens for it."""
import sys

import tern

MARKS = [("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"), ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"), ("<PRE>", "<SUF>", "<MID>")]


def marks_of(model):
    """The ids of the first set that the model has as tokens."""
    for marks in MARKS:
        ids = [model.tokenize(mark, special=False, parse_special=True) for mark in marks]
        if all(len(i) == 1 for i in ids):
            return [i[0] for i in ids]
    sys.exit("the model has no tokens to fill in the middle: take one that was trained for it, such as Qwen2.5-Coder")


def main(path, file, line):
    model = tern.Model(path, temp=0, n_predict=64)
    prefix, suffix, middle = marks_of(model)
    with open(file, encoding="utf-8") as f:
        lines = f.readlines()
    before, after = "".join(lines[: int(line)]), "".join(lines[int(line):])
    ids = [prefix, *model.tokenize(before, special=False), suffix, *model.tokenize(after, special=False), middle]
    with model.session() as session:
        for piece in session.generate(ids):
            print(piece, end="", flush=True)
    print()


if __name__ == "__main__":
    main(*sys.argv[1:])
