#!/usr/bin/env bash
# Accuracy of sparse attention of the prompt, and of decoding the answers, on a model with evaluation sets (models/tern-tiny), long contexts first.
#   bench/accuracy-attention.sh [FOLDER] [PERCENT] [LIMIT] [ROWS]
# One line a mode: recall of the exact largest positions, exact match of every task in percent, and over the items of all tasks together the
# accuracy and how far it is from full attention's, item by item: the mean difference and its standard error. The package and its scales are
# the same for all modes (llm-npu, 8 bits), so that only attention differs. ROWS: words out of full shadow float-sparse block-sparse npu-full,
# of our mode without a part: shadow-no-sharing shadow-no-pools shadow-1-bucket shadow-no-head-ratios, with sparse decoding as well: shadow-decode,
# with nothing but that: decode; and of the ladder of bench/ablation-attention.sh:
# paper (--attention-preset paper: shadowAttn as printed),
# ladder-sparse ladder-int8 ladder-buckets (its next rows are shadow-no-sharing and shadow). KEYS=32: the model with a pair of key channels in every KV head that
# is 32 times larger, and the queries' as much smaller (tools/inject_outliers.py; needs NumPy, PYTHON names the interpreter).
set -euo pipefail
model=${1:-models/tern-tiny} ratio=${2:-} limit=${3:-0}
rows=${4:-full shadow shadow-decode decode shadow-no-sharing shadow-no-pools shadow-1-bucket shadow-no-head-ratios float-sparse block-sparse npu-full}
tern=${TERN:-build/tern} work=${WORK:-build/accuracy-attention}
mkdir -p "$work"
evals=$model/eval calib=$model/calib.txt
if [ "${KEYS:-1}" != 1 ]; then
    "${PYTHON:-python3}" tools/inject_outliers.py "$model" "$work/keys" --strength 1 --keys "$KEYS" >/dev/null
    model=$work/keys
fi
tasks="extraction_2048 extraction_1024 extraction_512 summary function_call"
x=$work/model.tern
"$tern" pack "$model" -o "$x" --scheme llm-npu --calib "$calib" --head-importance >/dev/null
for row in $rows; do
    flags="--attention $row --attention-threshold 1"
    case $row in
    shadow-1-bucket) flags="--attention shadow --attention-threshold 1 --buckets 1" ;;
    shadow-no-sharing) flags="--attention shadow --attention-threshold 1 --attention-share -1" ;;
    shadow-no-pools) flags="--attention shadow --attention-threshold 1 --attention-pool 1" ;;
    shadow-decode) flags="--attention shadow --attention-decode --attention-threshold 1" ;;
    decode) flags="--attention full --attention-decode --attention-threshold 1" ;;
    paper) flags="--attention-preset paper" ;;
    shadow-no-head-ratios) flags="--attention shadow --attention-threshold 1 --no-head-ratios" ;;
    ladder-sparse) flags="--attention float-sparse --attention-threshold 1 --attention-share -1 --no-head-ratios" ;;
    ladder-int8) flags="--attention shadow --attention-threshold 1 --attention-share -1 --no-head-ratios --buckets 1" ;;
    ladder-buckets) flags="--attention shadow --attention-threshold 1 --attention-share -1 --no-head-ratios" ;;
    esac
    check=--attention-check
    case $row in full | block-sparse | npu-full) check="" ;; esac
    for t in $tasks; do "$tern" eval -m "$x" $flags ${ratio:+--ratio $ratio} $check --task exact --data "$evals/$t.jsonl" --limit "$limit" --json --items >"$work/$row.$t.json"; done
    python3 - "$work" "$row" $tasks <<'PY'
import json, math, sys
work, row, tasks = sys.argv[1], sys.argv[2], sys.argv[3:]
load = lambda r, t: json.load(open(f"{work}/{r}.{t}.json"))
if row == "full":
    print(f"{'':22}{'share':>8}{'recall':>9}" + "".join(f"{t:>17}" for t in tasks) + f"{'all':>8}{'- full':>16}")
d = [load(row, t) for t in tasks]
a = [x["attention"] for x in d if "attention" in x]
n = sum(x["rows"] for x in a)
share = f"{100 * sum(x['selected_share'] * x['rows'] for x in a) / n:8.1f}" if n else f"{100:8.1f}"
recall = [x for x in a if "recall" in x]
line = f"{row:22}{share}" + (f"{100 * sum(x['recall'] * x['rows'] for x in recall) / n:9.2f}" if recall else f"{'':9}")
for x in d: line += f"{100 * x['accuracy']:12.1f}±{100 * x['stderr']:<4.1f}"
mine = sum((x["items_right"] for x in d), [])
ref = sum((load("full", t)["items_right"] for t in tasks), [])
diff = [p - q for p, q in zip(mine, ref)]
m = sum(diff) / len(diff)
se = math.sqrt(sum((v - m) ** 2 for v in diff) / (len(diff) - 1) / len(diff))
print(line + f"{100 * sum(mine) / len(mine):8.1f}{100 * m:+9.2f}±{100 * se:<5.2f}", flush=True)
PY
done
