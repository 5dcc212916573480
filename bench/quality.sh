#!/usr/bin/env bash
# What a byte buys: packages of all widths beside the files llama-quantize makes of the same weights.
#   bench/quality.sh [FOLDER] [BITS]...            FOLDER: a model with calib.txt and eval/english.txt (default models/tern-tiny)
# One line a file: bytes, perplexity, difference of log-likelihood per token, KL divergence (mean, 99 %) and same most probable token
# against the source, on text that nothing was calibrated on, by llama.cpp's protocol (windows of 512, their second halves). Files of
# llama.cpp are evaluated by tern in floats, so their activations are not rounded: they look a little better than in their own engine.
# LLAMA_BIN=folder with llama-quantize adds them (TYPES names which; needs NumPy, PYTHON names the interpreter). ARGS: options of tern pack.
# TEXT, CALIB: other texts. WORK: where the files go.
# ENERGIES=FILE (an importance matrix of a real model): the table of FOLDER with that model's outlier channels (tools/inject_outliers.py, needs
# NumPy), once for each of SEEDS (default 1 2 3 4), and the means over them with standard errors, the least and the most.
# PARTS=N: CALIB cut into N, each part of it the calibration of packages of their own, and the means over them.
set -euo pipefail
model=${1:-models/tern-tiny}
shift $(($# < 1 ? $# : 1))
[ $# -gt 0 ] || set -- 3 3.5 4 4.5 5 6 8
tern=${TERN:-build/tern} work=${WORK:-build/quality} text=${TEXT:-$model/eval/english.txt} calib=${CALIB:-$model/calib.txt}
mkdir -p "$work"
means() { # FILE...: the tables of the seeds
    python3 - "$@" <<'PY'
import statistics, sys
rows = {}
for path in sys.argv[1:]:
    for line in open(path, encoding="utf-8"):
        c = [x.strip() for x in line.strip("|\n ").split("|")]
        if len(c) == 8 and c[1][:1].isdigit():
            rows.setdefault(c[0], []).append((float(c[1]), float(c[4]), float(c[5].split()[0]), float(c[7].split()[0])))
n = len(sys.argv) - 1
print("means over", n, "seeds ± their standard errors (least to most)\n\n| | MB | % | KL | same top % |\n|---|---|---|---|---|")
for label, of in rows.items():
    mean = [sum(c) / len(c) for c in zip(*of)]
    low, high = [min(c) for c in zip(*of)], [max(c) for c in zip(*of)]
    error = [statistics.stdev(c) / len(c) ** 0.5 if len(c) > 1 else 0 for c in zip(*of)]
    print(f"| {label} | {mean[0]:.2f} | {mean[1]:+.2f} ± {error[1]:.2f} ({low[1]:+.2f} to {high[1]:+.2f}) | "
          f"{mean[2]:.4f} ± {error[2]:.4f} ({low[2]:.4f} to {high[2]:.4f}) | {mean[3]:.1f} |")
PY
}
if [ -n "${ENERGIES:-}" ]; then
    for seed in ${SEEDS:-1 2 3 4}; do
        "${PYTHON:-python3}" tools/inject_outliers.py "$model" "$work/outliers$seed" --energies "$ENERGIES" --seed "$seed" >/dev/null
        echo "seed $seed:"
        ENERGIES='' TEXT=$text CALIB=$calib WORK=$work/seed$seed "$0" "$work/outliers$seed" "$@" | tee "$work/seed$seed.md"
    done
    means "$work"/seed*.md
    exit 0
fi
if [ -n "${PARTS:-}" ]; then
    split -d -n "l/$PARTS" "$calib" "$work/part"
    for ((part = 0; part < PARTS; part++)); do
        echo "part $part:"
        PARTS='' TEXT=$text CALIB=$work/part$(printf %02d "$part") WORK=$work/$part "$0" "$model" "$@" | tee "$work/part$part.md"
        LLAMA_BIN='' # its files take no calibration here
    done
    means "$work"/part*.md
    exit 0
fi
row() { # FILE LABEL
    "$tern" eval -m "$1" --exact --task ppl --data "$text" --protocol llama.cpp --kl "$model" --json 2>/dev/null >"$work/row.json"
    python3 - "$work/row.json" "$2" "$(stat -c %s "$1")" <<'PY'
import json, math, sys
r, label, size = json.load(open(sys.argv[1])), sys.argv[2], int(sys.argv[3])
l = r["loss"]
print(f"| {label} | {size / 1e6:.2f} | {r['perplexity']:.3f} | {l['nll_diff']:+.4f} ± {l['nll_diff_stderr']:.4f} | {100 * math.expm1(l['nll_diff']):+.2f} | "
      f"{l['kl']:.4f} ± {l['kl_stderr']:.4f} | {l['kl_p99']:.3f} | {100 * l['same_top']:.1f} ± {100 * l['same_top_stderr']:.1f} |", flush=True)
PY
}
echo "| | MB | perplexity | ΔNLL | % | KL | KL 99 % | same top % |"
echo "|---|---|---|---|---|---|---|---|"
for bits in "$@"; do
    # shellcheck disable=SC2086 # several options
    "$tern" pack "$model" -o "$work/b$bits.tern" --bits "$bits" --calib "$calib" ${ARGS:-} >/dev/null 2>&1
    row "$work/b$bits.tern" "tern, $bits bits"
done
[ -n "${LLAMA_BIN:-}" ] || exit 0
[ -s "$work/f32.gguf" ] || "${PYTHON:-python3}" tools/hf_to_gguf.py "$model" "$work/f32.gguf" --type f32 >/dev/null
for type in ${TYPES:-Q3_K_M Q4_0 Q4_K_M Q5_0 Q5_K_M Q6_K Q8_0}; do
    "$LLAMA_BIN/llama-quantize" "$work/f32.gguf" "$work/$type.gguf" "$type" >/dev/null 2>&1
    row "$work/$type.gguf" "llama.cpp $type"
done
