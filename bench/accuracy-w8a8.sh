#!/usr/bin/env bash
# Accuracy of the quantisation schemes on a model with evaluation sets (models/tern-tiny), and on the same model with injected outliers.
#   bench/accuracy-w8a8.sh [FOLDER] [LIMIT] [SCHEMES]
# Needs NumPy (PYTHON names the interpreter). One line a scheme: perplexity of english.txt, exact match of every task in percent, and over the
# items of all tasks together the accuracy and how far it is from float's, item by item: the mean difference and its standard error.
# SCHEMES: words out of float llm-int8 group-w8a8 naive-w8a8 smoothquant prune-100 prune-85 prune-50 prune-0 (prune-85 is llm-npu's default)
# gram-5 (the default; any number of bits) edgeflow-8 (8 bits with smoothing before outlier paths), and with LLAMA_DIR=path (a built llama.cpp): llama-f32 llama-q8_0, the same model and
# items in that engine (bench/peer/llama_eval.c; its perplexity comes without a standard error).
set -euo pipefail
model=${1:-models/tern-tiny} limit=${2:-0}
schemes=${3:-float llm-int8 group-w8a8 naive-w8a8 smoothquant prune-100 prune-85 prune-50 prune-0 edgeflow-8}
tern=${TERN:-build/tern} work=${WORK:-build/accuracy}
mkdir -p "$work"
calib=$model/calib.txt eval=$model/eval tasks="extraction_512 summary ui_action function_call reply"
case " $schemes " in
*" llama-"*)
    lib=${LLAMA_DIR:?LLAMA_DIR must name a built llama.cpp}/build/bin
    cc -O2 -D_GNU_SOURCE -I"$LLAMA_DIR/include" -I"$LLAMA_DIR/ggml/include" bench/peer/llama_eval.c -L"$lib" -lllama -lggml -lggml-base -ljansson -lm \
        -Wl,-rpath,"$lib" -o "$work/llama_eval"
    ;;
esac
[ -d "$work/outliers" ] || "${PYTHON:-python3}" tools/inject_outliers.py "$model" "$work/outliers" >/dev/null
for m in "$model" "$work/outliers"; do
    [ "$m" = "$model" ] && name=plain || name=outliers
    for scheme in $schemes; do
        x=$m extra="" out=$work/$name.$scheme
        case $scheme in
        float) ;;
        llm-int8 | group-w8a8) extra="--scheme $scheme" ;;
        llama-*) ;;
        prune-*) x=$work/x.tern; "$tern" pack "$m" -o "$x" --scheme llm-npu --prune "${scheme#prune-}" --calib "$calib" >/dev/null ;;
        gram-*) x=$work/x.tern; "$tern" pack "$m" -o "$x" --scheme gram --bits "${scheme#gram-}" --calib "$calib" >/dev/null ;;
        edgeflow-*) x=$work/x.tern; "$tern" pack "$m" -o "$x" --scheme edgeflow --bits "${scheme#edgeflow-}" --calib "$calib" >/dev/null ;;
        *) x=$work/x.tern; "$tern" pack "$m" -o "$x" --scheme "$scheme" --calib "$calib" >/dev/null ;;
        esac
        if [ "${scheme%%-*}" = llama ]; then
            x=$work/x.gguf
            "${PYTHON:-python3}" tools/hf_to_gguf.py "$m" "$x" --type "${scheme#llama-}"
            printf '{"perplexity": %s, "stderr": 0}' "$("$work/llama_eval" "$x" ppl "$eval/english.txt")" >"$out.ppl.json"
            for t in $tasks; do
                "$work/llama_eval" "$x" exact <(if [ "$limit" = 0 ]; then cat "$eval/$t.jsonl"; else head -n "$limit" "$eval/$t.jsonl"; fi) | awk '
                    { items = items sep $1; sep = ","; right += $1; n++ }
                    END { a = right / n; printf "{\"accuracy\": %f, \"stderr\": %f, \"items_right\": [%s]}", a, sqrt(a * (1 - a) / n), items }' >"$out.$t.json"
            done
        else
            "$tern" eval -m "$x" $extra --task ppl --data "$eval/english.txt" --json >"$out.ppl.json"
            for t in $tasks; do "$tern" eval -m "$x" $extra --task exact --data "$eval/$t.jsonl" --limit "$limit" --json --items >"$out.$t.json"; done
        fi
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
