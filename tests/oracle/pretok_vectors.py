#!/usr/bin/env python3
"""Writes tests/text/pretok_vectors.json: what another implementation's tokenizer makes of texts under every
pre-tokenisation that a GGUF file can name.

  pretok_vectors.py LLAMA_TOKENIZE VOCAB.gguf OUT

LLAMA_TOKENIZE: llama.cpp's or ik_llama.cpp's llama-tokenize. VOCAB.gguf: ggml-vocab-gpt-2.gguf. The vocabulary is copied with another
tokenizer.ggml.pre for every family; names that give the same ids for all texts share a class."""
import json
import os
import re
import struct
import subprocess
import sys
import tempfile

# Without "~": the other implementation does not count it among the symbols, as Unicode does.
TEXTS = [
    "Hello world! I'll say: it's WE'RE'd he'LL",
    "x = 1234567; y=12 345 6789012 0x1F 3.14159 1,000,000",
    "  two   spaces    and\ttabs \n\n  lines\r\n\r\nend  ",
    "\n\n\n   \n x\n",
    "if (a[i] != b->c) { return \"q\"; } // comment\n\t#define X 1\n",
    "你好，世界。今天是2024年5月17日！ 我爱北京天安门",
    "こんにちは世界 カタカナ ひらがな 한국어 텍스트 안녕하세요",
    "Привет, мир! Ελληνικά ΚΑΙ ñandú ÀÉÎ ǅ ß",
    "naïve café e\u0301 a\u0308o\u0302 क्षत्रिय हिन्दी",
    "camelCase PascalCase HTTPServer iOS McDonald aB",
    "\U0001f600\U0001f468\u200d\U0001f469\u200d\U0001f467 ok \U0001f3fd!!! ... ?!?",
    "/usr/local/bin http://a.b/c?d=e&f=1 user@host.com",
    "ไทย ลาว ខ្មែរ မြန်မာ العربية 123 ١٢٣ עברית",
    "word\u00a0nbsp\u3000wide\u2003em \u2026\u201cq\u201d \u2014 \uff01\uff1a",
    "                                                                              long run",
    "a1b22c333d4444e55555f666666",
    "The I'm 'S 'tis 'Twas don'T",
    "IMGIMGABZ <sentinel:3> ABC",
    "½ ² Ⅷ ① 𝟙𝟚𝟛 ٣",
]


def rename(vocab, name):
    """The file with another pre-tokenisation."""
    key = b"tokenizer.ggml.pre"
    at = vocab.index(struct.pack("<Q", len(key)) + key) + 8 + len(key)
    kind, n = struct.unpack_from("<IQ", vocab, at)
    assert kind == 8
    return vocab[:at] + struct.pack("<IQ", 8, len(name)) + name.encode() + vocab[at + 12 + n:]


def ids(program, path, text):
    r = subprocess.run([program, "-m", path, "--ids", "--no-bos", "--no-escape", "--no-parse-special", "--stdin"],
                       input=text.encode(), capture_output=True)
    m = re.findall(rb"^\[[0-9, ]*\]", r.stdout, re.M)
    if r.returncode or not m:
        return None
    return json.loads(m[-1])


def main():
    program, vocab_path, out = sys.argv[1:]
    vocab = open(vocab_path, "rb").read()
    source = open(os.path.join(os.path.dirname(__file__), "../../src/text/pretok.c")).read()
    names = re.findall(r'\{\.name = "([^"]+)"', source)
    classes, by_name = [], {}
    for name in names:
        if name == "kimi-k2":
            continue  # the other implementation does not tell upper from lower case there, as the model's own pattern does
        with tempfile.NamedTemporaryFile(suffix=".gguf") as f:
            f.write(rename(vocab, name))
            f.flush()
            got = [ids(program, f.name, t) for t in TEXTS]
        if any(g is None for g in got):
            print(f"{name}: the other implementation does not know it", file=sys.stderr)
            continue
        if got not in classes:
            classes.append(got)
        by_name[name] = classes.index(got)
    with open(out, "w") as f:
        f.write('{"texts": ' + json.dumps(TEXTS) + ',\n "names": ' + json.dumps(by_name) + ',\n "classes": [\n')
        f.write(",\n".join("  [" + ",\n   ".join(json.dumps(g, separators=(",", ":")) for g in c) + "]" for c in classes))
        f.write("\n]}\n")


main()
