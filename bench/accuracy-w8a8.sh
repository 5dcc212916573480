#!/usr/bin/env bash
# Accuracy of the quantisation schemes on a model with evaluation sets (models/tern-tiny), and on the same model with injected outliers.
#   bench/accuracy-w8a8.sh [FOLDER] [LIMIT] [SCHEMES]
# Needs NumPy (PYTHON names the interpreter). One line a scheme: perplexity of english.txt, exact match of every task in percent, and over the
# items of all tasks together the accuracy and how far it is from float's, item by item: the mean difference and its standard error.
# SCHEMES: words out of float llm-int8 group-w8a8 naive-w8a8 smoothquant prune-100 prune-85 prune-50 prune-0 (prune-85 is llm-npu's default)
# edgeflow-8 (8 bits with smoothing before outlier paths).
set -euo pipefail
model=${1:-models/tern-tiny} limit=${2:-0}
schemes=${3:-float llm-int8 group-w8a8 naive-w8a8 smoothquant prune-100 prune-85 prune-50 prune-0 edgeflow-8}
tern=${TERN:-build/tern} work=${WORK:-build/accuracy}
mkdir -p "$work"
calib=$model/calib.txt eval=$model/eval tasks="extraction_512 summary ui_action function_call reply"
[ -d "$work/outliers" ] || "${PYTHON:-python3}" tools/inject_outliers.py "$model" "$work/outliers" >/dev/null
for m in "$model" "$work/outliers"; do
    [ "$m" = "$model" ] && name=plain || name=outliers
    for scheme in $schemes; do
        x=$m extra=""
        case $scheme in
        float) ;;
        llm-int8 | group-w8a8) extra="--scheme $scheme" ;;
        prune-*) x=$work/x.tern; "$tern" pack "$m" -o "$x" --scheme llm-npu --prune "${scheme#prune-}" --calib "$calib" >/dev/null ;;
        edgeflow-*) x=$work/x.tern; "$tern" pack "$m" -o "$x" --scheme edgeflow --bits "${scheme#edgeflow-}" --calib "$calib" >/dev/null ;;
        *) x=$work/x.tern; "$tern" pack "$m" -o "$x" --scheme "$scheme" --calib "$calib" >/dev/null ;;
        esac
        out=$work/$name.$scheme
        "$tern" eval -m "$x" $extra --task ppl --data "$eval/english.txt" --json >"$out.ppl.json"
        for t in $tasks; do "$tern" eval -m "$x" $extra --task exact --data "$eval/$t.jsonl" --limit "$limit" --json --items >"$out.$t.json"; done
        python3 - "$work/$name" "$scheme" $tasks <<'PY'
import json, math, os, sys
base, scheme, tasks = sys.argv[1], sys.argv[2], sys.argv[3:]
load = lambda s, t: json.load(open(f"{base}.{s}.{t}.json"))
if scheme == "float" and base.endswith("plain"):
    print(f"{'':22}{'perplexity':>16}" + "".join(f"{t.split('_512')[0]:>15}" for t in tasks) + f"{'all':>8}{'- float':>16}")
p = load(scheme, "ppl")
line = f"{os.path.basename(base)}, {scheme:<12}{p['perplexity']:10.3f}±{p['stderr']:<5.2f}"
mine, ref = [], []
for t in tasks:
    d = load(scheme, t)
    line += f"{100 * d['accuracy']:10.1f}±{100 * d['stderr']:<4.1f}"
    mine += d["items_right"]
    if os.path.exists(f"{base}.float.{t}.json"): ref += load("float", t)["items_right"]
line += f"{100 * sum(mine) / len(mine):8.1f}"
if len(ref) == len(mine):
    diff = [a - b for a, b in zip(mine, ref)]
    m = sum(diff) / len(diff)
    se = math.sqrt(sum((x - m) ** 2 for x in diff) / (len(diff) - 1) / len(diff))
    line += f"{100 * m:+9.2f}±{100 * se:<5.2f}"
print(line, flush=True)
PY
    done
done
