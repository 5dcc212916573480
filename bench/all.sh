#!/usr/bin/env bash
# The whole table of speeds beside other engines, in one run: prefill and decode of the 0.5B and 1.5B shapes, packages of 4 and 5 bits and GGUF
# files as they are, by turns with the peers. Writes all.md and all.json (date, processor, versions, median and spread of every figure), and puts
# the tables into docs/record/figures.md, where they take the place of older ones of the same processor.
#   bench/all.sh PEER_BIN [PEER_BIN...]
# e.g. bench/all.sh ../llama.cpp/build/bin ../ik_llama.cpp/build/bin
# PEER_BIN: a folder with llama-bench; the first one also with llama-quantize. A llama-bench that knows -rtr is ik_llama.cpp's, and gets it.
# ARCHS ("qwen2.5-0.5b qwen2.5-1.5b"), ROUNDS (3), THREADS (2), BUDGET (25: minutes of measuring; what does not fit is left out, and the
# table says so), WORK (build/all), TERN (build/tern), PAGE (docs/record/figures.md; empty: no page), BENCH_PREFIX: a command that runs each measurement, e.g. one that keeps other work
# off the machine.
# The models (random weights, tern synth) are made on the first run, which takes some minutes more.
set -euo pipefail
[ $# -ge 1 ] || { sed -n '2,11s/^# \{0,1\}//p' "$0" >&2; exit 2; }
tern=${TERN:-build/tern} work=${WORK:-build/all}
mkdir -p "$work"
export TERN_PACK=never
archs=${ARCHS:-qwen2.5-0.5b qwen2.5-1.5b}
for arch in $archs; do
    base=$work/$arch
    types="Q4_0 Q4_K_M Q5_K_M Q8_0"
    for type in $types; do
        [ -s "$base.$type.gguf" ] && continue
        [ -s "$base.f16.gguf" ] || "$tern" synth --arch "$arch" --type f16 -o "$base.f16.gguf"
        "$1/llama-quantize" "$base.f16.gguf" "$base.part" "$type" "${THREADS:-2}" >"$work/quantize.log" 2>&1
        mv "$base.part" "$base.$type.gguf"
    done
    for bits in 4 5; do
        [ -s "$base.b$bits.tern" ] && continue
        [ -s "$base.f16.gguf" ] || "$tern" synth --arch "$arch" --type f16 -o "$base.f16.gguf"
        "$tern" pack "$base.f16.gguf" -o "$base.b$bits.tern" --bits "$bits" --quick
    done
    rm -f "$base.f16.gguf"
done
exec python3 - "$tern" "$work" "${ROUNDS:-3}" "${THREADS:-2}" "${BUDGET:-25}" "$archs" "${PAGE-docs/record/figures.md}" "$@" <<'PY'
import datetime, json, os, platform, shlex, statistics, subprocess, sys, time

tern, work, rounds, threads, budget, archs, page, *peers = sys.argv[1:]
prefix = shlex.split(os.environ.get("BENCH_PREFIX", ""))
deadline = time.monotonic() + 60 * float(budget)

def json_of(args):
    p = subprocess.run(prefix + args, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    if p.returncode: sys.exit(f"{shlex.join(args)}: status {p.returncode}")
    return json.loads(p.stdout)

def of_tern(model, prompts, gen):
    rows = json_of([tern, "bench", "-m", model, "-p", prompts, "-n", gen, "-r", "1", "-t", threads, "--json"])
    return {r["test"]: r["tokens_per_second"]["median"] for r in rows}

versions = {"tern": subprocess.run([tern, "--version"], stdout=subprocess.PIPE, text=True).stdout.split()[-1]}

def of_peer(folder):
    usage = subprocess.run([folder + "/llama-bench", "--help"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True).stdout
    name = "ik_llama.cpp" if "-rtr" in usage else "llama.cpp"
    def run(model, prompts, gen):
        args = [folder + "/llama-bench", "-m", model, "-p", prompts, "-n", gen, "-r", "1", "-t", threads, "-o", "json"]
        rows = json_of(args + (["-rtr", "1"] if name.startswith("ik") else []))
        versions[name] = f"{rows[0]['build_number']} ({rows[0]['build_commit']})"
        return {f"pp{r['n_prompt']}" if r["n_prompt"] else f"tg{r['n_gen']}": r["avg_ts"] for r in rows}
    return name, run

engines = [("tern", of_tern)] + [of_peer(p.rstrip("/")) for p in peers]
plan = []  # shape, file, prompts; rounds go over all of it by turns
for i, arch in enumerate(archs.split()):
    long = "64,512" if i else "64,512,2048"  # of the smallest alone: the peers take half a minute for it
    for bits in "54": plan.append((arch, f"package, {bits} bits", f"{arch}.b{bits}.tern", long, engines[:1]))
    for kind in ("Q4_0", "Q4_K_M", "Q5_K_M", "Q8_0"):
        plan.append((arch, kind, f"{arch}.{kind}.gguf", long if kind == "Q4_0" else "64,512", engines))

figures, left_out = {}, []
for i in range(int(rounds)):
    for arch, kind, file, prompts, who in plan:
        for name, run in who:
            if time.monotonic() > deadline:
                left_out.append(f"round {i + 1}: {arch}, {kind}, {name}")
                continue
            for test, speed in run(f"{work}/{file}", prompts, "64").items():
                figures.setdefault((arch, kind, name), {}).setdefault(test, []).append(speed)

with open("/proc/cpuinfo") as f:
    info = dict(l.split(":", 1) for l in f.read().split("\n\n")[0].splitlines() if ":" in l)
info = {k.strip(): v.strip() for k, v in info.items()}
flags = [f for f in ("avx2", "avx_vnni", "avx512f", "avx512_vnni", "avx512_bf16", "amx_int8") if f in info.get("flags", "").split()]
head = {"date": datetime.date.today().isoformat(), "processor": info.get("model name", platform.machine()),
        "family": info.get("cpu family"), "model": info.get("model"), "features": flags, "processors": os.cpu_count(),
        "threads": int(threads), "rounds": int(rounds), "versions": versions, "left_out": left_out}
rows = [{"shape": a, "weights": k, "engine": e, "test": t, "median": statistics.median(v), "lowest": min(v), "highest": max(v),
         "file_bytes": os.path.getsize(f"{work}/{next(p[2] for p in plan if p[:2] == (a, k))}"), "rounds": len(v)}
        for (a, k, e), tests in figures.items() for t, v in tests.items()]
with open(work + "/all.json", "w") as f: json.dump({**head, "rows": rows}, f, indent=2)

lines = [f"Measured {head['date']}, {head['processor']} (family {head['family']}, model {head['model']}; {' '.join(flags)}), {threads} threads, "
         f"{rounds} round(s) by turns, tokens/s: median (lowest to highest). " + "; ".join(f"{k} {v}" for k, v in versions.items()) + ".", ""]
tests = ["pp64", "pp512", "pp2048", "tg64"]
for arch in dict.fromkeys(p[0] for p in plan):
    lines += [f"| {arch} | MB | engine | " + " | ".join(tests) + " |", "|---|---|---|" + "---|" * len(tests)]
    for (a, k, e), by in figures.items():
        if a != arch: continue
        size = next(r["file_bytes"] for r in rows if (r["shape"], r["weights"]) == (a, k)) / 1e6
        cell = lambda v: f"{statistics.median(v):.1f} ({min(v):.1f} to {max(v):.1f})" if v else ""
        lines.append(f"| {k} | {size:.0f} | {e} | " + " | ".join(cell(by.get(t)) for t in tests) + " |")
    lines.append("")
if left_out: lines += ["Left out for want of time: " + "; ".join(left_out) + "."]
with open(work + "/all.md", "w") as f: f.write("\n".join(lines) + "\n")
print("\n".join(lines))
if page:
    begin, end = f"<!-- bench/all.sh: {head['processor']} -->", "<!-- end of bench/all.sh -->"
    with open(page, encoding="utf-8") as f: text = f.read()
    old = text.find(begin)
    after = text.find(end, old) + len(end) if old >= 0 else 0
    before, rest = (text[:old], text[after:]) if old >= 0 else (text.rstrip("\n") + "\n\n", "\n")
    with open(page, "w", encoding="utf-8") as f: f.write(before + "\n".join([begin, ""] + lines + ["", end]).replace("\n\n\n", "\n\n") + rest)
PY
