#!/usr/bin/env bash
# Recall of the exact largest scores by the INT8 estimate at global ratios of 10 to 50 %, on WikiText-2 (shadowAttn's Table 4).
#   bench/recall-attention.sh [WINDOWS] [MODEL]...
# WINDOWS (8): texts of the model's whole context each. Models: tern-tiny, and stories260K where it lies beside the repository (../shared/data/models); the text comes
# from there too. Per ratio: recall where every row and head selects for itself, as in the paper, with 9 pairs of scales and with one; recall of their own
# rule where rows and heads share (the default); and the share of the softmax weights at the selected positions, by the default.
set -euo pipefail
windows=${1:-8}
shift $(($# < 1 ? $# : 1))
data=${TERN_DATA:-../shared/data} tern=${TERN:-build/tern} work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
text=$data/text/wikitext2_valid.tokens.txt
[ -f "$text" ] || { echo "skipped: no WikiText-2 at $text (TERN_DATA names the folder)"; exit 0; }
[ $# -gt 0 ] || set -- models/tern-tiny "$data/models/stories260K.gguf"
for model in "$@"; do
    [ -e "$model" ] || { echo "skipped: no $model"; continue; }
    "$tern" pack "$model" -o "$work/m.tern" --scheme llm-npu --head-importance >/dev/null
    ctx=$("$tern" inspect "$work/m.tern" | awk '$1 == "context" { print $2 }')
    printf '%-20s%8s%12s%12s%12s%12s\n' "$(basename "$model"), $ctx" ratio "9 pairs" "1 pair" shared "softmax"
    for ratio in 10 20 30 40 50; do
        for how in "--attention-share -1" "--attention-share -1 --buckets 1" ""; do
            "$tern" eval -m "$work/m.tern" --task ppl --data "$text" -c "$ctx" --limit "$windows" --attention shadow --attention-threshold 1 --attention-check --ratio $ratio $how --json
        done | python3 -c "
import json, sys
d, text, at, a = json.JSONDecoder(), sys.stdin.read(), 0, []
while text[at:].strip():
    v, at = d.raw_decode(text, at + len(text[at:]) - len(text[at:].lstrip()))
    a.append(v['attention'])
print('%28s%12.2f%12.2f%12.2f%12.2f' % ('$ratio', *(100 * x['recall'] for x in a), 100 * a[2]['mass']), flush=True)"
    done
done
