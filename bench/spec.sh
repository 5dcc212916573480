#!/usr/bin/env bash
# Drafting over every prompt set at hand: accepted length, time per token, use of the forwards' capacity (sd.npu 5.5), then what a forward of
# M rows costs.
#   bench/spec.sh MODEL [ITEMS] [bench_spec options...]      ITEMS per set (default 20); -k 1.5b: by a known cost curve
# Sets: those of models/tern-tiny/eval, and spec_bench.jsonl by task in $TERN_DATA/text (default ../shared/data/text) when it is there.
set -euo pipefail
model=$1 items=${2:-20}
shift $(($# < 2 ? $# : 2))
cd "$(dirname "$0")/.."
bench=${BENCH:-build/bench_spec} data=${TERN_DATA:-../shared/data}/text eval=models/tern-tiny/eval
sets=("$eval"/summary.jsonl "$eval"/extraction_512.jsonl "$eval"/extraction_1024.jsonl "$eval"/ui_action.jsonl "$eval"/reply.jsonl "$eval"/function_call.jsonl)
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
if [ -r "$data/spec_bench.jsonl" ]; then
    for task in summarization rag qa translation math_reasoning; do
        grep "\"category\": \"$task\"" "$data/spec_bench.jsonl" >"$tmp/spec_bench-$task.jsonl"
        sets+=("$tmp/spec_bench-$task.jsonl")
    done
else
    echo "no $data/spec_bench.jsonl: only the sets shipped with tern-tiny" >&2
fi
echo "## prompts with something to copy"
"$bench" "$model" -n "$items" "$@" "${sets[@]}"
echo "## free text, sampled: nothing to copy"
"$bench" "$model" -n "$items" "$@" "$eval/english.txt"
echo "## one forward of M rows"
"$bench" "$model" -v
