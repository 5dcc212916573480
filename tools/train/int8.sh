#!/usr/bin/env bash
# What static INT8 packages lose of a trained model: int8.sh TERN MODEL_FOLDER TEXT_FOLDER WORK_FOLDER [seeds of outliers]
# Packages are calibrated on the train split and judged on the whole test split (English), against the folder in floats; then the same
# of versions with injected outliers. One line a package: bytes, change of perplexity and its standard error, KL divergence.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
tern=${1:?program} model=${2:?model folder} text=${3:?text folder} work=${4:?work folder}
shift 4
python=${PYTHON:-python3}
export TERN_PACK=never
mkdir -p "$work"
"$python" "$here/english.py" "$text" train "$work/train.txt" 100000
"$python" "$here/english.py" "$text" test "$work/test.txt"
row() { # name, model, options of pack
    local name=$1 source=$2
    shift 2
    "$tern" pack "$source" -o "$work/p.tern" --calib "$work/train.txt" "$@" >/dev/null 2>&1
    "$tern" eval -m "$work/p.tern" --task ppl --data "$work/test.txt" --kl "$source" ${LIMIT:+--limit $LIMIT} --json >"$work/p.json"
    "$python" - "$name" "$(stat -c %s "$work/p.tern")" "$work/p.json" <<'PY'
import json, math, sys
d = json.load(open(sys.argv[3]))
l = d["loss"]
change, error = math.expm1(l["nll_diff"]), l["nll_diff_stderr"] * math.exp(l["nll_diff"])
print(f"{sys.argv[1]:28} {int(sys.argv[2]) / 1e6:5.2f} MB  ppl {d['perplexity']:.2f} of {d['source_perplexity']:.2f}, "
      f"{100 * change:+.2f} ± {100 * error:.2f} %  KL {l['kl']:.4f} ± {l['kl_stderr']:.4f}  top {100 * l['same_top']:.1f} %", flush=True)
PY
}
for bits in 8 6 5 4; do row "gram, $bits bits" "$model" --bits $bits; done
row "llm-npu" "$model" --scheme llm-npu
row "llm-npu, nothing pruned" "$model" --scheme llm-npu --prune 0
row "naive-w8a8" "$model" --scheme naive-w8a8
row "smoothquant" "$model" --scheme smoothquant
for seed in "$@"; do
    "$python" "$here/../inject_outliers.py" "$model" "$work/outliers" --text "$work/train.txt" --seed "$seed" >/dev/null
    for bits in 8 5 4; do row "outliers $seed: gram, $bits bits" "$work/outliers" --bits $bits; done
    row "outliers $seed: llm-npu" "$work/outliers" --scheme llm-npu
    row "outliers $seed: naive-w8a8" "$work/outliers" --scheme naive-w8a8
done
