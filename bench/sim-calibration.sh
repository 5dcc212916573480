#!/usr/bin/env bash
# The simulator's own calibration: a package's warm prefill as predicted from its profile (tern sim --soc this-machine), beside what is measured.
# The profile is made anew before each round, so that both are of the same minute; medians over the rounds.
#   bench/sim-calibration.sh MODEL.tern [PROMPTS] [ROUNDS]      $RUN: a command that runs a measurement alone
set -euo pipefail
model=$1 prompts=${2:-512,1024} rounds=${3:-3}
tern=${TERN:-build/tern} run=${RUN:-}
for n in ${prompts//,/ }; do
    for _ in $(seq "$rounds"); do
        $run "$tern" bench -m "$model" --tune -p "$n" --json >/dev/null
        echo "predicted $("$tern" sim --soc this-machine --model "$model" --prompt "$n" --json)"
        echo "measured $($run "$tern" bench -m "$model" -p "$n" -n 0 -r 5 --json | tr -d '\n')"
    done | python3 -c "
import json, statistics, sys
v = {'predicted': [], 'measured': []}
for line in sys.stdin:
    word, text = line.split(' ', 1)
    j = json.loads(text)
    v[word].append(j['ttft_ms'] if word == 'predicted' else 1e3 * $n / j[0]['tokens_per_second']['median'])
p, m = (statistics.median(v[k]) for k in ('predicted', 'measured'))
print('%6d tokens: predicted %8.1f ms | measured %8.1f ms (%.1f .. %.1f) | error %+5.1f %%' % ($n, p, m, min(v['measured']), max(v['measured']), 100 * (p / m - 1)), flush=True)"
done
