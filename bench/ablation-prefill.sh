#!/usr/bin/env bash
# The ablation ladder of llm.npu on this machine: what each mechanism adds to prefill speed, with the bubble rate of both lanes.
#   bench/ablation-prefill.sh MODEL [TOKENS] [ROUNDS]      MODEL: a float model; its packages are made once, in $WORK
set -euo pipefail
export TERN_PACK=never # nothing is measured behind a run
model=$1 tokens=${2:-1024} rounds=${3:-3}
tern=${TERN:-build/tern} work=${WORK:-build/ablation}
mkdir -p "$work"
name=$(basename "$model")
for scheme in naive-w8a8 llm-npu; do
    [ -s "$work/$name.$scheme.tern" ] || "$tern" pack "$model" -o "$work/$name.$scheme.tern" --scheme $scheme --calib-tokens 512 >/dev/null
done
text=$(mktemp)
trap 'rm -f "$text"' EXIT
python3 - "$tokens" >"$text" <<'PY'
import random, sys
random.seed(1)
print("".join(random.choice("abcdefghijklmnopqrstuvwxyz") for _ in range(int(sys.argv[1]))), end="")
PY
row() { # label, arguments of tern run
    local label=$1
    shift
    for ((i = 0; i < rounds; i++)); do "$tern" run "$@" -f "$text" -n 1 --temp 0 --ignore-eos --draft none --json; done |
        python3 -c "
import json, statistics, sys
d, text, i, rows = json.JSONDecoder(), sys.stdin.read(), 0, []
while text[i:].strip():
    v, i = d.raw_decode(text, i + len(text[i:]) - len(text[i:].lstrip()))
    rows.append(v)
m = lambda f: statistics.median(f(r) for r in rows)
b = ['%5.1f' % (100 * m(lambda r: r['prefill'][k])) if 'prefill' in rows[0] else '    -' for k in ('cpu_bubble', 'npu_bubble')]
print('%-48s %6d tokens %9.1f tokens/s   bubbles CPU %s %%  NPU %s %%   %6.0f MiB' % ('$label', rows[0]['prompt_tokens'], m(lambda r: r['prefill_tokens_per_second']), *b, m(lambda r: r['peak_rss_bytes']) / 1048576), flush=True)"
}
ctx=$((tokens + 64)) naive=$work/$name.naive-w8a8.tern npu=$work/$name.llm-npu.tern
row "float, CPU only" -m "$model" -c $ctx
row "naive INT8 device: one graph of 1024 rows" -m "$naive" -c $ctx --chunk 1024 --policy in-order --no-steal
row "+ chunks of 256, one graph each" -m "$naive" -c $ctx --chunk 256 --policy in-order --no-steal --no-chunk-sharing
row "+ chunk-sharing graphs" -m "$naive" -c $ctx --chunk 256 --policy in-order --no-steal
row "+ shadow outliers (right text from here on)" -m "$npu" -c $ctx --chunk 256 --policy in-order --no-steal
row "+ lanes overlap" -m "$npu" -c $ctx --chunk 256 --policy overlap --no-steal
row "+ out of order" -m "$npu" -c $ctx --chunk 256 --policy ooe --no-steal
row "+ idle cores help (both lanes are cores here)" -m "$npu" -c $ctx --chunk 256 --policy ooe
row "synergy (position priority, stealing)" -m "$npu" -c $ctx --chunk 256 --policy synergy
