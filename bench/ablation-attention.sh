#!/usr/bin/env bash
# The ladder of shadowAttn (its Figure 16) end to end: what each part of sparse attention adds to prefill speed and takes of memory.
#   bench/ablation-attention.sh PACKAGE [TOKENS] [ROUNDS] [DEVICE]
# Rows run by turns, ROUNDS (3) times each; the median of the tokens per second, its ratio to the row before and to full attention, the largest resident memory,
# the memory sparse attention keeps, the share of the positions selected. The accuracy of the same rows: bench/accuracy-attention.sh. DEVICE: as --npu, or
# "apart": the host device on threads of its own. Then "shared" is what one lane does head by head, and the pipeline is what it would be on a phone;
# on the host's own device (default) both lanes are the same cores.
set -euo pipefail
export TERN_PACK=never # nothing is measured behind a run
package=$1 tokens=${2:-4096} rounds=${3:-3} device=${4:-host}
tern=${TERN:-build/tern} work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 - "$tokens" >"$work/text" <<'PY'
import random, sys
random.seed(1)
print("".join(random.choice("abcdefghijklmnopqrstuvwxyz") for _ in range(int(sys.argv[1]))), end="")
PY
own="--attention shadow --attention-share -1"
rows=(
    "full float attention:--attention full"
    "sparse, exact scores on the CPU:--attention float-sparse --attention-share -1 --no-head-ratios"
    "+ estimated on the device in INT8, one pair of scales:$own --buckets 1 --no-head-ratios"
    "+ buckets of scales:$own --no-head-ratios"
    "+ ratios of the heads:$own"
    "+ rows and heads share a selection:--attention shadow --attention-pipeline off"
    "+ estimates as tasks of the device:--attention shadow --attention-pipeline on --attention-plan in-order,no-fusion,no-overlap"
    "+ heads fused into one launch:--attention shadow --attention-pipeline on --attention-plan in-order,no-overlap"
    "+ stages of heads overlap:--attention shadow --attention-pipeline on --attention-plan in-order"
    "+ planned order:--attention shadow --attention-pipeline on"
    "as printed (preset paper), beside full:--attention-preset paper"
)
device="--npu $device"
[ "$device" != "--npu apart" ] || device="--npu host --npu-apart"
for ((round = 0; round < rounds; round++)); do
    for i in "${!rows[@]}"; do
        "$tern" run -m "$package" $device ${rows[i]#*:} --attention-threshold 1 -f "$work/text" -c $((tokens + 64)) -n 1 --temp 0 --ignore-eos --draft none --json >>"$work/$i.json"
    done
done
printf '%s\n' "${rows[@]%%:*}" >"$work/labels"
python3 - "$work" <<'PY'
import json, statistics, sys
work, before, full = sys.argv[1], None, None
labels = open(f"{work}/labels").read().splitlines()
print(f"{'':54}{'tokens/s':>10}{'/ before':>10}{'/ full':>8}{'peak MiB':>10}{'of it, MiB':>11}{'selected':>10}")
for i, label in enumerate(labels):
    d, text, at, runs = json.JSONDecoder(), open(f"{work}/{i}.json").read(), 0, []
    while text[at:].strip():
        v, at = d.raw_decode(text, at + len(text[at:]) - len(text[at:].lstrip()))
        runs.append(v)
    speed = statistics.median(r["prefill_tokens_per_second"] for r in runs)
    a = runs[0].get("attention", {})
    full = full or speed
    print(f"{label:54}{speed:10.1f}{speed / (before or speed):10.2f}{speed / full:8.2f}{statistics.median(r['peak_rss_bytes'] for r in runs) / 1048576:10.0f}"
          f"{a.get('bytes', 0) / 1048576:11.1f}{100 * a.get('selected_share', 1):8.1f} %", flush=True)
    before = speed
PY
