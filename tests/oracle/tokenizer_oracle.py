#!/usr/bin/env python3
"""Independent byte-level BPE for golden vectors: SmolLM's tokenizer.json, standard library only.

    tests/oracle/tokenizer_oracle.py TOKENIZER_JSON > tests/text/smollm_vectors.jsonl

Written from the definitions, not from src/text: the pre-tokenisation is a hand-made scanner over Unicode
categories (no regular expressions), merging is the textbook loop. Each output line is {"text", "ids"}; texts
are written as code points by JSON escapes, so that the file is plain ASCII.
"""
import json
import random
import sys
import unicodedata


def byte_alphabet():
    printable = list(range(0x21, 0x7F)) + list(range(0xA1, 0xAD)) + list(range(0xAE, 0x100))
    table, extra = {}, 0
    for b in range(256):
        if b in printable:
            table[b] = chr(b)
        else:
            table[b] = chr(0x100 + extra)
            extra += 1
    return table


def is_letter(c):
    return unicodedata.category(c)[0] == "L"


def is_number(c):
    return unicodedata.category(c)[0] == "N"


# White_Space of Unicode
SPACES = set("\t\n\v\f\r \x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000") | {chr(c) for c in range(0x2000, 0x200B)}


def is_other(c):
    return c not in SPACES and not is_letter(c) and not is_number(c)


def gpt2_pieces(s):
    """The GPT-2 rule in words: a contraction; or one optional space and a run of letters, of numbers or of other
    signs; or white space, of which the last one is left to the word behind it."""
    i = 0
    while i < len(s):
        for c in ("'s", "'t", "'re", "'ve", "'m", "'ll", "'d"):
            if s.startswith(c, i):
                yield c
                i += len(c)
                break
        else:
            j = i + 1 if s[i] == " " and i + 1 < len(s) else i
            for kind in (is_letter, is_number, is_other):
                if kind(s[j]):
                    k = j
                    while k < len(s) and kind(s[k]):
                        k += 1
                    yield s[i:k]
                    i = k
                    break
            else:
                k = i
                while k < len(s) and s[k] in SPACES:
                    k += 1
                if k < len(s) and k - i > 1:
                    k -= 1
                yield s[i:k]
                i = k


def digit_pieces(s):
    """Every number character by itself."""
    run = ""
    for c in s:
        if is_number(c):
            if run:
                yield run
            yield c
            run = ""
        else:
            run += c
    if run:
        yield run


class Oracle:
    def __init__(self, path):
        doc = json.load(open(path, encoding="utf-8"))
        self.vocab = doc["model"]["vocab"]
        merges = [m.split(" ") if isinstance(m, str) else m for m in doc["model"]["merges"]]
        self.rank = {tuple(m): i for i, m in enumerate(merges)}
        self.alphabet = byte_alphabet()
        self.digits = self.uses(doc["pre_tokenizer"], "Digits")
        self.special = {t["content"]: t["id"] for t in doc["added_tokens"]}

    def uses(self, p, kind):
        return p is not None and (p["type"] == kind or any(self.uses(q, kind) for q in p.get("pretokenizers", [])))

    def merge(self, piece):
        symbols = [self.alphabet[b] for b in piece.encode("utf-8")]
        while len(symbols) > 1:
            pairs = [(self.rank.get(p, 1 << 60), i) for i, p in enumerate(zip(symbols, symbols[1:]))]
            rank, i = min(pairs)
            if rank == 1 << 60:
                break
            symbols[i : i + 2] = [symbols[i] + symbols[i + 1]]
        return [self.vocab[s] for s in symbols]

    def encode_plain(self, s):
        ids = []
        for part in digit_pieces(s) if self.digits else [s]:
            for piece in gpt2_pieces(part):
                ids += self.merge(piece)
        return ids

    def encode(self, s):
        ids = []
        while s:
            hits = [(s.find(t), -len(t), t) for t in self.special if t in s]
            if not hits:
                break
            at, _, t = min(hits)
            ids += self.encode_plain(s[:at]) + [self.special[t]]
            s = s[at + len(t) :]
        return ids + self.encode_plain(s)


TEXTS = [
    "", " ", "  ", "\n", "\n\n \n", "\t\t", "Hello, world!", " Hello  world ", "I'm sure they'll say it's what we've got, 'D'you?",
    "x = [1, 22, 333]  # 4444 \u00bd\u00b2\u2163", "def f(a, b):\n    return a**b  \n\n\n    # end", "na\u00efve caf\u00e9 e\u0301 \u00c5ngstr\u00f6m",
    "\u0441\u044a\u0435\u0448\u044c \u0435\u0449\u0451 \u044d\u0442\u0438\u0445", "\u4f60\u597d\uff0c\u4e16\u754c\u3002 \u3053\u3093\u306b\u3061\u306f \uc548\ub155", "\U0001f680\U0001f468\u200d\U0001f469\u200d\U0001f467 \u2705!",
    "<|im_start|>user\nHi<|im_end|>\n", "<|im_start|><|im_start|>x<|im_", "a\u00a0b\u2003c\u3000d\u2028e", "''''s'tt'", "e" * 300, " " * 70 + "x", "ab" * 100 + "1" * 20,
    "The quick brown fox jumps over the lazy dog. " * 3, "https://example.org/a?b=c&d=%20e#f", "\x00\x01\x7f\x80\xff", "$\u20ac\u00a31,234.56+-*/=", "\ud7a3\u1100\u1161\u11a8\u0e01\u0e33",
]


def random_texts(seed, n):
    rng = random.Random(seed)
    ranges = [(0x20, 0x7E), (0x20, 0x7E), (0x09, 0x0D), (0xA0, 0x17F), (0x300, 0x36F), (0x391, 0x3C9), (0x410, 0x44F), (0x5D0, 0x5EA), (0x900, 0x97F), (0x2000, 0x206F),
              (0x2150, 0x218F), (0x3041, 0x30FF), (0x4E00, 0x9FA5), (0xAC00, 0xD7A3), (0x1F300, 0x1F5FF)]
    for _ in range(n):
        s = ""
        for _ in range(rng.randrange(1, 12)):
            lo, hi = rng.choice(ranges)
            s += "".join(chr(rng.randint(lo, hi)) for _ in range(rng.randrange(1, 8)))
        # code points that this Python's Unicode tables do not know may be known to others
        yield "".join(c for c in s if unicodedata.category(c) not in ("Cn", "Cs"))


def main():
    oracle = Oracle(sys.argv[1])
    for text in TEXTS + list(random_texts(1, 150)):
        print(json.dumps({"text": text, "ids": oracle.encode(text)}))


main()
