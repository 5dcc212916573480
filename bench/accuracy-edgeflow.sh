#!/usr/bin/env bash
# Quantisation at equal average bits, as EdgeFlow's tables 4 and 5: SmoothQuant and shadow outliers (every channel B bits), a CMPQ-style
# allocation and edgeflow's (both with edgeflow's smoothing), on a model with evaluation sets and on the same model with injected outliers.
#   bench/accuracy-edgeflow.sh [FOLDER] [LIMIT] [BITS]...
# LIMIT: items of each task (default 100; 0: all). Needs NumPy (PYTHON names the interpreter). One line a row: perplexity of english.txt and exact
# match over the items of all tasks, in percent, with standard errors.
set -euo pipefail
model=${1:-models/tern-tiny} limit=${2:-100}
shift $(($# < 2 ? $# : 2))
[ $# -gt 0 ] || set -- 4 5 6 7 8
tern=${TERN:-build/tern} work=${WORK:-build/accuracy}
mkdir -p "$work"
tasks="extraction_512 summary ui_action function_call reply"
[ -d "$work/outliers" ] || "${PYTHON:-python3}" tools/inject_outliers.py "$model" "$work/outliers" >/dev/null
row() { # MODEL LABEL
    "$tern" eval -m "$1" --task ppl --data "$model/eval/english.txt" --json >"$work/e.ppl.json"
    for t in $tasks; do "$tern" eval -m "$1" --task exact --data "$model/eval/$t.jsonl" --limit "$limit" --json --items >"$work/e.$t.json"; done
    python3 - "$work/e" "$2" $tasks <<'PY'
import json, math, sys
base, label, tasks = sys.argv[1], sys.argv[2], sys.argv[3:]
p = json.load(open(base + ".ppl.json"))
items = [x for t in tasks for x in json.load(open(f"{base}.{t}.json"))["items_right"]]
a = sum(items) / len(items)
print(f"{label:42}{p['perplexity']:12.2f} ± {p['stderr']:<8.2f}{100 * a:8.1f} ± {100 * math.sqrt(a * (1 - a) / len(items)):.1f} %", flush=True)
PY
}
for m in "$model" "$work/outliers"; do
    [ "$m" = "$model" ] && name=plain || name=outliers
    row "$m" "$name, float"
    for bits in "$@"; do
        for how in "smoothquant:--scheme smoothquant" "shadow outliers:--scheme llm-npu" "CMPQ:--scheme edgeflow --allocation cmpq" "edgeflow:--scheme edgeflow" "edgeflow, one budget:--scheme edgeflow --bits-scope model" "gram:--scheme gram"; do
            "$tern" pack "$m" -o "$work/e.tern" --bits "$bits" ${how#*:} --calib "$model/calib.txt" >/dev/null 2>&1
            row "$work/e.tern" "$name, $bits bits, ${how%%:*}"
        done
    done
done
