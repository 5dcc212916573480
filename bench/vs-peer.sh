#!/usr/bin/env bash
# Prefill and decode speed of tern beside llama-bench binaries of other engines, interleaved, as ratios of medians.
#   LLAMA_BENCH=path [IK_BENCH=path] bench/vs-peer.sh ARCH [PROMPTS] [GEN] [ROUNDS] [THREADS]
# e.g. LLAMA_BENCH=../llama.cpp/build/bin/llama-bench bench/vs-peer.sh qwen2.5-0.5b 64,512 64 3 2
# The same random weights (tern synth) for all: Q8_0 for the peers, a package for tern. IK_BENCH is run with -rtr 1. TERN_FLAGS: more for
# tern, e.g. "--attention auto".
set -euo pipefail
arch=${1:?usage: bench/vs-peer.sh ARCH [PROMPTS] [GEN] [ROUNDS] [THREADS]}
prompts=${2:-64,512} gen=${3:-64} rounds=${4:-3} threads=${5:-2}
tern=${TERN:-build/tern}
work=${WORK:-build/vs-peer}
mkdir -p "$work"
[ -s "$work/$arch.q8_0.gguf" ] || "$tern" synth --arch "$arch" --type q8_0 -o "$work/$arch.q8_0.gguf"
[ -s "$work/$arch.tern" ] || "$tern" pack "$work/$arch.q8_0.gguf" -o "$work/$arch.tern" --scheme llm-npu --calib-tokens 512
rm -f "$work/$arch".*.jsonl
for ((r = 0; r < rounds; r++)); do
    "$tern" bench -m "$work/$arch.tern" -p "$prompts" -n "$gen" -r 1 -t "$threads" ${TERN_FLAGS:-} --json >>"$work/$arch.tern.jsonl"
    for peer in LLAMA_BENCH IK_BENCH; do
        bin=${!peer:-}
        [ -n "$bin" ] || continue
        extra=""
        [ $peer = IK_BENCH ] && extra="-rtr 1"
        "$bin" -m "$work/$arch.q8_0.gguf" -p "$prompts" -n "$gen" -r 1 -t "$threads" $extra -o json 2>/dev/null >>"$work/$arch.$peer.jsonl"
    done
done
python3 - "$work/$arch" <<'PY'
import json, statistics, sys
base = sys.argv[1]
def stream(path):
    try: text = open(path).read()
    except FileNotFoundError: return
    d, i = json.JSONDecoder(), 0
    while True:
        while i < len(text) and text[i].isspace(): i += 1
        if i >= len(text): return
        v, i = d.raw_decode(text, i)
        yield from v
rows = {}
for r in stream(base + ".tern.jsonl"): rows.setdefault(r["test"], {}).setdefault("tern", []).append(r["tokens_per_second"]["median"])
for peer in ("LLAMA_BENCH", "IK_BENCH"):
    for r in stream(f"{base}.{peer}.jsonl"):
        test = f"pp{r['n_prompt']}" if r["n_prompt"] else f"tg{r['n_gen']}"
        rows.setdefault(test, {}).setdefault(peer, []).append(r["avg_ts"])
print(f"{'test':>8} {'tern t/s':>10} {'peer':>12} {'t/s':>10} {'ratio':>7}")
for test, by in rows.items():
    ours = statistics.median(by["tern"])
    for peer in ("LLAMA_BENCH", "IK_BENCH"):
        if peer in by:
            theirs = statistics.median(by[peer])
            print(f"{test:>8} {ours:10.1f} {peer:>12} {theirs:10.1f} {ours / theirs:7.2f}")
PY
