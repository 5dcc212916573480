#!/usr/bin/env bash
# The simulator's own calibration: a package's warm prefill as predicted from its profile (tern sim --soc this-machine), beside what is measured.
# In each round the profile is made anew with the longest prompt, right before all of them are measured, so that both are of the same minute.
#   bench/sim-calibration.sh MODEL.tern [PROMPTS] [ROUNDS]      the longest prompt last; $RUN: a command that runs a measurement alone
set -euo pipefail
export MODEL=$1 PROMPTS=${2:-256,512,1024} TERN=${TERN:-build/tern}
rounds=${3:-3} run=${RUN:-}
for _ in $(seq "$rounds"); do
    $run bash -c '"$TERN" bench -m "$MODEL" --tune -p "${PROMPTS##*,}" --json >/dev/null && "$TERN" bench -m "$MODEL" -p "$PROMPTS" -n 0 -r 7 --json' | tr -d '\n'
    for n in ${PROMPTS//,/ }; do printf '\t%s' "$("$TERN" sim --soc this-machine --model "$MODEL" --prompt "$n" --json)"; done
    echo
done | python3 -c "
import json, statistics, sys
rounds = [[json.loads(x) for x in line.split('\t')] for line in sys.stdin]
for i, n in enumerate(map(int, '$PROMPTS'.split(','))):
    m = [1e3 * n / r[0][i]['tokens_per_second']['median'] for r in rounds]
    p = [r[1 + i]['ttft_ms'] for r in rounds]
    error = statistics.median(100 * (x / y - 1) for x, y in zip(p, m))
    print('%6d tokens: predicted %8.1f ms | measured %8.1f ms (%.1f .. %.1f) | error %+5.1f %%, median of %d rounds' %
          (n, statistics.median(p), statistics.median(m), min(m), max(m), error, len(m)))"
