#!/usr/bin/env python3
"""Plain English of a split, stories and plays and Wikipedia by turns: english.py TEXT_FOLDER SPLIT OUT [characters]"""
import sys
from itertools import chain, zip_longest

from data import English


def main():
    folder, split, out = sys.argv[1:4]
    most = int(sys.argv[4]) if len(sys.argv) > 4 else None
    t = English(folder).text[split]
    kinds = zip_longest(t["stories"], t["plays"], t["wiki"][: len(t["stories"])])
    text = "\n\n".join(x for x in chain.from_iterable(kinds) if x)
    with open(out, "w", encoding="utf-8") as f:
        f.write(text[:most] + "\n")


if __name__ == "__main__":
    main()
