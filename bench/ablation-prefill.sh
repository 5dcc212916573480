#!/usr/bin/env bash
# The ablation ladder of llm.npu on this machine: what each mechanism adds to prefill speed, with the bubble rate of both lanes.
#   bench/ablation-prefill.sh MODEL PACKAGE [TOKENS] [ROUNDS]      MODEL: the float model PACKAGE was packed from
set -euo pipefail
model=$1 package=$2 tokens=${3:-1024} rounds=${4:-3}
tern=${TERN:-build/tern}
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
    for ((i = 0; i < rounds; i++)); do "$tern" run "$@" -f "$text" -n 1 --temp 0 --ignore-eos --json; done |
        python3 -c "
import json, statistics, sys
d, text, i, rows = json.JSONDecoder(), sys.stdin.read(), 0, []
while text[i:].strip():
    v, i = d.raw_decode(text, i + len(text[i:]) - len(text[i:].lstrip()))
    rows.append(v)
m = lambda f: statistics.median(f(r) for r in rows)
b = ['%5.1f' % (100 * m(lambda r: r['prefill'][k])) if 'prefill' in rows[0] else '    -' for k in ('cpu_bubble', 'npu_bubble')]
print('%-44s %6d tokens %9.1f tokens/s   bubbles CPU %s %%  NPU %s %%' % ('$label', rows[0]['prompt_tokens'], m(lambda r: r['prefill_tokens_per_second']), *b))"
}
ctx=$((tokens + 64))
row "float, CPU only" -m "$model" -c $ctx
row "INT8 device, one task at a time" -m "$package" -c $ctx --policy in-order --no-steal
row "+ lanes overlap" -m "$package" -c $ctx --policy overlap --no-steal
row "+ out of order" -m "$package" -c $ctx --policy ooe --no-steal
row "+ idle cores help (both lanes are cores here)" -m "$package" -c $ctx --policy ooe
row "synergy (position priority, stealing)" -m "$package" -c $ctx --policy synergy
