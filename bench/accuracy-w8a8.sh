#!/usr/bin/env bash
# Accuracy of the quantisation schemes on a model with evaluation sets (models/tern-tiny), and on the same model with injected outliers.
#   bench/accuracy-w8a8.sh [FOLDER] [LIMIT]
# Needs NumPy (PYTHON names the interpreter). Prints perplexity of english.txt and exact match of every task, with standard errors in percentage points.
set -euo pipefail
model=${1:-models/tern-tiny} limit=${2:-0}
tern=${TERN:-build/tern} work=${WORK:-build/accuracy}
mkdir -p "$work"
calib=$model/calib.txt eval=$model/eval
[ -d "$work/outliers" ] || "${PYTHON:-python3}" tools/inject_outliers.py "$model" "$work/outliers" >/dev/null
row() { # label, model
    local line
    line=$(printf '%-26s' "$1")
    line+=$("$tern" eval -m "$2" --task ppl --data "$eval/english.txt" --json | python3 -c "import json,sys; d=json.load(sys.stdin); print(f\"{d['perplexity']:9.3f}±{d['stderr']:<6.2f}\", end='')")
    for t in extraction_512 summary ui_action function_call reply; do
        line+=$("$tern" eval -m "$2" --task exact --data "$eval/$t.jsonl" --limit "$limit" --json | python3 -c "import json,sys; d=json.load(sys.stdin); print(f\"{100*d['accuracy']:8.1f}±{100*d['stderr']:<4.1f}\", end='')")
    done
    echo "$line"
}
printf '%-26s%-16s%13s%13s%13s%13s%13s\n' "" "    perplexity" extraction summary ui_action function reply
for m in "$model" "$work/outliers"; do
    [ "$m" = "$model" ] && name=plain || name=outliers
    row "$name, float" "$m"
    for scheme in naive-w8a8 smoothquant; do
        "$tern" pack "$m" -o "$work/x.tern" --scheme $scheme --calib "$calib" >/dev/null
        row "$name, $scheme" "$work/x.tern"
    done
    for prune in 100 85 50 0; do
        "$tern" pack "$m" -o "$work/x.tern" --prune $prune --calib "$calib" >/dev/null
        row "$name, llm-npu prune $prune" "$work/x.tern"
    done
done
