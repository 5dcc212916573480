#!/usr/bin/env python3
"""What packing tells and what is true, and what a byte buys, on a model that nothing was tuned on: a run of tools/train/kinds.py.

    bench/kinds.py TERN RUN [--llama BIN_FOLDER] [--ik BIN_FOLDER] [--windows N]

The default package and those of 3 to 5 bits, plain and entropy-coded, against the model in floats on RUN/test.txt, which neither training nor
packing saw: bytes, loss of perplexity, KL divergence, and what the pack said of itself. With --llama (llama-quantize, llama-imatrix; NumPy in this
Python) also the files that llama-quantize makes, with and without an importance matrix of RUN/train.txt, widened by tern so that their activations
are not rounded; with --ik (ik_llama.cpp's llama-quantize) its types. Then for every such file the bytes that a package of equal KL has, between two
of the measured ones on a line of log KL.
"""
import argparse
import json
import math
import os
import subprocess
import sys

BITS = ["3", "3.5", "4", "4.5", "5", "5.5"]
TYPES = ["Q4_0", "IQ4_XS", "Q4_K_M", "Q5_K_M"]
IK_TYPES = ["IQ3_K", "IQ4_KS", "IQ4_K"]


def run(*command):
    env = dict(os.environ, TERN_PACK="never")
    r = subprocess.run(command, capture_output=True, text=True, env=env)
    if r.returncode:
        sys.exit(f"{' '.join(command)}: {r.stderr.strip()[-400:]}")
    return r.stdout


def loss(a, path, *how):
    e = json.loads(run(a.tern, "eval", "-m", path, "--task", "ppl", "--data", f"{a.run}/test.txt", "--kl", f"{a.run}/hf", "--limit", str(a.windows), "--json", *how))
    return {"bytes": os.path.getsize(path), "percent": 100 * (e["perplexity"] / e["source_perplexity"] - 1), "error": 100 * e["loss"]["nll_diff_stderr"],
            "kl": e["loss"]["kl"], "kl_error": e["loss"]["kl_stderr"]}


def packages(a):
    """{label: measured}; of the default also what it said."""
    rows = {}
    for label, how in [("default", [])] + [(b + c, ["--bits", b] + (["--compress"] if c else [])) for c in ("", " coded") for b in BITS]:
        out = f"{a.run}/bench {label}.tern"
        said = json.loads(run(a.tern, "pack", f"{a.run}/hf", "-o", out, "--json", *how))
        rows[label] = dict(loss(a, out), said=said["kl"], said_error=said["kl_stderr"], bits=said["bits"])
        r = rows[label]
        print(f"| {label} | {r['bits']:.2f} | {r['bytes'] * 1e-6:.3f} | {r['percent']:+.2f} ± {r['error']:.2f} % | {r['kl']:.5f} ± {r['kl_error']:.5f} | {r['said']:.5f} ± {r['said_error']:.5f} |", flush=True)
        os.unlink(out)
    return rows


def same_kl(rows, kl, coded):
    """Bytes of a package of this KL, on a line of log KL between the two around it (or beyond the last two)."""
    p = sorted((rows[b + (" coded" if coded else "")]["bytes"], math.log(rows[b + (" coded" if coded else "")]["kl"])) for b in BITS)
    i = 1
    while i < len(p) - 1 and p[i][1] > math.log(kl):
        i += 1
    (b0, l0), (b1, l1) = p[i - 1], p[i]
    return b0 + (b1 - b0) * (math.log(kl) - l0) / (l1 - l0)


def peers(a, rows):
    gguf, imatrix = f"{a.run}/bench.gguf", f"{a.run}/bench.imatrix"
    run(sys.executable, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "tools", "hf_to_gguf.py"), f"{a.run}/hf", gguf)
    with open(f"{a.run}/train.txt", encoding="utf-8") as f, open(f"{a.run}/bench.txt", "w", encoding="utf-8") as g:
        g.write(f.read()[:120000])
    run(f"{a.llama}/llama-imatrix", "-m", gguf, "-f", f"{a.run}/bench.txt", "-o", imatrix, "--output-format", "dat", "-c", "512", "-t", "2")
    makers = [(a.llama, t, i) for t in TYPES for i in ([], ["--imatrix", imatrix])] + [(a.ik, t, ["--imatrix", imatrix]) for t in IK_TYPES if a.ik]
    print("\n| file | MB | loss | KL | a package's bytes at that KL | coded |\n|---|---|---|---|---|---|")
    for folder, t, how in makers:
        out = f"{a.run}/bench_{t}.gguf"
        run(f"{folder}/llama-quantize", *how, gguf, out, t, "2")
        r = loss(a, out, "--scheme", "float")
        os.unlink(out)
        share = " | ".join(f"{100 * same_kl(rows, r['kl'], c) / r['bytes']:.1f} %" for c in (False, True))
        print(f"| {t}{', importance matrix' if how else ''} | {r['bytes'] * 1e-6:.3f} | {r['percent']:+.2f} ± {r['error']:.2f} % | {r['kl']:.5f} | {share} |", flush=True)


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("tern")
    ap.add_argument("run")
    ap.add_argument("--llama")
    ap.add_argument("--ik")
    ap.add_argument("--windows", type=int, default=40, help="of 512 tokens")
    a = ap.parse_args()
    print("| package | bits | MB | loss | KL | it said |\n|---|---|---|---|---|---|")
    rows = packages(a)
    if a.llama:
        peers(a, rows)


if __name__ == "__main__":
    main()
