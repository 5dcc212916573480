#!/usr/bin/env bash
# What the Hexagon kernels cost on the instruction set itself: instructions and packets that the DSP executes, counted from qemu-hexagon's log
# of translated and executed blocks (-d in_asm,exec,nochain), per multiply-add or per unpacked weight. QEMU counts, it does not time:
# the last column is an ESTIMATE, one packet per cycle of one HVX thread at the clock given, no stalls, transfers by a DMA engine for nothing.
#   bench/hexagon-cost.sh [BUILD [GHZ]]
set -euo pipefail
build=${1:-build}
export GHZ=${2:-1.0}
export TERN_HEXAGON_THREADS=${TERN_HEXAGON_THREADS:-1} # what one thread executes; more of them share a job
cd "$(dirname "$0")/.."
for tool in qemu-hexagon python3; do command -v $tool >/dev/null || { echo "skipped: no $tool"; exit 77; }; done
[ -x "$build/bench_hexagon_cost" ] && [ -f "$build/hexagon-dsp" ] || { echo "skipped: $build has no Hexagon backend or no benches"; exit 77; }
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
count() { # TITLE UNITS ARGS
    local title=$1 units=$2
    shift 2
    rm -f "$tmp/log"
    QEMU_LOG=nochain,exec,in_asm QEMU_LOG_FILENAME=$tmp/log "$build/bench_hexagon_cost" "$@"
    TITLE=$title UNITS=$units python3 - "$tmp/log" <<'PY'
import collections, os, re, sys

# A block of code is printed when it is translated, in front of its first execution; executions name the translation's address.
blocks, fresh = {}, None
runs = collections.Counter()
for line in open(sys.argv[1], errors="replace"):
    if line.startswith("IN:"):
        fresh = [line[3:].strip(), 0, 0, 0]  # symbol, packets, instructions, vrmpy
    elif line.startswith("0x") and fresh is not None:
        text = line.split(":", 1)[1].split(None, 1)[1]  # behind address and word; a packet ends with }, perhaps with the end of a loop behind it
        fresh[1] += "}" in text
        fresh[2] += sum(bool(t) and not t.startswith(("immext", "nop")) for t in re.sub(r"[{}]|:endloop[01]*", "", text).strip().split("; "))
        fresh[3] += "vrmpy" in text
    elif line.startswith("Trace"):
        at = line.split()[2]
        if fresh is not None:
            blocks[at] = fresh
            fresh = None
        runs[at] += 1
total = collections.defaultdict(lambda: [0] * 3)
for at, n in runs.items():
    name = blocks[at][0]
    if re.match("product", name): key = "product"
    elif name == "tn_hex_finish": key = "epilogue"
    elif name == "tn_hex_pack_rows": key = "rows"
    elif re.match(r"unpack_\d", name): key = "weightlets"
    elif name == "tn_hex_transpose": key = "transpose"
    elif name in ("count_from", "count_row"): key = "counting"
    elif name == "write_positions": key = "positions"
    elif re.match("tn_hex_dma|copy", name): key = "DMA"
    elif re.match("tn_hex_(linear|product|unpack|topk)|begin|next|tn_hex_unpack_channel|__hexagon", name): key = "staging"
    else: continue # messages
    for i in range(3): total[key][i] += blocks[at][i + 1] * n
units, ghz = int(os.environ["UNITS"]), float(os.environ["GHZ"])
work = [sum(v[i] for k, v in total.items() if k != "DMA") for i in range(3)]
detail = ", ".join(f"{k} {100 * v[0] / work[0]:.0f}" for k, v in sorted(total.items(), key=lambda x: -x[1][0]) if k != "DMA")
density = f"{total['product'][2] / total['product'][0]:.2f}" if total["product"][2] else "-"
print(f"| {os.environ['TITLE']} | {1000 * work[1] / units:.2f} | {1000 * work[0] / units:.2f} | {density} | {detail} | {units / work[0] * ghz:.1f} |")
PY
}
echo "Instructions and packets per 1000 multiply-adds (linear, Q.K), weights (unpacking) or scores (top-k); vrmpy per packet of the product; share of the packets in %;"
echo "ESTIMATE of 10^9 multiply-adds or weights a second, one HVX thread at $GHZ GHz, a packet per cycle, no stalls, DMA behind the computation:"
echo
echo "| kernel | instructions | packets | vrmpy/packet | packets of | estimate |"
echo "|---|---|---|---|---|---|"
count "linear 256 x 512, K 1536, f32" $((256 * 512 * 1536)) linear 256 512 1536 0
count "linear 32 x 512, K 1536, f32" $((32 * 512 * 1536)) linear 32 512 1536 0
count "linear 4 x 512, K 1536, f32" $((4 * 512 * 1536)) linear 4 512 1536 0
count "linear 1 x 512, K 1536, f32" $((512 * 1536)) linear 1 512 1536 0
count "linear 256 x 512, K 1536, s8" $((256 * 512 * 1536)) linear 256 512 1536 3
count "Q.K 64 x 1024, d 64, s32" $((64 * 1024 * 64)) qk 64 1024 64 1
count "Q.K 64 x 1024, d 128, s32" $((64 * 1024 * 128)) qk 64 1024 128 1
count "top 20 % of 1024, 64 rows" $((64 * 1024)) topk 64 1024 205
count "top 20 % of 4096, 16 rows" $((16 * 4096)) topk 16 4096 819
for b in 1 2 3 4 5 6 7 8; do count "unpacking $b bits, 256 x 1536" $((256 * 1536)) unpack $b 256 1536; done
