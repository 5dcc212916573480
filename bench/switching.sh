#!/usr/bin/env bash
# What exchanging graphs costs on a device that holds one form at a time (sd.npu 4.2): bench/switching.sh TERN PACKAGE [PROMPT_TOKENS] [ROUNDS]
# Prefill and one decoded token (which needs the decode graphs), interleaved: graphs that share weights, then progressive, async, sync.
# Lanes are kept apart, as on a phone. Prints medians: total time, time of loading, of that exposed.
set -euo pipefail
export TERN_PACK=never # nothing is measured behind a run
tern=$1 package=$2 n=${3:-1024} rounds=${4:-5}
work=$(mktemp -d)
trap 'rm -r "$work"' EXIT
python3 - "$n" >"$work/prompt" <<'PY'
import random, sys
random.seed(1)
print(" ".join(random.choice("the a cat house runs over under green small seven then where".split()) for _ in range(int(sys.argv[1]))))
PY
run() { "$tern" run -m "$package" -f "$work/prompt" -n 2 --temp 0 --ignore-eos --draft none --no-steal -c 4096 --json "$@"; }
run >/dev/null # measures the stages' times
for round in $(seq "$rounds"); do
    for kind in shared progressive async sync; do
        if [ $kind = shared ]; then run >"$work/$kind.$round"; else run --npu-separate-weights --switch $kind >"$work/$kind.$round"; fi
    done
done
python3 - "$work" "$rounds" <<'PY'
import json, statistics, sys
work, rounds = sys.argv[1], int(sys.argv[2])
base = None
print(f"{'graphs':12} {'prefill + step ms':>18} {'loading ms':>11} {'exposed ms':>11} {'planned':>8} {'blocks':>7}")
for kind in "shared progressive async sync".split():
    runs = [json.load(open(f"{work}/{kind}.{r}")) for r in range(1, rounds + 1)]
    total = statistics.median(1e3 * j["prompt_tokens"] / j["prefill_tokens_per_second"] + 1e3 / j["decode_tokens_per_second"] for j in runs)
    s = [j.get("switching", {}) for j in runs]
    med = lambda key: statistics.median(x.get(key, 0) for x in s)
    base = base or total
    print(f"{kind:12} {total:11.1f} ({total - base:+5.1f}) {med('load_ms'):11.1f} {med('exposed_ms'):11.1f} {med('planned_exposed_ms'):8.1f} {med('blocks'):7.0f}")
PY
