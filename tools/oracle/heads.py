#!/usr/bin/env python3
"""Compares the heads of tests/oracle/fixtures/heads (EAGLE-3) with llama.cpp: tools/oracle/heads.py ./heads

llama.cpp opens no file without a tokenizer, so that the same tensors are written once more, with one."""
import json
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "oracle"))
import cases  # noqa: E402
import heads  # noqa: E402
from files import gguf_from_hf, write_gguf  # noqa: E402

TOKENIZER = heads.words(heads.N_VOCAB)


def main():
    with tempfile.TemporaryDirectory() as tmp:
        folder = pathlib.Path(tmp)
        meta, tensors = gguf_from_hf(heads.MODEL, heads.model(cases.uniform), "model")
        write_gguf(folder / "model.gguf", meta | TOKENIZER, tensors)
        for name, h in heads.HEADS.items():
            few = h["n_draft"] < heads.N_VOCAB
            meta, tensors = heads.gguf_of(h, heads.head(name, h, cases.uniform), heads.tokens_of(h, cases.uniform) if few else None)
            write_gguf(folder / f"{name}.gguf", meta | TOKENIZER, tensors)
            v = json.loads((ROOT / "tests/oracle/fixtures/heads" / name / "vectors.json").read_text())
            command = [sys.argv[1], folder / "model.gguf", folder / f"{name}.gguf", ",".join(map(str, h["layers"])),
                       ",".join(map(str, v["tokens"])), *map(str, v["positions"])]
            lines = subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True).stdout.splitlines()
            worst = 0
            for place, draft, *logits in map(json.loads, lines):
                want = v["further"][v["positions"].index(place)][draft]
                got = [logits[i] for i in v["known"]]
                worst = max(worst, max(abs(a - b) for a, b in zip(got, want)) / max(map(abs, want)))
            print(f"{name}: {len(lines)} drafts, largest difference {worst:.1e} of the largest logit")


if __name__ == "__main__":
    main()
