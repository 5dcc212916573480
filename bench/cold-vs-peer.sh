#!/usr/bin/env bash
# Process start to first token with the files out of the page cache: tern beside a llama.cpp binary, interleaved, on the same random weights.
#   LLAMA_BENCH=path bench/cold-vs-peer.sh ARCH [PROMPTS] [ROUNDS] [THREADS] [BITS] [TYPES]
# e.g. LLAMA_BENCH=../llama.cpp/build/bin/llama-bench bench/cold-vs-peer.sh qwen2.5-1.5b 128,512 3 2 5 q4_0
#      PACKAGE=1.5b.tern FILES=1.5b.Q5_K_M.gguf,1.5b.Q4_0.gguf LLAMA_BENCH=... bench/cold-vs-peer.sh qwen2.5-1.5b 128 3
# llama-bench evaluates the prompt once without a warm-up run; its start is over when it prints that result. TYPES (q8_0,q4_0): what `tern synth` writes of them, every
# matrix, also the output's, which llama-quantize would store wider. FILES, GGUF files with commas between, stand in their place: any type. Both with
# mmap and without. tern: PACKAGE, or an edgeflow package of BITS bits.
# IK_BENCH=path: ik_llama.cpp's llama-bench too, mapped as it is (repacking takes longer than it saves in a first answer).
# Every file is started by tern as well. WARM=1: the files are in the page cache. PACKAGE=none: no package.
# PRIME=0: do not touch memory before each start (see docs/reference/cold-start.md).
set -euo pipefail
arch=${1:?usage: bench/cold-vs-peer.sh ARCH [PROMPTS] [ROUNDS] [THREADS] [BITS] [TYPES]}
prompts=${2:-128,512} rounds=${3:-3} threads=${4:-2} bits=${5:-5} types=${6:-q8_0,q4_0}
tern=${TERN:-build/tern} work=${WORK:-build/cold-vs-peer}
: "${LLAMA_BENCH:?path of a llama-bench binary}"
mkdir -p "$work"
if [ -z "${FILES:-}" ]; then
    for type in ${types//,/ }; do
        [ -s "$work/$arch.$type.gguf" ] || "$tern" synth --arch "$arch" --type "$type" -o "$work/$arch.$type.gguf"
        FILES=${FILES:+$FILES,}$work/$arch.$type.gguf
    done
fi
[ "${PACKAGE:-}" != none ] || PACKAGE=
if [ -z "${PACKAGE+set}" ]; then
    PACKAGE=$work/$arch.ef$bits.tern
    [ -s "$PACKAGE" ] || "$tern" pack "${FILES%%,*}" -o "$PACKAGE" --scheme edgeflow --bits "$bits" --calib-tokens 512 >/dev/null
fi
exec python3 - "$tern" "$LLAMA_BENCH" "$PACKAGE" "$FILES" "$prompts" "$rounds" "$threads" "${PRIME:-1}" "${IK_BENCH:-}" "${WARM:-0}" <<'PY'
import json, mmap, os, statistics, subprocess, sys, time
tern, llama, package, files, prompts, rounds, threads, prime, ik, warm = sys.argv[1:]
rounds, prime, warm = int(rounds), int(prime), int(warm)

def drop(path):
    if warm:
        with open(path, "rb") as f:
            while f.read(1 << 22): pass
        return
    fd = os.open(path, os.O_RDONLY)
    os.fsync(fd)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(fd)

def touch(path):
    n = 3 * os.path.getsize(path) + (512 << 20)
    m = mmap.mmap(-1, n)
    m.madvise(mmap.MADV_HUGEPAGE)
    for i in range(0, n, 4096): m[i] = 1
    m.close()

def start(path, args, done):
    drop(path)
    if prime: touch(path)
    t0 = time.monotonic_ns()
    p = subprocess.Popen([a.replace("@START", str(t0)) for a in args], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    t = None
    for line in p.stdout:
        t = done(line, t0)
        if t is not None: break
    p.stdout.read()
    p.wait()
    if t is None: sys.exit(f"{args[0]} gave no result (status {p.returncode})")
    return t

def of_tern(line, t0): return json.loads(line)["ttft_ms"]
def of_llama(line, t0): return (time.monotonic_ns() - t0) * 1e-6 if line.startswith("{") else None
def of_ik(line, t0): return (time.monotonic_ns() - t0) * 1e-6 if line.startswith('"') else None # a row of CSV

for n in prompts.split(","):
    def peer(model, mm): return lambda: start(model, [llama, "-m", model, "-p", n, "-n", "0", "-r", "1", "--no-warmup", "-t", threads, "-mmp", mm, "-o", "jsonl"], of_llama)
    def ours(model, *more): return lambda: start(model, [tern, "bench", "-m", model, "-p", n, "-t", threads, "--once", "@START", *more], of_tern)
    def iks(model): return lambda: start(model, [ik, "-m", model, "-p", n, "-n", "0", "-r", "1", "-w", "0", "-t", threads, "-o", "csv"], of_ik)
    runs = {f"tern, {os.path.basename(package)}": ours(package)} if package else {}
    for f in files.split(","): runs[f"tern, {os.path.basename(f)}"] = ours(f)
    for f in files.split(","):
        if ik: runs[f"ik_llama.cpp {os.path.basename(f)}, mmap"] = iks(f)
        for mm, how in (("1", "mmap"), ("0", "read")): runs[f"llama.cpp {os.path.basename(f)}, {how}"] = peer(f, mm)
    times = {k: [] for k in runs}
    for _ in range(rounds):
        for k, f in runs.items(): times[k].append(f())
    mine = statistics.median(next(iter(times.values())))
    print(f"prompt of {n} tokens, {threads} threads, {'warm' if warm else 'cold'}, medians of {rounds}\n")
    print("| start | ms | min .. max | against tern |\n|---|---|---|---|")
    for k, v in times.items():
        print(f"| {k} | {statistics.median(v):.0f} | {min(v):.0f} .. {max(v):.0f} | {statistics.median(v) / mine:.2f} |")
    print(flush=True)
PY
