#!/usr/bin/env bash
# What it costs that products leave the device in 8 bits, with one frozen scale a tensor, as on a QNN-like device: every scheme with outputs in
# float, in 8 bits behind EdgeFlow's output factor (beta 1), and in 8 bits as they are (beta 0).
#   bench/accuracy-outputs.sh [FOLDER] [WINDOWS] [SCHEMES]
# One line each: perplexity of english.txt over so many windows of 512 tokens (default 40), and the KL divergence from the float model, in 1/1000
# nats, with its standard error. FOLDER/eval/english.txt and FOLDER/calib.txt are read; the second table is the same model with injected
# outliers where NumPy is there to make it (PYTHON names the interpreter).
set -euo pipefail
model=${1:-models/tern-tiny} windows=${2:-40} schemes=${3:-naive-w8a8 smoothquant llm-npu edgeflow gram}
tern=${TERN:-build/tern} work=${WORK:-build/accuracy}
export TERN_PACK=never
mkdir -p "$work"
models=$model
if [ -d "$work/outliers" ] || "${PYTHON:-python3}" tools/inject_outliers.py "$model" "$work/outliers" >/dev/null 2>&1; then models="$model $work/outliers"; fi
for m in $models; do
    printf '%s\n%-14s %-10s %12s %16s\n' "$m" scheme outputs perplexity "KL, 1/1000 nats"
    for scheme in $schemes; do
        bits=
        case $scheme in edgeflow | gram) bits="--bits 8" ;; esac
        for how in "float:" "beta 1:--output-int8" "beta 0:--output-int8 --output-beta 0"; do
            "$tern" pack "$m" -o "$work/outputs.tern" --scheme "$scheme" $bits --calib "$model/calib.txt" ${how#*:} >/dev/null
            "$tern" eval -m "$work/outputs.tern" --task ppl --data "$model/eval/english.txt" --kl "$m" --limit "$windows" --json |
                python3 -c "
import json, sys
r = json.load(sys.stdin)
l = r['loss']
print('%-14s %-10s %12.2f %9.2f +- %.2f' % ('$scheme', '${how%%:*}', r['perplexity'], l['kl'] * 1000, l['kl_stderr'] * 1000))"
        done
    done
done
rm -f "$work/outputs.tern" "$work/outputs.tern.profile"
