#!/usr/bin/env bash
# llm.npu on this machine: the ladder of what each mechanism adds to prefill speed, then the whole without each one alone, with the bubble rate of
# both lanes. Rounds go by turns over all rows; a figure is the median, the least and most of a row in brackets. In order, and in the ladder up to
# the row that says so, one lane's core waits while the other's works; "overlap" among what is left out shares both cores, as out of order does.
#   bench/ablation-prefill.sh MODEL [TOKENS] [ROUNDS]      MODEL: a float model; its packages are made once, in $WORK
set -euo pipefail
export TERN_PACK=never # nothing is measured behind a run
model=$1 tokens=${2:-1024} rounds=${3:-5}
tern=${TERN:-build/tern} work=${WORK:-build/ablation}
mkdir -p "$work"
name=$(basename "$model")
for scheme in naive-w8a8 llm-npu; do
    [ -s "$work/$name.$scheme.tern" ] || "$tern" pack "$model" -o "$work/$name.$scheme.tern" --scheme $scheme --calib-tokens 512 >/dev/null
done
text=$(mktemp)
trap 'rm -f "$text"' EXIT
python3 - "$tern" "$model" "$work/$name.naive-w8a8.tern" "$work/$name.llm-npu.tern" "$tokens" "$rounds" "$text" <<'PY'
import json, random, statistics, subprocess, sys

tern, model, naive, npu, tokens, rounds, path = *sys.argv[1:5], *map(int, sys.argv[5:7]), sys.argv[7]
random.seed(1)
with open(path, "w") as f:
    f.write("".join(random.choice("abcdefghijklmnopqrstuvwxyz") for _ in range(tokens)))
rows = [
    ("float, CPU only", model, ""),
    ("naive INT8 device: one graph of 1024 rows", naive, "--chunk 1024 --policy in-order --no-steal"),
    ("+ chunks of 256, one graph each", naive, "--chunk 256 --policy in-order --no-steal --no-chunk-sharing"),
    ("+ chunk-sharing graphs", naive, "--chunk 256 --policy in-order --no-steal"),
    ("+ shadow outliers (right text from here on)", npu, "--chunk 256 --policy in-order --no-steal"),
    ("+ lanes overlap", npu, "--chunk 256 --policy overlap --no-steal"),
    ("+ out of order", npu, "--chunk 256 --policy ooe --no-steal"),
    ("+ idle cores help (both lanes are cores here)", npu, "--chunk 256 --policy ooe"),
    ("the whole", npu, "--chunk 256 --policy synergy"),
    ("without position priority: out of order", npu, "--chunk 256 --policy ooe"),
    ("without out of order: overlap, cores shared", npu, "--chunk 256 --policy overlap"),
    ("without idle cores' help", npu, "--chunk 256 --policy synergy --no-steal"),
    ("without chunk-sharing graphs", npu, "--chunk 256 --policy synergy --no-chunk-sharing"),
    ("without chunks: one graph of 1024 rows", npu, "--chunk 1024 --policy synergy"),
    ("without shadow outliers (wrong text)", naive, "--chunk 256 --policy synergy"),
]

def once(file, flags):
    command = [tern, "run", "-m", file, "-c", str(tokens + 64), "-f", path, *flags.split(), "-n", "1", "--temp", "0", "--ignore-eos", "--draft", "none", "--json"]
    return json.loads(subprocess.run(command, check=True, capture_output=True).stdout)

got = [[] for _ in rows]
for _ in range(rounds):
    for g, (_, file, flags) in zip(got, rows):
        g.append(once(file, flags))
print("| | tokens/s | of the whole | bubbles CPU | NPU | peak memory, MiB |\n|---|---|---|---|---|---|")
rate = lambda g: [x["prefill_tokens_per_second"] for x in g]
whole = statistics.median(rate(got[[r[0] for r in rows].index("the whole")]))
for g, (label, _, _) in zip(got, rows):
    r, m = rate(g), statistics.median(rate(g))
    bubbles = ["%.1f %%" % (100 * statistics.median(x["prefill"][k] for x in g)) if "prefill" in g[0] else "" for k in ("cpu_bubble", "npu_bubble")]
    print(f"| {label} | {m:.0f} ({min(r):.0f} to {max(r):.0f}) | {m / whole:.2f} | {bubbles[0]} | {bubbles[1]} | {statistics.median(x['peak_rss_bytes'] for x in g) / 1048576:.0f} |", flush=True)
print(f"\n{got[0][0]['prompt_tokens']} tokens, {rounds} rounds by turns")
PY
