#!/usr/bin/env python3
"""Compares the drafters of tests/oracle/fixtures/heads (DFlash) with llama.cpp: tools/oracle/dflash.py ./dflash

llama.cpp opens no file without a tokenizer, and rounds rows to BF16 where matrices are: so the same tensors are written once more, with
one and in F32. In its layers with a window rows see the whole block: of those that is compared with what a folder says as `is_causal: false`."""
import json
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "oracle"))
import cases  # noqa: E402
import dflash  # noqa: E402
import heads  # noqa: E402
from files import Stored, gguf_from_hf, write_gguf  # noqa: E402

TOKENIZER = heads.words(heads.N_VOCAB)


def main():
    with tempfile.TemporaryDirectory() as tmp:
        folder = pathlib.Path(tmp)
        meta, tensors = gguf_from_hf(heads.MODEL, heads.model(cases.uniform), "model")
        write_gguf(folder / "model.gguf", meta | TOKENIZER, tensors)
        for name, of, rows in (("dflash", "dflash", 8), ("dflash-few", "dflash", 3), ("dflash-all", "dflash-windows", 6)):
            d = dflash.DRAFTERS[of]
            tensors = {k: Stored(t.values, "F32") for k, t in dflash.drafter(of, d, cases.uniform).items()}
            meta, tensors = dflash.gguf_of(d, tensors, of)
            write_gguf(folder / f"{of}.gguf", meta | TOKENIZER, tensors)
            v = json.loads((ROOT / "tests/oracle/fixtures/heads" / name / "vectors.json").read_text())
            command = [sys.argv[1], folder / "model.gguf", folder / f"{of}.gguf", ",".join(str(i + 1) for i in d["reads"]), str(rows),
                       str(dflash.MASK), ",".join(map(str, v["tokens"])), *map(str, v["positions"])]
            lines = subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True).stdout.splitlines()
            worst = 0
            for place, draft, *logits in map(json.loads, lines):
                want = v["further"][v["positions"].index(place)][draft]
                worst = max(worst, max(abs(a - b) for a, b in zip(logits, want)) / max(map(abs, want)))
            print(f"{name}: {len(lines)} drafts, largest difference {worst:.1e} of the largest logit")


if __name__ == "__main__":
    main()
