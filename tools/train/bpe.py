"""Byte-level BPE with the Qwen2 pre-tokenizer: trainer, encoder, decoder and tokenizer.json writer; standard library only."""
import functools
import heapq
import json
import re
import sys
import unicodedata
from collections import Counter, defaultdict

SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
QWEN2_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
SPACE = "\t-\r \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"


def _char_class(first):
    """The body of a re character class with every code point whose general category starts with `first`."""
    out, start, prev = [], None, None
    for c in range(sys.maxunicode + 1):
        if unicodedata.category(chr(c))[0] == first:
            if start is None:
                start = c
            prev = c
        elif start is not None:
            out.append((start, prev))
            start = None
    if start is not None:
        out.append((start, prev))
    return "".join(f"\\U{a:08x}-\\U{b:08x}" if a != b else f"\\U{a:08x}" for a, b in out)


@functools.lru_cache(None)
def pretoken_re():
    p = QWEN2_PATTERN.replace(r"[^\r\n\p{L}\p{N}]", r"[^\r\n@L@N]").replace(r"[^\s\p{L}\p{N}]", "[^@S@L@N]")
    p = p.replace(r"\p{L}", "[@L]").replace(r"\p{N}", "[@N]").replace(r"\S", "[^@S]").replace(r"\s", "[@S]")
    return re.compile(p.replace("@L", _char_class("L")).replace("@N", _char_class("N")).replace("@S", SPACE))


@functools.lru_cache(None)
def byte_alphabet():
    """GPT-2: printable stand-ins for the 256 bytes."""
    keep = [*range(33, 127), *range(161, 173), *range(174, 256)]
    table, n = {b: chr(b) for b in keep}, 0
    for b in range(256):
        if b not in table:
            table[b] = chr(256 + n)
            n += 1
    return table


def to_symbols(word):
    t = byte_alphabet()
    return [t[b] for b in word.encode("utf-8")]


def train(texts, n_vocab):
    """(vocab, merges): the 256 byte symbols, then merges by falling pair count, ties to the smaller pair; specials last."""
    words = Counter()
    for text in texts:
        words.update(pretoken_re().findall(text))
    seqs = [(to_symbols(w), n) for w, n in words.items() if n > 1 or len(w) == 1]
    count, where = Counter(), defaultdict(set)
    for i, (s, n) in enumerate(seqs):
        for p in zip(s, s[1:]):
            count[p] += n
            where[p].add(i)
    heap = [(-n, p) for p, n in count.items()]
    heapq.heapify(heap)
    vocab = [byte_alphabet()[b] for b in sorted(byte_alphabet(), key=lambda b: byte_alphabet()[b])]
    merges, have = [], set(vocab)
    while len(vocab) < n_vocab - len(SPECIALS) and heap:
        n, p = heapq.heappop(heap)
        if -n != count[p]:
            if count[p] > 0:
                heapq.heappush(heap, (-count[p], p))
            continue
        new = p[0] + p[1]
        merges.append(p)
        if new not in have:
            have.add(new)
            vocab.append(new)
        for i in where.pop(p):
            s, w = seqs[i]
            for q in zip(s, s[1:]):
                count[q] -= w
            j = 0
            while j < len(s) - 1:
                if s[j] == p[0] and s[j + 1] == p[1]:
                    s[j : j + 2] = [new]
                j += 1
            for q in zip(s, s[1:]):
                count[q] += w
                if i not in where[q]:
                    where[q].add(i)
                if new in q[0] or new in q[1]:
                    heapq.heappush(heap, (-count[q], q))
    return vocab + SPECIALS, merges


class Tokenizer:
    def __init__(self, vocab, merges):
        self.vocab, self.merges = vocab, merges
        self.ids = {t: i for i, t in enumerate(vocab)}
        self.rank = {tuple(m): i for i, m in enumerate(merges)}
        self.cache = {}
        self.special_re = re.compile("(" + "|".join(map(re.escape, SPECIALS)) + ")")
        self.bytes = {c: b for b, c in byte_alphabet().items()}

    @staticmethod
    def load(path):
        with open(path, encoding="utf-8") as f:
            j = json.load(f)
        vocab = [None] * (len(j["model"]["vocab"]) + len(SPECIALS))
        for t, i in j["model"]["vocab"].items():
            vocab[i] = t
        for a in j["added_tokens"]:
            vocab[a["id"]] = a["content"]
        return Tokenizer(vocab, [tuple(m.split(" ")) for m in j["model"]["merges"]])

    def _word(self, w):
        s = to_symbols(w)
        while len(s) > 1:
            r, i = min((self.rank.get(p, 1 << 30), i) for i, p in enumerate(zip(s, s[1:])))
            if r == 1 << 30:
                break
            s[i : i + 2] = [s[i] + s[i + 1]]
        return [self.ids[x] for x in s]

    def encode_plain(self, text):
        out, cache = [], self.cache
        for w in pretoken_re().findall(text):
            t = cache.get(w)
            if t is None:
                t = self._word(w)
                if len(cache) < 400000:
                    cache[w] = t
            out += t
        return out

    def encode(self, text):
        out = []
        for part in self.special_re.split(text):
            if part in SPECIALS:
                out.append(self.ids[part])
            elif part:
                out += self.encode_plain(part)
        return out

    def decode(self, ids, specials=True):
        out = bytearray()
        for i in ids:
            t = self.vocab[i]
            if t in SPECIALS:
                out += t.encode() if specials else b""
            else:
                out += bytes(self.bytes[c] for c in t)
        return out.decode("utf-8", "replace")

    def save(self, path):
        n = len(self.vocab) - len(SPECIALS)
        j = {
            "version": "1.0",
            "truncation": None,
            "padding": None,
            "added_tokens": [
                {"id": n + i, "content": s, "single_word": False, "lstrip": False, "rstrip": False,
                 "normalized": False, "special": True}
                for i, s in enumerate(SPECIALS)
            ],
            "normalizer": None,
            "pre_tokenizer": {
                "type": "Sequence",
                "pretokenizers": [
                    {"type": "Split", "pattern": {"Regex": QWEN2_PATTERN}, "behavior": "Isolated", "invert": False},
                    {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False},
                ],
            },
            "post_processor": None,
            "decoder": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False},
            "model": {
                "type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False,
                "vocab": {t: i for i, t in enumerate(self.vocab[:n])},
                "merges": [" ".join(m) for m in self.merges],
            },
        }
        with open(path, "w", encoding="utf-8") as f:
            json.dump(j, f, ensure_ascii=False, indent=1)
            f.write("\n")
