#!/usr/bin/env bash
# The simulator's own calibration: a package's warm prefill as predicted from its profile (tern sim --soc this-machine), beside what is measured.
# The profile is made anew in each round, right before the measurement, so that both are of the same minute; medians over the rounds.
#   bench/sim-calibration.sh MODEL.tern [PROMPTS] [ROUNDS]      $RUN: a command that runs a measurement alone
set -euo pipefail
export MODEL=$1 TERN=${TERN:-build/tern}
prompts=${2:-512,1024} rounds=${3:-3} run=${RUN:-}
for n in ${prompts//,/ }; do
    export N=$n
    for _ in $(seq "$rounds"); do
        $run bash -c '"$TERN" bench -m "$MODEL" --tune -p "$N" --json >/dev/null && "$TERN" bench -m "$MODEL" -p "$N" -n 0 -r 7 --json' | tr -d '\n'
        printf '\t%s\n' "$("$TERN" sim --soc this-machine --model "$MODEL" --prompt "$N" --json)"
    done | python3 -c "
import json, statistics, sys
m, p = [], []
for line in sys.stdin:
    measured, predicted = (json.loads(x) for x in line.split('\t'))
    m.append(1e3 * $n / measured[0]['tokens_per_second']['median'])
    p.append(predicted['ttft_ms'])
error = statistics.median(100 * (x / y - 1) for x, y in zip(p, m))
print('%6d tokens: predicted %8.1f ms | measured %8.1f ms (%.1f .. %.1f) | error %+5.1f %%, median of %d rounds' %
      ($n, statistics.median(p), statistics.median(m), min(m), max(m), error, len(m)), flush=True)"
done
