#!/usr/bin/env bash
# EdgeFlow from a cold start: the ladder from INT8 to packed weights and the pipeline's policies, then the whole without each one alone, with the bubble
# rates of both lanes. Rounds go by turns over all rows; a figure is the median, the least and most of a row in brackets.
#   bench/ablation-cold.sh MODEL.gguf [TOKENS] [ROUNDS] [BITS]      its packages are made once, in $WORK
set -euo pipefail
model=$1 tokens=${2:-512} rounds=${3:-5} bits=${4:-5}
tern=${TERN:-build/tern} work=${WORK:-build/ablation-cold}
mkdir -p "$work"
name=$(basename "$model" .gguf)
int8=$work/$name.int8.tern ef=$work/$name.ef$bits.tern
[ -s "$int8" ] || "$tern" pack "$model" -o "$int8" --scheme llm-npu --calib-tokens 512 >/dev/null
[ -s "$ef" ] || "$tern" pack "$model" -o "$ef" --scheme edgeflow --bits "$bits" --calib-tokens 512 >/dev/null
python3 - "$tern" "$int8" "$ef" "$bits" "$tokens" "$rounds" <<'PY'
import json, statistics, subprocess, sys

tern, int8, ef, bits, tokens, rounds = sys.argv[1:]
rows = [
    ("INT8; all read, then loaded, then computed", int8, "--load sequential --no-steal"),
    (f"{bits} bits, the same", ef, "--load sequential --no-steal"),
    ("+ reading, unpacking and loading overlap", ef, "--load overlap --no-steal"),
    ("+ with computing: tasks placed by lane", ef, "--policy overlap --no-steal"),
    ("+ position-guided priority", ef, "--policy synergy --no-steal"),
    ("+ CPU steals from a long queue", ef, "--policy synergy --set steal=measured"),
    ("+ idle cores help (both lanes are cores here)", ef, "--policy synergy"),
    ("the whole: out of order instead of by position (default)", ef, ""),
    ("without packed bits: INT8", int8, ""),
    ("without computing meanwhile", ef, "--load overlap"),
    ("without any overlap of reading", ef, "--load sequential"),
    ("without out of order: overlap, cores shared", ef, "--policy overlap"),
    ("without idle cores' help", ef, "--no-steal"),
    ("weights stay packed", ef, "--weights packed"),
    ("the file mapped", ef, "--load mmap"),
]

def once(file, flags):
    command = [tern, "bench", "-m", file, "--cold", "-p", tokens, "-r", "1", "--json", *flags.split()]
    return json.loads(subprocess.run(command, check=True, capture_output=True).stdout)[0]

got = [[] for _ in rows]
for _ in range(int(rounds)):
    for g, (_, file, flags) in zip(got, rows):
        g.append(once(file, flags))
ms = lambda g, key="median": [x["ttft_ms"][key] for x in g]
whole = statistics.median(ms(next(g for g, r in zip(got, rows) if r[0].startswith("the whole"))))
print("| | first token, ms | of the whole | read | unpack | compute | wait | bubbles CPU | NPU | peak, MB |\n|---|---|---|---|---|---|---|---|---|---|")
for g, (label, _, _) in zip(got, rows):
    t, m = ms(g), statistics.median(ms(g))
    parts = " | ".join(f"{statistics.median(ms(g, k)):.0f}" for k in ("read", "unpack", "compute", "wait"))
    bubbles = " | ".join(f"{100 * statistics.median(x[k] for x in g):.1f} %" for k in ("cpu_bubble", "npu_bubble"))
    print(f"| {label} | {m:.0f} ({min(t):.0f} to {max(t):.0f}) | {m / whole:.2f} | {parts} | {bubbles} | {statistics.median(x['peak_rss_bytes'] for x in g) * 1e-6:.0f} |", flush=True)
print(f"\n{tokens} tokens, {rounds} rounds by turns")
PY
