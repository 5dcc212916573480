#!/usr/bin/env python3
"""Writes tests/oracle/peers: what another engine computes for small random models.

  peers.py TERN LOGITS [--keep DIR] [NAME...]

TERN is this project's program, LOGITS the program of logits.cpp built against the other engine's library. For every
NAME ("tiny-gemma3"; all that are there already without one) the model is written by `tern synth --seed 1 --type f32`,
LOGITS computes the logits of all positions of tests/oracle/peers/tokens.json and a greedy continuation, and a sample is
kept as NAME.json. --keep leaves the logits of all positions in DIR, where $TERN_PEERS may point model/peers to them.
"""
import argparse
import array
import json
import pathlib
import random
import subprocess
import tempfile

PEERS = pathlib.Path(__file__).resolve().parents[2] / "tests" / "oracle" / "peers"
SEED, N_TOK, N_VOCAB, N_GREEDY, GREEDY_PROMPT = 1, 1500, 512, 64, 5
# Borders of panels, chunks and windows, the lengths of the prompts compared, and some between.
POSITIONS = [0, 1, 4, 5, 31, 32, 63, 64, 99, 100, 101, 255, 256, 257, 299, 511, 512, 600, 767, 1023, 1024, 1300, 1499]


def tokens():
    r = random.Random(7)
    return [r.randrange(0, 500) for _ in range(N_TOK)]


def make(tern, logits, name, folder):
    model, ids, out = folder / "model.gguf", folder / "ids.txt", folder / f"{name}.f32"
    subprocess.run([tern, "synth", "--arch", name, "--seed", str(SEED), "--type", "f32", "-o", model], check=True)
    ids.write_text(" ".join(map(str, tokens())))
    done = subprocess.run(
        [logits, model, ids, out, str(N_GREEDY), str(GREEDY_PROMPT)], check=True, capture_output=True, text=True
    )
    rows = array.array("f")
    rows.frombytes(out.read_bytes())
    assert len(rows) == N_TOK * N_VOCAB, f"{name}: {len(rows)} logits"
    columns = sorted(random.Random(name).sample(range(N_VOCAB), 16))
    of = lambda p: rows[p * N_VOCAB : (p + 1) * N_VOCAB]
    lines = ",\n    ".join(json.dumps([float(f"{of(p)[c]:.7g}") for c in columns]) for p in POSITIONS)
    largest = [float(f"{max(abs(x) for x in of(p)):.7g}") for p in POSITIONS]
    greedy = [int(x) for x in done.stdout.split()]
    assert len(greedy) == N_GREEDY
    (PEERS / f"{name}.json").write_text(
        f'{{\n  "seed": {SEED},\n  "greedy_prompt": {GREEDY_PROMPT},\n  "greedy": {json.dumps(greedy)},\n'
        f'  "positions": {json.dumps(POSITIONS)},\n  "columns": {json.dumps(columns)},\n'
        f'  "largest": {json.dumps(largest)},\n  "logits": [\n    {lines}\n  ]\n}}\n'
    )
    print(f"{name}: {len(set(greedy))} different greedy tokens, largest logits {min(largest):.2f} to {max(largest):.2f}")


def main():
    p = argparse.ArgumentParser()
    p.add_argument("tern")
    p.add_argument("logits")
    p.add_argument("names", nargs="*")
    p.add_argument("--keep", type=pathlib.Path)
    a = p.parse_intermixed_args()
    PEERS.mkdir(exist_ok=True)
    (PEERS / "tokens.json").write_text(json.dumps(tokens()) + "\n")
    names = a.names or sorted(f.stem for f in PEERS.glob("tiny-*.json"))
    with tempfile.TemporaryDirectory() as tmp:
        for name in names:
            make(a.tern, a.logits, name, a.keep or pathlib.Path(tmp))


if __name__ == "__main__":
    main()
