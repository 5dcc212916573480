#!/usr/bin/env bash
# The pipeline of heads (shadowAttn 3.4) by itself: what order, fused launches and overlap are worth, planned and measured.
#   bench/ablation-heads.sh PACKAGE [TOKENS] [ROUNDS] [FLAGS...]
# One chunk of TOKENS (at most 1024), so that no other chunk's work fills the gaps; the host as a device of its own, lanes of one worker that never help each other. Rows run by turns, ROUNDS (5)
# times each: median time from the first estimate to the last attend of a layer, the planned time, launches of a layer, planning time of a layer. FLAGS are for all rows: --attention-share -1 makes
# every query head a unit, as in the paper. Run tern bench --tune with the same FLAGS and --npu-apart first, so that plans come from measured times.
set -euo pipefail
export TERN_PACK=never # nothing is measured behind a run
package=$1 tokens=${2:-1024} rounds=${3:-5}
shift $(($# < 3 ? $# : 3))
tern=${TERN:-build/tern} work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 - "$tokens" >"$work/text" <<'PY'
import random, sys
random.seed(1)
print("".join(random.choice("abcdefghijklmnopqrstuvwxyz") for _ in range(int(sys.argv[1]) - 1)), end="")
PY
rows=(
    "one head, one stage at a time:in-order,no-fusion,no-overlap"
    "+ overlap:in-order,no-fusion"
    "+ fused launches:in-order"
    "+ order (all):paper"
)
for ((round = 0; round < rounds; round++)); do
    for i in "${!rows[@]}"; do
        "$tern" run -m "$package" --npu-apart --no-steal --cpu-threads 1 --npu-threads 1 --chunk 1024 --attention shadow --attention-threshold 1 --attention-pipeline on --attention-plan "${rows[i]#*:}" "$@" \
            -f "$work/text" -c $((tokens + 64)) -n 1 --temp 0 --ignore-eos --draft none --json >>"$work/$i.json"
    done
done
printf '%s\n' "${rows[@]%%:*}" >"$work/labels"
python3 - "$work" "$package" <<'PY'
import json, statistics, sys
work, before = sys.argv[1], None
print(f"{'':32}{'measured us':>12}{'/ before':>10}{'planned us':>12}{'launches':>10}{'planning us':>12}")
for i, label in enumerate(open(f"{work}/labels").read().splitlines()):
    d, text, at, runs = json.JSONDecoder(), open(f"{work}/{i}.json").read(), 0, []
    while text[at:].strip():
        v, at = d.raw_decode(text, at + len(text[at:]) - len(text[at:].lstrip()))
        runs.append(v["attention"])
    n = runs[0]["pipeline"]["plans"] # a plan a layer: one chunk
    took = statistics.median(r["pipeline"]["took_ms"] for r in runs) * 1e3 / n
    print(f"{label:32}{took:12.0f}{took / (before or took):10.2f}{runs[0]['pipeline']['planned_ms'] * 1e3 / n:12.0f}{runs[0]['launches'] / n:10.1f}"
          f"{statistics.median(r['pipeline']['plan_us'] for r in runs):12.1f}", flush=True)
    before = took
PY
