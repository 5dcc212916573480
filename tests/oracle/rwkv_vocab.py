#!/usr/bin/env python3
"""RWKV's tokenizer for the oracle, standard library only: a trie of bytes, of which the longest token at a place is taken.

    tests/oracle/rwkv_vocab.py            writes rwkv/rwkv_vocab_v20230424.txt (a small vocabulary in the published form) and rwkv/texts.jsonl
    tests/oracle/rwkv_vocab.py --check    compares with what is there
"""
import json
import pathlib
import random
import sys

HERE = pathlib.Path(__file__).parent / "rwkv"


def vocabulary():
    """All bytes, runs, words, and beginnings of characters of several bytes; in the order of their lengths, as published."""
    words = ["\n\n", "\t\t", "  ", "    ", "        ", "'s", '"', "\\n", "\\\\", "the", " the", " then", "then", " there", "er", "ere", "in", " in", "ing",
             "User", "User:", "Assistant:", " \u4f60\u597d", "\u4f60", "\u597d", "\u4f60\u597d", "\u00e4", "\u00e4u", "\u200b", "\U0001f600", "\x80", "\u2028", "\"'", "can't",
             "ab", "abc", "bcd", "abcdef", "<s>", "\r\n", "\x7f\x7f", "it's \"so\""]
    parts = [b"\xe4\xbd", b"\xf0\x9f", b"\xf0\x9f\x98", b" \xe4", b"\xff\xff"]
    tokens = [bytes([b]) for b in range(256)] + sorted({w.encode() for w in words if len(w.encode()) > 1} | set(parts), key=lambda t: (len(t), t))
    assert len(set(tokens)) == len(tokens)
    return tokens


def line(i, token):
    try:
        shown = repr(token.decode())
    except UnicodeDecodeError:
        shown = repr(token)
    return f"{i} {shown} {len(token)}\n"


class Node:
    def __init__(self):
        self.next, self.id = {}, None


def trie(tokens):
    root = Node()
    for i, token in enumerate(tokens, 1):
        at = root
        for b in token:
            at = at.next.setdefault(b, Node())
        at.id = i
    return root


def encode(root, text):
    ids, i = [], 0
    while i < len(text):
        at, k, best = root, i, None
        while k < len(text) and text[k] in at.next:
            at = at.next[text[k]]
            k += 1
            if at.id is not None:
                best = (at.id, k)
        ids.append(best[0])
        i = best[1]
    return ids


def texts(tokens):
    r = random.Random(11)
    yield from ("", "the then there", "it's \"so\" \\n \\\\", "User: abcdefg abcd bcd\n\nAssistant: can't", " \u4f60\u597d\u4f60\u597d\u4f61 \u4f60", "\U0001f600\U0001f601\u200b\u2028\u0080", "\t\t\t      \n\n\n")
    for _ in range(40):
        yield "".join(r.choice(tokens).decode("utf-8", "ignore") + r.choice(("", "", " ", "e", "\u4f61")) for _ in range(r.randrange(1, 30)))


def make():
    tokens = vocabulary()
    root = trie(tokens)
    told = [{"text": t, "ids": encode(root, t.encode())} for t in texts(tokens)]
    return {"rwkv_vocab_v20230424.txt": "".join(line(i, t) for i, t in enumerate(tokens, 1)), "texts.jsonl": "".join(json.dumps(t) + "\n" for t in told)}


if __name__ == "__main__":
    made = make()
    if sys.argv[1:] == ["--check"]:
        sys.exit(any((HERE / name).read_bytes() != text.encode() for name, text in made.items()))
    HERE.mkdir(exist_ok=True)
    for name, text in made.items():
        (HERE / name).write_bytes(text.encode())
