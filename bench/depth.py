"""Decoding behind long texts beside other engines, by the form of keys and values: every engine with each form it has, by turns, and the
ratio of the first engine's best to each other's best of no more loss (halves against halves, 8 bits against 8 bits and halves, 4 bits against all).

    python3 bench/depth.py MODEL.gguf tern=build/tern [llama=LLAMA_BENCH] [ik=IK_LLAMA_BENCH] [--package FILE.tern]
        [--depths 8192,32768] [--gen 16] [--rounds 1] [--threads 2] [--budget 60] [--json FILE]

llama and ik are llama-bench programs. Every measurement reads a text of that length first, which takes most of the time: in the 0.5B shape
seconds to minutes at 8,192 tokens and many minutes at 32,768. What does not fit the budget (minutes) is left out, and the table says so.
All attend in full when they decode. --package: tern decodes from this package as well. Figures are tokens a second, medians of the rounds,
with the least and the most in brackets.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import time

FORMS = {"tern": ["f16", "int8", "int4"], "llama": ["f16", "q8_0", "q4_0"], "ik": ["f16", "q8_0", "q4_0"]}


def arguments():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("model")
    p.add_argument("engines", nargs="+", metavar="NAME=PROGRAM")
    p.add_argument("--package")
    p.add_argument("--depths", default="8192,32768")
    p.add_argument("--gen", type=int, default=16)
    p.add_argument("--rounds", type=int, default=1)
    p.add_argument("--threads", type=int, default=2)
    p.add_argument("--budget", type=float, default=60)
    p.add_argument("--json")
    a = p.parse_args()
    a.engines = [e.split("=", 1) for e in a.engines]
    for e in a.engines:
        if len(e) != 2 or e[0] not in FORMS:
            p.error("an engine is tern=, llama= or ik= and a program, not %s" % "=".join(e))
    return a


def command(a, engine, program, model, form, depth):
    if engine == "tern":
        return [program, "bench", "-m", model, "-p", "0", "-n", str(a.gen), "-r", "1", "--depth", str(depth), "-t", str(a.threads),
                "--set", "kv=" + form, "--json"]
    args = [program, "-m", model, "-t", str(a.threads), "-r", "1", "-fa", "1", "-ctk", form, "-ctv", form, "-o", "json", "-p", "0"]
    if engine == "ik":
        return args + ["-n", "0", "-gp", "%d,%d" % (depth, a.gen), "-rtr", "1"]
    return args + ["-n", str(a.gen), "-d", str(depth)]


def speed(a, engine, args, left):
    p = subprocess.run(args, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, timeout=left,
                       env=dict(os.environ, TERN_PACK="never"))
    if p.returncode:
        sys.exit("%s: status %d" % (" ".join(args), p.returncode))
    rows = json.loads(p.stdout)
    if engine == "tern":
        return rows[0]["tokens_per_second"]["median"]
    return [r for r in rows if r["n_gen"] == a.gen][0]["avg_ts"]


def measure(a):
    """{(engine, model's name, form, depth): [speeds]}, the least depth first, so that a budget leaves out the greatest."""
    got, deadline = {}, time.monotonic() + 60 * a.budget
    for depth in [int(d) for d in a.depths.split(",")]:
        for _ in range(a.rounds):
            for engine, program in a.engines:
                models = [a.model] + ([a.package] if engine == "tern" and a.package else [])
                for model in models:
                    for form in FORMS[engine]:
                        values = got.setdefault((engine, os.path.basename(model), form, depth), [])
                        left = deadline - time.monotonic()
                        try:
                            if left > 0:
                                values.append(speed(a, engine, command(a, engine, program, model, form, depth), left))
                        except subprocess.TimeoutExpired:
                            pass
                        print("%-6s %-28s %-5s %6d %s" % (engine, os.path.basename(model), form, depth, values), file=sys.stderr)
    return got


def best(got, engine, model, depth, n_forms):
    """Of the first forms, which lose least."""
    of = [statistics.median(v) for (e, m, f, d), v in got.items()
          if e == engine and m == model and d == depth and v and FORMS[engine].index(f) < n_forms]
    return max(of) if of else None


def tables(a, got):
    print("| depth | engine | file | keys and values | tokens/s |\n|---|---|---|---|---|")
    for (engine, model, form, depth), v in got.items():
        figure = "%.1f (%.1f to %.1f)" % (statistics.median(v), min(v), max(v)) if v else "left out: no time"
        print("| %d | %s | %s | %s | %s |" % (depth, engine, model, form, figure))
    first = a.engines[0][0]
    for depth in sorted({d for _, _, _, d in got}):
        for model in sorted({m for e, m, _, d in got if e == first}):
            for engine in [e for e, _ in a.engines[1:]]:
                ratios = []
                for n, name in enumerate(["halves", "8 bits", "4 bits"], 1):
                    ours = best(got, first, model, depth, n)
                    theirs = best(got, engine, os.path.basename(a.model), depth, n)
                    if ours and theirs:
                        ratios.append("%s %.2f" % (name, ours / theirs))
                print("%d tokens, %s (%s) against %s: %s" % (depth, first, model, engine, ", ".join(ratios) or "not measured"))


def main():
    a = arguments()
    got = measure(a)
    tables(a, got)
    if a.json:
        with open(a.json, "w", encoding="utf-8") as f:
            json.dump([{"engine": e, "file": m, "kv": k, "depth": d, "tokens_per_second": v} for (e, m, k, d), v in got.items()], f, indent=1)


if __name__ == "__main__":
    main()
