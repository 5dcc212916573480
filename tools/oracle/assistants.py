#!/usr/bin/env python3
"""Compares the assistants of tests/oracle/fixtures/heads (Gemma 4) with llama.cpp: tools/oracle/assistants.py ./assistants

llama.cpp opens no file without a tokenizer, and rounds rows to BF16 where matrices are: so the same tensors are written once more, with
one and in F32."""
import json
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "oracle"))
import assistants  # noqa: E402
import cases  # noqa: E402
import heads  # noqa: E402
from files import Stored, write_gguf  # noqa: E402


def widened(tensors):
    return {k: Stored(t.values, "F32") for k, t in tensors.items()}


def main():
    g = cases.CASES["gemma4"]
    models = {"gemma4": (g["cfg"], cases.checkpoint("gemma4", g["cfg"], g["dtype"], g["vectors"], g["dtype"])),
              "gemma4-wide": (assistants.WIDE, assistants.wide_model(cases.uniform, cases.checkpoint))}
    words = heads.words(assistants.N_VOCAB)
    with tempfile.TemporaryDirectory() as tmp:
        folder = pathlib.Path(tmp)
        for name, a in assistants.ASSISTANTS.items():
            cfg, stored = models[a["model"]]
            width = cfg["hidden_size"]
            tensors = widened(assistants.assistant(name, a, width, cases.uniform))
            text = {**a["text"], "num_kv_shared_layers": a["said_shared"]}
            write_gguf(folder / "model.gguf", *assistants.gguf_of("gemma4", cfg, widened(stored), "model", words))
            write_gguf(folder / "assistant.gguf", *assistants.gguf_of("gemma4-assistant", text, tensors, name, words | assistants.draft_keys(a, width)))
            v = json.loads((ROOT / "tests/oracle/fixtures/heads" / name / "vectors.json").read_text())
            command = [sys.argv[1], folder / "model.gguf", folder / "assistant.gguf", ",".join(map(str, v["tokens"])), *map(str, v["positions"])]
            lines = subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True).stdout.splitlines()
            worst = [0] * assistants.DRAFTS
            for place, draft, *logits in map(json.loads, lines):
                want = v["further"][v["positions"].index(place)][draft]
                worst[draft] = max(worst[draft], max(abs(x - y) for x, y in zip(logits, want)) / max(map(abs, want)))
            print(f"{name}: {len(lines)} drafts, largest differences " + ", ".join(f"{w:.1e}" for w in worst) + " of the largest logit")


if __name__ == "__main__":
    main()
