#!/usr/bin/env bash
# Quantised GGUF files as they are: prefill and decode speed of tern beside llama-bench binaries of other engines, interleaved, as medians.
#   LLAMA_QUANTIZE=path LLAMA_BENCH=path [IK_BENCH=path] bench/blocks-vs-peer.sh ARCH [TYPES] [PROMPT] [GEN] [ROUNDS] [THREADS]
# e.g. ... bench/blocks-vs-peer.sh qwen2.5-0.5b Q4_0,Q4_K_M,Q8_0 512 64 3 2
# The same random weights (tern synth) for all, quantised by llama-quantize; types of code books (IQ1 to IQ3, TQ) and ik_llama.cpp's are random blocks. IK_BENCH is run with -rtr 1. BENCH_PREFIX: a command that
# runs each measurement, e.g. one that keeps other work off the machine.
set -euo pipefail
arch=${1:?usage: bench/blocks-vs-peer.sh ARCH [TYPES] [PROMPT] [GEN] [ROUNDS] [THREADS]}
types=${2:-Q4_0,Q4_K_M,Q8_0} prompt=${3:-512} gen=${4:-64} rounds=${5:-3} threads=${6:-2}
tern=${TERN:-build/tern}
work=${WORK:-build/blocks-vs-peer}
mkdir -p "$work"
for type in ${types//,/ }; do
    file=$work/$arch.$type.gguf
    case $type in # types of code books: llama-quantize wants an importance matrix for most
    IQ[1-6]_K* | IQ1_* | IQ2_* | IQ3_XXS | IQ3_S | TQ*) [ -s "$file" ] || "$tern" synth --arch "$arch" --type "$(tr '[:upper:]' '[:lower:]' <<<"$type")" -o "$file" ;;
    esac
    if [ ! -s "$file" ]; then
        [ -s "$work/$arch.f16.gguf" ] || "$tern" synth --arch "$arch" --type f16 -o "$work/$arch.f16.gguf"
        "${LLAMA_QUANTIZE:?the path of llama-quantize}" "$work/$arch.f16.gguf" "$file" "$type" "$threads" >"$work/quantize.log" 2>&1
    fi
    rm -f "$file".*.jsonl
    for ((r = 0; r < rounds; r++)); do
        ${BENCH_PREFIX:-} "$tern" bench -m "$file" -p "$prompt" -n "$gen" -r 1 -t "$threads" --json >>"$file.TERN.jsonl"
        for peer in LLAMA_BENCH IK_BENCH; do
            bin=${!peer:-}
            [ -n "$bin" ] || continue
            extra=""
            [ $peer = IK_BENCH ] && extra="-rtr 1"
            # shellcheck disable=SC2086
            ${BENCH_PREFIX:-} "$bin" -m "$file" -p "$prompt" -n "$gen" -r 1 -t "$threads" $extra -o json 2>/dev/null >>"$file.$peer.jsonl"
        done
    done
    python3 - "$file" "$type" <<'PY'
import json, os, statistics, sys
base, kind = sys.argv[1:]
def rows(path):
    if not os.path.exists(path): return
    text, at, d = open(path).read(), 0, json.JSONDecoder()
    while text[at:].strip():
        at += len(text[at:]) - len(text[at:].lstrip())
        v, at = d.raw_decode(text, at)
        yield from v
speeds = {}
for r in rows(base + ".TERN.jsonl"): speeds.setdefault(r["test"], {}).setdefault("tern", []).append(r["tokens_per_second"]["median"])
for peer in ("LLAMA_BENCH", "IK_BENCH"):
    for r in rows(f"{base}.{peer}.jsonl"):
        test = f"pp{r['n_prompt']}" if r["n_prompt"] else f"tg{r['n_gen']}"
        speeds.setdefault(test, {}).setdefault(peer, []).append(r["avg_ts"])
for test, by in speeds.items():
    ours = statistics.median(by["tern"])
    print(f"{kind:>8} {test:>6} tern {ours:8.1f}", *(f"{p} {statistics.median(v):8.1f} ratio {ours / statistics.median(v):5.2f}" for p, v in by.items() if p != "tern"))
PY
done
