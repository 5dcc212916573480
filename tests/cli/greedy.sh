#!/usr/bin/env bash
# tern run --temp 0 on a real trained model gives the tokens another engine gave (tests/oracle/greedy.json), whatever the threads.
set -euo pipefail
tern=$1
model=${TERN_DATA:-../shared/data}/models/stories260K.gguf
if [ ! -f "$model" ]; then
    echo "skipped: no $model"
    exit 77
fi
for threads in 1 2; do
    "$tern" run -m "$model" -p "Once upon a time" -n 100 --temp 0 --ignore-eos -t $threads --json --logprobs | python3 -c '
import json, sys
run, want = json.load(sys.stdin), json.load(open("tests/oracle/greedy.json"))
ids = [t["id"] for t in run["token_logprobs"]]
n = min(len(ids), len(want["tokens"]))
assert n >= 50 and run["prompt_tokens"] == len(want["prompt_tokens"]), (n, run["prompt_tokens"])
assert ids[:n] == want["tokens"][:n], (ids, want["tokens"])
print(n, "tokens agree")'
done
